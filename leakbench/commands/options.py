"""Options that several commands share, and the values they allow."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

RUNS = Path("results/runs")
"""Where runs go, and are looked for by name."""


class Device(StrEnum):
    """Where to compute."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


SuiteArgument = Annotated[str, typer.Argument(help="Name of a suite, or path of a .toml file.")]
ProfileOption = Annotated[str, typer.Option(help="Profile of the suite: how much to run.")]
DeviceOption = Annotated[Device, typer.Option(help="auto takes CUDA where there is one.")]
AttackOption = Annotated[
    str | None, typer.Option("--attack", help="Run this attack instead of the suite's.")
]
DefenseOption = Annotated[
    str | None,
    typer.Option(
        "--defense", help="Run only the row of this id, else this plugin with its defaults."
    ),
]
PluginsOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugins",
        metavar="DIR",
        help="Folder with attacks/, defenses/ or models/ of your own; also LEAKBENCH_PLUGINS.",
    ),
]
FastOption = Annotated[
    bool,
    typer.Option(
        "--fast",
        help="Let the libraries choose their kernels: a little faster, other bits elsewhere.",
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a key, e.g. attack.parameters.steps=50."
    ),
]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, or its name.")]
