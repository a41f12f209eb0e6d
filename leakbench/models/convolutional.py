"""Small convolutional networks as papers and their released code print them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import nn

from leakbench.architectures import Architecture, Takes
from leakbench.modules import Mode
from leakbench.weights import Scheme


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvNet(Architecture):
    """Four 3x3 convolutions of 32 to 128 channels, each with ReLU, BatchNorm and average pooling.

    The "convnet" of the batch-clipping paper, its Table 1, where the activation is printed in the
    convolution's row, so before the BatchNorm. BatchNorm normalises by the batch at hand.

    Args:
        norm: "batch_train", or "none" for the network without BatchNorm (appendix A.3).
    """

    name: ClassVar[str] = "convnet"
    paper: ClassVar[str] = "Nguyen et al., batch clipping, Table 1"
    takes: ClassVar[Takes] = "images"
    head: ClassVar[str] = "17.weight"
    mode: ClassVar[Mode] = "train"
    norm: Literal["batch_train", "none"] = "batch_train"

    def build(self, input_shape: tuple[int, ...], classes: int, scheme: Scheme) -> nn.Module:
        layers: list[nn.Module] = []
        channels = input_shape[0]
        for width in (32, 64, 64, 128):
            normal = nn.BatchNorm2d(width) if self.norm == "batch_train" else nn.Identity()
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(), normal]
            layers.append(nn.AvgPool2d(2) if width < 128 else nn.AdaptiveAvgPool2d(1))
            channels = width
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels, classes))


@dataclass(frozen=True, slots=True, kw_only=True)
class BNLeNet5(Architecture):
    """LeNet-5 with tanh and a BatchNorm behind each of its three convolutions.

    The "BN-LeNet-5" of the batch-clipping paper, its Table 2. Its inputs are 32x32: smaller images
    get zeros around them, as the paper pads digits. BatchNorm normalises by the batch at hand.
    """

    name: ClassVar[str] = "bn_lenet5"
    paper: ClassVar[str] = "Nguyen et al., batch clipping, Table 2"
    takes: ClassVar[Takes] = "images"
    head: ClassVar[str] = "14.weight"
    mode: ClassVar[Mode] = "train"

    def build(self, input_shape: tuple[int, ...], classes: int, scheme: Scheme) -> nn.Module:
        channels, height, width = input_shape
        missing = [max(32 - side, 0) for side in (width, height)]
        around = [part for side in missing for part in (side // 2, side - side // 2)]
        sides = [(((max(side, 32) - 4) // 2 - 4) // 2) - 4 for side in (height, width)]
        return nn.Sequential(
            nn.ZeroPad2d((around[0], around[1], around[2], around[3])),
            nn.Conv2d(channels, 6, 5), nn.Tanh(), nn.BatchNorm2d(6), nn.AvgPool2d(2),
            nn.Conv2d(6, 16, 5), nn.Tanh(), nn.BatchNorm2d(16), nn.AvgPool2d(2),
            nn.Conv2d(16, 120, 5), nn.Tanh(), nn.BatchNorm2d(120),
            nn.Flatten(), nn.Sequential(nn.Linear(120 * sides[0] * sides[1], 84), nn.Tanh()),
            nn.Linear(84, classes),
        )  # fmt: skip
