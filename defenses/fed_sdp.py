"""Fed-SDP: clipping and Gaussian noise on a client's update, by the server or by the client."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from leakbench.clipping import check_parameters, clip_tensors
from leakbench.contracts import (
    Context,
    Defense,
    Gradients,
    Guarantee,
    Observer,
    Setting,
    State,
    Weights,
)
from leakbench.parameters import check_kinds


@dataclass(frozen=True, slots=True, kw_only=True)
class _FedSDP(Defense):
    """What both places of the mechanism share.

    Every tensor of a client's dW to L2 norm <= C, then N(0, (sigma C)^2) on each coordinate, drawn
    for every client anew (Fed-CDP paper, Algorithm 1). dW and C are in units of weights. Zero
    updates stay zero before noise, nan makes a client's tensor nan, inf makes it nan and zeros.

    Guarantee: client-level Gaussian mechanism of sensitivity sqrt(M) C (M tensors clipped apart)
    and std sigma C on one update; in the mean over Kt clients they are sqrt(M) C / Kt and
    sigma C / sqrt(Kt). Where clients do not weigh the same, the largest might have all of the mean:
    the model is then promised what one update is. Single examples are promised nothing beyond that.

    The algorithm divides the sum by Kt when it makes the noisy update and once more when it adds it
    to the weights; here it is once. The authors' code multiplies the noise by 0; here it is not.

    Args:
        clip: C (paper: 4).
        noise_multiplier: sigma (paper: 6).
    """

    paper: ClassVar[str] = "Fed-CDP Algorithm 1"
    place: ClassVar[str]
    """Where the noise enters, for reasons."""
    behind: ClassVar[tuple[Observer, ...]]
    """Who reads after that."""
    clip: float = 4.0
    noise_multiplier: float = 6.0

    def __post_init__(self) -> None:
        check_parameters(self.name, self.clip, self.noise_multiplier)
        check_kinds(self)

    def _sanitised(self, gradients: Gradients, context: Context) -> Gradients:
        std = self.noise_multiplier * self.clip
        # One purpose for both places: with the same seed both give the same noisy update.
        return context.add_gaussian(clip_tensors(gradients, self.clip), std, "update")

    def guarantee(self, observer: Observer, weights: Weights, setting: Setting) -> Guarantee:
        if self.noise_multiplier == 0:
            return Guarantee(level="none", reason="no noise is added")
        if observer not in self.behind:
            reason = f"noise enters after the tap, {self.place}"
            return Guarantee(level="none", reason=reason)
        if observer == "model" and setting.sampling == "poisson" and setting.all_clients > 1:
            reason = "every client brings its own noise, and Poisson sampling varies their number"
            return Guarantee(level="none", reason=reason)
        averaged = observer == "model" and not setting.weighted
        clients = setting.clients if averaged else 1
        return Guarantee(
            level="client",
            relation="add_remove",
            sensitivity=math.sqrt(len(weights)) * self.clip / clients,
            noise_std=self.noise_multiplier * self.clip / math.sqrt(clients),
            unit="tensor",
            tensors=len(weights),
            assumptions=("an absent client counts as a zero update that still gets its noise",),
        )

    def noise_std(
        self, observer: Observer, weights: Weights, state: State, context: Context
    ) -> dict[str, float] | None:
        if observer == "model":
            return None
        if observer not in self.behind:
            return dict.fromkeys(weights, 0.0)
        return dict.fromkeys(weights, context.of_update(self.noise_multiplier * self.clip))


@dataclass(frozen=True, slots=True, kw_only=True)
class FedSDPServer(_FedSDP):
    """Fed-SDP at the server (Fed-CDP paper, Algorithm 1, as printed).

    on_receipt: the server clips and adds noise to every update it receives. What clients send, and
    what the server itself sees, is bare: only type 0 and the model are promised something. See the
    base class for mechanism, units, edge cases and arguments.
    """

    name: ClassVar[str] = "fed_sdp_server"
    place: ClassVar[str] = "when the server has received the update"
    behind: ClassVar[tuple[Observer, ...]] = ("model", "type0")

    def on_receipt(
        self, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        return self._sanitised(gradients, context), state


@dataclass(frozen=True, slots=True, kw_only=True)
class FedSDPClient(_FedSDP):
    """Fed-SDP at the client (Fed-CDP paper, section IV-B: the other place of the same mechanism).

    on_update: every client clips and adds noise before it sends, so that types 0 and 1 and the
    server see noise; gradients inside local training (type 2) stay bare. See the base class for
    mechanism, units, edge cases and arguments.
    """

    name: ClassVar[str] = "fed_sdp_client"
    place: ClassVar[str] = "when local training is over"
    behind: ClassVar[tuple[Observer, ...]] = ("model", "server", "type0", "type0_raw", "type1")

    def on_update(
        self, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        return self._sanitised(gradients, context), state
