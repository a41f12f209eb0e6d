"""Records -> the numbers of a report: one plain dictionary, the stable JSON interface.

Everything a table, a page or another program may want is computed here and only here; the other
modules of this package arrange it. All numbers are finite or None, so the result is strict JSON.

What counts: a trial enters a rate unless it was skipped (no data) or has no record yet. Trials
that ended in an error, out of memory or out of time are failures of the attack. Rates judge what
the attack returned; `steps_to_success` looks at every iterate with the truth at hand (an oracle).
"""

from __future__ import annotations

import functools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import inf, isfinite, nan
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from leakbench import spec
from leakbench.data.catalog import look_up
from leakbench.errors import LeakbenchError
from leakbench.metrics.rules import SuccessRule, make_rule, succeeded
from leakbench.privacy.ceiling import reconstruction_ceiling
from leakbench.records import Key, Record
from leakbench.report import costs
from leakbench.spec import JUDGED, Cell, Plan, Printed
from leakbench.statistics import (
    Interval,
    Verdict,
    kaplan_meier_median,
    mean_interval,
    outcome_verdict,
    rate_interval,
    rate_verdict,
    ratio_verdict,
)

if TYPE_CHECKING:
    from leakbench.described import PlannedCell, PlannedTraining

Report = dict[str, Any]

FEW_NETWORKS = 3
"""Below this many networks the intervals of `statistics` are known to be too narrow."""

BASELINES = ("start_image", "mean_image", "class_mean", "nearest_public")

# What two rows must share in every trial to be called the same.
_MEASURED = (
    *("status", "steps", "evaluations", "loss", "loss_start", "loss_true", "label_guess"),
    *("mse_raw", "mse_clamped", "distance_raw", "distance_clamped", "psnr", "ssim", "rank"),
    *("first_step", "first_evaluations"),
)

