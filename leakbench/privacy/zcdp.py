"""Zero-concentrated DP: rho adds up over releases and becomes epsilon + delta at the end."""

from __future__ import annotations

import math
from collections.abc import Iterable

from leakbench.privacy.events import PrivacyEvent, Relation, check_delta, grouped


def rho(events: Iterable[PrivacyEvent], relation: Relation = "add_remove") -> float:
    """Sum of mu^2 / 2 (Bun and Steinke 2016, Proposition 1.6).

    Sampling is left out: it does not amplify zero-concentrated DP.
    """
    return sum(group.steps * group.separation(relation) ** 2 / 2 for group in grouped(events))


def claimed_rho(events: Iterable[PrivacyEvent]) -> float:
    """Sum of q^2 / sigma^2, as TIFS eq. 6 has it: no half, and amplified by sampling.

    An approximation without the condition on orders it needs; for reproducing tables only.
    """
    return sum(
        group.steps * (group.rate * group.separation("add_remove")) ** 2
        for group in grouped(events)
    )


def to_epsilon(rho: float, delta: float) -> float:
    """rho + 2 sqrt(rho ln(1/delta)) (Bun and Steinke 2016, Proposition 1.3)."""
    check_delta(delta)
    return rho + 2 * math.sqrt(-rho * math.log(delta))
