"""Convolutions with ReLU and max-pooling and one dense layer: a network to train."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as functional
from torch import Tensor

from leakbench import relu_gradients
from leakbench.architectures import Architecture, Takes
from leakbench.contracts import Weights
from leakbench.errors import LeakbenchError
from leakbench.losses import Loss, class_probabilities
from leakbench.sigmoid_gradients import is_compiled
from leakbench.weights import Scheme, draw


@dataclass(frozen=True, slots=True, kw_only=True)
class ReluNet:
    """Convolutions, each with ReLU and 2x2 max-pooling, then one dense layer.

    Kernels of side `kernel` with `padding` zeros around; pooling leaves out an odd row or column.

    Maps (b, channels, height, width) to (b, classes) logits; no biases, so every layer is one
    tensor. For training: its second derivatives are mostly 0, which starves gradient matching.

    Raises:
        LeakbenchError: inputs too small for so many layers.
    """

    input_shape: tuple[int, ...]
    classes: int
    channels: tuple[int, ...]
    kernel: int = 5
    padding: int = 2
    scheme: Scheme = "default"
    head: ClassVar[str] = "dense.weight"
    loss: ClassVar[Loss] = "cross_entropy"
    mixes_examples: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _, height, width = self.input_shape
        least = 1
        for _ in self.channels:
            least = max(2 * least + self.kernel - 1 - 2 * self.padding, 1)
        if min(height, width) < least:
            layers = f"{len(self.channels)} convolutions of {self.kernel} x {self.kernel}"
            raise LeakbenchError(
                f"model: nothing of {height} x {width} pixels is left after {layers} with pooling; "
                f"allowed: {least} x {least} or more"
            )

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Parameter name -> shape, in the order gradients are listed."""
        channels, height, width = self.input_shape
        shapes: dict[str, tuple[int, ...]] = {}
        less = self.kernel - 1 - 2 * self.padding
        for number, units in enumerate(self.channels, start=1):
            shapes[f"conv{number}.weight"] = (units, channels, self.kernel, self.kernel)
            channels, height, width = units, (height - less) // 2, (width - less) // 2
        shapes["dense.weight"] = (self.classes, channels * height * width)
        return shapes

    def init(self, generator: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
        """All weights, drawn by the scheme."""
        return draw(self.shapes(), self.scheme, generator, dtype)

    def logits(self, weights: Weights, inputs: Tensor) -> Tensor:
        """(b, *input_shape) -> (b, classes)."""
        hidden = inputs
        for number in range(1, len(self.channels) + 1):
            hidden = functional.conv2d(
                hidden, weights[f"conv{number}.weight"], padding=self.padding
            )
            hidden = torch.relu(functional.max_pool2d(hidden, 2))  # a quarter of the other order
        return functional.linear(hidden.flatten(1), weights["dense.weight"])

    def logits_alone(self, weights: Weights, inputs: Tensor) -> Tensor:
        """`pretraining.Judged`."""
        if not is_compiled(inputs, *weights.values()):
            return self.logits(weights, inputs)
        stacked = [weights[name][None] for name in self.shapes()]
        return relu_gradients.logits(stacked, inputs, padding=self.padding)

    def is_frugal(self, *values: Tensor) -> bool:
        """`gradients.Frugal`."""
        return is_compiled(*values)

    def stacked_gradients(
        self, weights: Weights, inputs: Tensor, labels: Tensor
    ) -> dict[str, Tensor]:
        """`gradients.HandWrittenStacked`."""
        names, labels = list(self.shapes()), class_probabilities(labels, self.classes, inputs)
        found = relu_gradients.example_gradients(
            [weights[k] for k in names], inputs, labels, padding=self.padding
        )
        return dict(zip(names, found, strict=True))

    def client_gradients(
        self, weights: Weights, inputs: Tensor, labels: Tensor, shares: Tensor
    ) -> dict[str, Tensor]:
        """`gradients.HandWrittenStacked`."""
        names, labels = list(self.shapes()), class_probabilities(labels, self.classes, inputs)
        labels = labels * shares[..., None]  # the loss is linear in them
        found = relu_gradients.client_gradients(
            [weights[k] for k in names], inputs, labels, padding=self.padding
        )
        return dict(zip(names, found, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class CNN2Relu(Architecture):
    """Two ReLU convolutions of 16 and 32 channels with max-pooling, one dense layer, no biases.

    The kind of network the papers train (three weight tensors), whose widths they leave open.
    """

    name: ClassVar[str] = "cnn2_relu"
    takes: ClassVar[Takes] = "images"

    def build(self, input_shape: tuple[int, ...], classes: int, scheme: Scheme) -> ReluNet:
        return ReluNet(input_shape=input_shape, classes=classes, channels=(16, 32), scheme=scheme)


@dataclass(frozen=True, slots=True, kw_only=True)
class CNN3x3(Architecture):
    """Two unpadded 3x3 ReLU convolutions of 32 and 64 channels with max-pooling, one dense layer.

    Widths, kernels, padding and the missing biases are those of the federated code that was
    released with the TPDS and ICDCS papers, which leave them open; its dropout is never on.
    """

    name: ClassVar[str] = "cnn3x3"
    takes: ClassVar[Takes] = "images"

    def build(self, input_shape: tuple[int, ...], classes: int, scheme: Scheme) -> ReluNet:
        return ReluNet(
            input_shape=input_shape, classes=classes, channels=(32, 64), kernel=3, padding=0,
            scheme=scheme,
        )  # fmt: skip
