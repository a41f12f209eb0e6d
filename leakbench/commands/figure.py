"""`figure`: a run as a picture."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from leakbench.commands.options import RunArgument
from leakbench.commands.output import say
from leakbench.commands.report import content_of, existing_run
from leakbench.errors import LeakbenchError


class Kind(StrEnum):
    """What a figure is of."""

    training = "training"
    ladder = "ladder"


def figure(
    run: RunArgument,
    kind: Annotated[
        Kind,
        typer.Argument(
            help="training: its curves and logs, round by round; ladder: rates, errors and their "
            "bounds against the number that a defense's rows differ in."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="File to write, .png or .svg; else RUN/KIND.png.")
    ] = None,
) -> None:
    """Draw a run: what its trainings went through, or how far noise pushes its attackers down."""
    store = existing_run(run)
    from leakbench import manifest

    known = manifest.read(store)
    path = out if out is not None else store.folder / f"{kind.value}.png"
    try:
        if kind is Kind.training:
            from leakbench.report import training_figure

            picture = training_figure.draw(
                known.plan, known.trainings, store.records(), path.suffix
            )
        else:
            from leakbench.report import ladder_figure

            picture = ladder_figure.draw(known.plan, content_of(store), path.suffix)
    except LeakbenchError as error:
        raise LeakbenchError(f"{store.folder}: {error}") from None
    try:
        path.write_bytes(picture)
    except OSError as error:
        raise LeakbenchError(f"{path}: cannot write: {error.strerror}") from None
    say(f"figure: {path}")
