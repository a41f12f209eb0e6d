"""TabLeak on made-up rows of mixed features and on real rows of numbers, against closed forms."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from leakbench.architectures import build
from leakbench.attacks.analytic import Analytic
from leakbench.attacks.tableak import TabLeak, confines, paired, pool
from leakbench.capturing import capture_leak
from leakbench.contracts import Leak, LeakPoint, Reconstruction
from leakbench.data import load
from leakbench.data.features import Feature, numbers
from leakbench.errors import LeakbenchError
from leakbench.mixed_rows import decoded, encoded
from leakbench.streams import VictimStreams, generator
from leakbench.testing import check_attack

MIXED = (
    Feature(name="colour", kind="category", columns=(1, 3, 4)),
    Feature(name="age", kind="number", columns=(0,)),
    Feature(name="job", kind="category", columns=(5, 6), optional=True),
    Feature(name="hours", kind="number", columns=(2,)),
    Feature(name="citizen", kind="category", columns=(7,), optional=True),
)
"""Categories and numbers in no order, 8 columns."""


def table(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """(count, 8) rows of MIXED, and labels 0 and 1 in turn."""
    draw = torch.Generator().manual_seed(seed)
    values = torch.rand(count, len(MIXED), generator=draw)
    for place, feature in enumerate(MIXED):
        if feature.kind == "category":
            values[:, place] = (values[:, place] * feature.values).floor()
    return encoded(values, MIXED), torch.arange(count) % 2


def make_leak(
    rows: Tensor, labels: Tensor, features: tuple[Feature, ...] = MIXED, **how: Any
) -> Leak:
    """The mean gradient of each batch (n, B, columns)."""
    model = build("mlp", tuple(rows.shape[2:]), 2)
    weights = model.init(generator(3, "weights"), torch.float32)
    how = {"point": LeakPoint(view="batch"), "grants": ["labels"], **how}
    return capture_leak(model, rows, labels, weights=weights, features=features, **how)


def attacked(attack: Any, leak: Leak) -> Reconstruction:
    streams = VictimStreams(0, tuple(("table", k) for k in range(leak.n)))
    return attack.reconstruct(leak, streams, lambda *seen: None)  # type: ignore[no-any-return]


def test_it_keeps_the_contract() -> None:
    check_attack(TabLeak(restarts=2, pooled=2))


def test_single_rows_are_those_of_the_closed_form() -> None:
    """One row's gradient of a dense layer is an outer product with it."""
    rows, labels = table(4)
    leak = make_leak(rows[:, None], labels[:, None])
    exact = attacked(Analytic(), leak).inputs
    torch.testing.assert_close(exact[:, 0], rows, atol=1e-4, rtol=0)
    result = attacked(TabLeak(steps=300, restarts=4), leak)
    torch.testing.assert_close(result.inputs, exact, atol=0.02, rtol=0)
    of_categories = [column for f in MIXED if f.kind == "category" for column in f.columns]
    assert torch.equal(result.inputs[:, 0, of_categories], rows[:, of_categories])
    assert result.confidence is not None
    assert float(result.confidence.min()) > 0.8


def test_an_update_of_one_step_gives_the_rows_away_as_the_gradient_does() -> None:
    rows, labels = table(2)
    for point in (LeakPoint(type=1), LeakPoint(type=0)):
        leak = make_leak(rows[:, None], labels[:, None], point=point, learning_rate=0.05)
        found = attacked(TabLeak(steps=200, restarts=2), leak).inputs[:, 0]
        assert torch.equal(decoded(found, MIXED)[:, [0, 2, 4]], decoded(rows, MIXED)[:, [0, 2, 4]])


def test_labels_are_read_off_the_gradient_where_they_are_not_granted() -> None:
    rows, labels = table(4)
    leak = make_leak(rows[:, None], labels[:, None], grants=[])
    assert torch.equal(attacked(TabLeak(steps=1, restarts=1), leak).labels[:, 0], labels)


def test_rows_of_a_batch_come_back_together() -> None:
    rows, labels = table(4)
    leak = make_leak(rows.view(2, 2, 8), labels.view(2, 2))
    found = attacked(TabLeak(steps=400, restarts=6), leak)
    assert torch.equal(found.labels.sort(dim=1).values, labels.view(2, 2))
    for own, truth in zip(found.inputs, rows.view(2, 2, 8), strict=True):
        errors = (decoded(own, MIXED) - decoded(truth, MIXED)).abs()
        assert float(errors.max()) < 0.05


def test_without_a_declaration_every_element_is_a_number() -> None:
    """Real rows; nothing declared is the same as all numbers declared."""
    real = load("breast_cancer")
    rows, labels = real.candidates[:2, None], real.candidate_labels[:2, None]
    plain = attacked(TabLeak(steps=200, restarts=2), make_leak(rows, labels, ()))
    said = attacked(TabLeak(steps=200, restarts=2), make_leak(rows, labels, numbers(30)))
    assert torch.equal(plain.inputs, said.inputs)
    flat = (rows - rows.mean()).square().mean()
    assert float((plain.inputs - rows).square().mean()) < 0.2 * float(flat)


# ---------------------------------------------------------------------------- pairing and pooling


