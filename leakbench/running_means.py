"""Means over examples that come a few at a time, with the bits of `Gradients.mean` of all.

torch sums over an outer axis on a CPU by a cascade: 16 rows one after another, 16 such sums one
after another, and so on for four levels, and in the end the levels from the finest to the coarsest
(`multi_row_sum` in its SumKernel.cpp). That is done here too, whatever the pieces are. Columns that
do not fill four vectors are summed in another order; they are few, and kept until the end.
"""

from __future__ import annotations

import torch
from torch import Tensor

from leakbench.contracts import Gradients

BLOCK, LEVELS = 16, 4

COLUMNS = 64
"""Numbers in four of the widest vectors, AVX-512 and float32; other vectors divide it."""


class RunningMean:
    """Mean over the "example" axis of pieces, axes ("client", "example"), that follow one another
    along it; padding does not count."""

    def __init__(self) -> None:
        self._sums: dict[str, _Sum] = {}
        self._masks: list[Tensor] = []
        self._size = 0

    def add(self, rows: Gradients) -> None:
        """The next examples of the same clients; all pieces have a mask, or none has."""
        self._size += rows.leading[1]
        if rows.mask is not None:
            self._masks.append(rows.mask)
        for name, value in rows.tensors.items():
            if rows.mask is not None:
                value = torch.where(rows.expand(rows.mask, value), value, 0.0)
            self._sums.setdefault(name, _Sum()).add(value)

    def mean(self) -> Gradients:
        """Axes ("client",), of all that was added."""
        totals = {name: of_one.total() for name, of_one in self._sums.items()}
        if not self._masks:
            return Gradients({k: v / self._size for k, v in totals.items()}, ("client",))
        present = torch.cat(self._masks, dim=1)
        count = present.sum(dim=1).clamp(min=1)
        means = {k: v / count.reshape(-1, *[1] * (v.ndim - 1)) for k, v in totals.items()}
        return Gradients(means, ("client",), present.any(dim=1))


class _Sum:
    """Over axis 1 of all that is added."""

    def __init__(self) -> None:
        self._levels: list[Tensor | None] = [None] * LEVELS  # None: nothing since it was emptied
        self._rows = 0
        self._rest: list[Tensor] = []
        self._shape: tuple[int, ...] = ()

    def add(self, values: Tensor) -> None:
        """values (clients, any number, ...)."""
        self._shape = (len(values), *values.shape[2:])
        flat = values.flatten(2)
        width = flat.shape[2]
        wide = max(width - width % COLUMNS - COLUMNS, 0)
        self._rest.append(flat[:, :, wide:].clone())
        if wide:
            self._cascade(flat[:, :, :wide])

    def total(self) -> Tensor:
        """(clients, ...)."""
        total = torch.cat(self._rest, dim=1).sum(dim=1)
        if found := [level for level in self._levels if level is not None]:
            total = torch.cat([sum(found[1:], start=found[0]), total], dim=1)
        return total.reshape(self._shape)

    def _cascade(self, rows: Tensor) -> None:
        begun, size = 0, rows.shape[1]
        while begun < size:
            missing = BLOCK - self._rows % BLOCK
            some = rows[:, begun : begun + missing]
            if missing == BLOCK:
                self._levels[0] = some.sum(dim=1)  # up to 16 rows: one after another
            else:
                for row in some.unbind(dim=1):
                    self._up(0, row)
            begun += some.shape[1]
            self._rows += some.shape[1]
            self._carry()

    def _carry(self) -> None:
        """Sums that are full go up a level."""
        for level in range(1, LEVELS):
            below = self._levels[level - 1]
            if self._rows % BLOCK**level or below is None:
                return
            self._up(level, below)
            self._levels[level - 1] = None

    def _up(self, level: int, value: Tensor) -> None:
        held = self._levels[level]
        self._levels[level] = value if held is None else held + value
