"""Runs on real digits: resume, kills, workers, chunks, edited plugins and plugins that fail."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import leakbench.attacks
import leakbench.defenses
from leakbench import arithmetic, identity, native, planning, probe, runner
from leakbench.chunks import Chunk
from leakbench.commands import application
from leakbench.data import load
from leakbench.data.catalog import ENVIRONMENT_VARIABLE
from leakbench.errors import LeakbenchError
from leakbench.executors import Processes
from leakbench.records import Key, Record, Run
from leakbench.runner import Outcome
from leakbench.spec import Plan
from leakbench.suite import resolve

TINY = """
schema = 1
name = "tiny"
title = "A tiny suite"
paper = "none"
source = "written for a test"
version = 1
seed = 7
datasets = ["mnist"]

[model]
name = "cnn2"

[training]
batch_size = { mnist = 4 }

[attack]
name = "cpl"
parameters = { steps = 1 }

[knowledge.naive]
[knowledge.adaptive]

[[defenses]]
id = "none"
name = "none"
label = "none"

[[defenses]]
id = "dp"
name = "dp_baseline"
label = "DP"
parameters = { clip = 4.0, noise_multiplier = 0.01 }

[[rules]]
name = "strict"
label = "strict"
kind = "strict"
threshold = 0.01

[[rules]]
name = "identified"
label = "identified"
kind = "identified"

[gallery]
defense = "none"

[profiles.quick]
networks = 1
victims = 5
snapshots = [1]
"""
CELLS, TRIALS = 4, 4 * 5
PIECE = 5
"""Images a chunk of the runs that are compared with each other."""


@pytest.fixture
def suite(tmp_path: Path) -> str:
    """The path of the tiny suite."""
    path = tmp_path / "tiny.toml"
    path.write_text(TINY, encoding="utf-8")
    return str(path)


def run(plan: Plan, folder: Path, **options: Any) -> Outcome:
    """Run on the CPU without a data root."""
    return runner.run(plan, folder, root=None, **options)


def test_cells_that_do_not_suit_the_attack_are_skipped_with_its_reason(
    suite: str, tmp_path: Path
) -> None:
    """A closed form for dense first layers, on a network that begins with a convolution."""
    plan = resolve(suite, attack="analytic")
    planned = planning.plan_cells(plan, None, "cpu")
    assert len(planned) == CELLS and all(cell.budget == 0 for cell in planned)
    for cell in planned:
        assert cell.skip.startswith("analytic: the model's first layer must be dense with a bias")
    outcome = run(plan, tmp_path / "run")
    assert (outcome.planned, outcome.ran, outcome.skipped, outcome.errors) == (TRIALS, 0, TRIALS, 0)
    # L-BFGS: one step of up to 20 evaluations.
    assert {cell.budget for cell in planning.plan_cells(resolve(suite), None, "cpu")} == {20}


def results(folder: Path) -> dict[Key, Record]:
    """Records without what may differ between two machines: host, and how arrays are filed."""
    return {
        key: {name: value for name, value in record.items() if name != "host"}
        for key, record in Run(folder).records().items()
    }


def images(folder: Path) -> dict[Key, Any]:
    """The returned image, the trace and the snapshots of every trial."""
    store = Run(folder)
    found = {}
    for key, record in store.records().items():
        arrays = store.arrays(record["host"]["arrays"]["file"])
        row = record["host"]["arrays"]["row"]
        assert arrays["victims"][row] == record["victim"]
        trace = arrays["trace"][row]
        found[key] = (
            arrays["inputs"][row].tobytes(),
            arrays["start"][row].tobytes(),
            arrays["snapshots"][:, row].tobytes(),
            trace[trace == trace].tobytes(),  # padded with nan to the chunk's longest
        )
    return found


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an uninterrupted run of the tiny suite: one worker, small chunks."""
    folder = tmp_path_factory.mktemp("reference")
    path = folder / "tiny.toml"
    path.write_text(TINY, encoding="utf-8")
    outcome = run(resolve(str(path)), folder / "run", chunk_size=PIECE)
    assert (outcome.planned, outcome.ran, outcome.errors) == (TRIALS, TRIALS, 0)
    return folder / "run"


