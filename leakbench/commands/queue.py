"""`queue`: a profile of many suites, one after the other, the longest first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leakbench.commands.options import (
    RUNS,
    Device,
    DeviceOption,
    FastOption,
    PluginsOption,
    ProfileOption,
)
from leakbench.commands.output import print_columns, say, show
from leakbench.commands.report import above_ceiling
from leakbench.commands.running import (
    ChunkOption,
    ChunkTimeoutOption,
    DeadlineOption,
    ExecutorKind,
    ExecutorOption,
    RayAddressOption,
    TrialTimeoutOption,
    WorkersOption,
    choose_arithmetic,
    device_of,
    executor_of,
    folder_of,
    history_of,
    interruptible,
    limited,
    plan_of,
    require_executor,
    say_outcome,
    seconds_of,
    showing_progress,
    write_results,
)
from leakbench.errors import LeakbenchError
from leakbench.registry import add_folders

if TYPE_CHECKING:
    from leakbench.executors import Executor
    from leakbench.forecast import Forecast
    from leakbench.spec import Plan
    from leakbench.stopping import Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """A suite in the queue: its run folder, what it is as a whole, and what is left of it."""

    plan: Plan
    folder: Path
    whole: Forecast
    left: Forecast


def queue(
    suites: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SUITE]...", help="Names or .toml files; else all suites with the profile."
        ),
    ] = None,
    profile: ProfileOption = "quick",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the runs, each in its own SUITE-PROFILE there; else results/runs."
        ),
    ] = None,
    device: DeviceOption = Device.auto,
    workers: WorkersOption = 0,
    executor: ExecutorOption = ExecutorKind.processes,
    ray_address: RayAddressOption = None,
    deadline: DeadlineOption = None,
    trial_timeout: TrialTimeoutOption = None,
    chunk_timeout: ChunkTimeoutOption = None,
    chunk: ChunkOption = 128,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the forecast only; run nothing.")
    ] = False,
    plugins: PluginsOption = None,
    fast: FastOption = False,
) -> None:
    """Run a profile of many suites, or what is left of it, the longest first."""
    choose_arithmetic(fast)
    add_folders(plugins or ())
    within = seconds_of(deadline, "--deadline")
    require_executor(executor, workers, ray_address)
    plans, without = _plans(suites or [], profile)  # first: torch takes its time to load
    plans = [limited(plan, trial_timeout, chunk_timeout) for plan in plans]
    base = folder_of(out, RUNS)
    with interruptible(base, within) as stop:
        where = device_of(device)
        does = executor_of(executor, where, workers, ray_address)
        for name in without:
            say(f"{name}: has no profile '{profile}', left out")
        queued = [_queued(plan, base, where, chunk) for plan in plans]
        queued.sort(key=lambda each: (-each.whole.seconds, each.plan.name))
        _print_forecast(queued, does.workers, where)
        if dry_run:
            return
        succeeded = [_run(each, where, does, stop, chunk) for each in queued]
    raise typer.Exit(0 if all(succeeded) else 1)


def _plans(suites: Sequence[str], profile: str) -> tuple[list[Plan], list[str]]:
    """The plans of the suites, or of all that have the profile, and those that have it not.

    Raises:
        LeakbenchError: a suite that cannot be read, a named one without the profile, none with it,
            or two that would share a folder.
    """
    from leakbench import suite as known

    asked = list(dict.fromkeys(suites))
    without: list[str] = []
    if not suites:
        profiles = {name: tuple(known.read(name)[0].profiles) for name in known.names()}
        asked = [name for name, has in profiles.items() if profile in has]
        without = [name for name in profiles if name not in asked]
        if not asked:
            every = ", ".join(sorted({each for has in profiles.values() for each in has}))
            raise LeakbenchError(f"no suite has a profile '{profile}'; there are: {every}")
    plans: dict[str, Plan] = {}
    for name in asked:
        plan = plan_of(name, profile, None, None, None)
        if plan.name in plans:
            other = plans[plan.name].file
            text = f"two suites are named '{plan.name}', {other} and {plan.file}"
            raise LeakbenchError(f"{text}; a queue needs a name of its own for each")
        plans[plan.name] = plan
    return list(plans.values()), without


def _queued(plan: Plan, base: Path, device: str, chunk: int) -> Queued:
    from leakbench import pieces, runner
    from leakbench.data.catalog import data_root
    from leakbench.forecast import forecast
    from leakbench.records import Run

    say(f"{plan.name}: planning")
    folder = base / f"{plan.name}-{plan.profile}"
    planned = runner.prepare(plan, data_root(), device, chunk)
    left = pieces.todo([*planned.cells, *planned.trainings], Run(folder).records())
    known = history_of(plan, base, device)
    return Queued(
        plan=plan,
        folder=folder,
        whole=forecast(planned.cells, planned.trainings, None, known),
        left=forecast(planned.cells, planned.trainings, left, known),
    )


def _print_forecast(queued: Sequence[Queued], cores: int, device: str) -> None:
    from leakbench.forecast import basis, in_words, together
    from leakbench.runner import device_name

    def time(seconds: float) -> str:
        return in_words(seconds / cores) if seconds else "-"

    rows = [
        (
            each.plan.name,
            f"{each.left.trials} of {each.whole.trials}",
            f"{each.left.trainings} of {each.whole.trainings}",
            time(each.left.seconds),
            time(each.whole.seconds),
        )
        for each in queued
    ]
    every = together([each.whole for each in queued])
    left, whole = time(sum(each.left.seconds for each in queued)), time(every.seconds)
    header = ("suite", "trials left", "trainings left", "time left", "in all")
    print_columns(header, [*rows, ("together", "", "", left, whole)])
    words = basis(every, device_name(device))
    show(f"roughly, by {cores} workers on a core each, {words}")


def _run(queued: Queued, device: str, executor: Executor, stop: Stop, chunk: int) -> bool:
    """Run a suite and print a line; whether all went well. What went wrong stops no other."""
    from leakbench import runner
    from leakbench.data.catalog import data_root

    name, folder = queued.plan.name, queued.folder
    try:
        with showing_progress() as report:
            outcome = runner.run(
                queued.plan, folder, root=data_root(), device=device, executor=executor,
                chunk_size=chunk, stop=stop, report=report,
            )  # fmt: skip
        broken = above_ceiling(write_results(folder, outcome))
    except (LeakbenchError, OSError) as error:
        show(f"{name}: failed: {error}")
        return False
    say_outcome(folder, outcome, broken)
    well = not outcome.errors and not broken
    said = "done" if well else f"{outcome.errors} in error, {len(broken)} rows above their ceiling"
    show(f"{name}: {said}; {outcome.ran} of {outcome.planned} run now; {folder}")
    return well
