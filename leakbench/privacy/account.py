"""Epsilon of a list of events, with everything that must be said beside it.

Accountants are imported when they are asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from leakbench.errors import LeakbenchError, unknown_name
from leakbench.privacy.events import PrivacyEvent, Relation, check_count, check_delta, grouped
from leakbench.privacy.presets import Preset, preset_of
from leakbench.spec import ACCOUNTANTS

Level = Literal["instance", "client", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One epsilon, and what it is an epsilon of.

    epsilon: In [0, inf], or None where there is none, which `reason` explains. observations: how
    often the observer looks; None for a whole training run. level: whose presence is hidden.
    """

    accountant: str
    preset: str
    observer: str
    relation: Relation
    level: Level = "instance"
    observations: int | None = None
    epsilon: float | None
    delta: float
    reason: str = ""
    assumptions: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """For JSON, which has no infinity: epsilon is None then too, and `reason` says so."""
        infinite = self.epsilon == math.inf
        return {
            "accountant": self.accountant,
            "preset": self.preset,
            "observer": self.observer,
            "relation": self.relation,
            "level": self.level,
            "observations": self.observations,
            "epsilon": None if infinite else self.epsilon,
            "delta": self.delta,
            "reason": self.reason or ("infinite: no privacy at all" if infinite else ""),
            "assumptions": list(self.assumptions),
        }


@dataclass(frozen=True, slots=True)
class _Outcome:
    """Epsilon or the reason for none, and what holds for this accountant only."""

    epsilon: float | None
    reason: str = ""
    assumptions: tuple[str, ...] = ()


_Accountant = Callable[[Sequence[PrivacyEvent], float, Relation, Preset], _Outcome]


def epsilon(
    events: Iterable[PrivacyEvent],
    delta: float,
    *,
    accountant: str = "pld",
    preset: str = "strict",
    relation: Relation | None = None,
    observer: str = "model",
    level: Level = "instance",
    observations: int | None = None,
    group_size: int = 1,
    assumptions: tuple[str, ...] = (),
) -> Result:
    """Epsilon at `delta` of the composed events by one accountant.

    Args:
        events: Heterogeneous steps in any order. Presets of papers are for events as the papers
            count them (see `Preset.assumptions`); the steps are theirs, T, without what the preset
            adds.
        delta: In (0, 1); of everything together under `strict`.
        accountant: One of `ACCOUNTANTS`.
        preset: One of `presets.PRESETS`.
        relation: Neighbouring relation; None takes the preset's own.
        group_size: How many examples neighbours differ in, all of one client; above 1 for `pld`.
        observer, level, observations, assumptions: Repeated in the result.

    Returns:
        An epsilon, or the reason for none: a sampling or relation the accountant has no bound for.

    Raises:
        LeakbenchError: If an argument is unknown or outside its range.
    """
    check_delta(delta)
    check_count("group_size", group_size)
    conventions = preset_of(preset)
    related = _relation(conventions, relation)
    if accountant not in ACCOUNTANTS:
        raise unknown_name("accountant", accountant, ACCOUNTANTS)
    listed = _with_extra_steps(tuple(events), conventions.extra_steps)
    if group_size != 1 and accountant != "pld":
        outcome = _Outcome(None, "groups of examples are accounted by 'pld' only")
    elif any(group.noise_multiplier == 0 for group in grouped(listed)):
        outcome = _Outcome(math.inf, "a step adds no noise")
    elif group_size != 1:
        outcome = _pld(listed, delta, related, conventions, group_size)
    else:
        outcome = _COMPUTE[accountant](listed, delta, related, conventions)
    return Result(
        accountant=accountant,
        preset=preset,
        observer=observer,
        relation=related,
        level=level,
        observations=observations,
        epsilon=outcome.epsilon,
        delta=delta,
        reason=outcome.reason,
        assumptions=(*assumptions, *conventions.assumptions, *outcome.assumptions),
    )


def _with_extra_steps(events: tuple[PrivacyEvent, ...], count: int) -> tuple[PrivacyEvent, ...]:
    """Events with `count` more of the last kind; no events stay none."""
    if not events or count == 0 or not any(event.steps for event in events):
        return events
    return (*events, replace(events[-1], steps=count))


def _relation(preset: Preset, relation: Relation | None) -> Relation:
    if relation is None:
        return preset.relations[0]
    if relation not in preset.relations:
        raise LeakbenchError(
            f"preset '{preset.name}': relation must be {' or '.join(preset.relations)}, "
            f"got '{relation}'"
        )
    return relation


