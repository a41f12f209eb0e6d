"""Dominating pairs of single steps, as many weighted points of one variable.

No neighbours are easier to tell apart by a step than P from Q. The variable u is the release in
stds of its noise; N(m) below has mean m and variance 1.

- remove: P = sum of c_k N(k apart) against Q = N(0), with c_k the chance that k of a group of
  `size` examples are drawn (one example: c = (1 - rate, rate)). add: the two exchanged. Together
  they cover add/remove under Poisson sampling.
- replace: P = (1 - rate) N(0) + rate N(apart) against the same with -apart: replacing one example
  under Poisson sampling.
- fixed: replacing one in a batch drawn without replacement. P and Q of remove where P is larger,
  mirrored, and what is left where they are equal (Dong, Roth and Su 2019, Theorem 9).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, log_ndtr

Floats = NDArray[np.float64]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(6)
_HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


@dataclass(frozen=True, slots=True)
class Pair:
    """See the module. apart: in stds, above 0; rate: in (0, 1]; size: above 1 for add, remove."""

    kind: Literal["remove", "add", "replace", "fixed"]
    apart: float
    rate: float
    size: int = 1

    @property
    def reach(self) -> float:
        """The farthest mean."""
        return self.size * self.apart

    @property
    def summand(self) -> float:
        """Largest number in the logarithm of a chance, which is off by its rounding."""
        n = self.size
        return 0.0 if n == 1 else n * (math.log(n) + 1 - math.log(self.rate))

    @property
    def largest_loss(self) -> float:
        """Of any release; inf where there is none."""
        if self.kind != "add" or self.rate == 1:
            return math.inf
        return -self.size * math.log1p(-self.rate)


@dataclass(frozen=True, slots=True)
class _Mixture:
    """sum of c_k N(k apart), k = 0 apart; what has hardly a chance is missing.

    means, chances, logs: (k,) of those k >= 1 that are there. log_none: ln c_0; dropped: what of
    the chances is not there.
    """

    means: Floats
    chances: Floats
    logs: Floats
    log_none: float
    dropped: float


@lru_cache(maxsize=64)
def _mixture(pair: Pair, tail: float) -> _Mixture:
    if pair.size == 1:
        log_none = math.log1p(-pair.rate) if pair.rate < 1 else -math.inf
        rate = np.array([pair.rate])
        return _Mixture(np.array([pair.apart]), rate, np.log(rate), log_none, 0.0)
    n, k = pair.size, np.arange(pair.size + 1.0)
    logs = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
    logs += k * math.log(pair.rate) + (n - k) * math.log1p(-pair.rate)
    kept = logs > float(log_ndtr(-tail)) - math.log(n + 1)
    dropped = float(np.exp(logs[~kept]).sum())
    log_none = float(logs[0]) if kept[0] else -math.inf
    kept[0] = False
    return _Mixture(pair.apart * k[kept], np.exp(logs[kept]), logs[kept], log_none, dropped)


def masses_and_losses(pair: Pair, tail: float, spacing: float) -> tuple[Floats, Floats]:
    """Points that stand for one step: Gauss-Legendre nodes in cells of u.

    Args:
        tail: Stds around each mean that are covered; at most 5 Phi(-tail) of P is left out.
        spacing: Of a grid of losses; none of its lines is inside a cell. Nor does P or Q change by
            more than a factor of e or so in one, so that integrals over it are exact but for
            rounding.

    Returns:
        ln of the points' masses under P, and their losses ln(P/Q), each off by a few roundings of
        its largest summand.
    """
    mixture = _mixture(pair, tail)
    starts, widths = [], []
    for low, high in _stretches(pair, mixture, tail):
        ends = np.linspace(low, high, math.ceil((high - low) * (tail + pair.reach)) + 1)
        first, last = _increasing(pair, mixture, ends[[0, -1]]) / spacing
        lines = spacing * np.arange(math.floor(first), math.ceil(last) + 1.0)
        crossed = np.clip(_where(pair, mixture, lines, ends), low, high)
        ends = np.unique(np.concatenate([ends, crossed]))
        starts.append(ends[:-1])
        widths.append(np.diff(ends))
    u, weights = _legendre(np.concatenate(starts), np.concatenate(widths))
    return _points(pair, mixture, u, weights)


def outline(pair: Pair, tail: float) -> tuple[Floats, Floats]:
    """The same by fewer points, some at the very ends, for a first look at cumulants."""
    mixture = _mixture(pair, tail)
    parts = []
    for low, high in _stretches(pair, mixture, tail):
        ends = np.linspace(low, high, math.ceil((high - low) * (2 + pair.reach)) + 1)
        parts.append(_legendre(ends[:-1], np.diff(ends)))
        # What they add is nothing, unless the tilt is large.
        outer = ends[[-1]] if pair.kind == "fixed" else ends[[0, -1]]
        parts.append((outer, np.full_like(outer, 1e-3)))
    u, weights = (np.concatenate(column) for column in zip(*parts, strict=True))
    return _points(pair, mixture, u, weights)


def _legendre(starts: Floats, widths: Floats) -> tuple[Floats, Floats]:
    """Nodes in all cells, and their weights."""
    start, width = starts[:, None], widths[:, None]
    return (start + width * (_NODES + 1) / 2).ravel(), (width * _WEIGHTS / 2).ravel()


def _stretches(pair: Pair, mixture: _Mixture, tail: float) -> list[tuple[float, float]]:
    """Where P has its mass: `tail` to either side of its means."""
    means = np.append(0.0, mixture.means)
    if pair.kind == "add":
        means = means[:1]
    gaps = np.flatnonzero(np.diff(means) > 2 * tail)
    lows, highs = means[np.append(0, gaps + 1)] - tail, means[np.append(gaps, -1)] + tail
    if pair.kind == "fixed":
        lows = np.maximum(lows, pair.apart / 2)
    return [(float(a), float(b)) for a, b in zip(lows, highs, strict=True) if a < b]


def _points(pair: Pair, mixture: _Mixture, u: Floats, weights: Floats) -> tuple[Floats, Floats]:
    under_normal = np.log(weights) - u * u / 2 - _HALF_LOG_TAU
    loss = _log_ratio(mixture, u)
    if pair.kind == "remove":
        return under_normal + loss, loss
    if pair.kind == "add":
        return under_normal, -loss
    if pair.kind == "replace":
        return under_normal + loss, loss - _log_ratio(mixture, -u)
    equal = (1 - pair.rate) * math.erf(pair.apart / math.sqrt(8))
    return (
        np.concatenate([under_normal + loss, under_normal, [math.log(equal)]]),
        np.concatenate([loss, -loss, [0.0]]),
    )


def _log_ratio(mixture: _Mixture, u: Floats) -> Floats:
    """ln of the mixture's density over that of N(0)."""
    powers = _powers(mixture, u)
    with np.errstate(over="ignore"):
        excess = (mixture.chances[:, None] * np.expm1(powers)).sum(axis=0) - mixture.dropped
    # Near 1 it is its distance from 1 that must be accurate, elsewhere its logarithm.
    near = (excess > -0.5) & (excess < 1e9)
    result: Floats = np.log1p(np.where(near, excess, 0.0))
    if not near.all():
        logs = powers[:, ~near] + mixture.logs[:, None]
        top = np.maximum(logs.max(axis=0), mixture.log_none)
        result[~near] = top + np.log(
            np.exp(logs - top).sum(axis=0) + np.exp(mixture.log_none - top)
        )
    return result


