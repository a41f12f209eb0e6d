"""Printed numbers against ours, each in every reading of what it may mean."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from math import inf, isfinite
from typing import TypeVar

from leakbench.errors import LeakbenchError
from leakbench.report.content import PrintedEntry, Reading, Readings, VerdictEntry
from leakbench.report.measured import LabelledRule, Trials
from leakbench.spec import Printed
from leakbench.statistics import (
    Interval,
    Verdict,
    mean_interval,
    outcome_verdict,
    rate_verdict,
    ratio_verdict,
)

Word = TypeVar("Word")

OWN_STOP = "own_stop"
"""The reading of printed iterations that counts the steps spent by all."""


def printed_entry(printed: Printed) -> PrintedEntry:
    """The numbers there are."""
    return PrintedEntry(
        asr=printed.asr or printed.succeeds or "",
        mse=printed.mse,
        rmse=None if printed.mse is not None else printed.rmse,
        attack_iterations=printed.attack_iterations,
    )


def verdict_of(
    trials: Trials, rules: Sequence[LabelledRule], printed: Printed, file: str
) -> VerdictEntry:
    """Each printed number against each reading of what it may mean.

    Args:
        trials: Of the cell; the verdict speaks of what an attacker who ignores defenses gets.
        rules: Of the plan; those of the paper are the readings.
        printed: What the paper has in this cell.
        file: The suite's, named in errors.

    Raises:
        LeakbenchError: A printed number that cannot be what it says (a rate above 1).
    """
    where = f"{file}, printed {printed.dataset}/{printed.row}"
    paper = [rule for rule in rules if rule.paper]
    intervals = {rule.name: trials.success_interval(rule, level=0.90) for rule in paper}
    asr: dict[str, Verdict] = {}
    failed = printed.succeeds == "N"
    if printed.succeeds is not None:
        asr = {name: outcome_verdict(not failed, v) for name, v in intervals.items()}
    elif printed.asr is not None:
        rate = _number(printed.asr, f"{where}, key asr", highest=1.0)
        failed = rate == 0
        asr = {name: rate_verdict(rate, v) for name, v in intervals.items()}
    errors: dict[str, Readings] = {}
    if printed.distance is not None:
        kind, text = printed.distance
        error = _number(text, f"{where}, key {kind}")
        errors[kind] = {r.name: _error_reading(trials, r, kind, error, text) for r in paper}
    steps: Readings | None = None
    stops_early = False
    if printed.attack_iterations is not None:
        text = printed.attack_iterations
        iterations = _number(text, f"{where}, key attack_iterations")
        steps = _iteration_readings(trials, rules, iterations, text, at_limit=failed)
        stops_early = _stops_before(trials, iterations)
    found = VerdictEntry(
        asr=asr,
        mse=errors.get("mse"),
        rmse=errors.get("rmse"),
        attack_iterations=steps,
        summary="",
    )
    found = _withheld(found) if stops_early else found
    return replace(found, summary=_sentence(found, trials, rules, printed))


def decisive(readings: Mapping[str, tuple[float | None, Word]]) -> dict[str, Word]:
    """By rule, (what was measured, what is said of it) -> what is said where there is a number.

    Readings that could not be measured decide nothing; where none could, all are returned.
    """
    measured = {name: word for name, (value, word) in readings.items() if value is not None}
    return measured or {name: word for name, (_, word) in readings.items()}


# ------------------------------------------------------------------------------ readings


def _withheld(found: VerdictEntry) -> VerdictEntry:
    """Who stops before the paper did cannot refute it."""

    def softened(word: Verdict) -> Verdict:
        return "inconclusive" if word == "not reproduced" else word

    def readings(given: Readings | None) -> Readings | None:
        if given is None:
            return None
        return {name: replace(each, verdict=softened(each.verdict)) for name, each in given.items()}

    return replace(
        found,
        asr={name: softened(word) for name, word in found.asr.items()},
        mse=readings(found.mse),
        rmse=readings(found.rmse),
        attack_iterations=readings(found.attack_iterations),
    )


def _number(text: str, where: str, highest: float = inf) -> float:
    value = float(text)
    if not (isfinite(value) and 0 <= value <= highest):
        allowed = "0 to 1" if highest == 1.0 else "finite and not negative"
        raise LeakbenchError(f"{where}: a printed number must be {allowed}, got '{text}'")
    return value


def _error_reading(
    trials: Trials, rule: LabelledRule, kind: str, printed: float, text: str
) -> Reading:
    """Mean error over successes under `rule`, or over all where none succeeds, as in the paper.

    kind: "rmse" takes the root of each mean squared error; a distance is a root already.
    """
    successes = trials.successes(rule)
    any_success = any(successes)
    chosen = successes if any_success else trials.judged
    values = _finite([[r.get(rule.error) for r in network] for network in chosen])
    if kind == "rmse" and rule.error.startswith("mse"):
        values = [[math.sqrt(value) for value in network] for network in values]
    return _reading(values, printed, text, "successes" if any_success else "all")


def _iteration_readings(
    trials: Trials, rules: Sequence[LabelledRule], printed: float, text: str, *, at_limit: bool
) -> Readings:
    """Mean first step of successes under each rule, and the steps spent by all ("own_stop").

    at_limit: the paper had no success and printed its limit of iterations; where none of ours
    succeeds either, the steps spent are compared with it. Without a success on our side only,
    there is nothing to compare.
    """
    spent = _finite([[r.get("steps") for r in network] for network in trials.judged])
    own_stop = _reading(spent, printed, text, "all")
    recovered = any(any(trials.successes(rule)) for rule in rules if rule.judged.needs_recovery)
    if _stops_before(trials, printed) or not (at_limit or recovered):
        # A profile that stops earlier than the paper cannot confirm or refute a printed limit, nor
        # can steps spent in vain confirm the steps that the paper's successes took.
        own_stop = replace(own_stop, verdict="inconclusive")
    readings = {}
    for rule in rules:
        if not (rule.stepwise and (rule.paper or rule.judged.needs_recovery)):
            continue
        successes = trials.successes(rule)
        if at_limit and not any(successes):
            readings[rule.name] = own_stop
        else:
            first = [[rule.first(r) for r in network] for network in successes]
            readings[rule.name] = _reading(_finite(first), printed, text, "successes")
    readings[OWN_STOP] = own_stop
    return readings


def _stops_before(trials: Trials, printed: float) -> bool:
    """Whether the attack may take fewer steps than the paper's did."""
    limit = trials.cell.attack_parameters.get("steps")
    return isinstance(limit, int) and limit < printed


