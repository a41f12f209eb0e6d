"""Gradient inversion by matching: what DLG, iDLG, CPL and their kin share."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from leakbench.contracts import Attack, Leak, Reconstruction, Streams, Watch
from leakbench.optim import Objective, Solution, StepWatch


class Optimiser(Protocol):
    """Moves n independent problems at once: `optim.LBFGS`, `optim.SignedAdam`, or your own."""

    def minimise(
        self, objective: Objective, start: Tensor, watch: StepWatch | None = None
    ) -> Solution: ...


def match(
    attack: Attack,
    leak: Leak,
    streams: Streams,
    labels: Tensor | None,
    optimiser: Optimiser,
    watch: Watch,
    *,
    restarts: int = 1,
) -> Reconstruction:
    """Move dummy inputs until `attack.loss` is least: their simulated gradient is the observed.

    Restart r begins at `attack.start(leak, streams, r)`; a victim keeps the one that ended with the
    smallest loss. Steps and evaluations are those of all restarts, the start is the first one's.

    labels: (n, B) class indices held fixed; None: soft labels, optimised along with the inputs
    from logits that every restart draws anew from N(0, 1).
    """
    spent = torch.zeros(2, leak.n, dtype=torch.int64)  # steps and evaluations of earlier restarts

    def counting(
        rows: Tensor, steps: Tensor, evaluations: Tensor, inputs: Tensor, losses: Tensor
    ) -> None:
        steps_before, evaluations_before = spent[:, rows.cpu()]
        watch(
            rows, steps.cpu() + steps_before, evaluations.cpu() + evaluations_before, inputs, losses
        )

    best: Reconstruction | None = None
    for restart in range(restarts):
        start = attack.start(leak, streams, restart)
        assert start is not None
        logits = None
        if labels is None:
            logits = streams.normal("label", (leak.batch_size, leak.classes), restart)
            logits = logits.to(dtype=leak.dtype, device=leak.device)
        found = _descend(attack, leak, start, labels, logits, optimiser, counting)
        spent += torch.stack([found.steps.cpu(), found.evaluations.cpu()])
        best = found if best is None else _better(best, found)
    assert best is not None
    steps, evaluations = spent.to(leak.device)
    return replace(best, steps=steps, evaluations=evaluations)


def _descend(
    attack: Attack,
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

    solution = optimiser.minimise(objective, points, on_step)
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
