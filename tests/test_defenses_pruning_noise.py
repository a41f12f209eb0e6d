"""Pruning, selective sharing, plain noise and Fed-SDP on real gradients, against plain loops,
closed forms and scipy."""

import math
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from leakbench import data
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
)
from leakbench.defenses.dssgd import DSSGD
from leakbench.defenses.fed_sdp import FedSDPClient, FedSDPServer
from leakbench.defenses.none import NoDefense
from leakbench.defenses.prune import Prune
from leakbench.defenses.random_noise import RandomNoise
from leakbench.errors import LeakbenchError
from leakbench.gradients import per_example
from leakbench.simulation import Simulator
from leakbench.streams import NoiseStreams, generator
from leakbench.testing import check_defense
from leakbench.training import Batch, capture, run_round

Floats = NDArray[np.float64]

MODEL = build("lenet_cpl", (1, 28, 28), 10)
WEIGHTS = MODEL.init(generator(3, "weights"), torch.float32)
COORDINATES = sum(value.numel() for value in WEIGHTS.values())
SIZE, CLIENTS, RATE = 4, 2, 0.1
OBSERVERS: tuple[Observer, ...] = get_args(Observer)

EXAMPLE, BATCH = LeakPoint(), LeakPoint(view="batch")
SENT, RECEIVED, HELD = LeakPoint(type=1), LeakPoint(type=0, view="raw"), LeakPoint(type=0)
VICTIMS = torch.tensor([(client, place) for client in range(CLIENTS) for place in range(SIZE)])

DEFENSES: list[Defense] = [
    Prune(),
    Prune(fraction=0.5, scope="tensor", at="example"),
    Prune(fraction=0.0),
    RandomNoise(),
    RandomNoise(distribution="laplace", at="example"),
    RandomNoise(at="update"),
    DSSGD(),
    DSSGD(selection="largest", bound=0.01, at="example"),
    DSSGD(at="example", threshold=1e-3),
    DSSGD(bound=0.01, threshold=1e-4, epsilon=10.0),
    FedSDPServer(),
    FedSDPClient(),
]


def digits(clients: int = CLIENTS, size: int = SIZE, steps: int = 1) -> list[Batch]:
    """Real digits for every client and local step."""
    dataset = data.load("mnist")
    shape = (steps, clients, size)
    wanted = math.prod(shape)
    images = dataset.candidates[:wanted].reshape(*shape, 1, 28, 28)
    labels = dataset.candidate_labels[:wanted].reshape(shape)
    return [Batch(inputs=images[step], labels=labels[step]) for step in range(steps)]


@pytest.fixture(scope="module")
def examples() -> Gradients:
    """Of real digits, axes ("client", "example")."""
    batch = digits()[0]
    return per_example(MODEL, WEIGHTS, batch.inputs, batch.labels)


@pytest.fixture(scope="module")
def update(examples: Gradients) -> Gradients:
    """The clients' dW after one step on their digits, axes ("client",)."""
    return examples.mean("example").map(lambda _, value: -RATE * value)


def context(**changes: Any) -> Context:
    """Two clients with noise."""
    base = Context(batch_size=SIZE, clients=tuple(range(CLIENTS)), noise=NoiseStreams(7, ()))
    return replace(base, **changes)


def replayed(observed: Gradients | None, **changes: Any) -> Context:
    return context(noise=None, observation=observed, **changes)


def vector(rows: Any, axes: Any = ("client",)) -> Gradients:
    """Gradients of one tensor."""
    return Gradients({"a": torch.as_tensor(rows, dtype=torch.float32)}, axes)


def shown(defense: Defense, gradients: Gradients, here: Context) -> Gradients:
    """What the hook of a defense that is `at` an update or an example makes of it."""
    hook = defense.on_examples if "example" in gradients.axes else defense.on_update
    return hook(gradients, None, here)[0]


def one(defense: Defense, row: list[float], **changes: Any) -> list[float]:
    """The same for a single client's update of one tensor."""
    found = shown(defense, vector([row]), context(clients=(0,), **changes))
    return found.tensors["a"][0].tolist()


def equal(one: Gradients, other: Gradients) -> bool:
    """Bit for bit, where nan is nan."""
    return all(
        torch.equal(value.nan_to_num(12345.0), other.tensors[name].nan_to_num(12345.0))
        for name, value in one.tensors.items()
    )


def std_of(value: Tensor) -> float:
    return float(value.double().square().mean().sqrt())


def taken(share: float, size: int) -> int:
    """floor(share * size) in decimal arithmetic."""
    return int(Decimal(str(share)) * size)


def zeros(weights: dict[str, Tensor], rows: int, axes: Any) -> Gradients:
    """Zero gradients of the real shapes, `rows` of them on the client axis."""
    leading = (rows,) if len(axes) == 1 else (rows, 1)
    return Gradients({k: torch.zeros(*leading, *v.shape) for k, v in weights.items()}, axes)


def tap(defense: Defense, point: LeakPoint, steps: int = 1) -> Gradients:
    """What is read at `point` of a round on real digits with noise."""
    done = run_round(
        MODEL, WEIGHTS, digits(steps=steps), defense, defense.init(WEIGHTS), context(),
        learning_rate=RATE, point=point,
    )  # fmt: skip
    assert done.tapped is not None
    return done.tapped


# ---------------------------------------------------------------------------- pruning


def smallest_by_sorting(row: list[float], count: int) -> set[int]:
    """Places of the `count` smallest magnitudes, of equal ones the first."""
    return set(sorted(range(len(row)), key=lambda place: (abs(row[place]), place))[:count])


