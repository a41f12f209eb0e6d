"""Mean squared error."""

from __future__ import annotations

from torch import Tensor

from leakbench.metrics.contract import Comparison, Metric, squared_errors


def mse(images: Tensor, reference: Tensor, *, clamp: bool = False) -> Tensor:
    """Mean squared error over the pixels of each example.

    Args:
        images: (n, *shape), any values.
        reference: (n, *shape), values in [0, 1].
        clamp: Clip `images` to [0, 1] first: infinities become 1 or 0, NaN stays NaN.

    Returns:
        (n,) float64, in squared pixel units; at most 1 when clamped; NaN or inf if `images` is.

    Raises:
        ValueError: If the shapes differ or there is no pixel.
    """
    return squared_errors(images, reference, clamp=clamp).mean(dim=1)


def _raw(compared: Comparison) -> Tensor:
    return mse(compared.images, compared.reference)


def _clamped(compared: Comparison) -> Tensor:
    return mse(compared.images, compared.reference, clamp=True)


METRICS: tuple[Metric, ...] = (
    Metric(name="mse_raw", function=_raw, clamps=False, better="lower"),
    Metric(name="mse_clamped", function=_clamped, clamps=True, better="lower"),
)
