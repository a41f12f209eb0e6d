"""Training a network before it is attacked: what leaks from trained weights is another question."""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch import Tensor

from leakbench.contracts import Model, Weights


def pretrain(
    model: Model,
    weights: Weights,
    inputs: Tensor,
    labels: Tensor,
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """Adam on mean cross-entropy, no defense; the last, smaller batch of an epoch counts too.

    inputs (m, *input shape), labels (m,); `generator` shuffles them before every epoch. The same
    arguments give the same weights on one kind of machine; it always runs on the CPU.
    """
    trained = {name: value.clone().requires_grad_() for name, value in weights.items()}
    optimiser = torch.optim.Adam(trained.values(), lr=learning_rate)
    for _ in range(epochs):
        for chosen in torch.randperm(len(inputs), generator=generator).split(batch_size):
            optimiser.zero_grad()
            loss = functional.cross_entropy(model.logits(trained, inputs[chosen]), labels[chosen])
            loss.backward()
            optimiser.step()
    return {name: value.detach() for name, value in trained.items()}


def accuracy(model: Model, weights: Weights, inputs: Tensor, labels: Tensor) -> float:
    """Share of `inputs` whose largest logit is their label's."""
    with torch.no_grad():
        parts = [model.logits(weights, part).argmax(dim=1) for part in inputs.split(500)]
    return float((torch.cat(parts) == labels).float().mean())
