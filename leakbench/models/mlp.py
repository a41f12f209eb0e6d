"""Dense layers: the network for tables."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
import torch.nn.functional as functional
from torch import Tensor

from leakbench.architectures import Architecture, Scheme, draw
from leakbench.contracts import Weights

MLP_HIDDEN = (64, 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseNet:
    """Hidden dense layers of 64 and 32 units with ReLU, then a dense head.

    Maps (b, *input_shape) to (b, classes) logits; inputs of any shape are flattened.
    """

    input_shape: tuple[int, ...]
    classes: int
    scheme: Scheme = "uniform"
    head: str = f"dense{len(MLP_HIDDEN) + 1}.weight"

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Parameter name -> shape, in the order gradients are listed."""
        widths = (math.prod(self.input_shape), *MLP_HIDDEN, self.classes)
        shapes: dict[str, tuple[int, ...]] = {}
        for number, (inputs, units) in enumerate(pairwise(widths), start=1):
            shapes[f"dense{number}.weight"] = (units, inputs)
            shapes[f"dense{number}.bias"] = (units,)
        return shapes

    def init(self, generator: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
        """All weights, drawn by the scheme."""
        return draw(self.shapes(), self.scheme, generator, dtype)

    def logits(self, weights: Weights, inputs: Tensor) -> Tensor:
        """(b, *input_shape) -> (b, classes)."""
        hidden, last = inputs.flatten(1), len(MLP_HIDDEN) + 1
        for number in range(1, last + 1):
            weight, bias = weights[f"dense{number}.weight"], weights[f"dense{number}.bias"]
            hidden = functional.linear(hidden, weight, bias)
            if number < last:
                hidden = torch.relu(hidden)
        return hidden


@dataclass(frozen=True, slots=True, kw_only=True)
class MLP(Architecture):
    """Two hidden dense ReLU layers of 64 and 32 units, one dense head; also for tables."""

    name: ClassVar[str] = "mlp"

    def build(self, input_shape: tuple[int, ...], classes: int, scheme: Scheme) -> DenseNet:
        return DenseNet(input_shape=input_shape, classes=classes, scheme=scheme)
