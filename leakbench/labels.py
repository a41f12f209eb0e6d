"""Labels that a gradient gives away."""

from __future__ import annotations

import torch
from torch import Tensor

from leakbench.contracts import Leak, Model, Streams, Weights
from leakbench.gradients import per_example
from leakbench.matching import require_head, sign_rule_labels

DUMMIES = 16
"""Random inputs a victim's mean softmax is estimated on."""


def labels_of(leak: Leak, streams: Streams) -> Tensor:
    """(n, B) class indices: the granted ones, else what `infer` finds."""
    return leak.labels if leak.labels is not None else infer(leak, streams)


def infer(leak: Leak, streams: Streams) -> Tensor:
    """(n, B) class indices that the gradient of the last layer shows.

    One example: the sign rule. A batch: how often each class is in it, in ascending order, since a
    mean says nothing about places.
    """
    return sign_rule_labels(leak) if leak.batch_size == 1 else _counted(leak, streams)


def _counted(leak: Leak, streams: Streams) -> Tensor:
    """(n, B) labels of a batch from gradient = mean softmax - counts / B, the head bias'.

    The mean softmax is that of uniform noise of every brightness, so counts = B (softmax -
    gradient) come out as fractions. A class whose gradient is negative is in the batch for certain
    and is counted once; what is left of B goes to the largest remainders, one by one. Without a
    head bias, the gradient is the head row's sum over the sum of features that noise has. Clipping
    scales the gradient and spoils the counts; behind local steps they are those of all steps
    together. Cross-entropy only.
    """
    require_head(leak.model, "cross_entropy")
    fractions = torch.stack([_fractions(leak, streams, k) for k in range(len(leak.observations))])
    left, gradient = fractions.mean(dim=0).unbind(dim=-1)
    found = []
    for _ in range(leak.batch_size):
        certain = gradient < 0
        # Certain classes first, by gradient; when there are none left, by remainder.
        first = torch.where(certain, gradient, torch.inf).argmin(dim=-1)
        chosen = torch.where(certain.any(dim=-1), first, left.argmax(dim=-1))[:, None]
        left = left.scatter_add(1, chosen, -torch.ones_like(left[:, :1]))
        gradient = gradient.scatter(1, chosen, 0.0)
        found.append(chosen)
    return torch.cat(found, dim=1).sort(dim=1).values


def _fractions(leak: Leak, streams: Streams, number: int) -> Tensor:
    """(n, classes, 2) estimated counts and gradient of the head bias in one observation."""
    seen = leak.observations[number]
    model, weights, tensors = leak.model, seen.weights, seen.gradients.tensors
    head = require_head(model, "cross_entropy")
    bias = head.removesuffix("weight") + "bias"
    low, high = leak.input_range
    noise = streams.uniform("labels", (DUMMIES, *leak.input_shape))
    levels = torch.linspace(0, 1, DUMMIES, dtype=noise.dtype)
    noise = low + (high - low) * levels.reshape(-1, *[1] * len(leak.input_shape)) * noise
    noise = noise.to(dtype=leak.dtype, device=leak.device)
    found = []
    for row, inputs in enumerate(noise):  # one by one: the same bits whatever the chunk
        softmax = model.logits(weights, inputs).softmax(dim=-1)
        if bias in tensors:
            gradient = tensors[bias][row]
        else:
            gradient = tensors[head][row].sum(dim=-1)
            gradient = gradient / _feature_sum(model, head, weights, inputs, softmax)
        counts = leak.batch_size * (softmax.mean(dim=0) - gradient)
        found.append(torch.stack([counts, gradient], dim=-1))
    return torch.stack(found)


def _feature_sum(
    model: Model, head: str, weights: Weights, inputs: Tensor, softmax: Tensor
) -> Tensor:
    """Mean over `inputs` of the sum of the features that enter the head.

    Under label c the gradient of head row c is (softmax_c - 1) times the features; c is the least
    likely class, since the factor must not be 0.
    """
    labels = softmax.argmin(dim=-1)
    gradients = per_example(model, weights, inputs[None], labels[None]).tensors[head][0]
    examples = torch.arange(len(inputs), device=inputs.device)
    rows = gradients[examples, labels].sum(dim=-1)
    return (rows / (softmax[examples, labels] - 1)).mean()
