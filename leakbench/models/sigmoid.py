"""Convolutions with sigmoid and one dense layer: the networks that gradient matching began with."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as functional
from torch import Tensor

from leakbench.architectures import Architecture, Takes
from leakbench.contracts import Weights
from leakbench.losses import Loss, class_probabilities
from leakbench.sigmoid_gradients import client_gradients, example_gradients, is_compiled
from leakbench.sigmoid_tangents import example_tangents
from leakbench.weights import Scheme, draw


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """5x5 convolution, padding 2, sigmoid."""

    channels: int
    stride: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SigmoidNet:
    """Convolutions with sigmoid, then one dense layer on the flattened features.

    Maps (b, channels, height, width) to (b, classes) logits.
    """

    input_shape: tuple[int, ...]
    classes: int
    convolutions: tuple[Convolution, ...]
    scheme: Scheme = "uniform"
    head: ClassVar[str] = "dense.weight"
    loss: ClassVar[Loss] = "cross_entropy"
    mixes_examples: ClassVar[bool] = False

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Parameter name -> shape, in the order gradients are listed."""
        channels, height, width = self.input_shape
        shapes: dict[str, tuple[int, ...]] = {}
        for number, layer in enumerate(self.convolutions, start=1):
            shapes[f"conv{number}.weight"] = (layer.channels, channels, 5, 5)
            shapes[f"conv{number}.bias"] = (layer.channels,)
            channels = layer.channels
            height, width = (math.ceil(side / layer.stride) for side in (height, width))
        features = channels * height * width
        shapes["dense.weight"] = (self.classes, features)
        shapes["dense.bias"] = (self.classes,)
        return shapes

    def init(self, generator: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
        """All weights, drawn by the scheme."""
        return draw(self.shapes(), self.scheme, generator, dtype)

    def logits(self, weights: Weights, inputs: Tensor) -> Tensor:
        """(b, *input_shape) -> (b, classes)."""
        hidden = inputs
        for number, layer in enumerate(self.convolutions, start=1):
            weight, bias = weights[f"conv{number}.weight"], weights[f"conv{number}.bias"]
            hidden = torch.sigmoid(
                functional.conv2d(hidden, weight, bias, stride=layer.stride, padding=2)
            )
        return functional.linear(hidden.flatten(1), weights["dense.weight"], weights["dense.bias"])

    def example_gradients(
        self, weights: Weights, inputs: Tensor, labels: Tensor
    ) -> dict[str, Tensor]:
        """`gradients.HandWritten`."""
        names, strides = list(self.shapes()), [layer.stride for layer in self.convolutions]
        labels = class_probabilities(labels, self.classes, inputs)
        found = example_gradients(strides, [weights[name] for name in names], inputs, labels)
        return dict(zip(names, found, strict=True))

    def is_row_by_row(self, *values: Tensor) -> bool:
        """`gradients.RowByRow`."""
        return is_compiled(*values)

    def stacked_gradients(
        self, weights: Weights, inputs: Tensor, labels: Tensor
    ) -> dict[str, Tensor]:
        """`gradients.RowByRow`."""
        names, strides = list(self.shapes()), [layer.stride for layer in self.convolutions]
        labels = class_probabilities(labels, self.classes, inputs)
        found = client_gradients(strides, [weights[name] for name in names], inputs, labels)
        return dict(zip(names, found, strict=True))

    def example_tangents(
        self, weights: Weights, inputs: Tensor, labels: Tensor, tangents: Tensor
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """`tangents.HandWrittenTangents`."""
        names, strides = list(self.shapes()), [layer.stride for layer in self.convolutions]
        labels = class_probabilities(labels, self.classes, inputs)
        ordered = [weights[name] for name in names]
        plain, moved = example_tangents(strides, ordered, inputs, labels, tangents)
        return dict(zip(names, plain, strict=True)), dict(zip(names, moved, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class LenetCPL(Architecture):
    """Four sigmoid convolutions of 12 channels, one dense layer (CPL notebooks).

    Strides 2, 2, 1, 1.
    """

    name: ClassVar[str] = "lenet_cpl"
    paper: ClassVar[str] = "Wei et al., 2020"
    takes: ClassVar[Takes] = "images"

    def build(self, input_shape: tuple[int, ...], classes: int, scheme: Scheme) -> SigmoidNet:
        return _network(input_shape, classes, scheme, ((12, 2), (12, 2), (12, 1), (12, 1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class LenetDLG(Architecture):
    """Three sigmoid convolutions of 12 channels, one dense layer (DLG, iDLG).

    Strides 2, 2, 1.
    """

    name: ClassVar[str] = "lenet_dlg"
    paper: ClassVar[str] = "Zhu et al., 2019"
    takes: ClassVar[Takes] = "images"

    def build(self, input_shape: tuple[int, ...], classes: int, scheme: Scheme) -> SigmoidNet:
        return _network(input_shape, classes, scheme, ((12, 2), (12, 2), (12, 1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class CNN2(Architecture):
    """Two sigmoid convolutions of 16 and 32 channels, one dense layer (TIFS section VI).

    Strides 2, 2. "Two convolutional layers and one fully connected layer", whose widths the paper
    leaves open.
    """

    name: ClassVar[str] = "cnn2"
    takes: ClassVar[Takes] = "images"

    def build(self, input_shape: tuple[int, ...], classes: int, scheme: Scheme) -> SigmoidNet:
        return _network(input_shape, classes, scheme, ((16, 2), (32, 2)))


def _network(
    input_shape: tuple[int, ...],
    classes: int,
    scheme: Scheme,
    layers: tuple[tuple[int, int], ...],
) -> SigmoidNet:
    """layers: (channels, stride) of the convolutions."""
    convolutions = tuple(Convolution(channels=c, stride=s) for c, s in layers)
    return SigmoidNet(
        input_shape=input_shape, classes=classes, convolutions=convolutions, scheme=scheme
    )
