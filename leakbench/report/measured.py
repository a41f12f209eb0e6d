"""Records of a cell's trials, and what is measured on them.

What counts: a trial enters a rate unless it was skipped (no data) or has no record yet. Trials
that ended in an error, out of memory or out of time are failures of the attack. Rates judge what
the attack returned; effort to success looks at every iterate with the truth at hand (an oracle).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from math import inf, isfinite, nan
from statistics import fmean
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from leakbench.described import PlannedCell
from leakbench.metrics.rules import BEST_BASELINE, TRIVIAL, SuccessRule, make_rule, succeeded
from leakbench.records import Key, Record
from leakbench.report.content import Baselines, Effort, FeaturesEntry, MemberEntry
from leakbench.spec import JUDGED, Cell, Plan
from leakbench.statistics import Interval, kaplan_meier_median, rate_interval

Spent = Literal["steps", "evaluations"]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


# ------------------------------------------------------------------------------ columns


class Table:
    """Records field by field: a column is taken out of them once, however often it is asked for."""

    def __init__(self, records: Sequence[Mapping[str, Any]]) -> None:
        self.records = records
        self._columns: dict[str, Floats] = {}
        self._inner: dict[str, Table] = {}

    @cached_property
    def _values(self) -> dict[str, tuple[Any, ...]]:
        """All fields at once, where all records have the same, which takes as long as three."""
        names = {*map(tuple, self.records)}
        if len(names) != 1:
            return {}
        columns = zip(*(each.values() for each in self.records), strict=True)
        return dict(zip(*names, columns, strict=True))

    def values(self, name: str) -> Sequence[Any]:
        """A field of each record; None where it has none."""
        known = self._values.get(name)
        return [each.get(name) for each in self.records] if known is None else known

    def column(self, name: str) -> Floats:
        """A number of each record, (n,); NaN where it has none."""
        if name not in self._columns:
            self._columns[name] = np.array(self.values(name), dtype=np.float64)
        return self._columns[name]

    def inner(self, name: str) -> Table:
        """The tables that are a field of each record; empty ones where it has none."""
        if name not in self._inner:
            self._inner[name] = Table([value or {} for value in self.values(name)])
        return self._inner[name]


# ------------------------------------------------------------------------------ rules


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledRule:
    """A success rule with what a report says about it."""

    judged: SuccessRule
    label: str
    paper: bool

    @property
    def name(self) -> str:
        """Its name in suites and records."""
        return self.judged.name

    @property
    def stepwise(self) -> bool:
        """Whether records hold the first step at which it was met."""
        return self.judged.stepwise

    @property
    def error(self) -> str:
        """Field of a record that says how far off a success is; printed errors stand beside it."""
        return self.judged.error

    def met(self, record: Record) -> bool:
        """Whether the returned iterate of a trial meets it; False where nothing was returned."""
        return succeeded(self.judged, record)

    def met_by_all(self, records: Table) -> Bools:
        """`met` of each of these, (n,)."""
        judged = np.array([status in JUDGED for status in records.values("status")], dtype=np.bool_)
        reads = self.judged.reads
        numbers = {name: records.column(name) for name in reads if name != BEST_BASELINE}
        if BEST_BASELINE in reads:
            trivial = [records.inner("baselines").column(name) for name in TRIVIAL]
            numbers[BEST_BASELINE] = np.fmin.reduce(trivial)  # the least of those that are there
        return judged & self.judged.judge_all(numbers)

    def first(self, record: Record, effort: Spent = "steps") -> int | None:
        """Steps or evaluations done when an iterate first met it; 0 steps is the start."""
        kind = "first_step" if effort == "steps" else "first_evaluations"
        steps: int | None = (record.get(kind) or {}).get(self.judged.name)
        return steps

    def firsts(self, records: Table, effort: Spent = "steps") -> Floats:
        """`first` of each of these, (n,); NaN where none met it."""
        kind = "first_step" if effort == "steps" else "first_evaluations"
        return records.inner(kind).column(self.name)


def rules_of(plan: Plan) -> tuple[LabelledRule, ...]:
    """The success rules of a plan, in the order of the suite file."""
    return tuple(
        LabelledRule(judged=make_rule(**rule.judged()), label=rule.label, paper=rule.paper)
        for rule in plan.rules
    )


# ------------------------------------------------------------------------------ trials


@dataclass(frozen=True, kw_only=True)
class Trials:
    """All trials of one cell: `entering` (a rate) and `judged` hold one list a network.

    ends: how each planned trial ended, "missing" without a record. reason: why the cell was
    skipped, or the commonest reason of a trial that is not ok.
    """

    cell: Cell
    ends: Counter[str]
    reason: str
    entering: list[list[Record]]
    judged: list[list[Record]]

    @cached_property
    def all_entering(self) -> list[Record]:
        """Of all networks."""
        return [record for network in self.entering for record in network]

    @cached_property
    def all_judged(self) -> list[Record]:
        """Of all networks."""
        return [record for network in self.judged for record in network]

    @cached_property
    def entering_table(self) -> Table:
        """`all_entering` field by field."""
        return Table(self.all_entering)

    @cached_property
    def judged_table(self) -> Table:
        """`all_judged` field by field."""
        return Table(self.all_judged) if self.crashed else self.entering_table

    @property
    def crashed(self) -> int:
        """Trials that came to nothing: oom, timeout, error."""
        return len(self.all_entering) - len(self.all_judged)

    @property
    def networks(self) -> int:
        """Networks with at least one trial."""
        return sum(1 for network in self.entering if network)

    def rate(self, rule: LabelledRule) -> Interval:
        """Rate over planned trials; crashed ones are failures, but might have been anything.

        The interval reaches up to where it would with every crashed trial a success: a defense
        that makes the attack crash has not been shown to protect. None where no trial was judged.
        """
        if not self.all_judged:
            return Interval(None, None, None)
        low = self.success_interval(rule)
        if not self.crashed:
            return low
        return Interval(low.value, low.low, self.success_interval(rule, crashed=True).high)

    def success_interval(
        self, rule: LabelledRule, *, level: float = 0.95, crashed: bool = False
    ) -> Interval:
        """Success rate with its interval; a trial that came to nothing counts as `crashed` says.

        Images of one batch stand or fall together.
        """
        outcomes = self.met(rule)
        if crashed:
            outcomes = [
                [met or record["status"] not in JUDGED for record, met in zip(*pair, strict=True)]
                for pair in zip(self.entering, outcomes, strict=True)
            ]
        return rate_interval(outcomes, level=level, groups=self._batches)

    @cached_property
    def _batches(self) -> list[list[int]] | None:
        """Of each trial the batch that it was in; None where each was in one of its own."""
        batches = [[record["batch"] for record in network] for network in self.entering]
        alone = all(len(set(network)) == len(network) for network in batches)
        return None if alone else batches

    @cached_property
    def _met(self) -> dict[str, list[list[bool]]]:
        return {}

    def met(self, rule: LabelledRule) -> list[list[bool]]:
        """Whether each trial that is entering meets the rule, a list a network; judged once."""
        if rule.name not in self._met:
            met = iter(rule.met_by_all(self.entering_table).tolist())
            self._met[rule.name] = [[next(met) for _ in network] for network in self.entering]
        return self._met[rule.name]

    def successes(self, rule: LabelledRule) -> list[list[Record]]:
        """Judged trials that meet the rule, a list a network."""
        return [
            [record for record, met in zip(*pair, strict=True) if met]
            for pair in zip(self.entering, self.met(rule), strict=True)
        ]

    def effort_to_success(self, rule: LabelledRule, effort: Spent) -> Effort:
        """Steps or evaluations to the first iterate that passes, of all trials and of successes.

        An attack that ended by itself (converged, nan) or crashed will never succeed: it is
        censored at the end of the longest trial, not where it stopped, where Kaplan-Meier would
        assume that it might have done as well as the others.
        """
        first = rule.firsts(self.entering_table, effort)
        met = ~np.isnan(first)
        found = first[met]
        end = max(self._longest[effort], found.max(initial=0))
        return Effort(
            median=kaplan_meier_median(np.where(met, first, end).tolist(), met.tolist()),
            mean_of_successes=fmean(found.tolist()) if found.size else None,
        )

    @cached_property
    def _longest(self) -> dict[Spent, int]:
        """Effort of the trial that took most; 0 without any."""
        efforts: tuple[Spent, Spent] = ("steps", "evaluations")
        spent = {name: self.entering_table.values(name) for name in efforts}
        return {name: max((each or 0 for each in spent[name]), default=0) for name in efforts}

    def members(self, rules: Sequence[LabelledRule]) -> dict[str, MemberEntry]:
        """Of an attack that is made of others, how each would have done alone."""
        names = dict.fromkeys(name for r in self.all_judged for name in r.get("members") or ())
        found = {}
        for name in names:
            own = [
                [{**record, **(record.get("members") or {}).get(name, {})} for record in network]
                for network in self.entering
            ]
            alone = replace(self, entering=own)
            found[name] = MemberEntry(
                taken=sum(record["member"] == name for record in self.all_judged),
                asr={rule.name: alone.success_interval(rule) for rule in rules},
                evaluations=median_of(alone.entering_table, "evaluations"),
            )
        return found

    def start_passes(self, rule: LabelledRule) -> bool:
        """Whether the start is a success for every victim: then the rate measures nothing."""
        return bool(self.all_judged) and bool((rule.firsts(self.judged_table) == 0).all())

    def flags(self) -> Counter[str]:
        """Warnings about single trials -> how many have them."""
        return Counter(
            chain.from_iterable(some or () for some in self.entering_table.values("flags"))
        )


def collect(planned: PlannedCell, records: Mapping[Key, Record]) -> Trials:
    """Look up every planned trial and count how it ended."""
    ends: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    entering: list[list[Record]] = []
    for identity, victims in zip(planned.identities, planned.victims, strict=True):
        network = []
        for victim in victims:
            record = records.get((identity, victim))
            if record is None:
                ends["skipped" if planned.skip else "missing"] += 1
                continue
            ends[str(record["status"])] += 1
            if record["status"] != "ok" and record.get("reason"):
                reasons[str(record["reason"])] += 1
            if record["status"] != "skipped":
                network.append(record)
        entering.append(network)
    common = reasons.most_common(1)
    return Trials(
        cell=planned.cell,
        ends=ends,
        reason=planned.skip or (common[0][0] if common else ""),
        entering=entering,
        judged=[[r for r in network if r["status"] in JUDGED] for network in entering],
    )


def distinct(trials: Sequence[Trials], dataset: str) -> list[Record]:
    """One record a (network, victim) of a data set: baselines do not depend on the row."""
    found: dict[tuple[int, int], Record] = {}
    for each in trials:
        if each.cell.dataset == dataset:
            for record in each.all_judged:
                found.setdefault((record["network"], record["victim"]), record)
    return list(found.values())


def unmeasured(trials: Sequence[Trials]) -> dict[tuple[str, str], list[str]]:
    """(metric, why it was not measured) -> data sets of which that is so."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for each in trials:
        tables = each.judged_table.values("unmeasured")
        for said in dict.fromkeys(chain.from_iterable((why or {}).items() for why in tables)):
            found.setdefault(said, {})[each.cell.dataset] = None
    return {said: list(datasets) for said, datasets in found.items()}