# ------------------------------------------------------------------------------ the same bytes


def test_files_hold_what_a_gallery_shows(reference: Path) -> None:
    """Beside what attacks returned: the image, its class, and the mean of the public images."""
    store = Run(reference)
    for record in store.records().values():
        dataset = load(record["dataset"])
        arrays = store.arrays(record["host"]["arrays"]["file"])
        row = record["host"]["arrays"]["row"]
        truth = dataset.candidates[record["victim"]].numpy()
        assert (arrays["truth"][row] == truth).all()
        assert arrays["class_names"][row] == dataset.class_names[record["label"]]
        assert (arrays["mean_image"] == dataset.public.mean(dim=0).numpy()).all()


def test_a_finished_suite_is_a_no_op(suite: str, reference: Path) -> None:
    before = (reference / "records.jsonl").read_bytes()
    files = sorted(path.name for path in (reference / "reconstructions").iterdir())
    outcome = run(resolve(suite), reference, chunk_size=PIECE)
    assert (outcome.planned, outcome.present, outcome.ran) == (TRIALS, TRIALS, 0)
    assert (reference / "records.jsonl").read_bytes() == before
    assert sorted(path.name for path in (reference / "reconstructions").iterdir()) == files


@pytest.mark.independent_rows
@pytest.mark.parametrize("size", [1, 7, 128])
def test_chunks_change_no_byte(suite: str, reference: Path, tmp_path: Path, size: int) -> None:
    plan = resolve(suite, defense="dp" if size == 1 else None)  # half of the trials, as one a chunk
    run(plan, tmp_path / "run", chunk_size=size)
    for read in (results, images):
        found, known = read(tmp_path / "run"), read(reference)
        assert len(found) == (TRIALS // 2 if size == 1 else TRIALS)
        assert found == {key: known[key] for key in found}


@pytest.mark.independent_rows
def test_the_order_of_the_plan_changes_no_byte(suite: str, reference: Path, tmp_path: Path) -> None:
    plan = resolve(suite)
    run(dataclasses.replace(plan, cells=plan.cells[::-1]), tmp_path / "run")
    assert results(tmp_path / "run") == results(reference)
    assert images(tmp_path / "run") == images(reference)


@pytest.mark.independent_rows
def test_two_workers_change_no_byte(suite: str, tmp_path: Path) -> None:
    settings = ["profiles.quick.victims=1"]  # a chunk each for naive and adaptive
    plan = resolve(suite, attack="start_image", defense="dp", settings=settings)
    for workers in (1, 2):
        run(plan, tmp_path / str(workers), executor=Processes(workers))
    assert results(tmp_path / "2") == results(tmp_path / "1")
    assert images(tmp_path / "2") == images(tmp_path / "1")


@pytest.mark.independent_rows
@pytest.mark.slow
def test_two_workers_change_no_byte_of_a_real_attack(
    suite: str, reference: Path, tmp_path: Path
) -> None:
    run(resolve(suite), tmp_path / "run", executor=Processes(2))
    assert results(tmp_path / "run") == results(reference)
    assert images(tmp_path / "run") == images(reference)


@pytest.mark.slow
@pytest.mark.independent_rows
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("size", [1, 7, 8, 128])
def test_workers_and_chunks_change_no_byte_of_a_longer_run(
    suite: str, tmp_path: Path, size: int, workers: int
) -> None:
    settings = [
        "attack.parameters.steps=6",
        "profiles.quick.victims=9",
        "profiles.quick.networks=1",
    ]
    plan = resolve(suite, settings=settings)
    run(plan, tmp_path / "reference")
    run(plan, tmp_path / "run", chunk_size=size, executor=Processes(workers))
    assert results(tmp_path / "run") == results(tmp_path / "reference")
    assert images(tmp_path / "run") == images(tmp_path / "reference")


@pytest.mark.independent_rows
def test_more_victims_and_networks_keep_what_is_there(
    suite: str, reference: Path, tmp_path: Path
) -> None:
    """Network 0 holds the same victims whatever is planned, as long as their number is."""
    plan = resolve(suite, settings=["profiles.quick.networks=2"], defense="none")
    run(plan, tmp_path / "run", chunk_size=5)
    more, known = results(tmp_path / "run"), results(reference)
    shared = set(more) & set(known)
    assert len(more) == 2 * len(shared) == 2 * 2 * 5
    assert all(more[key] == known[key] for key in shared)


# ------------------------------------------------------------------------------ stopped and resumed


def command(suite: str, folder: Path, *more: str) -> subprocess.Popen[str]:
    """A real `leakbench run`, small chunks, so that it can be stopped between them."""
    args = ["run", suite, "--out", str(folder), "--device", "cpu", "--chunk", str(PIECE), *more]
    return subprocess.Popen(
        [sys.executable, "-m", "leakbench.cli", *args],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=Path(suite).parent,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def wait_for_records(process: subprocess.Popen[str], folder: Path, n: int) -> None:
    """Until at least `n` records are on disk."""
    path = folder / "records.jsonl"
    for _ in range(6000):
        if path.exists() and path.read_bytes().count(b"\n") >= n:
            return
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)
    pytest.fail("no records after a minute")


def children_of(pid: int) -> list[int]:
    """Processes whose parent is `pid`."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[1]) == pid:
            found.append(int(status.parent.name))
    return found


def gone(pids: list[int], seconds: float = 20) -> bool:
    """Whether all these processes end in time; a zombie has ended."""
    for _ in range(int(seconds * 20)):
        alive = []
        for pid in pids:
            try:
                state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if state not in "ZX":
                alive.append(pid)
        if not alive:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize(
    "workers",
    [
        "1",
        pytest.param("2", marks=pytest.mark.slow),
    ],
)
def test_a_killed_run_goes_on_where_it_was(
    suite: str, reference: Path, tmp_path: Path, workers: str
) -> None:
    folder = tmp_path / "run"
    process = command(suite, folder, "--workers", workers)
    wait_for_records(process, folder, 2)
    workers_left = children_of(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    kept = results(folder)
    assert 0 < len(kept) < TRIALS
    if sys.platform == "linux":
        assert gone(workers_left), "workers outlive the run that started them"
    outcome = run(resolve(suite), folder, chunk_size=PIECE)
    assert outcome.present == len(kept)
    assert outcome.ran == TRIALS - len(kept)
    assert results(folder) == results(reference)
    assert images(folder) == images(reference)


@pytest.mark.parametrize(
    ("number", "workers"),
    [
        (signal.SIGTERM, "1"),
        pytest.param(signal.SIGTERM, "2", marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, "1", marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, "2", marks=pytest.mark.slow),
    ],
)
def test_a_signal_ends_a_run_with_code_3_and_keeps_its_state(
    suite: str, reference: Path, tmp_path: Path, number: signal.Signals, workers: str
) -> None:
    folder = tmp_path / "run"
    process = command(suite, folder, "--workers", workers)
    wait_for_records(process, folder, 2)
    process.send_signal(number)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 3, errors
    assert out == ""
    assert "Traceback" not in errors
    assert "run the same command again" in errors
    kept = results(folder)
    assert 0 < len(kept) < TRIALS
    assert all(record == results(reference)[key] for key, record in kept.items())
    outcome = run(resolve(suite), folder, chunk_size=PIECE)
    assert outcome.present == len(kept)
    assert not any("torn" in repair for repair in outcome.repairs)
    assert results(folder) == results(reference)


@pytest.mark.slow
def test_a_full_disk_ends_a_run_of_two_workers_at_once(
    suite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool must not first work off everything that nobody can store any more."""
    from leakbench.records import Writer

    def full(self: Writer, records: object) -> None:
        raise LeakbenchError("records.jsonl: cannot write: No space left on device")

    monkeypatch.setattr(Writer, "append", full)
    # One chunk takes a moment, all of them would take minutes.
    settings = ["attack.parameters.steps=40", "profiles.quick.victims=200"]
    plan, two = resolve(suite, settings=settings), Processes(2)
    begun = time.monotonic()
    with pytest.raises(LeakbenchError, match="No space left"):
        run(plan, tmp_path / "run", executor=two, chunk_size=1)
    assert time.monotonic() - begun < 60


# ------------------------------------------------------------------------------ what is a new cell


def identities(plan: Plan) -> set[str]:
    """All resume keys of a plan."""
    return {name for cell in planning.plan_cells(plan, None, "cpu") for name in cell.identities}


@pytest.mark.parametrize(
    "setting",
    [
        "dtype=float64",
        "attack.parameters.steps=2",
        "seed=8",
        "model.weights=default",
        "model.name=lenet_dlg",
        "training.batch_size.mnist=5",
        "training.iterations=2",
        "profiles.quick.snapshots=[]",
        "defenses=[{id='none', name='dp_baseline', label='x', parameters={clip=1.0}}]",
    ],
)
def test_what_decides_a_result_makes_a_new_cell(suite: str, setting: str) -> None:
    before = identities(resolve(suite))
    assert len(before) == CELLS
    assert not before & identities(resolve(suite, settings=[setting]))


@pytest.mark.parametrize(
    "setting",
    [
        "title=other",
        "defenses.0.label=other",
        "rules.0.label=other",
        "rules.0.threshold=0.02",
        "rules.0.name=renamed",
        "version=2",
    ],
)
def test_what_decides_nothing_keeps_the_cells(suite: str, setting: str) -> None:
    assert identities(resolve(suite)) == identities(resolve(suite, settings=[setting]))


def test_another_device_type_makes_a_new_cell(suite: str) -> None:
    plan = resolve(suite)
    cuda = {name for cell in planning.plan_cells(plan, None, "cuda") for name in cell.identities}
    assert not identities(plan) & cuda


PLUGIN = '''
"""A plugin of a test."""
from dataclasses import dataclass
from typing import ClassVar

import torch
{imports}
from leakbench.contracts import Defense


@dataclass(frozen=True, slots=True, kw_only=True)
class Mine(Defense):
    """Does {what}."""

    name: ClassVar[str] = "mine"

    def on_examples(self, gradients, state, context):
        {body}
'''


def plugin(body: str = "return gradients, state", imports: str = "", what: str = "nothing") -> str:
    """The text of a defense `mine`."""
    return PLUGIN.format(body=body, imports=imports, what=what)


DropIn = Callable[[str, str], Path]


@pytest.fixture
def drop_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DropIn]:
    """Write a file into a folder that is searched beside defenses/."""
    folder = tmp_path / "defenses"
    folder.mkdir()
    monkeypatch.setattr(leakbench.defenses, "__path__", [*leakbench.defenses.__path__, str(folder)])
    before = set(sys.modules)

    def forget() -> None:
        for name in set(sys.modules) - before:
            if name.startswith(("leakbench.defenses.", "leakbench.attacks.")):
                del sys.modules[name]  # and not by monkeypatch, which would put it back
                vars(leakbench.defenses).pop(name.rpartition(".")[2], None)
        identity.source_digest.cache_clear()

    def write(name: str, text: str) -> Path:
        (folder / name).write_text(textwrap.dedent(text), encoding="utf-8")
        forget()
        return folder / name

    yield write
    forget()


