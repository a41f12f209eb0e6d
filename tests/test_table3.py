"""What TIFS Table III's suite must show on real images, in a size that takes seconds or minutes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest

from leakbench import runner
from leakbench.data import data_root
from leakbench.metrics.rules import make_rule, succeeded
from leakbench.records import Record, Run
from leakbench.suite import resolve

NAIVE_ONLY = ("knowledge={naive={}}",)


def strict(record: Record) -> bool:
    """Judge one record under the suite's `strict` rule."""
    rule = make_rule(name="strict", kind="strict", threshold=0.01, clamp=True)
    return succeeded(rule, record)


def run_rows(
    folder: Path,
    dataset: str,
    defense: str,
    victims: int,
    steps: int,
    networks: int = 1,
    more: Sequence[str] = (),
) -> list[Record]:
    """Records of one row of the suite on one data set."""
    settings = (
        f'datasets=["{dataset}"]',
        f"profiles.quick.victims={victims}",
        f"profiles.quick.networks={networks}",
        f"profiles.quick.parameters.steps={steps}",
        "profiles.quick.snapshots=[]",
        *more,
    )
    plan = resolve("tifs_table3", defense=defense, settings=settings)
    outcome = runner.run(plan, folder, root=data_root())
    assert (outcome.errors, outcome.skipped) == (0, 0)
    return list(Run(folder).records().values())


def by_attacker(records: list[Record]) -> dict[str, list[Record]]:
    """Records grouped by what the attacker knows."""
    ordered = sorted(records, key=lambda record: str(record["knowledge"]))
    groups = itertools.groupby(ordered, key=lambda record: str(record["knowledge"]))
    return {knowledge: list(group) for knowledge, group in groups}


def rate(records: list[Record]) -> float:
    """Share of strict successes."""
    return sum(map(strict, records)) / len(records)


def test_clipping_alone_stops_only_the_naive_attacker(tmp_path: Path) -> None:
    found = by_attacker(run_rows(tmp_path, "mnist", "dp_baseline_mean", victims=8, steps=10))
    assert rate(found["naive"]) <= 0.25
    assert rate(found["adaptive"]) >= 0.9


def test_noise_passes_the_papers_rule_and_recovers_nobody(tmp_path: Path) -> None:
    records = run_rows(tmp_path, "mnist", "dp_baseline", victims=4, steps=4)
    assert all(record["mse_clamped"] < 0.70 for record in records)
    assert not any(strict(record) for record in records)
    # Even the start image passes that reading, before the first step.
    assert all(record["first_step"]["paper_mean_clamped"] == 0 for record in records)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dataset", "least"), [("mnist", 0.9), ("fashion_mnist", 0.9), ("cifar10", 0.8)]
)
def test_an_undefended_gradient_leaks(tmp_path: Path, dataset: str, least: float) -> None:
    records = run_rows(tmp_path, dataset, "none", victims=8, steps=150, networks=2, more=NAIVE_ONLY)
    assert rate(records) >= least


@pytest.mark.data
@pytest.mark.skipif(data_root() is None, reason="LEAKBENCH_DATA is not set")
def test_faces_leak_where_a_data_root_holds_them(tmp_path: Path) -> None:
    records = run_rows(tmp_path, "lfw", "none", victims=4, steps=50, more=NAIVE_ONLY)
    assert rate(records) >= 0.75
