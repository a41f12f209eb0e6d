"""The per-example Gaussian family: decays, largest-norm sensitivity, guarantees and releases."""

import math
from collections import Counter
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from leakbench import data, registry
from leakbench.architectures import build
from leakbench.contracts import Context, Defense, Gradients, NoiseConvention, Observer, Setting
from leakbench.defenses.dp_baseline import DPBaseline
from leakbench.defenses.dp_dyn import (
    DPDynS,
    DPDynSCDecay,
    DPDynSCDecaySigma,
    DPDynSigma,
    DPDynSL2Max,
    DPDynSL2MaxSigma,
    DPDynSSigma,
)
from leakbench.defenses.fed_alpha_cdp import FedAlphaCDP, FedAlphaCDPSigma
from leakbench.defenses.fed_cdp import FedCDP, FedCDPDecay
from leakbench.errors import LeakbenchError
from leakbench.gaussian import ExampleGaussian
from leakbench.gradients import per_example
from leakbench.streams import NoiseStreams, generator
from leakbench.suite import complete
from leakbench.testing import check_defense

MODEL = build("lenet_cpl", (1, 28, 28), 10)
WEIGHTS = MODEL.init(generator(3, "weights"), torch.float32)
SIZE, CLIENTS = 20, 2
CONVENTIONS: tuple[NoiseConvention, ...] = get_args(NoiseConvention)

# S = C_t: a guarantee.
BOUNDED = [DPBaseline, FedCDP, DPDynSCDecay, DPDynSigma, DPDynSCDecaySigma, FedCDPDecay]
# S = the largest norm: none.
LARGEST = [DPDynSL2Max, DPDynS, DPDynSL2MaxSigma, DPDynSSigma, FedAlphaCDP, FedAlphaCDPSigma]
ALL: list[Any] = [*BOUNDED, *LARGEST]
IDS = [kind.name for kind in ALL]

# Kind, its parameters -> (C_t, sigma_t) at t = 0, T/2 and T.
COURSES: list[tuple[Any, dict[str, Any], list[tuple[float, float]]]] = [
    (DPBaseline, {}, [(4, 6), (4, 6), (4, 6)]),
    (FedCDP, {}, [(4, 6), (4, 6), (4, 6)]),
    (DPDynSCDecay, {}, [(4, 6), (3, 6), (2, 6)]),
    (DPDynSCDecay, {"decay": "exponential"}, [(4, 6), (math.sqrt(8), 6), (2, 6)]),
    (DPDynSCDecay, {"decay": "cyclic"}, [(4, 6), (3, 6), (2, 6)]),
    (DPDynSL2Max, {}, [(4, 6), (4, 6), (4, 6)]),
    (DPDynS, {}, [(4, 6), (3, 6), (2, 6)]),
    (DPDynSigma, {}, [(4, 6), (4, 5.425), (4, 4.85)]),
    (DPDynSigma, {"decay": "exponential"}, [(4, 6), (4, math.sqrt(6 * 4.85)), (4, 4.85)]),
    (DPDynSCDecaySigma, {}, [(4, 6), (3, 5.425), (2, 4.85)]),
    (DPDynSL2MaxSigma, {"decay": "cyclic"}, [(4, 6), (4, 5.425), (4, 4.85)]),
    (DPDynSSigma, {}, [(4, 6), (3, 5.425), (2, 4.85)]),
    (FedCDPDecay, {}, [(6, 6), (4, 6), (2, 6)]),
    (FedAlphaCDP, {}, [(4, 6), (4, 6), (4, 6)]),
    (FedAlphaCDPSigma, {}, [(4, 15), (4, 9.925), (4, 4.85)]),
    (FedAlphaCDPSigma, {"decay": "staircase"}, [(4, 15), (4, 9.925), (4, 4.85)]),
    (FedAlphaCDPSigma, {"decay": "exponential"}, [(4, 15), (4, math.sqrt(72.75)), (4, 4.85)]),
    (FedAlphaCDPSigma, {"decay": "cyclic"}, [(4, 15), (4, 15), (4, 4.85)]),
]
COURSE_IDS = [f"{kind.name}-{'-'.join(changes.values())}" for kind, changes, _ in COURSES]