def test_an_edited_plugin_is_not_finished(suite: str, tmp_path: Path, drop_in: DropIn) -> None:
    drop_in("mine.py", plugin())
    settings = ["profiles.quick.networks=1", "profiles.quick.victims=1"]
    plan = resolve(suite, attack="start_image", defense="mine", settings=settings)
    assert run(plan, tmp_path / "run").ran == 2
    assert run(plan, tmp_path / "run").ran == 0
    drop_in("mine.py", plugin(what="nothing, in other words") + "\n# and nothing else\n")
    assert run(plan, tmp_path / "run").ran == 0  # it does what it did
    drop_in("mine.py", plugin(body="return gradients.map(lambda _, value: value * 1), state"))
    assert run(plan, tmp_path / "run").ran == 2
    drop_in("mine.py", plugin())
    assert run(plan, tmp_path / "run").ran == 0  # the first records are still there


def test_an_edited_helper_of_a_plugin_is_not_finished(suite: str, drop_in: DropIn) -> None:
    for line in ("from leakbench.defenses import _helper", "from . import _helper"):
        drop_in("mine.py", plugin(imports=line))
        drop_in("_helper.py", "FACTOR = 1\n")
        before = identities(resolve(suite, defense="mine"))
        drop_in("_helper.py", "FACTOR = 2\n")
        assert not before & identities(resolve(suite, defense="mine")), line


