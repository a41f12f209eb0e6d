"""ModelCloak's search: of the settings that leak nothing, the most accurate one.

The rule (Wei et al.: Model Cloaking against Gradient Leakage, ICDM 2023, section IV and Table II):
attack every setting (C, sigma) of a grid, keep those with attack success rate 0, take the one with
the best accuracy. The paper reports the rate on the images it chose by. Here the victims of each
network fall into two halves: the first one chooses, the second one, which had no part in the
choice, says what the chosen setting leaks.

`select` is pure; `search` runs the suite first. `docs/cloak.md` says how to read the result.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, Literal

from leakbench import planning, runner
from leakbench.data.catalog import look_up
from leakbench.described import PlannedCell, PlannedTraining
from leakbench.errors import LeakbenchError, unknown_name
from leakbench.records import Key, Record, Run
from leakbench.report import cells, costs
from leakbench.report.content import CostEntry
from leakbench.report.measured import Rule, rules_of
from leakbench.report.renderings import markdown_table
from leakbench.report.tables import Table
from leakbench.report.words import (
    DASH,
    compact,
    epsilon_words,
    interval_words,
    share_words,
    training_words,
)
from leakbench.runner import Outcome
from leakbench.spec import Knowledge, Plan, Scalar
from leakbench.statistics import Interval

RULE = "strict"
"""Name of the success rule that chooses where none is asked for."""

NOT_IN_EPSILON = "Chosen on private data: the choice is not accounted for in epsilon."

Standing = Literal["control", "leaks", "incomplete", "no accuracy", "resists"]
"""What the selection half says of a setting. control: no defense at all, never chosen; leaks: some
attacker has a success; incomplete: trials crashed or are absent, which shows no protection; no
accuracy: not every network is trained; resists: none of these."""

Victims = tuple[tuple[int, ...], ...]
"""Candidate numbers, a tuple a network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attacked:
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
class Setting:
    """A defense with its parameters, attacked on both halves and trained.

    cost: its entry of `report.costs.build`; None where the suite trains no network with it.
    """

    defense: str
    label: str
    plugin: str
    parameters: Mapping[str, Scalar]
    selection: tuple[Attacked, ...]
    fresh: tuple[Attacked, ...]
    cost: CostEntry | None

    @property
    def noise(self) -> float | None:
        """Standard deviation sigma C of its noise; None for a defense without these parameters."""
        clip, scale = (self.parameters.get(name) for name in ("clip", "noise_multiplier"))
        if isinstance(clip, int | float) and isinstance(scale, int | float):
            return float(clip * scale)
        return None

    @property
    def accuracy(self) -> float | None:
        """Mean accuracy over networks, in [0, 1]; None without a training."""
        return None if self.cost is None else self.cost.accuracy.value

    def standing(self, rule: str) -> Standing:
        """What the selection half says of it under a rule."""
        if self.plugin == "none":
            return "control"
        if any(attacked.successes(rule) for attacked in self.selection):
            return "leaks"
        if not _complete(self.selection):
            return "incomplete"
        # Means over different networks do not compare, and nan weights classify nothing.
        if self.cost is None or not self.cost.complete:
            return "no accuracy"
        return "resists"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What is chosen on one data set, and everything it was chosen from.

    chosen: None where no setting resists; `least_leaking` then is the complete one of the lowest
    rate, if there is one, and `reason` says why. selection, fresh: victims of the two halves.

    Raises:
        LeakbenchError: a victim in both halves.
    """

    dataset: str
    rule: str
    settings: tuple[Setting, ...]
    chosen: Setting | None
    least_leaking: Setting | None
    reason: str
    selection: Victims
    fresh: Victims

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
        """Whether the chosen setting leaks on fresh victims, under the rule it was chosen by."""
        return self.chosen is not None and any(a.successes(self.rule) for a in self.chosen.fresh)

    def cautions(self) -> tuple[str, ...]:
        """What a reader must know before he believes the choice, a sentence each."""
        return (*_leak_cautions(self), *_attack_cautions(self), *_accuracy_cautions(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """How the run went, and what is chosen, a choice a data set; none after an interrupt."""

    outcome: Outcome
    choices: tuple[Choice, ...]


# ------------------------------------------------------------------------------ search


def search(
    plan: Plan,
    folder: Path,
    *,
    root: Path | None,
    device: str = "cpu",
    workers: int = 1,
    rule: str | None = None,
    report: runner.OnProgress = lambda progress: None,
) -> Search:
    """Run what is left of a suite into `folder`, as `runner.run` does, and choose.

    Raises:
        LeakbenchError: see `check`, before anything runs, and `runner.run`.
    """
    check(plan, rule)
    outcome = runner.run(plan, folder, root=root, device=device, workers=workers, report=report)
    if outcome.interrupted:
        return Search(outcome=outcome, choices=())
    planned = planning.plan_cells(plan, root, outcome.platform)
    trained = planning.plan_trainings(plan, root, outcome.platform)
    choices = select(plan, planned, trained, Run(folder).records(), rule=rule)
    return Search(outcome=outcome, choices=choices)


def check(plan: Plan, rule: str | None = None) -> Rule:
    """The rule that chooses, if this plan can be chosen from.

    Raises:
        LeakbenchError: an unknown rule, no accuracy to choose by, no setting but the undefended
            one, or too few victims for two halves.
    """
    rules = {each.name: each for each in rules_of(plan)}
    name = RULE if rule is None else rule
    if name not in rules:
        raise unknown_name("rule", name, rules, f"{plan.file}, rule to choose by")
    if not plan.priced:
        raise LeakbenchError(f"{plan.file}: no [utility] table, so no accuracy to choose by")
    if not plan.utility:
        text = f"key profiles.{plan.profile}.utility.networks: 0 trains none, so there is no"
        raise LeakbenchError(f"{plan.file}, {text} accuracy to choose by; at least 1")
    if all(cell.defense == "none" for cell in plan.cells):
        text = "no setting to choose from; a row whose defense is not 'none' is one"
        raise LeakbenchError(f"{plan.file}, key defenses: {text}")
    for dataset in dict.fromkeys(cell.dataset for cell in plan.cells):
        sizes = [cell.images_a_gradient for cell in plan.cells if cell.dataset == dataset]
        halves = split([(range(plan.victims // size * size), size) for size in sizes])
        _refuse_empty(plan, dataset, sizes, halves)
    return rules[name]


# ------------------------------------------------------------------------------ halves


def split(
    lists: Sequence[tuple[Sequence[int], int]],
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The victims of one network, as each cell of a data set has them, in two halves.

    Args:
        lists: For every cell its victims, increasing and in whole batches, and the batch size.

    Returns:
        For every cell (first half, second half) in whole batches. All cells are cut at the same
        candidate, in the middle of the one with the largest batches (an odd batch goes to the
        second half), so no victim is in the first half of one cell and the second of another; a
        smaller batch across the cut is in neither. A half is empty where it holds no batch.
    """
    longest, size = max(lists, key=lambda item: item[1])
    middle = len(longest) // size // 2 * size
    halves = []
    for victims, each in lists:
        batches = [victims[i : i + each] for i in range(0, len(victims), each)]
        first = [batch for batch in batches if middle and batch[-1] < longest[middle]]
        second = [batch for batch in batches if middle and batch[0] >= longest[middle]]
        halves.append((_flat(first), _flat(second)))
    return halves