def rows_of(gradients: Gradients, names: list[str]) -> Iterator[list[float]]:
    """Every single gradient's coordinates of these tensors, side by side."""
    part = Gradients({name: gradients.tensors[name] for name in names}, gradients.axes)
    flat = part.flatten()
    return iter(flat.reshape(-1, flat.shape[-1]).tolist())


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("scope", ["global", "tensor"])
@pytest.mark.parametrize("at", ["update", "example"])
def test_pruning_zeroes_the_exact_share(
    examples: Gradients, update: Gradients, at: Any, scope: Any, fraction: float
) -> None:
    """Of every client or example apart; what survives keeps its bits."""
    before = examples if at == "example" else update
    after = shown(Prune(fraction=fraction, scope=scope, at=at), before, context())
    groups = [list(WEIGHTS)] if scope == "global" else [[name] for name in WEIGHTS]
    for names in groups:
        for old, new in zip(rows_of(before, names), rows_of(after, names), strict=True):
            count = taken(fraction, len(old))
            expected = smallest_by_sorting(old, count)
            assert {place for place, value in enumerate(new) if value == 0} == expected
            assert len(expected) == count
            kept = [place for place in range(len(old)) if place not in expected]
            assert [new[place] for place in kept] == [old[place] for place in kept]


def test_scopes_differ_on_real_gradients(update: Gradients) -> None:
    """One threshold for all takes whole tensors; a threshold each takes its share of each."""
    together = shown(Prune(fraction=0.9, scope="global"), update, context())
    apart = shown(Prune(fraction=0.9, scope="tensor"), update, context())
    for name, value in WEIGHTS.items():
        per_client = (apart.tensors[name] == 0).flatten(1).sum(dim=1).tolist()
        assert per_client == [taken(0.9, value.numel())] * CLIENTS
    assert not equal(together, apart)


@given(
    rows=st.lists(
        st.lists(st.integers(-2, 2), min_size=7, max_size=7), min_size=1, max_size=3
    ),
    fraction=st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.6, 0.9]),
)  # fmt: skip
def test_of_equal_values_the_first_are_taken(rows: list[list[int]], fraction: float) -> None:
    before = vector(rows)
    here = context(clients=tuple(range(len(rows))))
    after = shown(Prune(fraction=fraction), before, here).tensors["a"].tolist()
    for old, new in zip(rows, after, strict=True):
        gone = smallest_by_sorting([float(value) for value in old], taken(fraction, 7))
        assert new == [0 if place in gone else value for place, value in enumerate(old)]
    largest = shown(DSSGD(share=0.5, selection="largest"), before, here).tensors["a"].tolist()
    for old, new in zip(rows, largest, strict=True):
        kept = sorted(range(7), key=lambda place: (-abs(old[place]), place))[:3]
        assert new == [value if place in kept else 0 for place, value in enumerate(old)]


@pytest.mark.parametrize("fraction", [0.29, 0.57, 0.58, 0.7])
def test_share_is_counted_in_decimal_digits(fraction: float) -> None:
    """In binary 0.29 * 100 is 28.99..., and its floor 28."""
    row = [1.0 + place for place in range(100)]
    assert one(Prune(fraction=fraction), row).count(0.0) == round(100 * fraction)
    kept = one(DSSGD(share=fraction, selection="largest"), row)
    assert 100 - kept.count(0.0) == round(100 * fraction)


def test_pruning_nothing_keeps_every_bit(examples: Gradients, update: Gradients) -> None:
    assert equal(shown(Prune(fraction=0.0), update, context()), update)
    defense = Prune(fraction=0.0, at="example")
    assert equal(shown(defense, examples, context()), examples)
    # And so in a replay, where a coordinate was observed as 0 because it is.
    observed = vector([[0.0, 1.0, 2.0]])
    dummy = vector([[3.0, 4.0, 5.0]])
    assert equal(shown(Prune(fraction=0.0), dummy, replayed(observed, clients=(0,))), dummy)


def test_pruning_of_values_that_are_not_finite() -> None:
    assert one(Prune(fraction=0.5), [0.0, 0.0, 0.0, 0.0]) == [0.0] * 4
    assert one(Prune(fraction=0.5), [math.inf, 1.0, -math.inf, 2.0]) == [
        math.inf, 0.0, -math.inf, 0.0,
    ]  # fmt: skip
    spoilt = one(Prune(fraction=0.5), [math.nan, 1.0, 3.0, 2.0])
    assert math.isnan(spoilt[0]) and spoilt[1:] == [0.0, 3.0, 0.0]
    bare = one(Prune(fraction=0.75), [math.nan, math.nan, math.inf, 2.0])
    assert math.isnan(bare[1]) and [bare[0], *bare[2:]] == [0.0] * 3
    rows = vector([[math.nan, 1.0, 3.0, 2.0], [4.0, 1.0, 3.0, 2.0]])
    both = shown(Prune(fraction=0.5), rows, context())
    assert both.tensors["a"][1].tolist() == [4.0, 0.0, 3.0, 0.0]


# ---------------------------------------------------------------------------- replays of masks


MASKS: list[Any] = [
    Prune(fraction=0.5),
    DSSGD(share=0.5, selection="largest"),
    DSSGD(share=0.5, selection="random"),
    DSSGD(share=0.5, bound=100.0, threshold=1e-3, epsilon=1e9),
]


