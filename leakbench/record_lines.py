"""Lines of `records.jsonl`: a record with its checksum, and what is wrong with a damaged one.

A line is the canonical JSON of a record, its last field the checksum of all that stands before it,
so that a changed bit anywhere in it is found. Lines of schemas 1 and 2 have none.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from leakbench.collecting import uncollected
from leakbench.errors import LeakbenchError
from leakbench.record_columns import AT_ONCE, Known
from leakbench.record_types import SCHEMA, upgraded, wrong

Record = dict[str, Any]

Key = tuple[str, int]
"""(identity of cell and network, victim)."""

_FIELD = b',"checksum":"'
_DIGITS = 16
_LENGTH = len(_FIELD) + _DIGITS + len(b'"}')
"""Of what `encode` adds to a record."""

TORN = "torn, its end is missing"
SHOWN = 3
"""Damaged lines that a sentence names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A line that cannot be believed.

    Attributes:
        line: its number, from 1.
        reason: what is wrong, in words that end a sentence.
        trial: which trial it says it is about, as far as it can be read; "" if not at all.
    """

    line: int
    reason: str
    trial: str

    def __str__(self) -> str:
        """For a list of them."""
        about = f", of {self.trial}" if self.trial else ""
        return f"line {self.line}{about}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What a file of records says.

    Attributes:
        records: the last record of every trial, in the order in which trials first appear.
        damaged: lines that are in none of them.
    """

    records: dict[Key, Record]
    damaged: tuple[Damage, ...]


def key(record: Mapping[str, Any]) -> Key:
    """What a record is about."""
    return str(record["identity"]), int(record["victim"])


def encode(record: Record) -> bytes:
    """One line of canonical JSON with its checksum; non-finite numbers must be None already."""
    text = _canonical(record)
    if "\\ud" in text:
        text = _canonical(_in_whole_characters(record))
    body = text.encode()[:-1]
    return b'%b%b%b"}\n' % (body, _FIELD, _checksum(body))


def read(content: bytes, path: object) -> Contents:
    """The records of a file.

    Args:
        content: all bytes of the file.
        path: its name, for the error.

    Raises:
        LeakbenchError: a sound line of a newer schema: it says what this leakbench cannot know.
    """
    with uncollected():
        return _read(content, path)


def _read(content: bytes, path: object) -> Contents:
    records: dict[Key, Record] = {}
    damaged: list[Damage] = []
    known = Known()
    *lines, tail = content.split(b"\n")  # what follows the last newline is empty, or torn
    for first in range(0, len(lines), AT_ONCE):
        found: dict[int, Record] = {}
        wrong: dict[int, str] = {}
        for number, line in enumerate(lines[first : first + AT_ONCE], start=first + 1):
            try:
                found[number] = _parsed(line)
            except ValueError as error:
                wrong[number] = str(error)
            except LeakbenchError as error:
                raise LeakbenchError(f"{path}, line {number}: {error}") from None
        for number, problem in zip(found, known.problems([*found.values()]), strict=True):
            if problem:
                wrong[number] = problem
            else:
                record = found[number]
                records[record["identity"], record["victim"]] = record
        damaged += [
            Damage(line=number, reason=reason, trial=_trial(lines[number - 1]))
            for number, reason in sorted(wrong.items())
        ]
    if tail:
        damaged.append(Damage(line=len(lines) + 1, reason=TORN, trial=_trial(tail)))
    return Contents(records=records, damaged=tuple(damaged))


def decode(line: bytes) -> Record:
    """The record of a line without its newline, in the newest schema.

    Raises:
        ValueError: a damaged line; the text says in what way.
        LeakbenchError: a sound line of a newer schema.
    """
    record = _parsed(line)
    if problem := wrong(record):
        raise ValueError(problem)
    return record


def _parsed(line: bytes) -> Record:
    """As `decode`, but for what `wrong` finds."""
    body, end = line[:-_LENGTH], line[-_LENGTH:]
    checked = end.startswith(_FIELD) and end.endswith(b'"}')
    if checked and _checksum(body) != end[len(_FIELD) : -2]:
        raise ValueError("its checksum is another")
    try:
        record = _values(line)
    except (RecursionError, ValueError):
        record = None
    schema = record.get("schema") if isinstance(record, dict) else None
    if not isinstance(record, dict) or type(schema) is not int:
        raise ValueError("not a record of leakbench")
    if checked:
        del record["checksum"]
        if schema > SCHEMA:
            raise LeakbenchError(f"schema {schema}, this leakbench reads 1 to {SCHEMA}")
    elif schema not in (1, 2):
        raise ValueError("has no checksum")
    return record if schema == SCHEMA else upgraded(record)


def damage_words(damaged: tuple[Damage, ...]) -> str:
    """How many lines are damaged and which, in words for a sentence."""
    named = "; ".join(map(str, damaged[:SHOWN]))
    more = len(damaged) - SHOWN
    rest = f"; and {more} more" if more > 0 else ""
    lines = "a damaged line" if len(damaged) == 1 else f"{len(damaged)} damaged lines"
    return f"{lines} ({named}{rest})"


def _checksum(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_DIGITS // 2).hexdigest().encode()


_NAMED = ("dataset", "row", "knowledge", "network", "victim")


def _trial(line: bytes) -> str:
    """Which trial a damaged line is about, by the fields that can still be read."""
    found = {}
    for name in _NAMED:
        match = re.search(rb'"%b":(?:"([\w.+-]+)"|(\d{1,9})\b)' % name.encode(), line)
        if match:
            found[name] = (match[1] or match[2]).decode("ascii", "replace")
    row = "/".join(found[name] for name in ("dataset", "row", "knowledge") if name in found)
    numbers = [f"{name} {found[name]}" for name in ("network", "victim") if name in found]
    return ", ".join([row, *numbers] if row else numbers)


def _canonical(record: Record) -> str:
    return json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _values(line: bytes) -> Any:
    """A line as plain values.

    Raises:
        ValueError: not JSON, or not strict. RecursionError: too deep.
    """
    try:
        # Half the time of json.loads.
        return from_json(line, allow_inf_nan=False, cache_strings="keys")
    except ValueError:
        return _in_whole_characters(json.loads(line, parse_constant=_no_constant))


def _in_whole_characters(value: Any) -> Any:
    """Plain values without halves of characters, which an error's text may hold and no file may."""
    return from_json(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
