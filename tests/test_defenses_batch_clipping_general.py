"""General batch clipping against torch's optimisers, closed forms and the printed guarantee."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dp_accounting import dp_event
from dp_accounting.pld import pld_privacy_accountant
from torch import Tensor

from leakbench import data
from leakbench.architectures import build
from leakbench.contracts import Context, Gradients, LeakPoint, Setting
from leakbench.defenses.batch_clipping import BatchClip
from leakbench.defenses.batch_clipping_general import BatchClipGeneral, Moments
from leakbench.errors import LeakbenchError
from leakbench.federated import train
from leakbench.streams import NoiseStreams, generator
from leakbench.testing import check_defense
from leakbench.training import Batch, run_round
from leakbench.training_schedule import Schedule

STEPS, SIZE, RATE = 4, 5, 0.05
DIGITS = data.load("mnist")
MODEL = build("bn_lenet5", (1, 28, 28), 10, "default")
WEIGHTS = MODEL.init(generator(3, "weights"), torch.float32)
IMAGES = DIGITS.candidates[: 2 * STEPS * SIZE].reshape(2, STEPS, SIZE, 1, 28, 28)
LABELS = DIGITS.candidate_labels[: 2 * STEPS * SIZE].reshape(2, STEPS, SIZE)
BATCHES = [Batch(inputs=IMAGES[:, t], labels=LABELS[:, t]) for t in range(STEPS)]
SETTING = Setting(batch_size=SIZE, local_steps=STEPS, examples=2000, rounds=10)


def context(**changes: Any) -> Context:
    base = Context(
        batch_size=SIZE, clients=(0, 1), noise=None, local_steps=STEPS, learning_rate=RATE
    )
    return replace(base, **changes)


def by_torch(optimiser: str, client: int) -> dict[str, Tensor]:
    """What torch's optimiser makes of the client's mini-set: the change of the weights."""
    leaves = {name: value.clone().requires_grad_() for name, value in WEIGHTS.items()}
    steps: torch.optim.Optimizer = (
        torch.optim.Adam(leaves.values(), lr=RATE)
        if optimiser == "adam"
        else torch.optim.SGD(leaves.values(), lr=RATE, momentum=0.9)
    )
    for images, labels in zip(IMAGES[client], LABELS[client], strict=True):
        steps.zero_grad()
        F.cross_entropy(MODEL.logits(leaves, images), labels).backward()
        steps.step()
    return {name: value.detach() - WEIGHTS[name] for name, value in leaves.items()}


@pytest.mark.parametrize("optimiser", ["adam", "momentum"])
def test_a_mini_set_is_scanned_as_by_torch_and_clipped_as_a_whole(optimiser: Any) -> None:
    """In units of the learning rate; a bound that nothing reaches leaves torch's own update."""
    wanted = [by_torch(optimiser, client) for client in (0, 1)]
    norms = [
        float(torch.cat([value.flatten() for value in one.values()]).norm()) / RATE
        for one in wanted
    ]
    assert min(norms) > 1
    for clip in (1e4, 1.0):
        defense = BatchClipGeneral(optimiser=optimiser, clip=clip)
        sent = run_round(
            MODEL, WEIGHTS, BATCHES, defense, defense.init(WEIGHTS), context(),
            learning_rate=RATE, point=LeakPoint(type=1), stop_at_tap=True,
        ).tapped  # fmt: skip
        assert sent is not None
        for client, one in enumerate(wanted):
            scale = min(1.0, clip / norms[client])
            for name, value in one.items():
                torch.testing.assert_close(
                    sent.tensors[name][client], scale * value, rtol=2e-2, atol=2e-4 * scale
                )
            found = float(sent.flat_norm()[client])
            assert found == pytest.approx(RATE * min(clip, norms[client]), rel=1e-2)


def test_one_plain_step_is_batch_clipping() -> None:
    general = BatchClipGeneral(optimiser="momentum", clip=0.3)
    ends = [
        run_round(
            MODEL, WEIGHTS, BATCHES[:1], defense, defense.init(WEIGHTS),
            context(local_steps=1), learning_rate=RATE,
        ).weights
        for defense in (general, BatchClip(clip=0.3))
    ]  # fmt: skip
    assert ends[0] is not None and ends[1] is not None
    for name, value in ends[0].items():
        torch.testing.assert_close(value, ends[1][name], rtol=1e-5, atol=1e-7)
        assert not torch.equal(value, WEIGHTS[name])


def test_a_round_remembers_no_moments_of_the_one_before() -> None:
    defense = BatchClipGeneral()
    first = run_round(
        MODEL, WEIGHTS, BATCHES, defense, defense.init(WEIGHTS), context(), learning_rate=RATE
    )
    assert first.state.first is not None and first.state.second is not None
    assert defense.merge(first.state) == Moments()
    assert defense.on_round(WEIGHTS, first.state, context(round=1)) == Moments()


