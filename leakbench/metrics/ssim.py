"""Structural similarity."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from leakbench.metrics.contract import Comparison, Metric, NotMeasured, check_shapes, float64
from leakbench.metrics.pixels import SSIM_WINDOW, structural_similarity


def ssim(images: Tensor, reference: Tensor) -> Tensor:
    """Structural similarity of the clamped images (Wang et al., 2004), as scikit-image computes it.

    Libraries disagree in the second decimal, so the variant is fixed here: Gaussian weights with
    sigma 1.5 (an 11 x 11 window), population covariance, data range 1, borders of half a window
    left out, mean over positions and channels.

    Args:
        images: (n, channels, height, width), any values; clipped to [0, 1].
        reference: (n, channels, height, width), values in [0, 1].

    Returns:
        (n,) float64 in [-1, 1], on the device of `images`. NaN where it is not defined: an image
        with a non-finite pixel, and all images if a side is shorter than `SSIM_WINDOW`.

    Raises:
        ValueError: If the shapes differ, are not four-dimensional, or there is no pixel.
    """
    check_shapes(images, reference)
    if images.ndim != 4:
        raise ValueError(
            f"ssim needs images of shape (n, channels, height, width), got {tuple(images.shape)}"
        )
    if min(images.shape[2:]) < SSIM_WINDOW:
        return torch.full((len(images),), math.nan, dtype=torch.float64, device=images.device)
    pairs = zip(float64(images).cpu(), float64(reference).cpu(), strict=True)
    values = [structural_similarity(image.numpy(), target.numpy()) for image, target in pairs]
    return torch.tensor(values, dtype=torch.float64, device=images.device)


def _ssim(compared: Comparison) -> Tensor | NotMeasured:
    if compared.images.ndim != 4:
        return NotMeasured("rows of a table are not images")
    if min(compared.images.shape[2:]) < SSIM_WINDOW:
        return NotMeasured(f"images are smaller than its window of {SSIM_WINDOW} pixels")
    return ssim(compared.images, compared.reference)


METRICS: tuple[Metric, ...] = (Metric(name="ssim", function=_ssim, clamps=True, better="higher"),)
