"""What the harness sees: whose reconstruction is whose, labels found, first success, snapshots."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from leakbench.data import load
from leakbench.judging import (
    Descent,
    Judge,
    Onlooker,
    baselines_of,
    best_trivial,
    blame,
    flags,
    judged_record,
    measure,
    packed,
    plain,
    unpacked,
)
from leakbench.metrics.rules import make_rule
from leakbench.victims import Victims, label_overlap, paired


def digits(count: int, first: int = 0) -> Tensor:
    return load("mnist").candidates[first : first + count]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def victims_of(numbers: list[int], each: int) -> Victims:
    dataset = load("mnist")
    chosen = torch.tensor(numbers)
    return Victims(
        dataset=dataset,
        numbers=chosen,
        images=dataset.candidates[chosen],
        labels=dataset.candidate_labels[chosen],
        each=each,
    )


def in_order(inputs: Tensor, places: Tensor) -> Tensor:
    """Every batch's reconstructions in the order of the images they belong to."""
    return torch.stack([batch[order] for batch, order in zip(inputs, places, strict=True)])


# ------------------------------------------------------------------------------ pairing


@pytest.mark.parametrize("size", [2, 3, 8, 32])
def test_pairing_undoes_a_permutation(size: int) -> None:
    truth = digits(4 * size).unflatten(0, (4, size))
    orders = torch.stack([torch.randperm(size, generator=seeded(k)) for k in range(4)])
    noise = 0.05 * torch.randn(truth.shape, generator=seeded(9))
    shuffled = in_order(truth + noise, orders)
    places = paired(shuffled, truth)
    assert places.dtype == torch.int64
    assert torch.equal(places, orders.argsort(dim=1))
    torch.testing.assert_close(in_order(shuffled, places), truth + noise)


def test_a_batch_of_one_is_paired_with_itself() -> None:
    assert torch.equal(paired(torch.full((3, 1, 1, 28, 28), math.nan), digits(3)[:, None]),
                       torch.zeros(3, 1, dtype=torch.int64))  # fmt: skip


def test_pairing_is_the_best_of_all_pairings() -> None:
    """Guesses that fit nobody well: the sum decides, and it is that of clamped pixels."""
    truth = digits(60).unflatten(0, (20, 3))
    guesses = 0.5 + 1.5 * torch.randn(truth.shape, generator=seeded(0))
    guesses[:10] = guesses[:10] * 0.05 + truth[:10].mean(dim=1, keepdim=True)
    greedy = 0
    for batch, order in zip(range(20), paired(guesses, truth).tolist(), strict=True):
        cost = [
            [float((truth[batch, i] - guesses[batch, j].clamp(0, 1)).double().square().mean())
             for j in range(3)]
            for i in range(3)
        ]  # fmt: skip
        best = min(
            itertools.permutations(range(3)),
            key=lambda order, cost=cost: sum(cost[i][order[i]] for i in range(3)),  # type: ignore[misc]
        )
        assert tuple(order) == best
        greedy += min(range(3), key=lambda j, cost=cost: cost[0][j]) != best[0]  # type: ignore[misc]
    assert greedy  # taking the nearest for each in turn is another answer


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_never_takes_a_good_reconstructions_place(value: float) -> None:
    truth = digits(3)[None]
    guesses = truth[:, [2, 0, 1]].clone()
    guesses[0, 1] = value  # where image 0 was
    assert paired(guesses, truth).tolist() == [[1, 2, 0]]
    one_pixel = truth[:, [2, 0, 1]].clone()
    one_pixel[0, 1, 0, 0, 0] = value
    assert paired(one_pixel, truth).tolist() == [[1, 2, 0]]


def test_a_nan_image_goes_to_whom_the_others_leave() -> None:
    """Both real guesses are image 0's digit; the nan one must not push the better one away."""
    truth = digits(3)[None]
    guesses = torch.stack([torch.full_like(truth[0, 0], math.nan), truth[0, 1], truth[0, 0]])[None]
    assert paired(guesses, truth).tolist() == [[2, 1, 0]]


# ------------------------------------------------------------------------------ labels


