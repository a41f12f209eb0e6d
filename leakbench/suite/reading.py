"""A suite file (TOML) -> its tables, checked.

Nothing in a file is executed; every mistake is one sentence with the file, the key and what is
allowed.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from leakbench.data.entries import OwnData
from leakbench.errors import LeakbenchError, unknown_name
from leakbench.suite import files, own_data
from leakbench.suite.checks import check
from leakbench.suite.expanding import expanded
from leakbench.suite.tables import (
    ANY_DATA_SET,
    Identifier,
    RuleTable,
    Suite,
    SuiteFile,
    TrainingTable,
)
from leakbench.suite.utility import training_of

_SCALARS = ("bool", "int", "float", "str")
_TABLES = (["batch_size"], ["examples_a_client"])  # by data set, and never a single number
_RULE_SETS = TypeAdapter(dict[Identifier, Annotated[list[RuleTable], Field(min_length=1)]])


def read(suite: str) -> tuple[Suite, str, str]:
    """Suite by name or path of a .toml file -> (suite, file, SHA-256 of its text)."""
    opened = open_file(suite)
    return parse(opened.document, opened, opened.own)[0], opened.file, opened.digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A file that was read: its document, what to call it in errors, the SHA-256 of its text.

    own: data sets that it gives by path, by the names that stand in the document instead.
    rule_sets: those that the suite may name.
    """

    document: dict[str, Any]
    file: str
    digest: str
    own: dict[str, OwnData]
    rule_sets: Mapping[str, Sequence[dict[str, Any]]]


def open_file(suite: str) -> Opened:
    """Suite by name or path of a .toml file, as its text has it."""
    path, file = files.find(suite)
    raw = files.read_bytes(path)
    if not raw.strip():
        raise LeakbenchError(f"{file}: the file is empty; a suite needs at least schema = 1")
    document = document_of(raw, file)
    return Opened(
        document=document,
        file=file,
        digest=hashlib.sha256(raw).hexdigest(),
        own=own_data.take(document, file, path.parent, {}),
        rule_sets=_rule_sets(path.parent),
    )


def _rule_sets(folder: Path) -> dict[str, Sequence[dict[str, Any]]]:
    """Named sets of rules: those of leakbench, then those beside a suite."""
    found: dict[str, Sequence[dict[str, Any]]] = {}
    for place in dict.fromkeys((files.built_in_folder(), folder)):
        path = place / files.RULE_SETS
        if path.is_file():
            document = document_of(files.read_bytes(path), path.name)
            try:
                _RULE_SETS.validate_python(document)
            except ValidationError as error:
                raise LeakbenchError(f"{path.name}: {explain(error, RuleTable)}") from None
            found |= document
    return found


def document_of(raw: bytes, file: str) -> dict[str, Any]:
    """The TOML document in a file's bytes."""
    try:
        return tomllib.loads(raw.decode("utf-8"))
    except UnicodeDecodeError:
        raise LeakbenchError(f"{file}: not a text file in UTF-8") from None
    except (ValueError, RecursionError) as error:  # numbers too long, lists too deep
        raise LeakbenchError(f"{file}: not valid TOML: {error}") from None


def parse(
    document: dict[str, Any],
    opened: Opened,
    own: dict[str, OwnData],
    left_out: Sequence[str] = (),
) -> tuple[Suite, dict[str, Any]]:
    """Check a document and write its short forms out -> the suite, and the document of it.

    own: its data sets given by path (see `own_data.take`). left_out: data sets it may speak of
    beside its own.
    """
    file = opened.file
    try:
        if not _within_64_bits(document):
            raise LeakbenchError(f"{file}: a whole number needs more than 64 bits")
    except RecursionError:
        raise LeakbenchError(f"{file}: tables are nested too deep") from None
    try:
        SuiteFile.model_validate(document)
        document = expanded(document, opened.rule_sets, file)
        suite = Suite.of(document, own)
    except ValidationError as error:
        raise LeakbenchError(f"{file}: {explain(error)}") from None
    for number, table in enumerate(suite.utility.variants if suite.utility else ()):
        try:
            training_of(suite, table)
        except ValidationError as error:
            place = ("utility", "variants", str(number), "training")
            raise LeakbenchError(f"{file}: {explain(error, TrainingTable, place)}") from None
    check(suite, file, left_out)
    return suite, document


def _within_64_bits(value: Any) -> bool:
    """Whether all whole numbers are what TOML promises; Python cannot even print the largest."""
    if isinstance(value, dict):
        return all(_within_64_bits(item) for item in value.values())
    if isinstance(value, list):
        return all(_within_64_bits(item) for item in value)
    return not isinstance(value, int) or -(2**63) <= value < 2**63


def explain(
    error: ValidationError, table: type[BaseModel] = SuiteFile, place: Sequence[str] = ()
) -> str:
    """All mistakes pydantic found in a `table`: key, what is wrong, what is allowed; a clause each.

    place: of the table in the file. Parts of a location in brackets are pydantic's own, not the
    file's.
    """
    clauses: dict[tuple[str, str], str] = {}
    for item in error.errors():
        location = [str(part) for part in item["loc"]]
        written = [part for part in location if not part.startswith(("[", "list["))]
        if written[-1:] == [ANY_DATA_SET] and written[-2:-1] not in _TABLES:
            written.pop()  # a number stands for a table with this key
        # Of a value that may be of several types pydantic says what each of them misses, of lists
        # last.
        of_list = location[-1:] != [] and location[-1].startswith("list[")
        of_scalar = len(location) > 1 and location[-1] in _SCALARS
        if of_scalar:
            written = written[:-1]
        key = ".".join([*place, *written]) or "file"
        kind = "type" if of_list or of_scalar else item["type"]
        if of_list or of_scalar:
            text = "input should be a bool, a finite number or a string"
            text += ", or a list with at least one of these" if of_list else ""
            text = f"key {key}: {text}, got {_shortened(item['input'])}"
        elif kind == "extra_forbidden":
            allowed = _allowed_keys(table, location)
            text = str(unknown_name("key", location[-1], allowed, f"key {key}"))
        elif kind == "missing":
            text = f"key {key}: missing"
        else:
            said = item["msg"].removeprefix("Value error, ")
            said = said[0].lower() + said[1:]
            text = f"key {key}: {said}, got {_shortened(item['input'])}"
        clauses[key, kind] = text
    return "; ".join(clauses.values())


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _allowed_keys(table: type[BaseModel], location: Sequence[str]) -> list[str]:
    """Keys of the table a misspelt key stands in; `location` begins in `table`."""
    for place, part in enumerate(location[:-1]):
        field = table.model_fields.get(part)
        if field is None:
            continue
        inner = [t for t in _inner_types(field.annotation) if issubclass(t, BaseModel)]
        short = len(inner) > 1 and not {"[set]", "[rows]"}.isdisjoint(location[place:])
        table = inner[short] if inner else table
    return [field.alias or name for name, field in table.model_fields.items()]


def _inner_types(annotation: Any) -> list[type]:
    if isinstance(annotation, type) and not getattr(annotation, "__args__", None):
        return [annotation]
    return [t for part in getattr(annotation, "__args__", ()) for t in _inner_types(part)]
