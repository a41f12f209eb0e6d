"""Success rules: every module of this folder holds one kind, found by reading the folder."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from types import MappingProxyType
from typing import Any

from leakbench.errors import LeakbenchError, unknown_name
from leakbench.metrics.rules.contract import BEST_BASELINE, TRIVIAL, SuccessRule
from leakbench.spec import JUDGED

__all__ = ["BEST_BASELINE", "TRIVIAL", "SuccessRule", "kinds", "make_rule", "succeeded"]


@cache
def kinds() -> Mapping[str, type[SuccessRule]]:
    """Every kind of rule by its name, in alphabetical order."""
    found: dict[str, type[SuccessRule]] = {}
    for module in sorted(info.name for info in pkgutil.iter_modules(__path__)):
        content = vars(importlib.import_module(f"{__name__}.{module}"))
        rules = [value for value in content.values() if isinstance(value, type)]
        # The base, which every module imports, has no kind.
        found |= {k.kind: k for k in rules if issubclass(k, SuccessRule) and hasattr(k, "kind")}
    return dict(sorted(found.items()))


def make_rule(
    *, kind: str, name: str, parameters: Mapping[str, Any] = MappingProxyType({}), **common: Any
) -> SuccessRule:
    """The rule that a suite's table describes.

    Args:
        kind: One of `kinds`.
        name: The rule's name.
        parameters: Fields of that kind that are not in `common`.
        common: Fields too, but those that only other kinds have are ignored, so that one table can
            hold the defaults of all.

    Raises:
        LeakbenchError: If there is no such kind, or a value is outside its range.
    """
    wanted = kinds().get(kind)
    if wanted is None:
        raise unknown_name("kind", kind, kinds(), f"rule '{name}'")
    own = {field.name: field for field in fields(wanted) if field.name != "name"}
    for key in parameters:
        if key not in own or key in common:
            raise unknown_name("parameter", key, own.keys() - common.keys(), f"rule '{name}'")
    given = {key: value for key, value in common.items() if key in own} | dict(parameters)
    for key, field in own.items():
        if field.default is MISSING and key not in given:
            raise LeakbenchError(f"rule '{name}': {kind} needs {key}")
    return wanted(name=name, **given)


def succeeded(rule: SuccessRule, record: Mapping[str, Any]) -> bool:
    """Whether the returned iterate of a trial meets `rule`, from the numbers kept in its record.

    Images are not needed, so that a report can apply a rule that was not known at run time. False
    where nothing was returned.
    """
    if record["status"] not in JUDGED:
        return False
    if BEST_BASELINE not in rule.reads:
        return rule.judge(record)
    baselines = record.get("baselines") or {}
    trivial = [value for name in TRIVIAL if (value := baselines.get(name)) is not None]
    numbers = {name: record.get(name) for name in rule.reads}
    return rule.judge(numbers | {BEST_BASELINE: min(trivial, default=None)})
