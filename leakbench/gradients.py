"""Per-example, batch and stacked gradients, differentiable in the inputs.

They are `torch.func` programs of any model; a model may bring faster programs of its own for the
gradients of single examples (`HandWritten`, `HandWrittenStacked`). Those of a large network
(`weights.computed_alone`) are computed one after another, each by one plain backward pass.

Shapes: inputs (clients, batch, *input shape); labels (clients, batch) class indices or
(clients, batch, classes) probabilities. The loss is the model's (`losses`), without any factor, for
client and attacker alike: an attacker whose loss differs by a factor never reaches distance 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.func import grad, vmap

from leakbench.contracts import Gradients, Model, Weights
from leakbench.errors import LeakbenchError
from leakbench.losses import example_losses, mean_loss
from leakbench.weights import computed_alone

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
class RowByRow(HandWritten, Protocol):
    """A model that may compute its per-example gradients one after another."""

    def is_row_by_row(self, *values: Tensor) -> bool:
        """Whether it does with these weights and inputs, each by itself: few examples then cost no
        more each than many, and need no others beside them."""
        ...

    def stacked_gradients(
        self, weights: Weights, inputs: Tensor, labels: Tensor
    ) -> dict[str, Tensor]:
        """As `HandWrittenStacked` has it; asked where it computes them so."""
        ...


@runtime_checkable
class HandWrittenStacked(Protocol):
    """A model that knows its gradients where clients have weights of their own.

    It is asked where nobody wants a derivative. weights have a leading client axis; inputs and
    labels are as everywhere in this module.
    """

    def stacked_gradients(
        self, weights: Weights, inputs: Tensor, labels: Tensor
    ) -> dict[str, Tensor]:
        """Parameter name -> (clients, batch, *its shape), the gradient of each example's own loss.

        With one client, a row's bits must not depend on the other rows.
        """
        ...

    def client_gradients(
        self, weights: Weights, inputs: Tensor, labels: Tensor, shares: Tensor
    ) -> dict[str, Tensor]:
        """Parameter name -> (clients, *its shape), of each client's sum of losses times `shares`,
        (clients, batch)."""
        ...


@runtime_checkable
class Frugal(HandWrittenStacked, Protocol):
    """A model whose programs may need little memory beside what they return."""

    def is_frugal(self, *values: Tensor) -> bool:
        """Whether they do with these weights and inputs: any number of examples then goes through
        them at once, and so does a batch."""
        ...


def loss_function(model: Model) -> Callable[[Weights, Tensor, Tensor], Tensor]:
    """Mean loss of `model` over a batch: (weights, inputs, labels) -> scalar."""

    def loss(weights: Weights, inputs: Tensor, labels: Tensor) -> Tensor:
        return mean_loss(model.loss, model.logits(weights, inputs), labels)

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

    Raises:
        LeakbenchError: a network that mixes examples.
    """
    if model.mixes_examples:
        raise LeakbenchError(
            "model: the examples of a batch mix (as batch normalisation does), so none has a "
            "gradient of its own; use GroupNorm, or a defense and a leak point of whole batches"
        )
    if stacked:
        found = _of_clients(model, weights, inputs, labels, chunk_size)
    else:
        flat = _of_examples(model, weights, inputs.flatten(0, 1), labels.flatten(0, 1), chunk_size)
        found = {k: v.unflatten(0, inputs.shape[:2]) for k, v in flat.items()}
    return Gradients(found, ("client", "example"), mask)


def at_once(
    model: Model,
    weights: Weights,
    inputs: Tensor,
    labels: Tensor,
    *,
    stacked: bool,
    chunk_size: int | None,
) -> int | None:
    """How many examples `per_example` computes together where no derivative is wanted; None: all.

    With `stacked`, no fewer than a client has, if he has no more than these.
    """
    by_hand = isinstance(model, HandWrittenStacked) or (
        _row_by_row(model, weights, inputs, labels) is not None
        if stacked
        else isinstance(model, HandWritten)
    )
    if inputs.is_cpu and (by_hand or computed_alone(weights, stacked=stacked)):
        return CACHED if chunk_size is None else min(_rounded(chunk_size), CACHED)
    return chunk_size if stacked or chunk_size is None else _rounded(chunk_size)


