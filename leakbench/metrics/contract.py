"""What a metric is, and what it may look at.

Every metric is per example: n images go in, n numbers come out, and nothing is averaged over
examples. References lie in [0, 1]. Reconstructions are judged as the attack left them: they may
lie outside that range, and a diverged attack leaves NaN or infinities. Whether a number is taken on
raw or on clamped pixels is said by the metric, because it decides rates: after clamping, even pure
noise is within a mean squared error of 0.7 of every image.

Pixels are compared in float64, so that squares of diverged values do not overflow; devices without
float64 are not supported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from leakbench.data.features import Feature


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """n reconstructions and what is known of their victims.

    Attributes:
        images: (n, *shape), any values.
        reference: (n, *shape), the victims, values in [0, 1].
        candidates: (N, *shape), values in [0, 1]; the victims are among them.
        numbers: (n,) integers in 0..N-1: where in `candidates` each victim is.
        features: What the columns of a row mean; () for images.
        data_root: Folder of the full data, where a metric may find weights; None if there is none.
    """

    images: Tensor
    reference: Tensor
    candidates: Tensor
    numbers: Tensor
    data_root: Path | None = None
    features: tuple[Feature, ...] = ()


@dataclass(frozen=True, slots=True)
class NotMeasured:
    """Why a metric has no numbers, in words that end a sentence."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One number an image. A metric lives in a file of this package that lists it in `METRICS`.

    Attributes:
        name: Field of a record.
        function: Gives (n,) numbers, NaN where one image has none, or says why there are none.
        clamps: Whether it looks at pixels clipped to [0, 1].
        better: Which numbers are those of a good reconstruction.
        version: Raised whenever the metric changes its value for the same images.
    """

    name: str
    function: Callable[[Comparison], Tensor | NotMeasured]
    clamps: bool
    better: Literal["lower", "higher"]
    version: int = 1


def squared_errors(images: Tensor, reference: Tensor, *, clamp: bool) -> Tensor:
    """(n, pixels) float64, the square of every pixel's error; see `mse` for arguments."""
    check_shapes(images, reference)
    compared = float64(images)
    if clamp:
        compared = compared.clamp(0.0, 1.0)
    return (compared - float64(reference)).square().flatten(1)


def float64(tensor: Tensor) -> Tensor:
    """The same numbers in float64, without a history."""
    return tensor.detach().to(torch.float64)


def check_shapes(images: Tensor, reference: Tensor) -> None:
    """ValueError unless both are (n, *shape) with at least one pixel."""
    if images.shape != reference.shape:
        raise ValueError(
            f"images {tuple(images.shape)} and reference {tuple(reference.shape)} differ in shape"
        )
    check_pixels(images)


def check_pixels(images: Tensor) -> None:
    """ValueError unless `images` is (n, *shape) with at least one pixel."""
    if images.ndim < 2 or 0 in images.shape[1:]:
        raise ValueError(f"images must have shape (n, *shape), got {tuple(images.shape)}")
