"""Every accountant at deltas from 1e-300 to almost 1, against closed forms in 50 digits."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from mpmath import mp, mpf
from numpy.typing import NDArray
from scipy.special import logsumexp

from leakbench.privacy.account import epsilon
from leakbench.privacy.events import PrivacyEvent, Sampling
from leakbench.privacy.gdp import delta_of_mu, epsilon_of_mu
from leakbench.spec import ACCOUNTANTS

pytestmark = pytest.mark.usefixtures("fifty_digits")

DELTAS = [1e-300, 1e-100, 1e-12, 1e-5, 0.1, 0.5, 1 - 1e-9]
SIGMA, RATE, STEPS = 2.0, 0.1, 10


def value(accountant: str, delta: float, rate: float, steps: int = STEPS) -> float | None:
    sampling: Sampling = "none" if rate == 1 else "poisson"
    event = PrivacyEvent(
        noise_multiplier=SIGMA, sensitivity=1.0, sampling_rate=rate, sampling=sampling, steps=steps
    )
    return epsilon((event,), delta, accountant=accountant).epsilon


def delta_at(mu: mpf, loss: mpf) -> mpf:
    """Delta of two normals mu apart (Balle and Wang 2018, Theorem 8)."""
    return mp.ncdf(mu / 2 - loss / mu) - mp.exp(loss) * mp.ncdf(-mu / 2 - loss / mu)


def least(falling: Callable[[mpf], mpf], delta: float) -> mpf:
    """Smallest epsilon >= 0 at which a falling function is at most delta."""
    if falling(mpf(0)) <= delta:
        return mpf(0)
    high = mpf(1)
    while falling(high) > delta:
        high *= 2
    low = mpf(0)
    for _ in range(120):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > delta else (low, middle)
    return high


def of_gaussian(mu: float | mpf, delta: float) -> mpf:
    return least(lambda loss: delta_at(mpf(mu), loss), delta)


def of_one_sampled_step(delta: float) -> mpf:
    """(1-q) N(0) + q N(mu) against N(0): q times the Gaussian's delta, farther out."""

    def falling(loss: mpf) -> mpf:
        return RATE * delta_at(1 / mpf(SIGMA), mp.log1p(mp.expm1(loss) / mpf(RATE)))

    return least(falling, delta)


def no_less_than(delta: float) -> mpf:
    """Lower bound of the composed epsilon: the sum of all steps' outputs says no more than they do.

    It is N(K mu, T) with K binomial against N(0, T); with any threshold x, delta is at least
    P(sum > x) - e^epsilon Q(sum > x), so epsilon at least ln((P - delta) / Q).
    """
    mu, spread, best = 1 / mpf(SIGMA), mp.sqrt(STEPS), mpf(0)
    chances = [
        mp.binomial(STEPS, k) * mpf(RATE) ** k * (1 - mpf(RATE)) ** (STEPS - k)
        for k in range(STEPS + 1)
    ]
    for quarter in range(560):
        x = mpf(quarter) / 4
        seen = mp.fsum(p * mp.ncdf((k * mu - x) / spread) for k, p in enumerate(chances))
        if seen <= delta:
            break
        best = max(best, mp.log((seen - delta) / mp.ncdf(-x / spread)))
    return best


