"""Trials to run together, and what comes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from leakbench.records import Record
from leakbench.spec import Cell, Rule
from leakbench.streams import generator


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Trials to run together: `trials` are (number of the cell in `cells`, victim).

    A victim is the number of a candidate: of the first one where a gradient was made of several,
    which follow one another in the list. In their batches they stand in an order of their own,
    since the list goes through the classes in turn, which an attacker could not know.
    """

    cells: tuple[Cell, ...]
    identities: tuple[str, ...]
    network: int
    trials: tuple[tuple[int, int], ...]
    rules: tuple[Rule, ...]
    root: Path | None
    device: str

    @property
    def images(self) -> tuple[tuple[int, int], ...]:
        """(number of the cell, candidate) of every image, in the order of the trials."""
        return tuple(
            (of, image) for of, victim in self.trials for image in batch_from(self.cells[0], victim)
        )


def batch_from(cell: Cell, victim: int) -> list[int]:
    """Candidates behind one gradient, of which `victim` is the first, in the order of training."""
    stream = generator(cell.seed, "order", cell.dataset, victim)
    return [victim + i for i in torch.randperm(cell.images_a_gradient, generator=stream).tolist()]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkResult:
    """One record an image, in the chunk's order, and the arrays they mention."""

    records: tuple[Record, ...]
    arrays: Mapping[str, Mapping[str, np.ndarray]]
