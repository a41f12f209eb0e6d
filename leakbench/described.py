"""What a run is made of, spelled out: cells and trainings with their resume keys.

A manifest holds all of it, so that a run describes itself: whoever reads one later needs neither
the suite nor the code that made it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from leakbench.records import Key
from leakbench.spec import Cell, UtilityCell


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCell:
    """A cell with its resume keys and images, one entry a network; `skip` says why none can run.

    victims: candidates to reconstruct, in whole batches where a gradient is made of several.
    ceiling_mu: Gaussian-DP parameter of all observations at the tap, None without a guarantee.
    data: checksum of the data set, "" where it is not on the machine. title, classes: the data
    set's; 0 classes where a manifest does not say how many.
    budget: gradient evaluations that the attack may spend on an image and look. gradient_bytes: of
    one gradient, which bound how many are attacked together.
    priors: chance to name each of the `victims` without a look, see `priors_of`.
    """

    cell: Cell
    identities: tuple[str, ...]
    victims: tuple[tuple[int, ...], ...]
    skip: str
    ceiling_mu: float | None
    guarantee: str
    data: str = ""
    title: str = ""
    classes: int = 0
    budget: int = 0
    gradient_bytes: int = 0
    priors: tuple[tuple[float, ...], ...] = ()

    @property
    def count(self) -> int:
        """Number of its trials."""
        return sum(map(len, self.victims))

    def only(self, victims: tuple[tuple[int, ...], ...]) -> PlannedCell:
        """The same cell with some of its victims, network by network."""
        known = [
            dict(zip(*pair, strict=True))
            for pair in zip(self.victims, self.priors or self.victims, strict=True)
        ]
        priors = tuple(
            tuple(chances[victim] for victim in some)
            for chances, some in zip(known, victims, strict=True)
        )
        return replace(self, victims=victims, priors=priors if self.priors else ())

    def trials(self) -> Iterator[Key]:
        """Resume keys of all its trials."""
        for identity, victims in zip(self.identities, self.victims, strict=True):
            for victim in victims:
                yield identity, victim


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTraining:
    """A utility cell with its resume keys, one a network; `skip` says why none can run.

    undefended: whether its defense does nothing, so that others are measured against it. title:
    the data set's, "" where a manifest does not say.
    """

    cell: UtilityCell
    identities: tuple[str, ...]
    skip: str
    undefended: bool = False
    title: str = ""

    def trials(self) -> Iterator[Key]:
        """Resume keys of all its trainings."""
        return ((identity, 0) for identity in self.identities)


def priors_of(
    victims: Sequence[Sequence[int]], each: int, candidates: int, labels: Sequence[int] = ()
) -> tuple[tuple[float, ...], ...]:
    """Chance to name each of the `victims`, network by network, without a look.

    Of a batch of `each`, the guess nearest to each image counts as its own: B guesses have B / N
    among N candidates. Who is granted the `labels`, of all candidates, guesses among those with the
    victims', at best all B times in the class of which the batch has the largest share: with one
    image, 1 of those of its class.
    """
    sizes = Counter(labels)
    found = []
    for of_network in victims:
        priors: list[float] = []
        for first in range(0, len(of_network), each):
            images = of_network[first : first + each]
            shares = [each / candidates]
            if sizes:
                held = Counter(labels[image] for image in images)
                shares = [held[label] / sizes[label] for label in held]
            priors += [min(max(shares), 1.0)] * len(images)
        found.append(tuple(priors))
    return tuple(found)
