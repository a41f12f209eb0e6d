"""DP-SGD as libraries run it: each example's whole gradient clipped, noise on the batch's sum."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from torch import Tensor

from leakbench.clipping import add_noise, clip_flat, gaussian_guarantee
from leakbench.contracts import (
    Context,
    Gradients,
    Guarantee,
    NoiseConvention,
    Observer,
    Setting,
    State,
    Weights,
)
from leakbench.errors import LeakbenchError
from leakbench.gaussian import ExampleGaussian
from leakbench.parameters import require_in
from leakbench.privacy.events import PrivacyEvent

Names = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DPSGD(ExampleGaussian):
    """Differentially private SGD (Abadi et al. 2016, Algorithm 1; the default of Opacus).

    on_examples: the whole gradient of every example to L2 norm <= C. on_batch: N(0, (sigma C)^2) on
    the sum over the batch, which is std sigma C / B on the mean; B is the expected batch size under
    Poisson sampling. A gradient under C passes bit for bit and zeros stay zeros; nan makes the
    example's gradient nan, and inf makes it nan and zeros.

    Guarantee: instance-level Gaussian mechanism, sensitivity C for adding or removing one example:
    mu = 1 / sigma a step, whatever is clipped together. At the tap of single examples, before the
    noise, nothing is promised. Amplification by sampling is the accountant's business (`events`).

    Args:
        clip: C, the L2 norm that an example's whole gradient is within.
        noise_multiplier: sigma.
        convention: where the noise enters; "sum" is DP-SGD.
        clipping: what is scaled together: the whole gradient ("flat"), each "tensor" (Opacus'
            DPPerLayerOptimizer), each "layer" (weight and bias together), or each of `groups`
            ("group").
        groups: parameter names that are clipped together, every parameter in one of them.
        shares: of the parts' own bounds, in the model's order, which are C times the share over
            the shares' L2 norm, so that the whole stays within C; () for equal ones, each
            C / sqrt(parts).
        noise_schedule, clip_schedule: sigma and C of every round from the first on, in place of
            `noise_multiplier` and `clip`; the last one holds on. () for what does not change.

    Raises:
        LeakbenchError: numbers out of range, groups without clipping "group" or the reverse, shares
            of another number than there are parts, a parameter in no group or in two.
    """

    name: ClassVar[str] = "dp_sgd"
    paper: ClassVar[str] = "Abadi et al., CCS 2016, Algorithm 1"
    clip: float = 1.0
    noise_multiplier: float = 1.0
    convention: NoiseConvention = "sum"
    clipping: Literal["flat", "tensor", "layer", "group"] = "flat"
    groups: tuple[Names, ...] = ()
    shares: tuple[float, ...] = ()
    noise_schedule: tuple[float, ...] = ()
    clip_schedule: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        ExampleGaussian.__post_init__(self)
        for interval, name in (
            ("(0, inf)", "shares"), ("[0, inf)", "noise_schedule"), ("(0, inf)", "clip_schedule"),
        ):  # fmt: skip
            values: object = getattr(self, name)
            if not isinstance(values, tuple):
                raise LeakbenchError(f"dp_sgd: {name} must be a tuple of numbers, got {values!r}")
            for number, value in enumerate(values):
                require_in(self.name, interval, **{f"{name}[{number}]": value})
        if (self.clipping == "group") != bool(self.groups):
            raise LeakbenchError(
                f"dp_sgd: groups are given if and only if clipping is 'group', got clipping "
                f"'{self.clipping}' and {len(self.groups)} groups"
            )
        if self.shares and self.clipping == "flat":
            raise LeakbenchError("dp_sgd: shares of the bound need parts; clipping is 'flat'")

    def clip_at(self, round: int, total: int) -> float:
        return _held(self.clip_schedule, round, self.clip)

    def noise_multiplier_at(self, round: int, total: int) -> float:
        return _held(self.noise_schedule, round, self.noise_multiplier)

    def on_examples(
        self, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        clip = self.clip_at(context.round, context.total)
        clipped = clip_flat(gradients, clip) if self.clipping == "flat" else None
        if clipped is None:
            tensors: dict[str, Tensor] = {}
            for names, bound in self.bounds(gradients.tensors, clip).items():
                part = replace(gradients, tensors={k: gradients.tensors[k] for k in names})
                tensors.update(clip_flat(part, bound).tensors)
            clipped = gradients.map(lambda name, _: tensors[name])
        return add_noise(clipped, context, self.convention, "examples", self.std_at(context)), state

    def bounds(self, names: Iterable[str], clip: float) -> dict[Names, float]:
        """Parameters that are clipped together -> their bound; the bounds' L2 norm is `clip`.

        Raises:
            LeakbenchError: see the class.
        """
        parts = self._parts(list(names))
        shares = self.shares or (1.0,) * len(parts)
        if len(shares) != len(parts):
            raise LeakbenchError(
                f"dp_sgd: {len(shares)} shares for {len(parts)} parts of the gradient (clipping "
                f"'{self.clipping}')"
            )
        whole = math.hypot(*shares)
        return {part: clip * share / whole for part, share in zip(parts, shares, strict=True)}

    def _parts(self, names: list[str]) -> list[Names]:
        if self.clipping == "flat":
            return [tuple(names)]
        if self.clipping == "tensor":
            return [(name,) for name in names]
        if self.clipping == "layer":
            layers: dict[str, Names] = {}
            for name in names:
                key = name.rpartition(".")[0] or name
                layers[key] = (*layers.get(key, ()), name)
            return list(layers.values())
        found = Counter(name for group in self.groups for name in group)
        wrong = [name for name in names if found[name] != 1]
        wrong += [name for name in found if name not in names]
        if wrong:
            raise LeakbenchError(
                f"dp_sgd: parameter '{wrong[0]}' is in {found[wrong[0]]} groups"
                + ("" if wrong[0] in names else ", and the model has no such parameter")
                + "; allowed: each of the model's parameters in one"
            )
        return list(self.groups)

    def guarantee(self, observer: Observer, weights: Weights, setting: Setting) -> Guarantee:
        return gaussian_guarantee(
            observer,
            self.convention,
            clip=self.clip_at(setting.round, setting.rounds),
            noise_multiplier=self.noise_multiplier_at(setting.round, setting.rounds),
            tensors=1,
            setting=setting,
            unit="flat",
        )

    def events(self, weights: Weights, setting: Setting) -> tuple[PrivacyEvent, ...]:
        """As the base has them; with a schedule one for each distinct sigma_t, in order."""
        if not self.noise_schedule or not setting.rounds:
            return ExampleGaussian.events(self, weights, setting)
        used = [self.noise_multiplier_at(t, setting.rounds) for t in range(setting.rounds)]
        if min(used) == 0:
            return ()
        fixed = replace(self, noise_schedule=(), clip_schedule=())
        found: list[PrivacyEvent] = []
        for sigma, count in Counter(used).items():
            of_rounds = replace(setting, rounds=count)
            found += replace(fixed, noise_multiplier=sigma).events(weights, of_rounds)
        return tuple(found)


def _held(schedule: tuple[float, ...], round: int, otherwise: float) -> float:
    return schedule[min(round, len(schedule) - 1)] if schedule else otherwise
