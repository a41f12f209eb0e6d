"""Fed-SDP: clipping and Gaussian noise on a client's update, by the server or by the client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from leakbench.client_gaussian import ClientGaussian, UpdateGaussian
from leakbench.contracts import Context, Gradients, Observer, State


@dataclass(frozen=True, slots=True, kw_only=True)
class FedSDPServer(UpdateGaussian):
    """Fed-SDP at the server (Fed-CDP paper, Algorithm 1, as printed).

    on_receipt: the server clips every tensor of every update it receives to L2 norm <= C and adds
    N(0, (sigma C)^2). What clients send, and what the server itself sees, is bare: only type 0 and
    the model are promised something, see `leakbench.client_gaussian.UpdateGaussian` for units,
    guarantee and edge cases.

    The algorithm divides the sum by Kt when it makes the noisy update and once more when it adds it
    to the weights; here it is once. The authors' code multiplies the noise by 0; here it is not.

    Args:
        clip: C (paper: 4). noise_multiplier: sigma (paper: 6).
        unit: what is clipped together (the authors' code: each tensor).
    """

    name: ClassVar[str] = "fed_sdp_server"
    paper: ClassVar[str] = "Fed-CDP Algorithm 1"
    place: ClassVar[str] = "when the server has received the update"
    behind: ClassVar[tuple[Observer, ...]] = ("model", "type0")

    def on_receipt(
        self, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        return self.sanitised(gradients, context), state


@dataclass(frozen=True, slots=True, kw_only=True)
class FedSDPClient(ClientGaussian):
    """Fed-SDP at the client (Fed-CDP paper, section IV-B: the other place of the same mechanism).

    on_update: every client clips and adds noise before it sends, so that types 0 and 1 and the
    server see noise; gradients inside local training (type 2) stay bare. Mechanism, guarantee and
    arguments are those of `fed_sdp_server`.
    """

    name: ClassVar[str] = "fed_sdp_client"
    paper: ClassVar[str] = "Fed-CDP Algorithm 1"
