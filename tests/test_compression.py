"""Compressions that promise nothing, on real gradients, against numpy."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from leakbench import data, registry
from leakbench.architectures import build
from leakbench.compressing import Compression
from leakbench.contracts import Context, Gradients, Observer, Replay, Setting
from leakbench.defenses.compression import Percentile, Quantise, Sign, TopK
from leakbench.errors import LeakbenchError
from leakbench.gradients import per_example
from leakbench.leaking import Tap
from leakbench.spec import LeakPoint
from leakbench.straight_through import blind_hooks
from leakbench.streams import NoiseStreams, generator
from leakbench.testing import check_defense
from leakbench.training import Batch, capture

MODEL = build("cnn2", (1, 28, 28), 10)
WEIGHTS = MODEL.init(generator(3, "weights"), torch.float32)
CLIENTS, SIZE, RATE, STEPS = 2, 4, 0.1, 1
Floats = NDArray[np.float64]

ALL: list[Compression] = [
    Percentile(), Percentile(percentile=90.0, gamma=1e-4, at="example"),
    TopK(), TopK(share=0.29, at="example"),
    Sign(), Sign(scale=0.01, at="example"),
    *(Quantise(bits=bits) for bits in (8, 4, 1)),
    Quantise(bits=1, at="example"),
]  # fmt: skip


def digits() -> Batch:
    dataset, shape = data.load("mnist"), (CLIENTS, SIZE)
    images = dataset.candidates[: math.prod(shape)].reshape(*shape, 1, 28, 28)
    return Batch(inputs=images, labels=dataset.candidate_labels[: math.prod(shape)].reshape(shape))


@pytest.fixture(scope="module")
def examples() -> Gradients:
    batch = digits()
    return per_example(MODEL, WEIGHTS, batch.inputs, batch.labels)


@pytest.fixture(scope="module")
def update(examples: Gradients) -> Gradients:
    """dW of one step."""
    return examples.mean("example").map(lambda _, value: -RATE * value)


def context(**changes: Any) -> Context:
    base = Context(
        batch_size=SIZE, clients=(0, 1), noise=NoiseStreams(7, ()), learning_rate=RATE,
        local_steps=STEPS,
    )  # fmt: skip
    return replace(base, **changes)


def shown(defense: Compression, given: Gradients, **changes: Any) -> Gradients:
    hook = defense.on_examples if defense.at == "example" else defense.on_update
    return hook(given, None, context(**changes))[0]


def rows(gradients: Gradients) -> Iterator[Floats]:
    return iter(gradients.flatten().flatten(0, -2).double().numpy())


@pytest.mark.parametrize("defense", [TopK(), TopK(share=0.29, at="example"), TopK(share=1e-9)])
def test_the_largest_are_shown(
    defense: TopK, examples: Gradients, update: Gradients
) -> None:  # fmt: skip
    given = examples if defense.at == "example" else update
    for before, after in zip(rows(given), rows(shown(defense, given)), strict=True):
        count = max(int(round(defense.share * 1e9) * len(before) // 10**9), 1)
        kept = np.flatnonzero(after)
        assert len(kept) == count
        np.testing.assert_array_equal(after[kept], before[kept])
        hidden = np.delete(np.abs(before), kept)
        assert np.abs(before)[kept].min() >= hidden.max()


@pytest.mark.parametrize("percentile", [0.0, 10.0, 90.0, 100.0])
@pytest.mark.parametrize("gamma", [1e-4, 10.0])
@pytest.mark.parametrize("steps", [1, 5])
def test_percentile_is_the_filter_in_numpy(
    percentile: float, gamma: float, steps: int, update: Gradients
) -> None:
    """As the filter computes it: |dW| / L below the percentile to 0, the others bounded."""
    after = shown(Percentile(percentile=percentile, gamma=gamma), update, local_steps=steps)
    for before, seen in zip(rows(update), rows(after), strict=True):
        change = before / steps
        cutoff = np.percentile(np.abs(change), percentile)
        wanted = np.where(np.abs(change) < cutoff, 0.0, change).clip(-gamma, gamma) * steps
        # At the cutoff itself the last bit decides.
        clear = np.abs(np.abs(change) - cutoff) > 1e-6 * cutoff
        assert clear.sum() >= len(clear) - 2
        np.testing.assert_allclose(seen[clear], wanted[clear], rtol=1e-6)


def test_a_parameter_that_is_one_number_passes_the_percentile() -> None:
    given = Gradients(
        {"scale": torch.tensor([3.0]), "weight": torch.tensor([[1.0, -2.0, 0.1]])}, ("client",)
    )
    after = shown(Percentile(percentile=50.0, gamma=0.5), given)
    assert after.tensors["scale"].item() == 3.0
    assert after.tensors["weight"].tolist() == [[0.0, -0.5, 0.0]]


@pytest.mark.parametrize("bits", [8, 4])
def test_bits_make_so_many_levels_around_zero(bits: int, update: Gradients) -> None:
    after = shown(Quantise(bits=bits), update)
    levels = 2 ** (bits - 1) - 1
    for name, value in update.tensors.items():
        for before, seen in zip(value.double(), after.tensors[name].double(), strict=True):
            step = before.abs().max() / levels
            codes = seen / step
            assert (codes - codes.round()).abs().max() < 1e-3
            assert codes.round().abs().max() == levels
            assert (seen - before).abs().max() <= step / 2 * (1 + 1e-4)


def test_one_bit_is_the_sign_at_the_mean_size(update: Gradients) -> None:
    after = shown(Quantise(bits=1), update)
    for name, value in update.tensors.items():
        before, seen = value.double().numpy(), after.tensors[name].double().numpy()
        for one, other in zip(before, seen, strict=True):
            wanted = np.where(one < 0, -1, 1) * np.abs(one).mean()
            np.testing.assert_allclose(other, wanted, rtol=1e-5)


def test_signs_read_the_same_in_the_units_of_a_gradient(
    examples: Gradients, update: Gradients
) -> None:
    for steps in (1, 3):
        after = shown(Sign(scale=0.5), update, local_steps=steps)
        for before, seen in zip(rows(update), rows(after), strict=True):
            np.testing.assert_allclose(seen, 0.5 * steps * RATE * np.sign(before), rtol=1e-6)
    for before, seen in zip(rows(examples), rows(shown(Sign(at="example"), examples)), strict=True):
        np.testing.assert_array_equal(seen, np.sign(before))


@pytest.mark.parametrize("defense", ALL, ids=repr)
def test_contract(defense: Compression) -> None:
    check_defense(defense)


@pytest.mark.parametrize("defense", ALL, ids=repr)
def test_nothing_is_promised_and_no_noise_is_known(defense: Compression) -> None:
    setting, observers = Setting(batch_size=SIZE, examples=100), get_args(Observer)
    assert {defense.guarantee(o, WEIGHTS, setting).level for o in observers} == {"none"}
    assert defense.events(WEIGHTS, setting) == ()
    said = defense.noise_std("type1", WEIGHTS, None, context())
    assert said is not None and set(said.values()) == {0.0}


@pytest.mark.parametrize("defense", ALL, ids=repr)
def test_zeros_stay_zeros_and_nan_is_not_hidden(defense: Compression, update: Gradients) -> None:
    given = update if defense.at == "update" else update.map(lambda _, value: value[:, None])
    if defense.at == "example":
        given = replace(given, axes=("client", "example"))
    still = given.map(lambda _, value: torch.zeros_like(value))
    assert not shown(defense, still).flatten().any()
    name = next(iter(WEIGHTS))
    broken = {k: v.clone() for k, v in given.tensors.items()}
    broken[name].view(-1)[0] = math.nan
    after = shown(defense, replace(given, tensors=broken))
    assert after.tensors[name].isnan().any()


@pytest.mark.parametrize("defense", [TopK(share=0.3), Percentile(percentile=70.0, gamma=10.0)])
def test_a_replay_reads_the_mask_off_the_observation(
    defense: Compression, update: Gradients
) -> None:
    seen = shown(defense, update)
    other = update.map(lambda _, value: value.flip(-1) + 1.0)
    replayed = shown(defense, other, noise=None, observation=seen)
    hidden = seen.flatten() == 0
    assert 0 < int(hidden.sum()) < hidden.numel()
    assert torch.equal(replayed.flatten() == 0, hidden)
    # An observation of zeros hides nothing: they were zero anyway.
    still = update.map(lambda _, value: torch.zeros_like(value))
    blank = shown(defense, other, noise=None, observation=still)
    assert torch.equal(blank.flatten(), other.flatten().clamp(-10, 10))


def test_a_mean_of_masks_is_no_mask(examples: Gradients) -> None:
    defense = TopK(share=0.3, at="example")
    seen = shown(defense, examples).mean("example")
    own = shown(defense, examples, noise=None, observation=seen)
    assert torch.equal(own.flatten(), shown(defense, examples).flatten())


@pytest.mark.parametrize("defense", [Sign(), Quantise(bits=4), Quantise(bits=1)])
def test_replays_without_derivative_go_straight_through(defense: Compression) -> None:
    point, quiet = LeakPoint(type=1), context(noise=None)
    assert ("on_update", False) in blind_hooks(defense, WEIGHTS, None, quiet, point)
    tap = Tap(model=MODEL, point=point, batch_size=SIZE, learning_rate=RATE)
    replay = tap.replay(defense, tap.look(defense, WEIGHTS, None))
    assert isinstance(replay, Replay) and replay.straight_through


def test_an_update_is_captured_compressed() -> None:
    batch = digits()
    leaks = {
        bits: capture(
            MODEL, WEIGHTS, [batch], Quantise(bits=bits), context(), LeakPoint(type=1),
            learning_rate=RATE,
        )
        for bits in (8, 4, 1)
    }  # fmt: skip
    bare = per_example(MODEL, WEIGHTS, batch.inputs, batch.labels).mean("example").flatten()
    gaps = [float((leaks[bits].flatten() - bare).norm() / bare.norm()) for bits in (8, 4, 1)]
    assert 0 < gaps[0] < gaps[1] < gaps[2] < 1


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: TopK(share=0.0), "share must be"),
        (lambda: Percentile(percentile=101.0), "percentile must be"),
        (lambda: Percentile(gamma=0.0), "gamma must be"),
        (lambda: Sign(scale=-1.0), "scale must be"),
        (lambda: Quantise(bits=2), "bits must be 8, 4 or 1, got 2"),
        (lambda: Sign(at="batch"), "at must be one of"),  # type: ignore[arg-type]
    ],
)
def test_refused(made: Any, said: str) -> None:
    with pytest.raises(LeakbenchError, match=said):
        made()


def test_a_sign_of_an_update_needs_the_learning_rate(update: Gradients) -> None:
    with pytest.raises(LeakbenchError, match="learning_rate"):
        shown(Sign(), update, learning_rate=None)


def test_names() -> None:
    kinds = {"top_k": TopK, "percentile": Percentile, "sign": Sign, "quantise": Quantise}
    assert {name: registry.load("defenses", name) for name in kinds} == kinds
