"""`figure`: a run as a picture."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leakbench.commands.options import RunArgument
from leakbench.commands.output import say
from leakbench.commands.report import content_of, existing_run
from leakbench.errors import LeakbenchError

if TYPE_CHECKING:
    from leakbench.records import Run


class Kind(StrEnum):
    """What a figure is of."""

    threshold = "threshold"
    effort = "effort"
    printed = "printed"
    ladder = "ladder"
    training = "training"


def figure(
    run: RunArgument,
    kind: Annotated[
        Kind,
        typer.Argument(
            help="threshold: success against it; effort: success against gradient evaluations; "
            "printed: the papers' numbers against ours; ladder: rates, errors and their bounds "
            "against the number that a defense's rows differ in; training: its curves and logs, "
            "round by round."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="File to write, .png or .svg; else RUN/KIND.png.")
    ] = None,
) -> None:
    """Draw what a run found, as PNG or SVG."""
    store = existing_run(run)
    path = out if out is not None else store.folder / f"{kind.value}.png"
    try:
        picture = drawn(store, kind, path.suffix)
    except LeakbenchError as error:
        raise LeakbenchError(f"{store.folder}: {error}") from None
    try:
        path.write_bytes(picture)
    except OSError as error:
        raise LeakbenchError(f"{path}: cannot write: {error.strerror}") from None
    say(f"figure: {path}")


def drawn(store: Run, kind: Kind, suffix: str) -> bytes:
    """The figure as a file.

    Raises:
        LeakbenchError: another suffix than .png and .svg, or nothing to draw.
    """
    from leakbench import manifest
    from leakbench.report import ladder_figure, outcome_figures, training_figure

    known = manifest.read(store)
    if kind is Kind.training:
        return training_figure.draw(known.plan, known.trainings, store.records(), suffix)
    content = content_of(store)
    if kind is Kind.ladder:
        return ladder_figure.draw(known.plan, content, suffix)
    if kind is Kind.printed:
        return outcome_figures.draw_printed(content, suffix)
    draw = {
        Kind.threshold: outcome_figures.draw_threshold, Kind.effort: outcome_figures.draw_effort,
    }[kind]  # fmt: skip
    return draw(known.plan, known.cells, store.records(), content, suffix)