def test_the_lower_bound_is_the_exact_one_where_nobody_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With q almost 1 it is that of one Gaussian of sqrt(T) mu, up to the quarters of x."""
    monkeypatch.setitem(globals(), "RATE", 1 - 1e-30)
    exact = of_gaussian(mp.sqrt(STEPS) / SIGMA, 1e-12)
    assert 0.99 * exact < no_less_than(1e-12) <= exact * (1 + mpf(10) ** -20)


# ---------------------------------------------------------------------------- without sampling


@pytest.mark.parametrize("delta", DELTAS)
def test_gaussian_epsilon_to_12_digits(delta: float) -> None:
    for mu in (1e-3, 0.5, 3.0, 40.0):
        expected = of_gaussian(mu, delta)
        # Next to 1, a float knows 1 - delta to seven digits only.
        digits = 1e-11 if delta <= 0.5 else 1e-8
        found = epsilon_of_mu(mu, delta)
        assert found == pytest.approx(float(expected), rel=digits, abs=1e-300)
        if 1e-200 < delta <= 0.5 and expected > 0:
            assert delta_of_mu(mu, float(expected)) == pytest.approx(delta, rel=1e-6)


@pytest.mark.parametrize("delta", DELTAS)
def test_without_sampling_every_accountant_is_its_closed_form(delta: float) -> None:
    exact = float(of_gaussian(math.sqrt(STEPS) / SIGMA, delta))
    rho = STEPS / SIGMA**2 / 2
    own = float(of_gaussian(1 / SIGMA, min(delta / STEPS, 1)))
    half = float(of_gaussian(1 / SIGMA, min(delta / 2 / STEPS, 1)))
    left = math.log(2 / delta)
    squares = STEPS * half**2
    third = STEPS * half * math.tanh(half / 2) + math.sqrt(2 * left * squares)
    fourth = STEPS * half * math.tanh(half / 2) + math.sqrt(
        2 * squares * math.log(math.e + math.sqrt(squares) / (delta / 2))
    )
    # The least over real orders of rho a + ln((a-1)/a) - ln(delta a) / (a-1), not below 0.
    orders = [1 + mpf(10) ** (mpf(k) / 200 - 3) for k in range(1142)]  # 1.001 to 512
    renyi = min(
        mpf(rho) * a + mp.log1p(-1 / a) - (mp.log(mpf(delta)) + mp.log(a)) / (a - 1) for a in orders
    )
    expected = {
        "base": STEPS * own,
        "advanced": STEPS * half * math.expm1(half) + math.sqrt(2 * left * squares),
        "advanced_eq3": third,
        "optimal": min(STEPS * half, third, fourth),
        "zcdp": rho + 2 * math.sqrt(rho * -math.log(delta)),
        "gdp": exact,
        "pld": exact,
    }
    for accountant, number in expected.items():
        found = value(accountant, delta, 1.0)
        assert found == pytest.approx(number, rel=1e-9), accountant
    moments = value("moments", delta, 1.0)
    assert moments is not None and set(expected) | {"moments"} == set(ACCOUNTANTS)
    # Its orders end at 512 and are up to a third apart there.
    assert max(0.0, float(renyi)) * (1 - 1e-9) <= moments
    assert moments <= max(0.0, float(renyi)) * 1.003 + 1e-12


# ---------------------------------------------------------------------------- under sampling


@pytest.mark.parametrize("delta", DELTAS)
def test_under_sampling_every_theorem_is_its_formula(delta: float) -> None:
    """T q = 1: every step may spend delta on its sample, or half of it and half is the theorem's.

    Sampling turns e into ln(1 + q (exp(e) - 1)).
    """

    def step(share: float) -> float:
        return float(mp.log1p(mpf(RATE) * mp.expm1(of_gaussian(1 / SIGMA, share))))

    own, half, left = step(delta), step(delta / 2), math.log(2 / delta)
    squares = STEPS * half**2
    drift = STEPS * half * math.tanh(half / 2)
    third = drift + math.sqrt(2 * left * squares)
    fourth = drift + math.sqrt(2 * squares * math.log(math.e + math.sqrt(squares) / (delta / 2)))
    rho = STEPS / SIGMA**2 / 2
    expected = {
        "base": STEPS * own,
        "advanced": STEPS * half * math.expm1(half) + math.sqrt(2 * left * squares),
        "advanced_eq3": third,
        "optimal": min(STEPS * half, third, fourth),
        "zcdp": rho + 2 * math.sqrt(rho * -math.log(delta)),
    }
    for accountant, number in expected.items():
        assert value(accountant, delta, RATE) == pytest.approx(number, rel=1e-9), accountant
    assert value("gdp", delta, RATE) is None


def cumulants(orders: NDArray[np.float64]) -> NDArray[np.float64]:
    """ln E_z ((1 - q) + q L)^alpha of one step, by the trapezoid rule on sigma z."""
    points = np.linspace(-20 * SIGMA, orders[-1] + 20 * SIGMA, 12_001)
    log_ratio = np.logaddexp(math.log1p(-RATE), math.log(RATE) + (2 * points - 1) / (2 * SIGMA**2))
    log_density = -((points / SIGMA) ** 2) / 2 - math.log(SIGMA * math.sqrt(2 * math.pi))
    gap = math.log(points[1] - points[0])
    return np.array([logsumexp(log_density + a * log_ratio) + gap for a in orders])


@pytest.mark.parametrize("delta", DELTAS)
def test_moments_under_sampling_are_the_integral_at_the_best_order(delta: float) -> None:
    """Against the least over 300 orders from 1.01 to 512; the accountant has fewer."""
    orders = 1 + np.geomspace(0.01, 511, 300)
    candidates = (STEPS * cumulants(orders) - math.log(delta) - np.log(orders)) / (
        orders - 1
    ) + np.log1p(-1 / orders)
    best = max(0.0, float(candidates.min()))
    found = value("moments", delta, RATE)
    assert found is not None
    assert best * 0.9999 <= found <= best * 1.003 + 1e-9
    assert found >= float(no_less_than(delta))


@pytest.mark.parametrize("delta", DELTAS)
def test_the_tight_accountant_is_between_bounds(delta: float) -> None:
    """Not under what the sum of the outputs shows, and not far above it.

    One step is exact; the sum of ten is not all that they show.
    """
    for steps, low, factor in (
        (1, of_one_sampled_step(delta), 1.0001),
        (STEPS, no_less_than(delta), 1.12),
    ):
        found = value("pld", delta, RATE, steps)
        assert found is not None
        assert float(low) * (1 - 1e-9) <= found <= float(low) * factor + 1e-6
