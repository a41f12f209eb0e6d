"""Client-level DP as federated libraries run it: the whole update clipped, noise at one of two
places."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from leakbench.client_gaussian import ClientGaussian, Unit, UpdateGaussian
from leakbench.contracts import Context, Gradients, Guarantee, Observer, Setting, State, Weights
from leakbench.errors import require_at_least
from leakbench.parameters import require_in


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalDP(ClientGaussian):
    """Local DP: every client clips its whole update and adds noise before it sends it.

    on_update: dW to L2 norm <= C, then N(0, (sigma C)^2) on each coordinate, or N(0, std^2) where a
    std is given (Flower's LocalDpMod computes one from a sensitivity that need not be C). Units,
    edge cases and guarantee are those of `leakbench.client_gaussian.UpdateGaussian`, sensitivity C:
    mu = C / std for a client in one round, whatever was said of the sensitivity.

    Args:
        clip: C, in units of weights. noise_multiplier: sigma.
        std: of the noise, in units of weights, in place of sigma C.
        unit: what is clipped together.
    """

    name: ClassVar[str] = "local_dp"
    paper: ClassVar[str] = "Flower, LocalDpMod; McMahan et al. 2018 (flat clipping)"
    clip: float = 1.0
    noise_multiplier: float = 1.0
    unit: Unit = "flat"
    std: float | None = None

    def __post_init__(self) -> None:
        ClientGaussian.__post_init__(self)
        if self.std is not None:
            require_in(self.name, "[0, inf)", std=self.std)

    def noise_multiplier_at(self, round: int, total: int) -> float:
        return self.noise_multiplier if self.std is None else self.std / self.clip


@dataclass(frozen=True, slots=True, kw_only=True)
class CentralDP(UpdateGaussian):
    """Central DP: clients clip their whole updates, the server adds noise to their sum.

    on_update: dW to L2 norm <= C. on_receipt: the sum over `clients` updates is to carry
    N(0, (sigma C)^2), as McMahan et al. (2018) and Flower's wrappers have it (std sigma C / clients
    on the mean), so each carries its part of it, N(0, (sigma C)^2 / clients).

    Guarantee: client-level, sensitivity C / Kt on the mean of Kt clients and mu = 1 / sigma where
    `clients` is Kt and all weigh the same; where they do not, that of one update with its part of
    the noise. The server, and who reads what is sent (type 1, type 0 raw), have clipped updates
    without noise: nothing is promised. Type 0 reads an update with its part of the noise, mu =
    sqrt(clients) / sigma; who has the aggregate alone, and knows all other clients, has an update
    with all of the noise: that is `clients` = 1.

    Args:
        clip: C, in units of weights. noise_multiplier: sigma, of the noise on the sum.
        clients: Kt, whose updates are summed up.
        unit: what is clipped together.
    """

    name: ClassVar[str] = "central_dp"
    paper: ClassVar[str] = "McMahan et al., ICLR 2018; Flower, DifferentialPrivacy...FixedClipping"
    place: ClassVar[str] = "when the server has received the update"
    behind: ClassVar[tuple[Observer, ...]] = ("model", "type0")
    clip: float = 1.0
    noise_multiplier: float = 1.0
    unit: Unit = "flat"
    clients: int = 1

    def __post_init__(self) -> None:
        UpdateGaussian.__post_init__(self)
        require_at_least(self.name, 1, clients=self.clients)

    def noise_multiplier_at(self, round: int, total: int) -> float:
        """Of one update's part of the noise."""
        return self.noise_multiplier / math.sqrt(self.clients)

    def on_update(
        self, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        return self.clipped(gradients, context), state

    def on_receipt(
        self, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        return self.noised(gradients, self.std_at(context), context), state

    def guarantee(self, observer: Observer, weights: Weights, setting: Setting) -> Guarantee:
        promise = UpdateGaussian.guarantee(self, observer, weights, setting)
        if promise.level == "none" or self.clients == 1:
            return promise
        said = f"the noise on the sum is in {self.clients} equal parts, one in each update"
        return replace(promise, assumptions=(*promise.assumptions, said))
