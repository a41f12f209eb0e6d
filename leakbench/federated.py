"""Training round after round with a defense inside, federated or central, one code path.

Central training (DP-SGD) is one client that takes one local step a round. Clients of a round are
computed together, their weights stacked; which client takes part, which examples a step uses and
what noise is added come from streams named by round and client, so bounds on memory change results
by rounding only.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from leakbench.contracts import (
    Context,
    Defense,
    Model,
    NoiseSource,
    PublicGradients,
    Setting,
    State,
    Weights,
)
from leakbench.data import partitions
from leakbench.data.partitions import Shares
from leakbench.errors import LeakbenchError
from leakbench.preparation import Normaliser, Preparation
from leakbench.pytrees import joined
from leakbench.sampling import Step, partition, sample
from leakbench.training import Round, run_round
from leakbench.training_log import RoundLog, RoundObserver
from leakbench.training_schedule import Schedule


def setting_of(schedule: Schedule, shares: Shares) -> Setting:
    """What a defense's promise depends on."""
    return Setting(
        batch_size=schedule.batch_size,
        local_steps=schedule.local_steps,
        clients=schedule.clients_a_round,
        all_clients=schedule.clients,
        examples=partitions.fewest(shares),
        holders=partitions.most_holders(shares),
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
        rounds: that were run; fewer than the schedule's where it stopped at its target.
        reached: whether it did.
        log: what was seen in the rounds asked for.
        setting: of all planned rounds, for guarantees and events.
    """

    weights: Mapping[str, Tensor]
    points: Mapping[int, Point]
    curve: tuple[tuple[int, float], ...]
    seconds_per_iteration: float | None
    iterations: int
    rounds: int
    reached: bool
    log: tuple[RoundLog, ...]
    setting: Setting


def check(
    model: Model,
    defense: Defense,
    schedule: Schedule,
    shares: Shares,
    public: object | None,
) -> None:
    """What must hold before training starts; `shares` are the clients' examples.

    Raises:
        LeakbenchError: a client with fewer examples than a batch; subsets that do not divide it;
            a network that mixes examples where each needs its own gradient, or where batches are
            padded; public data missing.
    """
    size, fewest = schedule.batch_size, partitions.fewest(shares)
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
    public: PublicGradients | None = None,
    evaluate: Callable[[Weights], float] | None = None,
    evaluate_at: Collection[int] = (),
    keep: Collection[int] = (),
    log_at: Collection[int] = (),
    target: float | None = None,
    total: int | None = None,
    setting: Setting | None = None,
    normaliser: Normaliser | None = None,
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
        log_at: numbers of rounds, counted from 1, to keep a log of.
        target: training ends after the first round of `evaluate_at` with at least this said of it.
        total: planned rounds, for decays, of which `schedule.rounds` are run; None: these.
        setting: of the planned training, where the caller has it; with clients who share examples
            it takes time to make.
        normaliser: of inputs, where the schedule normalises.
        chunk_size: per-example gradients at a time; bounds the memory.

    Raises:
        LeakbenchError: see `check` and `training_schedule.Schedule`.
    """
    shares = partition(labels, schedule, seed, axes)
    check(model, defense, schedule, shares, public)
    like = next(iter(weights.values()))
    state, velocity = defense.init(weights), None
    points: dict[int, Point] = {}
    curve: list[tuple[int, float]] = []
    logs: list[RoundLog] = []
    spent: list[float] = []
    planned, iterations, done, reached = total or schedule.rounds, 0, 0, False

    def look() -> bool:
        """Whether the target is reached."""
        if done in keep:
            points[done] = Point(rounds=done, weights=weights, state=state)
        if evaluate is None or done not in evaluate_at:
            return False
        curve.append((done, evaluate(weights)))
        return target is not None and curve[-1][1] >= target

    with torch.no_grad():
        reached = look()
        while done < schedule.rounds and not reached:
            begun = time.perf_counter()
            clients, steps = sample(shares, schedule, seed, axes, done)
            if clients:  # Poisson sampling may pick nobody: then nothing is learnt
                rate = schedule.learning_rate_at(done, planned)
                context = Context(
                    round=done, total=planned, batch_size=schedule.batch_size,
                    clients=clients, noise=noise, public=public, local_steps=schedule.local_steps,
                    learning_rate=rate,
                )  # fmt: skip
                state = defense.on_round(weights, state, context)
                prepare = Preparation(
                    inputs=inputs, labels=labels, like=like, normaliser=normaliser,
                    augment=schedule.augment, seed=seed, axes=(*axes, done),
                )  # fmt: skip
                observer = RoundObserver() if done + 1 in log_at else None
                ended = _run_groups(
                    model, weights, steps, prepare, defense, state, context,
                    _factors(clients, shares, schedule), _together(weights, schedule),
                    learning_rate=rate, chunk_size=chunk_size, watch=observer,
                    momentum=schedule.momentum, velocity=velocity,
                )  # fmt: skip
                if observer is not None:
                    loss = observer.loss(model, weights, prepare.batch(steps[0], clients, 0))
                    scales = defense.scales(ended.state, context)
                    logs.append(observer.log(done + 1, loss, scales))
                assert ended.weights is not None
                weights, state = ended.weights, defense.merge(ended.state)
                velocity = ended.velocity if schedule.clients == 1 else None
                iterations += schedule.local_steps
                spent.append(time.perf_counter() - begun)
            done += 1
            reached = look()
    return Trained(
        weights=weights,
        points=points,
        curve=tuple(curve),
        seconds_per_iteration=(
            statistics.median(spent[1:]) / schedule.local_steps if len(spent) > 1 else None
        ),
        iterations=iterations,
        rounds=done,
        reached=reached,
        log=tuple(logs),
        setting=setting or setting_of(dataclasses.replace(schedule, rounds=planned), shares),
    )


GROUP_BYTES = 2**23
"""Bytes of the gradients of a local step of clients that are computed together on a CPU: they go
through clipping, noise and mean without leaving its caches."""

DEVICE_GROUP_BYTES = 2**28
"""The same on other devices, which are fast where there is much to do at once."""


def _together(weights: Weights, schedule: Schedule) -> int:
    """Clients that are computed together: their number bounds the memory, whatever Kt is."""
    size = sum(value.numel() * value.element_size() for value in weights.values())
    on_cpu = all(value.is_cpu for value in weights.values())
    most = GROUP_BYTES if on_cpu else DEVICE_GROUP_BYTES
    return max(most // (size * schedule.batch_size), 1)


def _run_groups(
    model: Model,
    weights: Weights,
    steps: Sequence[Step],
    prepare: Preparation,
    defense: Defense,
    state: State,
    context: Context,
    factors: Tensor | None,
    together: int,
    **options: Any,
) -> Round:
    """`run_round` of a few of the clients at a time, and what comes of all of them."""
    clients = context.clients
    if factors is None and len(clients) > together:
        factors = torch.full((len(clients),), 1 / len(clients), dtype=torch.float64)
    rounds = []
    change: dict[str, Tensor] = {}
    for begun in range(0, len(clients), together):
        some = slice(begun, begun + together)
        here = dataclasses.replace(context, clients=clients[some])
        batches = (
            prepare.batch(step.of(some), here.clients, number) for number, step in enumerate(steps)
        )
        ended = run_round(
            model, weights, batches, defense, state, here,
            shares=None if factors is None else factors[some], **options,
        )  # fmt: skip
        assert ended.change is not None
        change = {k: change[k] + v if change else v for k, v in ended.change.items()}
        rounds.append(ended)
    if len(rounds) == 1:
        return rounds[0]
    return Round(
        tapped=None,
        weights={k: weights[k] + v for k, v in change.items()},
        state=joined([each.state for each in rounds]) if _merges(defense) else rounds[-1].state,
        change=change,
    )


def _merges(defense: Defense) -> bool:
    """Whether its state has a client axis after a round."""
    return type(defense).merge is not Defense.merge


def _factors(clients: Sequence[int], shares: Shares, schedule: Schedule) -> Tensor | None:
    """Factors of the updates in the aggregate; None where all are the same and add to 1."""
    if schedule.aggregation == "fed_averaging":
        held = torch.tensor([len(shares[client]) for client in clients], dtype=torch.float64)
        return held / held.sum()
    less = 1 if schedule.divisor == "clients_minus_one" else 0
    if less or (schedule.sampling == "poisson" and schedule.clients > 1):
        divisor = schedule.clients_a_round - less
        return torch.full((len(clients),), 1 / divisor, dtype=torch.float64)
    return None
