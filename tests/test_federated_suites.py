"""The suites of the two federated papers: their numbers, and the federation that each sets."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from functools import cache
from pathlib import Path

import pytest

from leakbench.forecast import EXAMPLE_SECONDS, GRADIENT_SECONDS
from leakbench.spec import Plan, UtilityCell
from leakbench.suite import resolve

PUBLISHED = Path(__file__).resolve().parents[2] / "shared" / "published"

METRICS = ("accuracy", "seconds_per_iteration", "rounds")
Found = Counter[tuple[str, str, str]]
"""(data set, metric, text) -> how often it stands in a suite."""

# Printed numbers of every suite; those of a method whose noise is read two ways stand there twice.
NUMBERS = {
    "icdcs_table1": {"accuracy": 5, "seconds_per_iteration": 5},
    "icdcs_table2": {"accuracy": 2 * 12 + 4 * 12},
    "icdcs_table3": {"seconds_per_iteration": 2 * 5 + 4 * 5},
    "icdcs_table4": {"accuracy": 2 * 30},
    "icdcs_table5": {"accuracy": 2 * 30},
    "tpds_table5": {"accuracy": 5 + 5 * 8 + 4 * 5 * 8},
    "tpds_table6": {"accuracy": 2 * 5 + 4 * 5},
    "tpds_table7": {"rounds": 5 + 2 * 5},
    "tpds_table8": {"accuracy": 5 + 12 * 5},
    "tpds_table9": {"seconds_per_iteration": 2 * 5 + 6 * 5},
    "tpds_table10": {"accuracy": 7 * 5, "seconds_per_iteration": 7 * 5},
}
# What stands in the files elsewhere: in the settings (rounds, targets, sizes), beside the attacks,
# or in the tables of epsilons.
ELSEWHERE = {
    "icdcs_table1": {"count", "features", "batch_size", "rounds"},
    "tpds_table6": {"epsilon"},
    "tpds_table7": {"target_accuracy", "epsilon"},
    "tpds_table8": {"target_epsilon", "rounds"},
    "tpds_table10": {"resilient"},
}

FIGURES = ("icdcs_figure3", "icdcs_figure4", "icdcs_figure5", "tpds_figure3")
DECAYING = "fed_alpha_cdp_sigma"
# As printed, typed in from the papers: (suite, data set, row, metric, text).
PRINTED = [
    ("icdcs_table1", "adult", "tables/none", "accuracy", "0.8424"),
    ("icdcs_table1", "breast_cancer", "time_tables/none", "seconds_per_iteration", "0.0049"),
    ("icdcs_table2", "mnist", "n100_k5/fed_cdp_decay", "accuracy", "0.833"),
    ("icdcs_table2", "mnist", "n1000_k20/fed_cdp_sum", "accuracy", "0.96"),
    ("icdcs_table2", "mnist", "n10000_k50/fed_sdp", "accuracy", "0.944"),
    ("icdcs_table3", "lfw", "images/fed_cdp_decay", "seconds_per_iteration", "0.1146"),
    ("icdcs_table4", "cifar10", "images/c0_5", "accuracy", "0.408"),
    ("icdcs_table4", "adult", "tables_sum/c8_sum", "accuracy", "0.796"),
    ("icdcs_table5", "lfw", "images/s0_5", "accuracy", "0.683"),
    ("icdcs_table5", "breast_cancer", "tables/s8", "accuracy", "0.979"),
    ("tpds_table5", "mnist", "images/sdp_c32", "accuracy", "0.214"),
    ("tpds_table5", "cifar10", "images_sum/alpha_c0_1_sum", "accuracy", "0.286"),
    ("tpds_table6", "lfw", "images/fed_alpha_cdp", "accuracy", "0.683"),
    ("tpds_table7", "cifar10", "images/fed_alpha_cdp", "rounds", "67"),
    ("tpds_table7", "breast_cancer", "tables/fed_sdp", "rounds", "3"),
    ("tpds_table8", "cifar10", "plain_images/none", "accuracy", "0.674"),
    ("tpds_table8", "breast_cancer", f"tables/{DECAYING}_cyclic", "accuracy", "0.986"),
    ("tpds_table9", "mnist", "images/fed_alpha_cdp", "seconds_per_iteration", "0.0230"),
    ("tpds_table10", "lfw", "time_images/quantile_clip", "seconds_per_iteration", "0.199"),
    ("tpds_table10", "cifar10", "images/adaclip_sum", "accuracy", "0.627"),
    ("tpds_table11", "mnist", "budget/fed_alpha_cdp_sum", "accuracy", "0.979"),
]  # fmt: skip


@cache
def planned(name: str, profile: str = "paper") -> Plan:
    return resolve(name, profile)


def numbers(name: str) -> Found:
    """The printed numbers of a suite's trainings, of their end and of points before it."""
    return Counter(
        (dataset, metric, text)
        for (dataset, _), printed in planned(name).printed_utility.items()
        for metric, text in (
            *((metric, getattr(printed, metric)) for metric in METRICS),
            *(("accuracy", text) for text in printed.points.values()),
        )
        if text is not None
    )


