"""Priors on one image that say more than mean and covariance do, learnt from public images.

A prior gives -2 log p(x) up to a constant as a sum of squares, and its Gauss-Newton model: what
Levenberg-Marquardt needs to weigh an image against a gradient. Images are flat, (d,), in float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor
from torch.func import jacfwd

from leakbench.errors import LeakbenchError
from leakbench.priors import RIDGE, GaussianPrior
from leakbench.streams import generator

CLUSTERS, ROUNDS = 10, 50
HIDDEN, CODE = 256, 32
EPOCHS, RATE, BATCH = 200, 1e-3, 50
LEAST_IMAGES = 20
"""Public images that clusters, or an autoencoder and what it was not trained on, can be had of."""


class ImagePrior(Protocol):
    """What an attacker believes of one image before he sees a gradient."""

    def penalty(self, image: Tensor) -> Tensor:
        """-2 log p(x) but for a constant, a scalar, of (d,)."""
        ...

    def model(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Half the derivative of the penalty (d,), and half its Gauss-Newton Hessian (d, d)."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Mixture:
    """x is of one of K kinds, N(m_j, S) with probability w_j; the likeliest kind alone counts.

    The penalty is min over j of (x - m_j)^T P (x - m_j) - 2 log w_j, of the joint density of image
    and kind. S is the covariance within kinds, plus `RIDGE`.

    Attributes:
        means: (K, d).
        shares: (K,), which sum to 1.
        precision: (d, d).
    """

    means: Tensor
    shares: Tensor
    precision: Tensor

    @classmethod
    def of(cls, public: Tensor) -> Mixture:
        """K-means of the public images (m, *shape), from starts that are far apart.

        Raises:
            LeakbenchError: too few images.
        """
        flat = _enough(public, "mixture")
        means = _spread(flat, CLUSTERS)
        kinds = torch.cdist(flat, means).argmin(dim=1)
        for _ in range(ROUNDS):
            # A kind that has lost all its images stays where it was.
            found = [flat[kinds == k] for k in range(len(means))]
            means = torch.stack(
                [
                    own.mean(dim=0) if len(own) else old
                    for own, old in zip(found, means, strict=True)
                ]
            )
            before, kinds = kinds, torch.cdist(flat, means).argmin(dim=1)
            if torch.equal(before, kinds):
                break
        counts = torch.bincount(kinds, minlength=len(means)).double()
        within = flat - means[kinds]
        covariance = within.mT @ within / max(len(flat) - len(means), 1)
        covariance.diagonal().add_(RIDGE)
        used = counts > 0
        return cls(
            means=means[used],
            shares=counts[used] / len(flat),
            precision=torch.cholesky_inverse(torch.linalg.cholesky(covariance)),
        )

    def penalty(self, image: Tensor) -> Tensor:
        return self._penalties(image).amin()

    def model(self, image: Tensor) -> tuple[Tensor, Tensor]:
        kind = self._penalties(image).argmin()
        return self.precision @ (image - self.means[kind]), self.precision

    def _penalties(self, image: Tensor) -> Tensor:
        away = image - self.means
        found: Tensor = ((away @ self.precision) * away).sum(dim=1) - 2 * self.shares.log()
        return found


@dataclass(frozen=True, kw_only=True, eq=False)
class Autoencoder:
    """x is near what a small network makes of its own code, and the code is a common one.

    With encoder e and decoder f of one hidden layer each, the penalty is
    sum over pixels of (x - f(e(x)))^2 / t^2 + (e(x) - m)^T C^-1 (e(x) - m): t^2 is the mean squared
    error of each pixel, plus `RIDGE`, on the fifth of the public images that it was not trained on,
    m and C mean and covariance of codes. As a density it is not normalised. It is trained for
    `EPOCHS` with Adam, always from the same draw.

    Attributes:
        weights: those of the four layers, each before its bias.
        spread: (d,) t.
        middle, code_root: (CODE,) m, and (CODE, CODE) the inverse of C's Cholesky factor.
    """

    weights: tuple[Tensor, ...]
    spread: Tensor
    middle: Tensor
    code_root: Tensor

    @classmethod
    def of(cls, public: Tensor) -> Autoencoder:
        """Trained on four fifths of the public images (m, *shape), measured on the others.

        Raises:
            LeakbenchError: too few images.
        """
        flat = _enough(public, "autoencoder")
        held = torch.arange(len(flat), device=flat.device) % 5 == 4
        weights = _trained(flat[~held])
        with torch.no_grad():
            codes = _encoded(weights, flat)
            apart = flat[held] - _decoded(weights, codes[held])
            centred = codes - codes.mean(dim=0)
            covariance = centred.mT @ centred / (len(codes) - 1)
            covariance.diagonal().add_(RIDGE)
        unit = torch.eye(CODE, dtype=flat.dtype, device=flat.device)
        root = torch.linalg.cholesky(covariance)
        return cls(
            weights=weights,
            spread=(apart.square().mean(dim=0) + RIDGE).sqrt(),
            middle=codes.mean(dim=0),
            code_root=torch.linalg.solve_triangular(root, unit, upper=False),
        )

    def penalty(self, image: Tensor) -> Tensor:
        return self._residual(image).square().sum()

    def model(self, image: Tensor) -> tuple[Tensor, Tensor]:
        jacobian = jacfwd(self._residual)(image)
        return jacobian.mT @ self._residual(image), jacobian.mT @ jacobian

    def _residual(self, image: Tensor) -> Tensor:
        code = _encoded(self.weights, image)
        apart = (image - _decoded(self.weights, code)) / self.spread
        return torch.cat([apart, self.code_root @ (code - self.middle)])


def _enough(public: Tensor, prior: str) -> Tensor:
    """(m, d) in float64."""
    if len(public) < LEAST_IMAGES:
        raise LeakbenchError(
            f"prior '{prior}': it is learnt from at least {LEAST_IMAGES} public images, "
            f"got {len(public)}"
        )
    return public.detach().flatten(1).double()


def _spread(flat: Tensor, count: int) -> Tensor:
    """The image nearest to the mean, then again and again the one furthest from those chosen."""
    chosen = [int(torch.linalg.vector_norm(flat - flat.mean(dim=0), dim=1).argmin())]
    away = torch.linalg.vector_norm(flat - flat[chosen[0]], dim=1)
    while len(chosen) < min(count, len(flat)):
        chosen.append(int(away.argmax()))
        away = away.minimum(torch.linalg.vector_norm(flat - flat[chosen[-1]], dim=1))
    return flat[chosen]


def _trained(flat: Tensor) -> tuple[Tensor, ...]:
    drawn = generator(0, "autoencoder")
    sizes = [flat.shape[1], HIDDEN, CODE, HIDDEN, flat.shape[1]]
    weights: list[Tensor] = []
    for before, after in pairwise(sizes):
        bound = 1 / math.sqrt(before)
        for shape in ((after, before), (after,)):
            uniform = torch.rand(shape, generator=drawn, dtype=torch.float64)
            weights.append(((2 * uniform - 1) * bound).to(flat.device).float().requires_grad_())
    with torch.enable_grad():
        optimiser, images = torch.optim.Adam(weights, lr=RATE), flat.float()
        for _ in range(EPOCHS):
            for some in torch.randperm(len(flat), generator=drawn).split(BATCH):
                shown = images[some.to(flat.device)]
                made = _decoded(weights, _encoded(weights, shown))
                optimiser.zero_grad()
                (made - shown).square().mean().backward()
                optimiser.step()
    return tuple(weight.detach().double() for weight in weights)


def _encoded(weights: tuple[Tensor, ...] | list[Tensor], images: Tensor) -> Tensor:
    hidden = torch.tanh(images @ weights[0].mT + weights[1])
    return hidden @ weights[2].mT + weights[3]


def _decoded(weights: tuple[Tensor, ...] | list[Tensor], codes: Tensor) -> Tensor:
    hidden = torch.tanh(codes @ weights[4].mT + weights[5])
    return hidden @ weights[6].mT + weights[7]


PRIORS: dict[str, type[GaussianPrior] | type[Mixture] | type[Autoencoder]] = {
    "gaussian": GaussianPrior, "mixture": Mixture, "autoencoder": Autoencoder,
}  # fmt: skip
