"""What the constructor of a plugin refuses: hyper-parameters that mean nothing, in one sentence."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from numbers import Integral, Real
from typing import Any, Literal, TypeGuard

from leakbench.errors import LeakbenchError

_SAID = {"(0, inf)": "positive and finite", "[0, inf)": ">= 0 and finite"}
_KINDS = {float: "a finite number", int: "a whole number", bool: "true or false", str: "a text"}


def require_in(plugin: str, interval: str, **values: object) -> None:
    """Refuse what is no number in `interval`, written as "(0, inf)", "[0, 1)" or "[0, 1]".

    Raises:
        LeakbenchError: for nan, infinities, booleans, texts and what lies outside.
    """
    low, high = (float(end) for end in interval[1:-1].split(","))
    for name, value in values.items():
        inside = (
            _is_number(value)
            and (low < value or (interval[0] == "[" and value == low))
            and (value < high or (interval[-1] == "]" and value == high))
        )
        if not inside:
            said = _SAID.get(interval, f"in {interval}")
            raise LeakbenchError(f"{plugin}: {name} must be {said}, got {_shown(value)}")


def check_kinds(plugin: object) -> None:
    """Refuse fields that are not what their annotation says: float, int, bool, str, a Literal, or
    one of several; a float must be finite. Fields of other types are left to the plugin.

    Raises:
        LeakbenchError: naming plugin, field, and what is allowed.
    """
    kind: Any = type(plugin)  # hashable, as all classes are
    for name, allowed in _allowed(kind):
        value = getattr(plugin, name)
        if not any(_is_one(value, kind) for kind in allowed):
            said = " or ".join(_words(kind) for kind in allowed)
            where = getattr(plugin, "name", type(plugin).__name__)
            raise LeakbenchError(f"{where}: {name} must be {said}, got {_shown(value)}")


@functools.lru_cache(maxsize=512)
def _allowed(plugin: type) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    """(field, kinds) of the fields that can be checked."""
    try:
        hints = typing.get_type_hints(plugin)
    except NameError:  # a name that only the type checker imports, or of a function's inside
        return ()
    found = []
    for field in dataclasses.fields(plugin):
        hint = hints[field.name]
        several = typing.get_origin(hint) in (typing.Union, types.UnionType)
        kinds = typing.get_args(hint) if several else (hint,)
        if all(k in _KINDS or k is type(None) or typing.get_origin(k) is Literal for k in kinds):
            found.append((field.name, kinds))
    return tuple(found)


def _is_one(value: object, kind: Any) -> bool:
    if typing.get_origin(kind) is Literal:
        return any(value == one and type(value) is type(one) for one in typing.get_args(kind))
    if kind is float:
        return _is_number(value) and math.isfinite(value)
    if kind is int:
        return isinstance(value, Integral) and not isinstance(value, bool)
    return isinstance(value, kind)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, Real) and not isinstance(value, bool)


def _words(kind: Any) -> str:
    if typing.get_origin(kind) is Literal:
        return "one of " + ", ".join(str(one) for one in typing.get_args(kind))
    return "None" if kind is type(None) else _KINDS[kind]


def _shown(value: object) -> str:
    return str(value) if _is_number(value) else repr(value)