@pytest.fixture(scope="module")
def gradients() -> Gradients:
    """Of 20 real digits for each of two clients; the dense layer is above C = 1, biases vary."""
    dataset = data.load("mnist")
    images = dataset.candidates[: CLIENTS * SIZE].reshape(CLIENTS, SIZE, 1, 28, 28)
    labels = dataset.candidate_labels[: CLIENTS * SIZE].reshape(CLIENTS, SIZE)
    return per_example(MODEL, WEIGHTS, images, labels)


def context(**changes: Any) -> Context:
    """Two clients with noise."""
    base = Context(batch_size=SIZE, clients=(0, 1), noise=NoiseStreams(7, ("mnist",)))
    return replace(base, **changes)


def silent(kind: Any, **changes: Any) -> Defense:
    """The same defense with sigma = 0."""
    quiet = {"noise_multiplier": 0.0}
    if hasattr(kind(), "noise_multiplier_end"):
        quiet["noise_multiplier_end"] = 0.0
    defense: Defense = kind(**quiet, **changes)
    return defense


def through(
    defense: Defense, gradients: Gradients, here: Context
) -> tuple[Gradients, Gradients, Any]:
    """What the example tap and the batch tap see, and the state after."""
    weights = {k: v[0, 0] for k, v in gradients.tensors.items()}
    examples, state = defense.on_examples(gradients, defense.init(weights), here)
    batch, state = defense.on_batch(examples.mean("example"), state, here)
    return examples, batch, state


def noise_follows_norm(defense: Defense) -> bool:
    """Whether S is the largest norm in the noise that is added, not only in the accounts."""
    return type(defense) in LARGEST


def scaled(gradients: Gradients, norms: Tensor) -> Gradients:
    """Every tensor brought to the norm of its example, (clients, examples)."""
    return gradients.scale({k: norms / norm for k, norm in gradients.norms().items()})


def pooled_std(value: Tensor) -> float:
    return float(value.double().square().mean().sqrt())


def equal(one: Gradients, other: Gradients) -> bool:
    return all(torch.equal(value, other.tensors[name]) for name, value in one.tensors.items())


def norms_by_hand(value: Tensor) -> NDArray[np.float64]:
    """Norm of every example, by plain loops."""
    flat = value.double().numpy().reshape(*value.shape[:2], -1)
    return np.array([[math.sqrt(sum(x * x for x in row)) for row in client] for client in flat])


# ---------------------------------------------------------------------------- noise


ROWS, BATCH = 400, 5
SMALL = {"bias": (25,), "kernel": (3, 1, 4, 4)}


def of_norm(norm: float) -> Gradients:
    """400 clients, 5 examples each, and every tensor has this norm."""
    ones = {k: torch.ones(ROWS, BATCH, *shape) for k, shape in SMALL.items()}
    return scaled(Gradients(ones, ("client", "example")), torch.full((ROWS, BATCH), norm))


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize(("kind", "changes", "course"), COURSES, ids=COURSE_IDS)
def test_noise_has_the_stated_std_on_every_tensor(
    kind: Any, changes: dict[str, Any], course: list[tuple[float, float]], convention: Any
) -> None:
    """sigma_t C_t through the hooks at t = 0, T/2, T, for norms above C_t (so S = C_t).

    At least 10,000 draws a tensor: 3 % are over four standard errors.
    """
    defense, above = kind(convention=convention, **changes), of_norm(50.0)
    bounded = of_norm(1.0)  # the direction
    for t, (clip, sigma) in zip((0, 40, 80), course, strict=True):
        here = Context(
            round=t, total=80, batch_size=BATCH, clients=tuple(range(ROWS)),
            noise=NoiseStreams(1, ()),
        )  # fmt: skip
        examples, batch, _ = through(defense, above, here)
        at_example = sigma * clip if convention == "per_example" else 0.0
        at_batch = (
            sigma * clip / {"per_example": math.sqrt(BATCH), "mean": 1, "sum": BATCH}[convention]
        )
        for name, unit in bounded.tensors.items():
            noise = examples.tensors[name] - clip * unit
            assert pooled_std(noise) == pytest.approx(at_example, rel=0.03, abs=1e-6)
            noise = batch.tensors[name] - clip * unit[:, 0]
            assert noise.numel() >= 10_000
            assert pooled_std(noise) == pytest.approx(at_batch, rel=0.03)


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("kind", ALL, ids=IDS)
def test_norms_under_the_bound_set_the_noise_where_they_should(kind: Any, convention: Any) -> None:
    """All norms are 0.5: the noise of l2-max is half of sigma, the others' is sigma C."""
    defense = kind(convention=convention)
    here = Context(batch_size=BATCH, clients=tuple(range(ROWS)), noise=NoiseStreams(1, ()))
    low = of_norm(0.5)
    _, batch, _ = through(defense, low, here)
    std = defense.noise_multiplier * (0.5 if noise_follows_norm(defense) else defense.clip)
    std /= {"per_example": math.sqrt(BATCH), "mean": 1, "sum": BATCH}[convention]
    for name, value in low.tensors.items():
        noise = batch.tensors[name] - value[:, 0]
        assert pooled_std(noise) == pytest.approx(std, rel=0.03)