COUNTS = ("ok", "nan", "diverged", "oom", "timeout", "skipped", "error", "missing")
"""How planned trials ended; missing: no record, and no reason why not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
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
    def number(self) -> str:
        """Field of a record that the rule compares with its threshold."""
        return self.judged.error


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trials:
    """All trials of one cell: `entering` and `judged` hold one list a network."""

    cell: Cell
    counts: Counter[str]
    reason: str
    entering: list[list[Record]]
    judged: list[list[Record]]

    @property
    def all_entering(self) -> list[Record]:
        return [record for network in self.entering for record in network]

    @property
    def all_judged(self) -> list[Record]:
        return [record for network in self.judged for record in network]

    @property
    def batches(self) -> list[list[int]]:
        """Which gradient each image was behind: images of one batch stand or fall together."""
        return [[record["batch"] for record in network] for network in self.entering]

    @property
    def crashed(self) -> int:
        """Trials that came to nothing: oom, timeout, error."""
        return len(self.all_entering) - len(self.all_judged)

    @property
    def networks(self) -> int:
        """Networks with at least one trial."""
        return sum(1 for network in self.entering if network)


def build(
    plan: Plan,
    planned: Sequence[PlannedCell],
    records: Mapping[Key, Record],
    manifest: Mapping[str, Any],
    trained: Sequence[PlannedTraining] = (),
) -> Report:
    """The whole report of a run.

    Args:
        plan: The suite as resolved now; decides rules, printed numbers and notes.
        planned: Its cells with their identities; records of other identities are not looked at.
        records: `Run.records()`.
        manifest: `Run.manifest()`, passed on.
        trained: The suite's utility cells with their identities.

    Returns:
        A dictionary of plain values, strict JSON. Lists of cells and notes keep the order of the
        suite file.

    Raises:
        LeakbenchError: A printed number that cannot be what it says (a rate above 1).
    """
    rules = rules_of(plan)
    trials = [_collect(each, records) for each in planned]
    same = _same_rows(trials)
    attacked = {
        (each.cell.dataset, each.cell.row)
        for each in trials
        if each.cell.knowledge == "adaptive" and each.all_entering
    }
    cells = []
    for each, item in zip(trials, planned, strict=True):
        row = (each.cell.dataset, each.cell.row)
        cells.append(
            _cell(
                each,
                rules,
                plan,
                ceiling=_ceiling(item),
                guarantee=item.guarantee,
                same_as=same.get((*row, each.cell.knowledge)),
                adaptive_too=row in attacked,
            )
        )
    datasets = list(dict.fromkeys(cell["dataset"] for cell in cells))
    return {
        "suite": plan.name,
        "profile": plan.profile,
        "title": plan.title,
        "source": plan.source,
        "planned": sum(cell["planned"] for cell in cells),
        "networks": plan.networks,
        "victims": plan.victims,
        "rules": [
            {"name": rule.name, "label": rule.label, "kind": rule.judged.kind, "paper": rule.paper}
            for rule in rules
        ],
        "datasets": {name: {"title": look_up(name).title} for name in datasets},
        "attackers": _attackers(plan),
        "cells": cells,
        "costs": costs.build(plan, trained, records),
        "notes": [
            *_suite_notes(plan, cells),
            *_computed_notes(cells, rules),
            *_prior_notes(planned),
        ],
        "baselines": {name: _baselines(_distinct(trials, name)) for name in datasets},
        "manifest": dict(manifest),
    }


def rules_of(plan: Plan) -> list[Rule]:
    """The success rules of a plan, in the order of the suite file."""
    return [
        Rule(judged=success_rule(rule), label=rule.label, paper=rule.paper) for rule in plan.rules
    ]


def success_rule(rule: spec.Rule) -> SuccessRule:
    """What a suite says about a rule, as the harness applies it."""
    return make_rule(**rule.judged())


# ------------------------------------------------------------------------------ trials


def _collect(planned: PlannedCell, records: Mapping[Key, Record]) -> _Trials:
    """Look up every planned trial and count how it ended."""
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    entering: list[list[Record]] = []
    for identity, victims in zip(planned.identities, planned.victims, strict=True):
        network = []
        for victim in victims:
            record = records.get((identity, victim))
            if record is None:
                counts["skipped" if planned.skip else "missing"] += 1
                continue
            counts[str(record["status"])] += 1
            if record["status"] != "ok" and record.get("reason"):
                reasons[str(record["reason"])] += 1
            if record["status"] != "skipped":
                network.append(record)
        entering.append(network)
    common = reasons.most_common(1)
    return _Trials(
        cell=planned.cell,
        counts=counts,
        reason=planned.skip or (common[0][0] if common else ""),
        entering=entering,
        judged=[[r for r in network if r["status"] in JUDGED] for network in entering],
    )


def _same_rows(trials: Sequence[_Trials]) -> dict[tuple[str, str, str], str]:
    """(data set, row, knowledge) -> an earlier row with the same numbers in every trial."""
    first: dict[tuple[str, str, str], str] = {}
    found: dict[tuple[str, str, str], str] = {}
    for each in trials:
        if not each.all_judged:
            continue
        cell = each.cell
        numbers = sorted(
            [record["network"], record["victim"], *(record.get(name) for name in _MEASURED)]
            for record in each.all_entering
        )
        signature = json.dumps(numbers, sort_keys=True)
        # Rows of one variant only: two attacks that both succeed are not the same row.
        place = (cell.dataset, f"{cell.variant}/{cell.knowledge}", signature)
        other = first.setdefault(place, cell.row)
        if other != cell.row:
            found[cell.dataset, cell.row, cell.knowledge] = other
    return found


def _attackers(plan: Plan) -> list[dict[str, Any]]:
    """Every attacker once: attack, what it knows and is granted, hyper-parameters."""
    found: dict[str, dict[str, Any]] = {}
    for cell in plan.cells:
        attacker = {
            "variant": cell.variant,
            "attack": cell.attack,
            "knowledge": cell.knowledge,
            "grants": list(cell.grants),
            "parameters": dict(cell.attack_parameters),
        }
        found.setdefault(json.dumps(attacker, sort_keys=True), attacker)
    return list(found.values())


def _distinct(trials: Sequence[_Trials], dataset: str) -> list[Record]:
    """One record a (network, victim) of a data set: baselines do not depend on the row."""
    found: dict[tuple[int, int], Record] = {}
    for each in trials:
        if each.cell.dataset == dataset:
            for record in each.all_judged:
                found.setdefault((record["network"], record["victim"]), record)
    return list(found.values())


# ------------------------------------------------------------------------------ one cell


def _cell(
    trials: _Trials,
    rules: Sequence[Rule],
    plan: Plan,
    *,
    ceiling: float | None,
    guarantee: str,
    same_as: str | None,
    adaptive_too: bool,
) -> dict[str, Any]:
    cell, counts = trials.cell, trials.counts
    judged = trials.all_judged
    printed = plan.printed.get((cell.dataset, cell.row))
    asr = {rule.name: _rate(trials, rule) for rule in rules}
    flags = Counter(name for record in trials.all_entering for name in record.get("flags") or ())
    conditions = {
        "non_adaptive_only": bool(
            cell.knowledge == "naive"
            and trials.all_judged
            and not adaptive_too
            # Where the defense changed nothing, there is nothing to adapt to.
            and flags["defense_noop"] < len(trials.all_entering)
        ),
        "above_ceiling": any(
            _above(asr[rule.name], ceiling) for rule in rules if rule.judged.identifies_first
        ),
        "few_networks": 0 < trials.networks < FEW_NETWORKS,
        f"same_as: {same_as}": same_as is not None,
    }
    return {
        "dataset": cell.dataset,
        "model": cell.model,
        "pretrained": cell.pretraining is not None,
        "accuracy": _median(judged, "accuracy"),
        "row": cell.row,
        "variant": cell.variant,
        "defense": cell.defense_id,
        "label": cell.label,
        "attack": cell.attack,
        "knowledge": cell.knowledge,
        "leak": cell.leak,
        "convention": cell.convention,
        "example_view": cell.example_view,
        "planned": counts.total(),
        **{status: counts[status] for status in COUNTS},
        "reason": trials.reason,
        "networks": trials.networks,
        "asr": {name: interval.as_dict() for name, interval in asr.items()},
        "mse": _summary_of_all([record.get("mse_raw") for record in judged]),
        "mse_clamped": _summary_of_all([record.get("mse_clamped") for record in judged]),
        "ssim": _median(judged, "ssim"),
        "steps": _median(judged, "steps"),
        "evaluations": _median(judged, "evaluations"),
        **{
            f"{effort}_to_success": {
                rule.name: _to_success(trials, rule, effort) for rule in rules if rule.stepwise
            }
            for effort in ("steps", "evaluations")
        },
        "start_passes": [rule.name for rule in rules if _start_passes(judged, rule)],
        "label_accuracy": _label_accuracy(judged),
        "baselines": _baselines(judged),
        "ceiling": ceiling,
        "guarantee": guarantee,
        "printed": {} if printed is None else _as_printed(printed),
        "verdict": (
            _verdict(trials, rules, printed, plan)
            if printed is not None and cell.knowledge == "naive" and not trials.crashed
            else {}
        ),
        "flags": [
            *({"name": name, "count": count} for name, count in sorted(flags.items())),
            *({"name": name, "count": None} for name, holds in conditions.items() if holds),
        ],
    }


def _outcomes(trials: _Trials, rule: Rule, *, crashed: bool = False) -> list[list[bool]]:
    """Success of every trial; one that came to nothing counts as `crashed` says."""
    return [
        [
            succeeded(rule.judged, record) if record["status"] in JUDGED else crashed
            for record in network
        ]
        for network in trials.entering
    ]


def _rate(trials: _Trials, rule: Rule) -> Interval:
    """Rate over planned trials; crashed ones are failures, but might have been anything.

    The interval reaches up to where it would with every crashed trial a success: a defense that
    makes the attack crash has not been shown to protect. None where no trial was judged.
    """
    if not trials.all_judged:
        return Interval(None, None, None)
    groups = trials.batches
    low = rate_interval(_outcomes(trials, rule), groups=groups)
    if not trials.crashed:
        return low
    crashed = rate_interval(_outcomes(trials, rule, crashed=True), groups=groups)
    return Interval(low.value, low.low, crashed.high)


def _to_success(trials: _Trials, rule: Rule, effort: str) -> dict[str, float | None]:
    """Steps or evaluations to the first iterate that passes, of all trials and of successes only.

    An attack that ended by itself (converged, nan) or crashed will never succeed: it is censored
    at the end of the longest trial, not where it stopped, where Kaplan-Meier would assume that it
    might have done as well as the others.
    """
    records = trials.all_entering
    first = [_first(record, rule, effort) for record in records]
    spent = [record[effort] for record in records if record.get(effort) is not None]
    found = [step for step in first if step is not None]
    end = max([*spent, *found], default=0)
    return {
        "median": kaplan_meier_median(
            [end if step is None else step for step in first], [step is not None for step in first]
        ),
        "mean_of_successes": fmean(found) if found else None,
    }


def _first(record: Record, rule: Rule, effort: str = "steps") -> int | None:
    """Steps or evaluations done when the iterate first passed; 0 is the start."""
    name = "first_step" if effort == "steps" else "first_evaluations"
    spent: int | None = (record.get(name) or {}).get(rule.name)
    return spent


def _start_passes(judged: Sequence[Record], rule: Rule) -> bool:
    """Whether the start already is a success for every victim: then the rate measures nothing."""
    return bool(judged) and all(_first(record, rule) == 0 for record in judged)


def _label_accuracy(judged: Sequence[Record]) -> float | None:
    """Share of labels that were right, counted batch by batch whatever their order."""
    found = [r["labels_found"] for r in judged if r.get("labels_found") is not None]
    return fmean(found) if found else None


def _baselines(records: Sequence[Record]) -> dict[str, float | None]:
    """Mean clamped MSE of what needs no gradient."""
    return {
        name: _summary(((r.get("baselines") or {}).get(name) for r in records), fmean)
        for name in BASELINES
    }


def _ceiling(planned: PlannedCell) -> float | None:
    """Largest rate of naming the victims among N candidates (Kaissis et al., arXiv 2307.03928).

    It bounds the chance for each victim by his own prior, and so a rate by the mean of those.
    """
    mu = planned.ceiling_mu
    if mu is None:
        return None
    priors = _priors(planned)
    found = sum(count * reconstruction_ceiling(p, mu) for p, count in priors.items())
    return min(found / priors.total(), 1.0)


def _priors(planned: PlannedCell) -> Counter[float]:
    """Chance to name an image without a look -> for how many planned images."""
    return Counter(chance for of_network in planned.priors for chance in of_network)


def _prior_notes(planned: Sequence[PlannedCell]) -> list[dict[str, Any]]:
    """Where ceilings are higher than one chance in N would make them."""
    knowing: dict[str, float] = {}
    for each in planned:
        if "labels" in each.cell.grants and each.ceiling_mu is not None:
            priors = _priors(each)
            mean = sum(prior * count for prior, count in priors.items()) / priors.total()
            knowing[each.cell.dataset] = max(mean, knowing.get(each.cell.dataset, 0.0))
    if not knowing:
        return []
    places = ", ".join(f"{dataset} {prior:.2g}" for dataset, prior in knowing.items())
    text = (
        "Where labels are granted, ceilings start from a guess among the candidates of the "
        f"victim's class, right with chance (mean over the victims): {places}."
    )
    return [_note(text, "report", list(knowing))]


def _above(interval: Interval, ceiling: float | None) -> bool:
    return ceiling is not None and interval.low is not None and interval.low > ceiling


def _median(records: Iterable[Record], name: str) -> float | None:
    return _summary((record.get(name) for record in records), median)


def _summary_of_all(values: Sequence[float | None]) -> float | None:
    """Median with what is not finite as the worst; None where that is the median."""
    worst = [inf if value is None or not isfinite(value) else float(value) for value in values]
    middle = median(worst) if worst else nan
    return middle if isfinite(middle) else None


def _summary(
    values: Iterable[float | None], summarise: Callable[[list[float]], float]
) -> float | None:
    """`summarise` over the finite ones; None where there is none."""
    finite = [float(value) for value in values if value is not None and isfinite(value)]
    result = summarise(finite) if finite else nan
    return result if isfinite(result) else None


# ------------------------------------------------------------------------------ verdicts


def _as_printed(printed: Printed) -> dict[str, str]:
    """The numbers there are; "asr" is "Y" or "N" where the paper only says whether it succeeds."""
    found = {"asr": printed.asr or str(printed.succeeds)}
    if printed.distance is not None:
        found[printed.distance[0]] = printed.distance[1]
    if printed.attack_iterations is not None:
        found["attack_iterations"] = printed.attack_iterations
    return found


def _verdict(
    trials: _Trials, rules: Sequence[Rule], printed: Printed, plan: Plan
) -> dict[str, Any]:
    """Each printed number against each reading of what it may mean."""
    where = f"{plan.file}, printed {printed.dataset}/{printed.row}"
    paper = [rule for rule in rules if rule.paper]
    intervals = {
        rule.name: rate_interval(_outcomes(trials, rule), level=0.90, groups=trials.batches)
        for rule in paper
    }
    found: dict[str, Any] = {}
    if printed.asr is None:
        failed = printed.succeeds == "N"
        found["asr"] = {k: outcome_verdict(not failed, v) for k, v in intervals.items()}
    else:
        rate = _printed_number(printed.asr, f"{where}, key asr", highest=1.0)
        failed = rate == 0
        found["asr"] = {k: rate_verdict(rate, v) for k, v in intervals.items()}
    if printed.distance is not None:
        kind, text = printed.distance
        error = _printed_number(text, f"{where}, key {kind}")
        found[kind] = {rule.name: _error_reading(trials, rule, kind, error, text) for rule in paper}
    if printed.attack_iterations is not None:
        text = printed.attack_iterations
        iterations = _printed_number(text, f"{where}, key attack_iterations")
        found["attack_iterations"] = _iteration_readings(
            trials, rules, iterations, text, at_limit=failed
        )
        limit = trials.cell.attack_parameters.get("steps")
        if isinstance(limit, int) and limit < iterations:
            _withhold(found)
    found["summary"] = _sentence(found, trials, rules, printed)
    return found


def _withhold(found: dict[str, Any]) -> None:
    """Who stops before the paper did cannot refute it."""
    for key, readings in found.items():
        for name, reading in readings.items():
            if key == "asr" and reading == "not reproduced":
                readings[name] = "inconclusive"
            elif key != "asr" and reading["verdict"] == "not reproduced":
                reading["verdict"] = "inconclusive"


def _printed_number(text: str, where: str, highest: float = inf) -> float:
    value = float(text)
    if not (isfinite(value) and 0 <= value <= highest):
        allowed = "0 to 1" if highest == 1.0 else "finite and not negative"
        raise LeakbenchError(f"{where}: a printed number must be {allowed}, got '{text}'")
    return value


def _error_reading(
    trials: _Trials, rule: Rule, kind: str, printed: float, text: str
) -> dict[str, Any]:
    """Mean error over successes under `rule`, or over all where none succeeds, as in the paper.

    kind: "rmse" takes the root of each mean squared error; a distance is a root already.
    """
    successes = _successes(trials, rule)
    any_success = any(successes)
    chosen = successes if any_success else trials.judged
    values = _finite([[r.get(rule.number) for r in network] for network in chosen])
    if kind == "rmse" and rule.number.startswith("mse"):
        values = [[math.sqrt(value) for value in network] for network in values]
    return _reading(
        values,
        printed,
        text,
        "successes" if any_success else "all",
    )


def _iteration_readings(
    trials: _Trials, rules: Sequence[Rule], printed: float, text: str, *, at_limit: bool
) -> dict[str, dict[str, Any]]:
    """Mean first step of successes under each rule, and the steps spent by all ("own_stop").

    at_limit: the paper had no success and printed its limit of iterations; where none of ours
    succeeds either, the steps spent are compared with it. Without a success on our side only,
    there is nothing to compare.
    """
    spent = _finite([[r.get("steps") for r in network] for network in trials.judged])
    own_stop = _reading(spent, printed, text, "all")
    limit = trials.cell.attack_parameters.get("steps")
    recovered = any(any(_successes(trials, rule)) for rule in rules if rule.judged.needs_recovery)
    if (isinstance(limit, int) and limit < printed) or not (at_limit or recovered):
        # A profile that stops earlier than the paper cannot confirm or refute a printed limit, nor
        # can steps spent in vain confirm the steps that the paper's successes took.
        own_stop["verdict"] = "inconclusive"
    readings = {}
    for rule in rules:
        if not (rule.stepwise and (rule.paper or rule.judged.needs_recovery)):
            continue
        successes = _successes(trials, rule)
        if at_limit and not any(successes):
            readings[rule.name] = dict(own_stop)
        else:
            first = [[_first(r, rule) for r in network] for network in successes]
            readings[rule.name] = _reading(_finite(first), printed, text, "successes")
    readings["own_stop"] = own_stop
    return readings


def _successes(trials: _Trials, rule: Rule) -> list[list[Record]]:
    return [[r for r in network if succeeded(rule.judged, r)] for network in trials.judged]


def _finite(networks: Sequence[Sequence[float | None]]) -> list[list[float]]:
    """Without what could not be measured, network by network."""
    return [[float(x) for x in network if x is not None and isfinite(x)] for network in networks]


@functools.lru_cache(maxsize=1024)
def _mean_interval(values: tuple[tuple[float, ...], ...]) -> Interval:
    """90 % interval; kept, because readings share values and a report is made in four formats."""
    return mean_interval(values, level=0.90)


def _reading(
    values: Sequence[Sequence[float]], printed: float, text: str, over: str
) -> dict[str, Any]:
    interval = _mean_interval(tuple(tuple(network) for network in values))
    # "0.003" may have been anything that rounds to it.
    resolution = 0.5 * 10.0 ** int(Decimal(text).as_tuple().exponent)
    verdict = ratio_verdict(printed, interval, resolution=resolution)
    return {**interval.as_dict(), "over": over, "verdict": verdict}


def _sentence(
    found: Mapping[str, Any], trials: _Trials, rules: Sequence[Rule], printed: Printed
) -> str:
    """Which reading, if any, reproduces each printed number."""
    if not trials.all_entering:
        return "Nothing was measured."
    labels = {rule.name: rule.label for rule in rules} | {"own_stop": "own stop"}
    asr = {"Y": "success", "N": "failure"}.get(printed.succeeds or "", f"rate {printed.asr}")
    numbers: list[tuple[str, Mapping[str, Verdict]]] = [(asr, found["asr"])]
    if printed.distance is not None:
        kind, text = printed.distance
        numbers.append((f"{kind.upper()} {text}", _words(found[kind])))
    if printed.attack_iterations is not None:
        text = f"iterations {printed.attack_iterations}"
        numbers.append((text, _words(found["attack_iterations"])))
    clauses = [f"{what}: {_outcome(words, labels)}" for what, words in numbers]
    free = [rule.name for rule in rules if rule.paper and _start_passes(trials.all_judged, rule)]
    if free:
        clauses.append(f"the start image already passes under {_quoted(free, labels)}")
    return f"Printed {'; '.join(clauses)}."


def _words(readings: Mapping[str, Mapping[str, Any]]) -> dict[str, Verdict]:
    return {name: reading["verdict"] for name, reading in with_value(readings).items()}


def with_value(readings: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Mapping[str, Any]]:
    """Readings that could be measured, or all where none could: the others decide nothing."""
    measured = {name: r for name, r in readings.items() if r["value"] is not None}
    return measured or readings


def _outcome(words: Mapping[str, Verdict], labels: Mapping[str, str]) -> str:
    reproduced = [name for name, word in words.items() if word == "reproduced"]
    if reproduced:
        return f"reproduced by {_quoted(reproduced, labels)}"
    unclear = [name for name, word in words.items() if word == "inconclusive"]
    if unclear:
        return f"reproduced by no reading, inconclusive under {_quoted(unclear, labels)}"
    return "reproduced by no reading"


def _quoted(names: Iterable[str], labels: Mapping[str, str]) -> str:
    return ", ".join(f"'{labels[name]}'" for name in names)


# ------------------------------------------------------------------------------ notes


def _note(
    text: str,
    source: str,
    datasets: Sequence[str] | None = None,
    rows: Sequence[str] | None = None,
) -> dict[str, Any]:
    return {
        "text": text,
        "source": source,
        "datasets": None if datasets is None else list(datasets),
        "rows": None if rows is None else list(rows),
    }


def _suite_notes(plan: Plan, cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Notes of the suite file about something that is in this report."""
    notes = []
    for note in plan.notes:
        about = [
            cell
            for cell in cells
            if (note.datasets is None or cell["dataset"] in note.datasets)
            and (note.defenses is None or cell["defense"] in note.defenses)
            and (note.variants is None or cell["variant"] in note.variants)
        ]
        if about:
            everywhere = note.defenses is None and note.variants is None
            rows = None if everywhere else list(dict.fromkeys(cell["row"] for cell in about))
            notes.append(_note(note.text, "suite", note.datasets, rows))
    return notes


