"""Observer by observer: who sees what, what they are promised, and what they can do at best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from leakbench.audits.claims import seen_events
from leakbench.audits.findings import MeasuredFinding, ObserverFinding
from leakbench.privacy.account import epsilon
from leakbench.privacy.ceiling import training_ceiling
from leakbench.privacy.events import PrivacyEvent, Relation
from leakbench.privacy.gdp import epsilon_of_mu
from leakbench.spec import Observer

if TYPE_CHECKING:
    from leakbench.contracts import Guarantee, Weights
    from leakbench.dp_config import DPConfig

WHO: Mapping[Observer, str] = {
    "model": "whoever holds the final model, and saw nothing of the training",
    "server": "the server, or whoever sees each update as it arrives there",
    "type1": "whoever reads what is sent on its way, or right after the noise was added",
    "type2": "whoever reads the gradients of single examples inside the training",
}
"""The observers of an audit, from the farthest to the nearest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What one observer is promised: the releases of a whole training, and a single one.

    events, one_look: () without a promise, for which see `reason`. looks: releases of one victim;
    None: the final model. level: whose presence is hidden.
    """

    observer: Observer
    level: str
    reason: str
    looks: int | None
    events: tuple[PrivacyEvent, ...]
    one_look: tuple[PrivacyEvent, ...]

    @property
    def mu(self) -> float | None:
        """Of one look, for adding or removing one, sampling apart; of the worst, if they differ."""
        apart = [(2.0 if one.sampling == "fixed_size" else 1.0, one) for one in self.one_look]
        if not apart:
            return None
        return max(k / one.noise_multiplier if one.noise_multiplier else float("inf")
                   for k, one in apart)  # fmt: skip


def promises(config: DPConfig, weights: Weights) -> tuple[Promise, ...]:
    """What the observers of `WHO` are promised by the mechanism as it is configured."""
    defense, setting = config.defense(), config.setting()
    return tuple(
        _promise(observer, config, defense.guarantee(observer, weights, setting))
        for observer in WHO
    )


def _promise(observer: Observer, config: DPConfig, guarantee: Guarantee) -> Promise:
    of_model = observer == "model"
    looks = None if of_model or guarantee.single_look else expected_looks(config)
    events: tuple[PrivacyEvent, ...] = ()
    reason = guarantee.reason
    if guarantee.level != "none" and guarantee.mu is not None and config.noise_multiplier:
        if of_model:
            events = config.events()
        elif config.noise_schedule and observer != "type2":
            events = seen_events(config.events(), looks or 1)
        else:
            # A promise about replacing counts one example twice, as batches of a fixed size do.
            half = guarantee.relation == "replace_one"
            mu = guarantee.mu / (2 if half else 1)
            events = (
                PrivacyEvent(
                    noise_multiplier=1 / mu,
                    sensitivity=1.0,
                    sampling="fixed_size" if half else "none",
                    steps=looks or 1,
                ),
            )
    if not events:
        reason = reason or "no noise is added that promises anything"
    return Promise(
        observer=observer,
        level=guarantee.level if events else "none",
        reason="" if events else reason,
        looks=looks if of_model else looks or 1,
        events=events,
        one_look=seen_events(events, 1),
    )


def expected_looks(config: DPConfig) -> int:
    """Releases that one example (or client) is expected to take part in."""
    return max(1, round(config.sampling_rate * config.uses))


def finding(
    promise: Promise, *, delta: float, candidates: int, threat: str = ""
) -> ObserverFinding:
    """The numbers that follow from a promise; what is measured comes later."""
    prior = 1 / candidates
    return ObserverFinding(
        observer=promise.observer,
        who=WHO[promise.observer],
        threat=threat,
        level=promise.level,  # type: ignore[arg-type]
        reason=promise.reason,
        looks=promise.looks,
        epsilon_add_remove=_epsilon(promise.events, delta, "add_remove"),
        epsilon_replace_one=_epsilon(promise.events, delta, "replace_one"),
        delta=delta,
        mu=promise.mu,
        candidates=candidates,
        ceiling=ceiling(promise.events, prior),
        one_look_ceiling=ceiling(promise.one_look, prior),
    )


def _epsilon(events: tuple[PrivacyEvent, ...], delta: float, relation: Relation) -> float | None:
    return epsilon(events, delta, relation=relation).epsilon if events else None


def ceiling(events: tuple[PrivacyEvent, ...], prior: float) -> float:
    """Largest chance of any attack on these releases to name the victim; 1 without a promise.

    Held against a training with nothing in the victim's place; where a sample of a fixed size is
    drawn, against one with somebody there, which is all that is promised.
    """
    if not events:
        return 1.0
    drawn = any(one.sampling == "fixed_size" and one.sampling_rate < 1 for one in events)
    if drawn:
        return training_ceiling(prior, events, relation="replace_one")
    zeroed = tuple(
        replace(one, sampling="none" if one.sampling == "fixed_size" else one.sampling)
        for one in events
    )
    return training_ceiling(prior, zeroed)


def measured_by_canary(
    config: DPConfig, promise: Promise, weights: Weights, *, trials: int, seed: int
) -> MeasuredFinding | None:
    """Lower bound on mu of one look by `audits.canary`; None where nothing is promised.

    Batches of at most four and tensors of at most 16 values take the place of the real ones: the
    mechanism treats them alike, and mu is scaled to the real batch.
    """
    from leakbench.audits.canary import audit, canary_at

    if promise.mu is None or config.mechanism:
        return None
    small = {name: value.flatten()[:16] for name, value in weights.items()}
    size = min(config.batch_size, 4)
    near = replace(config, batch_size=size)
    setting = near.setting()
    if config.sampling == "shuffle" or config.unit == "client":
        setting = replace(setting, local_steps=1, rounds=1)
    found = audit(
        near.defense(), canary_at(10 * config.bound, small),
        observer=promise.observer, setting=setting, delta=config.delta, trials=trials,
        confidence=1 - CANARY_ERROR, seed=seed,
    )  # fmt: skip
    if found.claimed_mu is None:
        return None
    scale = promise.mu / found.claimed_mu if found.claimed_mu else 1.0
    return MeasuredFinding(
        mu=found.mu * scale,
        epsilon=epsilon_of_mu(found.mu * scale, config.delta),
        trials=trials,
        confidence=1 - CANARY_ERROR,
        canary="a gradient over the bound in the first value of each tensor",
        claimed_mu=promise.mu,
        verdict="above" if found.verdict == "above" else "within",
        note="of leakbench's own code of the mechanism, one release",
    )


CANARY_ERROR = 1e-4
"""Chance that a right mechanism is called wrong by one audit of one observer."""
