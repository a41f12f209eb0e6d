"""Choosing a defense by constraints: of the settings that hold them, the most accurate one.

A setting is a row of a suite, attacked and trained. `Criteria` say what it must hold, and which of
those that do is taken. By default it is ModelCloak's rule (Wei et al.: Model Cloaking against
Gradient Leakage, ICDM 2023, section IV and Table II): keep what has attack success rate 0, take the
best accuracy. The paper reports the rate on the images it chose by. Here the victims of each
network fall into two halves: the first one chooses, the second one, which had no part in the
choice, says what the chosen setting leaks.

`select` is pure; `search` runs the suite first. `docs/cloak.md` says how to read the result.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod
from pathlib import Path
from typing import Literal

from leakbench import manifest, runner
from leakbench.contracts import changes_nothing
from leakbench.described import PlannedCell, PlannedTraining
from leakbench.errors import LeakbenchError, unknown_name
from leakbench.executors import Executor
from leakbench.halves import VictimLists, check_halves, in_halves, victims_of
from leakbench.networks import build_defense
from leakbench.records import Key, Record, Run
from leakbench.report import cells, costs
from leakbench.report.content import CostEntry
from leakbench.runner import Outcome
from leakbench.spec import Cell, Knowledge, Plan, Scalar
from leakbench.statistics import Interval
from leakbench.stopping import NEVER, Stop

Standing = Literal["control", "leaks", "incomplete", "no accuracy", "resists"]
"""What the selection half says of a setting. control: no defense at all, never chosen; leaks: some
attacker gets more than the criteria allow; incomplete: trials crashed or are absent, which shows no
protection; no accuracy: not every network is trained; resists: none of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackerResult:
    """What one attacker got from one half of a setting's victims.

    rates: by name of the rule, over `trials` images of `batches` independent gradients; value None
    where nothing was judged. crashed: trials that came to nothing, failures in the rates. absent:
    planned trials without a result, in no rate. start_passes: rules that the start image meets for
    every victim. ceiling: see `report.cells`; flags: names.
    """

    variant: str
    attack: str
    knowledge: Knowledge
    trials: int
    batches: int
    crashed: int
    absent: int
    rates: Mapping[str, Interval]
    start_passes: tuple[str, ...]
    ceiling: float | None
    flags: tuple[str, ...]

    @property
    def name(self) -> str:
        """Attacker in words."""
        variant = f"{self.variant}: " if self.variant else ""
        return f"{variant}{self.attack} {self.knowledge}"

    def successes(self, rule: str) -> int:
        """Images recovered under a rule; 0 where nothing was judged."""
        return round((self.rates[rule].value or 0.0) * self.trials)

    def count(self, rule: str) -> str:
        """Successes of trials in words; batches too where images stand or fall together."""
        batches = f" in {self.batches} batches" if self.batches < self.trials else ""
        return f"{self.successes(rule)} of {self.trials}{batches}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Criteria:
    """What a setting must hold, and which of those that do is taken: the most accurate.

    rule: name of the suite's rule that says what a success is. at_most: largest upper end of any
    attacker's rate, in [0, 1]; None allows no success, whatever the interval. ties: parameters; of
    equal accuracies the least product of these wins, then the earlier row of the suite.

    Raises:
        LeakbenchError: at_most is no rate.
    """

    rule: str = "strict"
    at_most: float | None = None
    ties: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.at_most is not None and not 0 <= self.at_most <= 1:
            text = f"at_most must be a rate from 0 to 1, or None for no success, got {self.at_most}"
            raise LeakbenchError(f"criteria: {text}")

    def allow(self, result: AttackerResult) -> bool:
        """Whether an attacker got no more than a setting may leak."""
        if self.at_most is None:
            return result.successes(self.rule) == 0
        return (result.rates[self.rule].high or 0.0) <= self.at_most

    def tie(self, parameters: Mapping[str, Scalar]) -> float | None:
        """Product of the parameters that ties are broken by; None where one is no number."""
        values = [parameters.get(name) for name in self.ties]
        numbers = [value for value in values if isinstance(value, int | float)]
        return float(prod(numbers)) if numbers and len(numbers) == len(values) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSetting:
    """A defense with its parameters, attacked on both halves and trained.

    control: whether it does nothing, and so shows what attackers get without a defense. cost: its
    entry of `report.costs.build`; None where the suite trains no network with it.
    """

    defense: str
    label: str
    plugin: str
    control: bool
    parameters: Mapping[str, Scalar]
    selection: tuple[AttackerResult, ...]
    fresh: tuple[AttackerResult, ...]
    cost: CostEntry | None

    @property
    def accuracy(self) -> float | None:
        """Mean accuracy over networks, in [0, 1]; None without a training."""
        return None if self.cost is None else self.cost.accuracy.value

    def standing(self, criteria: Criteria) -> Standing:
        """What the selection half says of it."""
        if self.control:
            return "control"
        if not all(map(criteria.allow, self.selection)):
            return "leaks"
        if not complete(self.selection):
            return "incomplete"
        # Means over different networks do not compare, and nan weights classify nothing.
        if self.cost is None or not self.cost.complete:
            return "no accuracy"
        return "resists"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What is chosen on one data set, and everything it was chosen from.

    title, classes: of the data set, see `PlannedCell`. chosen: None where no setting resists;
    `least_leaking` then is the complete one of the lowest rate, if there is one, and `reason` says
    why. selection, fresh: victims of the two halves.

    Raises:
        LeakbenchError: a victim in both halves.
    """

    dataset: str
    title: str
    classes: int
    criteria: Criteria
    settings: tuple[MeasuredSetting, ...]
    chosen: MeasuredSetting | None
    least_leaking: MeasuredSetting | None
    reason: str
    selection: VictimLists
    fresh: VictimLists

    def __post_init__(self) -> None:
        if self.same_victims:
            text = "victims of the selection among the fresh ones; the halves must share none"
            raise LeakbenchError(f"{self.dataset}: {text}")

    @property
    def same_victims(self) -> bool:
        """Whether it was chosen and is reported on a same victim; no `Choice` is."""
        chosen_by = {victim for network in self.selection for victim in network}
        return any(victim in chosen_by for network in self.fresh for victim in network)

    @property
    def optimistic(self) -> bool:
        """Whether the chosen setting leaks more on fresh victims than the criteria allow."""
        return self.chosen is not None and not all(map(self.criteria.allow, self.chosen.fresh))


# ------------------------------------------------------------------------------ search


def search(
    plan: Plan,
    folder: Path,
    criteria: Criteria,
    *,
    root: Path | None,
    device: str = "cpu",
    executor: Executor | None = None,
    stop: Stop = NEVER,
    report: runner.OnProgress = lambda progress: None,
) -> tuple[Outcome, tuple[Choice, ...]]:
    """Run what is left of a suite into `folder`, as `runner.run` does, and choose.

    Returns:
        How the run went, and a choice a data set; none after an interrupt.

    Raises:
        LeakbenchError: see `check`, before anything runs, and `runner.run`.
    """
    check(plan, criteria)
    outcome = runner.run(
        plan, folder, root=root, device=device, executor=executor, stop=stop, report=report
    )
    if outcome.interrupted:
        return outcome, ()
    run = Run(folder)
    known = manifest.read(run)
    return outcome, select(plan, known.cells, known.trainings, run.records(), criteria)


def check(plan: Plan, criteria: Criteria) -> None:
    """Refuse a plan that cannot be chosen from.

    Raises:
        LeakbenchError: an unknown rule, no accuracy to choose by, no setting but the undefended
            one, or too few victims for two halves.
    """
    rules = [rule.name for rule in plan.rules]
    if not plan.cells:
        raise LeakbenchError(f"{plan.file}: it attacks nothing, so no setting is known to resist")
    if criteria.rule not in rules:
        raise unknown_name("rule", criteria.rule, rules, f"{plan.file}, rule to choose by")
    if not plan.priced:
        raise LeakbenchError(f"{plan.file}: no [utility] table, so no accuracy to choose by")
    if not plan.utility:
        text = f"key profiles.{plan.profile}.utility.networks: 0 trains none, so there is no"
        raise LeakbenchError(f"{plan.file}, {text} accuracy to choose by; at least 1")
    if all(map(_is_control, {cell.defense_id: cell for cell in plan.cells}.values())):
        text = "no setting to choose from; a row whose defense does something is one"
        raise LeakbenchError(f"{plan.file}, key defenses: {text}")
    check_halves(plan)


def _is_control(cell: Cell) -> bool:
    return changes_nothing(build_defense(cell))


# ------------------------------------------------------------------------------ selection


def select(
    plan: Plan,
    planned: Sequence[PlannedCell],
    trained: Sequence[PlannedTraining],
    records: Mapping[Key, Record],
    criteria: Criteria,
) -> tuple[Choice, ...]:
    """Of the settings that hold the criteria, by any attacker on the first half, the most accurate.

    Args:
        plan: The suite as resolved; its defenses are the settings, those that do nothing the
            controls.
        planned, trained: Its cells and trainings with their identities.
        records: `Run.records()`.

    Returns:
        A choice a data set, in the order of the suite; without a setting that resists, or without
        data, it holds none and says why.

    Raises:
        LeakbenchError: see `check`.
    """
    check(plan, criteria)
    datasets = dict.fromkeys(each.cell.dataset for each in planned)
    return tuple(
        _choice(
            plan,
            [each for each in planned if each.cell.dataset == dataset],
            [each for each in trained if each.cell.dataset == dataset],
            records,
            criteria,
        )
        for dataset in datasets
    )


def choose(settings: Sequence[MeasuredSetting], criteria: Criteria) -> MeasuredSetting | None:
    """The most accurate of those that resist, ties as in `Criteria`; None where none does."""
    resisting = [setting for setting in settings if setting.standing(criteria) == "resists"]
    return min(resisting, key=lambda setting: _preference(setting, criteria), default=None)


def _choice(
    plan: Plan,
    planned: Sequence[PlannedCell],
    trained: Sequence[PlannedTraining],
    records: Mapping[Key, Record],
    criteria: Criteria,
) -> Choice:
    first, second = in_halves(plan, planned)
    selection, fresh = (_results(plan, half, records) for half in (first, second))
    prices: dict[str, CostEntry] = {}
    for entry in costs.build(plan, trained, records):
        prices.setdefault(entry.defense, entry)  # of several variants the first is chosen by
    labels = {defense.id: defense.label for defense in plan.defenses}
    settings = []
    for defense in dict.fromkeys(each.cell.defense_id for each in planned):
        rows = [i for i, each in enumerate(planned) if each.cell.defense_id == defense]
        cell = planned[rows[0]].cell
        settings.append(
            MeasuredSetting(
                defense=defense,
                label=labels.get(defense, cell.label),
                plugin=cell.defense,
                control=_is_control(cell),
                parameters=dict(cell.defense_parameters),
                selection=tuple(selection[i] for i in rows),
                fresh=tuple(fresh[i] for i in rows),
                cost=prices.get(defense),
            )
        )
    chosen = choose(settings, criteria)
    return Choice(
        dataset=planned[0].cell.dataset,
        title=planned[0].title,
        classes=planned[0].classes,
        criteria=criteria,
        settings=tuple(settings),
        chosen=chosen,
        least_leaking=_least_leaking(settings, criteria) if chosen is None else None,
        reason="" if chosen is not None else planned[0].skip or _why_none(settings, criteria),
        selection=victims_of(first),
        fresh=victims_of(second),
    )


def _results(
    plan: Plan, planned: Sequence[PlannedCell], records: Mapping[Key, Record]
) -> list[AttackerResult]:
    """What a report says of every cell."""
    unprinted = dataclasses.replace(plan, printed={})  # no paper prints a rate of half the victims
    report = cells.build(unprinted, planned, records, manifest={})
    found = []
    for each, cell in zip(planned, report.cells, strict=True):
        present = [records[key] for key in each.trials() if key in records]
        found.append(
            AttackerResult(
                variant=cell.variant,
                attack=cell.attack,
                knowledge=cell.knowledge,
                trials=cell.planned - cell.absent,
                batches=len({(r["identity"], r["batch"]) for r in present}),
                crashed=cell.crashed,
                absent=cell.absent,
                rates=cell.asr,
                start_passes=cell.start_passes,
                ceiling=cell.ceiling,
                flags=cell.flag_names,
            )
        )
    return found


def complete(half: Sequence[AttackerResult]) -> bool:
    """Whether every trial returned something to judge."""
    return not any(attacked.crashed or attacked.absent for attacked in half)


def _preference(setting: MeasuredSetting, criteria: Criteria) -> tuple[float, float]:
    """Smaller is better: accuracy up to rounding of its mean, then what breaks ties, if known."""
    accuracy = -inf if setting.accuracy is None else round(setting.accuracy, 9)
    tie = criteria.tie(setting.parameters)
    return -accuracy, inf if tie is None else tie


def _least_leaking(
    settings: Sequence[MeasuredSetting], criteria: Criteria
) -> MeasuredSetting | None:
    """The complete setting of the lowest worst rate; of equal ones as in `choose`."""

    def order(setting: MeasuredSetting) -> tuple[float, ...]:
        rate = worst(setting.selection, criteria.rule).rates[criteria.rule].value
        return rate or 0.0, *_preference(setting, criteria)

    shown = [s for s in settings if not s.control and complete(s.selection)]
    return min(shown, key=order, default=None)


def worst(half: Sequence[AttackerResult], rule: str) -> AttackerResult:
    """The attacker with the highest rate, then upper end; a setting is as good as that."""
    return max(half, key=lambda a: (a.rates[rule].value or 0.0, a.rates[rule].high or 0.0))


def _why_none(settings: Sequence[MeasuredSetting], criteria: Criteria) -> str:
    """How the settings fail."""
    standings = [setting.standing(criteria) for setting in settings]
    words = {
        "leaks": "leaking",
        "incomplete": "with trials that have no result",
        "no accuracy": "without an accuracy of every network (weights that are nan have none)",
    }
    counts = [f"{standings.count(s)} {text}" for s, text in words.items() if s in standings]
    return f"no setting resists: {', '.join(counts) or 'there is only the undefended row'}"
