"""Training against plain loops over rounds, clients, local steps and examples, on real digits."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor, nn

from leakbench import data, federated
from leakbench.architectures import build
from leakbench.contracts import (
    Context,
    Defense,
    Gradients,
    LeakPoint,
    NoiseConvention,
    Row,
    State,
    Weights,
)
from leakbench.defenses.adaclip import AdaClip, Moments
from leakbench.defenses.batch_clipping import BatchClip, BatchClipALC
from leakbench.defenses.dp_baseline import DPBaseline
from leakbench.defenses.dp_dyn import DPDynSCDecaySigma
from leakbench.defenses.fed_sdp import FedSDPServer
from leakbench.defenses.model_cloak import ModelCloakDynamic
from leakbench.defenses.quantile_clip import QuantileClip
from leakbench.errors import LeakbenchError
from leakbench.federated import Trained, train
from leakbench.modules import ModuleModel
from leakbench.sampling import Step, partition, sample
from leakbench.streams import NoiseStreams, generator
from leakbench.training import Batch, capture, public_gradients, run_round
from leakbench.training_schedule import Schedule

DIGITS = data.load("mnist")
IMAGES, LABELS = DIGITS.train[:240], DIGITS.train_labels[:240]
SEED, AXES = 11, ("mnist", 0)
NOISE = NoiseStreams(5, ("mnist",))
RATE = 0.2
DOUBLE = torch.float64

Tensors = dict[str, Tensor]


def start(name: str, dtype: torch.dtype = DOUBLE) -> Tensors:
    return build(name, (1, 28, 28), 10, "default").init(generator(3, "weights"), dtype)


def trained(
    name: str,
    defense: Defense,
    schedule: Schedule,
    *,
    dtype: torch.dtype = DOUBLE,
    **options: Any,
) -> Trained:
    named: dict[str, Any] = {"seed": SEED, "noise": NOISE, "axes": AXES} | options
    return train(
        build(name, (1, 28, 28), 10, "default"), start(name, dtype), IMAGES, LABELS, defense,
        schedule, **named,
    )  # fmt: skip


def close(found: Weights, expected: Weights, tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], rtol=tolerance, atol=tolerance, msg=name)


def equal(one: Weights, other: Weights) -> bool:
    return all(torch.equal(value, other[name]) for name, value in one.items())


# ---------------------------------------------------------------------------- the plain loop


def logits(name: str, weights: Weights, image: Tensor) -> Tensor:
    """The network by torch's own functions, for images (b, 1, 28, 28)."""
    w, hidden = weights, image
    if name == "cnn2_relu":
        hidden = F.max_pool2d(F.conv2d(hidden, w["conv1.weight"], padding=2).relu(), 2)
        hidden = F.max_pool2d(F.conv2d(hidden, w["conv2.weight"], padding=2).relu(), 2)
        return hidden.flatten(1) @ w["dense.weight"].T
    if name == "cnn2":
        for conv in ("conv1", "conv2"):
            weight, bias = w[f"{conv}.weight"], w[f"{conv}.bias"]
            hidden = F.conv2d(hidden, weight, bias, stride=2, padding=2).sigmoid()
        return hidden.flatten(1) @ w["dense.weight"].T + w["dense.bias"]
    hidden = hidden.flatten(1)
    for layer in ("dense1", "dense2"):
        hidden = (hidden @ w[f"{layer}.weight"].T + w[f"{layer}.bias"]).relu()
    return hidden @ w["dense3.weight"].T + w["dense3.bias"]


@dataclass(frozen=True)
class Place:
    """Where in the loop a hook is called."""

    round: int
    client: int
    iteration: int
    size: int
    """B."""
    rows: int = 1
    """Of the batch as it is computed, with its padding."""


def untouched(gradient: Any, place: Place) -> Any:
    return gradient


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A defense by hand: what happens to a list of examples' gradients, their mean, an update."""

    examples: Callable[[list[Tensors], Place], list[Tensors]] = untouched
    batch: Callable[[Tensors, Place], Tensors] = untouched
    update: Callable[[Tensors, Place], Tensors] = untouched

    def train(
        self, name: str, schedule: Schedule, weights: Tensors, rounds: range | None = None
    ) -> Tensors:
        shares = partition(LABELS, schedule, SEED, AXES)
        velocity: list[Tensor] = []
        for number in range(schedule.rounds) if rounds is None else rounds:
            clients, steps = sample(shares, schedule, SEED, AXES, number)
            updates = []
            for row, client in enumerate(clients):
                local = {k: nn.Parameter(v.clone()) for k, v in weights.items()}
                optimiser = torch.optim.SGD(
                    local.values(), lr=rate_of(schedule, number), momentum=schedule.momentum
                )
                for value, moving in zip(local.values(), velocity, strict=False):
                    optimiser.state[value]["momentum_buffer"] = moving
                for iteration, step in enumerate(steps):
                    size, padded = schedule.batch_size, step.positions.shape[1]
                    place = Place(number, client, iteration, size, padded)
                    present = slice(None) if step.mask is None else step.mask[row]
                    rows = step.positions[row][present].tolist()
                    each = self.examples([gradient(name, local, p) for p in rows], place)
                    divisor = len(each) if step.expected is None else step.expected
                    mean = {
                        k: sum((one[k] for one in each), torch.zeros_like(v)) / divisor
                        for k, v in local.items()
                    }
                    mean = self.batch(mean, place)
                    for k, v in local.items():
                        v.grad = mean[k].detach()
                    optimiser.step()
                if schedule.clients == 1 and schedule.momentum:
                    velocity = [optimiser.state[v]["momentum_buffer"] for v in local.values()]
                place = Place(number, client, 0, schedule.batch_size)
                moved = {k: local[k].detach() - weights[k] for k in weights}
                updates.append(self.update(moved, place))
            held = [len(shares[client]) for client in clients]
            if schedule.aggregation == "fed_averaging":
                factors = [n / sum(held) for n in held]
            else:  # the number expected, or that of fixed_size
                less = 1 if schedule.divisor == "clients_minus_one" else 0
                factors = [1 / (schedule.clients_a_round - less)] * len(clients)
            weights = {
                k: v + sum(f * u[k] for f, u in zip(factors, updates, strict=True))
                for k, v in weights.items()
            }
        return weights


