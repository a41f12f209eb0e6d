"""Tight accounting by privacy loss distributions, with dp-accounting (extra `pld`).

Gaussian releases without sampling need no numerics: they compose to one Gaussian, whose epsilon is
exact. For sampled ones we hand dp-accounting the privacy profile of a step, which it makes into
masses ("connect the dots", Doroshenko et al. 2022, an upper bound) and composes. Under Poisson
sampling the profile is that of a mixture; for a fixed number drawn without replacement it is that
of Dong, Roth and Su 2019, Theorem 9, a bound for replacing one example.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, log_ndtr

from leakbench.errors import LeakbenchError
from leakbench.privacy.bisection import least
from leakbench.privacy.events import Group, PrivacyEvent, Relation, check_delta, grouped
from leakbench.privacy.gdp import epsilon_of_mu, mu_of_events

Floats = NDArray[np.float64]

_INTERVAL = 1e-4  # of the privacy loss, as dp-accounting's own default
_POINTS = 5e5  # of a composed distribution; where losses are larger the interval grows
_MIXTURE_POINTS = 4000.0  # of one step, for a group of examples
_LEAST_CHANCE = 1e-18  # of so many of a group in one sample
_COARSEST = 100.0  # beyond it (epsilon in the millions) sampling is not worth its overflows
_LARGEST_SEARCHED = 690.0
_TAIL = 10.0  # stds; e^-50, the mass dp-accounting leaves out, is that far away


class MissingLibrary(LeakbenchError):
    """dp-accounting is not installed; the text says how to get it."""


def epsilon(
    events: Iterable[PrivacyEvent],
    delta: float,
    *,
    relation: Relation = "add_remove",
    group_size: int = 1,
) -> float:
    """Epsilon at `delta` of the composed events: an upper bound.

    Within 0.3 % under Poisson sampling for epsilons of 0.1 to 20; looser at the extremes, where the
    losses are spread too far for a grid.

    Args:
        events: Heterogeneous steps in any order; equal ones are composed at once.
        delta: In (0, 1).
        relation: Under replace-one the sensitivity doubles. Events sampled by fixed size are
            accounted for replace-one under either relation: an example added to the data replaces
            another one in the sample.
        group_size: Examples that neighbours differ in, all of one client for instance. Poisson
            samples of it are a mixture of Gaussians under add/remove (Ganesh 2024); otherwise a
            group is accounted as if it always took part.

    Returns:
        In [0, inf]; never above that of the same releases without sampling; inf where a noise
        multiplier is 0 or so small that the loss overflows.

    Raises:
        LeakbenchError: If an argument is outside its range.
        MissingLibrary: If dp-accounting is needed and not installed.
    """
    check_delta(delta)
    if group_size != int(group_size) or group_size < 1:
        raise LeakbenchError(f"group_size must be a whole number >= 1, got {group_size}")
    listed = tuple(events)
    plain = epsilon_of_mu(group_size * mu_of_events(listed, relation), delta)
    groups = grouped(listed)
    whole = group_size > 1 and (
        relation == "replace_one" or any(group.sampling == "fixed_size" for group in groups)
    )
    if plain in (0.0, math.inf) or whole or all(group.rate == 1 for group in groups):
        return plain
    interval = _interval(groups, relation, group_size)
    if interval > _COARSEST:
        return plain
    distribution = _composed(groups, relation, group_size, interval)
    with np.errstate(over="ignore"):
        found = float(distribution.get_epsilon_for_delta(delta))
    if found < _LARGEST_SEARCHED:
        return min(plain, max(0.0, found))
    # Beyond it the library's own quick search overflows.
    return least(
        lambda epsilon: bool(distribution.get_delta_for_epsilon(epsilon) <= delta),
        0.0,
        plain,
        1e-9,
    )


def _composed(
    groups: tuple[Group, ...], relation: Relation, group_size: int, interval: float
) -> Any:
    """dp-accounting's privacy loss distribution of all groups."""
    try:
        from dp_accounting.pld import privacy_loss_distribution
    except ImportError:
        raise MissingLibrary(
            "accountant 'pld' needs dp-accounting for sampled steps: pip install 'leakbench[pld]'"
        ) from None
    parts = [privacy_loss_distribution.identity(value_discretization_interval=interval)]
    everyone = sum(
        group.steps * group.separation(relation) ** 2 for group in groups if group.rate == 1
    )
    if everyone > 0:
        noise = 1 / math.sqrt(everyone) / group_size
        parts.append(
            privacy_loss_distribution.from_gaussian_mechanism(
                noise, value_discretization_interval=interval
            )
        )
    for group in groups:
        if group.rate < 1:
            one = _step(group, relation, group_size, interval)
            parts.append(one.self_compose(group.steps))
    # In pairs, so that only the last few compositions are long.
    while len(parts) > 1:
        pairs = itertools.zip_longest(parts[::2], parts[1::2])
        parts = [one if other is None else one.compose(other) for one, other in pairs]
    return parts[0]


