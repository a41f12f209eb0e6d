"""A choice of a defense in words: as JSON, as Markdown, and what to be careful about."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from leakbench.report.content import CostEntry
from leakbench.report.measured import LabelledRule, rules_of
from leakbench.report.renderings import markdown_table
from leakbench.report.words import (
    DASH,
    Table,
    compact,
    epsilon_words,
    interval_words,
    share_words,
    training_words,
)
from leakbench.selection import (
    AttackerResult,
    Choice,
    Criteria,
    MeasuredSetting,
    complete,
    worst,
)
from leakbench.spec import Plan
from leakbench.statistics import Interval

NOT_IN_EPSILON = "Chosen on private data: the choice is not accounted for in epsilon."


# ------------------------------------------------------------------------------ cautions


def cautions(choice: Choice) -> tuple[str, ...]:
    """What a reader must know before he believes the choice, a sentence each."""
    return (*_leak_cautions(choice), *_attack_cautions(choice), *_accuracy_cautions(choice))


def _leak_cautions(choice: Choice) -> list[str]:
    """What the fresh victims say against the chosen setting."""
    chosen, criteria = choice.chosen, choice.criteria
    if chosen is None:
        return []
    found = []
    if choice.optimistic:
        leaks = [a for a in chosen.fresh if not criteria.allow(a)]
        counts = ", ".join(f"{a.name} {a.count(criteria.rule)}" for a in leaks)
        found.append(
            f"The chosen setting leaks on fresh victims ({counts}): the selection was optimistic."
        )
    if not complete(chosen.fresh):
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
    if accuracy is None or not choice.classes or accuracy > 2 / choice.classes:
        return []
    chance = 1 / choice.classes
    return [
        f"Its accuracy, {accuracy:.3f}, is next to guessing ({chance:.3f}): nothing was learnt."
    ]


def _attack_cautions(choice: Choice) -> list[str]:
    """Whether this rule, these attacks and victims can choose at all."""
    found, rule = [], choice.criteria.rule
    attacked = [a for s in choice.settings for a in s.selection]
    controls = [s for s in choice.settings if s.control]
    measured = [a for s in controls for a in s.selection if a.rates[rule].value is not None]
    if not controls:
        text = "No undefended row"
        found.append(f"{text}: nothing shows that these attacks are strong enough to choose by.")
    elif measured and not any(a.successes(rule) for a in measured):
        text = "Without a defense no attacker has a success either"
        found.append(f"{text}: these attacks are too weak to choose by.")
    if all(rule in a.start_passes for a in attacked):
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
        "at_most": choices[0].criteria.at_most,
        "guide": list(_guide(rule, choices[0].criteria)),
        "choices": [_as_dict(choice) for choice in choices],
    }
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _rule(plan: Plan, choices: Sequence[Choice]) -> LabelledRule:
    """The rule that all choices were made by."""
    return next(rule for rule in rules_of(plan) if rule.name == choices[0].criteria.rule)


def _as_dict(choice: Choice) -> dict[str, Any]:
    return {
        "dataset": choice.dataset,
        "chosen": choice.chosen and choice.chosen.defense,
        "least_leaking": choice.least_leaking and choice.least_leaking.defense,
        "reason": choice.reason,
        "optimistic": choice.optimistic,
        "same_victims": choice.same_victims,
        "cautions": list(cautions(choice)),
        "victims": {"selection": choice.selection, "fresh": choice.fresh},
        "settings": [
            dataclasses.asdict(s)
            | {
                "cost": None if s.cost is None else s.cost.as_dict(),
                "tie": choice.criteria.tie(s.parameters),
                "accuracy": s.accuracy,
                "standing": s.standing(choice.criteria),
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
        "\n".join(f"- {line}" for line in _guide(rule, choices[0].criteria)),
    ]
    for choice in choices:
        parts += _section(plan, choice, rule)
    return "\n\n".join(parts) + "\n"


def _guide(rule: LabelledRule, criteria: Criteria) -> tuple[str, ...]:
    allowed = f"no attacker has a success by the rule '{rule.label}'"
    if criteria.at_most is not None:
        allowed = (
            f"every attacker's rate by the rule '{rule.label}' has an upper end of at most "
            f"{criteria.at_most:g}"
        )
    ties = f"; of equal ones that of the least {_ties(criteria)}" if criteria.ties else ""
    return (
        "Chosen on the first half of each network's victims: of the settings under which "
        f"{allowed}, the most accurate{ties}.",
        "Reported on the second half: other victims, which had no part in the choice. Rates with "
        "95 % intervals; 'at most' is the upper end.",
        NOT_IN_EPSILON,
        "The accuracy is the one it was chosen by, which flatters the best of many. Who picks "
        "another setting by the fresh column has no fresh victims left.",
    )


def _ties(criteria: Criteria) -> str:
    return " x ".join(criteria.ties)


def _section(plan: Plan, choice: Choice, rule: LabelledRule) -> list[str]:
    parts = [f"## {choice.title} ({choice.dataset})"]
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
    parts += [f"**Caution.** {text}" for text in cautions(choice)]
    if chosen is not None and chosen.cost is not None:
        shown = [each for each in rules_of(plan) if each.name == rule.name or not each.judged.bare]
        parts += _table(_chosen_table(chosen, shown))
        parts += [_cost(chosen.cost), NOT_IN_EPSILON]
    return [*parts, *_table(_all_table(choice, rule))]


def _table(table: Table) -> list[str]:
    return [f"**{table.caption}**", markdown_table(table)]


def _chosen_table(chosen: MeasuredSetting, rules: Sequence[LabelledRule]) -> Table:
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


def _all_table(choice: Choice, rule: LabelledRule) -> Table:
    """A row a setting; rates are those of its worst attacker on each half."""
    rows, criteria = [], choice.criteria
    for setting in choice.settings:
        marks: list[str] = [setting.standing(criteria)]
        if setting is choice.chosen:
            marks = ["chosen, leaks on fresh victims" if choice.optimistic else "chosen"]
        elif setting is choice.least_leaking:
            marks.append("least of all")
        accuracy = Interval(None, None, None) if setting.cost is None else setting.cost.accuracy
        rows.append(
            (
                setting.label,
                compact(criteria.tie(setting.parameters)),
                *(_rate(half, rule.name) for half in (setting.selection, setting.fresh)),
                share_words(accuracy),
                ", ".join(marks),
            )
        )
    halves = (f"{half}: worst attack, {rule.label}" for half in ("selection", "fresh"))
    return Table(
        caption="All settings",
        header=("setting", _ties(criteria) or "ties", *halves, "accuracy", "selection says"),
        rows=tuple(rows),
    )


def _rate(half: Sequence[AttackerResult], rule: str) -> str:
    """Rate of the worst attacker with its interval and count."""
    found = worst(half, rule)
    if found.rates[rule].value is None:
        return DASH
    return f"{interval_words(found.rates[rule])}, {found.count(rule)}"