def _row_by_row(model: Model, weights: Weights, inputs: Tensor, labels: Tensor) -> RowByRow | None:
    """The model, if it computes these examples one after another."""
    if not isinstance(model, RowByRow):
        return None
    values = [inputs, *weights.values(), *([labels] if labels.is_floating_point() else [])]
    return model if model.is_row_by_row(*values) else None


def _of_examples(
    model: Model, weights: Weights, inputs: Tensor, labels: Tensor, chunk_size: int | None
) -> dict[str, Tensor]:
    """Of examples (n, *input shape) that share their weights."""
    rows = len(inputs)
    chunk = _rounded(rows if chunk_size is None else chunk_size)
    followed = _followed(inputs, labels, *weights.values())
    by_hand = _by_hand(model, weights, followed)
    alone = not followed and _row_by_row(model, weights, inputs, labels) is not None
    if by_hand is None and computed_alone(weights):
        loss = loss_function(model)
        return _one_by_one(
            lambda i: _of_one(loss, weights, inputs[i : i + 1], labels[i : i + 1]), rows, followed
        )
    if by_hand is not None and not _is_frugal(model, inputs, *weights.values()):
        chunk = _together(chunk, inputs, followed)
    last = rows % chunk or chunk
    missing = 0 if alone else _rounded(last) - last
    inputs, labels = _padded(inputs, missing), _padded(labels, missing)
    if by_hand is None:
        over_examples = _over_examples(model, chunk if rows > chunk else None)
        found = over_examples(weights, inputs, labels)
    else:
        found = _in_chunks(lambda some: by_hand(inputs[some], labels[some]), len(inputs), chunk)
    if missing:  # a slice costs a pass over memory in its derivative, even of everything
        found = {k: v[:rows] for k, v in found.items()}
    return found


def _by_hand(
    model: Model, weights: Weights, followed: bool
) -> Callable[[Tensor, Tensor], Mapping[str, Tensor]] | None:
    """The model's own program for examples that share `weights`, if it has one for this case."""
    if isinstance(model, HandWritten) and not _followed(*weights.values()):
        return lambda inputs, labels: model.example_gradients(weights, inputs, labels)
    if not isinstance(model, HandWrittenStacked) or followed:
        return None
    shared = {k: v[None] for k, v in weights.items()}

    def of_one_client(inputs: Tensor, labels: Tensor) -> Mapping[str, Tensor]:
        found = model.stacked_gradients(shared, inputs[None], labels[None])
        return {k: v[0] for k, v in found.items()}

    return of_one_client


