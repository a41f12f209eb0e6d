"""A run whose processes are all killed, again and again, ends as one that nobody disturbed."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import runpy
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from leakbench import runner
from leakbench.records import Key, Record, Run
from leakbench.suite import resolve

KILLS = int(os.environ.get("LEAKBENCH_KILLS", "10"))
"""How often a run is killed; more for who has the time."""

TRIALS = 2 * 4

DRIVER = """
import multiprocessing.forkserver
import multiprocessing.resource_tracker
from pathlib import Path
from leakbench import runner
from leakbench.executors import Processes
from leakbench.suite import resolve

# The server that forked this process forks its workers: else it would load torch for another one.
server = multiprocessing.forkserver
tracker = multiprocessing.resource_tracker
server._forkserver.ensure_running = server.ensure_running = tracker.ensure_running
runner.run(
    resolve({suite!r}), Path({folder!r}), root=None, chunk_size=1, executor=Processes({workers})
)
"""


def results(folder: Path) -> dict[Key, Record]:
    """What is recorded, host fields apart."""
    return {
        key: {name: value for name, value in record.items() if name != "host"}
        for key, record in Run(folder).records().items()
    }


def children_of(pid: int) -> list[int]:
    """Processes that a process has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


@pytest.mark.slow
@pytest.mark.independent_rows
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_kills_at_any_moment_lose_nothing_and_repeat_nothing(
    small_suite: Callable[..., Path], tmp_path: Path
) -> None:
    """Driver and workers are forked by one server, whose children are killed: all at once, as a
    group is, or the driver, whose workers have to end by themselves then."""
    suite = small_suite(steps=1, victims=4)
    runner.run(resolve(str(suite)), tmp_path / "calm", root=None, chunk_size=1)
    calm = results(tmp_path / "calm")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["leakbench.runner", "leakbench.suite", "skimage.metrics"])
    moments = random.Random(0)
    killed, finished, longest = 0, 0, 4.0
    for number in itertools.count():
        folder = tmp_path / f"run{number}"
        script = tmp_path / f"driver{number}.py"
        workers = 1 + number % 2
        script.write_text(
            DRIVER.format(suite=str(suite), folder=str(folder), workers=workers), encoding="utf-8"
        )
        had: dict[Key, Record] = {}
        while len(had) < TRIALS:
            begun = time.monotonic()
            driver = context.Process(target=runpy.run_path, args=(str(script),))
            driver.start()
            assert driver.pid is not None
            server = int(Path(f"/proc/{driver.pid}/stat").read_text().split(")")[1].split()[1])
            if killed < KILLS:
                driver.join(moments.uniform(0, longest))
            else:
                driver.join()
            if driver.is_alive():
                alone = killed % 3 == 0
                for pid in [driver.pid] if alone else children_of(server):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                driver.join()
                killed += 1
            else:
                longest = max(longest, time.monotonic() - begun)
                assert driver.exitcode == 0
            until = time.monotonic() + 60
            while children_of(server) and time.monotonic() < until:
                time.sleep(0.01)
            assert children_of(server) == [], "a worker has outlived its driver"
            lines = Run(folder).path.read_bytes().count(b"\n") if Run(folder).path.exists() else 0
            now = results(folder)
            assert now.items() >= had.items(), "a trial that was done was lost"
            assert lines == len(now), "a trial was done twice"
            had = now
        assert had == calm
        run = Run(folder)
        with run.writing() as writer:  # sweeps what killed writers left
            assert writer.records
        mentioned = {each["host"]["arrays"]["file"] for each in run.records().values()}
        kept = {path.name for path in (folder / "reconstructions").iterdir()}
        assert kept == mentioned
        finished += 1
        if killed >= KILLS:
            break
    assert finished >= 1