@pytest.mark.parametrize(("kind", "changes", "course"), COURSES, ids=COURSE_IDS)
def test_published_std_follows_the_decay(
    kind: Any, changes: dict[str, Any], course: list[tuple[float, float]]
) -> None:
    defense = kind(**changes)
    public = kind in BOUNDED
    for t, (clip, sigma) in zip((0, 40, 80), course, strict=True):
        here = context(round=t, total=80)
        found = defense.noise_std("type2", WEIGHTS, defense.init(WEIGHTS), here)
        if public:
            assert found == pytest.approx(dict.fromkeys(WEIGHTS, sigma * clip), rel=1e-12)
            unseen = kind(convention="mean", **changes)
            found = unseen.noise_std("type2", WEIGHTS, unseen.init(WEIGHTS), here)
            assert found == dict.fromkeys(WEIGHTS, 0.0)
        else:
            assert found is None


def test_constants_of_a_decay_can_be_set() -> None:
    """gamma in place of the end, the steps of a staircase, the cycles: sigma_t and C_t by hand."""
    both = DPDynSCDecaySigma(decay_rate=0.005, decay="exponential")
    assert both.clip_at(40, 80) == pytest.approx(4 * math.exp(-0.2), rel=1e-12)
    assert both.noise_multiplier_at(40, 80) == pytest.approx(6 * math.exp(-0.2), rel=1e-12)
    said = both.guarantee("model", WEIGHTS, Setting(batch_size=25, rounds=80)).assumptions[-1]
    assert f"from 6.0 to {6 * math.exp(-0.4)}" in said
    stairs = FedAlphaCDPSigma(decay="staircase", decay_steps=4)
    assert stairs.noise_multiplier_at(59, 80) == pytest.approx(15 - 10.15 / 2, rel=1e-12)
    assert stairs.noise_multiplier_at(60, 80) == pytest.approx(15 - 10.15 * 3 / 4, rel=1e-12)
    waves = FedAlphaCDPSigma(decay="cyclic", decay_cycles=2)
    assert waves.noise_multiplier_at(20, 80) == pytest.approx((15 + 4.85) / 2, rel=1e-12)
    with pytest.raises(LeakbenchError, match=r"a rate of 0\.02 leads below 0"):
        DPDynSigma(decay_rate=0.02).noise_multiplier_at(10, 80)


@pytest.mark.parametrize(("kind", "changes", "course"), COURSES, ids=COURSE_IDS)
def test_scales_say_the_bound_and_the_noise_of_the_round(
    gradients: Gradients, kind: Any, changes: dict[str, Any], course: list[tuple[float, float]]
) -> None:
    defense = kind(**changes)
    for t, (clip, sigma) in zip((0, 40, 80), course, strict=True):
        here = context(round=t, total=80)
        state = through(defense, gradients, here)[2]
        norms = np.stack([norms_by_hand(value) for value in gradients.tensors.values()])
        largest = np.minimum(norms, clip).max(axis=(0, 2)).mean()
        expected = {
            "clip": clip,
            "noise_multiplier": sigma,
            "sensitivity": largest if noise_follows_norm(defense) else clip,
        }
        assert defense.scales(state, here) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", ALL, ids=IDS)
