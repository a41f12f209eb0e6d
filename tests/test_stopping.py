"""How a run is asked to end: at once, but for what must not be broken off."""

from __future__ import annotations

import importlib
import multiprocessing.forkserver
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from leakbench import executors
from leakbench.stopping import SIGNALS, Stop, Stopped

LIBRARY = """
import os, signal, time

swallowed = False
try:
    for _ in range({signals}):
        os.kill(os.getpid(), signal.SIGTERM)
    until = time.process_time() + 0.1
    while time.process_time() < until:
        pass
except BaseException:  # as libraries do
    swallowed = True
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module that gets a signal while it is imported, and catches everything."""
    name = "leakbench_library"
    (tmp_path / f"{name}.py").write_text(LIBRARY.format(signals=1), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)


def spin() -> None:
    """Compute for a second at most."""
    until = time.process_time() + 1
    while time.process_time() < until:
        pass


def test_a_signal_waits_for_the_end_of_an_import(library: str) -> None:
    with Stop().listening(), pytest.raises(Stopped, match="SIGTERM"):
        importlib.import_module(library)
        spin()
        pytest.fail("the signal was lost")
    assert sys.modules[library].swallowed is False


def test_who_is_impatient_breaks_off_an_import(library: str, tmp_path: Path) -> None:
    """Else one that hangs could not be ended."""
    (tmp_path / f"{library}.py").write_text(LIBRARY.format(signals=2), encoding="utf-8")
    stop = Stop()
    with stop.listening():
        importlib.import_module(library)
        assert sys.modules[library].swallowed
        with pytest.raises(Stopped, match="SIGTERM"):
            stop.check()


def test_a_signal_that_waits_for_an_import_is_shielded_too(library: str) -> None:
    stop, done = Stop(), False
    with stop.listening():
        with pytest.raises(Stopped), stop.shielded():
            importlib.import_module(library)
            spin()
            done = True
        stop.heard()
    assert done
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_ctrl_c_for_all_processes_is_the_drivers_only() -> None:
    """The server of the workers loads torch for seconds, and would end with a traceback."""
    multiprocessing.forkserver._forkserver._stop()  # type: ignore[attr-defined]
    executors._require_server()
    server = multiprocessing.forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    status = Path(f"/proc/{server}/status").read_text(encoding="ascii")
    blocked = next(int(line.split()[1], 16) for line in status.splitlines() if "SigBlk" in line)
    assert all(blocked & 1 << number - 1 for number in SIGNALS)
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & set(SIGNALS)
    for number in SIGNALS:
        os.kill(server, number)
    time.sleep(0.05)
    assert Path(f"/proc/{server}").is_dir()
    executors._require_server()
    assert server == multiprocessing.forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
