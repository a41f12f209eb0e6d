"""Dense layers: the network for tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
import torch.nn.functional as functional
from torch import Tensor

from leakbench import dense_gradients
from leakbench.architectures import Architecture
from leakbench.contracts import Weights
from leakbench.errors import LeakbenchError, require_at_least
from leakbench.losses import Loss, require_classes
from leakbench.weights import Scheme, draw


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseNet:
    """Hidden dense layers with ReLU, then a dense head.

    Maps (b, *input_shape) to (b, outputs) logits; inputs of any shape are flattened.
    """

    input_shape: tuple[int, ...]
    outputs: int
    widths: tuple[int, ...] = (64, 32)
    bias: bool = True
    loss: Loss = "cross_entropy"
    scheme: Scheme = "uniform"
    mixes_examples: ClassVar[bool] = False

    @property
    def head(self) -> str:
        """Weight of the last layer."""
        return f"dense{len(self.widths) + 1}.weight"

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Parameter name -> shape, in the order gradients are listed."""
        widths = (math.prod(self.input_shape), *self.widths, self.outputs)
        shapes: dict[str, tuple[int, ...]] = {}
        for number, (inputs, units) in enumerate(pairwise(widths), start=1):
            shapes[f"dense{number}.weight"] = (units, inputs)
            if self.bias:
                shapes[f"dense{number}.bias"] = (units,)
        return shapes

    def init(self, generator: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
        """All weights, drawn by the scheme."""
        return draw(self.shapes(), self.scheme, generator, dtype)

    def logits(self, weights: Weights, inputs: Tensor) -> Tensor:
        """(b, *input_shape) -> (b, outputs)."""
        hidden, last = inputs.flatten(1), len(self.widths) + 1
        for number in range(1, last + 1):
            weight, bias = weights[f"dense{number}.weight"], weights.get(f"dense{number}.bias")
            hidden = functional.linear(hidden, weight, bias)
            if number < last:
                hidden = torch.relu(hidden)
        return hidden

    def is_frugal(self, *values: Tensor) -> bool:
        """`gradients.Frugal`."""
        return True

    def stacked_gradients(
        self, weights: Weights, inputs: Tensor, labels: Tensor
    ) -> dict[str, Tensor]:
        """`gradients.HandWrittenStacked`."""
        found = dense_gradients.example_gradients(
            self._layers(weights), inputs.flatten(2), labels, loss=self.loss
        )
        return self._named(found)

    def client_gradients(
        self, weights: Weights, inputs: Tensor, labels: Tensor, shares: Tensor
    ) -> dict[str, Tensor]:
        """`gradients.HandWrittenStacked`."""
        found = dense_gradients.client_gradients(
            self._layers(weights), inputs.flatten(2), labels, shares, loss=self.loss
        )
        return self._named(found)

    def _layers(self, weights: Weights) -> list[dense_gradients.Layer]:
        return [
            (weights[f"dense{number}.weight"], weights.get(f"dense{number}.bias"))
            for number in range(1, len(self.widths) + 2)
        ]

    def _named(self, layers: Sequence[dense_gradients.Layer]) -> dict[str, Tensor]:
        values = [value for layer in layers for value in layer if value is not None]
        return dict(zip(self.shapes(), values, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class MLP(Architecture):
    """Hidden dense ReLU layers, of 64 and 32 units by default, one dense head; also for tables.

    Args:
        widths: units of the hidden layers; [] is logistic regression. The federated code released
            with the TPDS and ICDCS papers has 600 and 100 for tables, and no biases.
        bias: whether layers have biases; without, the closed form for a dense first layer has
            nothing to divide by.
        loss: cross_entropy, binary_cross_entropy or mean_squared_error.
        one_output: a single output for two classes, under a loss other than cross-entropy.
    """

    name: ClassVar[str] = "mlp"
    widths: tuple[int, ...] = (64, 32)
    bias: bool = True
    loss: Loss = "cross_entropy"
    one_output: bool = False

    def __post_init__(self) -> None:
        Architecture.__post_init__(self)
        for number, width in enumerate(self.widths):
            require_at_least(self.name, 1, **{f"widths[{number}]": width})

    def build(self, input_shape: tuple[int, ...], classes: int, scheme: Scheme) -> DenseNet:
        outputs = 1 if self.one_output else classes
        try:
            require_classes(self.loss, outputs, classes)
        except LeakbenchError as error:
            raise LeakbenchError(f"model '{self.name}', key one_output: {error}") from None
        return DenseNet(
            input_shape=input_shape, outputs=outputs, widths=self.widths, bias=self.bias,
            loss=self.loss, scheme=scheme,
        )  # fmt: skip
