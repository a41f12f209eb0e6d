"""Per-example Gaussian noise whose scale falls: the releases of a whole training, one by one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from leakbench.contracts import NoiseConvention, Setting
from leakbench.gaussian import DecayingNoise, ExampleGaussian
from leakbench.privacy.gdp import mu_of_events

WEIGHTS = {"a.weight": torch.zeros(3, 2), "a.bias": torch.zeros(3), "b.weight": torch.zeros(2)}
M = len(WEIGHTS)


@dataclass(frozen=True, kw_only=True)
class Falling(DecayingNoise, ExampleGaussian):
    """C = 4, sigma from 6 to 2."""

    name: ClassVar[str] = "falling"
    noise_multiplier_end: float = 2.0


SIGMAS = [6.0, 5.0, 4.0, 3.0]
"""sigma_t in rounds 0 to 3 of 4: 6 - 4 t / 4."""


@pytest.mark.parametrize("convention", ["mean", "sum"])
@pytest.mark.parametrize("local_steps", [1, 3])
def test_every_local_step_that_draws_anew_is_a_release(
    convention: NoiseConvention, local_steps: int
) -> None:
    """Coins for all 50 examples in every step: L releases of sigma_t in round t, each at q = .1."""
    setting = Setting(
        batch_size=5, local_steps=local_steps, examples=50, rounds=4, sampling="poisson"
    )
    events = Falling(convention=convention).events(WEIGHTS, setting)
    assert [event.steps for event in events] == [local_steps] * 4
    assert {(event.sampling, event.sampling_rate) for event in events} == {("poisson", 0.1)}
    # One example moves the mean of 5 by sqrt(M) C / 5; the noise there is sigma C or sigma C / 5.
    gain = 5.0 if convention == "mean" else 1.0
    found = [event.noise_multiplier for event in events]
    assert found == pytest.approx([gain * sigma / math.sqrt(M) for sigma in SIGMAS], rel=1e-12)


@pytest.mark.parametrize(("examples", "uses"), [(20, 1), (10, 2), (8, 3), (5, 4)])
def test_an_example_is_released_as_often_as_its_turn_comes(examples: int, uses: int) -> None:
    """Batches of 5 in turn, 4 steps a round: of 20 examples each comes once, of 5 four times."""
    setting = Setting(batch_size=5, local_steps=4, examples=examples, rounds=4)
    events = Falling(convention="sum").events(WEIGHTS, setting)
    # Another takes the place of one that leaves: twice as far, and nothing is amplified.
    assert {(event.sampling, event.sampling_rate) for event in events} == {("fixed_size", 1.0)}
    expected = 2 * math.sqrt(sum(uses * M / sigma**2 for sigma in SIGMAS))
    assert mu_of_events(events) == pytest.approx(expected, rel=1e-12)
