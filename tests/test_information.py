"""What a leak holds, against closed forms, Monte-Carlo errors and an attacker without a prior."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from leakbench import data, information, registry
from leakbench.architectures import build
from leakbench.contracts import Defense, Gradients, LeakPoint, Observation
from leakbench.information import LARGEST, Bound, bound_under, held_by
from leakbench.leaking import Tap
from leakbench.losses import Loss
from leakbench.priors import GaussianPrior
from leakbench.streams import NoiseStreams, generator

PIXELS, OUTPUTS, SIGMA = 6, 9, 0.3


class Linear:
    """logits = w + A x: with mean squared error, a gradient that is linear in x.

    For k outputs, labels 0 and w = 0 it is 2 A x / k by w.
    """

    head = None
    loss: ClassVar[Loss] = "mean_squared_error"
    mixes_examples = False

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix

    def init(self, generator: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
        return {"w": torch.zeros(len(self.matrix), dtype=dtype)}

    def logits(self, weights: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        return weights["w"] + inputs.flatten(1) @ self.matrix.mT


def _toy() -> tuple[Observation, Tensor, Tensor, GaussianPrior]:
    """A look through the linear model, its J (outputs, pixels), the image and a prior."""
    draws = generator(1, "toy")
    matrix = torch.randn(OUTPUTS, PIXELS, generator=draws, dtype=torch.float64)
    model = Linear(matrix)
    weights = model.init(draws, torch.float64)
    tap = Tap(model=model, point=LeakPoint(), batch_size=1)
    look = tap.look(Defense(), weights, None)
    nothing = Gradients({"w": torch.zeros(1, OUTPUTS, dtype=torch.float64)}, ("client",))
    seen = tap.observation(weights, nothing, [tap.replay(Defense(), look)])
    root = torch.randn(PIXELS, PIXELS, generator=draws, dtype=torch.float64)
    prior = GaussianPrior(
        mean=torch.randn(PIXELS, generator=draws, dtype=torch.float64),
        covariance=0.05 * root @ root.mT + 0.01 * torch.eye(PIXELS, dtype=torch.float64),
    )
    return seen, 2 * matrix / OUTPUTS, torch.full((1, PIXELS), 0.5).double(), prior


def bound_of(
    observations: Sequence[Observation],
    noise_stds: Sequence[Mapping[str, float] | None],
    image: Tensor,
    label: Tensor,
    prior: GaussianPrior,
) -> Bound:
    held = held_by(observations, image, label)
    return Bound() if held is None else bound_under(held, noise_stds, prior)


def _toy_bound(seen: Observation, image: Tensor, prior: GaussianPrior, looks: int = 1) -> Bound:
    label = torch.zeros(1, OUTPUTS, dtype=torch.float64)
    return bound_of([seen] * looks, [{"w": SIGMA}] * looks, image, label, prior)


def test_least_squares_meets_the_unbiased_bound() -> None:
    """Linear and Gaussian: closed form, bound and the Monte-Carlo error of who knows no prior."""
    seen, matrix, image, prior = _toy()
    bound = _toy_bound(seen, image, prior)
    closed = SIGMA**2 * float(torch.linalg.inv(matrix.mT @ matrix).trace()) / PIXELS
    assert bound.unbiased == pytest.approx(closed, rel=1e-10)
    noise = SIGMA * torch.randn(200_000, OUTPUTS, generator=generator(2, "toy")).double()
    shown = image @ matrix.mT + noise
    guesses = shown @ torch.linalg.pinv(matrix).mT
    assert float((guesses - image).square().mean()) == pytest.approx(bound.unbiased, rel=0.01)


@pytest.mark.parametrize("looks", [1, 3])
def test_the_posterior_mean_meets_the_attainable_error(looks: int) -> None:
    """On average over images from the prior; looks add up their information."""
    seen, matrix, image, prior = _toy()
    bound = _toy_bound(seen, image, prior, looks)
    precision = torch.linalg.inv(prior.covariance)
    posterior = torch.linalg.inv(looks * matrix.mT @ matrix / SIGMA**2 + precision)
    assert bound.attainable == pytest.approx(float(posterior.trace()) / PIXELS, rel=1e-10)
    draws = generator(3, "toy")
    root = torch.linalg.cholesky(prior.covariance)
    images = prior.mean + torch.randn(200_000, PIXELS, generator=draws).double() @ root.mT
    noise = torch.randn(200_000, OUTPUTS, generator=draws).double() * SIGMA / math.sqrt(looks)
    shown = images @ matrix.mT + noise
    pull = (looks / SIGMA**2) * shown @ matrix + prior.mean @ precision
    error = float((pull @ posterior - images).square().mean())
    assert error == pytest.approx(bound.attainable, rel=0.01)


def test_rank_and_condition_are_those_of_the_jacobian() -> None:
    seen, matrix, image, prior = _toy()
    found = _toy_bound(seen, image, prior)
    values = np.linalg.svd(matrix.numpy(), compute_uv=False)
    assert found.rank == PIXELS
    assert found.condition == pytest.approx(values[0] / values[-1], rel=1e-8)


def test_what_no_look_shows_has_no_unbiased_estimate() -> None:
    """Fewer coordinates than pixels: singular, and the prior alone tells the rest."""
    seen, _, image, prior = _toy()
    model = Linear(seen.run.model.matrix[:4])  # type: ignore[attr-defined]
    weights = model.init(generator(1, "toy"), torch.float64)
    tap = Tap(model=model, point=LeakPoint(), batch_size=1)
    look = tap.look(Defense(), weights, None)
    nothing = Gradients({"w": torch.zeros(1, 4, dtype=torch.float64)}, ("client",))
    few = tap.observation(weights, nothing, [tap.replay(Defense(), look)])
    label = torch.zeros(1, 4, dtype=torch.float64)
    bound = bound_of([few], [{"w": SIGMA}], image, label, prior)
    assert bound.unbiased == math.inf and bound.rank == 4
    assert 0 < bound.attainable < float(prior.covariance.trace()) / PIXELS


@pytest.mark.parametrize("stds", [None, {"w": 0.0}])
def test_without_noise_of_known_size_only_the_jacobian_is_described(stds: Any) -> None:
    seen, _, image, prior = _toy()
    label = torch.zeros(1, OUTPUTS, dtype=torch.float64)
    bound = bound_of([seen], [stds], image, label, prior)
    assert math.isnan(bound.unbiased) and math.isnan(bound.attainable)
    assert bound.rank == PIXELS


def test_a_gradient_without_a_finite_derivative_is_left_out() -> None:
    """A root at 0, as some defense may take: its slope is infinite, and no eigenvalue is."""
    _, matrix, _, prior = _toy()

    class Rooted(Linear):
        def logits(self, weights: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
            return super().logits(weights, inputs.sqrt())

    model = Rooted(matrix)
    weights = model.init(generator(1, "toy"), torch.float64)
    tap = Tap(model=model, point=LeakPoint(), batch_size=1)
    look = tap.look(Defense(), weights, None)
    nothing = Gradients({"w": torch.zeros(1, OUTPUTS, dtype=torch.float64)}, ("client",))
    rooted = tap.observation(weights, nothing, [tap.replay(Defense(), look)])
    bound = _toy_bound(rooted, torch.zeros(1, PIXELS).double(), prior)
    assert math.isnan(bound.attainable) and math.isnan(bound.rank)


def test_large_images_are_left_out() -> None:
    seen, _, _, prior = _toy()
    bound = bound_of([seen], [{"w": SIGMA}], torch.zeros(1, LARGEST + 1), torch.zeros(1), prior)
    assert math.isnan(bound.rank)


@pytest.mark.slow
def test_large_networks_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, _, image, prior = _toy()
    monkeypatch.setattr(information, "NUMBERS", PIXELS * (OUTPUTS + PIXELS))
    assert _toy_bound(seen, image, prior).rank == PIXELS
    monkeypatch.setattr(information, "NUMBERS", PIXELS * (OUTPUTS + PIXELS) - 1)
    assert math.isnan(_toy_bound(seen, image, prior).rank)


def test_an_attacker_without_prior_is_not_below_the_unbiased_bound() -> None:
    """Gauss-Newton from the truth on noisy gradients of a sigmoid network: its error is the bound's
    size, and below it by no more than Monte-Carlo error."""
    digits = data.load("mnist")
    model = build("cnn2", digits.input_shape, digits.classes)
    weights = model.init(generator(5, "weights"), torch.float64)
    sigma = 1e-4
    defense = registry.load("defenses", "dp_baseline")(
        clip=4.0, noise_multiplier=sigma / 4.0, convention="per_example"
    )
    tap = Tap(model=model, point=LeakPoint(), batch_size=1)
    look = tap.look(defense, weights, tap.begin(defense, weights))
    image, label = digits.candidates[:1].double(), digits.candidate_labels[:1]
    nothing = Gradients({k: v.new_zeros(1, *v.shape) for k, v in weights.items()}, ("client",))
    seen = tap.observation(weights, nothing, [tap.replay(defense, look)])
    prior = GaussianPrior.of(digits.public)
    bound = bound_of([seen], [tap.noise_std(defense, look)], image, label, prior)
    units = torch.eye(784, dtype=torch.float64).reshape(1, 784, 1, *image.shape[1:])
    rows = torch.zeros(1, dtype=torch.int64)
    plain, columns = seen.push(image[None], label[None], rows, units)
    jacobian = columns.flatten()[0].mT
    solve = torch.linalg.inv(jacobian.mT @ jacobian) @ jacobian.mT
    draws = NoiseStreams(6, ("look",))
    errors = []
    for client in range(24):
        noise = sigma * draws.normal("n", client, 0, 0, tuple(plain.flatten().shape)).double()
        guess = image.flatten().clone()
        for _ in range(4):
            at = guess.reshape(image[None].shape)
            residual = seen.simulate(at, label[None], rows).flatten() - plain.flatten() - noise
            guess -= solve @ residual[0]
        errors.append(float((guess - image.flatten()).square().mean()))
    error, spread = np.mean(errors), np.std(errors, ddof=1) / math.sqrt(len(errors))
    assert error > bound.unbiased - 3 * spread
    assert error < 1.3 * bound.unbiased
