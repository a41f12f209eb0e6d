"""How many candidates are as near to the reconstruction as the victim is."""

from __future__ import annotations

import torch
from torch import Tensor

from leakbench.metrics.contract import Comparison, Metric, check_pixels, float64

# Work sizes: about 32 MB of candidates and 64 rows of distances at a time.
_CANDIDATE_ELEMENTS = 2**22
_IMAGE_BLOCK = 64


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


def _distances_to_all(images: Tensor, candidates: Tensor) -> Tensor:
    """(n, N) float64 distances; equal candidates are at exactly equal distances."""
    clamped = float64(images).clamp(0.0, 1.0).flatten(1)
    chunk = max(1, _CANDIDATE_ELEMENTS // clamped.shape[1])
    # Differences are squared directly: expanding the square into products would round a distance of
    # zero to about 1e-7 and break ties between equal candidates at random.
    return torch.cat(
        [
            torch.cdist(
                clamped,
                float64(part).flatten(1),
                compute_mode="donot_use_mm_for_euclid_dist",
            )
            for part in torch.split(candidates, chunk)
        ],
        dim=1,
    )


def _check_ranking(images: Tensor, candidates: Tensor, truth: Tensor) -> None:
    check_pixels(images)
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


def _rank(compared: Comparison) -> Tensor:
    return candidate_ranks(compared.images, compared.candidates, compared.numbers)


METRICS: tuple[Metric, ...] = (Metric(name="rank", function=_rank, clamps=True, better="lower"),)
