"""`--set key.path=value`: values of the command line, put into the document of a suite file."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from typing import Any

from leakbench.errors import LeakbenchError


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A value of the command line; `path` names the items of lists by their id where they have one.

    So `defenses.1.parameters.clip` and `defenses.dp.parameters.clip` are the same.
    """

    path: str
    value: Any

    def parameters(self, table: str) -> dict[str, Any]:
        """What it sets in a table of parameters: a value, all of them, or nothing."""
        if self.path == table and isinstance(self.value, dict):
            return dict(self.value)
        parent, _, name = self.path.rpartition(".")
        return {name: self.value} if parent == table else {}


def override(document: dict[str, Any], setting: str, file: str) -> Setting:
    """Apply one `key.path=value` to a document; values are TOML, a bare word is a string.

    Items of lists are named by number from 0, by their id, or by their name where they have no id.

    Raises:
        LeakbenchError: no such place, or a value that is not TOML.
    """
    path, equals, value = setting.partition("=")
    if not equals or not path.strip():
        raise LeakbenchError(f"--set {setting!a}: write key.path=value")
    if not setting.isascii() and setting != setting.encode(errors="replace").decode():
        raise LeakbenchError(f"--set {path!a}: its value is not text in UTF-8")
    shown = " ".join(path.split())
    parsed = _parsed(value, shown)
    *parents, last = path.strip().split(".")
    node: Any = document
    named = []
    for part in parents:
        if isinstance(node, dict):
            node = node.setdefault(part, {})
            named.append(part)
        elif (place := _place(node, part)) is not None:
            node = node[place]
            named.append(_name(node) or part)
        else:
            raise LeakbenchError(f"--set {shown}: {file} has no table '{part}' there")
    if isinstance(node, dict):
        node[last] = parsed
    elif (place := _place(node, last)) is not None:
        node[place] = parsed
    else:
        raise LeakbenchError(f"--set {shown}: {file} has no table to set '{last}' in")
    return Setting(path=".".join([*named, last]), value=parsed)


def path_of(setting: str) -> str:
    """The key of a `key.path=value` as it was written."""
    return " ".join(setting.partition("=")[0].split())


def _parsed(value: str, shown: str) -> Any:
    try:
        return tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return value  # a bare word
    except (ValueError, RecursionError) as error:  # numbers too long, lists too deep
        raise LeakbenchError(f"--set {shown}: not valid TOML: {error}") from None


def _place(node: Any, part: str) -> int | None:
    """Which item of a list `part` names; None if node is no list or has no such item."""
    if not isinstance(node, list):
        return None
    if re.fullmatch("[0-9]{1,9}", part) and int(part) < len(node):
        return int(part)
    return next((place for place, item in enumerate(node) if part and _name(item) == part), None)


def _name(item: Any) -> str | None:
    """How an item of a list is called."""
    name = item.get("id", item.get("name")) if isinstance(item, dict) else None
    return name if isinstance(name, str) else None
