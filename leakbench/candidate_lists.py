"""Gradients of a list of labelled inputs against what victims leaked, piece by piece.

What an input's gradient is depends on the victim through the replay only, and there only where it
reads the observation: it is computed once for all, and lengths and inner products with many victims
are one matrix product, in float64. Distances by ||a||^2 - 2 a.b + ||b||^2 then have an error that
is known, so that the few which could be the least may be taken again, directly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leakbench.contracts import Leak, LocalSteps
from leakbench.matching import noise_weights
from leakbench.optim import PAD, with_copies

TOGETHER = 256
"""Inputs whose gradients are computed in one call, at most; a multiple of 8."""

ELEMENTS = 2**23
"""Numbers of gradients held at a time, about (64 MB in float64)."""

Queries = Sequence[Mapping[str, Tensor]]
"""For every observation: parameter name -> (m, its coordinates) float64, a vector a victim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateList:
    """N labelled inputs that may be behind the gradients of a leak.

    Lengths and products weigh each tensor by `matching.noise_weights` and add up all observations:
    the geometry of `matching.squared_loss`.

    Attributes:
        leak: whose victims are asked about.
        inputs, labels: (N, *input shape) and (N,), in the leak's type and on its device.
        local_steps: how several local steps are modelled.
    """

    leak: Leak
    inputs: Tensor
    labels: Tensor
    local_steps: LocalSteps = "unroll"

    def __len__(self) -> int:
        return len(self.inputs)

    def observed(self, victims: Tensor) -> Queries:
        """What the victims (m,) leaked, as queries."""
        return [
            {k: v[victims].flatten(1).double() for k, v in seen.gradients.tensors.items()}
            for seen in self.leak.observations
        ]

    def products(self, queries: Queries, victims: Tensor) -> tuple[Tensor, Tensor]:
        """Weighted inner product of every candidate's gradient with every victim's query, and the
        candidate's squared length as the victim's weights have it; both (m, N) float64.

        Memory is bounded whatever N is, but for the result.
        """
        products = torch.zeros(
            len(victims), len(self), dtype=torch.float64, device=self.leak.device
        )
        squares = torch.zeros_like(products)
        for seen, asked in zip(self.leak.observations, queries, strict=True):
            places = [
                places
                for group in seen.groups()
                if len(places := torch.nonzero(torch.isin(victims, group)).flatten())
            ]
            wanted = [self._weighted(asked, victims, some) for some in places]
            for begin in range(0, len(self), self._piece):
                end = min(begin + self._piece, len(self))
                full = with_copies(torch.arange(begin, end, device=self.leak.device))
                with torch.no_grad():
                    parts = seen.simulate_each(
                        self.inputs[full, None],
                        self.labels[full, None],
                        torch.stack([victims[some[0]] for some in places]),
                        local_steps=self.local_steps,
                    )
                    for some, (vectors, weights), shown in zip(places, wanted, parts, strict=True):
                        for name, value in shown.tensors.items():
                            rows = value.flatten(1).double()
                            found = (rows @ vectors[name].T)[: end - begin, : len(some)]
                            length = torch.linalg.vector_norm(rows, dim=1).square()
                            products[some, begin:end] += found.T
                            squares[some, begin:end] += (
                                weights[name][:, None] * length[: end - begin]
                            )
        return products, squares

    def distances(self) -> tuple[Tensor, Tensor]:
        """(n, N) squared distance of every candidate's gradient to every victim's, float64, and
        (n,) by how much two of a victim's may be in the wrong order, as they are rounded."""
        every = torch.arange(self.leak.n, device=self.leak.device)
        observed = self.observed(every)
        products, squares = self.products(observed, every)
        own = torch.zeros_like(products[:, 0])
        for asked in observed:
            for name, weight in self._weights(every).items():
                own = own + weight * torch.linalg.vector_norm(asked[name], dim=1).square()
        # A sum of d products is off by d eps |a| |b| at most, and lengths are such sums.
        count = sum(value.shape[1] for asked in observed for value in asked.values())
        finite = torch.where(torch.isfinite(squares), squares, 0.0)
        slack = 4 * count * torch.finfo(torch.float64).eps * (finite.amax(dim=1) + own)
        return squares.sub_(products.mul_(2)).add_(own[:, None]), slack

    def scaled(self, victim: Tensor, chosen: Tensor) -> Tensor:
        """Gradients of candidates (k,) as this victim (a scalar) would leak them, (k, coordinates)
        float64, all tensors and observations side by side, each times the root of its weight."""
        parts: list[Tensor] = []
        for piece in chosen.split(self._piece):
            full = with_copies(piece)
            rows = victim.expand(len(full))
            looks = []
            for seen in self.leak.observations:
                with torch.no_grad():
                    shown = seen.simulate(
                        self.inputs[full, None],
                        self.labels[full, None],
                        rows,
                        local_steps=self.local_steps,
                    )
                looks.append({k: v[: len(piece)].flatten(1) for k, v in shown.tensors.items()})
            parts.append(self._side_by_side(looks, victim))
        return torch.cat(parts)

    def scaled_observed(self, victim: Tensor) -> Tensor:
        """(coordinates,) what the victim leaked, as in `scaled`."""
        return self._side_by_side(self.observed(victim[None]), victim)[0]

    def as_query(self, vectors: Tensor, victims: Tensor) -> Queries:
        """Vectors (m, coordinates) as `scaled` has them, as queries to `products`."""
        weights, asked, begin = self._weights(victims), [], 0
        for seen in self.leak.observations:
            look = {}
            for name, value in seen.gradients.tensors.items():
                size = value[0].numel()
                look[name] = vectors[:, begin : begin + size] / weights[name].sqrt()[:, None]
                begin += size
            asked.append(look)
        return asked

    def _side_by_side(self, looks: Queries, victim: Tensor) -> Tensor:
        roots = {name: weight.sqrt() for name, weight in self._weights(victim[None]).items()}
        return torch.cat(
            [value.double() * roots[name] for look in looks for name, value in look.items()], dim=1
        )

    def _weighted(
        self, asked: Mapping[str, Tensor], victims: Tensor, places: Tensor
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Weighted vectors of the victims at `places`, in a multiple of 8, and their weights."""
        weights = self._weights(victims[places])
        vectors = {k: with_copies(v[places] * weights[k][:, None]) for k, v in asked.items()}
        return vectors, weights

    def _weights(self, victims: Tensor) -> dict[str, Tensor]:
        """(m,) float64 weight of each tensor."""
        found = noise_weights(self.leak, victims)
        if found is None:
            one = torch.ones(len(victims), dtype=torch.float64, device=self.leak.device)
            return dict.fromkeys(self.leak.observed.tensors, one)
        return {name: value.double() for name, value in found.items()}

    @property
    def _piece(self) -> int:
        size = sum(value[0].numel() for value in self.leak.observed.tensors.values())
        return min(max(ELEMENTS // size // PAD * PAD, PAD), TOGETHER)
