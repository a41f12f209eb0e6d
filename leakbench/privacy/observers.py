"""Epsilon per observer: who sees what, and whether sampling hides anything from them.

The holder of the final model does not see who took part, so sampling amplifies. A server and an
eavesdropper on gradients do see it: for them every step an example takes part in is one Gaussian
release, and its epsilon exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from leakbench.errors import LeakbenchError
from leakbench.privacy.account import Result, epsilon
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
    check_count("tensors", tensors)
    check_count("group_size", group_size)
    if observations is not None:
        check_count("observations", observations)
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
    at_model = PrivacyEvent(
        noise_multiplier=noise_multiplier * gain(convention, batch_size) / whole,
        sensitivity=whole,
        sampling_rate=sampling_rate,
        sampling=sampling,
        steps=steps,
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
    looks = observations if observations is not None else max(1, round(sampling_rate * steps))
    results = _of_model((at_model,), delta, names, common, group_size=group_size)
    # A batch of fixed size takes another example in for the one that leaves it.
    sent = replace(
        at_model,
        sampling_rate=1.0,
        sampling="fixed_size" if sampling == "fixed_size" else "none",
        steps=1,
    )
    results += _of_looks(sent, "server", delta, looks, common)
    if convention == "per_example":
        own = replace(sent, noise_multiplier=noise_multiplier / whole, sampling="none")
        results += _of_looks(own, "type2", delta, looks, (clipped,))
    else:
        reason = f"noise enters after the tap (convention '{convention}'): clipping only"
        results += _none("type2", delta, reason, (clipped,))
    return tuple(results)


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