def _step(group: Group, relation: Relation, group_size: int, interval: float) -> Any:
    """Privacy loss distribution of one sampled step."""
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution

    apart = group.separation(relation)
    if group.sampling == "fixed_size":
        return _without_replacement(apart, group.rate, interval)
    if group_size > 1:
        taken = np.arange(group_size + 1)
        chances = _binomial(group_size, group.rate)
        likely = chances > _LEAST_CHANCE
        try:
            return privacy_loss_distribution.from_mixture_gaussian_mechanism(
                group.noise_multiplier,
                sensitivities=taken[likely].astype(float).tolist(),
                sampling_probs=(chances[likely] / chances[likely].sum()).tolist(),
                value_discretization_interval=interval,
            )
        except ValueError:
            # Tiny chances at tiny noise leave the library no point of its grid: no sampling then.
            return privacy_loss_distribution.from_gaussian_mechanism(
                group.noise_multiplier / group_size, value_discretization_interval=interval
            )
    if relation == "replace_one":
        # Mixtures whose means are one clip bound to either side: the library's own profile.
        return privacy_loss_distribution.from_gaussian_mechanism(
            group.noise_multiplier,
            sampling_prob=group.rate,
            value_discretization_interval=interval,
            neighboring_relation=NeighboringRelation.REPLACE_ONE,
        )
    return _poisson(apart, group.rate, interval)


def _binomial(count: int, rate: float) -> Floats:
    """(count + 1,) chances that 0..count examples of a group are in the sample."""
    k = np.arange(count + 1.0)
    logs = gammaln(count + 1) - gammaln(k + 1) - gammaln(count - k + 1)
    result: Floats = np.exp(logs + k * math.log(rate) + (count - k) * math.log1p(-rate))
    return result


def _interval(groups: tuple[Group, ...], relation: Relation, group_size: int) -> float:
    """Step of the grid of losses: fine enough to compose, coarse enough to finish.

    The error grows with steps times its square, so very long runs get a finer one; not much finer,
    as rounding in the masses grows the other way. A group's mixture is slow a point.
    """
    single = mean = variance = limit = 0.0
    for group in groups:
        apart = group_size * group.separation(relation)
        loss, taken = apart * apart / 2, group.rate * group.steps
        single = max(single, loss + _TAIL * apart)
        mean += taken * loss
        variance += taken * (loss + apart) ** 2
        limit += taken * group.rate * math.expm1(min(apart * apart, 700.0))
    # The central limit is the smaller where noise is large, the mean of those taken elsewhere.
    composed = min(mean + _TAIL * math.sqrt(variance), limit / 2 + _TAIL * math.sqrt(limit))
    steps = sum(group.steps for group in groups)
    finest = _INTERVAL * min(1.0, max(0.3, math.sqrt(1e5 / steps)))
    if group_size > 1:
        finest = max(finest, 2 * single / _MIXTURE_POINTS)
    return max(finest, 2 * max(single, composed) / _POINTS)


