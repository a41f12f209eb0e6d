"""Quantile clipping: the clipping bound follows a quantile of the gradient norms."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from leakbench.clipping import (
    UPDATES,
    add_noise,
    check_parameters,
    clip_tensors,
    gaussian_guarantee,
    visible_noise,
)
from leakbench.contracts import (
    Context,
    Defense,
    Gradients,
    Guarantee,
    NoiseConvention,
    Observer,
    Setting,
    Weights,
)
from leakbench.parameters import check_kinds, require_in


@dataclass(frozen=True, slots=True)
class Bounds:
    """C_t of every tensor, () or (clients,), and the noisy fraction of examples under it.

    used: C_t of the last local step. following: where C_t stands still in a round, what it becomes
    at its end.
    """

    clip: Mapping[str, Tensor]
    fraction: Mapping[str, Tensor] | None = None
    used: Mapping[str, Tensor] | None = None
    following: Mapping[str, Tensor] | None = None

    def over_examples(self) -> dict[str, Tensor]:
        """Bounds with a singleton example axis."""
        return {k: v.unsqueeze(-1) if v.ndim else v for k, v in self.clip.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantileClip(Defense):
    """Adaptive clipping by quantile estimation (Andrew, Thakkar, McMahan, Ramaswamy 2021).

    on_examples: clip each tensor to its bound C_t, add noise z C_t under `per_example`, and count
    the examples under the bound: indicators centred by 1/2 (sensitivity 1/2), summed, N(0,
    sigma_b^2) added, divided by B, shifted back, clamped to [0, 1]. on_batch: noise of the other
    conventions, still with C_t. Then C_{t+1} = C_t exp(-eta (b - gamma)): by `update` once a round,
    with b the mean over its clients and local steps, or in every local step of a client by his own
    b (clients are then merged by their mean bound). At t = 0 it *is* the fixed baseline with C =
    C_0, but for the privacy that the counts spend. "round" is the original, and the code that TPDS
    says to adopt; in central training, as in TIFS, a round is a step and both are the same.

    Guarantee: a local step releases the gradient (sensitivity sqrt(M) C_t) and M noisy counts (1/2
    each, std sigma_b), both around what was released before, which alone sets weights and C_t. So
    the mu of all add up in squares, over every step the example is in: mu^2 = uses (mu_gradient^2 +
    M / (2 sigma_b)^2). C_t after the round tells all its counts. A type-2 tap sees the counts of
    the steps before it only, and under "round" of none; who taps rounds one after another sees all,
    in the bounds. Zero
    gradients count as under the bound; nan makes the example's tensor nan, inf makes it nan and
    zeros, and both count as above it.

    Args:
        clip: C_0, the first bound of every tensor (TIFS: 4).
        noise_multiplier: z, std of the gradient noise over C_t (TIFS: 6).
        quantile: gamma. learning_rate: eta. count_noise: sigma_b / B (1/20 in the paper).
        convention: where the gradient noise enters. update: when the bounds move.
    """

    name: ClassVar[str] = "quantile_clip"
    paper: ClassVar[str] = "Andrew et al., NeurIPS 2021"
    clip: float = 4.0
    noise_multiplier: float = 6.0
    quantile: float = 0.5
    learning_rate: float = 0.2
    count_noise: float = 0.05
    convention: NoiseConvention = "per_example"
    update: Literal["round", "step"] = "round"

    def __post_init__(self) -> None:
        check_parameters(self.name, self.clip, self.noise_multiplier)
        require_in(self.name, "[0, 1]", quantile=self.quantile)
        require_in(
            self.name, "[0, inf)", learning_rate=self.learning_rate, count_noise=self.count_noise
        )
        check_kinds(self)

    def init(self, weights: Weights) -> Bounds:
        return Bounds({k: torch.full_like(v.flatten()[0], self.clip) for k, v in weights.items()})

    def merge(self, state: Bounds) -> Bounds:
        """The mean of the clients' bounds; of what follows, that by the mean of their fractions."""
        if state.following is None:
            return Bounds({name: bound.mean() for name, bound in state.clip.items()})
        return Bounds({name: bound.log().mean().exp() for name, bound in state.following.items()})

    def on_examples(
        self, gradients: Gradients, state: Bounds, context: Context
    ) -> tuple[Gradients, Bounds]:
        bounds = state.over_examples()
        shown = clip_tensors(gradients, bounds)
        shown = add_noise(shown, context, self.convention, "examples", self._std(shown, bounds))
        fractions = {
            name: self._fraction(name, norms, bounds[name], gradients.mask, context)
            for name, norms in gradients.norms().items()
        }
        return shown, replace(state, fraction=fractions)

    def on_batch(
        self, gradients: Gradients, state: Bounds, context: Context
    ) -> tuple[Gradients, Bounds]:
        std = self._std(gradients, state.clip)
        shown = add_noise(gradients, context, self.convention, "batch", std)
        assert state.fraction is not None
        once = self.update == "round"
        rate = self.learning_rate / (context.local_steps if once else 1)
        before = state.clip if state.following is None else state.following
        moved = {
            k: c * torch.exp(-rate * (state.fraction[k] - self.quantile)) for k, c in before.items()
        }
        used = {k: bound.expand_as(moved[k]) for k, bound in state.clip.items()}  # one a client
        return shown, Bounds(used, used=used, following=moved) if once else Bounds(moved, used=used)

    def _std(self, gradients: Gradients, bounds: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {
            k: self.noise_multiplier * gradients.expand(bounds[k], v)
            for k, v in gradients.tensors.items()
        }

    def _fraction(
        self, name: str, norms: Tensor, bound: Tensor, mask: Tensor | None, context: Context
    ) -> Tensor:
        centred = (norms <= bound).to(norms.dtype) - 0.5
        total = (centred if mask is None else centred * mask).sum(dim=-1)
        std = self.count_noise * context.batch_size
        total = total + context.gaussian(total, std, f"count/{name}")
        return (total / context.batch_size + 0.5).clamp(0, 1)

    def guarantee(self, observer: Observer, weights: Weights, setting: Setting) -> Guarantee:
        promise = gaussian_guarantee(
            observer,
            self.convention,
            clip=self.clip,
            noise_multiplier=self.noise_multiplier,
            tensors=len(weights),
            setting=setting,
        )
        tapped = observer in ("type2", "type2_batch")
        counted = setting.uses(observer)
        if tapped:
            counted = 0 if self.update == "round" else counted - 1
        if promise.mu is None or promise.noise_std is None:
            return promise
        if counted == 0:
            said = "one look: the bounds of later rounds tell the counts, which are not in it"
            return replace(promise, single_look=True, assumptions=(said,))
        if self.count_noise == 0:
            return Guarantee(level="none", reason="the counts are released without noise")
        count_mu = 0.5 / (self.count_noise * setting.batch_size)
        joint = math.hypot(promise.mu, math.sqrt(counted * len(weights)) * count_mu)
        return replace(
            promise,
            sensitivity=joint * promise.noise_std,
            assumptions=("sensitivity includes the share of the noisy counts",),
        )

    def noise_std(
        self, observer: Observer, weights: Weights, state: Bounds, context: Context
    ) -> dict[str, float] | None:
        """None behind several local steps if the bounds move with each."""
        share = visible_noise(observer, self.convention, context)
        moving = self.update == "step" and observer in UPDATES and context.local_steps > 1
        if share is None or moving:
            return None
        return {
            name: share * self.noise_multiplier * float(bound) for name, bound in state.clip.items()
        }

    def scales(self, state: Bounds, context: Context) -> Mapping[str, float]:
        """C_t is the mean over tensors and clients, of the last local step."""
        used = state.clip if state.used is None else state.used
        clip = float(torch.stack([bound.mean() for bound in used.values()]).mean())
        return {"clip": clip, "noise_multiplier": self.noise_multiplier, "sensitivity": clip}