def _of_clients(
    model: Model, weights: Weights, inputs: Tensor, labels: Tensor, chunk_size: int | None
) -> dict[str, Tensor]:
    """Of the examples (clients, batch, *input shape) of clients with weights of their own."""
    clients, batch = inputs.shape[:2]
    values = (inputs, *weights.values())
    followed = _followed(labels, *values)
    if computed_alone(weights, stacked=True):
        return _one_by_one(
            lambda i: {
                k: v[None]
                for k, v in _of_examples(
                    model, {k: v[i] for k, v in weights.items()}, inputs[i], labels[i], chunk_size
                ).items()
            },
            clients,
            followed,
        )
    if not followed and (program := _row_by_row(model, weights, inputs, labels)):
        return program.stacked_gradients(weights, inputs, labels)
    if followed or not isinstance(model, HandWrittenStacked):
        together = None if chunk_size is None else max(chunk_size // batch, 1)
        over_clients = vmap(_over_examples(model, chunk_size), chunk_size=together)
        found = over_clients(weights, inputs, labels)
        return found
    if _is_frugal(model, *values):
        chunk = clients * batch
    else:
        chunk = _together(clients * batch if chunk_size is None else chunk_size, inputs, followed)
    return _in_chunks(
        lambda some: model.stacked_gradients(_of(weights, some), inputs[some], labels[some]),
        clients,
        chunk // batch,
    )


def _over_examples(
    model: Model, chunk_size: int | None
) -> Callable[[Weights, Tensor, Tensor], dict[str, Tensor]]:
    """(weights, inputs (n, *input shape), labels (n, ...)) -> gradients (n, *parameter shape)."""
    loss = loss_function(model)

    def of_one(weights: Weights, one: Tensor, label: Tensor) -> dict[str, Tensor]:
        return grad(loss)(weights, one[None], label[None])  # type: ignore[no-any-return]

    return vmap(of_one, in_dims=(None, 0, 0), chunk_size=chunk_size)


def _in_chunks(
    compute: Callable[[slice], Mapping[str, Tensor]], total: int, size: int
) -> dict[str, Tensor]:
    """Results of `size` rows at a time (at least one), joined and contiguous."""
    size = max(size, 1)
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


def _one_by_one(
    compute: Callable[[int], Mapping[str, Tensor]], total: int, followed: bool
) -> dict[str, Tensor]:
    """Results (1, ...) of `compute(0)` to `compute(total - 1)`, joined.

    Where no derivative is wanted each goes to its place at once: never are there two of all.
    """
    if followed or total == 1:
        parts = [compute(i) for i in range(total)]
        if total == 1:
            return dict(parts[0])
        return {k: torch.cat([part[k] for part in parts]) for k in parts[0]}
    return _in_chunks(lambda some: compute(some.start), total, 1)


def _of(weights: Weights, some: slice) -> dict[str, Tensor]:
    """Stacked weights of some of the clients."""
    return {k: v[some] for k, v in weights.items()}


def _followed(*values: Tensor) -> bool:
    """Whether autograd follows one of them, so that derivatives are wanted."""
    return torch.is_grad_enabled() and any(value.requires_grad for value in values)


def _together(chunk: int, inputs: Tensor, followed: bool) -> int:
    """How many of `chunk` examples to compute together by hand."""
    return min(chunk, CACHED) if inputs.is_cpu and not followed else chunk


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
    (clients, batch), present = inputs.shape[:2], None
    given: tuple[Tensor, ...] = (inputs, labels)
    loss: Callable[..., Tensor] = loss_function(model)
    if mask is not None:
        # Padding may be nan, and the derivative of nan is nan even where it is not counted.
        inputs = torch.where(mask.reshape(mask.shape + (1,) * (inputs.ndim - 2)), inputs, 0.0)
        given, loss, present = (inputs, labels, mask), _masked_loss(model), mask.any(dim=1)
    followed = _followed(inputs, labels, *weights.values())
    if computed_alone(weights, stacked=stacked):
        found = _one_by_one(
            lambda i: _of_one(
                loss,
                {k: v[i] for k, v in weights.items()} if stacked else weights,
                *(value[i] for value in given),
            ),
            clients,
            followed,
        )
    elif clients == 1 and not followed and not _is_frugal(model, inputs, *weights.values()):
        alone = {k: v[0] for k, v in weights.items()} if stacked else weights
        found = _of_one(loss, alone, *(value[0] for value in given))
    elif isinstance(model, HandWrittenStacked) and not followed:
        own = weights if stacked else {k: v.expand(clients, *v.shape) for k, v in weights.items()}
        there = inputs.new_ones(clients, batch) if mask is None else mask.to(inputs.dtype)
        shares = there / there.sum(dim=1, keepdim=True).clamp(min=1)
        found = _in_chunks(
            lambda some: model.client_gradients(
                _of(own, some), inputs[some], labels[some], shares[some]
            ),
            clients,
            _together(clients * batch, inputs, followed) // batch,
        )
    else:
        over_weights = 0 if stacked else None
        found = vmap(grad(loss), in_dims=(over_weights, *[0] * len(given)))(weights, *given)
    return Gradients(found, ("client",), present)


def _is_frugal(model: Model, *values: Tensor) -> bool:
    return isinstance(model, Frugal) and model.is_frugal(*values)


def _masked_loss(model: Model) -> Callable[..., Tensor]:
    """`loss_function` over the examples that are present; 0 without any."""

    def loss(weights: Weights, inputs: Tensor, labels: Tensor, present: Tensor) -> Tensor:
        losses = example_losses(model.loss, model.logits(weights, inputs), labels)
        return torch.where(present, losses, 0.0).sum() / present.sum().clamp(min=1)

    return loss


def _of_one(loss: Callable[..., Tensor], weights: Weights, *given: Tensor) -> dict[str, Tensor]:
    """One gradient, with a leading axis of 1, by an autograd that keeps what a second derivative
    needs only where one is wanted; `grad` always does."""
    followed = _followed(*given, *weights.values())
    leaves = {
        k: v if followed and v.requires_grad else v.detach().requires_grad_()
        for k, v in weights.items()
    }
    with torch.enable_grad():
        value = loss(leaves, *given)
    found = torch.autograd.grad(
        value, list(leaves.values()), create_graph=followed, materialize_grads=True
    )
    return {k: v[None] for k, v in zip(leaves, found, strict=True)}
