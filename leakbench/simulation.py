"""The attacker's own run of the training path on dummy inputs: naive, or with the defense replayed.

It is the very path of `training.run_round`, with the victims on the client axis and a context
without noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakbench import tangents as forward
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
from leakbench.pytrees import in_float64
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
        seen, labels = _in_type_of(inputs, seen, labels)
        begun = self._begun(seen, inputs, labels, local_steps)
        return self._path(seen, inputs, labels, rows, local_steps, begun)

    def each(
        self,
        seen: Observation,
        inputs: Tensor,
        labels: Tensor,
        rows: Tensor,
        local_steps: LocalSteps,
    ) -> Iterator[Gradients]:
        """See `contracts.Observation.simulate_each`."""
        seen, labels = _in_type_of(inputs, seen, labels)
        begun = self._begun(seen, inputs, labels, local_steps)
        for row in rows:
            everywhere = row.expand(len(inputs))
            yield self._path(seen, inputs, labels, everywhere, local_steps, begun)

    def alike(self) -> Tensor:
        """(n,) equal numbers for victims of one replay that reads nothing of the observation."""
        own = torch.arange(len(self.replay_of), device=self.replay_of.device) + len(self.replays)
        reads = torch.tensor(
            [replay.defense.reads_observation for replay in self.replays],
            device=self.replay_of.device,
        )
        return torch.where(reads[self.replay_of], own, self.replay_of)

    def push(
        self,
        seen: Observation,
        inputs: Tensor,
        labels: Tensor,
        rows: Tensor,
        tangents: Tensor,
        local_steps: LocalSteps,
    ) -> tuple[Gradients, Gradients]:
        """See `contracts.Observation.push`; one victim at a time."""
        seen, labels = _in_type_of(inputs, seen, labels)
        plain, pushed = [], []
        for i in range(len(rows)):
            some = slice(i, i + 1)
            given = (seen, inputs[some].detach(), labels[some].detach(), rows[some])
            columns = tangents[i].detach()
            if self._by_examples(seen) and self._steps(local_steps)[0] == 1:
                found = self._push_hooks(*given, columns, local_steps)
            else:
                found = self._push_path(*given, columns, local_steps)
            plain.append(found[0])
            pushed.append(found[1])
        derivatives = {k: torch.stack([one[k] for one in pushed]) for k in pushed[0]}
        return concatenate(plain), Gradients(derivatives, ("client", "column"))

    def _push_hooks(
        self,
        seen: Observation,
        inputs: Tensor,
        labels: Tensor,
        row: Tensor,
        columns: Tensor,
        how: LocalSteps,
    ) -> tuple[Gradients, dict[str, Tensor]]:
        """Of one victim by the gradients of his examples, then the hooks behind them."""
        single, moved = forward.per_example(self.model, seen.weights, inputs[0], labels[0], columns)
        names = list(single)

        def hooks(*values: Tensor) -> Gradients:
            begun = Gradients(dict(zip(names, values, strict=True)), ("client", "example"))
            many, theirs, rows = _copies(len(values[0]), inputs, labels, row)
            return self._path(seen, many, theirs, rows, how, begun)

        return forward.of_copies(hooks, [v[None] for v in single.values()], list(moved.values()))

    def _push_path(
        self,
        seen: Observation,
        inputs: Tensor,
        labels: Tensor,
        row: Tensor,
        columns: Tensor,
        how: LocalSteps,
    ) -> tuple[Gradients, dict[str, Tensor]]:
        """Of one victim through all of the path: weights that depend on the inputs, batches that
        mix, and large networks."""
        general = replace(self, model=forward.Plain(self.model))

        def path(values: Tensor) -> Gradients:
            _, theirs, rows = _copies(len(values), inputs, labels, row)
            return general(seen, values, theirs, rows, how)

        if computed_alone(seen.weights):
            return forward.of_large(path, inputs, columns)
        return forward.of_copies(path, [inputs], [columns], PAD)

    def _begun(
        self, seen: Observation, inputs: Tensor, labels: Tensor, local_steps: LocalSteps
    ) -> Gradients | None:
        """The costly part of the first local step, once for all defenses: all clients begin from
        the same weights. None where it is not computed example by example."""
        if not self._by_examples(seen):
            return None
        steps, _ = self._steps(local_steps)
        some, theirs = inputs.chunk(steps, dim=1)[0], labels.chunk(steps, dim=1)[0]
        return per_example(self.model, seen.weights, some, theirs)

    def _by_examples(self, seen: Observation) -> bool:
        """Whether the first local step is computed example by example, before any hook."""
        if self.point.type == 2 and self.point.view == "example":
            return True
        # In a large network a batch is one backward pass, where it may be.
        return not (computed_alone(seen.weights) or self.model.mixes_examples)

    def _steps(self, local_steps: LocalSteps) -> tuple[int, float]:
        """How many local steps the attacker runs, and their learning rate."""
        if local_steps == "average":  # one step on all examples, as long as all steps together
            return 1, self.local_steps * self.learning_rate
        return self.local_steps, self.learning_rate

    def _path(
        self,
        seen: Observation,
        inputs: Tensor,
        labels: Tensor,
        rows: Tensor,
        local_steps: LocalSteps,
        begun: Gradients | None,
    ) -> Gradients:
        """begun: gradients of the examples of the first local step, where they are there."""
        model, point, which = self.model, self.point, self.replay_of[rows]
        steps, rate = self._steps(local_steps)
        example_view = point.type == 2 and point.view == "example"
        large = computed_alone(seen.weights)
        # The usual cases, one replay or rows in the order of theirs: nothing to put back.
        order = which.argsort(stable=True)
        numbers, sizes = which[order].unique_consecutive(return_counts=True)
        ordered = bool((which.diff() >= 0).all())
        shares = sizes.tolist()
        if begun is None:
            firsts: list[Gradients | None] = [None] * len(shares)
        else:
            firsts = [*(begun if ordered else begun.select(order)).split(shares)]
        parts: list[Gradients] = []
        for number, chosen, first in zip(
            numbers.tolist(), order.split(shares), firsts, strict=True
        ):
            own = len(chosen)
            if not large:  # no hook's result depends on how many there are
                chosen = with_copies(chosen)
            filled = len(chosen) > own
            if first is not None and filled:
                first = first.map(lambda _, value: with_copies(value))
            replay = self.replays[number]
            state, known = replay.state, replay.context
            if inputs.dtype == torch.float64:
                state = in_float64(state)
            reads = replay.defense.reads_observation
            context = replace(
                known,
                noise=None,
                batch_size=inputs.shape[1] // steps,
                local_steps=steps,
                learning_rate=rate,
                clients=tuple(range(len(chosen))),
                observation=seen.of(rows[chosen]) if reads else None,
            )
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
            parts.append(shown.select(slice(own)) if filled else shown)
        found = parts[0] if len(parts) == 1 else concatenate(parts)
        return found if ordered else found.select(order.argsort())


def _in_type_of(inputs: Tensor, seen: Observation, labels: Tensor) -> tuple[Observation, Tensor]:
    """The look, and labels that are probabilities, in the floating type of `inputs`."""
    labels = labels.to(inputs.dtype) if labels.is_floating_point() else labels
    return seen.cast(inputs.dtype), labels


def _copies(count: int, *values: Tensor) -> tuple[Tensor, ...]:
    """Each of `values`, of one victim, for `count` victims."""
    return tuple(value.expand(count, *value.shape[1:]) for value in values)