def rate_of(schedule: Schedule, number: int) -> float:
    """The learning rate of a round, from its closed form."""
    first, last, done = schedule.learning_rate, schedule.learning_rate_end, number / schedule.rounds
    if schedule.learning_rate_policy == "step":
        times = number // schedule.learning_rate_every
        return float(first * math.prod([schedule.learning_rate_factor] * times))
    if schedule.learning_rate_policy == "linear":
        return first * (1 - done) + last * done
    if schedule.learning_rate_policy == "cosine":
        return last + (first - last) * math.cos(math.pi * done / 2) ** 2
    return first


def gradient(name: str, weights: Mapping[str, Tensor], position: int) -> Tensors:
    """Of one example's loss, by one call of torch.autograd."""
    leaves = {k: v.detach().clone().requires_grad_() for k, v in weights.items()}
    image = IMAGES[position][None].to(next(iter(leaves.values())).dtype)
    loss = F.cross_entropy(logits(name, leaves, image), LABELS[position][None])
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


def clipped(tensors: Tensors, bound: float) -> Tensors:
    """Every tensor to norm <= bound, in Python's numbers."""
    found = {}
    for name, value in tensors.items():
        norm = math.sqrt(sum(x * x for x in value.detach().flatten().tolist()))
        found[name] = value * min(1.0, bound / norm) if norm > 0 else value
    return found


def drawn(purpose: str, place: Place, shape: tuple[int, ...]) -> Tensor:
    return NOISE.normal(purpose, place.client, place.round, place.iteration, shape).double()


def gaussian(clip: float, sigma: float, convention: NoiseConvention) -> Loop:
    """Per-example clipping, and noise where the convention puts it."""

    def examples(each: list[Tensors], place: Place) -> list[Tensors]:
        kept = [clipped(one, clip) for one in each]
        if convention == "per_example" and sigma > 0 and kept:
            for name, value in kept[0].items():
                noise = drawn(f"examples/{name}", place, (place.rows, *value.shape))
                for one, row in zip(kept, noise, strict=False):
                    one[name] = one[name] + sigma * clip * row
        return kept

    def batch(mean: Tensors, place: Place) -> Tensors:
        if convention == "per_example" or sigma == 0:
            return mean
        std = sigma * clip / (place.size if convention == "sum" else 1)
        return {k: v + std * drawn(f"batch/{k}", place, v.shape) for k, v in mean.items()}

    return Loop(examples=examples, batch=batch)


