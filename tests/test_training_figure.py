"""The picture of trainings: what is drawn is what the records hold, and nothing is cut."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leakbench import planning
from leakbench.described import PlannedTraining
from leakbench.errors import LeakbenchError
from leakbench.records import Key, Record
from leakbench.report.figures import page_of, written
from leakbench.report.training_figure import blocks_of, training_rows
from leakbench.spec import Plan
from leakbench.suite import resolve

SUITE = """
schema = 1
name = "drawn"
title = "Drawn"
datasets = ["mnist", "lfw"]
model = { name = "mlp" }
training = { mode = "federated", iterations = 4, clients = 8, batch_size = { "*" = 4 } }
defenses = [
  { id = "none", name = "none", label = "no, none" },
  { id = "cdp", name = "fed_cdp", label = "a label of $C_t$ that is long enough, to be cut in two lines" },
]
[utility]
variants = [
  { id = "a", label = "first, of two", datasets = ["mnist"] },
  { id = "b", label = "second", datasets = ["mnist"], training = { iterations = 8 } },
]
[profiles.quick.utility]
networks = 2
"""  # noqa: E501


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    path = tmp_path / "drawn.toml"
    path.write_text(SUITE, encoding="utf-8")
    return resolve(str(path))


@pytest.fixture
def planned(plan: Plan) -> list[PlannedTraining]:
    return planning.plan_trainings(plan, None, "cpu")


def log(round: int, factor: float, **scales: float | None) -> dict[str, Any]:
    return {
        "round": round, "loss": 1.0, "norms": [factor * q for q in (1, 2, 3, 4, 5)],
        "update_raw": factor, "update_released": 2 * factor, "update_distance": None, **scales,
    }  # fmt: skip


@pytest.fixture
def records(planned: list[PlannedTraining]) -> dict[Key, Record]:
    """Two networks of variant "a" without defense, one of "b" with it."""
    none, cdp = planned[0], planned[3]
    assert (none.cell.row, cdp.cell.row) == ("a/none", "b/cdp")
    found: dict[Key, Record] = {}
    for network, share in ((0, 0.5), (1, 0.7)):
        found[none.identities[network], 0] = {
            "status": "ok", "curve": [[0, 0.1], [4, share]],
            "log": [log(1, network + 1), log(4, 10)],
        }  # fmt: skip
    found[cdp.identities[0], 0] = {
        "status": "ok", "curve": [[0, 0.1], [8, 0.9]],
        "log": [log(8, 1, clip=4.0, sensitivity=3.5, noise_multiplier=6.0)],
    }  # fmt: skip
    return found


def test_lines_are_means_over_networks(
    plan: Plan, planned: list[PlannedTraining], records: dict[Key, Record]
) -> None:
    first, second = blocks_of(plan, planned, records)
    assert [line.label for line in first.lines] == ["no, none"]
    assert first.title.endswith("first, of two") and second.title.endswith("second")
    points = first.lines[0].points
    assert points["accuracy"] == ((0, 0.1), (4, pytest.approx(0.6)))
    assert points["norm"] == ((1, 4.5), (4, 30)) and points["norm_low"] == ((1, 3), (4, 20))
    assert points["update_released"] == ((1, 3), (4, 20)) and points["update_distance"] == ()
    assert points["clip"] == ()
    scales = second.lines[0].points
    assert [scales[name] for name in ("clip", "sensitivity", "noise_multiplier")] == [
        ((8, 4.0),), ((8, 3.5),), ((8, 6.0),),
    ]  # fmt: skip


@pytest.mark.parametrize("width", [3.5, 7.16])
def test_nothing_is_cut(
    plan: Plan,
    planned: list[PlannedTraining],
    records: dict[Key, Record],
    width: float,
    crowded: Callable[..., list[str]],
) -> None:
    rows = training_rows(plan, planned, records)
    assert [len(row.panels) for row in rows] == [5, 5]
    assert crowded(rows, width) == []


def test_what_nothing_was_logged_of_has_no_panel(
    plan: Plan, planned: list[PlannedTraining], records: dict[Key, Record]
) -> None:
    bare = {key: {**record, "log": []} for key, record in records.items()}
    rows = training_rows(plan, planned, bare)
    assert [len(row.panels) for row in rows] == [1, 1]  # accuracy of two blocks


def test_a_single_round_is_seen(
    plan: Plan, planned: list[PlannedTraining], records: dict[Key, Record]
) -> None:
    """A line of one point has a mark, whatever its style."""
    norms = page_of(training_rows(plan, planned, records)[1:]).axes[1]
    assert [line.get_marker() for line in norms.lines] == ["_", "o", "_"]


def test_numbers_of_every_size_are_drawn(
    plan: Plan, planned: list[PlannedTraining], records: dict[Key, Record]
) -> None:
    key = next(iter(records))
    wild = [log(1, 1e30), log(2, 0.0), log(3, 1e-30)]
    one = {key: {**records[key], "log": wild}}
    assert written(training_rows(plan, planned, one), ".png", dpi=100)


def test_what_cannot_be_drawn_is_one_sentence(
    plan: Plan, planned: list[PlannedTraining], records: dict[Key, Record]
) -> None:
    with pytest.raises(LeakbenchError, match="no training has a result"):
        training_rows(plan, planned, {})
    failed = {key: {**record, "status": "error"} for key, record in records.items()}
    with pytest.raises(LeakbenchError, match="no training has a result"):
        training_rows(plan, planned, failed)


def test_the_command_writes_it_and_the_page_holds_it(
    tmp_path: Path, leakbench: Callable[..., Any]
) -> None:
    path = tmp_path / "drawn.toml"
    path.write_text(SUITE.replace("networks = 2", "networks = 1"), encoding="utf-8")
    run = tmp_path / "run"
    made = leakbench("run", path, "--out", run, "--workers", "1", cwd=tmp_path)
    assert made.code == 0
    assert leakbench("figure", run, "training", cwd=tmp_path).code == 0
    assert (run / "training.png").read_bytes().startswith(b"\x89PNG")
    assert 'alt="Accuracy, norms' in (run / "report.html").read_text(encoding="utf-8")
    assert leakbench("figure", run, "training", "--out", "x.svg", cwd=tmp_path).code == 0
    assert b"<svg" in (tmp_path / "x.svg").read_bytes()
    refused = leakbench("figure", run, "training", "--out", "x.jpg", cwd=tmp_path)
    assert refused.code == 2 and "'.svg' or '.pdf', not as '.jpg'" in refused.errors
    # Trainings of another run in the same folder are no reason to draw, nor to fail.
    other = 'utility.variants=[{ id = "c", label = "third", datasets = ["lfw"] }]'
    again = leakbench("run", path, "--out", run, "--workers", "1", "--set", other, cwd=tmp_path)
    assert again.code == 0
    assert 'alt="Accuracy, norms' not in (run / "report.html").read_text(encoding="utf-8")
