"""Work on a Ray cluster: the same bits as here, and a node that goes away costs nothing."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from leakbench import clusters, runner
from leakbench.clusters import Computes, Ray
from leakbench.errors import LeakbenchError
from leakbench.records import Key, Record, Run
from leakbench.runner import Outcome, Progress
from leakbench.spec import Plan
from leakbench.suite import resolve

ray = pytest.importorskip("ray")


@pytest.fixture
def plan(small_suite: Callable[..., Path]) -> Plan:
    """A small plan of 24 trials."""
    return resolve(str(small_suite(steps=3, victims=12)))


@pytest.fixture
def cluster() -> Iterator[Any]:
    """Two nodes on this machine, with a core each."""
    from ray.cluster_utils import Cluster

    environment = {name: os.environ[name] for name in clusters.PASSED_ON if name in os.environ}
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    made.second = made.add_node(num_cpus=1)
    ray.init(address=made.address, runtime_env={"env_vars": environment}, logging_level="ERROR")
    yield made
    ray.shutdown()
    made.shutdown()


def run(plan: Plan, folder: Path, **options: Any) -> Outcome:
    """Run in pieces of two victims, without a data root."""
    return runner.run(plan, folder, root=None, chunk_size=2, **options)


def results(folder: Path) -> dict[Key, Record]:
    """What is recorded, host fields apart."""
    return {
        key: {name: value for name, value in record.items() if name != "host"}
        for key, record in Run(folder).records().items()
    }


@pytest.mark.independent_rows
def test_a_cluster_started_here_gives_the_same_records(plan: Plan, tmp_path: Path) -> None:
    small = dataclasses.replace(plan, cells=plan.cells[:1])
    try:
        assert run(small, tmp_path / "ray", executor=Ray(None, workers=1)).ran == 12
    finally:
        ray.shutdown()
    run(small, tmp_path / "here")
    assert results(tmp_path / "ray") == results(tmp_path / "here")


@pytest.mark.slow
@pytest.mark.independent_rows
@pytest.mark.usefixtures("cluster")
def test_a_cluster_gives_the_same_records(plan: Plan, tmp_path: Path) -> None:
    executor = Ray("auto")
    assert executor.workers == 2
    assert run(plan, tmp_path / "ray", executor=executor).ran == 24
    run(plan, tmp_path / "here")
    assert results(tmp_path / "ray") == results(tmp_path / "here")


@pytest.mark.slow
@pytest.mark.independent_rows
def test_a_node_that_is_killed_costs_nothing(plan: Plan, tmp_path: Path, cluster: Any) -> None:
    seen: list[Progress] = []

    def kill(progress: Progress) -> None:
        seen.append(progress)
        if len(seen) == 2:
            cluster.remove_node(cluster.second, allow_graceful=False)

    outcome = run(plan, tmp_path / "ray", executor=Ray("auto"), report=kill)
    assert (outcome.ran, outcome.errors) == (24, 0)
    run(plan, tmp_path / "here")
    assert results(tmp_path / "ray") == results(tmp_path / "here")


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_a_node_that_computes_otherwise_is_refused(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Computes.here()
    other = Computes(code=here.code, torch="1.0", arithmetic=here.arithmetic)
    monkeypatch.setattr(Computes, "here", classmethod(lambda cls: other))
    with pytest.raises(LeakbenchError, match="computes otherwise"):
        run(plan, tmp_path / "ray", executor=Ray("auto"))


def test_a_cluster_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(LeakbenchError, match=r"no Ray cluster at '127\.0\.0\.1:1'"):
        Ray("127.0.0.1:1")
