"""Clipping and noise on a client's whole update: ModelCloak, and what it shares with Fed-SDP."""

import math
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from leakbench import data, registry
from leakbench.architectures import build
from leakbench.contracts import Context, Defense, Gradients, LeakPoint, Observer, Setting
from leakbench.defenses.fed_sdp import FedSDPClient
from leakbench.defenses.model_cloak import ModelCloak, ModelCloakDynamic, ModelCloakDynamicSigma
from leakbench.errors import LeakbenchError
from leakbench.gradients import per_example
from leakbench.privacy import account
from leakbench.privacy.gdp import epsilon_of_mu
from leakbench.streams import NoiseStreams, generator
from leakbench.suite import complete
from leakbench.testing import check_defense
from leakbench.training import Batch, capture, run_round

MODEL = build("lenet_cpl", (1, 28, 28), 10)
WEIGHTS = MODEL.init(generator(3, "weights"), torch.float32)
CLIENTS, SIZE, RATE = 3, 4, 0.1
OBSERVERS: tuple[Observer, ...] = get_args(Observer)
BEHIND = {"model", "server", "type0", "type0_raw", "type1"}

ALL: list[Defense] = [
    *(ModelCloak(unit=unit) for unit in ("flat", "tensor")),
    *(ModelCloakDynamic(keep=keep) for keep in ("variance", "scale")),
    ModelCloakDynamic(keep="scale", unit="tensor"),
    ModelCloakDynamicSigma(),
    ModelCloakDynamicSigma(decay="staircase", decay_rate=0.05, decay_steps=5),
]


def digits(steps: int = 1) -> list[Batch]:
    """Real digits for every client and local step."""
    dataset, shape = data.load("mnist"), (steps, CLIENTS, SIZE)
    images = dataset.candidates[: math.prod(shape)].reshape(*shape, 1, 28, 28)
    labels = dataset.candidate_labels[: math.prod(shape)].reshape(shape)
    return [Batch(inputs=images[step], labels=labels[step]) for step in range(steps)]


@pytest.fixture(scope="module")
def update() -> Gradients:
    """The clients' dW after one step on their digits; the third client's is a hundredth."""
    (batch,) = digits()
    mean = per_example(MODEL, WEIGHTS, batch.inputs, batch.labels).mean("example")
    return mean.map(lambda _, value: -RATE * value).scale(torch.tensor([1.0, 1.0, 0.01]))


def context(**changes: Any) -> Context:
    base = Context(
        batch_size=SIZE, clients=tuple(range(CLIENTS)), noise=NoiseStreams(7, ()),
        learning_rate=RATE,
    )  # fmt: skip
    return replace(base, **changes)


def released(defense: Defense, update: Gradients, here: Context) -> tuple[Gradients, Any]:
    weights = {name: value[0] for name, value in update.tensors.items()}
    return defense.on_update(update, defense.init(weights), here)


def equal(one: Gradients, other: Gradients) -> bool:
    return all(torch.equal(value, other.tensors[name]) for name, value in one.tensors.items())


def norms(update: Gradients, unit: str) -> NDArray[np.float64]:
    """S of every client by plain loops in float64: of all coordinates, or of the largest tensor."""
    squares = np.array(
        [
            [math.fsum(x * x for x in row) for row in value.flatten(1).double().tolist()]
            for value in update.tensors.values()
        ]
    )
    found: NDArray[np.float64] = np.sqrt(squares.sum(axis=0) if unit == "flat" else squares.max(0))
    return found


# ---------------------------------------------------------------------------- noise


ROWS = {"one tensor": {"a": (100, 100)}, "two tensors": {"a": (60, 100), "b": (4000,)}}
"""An update of 10,000 coordinates."""


def of_norm(norm: float, shapes: dict[str, tuple[int, ...]]) -> Gradients:
    ones = {name: torch.ones(1, *shape) for name, shape in shapes.items()}
    total = math.sqrt(sum(value.numel() for value in ones.values()))
    return Gradients({k: v * (norm / total) for k, v in ones.items()}, ("client",))


def noise_of(defense: Defense, given: Gradients, clipped: Tensor | float, **changes: Any) -> float:
    """Std of what is added, over 10,000 coordinates; `clipped` is the value before it."""
    shown, _ = released(defense, given, context(clients=(0,), **changes))
    assert shown.flatten().numel() == 10_000
    return float((shown.flatten() - clipped).double().square().mean().sqrt())