def test_what_a_plugin_does_not_import_keeps_its_cells(suite: str, drop_in: DropIn) -> None:
    drop_in("mine.py", plugin())
    before = identities(resolve(suite, defense="mine"))
    drop_in("other.py", plugin().replace('"mine"', '"other"'))
    assert before == identities(resolve(suite, defense="mine"))


def test_moving_the_code_keeps_the_cells(tmp_path: Path) -> None:
    digests = []
    for place in ("here", "there"):
        path = tmp_path / place / "mine.py"
        path.parent.mkdir()
        path.write_text(plugin())
        digests.append(identity.source_digest((path,)))
    assert digests[0] == digests[1]


# ------------------------------------------------------------------------------ plugins that fail


def by_row(folder: Path) -> dict[str, list[Record]]:
    """The records of each row."""
    found: dict[str, list[Record]] = {}
    for record in Run(folder).records().values():
        found.setdefault(record["row"], []).append(record)
    return found


MINE = "defenses.1={id='mine', name='mine', label='mine'}"
ONE = ["profiles.quick.networks=1", "profiles.quick.victims=2"]


@pytest.mark.parametrize(
    "body",
    [
        'raise RuntimeError("it\\nbroke")',
        "return gradients.no_such_thing, state",
        "assert False, 'it broke'",
        "import no_such_module",
        "raise SystemExit('it broke')",
    ],
)
def test_a_defense_that_fails_harms_its_own_cells_only(
    suite: str, tmp_path: Path, drop_in: DropIn, body: str
) -> None:
    drop_in("mine.py", plugin(body))
    run(resolve(suite, attack="start_image", defense="none", settings=ONE), tmp_path / "alone")
    plan = resolve(suite, attack="start_image", settings=[MINE, *ONE])
    outcome = run(plan, tmp_path / "run")
    assert (outcome.planned, outcome.ran, outcome.errors) == (8, 8, 4)
    rows = by_row(tmp_path / "run")
    assert {record["status"] for record in rows["mine"]} == {"error"}
    for record in rows["mine"]:
        assert record["reason"] and "\n" not in record["reason"]
    # Who is in the plan may be part of the identity.
    sound, alone = (
        [r | {"identity": ""} for r in results(tmp_path / folder).values() if r["status"] == "ok"]
        for folder in ("run", "alone")
    )
    assert sound == alone
    assert len(alone) == 4


