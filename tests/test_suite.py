"""Suite files: the printed table is the paper's, and every mistake is one sentence."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import math
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakbench import suite as suites
from leakbench.errors import LeakbenchError
from leakbench.spec import Cell, Plan, canonical
from leakbench.suite import complete, resolve

ROOT = Path(__file__).resolve().parents[1]
TABLE3 = ROOT / "suites" / "tifs_table3.toml"
PUBLISHED = ROOT.parent / "shared" / "published" / "tifs_table3.csv"
PUBLISHED_TPDS = PUBLISHED.with_name("tpds_table1.csv")

DATASETS = ("mnist", "fashion_mnist", "cifar10", "lfw")

# TIFS Table III as printed, typed in from the paper and not from the suite:
# row -> (success rate, MSE, attack iterations), each for DATASETS.
PAPER: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "none": (
        ("1", "1", "0.973", "1"),
        ("1.50e-05", "2.59e-05", "2.20e-04", "2.20e-04"),
        ("11.5", "12.4", "28.3", "25"),
    ),
    "dp_baseline": (
        ("0.23", "0.25", "0.16", "0.13"),
        ("0.547", "0.588", "0.401", "0.352"),
        ("13.4", "14.1", "30.5", "26.3"),
    ),
    "quantile_clip": (
        ("0.64", "0.67", "0.47", "0.49"),
        ("0.097", "0.121", "0.203", "0.229"),
        ("12.9", "14.3", "30.5", "27.1"),
    ),
    "adaclip": (
        ("0.72", "0.76", "0.58", "0.61"),
        ("0.033", "0.041", "0.129", "0.144"),
        ("12.6", "14.1", "29.9", "26.4"),
    ),
    "dp_dyn_s_sigma": (
        ("0", "0", "0", "0"),
        ("0.886", "0.904", "0.912", "0.897"),
        ("300", "300", "300", "300"),
    ),
}

# TPDS Table 1 as printed, typed in from the paper: row -> (success rate, root mean square, attack
# iterations), each for TPDS_DATASETS.
TPDS_DATASETS = ("mnist", "cifar10", "lfw")
TPDS: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "dlg": (
        ("0.686", "0.754", "0.857"),
        ("0.145", "0.109", "0.089"),
        ("18.4", "114.5", "69.2"),
    ),
    "gradinv": (
        ("1", "0.985", "0.994"),
        ("0.122", "0.095", "0.071"),
        ("846", "2135", "1826"),
    ),
    "cpl": (
        ("1", "0.973", "1"),
        ("0.120", "0.094", "0.067"),
        ("11.5", "28.3", "25"),
    ),
}

CPL_DEFAULTS = {
    "steps": 300, "init": "patterned", "grid": 2, "distribution": "uniform", "line_search": False,
    "matching": "squared", "solver": "lbfgs", "lr": 0.01, "patience": 0,
    "restarts": 1, "total_variation": 0.0, "local_steps": "unroll",
}  # fmt: skip

TINY = Path(__file__).with_name("tiny.toml").read_text(encoding="utf-8")


# Three variants: all tables of the suite, all tables of its own, an attack that needs a grant.
VARIED = """
schema = 1
name = "varied"
title = "A suite with variants"
paper = "none"
source = "written for a test"
version = 1
seed = 7
datasets = ["mnist", "lfw"]

[model]
name = "lenet_cpl"
weights = "default"

[training]
mode = "federated"
learning_rate = 0.5
iterations = 9
batch_size = { mnist = 8, lfw = 3 }

[leak]
observations = 2

[attack]
name = "cpl"
parameters = { line_search = true, restarts = 2 }

[[variants]]
id = "plain"
label = "Plain"

[[variants]]
id = "own"
label = "Own"
datasets = ["mnist"]
[variants.model]
name = "cnn2"
pretraining = { epochs = 3 }
[variants.training]
mode = "federated"
local_steps = 4
batch_size = { mnist = 2 }
[variants.leak]
type = 0
[variants.attack]
name = "gradinv"
parameters = { lr = 0.2 }

[[variants]]
id = "matched"
label = "Matched"
datasets = ["mnist"]
[variants.attack]
name = "candidates"
grants = ["labels", "candidates", "labels"]
knowledge = ["adaptive"]

[knowledge.naive]
[knowledge.adaptive]
parameters = { line_search = false }

[[defenses]]
id = "none"
name = "none"
label = "no defense"

[[defenses]]
id = "dp"
name = "dp_baseline"
label = "DP"
datasets = ["mnist"]

[[rules]]
name = "strict"
label = "strict"
kind = "strict"
threshold = 0.01

[gallery]
variant = "own"
defense = "dp"

[[printed]]
dataset = "mnist"
variant = "plain"
defense = "none"
asr = "1"
rmse = "0.12"
attack_iterations = "11.5"

[[notes]]
text = "About one of them."
variants = ["own"]

[profiles.quick]
networks = 1
victims = 8
parameters = { steps = 20 }
[profiles.quick.variants]
own = { steps = 30 }
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], str]:
    """Write a suite file and give its path."""

    def written(text: str) -> str:
        path = tmp_path / "bad.toml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return written


def replaced(old: str, new: str) -> str:
    """The tiny suite with one piece exchanged."""
    assert TINY.count(old) == 1, old
    return TINY.replace(old, new)


def varied(old: str, new: str) -> str:
    """The suite with variants with one piece exchanged."""
    assert VARIED.count(old) == 1, old
    return VARIED.replace(old, new)


def error_of(suite: str, profile: str = "quick", **options: object) -> str:
    """The one sentence a wrong suite ends with."""
    with pytest.raises(LeakbenchError) as caught:
        resolve(suite, profile, **options)  # type: ignore[arg-type]
    text = str(caught.value)
    assert text and "\n" not in text
    return text


# ------------------------------------------------------------------------------ what is shipped


@pytest.mark.parametrize("path", sorted((ROOT / "suites").glob("[!_]*.toml")), ids=lambda p: p.stem)
def test_every_suite_resolves_in_every_profile(path: Path) -> None:
    assert path.stem in suites.names()
    parsed, _, _ = suites.read(path.stem)
    assert parsed.name == path.stem
    assert {"quick", "paper"} <= set(parsed.profiles)
    for profile in parsed.profiles:
        plan = resolve(path.stem, profile)
        assert plan.cells or plan.utility
        assert plan.networks * plan.victims > 0 or not plan.cells


def as_table(plan: Plan) -> dict[str, tuple[tuple[str, ...], ...]]:
    """The printed numbers of a plan, arranged like PAPER."""
    return {
        row: tuple(
            tuple(getattr(plan.printed[dataset, row], field) for dataset in DATASETS)
            for field in ("asr", "mse", "attack_iterations")
        )
        for row in PAPER
    }


def test_table3_prints_what_the_paper_prints() -> None:
    plan = resolve("tifs_table3", "paper")
    assert set(plan.printed) == {(dataset, row) for dataset in DATASETS for row in PAPER}
    assert as_table(plan) == PAPER


def test_table3_prints_what_was_published() -> None:
    if not PUBLISHED.is_file():
        pytest.skip("the published tables are not beside this checkout")
    methods = {
        "none": "non_private",
        "dp_baseline": "dp_baseline",
        "quantile_clip": "quantile_clip",
        "adaclip": "adaclip",
        "dp_dyn_s_sigma": "dp_dyn_s_sigma",
    }
    with PUBLISHED.open(encoding="utf-8") as file:
        found = {(r["dataset"], r["method"], r["metric"]): r["value"] for r in csv.DictReader(file)}
    plan = resolve("tifs_table3", "paper")
    compared = 0
    for (dataset, row), printed in plan.printed.items():
        for metric in ("asr", "mse", "attack_iterations"):
            assert getattr(printed, metric) == found[dataset, methods[row], metric]
            compared += 1
    assert compared == 60


def test_table3_sets_what_the_paper_says() -> None:
    plan = resolve("tifs_table3", "paper")
    cells = {(c.dataset, c.defense_id, c.knowledge): c for c in plan.cells}
    sizes = {"mnist": 600, "fashion_mnist": 600, "cifar10": 500, "lfw": 22}
    for dataset, size in sizes.items():
        cell = cells[dataset, "dp_baseline", "naive"]
        assert cell.batch_size == size
        assert cell.attack_parameters["steps"] == 300
        assert cell.defense_parameters["clip"] == 4.0
        assert cell.defense_parameters["noise_multiplier"] == 6.0
        assert cell.convention == "per_example"
    assert cells["mnist", "dp_dyn_s_sigma_15", "naive"].defense_parameters["noise_multiplier"] == 15
    assert cells["mnist", "none", "adaptive"].attack_parameters["line_search"] is True
    assert cells["mnist", "none", "naive"].attack_parameters["line_search"] is False


