"""What an attack returned, held to its contract."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from leakbench.contracts import ENDED, Attack, HasLoss, Leak, Reconstruction
from leakbench.errors import LeakbenchError
from leakbench.optim import with_copies
from leakbench.weights import computed_alone


def check_answer(result: Reconstruction, leak: Leak, name: str) -> None:
    """The attack's side of the contract, in shapes, types and ranges."""
    if not isinstance(result, Reconstruction):
        raise LeakbenchError(
            f"attack '{name}': returned {type(result).__name__}, no Reconstruction"
        )
    n, images = leak.n, (leak.n, leak.batch_size, *leak.input_shape)
    shapes = {
        "inputs": images, "start_inputs": images, "labels": images[:2],
        "loss": (n,), "start_loss": (n,), "steps": (n,), "evaluations": (n,),
    }  # fmt: skip
    for field, wanted in shapes.items():
        value = getattr(result, field)
        if not isinstance(value, Tensor) or tuple(value.shape) != wanted:
            found = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            text = f"returned {field} of shape {found}, the contract asks for {wanted}"
            raise LeakbenchError(f"attack '{name}': {text}")
        whole = field in ("labels", "steps", "evaluations")
        if whole == value.is_floating_point():
            kind = "whole numbers" if whole else "floating point"
            raise LeakbenchError(f"attack '{name}': {field} are {value.dtype}, not {kind}")
        top = leak.classes - 1 if field == "labels" else math.inf
        if whole and not bool(((value >= 0) & (value <= top)).all()):
            raise LeakbenchError(f"attack '{name}': {field} must be from 0 to {top}")
    sure = result.confidence
    if sure is not None and (
        tuple(sure.shape) != images[:2] or not bool(((sure >= 0) & (sure <= 1)).all())
    ):
        raise LeakbenchError(
            f"attack '{name}': confidence must be of shape {images[:2]} and from 0 to 1"
        )
    if len(result.status) != n:
        raise LeakbenchError(f"attack '{name}': {len(result.status)} statuses for {n} victims")
    for status in result.status:
        if status not in ENDED:
            text = f"status {status!r}; allowed: {', '.join(ENDED)}"
            raise LeakbenchError(f"attack '{name}': {text}")


def with_honest_status(result: Reconstruction) -> Reconstruction:
    """A reconstruction that is not finite ended in nan, whatever the attack says."""
    finite = torch.isfinite(result.inputs).flatten(1).all(dim=1).tolist()
    status = tuple(s if ok else "nan" for s, ok in zip(result.status, finite, strict=True))
    return replace(result, status=status)


def loss_of(attack: Attack, leak: Leak, inputs: Tensor, labels: Tensor) -> Tensor:
    """The attack's loss of all victims, padded like every batched call; nan where it has none."""
    if not isinstance(attack, HasLoss):
        return torch.full((leak.n,), math.nan, dtype=leak.dtype, device=leak.device)
    rows = torch.arange(leak.n, device=leak.device)
    alone = computed_alone(leak.observations[0].weights)
    with torch.no_grad():
        losses = [
            attack.loss(leak, inputs[some], labels[some], some)
            for some in (rows.split(1) if alone else [with_copies(rows)])
        ]
    return torch.cat(losses)[: leak.n]
