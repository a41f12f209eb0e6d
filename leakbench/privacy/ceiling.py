"""How often an attacker may name the victim at best, given what a mechanism promises.

Telling whether the victim is behind a release is a test between two distributions. If that is no
easier than telling N(0, 1) from N(mu, 1), a guess that is right with chance `prior` without the
release is right with chance Phi(Phi^-1(prior) + mu) at most with it (Kaissis, Hayes, Ziller and
Rueckert 2023, arXiv 2307.03928). The most powerful test between the two reaches it.
"""

from __future__ import annotations

import math

from scipy.special import ndtr, ndtri

from leakbench.errors import LeakbenchError


def reconstruction_ceiling(prior: float, mu: float, looks: int = 1) -> float:
    """Phi(Phi^-1(prior) + sqrt(looks) mu): the largest chance of success of any attack.

    Args:
        prior: Chance of success without looking, in (0, 1]: 1 / N to name one of N candidates,
            k / N with k guesses.
        mu: Gaussian-DP parameter of one look, sensitivity / noise std, in [0, inf].
        looks: Releases about the same victim, each with noise of its own; at least 1. For looks
            that differ in mu, enter their root sum of squares as one.

    Returns:
        In [prior, 1]: `prior` for mu = 0, 1 for mu = inf or prior = 1.

    Raises:
        LeakbenchError: If an argument is nan or outside its range.
    """
    if not 0 < prior <= 1:
        raise LeakbenchError(f"ceiling: prior must be above 0 and at most 1, got {prior}")
    if not mu >= 0:
        raise LeakbenchError(f"ceiling: mu must be >= 0, got {mu}")
    if not looks >= 1 or looks % 1:
        raise LeakbenchError(f"ceiling: looks must be a whole number >= 1, got {looks}")
    # Rounding must not take it below what guessing gives.
    return max(float(prior), float(ndtr(ndtri(prior) + math.sqrt(looks) * mu)))