def _flat(batches: Sequence[Sequence[int]]) -> tuple[int, ...]:
    return tuple(victim for batch in batches for victim in batch)


def _refuse_empty(
    plan: Plan,
    dataset: str,
    sizes: Sequence[int],
    halves: Sequence[tuple[tuple[int, ...], tuple[int, ...]]],
) -> None:
    """Raise where a cell cannot choose and report on different victims."""
    for size, (first, second) in zip(sizes, halves, strict=True):
        if not (first and second):
            raise LeakbenchError(
                f"{plan.file}, key profiles.{plan.profile}.victims: {plan.victims} are too few on "
                f"{dataset} to choose by half of them and report on the other; a half needs at "
                f"least one batch, here of {size} image{'s' if size > 1 else ''}"
            )


def _halves(
    plan: Plan, planned: Sequence[PlannedCell]
) -> tuple[list[PlannedCell], list[PlannedCell]]:
    """The cells of one data set with the first, and with the second half of their victims."""
    sizes = [each.cell.images_a_gradient for each in planned]
    networks = []
    for lists in zip(*(each.victims for each in planned), strict=True):
        halves = split(list(zip(lists, sizes, strict=True)))
        _refuse_empty(plan, planned[0].cell.dataset, sizes, halves)
        networks.append(halves)
    first, second = (
        [each.only(tuple(halves[i][half] for halves in networks)) for i, each in enumerate(planned)]
        for half in (0, 1)
    )
    return first, second