@pytest.mark.parametrize(
    ("found", "truth", "share"),
    [
        ([3], [3], 1.0),
        ([3], [4], 0.0),
        ([1, 2, 3, 4], [4, 3, 2, 1], 1.0),
        ([1, 1, 1, 1], [1, 2, 3, 4], 0.25),
        ([1, 1, 2, 2], [1, 1, 1, 2], 0.75),
        ([7, 7, 7, 2], [7, 7, 2, 2], 0.75),
        ([5, 5, 6, 6], [1, 2, 3, 4], 0.0),
        ([0, 0, 0, 0], [0, 0, 0, 0], 1.0),
    ],
)
def test_labels_count_as_often_as_they_occur(
    found: list[int], truth: list[int], share: float
) -> None:
    assert label_overlap(torch.tensor([found]), torch.tensor([truth])).tolist() == [share]


def test_labels_of_fewer_batches_do_not_fit() -> None:
    with pytest.raises(ValueError, match="zip"):
        label_overlap(torch.tensor([[1, 2]]), torch.tensor([[1, 2], [3, 4]]))


def test_label_overlap_is_of_each_batch() -> None:
    found = torch.tensor([[1, 2], [3, 3], [4, 5]])
    truth = torch.tensor([[2, 1], [3, 4], [6, 7]])
    assert label_overlap(found, truth).tolist() == [1.0, 0.5, 0.0]


# ------------------------------------------------------------------------------ baselines, numbers


def test_baselines_are_each_images_own() -> None:
    victims = victims_of([4, 5, 8, 9], each=2)
    dataset = load("mnist")
    start = 2 * torch.rand(4, 1, 28, 28, generator=seeded(1)) - 0.5  # a baseline is clamped
    found = baselines_of(victims, start)
    for row, (image, label) in enumerate(zip(victims.images, victims.labels, strict=True)):
        errors = (dataset.public - image).double().square().mean(dim=(1, 2, 3))
        mean = dataset.public.mean(dim=0)
        of_class = dataset.public[dataset.public_labels == label].mean(dim=0)
        expected = {
            "start_image": (start[row].clamp(0, 1) - image).square().mean(),
            "mean_image": (mean - image).square().mean(),
            "class_mean": (of_class - image).square().mean(),
            "nearest_public": errors.min(),
        }
        for name, value in expected.items():
            assert float(found[name][row]) == pytest.approx(float(value), rel=1e-5), name
        best = min(float(expected[name]) for name in ("start_image", "mean_image", "class_mean"))
        assert float(best_trivial(found)[row]) == pytest.approx(best, rel=1e-5)
    assert "start_image" not in baselines_of(victims, None)


def test_the_mean_of_the_class_is_a_trivial_guess_and_the_nearest_image_is_not() -> None:
    """Most of 16 digits are nearer to the mean of their class than to that of all.

    So a guess at a third of the class mean's error beats a quarter of nothing but the mean image's.
    """
    victims = victims_of(list(range(16)), each=1)
    public, labels = load("mnist").public, load("mnist").public_labels
    centres = torch.stack([public[labels == label].mean(dim=0) for label in victims.labels])
    mean, of_class = (
        (guess - victims.images).square().mean(dim=(1, 2, 3))
        for guess in (public.mean(dim=0), centres)
    )
    found = baselines_of(victims, None)
    best = best_trivial(found)
    torch.testing.assert_close(best, torch.minimum(mean, of_class).to(best.dtype))
    assert 8 < int((of_class < mean).sum()) < 16
    assert int((found["nearest_public"] < best).sum()) > 8

    strict = make_rule(name="strict", kind="strict", threshold=1.0, clamp=True)
    onlooker = onlooker_of(victims)
    nothing = torch.zeros(16, dtype=torch.int64)
    guesses = victims.images + (1 / 3) ** 0.5 * (centres - victims.images)
    onlooker.look(torch.arange(16), nothing, nothing, guesses[:, None])
    assert int((of_class / 3 < mean / 4).sum()) > 4
    judged = Judge(rules=(strict,)).judge(
        victims.images, victims, None, onlooker.raw, onlooker.clamped, [""] * 16
    )
    assert [each["first_step"]["strict"] for each in judged] == [None] * 16


def test_images_behind_a_gradient_follow_one_another() -> None:
    victims = victims_of(list(range(12)), each=3)
    assert victims.rows(torch.tensor([2, 0])).tolist() == [6, 7, 8, 0, 1, 2]
    alone = Victims(
        dataset=victims.dataset, numbers=victims.numbers, images=victims.images,
        labels=victims.labels,
    )  # fmt: skip
    assert alone.rows(torch.tensor([2, 0])).tolist() == [2, 0]


