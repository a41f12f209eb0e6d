"""The grids of orders that papers' numbers hang on, and what an epsilon is on them."""

from __future__ import annotations

import itertools
import math

import pytest
from opacus.accountants import RDPAccountant

from leakbench.privacy.account import epsilon
from leakbench.privacy.events import PrivacyEvent
from leakbench.privacy.rdp import DENSE_ORDERS, OPACUS_ORDERS, TF_PRIVACY_ORDERS

DELTA = 1e-5


def test_the_grid_of_opacus_is_that_of_the_library() -> None:
    assert list(OPACUS_ORDERS) == pytest.approx(list(RDPAccountant.DEFAULT_ALPHAS), rel=1e-15)


def test_the_grid_of_tf_privacy_written_out() -> None:
    """compute_dp_sgd_privacy.py of TF-Privacy 0.5."""
    quarters = [5 / 4, 6 / 4, 7 / 4, 8 / 4, 9 / 4, 10 / 4, 12 / 4, 14 / 4, 16 / 4, 18 / 4]
    assert list(TF_PRIVACY_ORDERS) == [*quarters, *range(5, 64), 128, 256, 512]


def test_the_dense_grid_leaves_no_wide_gap() -> None:
    """From 1.001 to 512, no order more than half as far again from 1 as the one before."""
    assert DENSE_ORDERS[0] == pytest.approx(1.001) and DENSE_ORDERS[-1] == 512
    gaps = [(b - 1) / (a - 1) for a, b in itertools.pairwise(DENSE_ORDERS)]
    assert all(1 < gap < 1.51 for gap in gaps)
    # From 1.1 to 63, where the best one mostly is, a tenth.
    inner = [gap for gap, a in zip(gaps, DENSE_ORDERS, strict=False) if 1.1 <= a < 63]
    assert all(gap < 1.11 for gap in inner)


@pytest.mark.parametrize("sigma", [0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 5.0, 50.0, 500.0])
def test_without_sampling_a_preset_takes_the_best_of_its_orders(sigma: float) -> None:
    """a / (2 sigma^2) + ln(1/delta) / (a - 1), 7 steps and one more where the paper counts it."""
    grids = {
        "paper:tifs": (TF_PRIVACY_ORDERS, 8),
        "paper:tifs-budget": (TF_PRIVACY_ORDERS, 7),
        "paper:icdcs": (TF_PRIVACY_ORDERS, 8),
    }
    event = PrivacyEvent(noise_multiplier=sigma, sensitivity=1.0, sampling_rate=1.0, steps=7)
    for preset, (orders, steps) in grids.items():
        expected = min(steps * a / (2 * sigma**2) - math.log(DELTA) / (a - 1) for a in orders)
        found = epsilon((event,), DELTA, accountant="moments", preset=preset).epsilon
        assert found == pytest.approx(expected, rel=1e-12)