def cells(name: str) -> Mapping[tuple[str, str], UtilityCell]:
    return {(cell.dataset, cell.row): cell for cell in planned(name).utility}


# ------------------------------------------------------------------------------ printed numbers


@pytest.mark.parametrize("name", NUMBERS)
def test_it_has_every_number(name: str) -> None:
    found = Counter(metric for _, metric, _ in numbers(name).elements())
    assert found == NUMBERS[name]


@pytest.mark.parametrize(("name", "dataset", "row", "metric", "text"), PRINTED)
def test_it_prints_what_the_paper_prints(
    name: str, dataset: str, row: str, metric: str, text: str
) -> None:
    assert getattr(planned(name).printed_utility[dataset, row], metric) == text


@pytest.mark.parametrize("name", NUMBERS)
def test_it_prints_what_was_published(name: str) -> None:
    path = PUBLISHED / f"{name}.csv"
    if not path.is_file():
        pytest.skip("the published tables are not beside this checkout")
    published: Found = Counter()
    elsewhere = set()
    with path.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            dataset = row["dataset"].replace("cancer", "breast_cancer")
            metric, text = row["metric"], row["value"]
            if metric == "ms_per_iteration":
                metric, text = "seconds_per_iteration", f"{Decimal(text) / 1000:f}"
            if metric in ELSEWHERE.get(name, ()):
                elsewhere.add(metric)
                continue
            once = row["method"] in ("non_private", "fed_sdp")
            published[dataset, metric, text] += 1 if once else 2
    assert elsewhere == ELSEWHERE.get(name, set())
    assert numbers(name) == published


def test_resilience_stands_beside_the_attacks() -> None:
    printed = planned("tpds_table10").printed
    found = {row.removesuffix("_sum"): each.succeeds for (_, row), each in printed.items()}
    assert found == {
        "type2/none": "Y", "type2/quantile_clip": "Y", "type2/adaclip": "Y",
        "type2/fed_alpha_cdp_sigma": "N",
    }  # fmt: skip
    assert {dataset for dataset, _ in printed} == {"mnist", "lfw"} and len(printed) == 14


# ------------------------------------------------------------------------------ settings


def minutes(plan: Plan) -> float:
    """On two cores if every data set is there; see `leakbench.forecast`."""
    trained = sum(
        max(len(cell.learning_rates), 1) * schedule["rounds"] * schedule["local_steps"]
        * schedule["clients_a_round"] * schedule["batch_size"]
        for cell in plan.utility
        for schedule in [cell.schedule]
    )  # fmt: skip
    attacked = sum(int(cell.attack_parameters["steps"]) for cell in plan.cells)
    seconds = EXAMPLE_SECONDS * trained * plan.utility_networks
    seconds += GRADIENT_SECONDS * attacked * plan.networks * plan.victims
    return seconds / 2 / 60


@pytest.mark.parametrize("name", [*NUMBERS, "tpds_table11", *FIGURES])
def test_quick_profiles_end(name: str) -> None:
    assert minutes(planned(name, "quick")) <= 5


