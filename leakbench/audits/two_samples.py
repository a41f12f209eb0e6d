"""Telling two kinds of trials apart by a number each, and what that proves.

A test between two distributions is wrong in two ways, each bounded by Clopper and Pearson (1934);
the least mu, or epsilon, that allows such a test is a lower bound on that of the mechanism.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, betaincinv, chdtri, ndtri, stdtrit
from scipy.stats import binom

Floats = NDArray[np.float64]

_CHOOSING_ERROR = 1e-5
"""Chance of error of the bounds that thresholds are chosen by: strict, or the most promising of
thousands would be a lucky one in the tails."""
_LEAST_NOISE = 1e-6  # of the largest std of a coordinate: below, it has none


@dataclass(frozen=True, slots=True)
class Trials:
    """Statistics of equally many trials with the canary and without; larger means with."""

    inside: Floats
    outside: Floats

    def error_bounds(self, thresholds: Floats, error: float) -> tuple[Floats, Floats]:
        """Upper bounds of false positive and false negative rate, both right but for `error`."""
        count = len(self.inside)
        false_positives = count - np.searchsorted(np.sort(self.outside), thresholds, "right")
        false_negatives = np.searchsorted(np.sort(self.inside), thresholds, "right")
        return (
            largest_rate(false_positives, count, error / 2),
            largest_rate(false_negatives, count, error / 2),
        )

    def distance(self) -> float:
        """Between the means, in the smaller standard deviation; inf where one has no spread."""
        apart = abs(float(self.inside.mean() - self.outside.mean()))
        spread = min(float(self.inside.std(ddof=1)), float(self.outside.std(ddof=1)))
        if apart == 0:
            return 0.0
        return apart / spread if spread > 0 else math.inf


def lower_bound(
    of_errors: Callable[[Floats, Floats], Floats],
    choosing: Trials,
    testing: Trials,
    error: float,
) -> float:
    """What the test trials show at the threshold that is best for the others; at least 0."""
    thresholds = np.unique(np.concatenate([choosing.inside, choosing.outside]))
    promising = of_errors(*choosing.error_bounds(thresholds, _CHOOSING_ERROR))
    best = thresholds[[np.argmax(promising)]]
    return max(0.0, float(of_errors(*testing.error_bounds(best, error))[0]))


def largest_rate(count: NDArray[np.int64], trials: int, error: float) -> Floats:
    """Upper end of the one-sided Clopper-Pearson interval of count / trials, above 0."""
    failures = np.maximum(trials - count, 1)  # without any the bound is 1
    bound: Floats = np.where(count < trials, betaincinv(count + 1, failures, 1 - error), 1.0)
    return bound


def mu_of_errors(false_positive: Floats, false_negative: Floats) -> Floats:
    """Phi^-1(1 - fpr) - Phi^-1(fnr): the least mu that allows them (Dong, Roth and Su 2019)."""
    least: Floats = ndtri(1 - false_positive) - ndtri(false_negative)
    return least


def epsilon_of_errors(false_positive: Floats, false_negative: Floats, delta: float) -> Floats:
    """The least epsilon that allows them at `delta` (Kairouz, Oh and Viswanath 2015).

    fpr + e^epsilon fnr >= 1 - delta, and the same with the two exchanged.
    """
    with np.errstate(divide="ignore"):
        one = np.log(np.maximum(1 - delta - false_negative, 0) / false_positive)
        other = np.log(np.maximum(1 - delta - false_positive, 0) / false_negative)
    least: Floats = np.maximum(one, other)
    return least


def gaussian_mu(testing: Trials, error: float) -> float:
    """Lower bound on mu from means and variances, right but for `error` if both are Gaussian.

    The distance of the means by Student's t, the spread by chi^2 of each kind and of both pooled,
    of which the least counts; inf where a kind has no spread and the means differ.
    """
    count = len(testing.inside)
    share = error / 4
    spreads = [float(kind.var(ddof=1)) for kind in (testing.inside, testing.outside)]
    pooled = sum(spreads) / 2
    margin = float(stdtrit(2 * count - 2, 1 - share)) * math.sqrt(2 * pooled / count)
    apart = abs(float(testing.inside.mean() - testing.outside.mean())) - margin
    if apart <= 0:
        return 0.0
    degrees = (count - 1, count - 1, 2 * count - 2)
    largest = [
        math.sqrt(value * free / float(chdtri(free, 1 - share)))
        for value, free in zip((*spreads, pooled), degrees, strict=True)
    ]
    return apart / min(largest) if min(largest) > 0 else math.inf


def light_tails(noise: Floats, error: float) -> bool:
    """Whether noise, (trials, coordinates), has thinner tails than a Gaussian.

    Fewer values beyond 2, 3 and 4 of their coordinate's standard deviations than independent
    Gaussian ones have but for a chance of `error`. Such a value, squared and divided by n - 1, is
    Beta(1/2, n/2 - 1) (Thompson 1935). The likelihood ratio of bounded noise has no bound, so no
    (epsilon, delta) follows from its std. Coordinates without noise do not count.
    """
    count = len(noise)
    centred = (noise - noise.mean(axis=0)) * math.sqrt(count / (count - 1))
    spread = np.sqrt(np.square(centred).mean(axis=0))
    noisy = spread > _LEAST_NOISE * spread.max(initial=0.0)
    if not noisy.any():
        return False
    values = np.abs(centred[:, noisy] / spread[noisy])
    beyond = np.array([2.0, 3.0, 4.0])
    counts = np.array([(values > limit).sum() for limit in beyond])
    rates = 1 - betainc(0.5, count / 2 - 1, np.square(beyond) / (count - 1))
    chances = binom.cdf(counts, values.size, rates)
    return bool(chances.min() < error / len(beyond))
