"""Residual networks of torchvision, for small images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

from torch import nn
from torchvision.models import resnet18

from leakbench.architectures import Architecture, Takes
from leakbench.modules import Mode
from leakbench.weights import Scheme

GROUPS = 32
"""Groups of a GroupNorm, as its paper has them; the narrowest layer has 64 channels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResNet18(Architecture):
    """ResNet-18 of torchvision with the stem for 32x32 images: 3x3, stride 1, no max-pooling.

    11 million parameters. Weights are drawn by the layers' own `reset_parameters` under "default",
    not by torchvision's scheme.

    Args:
        norm: "group" for GroupNorm of 32 groups; "batch_train" for BatchNorm over the batch at
            hand, which mixes its examples; "batch_eval" for BatchNorm by running statistics, which
            are those of a new network, mean 0 and variance 1: nothing updates them; "none" for no
            normalisation (batch-clipping paper, appendix A.3).
    """

    name: ClassVar[str] = "resnet18"
    paper: ClassVar[str] = "He et al., 2016"
    takes: ClassVar[Takes] = "images"
    head: ClassVar[str] = "fc.weight"
    norm: Literal["group", "batch_eval", "batch_train", "none"] = "group"

    @property
    def mode(self) -> Mode:
        """Only BatchNorm has modes."""
        return "train" if self.norm == "batch_train" else "eval"

    def build(self, input_shape: tuple[int, ...], classes: int, scheme: Scheme) -> nn.Module:
        layer: Callable[[int], nn.Module] = nn.BatchNorm2d
        if self.norm == "group":
            layer = partial(nn.GroupNorm, GROUPS)
        elif self.norm == "none":
            layer = nn.Identity
        module: nn.Module = resnet18(num_classes=classes, norm_layer=layer)
        module.conv1 = nn.Conv2d(input_shape[0], 64, 3, padding=1, bias=False)
        module.maxpool = nn.Identity()
        return module
