"""Gradient inversion by matching: what DLG, iDLG, CPL and their kin share."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from leakbench.contracts import (
    Attack,
    Leak,
    LeakFacts,
    LocalSteps,
    Reconstruction,
    Streams,
    Watch,
)
from leakbench.errors import require_at_least
from leakbench.labels import labels_of
from leakbench.matching import NO_NEIGHBOURS, has_neighbours, squared_loss, total_variation
from leakbench.optim import Objective, Solution, StepWatch, one_by_one
from leakbench.parameters import check_kinds, require_in
from leakbench.weights import computed_alone

Prior = Callable[[Tensor], Tensor]
"""(k, B, *input shape) -> (k,): small for inputs that are likely."""


class Optimiser(Protocol):
    """Moves n independent problems at once: `optim.LBFGS`, `optim.SignedAdam`, or your own."""

    @property
    def budget(self) -> int:
        """Evaluations of a problem that uses up its steps."""
        ...

    def minimise(
        self, objective: Objective, start: Tensor, watch: StepWatch | None = None
    ) -> Solution: ...


# No slots here: attacks call the checks of this class by `super()`.
@dataclass(frozen=True, kw_only=True)
class MatchingAttack(Attack):
    """Dummy inputs are moved until the gradient they give is the observed one.

    An attack says where it begins (`start`) and how it moves (`optimiser`); where it differs from
    the family's most common choice also how far two gradients are apart (`distance`), what inputs
    are likely (`priors`), and where labels come from (`labels`).

    Args:
        steps: of the optimiser.
        restarts: runs from new starts; the smallest loss counts.
        total_variation: weight of this prior in the loss; images only.
        local_steps: how several local steps behind an update are modelled.
    """

    steps: int = 300
    restarts: int = 1
    total_variation: float = 0.0
    local_steps: LocalSteps = "unroll"

    def __post_init__(self) -> None:
        check_kinds(self)
        require_at_least(self.name, 1, steps=self.steps, restarts=self.restarts)
        require_in(self.name, "[0, inf)", total_variation=self.total_variation)

    @abstractmethod
    def start(self, leak: Leak, streams: Streams, restart: int = 0) -> Tensor:
        """(n, B, *shape) where the given restart begins; the first is a baseline of every table."""

    @abstractmethod
    def optimiser(self, facts: LeakFacts) -> Optimiser:
        """What moves the inputs, and labels where they are soft."""

    def optimiser_of(self, leak: Leak) -> Optimiser:
        """The same with what depends on more than the facts, but spends no more evaluations."""
        return self.optimiser(leak.facts)

    def labels(self, leak: Leak, streams: Streams) -> Tensor | None:
        """(n, B) class indices held fixed: granted, else read off the gradient; None: soft labels,
        optimised along with the inputs from logits that every restart draws anew from N(0, 1)."""
        return labels_of(leak, streams)

    def distance(self, leak: Leak, inputs: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
        """(k,) how far the simulated gradients are from the observed ones, over all observations:
        squared L2, weighted where the attacker knows unequal noise."""
        return squared_loss(leak, inputs, labels, rows, local_steps=self.local_steps)

    def priors(self) -> tuple[tuple[float, Prior], ...]:
        """Weights, and what the loss has beside the distance; a weight of 0 leaves it out."""
        return ((self.total_variation, total_variation),)

    def as_priors_see(self, leak: Leak, inputs: Tensor) -> Tensor:
        """The inputs in the units of the priors: as they are."""
        return inputs

    def loss(self, leak: Leak, inputs: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
        """(k,) the distance and the weighted priors, see `contracts.HasLoss`."""
        total = self.distance(leak, inputs, labels, rows)
        for weight, prior in self.priors():
            if weight:
                total = total + weight * prior(self.as_priors_see(leak, inputs))
        return total

    def skip(self, facts: LeakFacts) -> str:
        if self.total_variation and not has_neighbours(facts.input_shape):
            return f"total_variation {NO_NEIGHBOURS.format(shape=facts.input_shape)}"
        return ""

    def budget(self, facts: LeakFacts) -> int:
        return self.restarts * self.optimiser(facts).budget

    def reconstruct(self, leak: Leak, streams: Streams, watch: Watch) -> Reconstruction:
        """Restart r begins at `start(leak, streams, r)`; a victim keeps the one that ended with the
        smallest loss. Steps and evaluations are those of all restarts, the start is the first
        one's."""
        self.require_suitable(leak)
        labels, optimiser = self.labels(leak, streams), self.optimiser_of(leak)
        spent = torch.zeros(2, leak.n, dtype=torch.int64)  # of earlier restarts

        def counting(
            rows: Tensor, steps: Tensor, evaluations: Tensor, inputs: Tensor, losses: Tensor
        ) -> None:
            steps_before, evaluations_before = spent[:, rows.cpu()]
            steps, evaluations = steps.cpu() + steps_before, evaluations.cpu() + evaluations_before
            watch(rows, steps, evaluations, inputs, losses)

        best: Reconstruction | None = None
        for restart in range(self.restarts):
            start, logits = self.start(leak, streams, restart), None
            if labels is None:
                logits = streams.normal("label", (leak.batch_size, leak.classes), restart)
                logits = logits.to(dtype=leak.dtype, device=leak.device)
            found = _descend(self, leak, start, labels, logits, optimiser, counting)
            spent += torch.stack([found.steps.cpu(), found.evaluations.cpu()])
            best = found if best is None else _better(best, found)
        assert best is not None
        steps, evaluations = spent.to(leak.device)
        return replace(best, steps=steps, evaluations=evaluations)


