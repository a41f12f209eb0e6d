"""Labels read off the gradient of real digits."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from leakbench import data
from leakbench.architectures import build
from leakbench.capturing import capture_leak
from leakbench.contracts import Leak, LeakPoint, Weights
from leakbench.labels import infer, labels_of
from leakbench.matching import sign_rule_labels
from leakbench.streams import VictimStreams, generator

POINT = LeakPoint(type=2, view="batch")


def batches(n: int, size: int, repeated: bool = False) -> tuple[Tensor, Tensor]:
    """n random batches of digits, (n, B, *shape) and (n, B); repeated: of two classes only."""
    digits = data.load("mnist")
    allowed = torch.arange(len(digits.candidates))
    if repeated:
        allowed = allowed[digits.candidate_labels < 2]
    stream = torch.Generator().manual_seed(size)
    chosen = allowed[torch.randint(0, len(allowed), (n, size), generator=stream)]
    return digits.candidates[chosen], digits.candidate_labels[chosen]


def make_leak(
    name: str, images: Tensor, labels: Tensor, network: int = 0, point: LeakPoint = POINT
) -> Leak:
    """What these batches leak on an untrained network."""
    model = build(name, (1, 28, 28), 10)
    weights = model.init(generator(network, "weights"), torch.float32)
    return capture_leak(model, images, labels, weights=weights, point=point)


def streams(n: int) -> VictimStreams:
    return VictimStreams(0, tuple((victim,) for victim in range(n)))


def share(found: Tensor, labels: Tensor) -> float:
    """Share of the labels that are found, each as often as it is there."""
    counts = [torch.nn.functional.one_hot(which, 10).sum(dim=1) for which in (found, labels)]
    return float(torch.minimum(*counts).sum() / labels.numel())


@pytest.mark.parametrize("name", ["lenet_cpl", "cnn2"])
@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
def test_labels_of_batches_are_found(name: str, size: int) -> None:
    """Of 50 batches on each of 4 weight draws at least 94 % were measured, all for B <= 2."""
    images, labels = batches(20, size)
    for network in range(4):
        found = infer(make_leak(name, images, labels, network), streams(20))
        assert found.shape == labels.shape and found.dtype == torch.int64
        assert share(found, labels) >= (1.0 if size <= 2 else 0.9)


@pytest.mark.parametrize("name", ["lenet_cpl", "cnn2"])
@pytest.mark.parametrize("size", [4, 16])
def test_repeated_classes_are_counted(name: str, size: int) -> None:
    images, labels = batches(20, size, repeated=True)
    found = infer(make_leak(name, images, labels), streams(20))
    assert share(found, labels) >= 0.9
    assert found.equal(found.sort(dim=1).values)


class _Linear:
    """logits = 12 x + (0, 0, 4, 0): sure of one lit pixel, and for class 2 in the dark."""

    head = "dense.weight"

    def init(self, generator: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
        bias = torch.tensor([0.0, 0.0, 4.0, 0.0], dtype=dtype)
        return {"dense.weight": 12 * torch.eye(4, dtype=dtype), "dense.bias": bias}

    loss = "cross_entropy"
    mixes_examples = False

    def logits(self, weights: Weights, inputs: Tensor) -> Tensor:
        return inputs.flatten(1) @ weights["dense.weight"].T + weights["dense.bias"]


def test_a_class_whose_gradient_is_negative_is_in_the_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However little of it noise shows: labels 0, 1 and 3, while noise is mostly of class 2.

    The bias' gradient is the mean of softmax minus one-hot: negative for the classes there are and
    positive for class 2, of which the estimated count is yet the largest.
    """
    monkeypatch.setitem(globals(), "build", lambda *_: _Linear())
    labels = torch.tensor([[0, 1, 3], [3, 3, 0]])
    images = torch.nn.functional.one_hot(labels, 4).float().reshape(2, 3, 1, 2, 2)
    leak = replace(
        make_leak("linear", images, labels), input_shape=(1, 2, 2), classes=4, batch_size=3
    )
    bias = leak.observed.tensors["dense.bias"]
    softmax = (12 * images.flatten(2) + torch.tensor([0.0, 0, 4, 0])).softmax(dim=2)
    one_hot = torch.nn.functional.one_hot(labels, 4)
    torch.testing.assert_close(bias, (softmax - one_hot).mean(dim=1))
    assert (bias < 0).tolist() == [[True, True, False, True], [True, False, False, True]]
    noise = torch.rand(4000, 4, generator=torch.Generator().manual_seed(0))
    levels = torch.rand(4000, 1, generator=torch.Generator().manual_seed(1))
    shown = (12 * levels * noise + torch.tensor([0.0, 0, 4, 0])).softmax(dim=1).mean(dim=0)
    counts = 3 * (shown - bias)
    assert counts.argmax(dim=1).tolist() == [2, 2] and float(counts[:, 2].min()) > 1.5
    found = infer(leak, streams(2))
    assert found[0].tolist() == [0, 1, 3]
    assert {0, 3} < set(found[1].tolist())


