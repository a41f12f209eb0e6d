"""Networks by name: what a plugin of the kind "models" is, and how one is built and drawn.

Weights are a seed axis of every suite: a model's `init` draws them from a generator, either
U(-0.5, 0.5) for weights and biases alike (`scheme="uniform"`, the DLG and CPL notebooks: flatters
every attack) or by PyTorch's layer defaults (`scheme="default"`).
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor

from leakbench import registry
from leakbench.contracts import Model, Weights
from leakbench.errors import LeakbenchError
from leakbench.parameters import check_kinds

Scheme = Literal["uniform", "default"]

Takes = Literal["images", "rows", "any"]
"""Inputs of a network: (channels, height, width), (columns,), or any, which it flattens."""


class Architecture(ABC):
    """Family base: `name` identifies the plugin, fields are its hyper-parameters."""

    name: ClassVar[str]
    paper: ClassVar[str] = ""
    takes: ClassVar[Takes] = "any"

    def __post_init__(self) -> None:
        check_kinds(self)

    @abstractmethod
    def build(self, input_shape: tuple[int, ...], classes: int, scheme: Scheme) -> Model:
        """The network for inputs of this shape, which `takes` allows."""


def build(
    name: str,
    input_shape: tuple[int, ...],
    classes: int,
    scheme: Scheme = "uniform",
    parameters: Mapping[str, Any] | None = None,
) -> Model:
    """Network `name` for inputs of `input_shape`; parameters not given keep their defaults.

    Raises:
        LeakbenchError: no such model, or one that does not take such inputs.
    """
    kind = cast(type[Architecture], registry.load("models", name))
    require_taken(kind, input_shape)
    return kind(**(parameters or {})).build(input_shape, classes, scheme)


def require_taken(kind: type[Architecture], input_shape: tuple[int, ...], where: str = "") -> None:
    """Refuse a network for inputs of a shape that it does not take.

    Raises:
        LeakbenchError: naming the models that do.
    """
    if _takes(kind, input_shape):
        return
    wanted = {"images": "images (channels, height, width)", "rows": "rows (columns,)"}[kind.takes]
    names = [plugin.name for plugin in registry.discover("models") if plugin.status == "ok"]
    others = [name for name in names if _takes(registry.load("models", name), input_shape)]
    place = f"{where}: " if where else ""
    raise LeakbenchError(
        f"{place}model '{kind.name}': takes {wanted}, not inputs of shape {input_shape}; "
        f"allowed for those: {', '.join(others)}"
    )


def _takes(kind: type, input_shape: tuple[int, ...]) -> bool:
    takes: Takes = getattr(kind, "takes", "any")
    return takes == "any" or len(input_shape) == {"images": 3, "rows": 1}[takes]


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