def test_tpds_table1_prints_what_the_paper_prints() -> None:
    plan = resolve("tpds_table1", "paper")
    assert set(plan.printed) == {(d, f"{row}/none") for d in TPDS_DATASETS for row in TPDS}
    for row, numbers in TPDS.items():
        found = [plan.printed[dataset, f"{row}/none"] for dataset in TPDS_DATASETS]
        assert tuple(p.asr for p in found) == numbers[0]
        assert tuple(p.distance for p in found) == tuple(("rmse", text) for text in numbers[1])
        assert tuple(p.attack_iterations for p in found) == numbers[2]


def test_tpds_table1_prints_what_was_published() -> None:
    if not PUBLISHED_TPDS.is_file():
        pytest.skip("the published tables are not beside this checkout")
    with PUBLISHED_TPDS.open(encoding="utf-8") as file:
        published = {
            (r["dataset"], r["method"], r["metric"]): r["value"] for r in csv.DictReader(file)
        }
    plan = resolve("tpds_table1", "paper")
    ours = {
        (dataset, printed.variant, metric): getattr(printed, metric)
        for (dataset, _), printed in plan.printed.items()
        for metric in ("asr", "rmse", "attack_iterations")
    }
    assert ours == published
    assert len(ours) == 27


def test_tpds_table1_sets_what_the_paper_says() -> None:
    cells = {c.row: c for c in resolve("tpds_table1", "paper").cells if c.dataset == "lfw"}
    assert {row: cell.attack_parameters["steps"] for row, cell in cells.items()} == {
        "dlg/none": 300, "gradinv/none": 2500, "cpl/none": 300, "cpl_restarts_4/none": 300,
    }  # fmt: skip
    assert {cell.batch_size for cell in cells.values()} == {1}
    assert cells["cpl/none"].attack_parameters["restarts"] == 1
    assert cells["cpl_restarts_4/none"].attack_parameters["restarts"] == 4


def published(table: str) -> list[dict[str, str]]:
    """Rows of a published table, settings spelled out."""
    path = PUBLISHED.with_name(f"{table}.csv")
    if not path.is_file():
        pytest.skip("the published tables are not beside this checkout")
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [
        row | dict(pair.split("=") for pair in row["setting"].split(";") if "=" in pair)
        for row in rows
    ]


def test_yes_or_no_tables_print_what_was_published() -> None:
    for suite, success, leaks in (
        ("tpds_table3", {"resilient": {"Y": "N", "N": "Y"}},
         {"type0": ["type0"], "type1": ["type1"], "type2": ["type2"]}),
        ("icdcs_table7", {"succeed": {"Y": "Y", "N": "N"}},
         {"type0&1": ["type0", "type1"], "type2": ["type2"]}),
    ):  # fmt: skip
        plan = resolve(suite, "paper")
        ids = {"non_private": "none"} if suite == "icdcs_table7" else {}
        compared = 0
        for row in published(suite):
            for variant in leaks[row["leak"]]:
                defense = ids.get(row["method"], row["method"])
                printed = plan.printed[row["dataset"], f"{variant}/{defense}"]
                if row["metric"] in success:
                    assert printed.succeeds == success[row["metric"]][row["value"]]
                else:
                    assert getattr(printed, row["metric"]) == row["value"]
                compared += 1
        assert compared == 3 * len(plan.printed)
    # By hand, where the tables are not: TPDS Table 3, MNIST, type 2, and the odd pair of cells.
    plan = resolve("tpds_table3", "paper")
    one = plan.printed["mnist", "type2/fed_sdp_client"]
    assert (one.succeeds, one.rmse, one.attack_iterations) == ("Y", "0.0008", "7")
    odd = [plan.printed["mnist", f"type{n}/quantile_clip"].rmse for n in (0, 1)]
    assert odd == ["0.4113", "0.5113"]


def test_accuracies_are_those_that_were_published() -> None:
    plan = resolve("cloak_table2", "paper")
    ids = {
        (row["C"], row["sigma"]): f"c{row['C'].replace('.', '_')}_s{row['sigma']}"
        for row in published("cloak_table2")
    }
    assert len(ids) == 30
    for row in published("cloak_table2"):
        place = row["dataset"], ids[row["C"], row["sigma"]]
        ours = plan.printed_utility[place].accuracy
        found = ours if row["metric"] == "accuracy" else plan.printed[place].asr
        assert found == row["value"]


def test_tpds_table4_prints_what_was_published() -> None:
    printed = resolve("tpds_table4", "paper").printed_utility
    rows = {"non_private": ["none"], "fed_sdp": ["fed_sdp"]}
    rows |= {name: [name, f"{name}_sum"] for name in ("fed_cdp", "fed_alpha_cdp")}
    compared = 0
    for row in published("tpds_table4"):
        variant = "n100_k10"  # one time is printed for all columns
        if row["metric"] == "accuracy":
            variant = f"n{row['N']}_k{row['Kt'].removesuffix('%')}"
        for defense in rows[row["method"]]:
            assert getattr(printed["mnist", f"{variant}/{defense}"], row["metric"]) == row["value"]
            compared += 1
    assert compared == (12 + 1) * 6
    # By hand, where the tables are not.
    assert printed["mnist", "n10000_k50/fed_alpha_cdp"].accuracy == "0.98"


def test_tpds_table4_trains_the_clients_that_the_paper_has() -> None:
    plan = resolve("tpds_table4", "paper")
    found = {cell.row: cell.schedule for cell in plan.utility}
    assert len(found) == 72
    one = found["n10000_k20/fed_cdp"]
    assert (one["clients"], one["clients_a_round"], one["examples_a_client"]) == (10_000, 2000, 500)
    assert all(s["overlap"] and s["rounds"] == s["local_steps"] == 100 for s in found.values())
    assert next(cell.row for cell in resolve("tpds_table4").utility) == "n100_k10/none"
    assert len(resolve("tpds_table4").utility) == 6


def test_a_profile_runs_its_own_data_sets(write: Callable[[str], str]) -> None:
    quick, paper = (resolve("cloak_table2", profile) for profile in ("quick", "paper"))
    assert {cell.dataset for cell in (*quick.cells, *quick.utility)} == {"mnist"}
    assert {cell.dataset for cell in paper.cells} == {"mnist", "cifar10", "lfw"}
    assert len(quick.utility) == 31 and len(quick.cells) == 62
    text = error_of(write(varied("[profiles.quick]\n", '[profiles.quick]\ndatasets = ["mnits"]\n')))
    assert "key profiles.datasets" in text and "did you mean 'mnist'?" in text


# ------------------------------------------------------------------------------ what is right


def test_tiny_suite_resolves_with_all_defaults_spelled_out(write: Callable[[str], str]) -> None:
    plan = resolve(write(TINY))
    assert [str(cell) for cell in plan.cells] == ["mnist/none/cpl/naive", "mnist/dp/cpl/naive"]
    spec = plan.cells[1].spec()
    assert spec["attack_parameters"] == CPL_DEFAULTS | {"steps": 2}
    assert set(spec["defense_parameters"]) == {"clip", "noise_multiplier", "convention"}
    assert not {"variant", "defense_id", "label", "row"} & set(spec)
    assert canonical(spec) == canonical(plan.cells[1].spec())


def test_settings_reach_deep_keys_and_list_items(write: Callable[[str], str]) -> None:
    plan = resolve(
        write(TINY),
        settings=[
            "attack.parameters.steps=5",
            "defenses.1.parameters.convention=sum",
            "defenses.1.parameters.clip = 2",
            "profiles.quick.parameters.line_search=true",
            "datasets.0=fashion_mnist",
            "training.batch_size={fashion_mnist=4}",
            "printed=[]",
            "title=two words",
        ],
    )
    cell = plan.cells[1]
    assert cell.dataset == "fashion_mnist"
    assert cell.batch_size == 4
    assert cell.attack_parameters == CPL_DEFAULTS | {"steps": 5, "line_search": True}
    assert cell.defense_parameters["convention"] == "sum"
    assert cell.defense_parameters["clip"] == 2
    assert plan.title == "two words"


