"""DP baseline: per-example, per-tensor clipping and Gaussian noise, both fixed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from leakbench.gaussian import ExampleGaussian


@dataclass(frozen=True, slots=True, kw_only=True)
class DPBaseline(ExampleGaussian):
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
