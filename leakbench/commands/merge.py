"""`merge`: runs of one suite as one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from leakbench.commands.output import end_of_reading, say
from leakbench.commands.report import print_answer, write_reports
from leakbench.commands.running import folder_of


def merge(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of the runs.")],
    out: Annotated[Path, typer.Option(help="Folder of the run that they make together.")],
) -> None:
    """Join runs of one suite, shards of it say, into one."""
    from leakbench import merging

    merged = merging.merge(runs, folder_of(out, out))
    for repair in merged.repairs:
        say(repair)
    print_answer(write_reports(out))
    say(
        f"{merged.present} of {merged.planned} trials are there; {out}/report.md, .html, .json, "
        ".csv"
    )
    end_of_reading(*merged.damages)