class OnBatches(Defense):
    """Doubles the mean gradient, and needs no gradients of single examples."""

    name: ClassVar[str] = "on_batches"

    def on_batch(
        self, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        return gradients.map(lambda _, value: 2 * value), state


@dataclass(frozen=True, kw_only=True)
class OnPairs(Defense):
    """Bounds the coordinates of the mean gradient of every two examples."""

    name: ClassVar[str] = "on_pairs"

    @property
    def row(self) -> Row:
        return 2

    def on_examples(
        self, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        return gradients.map(lambda _, value: value.clamp(-0.01, 0.01)), state


def pairs(each: list[Tensors], place: Place) -> list[Tensors]:
    return [
        {k: ((one[k] + two[k]) / 2).clamp(-0.01, 0.01) for k in one}
        for one, two in zip(each[::2], each[1::2], strict=True)
    ]


CENTRAL = Schedule(rounds=3, batch_size=6, learning_rate=RATE)
CENTRAL_STEPS = replace(CENTRAL, rounds=2, local_steps=3)
IID = Schedule(rounds=2, batch_size=4, learning_rate=RATE, clients=5, clients_a_round=3)
IID_STEPS = replace(IID, local_steps=3)
SHARDS = replace(IID_STEPS, partition="shards", clients=10)
DIRICHLET = replace(IID_STEPS, partition="dirichlet", concentration=1.0, local_steps=2)
AVERAGING = replace(DIRICHLET, aggregation="fed_averaging")
AVERAGING_EQUAL = replace(IID_STEPS, aggregation="fed_averaging")
POISSON = replace(CENTRAL, sampling="poisson", rounds=4)
POISSON_STEPS = replace(CENTRAL_STEPS, sampling="poisson")
COINS = replace(IID_STEPS, sampling="poisson", rounds=4)
OVERLAP = replace(IID_STEPS, overlap=True, clients=40, examples_a_client=30)
OVERLAP_CLASSES = replace(OVERLAP, partition="shards", examples_a_client=15)
SCHEDULES = {
    "overlap": OVERLAP,
    "overlap of classes": OVERLAP_CLASSES,
    "divisor": replace(IID_STEPS, divisor="clients_minus_one"),
    "momentum": replace(IID_STEPS, momentum=0.9),
    "momentum, central": replace(CENTRAL, momentum=0.5, rounds=5),
    "momentum, poisson": replace(POISSON_STEPS, momentum=0.5, rounds=3),
    "step": replace(
        IID, rounds=5, learning_rate_policy="step", learning_rate_factor=0.5, learning_rate_every=2
    ),
    "linear": replace(CENTRAL, rounds=4, learning_rate_policy="linear", learning_rate_end=0.01),
    "cosine": replace(CENTRAL, rounds=4, learning_rate_policy="cosine"),
    "central": CENTRAL,
    "central, L=3": CENTRAL_STEPS,
    "iid": IID,
    "iid, L=3": IID_STEPS,
    "shards": SHARDS,
    "dirichlet": DIRICHLET,
    "averaging": AVERAGING,
    "averaging, equal": AVERAGING_EQUAL,
    "poisson": POISSON,
    "poisson, L=3": POISSON_STEPS,
    "poisson of clients": COINS,
}

by_schedule = pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES.keys())


def unrounded(schedule: Schedule) -> float:
    """Float64 to its precision, but for the found / expected of Poisson samples."""
    return 1e-7 if schedule.sampling == "poisson" else 1e-11


@by_schedule
@pytest.mark.parametrize("defense", [Defense(), OnBatches()], ids=["examples", "batches"])
def test_undefended_training_is_a_loop_of_sgd(defense: Defense, schedule: Schedule) -> None:
    loop = Loop(batch=lambda mean, _: {k: 2 * v for k, v in mean.items()})
    expected = (Loop() if type(defense) is Defense else loop).train("mlp", schedule, start("mlp"))
    found = trained("mlp", defense, schedule)
    close(found.weights, expected, unrounded(schedule))
    assert not any(torch.equal(value, start("mlp")[name]) for name, value in expected.items())


@pytest.mark.parametrize("name", ["cnn2_relu", "cnn2", "mlp"])
@pytest.mark.parametrize("schedule", [CENTRAL, IID_STEPS], ids=["central", "federated"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (DOUBLE, 1e-11)])
def test_every_network_and_precision(
    name: str, schedule: Schedule, dtype: torch.dtype, tolerance: float
) -> None:
    expected = Loop().train(name, schedule, start(name, dtype))
    close(trained(name, Defense(), schedule, dtype=dtype).weights, expected, tolerance)


@by_schedule
def test_clipping_by_hand(schedule: Schedule) -> None:
    bound = 0.3
    expected = gaussian(bound, 0, "sum").train("mlp", schedule, start("mlp"))
    found = trained("mlp", DPBaseline(clip=bound, noise_multiplier=0.0), schedule)
    close(found.weights, expected, unrounded(schedule))


def test_the_bound_above_cuts_some_tensors_and_leaves_others() -> None:
    norms = [float(v.norm()) for p in range(20) for v in gradient("mlp", start("mlp"), p).values()]
    assert 0.2 < sum(norm > 0.3 for norm in norms) / len(norms) < 0.8


@pytest.mark.parametrize("convention", ["per_example", "mean", "sum"])
@pytest.mark.parametrize(
    "schedule",
    [CENTRAL, IID_STEPS, AVERAGING, POISSON, COINS],
    ids=["central", "iid", "averaging", "poisson", "coins"],
)
def test_noise_by_hand(convention: NoiseConvention, schedule: Schedule) -> None:
    loop = gaussian(0.3, 0.5, convention)
    defense = DPBaseline(clip=0.3, noise_multiplier=0.5, convention=convention)
    found = trained("mlp", defense, schedule)
    close(found.weights, loop.train("mlp", schedule, start("mlp")), unrounded(schedule))
    silent = trained("mlp", replace(defense, noise_multiplier=0.0), schedule)
    assert not torch.allclose(found.weights["dense3.weight"], silent.weights["dense3.weight"])


def test_noise_on_received_updates_by_hand() -> None:
    """Fed-SDP at the server; the noise of a client is that of his round."""

    def update(moved: Tensors, place: Place) -> Tensors:
        kept = clipped(moved, 0.05)
        return {k: v + 0.02 * drawn(f"update/{k}", place, v.shape) for k, v in kept.items()}

    expected = Loop(update=update).train("mlp", IID_STEPS, start("mlp"))
    found = trained("mlp", FedSDPServer(clip=0.05, noise_multiplier=0.4), IID_STEPS)
    close(found.weights, expected, 1e-11)


@pytest.mark.parametrize("schedule", [CENTRAL, SHARDS], ids=["central", "shards"])
def test_subsets_by_hand(schedule: Schedule) -> None:
    expected = Loop(examples=pairs).train("cnn2", schedule, start("cnn2"))
    close(trained("cnn2", OnPairs(), schedule).weights, expected, 1e-11)
    plain = Loop().train("cnn2", schedule, start("cnn2"))
    assert any(bool((plain[k] - v).abs().max() > 1e-4) for k, v in expected.items())


def test_decays_follow_the_planned_rounds() -> None:
    """C from 0.5 to 0.1 and sigma from 0.6 to 0.2, linearly over 4 rounds, at the round's place."""
    schedule = replace(IID, rounds=4)
    weights = start("mlp")
    for t in range(4):
        loop = gaussian(0.5 - 0.4 * t / 4, 0.6 - 0.4 * t / 4, "per_example")
        weights = loop.train("mlp", schedule, weights, rounds=range(t, t + 1))
    defense = DPDynSCDecaySigma(
        clip=0.5, clip_end=0.1, noise_multiplier=0.6, noise_multiplier_end=0.2
    )
    found = trained("mlp", defense, schedule, keep=(2,))
    close(found.weights, weights, 1e-11)
    stopped = trained("mlp", defense, replace(schedule, rounds=2), total=4)
    assert equal(stopped.weights, found.points[2].weights)
    planned = trained("mlp", defense, replace(schedule, rounds=2))
    assert not equal(planned.weights, stopped.weights)


def test_hooks_are_told_place_total_clients_and_batch_size() -> None:
    seen: list[tuple[int, int, int, int, tuple[int, ...]]] = []

    class Listening(Defense):
        name: ClassVar[str] = "listening"

        def on_examples(
            self, gradients: Gradients, state: State, context: Context
        ) -> tuple[Gradients, State]:
            place = (context.round, context.iteration, context.total, context.batch_size)
            seen.append((*place, context.clients))
            return gradients, state

    trained("mlp", Listening(), IID_STEPS)
    shares = partition(LABELS, IID_STEPS, SEED, AXES)
    assert seen == [
        (t, step, 2, 4, sample(shares, IID_STEPS, SEED, AXES, t)[0])
        for t in range(2)
        for step in range(3)
    ]


# ---------------------------------------------------------------------------- aggregation


def test_averaging_of_equal_clients_is_fed_sgd() -> None:
    one = trained("mlp", Defense(), IID_STEPS).weights
    close(trained("mlp", Defense(), AVERAGING_EQUAL).weights, one, 1e-12)


def test_averaging_of_unequal_clients_is_not() -> None:
    shares = partition(LABELS, DIRICHLET, SEED, AXES)
    assert len({len(share) for share in shares}) > 1
    one = trained("mlp", Defense(), DIRICHLET).weights
    other = trained("mlp", Defense(), AVERAGING).weights
    assert float((one["dense3.weight"] - other["dense3.weight"]).abs().max()) > 1e-4


def test_central_training_is_plain_sgd_of_batches() -> None:
    """As one writes it in torch: one network, one optimiser, the mean loss of a batch."""
    weights = {k: nn.Parameter(v) for k, v in start("cnn2_relu").items()}
    optimiser = torch.optim.SGD(weights.values(), lr=RATE)
    shares = partition(LABELS, CENTRAL, SEED, AXES)
    for number in range(CENTRAL.rounds):
        rows = sample(shares, CENTRAL, SEED, AXES, number)[1][0].positions[0]
        optimiser.zero_grad()
        F.cross_entropy(
            logits("cnn2_relu", weights, IMAGES[rows].double()), LABELS[rows]
        ).backward()
        optimiser.step()
    found = trained("cnn2_relu", Defense(), CENTRAL)
    close(found.weights, {k: v.detach() for k, v in weights.items()}, 1e-11)


def test_a_federation_of_twins_is_central_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three clients who take the batches of the central one move as he does."""
    central = trained("mlp", Defense(), CENTRAL_STEPS)

    def threefold(*arguments: Any) -> tuple[tuple[int, ...], list[Step]]:
        shares, _, *rest = arguments
        _, steps = sample([torch.cat(shares).sort().values], CENTRAL_STEPS, *rest)
        return (0, 1, 2), [replace(s, positions=s.positions.repeat(3, 1)) for s in steps]

    monkeypatch.setattr(federated, "sample", threefold)
    twins = trained("mlp", Defense(), replace(CENTRAL_STEPS, clients=3, clients_a_round=3))
    close(twins.weights, central.weights, 1e-12)


# ---------------------------------------------------------------------------- sampling


def batches_of(defense: Defense, schedule: Schedule, **options: Any) -> list[tuple[Any, ...]]:
    """Clients, inputs, labels and masks that `run_round` was given in every round."""
    seen = []

    def listening(*arguments: Any, **named: Any) -> Any:
        batches, context = list(arguments[2]), arguments[5]
        seen.append((context.clients, batches))
        return run_round(*arguments[:2], batches, *arguments[3:], **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(federated, "run_round", listening)
        trained("mlp", defense, schedule, **options)
    return seen


@pytest.mark.parametrize(
    "schedule", [CENTRAL, IID_STEPS, POISSON, COINS], ids=["central", "iid", "poisson", "coins"]
)
def test_clients_and_batches_are_the_same_for_every_defense(schedule: Schedule) -> None:
    defenses = [Defense(), DPBaseline(clip=0.1), QuantileClip(), OnBatches(), FedSDPServer()]
    first, *others = [batches_of(defense, schedule) for defense in defenses]
    for other in others:
        for (clients, batches), (others_clients, others_batches) in zip(first, other, strict=True):
            assert clients == others_clients
            for one, two in zip(batches, others_batches, strict=True):
                assert torch.equal(one.inputs, two.inputs) and torch.equal(one.labels, two.labels)
                assert (one.mask is None) == (two.mask is None)
                assert one.mask is None or torch.equal(one.mask, two.mask)
    unlike = batches_of(Defense(), schedule, seed=SEED + 1)
    assert not torch.equal(first[0][1][0].inputs, unlike[0][1][0].inputs)
    assert not torch.equal(first[0][1][0].inputs, first[1][1][0].inputs)


@pytest.mark.parametrize("schedule", [CENTRAL, IID_STEPS, SHARDS, COINS])
def test_batches_hold_the_digits_of_their_clients(schedule: Schedule) -> None:
    shares = partition(LABELS, schedule, SEED, AXES)
    for number in range(schedule.rounds):
        clients, steps = sample(shares, schedule, SEED, AXES, number)
        assert list(clients) == sorted(set(clients))
        for step in steps:
            for client, rows in zip(clients, step.positions.tolist(), strict=True):
                assert set(rows) <= set(shares[client].tolist())


@settings(max_examples=80, deadline=None)
@given(
    examples=st.integers(1, 40), size=st.integers(1, 40), steps=st.integers(1, 12),
    central=st.booleans(), seed=st.integers(0, 1000),
)  # fmt: skip
def test_every_example_comes_once_before_any_comes_again(
    examples: int, size: int, steps: int, central: bool, seed: int
) -> None:
    """And no batch has one twice: its clipped gradient would weigh double."""
    size = min(size, examples)
    schedule = Schedule(
        rounds=1, batch_size=size, learning_rate=RATE, local_steps=steps,
        clients=1 if central else 3, clients_a_round=1 if central else 2,
    )  # fmt: skip
    shares = [torch.arange(examples) + 100 * client for client in range(schedule.clients)]
    clients, found = sample(shares, schedule, seed, (), 0)
    assert len(clients) == schedule.clients_a_round and len(found) == steps
    for row, client in enumerate(clients):
        taken = [step.positions[row].tolist() for step in found]
        assert all(len(set(batch)) == len(batch) == size for batch in taken)
        counts: Counter[int] = Counter()
        for position in (position for batch in taken for position in batch):
            counts[position] += 1
            often = [counts[example] for example in shares[client].tolist()]
            assert max(often) - min(often) <= 1


def test_which_examples_share_a_batch_is_random() -> None:
    """Of 5 examples in batches of 2, the last of the first pass meets any other but itself."""
    schedule = Schedule(rounds=1, batch_size=2, learning_rate=RATE, local_steps=5)
    together: Counter[frozenset[int]] = Counter()
    for seed in range(600):
        _, steps = sample([torch.arange(5)], schedule, seed, (), 0)
        together[frozenset(steps[2].positions[0].tolist())] += 1
    assert len(together) == 10 and all(len(pair) == 2 for pair in together)
    assert stats.chisquare(list(together.values())).pvalue > 1e-3


def test_clients_are_drawn_evenly_without_replacement() -> None:
    schedule = replace(IID, clients=6, clients_a_round=2)
    shares = [torch.arange(4)] * 6
    drawn = [sample(shares, schedule, SEED, AXES, number)[0] for number in range(900)]
    assert all(len(set(clients)) == 2 for clients in drawn)
    pairs = Counter(drawn)
    assert len(pairs) == 15 and stats.chisquare(list(pairs.values())).pvalue > 1e-3


@pytest.mark.independent_rows
def test_what_a_client_does_depends_on_no_other_client() -> None:
    few, many = replace(IID, clients_a_round=2), replace(IID, clients_a_round=5)
    shares = partition(LABELS, IID, SEED, AXES)
    clients, (step,) = sample(shares, few, SEED, AXES, 1)
    everybody, (other,) = sample(shares, many, SEED, AXES, 1)
    for row, client in enumerate(clients):
        assert torch.equal(step.positions[row], other.positions[everybody.index(client)])


# ---------------------------------------------------------------------------- Poisson sampling


def test_poisson_batches_are_padded_and_masked() -> None:
    shares = [torch.arange(200)]
    schedule = replace(POISSON, batch_size=10)
    sizes = []
    for number in range(200):
        clients, (step,) = sample(shares, schedule, SEED, AXES, number)
        assert clients == (0,) and step.expected == 10 and step.mask is not None
        assert step.positions.shape == step.mask.shape
        found = step.positions[step.mask].tolist()
        assert len(set(found)) == len(found)
        width = step.positions.shape[1]
        assert width % 8 == 0 and (width == 8 or width - len(found) < 8)
        sizes.append(len(found))
    # Binomial(200, 1/20): mean 10, variance 9.5.
    mean, spread = sum(sizes) / 200, torch.tensor(sizes).double().var().item() / 9.5
    assert abs(mean - 10) < 4 * (9.5 / 200) ** 0.5
    assert stats.chi2.ppf(1e-3, 199) < 199 * spread < stats.chi2.ppf(0.999, 199)


def test_poisson_rate_of_every_example_and_pair() -> None:
    """B / n each, and independent: a pair has the square of it."""
    schedule = Schedule(rounds=1, batch_size=4, learning_rate=RATE, sampling="poisson")
    rounds = 3000
    present = torch.zeros(rounds, 12)
    for number in range(rounds):
        _, (step,) = sample([torch.arange(12)], schedule, SEED, AXES, number)
        present[number, step.positions[step.mask]] = 1
    rate = 1 / 3
    deviation = (rate * (1 - rate) / rounds) ** 0.5
    assert float((present.mean(dim=0) - rate).abs().max()) < 4 * deviation
    both = (present.T @ present / rounds)[~torch.eye(12, dtype=torch.bool)]
    assert float((both - rate**2).abs().max()) < 4.5 * (rate**2 * (1 - rate**2) / rounds) ** 0.5


def test_a_poisson_batch_of_nobody_moves_nothing_but_its_noise() -> None:
    """Of 240 examples one is expected; seeds are looked for whose first round has none."""
    schedule = Schedule(rounds=1, batch_size=1, learning_rate=RATE, sampling="poisson")
    seed = next(
        seed
        for seed in range(100)
        if not bool(sample([torch.arange(240)], schedule, seed, AXES, 0)[1][0].mask.any())  # type: ignore[union-attr]
    )
    for defense in (Defense(), OnBatches(), DPBaseline(noise_multiplier=0.0)):
        assert equal(trained("mlp", defense, schedule, seed=seed).weights, start("mlp"))
    noisy = DPBaseline(clip=2.0, noise_multiplier=0.5, convention="sum")
    place = Place(0, 0, 0, 1)
    expected = {
        k: v - RATE * 0.5 * 2.0 * drawn(f"batch/{k}", place, v.shape)
        for k, v in start("mlp").items()
    }
    close(trained("mlp", noisy, schedule, seed=seed).weights, expected, 1e-12)


def test_clients_take_part_by_their_own_coins() -> None:
    schedule = replace(COINS, clients=8, clients_a_round=2)
    shares = [torch.arange(8)] * 8
    rounds = 2000
    present = torch.zeros(rounds, 8)
    for number in range(rounds):
        clients, steps = sample(shares, schedule, SEED, AXES, number)
        present[number, list(clients)] = 1
        assert len(steps) == (schedule.local_steps if clients else 0)
        assert all(len(step.positions) == len(clients) for step in steps)
    deviation = (0.25 * 0.75 / rounds) ** 0.5
    assert float((present.mean(dim=0) - 0.25).abs().max()) < 4 * deviation
    sizes = torch.bincount(present.sum(dim=1).long(), minlength=9)[:6].numpy()
    expected = stats.binom(8, 0.25).pmf(range(6)) * rounds
    assert float(((sizes - expected) ** 2 / expected).sum()) < stats.chi2.ppf(0.999, 5)


def test_a_round_without_clients_changes_nothing() -> None:
    schedule = replace(IID, sampling="poisson", clients=10, clients_a_round=1, rounds=8)
    shares = partition(LABELS, schedule, SEED, AXES)
    empty = [t for t in range(8) if not sample(shares, schedule, SEED, AXES, t)[0]]
    assert 0 < len(empty) < 8
    rounds = []

    class Counting(QuantileClip):
        def on_round(self, weights: Weights, state: State, context: Context) -> State:
            rounds.append(context.round)
            return state

    found = trained("mlp", Counting(), schedule, keep=range(9))
    assert rounds == [t for t in range(8) if t not in empty]
    assert found.iterations == len(rounds)
    for t in range(8):
        before, after = found.points[t], found.points[t + 1]
        assert equal(before.weights, after.weights) is (t in empty)
        assert equal(before.state.clip, after.state.clip) is (t in empty)


# ---------------------------------------------------------------------------- state over rounds


def test_quantile_bounds_of_clients_are_merged_by_hand() -> None:
    """Every client moves C_t in each local step by his own fraction; the next round starts from
    the mean, with other clients."""
    schedule = replace(IID_STEPS, rounds=3, clients_a_round=2)
    defense = QuantileClip(
        clip=0.2, noise_multiplier=0.0, count_noise=0.0, learning_rate=0.7, update="step"
    )
    bounds = dict.fromkeys(start("mlp"), 0.2)
    own: dict[int, dict[str, float]] = {}

    def examples(each: list[Tensors], place: Place) -> list[Tensors]:
        mine = own.setdefault(place.client, dict(bounds))
        kept = [{k: clipped({k: v}, mine[k])[k] for k, v in one.items()} for one in each]
        for name, bound in mine.items():
            under = sum(float(one[name].norm()) <= bound for one in each) / len(each)
            mine[name] = bound * math.exp(-0.7 * (under - 0.5))
        return kept

    weights, found = start("mlp"), trained("mlp", defense, schedule, keep=range(4))
    clients: list[set[int]] = []
    for t in range(3):
        own.clear()
        weights = Loop(examples=examples).train("mlp", schedule, weights, range(t, t + 1))
        bounds = {k: sum(mine[k] for mine in own.values()) / len(own) for k in bounds}
        clients.append(set(own))
        point = found.points[t + 1]
        close(point.weights, weights, 1e-10)
        for name, bound in bounds.items():
            assert point.state.clip[name].shape == ()
            assert abs(float(point.state.clip[name]) - bound) < 1e-10
    assert clients[0] != clients[1] and len(set(bounds.values())) > 1


@pytest.mark.parametrize("local_steps", [1, 2])
@pytest.mark.parametrize(
    "defense",
    [
        QuantileClip(clip=0.2),
        QuantileClip(clip=0.2, update="step"),
        AdaClip(clip=0.5, noise_multiplier=0.1),
        ModelCloakDynamic(clip=0.05, noise_multiplier=0.1, keep="scale"),
    ],
    ids=["quantile round", "quantile step", "adaclip", "cloak"],
)
def test_states_of_clients_in_groups_are_those_of_all(
    defense: Defense, local_steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two rounds of three clients, together and one by one."""
    schedule = replace(IID_STEPS, rounds=2, clients_a_round=3, local_steps=local_steps)
    whole = trained("mlp", defense, schedule)
    monkeypatch.setattr(federated, "GROUP_BYTES", 1)
    close(trained("mlp", defense, schedule).weights, whole.weights, 1e-10)


def test_adaclip_moments_of_clients_are_merged() -> None:
    """Twin clients have the moments of one; unlike ones the mean of theirs, and the next round of
    other clients starts from it."""
    schedule = replace(IID_STEPS, rounds=3, clients_a_round=2)
    defense = AdaClip(clip=0.5, noise_multiplier=0.1)
    found = trained("mlp", defense, schedule, keep=range(4))
    model = build("mlp", (1, 28, 28), 10)
    shares = partition(LABELS, schedule, SEED, AXES)
    for t in range(3):
        clients, steps = sample(shares, schedule, SEED, AXES, t)
        states: list[Moments] = []
        for row, client in enumerate(clients):  # every client by himself
            batches = [batch_of(step.positions[[row]]) for step in steps]
            context = Context(
                round=t, total=3, batch_size=4, clients=(client,), noise=NOISE
            )  # fmt: skip
            point = found.points[t]
            states.append(
                run_round(
                    model, point.weights, batches, defense, point.state, context,
                    learning_rate=RATE,
                ).state
            )  # fmt: skip
        merged = found.points[t + 1].state
        for name, value in start("mlp").items():
            mean = (states[0].mean[name] + states[1].mean[name]) / 2
            square = (states[0].std[name] ** 2 + states[1].std[name] ** 2) / 2
            assert merged.mean[name].shape == (1, *value.shape)
            torch.testing.assert_close(merged.mean[name], mean, rtol=1e-9, atol=1e-12)
            torch.testing.assert_close(merged.std[name], square.sqrt(), rtol=1e-9, atol=1e-12)
        assert not torch.equal(states[0].mean["dense3.bias"], states[1].mean["dense3.bias"])


def test_public_examples_are_looked_at_in_every_round() -> None:
    defense = BatchClipALC(clip=0.1, noise_multiplier=0.0)
    model = build("mlp", (1, 28, 28), 10)
    public = public_gradients(model, DIGITS.public[:6].double(), DIGITS.public_labels[:6])
    seen: list[Weights] = []

    def looked(weights: Weights, size: int) -> Iterable[Gradients]:
        seen.append(weights)
        return public(weights, size)

    found = trained("mlp", defense, IID, public=looked, keep=range(2))
    assert len(seen) == 2
    for t, weights in enumerate(seen):
        assert equal(weights, found.points[t].weights)


# ---------------------------------------------------------------------------- points and curve


@pytest.mark.parametrize(
    "defense", [Defense(), DPBaseline(clip=0.3), QuantileClip()], ids=["none", "fixed", "quantile"]
)
@pytest.mark.parametrize("schedule", [CENTRAL, COINS], ids=["central", "coins"])
def test_a_kept_point_is_a_shorter_training(defense: Defense, schedule: Schedule) -> None:
    long = trained("mlp", defense, replace(schedule, rounds=5), keep=(0, 2, 5))
    assert list(long.points) == [0, 2, 5]
    assert equal(long.points[0].weights, start("mlp"))
    assert equal(long.points[5].weights, long.weights)
    short = trained("mlp", defense, replace(schedule, rounds=2), keep=(2,))
    assert equal(long.points[2].weights, short.weights)
    assert not equal(long.points[2].weights, long.weights)
    if isinstance(defense, QuantileClip):
        assert equal(long.points[2].state.clip, short.points[2].state.clip)


def test_the_curve_is_what_evaluate_said_of_the_weights_of_that_round() -> None:
    seen: list[Weights] = []

    def evaluate(weights: Weights) -> float:
        seen.append(weights)
        return -float(len(seen))

    found = trained("mlp", Defense(), IID, evaluate=evaluate, evaluate_at=(0, 2), keep=(0, 1, 2))
    assert found.curve == ((0, -1.0), (2, -2.0))
    assert equal(seen[0], found.points[0].weights) and equal(seen[1], found.points[2].weights)
    assert trained("mlp", Defense(), IID, evaluate_at=(0,)).curve == ()


def test_training_lowers_the_loss() -> None:
    def loss(weights: Weights) -> float:
        return float(F.cross_entropy(logits("cnn2_relu", weights, IMAGES), LABELS))

    schedule = replace(IID, rounds=20, batch_size=8, local_steps=2)
    found = trained(
        "cnn2_relu", Defense(), schedule, dtype=torch.float32, evaluate=loss, evaluate_at=(0, 20)
    )
    assert found.curve[1][1] < 0.6 * found.curve[0][1]


def test_what_is_said_of_a_training() -> None:
    found = trained("mlp", Defense(), replace(DIRICHLET, rounds=3))
    assert found.iterations == 6
    assert found.seconds_per_iteration is not None and 0 < found.seconds_per_iteration < 60
    assert found.setting.rounds == 3 and found.setting.local_steps == 2
    assert (found.setting.clients, found.setting.all_clients) == (3, 5)
    shares = partition(LABELS, DIRICHLET, SEED, AXES)
    assert found.setting.examples == min(len(share) for share in shares)
    poisson = trained("mlp", Defense(), POISSON).setting
    assert (poisson.sampling, poisson.examples, poisson.batch_size) == ("poisson", 240, 6)
    assert poisson.example_rate == 6 / 240


def test_a_client_holds_no_more_than_his_first_examples() -> None:
    for schedule in (CENTRAL, IID, SHARDS):
        short = replace(schedule, examples_a_client=7)
        whole = partition(LABELS, schedule, SEED, AXES)
        shares = partition(LABELS, short, SEED, AXES)
        assert [len(share) for share in shares] == [7] * schedule.clients
        for share, all_of_it in zip(shares, whole, strict=True):
            assert torch.equal(share, all_of_it[:7])


@pytest.mark.parametrize("schedule", [CENTRAL, IID_STEPS, POISSON_STEPS])
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_chunks_change_rounding_only(schedule: Schedule, dtype: torch.dtype) -> None:
    defense = DPBaseline(clip=0.3, noise_multiplier=0.1)
    whole = trained("cnn2", defense, schedule, dtype=dtype, chunk_size=None).weights
    tolerance = 1e-6 if dtype == torch.float32 else 1e-14
    for size in (1, 7, 256):
        other = trained("cnn2", defense, schedule, dtype=dtype, chunk_size=size).weights
        close(other, whole, tolerance)
        if schedule.local_steps == 1:
            assert equal(other, whole)


def test_bytes_and_floats_are_the_same_digits() -> None:
    model, weights = build("mlp", (1, 28, 28), 10), start("mlp", torch.float32)
    found = [
        train(model, weights, images, LABELS, Defense(), CENTRAL, seed=SEED, noise=NOISE).weights
        for images in (IMAGES, (IMAGES * 255).round().to(torch.uint8))
    ]
    close(found[0], found[1], 1e-6)


# ---------------------------------------------------------------------------- leaks of a round


def batch_of(positions: Tensor) -> Batch:
    return Batch(inputs=IMAGES[positions].double(), labels=LABELS[positions])


LATER = replace(IID_STEPS, rounds=3)
TAPPED = FedSDPServer(clip=0.05, noise_multiplier=0.4)


def last_round(point: LeakPoint, stop: bool = False) -> tuple[Any, Trained]:
    """Round 2 of 3 again from the kept point, with a tap, and the whole training."""
    found = trained("mlp", TAPPED, LATER, keep=(2,))
    shares = partition(LABELS, LATER, SEED, AXES)
    clients, steps = sample(shares, LATER, SEED, AXES, 2)
    done = run_round(
        build("mlp", (1, 28, 28), 10), found.points[2].weights,
        [batch_of(step.positions) for step in steps], TAPPED, found.points[2].state,
        Context(round=2, total=3, batch_size=4, clients=clients, noise=NOISE),
        learning_rate=RATE, point=point, stop_at_tap=stop,
    )  # fmt: skip
    return done, found


def test_taps_of_a_later_round() -> None:
    """Types 2 at the second local step, 1, and 0 before and after the server's noise."""
    raw, noised, sent, batch, example = (
        last_round(point)[0].tapped
        for point in (
            LeakPoint(type=0, view="raw", round=2),
            LeakPoint(type=0, round=2),
            LeakPoint(type=1, round=2),
            LeakPoint(view="batch", round=2, iteration=1),
            LeakPoint(round=2, iteration=1),
        )
    )
    _, found = last_round(LeakPoint())
    shares = partition(LABELS, LATER, SEED, AXES)
    clients, steps = sample(shares, LATER, SEED, AXES, 2)
    for row, client in enumerate(clients):
        local = dict(found.points[2].weights)
        for iteration, step in enumerate(steps):
            each = [gradient("mlp", local, p) for p in step.positions[row].tolist()]
            mean = {k: torch.stack([one[k] for one in each]).mean(dim=0) for k in local}
            if iteration == 1:
                of_client = {k: v[row] for k, v in batch.tensors.items()}
                close(of_client, mean, 1e-11)
                for place, one in enumerate(each):
                    close({k: v[row, place] for k, v in example.tensors.items()}, one, 1e-11)
            local = {k: v - RATE * mean[k] for k, v in local.items()}
        update = {k: local[k] - v for k, v in found.points[2].weights.items()}
        close({k: v[row] for k, v in sent.tensors.items()}, update, 1e-11)
        kept = clipped(update, 0.05)
        shown = {
            k: v + 0.02 * drawn(f"update/{k}", Place(2, client, 0, 4), v.shape)
            for k, v in kept.items()
        }
        close({k: v[row] for k, v in noised.tensors.items()}, shown, 1e-11)
    assert equal(raw.tensors, sent.tensors)


@pytest.mark.parametrize(
    "point",
    [
        LeakPoint(round=2, iteration=2),
        LeakPoint(view="batch", round=2),
        LeakPoint(type=1, round=2),
        LeakPoint(type=0, view="raw", round=2),
        LeakPoint(type=0, round=2),
    ],
    ids=str,
)
def test_a_tapped_round_is_the_round_of_the_training(point: LeakPoint) -> None:
    done, found = last_round(point)
    stopped, _ = last_round(point, stop=True)
    if point.type == 2 and point.view == "example":
        close(done.weights, found.weights, 1e-12)  # gradients of examples, averaged
    else:
        assert equal(done.weights, found.weights)
    assert stopped.weights is None and equal(stopped.tapped.tensors, done.tapped.tensors)


def test_one_victim_leaks_otherwise_in_every_round() -> None:
    """The same digit in the same batch, at the weights of four rounds."""
    schedule = replace(CENTRAL, rounds=4)
    defense = DPBaseline(clip=0.3, noise_multiplier=0.0)
    found = trained("mlp", defense, schedule, keep=range(4))
    batch, victim = batch_of(torch.arange(6)[None]), torch.tensor([(0, 3)])
    leaks = []
    for t, point in found.points.items():
        seen = capture(
            build("mlp", (1, 28, 28), 10), point.weights, [batch], defense,
            Context(clients=(0,), round=t, total=4, batch_size=6, noise=NOISE),
            LeakPoint(round=t), victim,
            state=point.state,
        )  # fmt: skip
        by_hand = clipped(gradient("mlp", point.weights, 3), 0.3)
        close({k: v[0] for k, v in seen.tensors.items()}, by_hand, 1e-11)
        leaks.append(by_hand)
    for t in range(3):
        assert not equal(found.points[t].weights, found.points[t + 1].weights)
        change = (leaks[t]["dense1.weight"] - leaks[t + 1]["dense1.weight"]).norm()
        assert float(change) > 1e-3


# ---------------------------------------------------------------------------- errors


@dataclass(frozen=True)
class Untouchable:
    """A network whose gradients nobody may ask for."""

    head: str = "dense3.weight"
    loss = "cross_entropy"
    mixes_examples = False

    def init(self, generator: torch.Generator, dtype: torch.dtype) -> Tensors:
        return start("mlp", dtype)

    def logits(self, weights: Weights, inputs: Tensor) -> Tensor:
        raise AssertionError("a gradient was computed")


class Mixing(Untouchable):
    mixes_examples = True


class Whole(OnPairs):
    @property
    def row(self) -> Row:
        return "batch"


WRONG_SCHEDULES: list[tuple[dict[str, Any], str]] = [
    ({"clients_a_round": 6}, "6 clients a round of 5; allowed: 1 to 5"),
    ({"clients": 1, "clients_a_round": 2}, "2 clients a round of 1"),
    ({"rounds": 0}, "rounds must be at least 1, got 0"),
    ({"rounds": math.nan}, "rounds must be a whole number, got nan"),
    ({"local_steps": 1.5}, "local_steps must be a whole number, got 1.5"),
    ({"learning_rate": math.nan}, "learning_rate must be positive and finite, got nan"),
    ({"batch_size": 0}, "batch_size must be at least 1"),
    ({"clients": 0}, "clients must be at least 1"),
    ({"clients_a_round": 0}, "clients_a_round must be at least 1"),
    ({"local_steps": -1}, "local_steps must be at least 1"),
    ({"examples_a_client": 0}, "examples_a_client must be at least 1"),
    ({"examples_a_client": -4}, "examples_a_client must be at least 1"),
    *[
        ({"learning_rate": rate}, f"learning_rate must be positive and finite, got {rate}")
        for rate in (0.0, -0.1, math.inf, math.nan)
    ],
    (
        {"sampling": "poisson", "aggregation": "fed_averaging"},
        "aggregation must not be 'fed_averaging'",
    ),
    ({"sampling": "none"}, "unknown sampling 'none'; allowed: fixed_size, poisson"),
    ({"sampling": "poison"}, "unknown sampling 'poison' .did you mean 'poisson'"),
    ({"aggregation": "fedavg"}, "unknown aggregation 'fedavg'.*fed_averaging, fed_sgd"),
    ({"partition": "shard"}, "unknown partition 'shard' .did you mean 'shards'"),
]


@pytest.mark.parametrize(("changes", "said"), WRONG_SCHEDULES)
def test_a_wrong_schedule_is_one_sentence(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(LeakbenchError, match=f"^training: .*{said}") as caught:
        replace(IID, **changes)
    assert "\n" not in str(caught.value)


EVERYBODY = replace(IID, clients=5, examples_a_client=4)
REFUSED: list[tuple[Any, Defense, Schedule, str]] = [
    (
        Untouchable(), Defense(), replace(EVERYBODY, batch_size=5),
        "a client holds 4 examples, less than a batch of 5; allowed: batch_size up to 4",
    ),
    (
        Untouchable(), Defense(), replace(CENTRAL, batch_size=241),
        "a client holds 240 examples, less than a batch of 241",
    ),
    (
        Untouchable(), Defense(), replace(DIRICHLET, concentration=1e-3, clients=12),
        "partition 'dirichlet': of 1000 draws with concentration 0.001 none gives each of",
    ),
    (
        Untouchable(), Defense(), replace(IID, clients=241),
        "partition 'iid': 240 examples cannot be cut into 241 parts",
    ),
    (
        Untouchable(), Defense(), replace(SHARDS, classes_a_client=0),
        "partition 'shards': 240 examples cannot be cut into 0 parts",
    ),
    (
        Untouchable(), Defense(), replace(DIRICHLET, concentration=-1.0),
        "partition 'dirichlet': concentration must be positive and finite, got -1.0",
    ),
    (
        Untouchable(), OnPairs(), replace(CENTRAL, batch_size=5),
        "a batch of 5 examples has no subsets of 2; allowed: divisors of batch_size",
    ),
    (
        Untouchable(), BatchClip(subset=12), CENTRAL,
        "a batch of 6 examples has no subsets of 12",
    ),
    (
        Untouchable(), OnPairs(), POISSON,
        "defense 'on_pairs': subsets of 2 need batches of one size; allowed sampling: fixed_size",
    ),
    (
        Untouchable(), BatchClip(subset=6), POISSON,
        "defense 'batch_clip': subsets of 6 need batches of one size",
    ),
    (
        Untouchable(), BatchClipALC(), IID,
        "defense 'batch_clip_alc': needs public examples, none are given",
    ),
    (Mixing(), DPBaseline(), IID, "defense 'dp_baseline': .* batch normalisation mixes"),
    (Mixing(), BatchClip(subset=1), IID, "defense 'batch_clip': .* batch normalisation mixes"),
    (
        Mixing(), BatchClipALC(subset=1), IID,
        "defense 'batch_clip_alc': clips single examples, which batch normalisation mixes",
    ),
    (Mixing(), OnBatches(), POISSON, "batch normalisation would mix in the padding"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "defense", "schedule", "said"), REFUSED)
def test_what_cannot_be_trained_is_refused_before_any_gradient(
    model: Any, defense: Defense, schedule: Schedule, said: str
) -> None:
    with pytest.raises(LeakbenchError, match=said) as caught:
        train(
            model, start("mlp"), IMAGES, LABELS, defense, schedule, seed=SEED, noise=NOISE,
            axes=AXES,
        )  # fmt: skip
    assert "\n" not in str(caught.value)


ALLOWED: list[tuple[Any, Defense, Schedule]] = [
    (Untouchable(), Whole(), POISSON),  # the batch, whatever its size
    (Untouchable(), BatchClip(subset=1), POISSON),
    (Untouchable(), OnPairs(), COINS),  # clients come by coin, their batches are full
    (Mixing(), OnBatches(), COINS),
    (Mixing(), OnPairs(), IID),
    (Mixing(), Whole(), CENTRAL),
    (Untouchable(), Defense(), EVERYBODY),
]


@pytest.mark.parametrize(("model", "defense", "schedule"), ALLOWED)
def test_what_is_close_to_it_is_not_refused(
    model: Any, defense: Defense, schedule: Schedule
) -> None:
    shares = partition(LABELS, schedule, SEED, AXES)
    federated.check(model, defense, schedule, shares, None)


def test_batch_norm_of_a_module_is_recognised() -> None:
    module = nn.Sequential(
        nn.BatchNorm2d(1, track_running_stats=False), nn.Flatten(), nn.Linear(784, 10)
    )
    model = ModuleModel(module=module, head="2.weight")
    shares = [torch.arange(240)]
    with pytest.raises(LeakbenchError, match="batch normalisation mixes"):
        federated.check(model, DPBaseline(), CENTRAL, shares, None)
    federated.check(model, OnBatches(), CENTRAL, shares, None)
