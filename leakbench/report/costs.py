"""Records of trainings -> what each defense costs: accuracy, epsilon, rounds, time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import fmean, median
from typing import Any

from leakbench.described import PlannedTraining
from leakbench.privacy.ceiling import training_ceiling
from leakbench.privacy.events import PrivacyEvent, Relation
from leakbench.records import Key, Record
from leakbench.report.content import (
    CostEntry,
    FinalEpsilon,
    PrintedPoint,
    ReportCell,
    SweepPoint,
)
from leakbench.spec import JUDGED, Plan, PrintedUtility, UtilityCell
from leakbench.statistics import Interval, mean_interval, rate_verdict, ratio_verdict

NAMED_AMONG = 1000
"""Candidates that a ceiling of a training is for, as many as those of an attack."""

TOLERANCE = 0.03
"""An accuracy is reproduced if its 90 % interval lies within so much of the printed one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trained:
    """A utility cell with its records, network by network, and what is printed of it."""

    planned: PlannedTraining
    found: tuple[Record, ...]
    printed: PrintedUtility
    of_rounds: int

    @property
    def judged(self) -> list[Record]:
        """Records of networks that were trained."""
        return [record for record in self.found if record["status"] in JUDGED]

    @property
    def rounds(self) -> int:
        """Rounds that were planned."""
        return int(self.planned.cell.schedule["rounds"])

    @property
    def place(self) -> tuple[str, str]:
        """Data set and variant: the undefended row there is what times are compared with."""
        return self.planned.cell.dataset, self.planned.cell.variant

    def reached(self) -> list[int]:
        """Rounds after which networks reached the target accuracy, of those that did."""
        return [int(r["rounds"]) for r in self.judged if r.get("stopped") == "accuracy"]

    def seconds(self, name: str = "seconds_per_iteration") -> dict[int, float]:
        """Network -> time of a local step, of those that have one."""
        times = {r.get("network", 0): (r.get("host") or {}).get(name) for r in self.judged}
        return {network: value for network, value in times.items() if value}


def build(
    plan: Plan,
    planned: Sequence[PlannedTraining],
    records: Mapping[Key, Record],
    attacked: Sequence[ReportCell] = (),
) -> tuple[CostEntry, ...]:
    """One entry a utility cell; times also as multiples of the undefended training's.

    That is the first row of the same data set and variant whose defense does nothing. attacked: the
    cells of the run, for the worst attack on each defense.
    """
    trained = [_trained(plan, each, records) for each in planned]
    plain: dict[tuple[str, str], _Trained] = {}
    for each in trained:
        if each.planned.undefended:
            plain.setdefault(each.place, each)
    return tuple(
        replace(_entry(each, plain.get(each.place)), worst=_worst(each.planned.cell, attacked))
        for each in trained
    )


def _worst(trained: UtilityCell, attacked: Sequence[ReportCell]) -> dict[str, Interval]:
    """By rule the highest rate, of equals the one that reaches up furthest: a defense is as good as
    that."""
    found: dict[str, Interval] = {}
    for cell in attacked:
        if (cell.dataset, cell.defense) != (trained.dataset, trained.defense_id):
            continue
        for name, rate in cell.asr.items():
            if rate.value is not None:
                found[name] = max(
                    (found.get(name, rate), rate), key=lambda r: (r.value or 0.0, r.high or 0.0)
                )
    return found


def _trained(plan: Plan, planned: PlannedTraining, records: Mapping[Key, Record]) -> _Trained:
    cell = planned.cell
    printed = plan.printed_utility.get((cell.dataset, cell.row))
    if printed is None:
        printed = PrintedUtility(
            dataset=cell.dataset, defense=cell.defense_id, variant=cell.variant
        )
    return _Trained(
        planned=planned,
        found=tuple(records[key] for key in planned.trials() if key in records),
        printed=printed,
        of_rounds=printed.of_rounds or plan.printed_rounds,
    )


