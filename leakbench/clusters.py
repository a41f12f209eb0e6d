"""Work on other machines, by Ray (the extra `leakbench[ray]`). The driver alone writes.

A node computes what the driver would: the same leakbench, torch and arithmetic, which each task
checks, and the same data. Samples are in the package; a data root has to be at the same place on
all nodes, and what is read there has to have the checksum that the driver's has.
"""

from __future__ import annotations

import importlib
import os
import signal
import socket
import time
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from leakbench.arithmetic import PORTABLE, mode
from leakbench.chunks import Chunk, ChunkResult
from leakbench.data import load
from leakbench.data.readers import reason
from leakbench.errors import LeakbenchError
from leakbench.identity import source_digest
from leakbench.registry import FOLDERS
from leakbench.utility import material
from leakbench.working import Done, Task, Work, do, overdue

PASSED_ON = (
    *PORTABLE, FOLDERS, "LEAKBENCH_ARITHMETIC", "LEAKBENCH_SETTLED", "LEAKBENCH_DATA",
    "OMP_NUM_THREADS", "MKL_NUM_THREADS",
)  # fmt: skip
"""Environment variables that a node's processes get from the driver, as far as they are set."""


@dataclass(frozen=True, slots=True)
class Computes:
    """What decides bits beside the data and what a task says."""

    code: str
    torch: str
    arithmetic: str

    @classmethod
    def here(cls) -> Computes:
        """Of this process."""
        return cls(code=source_digest(()), torch=version("torch"), arithmetic=mode())


class Ray:
    """Tasks of a Ray cluster, each with a core, or a GPU, of its own.

    address: of a cluster that runs, "auto" for the one that this machine belongs to; None starts
    one on this machine. workers: tasks at a time, 0 for as many as the cluster has cores or GPUs,
    asked again and again, since nodes come and go.

    A task whose process dies is lost, as in `executors.Processes`; one whose node goes away is
    handed out again as it is.

    Raises:
        LeakbenchError: Ray is not installed, or no cluster is at the address.
    """

    def __init__(self, address: str | None, *, gpu: bool = False, workers: int = 0) -> None:
        try:
            ray: Any = importlib.import_module("ray")
        except ModuleNotFoundError:
            text = "Ray is not installed; get it with pip install 'leakbench[ray]'"
            raise LeakbenchError(f"--executor ray: {text}") from None
        self._ray = ray
        self._resource = "GPU" if gpu else "CPU"
        self._most = workers
        self._under_way: dict[Any, tuple[Task, float]] = {}  # by Ray's references
        if not ray.is_initialized():
            _require_somebody_at(address)
            environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
            cores = {} if address is not None else {"num_cpus": workers or None}
            os.environ.setdefault("RAY_worker_niceness", "0")  # of one that is started here
            handler = signal.getsignal(signal.SIGTERM)
            try:
                ray.init(
                    address=address or "local", log_to_driver=False, include_dashboard=False,
                    logging_level="ERROR", runtime_env={"env_vars": environment}, **cores,
                )  # fmt: skip
            except (ConnectionError, ValueError, RuntimeError) as error:
                text = f"no Ray cluster at {address!r}: {reason(error)}"
                raise LeakbenchError(f"--ray-address: {text}") from None
            finally:
                signal.signal(signal.SIGTERM, handler)  # Ray's would end with code 15
        needs: dict[str, Any] = {"num_gpus": 1, "num_cpus": 0} if gpu else {"num_cpus": 1}
        # Never retried by Ray: which tasks are done again, and how, is the runner's to say.
        self._do = ray.remote(max_retries=0, **needs)(_do)
        self._here = Computes.here()

    @property
    def workers(self) -> int:
        """Tasks at a time, now."""
        there = int(self._ray.cluster_resources().get(self._resource, 0))
        return max(min(self._most or there, there), 1)

    @property
    def capacity(self) -> int:
        """No more than are at work, so that a task's time begins when it is submitted."""
        return self.workers

    def submit(self, task: Task) -> None:
        """Hand a task out."""
        reference = self._do.remote(task, self._here, _checksum(task.work))
        self._under_way[reference] = (task, time.monotonic())

    def next(self, seconds: float) -> Done | None:
        """One task that is over; None if none is within `seconds`."""
        if not self._under_way:
            return None
        ready, _ = self._ray.wait(list(self._under_way), num_returns=1, timeout=seconds)
        for reference in ready:
            return self._collect(reference)
        now = time.monotonic()
        for reference, (task, begun) in self._under_way.items():
            if task.seconds is not None and now - begun > task.seconds:
                self._ray.cancel(reference, force=True)
                del self._under_way[reference]
                return overdue(task, now - begun)
        return None

    def cancel(self) -> None:
        """End all tasks; the cluster stays."""
        for reference in self._under_way:
            self._ray.cancel(reference, force=True)
        self._under_way.clear()

    def _collect(self, reference: Any) -> Done:
        exceptions = self._ray.exceptions
        task, begun = self._under_way.pop(reference)
        passed = time.monotonic() - begun
        try:
            result, seconds = self._ray.get(reference)
        except (exceptions.NodeDiedError, exceptions.ObjectLostError) as error:
            return Done(task=task, seconds=passed, lost=_first_line(error), innocent=True)
        except exceptions.RayTaskError as error:
            if isinstance(error.cause, LeakbenchError):
                raise error.cause from None
            return Done(task=task, seconds=passed, lost=_first_line(error))
        except exceptions.RayError as error:
            return Done(task=task, seconds=passed, lost=_first_line(error))
        return Done(task=task, result=result, seconds=seconds)


def _require_somebody_at(address: str | None) -> None:
    """Refuse at once what Ray would try to reach for minutes."""
    host, colon, port = (address or "").rpartition(":")
    if not colon or not port.isdecimal() or "://" in host:
        return
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        text = f"no Ray cluster at {address!r}: {error}"
        raise LeakbenchError(f"--ray-address: {text}") from None


def _checksum(work: Work) -> str:
    """Of the data that a piece of work is done with."""
    if isinstance(work, Chunk):
        return load(work.cells[0].source, work.root).checksum
    return material(work.cell.source, work.root).checksum


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {reason(error)}"


def _do(task: Task, driver: Computes, data: str) -> tuple[ChunkResult | None, float]:
    """A task, in a process of a node."""
    if (here := Computes.here()) != driver:
        raise LeakbenchError(f"a node of the cluster computes otherwise: {here}, here {driver}")
    if _checksum(task.work) != data:
        raise LeakbenchError(f"a node of the cluster has other data in {task.work.root}")
    done = do(task)
    return done.result, done.seconds
