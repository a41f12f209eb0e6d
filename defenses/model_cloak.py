"""ModelCloak: Gaussian noise on a client's update, whose bound and scale were searched for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from leakbench.client_gaussian import ClientGaussian, LargestUpdateNorm, Unit
from leakbench.contracts import Context, Guarantee, Observer, Setting, Weights
from leakbench.gaussian import DecayingNoiseTPDS
from leakbench.schedules import TPDSDecay

SEARCHED = "C and sigma were chosen by attacks and accuracy on private data, not accounted for"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCloak(ClientGaussian):
    """Fixed noise at a chosen (C, sigma) on each client's update (ModelCloak sections III and IV).

    on_update: dW, in units of weights, to L2 norm <= C, then N(0, (sigma C)^2) on each coordinate:
    types 0 and 1 see it, gradients inside local training stay bare.

    "The l2 norm of the per-client local update is computed": one norm, of all of it, as Proposition
    1 needs (C >= the norm of the gradient) and Table III's epsilon (sensitivity C) as well. The
    authors' other code clips each tensor; `unit` = "tensor" does.

    Guarantee: client-level Gaussian mechanism with sensitivity C (sqrt(M) C by tensor), of one
    release a round; what the search for C and sigma spent is not in it. Edge cases:
    `leakbench.client_gaussian.UpdateGaussian`.

    Args:
        clip, noise_multiplier: C and sigma (paper: 2 and 5 on MNIST, 2 and 3 on CIFAR-10, 3 and 2
            on LFW).
        unit: what is clipped together.
    """

    name: ClassVar[str] = "model_cloak"
    paper: ClassVar[str] = "ModelCloak, sections III and IV"
    clip: float = 2.0
    noise_multiplier: float = 5.0
    unit: Unit = "flat"

    def guarantee(self, observer: Observer, weights: Weights, setting: Setting) -> Guarantee:
        promise = ClientGaussian.guarantee(self, observer, weights, setting)
        if promise.level == "none":
            return promise
        return replace(promise, assumptions=(*promise.assumptions, SEARCHED))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCloakDynamic(LargestUpdateNorm):
    """Dynamic noise by the norm S of a client's update (ModelCloak section V), in its two ways.

    Clipping as in `model_cloak`; S is the norm after it, so that S <= C holds as the paper assumes
    (under `unit` = "tensor" that of the largest tensor). keep "variance": the noise stays sigma C,
    bit for bit that of `model_cloak`; what changes is the scale sigma C / S >= sigma that the paper
    accounts with (Table IV). keep "scale": the noise is sigma S (Table V).

    Guarantee: none as published, S is computed from the private data and sets the noise or the
    epsilon. Under "scale" a zero update gets no noise, and inf or nan makes S nan and with it all
    of the client's update; under "variance" they stay with what is clipped together.

    Args:
        keep: what S leaves unchanged.
        clip, noise_multiplier: C and sigma, see `model_cloak`.
        unit: what is clipped together.
    """

    name: ClassVar[str] = "model_cloak_dynamic"
    paper: ClassVar[str] = "ModelCloak, section V"
    clip: float = 2.0
    noise_multiplier: float = 5.0
    unit: Unit = "flat"
    keep: Literal["variance", "scale"] = "variance"

    def std_of(self, largest: Tensor, context: Context) -> Tensor:
        if self.keep == "scale":
            return LargestUpdateNorm.std_of(self, largest, context)
        return torch.full_like(largest, self.std_at(context))

    def guarantee(self, observer: Observer, weights: Weights, setting: Setting) -> Guarantee:
        if self.keep == "scale":
            return LargestUpdateNorm.guarantee(self, observer, weights, setting)
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
        return ClientGaussian.noise_std(self, observer, weights, state, context)

    def scales(self, state: Tensor, context: Context) -> Mapping[str, float]:
        """Under "variance" the scale is the paper's, sigma C / S, the mean over clients."""
        said = LargestUpdateNorm.scales(self, state, context)
        if self.keep == "scale":
            return said
        return {**said, "noise_multiplier": float((self.std_at(context) / state).mean())}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCloakDynamicSigma(LargestUpdateNorm, DecayingNoiseTPDS):
    """Dynamic noise sigma_t S with a scale that decays over the rounds as well.

    The paper keeps sigma and has S decay by itself ("decaying noise amount"); the decays of sigma
    are those of TPDS section 5.3 by the same authors. Clipping, S, guarantee (none) and edge cases
    are those of `model_cloak_dynamic` with keep "scale".

    Args:
        clip: C. noise_multiplier, noise_multiplier_end: sigma_0 and sigma_T.
        decay: of sigma, with its constants decay_steps, decay_cycles and decay_rate, see
            `leakbench.gaussian.Decaying`.
        unit: what is clipped together.
    """

    name: ClassVar[str] = "model_cloak_dynamic_sigma"
    paper: ClassVar[str] = "ModelCloak, section V, with TPDS section 5.3"
    clip: float = 2.0
    noise_multiplier: float = 5.0
    noise_multiplier_end: float = 1.0
    unit: Unit = "flat"
    decay: TPDSDecay = "linear"