def _entry(trained: _Trained, plain: _Trained | None) -> CostEntry:
    cell, found, judged = trained.planned.cell, trained.found, trained.judged
    printed = trained.printed
    first: Record = judged[0] if judged else {}
    schedule = cell.schedule
    reached = trained.reached()
    seconds = _median(trained.seconds())
    return CostEntry(
        dataset=cell.dataset,
        row=cell.row,
        variant=cell.variant,
        defense=cell.defense_id,
        label=cell.label,
        convention=cell.convention,
        model=cell.model,
        networks=len(judged),
        planned=len(trained.planned.identities),
        failed=len(found) - len(judged),
        nan=sum(record["status"] == "nan" for record in judged),
        reason=trained.planned.skip or next((r["reason"] for r in found if r["reason"]), ""),
        data=first.get("data"),
        examples=first.get("examples"),
        rounds=trained.rounds,
        clients=schedule["clients"],
        clients_a_round=schedule["clients_a_round"],
        local_steps=schedule["local_steps"],
        batch_size=schedule["batch_size"],
        partition=schedule["partition"] if schedule["clients"] > 1 else None,
        overlap=bool(schedule.get("overlap")),
        learning_rates=_rates(cell.schedule, judged),
        sweep=_sweep(judged),
        rounds_done=tuple(int(record.get("rounds") or 0) for record in judged),
        stopped=tuple(str(record.get("stopped") or "") for record in judged),
        stop_accuracy=cell.stop_accuracy,
        stop_epsilon=cell.stop_epsilon,
        reached=len(reached),
        rounds_to_target=mean_interval([[float(rounds)] for rounds in reached]),
        accuracy=mean_interval([[float(record["accuracy"])] for record in judged]),
        curve=_mean_curve(judged),
        privacy=FinalEpsilon.of(first.get("privacy")),
        ceiling=_ceiling(first.get("privacy")),
        seconds_per_iteration=seconds,
        seconds_per_client=_median(trained.seconds("seconds_per_client")),
        printed_accuracy=printed.accuracy,
        verdict=_accuracy_verdict(trained),
        times_undefended=_ratio(seconds, None if plain is None else _median(plain.seconds())),
        printed_times_undefended=None if plain is None else _printed_ratio(trained, plain),
        printed_seconds=printed.seconds_per_iteration,
        seconds_verdict="" if plain is None else _seconds_verdict(trained, plain),
        printed_rounds=printed.rounds,
        rounds_verdict=_rounds_verdict(trained),
        points=tuple(_point(trained, int(n), text) for n, text in printed.points.items()),
    )


def _ceiling(recorded: Mapping[str, Any] | None) -> float | None:
    """Of naming the right one of `NAMED_AMONG` by the final model, from the recorded releases."""
    if not recorded or recorded.get("epsilon") is None:
        return None
    events = tuple(PrivacyEvent(**event) for event in recorded["events"])
    # The last digits are the processor's; rounded up it still is a ceiling.
    chance = _training_ceiling(events, recorded["relation"])
    return min(1.0, float(f"{chance * (1 + 1e-8):.9g}"))


@lru_cache(maxsize=256)  # a report is built more than once, and composing takes up to seconds
def _training_ceiling(events: tuple[PrivacyEvent, ...], relation: Relation) -> float:
    return training_ceiling(1 / NAMED_AMONG, events, relation=relation)


def _rates(schedule: Mapping[str, Any], judged: Sequence[Record]) -> tuple[float, ...]:
    """The learning rate of every network: the one its sweep chose, or the schedule's."""
    return tuple(float(r.get("learning_rate") or schedule["learning_rate"]) for r in judged)


def _sweep(judged: Sequence[Record]) -> tuple[SweepPoint, ...]:
    """Every rate that was tried, network by network."""
    return tuple(
        SweepPoint(
            network=record.get("network", 0),
            learning_rate=rate,
            held_out=held_out,
            accuracy=accuracy,
            chosen=rate == record.get("learning_rate"),
        )
        for record in judged
        for rate, held_out, accuracy in record.get("sweep") or ()
    )