def test_every_data_set_is_federated_as_the_papers_say() -> None:
    """ICDCS Table I: examples and classes a client, local batch size, local steps, rounds."""
    expected = {
        "mnist": (500, "shards", 2, 5, 100), "cifar10": (400, "shards", 2, 4, 100),
        "lfw": (300, "shards", 15, 3, 60), "adult": (300, "iid", 2, 3, 10),
        "breast_cancer": (400, "iid", 2, 4, 3),
    }  # fmt: skip
    for name in ("icdcs_table4", "icdcs_table5", "tpds_table5", "tpds_table6", "tpds_table7"):
        for (dataset, _), cell in cells(name).items():
            schedule = cell.schedule
            assert expected[dataset] == tuple(
                schedule[key]
                for key in (
                    "examples_a_client", "partition", "classes_a_client", "batch_size", "rounds",
                )
            )  # fmt: skip
            assert (schedule["clients"], schedule["clients_a_round"]) == (1000, 100)
            assert schedule["local_steps"] == 100 and schedule["overlap"]
            assert cell.model == ("mlp" if dataset in ("adult", "breast_cancer") else "cnn3x3")
            assert len(cell.learning_rates) == 4
    tables = cells("tpds_table6")["adult", "tables/none"]
    assert tables.model_parameters["widths"] == (600, 100)
    assert tables.model_parameters["bias"] is False


def test_clients_of_breast_cancer_can_hold_400_of_what_is_not_held_out() -> None:
    cell = cells("tpds_table6")["breast_cancer", "tables/none"]
    assert 426 - round(cell.held_out * 426) >= cell.schedule["examples_a_client"] == 400


