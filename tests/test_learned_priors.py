"""What public digits tell about others, and the models that Levenberg-Marquardt takes of it."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from leakbench.data import load
from leakbench.errors import LeakbenchError
from leakbench.learned_priors import PRIORS, Autoencoder, ImagePrior, Mixture
from leakbench.priors import RIDGE, GaussianPrior


def digits(count: int, *, secret: bool = False) -> Tensor:
    """Real digits of 14 x 14 pixels, public or of the victims."""
    loaded = load("mnist")
    images = loaded.candidates if secret else loaded.public
    return avg_pool2d(images[:count], 2).double()


@pytest.fixture(scope="module")
def priors() -> dict[str, ImagePrior]:
    return {name: kind.of(digits(200)) for name, kind in PRIORS.items()}


@pytest.mark.parametrize("name", PRIORS)
def test_the_model_is_half_the_derivative(priors: dict[str, ImagePrior], name: str) -> None:
    image = digits(1, secret=True).flatten().requires_grad_()
    penalty = priors[name].penalty(image)
    slope = torch.autograd.grad(penalty, image)[0]
    found, matrix = priors[name].model(image.detach())
    assert torch.allclose(2 * found, slope, rtol=1e-9, atol=1e-9)
    assert torch.allclose(matrix, matrix.T, rtol=1e-9, atol=1e-9)
    assert float(torch.linalg.eigvalsh(matrix)[0]) > 0


@pytest.mark.parametrize("name", PRIORS)
def test_digits_are_likelier_than_their_negatives(priors: dict[str, ImagePrior], name: str) -> None:
    for image in digits(10, secret=True).flatten(1):
        assert float(priors[name].penalty(image)) < float(priors[name].penalty(1 - image))


def test_the_gaussian_is_mean_and_covariance() -> None:
    public, image = digits(200).flatten(1), digits(1, secret=True).flatten()
    covariance = torch.cov(public.T) + RIDGE * torch.eye(196, dtype=torch.float64)
    away = image - public.mean(dim=0)
    expected = away @ torch.linalg.solve(covariance, away)
    assert torch.allclose(GaussianPrior.of(public).penalty(image), expected, rtol=1e-9)


def test_kinds_are_found_where_they_are_plain() -> None:
    """Two clouds far apart, of 30 and 10 points, and what lies within them."""
    drawn = torch.Generator().manual_seed(0)
    cloud = 0.01 * torch.randn(40, 3, generator=drawn, dtype=torch.float64)
    centres = torch.tensor([[0.0, 0.0, 0.0], [5.0, 5.0, 5.0]], dtype=torch.float64)
    mixture = Mixture.of(cloud + centres.repeat_interleave(torch.tensor([30, 10]), dim=0))
    assert float(mixture.shares.sum()) == pytest.approx(1)
    near = torch.cdist(mixture.means, centres).argmin(dim=1)
    shares = torch.zeros(2, dtype=torch.float64).index_add(0, near, mixture.shares)
    assert shares.tolist() == pytest.approx([0.75, 0.25])
    kind = mixture.means[0]
    expected = -2 * mixture.shares[0].log()
    assert float(mixture.penalty(kind)) <= float(expected) + 1e-9


def test_an_autoencoder_is_the_same_every_time_and_knows_digits() -> None:
    public = digits(100)
    state = torch.random.get_rng_state()
    one, two = Autoencoder.of(public), Autoencoder.of(public)
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(one.weights, two.weights, strict=True))
    left = float((one.spread.square() - RIDGE).mean())
    assert left < float(public.flatten(1).var(dim=0).mean())


@pytest.mark.parametrize("kind", [Mixture, Autoencoder])
def test_few_images_teach_nothing(kind: type[Mixture] | type[Autoencoder]) -> None:
    with pytest.raises(LeakbenchError, match="at least 20 public images, got 19"):
        kind.of(digits(19))
