"""Derivatives of gradients in directions of the inputs, in forward mode: columns of Jacobians.

Those of single examples' gradients are `torch.func` programs of any model; a model may bring a
faster one of its own (`HandWrittenTangents`). What stands behind them on the path, a defense's
hooks or several local steps, is differentiated as it is (`of_copies`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.func import grad, jvp, vmap

from leakbench.contracts import Gradients, Model, Weights
from leakbench.gradients import loss_function
from leakbench.losses import Loss
from leakbench.weights import computed_alone

AT_ONCE = 64
"""Columns that are computed together: more do not fit a core's cache, and are no faster."""


@runtime_checkable
class HandWrittenTangents(Protocol):
    """A model that knows the derivatives of its per-example gradients itself."""

    def example_tangents(
        self, weights: Weights, inputs: Tensor, labels: Tensor, tangents: Tensor
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Gradient of each example's own loss, and its derivatives in c directions.

        inputs (n, *input shape); labels (n,) class indices or (n, classes) probabilities; tangents
        (c, n, *input shape), each example's own -> parameter name -> (n, *its shape), and
        -> (c, n, *its shape). Nothing is followed by autograd.
        """
        ...


class Plain:
    """A model without what it knows by hand: everything can be differentiated again."""

    def __init__(self, model: Model) -> None:
        self._model = model

    @property
    def head(self) -> str | None:
        """`contracts.Model`."""
        return self._model.head

    @property
    def loss(self) -> Loss:
        """`contracts.Model`."""
        return self._model.loss

    @property
    def mixes_examples(self) -> bool:
        """`contracts.Model`."""
        return self._model.mixes_examples

    def init(self, generator: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
        """`contracts.Model`."""
        return self._model.init(generator, dtype)

    def logits(self, weights: Weights, inputs: Tensor) -> Tensor:
        """`contracts.Model`."""
        return self._model.logits(weights, inputs)


def per_example(
    model: Model, weights: Weights, inputs: Tensor, labels: Tensor, tangents: Tensor
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """See `HandWrittenTangents`; by hand where the model can."""
    with torch.no_grad():
        if isinstance(model, HandWrittenTangents):
            return model.example_tangents(weights, inputs, labels, tangents)
        pairs = [
            _of_one(model, weights, inputs[i : i + 1], labels[i : i + 1], tangents[:, i : i + 1])
            for i in range(len(inputs))
        ]
    plain = {k: torch.stack([one[k] for one, _ in pairs]) for k in pairs[0][0]}
    return plain, {k: torch.stack([moved[k] for _, moved in pairs], dim=1) for k in plain}


def _of_one(
    model: Model, weights: Weights, one: Tensor, label: Tensor, tangents: Tensor
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Of one example (1, *input shape), in directions (c, 1, *input shape)."""
    by_weights = grad(loss_function(model))

    def gradient(values: Tensor) -> dict[str, Tensor]:
        return by_weights(weights, values, label)  # type: ignore[no-any-return]

    def moved(tangent: Tensor) -> dict[str, Tensor]:
        return jvp(gradient, (one,), (tangent,))[1]  # type: ignore[no-any-return]

    chunk = 1 if computed_alone(weights) else AT_ONCE
    return gradient(one), vmap(moved, chunk_size=chunk)(tangents)


def of_copies(
    path: Callable[..., Gradients],
    at: Sequence[Tensor],
    columns: Sequence[Tensor],
    at_once: int = AT_ONCE,
) -> tuple[Gradients, dict[str, Tensor]]:
    """Value of `path` (*at) for one client, and its derivatives, (c, *parameter shape).

    columns: like `at`, whose leading axis of 1 is then one of c directions. `at_once` of them at a
    time are clients of their own: a path that suits many clients suits them, whatever is in it.
    """
    names: list[str] = []

    def copies(*values: Tensor) -> tuple[Tensor, ...]:
        found = path(*values)
        names[:] = found.tensors
        return tuple(found.tensors.values())

    count, result = len(columns[0]), dict[str, Tensor]()
    with torch.no_grad():
        plain = path(*at)
        for start in range(0, count, at_once):
            some = tuple(value[start : start + at_once] for value in columns)
            same = tuple(v.expand_as(own).contiguous() for v, own in zip(at, some, strict=True))
            moved = jvp(copies, same, some)[1]
            for name, value in zip(names, moved, strict=True):
                if not start:
                    result[name] = value.new_empty(count, *value.shape[1:])
                result[name][start : start + at_once] = value
    return plain, result


def of_large(
    path: Callable[[Tensor], Gradients], at: Tensor, columns: Tensor
) -> tuple[Gradients, dict[str, Tensor]]:
    """As `of_copies`, where a copy of the path is too much, or knows backward sweeps only.

    u^T J is linear in u, and its derivative by u along a direction v is J v: the path runs once.
    """
    with torch.enable_grad():
        leaf = at.detach().requires_grad_()
        found = path(leaf)
        outputs = list(found.tensors.values())
        ups = [torch.zeros_like(value).requires_grad_() for value in outputs]
        (back,) = torch.autograd.grad(
            outputs, leaf, ups, create_graph=True, allow_unused=True, materialize_grads=True
        )
    plain = found.map(lambda _, value: value.detach())
    result = {k: v.new_empty(len(columns), *v.shape[1:]) for k, v in plain.tensors.items()}
    for i in range(len(columns)):
        moved = torch.autograd.grad(
            back, ups, columns[i : i + 1], retain_graph=True, materialize_grads=True
        )
        for name, value in zip(result, moved, strict=True):
            result[name][i] = value[0]
    return plain, result
