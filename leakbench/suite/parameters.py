"""Hyper-parameters of a plugin: layers that overrule each other, and the plugin's own defaults."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from leakbench.errors import LeakbenchError, unknown_name
from leakbench.plugin_files import one_line
from leakbench.spec import canonical
from leakbench.suite.reading import explain


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
    """All hyper-parameters, and the place of each that is not the plugin's default."""

    values: dict[str, Any]
    places: dict[str, str]


def merge(kind: type, layers: Iterable[Layer], where: str) -> Merged:
    """The parameters of a plugin from its defaults and then `layers`, the later over the earlier.

    Raises:
        LeakbenchError: an unknown name, a wrong type, or a value that the plugin refuses; the text
            says which layer it is from.
    """
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
    except LeakbenchError as error:
        text = str(error)
        said = [f"{k} is from {v}" for k, v in places.items() if re.search(rf"\b{k}\b", text)]
        raise LeakbenchError("; ".join([text, *said])) from error.__cause__


def complete(kind: type, parameters: Mapping[str, Any], where: str) -> dict[str, Any]:
    """All hyper-parameters of a plugin after its defaults; types and names checked.

    Raises:
        LeakbenchError: an unknown name, a wrong type, or a value the plugin refuses.
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
        plugin = TypeAdapter(kind).validate_json(json.dumps(dict(parameters)), strict=True)
    except ValidationError as error:
        raise LeakbenchError(f"{where}: {explain(error)}") from None
    except LeakbenchError as error:
        raise LeakbenchError(f"{where}: {error}") from None
    except (Exception, SystemExit) as error:  # foreign code may fail in any way
        raise LeakbenchError(f"{where}: {one_line(error)}") from error
    values = {name: getattr(plugin, name) for name in fields}
    try:
        canonical(values)
    except (TypeError, ValueError) as error:  # a default that records cannot hold, inf say
        raise LeakbenchError(f"{where}: parameters cannot be written down: {error}") from None
    return values


def _require_plain(name: str, value: object, where: str) -> None:
    """A value that JSON can hold: TOML has dates beside them, and Python any object."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        raise LeakbenchError(
            f"{where}: key {name}: {type(value).__name__} is not allowed; allowed: numbers, "
            "booleans, strings, and lists or tables of these"
        ) from None
