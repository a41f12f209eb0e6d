"""Who takes part in a round of training, and with which of his examples."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakbench.data import partitions
from leakbench.data.partitions import Shares
from leakbench.streams import generator
from leakbench.training_schedule import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Examples of one local step: positions (clients, b) into the training set, mask as `Batch`."""

    positions: Tensor
    mask: Tensor | None = None
    expected: int | None = None

    def of(self, clients: slice) -> Step:
        """That of some of the clients."""
        mask = None if self.mask is None else self.mask[clients]
        return Step(positions=self.positions[clients], mask=mask, expected=self.expected)


def partition(labels: Tensor, schedule: Schedule, seed: int, axes: tuple[str | int, ...]) -> Shares:
    """Positions of every client's examples in a training with this seed and these axes; on the CPU.

    Raises:
        LeakbenchError: see `data.partitions`; a Dirichlet draw must give every client a batch.
    """
    labels = labels.cpu()
    if schedule.overlap:
        assert schedule.examples_a_client is not None
        return partitions.Drawn(
            labels=labels,
            clients=schedule.clients,
            each=schedule.examples_a_client,
            classes=schedule.classes_a_client if schedule.partition == "shards" else None,
            stream=lambda client: generator(seed, "partition", *axes, client),
        )
    stream = generator(seed, "partition", *axes)
    if schedule.clients == 1:
        shares = [torch.arange(len(labels))]
    elif schedule.partition == "iid":
        shares = partitions.iid(len(labels), schedule.clients, stream)
    elif schedule.partition == "shards":
        shares = partitions.shards(
            labels, schedule.clients, stream, classes_a_client=schedule.classes_a_client
        )
    else:
        shares = partitions.dirichlet(
            labels, schedule.clients, stream,
            concentration=schedule.concentration, least=schedule.batch_size,
        )  # fmt: skip
    return [share[: schedule.examples_a_client] for share in shares]


def sample(
    shares: Shares,
    schedule: Schedule,
    seed: int,
    axes: tuple[str | int, ...],
    number: int,
) -> tuple[tuple[int, ...], list[Step]]:
    """Clients of round `number` and the examples of their local steps.

    What a client does in a round depends on neither the other clients nor earlier rounds.
    """
    if schedule.clients == 1:
        stream = generator(seed, "examples", *axes, number, 0)
        if schedule.sampling == "poisson":
            poisson = [_poisson(shares[0], schedule, stream) for _ in range(schedule.local_steps)]
            return (0,), poisson
        clients: tuple[int, ...] = (0,)
    else:
        stream = generator(seed, "clients", *axes, number)
        if schedule.sampling == "poisson":
            rate = schedule.clients_a_round / schedule.clients
            coins = torch.rand(schedule.clients, generator=stream, dtype=torch.float64) < rate
            clients = tuple(torch.nonzero(coins).flatten().tolist())
        else:
            drawn = torch.randperm(schedule.clients, generator=stream)[: schedule.clients_a_round]
            clients = tuple(drawn.sort().values.tolist())
    if not clients:
        return (), []
    size = schedule.batch_size
    taken = torch.stack(
        [
            _in_turn(
                shares[client], schedule.local_steps * size, size,
                generator(seed, "examples", *axes, number, client),
            )
            for client in clients
        ]
    )  # fmt: skip
    return clients, [Step(positions=part) for part in taken.split(size, dim=1)]


def _poisson(share: Tensor, schedule: Schedule, stream: torch.Generator) -> Step:
    """Every example by its own coin; padded to a multiple of 8, at least 8."""
    rate = min(schedule.batch_size / len(share), 1.0)
    found = share[torch.rand(len(share), generator=stream, dtype=torch.float64) < rate]
    size = max(len(found) + -len(found) % 8, 8)
    positions = torch.cat([found, share[:1].expand(size - len(found))])
    mask = torch.arange(size) < len(found)
    return Step(positions=positions[None], mask=mask[None], expected=schedule.batch_size)


def _in_turn(share: Tensor, wanted: int, size: int, stream: torch.Generator) -> Tensor:
    """`wanted` examples in random order, every one before any comes again; no batch of `size` has
    one twice, which would double what clipping bounds."""
    orders: list[Tensor] = []
    for begun in range(0, wanted, len(share)):
        order = torch.randperm(len(share), generator=stream)
        if left := begun % size:  # examples of the batch that the last pass did not fill come late
            late = torch.isin(order, orders[-1][-left:])
            order = torch.cat([order[~late], order[late]])
        orders.append(order)
    return share[torch.cat(orders)[:wanted]]
