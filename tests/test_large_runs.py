"""Reports of many records: read and summed up in one pass each, on a page that does not grow."""

from __future__ import annotations

import cProfile
import importlib.util
import pstats
from pathlib import Path
from types import ModuleType

import pytest

import leakbench as lb
from leakbench.report import renderings

BENCHMARK = Path(__file__).parent.parent / "benchmarks" / "reports.py"


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_of_reports", BENCHMARK)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def folders(benchmark: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    """A run of 160 records, and one of four times as many."""
    made = tuple(tmp_path_factory.mktemp("runs") / name for name in ("small", "large"))
    for folder, records in zip(made, (160, 640), strict=True):
        benchmark.write_run(folder, records, networks=2, datasets=["mnist"])
    return made


def counted(folder: Path) -> tuple[int, int, int]:
    """Records of a run, calls of functions that its page takes, and the page's size."""
    profile = cProfile.Profile()
    with profile:
        run = lb.load(folder)
        page = renderings.to_html(run.content())
    calls: int = pstats.Stats(profile).total_calls  # type: ignore[attr-defined]
    return len(run.records), calls, len(page)


def test_work_grows_with_the_records_and_the_page_does_not(folders: tuple[Path, ...]) -> None:
    counted(folders[0])  # imports
    records, calls, size = zip(*map(counted, folders), strict=True)
    assert records == (160, 640)
    assert calls[1] < 4.2 * calls[0]
    assert size[1] < 1.1 * size[0]


def test_large_runs_are_judged_as_small_ones(
    benchmark: ModuleType, folders: tuple[Path, ...]
) -> None:
    """The same trials over and over have the same rates, with narrower intervals."""
    source, large = lb.load(benchmark.SOURCE).content(), lb.load(folders[1]).content()
    digits = [cell for cell in source.cells if cell.dataset == "mnist"]
    for one, other in zip(digits, large.cells, strict=True):
        rate, again = one.asr["identified"], other.asr["identified"]
        assert other.judged == 2 * one.judged == 32
        assert again.value == pytest.approx(rate.value)
        assert again.high - again.low <= rate.high - rate.low