def test_an_update_of_one_step_shows_the_same() -> None:
    """Types 0 and 1 come in the units of a gradient."""
    images, labels = batches(10, 4)
    found = [
        infer(make_leak("cnn2", images, labels, point=point), streams(10))
        for point in (POINT, LeakPoint(type=1), LeakPoint(type=0))
    ]
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


class _WithoutBias:
    """lenet_cpl whose head has no bias."""

    head = "dense.weight"

    def __init__(self) -> None:
        self.inner = build("lenet_cpl", (1, 28, 28), 10)

    def init(self, generator: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
        weights = self.inner.init(generator, dtype)
        return {k: v for k, v in weights.items() if k != "dense.bias"}

    loss = "cross_entropy"
    mixes_examples = False

    def logits(self, weights: Weights, inputs: Tensor) -> Tensor:
        return self.inner.logits({**weights, "dense.bias": torch.zeros(10)}, inputs)


@pytest.mark.parametrize("size", [2, 8])
def test_a_head_without_bias_shows_its_rows(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = batches(20, size)
    without = _WithoutBias()
    monkeypatch.setitem(globals(), "build", lambda *_: without)
    leak = make_leak("lenet_cpl", images, labels)
    assert "dense.bias" not in leak.observed.tensors
    assert share(infer(leak, streams(20)), labels) >= 0.9


@pytest.mark.independent_rows
@pytest.mark.parametrize("name", ["cnn2", "mlp"])
def test_labels_do_not_depend_on_the_chunk(name: str) -> None:
    images, labels = batches(11, 8)
    leak = make_leak(name, images, labels)
    whole = infer(leak, streams(11))
    for rows in ([4], [10, 0, 3], list(range(10, -1, -1))):
        seen = replace(leak.observations[0], gradients=leak.observed.select(torch.tensor(rows)))
        some = VictimStreams(0, tuple((row,) for row in rows))
        assert torch.equal(infer(replace(leak, observations=(seen,)), some), whole[rows])


def test_granted_labels_come_first() -> None:
    images, labels = batches(3, 4)
    leak = make_leak("cnn2", images, labels)
    granted = (labels + 1) % 10
    assert torch.equal(labels_of(replace(leak, labels=granted), streams(3)), granted)
    assert torch.equal(labels_of(leak, streams(3)), infer(leak, streams(3)))


def test_one_example_is_the_sign_rule() -> None:
    leak = make_leak("cnn2", *batches(5, 1))
    assert torch.equal(infer(leak, streams(5)), sign_rule_labels(leak))


def test_more_looks_through_noise_show_more() -> None:
    """Noise of 30 times the gradient's size, 1 or 25 looks at the same victims."""
    images, labels = batches(100, 1)
    leak = make_leak("lenet_cpl", images, labels)
    stream = torch.Generator().manual_seed(0)

    def noisy(_: str, value: Tensor) -> Tensor:
        size = value.flatten(1).std(dim=1).reshape(-1, *[1] * (value.ndim - 1))
        return value + 30 * size * torch.randn(value.shape, generator=stream)

    looks = tuple(
        replace(leak.observations[0], gradients=leak.observed.map(noisy)) for _ in range(25)
    )
    once, often = (
        share(infer(replace(leak, observations=looks[:k]), streams(100)), labels) for k in (1, 25)
    )
    assert often > once + 0.1


@pytest.mark.parametrize("value", [0.0, float("nan"), float("inf")])
@pytest.mark.parametrize("size", [1, 4])
def test_any_gradient_gets_class_indices(value: float, size: int) -> None:
    leak = make_leak("cnn2", *batches(2, size))
    spoilt = leak.observed.map(lambda _, tensor: torch.full_like(tensor, value))
    leak = replace(leak, observations=(replace(leak.observations[0], gradients=spoilt),))
    found = infer(leak, streams(2))
    assert found.shape == (2, size) and bool(((found >= 0) & (found < 10)).all())