def test_icdcs_table2_has_its_twelve_columns() -> None:
    found = {
        cell.variant: (cell.schedule["clients"], cell.schedule["clients_a_round"])
        for cell in planned("icdcs_table2").utility
    }
    assert found == {
        f"n{clients}_k{share}": (clients, clients * share // 100)
        for clients in (100, 1000, 10_000)
        for share in (5, 10, 20, 50)
    }
    decay = cells("icdcs_table2")["mnist", "n100_k5/fed_cdp_decay"].defense_parameters
    assert (decay["clip"], decay["clip_end"], decay["decay"]) == (6.0, 2.0, "linear")


@pytest.mark.parametrize(
    ("name", "parameter", "values"),
    [
        ("icdcs_table4", "clip", {0.5, 1, 2, 4, 6, 8}),
        ("icdcs_table5", "noise_multiplier", {0.5, 1, 2, 4, 6, 8}),
        ("tpds_table5", "clip", {0.1, 0.5, 1, 2, 4, 8, 16, 32}),
    ],
)
def test_a_sweep_has_the_printed_values(name: str, parameter: str, values: set[float]) -> None:
    other = {"clip": "noise_multiplier", "noise_multiplier": "clip"}[parameter]
    found: dict[tuple[str, str | None], set[float]] = {}
    for cell in planned(name).utility:
        if cell.defense != "none":
            of = cell.defense_parameters
            found.setdefault((cell.defense, cell.convention), set()).add(of[parameter])
            assert of[other] == {"clip": 4.0, "noise_multiplier": 6.0}[other]
    assert all(each == values for each in found.values())
    assert {convention for _, convention in found} >= {"per_example", "sum"}


@pytest.mark.parametrize("name", ["icdcs_table3", "tpds_table9"])
def test_time_is_that_of_one_client(name: str) -> None:
    assert {cell.schedule["clients_a_round"] for cell in planned(name).utility} == {1}
    assert not any(cell.learning_rates for cell in planned(name).utility)
    ten = planned("tpds_table10").utility
    timed = {cell.schedule["clients_a_round"] for cell in ten if cell.variant.startswith("time")}
    assert timed == {1}


def test_training_stops_at_the_accuracy_of_fed_sdp() -> None:
    stops = {cell.dataset: cell.stop_accuracy for cell in planned("tpds_table7").utility}
    assert stops == {
        "mnist": 0.928, "cifar10": 0.627, "lfw": 0.635, "adult": 0.813, "breast_cancer": 0.979,
    }  # fmt: skip


POLICIES = ("linear", "staircase", "exponential", "cyclic")


def test_table8_looks_at_the_round_in_which_the_budget_was_spent() -> None:
    """TPDS Table 8; None: in the last one, after 100, 100, 60, 10 and 3."""
    expected = {
        "linear": (95, 95, 55, 8, None), "staircase": (95, 95, 55, 8, None),
        "exponential": (96, 96, 55, 8, None), "cyclic": (80, 80, 47, 7, None),
    }  # fmt: skip
    datasets = ("mnist", "cifar10", "lfw", "adult", "breast_cancer")
    compared = 0
    for (dataset, row), printed in planned("tpds_table8").printed_utility.items():
        cell = cells("tpds_table8")[dataset, row]
        if cell.defense != "fed_alpha_cdp_sigma":
            assert printed.accuracy and not printed.points
            continue
        parameters = cell.defense_parameters
        after = expected[str(parameters["decay"])][datasets.index(dataset)]
        assert list(printed.points) == ([] if after is None else [str(after)])
        assert (printed.accuracy is None) == (after is not None)
        assert after is None or after in cell.evaluate_at
        assert (parameters["noise_multiplier"], parameters["noise_multiplier_end"]) == (15.0, 4.85)
        compared += 1
    assert compared == 4 * 2 * 5
    table = planned("tpds_table8").printed_utility
    assert table["lfw", "images/fed_alpha_cdp_sigma_exponential"].points == {"55": "0.684"}
    assert table["adult", "tables/fed_alpha_cdp_sigma_staircase_sum"].points == {"8": "0.847"}


def test_table11_looks_where_each_accountant_stops() -> None:
    """TPDS Table 11: rounds and accuracies, each once where accountants agree."""
    expected = {
        "linear": {"97": "0.984", "95": "0.981"}, "staircase": {"97": "0.983", "95": "0.982"},
        "exponential": {"97": "0.986", "94": "0.981", "96": "0.983"},
        "cyclic": {"81": "0.982", "79": "0.979", "80": "0.979"},
    }  # fmt: skip
    table = planned("tpds_table11").printed_utility
    for end in ("", "_sum"):
        for policy, points in expected.items():
            assert table["mnist", f"budget/{DECAYING}_{policy}{end}"].points == points
        assert table["mnist", f"zcdp/{DECAYING}_cyclic{end}"].points == {"80": "0.981"}
    assert {cell.schedule["rounds"] for cell in planned("tpds_table11").utility} == {100}
    assert len(table) == 4 + 2 * 4 + 2


def test_table11_prints_what_was_published() -> None:
    path = PUBLISHED / "tpds_table11.csv"
    if not path.is_file():
        pytest.skip("the published tables are not beside this checkout")
    published: dict[tuple[str, str], dict[str, str]] = {}
    with path.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["method"]:
                place = row["method"], row["setting"].partition("accountant=")[2]
                published.setdefault(place, {})[row["metric"]] = row["value"]
    wanted = {(method, *sorted(each.items())) for (method, _), each in published.items()}
    found = set()
    for (_, row), printed in planned("tpds_table11").printed_utility.items():
        method = row.partition("/")[2].removesuffix("_sum")
        ends = {"100": printed.accuracy} if printed.accuracy else {}
        for after, accuracy in (printed.points | ends).items():
            found.add((method, ("accuracy", accuracy), ("rounds", after)))
    assert found == wanted


def test_figure5_prunes_before_it_clips() -> None:
    found = planned("icdcs_figure5")
    names = {cell.defense for cell in found.cells}
    assert {"prune", "prune + fed_sdp_client", "prune + fed_cdp", "prune + fed_cdp_decay"} < names
    pruned = [cell for cell in found.utility if "prune" in cell.defense]
    assert {cell.defense_parameters.get("prune_at", "example") for cell in pruned} == {"example"}
    assert {(row, each.succeeds) for (_, row), each in found.printed.items()} == {
        ("none", "Y"), ("prune_10", "Y"), ("prune_30", "Y"), ("fed_sdp", "Y"),
        ("prune_10_fed_sdp", "Y"), ("prune_30_fed_sdp", "Y"), ("fed_cdp", "N"),
        ("fed_cdp_decay", "N"),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["icdcs_figure4", "tpds_figure3"])
def test_a_figure_looks_at_all_types_of_leakage(name: str) -> None:
    assert {cell.row.split("/")[0] for cell in planned(name).cells} == {"type0", "type1", "type2"}
    assert {cell.dataset for cell in planned(name).cells} == {"lfw"}
