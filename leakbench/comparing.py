"""Two runs side by side: what changes, victim by victim.

Both attacked the same victims of the same networks, so that differences are paired: what a victim
is worth by himself cancels, and intervals are those of the differences.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leakbench.described import PlannedCell
from leakbench.errors import LeakbenchError
from leakbench.loading import LoadedRun, loaded
from leakbench.metrics.rules import succeeded
from leakbench.records import Record
from leakbench.report.measured import LabelledRule, rules_of
from leakbench.spec import JUDGED
from leakbench.statistics import Interval, mean_interval

if TYPE_CHECKING:
    import pandas

    from leakbench.report.drawing import Picture, Row, Sheet

METRICS = ("mse_clamped", "ssim", "psnr", "labels_found")
"""Numbers of a trial that are compared beside its successes."""

SHOWN = 8
"""Victims of a gallery where nothing is said."""

_KEYS: tuple[tuple[str, ...], ...] = (
    ("dataset", "row", "knowledge", "attack"),
    ("dataset", "row", "knowledge"),
    ("dataset", "knowledge", "attack"),
    ("dataset", "knowledge"),
    ("dataset",),
)
"""What cells of two runs have in common, where several would do the first that tells them apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One number of a pair of cells.

    Attributes:
        cell: name of the pair, in both runs.
        what: a rule's name (shares of successes) or a metric's (means).
        trials: pairs it is of; left_out: pairs where it is not known or not finite in both.
        before, after: in the first and the second run.
        difference: after - before, with its 95 % interval; no ends for a single pair.
    """

    cell: str
    what: str
    trials: int
    left_out: int
    before: float | None
    after: float | None
    difference: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip:
    """A victim that is a success in one of the runs only."""

    cell: str
    what: str
    network: int
    victim: int
    before: bool
    after: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Compared:
    """What `compare` found.

    Attributes:
        runs: both, the first being "before".
        differences: of every pair of cells, rule by rule and metric by metric.
        flips: victims that are a success in one of the two, in the order of cells.
        only: cells that one run has alone, in words.
    """

    runs: tuple[LoadedRun, LoadedRun]
    differences: tuple[Difference, ...]
    flips: tuple[Flip, ...]
    only: tuple[str, ...]
    pairs: tuple[_Pair, ...]

    def frame(self) -> pandas.DataFrame:
        """One row a difference: cell, what, trials, left_out, before, after, difference, its ends
        (low, high), and whether 0 is outside them (differs)."""
        import pandas

        return pandas.DataFrame([_row(each) for each in self.differences])

    def flipped(self) -> pandas.DataFrame:
        """One row a flip: cell, what, network, victim, before, after."""
        import pandas

        names = ("cell", "what", "network", "victim", "before", "after")
        rows = [{name: getattr(each, name) for name in names} for each in self.flips]
        return pandas.DataFrame(rows, columns=list(names))

    def gallery(self, *, most: int = SHOWN) -> Sheet:
        """Victims that flip by the strict rule, else by any: original, before, after.

        Raises:
            LeakbenchError: none flips.
        """
        from leakbench.report.drawing import Column, blocks_of, sheet_of

        shown = self.telling()
        if not shown:
            raise LeakbenchError(
                f"{self.runs[0].name}, {self.runs[1].name}: no victim flips, so there is nothing "
                "to show"
            )
        names = [run.name for run in self.runs]
        columns = [
            Column(head="", detail="original"),
            *(
                Column(head=name, detail=detail, row=detail, knowledge=detail)
                for name, detail in zip(names, ("before", "after"), strict=True)
            ),
        ]
        rows = list(self.pictured(shown[:most]))
        legend = [
            f"Victims that flip, {len(shown)} in all; the first {len(rows)}.",
            "Blue frame: success. Under each picture: raw MSE / SSIM, clamped to [0, 1].",
        ]
        return sheet_of(blocks_of(columns, rows), legend)

    def telling(self) -> list[Flip]:
        """Flips by the strict rule; where there are none, all."""
        strict = next((rule.name for rule in _rules(self.runs) if rule.judged.needs_recovery), None)
        return [each for each in self.flips if each.what == strict] or list(self.flips)

    def page(self) -> str:
        """All of it as one HTML page that needs nothing from outside."""
        from leakbench.report import compare_page

        return compare_page.to_html(self)

    def pictured(self, flips: Sequence[Flip]) -> Iterator[Row]:
        """A row a flip: original, before, after."""
        from leakbench.report.drawing import Picture, Row
        from leakbench.report.shots import shown
        from leakbench.report.victims import Shelf

        shelves = [Shelf(run.store, []) for run in self.runs]
        pairs = {pair.name: pair for pair in self.pairs}
        for flip in flips:
            records = pairs[flip.cell].both[flip.network, flip.victim]
            truth = [
                shelf.picture(record, "truth")
                for shelf, record in zip(shelves, records, strict=True)
            ]
            original = next((image for image in truth if image is not None), None)
            pictures = [Picture(image=shown(original), caption="MSE / SSIM")]
            for shelf, record, success in zip(
                shelves, records, (flip.before, flip.after), strict=True
            ):
                pictures.append(_picture(shelf, record, success))
            yield Row(
                label=(flip.what, flip.cell, f"network {flip.network}, no. {flip.victim}"),
                pictures=tuple(pictures),
            )

    def __repr__(self) -> str:
        """What a notebook shows."""
        lines = [f"{self.runs[0].name} -> {self.runs[1].name}: {len(self.flips)} flips"]
        for each in self.differences:
            lines.append(f"{each.cell}, {each.what}: {number(each.before)} -> {number(each.after)}"
                         f", difference {said(each.difference)}")  # fmt: skip
        return "\n".join([*lines, *self.only])


def compare(
    run_a: str | os.PathLike[str] | LoadedRun, run_b: str | os.PathLike[str] | LoadedRun
) -> Compared:
    """What changes from run a to run b, on the victims of the networks that both attacked.

    Cells are paired by data set, row, attacker and attack; where runs differ in one of these
    (another attack, another defense), by the others, as long as they tell a run's cells apart.
    Differences are means over networks and victims, with intervals that resample networks, then
    victims; images of one batch are one. Successes are judged by the rules of run a.

    Raises:
        LeakbenchError: no such run; cells or victims that cannot be paired.
    """
    runs = loaded(run_a), loaded(run_b)
    pairs, only = _pairs(runs)
    differences: list[Difference] = []
    flips: list[Flip] = []
    rules = _rules(runs)
    for pair in pairs:
        for rule in rules:
            differences.append(_rate(pair, rule))
            flips += _flips(pair, rule)
        for metric in METRICS:
            found = _metric(pair, metric)
            if found.trials:
                differences.append(found)
    return Compared(
        runs=runs,
        differences=tuple(differences),
        flips=tuple(flips),
        only=tuple(only),
        pairs=tuple(pairs),
    )


# ------------------------------------------------------------------------------ pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """Records of a cell in both runs, by network and victim."""

    name: str
    both: Mapping[tuple[int, int], tuple[Record, Record]]

    def networks(self) -> Iterator[list[tuple[Record, Record]]]:
        for network in sorted({network for network, _ in self.both}):
            yield [pair for (own, _), pair in self.both.items() if own == network]


def _rules(runs: tuple[LoadedRun, LoadedRun]) -> list[LabelledRule]:
    return list(rules_of(runs[0].described.plan))


def _pairs(runs: tuple[LoadedRun, LoadedRun]) -> tuple[list[_Pair], list[str]]:
    cells = [list(run.described.cells) for run in runs]
    for names in _KEYS:
        keyed = [{_key(each, names): each for each in some} for some in cells]
        common = [key for key in keyed[0] if key in keyed[1]]
        told_apart = all(len(own) == len(some) for own, some in zip(keyed, cells, strict=True))
        if common and (told_apart or names == _KEYS[0]):
            break
    else:
        said = "; ".join(
            f"{run.name} has " + ", ".join("/".join(_key(each, _KEYS[0])) for each in some)
            for run, some in zip(runs, cells, strict=True)
        )
        raise LeakbenchError(f"compare: no cell of one run is one of the other: {said}")
    pairs, apart = [], []
    for key in common:
        one, two = (_trials(run, own[key]) for run, own in zip(runs, keyed, strict=True))
        both = {place: (one[place], two[place]) for place in one if place in two}
        if both:
            _require_same_victims(key, both)
            pairs.append(_Pair(name="/".join(key), both=both))
        else:
            apart.append(f"no victim of a network in common: {'/'.join(key)}")
    if not pairs:
        raise LeakbenchError(f"compare: {'; '.join(apart)}")
    only = apart + [
        f"only in {run.name}: {'/'.join(_key(each, _KEYS[0]))}"
        for run, some in zip(runs, cells, strict=True)
        for each in some
        if _key(each, names) not in common
    ]
    return pairs, only


def _key(planned: PlannedCell, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(str(getattr(planned.cell, name)) for name in names)


def _trials(run: LoadedRun, planned: PlannedCell) -> dict[tuple[int, int], Record]:
    """(network, victim) -> record of a cell."""
    found = {}
    for key in planned.trials():
        if key in run.records:
            record = run.records[key]
            found[int(record["network"]), int(record["victim"])] = record
    return found


def _require_same_victims(
    key: tuple[str, ...], both: Mapping[tuple[int, int], tuple[Record, Record]]
) -> None:
    for (_, victim), (one, two) in both.items():
        if (one["source_index"], one["label"]) != (two["source_index"], two["label"]):
            raise LeakbenchError(
                f"compare: {'/'.join(key)}: victim {victim} is another example in the two runs, "
                "whose data differ"
            )


# ------------------------------------------------------------------------------ differences


def _rate(pair: _Pair, rule: LabelledRule) -> Difference:
    def value(record: Record) -> float | None:
        if record["status"] == "skipped":
            return None
        return float(succeeded(rule.judged, record))

    return _difference(pair, rule.name, value)


def _metric(pair: _Pair, name: str) -> Difference:
    def value(record: Record) -> float | None:
        found = record.get(name) if record["status"] in JUDGED else None
        return None if found is None or not math.isfinite(found) else float(found)

    return _difference(pair, name, value)


def _difference(pair: _Pair, what: str, value: Any) -> Difference:
    """Means over the pairs where both are known; a batch counts as its mean."""
    before: list[float] = []
    after: list[float] = []
    networks = []
    for records in pair.networks():
        batches: dict[int, list[float]] = {}
        for one, two in records:
            ends = value(one), value(two)
            if None not in ends:
                before.append(ends[0])
                after.append(ends[1])
                batches.setdefault(int(one["batch"]), []).append(ends[1] - ends[0])
        networks.append([math.fsum(some) / len(some) for some in batches.values()])
    count = len(before)
    return Difference(
        cell=pair.name,
        what=what,
        trials=count,
        left_out=len(pair.both) - count,
        before=math.fsum(before) / count if count else None,
        after=math.fsum(after) / count if count else None,
        difference=mean_interval(networks),
    )


def _flips(pair: _Pair, rule: LabelledRule) -> Iterator[Flip]:
    for (network, victim), records in pair.both.items():
        before, after = (succeeded(rule.judged, record) for record in records)
        if before != after:
            yield Flip(
                cell=pair.name, what=rule.name, network=network, victim=victim, before=before,
                after=after,
            )  # fmt: skip


def _row(each: Difference) -> dict[str, Any]:
    ends = each.difference
    differs = None
    if ends.low is not None and ends.high is not None:
        differs = not ends.low <= 0 <= ends.high
    return {
        "cell": each.cell, "what": each.what, "trials": each.trials, "left_out": each.left_out,
        "before": each.before, "after": each.after, "difference": ends.value, "low": ends.low,
        "high": ends.high, "differs": differs,
    }  # fmt: skip


def said(interval: Interval) -> str:
    """A difference with its ends, signed."""
    if interval.value is None:
        return "-"
    if interval.low is None or interval.high is None:
        return f"{interval.value:+.3g}"
    return f"{interval.value:+.3g} [{interval.low:+.3g}, {interval.high:+.3g}]"


def number(value: float | None) -> str:
    """In three digits; "-" where there is none."""
    return "-" if value is None else f"{value:.3g}"


def _picture(shelf: Any, record: Record, success: bool) -> Picture:
    from leakbench.report.drawing import Picture
    from leakbench.report.shots import shown, under

    if record["status"] not in JUDGED:
        return Picture(image=None, caption=str(record["status"]))
    error = math.inf if record["mse_raw"] is None else record["mse_raw"]
    return Picture(
        image=shown(shelf.picture(record, "inputs")),
        caption=under(error, record["ssim"]),
        success=success,
    )
