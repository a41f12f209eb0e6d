"""Every number in the tables of a page stands in the JSON and in the CSV of the same run."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from leakbench.loading import load
from leakbench.report import renderings
from leakbench.report.content import PrintedPoint, Report, SweepPoint
from leakbench.statistics import Interval

RESULTS = Path(__file__).resolve().parents[1] / "results"
NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?:e[-+]?\d+)?")


@dataclass
class Shown:
    """A table of a page: the heading above it, its header, its rows."""

    heading: str
    header: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)


class Page(HTMLParser):
    """The tables of a page, in order, each under the last <h2>."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: list[Shown] = []
        self.heading = ""
        self.text: list[str] | None = None

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag == "table":
            self.tables.append(Shown(self.heading))
        elif tag == "tr":
            self.tables[-1].rows.append([])
        elif tag in ("h2", "th", "td"):
            self.text = []
        elif tag == "small" and self.text is not None:
            self.text.append(" ")

    def handle_data(self, data: str) -> None:
        if self.text is not None:
            self.text.append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("h2", "th", "td") or self.text is None:
            return
        said, self.text = "".join(self.text).strip(), None
        if tag == "h2":
            self.heading = said
        else:
            self.tables[-1].rows[-1].append(said)


def tables_of(report: Report) -> list[Shown]:
    page = Page()
    page.feed(renderings.to_html(report))
    found = [table for table in page.tables if table.rows]
    for table in found:
        table.header = table.rows.pop(0)
    return found


def report_of(name: str) -> Report:
    return load(RESULTS / name).content()


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for item in value.values():
            yield from leaves(item)
    elif isinstance(value, list):
        yield len(value)
        for item in value:
            yield from leaves(item)
    else:
        yield value


@cache
def written(number: float) -> set[str]:
    """A number in all the ways in which a table may round it; a bound is rounded up."""
    ways = {f"{number:.0f}", f"{number:.2f}", f"{number:.3f}", f"{number:.3g}", f"{number:.1e}"}
    up = f"{number:.2e}"
    if float(up) < number:
        digits, exponent = up.split("e")
        up = f"{float(digits) + 0.01:.2f}e{exponent}"
    ways |= {f"{float(up):.3g}"}
    return ways | {re.sub(r"e([-+])0*(\d)", lambda m: f"e{m[1].strip('+')}{m[2]}", w) for w in ways}


def said_by(values: Iterable[Any]) -> set[str]:
    """Every number that these values hold, without its sign, as tables may write it."""
    found: set[str] = set()
    for value in values:
        if isinstance(value, bool) or value is None:
            continue
        if isinstance(value, int | float):
            found |= written(abs(value))
        else:
            for word in NUMBER.findall(re.sub(r"[;:]", " ", str(value))):
                found |= {word} | written(float(word))
    return found


def about(table: Shown, row: list[str], entries: Iterable[Mapping[str, Any]]) -> list[Any]:
    """The entries that a row of a table speaks of."""
    knowledge = row[1] if "attacker" in table.header[1:2] else ""
    return [
        each
        for each in entries
        if each["label"] == row[0] and knowledge in ("", each.get("knowledge", ""))
    ]


def unexplained(table: Shown, row: list[str], known: set[str]) -> list[str]:
    """Numbers of a row that are not known; numbers of notes apart."""
    wanted = [cell for head, cell in zip(table.header[1:], row[1:], strict=True) if head != "notes"]
    return [word for cell in wanted for word in NUMBER.findall(cell) if word not in known]


def with_all_that_a_training_may_have(report: Report) -> Report:
    """Trainings with a sweep, a target, and accuracies that are printed of the way."""
    costs = tuple(
        replace(
            entry,
            learning_rates=(0.035,),
            sweep=(
                SweepPoint(network=0, learning_rate=0.035, held_out=0.6172, accuracy=0.6231,
                           chosen=True),
                SweepPoint(network=0, learning_rate=0.0071, held_out=0.4172, accuracy=0.4231,
                           chosen=False),
            ),
            stop_accuracy=0.8765, reached=1, rounds_to_target=Interval(17.0, 13.5, 21.5),
            printed_rounds="19", printed_seconds="0.0068", printed_times_undefended=3.29,
            points=(PrintedPoint(rounds=7, accuracy=Interval(0.5151, 0.4848, 0.5454),
                                 printed="0.5353", verdict="reproduced"),),
        )
        for entry in report.costs
    )  # fmt: skip
    return replace(report, costs=costs)


@pytest.mark.parametrize(
    ("name", "least"), [("tifs_table3-quick", 1500), ("cloak_table2-quick", 600)]
)
def test_json_and_csv_hold_every_number_of_the_page(name: str, least: int) -> None:
    report = with_all_that_a_training_may_have(report_of(name))
    content = json.loads(renderings.to_json(report))
    lines = list(csv.DictReader(io.StringIO(renderings.to_csv(report))))
    number_of = {id(line): number for number, line in enumerate(lines)}

    @cache
    def said_by_line(number: int) -> set[str]:
        values = lines[number].values()
        # Lists are counted in words ("of 3"): their lengths are no field of the CSV.
        return said_by(values) | said_by(len(value.split(";")) for value in values)

    checked = 0
    for table in tables_of(report):
        dataset = next(
            key for key, entry in content["datasets"].items()
            if table.heading in (entry["title"], f"{entry['title']} ({key})")
        )  # fmt: skip
        strips = [s for s in content["answer"]["strips"] if s["dataset"] == dataset]
        entries = [e for e in content["cells"] + content["costs"] if e["dataset"] == dataset]
        of_csv = [line for line in lines if line["dataset"] == dataset]
        is_strip = table.heading == content["datasets"][dataset]["title"]
        above: list[str] = []
        for row in table.rows:
            if not row[0]:  # further lines about the row above
                row[:2] = above
            above = row[:2]
            if is_strip:
                of_row: list[Any] = about(table, row, strips[0]["rows"])
                csv_rows = of_csv  # a strip takes each rate from whichever cell is worst
            else:
                of_row, csv_rows = about(table, row, entries), about(table, row, of_csv)
            assert of_row and csv_rows, row
            assert not unexplained(table, row, said_by(leaves(of_row))), (table.header, row)
            of_lines = frozenset().union(*(said_by_line(number_of[id(e)]) for e in csv_rows))
            assert not unexplained(table, row, of_lines), (table.header, row)
            checked += sum(len(NUMBER.findall(cell)) for cell in row)
    assert checked >= least
    sentences = [
        "".join(part["text"] for part in sentence["parts"])
        for strip in content["answer"]["strips"]
        for sentence in strip["sentences"]
    ]
    page = re.sub("<[^>]+>", "", renderings.to_html(report)).replace("&#39;", "'")
    assert sentences and all(sentence in page.replace("&lt;", "<") for sentence in sentences)