@pytest.mark.parametrize("shapes", ROWS.values(), ids=ROWS.keys())
def test_noise_on_ten_thousand_coordinates_has_std_sigma_clip(shapes: Any) -> None:
    """C = 2, sigma = 5: 10 whatever the update is; an update of norm 9 is scaled to norm 2."""
    for norm in (0.0, 0.5, 9.0):
        value = min(norm, 2.0) / 100
        assert noise_of(ModelCloak(), of_norm(norm, shapes), value) == pytest.approx(10, rel=0.03)


@pytest.mark.parametrize("shapes", ROWS.values(), ids=ROWS.keys())
@pytest.mark.parametrize(("norm", "largest"), [(9.0, 2.0), (0.5, 0.5), (0.0, 0.0)])
def test_dynamic_noise_follows_the_norm_or_keeps_the_variance(
    shapes: Any, norm: float, largest: float
) -> None:
    given = of_norm(norm, shapes)
    kept, scaled = (ModelCloakDynamic(keep=keep) for keep in ("variance", "scale"))
    assert noise_of(kept, given, largest / 100) == pytest.approx(10, rel=0.03)
    assert noise_of(scaled, given, largest / 100) == pytest.approx(5 * largest, rel=0.03, abs=1e-6)
    falling = ModelCloakDynamicSigma(noise_multiplier=6.0, noise_multiplier_end=2.0)
    for t, sigma in ((0, 6.0), (25, 5.0), (75, 3.0)):
        found = noise_of(falling, given, largest / 100, round=t, total=100)
        assert found == pytest.approx(sigma * largest, rel=0.03, abs=1e-6)


def test_dynamic_noise_that_keeps_the_variance_is_the_fixed_one(update: Gradients) -> None:
    """sigma_dyn S = sigma C whatever S is: bit for bit the same release."""
    for unit in ("flat", "tensor"):
        for given in (update, update.map(lambda _, value: 0 * value)):
            fixed, _ = released(ModelCloak(unit=unit), given, context())
            kept, _ = released(ModelCloakDynamic(unit=unit), given, context())
            assert equal(fixed, kept)


def test_fed_sdp_by_the_whole_update_is_model_cloak(update: Gradients) -> None:
    """One mechanism: with the same C, sigma and unit both release the same."""
    for unit in ("flat", "tensor"):
        cloak = ModelCloak(clip=0.02, noise_multiplier=3.0, unit=unit)
        sdp = FedSDPClient(clip=0.02, noise_multiplier=3.0, unit=unit)
        assert equal(released(cloak, update, context())[0], released(sdp, update, context())[0])


# ---------------------------------------------------------------------------- clipping


@pytest.mark.parametrize("unit", ["flat", "tensor"])
@pytest.mark.parametrize("clip", [0.02, 0.1, 50.0])
def test_updates_are_clipped_to_the_bound(update: Gradients, clip: float, unit: Any) -> None:
    found, _ = released(ModelCloak(clip=clip, noise_multiplier=0.0, unit=unit), update, context())
    before = norms(update, "flat")
    if unit == "flat":
        factors = np.minimum(1, clip / before)
        for name, value in update.tensors.items():
            expected = value.double().numpy() * factors.reshape(-1, *[1] * (value.ndim - 1))
            np.testing.assert_allclose(found.tensors[name], expected, rtol=1e-5, atol=1e-9)
    assert norms(found, unit).max() <= clip * (1 + 1e-6)
    under = torch.from_numpy(before <= clip)
    assert all(torch.equal(v[under], update.tensors[k][under]) for k, v in found.tensors.items())
    assert bool(under.any())


@pytest.mark.parametrize("unit", ["flat", "tensor"])
@pytest.mark.parametrize("clip", [0.1, 1000.0])
def test_largest_norm_by_hand(update: Gradients, unit: Any, clip: float) -> None:
    for defense in (
        ModelCloakDynamic(clip=clip, unit=unit),
        ModelCloakDynamicSigma(clip=clip, unit=unit),
    ):
        _, largest = released(defense, update, context())
        expected = np.minimum(norms(update, unit), clip)
        np.testing.assert_allclose(largest.numpy(), expected, rtol=1e-5)
        assert expected[0] > 4 * expected[2]  # every client has his own
        assert float(defense.merge(largest)) == 0.0


def test_values_that_are_not_finite(update: Gradients) -> None:
    """They reach all that is clipped together, and no other client."""
    for bad in (math.nan, math.inf):
        spoilt = update.map(lambda _, value: value.clone())
        spoilt.tensors["conv1.bias"][0, 2] = bad
        for defense in ALL:
            shown, clean = (released(defense, each, context())[0] for each in (spoilt, update))
            assert equal(shown.select(torch.tensor([1, 2])), clean.select(torch.tensor([1, 2])))
            lost = {name: bool(value[0].isnan().any()) for name, value in shown.tensors.items()}
            assert lost.pop("conv1.bias")
            apart = getattr(defense, "unit", "") == "tensor" and isinstance(defense, ModelCloak)
            if apart:
                assert not any(lost.values())
            elif math.isnan(bad):
                assert all(lost.values())


