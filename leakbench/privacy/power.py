"""How often a test can be right about who took part, given how often it is wrong.

Of all sets of outcomes that have a chance of `kappa` at most under Q, the largest chance that one
has under P is, by Neyman and Pearson's lemma, the least value over all a > 0 of H(a) + a kappa,
where H(a) = sup P(E) - a Q(E) is delta at epsilon = ln a. Each a alone gives an upper bound, so
that `pld`, whose epsilon is one at every delta, gives one too, rounding included. For a < 1 the two
are exchanged: H(a) = 1 - a (1 - H'(1 / a)) with H' of Q against P.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from scipy.special import ndtr, ndtri

from leakbench.errors import LeakbenchError
from leakbench.privacy.events import Group, PrivacyEvent, Relation, check_count, grouped
from leakbench.privacy.gdp import mu_of_events
from leakbench.privacy.pairs import Floats, Pair
from leakbench.privacy.pld import FARTHEST, pairs_of, profile

_SEARCHES = 10  # two or three are enough
_FOUND = 1e-6  # of the value, which a search must gain to be followed by another
_ELSEWHERE = 0.7  # of a delta that says nothing
_LEAST = 1e-12  # of delta and 1 - delta, at which to look
_EVEN = 0.05  # a best epsilon below it may be negative in truth
_ROUNDING = 2.0**-48


def power_of_mu(mu: float, kappa: float) -> float:
    """Phi(Phi^-1(kappa) + mu): of the best test between N(0, 1), Q, and N(mu, 1)."""
    # Rounding must not take it below what guessing gives.
    return max(float(kappa), float(ndtr(ndtri(kappa) + mu)))


def power(
    events: Iterable[PrivacyEvent],
    kappa: float,
    *,
    relation: Relation = "add_remove",
    group_size: int = 1,
) -> float:
    """Largest chance that a test finds the example when it was there: an upper bound.

    Args:
        events: All that the observer sees of one training; equal ones are composed at once.
        kappa: In (0, 1]: the chance that the test finds it when it was not there.
        relation: What "not there" is: the example is missing (add_remove), or another one is in
            its place (replace_one; and where a fixed number is drawn, under either relation).
        group_size: Examples of one client, there together or not; as for `pld.epsilon`.

    Returns:
        In [kappa, 1]; never above that of the same releases without sampling, and equal to it
        where a step moves by more than a thousand stds.

    Raises:
        LeakbenchError: If an argument is outside its range.
    """
    if not 0 < kappa <= 1:
        raise LeakbenchError(f"kappa must be above 0 and at most 1, got {kappa}")
    check_count("group_size", group_size)
    listed = tuple(events)
    mu = group_size * mu_of_events(listed, relation)
    plain = power_of_mu(mu, kappa)
    groups = grouped(listed)
    whole = group_size > 1 and (
        relation == "replace_one" or any(group.sampling == "fixed_size" for group in groups)
    )
    if kappa == 1 or mu in (0.0, math.inf) or whole or all(group.rate == 1 for group in groups):
        return plain
    present, absent = (_one_way(groups, relation, group_size, adding) for adding in (False, True))
    if any(pair.reach > FARTHEST for pair, _ in present):
        return plain

    found, at = _least(present, kappa, lambda a, delta: delta + a * kappa)
    if at < _EVEN:
        # P misses at least a (1 - H'(1 / a) - kappa).
        start = (1 - kappa) / 2
        below, _ = _least(absent, start, lambda a, delta: 1 - (1 - delta - kappa) / a)
        found = min(found, below)
    return max(kappa, min(plain, found * (1 + _ROUNDING)))


def _one_way(
    groups: tuple[Group, ...], relation: Relation, group_size: int, adding: bool
) -> list[tuple[Pair, int]]:
    """Pairs of all steps, P with the example and Q without it; or exchanged.

    Of batches of a fixed size `pld` takes the worse side at every loss. Here P is on the side of
    the example: it is drawn with chance q and then moves the sum by at most twice the bound, as it
    takes the place of another one; without it, that one stays.
    """
    kind: Literal["add", "remove"] = "add" if adding else "remove"
    return [
        (replace(pair, kind=kind) if pair.kind == "fixed" else pair, steps)
        for pair, steps in pairs_of(groups, relation, group_size, adding)
    ]


def _least(
    pairs: Sequence[tuple[Pair, int]], delta: float, bound: Callable[[Floats, Floats], Floats]
) -> tuple[float, float]:
    """Least `bound` over e^epsilon and the delta there, and the epsilon it is at.

    A profile is close only around the delta it was computed for, so the next one is that of the
    best; any is an upper bound, and where the search ends is not a matter of care.
    """
    found, at = math.inf, math.inf
    for _ in range(_SEARCHES):
        epsilons, deltas = profile(pairs, delta)
        with np.errstate(over="ignore", invalid="ignore"):
            values = bound(np.exp(epsilons), deltas)
        best = int(np.nanargmin(values))
        gained = values[best] < found * (1 - _FOUND)
        if values[best] < found:
            found, at = float(values[best]), float(epsilons[best])
        if len(values) == 1:  # no grid, as with bounded losses at some deltas
            delta *= _ELSEWHERE
        elif gained:
            delta = float(np.clip(deltas[best], _LEAST, 1 - _LEAST))
        else:
            break
    return found, at
