"""Gaussian DP where numbers are extreme: limits under sampling in 50 digits, and what overflows."""

from __future__ import annotations

import math

import pytest
from mpmath import mp, mpf

from leakbench.errors import LeakbenchError
from leakbench.privacy.events import PrivacyEvent
from leakbench.privacy.gdp import (
    delta_of_mu,
    epsilon_of_mu,
    limit_mu,
    mu_of_events,
    subset_factor,
)

pytestmark = pytest.mark.usefixtures("fifty_digits")


def event(sigma: float, rate: float, steps: int, **changes: str) -> PrivacyEvent:
    return PrivacyEvent(
        noise_multiplier=sigma, sensitivity=1.0, sampling_rate=rate, steps=steps,
        **changes,  # type: ignore[arg-type]
    )  # fmt: skip


NOISES = [0.0379, 0.1, 0.5, 1.0, 4.0, 100.0, 1e4]
"""1 / sqrt(700) is 0.0378."""


@pytest.mark.parametrize("noise", NOISES)
def test_the_factor_of_drawn_batches_in_50_digits(noise: float) -> None:
    """h(s)^2 = e^(1/s^2) Phi(3/(2s)) + 3 Phi(-1/(2s)) - 2 (Dong, Roth and Su 2019, Corollary 4)."""
    s = mpf(noise)
    square = mp.exp(1 / s**2) * mp.ncdf(3 / (2 * s)) + 3 * mp.ncdf(-1 / (2 * s)) - 2
    # Rounding may leave 1e-16 of a square whose terms are of that of 1 / s.
    assert subset_factor(noise) == pytest.approx(float(mp.sqrt(square)), rel=1e-9)


@pytest.mark.parametrize("noise", [0.0377, 0.01, 1e-9])
def test_a_factor_that_overflows_is_infinite(noise: float) -> None:
    assert subset_factor(noise) == math.inf
    # The batch's sum moves by twice the clip bound.
    assert limit_mu([event(2 * noise, 0.1, 1, sampling="fixed_size")]) == math.inf
    assert limit_mu([event(noise, 0.1, 1)]) == math.inf


@pytest.mark.parametrize("noise", NOISES)
def test_limits_add_up_over_kinds_of_steps(noise: float) -> None:
    """7 Poisson steps, 5 of drawn batches, 3 that everyone takes part in."""
    s = mpf(noise)
    half = s / 2
    drawn = mp.exp(1 / half**2) * mp.ncdf(3 / (2 * half)) + 3 * mp.ncdf(-1 / (2 * half)) - 2
    poisson, everyone = mp.expm1(1 / s**2), 1 / s**2
    events = [
        event(noise, 0.01, 7), event(noise, 0.3, 3, sampling="none"),
    ]  # fmt: skip
    expected = 7 * mpf(0.01) ** 2 * poisson + 3 * everyone
    assert limit_mu(events) == pytest.approx(float(mp.sqrt(expected)), rel=1e-9)
    if noise > 0.1:  # at half of it the factor is finite
        events.append(event(noise, 0.02, 5, sampling="fixed_size"))
        expected += 5 * 2 * mpf(0.02) ** 2 * drawn
        assert limit_mu(events) == pytest.approx(float(mp.sqrt(expected)), rel=1e-9)
    # Without amplification: drawn batches replace, which is twice as far.
    apart = 7 * everyone + 3 * everyone + (5 * 4 * everyone if noise > 0.1 else 0)
    assert mu_of_events(events) == pytest.approx(float(mp.sqrt(apart)), rel=1e-12)
    with pytest.raises(LeakbenchError, match="add/remove, not replace-one"):
        limit_mu(events, "replace_one")


def test_what_everyone_takes_part_in_has_a_limit_under_both_relations() -> None:
    alone = [event(2.0, 0.3, 9, sampling="none")]
    assert limit_mu(alone) == mu_of_events(alone) == pytest.approx(1.5)
    assert limit_mu(alone, "replace_one") == pytest.approx(3.0)
    drawn = [event(2.0, 0.1, 9, sampling="fixed_size")]
    assert limit_mu(drawn) == limit_mu(drawn, "replace_one")
    assert limit_mu([]) == mu_of_events([]) == 0


def test_ends_of_the_profile() -> None:
    assert delta_of_mu(0.0, 0.0) == 0 and delta_of_mu(1.0, math.inf) == 0
    assert delta_of_mu(math.inf, 3.0) == 1
    assert delta_of_mu(1e-3, 100.0) == 0  # e^-5e9
    assert delta_of_mu(1.0, 0.0) == pytest.approx(float(2 * mp.ncdf(mpf(1) / 2) - 1), rel=1e-12)
    assert epsilon_of_mu(0.0, 1e-5) == 0 and epsilon_of_mu(math.inf, 1e-5) == math.inf
    assert epsilon_of_mu(1e150, 1e-5) < math.inf and epsilon_of_mu(1e151, 1e-5) == math.inf
    for bad in (-1e-9, math.nan):
        with pytest.raises(LeakbenchError, match="mu must be >= 0"):
            epsilon_of_mu(bad, 1e-5)
