"""The answer of a report as text: strips as tables, and as a terminal shows them."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from leakbench.printable import printable
from leakbench.report.answer import Answer, Step, Strip, StripRow
from leakbench.report.words import DASH, Table, ceiling_words, ends_words, rate_words

COLOURS = (
    "#fdeee6", "#fbdccb", "#f8c7ad", "#f4b08e", "#ee976f",
    "#e57c50", "#b94c22", "#a84320", "#8f381a", "#772f13",
)  # fmt: skip
"""Shades of rates above 0: from white to a dark vermilion whose grey falls evenly."""

WHITE_AFTER = 6
"""So many shades bear dark text, those after them white."""

_NAMES = 24  # columns of a terminal that names of methods need at least


def shade(step: Step) -> int:
    """0 for a rate of 0 and a ceiling, which no attack reached, else the number, from 1, of
    one of `COLOURS`: every rate above 0 can be seen."""
    rate = step.rate.value
    if not rate or step.name == "ceiling":
        return 0
    return min(len(COLOURS), max(1, round(rate * len(COLOURS))))


def absent_words(name: str, row: StripRow) -> str:
    """What stands where there is no such rate."""
    return "no guarantee" if name == "ceiling" and row.steps else DASH


def step_words(step: Step) -> str:
    """The rate, both where the paper's readings differ."""
    if step.name == "ceiling":
        return ceiling_words(step.rate.value)
    if step.highest is not None:
        return f"{rate_words(step.rate.value)} ... {rate_words(step.highest)}"
    return rate_words(step.rate.value)


def interval_of(step: Step) -> str:
    """The ends of its interval, "" without."""
    if step.rate.low is None or step.highest is not None:
        return ""
    return ends_words(step.rate)


def hover(step: Step) -> str:
    """What a rate is of: its interval, the attacker, and those who ignore the defense."""
    parts = [f"95 % interval {interval_of(step)}" if interval_of(step) else "", step.attacker]
    if step.naive is not None:
        parts.append(f"who ignores the defense: {rate_words(step.naive)}")
    return ", ".join(part for part in parts if part)


def anchor(dataset: str, row: str = "") -> str:
    """The name by which a page links to a data set, or to a row of it."""
    return re.sub(r"[^a-z0-9]+", "-", f"{dataset}-{row}".lower()).strip("-") or "row"


_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?(e[-+]?\d+)?")


def sort_key(number: float | None) -> str:
    """A number as pages sort by it, without an exponent; what is none comes last."""
    return "-1" if number is None else f"{number:.12f}"


def sort_keys(table: Table) -> list[list[str] | None] | None:
    """Of each column of numbers the keys of its cells, None of other columns; None for a table
    whose rows lean on the one above, and cannot be sorted."""
    if any(not row[0] for row in table.rows):
        return None
    keys: list[list[str] | None] = []
    for column in zip(*table.rows, strict=True):
        found = [_NUMBER.match(cell) for cell in column]
        numeric = all(m is not None or cell == DASH for m, cell in zip(found, column, strict=True))
        numeric = numeric and any(found)
        keys.append([sort_key(float(m[0]) if m else None) for m in found] if numeric else None)
    return keys


def strip_table(strip: Strip) -> Table:
    """A strip as a table of text, intervals in it."""
    return Table(
        caption="Worst attacker",
        header=("method", *strip.headers.values(), "trials"),
        rows=tuple(
            (row.label, *(_cell(row, name) for name in strip.headers), str(row.trials))
            for row in strip.rows
        ),
    )


def _cell(row: StripRow, name: str) -> str:
    step = row.step(name)
    if step is None:
        return absent_words(name, row)
    return f"{step_words(step)} {interval_of(step)}".rstrip()


def to_terminal(title: str, answer: Answer, *, width: int, colour: bool) -> str:
    """Sentences and strips within `width` columns, at least 40; rates shaded where there is
    colour."""
    buffer = io.StringIO()
    console = Console(
        file=buffer, width=max(width, 40), force_terminal=colour, highlight=False, emoji=False,
        markup=False, color_system="256" if colour else None, no_color=not colour,
    )  # fmt: skip
    console.print(Text(printable(title), style="bold"))
    for text in (answer.question, answer.reading_guide):
        if text:
            console.print(Text(printable(text)))
    for strip in answer.strips:
        console.print()
        console.print(Text(printable(strip.title), style="bold underline"))
        for sentence in strip.sentences:
            console.print(Text(f"- {printable(sentence.text)}"))
        if any(row.steps for row in strip.rows):
            console.print(_shaded(strip, console.width))
            for text in filter(None, (strip.beside, strip.setting)):
                console.print(Text(printable(text), style="dim"))
    legend = next((strip.legend for strip in answer.strips if strip.legend), "")
    if legend:
        console.print()
        console.print(Text(printable(legend), style="dim"))
    lines = buffer.getvalue().splitlines()
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _shaded(strip: Strip, width: int) -> RichTable:
    """The table of a strip; where there is no room the ends of intervals are left out."""
    ends = width >= _NAMES + 19 * len(strip.headers)
    table = RichTable(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    table.add_column("method", overflow="fold")
    for words in strip.headers.values():
        table.add_column(words, max_width=20, overflow="fold")
    for row in strip.rows:
        table.add_row(Text(printable(row.label)), *_shades(row, strip, ends))
    return table


def _shades(row: StripRow, strip: Strip, ends: bool) -> Iterator[Text]:
    for name in strip.headers:
        step = row.step(name)
        if step is None:
            yield Text(f" {absent_words(name, row)} ")
            continue
        number = shade(step)
        front = "white" if number > WHITE_AFTER else "black"
        style = f"{front} on {COLOURS[number - 1]}" if number else ""
        text = Text(f" {step_words(step)} ", style=style, no_wrap=True)
        if ends and (interval := interval_of(step)):
            text.append(f" {interval}", style="default on default")
        yield text
