"""The programs in C: against torch's, in every width, and where they are not there."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from torch import Tensor

from leakbench import arithmetic, native, streams
from leakbench.data import load
from leakbench.errors import LeakbenchError
from leakbench.histories import CompiledPairs, Pairs, Rows
from leakbench.models.relu import ReluNet
from leakbench.models.sigmoid import Convolution, SigmoidNet
from leakbench.sigmoid_gradients import _Compiled, _ExampleGradients
from leakbench.streams import NoiseStreams, generator

compiled = pytest.mark.skipif(not native.lanes(), reason="nothing is compiled here")


def both_sweeps(
    program: type[torch.autograd.Function], model: SigmoidNet, inputs: Tensor, labels: Tensor
) -> list[Tensor]:
    """Gradients of single examples, and what a random change of them is for inputs and labels."""
    weights = model.init(generator(3, "weights"), torch.float32)
    strides = tuple(layer.stride for layer in model.convolutions)
    by = (inputs.clone().requires_grad_(), labels.clone().requires_grad_())
    found = program.apply(strides, *by, *(w.to(inputs.dtype) for w in weights.values()))
    stream = torch.Generator().manual_seed(4)
    change = [torch.randn(value.shape, generator=stream, dtype=torch.float64) for value in found]
    moved = torch.autograd.grad(found, by, [c.to(inputs.dtype) for c in change])
    return [value.detach() for value in (*found, *moved)]


def images(shape: tuple[int, ...], rows: int) -> Tensor:
    """Pieces of real ones, repeated where they are too small."""
    pixels = load("cifar10").candidates[:rows].float()
    channels, height, width = shape
    many = pixels.repeat(1, -(-channels // 3), -(-height // 32), -(-width // 32))
    return many[:, :channels, :height, :width].contiguous()


layers = st.lists(
    st.builds(Convolution, channels=st.integers(1, 35), stride=st.integers(1, 3)),
    min_size=1, max_size=3,
)  # fmt: skip


@compiled
@settings(max_examples=25, deadline=None)
@given(
    layers=layers,
    shape=st.tuples(st.integers(1, 4), st.integers(1, 11), st.integers(1, 11)),
    classes=st.integers(1, 19),
)
def test_sweeps_equal_those_of_torch(
    layers: list[Convolution], shape: tuple[int, int, int], classes: int
) -> None:
    model = SigmoidNet(input_shape=shape, classes=classes, convolutions=tuple(layers))
    inputs, rows = images(shape, 3), 3
    labels = torch.rand(rows, classes, generator=torch.Generator().manual_seed(1))
    found = both_sweeps(_Compiled, model, inputs, labels)
    expected = both_sweeps(_ExampleGradients, model, inputs.double(), labels.double())
    for value, other in zip(found, expected, strict=True):
        assert value.shape == other.shape
        assert float((value - other).norm()) <= 2e-5 * float(other.norm()) + 1e-6


def every_width() -> list[int]:
    """The widths that this processor has, each by itself."""
    return [width for width in (8, 16) if width <= native.lanes()]


@compiled
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (2, 9, 7)], ids=str)
def test_every_width_gives_the_same_bits(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = (Convolution(channels=12, stride=2), Convolution(channels=33, stride=1))
    model = SigmoidNet(input_shape=shape, classes=10, convolutions=layers)
    labels = torch.rand(4, 10, generator=torch.Generator().manual_seed(1))
    found = []
    for width in every_width():
        monkeypatch.setattr(native, "lanes", lambda width=width: width)
        sweeps = both_sweeps(_Compiled, model, images(shape, 4), labels)
        found.append([*sweeps, *directions(CompiledPairs, torch.float32, 4, 53, 5, 9)])
    if len(found) < 2:
        pytest.skip("one width here")
    for value, other in zip(*found, strict=True):
        assert torch.equal(value, other)


def directions(
    kind: type[Pairs] | type[CompiledPairs],
    dtype: torch.dtype,
    n: int,
    d: int,
    size: int,
    steps: int,
) -> list[Tensor]:
    """Directions on n quadratics, each step of length .5, and the columns beside them; some pairs
    are refused, and one problem less goes on after every fourth step."""
    stream = torch.Generator().manual_seed(d)
    curvature = torch.rand(n, d, generator=stream, dtype=torch.float64).add(0.1).to(dtype)
    x = torch.randn(n, d, generator=stream, dtype=torch.float64).to(dtype)
    zeros = torch.zeros(n, d, dtype=dtype)
    rows = Rows(curvature * x, zeros.clone(), torch.full((n,), 0.5, dtype=dtype), zeros.clone())
    history, found = kind(zeros, size), []
    for step in range(steps):
        if step == 3:  # a problem that stays where it is has no new pair
            rows.g[0] = rows.previous[0]
        index = torch.arange(len(x))
        columns = history.directions(rows, index, torch.full((len(x),), step > 0))
        found += [rows.d.clone(), columns.clone()]
        x = x + rows.t[:, None] * rows.d
        rows.g = curvature * x
        if step % 4 == 3 and len(x) > 1:
            keep = torch.arange(len(x) - 1)
            history.keep(keep)
            x, curvature = x[keep], curvature[keep]
            rows = Rows(rows.g[keep], rows.previous[keep], rows.t[keep], rows.d[keep])
    return found


# ------------------------------------------------------------------------------ ReLU networks


def relu_net(
    shape: tuple[int, ...], channels: tuple[int, ...], kernel: int, padding: int
) -> ReluNet:
    return ReluNet(
        input_shape=shape, classes=10, channels=channels, kernel=kernel, padding=padding
    )  # fmt: skip


def relu_gradients(
    model: ReluNet, clients: int, rows: int, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    """Of every example, and of every client's weighted sum; clients have weights of their own. And
    the first one's logits."""
    drawn = [model.init(generator(client, "weights"), torch.float32) for client in range(clients)]
    weights = {k: torch.stack([one[k] for one in drawn]).to(dtype) for k in drawn[0]}
    inputs = images(model.input_shape, clients * rows).unflatten(0, (clients, rows)).to(dtype)
    stream = torch.Generator().manual_seed(1)
    labels = torch.rand(clients, rows, 10, generator=stream).to(dtype)
    shares = torch.rand(clients, rows, generator=stream).to(dtype)
    each = model.stacked_gradients(weights, inputs, labels)
    summed = model.client_gradients(weights, inputs, labels, shares)
    first = {k: v[0] for k, v in weights.items()}
    return [*each.values(), *summed.values(), model.logits_alone(first, inputs[0])]