def test_only_what_failed_is_tried_again(suite: str, tmp_path: Path, drop_in: DropIn) -> None:
    """What decides whether it fails is outside of the file: its identity stays."""
    flag = tmp_path / "broken"
    flag.touch()
    body = f"import os; assert not os.path.exists({str(flag)!r}), 'no'; return gradients, state"
    drop_in("mine.py", plugin(body))
    plan = resolve(suite, attack="start_image", settings=[MINE, *ONE])
    first = run(plan, tmp_path / "run")
    assert (first.present, first.ran, first.errors) == (0, 8, 4)
    again = run(plan, tmp_path / "run")
    assert (again.present, again.ran, again.errors) == (4, 4, 4)
    flag.unlink()
    mended = run(plan, tmp_path / "run")
    assert (mended.present, mended.ran, mended.errors) == (4, 4, 0)
    assert run(plan, tmp_path / "run").ran == 0
    rows = by_row(tmp_path / "run")
    assert {record["status"] for record in rows["mine"]} == {"ok"}
    assert {record["reason"] for record in rows["mine"]} == {""}


ATTACK = '''
"""An attack of a test."""
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from leakbench.contracts import Attack
from leakbench.attacks.start_image import StartImage


@dataclass(frozen=True, slots=True, kw_only=True)
class Odd(Attack):
    """Returns something odd."""

    name: ClassVar[str] = "odd"

    def reconstruct(self, leak, streams, watch):
        found = StartImage().reconstruct(leak, streams, watch)
        {body}
'''


