"""What a network's outputs are compared with."""

from __future__ import annotations

import torch.nn.functional as functional
from torch import Tensor


def class_probabilities(labels: Tensor, classes: int, like: Tensor) -> Tensor:
    """Class indices (...) as rows of 0 and 1 in the type of `like`; probabilities as they are."""
    if labels.is_floating_point():
        return labels
    return functional.one_hot(labels, classes).to(like.dtype)
