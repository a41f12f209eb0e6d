"""Who does the work: processes that die, hang or fill the memory harm their own trials only."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

from leakbench import executors, manifest, merging, pieces, planning, runner
from leakbench.commands.report import write_reports
from leakbench.commands.running import interruptible, seconds_of
from leakbench.described import PlannedTraining
from leakbench.errors import LeakbenchError
from leakbench.executors import Executor, Processes, Serial
from leakbench.pieces import Shard, TimeLimits, instead
from leakbench.records import Key, Record, Run
from leakbench.registry import FOLDERS
from leakbench.runner import Outcome, Progress
from leakbench.spec import Limits, Plan
from leakbench.stopping import Stop, Stopped
from leakbench.suite import resolve
from leakbench.working import Done, Task

HARMS = '''
import os
import signal
import threading
import time
from dataclasses import dataclass
from typing import ClassVar

import torch

from leakbench.contracts import Defense, Guarantee


@dataclass(frozen=True, kw_only=True)
class Harms(Defense):
    """Ends, blocks or fills the process that asks it to protect a gradient."""

    name: ClassVar[str] = "harms"
    how: str = "nothing"
    flag: str = ""

    def on_examples(self, gradients, state, context):
        def exit():
            os._exit(0)

        def kill():
            os.kill(os.getpid(), signal.SIGKILL)

        def sleep():
            time.sleep(10_000)

        def memory():
            torch.empty(2**45)

        def interrupt():
            raise KeyboardInterrupt

        def thread():
            threading.Thread(target=time.sleep, args=(10_000,)).start()

        def once():
            if not os.path.exists(self.flag):
                open(self.flag, "w").close()
                exit()

        harms = dict(
            exit=exit, kill=kill, sleep=sleep, memory=memory, interrupt=interrupt, thread=thread,
            once=once, nothing=lambda: None,
        )
        harms[self.how]()
        return gradients, state

    def guarantee(self, observer, weights, setting):
        return Guarantee(level="none", reason="it harms")
'''
VICTIMS = 2


@pytest.fixture
def plan(
    small_suite: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Plan]:
    """Makes the plan with a row that harms so."""
    folder = tmp_path / "plugins" / "defenses"
    folder.mkdir(parents=True)
    (folder / "harms.py").write_text(HARMS, encoding="utf-8")
    monkeypatch.setenv(FOLDERS, str(folder.parent))
    path = small_suite('name = "harms"', steps=1, victims=VICTIMS)

    def make(how: str, *settings: str) -> Plan:
        flag = tmp_path / "flag"
        said = f"defenses.other.parameters={{how='{how}', flag='{flag}'}}"
        return resolve(str(path), settings=[said, *settings])

    return make


def run(plan: Plan, folder: Path, **options: Any) -> Outcome:
    """Run without a data root."""
    return runner.run(plan, folder, root=None, **options)


def results(folder: Path, row: str | None = None) -> dict[Key, Record]:
    """What is recorded, host fields apart."""
    return {
        key: {name: value for name, value in record.items() if name != "host"}
        for key, record in Run(folder).records().items()
        if row in (None, record["row"])
    }


def without_identity(folder: Path) -> list[Record]:
    """Results of runs whose rows differ in a parameter that changes no number."""
    drop = ("identity", "checksum")
    found = results(folder).values()
    plain = [{k: v for k, v in each.items() if k not in drop} for each in found]
    return sorted(plain, key=lambda each: (each["row"], each["victim"]))


def said(folder: Path) -> set[tuple[str, str]]:
    """Status and reason of the trials of the row that harms."""
    return {(each["status"], each["reason"]) for each in results(folder, "other").values()}


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("how", "status", "reason"),
    [
        ("exit", "error", "its process ended by itself, exit code 0"),
        ("kill", "error", "its process was killed by SIGKILL, out of memory perhaps"),
        pytest.param("sleep", "timeout", "took more than 2 s; its process was ended",
                     marks=pytest.mark.slow),
        ("memory", "oom", "can't allocate memory"),
        ("interrupt", "error", "KeyboardInterrupt"),
    ],
)  # fmt: skip
def test_what_harms_its_process_harms_its_own_trials_only(
    plan: Any, tmp_path: Path, how: str, status: str, reason: str, workers: int
) -> None:
    harmless = plan("nothing", "defenses=[{id='none', name='none', label='none'}]")
    run(harmless, tmp_path / "alone")
    limits = ["limits.trial=2"] if how == "sleep" else []
    outcome = run(plan(how, *limits), tmp_path / "run", executor=Processes(workers))
    assert (outcome.ran, outcome.errors, outcome.interrupted) == (2 * VICTIMS, VICTIMS, False)
    assert results(tmp_path / "run", "none") == results(tmp_path / "alone", "none")
    ((found, why),) = said(tmp_path / "run")
    assert found == status
    assert reason in why


def test_a_task_whose_process_died_once_is_done_again(plan: Any, tmp_path: Path) -> None:
    told: list[Progress] = []
    outcome = run(plan("once"), tmp_path / "run", executor=Processes(1), report=told.append)
    assert outcome.errors == 0
    assert any("done again in smaller pieces" in each.reason for each in told)
    run(plan("nothing"), tmp_path / "calm")
    assert without_identity(tmp_path / "run") == without_identity(tmp_path / "calm")


def test_a_thread_that_a_plugin_leaves_running_keeps_nobody_waiting(
    plan: Any, tmp_path: Path
) -> None:
    plan("thread")  # writes nothing; the files are there
    words = ["--set", "defenses.other.parameters={how='thread'}", "--device", "cpu"]
    done = subprocess.run(
        [sys.executable, "-m", "leakbench.cli", "run", "small.toml", *words,
         "--executor", "serial", "--out", "run"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_chunks_out_of_memory_are_halved_down_to_what_fits(
    plan: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that holds one victim at a time gives the results of one that holds them all."""
    from leakbench import working

    whole = working.run_chunk

    def small(chunk: Any) -> Any:
        if len(chunk.trials) > 1:
            raise MemoryError
        return whole(chunk)

    run(plan("nothing"), tmp_path / "large")
    monkeypatch.setattr(working, "run_chunk", small)
    assert run(plan("nothing"), tmp_path / "small").errors == 0
    assert results(tmp_path / "small") == results(tmp_path / "large")
    sizes = [each["host"]["chunk"] for each in Run(tmp_path / "small").records().values()]
    assert sizes == [1] * 2 * VICTIMS
    assert {each["host"]["chunk"] for each in Run(tmp_path / "large").records().values()} == {4}


