"""Forecasts from runs: counted by hand on made-up records, and of a real run from half of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from leakbench import history as histories
from leakbench import runner
from leakbench.forecast import EXAMPLE_SECONDS, GRADIENT_SECONDS, basis, forecast, together
from leakbench.history import History, Measured
from leakbench.manifest import Manifest
from leakbench.manifest import read as manifest_of
from leakbench.planning import plan_cells, plan_trainings
from leakbench.records import Record, Run
from leakbench.suite import resolve

TESTS = Path(__file__).parent
TINY = (TESTS / "tiny.toml").read_text(encoding="utf-8")

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
HERE, ELSEWHERE = "this one", "that one"


def planned(path: Path, text: str, *settings: str, processor: str = HERE) -> Manifest:
    """A run of the suite as it would be planned, by a processor of this name."""
    path.write_text(text, encoding="utf-8")
    plan = resolve(str(path), settings=settings)
    facts = {"device": "cpu", "device_name": processor}
    cells, trainings = plan_cells(plan, None, "cpu"), plan_trainings(plan, None, "cpu")
    return Manifest(plan=plan, cells=tuple(cells), trainings=tuple(trainings), facts=facts)


@pytest.fixture
def tiny(tmp_path: Path) -> Manifest:
    """2 rows x 2 victims, 2 steps of 20 evaluations at most, and 2 trainings of 420 examples."""
    return planned(tmp_path / "tiny.toml", TINY + UTILITY)


def trial(run: Manifest, row: int, victim: int, seconds: float | None, spent: int, ended: str,
          status: str = "ok") -> Record:  # fmt: skip
    identity = run.cells[row].identities[0]
    return {"identity": identity, "victim": victim, "status": status, "evaluations": spent,
            "ended": ended, "host": {"seconds": seconds}}  # fmt: skip


def training(run: Manifest, number: int, seconds: float) -> Record:
    identity = run.trainings[number].identities[0]
    return {"identity": identity, "victim": 0, "status": "ok", "host": {"seconds": seconds}}


def half_of(run: Manifest) -> Iterator[Record]:
    """A victim of each row: 3 s each, as a chunk shares its time, 40 and 20 evaluations."""
    yield trial(run, 0, 0, 3.0, 40, "steps")
    yield trial(run, 1, 0, 3.0, 20, "converged")


def test_what_was_measured_takes_the_place_of_constants(tiny: Manifest) -> None:
    """6 s for 60 evaluations; rows of 40 and of 20 of them, twice each."""
    known = History((Measured(tiny, half_of(tiny)),), HERE)
    found = forecast(tiny.cells, [], None, known)
    assert found.seconds == pytest.approx(2 * (4.0 + 2.0)) and found.measured == found.trials == 4
    assert basis(found, HERE) == "from 2 trials measured on this processor"
    (alone,) = [forecast([cell], [], None, known) for cell in tiny.cells[1:]]
    assert alone.seconds == pytest.approx(2 * 2.0)
    left = {(tiny.cells[0].identities[0], 0)}
    assert forecast(tiny.cells, [], left, known).seconds == pytest.approx(4.0)


def test_rows_that_were_not_run_are_like_their_family(tiny: Manifest) -> None:
    known = History((Measured(tiny, [*half_of(tiny)][:1]),), HERE)
    assert forecast(tiny.cells, [], None, known).seconds == pytest.approx(4 * 3.0)


def test_a_larger_budget_changes_nothing_for_who_ended_by_himself(
    tiny: Manifest, tmp_path: Path
) -> None:
    """With 3 times the steps: 120 evaluations and 20, at 0.1 s; with half of them 20 and 20."""
    known = History((Measured(tiny, half_of(tiny)),), HERE)
    for steps, seconds in ((6, 12.0 + 2.0), (1, 2.0 + 2.0)):
        other = planned(tmp_path / "b.toml", TINY.replace("steps = 2", f"steps = {steps}"))
        assert {cell.budget for cell in other.cells} == {20 * steps}
        assert not {*other.cells[0].identities} & {*tiny.cells[0].identities}
        found = forecast(other.cells, [], None, known)
        assert found.seconds == pytest.approx(2 * seconds) and found.measured == 4


def test_who_says_that_he_is_done_at_the_end_of_his_budget_used_it_up(
    tiny: Manifest, tmp_path: Path
) -> None:
    """As a search of a list does, which takes longer where the list is longer."""
    records = [trial(tiny, row, 0, 3.0, 40, "converged") for row in (0, 1)]
    other = planned(tmp_path / "b.toml", TINY.replace("steps = 2", "steps = 4"))
    found = forecast(other.cells, [], None, History((Measured(tiny, records),), HERE))
    assert found.seconds == pytest.approx(4 * 6.0)


def test_who_needs_no_evaluations_takes_his_time_a_trial(tiny: Manifest) -> None:
    records = [trial(tiny, row, 0, 3.0 + row, 0, "converged") for row in (0, 1)]
    found = forecast(tiny.cells, [], None, History((Measured(tiny, records),), HERE))
    assert found.seconds == pytest.approx(4 * 3.5)


def test_trainings_go_by_the_examples_that_are_planned(tiny: Manifest, tmp_path: Path) -> None:
    """Two that took 2 and 6 s; one with the noise of the second and twice its rounds takes 12."""
    known = History((Measured(tiny, [training(tiny, 0, 2.0), training(tiny, 1, 6.0)]),), HERE)
    found = forecast([], tiny.trainings, None, known)
    assert found.seconds == pytest.approx(8.0) and found.measured == found.trainings == 2
    longer = UTILITY.replace("iterations = 7", "iterations = 14")
    other = planned(tmp_path / "b.toml", TINY + longer)
    assert forecast([], other.trainings, None, known).seconds == pytest.approx(4.0 + 12.0)


def test_what_nothing_is_like_goes_by_constants_and_says_so(tiny: Manifest, tmp_path: Path) -> None:
    """Another attacker, and a failed or an unknown trial, tell nothing."""
    said = [
        trial(tiny, 0, 0, 3.0, 40, "", status="error"),
        trial(tiny, 0, 0, None, 40, "steps"),
        {**trial(tiny, 0, 0, 3.0, 40, "steps"), "identity": "of older code"},
    ]
    nothing = forecast(tiny.cells, tiny.trainings, None, History((Measured(tiny, said),), HERE))
    constants = forecast(tiny.cells, tiny.trainings)
    assert nothing == constants and not constants.measured
    assert constants.seconds == pytest.approx(4 * 40 * GRADIENT_SECONDS + 2 * 420 * EXAMPLE_SECONDS)
    assert basis(constants, HERE).endswith("no history: by constants")
    both = TINY.replace("[knowledge.naive]", "[knowledge.naive]\n[knowledge.adaptive]")
    wider = planned(tmp_path / "b.toml", both)
    known = History((Measured(tiny, half_of(tiny)),), HERE)
    found = forecast(wider.cells, [], None, known)
    assert found.seconds == pytest.approx(2 * 6.0 + 4 * 40 * GRADIENT_SECONDS)
    assert basis(found, HERE).startswith("4 of 8 from 2 trials measured on this processor, the oth")


def test_runs_of_this_processor_come_first(tiny: Manifest) -> None:
    slow = replace(tiny, facts={**tiny.facts, "device_name": ELSEWHERE})
    twice = [{**each, "host": {"seconds": 6.0}} for each in half_of(tiny)]
    here, there = Measured(tiny, half_of(tiny)), Measured(slow, twice)
    for runs in ((here, there), (there, here)):
        assert forecast(tiny.cells, [], None, History(runs, HERE)).seconds == pytest.approx(12.0)
    found = forecast(tiny.cells, [], None, History((there,), HERE))
    assert found.seconds == pytest.approx(24.0)
    assert basis(found, HERE) == f"from 2 trials measured on another processor, {ELSEWHERE}"
    several = together([found, forecast(tiny.cells, [], None, History((here,), HERE))])
    assert (several.trials, several.measured, several.seconds) == (8, 8, pytest.approx(36.0))
    assert basis(several, HERE) == (
        f"from 2 trials measured on another processor, {ELSEWHERE} "
        "and 2 trials measured on this processor"
    )


def test_of_two_runs_the_nearer_one_and_the_closer_alike(tiny: Manifest, tmp_path: Path) -> None:
    twice = [{**each, "host": {"seconds": 6.0}} for each in half_of(tiny)]
    first, second = Measured(tiny, half_of(tiny)), Measured(tiny, twice)
    assert forecast(tiny.cells, [], None, History((second, first), HERE)).seconds == 24.0
    other = planned(tmp_path / "b.toml", TINY.replace("steps = 2", "steps = 4"))
    far = Measured(other, half_of(other))
    assert forecast(tiny.cells, [], None, History((far, second), HERE)).seconds == 24.0


# ------------------------------------------------------------------------------ real runs


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the tiny suite with 8 victims, where `leakbench run` puts it."""
    folder = tmp_path_factory.mktemp("history")
    (folder / "tiny.toml").write_text(TINY.replace("victims = 2", "victims = 8"))
    out = folder / "results/runs/tiny-quick"
    runner.run(resolve(str(folder / "tiny.toml")), out, root=None, chunk_size=4)
    return out