@pytest.mark.parametrize("defense", MASKS, ids=str)
@pytest.mark.parametrize("at", ["update", "example"])
def test_replay_takes_the_mask_from_the_observation(defense: Any, at: Any) -> None:
    """Also where the dummy's own largest coordinates are others; nothing flows through zeros."""
    defense = replace(defense, at=at)
    observed = vector([[0.0, 5.0, 0.0, -2.0], [1.0, 0.0, 3.0, 0.0]])
    values = torch.tensor([[9.0, 1.0, -8.0, 2.0], [1.0, 7.0, 2.0, -6.0]], requires_grad=True)
    dummy = Gradients({"a": values}, ("client",))
    if at == "example":
        dummy = Gradients({"a": values[:, None]}, ("client", "example"))
    here = replace(replayed(observed), batch_size=1)  # one example behind each observation
    found = shown(defense, dummy, here).tensors["a"]
    assert found.reshape(2, 4).tolist() == [[0.0, 1.0, 0.0, 2.0], [1.0, 0.0, 2.0, 0.0]]
    slope = torch.autograd.grad(found.sum(), values)[0]
    assert slope.tolist() == [[0.0, 1.0, 0.0, 1.0], [1.0, 0.0, 1.0, 0.0]]


@pytest.mark.parametrize(
    "defense",
    [Prune(fraction=0.5), DSSGD(share=0.5, selection="largest"), DSSGD(share=0.5)],
    ids=str,
)
def test_more_zeros_than_were_pruned_hide_nothing(defense: Any) -> None:
    """[0 0 0 1] lost only zeros to a share of one half: the attacker knows them all, no mask."""
    observed = vector([[0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 2.0, 1.0]])
    dummy = vector([[9.0, 8.0, 7.0, 6.0], [9.0, 8.0, 7.0, 6.0]])
    found = shown(defense, dummy, replayed(observed)).tensors["a"].tolist()
    assert found == [[9.0, 8.0, 7.0, 6.0], [0.0, 0.0, 7.0, 6.0]]


def test_few_shared_values_above_a_threshold_do_not_lift_the_mask() -> None:
    """What was not shared need not be 0, only below the threshold; or noise sorted it out."""
    observed = vector([[0.0, 0.0, 0.0, 1.0]])
    dummy = vector([[9.0, 8.0, 7.0, 6.0]])
    for defense in (
        DSSGD(share=0.5, threshold=0.5),
        DSSGD(share=0.5, bound=10.0, epsilon=1.0),
    ):
        found = shown(defense, dummy, replayed(observed, clients=(0,)))
        assert found.tensors["a"].tolist() == [[0.0, 0.0, 0.0, 6.0]]


def test_masks_of_several_examples_cannot_be_observed() -> None:
    """Their mean shows all that any of them kept: each is pruned by its own values, in a replay as
    in the step itself. Random masks are lost, but not that of what none shared."""
    own = vector([[[4.0, 1.0, 3.0, 0.5], [0.5, 6.0, 0.25, 7.0]]], ("client", "example"))
    observed = vector([[2.0, 3.0, 1.5, 0.0]])
    for defense in (
        Prune(fraction=0.5, at="example"),
        DSSGD(share=0.5, selection="largest", at="example"),
    ):
        there = shown(defense, own, context(clients=(0,)))
        assert there.tensors["a"].tolist() == [[[4.0, 0.0, 3.0, 0.0], [0.0, 6.0, 0.0, 7.0]]]
        assert equal(shown(defense, own, replayed(observed, clients=(0,))), there)
    drawn = shown(DSSGD(share=0.5, at="example"), own, replayed(observed, clients=(0,)))
    assert drawn.tensors["a"].tolist() == [[[4.0, 1.0, 3.0, 0.0], [0.5, 6.0, 0.25, 0.0]]]


def test_replay_without_an_observation() -> None:
    """Pruning goes by its own values; what would be drawn at random is not known."""
    row = [3.0, -1.0, 2.0, -4.0]
    pruned = [3.0, 0.0, 0.0, -4.0]
    assert one(Prune(fraction=0.5), row, noise=None) == pruned
    assert one(DSSGD(share=0.5, selection="largest"), row, noise=None) == pruned
    assert one(DSSGD(share=0.5, bound=2.5), row, noise=None) == [2.5, -1.0, 2.0, -2.5]


@pytest.mark.parametrize(
    ("defense", "point"),
    [
        (Prune(at="example"), EXAMPLE),
        (Prune(fraction=0.5, scope="tensor", at="example"), EXAMPLE),
        (Prune(), SENT),
        (Prune(at="example"), BATCH),
        (DSSGD(at="example", bound=0.05), EXAMPLE),
        (DSSGD(selection="largest"), HELD),
        (DSSGD(bound=0.002), SENT),
        (RandomNoise(std=0.0), HELD),
    ],
    ids=str,
)
def test_adaptive_attacker_meets_the_observation_at_the_truth(
    defense: Defense, point: LeakPoint
) -> None:
    """The true inputs give exactly what was observed, zeros and bounds with it."""
    batch = digits()[0]
    single = point == EXAMPLE
    seen = capture(
        MODEL, WEIGHTS, [batch], defense, context(), point, VICTIMS, learning_rate=RATE
    )  # fmt: skip
    inputs = batch.inputs.reshape(-1, 1, 1, 28, 28) if single else batch.inputs
    labels = batch.labels.reshape(-1, 1) if single else batch.labels
    found = {}
    for name, replay in (("adaptive", defense), ("naive", Defense())):
        simulate = Observation(
            weights=WEIGHTS,
            gradients=seen,
            run=Simulator(
                model=MODEL,
                replays=[
                    Replay(
                        defense=replay,
                        state=None,
                        context=Context(batch_size=1, clients=(0,), noise=None),
                    )
                ],
                replay_of=torch.zeros(len(inputs), dtype=torch.int64),
                point=point,
                learning_rate=RATE,
            ),
        ).simulate
        found[name] = simulate(inputs, labels, torch.arange(len(inputs))).flatten()
    scale = float(found["naive"].abs().max())
    torch.testing.assert_close(found["adaptive"], seen.flatten(), rtol=1e-5, atol=1e-6 * scale)
    if not isinstance(defense, RandomNoise):
        assert float((found["naive"] - seen.flatten()).abs().max()) > 0.01 * scale


