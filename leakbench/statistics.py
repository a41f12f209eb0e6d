"""What can be said about a rate or a mean from the trials that were run.

Trials come in two layers: several networks (weight draws), several victims attacked on each. Trials
on one network share its luck, so they are not independent, and every interval here resamples
networks first and victims second. Data are therefore passed as one inner sequence per network.
Results do not depend on the order of networks or victims, and are the same for the same seed.

Resampling few networks is optimistic: the spread between networks is estimated from those at
hand, and with one network it is not seen at all. In simulations (20 victims a network, rates
between networks spread by a standard deviation of 0 to 0.35) the 95 % interval of `rate_interval`
covered the truth in 85 to 98 % of experiments with five networks, in 63 to 99 % with two and in 28
to 99 % with one: an interval from one network speaks for that network only.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Verdict = Literal["reproduced", "not reproduced", "inconclusive"]

# Limits of a band are sums and quotients of decimal fractions (0.8 - 0.1 is not 0.7 in binary), and
# a result on the limit must not depend on that.
_ROUNDING = 1e-9

# Values drawn by a bootstrap of means, unless that were fewer than so many repetitions.
_DRAWS_IN_ALL = 2**20
_LEAST_RESAMPLES = 200

# Of them drawn at a time: 32 MB of float64.
_DRAWS = 2**22

# Of them worked on at a time, which a processor's cache holds; changes no number.
_CACHED = 2**15


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its confidence interval, in the unit of the data.

    Attributes:
        value: The estimate; None without data.
        low: Lower end; None if there are not enough data for an interval.
        high: Upper end; None exactly when `low` is.

    Raises:
        ValueError: If only one end is given, or the numbers present are not low <= value <= high.
    """

    value: float | None
    low: float | None
    high: float | None

    def __post_init__(self) -> None:
        if (self.low is None) != (self.high is None):
            raise ValueError(f"an interval has two ends or none: {self.low}, {self.high}")
        present = [number for number in (self.low, self.value, self.high) if number is not None]
        if any(math.isnan(number) for number in present) or present != sorted(present):
            raise ValueError(f"not low <= value <= high: {self.low}, {self.value}, {self.high}")

    def as_dict(self) -> dict[str, float | None]:
        """The three numbers under their names, ready for JSON."""
        return {"value": self.value, "low": self.low, "high": self.high}


