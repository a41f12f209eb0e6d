"""A leak made from Python, against plain autograd; and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from leakbench import data
from leakbench.architectures import build
from leakbench.capturing import capture_leak
from leakbench.contracts import Context, LeakPoint, Weights
from leakbench.defenses.dp_baseline import DPBaseline
from leakbench.defenses.quantile_clip import QuantileClip
from leakbench.errors import LeakbenchError
from leakbench.streams import generator

DIGITS = data.load("mnist")
MODEL = build("cnn2", (1, 28, 28), 10)
WEIGHTS = MODEL.init(generator(0, "weights"), torch.float64)
X, Y = DIGITS.candidates[:6].double(), DIGITS.candidate_labels[:6]


def gradient(weights: Weights, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Of the mean cross-entropy, by torch alone."""
    leaves = {k: v.detach().clone().requires_grad_() for k, v in weights.items()}
    loss = F.cross_entropy(MODEL.logits(leaves, images), labels)
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


def test_single_examples_leak_their_gradients() -> None:
    leak = capture_leak(MODEL, X, Y, weights=WEIGHTS)
    assert (leak.n, leak.batch_size, leak.classes, leak.input_shape) == (6, 1, 10, (1, 28, 28))
    assert leak.noise_std is None and leak.labels is None and leak.learning_rate is None
    for row in range(6):
        for name, value in gradient(WEIGHTS, X[[row]], Y[[row]]).items():
            torch.testing.assert_close(leak.observed.tensors[name][row], value)
    some = capture_leak(MODEL, X, Y, weights=WEIGHTS, victims=torch.tensor([[0, 4], [0, 1]]))
    for name, value in some.observed.tensors.items():
        assert torch.equal(value, leak.observed.tensors[name][[4, 1]])


@pytest.mark.parametrize("type", [0, 1])
def test_an_update_is_that_of_local_steps_by_hand(type: Any) -> None:
    """Two clients, three steps of one example each, in the units of a gradient."""
    rate = 0.5
    leak = capture_leak(
        MODEL, X.unflatten(0, (2, 3)), Y.unflatten(0, (2, 3)), weights=WEIGHTS,
        point=LeakPoint(type=type), local_steps=3, learning_rate=rate,
    )  # fmt: skip
    assert (leak.n, leak.batch_size, leak.local_steps, leak.learning_rate) == (2, 3, 3, rate)
    for client in range(2):
        local = dict(WEIGHTS)
        for step in range(3 * client, 3 * client + 3):
            slope = gradient(local, X[[step]], Y[[step]])
            local = {k: v - rate * slope[k] for k, v in local.items()}
        for name, value in leak.observed.tensors.items():
            wanted = (WEIGHTS[name] - local[name]) / (3 * rate)
            torch.testing.assert_close(value[client], wanted)


def test_the_adaptive_attacker_knows_the_defense_and_its_noise() -> None:
    defense = DPBaseline(clip=0.01, noise_multiplier=0.5)
    leaks = {
        knowledge: capture_leak(MODEL, X, Y, weights=WEIGHTS, defense=defense, knowledge=knowledge)
        for knowledge in ("naive", "adaptive")
    }
    naive, adaptive = leaks["naive"], leaks["adaptive"]
    assert torch.equal(naive.observed.flatten(), adaptive.observed.flatten())
    assert naive.noise_std is None and adaptive.noise_std is not None
    for std in adaptive.noise_std.values():
        assert torch.equal(std, torch.full((6,), 0.005, dtype=torch.float64))
    rows = torch.arange(6)
    for name, plain in gradient(WEIGHTS, X[[2]], Y[[2]]).items():
        for leak, wanted in (
            (naive, plain),
            (adaptive, plain * min(1.0, 0.01 / float(plain.norm()))),
        ):
            shown = leak.observations[0].simulate(X[:, None], Y[:, None], rows)
            torch.testing.assert_close(shown.tensors[name][2], wanted)
    # Noise of this size is in it, and belongs to the seed.
    noise = adaptive.observed.flatten() - adaptive.observations[0].simulate(
        X[:, None], Y[:, None], rows
    ).flatten()  # fmt: skip
    assert float(noise.std()) == pytest.approx(0.005, rel=0.02)
    other = capture_leak(MODEL, X, Y, weights=WEIGHTS, defense=defense, seed=1)
    assert not torch.equal(other.observed.flatten(), naive.observed.flatten())


def test_several_weights_are_looks_with_noise_of_their_own() -> None:
    second = {name: 1.1 * value for name, value in WEIGHTS.items()}
    leak = capture_leak(
        MODEL, X, Y, weights=[WEIGHTS, second], defense=QuantileClip(), knowledge="adaptive"
    )
    assert leak.observations[1].weights["dense.bias"] is second["dense.bias"]
    rows = torch.arange(6)
    noise = [
        seen.gradients.flatten() - seen.simulate(X[:, None], Y[:, None], rows).flatten()
        for seen in leak.observations
    ]
    correlation = torch.corrcoef(torch.stack([each.flatten() for each in noise]))[0, 1]
    assert abs(float(correlation)) < 5 / noise[0].numel() ** 0.5


def test_what_is_granted_is_there() -> None:
    public = DIGITS.public[:5].double()
    leak = capture_leak(
        MODEL, X, Y, weights=WEIGHTS, grants=("labels", "candidates", "public"),
        candidates=(X, Y), public=public, victims=torch.tensor([[0, 3]]),
    )  # fmt: skip
    assert leak.labels is not None and leak.labels.tolist() == [[int(Y[3])]]
    assert leak.candidates is X and leak.candidate_labels is Y and leak.public is public


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"y": Y[:5]}, r"x \(1, 6, 1, 28, 28\) and y \(1, 5\) do not belong together"),
        ({"local_steps": 2}, "2 local steps at a type-2 tap"),
        ({"point": LeakPoint(type=1), "local_steps": 4}, "6 examples of a client make no 4"),
        ({"knowledge": "adaptiv"}, "unknown knowledge 'adaptiv' .did you mean 'adaptive'"),
        ({"grants": ("label",)}, "unknown grant 'label' .did you mean 'labels'"),
        ({"grants": ("public",)}, "'public' inputs are granted, and there are none"),
        ({"grants": ("candidates",)}, "'candidates' are granted, and there are none"),
        (
            {"point": LeakPoint(view="batch"), "victims": torch.tensor([[0, 1]])},
            "victims are chosen at the tap of single examples, not type2/batch",
        ),
    ],
)
def test_a_leak_that_cannot_be_is_one_sentence(changes: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"x": X, "y": Y, "weights": WEIGHTS} | changes
    with pytest.raises(LeakbenchError, match=f"^leak: {said}") as caught:
        capture_leak(MODEL, **given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("missing", ["batch_size", "clients", "noise"])
def test_a_context_must_say_what_a_defense_protects_by(missing: str) -> None:
    """Defaults would switch noise off, or make it B times too large, without a word."""
    whole: dict[str, Any] = {"batch_size": 8, "clients": (0,), "noise": None}
    Context(**whole)
    del whole[missing]
    with pytest.raises(TypeError, match=missing):
        Context(**whole)
