"""What goes wrong around a run: no room, no memory, nobody who listens; and that who does the work,
in which order and in which pieces, changes no byte of a record."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from leakbench import merging, runner
from leakbench.errors import LeakbenchError
from leakbench.executors import Processes
from leakbench.pieces import Shard
from leakbench.records import Run, encode
from leakbench.suite import resolve
from leakbench.verifying import verify

Suite = Callable[..., Path]
PLUGIN = """
from dataclasses import dataclass
from typing import ClassVar

import torch

from leakbench.contracts import Defense, Guarantee


@dataclass(frozen=True, kw_only=True)
class Harms(Defense):
    name: ClassVar[str] = "harms"
    how: str

    def on_examples(self, gradients, state, context):
        if self.how == "raise":
            raise RuntimeError("no")
        held = []
        while True:
            held.append(torch.ones(2**24))

    def guarantee(self, observer, weights, setting):
        return Guarantee(level="none", reason="it harms")
"""


def harmful(suite: Suite, how: str) -> Path:
    """A suite with a row that raises, or takes all memory that there is."""
    path = suite(f'name = "harms"\nparameters = {{ how = "{how}" }}', steps=1, victims=2)
    folder = path.parent / "plugins" / "defenses"
    folder.mkdir(parents=True)
    (folder / "harms.py").write_text(PLUGIN, encoding="utf-8")
    return path


def lines(folder: Path) -> set[bytes]:
    """Lines of the records, host fields apart."""
    records = Run(folder).records().values()
    return {encode({k: v for k, v in each.items() if k != "host"}) for each in records}


# ------------------------------------------------------------------------------ the same bytes


@pytest.mark.independent_rows
def test_who_works_in_which_order_and_pieces_changes_no_byte(
    small_suite: Suite, tmp_path: Path
) -> None:
    suite = small_suite(steps=1, victims=3)
    plan = resolve(str(suite))
    runner.run(plan, tmp_path / "serial", root=None)
    whole = lines(tmp_path / "serial")
    assert len(whole) == 6
    for chunk in (1, 4):
        runner.run(plan, tmp_path / f"chunk{chunk}", root=None, chunk_size=chunk)
        assert lines(tmp_path / f"chunk{chunk}") == whole
    runner.run(plan, tmp_path / "two", root=None, chunk_size=2, executor=Processes(2))
    assert lines(tmp_path / "two") == whole
    parts = [tmp_path / f"part{number}" for number in (1, 2, 3)]
    for number, part in enumerate(parts, start=1):
        runner.run(plan, part, root=None, shard=Shard(number, 3))
    merging.merge(parts[::-1], tmp_path / "merged")
    assert lines(tmp_path / "merged") == whole
    text = suite.read_text(encoding="utf-8")
    head, one, other, tail = re.split(r"(?=\[\[defenses\]\]|\[\[rules\]\])", text, maxsplit=3)
    suite.write_text(head + other + one + tail, encoding="utf-8")
    turned = resolve(str(suite))
    assert [cell.row for cell in turned.cells] == [cell.row for cell in plan.cells][::-1]
    runner.run(turned, tmp_path / "turned", root=None)
    assert lines(tmp_path / "turned") == whole


# ------------------------------------------------------------------------------ no room


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """No file may grow beyond `size` bytes: then a write stops in the middle, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.independent_rows
def test_a_full_disk_is_one_sentence_and_the_run_goes_on_where_it_was(
    small_suite: Suite, tmp_path: Path
) -> None:
    """At first no room for the manifest, then for the largest array."""
    plan = resolve(str(small_suite(steps=1, victims=2)))
    calm, folder = tmp_path / "calm", tmp_path / "run"
    runner.run(plan, calm, root=None, chunk_size=1)
    sizes = [path.stat().st_size for path in (calm / "reconstructions").iterdir()]
    said = []
    for size in (500, max(sizes) - 1):
        with room_for(size), pytest.raises(LeakbenchError) as caught:
            runner.run(plan, folder, root=None, chunk_size=1)
        said.append(re.sub(r"[0-9a-f-]{16,}", "X", str(caught.value).removeprefix(f"{folder}/")))
    assert said == [
        "manifests/X.json: cannot write: File too large",
        "reconstructions/X.npz: cannot write: File too large",
    ]
    kept = lines(folder)
    assert kept < lines(calm)
    outcome = runner.run(plan, folder, root=None, chunk_size=1)
    assert (outcome.present, outcome.ran) == (len(kept), 4 - len(kept))
    assert lines(folder) == lines(calm)
    assert verify(Run(folder), arrays=True) == []


# ------------------------------------------------------------------------------ no memory


def limited_memory() -> Path | None:
    """A folder of the kernel's in which this process may make groups with little memory."""
    root = Path("/sys/fs/cgroup")
    for folder, limit in ((root / "memory", "memory.limit_in_bytes"), (root, "memory.max")):
        made = folder / f"leakbench-test-{os.getpid()}"
        try:
            made.mkdir()
        except OSError:
            continue
        if (made / limit).exists():
            (made / limit).write_text(str(1_800_000_000))
            return made
        made.rmdir()
    return None


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's groups are Linux's")
@pytest.mark.parametrize("workers", ["1", "2"])
def test_who_takes_all_memory_is_ended_by_the_kernel_alone(
    small_suite: Suite, tmp_path: Path, workers: str
) -> None:
    """The worker goes, not its driver, and the other row has what it has without him."""
    group = limited_memory()
    if group is None:
        pytest.skip("no control group for memory may be made here")
    suite = harmful(small_suite, "eat")

    def enter() -> None:
        (group / "cgroup.procs").write_text(str(os.getpid()))

    words = ["run", suite.name, "--plugins", "plugins", "--device", "cpu", "--out", "run"]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "leakbench.cli", *words, "--workers", workers],
            cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
            preexec_fn=enter,
        )  # fmt: skip
    finally:
        with suppress(OSError):
            group.rmdir()
    assert done.returncode == 1, done.stderr
    records = Run(tmp_path / "run").records().values()
    reasons = {each["reason"] for each in records if each["row"] == "other"}
    assert reasons == {"its process was killed by SIGKILL, out of memory perhaps"}
    calm = tmp_path / "calm"
    runner.run(resolve(str(small_suite(steps=1, victims=2))), calm, root=None)
    of = {row: {e for e in lines(tmp_path / "run") if f'"row":"{row}"'.encode() in e}
          for row in ("none", "other")}  # fmt: skip
    assert len(of["none"]) == len(of["other"]) == 2 and of["none"] <= lines(calm)


# ------------------------------------------------------------------------------ nobody listens


def test_who_reads_no_more_changes_no_run_and_no_exit_code(
    small_suite: Suite, tmp_path: Path
) -> None:
    """`leakbench run SUITE 2>&1 | head -1`: all trials are done, and the code is still 1."""
    suite = harmful(small_suite, "raise")
    read, write = os.pipe()
    os.close(read)
    words = ["run", suite.name, "--plugins", "plugins", "--device", "cpu", "--out", "run"]
    done = subprocess.run(
        [sys.executable, "-m", "leakbench.cli", *words, "--executor", "serial", "--chunk", "1"],
        cwd=tmp_path, stdout=write, stderr=write, timeout=120, check=False,
    )  # fmt: skip
    os.close(write)
    assert len(Run(tmp_path / "run").records()) == 4
    assert (tmp_path / "run" / "report.md").exists()
    assert done.returncode == 1
