"""Trainings round by round as a picture: accuracy, norms, scales of the mechanism, updates.

A row of panels a data set and variant, a line a defense: mean over its networks, of the rounds that
the records log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean
from typing import Any, Literal

from matplotlib.axes import Axes

from leakbench.described import PlannedTraining
from leakbench.errors import LeakbenchError
from leakbench.records import Key, Record
from leakbench.report.figures import Name, Panel, Row, look_of
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
        "norm of a gradient tensor, median solid, quartiles dotted",
        (("norm_low", ":"), ("norm", "-"), ("norm_high", ":")),
    ),
    "bounds": (
        "sensitivity S solid, clipping bound C dashed",
        (("clip", "--"), ("sensitivity", "-")),
    ),
    "sigma": ("noise multiplier sigma", (("noise_multiplier", "-"),)),
    "updates": (
        "norm of a client's update: raw solid, released dashed, their distance dotted",
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


def training_rows(
    plan: Plan, planned: Sequence[PlannedTraining], records: Mapping[Key, Record]
) -> list[Row]:
    """A row of panels a block; those for which no block has a number are left out.

    Raises:
        LeakbenchError: no training with a result.
    """
    blocks = blocks_of(plan, planned, records)
    if not blocks:
        raise LeakbenchError("no training has a result to draw")
    panels = [name for name in _QUANTITIES if any(_has(block, name) for block in blocks)]
    return [
        Row(
            title=block.title,
            panels=[_panel(block, name) for name in panels],
            names=[
                Name(label=line.label, look=look_of(number))
                for number, line in enumerate(block.lines)
            ],
        )
        for block in blocks
    ]


def _has(block: Block, panel: str) -> bool:
    """Whether there is anything to draw."""
    return any(line.points[name] for line in block.lines for name, _ in _QUANTITIES[panel][1])


def _panel(block: Block, panel: str) -> Panel:
    head, _ = _QUANTITIES[panel]
    if not _has(block, panel):
        head += " (none)"
    return Panel(
        head=head, across="rounds", up="", whole=True,
        draw=lambda axes: _draw(axes, block, panel),
    )  # fmt: skip


def _draw(axes: Axes, block: Block, panel: str) -> None:
    _, drawn = _QUANTITIES[panel]
    values: list[float] = []
    for number, line in enumerate(block.lines):
        for name, style in drawn:
            points = line.points[name]
            if not points:
                continue
            rounds, heights = zip(*points, strict=True)
            values += heights
            look = look_of(number) | {"linestyle": style}
            if style != "-":
                look["marker"] = None if len(points) > 1 else "_"
            # Lines that lie on each other have their marks beside each other.
            axes.plot(rounds, heights, markevery=_spaced(len(points), number), **look)
    done = [x for line in block.lines for points in line.points.values() for x, _ in points]
    room = 0.03 * (max(done) - min(done)) or 1
    axes.set_xlim(min(done) - room, max(done) + room)
    positive = [value for value in values if value > 0]
    if panel == "accuracy":
        axes.set_ylim(0, 1)
    elif positive and max(positive) > 8 * min(positive):
        axes.set_yscale("log")  # a zero, of an update that nothing changed, is not shown
    else:
        axes.set_ylim(0, 1.08 * max(values, default=0) or 1)


def _spaced(points: int, line: int) -> tuple[int, int]:
    """First mark and distance of the others, in points."""
    step = max(points // _MARKS, 1)
    return (line * max(step // 4, 1)) % step if step > 1 else 0, step
