"""Leakage against accuracy: rates counted again from records, the frontier by trying all pairs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import leakbench as lb
from leakbench.errors import LeakbenchError
from leakbench.loading import LoadedRun
from leakbench.report.figures import page_of, written
from leakbench.report.frontier_figure import (
    TradeOff,
    frontier,
    frontier_rows,
    letters,
    trade_offs,
)
from leakbench.statistics import Interval

RUN = Path(__file__).parent.parent / "results" / "cloak_table2-quick"


@pytest.fixture(scope="module")
def run() -> LoadedRun:
    return lb.load(RUN)


@pytest.fixture(scope="module")
def points(run: LoadedRun) -> list[TradeOff]:
    ((title, found),) = trade_offs(run.content()).items()
    assert title == "MNIST handwritten digits"
    return found


def test_points_are_the_rates_and_accuracies_of_records(
    run: LoadedRun, points: list[TradeOff]
) -> None:
    records = run.frame()
    trivial = records[[f"baselines.{n}" for n in ("start_image", "mean_image", "class_mean")]]
    counted = records.assign(
        exact=(records.mse_clamped < 0.01) & (records.mse_clamped < 0.25 * trivial.min(axis=1)),
        named=records["rank"] == 1,
    )
    rates = counted.groupby(["row", "knowledge"])[["exact", "named"]].mean().groupby("row").max()
    trained = {each["row"]: each for each in run.records.values() if each.get("kind") == "utility"}
    labels = {row.label: row.id for row in run.described.plan.defenses}
    assert len(points) == 31 and {labels[point.label] for point in points} == set(trained)
    for point in points:
        row = labels[point.label]
        assert point.recovered is not None and point.named is not None
        assert point.recovered.value == rates.exact[row] and point.named.value == rates.named[row]
        assert point.accuracy.value == trained[row]["accuracy"]
        assert point.epsilon == trained[row]["privacy"]["epsilon"]


rates = st.integers(0, 5).map(lambda n: n / 5)


@settings(max_examples=200)
@given(st.lists(st.tuples(rates, rates), min_size=1, max_size=12))
def test_the_frontier_is_what_no_other_beats(points: list[tuple[float, float]]) -> None:
    beaten = {
        one for one in points for other in points
        if other != one and other[0] >= one[0] and other[1] <= one[1]
    }  # fmt: skip
    assert frontier(points) == sorted(set(points) - beaten)


def test_the_line_is_the_least_leakage_of_such_an_accuracy(points: list[TradeOff]) -> None:
    table = pandas.DataFrame(
        {"accuracy": [p.accuracy.value for p in points],
         "leak": [p.recovered.value if p.recovered else None for p in points]}
    )  # fmt: skip
    best = frontier(zip(table.accuracy, table.leak, strict=True))
    for asked in np.linspace(0, table.accuracy.max(), 50):
        least = table[table.accuracy >= asked].leak.min()
        # A step "pre": from one point of the frontier to the next its height is the next one's.
        assert next(leak for accuracy, leak in best if accuracy >= asked) == least


def test_error_bars_reach_to_the_ends_of_both_intervals(run: LoadedRun) -> None:
    content = run.content()
    costs = [replace(cost, accuracy=Interval(0.5, 0.4, 0.7)) for cost in content.costs[:1]]
    (row,) = frontier_rows(replace(content, costs=tuple(costs)))
    (point,) = trade_offs(replace(content, costs=tuple(costs)))["MNIST handwritten digits"]
    assert point.recovered is not None
    axes = page_of([row]).axes[0]
    bars = [c.get_segments()[0].tolist() for c in axes.collections if len(c.get_paths()) == 1]
    assert [[0.4, 1.0], [0.7, 1.0]] in bars
    assert [[0.5, pytest.approx(point.recovered.low)], [0.5, 1.0]] in bars
    assert point.recovered.low == pytest.approx(1 / (1 + 1.959964**2 / 8))  # Wilson, 8 of 8


def test_epsilon_is_in_words_and_whoever_promises_none_has_another_mark(
    run: LoadedRun, crowded: Callable[..., list[str]]
) -> None:
    rows = frontier_rows(run.content())
    assert crowded(rows, 7.16) == crowded(rows, 3.5) == []
    names = {name.label: name.look for name in rows[0].names}
    assert names["a  no noise (no guarantee)"]["marker"] == "s"
    least, most = (
        names["b  C=4, sigma=6 (epsilon 0.0334 at delta 1.0e-5)"],
        names["aa  C=4, sigma=1 (epsilon 0.602 at delta 1.0e-5)"],
    )
    assert least["marker"] == most["marker"] == "o"
    gray = [float(np.dot(look["color"][:3], (0.299, 0.587, 0.114))) for look in (least, most)]
    assert gray[0] < 0.2 and gray[1] > 0.7  # dark is little, in gray as well
    svg = written(rows, ".svg").decode()
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    assert {"a", "ad 0.602"} <= set(texts)


def test_points_have_letters() -> None:
    assert [letters(n) for n in (0, 25, 26, 51, 52, 702)] == ["a", "z", "aa", "az", "ba", "aaa"]


def test_nothing_of_both_is_one_sentence(run: LoadedRun) -> None:
    content = run.content()
    for without in (replace(content, costs=()), replace(content, cells=())):
        with pytest.raises(LeakbenchError, match="no defense was both trained and attacked"):
            frontier_rows(without)
