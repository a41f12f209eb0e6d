"""How close a reconstruction is to the victim, and when that counts as a success.

Every metric is per example: images of shape (n, *shape) go in, n numbers come out, and nothing is
averaged over examples. References lie in [0, 1]. Reconstructions are judged as the attack left
them: they may lie outside that range, and a diverged attack leaves NaN or infinities. Whether a
number is taken on raw or on clamped pixels is said by the metric, because it decides rates: after
clamping, even pure noise is within a mean squared error of 0.7 of every image.

All arithmetic is in float64 on the device of the images, so that squares of diverged values do not
overflow; devices without float64 are not supported.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from skimage.metrics import structural_similarity
from torch import Tensor

from leakbench.errors import LeakbenchError, unknown_name
from leakbench.numeric import square_root

METRICS_VERSION: int = 1
"""Raised whenever a metric or a rule changes its value for the same images; part of a record."""

SSIM_WINDOW: int = 11
"""Side, in pixels, of the Gaussian window of `ssim` (sigma 1.5, cut at 3.5 sigma)."""

# Work sizes of `candidate_ranks`: about 32 MB of candidates and 64 rows of distances at a time.
_CANDIDATE_ELEMENTS = 2**22
_IMAGE_BLOCK = 64

RuleKind = Literal["mse", "distance", "strict", "identified"]


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
    return _squared_errors(images, reference, clamp=clamp).mean(dim=1)


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
    return square_root(_squared_errors(images, reference, clamp=clamp).sum(dim=1))


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
    _check_shapes(images, reference)
    if images.ndim != 4:
        raise ValueError(
            f"ssim needs images of shape (n, channels, height, width), got {tuple(images.shape)}"
        )
    if min(images.shape[2:]) < SSIM_WINDOW:
        return torch.full((len(images),), math.nan, dtype=torch.float64, device=images.device)
    pairs = zip(_float64(images).cpu(), _float64(reference).cpu(), strict=True)
    values = [_ssim_of_pair(image, target) for image, target in pairs]
    return torch.tensor(values, dtype=torch.float64, device=images.device)


def candidate_ranks(images: Tensor, candidates: Tensor, truth: Tensor) -> Tensor:
    """Rank of the victim when all candidates are sorted by their distance to the reconstruction.

    rank = 1 + number of other candidates at most as far from the clamped image as the victim is:
    ties count against the attacker, so a constant image is nobody's portrait. Ranking by the
    distance is ranking by the mean squared error.

    Args:
        images: (n, *shape), any values; clipped to [0, 1].
        candidates: (N, *shape), values in [0, 1], on the device of `images`. The victims are
            among them.
        truth: (n,) integers in 0..N-1: where in `candidates` each victim is.

    Returns:
        (n,) int64 in 1..N, on the device of `images`; N where an image has a non-finite pixel.

    Raises:
        ValueError: If the shapes do not fit or an index of `truth` is outside 0..N-1.
    """
    _check_ranking(images, candidates, truth)
    truth = truth.to(device=images.device, dtype=torch.int64)
    ranks = torch.empty(len(images), dtype=torch.int64, device=images.device)
    for start in range(0, len(images), _IMAGE_BLOCK):
        block = slice(start, start + _IMAGE_BLOCK)
        distances = _distances_to_all(images[block], candidates)
        true_distance = distances.gather(1, truth[block, None])
        # The victim itself is one of those at most as far: it is the 1 in the formula.
        ranks[block] = (distances <= true_distance).sum(dim=1)
    finite = images.detach().flatten(1).isfinite().all(dim=1)
    return torch.where(finite, ranks, len(candidates))


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessRule:
    """What a suite calls a success. It is applied by `judge`, never by an attack.

    Kinds:
        mse: mean squared error < threshold.
        distance: Euclidean distance < threshold.
        strict: exact recovery: clamped mean squared error < threshold (0.01 is usual), and also
            < fraction times that of the victim's best trivial baseline (start image, mean image,
            mean of the class). Without the second part, "recovered" is free on dark images.
        identified: the victim is among the `top` candidates nearest to the reconstruction.

    A published "MSE < 0.70" that does not say what it averages, nor whether images were clipped,
    has four readings: the kinds mse and distance, each with and without `clamp`.

    Attributes:
        name: Name in suites, records and tables.
        kind: See above.
        threshold: Positive; None for, and only for, identified.
        clamp: Whether the number is taken on clamped pixels. strict and identified always clamp,
            so they must say True.
        top: Largest successful rank; used by identified only.
        fraction: In (0, 1]; used by strict only.

    Raises:
        LeakbenchError: If a value is outside the range given above.
    """

    name: str
    kind: RuleKind
    threshold: float | None
    clamp: bool
    top: int = 1
    fraction: float = 0.25

    def __post_init__(self) -> None:
        where = f"rule '{self.name}'"
        if self.kind not in get_args(RuleKind):
            raise unknown_name("kind", self.kind, get_args(RuleKind), where)
        if self.kind == "identified":
            if self.threshold is not None:
                raise LeakbenchError(f"{where}: identified has no threshold, set top")
        elif self.threshold is None or not 0 < self.threshold < math.inf:
            raise LeakbenchError(
                f"{where}: threshold must be positive and finite, got {self.threshold}"
            )
        if self.kind in ("strict", "identified") and not self.clamp:
            raise LeakbenchError(f"{where}: {self.kind} always clamps, clamp must be true")
        if self.top < 1:
            raise LeakbenchError(f"{where}: top must be at least 1, got {self.top}")
        if not 0 < self.fraction <= 1:
            raise LeakbenchError(f"{where}: fraction must be in (0, 1], got {self.fraction}")


def judge(
    rule: SuccessRule,
    *,
    mse_raw: float | None,
    mse_clamped: float | None,
    distance_raw: float | None,
    distance_clamped: float | None,
    best_baseline_mse: float | None,
    rank: int | None,
) -> bool:
    """Whether one trial is a success under `rule`, from the numbers kept in its record.

    Images are not needed, so that a report can apply a rule that was not known at run time.

    Args:
        rule: The rule.
        mse_raw: `mse` without clamping.
        mse_clamped: `mse` with clamping.
        distance_raw: `distance` without clamping.
        distance_clamped: `distance` with clamping.
        best_baseline_mse: Smallest clamped `mse` among the victim's trivial baselines.
        rank: One of `candidate_ranks`.

    Returns:
        True for a success. A number the rule needs that is None or NaN makes it False: a trial
        that could not be measured is a trial in which nothing was shown to leak.
    """
    match rule.kind:
        case "mse":
            return _below(mse_clamped if rule.clamp else mse_raw, rule.threshold)
        case "distance":
            return _below(distance_clamped if rule.clamp else distance_raw, rule.threshold)
        case "strict":
            if best_baseline_mse is None:
                return False
            return _below(mse_clamped, rule.threshold) and _below(
                mse_clamped, rule.fraction * best_baseline_mse
            )
        case "identified":
            return rank is not None and rank <= rule.top


def _below(value: float | None, limit: float | None) -> bool:
    # A comparison with NaN is False already.
    return value is not None and limit is not None and value < limit


def _squared_errors(images: Tensor, reference: Tensor, *, clamp: bool) -> Tensor:
    """(n, pixels) float64."""
    _check_shapes(images, reference)
    compared = _float64(images)
    if clamp:
        compared = compared.clamp(0.0, 1.0)
    return (compared - _float64(reference)).square().flatten(1)


def _ssim_of_pair(image: Tensor, reference: Tensor) -> float:
    if not bool(image.isfinite().all()):
        return math.nan
    found = structural_similarity(
        image.clamp(0.0, 1.0).numpy(),
        reference.numpy(),
        gaussian_weights=True,
        sigma=1.5,
        use_sample_covariance=False,
        data_range=1.0,
        channel_axis=0,
    )
    return round(float(found), 12)  # numpy's last digits are the processor's


def _distances_to_all(images: Tensor, candidates: Tensor) -> Tensor:
    """(n, N) float64 distances; equal candidates are at exactly equal distances."""
    clamped = _float64(images).clamp(0.0, 1.0).flatten(1)
    chunk = max(1, _CANDIDATE_ELEMENTS // clamped.shape[1])
    # Differences are squared directly: expanding the square into products would round a distance of
    # zero to about 1e-7 and break ties between equal candidates at random.
    return torch.cat(
        [
            torch.cdist(
                clamped,
                _float64(part).flatten(1),
                compute_mode="donot_use_mm_for_euclid_dist",
            )
            for part in torch.split(candidates, chunk)
        ],
        dim=1,
    )


def _float64(tensor: Tensor) -> Tensor:
    return tensor.detach().to(torch.float64)


def _check_shapes(images: Tensor, reference: Tensor) -> None:
    if images.shape != reference.shape:
        raise ValueError(
            f"images {tuple(images.shape)} and reference {tuple(reference.shape)} differ in shape"
        )
    _check_pixels(images)


def _check_pixels(images: Tensor) -> None:
    if images.ndim < 2 or 0 in images.shape[1:]:
        raise ValueError(f"images must have shape (n, *shape), got {tuple(images.shape)}")


def _check_ranking(images: Tensor, candidates: Tensor, truth: Tensor) -> None:
    _check_pixels(images)
    if images.shape[1:] != candidates.shape[1:] or len(candidates) == 0:
        raise ValueError(
            f"candidates {tuple(candidates.shape)} do not fit images {tuple(images.shape)}"
        )
    if truth.shape != (len(images),) or truth.is_floating_point():
        raise ValueError(
            f"truth must be {len(images)} integers, got {tuple(truth.shape)} {truth.dtype}"
        )
    if bool(((truth < 0) | (truth >= len(candidates))).any()):
        raise ValueError(f"truth must index the {len(candidates)} candidates")
