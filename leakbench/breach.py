"""What contract tests of plugins have in common."""

from __future__ import annotations

import dataclasses
from typing import Any, cast


class ContractBreach(AssertionError):
    """A plugin breaks a promise of `leakbench.contracts`."""


def require(holds: bool, promise: str) -> None:
    """Raise ContractBreach, saying what is broken, unless the promise holds."""
    if not holds:
        raise ContractBreach(promise)


def check_class(plugin: Any, family: type) -> None:
    """A frozen dataclass of its family with a name, which refuses parameters it does not have."""
    kind = type(plugin)
    require(isinstance(plugin, family), f"{kind.__name__} does not derive from {family.__name__}")
    require(
        dataclasses.is_dataclass(kind) and cast(Any, kind).__dataclass_params__.frozen,
        f"{kind.__name__} must be a dataclass(frozen=True, kw_only=True)",
    )
    require(isinstance(kind.name, str) and bool(kind.name), f"{kind.__name__} has no name")
    try:
        kind(there_is_no_such_parameter=1)
    except TypeError:
        return
    raise ContractBreach(f"{kind.__name__} accepts a hyper-parameter that it does not have")