# ---------------------------------------------------------------------------- place


@pytest.mark.parametrize("steps", [1, 3])
def test_what_leaves_the_client_is_noisy_and_local_training_is_bare(steps: int) -> None:
    """Types 0 and 1 see the noise, and the same; type 2 sees what undefended training shows."""

    class Bare(Defense):
        name = "bare"

    def tap(defense: Defense, point: LeakPoint) -> Gradients:
        victims = torch.tensor([[0, 0], [2, 1]]) if str(point) == "type2/example" else None
        state = defense.init(WEIGHTS)
        here = context(local_steps=steps)
        return capture(
            MODEL, WEIGHTS, digits(steps), defense, here, point, victims,
            state=state, learning_rate=RATE,
        )  # fmt: skip

    for defense in (ModelCloak(), ModelCloakDynamic(keep="scale")):
        for inside in (LeakPoint(), LeakPoint(view="batch"), LeakPoint(iteration=steps - 1)):
            assert equal(tap(defense, inside), tap(Bare(), inside))
        sent, raw, held = (
            tap(defense, point)
            for point in (LeakPoint(type=1), LeakPoint(type=0, view="raw"), LeakPoint(type=0))
        )
        assert equal(sent, raw) and equal(sent, held)
        bare = tap(Bare(), LeakPoint(type=1))
        assert not any(bool((v == bare.tensors[k]).any()) for k, v in sent.tensors.items())


def test_model_holds_the_mean_of_noisy_updates() -> None:
    """sigma C / sqrt(Kt) a coordinate of the weights."""
    moved = []
    for sigma in (5.0, 0.0):
        defense = ModelCloak(clip=0.05, noise_multiplier=sigma)
        done = run_round(MODEL, WEIGHTS, digits(), defense, None, context(), learning_rate=RATE)
        assert done.weights is not None
        moved.append(torch.cat([value.flatten() for value in done.weights.values()]).double())
    assert len(moved[0]) >= 10_000
    std = float((moved[0] - moved[1]).std())
    assert std == pytest.approx(5 * 0.05 / math.sqrt(CLIENTS), rel=0.03)


@pytest.mark.parametrize("defense", ALL, ids=repr)
def test_published_noise_is_in_the_units_of_a_gradient(defense: Any) -> None:
    """Noise on dW over L * learning rate; none is published where S sets it."""
    here = context(local_steps=4)
    state = defense.init(WEIGHTS)
    for observer in OBSERVERS:
        found = defense.noise_std(observer, WEIGHTS, state, here)
        fixed = isinstance(defense, ModelCloak) or getattr(defense, "keep", "") == "variance"
        if observer == "model" or not fixed:
            assert found is None
        else:
            std = 10 / (4 * RATE) if observer in BEHIND else 0.0
            assert found == pytest.approx(dict.fromkeys(WEIGHTS, std), rel=1e-12)


# ---------------------------------------------------------------------------- promises


@pytest.mark.parametrize("unit", ["flat", "tensor"])
def test_a_client_is_promised_one_release_a_round(unit: Any) -> None:
    """C = 2, sigma = 5, Kt = 10 of 100: 1 / sigma a client, that over sqrt(10) in the mean; with
    10 tensors clipped apart sqrt(10) times as much."""
    setting = Setting(
        batch_size=5, local_steps=100, clients=10, all_clients=100, examples=500, rounds=60
    )
    defense, apart = ModelCloak(unit=unit), math.sqrt(10) if unit == "tensor" else 1.0
    for observer in OBSERVERS:
        promise = defense.guarantee(observer, WEIGHTS, setting)
        if observer not in BEHIND:
            assert promise.level == "none" and "after the tap" in promise.reason
            continue
        clients = 10 if observer == "model" else 1
        assert (promise.level, promise.unit) == ("client", unit)
        assert promise.tensors == (10 if unit == "tensor" else 1)
        assert promise.sensitivity == pytest.approx(2 * apart / clients, rel=1e-12)
        assert promise.noise_std == pytest.approx(10 / math.sqrt(clients), rel=1e-12)
        assert "private data, not accounted for" in promise.assumptions[-1]
    (event,) = defense.events(WEIGHTS, setting)
    assert event.noise_multiplier == pytest.approx(5 * math.sqrt(10) / apart, rel=1e-12)
    assert (event.sampling_rate, event.steps) == (0.1, 60)
    silent = replace(defense, noise_multiplier=0.0)
    assert silent.guarantee("type1", WEIGHTS, setting).reason == "no noise is added"
    assert silent.events(WEIGHTS, setting) == ()


