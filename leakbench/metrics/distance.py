"""Euclidean distance."""

from __future__ import annotations

from torch import Tensor

from leakbench.metrics.contract import Comparison, Metric, squared_errors
from leakbench.numeric import square_root


def distance(images: Tensor, reference: Tensor, *, clamp: bool = False) -> Tensor:
    """Euclidean distance between each image and its reference, over all pixels.

    This is the quantity that the public notebooks of CPL print under the name "mse": it is larger
    than the mean squared error by a square root and the number of pixels, so a threshold set for
    one of them means nothing for the other.

    Args:
        images: (n, *shape), any values.
        reference: (n, *shape), values in [0, 1].
        clamp: Clip `images` to [0, 1] first: infinities become 1 or 0, NaN stays NaN.

    Returns:
        (n,) float64, in pixel units; at most the root of the number of pixels when clamped.

    Raises:
        ValueError: If the shapes differ or there is no pixel.
    """
    return square_root(squared_errors(images, reference, clamp=clamp).sum(dim=1))


def _raw(compared: Comparison) -> Tensor:
    return distance(compared.images, compared.reference)


def _clamped(compared: Comparison) -> Tensor:
    return distance(compared.images, compared.reference, clamp=True)


METRICS: tuple[Metric, ...] = (
    Metric(name="distance_raw", function=_raw, clamps=False, better="lower"),
    Metric(name="distance_clamped", function=_clamped, clamps=True, better="lower"),
)
