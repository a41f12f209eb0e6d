"""Pretraining: the same weights twice, what it minimises, and how well the network then does."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from leakbench.architectures import build
from leakbench.contracts import Weights
from leakbench.data import load
from leakbench.models.mlp import DenseNet
from leakbench.models.sigmoid import SigmoidNet
from leakbench.pretraining import accuracy, pretrain
from leakbench.streams import generator

DIGITS = 520  # the last batch of an epoch is smaller than the others


def network(name: str = "cnn2") -> tuple[SigmoidNet | DenseNet, dict[str, Tensor]]:
    dataset = load("mnist")
    model = build(name, dataset.input_shape, dataset.classes)
    return model, model.init(generator(3, "weights"), torch.float32)


def trained(
    epochs: int = 1, seed: int = 0, name: str = "cnn2", batch_size: int = 50, rate: float = 0.003
) -> dict[str, Tensor]:
    dataset, (model, weights) = load("mnist"), network(name)
    return pretrain(
        model, weights, dataset.train[:DIGITS], dataset.train_labels[:DIGITS], epochs=epochs,
        batch_size=batch_size, learning_rate=rate, generator=generator(seed, "pretraining"),
    )  # fmt: skip


def loss(weights: Weights, name: str = "cnn2") -> float:
    dataset, (model, _) = load("mnist"), network(name)
    logits = model.logits(weights, dataset.train[:DIGITS])
    return float(F.cross_entropy(logits, dataset.train_labels[:DIGITS]))


def test_the_same_arguments_give_the_same_weights() -> None:
    one, two = trained(), trained()
    assert all(torch.equal(one[name], two[name]) for name in one)
    other = trained(seed=1)
    assert not any(torch.equal(one[name], other[name]) for name in one)


def test_first_weights_stay_and_every_tensor_is_trained() -> None:
    dataset, (model, weights) = load("mnist"), network()
    before = {name: value.clone() for name, value in weights.items()}
    found = pretrain(
        model, weights, dataset.train[:DIGITS], dataset.train_labels[:DIGITS], epochs=1,
        batch_size=50, learning_rate=0.003, generator=generator(0, "pretraining"),
    )  # fmt: skip
    assert list(found) == list(before)
    for name, value in found.items():
        assert torch.equal(weights[name], before[name]) and not weights[name].requires_grad
        assert value.dtype == torch.float32 and not value.requires_grad
        assert not torch.equal(value, before[name])


@pytest.mark.parametrize("name", ["cnn2", "mlp"])
def test_the_loss_falls_with_every_few_epochs(name: str) -> None:
    losses = [loss(network(name)[1], name)]
    losses += [loss(trained(epochs, name=name), name) for epochs in (1, 4, 10)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("batch_size", [200, DIGITS])
def test_an_epoch_is_adam_on_every_example_once(batch_size: int) -> None:
    """Adam written out (Kingma and Ba, algorithm 1) on the batches that the generator shuffles."""
    dataset, (model, weights) = load("mnist"), network("mlp")
    images, labels = dataset.train[:DIGITS], dataset.train_labels[:DIGITS]
    found = trained(2, name="mlp", batch_size=batch_size, rate=0.01)
    shuffler, step = generator(0, "pretraining"), 0
    expected = {name: value.double() for name, value in weights.items()}
    first = {name: torch.zeros_like(value) for name, value in expected.items()}
    second = {name: torch.zeros_like(value) for name, value in expected.items()}
    for _ in range(2):
        order = torch.randperm(DIGITS, generator=shuffler)
        for begin in range(0, DIGITS, batch_size):
            chosen, step = order[begin : begin + batch_size], step + 1
            leaves = {name: value.requires_grad_() for name, value in expected.items()}
            mean = F.cross_entropy(model.logits(leaves, images[chosen].double()), labels[chosen])
            slopes = torch.autograd.grad(mean, list(leaves.values()))
            for name, slope in zip(list(leaves), slopes, strict=True):
                first[name] = 0.9 * first[name] + 0.1 * slope
                second[name] = 0.999 * second[name] + 0.001 * slope.square()
                root = (second[name] / (1 - 0.999**step)).sqrt()
                moved = 0.01 * first[name] / (1 - 0.9**step) / (root + 1e-8)
                expected[name] = (leaves[name] - moved).detach()
    for name, value in found.items():
        torch.testing.assert_close(value.double(), expected[name], rtol=1e-3, atol=1e-4)


def test_accuracy_is_the_share_of_largest_logits() -> None:
    dataset, (model, _) = load("mnist"), network("mlp")
    weights = trained(10, name="mlp")
    right = 0
    for image, label in zip(dataset.public[:700], dataset.public_labels[:700], strict=True):
        right += int(model.logits(weights, image[None]).argmax()) == int(label)
    share = accuracy(model, weights, dataset.public[:700], dataset.public_labels[:700])
    assert share == pytest.approx(right / 700, abs=1e-6)
    assert 0.2 < share < 1


def test_accuracy_of_answers_known_by_hand() -> None:
    class Copy:
        head = "none"

        def init(self, generator: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
            return {}

        loss = "cross_entropy"
        mixes_examples = False

        def logits(self, weights: Weights, inputs: Tensor) -> Tensor:
            return inputs

    labels = torch.arange(1003) % 3
    logits = F.one_hot(labels, 3).float()
    logits[[0, 500, 1002]] = torch.tensor([-1.0, 5.0, 7.0])  # right for label 2 alone
    wrong = sum(int(labels[place]) != 2 for place in (0, 500, 1002))
    assert accuracy(Copy(), {}, logits, labels) == pytest.approx((1003 - wrong) / 1003, abs=1e-6)


@pytest.mark.slow
def test_the_ladders_recipe_learns_digits() -> None:
    """Twenty epochs at 0.003 on all training digits; the public ones are none of them."""
    dataset, (model, weights) = load("mnist"), network()
    untrained = accuracy(model, weights, dataset.public, dataset.public_labels)
    found = pretrain(
        model, weights, dataset.train, dataset.train_labels, epochs=20, batch_size=50,
        learning_rate=0.003, generator=generator(0, "pretraining"),
    )  # fmt: skip
    assert untrained < 0.3
    assert accuracy(model, found, dataset.public, dataset.public_labels) >= 0.93