def test_without_noise_the_tap_of_the_others_is_clipping_only(
    gradients: Gradients, kind: Any
) -> None:
    """Under `mean` and `sum` the example tap sees what sigma = 0 shows, and so does a replay."""
    quiet = silent(kind).on_examples(gradients, silent(kind).init(WEIGHTS), context())[0]
    for convention in ("mean", "sum"):
        assert equal(through(kind(convention=convention), gradients, context())[0], quiet)
    assert equal(through(kind(), gradients, context(noise=None))[0], quiet)
    assert not equal(through(kind(), gradients, context())[0], quiet)


# ---------------------------------------------------------------------------- clipping


@pytest.mark.parametrize(("kind", "changes", "course"), COURSES, ids=COURSE_IDS)
def test_norms_are_clipped_to_the_bound_of_the_round(
    gradients: Gradients, kind: Any, changes: dict[str, Any], course: list[tuple[float, float]]
) -> None:
    """At most C_t, and nothing under it is touched, bit for bit."""
    generous = torch.linspace(0.3, 9.0, SIZE).expand(CLIENTS, SIZE)
    spread = scaled(gradients, generous)
    for t, (clip, _) in zip((0, 40, 80), course, strict=True):
        here = context(round=t, total=80, noise=None)
        shown = through(kind(**changes), spread, here)[0]
        for name, norm in shown.norms().items():
            assert float(norm.max()) <= clip * (1 + 1e-6)
            under = spread.norms()[name] <= clip
            assert bool(under.any()) and not bool(under.all())
            assert torch.equal(shown.tensors[name][under], spread.tensors[name][under])
            torch.testing.assert_close(norm[~under], torch.full_like(norm[~under], clip))


# ---------------------------------------------------------------------------- largest norm


@pytest.mark.parametrize("kind", LARGEST, ids=lambda kind: kind.name)
@pytest.mark.parametrize("clip", [0.7, 1000.0])
def test_largest_norm_by_hand(gradients: Gradients, kind: Any, clip: float) -> None:
    """Over the examples and tensors of a client; the second client's gradients are a tenth."""
    given = gradients.scale(torch.tensor([[1.0], [0.1]]).expand(CLIENTS, SIZE))
    _, _, largest = through(kind(clip=clip), given, context())
    norms = np.stack([norms_by_hand(value) for value in given.tensors.values()])
    expected = np.minimum(norms, clip).max(axis=(0, 2))
    np.testing.assert_allclose(largest.numpy(), expected, rtol=1e-6)
    assert clip < 1 or expected[0] > 5 * expected[1]  # each client has its own


@pytest.mark.parametrize("kind", LARGEST, ids=lambda kind: kind.name)
def test_padding_does_not_set_the_noise(gradients: Gradients, kind: Any) -> None:
    mask = torch.ones(CLIENTS, SIZE, dtype=torch.bool)
    mask[:, -3:] = False
    spoilt = gradients.map(
        lambda _, value: torch.where(gradients.expand(mask, value), value, torch.nan)
    )
    _, _, largest = through(kind(clip=1000.0), replace(spoilt, mask=mask), context())
    norms = np.stack([norms_by_hand(value)[:, :-3] for value in gradients.tensors.values()])
    np.testing.assert_allclose(largest.numpy(), norms.max(axis=(0, 2)), rtol=1e-6)