def test_half_of_a_run_forecasts_the_whole(run: Path) -> None:
    """Every other trial of each chunk; the whole took the sum of all seconds."""
    records, said = Run(run).records(), manifest_of(Run(run))
    half = [record for record in records.values() if record["victim"] % 2 == 0]
    assert 2 * len(half) == len(records) == 16
    processor = runner.device_name("cpu")
    found = forecast(said.cells, said.trainings, None, History((Measured(said, half),), processor))
    took = sum(record["host"]["seconds"] for record in records.values())
    assert found.measured == 16 and took / 1.5 < found.seconds < took * 1.5
    assert basis(found, processor) == "from 8 trials measured on this processor"


def test_folders_of_a_suite(run: Path, tmp_path: Path) -> None:
    """The own run and its shards first; then other profiles, then what is committed; no other."""
    base = tmp_path / "results/runs"
    names = ("tiny-quick", "tiny-quick/shard-2-of-3", "tiny-paper", "tiny-paper/shard-1-of-2")
    for name in (*names, "tiny_other-quick"):
        (base / name / "manifests").mkdir(parents=True)
    (base / "tiny-empty").mkdir()
    (base.parent / "tiny-12" / "manifests").mkdir(parents=True)
    found = histories.runs_of("tiny", "quick", base, base.parent)
    assert found == [*(base / name for name in names), base.parent / "tiny-12"]
    assert histories.runs_of("[a-z]*", "quick", base, base.parent) == []


