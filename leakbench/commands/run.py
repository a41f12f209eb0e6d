"""`run`, `cloak` and `validate`: a suite, from its file to its table."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leakbench import arithmetic
from leakbench.commands.options import (
    RUNS,
    AttackOption,
    DefenseOption,
    Device,
    DeviceOption,
    FastOption,
    PluginsOption,
    ProfileOption,
    SetOption,
    SuiteArgument,
)
from leakbench.commands.output import say, write
from leakbench.commands.report import write_reports
from leakbench.errors import LeakbenchError
from leakbench.registry import add_folders

if TYPE_CHECKING:
    from leakbench.described import PlannedCell, PlannedTraining
    from leakbench.runner import Outcome, Progress
    from leakbench.spec import Plan


NOISE = ("clip", "noise_multiplier")
"""Parameters whose product is the noise sigma C: of equal accuracies `cloak` takes the least."""


class ChoiceFormat(StrEnum):
    """Formats of a choice."""

    md = "md"
    json = "json"


def run(
    suite: SuiteArgument,
    profile: ProfileOption = "quick",
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; else results/runs/SUITE-PROFILE.")
    ] = None,
    device: DeviceOption = Device.auto,
    workers: Annotated[int, typer.Option(min=0, help="Worker processes; 0 takes one a core.")] = 0,
    chunk: Annotated[
        int,
        typer.Option(
            min=1, help="Victims solved together; changes no result, unless `doctor` says so."
        ),
    ] = 128,
    attack: AttackOption = None,
    defense: DefenseOption = None,
    settings: SetOption = None,
    plugins: PluginsOption = None,
    fast: FastOption = False,
) -> None:
    """Run a suite, or what is left of it, and print its table."""
    _arithmetic(fast)
    add_folders(plugins or ())
    plan = _plan(suite, profile, attack, defense, settings)  # first: torch takes its time to load
    from leakbench import runner
    from leakbench.data.catalog import data_root

    folder, where, count = _place(plan, out, device, workers)
    with _interruptible(folder):
        with _progress() as report:
            outcome = runner.run(
                plan, folder, root=data_root(), device=where, workers=count, chunk_size=chunk,
                report=report,
            )  # fmt: skip
        text, broken = _written(folder, outcome)
        print(text)
    _end(folder, outcome, broken)


def cloak(
    suite: SuiteArgument = "cloak_table2",
    profile: ProfileOption = "quick",
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; else results/runs/SUITE-PROFILE.")
    ] = None,
    device: DeviceOption = Device.auto,
    workers: Annotated[int, typer.Option(min=0, help="Worker processes; 0 takes one a core.")] = 0,
    rule: Annotated[
        str | None,
        typer.Option("--rule", help="Success rule of the suite to choose by; else strict."),
    ] = None,
    at_most: Annotated[
        float | None,
        typer.Option(
            help="Allow rates whose upper end is at most this, 0 to 1; else no success at all."
        ),
    ] = None,
    format: Annotated[ChoiceFormat, typer.Option(help="md or json.")] = ChoiceFormat.md,
    settings: SetOption = None,
    plugins: PluginsOption = None,
    fast: FastOption = False,
) -> None:
    """Run a suite and choose, of its defenses that leak nothing, the most accurate one."""
    _arithmetic(fast)
    add_folders(plugins or ())
    plan = _plan(suite, profile, None, None, settings)  # first: torch takes its time to load
    from leakbench import selection
    from leakbench.data.catalog import data_root
    from leakbench.report import choices as written

    criteria = selection.Criteria(rule=rule or "strict", at_most=at_most, ties=NOISE)

    folder, where, count = _place(plan, out, device, workers)
    with _interruptible(folder):
        with _progress() as report:
            outcome, choices = selection.search(
                plan, folder, criteria, root=data_root(), device=where, workers=count,
                report=report,
            )  # fmt: skip
        _, broken = _written(folder, outcome)
        page = written.to_markdown(plan, choices)
        write(folder / "cloak.md", page)
        print(written.to_json(plan, choices) if format is ChoiceFormat.json else page, end="")
    for choice in choices:
        if choice.optimistic:
            say(f"{choice.dataset}: {written.cautions(choice)[0]}")
    _end(folder, outcome, broken)


def _place(plan: Plan, out: Path | None, device: Device, workers: int) -> tuple[Path, str, int]:
    """Folder, device and number of worker processes of a run."""
    if out is not None and out == Path():
        raise LeakbenchError("--out: empty; give a folder of its own for the run")
    folder = out if out is not None else RUNS / f"{plan.name}-{plan.profile}"
    where = _device(device)
    return folder, where, workers or (1 if where == "cuda" else os.cpu_count() or 1)


def _written(folder: Path, outcome: Outcome) -> tuple[str, list[str]]:
    """Write the reports of a run that was not interrupted; its table, and rows above a ceiling."""
    if outcome.torn_bytes:
        say(f"{folder}: a torn last line of {outcome.torn_bytes} bytes was cut off")
    if outcome.interrupted:
        say(f"{outcome.present + outcome.ran} of {outcome.planned} trials are done")
        raise KeyboardInterrupt
    if outcome.changed:  # a gallery of what was there before would be taken for this one's
        (folder / "gallery.png").unlink(missing_ok=True)
    return write_reports(folder)


def _end(folder: Path, outcome: Outcome, broken: list[str]) -> None:
    """Say how a run went, and exit with its code."""
    for row in broken:
        say(f"above its ceiling, so mechanism or accounting is wrong: {row}")
    judged = f", {outcome.rejudged} judged again" if outcome.rejudged else ""
    say(
        f"{outcome.planned} trials planned: {outcome.present} were there, {outcome.ran} run now, "
        f"{outcome.skipped} skipped, {outcome.errors} in error{judged}; "
        f"{folder}/report.md, .html, .json, .csv"
    )
    raise typer.Exit(1 if outcome.errors or broken else 0)


def validate(
    suite: SuiteArgument,
    profile: ProfileOption = "quick",
    device: DeviceOption = Device.auto,
    attack: AttackOption = None,
    defense: DefenseOption = None,
    settings: SetOption = None,
    plugins: PluginsOption = None,
) -> None:
    """Say what would run, what is missing and roughly how long it takes; run nothing."""
    add_folders(plugins or ())
    plan = _plan(suite, profile, attack, defense, settings)
    for other in plan.profiles:
        _plan(suite, other, attack, defense, settings)  # its mistakes show before it is run
    from leakbench import planning
    from leakbench.data.catalog import data_root

    where = _device(device)
    planned = planning.plan_cells(plan, data_root(), where)
    trained = planning.plan_trainings(plan, data_root(), where)
    for dataset in dict.fromkeys(cell.cell.dataset for cell in planned):
        cells = [cell for cell in planned if cell.cell.dataset == dataset]
        rows = dict.fromkeys(cell.cell.row for cell in cells)
        attackers = dict.fromkeys(cell.cell.knowledge for cell in cells)
        reasons = dict.fromkeys(cell.skip for cell in cells)
        state = "; ".join(f"skipped, {reason}" for reason in reasons if reason)
        size = f"{len(rows)} rows x {len(attackers)} attackers x {plan.networks} networks"
        print(f"{dataset}: {size} x {plan.victims} victims {state}".rstrip())
    trials = sum(cell.count for cell in planned if not cell.skip)
    for reason in dict.fromkeys(each.skip for each in trained if each.skip and not planned):
        print(f"trainings skipped, {reason}")
    if training := [each for each in trained if not each.skip]:
        networks = sum(len(each.identities) for each in training)
        rounds = _planned_rounds(training)
        print(f"{networks} trainings of {rounds}, to report accuracy, epsilon, cost")
    print(f"{len(planned)} cells, {trials} trials; {_rough_time(planned, trained)}")


def _planned_rounds(trained: list[PlannedTraining]) -> str:
    """Rounds of trainings, and at how many learning rates, in words."""
    rounds = [each.cell.schedule["rounds"] for each in trained]
    fewest, most = min(rounds), max(rounds)
    words = f"{most} rounds each" if fewest == most else f"{fewest} to {most} rounds"
    rates = max(len(each.cell.learning_rates) for each in trained)
    return f"{words}, at {rates} learning rates" if rates else words


def _rough_time(planned: list[PlannedCell], trained: list[PlannedTraining]) -> str:
    """From all steps, on one core: two milliseconds for each gradient of an image under attack, one
    for each example of a local step."""
    seconds = 0.0
    for training in trained:
        schedule = training.cell.schedule
        examples = schedule["batch_size"] * schedule["clients_a_round"] * schedule["local_steps"]
        networks = 0 if training.skip else len(training.identities)
        rates = len(training.cell.learning_rates) or 1
        seconds += 1e-3 * networks * rates * schedule["rounds"] * examples
    for planned_cell in planned:
        images = 0 if planned_cell.skip else planned_cell.count
        seconds += 2e-3 * images * planned_cell.budget * planned_cell.cell.observations
    cores = os.cpu_count() or 1
    minutes = max(1, round(seconds / cores / 60))
    time = f"{minutes} min" if minutes < 120 else f"{minutes / 60:.0f} h"
    return f"roughly {time} on {cores} cores if every attack uses up its steps"


def _arithmetic(fast: bool) -> None:
    """Before anything loads torch."""
    if fast:
        arithmetic.choose_fast()


def _plan(
    suite: str, profile: str, attack: str | None, defense: str | None, settings: list[str] | None
) -> Plan:
    from leakbench.suite import resolve

    return resolve(suite, profile, attack=attack, defense=defense, settings=settings or ())


def _device(device: Device) -> str:
    if device is Device.cpu:
        return "cpu"
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if device is Device.cuda:
        raise LeakbenchError("--device cuda: torch sees no CUDA device; allowed here: cpu, auto")
    return "cpu"


@contextmanager
def _interruptible(folder: Path) -> Iterator[None]:
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
def _progress() -> Iterator[Any]:
    """A bar on a terminal, a line a chunk elsewhere; both on stderr."""
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