def test_a_run_may_leave_out_data_sets_the_file_speaks_of() -> None:
    plan = resolve("tifs_table3", settings=['datasets=["mnist"]'])
    assert {cell.dataset for cell in plan.cells} == {"mnist"}
    assert len({cell.defense_id for cell in plan.cells}) == 10


def test_another_attack_drops_parameters_it_does_not_have(write: Callable[[str], str]) -> None:
    plan = resolve(write(TINY), attack="start_image", defense="dp")
    assert [str(cell) for cell in plan.cells] == ["mnist/dp/start_image/naive"]
    assert plan.cells[0].attack_parameters == {"grid": 2}
    assert not plan.printed  # the paper's numbers are another attack's


def test_a_defense_that_is_no_row_runs_with_its_defaults(write: Callable[[str], str]) -> None:
    plan = resolve(write(TINY), defense="adaclip")
    assert [cell.defense_id for cell in plan.cells] == ["adaclip"]


# ------------------------------------------------------------------------------ variants


def test_every_variant_makes_a_row_of_every_defense(write: Callable[[str], str]) -> None:
    plan = resolve(write(VARIED))
    assert [str(cell) for cell in plan.cells] == [
        "mnist/plain/none/cpl/naive",
        "mnist/plain/none/cpl/adaptive",
        "mnist/plain/dp/cpl/naive",
        "mnist/plain/dp/cpl/adaptive",
        "mnist/own/none/gradinv/naive",
        "mnist/own/none/gradinv/adaptive",
        "mnist/own/dp/gradinv/naive",
        "mnist/own/dp/gradinv/adaptive",
        "mnist/matched/none/candidates/adaptive",
        "mnist/matched/dp/candidates/adaptive",
        # Only the first variant, and only one defense, are for this data set.
        "lfw/plain/none/cpl/naive",
        "lfw/plain/none/cpl/adaptive",
    ]
    assert set(plan.printed) == {("mnist", "plain/none")}


def test_labels_name_the_defense_where_there_are_several(write: Callable[[str], str]) -> None:
    several = {cell.row: cell.label for cell in resolve(write(VARIED)).cells}
    assert several["plain/none"] == "Plain, no defense"
    assert several["own/dp"] == "Own, DP"
    one = {cell.row: cell.label for cell in resolve(write(VARIED), defense="dp").cells}
    assert one == {"plain/dp": "Plain", "own/dp": "Own", "matched/dp": "Matched"}
    assert {cell.label for cell in resolve(write(TINY)).cells} == {"none", "DP"}
    assert {cell.label for cell in resolve(write(TINY), defense="dp").cells} == {"DP"}


def cell_of(plan: Plan, row: str, knowledge: str = "adaptive", dataset: str = "mnist") -> Cell:
    (found,) = (
        c for c in plan.cells if (c.dataset, c.row, c.knowledge) == (dataset, row, knowledge)
    )
    return found


def test_a_variant_replaces_whole_tables(write: Callable[[str], str]) -> None:
    plan = resolve(write(VARIED))
    plain, own = cell_of(plan, "plain/none"), cell_of(plan, "own/none")
    assert (plain.model, plain.weights, plain.pretraining) == ("lenet_cpl", "default", None)
    assert own.model == "cnn2"
    assert own.weights == "uniform"  # the table's own default, not the suite's "default"
    assert own.pretraining == {"epochs": 3, "batch_size": 50, "learning_rate": 0.001}
    assert (plain.batch_size, plain.local_steps, plain.learning_rate) == (8, 1, 0.5)
    assert (own.batch_size, own.local_steps, own.learning_rate) == (2, 4, 0.1)
    assert (plain.iterations, own.iterations) == (9, 1)
    assert (plain.leak, own.leak) == ("type2/example@first x2", "type0@first")
    assert (plain.observations, own.observations) == (2, 1)
    assert (plain.images_a_gradient, own.images_a_gradient) == (1, 8)
    assert plain.attack_parameters["restarts"] == 2
    assert (own.attack_parameters["restarts"], own.attack_parameters["lr"]) == (1, 0.2)
    assert (plain.grants, own.grants) == ((), ())
    assert cell_of(plan, "matched/none").grants == ("candidates", "labels")
    assert cell_of(plan, "plain/none", dataset="lfw").batch_size == 3


def test_what_decides_a_result_of_a_variant_is_in_its_spec(write: Callable[[str], str]) -> None:
    plan = resolve(write(VARIED))
    spec = cell_of(plan, "own/none").spec()
    assert spec["pretraining"]["epochs"] == 3
    assert (spec["leak_type"], spec["local_steps"], spec["learning_rate"]) == (0, 4, 0.1)
    assert cell_of(plan, "matched/dp").spec()["grants"] == ("candidates", "labels")
    renamed = resolve(write(VARIED.replace('"own"', '"mine"').replace("own =", "mine =")))
    assert canonical(cell_of(renamed, "mine/none").spec()) == canonical(spec)


def test_shared_parameters_go_to_the_attacks_that_have_them(write: Callable[[str], str]) -> None:
    """`steps` of the profile and `line_search` of the knowledge: candidates has neither."""
    plan = resolve(write(VARIED))
    assert cell_of(plan, "plain/dp").attack_parameters == CPL_DEFAULTS | {
        "steps": 20, "restarts": 2,
    }  # fmt: skip
    naive = cell_of(plan, "plain/dp", "naive").attack_parameters
    assert naive == CPL_DEFAULTS | {"steps": 20, "restarts": 2, "line_search": True}
    own = cell_of(plan, "own/dp").attack_parameters
    assert own["steps"] == 30  # the profile's own word for this variant
    assert "line_search" not in own
    assert cell_of(plan, "matched/dp").attack_parameters == {"local_steps": "unroll"}


@pytest.mark.parametrize(
    ("old", "new", "key", "meant"),
    [
        ("{ steps = 20 }", "{ stepz = 20 }", "attacks of all variants", "steps"),
        ("{ line_search = false }", "{ line_serch = false }", "attacks of all", "line_search"),
        ("own = { steps = 30 }", "own = { stepz = 30 }", "variant 'own', attack", "steps"),
        ("{ lr = 0.2 }", "{ lrr = 0.2 }", "variant 'own', attack 'gradinv'", "lr"),
        ("restarts = 2 }", "restart = 2 }", "variant 'plain', attack 'cpl'", "restarts"),
    ],
)  # fmt: skip
def test_a_misspelt_parameter_is_refused_wherever_it_stands(
    write: Callable[[str], str], old: str, new: str, key: str, meant: str
) -> None:
    text = error_of(write(varied(old, new)))
    assert "bad.toml" in text and key in text
    assert f"did you mean '{meant}'?" in text


def test_an_attack_picks_variants_by_id_or_by_its_name(write: Callable[[str], str]) -> None:
    def rows(attack: str) -> list[str]:
        return list(dict.fromkeys(c.row for c in resolve(write(VARIED), attack=attack).cells))

    assert rows("own") == rows("gradinv") == ["own/none", "own/dp"]
    assert rows("cpl") == ["plain/none", "plain/dp"]
    assert resolve("tpds_table1", attack="cpl").printed.keys() == {
        (dataset, "cpl/none") for dataset in TPDS_DATASETS
    }
    found = {cell.row for cell in resolve("tpds_table1", attack="cpl").cells}
    assert found == {"cpl/none", "cpl_restarts_4/none"}  # an id, and an attack of this name


def test_an_attack_of_no_variant_runs_in_every_setting(write: Callable[[str], str]) -> None:
    plan = resolve(write(VARIED), attack="start_image")
    rows = ["start_image_plain/none", "start_image_plain/dp"]
    own = ["start_image_own/none", "start_image_own/dp"]
    assert sorted({cell.row for cell in plan.cells}) == sorted([*rows, *own])
    cell = cell_of(plan, "start_image_plain/dp")
    assert cell.label.startswith("start_image in place of ")
    assert cell.attack_parameters == {"grid": 2}
    assert not plan.printed
    assert "--attack: unknown attack 'gradinf'" in error_of(write(VARIED), attack="gradinf")


def test_an_attack_runs_once_where_variants_differ_in_their_attack_only() -> None:
    plan = resolve("tpds_table1", attack="idlg", settings=["attack.parameters.steps=10"])
    assert {cell.row for cell in plan.cells} == {"idlg_dlg/none"}
    assert {cell.attack_parameters["steps"] for cell in plan.cells} == {10}
    batches = resolve("batches", attack="idlg")
    sizes = {(cell.batch_size, cell.local_steps) for cell in batches.cells}
    assert sizes == {(1, 1), (2, 1), (3, 1), (4, 1), (8, 1), (1, 2), (1, 5)}


