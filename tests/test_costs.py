"""What trainings cost: rounds to a target, sweeps, multiples of printed seconds; all formats."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import pytest

from leakbench import planning
from leakbench.described import PlannedTraining
from leakbench.record_types import SCHEMA, wrong
from leakbench.records import Key, Record
from leakbench.report import cells, costs, renderings
from leakbench.report.content import CostEntry, Report
from leakbench.spec import Plan
from leakbench.suite import resolve

SUITE = """
schema = 1
name = "priced"
title = "Priced"
datasets = ["mnist"]
model = { name = "mlp" }
training = { mode = "federated", iterations = 100, clients = 8, clients_a_round = 4, batch_size = { mnist = 4 } }
defenses = [
  { id = "none", name = "none", label = "undefended" },
  { id = "cdp", name = "fed_cdp", label = "Fed-CDP", parameters = { convention = "sum" } },
]
notes = [{ text = "Of the fast one.", variants = ["fast"], defenses = ["cdp"] }]

[utility]
stop_accuracy = 0.9
learning_rates = [0.1, 0.2]
variants = [
  { id = "fast", label = "fast" },
  { id = "slow", label = "slow", training = { iterations = 50 } },
]

[profiles.quick.utility]
networks = 3

[[printed_utility]]
dataset = "mnist"
variant = "fast"
columns = ["defense", "accuracy", "rounds", "seconds_per_iteration"]
rows = [["none", "0.95", "20", "0.0068"], ["cdp", "0.90", "40", "0.0224"]]
"""  # noqa: E501


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    path = tmp_path / "priced.toml"
    path.write_text(SUITE, encoding="utf-8")
    return resolve(str(path))


@pytest.fixture
def planned(plan: Plan) -> list[PlannedTraining]:
    return planning.plan_trainings(plan, None, "cpu")


def record(
    training: PlannedTraining,
    network: int,
    *,
    rounds: int = 100,
    seconds: float = 0.01,
    **fields: Any,
) -> Record:
    """As a training on the whole set writes it, reaching the target unless `stopped` says not."""
    made = {
        "schema": SCHEMA, "kind": "utility", "identity": training.identities[network],
        "dataset": "mnist", "row": training.cell.row, "network": network, "victim": 0,
        "status": "ok", "reason": "", "data": "full", "examples": 54_000, "rounds": rounds,
        "iterations": rounds, "accuracy": 0.9, "curve": [[0, 0.1], [rounds, 0.9]], "privacy": {},
        "learning_rate": 0.2, "sweep": [[0.1, 0.7, 0.71], [0.2, 0.8, 0.79]],
        "stopped": "accuracy", "log": [],
        "host": {"seconds_per_iteration": seconds, "seconds_per_client": seconds / 4},
        **fields,
    }  # fmt: skip
    assert not wrong(made)
    return made


def priced(
    plan: Plan, planned: list[PlannedTraining], **rows: list[dict[str, Any]]
) -> dict[str, CostEntry]:
    """Entries by row; `fast_cdp=[{...}, {...}]` are fields of its networks' records."""
    records: dict[Key, Record] = {}
    for each in planned:
        for network, fields in enumerate(rows.get(each.cell.row.replace("/", "_"), [])):
            records[each.identities[network], 0] = record(each, network, **fields)
    return {entry.row: entry for entry in costs.build(plan, planned, records)}


# ------------------------------------------------------------------------------ rounds


@pytest.mark.parametrize(
    ("rounds", "verdict"),
    [
        ([38, 40, 45], "reproduced"),
        ([10, 15, 60], "inconclusive"),  # resampled means reach below half of the printed 40
        ([3, 4, 5], "not reproduced"),
        ([79], "reproduced"),  # one network, so nothing but its number
        ([81], "not reproduced"),
    ],
)
def test_rounds_to_a_target_are_compared_within_a_factor_of_two(
    plan: Plan, planned: list[PlannedTraining], rounds: list[int], verdict: str
) -> None:
    entry = priced(plan, planned, fast_cdp=[{"rounds": n} for n in rounds])["fast/cdp"]
    assert entry.rounds_to_target.value == pytest.approx(sum(rounds) / len(rounds))
    assert entry.reached == len(rounds) and entry.rounds_done == tuple(rounds)
    assert entry.printed_rounds == "40"
    assert entry.rounds_verdict == verdict


