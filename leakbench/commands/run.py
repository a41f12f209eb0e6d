"""`run`, `cloak` and `validate`: a suite, from its file to its table."""

from __future__ import annotations

import os
import re
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

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
from leakbench.commands.output import say, show, write
from leakbench.commands.report import above_ceiling, print_answer
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
    end,
    executor_of,
    folder_of,
    history_of,
    interruptible,
    limited,
    plan_of,
    processes,
    require_executor,
    seconds_of,
    showing_progress,
    write_results,
)
from leakbench.errors import LeakbenchError
from leakbench.registry import add_folders

if TYPE_CHECKING:
    from leakbench.described import PlannedTraining

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
    workers: WorkersOption = 0,
    executor: ExecutorOption = ExecutorKind.processes,
    ray_address: RayAddressOption = None,
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="i/n",
            help="Run part i of n, in OUT/shard-i-of-n; `merge` joins them.",
        ),
    ] = None,
    deadline: DeadlineOption = None,
    trial_timeout: TrialTimeoutOption = None,
    chunk_timeout: ChunkTimeoutOption = None,
    chunk: ChunkOption = 128,
    attack: AttackOption = None,
    defense: DefenseOption = None,
    settings: SetOption = None,
    plugins: PluginsOption = None,
    fast: FastOption = False,
) -> None:
    """Run a suite, or what is left of it, and print what it found."""
    choose_arithmetic(fast)
    add_folders(plugins or ())
    within = seconds_of(deadline, "--deadline")
    require_executor(executor, workers, ray_address)
    # First, since torch takes its time to load.
    plan = limited(plan_of(suite, profile, attack, defense, settings), trial_timeout, chunk_timeout)
    folder = folder_of(out, RUNS / f"{plan.name}-{plan.profile}")
    numbers = shard_of(shard)
    if numbers is not None:
        folder /= "shard-{}-of-{}".format(*numbers)
    with interruptible(folder, within) as stop:
        from leakbench import pieces, runner
        from leakbench.data.catalog import data_root

        where = device_of(device)
        part = pieces.WHOLE if numbers is None else pieces.Shard(*numbers)
        with showing_progress() as report:
            outcome = runner.run(
                plan, folder, root=data_root(), device=where, chunk_size=chunk, shard=part,
                executor=executor_of(executor, where, workers, ray_address), stop=stop,
                report=report,
            )  # fmt: skip
        content = write_results(folder, outcome)
        print_answer(content)
    end(folder, outcome, above_ceiling(content))


def shard_of(text: str | None) -> tuple[int, int] | None:
    """Number and count of an option i/n.

    Raises:
        LeakbenchError: anything but 1 <= i <= n <= 10,000.
    """
    if text is None:
        return None
    found = re.fullmatch(r"([0-9]{1,5})/([0-9]{1,5})", text.strip())
    number, of = map(int, found.groups()) if found else (0, 0)
    if not 1 <= number <= of <= 10_000:
        raise LeakbenchError(f"--shard {text!r}: write i/n, from 1/n to n/n, n at most 10000")
    return number, of


def cloak(
    suite: SuiteArgument = "cloak_table2",
    profile: ProfileOption = "quick",
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; else results/runs/SUITE-PROFILE.")
    ] = None,
    device: DeviceOption = Device.auto,
    workers: WorkersOption = 0,
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
    choose_arithmetic(fast)
    add_folders(plugins or ())
    plan = plan_of(suite, profile, None, None, settings)  # first: torch takes its time to load
    folder = folder_of(out, RUNS / f"{plan.name}-{plan.profile}")
    with interruptible(folder) as stop:
        from leakbench import selection
        from leakbench.data.catalog import data_root
        from leakbench.report import choices as written

        criteria = selection.Criteria(rule=rule or "strict", at_most=at_most, ties=NOISE)
        where = device_of(device)
        with showing_progress() as report:
            outcome, choices = selection.search(
                plan, folder, criteria, root=data_root(), device=where,
                executor=processes(where, workers), stop=stop, report=report,
            )  # fmt: skip
        broken = above_ceiling(write_results(folder, outcome))
        page = written.to_markdown(plan, choices)
        write(folder / "cloak.md", page)
        print(written.to_json(plan, choices) if format is ChoiceFormat.json else page, end="")
    for choice in choices:
        if choice.optimistic:
            say(f"{choice.dataset}: {written.cautions(choice)[0]}")
    end(folder, outcome, broken)


def validate(
    suite: SuiteArgument,
    profile: ProfileOption = "quick",
    device: DeviceOption = Device.auto,
    attack: AttackOption = None,
    defense: DefenseOption = None,
    settings: SetOption = None,
    plugins: PluginsOption = None,
    history: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="RUN", help="Run to forecast from; else those of the suite in results/."
        ),
    ] = None,
) -> None:
    """Say what would run, what is missing and roughly how long it takes; run nothing."""
    add_folders(plugins or ())
    plan = plan_of(suite, profile, attack, defense, settings)
    for other in plan.profiles:
        if other != plan.profile:
            plan_of(suite, other, attack, defense, settings)  # its mistakes show before it is run
    from leakbench import forecast as forecasts
    from leakbench import planning, runner
    from leakbench.data.catalog import data_root

    where = device_of(device)
    processor = runner.device_name(where)
    known = history_of(plan, RUNS, where, history or ())
    planned, broken = planning.cells_and_broken(plan, data_root(), where)
    trained = planning.plan_trainings(plan, data_root(), where)
    for dataset in dict.fromkeys(cell.cell.dataset for cell in planned):
        cells = [cell for cell in planned if cell.cell.dataset == dataset]
        rows = dict.fromkeys(cell.cell.row for cell in cells)
        attackers = dict.fromkeys(cell.cell.knowledge for cell in cells)
        reasons = dict.fromkeys(cell.skip for cell in cells)
        state = "; ".join(f"skipped, {reason}" for reason in reasons if reason)
        size = f"{len(rows)} rows x {len(attackers)} attackers x {plan.networks} networks"
        show(f"{dataset}: {size} x {plan.victims} victims {state}".rstrip())
    expected = forecasts.forecast(planned, trained, history=known)
    for reason in dict.fromkeys(each.skip for each in trained if each.skip and not planned):
        show(f"trainings skipped, {reason}")
    if training := [each for each in trained if not each.skip]:
        rounds = _planned_rounds(training)
        print(f"{expected.trainings} trainings of {rounds}, to report accuracy, epsilon, cost")
    cores = os.cpu_count() or 1
    time = forecasts.in_words(expected.on(cores))
    show(
        f"{len(planned)} cells, {expected.trials} trials; roughly {time} on {cores} cores, "
        f"{forecasts.basis(expected, processor)}"
    )
    for why in dict.fromkeys(filter(None, broken)):
        say(f"its trials will fail: {why}")
    if any(broken):
        raise typer.Exit(1)


def _planned_rounds(trained: list[PlannedTraining]) -> str:
    """Rounds of trainings, and at how many learning rates, in words."""
    rounds = [each.cell.schedule["rounds"] for each in trained]
    fewest, most = min(rounds), max(rounds)
    words = f"{fewest} to {most} rounds"
    if fewest == most:
        words = "1 round each" if most == 1 else f"{most} rounds each"
    rates = max(len(each.cell.learning_rates) for each in trained)
    return f"{words}, at {rates} learning rates" if rates else words
