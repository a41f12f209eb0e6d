"""The attacker's own run of the training path on dummy inputs: naive, or with the defense replayed.

It is the very path of `training.run_round`, with the victims on the client axis and a context
without noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakbench.contracts import (
    Gradients,
    LeakPoint,
    LocalSteps,
    Model,
    Observation,
    Replay,
    concatenate,
)
from leakbench.gradients import per_example
from leakbench.optim import PAD, with_copies
from leakbench.training import Batch, in_gradient_units, run_round
from leakbench.weights import computed_alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulator:
    """The attacker's own run of the path, for victims of several defenses in one batch.

    Attributes:
        model, point: public.
        replays: the defenses to run without noise, in the state of one look; a naive attacker's is
            the base class `Defense`, which does nothing.
        replay_of: (n,) which of them each victim's gradient went through.
        local_steps, learning_rate: the client's, behind types 0 and 1.
    """

    model: Model
    replays: Sequence[Replay]
    replay_of: Tensor
    point: LeakPoint
    local_steps: int = 1
    learning_rate: float = 0.1

    def __call__(
        self,
        seen: Observation,
        inputs: Tensor,
        labels: Tensor,
        rows: Tensor,
        local_steps: LocalSteps,
    ) -> Gradients:
        """See `contracts.Observation.simulate`."""
        model, point, which = self.model, self.point, self.replay_of[rows]
        steps, rate = self.local_steps, self.learning_rate
        if local_steps == "average":  # one step on all examples, as long as all steps together
            steps, rate = 1, self.local_steps * self.learning_rate
        example_view = point.type == 2 and point.view == "example"
        # All clients begin from the same weights: the costly part of the first local step once for
        # all defenses, then each one's hooks.
        begun = None
        large = computed_alone(seen.weights)  # then a batch is one backward pass, where it may be
        if example_view or not (large or model.mixes_examples):
            some, theirs = inputs.chunk(steps, dim=1)[0], labels.chunk(steps, dim=1)[0]
            begun = per_example(model, seen.weights, some, theirs)
        numbers = which.unique().tolist()
        # The usual case, all rows through one replay: nothing to pick out and to put back.
        alone = len(numbers) == 1 and (large or len(rows) % PAD == 0)
        order: list[Tensor] = []
        parts: list[Gradients] = []
        for number in numbers:
            chosen = torch.nonzero(which == number).flatten()
            own = slice(len(chosen))
            order.append(chosen)
            if not large:  # no hook's result depends on how many there are
                chosen = with_copies(chosen)
            replay = self.replays[number]
            state, known = replay.state, replay.context
            context = replace(
                known,
                noise=None,
                batch_size=inputs.shape[1] // steps,
                local_steps=steps,
                learning_rate=rate,
                clients=tuple(range(len(chosen))),
                observation=seen.of(rows[chosen]),
            )
            first = begun if alone or begun is None else begun.select(chosen)
            if example_view and first is not None:
                shown = first
                # In the batch the victim was in, which his dummy example stands alone for.
                if replay.defense.row_size(known.batch_size) == 1:
                    shown, _ = replay.defense.on_examples(shown, state, context)
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
                    model, seen.weights, batches, replay.defense, state, context,
                    learning_rate=rate, point=point, stop_at_tap=True, by_examples=True,
                    first=first,
                ).tapped  # fmt: skip
                assert tapped is not None
                shown = in_gradient_units(tapped, point, steps, rate)
            parts.append(shown if alone else shown.select(own))
        if len(parts) == 1:
            return parts[0]
        back = torch.cat(order).argsort()
        return concatenate(parts).select(back)
