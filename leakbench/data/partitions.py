"""Who holds which examples: the data of N clients, as index lists into one training set.

Every function takes its randomness from `generator` alone and returns N tensors of positions
(int64), sorted by client; no example belongs to two clients. `Drawn` clients share examples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from leakbench.errors import LeakbenchError

TRIES = 1000
"""Draws of a Dirichlet partition before giving up."""


def iid(examples: int, clients: int, generator: torch.Generator) -> list[Tensor]:
    """Equal shares of a random order; what does not divide is left out.

    Raises:
        LeakbenchError: fewer examples than clients, or no clients.
    """
    each = _each("iid", examples, clients)
    order = torch.randperm(examples, generator=generator)[: each * clients]
    return list(order.split(each))


def shards(
    labels: Tensor, clients: int, generator: torch.Generator, *, classes_a_client: int = 2
) -> list[Tensor]:
    """Equal shares cut from the examples sorted by class (McMahan et al. 2017).

    labels (n,). Each client gets `classes_a_client` shards of consecutive examples, dealt at
    random: mostly that many classes, as in the papers' "data of two classes each". Within a class
    the order is random; what does not divide is left out at random.

    Raises:
        LeakbenchError: fewer examples than shards, or no shards.
    """
    count = clients * classes_a_client
    each = _each("shards", len(labels), count)
    mixed = torch.randperm(len(labels), generator=generator)[: each * count]
    by_class = mixed[labels[mixed].argsort(stable=True)]
    dealt = by_class.reshape(count, each)[torch.randperm(count, generator=generator)]
    return list(dealt.reshape(clients, each * classes_a_client))


def dirichlet(
    labels: Tensor,
    clients: int,
    generator: torch.Generator,
    *,
    concentration: float,
    least: int = 0,
) -> list[Tensor]:
    """Every class is split by its own Dirichlet(concentration) draw over clients (Hsu et al. 2019).

    labels (n,). Small concentrations give clients few classes and very unequal numbers of
    examples, some of them none. least: examples that every client must have; the splits are drawn
    again until they do (Li et al. 2022, arXiv 2102.02079, with 10), `TRIES` times at most.

    Raises:
        LeakbenchError: concentration is not positive or, over all clients, not finite; fewer
            examples than clients, or no clients; no draw gives every client `least` examples.
    """
    _each("dirichlet", len(labels), clients)
    if not 0 < concentration * clients < math.inf:
        raise LeakbenchError(
            f"partition 'dirichlet': concentration must be positive and finite, got {concentration}"
        )
    if least * clients > len(labels):
        raise LeakbenchError(
            f"partition 'dirichlet': {len(labels)} examples do not give {clients} clients {least} "
            f"each; allowed: up to {len(labels) // clients}"
        )
    # torch draws no Dirichlet from a generator of one's own.
    random = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
    sizes = torch.unique(labels, return_counts=True)
    fewest = -1
    for _ in range(TRIES):
        ends = [_ends(random, concentration, clients, size) for size in sizes[1].tolist()]
        held = torch.stack([end.diff(prepend=end.new_zeros(1)) for end in ends]).sum(dim=0)
        fewest = max(fewest, int(held.min()))
        if fewest >= least:
            break
    else:
        raise LeakbenchError(
            f"partition 'dirichlet': of {TRIES} draws with concentration {concentration:g} none "
            f"gives each of {clients} clients {least} examples, at best {fewest}; raise the "
            "concentration, or take fewer clients or smaller batches"
        )
    parts: list[list[Tensor]] = [[] for _ in range(clients)]
    for label, end in zip(sizes[0].tolist(), ends, strict=True):
        members = torch.nonzero(labels == label).flatten()
        members = members[torch.randperm(len(members), generator=generator)]
        for client, part in enumerate(members.tensor_split(end[:-1])):
            parts[client].append(part)
    return [torch.cat(part) for part in parts]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """N clients who each draw `each` of the examples for themselves, none of them twice.

    A client's draw is made when it is asked for and kept nowhere, so that memory does not grow
    with N. labels (n,); classes: None draws from all examples, a number from so many classes
    chosen at random, an equal part from each (one more from the first where it does not divide).
    What a class has too few for comes from further classes, as large a part of each at most.
    stream: the generator of a client.

    Raises:
        LeakbenchError: more examples or classes a client than there are, when it is made.
    """

    labels: Tensor
    clients: int
    each: int
    stream: Callable[[int], torch.Generator]
    classes: int | None = None
    _members: tuple[Tensor, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        members = tuple(
            torch.nonzero(self.labels == label).flatten() for label in self.labels.unique()
        )
        object.__setattr__(self, "_members", members)
        if self.classes is None:
            most = len(self.labels)
        elif self.classes > len(members):
            raise LeakbenchError(
                f"partition 'shards': {self.classes} classes a client of {len(members)}; "
                f"allowed: 1 to {len(members)}"
            )
        else:  # whichever classes it is, of them alone or with further ones
            sizes = [len(found) for found in members]
            part = self.each // self.classes
            most = max(min(sizes) * self.classes, sum(min(size, part) for size in sizes))
        if not 0 < self.each <= most:
            raise LeakbenchError(
                f"training: a client cannot draw {self.each} examples of {most}; "
                f"allowed for examples_a_client: 1 to {most}"
            )

    def __len__(self) -> int:
        return self.clients

    def __getitem__(self, client: int) -> Tensor:
        """Positions of his examples, (each,), in random order."""
        if not 0 <= client < self.clients:
            raise IndexError(client)
        stream = self.stream(client)
        if self.classes is None:
            return torch.randperm(len(self.labels), generator=stream)[: self.each]
        parts: list[Tensor] = []
        missing = self.each
        for number, label in enumerate(torch.randperm(len(self._members), generator=stream)):
            members = self._members[int(label)]
            wanted = self.each // self.classes + (number < self.each % self.classes)
            parts.append(
                members[torch.randperm(len(members), generator=stream)[: min(wanted, missing)]]
            )
            missing -= len(parts[-1])
            if not missing:
                break
        together = torch.cat(parts)
        return together[torch.randperm(len(together), generator=stream)]

    def most_holders(self) -> int:
        """Clients who hold the example that most of them hold; it takes all draws."""
        held = torch.zeros(len(self.labels), dtype=torch.int64)
        for client in range(self.clients):
            held[self[client]] += 1
        return int(held.max())


Shares = Sequence[Tensor] | Drawn
"""Positions of each client's examples."""


def fewest(shares: Shares) -> int:
    """Examples of the client who holds fewest."""
    return shares.each if isinstance(shares, Drawn) else min(map(len, shares))


def most_holders(shares: Shares) -> int:
    """Clients that hold the same example, at most."""
    return shares.most_holders() if isinstance(shares, Drawn) else 1


def _ends(random: np.random.Generator, concentration: float, clients: int, size: int) -> Tensor:
    """Where each client's share of `size` examples ends, (clients,); the last has the rest."""
    shares = torch.from_numpy(random.dirichlet([concentration] * clients))
    ends = (shares.cumsum(0) * size).round().long().clamp(max=size)
    ends[-1] = size
    return ends


def _each(kind: str, examples: int, parts: int) -> int:
    """Examples in each of equal parts."""
    if not 0 < parts <= examples:
        raise LeakbenchError(
            f"partition '{kind}': {examples} examples cannot be cut into {parts} parts; "
            f"allowed: 1 to {examples}"
        )
    return examples // parts
