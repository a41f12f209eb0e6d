"""Trainings round by round as a picture: accuracy, norms, scales of the mechanism, updates.

A row of panels a data set and variant, a line a defense: mean over its networks, of the rounds that
the records log. Lines differ in mark as well as in colour, so that a gray print can be read.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from leakbench.described import PlannedTraining
from leakbench.errors import LeakbenchError
from leakbench.records import Key, Record
from leakbench.report.figures import (
    DPI,
    LOOKS,
    check_suffix,
    plain_axes,
    raw_names,
    text_at,
    written,
)
from leakbench.spec import JUDGED, Plan

Points = tuple[tuple[int, float], ...]
"""(rounds done, number), in order."""

_MARKS = 6
"""Marks on a line, about."""

Style = Literal["-", "--", ":"]
Drawn = tuple[tuple[str, Style], ...]
"""Names and how each is drawn."""

_QUANTITIES: dict[str, tuple[str, Drawn]] = {
    "accuracy": ("test accuracy", (("accuracy", "-"),)),
    "norms": (
        "norm of a gradient tensor\nmedian solid, quartiles dotted",
        (("norm_low", ":"), ("norm", "-"), ("norm_high", ":")),
    ),
    "bounds": (
        "sensitivity S solid,\nclipping bound C dashed",
        (("clip", "--"), ("sensitivity", "-")),
    ),
    "sigma": ("noise multiplier sigma", (("noise_multiplier", "-"),)),
    "updates": (
        "norm of a client's update: raw solid,\nreleased dashed, their distance dotted",
        (("update_raw", "-"), ("update_released", "--"), ("update_distance", ":")),
    ),
}
"""Panel -> its head, and what is drawn in it in which style."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingLine:
    """What one defense's trainings went through, by the names of `_QUANTITIES`."""

    label: str
    points: Mapping[str, Points]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A row of panels: a data set and a variant, one line a defense."""

    title: str
    lines: tuple[TrainingLine, ...]


def blocks_of(
    plan: Plan, planned: Sequence[PlannedTraining], records: Mapping[Key, Record]
) -> tuple[Block, ...]:
    """What there is to draw, in the order of the plan; rows without a result have no line."""
    found = []
    labels = {defense.id: defense.label for defense in plan.defenses}
    for (_, variant), group in groupby(planned, key=lambda p: (p.cell.dataset, p.cell.variant)):
        some = list(group)
        lines = [
            _line(labels.get(each.cell.defense_id, each.cell.label), trained)
            for each in some
            if (trained := _judged(each, records))
        ]
        cell = some[0].cell
        title = (some[0].title or cell.dataset).split(",")[0]
        if variant:
            title += f", {cell.label.removesuffix(f', {labels.get(cell.defense_id)}')}"
        if lines:
            found.append(Block(title=title, lines=tuple(lines)))
    return tuple(found)


def _judged(planned: PlannedTraining, records: Mapping[Key, Record]) -> list[Record]:
    found = [records[key] for key in planned.trials() if key in records]
    return [record for record in found if record["status"] in JUDGED]


def _line(label: str, trained: Sequence[Record]) -> TrainingLine:
    logs = [table for record in trained for table in record.get("log") or ()]
    names = [name for _, drawn in _QUANTITIES.values() for name, _ in drawn]
    points = {
        name: _means((table["round"], _value(table, name)) for table in logs) for name in names
    }
    points["accuracy"] = _means(
        (int(n), share) for record in trained for n, share in record["curve"]
    )
    return TrainingLine(label=label, points=points)


_NORMS = {"norm_low": 1, "norm": 2, "norm_high": 3}
"""Quartiles among the quantiles 0, .25, .5, .75 and 1 of a log."""


def _value(table: Mapping[str, Any], name: str) -> float | None:
    value = table["norms"][_NORMS[name]] if name in _NORMS else table.get(name)
    return None if value is None else float(value)


def _means(points: Iterable[tuple[int, float | None]]) -> Points:
    """Mean over networks of every round that has a number."""
    found: dict[int, list[float]] = {}
    for rounds, value in points:
        if value is not None:
            found.setdefault(rounds, []).append(value)
    return tuple((rounds, fmean(values)) for rounds, values in sorted(found.items()))


# ------------------------------------------------------------------------------ drawing

_PANEL = (2.8, 2.3)
"""Inches a panel, with its labels."""
_LEGEND = 2.4
"""Inches for the names of the defenses, right of a row."""
_HEAD = 0.3


def draw(
    plan: Plan,
    planned: Sequence[PlannedTraining],
    records: Mapping[Key, Record],
    suffix: str = ".png",
) -> bytes:
    """The picture as a file of one of `SUFFIXES`; the same records give the same bytes.

    Raises:
        LeakbenchError: another suffix, or no training with a result.
    """
    check_suffix(suffix)
    blocks = blocks_of(plan, planned, records)
    if not blocks:
        raise LeakbenchError("no training has a result to draw")
    return written(lambda: figure_of(blocks), suffix)


def _drawn(panel: str) -> Callable[[Block], bool]:
    """Whether a block has anything for a panel."""
    names = [name for name, _ in _QUANTITIES[panel][1]]
    return lambda block: any(line.points[name] for line in block.lines for name in names)


def figure_of(blocks: Sequence[Block]) -> Figure:
    """The picture; panels for which no block has a number are left out."""
    panels = [name for name in _QUANTITIES if any(map(_drawn(name), blocks))]
    width, height = _PANEL
    columns = len(panels)
    heights = [max(height, 0.2 * _legend_lines(block) + 0.4) + _HEAD for block in blocks]
    figure = Figure(figsize=(width * columns + _LEGEND, sum(heights)), dpi=DPI)
    figure.patch.set_facecolor("white")
    across, down = width * columns + _LEGEND, sum(heights)
    top = down
    for block, tall in zip(blocks, heights, strict=True):
        text_at(figure, 0.12 / across, (top - 0.08) / down, block.title, size=10, weight="bold")
        for number, panel in enumerate(panels):
            left, bottom = width * number + 0.5, top - tall + 0.42
            axes = figure.add_axes(
                (left / across, bottom / down, (width - 0.6) / across, (tall - _HEAD - 0.82) / down)
            )
            _panel(axes, block, panel)
        _names(figure, block, (width * columns + 0.1) / across, (top - _HEAD) / down)
        top -= tall
    return figure


def _panel(axes: Axes, block: Block, panel: str) -> None:
    head, drawn = _QUANTITIES[panel]
    values: list[float] = []
    for number, line in enumerate(block.lines):
        colour, mark = LOOKS[number % len(LOOKS)]
        for name, style in drawn:
            points = line.points[name]
            if not points:
                continue
            rounds, heights = zip(*points, strict=True)
            values += heights
            axes.plot(
                rounds, heights, style, color=colour, linewidth=1.2,
                marker=mark if style == "-" else None, markersize=4,
                # Lines that lie on each other have their marks beside each other.
                markevery=_spaced(len(points), number),
            )  # fmt: skip
    axes.set_title(head, fontsize=8, loc="left", pad=3)
    axes.set_xlabel("rounds", fontsize=7, labelpad=1)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    plain_axes(axes)
    axes.margins(x=0.03)
    positive = [value for value in values if value > 0]
    if panel == "accuracy":
        axes.set_ylim(0, 1)
    elif not values:
        _empty(axes)
    elif positive and max(positive) > 8 * min(positive):
        axes.set_yscale("log")  # a zero, of an update that nothing changed, is not shown
    else:
        axes.set_ylim(0, 1.08 * max(values) or 1)


def _spaced(points: int, line: int) -> tuple[int, int]:
    """First mark and distance of the others, in points."""
    step = max(points // _MARKS, 1)
    return (line * max(step // 4, 1)) % step if step > 1 else 0, step


def _empty(axes: Axes) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.text(0.5, 0.5, "none", transform=axes.transAxes, ha="center", fontsize=8, color="#6b7687")


_LETTERS = 34
"""That fit beside the panels."""


def _legend_lines(block: Block) -> int:
    return sum(len(_wrapped(line.label)) for line in block.lines)


def _wrapped(label: str) -> list[str]:
    return textwrap.wrap(label, _LETTERS) or [label]


def _names(figure: Figure, block: Block, left: float, top: float) -> None:
    """The defenses with their looks."""
    handles = []
    for number, _ in enumerate(block.lines):
        colour, mark = LOOKS[number % len(LOOKS)]
        handles.append(Line2D([], [], color=colour, marker=mark, markersize=4, linewidth=1.2))
    legend = figure.legend(
        handles, ["\n".join(_wrapped(line.label)) for line in block.lines], fontsize=7,
        loc="upper left", bbox_to_anchor=(left, top), frameon=False, borderaxespad=0,
    )  # fmt: skip
    raw_names(legend)
