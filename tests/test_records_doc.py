"""`docs/records.md` has every field of records, reports and manifests and no other, as in files."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re
import types
import typing
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from pydantic import BaseModel

from leakbench import described, record_types, spec, statistics
from leakbench.judging import FLAGS
from leakbench.loading import load
from leakbench.metrics.registry import all_metrics
from leakbench.records import Run
from leakbench.report import answer, content, renderings

ROOT = Path(__file__).resolve().parents[1]
DOC = (ROOT / "docs" / "records.md").read_text(encoding="utf-8")
RUNS = ("tifs_table3-quick", "cloak_table2-quick", "tabular_batches-quick")
LEFT_OUT = {"bound", "features", "members"}
"""Of a cell, where there is nothing to say."""


class Field(typing.NamedTuple):
    """A line of a table of the doc."""

    type: str
    unit: str
    meaning: str


def sections() -> dict[str, dict[str, Field]]:
    """Heading -> field -> its line, of every heading that is followed by a table of fields."""
    found: dict[str, dict[str, Field]] = {}
    heading = ""
    for line in DOC.splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        elif match := re.fullmatch(r"\| `(\w+)` \| (.*?) \| (.*?) ?\| (.+) \|", line):
            found.setdefault(heading, {})[match[1]] = Field(match[2], match[3], match[4])
    return found


SECTIONS = sections()
CLASSES = {
    name: kind
    for module in (record_types, statistics, content, answer, described, spec)
    for name, kind in vars(module).items()
    if name in SECTIONS
}


def type_words(hint: Any) -> str:
    """An annotation as the doc writes it."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is typing.Annotated:
        return type_words(inner[0])
    if origin is Literal:
        return "integer" if isinstance(inner[0], int) else "string"
    if origin in (typing.Union, types.UnionType):
        kinds = [type_words(kind) for kind in inner if kind is not type(None)]
        return " or ".join(dict.fromkeys([*kinds, "null"] if type(None) in inner else kinds))
    if origin in (list, tuple):
        pair = inner == (int, float)
        return f"list of {_one(type_words(float if pair else inner[0]))}"
    if origin in (dict, Mapping):
        # Keys that are pairs have no form in JSON: these tables are written as lists.
        kind = "table" if inner[0] is str else "list"
        return f"{kind} of {_one(type_words(inner[1]))}"
    plain = {str: "string", int: "integer", float: "number", bool: "true or false", Any: "anything"}
    return plain.get(hint) or f"[{hint.__name__}](#{hint.__name__.lower()})"


def _one(words: str) -> str:
    return f"({words})" if " or " in words else words


def fields_of(name: str) -> dict[str, str]:
    """Field -> type of a class, under the names that files have."""
    kind = CLASSES[name]
    if issubclass(kind, BaseModel):
        return {
            info.alias or field: type_words(info.annotation)
            + ("" if info.is_required() else " or left out")
            for field, info in kind.model_fields.items()
        }
    hints = get_type_hints(kind)
    found = {field.name: type_words(hints[field.name]) for field in dataclasses.fields(kind)}
    if name in ("PlannedCell", "PlannedTraining"):
        del found["cell"]  # the plan holds it
    if issubclass(kind, content.SparseEntry):
        return {field: words.replace("or null", "or left out") for field, words in found.items()}
    empty = {"ReportCell": ("printed", "verdict"), "CostEntry": ("privacy",)}.get(name, ())
    for field in empty:
        found[field] = found[field].replace("or null", "or {}")
    if name == "ReportCell":
        for field in LEFT_OUT:
            found[field] = f"{found[field].removesuffix(' or null')} or left out"
    if name == "PlannedCell":  # packed: pairs of a value and how often it repeats
        found |= {field: f"list of {found[field]}" for field in ("victims", "priors")}
    return found | ({"answer": "[Answer](#answer)"} if name == "Report" else {})


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_every_field_is_in_the_doc_and_no_other(name: str) -> None:
    assert {field: line.type for field, line in SECTIONS[name].items()} == fields_of(name)
    assert list(SECTIONS[name]) == list(fields_of(name))


def test_all_classes_of_the_files_have_a_section() -> None:
    wanted = {
        name
        for module in (record_types, content, answer)
        for name, kind in vars(module).items()
        if isinstance(kind, type) and kind.__module__ == module.__name__
        if not name.startswith("_") and name not in ("Entry", "SparseEntry")
    }
    assert wanted <= SECTIONS.keys()
    types_of_fields = [field.type for table in SECTIONS.values() for field in table.values()]
    linked = {name for words in types_of_fields for name in re.findall(r"\[(\w+)\]", words)}
    assert linked and linked <= SECTIONS.keys()


