"""The Gaussian prior of public images against closed forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from leakbench import data
from leakbench.errors import LeakbenchError
from leakbench.priors import RIDGE, GaussianPrior


def test_prior_has_mean_and_covariance_of_the_public_images() -> None:
    public = data.load("mnist").public[:60]
    prior = GaussianPrior.of(public)
    flat = public.flatten(1).double().numpy()
    np.testing.assert_allclose(prior.mean.numpy(), flat.mean(axis=0), atol=1e-12)
    wanted = np.cov(flat, rowvar=False) + RIDGE * np.eye(784)
    np.testing.assert_allclose(prior.covariance.numpy(), wanted, atol=1e-12)
    np.testing.assert_allclose(prior.precision.numpy() @ wanted, np.eye(784), atol=1e-9)


def test_a_batch_has_the_prior_of_its_images_side_by_side() -> None:
    torch.manual_seed(0)
    prior = GaussianPrior.of(torch.rand(30, 1, 2, 3))
    two = prior.of_batch(2)
    assert two.mean.tolist() == [*prior.mean.tolist(), *prior.mean.tolist()]
    assert not two.covariance[:6, 6:].any() and torch.equal(
        two.covariance[6:, 6:], prior.covariance
    )
    torch.testing.assert_close(two.precision, two.covariance.inverse())


def test_one_image_has_no_covariance() -> None:
    with pytest.raises(LeakbenchError, match="1 public images have no covariance"):
        GaussianPrior.of(torch.rand(1, 1, 2, 2))
