"""Attacks on their way: the loss that they see, and the error that they do not.

Each line is a row's worst attacker (see `outcome_figures`): medians over its trials, with the
quartiles as a band. A trial that ended keeps its last number. The error is that of the best iterate
so far, which only who has the original knows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from leakbench.errors import LeakbenchError
from leakbench.records import Record
from leakbench.report.figures import Name, Panel, Row, look_of
from leakbench.report.outcome_figures import Outcome, Outcomes
from leakbench.trial_arrays import MOST_STEPS

Arrays = Callable[[str, str], dict[str, NDArray[Any]]]
"""Reads a file of a run by its name; LeakbenchError where it is not there."""

Floats = NDArray[np.float64]

MOST_TRIALS = 48
"""Of a line, so that a page of many trials opens files for seconds, not minutes."""
_MOST_POINTS = 150
_LEAST = 1e-16
_MARKS = 0.26
"""From mark to mark of a line, in diagonals of the axes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One line. loss: (trials, entries) of the kept traces, one a step unless the attack reports
    less often; error: (trials, steps), the smallest clamped squared error so far. Trials that ended
    keep their last number; nan where there is none."""

    label: str
    loss: Floats
    error: Floats


def traces_of(found: Outcomes, read: Arrays) -> dict[str, list[Trace]]:
    """Title of a data set -> its lines, of trials whose arrays are there.

    Raises:
        LeakbenchError: no trial kept any.
    """
    files: dict[str, dict[str, NDArray[Any]]] = {}

    def kept(name: str, digest: str) -> dict[str, NDArray[Any]]:
        if name not in files:
            arrays = read(name, digest)
            files[name] = {n: arrays[n] for n in _WANTED if n in arrays}
        return files[name]

    traces = {
        title: [trace for one in outcomes if (trace := _trace(one, kept)) is not None]
        for title, outcomes in found.items()
    }
    traces = {title: some for title, some in traces.items() if some}
    if not traces:
        raise LeakbenchError(
            "no trial kept its arrays: traces are drawn where the run was made, not from a copy of "
            "its records"
        )
    return traces


_WANTED = ("trace", "clamped_lengths", "clamped_steps", "clamped_errors")


def _trace(one: Outcome, kept: Arrays) -> Trace | None:
    losses, errors = [], []
    for record in one.trials.all_judged[:MOST_TRIALS]:
        place = (record.get("host") or {}).get("arrays")
        if place is None:
            continue
        try:
            arrays = kept(place["file"], place.get("digest", ""))
        except LeakbenchError:  # not copied with the records
            continue
        row = int(place["row"])
        if row < len(arrays.get("trace", ())):
            losses.append(np.asarray(arrays["trace"][row], dtype=np.float64))
        if row < len(arrays.get("clamped_lengths", ())):
            errors.append(descent(record, arrays, row))
    if not any(map(len, losses)) and not errors:
        return None
    return Trace(label=one.label, loss=_stacked(losses), error=_stacked(errors))


def descent(record: Record, arrays: Mapping[str, NDArray[Any]], row: int) -> Floats:
    """The smallest error so far after 0, 1, ... steps of a trial."""
    lengths = arrays["clamped_lengths"]
    first = int(lengths[:row].sum())
    own = slice(first, first + int(lengths[row]))
    steps = arrays["clamped_steps"][own]
    spent = min(int(record.get("steps") or 0), MOST_STEPS)
    last = max(spent, int(steps.max(initial=0)))
    found = np.full(last + 1, math.nan)
    found[steps] = arrays["clamped_errors"][own]
    return _held(found)


def _held(values: Floats) -> Floats:
    """Numbers that are nan replaced by the last one before."""
    known = np.where(np.isnan(values), 0, np.arange(len(values)))
    return values[np.maximum.accumulate(known)] if len(values) else values


def _stacked(rows: Sequence[Floats]) -> Floats:
    longest = max(map(len, rows), default=0)
    whole = np.full((len(rows), longest), math.nan)
    for place, row in enumerate(rows):
        whole[place, : len(row)] = row
        whole[place] = _held(whole[place])
    return whole


def quartiles(values: Floats) -> tuple[Floats, Floats, Floats]:
    """Quartiles over the trials (first axis), each a number of a trial; nan is above all."""
    ordered = np.sort(np.where(np.isnan(values), math.inf, values), axis=0)
    last = len(ordered) - 1
    low, middle, high = (ordered[math.floor(q * last + 0.5)] for q in (0.25, 0.5, 0.75))
    return low, middle, high


# ------------------------------------------------------------------------------ drawing


def traces_rows(found: Outcomes, read: Arrays) -> list[Row]:
    """A row a data set: loss, and error.

    Raises:
        LeakbenchError: see `traces_of`.
    """

    def panel(head: str, values: Sequence[Floats], most: int) -> Panel:
        return Panel(
            head=head, across="steps", up="", draw=lambda axes: _draw(axes, values, most),
            whole=True,
        )  # fmt: skip

    return [
        Row(
            title=title,
            panels=[
                panel("loss that the attack sees", [trace.loss for trace in some], _most(some)),
                panel(
                    "squared error of the best step so far",
                    [trace.error for trace in some],
                    _most(some),
                ),
            ],
            names=[
                Name(label=trace.label, look=look_of(number)) for number, trace in enumerate(some)
            ],
        )
        for title, some in traces_of(found, read).items()
    ]


def _most(some: Sequence[Trace]) -> int:
    """Steps of the longest line: to there all are drawn."""
    return max(2, *(len(each.T) for one in some for each in (one.loss, one.error))) - 1


def _draw(axes: Axes, values: Sequence[Floats], most: int) -> None:
    drawn = []
    for number, each in enumerate(values):
        if not each.size:
            continue
        ended = ((0, 0), (0, most + 1 - each.shape[1]))
        low, middle, high = quartiles(np.pad(each, ended, mode="edge"))
        steps = _places(len(middle))
        shown = np.isfinite(middle[steps]) & (middle[steps] > 0)
        # Each begins its marks elsewhere: of equal lines the last would hide all others.
        start = _MARKS * number / len(values)
        look = look_of(number) | {"markevery": (start, _MARKS)}
        axes.plot(steps[shown], np.maximum(middle[steps][shown], _LEAST), **look)
        axes.fill_between(
            steps[shown], np.clip(low[steps][shown], _LEAST, 1e300),
            np.clip(high[steps][shown], _LEAST, 1e300), alpha=0.12, color=look["color"],
            linewidth=0,
        )  # fmt: skip
        drawn += [*middle[steps][shown]]
    axes.set_xscale("symlog", linthresh=10)
    axes.set_xlim(0, most)
    axes.set_yscale("log")
    if drawn:  # bands may reach far above
        axes.set_ylim(max(min(drawn), _LEAST) / 3, max(drawn) * 3)


def _places(length: int) -> NDArray[np.int64]:
    """Steps that are drawn: all of few, then fewer and fewer."""
    return np.unique(np.geomspace(1, length, min(length, _MOST_POINTS)).round().astype(int)) - 1
