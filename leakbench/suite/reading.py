"""A suite file (TOML) -> its tables: found, parsed, overridden by `--set`, checked.

Nothing in a file is executed; every mistake is one sentence with the file, the key and what is
allowed.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from leakbench.data.entries import OwnData
from leakbench.errors import LeakbenchError, unknown_name
from leakbench.suite import own_data
from leakbench.suite.checks import check
from leakbench.suite.tables import Suite

_SCALARS = ("bool", "int", "float", "str")


def names() -> list[str]:
    """Suites that come with leakbench."""
    folder = resources.files("leakbench.suites")
    return sorted(f.name[:-5] for f in folder.iterdir() if f.name.endswith(".toml"))


def read(suite: str) -> tuple[Suite, str, str]:
    """Suite by name or path of a .toml file -> (suite, file, SHA-256 of its text)."""
    raw, file = text_of(suite)
    document = document_of(raw, file)
    own = own_data.take(document, file, folder_of(suite), {})
    return parse(document, file, own), file, hashlib.sha256(raw).hexdigest()


def text_of(suite: str) -> tuple[bytes, str]:
    """Bytes of a suite by name or path, and what to call the file in errors."""
    if suite.endswith(".toml") or "/" in suite:
        path = Path(suite)
        try:
            return path.read_bytes(), str(path)
        except OSError as error:
            raise LeakbenchError(f"suite file {path}: {error.strerror}") from None
        except ValueError as error:  # a NUL in the path
            raise LeakbenchError(f"suite file {suite!r}: {error}") from None
    if suite not in names():
        text = f"{unknown_name('suite', suite, names())}, or the path of a .toml file"
        raise LeakbenchError(text)
    return (resources.files("leakbench.suites") / f"{suite}.toml").read_bytes(), f"{suite}.toml"


def folder_of(suite: str) -> Path:
    """What paths in a suite are relative to: the folder of its file."""
    return Path(suite).parent if suite.endswith(".toml") or "/" in suite else Path()


def document_of(raw: bytes, file: str) -> dict[str, Any]:
    """The TOML document in a file's bytes."""
    if not raw.strip():
        raise LeakbenchError(f"{file}: the file is empty; a suite needs at least schema = 1")
    try:
        return tomllib.loads(raw.decode("utf-8"))
    except UnicodeDecodeError:
        raise LeakbenchError(f"{file}: not a text file in UTF-8") from None
    except (ValueError, RecursionError) as error:  # numbers too long, lists too deep
        raise LeakbenchError(f"{file}: not valid TOML: {error}") from None


def parse(
    document: dict[str, Any],
    file: str,
    own: dict[str, OwnData],
    left_out: Sequence[str] = (),
) -> Suite:
    """Check a document; `own` are its data sets given by path (see `own_data.take`).

    left_out: data sets it may speak of beside its own.
    """
    try:
        if not _within_64_bits(document):
            raise LeakbenchError(f"{file}: a whole number needs more than 64 bits")
    except RecursionError:
        raise LeakbenchError(f"{file}: tables are nested too deep") from None
    try:
        suite = Suite.of(document, own)
    except ValidationError as error:
        raise LeakbenchError(f"{file}: {explain(error)}") from None
    check(suite, file, left_out)
    return suite


def _within_64_bits(value: Any) -> bool:
    """Whether all whole numbers are what TOML promises; Python cannot even print the largest."""
    if isinstance(value, dict):
        return all(_within_64_bits(item) for item in value.values())
    if isinstance(value, list):
        return all(_within_64_bits(item) for item in value)
    return not isinstance(value, int) or -(2**63) <= value < 2**63


def explain(error: ValidationError) -> str:
    """All mistakes pydantic found, a clause each: key, what is wrong, what is allowed."""
    clauses = []
    for item in error.errors():
        location = [str(part) for part in item["loc"] if part != "[key]"]
        of_scalar = len(location) > 1 and location[-1] in _SCALARS
        key = ".".join(location[:-1] if of_scalar else location) or "file"
        if of_scalar:  # pydantic says what each of the four types misses
            text = "input should be a bool, a finite number or a string"
            clauses.append(f"key {key}: {text}, got {_shortened(item['input'])}")
        elif item["type"] == "extra_forbidden":
            allowed = _allowed_keys(item["loc"])
            clauses.append(str(unknown_name("key", str(item["loc"][-1]), allowed, f"key {key}")))
        elif item["type"] == "missing":
            clauses.append(f"key {key}: missing")
        else:
            text = item["msg"][0].lower() + item["msg"][1:]
            clauses.append(f"key {key}: {text}, got {_shortened(item['input'])}")
    return "; ".join(dict.fromkeys(clauses))


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _allowed_keys(location: tuple[int | str, ...]) -> list[str]:
    """Keys of the table a misspelt key stands in."""
    table: type[BaseModel] = Suite
    for part in location[:-1]:
        field = table.model_fields.get(str(part))
        if field is None:
            continue
        inner = [t for t in _inner_types(field.annotation) if issubclass(t, BaseModel)]
        table = inner[0] if inner else table
    return [field.alias or name for name, field in table.model_fields.items()]


def _inner_types(annotation: Any) -> list[type]:
    if isinstance(annotation, type) and not getattr(annotation, "__args__", None):
        return [annotation]
    return [t for part in getattr(annotation, "__args__", ()) for t in _inner_types(part)]


def yield_to(document: dict[str, Any], setting: str, file: str) -> None:
    """What the command line sets for an attack, no profile sets otherwise."""
    path, _, value = setting.partition("=")
    *table, name = path.strip().split(".")
    profiles = document.get("profiles")
    if table[-2:] != ["attack", "parameters"] or not isinstance(profiles, dict):
        return
    place = "parameters"
    if table[0] == "variants":
        number = _place(document["variants"], table[1])
        if number is None:
            return  # no such variant: the check of the whole file says so
        place = f"variants.{document['variants'][number].get('id')}"
    for profile in list(profiles):
        override(document, f"profiles.{profile}.{place}.{name}={value}", file)


def override(document: dict[str, Any], setting: str, file: str) -> None:
    """Apply one `key.path=value`; list items by number, e.g. defenses.1.parameters.clip=2."""
    path, equals, value = setting.partition("=")
    if not equals or not path.strip():
        raise LeakbenchError(f"--set {setting!a}: write key.path=value")
    if not setting.isascii() and setting != setting.encode(errors="replace").decode():
        raise LeakbenchError(f"--set {path!a}: its value is not text in UTF-8")
    shown = " ".join(path.split())
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value  # a bare word is a string
    except (ValueError, RecursionError) as error:  # numbers too long, lists too deep
        raise LeakbenchError(f"--set {shown}: not valid TOML: {error}") from None
    *parents, last = path.strip().split(".")
    node: Any = document
    for part in parents:
        if isinstance(node, dict):
            node = node.setdefault(part, {})
        elif (place := _place(node, part)) is not None:
            node = node[place]
        else:
            raise LeakbenchError(f"--set {shown}: {file} has no table '{part}' there")
    if isinstance(node, dict):
        node[last] = parsed
    elif (place := _place(node, last)) is not None:
        node[place] = parsed
    else:
        raise LeakbenchError(f"--set {shown}: {file} has no table to set '{last}' in")


def _place(node: Any, part: str) -> int | None:
    """Which item of a list `part` names; None if node is no list or has no such item."""
    numbered = isinstance(node, list) and re.fullmatch("[0-9]{1,9}", part)
    return int(part) if numbered and int(part) < len(node) else None
