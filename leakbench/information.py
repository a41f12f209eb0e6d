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

from leakbench.contracts import Gradients, Observation
from leakbench.numeric import add_gram
from leakbench.priors import GaussianPrior

LARGEST = 4096
"""Pixels up to which anything is computed: the information is a matrix of them squared."""

NUMBERS = 2**28
"""Numbers of the Jacobian and its products up to which anything is computed (2 GB)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What one victim's leak holds; nan where it was not computed.

    Attributes:
        unbiased, attainable: mean squared errors a pixel of raw (not clamped) estimates; inf where
            the information is singular. nan without noise, or with noise of unknown size.
        rank: singular values of J above the largest x float32's epsilon. (The usual threshold is so
            many times longer as J has rows; attacks recover images exactly from far below it.)
        condition: largest over smallest singular value of J; inf where the smallest is nothing.
    """

    unbiased: float = math.nan
    attainable: float = math.nan
    rank: float = math.nan
    condition: float = math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """J' J of one victim's looks, tensor by tensor: all of the information but the noise.

    Attributes:
        products: Of each look, parameter name -> (d, d), in float64.
        rank, condition: As in `Bound`.
        images: Behind the gradient, B.
    """

    products: tuple[Mapping[str, Tensor], ...]
    rank: float
    condition: float
    images: int


def held_by(observations: Sequence[Observation], image: Tensor, label: Tensor) -> Held | None:
    """What the looks hold of one victim before any noise; None of images above `LARGEST`,
    or where it takes more than `NUMBERS`.

    None also where the gradient has no finite derivative.

    Args:
        observations: The looks at this victim alone (row 0), through the defense as it was.
        image, label: The truth, (B, *input shape) and (B,).
    """
    pixels = image.numel()
    if pixels > LARGEST or pixels * _numbers_a_pixel(observations, pixels) > NUMBERS:
        return None
    units = torch.eye(pixels, dtype=torch.float64, device=image.device)
    products, whole = [], torch.zeros_like(units)
    for seen in observations:
        _, columns = _pushed(seen, image, label, units)
        of_look = {name: _gram(value[0].flatten(1)) for name, value in columns.tensors.items()}
        products.append(of_look)
        for product in of_look.values():
            whole += product
    if not bool(torch.isfinite(whole).all()):
        return None
    rank, condition = _of_singular_values(whole)
    return Held(products=tuple(products), rank=rank, condition=condition, images=len(image))


def fingerprint(observations: Sequence[Observation], image: Tensor, label: Tensor) -> Tensor:
    """The looks' gradients and their derivatives in one direction: two leaks that agree in them,
    bit for bit, hold the same."""
    draws = torch.Generator().manual_seed(0)
    direction = torch.randn(1, image.numel(), generator=draws, dtype=torch.float64)
    parts = []
    for seen in observations:
        plain, moved = _pushed(seen, image, label, direction.to(image.device))
        parts += [plain.flatten()[0], moved.flatten()[0, 0]]
    return torch.cat(parts)


def bound_under(
    held: Held, noise_stds: Sequence[Mapping[str, float] | None], prior: GaussianPrior
) -> Bound:
    """The bound where noise is added to what is held.

    Args:
        held: By the looks.
        noise_stds: Of each look, parameter name -> std of the noise on it; None: not known.
        prior: Of one image; those of a batch are independent.
    """
    information: Tensor | None = None
    for products, stds in zip(held.products, noise_stds, strict=True):
        for name, product in products.items():
            if stds is None or not stds[name] > 0:
                return Bound(rank=held.rank, condition=held.condition)
            part = product / stds[name] ** 2
            information = part if information is None else information + part
    assert information is not None, "a network has parameters"
    precision = prior.of_batch(held.images).precision.to(information.device)
    return Bound(
        unbiased=_mean_of_inverse(information),
        attainable=_mean_of_inverse(information + precision),
        rank=held.rank,
        condition=held.condition,
    )


def _pushed(
    seen: Observation, image: Tensor, label: Tensor, directions: Tensor
) -> tuple[Gradients, Gradients]:
    """`Observation.push` of one image (B, *input shape) in directions (c, d), in float64."""
    tangents = directions.reshape(1, len(directions), *image.shape)
    row = torch.zeros(1, dtype=torch.int64, device=image.device)
    return seen.push(image.double()[None], label[None], row, tangents)


def _numbers_a_pixel(observations: Sequence[Observation], pixels: int) -> int:
    """Of one look's Jacobian, and of the products of every tensor and look."""
    tensors = observations[0].gradients.tensors.values()
    return sum(value[0].numel() for value in tensors) + pixels * len(tensors) * len(observations)


def _gram(rows: Tensor) -> Tensor:
    """rows @ rows'."""
    found = rows.new_zeros(len(rows), len(rows))
    add_gram(found, rows)
    return found


def _mean_of_inverse(matrix: Tensor) -> float:
    """tr(matrix^-1) / d of a symmetric one; inf where it is singular in float64."""
    values = torch.linalg.eigvalsh(matrix)
    largest = float(values[-1])
    if not float(values[0]) > largest * len(values) * torch.finfo(torch.float64).eps:
        return math.inf
    return float((1 / values).mean())


def _of_singular_values(squared: Tensor) -> tuple[float, float]:
    """Rank and condition number of J in float32's eyes, from J' J in float64."""
    values = torch.linalg.eigvalsh(squared).clamp(min=0).sqrt()
    largest, smallest = float(values[-1]), float(values[0])
    least = largest * torch.finfo(torch.float32).eps
    rank = float((values > least).sum()) if largest > 0 else 0.0
    return rank, largest / smallest if smallest > 0 else math.inf
