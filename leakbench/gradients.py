"""Per-example, batch and stacked gradients, differentiable in the inputs.

They are `torch.func` programs of any model; a model may bring faster programs of its own for the
gradients of single examples (`HandWritten`, `HandWrittenStacked`).

Shapes: inputs (clients, batch, *input shape); labels (clients, batch) class indices or
(clients, batch, classes) probabilities. The loss is cross-entropy in nats without any factor, for
client and attacker alike: an attacker whose loss differs by a factor never reaches distance 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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

CACHED = 32
"""Examples a CPU computes together by hand where no derivative is wanted, a multiple of 8: what
lies between the two sweeps then stays in the cache of a core."""


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


@runtime_checkable
class HandWrittenStacked(Protocol):
    """A model that knows them also where clients have weights of their own."""

    def stacked_gradients(
        self, weights: Weights, inputs: Tensor, labels: Tensor
    ) -> dict[str, Tensor]:
        """Parameter name -> (clients, batch, *its shape), the gradient of each example's own loss.

        weights: with a leading client axis; inputs and labels as everywhere in this module. The
        result must be differentiable once in all three.
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
        if isinstance(model, HandWrittenStacked):
            own = _of_clients(model, weights, inputs, labels, mask, chunk_size, lambda rows: rows)
        else:
            over_batch = _over_examples(model, chunk_size)
            at_once = None if chunk_size is None else max(chunk_size // inputs.shape[1], 1)
            own = vmap(over_batch, chunk_size=at_once)(weights, inputs, labels)
        return Gradients(own, ("client", "example"), mask)
    clients, batch = inputs.shape[:2]
    rows = clients * batch
    chunk = _rounded(rows if chunk_size is None else chunk_size)
    by_hand = isinstance(model, HandWritten) and not _wanted(*weights.values())
    if by_hand and _in_cache(inputs, labels):
        chunk = min(chunk, CACHED)
    last = rows % chunk or chunk
    missing = _rounded(last) - last
    inputs = _padded(inputs.flatten(0, 1), missing)
    labels = _padded(labels.flatten(0, 1), missing)
    if isinstance(model, HandWritten) and by_hand:
        flat = _in_chunks(
            lambda some: model.example_gradients(weights, inputs[some], labels[some]),
            rows + missing,
            chunk,
        )
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


def _of_clients(
    model: HandWrittenStacked,
    weights: Weights,
    inputs: Tensor,
    labels: Tensor,
    mask: Tensor | None,
    chunk_size: int | None,
    reduce: Callable[[Gradients], Gradients],
) -> dict[str, Tensor]:
    """`reduce` of the per-example gradients of all clients, of some clients at a time."""
    clients, batch = inputs.shape[:2]
    chunk = clients * batch if chunk_size is None else chunk_size
    if _in_cache(inputs, labels, *weights.values()):
        chunk = min(chunk, CACHED)

    def of_some(some: slice) -> Mapping[str, Tensor]:
        own = {k: v[some] for k, v in weights.items()}
        rows = model.stacked_gradients(own, inputs[some], labels[some])
        present = None if mask is None else mask[some]
        return reduce(Gradients(rows, ("client", "example"), present)).tensors

    return _in_chunks(of_some, clients, max(chunk // batch, 1))


def _in_chunks(
    compute: Callable[[slice], Mapping[str, Tensor]], total: int, size: int
) -> dict[str, Tensor]:
    """Results of `size` rows at a time, one after the other, in memory that is asked for once."""
    if size >= total:
        return {k: v.contiguous() for k, v in compute(slice(0, total)).items()}
    whole: dict[str, Tensor] = {}
    for start in range(0, total, size):
        some = slice(start, start + size)
        for k, v in compute(some).items():
            if not start:
                whole[k] = v.new_empty(total, *v.shape[1:])
            whole[k][some] = v
    return whole


def _wanted(*values: Tensor) -> bool:
    """Whether autograd follows one of them."""
    return torch.is_grad_enabled() and any(value.requires_grad for value in values)


def _in_cache(inputs: Tensor, *others: Tensor) -> bool:
    """Whether `CACHED` examples at a time are the fastest."""
    return inputs.is_cpu and not _wanted(inputs, *others)


def _rounded(rows: int) -> int:
    """The next number of rows to compute together."""
    return max(rows + -rows % MULTIPLE, LEAST)


def _padded(values: Tensor, missing: int) -> Tensor:
    """`values` and `missing` rows of zeros, which no gradient flows through."""
    if not missing:
        return values
    return torch.cat([values, values.new_zeros(missing, *values.shape[1:])])


def count_subsets(batch: int, size: int) -> int:
    """How many subsets of `size` a batch has; LeakbenchError where it cannot be cut into such."""
    if size < 1 or batch % size:
        text = f"a batch of {batch} examples has no subsets of {size}"
        raise LeakbenchError(f"{text}; allowed: divisors of the batch size")
    return batch // size


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
    subsets = count_subsets(batch, size)
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
    given: tuple[Tensor, ...] = (inputs, labels)
    loss: Callable[..., Tensor] = loss_function(model)
    present = None
    if mask is not None:
        # Padding may be nan, and the derivative of nan is nan even where it is not counted.
        inputs = torch.where(mask.reshape(mask.shape + (1,) * (inputs.ndim - 2)), inputs, 0.0)
        given, loss, present = (inputs, labels, mask), _masked_loss(model), mask.any(dim=1)
    if len(inputs) == 1 and not _wanted(inputs, labels, *weights.values()):
        own = {k: v[0] for k, v in weights.items()} if stacked else weights
        tensors = _of_one(loss, own, *(value[0] for value in given))
    elif stacked and isinstance(model, HandWrittenStacked):
        tensors = _of_clients(
            model, weights, inputs, labels, mask, None, lambda rows: rows.mean("example")
        )
    else:
        over_weights = 0 if stacked else None
        tensors = vmap(grad(loss), in_dims=(over_weights, *[0] * len(given)))(weights, *given)
    return Gradients(tensors, ("client",), present)


def _masked_loss(model: Model) -> Callable[..., Tensor]:
    """`loss_function` over the examples that are present; 0 without any."""

    def loss(weights: Weights, inputs: Tensor, labels: Tensor, present: Tensor) -> Tensor:
        losses = functional.cross_entropy(model.logits(weights, inputs), labels, reduction="none")
        return torch.where(present, losses, 0.0).sum() / present.sum().clamp(min=1)

    return loss


def _of_one(loss: Callable[..., Tensor], weights: Weights, *given: Tensor) -> dict[str, Tensor]:
    """One client's gradient, with a client axis of 1, by an autograd that keeps nothing for a
    second derivative, as `grad` does."""
    leaves = {k: v.detach().requires_grad_() for k, v in weights.items()}
    with torch.enable_grad():
        value = loss(leaves, *given)
    found = torch.autograd.grad(value, list(leaves.values()), materialize_grads=True)
    return {k: v[None] for k, v in zip(leaves, found, strict=True)}