def test_a_target_that_was_not_reached_is_said_to(
    plan: Plan, planned: list[PlannedTraining]
) -> None:
    never = {"stopped": "", "accuracy": 0.5}
    found = priced(plan, planned, fast_none=[never, never], fast_cdp=[{"rounds": 30}, never, never])
    assert found["fast/none"].rounds_verdict == "not reached in 100 rounds"
    assert found["fast/none"].rounds_to_target.value is None
    cdp = found["fast/cdp"]
    assert cdp.rounds_verdict == "not reached in 100 rounds by 2 of 3 networks"
    assert (cdp.reached, cdp.rounds_to_target.value) == (1, 30)
    text = renderings.to_markdown(report(plan, planned, list(found.values())))
    assert "0.9: not reached in 100 rounds" in text and "0.9: 30; 2 of 3 not in 100" in text


def test_fewer_rounds_than_the_files_say_nothing(tmp_path: Path) -> None:
    """Of each variant by its own rounds."""
    path = tmp_path / "priced.toml"
    path.write_text(SUITE.replace("networks = 3", "networks = 1\niterations = 60"), "utf-8")
    plan = resolve(str(path))
    made = planning.plan_trainings(plan, None, "cpu")
    found = priced(plan, made, fast_cdp=[{}], slow_cdp=[{}])
    assert found["fast/cdp"].rounds_verdict == found["fast/cdp"].verdict == "fewer rounds"
    assert plan.printed_utility["mnist", "fast/cdp"].of_rounds == 100


def test_a_number_of_the_way_is_compared_with_the_curve_there(tmp_path: Path) -> None:
    path = tmp_path / "priced.toml"
    points = 'columns = ["defense", "after", "accuracy"]\nrows = [["cdp", "7", "0.82"]]\n'
    also = f'\n[[printed_utility]]\ndataset = "mnist"\nvariant = "fast"\n{points}'
    path.write_text(SUITE + also, encoding="utf-8")
    plan = resolve(str(path))
    made = planning.plan_trainings(plan, None, "cpu")

    def entry(*shares: float, **fields: Any) -> CostEntry:
        curves = [{"curve": [[7, s], [100, 0.9]], "stopped": "", **fields} for s in shares]
        return priced(plan, made, fast_cdp=curves)["fast/cdp"]

    (point,) = entry(0.81, 0.82, 0.83).points
    assert (point.rounds, point.printed, point.verdict) == (7, "0.82", "reproduced")
    assert point.accuracy.value == pytest.approx(0.82)
    assert entry(0.5, 0.51, 0.5).points[0].verdict == "not reproduced"
    assert entry(0.82, data="sample").points[0].verdict == "sample data"
    assert entry().points[0].verdict == ""
    found = entry(0.81, 0.82, 0.83)
    text = renderings.to_markdown(report(plan, made, [found]))
    assert "7: 0.82 ✓, 0.820 [" in text and "0.90 ✓" in text
    assert json.loads(json.dumps(found.as_dict()))["points"][0]["printed"] == "0.82"


# ------------------------------------------------------------------------------ seconds


@pytest.mark.parametrize(
    ("own", "verdict"), [(0.033, "reproduced"), (0.017, "reproduced"), (0.1, "not reproduced")]
)
def test_printed_seconds_are_compared_as_multiples(
    plan: Plan, planned: list[PlannedTraining], own: float, verdict: str
) -> None:
    """0.0224 / 0.0068 = 3.29 times the undefended row's, on whatever machine."""
    found = priced(
        plan, planned, fast_none=[{"seconds": 0.01}] * 3, fast_cdp=[{"seconds": own}] * 3
    )
    entry = found["fast/cdp"]
    assert entry.times_undefended == pytest.approx(own / 0.01)
    assert entry.printed_times_undefended == pytest.approx(0.0224 / 0.0068)
    assert entry.seconds_verdict == verdict
    assert entry.seconds_per_client == pytest.approx(own / 4)
    assert found["fast/none"].seconds_verdict == ""  # 1 by definition


