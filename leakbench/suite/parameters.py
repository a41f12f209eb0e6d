"""Hyper-parameters of a plugin: layers that overrule each other, and the plugin's own defaults."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from leakbench import registry
from leakbench.errors import LeakbenchError, PluginBroken, unknown_name
from leakbench.foreign import without_exit
from leakbench.plugin_files import one_line
from leakbench.registry import Kind
from leakbench.spec import canonical
from leakbench.suite.reading import explain

_SCALARS = (bool, int, float, str)
"""What needs no look and no copy."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Hyper-parameters from one place, e.g. "profiles.quick.parameters" or "--set attack...".

    shared: meant for other plugins too, so that a plugin takes those that it has.
    """

    place: str
    values: Mapping[str, Any]
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Merged:
    """All hyper-parameters, and the place of each that is not the plugin's default.

    broken: why the plugin cannot be made, "" where it can; its defaults are then not among them.
    """

    values: dict[str, Any]
    places: dict[str, str]
    broken: str = ""


def load(kind: Kind, name: str) -> type | str:
    """The class of a plugin, or why it cannot be imported."""
    try:
        return registry.load(kind, name)
    except PluginBroken as error:
        return str(error)


def merge(kind: type | str, layers: Iterable[Layer], where: str) -> Merged:
    """The parameters of a plugin from its defaults and then `layers`, the later over the earlier.

    kind: as `load` answers; a plugin that is broken takes what it is given.

    Raises:
        LeakbenchError: an unknown name, a wrong type, or a value that the plugin refuses; the text
            says which layer it is from.
    """
    if isinstance(kind, str):
        return _as_given(layers, where, kind)
    layers = list(layers)
    fields = {f.name for f in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
    asked: dict[str, Any] = {}
    places: dict[str, str] = {}
    for layer in layers:
        for name, value in layer.values.items():
            if name in fields:
                asked[name], places[name] = value, layer.place
            elif not layer.shared:
                raise unknown_name("parameter", name, fields, f"{where}, from {layer.place}")
    try:
        return Merged(complete(kind, asked, where), places)
    except PluginBroken as error:
        return _as_given(layers, where, str(error))
    except LeakbenchError as error:
        text = str(error)
        said = [f"{k} is from {v}" for k, v in places.items() if re.search(rf"\b{k}\b", text)]
        raise LeakbenchError("; ".join([text, *said])) from error.__cause__


def _as_given(layers: Iterable[Layer], where: str, broken: str) -> Merged:
    """Without the defaults, which nobody knows."""
    values = {name: value for layer in layers for name, value in layer.values.items()}
    for name, value in values.items():
        _require_plain(name, value, where)
    return Merged(values, {}, broken)


def complete(kind: type, parameters: Mapping[str, Any], where: str) -> dict[str, Any]:
    """All hyper-parameters of a plugin after its defaults; types and names checked.

    Raises:
        LeakbenchError: an unknown name, a wrong type, or a value the plugin refuses; `PluginBroken`
            if it fails in another way.
    """
    if not dataclasses.is_dataclass(kind):
        raise LeakbenchError(f"{where}: class {kind.__name__} is not a dataclass")
    if not isinstance(parameters, Mapping):
        raise LeakbenchError(
            f"{where}: parameters are {type(parameters).__name__}; allowed: a mapping of names to "
            "values"
        )
    fields = [field.name for field in dataclasses.fields(kind)]
    for name in parameters:
        if name not in fields:
            raise unknown_name("parameter", name, fields, where)
        _require_plain(name, parameters[name], where)
    try:
        with without_exit(where):
            made = _made(kind, json.dumps(dict(parameters)))
            values = {
                name: value if type(value) in _SCALARS else copy.deepcopy(value)
                for name, value in made.items()
            }
    except ValidationError as error:
        raise LeakbenchError(f"{where}: {explain(error)}") from None
    except LeakbenchError as error:
        raise LeakbenchError(f"{where}: {one_line(error)}") from None
    except Exception as error:  # foreign code may fail in any way
        raise PluginBroken(f"{where}: {one_line(error)}") from error
    try:
        canonical(values)
    except (TypeError, ValueError) as error:  # a default that records cannot hold, inf say
        raise LeakbenchError(f"{where}: parameters cannot be written down: {error}") from None
    return values


@functools.lru_cache(maxsize=2**14)
def _made(kind: type, parameters: str) -> dict[str, Any]:
    """Hyper-parameters of a plugin made with these, which are JSON. Other profiles of a suite, and
    the suite as it was published, ask for the same ones again.

    Raises:
        Exception: what the plugin has raised, and `ValidationError`.
    """
    plugin = _adapter(kind).validate_json(parameters, strict=True)
    return {field.name: getattr(plugin, field.name) for field in dataclasses.fields(kind)}


@functools.lru_cache(maxsize=512)
def _adapter(kind: type) -> TypeAdapter[Any]:
    """A suite of many rows asks for the same plugins over and over."""
    return TypeAdapter(kind)


def _require_plain(name: str, value: object, where: str) -> None:
    """A value that JSON can hold: TOML has dates beside them, and Python any object."""
    if type(value) in _SCALARS:
        return
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        raise LeakbenchError(
            f"{where}: key {name}: {type(value).__name__} is not allowed; allowed: numbers, "
            "booleans, strings, and lists or tables of these"
        ) from None
