"""Who does the work: this process, or processes of its own. The driver alone writes.

    executor.submit(task)           hand it out
    done = executor.next(seconds)   one that is over, in whatever order; None if none is in time
    executor.cancel()               end what is under way

A task whose process dies, hangs or takes all memory is over and says so (`Done.lost`); no other
task is harmed: every worker has a pipe of its own, and shares no lock with anyone. Other machines:
`leakbench.clusters`.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import pickle
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Protocol

from leakbench.stopping import SIGNALS
from leakbench.working import Done, Task, do, overdue


class Executor(Protocol):
    """Does tasks, some at a time.

    workers: how many are done at a time. capacity: how many it takes, a few that wait included, so
    that nobody is idle while the driver writes.
    """

    @property
    def workers(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    def submit(self, task: Task) -> None: ...
    def next(self, seconds: float) -> Done | None: ...
    def cancel(self) -> None: ...


class Serial:
    """One after the other in this process: no time limit, and what ends it ends the run."""

    workers = 1
    capacity = 1

    def __init__(self) -> None:
        self._waiting: deque[Task] = deque()

    def submit(self, task: Task) -> None:
        """Take a task."""
        self._waiting.append(task)

    def next(self, seconds: float) -> Done | None:
        """Do the next one, however long it takes."""
        if not self._waiting:
            return None
        return do(self._waiting.popleft())

    def cancel(self) -> None:
        """Forget what waits."""
        self._waiting.clear()


class Processes:
    """Worker processes on this machine, started when there is work for them.

    count: how many. gpus: names or numbers of CUDA devices, as CUDA_VISIBLE_DEVICES has them,
    dealt out in turn: each worker sees one; () leaves the environment as it is.

    Workers are forked from a server process that has loaded torch and nothing else, which makes
    another one in milliseconds; where there is no fork they start from nothing.
    """

    def __init__(self, count: int, gpus: Sequence[str] = ()) -> None:
        self.workers = count
        self.capacity = 2 * count
        self._gpus = tuple(gpus)
        self._waiting: deque[Task] = deque()
        self._places: list[_Worker | None] = [None] * count
        self._forks = "forkserver" in multiprocessing.get_all_start_methods()
        self._context: BaseContext = multiprocessing.get_context(
            "forkserver" if self._forks else "spawn"
        )
        if self._forks:
            self._context.set_forkserver_preload([__name__])

    def submit(self, task: Task) -> None:
        """Hand a task out, or keep it until a worker is free."""
        self._waiting.append(task)
        self._hand_out()

    def next(self, seconds: float) -> Done | None:
        """One task that is over; None if none is within `seconds`."""
        until = time.monotonic() + seconds
        while True:
            self._hand_out()
            busy = [worker for worker in self._places if worker is not None and worker.task]
            if not busy:
                return None
            now = time.monotonic()
            late = next((worker for worker in busy if worker.until <= now), None)
            ready = wait([worker.connection for worker in busy], 0)
            if late is not None and late.connection not in ready:
                return self._end(late, timeout=True)
            if ready:
                return self._collect(next(each for each in busy if each.connection in ready))
            if now >= until:
                return None
            soonest = min(until, *(worker.until for worker in busy))
            wait([worker.connection for worker in busy], soonest - now)

    def cancel(self) -> None:
        """End all workers, with what they are doing. They keep nothing that is not the driver's."""
        self._waiting.clear()
        workers = [worker for worker in self._places if worker is not None]
        self._places = [None] * len(self._places)
        for worker in workers:
            worker.process.kill()
        for worker in workers:
            worker.process.join()
            worker.connection.close()

    def _hand_out(self) -> None:
        for place, worker in enumerate(self._places):
            if not self._waiting:
                return
            if worker is None:
                worker = self._places[place] = self._start(place)
            if worker.task is None:
                task = self._waiting.popleft()
                worker.give(task)

    def _start(self, place: int) -> _Worker:
        environment = dict(os.environ)
        if self._gpus:
            environment["CUDA_VISIBLE_DEVICES"] = self._gpus[place % len(self._gpus)]
        ours, theirs = multiprocessing.Pipe()
        process = self._context.Process(  # type: ignore[attr-defined]  # every context has it
            target=_serve, args=(theirs, environment, Path.cwd()), name=f"leakbench-{place}"
        )
        with _without_main():
            if self._forks:
                _require_server()
            process.start()
        theirs.close()  # else its end would never show here
        return _Worker(process, ours)

    def _collect(self, worker: _Worker) -> Done:
        """What a worker sent, or what is known of its end."""
        try:
            result, seconds = worker.connection.recv()
        except (EOFError, OSError, pickle.UnpicklingError):
            return self._end(worker, timeout=False)
        task = worker.task
        assert task is not None
        worker.task = None
        self._hand_out()  # before the driver goes and writes
        return Done(task=task, result=result, seconds=seconds)

    def _end(self, worker: _Worker, *, timeout: bool) -> Done:
        """End a worker and say how its task was lost; another takes its place when needed."""
        if timeout:
            worker.process.kill()
        worker.process.join()
        worker.connection.close()
        self._places[self._places.index(worker)] = None
        task = worker.task
        assert task is not None
        passed = time.monotonic() - worker.begun
        if timeout:
            return overdue(task, passed)
        return Done(task=task, seconds=passed, lost=how_it_ended(worker.process.exitcode))


class _Worker:
    """A process, the pipe to it, and what it is doing."""

    def __init__(self, process: BaseProcess, connection: Connection) -> None:
        self.process = process
        self.connection = connection
        self.task: Task | None = None
        self.begun = 0.0
        self.until = float("inf")

    def give(self, task: Task) -> None:
        self.task, self.begun = task, time.monotonic()
        self.until = self.begun + task.seconds if task.seconds is not None else float("inf")
        with suppress(OSError):  # it has died: who listens to it will find out
            self.connection.send(task)


@contextmanager
def _without_main() -> Iterator[None]:
    """Workers need nothing of the program that starts them, and would run it once more: a script
    without `if __name__ == "__main__"` as a whole."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _require_server() -> None:
    """Start the server that workers are forked from, unless it runs, deaf to `SIGNALS`.

    A signal often goes to a whole group of processes, as Ctrl-C does; the server, which loads torch
    for seconds, would end with a traceback. What is blocked here stays so in it, and in its
    children until `_serve`.
    """
    # Python's own helper, which it starts in passing, lets signals through again.
    multiprocessing.resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def how_it_ended(code: int | None) -> str:
    """An exit code in words."""
    if code is not None and code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
        memory = ", out of memory perhaps" if name == "SIGKILL" else ""
        return f"its process was killed by {name}{memory}"
    return f"its process ended by itself, exit code {code}"


def _serve(connection: Connection, environment: Mapping[str, str], folder: Path) -> None:
    """A worker's life: take a task, do it, send what came of it."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # the driver decides what an interrupt means
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # for what a plugin starts
    threading.Thread(target=_end_with_driver, daemon=True).start()
    # The server it was forked from may be older than what its driver has set since.
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    _offer_itself()
    with suppress(EOFError, OSError):
        while True:
            done = do(connection.recv())
            connection.send((done.result, done.seconds))
    os._exit(0)  # threads that a plugin has left running keep nobody waiting


def _offer_itself() -> None:
    """Where memory runs out, the kernel should take a worker, which costs a chunk, and no other."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def _end_with_driver() -> None:
    """A killed driver cannot end its workers; without this they would wait for ever."""
    driver = multiprocessing.parent_process()
    if driver is not None:
        driver.join()
        os._exit(1)
