"""The training path with a defense inside; leaks are captured here.

Central training is the same path with one client and one local step a round. `simulation` runs the
path on an attacker's dummy inputs, `federated` runs it round after round.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from leakbench.contracts import (
    Context,
    Defense,
    Gradients,
    LeakPoint,
    Model,
    PublicGradients,
    State,
    Weights,
    concatenate,
)
from leakbench.gradients import count_subsets, of_batch, of_subsets, per_example
from leakbench.streaming import example_bytes, in_pieces
from leakbench.weights import computed_alone

AT_ONCE = 2**30
"""Bytes of the gradients of single examples that are held at once, where a defense allows it to
take a batch in pieces (`Defense.rowwise`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The examples of one local step of all clients.

    inputs (clients, B, *input shape), labels (clients, B) or (clients, B, classes) soft; mask
    (clients, B) False where a client has fewer examples; None when all are full. expected: number
    that sums of gradients are divided by, under Poisson sampling; None: those present.
    """

    inputs: Tensor
    labels: Tensor
    mask: Tensor | None = None
    expected: int | None = None


class Watch(Protocol):
    """Who looks on at a round for the log; what he sees must not be changed."""

    def gradients(self, found: Gradients) -> None:
        """Before any hook, in the first local step: of examples where the defense sees them, axes
        ("client", "example"), else of batches, axes ("client",)."""
        ...

    def updates(self, raw: Gradients, released: Gradients) -> None:
        """dW of every client before `on_update` and after `on_receipt`, axes ("client",)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """After one round: the gradient at the tapped leak point and what each side then holds.

    weights: the aggregate of all clients, None when the path stopped at the tap; change: what was
        added to the weights before, likewise.
    state: the defense's state after the hooks that ran.
    velocity: of every client's momentum after his last step; None without momentum.
    """

    tapped: Gradients | None
    weights: Weights | None
    state: State
    change: Mapping[str, Tensor] | None = None
    velocity: Mapping[str, Tensor] | None = None


def run_round(
    model: Model,
    weights: Weights,
    batches: Iterable[Batch],
    defense: Defense,
    state: State,
    context: Context,
    *,
    learning_rate: float = 0.1,
    point: LeakPoint | None = None,
    stop_at_tap: bool = False,
    chunk_size: int | None = None,
    shares: Tensor | None = None,
    by_examples: bool = False,
    first: Gradients | None = None,
    momentum: float = 0.0,
    velocity: Mapping[str, Tensor] | None = None,
    watch: Watch | None = None,
) -> Round:
    """One round: an SGD step of every client for each of `batches`, then send, receive, aggregate.

    All clients start from the same `weights` (no client axis); after the first local step each
    has its own.

    Args:
        point: where to tap; None: nowhere.
        stop_at_tap: end there, weights None: a replay or a capture needs no more.
        chunk_size: examples that are computed together; it bounds memory, and changes no result.
        shares: (clients,) factors of the clients' updates in the aggregate; None: all the same,
            adding to 1.
        by_examples: gradients of batches are means of those of examples, whatever `Defense.row`
            is: slower, but a client's bits then depend on no other client (where weights are
            shared). A large network (`weights.computed_alone`) does without: there every client is
            computed alone.
        first: per-example gradients of the first local step, where the caller has them already.
        momentum: of the local steps; velocity: where it stood before them, None at rest.
        watch: who looks on.
    """
    local, stacked, tapped = weights, False, None
    large = computed_alone(weights)
    moved: dict[str, Tensor] = {}
    for iteration, batch in enumerate(batches):
        here = replace(context, iteration=context.iteration + iteration)
        at_tap = point is not None and point.type == 2 and point.iteration == here.iteration
        at_example = at_tap and point is not None and point.view == "example"
        gradients, shown, state = _mean_gradients(
            model, local, batch, defense, state, here,
            stacked=stacked, at_example=at_example, chunk_size=chunk_size,
            by_examples=by_examples and not large and not model.mixes_examples,
            single=None if stacked else first, watch=None if stacked else watch,
        )  # fmt: skip
        if at_example:
            tapped = shown
            if stop_at_tap:
                return Round(tapped=tapped, weights=None, state=state)
        gradients, state = defense.on_batch(gradients, state, here)
        if at_tap and not at_example:
            tapped = gradients
            if stop_at_tap:
                return Round(tapped=tapped, weights=None, state=state)
        direction = gradients.tensors
        if momentum:
            before = velocity or {k: torch.zeros_like(v) for k, v in direction.items()}
            velocity = {k: momentum * before[k] + v for k, v in direction.items()}
            direction = velocity
        # Summed up by itself: (w + dW) - w would lose the small digits of dW.
        steps = {k: -learning_rate * v for k, v in direction.items()}
        moved = {k: moved[k] + v for k, v in steps.items()} if stacked else steps
        local = {k: weights[k] + v for k, v in moved.items()}
        stacked = True
    update = bare = Gradients(moved, ("client",))
    update, state = defense.on_update(update, state, context)
    if point is not None and (point.type == 1 or (point.type == 0 and point.view == "raw")):
        tapped = update  # what a client sends is what the server receives
        if stop_at_tap:
            return Round(tapped=tapped, weights=None, state=state)
    update, state = defense.on_receipt(update, state, context)
    if point is not None and point.type == 0 and point.view != "raw":
        tapped = update
    if stop_at_tap:
        return Round(tapped=tapped, weights=None, state=state)
    if watch is not None:
        watch.updates(bare, update)
    change = _aggregate(update, shares)
    aggregated = {k: weights[k] + v for k, v in change.items()}
    return Round(tapped=tapped, weights=aggregated, state=state, change=change, velocity=velocity)


def _mean_gradients(
    model: Model,
    weights: Weights,
    batch: Batch,
    defense: Defense,
    state: State,
    context: Context,
    *,
    stacked: bool,
    at_example: bool,
    chunk_size: int | None,
    by_examples: bool,
    single: Gradients | None,
    watch: Watch | None,
) -> tuple[Gradients, Gradients | None, State]:
    """Every client's gradient before `on_batch`, and what a type-2 tap sees of its examples."""
    size = batch.inputs.shape[1]
    row = defense.row_size(size)
    if row == 1 and single is None and not at_example:
        pieces = in_pieces(
            model, weights, batch, defense, state, context,
            stacked=stacked, chunk_size=chunk_size, most=AT_ONCE,
        )  # fmt: skip
        if pieces is not None:
            seen = None if watch is None else watch.gradients
            return _expected(pieces.mean(seen), batch), None, state
    if single is None and (by_examples or at_example or row == 1):
        single = per_example(
            model, weights, batch.inputs, batch.labels,
            stacked=stacked, mask=batch.mask, chunk_size=chunk_size,
        )  # fmt: skip
    shown = single  # where nothing is done to single gradients, the tap sees them as they are
    if row == 0:
        mean = (
            of_batch(model, weights, batch.inputs, batch.labels, stacked=stacked, mask=batch.mask)
            if single is None
            else single.mean("example")
        )
        if watch is not None:
            watch.gradients(mean)
    else:
        if single is None:
            rows = of_subsets(
                model, weights, batch.inputs, batch.labels, row, stacked=stacked, mask=batch.mask
            )
        else:
            rows = single if row == 1 else _subset_means(single, row)
        if watch is not None:
            watch.gradients(rows)
        rows, state = defense.on_examples(rows, state, context)
        shown = rows if row == 1 else shown
        mean = rows.mean("example")
    return _expected(mean, batch), shown, state


def _expected(mean: Gradients, batch: Batch) -> Gradients:
    """The mean over those present as the sum over `batch.expected`, where that is given."""
    if batch.expected is None:
        return mean
    like = next(iter(mean.tensors.values()))
    size = batch.inputs.shape[1]
    found = torch.full((1,), size) if batch.mask is None else batch.mask.sum(dim=1)
    return mean.scale((found.to(like) / batch.expected).expand(len(like)))


def _subset_means(gradients: Gradients, size: int) -> Gradients:
    """Means of every `size` consecutive examples, as `gradients.of_subsets` gives them."""
    clients, subsets = gradients.leading[0], count_subsets(gradients.leading[1], size)
    mask = gradients.mask
    cut = Gradients(
        {k: v.reshape(clients * subsets, size, *v.shape[2:]) for k, v in gradients.tensors.items()},
        ("client", "example"),
        None if mask is None else mask.reshape(clients * subsets, size),
    ).mean("example")
    return Gradients(
        {k: v.unflatten(0, (clients, subsets)) for k, v in cut.tensors.items()},
        ("client", "example"),
        None if cut.mask is None else cut.mask.unflatten(0, (clients, subsets)),
    )


def _aggregate(update: Gradients, shares: Tensor | None) -> dict[str, Tensor]:
    if shares is None:
        return dict(update.mean("client").tensors)
    scaled = update.scale(shares.to(next(iter(update.tensors.values()))))
    return {k: v.sum(dim=0) for k, v in scaled.tensors.items()}


def public_gradients(model: Model, inputs: Tensor, labels: Tensor) -> PublicGradients:
    """`Context.public` of these public examples (m, *input shape) with labels (m,)."""

    def gradients(weights: Weights, size: int) -> Iterator[Gradients]:
        size = min(size, len(inputs))
        at_once = max(AT_ONCE // example_bytes(weights, stacked=False), 1) * size
        usable = len(inputs) // size * size
        for start in range(0, usable, at_once):
            some = slice(start, min(start + at_once, usable))
            given = (model, weights, inputs[None, some], labels[None, some])
            if size == 1:
                yield per_example(*given, chunk_size=256)
            else:
                yield of_subsets(*given, size)

    return gradients


def capture(
    model: Model,
    weights: Weights,
    batches: Sequence[Batch],
    defense: Defense,
    context: Context,
    point: LeakPoint,
    victims: Tensor | None = None,
    *,
    state: State = None,
    learning_rate: float = 0.1,
    chunk_size: int | None = None,
) -> Gradients:
    """Run the real step(s) and return what leaks at `point`, axes ("client",): one row a victim.

    victims: for the example view, (v, 2) pairs (client, place in his batch); else every client
    is a victim. Types 0 and 1 come in the units of a gradient (see `in_gradient_units`). state is
    the one of the round: after `on_round`.
    """
    with torch.no_grad():
        if victims is not None and _apart(weights, batches[0], defense):
            return _victims_apart(model, weights, batches[0], defense, state, context, victims)
        tapped = run_round(
            model, weights, batches, defense, state, context,
            learning_rate=learning_rate, point=point, stop_at_tap=True, chunk_size=chunk_size,
            by_examples=True,
        ).tapped  # fmt: skip
    assert tapped is not None
    if "example" not in tapped.axes:
        return in_gradient_units(tapped, point, len(batches), learning_rate)
    assert victims is not None
    rows = victims.unbind(dim=1)
    return Gradients({k: v[rows] for k, v in tapped.tensors.items()}, ("client",))


def _apart(weights: Weights, batch: Batch, defense: Defense) -> bool:
    """Whether the batch's other examples decide nothing, and would need too much memory."""
    clients, size = batch.inputs.shape[:2]
    untouched = defense.row_size(size) != 1
    many = example_bytes(weights, stacked=False) * clients * size > AT_ONCE
    return many and (untouched or defense.rowwise)


def _victims_apart(
    model: Model,
    weights: Weights,
    batch: Batch,
    defense: Defense,
    state: State,
    context: Context,
    victims: Tensor,
) -> Gradients:
    """What the example tap sees of the victims, computed without the others of their batches."""
    touched = defense.row_size(batch.inputs.shape[1]) == 1
    shown = []
    for client, place in victims.tolist():
        inputs, labels = (v[client, place][None, None] for v in (batch.inputs, batch.labels))
        one = per_example(model, weights, inputs, labels)
        if touched:
            here = replace(context, clients=(context.clients[client],))
            one, _ = defense.on_examples(one, state, here)
        shown.append(one.mean("example"))
    return concatenate(shown)


def in_gradient_units(
    tapped: Gradients, point: LeakPoint, local_steps: int, learning_rate: float
) -> Gradients:
    """An update dW (types 0 and 1) as -dW / (L * learning rate), a type-2 gradient as it is.

    With one local step that is the gradient behind the update; with more, the mean of theirs.
    """
    if point.type == 2:
        return tapped
    unit = -1.0 / (local_steps * learning_rate)
    return tapped.map(lambda _, value: value * unit)