@pytest.mark.parametrize(
    "body",
    [
        "return None",
        "return replace(found, inputs=found.inputs[:, 0])",
        "return replace(found, inputs=found.inputs[:-1])",
        "return replace(found, loss=found.loss[:-1])",
        "return replace(found, status=found.status[:-1])",
        "return replace(found, status=(3,) * leak.n)",
        "return replace(found, status=({'not': 'json'}.keys(),) * leak.n)",
        "return replace(found, labels=found.labels[:0])",
        "raise torch.OutOfMemoryError('no room')",
    ],
)
def test_an_attack_that_breaks_its_contract_is_an_error(
    suite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    monkeypatch.setattr(leakbench.attacks, "__path__", [*leakbench.attacks.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "leakbench.attacks.odd", raising=False)
    identity.source_digest.cache_clear()
    (tmp_path / "odd.py").write_text(ATTACK.format(body=body))
    try:
        plan = resolve(suite, attack="odd", defense="none", settings=ONE)
        outcome = run(plan, tmp_path / "run")
    finally:
        sys.modules.pop("leakbench.attacks.odd", None)
    assert (outcome.ran, outcome.errors) == (4, 4)
    wanted = "oom" if "OutOfMemory" in body else "error"
    for record in Run(tmp_path / "run").records().values():
        assert record["status"] == wanted
        assert record["reason"]
        assert record["mse_raw"] is None


def test_values_that_are_not_finite_are_none_in_records(
    suite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leakbench.attacks, "__path__", [*leakbench.attacks.__path__, str(tmp_path)])
    body = "return replace(found, inputs=found.inputs * torch.nan, status=('nan',) * leak.n)"
    (tmp_path / "odd.py").write_text(ATTACK.format(body=body))
    try:
        run(resolve(suite, attack="odd", defense="none", settings=ONE), tmp_path / "run")
    finally:
        sys.modules.pop("leakbench.attacks.odd", None)
    for record in Run(tmp_path / "run").records().values():
        assert record["status"] == "nan"
        assert record["mse_raw"] is None and record["psnr"] is None


def test_a_guarantee_that_fails_harms_its_own_cells_only(
    suite: str, tmp_path: Path, drop_in: DropIn
) -> None:
    text = plugin() + "\n    def guarantee(self, observer, weights, batch_size):\n        1 / 0\n"
    drop_in("mine.py", text)
    plan = resolve(suite, attack="start_image", settings=[MINE, *ONE])
    outcome = run(plan, tmp_path / "run")
    assert outcome.planned == 8
    assert {record["status"] for record in by_row(tmp_path / "run")["none"]} == {"ok"}


# ------------------------------------------------------------------------------ ceilings


@pytest.mark.parametrize("looks", [1, 4, 9])
def test_looks_at_the_same_victim_add_up_in_its_ceiling(suite: str, looks: int) -> None:
    """C = 4 on six tensors, std 6 C: mu is sqrt(6) / 6 a look, and grows by the root of looks."""
    settings = [f"leak.observations={looks}", "defenses.1.parameters.noise_multiplier=6"]
    planned = planning.plan_cells(resolve(suite, defense="dp", settings=settings), None, "cpu")
    expected = {1: 0.408248, 4: 0.816497, 9: 1.224745}[looks]
    assert [cell.ceiling_mu for cell in planned] == [pytest.approx(expected, abs=1e-6)] * 2
    assert "sensitivity 9.8" in planned[0].guarantee and "std 24" in planned[0].guarantee


# ------------------------------------------------------------------------------ data


def test_a_missing_data_set_is_skipped_with_the_reason(
    suite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)
    settings = ['datasets=["mnist", "lfw"]', "training.batch_size.lfw=4", *ONE]
    plan = resolve(suite, attack="start_image", settings=settings)
    planned = planning.plan_cells(plan, None, "cpu")
    assert {cell.cell.dataset for cell in planned if cell.skip} == {"lfw"}
    for cell in planned:
        if cell.skip:
            assert "leakbench data prepare" in cell.skip
    outcome = run(plan, tmp_path / "run")
    assert (outcome.planned, outcome.ran, outcome.skipped, outcome.errors) == (16, 8, 8, 0)
    manifest = Run(tmp_path / "run").manifest()
    assert set(manifest["skipped"]) == {"lfw"}


def test_more_victims_than_candidates_are_refused(suite: str, tmp_path: Path) -> None:
    plan = resolve(suite, settings=["profiles.quick.victims=1001"])
    with pytest.raises(LeakbenchError) as caught:
        run(plan, tmp_path / "run")
    text = str(caught.value)
    assert "tiny.toml" in text and "profile quick" in text
    assert "1 networks x 1001 victims" in text and "1000 candidates of mnist" in text


def test_counts_add_up_in_progress_and_outcome(suite: str, tmp_path: Path) -> None:
    seen = []
    plan = resolve(suite, attack="start_image")
    outcome = run(plan, tmp_path / "run", chunk_size=5, report=seen.append)
    assert [progress.done for progress in seen] == sorted(progress.done for progress in seen)
    assert seen[-1].done == seen[-1].total == outcome.planned == TRIALS
    assert sum(sum(progress.statuses.values()) for progress in seen) == TRIALS
    manifest = Run(tmp_path / "run").manifest()
    assert manifest["trials"] == TRIALS and len(manifest["cells"]) == CELLS
    assert torch.__version__.startswith(manifest["versions"]["torch"])
    hashes = {record["host"]["manifest"] for record in Run(tmp_path / "run").records().values()}
    assert hashes == {path.stem for path in (tmp_path / "run" / "manifests").iterdir()}


def test_every_record_is_strict_json_with_the_same_fields(reference: Path) -> None:
    fields = set()
    for line in (reference / "records.jsonl").read_text().splitlines():
        record = json.loads(line, parse_constant=pytest.fail)
        fields.add(tuple(sorted(record)))
    assert len(fields) == 1


# ------------------------------------------------------------------------------ chunks as units


@pytest.fixture
def dependent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that rounds by how many problems there are; the probe is told what to find."""
    solve = torch.linalg.solve_triangular

    def by_number(triangles: torch.Tensor, values: torch.Tensor, **options: Any) -> torch.Tensor:
        found: torch.Tensor = solve(triangles, values, **options)
        return found * (1 + len(triangles) * torch.finfo(found.dtype).eps)

    monkeypatch.setattr(torch.linalg, "solve_triangular", by_number)
    monkeypatch.setenv(probe.FORCED, "dependent")
    monkeypatch.setenv(native.CHOICE, "no")  # its rows are independent whatever the machine


def without(folder: Path, victims: set[int]) -> None:
    """Take these victims' lines out of the records, as a kill would have left them unwritten."""
    path = folder / "records.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(li for li in lines if json.loads(li)["victim"] not in victims))


@pytest.mark.usefixtures("dependent")
def test_chunks_are_done_again_whole_where_rows_depend(suite: str, tmp_path: Path) -> None:
    plan = resolve(suite)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    run(plan, whole, chunk_size=3)
    shutil.copytree(whole, cut)
    without(cut, {1, 4})  # one of each chunk of three and of two
    seen: list[runner.Progress] = []
    outcome = run(plan, cut, chunk_size=3, report=seen.append)
    done = [progress.work for progress in seen]
    assert (outcome.present, outcome.ran) == (12, 8)
    assert sum(len(work.trials) for work in done if isinstance(work, Chunk)) == TRIALS
    assert {len(work.trials) for work in done if isinstance(work, Chunk)} == {3, 2}
    assert results(cut) == results(whole)
    assert images(cut) == images(whole)
    assert run(plan, cut, chunk_size=3).ran == 0


@pytest.mark.usefixtures("dependent")
def test_the_machine_of_these_tests_does_round_by_neighbours(suite: str, tmp_path: Path) -> None:
    """Else the test above would show nothing."""
    plan = resolve(suite, defense="none", settings=["profiles.quick.victims=3"])
    for size in (1, 10):
        run(plan, tmp_path / str(size), chunk_size=size)
    assert list(images(tmp_path / "1").values()) != list(images(tmp_path / "10").values())


@pytest.mark.usefixtures("dependent")
def test_who_is_in_a_chunk_is_part_of_what_a_result_is(suite: str) -> None:
    def named(unit: int | None, **asked: Any) -> set[str]:
        platform = planning.platform_of("cpu", unit)
        planned = planning.plan_cells(resolve(suite, **asked), None, platform)
        return {name for cell in planned for name in cell.identities}

    first = named(8)
    assert first == named(8)
    assert not first & named(7)
    assert not first & named(8, settings=["profiles.quick.victims=6"])
    assert first > named(8, defense="dp")  # no row is in another one's chunks
    assert named(None) == named(None, settings=["profiles.quick.victims=6"])


@pytest.mark.usefixtures("dependent")
def test_manifest_and_report_say_that_chunks_are_units(suite: str, tmp_path: Path) -> None:
    run(resolve(suite, attack="start_image"), tmp_path / "run", chunk_size=4)
    manifest = Run(tmp_path / "run").manifest()
    assert manifest["unit"] == 4
    assert manifest["dependent_rows"] == {"cnn2 on 1x28x28, float32, cpu": -1.0}
    _, text = cli_report(tmp_path / "run")
    assert "so chunks of 4 images were done whole" in text
    assert f"{TRIALS} of {TRIALS} planned trials have a result" in text


@pytest.mark.independent_rows
def test_manifest_names_the_machine(reference: Path) -> None:
    manifest = Run(reference).manifest()
    assert manifest["unit"] is None and manifest["dependent_rows"] == {}
    assert manifest["arithmetic"] == probe.arithmetic()
    assert manifest["processor"] == arithmetic.processor() != ""
    assert manifest["blas"] != "unknown"
    assert "chunks of" not in cli_report(reference)[1]


@pytest.mark.parametrize("other", ["fast", "portable", "MKL_CBWR=AUTO"])
def test_other_arithmetic_makes_a_new_cell(suite: str, other: str) -> None:
    plan = resolve(suite)
    here = planning.platform_of("cpu")
    platform = dataclasses.replace(here, arithmetic=other)
    elsewhere = {n for cell in planning.plan_cells(plan, None, platform) for n in cell.identities}
    if other == here.arithmetic:
        assert identities(plan) == elsewhere
    else:
        assert not identities(plan) & elsewhere


def cli_report(folder: Path) -> tuple[int, str]:
    """`leakbench report` of a run."""
    done = CliRunner().invoke(application.app, ["report", "--full", str(folder)])
    return done.exit_code, done.output


@pytest.mark.parametrize(
    ("method", "answer", "words"),
    [("skip", "5", "skip() must give a text, got 5"),
     ("budget", '"many"', "budget() must give a whole number, got 'many'")],
)  # fmt: skip
def test_an_attack_that_answers_nonsense_is_one_sentence(
    suite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, answer: str,
    words: str,
) -> None:  # fmt: skip
    from leakbench.attacks.start_image import StartImage

    monkeypatch.setattr(StartImage, method, lambda self, facts: eval(answer))
    with pytest.raises(LeakbenchError) as caught:
        run(resolve(suite, attack="start_image"), tmp_path / "run")
    assert words in str(caught.value)