def test_an_attack_says_what_it_must_be_granted(write: Callable[[str], str]) -> None:
    text = TINY.replace('name = "cpl"\nparameters = { steps = 2 }', 'name = "candidates"')
    assert "key attack.grants: 'candidates' needs 'candidates'" in error_of(write(text))


@pytest.mark.parametrize("kind", ["strict", "mse", "distance"])
def test_a_rule_without_its_threshold_is_refused(write: Callable[[str], str], kind: str) -> None:
    text = TINY.replace('kind = "strict"\nthreshold = 0.01', f'kind = "{kind}"')
    assert "key rules: rule 'strict': threshold must be positive" in error_of(write(text))


def test_settings_of_one_variant_beat_the_profile(write: Callable[[str], str]) -> None:
    steps = ["variants.1.attack.parameters.steps=7"]
    plan = resolve(write(VARIED), settings=steps)
    assert cell_of(plan, "own/none").attack_parameters["steps"] == 7
    assert cell_of(plan, "plain/none").attack_parameters["steps"] == 20
    both = [*steps, "profiles.quick.variants.own.steps=8"]
    plan = resolve(write(VARIED), settings=both)
    assert cell_of(plan, "own/none").attack_parameters["steps"] == 8


def test_a_changed_variant_is_not_compared_with_print(write: Callable[[str], str]) -> None:
    place = ("mnist", "plain/none")
    assert place in resolve(write(VARIED), settings=["variants.1.training.local_steps=2"]).printed
    assert place in resolve(write(VARIED), settings=["attack.parameters.steps=2"]).printed
    assert place not in resolve(write(VARIED), settings=["attack.parameters.grid=1"]).printed
    assert place not in resolve(write(VARIED), settings=["leak.observations=3"]).printed


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            'mode = "federated"\nlocal_steps = 4\n', "",
            ["variant 'own'", "key leak.type", 'set training.mode = "federated"'],
        ),
        (
            'mode = "federated"\nlearning_rate', "local_steps = 2\nlearning_rate",
            ["variant 'plain'", "key training.local_steps", 'set training.mode = "federated"'],
        ),
        (
            "type = 0", 'type = 0\nview = "batch"',
            ["variant 'own'", "key leak.view", "type 0 has no view 'batch'", 'type 0 has "raw"'],
        ),
        ("type = 0", 'type = 1\nview = "raw"', ["key leak.view", "type 1 has no view 'raw'"]),
        ("type = 0", "type = 0\nat = 1", ["key leak.at", "a look in round 1", "are 0 to 0"]),
        ("type = 0", 'type = 0\nat = "soon"', ["key variants.1.leak.at", "'first'"]),
        ("type = 0", "type = 0\nat = -1", ["key variants.1.leak.at"]),
        (
            "local_steps = 4", "local_steps = 4\nclients = 2\nclients_a_round = 3",
            ["variant 'own'", "key training", "3 clients a round of 2", "allowed: 1 to 2"],
        ),
        ("type = 0", "type = 3", ["key variants.1.leak.type", "0, 1 or 2", "got 3"]),
        ("{ mnist = 8, lfw = 3 }", "{ mnist = 8 }",
         ["variant 'plain'", "key training.batch_size", "no entry for 'lfw'"]),
        ("{ mnist = 2 }", "{ mnits = 2 }",
         ["key training.batch_size", "did you mean 'mnist'?", "allowed: "]),
        ("epochs = 3", "epochs = 0", ["key variants.1.model.pretraining.epochs", "greater than 0"]),
        ('name = "cnn2"', 'name = "cnn"', ["variant 'own'", "key model.name", "'cnn2'"]),
        ('name = "gradinv"', 'name = "gradinf"',
         ["variant 'own'", "key attack.name", "did you mean 'gradinv'?"]),
        ("[knowledge.adaptive]\nparameters = { line_search = false }", "",
         ["variant 'matched'", "key attack.knowledge", "['adaptive']"]),
        ('knowledge = ["adaptive"]', "knowledge = []",
         ["key variants.2.attack.knowledge", "at least 1"]),
        ('"labels", "candidates", "labels"', '"lables"',
         ["key variants.2.attack.grants.0", "'labels', 'candidates' or 'public'"]),
        ('id = "own"', 'id = "plain"', ["key variants.id", "'plain' stands there twice"]),
        ('id = "own"', 'id = "O n"', ["key variants.1.id", "pattern"]),
        ('label = "Own"', 'lable = "Own"',
         ["key variants.1.lable", "did you mean 'label'?", "allowed: "]),
        ('label = "Own"\ndatasets = ["mnist"]', 'label = "Own"\ndatasets = ["mnits"]',
         ["key variants.datasets", "did you mean 'mnist'?"]),
        ('rmse = "0.12"', 'rmse = "0.12"\nmse = "0.0144"',
         ["key printed", "give mse or rmse, not both"]),
        ('asr = "1"\nrmse = "0.12"', "", ["key printed", "give asr, succeeds, mse or rmse"]),
        ('asr = "1"', 'asr = "1"\nsucceeds = "Y"', ["give asr or succeeds, not both"]),
        ('asr = "1"', 'succeeds = "maybe"', ["key printed.0.succeeds", "'Y' or 'N'"]),
        ('rmse = "0.12"', 'rmse = "a lot"', ["key printed.rmse", "'a lot' is not a number"]),
        ('variant = "plain"', 'variant = "plane"',
         ["key printed.variant", "did you mean 'plain'?", "allowed: "]),
        ('variant = "plain"\n', "",
         ["key printed.variant", "unknown variant ''", "allowed: matched, own, plain"]),
        ('variants = ["own"]', 'variants = ["won"]',
         ["key notes.variants", "did you mean 'own'?", "allowed: "]),
        ('variant = "own"', 'variant = "won"', ["key gallery.variant", "did you mean 'own'?"]),
        ("own = { steps = 30 }", "won = { steps = 30 }",
         ["key profiles.variants", "did you mean 'own'?", "allowed: "]),
    ],
)  # fmt: skip
def test_wrong_variants_name_file_key_and_what_is_allowed(
    write: Callable[[str], str], old: str, new: str, words: list[str]
) -> None:
    text = error_of(write(varied(old, new)))
    assert "bad.toml" in text
    for word in words:
        assert word in text


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ('mse = "1.5e-05"', 'mse = "1.5e-05"\nvariant = "a"', "printed.variant"),
        ('defense = "none"', 'defense = "none"\nvariant = "a"', "printed.variant"),
        ("victims = 2", "victims = 2\nvariants = { a = { steps = 3 } }", "profiles.variants"),
    ],
)
def test_a_suite_without_variants_knows_none(
    write: Callable[[str], str], old: str, new: str, key: str
) -> None:
    text = error_of(write(replaced(old, new)))
    assert f"key {key}" in text and "unknown variant 'a'" in text


def test_twice_the_same_variant_under_two_ids_is_refused(write: Callable[[str], str]) -> None:
    again = '[[variants]]\nid = "again"\nlabel = "Again"\n'
    text = error_of(write(varied("[knowledge.naive]", f"{again}[knowledge.naive]")))
    assert "rows 'plain/none' and 'again/none' are the same" in text


def test_an_image_model_on_a_table_is_refused(write: Callable[[str], str]) -> None:
    table = TINY.replace('["mnist"]', '["breast_cancer"]').replace("{ mnist", "{ breast_cancer")
    table = table.replace('dataset = "mnist"', 'dataset = "breast_cancer"')
    text = error_of(write(table))
    assert "bad.toml, key model.name" in text
    assert "key model.name, 'breast_cancer': model 'cnn2': takes images" in text
    assert "allowed for those: mlp" in text
    dense = table.replace('name = "cnn2"', 'name = "mlp"')
    assert {cell.model for cell in resolve(write(dense)).cells} == {"mlp"}


@pytest.mark.parametrize("number", ["1", "9", "attack"])
def test_settings_of_a_variant_that_is_not_there(write: Callable[[str], str], number: str) -> None:
    setting = f"variants.{number}.attack.parameters.steps=7"
    assert "variants" in error_of(write(TINY), settings=[setting])


# ------------------------------------------------------------------------------ what is wrong

