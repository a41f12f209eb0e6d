"""Defenses against plain numpy on real per-example gradients, Opacus, and their stated numbers."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import Tensor, nn

from leakbench import data
from leakbench.architectures import build
from leakbench.clipping import clip_flat, clip_tensors
from leakbench.contracts import Context, Defense, Gradients, NoiseConvention, Observer, Setting
from leakbench.defenses.adaclip import AdaClip, Moments
from leakbench.defenses.dp_baseline import DPBaseline
from leakbench.defenses.dp_dyn import DPDynSSigma
from leakbench.defenses.none import NoDefense
from leakbench.defenses.quantile_clip import Bounds, QuantileClip
from leakbench.errors import LeakbenchError
from leakbench.gradients import per_example
from leakbench.privacy.gdp import epsilon_of_mu
from leakbench.streams import NoiseStreams, generator

Arrays = dict[str, NDArray[np.float64]]

MODEL = build("lenet_cpl", (1, 28, 28), 10)
WEIGHTS = MODEL.init(generator(3, "weights"), torch.float32)
SIZE, CLIENTS = 20, 2
SETTING = Setting(batch_size=SIZE, examples=2000, rounds=10)
OBSERVERS: list[Observer] = ["model", "server", "type0", "type1"]


@pytest.fixture(scope="module")
def gradients() -> Gradients:
    """Of 20 real digits for each of two clients; conv1 and dense are above C = 1, biases vary."""
    dataset = data.load("mnist")
    images = dataset.candidates[: CLIENTS * SIZE].reshape(CLIENTS, SIZE, 1, 28, 28)
    labels = dataset.candidate_labels[: CLIENTS * SIZE].reshape(CLIENTS, SIZE)
    return per_example(MODEL, WEIGHTS, images, labels)


def context(**changes: Any) -> Context:
    """Two clients with noise."""
    base = Context(batch_size=SIZE, clients=(0, 1), noise=NoiseStreams(7, ("mnist",)))
    return replace(base, **changes)


def arrays(gradients: Gradients) -> Arrays:
    return {k: v.double().numpy() for k, v in gradients.tensors.items()}


def norms_by_hand(value: NDArray[np.float64]) -> NDArray[np.float64]:
    """Norm of every example, by plain loops."""
    flat = value.reshape(CLIENTS, SIZE, -1)
    return np.array([[math.sqrt(sum(x * x for x in row)) for row in client] for client in flat])


def close(found: Gradients, expected: Mapping[str, Any], tolerance: float = 1e-6) -> None:
    for name, value in found.tensors.items():
        torch.testing.assert_close(
            value.double(), torch.as_tensor(expected[name]), rtol=tolerance, atol=tolerance
        )


def equal(one: Gradients, other: Gradients) -> bool:
    return all(torch.equal(value, other.tensors[name]) for name, value in one.tensors.items())


# ---------------------------------------------------------------------------- clipping


@pytest.mark.parametrize("bound", [0.1, 1.0, 4.0])
def test_tensor_clipping_by_hand(gradients: Gradients, bound: float) -> None:
    clipped = clip_tensors(gradients, bound)
    expected = {}
    for name, value in arrays(gradients).items():
        factor = np.minimum(1, bound / norms_by_hand(value))
        expected[name] = value * factor.reshape(CLIENTS, SIZE, *[1] * (value.ndim - 2))
    close(clipped, expected)
    assert all(float(norm.max()) <= bound * (1 + 1e-6) for norm in clipped.norms().values())


@pytest.mark.parametrize("bound", [0.1, 1.0, 10.0])
def test_flat_clipping_by_hand(gradients: Gradients, bound: float) -> None:
    clipped = clip_flat(gradients, bound)
    squares = sum(norms_by_hand(value) ** 2 for value in arrays(gradients).values())
    factor = np.minimum(1, bound / np.sqrt(squares))
    expected = {
        k: v * factor.reshape(CLIENTS, SIZE, *[1] * (v.ndim - 2))
        for k, v in arrays(gradients).items()
    }
    close(clipped, expected)
    assert float(clipped.flat_norm().max()) <= bound * (1 + 1e-6)


def test_gradients_under_the_bound_pass_bit_for_bit(gradients: Gradients) -> None:
    clipped = clip_tensors(gradients, 4.0)
    norms = gradients.norms()
    under = {k: norm <= 4.0 for k, norm in norms.items()}
    assert any(bool(v.any()) for v in under.values()) and not all(
        bool(v.all()) for v in under.values()
    )
    for name, rows in under.items():
        assert torch.equal(clipped.tensors[name][rows], gradients.tensors[name][rows])
    flat_bound = float(gradients.flat_norm().median())
    rows = gradients.flat_norm() <= flat_bound
    flat = clip_flat(gradients, flat_bound)
    for name, value in gradients.tensors.items():
        assert torch.equal(flat.tensors[name][rows], value[rows])


@pytest.mark.parametrize("clip", [clip_tensors, clip_flat])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [0.0, 1e-37, 1e-25, 1e-20, 1e-15, 1e-8, 1.0, 4.0, 100.0])
def test_derivative_is_finite_at_every_size(clip: Any, dtype: torch.dtype, size: float) -> None:
    """The quotient C / norm must not poison the branch that does not use it."""
    value = torch.tensor([[size, 0.0, -size]], dtype=dtype, requires_grad=True)
    other = torch.tensor([[1.0, 2.0]], dtype=dtype)
    clipped = clip(Gradients({"a": value, "b": other}, ("client",)), 4.0).tensors["a"]
    slope = torch.autograd.grad(clipped.sum(), value)[0]
    assert bool(torch.isfinite(slope).all())
    if size < 1:
        assert torch.equal(clipped, value)
        assert torch.equal(slope, torch.ones_like(slope))


@pytest.mark.parametrize("clip", [clip_tensors, clip_flat])
def test_values_that_are_not_finite_stay_with_their_example(clip: Any) -> None:
    value = torch.tensor([[1.0, torch.nan], [1.0, torch.inf], [1.0, 2.0]])
    clipped = clip(Gradients({"a": value}, ("client",)), 4.0).tensors["a"]
    assert bool(clipped[0].isnan().all())
    assert bool(clipped[1, 1].isnan()) and float(clipped[1, 0]) == 0.0
    assert torch.equal(clipped[2], value[2])


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

    def logits(self, weights: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        return torch.func.functional_call(self.net, dict(weights), (inputs,))  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore:Full backward hook")  # of opacus' own
@pytest.mark.parametrize("bound", [0.5, 2.0, 100.0])
def test_flat_clipping_is_that_of_opacus(bound: float) -> None:
    """One step of DP-SGD without noise: sum of the clipped gradients over the batch size."""
    torch.manual_seed(0)
    net = SmallNet()
    model = Functional(net)
    weights = model.init(torch.Generator(), torch.float32)
    dataset = data.load("mnist")
    images, labels = dataset.candidates[:SIZE], dataset.candidate_labels[:SIZE]
    ours = clip_flat(per_example(model, weights, images[None], labels[None]), bound)

    sampled = GradSampleModule(net)
    optimiser = DPOptimizer(
        torch.optim.SGD(sampled.parameters(), lr=1.0),
        noise_multiplier=0.0, max_grad_norm=bound, expected_batch_size=SIZE,
    )  # fmt: skip
    F.cross_entropy(sampled(images), labels).backward()
    optimiser.step()
    theirs = {k: weights[k] - v.detach() for k, v in net.named_parameters()}
    for name, value in ours.mean("example").tensors.items():
        torch.testing.assert_close(value[0], theirs[name], rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------------------- noise


def padded_zeros(rows: int, size: int) -> Gradients:
    """Zero gradients of the real shapes: what a defense shows of them is its noise."""
    zeros = {k: torch.zeros(rows, size, *v.shape) for k, v in WEIGHTS.items()}
    return Gradients(zeros, ("client", "example"))


def pooled_std(value: Tensor) -> float:
    return float(value.double().square().mean().sqrt())


@pytest.mark.parametrize("convention", ["per_example", "mean", "sum"])
@pytest.mark.parametrize("kind", [DPBaseline, QuantileClip])
@pytest.mark.parametrize("rows", [1000, 10], ids=["small tensors", "large tensors"])
def test_noise_has_the_stated_std_on_every_tensor(
    kind: Any, convention: NoiseConvention, rows: int
) -> None:
    """At least 10,000 draws a tensor: 3 % are over four standard errors."""
    clip, sigma, size = 2.0, 3.0, 5
    defense = kind(clip=clip, noise_multiplier=sigma, convention=convention)
    weights = {k: v for k, v in WEIGHTS.items() if (v.numel() < 1000) == (rows == 1000)}
    zeros = Gradients(
        {k: torch.zeros(rows, size, *v.shape) for k, v in weights.items()}, ("client", "example")
    )
    here = Context(batch_size=size, clients=tuple(range(rows)), noise=NoiseStreams(1, ()))
    examples, state = defense.on_examples(zeros, defense.init(weights), here)
    batch, _ = defense.on_batch(examples.mean("example"), state, here)
    at_example = {"per_example": sigma * clip, "mean": 0.0, "sum": 0.0}[convention]
    at_batch = {
        "per_example": sigma * clip / math.sqrt(size),
        "mean": sigma * clip,
        "sum": sigma * clip / size,
    }[convention]
    for name in weights:
        assert batch.tensors[name].numel() >= 10_000
        assert pooled_std(examples.tensors[name]) == pytest.approx(at_example, rel=0.03)
        assert pooled_std(batch.tensors[name]) == pytest.approx(at_batch, rel=0.03)


@pytest.mark.parametrize("convention", ["mean", "sum"])
@pytest.mark.parametrize("kind", [DPBaseline, QuantileClip, AdaClip, DPDynSSigma])
def test_example_tap_sees_clipping_only(
    gradients: Gradients, kind: Any, convention: NoiseConvention
) -> None:
    quiet = {"noise_multiplier": 0.0}
    if kind is DPDynSSigma:
        quiet["noise_multiplier_end"] = 0.0
    loud, silent = kind(clip=1.0, convention=convention), kind(clip=1.0, **quiet)
    shown = [d.on_examples(gradients, d.init(WEIGHTS), context())[0] for d in (loud, silent)]
    assert equal(shown[0], shown[1])
    assert not equal(shown[0], gradients)


def test_noise_is_paired_across_defenses_and_sizes(gradients: Gradients) -> None:
    """Every defense scales the same normal draws."""
    units = []
    for kind, clip, sigma in ((DPBaseline, 1.0, 1.0), (DPBaseline, 4.0, 6.0), (QuantileClip, 2, 3)):
        shown = [
            kind(clip=clip, noise_multiplier=factor).on_examples(
                padded_zeros(CLIENTS, SIZE), kind(clip=clip).init(WEIGHTS), context()
            )[0]
            for factor in (sigma, 0.0)
        ]
        units.append((shown[0].flatten() - shown[1].flatten()) / (sigma * clip))
    torch.testing.assert_close(units[1], units[0], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(units[2], units[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("convention", ["per_example", "mean", "sum"])
def test_quantile_clip_begins_as_the_baseline(
    gradients: Gradients, convention: NoiseConvention
) -> None:
    """Bit for bit at both taps; what differs is the budget that the counts spend."""
    baseline = DPBaseline(clip=4.0, convention=convention)
    quantile = QuantileClip(clip=4.0, convention=convention)
    shown = []
    for defense in (baseline, quantile):
        examples, state = defense.on_examples(gradients, defense.init(WEIGHTS), context())
        batch, _ = defense.on_batch(examples.mean("example"), state, context())
        shown.append((examples, batch))
    assert equal(shown[0][0], shown[1][0]) and equal(shown[0][1], shown[1][1])
    tapped, plain = (d.guarantee("type2", WEIGHTS, SETTING) for d in (quantile, baseline))
    assert replace(tapped, assumptions=(), single_look=False) == plain
    assert tapped.mu is None or tapped.single_look
    assert tapped.mu is None or "later rounds" in " ".join(tapped.assumptions)
    for observer in OBSERVERS:
        fixed = baseline.guarantee(observer, WEIGHTS, SETTING).mu
        joint = quantile.guarantee(observer, WEIGHTS, SETTING).mu
        assert fixed is not None and joint is not None
        counts = math.sqrt(10) * 0.5 / (0.05 * SIZE)
        assert joint > fixed
        assert joint == pytest.approx(math.sqrt(fixed**2 + counts**2), rel=1e-12)


# ---------------------------------------------------------------------------- guarantees


def test_guarantee_numbers_of_lenet_cpl() -> None:
    seen = DPBaseline().guarantee("type2", WEIGHTS, Setting(batch_size=600))
    assert len(WEIGHTS) == seen.tensors == 10
    assert seen.sensitivity == pytest.approx(math.sqrt(10) * 4)
    assert seen.noise_std == 24.0
    assert seen.mu == pytest.approx(math.sqrt(10) / 6)
    for observer in OBSERVERS:
        seen = DPBaseline(convention="sum").guarantee(observer, WEIGHTS, Setting(batch_size=600))
        assert seen.sensitivity == pytest.approx(math.sqrt(10) * 4 / 600)
        assert seen.noise_std == pytest.approx(24 / 600)
        assert seen.mu == pytest.approx(math.sqrt(10) / 6)
        seen = DPBaseline(convention="mean").guarantee(observer, WEIGHTS, Setting(batch_size=600))
        assert seen.noise_std == 24.0
        assert seen.mu == pytest.approx(math.sqrt(10) / 6 / 600)
        seen = DPBaseline().guarantee(observer, WEIGHTS, Setting(batch_size=600))
        assert seen.noise_std == pytest.approx(24 / math.sqrt(600))
        assert seen.mu == pytest.approx(math.sqrt(10) / 6 / math.sqrt(600))


@pytest.mark.parametrize("convention", ["mean", "sum"])
@pytest.mark.parametrize("kind", [DPBaseline, QuantileClip, AdaClip])
def test_clipping_alone_promises_nothing(kind: Any, convention: NoiseConvention) -> None:
    tap = kind(convention=convention).guarantee("type2", WEIGHTS, SETTING)
    silent = kind(noise_multiplier=0.0).guarantee("model", WEIGHTS, SETTING)
    for seen in (tap, silent):
        assert seen.level == "none" and seen.reason and seen.mu is None


def test_no_defense_and_data_dependent_noise_promise_nothing() -> None:
    for defense in (NoDefense(), DPDynSSigma()):
        for observer in [*OBSERVERS, "type2"]:
            seen = defense.guarantee(observer, WEIGHTS, SETTING)
            assert seen.level == "none" and seen.reason
        assert defense.events(WEIGHTS, SETTING) == ()


def test_counts_without_noise_promise_nothing() -> None:
    silent = QuantileClip(count_noise=0.0)
    assert silent.guarantee("model", WEIGHTS, SETTING).level == "none"
    assert silent.guarantee("type2", WEIGHTS, SETTING).mu == pytest.approx(math.sqrt(10) / 6)


def test_a_client_drawn_for_a_round_takes_part_in_all_of_it() -> None:
    """One client of ten, 100 steps on its five examples, C = 1, sigma = 6, one tensor.

    With constant gradients the update is one Gaussian of mu = 10 / 6, there with chance 1 / 10:
    numerical integration of that mixture against its neighbour gives epsilon 4.77 at delta 1e-5.
    """
    setting = Setting(
        batch_size=5, local_steps=100, clients=1, all_clients=10, examples=5, rounds=1
    )
    one = {"a": torch.zeros(3)}
    (event,) = DPBaseline(noise_multiplier=6.0, convention="sum").events(one, setting)
    assert (event.steps, event.sampling, event.sampling_rate) == (100, "fixed_size", 1.0)
    assert epsilon_of_mu(math.sqrt(event.steps) / event.noise_multiplier, 1e-5) > 4.77
    # Coins for every example in every step are fresh, whatever the number of steps.
    coins = replace(setting, all_clients=1, examples=500, sampling="poisson")
    (event,) = DPBaseline(noise_multiplier=6.0, convention="sum").events(one, coins)
    assert (event.steps, event.sampling, event.sampling_rate) == (100, "poisson", 0.01)


@pytest.mark.parametrize("convention", ["per_example", "mean", "sum"])
def test_adaclip_promises_nothing_where_one_more_example_brings_m(
    convention: NoiseConvention,
) -> None:
    """Under Poisson sampling sums are divided by the expected B: one more adds b w + m."""
    drawn = replace(SETTING, sampling="poisson")
    promise = AdaClip(convention=convention).guarantee("model", WEIGHTS, drawn)
    assert promise.level == "none" and "without bound" in promise.reason
    assert AdaClip(convention=convention).events(WEIGHTS, drawn) == ()
    kept = AdaClip(convention=convention).guarantee("model", WEIGHTS, SETTING)
    assert kept.level == "instance" and "estimated mean m" in kept.assumptions[0]


@pytest.mark.parametrize(
    ("examples", "steps", "sampling", "uses"),
    [(8, 4, "fixed_size", 4), (20, 4, "fixed_size", 2), (32, 4, "fixed_size", 1),
     (100, 4, "poisson", 4), (None, 4, "fixed_size", 4)],
)  # fmt: skip
def test_an_update_shows_every_step_an_example_took_part_in(
    examples: int | None, steps: int, sampling: Any, uses: int
) -> None:
    """mu of one step, times the root of the number of steps; a tap sees one step."""
    setting = Setting(batch_size=8, local_steps=steps, examples=examples, sampling=sampling)
    defense = DPBaseline(convention="sum", noise_multiplier=2.0)
    single = math.sqrt(10) / 2
    for observer in ("server", "type0", "type0_raw", "type1"):
        promise = defense.guarantee(observer, WEIGHTS, setting)
        assert promise.mu == pytest.approx(single * math.sqrt(uses))
    for observer in ("model", "type2_batch"):
        assert defense.guarantee(observer, WEIGHTS, setting).mu == pytest.approx(single)


def test_adaclip_charges_the_transformed_space() -> None:
    assert AdaClip().guarantee("type2", WEIGHTS, SETTING).mu == pytest.approx(1 / 6)
    assert AdaClip(convention="sum").guarantee("model", WEIGHTS, SETTING).mu == pytest.approx(1 / 6)


@pytest.mark.parametrize("kind", [DPBaseline, QuantileClip, AdaClip])
def test_public_noise_std_is_what_the_tap_shows(gradients: Gradients, kind: Any) -> None:
    shown = [
        kind(noise_multiplier=sigma).on_examples(gradients, kind().init(WEIGHTS), context())[0]
        for sigma in (6.0, 0.0)
    ]
    stated = kind().noise_std("type2", WEIGHTS, kind().init(WEIGHTS), context())
    noise = shown[0].tensors["dense.weight"] - shown[1].tensors["dense.weight"]
    assert noise.numel() >= 10_000
    assert pooled_std(noise) == pytest.approx(stated["dense.weight"], rel=0.03)
    assert set(
        kind(convention="sum").noise_std("type2", WEIGHTS, kind().init(WEIGHTS), context()).values()
    ) == {0.0}


@pytest.mark.parametrize("kind", [DPBaseline, QuantileClip, AdaClip, DPDynSSigma])
@pytest.mark.parametrize(
    "parameters",
    [
        {"clip": 0.0},
        {"clip": -4.0},
        {"clip": math.nan},
        {"clip": math.inf},
        {"noise_multiplier": -1.0},
        {"noise_multiplier": math.nan},
    ],
    ids=str,
)
def test_senseless_parameters_are_refused(kind: Any, parameters: dict[str, float]) -> None:
    with pytest.raises(LeakbenchError, match=next(iter(parameters))):
        kind(**parameters)


# ---------------------------------------------------------------------------- quantile clipping


def of_norms(norms: Tensor) -> Gradients:
    """One client whose examples have these norms in two tensors, the second twice as large."""
    value = norms[None, :, None] * torch.tensor([0.6, 0.8])
    return Gradients({"a": value, "b": 2 * value}, ("client", "example"))


TWO = {"a": torch.zeros(2), "b": torch.zeros(2)}


def test_one_quantile_update_by_hand() -> None:
    """C exp(-eta (b - gamma)) with b the share of norms under C; the noise is still that of C."""
    norms = torch.tensor([0.5, 1.0, 1.5, 2.5, 3.0])
    defense = QuantileClip(
        clip=2.0, noise_multiplier=3.0, quantile=0.4, learning_rate=0.7, count_noise=0.0,
        convention="mean", update="step",
    )  # fmt: skip
    here = Context(clients=(0,), batch_size=5, noise=NoiseStreams(1, ()))
    examples, state = defense.on_examples(of_norms(norms), defense.init(TWO), here)
    shown, after = defense.on_batch(examples.mean("example"), state, here)
    # Three of five norms of `a` are <= 2; those of `b` are doubled, two of five.
    assert float(after.clip["a"]) == pytest.approx(2 * math.exp(-0.7 * (0.6 - 0.4)), rel=1e-6)
    assert float(after.clip["b"]) == pytest.approx(2 * math.exp(-0.7 * (0.4 - 0.4)), rel=1e-6)
    expected = examples.tensors["a"].mean(dim=1) + 3.0 * 2.0 * NoiseStreams(1, ()).normal(
        "batch/a", 0, 0, 0, (2,)
    )
    torch.testing.assert_close(shown.tensors["a"], expected, rtol=1e-6, atol=1e-6)


def test_bounds_stand_still_in_a_round_and_move_at_its_end() -> None:
    """Two clients, three local steps: C exp(-eta (b - gamma)), b the mean of all six fractions."""
    norms = torch.tensor(
        [
            [[0.5, 1.0, 1.5, 2.5], [0.5, 2.5, 3.0, 3.5]],  # under 2: .75 and .25
            [[2.5, 2.5, 2.5, 2.5], [0.5, 0.5, 0.5, 0.5]],  # 0 and 1
            [[0.5, 0.5, 2.5, 2.5], [0.5, 0.5, 0.5, 3.0]],  # .5 and .75
        ]
    )
    defense = QuantileClip(
        clip=2.0, noise_multiplier=3.0, quantile=0.4, learning_rate=0.7, count_noise=0.0,
        convention="mean",
    )  # fmt: skip
    state = defense.init({"a": torch.zeros(2)})
    for iteration, each in enumerate(norms):
        here = Context(
            clients=(0, 1), batch_size=4, iteration=iteration, local_steps=3,
            noise=NoiseStreams(1, ()),
        )  # fmt: skip
        value = each[..., None] * torch.tensor([0.6, 0.8])
        given = Gradients({"a": value}, ("client", "example"))
        assert defense.noise_std("type1", WEIGHTS, defense.init(WEIGHTS), here) == pytest.approx(
            dict.fromkeys(WEIGHTS, 6.0 / math.sqrt(3))
        )
        examples, state = defense.on_examples(given, state, here)
        assert float(examples.norms()["a"].max()) == pytest.approx(2.0)
        shown, state = defense.on_batch(examples.mean("example"), state, here)
        assert bool((state.clip["a"] == 2.0).all())
        draw = NoiseStreams(1, ()).normal("batch/a", 1, 0, iteration, (2,))
        expected = examples.tensors["a"][1].mean(dim=0) + 6.0 * draw
        torch.testing.assert_close(shown.tensors["a"][1], expected, rtol=1e-5, atol=1e-5)
    assert defense.scales(state, here) == {
        "clip": 2.0, "noise_multiplier": 3.0, "sensitivity": 2.0,
    }  # fmt: skip
    mean = (0.75 + 0.25 + 0 + 1 + 0.5 + 0.75) / 6
    merged = defense.merge(state)
    assert float(merged.clip["a"]) == pytest.approx(2 * math.exp(-0.7 * (mean - 0.4)), rel=1e-5)
    assert merged.clip["a"].shape == () and defense.merge(merged) == merged


def test_one_step_a_round_is_a_round_a_step() -> None:
    """In central training, as in TIFS, both ways to move the bounds are one."""
    norms = torch.tensor([0.5, 1.0, 1.5, 2.5, 3.0])
    here = Context(clients=(0,), batch_size=5, noise=NoiseStreams(1, ()))
    found = []
    for update in ("round", "step"):
        defense = QuantileClip(clip=2.0, update=update)  # type: ignore[arg-type]
        examples, state = defense.on_examples(of_norms(norms), defense.init(TWO), here)
        shown, state = defense.on_batch(examples.mean("example"), state, here)
        found.append((shown, defense.merge(state).clip))
        assert defense.scales(state, here)["clip"] == 2.0
    assert equal(found[0][0], found[1][0])
    for name, bound in found[0][1].items():
        assert float(bound) == pytest.approx(float(found[1][1][name]), rel=1e-6)
        assert float(bound) != 2.0


def test_count_noise_enters_the_fraction() -> None:
    norms = torch.tensor([0.5, 1.0, 1.5, 2.5, 3.0])
    defense = QuantileClip(clip=2.0, count_noise=0.1)
    here = Context(clients=(0,), batch_size=5, noise=NoiseStreams(1, ()))
    _, state = defense.on_examples(of_norms(norms), defense.init(TWO), here)
    # Centred indicators sum to 3/2 - 2/2; std 0.1 * 5; expected batch size 5.
    draw = float(here.noise.normal("count/a", 0, 0, 0, ()))  # type: ignore[union-attr]
    expected = min(max((0.5 + 0.5 * draw) / 5 + 0.5, 0.0), 1.0)
    assert float(state.fraction["a"][0]) == pytest.approx(expected, rel=1e-5)


def run_quantile(defense: QuantileClip, draws: Tensor, batch_size: int) -> Bounds:
    state = defense.init(TWO)
    for iteration, norms in enumerate(draws):
        here = Context(
            clients=(0,), batch_size=batch_size, iteration=iteration, noise=NoiseStreams(2, ())
        )
        examples, state = defense.on_examples(of_norms(norms), state, here)
        _, state = defense.on_batch(examples.mean("example"), state, here)
    return state


@pytest.mark.parametrize("quantile", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("start", [0.1, 40.0])
def test_bound_converges_to_the_quantile(quantile: float, start: float) -> None:
    """Norms are log-normal, exp(N(0, 0.5^2)): the quantiles are known exactly."""
    generator = torch.Generator().manual_seed(11)
    draws = (0.5 * torch.randn(300, 500, generator=generator)).exp()
    defense = QuantileClip(
        clip=start, noise_multiplier=0.0, quantile=quantile, learning_rate=0.1, count_noise=0.005,
        update="step",
    )  # fmt: skip
    state = run_quantile(defense, draws, 500)
    expected = math.exp(0.5 * float(torch.special.ndtri(torch.tensor(quantile))))
    assert float(state.clip["a"]) == pytest.approx(expected, rel=0.05)
    assert float(state.clip["b"]) == pytest.approx(2 * expected, rel=0.05)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bounds_keep_their_type(dtype: torch.dtype) -> None:
    norms = torch.tensor([0.5, 1.0, 3.0], dtype=dtype)
    wide = of_norms(norms).map(lambda _, value: value.to(dtype))
    defense = QuantileClip(clip=2.0)
    state = defense.init({k: v.to(dtype) for k, v in TWO.items()})
    here = Context(clients=(0,), batch_size=3, noise=NoiseStreams(1, ()))
    examples, state = defense.on_examples(wide, state, here)
    _, state = defense.on_batch(examples.mean("example"), state, here)
    assert {value.dtype for value in state.clip.values()} == {dtype}


def test_padding_is_not_counted() -> None:
    """Of five places three are taken: their indicators alone count, over the expected five."""
    norms = torch.tensor([0.5, 1.0, 3.0, 0.1, torch.nan])
    masked = replace(of_norms(norms), mask=torch.tensor([[True, True, True, False, False]]))
    defense = QuantileClip(clip=2.0, count_noise=0.0)
    here = Context(clients=(0,), batch_size=5, noise=NoiseStreams(1, ()))
    _, state = defense.on_examples(masked, defense.init(TWO), here)
    assert float(state.fraction["a"][0]) == pytest.approx(0.5 + (0.5 + 0.5 - 0.5) / 5)


# ---------------------------------------------------------------------------- AdaCliP


def test_adaclip_transform_inverts(gradients: Gradients) -> None:
    """Under the bound and without noise the gradient comes back, whatever m and b are."""
    generator = torch.Generator().manual_seed(4)
    state = Moments(
        mean={k: torch.randn(1, *v.shape, generator=generator) for k, v in WEIGHTS.items()},
        std={k: 10 + torch.rand(1, *v.shape, generator=generator) for k, v in WEIGHTS.items()},
    )
    shown, _ = AdaClip(noise_multiplier=0.0).on_examples(gradients, state, context())
    close(shown, arrays(gradients), 1e-5)


def test_adaclip_begins_as_flat_clipping(gradients: Gradients) -> None:
    defense = AdaClip(clip=4.0, noise_multiplier=0.0)
    shown, _ = defense.on_examples(gradients, defense.init(WEIGHTS), context())
    close(shown, arrays(clip_flat(gradients, 4.0)), 1e-5)


@pytest.mark.parametrize(
    ("convention", "factor"), [("per_example", SIZE**-0.5), ("mean", 1.0), ("sum", 1 / SIZE)]
)
def test_adaclip_begins_with_noise_sigma_clip(
    gradients: Gradients, convention: NoiseConvention, factor: float
) -> None:
    shown = []
    for sigma in (6.0, 0.0):
        defense = AdaClip(clip=4.0, noise_multiplier=sigma, convention=convention)
        examples, state = defense.on_examples(gradients, defense.init(WEIGHTS), context())
        shown.append(defense.on_batch(examples.mean("example"), state, context())[0])
    noise = shown[0].flatten() - shown[1].flatten()
    assert noise.numel() >= 10_000
    assert pooled_std(noise) == pytest.approx(24 * factor, rel=0.03)


def test_adaclip_begins_as_its_reference(gradients: Gradients) -> None:
    """s = sqrt(1e-5 1e-3) = 1e-4 in all d coordinates: b = 1e-4 sqrt(d), noise 6 b, whatever C."""
    size = sum(v.numel() for v in WEIGHTS.values())
    scale = 1e-4 * math.sqrt(size)
    assert scale == pytest.approx(0.013, abs=1e-4)
    shown = []
    for sigma, clip in ((6.0, 4.0), (0.0, 1.0)):
        defense = AdaClip(start="reference", clip=clip, noise_multiplier=sigma)
        state = defense.init(WEIGHTS)
        assert defense.scales(state, context())["clip"] == pytest.approx(scale, rel=1e-5)
        shown.append(defense.on_examples(gradients, state, context())[0])
    close(shown[1], arrays(clip_flat(gradients, scale)), 1e-5)
    noise = shown[0].flatten() - shown[1].flatten()
    assert pooled_std(noise) == pytest.approx(6 * scale, rel=0.03)


def test_adaclip_says_the_scale_of_the_step_and_not_of_the_next(gradients: Gradients) -> None:
    defense = AdaClip(clip=4.0)
    examples, state = defense.on_examples(gradients, defense.init(WEIGHTS), context())
    _, state = defense.on_batch(examples.mean("example"), state, context())
    said = defense.scales(state, context())
    assert said == pytest.approx({"clip": 4.0, "noise_multiplier": 6.0, "sensitivity": 4.0})
    moved = torch.cat([b.flatten(1) for b in state.scale().values()], dim=1)
    assert float(moved.square().mean().sqrt()) < 3.9


def test_one_adaclip_update_by_hand(gradients: Gradients) -> None:
    defense = AdaClip(clip=4.0, noise_multiplier=0.02, mean_decay=0.9, variance_decay=0.8)
    before = defense.init(WEIGHTS)
    examples, _ = defense.on_examples(gradients, before, context())
    shown, after = defense.on_batch(examples.mean("example"), before, context())
    size = sum(v.numel() for v in WEIGHTS.values())
    for name, value in arrays(shown).items():
        variance = value**2 - (0.02 * 4.0) ** 2 / SIZE
        expected = 0.8 * (4.0**2 / size) + 0.2 * np.clip(variance, 1e-5, 1e-3)
        found = after.std[name].double().numpy()
        np.testing.assert_allclose(found**2, expected, rtol=1e-5)
        np.testing.assert_allclose(after.mean[name], 0.1 * value, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("convention", ["mean", "sum"])
def test_adaclip_variance_estimate_converges(convention: NoiseConvention) -> None:
    """Batch means are N(2, 0.3^2): m and s^2 settle there.

    The estimator alone: with clipping in front of it s follows its own bound down. The noise is
    small beside 0.3, for where v is cut off at h1 the estimate is biased upwards.
    """
    generator = torch.Generator().manual_seed(5)
    weights = {"a": torch.zeros(2000), "b": torch.zeros(10, 20)}
    defense = AdaClip(
        clip=math.sqrt(2200), noise_multiplier=1e-3, mean_decay=0.98, variance_decay=0.98,
        variance_min=1e-9, variance_max=100.0, convention=convention,
    )  # fmt: skip
    state = defense.init(weights)
    for iteration in range(500):
        here = Context(clients=(0,), batch_size=2, iteration=iteration, noise=NoiseStreams(3, ()))
        means = {
            k: 2 + 0.3 * torch.randn(1, *v.shape, generator=generator) for k, v in weights.items()
        }
        _, state = defense.on_batch(Gradients(means, ("client",)), state, here)
    for name in weights:
        assert float(state.mean[name].mean()) == pytest.approx(2, rel=0.02)
        # (g - m)^2 holds the scatter of m too: factor 1 + (1 - beta1) / (1 + beta1).
        variance = 0.09 * (1 + 0.02 / 1.98)
        assert float(state.std[name].square().mean()) == pytest.approx(variance, rel=0.05)


# ---------------------------------------------------------------------------- l2-max sensitivity


def test_largest_norm_by_hand(gradients: Gradients) -> None:
    defense = DPDynSSigma(clip=1.5)
    _, largest = defense.on_examples(gradients, defense.init(WEIGHTS), context())
    norms = np.stack([norms_by_hand(value) for value in arrays(gradients).values()])
    expected = np.minimum(norms, 1.5).max(axis=(0, 2))
    np.testing.assert_allclose(largest.numpy(), expected, rtol=1e-6)


def test_largest_norm_under_the_bound_sets_the_noise(gradients: Gradients) -> None:
    """With C above every norm S is the largest norm itself, a client each."""
    defense = DPDynSSigma(clip=1000.0, clip_end=500.0)
    small = gradients.scale(torch.tensor([[1.0], [0.1]]).expand(CLIENTS, SIZE))
    shown, largest = defense.on_examples(small, defense.init(WEIGHTS), context())
    noise = shown.flatten() - small.flatten()
    for client in range(CLIENTS):
        expected = max(float(norm[client].max()) for norm in small.norms().values())
        assert float(largest[client]) == pytest.approx(expected, rel=1e-6)
        assert pooled_std(noise[client]) == pytest.approx(6.0 * expected, rel=0.03)


@pytest.mark.parametrize("convention", ["mean", "sum"])
def test_largest_norm_sets_the_noise_on_the_batch(
    gradients: Gradients, convention: NoiseConvention
) -> None:
    defense = DPDynSSigma(convention=convention)
    examples, state = defense.on_examples(gradients, defense.init(WEIGHTS), context())
    mean = examples.mean("example")
    shown, _ = defense.on_batch(mean, state, context())
    noise = shown.flatten() - mean.flatten()
    share = 1.0 if convention == "mean" else 1 / SIZE
    for client in range(CLIENTS):
        expected = 6.0 * float(state[client]) * share
        assert pooled_std(noise[client]) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize(
    ("round_", "bound", "sigma"), [(0, 4.0, 6.0), (50, 3.0, 5.425), (100, 2.0, 4.85)]
)
def test_bound_and_scale_decay_linearly(
    gradients: Gradients, round_: int, bound: float, sigma: float
) -> None:
    defense = DPDynSSigma()
    here = context(round=round_, total=100)
    large = gradients.map(lambda _, value: 100 * value)
    shown, largest = defense.on_examples(large, defense.init(WEIGHTS), here)
    silent, _ = defense.on_examples(large, defense.init(WEIGHTS), replace(here, noise=None))
    np.testing.assert_allclose(largest.numpy(), bound, rtol=1e-6)
    noise = shown.flatten() - silent.flatten()
    assert pooled_std(noise) == pytest.approx(sigma * bound, rel=0.03)


def test_padding_does_not_set_the_noise(gradients: Gradients) -> None:
    mask = torch.ones(CLIENTS, SIZE, dtype=torch.bool)
    mask[:, -3:] = False
    spoilt = gradients.map(
        lambda _, value: torch.where(gradients.expand(mask, value), value, torch.nan)
    )
    defense = DPDynSSigma(clip=1000.0, clip_end=500.0)
    _, largest = defense.on_examples(replace(spoilt, mask=mask), defense.init(WEIGHTS), context())
    kept = torch.stack([norm[:, :-3] for norm in gradients.norms().values()])
    torch.testing.assert_close(largest, kept.amax(dim=(0, 2)))


def test_nan_reaches_every_coordinate_of_its_client_only(gradients: Gradients) -> None:
    spoilt = gradients.map(lambda _, value: value.clone())
    spoilt.tensors["conv1.bias"][0, 3, 2] = torch.nan
    shown, _ = DPDynSSigma().on_examples(spoilt, DPDynSSigma().init(WEIGHTS), context())
    assert bool(shown.flatten()[0].isnan().all())
    assert bool(shown.flatten()[1].isfinite().all())


# ---------------------------------------------------------------------------- all of them


ALL: list[Defense] = [
    NoDefense(),
    DPBaseline(),
    QuantileClip(),
    AdaClip(),
    DPDynSSigma(),
    *(DPBaseline(convention=c) for c in ("mean", "sum")),
    *(AdaClip(convention=c) for c in ("mean", "sum")),
]


@pytest.mark.parametrize("defense", ALL, ids=str)
def test_clients_do_not_touch_each_other_over_iterations(
    gradients: Gradients, defense: Defense
) -> None:
    """Two iterations of two clients at once are two iterations of each alone."""

    def shown(rows: Tensor, clients: tuple[int, ...]) -> list[Gradients]:
        state, found = defense.init(WEIGHTS), []
        for iteration in (0, 1):
            here = context(clients=clients, iteration=iteration)
            examples, state = defense.on_examples(gradients.select(rows), state, here)
            batch, state = defense.on_batch(examples.mean("example"), state, here)
            found += [examples, batch]
        return found

    together = shown(torch.tensor([0, 1]), (0, 1))
    for client in (0, 1):
        alone = shown(torch.tensor([client]), (client,))
        for one, both in zip(alone, together, strict=True):
            close(one, {k: v[[client]].double() for k, v in both.tensors.items()}, 1e-5)
