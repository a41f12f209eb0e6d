"""Epsilon over rounds against other accountants' code and closed forms."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from dp_accounting import dp_event, get_epsilon_gaussian
from dp_accounting.pld import pld_privacy_accountant
from dp_accounting.rdp import rdp_privacy_accountant

import leakbench as lb
from leakbench import planning
from leakbench.described import PlannedTraining
from leakbench.errors import LeakbenchError
from leakbench.privacy.account import epsilon
from leakbench.privacy.events import PrivacyEvent
from leakbench.records import Key, Record
from leakbench.report.epsilon_figure import Spending, epsilon_rows, spending_of
from leakbench.report.figures import page_of
from leakbench.spec import Plan
from leakbench.suite import resolve

DELTA = 1e-5
ROUNDS = [1, 2, 4, 5, 6, 7, 9, 10]
SUITE = """
schema = 1
name = "spent"
title = "Spent"
datasets = ["mnist"]
model = { name = "mlp" }
training = { mode = "federated", iterations = 4, clients = 8, batch_size = { "*" = 4 } }
defenses = [
  { id = "none", name = "none", label = "none" },
  { id = "a", name = "fed_cdp", label = "first", parameters = { noise_multiplier = 2.0 } },
  { id = "b", name = "fed_cdp", label = "second", parameters = { noise_multiplier = 3.0 } },
  { id = "c", name = "fed_cdp", label = "third", parameters = { noise_multiplier = 4.0 } },
]
[utility]
[profiles.quick.utility]
networks = 1
"""


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    path = tmp_path_factory.mktemp("spent") / "spent.toml"
    path.write_text(SUITE, encoding="utf-8")
    return resolve(str(path))


@pytest.fixture(scope="module")
def planned(plan: Plan) -> list[PlannedTraining]:
    return planning.plan_trainings(plan, None, "cpu")


def event(noise: float, *, sampled: bool, clip: float = 1.0) -> PrivacyEvent:
    """Ten rounds of 40 local steps."""
    return PrivacyEvent(
        noise_multiplier=noise, sensitivity=clip, sampling_rate=0.05 if sampled else 1.0,
        sampling="poisson" if sampled else "none", steps=400,
    )  # fmt: skip


def record(*events: PrivacyEvent, rounds: int = 10) -> Record:
    promised: dict[str, Any] = {
        **epsilon(events, DELTA, relation="add_remove").as_dict(),
        "events": [asdict(one) for one in events],
    }
    return {"status": "ok", "rounds": rounds, "privacy": promised}


@pytest.fixture(scope="module")
def records(planned: list[PlannedTraining]) -> dict[Key, Record]:
    """The second of two equal mechanisms clips elsewhere."""
    keys = [(each.identities[0], 0) for each in planned]
    nothing: Record = {"status": "ok", "rounds": 10, "privacy": {"epsilon": None, "events": []}}
    made = [
        nothing, record(event(2.0, sampled=True)), record(event(2.0, sampled=True, clip=4.0)),
        record(event(9.0, sampled=False)),
    ]  # fmt: skip
    return dict(zip(keys, made, strict=True))


@pytest.fixture(scope="module")
def spent(
    plan: Plan, planned: list[PlannedTraining], records: dict[Key, Record]
) -> tuple[Spending, Spending]:
    ((sampled, plain),) = spending_of(plan, planned, records).values()
    return sampled, plain


def test_equal_mechanisms_are_one_panel(spent: tuple[Spending, Spending]) -> None:
    assert [one.labels for one in spent] == [("first", "second"), ("third",)]


def test_sampled_lines_are_those_of_other_code(spent: tuple[Spending, Spending]) -> None:
    lines = spent[0].lines
    assert [rounds for rounds, _ in lines["pld"]] == ROUNDS
    assert "gdp" not in lines  # no bound under sampling
    for place in (0, -1):
        done, by_pld = lines["pld"][place]
        (_, by_rdp), (_, seen) = lines["moments"][place], lines["seen"][place]
        step = dp_event.PoissonSampledDpEvent(0.05, dp_event.GaussianDpEvent(2.0))
        every = dp_event.SelfComposedDpEvent(step, 40 * done)
        tight = pld_privacy_accountant.PLDAccountant().compose(every).get_epsilon(DELTA)
        assert by_pld == pytest.approx(tight, rel=2e-3)
        renyi = rdp_privacy_accountant.RdpAccountant().compose(every).get_epsilon(DELTA)
        assert by_rdp == pytest.approx(renyi, rel=0.02)
        # Of 40 steps a round an example is expected in 2, and whoever sees them has a Gaussian.
        exact = get_epsilon_gaussian(2.0 / math.sqrt(2 * done), DELTA)
        assert seen == pytest.approx(exact, rel=1e-6)


def test_lines_without_sampling_are_closed_forms(spent: tuple[Spending, Spending]) -> None:
    lines = spent[1].lines
    assert "seen" not in lines  # it is what the model's holder has
    for (done, by_gdp), (_, by_pld), (_, by_zcdp) in zip(
        lines["gdp"], lines["pld"], lines["zcdp"], strict=True
    ):
        std = 9.0 / math.sqrt(40 * done)
        assert by_gdp == pytest.approx(get_epsilon_gaussian(std, DELTA), rel=1e-6)
        assert by_pld == pytest.approx(by_gdp, rel=1e-3)
        rho = 1 / (2 * std**2)
        assert by_gdp < by_zcdp <= rho + 2 * math.sqrt(rho * math.log(1 / DELTA)) * (1 + 1e-9)


def test_points_are_drawn_and_nothing_is_cut(
    plan: Plan,
    planned: list[PlannedTraining],
    records: dict[Key, Record],
    spent: tuple[Spending, Spending],
    crowded: Callable[..., list[str]],
) -> None:
    rows = epsilon_rows(plan, planned, records)
    first, second = page_of(rows).axes
    drawn = [tuple(map(tuple, line.get_xydata().tolist())) for line in first.lines]
    assert drawn == list(spent[0].lines.values())
    least = min(points[-1][1] for points in spent[1].lines.values())
    assert second.get_ylim()[1] <= 1500 * least
    heads = [panel.head for panel in rows[0].panels]
    assert heads == [
        "first and 1 more: add or remove one example", "third: add or remove one example",
    ]  # fmt: skip
    seen = next(name.look for name in rows[0].names if name.label.startswith("seen"))
    others = [name.look for name in rows[0].names if name.look is not seen]
    assert seen["markerfacecolor"] == "none"  # a ring, of one round too
    assert all("markerfacecolor" not in look for look in others)
    assert crowded(rows, 7.16) == crowded(rows, 3.5) == []


def test_many_kinds_of_releases_have_the_recorded_end_alone(
    plan: Plan, planned: list[PlannedTraining]
) -> None:
    key = (planned[1].identities[0], 0)
    events = [
        PrivacyEvent(noise_multiplier=9 - n / 10, sensitivity=1.0, sampling_rate=0.05, steps=1)
        for n in range(20)
    ]
    made = record(*events, rounds=20)
    ((one,),) = spending_of(plan, planned, {key: made}).values()
    done = [rounds for rounds, _ in one.lines["pld"]]
    assert max(round for round in done if round != 20) <= 16
    assert one.lines["pld"][-1] == (20, made["privacy"]["epsilon"])


def test_the_last_point_is_the_recorded_epsilon() -> None:
    run = lb.load(Path(__file__).parent.parent / "results" / "cloak_table2-quick")
    known = run.described
    ((*some,),) = spending_of(known.plan, known.trainings, run.records).values()
    trained = [each for each in run.records.values() if each.get("kind") == "utility"]
    recorded = {each["privacy"]["epsilon"] for each in trained} - {None}
    assert {one.lines["pld"][-1][1] for one in some} == recorded
    assert len(some) == 6 and sum(len(one.labels) for one in some) == 30


def test_no_promise_is_one_sentence(
    plan: Plan, planned: list[PlannedTraining], records: dict[Key, Record]
) -> None:
    key = (planned[0].identities[0], 0)
    with pytest.raises(LeakbenchError, match="no training whose defense promises an epsilon"):
        epsilon_rows(plan, planned, {key: records[key]})
