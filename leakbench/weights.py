"""Weights of a network: how they are drawn, and a digest of them.

They are a seed axis of every suite, drawn from a generator: from U(-0.5, 0.5), weights and biases
alike ("uniform", the DLG and CPL notebooks: flatters every attack), or by PyTorch's layer defaults
("default").
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from leakbench.contracts import Weights

Scheme = Literal["uniform", "default"]

LARGE = 1_000_000
"""Parameters from which a network fills a core with a single gradient: see `computed_alone`."""


def draw(
    shapes: Mapping[str, tuple[int, ...]],
    scheme: Scheme,
    generator: torch.Generator,
    dtype: torch.dtype,
) -> dict[str, Tensor]:
    """Weights of these shapes; drawn in float64 and rounded, so float32 and float64 nets agree.

    "default" is U(-1/sqrt(fan_in), 1/sqrt(fan_in)) for a layer's weight and the bias behind it.
    """
    weights, bound = {}, 0.5
    for name, shape in shapes.items():
        if scheme == "default" and name.endswith("weight"):
            bound = 1 / math.sqrt(math.prod(shape[1:]))  # the bias of a layer follows its weight
        drawn = torch.rand(shape, generator=generator, dtype=torch.float64)
        weights[name] = ((2 * drawn - 1) * bound).to(dtype)
    return weights


def digest(weights: Weights) -> str:
    """SHA-256 over names, shapes and bytes of the weights: part of a cell's identity."""
    sha = hashlib.sha256()
    for name, value in sorted(weights.items()):
        array = value.detach().cpu().contiguous().numpy()
        sha.update(f"{name}{array.shape}{array.dtype}".encode())
        sha.update(array.tobytes())
    return sha.hexdigest()


def computed_alone(weights: Weights, *, stacked: bool = False) -> bool:
    """Whether gradients of a network of this size are computed one after another.

    Computed together they would not be faster, and would need as much memory as there are of them.
    Alone, nothing can depend on neighbours.
    """
    sizes = (value[0].numel() if stacked else value.numel() for value in weights.values())
    return sum(sizes) > LARGE
