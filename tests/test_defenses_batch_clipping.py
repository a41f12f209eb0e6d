"""Batch clipping against autograd loops, numpy, Opacus and closed forms, on real digits."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, get_args

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from dp_accounting import dp_event
from dp_accounting.pld import pld_privacy_accountant
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from scipy.optimize import brentq
from scipy.stats import norm as normal
from torch import Tensor, nn

from leakbench import data, federated, registry, training
from leakbench.architectures import build
from leakbench.contracts import (
    Context,
    Defense,
    Gradients,
    LeakPoint,
    Observation,
    Observer,
    Replay,
    Setting,
    Weights,
)
from leakbench.defenses.batch_clipping import (
    BatchClip,
    BatchClipALC,
    BatchClipFactors,
    BatchClipLayerwise,
    BatchClipZhang,
    Names,
    PublicClipping,
    SubsetClipping,
    expected_norms,
    layers_of,
    norms_of,
    similar,
)
from leakbench.defenses.dp_baseline import DPBaseline
from leakbench.errors import LeakbenchError
from leakbench.gradients import of_subsets, per_example
from leakbench.models.convolutional import BNLeNet5
from leakbench.models.sigmoid import Convolution, SigmoidNet
from leakbench.modules import ModuleModel
from leakbench.simulation import Simulator
from leakbench.streams import NoiseStreams, generator
from leakbench.testing import check_defense
from leakbench.training import Batch, public_gradients, run_round
from leakbench.training_schedule import Schedule

CLIENTS, SIZE = 2, 10
MODEL = SigmoidNet(
    input_shape=(1, 28, 28),
    classes=10,
    convolutions=(Convolution(channels=4, stride=3), Convolution(channels=8, stride=2)),
)
WEIGHTS = MODEL.init(generator(3, "weights"), torch.float32)
DIGITS = data.load("mnist")
IMAGES = DIGITS.candidates[: CLIENTS * SIZE].reshape(CLIENTS, SIZE, 1, 28, 28)
LABELS = DIGITS.candidate_labels[: CLIENTS * SIZE].reshape(CLIENTS, SIZE)
PUBLIC = public_gradients(MODEL, DIGITS.public[:12], DIGITS.public_labels[:12])
LAYERS = (("conv1.weight", "conv1.bias"), ("conv2.weight", "conv2.bias"),
          ("dense.weight", "dense.bias"))  # fmt: skip
TENSORS = tuple((name,) for name in WEIGHTS)
SETTING = Setting(batch_size=SIZE, examples=2000, rounds=10)
OBSERVERS: list[Observer] = ["model", "server", "type0", "type0_raw", "type1", "type2_batch"]
KINDS: list[Any] = [BatchClip, BatchClipLayerwise, BatchClipALC, BatchClipZhang, BatchClipFactors]
FROM_PUBLIC: list[Any] = KINDS[2:]
BATCH = LeakPoint(view="batch")

Loop = Callable[[dict[str, Tensor]], dict[str, Tensor]]


@pytest.fixture(scope="module")
def subsets() -> Gradients:
    """Means of subsets of two real digits, five a client."""
    return of_subsets(MODEL, WEIGHTS, IMAGES, LABELS, 2)


def context(**changes: Any) -> Context:
    base = Context(noise=None, batch_size=SIZE, clients=(0, 1), public=PUBLIC)
    return replace(base, **changes)


def begun(defense: SubsetClipping, weights: Weights = WEIGHTS, **changes: Any) -> Any:
    """The state of the first round."""
    return defense.on_round(weights, defense.init(weights), context(**changes))


def norm(tensors: Mapping[str, Tensor], names: tuple[str, ...]) -> float:
    """By numpy, in float64."""
    values = [tensors[name].detach().double().numpy().ravel() for name in names]
    return float(np.linalg.norm(np.concatenate(values)))


def public_norms(names: tuple[str, ...], size: int) -> float:
    """e_h of public subsets of this size by hand."""
    return float(np.mean([norm(gradient, names) for gradient in public_rows(size)]))


@cache
def public_rows(size: int) -> list[dict[str, Tensor]]:
    """The gradient of each full subset of the 12 public examples by an autograd of its own."""
    parts = [slice(first, first + size) for first in range(0, 13 - size, size)]
    return [mean_gradient(DIGITS.public[part], DIGITS.public_labels[part]) for part in parts]


def mean_gradient(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    leaves = {k: v.clone().requires_grad_() for k, v in WEIGHTS.items()}
    loss = F.cross_entropy(MODEL.logits(leaves, images), labels)
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


@cache
def subset_gradient(client: int, first: int, size: int) -> dict[str, Tensor]:
    part = slice(first, first + size)
    return mean_gradient(IMAGES[client, part], LABELS[client, part])


def rows_of(gradients: Gradients) -> list[dict[str, Tensor]]:
    """Every row of ("client", "example") by itself."""
    clients, size = gradients.leading
    pairs = [(c, j) for c in range(clients) for j in range(size)]
    return [{k: v[pair] for k, v in gradients.tensors.items()} for pair in pairs]


def equal(one: Gradients, other: Gradients) -> bool:
    return all(torch.equal(value, other.tensors[name]) for name, value in one.tensors.items())


# ---------------------------------------------------------------------------- the plain loop


def clipped_by_hand(gradient: dict[str, Tensor], bounds: dict[Any, float]) -> dict[str, Tensor]:
    return {
        name: gradient[name] * min(1.0, bound / norm(gradient, names))
        for names, bound in bounds.items()
        for name in names
    }


def levelled_by_hand(
    gradient: dict[str, Tensor], factors: dict[Any, float], clip: float
) -> dict[str, Tensor]:
    """Multiply, clip the whole, divide."""
    of = {name: factor for names, factor in factors.items() for name in names}
    multiplied = {name: of[name] * value for name, value in gradient.items()}
    kept = min(1.0, clip / norm(multiplied, tuple(multiplied)))
    return {name: kept * value / of[name] for name, value in multiplied.items()}


def family(subset: int) -> dict[str, tuple[SubsetClipping, Loop]]:
    """Defenses with what they do to one subset's gradient, in plain Python."""
    tensors = {names: public_norms(names, subset or SIZE) for names in TENSORS}
    layers = {names: public_norms(names, subset or SIZE) for names in LAYERS}
    largest = max(layers.values())
    alc = {names: 1.5 * e / largest for names, e in layers.items()}
    factors = {names: max(tensors.values()) / e for names, e in tensors.items()}
    return {
        "flat": (BatchClip(clip=2.0, subset=subset), lambda g: clipped_by_hand(g, {tuple(g): 2.0})),
        "layerwise": (
            BatchClipLayerwise(clip=1.0, subset=subset),
            lambda g: clipped_by_hand(g, dict.fromkeys(TENSORS, 1.0)),
        ),
        "alc": (
            BatchClipALC(clip=1.5, subset=subset, layer="layer"),
            lambda g: clipped_by_hand(g, alc),
        ),
        "zhang": (BatchClipZhang(subset=subset), lambda g: clipped_by_hand(g, tensors)),
        "factors": (
            BatchClipFactors(clip=3.0, subset=subset),
            lambda g: levelled_by_hand(g, factors, 3.0),
        ),
    }


