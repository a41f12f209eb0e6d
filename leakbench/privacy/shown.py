"""Epsilon from below: what one test on the releases of a known mechanism shows.

An accountant says how large epsilon is at most. That a claim is too small is shown by a test: an
event with chance p under one neighbour and q under the other proves epsilon >= ln((p - delta) / q).
Without sampling Gaussian releases are one, and both sides meet. With sampling the test here looks
at the sum of all releases, which is simple and not the best: the truth is between.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, logsumexp
from scipy.stats import binom

from leakbench.privacy.events import Group, PrivacyEvent, Relation, check_delta, grouped
from leakbench.privacy.gdp import epsilon_of_mu, mu_of_events

_THRESHOLDS = 400
_TAIL = 1e-15  # of the number of steps that an example is drawn in

Floats = NDArray[np.float64]


def least_epsilon(
    events: Iterable[PrivacyEvent], delta: float, relation: Relation = "add_remove"
) -> float:
    """A lower bound on epsilon at `delta` of the composed events; exact without sampling.

    It is attained by neighbours of which one example has a gradient at the bound and all others
    have none. Of events that differ, sampled ones, the worst alone counts.

    Raises:
        LeakbenchError: If an argument is outside its range.
    """
    check_delta(delta)
    groups = grouped(events)
    plain = [
        PrivacyEvent(noise_multiplier=one.noise_multiplier, sensitivity=1.0, steps=one.steps)
        for one in groups
        if one.rate == 1
    ]
    found = [epsilon_of_mu(mu_of_events(plain, relation), delta)] if plain else [0.0]
    found += [_of_sum(one, delta, relation) for one in groups if one.rate < 1]
    return max(found)


def _of_sum(group: Group, delta: float, relation: Relation) -> float:
    """Of the sum of all steps' releases: k times the bound if the example was drawn k times."""
    if group.noise_multiplier == 0:
        return math.inf if -math.expm1(group.steps * math.log1p(-group.rate)) > delta else 0.0
    drawn = binom(group.steps, group.rate)
    counts = np.arange(int(drawn.ppf(_TAIL)), int(drawn.isf(_TAIL)) + 1, dtype=np.float64)
    chances = drawn.logpmf(counts)
    std = math.sqrt(group.steps) * group.noise_multiplier
    thresholds = np.linspace(-10 * std, counts[-1] + 10 * std, _THRESHOLDS)
    with_it = _log_tails((counts - thresholds[:, None]) / std, chances)
    if relation == "replace_one":
        # The neighbour's sum mirrors this one's: the test turned round is the same test.
        without = _log_tails((-counts - thresholds[:, None]) / std, chances)
        return _shown(with_it[0], without[0], delta)
    zero = (log_ndtr(-thresholds / std), log_ndtr(thresholds / std))
    return max(_shown(with_it[0], zero[0], delta), _shown(zero[1], with_it[1], delta))


def _log_tails(standardised: Floats, chances: Floats) -> tuple[Floats, Floats]:
    """ln of the chances to be above and below each threshold, (thresholds, counts) -> each."""
    above: Floats = logsumexp(log_ndtr(standardised) + chances, axis=1)
    below: Floats = logsumexp(log_ndtr(-standardised) + chances, axis=1)
    return above, below


def _shown(log_p: Floats, log_q: Floats, delta: float) -> float:
    with np.errstate(divide="ignore"):
        return max(0.0, float((np.log(np.maximum(np.exp(log_p) - delta, 0)) - log_q).max()))
