"""Random numbers derived from named axes, never from order.

A stream is keyed by a hash of (seed, purpose, axis values). Victims, starts and noise are keyed by
who they belong to and not by the defense, so they are paired across defenses, and results do not
depend on chunks, workers or which other cells exist. All draws are made on the CPU.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor


def generator(seed: int, *axes: str | int) -> torch.Generator:
    """A CPU generator for the stream named by `axes`, independent of every other name."""
    digest = hashlib.sha256("\x1f".join(map(str, (seed, *axes))).encode()).digest()
    # torch seeds are signed 64-bit integers; its CPU generator uses their lower 32 bits.
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


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
        return torch.randn(shape, generator=self._of(purpose, client, round, iteration))

    def uniform(
        self, purpose: str, client: int, round: int, iteration: int, shape: tuple[int, ...]
    ) -> Tensor:
        """U(0, 1) of `shape`, float64 and never 0 or 1: a client's whole draw for this purpose."""
        stream = self._of(purpose, client, round, iteration)
        least = 2.0**-54  # torch draws multiples of 2^-53, 0 among them
        return torch.rand(shape, generator=stream, dtype=torch.float64).clamp(min=least)

    def _of(self, purpose: str, client: int, round: int, iteration: int) -> torch.Generator:
        return generator(self.seed, "noise", purpose, *self.axes, client, round, iteration)
