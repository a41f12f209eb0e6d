"""`panel`: the fixed set of attackers against one defense, and what comes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from leakbench.commands.options import (
    RUNS,
    Device,
    DeviceOption,
    FastOption,
    PluginsOption,
    ProfileOption,
)
from leakbench.commands.output import write
from leakbench.commands.report import above_ceiling
from leakbench.commands.running import (
    WorkersOption,
    choose_arithmetic,
    device_of,
    end,
    folder_of,
    interruptible,
    plan_of,
    processes,
    showing_progress,
    write_results,
)
from leakbench.errors import LeakbenchError
from leakbench.registry import add_folders

SUITE, ROW = "standard_panel", "defended"
"""The suite that is run, and its row, in whose place the defense comes."""


def panel(
    defense: Annotated[str, typer.Argument(help="Name of a defense, or several with ' + '.")],
    parameters: Annotated[
        list[str] | None,
        typer.Option(
            "--parameters", metavar="KEY=VALUE", help="Of the defense, e.g. clip=4.0; repeatable."
        ),
    ] = None,
    victims: Annotated[
        int | None, typer.Option(min=1, help="Victims a network; else the profile's, 8 in quick.")
    ] = None,
    profile: ProfileOption = "quick",
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; else results/runs/panel-DEFENSE.")
    ] = None,
    device: DeviceOption = Device.auto,
    workers: WorkersOption = 0,
    plugins: PluginsOption = None,
    fast: FastOption = False,
) -> None:
    """Attack a defense with the panel, on an untrained and a trained network; print a verdict."""
    choose_arithmetic(fast)
    add_folders(plugins or ())
    plan = plan_of(
        SUITE, profile, None, None, settings(defense, parameters or [], profile, victims)
    )
    folder = folder_of(out, RUNS / f"panel-{defense.replace(' ', '')}")
    with interruptible(folder) as stop:
        from leakbench import manifest, runner
        from leakbench.data.catalog import data_root
        from leakbench.records import Run
        from leakbench.report import cells, panels

        where = device_of(device)
        with showing_progress() as report:
            outcome = runner.run(
                plan, folder, root=data_root(), device=where, executor=processes(where, workers),
                stop=stop, report=report,
            )  # fmt: skip
        broken = above_ceiling(write_results(folder, outcome))
        store = Run.existing(folder)
        known = manifest.read(store)
        content = cells.build(known.plan, known.cells, store.records(), known.facts)
        page = panels.to_markdown(known.plan, content)
        write(folder / "panel.md", page)
        print(page, end="")
    end(folder, outcome, broken)


def settings(defense: str, parameters: list[str], profile: str, victims: int | None) -> list[str]:
    """The command's options as settings of the suite.

    Raises:
        LeakbenchError: a parameter that is not KEY=VALUE or is given twice; a name with a quote.
    """
    if '"' in defense or "\\" in defense:
        raise LeakbenchError(f"panel: no defense is called {defense!r}; see `leakbench list`")
    row = f"defenses.{ROW}"
    found = [f'{row}.name="{defense}"', f'{row}.label="{defense}"', f"{row}.parameters={{}}"]
    named = set()
    for given in parameters:
        name, equals, _ = given.partition("=")
        name = name.strip()
        if not equals or not name.isidentifier():
            raise LeakbenchError(f"--parameters {given!a}: write KEY=VALUE, for instance clip=4.0")
        if name in named:
            raise LeakbenchError(f"--parameters: {name} is given twice; allowed: once")
        named.add(name)
        found.append(f"{row}.parameters.{given}")
    if victims is not None:
        found.append(f"profiles.{profile}.victims={victims}")
    return found
