"""Metrics of one image as numpy has it: what a report needs without loading torch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

SSIM_WINDOW: int = 11
"""Side, in pixels, of the Gaussian window of `structural_similarity` (sigma 1.5, cut at 3.5)."""


def squared_error(image: NDArray[Any], reference: NDArray[Any]) -> float:
    """Mean squared error, as `metrics.mse.mse` of one example: any values, any one shape."""
    difference = image.astype(np.float64) - reference.astype(np.float64)
    return float(np.square(difference).mean())


def structural_similarity(image: NDArray[Any], reference: NDArray[Any]) -> float:
    """SSIM of one clamped image; the variant is that of `metrics.ssim.ssim`.

    Args:
        image: (channels, height, width), any values; clipped to [0, 1].
        reference: (channels, height, width), values in [0, 1].

    Returns:
        In [-1, 1]; NaN where it is not defined: a non-finite pixel, or a side shorter than
        `SSIM_WINDOW`.
    """
    from skimage import metrics  # half a second

    if min(image.shape[1:]) < SSIM_WINDOW or not np.isfinite(image).all():
        return math.nan
    found = metrics.structural_similarity(
        image.astype(np.float64, copy=False).clip(0.0, 1.0),
        reference.astype(np.float64, copy=False),
        gaussian_weights=True,
        sigma=1.5,
        use_sample_covariance=False,
        data_range=1.0,
        channel_axis=0,
    )
    return round(float(found), 12)  # numpy's last digits are the processor's