@pytest.mark.parametrize(("round", "left"), [(0, 1.0), (5, 0.81)])
def test_noise_is_two_sigma_c_on_the_sum_of_directions(round: int, left: float) -> None:
    """61,990 draws of each client: 3 % are over ten standard errors."""
    defense = BatchClipGeneral(clip=3.0, noise_multiplier=0.5, clip_factor=0.9, clip_every=2)
    zeros = Gradients({k: torch.zeros(2, *v.shape) for k, v in WEIGHTS.items()}, ("client",))
    here = context(round=round, noise=NoiseStreams(1, ()))
    noise = defense.on_update(zeros, Moments(), here)[0].flatten()
    std = 2 * 0.5 * 3.0 * left
    for row in noise / RATE:
        assert float(row.std()) == pytest.approx(std, rel=0.03)
    assert not torch.equal(noise[0], noise[1])
    # Read in the units of one step's gradient: dW / (L * learning rate).
    stated = defense.noise_std("type1", WEIGHTS, Moments(), here)
    assert stated == pytest.approx(dict.fromkeys(WEIGHTS, std / STEPS))
    for observer in ("type2", "type2_batch"):
        assert set((defense.noise_std(observer, WEIGHTS, Moments(), here) or {}).values()) == {0.0}
    assert defense.noise_std("model", WEIGHTS, Moments(), here) is None
    promise = defense.guarantee("type1", WEIGHTS, replace(SETTING, round=round))
    assert promise.mu == pytest.approx(2.0) and promise.noise_std == pytest.approx(std)
    assert defense.scales(Moments(), here) == {
        "clip": pytest.approx(3.0 * left), "noise_multiplier": 0.5,
        "sensitivity": pytest.approx(6.0 * left),
    }  # fmt: skip


def test_replacing_an_example_moves_the_sum_by_no_more_than_stated() -> None:
    """Turned round as a whole, a mini-set's directions move by just 2 C."""
    defense = BatchClipGeneral(clip=0.7)
    for size in (1e-3, 1.0, 1e3):
        one = {k: size * torch.ones(2, *v.shape) for k, v in WEIGHTS.items()}
        one = {k: torch.stack([v[0], -v[1]]) for k, v in one.items()}
        shown, _ = defense.on_update(Gradients(one, ("client",)), Moments(), context())
        rows = shown.flatten() / RATE
        moved = float((rows[0] - rows[1]).double().norm())
        assert moved <= 1.4 * (1 + 1e-4)
        if size >= 1:
            assert moved == pytest.approx(1.4, rel=1e-4)


def test_a_training_costs_what_its_rounds_of_mini_sets_cost() -> None:
    """Fixed-size mini-sets of s = L B of N, replace-one: sigma as in section 3.1."""
    defense = BatchClipGeneral(noise_multiplier=2.0)
    (event,) = defense.events(WEIGHTS, SETTING)
    assert (event.sampling, event.steps) == ("fixed_size", 10)
    assert event.sampling_rate == STEPS * SIZE / 2000
    # A release stated for adding one; replacing one is twice as far: mu = 1 / sigma.
    assert event.sensitivity == 1.0 and event.noise_multiplier == 4.0
    whole = replace(SETTING, examples=STEPS * SIZE, rounds=1)
    (once,) = defense.events(WEIGHTS, whole)
    assert once.sampling_rate == 1.0
    accountant = pld_privacy_accountant.PLDAccountant()
    accountant.compose(dp_event.GaussianDpEvent(once.noise_multiplier / 2))
    mu = defense.guarantee("model", WEIGHTS, whole).mu
    assert mu == 0.5
    # Dong, Roth and Su: delta at epsilon of mu-GDP, Corollary 1.
    epsilon = accountant.get_epsilon(1e-5)

    def below(x: float) -> float:
        return 0.5 * math.erfc(-x / math.sqrt(2))

    delta = below(-epsilon / mu + mu / 2) - math.exp(epsilon) * below(-epsilon / mu - mu / 2)
    assert delta == pytest.approx(1e-5, rel=0.02)
    for observer in ("type2", "type2_batch"):
        assert defense.guarantee(observer, WEIGHTS, SETTING).level == "none"
    drawn = replace(SETTING, sampling="poisson")
    assert "Poisson" in defense.guarantee("model", WEIGHTS, drawn).reason
    assert defense.events(WEIGHTS, drawn) == ()
    assert replace(defense, noise_multiplier=0.0).events(WEIGHTS, SETTING) == ()
    # A present client's participation is not hidden.
    (present,) = defense.events(WEIGHTS, replace(SETTING, clients=3, all_clients=30))
    assert present.sampling_rate == 1.0 and present.steps == 10


@pytest.mark.parametrize("optimiser", ["adam", "momentum"])
def test_contract(optimiser: Any) -> None:
    check_defense(BatchClipGeneral(optimiser=optimiser))


def test_it_trains_a_network_with_batch_norm() -> None:
    """The loss on the training batch falls; noise is what the paper's sigma makes it."""
    done = train(
        MODEL, WEIGHTS, DIGITS.train[:400], DIGITS.train_labels[:400],
        BatchClipGeneral(clip=2.0, noise_multiplier=0.01875),
        Schedule(rounds=6, batch_size=10, local_steps=3, learning_rate=0.1),
        seed=1, noise=NoiseStreams(1, ()), log_at=(1, 6),
    )  # fmt: skip
    assert done.log[-1].loss < done.log[0].loss
    assert done.log[0].as_dict()["clip"] == 2.0


@pytest.mark.parametrize(
    "parameters",
    [{"clip": 0.0}, {"noise_multiplier": -1.0}, {"beta1": 1.0}, {"beta2": -0.1}, {"epsilon": 0.0},
     {"clip_factor": 1.5}, {"clip_every": 0}, {"optimiser": "sgd"}],
    ids=str,
)  # fmt: skip
def test_senseless_parameters_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(LeakbenchError, match=f"batch_clip_general: {next(iter(parameters))}"):
        BatchClipGeneral(**parameters)


def test_an_update_without_a_learning_rate_is_one_sentence() -> None:
    zeros = Gradients({k: torch.zeros(2, *v.shape) for k, v in WEIGHTS.items()}, ("client",))
    with pytest.raises(LeakbenchError, match=r"batch_clip_general: .* without its learning_rate"):
        BatchClipGeneral().on_update(zeros, Moments(), context(learning_rate=None))
