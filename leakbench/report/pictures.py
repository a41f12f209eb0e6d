"""Every figure of a run by its kind; those that have nothing to show are left out of a page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from leakbench.errors import LeakbenchError
from leakbench.manifest import Manifest
from leakbench.records import Key, Record, Run
from leakbench.report import (
    epsilon_figure,
    frontier_figure,
    ladder_figure,
    outcome_figures,
    traces_figure,
    training_figure,
)
from leakbench.report.content import Report
from leakbench.report.figures import PAGE, PRINT, SCREEN, Row, written
from leakbench.report.kinds import FIGURES, FigureKind


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A run with all that its figures need, read once."""

    store: Run
    known: Manifest
    records: Mapping[Key, Record]
    content: Report

    @cached_property
    def outcomes(self) -> outcome_figures.Outcomes:
        """The trials of the worst attackers, for three figures."""
        return outcome_figures.outcomes_of(self.known.cells, self.records, self.content)

    def rows(self, kind: FigureKind) -> list[Row]:
        """What a figure consists of.

        Raises:
            LeakbenchError: nothing to draw.
        """
        plan = self.known.plan
        match kind:
            case FigureKind.training:
                return training_figure.training_rows(plan, self.known.trainings, self.records)
            case FigureKind.ladder:
                return ladder_figure.ladder_rows(plan, self.content)
            case FigureKind.epsilon:
                return epsilon_figure.epsilon_rows(plan, self.known.trainings, self.records)
            case FigureKind.frontier:
                return frontier_figure.frontier_rows(self.content)
            case FigureKind.traces:
                return traces_figure.traces_rows(self.outcomes, self.store.arrays)
            case FigureKind.printed:
                return outcome_figures.printed_rows(self.content)
            case FigureKind.threshold:
                return outcome_figures.threshold_rows(self.outcomes)
            case FigureKind.effort:
                return outcome_figures.effort_rows(plan, self.outcomes)

    def picture(
        self, kind: FigureKind, suffix: str, *, width: float = PAGE, dpi: int = PRINT
    ) -> bytes:
        """A figure as a file, so many inches wide.

        Raises:
            LeakbenchError: a suffix or width that `figures.written` refuses, or nothing to draw.
        """
        return written(self.rows(kind), suffix, width=width, dpi=dpi)

    def all_pictures(self) -> dict[str, bytes]:
        """Words of a figure -> PNG, of those that have something to show."""
        found = {}
        for kind, words in FIGURES.items():
            try:
                found[words] = self.picture(kind, ".png", dpi=SCREEN)
            except LeakbenchError:  # nothing to draw: a suite without a ladder or trainings
                continue
        return found
