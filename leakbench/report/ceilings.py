"""How often victims may be named at best, given what a defense promises at the tap.

See `privacy.ceiling`; here it is averaged over the victims of a cell, each with his own prior.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from leakbench.described import PlannedCell
from leakbench.privacy.ceiling import reconstruction_ceiling


def ceiling_of(planned: PlannedCell) -> float | None:
    """Largest rate of naming the victims among N candidates (Kaissis et al., arXiv 2307.03928).

    It bounds the chance for each victim by his own prior, and so a rate by the mean of those. None
    without a promise.
    """
    mu = planned.ceiling_mu
    if mu is None:
        return None
    priors = _priors(planned)
    found = sum(count * reconstruction_ceiling(p, mu) for p, count in priors.items())
    return min(found / priors.total(), 1.0)


def chance_of(planned: PlannedCell) -> float | None:
    """Rate of naming the victims without a look at the leak; None where nobody is to be named."""
    priors = _priors(planned)
    if not priors:
        return None
    return sum(count * prior for prior, count in priors.items()) / priors.total()


def label_priors(planned: Sequence[PlannedCell]) -> dict[str, float]:
    """Data sets with a ceiling where labels are granted -> the best guess's chance, a mean."""
    found: dict[str, float] = {}
    for each in planned:
        if "labels" in each.cell.grants and each.ceiling_mu is not None:
            priors = _priors(each)
            mean = sum(prior * count for prior, count in priors.items()) / priors.total()
            found[each.cell.dataset] = max(mean, found.get(each.cell.dataset, 0.0))
    return found


def _priors(planned: PlannedCell) -> Counter[float]:
    """Chance to name an image without a look -> for how many planned images."""
    return Counter(chance for of_network in planned.priors for chance in of_network)
