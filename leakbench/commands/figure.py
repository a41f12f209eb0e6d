"""`figure`: a run as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from leakbench.commands.options import RunArgument
from leakbench.commands.output import end_of_reading, say
from leakbench.errors import LeakbenchError
from leakbench.report.kinds import FIGURES, FigureKind


def figure(
    run: RunArgument,
    kind: Annotated[
        FigureKind,
        typer.Argument(help="; ".join(f"{kind}: {words}" for kind, words in FIGURES.items())),
    ],
    out: Annotated[
        Path | None, typer.Option(help="File to write, .png, .svg or .pdf; else RUN/KIND.png.")
    ] = None,
    width: Annotated[
        float, typer.Option(help="Inches: both columns of a journal, or 3.5 for one of them.")
    ] = 7.16,
) -> None:
    """Draw what a run found, as PNG, SVG or PDF, for a page or a column of a paper."""
    from leakbench.loading import opened

    found = opened(run)
    path = out if out is not None else found.store.folder / f"{kind.value}.png"
    try:
        made = found.drawn().picture(kind, path.suffix, width=width)
    except LeakbenchError as error:
        raise LeakbenchError(f"{found.store.folder}: {error}") from None
    try:
        path.write_bytes(made)
    except OSError as error:
        raise LeakbenchError(f"{path}: cannot write: {error.strerror}") from None
    say(f"figure: {path}")
    end_of_reading(found.damage)
