"""ModelCloak: Gaussian noise whose bound and scale were searched for by attack and accuracy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from leakbench.contracts import Context, Guarantee, Observer, Setting, Weights
from leakbench.errors import unknown_name
from leakbench.gaussian import ExampleGaussian, LargestNorm

Keep = Literal["variance", "scale"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCloak(ExampleGaussian):
    """Fixed noise at a chosen (C, sigma) (ModelCloak sections III and IV).

    on_examples: every tensor of every example's gradient to L2 norm <= C, then N(0, (sigma C)^2) on
    each example. on_batch: the noise of the conventions "mean" and "sum". The paper speaks of a
    client's gradient; the code it names is that of Fed-CDP, which clips examples.

    Guarantee: instance-level Gaussian mechanism with sensitivity sqrt(M) C (M tensors clipped
    apart); what the search for C and sigma spent is not in it. Zero gradients stay zero before
    noise, nan makes the example's tensor nan, and inf makes it nan and zeros.

    Args:
        clip, noise_multiplier: C and sigma (paper: 2 and 5 on MNIST, 2 and 3 on CIFAR-10, 3 and 2
            on LFW).
        convention: where the noise enters.
    """

    name: ClassVar[str] = "model_cloak"
    paper: ClassVar[str] = "ModelCloak, sections III and IV"
    clip: float = 2.0
    noise_multiplier: float = 5.0

    def guarantee(self, observer: Observer, weights: Weights, setting: Setting) -> Guarantee:
        promise = ExampleGaussian.guarantee(self, observer, weights, setting)
        if promise.level == "none":
            return promise
        said = "C and sigma were chosen by attacks and accuracy on private data, not accounted for"
        return replace(promise, assumptions=(said,))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCloakDynamic(LargestNorm):
    """Dynamic noise by the largest norm S (ModelCloak section V), in the paper's two ways.

    Clipping as in `model_cloak`. keep "variance": the noise stays sigma C, bit for bit that of
    `model_cloak`; what changes is the scale sigma C / S >= sigma that the paper accounts with.
    keep "scale": the noise is sigma S. The paper takes S of a client's gradient; here it is the
    largest norm of a clipped tensor over the examples and tensors of a client's batch, so that
    S <= C holds as it assumes.

    Guarantee: none as published, S is computed from the private batch and sets the noise or the
    epsilon. Under "scale" a zero batch gets no noise, and inf or nan makes S nan and with it every
    noisy coordinate of the client; under "variance" both stay with their example.

    Args:
        keep: what S leaves unchanged.
        clip, noise_multiplier: C and sigma, see `model_cloak`.
        convention: where the noise enters.
    """

    name: ClassVar[str] = "model_cloak_dynamic"
    paper: ClassVar[str] = "ModelCloak, section V"
    clip: float = 2.0
    noise_multiplier: float = 5.0
    keep: Keep = "variance"

    def __post_init__(self) -> None:
        if self.keep not in get_args(Keep):
            raise unknown_name("keep", self.keep, get_args(Keep), self.name)
        LargestNorm.__post_init__(self)

    def std_of(self, largest: Tensor, context: Context) -> Tensor:
        if self.keep == "scale":
            return LargestNorm.std_of(self, largest, context)
        return torch.full_like(largest, self.noise_multiplier * self.clip)

    def guarantee(self, observer: Observer, weights: Weights, setting: Setting) -> Guarantee:
        if self.keep == "scale":
            return LargestNorm.guarantee(self, observer, weights, setting)
        reason = (
            "the epsilon claimed is computed from the private gradients (l2-max); "
            "for what the noise itself promises see model_cloak"
        )
        return Guarantee(level="none", reason=reason)

    def noise_std(
        self, observer: Observer, weights: Weights, state: Tensor, context: Context
    ) -> Mapping[str, float] | None:
        if self.keep == "scale":
            return None
        return ExampleGaussian.noise_std(self, observer, weights, state, context)
