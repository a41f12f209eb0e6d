"""What the columns of a table mean, from their declaration to the records of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import leakbench as lb
from leakbench import data, runner
from leakbench.data import catalog, datasets, own
from leakbench.data.features import Feature, Kind, named_columns, numbers, require_whole
from leakbench.errors import DataMissing, LeakbenchError
from leakbench.judging import baselines_of
from leakbench.metrics.contract import Comparison
from leakbench.metrics.features import TOLERANCE, deviations, right
from leakbench.metrics.registry import all_metrics
from leakbench.metrics.rules import make_rule
from leakbench.mixed_rows import Relaxation, decoded, encoded
from leakbench.records import Run
from leakbench.suite import resolve
from leakbench.victims import Victims

TABLE = (
    Feature(name="colour", kind="category", columns=(1, 3, 4)),
    Feature(name="age", kind="number", columns=(0,)),
    Feature(name="job", kind="category", columns=(2, 5), optional=True),
)
COLUMNS = ["age", "colour=red", "job=cook", "colour=green", "colour=blue", "job=smith"]


def feature(kind: Kind = "category", columns: tuple[int, ...] = (0, 1), **more: Any) -> Feature:
    return Feature(name="f", kind=kind, columns=columns, **more)


def rows(count: int, seed: int = 0) -> Any:
    """(count, 6) float32 rows of TABLE, no two equal."""
    draw = np.random.default_rng(seed)
    found = np.zeros((count, 6), np.float32)
    found[:, 0] = draw.uniform(size=count)
    found[np.arange(count), np.array([1, 3, 4])[draw.integers(3, size=count)]] = 1
    job = draw.integers(3, size=count)
    found[job == 0, 2] = 1
    found[job == 1, 5] = 1
    return found


# ---- declared ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: feature(columns=()), "feature 'f': has no column"),
        (lambda: feature("number"), "is a number with 2 columns; allowed: 1"),
        (lambda: feature("number", (0,), optional=True), "is a number and optional"),
        (lambda: feature(columns=(0,)), "has one value only"),
        (lambda: require_whole("leak", (feature(),), 3), "leak: column 2 belongs to no feature"),
        (lambda: require_whole("leak", (feature(),), 1), "column 1; allowed are 0 to 0"),
        (lambda: require_whole("leak", (feature(), feature()), 2), "belongs to 'f' and to 'f'"),
    ],
)
def test_a_wrong_declaration_is_named(made: Any, said: str) -> None:
    with pytest.raises(LeakbenchError, match=said):
        made()


@pytest.mark.parametrize("name", ["breast_cancer", "adult", "location30", "purchase100"])
def test_every_column_of_a_table_has_its_feature(name: str) -> None:
    entry = catalog.CATALOG[name]
    require_whole(name, entry.features, entry.input_shape[0])


def test_adult_is_declared_as_its_file_names_its_columns() -> None:
    """And its rows are one-hot, but where an answer is missing."""
    try:
        adult = data.load("adult")
    except DataMissing:
        pytest.skip("adult.npz is not there")
    assert len(adult.features) == 14
    for each in adult.features:
        if each.kind == "category":
            taken = adult.candidates[:, list(each.columns)].sum(dim=1)
            allowed = {0.0, 1.0} if each.optional else {1.0}
            assert set(taken.tolist()) <= allowed, each.name


def test_images_have_no_features() -> None:
    assert data.load("mnist").features == ()


def load(path: Path) -> data.Dataset:
    own.entry.cache_clear()
    datasets._load.cache_clear()
    return data.load(catalog.locate(str(path)))


def test_own_columns_are_read_by_their_names(tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", x=rows(40), y=np.arange(40) % 2, columns=np.array(COLUMNS))
    assert set(load(tmp_path / "t.npz").features) == set(TABLE)
    np.savez(tmp_path / "plain.npz", x=rows(40), y=np.arange(40) % 2)
    assert load(tmp_path / "plain.npz").features == numbers(6)
    assert named_columns(COLUMNS) == {"age": [0], "colour": [1, 3, 4], "job": [2, 5]}


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (np.array(COLUMNS[:5]), "array 'columns': 5 names of 6 columns"),
        (np.arange(6), "array 'columns' is int64"),
        (np.array(["age", "age", *COLUMNS[2:]]), "'age' names several columns"),
        (np.array(["age=1", *COLUMNS[1:]]), "columns of category 'age' are not one-hot"),
    ],
)
def test_own_columns_that_do_not_fit_are_refused(tmp_path: Path, columns: Any, said: str) -> None:
    np.savez(tmp_path / "t.npz", x=rows(40), y=np.arange(40) % 2, columns=columns)
    with pytest.raises(LeakbenchError, match=said):
        load(tmp_path / "t.npz")


# ---- decoded and relaxed -------------------------------------------------------------------------


@given(st.integers(0, 1000))
def test_what_is_encoded_is_decoded(seed: int) -> None:
    whole = torch.from_numpy(rows(5, seed))
    assert torch.equal(encoded(decoded(whole, TABLE), TABLE), whole)


def test_a_category_is_its_largest_column_and_unknown_what_they_lack() -> None:
    found = decoded(
        torch.tensor(
            [
                [1.7, 0.2, 0.1, 0.5, 0.4, 0.2],  # job: 0.7 unknown
                [-1.0, 0.4, 0.6, 0.4, 0.1, 0.1],  # colour: a tie, the first
                [0.5, float("nan"), 0.1, 0.0, 0.0, 0.5],  # job: 0.4 unknown, 0.5 smith
            ]
        ),
        TABLE,
    )
    torch.testing.assert_close(
        found,
        torch.tensor([[1, 1.0, 2], [0, 0, 0], [float("nan"), 0.5, 1]]),
        equal_nan=True,
    )


def test_every_point_is_a_row_that_might_be() -> None:
    relaxation = Relaxation(features=TABLE, low=-1.0, high=3.0)
    assert relaxation.size == 1 + 3 + 3
    points = torch.randn(4, 2, 7, generator=torch.Generator().manual_seed(0))
    found = relaxation.rows(points)
    assert found.shape == (4, 2, 6)
    number = -1 + 4 / (1 + (-points[..., 0]).exp())
    colour, job = points[..., 1:4].exp(), points[..., 4:7].exp()
    torch.testing.assert_close(found[..., 0], number)
    torch.testing.assert_close(found[..., [1, 3, 4]], colour / colour.sum(-1, keepdim=True))
    torch.testing.assert_close(found[..., [2, 5]], (job / job.sum(-1, keepdim=True))[..., :2])


# ---- judged --------------------------------------------------------------------------------------


def test_features_are_right_or_wrong_one_by_one() -> None:
    truth = torch.from_numpy(rows(200))
    spread = deviations(truth)
    torch.testing.assert_close(spread, torch.from_numpy(truth.numpy().astype(float).std(axis=0)))
    row = truth[:1]
    near, far = row.clone(), row.clone()
    step = TOLERANCE * float(spread[0]) * (1 if float(row[0, 0]) < 0.5 else -1)
    near[0, 0] += 0.99 * step
    far[0, 0] += 1.01 * step
    assert right(near, row, TABLE, spread).tolist() == [[True, True, True]]
    assert right(far, row, TABLE, spread).tolist() == [[True, False, True]]
    other = row.clone()
    other[0, [1, 3, 4]] = row[0, [3, 4, 1]]
    assert right(other, row, TABLE, spread).tolist() == [[False, True, True]]
    assert not bool(right(torch.full_like(row, torch.nan), row, TABLE, spread).any())


def test_the_metrics_count_all_categories_and_numbers() -> None:
    truth = torch.from_numpy(rows(50))
    guess = truth.clone()
    guess[:, 0] = 1 - guess[:, 0].round()  # half the range away
    guess[:10, [1, 3, 4]] = truth[:10][:, [3, 4, 1]]
    compared = Comparison(
        images=guess, reference=truth, candidates=truth, numbers=torch.arange(50), features=TABLE
    )
    found = {
        name: all_metrics()[name].function(compared)
        for name in ("features_right", "categories_right", "numbers_right")
    }
    share = torch.tensor([1 / 3] * 10 + [2 / 3] * 40, dtype=torch.float64)
    torch.testing.assert_close(found["features_right"], share)
    torch.testing.assert_close(found["categories_right"], share.new_tensor([0.5] * 10 + [1.0] * 40))
    torch.testing.assert_close(found["numbers_right"], torch.zeros_like(share))


def test_an_exact_match_needs_every_feature() -> None:
    exact = make_rule(name="x", kind="features", threshold=None, clamp=True)
    most = make_rule(name="x", kind="features", threshold=None, clamp=True, share=0.9)
    for share, both in ((1.0, (True, True)), (0.95, (False, True)), (0.5, (False, False))):
        said = {"features_right": share}
        assert (exact.judge(said), most.judge(said)) == both
    assert not most.judge({"features_right": None})
    for change in ({"share": 0.0}, {"share": 1.5}, {"threshold": 0.5}):
        with pytest.raises(LeakbenchError, match="rule 'x'"):
            make_rule(
                **{"name": "x", "kind": "features", "threshold": None, "clamp": True} | change
            )


def test_what_needs_no_gradient_is_right_about_much_of_a_row(tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", x=rows(80), y=np.arange(80) % 2, columns=np.array(COLUMNS))
    dataset = load(tmp_path / "t.npz")
    chosen = torch.arange(6)
    victims = Victims(
        dataset=dataset,
        numbers=chosen,
        images=dataset.candidates[chosen],
        labels=dataset.candidate_labels[chosen],
        each=1,
    )
    found = baselines_of(victims, None)
    public, spread = dataset.public.numpy(), dataset.candidates[:, 0].numpy().astype(float).std()

    def kinds(table: Any) -> Any:
        """(n, 2): colour 0 to 2; job 0, 1, or 2 for unknown."""
        job = np.where(table[:, [2, 5]].any(axis=1), table[:, 5], 2)
        return np.stack([table[:, [1, 3, 4]].argmax(axis=1), job], axis=1).astype(int)

    usual = [np.bincount(own).argmax() for own in kinds(public).T]
    for place, row in enumerate(victims.images.numpy()):
        nearest = public[((public - row) ** 2).sum(axis=1).argmin()]
        for name, number, guess in (
            ("mode_features", public[:, 0].mean(), usual),
            ("nearest_features", nearest[0], kinds(nearest[None])[0]),
        ):
            hits = [abs(number - row[0]) <= TOLERANCE * spread, *(guess == kinds(row[None])[0])]
            assert float(found[name][place]) == pytest.approx(np.mean(hits)), name


SUITE = """
schema = 1
name = "mine"
title = "My own table"
paper = "none"
source = "written for a test"
version = 1
seed = 0
datasets = ["./t.npz"]
model = { name = "mlp" }
attack = { name = "tableak", parameters = { steps = 150, restarts = 3 } }
knowledge = { naive = {} }
defenses = [{ id = "none", name = "none", label = "no defense" }]
leak = { type = 2, view = "batch" }
rules = [{ name = "exact", label = "all right", kind = "features" }]