# ------------------------------------------------------------------------------ summaries


def median_of(records: Table, name: str) -> float | None:
    """Median of a field over the records in which it is finite; None where there is none."""
    return _summary(records.column(name), _median)


def median_of_all(records: Table, name: str) -> float | None:
    """Median of a field with what is not finite as the worst; None where that is the median."""
    values = records.column(name)
    values = np.where(np.isfinite(values), values, inf)
    middle = _median(values) if values.size else nan
    return middle if isfinite(middle) else None


def mean_baselines(records: Table) -> Baselines:
    """Means over records; a baseline that none has is None."""

    def mean(name: str) -> float | None:
        return _summary(records.inner("baselines").column(name), _mean)

    return Baselines(
        start_image=mean("start_image"),
        mean_image=mean("mean_image"),
        class_mean=mean("class_mean"),
        nearest_public=mean("nearest_public"),
    )


def features_of(judged: Table) -> FeaturesEntry | None:
    """How much of the rows is right; None where no record says."""

    def mean(name: str) -> float | None:
        return _summary(judged.column(name), _mean)

    def mean_baseline(name: str) -> float | None:
        return _summary(judged.inner("baselines").column(name), _mean)

    right = mean("features_right")
    if right is None:
        return None
    return FeaturesEntry(
        right=right,
        categories=mean("categories_right"),
        numbers=mean("numbers_right"),
        usual=mean_baseline("mode_features"),
        nearest=mean_baseline("nearest_features"),
        confidence=mean("confidence"),
    )


def label_accuracy(judged: Table) -> float | None:
    """Share of labels that were right, counted batch by batch whatever their order."""
    found = [share for share in judged.values("labels_found") if share is not None]
    return fmean(found) if found else None


def _summary(values: Floats, summarise: Callable[[Floats], float]) -> float | None:
    """`summarise` over the finite ones; None where there is none."""
    finite = values[np.isfinite(values)]
    result = summarise(finite) if finite.size else nan
    return result if isfinite(result) else None


def _median(values: Floats) -> float:
    """As `statistics.median`, to the bit."""
    ordered, half = np.sort(values).tolist(), len(values) // 2
    middle: float = ordered[half]
    return middle if len(ordered) % 2 else (ordered[half - 1] + middle) / 2


def _mean(values: Floats) -> float:
    return fmean(values.tolist())
