"""Networks the papers attack, as stateless functions of their weights.

Weights are a seed axis of every suite: `init` draws them from a generator, either U(-0.5, 0.5)
for weights and biases alike (`scheme="uniform"`, the DLG and CPL notebooks: flatters every attack)
or by PyTorch's layer defaults U(-1/sqrt(fan_in), 1/sqrt(fan_in)) (`scheme="default"`).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as functional
from torch import Tensor

from leakbench.contracts import Weights
from leakbench.errors import unknown_name

Scheme = Literal["uniform", "default"]


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
    head: str = "dense.weight"

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
        """Draw all weights; drawn in float64 and rounded, so float32 and float64 nets agree."""
        weights, bound = {}, 0.5
        for name, shape in self.shapes().items():
            if self.scheme == "default" and name.endswith("weight"):
                bound = 1 / math.sqrt(
                    math.prod(shape[1:])
                )  # the bias of a layer follows its weight
            drawn = torch.rand(shape, generator=generator, dtype=torch.float64)
            weights[name] = ((2 * drawn - 1) * bound).to(dtype)
        return weights

    def logits(self, weights: Weights, inputs: Tensor) -> Tensor:
        """(b, *input_shape) -> (b, classes)."""
        hidden = inputs
        for number, layer in enumerate(self.convolutions, start=1):
            weight, bias = weights[f"conv{number}.weight"], weights[f"conv{number}.bias"]
            hidden = torch.sigmoid(
                functional.conv2d(hidden, weight, bias, stride=layer.stride, padding=2)
            )
        return functional.linear(hidden.flatten(1), weights["dense.weight"], weights["dense.bias"])


def _lenet_cpl(input_shape: tuple[int, ...], classes: int, scheme: Scheme) -> SigmoidNet:
    """Four convolutions of 12 channels, strides 2, 2, 1, 1: the network of the CPL notebooks."""
    strides = (2, 2, 1, 1)
    layers = tuple(Convolution(channels=12, stride=stride) for stride in strides)
    return SigmoidNet(input_shape=input_shape, classes=classes, convolutions=layers, scheme=scheme)


def _lenet_dlg(input_shape: tuple[int, ...], classes: int, scheme: Scheme) -> SigmoidNet:
    """Three convolutions of 12 channels, strides 2, 2, 1: "LeNet" of DLG and iDLG."""
    layers = tuple(Convolution(channels=12, stride=stride) for stride in (2, 2, 1))
    return SigmoidNet(input_shape=input_shape, classes=classes, convolutions=layers, scheme=scheme)


def _cnn2(input_shape: tuple[int, ...], classes: int, scheme: Scheme) -> SigmoidNet:
    """Two convolutions (16 and 32 channels, stride 2) and one dense layer: "two convolutional
    layers and one fully connected layer" (TIFS VI), whose widths the paper leaves open."""
    layers = tuple(Convolution(channels=channels, stride=2) for channels in (16, 32))
    return SigmoidNet(input_shape=input_shape, classes=classes, convolutions=layers, scheme=scheme)


BUILDERS: dict[str, Callable[[tuple[int, ...], int, Scheme], SigmoidNet]] = {
    "lenet_cpl": _lenet_cpl,
    "lenet_dlg": _lenet_dlg,
    "cnn2": _cnn2,
}


def build(
    name: str, input_shape: tuple[int, ...], classes: int, scheme: Scheme = "uniform"
) -> SigmoidNet:
    """Network `name` for inputs of `input_shape` (channels, height, width).

    Raises:
        LeakbenchError: no such model.
    """
    if name not in BUILDERS:
        raise unknown_name("model", name, BUILDERS)
    return BUILDERS[name](input_shape, classes, scheme)


def digest(weights: Weights) -> str:
    """SHA-256 over names, shapes and bytes of the weights: part of a cell's identity."""
    sha = hashlib.sha256()
    for name, value in sorted(weights.items()):
        array = value.detach().cpu().contiguous().numpy()
        sha.update(f"{name}{array.shape}{array.dtype}".encode())
        sha.update(array.tobytes())
    return sha.hexdigest()