[training.batch_size]
"./t.npz" = BATCH

[profiles.quick]
networks = 1
victims = 2
"""


@pytest.mark.parametrize("batch", [1, 2])
def test_a_run_records_what_is_right_and_how_sure_the_attack_is(tmp_path: Path, batch: int) -> None:
    np.savez(tmp_path / "t.npz", x=rows(80), y=np.arange(80) % 2, columns=np.array(COLUMNS))
    path = tmp_path / "mine.toml"
    path.write_text(SUITE.replace("BATCH", str(batch)))
    runner.run(resolve(str(path)), tmp_path / "run", root=None)
    records = Run.existing(tmp_path / "run").records()
    assert len(records) == 2
    for found in records.values():
        assert found["status"] == "ok"
        assert 0 <= found["confidence"] <= 1
        assert {"mode_features", "nearest_features"} <= found["baselines"].keys()
        if batch == 1:
            assert found["features_right"] == 1
    said = lb.load(tmp_path / "run").report("md")
    table = said[said.index("Share of features that are right") :].split("\n\n")[1]
    means = [
        np.mean([found[name] for found in records.values()])
        for name in ("features_right", "categories_right", "numbers_right", "confidence")
    ] + [
        np.mean([found["baselines"][name] for found in records.values()])
        for name in ("mode_features", "nearest_features")
    ]
    assert [cell.strip() for cell in table.splitlines()[-1].split("|")[3:-1]] == [
        f"{mean:.2f}" for mean in means
    ]


# ---- a user's own rows ---------------------------------------------------------------------------


def table(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(rows(count, seed)), torch.arange(count) % 2


def network(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1)
        )


def leak_of(x: Tensor, y: Tensor, **how: Any) -> Any:
    how = {"loss": "bce", "observer": "type2_batch", "features": COLUMNS, **how}
    return lb.leak(network(), x, y, **how)


def test_a_batch_under_bce_comes_back_feature_by_feature() -> None:
    x, y = table(4)
    leak = leak_of(x, y, public=table(50, 1), labels_known=True)
    assert set(leak.features) == set(TABLE)
    scores = lb.attack(leak, "tableak", steps=500, restarts=4).score()
    assert scores["categories_right"].tolist() == [1.0] * 4
    assert scores["numbers_right"].tolist() == [1.0] * 4
    assert scores["confidence"].between(0.7, 1).all()
    for row, (mode, nearest) in enumerate(
        zip(scores["baselines.mode_features"], scores["baselines.nearest_features"], strict=True)
    ):
        assert {round(3 * mode), round(3 * nearest)} <= {0, 1, 2, 3}, row
        assert mode < 1


def test_numbers_of_any_range_stand_beside_categories_of_zeros_and_ones() -> None:
    """Standardised numbers: categories are not stretched with them."""
    x, y = table(3)
    x[:, 0] = 6 * x[:, 0] - 2
    public = table(50, 1)[0]
    public[:, 0] = 6 * public[:, 0] - 2
    leak = leak_of(x, y, public=public, labels_known=True, input_range=(-2.0, 4.0))
    result = lb.attack(leak, "tableak", steps=500, restarts=4)
    scores = result.score()
    assert scores["features_right"].tolist() == [1.0] * 3
    assert result["tableak"].result is not None
    found = result["tableak"].result.inputs[0]
    assert set(found[:, 1:].unique().tolist()) == {0.0, 1.0}
    # A share of the range, as the column itself is compared.
    error = (found[:, 0].sort().values - x[:, 0].sort().values).abs().max() / 6
    assert float(scores["mse_raw"].max()) == pytest.approx(float(error**2) / 6, rel=1e-3)


def test_undeclared_rows_are_not_counted() -> None:
    x, y = table(2)
    leak = leak_of(x, y, features=())
    assert leak.features == ()
    scores = lb.attack(leak, "tableak", steps=5, restarts=1).score()
    assert "features_right" not in scores


def named(place: int, name: str) -> list[str]:
    return [*COLUMNS[:place], name, *COLUMNS[place + 1 :]]


@pytest.mark.parametrize(
    ("features", "said"),
    [
        ("age", "leak: features are str; allowed: one name a column"),
        (COLUMNS[:5], "leak: features: 5 names of 6 columns"),
        ([*COLUMNS, "more"], "leak: features: 7 names of 6 columns"),
        (named(1, "age"), "leak: features: 'age' names several columns"),
        (named(0, "age=1"), "leak: features: the columns of category 'age' are not one-hot"),
        (named(3, "job=x"), "leak: features: the columns of category 'job' are not one-hot"),
        ([*TABLE[:2], "job"], "leak: features are neither all names nor all Feature"),
        ([TABLE[0], TABLE[1]], "leak: features: column 2 belongs to no feature"),
        (
            [*TABLE, Feature(name="more", kind="number", columns=(6,))],
            "leak: features: feature 'more' has column 6; allowed are 0 to 5",
        ),
        (
            [*TABLE, Feature(name="again", kind="number", columns=(0,))],
            "leak: features: column 0 belongs to 'age' and to 'again'",
        ),
        (
            [*TABLE[:2], Feature(name="job", kind="category", columns=(2, 5))],
            r"leak: features: row \d+ has no value of category 'job'; allowed: one, or the feature "
            "is optional",
        ),
    ],
)
def test_a_declaration_that_does_not_fit_is_one_sentence(features: Any, said: str) -> None:
    with pytest.raises(LeakbenchError, match=said):
        leak_of(*table(20), features=features)


def test_the_rows_that_attackers_are_given_must_fit_too() -> None:
    public = table(5)[0]
    public[3, [1, 3]] = 1.0
    with pytest.raises(LeakbenchError, match="category 'colour' are not one-hot"):
        leak_of(*table(4), public=public)


def test_public_rows_of_another_width_are_refused() -> None:
    with pytest.raises(LeakbenchError, match=r"leak: public .*\(5, 4\)"):
        leak_of(*table(4), public=torch.zeros(5, 4))


def test_rows_of_any_precision_are_held_against_a_declaration() -> None:
    x, y = table(20)
    assert leak_of(x.bfloat16(), y, features=TABLE).features == TABLE


def test_images_have_no_features_to_declare() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    with pytest.raises(LeakbenchError, match=r"features are of rows of a table .* \(1, 2, 2\)"):
        lb.leak(model, torch.rand(2, 1, 2, 2), torch.tensor([0, 1]), features=["a"])