@pytest.mark.parametrize("subset", [1, 2, 5, SIZE, 0])
@pytest.mark.parametrize("member", ["flat", "layerwise", "alc", "zhang", "factors"])
def test_a_round_is_the_plain_loop_over_subsets(member: str, subset: int) -> None:
    defense, one = family(subset)[member]
    tapped = run_round(
        MODEL, WEIGHTS, [Batch(inputs=IMAGES, labels=LABELS)], defense, begun(defense), context(),
        point=BATCH,
    ).tapped  # fmt: skip
    assert tapped is not None
    size, changed = subset or SIZE, False
    for client in range(CLIENTS):
        total = {name: torch.zeros_like(value) for name, value in WEIGHTS.items()}
        for first in range(0, SIZE, size):
            mean = subset_gradient(client, first, size)
            shown = one(mean)
            changed |= any(norm({k: shown[k] - mean[k]}, (k,)) > 1e-3 for k in mean)
            total = {name: total[name] + shown[name] for name in total}
        for name, value in total.items():
            torch.testing.assert_close(
                tapped.tensors[name][client], value / (SIZE // size), rtol=1e-5, atol=1e-5
            )
    assert changed  # something was above its bound


@pytest.mark.parametrize("kind", KINDS)
def test_subsets_that_do_not_divide_the_batch_are_refused(kind: Any) -> None:
    defense = kind(subset=3)
    batch = [Batch(inputs=IMAGES, labels=LABELS)]
    with pytest.raises(LeakbenchError, match="10 examples has no subsets of 3; allowed: divisors"):
        run_round(MODEL, WEIGHTS, batch, defense, begun(defense), context())
    with pytest.raises(LeakbenchError, match=f"{kind.name}: .* no subsets of 3"):
        defense.guarantee("model", WEIGHTS, SETTING)


class SmallNet(nn.Module):
    """Two layers under names of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 5, stride=3)
        self.second = nn.Linear(4 * 8 * 8, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.second(torch.sigmoid(self.first(inputs)).flatten(1))  # type: ignore[no-any-return]


class Functional:
    """The same network in leakbench's form."""

    head = "second.weight"

    def __init__(self, net: SmallNet) -> None:
        self.net = net

    def init(self, generator: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
        return {k: v.detach().clone().to(dtype) for k, v in self.net.named_parameters()}

    loss = "cross_entropy"
    mixes_examples = False

    def logits(self, weights: Weights, inputs: Tensor) -> Tensor:
        return torch.func.functional_call(self.net, dict(weights), (inputs,))  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore:Full backward hook")  # of opacus' own
@pytest.mark.parametrize("bound", [0.5, 2.0, 100.0])
def test_individual_clipping_is_that_of_opacus(bound: float) -> None:
    torch.manual_seed(0)
    net = SmallNet()
    model = Functional(net)
    weights = model.init(torch.Generator(), torch.float32)
    defense = BatchClip(clip=bound, subset=1)
    ours = run_round(
        model, weights, [Batch(inputs=IMAGES[:1], labels=LABELS[:1])], defense,
        defense.init(weights),
        Context(clients=(0,), noise=None, batch_size=SIZE),
        learning_rate=1.0,
    ).weights  # fmt: skip
    assert ours is not None

    sampled = GradSampleModule(net)
    optimiser = DPOptimizer(
        torch.optim.SGD(sampled.parameters(), lr=1.0),
        noise_multiplier=0.0, max_grad_norm=bound, expected_batch_size=SIZE,
    )  # fmt: skip
    F.cross_entropy(sampled(IMAGES[0]), LABELS[0]).backward()
    optimiser.step()
    for name, value in net.named_parameters():
        torch.testing.assert_close(ours[name], value.detach(), rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------------------- clipping


@pytest.mark.parametrize("kind", [BatchClip, BatchClipLayerwise, BatchClipALC, BatchClipZhang])
@pytest.mark.parametrize("layer", ["tensor", "layer"])
def test_no_part_is_above_its_bound_and_those_under_it_are_untouched(
    subsets: Gradients, kind: Any, layer: Any
) -> None:
    defense = kind(subset=2, **({} if kind is BatchClip else {"layer": layer}))
    if kind is not BatchClipZhang:
        defense = replace(defense, clip=5.2 if kind is BatchClip else 3.0)
    bounds = begun(defense)
    shown, _ = defense.on_examples(subsets, bounds, context())
    under = over = 0
    for before, after in zip(rows_of(subsets), rows_of(shown), strict=True):
        for names, bound in bounds.items():
            assert norm(after, names) <= float(bound) * (1 + 1e-6)
            if norm(before, names) <= float(bound) * (1 - 1e-6):
                assert all(torch.equal(after[name], before[name]) for name in names)
                under += 1
            else:
                over += 1
    assert under and over


def test_multiplied_gradients_are_under_the_bound_or_untouched(subsets: Gradients) -> None:
    sure = BatchClipFactors(clip=1e6)
    shown, _ = sure.on_examples(subsets, begun(sure), context())
    assert equal(shown, subsets)

    state = begun(BatchClipFactors())
    of = {name: float(factor) for names, factor in state.items() for name in names}
    assert min(of.values()) == 1.0 < max(of.values())

    def multiplied(row: dict[str, Tensor]) -> float:
        return norm({k: of[k] * v.double() for k, v in row.items()}, tuple(row))

    sizes = [multiplied(row) for row in rows_of(subsets)]
    middle = BatchClipFactors(clip=float(np.median(sizes)))
    shown, _ = middle.on_examples(subsets, state, context())
    for before, after, size in zip(rows_of(subsets), rows_of(shown), sizes, strict=True):
        assert multiplied(after) == pytest.approx(min(size, middle.clip), rel=1e-5)
        untouched = all(torch.equal(after[k], before[k]) for k in after)
        assert untouched or size > middle.clip * (1 - 1e-6)
    assert min(sizes) < middle.clip < max(sizes)


@pytest.mark.parametrize("kind", KINDS)
def test_values_that_are_not_finite_stay_with_their_subset(subsets: Gradients, kind: Any) -> None:
    """Part and subset only; with full-gradient clipping the part is everything."""
    spoilt = subsets.map(lambda _, value: value.clone())
    spoilt.tensors["conv1.weight"][0, 0] = 0.0
    spoilt.tensors["conv1.bias"][0, 1, 2] = torch.nan
    spoilt.tensors["conv1.bias"][0, 2, 2] = torch.inf
    for value in spoilt.tensors.values():
        value[1, 0] = 0.0
    defense = kind()
    shown, _ = defense.on_examples(spoilt, begun(defense), context())
    apart = kind not in (BatchClip, BatchClipFactors)
    for name, value in shown.tensors.items():
        assert bool(value[0, 0].isfinite().all()) and bool(value[1].isfinite().all())
        assert not bool(value[1, 0].any())
        hit = name == "conv1.bias" or not apart
        assert bool(value[0, 1].isnan().all()) == hit
        assert bool(value[0, 2].isfinite().all()) == (name != "conv1.bias")
        if hit:
            kept = value[0, 2].flatten()
            assert bool(((kept == 0) | kept.isnan()).all())
    assert int(shown.tensors["conv1.bias"][0, 2].isnan().sum()) == 1
    if apart:
        assert not bool(shown.tensors["conv1.weight"][0, 0].any())


# ---------------------------------------------------------------------------- public constants


def test_layers_are_named_by_what_comes_before_the_last_dot() -> None:
    names = ["block.1.weight", "head", "block.1.bias", "block.2.weight", "tail"]
    assert layers_of(names, "layer") == [
        ("block.1.weight", "block.1.bias"), ("head",), ("block.2.weight",), ("tail",)
    ]  # fmt: skip
    assert layers_of(names, "tensor") == [(name,) for name in names]
    assert tuple(layers_of(WEIGHTS, "layer")) == LAYERS


@pytest.mark.parametrize(("layer", "parts"), [("tensor", TENSORS), ("layer", LAYERS)])
def test_constants_are_those_of_numpy(layer: Any, parts: Any) -> None:
    arrays: dict[str, NDArray[np.float64]] = {
        name: value[0].double().numpy().reshape(12, -1)
        for name, value in next(iter(PUBLIC(WEIGHTS, 1))).tensors.items()
    }
    e = {
        names: np.linalg.norm(np.hstack([arrays[name] for name in names]), axis=1).mean()
        for names in parts
    }
    largest = max(e.values())
    alc = begun(BatchClipALC(clip=0.7, layer=layer, subset=1))
    zhang = begun(BatchClipZhang(layer=layer, subset=1))
    factors = begun(BatchClipFactors(layer=layer, subset=1))
    assert set(alc) == set(zhang) == set(factors) == set(parts)
    for names in parts:
        assert float(alc[names]) == pytest.approx(0.7 * e[names] / largest, rel=1e-5)
        assert float(zhang[names]) == pytest.approx(e[names], rel=1e-5)
        assert float(factors[names]) == pytest.approx(largest / e[names], rel=1e-5)


@pytest.mark.parametrize("subset", [0, 5])
def test_constants_of_a_network_with_batch_norm_are_those_of_batches(subset: int) -> None:
    """Each public batch of s by an autograd of its own, through the module in training mode."""
    module = BNLeNet5().build((1, 28, 28), 10, "default").train()
    model = ModuleModel(module=module, head=BNLeNet5.head, mode="train")
    weights = model.init(torch.Generator(), torch.float32)
    size = subset or SIZE
    norms: dict[Names, list[float]] = {names: [] for names in layers_of(weights, "layer")}
    for first in range(0, 30 - size + 1, size):
        images, labels = (v[first : first + size] for v in (DIGITS.public, DIGITS.public_labels))
        module.zero_grad()
        F.cross_entropy(module(images), labels).backward()
        grads = {name: value.grad for name, value in module.named_parameters()}
        for names, found in norms.items():
            found.append(norm({k: v for k, v in grads.items() if v is not None}, names))
    e = {names: float(np.mean(found)) for names, found in norms.items()}
    assert len(e) == 8  # L of the paper, appendix B.1
    public = public_gradients(model, DIGITS.public[:34], DIGITS.public_labels[:34])
    here = context(public=public)
    for kind, wanted in (
        (BatchClipALC, lambda value: 0.095 * value / max(e.values())),
        (BatchClipZhang, lambda value: value),
        (BatchClipFactors, lambda value: max(e.values()) / value),
    ):
        defense = kind(subset=subset, layer="layer")
        state = defense.on_round(weights, defense.init(weights), here)
        for names, value in state.items():
            assert float(value) == pytest.approx(wanted(e[names]), rel=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_it_trains_a_network_with_batch_norm(kind: Any) -> None:
    model = build("bn_lenet5", (1, 28, 28), 10, "default")
    weights = model.init(generator(0, "weights"), torch.float32)
    done = federated.train(
        model, weights, DIGITS.train[:400], DIGITS.train_labels[:400],
        kind(noise_multiplier=0.001, layer="layer", every=5) if kind.needs_public else kind(),
        Schedule(rounds=10, batch_size=20, learning_rate=0.2),
        seed=1, noise=NoiseStreams(1, ()), log_at=(1, 10),
        public=public_gradients(model, DIGITS.public[:40], DIGITS.public_labels[:40]),
    )  # fmt: skip
    assert done.log[-1].loss < done.log[0].loss


def test_public_gradients_come_in_pieces_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    for size, rows in ((1, 12), (5, 2), (12, 1), (64, 1)):
        (whole,) = PUBLIC(WEIGHTS, size)
        assert whole.leading == (1, rows)
        bytes_a_row = 4 * sum(value.numel() for value in WEIGHTS.values())
        monkeypatch.setattr(training, "AT_ONCE", 5 * bytes_a_row)
        pieces = list(PUBLIC(WEIGHTS, size))
        assert [piece.leading[1] for piece in pieces] == [
            min(5, rows - n) for n in range(0, rows, 5)
        ]
        for name, value in whole.tensors.items():
            together = torch.cat([piece.tensors[name] for piece in pieces], dim=1)
            torch.testing.assert_close(together, value, rtol=1e-5, atol=1e-6)
        monkeypatch.undo()


@pytest.mark.parametrize("kind", KINDS)
def test_bounds_decay_and_noise_and_promise_with_them(subsets: Gradients, kind: Any) -> None:
    """C falls by 0.9 every three rounds: in round 7 it is 0.81 C, in round 2 still C."""
    steady = kind(noise_multiplier=2.0, subset=2)
    falling = replace(steady, clip_factor=0.9, clip_every=3)
    state = begun(steady)
    for round, left in ((0, 1.0), (2, 1.0), (3, 0.9), (7, 0.81)):
        here = context(round=round, noise=NoiseStreams(1, ()))
        if kind is BatchClipZhang:
            other, scaled = steady, {names: left * value for names, value in state.items()}
        else:
            other = replace(steady, clip=left * steady.clip)
            scaled = state if kind is BatchClipFactors else begun(other)
        shown, _ = falling.on_examples(subsets, state, here)
        wanted, _ = other.on_examples(subsets, scaled, here)
        noisy, _ = falling.on_batch(shown.mean("example"), state, here)
        expected, _ = other.on_batch(wanted.mean("example"), scaled, here)
        for name, value in noisy.tensors.items():
            torch.testing.assert_close(value, expected.tensors[name], rtol=1e-4, atol=1e-6)
        at = replace(SETTING, round=round)
        promise, first = (d.guarantee("type1", WEIGHTS, at) for d in (falling, steady))
        assert promise.mu == pytest.approx(first.mu)
        assert promise.noise_std == pytest.approx(left * (first.noise_std or 0))
        stated = falling.noise_std("type2_batch", WEIGHTS, state, here)
        assert stated == pytest.approx(other.noise_std("type2_batch", WEIGHTS, scaled, here))
        logged = falling.scales(state, here)
        assert logged["clip"] == pytest.approx(left * steady.scales(state, here)["clip"])
        assert logged["sensitivity"] == 2 * logged["clip"] and logged["noise_multiplier"] == 2.0
    assert falling.events(WEIGHTS, SETTING) == steady.events(WEIGHTS, SETTING)


def made(norms: Mapping[str, list[float]], dtype: torch.dtype = torch.float32) -> Gradients:
    """One client whose examples' gradients of these two-number tensors have these norms."""
    direction = torch.tensor([0.6, -0.8], dtype=dtype)
    tensors = {k: torch.tensor([v], dtype=dtype)[..., None] * direction for k, v in norms.items()}
    return Gradients(tensors, ("client", "example"))


MADE = {"a": [1.0, 3.0], "b": [11.0, 9.0], "c": [2.5, 2.5], "d": [100.0, 0.0]}
MADE_WEIGHTS = {name: torch.zeros(2) for name in MADE}


def test_groups_are_cut_at_the_widest_ratios() -> None:
    """e = 2, 10, 2.5, 50: in order a, c, b, d with ratios 1.25, 4, 5."""
    e = expected_norms(norms_of([made(MADE)], layers_of(MADE, "tensor")))
    assert {k: float(v) for k, v in e.items()} == pytest.approx(
        {("a",): 2.0, ("b",): 10.0, ("c",): 2.5, ("d",): 50.0}
    )
    assert similar(e, 1) == [("a", "c", "b", "d")]
    assert similar(e, 2) == [("a", "c", "b"), ("d",)]
    assert similar(e, 3) == [("a", "c"), ("b",), ("d",)]
    for groups in (4, 5, 60):
        assert similar(e, groups) == [("a",), ("c",), ("b",), ("d",)]


@pytest.mark.parametrize("kind", FROM_PUBLIC)
def test_a_group_is_a_layer_of_its_own(kind: Any) -> None:
    """Its e is the mean over examples of the group's norm, at least the root of sum e_h^2."""
    here = context(public=lambda *_: [made(MADE)])
    defense = kind(groups=2)
    state = defense.on_round(MADE_WEIGHTS, defense.init(MADE_WEIGHTS), here)
    small = (math.hypot(1, 11, 2.5) + math.hypot(3, 9, 2.5)) / 2
    assert small > math.hypot(2, 10, 2.5)
    expected = {
        "batch_clip_alc": (0.095 * small / 50, 0.095),
        "batch_clip_zhang": (small, 50.0),
        "batch_clip_factors": (50 / small, 1.0),
    }[kind.name]
    assert list(state) == [("a", "c", "b"), ("d",)]
    assert tuple(map(float, state.values())) == pytest.approx(expected, rel=1e-5)
    assert defense.guarantee("model", MADE_WEIGHTS, SETTING).mu == pytest.approx(
        (1 if kind is BatchClipFactors else math.sqrt(2)) / 0.01875
    )


@given(
    sizes=st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=9), groups=st.integers(1, 12)
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_grouping_keeps_every_layer_once_and_in_order(sizes: list[float], groups: int) -> None:
    norms: dict[tuple[str, ...], Tensor] = {
        (str(i), f"{i}b"): torch.tensor(size) for i, size in enumerate(sizes)
    }
    found = similar(norms, groups)
    assert len(found) == min(groups, len(sizes))
    assert sorted(name for names in found for name in names) == sorted(
        name for names in norms for name in names
    )
    ordered = [sizes[int(name)] for names in found for name in names if not name.endswith("b")]
    assert ordered == pytest.approx(sorted(sizes))
    widest = max((b / a for a, b in zip(sorted(sizes), sorted(sizes)[1:], strict=False)), default=1)
    if groups == 2 and len(sizes) > 1:
        upper = [sizes[int(name)] for name in found[1] if not name.endswith("b")]
        lower = [sizes[int(name)] for name in found[0] if not name.endswith("b")]
        assert min(upper) / max(lower) == pytest.approx(widest, rel=1e-5)


def test_one_group_is_full_gradient_clipping(subsets: Gradients) -> None:
    flat, one = BatchClip(clip=3.0), BatchClipALC(clip=3.0, groups=1)
    shown = [d.on_examples(subsets, begun(d), context())[0] for d in (flat, one)]
    for name, value in shown[0].tensors.items():
        torch.testing.assert_close(shown[1].tensors[name], value, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", FROM_PUBLIC)
def test_public_data_are_looked_at_in_every_so_manieth_round(kind: Any) -> None:
    seen: list[int] = []
    defense = kind(every=3)
    state = defense.init(WEIGHTS)
    for number in range(8):
        weights = {k: (1 + number) * v for k, v in WEIGHTS.items()}

        def public(at: Weights, size: int, number: int = number) -> Iterable[Gradients]:
            seen.append(number)
            return PUBLIC(at, size)

        before = state
        state = defense.on_round(weights, state, context(round=number, public=public))
        if number % 3:
            assert state is before
        else:
            fresh = replace(defense, every=1).on_round(weights, None, context())
            assert all(torch.equal(state[names], value) for names, value in fresh.items())
            assert any(not torch.equal(state[names], before[names]) for names in state)
    assert seen == [0, 3, 6]


@pytest.mark.parametrize("kind", FROM_PUBLIC)
def test_missing_public_data_are_one_sentence(kind: Any) -> None:
    assert kind.needs_public
    defense = kind(every=2)
    with pytest.raises(LeakbenchError, match=f"{kind.name}: round 4 needs .*public") as caught:
        defense.on_round(WEIGHTS, defense.init(WEIGHTS), context(round=4, public=None))
    assert "\n" not in str(caught.value)
    assert defense.on_round(WEIGHTS, "as it was", context(round=5, public=None)) == "as it was"


def test_defenses_without_public_data_need_none() -> None:
    for defense in (BatchClip(), BatchClipLayerwise()):
        assert not defense.needs_public
        assert (
            defense.on_round(WEIGHTS, "as it was", Context(batch_size=1, clients=(0,), noise=None))
            == "as it was"
        )


def state_of(kind: Any, norms: Mapping[str, list[float]], dtype: torch.dtype) -> list[float]:
    weights = {name: torch.zeros(2, dtype=dtype) for name in norms}
    here = context(public=lambda *_: [made(norms, dtype)])
    defense = kind() if kind is BatchClipZhang else kind(clip=3.0)
    state = defense.on_round(weights, defense.init(weights), here)
    assert {value.dtype for value in state.values()} == {dtype}
    assert {value.shape for value in state.values()} == {torch.Size([])}
    return [float(value) for value in state.values()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_layers_without_public_gradient_have_finite_constants(dtype: torch.dtype) -> None:
    dead = {"a": [0.0, 0.0], "b": [4.0, 6.0]}
    assert state_of(BatchClipALC, dead, dtype) == pytest.approx([3e-6, 3.0])
    assert state_of(BatchClipZhang, dead, dtype) == pytest.approx([5e-6, 5.0])
    assert state_of(BatchClipFactors, dead, dtype) == pytest.approx([1e6, 1.0])
    nothing = {"a": [0.0, 0.0], "b": [0.0, 0.0]}
    assert state_of(BatchClipALC, nothing, dtype) == [3.0, 3.0]
    assert state_of(BatchClipZhang, nothing, dtype) == pytest.approx([1e-30] * 2, rel=1e-5, abs=0)
    assert state_of(BatchClipFactors, nothing, dtype) == [1.0, 1.0]


@pytest.mark.parametrize("kind", FROM_PUBLIC)
@pytest.mark.parametrize("spoilt", [math.nan, math.inf])
def test_public_gradients_that_are_not_finite_make_everything_nan(kind: Any, spoilt: float) -> None:
    here = context(public=lambda *_: [made({"a": [1.0, spoilt], "b": [4.0, 6.0]})])
    weights = {"a": torch.zeros(2), "b": torch.zeros(2)}
    defense = kind()
    state = defense.on_round(weights, defense.init(weights), here)
    shown, _ = defense.on_examples(made({"a": [1.0], "b": [2.0]}), state, here)
    assert bool(shown.flatten().isnan().all())


def test_dead_layers_keep_their_derivative_finite() -> None:
    """Of the replay, for gradients of any size."""
    for kind in FROM_PUBLIC:
        defense = kind()
        here = context(public=lambda *_: [made({"a": [0.0], "b": [5.0]})])
        weights = {"a": torch.zeros(2), "b": torch.zeros(2)}
        state = defense.on_round(weights, defense.init(weights), here)
        for size in (0.0, 1e-25, 1e-8, 1.0, 100.0):
            value = torch.tensor([[[size, -size]]], requires_grad=True)
            rows = Gradients({"a": value, "b": torch.ones(1, 1, 2)}, ("client", "example"))
            shown, _ = defense.on_examples(rows, state, here)
            slope = torch.autograd.grad(shown.flatten().sum(), value)[0]
            assert bool(slope.isfinite().all())


# ---------------------------------------------------------------------------- noise


NOISY: list[SubsetClipping] = [
    BatchClip(clip=2.0, noise_multiplier=3.0),
    BatchClip(clip=2.0, noise_multiplier=3.0, subset=2),
    BatchClip(clip=2.0, noise_multiplier=3.0, subset=1),
    BatchClipLayerwise(clip=2.0, noise_multiplier=3.0, subset=5, layer="layer"),
    BatchClipALC(clip=2.0, noise_multiplier=3.0, subset=5),
    BatchClipALC(clip=2.0, noise_multiplier=3.0, layer="layer", groups=2),
    BatchClipZhang(noise_multiplier=3.0, layer="layer"),
    BatchClipFactors(clip=2.0, noise_multiplier=3.0, subset=5),
]


@pytest.mark.parametrize("defense", NOISY, ids=str)
def test_noise_has_the_stated_std_on_every_tensor(defense: SubsetClipping) -> None:
    """At least 10,000 draws a tensor: 3 % are over four standard errors."""
    state = begun(defense)
    subsets = SIZE // (defense.subset or SIZE)
    bounds = {name: float(value) for names, value in state.items() for name in names}
    if isinstance(defense, BatchClipFactors):
        bounds = {name: defense.clip / factor for name, factor in bounds.items()}
    elif isinstance(defense, PublicClipping):
        assert len(set(bounds.values())) == len(state) > 1
    for name, weight in WEIGHTS.items():
        rows = -(-10_000 // weight.numel())
        zeros = Gradients({name: torch.zeros(rows, *weight.shape)}, ("client",))
        here = context(clients=tuple(range(rows)), noise=NoiseStreams(1, ()))
        value = defense.on_batch(zeros, state, here)[0].tensors[name]
        assert value.numel() >= 10_000
        found = float(value.double().square().mean().sqrt())
        assert found == pytest.approx(2 * bounds[name] * 3.0 / subsets, rel=0.03)


@pytest.mark.parametrize("kind", KINDS)
def test_noise_enters_behind_the_example_hook_only(subsets: Gradients, kind: Any) -> None:
    defense = kind(subset=2)
    state = begun(defense)
    quiet, loud = context(), context(noise=NoiseStreams(1, ()))
    shown = [defense.on_examples(subsets, state, here)[0] for here in (quiet, loud)]
    assert equal(*shown)
    mean = shown[0].mean("example")
    assert equal(defense.on_batch(mean, state, quiet)[0], mean)
    assert not equal(defense.on_batch(mean, state, loud)[0], mean)
    assert defense.noise_std("type2", WEIGHTS, state, loud) == dict.fromkeys(WEIGHTS, 0.0)


def test_noise_is_paired_with_that_of_other_defenses() -> None:
    """Every one scales the same normal draws."""
    zeros = Gradients({k: torch.zeros(2, *v.shape) for k, v in WEIGHTS.items()}, ("client",))
    units = []
    others: list[Defense] = [DPBaseline(convention="mean"), *NOISY]
    for defense in others:
        state = defense.on_round(WEIGHTS, defense.init(WEIGHTS), context())
        shown, _ = defense.on_batch(zeros, state, context(noise=NoiseStreams(1, ())))
        value = shown.tensors["conv2.weight"]
        units.append(value / value.square().mean().sqrt())
    for unit in units[1:]:
        torch.testing.assert_close(unit, units[0], rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------------------- taps and replay


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("subset", [0, 5])
def test_example_tap_sees_the_undefended_gradient(kind: Any, subset: int) -> None:
    defense = kind(subset=subset)
    state = begun(defense)
    done = run_round(
        MODEL, WEIGHTS, [Batch(inputs=IMAGES, labels=LABELS)], defense, state,
        context(noise=NoiseStreams(1, ())), point=LeakPoint(),
    )  # fmt: skip
    assert done.tapped is not None and done.tapped.axes == ("client", "example")
    assert equal(done.tapped, per_example(MODEL, WEIGHTS, IMAGES, LABELS))


def test_example_tap_of_individual_clipping_sees_it_clipped() -> None:
    defense = BatchClip(clip=1.0, subset=1)
    done = run_round(
        MODEL, WEIGHTS, [Batch(inputs=IMAGES, labels=LABELS)], defense, begun(defense),
        context(noise=NoiseStreams(1, ())), point=LeakPoint(),
    )  # fmt: skip
    assert done.tapped is not None
    raw = [norm(row, tuple(row)) for row in rows_of(per_example(MODEL, WEIGHTS, IMAGES, LABELS))]
    shown = [norm(row, tuple(row)) for row in rows_of(done.tapped)]
    assert shown == pytest.approx([min(size, 1.0) for size in raw], rel=1e-5)
    assert max(raw) > 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("subset", [0, 2])
def test_replay_uses_the_constants_of_the_state(kind: Any, subset: int) -> None:
    """At the true inputs it is the quiet gradient, and it can be differentiated."""
    defense = kind(subset=subset)
    state = begun(defense)
    batch = [Batch(inputs=IMAGES, labels=LABELS)]
    seen = run_round(
        MODEL, WEIGHTS, batch, defense, state, context(), point=BATCH, stop_at_tap=True
    ).tapped
    assert seen is not None
    simulate = Observation(
        weights=WEIGHTS,
        gradients=seen,
        run=Simulator(
            model=MODEL,
            replays=[
                Replay(defense=defense, state=state, context=context(noise=NoiseStreams(1, ())))
            ],
            replay_of=torch.zeros(CLIENTS, dtype=torch.int64),
            point=BATCH,
        ),
    ).simulate
    inputs = IMAGES.clone().requires_grad_()
    shown = simulate(inputs, LABELS, torch.arange(CLIENTS))
    for name, value in seen.tensors.items():
        torch.testing.assert_close(shown.tensors[name], value, rtol=1e-4, atol=1e-6)
    slope = torch.autograd.grad(shown.flatten().square().sum(), inputs)[0]
    assert bool(slope.isfinite().all()) and bool(slope.any())


@pytest.mark.parametrize("kind", KINDS)
def test_contract(kind: Any) -> None:
    assert registry.load("defenses", kind.name) is kind
    for subset in (0, 1, 4):
        check_defense(kind(subset=subset))


# ---------------------------------------------------------------------------- guarantees


L = len(TENSORS)


@pytest.mark.parametrize(
    ("defense", "parts"),
    [
        (BatchClip(noise_multiplier=0.8), 1),
        (BatchClipLayerwise(noise_multiplier=0.8), L),
        (BatchClipLayerwise(noise_multiplier=0.8, layer="layer"), len(LAYERS)),
        (BatchClipALC(noise_multiplier=0.8), L),
        (BatchClipALC(noise_multiplier=0.8, layer="layer"), len(LAYERS)),
        (BatchClipALC(noise_multiplier=0.8, groups=4), 4),
        (BatchClipALC(noise_multiplier=0.8, groups=40), L),
        (BatchClipZhang(noise_multiplier=0.8), L),
        (BatchClipZhang(noise_multiplier=0.8, layer="layer", groups=2), 2),
        (BatchClipFactors(noise_multiplier=0.8), 1),
        (BatchClipFactors(noise_multiplier=0.8, groups=2), 1),
    ],
    ids=str,
)
@pytest.mark.parametrize("subset", [0, 1, 5])
def test_mu_is_the_root_of_the_parts_over_sigma(defense: Any, parts: int, subset: int) -> None:
    defense = replace(defense, subset=subset)
    subsets = SIZE // (subset or SIZE)
    master = getattr(defense, "clip", 1.0)
    for observer in OBSERVERS:
        seen = defense.guarantee(observer, WEIGHTS, SETTING)
        assert seen.level == "instance" and seen.relation == "replace_one"
        assert seen.mu == pytest.approx(math.sqrt(parts) / 0.8, rel=1e-12)
        assert seen.sensitivity == pytest.approx(2 * math.sqrt(parts) * master / subsets)
        assert seen.noise_std == pytest.approx(2 * 0.8 * master / subsets)
        assert seen.tensors == parts
        assert seen.unit == ("flat" if parts == 1 else getattr(defense, "layer", "flat"))
        assert "one example of one subset of a fixed partition" in seen.assumptions[0]
        assert ("public data only" in " ".join(seen.assumptions)) == defense.needs_public
        assert ("adding or removing" in " ".join(seen.assumptions)) == (subset != 1)
    if not isinstance(defense, BatchClipFactors):
        assert len(defense.init(WEIGHTS)) == len(begun(defense)) == parts


def test_numbers_of_the_paper() -> None:
    """ResNet-18 has 62 layers: sigma / sqrt(62) is the full-gradient noise of equal privacy."""
    weights = {f"layer{number}.weight": torch.zeros(1) for number in range(62)}
    alc = BatchClipALC().guarantee("model", weights, SETTING).mu
    equal_noise = BatchClip(noise_multiplier=0.01875 / math.sqrt(62))
    assert alc == pytest.approx(equal_noise.guarantee("model", weights, SETTING).mu)
    assert alc == pytest.approx(419.946, rel=1e-5)
    assert BatchClip().guarantee("model", weights, SETTING).mu == pytest.approx(53.3333, rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_who_is_promised_nothing(kind: Any) -> None:
    for subset, said in ((0, "neither clipped"), (5, "neither clipped"), (1, "clipping only")):
        seen = kind(subset=subset).guarantee("type2", WEIGHTS, SETTING)
        assert seen.level == "none" and said in seen.reason and seen.mu is None
    silent = kind(noise_multiplier=0.0).guarantee("model", WEIGHTS, SETTING)
    assert silent.level == "none" and "no noise" in silent.reason
    assert kind(noise_multiplier=0.0).events(WEIGHTS, SETTING) == ()


@pytest.mark.parametrize("kind", KINDS)
def test_poisson_sampling_of_examples_promises_nothing_for_subsets(kind: Any) -> None:
    """Of clients it may: their batches have a fixed size."""
    drawn = replace(SETTING, sampling="poisson")
    for subset in (0, 5):
        seen = kind(subset=subset).guarantee("model", WEIGHTS, drawn)
        assert seen.level == "none" and "Poisson" in seen.reason
        of_clients = replace(drawn, clients=2, all_clients=20)
        assert kind(subset=subset).guarantee("model", WEIGHTS, of_clients).level == "instance"
    assert kind(subset=1).guarantee("model", WEIGHTS, drawn).level == "instance"


def test_a_large_poisson_batch_weighs_more_than_one() -> None:
    """Why nothing is promised there: the clipped mean of 10 examples of 5 expected has norm 2 C."""
    batch = Batch(
        inputs=IMAGES[:1], labels=LABELS[:1], expected=5, mask=torch.ones(1, SIZE, dtype=torch.bool)
    )
    defense = BatchClip(clip=1.0)
    shown = run_round(
        MODEL,
        WEIGHTS,
        [batch],
        defense,
        begun(defense),
        Context(clients=(0,), noise=None, batch_size=5),
        point=BATCH,
    ).tapped
    assert shown is not None
    assert float(shown.flat_norm()) == pytest.approx(2.0, rel=1e-5)


MOVED: list[SubsetClipping] = [
    BatchClip(subset=2), BatchClipLayerwise(subset=2, layer="layer"), BatchClipALC(subset=2),
    BatchClipALC(subset=2, groups=3), BatchClipZhang(subset=2), BatchClipFactors(subset=2),
]  # fmt: skip


@pytest.mark.parametrize("defense", MOVED, ids=str)
def test_replacing_one_example_moves_the_mean_by_no_more_than_stated(
    defense: SubsetClipping,
) -> None:
    """In units of each part's noise; a large subset mean turned round moves it by just that."""
    state = begun(defense)
    mu = defense.guarantee("model", WEIGHTS, SETTING).mu
    assert mu is not None
    zeros = Gradients({k: torch.zeros(1, *v.shape) for k, v in WEIGHTS.items()}, ("client",))
    stated, _ = defense.on_batch(zeros, state, context(clients=(0,), noise=Ones()))

    @given(seed=st.integers(0, 2**32 - 1), size=st.floats(0.01, 100), opposite=st.booleans())
    @settings(max_examples=20, deadline=None)
    def check(seed: int, size: float, opposite: bool) -> None:
        stream = torch.Generator().manual_seed(seed)
        one = {k: size * torch.randn(1, 5, *v.shape, generator=stream) for k, v in WEIGHTS.items()}
        two = {k: v.clone() for k, v in one.items()}
        for value in two.values():
            fresh = size * torch.randn(value[0, 3].shape, generator=stream)
            value[0, 3] = -value[0, 3] if opposite else fresh
        shown = [
            defense.on_examples(Gradients(rows, ("client", "example")), state, context())[0]
            for rows in (one, two)
        ]
        moved = {
            k: (shown[0].tensors[k] - shown[1].tensors[k]).mean(dim=1) / stated.tensors[k]
            for k in WEIGHTS
        }
        found = norm(moved, tuple(moved))
        assert found <= mu * (1 + 1e-5)
        if opposite and size >= 10:
            assert found == pytest.approx(mu, rel=1e-5)

    check()


class Ones:
    """A source of noise that draws ones: what is added is its std."""

    def normal(
        self, purpose: str, client: int, round: int, iteration: int, shape: tuple[int, ...]
    ) -> Tensor:
        return torch.ones(shape)

    uniform = normal


@pytest.mark.parametrize("subset", [1, 2])
def test_events_cost_what_the_gaussian_mechanism_of_that_mu_costs(subset: int) -> None:
    """One release for replacing an example: the closed form, and a PLD of the same release.

    Accountants double a release's sensitivity for replace-one.
    """
    sigma, delta = 3.0, 1e-5
    defense = BatchClipALC(noise_multiplier=sigma, subset=subset)
    (event,) = defense.events(WEIGHTS, replace(SETTING, rounds=7))
    assert event.steps == 7 and event.sampling == "fixed_size"
    assert event.sampling_rate == SIZE / 2000
    # In turn through 2,000 examples, two batches a round: each example once, not amplified.
    (turns,) = defense.events(WEIGHTS, replace(SETTING, rounds=7, local_steps=2))
    assert (turns.steps, turns.sampling, turns.sampling_rate) == (7, "fixed_size", 1.0)
    mu = math.sqrt(L) / sigma

    def excess(epsilon: float) -> float:
        upper = normal.cdf(mu / 2 - epsilon / mu)
        return float(upper - math.exp(epsilon) * normal.cdf(-mu / 2 - epsilon / mu) - delta)

    accountant = pld_privacy_accountant.PLDAccountant()
    accountant.compose(dp_event.GaussianDpEvent(event.noise_multiplier / 2))
    assert accountant.get_epsilon(delta) == pytest.approx(brentq(excess, 0, 50), rel=1e-3)


# ---------------------------------------------------------------------------- parameters


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [
        *((kind, {"clip": clip}) for kind in KINDS if kind is not BatchClipZhang
          for clip in (0.0, -1.0, math.nan, math.inf)),
        *((kind, {"noise_multiplier": sigma}) for kind in KINDS
          for sigma in (-1.0, math.nan, math.inf)),
        *((kind, {"subset": -1}) for kind in KINDS),
        *((kind, {"clip_factor": factor}) for kind in KINDS for factor in (0.0, 1.1, math.nan)),
        *((kind, {"clip_every": 0}) for kind in KINDS),
        *((kind, {"groups": -1}) for kind in FROM_PUBLIC),
        *((kind, {"every": 0}) for kind in FROM_PUBLIC),
    ],
    ids=str,
)  # fmt: skip
def test_senseless_parameters_are_refused(kind: Any, parameters: dict[str, Any]) -> None:
    with pytest.raises(LeakbenchError, match=f"{kind.name}: {next(iter(parameters))}"):
        kind(**parameters)


def test_all_observers_are_covered() -> None:
    assert {*OBSERVERS, "type2"} == set(get_args(Observer))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch_size", [1, 8])
def test_a_batch_that_grows_with_the_draw_promises_nothing(kind: Any, batch_size: int) -> None:
    """Its mean is clipped to C and then counts as often as there are examples."""
    drawn = replace(SETTING, batch_size=batch_size, sampling="poisson")
    promise = kind(subset=0).guarantee("model", WEIGHTS, drawn)
    assert promise.level == "none" and "Poisson" in promise.reason
    assert kind(subset=0).events(WEIGHTS, drawn) == ()
    assert kind(subset=1).guarantee("model", WEIGHTS, drawn).level == "instance"