def _victims(planned: Sequence[PlannedCell]) -> Victims:
    """All victims of some cells of a data set, network by network."""
    networks = zip(*(each.victims for each in planned), strict=True)
    return tuple(tuple(sorted({i for victims in lists for i in victims})) for lists in networks)


# ------------------------------------------------------------------------------ selection


def select(
    plan: Plan,
    planned: Sequence[PlannedCell],
    trained: Sequence[PlannedTraining],
    records: Mapping[Key, Record],
    *,
    rule: str | None = None,
) -> tuple[Choice, ...]:
    """Of the settings no attacker has a success against, the most accurate one (ModelCloak IV).

    A success of any attacker under `rule` on the first half of the victims disqualifies. Of equal
    accuracies the least noise sigma C wins, then the earlier row of the suite.

    Args:
        plan: The suite as resolved; its defenses are the settings, rows of the defense "none" the
            control.
        planned, trained: Its cells and trainings with their identities.
        records: `Run.records()`.
        rule: Name of one of the suite's rules; None: "strict".

    Returns:
        A choice a data set, in the order of the suite; without a setting that resists, or without
        data, it holds none and says why.

    Raises:
        LeakbenchError: see `check`.
    """
    chosen_by = check(plan, rule).name
    datasets = dict.fromkeys(each.cell.dataset for each in planned)
    return tuple(
        _choice(
            plan,
            [each for each in planned if each.cell.dataset == dataset],
            [each for each in trained if each.cell.dataset == dataset],
            records,
            chosen_by,
        )
        for dataset in datasets
    )


def choose(settings: Sequence[Setting], rule: str) -> Setting | None:
    """The most accurate of those that resist, see `select`; None where none does."""
    resisting = [setting for setting in settings if setting.standing(rule) == "resists"]
    return min(resisting, key=_preference, default=None)


def _choice(
    plan: Plan,
    planned: Sequence[PlannedCell],
    trained: Sequence[PlannedTraining],
    records: Mapping[Key, Record],
    rule: str,
) -> Choice:
    first, second = _halves(plan, planned)
    selection, fresh = (_attacked(plan, half, records) for half in (first, second))
    prices = {entry.row: entry for entry in costs.build(plan, trained, records)}
    labels = {defense.id: defense.label for defense in plan.defenses}
    settings = []
    for defense in dict.fromkeys(each.cell.defense_id for each in planned):
        rows = [i for i, each in enumerate(planned) if each.cell.defense_id == defense]
        cell = planned[rows[0]].cell
        settings.append(
            Setting(
                defense=defense,
                label=labels.get(defense, cell.label),
                plugin=cell.defense,
                parameters=dict(cell.defense_parameters),
                selection=tuple(selection[i] for i in rows),
                fresh=tuple(fresh[i] for i in rows),
                cost=prices.get(defense),
            )
        )
    chosen = choose(settings, rule)
    return Choice(
        dataset=planned[0].cell.dataset,
        rule=rule,
        settings=tuple(settings),
        chosen=chosen,
        least_leaking=_least_leaking(settings, rule) if chosen is None else None,
        reason="" if chosen is not None else planned[0].skip or _why_none(settings, rule),
        selection=_victims(first),
        fresh=_victims(second),
    )


