"""Hand-written per-example gradients against the generic `torch.func` path, on real images."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from leakbench.contracts import Model, Weights
from leakbench.data import load
from leakbench.gradients import HandWritten, per_example
from leakbench.models import Convolution, SigmoidNet, build
from leakbench.streams import generator

MODELS = ["lenet_cpl", "lenet_dlg", "cnn2"]
DATA = ["mnist", "cifar10"]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


@dataclass(frozen=True)
class Generic:
    """A model without what it knows of its own gradients."""

    model: Model

    @property
    def head(self) -> str:
        return self.model.head

    def init(self, generator: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
        return self.model.init(generator, dtype)

    def logits(self, weights: Weights, inputs: Tensor) -> Tensor:
        return self.model.logits(weights, inputs)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def example(
    name: str, data_set: str, dtype: torch.dtype, rows: int
) -> tuple[SigmoidNet, dict[str, Tensor], Tensor, Tensor]:
    """Model, weights, images (rows, ...) and class indices."""
    data = load(data_set)
    model = build(name, data.input_shape, data.classes)
    assert isinstance(model, SigmoidNet)
    weights = model.init(generator(5, "weights"), dtype)
    return model, weights, data.candidates[:rows].to(dtype), data.candidate_labels[:rows]


def soft(labels: Tensor, dtype: torch.dtype) -> Tensor:
    """Probabilities that favour `labels`, every row another."""
    noise = torch.rand(len(labels), 10, generator=torch.Generator().manual_seed(1)).to(dtype)
    return (2 * F.one_hot(labels, 10) + noise).softmax(dim=-1)


def gradients(model: Model, weights: Weights, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """(n, *parameter shape): every example is a client of its own."""
    found = per_example(model, weights, inputs[:, None], labels[:, None]).tensors
    return {name: value[:, 0] for name, value in found.items()}


def derivatives(found: dict[str, Tensor], *by: Tensor) -> tuple[Tensor, ...]:
    """Of a random linear function of all gradients; the same function in every call."""
    stream = torch.Generator().manual_seed(2)
    total = torch.zeros((), dtype=by[0].dtype)
    for _, value in sorted(found.items()):
        factors = torch.randn(value.shape[1:], generator=stream, dtype=torch.float64)
        total = total + (value * factors.to(value.dtype)).sum()
    return torch.autograd.grad(total, by)


def assert_close(value: Tensor, expected: Tensor, what: str) -> None:
    assert value.shape == expected.shape and value.dtype == expected.dtype
    distance = float((value - expected).detach().norm() / expected.detach().norm())
    assert distance <= TOLERANCE[value.dtype], f"{what}: {distance:.1e}"


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("labels", ["indices", "probabilities"])
@pytest.mark.parametrize("data_set", DATA)
@pytest.mark.parametrize("name", MODELS)
def test_equals_the_generic_path(name: str, data_set: str, labels: str, dtype: torch.dtype) -> None:
    model, weights, images, classes = example(name, data_set, dtype, 19)
    assert isinstance(model, HandWritten) and not isinstance(Generic(model), HandWritten)
    results = []
    for one in (model, Generic(model)):
        by = [images.clone().requires_grad_()]
        targets = classes
        if labels == "probabilities":
            targets = soft(classes, dtype).requires_grad_()
            by.append(targets)
        found = gradients(one, weights, by[0], targets)
        results.append((found, derivatives(found, *by)))
    (found, moved), (expected, expected_moved) = results
    assert list(found) == list(expected)
    for parameter, value in found.items():
        assert_close(value, expected[parameter], parameter)
    for value, other, what in zip(moved, expected_moved, ("inputs", "labels"), strict=False):
        assert_close(value, other, what)


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("shape", [(1, 6, 7), (9, 5, 6)], ids=str)
def test_derivatives_against_finite_differences(shape: tuple[int, ...], stride: int) -> None:
    """Odd and even sides, and labels that are no probabilities."""
    layers = (Convolution(channels=4, stride=stride), Convolution(channels=2, stride=2))
    model = SigmoidNet(input_shape=shape, classes=3, convolutions=layers)
    weights = model.init(generator(0, "weights"), torch.float64)
    stream = torch.Generator().manual_seed(3)
    inputs = torch.rand(2, *shape, generator=stream, dtype=torch.float64)
    labels = torch.rand(2, 3, generator=stream, dtype=torch.float64)

    def flat(inputs: Tensor, labels: Tensor) -> Tensor:
        found = model.example_gradients(weights, inputs, labels)
        return torch.cat([value.flatten() for value in found.values()])

    by = (inputs.requires_grad_(), labels.requires_grad_())
    assert torch.autograd.gradcheck(flat, by, fast_mode=True)


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("data_set", DATA)
@pytest.mark.parametrize("name", MODELS)
def test_company_and_place_change_no_bit(name: str, data_set: str, dtype: torch.dtype) -> None:
    """Neither of a gradient nor of its derivatives."""
    model, weights, images, classes = example(name, data_set, dtype, 70)
    targets = soft(classes, dtype)

    def results(rows: Tensor) -> list[Tensor]:
        by = (images[rows].clone().requires_grad_(), targets[rows].clone().requires_grad_())
        found = gradients(model, weights, *by)
        return [*found.values(), *derivatives(found, *by)]

    whole = results(torch.arange(70))
    for size in (1, 2, 7, 8, 15, 16, 17, 24, 40):
        rows = torch.randperm(70, generator=torch.Generator().manual_seed(size))[:size]
        for value, expected in zip(results(rows), whole, strict=True):
            assert torch.equal(value, expected[rows]), f"{size} examples"


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 1e30])
@pytest.mark.parametrize("name", MODELS)
def test_a_spoilt_example_spoils_no_other(name: str, value: float) -> None:
    model, weights, images, classes = example(name, "mnist", torch.float32, 20)

    def results(images: Tensor) -> list[Tensor]:
        images = images.clone().requires_grad_()
        found = gradients(model, weights, images, classes)
        return [*found.values(), *derivatives(found, images)]

    spoilt = images.clone()
    spoilt[[0, 7, 19], :, 3, 4] = value
    others = [row for row in range(20) if row not in (0, 7, 19)]
    for found, expected in zip(results(spoilt), results(images), strict=True):
        assert torch.equal(found[others], expected[others])


def test_weights_that_want_derivatives_take_the_generic_path() -> None:
    model, weights, images, classes = example("lenet_dlg", "mnist", torch.float64, 3)
    by = [value.requires_grad_() for value in weights.values()]
    found = derivatives(gradients(model, weights, images, classes), *by)
    expected = derivatives(gradients(Generic(model), weights, images, classes), *by)
    for value, other in zip(found, expected, strict=True):
        assert_close(value, other, "weights")


def test_a_second_derivative_is_refused() -> None:
    """Rather than silently taken for 0."""
    model, weights, images, classes = example("lenet_dlg", "mnist", torch.float64, 2)
    images.requires_grad_()
    found = gradients(model, weights, images, classes)["dense.bias"]
    with pytest.raises(RuntimeError, match="can be differentiated once"):
        torch.autograd.grad(found.square().sum(), images, create_graph=True)