def _finite(networks: Sequence[Sequence[float | None]]) -> list[list[float]]:
    """Without what could not be measured, network by network."""
    return [[float(x) for x in network if x is not None and isfinite(x)] for network in networks]


@functools.lru_cache(maxsize=1024)
def _mean_interval(values: tuple[tuple[float, ...], ...]) -> Interval:
    """90 % interval; kept, because readings share values and a report is made in four formats."""
    return mean_interval(values, level=0.90)


def _reading(values: Sequence[Sequence[float]], printed: float, text: str, over: str) -> Reading:
    interval = _mean_interval(tuple(tuple(network) for network in values))
    # "0.003" may have been anything that rounds to it.
    resolution = 0.5 * 10.0 ** int(Decimal(text).as_tuple().exponent)
    verdict = ratio_verdict(printed, interval, resolution=resolution)
    return Reading(**interval.as_dict(), over=over, verdict=verdict)


# ------------------------------------------------------------------------------ in a sentence


def _sentence(
    found: VerdictEntry, trials: Trials, rules: Sequence[LabelledRule], printed: Printed
) -> str:
    """Which reading, if any, reproduces each printed number."""
    if not trials.all_entering:
        return "Nothing was measured."
    labels = {rule.name: rule.label for rule in rules} | {OWN_STOP: "own stop"}
    asr = {"Y": "success", "N": "failure"}.get(printed.succeeds or "", f"rate {printed.asr}")
    numbers: list[tuple[str, Mapping[str, Verdict]]] = [(asr, found.asr)] if found.asr else []
    for what, text, readings in (
        ("MSE", printed.mse, found.mse),
        ("RMSE", printed.rmse, found.rmse),
        ("iterations", printed.attack_iterations, found.attack_iterations),
    ):
        if readings is not None:
            words = decisive({name: (r.value, r.verdict) for name, r in readings.items()})
            numbers.append((f"{what} {text}", words))
    clauses = [f"{what}: {_outcome(words, labels)}" for what, words in numbers]
    free = [rule.name for rule in rules if rule.paper and trials.start_passes(rule)]
    if free:
        clauses.append(f"the start image already passes under {_quoted(free, labels)}")
    return f"Printed {'; '.join(clauses)}."


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
