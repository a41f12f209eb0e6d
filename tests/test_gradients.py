"""Hand-written gradients against the generic `torch.func` path and bare autograd, real images."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from leakbench.architectures import build
from leakbench.contracts import Gradients, Model, Weights
from leakbench.data import load
from leakbench.errors import LeakbenchError
from leakbench.gradients import (
    Frugal,
    HandWritten,
    HandWrittenStacked,
    of_batch,
    per_example,
)
from leakbench.losses import example_losses
from leakbench.models.mlp import DenseNet
from leakbench.models.relu import ReluNet
from leakbench.models.sigmoid import Convolution, SigmoidNet
from leakbench.modules import ModuleModel
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

    loss = "cross_entropy"
    mixes_examples = False

    def logits(self, weights: Weights, inputs: Tensor) -> Tensor:
        return self.model.logits(weights, inputs)


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


@pytest.mark.independent_rows
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("data_set", DATA)
@pytest.mark.parametrize("name", MODELS)
def test_company_and_place_change_no_bit(name: str, data_set: str, dtype: torch.dtype) -> None:
    """Neither of a gradient nor of its derivatives."""
    model, weights, images, classes = example(name, data_set, dtype, 42)
    targets = soft(classes, dtype)

    def results(rows: Tensor) -> list[Tensor]:
        by = (images[rows].clone().requires_grad_(), targets[rows].clone().requires_grad_())
        found = gradients(model, weights, *by)
        return [*found.values(), *derivatives(found, *by)]

    whole = results(torch.arange(42))
    for size in (1, 2, 7, 8, 15, 16, 17, 40):
        rows = torch.randperm(42, generator=torch.Generator().manual_seed(size))[:size]
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


# ---------------------------------------------------------------------------- ReLU networks

LAYERS: list[dict[str, Any]] = [
    {"channels": (16, 32)},
    {"channels": (3,)},
    {"channels": (4, 5, 6)},
    {"channels": (8, 6), "kernel": 3, "padding": 0},
]


def relu_example(
    data_set: str,
    dtype: torch.dtype,
    clients: int,
    batch: int,
    layers: Mapping[str, Any] = LAYERS[0],
) -> tuple[ReluNet, dict[str, Tensor], Tensor, Tensor]:
    """Model, different weights for every client, images (clients, batch, ...) and classes."""
    data, rows = load(data_set), clients * batch
    model = ReluNet(input_shape=data.input_shape, classes=data.classes, **layers)
    drawn = [model.init(generator(client, "weights"), dtype) for client in range(clients)]
    weights = {k: torch.stack([one[k] for one in drawn]) for k in drawn[0]}
    images = data.candidates[:rows].to(dtype).unflatten(0, (clients, batch))
    return model, weights, images, data.candidate_labels[:rows].unflatten(0, (clients, batch))


def alone(
    model: Model, weights: Weights, inputs: Tensor, labels: Tensor, client: int, row: int
) -> dict[str, Tensor]:
    """One example's gradient by bare autograd."""
    leaves = {k: v[client].clone().requires_grad_() for k, v in weights.items()}
    logits = model.logits(leaves, inputs[client, row][None])
    loss = F.cross_entropy(logits, labels[client, row][None])
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


def assert_all_close(found: Gradients, expected: Sequence[Sequence[dict[str, Tensor]]]) -> None:
    """Per-example gradients of every client."""
    for k, value in found.tensors.items():
        assert value.is_contiguous()
        assert_close(
            value, torch.stack([torch.stack([g[k] for g in some]) for some in expected]), k
        )


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("labels", ["indices", "probabilities"])
@pytest.mark.parametrize("data_set", DATA)
@pytest.mark.parametrize("layers", LAYERS, ids=str)
def test_relu_gradients_equal_autograd(
    layers: dict[str, Any], data_set: str, labels: str, dtype: torch.dtype
) -> None:
    """Of clients with weights of their own, of examples that share them, and of whole batches."""
    model, weights, images, classes = relu_example(data_set, dtype, 3, 4, layers)
    assert isinstance(model, HandWrittenStacked)
    targets = classes
    if labels == "probabilities":
        targets = soft(classes.flatten(), dtype).unflatten(0, (3, 4))
    expected = [
        [alone(model, weights, images, targets, client, row) for row in range(4)]
        for client in range(3)
    ]
    assert_all_close(per_example(model, weights, images, targets, stacked=True), expected)
    whole = of_batch(model, weights, images, targets, stacked=True)
    assert whole.axes == ("client",) and whole.mask is None
    for k, value in whole.tensors.items():
        means = [torch.stack([one[k] for one in some]).mean(dim=0) for some in expected]
        assert_close(value, torch.stack(means), k)
    first = {k: v[0] for k, v in weights.items()}
    same = {k: v[:1].expand_as(v) for k, v in weights.items()}
    expected = [
        [alone(model, same, images, targets, client, row) for row in range(4)]
        for client in range(3)
    ]
    shared = per_example(model, first, images, targets)
    assert_all_close(shared, expected)
    together = of_batch(model, first, images, targets)
    for k, value in together.tensors.items():
        assert_close(value, shared.mean("example").tensors[k], k)


