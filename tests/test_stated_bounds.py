"""The stated bounds on reconstructions, against real updates, and what refutes them."""

import math

import pytest
import torch
from torch import Tensor

from leakbench import data
from leakbench.architectures import build
from leakbench.contracts import Context, Gradients
from leakbench.defenses.model_cloak import ModelCloak
from leakbench.errors import LeakbenchError
from leakbench.gradients import per_example
from leakbench.stated_bounds import (
    Distances,
    distances,
    dynamic_noise_multiplier,
    expected_distance,
)
from leakbench.streams import NoiseStreams, generator

VICTIMS = 8
MODEL = build("mlp", (1, 28, 28), 10)
WEIGHTS = MODEL.init(generator(1, "weights"), torch.float32)
COORDINATES = sum(value.numel() for value in WEIGHTS.values())


@pytest.fixture(scope="module")
def inputs() -> Tensor:
    return data.load("mnist").candidates[:VICTIMS]


@pytest.fixture(scope="module")
def gradients(inputs: Tensor) -> Gradients:
    """What single digits' updates are at a learning rate of 1, but for the sign."""
    labels = data.load("mnist").candidate_labels[:VICTIMS]
    return per_example(MODEL, WEIGHTS, inputs[:, None], labels[:, None]).mean("example")


def released(gradients: Gradients, clip: float, sigma: float) -> Gradients:
    here = Context(batch_size=1, clients=tuple(range(VICTIMS)), noise=NoiseStreams(5, ()))
    defense = ModelCloak(clip=clip, noise_multiplier=sigma)
    return defense.on_update(gradients, None, here)[0]


def read_off(shown: Gradients) -> Tensor:
    """The input of the first layer by least squares: dL/dW = (dL/db) x^T."""
    weight, bias = (shown.tensors[f"dense1.{name}"] for name in ("weight", "bias"))
    found = torch.einsum("nij,ni->nj", weight, bias) / bias.square().sum(dim=1, keepdim=True)
    return found.reshape(-1, 1, 28, 28)


def measured(
    gradients: Gradients, inputs: Tensor, guess: Tensor, clip: float, sigma: float
) -> Distances:
    shown = released(gradients, clip, sigma)
    return distances(
        gradients.flatten(), shown.flatten(), inputs, guess, clip=clip, noise_multiplier=sigma
    )


def test_the_distance_of_gradients_is_what_clipping_and_noise_add_up_to(
    gradients: Gradients,
) -> None:
    norms = gradients.flatten().double().norm(dim=1)
    clip = float(norms.median())
    for sigma in (0.001, 0.01, 5.0):
        shown = released(gradients, clip, sigma).flatten()
        found = (gradients.flatten() - shown).double().norm(dim=1)
        expected = [
            expected_distance(n, clip=clip, noise_multiplier=sigma, coordinates=COORDINATES)
            for n in norms.tolist()
        ]
        assert found.tolist() == pytest.approx(expected, rel=0.03)


def test_a_gray_image_refutes_both_bounds(gradients: Gradients, inputs: Tensor) -> None:
    """sigma = 5, as the paper chooses: no image with pixels in [0, 1] is as far as it says."""
    clip = 1.001 * float(gradients.flatten().norm(dim=1).max())
    found = measured(gradients, inputs, torch.full_like(inputs, 0.5), clip, 5.0)
    assert bool(found.bounded.all())  # what Proposition 1 asks for is given
    assert bool(found.impossible.all())
    assert not bool(found.holds_stated.any()) and not bool(found.holds_relative.any())
    assert float(found.stated[0]) == pytest.approx(5 * math.sqrt(COORDINATES))
    assert float(found.farthest.max()) < 28 < float(found.stated[0])


def test_a_victim_that_is_recovered_refutes_both_bounds(inputs: Tensor) -> None:
    """Little noise and many coordinates: the bounds are below what pixels can be, and the attack
    is nearer all the same. d counts all weights, while 4,096 rows tell of the input."""
    wide = build("mlp", (1, 28, 28), 10, "uniform", {"widths": (4096,)})
    weights = wide.init(generator(1, "weights"), torch.float32)
    some, labels = inputs[:3], data.load("mnist").candidate_labels[:3]
    bare = per_example(wide, weights, some[:, None], labels[:, None]).mean("example")
    clip = 1.001 * float(bare.flatten().norm(dim=1).max())
    here = Context(batch_size=1, clients=(0, 1, 2), noise=NoiseStreams(5, ()))
    shown, _ = ModelCloak(clip=clip, noise_multiplier=1e-4).on_update(bare, None, here)
    found = distances(
        bare.flatten(), shown.flatten(), some, read_off(shown), clip=clip, noise_multiplier=1e-4
    )
    assert bool(found.bounded.all()) and not bool(found.impossible.any())
    assert float(found.stated[0]) == pytest.approx(1e-4 * math.sqrt(3_256_330))  # 0.18
    assert float((found.reconstruction / found.stated).max()) < 0.7
    assert float((found.reconstruction / found.relative).max()) < 0.7
    assert float((read_off(bare) - some).abs().max()) < 1e-3


def test_a_reconstruction_that_went_astray_holds_the_bound(
    gradients: Gradients, inputs: Tensor
) -> None:
    """An optimiser that leaves [0, 1] is as far away as one likes: the bound says nothing of it."""
    found = measured(gradients, inputs, inputs + 1e3, 2.0, 5.0)
    assert bool(found.holds_stated.all()) and bool(found.holds_relative.all())
    clamped = measured(gradients, inputs, (inputs + 1e3).clamp(0, 1), 2.0, 5.0)
    assert not bool(clamped.holds_stated.any())


def test_the_step_to_equation_7_needs_a_gradient_under_the_bound(
    gradients: Gradients, inputs: Tensor
) -> None:
    """Above C the right side of Eq. 6 is less than sigma sqrt(d), which it is said to be above."""
    norms = gradients.flatten().norm(dim=1)
    clip = float(norms.min()) / 10
    found = measured(gradients, inputs, inputs, clip, 0.5)
    assert not bool(found.bounded.any())
    assert bool((found.relative < found.stated).all())


def test_dynamic_scales_are_never_below_the_fixed_one(gradients: Gradients) -> None:
    norms = gradients.flatten().double().norm(dim=1)
    clip = float(norms.median())
    found = dynamic_noise_multiplier(gradients.flatten(), clip=clip, noise_multiplier=5.0)
    expected = [5 * clip / min(norm, clip) for norm in norms.tolist()]
    assert found.tolist() == pytest.approx(expected, rel=1e-6)
    assert float(found.min()) == pytest.approx(5.0) and float(found.max()) > 5.1


def test_what_does_not_belong_together_is_refused(inputs: Tensor) -> None:
    flat = torch.zeros(VICTIMS, 4)
    with pytest.raises(LeakbenchError, match="do not belong together; allowed"):
        distances(flat, flat[:, :3], inputs, inputs, clip=1.0, noise_multiplier=1.0)
    with pytest.raises(LeakbenchError, match=r"pixels in \[0, 1\]"):
        distances(flat, flat, inputs + 1, inputs, clip=1.0, noise_multiplier=1.0)
    with pytest.raises(LeakbenchError, match="clip must be positive"):
        distances(flat, flat, inputs, inputs, clip=0.0, noise_multiplier=1.0)