def _poisson(apart: float, rate: float, interval: float) -> Any:
    """One Poisson-sampled step whose neighbours differ by `apart` stds: removing, and adding."""
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    lowest, highest = _ends(apart, rate, interval)
    removing = interval * np.arange(lowest, highest + 1.0)
    adding = -removing[::-1]
    return PrivacyLossDistribution(
        _masses(removing, _removing(removing, apart, rate), interval),
        _masses(adding, _adding(adding, apart, rate), interval),
    )


def _without_replacement(apart: float, rate: float, interval: float) -> Any:
    """One step that draws a fixed share of the data without replacement, one example replaced.

    The profile is the larger of removing and adding: the former at epsilon >= 0, the latter below.
    """
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    highest = _ends(apart, rate, interval)[1]
    below, above = interval * np.arange(-highest, 0.0), interval * np.arange(highest + 1.0)
    deltas = np.concatenate([_adding(below, apart, rate), _removing(above, apart, rate)])
    return PrivacyLossDistribution(_masses(np.concatenate([below, above]), deltas, interval))


def _masses(losses: Floats, deltas: Floats, interval: float) -> Any:
    """dp-accounting's "connect the dots" masses of a profile on a grid."""
    from dp_accounting.pld import pld_pmf

    ends = round(losses[0] / interval), round(losses[-1] / interval)
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
        interval, *ends, np.clip(deltas, 0.0, 1.0)
    )


def _ends(apart: float, rate: float, interval: float) -> tuple[int, int]:
    """First and last point of the grid of losses: practically no mass is outside them."""

    def sampled(loss: float) -> float:
        return float(np.logaddexp(math.log1p(-rate), math.log(rate) + loss)) / interval

    half, tail = apart * apart / 2, _TAIL * apart
    return math.floor(sampled(-half - tail)), max(1, math.ceil(sampled(half + tail)))


def _removing(losses: Floats, apart: float, rate: float) -> Floats:
    """Delta at each epsilon of (1-q) Q + q P against Q, normals `apart` stds from each other.

    q times that of P against Q at ln((e^epsilon - 1 + q) / q); 1 - e^epsilon below ln(1 - q).
    """
    fallen = np.expm1(np.minimum(losses, 0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        # Above 36 the 1 is lost in rounding, and later e^epsilon would overflow.
        log_grown = np.where(losses > 36, losses, np.log(np.expm1(np.clip(losses, 0.0, 36.0))))
        above = np.logaddexp(0.0, log_grown - math.log(rate))
        shifted = np.where(losses > 0, above, np.log1p(fallen / rate))
        result: Floats = np.where(fallen > -rate, rate * _gaussian(shifted, apart), -fallen)
    return result


def _adding(losses: Floats, apart: float, rate: float) -> Floats:
    """Delta at each epsilon of Q against (1-q) Q + q P: removing's two sides exchanged.

    At epsilon > 0 written out, as the exchange would lose digits there: with the rest
    r = 1 - (1-q) e^epsilon, r times that of P against Q at ln(q e^epsilon / r), and 0 if r < 0.
    """
    # Where the answer is another one, the value must not overflow.
    down, up = np.minimum(losses, 0.0), np.clip(losses, 0.0, 700.0)
    exchanged = -np.expm1(down) + np.exp(down) * _removing(-down, apart, rate)
    rest = rate - (1 - rate) * np.expm1(up)
    with np.errstate(divide="ignore", invalid="ignore"):
        direct = rest * _gaussian(up + math.log(rate) - np.log(rest), apart)
        result: Floats = np.where(losses <= 0, exchanged, np.where(rest > 0, direct, 0.0))
    return result


def _gaussian(losses: Floats, apart: float) -> Floats:
    """Delta at each epsilon, also a negative one, of two normals `apart` stds from each other."""
    upper = log_ndtr(-losses / apart + apart / 2)
    lower = losses + log_ndtr(-losses / apart - apart / 2)
    result: Floats = -np.exp(upper) * np.expm1(np.minimum(0.0, lower - upper))
    return result
