"""Distances between gradients, a prior on pictures, and the label that one gradient gives away."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from leakbench.contracts import Gradients, Leak, LocalSteps, Model
from leakbench.errors import LeakbenchError
from leakbench.losses import Loss

LEAST_STD = 1e-3
"""Noise on a tensor counts as at least this share of the victim's noisiest tensor: without noise a
tensor would get an infinite weight, and the others none."""


def squared_distance(
    simulated: Gradients, observed: Gradients, weights: Mapping[str, Tensor] | None = None
) -> Tensor:
    """Sum over all coordinates of (simulated - observed)^2 -> (n,); axes ("client",).

    The L2 matching loss of DLG, iDLG and CPL: a sum over tensors, no factor, no mean. weights: (n,)
    for each tensor, to multiply its part by.
    """
    total: Tensor | None = None
    for name, value in simulated.tensors.items():
        part: Tensor = _SquaredDistance.apply(value, observed.tensors[name])
        if weights is not None:
            part = part * weights[name]
        total = part if total is None else total + part
    assert total is not None
    return total


class _SquaredDistance(torch.autograd.Function):
    """(n, *shape) twice -> (n,) sum of squared differences, with fewer passes over memory."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, target: Tensor) -> Tensor:
        difference = (value - target).flatten(1)
        ctx.save_for_backward(value, target)
        ctx.difference = difference
        length: Tensor = torch.linalg.vector_norm(difference, dim=1)
        return length.square()

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor, Tensor | None]:
        value, target = ctx.saved_tensors
        difference = ctx.difference
        if torch.is_grad_enabled():  # a second derivative must see where it came from
            difference = (value - target).flatten(1)
        by_value = (difference * (2 * given)[:, None]).reshape(value.shape)
        return by_value, -by_value if ctx.needs_input_grad[1] else None


def noise_weights(leak: Leak, rows: Tensor) -> dict[str, Tensor] | None:
    """(k,) weight of each tensor, 1 / std^2 of its noise; the mean over coordinates is 1.

    All weights of a victim are 1 where a std is not published (nan) or none is positive. None for
    an attacker who knows of no noise.
    """
    if leak.noise_std is None:
        return None
    std = {name: value[rows] for name, value in leak.noise_std.items()}
    largest = torch.stack(list(std.values())).amax(dim=0)  # nan where any is
    known = torch.isfinite(largest) & (largest > 0)
    # Shares of the largest std: where all are equal, every weight is exactly 1.
    inverse = {
        name: torch.where(known, (value / largest).clamp(min=LEAST_STD), 1.0).square().reciprocal()
        for name, value in std.items()
    }
    sizes = {name: leak.observed.tensors[name][0].numel() for name in inverse}
    mean = torch.zeros_like(largest)
    for name, value in inverse.items():
        mean = mean + value * sizes[name]
    mean = mean / sum(sizes.values())
    return {name: value / mean for name, value in inverse.items()}


def squared_loss(
    leak: Leak, inputs: Tensor, labels: Tensor, rows: Tensor, *, local_steps: LocalSteps = "unroll"
) -> Tensor:
    """(k,) `squared_distance` of the simulated to the observed gradients, over all observations.

    Weighted by `noise_weights`: up to a factor of each victim's own, the negative log-likelihood of
    Gaussian noise.
    """
    weights = noise_weights(leak, rows)
    total: Tensor | None = None
    for seen in leak.observations:
        simulated = seen.simulate(inputs, labels, rows, local_steps=local_steps)
        part = squared_distance(simulated, seen.of(rows), weights)
        total = part if total is None else total + part
    assert total is not None
    return total


