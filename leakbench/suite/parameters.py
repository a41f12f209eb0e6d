"""Hyper-parameters of a plugin, checked against its class and completed by its defaults."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping

from pydantic import TypeAdapter, ValidationError

from leakbench.errors import LeakbenchError, unknown_name
from leakbench.plugin_files import one_line
from leakbench.spec import Scalar, canonical
from leakbench.suite.reading import explain


def complete(kind: type, parameters: Mapping[str, Scalar], where: str) -> dict[str, Scalar]:
    """All hyper-parameters of a plugin after its defaults; types and names checked.

    Raises:
        LeakbenchError: an unknown name, a wrong type, or a value the plugin refuses.
    """
    if not dataclasses.is_dataclass(kind):
        raise LeakbenchError(f"{where}: class {kind.__name__} is not a dataclass")
    fields = [field.name for field in dataclasses.fields(kind)]
    for name in parameters:
        if name not in fields:
            raise unknown_name("parameter", name, fields, where)
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
