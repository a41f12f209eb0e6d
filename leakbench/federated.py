"""Training round after round with a defense inside, federated or central, one code path.

Central training (DP-SGD) is one client that takes one local step a round. Clients of a round are
computed together, their weights stacked; which client takes part, which examples a step uses and
what noise is added come from streams named by round and client, so bounds on memory change results
by rounding only.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leakbench.contracts import (
    Context,
    Defense,
    Gradients,
    Model,
    NoiseSource,
    Setting,
    State,
    Weights,
)
from leakbench.data import partitions
from leakbench.data.datasets import as_unit
from leakbench.errors import LeakbenchError
from leakbench.spec import Schedule
from leakbench.streams import generator
from leakbench.training import Batch, run_round


def setting_of(schedule: Schedule, examples: int) -> Setting:
    """What a defense's promise depends on; `examples`: of the client who holds fewest."""
    return Setting(
        batch_size=schedule.batch_size,
        local_steps=schedule.local_steps,
        clients=schedule.clients_a_round,
        all_clients=schedule.clients,
        examples=examples,
        rounds=schedule.rounds,
        sampling=schedule.sampling,
        weighted=schedule.aggregation == "fed_averaging" and schedule.partition == "dirichlet",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """After `rounds` rounds: the weights, and the defense's state the next round starts from."""

    rounds: int
    weights: Mapping[str, Tensor]
    state: State


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A finished training.

    Attributes:
        weights: after the last round.
        points: those asked for, by the number of rounds done before.
        curve: (rounds done, what `evaluate` said) in order.
        seconds_per_iteration: wall time of a local step of all clients of a round together, hooks
            and aggregation included, evaluation not: the median over all rounds but the first,
            in which a process does what it does once; None after a single round.
        iterations: local steps that were run.
        setting: for guarantees and events.
    """

    weights: Mapping[str, Tensor]
    points: Mapping[int, Point]
    curve: tuple[tuple[int, float], ...]
    seconds_per_iteration: float | None
    iterations: int
    setting: Setting


def check(
    model: Model,
    defense: Defense,
    schedule: Schedule,
    shares: Sequence[Tensor],
    public: object | None,
) -> None:
    """What must hold before training starts; `shares` are the clients' examples.

    Raises:
        LeakbenchError: a client with fewer examples than a batch; subsets that do not divide it;
            a network that mixes examples where each needs its own gradient, or where batches are
            padded; public data missing.
    """
    size, fewest = schedule.batch_size, min(map(len, shares))
    if fewest < size:
        allowed = f"batch_size up to {fewest}" if fewest else "fewer clients, or a partition by iid"
        raise LeakbenchError(
            f"training: a client holds {fewest} examples, less than a batch of {size}; "
            f"allowed: {allowed}"
        )
    poisson = schedule.sampling == "poisson" and schedule.clients == 1
    row = defense.row
    if isinstance(row, int):
        if row < 1 or size % row:
            raise LeakbenchError(
                f"training: a batch of {size} examples has no subsets of {row}; "
                "allowed: divisors of batch_size"
            )
        # A number that happens to be B does not grow with the batch.
        if poisson and row > 1:
            raise LeakbenchError(
                f"defense '{defense.name}': subsets of {row} need batches of one size; "
                "allowed sampling: fixed_size"
            )
    if model.mixes_examples:
        if defense.row_size(size) == 1:
            raise LeakbenchError(
                f"defense '{defense.name}': clips single examples, which batch normalisation "
                "mixes; use GroupNorm, or a defense that clips batches"
            )
        if defense.needs_public:
            raise LeakbenchError(
                f"defense '{defense.name}': needs gradients of single public examples, which batch "
                "normalisation mixes; use GroupNorm, or a defense without"
            )
        if poisson:
            raise LeakbenchError(
                "training: batch normalisation would mix in the padding of batches of unequal "
                "size; use GroupNorm, or sampling fixed_size"
            )
    if defense.needs_public and public is None:
        raise LeakbenchError(
            f"defense '{defense.name}': needs public examples, none are given; "
            "train with `public`, or choose a defense without"
        )


def train(
    model: Model,
    weights: Weights,
    inputs: Tensor,
    labels: Tensor,
    defense: Defense,
    schedule: Schedule,
    *,
    seed: int,
    noise: NoiseSource,
    axes: tuple[str | int, ...] = (),
    public: Callable[[Weights], Gradients] | None = None,
    evaluate: Callable[[Weights], float] | None = None,
    evaluate_at: Collection[int] = (),
    keep: Collection[int] = (),
    total: int | None = None,
    chunk_size: int | None = 256,
) -> Trained:
    """Train `weights` for `schedule.rounds` rounds on inputs (n, *input shape), labels (n,).

    Args:
        inputs: uint8 images or floating point; moved to the weights' type and device a batch at a
            time.
        seed, axes: name the streams of partition and sampling. They do not depend on the defense,
            so that methods are compared on the same batches.
        public: see `Context.public`.
        evaluate: called with the weights after the rounds in `evaluate_at` (0: before the first).
        keep: numbers of rounds after which to keep a `Point`.
        total: planned rounds, for decays, of which `schedule.rounds` are run; None: these.
        chunk_size: per-example gradients at a time; bounds the memory.

    Raises:
        LeakbenchError: see `check` and `spec.Schedule`.
    """
    shares = partition(labels, schedule, seed, axes)
    check(model, defense, schedule, shares, public)
    like = next(iter(weights.values()))
    state = defense.init(weights)
    points: dict[int, Point] = {}
    curve: list[tuple[int, float]] = []
    spent: list[float] = []
    iterations = 0

    def look(done: int) -> None:
        if done in keep:
            points[done] = Point(rounds=done, weights=weights, state=state)
        if evaluate is not None and done in evaluate_at:
            curve.append((done, evaluate(weights)))

    with torch.no_grad():
        look(0)
        for number in range(schedule.rounds):
            begun = time.perf_counter()
            clients, steps = sample(shares, schedule, seed, axes, number)
            if clients:  # Poisson sampling may pick nobody: then nothing is learnt
                context = Context(
                    round=number, total=total or schedule.rounds, batch_size=schedule.batch_size,
                    clients=clients, noise=noise, public=public, local_steps=schedule.local_steps,
                    learning_rate=schedule.learning_rate,
                )  # fmt: skip
                state = defense.on_round(weights, state, context)
                batches = [_batch(step, inputs, labels, like) for step in steps]

                done = run_round(
                    model, weights, batches, defense, state, context,
                    learning_rate=schedule.learning_rate, chunk_size=chunk_size,
                    shares=_factors(clients, shares, schedule),
                )  # fmt: skip
                assert done.weights is not None
                weights, state = done.weights, defense.merge(done.state)
                iterations += schedule.local_steps
                spent.append(time.perf_counter() - begun)
            look(number + 1)
    return Trained(
        weights=weights,
        points=points,
        curve=tuple(curve),
        seconds_per_iteration=(
            statistics.median(spent[1:]) / schedule.local_steps if len(spent) > 1 else None
        ),
        iterations=iterations,
        setting=setting_of(schedule, min(map(len, shares))),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Examples of one local step: positions (clients, b) into the training set, mask as `Batch`."""

    positions: Tensor
    mask: Tensor | None = None
    expected: int | None = None


def partition(
    labels: Tensor, schedule: Schedule, seed: int, axes: tuple[str | int, ...]
) -> list[Tensor]:
    """Positions of every client's examples in a training with this seed and these axes; on the CPU.

    Raises:
        LeakbenchError: see `data.partitions`; a Dirichlet draw must give every client a batch.
    """
    labels = labels.cpu()
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
    shares: Sequence[Tensor],
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


def _batch(step: Step, inputs: Tensor, labels: Tensor, like: Tensor) -> Batch:
    mask = None if step.mask is None else step.mask.to(like.device)
    return Batch(
        inputs=as_unit(inputs[step.positions.to(inputs.device)]).to(like),
        labels=labels[step.positions.to(labels.device)].to(like.device),
        mask=mask,
        expected=step.expected,
    )


def _factors(clients: Sequence[int], shares: Sequence[Tensor], schedule: Schedule) -> Tensor | None:
    """Factors of the updates in the aggregate; None where all are the same and add to 1."""
    if schedule.aggregation == "fed_averaging":
        held = torch.tensor([len(shares[client]) for client in clients], dtype=torch.float64)
        return held / held.sum()
    if schedule.sampling == "poisson" and schedule.clients > 1:
        return torch.full((len(clients),), 1 / schedule.clients_a_round, dtype=torch.float64)
    return None