WRONG_NAMES = [
    ('name = "cpl"', 'name = "clp"', "attack.name", "cpl"),
    ('name = "dp_baseline"', 'name = "dp_basline"', "defenses.name", "dp_baseline"),
    ('datasets = ["mnist"]', 'datasets = ["mnst"]', "datasets", "mnist"),
    ('name = "cnn2"', 'name = "cnnn2"', "model.name", "cnn2"),
    ("title =", "titel =", "titel", "title"),
    ('label = "DP"', 'lable = "DP"', "defenses.1.lable", "label"),
    ("victims = 2", "victim = 2", "profiles.quick.victim", "victims"),
    ("threshold =", "treshold =", "rules.0.treshold", "threshold"),
    ("batch_size =", "batchsize =", "training.batchsize", "batch_size"),
    ("steps = 2 }", "step = 2 }", "attack 'cpl'", "steps"),
    ("clip = 4.0", "clipp = 4.0", "defense 'dp'", "clip"),
    ('defense = "none"', 'defense = "non"', "printed.defense", "none"),
    ('dataset = "mnist"', 'dataset = "mnits"', "printed.dataset", "mnist"),
    ("{ mnist = 8 }", "{ mnist = 8, minst = 8 }", "training.batch_size", "mnist"),
]


@pytest.mark.parametrize(("old", "new", "key", "meant"), WRONG_NAMES, ids=lambda value: value)
def test_misspelt_names_are_located_and_corrected(
    write: Callable[[str], str], old: str, new: str, key: str, meant: str
) -> None:
    text = error_of(write(replaced(old, new)))
    assert "bad.toml" in text
    assert key in text
    assert f"did you mean '{meant}'?" in text
    assert "allowed: " in text


def test_unknown_profile_names_the_file_and_the_choices(write: Callable[[str], str]) -> None:
    text = error_of(write(TINY), "quik")
    assert "bad.toml" in text and "profiles" in text
    assert "did you mean 'quick'?" in text


def test_unknown_plugins_on_the_command_line(write: Callable[[str], str]) -> None:
    assert "--attack: unknown attack 'clp'" in error_of(write(TINY), attack="clp")
    text = error_of(write(TINY), defense="dp_basline")
    assert "--defense: unknown defense" in text and "did you mean 'dp_baseline'?" in text


WRONG_VALUES = [
    ('kind = "strict"', 'kind = "strikt"', "rules.0.kind", "'strict'"),
    ("[knowledge.naive]", "[knowledge.naiv]", "knowledge.naiv", "'naive'"),
    ('convention = "mean"', 'convention = "average"', "convention", "'per_example'"),
    ("schema = 1", "schema = 2", "schema", "1"),
    ("seed = 7", "seed = -7", "seed", "greater than or equal to 0"),
    ("seed = 7", "seed = 7.0", "seed", "integer"),
    ("victims = 2", 'victims = "2"', "profiles.quick.victims", "integer"),
    ("victims = 2", "victims = 2.0", "profiles.quick.victims", "integer"),
    ("victims = 2", "victims = true", "profiles.quick.victims", "integer"),
    ("victims = 2", "victims = 0", "profiles.quick.victims", "greater than 0"),
    ("victims = 2", "victims = -1", "profiles.quick.victims", "greater than 0"),
    ("networks = 1", "networks = 0", "profiles.quick.networks", "greater than 0"),
    ("networks = 1", "networks = -3", "profiles.quick.networks", "greater than 0"),
    ("steps = 2 }", 'steps = "300" }', "steps", "integer"),
    ("steps = 2 }", "steps = 300.0 }", "steps", "integer"),
    ("steps = 2 }", "steps = true }", "steps", "integer"),
    ("steps = 2 }", "steps = 0 }", "steps", "at least 1"),
    ("steps = 2 }", "steps = -1 }", "steps", "at least 1"),
    ("steps = 2 }", "steps = [2] }", "attack.parameters.steps", "number"),
    ("steps = 2 }", "steps = nan }", "attack.parameters.steps", "finite"),
    ("clip = 4.0", "clip = inf", "defenses.1.parameters.clip", "finite"),
    ("clip = 4.0", 'clip = "4"', "clip", "number"),
    ("clip = 4.0", "clip = false", "clip", "number"),
    ("{ mnist = 8 }", "{ mnist = 0 }", "training.batch_size.mnist", "greater than 0"),
    ("{ mnist = 8 }", "{ }", "training.batch_size", "mnist"),
    ("threshold = 0.01", "threshold = 0", "rules.0.threshold", "greater than 0"),
    ("threshold = 0.01", "threshold = inf", "rules.0.threshold", "finite"),
    ("threshold = 0.01", "top = 0", "rules.0.top", "greater than 0"),
    ('datasets = ["mnist"]', "datasets = []", "datasets", "at least 1"),
    ('datasets = ["mnist"]', 'datasets = "mnist"', "datasets", "list"),
    ('datasets = ["mnist"]', 'datasets = ["mnist", "mnist"]', "datasets", "twice"),
    ('label = "DP"', 'label = "DP"\ndatasets = []', "defenses.1.datasets", "at least 1"),
    ('id = "dp"', 'id = "none"', "defenses.id", "twice"),
    ('id = "dp"', 'id = "D P"', "defenses.1.id", "pattern"),
    ('asr = "1"', 'asr = "one"', "printed.asr", "not a number"),
    ('asr = "1"', 'asr = "nan"', "printed.asr", "not a number"),
    ('asr = "1"', 'asr = "1_0"', "printed.asr", "not a number"),
    ('asr = "1"', 'asr = "1.5"', "printed.asr", "0 to 1"),
    ('asr = "1"', "asr = 1", "printed.0.asr", "string"),
    ('mse = "1.5e-05"', 'mse = "1e999"', "printed.mse", "not a number"),
    ('mse = "1.5e-05"', 'mse = ""', "printed.mse", "not a number"),
]


@pytest.mark.parametrize(("old", "new", "key", "allowed"), WRONG_VALUES)
def test_wrong_values_name_file_key_and_what_is_allowed(
    write: Callable[[str], str], old: str, new: str, key: str, allowed: str
) -> None:
    text = error_of(write(replaced(old, new)))
    assert "bad.toml" in text
    assert key in text
    assert allowed in text


def blocks(*heads: str) -> str:
    """The tiny suite without the tables that begin with one of `heads`."""
    parts = re.split(r"\n(?=\[)", TINY)
    return "\n".join(part for part in parts if not part.startswith(heads))


@pytest.mark.parametrize(
    ("head", "key"),
    [
        ("[[defenses]]", "defenses"),
        ("[[rules]]", "rules"),
        ("[profiles.quick]", "profiles"),
        ("[knowledge.naive]", "knowledge"),
        ("[attack]", "attack"),
        ("[model]", "model"),
        ("[training]", "training"),
    ],
)
def test_a_missing_table_is_named(write: Callable[[str], str], head: str, key: str) -> None:
    text = error_of(write(blocks(head)))
    assert f"key {key}: missing" in text


@pytest.mark.parametrize(
    ("head", "line", "key"),
    [
        ("[[defenses]]", "defenses = []", "defenses"),
        ("[[rules]]", "rules = []", "rules"),
        ("[profiles.quick]", "profiles = {}", "profiles"),
        ("[knowledge.naive]", "knowledge = {}", "knowledge"),
    ],
)
def test_an_empty_grid_is_refused(
    write: Callable[[str], str], head: str, line: str, key: str
) -> None:
    text = error_of(write(f"{line}\n{blocks(head, '[[printed]]')}"))
    assert f"key {key}" in text and "at least 1" in text


def test_twice_the_same_printed_cell_is_refused(write: Callable[[str], str]) -> None:
    again = TINY[TINY.index("[[printed]]") : TINY.index("[profiles")]
    assert "printed: 'mnist/none' stands there twice" in error_of(write(TINY + again))


def test_twice_the_same_row_under_two_ids_is_refused(write: Callable[[str], str]) -> None:
    again = '[[defenses]]\nid = "nothing"\nname = "none"\nlabel = "again"\n'
    assert "rows 'none' and 'nothing' are the same" in error_of(write(TINY + again))


