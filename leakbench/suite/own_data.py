"""Data sets that a suite names by path: found, and called by their short names from then on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leakbench.data.catalog import is_path, locate
from leakbench.data.entries import OwnData
from leakbench.errors import LeakbenchError, unknown_name
from leakbench.suite.tables import BY_DATA_SET

_KEYS = ("path", "size", "seed")
_BY_DATA_SET = (*BY_DATA_SET, "stop_accuracy", "stop_epsilon")
"""Keys that may be tables whose keys are data sets."""


def take(
    document: dict[str, Any], file: str, base: Path, known: Mapping[str, OwnData]
) -> dict[str, OwnData]:
    """Replace every path in a document by the name of the data there.

    Args:
        document: a suite, changed in place. Its `datasets` hold names, paths, or tables with a
            path; other keys may use the names, or the paths as `datasets` has them.
        base: the folder that paths are relative to. known: data that earlier paths led to.

    Returns:
        `known` and the data of the document's `datasets`, by name.

    Raises:
        LeakbenchError: nothing usable is at a path, or two data sets would have one name.
    """
    listed = document.get("datasets")
    if not isinstance(listed, list):
        return dict(known)
    own, names = dict(known), {}
    for place, item in enumerate(listed):
        found = _located(item, f"{file}, key datasets", base)
        if found is None:
            continue
        other = own.setdefault(found.name, found)
        if other.path != found.path:
            raise LeakbenchError(
                f"{file}, key datasets: '{other.path}' and '{found.path}' would both be called "
                f"'{found.name}'; rename one"
            )
        own[found.name] = found
        names[item if isinstance(item, str) else item["path"]] = found.name
        listed[place] = found.name
    if names:
        _rename(document, names, file)
    return own


def _located(item: Any, where: str, base: Path) -> OwnData | None:
    """The data of an item of `datasets`; None for a name, or what no data set can be."""
    if isinstance(item, str) and is_path(item):
        item = {"path": item}
    if not isinstance(item, dict):
        return None
    if unknown := sorted(set(item) - set(_KEYS)):
        raise unknown_name("key", unknown[0], _KEYS, where)
    if not isinstance(item.get("path"), str):
        raise LeakbenchError(f"{where}: a table there needs path, the path of one's own data")
    try:
        return locate(item["path"], base, size=item.get("size"), seed=item.get("seed", 0))
    except LeakbenchError as error:
        raise LeakbenchError(f"{where}: {error}") from None


def _rename(node: Any, names: Mapping[str, str], file: str) -> None:
    """Use the new names wherever a table speaks of data sets."""
    if isinstance(node, list):
        for item in node:
            _rename(item, names, file)
    if not isinstance(node, dict):
        return
    for key, value in node.items():
        if key == "dataset" and isinstance(value, str):
            node[key] = names.get(value, value)
        elif key == "datasets" and isinstance(value, list):
            node[key] = [names.get(v, v) if isinstance(v, str) else v for v in value]
        elif key in _BY_DATA_SET and isinstance(value, dict):
            node[key] = {names.get(name, name): number for name, number in value.items()}
            if len(node[key]) < len(value):
                raise LeakbenchError(f"{file}, key {key}: one data set stands there twice")
        else:
            _rename(value, names, file)
