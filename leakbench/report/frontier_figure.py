"""What defenses cost against what they stop: leakage over the accuracy of the trained network.

A point is a row of a suite that both trains networks under its defense and attacks its gradients;
its leakage is that of the worst attacker. Right and low is good, and the frontier are the points
that no other beats in both. Epsilon is shown as a colour, dark for little, and in words; who
promises none has a mark of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from string import ascii_lowercase
from typing import Any

import matplotlib
from matplotlib.axes import Axes

from leakbench.errors import LeakbenchError
from leakbench.report.answer import StripRow, answer
from leakbench.report.content import CostEntry, Report, ReportCell
from leakbench.report.drawing import DPI, text_width
from leakbench.report.figures import GRAY, Name, Panel, Row
from leakbench.report.words import compact
from leakbench.statistics import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class TradeOff:
    """One defense. recovered, named: rates of the worst attackers, None where not measured."""

    label: str
    epsilon: float | None
    delta: float | None
    accuracy: Interval
    recovered: Interval | None
    named: Interval | None

    def leakage(self, name: str) -> Interval | None:
        """One of the rates."""
        return self.recovered if name == "recovered" else self.named


def trade_offs(report: Report) -> dict[str, list[TradeOff]]:
    """Title of a data set and training -> its defenses that were trained and attacked.

    Attacks of a training's own variant count, or all on its defense where the suite's attacks have
    other variants.

    Raises:
        LeakbenchError: no defense was both.
    """
    leaks = _leaks(report)
    variants = {cell.variant for cell in report.cells} & {cost.variant for cost in report.costs}
    found: dict[str, list[TradeOff]] = {}
    for cost in report.costs:
        rows = [
            row
            for cell, row in leaks
            if (cell.dataset, cell.defense) == (cost.dataset, cost.defense)
            and (cell.variant == cost.variant or cost.variant not in variants)
        ]
        if cost.accuracy.value is None or not any(row.steps for row in rows):
            continue
        found.setdefault(_title(report, cost), []).append(
            TradeOff(
                label=cost.label,
                epsilon=None if cost.privacy is None else cost.privacy.epsilon,
                delta=None if cost.privacy is None else cost.privacy.delta,
                accuracy=cost.accuracy,
                recovered=_highest(rows, "exact"),
                named=_highest(rows, "named", "matched"),
            )
        )
    if not found:
        raise LeakbenchError("no defense was both trained and attacked")
    return found


def _leaks(report: Report) -> list[tuple[ReportCell, StripRow]]:
    """Every cell with the line of the answer that speaks of its leak."""
    strips = {(row.dataset, row.row): row for s in answer(report).strips for row in s.rows}
    first: dict[tuple[str, str], str] = {}
    pairs = []
    for cell in report.cells:
        row = first.setdefault((cell.dataset, cell.leak_id), cell.row)
        pairs.append((cell, strips[cell.dataset, row]))
    return pairs


def _title(report: Report, cost: CostEntry) -> str:
    entry = report.datasets.get(cost.dataset)
    title = cost.dataset if entry is None else entry.title.split(",")[0]
    return f"{title}, {cost.variant}" if cost.variant else title


def _highest(rows: Iterable[StripRow], *names: str) -> Interval | None:
    steps = [step.rate for row in rows for name in names if (step := row.step(name)) is not None]
    return max(steps, key=lambda rate: rate.value or 0.0, default=None)


def frontier(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """(accuracy, leakage) of which no other has more of the first and less of the second, by
    rising accuracy."""
    best: list[tuple[float, float]] = []
    for accuracy, leakage in sorted(set(points), key=lambda point: (-point[0], point[1])):
        if not best or leakage < best[-1][1]:
            best.append((accuracy, leakage))
    return best[::-1]


# ------------------------------------------------------------------------------ drawing

_HEADS = {"recovered": "recovered by the worst attacker", "named": "named by the worst attacker"}
_SMALL = 6.0  # points


def frontier_rows(report: Report) -> list[Row]:
    """A row a data set and training, with a panel a rate.

    Raises:
        LeakbenchError: see `trade_offs`.
    """

    def panel(some: Sequence[TradeOff], name: str) -> Panel:
        return Panel(
            head=_HEADS[name], across="test accuracy", up="share of victims",
            draw=lambda axes: _draw(axes, some, name),
        )  # fmt: skip

    return [
        Row(
            title=title,
            panels=[
                panel(some, name)
                for name in _HEADS
                if any(one.leakage(name) is not None for one in some)
            ],
            names=[
                *(
                    Name(label=f"{letters(number)}  {_words(one)}", look=_look(one, some))
                    for number, one in enumerate(some)
                ),
                Name(label="frontier: no other is more accurate and leaks less", look=_FRONTIER),
            ],
        )
        for title, some in trade_offs(report).items()
    ]


_FRONTIER: dict[str, Any] = {"color": GRAY, "linewidth": 1.2, "linestyle": "--", "zorder": 1}


def letters(number: int) -> str:
    """a, b, ... z, aa, ab, ..."""
    above, own = divmod(number, len(ascii_lowercase))
    return (letters(above - 1) if above else "") + ascii_lowercase[own]


def _words(one: TradeOff) -> str:
    promised = "no guarantee" if one.epsilon is None else f"epsilon {compact(one.epsilon)}"
    if one.epsilon is not None and one.delta is not None:
        promised += f" at delta {compact(one.delta)}"
    return f"{one.label} ({promised})"


def _look(one: TradeOff, some: Sequence[TradeOff]) -> dict[str, Any]:
    """Mark and colour; of those with an epsilon the darker the less."""
    if one.epsilon is None:
        return {
            "color": "#000000", "marker": "s", "markersize": 5, "markerfacecolor": "white",
            "linestyle": "",
        }  # fmt: skip
    logs = [math.log(max(each.epsilon, 1e-9)) for each in some if each.epsilon is not None]
    low, high = min(logs), max(logs)
    share = (math.log(max(one.epsilon, 1e-9)) - low) / (high - low) if high > low else 0.0
    colour = matplotlib.colormaps["cividis"](0.92 * share)
    return {
        "color": colour, "marker": "o", "markersize": 5.5, "markeredgecolor": "#000000",
        "markeredgewidth": 0.6, "linestyle": "",
    }  # fmt: skip


def _draw(axes: Axes, some: Sequence[TradeOff], name: str) -> None:
    drawn = [
        (number, one, one.accuracy.value or 0.0, leakage)
        for number, one in enumerate(some)
        if (leakage := one.leakage(name)) is not None
    ]
    left = min(low for _, one, _, _ in drawn for low, _ in [_ends(one.accuracy)])
    right = max(high for _, one, _, _ in drawn for _, high in [_ends(one.accuracy)])
    room = 0.08 * (right - left) or 0.05
    axes.set_xlim(left - room, right + 2.5 * room)
    axes.set_ylim(-0.06, 1.06)
    best = frontier((accuracy, rate.value or 0.0) for _, _, accuracy, rate in drawn)
    axes.step(
        [left - room, *(x for x, _ in best)], [best[0][1], *(y for _, y in best)], where="pre",
        **_FRONTIER,
    )  # fmt: skip
    for _, one, accuracy, rate in drawn:
        value, across, up = rate.value or 0.0, _ends(one.accuracy), _ends(rate)
        axes.errorbar(
            [accuracy], [value], xerr=[[accuracy - across[0]], [across[1] - accuracy]],
            yerr=[[value - up[0]], [up[1] - value]], ecolor="#9aa3af", elinewidth=0.7,
            **_look(one, some),
        )  # fmt: skip
    points = [(number, one, accuracy, rate.value or 0.0) for number, one, accuracy, rate in drawn]
    _write(axes, sorted(points, key=lambda point: point[2:] not in best))


def _ends(interval: Interval) -> tuple[float, float]:
    """Of an interval; of a single network its value."""
    value = interval.value or 0.0
    low = value if interval.low is None else interval.low
    return low, value if interval.high is None else interval.high


def _write(axes: Axes, points: Sequence[tuple[int, TradeOff, float, float]]) -> None:
    """Letter and epsilon beside each point, as far as there is room."""
    scale = 72 / axes.figure.dpi  # from the figure's pixels to points
    size = axes.get_window_extent()
    inside = _Box(size.x0 * scale, size.y0 * scale, size.x1 * scale, size.y1 * scale)
    places = [axes.transData.transform((x, y)) * scale for _, _, x, y in points]
    taken = [_Box(x - 3, y - 3, x + 3, y + 3) for x, y in places]
    for (number, one, _, _), (x, y) in zip(points, places, strict=True):
        text = letters(number)
        if one.epsilon is not None:
            text += f" {compact(one.epsilon)}"
        wide = text_width(text, _SMALL) * 72 / DPI
        for left, low in ((x + 4, y - 3), (x - 4 - wide, y - 3), (x + 2, y + 4), (x + 2, y - 10)):
            box = _Box(left, low, left + wide, low + 6)
            if box.within(inside) and not any(box.overlaps(other) for other in taken):
                axes.annotate(
                    text, (left, low), xycoords="figure points",
                    fontsize=_SMALL, parse_math=False, va="bottom", ha="left",
                )  # fmt: skip
                taken.append(box)
                break


@dataclass(frozen=True, slots=True)
class _Box:
    """In points."""

    left: float
    low: float
    right: float
    high: float

    def overlaps(self, other: _Box) -> bool:
        return (
            self.left < other.right and other.left < self.right
            and self.low < other.high and other.low < self.high
        )  # fmt: skip

    def within(self, other: _Box) -> bool:
        return (
            other.left <= self.left and self.right <= other.right
            and other.low <= self.low and self.high <= other.high
        )  # fmt: skip
