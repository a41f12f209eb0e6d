"""Epsilon per observer: who sees what, and whether sampling hides anything from them.

The holder of the final model does not see who took part, so sampling amplifies. A server and an
eavesdropper on gradients do see it: for them every step an example takes part in is one Gaussian
release, and its epsilon exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from leakbench.errors import LeakbenchError
from leakbench.privacy.account import Level, Result, epsilon
from leakbench.privacy.ceiling import training_ceiling
from leakbench.privacy.events import PrivacyEvent, Relation, Sampling, check_count, check_delta
from leakbench.privacy.presets import preset_of
from leakbench.spec import ACCOUNTANTS

NoiseConvention = Literal["per_example", "mean", "sum"]

_BATCH_NOTE: dict[NoiseConvention, tuple[str, ...]] = {
    "mean": ("every batch is averaged as one of exactly B examples",),
    "per_example": (
        "every batch has the noise of exactly B examples; drawing them one by one (Poisson) gives "
        "less of it to smaller batches, and then this is no guarantee",
    ),
}
_SAMPLING_NOTE: dict[Sampling, str] = {
    "poisson": "Poisson sampling, and the observer does not see who takes part",
    "fixed_size": "a fixed number is drawn without replacement, and the observer does not see who "
    "takes part",
    "none": "no sampling",
}
_BOTH: tuple[Relation, ...] = ("add_remove", "replace_one")
_EXACT = "gdp"  # what one Gaussian release is accounted by
_SEEN = "the observer sees who takes part: sampling amplifies nothing"


def account(
    *,
    noise_multiplier: float,
    sampling_rate: float,
    steps: int,
    delta: float,
    accountants: Sequence[str] | None = None,
    preset: str = "strict",
    tensors: int = 1,
    unit: Literal["tensor", "layer"] = "layer",
    convention: NoiseConvention = "sum",
    batch_size: int | None = None,
    sampling: Sampling = "poisson",
    observations: int | None = None,
    group_size: int = 1,
) -> tuple[Result, ...]:
    """Everything there is to say of Gaussian noise sigma C on gradients clipped to C.

    Under `strict`: the final model by every accountant and both relations, then the server and the
    type-2 tap, which see who takes part, for one observation and for k. Under a paper's preset:
    the final model as the paper counts.

    Args:
        noise_multiplier: sigma, as papers state it: the std is sigma C where the noise is added.
        sampling_rate: q, chance of one example to take part in a step.
        steps: T.
        delta: In (0, 1).
        accountants: Names from `ACCOUNTANTS`; None for all.
        preset: One of `presets.PRESETS`.
        tensors, unit: M parts of the gradient clipped to C apart; 1 for the gradient as a whole.
        convention: Where the noise is added: to the "sum" of a batch (DP-SGD; sigma C / B on the
            mean), to the "mean" (sigma C there) or to each example's gradient ("per_example").
        batch_size: B, needed by the last two.
        sampling: How batches are drawn.
        observations: k; None for q T, the expected number of steps an example takes part in.
        group_size: Examples of a client; above 1 adds its epsilon in the final model.

    Raises:
        LeakbenchError: If an argument is unknown or outside its range.
    """
    check_delta(delta)
    conventions = preset_of(preset)
    names = tuple(ACCOUNTANTS) if accountants is None else tuple(accountants)
    _check_counts(tensors, group_size, observations)
    whole = math.sqrt(tensors)
    if not conventions.guarantee:
        charged = whole if conventions.charges_parts else 1.0
        event = PrivacyEvent(
            noise_multiplier=conventions.noise_factor * noise_multiplier / charged,
            sensitivity=charged,
            sampling_rate=sampling_rate,
            sampling=conventions.sampling,
            steps=steps,
        )
        return tuple(epsilon((event,), delta, accountant=name, preset=preset) for name in names)
    at_model, sent, own = _seen(
        noise_multiplier, sampling_rate, steps, tensors, convention, batch_size, sampling
    )
    clipped = (
        f"sensitivity sqrt({tensors}) C: {tensors} {unit}s clipped to C apart"
        if tensors > 1
        else "sensitivity C: the gradient is clipped as a whole"
    )
    common = (
        clipped,
        f"noise convention '{convention}': noise multiplier {at_model.noise_multiplier:.6g} "
        "at the release",
        *_BATCH_NOTE.get(convention, ()),
    )
    looks = _looks(observations, sampling_rate, steps)
    results = _of_model((at_model,), delta, names, common, group_size=group_size)
    results += _of_looks(sent, "server", delta, looks, common)
    if own is not None:
        results += _of_looks(own, "type2", delta, looks, (clipped,))
    else:
        results += _none("type2", delta, _after_tap(convention), (clipped,))
    return tuple(results)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """The most often that an observer names the right one.

    observations: looks at him; None for a whole training. success: in [prior, 1], or None where
    nothing is promised, which `reason` explains. relation: what the training is held against.
    """

    observer: str
    level: Level
    observations: int | None
    relation: Relation | None
    prior: float
    success: float | None
    reason: str = ""


def ceilings(
    *,
    prior: float,
    noise_multiplier: float,
    sampling_rate: float,
    steps: int,
    tensors: int = 1,
    convention: NoiseConvention = "sum",
    batch_size: int | None = None,
    sampling: Sampling = "poisson",
    observations: int | None = None,
    group_size: int = 1,
) -> tuple[Ceiling, ...]:
    """How often each observer can name the right one of 1 / prior at most (`privacy.ceiling`).

    The final model after all steps, then the server and the type-2 tap, which see who takes part,
    for one look and for k: sampling hides nobody from them. They are held against a training with
    zero in the victim's place, which bounds them whether or not batches are refilled.

    Args:
        prior: Chance to name the right one without a look, in (0, 1].
        group_size: Above 1: also of the final model and all examples of a client.
        Others as for `account`.

    Raises:
        LeakbenchError: If an argument is unknown or outside its range.
    """
    _check_counts(tensors, group_size, observations)
    at_model, sent, own = _seen(
        noise_multiplier, sampling_rate, steps, tensors, convention, batch_size, sampling
    )
    drawn = sampling == "fixed_size" and sampling_rate < 1
    against: Relation = "replace_one" if drawn else "add_remove"
    if not drawn:
        at_model = replace(at_model, sampling="none" if sampling == "fixed_size" else sampling)
    sizes: dict[Level, int] = {"instance": 1}
    if group_size > 1:
        sizes["client"] = group_size
    found = [
        Ceiling(
            observer="model", level=level, observations=None, relation=against, prior=prior,
            success=training_ceiling(prior, (at_model,), relation=against, group_size=size),
        )
        for level, size in sizes.items()
    ]  # fmt: skip
    for observer, event in (("server", sent), ("type2", own)):
        if event is None:
            found.append(
                Ceiling(
                    observer=observer, level="none", observations=None, relation=None, prior=prior,
                    success=None, reason=_after_tap(convention),
                )
            )  # fmt: skip
            continue
        found += [
            Ceiling(
                observer=observer, level="instance", observations=looks, relation="add_remove",
                prior=prior,
                success=training_ceiling(prior, (replace(event, sampling="none", steps=looks),)),
            )
            for looks in dict.fromkeys((1, _looks(observations, sampling_rate, steps)))
        ]  # fmt: skip
    return tuple(found)


def _check_counts(tensors: int, group_size: int, observations: int | None) -> None:
    check_count("tensors", tensors)
    check_count("group_size", group_size)
    if observations is not None:
        check_count("observations", observations)


def _looks(observations: int | None, sampling_rate: float, steps: int) -> int:
    """k, or how many steps an example is expected to take part in."""
    return observations if observations is not None else max(1, round(sampling_rate * steps))


def _seen(
    noise_multiplier: float,
    sampling_rate: float,
    steps: int,
    tensors: int,
    convention: NoiseConvention,
    batch_size: int | None,
    sampling: Sampling,
) -> tuple[PrivacyEvent, PrivacyEvent, PrivacyEvent | None]:
    """What the final model is made of; one update at the server; one at the type-2 tap, if any."""
    whole = math.sqrt(tensors)
    at_model = PrivacyEvent(
        noise_multiplier=noise_multiplier * gain(convention, batch_size) / whole,
        sensitivity=whole,
        sampling_rate=sampling_rate,
        sampling=sampling,
        steps=steps,
    )
    # A batch of fixed size takes another example in for the one that leaves it.
    sent = replace(
        at_model,
        sampling_rate=1.0,
        sampling="fixed_size" if sampling == "fixed_size" else "none",
        steps=1,
    )
    if convention != "per_example":
        return at_model, sent, None
    return at_model, sent, replace(sent, noise_multiplier=noise_multiplier / whole, sampling="none")


def _after_tap(convention: NoiseConvention) -> str:
    return f"noise enters after the tap (convention '{convention}'): clipping only"


def gain(convention: NoiseConvention, batch_size: int | None) -> float:
    """Noise multiplier of a batch's mean as a multiple of sigma, for one clipped part."""
    if convention == "sum":
        return 1.0
    if convention not in ("mean", "per_example"):
        raise LeakbenchError(f"convention must be sum, mean or per_example, got '{convention}'")
    if batch_size is None or not 1 <= batch_size < math.inf:
        raise LeakbenchError(f"convention '{convention}' needs a batch size of at least 1")
    return float(batch_size) if convention == "mean" else math.sqrt(batch_size)


