"""The root finder at the limits of floats."""

from __future__ import annotations

import math

import pytest

from leakbench.privacy.bisection import least, least_positive


@pytest.mark.parametrize("threshold", [0.3, math.nextafter(0.3, 1), 1e-300, 1.0])
def test_without_a_tolerance_the_very_number_is_found(threshold: float) -> None:
    """The middle of two neighbours is one of them, whichever has the even last digit."""
    assert least(lambda x: x >= threshold, 0.0, 1.0, 0.0) == threshold


@pytest.mark.parametrize("threshold", [1e-99, 1e-9, 0.7, 1.0, 3.0, 1e9, 1e99])
def test_any_size_is_found_from_above(threshold: float) -> None:
    found = least_positive(lambda x: x >= threshold, 1e-6)
    assert threshold <= found <= threshold * (1 + 1e-5)


def test_a_condition_of_no_size_ends() -> None:
    assert least_positive(lambda x: x >= 1e102, 1e-6) == math.inf
    assert least_positive(lambda x: x >= 1e-102, 1e-6) == 0.0
