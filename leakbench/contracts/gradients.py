"""Gradients with named leading axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from leakbench.numeric import square_root

Weights = Mapping[str, Tensor]
"""Parameter name -> tensor; shared by all clients, or with a leading client axis ("stacked")."""

Axis = Literal["client", "example", "column"]
"""A "column" is a direction in which something is differentiated."""


@dataclass(frozen=True, slots=True)
class Gradients:
    """One gradient, or a stack of them with named leading axes.

    Attributes:
        tensors: parameter name -> tensor of shape (*leading, *parameter shape).
        axes: names of the leading axes, outermost first, e.g. ("client", "example").
        mask: bool of shape (*leading); False marks padding in batches of unequal size.
    """

    tensors: Mapping[str, Tensor]
    axes: tuple[Axis, ...] = ()
    mask: Tensor | None = None

    @property
    def leading(self) -> tuple[int, ...]:
        """Sizes of the leading axes."""
        return tuple(next(iter(self.tensors.values())).shape[: len(self.axes)])

    def map(self, function: Callable[[str, Tensor], Tensor]) -> Gradients:
        """Apply `function(name, tensor)` to every tensor; axes and mask stay."""
        return replace(self, tensors={k: function(k, v) for k, v in self.tensors.items()})

    def norms(self) -> dict[str, Tensor]:
        """L2 norm of every tensor, each of shape (*leading)."""
        return {k: torch.linalg.vector_norm(self._flat(v), dim=-1) for k, v in self.tensors.items()}

    def flat_norm(self) -> Tensor:
        """L2 norm over all tensors together, shape (*leading)."""
        # Added up one by one: a reduction over tensors would round by how many rows there are.
        squares = [norm.square() for norm in self.norms().values()]
        total = squares[0]
        for square in squares[1:]:
            total = total + square
        nonzero = total != 0  # the root has no finite derivative at 0
        return torch.where(nonzero, square_root(torch.where(nonzero, total, 1.0)), 0.0)

    def scale(self, factors: Tensor | Mapping[str, Tensor]) -> Gradients:
        """Multiply by factors of shape (*leading), one for all tensors or one a tensor."""

        def apply(name: str, value: Tensor) -> Tensor:
            factor = factors[name] if isinstance(factors, Mapping) else factors
            scaled: Tensor = value * self.expand(factor, value)
            return scaled

        return self.map(apply)

    def mean(self, axis: Axis) -> Gradients:
        """Average over a leading axis, counting only entries whose mask is True."""
        position = self.axes.index(axis)
        axes = self.axes[:position] + self.axes[position + 1 :]
        if self.mask is None and self.leading[position] == 1:
            return Gradients({k: v.squeeze(position) for k, v in self.tensors.items()}, axes)
        if self.mask is None:
            return Gradients({k: v.mean(dim=position) for k, v in self.tensors.items()}, axes)
        present, count = self.mask, self.mask.sum(dim=position).clamp(min=1)

        def averaged(value: Tensor) -> Tensor:
            total = torch.where(self.expand(present, value), value, 0.0).sum(dim=position)
            return total / count.reshape(count.shape + (1,) * (total.ndim - count.ndim))

        kept = present.any(dim=position) if axes else None
        return Gradients({k: averaged(v) for k, v in self.tensors.items()}, axes, kept)

    def select(self, rows: Tensor | slice) -> Gradients:
        """Rows of the first leading axis."""
        mask = None if self.mask is None else self.mask[rows]
        return Gradients({k: v[rows] for k, v in self.tensors.items()}, self.axes, mask)

    def split(self, sizes: Sequence[int]) -> list[Gradients]:
        """Consecutive rows of the first leading axis, so many in each part."""
        cut = {k: v.split(list(sizes)) for k, v in self.tensors.items()}
        masks = [None] * len(sizes) if self.mask is None else self.mask.split(list(sizes))
        return [
            Gradients({k: parts[i] for k, parts in cut.items()}, self.axes, masks[i])
            for i in range(len(sizes))
        ]

    def flatten(self) -> Tensor:
        """All tensors side by side, shape (*leading, d)."""
        return torch.cat([self._flat(v) for v in self.tensors.values()], dim=-1)

    def expand(self, factor: Tensor, value: Tensor) -> Tensor:
        """Give a (*leading) factor the trailing singleton axes it needs to multiply `value`."""
        return factor.reshape(factor.shape + (1,) * (value.ndim - factor.ndim))

    def _flat(self, value: Tensor) -> Tensor:
        return value.reshape(*value.shape[: len(self.axes)], -1)


def concatenate(parts: Sequence[Gradients]) -> Gradients:
    """Join stacks along their first leading axis; all must have the same axes."""
    first = parts[0]
    joined = {k: torch.cat([part.tensors[k] for part in parts]) for k in first.tensors}
    masks = [part.mask for part in parts]
    known = [mask for mask in masks if mask is not None]
    return Gradients(joined, first.axes, torch.cat(known) if len(known) == len(parts) else None)