# ------------------------------------------------------------------------------ what to do instead


def tasks(plan: Plan, size: int = 128, *, divisible: bool = True) -> list[Task]:
    """Chunks of a plan that has not begun."""
    planned = planning.plan_cells(plan, None, "cpu")
    left = {key for cell in planned for key in cell.trials()}
    made = pieces.chunks(planned, left, plan.rules, None, "cpu", size)
    return [Task(work=piece, divisible=divisible) for piece in made]


def limits_of(plan: Plan, **limits: float) -> TimeLimits:
    """Time limits of a plan's cells."""
    return TimeLimits(Limits(**limits), planning.plan_cells(plan, None, "cpu"))


def test_a_lost_chunk_is_done_by_cells_then_by_victims_each_of_them_once(plan: Any) -> None:
    small = plan("nothing")
    limits = limits_of(small)
    (whole,) = tasks(small)
    cells = instead(Done(task=whole, lost="gone"), limits)
    assert [len(each.work.trials) for each in cells] == [VICTIMS, VICTIMS]
    victims = instead(Done(task=cells[0], lost="gone"), limits)
    assert [len(each.work.trials) for each in victims] == [1] * VICTIMS
    assert instead(Done(task=victims[0], lost="gone"), limits) == []
    trials = [trial for each in cells for trial in each.work.trials]
    assert trials == sorted(whole.work.trials)


def test_what_cannot_be_divided_is_done_once_more(plan: Any) -> None:
    small = plan("nothing")
    limits = limits_of(small)
    (whole,) = tasks(small, divisible=False)
    (again,) = instead(Done(task=whole, lost="gone"), limits)
    assert (again.work, again.tries) == (whole.work, 1)
    assert instead(Done(task=again, lost="gone"), limits) == []
    assert instead(Done(task=whole, lost="gone", timeout=True), limits) == []  # it would hang again
    away = Done(task=whole, lost="the node", innocent=True)
    for _ in range(pieces.MACHINES):
        (task,) = instead(away, limits)
        assert task.work == whole.work
        away = Done(task=task, lost="the node", innocent=True)
    assert instead(away, limits) == []


