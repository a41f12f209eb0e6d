"""Tight accounting by privacy loss distributions: an upper bound, rounding included.

Gaussian releases without sampling need no numerics: they compose to one Gaussian, whose epsilon is
exact. A sampled step is a pair of distributions P, Q no neighbours are easier to tell apart than
(`pairs`); its privacy loss ln(P/Q) under P is put on a grid without ever losing ground ("connect
the dots", Doroshenko et al. 2022), and the sum of all steps' losses comes from one Fourier
transform. The masses are tilted first, by e^(s loss), so that those around epsilon are the largest
and rounding, which is relative to the largest, cannot hide a tiny delta; what it can still do is
bounded and added (docs/decisions/0010).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from scipy.special import ndtri_exp

from leakbench.privacy.events import (
    Group,
    PrivacyEvent,
    Relation,
    check_count,
    check_delta,
    grouped,
)
from leakbench.privacy.gdp import epsilon_of_mu, mu_of_events
from leakbench.privacy.loss_grid import Grid, choose_grid, log_hockey
from leakbench.privacy.pairs import Floats, Pair, masses_and_losses

FARTHEST = 1000.0  # stds; epsilons beyond say nothing, and are not worth their grids
_ROUNDING = 2.0**-50  # eight times what one operation may be off by
_LOST = 1e-6  # of delta: what is left out, of the steps and above the grid, is no more each
_HIGHER = 32
_NOTHING = -100.0  # ln of a coefficient that is left out


def epsilon(
    events: Iterable[PrivacyEvent],
    delta: float,
    *,
    relation: Relation = "add_remove",
    group_size: int = 1,
) -> float:
    """Epsilon at `delta` of the composed events: an upper bound at every delta and length.

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
        In [0, inf]; never above that of the same releases without sampling, and equal to it where
        a step moves by more than a thousand stds; inf where a noise multiplier is 0 or so small
        that the loss overflows.

    Raises:
        LeakbenchError: If an argument is outside its range.
    """
    check_delta(delta)
    check_count("group_size", group_size)
    listed = tuple(events)
    plain = epsilon_of_mu(group_size * mu_of_events(listed, relation), delta)
    groups = grouped(listed)
    whole = group_size > 1 and (
        relation == "replace_one" or any(group.sampling == "fixed_size" for group in groups)
    )
    if plain in (0.0, math.inf) or whole or all(group.rate == 1 for group in groups):
        return plain
    removing, adding = (pairs_of(groups, relation, int(group_size), way) for way in (False, True))
    if any(pair.reach > FARTHEST for pair, _ in removing):
        return plain
    found = epsilon_of_pairs(removing, delta)
    # Where adding cannot lose as much at all, or is the same, it need not be computed.
    if adding != removing and found < sum(count * pair.largest_loss for pair, count in adding):
        found = max(found, epsilon_of_pairs(adding, delta))
    return min(plain, found)


def pairs_of(
    groups: tuple[Group, ...], relation: Relation, group_size: int, adding: bool
) -> list[tuple[Pair, int]]:
    """Pairs of all steps and how often each is composed, for removing the group or adding it."""
    everyone = sum(
        group.steps * group.separation(relation) ** 2 for group in groups if group.rate == 1
    )
    pairs = []
    if everyone > 0:
        # Adding and removing are the same here.
        pairs.append((Pair("remove", group_size * math.sqrt(everyone), 1.0), 1))
    for group in groups:
        apart = group.separation(relation)
        if group.rate == 1:
            continue
        if group.sampling == "fixed_size":
            pair = Pair("fixed", apart, group.rate)
        elif relation == "replace_one":
            pair = Pair("replace", apart / 2, group.rate)
        else:
            pair = Pair("add" if adding else "remove", apart, group.rate, group_size)
        pairs.append((pair, group.steps))
    return pairs


def profile(pairs: Sequence[tuple[Pair, int]], delta: float) -> tuple[Floats, Floats]:
    """Epsilons at least 0, and upper bounds on the delta of the composed pairs at each.

    Pairs as from `pairs_of`, not empty; P is on the side whose losses count. The bounds are close
    where delta is about `delta`, in (0, 1), and get coarser with the distance.
    """
    curve = _curve(pairs, delta)
    if len(curve.losses) == 0:
        # Where losses are bounded too many may be just above a grid that ends at the bound.
        curve = _curve(pairs, delta, _HIGHER)
    # Of delta, the two `_LOST` of it apart, the grid's share is what `room` leaves.
    deltas = delta * (curve.deltas * (1 - 2 * _LOST) + 2 * _LOST) * (1 + 4 * _ROUNDING)
    epsilons = np.append(curve.losses, max(0.0, curve.rough)) * (1 + _ROUNDING) + curve.shift
    return epsilons, np.append(deltas, delta)


def epsilon_of_pairs(pairs: Sequence[tuple[Pair, int]], delta: float) -> float:
    """Epsilon of one direction."""
    curve = _curve(pairs, delta)
    rough, deltas = curve.rough, curve.deltas
    enough = int(np.argmax(deltas <= 1)) if len(deltas) else 0
    if len(deltas) == 0 or not deltas[enough] <= 1:
        return max(0.0, rough) + curve.shift
    # Below x_j: delta(x_j - t) = P(X >= x_j) (1 - e^-t) + e^-t delta(x_j).
    left, mass = 1 - float(deltas[enough]), float(curve.at_least[enough])
    back = -math.log1p(-left / (left + mass - 1)) if mass > 1 else math.inf
    found = max(0.0, float(curve.losses[enough]) - min(back, curve.spacing))
    return min(found, max(0.0, rough)) * (1 + _ROUNDING) + curve.shift


@dataclass(frozen=True, slots=True, kw_only=True)
class _Curve:
    """Tail of the composed loss, over a delta that it was looked for at.

    losses: those of the grid, at least 0; none where there are too many steps for a grid. deltas,
    at_least: of each loss delta and the chance to exceed it or be it, in units of `delta` less all
    that may be wrong. rough: Chernoff's bound on epsilon at `delta`. shift: how far losses may be
    off.
    """

    losses: Floats
    deltas: Floats
    at_least: Floats
    rough: float
    shift: float
    spacing: float


def _curve(pairs: Sequence[tuple[Pair, int]], delta: float, higher: int = 0) -> _Curve:
    """higher: how many points to move the grid up, for a step; for many it grows as their root."""
    steps = sum(count for _, count in pairs)
    # Five tails a step is the most that `masses_and_losses` leaves out.
    tail = math.ceil(-float(ndtri_exp(math.log(_LOST / 5) + math.log(delta) - math.log(steps))))
    grid = choose_grid(pairs, delta, steps, tail)
    grid = replace(grid, first=grid.first + higher * math.ceil(math.sqrt(steps)))
    composed = _compose(pairs, grid, tail)
    s, log_delta = grid.tilt, math.log(delta)

    # All relative to delta: tiny ones need no tiny numbers.
    highest = grid.spacing * (grid.first + grid.length - 1)
    relative = composed.relative - _ROUNDING * log_delta
    relative += _ROUNDING * (s + grid.above) * max(abs(highest), grid.length * grid.spacing)
    # Chernoff's bound: (1 - e^(epsilon - x))+ is at most s^s / (1 + s)^(s + 1) e^(s (x - epsilon)).
    room = log_delta + math.log1p(-2 * _LOST) - relative
    rough = (composed.cumulant + float(log_hockey(s)) - room) / s
    beyond = composed.cumulant_above - grid.above * highest + relative - log_delta

    indices = grid.first + np.arange(grid.length)
    kept = indices >= max(0.0, rough - 400) / grid.spacing  # e^400 can still be multiplied
    if not beyond < math.log(_LOST):  # only where there are too many steps for a grid
        kept[:] = False
    losses: Floats = np.asarray(grid.spacing * indices[kept], dtype=np.float64)
    tail_of = partial(
        _Curve, losses=losses, rough=rough, shift=composed.shift, spacing=grid.spacing
    )
    if len(losses) == 0:
        return tail_of(deltas=losses, at_least=losses)
    with np.errstate(over="ignore", invalid="ignore"):
        masses = composed.tilted[kept] * np.exp(composed.cumulant - room - s * losses)
        # delta(x_j) = (1 - e^-h) sum over m >= j of e^(x_j - x_m) P(X > x_m): nothing cancels.
        at_least: Floats = np.cumsum(masses[::-1], dtype=np.float64)[::-1]
        more = np.append(at_least[1:], 0.0)
        decay = np.exp(np.maximum(losses[0] - losses, -700))
        summed: Floats = np.cumsum((more * decay)[::-1], dtype=np.float64)[::-1]
        deltas = summed / decay * -math.expm1(-grid.spacing)
    # Neither sum is further off than this.
    deltas *= 1 + grid.length * _ROUNDING
    at_least *= 1 + grid.length * _ROUNDING
    return tail_of(deltas=deltas, at_least=at_least)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Composed:
    """Distribution of the sum of all losses.

    tilted: (length,) at least its masses times e^(s loss - K(s)), what lies outside the grid folded
    in. cumulant, cumulant_above: K at the grid's two tilts. relative: ln of how far all masses may
    be off together; shift: how far the losses.
    """

    tilted: Floats
    cumulant: float
    cumulant_above: float
    relative: float
    shift: float


def _compose(pairs: Sequence[tuple[Pair, int]], grid: Grid, tail: int) -> _Composed:
    """One Fourier transform a pair, one back.

    In a transform of 2^n numbers each result is a sum of the inputs times n factors, every product
    and sum of which is off by 4.3 * 2^-53 at most (Brent, Percival and Zimmermann 2007; Percival
    2003): with n times `_ROUNDING` of the sum of all |inputs| there is room for more.
    """
    levels = grid.length.bit_length() - 1
    off = levels * _ROUNDING
    size = grid.length // 2 + 1
    alive = np.arange(size)
    log_size, angle, wrong = np.zeros(size), np.zeros(size), np.zeros(size)
    cumulant = cumulant_above = relative = shift = 0.0
    for pair, steps in pairs:
        step, count = _step(pair, grid, tail), float(steps)
        spectrum = np.fft.rfft(step.tilted)[alive]
        largest = np.abs(spectrum) + off
        log_size += count * np.log(largest)
        angle += count * np.angle(spectrum)
        # By the mean value theorem, and a few roundings of logarithm and angle.
        wrong += count * (2 * off / largest + (8 + len(pairs)) * _ROUNDING)
        cumulant += count * step.cumulant
        cumulant_above += count * step.cumulant_above
        relative += count * step.relative
        relative += len(pairs) * _ROUNDING * (abs(cumulant) + abs(cumulant_above))
        shift += count * step.shift
        kept = log_size > _NOTHING
        alive, log_size, angle, wrong = alive[kept], log_size[kept], angle[kept], wrong[kept]
    product = np.zeros(size, complex)
    with np.errstate(over="ignore", invalid="ignore"):  # after more than 1e15 steps
        product[alive] = np.exp(log_size + 1j * angle)
        tilted = np.fft.irfft(product, grid.length)
        # The half that is computed stands for all; those left out are no larger than what is added.
        error = 2 * float((np.exp(log_size) * (wrong + off)).sum()) / grid.length
    error += math.exp(min(_NOTHING + relative, 0.0))
    return _Composed(
        tilted=np.maximum(np.roll(tilted, -(grid.first % grid.length)) + error, 0.0),
        cumulant=cumulant,
        cumulant_above=cumulant_above,
        relative=relative,
        shift=shift,
    )


def _step(pair: Pair, grid: Grid, tail: int) -> _Composed:
    """One step on the grid, modulo its length; the names mean the same as for all of them.

    A mass at loss l goes to the grid's points a <= l <= a + h in the shares that keep its mass
    under both distributions, so that the pair only gets easier to tell apart.
    """
    h, s = grid.spacing, grid.tilt
    logs, losses = masses_and_losses(pair, tail, h)
    cells = np.floor(losses / h)
    share = np.expm1(-h * np.clip(losses / h - cells, 0.0, 1.0)) / math.expm1(-h)
    exponents = logs + s * h * cells
    top = float(exponents.max()) + s * h
    upper = np.exp(exponents + (s * h - top))
    lower = upper * (1 - share) * math.exp(-s * h)
    upper *= share
    index = cells.astype(np.int64) % grid.length
    tilted = np.bincount(index, lower, grid.length)
    tilted += np.roll(np.bincount(index, upper, grid.length), 1)
    total = float(tilted.sum())
    far = logs + grid.above * h * cells
    farthest = float(far.max())
    with np.errstate(over="ignore", invalid="ignore"):
        above = float((np.exp(far - farthest) * (1 + share * np.expm1(grid.above * h))).sum())
    extent = float(np.abs(losses).max()) + h
    return _Composed(
        tilted=tilted / total,
        cumulant=top + math.log(total),
        cumulant_above=farthest + math.log(above),
        relative=_ROUNDING
        * (4 * (tail + pair.reach) ** 2 + (s + grid.above) * extent + pair.summand),
        shift=_ROUNDING * (pair.reach * (tail + pair.reach) + extent + pair.summand),
    )
