"""Random numbers derived from named axes, never from order.

A stream is keyed by a hash of (seed, purpose, axis values). Victims, starts and noise are keyed by
who they belong to and not by the defense, so they are paired across defenses, and results do not
depend on chunks, workers or which other cells exist. All draws are made on the CPU.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from leakbench import native


def generator(seed: int, *axes: str | int) -> torch.Generator:
    """A CPU generator for the stream named by `axes`, independent of every other name."""
    return torch.Generator().manual_seed(_seed(seed, *axes))


def _seed(seed: int, *axes: str | int) -> int:
    digest = hashlib.sha256("\x1f".join(map(str, (seed, *axes))).encode()).digest()
    # torch seeds are signed 64-bit integers; its CPU generator uses their lower 32 bits.
    return int.from_bytes(digest[:8], "big") >> 1


def normals(seed: int, shape: tuple[int, ...]) -> Tensor:
    """The first N(0, 1) float32 numbers of torch's CPU generator with this seed, as `shape`."""
    count = math.prod(shape)
    if count < FEWEST or native.lanes() == 0 or not _draws_as_torch():
        return _torch_normals(seed, shape)
    drawn = torch.empty(shape, dtype=torch.float32)
    native.normals(seed, count, drawn.data_ptr())
    return drawn


FEWEST = 16
"""Numbers from which torch makes them in vectors."""


def _torch_normals(seed: int, shape: tuple[int, ...]) -> Tensor:
    stream = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=stream, dtype=torch.float32)


@cache
def _draws_as_torch() -> bool:
    """Whether this torch computes what the compiled program does: how it fuses products and sums is
    its compiler's choice."""
    count = 20_011
    drawn = torch.empty(count, dtype=torch.float32)
    native.normals(1, count, drawn.data_ptr())
    return torch.equal(drawn, _torch_normals(1, (count,)))


def opaque(*axes: str | int) -> tuple[str]:
    """A victim's key that does not say who the victim is: attacks hold the streams it names."""
    return (hashlib.sha256("\x1f".join(map(str, axes)).encode()).hexdigest(),)


@dataclass(frozen=True, slots=True)
class VictimStreams:
    """Streams of n victims, each keyed by its own axes (see `contracts.Streams`)."""

    seed: int
    victims: tuple[tuple[str | int, ...], ...]

    def uniform(self, purpose: str, shape: tuple[int, ...], repeat: int = 0) -> Tensor:
        """U[0, 1) of shape (n, *shape), float64."""
        rows = (
            torch.rand(shape, generator=self._of(victim, purpose, repeat), dtype=torch.float64)
            for victim in self.victims
        )
        return torch.stack(list(rows))

    def normal(self, purpose: str, shape: tuple[int, ...], repeat: int = 0) -> Tensor:
        """N(0, 1) of shape (n, *shape), float64."""
        rows = (
            torch.randn(shape, generator=self._of(victim, purpose, repeat), dtype=torch.float64)
            for victim in self.victims
        )
        return torch.stack(list(rows))

    def _of(self, victim: tuple[str | int, ...], purpose: str, repeat: int) -> torch.Generator:
        return generator(self.seed, purpose, repeat, *victim)


@dataclass(frozen=True, slots=True)
class NoiseStreams:
    """Noise of the training path (see `contracts.NoiseSource`), keyed by where it enters."""

    seed: int
    axes: tuple[str | int, ...]

    def normal(
        self, purpose: str, client: int, round: int, iteration: int, shape: tuple[int, ...]
    ) -> Tensor:
        """N(0, 1) of `shape`, float32: one client's whole draw for this purpose."""
        return normals(_seed(self.seed, *self._name(purpose, client, round, iteration)), shape)

    def uniform(
        self, purpose: str, client: int, round: int, iteration: int, shape: tuple[int, ...]
    ) -> Tensor:
        """U(0, 1) of `shape`, float64 and never 0 or 1: a client's whole draw for this purpose."""
        stream = generator(self.seed, *self._name(purpose, client, round, iteration))
        least = 2.0**-54  # torch draws multiples of 2^-53, 0 among them
        return torch.rand(shape, generator=stream, dtype=torch.float64).clamp(min=least)

    def _name(self, purpose: str, client: int, round: int, iteration: int) -> tuple[str | int, ...]:
        return ("noise", purpose, *self.axes, client, round, iteration)