def wilson(successes: int, trials: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval for a proportion (Wilson, 1927), without continuity correction.

    Unlike a bootstrap or the normal approximation it has a width when all trials agree: no success
    in 8 trials means "at most 0.32".

    Args:
        successes: In 0..trials.
        trials: Number of independent trials; 0 tells nothing and gives (0, 1).
        level: Confidence level in (0, 1).

    Returns:
        (low, high), both in [0, 1].

    Raises:
        ValueError: If an argument is outside its range.
    """
    _check_level(level)
    if not 0 <= successes <= trials:
        raise ValueError(f"successes must be in 0..trials, got {successes} of {trials}")
    if trials == 0:
        return 0.0, 1.0
    z = float(ndtri(0.5 + 0.5 * level))
    rate = successes / trials
    doubled = 2 * (trials + z**2)
    middle = (2 * trials * rate + z**2) / doubled
    reach = z / doubled * math.sqrt(4 * trials * rate * (1 - rate) + z**2)
    # At either end rounding might leave a hair of the interval outside.
    low = 0.0 if successes == 0 else middle - reach
    high = 1.0 if successes == trials else middle + reach
    return low, high


def rate_interval(
    outcomes: Sequence[Sequence[bool]],
    level: float = 0.95,
    seed: int = 0,
    resamples: int = 2000,
    groups: Sequence[Sequence[int]] | None = None,
) -> Interval:
    """Success rate over all trials, with an interval that respects the two layers.

    The interval is the hull of a percentile bootstrap, which resamples networks and then victims
    within them, and of Wilson's interval on the pooled count. The bootstrap sees the spread
    between networks; Wilson's keeps it from shrinking to a point when all trials agree. Outcomes of
    one group stand or fall together: groups are resampled whole, and Wilson's interval is that of
    as many trials as there are groups.

    Args:
        outcomes: One sequence of successes per network; lengths may differ, empty ones are ignored.
            Failed trials (diverged, out of memory, ...) belong in it as False.
        level: Confidence level in (0, 1).
        seed: Seed of the bootstrap, not negative.
        resamples: Bootstrap repetitions, at least 1.
        groups: For every outcome the name of its group within its network, such as the batch an
            image was in; None where all are independent.

    Returns:
        Rates in [0, 1]; all None without trials.

    Raises:
        ValueError: If an outcome is neither true nor false, or an argument is outside its range.
    """
    _check_level(level)
    _check_resamples(resamples)
    networks = [network for network in map(_flat, outcomes) if network.size]
    if any(not ((network == 0) | (network == 1)).all() for network in networks):
        raise ValueError("outcomes must be true or false")
    if not networks:
        return Interval(None, None, None)
    if groups is not None and any(
        len(set(names)) < len(network) for network, names in zip(outcomes, groups, strict=True)
    ):
        return _grouped_rate_interval(outcomes, groups, level, seed, resamples)
    counts = [(network.size, int(network.sum())) for network in networks]
    return _counted_rate_interval(tuple(sorted(counts, key=_place)), level, seed, resamples)


def _place(count: tuple[int, int]) -> tuple[bool, int, int]:
    """Where a network of so many trials and successes stands in the order of `_networks`."""
    trials, successes = count
    failures = trials - successes
    return successes > 0, -failures if successes else failures, successes


@functools.lru_cache(maxsize=4096)
def _counted_rate_interval(
    networks: tuple[tuple[int, int], ...], level: float, seed: int, resamples: int
) -> Interval:
    """`rate_interval` of independent outcomes: of each network trials and successes. Kept, because
    many rows of a report have none, or nothing but successes."""
    sizes, met = np.array(networks).T
    rates = met / sizes
    generator = np.random.default_rng(seed)
    chosen = generator.integers(len(networks), size=(resamples, len(networks)))
    # n draws with replacement from n outcomes contain a binomial number of successes.
    counts = generator.binomial(sizes[chosen], rates[chosen])
    resampled = counts.sum(axis=1) / sizes[chosen].sum(axis=1)
    successes, trials = int(met.sum()), int(sizes.sum())
    return _hull(
        successes / trials, *_percentiles(resampled, level), *wilson(successes, trials, level)
    )


def _grouped_rate_interval(
    outcomes: Sequence[Sequence[bool]],
    groups: Sequence[Sequence[int]],
    level: float,
    seed: int,
    resamples: int,
) -> Interval:
    """As `rate_interval`, of the groups' shares of successes."""
    shares = []
    for network, names in zip(outcomes, groups, strict=True):
        members: dict[int, list[bool]] = {}
        for outcome, name in zip(network, names, strict=True):
            members.setdefault(name, []).append(outcome)
        shares.append([sum(group) / len(group) for group in members.values()])
    count = sum(len(network) for network in shares)
    total = sum(map(sum, shares))
    # A share of a group is no whole success: the widest of the two next to it.
    ends = [
        *wilson(math.floor(total + _ROUNDING), count, level),
        *wilson(min(math.ceil(total - _ROUNDING), count), count, level),
    ]
    spread = mean_interval(shares, level, seed, resamples)
    ends += [end for end in (spread.low, spread.high) if end is not None]
    rate = sum(map(sum, outcomes)) / sum(map(len, outcomes))
    return _hull(rate, *ends)


def mean_interval(
    values: Sequence[Sequence[float]],
    level: float = 0.95,
    seed: int = 0,
    resamples: int = 2000,
) -> Interval:
    """Mean over all trials, with a percentile bootstrap over networks and victims within them.

    Args:
        values: One sequence of finite numbers per network; lengths may differ, empty ones are
            ignored. Leaving out what could not be measured, and counting it, is up to the caller.
        level: Confidence level in (0, 1).
        seed: Seed of the bootstrap, not negative.
        resamples: Bootstrap repetitions, at least 1; of more than 524 values fewer than the usual
            2,000, so that the work does not grow, but not fewer than 200.

    Returns:
        The mean in the unit of `values`; all None without values, and no ends for a single value.

    Raises:
        ValueError: If a value is not finite or an argument is outside its range.
    """
    return _bootstrap_interval(values, level, seed, resamples)


def median_interval(
    values: Sequence[Sequence[float]],
    level: float = 0.95,
    seed: int = 0,
    resamples: int = 2000,
) -> Interval:
    """Median over all trials, with a percentile bootstrap over networks and victims within them.

    Args, Raises: As `mean_interval`, but that infinity is a value.

    Returns:
        The median in the unit of `values`; all None without values, no ends for a single value.
    """
    networks = _networks(values, level, resamples)
    if any(np.isnan(network).any() for network in networks):
        raise ValueError("values must be numbers: leave out, and count, those that are not")
    if not networks:
        return Interval(None, None, None)
    value = float(np.median(np.concatenate(networks)))
    if sum(network.size for network in networks) == 1:
        return Interval(value, None, None)
    generator = np.random.default_rng(seed)
    resampled = np.empty(resamples)
    for number in range(resamples):
        chosen = generator.integers(len(networks), size=len(networks))
        drawn = [generator.choice(networks[which], size=networks[which].size) for which in chosen]
        resampled[number] = np.median(np.concatenate(drawn))
    return _hull(value, *_percentiles(resampled, level))


def kaplan_meier(times: Sequence[float], observed: Sequence[bool]) -> tuple[Floats, Floats]:
    """Share of attacks not yet successful against the effort spent (Kaplan and Meier, 1958).

    An attack that was stopped without success is censored: all we know is that it needs more.

    Args:
        times: Effort of each trial until success or stop, for example gradient evaluations; finite,
            not negative.
        observed: Whether each trial ended by success. A trial censored at the very time of another
            one's success counts as still at risk then.

    Returns:
        Times of success, increasing and distinct, and the share S(t) in [0, 1] just after each of
        them. Both are empty if nothing succeeded. S is 1 before the first.

    Raises:
        ValueError: If lengths differ or a time is negative or not finite.
    """
    effort = np.asarray(times, dtype=np.float64)
    success = np.asarray(observed, dtype=np.bool_)
    if effort.ndim != 1 or effort.shape != success.shape:
        raise ValueError(f"{effort.shape} times do not fit {success.shape} observed")
    if not np.isfinite(effort).all() or (effort < 0).any():
        raise ValueError("times must be finite and not negative")
    event_times, events = np.unique(effort[success], return_counts=True)
    at_risk = effort.size - np.searchsorted(np.sort(effort), event_times, side="left")
    survival: Floats = np.cumprod(1.0 - events / at_risk, dtype=np.float64)
    return event_times, survival


def kaplan_meier_median(times: Sequence[float], observed: Sequence[bool]) -> float | None:
    """Effort by which half of the attacks succeed, stopped ones counted as not yet successful.

    Args, Raises: As `kaplan_meier`.

    Returns:
        The first time at which at most half are left, in the unit of `times`; None if more than
        half are left at the end (a median over survivors only would be too small), or without
        trials.
    """
    event_times, survival = kaplan_meier(times, observed)
    # A product such as 3/4 * 2/3 is a half only up to rounding.
    reached = np.flatnonzero(survival <= 0.5 + _ROUNDING)
    return float(event_times[reached[0]]) if reached.size else None


def rate_verdict(printed: float, interval90: Interval, tolerance: float = 0.10) -> Verdict:
    """Whether a measured rate reproduces a printed one.

    Args:
        printed: The published rate, in [0, 1].
        interval90: 90 % interval of ours.
        tolerance: Half width of the band around `printed`; not negative.

    Returns:
        "reproduced" if the whole interval lies in printed +- tolerance, "not reproduced" if the two
        have no point in common, else "inconclusive" (also without an interval).

    Raises:
        ValueError: If an argument is outside its range.
    """
    if not 0 <= printed <= 1:
        raise ValueError(f"a printed rate must be in [0, 1], got {printed}")
    if not 0 <= tolerance < math.inf:
        raise ValueError(f"tolerance must be finite and not negative, got {tolerance}")
    return _verdict(interval90, printed - tolerance - _ROUNDING, printed + tolerance + _ROUNDING)


def outcome_verdict(succeeds: bool, interval90: Interval) -> Verdict:
    """Whether a measured rate agrees with "the attack succeeds" (or not) of a single example.

    "reproduced" if the whole interval lies on the paper's side of one half, "not reproduced" if it
    lies on the other, else "inconclusive" (also without an interval).
    """
    if interval90.low is None or interval90.high is None:
        return "inconclusive"
    if interval90.low > 0.5:
        return "reproduced" if succeeds else "not reproduced"
    if interval90.high < 0.5:
        return "not reproduced" if succeeds else "reproduced"
    return "inconclusive"


def ratio_verdict(
    printed: float, interval90: Interval, factor: float = 2.0, *, resolution: float = 0.0
) -> Verdict:
    """Whether a measured error or number of steps reproduces a printed one, up to a factor.

    Args:
        printed: The published number; finite, not negative.
        interval90: 90 % interval of ours, in the same unit.
        factor: The band is printed / factor to printed * factor; at least 1.
        resolution: Half a unit of the last printed digit, 0.0005 for "0.003": what the number may
            have been before rounding. The band is taken around that range.

    Returns:
        As `rate_verdict`. A factor says nothing about a printed 0: without a `resolution`, an exact
        zero reproduces it and everything else is "inconclusive".

    Raises:
        ValueError: If an argument is outside its range.
    """
    if not 0 <= printed < math.inf:
        raise ValueError(f"a printed number must be finite and not negative, got {printed}")
    if not 1 <= factor < math.inf:
        raise ValueError(f"factor must be finite and at least 1, got {factor}")
    if not 0 <= resolution < math.inf:
        raise ValueError(f"resolution must be finite and not negative, got {resolution}")
    lowest = max(0.0, printed - resolution) / factor
    highest = (printed + resolution) * factor
    if highest == 0:
        exact = interval90.low == 0 and interval90.high == 0
        return "reproduced" if exact else "inconclusive"
    return _verdict(interval90, lowest * (1 - _ROUNDING), highest * (1 + _ROUNDING))


def _verdict(interval: Interval, lowest: float, highest: float) -> Verdict:
    if interval.low is None or interval.high is None:
        return "inconclusive"
    if lowest <= interval.low and interval.high <= highest:
        return "reproduced"
    if interval.high < lowest or highest < interval.low:
        return "not reproduced"
    return "inconclusive"


def _bootstrap_interval(
    values: Sequence[Sequence[float]],
    level: float,
    seed: int,
    resamples: int,
) -> Interval:
    networks = _networks(values, level, resamples)
    if any(not np.isfinite(network).all() for network in networks):
        raise ValueError("values must be finite: leave out, and count, those that are not")
    if not networks:
        return Interval(None, None, None)
    pooled = np.concatenate(networks)
    value = float(pooled.sum() / pooled.size)
    if pooled.size == 1:
        # One value says nothing about spread; the bootstrap would call it certain.
        return Interval(value, None, None)
    # Of a large sample all repetitions would take minutes, and its ends are close together.
    enough = min(resamples, max(_LEAST_RESAMPLES, _DRAWS_IN_ALL // pooled.size))
    resampled = _two_stage_bootstrap(networks, np.random.default_rng(seed), enough)
    return _hull(value, *_percentiles(resampled, level))


def _two_stage_bootstrap(
    networks: list[Floats],
    generator: np.random.Generator,
    resamples: int,
) -> Floats:
    """(resamples,) means over resampled networks with resampled victims."""
    sizes = np.array([network.size for network in networks])
    starts = np.cumsum(sizes) - sizes
    pooled = np.concatenate(networks)
    columns = np.arange(sizes.max())
    alike = sizes.min() == sizes.max()
    draws = len(networks) * columns.size  # of a resample
    rows_at_once = max(1, _DRAWS // draws)
    results = []
    for start in range(0, resamples, rows_at_once):
        rows = min(rows_at_once, resamples - start)
        chosen = generator.integers(len(networks), size=(rows, len(networks)))
        at_once = max(1, _CACHED // draws)
        for some in (chosen[first : first + at_once] for first in range(0, rows, at_once)):
            size = sizes[some][:, :, None]
            # Each network gets as many columns as the largest has victims; surplus counts nothing.
            # One bound for all draws the same, in half the time.
            bound = columns.size if alike else size
            victim = generator.integers(bound, size=(len(some), len(networks), columns.size))
            drawn = pooled[starts[some][:, :, None] + victim]
            if not alike:
                drawn[np.broadcast_to(columns >= size, drawn.shape)] = 0.0
            results.append(drawn.reshape(len(some), -1).sum(axis=1) / size.sum(axis=(1, 2)))
    return np.concatenate(results)


def _networks(
    data: Sequence[Sequence[float]] | Sequence[Sequence[bool]], level: float, resamples: int
) -> list[Floats]:
    """Non-empty networks in an order that depends on their values only."""
    _check_level(level)
    _check_resamples(resamples)
    networks = [np.sort(_flat(network)) for network in data]
    return sorted((network for network in networks if network.size), key=lambda n: n.tolist())


def _flat(network: Sequence[float] | Sequence[bool]) -> Floats:
    found = np.asarray(network, dtype=np.float64)
    if found.ndim != 1:
        raise ValueError("data must be one flat sequence per network")
    return found


def _percentiles(resampled: Floats, level: float) -> tuple[float, float]:
    low, high = np.quantile(resampled, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _hull(*numbers: float) -> Interval:
    """The first number as the estimate, and the smallest interval around all of them.

    The estimate is among them because a percentile interval of skewed data need not contain it.
    """
    return Interval(numbers[0], min(numbers), max(numbers))


def _check_resamples(resamples: int) -> None:
    if resamples < 1:
        raise ValueError(f"resamples must be at least 1, got {resamples}")


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level must be in (0, 1), got {level}")