def cosine_loss(
    leak: Leak, inputs: Tensor, labels: Tensor, rows: Tensor, *, local_steps: LocalSteps = "unroll"
) -> Tensor:
    """(k,) 1 - cosine of the angle between simulated and observed gradient, over all observations.

    One angle over all parameters jointly. A gradient of length 0 has the loss 1.
    """
    total: Tensor | None = None
    for seen in leak.observations:
        simulated = seen.simulate(inputs, labels, rows, local_steps=local_steps)
        observed = seen.of(rows)
        product: Tensor | None = None
        for name, value in simulated.tensors.items():
            part = (value * observed.tensors[name]).flatten(1).sum(dim=1)
            product = part if product is None else product + part
        assert product is not None
        # One length after the other: the product of two small ones may round to 0.
        part = 1 - product / _length(simulated) / _length(observed)
        total = part if total is None else total + part
    assert total is not None
    return total


class Distance(Protocol):
    """(k,) how far the gradients of dummy inputs are from those of victims `rows`."""

    def __call__(
        self,
        leak: Leak,
        inputs: Tensor,
        labels: Tensor,
        rows: Tensor,
        *,
        local_steps: LocalSteps = "unroll",
    ) -> Tensor: ...


Matching = Literal["squared", "cosine"]
"""By which distance gradients are matched."""

DISTANCES: dict[Matching, Distance] = {"squared": squared_loss, "cosine": cosine_loss}


def _length(gradients: Gradients) -> Tensor:
    """L2 norm, 1 in place of 0."""
    norm = gradients.flat_norm()
    return torch.where(norm == 0, 1.0, norm)


NO_NEIGHBOURS = (
    "takes images (channels, height, width) of at least 2 x 2 pixels, not inputs of shape {shape}; "
    "allowed for those: total_variation 0"
)


def has_neighbours(input_shape: tuple[int, ...]) -> bool:
    """Whether inputs of this shape have a total variation."""
    return len(input_shape) == 3 and min(input_shape[-2:]) >= 2


def total_variation(inputs: Tensor) -> Tensor:
    """(k, B, channels, height, width) -> (k,) mean |difference| to the right plus downwards.

    Raises:
        LeakbenchError: the inputs are not images of 2 x 2 pixels at least.
    """
    if not has_neighbours(shape := tuple(inputs.shape[2:])):
        raise LeakbenchError(f"total variation: {NO_NEIGHBOURS.format(shape=shape)}")
    right, down = inputs.diff(dim=-1).abs(), inputs.diff(dim=-2).abs()
    return right.flatten(1).mean(dim=1) + down.flatten(1).mean(dim=1)


def sign_rule_labels(leak: Leak) -> Tensor:
    """(n, 1) label of one example: the head row with the smallest gradient sum (iDLG, CPL).

    Cross-entropy gives the true class the only negative logit gradient, and features after a
    sigmoid or ReLU are not negative, so the row sum of the true class is the only negative one.
    So does binary cross-entropy with an output a class; of a single output the sum is negative for
    class 1. Clipping keeps the sign; noise may turn it, less often the more observations are
    summed. Valid for batch_size 1.

    Raises:
        LeakbenchError: a network without a dense head, or under another loss.
    """
    head = require_head(leak.model, "cross_entropy", "binary_cross_entropy")
    sums: Tensor | None = None
    for seen in leak.observations:
        rows = seen.gradients.tensors[head].sum(dim=-1)
        sums = rows if sums is None else sums + rows
    assert sums is not None
    if sums.shape[-1] == 1:
        return (sums < 0).to(torch.int64)
    return sums.argmin(dim=-1, keepdim=True)


def require_head(model: Model, *losses: Loss) -> str:
    """Name of the head whose gradient gives labels away under one of these losses.

    Raises:
        LeakbenchError: the model has none, or another loss.
    """
    allowed = 'allowed: threat models that grant "labels", or an attack that finds them itself'
    if model.head is None:
        raise LeakbenchError(f"labels: the model names no dense head to read them off; {allowed}")
    if model.loss not in losses:
        raise LeakbenchError(
            f"labels: they are read off gradients of {' and '.join(losses)}, not of {model.loss}; "
            f"{allowed}"
        )
    return model.head