# ---------------------------------------------------------------------------- selective sharing


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5])
@pytest.mark.parametrize("at", ["update", "example"])
@pytest.mark.parametrize("selection", ["largest", "random"])
def test_the_exact_share_of_coordinates_is_shared(
    examples: Gradients, update: Gradients, selection: Any, at: Any, share: float
) -> None:
    before = examples if at == "example" else update
    after = shown(DSSGD(share=share, selection=selection, at=at), before, context())
    count = taken(share, COORDINATES)
    old, new = (g.flatten().reshape(-1, COORDINATES) for g in (before, after))
    assert (new != 0).sum(dim=1).tolist() == [count] * len(new)
    assert torch.equal(new[new != 0], old[new != 0])
    if selection == "largest":
        for row, kept in zip(old, new, strict=True):
            bar = row.abs().sort(descending=True).values[count - 1]
            assert bool((kept[row.abs() > bar] != 0).all())
            assert bool((kept[row.abs() < bar] == 0).all())
    else:
        chosen = new != 0
        assert not any(torch.equal(chosen[0], other) for other in chosen[1:])


@pytest.mark.parametrize("selection", ["largest", "random"])
def test_fewer_are_shared_where_fewer_are_above_the_threshold(
    update: Gradients, selection: Any
) -> None:
    size = update.flatten().abs()
    bar = float(size.flatten().quantile(0.9))
    above = (size > bar).sum(dim=1).tolist()
    wanted = taken(0.1, COORDINATES)
    assert min(above) < wanted < max(above)  # one client has fewer, the other more
    after = shown(DSSGD(share=0.1, selection=selection, threshold=bar), update, context())
    kept = after.flatten() != 0
    assert kept.sum(dim=1).tolist() == [min(count, wanted) for count in above]
    assert bool((size[kept] > bar).all())
    at_the_bar = DSSGD(share=1.0, selection=selection, threshold=2.0)
    assert one(at_the_bar, [2.0, -3.0, 1.0, -2.0]) == [0.0, -3.0, 0.0, 0.0]


def test_random_choice_is_uniform_among_those_above_the_threshold() -> None:
    """Each of the 12 of 20 that qualify is taken in 5 / 12 of 6,000 clients, within 4.5 errors."""
    clients, row = 6000, torch.cat([torch.full((8,), 0.5), 1.0 + torch.arange(12.0)])
    defense = DSSGD(share=0.25, threshold=0.9)
    here = context(clients=tuple(range(clients)))
    kept = shown(defense, vector(row.expand(clients, 20)), here).tensors["a"] != 0
    assert not bool(kept[:, :8].any())
    rates = kept[:, 8:].double().mean(dim=0)
    error = math.sqrt(5 / 12 * 7 / 12 / clients)
    assert float((rates - 5 / 12).abs().max()) < 4.5 * error
    together = (kept[:, 8] & kept[:, 9]).double().mean()  # without replacement: 5 * 4 / (12 * 11)
    assert float(together) == pytest.approx(5 * 4 / (12 * 11), abs=4.5 * error)


def test_choice_is_new_in_every_round_and_iteration(examples: Gradients) -> None:
    defense = DSSGD(at="example")
    places = [
        shown(defense, examples, context(round=r, iteration=i)).flatten() != 0
        for r, i in ((0, 0), (0, 1), (1, 0))
    ]
    assert not torch.equal(places[0], places[1]) and not torch.equal(places[0], places[2])


def test_shared_values_are_bounded(update: Gradients) -> None:
    bound = 1e-3
    after = shown(DSSGD(share=0.2, selection="largest", bound=bound), update, context()).flatten()
    free = shown(DSSGD(share=0.2, selection="largest"), update, context()).flatten()
    assert bool((free.abs() > bound).any())
    np.testing.assert_array_equal(after.numpy(), np.clip(free.numpy(), -bound, bound))


def test_sharing_of_values_that_are_not_finite() -> None:
    largest = DSSGD(share=0.5, selection="largest", bound=5.0)
    assert one(largest, [0.0] * 4) == [0.0] * 4
    assert one(largest, [math.nan, math.inf, 1.0, -2.0]) == [0.0, 5.0, 0.0, -2.0]
    assert one(replace(largest, bound=None), [1.0, 0.5, -math.inf, 2.0]) == [
        0.0, 0.0, -math.inf, 2.0,
    ]  # fmt: skip
    drawn = one(DSSGD(share=1.0), [math.nan, math.inf, 1.0, 0.0])
    assert drawn == [0.0, math.inf, 1.0, 0.0]
    noisy = one(DSSGD(share=1.0, bound=5.0, epsilon=1e9), [math.nan, math.inf, 1.0, -2.0])
    assert noisy == pytest.approx([0.0, 5.0, 1.0, -2.0], abs=1e-5)


def passing(gap: float, query: float, threshold: float) -> float:
    """P(Laplace(query) - Laplace(threshold) >= gap), scales a != b, by their convolution."""
    a, b = query, threshold
    beyond = abs(gap)
    tail = (a**2 * math.exp(-beyond / a) - b**2 * math.exp(-beyond / b)) / (2 * (a**2 - b**2))
    return tail if gap >= 0 else 1 - tail


