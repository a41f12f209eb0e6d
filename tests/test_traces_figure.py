"""Loss and error step by step, against the same from pandas, and against records of a real run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from matplotlib.figure import Figure

import leakbench as lb
from leakbench import runner
from leakbench.errors import LeakbenchError
from leakbench.judging import Descent, packed
from leakbench.report.figures import page_of
from leakbench.report.kinds import FigureKind
from leakbench.report.measured import Trials
from leakbench.report.outcome_figures import Outcome
from leakbench.report.traces_figure import MOST_TRIALS, _draw, quartiles, traces_of, traces_rows
from leakbench.suite import resolve

LOSSES = [[8.0, 4.0, 2.0, 1.0], [9.0, 3.0], [7.0, 7.0, 6.0], [5.0], [6.0, 2.0, 2.5]]
ERRORS = [
    Descent(steps=[0, 2], evaluations=[0, 9], errors=[0.3, 0.1]),
    Descent(steps=[0, 1, 3], evaluations=[0, 4, 9], errors=[0.4, 0.2, 0.01]),
    Descent(steps=[0], evaluations=[0], errors=[0.5]),
    Descent(steps=[0, 1], evaluations=[0, 4], errors=[0.2, 0.05]),
    Descent(steps=[1], evaluations=[4], errors=[0.7]),
]


def outcome(count: int) -> Outcome:
    """Five trials to a file."""
    records: list[dict[str, Any]] = [
        {"status": "ok", "steps": 3, "host": {"arrays": {"file": f"{n // 5}.npz", "row": n % 5}}}
        for n in range(count)
    ]
    cell: Any = None  # of no use here
    trials = Trials(
        cell=cell, ends=Counter({"ok": count}), reason="", entering=[records], judged=[records]
    )
    return Outcome(label="a line, $x$", trials=trials)


def read(name: str, digest: str = "") -> dict[str, np.ndarray]:
    trace = np.full((5, 4), np.nan)
    for row, losses in enumerate(LOSSES):
        trace[row, : len(losses)] = losses
    return {"trace": trace, **packed("clamped", ERRORS)}


def test_lines_are_the_same_from_pandas() -> None:
    ((trace,),) = traces_of({"Digits": [outcome(5)]}, read).values()
    loss = pandas.DataFrame([dict(enumerate(one)) for one in LOSSES]).ffill(axis=1)
    assert trace.loss.tolist() == loss.to_numpy().tolist()
    error = pandas.DataFrame(
        [dict(zip(one.steps, one.errors, strict=True)) for one in ERRORS], columns=range(4)
    ).ffill(axis=1)
    np.testing.assert_array_equal(trace.error, error.to_numpy())
    # Of five trials the quartiles are the second, third and fourth, whatever the interpolation.
    for found, q in zip(quartiles(trace.loss), (0.25, 0.5, 0.75), strict=True):
        assert found.tolist() == loss.quantile(q).tolist()
    assert quartiles(trace.error)[1].tolist() == [0.4, 0.3, 0.2, 0.1]  # no number is the largest


def test_the_median_and_its_band_are_drawn(crowded: Callable[..., list[str]]) -> None:
    rows = traces_rows({"Digits": [outcome(5)]}, read)
    loss, error = page_of(rows).axes
    assert loss.lines[0].get_xydata().tolist() == [[0, 7], [1, 4], [2, 3], [3, 3]]
    assert error.lines[0].get_ydata().tolist() == [0.4, 0.3, 0.2, 0.1]
    corners = {tuple(point) for point in loss.collections[0].get_paths()[0].vertices.tolist()}
    assert {(0.0, 6.0), (0.0, 8.0), (3.0, 2.5), (3.0, 5.0)} <= corners
    assert crowded(rows, 7.16) == crowded(rows, 3.5) == []


def test_a_line_that_ended_early_reaches_the_end_and_equal_lines_show_their_marks() -> None:
    def short(name: str, digest: str = "") -> dict[str, np.ndarray]:
        return {name: rows[:, :2] if name == "trace" else rows for name, rows in read("").items()}

    first, second = outcome(5), outcome(5)
    (long,) = traces_of({"": [first]}, read)[""]
    (ended,) = traces_of({"": [second]}, short)[""]
    assert ended.loss.shape == (5, 2)
    figure = Figure()
    axes = figure.add_subplot()
    _draw(axes, [long.loss, ended.loss, ended.loss], most=3)
    assert axes.get_xlim() == (0, 3)
    assert [line.get_ydata().tolist() for line in axes.lines[1:]] == [[7, 4, 4, 4]] * 2
    assert len({line.get_markevery() for line in axes.lines}) == 3


def test_of_many_trials_the_first_are_read() -> None:
    opened = []

    def counting(name: str, digest: str = "") -> dict[str, np.ndarray]:
        opened.append(name)
        return read(name)

    ((trace,),) = traces_of({"Digits": [outcome(500)]}, counting).values()
    assert len(trace.loss) == MOST_TRIALS and opened == [f"{n}.npz" for n in range(10)]


def test_a_run_without_arrays_says_so_in_one_sentence() -> None:
    def missing(name: str, digest: str = "") -> dict[str, np.ndarray]:
        raise LeakbenchError(f"{name}: cannot be read")

    with pytest.raises(LeakbenchError, match=r"^no trial kept its arrays: [^.]*$"):
        traces_of({"Digits": [outcome(5)]}, missing)


def test_lines_begin_and_end_with_what_records_say(tmp_path: Path) -> None:
    """Two victims of one untrained network, two steps each, of a real attack."""
    runner.run(resolve(str(Path(__file__).parent / "tiny.toml")), tmp_path / "run", root=None)
    run = lb.load(tmp_path / "run")
    drawn = run.drawn()
    plain, noisy = traces_of(drawn.outcomes, run.store.arrays)["MNIST handwritten digits"]
    for trace, row in ((plain, "none"), (noisy, "dp")):
        records = [each for each in run.records.values() if each["row"] == row]
        assert trace.loss[:, 0].tolist() == [each["loss_start"] for each in records]
        starts = [each["baselines"]["start_image"] for each in records]
        assert trace.error[:, 0] == pytest.approx(starts, rel=1e-6)
        ends = np.array([each["mse_clamped"] for each in records])
        assert (trace.error[:, -1] <= ends * (1 + 1e-6)).all()
    assert (plain.error[:, -1] < plain.error[:, 0]).all()
    assert drawn.picture(FigureKind.traces, ".svg").startswith(b"<?xml")