def test_reconstructions_are_put_in_the_places_of_their_own_gradients_images() -> None:
    victims = victims_of(list(range(12)), each=3)
    whole = victims.images.unflatten(0, (4, 3))
    images, places = victims.in_place(whole[:, [1, 2, 0]])
    assert torch.equal(images, victims.images) and places.tolist() == [[2, 0, 1]] * 4
    images, places = victims.in_place(whole[[2, 0]][:, [2, 1, 0]], torch.tensor([2, 0]))
    assert torch.equal(images, torch.cat([victims.images[6:9], victims.images[:3]]))
    assert places.tolist() == [[2, 1, 0]] * 2


def test_measured_numbers_are_each_images_own() -> None:
    victims = victims_of([3, 1, 20], each=1)
    images = victims.images.clone()
    images[1] += 0.1
    images[2] = math.nan
    measured = measure(images, victims)
    found = {name: torch.tensor(values) for name, values in measured.numbers.items()}
    assert found["rank"].tolist() == [1, 1, len(load("mnist").candidates)]
    assert found["mse_raw"][0] == 0
    assert float(found["mse_raw"][1]) == pytest.approx(0.01, rel=1e-4)
    assert float(found["distance_raw"][1]) == pytest.approx(0.1 * 28, rel=1e-4)
    clamped = (images[1].clamp(0, 1) - victims.images[1]).double()
    assert float(found["mse_clamped"][1]) == pytest.approx(float(clamped.square().mean()))
    assert float(found["distance_clamped"][1]) == pytest.approx(float(clamped.norm()))
    assert float(found["psnr"][1]) == pytest.approx(
        -10 * math.log10(float(clamped.square().mean())), rel=1e-6
    )
    assert found["mse_clamped"][1] < found["mse_raw"][1]
    assert math.isnan(found["mse_raw"][2])


def test_rows_of_a_table_have_no_ssim() -> None:
    dataset = load("breast_cancer")
    numbers = torch.arange(4)
    victims = Victims(
        dataset=dataset,
        numbers=numbers,
        images=dataset.candidates[:4],
        labels=dataset.candidate_labels[:4],
    )
    found = measure(dataset.candidates[:4], victims)
    assert all(math.isnan(value) for value in found.numbers["ssim"])
    assert found.unmeasured["ssim"] == "rows of a table are not images"
    assert found.numbers["rank"] == [1] * 4


# ------------------------------------------------------------------------------ watching

RULES = [
    make_rule(name="near", kind="mse", threshold=0.01, clamp=False),
    make_rule(name="close", kind="distance", threshold=1.0, clamp=True),
    make_rule(name="strict", kind="strict", threshold=0.01, clamp=True),
    make_rule(name="who", kind="identified", threshold=None, clamp=True),
]


def onlooker_of(victims: Victims, snapshots: tuple[int, ...] = ()) -> Onlooker:
    return Onlooker(victims=victims, snapshot_steps=snapshots)


def first(onlooker: Onlooker, rule: str, what: str = "first_step") -> list[int | None]:
    """Of every image."""
    victims, count = onlooker.victims, len(onlooker.victims.images)
    judged = Judge(rules=tuple(RULES)).judge(
        victims.images, victims, None, onlooker.raw, onlooker.clamped, [""] * count
    )
    return [each[what][rule] for each in judged]


def show(onlooker: Onlooker, rows: list[int], step: int, inputs: Tensor) -> None:
    """All of `rows` after `step` steps of 20 evaluations, and one more evaluation."""
    steps = torch.full((len(rows),), step)
    onlooker.watch(
        torch.tensor(rows), steps, 20 * steps + 1, inputs, torch.arange(len(rows)) + 0.5 * step
    )


def test_first_success_is_that_of_the_image_wherever_it_lies_in_its_batch() -> None:
    """Two batches of three; recoveries come one by one and in other places at every step."""
    victims = victims_of(list(range(6)), each=3)
    truth = victims.images.unflatten(0, (2, 3))
    onlooker = onlooker_of(victims)
    blank = torch.full_like(truth, 0.5)
    onlooker.look(torch.arange(2), torch.zeros(2).long(), torch.zeros(2).long(), blank)
    # Batch 0: image 1 from step 1 on, image 0 from step 3 on, image 2 never.
    # Batch 1: image 5 at step 2 only: the first success counts also when it is lost again.
    show(onlooker, [0, 1], 1, torch.stack([_batch(truth[0], [1, None, None]), blank[1]]))
    show(onlooker, [1], 2, _batch(truth[1], [None, 2, None])[None])
    show(onlooker, [0, 1], 3, torch.stack([_batch(truth[0], [None, 0, 1]), blank[1]]))
    show(onlooker, [0, 1], 4, torch.stack([_batch(truth[0], [0, 1, None]), blank[1]]))
    for rule in ("near", "close", "strict"):
        assert first(onlooker, rule) == [3, 1, None, None, None, 2], rule
        spent = first(onlooker, rule, "first_evaluations")
        assert spent == [61, 21, None, None, None, 41], rule
    with pytest.raises(KeyError):
        first(onlooker, "who")  # ranking at every step would cost too much
    assert onlooker.traces == [[0.5, 1.5, 2.0], [1.5, 1.0, 2.5, 3.0]]


