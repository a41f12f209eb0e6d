"""The queue: its forecast, its order, going on after a stop; a failure stops no other suite."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leakbench import runner
from leakbench.errors import LeakbenchError
from leakbench.records import Run

TINY = Path(__file__).with_name("tiny.toml").read_text(encoding="utf-8")
Command = Callable[..., Any]

LONG = TINY.replace('name = "tiny"', 'name = "long"').replace("victims = 2", "victims = 5")


@pytest.fixture
def suites(tmp_path: Path) -> Path:
    """A folder with a short suite and a long one."""
    (tmp_path / "short.toml").write_text(TINY.replace('name = "tiny"', 'name = "short"'))
    (tmp_path / "long.toml").write_text(LONG)
    return tmp_path


@pytest.fixture
def queue(leakbench: Command, suites: Path) -> Command:
    """`leakbench queue` there, by one worker."""

    def call(*args: str, **env: str) -> Any:
        options = ("--device", "cpu", "--workers", "1", "--out", "runs")
        return leakbench("queue", *args, *options, cwd=suites, **env)

    return call


BOTH = ("short.toml", "long.toml")


def test_the_forecast_has_the_longest_first_and_runs_nothing(queue: Command, suites: Path) -> None:
    done = queue(*BOTH, "--dry-run")
    assert done.code == 0, done.errors
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    assert lines[:4] == [
        "suite trials left trainings left time left in all",
        "long 10 of 10 0 of 0 1 min 1 min",
        "short 4 of 4 0 of 0 1 min 1 min",
        "together 1 min 1 min",
    ]
    assert lines[4].startswith("roughly, by 1 workers") and len(lines) == 5
    assert {path.name for path in suites.iterdir()} == {"short.toml", "long.toml"}


def test_every_suite_has_its_own_run_and_a_finished_queue_does_nothing(
    queue: Command, suites: Path
) -> None:
    done = queue(*BOTH)
    assert done.code == 0, done.errors
    assert done.out.splitlines()[5:] == [
        "long: done; 10 of 10 run now; runs/long-quick",
        "short: done; 4 of 4 run now; runs/short-quick",
    ]
    for name, trials in (("long", 10), ("short", 4)):
        folder = suites / "runs" / f"{name}-quick"
        assert len(Run.existing(folder).records()) == trials
        assert json.loads((folder / "report.json").read_text())["suite"] == name
    again = queue(*BOTH)
    assert again.code == 0
    lines = [" ".join(line.split()) for line in again.out.splitlines()]
    # Which took longer is measured now, and on a busy machine that may be either.
    assert sorted(lines[1:3]) == ["long 0 of 10 0 of 0 - 1 min", "short 0 of 4 0 of 0 - 1 min"]
    assert sorted(lines[5:]) == [
        "long: done; 0 of 10 run now; runs/long-quick",
        "short: done; 0 of 4 run now; runs/short-quick",
    ]


def test_a_stopped_queue_goes_on_where_it_was(
    queue: Command, suites: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped in the second suite: the first is kept whole, the second runs when asked again."""
    run = runner.run

    def interrupted(plan: Any, folder: Path, **options: Any) -> Any:
        if plan.name == "short":
            raise KeyboardInterrupt
        return run(plan, folder, **options)

    with monkeypatch.context() as patch:
        patch.setattr(runner, "run", interrupted)
        done = queue(*BOTH)
    assert done.code == 3
    assert "what is done is kept in runs: run the same command again" in done.errors
    again = queue(*BOTH)
    assert again.code == 0
    assert again.out.splitlines()[5:] == [
        "long: done; 0 of 10 run now; runs/long-quick",
        "short: done; 4 of 4 run now; runs/short-quick",
    ]


def test_the_deadline_counts_from_the_start(
    queue: Command, suites: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is planned before the first suite begins may take minutes."""
    monkeypatch.setattr(runner, "prepare", lambda *args: time.sleep(60))
    done = queue(*BOTH, "--deadline", "0.1s")
    assert done.code == 3
    assert "stopped by the deadline; nothing was done yet" in done.errors


def test_a_suite_that_fails_stops_no_other(queue: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    run = runner.run

    def lost(plan: Any, folder: Path, **options: Any) -> Any:
        if plan.name == "long":
            raise LeakbenchError("no room")
        return run(plan, folder, **options)

    monkeypatch.setattr(runner, "run", lost)
    done = queue(*BOTH)
    assert done.code == 1
    assert done.out.splitlines()[5:] == [
        "long: failed: no room",
        "short: done; 4 of 4 run now; runs/short-quick",
    ]


def test_trials_in_error_and_rows_above_a_ceiling_are_failures(
    queue: Command, suites: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEAKBENCH_PLUGINS", "")  # which --plugins sets, for this process
    folder = suites / "mine" / "defenses"
    folder.mkdir(parents=True)
    (folder / "falls.py").write_text(
        "from dataclasses import dataclass\nfrom typing import ClassVar\n"
        "from leakbench.contracts import Defense\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class Falls(Defense):\n"
        '    """It fails."""\n'
        '    name: ClassVar[str] = "falls"\n'
        "    def on_examples(self, gradients, state, context):\n"
        '        raise ValueError("it fell")\n'
    )
    text = LONG.replace('name = "dp_baseline"', 'name = "falls"')
    (suites / "long.toml").write_text(
        text.replace('parameters = { clip = 4.0, convention = "mean" }', "")
    )
    done = queue(*BOTH, "--plugins", str(suites / "mine"))
    assert done.code == 1
    assert done.out.splitlines()[5:] == [
        "long: 5 in error, 0 rows above their ceiling; 10 of 10 run now; runs/long-quick",
        "short: done; 4 of 4 run now; runs/short-quick",
    ]


def test_without_names_all_suites_that_have_the_profile(
    queue: Command, suites: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leakbench.suite.names", lambda: [str(suites / name) for name in BOTH])
    (suites / "long.toml").write_text(LONG + "[profiles.paper]\nnetworks = 2\nvictims = 3\n")
    done = queue("--profile", "paper", "--dry-run")
    assert done.code == 0
    assert [line.split()[0] for line in done.out.splitlines()[1:3]] == ["long", "together"]
    assert "short.toml: has no profile 'paper', left out" in done.errors
    refused = queue("--profile", "huge")
    assert refused.code == 2 and refused.out == ""
    assert "no suite has a profile 'huge'; there are: paper, quick" in refused.errors


def test_bad_input_is_said_before_anything_runs(queue: Command, suites: Path) -> None:
    (suites / "same.toml").write_text(LONG)
    for args, said in (
        (("long.toml", "same.toml"), "two suites are named 'long'"),
        (("long.toml", "nowhere"), "unknown suite 'nowhere'"),
        (("long.toml", "--profile", "papre"), "unknown profile 'papre'"),
    ):
        done = queue(*args)
        assert (done.code, done.out) == (2, "") and said in done.errors
    assert not (suites / "runs").exists()
    assert queue("long.toml", "long.toml", "--dry-run").code == 0  # the same one twice is once
