"""Every number that the papers print stands in a suite, an epsilon table, or under a reason."""

from __future__ import annotations

import csv
import importlib.util
import sys
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
SHARED = ROOT.parent / "shared" / "published"


@pytest.fixture(scope="module")
def coverage() -> ModuleType:
    """scripts/coverage.py as a module."""
    spec = importlib.util.spec_from_file_location("coverage_of", ROOT / "scripts" / "coverage.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["coverage_of"] = module  # where dataclasses look for their annotations
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def covered(coverage: ModuleType) -> list[Any]:
    places, reasons = coverage.spoken_of()
    return list(coverage.cover(coverage.published(), coverage.suites_of(places), reasons))


# ------------------------------------------------------------------------------ the project's


def test_no_number_is_missing(coverage: ModuleType, covered: list[Any]) -> None:
    places, _ = coverage.spoken_of()
    numbers = [each.number for each in covered]
    assert [str(each.number) for each in covered if not each.where] == []
    assert coverage.without_suite(places, numbers, coverage.suites_of(places)) == []


def test_the_page_is_what_make_coverage_writes(coverage: ModuleType) -> None:
    assert coverage.PAGE.read_text(encoding="utf-8") == coverage.page()


def test_no_suite_has_a_number_that_its_paper_does_not_print(coverage: ModuleType) -> None:
    places, _ = coverage.spoken_of()
    assert coverage.strangers(coverage.published(), coverage.suites_of(places)) == []


def test_every_reason_is_needed(coverage: ModuleType, covered: list[Any]) -> None:
    _, reasons = coverage.spoken_of()
    needed = [each.reason for each in covered]
    assert [reason.reason for reason in reasons if reason not in needed] == []


def test_every_number_is_of_a_place_on_the_page(coverage: ModuleType) -> None:
    places, _ = coverage.spoken_of()
    known = {(place.paper, place.place) for place in places}
    assert len(known) == len(places)
    for number in coverage.published():
        assert (number.paper, number.place.rstrip("ab")) in known or number.place == "text"


def test_places_name_suites_that_exist(coverage: ModuleType) -> None:
    named = {name for place in coverage.spoken_of()[0] for name in place.suites}
    assert named <= set(coverage.suite.names())


@pytest.mark.skipif(not SHARED.is_dir(), reason="the papers' tables are not here")
def test_the_index_is_that_of_the_papers_tables(coverage: ModuleType) -> None:
    theirs: Counter[tuple[str, ...]] = Counter()
    for path in SHARED.glob("*.csv"):
        with path.open(encoding="utf-8") as lines:
            for row in csv.DictReader(lines):
                del row["note"]
                theirs[tuple(row.values())] += 1
    with coverage.PUBLISHED.open(encoding="utf-8") as lines:
        ours = Counter(tuple(row.values()) for row in csv.DictReader(lines))
    assert ours == theirs and ours.total() == 2093


# ------------------------------------------------------------------------------ how it counts


def number(coverage: ModuleType, **fields: str) -> Any:
    """A printed number."""
    plain = {
        "paper": "tpds", "place": "table4", "dataset": "mnist", "method": "fed_cdp",
        "setting": "", "metric": "accuracy", "value": "0.980",
    }  # fmt: skip
    return coverage.Number(**(plain | fields))


@pytest.mark.parametrize(
    ("metric", "value", "kind", "expected"),
    [
        ("accuracy", "0.980", "accuracy", Decimal("0.98")),
        ("accuracy_percent", "43.42", "accuracy", Decimal("0.4342")),
        ("ms_per_iteration", "6.8", "seconds_per_iteration", Decimal("0.0068")),
        ("iterations", "7996", "rounds", Decimal(7996)),
        ("mse", "1.50e-05", "mse", Decimal("0.000015")),
        ("succeed", "Y", "succeeds", "Y"),
        ("resilient", "Y", "succeeds", "N"),
        ("target_accuracy", "0.928", "stop_accuracy", Decimal("0.928")),
    ],
)
def test_units_are_those_of_suites(
    coverage: ModuleType, metric: str, value: str, kind: str, expected: str | Decimal
) -> None:
    one = number(coverage, metric=metric, value=value)
    assert one.wanted == ("mnist", kind, expected)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tifs_table3", ("tifs", ["table3"])),
        ("bcalc_figure16_17", ("bcalc", ["figure16", "figure17"])),
        ("tpds_table4_large", ("tpds", ["table4"])),
        ("tpds_section4", ("", [])),
        ("tpds_presets", ("", [])),
        ("mine_table3", ("", [])),
    ],
)
def test_suites_say_their_tables(
    coverage: ModuleType, name: str, expected: tuple[str, list[str]]
) -> None:
    assert coverage.places_of(name) == expected


@pytest.fixture
def written(coverage: ModuleType, tmp_path: Path) -> str:
    """A suite with three printed numbers, of which two are equal."""
    text = (Path(__file__).parent / "tiny.toml").read_text(encoding="utf-8")
    text = text.replace('dataset = "mnist"\ndefense = "none"\nasr = "1"\nmse = "1.5e-05"', "")
    text = text.replace('[[printed]]\n\nattack_iterations = "11.5"\n', "")
    path = tmp_path / "tpds_table4.toml"
    path.write_text(
        text + '\n[utility]\nstop_accuracy = 0.9\n[utility.training]\nmode = "federated"\n'
        "clients = 20\nclients_a_round = 2\niterations = 2\nlearning_rate = 0.1\n"
        'batch_size = { mnist = 4 }\n[[printed_utility]]\ndataset = "mnist"\n'
        'columns = ["defense", "accuracy", "rounds"]\n'
        'rows = [["none", "0.98", "100"], ["dp", "0.980", "7"]]\n',
        encoding="utf-8",
    )
    return str(path)