def _batch(truth: Tensor, places: list[int | None]) -> Tensor:
    """In every place one of the true images, or gray."""
    gray = torch.full_like(truth[0], 0.5)
    return torch.stack([gray if place is None else truth[place] for place in places])


def test_one_image_alone_is_judged_by_its_own_size() -> None:
    """0.03 off in each of 784 pixels: a distance of 0.84, and 1.12 at 0.04."""
    for off, step in ((0.03, 7), (0.04, None)):
        victims = victims_of([5], each=1)
        onlooker = onlooker_of(victims)
        inward = torch.where(victims.images > 0.5, -off, off)
        onlooker.look(
            torch.arange(1), torch.tensor([7]), torch.tensor([140]),
            (victims.images + inward)[None],
        )  # fmt: skip
        assert first(onlooker, "close") == [step]


def test_a_start_that_passes_is_a_success_after_no_evaluation() -> None:
    victims = victims_of([0, 1], each=2)
    onlooker = onlooker_of(victims)
    nothing = torch.zeros(1, dtype=torch.int64)
    onlooker.look(torch.arange(1), nothing, nothing, victims.images[None, [1, 0]])
    assert first(onlooker, "strict") == [0, 0]
    assert first(onlooker, "strict", "first_evaluations") == [0, 0]


def test_strict_asks_each_image_for_its_own_baseline() -> None:
    """Two images as far off as each other: a third of the best baseline of one, a fifth of the
    other's."""
    victims = victims_of([0, 1], each=2)
    best = best_trivial(baselines_of(victims, None))
    assert best[0] != best[1]
    error = math.sqrt(float(best.prod())) * 0.25  # a quarter of what lies between the two
    rule = make_rule(name="strict", kind="strict", threshold=1.0, clamp=True)
    onlooker = onlooker_of(victims)
    inward = math.sqrt(error) * torch.where(victims.images > 0.5, -1, 1)
    onlooker.look(
        torch.arange(1), torch.tensor([4]), torch.tensor([80]),
        (victims.images + inward)[None, [1, 0]],
    )  # fmt: skip
    judged = Judge(rules=(rule,)).judge(
        victims.images, victims, None, onlooker.raw, onlooker.clamped, ["", ""]
    )
    assert onlooker.clamped[0].errors[0] == pytest.approx(error, rel=1e-5)
    assert [each["first_step"]["strict"] for each in judged] == [
        4 if of_image > best.mean() else None for of_image in best
    ]


@given(st.lists(st.floats(allow_nan=True), max_size=30), st.floats(0, 1e6))
def test_a_descent_knows_when_errors_first_were_below_anything(
    errors: list[float], threshold: float
) -> None:
    descent = Descent()
    for step, error in enumerate(errors):
        descent.add(step, 20 * step, error)
    below = [step for step, error in enumerate(errors) if error < threshold]
    found = [
        step for step, error in zip(descent.steps, descent.errors, strict=True) if error < threshold
    ]
    assert found[:1] == below[:1]
    assert unpacked("raw", packed("raw", [Descent(), descent, descent])) == [
        Descent(), descent, descent,
    ]  # fmt: skip


def test_another_rule_or_threshold_is_another_judge() -> None:
    judges = [Judge(rules=tuple(RULES)), Judge(rules=tuple(RULES[:-1]))]
    changed = make_rule(name="near", kind="mse", threshold=0.02, clamp=False)
    judges.append(Judge(rules=(changed, *RULES[1:])))
    assert len({judge.digest for judge in judges}) == 3
    assert Judge(rules=tuple(RULES)).digest == judges[0].digest