@pytest.mark.parametrize("seed", range(4))
def test_rows_are_paired_as_the_best_of_all_permutations(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    rows = torch.rand(5, 8, dtype=torch.float64, generator=draw)
    reference = torch.rand(5, 8, dtype=torch.float64, generator=draw)
    labels = torch.tensor([0, 1, 0, 1, 0])

    def cost(order: tuple[int, ...]) -> float:
        if bool((labels[list(order)] != labels).any()):
            return math.inf
        return float((rows[list(order)] - reference).square().sum())

    best = min(itertools.permutations(range(5)), key=cost)
    assert tuple(paired(rows, reference, labels).tolist()) == best


def test_restarts_are_pooled_by_median_and_mean_share() -> None:
    """Three restarts of one batch of two rows, the second restart in the other order."""
    features = (
        Feature(name="n", kind="number", columns=(0,)),
        Feature(name="c", kind="category", columns=(1, 2)),
    )
    first, second = [0.2, 0.9, 0.1], [0.8, 0.2, 0.8]
    runs = torch.tensor(
        [
            [first, second],
            [[0.9, 0.4, 0.6], [0.3, 0.3, 0.7]],
            [[0.28, 0.9, 0.1], [0.7, 0.4, 0.6]],
        ]
    )[..., None]
    leak = make_leak(torch.rand(1, 2, 3), torch.zeros(1, 2, dtype=torch.int64), features)
    found = pool(leak, runs.squeeze(-1), torch.tensor([0.1, 0.2, 0.3]), torch.zeros(2).long(), 3)
    torch.testing.assert_close(found.pooled, torch.tensor([[0.28, 1, 0], [0.8, 0, 1]]))
    torch.testing.assert_close(found.best, torch.tensor([[0.2, 1, 0], [0.8, 0, 1]]))
    share = (0.9 + 0.3 + 0.9) / 3
    entropy = -(share * math.log2(share) + (1 - share) * math.log2(1 - share))
    spread = torch.tensor([0.2, 0.3, 0.28]).std(correction=0).item() * math.sqrt(12)
    assert float(found.confidence[0]) == pytest.approx(1 - (entropy + spread) / 2, abs=1e-6)


def test_the_worst_restarts_are_left_out() -> None:
    features = (Feature(name="n", kind="number", columns=(0,)),)
    leak = make_leak(torch.rand(1, 1, 1), torch.zeros(1, 1, dtype=torch.int64), features)
    runs = torch.tensor([0.9, 0.5, 0.1, 0.2]).view(4, 1, 1)
    losses = torch.tensor([math.nan, 0.1, 0.2, 0.9])
    found = pool(leak, runs, losses, torch.zeros(1).long(), 2)
    assert float(found.pooled) == pytest.approx(0.3)
    assert float(found.best) == pytest.approx(0.5)


def test_restarts_that_agree_are_surer_than_first_guesses() -> None:
    rows, labels = table(2)
    leak = make_leak(rows[:, None], labels[:, None])
    begun = attacked(TabLeak(steps=1, restarts=6), leak).confidence
    ended = attacked(TabLeak(steps=200, restarts=6), leak).confidence
    assert begun is not None
    assert ended is not None
    assert bool((ended > begun + 0.2).all())


# ---------------------------------------------------------------------------- the row space


def test_span_is_the_distance_from_the_true_rows_space() -> None:
    """With a gradient that is matched exactly, only what lies outside the rows' space costs."""
    rows, labels = table(3)
    leak = make_leak(rows[None], labels[None])
    every = torch.arange(1)
    plain, spanned = TabLeak(span=0.0), TabLeak(span=2.0)
    at_truth = spanned.distance(leak, rows[None], labels[None], every)
    assert float(at_truth) < 1e-5
    other = torch.rand(1, 3, 8, generator=torch.Generator().manual_seed(1))
    basis = torch.cat([rows, torch.ones(3, 1)], dim=1).double()
    guess = torch.cat([other[0], torch.ones(3, 1)], dim=1).double()
    inside = guess @ torch.linalg.pinv(basis) @ basis
    outside = 2.0 * (guess - inside).square().sum(dim=1).mean()
    added = spanned.distance(leak, other, labels[None], every) - plain.distance(
        leak, other, labels[None], every
    )
    assert float(added) == pytest.approx(float(outside), rel=1e-3)


def test_span_counts_only_where_it_confines_the_rows() -> None:
    """Eight rows of eight columns fill the space; the first layer of a CNN is not dense."""
    digits = load("mnist")
    model = build("cnn2", (1, 28, 28), 10)
    image = capture_leak(
        model, digits.candidates[:1], digits.candidate_labels[:1],
        weights=model.init(generator(0, "weights"), torch.float32),
    )  # fmt: skip
    rows, labels = table(8)
    many = make_leak(rows[None], labels[None])
    few = make_leak(rows[None, :7], labels[None, :7])
    assert [confines(leak.facts) for leak in (image, many, few)] == [False, False, True]
    guess = rows.flip(0)[None]
    assert torch.equal(
        TabLeak().distance(many, guess, labels[None], torch.arange(1)),
        TabLeak(span=0.0).distance(many, guess, labels[None], torch.arange(1)),
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"pooled": 0}, "pooled"),
        ({"lr": 0.0}, "lr"),
        ({"span": -1.0}, "span"),
        ({"restarts": 0}, "restarts"),
    ],
)
def test_bad_parameters_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(LeakbenchError, match=f"tableak.*{said}"):
        TabLeak(**change)
