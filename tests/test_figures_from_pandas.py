"""The lines of docs/reports.md that make figures from a run's table give the figures' numbers."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot
import pandas
import pytest

from leakbench.report.figures import page_of
from leakbench.report.frontier_figure import trade_offs
from leakbench.report.kinds import FigureKind

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "reports.md").read_text(encoding="utf-8")
SECTION = TEXT.split("### The same figures from pandas")[1].split("\n## ")[0]
FIRST, THRESHOLD, EFFORT, FRONTIER = re.findall(
    r"(?:^    .*\n|^\n(?=    ))+", SECTION, re.MULTILINE
)


def names(run: str, *snippets: str) -> dict[str, Any]:
    """What snippets of the document leave behind."""
    known: dict[str, Any] = {"RUN": ROOT / "results" / run}
    with matplotlib.rc_context({"backend": "agg"}):
        for snippet in snippets:
            exec(textwrap.dedent(snippet), known)
    return known


@pytest.fixture(autouse=True)
def _closed() -> Any:
    yield
    matplotlib.pyplot.close("all")


def test_a_figure_is_five_lines() -> None:
    for snippet in (THRESHOLD, EFFORT, FRONTIER):
        assert len(snippet.strip().splitlines()) <= 5


def test_threshold_and_effort_are_lines_of_the_figures() -> None:
    found = names("tifs_table3-quick", FIRST, THRESHOLD, EFFORT)
    drawn = found["run"].drawn()
    (first, *_) = drawn.rows(FigureKind.threshold)
    assert first.names[0].label == "non-private (adaptive)" and len(found["plain"]) == 16
    line = page_of([first]).axes[1].lines[0]  # of the four readings, the clamped squared error
    points = line.get_xydata()[1:-1]  # without the ends of the axis
    assert points[:, 0].tolist() == found["share"].index.tolist()
    assert points[:, 1].tolist() == found["share"].tolist()
    (first, *_) = drawn.rows(FigureKind.effort)
    points = page_of([first]).axes[0].lines[0].get_xydata()[1:-1]
    reached = found["reached"].groupby(level=0).max()
    line = pandas.Series(points[:, 1], index=points[:, 0]).groupby(level=0).max()
    assert line.tolist() == reached.tolist() and line.index.tolist() == reached.index.tolist()
    assert len(reached) > 3


def test_the_frontier_is_a_table_of_rows() -> None:
    found = names("cloak_table2-quick", FIRST, FRONTIER)
    ((_, points),) = trade_offs(found["run"].content()).items()
    table = found["table"].set_index("label")
    assert len(table) == len(points) == 31
    for point in points:
        assert point.named is not None
        row = table.loc[point.label]
        assert row["accuracy.value"] == point.accuracy.value
        assert row.named == point.named.value
        epsilon = row["privacy.epsilon"]
        assert (None if pandas.isna(epsilon) else epsilon) == point.epsilon
