"""Every figure of a run by its kind; those that have nothing to show are left out of a page."""

from __future__ import annotations

from leakbench.errors import LeakbenchError
from leakbench.manifest import Manifest
from leakbench.records import Run
from leakbench.report import ladder_figure, outcome_figures, training_figure
from leakbench.report.content import Report
from leakbench.report.kinds import FIGURES, FigureKind


def picture(store: Run, known: Manifest, content: Report, kind: FigureKind, suffix: str) -> bytes:
    """A figure as a file.

    Raises:
        LeakbenchError: another suffix than .png and .svg, or nothing to draw.
    """
    if kind is FigureKind.training:
        return training_figure.draw(known.plan, known.trainings, store.records(), suffix)
    if kind is FigureKind.ladder:
        return ladder_figure.draw(known.plan, content, suffix)
    if kind is FigureKind.printed:
        return outcome_figures.draw_printed(content, suffix)
    draw = (
        outcome_figures.draw_threshold
        if kind is FigureKind.threshold
        else outcome_figures.draw_effort
    )
    return draw(known.plan, known.cells, store.records(), content, suffix)


def all_pictures(store: Run, known: Manifest, content: Report) -> dict[str, bytes]:
    """Words of a figure -> PNG, of those that have something to show."""
    found = {}
    for kind, words in FIGURES.items():
        try:
            found[words] = picture(store, known, content, kind, ".png")
        except LeakbenchError:  # nothing to draw: a suite without a ladder, a run without trainings
            continue
    return found