@compiled
@settings(max_examples=40, deadline=None, derandomize=True)  # a pair of pixels that nearly tie
@given(
    channels=st.lists(st.integers(1, 35), min_size=1, max_size=3).map(tuple),
    kernel=st.integers(1, 6),
    padding=st.integers(0, 3),
    shape=st.tuples(st.integers(1, 4), st.integers(4, 19), st.integers(4, 19)),
)
def test_relu_sweeps_equal_those_of_torch(
    channels: tuple[int, ...], kernel: int, padding: int, shape: tuple[int, int, int]
) -> None:
    try:
        model = relu_net(shape, channels, kernel, padding)
    except LeakbenchError:  # too small for so many layers
        reject()
    found = relu_gradients(model, 2, 3)
    expected = relu_gradients(model, 2, 3, torch.float64)
    for value, other in zip(found, expected, strict=True):
        assert value.shape == other.shape
        assert float((value - other).norm()) <= 2e-5 * float(other.norm()) + 1e-6


@compiled
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (2, 9, 7)], ids=str)
@pytest.mark.parametrize("layers", [((16, 32), 5, 2), ((5, 33), 3, 1)], ids=str)
def test_relu_sweeps_have_the_same_bits_in_every_width(
    shape: tuple[int, ...],
    layers: tuple[tuple[int, ...], int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = []
    for width in every_width():
        monkeypatch.setattr(native, "lanes", lambda width=width: width)
        found.append(relu_gradients(relu_net(shape, *layers), 3, 4))
    if len(found) < 2:
        pytest.skip("one width here")
    for value, other in zip(*found, strict=True):
        assert torch.equal(value, other)


@compiled
def test_relu_sweeps_of_what_is_not_finite_stay_with_the_example() -> None:
    model = relu_net((1, 28, 28), (16, 32), 5, 2)
    weights = {k: v[None] for k, v in model.init(generator(3, "weights"), torch.float32).items()}
    inputs, labels = images((1, 28, 28), 4)[None], torch.tensor([[0, 1, 2, 3]])
    whole = model.stacked_gradients(weights, inputs, labels)
    spoilt = inputs.clone()
    spoilt[0, 2, 0, 14, 14] = torch.nan
    for name, value in model.stacked_gradients(weights, spoilt, labels).items():
        assert torch.equal(value[0, [0, 1, 3]], whole[name][0, [0, 1, 3]])
        assert value[0, 2].isnan().any()


@compiled
@pytest.mark.parametrize(("d", "size"), [(1, 3), (15, 1), (53, 5), (200, 100)])
def test_directions_equal_those_of_torch(d: int, size: int) -> None:
    found = directions(CompiledPairs, torch.float32, 4, d, size, 13)
    expected = directions(Pairs, torch.float64, 4, d, size, 13)
    for value, other in zip(found, expected, strict=True):
        assert float((value - other).norm()) <= 1e-3 * float(other.norm()) + 1e-5


@compiled
def test_what_is_not_finite_stays_with_its_problem() -> None:
    zeros = torch.zeros(3, 40)
    rows = Rows(torch.rand(3, 40), zeros.clone(), torch.ones(3), zeros.clone())
    rows.g[1, 7] = torch.nan
    history = CompiledPairs(zeros, 5)
    columns = history.directions(rows, torch.arange(3), torch.zeros(3, dtype=torch.bool))
    assert columns[1].isnan().all()
    assert torch.equal(rows.d[::2], -rows.g[::2])


@compiled
def test_a_library_of_other_sources_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "digest", lambda folder: "other")
    assert native._library.__wrapped__() is None


def test_without_compiled_programs_torch_computes_and_says_so() -> None:
    asked = (
        "import leakbench.arithmetic as a; from leakbench import native;"
        "print(native.lanes(), a.mode(), sep='|')"
    )
    done = subprocess.run(
        [sys.executable, "-c", asked], env=os.environ | {native.CHOICE: "no"},
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    lanes, _, mode = done.stdout.strip().partition("|")
    assert lanes == "0"
    assert mode.endswith(arithmetic.UNCOMPILED) == arithmetic.has_avx2()


@compiled
@pytest.mark.parametrize("count", [16, 17, 31, 608, 623, 624, 625, 639, 640, 1249, 200_003])
def test_normal_numbers_have_the_bits_of_torch(count: int) -> None:
    """Signs of zeros too; counts that end within a state of the generator, with it, and behind."""
    for seed in (0, 1, 2**32 + 1, 2**62 + 12345):
        drawn = torch.full((count + 1,), 7.0)
        native.normals(seed, count, drawn.data_ptr())
        expected = torch.randn(count, generator=torch.Generator().manual_seed(seed))
        assert torch.equal(drawn[:count].view(torch.int32), expected.view(torch.int32))
        assert drawn[count] == 7.0


@pytest.mark.parametrize("shape", [(), (3,), (5, 3), (4, 4), (2, 3, 50)])
def test_noise_is_what_torch_draws(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nothing is compiled, and where this torch fuses other products."""
    expected = torch.randn(shape, generator=generator(3, "noise", "batch", "mnist", 1, 0, 2))
    source = NoiseStreams(3, ("mnist",))
    assert torch.equal(source.normal("batch", 1, 0, 2, shape), expected)
    with monkeypatch.context() as patch:
        patch.setattr(streams, "_draws_as_torch", lambda: False)
        assert torch.equal(source.normal("batch", 1, 0, 2, shape), expected)
    monkeypatch.setenv(native.CHOICE, "no")
    assert torch.equal(source.normal("batch", 1, 0, 2, shape), expected)


def test_the_choice_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(native.CHOICE, "maybe")
    with pytest.raises(LeakbenchError, match=r"LEAKBENCH_COMPILED.*'maybe'.*allowed: no"):
        native.lanes()


@compiled
def test_the_build_knows_its_sources() -> None:
    """setup.py, which cannot import the package, names the same files."""
    folder = Path(native.__file__).parent
    library = ctypes.CDLL(str(next(folder.glob("_kernels*"))))
    library.leakbench_sources.restype = ctypes.c_char_p
    assert library.leakbench_sources().decode() == native.digest(folder)
    assert {path.name for path in folder.iterdir() if path.suffix in (".c", ".inc")} == set(
        native.SOURCES
    )
