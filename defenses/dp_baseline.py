"""DP baseline: per-example, per-tensor clipping and Gaussian noise, both fixed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from leakbench.clipping import add_noise, check_parameters, clip_tensors, gaussian_guarantee
from leakbench.contracts import (
    Context,
    Defense,
    Gradients,
    Guarantee,
    NoiseConvention,
    Observer,
    Setting,
    State,
    Weights,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DPBaseline(Defense):
    """Deep learning with DP and fixed parameters (TIFS III-C, Algorithm 1; Abadi et al. 2016).

    on_examples: every tensor of every example's gradient to L2 norm <= C; then, by convention
    `per_example`, N(0, (sigma C)^2) on each example. on_batch: the noise of the other two
    conventions. Guarantee: instance-level Gaussian mechanism with sensitivity sqrt(M) C (M tensors
    clipped apart), not the C the paper charges. Before noise zero gradients stay zero, nan makes
    the example's tensor nan, and inf makes it nan and zeros.

    Args:
        clip: C (paper: 4).
        noise_multiplier: sigma (paper: 6); the paper's "noise variance" sigma C is a std.
        convention: where the noise enters; the paper's text says "mean".
    """

    name: ClassVar[str] = "dp_baseline"
    paper: ClassVar[str] = "TIFS section III-C"
    clip: float = 4.0
    noise_multiplier: float = 6.0
    convention: NoiseConvention = "per_example"

    def __post_init__(self) -> None:
        check_parameters(self.name, self.clip, self.noise_multiplier)

    def on_examples(
        self, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        clipped = clip_tensors(gradients, self.clip)
        std = self.noise_multiplier * self.clip
        return add_noise(clipped, context, self.convention, "examples", std), state

    def on_batch(
        self, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        std = self.noise_multiplier * self.clip
        return add_noise(gradients, context, self.convention, "batch", std), state

    def guarantee(self, observer: Observer, weights: Weights, setting: Setting) -> Guarantee:
        return gaussian_guarantee(
            observer,
            self.convention,
            clip=self.clip,
            noise_multiplier=self.noise_multiplier,
            tensors=len(weights),
            batch_size=setting.batch_size,
        )

    def noise_std(self, weights: Weights, state: State, context: Context) -> dict[str, float]:
        visible = self.convention == "per_example"
        return dict.fromkeys(weights, self.noise_multiplier * self.clip if visible else 0.0)
