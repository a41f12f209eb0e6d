"""Per-example, batch and stacked gradients, differentiable in the inputs.

They are `torch.func` programs of any model; a model may bring a faster program of its own for the
gradients of single examples (`HandWritten`).

Shapes: inputs (clients, batch, *input shape); labels (clients, batch) class indices or
(clients, batch, classes) probabilities. The loss is cross-entropy in nats without any factor, for
client and attacker alike: an attacker whose loss differs by a factor never reaches distance 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as functional
from torch import Tensor
from torch.func import grad, vmap

from leakbench.contracts import Gradients, Model, Weights
from leakbench.errors import LeakbenchError

MULTIPLE, LEAST = 8, 16
"""Examples are computed together in multiples of 8, at least 16: in other numbers CPU matrix
kernels (AVX-512) sum in another order."""


@runtime_checkable
class HandWritten(Protocol):
    """A model that knows its per-example gradients itself."""

    def example_gradients(
        self, weights: Weights, inputs: Tensor, labels: Tensor
    ) -> dict[str, Tensor]:
        """Parameter name -> (n, *its shape), the gradient of each example's own cross-entropy.

        weights: shared by all examples, without derivatives. inputs (n, *input shape); labels (n,)
        class indices or (n, classes) probabilities. The result must be differentiable once in
        inputs and probabilities, and a row's bits must not depend on the other rows.
        """
        ...


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

    stacked: weights carry a leading client axis. chunk_size, rounded up to a multiple of 8 and to
    16 at least, bounds the memory. Without `stacked`, an example's result does not depend, bit for
    bit, on chunk_size, on the other examples, or on its place among them (probed on the CPU).
    """
    if stacked:
        over_batch = _over_examples(model, chunk_size)
        clients_a_chunk = None if chunk_size is None else max(chunk_size // inputs.shape[1], 1)
        tensors = vmap(over_batch, chunk_size=clients_a_chunk)(weights, inputs, labels)
    else:
        clients, batch = inputs.shape[:2]
        rows = clients * batch
        chunk = _rounded(rows if chunk_size is None else chunk_size)
        last = rows % chunk or chunk
        missing = _rounded(last) - last
        inputs = _padded(inputs.flatten(0, 1), missing)
        labels = _padded(labels.flatten(0, 1), missing)
        fixed = not (torch.is_grad_enabled() and any(w.requires_grad for w in weights.values()))
        if isinstance(model, HandWritten) and fixed:
            parts = [
                model.example_gradients(weights, some, theirs)
                for some, theirs in zip(inputs.split(chunk), labels.split(chunk), strict=True)
            ]
            flat = _joined(parts)
        else:
            flat = _over_examples(model, chunk if rows > chunk else None)(weights, inputs, labels)
        if missing:  # a slice costs a pass over memory in its derivative, even of everything
            flat = {k: v[:rows] for k, v in flat.items()}
        tensors = {k: v.unflatten(0, (clients, batch)) for k, v in flat.items()}
    return Gradients(tensors, ("client", "example"), mask)


def _over_examples(
    model: Model, chunk_size: int | None
) -> Callable[[Weights, Tensor, Tensor], dict[str, Tensor]]:
    """(weights, inputs (n, *input shape), labels (n, ...)) -> gradients (n, *parameter shape)."""
    loss = loss_function(model)

    def of_one(weights: Weights, one: Tensor, label: Tensor) -> dict[str, Tensor]:
        return grad(loss)(weights, one[None], label[None])  # type: ignore[no-any-return]

    return vmap(of_one, in_dims=(None, 0, 0), chunk_size=chunk_size)


def _joined(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Chunks one after the other; a single one is not copied."""
    if len(parts) == 1:
        return parts[0]
    return {k: torch.cat([part[k] for part in parts]) for k in parts[0]}


def _rounded(rows: int) -> int:
    """The next number of rows to compute together."""
    return max(rows + -rows % MULTIPLE, LEAST)


def _padded(values: Tensor, missing: int) -> Tensor:
    """`values` and `missing` rows of zeros, which no gradient flows through."""
    if not missing:
        return values
    return torch.cat([values, values.new_zeros(missing, *values.shape[1:])])


def of_subsets(
    model: Model,
    weights: Weights,
    inputs: Tensor,
    labels: Tensor,
    size: int,
    *,
    stacked: bool = False,
    mask: Tensor | None = None,
) -> Gradients:
    """Gradient of the mean loss of every `size` consecutive examples, axes ("client", "example").

    The "example" axis counts subsets; the mean over it is `of_batch` where none is padded.

    Raises:
        LeakbenchError: the batch cannot be cut into such subsets.
    """
    clients, batch = inputs.shape[:2]
    if size < 1 or batch % size:
        text = f"a batch of {batch} examples has no subsets of {size}"
        raise LeakbenchError(f"{text}; allowed: divisors of the batch size")
    subsets = batch // size
    cut = (clients * subsets, size)
    inputs, labels = (values.reshape(*cut, *values.shape[2:]) for values in (inputs, labels))
    if stacked:
        weights = {k: v.repeat_interleave(subsets, dim=0) for k, v in weights.items()}
    parts = None if mask is None else mask.reshape(cut)
    found = of_batch(model, weights, inputs, labels, stacked=stacked, mask=parts)
    tensors = {k: v.unflatten(0, (clients, subsets)) for k, v in found.tensors.items()}
    present = None if found.mask is None else found.mask.unflatten(0, (clients, subsets))
    return Gradients(tensors, ("client", "example"), present)


def of_batch(
    model: Model,
    weights: Weights,
    inputs: Tensor,
    labels: Tensor,
    *,
    stacked: bool = False,
    mask: Tensor | None = None,
) -> Gradients:
    """Gradient of every client's mean loss, axes ("client",); equals the mean of `per_example`."""
    over_weights = 0 if stacked else None
    if mask is None:
        tensors = vmap(grad(loss_function(model)), in_dims=(over_weights, 0, 0))(
            weights, inputs, labels
        )
        return Gradients(tensors, ("client",))

    def masked_loss(weights: Weights, inputs: Tensor, labels: Tensor, present: Tensor) -> Tensor:
        losses = functional.cross_entropy(model.logits(weights, inputs), labels, reduction="none")
        return torch.where(present, losses, 0.0).sum() / present.sum().clamp(min=1)

    # Padding may be nan, and the derivative of nan is nan even where it is not counted.
    inputs = torch.where(mask.reshape(mask.shape + (1,) * (inputs.ndim - 2)), inputs, 0.0)
    tensors = vmap(grad(masked_loss), in_dims=(over_weights, 0, 0, 0))(
        weights, inputs, labels, mask
    )
    return Gradients(tensors, ("client",), mask.any(dim=1))