def test_rows_that_meet_no_data_set_are_refused() -> None:
    rows = 'defenses=[{id="none",name="none",label="x",datasets=["lfw"]}]'
    text = error_of("tifs_table3", settings=[rows, 'datasets=["mnist"]', "notes=[]", "printed=[]"])
    assert "no cell is left to run" in text


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b" \n\t\n", "empty"),
        (b"schema = ", "not valid TOML"),
        (b"schema = 1\nschema = 2\n", "not valid TOML"),
        (b"x = [" + b"[" * 5000, "not valid TOML"),
        (b"seed = " + b"9" * 5000, "not valid TOML"),
        (b"seed = 0x" + b"f" * 5000, "64 bits"),
        (b"a" + b".a" * 5000 + b" = 1", "too deep"),
        (bytes(range(256)), "UTF-8"),
        ("title = 'é'".encode("latin-1"), "UTF-8"),
        (b"PK\x03\x04\x00\x00", "not valid TOML"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_files_that_are_no_suite(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    text = error_of(str(path))
    assert str(path) in text and words in text


def test_files_that_are_not_there(tmp_path: Path) -> None:
    assert "No such file" in error_of(str(tmp_path / "missing.toml"))
    assert "Is a directory" in error_of(f"{tmp_path}/")
    (tmp_path / "folder.toml").mkdir()
    assert "Is a directory" in error_of(str(tmp_path / "folder.toml"))
    assert "suite file" in error_of(str(tmp_path / ("x" * 300 + ".toml")))
    assert "suite file" in error_of("a\0b.toml")
    assert "did you mean 'tifs_table3'?" in error_of("tifs_tabel3")
    assert "unknown suite" in error_of("")


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("nonsense", "key.path=value"),
        ("=3", "key.path=value"),
        ("", "key.path=value"),
        ("a.b.c=3", "unknown key 'a'"),
        ("seed.deep.er=3", "no table 'deep'"),
        ("defenses.7.label=x", "no table '7'"),
        ("defenses.-1.label=x", "no table '-1'"),
        ("defenses.²=x", "no table to set '²'"),
        ("defenses.first=x", "no table to set 'first'"),
        ("datasets.5=mnist", "no table to set '5'"),
        ("datasets." + "9" * 5000 + "=mnist", "no table to set"),
        ("seed=" + "9" * 5000, "not valid TOML"),
        ("seed=" + "[" * 5000, "not valid TOML"),
        ("title" + ".a" * 3000 + "=1", "no table"),
        ("attack" + ".a" * 3000 + "=1", "too deep"),
        ("seed=abc", "key seed"),
        ("profiles.quick.victims=0", "key profiles.quick.victims"),
        ("title=\udc80", "UTF-8"),
        ("rules=3", "key rules"),
        ("..=3", "unknown key ''"),
    ],
    ids=lambda value: value[:24],
)
def test_wrong_settings(write: Callable[[str], str], setting: str, words: str) -> None:
    assert words in error_of(write(TINY), settings=[setting])


def test_a_long_value_is_not_repeated_in_full(write: Callable[[str], str]) -> None:
    assert len(error_of(write(TINY), settings=[f'seed="{"x" * 10_000}"'])) < 300


# ------------------------------------------------------------------------------ parameters


class NoDataclass:
    """Looks like a plugin and is none."""


def test_a_plugin_without_parameters_to_read_is_refused() -> None:
    with pytest.raises(LeakbenchError, match="NoDataclass is not a dataclass"):
        complete(NoDataclass, {}, "here")


def test_what_a_plugin_refuses_is_told() -> None:
    from dataclasses import dataclass

    @dataclass(frozen=True, kw_only=True)
    class Picky:
        clip: float = 1.0
        bound: float = 0.0

        def __post_init__(self) -> None:
            if self.clip < 0:
                raise ValueError("clip must not be negative")
            if self.clip > 9:
                raise KeyError("too much")

    assert complete(Picky, {"clip": 2}, "here") == {"clip": 2.0, "bound": 0.0}
    with pytest.raises(LeakbenchError, match=r"here: .*clip must not be negative"):
        complete(Picky, {"clip": -1.0}, "here")
    with pytest.raises(LeakbenchError, match="here: KeyError"):
        complete(Picky, {"clip": 10.0}, "here")


def test_defaults_that_cannot_be_written_down_are_refused() -> None:
    from dataclasses import dataclass

    @dataclass(frozen=True, kw_only=True)
    class Unbounded:
        clip: float = math.inf

    with pytest.raises(LeakbenchError, match=r"here: .*cannot be written down"):
        complete(Unbounded, {}, "here")


# ------------------------------------------------------------------------------ anything at all

# All short forms in one suite.
SHORT = TINY.replace("clip = 4.0", "clip = [4.0, 0.5]").replace('id = "dp"', 'id = "dp_{clip}"')
SHORT = (
    SHORT[: SHORT.index("[[rules]]")]
    + """
[[rules]]
set = "four_readings"
threshold = 0.7

[[printed]]
dataset = "mnist"
columns = ["defense", "asr"]
rows = [["none", "1"], ["dp_4", "0.5"]]

[profiles.quick]
networks = 1
victims = 2
"""
)


def test_the_short_suite_is_right(write: Callable[[str], str]) -> None:
    plan = resolve(write(SHORT))
    assert [cell.row for cell in plan.cells] == ["none", "dp_4", "dp_0_5"]
    assert (len(plan.rules), len(plan.printed)) == (4, 2)


SNIPPETS = st.sampled_from(
    ["[", "]", "{", "}", '"', "'", "=", ".", ",", "\n", "#", "-", "0", "1e9", "nan", "inf", "true",
     "1979-05-27", "[[rules]]\n", "[x]\n", '"mnist"', "[]", "\x00", "é", "\\u0000", "'''"]
)  # fmt: skip


@st.composite
def mutations(draw: st.DrawFn) -> str:
    """A suite after a few cuts, doublings, exchanges and insertions."""
    text = draw(st.sampled_from([TINY, VARIED, SHORT]))
    for _ in range(draw(st.integers(1, 6))):
        begin = draw(st.integers(0, len(text)))
        end = min(len(text), begin + draw(st.integers(0, 30)))
        piece = draw(
            st.one_of(SNIPPETS, st.just(text[begin:end] * 2), st.just(""), st.text(max_size=5))
        )
        text = text[:begin] + piece + text[end:]
    return text