# ---------------------------------------------------------------------------- edge cases


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("kind", ALL, ids=IDS)
def test_zero_gradients_get_noise_only_from_a_fixed_sensitivity(kind: Any, convention: Any) -> None:
    zeros = {k: torch.zeros(CLIENTS, SIZE, *v.shape) for k, v in WEIGHTS.items()}
    defense = kind(convention=convention)
    _, batch, _ = through(defense, Gradients(zeros, ("client", "example")), context())
    assert bool((batch.flatten() == 0).all()) == noise_follows_norm(defense)
    assert bool(batch.flatten().isfinite().all())


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("kind", ALL, ids=IDS)
def test_values_that_are_not_finite(gradients: Gradients, kind: Any, bad: float) -> None:
    """They stay with tensor and example, or make S nan and reach all that client's coordinates."""
    spoilt = gradients.map(lambda _, value: value.clone())
    spoilt.tensors["conv1.bias"][0, 3, 2] = bad
    defense = kind()
    shown = through(defense, spoilt, context())[0]
    clean = through(defense, gradients, context())[0]
    assert torch.equal(shown.flatten()[1], clean.flatten()[1])
    if noise_follows_norm(defense):
        assert bool(shown.flatten()[0].isnan().all())
    else:
        others = [name for name in WEIGHTS if name != "conv1.bias"]
        assert all(torch.equal(shown.tensors[name], clean.tensors[name]) for name in others)
        lost = shown.tensors["conv1.bias"][0].isnan()
        expected = torch.zeros_like(lost)
        expected[3, slice(None) if math.isnan(bad) else 2] = True
        assert torch.equal(lost, expected)
    # A replay adds nothing, and there the damage stays with the example for all of them.
    quiet = through(defense, spoilt, context(noise=None))[0]
    assert int(quiet.flatten().isnan().any(dim=-1).sum()) == 1


# ---------------------------------------------------------------------------- clients and state


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("kind", ALL, ids=IDS)
def test_clients_do_not_touch_each_other(
    gradients: Gradients, kind: Any, convention: NoiseConvention
) -> None:
    defense, here = kind(convention=convention), context(round=3, total=10)
    together = through(defense, gradients, here)
    for client in (0, 1):
        row = torch.tensor([client])
        alone = through(defense, gradients.select(row), replace(here, clients=(client,)))
        for one, both in zip(alone[:2], together[:2], strict=True):
            for name, value in one.tensors.items():
                torch.testing.assert_close(value, both.tensors[name][row], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ALL, ids=IDS)
def test_merged_state_suits_another_number_of_clients(gradients: Gradients, kind: Any) -> None:
    """Two clients in one round, three in the next: as if they were the first to come."""
    defense = kind(convention="mean")
    merged = defense.merge(through(defense, gradients, context())[2])
    three = gradients.select(torch.tensor([0, 1, 0]))
    here = context(round=1, total=4, clients=(5, 6, 7))
    examples, state = defense.on_examples(three, merged, here)
    batch, _ = defense.on_batch(examples.mean("example"), state, here)
    fresh = through(defense, three, here)
    assert equal(examples, fresh[0]) and equal(batch, fresh[1])
    assert torch.equal(torch.as_tensor(merged or 0.0), torch.tensor(0.0))
    # Once more without a round between.
    assert torch.equal(torch.as_tensor(defense.merge(merged) or 0.0), torch.tensor(0.0))


# ---------------------------------------------------------------------------- guarantees


OBSERVERS: tuple[Observer, ...] = get_args(Observer)


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("kind", BOUNDED, ids=lambda kind: kind.name)
def test_guarantee_of_the_first_round(kind: Any, convention: NoiseConvention) -> None:
    defense = kind(convention=convention)
    clip = {"fed_cdp_decay": 6.0}.get(kind.name, 4.0)
    sigma = 6.0
    for observer in OBSERVERS:
        found = defense.guarantee(observer, WEIGHTS, Setting(batch_size=25))
        if observer == "type2" and convention != "per_example":
            assert found.level == "none" and found.reason
            continue
        assert found.level == "instance" and found.unit == "tensor" and found.tensors == 10
        share = 1 if observer == "type2" else 25
        assert found.sensitivity == pytest.approx(math.sqrt(10) * clip / share, rel=1e-12)
        at_batch = {"per_example": 5, "mean": 1, "sum": 25}[convention]
        std = sigma * clip / (1 if observer == "type2" else at_batch)
        assert found.noise_std == pytest.approx(std, rel=1e-12)


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        (DPBaseline, []),
        (FedCDP, []),
        (DPDynSCDecay, ["of round 0"]),
        (FedCDPDecay, ["of round 0"]),
        (DPDynSigma, ["of round 0", "from 6.0 to 4.85"]),
        (DPDynSCDecaySigma, ["of round 0", "from 6.0 to 4.85"]),
    ],
)
def test_guarantees_say_what_they_rest_on(kind: Any, parts: list[str]) -> None:
    found = kind().guarantee("model", WEIGHTS, Setting(batch_size=25)).assumptions
    assert len(found) == len(parts)
    assert all(part in said for part, said in zip(parts, found, strict=True))