def _mean_curve(judged: Sequence[Record]) -> tuple[tuple[int, float], ...]:
    """(rounds done, mean accuracy over the networks that were measured then)."""
    points: dict[int, list[float]] = {}
    for record in judged:
        for rounds, share in record["curve"]:
            points.setdefault(int(rounds), []).append(share)
    return tuple((rounds, round(fmean(shares), 6)) for rounds, shares in sorted(points.items()))


def _median(seconds: Mapping[int, float]) -> float | None:
    return median(seconds.values()) if seconds else None


def _ratio(own: float | None, other: float | None) -> float | None:
    return own / other if own and other else None


# ------------------------------------------------------------------------------ verdicts


def _no_verdict(trained: _Trained) -> str:
    """Why a training can neither confirm nor refute a printed number; "" if it can.

    One of fewer rounds cannot even where a number is of a point that it passes: what decays is
    elsewhere by then.
    """
    if trained.rounds < trained.of_rounds:
        return "fewer rounds"
    if any(record["data"] == "sample" for record in trained.judged):
        return "sample data"
    return ""


def _accuracy_verdict(trained: _Trained) -> str:
    printed = trained.printed.accuracy
    if printed is None:
        return ""
    return _verdict_on(trained, printed, [float(record["accuracy"]) for record in trained.judged])


def _verdict_on(trained: _Trained, printed: str, shares: Sequence[float]) -> str:
    """On accuracies of the networks, at the end or on the way."""
    if not shares:
        return ""
    if any(record["status"] == "nan" for record in trained.judged):
        return "weights nan"
    if why := _no_verdict(trained):
        return why
    interval = mean_interval([[share] for share in shares], level=0.90)
    return rate_verdict(float(printed), interval, TOLERANCE)


def _point(trained: _Trained, rounds: int, printed: str) -> PrintedPoint:
    shares = [
        float(share)
        for record in trained.judged
        for done, share in record["curve"]
        if done == rounds
    ]
    return PrintedPoint(
        rounds=rounds,
        accuracy=mean_interval([[share] for share in shares]),
        printed=printed,
        verdict=_verdict_on(trained, printed, shares),
    )


def _rounds_verdict(trained: _Trained) -> str:
    """Rounds to the target, as a ratio within a factor 2."""
    printed, judged = trained.printed.rounds, trained.judged
    if printed is None or not judged:
        return ""
    if why := _no_verdict(trained):
        return why
    reached = trained.reached()
    if missed := len(judged) - len(reached):
        of = f" by {missed} of {len(judged)} networks" if reached else ""
        return f"not reached in {trained.rounds} rounds{of}"
    return ratio_verdict(float(printed), _over_networks([float(rounds) for rounds in reached]))


def _printed_ratio(trained: _Trained, plain: _Trained) -> float | None:
    texts = (trained.printed.seconds_per_iteration, plain.printed.seconds_per_iteration)
    own, other = (None if text is None else float(text) for text in texts)
    return _ratio(own, other)


def _seconds_verdict(trained: _Trained, plain: _Trained) -> str:
    """Seconds are another machine's, so multiples of the undefended row's are compared.

    Ours are taken network by network; the rounds say nothing of them.
    """
    printed = _printed_ratio(trained, plain)
    own, other = trained.seconds(), plain.seconds()
    ratios = [own[network] / other[network] for network in own if network in other]
    if printed is None or not ratios or trained is plain:
        return ""
    return ratio_verdict(printed, _over_networks(ratios))


def _over_networks(values: Sequence[float]) -> Interval:
    """90 % interval over networks; of a single one the number itself, which is all there is."""
    if len(values) == 1:
        return Interval(values[0], values[0], values[0])
    return mean_interval([[value] for value in values], level=0.90)