@settings(max_examples=150, deadline=None)
@given(text=mutations())
def test_no_mutation_raises_anything_but_a_sentence(
    text: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "mutated.toml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        plan = resolve(str(path))
    except LeakbenchError as error:
        assert str(error) and "\n" not in str(error)
    else:
        assert plan.cells


@settings(max_examples=60, deadline=None)
@given(content=st.binary(max_size=200))
def test_no_bytes_raise_anything_but_a_sentence(
    content: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "binary.toml"
    path.write_bytes(content)
    with pytest.raises(LeakbenchError):
        resolve(str(path))


@settings(max_examples=100, deadline=None)
@given(
    path=st.lists(
        st.sampled_from(
            ["attack", "parameters", "steps", "defenses", "0", "1", "rules", "profiles", "quick",
             "datasets", "training", "batch_size", "mnist", "", " ", "²", "-1", "knowledge",
             "variants", "own", "attack.parameters"]
        ),
        min_size=1, max_size=5,
    ),
    value=st.one_of(st.text(max_size=12), SNIPPETS),
    text=st.sampled_from([TINY, VARIED]),
)  # fmt: skip
def test_no_setting_raises_anything_but_a_sentence(
    path: list[str], value: str, text: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.getbasetemp() / "settings.toml"
    file.write_text(text, encoding="utf-8")
    try:
        resolve(str(file), settings=[f"{'.'.join(path)}={value}"])
    except LeakbenchError as error:
        assert str(error) and "\n" not in str(error)


def test_the_command_line_wins_over_the_profile() -> None:
    plan = resolve("tifs_table3", settings=["attack.parameters.steps=5"])
    assert {cell.attack_parameters["steps"] for cell in plan.cells} == {5}
    assert {cell.attack_parameters["line_search"] for cell in plan.cells} == {False, True}
    both = ["attack.parameters.steps=5", "profiles.quick.parameters.steps=7"]
    assert {c.attack_parameters["steps"] for c in resolve("tifs_table3", settings=both).cells} == {
        7
    }


@pytest.mark.parametrize(("name", "attack"), [("ladder", "gradinv"), ("tabular", "dlg")])
def test_a_seed_changes_nothing_else_for_a_foreign_attack(name: str, attack: str) -> None:
    plain, seeded = resolve(name, attack=attack), resolve(name, attack=attack, settings=["seed=3"])
    unseeded = [dataclasses.replace(cell, seed=0) for cell in plain.cells]
    assert unseeded == [dataclasses.replace(cell, seed=0) for cell in seeded.cells]


def test_settings_that_a_foreign_attack_would_lose_are_refused() -> None:
    lost = "--set variants.0.attack.parameters.lr: the variant's attack is replaced by 'gradinv'"
    of_variant, misspelt = ["variants.0.attack.parameters.lr=0.5"], ["attack.parameters.bogus=1"]
    assert lost in error_of("ladder", attack="gradinv", settings=of_variant)
    said = error_of("ladder", attack="gradinv", settings=misspelt)
    assert "unknown parameter 'bogus'" in said


def test_another_reading_of_the_papers_rule_is_not_compared_with_its_numbers() -> None:
    assert not resolve("tpds_table1", settings=["rules.2.threshold=1000"]).printed
    assert resolve("tpds_table1", settings=["rules.5.threshold=0.02"]).printed  # not the paper's


def test_a_model_has_parameters(write: Callable[[str], str]) -> None:
    dense = replaced('name = "cnn2"', 'name = "mlp"\nparameters = { widths = [16, 8, 4] }')
    plan = resolve(write(dense))
    assert {cell.model_parameters["widths"] for cell in plan.cells} == {(16, 8, 4)}
    assert plan.cells[0].spec()["model_parameters"]["widths"] == (16, 8, 4)
    assert places(plan, "model", "") == {"widths": "model.parameters"}
    wider = resolve(write(dense), settings=["model.parameters.widths=[32]"])
    assert {cell.model_parameters["widths"] for cell in wider.cells} == {(32,)}
    assert places(wider, "model", "") == {"widths": "--set model.parameters.widths"}
    assert not wider.printed  # another network's numbers
    said = error_of(write(dense), settings=["model.parameters.width=[32]"])
    assert "model 'mlp', from --set model.parameters.width: unknown parameter 'width'" in said
    said = error_of(write(dense), settings=['model.parameters.widths="wide"'])
    assert "widths is from --set model.parameters.widths" in said


# ------------------------------------------------------------------------------ short forms

GRID = TINY.replace(
    """id = "dp"
name = "dp_baseline"
label = "DP"
parameters = { clip = 4.0, convention = "mean" }""",
    """id = "dp_c{clip}_{convention}"
name = "dp_baseline"
label = "C={clip}, noise on the {convention}"
parameters = { clip = [4.0, 0.5], noise_multiplier = 1.5, convention = ["mean", "sum"] }""",
)


def test_a_grid_of_defenses_is_a_row_of_every_combination(write: Callable[[str], str]) -> None:
    rows = {
        cell.defense_id: (
            cell.label, cell.defense_parameters["clip"], cell.defense_parameters["convention"]
        )
        for cell in resolve(write(GRID)).cells if cell.defense_id != "none"
    }  # fmt: skip
    assert list(rows.items()) == [
        ("dp_c4_mean", ("C=4, noise on the mean", 4.0, "mean")),
        ("dp_c4_sum", ("C=4, noise on the sum", 4.0, "sum")),
        ("dp_c0_5_mean", ("C=0.5, noise on the mean", 0.5, "mean")),
        ("dp_c0_5_sum", ("C=0.5, noise on the sum", 0.5, "sum")),
    ]


def test_a_row_of_a_grid_is_set_by_its_id(write: Callable[[str], str]) -> None:
    setting = "defenses.dp_c4_sum.parameters.noise_multiplier=7.0"
    cells = {cell.defense_id: cell for cell in resolve(write(GRID), settings=[setting]).cells}
    stds = {
        row: cell.defense_parameters["noise_multiplier"]
        for row, cell in cells.items()
        if row != "none"
    }
    assert stds == {"dp_c4_mean": 1.5, "dp_c4_sum": 7.0, "dp_c0_5_mean": 1.5, "dp_c0_5_sum": 1.5}


def test_a_grid_can_come_from_the_command_line(write: Callable[[str], str]) -> None:
    grid = ["defenses.dp.parameters.clip=[1.0, 2e-5, -0.0]", "defenses.dp.id=dp_{clip}"]
    with pytest.raises(LeakbenchError, match="clip"):  # a bound of -0.0 is refused, and named
        resolve(write(TINY), settings=grid)
    grid[0] = "defenses.dp.parameters.clip=[1.0, 2e-5]"
    found = [cell.defense_id for cell in resolve(write(TINY), settings=grid).cells]
    assert found == ["none", "dp_1", "dp_2em05"]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("dp_c{clip}_{convention}", "dp_{clip}", "key defenses.id: 'dp_0_5' stands there twice"),
        ("c{clip}_{convention}", "{clipp}", "key id: unknown parameter 'clipp' (did you"),
        ("C={clip}", "C={C}", "key label: unknown parameter 'C'"),
        ("[4.0, 0.5]", "[]", "or a list with at least one of these, got []"),
        ("[4.0, 0.5]", "[4.0, [0.5]]", "key defenses.1.parameters.clip.1: input should be a bool"),
        ("[4.0, 0.5]", "[4.0, nan]", "key defenses.1.parameters.clip.1: input should be a bool"),
        ("[4.0, 0.5]", '[4.0, "a"]', "defense 'dp_ca_mean': key clip"),
        ('id = "dp_c{clip}', 'id = "dp c{clip}', "key defenses.1.id: string should match pattern"),
    ],
)  # fmt: skip
def test_wrong_grids(write: Callable[[str], str], old: str, new: str, words: str) -> None:
    assert GRID.count(old) == 1
    assert words in error_of(write(GRID.replace(old, new)))


def test_the_table_of_cloak_is_what_its_rows_were_one_by_one() -> None:
    """The digest is of the file that listed all 30 settings and 183 printed numbers."""
    parsed, _, _ = suites.read("cloak_table2")
    rows = [[row.id, row.label, row.name, row.parameters] for row in parsed.defenses]
    printed = sorted([p.dataset, p.defense, p.asr] for p in parsed.printed)
    accuracies = sorted([p.dataset, p.defense, p.accuracy] for p in parsed.printed_utility)
    assert (len(rows), len(printed), len(accuracies)) == (31, 90, 93)
    text = canonical([rows, printed, accuracies])
    assert hashlib.sha256(text.encode()).hexdigest() == (
        "7f79256bb1acfed00af98454d4588604a422ad49a218cb1ec88af947f92ab815"
    )


RULES = """[[rules]]
name = "strict"
label = "strict"
kind = "strict"
threshold = 0.01
"""


def test_a_set_of_rules_stands_for_its_rules(write: Callable[[str], str]) -> None:
    named = (
        '[[rules]]\nset = "four_readings"\nthreshold = 0.3\n\n[[rules]]\nname = "own"\n'
        'label = "own"\nkind = "identified"\ntop = 3\n\n[[rules]]\nset = "recovered"\n'
        "paper = true\n"
    )
    rules = resolve(write(replaced(RULES, named))).rules
    assert [(r.name, r.kind, r.threshold, r.clamp, r.top, r.paper) for r in rules] == [
        ("paper_mean_raw", "mse", 0.3, False, 1, True),
        ("paper_mean_clamped", "mse", 0.3, True, 1, True),
        ("paper_norm_raw", "distance", 0.3, False, 1, True),
        ("paper_norm_clamped", "distance", 0.3, True, 1, True),
        ("own", "identified", None, True, 3, False),
        ("strict", "strict", 0.01, True, 1, True),
        ("identified", "identified", None, True, 1, True),
    ]
    changed = resolve(write(replaced(RULES, named)), settings=["rules.strict.threshold=0.02"]).rules
    assert {rule.name: rule.threshold for rule in changed}["strict"] == 0.02


def test_sets_of_rules_beside_a_suite_are_its_own(
    write: Callable[[str], str], tmp_path: Path
) -> None:
    suite = write(replaced(RULES, '[[rules]]\nset = "mine"\n'))
    said = error_of(suite)
    assert "key rules.set: unknown set 'mine'; allowed: four_readings, recovered" in said
    sets = tmp_path / "_rules.toml"
    sets.write_text('[[mine]]\nname = "near"\nlabel = "near"\nkind = "mse"\nthreshold = 0.2\n')
    assert [rule.name for rule in resolve(suite).rules] == ["near"]
    sets.write_text('[[mine]]\nname = "near"\nlable = "near"\nkind = "mse"\nthreshold = 0.2\n')
    said = error_of(suite)
    assert "_rules.toml: key mine.0.label: missing" in said
    assert "key mine.0.lable: unknown key 'lable' (did you mean 'label'?)" in said
    assert "allowed: clamp, fraction, kind, label, name, paper, parameters, threshold, top" in said
    sets.write_text("mine = 3")
    assert "_rules.toml: key mine: input should be a valid list, got 3" in error_of(suite)


def test_a_rule_that_is_neither_is_told_its_keys(write: Callable[[str], str]) -> None:
    said = error_of(write(replaced(RULES, '[[rules]]\nset = "recovered"\ntresh = 1\n')))
    assert "key rules.0.tresh: unknown key 'tresh'" in said
    assert "allowed: fraction, paper, set, threshold" in said


def test_printed_numbers_may_stand_in_rows(write: Callable[[str], str]) -> None:
    at = TINY.index("[[printed]]")
    rows = """[[printed]]
dataset = "mnist"
columns = ["defense", "asr", "mse"]
rows = [["none", "1", "1.5e-05"], ["dp", "0.25", "0.5"]]

[profiles.quick]
networks = 1
victims = 2
"""
    found = resolve(write(TINY[:at] + rows)).printed
    assert {row: (p.asr, p.mse, p.rmse) for (_, row), p in found.items()} == {
        "none": ("1", "1.5e-05", None), "dp": ("0.25", "0.5", None),
    }  # fmt: skip
    short = rows.replace('["dp", "0.25", "0.5"]', '["dp", "0.25"]')
    said = error_of(write(TINY[:at] + short))
    assert "key printed, row 1: 2 values under 3 columns" in said
    odd = rows.replace('"asr", "mse"', '"asr", "msr"')
    assert "unknown key 'msr' (did you mean 'mse'?)" in error_of(write(TINY[:at] + odd))


# ------------------------------------------------------------------------------ layers


def places(plan: Plan, plugin: str, row: str, knowledge: str | None = None) -> dict[str, str]:
    (found,) = (
        dict(p.places) for p in plan.provenance
        if (p.plugin, p.row, p.knowledge) == (plugin, row, knowledge)
    )  # fmt: skip
    return found


def test_a_plan_knows_who_set_each_parameter(write: Callable[[str], str]) -> None:
    plan = resolve(
        write(VARIED),
        settings=["attack.parameters.grid=3", "defenses.1.parameters.clip=2.0"],
    )
    assert places(plan, "attack", "plain", "adaptive") == {
        "line_search": "knowledge.adaptive.parameters",
        "restarts": "attack.parameters",
        "steps": "profiles.quick.parameters",
        "grid": "--set attack.parameters.grid",
    }
    assert places(plan, "attack", "own", "naive") == {
        "lr": "variants.own.attack.parameters", "steps": "profiles.quick.variants.own",
    }  # fmt: skip
    assert places(plan, "attack", "matched", "adaptive") == {}
    assert places(plan, "defense", "dp") == {"clip": "--set defenses.dp.parameters.clip"}
    assert places(plan, "defense", "none") == {}


@pytest.mark.parametrize(
    ("setting", "row", "steps"),
    [
        ("attack.parameters.steps=7", "plain/none", 7),
        ("attack.parameters.steps=7", "own/none", 30),  # it has an attack of its own
        ("variants.own.attack.parameters.steps=7", "own/none", 7),
        ("variants.own.attack.parameters={steps=7}", "own/none", 7),
        ("profiles.quick.parameters.steps=7", "plain/none", 7),
        ("profiles.quick.variants.own.steps=7", "own/none", 7),
        ("profiles.quick.variants.own={steps=7}", "own/none", 7),
        ("knowledge.adaptive.parameters.steps=7", "plain/none", 7),
    ],
)
def test_the_command_line_is_the_last_layer(
    write: Callable[[str], str], setting: str, row: str, steps: int
) -> None:
    plan = resolve(write(VARIED), settings=[setting])
    assert cell_of(plan, row).attack_parameters["steps"] == steps


def test_the_command_line_wins_over_what_an_attacker_knows(write: Callable[[str], str]) -> None:
    setting = "attack.parameters.line_search=true"
    plan = resolve("tifs_table3", settings=[setting])
    assert {cell.attack_parameters["line_search"] for cell in plan.cells} == {True}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("{ lr = 0.2 }", "{ lrr = 0.2 }", "from variants.own.attack.parameters: unknown parameter"),
        ("own = { steps = 30 }", "own = { steps = 0 }", "is from profiles.quick.variants.own"),
        ("{ steps = 20 }", "{ steps = 0 }", "steps is from profiles.quick.parameters"),
        ("restarts = 2 }", "restarts = 0 }", "restarts is from attack.parameters"),
    ],
)  # fmt: skip
def test_errors_name_the_layer(write: Callable[[str], str], old: str, new: str, words: str) -> None:
    assert words in error_of(write(varied(old, new)))


