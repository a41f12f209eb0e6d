"""Dataclasses of plain values, read back from what `dataclasses.asdict` and JSON made of them."""

from __future__ import annotations

import dataclasses
import functools
import sys
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

from leakbench.errors import LeakbenchError, unknown_name

_NONE: frozenset[type] = frozenset()
_AS_THEY_ARE: dict[Any, frozenset[type]] = {
    kind: frozenset({kind}) for kind in (bool, int, float, str)
}
"""Plain kinds, and the types of their values that need no look at each."""


def from_json(kind: Any, value: Any, where: str) -> Any:
    """A value of the annotated `kind` from its JSON: dataclasses from tables, tuples from lists.

    `kind` may be built from dataclasses, `tuple[X, ...]`, `Mapping[str, X]`, literals, unions,
    `Any`, None, bool, int, float and str.

    Raises:
        LeakbenchError: a value that is missing, unknown, or of another kind.
    """
    origin = get_origin(kind)
    if kind is Any:
        return _frozen(value)
    if dataclasses.is_dataclass(kind):
        return _dataclass_from_json(kind, value, where)
    if origin is tuple and isinstance(value, list | tuple):
        inner = get_args(kind)[0]
        if {*map(type, value)} <= _AS_THEY_ARE.get(inner, _NONE):
            return tuple(value)  # a manifest has hundreds of thousands of numbers
        return tuple(from_json(inner, item, f"{where}.{i}") for i, item in enumerate(value))
    if origin is Mapping and isinstance(value, Mapping):
        inner = get_args(kind)[1]
        return {str(k): from_json(inner, item, f"{where}.{k}") for k, item in value.items()}
    if origin in (typing.Union, types.UnionType):
        for one in get_args(kind):
            if _fits(one, value):
                return from_json(one, value, where)
    elif _fits(kind, value):
        return float(value) if kind is float else value
    raise LeakbenchError(f"{where}: must be {_words(kind)}, got {value!r:.60}")


def _dataclass_from_json(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, Mapping):
        raise LeakbenchError(f"{where}: must be a table, got {value!r:.60}")
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for name in value:
        if name not in fields:
            raise unknown_name("key", str(name), fields, where)
    for name, field in fields.items():
        required = field.default is field.default_factory is dataclasses.MISSING
        if required and name not in value:
            raise LeakbenchError(f"{where}, key {name}: missing")
    hints = _hints(kind)
    values = {k: from_json(hints[k], v, f"{where}, key {k}") for k, v in value.items()}
    try:
        return kind(**values)
    except ValueError as error:  # what the class itself finds wrong with them
        raise LeakbenchError(f"{where}: {error}") from None


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    """Annotations of a dataclass; a plan asks for the same ones for each of its cells."""
    return typing.get_type_hints(kind)


def _fits(kind: Any, value: Any) -> bool:
    """Whether a JSON value is of a kind; of tables and lists only that they are some."""
    if get_origin(kind) is Literal:
        return any(value == one and type(value) is type(one) for one in get_args(kind))
    if kind in (bool, int, float, str):
        taken = (int, float) if kind is float else kind
        if kind is float and isinstance(value, int) and abs(value) > sys.float_info.max:
            return False
        return isinstance(value, taken) and (kind is bool or not isinstance(value, bool))
    if kind is type(None):
        return value is None
    return isinstance(value, list | tuple if get_origin(kind) is tuple else Mapping)


def _words(kind: Any) -> str:
    """What values a kind allows."""
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(str(one) for one in get_args(kind))
    if get_origin(kind) in (typing.Union, types.UnionType):
        return " or ".join(_words(one) for one in get_args(kind))
    known = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
    if kind in known:
        return known[kind]
    return "null" if kind is type(None) else "a list" if get_origin(kind) is tuple else "a table"


def _frozen(value: Any) -> Any:
    """Lists as tuples, as a plan holds them."""
    if isinstance(value, Mapping):
        return {key: _frozen(item) for key, item in value.items()}
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value
