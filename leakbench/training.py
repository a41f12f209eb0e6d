"""The training path with a defense inside; leaks are captured here, and replayed here.

Central training is the same path with one client and one local step. The attacker's simulation of
the path (`simulator`) runs the very same function on his dummy inputs, with the victims on the
client axis and a context without noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakbench.contracts import (
    Context,
    Defense,
    Gradients,
    LeakPoint,
    LocalSteps,
    Model,
    Observation,
    Replay,
    Simulate,
    State,
    Weights,
    concatenate,
)
from leakbench.gradients import of_batch, per_example
from leakbench.optim import PAD, with_copies


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """inputs (clients, B, *input shape), labels (clients, B) or (clients, B, classes) soft;
    mask (clients, B) False where a client has fewer examples; None when all are full."""

    inputs: Tensor
    labels: Tensor
    mask: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """After one round: the gradient at the tapped leak point and what each side then holds.

    weights: the aggregate of all clients, None when the path stopped at the tap.
    state: the defense's state after the hooks that ran.
    """

    tapped: Gradients | None
    weights: Weights | None
    state: State


def run_round(
    model: Model,
    weights: Weights,
    batches: Sequence[Batch],
    defense: Defense,
    state: State,
    context: Context,
    *,
    learning_rate: float = 0.1,
    point: LeakPoint | None = None,
    stop_at_tap: bool = False,
    chunk_size: int | None = None,
) -> Round:
    """One round: len(batches) local SGD steps of every client, then send, receive, aggregate.

    All clients start from the same `weights` (no client axis); after the first local step each
    has its own. point: where to tap. stop_at_tap: end there, weights None (a replay or a capture
    needs no more). chunk_size bounds the memory of per-example gradients, not the result.
    """
    local, stacked, tapped = weights, False, None
    moved: dict[str, Tensor] = {}
    for iteration, batch in enumerate(batches):
        here = replace(context, iteration=context.iteration + iteration)
        at_tap = point is not None and point.type == 2 and point.iteration == here.iteration
        wants_examples = at_tap and point is not None and point.view == "example"
        if defense.granularity == "example" or wants_examples:
            gradients = per_example(
                model, local, batch.inputs, batch.labels,
                stacked=stacked, mask=batch.mask, chunk_size=chunk_size,
            )  # fmt: skip
            gradients, state = defense.on_examples(gradients, state, here)
            if wants_examples:
                tapped = gradients
                if stop_at_tap:
                    return Round(tapped=tapped, weights=None, state=state)
            gradients = gradients.mean("example")
        else:
            gradients = of_batch(
                model, local, batch.inputs, batch.labels, stacked=stacked, mask=batch.mask
            )
        gradients, state = defense.on_batch(gradients, state, here)
        if at_tap and not wants_examples:
            tapped = gradients
            if stop_at_tap:
                return Round(tapped=tapped, weights=None, state=state)
        # Summed up by itself: (w + dW) - w would lose the small digits of dW.
        steps = {k: -learning_rate * v for k, v in gradients.tensors.items()}
        moved = {k: moved[k] + v for k, v in steps.items()} if stacked else steps
        local = {k: weights[k] + v for k, v in moved.items()}
        stacked = True
    update = Gradients(moved, ("client",))
    update, state = defense.on_update(update, state, context)
    if point is not None and point.type == 1:
        tapped = update
        if stop_at_tap:
            return Round(tapped=tapped, weights=None, state=state)
    update, state = defense.on_receipt(update, state, context)
    if point is not None and point.type == 0:
        tapped = update
    aggregate = update.mean("client")
    aggregated = {k: weights[k] + aggregate.tensors[k] for k in weights}
    return Round(tapped=tapped, weights=aggregated, state=state)


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
    is a victim. Types 0 and 1 come in the units of a gradient (see `in_gradient_units`).
    """
    with torch.no_grad():
        tapped = run_round(
            model, weights, batches, defense, state, context,
            learning_rate=learning_rate, point=point, stop_at_tap=True, chunk_size=chunk_size,
        ).tapped  # fmt: skip
    assert tapped is not None
    if "example" not in tapped.axes:
        return in_gradient_units(tapped, point, len(batches), learning_rate)
    assert victims is not None
    rows = victims.unbind(dim=1)
    return Gradients({k: v[rows] for k, v in tapped.tensors.items()}, ("client",))


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


def simulator(
    model: Model,
    observations: Sequence[Observation],
    replays: Sequence[Replay],
    replay_of: Tensor,
    point: LeakPoint,
    *,
    local_steps: int = 1,
    learning_rate: float = 0.1,
) -> Simulate:
    """The attacker's own run of the path, for victims of several defenses in one batch.

    replays: the defenses to run without noise; a naive attacker's is the base class `Defense`,
    which does nothing. replay_of: (n,) which of them each victim's gradient went through.
    local_steps, learning_rate: the client's, behind types 0 and 1.
    """
    taken = local_steps

    def simulate(
        inputs: Tensor,
        labels: Tensor,
        rows: Tensor,
        observation: int = 0,
        *,
        local_steps: LocalSteps = "unroll",
    ) -> Gradients:
        seen, which = observations[observation], replay_of[rows]
        steps, rate = taken, learning_rate
        if local_steps == "average":  # one step on all examples, as long as all steps together
            steps, rate = 1, taken * learning_rate
        example_view = point.type == 2 and point.view == "example"
        if example_view:  # the costly part once for all defenses, then each one's hooks
            gradients = per_example(model, seen.weights, inputs, labels)
        numbers = which.unique().tolist()
        # The usual case, all rows through one replay: nothing to pick out and to put back.
        alone = len(numbers) == 1 and len(rows) % PAD == 0
        order: list[Tensor] = []
        parts: list[Gradients] = []
        for number in numbers:
            chosen = torch.nonzero(which == number).flatten()
            own = slice(len(chosen))
            order.append(chosen)
            chosen = with_copies(chosen)  # no hook's result depends on how many there are
            replay = replays[number]
            context = replace(
                replay.context,
                noise=None,
                batch_size=inputs.shape[1] // steps,
                clients=tuple(range(len(chosen))),
                observation=seen.of(rows[chosen]),
            )
            if example_view:
                raw = gradients if alone else gradients.select(chosen)
                shown, _ = replay.defense.on_examples(raw, replay.state, context)
                shown = shown.mean("example")
            else:
                batches = [
                    Batch(inputs=some, labels=theirs)
                    for some, theirs in zip(
                        inputs[chosen].chunk(steps, dim=1),
                        labels[chosen].chunk(steps, dim=1),
                        strict=True,
                    )
                ]
                tapped = run_round(
                    model, seen.weights, batches, replay.defense, replay.state, context,
                    learning_rate=rate, point=point, stop_at_tap=True,
                ).tapped  # fmt: skip
                assert tapped is not None
                shown = in_gradient_units(tapped, point, steps, rate)
            parts.append(shown if alone else shown.select(own))
        if len(parts) == 1:
            return parts[0]
        back = torch.cat(order).argsort()
        return concatenate(parts).select(back)

    return simulate