def test_a_row_is_compared_with_the_undefended_row_of_its_variant(
    plan: Plan, planned: list[PlannedTraining]
) -> None:
    found = priced(
        plan, planned, fast_none=[{"seconds": 0.01}], fast_cdp=[{"seconds": 0.02}],
        slow_none=[{"seconds": 0.05}], slow_cdp=[{"seconds": 0.2}],
    )  # fmt: skip
    assert found["fast/cdp"].times_undefended == pytest.approx(2)
    assert found["slow/cdp"].times_undefended == pytest.approx(4)
    assert found["slow/cdp"].printed_times_undefended is None


# ------------------------------------------------------------------------------ sweeps, formats


def report(plan: Plan, planned: list[PlannedTraining], entries: list[CostEntry]) -> Report:
    """A report with these costs."""
    return dataclasses.replace(cells.build(plan, [], {}, {}, planned), costs=tuple(entries))


def test_every_format_has_the_sweep_and_the_notes(
    plan: Plan, planned: list[PlannedTraining]
) -> None:
    found = priced(plan, planned, fast_none=[{}], fast_cdp=[{}, {"learning_rate": 0.1}])
    entry = found["fast/cdp"]
    assert entry.learning_rates == (0.2, 0.1)
    assert [(p.network, p.learning_rate, p.chosen) for p in entry.sweep] == [
        (0, 0.1, False), (0, 0.2, True), (1, 0.1, True), (1, 0.2, False),
    ]  # fmt: skip
    made = report(plan, planned, list(found.values()))
    markdown = renderings.to_markdown(made)
    assert "0.1, 0.2 (of 2)" in markdown
    folded = markdown.split("<details><summary>Learning rates: all that were tried</summary>")[1]
    assert "| 0.2 (chosen)" in folded.split("</details>")[0]
    line = next(line for line in markdown.splitlines() if line.startswith("| fast, Fed-CDP"))
    names = next(line for line in markdown.splitlines() if line.startswith("| method"))
    row = dict(zip(*([cell.strip() for cell in t.split("|")] for t in (names, line)), strict=True))
    assert (row["noise on"], row["notes"], row["printed"]) == ("sum", "1", "0.90 ✓")
    page = renderings.to_html(made)
    assert page.count("<details") == page.count("</details>") == 2
    values = json.loads(renderings.to_json(made))["costs"][1]
    assert values["sweep"][1] == {
        "network": 0, "learning_rate": 0.2, "held_out": 0.8, "accuracy": 0.79, "chosen": True,
    }  # fmt: skip
    lines = list(csv.DictReader(io.StringIO(renderings.to_csv(made))))
    assert lines[1]["training.learning_rates"] == "0.2;0.1"
    assert lines[1]["training.curve"] == "0:0.1;100:0.9"


def test_records_from_before_still_make_a_report(
    plan: Plan, planned: list[PlannedTraining]
) -> None:
    new = ("learning_rate", "sweep", "stopped", "log")
    old = record(planned[0], 0)
    kept = {name: value for name, value in old.items() if name not in new}
    kept["host"] = {"seconds_per_iteration": 0.5}
    assert not wrong(kept)
    (entry, *_) = costs.build(plan, planned, {(planned[0].identities[0], 0): kept})
    assert (entry.learning_rates, entry.sweep, entry.stopped) == ((0.1,), (), ("",))
    assert (entry.seconds_per_iteration, entry.seconds_per_client) == (0.5, None)


def test_a_long_curve_is_thinned_and_keeps_its_end(
    plan: Plan, planned: list[PlannedTraining]
) -> None:
    curve = [[n, n / 100] for n in range(101)]
    found = priced(plan, planned, fast_none=[{"curve": curve}])
    assert len(found["fast/none"].curve) == 101
    text = renderings.to_markdown(report(plan, planned, list(found.values())))
    shown = next(line for line in text.splitlines() if line.startswith("| fast, undefended"))
    assert "100: 1.000" in shown and 5 < shown.count(": ") < 30
