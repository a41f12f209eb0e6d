"""Losses against their formulas, and what leaks under each of them."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from leakbench.architectures import build
from leakbench.attacks.analytic import Analytic
from leakbench.attacks.idlg import IDLG
from leakbench.capturing import capture_leak
from leakbench.contracts import Leak, Model
from leakbench.data import load
from leakbench.errors import LeakbenchError
from leakbench.gradients import of_batch, per_example
from leakbench.labels import infer
from leakbench.losses import Loss, example_losses, mean_loss, predictions, targets
from leakbench.pretraining import accuracy, pretrain
from leakbench.streams import VictimStreams, generator

OUTPUTS = torch.tensor([[2.0, -1.0, 0.5], [0.0, 3.0, -2.0]], dtype=torch.float64)
LABELS = torch.tensor([2, 1])
ONE_OUTPUT = {"widths": [], "loss": "binary_cross_entropy", "one_output": True}


def sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z))


def by_formula(loss: Loss, z: list[float], label: int) -> float:
    """Of one example with an output a class."""
    wanted = [float(c == label) for c in range(len(z))]
    if loss == "cross_entropy":
        return math.log(sum(map(math.exp, z))) - z[label]
    if loss == "mean_squared_error":
        return sum((a - y) ** 2 for a, y in zip(z, wanted, strict=True)) / len(z)
    each = [
        -(y * math.log(sigmoid(a)) + (1 - y) * math.log(1 - sigmoid(a)))
        for a, y in zip(z, wanted, strict=True)
    ]
    return sum(each) / len(z)


@pytest.mark.parametrize("loss", ["cross_entropy", "binary_cross_entropy", "mean_squared_error"])
def test_losses_are_their_formulas(loss: Loss) -> None:
    pairs = zip(OUTPUTS.tolist(), LABELS.tolist(), strict=True)
    wanted = [by_formula(loss, z, label) for z, label in pairs]
    assert example_losses(loss, OUTPUTS, LABELS).tolist() == pytest.approx(wanted, rel=1e-12)
    assert float(mean_loss(loss, OUTPUTS, LABELS)) == pytest.approx(sum(wanted) / 2, rel=1e-12)
    probabilities = torch.nn.functional.one_hot(LABELS, 3).double()
    assert example_losses(loss, OUTPUTS, probabilities).tolist() == pytest.approx(wanted)
    assert predictions(loss, OUTPUTS).tolist() == [0, 1]


def test_one_output_is_compared_with_the_label_itself() -> None:
    outputs, labels = torch.tensor([[1.5], [-0.5], [0.25]]), torch.tensor([1, 0, 0])
    assert targets(outputs, labels).tolist() == [[1.0], [0.0], [0.0]]
    assert targets(outputs[:1], torch.tensor([[0.3, 0.7]])).tolist() == [[pytest.approx(0.7)]]
    wanted = [-math.log(sigmoid(1.5)), -math.log(sigmoid(0.5)), -math.log(sigmoid(-0.25))]
    found = example_losses("binary_cross_entropy", outputs, labels).tolist()
    assert found == pytest.approx(wanted, rel=1e-6)
    assert predictions("binary_cross_entropy", outputs).tolist() == [1, 0, 1]
    assert predictions("mean_squared_error", outputs).tolist() == [1, 0, 0]


def test_cross_entropy_of_one_output_is_refused() -> None:
    """Its gradient is 0 for every input: it would seem to leak nothing."""
    for function in (example_losses, mean_loss):
        with pytest.raises(LeakbenchError, match=r"is always 0.*binary_cross_entropy"):
            function("cross_entropy", torch.ones(2, 1), torch.tensor([0, 0]))
    with pytest.raises(LeakbenchError, match=r"one_output: .*1 outputs for 2 classes"):
        build("mlp", (30,), 2, "default", {"one_output": True})
    with pytest.raises(LeakbenchError, match=r"1 outputs for 3 classes under mean_squared"):
        build("mlp", (30,), 3, "default", {"one_output": True, "loss": "mean_squared_error"})


# ------------------------------------------------------------------------------ on real rows


def network(parameters: dict[str, Any]) -> tuple[Model, dict[str, Tensor], Tensor, Tensor]:
    """A network for the rows of breast_cancer, and its first eight candidates."""
    data = load("breast_cancer")
    model = build("mlp", data.input_shape, data.classes, "default", parameters)
    weights = model.init(generator(3, "weights"), torch.float64)
    return model, weights, data.candidates[:8].double(), data.candidate_labels[:8]


def test_the_gradient_of_one_output_in_closed_form() -> None:
    """Of logistic regression: (p - y) x and p - y."""
    model, weights, inputs, labels = network(ONE_OUTPUT)
    z = inputs.numpy() @ weights["dense1.weight"].numpy()[0] + float(weights["dense1.bias"])
    slope = 1 / (1 + np.exp(-z)) - labels.numpy()
    found = per_example(model, weights, inputs[None], labels[None]).tensors
    np.testing.assert_allclose(found["dense1.bias"][0, :, 0], slope, rtol=1e-12)
    wanted = slope[:, None] * inputs.numpy()
    np.testing.assert_allclose(found["dense1.weight"][0, :, 0], wanted, rtol=1e-12, atol=1e-15)
    mean = of_batch(model, weights, inputs[None], labels[None]).tensors["dense1.weight"][0, 0]
    np.testing.assert_allclose(mean, wanted.mean(axis=0), rtol=1e-12, atol=1e-15)


def leak_of(parameters: dict[str, Any]) -> tuple[Leak, Tensor, Tensor]:
    """What eight single rows leak without a defense."""
    model, weights, inputs, labels = network(parameters)
    leak = capture_leak(model, inputs, labels, weights=weights)
    return leak, inputs, labels


def streams() -> VictimStreams:
    return VictimStreams(0, tuple((number,) for number in range(8)))


def unwatched(*seen: Tensor) -> None:
    """Nobody looks on."""


@pytest.mark.parametrize("parameters", [ONE_OUTPUT, {"loss": "binary_cross_entropy"}], ids=str)
def test_rows_and_labels_leak_under_binary_cross_entropy(parameters: dict[str, Any]) -> None:
    leak, inputs, labels = leak_of(parameters)
    assert infer(leak, streams()).flatten().tolist() == labels.tolist()
    assert {0, 1} == set(labels.tolist())
    found = Analytic().reconstruct(leak, streams(), unwatched)
    np.testing.assert_allclose(found.inputs[:, 0], inputs, rtol=1e-7, atol=1e-9)
    assert found.labels.flatten().tolist() == labels.tolist()


def test_a_matching_attack_finds_rows_behind_one_output() -> None:
    leak, inputs, labels = leak_of(ONE_OUTPUT)
    found = IDLG(steps=3, line_search=True).reconstruct(leak, streams(), unwatched)
    assert found.labels.flatten().tolist() == labels.tolist()
    assert bool((found.loss < 0.1 * found.start_loss).all())
    exact = (found.inputs[:, 0] - inputs).square().mean(dim=1) < 1e-6
    assert int(exact.sum()) >= 4  # the others end in another minimum


def test_no_labels_are_read_off_squared_errors() -> None:
    leak, _, _ = leak_of({"loss": "mean_squared_error"})
    with pytest.raises(LeakbenchError, match=r"not of mean_squared_error; allowed: .*\"labels\""):
        infer(leak, streams())


@pytest.mark.parametrize(
    "parameters",
    [
        ONE_OUTPUT,
        {"loss": "mean_squared_error"},
        {"loss": "mean_squared_error", "one_output": True},
        {"loss": "binary_cross_entropy"},
    ],
    ids=str,
)
def test_every_loss_trains_a_network_that_classifies(parameters: dict[str, Any]) -> None:
    data = load("breast_cancer")
    model = build("mlp", data.input_shape, data.classes, "default", parameters)
    trained = pretrain(
        model, model.init(generator(0, "weights"), torch.float32), data.train, data.train_labels,
        epochs=60, batch_size=20, learning_rate=0.01, generator=generator(0, "order"),
    )  # fmt: skip
    right = accuracy(model, trained, data.public, data.public_labels)
    outputs = model.logits(trained, data.public)
    half = 0.5 if parameters["loss"] == "mean_squared_error" else 0.0
    guesses = outputs[:, 0] > half if outputs.shape[1] == 1 else outputs[:, 1] > outputs[:, 0]
    assert right == pytest.approx(float((guesses == data.public_labels).float().mean()))
    assert right > 0.9
