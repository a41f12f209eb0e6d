"""How far noise pushes attackers down, as a picture: rates and errors against its size.

A row of panels a data set and network. Left: how often the picture is recovered (solid), the victim
named by it (dashed) or matched among the candidates (dotted), and the ceiling on naming. Right:
median squared errors, and what an efficient attacker would get. The axis is logarithmic, with 0
apart at its left end.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from matplotlib.axes import Axes

from leakbench.errors import LeakbenchError
from leakbench.report import figures
from leakbench.report.content import Report, ReportCell
from leakbench.report.words import compact, model_words
from leakbench.spec import Plan

Points = tuple[tuple[float, float], ...]
"""(number of the defense, value), by rising number."""

Side = Literal["rates", "errors"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderLine:
    """One line of a panel; look: its number, None for what no attacker did."""

    label: str
    panel: Side
    style: str
    look: int | None
    points: Points


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """A row of panels: a data set and a network, against one parameter of the defense."""

    title: str
    parameter: str
    lines: tuple[LadderLine, ...]


def ladders_of(plan: Plan, report: Report) -> tuple[Ladder, ...]:
    """What there is to draw, in the order of the suite.

    Raises:
        LeakbenchError: No plugin has rows that differ in one number, or none of them has a result.
    """
    parameter, values = _varied(plan)
    cells = [cell for cell in report.cells if cell.defense in values and cell.judged]
    found = []
    for title, group in groupby(sorted_by_title(cells), key=_title):
        lines = tuple(_lines(report, list(group), values))
        found.append(Ladder(title=title, parameter=parameter, lines=lines))
    if not found:
        raise LeakbenchError("no row of the ladder has a result to draw")
    return tuple(found)


def sorted_by_title(cells: Iterable[ReportCell]) -> list[ReportCell]:
    """Cells of a title side by side, titles in the order of their first cells."""
    listed = list(cells)
    order = list(dict.fromkeys(_title(cell) for cell in listed))
    return sorted(listed, key=lambda cell: order.index(_title(cell)))


def _title(cell: ReportCell) -> str:
    return f"{cell.dataset}, {model_words(cell)}"


def _varied(plan: Plan) -> tuple[str, dict[str, float]]:
    """The one number that rows of a defense differ in, and row id -> it; most rows count."""
    parameters = {cell.defense_id: cell.defense_parameters for cell in plan.cells}
    best: tuple[str, dict[str, float]] = ("", {})
    for name in dict.fromkeys(row.name for row in plan.defenses):
        rows = [row.id for row in plan.defenses if row.name == name and row.id in parameters]
        keys = list(dict.fromkeys(key for row in rows for key in parameters[row]))
        differing = [
            key for key in keys if len({repr(parameters[row].get(key)) for row in rows}) > 1
        ]
        if len(differing) != 1 or len(rows) <= len(best[1]):
            continue
        numbers = [_number(parameters[row].get(differing[0])) for row in rows]
        if all(number >= 0 for number in numbers):
            best = (differing[0], dict(zip(rows, numbers, strict=True)))
    if not best[1]:
        raise LeakbenchError("no defense has rows that differ in one number: nothing is a ladder")
    return best


def _number(value: object) -> float:
    """A finite number, or nan for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value == math.inf:
        return math.nan
    return float(value)


def _lines(
    report: Report, cells: Sequence[ReportCell], values: dict[str, float]
) -> Iterable[LadderLine]:
    rules = {rule.kind: rule.name for rule in reversed(report.rules)}  # the first of each kind
    granted = {(a.variant, a.attack, a.knowledge): a.grants for a in report.attackers}

    def points(some: Sequence[ReportCell], numbers: Sequence[float | None]) -> Points:
        found = zip((values[cell.defense] for cell in some), numbers, strict=True)
        return tuple(sorted((x, y) for x, y in found if y is not None and math.isfinite(y)))

    attackers = dict.fromkeys(map(_attacker, cells))  # suites may list them inside each row
    by_attacker = [[cell for cell in cells if _attacker(cell) == one] for one in attackers]
    for look, some in enumerate(by_attacker):
        first = some[0]
        name = f"{first.attack} ({first.knowledge})"
        if "candidates" in granted.get((first.variant, first.attack, first.knowledge), ()):
            drawn: tuple[tuple[str, str, str], ...] = (("matched", ":", "identified"),)
        else:
            drawn = (("exact", "-", "strict"), ("identified", "--", "identified"))
        for words, style, kind in drawn:
            if kind in rules:
                rates = [cell.asr[rules[kind]].value for cell in some]
                yield LadderLine(
                    label=f"{name}, {words}", panel="rates", style=style, look=look,
                    points=points(some, rates),
                )  # fmt: skip
        if drawn[0][0] != "matched":
            yield LadderLine(
                label=name, panel="errors", style="-", look=look,
                points=points(some, [cell.mse for cell in some]),
            )  # fmt: skip
    every = max(by_attacker, key=len)  # the first of them, unless it has not run everywhere yet
    ceilings = points(every, [cell.ceiling for cell in every])
    attainable = points(every, [cell.bound.attainable if cell.bound else None for cell in every])
    unbiased = points(every, [cell.bound.unbiased if cell.bound else None for cell in every])
    baseline = points(every, [cell.baselines.mean_image for cell in every])
    yield LadderLine(label="ceiling", panel="rates", style="-", look=None, points=ceilings)
    for label, style, found in (
        ("attainable", "-", attainable), ("unbiased bound", "-.", unbiased),
        ("mean image", ":", baseline),
    ):  # fmt: skip
        yield LadderLine(label=label, panel="errors", style=style, look=None, points=found)


