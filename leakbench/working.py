"""What one process does with a piece of work: records, whatever a plugin does to it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from leakbench.chunks import Chunk, ChunkResult
from leakbench.foreign import without_exit
from leakbench.isolation import contained, settled
from leakbench.plugin_files import one_line
from leakbench.trial_records import failed
from leakbench.trials import run_chunk
from leakbench.utility import Training, failed_training, run_training

Work = Chunk | Training


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A piece of work as it is handed out.

    divisible: whether its trials may be solved in other company; only where a victim's bits do not
        depend on its neighbours (`leakbench.probe`).
    seconds: that it may take, None without a limit; whoever runs it in a process of its own ends
        that process then.
    tries: how often a process that had it, and nothing smaller, was lost before.
    """

    work: Work
    divisible: bool = True
    seconds: float | None = None
    tries: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A task that is over: with a result after `seconds`, or lost.

    lost: why the process that had it is no more, "" with a result. timeout: whether it was ended
    because it took too long. innocent: whether the machine went away, which says nothing about the
    task.
    """

    task: Task
    result: ChunkResult | None = None
    seconds: float = 0.0
    lost: str = ""
    timeout: bool = False
    innocent: bool = False


def do(task: Task) -> Done:
    """Do a piece of work in this process. What a signal raises comes through."""
    torch.set_num_threads(1)  # the same bits whoever does it, and processes do the parallel work
    begun = time.monotonic()
    work = task.work
    result = _chunk(work, task.divisible) if isinstance(work, Chunk) else _training(work)
    return Done(task=task, result=result, seconds=time.monotonic() - begun)


def overdue(task: Task, passed: float) -> Done:
    """A task whose process was ended after `passed` seconds, more than it may take."""
    lost = f"took more than {task.seconds:g} s; its process was ended"
    return Done(task=task, seconds=passed, lost=lost, timeout=True)


def came_to_nothing(task: Task, status: str, reason: str) -> ChunkResult:
    """Records of a piece of work without any result: status "error", "oom" or "timeout"."""
    if isinstance(task.work, Chunk):
        return failed(task.work, status, reason)
    return ChunkResult(records=(failed_training(task.work, status, reason),), arrays={})


def by_cell(chunk: Chunk) -> list[Chunk]:
    """A chunk for each of its cells."""
    of_cells = sorted({of for of, _ in chunk.trials})
    return [
        replace(chunk, trials=tuple(trial for trial in chunk.trials if trial[0] == of))
        for of in of_cells
    ]


def by_victim(chunk: Chunk) -> list[Chunk]:
    """A chunk for each of its trials."""
    return [replace(chunk, trials=(trial,)) for trial in chunk.trials]


def _halves(chunk: Chunk) -> list[Chunk]:
    middle = len(chunk.trials) // 2
    parts = (chunk.trials[:middle], chunk.trials[middle:])
    return [replace(chunk, trials=part) for part in parts if part]


def _training(work: Training) -> ChunkResult:
    try:
        with settled(), contained(f"defense '{work.cell.defense}'"):
            record = run_training(work)
    except Exception as error:  # noqa: BLE001  a plugin may fail in any way
        record = failed_training(work, _status(error), one_line(error))
    return ChunkResult(records=(record,), arrays={})


def _chunk(chunk: Chunk, divisible: bool) -> ChunkResult:
    """Run a chunk; out of memory, by halves; else, if it fails, cell by cell: one row's defense
    must not take the others down."""
    try:
        with settled(), without_exit("a plugin"):
            return _told_size(run_chunk(chunk), len(chunk.trials))
    except Exception as error:  # noqa: BLE001  a plugin may fail in any way
        status, reason = _status(error), one_line(error)
    # What filled the memory is held by the exception's frames until here.
    parts = [chunk]
    if status == "oom" and divisible:
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
        parts = _halves(chunk)
    elif status != "oom":
        parts = by_cell(chunk)
    if len(parts) == 1:
        return failed(chunk, status, reason)
    return _joined([_chunk(part, divisible) for part in parts])


def _joined(parts: Sequence[ChunkResult]) -> ChunkResult:
    return ChunkResult(
        records=tuple(record for part in parts for record in part.records),
        arrays={name: arrays for part in parts for name, arrays in part.arrays.items()},
    )


def _told_size(result: ChunkResult, trials: int) -> ChunkResult:
    """How many trials were solved together: it changes no number, but time and memory."""
    return replace(result, records=tuple(each | {"chunk": trials} for each in result.records))


def _status(error: BaseException) -> str:
    """ "oom" for what torch, numpy and Python raise when there is no memory, else "error"."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return "oom"
    # On the CPU torch has no class for it.
    no_memory = type(error) is RuntimeError and "can't allocate memory" in one_line(error)
    return "oom" if no_memory else "error"