def test_time_limits(plan: Any) -> None:
    small = plan("nothing")
    (task,) = tasks(small)
    assert limits_of(small, trial=5).of(task.work) == 5 * 2 * VICTIMS
    assert limits_of(small, trial=5, chunk=7).of(task.work) == 7
    base, factor = TimeLimits.SLACK
    # Two evaluations of 2 ms at most, of each of six images, in one step of L-BFGS and its start.
    assert base < limits_of(small).of(task.work) < base + factor * 1.0


# ------------------------------------------------------------------------------ shards


@pytest.mark.parametrize("of", [1, 2, 3, 7, 20])
@pytest.mark.parametrize("most", [0, 2])
def test_shards_have_every_trial_once(plan: Any, of: int, most: int) -> None:
    wide = plan("nothing", "profiles.quick.networks=2", "profiles.quick.victims=5")
    for cell in planning.plan_cells(wide, None, "cpu"):
        parts = [list(pieces.trials_of(cell, Shard(i + 1, of), most)) for i in range(of)]
        assert sorted(itertools.chain(*parts)) == sorted(cell.trials())
        if most:  # what stands together in a chunk of two stays together
            for identity, victims in zip(cell.identities, cell.victims, strict=True):
                for some in (victims[0:2], victims[2:4]):
                    assert len({i for i, part in enumerate(parts) for v in some
                                if (identity, v) in part}) == 1  # fmt: skip


def test_shards_of_trainings_are_dealt_out() -> None:
    trained: Any = [
        PlannedTraining(cell=None, identities=("a", "b"), skip=""),  # type: ignore[arg-type]
        PlannedTraining(cell=None, identities=("b", "c"), skip=""),  # type: ignore[arg-type]
        PlannedTraining(cell=None, identities=("x",), skip="no data"),  # type: ignore[arg-type]
    ]
    parts = [pieces.trainings_of(trained, Shard(i + 1, 2)) for i in range(2)]
    assert parts == [[("a", 0), ("c", 0)], [("b", 0)]]


def test_the_report_of_a_part_says_which_it_is(plan: Any, tmp_path: Path) -> None:
    small = plan("nothing")
    run(small, tmp_path / "part", shard=Shard(2, 2))
    page = write_reports(tmp_path / "part")
    assert page.title == f"{small.title}: part 2/2 of the plan"
    assert (tmp_path / "part" / "report.md").read_text().startswith(f"# {page.title}")
    (said,) = [note.text for note in page.notes if "part 2/2" in note.text]
    assert "mnist 2." in said and not any("Run the suite again" in n.text for n in page.notes)
    run(small, tmp_path / "part")
    whole = write_reports(tmp_path / "part")
    assert whole.title == small.title and not any("part " in note.text for note in whole.notes)


@pytest.mark.independent_rows
def test_merged_shards_are_the_run(plan: Any, tmp_path: Path) -> None:
    small = plan("nothing")
    run(small, tmp_path / "whole")
    parts = [tmp_path / f"part{i}" for i in range(2)]
    for i, part in enumerate(parts):
        outcome = run(small, part, shard=Shard(i + 1, 2))
        assert outcome.ran == outcome.planned == 2
    first = merging.merge(parts[:1], tmp_path / "merged")
    assert (first.planned, first.present) == (4, 2)
    assert merging.merge(parts, tmp_path / "merged").present == 4
    assert results(tmp_path / "merged") == results(tmp_path / "whole")
    assert "shard" not in manifest.read(Run(tmp_path / "merged")).facts
    merged = Run(tmp_path / "merged")
    for record in merged.records().values():
        place = record["host"]["arrays"]
        assert place["row"] < len(merged.arrays(place["file"], place["digest"])["inputs"])
    again = run(small, tmp_path / "merged")
    assert (again.present, again.ran) == (4, 0)