@pytest.mark.parametrize("sides", [(7, 9), (4, 5), (8, 8)], ids=str)
def test_pooling_of_odd_sides_and_of_equal_pixels(sides: tuple[int, int]) -> None:
    """The last row or column is dropped, and the first of several largest pixels counts."""
    model = ReluNet(input_shape=(2, *sides), classes=3, channels=(4, 5))
    drawn = model.init(generator(0, "weights"), torch.float64)
    weights = {k: torch.stack([v, -v]) for k, v in drawn.items()}
    inputs = torch.zeros(2, 3, 2, *sides, dtype=torch.float64)
    inputs[:, 1] = 1.0  # flat: all windows inside have four equal pixels
    inputs[:, 2, :, :2] = 0.5
    labels = torch.tensor([[0, 1, 2], [2, 1, 0]])
    expected = [
        [alone(model, weights, inputs, labels, client, row) for row in range(3)]
        for client in range(2)
    ]
    assert_all_close(per_example(model, weights, inputs, labels, stacked=True), expected)


def assert_rows_are_independent(
    model: Model, shared: Weights, images: Tensor, classes: Tensor
) -> None:
    """Of 42 examples, in any chunks, company and order, bit for bit."""

    def results(rows: Tensor, chunk_size: int | None = None) -> list[Tensor]:
        by = images[rows][None], classes[rows][None]
        found = per_example(model, shared, *by, chunk_size=chunk_size)
        return [value[0] for value in found.tensors.values()]

    everyone = torch.arange(42)
    whole = results(everyone)
    for chunk_size in (1, 16, 23, 32, 64):
        for value, expected in zip(results(everyone, chunk_size), whole, strict=True):
            assert torch.equal(value, expected), f"chunk_size {chunk_size}"
    for size in (1, 2, 7, 8, 15, 16, 17, 33, 40):
        rows = torch.randperm(42, generator=torch.Generator().manual_seed(size))[:size]
        for value, expected in zip(results(rows), whole, strict=True):
            assert torch.equal(value, expected[rows]), f"{size} examples"


@pytest.mark.independent_rows
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("data_set", [*DATA, "few pixels"])
def test_relu_company_place_and_chunks_change_no_bit(data_set: str, dtype: torch.dtype) -> None:
    """Also of a tiny network, whose dense layer is so small that its products round by rows."""
    if data_set == "few pixels":
        data, model = load("mnist"), ReluNet(input_shape=(1, 4, 5), classes=2, channels=(3,))
        images, classes = data.candidates[:42, :, 12:16, 12:17], data.candidate_labels[:42] % 2
        shared, images = model.init(generator(0, "weights"), dtype), images.to(dtype)
    else:
        model, weights, stack, labels = relu_example(data_set, dtype, 1, 42)
        shared, images, classes = {k: v[0] for k, v in weights.items()}, stack[0], labels[0]
    assert_rows_are_independent(model, shared, images, classes)


@pytest.mark.parametrize("chunk_size", [1, 4, 9, 100])
def test_relu_chunks_of_clients_change_little(chunk_size: int) -> None:
    """13 clients of 5: more than are computed together, in parts of unequal size."""
    model, weights, images, classes = relu_example("mnist", torch.float64, 13, 5)
    found = per_example(model, weights, images, classes, stacked=True, chunk_size=chunk_size)
    expected = per_example(Generic(model), weights, images, classes, stacked=True)
    for k, value in found.tensors.items():
        assert_close(value, expected.tensors[k], k)
    whole = of_batch(model, weights, images, classes, stacked=True)
    for k, value in whole.tensors.items():
        assert_close(value, expected.mean("example").tensors[k], k)


# ---------------------------------------------------------------------------- dense networks

DENSE: list[dict[str, Any]] = [
    {"outputs": 10, "widths": (64, 32), "bias": True},
    {"outputs": 10, "widths": (60, 20), "bias": False},
    {"outputs": 10, "widths": ()},
    {"outputs": 10, "widths": (7,), "loss": "binary_cross_entropy"},
    {"outputs": 10, "widths": (7,), "loss": "mean_squared_error"},
    {"outputs": 1, "widths": (7, 6), "loss": "binary_cross_entropy"},
    {"outputs": 1, "widths": (7, 6), "loss": "mean_squared_error", "bias": False},
]