def _computed_notes(cells: Sequence[dict[str, Any]], rules: Sequence[Rule]) -> list[dict[str, Any]]:
    return [
        *_same_notes(cells),
        *_start_notes(cells, rules),
        *_ceiling_notes(cells),
        *_adaptive_notes(cells),
        *_network_notes(cells),
        *_absence_notes(cells),
        *_failure_notes(cells),
    ]


def flag_names(cell: Mapping[str, Any]) -> list[str]:
    """Names of all flags of a cell."""
    return [flag["name"] for flag in cell["flags"]]


def _same_notes(cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One note a pair of rows, with the data sets and attackers where they agree."""
    labels = {cell["row"]: cell["label"] for cell in cells}
    pairs: dict[tuple[str, str], dict[str, list[str]]] = {}
    for cell in cells:
        for name in flag_names(cell):
            if name.startswith("same_as: "):
                pair = (cell["row"], name.removeprefix("same_as: "))
                attackers = pairs.setdefault(pair, {})
                attackers.setdefault(cell["dataset"], []).append(cell["knowledge"])
    notes = []
    for (row, other), places in pairs.items():
        where = ", ".join(f"{d} ({', '.join(known)})" for d, known in places.items())
        text = f"{labels[row]} gives the same numbers as {labels[other]} in every trial: {where}."
        notes.append(_note(text, "report", list(places), [row, other]))
    return notes


def _start_notes(cells: Sequence[dict[str, Any]], rules: Sequence[Rule]) -> list[dict[str, Any]]:
    """Rules that the start image meets for every victim of a data set."""
    notes = []
    measured = [cell for cell in cells if cell["networks"]]
    for rule in rules:
        datasets = [
            dataset
            for dataset in dict.fromkeys(cell["dataset"] for cell in measured)
            if all(rule.name in c["start_passes"] for c in measured if c["dataset"] == dataset)
        ]
        if datasets:
            text = (
                f"Under '{rule.label}' the start image already passes for every victim "
                f"({', '.join(datasets)}): a success there needs no attack."
            )
            notes.append(_note(text, "report", datasets))
    return notes


def _ceiling_notes(cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        _note(
            f"{cell['dataset']}, {cell['label']}, {cell['knowledge']}: more victims identified "
            f"than the guarantee allows (ceiling {cell['ceiling']:.2g}): the mechanism or its "
            "accounting is wrong.",
            "report",
            [cell["dataset"]],
            [cell["row"]],
        )
        for cell in cells
        if "above_ceiling" in flag_names(cell)
    ]


def _adaptive_notes(cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    rows: dict[str, list[str]] = {}
    labels = {}
    for cell in cells:
        if "non_adaptive_only" in flag_names(cell):
            rows.setdefault(cell["row"], []).append(cell["dataset"])
            labels[cell["row"]] = cell["label"]
    return [
        _note(
            f"{labels[row]} ({', '.join(datasets)}) was attacked only by an attacker who ignores "
            "the defense; low rates there are no evidence of protection.",
            "report",
            datasets,
            [row],
        )
        for row, datasets in rows.items()
    ]


def _network_notes(cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    few = [cell for cell in cells if "few_networks" in flag_names(cell)]
    if not few:
        return []
    least, most = min(c["networks"] for c in few), max(c["networks"] for c in few)
    count = str(least) if least == most else f"{least} to {most}"
    word = "network" if most == 1 else "networks"
    text = (
        f"Few networks: intervals rest on {count} {word} and are too narrow; they speak for these "
        "weights only, and so does a 'not reproduced'."
    )
    return [_note(text, "report", list(dict.fromkeys(cell["dataset"] for cell in few)))]


def _absence_notes(cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Planned trials that are in no rate."""
    skipped: dict[tuple[str, str], int] = {}
    missing: dict[str, int] = {}
    for cell in cells:
        if cell["skipped"]:
            place = (cell["dataset"], cell["reason"])
            skipped[place] = skipped.get(place, 0) + cell["skipped"]
        if cell["missing"]:
            missing[cell["dataset"]] = missing.get(cell["dataset"], 0) + cell["missing"]
    notes = [
        _note(f"{dataset}: {count} trials skipped, {reason}", "report", [dataset])
        for (dataset, reason), count in skipped.items()
    ]
    if missing:
        places = ", ".join(f"{dataset} {count}" for dataset, count in missing.items())
        text = f"Planned trials without a result yet: {places}. Run the suite again to continue."
        notes.append(_note(text, "report", list(missing)))
    return notes


def _failure_notes(cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Trials that came to nothing, and the commonest reason."""
    notes = []
    for cell in cells:
        failed = sum(cell[status] for status in ("oom", "timeout", "error"))
        if failed:
            text = (
                f"{cell['label']} ({cell['dataset']}, {cell['knowledge']}): {failed} trials came "
                f"to nothing: {cell['reason']}"
            )
            notes.append(_note(text, "report", [cell["dataset"]], [cell["row"]]))
    return notes
