"""`pld` is never below the truth: against a lower bound made another way, in other arithmetic.

The bound here is for Poisson sampling and add/remove. It cuts the real line into cells and tells
only which cell the release fell into, so what it composes is weaker than the mechanism; numbers
are 80-bit floats (64-bit mantissa), cells are chosen so that the loss of each is on a grid, and
what the Fourier transform may add by rounding or by folding is taken off again.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr, ndtri_exp

from leakbench.privacy import gdp, loss_grid, pairs, pld
from leakbench.privacy.events import PrivacyEvent, Relation, Sampling, grouped

Real = np.longdouble
Reals = NDArray[np.longdouble]

pytestmark = pytest.mark.skipif(
    np.finfo(Real).nmant < 63, reason="needs a long double of more than 64 bits"
)
UNIT = Real(2) ** -63


def legendre(count: int) -> tuple[Reals, Reals]:
    """Nodes and weights on [-1, 1] to the last digit of a long double."""
    nodes: Reals = np.polynomial.legendre.leggauss(count)[0].astype(Real)
    for _ in range(3):
        last: Reals = np.ones_like(nodes)
        this: Reals = nodes
        for n in range(2, count + 1):
            last, this = this, ((2 * n - 1) * nodes * this - (n - 1) * last) / n
        slope = count * (nodes * this - last) / (nodes**2 - 1)
        nodes = nodes - this / slope
    return nodes, 2 / ((1 - nodes**2) * slope**2)


NODES, WEIGHTS = legendre(10)


@dataclass(frozen=True)
class Step:
    """One step: N(0) against (1 - rate) N(0) + rate N(apart), in stds of the noise."""

    apart: Real
    rate: Real

    def loss(self, u: Reals) -> Reals:
        power = self.apart * u - self.apart**2 / 2
        excess = self.rate * np.expm1(np.minimum(power, Real(60)))
        with np.errstate(divide="ignore"):
            none = np.log1p(-self.rate)
        far = np.logaddexp(none, np.log(self.rate) + power)
        near = (excess > -0.5) & (power < 30)
        return np.where(near, np.log1p(np.where(near, excess, 0)), far)

    def where(self, loss: Reals) -> Reals:
        near = np.log1p(np.expm1(np.clip(loss, -1, 1)) / self.rate)
        far = loss + np.log1p(-(1 - self.rate) * np.exp(-loss)) - np.log(self.rate)
        return np.where(np.abs(loss) < 0.3, near, far) / self.apart + self.apart / 2

    def outside(self, u: float) -> tuple[Real, Real, Real]:
        """Q of everything below u, P less Q of it, and ln(P/Q)."""
        less = math.expm1(float(log_ndtr(u - float(self.apart)) - log_ndtr(u)))
        mass = Real(ndtr(u))
        return mass, self.rate * mass * less, np.log1p(self.rate * Real(less))

    def cells(self, ends: Reals) -> tuple[Reals, Reals, Reals]:
        """P, Q and ln(P/Q) of the cells between `ends`, and of the two that go on for ever."""
        low, high = float(ends[0]), float(ends[-1])
        middle, half = (ends[1:] + ends[:-1])[:, None] / 2, np.diff(ends)[:, None] / 2
        u = middle + half * NODES
        loss = self.loss(u)
        under_q = half * WEIGHTS * np.exp(-u * u / 2) / np.sqrt(2 * np.pi * Real(1))
        q, p = under_q.sum(axis=1), (under_q * np.exp(loss)).sum(axis=1)
        excess = (under_q * np.expm1(loss)).sum(axis=1) / q
        near = np.abs(excess) < 0.5
        inner = np.where(near, np.log1p(np.where(near, excess, 0)), np.log(p / q))
        q_low, more, lowest = self.outside(low)
        q_high = Real(ndtr(-high))
        p_high = (1 - self.rate) * q_high + self.rate * Real(ndtr(float(self.apart) - high))
        return (
            np.concatenate([[q_low + more], p, [p_high]]),
            np.concatenate([[q_low], q, [q_high]]),
            np.concatenate([[lowest], inner, [np.log(p_high / q_high)]]),
        )

    def partition(self, spacing: Real, tail: float) -> tuple[Reals, Reals, Reals, Real]:
        """P, Q and ln(P/Q) of cells whose losses are, but for a few, `spacing` apart.

        And the loss of the lowest, from which the grid is counted.
        """
        low, high = -tail, float(self.apart) + tail

        def above_lowest(u: float) -> Real:
            return self.loss(np.array([u], Real))[0] - self.outside(u)[2]

        def first_end(above: Real) -> float:
            """Where the loss is so far above that of all that is below, or as low as we look."""
            if above_lowest(low) >= above:
                return low
            bottom, top = low, high
            for _ in range(60):
                middle = (bottom + top) / 2
                bottom, top = (middle, top) if above_lowest(middle) < above else (bottom, middle)
            return top

        # Moving two neighbouring ends by e moves the loss between them by e.
        moved = np.zeros(1, Real)
        for attempt in range(7):
            # All that is below the first end is one cell: where the loss hardly rises it is wide.
            start = first_end(spacing / 2 - moved[0])
            first, last = self.loss(np.array([start, high], Real))
            if len(moved) == 1:
                moved = np.zeros(int((last - first) / spacing) + 2, Real)
            first += moved[0]
            ends = first + spacing * np.arange(len(moved)) - moved
            p, q, losses = self.cells(self.where(ends))
            lowest = first - spacing / 2
            off = losses[1:-1] - lowest - spacing * np.arange(1, len(ends))
            if len(off) > 2:
                bottom, top = 1.5 * off[0] - off[1] / 2, 1.5 * off[-1] - off[-2] / 2
                if attempt < 3:
                    by = np.concatenate([[bottom], (off[1:] + off[:-1]) / 2, [top]])
                else:  # also what alternates: (by[j] + by[j + 1]) / 2 = off[j], from the top down
                    signs = np.where(np.arange(len(ends)) % 2 == 0, Real(1), Real(-1))
                    sums = np.append(np.cumsum((signs[:-1] * off)[::-1])[::-1], 0)
                    by = signs * (2 * sums + signs[-1] * top)
                moved = np.clip(moved + by, -spacing / 3, spacing / 3)
        return p, q, losses, lowest


def cumulant(masses: Reals, losses: Reals, tilt: float) -> float:
    powers = np.log(masses) + tilt * losses
    return float(powers.max() + np.log(np.exp(powers - powers.max()).sum()))


def lower_bound(
    sigma: float, rate: float, steps: int, delta: float, fineness: float = 0.03
) -> float:
    """Epsilon is at least this: the larger of removing one example and adding one."""
    step = Step(1 / Real(sigma), Real(rate))
    tail = -float(ndtri_exp(math.log(delta * 1e-6 / steps)))
    rough = np.linspace(-tail, float(step.apart) + tail, 4001).astype(Real)
    p, q, losses = step.cells(rough)
    return max(
        _lower(step, sign, steps, delta, tail, fineness, masses, sign * losses)
        for sign, masses in ((1, p), (-1, q))
    )


def _lower(
    step: Step,
    sign: int,
    steps: int,
    delta: float,
    tail: float,
    fineness: float,
    rough: Reals,
    rough_losses: Reals,
) -> float:
    def chernoff(s: float) -> float:
        hockey = s * math.log(s) - (s + 1) * math.log1p(s)
        return (steps * cumulant(rough, rough_losses, s) + hockey - math.log(delta)) / s

    s = min((2.0 ** (k / 3) for k in range(-30, 90)), key=chernoff)
    weights = np.exp(np.log(rough) + s * rough_losses - cumulant(rough, rough_losses, s))
    mean = float((weights * rough_losses).sum())
    std = math.sqrt(float((weights * (rough_losses - mean) ** 2).sum()))
    extent = float(rough_losses.max() - rough_losses.min())
    spacing = Real(max(fineness * std, extent * fineness / 2000))
    p, q, losses, lowest = step.partition(spacing, tail)
    masses = p if sign > 0 else q
    # A loss is rounded down to the grid, but for as much as is best for the mean.
    kept = masses > 0
    masses, above = masses[kept], sign * (losses[kept] - lowest) / spacing
    short = np.round(above) - above
    tilted = np.exp(np.log(masses) + s * sign * losses[kept])
    allowed = min(
        (10.0**-k for k in range(1, 13)),
        key=lambda room: float(room + tilted[short > room].sum() / tilted.sum()),
    )
    index = np.floor(above + allowed).astype(np.int64)
    origin = sign * lowest - allowed * spacing
    on_grid = origin + spacing * index

    log_m = cumulant(masses, on_grid, s)
    tilted = np.exp(np.log(masses) + s * on_grid - log_m)
    mean = float((tilted * on_grid).sum())
    std = math.sqrt(float((tilted * (on_grid - mean) ** 2).sum()) * steps)

    def folded(end: float, side: int) -> float:
        """A bound on the tilted mass beyond `end` (Chernoff)."""
        tilts = [s + side * k / std for k in (0.5, 1, 2, 4, 6, 8, 10, 12, 16, 24)]
        logs = [steps * (cumulant(masses, on_grid, t) - log_m) + (s - t) * end for t in tilts]
        return math.exp(min(0.0, *map(float, logs)))

    length = 2 ** math.ceil(math.log2(max(20 * std / float(spacing), 2048)))
    while True:
        first = round((steps * (mean - float(origin))) / float(spacing)) - length // 2
        ends = [float(steps * origin + spacing * n) for n in (first, first + length - 1)]
        outside = folded(ends[0], -1) + folded(ends[1], 1)
        if outside < 1e-9 or length >= 2**21:
            break
        length *= 2
    grid = steps * origin + spacing * (first + np.arange(length))
    ring = np.zeros(length, Real)
    np.add.at(ring, index % length, tilted)
    spectrum = np.fft.rfft(ring)
    off = 8 * UNIT * math.log2(length)
    size = np.abs(spectrum) + off
    power = np.exp(steps * np.log(size))
    composed = np.fft.irfft(power * np.exp(1j * steps * np.angle(spectrum)), length)
    composed = np.roll(composed, -(first % length))
    error = 2 * (power * (steps * (2 * off / size + 16 * UNIT) + off)).sum() / length
    composed = np.maximum(composed - error, 0)
    hockey = s * math.log(s) - (s + 1) * math.log1p(s)
    # Masses are off by a few roundings a step, those of the outer cells by those of a double.
    scale = steps * log_m - math.log(delta) - steps * 2e-15
    kept = grid > 0
    grid, composed = grid[kept], composed[kept]
    if len(grid) == 0:
        return 0.0
    parts = composed * np.exp(scale - s * grid)
    above = np.cumsum(parts[::-1])[::-1]
    decayed = np.cumsum((parts * np.exp(grid[0] - grid))[::-1])[::-1]

    def exceeded(epsilon: float) -> bool:
        j = int(np.searchsorted(grid, epsilon, side="right"))
        if j == len(grid):
            return False
        found = above[j] - np.exp(epsilon - grid[0]) * decayed[j]
        return bool(found - outside * np.exp(scale - s * epsilon + hockey) > 1)

    # What is taken off for folding hides small epsilons, so the search begins above.
    high = chernoff(s)
    tries = (high * (1 - k / 200) for k in range(1, 200))
    low = next((x for x in tries if exceeded(x)), 0.0)
    high = min(high, low + high / 200)
    while low > 0 and high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if exceeded(middle) else (low, middle)
    return low


def pld_epsilon(sigma: float, rate: float, steps: int, delta: float) -> float:
    run = PrivacyEvent(noise_multiplier=sigma, sensitivity=1.0, sampling_rate=rate, steps=steps)
    return pld.epsilon([run], delta)


@pytest.mark.parametrize(
    ("sigma", "steps", "delta"), [(1.0, 1, 1e-5), (10.0, 1000, 1e-10), (100.0, 10_000, 1e-14)]
)
def test_the_bound_is_just_below_the_exact_epsilon_without_sampling(
    sigma: float, steps: int, delta: float
) -> None:
    exact = gdp.epsilon_of_mu(math.sqrt(steps) / sigma, delta)
    assert exact * (1 - 2e-4) < lower_bound(sigma, 1.0, steps, delta) < exact


@pytest.mark.parametrize(
    ("sigma", "rate", "delta"), [(2.0, 0.1, 1e-5), (1.0, 0.05, 1e-12), (5.0, 0.9, 1e-9)]
)
def test_one_sampled_step(sigma: float, rate: float, delta: float) -> None:
    """Delta of one step is rate times that of the Gaussian at ln((e^epsilon - 1 + rate) / rate)."""

    def spent(epsilon: float) -> float:
        return rate * gdp.delta_of_mu(1 / sigma, math.log1p(math.expm1(epsilon) / rate))

    found, below = pld_epsilon(sigma, rate, 1, delta), lower_bound(sigma, rate, 1, delta)
    assert spent(found) <= delta < spent(found * (1 - 1e-4))
    assert spent(below) > delta > spent(below * (1 + 1e-3))


@pytest.mark.parametrize(
    ("sigma", "rate", "steps", "delta", "known"),
    [
        # Where adding up masses that are off by 1e-16 each comes out below the truth.
        (156.53, 0.99, 100_000, 1e-13, 16.279),
        (156.53, 0.99, 100_000, 1e-12, 15.641),
        (156.53, 0.99, 100_000, 1e-10, 14.274),
        (5.0, 0.9, 1000, 1e-13, 57.562),
        (0.814, 0.01316, 3980, 1e-12, 13.832),
        (100.0, 1 - 1e-9, 10_000, 1e-14, 7.869),
        # Long runs, and small epsilons.
        (91.0, 0.0024, 1_150_000, 1e-5, 0.0858),
        (14.3, 1.653e-4, 42_404, 7.3e-14, 0.014922),
    ],
)
def test_extremes_are_just_above_the_bound(
    sigma: float, rate: float, steps: int, delta: float, known: float
) -> None:
    below = lower_bound(sigma, rate, steps, delta, fineness=0.05)
    found = pld_epsilon(sigma, rate, steps, delta)
    assert below == pytest.approx(known, rel=1e-3)
    assert below <= found <= below * (1 + 5e-4)


def random_setting(seed: int) -> tuple[float, float, int, float]:
    """sigma, rate, steps and delta over all that anyone may ask for."""
    random = np.random.default_rng([7, seed])
    small = random.uniform() < 0.75
    rate = 10 ** random.uniform(-4, 0) if small else 1 - 10 ** random.uniform(-9, -0.5)
    sigma = 10 ** random.uniform(math.log10(0.5), math.log10(200))
    steps = round(10 ** random.uniform(0, 6))
    return float(sigma), float(rate), steps, float(10 ** random.uniform(-15, -1))


@pytest.mark.parametrize("seed", range(1000, 1012))
def test_random_settings(seed: int) -> None:
    setting = random_setting(seed)
    assert lower_bound(*setting, fineness=0.2) <= pld_epsilon(*setting)


@pytest.mark.slow
@pytest.mark.parametrize("hundred", range(10))
def test_a_thousand_random_settings(hundred: int) -> None:
    ratios = []
    for seed in range(100 * hundred, 100 * (hundred + 1)):
        setting = random_setting(seed)
        below, found = lower_bound(*setting, fineness=0.05), pld_epsilon(*setting)
        assert below <= found, setting
        if found > 1e-3:
            ratios.append(found / max(below, 1e-300))
    assert float(np.median(ratios)) < 1 + 3e-4


# ---------------------------------------------------------------------------- exact, where smooth

U = np.linspace(-14, 18, 2001)
Pair = tuple[NDArray[np.float64], NDArray[np.float64]]


def mixture(chances: Sequence[float], apart: float) -> NDArray[np.float64]:
    """Density of sum of chances[k] N(k apart) at U."""
    parts = [c * np.exp(-((U - k * apart) ** 2) / 2) for k, c in enumerate(chances)]
    return np.sum(parts, axis=0) / math.sqrt(2 * math.pi)


def exact_delta(steps: Sequence[tuple[Pair, int]], epsilon: float) -> float:
    """Delta of densities P, Q at U, by inverting the transform of the losses' sum.

    (1 - e^(epsilon - x))+ is the inverse Laplace transform of e^(-z epsilon) / (z (z + 1)) for
    Re z > 0, so delta is the integral of prod E e^(z loss) over such a line; where the losses
    are smooth and many, the integrand has soon nothing left.
    """
    width = U[1] - U[0]
    logs = [np.log(p * width) for (p, _), _ in steps]
    losses = [np.log(p / q) for (p, q), _ in steps]
    counts = [count for _, count in steps]

    def cumulant(z: NDArray[Any]) -> NDArray[Any]:
        total = np.zeros_like(z)
        for log, loss, count in zip(logs, losses, counts, strict=True):
            total += count * np.log(np.exp(log + z[:, None] * loss).sum(axis=1))
        return total

    tilts = np.exp2(np.arange(-3, 11, 0.25))
    hockey = tilts * np.log(tilts) - (tilts + 1) * np.log1p(tilts)
    with np.errstate(over="ignore"):
        s = tilts[np.argmin(cumulant(tilts) - tilts * epsilon + hockey)]
    near = cumulant(s * np.array([0.99, 1.0, 1.01]))
    std = math.sqrt(float(near[0] - 2 * near[1] + near[2])) / (0.01 * s)
    y = (np.arange(400) + 0.5) * math.tau / (60 * std)
    z = s + 1j * y
    parts = np.exp(cumulant(z) - z * epsilon - near[1] + s * epsilon) / (z * (z + 1))
    assert abs(parts[-1]) < 1e-9 * abs(parts[0])
    total = float(parts.real.sum()) * (y[1] - y[0]) / math.pi
    return total * math.exp(float(near[1]) - s * epsilon)


def poisson(sigma: float, rate: float, size: int = 1) -> Pair:
    """Removing `size` examples."""
    chances = [math.comb(size, k) * rate**k * (1 - rate) ** (size - k) for k in range(size + 1)]
    return mixture(chances, 1 / sigma), mixture([1], 1 / sigma)


def event(sigma: float, rate: float, steps: int) -> PrivacyEvent:
    return PrivacyEvent(noise_multiplier=sigma, sensitivity=1.0, sampling_rate=rate, steps=steps)


def check_exact(steps: Sequence[tuple[Pair, int]], found: float, delta: float) -> None:
    assert exact_delta(steps, found) <= delta < exact_delta(steps, found * (1 - 3e-4) - 1e-6)


@pytest.mark.parametrize("delta", [1e-15, 1e-10, 1e-5, 1e-2])
@pytest.mark.parametrize(
    ("sigma", "rate", "steps"),
    [(6.0, 0.01, 10_000), (0.9, 0.02, 3000), (91.0, 0.0024, 1_150_000), (3.0, 0.9, 50)],
)
def test_removing_is_just_above_the_exact_delta(
    sigma: float, rate: float, steps: int, delta: float
) -> None:
    found = pld_epsilon(sigma, rate, steps, delta)
    if found > 0:
        p, q = poisson(sigma, rate)
        check_exact([((p, q), steps)], found, delta)
        # Adding costs less, but must be known to.
        (adding,) = pld.pairs_of(grouped([event(sigma, rate, steps)]), "add_remove", 1, True)
        alone = pld.epsilon_of_pairs([adding], delta)
        assert alone <= found * (1 + 1e-4)
        if alone > 0.01:
            check_exact([((q, p), steps)], alone, delta)


@pytest.mark.parametrize("delta", [1e-13, 1e-6])
def test_replacing_groups_and_different_steps_are_just_above_the_exact_delta(delta: float) -> None:
    pair, group = poisson(2.0, 0.05), poisson(4.0, 0.02, size=5)
    replaced = pair[0], mixture([0.95, 0.05], -0.5)
    found = pld.epsilon([event(2.0, 0.05, 800)], delta, relation="replace_one")
    check_exact([(replaced, 800)], found, delta)
    found = pld.epsilon([event(4.0, 0.02, 700)], delta, group_size=5)
    check_exact([(group, 700)], found, delta)
    found = pld.epsilon([event(2.0, 0.05, 300), event(1.5, 0.1, 40), event(9.0, 1.0, 3)], delta)
    everyone = mixture([0, 1], math.sqrt(3) / 9), mixture([1], 1.0)
    check_exact([(pair, 300), (poisson(1.5, 0.1), 40), (everyone, 1)], found, delta)


def test_the_costlier_direction_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = {"remove": 1.0, "add": 1.5}
    monkeypatch.setattr(pld, "epsilon_of_pairs", lambda steps, delta: costs[steps[0][0].kind])
    assert pld.epsilon([event(1.0, 0.1, 100)], 1e-5) == 1.5


# ---------------------------------------------------------------------------- parts


@pytest.mark.parametrize(
    ("pair", "spacing"),
    [
        (pairs.Pair("remove", 0.2, 0.01), 3e-5),
        (pairs.Pair("add", 0.2, 0.01), 3e-5),
        (pairs.Pair("remove", 2.0, 1 - 1e-9), 0.05),
        (pairs.Pair("add", 2.0, 1 - 1e-9), 0.05),
        (pairs.Pair("remove", 30.0, 0.3), 2.0),
        (pairs.Pair("remove", 0.5, 0.1, size=4), 0.01),
        (pairs.Pair("add", 0.5, 0.1, size=4), 0.01),
        (pairs.Pair("replace", 1.5, 0.2), 0.03),
        (pairs.Pair("fixed", 1.5, 0.2), 0.03),
    ],
)
def test_points_of_a_step_carry_all_mass_between_any_two_lines(
    pair: pairs.Pair, spacing: float
) -> None:
    """Under P and under Q, so that sums over points are the integrals they stand for."""
    logs, losses = pairs.masses_and_losses(pair, 9.0, spacing)
    masses, other = np.exp(logs), np.exp(logs - losses)
    assert masses.sum() == pytest.approx(1, abs=1e-13)
    # For adding Q may lie further out than what of P is covered.
    uncovered = float(ndtr(pair.reach - 9)) if pair.kind == "add" else 0.0
    assert -1e-13 < 1 - other.sum() < uncovered + 1e-13
    if pair.size > 1 or pair.kind in ("replace", "fixed"):
        return
    for line in np.unique(np.round(np.quantile(losses, [0.1, 0.5, 0.9]) / spacing)) * spacing:
        sign = 1 if pair.kind == "remove" else -1
        u = float(Step(Real(pair.apart), Real(pair.rate)).where(np.array([sign * line], Real))[0])
        normal = float(ndtr(-sign * u))
        mixed = (1 - pair.rate) * normal + pair.rate * float(ndtr(-sign * (u - pair.apart)))
        p, q = (mixed, normal) if sign > 0 else (normal, mixed)
        beyond = losses > line
        assert float(masses[beyond].sum()) == pytest.approx(p, rel=1e-11, abs=1e-15)
        assert float(other[beyond].sum()) == pytest.approx(q, rel=1e-11, abs=1e-15)


def test_what_hardly_ever_happens_to_a_group_is_left_out_of_it() -> None:
    size, rate, apart, tail = 40, 0.1, 0.3, 3.0
    logs, losses = pairs.masses_and_losses(pairs.Pair("add", apart, rate, size), tail, 0.01)
    chances = [math.comb(size, k) * rate**k * (1 - rate) ** (size - k) for k in range(size + 1)]
    kept = [(k, c) for k, c in enumerate(chances) if c > ndtr(-tail) / (size + 1)]
    assert 1e-5 < 1 - sum(c for _, c in kept) < ndtr(-tail)
    expected = sum(c * (ndtr(tail - k * apart) - ndtr(-tail - k * apart)) for k, c in kept)
    assert np.exp(logs - losses).sum() == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("counts", [(10_000, 3), (1, 1), (1_000_000, 40_000), (7, 2000)])
def test_every_composed_mass_is_at_least_the_one_without_rounding(counts: tuple[int, int]) -> None:
    steps = [
        (pairs.Pair("remove", 0.2, 0.01), counts[0]),
        (pairs.Pair("fixed", 0.5, 0.02), counts[1]),
    ]
    grid = loss_grid.choose_grid(steps, 1e-9, sum(counts), 12)
    product: NDArray[Any] = np.ones(grid.length // 2 + 1, np.clongdouble)
    for pair, count in steps:
        step = pld._step(pair, grid, 12).tilted.astype(Real)
        assert float(step.sum()) == pytest.approx(1, rel=1e-13)
        spectrum = np.fft.rfft(step)
        product *= np.exp(count * np.log(np.abs(spectrum)) + 1j * count * np.angle(spectrum))
    exact = np.roll(np.fft.irfft(product, grid.length), -(grid.first % grid.length))
    found = pld._compose(steps, grid, 12).tilted
    assert (found >= exact).all()
    assert float((found - exact).max()) < 1e-7 * float(exact.max())


# ---------------------------------------------------------------------------- properties


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_monotone_and_never_above_unsampled(data: st.DataObject) -> None:
    relation: Relation = data.draw(st.sampled_from(["add_remove", "replace_one"]))
    sampling: Sampling = data.draw(st.sampled_from(["poisson", "fixed_size"]))
    size = data.draw(st.sampled_from([1, 1, 3]))
    sigmas = sorted(10 ** data.draw(st.floats(-0.3, 2)) for _ in range(2))
    rates = sorted(10 ** data.draw(st.floats(-4, 0)) for _ in range(2))
    counts = sorted(round(10 ** data.draw(st.floats(0, 5))) for _ in range(2))
    deltas = sorted(10 ** data.draw(st.floats(-15, -1)) for _ in range(2))

    def found(sigma: float, rate: float, steps: int, delta: float) -> float:
        run = PrivacyEvent(
            noise_multiplier=sigma,
            sensitivity=1.0,
            sampling_rate=rate,
            sampling=sampling,
            steps=steps,
        )
        plain = replace(run, sampling_rate=1.0)
        value, most = (
            pld.epsilon([one], delta, relation=relation, group_size=size) for one in (run, plain)
        )
        assert 0 <= value <= most
        return value

    worst = found(sigmas[0], rates[1], counts[1], deltas[0])
    for better in (
        found(sigmas[1], rates[1], counts[1], deltas[0]),
        found(sigmas[0], rates[0], counts[1], deltas[0]),
        found(sigmas[0], rates[1], counts[0], deltas[0]),
        found(sigmas[0], rates[1], counts[1], deltas[1]),
    ):
        # Up to what the grid is off by, which differs between the two.
        assert better <= worst * (1 + 3e-3) + 1e-5
