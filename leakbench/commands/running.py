"""What the commands that run suites share: where, on what, how they show it and how they end."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leakbench import arithmetic
from leakbench.commands.options import RUNS, Device
from leakbench.commands.output import say
from leakbench.commands.report import write_reports
from leakbench.errors import LeakbenchError

if TYPE_CHECKING:
    from leakbench.report.content import Report
    from leakbench.runner import Outcome, Progress
    from leakbench.spec import Plan

WorkersOption = Annotated[int, typer.Option(min=0, help="Worker processes; 0 takes one a core.")]
ChunkOption = Annotated[
    int,
    typer.Option(
        min=1, help="Victims solved together; changes no result, unless `doctor` says so."
    ),
]


def place(plan: Plan, out: Path | None, device: Device, workers: int) -> tuple[Path, str, int]:
    """Folder, device and number of worker processes of a run."""
    folder = folder_of(out, RUNS / f"{plan.name}-{plan.profile}")
    where = device_of(device)
    return folder, where, workers_of(where, workers)


def folder_of(out: Path | None, default: Path) -> Path:
    """The folder that --out names, else the default."""
    if out is not None and out == Path():
        raise LeakbenchError("--out: empty; give a folder of its own for the run")
    return out if out is not None else default


def workers_of(where: str, workers: int) -> int:
    """The number of worker processes; 0 is one a core, on CUDA one."""
    return workers or (1 if where == "cuda" else os.cpu_count() or 1)


def write_results(folder: Path, outcome: Outcome) -> Report:
    """Write the reports of a run that was not interrupted; returns what they say."""
    for repair in outcome.repairs:
        say(repair)
    if outcome.interrupted:
        say(f"{outcome.present + outcome.ran} of {outcome.planned} trials are done")
        raise KeyboardInterrupt
    if outcome.changed:  # a gallery of what was there before would be taken for this one's
        (folder / "gallery.png").unlink(missing_ok=True)
    return write_reports(folder)


def end(folder: Path, outcome: Outcome, broken: list[str]) -> None:
    """Say how a run went, and exit with its code."""
    say_outcome(folder, outcome, broken)
    raise typer.Exit(1 if outcome.errors or broken else 0)


def say_outcome(folder: Path, outcome: Outcome, broken: list[str]) -> None:
    """Say how a run went; broken: rows above their ceilings."""
    for row in broken:
        say(f"above its ceiling, so mechanism or accounting is wrong: {row}")
    judged = f", {outcome.rejudged} judged again" if outcome.rejudged else ""
    say(
        f"{outcome.planned} trials planned: {outcome.present} were there, {outcome.ran} run now, "
        f"{outcome.skipped} skipped, {outcome.errors} in error{judged}; "
        f"{folder}/report.md, .html, .json, .csv"
    )


def choose_arithmetic(fast: bool) -> None:
    """Before anything loads torch."""
    if fast:
        arithmetic.choose_fast()


def plan_of(
    suite: str, profile: str, attack: str | None, defense: str | None, settings: list[str] | None
) -> Plan:
    """The suite's plan for a profile, as the options change it; loads no torch."""
    from leakbench.suite import resolve

    return resolve(suite, profile, attack=attack, defense=defense, settings=settings or ())


def device_of(device: Device) -> str:
    """The name torch has for what an option chooses."""
    if device is Device.cpu:
        return "cpu"
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if device is Device.cuda:
        raise LeakbenchError("--device cuda: torch sees no CUDA device; allowed here: cpu, auto")
    return "cpu"


@contextmanager
def interruptible(folder: Path) -> Iterator[None]:
    """SIGTERM ends a run like Ctrl-C does: state kept, exit code 3."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        say(f"stopped; what is done is kept in {folder}: run the same command again to go on")
        raise typer.Exit(3) from None
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def showing_progress() -> Iterator[Any]:
    """What to report progress to: a bar on a terminal, a line a chunk elsewhere; both on stderr."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        columns = (
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
            TimeElapsedColumn(),
        )  # fmt: skip
        with Bar(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task("trials", total=None)

            def show(progress: Progress) -> None:
                bar.update(
                    task, total=progress.total, completed=progress.done,
                    description=_chunk_name(progress),
                )  # fmt: skip

            yield show
        return

    def line(progress: Progress) -> None:
        counts = ", ".join(f"{n} {status}" for status, n in sorted(progress.statuses.items()))
        why = progress.reason and f" ({progress.reason})"
        say(f"{progress.done}/{progress.total} trials, {progress.seconds:.0f} s: "
             f"{_chunk_name(progress)}: {counts}{why}")  # fmt: skip

    yield line


def _chunk_name(progress: Progress) -> str:
    from leakbench.chunks import Chunk

    if not isinstance(progress.work, Chunk):
        return f"{progress.work.cell}, network {progress.work.network}"
    cell = progress.work.cells[0]
    variant = f"{cell.variant}: " if cell.variant else ""
    attack = f"{variant}{cell.attack} {cell.knowledge}"
    return f"{cell.dataset}, {attack}, network {progress.work.network}"