def _of_model(
    events: tuple[PrivacyEvent, ...],
    delta: float,
    accountants: Sequence[str],
    assumptions: tuple[str, ...],
    group_size: int = 1,
) -> list[Result]:
    # Batches refilled in turn have a fixed size, and a rate of 1: nothing is drawn.
    kinds = sorted({"none" if event.sampling_rate == 1 else event.sampling for event in events})
    notes = (*assumptions, *(_SAMPLING_NOTE[kind] for kind in kinds))
    results = [
        epsilon(
            events,
            delta,
            accountant=accountant,
            relation=relation,
            assumptions=notes,
        )
        for relation in _BOTH
        for accountant in accountants
    ]
    if group_size != 1:
        note = "joint DP by the billboard lemma is the instance-level epsilon, not this one"
        results += [
            epsilon(
                events,
                delta,
                relation=relation,
                level="client",
                group_size=group_size,
                assumptions=(*notes, note),
            )
            for relation in _BOTH
        ]
    return results


def _of_looks(
    event: PrivacyEvent,
    observer: str,
    delta: float,
    observations: int,
    assumptions: tuple[str, ...],
) -> list[Result]:
    check_count("observations", observations)
    return [
        epsilon(
            (replace(event, steps=looks),),
            delta,
            accountant=_EXACT,
            relation=relation,
            observer=observer,
            observations=looks,
            assumptions=(*assumptions, _SEEN),
        )
        for relation in _BOTH
        for looks in dict.fromkeys((1, observations))
    ]


def _none(observer: str, delta: float, reason: str, assumptions: tuple[str, ...]) -> list[Result]:
    return [
        Result(
            accountant=_EXACT,
            preset="strict",
            observer=observer,
            relation=relation,
            level="none",
            epsilon=None,
            delta=delta,
            reason=reason,
            assumptions=assumptions,
        )
        for relation in _BOTH
    ]
