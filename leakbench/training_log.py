"""What one sees of a round of training: loss, norms before the defense, scales, updates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leakbench.contracts import Gradients, Model, Weights
from leakbench.losses import mean_loss
from leakbench.training import Batch

QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Of the norms that a log keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundLog:
    """One round; a number that is not finite is None.

    Attributes:
        round: counted from 1.
        loss: mean over the examples of the first local step, at the weights it begins with.
        norms: `QUANTILES` of the L2 norms of gradient tensors before the defense in the first local
            step, over tensors, clients and examples; of batches where the defense does not see
            examples. They are what a bound by tensor is compared with.
        scales: see `Defense.scales`.
        update_raw, update_released, update_distance: L2 norm of a client's dW before and after the
            defense, and of their difference, in units of weights, the mean over clients.
    """

    round: int
    loss: float | None
    norms: tuple[float | None, ...]
    scales: Mapping[str, float | None]
    update_raw: float | None
    update_released: float | None
    update_distance: float | None

    def as_dict(self) -> dict[str, Any]:
        """As a record keeps it."""
        return {
            "round": self.round, "loss": self.loss, "norms": list(self.norms), **self.scales,
            "update_raw": self.update_raw, "update_released": self.update_released,
            "update_distance": self.update_distance,
        }  # fmt: skip


@dataclass(slots=True)
class RoundObserver:
    """Looks on at one round (`training.Watch`), the clients of which may come in groups."""

    _norms: list[Tensor] = field(default_factory=list)
    _raw: list[Tensor] = field(default_factory=list)
    _released: list[Tensor] = field(default_factory=list)
    _distance: list[Tensor] = field(default_factory=list)

    def gradients(self, found: Gradients) -> None:
        """Keep the norms of every tensor; padding does not count."""
        norms = torch.stack(list(found.norms().values()))
        self._norms.append(
            norms.flatten() if found.mask is None else norms[:, found.mask].flatten()
        )

    def updates(self, raw: Gradients, released: Gradients) -> None:
        """Keep the norms of whole updates."""
        self._raw.append(_whole(raw))
        self._released.append(_whole(released))
        difference = {k: v - raw.tensors[k] for k, v in released.tensors.items()}
        self._distance.append(_whole(Gradients(difference, ("client",))))

    @staticmethod
    def loss(model: Model, weights: Weights, batch: Batch) -> float:
        """Mean over all examples of a batch of clients, who share the weights."""
        inputs, labels = batch.inputs.flatten(0, 1), batch.labels.flatten(0, 1)
        if batch.mask is not None:
            inputs, labels = inputs[batch.mask.flatten()], labels[batch.mask.flatten()]
        if not len(labels):
            return math.nan
        return float(mean_loss(model.loss, model.logits(weights, inputs), labels))

    def log(self, round: int, loss: float, scales: Mapping[str, float]) -> RoundLog:
        """What was seen, of round number `round` counted from 1."""
        norms: list[float] = [math.nan] * len(QUANTILES)
        seen = [each for each in self._norms if len(each)]
        if seen:
            # torch's own takes no more than 16 million.
            norms = np.quantile(torch.cat(seen).to(torch.float64).cpu().numpy(), QUANTILES).tolist()
        return RoundLog(
            round=round,
            loss=_finite(loss),
            norms=tuple(map(_finite, norms)),
            scales={name: _finite(float(value)) for name, value in scales.items()},
            update_raw=_mean(self._raw),
            update_released=_mean(self._released),
            update_distance=_mean(self._distance),
        )


def _whole(update: Gradients) -> Tensor:
    """Norm of each client's whole update, (clients,), float64 on the CPU."""
    squares = [norm.to(torch.float64) ** 2 for norm in update.norms().values()]
    return torch.stack(squares).sum(dim=0).sqrt().cpu()


def _mean(parts: list[Tensor]) -> float | None:
    return _finite(fmean(torch.cat(parts).tolist())) if parts else None


def _finite(value: float) -> float | None:
    """Rounded to what no processor disagrees on."""
    return float(f"{value:.6g}") if math.isfinite(value) else None
