"""How long a budget lasts, step by step, where the epsilon of n steps is a closed form."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from leakbench.errors import LeakbenchError
from leakbench.privacy.events import PrivacyEvent
from leakbench.privacy.inverse import first_steps, noise_multiplier, steps_within

DELTA = 1e-5


def steps(sigma: float, count: int) -> PrivacyEvent:
    return PrivacyEvent(noise_multiplier=sigma, sensitivity=1.0, sampling="none", steps=count)


@pytest.mark.parametrize("total", [1, 2, 3, 12, 13])
def test_a_budget_lasts_to_the_very_step(
    gaussian_epsilon: Callable[[float], float], total: int
) -> None:
    events = [steps(6.0, total)]
    for count in range(1, total + 1):
        spent = gaussian_epsilon(math.sqrt(count) / 6)
        for budget, lasts in ((spent * (1 + 1e-6), count), (spent * (1 - 1e-6), count - 1)):
            found = steps_within(budget, events, DELTA, accountant="gdp")
            assert found == lasts, (count, budget)
    assert steps_within(0.0, events, DELTA, accountant="gdp") == 0
    assert steps_within(100.0, events, DELTA, accountant="gdp") == total


def test_a_budget_is_spent_in_the_order_of_the_steps(
    gaussian_epsilon: Callable[[float], float],
) -> None:
    """Two steps of sigma 6, three of 3, four of 2: mu^2 is 2/36, then 3/9 more, then 4/4."""
    events = [steps(6.0, 2), steps(3.0, 3), steps(2.0, 4)]
    squares = [1 / 36] * 2 + [1 / 9] * 3 + [1 / 4] * 4
    for count in range(10):
        budget = gaussian_epsilon(math.sqrt(sum(squares[:count]))) * (1 + 1e-6) if count else 0.0
        assert steps_within(budget, events, DELTA, accountant="gdp") == count
    assert first_steps(events, 4) == (steps(6.0, 2), steps(3.0, 2))
    assert first_steps(events, 5) == (steps(6.0, 2), steps(3.0, 3))
    assert first_steps(events, 0) == () and first_steps(events, 99) == tuple(events)
    assert steps_within(1.0, [], DELTA, accountant="gdp") == 0
    assert steps_within(1.0, [steps(0.0, 0)], DELTA, accountant="gdp") == 0


@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
def test_the_noise_of_a_budget_is_the_closed_forms(
    gaussian_epsilon: Callable[[float], float], relation: str
) -> None:
    """T = 9 steps seen whole: sigma is 3 over the mu whose epsilon is the target, or 6 over it."""
    for mu in (0.1, 1.0, 5.0):
        found = noise_multiplier(
            gaussian_epsilon(mu), DELTA, sampling_rate=0.3, steps=9, sampling="none",
            accountant="gdp", relation=relation,  # type: ignore[arg-type]
        )  # fmt: skip
        sigma = (3 if relation == "add_remove" else 6) / mu
        assert sigma * (1 - 1e-9) <= found <= sigma * (1 + 2e-5)


@pytest.mark.parametrize("target", [0.0, -1.0, math.nan, math.inf, 1.1e6])
def test_what_is_no_target_is_refused(target: float) -> None:
    with pytest.raises(LeakbenchError, match="target epsilon must be above 0 and at most 1e"):
        noise_multiplier(target, DELTA, sampling_rate=1.0, steps=1, accountant="gdp")


def test_targets_and_budgets_at_their_ends() -> None:
    most = noise_multiplier(1e6, DELTA, sampling_rate=1.0, steps=1, accountant="gdp")
    assert 0 < most < 1e-3  # mu^2 / 2 is about a million
    for budget in (-1e-9, math.nan):
        with pytest.raises(LeakbenchError, match="budget must be >= 0"):
            steps_within(budget, [steps(1.0, 1)], DELTA, accountant="gdp")
    sampled = PrivacyEvent(noise_multiplier=1.0, sensitivity=1.0, sampling_rate=0.1)
    with pytest.raises(LeakbenchError, match="accountant 'gdp' has no epsilon here"):
        steps_within(1.0, [sampled], DELTA, accountant="gdp")