def test_epsilon_of_one_update_of_a_client() -> None:
    """Who taps one update of one client: the Gaussian mechanism's own epsilon, mu = 1 / sigma."""
    setting = Setting(batch_size=5, local_steps=100, examples=500, sampling="poisson")
    for sigma in (1.0, 5.0):
        defense = ModelCloak(noise_multiplier=sigma)
        assert defense.guarantee("type1", WEIGHTS, setting).mu == pytest.approx(1 / sigma)
        spent = account.epsilon(
            defense.events(WEIGHTS, setting), 1e-5, relation="add_remove", level="client"
        )
        assert spent.epsilon == pytest.approx(epsilon_of_mu(1 / sigma, 1e-5), rel=0.01)


@pytest.mark.parametrize("defense", ALL[2:], ids=repr)
def test_noise_from_private_norms_promises_nothing(defense: Defense) -> None:
    for observer in OBSERVERS:
        found = defense.guarantee(observer, WEIGHTS, Setting(batch_size=5, rounds=10))
        assert found.level == "none" and "private gradients" in found.reason
    assert defense.events(WEIGHTS, Setting(batch_size=5, rounds=10)) == ()


# ---------------------------------------------------------------------------- logs


def test_scales_say_what_a_round_used(update: Gradients) -> None:
    here = context(round=25, total=100)
    assert ModelCloak().scales(None, here) == {
        "clip": 2.0, "noise_multiplier": 5.0, "sensitivity": 2.0,
    }  # fmt: skip
    expected = float(np.minimum(norms(update, "flat"), 2.0).mean())
    for keep in ("variance", "scale"):
        defense = ModelCloakDynamic(keep=keep)
        _, state = released(defense, update, here)
        said = defense.scales(state, here)
        assert said["sensitivity"] == pytest.approx(expected, rel=1e-5)
        dynamic = float((10 / np.minimum(norms(update, "flat"), 2.0)).mean())
        assert said["noise_multiplier"] == pytest.approx(
            dynamic if keep == "variance" else 5.0, rel=1e-5
        )
    falling = ModelCloakDynamicSigma(noise_multiplier=6.0, noise_multiplier_end=2.0)
    _, state = released(falling, update, here)
    assert falling.scales(state, here)["noise_multiplier"] == pytest.approx(5.0)


# ---------------------------------------------------------------------------- as plugins


@pytest.mark.parametrize("defense", ALL, ids=repr)
def test_contract(defense: Defense) -> None:
    check_defense(defense)


@pytest.mark.parametrize("kind", [ModelCloak, ModelCloakDynamic, ModelCloakDynamicSigma])
def test_registered_and_settable_by_a_suite(kind: Any) -> None:
    assert registry.load("defenses", kind.name) is kind
    given = {"clip": 3.0, "noise_multiplier": 2.0, "unit": "tensor"}
    assert kind(**given) == kind(**complete(kind, given, "test"))


@pytest.mark.parametrize(
    ("kind", "changes", "text"),
    [
        *(
            (kind, changes, text)
            for kind in (ModelCloak, ModelCloakDynamic, ModelCloakDynamicSigma)
            for changes, text in (
                ({"clip": 0.0}, "clip must be positive and finite, got 0.0"),
                ({"noise_multiplier": -1.0}, "noise_multiplier must be >= 0 and finite"),
                ({"unit": "layer"}, "unit must be one of flat, tensor, got 'layer'"),
            )
        ),
        (ModelCloakDynamic, {"keep": "norm"}, "keep must be one of variance, scale, got 'norm'"),
        (ModelCloakDynamicSigma, {"decay_steps": 0}, "decay_steps must be at least 1"),
        (ModelCloakDynamicSigma, {"decay_cycles": 0}, "decay_cycles must be at least 1"),
        (
            ModelCloakDynamicSigma,
            {"decay": "cyclic", "decay_rate": 0.1},
            "decay 'cyclic': has no rate; allowed with a rate: linear, staircase, exponential",
        ),
    ],
)
def test_bad_parameters_are_refused_in_a_sentence(kind: Any, changes: Any, text: str) -> None:
    with pytest.raises(LeakbenchError, match=text):
        kind(**changes)
