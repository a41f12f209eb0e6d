"""What public examples tell about an image before any gradient is seen."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from leakbench.errors import LeakbenchError

RIDGE = 1e-3
"""Variance added to every pixel: public images leave some constant, which victims may not."""


# No slots here: the precision is computed once, and kept.
@dataclass(frozen=True, kw_only=True, eq=False)
class GaussianPrior:
    """x ~ N(mean, covariance) over the d pixels of one image, in float64.

    Attributes:
        mean: (d,).
        covariance: (d, d), positive definite.
    """

    mean: Tensor
    covariance: Tensor

    @classmethod
    def of(cls, public: Tensor) -> GaussianPrior:
        """The Gaussian with mean and covariance of these images (m, *shape), plus `RIDGE`.

        Raises:
            LeakbenchError: fewer than two images, which have no covariance.
        """
        if len(public) < 2:
            text = f"prior: {len(public)} public images have no covariance; allowed: two or more"
            raise LeakbenchError(text)
        flat = public.detach().flatten(1).double()
        mean = flat.mean(dim=0)
        centred = flat - mean
        covariance = centred.mT @ centred / (len(flat) - 1)
        covariance.diagonal().add_(RIDGE)
        return cls(mean=mean, covariance=covariance)

    @cached_property
    def precision(self) -> Tensor:
        """(d, d) inverse of the covariance, by Cholesky's factors."""
        return torch.cholesky_inverse(torch.linalg.cholesky(self.covariance))

    def penalty(self, image: Tensor) -> Tensor:
        """See `learned_priors.ImagePrior`."""
        away = image - self.mean
        found: Tensor = away @ (self.precision @ away)
        return found

    def model(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """See `learned_priors.ImagePrior`; exact, and the same everywhere but for the slope."""
        return self.precision @ (image - self.mean), self.precision

    def of_batch(self, images: int) -> GaussianPrior:
        """Of `images` independent ones side by side, d = images x pixels."""
        if images == 1:
            return self
        whole = torch.block_diag(*[self.covariance] * images)
        found = GaussianPrior(mean=self.mean.repeat(images), covariance=whole)
        # The inverse of a block diagonal is that of its blocks.
        found.__dict__["precision"] = torch.block_diag(*[self.precision] * images)
        return found
