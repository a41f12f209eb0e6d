"""The network of a leak pack, built from its `pack.json` with torch alone.

Copy this file if you attack packs without leakbench: it imports nothing else. A network is a chain
of calls; each names a function of `CALLS`, the weights that it is given, and its settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

CALLS: Mapping[str, Callable[..., Tensor]] = {
    "adaptive_avg_pool2d": functional.adaptive_avg_pool2d,
    "avg_pool2d": functional.avg_pool2d,
    "batch_norm": functional.batch_norm,
    "conv2d": functional.conv2d,
    "flatten": torch.flatten,
    "group_norm": functional.group_norm,
    "linear": functional.linear,
    "max_pool2d": functional.max_pool2d,
    "pad": functional.pad,
    "relu": functional.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}
"""Functions of torch by the names that a pack uses for them."""


def logits(
    layers: Sequence[Mapping[str, Any]], weights: Mapping[str, Tensor], inputs: Tensor
) -> Tensor:
    """(b, *input shape) -> (b, outputs) before any softmax.

    layers: of a network in `pack.json`. weights: parameters and buffers by their names there.
    """
    for layer in layers:
        given = {argument: weights[name] for argument, name in layer["weights"].items()}
        inputs = CALLS[layer["call"]](inputs, **given, **layer["settings"])
    return inputs


class PackedNetwork(nn.Module):
    """The same as a module, whose parameters stand in the pack's order."""

    def __init__(
        self,
        layers: Sequence[Mapping[str, Any]],
        weights: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
    ) -> None:
        super().__init__()
        self.layers, self.names = list(layers), list(weights)
        self.values = nn.ParameterList(value.clone() for value in weights.values())
        self.fixed = dict(buffers)

    def forward(self, inputs: Tensor) -> Tensor:
        """(b, *input shape) -> (b, outputs)."""
        named = dict(zip(self.names, self.values, strict=True))
        return logits(self.layers, {**self.fixed, **named}, inputs)
