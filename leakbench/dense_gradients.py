"""Gradients of dense ReLU networks by hand, of single examples and of clients with own weights.

With a_0 = x, z_l = W_l a_{l-1} + b_l, a_l = relu(z_l), and d_L the derivative of the loss by the
last z, the gradients are

    d_l = (W_{l+1}^T d_{l+1}) [z_l > 0],     G_l = d_l a_{l-1}^T,     dloss/db_l = d_l.

Layers are (W, b) with a leading client axis, b None where there is none. inputs (clients, b,
features); labels (clients, b) class indices or (clients, b, classes) probabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from leakbench.losses import Loss, derivative

Layer = tuple[Tensor, Tensor | None]


def example_gradients(
    layers: Sequence[Layer], inputs: Tensor, labels: Tensor, *, loss: Loss
) -> list[Layer]:
    """Gradient of each example's loss by every layer, (clients, b, *its shape).

    They do not depend on each other, bit for bit.
    """
    below, deltas = _sweeps(layers, inputs, labels, loss, product)
    return [
        (delta[..., None] * rows[..., None, :], None if bias is None else delta)
        for delta, rows, (_, bias) in zip(deltas, below, layers, strict=True)
    ]


def client_gradients(
    layers: Sequence[Layer], inputs: Tensor, labels: Tensor, shares: Tensor, *, loss: Loss
) -> list[Layer]:
    """Gradient of each client's sum of losses times `shares` (clients, b), by every layer,
    (clients, *its shape)."""
    below, deltas = _sweeps(layers, inputs, labels, loss, torch.matmul)
    weighted = [delta * shares[..., None] for delta in deltas]
    return [
        (delta.mT @ rows, None if bias is None else delta.sum(dim=1))
        for delta, rows, (_, bias) in zip(weighted, below, layers, strict=True)
    ]


def _sweeps(
    layers: Sequence[Layer],
    inputs: Tensor,
    labels: Tensor,
    loss: Loss,
    product: Callable[[Tensor, Tensor], Tensor],
) -> tuple[list[Tensor], list[Tensor]]:
    """a_0 ... a_{L-1} and d_1 ... d_L, (clients, b, units)."""
    below, rows = [inputs], inputs
    for number, (weight, bias) in enumerate(layers, start=1):
        rows = product(rows, weight.mT)
        if bias is not None:
            rows = rows + bias[:, None]
        if number < len(layers):
            rows = rows.relu()
            below.append(rows)
    deltas = [derivative(loss, rows, labels)]
    for (weight, _), rows in zip(reversed(layers[1:]), reversed(below[1:]), strict=True):
        deltas.append(product(deltas[-1], weight) * (rows > 0))
    return below, deltas[::-1]


def product(rows: Tensor, matrices: Tensor) -> Tensor:
    """(clients, b, j) times (clients, j, k), each row by itself: a product of all would round by
    their number, and a batch may come in pieces."""
    alone = [
        row[:, None] @ matrix.expand(len(row), -1, -1)
        for row, matrix in zip(rows, matrices, strict=True)
    ]
    return torch.stack(alone).squeeze(2)
