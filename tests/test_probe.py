"""The probe: does a victim's result depend on who is computed beside it?"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from leakbench import native, probe
from leakbench.errors import LeakbenchError
from leakbench.probe import GROUPS, Finding, Shape, compared, rows, summary

DIGITS = Shape(model="cnn2", input_shape=(1, 28, 28), classes=10)
TABLE = Shape(model="mlp", input_shape=(30,), classes=2)


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A cache folder of its own, and no finding of this process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(probe.FORCED, raising=False)
    probe._kept.cache_clear()
    yield
    probe._kept.cache_clear()


def by_number(triangles: Tensor, values: Tensor, **options: Any) -> Tensor:
    """`solve_triangular` as a library that rounds by how many systems there are."""
    found: Tensor = SOLVE(triangles, values, **options)
    return found if len(triangles) <= 8 else found * (1 + torch.finfo(found.dtype).eps)


SOLVE = torch.linalg.solve_triangular


def test_a_library_that_rounds_by_the_neighbours_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.linalg, "solve_triangular", by_number)
    monkeypatch.setenv(native.CHOICE, "no")
    found = rows(DIGITS)
    assert not found.independent
    assert 0 < found.difference < 1


def test_several_examples_and_steps_are_tried_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.linalg, "solve_triangular", by_number)
    monkeypatch.setenv(native.CHOICE, "no")
    shape = Shape(model="mlp", input_shape=(6,), classes=2, batch_size=4, local_steps=2)
    assert not rows(shape).independent
    assert "4 examples, 2 steps" in str(shape)


def test_results_are_compared_victim_by_victim() -> None:
    whole = torch.arange(19.0)[:, None].expand(19, 3)
    results = [whole, whole[[8]], whole[[17, 8, 3]]]
    assert compared(GROUPS, results) == Finding(independent=True, difference=0.0)
    moved = whole[[17, 8, 3]].clone()
    moved[2, 1] = 3.03
    found = compared(GROUPS, [whole, whole[[8]], moved])
    assert not found.independent
    assert found.difference == pytest.approx(0.01, rel=1e-5)  # of 3


def test_what_is_not_finite_counts_as_different() -> None:
    whole = torch.zeros(19, 2)
    broken = whole[[8]].clone()
    broken[0, 0] = float("nan")
    assert not compared(GROUPS, [whole, broken, whole[[17, 8, 3]]]).independent


def test_a_finding_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = rows(TABLE)
    (kept,) = (tmp_path / "leakbench" / "probes").glob("*.json")

    def never(shape: Shape) -> Finding:
        raise AssertionError("tried again")

    monkeypatch.setattr(probe, "_tried", never)
    probe._kept.cache_clear()  # as a new process
    assert rows(TABLE) == first
    kept.write_text("{", encoding="utf-8")
    probe._kept.cache_clear()
    with pytest.raises(AssertionError, match="tried again"):
        rows(TABLE)


def test_another_arithmetic_is_another_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {probe._key(TABLE, "portable"), probe._key(TABLE, "fast"), probe._key(DIGITS, "fast")}
    assert len(names) == 3
    monkeypatch.setattr(probe, "processor", lambda: "another one")
    assert probe._key(TABLE, "fast") not in names


def test_a_cache_that_cannot_be_written_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    assert rows(TABLE).difference >= 0


def test_it_can_be_told_to_expect_the_worst(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(probe.FORCED, "dependent")
    found = rows(DIGITS)
    assert not found.independent
    assert summary({DIGITS: found}) == {"cnn2 on 1x28x28, float32, cpu": -1.0}
    monkeypatch.setenv(probe.FORCED, "independent")
    with pytest.raises(LeakbenchError, match="LEAKBENCH_ROWS: unknown value 'independent'"):
        rows(DIGITS)
