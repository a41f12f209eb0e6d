"""`data`: data sets, what is here and how to get the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from leakbench.commands.output import print_json, say, show


def list_command(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """What is known, what is here, what is missing."""
    from leakbench.data.catalog import describe

    if as_json:
        print_json(describe())
        return
    for row in describe():
        show(f"{row['name']:<14} {row['status']:<16} {row['where']}")
        show(f"{'':<14} {row['title']}; licence: {row['licence']}")
        if row["status"] == "missing":
            show(f"{'':<14} get it: {row['how_to_get']}")


def prepare_command(
    dest: Annotated[Path, typer.Argument(help="Data root to lay out.")],
    names: Annotated[list[str] | None, typer.Argument(help="Data sets; all without.")] = None,
    source: Annotated[
        Path | None, typer.Option(help="Folder that already holds the archives: no download.")
    ] = None,
) -> None:
    """Download, check and lay out data sets; then set LEAKBENCH_DATA=DEST."""
    from leakbench.data.prepare import prepare

    prepare(dest, names or (), source=source, report=show)
    say(f"done; now set LEAKBENCH_DATA={dest}")