def _descend(
    attack: MatchingAttack,
    leak: Leak,
    start: Tensor,
    labels: Tensor | None,
    logits: Tensor | None,
    optimiser: Optimiser,
    watch: Watch,
) -> Reconstruction:
    """One restart; points of the optimiser are inputs, with `logits` behind them if there are."""
    n, batch = start.shape[:2]
    shape = tuple(start.shape[1:])
    pixels = math.prod(shape)
    points = start.reshape(n, pixels)
    if logits is not None:
        points = torch.cat([points, logits.reshape(n, -1)], dim=1)

    def split(points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        inputs = points[:, :pixels].reshape(-1, *shape)
        if labels is not None:
            return inputs, labels[rows]
        return inputs, points[:, pixels:].reshape(-1, batch, leak.classes).softmax(dim=-1)

    def objective(points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        points = points.detach().requires_grad_()
        loss = attack.loss(leak, *split(points, rows), rows)
        return loss, torch.autograd.grad(loss.sum(), points)[0]

    def on_step(
        rows: Tensor, steps: Tensor, evaluations: Tensor, points: Tensor, losses: Tensor
    ) -> None:
        watch(rows, steps, evaluations, points[:, :pixels].reshape(-1, *shape), losses)

    large = computed_alone(leak.observations[0].weights)
    solution = optimiser.minimise(one_by_one(objective) if large else objective, points, on_step)
    inputs, targets = split(solution.points, torch.arange(n, device=start.device))
    return Reconstruction(
        inputs=inputs,
        labels=targets if logits is None else targets.argmax(dim=-1),
        loss=solution.loss,
        start_inputs=start,
        start_loss=solution.start_loss,
        steps=solution.steps,
        evaluations=solution.evaluations,
        status=solution.status,
    )


def _better(best: Reconstruction, other: Reconstruction) -> Reconstruction:
    """For each victim what ended with the smaller loss; nan loses, and so does a tie."""
    wins = (other.loss < best.loss) | (best.loss.isnan() & ~other.loss.isnan())

    def pick(one: Tensor, two: Tensor) -> Tensor:
        return torch.where(wins.reshape(-1, *[1] * (one.ndim - 1)), two, one)

    pairs = zip(wins.tolist(), best.status, other.status, strict=True)
    return replace(
        best,
        inputs=pick(best.inputs, other.inputs),
        labels=pick(best.labels, other.labels),
        loss=pick(best.loss, other.loss),
        status=tuple(two if won else one for won, one, two in pairs),
    )
