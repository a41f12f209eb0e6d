"""The picture of a ladder: what is drawn is what the report holds, and nothing is cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from leakbench import planning
from leakbench.errors import LeakbenchError
from leakbench.report.cells import build
from leakbench.report.content import BoundEntry, Report
from leakbench.report.figures import page_of
from leakbench.report.ladder_figure import LadderLine, ladder_rows, ladders_of
from leakbench.spec import Plan
from leakbench.statistics import Interval
from leakbench.suite import resolve

SIGMAS = [0.0, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 6.0]


@pytest.fixture(scope="module")
def plan() -> Plan:
    return resolve("ladder", "quick")


@pytest.fixture(scope="module")
def report(plan: Plan) -> Report:
    """Made-up numbers in the cells of the suite: every rate is 1 / (1 + sigma + variant)."""
    empty = build(plan, planning.plan_cells(plan, None, "cpu"), {}, {})
    variants = list(dict.fromkeys(cell.variant for cell in empty.cells))

    def filled(cell: Any) -> Any:
        sigma, number = SIGMAS[rows.index(cell.defense)], variants.index(cell.variant)
        share = 1 / (1 + sigma + number)
        asr = {name: Interval(share / (1 + (name != "strict")), 0.0, 1.0) for name in cell.asr}
        bound = BoundEntry(
            unbiased=sigma or None, attainable=sigma / 2 or None, ratio=None, rank=None,
            condition=None, verdict="",
        )  # fmt: skip
        return replace(
            cell, ok=cell.planned, missing=0, asr=asr, mse=1e-20 + sigma, ceiling=share,
            bound=bound, baselines=replace(cell.baselines, mean_image=0.06),
        )  # fmt: skip

    rows = [row.id for row in plan.defenses]
    return replace(empty, cells=tuple(map(filled, empty.cells)))


def test_lines_are_the_cells_of_an_attacker(plan: Plan, report: Report) -> None:
    untrained, trained = ladders_of(plan, report)
    assert untrained.parameter == "noise_multiplier"
    assert untrained.title.endswith("cnn2 (untrained)") and "pretrained" in trained.title
    lines = {(line.label, line.panel): line for line in untrained.lines}
    cpl = lines["cpl (adaptive), exact", "rates"]
    assert cpl.points == tuple((s, pytest.approx(1 / (1 + s))) for s in SIGMAS)
    named = lines["cpl (adaptive), identified", "rates"]
    assert [y for _, y in named.points] == [pytest.approx(0.5 / (1 + s)) for s in SIGMAS]
    assert (cpl.style, named.style, cpl.look) == ("-", "--", named.look)
    # The candidates' attacker names and draws nothing: one line of rates, none of errors.
    assert lines["candidates (adaptive), matched", "rates"].style == ":"
    errors = [line.label for line in untrained.lines if line.panel == "errors"]
    assert errors == [
        "cpl (adaptive)", "gauss_newton (adaptive)", "attainable", "unbiased bound", "mean image",
    ]  # fmt: skip
    assert lines["ceiling", "rates"].look is None
    # Where nothing is attainable or known there is no point.
    assert [x for x, _ in lines["attainable", "errors"].points] == SIGMAS[1:]
    looks = {line.look for line in untrained.lines if line.look is not None}
    assert looks == {0, 1, 2}


@pytest.mark.parametrize("width", [3.5, 7.16])
def test_nothing_is_cut(
    plan: Plan, report: Report, width: float, crowded: Callable[..., list[str]]
) -> None:
    rows = ladder_rows(plan, report)
    assert [len(row.panels) for row in rows] == [2, 2]
    assert crowded(rows, width) == []


def test_zero_is_left_of_all_others(plan: Plan, report: Report) -> None:
    (first, *_) = ladder_rows(plan, report)
    ticks = first.panels[0].ticks
    assert [float(words) for words in ticks.values()] == SIGMAS
    places = list(ticks)
    assert places == sorted(places)
    assert places[1:] == [pytest.approx(np.log10(sigma)) for sigma in SIGMAS[1:]]
    (axes, *_) = page_of([first]).axes
    assert list(axes.lines[-2].get_xdata()) == places  # the ceiling, before the broken axis
    assert axes.lines[-2].get_color() == "#7A7A7A"


def test_a_line_in_both_panels_has_one_name(plan: Plan, report: Report) -> None:
    names = [name.label for name in ladder_rows(plan, report)[0].names]
    assert names == [
        "cpl (adaptive), exact and error", "cpl (adaptive), identified",
        "gauss_newton (adaptive), exact and error", "gauss_newton (adaptive), identified",
        "candidates (adaptive), matched", "ceiling", "attainable", "unbiased bound", "mean image",
    ]  # fmt: skip


def test_a_part_of_a_run_is_drawn(plan: Plan, report: Report) -> None:
    some = [cell for cell in report.cells if cell.variant == "trained_cpl"][:3]
    (ladder,) = ladders_of(plan, replace(report, cells=tuple(some)))
    attacker: list[LadderLine] = [line for line in ladder.lines if line.look is not None]
    assert {len(line.points) for line in attacker} == {3}


def test_attackers_listed_inside_each_row_have_a_line_each(plan: Plan, report: Report) -> None:
    rows = [row.id for row in plan.defenses]
    turned = sorted(report.cells, key=lambda cell: rows.index(cell.defense))
    found = ladders_of(plan, replace(report, cells=tuple(turned)))
    assert {ladder.title: set(ladder.lines) for ladder in found} == {
        ladder.title: set(ladder.lines) for ladder in ladders_of(plan, report)
    }


def test_bounds_are_drawn_as_far_as_any_attacker_came(plan: Plan, report: Report) -> None:
    other = [cell for cell in report.cells if cell.variant == "trained_candidates"]
    first = [cell for cell in report.cells if cell.variant == "trained_cpl"][:2]
    (ladder,) = ladders_of(plan, replace(report, cells=(*first, *other)))
    (ceiling,) = [line for line in ladder.lines if line.label == "ceiling"]
    assert [x for x, _ in ceiling.points] == SIGMAS


def test_what_is_refused(plan: Plan, report: Report) -> None:
    with pytest.raises(LeakbenchError, match="no row of the ladder has a result to draw"):
        ladder_rows(plan, replace(report, cells=()))
    other = resolve("trained", "quick")
    with pytest.raises(LeakbenchError, match="no defense has rows that differ in one number"):
        ladder_rows(other, report)