@pytest.mark.parametrize("value", [0.0, 0.3, 2.0])
@pytest.mark.parametrize("epsilon", [1.0, 30.0])
def test_sparse_vector_passes_as_often_as_its_noise_says(value: float, epsilon: float) -> None:
    """Scales 9 D / (4 epsilon) on the threshold and twice that on the query, D = 2 bound."""
    bound, threshold, draws = 1.0, 0.5, 100_000
    defense = DSSGD(share=1.0, bound=bound, threshold=threshold, epsilon=epsilon)
    here = context(clients=tuple(range(10)))
    row = vector(torch.full((10, draws // 10), value))
    kept = shown(defense, row, here).tensors["a"] != 0
    scale = 9 * 2 * bound / (4 * epsilon)
    expected = passing(threshold - min(value, bound), 2 * scale, scale)
    error = math.sqrt(expected * (1 - expected) / draws)
    assert float(kept.double().mean()) == pytest.approx(expected, abs=4.5 * error)


def test_budget_of_a_coordinate_is_not_exceeded() -> None:
    """Passing and answer apart, worst neighbours: the ratios multiply to at most e^epsilon."""
    bound, epsilon = 1.0, 2.0
    scale = 9 * 2 * bound / (4 * epsilon)
    for threshold in (0.0, 0.1, 1.0, 5.0):
        rates = [passing(threshold - size, 2 * scale, scale) for size in (0.0, bound)]
        comparison = math.log(max(rates[1] / rates[0], (1 - rates[0]) / (1 - rates[1])))
        answer = 2 * bound / (9 * 2 * bound / epsilon)
        assert comparison + answer <= epsilon


def test_answers_carry_laplace_noise_and_are_bounded_after_it() -> None:
    bound, epsilon, draws = 1.0, 90.0, 40_000
    defense = DSSGD(share=1.0, bound=bound, epsilon=epsilon)
    row = vector(torch.full((1, draws), 3.0))  # bounded to 1 before the noise
    shared = shown(defense, row, context(clients=(0,))).tensors["a"].flatten()
    answers = shared[shared != 0].double().numpy()
    assert len(answers) > 10_000
    assert np.max(answers) <= bound
    at_bound = np.mean(answers >= bound)  # half of the noise is positive
    assert at_bound == pytest.approx(0.5, abs=4.5 * 0.5 / math.sqrt(len(answers)))
    below = bound - answers[answers < bound]
    inside = below[below < 2 * bound * (1 - 1e-6)]
    scale = 9 * 2 * bound / epsilon
    assert stats.kstest(inside, stats.expon(scale=scale).cdf).pvalue > 1e-3
    assert stats.kstest(inside, stats.expon(scale=1.1 * scale).cdf).pvalue < 1e-6


def test_sparse_vector_stops_at_the_share(update: Gradients) -> None:
    defense = DSSGD(share=0.05, bound=1e-3, threshold=1e-4, epsilon=8.0)
    after = shown(defense, update, context()).flatten()
    assert (after != 0).sum(dim=1).tolist() == [taken(0.05, COORDINATES)] * CLIENTS
    assert float(after.abs().max()) <= 1e-3 * (1 + 1e-6)


# ---------------------------------------------------------------------------- plain noise


HOOKS: dict[Literal["example", "batch", "update"], Any] = {
    "example": ("on_examples", ("client", "example")),
    "batch": ("on_batch", ("client",)),
    "update": ("on_update", ("client",)),
}


@pytest.mark.parametrize("distribution", ["gaussian", "laplace"])
@pytest.mark.parametrize("at", ["example", "batch", "update"])
@pytest.mark.parametrize("rows", [4000, 16], ids=["small tensors", "large tensors"])
def test_noise_has_the_stated_std_on_every_tensor(distribution: Any, at: Any, rows: int) -> None:
    """From 40,000 draws a tensor 3 % are over five standard errors, also for Laplace."""
    weights = {k: v for k, v in WEIGHTS.items() if (v.numel() < 1000) == (rows == 4000)}
    defense = RandomNoise(std=0.25, distribution=distribution, at=at)
    here = context(clients=tuple(range(rows)))
    for place, (hook, axes) in HOOKS.items():
        bare = zeros(weights, rows, axes)
        found, _ = getattr(defense, hook)(bare, None, here)
        for value in found.tensors.values():
            assert value.numel() >= 40_000
            expected = 0.25 if place == at else 0.0
            assert std_of(value) == pytest.approx(expected, rel=0.03)
            if place == at:
                assert abs(float(value.mean())) < 5 * 0.25 / math.sqrt(value.numel())


@pytest.mark.parametrize("distribution", ["gaussian", "laplace"])
def test_noise_has_the_stated_distribution(distribution: Any) -> None:
    """Kolmogorov-Smirnov accepts the right law and refuses the other; excess kurtosis 0 and 3."""
    std = 0.5
    defense = RandomNoise(std=std, distribution=distribution, at="update")
    found = shown(defense, vector(torch.zeros(1, 100_000)), context(clients=(0,)))
    noise = found.tensors["a"].flatten().double().numpy()
    laws = {
        "gaussian": stats.norm(scale=std),
        "laplace": stats.laplace(scale=std / math.sqrt(2)),
    }
    right = laws.pop(distribution)
    (wrong,) = laws.values()
    assert stats.kstest(noise, right.cdf).pvalue > 1e-3
    assert stats.kstest(noise, wrong.cdf).pvalue < 1e-6
    expected = {"gaussian": 0.0, "laplace": 3.0}[distribution]
    assert stats.kurtosis(noise) == pytest.approx(expected, abs=0.4)


@pytest.mark.parametrize("distribution", ["gaussian", "laplace"])
def test_noise_in_the_units_of_a_gradient(distribution: Any) -> None:
    """What types 0 and 1 read after L steps: std / sqrt(L) of batches, std / (L rate) of dW."""
    steps, std = 2, 1e-4  # too little to bend the second step
    by_batch = RandomNoise(std=std, distribution=distribution, at="batch")
    for defense, expected in (
        (by_batch, std / math.sqrt(steps)),
        (replace(by_batch, at="update"), std / (steps * RATE)),
    ):
        seen = [
            capture(
                MODEL, WEIGHTS, digits(steps=steps), which, context(), point, learning_rate=RATE
            ).flatten()
            for which, point in ((defense, SENT), (replace(defense, std=0.0), SENT))
        ]
        noise = seen[0] - seen[1]
        assert noise.numel() >= 10_000
        assert std_of(noise) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize(
    ("at", "reached"),
    [("example", (EXAMPLE, BATCH, SENT)), ("batch", (BATCH, SENT)), ("update", (SENT,))],
)
def test_noise_reaches_the_taps_behind_it(at: Any, reached: tuple[LeakPoint, ...]) -> None:
    loud, silent = RandomNoise(std=1.0, at=at), RandomNoise(std=0.0, at=at)
    for point in (EXAMPLE, BATCH, SENT):
        assert equal(tap(loud, point), tap(silent, point)) == (point not in reached)
    published = loud.noise_std("type2", WEIGHTS, None, context())
    assert published == dict.fromkeys(WEIGHTS, 1.0 if at == "example" else 0.0)


@pytest.mark.parametrize("distribution", ["gaussian", "laplace"])
def test_noise_leaves_values_that_are_not_finite(distribution: Any) -> None:
    defense = RandomNoise(std=1.0, distribution=distribution, at="update")
    found = one(defense, [math.nan, math.inf, -math.inf, 0.0])
    assert math.isnan(found[0]) and found[1:3] == [math.inf, -math.inf]
    assert found[3] != 0 and math.isfinite(found[3])
    row = [1.0, 2.0]
    assert one(defense, row, noise=None) == row
    assert one(replace(defense, std=0.0), row) == row


# ---------------------------------------------------------------------------- Fed-SDP


class Bare(Defense):
    """Non-private training on the gradients of batches, the arithmetic that Fed-SDP rests on."""

    name: ClassVar[str] = "bare"


def norms_by_hand(gradients: Gradients) -> dict[str, Floats]:
    """Norm of every client's tensors in float64."""

    def norm(row: list[float]) -> float:
        return math.sqrt(math.fsum(x * x for x in row))

    return {
        name: np.array([norm(row) for row in value.flatten(1).tolist()])
        for name, value in gradients.tensors.items()
    }


@pytest.mark.parametrize("clip", [0.01, 0.1, 4.0])
@pytest.mark.parametrize("kind", [FedSDPServer, FedSDPClient])
def test_updates_are_clipped_a_tensor(update: Gradients, kind: Any, clip: float) -> None:
    defense = kind(clip=clip, noise_multiplier=0.0)
    hooks = (defense.on_update, defense.on_receipt)
    mine, other = hooks if kind is FedSDPClient else hooks[::-1]
    assert other(update, None, context())[0] is update
    clipped = mine(update, None, context())[0]
    before, after = norms_by_hand(update), norms_by_hand(clipped)
    for name, value in update.tensors.items():
        assert after[name].max() <= clip * (1 + 1e-6)
        factors = np.minimum(1, clip / before[name]).reshape(-1, *[1] * (value.ndim - 1))
        expected = value.double().numpy() * factors
        np.testing.assert_allclose(clipped.tensors[name], expected, rtol=1e-5, atol=1e-9)
        under = torch.from_numpy(before[name] <= clip * (1 - 1e-6))
        assert torch.equal(clipped.tensors[name][under], value[under])
    if clip == 4.0:
        assert equal(clipped, update)
    else:
        assert max(norm.max() for norm in before.values()) > clip


@pytest.mark.parametrize("kind", [FedSDPServer, FedSDPClient])
@pytest.mark.parametrize("rows", [1200, 10], ids=["small tensors", "large tensors"])
def test_fed_sdp_noise_has_std_sigma_clip(kind: Any, rows: int) -> None:
    weights = {k: v for k, v in WEIGHTS.items() if (v.numel() < 1000) == (rows == 1200)}
    bare = zeros(weights, rows, ("client",))
    here = context(clients=tuple(range(rows)))
    defense = kind(clip=2.0, noise_multiplier=3.0)
    noisy = defense.on_receipt(defense.on_update(bare, None, here)[0], None, here)[0]
    for value in noisy.tensors.values():
        assert value.numel() >= 10_000
        assert std_of(value) == pytest.approx(6.0, rel=0.03)
        correlation = np.corrcoef(value.flatten(1)[:2].numpy())[0, 1]
        assert abs(correlation) < 5 / math.sqrt(value[0].numel())


def test_model_holds_the_mean_of_noisy_updates() -> None:
    """Divided by Kt once: its noise has std sigma C / sqrt(Kt), not that over Kt again."""
    clients, clip, sigma = 9, 0.05, 3.0
    batches = digits(clients=clients, size=2)
    here = context(clients=tuple(range(clients)))
    for kind in (FedSDPServer, FedSDPClient):
        moved = []
        for factor in (sigma, 0.0):
            defense = kind(clip=clip, noise_multiplier=factor)
            done = run_round(MODEL, WEIGHTS, batches, defense, None, here, learning_rate=RATE)
            assert done.weights is not None
            moved.append(torch.cat([v.flatten() for v in done.weights.values()]).double())
        assert len(moved[0]) >= 10_000
        assert std_of(moved[0] - moved[1]) == pytest.approx(sigma * clip / 3, rel=0.03)


@pytest.mark.parametrize("steps", [1, 3])
def test_fed_sdp_protects_what_comes_after_it(steps: int) -> None:
    """The same victims at every tap, beside non-private training, bit for bit."""
    last = steps - 1
    inside = (EXAMPLE, BATCH, LeakPoint(iteration=last), LeakPoint(view="batch", iteration=last))
    bare = {point: tap(Bare(), point, steps) for point in (*inside, SENT, RECEIVED, HELD)}
    server = {point: tap(FedSDPServer(), point, steps) for point in bare}
    client = {point: tap(FedSDPClient(), point, steps) for point in bare}
    for point in inside:
        assert equal(server[point], bare[point]) and equal(client[point], bare[point])
    for point in (SENT, RECEIVED):
        assert equal(server[point], bare[point])
        for name, value in client[point].tensors.items():
            assert not bool((value == bare[point].tensors[name]).any())
    for name, value in server[HELD].tensors.items():
        assert not bool((value == bare[HELD].tensors[name]).any())
    # Both are the same mechanism; only its place differs.
    assert equal(server[HELD], client[HELD])


def test_single_examples_are_those_of_undefended_training() -> None:
    """The built-in "none" computes example by example; at their tap Fed-SDP must not differ."""
    for defense in (FedSDPServer(), FedSDPClient()):
        assert equal(tap(defense, EXAMPLE), tap(NoDefense(), EXAMPLE))


def test_fed_sdp_on_values_that_are_not_finite() -> None:
    rows = vector([[math.nan, 1.0], [math.inf, 1.0], [0.0, 0.0], [3.0, 4.0]])
    here = context(clients=(0, 1, 2, 3))
    for kind in (FedSDPServer, FedSDPClient):
        defense = kind(clip=1.0, noise_multiplier=0.0)
        hook = defense.on_receipt if kind is FedSDPServer else defense.on_update
        found = hook(rows, None, here)[0].tensors["a"]
        assert bool(found[0].isnan().all())
        assert bool(found[1, 0].isnan()) and float(found[1, 1]) == 0.0
        torch.testing.assert_close(found[2:], torch.tensor([[0.0, 0.0], [0.6, 0.8]]))


PROTECTED: dict[Any, set[Observer]] = {
    FedSDPServer: {"model", "type0"},
    FedSDPClient: {"model", "server", "type0", "type0_raw", "type1"},
}


@pytest.mark.parametrize("kind", [FedSDPServer, FedSDPClient])
def test_fed_sdp_guarantee_numbers(kind: Any) -> None:
    """M = 10 tensors, C = 4, sigma = 6, Kt = 100: mu sqrt(10) / 6 a client, a tenth in the mean."""
    setting = Setting(
        batch_size=5, local_steps=100, clients=100, all_clients=1000, examples=500, rounds=60
    )
    defense = kind()
    for observer in OBSERVERS:
        promise = defense.guarantee(observer, WEIGHTS, setting)
        if observer not in PROTECTED[kind]:
            assert promise.level == "none" and "after the tap" in promise.reason
            assert promise.mu is None
            continue
        clients = 100 if observer == "model" else 1
        assert (promise.level, promise.relation) == ("client", "add_remove")
        assert (promise.unit, promise.tensors) == ("tensor", 10)
        assert promise.sensitivity == pytest.approx(math.sqrt(10) * 4 / clients)
        assert promise.noise_std == pytest.approx(24 / math.sqrt(clients))
        assert promise.mu == pytest.approx(math.sqrt(10) / 6 / math.sqrt(clients))
        assert promise.assumptions
    (event,) = defense.events(WEIGHTS, setting)
    assert event.noise_multiplier == pytest.approx(6 * math.sqrt(100) / math.sqrt(10))
    assert event.sensitivity == pytest.approx(math.sqrt(10) * 4 / 100)
    assert (event.sampling_rate, event.sampling, event.steps) == (0.1, "fixed_size", 60)
    assert defense.noise_std("type2", WEIGHTS, None, context()) == dict.fromkeys(WEIGHTS, 0.0)
    varying = replace(setting, sampling="poisson")
    assert (
        "Poisson sampling varies their number"
        in defense.guarantee("model", WEIGHTS, varying).reason
    )
    assert defense.events(WEIGHTS, varying) == ()
    silent = kind(noise_multiplier=0.0)
    assert silent.guarantee("model", WEIGHTS, setting).reason == "no noise is added"
    assert silent.events(WEIGHTS, setting) == ()


# ---------------------------------------------------------------------------- all of them


@pytest.mark.parametrize("defense", DEFENSES, ids=str)
def test_contract_is_kept(defense: Defense) -> None:
    check_defense(defense)


@pytest.mark.parametrize("defense", DEFENSES[:-2], ids=str)
def test_without_a_bounded_example_there_is_no_guarantee(defense: Defense) -> None:
    setting = Setting(batch_size=SIZE, clients=2, rounds=3)
    for observer in OBSERVERS:
        promise = defense.guarantee(observer, WEIGHTS, setting)
        assert promise.level == "none" and promise.reason and promise.mu is None
    assert defense.events(WEIGHTS, setting) == ()


@pytest.mark.parametrize("defense", DEFENSES, ids=str)
def test_clients_do_not_touch_each_other(
    examples: Gradients, update: Gradients, defense: Defense
) -> None:
    """What a client shows in company is what it shows alone, bit for bit, noise and masks too."""
    rows = torch.tensor([1])
    for hook, before in (
        ("on_examples", examples),
        ("on_batch", update),
        ("on_update", update),
        ("on_receipt", update),
    ):
        both, _ = getattr(defense, hook)(before, None, context())
        loud = before.map(lambda _, value: torch.cat([torch.full_like(value[:1], 1e3), value[1:]]))
        company, _ = getattr(defense, hook)(loud, None, context())
        alone, _ = getattr(defense, hook)(before.select(rows), None, context(clients=(1,)))
        assert equal(alone, both.select(rows)) and equal(company.select(rows), alone)


@pytest.mark.parametrize(
    ("defense", "used"),
    [
        (Prune(fraction=0.0, at="update"), False),
        (Prune(fraction=0.0, at="example"), True),
        (DSSGD(share=1.0, at="update"), False),
        (DSSGD(share=1.0, at="example"), True),
        (RandomNoise(std=0.0, at="update"), False),
        (RandomNoise(std=0.0, at="batch"), False),
        (RandomNoise(std=0.0, at="example"), True),
        (FedSDPServer(clip=1e3, noise_multiplier=0.0), False),
        (FedSDPClient(clip=1e3, noise_multiplier=0.0), False),
    ],
    ids=str,
)
def test_single_gradients_are_computed_only_where_they_are_used(
    defense: Defense, used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Set to do nothing, each gives the update of undefended training, at the price of `at`."""
    expected = tap(NoDefense(), HELD, 2).flatten()
    calls = []

    def counted(*arguments: Any, **options: Any) -> Gradients:
        calls.append(1)
        return per_example(*arguments, **options)

    monkeypatch.setattr("leakbench.training.per_example", counted)
    torch.testing.assert_close(tap(defense, HELD, 2).flatten(), expected, rtol=1e-5, atol=1e-7)
    assert len(calls) == (2 if used else 0)


@pytest.mark.parametrize(
    ("kind", "parameters", "told"),
    [
        (Prune, {"fraction": 1.0}, r"prune: fraction must be in \[0, 1\), got 1.0"),
        (Prune, {"fraction": -0.1}, "fraction"),
        (Prune, {"fraction": math.nan}, "fraction"),
        (Prune, {"scope": "layer"}, "prune: scope must be global or tensor, got 'layer'"),
        (Prune, {"at": "batch"}, "prune: at must be update or example, got 'batch'"),
        (RandomNoise, {"std": -1.0}, "random_noise: std must be >= 0 and finite, got -1.0"),
        (RandomNoise, {"std": math.nan}, "std"),
        (RandomNoise, {"std": math.inf}, "std"),
        (RandomNoise, {"distribution": "cauchy"}, "must be gaussian or laplace, got 'cauchy'"),
        (RandomNoise, {"at": "receipt"}, "must be example, batch or update, got 'receipt'"),
        (DSSGD, {"share": 0.0}, r"dssgd: share must be in \(0, 1\], got 0.0"),
        (DSSGD, {"share": 1.5}, "share"),
        (DSSGD, {"share": math.nan}, "share"),
        (DSSGD, {"selection": "first"}, "must be largest or random, got 'first'"),
        (DSSGD, {"threshold": -1.0}, "dssgd: threshold must be >= 0 and finite, got -1.0"),
        (DSSGD, {"threshold": math.inf}, "threshold"),
        (DSSGD, {"bound": 0.0}, "dssgd: bound must be positive and finite, got 0.0"),
        (DSSGD, {"bound": math.inf}, "bound"),
        (DSSGD, {"bound": math.nan}, "bound"),
        (DSSGD, {"epsilon": -1.0, "bound": 1.0}, "epsilon must be >= 0 and finite, got -1.0"),
        (DSSGD, {"epsilon": 1.0}, "epsilon > 0 needs a bound and the selection random"),
        (DSSGD, {"epsilon": 1.0, "bound": 1.0, "selection": "largest"}, "needs a bound and"),
        (DSSGD, {"at": "batch"}, "dssgd: at must be update or example, got 'batch'"),
        (FedSDPServer, {"clip": 0.0}, "fed_sdp_server: clip must be positive"),
        (FedSDPClient, {"clip": math.inf}, "fed_sdp_client: clip must be positive"),
        (FedSDPServer, {"noise_multiplier": -1.0}, "noise_multiplier must be >= 0"),
        (FedSDPClient, {"noise_multiplier": math.nan}, "noise_multiplier must be >= 0"),
    ],
)
def test_senseless_parameters_are_refused(kind: Any, parameters: Any, told: str) -> None:
    with pytest.raises(LeakbenchError, match=told) as caught:
        kind(**parameters)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "defense",
    [Prune(fraction=0.5, at="example"), DSSGD(share=0.3, selection="largest", at="example")],
    ids=str,
)
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_replay_is_exact_behind_several_local_steps(defense: Defense, steps: int) -> None:
    """One example a step, each with a mask of its own: at the truth the replay is the leak."""
    digits = data.load("mnist")
    inputs = digits.candidates[: 8 * steps].reshape(8, steps, 1, 28, 28)
    labels = digits.candidate_labels[: 8 * steps].reshape(8, steps)
    batches = [
        Batch(inputs=inputs[:, i : i + 1], labels=labels[:, i : i + 1]) for i in range(steps)
    ]
    point, here = LeakPoint(type=1), Context(batch_size=1, noise=None, clients=tuple(range(8)))
    leaked = capture(
        MODEL, WEIGHTS, batches, defense, replace(here, noise=NoiseStreams(1, ("x",))), point
    )
    run = Simulator(
        model=MODEL,
        replays=[Replay(defense=defense, context=here, state=None)],
        replay_of=torch.zeros(8, dtype=torch.int64),
        point=point,
        local_steps=steps,
    )
    seen = Observation(weights=WEIGHTS, gradients=leaked, run=run)
    found = seen.simulate(inputs, labels, torch.arange(8))
    for name, value in leaked.tensors.items():
        torch.testing.assert_close(found.tensors[name], value, rtol=1e-5, atol=1e-6)