@pytest.mark.parametrize("kind", LARGEST)
def test_noise_from_private_norms_promises_nothing(kind: Any) -> None:
    for convention in CONVENTIONS:
        defense = kind(convention=convention)
        for observer in OBSERVERS:
            found = defense.guarantee(observer, WEIGHTS, Setting(batch_size=25))
            assert found.level == "none" and "private gradients" in found.reason
            assert found.mu is None and found.assumptions == ()
        assert defense.events(WEIGHTS, Setting(batch_size=25, rounds=10)) == ()


@pytest.mark.parametrize("kind", BOUNDED, ids=lambda kind: kind.name)
def test_clipping_alone_promises_nothing(kind: Any) -> None:
    found = silent(kind).guarantee("model", WEIGHTS, Setting(batch_size=25))
    assert found.level == "none" and found.reason and found.assumptions == ()
    assert silent(kind).events(WEIGHTS, Setting(batch_size=25, rounds=3)) == ()


# ---------------------------------------------------------------------------- releases


# sigma_t in round t of 12, written out.
def linear(t: int) -> float:
    return 6 - 1.15 * t / 12


def exponential(t: int) -> float:
    return 6 * math.exp(t / 12 * math.log(4.85 / 6))


def triangles(t: int) -> float:
    """Four of three rounds: down from the peak, and up again by the same slope."""
    peak = (6, 5.7125, 5.425, 5.1375)[t // 3]
    return peak - (peak - 4.85) * (0, 2 / 3, 2 / 3)[t % 3]


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize(
    ("kind", "changes", "course"),
    [
        (DPBaseline, {}, lambda t: 6.0),
        (FedCDP, {}, lambda t: 6.0),
        (DPDynSCDecay, {"decay": "cyclic"}, lambda t: 6.0),
        (FedCDPDecay, {}, lambda t: 6.0),
        (DPDynSigma, {}, linear),
        (DPDynSigma, {"decay": "exponential"}, exponential),
        (DPDynSigma, {"decay": "cyclic"}, triangles),
        (DPDynSCDecaySigma, {}, linear),
        (DPDynSCDecaySigma, {"decay": "cyclic"}, triangles),
    ],
)
def test_releases_against_a_plain_loop(
    kind: Any, changes: dict[str, Any], course: Any, convention: NoiseConvention
) -> None:
    """One local step of every round, one by one; equal ones are grouped."""
    setting = Setting(
        batch_size=25, local_steps=7, clients=2, all_clients=10, examples=500, rounds=12,
        sampling="poisson",
    )  # fmt: skip
    events = kind(convention=convention, **changes).events(WEIGHTS, setting)
    at_batch = {"per_example": 1 / 5, "mean": 1.0, "sum": 1 / 25}[convention]
    steps = [
        # std of the noise on the mean over what one example moves it by, C cancelled
        course(t) * at_batch / (math.sqrt(10) / 25)
        for t in range(12)
    ]
    found = [event.noise_multiplier for event in events for _ in range(event.steps)]
    assert sorted(found) == pytest.approx(sorted(steps), rel=1e-12)
    assert len(events) == len(Counter(round(step, 9) for step in steps))
    for event in events:
        # Who is drawn is drawn for a whole round: nothing is amplified, and batches are refilled.
        assert (event.sampling, event.sampling_rate) == ("fixed_size", 1.0)
        clip = {"fed_cdp_decay": 6.0}.get(kind.name, 4.0)
        assert event.sensitivity == pytest.approx(math.sqrt(10) * clip / 25)


def test_a_scale_that_reaches_zero_is_a_release_without_noise() -> None:
    """In a valley of the cyclic decay: an accountant then finds an infinite epsilon."""
    defense = DPDynSigma(noise_multiplier_end=0.0, decay="cyclic")
    events = defense.events(WEIGHTS, Setting(batch_size=25, rounds=16))
    assert {event.noise_multiplier: event.steps for event in events}[0.0] == 4


def test_no_rounds_release_nothing() -> None:
    assert DPDynSigma().events(WEIGHTS, Setting(batch_size=25, rounds=0)) == ()


# ---------------------------------------------------------------------------- as plugins


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("kind", ALL, ids=IDS)
def test_contract(kind: Any, convention: NoiseConvention) -> None:
    check_defense(kind(convention=convention))


@pytest.mark.parametrize("kind", ALL)
def test_registered_and_settable_by_a_suite(kind: Any) -> None:
    assert registry.load("defenses", kind.name) is kind
    given = {"clip": 3.0, "noise_multiplier": 2.0, "convention": "sum"}
    found = complete(kind, given, "test")
    assert issubclass(kind, ExampleGaussian) and kind(**given) == kind(**found)
    decaying = {"decay", "clip_end", "noise_multiplier_end", "decay_steps"}
    constants = {"decay_cycles", "decay_rate"}
    assert constants <= found.keys() or not constants & found.keys()
    assert ("decay" in found) == ("decay_rate" in found)
    expected = {
        "dp_dyns_cdecay": {"decay", "clip_end"},
        "fed_cdp_decay": {"decay", "clip_end"},
        "dp_dyns": {"decay", "clip_end"},
        "dp_dyn_sigma": {"decay", "noise_multiplier_end"},
        "dp_dyn_s_l2max_sigma": {"decay", "noise_multiplier_end"},
        "fed_alpha_cdp_sigma": {"decay", "noise_multiplier_end", "decay_steps"},
        "dp_dyn_s_cdecay_sigma": {"decay", "clip_end", "noise_multiplier_end"},
        "dp_dyn_s_sigma": {"decay", "clip_end", "noise_multiplier_end"},
    }
    assert found.keys() & decaying == expected.get(kind.name, set())


@pytest.mark.parametrize(
    ("kind", "changes", "text"),
    [
        *((kind, {"clip": 0.0}, "clip must be positive and finite") for kind in ALL),
        *((kind, {"clip": -1.0}, "clip must be positive and finite") for kind in ALL),
        *((kind, {"clip": math.nan}, "clip must be positive and finite") for kind in ALL),
        *((kind, {"noise_multiplier": -1.0}, "noise_multiplier must be >= 0") for kind in ALL),
        *((kind, {"noise_multiplier": math.inf}, "noise_multiplier must be >= 0") for kind in ALL),
        *(
            (kind, {"clip_end": bad}, "clip_end must be positive and finite")
            for kind in (DPDynSCDecay, DPDynS, DPDynSCDecaySigma, DPDynSSigma, FedCDPDecay)
            for bad in (0.0, -2.0, math.inf, math.nan)
        ),
        *(
            (kind, {"noise_multiplier_end": bad}, "noise_multiplier_end must be >= 0 and finite")
            for kind in (DPDynSigma, DPDynSCDecaySigma, DPDynSL2MaxSigma, FedAlphaCDPSigma)
            for bad in (-0.5, math.inf, math.nan)
        ),
        *(
            (kind, {"decay": "staircase"}, "unknown decay 'staircase'.*allowed: cyclic, exp")
            for kind in (DPDynSCDecay, DPDynS, DPDynSigma, DPDynSSigma, FedCDPDecay)
        ),
        (FedAlphaCDPSigma, {"decay": "linaer"}, "did you mean 'linear'"),
        (
            FedAlphaCDPSigma,
            {"decay": "exponential", "noise_multiplier_end": 0.0},
            "exponential decay needs both ends above 0, got 15.0 and 0.0",
        ),
    ],
)
def test_bad_parameters_are_refused_in_a_sentence(
    kind: Any, changes: dict[str, Any], text: str
) -> None:
    with pytest.raises(LeakbenchError, match=text) as refusal:
        kind(**changes)
    assert str(refusal.value).startswith(f"{kind().name}: ")
    assert "\n" not in str(refusal.value)