def test_what_cannot_be_read_is_said(run: Path, tmp_path: Path) -> None:
    (tmp_path / "bare" / "manifests").mkdir(parents=True)
    found = histories.read([tmp_path / "bare", run], "cpu", "any")
    assert len(found.runs) == 1 and "has no manifest" in found.unread[0]
    assert histories.read([run], "cuda", "any").runs == ()


def test_validate_says_what_it_rests_on(
    leakbench: Callable[..., Any], run: Path, tmp_path: Path
) -> None:
    suite, at = run.parents[2] / "tiny.toml", run.parents[2]
    words = "from 16 trials measured on this processor"
    assert words in leakbench("validate", suite, "--device", "cpu", cwd=at).out
    done = leakbench("validate", suite, "--device", "cpu", "--history", run, cwd=tmp_path)
    assert done.code == 0 and words in done.out
    assert "no history" in leakbench("validate", suite, "--device", "cpu", cwd=tmp_path).out
    refused = leakbench("validate", suite, "--history", tmp_path / "none", cwd=tmp_path)
    assert refused.code == 2 and "no run there" in refused.errors


def test_queue_says_what_it_rests_on(leakbench: Callable[..., Any], run: Path) -> None:
    at = run.parents[2]
    args = ("queue", "tiny.toml", "--dry-run", "--device", "cpu", "--workers", "1")
    done = leakbench(*args, cwd=at)
    assert "from 16 trials measured on this processor" in done.out
    broken = at / "results/runs/tiny-broken"
    (broken / "manifests").mkdir(parents=True)
    try:
        assert "not forecast from: " in leakbench(*args, cwd=at).errors
    finally:
        shutil.rmtree(broken)
