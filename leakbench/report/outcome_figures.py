"""Outcomes of attacks as pictures: success against threshold, against effort, and beside print.

Every row of a suite stands for its worst attacker (see `answer`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from leakbench.described import PlannedCell
from leakbench.errors import LeakbenchError
from leakbench.records import Key, Record
from leakbench.report.answer import answer
from leakbench.report.content import CostEntry, Report, ReportCell
from leakbench.report.figures import GRAY, Name, Panel, Row, look_of
from leakbench.report.measured import (
    Floats,
    LabelledRule,
    Trials,
    collect,
    mean_baselines,
    rules_of,
)
from leakbench.report.verdicts import decisive
from leakbench.spec import Plan
from leakbench.statistics import Interval, wilson

READINGS = (
    ("mse_raw", "mean squared error, raw"),
    ("mse_clamped", "mean squared error, clamped"),
    ("distance_raw", "norm of the error, raw"),
    ("distance_clamped", "norm of the error, clamped"),
)
"""Fields of a record that the papers' "MSE" may mean, and their words."""

PAPER = 0.70
"""The papers' threshold, whatever it is of."""

MOST_LISTED = 30
"""Of points beside print: the numbers of more would cover each other; the table has them."""

MOST_POINTS = 500
"""Of a line: more are not to be told apart."""

_LEAST = 1e-12
_MOST_POINTS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One line: the trials of a row's worst attacker."""

    label: str
    trials: Trials


Outcomes = Mapping[str, Sequence[Outcome]]
"""Title of a data set -> its rows that have a result."""


def outcomes_of(
    planned: Sequence[PlannedCell], records: Mapping[Key, Record], report: Report
) -> Outcomes:
    """What a run has to draw.

    Raises:
        LeakbenchError: nothing was attacked, or has a result.
    """
    trials: dict[tuple[str, str, str], Trials] = {
        (one.cell.dataset, one.cell.row, one.cell.knowledge): collect(one, records)
        for one in planned
    }
    found: dict[str, list[Outcome]] = {}
    for strip in answer(report).strips:
        for row in strip.rows:
            step = row.step("exact") or row.step("matched")
            if step is None:
                continue
            who = f"{row.label} ({step.attacker})"
            key = (row.dataset, step.row, step.knowledge)
            found.setdefault(strip.title, []).append(Outcome(label=who, trials=trials[key]))
    if not found:
        raise LeakbenchError("no attack has a result to draw")
    return found


# ------------------------------------------------------------------------------ thresholds


def threshold_rows(found: Outcomes) -> list[Row]:
    """Share of victims whose error is below each threshold, in every reading of "MSE"."""

    def panel(outcomes: Sequence[Outcome], name: str, words: str) -> Panel:
        return Panel(
            head=words, across="threshold", up="share of victims below",
            draw=lambda axes: _thresholds(axes, outcomes, name),
        )  # fmt: skip

    return [
        Row(
            title=title,
            panels=[panel(outcomes, name, words) for name, words in READINGS],
            names=[*_names(outcomes), *_BESIDE],
        )
        for title, outcomes in found.items()
    ]


def shares_below(errors: Sequence[float | None] | Floats) -> tuple[list[float], list[float]]:
    """Errors in rising order, and the share of all trials at or below each; what is not finite is
    above all."""
    values = np.asarray(errors, dtype=np.float64)
    known = np.sort(values[np.isfinite(values)])
    return known.tolist(), (np.arange(1, len(known) + 1) / len(errors)).tolist()


