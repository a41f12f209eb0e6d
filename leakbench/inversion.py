"""Gradient inversion by matching: what DLG, iDLG, CPL and their kin share."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from leakbench.contracts import Attack, Leak, Reconstruction, Watch
from leakbench.optim import LBFGS


def match(
    attack: Attack,
    leak: Leak,
    start: Tensor,
    labels: Tensor,
    optimiser: LBFGS,
    watch: Watch,
    *,
    optimise_labels: bool = False,
) -> Reconstruction:
    """Move dummy inputs until `attack.loss` is least: their simulated gradient is the observed.

    start: (n, B, *input shape). labels: (n, B) class indices held fixed, or, with
    `optimise_labels`, (n, B, classes) logits optimised along with the inputs as soft labels.
    """
    n, batch = start.shape[:2]
    shape = tuple(start.shape[1:])
    pixels = math.prod(shape)
    points = start.reshape(n, pixels)
    if optimise_labels:
        points = torch.cat([points, labels.reshape(n, -1)], dim=1)

    def split(points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        inputs = points[:, :pixels].reshape(-1, *shape)
        if not optimise_labels:
            return inputs, labels[rows]
        return inputs, points[:, pixels:].reshape(-1, batch, leak.classes).softmax(dim=-1)

    def objective(points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        points = points.detach().requires_grad_()
        loss = attack.loss(leak, *split(points, rows), rows)
        return loss, torch.autograd.grad(loss.sum(), points)[0]

    def on_step(rows: Tensor, steps: Tensor, points: Tensor, losses: Tensor) -> None:
        watch(rows, steps, points[:, :pixels].reshape(-1, *shape), losses)

    solution = optimiser.minimise(objective, points, on_step)
    inputs, targets = split(solution.points, torch.arange(n, device=start.device))
    return Reconstruction(
        inputs=inputs,
        labels=targets.argmax(dim=-1) if optimise_labels else targets,
        loss=solution.loss,
        start_inputs=start,
        start_loss=solution.start_loss,
        steps=solution.steps,
        evaluations=solution.evaluations,
        status=solution.status,
    )
