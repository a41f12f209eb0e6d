"""Who holds which examples: the data of N clients, as index lists into one training set.

Every function takes its randomness from `generator` alone and returns N tensors of positions
(int64), sorted by client; no example belongs to two clients.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from leakbench.errors import LeakbenchError


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
    labels: Tensor, clients: int, generator: torch.Generator, *, concentration: float
) -> list[Tensor]:
    """Every class is split by its own Dirichlet(concentration) draw over clients (Hsu et al. 2019).

    labels (n,). Small concentrations give clients few classes and very unequal numbers of
    examples, some of them none.

    Raises:
        LeakbenchError: concentration is not positive or, over all clients, not finite; fewer
            examples than clients, or no clients.
    """
    _each("dirichlet", len(labels), clients)
    if not 0 < concentration * clients < math.inf:
        raise LeakbenchError(
            f"partition 'dirichlet': concentration must be positive and finite, got {concentration}"
        )
    # torch draws no Dirichlet from a generator of one's own.
    random = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
    held: list[list[Tensor]] = [[] for _ in range(clients)]
    for label in labels.unique().tolist():
        members = torch.nonzero(labels == label).flatten()
        members = members[torch.randperm(len(members), generator=generator)]
        shares = torch.from_numpy(random.dirichlet([concentration] * clients))
        ends = (shares.cumsum(0) * len(members)).round().long().clamp(max=len(members))
        for client, part in enumerate(members.tensor_split(ends[:-1])):
            held[client].append(part)
    return [torch.cat(parts) for parts in held]


def _each(kind: str, examples: int, parts: int) -> int:
    """Examples in each of equal parts."""
    if not 0 < parts <= examples:
        raise LeakbenchError(
            f"partition '{kind}': {examples} examples cannot be cut into {parts} parts; "
            f"allowed: 1 to {examples}"
        )
    return examples // parts
