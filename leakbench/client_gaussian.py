"""Defenses that clip a whole client's update and add Gaussian noise to it, in their variants.

The client-level counterpart of `leakbench.gaussian.ExampleGaussian`; decays and the largest norm
are those of `leakbench.gaussian`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from leakbench.clipping import clip_flat, clip_tensors
from leakbench.contracts import (
    Context,
    Gradients,
    Guarantee,
    Observer,
    Setting,
    State,
    Weights,
)
from leakbench.gaussian import Gaussian, L2Max

Unit = Literal["flat", "tensor"]
"""What is clipped to C: a client's whole update, or every tensor of it."""


# No slots here: two classes of a combination could not both have them.
@dataclass(frozen=True, kw_only=True)
class UpdateGaussian(Gaussian):
    """A client's dW to L2 norm <= C, then N(0, (sigma C)^2) on each coordinate, a draw a client.

    dW and C are in units of weights. Zero updates stay zero before noise; nan makes what is clipped
    together nan, inf makes it nan and zeros.

    Guarantee: client-level Gaussian mechanism with the sensitivity of one update, C or sqrt(M) C (M
    tensors clipped apart), and std sigma C; in the mean over Kt clients they are 1 / Kt of the one
    and 1 / sqrt(Kt) of the other. Where clients do not weigh the same, the largest might have all
    of the mean: the model is then promised what one update is. Single examples are promised nothing
    beyond that.

    Args:
        unit: what is clipped together.
    """

    place: ClassVar[str]
    """Where the noise enters, for reasons."""
    behind: ClassVar[tuple[Observer, ...]]
    """Who reads after that."""
    unit: Unit = "tensor"

    def clipped(self, gradients: Gradients, context: Context) -> Gradients:
        """Updates within C_t, axes ("client",)."""
        clip = self.clip_at(context.round, context.total)
        return (clip_flat if self.unit == "flat" else clip_tensors)(gradients, clip)

    def noised(self, gradients: Gradients, std: Tensor | float, context: Context) -> Gradients:
        """Clipped updates with noise of this std."""
        # One purpose for all places: with the same seed they give the same noisy update.
        return context.add_gaussian(gradients, std, "update")

    def sanitised(self, gradients: Gradients, context: Context) -> Gradients:
        """Updates clipped, with noise sigma_t C_t."""
        return self.noised(self.clipped(gradients, context), self.std_at(context), context)

    def guarantee(self, observer: Observer, weights: Weights, setting: Setting) -> Guarantee:
        clip = self.clip_at(setting.round, setting.rounds)
        sigma = self.noise_multiplier_at(setting.round, setting.rounds)
        if sigma == 0:
            return Guarantee(level="none", reason="no noise is added")
        if observer not in self.behind:
            reason = f"noise enters after the tap, {self.place}"
            return Guarantee(level="none", reason=reason)
        if observer == "model" and setting.sampling == "poisson" and setting.all_clients > 1:
            reason = "every client brings its own noise, and Poisson sampling varies their number"
            return Guarantee(level="none", reason=reason)
        averaged = observer == "model" and not setting.weighted
        clients = setting.clients if averaged else 1
        apart = math.sqrt(len(weights)) if self.unit == "tensor" else 1.0
        return Guarantee(
            level="client",
            relation="add_remove",
            sensitivity=apart * clip / clients,
            noise_std=sigma * clip / math.sqrt(clients),
            unit=self.unit,
            tensors=len(weights) if self.unit == "tensor" else 1,
            assumptions=("an absent client counts as a zero update that still gets its noise",),
        )

    def noise_std(
        self, observer: Observer, weights: Weights, state: State, context: Context
    ) -> Mapping[str, float] | None:
        if observer == "model":
            return None
        if observer not in self.behind:
            return dict.fromkeys(weights, 0.0)
        return dict.fromkeys(weights, context.of_update(self.std_at(context)))


@dataclass(frozen=True, kw_only=True)
class ClientGaussian(UpdateGaussian):
    """on_update: every client clips and adds noise before it sends.

    Types 0 and 1 and the server see noise; gradients inside local training (type 2) stay bare.
    """

    place: ClassVar[str] = "when local training is over"
    behind: ClassVar[tuple[Observer, ...]] = ("model", "server", "type0", "type0_raw", "type1")

    def on_update(
        self, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        return self.sanitised(gradients, context), state


@dataclass(frozen=True, kw_only=True)
class LargestUpdateNorm(L2Max, ClientGaussian):
    """S is the norm of a client's clipped update; by tensor, that of the largest.

    Every client finds its own. inf or nan anywhere makes S nan and with it the client's update.
    """

    def on_update(
        self, gradients: Gradients, state: Tensor, context: Context
    ) -> tuple[Gradients, Tensor]:
        clipped = self.clipped(gradients, context)
        largest = self.largest(clipped)
        return self.noised(clipped, self.std_of(largest, context), context), largest

    def largest(self, clipped: Gradients) -> Tensor:
        """S (clients,)."""
        if self.unit == "flat":
            return clipped.flat_norm()
        return torch.stack(list(clipped.norms().values())).amax(dim=0)