def test_what_is_not_the_same_run_is_not_merged(plan: Any, tmp_path: Path) -> None:
    run(plan("nothing"), tmp_path / "one")
    run(plan("nothing", "seed=3"), tmp_path / "other")
    with pytest.raises(LeakbenchError, match="only one plan can be merged"):
        merging.merge([tmp_path / "one", tmp_path / "other"], tmp_path / "out")
    with pytest.raises(LeakbenchError, match="no run there"):
        merging.merge([tmp_path / "nowhere"], tmp_path / "out")


@pytest.mark.parametrize("inside", ["", "reconstructions", "deep/inside"])
def test_a_run_is_not_merged_into_itself(plan: Any, tmp_path: Path, inside: str) -> None:
    run(plan("nothing"), tmp_path / "one")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(LeakbenchError, match="is, or lies in, the run"):
        merging.merge([tmp_path / "one"], tmp_path / "one" / inside)
    assert sorted(tmp_path.rglob("*")) == before


def test_runs_without_their_arrays_are_not_merged(plan: Any, tmp_path: Path) -> None:
    run(plan("nothing"), tmp_path / "one")
    Run(tmp_path / "one").export(tmp_path / "exported")
    with pytest.raises(LeakbenchError, match="was exported without its arrays"):
        merging.merge([tmp_path / "exported"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_results_that_differ_are_not_merged(plan: Any, tmp_path: Path) -> None:
    for name in ("one", "other"):
        run(plan("nothing"), tmp_path / name)
    with Run(tmp_path / "other").writing() as writer:
        record = next(iter(writer.records.values()))
        writer.append([record | {"loss": 17.0}])
    with pytest.raises(LeakbenchError, match="field 'loss' of mnist, none, victim"):
        merging.merge([tmp_path / "one", tmp_path / "other"], tmp_path / "out")


# ------------------------------------------------------------------------------ ends


def listening(process: subprocess.Popen[str], number: signal.Signals) -> None:
    """Wait until a process handles a signal."""
    while process.poll() is None:
        lines = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii").splitlines()
        caught = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt"))
        if caught & 1 << number - 1:
            return
        time.sleep(0.005)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_during_the_start_ends_with_code_3(
    plan: Any, tmp_path: Path, number: signal.Signals
) -> None:
    plan("nothing")
    process = subprocess.Popen(
        [sys.executable, "-m", "leakbench.cli", "run", "small.toml", "--device", "cpu"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # under nohup it is ignored
    )  # fmt: skip
    listening(process, signal.SIGTERM)  # that Python has nothing for, so all of them
    for _ in range(2):  # an impatient one
        process.send_signal(number)
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 3, errors
    assert "stopped" in errors and "Traceback" not in errors
    assert out == ""


def test_a_signal_that_got_lost_during_the_start_is_heard_later() -> None:
    """Libraries catch everything while they are imported."""
    with Stop().listening():
        with suppress(Stopped):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        with pytest.raises(Stopped, match="SIGTERM"), Stop().listening():
            pass


def test_what_is_shielded_is_finished_first() -> None:
    stop, done = Stop(), []
    with stop.listening():
        with pytest.raises(Stopped, match="SIGINT"), stop.shielded():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
            done.append("written")
        stop.heard()
        os.kill(os.getpid(), signal.SIGINT)  # nobody is impatient twice
        time.sleep(0.01)
    assert done == ["written"]


def test_a_deadline_ends_a_run_and_the_same_command_goes_on(plan: Any, tmp_path: Path) -> None:
    long = plan("nothing")
    del long
    words = [
        "run",
        "small.toml",
        "--device",
        "cpu",
        "--chunk",
        "1",
        "--workers",
        "1",
        "--out",
        "run",
    ]
    slow = ["--set", "attack.parameters.steps=100000"]
    done = subprocess.run(
        [sys.executable, "-m", "leakbench.cli", *words, *slow, "--deadline", "6s"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert "stopped by the deadline" in done.stderr


def test_a_deadline_names_a_folder_only_where_there_is_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder, words in (
        (tmp_path, f"what is done is kept in {tmp_path}: run"),
        (tmp_path / "new", "stopped by the deadline; nothing was done yet: run the same command"),
    ):
        with pytest.raises(typer.Exit) as ended, interruptible(folder) as stop:
            stop.ask("the deadline")
        said = capsys.readouterr().err
        assert ended.value.exit_code == 3 and words in said
        assert str(tmp_path / "new") not in said


@pytest.mark.parametrize("text", ["", "soon", "-5", "0", "5 m", "1e3", "101d", "nan", "٣m"])
def test_times_that_are_none_are_refused(leakbench: Any, text: str) -> None:
    done = leakbench("run", "tifs_table3", "--deadline", text)
    assert done.code == 2
    assert "--deadline" in done.errors


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("30m", 1800), ("1h30m", 5400), ("0.5h", 1800), ("2d", 172800)],
)
def test_times(text: str, seconds: float) -> None:
    assert seconds_of(text, "--deadline") == seconds


def test_a_ray_that_is_not_installed_is_one_sentence(
    leakbench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    done = leakbench("run", "tifs_table3", "--executor", "ray")
    words = "--executor ray: Ray is not installed; get it with pip install 'leakbench[ray]'"
    assert (done.code, done.errors) == (2, f"leakbench: {words}\n")


@pytest.mark.parametrize("address", ["", " "])
def test_an_empty_address_starts_no_cluster_here(leakbench: Any, address: str) -> None:
    """As of a variable that is not set."""
    done = leakbench("queue", "tifs_table3", "--executor", "ray", "--ray-address", address)
    assert done.code == 2 and done.errors.startswith("leakbench: --ray-address: empty; write ")


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "1/0", "a/b", "1/100000", "-1/3"])
def test_shards_that_are_none_are_refused(leakbench: Any, text: str) -> None:
    done = leakbench("run", "tifs_table3", "--shard", text)
    assert done.code == 2
    assert "write i/n" in done.errors


def test_a_closed_output_is_no_traceback(tmp_path: Path) -> None:
    words = "account --sigma 6 --q 0.01 --steps 100 --delta 1e-5"
    done = subprocess.run(
        f"{sys.executable} -m leakbench.cli {words} >&-",
        shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 2)
    assert "Traceback" not in done.stderr


def test_workers_see_the_environment_and_the_folder_of_now(
    plan: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server they are forked from is older than either."""
    pool = Processes(1, gpus=("7",))
    (task,) = tasks(plan("nothing"))
    try:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("LEAKBENCH_SEEN", "now")
        pool.submit(task)
        (worker,) = pool._places
        assert worker is not None
        while pool.next(1.0) is None:
            pass
        assert os.readlink(f"/proc/{worker.process.pid}/cwd") == str(tmp_path)
        score = Path(f"/proc/{worker.process.pid}/oom_score_adj").read_text(encoding="ascii")
        assert int(score) == 1000
    finally:
        pool.cancel()
    assert not worker.process.is_alive()


def test_workers_do_not_run_the_script_that_starts_them(
    plan: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One without `if __name__ == "__main__"` would start workers of its own there."""
    flag, script = tmp_path / "ran", tmp_path / "script.py"
    script.write_text(f"open({str(flag)!r}, 'w').close()", encoding="utf-8")
    main = ModuleType("__main__")
    main.__file__ = str(script)
    monkeypatch.setitem(sys.modules, "__main__", main)
    outcome = run(plan("nothing"), tmp_path / "run", executor=Processes(1))
    assert (outcome.ran, outcome.errors) == (2 * VICTIMS, 0)
    assert not flag.exists()
    assert sys.modules["__main__"] is main


def test_executors_keep_the_contract(plan: Any) -> None:
    task, *_ = tasks(plan("nothing"), size=1)
    made: list[Executor] = [Serial(), Processes(1)]
    for executor in made:
        assert executor.next(0.01) is None
        executor.submit(task)
        done = None
        while done is None:
            done = executor.next(1.0)
        assert done.result is not None and done.task == task
        executor.submit(task)
        executor.cancel()
        assert executor.next(0.01) is None
        executor.cancel()  # twice is no harm


@pytest.mark.parametrize(
    ("code", "words"),
    [(0, "ended by itself, exit code 0"), (-9, "killed by SIGKILL, out of"), (-11, "by SIGSEGV")],
)
def test_how_a_process_ended(code: int, words: str) -> None:
    assert words in executors.how_it_ended(code)
