"""Per-example, batch and stacked gradients as `torch.func` programs, differentiable in the inputs.

Shapes: inputs (clients, batch, *input shape); labels (clients, batch) class indices or
(clients, batch, classes) probabilities. The loss is cross-entropy in nats without any factor, for
client and attacker alike: an attacker whose loss differs by a factor never reaches distance 0.
"""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as functional
from torch import Tensor
from torch.func import grad, vmap

from leakbench.contracts import Gradients, Model, Weights


def loss_function(model: Model) -> Callable[[Weights, Tensor, Tensor], Tensor]:
    """Mean cross-entropy of `model` over a batch: (weights, inputs, labels) -> scalar."""

    def loss(weights: Weights, inputs: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(model.logits(weights, inputs), labels)

    return loss


def per_example(
    model: Model,
    weights: Weights,
    inputs: Tensor,
    labels: Tensor,
    *,
    stacked: bool = False,
    mask: Tensor | None = None,
    chunk_size: int | None = None,
) -> Gradients:
    """Gradient of every example's own loss, axes ("client", "example").

    stacked: weights carry a leading client axis. chunk_size bounds the memory, not the result.
    """
    loss = loss_function(model)

    def of_one(weights: Weights, one: Tensor, label: Tensor) -> dict[str, Tensor]:
        return grad(loss)(weights, one[None], label[None])  # type: ignore[no-any-return]

    if stacked:
        over_batch = vmap(of_one, in_dims=(None, 0, 0))
        tensors = vmap(over_batch)(weights, inputs, labels)
    else:
        clients, batch = inputs.shape[:2]
        flat = vmap(of_one, in_dims=(None, 0, 0), chunk_size=chunk_size)(
            weights, inputs.flatten(0, 1), labels.flatten(0, 1)
        )
        tensors = {k: v.unflatten(0, (clients, batch)) for k, v in flat.items()}
    return Gradients(tensors, ("client", "example"), mask)


def of_batch(
    model: Model, weights: Weights, inputs: Tensor, labels: Tensor, *, stacked: bool = False
) -> Gradients:
    """Gradient of every client's mean loss, axes ("client",); equals the mean of `per_example`."""
    in_dims = (0 if stacked else None, 0, 0)
    return Gradients(
        vmap(grad(loss_function(model)), in_dims=in_dims)(weights, inputs, labels), ("client",)
    )
