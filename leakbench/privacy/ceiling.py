"""How often an attacker may name the victim at best, given what a mechanism promises.

Telling whether the victim is behind a release is a test between two distributions. If that is no
easier than telling N(0, 1) from N(mu, 1), a guess that is right with chance `prior` without the
release is right with chance Phi(Phi^-1(prior) + mu) at most with it (Kaissis, Hayes, Ziller and
Rueckert 2023, arXiv 2307.03928). The most powerful test between the two reaches it.

Of a whole training with sampling it is the same (Hayes, Mahloujifar and Balle 2023, arXiv
2302.07225): the best test between the composed steps with the victim and without him, at a false
positive rate of `prior`. They draw its outcomes; here its privacy losses bound it (`power`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from leakbench.errors import LeakbenchError
from leakbench.privacy.events import PrivacyEvent, Relation
from leakbench.privacy.power import power, power_of_mu


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
    _check_prior(prior)
    if not mu >= 0:
        raise LeakbenchError(f"ceiling: mu must be >= 0, got {mu}")
    if not looks >= 1 or looks % 1:
        raise LeakbenchError(f"ceiling: looks must be a whole number >= 1, got {looks}")
    return power_of_mu(math.sqrt(looks) * mu, prior)


def training_ceiling(
    prior: float,
    events: Iterable[PrivacyEvent],
    *,
    relation: Relation = "add_remove",
    group_size: int = 1,
) -> float:
    """The largest chance of success of any attack that sees all that the events release.

    Nothing else is bounded: who sees every update knows who sent it, and for him the events are
    the victim's own ones without sampling.

    Args:
        prior: Chance of success without looking, in (0, 1]: 1 / N to name one of N candidates.
        events: Heterogeneous steps in any order; a Poisson rate, or a fixed size of samples, is
            used only where the attacker does not see who takes part.
        relation: What the training is held against: one without the victim (add_remove), or one
            with somebody in his place (replace_one, and where a fixed number is drawn). Both are
            valid where both have a sensitivity; the lower ceiling counts.
        group_size: Examples of a client, who is named by all of them.

    Returns:
        In [prior, 1]: an upper bound, rounding included; `reconstruction_ceiling` without sampling.

    Raises:
        LeakbenchError: If an argument is outside its range.
    """
    _check_prior(prior)
    return power(events, prior, relation=relation, group_size=group_size)


def _check_prior(prior: float) -> None:
    if not 0 < prior <= 1:
        raise LeakbenchError(f"ceiling: prior must be above 0 and at most 1, got {prior}")
