"""DP-dyn[S, sigma]: decaying clip, largest-norm sensitivity and decaying noise scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from leakbench.clipping import add_noise, check_parameters, clip_tensors
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DPDynSSigma(Defense):
    """Dynamic sensitivity and noise scale (TIFS section IV, Algorithm 2).

    on_examples: clip each tensor to C_t; S = the largest clipped tensor norm over all examples and
    tensors of the batch; noise sigma_t S by convention. C_t and sigma_t fall linearly over the
    planned iterations. At t = 0 its noise is at most the baseline's for the same sigma: S <= C.

    Guarantee: none as published. S is computed from the private batch and sets the noise, so the
    noise itself depends on the data (an all-zero batch gets no noise at all). inf or nan makes S
    nan and with it every noisy coordinate.

    Args:
        clip, clip_end: C_0 and C_T (TIFS: C falls to C / 2).
        noise_multiplier, noise_multiplier_end: sigma_0 (6 in Table III's text, 15 in Figure 4) and
            sigma_T (4.85 in TPDS; TIFS gives none).
        convention: where the noise enters.
    """

    name: ClassVar[str] = "dp_dyn_s_sigma"
    paper: ClassVar[str] = "TIFS Algorithm 2"
    clip: float = 4.0
    clip_end: float = 2.0
    noise_multiplier: float = 6.0
    noise_multiplier_end: float = 4.85
    convention: NoiseConvention = "per_example"

    def __post_init__(self) -> None:
        check_parameters(self.name, self.clip, self.noise_multiplier)
        check_parameters(self.name, self.clip_end, self.noise_multiplier_end)

    def init(self, weights: Weights) -> Tensor:
        """S of the last batch; 0 before the first."""
        return torch.zeros_like(next(iter(weights.values())).flatten()[0])

    def merge(self, state: Tensor) -> Tensor:
        """Nothing outlives a round."""
        return torch.zeros_like(state[0])

    def on_examples(
        self, gradients: Gradients, state: Tensor, context: Context
    ) -> tuple[Gradients, Tensor]:
        clipped = clip_tensors(gradients, _linear(self.clip, self.clip_end, context))
        norms = torch.stack(list(clipped.norms().values()))
        if clipped.mask is not None:
            norms = torch.where(clipped.mask, norms, 0.0)
        largest = norms.amax(dim=(0, -1))  # one a client
        std = self._sigma(context) * largest[..., None]
        return add_noise(clipped, context, self.convention, "examples", std), largest

    def on_batch(
        self, gradients: Gradients, state: Tensor, context: Context
    ) -> tuple[Gradients, Tensor]:
        std = self._sigma(context) * state
        return add_noise(gradients, context, self.convention, "batch", std), state

    def _sigma(self, context: Context) -> float:
        return _linear(self.noise_multiplier, self.noise_multiplier_end, context)

    def guarantee(self, observer: Observer, weights: Weights, setting: Setting) -> Guarantee:
        reason = "the noise scale is computed from the private gradients (l2-max)"
        return Guarantee(level="none", reason=reason)


def _linear(first: float, last: float, context: Context) -> float:
    """Linear decay from `first` at t = 0 to `last` at the end of training."""
    t = context.round if context.total > 1 else 0
    return first + (last - first) * t / max(context.total, 1)
