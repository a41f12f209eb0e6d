"""A piece of work in a process: whatever its plugins do, it comes to records."""

from __future__ import annotations

from dataclasses import replace

import torch

from leakbench.chunks import Chunk, ChunkResult
from leakbench.foreign import without_exit
from leakbench.isolation import contained, settled
from leakbench.plugin_files import one_line
from leakbench.trial_records import failed
from leakbench.trials import run_chunk
from leakbench.utility import Training, failed_training, run_training


def attempt(piece: Chunk | Training) -> ChunkResult:
    """Run a piece of work; what fails is "oom" or "error", with the reason."""
    return _attempt(piece) if isinstance(piece, Chunk) else _attempt_training(piece)


def _attempt(chunk: Chunk) -> ChunkResult:
    """Run a chunk; if it fails, cell by cell: one row's defense must not take the others down."""
    try:
        with settled(), without_exit("a plugin"):
            return run_chunk(chunk)
    except torch.OutOfMemoryError as error:
        return failed(chunk, "oom", one_line(error))
    except Exception as error:  # noqa: BLE001  a plugin may fail in any way
        of_cells = sorted({of for of, _ in chunk.trials})
        if len(of_cells) == 1:
            return failed(chunk, "error", one_line(error))
    parts = [
        _attempt(replace(chunk, trials=tuple(trial for trial in chunk.trials if trial[0] == of)))
        for of in of_cells
    ]
    return ChunkResult(
        records=tuple(record for part in parts for record in part.records),
        arrays={name: arrays for part in parts for name, arrays in part.arrays.items()},
    )


def _attempt_training(task: Training) -> ChunkResult:
    try:
        with settled(), contained(f"defense '{task.cell.defense}'"):
            record = run_training(task)
    except torch.OutOfMemoryError as error:
        record = failed_training(task, "oom", one_line(error))
    except Exception as error:  # noqa: BLE001  a plugin may fail in any way
        record = failed_training(task, "error", one_line(error))
    return ChunkResult(records=(record,), arrays={})
