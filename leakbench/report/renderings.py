"""The report in the forms people read: Markdown, CSV, JSON and one self-contained HTML page.

All begin with the same `answer.Answer`; Markdown and HTML go on with the same `tables.Document`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any

import markupsafe

from leakbench import frames
from leakbench.printable import printable
from leakbench.report import strips
from leakbench.report.album import Album
from leakbench.report.answer import answer
from leakbench.report.content import CostEntry, Report
from leakbench.report.pages import embedded, environment
from leakbench.report.strips import strip_table
from leakbench.report.tables import arrange, where_words
from leakbench.report.words import Table

PAGE_BYTES = 4_500_000
"""Of an HTML page without its tables: it must open on a phone, and go through a mail."""


def to_json(report: Report) -> str:
    """Strict JSON (no NaN), keys in the order of `content.Report`, then `answer`."""
    whole = report.as_dict() | {"answer": answer(report).as_dict()}
    text = json.dumps(whole, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return "".join(map(_in_json, text))


def _in_json(letter: str) -> str:
    """A letter of JSON; what no terminal should get, as JSON escapes it."""
    return letter if letter.isprintable() or letter == "\n" else json.dumps(letter)[1:-1]


def to_csv(report: Report) -> str:
    """One row a cell, then one a training; nested keys joined by dots, lists by semicolons.

    What is None is empty. Trainings have columns `training.*` of their own; `rules.*`
    say what each rule asks for.
    """
    rules = {"rules": {rule.name: rule.condition for rule in report.rules}}
    rows = [*(cell.as_dict() for cell in report.cells), *map(_as_csv_row, report.costs)]
    return frames.to_csv(row | rules for row in rows)


_OF_A_ROW = ("dataset", "row", "variant", "defense", "label")


def _as_csv_row(entry: CostEntry) -> dict[str, Any]:
    values = entry.as_dict()
    # Lists of lists and of tables: one word an entry, its numbers joined by colons.
    values["curve"] = [f"{rounds}:{share}" for rounds, share in entry.curve]
    for name in ("sweep", "points"):
        values[name] = [_joined(each) for each in values[name]]
    named = {name: values.pop(name) for name in _OF_A_ROW}
    return named | {"training": values}


def _joined(entry: Mapping[str, Any]) -> str:
    return ":".join("" if value is None else str(value) for _, value in frames.flat(entry))


def to_markdown(report: Report) -> str:
    """For GitHub, and readable in a terminal: columns of a table are padded to equal width."""
    document, said = arrange(report), answer(report)
    parts = [f"# {_text(document.title)}"]
    if report.damage:
        parts.append(f"**Damaged.** {_text(report.damage)}.")
    parts += [_text(said.question), _text(said.reading_guide)]
    for strip in said.strips:
        parts += [f"## {_text(strip.title)}"]
        parts.append(_bullets(_text(sentence.text) for sentence in strip.sentences))
        if any(row.steps for row in strip.rows):
            parts += [markdown_table(strip_table(strip)), _text(strip.beside)]
            parts += [_text(strip.setting), _text(strip.legend)]
    parts += ["## All of it", *map(_text, document.lead), _bullets(map(_text, document.guide))]
    for section in document.sections:
        parts += [f"### {_text(section.title)}", *map(_text, section.above)]
        for table in section.tables:
            parts += _table(table)
        parts += map(_text, section.below)
    if document.notes:
        numbered = enumerate(document.notes, start=1)
        parts += [
            "### Notes",
            "\n".join(f"{number}. {_text(note)}" for number, note in numbered),
        ]
    return "\n\n".join(part for part in parts if part) + "\n"


def to_terminal(report: Report, *, width: int, colour: bool) -> str:
    """The answer alone, within `width` columns."""
    return strips.to_terminal(report.title, answer(report), width=width, colour=colour)


def _text(text: str) -> str:
    """Text in Markdown: one line, without tags of HTML and bars of tables."""
    return re.sub("<(?=[A-Za-z/!?])", "&lt;", printable(text)).replace("|", "\\|")


def _table(table: Table) -> list[str]:
    if not table.folded:
        return [f"**{table.caption}**", markdown_table(table)]
    summary = f"<details><summary>{table.caption}</summary>"
    return [summary, markdown_table(table), "</details>"]


def to_html(
    report: Report,
    gallery_png: bytes | None = None,
    figures: Mapping[str, bytes] = MappingProxyType({}),
    album: Album | None = None,
) -> str:
    """One page that needs nothing from outside; pictures, PNG by their words, are embedded."""
    return (
        environment()
        .get_template("report.html.j2")
        .render(
            document=arrange(report),
            answer=answer(report),
            damage=printable(report.damage),
            words=strips,
            gallery=None if gallery_png is None else embedded(gallery_png),
            figures={words: embedded(png) for words, png in figures.items()},
            album=album or Album(),
            scripts=page_scripts(),
            reproduce=_reproduce(report),
        )
    )


@dataclass(frozen=True, slots=True)
class Scripts:
    """text: of the page, marked safe. allowed: its digest, the only script a browser may run."""

    text: markupsafe.Markup
    allowed: markupsafe.Markup


@cache
def page_scripts() -> Scripts:
    """Of every page with tables."""
    folder = resources.files("leakbench.report") / "templates"
    text = "\n".join(
        (folder / name).read_text(encoding="utf-8")
        for name in ("tablesort.min.js", "tablesort.number.min.js", "page.js")
    )
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
    return Scripts(markupsafe.Markup(text), markupsafe.Markup(f"'sha256-{digest}'"))


def _reproduce(report: Report) -> str:
    """The command, and with what it ran, as far as the manifest says."""
    asked = report.manifest
    command = ["leakbench", "run", report.suite, "--profile", report.profile]
    command += [
        word for name in ("attack", "defense") if asked.get(name)
        for word in (f"--{name}", str(asked[name]))
    ]  # fmt: skip
    command += [word for setting in asked.get("settings") or () for word in ("--set", str(setting))]
    if asked.get("arithmetic") == "fast":
        command.append("--fast")
    lines = [shlex.join(map(printable, command)), f"# {printable(where_words(asked))}"]
    return "\n".join(lines)


def markdown_table(table: Table) -> str:
    """Padded columns; a bar inside a cell would start a new column, so it is escaped."""
    rows = [[*map(_text, row)] for row in (table.header, *table.rows)]
    widths = [max(3, *(len(row[i]) for row in rows)) for i in range(len(table.header))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)