def _attacker(cell: ReportCell) -> tuple[str, str, str]:
    return cell.variant, cell.attack, cell.knowledge


# ------------------------------------------------------------------------------ drawing

_LEAST_ERROR = 1e-8
"""Smaller errors are drawn as this one: the picture is recovered, to the last digit or nearly."""
_ASIDE = 0.6
"""Decades from 0 to the smallest positive number on the axis."""

_HEADS: dict[Side, str] = {
    "rates": "share of victims",
    "errors": f"median squared error a pixel (at least {_LEAST_ERROR:g})",
}


def ladder_rows(plan: Plan, report: Report) -> list[figures.Row]:
    """A row of two panels a ladder.

    Raises:
        LeakbenchError: see `ladders_of`.
    """
    return [
        figures.Row(title=ladder.title, panels=[_panel(ladder, "rates"), _panel(ladder, "errors")],
            names=_names(ladder))
        for ladder in ladders_of(plan, report)
    ]  # fmt: skip


def _panel(ladder: Ladder, panel: Side) -> figures.Panel:
    numbers = sorted({x for line in ladder.lines for x, _ in line.points})
    places = _places(numbers)
    return figures.Panel(
        head=_HEADS[panel], across=ladder.parameter.replace("_", " "), up="",
        draw=lambda axes: _draw(axes, ladder, panel, places),
        ticks={places[x]: compact(x) for x in numbers},
    )  # fmt: skip


def _draw(axes: Axes, ladder: Ladder, panel: Side, places: dict[float, float]) -> None:
    for line in ladder.lines:
        if line.panel != panel or not line.points:
            continue
        heights = [max(y, _LEAST_ERROR) if panel == "errors" else y for _, y in line.points]
        axes.plot([places[x] for x, _ in line.points], heights, **_look(line))
    if 0 in places and len(places) > 1:  # the axis is broken right of 0
        axes.axvline(places[0] + _ASIDE / 2, color="#b0b7c3", linewidth=0.8, linestyle=(0, (2, 2)))
    if panel == "rates":
        axes.set_ylim(-0.03, 1.03)
    else:
        axes.set_yscale("log")


def _look(line: LadderLine) -> dict[str, Any]:
    if line.look is None:  # nobody's
        return {
            "color": figures.GRAY, "linestyle": line.style, "linewidth": 2.2, "alpha": 0.6,
            "zorder": 1,
        }  # fmt: skip
    return figures.look_of(line.look) | {"linestyle": line.style}


def _names(ladder: Ladder) -> list[figures.Name]:
    """Of both panels; a line of the same look in both has one."""
    labels: dict[tuple[str, int | None, str], tuple[LadderLine, list[str]]] = {}
    for line in ladder.lines:
        if line.points:
            apart = "" if line.look is not None else line.panel
            labels.setdefault((apart, line.look, line.style), (line, []))[1].append(
                line.label if line.panel == "rates" or line.look is None else "error"
            )
    return [
        figures.Name(label=" and ".join(words), look=_look(line)) for line, words in labels.values()
    ]


def _places(numbers: Sequence[float]) -> dict[float, float]:
    """Number -> place on a logarithmic axis, 0 left of all others."""
    positive = [number for number in numbers if number > 0]
    places = {number: math.log10(number) for number in positive}
    if 0 in numbers:
        places[0] = min(places.values(), default=0.0) - _ASIDE
    return places
