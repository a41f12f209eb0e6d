"""What the commands that run suites share: where, on what, how they show it and how they end."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leakbench import arithmetic
from leakbench.commands.options import RUNS, Device
from leakbench.commands.output import say
from leakbench.commands.report import write_reports
from leakbench.errors import LeakbenchError
from leakbench.stopping import Stop, Stopped

if TYPE_CHECKING:
    from leakbench.executors import Executor, Processes
    from leakbench.history import History
    from leakbench.report.content import Report
    from leakbench.runner import Outcome, Progress
    from leakbench.spec import Plan


class ExecutorKind(StrEnum):
    """Who does the work."""

    processes = "processes"
    serial = "serial"
    ray = "ray"


WorkersOption = Annotated[
    int,
    typer.Option(min=0, max=4096, help="Worker processes; 0 takes one a core, on CUDA one a GPU."),
]
ExecutorOption = Annotated[
    ExecutorKind,
    typer.Option(
        help="processes: on this machine; serial: in this process; ray: a cluster (leakbench[ray])."
    ),
]
RayAddressOption = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="Ray cluster to join, e.g. auto; else one is started."),
]
DeadlineOption = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Stop after this time, e.g. 30m, with exit code 3."),
]
TrialTimeoutOption = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Time that a trial may take; also limits.trial of a suite."),
]
ChunkTimeoutOption = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", help="Time that a chunk of trials, or a training, may take; limits.chunk."
    ),
]
ChunkOption = Annotated[
    int,
    typer.Option(
        min=1, help="Victims solved together; changes no result, unless `doctor` says so."
    ),
]


def folder_of(out: Path | None, default: Path) -> Path:
    """The folder that --out names, else the default."""
    if out is not None and out == Path():
        raise LeakbenchError("--out: empty; give a folder of its own for the run")
    return out if out is not None else default


def processes(where: str, workers: int) -> Processes:
    """Worker processes on this machine, 0 for one a core or a GPU; each sees one GPU."""
    from leakbench.executors import Processes

    if where != "cuda":
        return Processes(workers or os.cpu_count() or 1)
    gpus = visible_gpus()
    return Processes(workers or len(gpus), gpus)


def visible_gpus() -> tuple[str, ...]:
    """What CUDA_VISIBLE_DEVICES names, else the numbers of all there are."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named:
        return tuple(name.strip() for name in named.split(","))
    import torch

    return tuple(str(number) for number in range(torch.cuda.device_count()))


def require_executor(kind: ExecutorKind, workers: int, ray_address: str | None) -> None:
    """Refuse what can be known to be wrong before torch is loaded.

    Raises:
        LeakbenchError: options that do not go together, or a Ray that is not installed.
    """
    if ray_address is not None and kind is not ExecutorKind.ray:
        raise LeakbenchError(f"--ray-address: needs --executor ray, got --executor {kind}")
    if ray_address is not None and not ray_address.strip():
        text = "empty; write HOST:PORT or auto, or leave the option out to start a cluster here"
        raise LeakbenchError(f"--ray-address: {text}")
    if kind is ExecutorKind.serial and workers > 1:
        raise LeakbenchError(f"--workers {workers}: --executor serial has one")
    if kind is ExecutorKind.ray and find_spec("ray") is None:
        text = "Ray is not installed; get it with pip install 'leakbench[ray]'"
        raise LeakbenchError(f"--executor ray: {text}")


def executor_of(kind: ExecutorKind, where: str, workers: int, ray_address: str | None) -> Executor:
    """The executor that the options choose.

    Raises:
        LeakbenchError: no Ray cluster at the address.
    """
    if kind is ExecutorKind.processes:
        return processes(where, workers)
    if kind is ExecutorKind.serial:
        from leakbench.executors import Serial

        return Serial()
    from leakbench.clusters import Ray

    return Ray(ray_address, gpu=where == "cuda", workers=workers)


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds_of(text: str | None, option: str) -> float | None:
    """A time such as 90, 90s, 30m, 1h30m, 2d in seconds, which are meant without a unit.

    Raises:
        LeakbenchError: anything else, nothing, or more than 100 days.
    """
    if text is None:
        return None
    parts = re.findall(r"(\d{1,7}(?:\.\d{1,6})?)([smhd]?)", text, re.ASCII)
    seconds = sum(float(number) * _UNITS[unit or "s"] for number, unit in parts)
    whole = "".join(number + unit for number, unit in parts) == text.strip()
    if not whole or not 0 < seconds <= 100 * _UNITS["d"]:
        raise LeakbenchError(f"{option} {text!r}: write a time such as 90s, 30m or 1h30m")
    return seconds


def limited(plan: Plan, trial: str | None, chunk: str | None) -> Plan:
    """The plan with the time limits that the options set."""
    from dataclasses import replace

    limits = replace(
        plan.limits,
        trial=seconds_of(trial, "--trial-timeout") or plan.limits.trial,
        chunk=seconds_of(chunk, "--chunk-timeout") or plan.limits.chunk,
    )
    return replace(plan, limits=limits)


def history_of(plan: Plan, base: Path, device: str, named: Sequence[Path] = ()) -> History:
    """What the `named` runs took, else the suite's in `base` and those that are committed.

    Raises:
        LeakbenchError: a named run that cannot be read.
    """
    from leakbench import history, runner
    from leakbench.loading import existing

    folders = [existing(run).folder for run in named]
    folders = folders or history.runs_of(plan.name, plan.profile, base, RUNS.parent)
    found = history.read(folders, device, runner.device_name(device))
    for reason in found.unread:
        if named:
            raise LeakbenchError(reason)
        say(f"not forecast from: {reason}")
    return found


def write_results(folder: Path, outcome: Outcome) -> Report:
    """Write the reports of a run that was not interrupted; returns what they say."""
    for repair in outcome.repairs:
        say(repair)
    if outcome.interrupted:
        say(f"{outcome.present + outcome.ran} of {outcome.planned} trials are done")
        raise Stopped
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
def interruptible(folder: Path, seconds: float | None = None) -> Iterator[Stop]:
    """A signal, or a deadline after so many seconds, ends a run: state kept, exit code 3."""
    stop = Stop()
    try:
        with stop.listening(seconds):
            yield stop
    except (KeyboardInterrupt, Stopped):
        by = f" by {stop.reason}" if stop.reason else ""
        kept = f"what is done is kept in {folder}" if folder.is_dir() else "nothing was done yet"
        say(f"stopped{by}; {kept}: run the same command again to go on")
        raise typer.Exit(3) from None


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
