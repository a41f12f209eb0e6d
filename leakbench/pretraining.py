"""Training a network before it is attacked: what leaks from trained weights is another question."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from leakbench.contracts import Model, Weights
from leakbench.losses import mean_loss, predictions


@runtime_checkable
class Judged(Protocol):
    """A model that is faster where nobody wants a derivative."""

    def logits_alone(self, weights: Weights, inputs: Tensor) -> Tensor:
        """As `Model.logits`, without a derivative."""
        ...


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
    """Adam on the model's mean loss, no defense; the last, smaller batch of an epoch counts too.

    inputs (m, *input shape), labels (m,); `generator` shuffles them before every epoch. The same
    arguments give the same weights on one kind of machine; it always runs on the CPU.
    """
    trained = {name: value.clone().requires_grad_() for name, value in weights.items()}
    optimiser = torch.optim.Adam(trained.values(), lr=learning_rate)
    for _ in range(epochs):
        for chosen in torch.randperm(len(inputs), generator=generator).split(batch_size):
            optimiser.zero_grad()
            loss = mean_loss(model.loss, model.logits(trained, inputs[chosen]), labels[chosen])
            loss.backward()
            optimiser.step()
    return {name: value.detach() for name, value in trained.items()}


def accuracy(model: Model, weights: Weights, inputs: Tensor, labels: Tensor) -> float:
    """Share of `inputs` that the network classifies right.

    Where a BatchNorm takes the batch at hand, that is every 500 of `inputs`; see `modules.settled`.
    """
    together = 500 if model.mixes_examples else 64  # few enough to stay in a processor's cache
    logits = model.logits_alone if isinstance(model, Judged) else model.logits
    with torch.no_grad():
        found = [predictions(model.loss, logits(weights, x)) for x in inputs.split(together)]
    return float((torch.cat(found) == labels).float().mean())
