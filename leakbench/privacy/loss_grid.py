"""Where the composed loss is looked for: the tilt and the grid, by a first look at cumulants.

Nothing here needs care: whatever is chosen, `pld` stays an upper bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from leakbench.privacy.pairs import Floats, Pair, outline

_BESIDE = 16.0  # e^-16 may lie outside the grid
_FINENESS = 0.02  # spacing of the grid / std of a tilted step
_ADDED = 1e-4  # of the variance, which a grid may add
_SHORTEST, _LONGER, _LONGEST = 2**13, 2**19, 2**21  # points of the grid
_MOST_CELLS = 2**17  # of the grid that one step covers

# Tilts at which every pair's cumulants are known: a bracket for the one that is chosen.
_TILTS = np.concatenate(
    [-np.exp2(np.arange(40.0, -21.0, -1.0)), [0.0], np.exp2(np.arange(-20.0, 41.0))]
)
_LEAST_TILT = 2.0**-20
_LEAST_EXTENT = 1e-290
_FINER = np.exp2(np.arange(-1.0, 1.01, 1 / 16))
_MOST_TILTED = 1e6  # tilt times a step's range of losses: rounding of it is relative


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Where the composed loss is looked for: `length` points, a multiple of `spacing` each.

    first: index of the lowest. tilt: s. above: another tilt, which bounds the mass above the grid.
    """

    spacing: float
    first: int
    length: int
    tilt: float
    above: float


def log_hockey(s: Any) -> Any:
    """ln of the largest e^(-s x) (1 - e^-x) over x > 0."""
    return s * np.log(s) - (s + 1) * np.log1p(s)


def choose_grid(pairs: Sequence[tuple[Pair, int]], delta: float, steps: int, tail: int) -> Grid:
    """Tilt and grid from the steps' cumulants, K(t) = ln E e^(t loss); sound whatever they are."""
    log_delta = math.log(delta)
    coarse = [(_coarse(pair, tail), count) for pair, count in pairs]
    extent = max(max(part.extent for part, _ in coarse), _LEAST_EXTENT)
    usable = np.abs(_TILTS) <= max(_MOST_TILTED / extent, _LEAST_TILT)
    tilts = _TILTS[usable]
    cumulants = np.zeros(len(tilts))
    for part, count in coarse:
        cumulants += count * part.cumulants[usable]
    positive = tilts > 0

    def chernoff(tilts: Floats, cumulants: Floats) -> Floats:
        result: Floats = (cumulants + log_hockey(tilts) - log_delta) / tilts
        return result

    finer = _FINER * tilts[positive][chernoff(tilts[positive], cumulants[positive]).argmin()]
    closer = np.zeros(len(finer))
    for part, count in coarse:
        closer += count * part.at(finer)
    best = min(max(int(chernoff(finer, closer).argmin()), 1), len(finer) - 2)
    s = float(finer[best])
    slopes = np.diff(closer[best - 1 : best + 2]) / np.diff(finer[best - 1 : best + 2])
    variance = 2 * float(slopes[1] - slopes[0]) / float(finer[best + 1] - finer[best - 1])

    tilts = np.concatenate([tilts, finer])
    cumulants = np.concatenate([cumulants, closer])
    upper, lower = tilts > s * (1 + 1e-9), tilts < s * (1 - 1e-9)
    # Chernoff's bounds again: of the tilted distribution only e^-_BESIDE is outside on either side,
    # of the untilted one e^-_BESIDE of delta above.
    rest = cumulants - closer[best]
    low = float(((rest[lower] + _BESIDE) / (tilts - s)[lower]).max())
    high = float(((rest[upper] + _BESIDE) / (tilts - s)[upper]).min())
    high = max(high, float(((cumulants - log_delta + _BESIDE)[upper] / tilts[upper]).min()))
    width = max(high - low, 1e-300)
    spacing = max(_FINENESS * math.sqrt(max(variance, 0.0) / steps), width / (_LONGEST - 4))
    spacing = min(spacing, width / (_SHORTEST - 4))
    # Where few steps lose much and all others hardly any, the latter need a finer one.
    some = coarse[:: math.ceil(len(coarse) / 64)]
    while spacing > 2 * width / _LONGER:
        parts = [count * part.variances(s, spacing) for part, count in some]
        added, own = np.sum(parts, axis=0)
        if (added <= _ADDED * own).all():
            break
        spacing /= 2
    spacing = max(spacing, extent / _MOST_CELLS)
    # Indices must stay whole numbers, also where all losses are the same.
    farthest = max(abs(high), *(float(np.abs(part.losses).max()) for part, _ in coarse))
    spacing = max(spacing, farthest * 1e-12)
    # Tilts beyond 1 / spacing see the grid.
    upper &= tilts <= max(1 / spacing, 2 * s)
    above = float(tilts[upper][(cumulants - tilts * high)[upper].argmin()])
    length = 2 ** math.ceil(math.log2(max(width / spacing + 3, _SHORTEST)))
    return Grid(
        spacing=spacing,
        first=math.floor(high / spacing) + 2 - length,
        length=length,
        tilt=s,
        above=above,
    )


@dataclass(frozen=True, slots=True)
class _Coarse:
    """One step in few points. cumulants: K at `_TILTS`; extent: range of the losses."""

    logs: Floats
    losses: Floats
    cumulants: Floats
    extent: float

    def at(self, tilts: Floats) -> Floats:
        """K at each tilt."""
        return _log_sum(self.logs + tilts[:, None] * self.losses)

    def variances(self, tilt: float, spacing: float) -> Floats:
        """(2, 3) what a grid adds to the variance of the losses, and it, untilted to tilted."""
        logs = self.logs + tilt * np.array([[0.0], [0.5], [1.0]]) * self.losses
        masses = np.exp(logs - _log_sum(logs)[:, None])
        share = self.losses / spacing % 1.0
        means = (masses * self.losses).sum(axis=1, keepdims=True)
        added = spacing**2 * (masses * share * (1 - share)).sum(axis=1)
        return np.array([added, (masses * (self.losses - means) ** 2).sum(axis=1)])


@lru_cache(maxsize=2**12)
def _coarse(pair: Pair, tail: int) -> _Coarse:
    logs, losses = outline(pair, tail)
    cumulants = _log_sum(logs + _TILTS[:, None] * losses)
    return _Coarse(logs, losses, cumulants, float(losses.max() - losses.min()))


def _log_sum(logs: Floats) -> Floats:
    top = logs.max(axis=-1, keepdims=True)
    result: Floats = np.log(np.exp(logs - top).sum(axis=-1)) + top[..., 0]
    return result
