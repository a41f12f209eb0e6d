"""Outcomes of attacks as pictures: success against threshold, against effort, and beside print.

Every row of a suite stands for its worst attacker (see `answer`). Lines differ in mark and dash as
well as in colour, so that a gray print can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from leakbench.described import PlannedCell
from leakbench.errors import LeakbenchError
from leakbench.records import Key, Record
from leakbench.report.answer import answer
from leakbench.report.content import Report
from leakbench.report.figures import (
    DPI,
    LOOKS,
    check_suffix,
    plain_axes,
    raw_names,
    text_at,
    written,
)
from leakbench.report.measured import LabelledRule, Trials, collect, mean_baselines, rules_of
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

_DASHES = ("-", "--", "-.", ":")
_LEAST = 1e-12


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


def draw_threshold(found: Outcomes, suffix: str = ".png") -> bytes:
    """Share of victims whose error is below each threshold, in every reading of "MSE".

    Raises:
        LeakbenchError: another suffix.
    """
    check_suffix(suffix)

    def panels(outcomes: Sequence[Outcome]) -> list[Callable[[Axes], None]]:
        def panel(name: str, words: str) -> Callable[[Axes], None]:
            return lambda axes: _thresholds(axes, outcomes, name, words)

        return [panel(name, words) for name, words in READINGS]

    return written(lambda: _rows(found, panels), suffix)


def shares_below(errors: Sequence[float | None]) -> tuple[list[float], list[float]]:
    """Errors in rising order, and the share of all trials at or below each; what is not finite is
    above all."""
    known = sorted(e for e in errors if e is not None and isfinite(e))
    return known, [(place + 1) / len(errors) for place in range(len(known))]


def _thresholds(axes: Axes, outcomes: Sequence[Outcome], name: str, words: str) -> None:
    highest = PAPER
    for look, one in enumerate(outcomes):
        entering = one.trials.all_entering
        errors, shares = shares_below([record.get(name) for record in entering])
        if not errors:
            continue
        drawn = [max(error, _LEAST) for error in errors]
        highest = max(highest, drawn[-1])
        axes.step([_LEAST, *drawn, inf], [0, *shares, shares[-1]], where="post", **_look(look, one))
    axes.set_xscale("log")
    axes.set_xlim(_lowest(outcomes, name), highest * 3)
    axes.axvline(PAPER, color="#D55E00", linewidth=1, zorder=0)
    axes.text(PAPER, 1.04, ".70", fontsize=6.5, color="#B34700", ha="center")
    if name == "mse_clamped":
        baselines = mean_baselines(outcomes[0].trials.all_judged)
        for text, value in (
            ("mean image", baselines.mean_image), ("start image", baselines.start_image),
        ):  # fmt: skip
            if value is None:
                continue
            axes.axvline(value, color="#7A7A7A", linewidth=0.8, linestyle=":", zorder=0)
            axes.text(value, 0.5, text, fontsize=6, color="#5a5a5a", rotation=90, va="center",
                      ha="right")  # fmt: skip
    _finish(axes, words, "threshold", "share of victims below")


def _lowest(outcomes: Sequence[Outcome], name: str) -> float:
    values = [
        value for one in outcomes for record in one.trials.all_judged
        if (value := record.get(name)) is not None and isfinite(value)
    ]  # fmt: skip
    return max(min(values, default=1.0), _LEAST) / 3


# ------------------------------------------------------------------------------ effort


def draw_effort(plan: Plan, found: Outcomes, suffix: str = ".png") -> bytes:
    """Share of victims recovered within so many gradient evaluations, with 95 % bands.

    Whoever never succeeds counts to the end, so that the Kaplan-Meier curve is a share of all
    trials, and its band Wilson's.

    Raises:
        LeakbenchError: another suffix, or no rule that can be followed.
    """
    check_suffix(suffix)
    rules = [rule for rule in rules_of(plan) if rule.stepwise and rule.judged.needs_recovery]
    rules = rules or [rule for rule in rules_of(plan) if rule.stepwise]
    if not rules:
        raise LeakbenchError("no success rule of the suite can be followed step by step")

    def panels(outcomes: Sequence[Outcome]) -> list[Callable[[Axes], None]]:
        return [lambda axes: _effort(axes, outcomes, rules[0])]

    return written(lambda: _rows(found, panels, width=5.2), suffix)


def _effort(axes: Axes, outcomes: Sequence[Outcome], rule: LabelledRule) -> None:
    for look, one in enumerate(outcomes):
        records = one.trials.all_entering
        first = sorted(
            spent for record in records if (spent := rule.first(record, "evaluations")) is not None
        )
        end = max([*first, *(record.get("evaluations") or 0 for record in records)], default=1)
        times = [0, *first, end]
        counts = [0, *range(1, len(first) + 1), len(first)]
        style = _look(look, one)
        axes.step(times, [c / len(records) for c in counts], where="post", **style)
        low, high = zip(*(wilson(c, len(records)) for c in counts), strict=True)
        if first:
            axes.fill_between(times, low, high, step="post", alpha=0.12, color=style["color"])
    axes.set_xscale("symlog", linthresh=10)
    axes.set_xlim(left=0)
    _finish(axes, f"recovered by an iterate ({rule.label})", "gradient evaluations",
            "share of victims")  # fmt: skip


# ------------------------------------------------------------------------------ beside print


def draw_printed(report: Report, suffix: str = ".png") -> bytes:
    """Printed success rates and accuracies against ours, with intervals and the diagonal.

    Of the paper's readings the nearest one is drawn: off the diagonal is what came out under none.

    Raises:
        LeakbenchError: another suffix, or nothing printed beside a result.
    """
    check_suffix(suffix)
    rates, shares = printed_rates(report), printed_accuracies(report)
    if not rates and not shares:
        raise LeakbenchError("nothing is printed beside a result of this run")
    drawn = [("success rate", rates)] * bool(rates) + [("accuracy", shares)] * bool(shares)

    def figure() -> Figure:
        page = Figure(figsize=(3.6 * len(drawn), 3.7), dpi=DPI)
        page.patch.set_facecolor("white")
        for place, (words, points) in enumerate(drawn):
            axes = page.add_axes(((place + 0.16) / len(drawn), 0.13, 0.78 / len(drawn), 0.76))
            _diagonal(axes, words, points)
        return page

    return written(figure, suffix)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedPair:
    """A printed number and ours; low, high: ends of its interval."""

    printed: float
    ours: float
    low: float
    high: float
    verdict: str


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
            if (pair := _pair(printed, cell.asr[name], word)) is not None
        ]
        if pairs:
            found.append(min(pairs, key=lambda pair: abs(pair.ours - pair.printed)))
    return found


def printed_accuracies(report: Report) -> list[PrintedPair]:
    """Of each training with a printed accuracy."""
    pairs = [
        _pair(float(entry.printed_accuracy), entry.accuracy, entry.verdict)
        for entry in report.costs
        if entry.printed_accuracy is not None and _is_number(entry.printed_accuracy)
    ]
    return [pair for pair in pairs if pair is not None]


def _pair(printed: float, ours: Interval, verdict: str) -> PrintedPair | None:
    if ours.value is None:
        return None
    low = ours.value if ours.low is None else ours.low
    high = ours.value if ours.high is None else ours.high
    return PrintedPair(printed=printed, ours=ours.value, low=low, high=high, verdict=verdict)


def _is_number(text: str) -> bool:
    try:
        return isfinite(float(text))
    except ValueError:
        return False


_VERDICTS = {
    "reproduced": ("#009E73", "o"), "not reproduced": ("#D55E00", "X"),
    "inconclusive": ("#7A7A7A", "s"),
}  # fmt: skip


def _diagonal(axes: Axes, words: str, points: Sequence[PrintedPair]) -> None:
    axes.plot([0, 1], [0, 1], color="#b0b7c3", linewidth=1, zorder=0)
    for verdict, (colour, mark) in _VERDICTS.items():
        some = [point for point in points if point.verdict == verdict]
        if some:
            ends = [[p.ours - p.low for p in some], [p.high - p.ours for p in some]]
            axes.errorbar(
                [p.printed for p in some], [p.ours for p in some], yerr=ends, fmt=mark,
                color=colour, markersize=5, elinewidth=0.8, label=f"{verdict} ({len(some)})",
                alpha=0.85,
            )  # fmt: skip
    axes.set_xlim(-0.03, 1.03)
    _finish(axes, words, "printed", "measured")
    axes.legend(fontsize=7, frameon=False, loc="best")


# ------------------------------------------------------------------------------ shared


def _look(number: int, one: Outcome) -> dict[str, Any]:
    colour, mark = LOOKS[number % len(LOOKS)]
    dash = _DASHES[number // len(LOOKS) % len(_DASHES)]
    return {
        "color": colour, "marker": mark, "markersize": 3.2, "markevery": 0.13, "linewidth": 1.2,
        "linestyle": dash, "label": one.label,
    }  # fmt: skip


_HEIGHT, _LEGEND = 2.7, 2.9  # inches of a panel, and of the names right of the last


def _rows(
    found: Outcomes,
    panels: Callable[[Sequence[Outcome]], Sequence[Callable[[Axes], None]]],
    width: float = 3.3,
) -> Figure:
    """A row of panels a data set, the names of its lines right of them."""
    rows = [(title, outcomes, panels(outcomes)) for title, outcomes in found.items()]
    heights = [max(_HEIGHT, 0.5 + 0.17 * len(outcomes)) + 0.35 for _, outcomes, _ in rows]
    across, down = width * len(rows[0][2]) + _LEGEND, sum(heights)
    page = Figure(figsize=(across, down), dpi=DPI)
    page.patch.set_facecolor("white")
    top = down
    for (title, _, drawn), height in zip(rows, heights, strict=True):
        text_at(page, 0.12 / across, (top - 0.06) / down, title, size=10, weight="bold")
        for place, draw in enumerate(drawn):
            axes = page.add_axes(
                ((place * width + 0.5) / across, (top - _HEIGHT + 0.1) / down,
                 (width - 0.65) / across, (_HEIGHT - 0.75) / down)
            )  # fmt: skip
            draw(axes)
        legend = axes.legend(
            fontsize=7, loc="upper left", bbox_to_anchor=(1.03, 1), frameon=False, borderaxespad=0,
            handlelength=3.2,
        )  # fmt: skip
        raw_names(legend)
        top -= height
    return page


def _finish(axes: Axes, title: str, across: str, up: str) -> None:
    axes.set_title(title, fontsize=8, loc="left", pad=9)
    axes.set_xlabel(across, fontsize=7.5, labelpad=1)
    axes.set_ylabel(up, fontsize=7.5, labelpad=1)
    axes.set_ylim(-0.03, 1.03)
    plain_axes(axes)