def dense_example(
    layers: Mapping[str, Any], dtype: torch.dtype, clients: int, batch: int
) -> tuple[DenseNet, dict[str, Tensor], Tensor, Tensor]:
    """Model, different weights for every client, digits and their classes; of two, 0 and the
    others."""
    data, rows = load("mnist"), clients * batch
    model = DenseNet(input_shape=data.input_shape, scheme="default", **layers)
    drawn = [model.init(generator(client, "weights"), dtype) for client in range(clients)]
    weights = {k: torch.stack([one[k] for one in drawn]) for k in drawn[0]}
    images, classes = data.candidates[:rows].to(dtype), data.candidate_labels[:rows]
    if model.outputs == 1:
        classes = (classes > 0).to(classes.dtype)
    return (
        model, weights,
        images.unflatten(0, (clients, batch)), classes.unflatten(0, (clients, batch)),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("labels", ["indices", "probabilities"])
@pytest.mark.parametrize("layers", DENSE, ids=str)
def test_dense_gradients_equal_autograd(
    layers: dict[str, Any], labels: str, dtype: torch.dtype
) -> None:
    """Of clients with weights of their own, of examples that share them, and of whole batches,
    one of which lacks examples."""
    model, weights, images, classes = dense_example(layers, dtype, 3, 4)
    assert isinstance(model, HandWrittenStacked)
    targets = classes
    if labels == "probabilities":
        targets = soft(classes.flatten(), dtype).unflatten(0, (3, 4))
        if model.outputs == 1:
            targets = targets[..., :2]

    def bare(given: Mapping[str, Tensor], client: int, row: int) -> dict[str, Tensor]:
        leaves = {k: v[client].clone().requires_grad_() for k, v in given.items()}
        outputs = model.logits(leaves, images[client, row][None])
        (loss,) = example_losses(model.loss, outputs, targets[client, row][None])
        return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))

    def all_of(given: Mapping[str, Tensor]) -> list[list[dict[str, Tensor]]]:
        return [[bare(given, client, row) for row in range(4)] for client in range(3)]

    expected = all_of(weights)
    assert_all_close(per_example(model, weights, images, targets, stacked=True), expected)
    mask = torch.ones(3, 4, dtype=torch.bool)
    mask[1, 2:] = False
    for there in (None, mask):
        whole = of_batch(model, weights, images, targets, stacked=True, mask=there)
        for k, value in whole.tensors.items():
            less = expected if there is None else [expected[0], expected[1][:2], expected[2]]
            means = [torch.stack([one[k] for one in some]).mean(dim=0) for some in less]
            assert_close(value, torch.stack(means), k)
    shared = {k: v[0] for k, v in weights.items()}
    same = {k: v[:1].expand_as(v) for k, v in weights.items()}
    assert_all_close(per_example(model, shared, images, targets), all_of(same))


@pytest.mark.independent_rows
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("layers", DENSE, ids=str)
def test_dense_company_place_and_chunks_change_no_bit(
    layers: dict[str, Any], dtype: torch.dtype
) -> None:
    model, weights, stack, labels = dense_example(layers, dtype, 1, 42)
    shared, images, classes = {k: v[0] for k, v in weights.items()}, stack[0], labels[0]
    assert_rows_are_independent(model, shared, images, classes)


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize("labels", ["indices", "probabilities"])
def test_padding_counts_for_nothing(labels: str, clients: int, stacked: bool) -> None:
    """Pictures of nan where a client has fewer examples; one client has none at all."""
    model, weights, images, classes = relu_example("mnist", torch.float64, clients, 4)
    targets = classes
    if labels == "probabilities":
        targets = soft(classes.flatten(), torch.float64).unflatten(0, (clients, 4))
    mask = torch.arange(4) < torch.tensor([3, 4, 0])[:clients, None]
    spoilt = torch.where(mask[..., None, None, None], images, torch.nan)
    given = weights if stacked else {k: v[0] for k, v in weights.items()}
    own = weights if stacked else {k: v[:1].expand_as(v) for k, v in weights.items()}
    whole = of_batch(model, given, spoilt, targets, stacked=stacked, mask=mask)
    examples = per_example(model, given, spoilt, targets, stacked=stacked, mask=mask)
    assert whole.mask is not None and torch.equal(whole.mask, mask.any(dim=1))
    for client in range(clients):
        rows = [row for row in range(4) if mask[client, row]]
        singles = [alone(model, own, images, targets, client, row) for row in rows]
        for k in weights:
            expected = torch.zeros_like(own[k][client])
            for one in singles:
                expected = expected + one[k] / len(rows)
            torch.testing.assert_close(whole.tensors[k][client], expected, rtol=1e-12, atol=1e-14)
            mean = examples.mean("example").tensors[k][client]
            torch.testing.assert_close(mean, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("of", [per_example, of_batch])
@pytest.mark.parametrize("wanted", ["inputs", "labels", "weights"])
def test_relu_derivatives_are_those_of_the_generic_path(
    wanted: str, of: Callable[..., Gradients]
) -> None:
    model, weights, images, classes = relu_example("mnist", torch.float64, 2, 3)
    targets = soft(classes.flatten(), torch.float64).unflatten(0, (2, 3))
    given = {"inputs": [images], "labels": [targets], "weights": list(weights.values())}
    for value in given[wanted]:
        value.requires_grad_()
    results = []
    for one in (model, Generic(model)):
        found = of(one, weights, images, targets, stacked=True)
        results.append(derivatives(dict(found.tensors), *given[wanted]))
    for value, expected in zip(*results, strict=True):
        assert bool(expected.any())
        assert_close(value, expected, wanted)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e30])