def test_a_suite_must_have_a_number_as_often_as_the_table(
    coverage: ModuleType, written: str
) -> None:
    """0.98 stands twice in the suite: enough for two numbers, and for three it is not."""
    assert coverage.in_suite(written) == {
        ("mnist", "accuracy", Decimal("0.98")): 2,
        ("mnist", "rounds", Decimal(100)): 1,
        ("mnist", "rounds", Decimal(7)): 1,
        ("mnist", "stop_accuracy", Decimal("0.9")): 1,
    }
    suites = {("tpds", "table4"): [written]}
    twice = [number(coverage), number(coverage, method="fed_sdp")]
    assert [each.where for each in coverage.cover(twice, suites, [])] == ["suite"] * 2
    thrice = [*twice, number(coverage, method="none", value="0.98")]
    assert [each.where for each in coverage.cover(thrice, suites, [])] == [""] * 3
    reason = coverage.Reason(reason="so it is", methods=["none"])
    found = coverage.cover(thrice, suites, [reason])
    assert [each.where for each in found] == ["suite", "suite", "reason"]
    for_all = [number(coverage, dataset="", method=method) for method in ("none", "fed_sdp")]
    assert [each.where for each in coverage.cover(for_all, suites, [])] == ["suite"] * 2
    others = [
        number(coverage, dataset="lfw"),
        number(coverage, value="0.981"),
        number(coverage, metric="asr"),
        number(coverage, place="table5"),
        number(coverage, paper="icdcs"),
    ]
    assert [each.where for each in coverage.cover(others, suites, [])] == [""] * 5


def test_epsilons_are_looked_up_by_table_accountant_data_and_decay(coverage: ModuleType) -> None:
    setting = "C=4;sigma=6;delta=1e-5;accountant=zcdp"
    one = number(coverage, paper="tifs", place="table5", metric="epsilon", value="1.159",
                 setting=setting)  # fmt: skip
    rounds = number(coverage, place="table8", metric="rounds", value="55", dataset="lfw",
                    setting="decay=linear;target_epsilon=0.636")  # fmt: skip
    lines = coverage.epsilon_lines()
    assert coverage.in_epsilons(one, lines) and coverage.in_epsilons(rounds, lines)
    for other in (
        replace(one, value="1.16"),
        replace(one, place="table4"),
        replace(one, metric="accuracy"),
        replace(one, setting=setting.replace("zcdp", "ma")),
        replace(rounds, dataset="mnist"),
        replace(rounds, setting="decay=cyclic"),
        replace(rounds, setting=""),
    ):
        assert not coverage.in_epsilons(other, lines)


def test_all_that_a_reason_says_must_hold(coverage: ModuleType) -> None:
    reason = coverage.Reason(
        reason="so it is", places=["tpds table4"], datasets=["mnist"], setting="N=100",
        metrics=["accuracy"],
    )  # fmt: skip
    one = number(coverage, setting="N=100;Kt=5%")
    assert reason.holds(one)
    for name, value in (
        ("place", "table5"), ("paper", "icdcs"), ("dataset", "lfw"), ("setting", "N=10"),
        ("metric", "rounds"),
    ):  # fmt: skip
        assert not reason.holds(replace(one, **{name: value}))
    (found,) = coverage.cover([one], {}, [reason])
    assert (found.where, found.reason) == ("reason", reason)


def test_a_number_of_a_suite_that_is_not_printed_is_named(
    coverage: ModuleType, written: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = coverage.suite.read
    monkeypatch.setattr(coverage.suite, "read", lambda name: read(written))
    numbers = [number(coverage), number(coverage, metric="rounds", value="100")]
    found = coverage.strangers(numbers, {("tpds", "table4"): ["tpds_table4"]})
    assert found == ["tpds_table4: rounds 7 (mnist)"]


def test_the_closest_reading_is_counted(coverage: ModuleType, tmp_path: Path) -> None:
    """A rate with two readings, a distance, iterations; a training that is not judged."""
    columns = [
        "row", "verdict.asr.paper_mean_raw", "verdict.asr.paper_norm_raw",
        "verdict.mse.paper_mean_raw.value", "verdict.mse.paper_mean_raw.verdict",
        "verdict.attack_iterations.strict.verdict", "training.verdict", "verdict.summary",
    ]  # fmt: skip
    rows = [
        ["one", "not reproduced", "reproduced", "0.5", "inconclusive", "not reproduced", "", "x"],
        ["two", "inconclusive", "not reproduced", "0.5", "", "", "", "x"],
        ["three", "", "", "", "", "", "sample data", ""],
    ]
    with (tmp_path / "report.csv").open("w", newline="", encoding="utf-8") as out:
        csv.writer(out).writerows([columns, *rows])
    assert coverage.verdicts(tmp_path) == {
        "reproduced": 1, "inconclusive": 2, "not reproduced": 1, "not judged": 1,
    }  # fmt: skip


def test_committed_runs_are_of_suites(coverage: ModuleType) -> None:
    found = coverage.runs()
    assert found.keys() <= set(coverage.suite.names())
    assert "tifs_table3-quick" in [folder.name for folder in found["tifs_table3"]]