def test_snapshots_lie_in_the_places_of_the_images() -> None:
    victims = victims_of(list(range(6)), each=3)
    truth = victims.images.unflatten(0, (2, 3))
    onlooker = onlooker_of(victims, snapshots=(1, 3))
    noisy = truth + 0.02 * torch.randn(truth.shape, generator=seeded(2))
    show(onlooker, [0, 1], 1, noisy[:, [2, 0, 1]])
    show(onlooker, [0, 1], 2, torch.full_like(truth, 0.3))
    show(onlooker, [1], 3, noisy[1:, [1, 2, 0]] + 0.1)
    assert torch.equal(onlooker.snapshots[1], noisy.flatten(0, 1))
    assert torch.equal(onlooker.snapshots[3][3:], noisy[1] + 0.1)
    assert onlooker.snapshots[3][:3].isnan().all()  # batch 0 had ended before
    assert set(onlooker.snapshots) == {1, 3}


def test_iterates_are_copied_into_snapshots() -> None:
    victims = victims_of([0, 1], each=2)
    onlooker = onlooker_of(victims, snapshots=(1,))
    inputs = victims.images[None].clone()
    show(onlooker, [0], 1, inputs)
    inputs.zero_()
    assert torch.equal(onlooker.snapshots[1], victims.images)


# ------------------------------------------------------------------------------ flags

FINE = {
    "loss": 1.0,
    "loss_start": 5.0,
    "labels_right": True,
    "label_known": True,
    "no_op": False,
    "gradient_finite": True,
    "gradient_zero": False,
    "straight_through": False,
    "stalled": False,
}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"loss": math.nan}, ["loss_never_fell"]),
        ({"loss": 5.0}, ["loss_never_fell"]),
        ({"loss": 6.0}, ["loss_never_fell"]),
        ({"loss": 6.0, "loss_start": math.inf}, []),
        ({"loss": 6.0, "loss_start": math.nan}, []),
        ({"labels_right": False}, ["label_wrong"]),
        ({"no_op": True}, ["defense_noop"]),
        ({"gradient_finite": False}, ["gradient_nonfinite"]),
        ({"gradient_zero": True}, ["gradient_zero"]),
        ({"straight_through": True}, ["straight_through"]),
        ({"stalled": True}, ["stalled"]),
    ],
)
def test_flags_warn(changes: dict[str, Any], expected: list[str]) -> None:
    assert flags(**{**FINE, **changes}) == ["label_known", *expected]
    assert flags(**{**FINE, **changes, "label_known": False}) == ["label_inferred", *expected]


@pytest.mark.parametrize(
    ("loss", "loss_true", "expected"),
    [
        # Below the loss at the truth only noise is left to fit, above it the search failed by more
        # than a thousandth.
        (1.0, 1.0, ""),
        (0.999, 1.0, "fits_noise"),
        (1.0009, 1.0, ""),
        (1.0011, 1.0, "optimiser_failed"),
        (9e-7, 0.0, ""),
        (2e-6, 0.0, "optimiser_failed"),
        (math.nan, 1.0, ""),
        (math.inf, 1.0, "optimiser_failed"),
        (1.0, math.nan, ""),
    ],
)
def test_the_loss_at_the_truth_says_who_is_to_blame(
    loss: float, loss_true: float, expected: str
) -> None:
    assert blame(loss, loss_true) == expected


def test_nobody_is_blamed_for_an_image_that_was_recovered() -> None:
    victims = victims_of([0, 1], each=1)
    images = torch.stack([victims.images[0], victims.images[0]])
    judged = Judge(rules=tuple(RULES)).judge(
        images, victims, None, [Descent(), Descent()], [Descent(), Descent()], ["fits_noise"] * 2
    )
    assert [each["blamed"] for each in judged] == ["", "fits_noise"]
    attacked = {"flags": ["label_known", "optimiser_failed", "defense_noop"], "loss": 1.0}
    records = [judged_record(attacked, each) for each in judged]
    assert [record["flags"] for record in records] == [
        ["label_known", "defense_noop"],
        ["label_known", "fits_noise", "defense_noop"],
    ]
    assert records[0]["mse_raw"] == 0 and records[0]["loss"] == 1.0
    assert "blamed" not in records[0]


def test_numbers_without_a_value_are_none_in_records() -> None:
    assert plain(-1.5) == -1.5 and plain(0.0) == 0.0
    assert [plain(value) for value in (math.nan, math.inf, -math.inf)] == [None] * 3