def thinned(points: int) -> list[int]:
    """Places of at most `_MOST_POINTS` of so many, the last among them, evenly: a file of ten
    thousand steps shows no more than one of hundreds."""
    if points <= _MOST_POINTS:
        return list(range(points))
    return [points * (each + 1) // _MOST_POINTS - 1 for each in range(_MOST_POINTS)]


def _thresholds(axes: Axes, outcomes: Sequence[Outcome], name: str) -> None:
    highest = PAPER
    for number, one in enumerate(outcomes):
        errors, shares = shares_below(one.trials.entering_table.column(name))
        if not errors:
            continue
        highest = max(highest, errors[-1])
        some = _some(len(errors))
        drawn = [max(errors[place], _LEAST) for place in some]
        heights = [shares[place] for place in some]
        axes.step([_LEAST, *drawn, inf], [0, *heights, shares[-1]], where="post", **_look(number))
    axes.set_xscale("log")
    axes.set_xlim(_lowest(outcomes, name), highest * 3)
    axes.axvline(PAPER, **_PRINT)
    if name == "mse_clamped":
        baselines = mean_baselines(outcomes[0].trials.judged_table)
        for value in (baselines.mean_image, baselines.start_image):
            if value is not None:
                axes.axvline(value, **_TRIVIAL)
    axes.set_ylim(*_SHARES)


def _some(count: int) -> list[int]:
    """Places of a line's points that are drawn: all, or evenly some of them with both ends."""
    drawn = min(count, MOST_POINTS)
    return [place * (count - 1) // max(drawn - 1, 1) for place in range(drawn)]


def _lowest(outcomes: Sequence[Outcome], name: str) -> float:
    values = np.concatenate([one.trials.judged_table.column(name) for one in outcomes])
    values = values[np.isfinite(values)]
    return max(float(values.min(initial=inf)) if values.size else 1.0, _LEAST) / 3


# ------------------------------------------------------------------------------ effort


def effort_rows(plan: Plan, found: Outcomes) -> list[Row]:
    """Share of victims recovered within so many gradient evaluations, with 95 % bands.

    Whoever never succeeds counts to the end, so that the Kaplan-Meier curve is a share of all
    trials, and its band Wilson's.

    Raises:
        LeakbenchError: no rule that can be followed.
    """
    rule = followed(plan)

    def panel(outcomes: Sequence[Outcome]) -> Panel:
        return Panel(
            head=f"recovered by an iterate ({rule.label})", across="gradient evaluations",
            up="share of victims", draw=lambda axes: _effort(axes, outcomes, rule),
        )  # fmt: skip

    return [
        Row(
            title=title,
            panels=[panel(outcomes)],
            names=[*_names(outcomes), *_limit(outcomes, rule)],
        )
        for title, outcomes in found.items()
    ]


def followed(plan: Plan) -> LabelledRule:
    """The rule by which effort is counted: the first that asks for the image itself, if any.

    Raises:
        LeakbenchError: none can be followed step by step.
    """
    rules = [rule for rule in rules_of(plan) if rule.stepwise]
    rules = [rule for rule in rules if rule.judged.needs_recovery] or rules
    if not rules:
        raise LeakbenchError("no success rule of the suite can be followed step by step")
    return rules[0]


def _firsts(one: Outcome, rule: LabelledRule) -> tuple[list[int], int, int]:
    """Evaluations after which its trials succeeded, in order, the most that any spent, and how many
    trials there are."""
    records = one.trials.entering_table
    first = rule.firsts(records, "evaluations")
    met = np.sort(first[~np.isnan(first)]).astype(int).tolist()
    spent = (each or 0 for each in records.values("evaluations"))
    return met, max([1, *met, *spent]), len(first)


def _limit(outcomes: Sequence[Outcome], rule: LabelledRule) -> list[Name]:
    """Name of the limit of rows in which nobody is recovered, where there are any."""
    some = any(not _firsts(one, rule)[0] for one in outcomes)
    return [Name(label="95 % limit of rows that stay at 0", look=_LIMIT)] if some else []


def _effort(axes: Axes, outcomes: Sequence[Outcome], rule: LabelledRule) -> None:
    never: dict[int, int] = {}  # trials -> most evaluations, of rows that stay at 0
    for number, one in enumerate(outcomes):
        first, end, count = _firsts(one, rule)
        if not first:
            never[count] = max(end, never.get(count, 0))
        some = _some(len(first))
        times = [0, *(first[place] for place in some), end]
        counts = [0, *(place + 1 for place in some), len(first)]
        look = _look(number)
        axes.step(times, [c / count for c in counts], where="post", **look)
        low, high = zip(*(wilson(c, count) for c in counts), strict=True)
        if first:
            axes.fill_between(times, low, high, step="post", alpha=0.12, color=look["color"])
    for count, end in never.items():  # one for all of as many trials: they would hide each other
        _, limit = wilson(0, count)
        axes.plot([0, end], [limit, limit], **_LIMIT)
        axes.fill_between([0, end], 0, limit, alpha=0.12, color=GRAY, linewidth=0)
    axes.set_xscale("symlog", linthresh=10)
    axes.set_xlim(left=0)
    axes.set_ylim(*_SHARES)


# ------------------------------------------------------------------------------ beside print


def printed_rows(report: Report) -> list[Row]:
    """Printed success rates and accuracies against ours, with intervals and the diagonal.

    Of the paper's readings the nearest one is drawn: off the diagonal is what came out under none.

    Raises:
        LeakbenchError: nothing printed beside a result.
    """
    drawn = [("success rate", printed_rates(report)), ("accuracy", printed_accuracies(report))]
    drawn = [(words, points) for words, points in drawn if points]
    if not drawn:
        raise LeakbenchError("nothing is printed beside a result of this run")

    def panel(words: str, points: Sequence[PrintedPair]) -> Panel:
        return Panel(
            head=words, across="printed", up="measured",
            draw=lambda axes: _diagonal(
                axes, points, first if points is not drawn[0][1] else 1, listed=listed
            ),
        )  # fmt: skip

    first = 1 + len(drawn[0][1])  # of the second panel: numbers go on
    listed = sum(len(points) for _, points in drawn) <= MOST_LISTED
    every = [point for _, points in drawn for point in points]
    names = [
        Name(label=f"{group} ({count})", look={**look, "linestyle": ""})
        for group, look in _VERDICTS.items()
        if (count := sum(point.group == group for point in every))
    ]
    names += [
        Name(label=f"{place + 1}  {p.label}: {p.printed:.2f}, ours {p.ours:.2f}", look=_LISTED)
        for place, p in enumerate(every if len(every) <= MOST_LISTED else ())
    ]
    panels = [panel(words, points) for words, points in drawn]
    return [Row(title="Printed against measured", panels=panels, names=names)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedPair:
    """A printed number and ours; label: of what. low, high: ends of its interval."""

    label: str
    printed: float
    ours: float
    low: float
    high: float
    verdict: str

    @property
    def group(self) -> str:
        """Its verdict, or that there is none: too few rounds, other data."""
        return self.verdict if self.verdict in _VERDICTS else _NO_VERDICT


def printed_rates(report: Report) -> list[PrintedPair]:
    """Of each cell with a printed rate the reading that is nearest."""
    found = []
    for cell in report.cells:
        if cell.verdict is None or cell.printed is None or not _is_number(cell.printed.asr):
            continue
        printed = float(cell.printed.asr)
        words = decisive({n: (cell.asr[n].value, w) for n, w in cell.verdict.asr.items()})
        pairs = [
            pair
            for name, word in words.items()
            if (pair := _pair(_label(report, cell), printed, cell.asr[name], word)) is not None
        ]
        if pairs:
            found.append(min(pairs, key=lambda pair: abs(pair.ours - pair.printed)))
    return found


def printed_accuracies(report: Report) -> list[PrintedPair]:
    """Of each training with a printed accuracy."""
    pairs = [
        _pair(_label(report, entry), float(entry.printed_accuracy), entry.accuracy, entry.verdict)
        for entry in report.costs
        if entry.printed_accuracy is not None and _is_number(entry.printed_accuracy)
    ]
    return [pair for pair in pairs if pair is not None]


def _label(report: Report, entry: ReportCell | CostEntry) -> str:
    """Data set, row, variant, and who attacks."""
    known = report.datasets.get(entry.dataset)
    title = entry.dataset if known is None else known.title.split(",")[0]
    words = ", ".join(filter(None, (title, entry.label, entry.variant)))
    return f"{words} ({entry.knowledge})" if isinstance(entry, ReportCell) else words


def _pair(label: str, printed: float, ours: Interval, verdict: str) -> PrintedPair | None:
    if ours.value is None:
        return None
    low = ours.value if ours.low is None else ours.low
    high = ours.value if ours.high is None else ours.high
    return PrintedPair(
        label=label, printed=printed, ours=ours.value, low=low, high=high, verdict=verdict
    )


def _is_number(text: str) -> bool:
    try:
        return isfinite(float(text))
    except ValueError:
        return False


_NO_VERDICT = "no verdict: fewer rounds or other data"
_VERDICTS: Mapping[str, dict[str, Any]] = {
    "reproduced": {"color": "#009E73", "marker": "o", "markersize": 4.5},
    "not reproduced": {"color": "#D55E00", "marker": "X", "markersize": 5},
    "inconclusive": {"color": GRAY, "marker": "s", "markersize": 4},
    _NO_VERDICT: {"color": GRAY, "marker": "D", "markersize": 4, "markerfacecolor": "white"},
}  # fmt: skip


def _diagonal(axes: Axes, points: Sequence[PrintedPair], first: int, *, listed: bool) -> None:
    """first: number of the first point. listed: numbers are written."""
    axes.plot([0, 1], [0, 1], color="#b0b7c3", linewidth=1, zorder=0)
    for group, look in _VERDICTS.items():
        some = [point for point in points if point.group == group]
        if some:
            ends = [[p.ours - p.low for p in some], [p.high - p.ours for p in some]]
            axes.errorbar(
                [p.printed for p in some], [p.ours for p in some], yerr=ends, linestyle="",
                elinewidth=0.8, alpha=0.85, **look,
            )  # fmt: skip
    places: dict[tuple[float, float], list[int]] = {}
    for number, point in enumerate(points if listed else (), start=first):
        places.setdefault((point.printed, point.ours), []).append(number)
    for (printed, ours), numbers in places.items():
        right, up = (1 if printed < 0.5 else -1), (1 if ours < 0.5 else -1)
        axes.annotate(
            ",".join(map(str, numbers)), (printed, ours), (right, 5 * up), fontsize=5.5,
            textcoords="offset points", ha="left" if right > 0 else "right",
            va="bottom" if up > 0 else "top", rotation=90,
        )  # fmt: skip
    axes.set_xlim(*_SHARES)
    axes.set_ylim(*_SHARES)


# ------------------------------------------------------------------------------ shared

_SHARES = (-0.03, 1.03)
# Of no method: gray, and in dashes that none has.
_PRINT: dict[str, Any] = {
    "color": "#4d4d4d",
    "linewidth": 1.3,
    "linestyle": (0, (6, 2)),
    "zorder": 0,
}
_TRIVIAL: dict[str, Any] = {"color": GRAY, "linewidth": 0.8, "linestyle": ":", "zorder": 0}
_LIMIT: dict[str, Any] = {"color": GRAY, "linewidth": 1.0, "linestyle": (0, (2, 1)), "zorder": 1}
_LISTED: dict[str, Any] = {"linestyle": "", "marker": ""}
_BESIDE = (
    Name(label=f"{PAPER:.2f}, the papers' threshold", look=_PRINT),
    Name(label="mean image, start image", look=_TRIVIAL),
)


def _look(number: int) -> dict[str, Any]:
    return look_of(number) | {"markevery": 0.13}


def _names(outcomes: Sequence[Outcome]) -> list[Name]:
    return [Name(label=one.label, look=look_of(number)) for number, one in enumerate(outcomes)]
