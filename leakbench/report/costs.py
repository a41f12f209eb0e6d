"""Records of trainings -> what each defense costs: accuracy, epsilon, time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import Any

from leakbench.described import PlannedTraining
from leakbench.records import Key, Record
from leakbench.report.content import CostEntry, FinalEpsilon
from leakbench.spec import JUDGED, Plan
from leakbench.statistics import mean_interval, rate_verdict

TOLERANCE = 0.03
"""An accuracy is reproduced if its 90 % interval lies within so much of the printed one."""


def build(
    plan: Plan, planned: Sequence[PlannedTraining], records: Mapping[Key, Record]
) -> tuple[CostEntry, ...]:
    """One entry a utility cell; times also as multiples of the undefended training's."""
    entries = [_entry(plan, each, records) for each in planned]
    plain = {
        entry.dataset: entry.seconds_per_iteration
        for entry, each in zip(entries, planned, strict=True)
        if each.undefended and entry.seconds_per_iteration
    }
    return tuple(
        replace(each, times_undefended=_ratio(each.seconds_per_iteration, plain.get(each.dataset)))
        for each in entries
    )


def _ratio(own: float | None, other: float | None) -> float | None:
    return own / other if own and other else None


def _entry(plan: Plan, planned: PlannedTraining, records: Mapping[Key, Record]) -> CostEntry:
    cell = planned.cell
    found = [records[key] for key in planned.trials() if key in records]
    judged = [record for record in found if record["status"] in JUDGED]
    printed = plan.printed_utility.get((cell.dataset, cell.row))
    first: Record = judged[0] if judged else {}
    schedule = cell.schedule
    return CostEntry(
        dataset=cell.dataset,
        row=cell.row,
        label=cell.label,
        model=cell.model,
        networks=len(judged),
        planned=len(planned.identities),
        failed=len(found) - len(judged),
        nan=sum(record["status"] == "nan" for record in judged),
        reason=planned.skip or next((r["reason"] for r in found if r["reason"]), ""),
        data=first.get("data"),
        examples=first.get("examples"),
        rounds=schedule["rounds"],
        clients=schedule["clients"],
        clients_a_round=schedule["clients_a_round"],
        local_steps=schedule["local_steps"],
        batch_size=schedule["batch_size"],
        partition=schedule["partition"] if schedule["clients"] > 1 else None,
        accuracy=mean_interval([[float(record["accuracy"])] for record in judged]),
        curve=_mean_curve(judged),
        privacy=FinalEpsilon.of(first.get("privacy")),
        seconds_per_iteration=_seconds(judged),
        printed_accuracy=None if printed is None else printed.accuracy,
        verdict=(
            ""
            if printed is None or printed.accuracy is None
            else _verdict(
                printed.of_rounds or plan.printed_rounds, schedule, judged, printed.accuracy
            )
        ),
        times_undefended=None,
    )


def _mean_curve(judged: Sequence[Record]) -> tuple[tuple[int, float], ...]:
    """(rounds done, mean accuracy over networks)."""
    points: dict[int, list[float]] = {}
    for record in judged:
        for rounds, share in record["curve"]:
            points.setdefault(rounds, []).append(share)
    return tuple((rounds, round(fmean(shares), 6)) for rounds, shares in sorted(points.items()))


def _seconds(judged: Sequence[Record]) -> float | None:
    values = [(record.get("host") or {}).get("seconds_per_iteration") for record in judged]
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _verdict(
    planned_rounds: int, schedule: Mapping[str, Any], judged: Sequence[Record], printed: str
) -> str:
    """Fewer rounds or less data than the paper's can neither confirm nor refute it."""
    if not judged:
        return ""
    if any(record["status"] == "nan" for record in judged):
        return "weights nan"
    if schedule["rounds"] < planned_rounds:
        return "fewer rounds"
    if any(record["data"] == "sample" for record in judged):
        return "sample data"
    shares = [[float(record["accuracy"])] for record in judged]
    return rate_verdict(float(printed), mean_interval(shares, level=0.90), TOLERANCE)