def test_a_spoilt_example_spoils_no_other_of_relu(value: float) -> None:
    model, weights, images, classes = relu_example("mnist", torch.float32, 2, 5)
    spoilt = images.clone()
    spoilt[0, [0, 3], :, 3, 4] = value
    found, expected = (
        per_example(model, weights, some, classes, stacked=True) for some in (spoilt, images)
    )
    for k, whole in found.tensors.items():
        assert torch.equal(whole[0, [1, 2, 4]], expected.tensors[k][0, [1, 2, 4]])
        assert torch.equal(whole[1], expected.tensors[k][1])
    if value != 1e30:
        assert all(bool(one[0, [0, 3]].isnan().any()) for one in found.tensors.values())


# ---------------------------------------------------------------------------- one client


@pytest.mark.parametrize("name", [*MODELS, "cnn2_relu", "mlp"])
@pytest.mark.parametrize("stacked", [False, True])
def test_a_single_client_is_bare_autograd(name: str, stacked: bool) -> None:
    """Bit for bit, but where a program by hand takes a whole batch."""
    data = load("mnist")
    model = build(name, data.input_shape, data.classes)
    weights = model.init(generator(1, "weights"), torch.float32)
    images, classes = data.candidates[:12], data.candidate_labels[:12]
    leaves = {k: v.clone().requires_grad_() for k, v in weights.items()}
    F.cross_entropy(model.logits(leaves, images), classes).backward()
    given = {k: v[None] for k, v in weights.items()} if stacked else weights
    with torch.no_grad():
        found = of_batch(model, given, images[None], classes[None], stacked=stacked)
    assert found.axes == ("client",)
    for k, value in found.tensors.items():
        assert not value.requires_grad and not weights[k].requires_grad
        expected = leaves[k].grad
        assert expected is not None
        if isinstance(model, Frugal) and model.is_frugal(value):
            assert_close(value[0], expected, k)
        else:
            assert torch.equal(value[0], expected)


def test_a_weight_that_is_not_used_has_gradient_0() -> None:
    class Idle(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.idle = torch.nn.Parameter(torch.ones(3))
            self.head = torch.nn.Linear(4, 2)

        def forward(self, inputs: Tensor) -> Tensor:
            logits: Tensor = self.head(inputs)
            return logits

    model = ModuleModel(module=Idle(), head="head.weight")
    weights = model.init(generator(0, "weights"), torch.float32)
    for clients in (1, 2):
        inputs, labels = torch.ones(clients, 3, 4), torch.zeros(clients, 3, dtype=torch.int64)
        found = of_batch(model, weights, inputs, labels).tensors
        assert torch.equal(found["idle"], torch.zeros(clients, 3))
        assert bool(found["head.weight"].any())


def test_an_example_of_a_mixed_batch_has_no_gradient() -> None:
    layers = torch.nn.Sequential(
        torch.nn.Flatten(),
        torch.nn.BatchNorm1d(784, track_running_stats=False),
        torch.nn.Linear(784, 10),
    )
    model = ModuleModel(module=layers, head="2.weight")
    weights = model.init(generator(0, "weights"), torch.float32)
    data = load("mnist")
    with pytest.raises(LeakbenchError, match="the examples of a batch mix"):
        per_example(model, weights, data.candidates[None, :4], data.candidate_labels[None, :4])
