"""Return the start unchanged: the floor under every attack that begins with the same picture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from leakbench.contracts import Attack, Ended, Leak, LeakFacts, Reconstruction, Streams, Watch
from leakbench.errors import require_at_least
from leakbench.labels import labels_of
from leakbench.parameters import check_kinds
from leakbench.starts import patterned, unsuited


@dataclass(frozen=True, slots=True, kw_only=True)
class StartImage(Attack):
    """Baseline: CPL's patterned start, without a single gradient evaluation.

    Knowledge used: input shape, and for the label what CPL uses. Returns (n, B, *input shape) in
    [0, 1], status "converged" after 0 steps; the loss is nan because none is computed. An attack
    that does not beat this has learnt nothing from the gradient.
    """

    name: ClassVar[str] = "start_image"
    grid: int = 2

    def __post_init__(self) -> None:
        check_kinds(self)
        require_at_least(self.name, 1, grid=self.grid)

    def skip(self, facts: LeakFacts) -> str:
        return unsuited("patterned", facts)

    def start(self, leak: Leak, streams: Streams, restart: int = 0) -> Tensor:
        return patterned(leak, streams, self.grid, restart)

    def reconstruct(self, leak: Leak, streams: Streams, watch: Watch) -> Reconstruction:
        self.require_suitable(leak)
        start = self.start(leak, streams)
        nothing = torch.full((leak.n,), torch.nan, dtype=leak.dtype, device=leak.device)
        zeros = torch.zeros(leak.n, dtype=torch.int64, device=leak.device)
        untouched: Ended = "converged"
        return Reconstruction(
            inputs=start,
            labels=labels_of(leak, streams),
            loss=nothing,
            start_inputs=start,
            start_loss=nothing,
            steps=zeros,
            evaluations=zeros,
            status=(untouched,) * leak.n,
        )
