"""Means of what a defense makes of single examples, a few of which are held at a time.

What a batch of them costs is memory: written once, and once more by the hook. A few stay in the
cache of a core, where the hook finds them, and are added up and forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from leakbench.contracts import Context, Defense, Gradients, Model, State, Weights, concatenate
from leakbench.errors import LeakbenchError
from leakbench.gradients import at_once, per_example
from leakbench.pytrees import tensors
from leakbench.running_means import RunningMean


class Examples(Protocol):
    """`training.Batch`."""

    @property
    def inputs(self) -> Tensor: ...
    @property
    def labels(self) -> Tensor: ...
    @property
    def mask(self) -> Tensor | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """A batch that goes through `on_examples` in pieces: `clients` together, `examples` of each."""

    model: Model
    weights: Weights
    batch: Examples
    defense: Defense
    state: State
    context: Context
    stacked: bool
    chunk_size: int | None
    clients: int
    examples: int

    def mean(self, seen: Callable[[Gradients], None] | None = None) -> Gradients:
        """Every client's mean of what `on_examples` makes of his examples, axes ("client",); the
        same bits as of all at once. seen: is shown each piece before the hook.

        Raises:
            LeakbenchError: the hook draws noise or changes the state, against `rowwise`.
        """
        everyone = self.batch.inputs.shape[0]
        groups = [slice(begun, begun + self.clients) for begun in range(0, everyone, self.clients)]
        return concatenate([self._of(group, seen) for group in groups])

    def _of(self, group: slice, seen: Callable[[Gradients], None] | None) -> Gradients:
        pieces = self._shown(group, seen)
        if self.examples >= self.batch.inputs.shape[1]:
            return next(pieces).mean("example")
        running = RunningMean()
        for piece in pieces:
            running.add(piece)
        return running.mean()

    def _shown(self, group: slice, seen: Callable[[Gradients], None] | None) -> Iterator[Gradients]:
        """What the hook makes of the clients of a group, some examples at a time."""
        batch, context = self.batch, self.context
        noise = None if context.noise is None else _NoNoise(self.defense.name)
        here = replace(context, clients=context.clients[group], noise=noise)
        own = self.weights
        if self.stacked:
            own = {name: value[group] for name, value in self.weights.items()}
        for begun in range(0, batch.inputs.shape[1], self.examples):
            some = (group, slice(begun, begun + self.examples))
            rows = per_example(
                self.model, own, batch.inputs[some], batch.labels[some], stacked=self.stacked,
                mask=None if batch.mask is None else batch.mask[some], chunk_size=self.chunk_size,
            )  # fmt: skip
            if seen is not None:
                seen(rows)
            shown, after = self.defense.on_examples(rows, self.state, here)
            if after is not self.state:
                raise _broken(self.defense.name, "returns another state than it was given")
            yield shown


def in_pieces(
    model: Model,
    weights: Weights,
    batch: Examples,
    defense: Defense,
    state: State,
    context: Context,
    *,
    stacked: bool,
    chunk_size: int | None,
    most: int,
) -> Pieces | None:
    """How to take a batch through `on_examples` in pieces; None where it goes all at once.

    chunk_size: examples that are computed together at most; most: bytes of gradients held at once.
    """
    if not defense.rowwise or _followed(batch, weights):
        return None
    clients, size = batch.inputs.shape[:2]
    fitting = max(most // example_bytes(weights, stacked), 1)
    together = at_once(
        model, weights, batch.inputs, batch.labels, stacked=stacked, chunk_size=chunk_size
    )
    held = min(fitting, together or fitting)
    if clients * size <= held:
        return None
    if clients == 1 or _is_shared(state, context, clients):
        group, examples = max(held // size, 1), min(held, size)
    elif clients * size > fitting:  # examples of all clients, who are not to be told apart
        group, examples = clients, max(fitting // clients, 1)
    else:
        return None
    return Pieces(
        model=model, weights=weights, batch=batch, defense=defense, state=state, context=context,
        stacked=stacked, chunk_size=chunk_size, clients=group, examples=examples,
    )  # fmt: skip


def _is_shared(state: State, context: Context, clients: int) -> bool:
    """Whether nothing that the hook is told, but gradients, has a row for every client."""
    of_each = any(value.ndim and len(value) == clients for value in tensors(state))
    return context.observation is None and not of_each


def example_bytes(weights: Weights, stacked: bool) -> int:
    """Of one example's gradient."""
    total = sum(value.numel() * value.element_size() for value in weights.values())
    return total // len(next(iter(weights.values()))) if stacked else total


def _followed(batch: Examples, weights: Weights) -> bool:
    """Whether derivatives are wanted."""
    values = (batch.inputs, batch.labels, *weights.values())
    return torch.is_grad_enabled() and any(value.requires_grad for value in values)


@dataclass(frozen=True, slots=True)
class _NoNoise:
    """The source of noise of a hook that has said to draw none."""

    defense: str

    def normal(
        self, purpose: str, client: int, round: int, iteration: int, shape: tuple[int, ...]
    ) -> Tensor:
        raise _broken(self.defense, f"draws noise ('{purpose}')")

    def uniform(
        self, purpose: str, client: int, round: int, iteration: int, shape: tuple[int, ...]
    ) -> Tensor:
        raise _broken(self.defense, f"draws noise ('{purpose}')")


def _broken(defense: str, what: str) -> LeakbenchError:
    return LeakbenchError(
        f"defense '{defense}': says that it is rowwise, and on_examples {what}; allowed: hooks "
        "that treat every row by itself, or rowwise False"
    )
