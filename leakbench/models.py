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
from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as functional
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from leakbench import relu_gradients
from leakbench.contracts import Weights
from leakbench.errors import LeakbenchError, unknown_name
from leakbench.sigmoid_gradients import example_gradients

Scheme = Literal["uniform", "default"]

MLP_HIDDEN = (64, 32)


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
        """All weights, drawn by the scheme."""
        return _draw(self.shapes(), self.scheme, generator, dtype)

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
        labels = _probabilities(labels, self.classes, inputs)
        found = example_gradients(strides, [weights[name] for name in names], inputs, labels)
        return dict(zip(names, found, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReluNet:
    """5x5 convolutions, padding 2, each with ReLU and 2x2 max-pooling, then one dense layer.

    Maps (b, channels, height, width) to (b, classes) logits; no biases, so every layer is one
    tensor. For training: its second derivatives are mostly 0, which starves gradient matching.
    """

    input_shape: tuple[int, ...]
    classes: int
    channels: tuple[int, ...]
    scheme: Scheme = "default"
    head: str = "dense.weight"

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Parameter name -> shape, in the order gradients are listed."""
        channels, height, width = self.input_shape
        shapes: dict[str, tuple[int, ...]] = {}
        for number, units in enumerate(self.channels, start=1):
            shapes[f"conv{number}.weight"] = (units, channels, 5, 5)
            channels, height, width = units, height // 2, width // 2
        shapes["dense.weight"] = (self.classes, channels * height * width)
        return shapes

    def init(self, generator: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
        """All weights, drawn by the scheme."""
        return _draw(self.shapes(), self.scheme, generator, dtype)

    def logits(self, weights: Weights, inputs: Tensor) -> Tensor:
        """(b, *input_shape) -> (b, classes)."""
        hidden = inputs
        for number in range(1, len(self.channels) + 1):
            hidden = functional.conv2d(hidden, weights[f"conv{number}.weight"], padding=2)
            hidden = functional.max_pool2d(torch.relu(hidden), 2)
        return functional.linear(hidden.flatten(1), weights["dense.weight"])

    def stacked_gradients(
        self, weights: Weights, inputs: Tensor, labels: Tensor
    ) -> dict[str, Tensor]:
        """`gradients.HandWrittenStacked`."""
        names, labels = list(self.shapes()), _probabilities(labels, self.classes, inputs)
        found = relu_gradients.example_gradients([weights[k] for k in names], inputs, labels)
        return dict(zip(names, found, strict=True))

    def client_gradients(
        self, weights: Weights, inputs: Tensor, labels: Tensor, shares: Tensor
    ) -> dict[str, Tensor]:
        """`gradients.HandWrittenStacked`."""
        names, labels = list(self.shapes()), _probabilities(labels, self.classes, inputs)
        labels = labels * shares[..., None]  # the loss is linear in them
        found = relu_gradients.client_gradients([weights[k] for k in names], inputs, labels)
        return dict(zip(names, found, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class MLP:
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
        return _draw(self.shapes(), self.scheme, generator, dtype)

    def logits(self, weights: Weights, inputs: Tensor) -> Tensor:
        """(b, *input_shape) -> (b, classes)."""
        hidden, last = inputs.flatten(1), len(MLP_HIDDEN) + 1
        for number in range(1, last + 1):
            weight, bias = weights[f"dense{number}.weight"], weights[f"dense{number}.bias"]
            hidden = functional.linear(hidden, weight, bias)
            if number < last:
                hidden = torch.relu(hidden)
        return hidden


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModuleModel:
    """Your own `torch.nn.Module` as a model: its parameters become arguments, buffers stay.

    head: name of the weight (classes, features) of its last dense layer. BatchNorm without running
    statistics is taken: it normalises by the batch at hand, in training and evaluation alike, and
    `mixes_examples` says so.

    Raises:
        LeakbenchError: no such head, or a BatchNorm in training mode that keeps running statistics:
            nothing would update them, and evaluation would use them.
    """

    module: torch.nn.Module
    head: str

    def __post_init__(self) -> None:
        named = dict(self.module.named_parameters())
        if self.head not in named or named[self.head].ndim != 2:
            dense = [name for name, value in named.items() if value.ndim == 2]
            raise unknown_name("head", self.head, dense, "model, weights of dense layers")
        for name, layer in self.module.named_modules():
            if isinstance(layer, _BatchNorm) and layer.training and layer.running_mean is not None:
                raise LeakbenchError(
                    f"model, layer '{name}': running statistics of {type(layer).__name__} in "
                    "training mode would not be updated; build it with track_running_stats=False, "
                    "call eval() first, or use GroupNorm"
                )

    @property
    def mixes_examples(self) -> bool:
        """Whether logits of one example depend on the others of its batch: no gradient is its own.

        True with a BatchNorm that has no running statistics.
        """
        return any(
            isinstance(layer, _BatchNorm) and layer.running_mean is None
            for layer in self.module.modules()
        )

    def init(self, generator: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
        """The module's own parameters, as they are; nothing is drawn."""
        return {k: v.detach().clone().to(dtype) for k, v in self.module.named_parameters()}

    def logits(self, weights: Weights, inputs: Tensor) -> Tensor:
        """(b, *input shape) -> (b, classes)."""
        found: Tensor = torch.func.functional_call(self.module, dict(weights), (inputs,))
        return found


def _probabilities(labels: Tensor, classes: int, like: Tensor) -> Tensor:
    """Class indices (...) as rows of 0 and 1 in the type of `like`; probabilities as they are."""
    if labels.is_floating_point():
        return labels
    return functional.one_hot(labels, classes).to(like.dtype)


def _draw(
    shapes: dict[str, tuple[int, ...]],
    scheme: Scheme,
    generator: torch.Generator,
    dtype: torch.dtype,
) -> dict[str, Tensor]:
    """Weights of these shapes; drawn in float64 and rounded, so float32 and float64 nets agree."""
    weights, bound = {}, 0.5
    for name, shape in shapes.items():
        if scheme == "default" and name.endswith("weight"):
            bound = 1 / math.sqrt(math.prod(shape[1:]))  # the bias of a layer follows its weight
        drawn = torch.rand(shape, generator=generator, dtype=torch.float64)
        weights[name] = ((2 * drawn - 1) * bound).to(dtype)
    return weights


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


def _cnn2_relu(input_shape: tuple[int, ...], classes: int, scheme: Scheme) -> ReluNet:
    """Two convolutions (16 and 32 channels) with max-pooling and one dense layer, no biases: the
    kind of network the papers train (three weight tensors), whose widths they leave open."""
    return ReluNet(input_shape=input_shape, classes=classes, channels=(16, 32), scheme=scheme)


def _mlp(input_shape: tuple[int, ...], classes: int, scheme: Scheme) -> MLP:
    """Two hidden dense layers: the network for tables."""
    return MLP(input_shape=input_shape, classes=classes, scheme=scheme)


BUILDERS: dict[str, Callable[[tuple[int, ...], int, Scheme], SigmoidNet | ReluNet | MLP]] = {
    "lenet_cpl": _lenet_cpl,
    "lenet_dlg": _lenet_dlg,
    "cnn2": _cnn2,
    "cnn2_relu": _cnn2_relu,
    "mlp": _mlp,
}


def build(
    name: str, input_shape: tuple[int, ...], classes: int, scheme: Scheme = "uniform"
) -> SigmoidNet | ReluNet | MLP:
    """Network `name` for inputs of `input_shape`: (channels, height, width), or any for "mlp".

    Raises:
        LeakbenchError: no such model, or a convolutional one for inputs that are not images.
    """
    if name not in BUILDERS:
        raise unknown_name("model", name, BUILDERS)
    if name != "mlp" and len(input_shape) != 3:
        raise LeakbenchError(
            f"model '{name}': takes images (channels, height, width), not inputs of shape "
            f"{input_shape}; allowed for those: mlp"
        )
    return BUILDERS[name](input_shape, classes, scheme)


def digest(weights: Weights) -> str:
    """SHA-256 over names, shapes and bytes of the weights: part of a cell's identity."""
    sha = hashlib.sha256()
    for name, value in sorted(weights.items()):
        array = value.detach().cpu().contiguous().numpy()
        sha.update(f"{name}{array.shape}{array.dtype}".encode())
        sha.update(array.tobytes())
    return sha.hexdigest()
