"""Moments accountant: Renyi DP of the Poisson-subsampled Gaussian, and its conversions.

With noise N(0, sigma^2), unit sensitivity and sampling rate q, the divergence of order alpha is
ln A / (alpha - 1), A = E_z ((1 - q) + q L)^alpha, z ~ N(0, sigma^2), L = exp((2z - 1) / 2 sigma^2)
(Mironov, Talwar and Zhang 2019, section 3). It covers both directions of add/remove.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, gammasgn, log_ndtr

from leakbench.errors import LeakbenchError
from leakbench.privacy.events import PrivacyEvent, check_delta, grouped

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Conversion = Literal["classic", "improved"]

# The grid of TF-Privacy 0.5: sparse between 1 and 5, whole to 63, then three large ones.
TF_PRIVACY_ORDERS: tuple[float, ...] = (
    *(1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 3.5, 4.0, 4.5),
    *map(float, range(5, 64)),
    *(128.0, 256.0, 512.0),
)
# The grid of Opacus: tenths up to 10.9, whole to 63.
OPACUS_ORDERS: tuple[float, ...] = (
    *(1 + tenth / 10 for tenth in range(1, 100)),
    *map(float, range(12, 64)),
)
# Densest where the best order mostly is, from 1.1 to 63: epsilon is within 0.3 % of its least over
# all orders, and within 3 % where the divergence suddenly grows between two of them.
DENSE_ORDERS: tuple[float, ...] = (
    *(1 + 10 ** (step / 8) for step in range(-24, -8)),
    *(1 + 10 ** (step / 24) for step in range(-24, 24)),
    *map(float, range(11, 64)),
    *(80.0, 96.0, 128.0, 192.0, 256.0, 384.0, 512.0),
)

_TAIL_TERMS = 20  # (3 + sqrt 8)^-20 is 5e-16


def epsilon(
    events: Iterable[PrivacyEvent],
    delta: float,
    *,
    orders: tuple[float, ...] = DENSE_ORDERS,
    conversion: Conversion = "improved",
) -> float:
    """Epsilon at `delta` of the composed events, for add/remove neighbours.

    Args:
        events: Heterogeneous steps in any order; an empty list costs 0.
        delta: In (0, 1).
        orders: Grid of orders, all above 1; a coarse one gives a larger epsilon, never a wrong one.
        conversion: From Renyi DP to (epsilon, delta), see `to_epsilon`.

    Returns:
        In [0, inf]; inf for noise 0 or so little of it that no order is finite.

    Raises:
        LeakbenchError: If an argument is outside its range or an event is sampled by fixed size.
    """
    check_delta(delta)
    return to_epsilon(composed(events, orders), orders, delta, conversion)


def composed(events: Iterable[PrivacyEvent], orders: tuple[float, ...] = DENSE_ORDERS) -> Floats:
    """(orders,) Renyi divergences of all events together, which simply add up."""
    total = np.zeros(len(orders))
    for group in grouped(events):
        if group.sampling == "fixed_size":
            raise LeakbenchError(
                "moments accountant: its series is for Poisson sampling, not for a fixed size; "
                "use 'pld', or sampling 'none'"
            )
        total += group.steps * divergence(group.rate, group.noise_multiplier, orders)
    return total


@lru_cache(maxsize=2**15)
def divergence(rate: float, noise_multiplier: float, orders: tuple[float, ...]) -> Floats:
    """(orders,) Renyi divergence of one step of the Poisson-subsampled Gaussian.

    Whole orders use the binomial sum, the others the signed series of the paper's section 3.3. Both
    sum A - 1 instead of A, so that a divergence far below the rounding of 1 keeps its digits, and
    in logarithms, so that a tiny sigma ends in inf and not in nan.

    Args:
        rate: q in [0, 1].
        noise_multiplier: sigma >= 0.
        orders: All above 1 and finite.

    Returns:
        Not negative; inf for sigma = 0, 0 for q = 0 or sigma = inf. Remembered, so read-only.

    Raises:
        LeakbenchError: If an order is not above 1.
    """
    terms = _terms(orders)
    alpha = np.array(orders)
    if rate == 0 or noise_multiplier > 1e150:
        result = np.zeros(len(orders))
    elif noise_multiplier < 1e-150:
        result = np.full(len(orders), math.inf)
    elif rate == 1:
        result = alpha / 2 / noise_multiplier / noise_multiplier
    else:
        result = np.logaddexp(0, _log_excess(terms, rate, noise_multiplier)) / (alpha - 1)
    result.flags.writeable = False
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class _Terms:
    """Terms of the series of all orders, one order after the other; all but `starts` (terms,).

    starts: (orders,) where each order's terms begin; owner: the order a term belongs to. power:
    exponent p of q L in a term; rest: alpha - p; pairs: p (p - 1) / 2. logs, signs: ln and sign of
    the binomial coefficient times the term's weight. sides: the part of the line the term is
    integrated over, -1 below the cut, 1 above it, 0 all; halves: where it is not 0.
    """

    starts: Integers
    owner: Integers
    power: Floats
    rest: Floats
    pairs: Floats
    logs: Floats
    signs: Floats
    sides: Floats
    halves: Integers


@lru_cache(maxsize=16)
def _terms(orders: tuple[float, ...]) -> _Terms:
    """All that depends on the orders alone."""
    if not orders or not all(1 < order < math.inf for order in orders):
        raise LeakbenchError("Renyi orders must be above 1 and finite, and at least one")
    parts = [_whole_terms(a) if a == round(a) else _fractional_terms(a) for a in orders]
    power, rest, logs, signs, sides = (
        np.concatenate(column) for column in zip(*parts, strict=True)
    )
    lengths = [len(part[0]) for part in parts]
    starts = np.cumsum([0, *lengths[:-1]])
    return _Terms(
        starts=starts,
        owner=np.repeat(np.arange(len(orders)), lengths),
        power=power,
        rest=rest,
        pairs=power * (power - 1) / 2,
        logs=logs,
        signs=signs,
        sides=sides,
        halves=np.flatnonzero(sides),
    )


def _whole_terms(alpha: float) -> tuple[Floats, ...]:
    """Binomial sum; powers 0 and 1 cancel against the 1 of A - 1."""
    i = np.arange(2.0, alpha + 1)
    return i, alpha - i, _log_binomial(alpha, i), np.ones_like(i), np.zeros_like(i)


def _fractional_terms(alpha: float) -> tuple[Floats, ...]:
    """Signed series of the two sides of the cut, where q L = 1 - q.

    Each side is expanded in powers of the smaller summand over the larger. From power alpha on the
    signs alternate and, without them, the terms are moments of a number in [0, 1]: the weights of
    Cohen, Rodriguez Villegas and Zagier (2000, Algorithm 1) sum such a series to rounding in 20
    terms, where it would converge like i^(-alpha - 2) by itself.
    """
    head = math.ceil(alpha) + 1
    i = np.arange(0.0, head + _TAIL_TERMS)
    logs = _log_binomial(alpha, i)
    logs[head:] += np.log(_alternating_weights(_TAIL_TERMS))
    signs = gammasgn(alpha - i + 1)
    return (
        np.concatenate([i, alpha - i]),
        np.concatenate([alpha - i, i]),
        np.tile(logs, 2),
        np.tile(signs, 2),
        np.repeat([-1.0, 1.0], len(i)),
    )


def _alternating_weights(count: int) -> Floats:
    """(count,) weights in (0, 1) for the terms of an alternating series."""
    total = math.cosh(count * math.acosh(3))
    step, partial = -1.0, -total
    weights = []
    for k in range(count):
        partial = step - partial
        weights.append(abs(partial) / total)
        step *= (k + count) * (k - count) / ((k + 0.5) * (k + 1))
    return np.array(weights)


def _log_binomial(alpha: float, i: Floats) -> Floats:
    """ln|binom(alpha, i)|."""
    result: Floats = gammaln(alpha + 1) - gammaln(i + 1) - gammaln(alpha - i + 1)
    return result


def _log_excess(terms: _Terms, rate: float, sigma: float) -> Floats:
    """(orders,) ln(A - 1).

    sum_i binom(alpha, i) (1-q)^(alpha-i) q^i is 1, so taking 1 off every moment of the side that
    carries most of the line leaves A - 1 term by term. The series of the 1s converges where the
    powers are those of the smaller of q and 1 - q.
    """
    log_rate, log_rest = math.log(rate), math.log1p(-rate)
    moments = terms.pairs / sigma / sigma
    cut = sigma * (log_rest - log_rate) + (0.5 - terms.power[terms.halves]) / sigma
    moments[terms.halves] += log_ndtr(-terms.sides[terms.halves] * cut)
    # Above 50 the 1 is lost in rounding anyway.
    bulk = (terms.sides != (1.0 if rate <= 0.5 else -1.0)) & (moments < 50)
    less_one = np.expm1(moments[bulk])
    signs = terms.signs.copy()
    signs[bulk] *= np.sign(less_one)
    with np.errstate(divide="ignore"):
        moments[bulk] = np.log(np.abs(less_one))
    logs = moments + terms.logs + terms.power * log_rate + terms.rest * log_rest
    largest = np.maximum.reduceat(logs, terms.starts)
    if not np.isfinite(largest).all():
        return largest
    sums = np.add.reduceat(signs * np.exp(logs - largest[terms.owner]), terms.starts)
    with np.errstate(divide="ignore"):
        # What rounding leaves of nothing may be below 0.
        result: Floats = largest + np.log(np.maximum(sums, 0.0))
    return result


def to_epsilon(
    divergences: Floats, orders: tuple[float, ...], delta: float, conversion: Conversion
) -> float:
    """Smallest epsilon at `delta` over the grid of orders.

    "classic": R + ln(1/delta) / (alpha - 1) (Mironov 2017, Proposition 3). "improved":
    R + ln((alpha-1)/alpha) - (ln delta + ln alpha) / (alpha - 1) (Balle et al. 2020, Theorem 21;
    Canonne, Kamath and Steinke 2020, Proposition 12). Not negative; inf if no order is finite.
    """
    if not divergences.any():
        return 0.0  # nothing was released, whatever the largest order's second term says
    alpha = np.array(orders)
    if conversion == "classic":
        candidates = divergences - math.log(delta) / (alpha - 1)
    else:
        candidates = (
            divergences + np.log1p(-1 / alpha) - (math.log(delta) + np.log(alpha)) / (alpha - 1)
        )
    return max(0.0, float(candidates.min()))
