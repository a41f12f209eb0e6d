"""Every figure of a run by its kind; those that have nothing to show are left out of a page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from leakbench.errors import LeakbenchError
from leakbench.manifest import Manifest
from leakbench.records import Key, Record
from leakbench.report import ladder_figure, outcome_figures, training_figure
from leakbench.report.content import Report
from leakbench.report.kinds import FIGURES, FigureKind


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A run with all that its figures need, read once."""

    known: Manifest
    records: Mapping[Key, Record]
    content: Report

    @cached_property
    def outcomes(self) -> outcome_figures.Outcomes:
        """The trials of the worst attackers, for two figures."""
        return outcome_figures.outcomes_of(self.known.cells, self.records, self.content)

    def picture(self, kind: FigureKind, suffix: str) -> bytes:
        """A figure as a file.

        Raises:
            LeakbenchError: another suffix than .png and .svg, or nothing to draw.
        """
        plan = self.known.plan
        match kind:
            case FigureKind.training:
                return training_figure.draw(plan, self.known.trainings, self.records, suffix)
            case FigureKind.ladder:
                return ladder_figure.draw(plan, self.content, suffix)
            case FigureKind.printed:
                return outcome_figures.draw_printed(self.content, suffix)
            case FigureKind.threshold:
                return outcome_figures.draw_threshold(self.outcomes, suffix)
            case FigureKind.effort:
                return outcome_figures.draw_effort(plan, self.outcomes, suffix)

    def all_pictures(self) -> dict[str, bytes]:
        """Words of a figure -> PNG, of those that have something to show."""
        found = {}
        for kind, words in FIGURES.items():
            try:
                found[words] = self.picture(kind, ".png")
            except LeakbenchError:  # nothing to draw: a suite without a ladder or trainings
                continue
        return found