def test_lists_of_words_are_complete() -> None:
    def listed(heading: str) -> list[str]:
        return list(SECTIONS[heading])

    assert set(listed("Metrics")) == set(all_metrics())
    assert listed("How a trial ended") == list(get_args(spec.Status))
    assert listed("Flags of trials") == list(FLAGS)


# ------------------------------------------------------------------------------ files


def alternatives(words: str) -> list[str]:
    """What stands between the "or" that are in no brackets."""
    found, depth = [""], 0
    for word in words.removesuffix(" or left out").split(" "):
        if word == "or" and not depth:
            found.append("")
        else:
            found[-1] = f"{found[-1]} {word}".lstrip()
        depth += word.count("(") - word.count(")")
    return found


def fits(words: str, value: Any) -> bool:
    """Whether a value of JSON is what the doc says."""
    bare = words[1:-1] if words.startswith("(") else words
    return any(_is(kind, value) for kind in alternatives(bare.replace("true or false", "boolean")))


def _is(kind: str, value: Any) -> bool:
    if kind == "anything":
        return True
    if kind in ("null", "{}"):
        return value == {"null": None, "{}": {}}[kind]
    if kind.startswith("list of "):
        inner = kind.removeprefix("list of ")
        return isinstance(value, list) and all(fits(inner, item) for item in value)
    if kind.startswith("table of "):
        inner = kind.removeprefix("table of ")
        return isinstance(value, dict) and all(fits(inner, item) for item in value.values())
    if match := re.fullmatch(r"\[(\w+)\]\(#\w+\)", kind):
        return isinstance(value, dict) and not disagreements(match[1], value)
    of = {"string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,)}
    return isinstance(value, of[kind]) and (isinstance(value, bool) == (kind == "boolean"))


def disagreements(section: str, table: Mapping[str, Any]) -> list[str]:
    """Fields of a table that the doc does not have, has of another type, or finds missing."""
    known = SECTIONS[section]
    found = [f"{section}.{name}: not in the doc" for name in table if name not in known]
    for name, field in known.items():
        words = field.type.removesuffix(" or left out")
        if name not in table:
            if words == field.type:
                found.append(f"{section}.{name}: missing")
        elif not fits(words, table[name]):
            found.append(f"{section}.{name}: not {words}: {table[name]!r:.80}")
    return found


@cache
def report_of(name: str) -> content.Report:
    return load(ROOT / "results" / name).content()


@pytest.mark.parametrize("name", RUNS)
def test_reports_are_as_the_doc_says(name: str) -> None:
    assert disagreements("Report", json.loads(renderings.to_json(report_of(name)))) == []


@pytest.mark.parametrize("name", RUNS)
def test_records_and_manifests_are_as_the_doc_says(name: str) -> None:
    run = Run.existing(ROOT / "results" / name)
    for record in run.records().values():
        kind = "TrainingRecord" if record.get("kind") == "utility" else "TrialRecord"
        known = SECTIONS[kind] | (SECTIONS["Metrics"] if kind == "TrialRecord" else {})
        assert record.keys() <= known.keys()
        for key, value in record.items():
            assert fits(known[key].type, value), (key, value)
    whole = run.manifest()
    own = {key: whole[key] for key in SECTIONS["Manifest"]}
    assert disagreements("Facts", {k: v for k, v in whole.items() if k not in own}) == []
    # Defaults that are newer than the run are not in its plan.
    plan = whole["plan"]
    assert plan.keys() <= SECTIONS["Plan"].keys()
    assert all(not disagreements("DefenseRow", each) for each in plan["defenses"])
    assert own["cells"] and all(not disagreements("PlannedCell", each) for each in own["cells"])


@pytest.mark.parametrize("name", RUNS)
def test_columns_of_the_csv_are_fields_of_the_doc(name: str) -> None:
    """A column is a path through the tables of the doc; names of rules and the like are free."""
    report = report_of(name)
    (header,) = csv.reader(io.StringIO(renderings.to_csv(report).split("\n", 1)[0]))
    assert set(header) >= {"dataset", "label", "rules.identified"}
    rules = {rule.name for rule in report.rules}
    for column in header:
        path = column.split(".")
        if path[0] == "rules":
            assert path[1:] and ".".join(path[1:]) in rules
            continue
        section: str | None = "ReportCell"
        if path[0] == "training":
            section, path = "CostEntry", path[1:]
        while path:
            assert section in SECTIONS, column
            words = SECTIONS[section][path.pop(0)].type
            inner = re.search(r"\[(\w+)\]", words)
            section = inner[1] if inner else None
            if words.startswith("table of "):
                assert path.pop(0) in rules | {"own_stop"} or section == "MemberEntry", column
                if section is None:
                    assert not path, column
