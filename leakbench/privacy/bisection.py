"""The one root finder that accounting needs: where a monotone condition turns true."""

from __future__ import annotations

import math
from collections.abc import Callable


def least(holds: Callable[[float], bool], low: float, high: float, tolerance: float) -> float:
    """Smallest number in [low, high] for which `holds`, up to `tolerance` (relative).

    `holds` must stay true once it is true and be true at `high`. The answer is the upper end of the
    last bracket, so it does hold, and never off to the unsafe side.
    """
    if holds(low):
        return low
    # The second condition ends the search between neighbouring numbers.
    while high - low > tolerance * high and low < (middle := low + (high - low) / 2) < high:
        if holds(middle):
            high = middle
        else:
            low = middle
    return high


def least_positive(holds: Callable[[float], bool], tolerance: float) -> float:
    """Smallest positive number for which `holds`, whatever its size; inf if it never does."""
    high = 1.0
    while not holds(high):
        high *= 4
        if high > 1e100:
            return math.inf
    low = high / 4
    while holds(low):
        high, low = low, low / 4
        if low < 1e-100:
            return 0.0
    return least(holds, low, high, tolerance)