def _powers(mixture: _Mixture, u: Floats) -> Floats:
    """(k, points) ln of N(k apart) over N(0)."""
    means = mixture.means[:, None]
    return means * u - means**2 / 2


def _increasing(pair: Pair, mixture: _Mixture, u: Floats) -> Floats:
    """The loss, or for add its negative: grids are symmetric, and this is increasing."""
    ratio = _log_ratio(mixture, u)
    return ratio - _log_ratio(mixture, -u) if pair.kind == "replace" else ratio


def _where(pair: Pair, mixture: _Mixture, lines: Floats, ends: Floats) -> Floats:
    """u at which `_increasing` takes the values of `lines`; anything where it takes none."""
    apart, rate = pair.apart, pair.rate
    if pair.size > 1:
        return _where_of_group(mixture, lines, ends)
    with np.errstate(all="ignore"):
        if pair.kind == "replace":
            # (1 - q + r e^(au)) / (1 - q + r e^(-au)) = e^l, r = q e^(-a^2/2), is quadratic.
            size = np.abs(lines)
            log_sinh = size / 2 + np.log(-np.expm1(-size) / 2)
            log = math.log1p(-rate) - math.log(rate) + apart * apart / 2 + log_sinh
            inverse = np.where(log > 300, log + math.log(2), np.arcsinh(np.exp(log)))
            return np.nan_to_num(np.sign(lines) * (size / 2 + inverse) / apart)
        near = np.log1p(np.expm1(lines) / rate)
        far = lines + np.log1p(-(1 - rate) * np.exp(-lines)) - math.log(rate)
        power = np.where(np.abs(lines) < 0.5, near, far)
        return np.nan_to_num(power / apart + apart / 2, nan=-math.inf)


def _where_of_group(mixture: _Mixture, lines: Floats, ends: Floats) -> Floats:
    """Interpolated, then three steps of Newton's method on a convex function."""
    u = np.interp(lines, _log_ratio(mixture, ends), ends)
    for _ in range(3):
        value = _log_ratio(mixture, u)
        taken = np.exp(_powers(mixture, u) + mixture.logs[:, None] - value)
        slope = (mixture.means[:, None] * taken).sum(axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            u = np.clip(u - (value - lines) / slope, ends[0], ends[-1])
    return np.nan_to_num(u)