def test_errors_name_the_setting(write: Callable[[str], str]) -> None:
    said = error_of(write(TINY), settings=["defenses.dp.parameters.clip=-1.0"])
    assert said.endswith("clip is from --set defenses.dp.parameters.clip")
    said = error_of("ladder", settings=["attack.parameters.bogus=1"], attack="gradinv")
    assert "from --set attack.parameters.bogus: unknown parameter 'bogus'" in said


def test_a_setting_for_an_attack_that_no_variant_uses_is_refused(
    write: Callable[[str], str],
) -> None:
    text = VARIED.replace('label = "Plain"\n', 'label = "Plain"\nattack = { name = "dlg" }\n')
    said = error_of(write(text), settings=["attack.parameters.steps=7"])
    assert "every variant has an attack of its own; set variants.ID.attack.parameters" in said


def test_the_suites_own_attack_by_name_is_the_suite_as_it_stands() -> None:
    plain, named = resolve("tifs_table3"), resolve("tifs_table3", attack="cpl")
    assert [c.attack_parameters for c in named.cells] == [c.attack_parameters for c in plain.cells]


# ------------------------------------------------------------------------------ where suites are


@pytest.fixture
def distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed distribution whose package of suites an entry point names."""
    info = tmp_path / "site" / "theirs-1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text("[leakbench.suites]\ntheirs = their_suites\n")
    package = tmp_path / "site" / "their_suites"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit(3)  # never imported\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return package


def test_a_distribution_brings_suites(distribution: Path) -> None:
    (distribution / "theirs.toml").write_text(TINY)
    (distribution / "tifs_table3.toml").write_text(TINY)
    (distribution / "_rules.toml").write_text("")
    found = {(each.name, each.origin): each.reason for each in suites.listed()}
    assert found["theirs", "theirs 1.2 (theirs.toml)"] == ""
    taken = "the name 'tifs_table3' is taken by leakbench (tifs_table3.toml)"
    assert found["tifs_table3", "theirs 1.2 (tifs_table3.toml)"] == taken
    assert found["tifs_table3", "leakbench (tifs_table3.toml)"] == ""
    assert "theirs" in suites.names() and "_rules" not in suites.names()
    plan = resolve("theirs")
    assert [str(cell) for cell in plan.cells] == ["mnist/none/cpl/naive", "mnist/dp/cpl/naive"]
    assert plan.asked["suite"] == "theirs"
    assert len(resolve("tifs_table3").cells) == 62
    assert "unknown suite 'thiers' (did you mean 'theirs'?)" in error_of("thiers")


def test_a_distribution_without_suites_is_listed_with_the_reason(distribution: Path) -> None:
    assert error_of("theirs") == "suite 'theirs' (theirs 1.2): no .toml file in 'their_suites'"
    (distribution / "__init__.py").unlink()
    assert error_of("theirs") == "suite 'theirs' (theirs 1.2): no package named 'their_suites'"


def test_the_documented_suites_are_suites(write: Callable[[str], str]) -> None:
    text = (ROOT / "docs" / "suites.md").read_text(encoding="utf-8")
    whole, grid, printed, *_ = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    assert {cell.row for cell in resolve(write(whole)).cells} == {"none", "dp"}
    at = TINY.index("[[defenses]]\nid = "), TINY.index("[[rules]]")
    rows = [cell.row for cell in resolve(write(TINY[: at[0]] + grid + TINY[at[1] :]
        .replace('defense = "none"', 'defense = "c4_s6"'))).cells]  # fmt: skip
    assert rows == re.findall("# (.*)", grid)[0].split(", ")
    long = TINY[: TINY.index("[[printed]]")].replace('id = "dp"', 'id = "dp_baseline"')
    found = resolve(write(f"{long}{printed}[profiles.quick]\nnetworks = 1\nvictims = 2\n")).printed
    assert {row: p.asr for (_, row), p in found.items()} == {"none": "1", "dp_baseline": "0.23"}


def test_a_path_that_is_no_text_is_refused() -> None:
    """The run's manifest could not hold it."""
    with pytest.raises(LeakbenchError, match="not text in UTF-8"):
        resolve(os.fsdecode(b"suite\xff.toml"))
