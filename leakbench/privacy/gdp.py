"""Gaussian DP: exact for Gaussian releases everyone takes part in, a limit under sampling.

A release is mu-GDP if telling two neighbours apart is no easier than telling N(0, 1) from N(mu, 1)
(Dong, Roth and Su 2019). Gaussian releases compose exactly: mu^2 adds up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

from scipy.special import erf, log_ndtr, ndtr

from leakbench.errors import LeakbenchError
from leakbench.privacy.bisection import least
from leakbench.privacy.events import PrivacyEvent, Relation, check_delta, grouped


def mu_of_events(events: Iterable[PrivacyEvent], relation: Relation = "add_remove") -> float:
    """mu of all events if sampling amplifies nothing; exact without sampling, else a bound."""
    return math.sqrt(
        sum(group.steps * group.separation(relation) ** 2 for group in grouped(events))
    )


def limit_mu(events: Iterable[PrivacyEvent], relation: Relation = "add_remove") -> float:
    """mu that many sampled steps tend to: an approximation that can be too small, not a bound.

    One step adds to mu^2: q^2 (e^(1/sigma^2) - 1) under Poisson sampling and add/remove (Bu, Dong,
    Long and Su 2020); 2 q^2 h(sigma / 2)^2 where a fixed number is drawn (Dong, Roth and Su 2019,
    Corollary 4; sigma / 2 because replacing moves the sum by twice the clip bound).

    Returns:
        In [0, inf]; inf for noise 0 or so little that it overflows.

    Raises:
        LeakbenchError: For replace-one under Poisson sampling, which has no published limit.
    """
    square = 0.0
    for group in grouped(events):
        apart = group.separation(relation)
        if group.rate == 1:
            square += group.steps * apart**2
        elif group.sampling == "fixed_size":
            square += group.steps * 2 * (group.rate * subset_factor(1 / apart)) ** 2
        elif relation == "replace_one":
            raise LeakbenchError(
                "gdp: the limit for Poisson sampling is for add/remove, not replace-one; use 'pld'"
            )
        elif apart * apart > 700:
            return math.inf
        else:
            square += group.steps * group.rate**2 * math.expm1(apart * apart)
    return math.sqrt(square)


def subset_factor(noise_multiplier: float) -> float:
    """h(s) of the central limit for batches drawn without replacement; s = std / sensitivity.

    h(s)^2 = e^(1/s^2) Phi(3/(2s)) + 3 Phi(-1/(2s)) - 2. inf where it overflows.
    """
    if noise_multiplier < 1 / math.sqrt(700):
        return math.inf
    half = 0.5 / noise_multiplier / math.sqrt(2)
    # Phi(3x) + 3 Phi(-x) - 2 without its constants, which cancel where noise is large.
    rest = erf(3 * half) / 2 - 3 * erf(half) / 2
    growth = math.expm1(1 / noise_multiplier**2) * ndtr(1.5 / noise_multiplier)
    return math.sqrt(max(0.0, float(growth + rest)))


def delta_of_mu(mu: float, epsilon: float) -> float:
    """Smallest delta of a mu-GDP mechanism at `epsilon` >= 0 (Dong, Roth and Su, Corollary 1).

    Phi(-epsilon / mu + mu / 2) - e^epsilon Phi(-epsilon / mu - mu / 2); 0 for mu = 0, 1 for inf.
    """
    if mu == 0 or epsilon == math.inf:
        return 0.0
    if mu == math.inf:
        return 1.0
    upper = float(log_ndtr(-epsilon / mu + mu / 2))
    if upper == -math.inf:
        return 0.0
    lower = epsilon + float(log_ndtr(-epsilon / mu - mu / 2))
    return -math.exp(upper) * math.expm1(min(0.0, lower - upper))


@lru_cache(maxsize=2**15)  # composition asks for thousands of steps, thrice
def epsilon_of_mu(mu: float, delta: float) -> float:
    """Smallest epsilon >= 0 at `delta` of a mu-GDP mechanism, to 12 digits.

    Args:
        mu: In [0, inf]; sensitivity / noise std of one Gaussian release.
        delta: In (0, 1).

    Raises:
        LeakbenchError: If mu is negative or nan, or delta outside (0, 1).
    """
    check_delta(delta)
    if not mu >= 0:
        raise LeakbenchError(f"mu must be >= 0, got {mu}")
    # The loss is N(mu^2 / 2, mu^2), and delta at most the chance that it exceeds epsilon.
    highest = mu * (mu / 2 + math.sqrt(-2 * math.log(delta)))
    if highest > 1e300:
        return math.inf
    return least(lambda epsilon: delta_of_mu(mu, epsilon) <= delta, 0.0, highest, 1e-13)
