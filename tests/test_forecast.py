"""How long a plan takes: counted by hand from what it says, and as the README says it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from leakbench import forecast as forecasts
from leakbench.forecast import EXAMPLE_SECONDS, GRADIENT_SECONDS, forecast, in_words
from leakbench.planning import plan_cells, plan_trainings
from leakbench.suite import names, read, resolve

TINY = Path(__file__).with_name("tiny.toml").read_text(encoding="utf-8")
UTILITY = """
[utility]
[utility.model]
name = "mlp"
[utility.training]
mode = "federated"
clients = 20
clients_a_round = 3
local_steps = 5
iterations = 7
learning_rate = 0.1
batch_size = { mnist = 4 }
"""


@pytest.fixture
def suite(tmp_path: Path) -> str:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY.replace("victims = 2", "victims = 3") + UTILITY, encoding="utf-8")
    return str(path)


def test_attacks_and_trainings_are_counted(suite: str) -> None:
    """2 rows x 3 victims x 2 steps of 20 evaluations; 2 networks of 7 rounds x 3 x 5 x 4."""
    plan = resolve(suite)
    cells, trainings = plan_cells(plan, None, "cpu"), plan_trainings(plan, None, "cpu")
    found = forecast(cells, trainings)
    assert (found.trials, found.trainings) == (6, 2)
    expected = 6 * 40 * GRADIENT_SECONDS + 2 * 7 * 60 * EXAMPLE_SECONDS
    assert found.seconds == pytest.approx(expected)
    assert found.on(4) == pytest.approx(expected / 4)
    left = {next(iter(cells[0].trials())), next(iter(trainings[1].trials()))}
    some = forecast(cells, trainings, left)
    assert (some.trials, some.trainings) == (1, 1)
    assert some.seconds == pytest.approx(40 * GRADIENT_SECONDS + 7 * 60 * EXAMPLE_SECONDS)
    assert forecast(cells, trainings, set()).seconds == 0


def test_a_sweep_trains_once_a_rate(suite: str) -> None:
    (first, _) = plan_trainings(resolve(suite), None, "cpu")
    swept = replace(first, cell=replace(first.cell, learning_rates=(0.1, 0.01, 0.001)))
    assert forecast([], [swept]).trainings == 1
    assert forecast([], [swept]).seconds == pytest.approx(3 * forecast([], [first]).seconds)


def test_rows_that_train_the_same_are_trained_once(suite: str) -> None:
    planned = plan_trainings(resolve(suite), None, "cpu")
    same = [replace(each, cell=replace(each.cell, defense_id="again")) for each in planned]
    assert forecast([], [*planned, *same]) == forecast([], planned)


def test_what_is_skipped_takes_no_time(suite: str) -> None:
    plan = resolve(suite)
    cells = [replace(cell, skip="no data") for cell in plan_cells(plan, None, "cpu")]
    trainings = [replace(each, skip="no data") for each in plan_trainings(plan, None, "cpu")]
    found = forecast(cells, trainings)
    assert (found.trials, found.trainings, found.seconds) == (0, 0, 0)


def test_looks_cost_each_and_the_training_before_them_once(tmp_path: Path) -> None:
    """The network of round 4 of 9 is trained for a defense and not for each attacker."""
    text = TINY.replace("[knowledge.naive]", "[knowledge.naive]\n[knowledge.adaptive]")
    text = text.replace(
        "[training]\n",
        '[leak]\nat = "middle"\nobservations = 2\n[training]\nmode = "federated"\nclients = 20\n'
        "clients_a_round = 3\nlocal_steps = 5\niterations = 9\n",
    )
    path = tmp_path / "tiny.toml"
    path.write_text(text, encoding="utf-8")
    cells = plan_cells(resolve(str(path)), None, "cpu")
    assert {cell.cell.rounds for cell in cells} == {(4, 4)} and len(cells) == 4
    expected = 8 * 2 * 40 * GRADIENT_SECONDS + 2 * 4 * 3 * 5 * 8 * EXAMPLE_SECONDS
    assert forecast(cells, []).seconds == pytest.approx(expected)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "1 min"), (89, "1 min"), (119 * 60, "119 min"), (120 * 60, "2 h"), (33.4 * 3600, "33 h")],
)
def test_words(seconds: float, words: str) -> None:
    assert in_words(seconds) == words


def test_the_docs_say_what_validate_forecasts() -> None:
    """Of the paper's size of Table III, without LFW, on two cores."""
    text = (Path(__file__).parent.parent / "docs" / "suites.md").read_text(encoding="utf-8")
    (hours,) = re.findall(r"PROFILE=paper`,\s+for\s+which\s+`validate`\s+forecasts\s+(\d+ h)", text)
    cells = plan_cells(resolve("tifs_table3", "paper"), None, "cpu")
    assert in_words(forecast(cells, []).on(2)) == hours


def medium_minutes(name: str) -> float:
    """Of the profile on two cores; data sets that are not here take as long as those that are."""
    plan = resolve(name, "medium")
    cells = plan_cells(plan, None, "cpu")
    budgets = {(each.cell.row, each.cell.knowledge): each.budget for each in cells if not each.skip}
    here = [
        replace(each, skip="", budget=budgets.get((each.cell.row, each.cell.knowledge), most))
        for most in [max(budgets.values(), default=0)]
        for each in cells
    ]
    trainings = [replace(each, skip="") for each in plan_trainings(plan, None, "cpu")]
    return forecast(here, trainings).on(2) / 60


def test_large_networks_cost_their_operations() -> None:
    """A ResNet-18 on 32 x 32 pixels: 0.56 billion multiply-adds (He et al.'s 1.82 on 224 x 224)."""
    found = forecasts._operations("resnet18", "{}", (3, 32, 32), 10)
    assert found == pytest.approx(2 * 0.556e9, rel=0.01)
    small = forecasts._operations("cnn2", "{}", (1, 28, 28), 10)
    assert small < forecasts.SMALL


def test_a_medium_profile_ends_within_90_minutes() -> None:
    assert 20 < medium_minutes("ladder") <= 90


@pytest.mark.slow
def test_every_medium_profile_ends_within_90_minutes() -> None:
    medium = [name for name in names() if "medium" in read(name)[0].profiles]
    assert len(medium) > 40
    minutes = {name: medium_minutes(name) for name in medium}
    assert {name: found for name, found in minutes.items() if found > 90} == {}
