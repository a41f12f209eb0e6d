"""How much of an image a leak holds, whoever attacks: Fisher information, and bounds that follow.

This is the harness's own view, at the true image, with all that the defense does and adds. For a
leak f(x) + n with f the defended gradient without noise and n ~ N(0, Sigma), the information in it
is F = J' Sigma^-1 J, J = df/dx; independent looks add up. Then, with d pixels,

    unbiased     tr(F^-1) / d         no unbiased attacker has a smaller mean squared error (Cramer
                                      and Rao; Hannun et al., 2021; Guo et al., 2022)
    attainable   tr((F + P)^-1) / d   about what an efficient attacker gets who knows mean and
                                      covariance P^-1 of such images

The second is an estimate: it is linear in the image, and who knows more than two moments may beat
it. (van Trees' inequality, which bounds every attacker, takes the mean of F over the prior.)
Without noise both are 0 or meaningless; what is left to ask is whether J has full rank in float32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leakbench.contracts import Observation
from leakbench.priors import GaussianPrior

BLOCK = 128
"""Rows that are multiplied with all before them at once."""

LARGEST = 4096
"""Pixels up to which anything is computed: the information is a matrix of them squared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What one victim's leak holds; nan where it was not computed.

    Attributes:
        unbiased, attainable: mean squared errors a pixel of raw (not clamped) estimates; inf where
            the information is singular. nan without noise, or with noise of unknown size.
        rank: singular values of J above the largest x float32's epsilon x its longer side: of what
            float32 can tell apart.
        condition: largest over smallest singular value of J; inf where the smallest is nothing.
    """

    unbiased: float = math.nan
    attainable: float = math.nan
    rank: float = math.nan
    condition: float = math.nan


def bound_of(
    observations: Sequence[Observation],
    noise_stds: Sequence[Mapping[str, float] | None],
    image: Tensor,
    label: Tensor,
    prior: GaussianPrior,
) -> Bound:
    """The bound of one victim.

    Args:
        observations: The looks at this victim alone (row 0), through the defense as it was.
        noise_stds: Of each look, parameter name -> std of the noise on it; None: not known.
        image, label: The truth, (B, *input shape) and (B,).
        prior: Of one image; those of a batch are independent.
    """
    pixels = image.numel()
    if pixels > LARGEST:
        return Bound()
    inputs, labels, row = image.double()[None], label[None], torch.zeros(1, dtype=torch.int64)
    units = torch.eye(pixels, dtype=torch.float64, device=image.device)
    units = units.reshape(1, pixels, *image.shape)
    information = torch.zeros_like(units[0].flatten(1))
    plain = torch.zeros_like(information)
    coordinates, known = 0, True
    for seen, stds in zip(observations, noise_stds, strict=True):
        _, columns = seen.push(inputs, labels, row.to(image.device), units)
        for name, value in columns.tensors.items():
            matrix = value[0].flatten(1)
            product = _gram(matrix)
            plain += product
            coordinates += matrix.shape[1]
            std = 0.0 if stds is None else stds[name]
            known = known and std > 0
            if known:
                information += product / std**2
    rank, condition = _of_singular_values(plain, max(pixels, coordinates))
    if not known:
        return Bound(rank=rank, condition=condition)
    precision = prior.of_batch(len(image)).precision.to(image.device)
    return Bound(
        unbiased=_mean_of_inverse(information),
        attainable=_mean_of_inverse(information + precision),
        rank=rank,
        condition=condition,
    )


def _gram(rows: Tensor) -> Tensor:
    """rows @ rows', of which only one triangle is multiplied out."""
    found = rows.new_empty(len(rows), len(rows))
    for start in range(0, len(rows), BLOCK):
        some, before = slice(start, start + BLOCK), slice(start + BLOCK)
        product = rows[some] @ rows[before].mT
        found[some, before], found[before, some] = product, product.mT
    return found


def _mean_of_inverse(matrix: Tensor) -> float:
    """tr(matrix^-1) / d of a symmetric one; inf where it is singular in float64."""
    values = torch.linalg.eigvalsh(matrix)
    largest = float(values[-1])
    if not float(values[0]) > largest * len(values) * torch.finfo(torch.float64).eps:
        return math.inf
    return float((1 / values).mean())


def _of_singular_values(squared: Tensor, side: int) -> tuple[float, float]:
    """Rank and condition number of J in float32's eyes, from J' J in float64."""
    values = torch.linalg.eigvalsh(squared).clamp(min=0).sqrt()
    largest, smallest = float(values[-1]), float(values[0])
    least = largest * torch.finfo(torch.float32).eps * side
    rank = float((values > least).sum()) if largest > 0 else 0.0
    return rank, largest / smallest if smallest > 0 else math.inf