def _attacked(
    plan: Plan, planned: Sequence[PlannedCell], records: Mapping[Key, Record]
) -> list[Attacked]:
    """What a report says of every cell."""
    unprinted = dataclasses.replace(plan, printed={})  # no paper prints a rate of half the victims
    report = cells.build(unprinted, planned, records, manifest={})
    found = []
    for each, cell in zip(planned, report.cells, strict=True):
        present = [records[key] for key in each.trials() if key in records]
        found.append(
            Attacked(
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


def _complete(half: Sequence[Attacked]) -> bool:
    """Whether every trial returned something to judge."""
    return not any(attacked.crashed or attacked.absent for attacked in half)


def _preference(setting: Setting) -> tuple[float, float]:
    """Smaller is better: accuracy up to rounding of its mean, then noise where it is known."""
    accuracy = -inf if setting.accuracy is None else round(setting.accuracy, 9)
    return -accuracy, inf if setting.noise is None else setting.noise


def _least_leaking(settings: Sequence[Setting], rule: str) -> Setting | None:
    """The complete setting of the lowest worst rate; of equal ones as in `select`."""
    complete = [s for s in settings if s.standing(rule) != "control" and _complete(s.selection)]
    return min(
        complete,
        key=lambda s: (worst(s.selection, rule).rates[rule].value or 0.0, *_preference(s)),
        default=None,
    )


def worst(half: Sequence[Attacked], rule: str) -> Attacked:
    """The attacker with the highest rate, then upper end; a setting is as good as that."""
    return max(half, key=lambda a: (a.rates[rule].value or 0.0, a.rates[rule].high or 0.0))


def _why_none(settings: Sequence[Setting], rule: str) -> str:
    """How the settings fail."""
    standings = [setting.standing(rule) for setting in settings]
    words = {
        "leaks": "leaking",
        "incomplete": "with trials that have no result",
        "no accuracy": "without an accuracy of every network (weights that are nan have none)",
    }
    counts = [f"{standings.count(s)} {text}" for s, text in words.items() if s in standings]
    return f"no setting resists: {', '.join(counts) or 'there is only the undefended row'}"


# ------------------------------------------------------------------------------ cautions


def _leak_cautions(choice: Choice) -> list[str]:
    """What the fresh victims say against the chosen setting."""
    chosen, rule = choice.chosen, choice.rule
    if chosen is None:
        return []
    found = []
    if choice.optimistic:
        leaks = [a for a in chosen.fresh if a.successes(rule)]
        counts = ", ".join(f"{a.name} {a.count(rule)}" for a in leaks)
        found.append(
            f"The chosen setting leaks on fresh victims ({counts}): the selection was optimistic."
        )
    if not _complete(chosen.fresh):
        lost = sum(a.crashed + a.absent for a in chosen.fresh)
        found.append(f"{lost} trials on fresh victims have no result: they show no protection.")
    if any("above_ceiling" in a.flags for a in (*chosen.selection, *chosen.fresh)):
        text = "More victims are identified than the guarantee allows"
        found.append(f"{text}: the mechanism or its accounting is wrong.")
    if any("non_adaptive_only" in a.flags for a in chosen.selection):
        text = "Only attackers who ignore the defense attacked it"
        found.append(f"{text}: low rates are no evidence of protection.")
    return found


def _accuracy_cautions(choice: Choice) -> list[str]:
    """Settings that learn nothing are all as good as each other."""
    accuracy = None if choice.chosen is None else choice.chosen.accuracy
    chance = 1 / look_up(choice.dataset).classes
    if accuracy is None or accuracy > 2 * chance:
        return []
    return [
        f"Its accuracy, {accuracy:.3f}, is next to guessing ({chance:.3f}): nothing was learnt."
    ]


def _attack_cautions(choice: Choice) -> list[str]:
    """Whether this rule, these attacks and victims can choose at all."""
    found = []
    attacked = [a for s in choice.settings for a in s.selection]
    controls = [s for s in choice.settings if s.standing(choice.rule) == "control"]
    measured = [a for s in controls for a in s.selection if a.rates[choice.rule].value is not None]
    if not controls:
        text = "No undefended row"
        found.append(f"{text}: nothing shows that these attacks are strong enough to choose by.")
    elif measured and not any(a.successes(choice.rule) for a in measured):
        text = "Without a defense no attacker has a success either"
        found.append(f"{text}: these attacks are too weak to choose by.")
    if all(choice.rule in a.start_passes for a in attacked):
        text = "The start image already passes this rule for every victim"
        found.append(f"{text}: what it calls a failure is an attack that went astray.")
    if any("few_networks" in a.flags for a in attacked):
        count = len(choice.selection)
        text = f"Intervals rest on {count} network{'s' if count > 1 else ''}"
        found.append(f"{text} and are too narrow.")
    return found


# ------------------------------------------------------------------------------ renderings


def to_json(plan: Plan, choices: Sequence[Choice]) -> str:
    """Strict JSON: every choice with all its settings, rates of both halves, costs, cautions."""
    rule = _rule(plan, choices)
    content = {
        "suite": plan.name,
        "profile": plan.profile,
        "rule": {"name": rule.name, "label": rule.label, "paper": rule.paper},
        "guide": list(_guide(rule)),
        "choices": [_as_dict(choice) for choice in choices],
    }
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _rule(plan: Plan, choices: Sequence[Choice]) -> Rule:
    """The rule that all choices were made by."""
    return next(rule for rule in rules_of(plan) if rule.name == choices[0].rule)


def _as_dict(choice: Choice) -> dict[str, Any]:
    return {
        "dataset": choice.dataset,
        "chosen": choice.chosen and choice.chosen.defense,
        "least_leaking": choice.least_leaking and choice.least_leaking.defense,
        "reason": choice.reason,
        "optimistic": choice.optimistic,
        "same_victims": choice.same_victims,
        "cautions": list(choice.cautions()),
        "victims": {"selection": choice.selection, "fresh": choice.fresh},
        "settings": [
            dataclasses.asdict(s)
            | {
                "cost": None if s.cost is None else s.cost.as_dict(),
                "noise": s.noise,
                "accuracy": s.accuracy,
                "standing": s.standing(choice.rule),
            }
            for s in choice.settings
        ],
    }


def to_markdown(plan: Plan, choices: Sequence[Choice]) -> str:
    """The choice of each data set, what it leaks and costs, and all settings beside it."""
    rule = _rule(plan, choices)
    networks = f"{plan.networks} network{'s' if plan.networks > 1 else ''}"
    parts = [
        f"# The setting to choose: {plan.title}",
        f"Suite {plan.name}, profile {plan.profile}: {networks} x {plan.victims} victims.",
        "\n".join(f"- {line}" for line in _guide(rule)),
    ]
    for choice in choices:
        parts += _section(plan, choice, rule)
    return "\n\n".join(parts) + "\n"


def _guide(rule: Rule) -> tuple[str, ...]:
    return (
        "Chosen on the first half of each network's victims: of the settings under which no "
        f"attacker has a success by the rule '{rule.label}', the most accurate; of equal ones that "
        "of the least noise sigma C.",
        "Reported on the second half: other victims, which had no part in the choice. Rates with "
        "95 % intervals; 'at most' is the upper end.",
        NOT_IN_EPSILON,
        "The accuracy is the one it was chosen by, which flatters the best of many. Who picks "
        "another setting by the fresh column has no fresh victims left.",
    )


def _section(plan: Plan, choice: Choice, rule: Rule) -> list[str]:
    parts = [f"## {look_up(choice.dataset).title} ({choice.dataset})"]
    chosen, least = choice.chosen, choice.least_leaking
    if chosen is not None:
        parts.append(f"**Chosen: {chosen.label}**")
    else:
        parts.append(f"**None: {choice.reason}.**")
    if least is not None:
        count = worst(least.selection, rule.name).count(rule.name)
        parts.append(f"The least leaking one is {least.label}, worst attacker {count}.")
    if not any(a.trials for s in choice.settings for a in s.selection):
        return parts  # no data, so nothing to show or to be careful about
    parts += [f"**Caution.** {text}" for text in choice.cautions()]
    if chosen is not None and chosen.cost is not None:
        shown = [each for each in rules_of(plan) if each.name == rule.name or not each.judged.bare]
        parts += _table(_chosen_table(chosen, shown))
        parts += [_cost(chosen.cost), NOT_IN_EPSILON]
    return [*parts, *_table(_all_table(choice, rule))]


def _table(table: Table) -> list[str]:
    return [f"**{table.caption}**", markdown_table(table)]


def _chosen_table(chosen: Setting, rules: Sequence[Rule]) -> Table:
    """A row an attacker and rule, on fresh victims."""
    rows = []
    for attacked in chosen.fresh:
        for rule in rules:
            interval = attacked.rates[rule.name]
            bounded = rule.judged.identifies_first
            rows.append(
                (
                    attacked.name,
                    rule.label,
                    interval_words(interval),
                    f"{attacked.count(rule.name)} means at most {compact(interval.high)}",
                    compact(attacked.ceiling if bounded else None),
                )
            )
    return Table(
        caption=f"{chosen.label} on fresh victims",
        header=("attacker", "rule", "rate", "successes", "ceiling"),
        rows=tuple(rows),
    )


def _cost(cost: CostEntry) -> str:
    """Accuracy with its curve, epsilon, and what they were measured on."""
    curve = " ".join(f"{rounds}: {share:.3f}" for rounds, share in cost.curve)
    return (
        f"Accuracy {share_words(cost.accuracy)}; curve (rounds: accuracy) {curve}; "
        f"epsilon of the final model {epsilon_words(cost.privacy)}; "
        f"trained: {training_words(cost)}."
    )


def _all_table(choice: Choice, rule: Rule) -> Table:
    """A row a setting; rates are those of its worst attacker on each half."""
    rows = []
    for setting in choice.settings:
        marks: list[str] = [setting.standing(rule.name)]
        if setting is choice.chosen:
            marks = ["chosen, leaks on fresh victims" if choice.optimistic else "chosen"]
        elif setting is choice.least_leaking:
            marks.append("least of all")
        accuracy = Interval(None, None, None) if setting.cost is None else setting.cost.accuracy
        rows.append(
            (
                setting.label,
                compact(setting.noise),
                *(_rate(half, rule.name) for half in (setting.selection, setting.fresh)),
                share_words(accuracy),
                ", ".join(marks),
            )
        )
    halves = (f"{half}: worst attack, {rule.label}" for half in ("selection", "fresh"))
    return Table(
        caption="All settings",
        header=("setting", "sigma C", *halves, "accuracy", "selection says"),
        rows=tuple(rows),
    )


def _rate(half: Sequence[Attacked], rule: str) -> str:
    """Rate of the worst attacker with its interval and count."""
    found = worst(half, rule)
    if found.rates[rule].value is None:
        return DASH
    return f"{interval_words(found.rates[rule])}, {found.count(rule)}"