# ---------------------------------------------------------------------------- accountants


def _composition(name: str) -> _Accountant:
    def compute(
        events: Sequence[PrivacyEvent], delta: float, relation: Relation, preset: Preset
    ) -> _Outcome:
        from leakbench.privacy import composition

        steps_delta, own_delta = delta, delta
        notes: tuple[str, ...] = ()
        if preset.guarantee:
            taken = composition.spent_delta(events, 1.0)
            share = 1.0 if name == "base" else 0.5
            # Few steps on small samples could each spend more than a probability can be.
            steps_delta = min(share * delta / max(taken, share * delta), math.nextafter(1, 0))
            own_delta = (1 - share) * delta
            notes = (f"each step spends delta {steps_delta:.3g} on its sample, all together delta",)
        losses = composition.step_losses(
            events,
            steps_delta,
            relation=relation,
            exact=preset.guarantee,
            decimals=preset.decimals.get(name),
            amplified_decimals=preset.amplified_decimals.get(name),
        )
        if name == "base":
            return _Outcome(composition.base(losses), assumptions=notes)
        theorem = {
            "advanced": composition.advanced,
            "advanced_eq3": composition.advanced_eq3,
            "optimal": composition.optimal if preset.guarantee else composition.optimal_eq4,
        }[name]
        return _Outcome(theorem(losses, own_delta), assumptions=notes)

    return compute


def _zcdp(
    events: Sequence[PrivacyEvent], delta: float, relation: Relation, preset: Preset
) -> _Outcome:
    from leakbench.privacy import zcdp

    if not preset.guarantee:
        return _Outcome(zcdp.to_epsilon(zcdp.claimed_rho(events), delta))
    rho = zcdp.rho(events, relation)
    return _Outcome(zcdp.to_epsilon(rho, delta), assumptions=("sampling amplifies nothing here",))


def _moments(
    events: Sequence[PrivacyEvent], delta: float, relation: Relation, preset: Preset
) -> _Outcome:
    groups = grouped(events)
    if any(group.sampling == "fixed_size" and group.rate < 1 for group in groups):
        return _Outcome(None, "its series is for Poisson sampling, not for a fixed size")
    if relation == "replace_one" and any(group.rate < 1 for group in groups):
        return _Outcome(None, "its series is for add/remove, not for replacing under sampling")
    from leakbench.privacy import rdp

    apart = [
        PrivacyEvent(
            noise_multiplier=1 / group.separation(relation),
            sensitivity=1.0,
            sampling_rate=group.rate,
            steps=group.steps,
        )
        for group in groups
    ]
    return _Outcome(rdp.epsilon(apart, delta, orders=preset.orders, conversion=preset.conversion))


def _gdp(
    events: Sequence[PrivacyEvent], delta: float, relation: Relation, preset: Preset
) -> _Outcome:
    from leakbench.privacy import gdp

    groups = grouped(events)
    if all(group.rate == 1 for group in groups):
        return _Outcome(gdp.epsilon_of_mu(gdp.mu_of_events(events, relation), delta))
    if preset.guarantee:
        reason = "its central limit under sampling can be below the true epsilon"
        return _Outcome(None, f"{reason}; preset 'paper:bcalc' computes it")
    if relation == "replace_one" and any(g.sampling == "poisson" for g in groups):
        return _Outcome(None, "no central limit is published for replacing under Poisson sampling")
    return _Outcome(gdp.epsilon_of_mu(gdp.limit_mu(events, relation), delta))


def _pld(
    events: Sequence[PrivacyEvent],
    delta: float,
    relation: Relation,
    preset: Preset,
    group_size: int = 1,
) -> _Outcome:
    from leakbench.privacy import pld

    notes: list[str] = []
    if any(group.sampling == "fixed_size" and group.rate < 1 for group in grouped(events)):
        notes.append("bound for replacing one example in batches drawn without replacement")
    if group_size > 1:
        notes.append(f"for all {group_size} examples of a client together")
        if relation == "replace_one":
            notes.append("as if all of them were in every batch")
    value = pld.epsilon(events, delta, relation=relation, group_size=group_size)
    return _Outcome(value, assumptions=tuple(notes))


_COMPUTE: dict[str, _Accountant] = {
    "base": _composition("base"),
    "advanced": _composition("advanced"),
    "advanced_eq3": _composition("advanced_eq3"),
    "optimal": _composition("optimal"),
    "zcdp": _zcdp,
    "moments": _moments,
    "gdp": _gdp,
    "pld": _pld,
}
