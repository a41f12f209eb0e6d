"""The truth about what was attacked, and which reconstruction is compared with which image."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from leakbench.data import Dataset


@dataclass(frozen=True, slots=True, kw_only=True)
class Victims:
    """The truth about m images: candidate numbers (m,), images (m, *shape), labels (m,).

    `each` images that follow one another were behind one gradient.
    """

    dataset: Dataset
    numbers: Tensor
    images: Tensor
    labels: Tensor
    each: int = 1

    def rows(self, gradients: Tensor) -> Tensor:
        """(k,) gradient numbers -> (k * each,) numbers of the images behind them."""
        places = torch.arange(self.each, device=gradients.device)
        return (gradients[:, None] * self.each + places).flatten()

    def in_place(self, inputs: Tensor, gradients: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Pair reconstructions of `gradients` (k,), all of them by default, with their images.

        inputs (k, B, *shape) on the CPU -> (k * B, *shape), each in the place of the image it is
        compared with, and which of its batch each one was, (k, B).
        """
        truth = self.images if gradients is None else self.images[self.rows(gradients)]
        places = paired(inputs, truth.unflatten(0, (len(inputs), -1)))
        return inputs[torch.arange(len(inputs))[:, None], places].flatten(0, 1), places


def paired(inputs: Tensor, truth: Tensor) -> Tensor:
    """(k, B) which reconstruction is whose: the pairing with the least clamped MSE in all.

    inputs, truth: (k, B, *shape). Row i of the result holds, for each true image of batch i, the
    place of its reconstruction. A batch's gradient does not know the order of its examples. An
    image with a nan is the worst match for everybody.
    """
    k, batch = inputs.shape[:2]
    if batch == 1:
        return torch.zeros(k, 1, dtype=torch.int64)
    guesses = inputs.double().clamp(0.0, 1.0).flatten(2)
    wanted = truth.double().flatten(2)
    cost = (wanted[:, :, None] - guesses[:, None]).square().mean(dim=3)
    cost = cost.nan_to_num(nan=2.0, posinf=2.0)  # above any clamped error
    places = [linear_sum_assignment(one.cpu().numpy())[1] for one in cost]
    return torch.from_numpy(np.stack(places))


def label_overlap(found: Tensor, truth: Tensor) -> Tensor:
    """(k,) share of the labels of each batch that were found, each counted as often as it occurs.

    found, truth: (k, B) class indices, in any order.
    """
    shares = []
    for guesses, labels in zip(found.tolist(), truth.tolist(), strict=True):
        right = Counter(guesses) & Counter(labels)
        shares.append(right.total() / len(labels))
    return torch.tensor(shares)
