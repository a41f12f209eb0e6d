"""Peak signal-to-noise ratio."""

from __future__ import annotations

from torch import Tensor

from leakbench.metrics.contract import Comparison, Metric
from leakbench.metrics.mse import mse


def psnr(images: Tensor, reference: Tensor) -> Tensor:
    """Peak signal-to-noise ratio of the clamped images, for a data range of 1.

    Args:
        images: (n, *shape), any values; clipped to [0, 1].
        reference: (n, *shape), values in [0, 1].

    Returns:
        (n,) float64, in decibels: -10 log10(mse), at least 0; inf for identical images; NaN where
        an image holds NaN.

    Raises:
        ValueError: If the shapes differ or there is no pixel.
    """
    # 0.0 - x instead of -x: an error of exactly 1 is 0 dB, not the float -0.0.
    return 0.0 - 10.0 * mse(images, reference, clamp=True).log10()


def _psnr(compared: Comparison) -> Tensor:
    return psnr(compared.images, compared.reference)


METRICS: tuple[Metric, ...] = (Metric(name="psnr", function=_psnr, clamps=True, better="higher"),)
