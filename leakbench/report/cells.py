"""A plan and the records of a run -> its report.

Everything a table, a page or another program may want is computed by this package's `measured`,
`ceilings`, `verdicts`, `costs` and `notes`, and put together here; `tables` and `renderings`
arrange it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from leakbench.described import PlannedCell, PlannedTraining
from leakbench.records import Key, Record
from leakbench.report import costs
from leakbench.report.bounds import bounds_of
from leakbench.report.ceilings import ceiling_of, chance_of, label_priors
from leakbench.report.content import (
    COUNTS,
    Attacker,
    BoundEntry,
    DatasetEntry,
    Flag,
    Report,
    ReportCell,
    RuleEntry,
)
from leakbench.report.measured import (
    LabelledRule,
    Table,
    Trials,
    collect,
    distinct,
    features_of,
    label_accuracy,
    mean_baselines,
    median_of,
    median_of_all,
    rules_of,
    unmeasured,
)
from leakbench.report.notes import SAME_AS, notes_of
from leakbench.report.verdicts import printed_entry, verdict_of
from leakbench.spec import Plan, canonical
from leakbench.statistics import Interval

FEW_NETWORKS = 3
"""Below this many networks the intervals of `statistics` are known to be too narrow."""

# What two rows must share in every trial to be called the same.
_MEASURED = (
    *("status", "steps", "evaluations", "loss", "loss_start", "loss_true", "label_guess"),
    *("mse_raw", "mse_clamped", "distance_raw", "distance_clamped", "psnr", "ssim", "rank"),
    *("first_step", "first_evaluations"),
)


def build(
    plan: Plan,
    planned: Sequence[PlannedCell],
    records: Mapping[Key, Record],
    manifest: Mapping[str, Any],
    trained: Sequence[PlannedTraining] = (),
    *,
    damage: str = "",
) -> Report:
    """The whole report of a run.

    Args:
        plan: The suite as resolved; decides rules, printed numbers and notes.
        planned: Its cells with their identities; records of other identities are not looked at.
        records: `Run.records()`.
        manifest: `Run.manifest()`, passed on.
        trained: The suite's utility cells with their identities.
        damage: `Run.damage()`, passed on.

    Raises:
        LeakbenchError: A printed number that cannot be what it says (a rate above 1).
    """
    rules = rules_of(plan)
    trials = [collect(each, records) for each in planned]
    same = _same_rows(trials)
    adapted_to = {
        (each.cell.dataset, each.cell.row)
        for each in trials
        if each.cell.knowledge == "adaptive" and each.all_entering
    }
    cells = tuple(
        _cell(
            each,
            rules,
            plan,
            chance=chance_of(item),
            ceiling=ceiling_of(item),
            guarantee=item.guarantee,
            same_as=same.get((each.cell.dataset, each.cell.row, each.cell.knowledge)),
            adaptive_too=(each.cell.dataset, each.cell.row) in adapted_to,
            bound=bound,
        )
        for each, item, bound in zip(trials, planned, bounds_of(trials), strict=True)
    )
    datasets = {each.cell.dataset: each.title for each in planned}
    for training in trained:
        datasets.setdefault(training.cell.dataset, training.title or training.cell.dataset)
    priced = costs.build(plan, trained, records, cells)
    part = str(manifest.get("shard", ""))
    return Report(
        suite=plan.name,
        profile=plan.profile,
        title=f"{plan.title}: part {part} of the plan" if part else plan.title,
        source=plan.source,
        question=plan.question,
        reading_guide=plan.reading_guide,
        planned=sum(cell.planned for cell in cells),
        networks=plan.networks,
        victims=plan.victims,
        rules=tuple(
            RuleEntry(
                name=rule.name,
                label=rule.label,
                kind=rule.judged.kind,
                condition=rule.judged.condition,
                parameters=_parameters(rule),
                paper=rule.paper,
                recovers=rule.judged.needs_recovery,
                names=rule.judged.identifies_first,
            )
            for rule in rules
        ),
        datasets={name: DatasetEntry(title=title) for name, title in datasets.items()},
        attackers=_attackers(plan),
        cells=cells,
        costs=priced,
        notes=notes_of(
            plan.notes, cells, priced, rules, label_priors(planned), unmeasured(trials), part
        ),
        baselines={name: mean_baselines(Table(distinct(trials, name))) for name in datasets},
        manifest=dict(manifest),
        damage=damage,
    )


def _parameters(rule: LabelledRule) -> dict[str, Any]:
    """Its thresholds and other keys, as its kind has them."""
    return {
        field.name: getattr(rule.judged, field.name)
        for field in fields(rule.judged)
        if field.name != "name"
    }


def _same_rows(trials: Sequence[Trials]) -> dict[tuple[str, str, str], str]:
    """(data set, row, knowledge) -> an earlier row with the same numbers in every trial."""
    first: dict[str, list[tuple[str, list[Record]]]] = {}
    found: dict[tuple[str, str, str], str] = {}
    for each in trials:
        if not each.all_judged:
            continue
        cell = each.cell
        records = sorted(
            each.all_entering, key=lambda record: (record["network"], record["victim"])
        )
        # Rows of one variant only: two attacks that both succeed are not the same row. The first
        # trial tells most rows apart, so that few are compared one by one.
        place = [cell.dataset, cell.variant, cell.knowledge, len(records), _numbers(records[0])]
        others = first.setdefault(json.dumps(place, sort_keys=True), [])
        for row, own in others:
            if row != cell.row and all(map(_same, own, records)):
                found[cell.dataset, cell.row, cell.knowledge] = row
                break
        else:
            others.append((cell.row, records))
    return found


def _place(record: Record) -> tuple[int, int]:
    return record["network"], record["victim"]


def _numbers(record: Record) -> list[Any]:
    return [*_place(record), *(record.get(name) for name in _MEASURED)]


def _same(one: Record, other: Record) -> bool:
    return _numbers(one) == _numbers(other)


def _attackers(plan: Plan) -> tuple[Attacker, ...]:
    """Every attacker once: attack, what it knows and is granted, hyper-parameters."""
    found: dict[str, Attacker] = {}
    for cell in plan.cells:
        attacker = Attacker(
            variant=cell.variant,
            attack=cell.attack,
            knowledge=cell.knowledge,
            grants=cell.grants,
            parameters=dict(cell.attack_parameters),
        )
        found.setdefault(json.dumps(attacker.as_dict(), sort_keys=True), attacker)
    return tuple(found.values())


# ------------------------------------------------------------------------------ one cell


def _cell(
    trials: Trials,
    rules: Sequence[LabelledRule],
    plan: Plan,
    *,
    chance: float | None,
    ceiling: float | None,
    guarantee: str,
    same_as: str | None,
    adaptive_too: bool,
    bound: BoundEntry | None,
) -> ReportCell:
    cell, judged = trials.cell, trials.judged_table
    printed = plan.printed.get((cell.dataset, cell.row))
    asr = {rule.name: trials.rate(rule) for rule in rules}
    comparable = cell.knowledge == "naive" and not trials.crashed
    stepwise = [rule for rule in rules if rule.stepwise]
    return ReportCell(
        dataset=cell.dataset,
        model=cell.model,
        pretrained=cell.pretraining is not None,
        accuracy=median_of(judged, "accuracy"),
        row=cell.row,
        variant=cell.variant,
        defense=cell.defense_id,
        label=cell.label,
        attack=cell.attack,
        knowledge=cell.knowledge,
        grants=cell.grants,
        leak=cell.leak,
        leak_id=hashlib.sha256(canonical(cell.leak_spec()).encode()).hexdigest()[:12],
        convention=cell.convention,
        example_view=cell.example_view,
        planned=trials.ends.total(),
        **{status: trials.ends[status] for status in COUNTS},
        reason=trials.reason,
        networks=trials.networks,
        asr=asr,
        mse=median_of_all(judged, "mse_raw"),
        mse_clamped=median_of_all(judged, "mse_clamped"),
        ssim=median_of(judged, "ssim"),
        lpips=median_of(judged, "lpips"),
        steps=median_of(judged, "steps"),
        evaluations=median_of(judged, "evaluations"),
        steps_to_success={r.name: trials.effort_to_success(r, "steps") for r in stepwise},
        evaluations_to_success={
            rule.name: trials.effort_to_success(rule, "evaluations") for rule in stepwise
        },
        start_passes=tuple(rule.name for rule in rules if trials.start_passes(rule)),
        label_accuracy=label_accuracy(judged),
        baselines=mean_baselines(judged),
        chance=chance,
        ceiling=ceiling,
        guarantee=guarantee,
        printed=None if printed is None else printed_entry(printed),
        verdict=(
            verdict_of(trials, rules, printed, plan.file)
            if printed is not None and comparable
            else None
        ),
        flags=_flags(
            trials,
            above_ceiling=_above_ceiling(rules, asr, ceiling),
            same_as=same_as,
            adaptive_too=adaptive_too,
        ),
        bound=bound,
        features=features_of(judged),
        members=trials.members(rules),
    )


def _flags(
    trials: Trials, *, above_ceiling: bool, same_as: str | None, adaptive_too: bool
) -> tuple[Flag, ...]:
    """Flags of trials, with how many have them, then those of the cell as a whole."""
    counts = trials.flags()
    conditions = {
        "non_adaptive_only": bool(
            trials.cell.knowledge == "naive"
            and trials.all_judged
            and not adaptive_too
            # Where the defense changed nothing, there is nothing to adapt to.
            and counts["defense_noop"] < len(trials.all_entering)
        ),
        "above_ceiling": above_ceiling,
        "few_networks": 0 < trials.networks < FEW_NETWORKS,
        f"{SAME_AS}{same_as}": same_as is not None,
    }
    return (
        *(Flag(name=name, count=count) for name, count in sorted(counts.items())),
        *(Flag(name=name, count=None) for name, holds in conditions.items() if holds),
    )


def _above_ceiling(
    rules: Sequence[LabelledRule], asr: Mapping[str, Interval], ceiling: float | None
) -> bool:
    """Whether even the lower end of how many were named (top 1) is above what was promised."""
    ends = [asr[rule.name].low for rule in rules if rule.judged.identifies_first]
    return ceiling is not None and any(end is not None and end > ceiling for end in ends)
