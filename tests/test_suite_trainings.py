"""[utility] of a suite file: variants, tables by data set, sweeps, stops; and nothing else."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakbench import planning, runner
from leakbench.errors import LeakbenchError
from leakbench.records import Run
from leakbench.spec import Plan, plan_from_json, plan_to_json
from leakbench.suite import resolve
from leakbench.suite.rows import check_training
from leakbench.suite.tables import TrainingTable
from leakbench.training_schedule import Schedule

ONLY = """
schema = 1
name = "only"
title = "Only trainings"
datasets = ["mnist", "fashion_mnist"]
model = { name = "mlp", weights = "default" }
defenses = [
  { id = "none", name = "none", label = "undefended" },
  { id = "cdp", name = "fed_cdp", label = "Fed-CDP", parameters = { clip = 1.0, noise_multiplier = 0.5, convention = "sum" } },
]

[training]
mode = "federated"
clients = 20
clients_a_round = 3
iterations = { mnist = 4, "*" = 6 }
local_steps = { mnist = 2, "*" = 3 }
batch_size = { "*" = 4 }
momentum = 0.5

[utility]
evaluations = 2
learning_rates = [0.1, 0.2]

[[utility.variants]]
id = "written"
label = "as written"

[[utility.variants]]
id = "released"
label = "released code"
datasets = ["mnist"]
defenses = ["cdp", "none"]
model = { name = "mlp", weights = "uniform" }
training = { clients_a_round = 5, divisor = "clients_minus_one", learning_rate = 0.05 }
learning_rates = []
stop_accuracy = { mnist = 0.9 }
stop_epsilon = 500

[profiles.quick.utility]
networks = 1
iterations = 2
variants = ["released"]

[profiles.paper.utility]
networks = 3
"""  # noqa: E501

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """The suite with pieces of text replaced, as a file."""

    def put(*changes: tuple[str, str], also: str = "") -> str:
        text = ONLY + also
        for old, new in changes:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        path = tmp_path / "only.toml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return put


def error_of(suite: str, profile: str = "paper", **options: Any) -> str:
    with pytest.raises(LeakbenchError) as caught:
        resolve(suite, profile, **options)
    text = str(caught.value)
    assert "\n" not in text
    return text


def cell(plan: Plan, row: str, dataset: str = "mnist") -> Any:
    (found,) = (each for each in plan.utility if (each.dataset, each.row) == (dataset, row))
    return found


# ------------------------------------------------------------------------------ variants


def test_a_variant_lays_its_keys_over_the_suites(write: Write) -> None:
    plan = resolve(write(), "paper")
    assert [str(each) for each in plan.utility] == [
        "mnist/written/none/utility",
        "mnist/written/cdp/utility",
        "mnist/released/none/utility",
        "mnist/released/cdp/utility",
        "fashion_mnist/written/none/utility",
        "fashion_mnist/written/cdp/utility",
    ]
    written, released = cell(plan, "written/cdp"), cell(plan, "released/cdp")
    changed = {"clients_a_round": 5, "divisor": "clients_minus_one", "learning_rate": 0.05}
    assert released.schedule == {**written.schedule, **changed}
    assert written.schedule["momentum"] == 0.5 and written.schedule["learning_rate"] == 0.1
    assert (written.weights, released.weights) == ("default", "uniform")
    assert (written.learning_rates, released.learning_rates) == ((0.1, 0.2), ())
    assert (written.held_out, written.stop_accuracy, written.stop_epsilon) == (0.1, None, None)
    assert (released.stop_accuracy, released.stop_epsilon) == (0.9, 500)
    assert (released.label, released.convention) == ("released code, Fed-CDP", "sum")
    assert not plan.cells and not plan.rules


def test_numbers_by_data_set_reach_their_data_set(write: Write) -> None:
    plan = resolve(write(), "paper")
    mnist, fashion = (cell(plan, "written/none", name) for name in ("mnist", "fashion_mnist"))
    assert (mnist.schedule["rounds"], mnist.schedule["local_steps"]) == (4, 2)
    assert (fashion.schedule["rounds"], fashion.schedule["local_steps"]) == (6, 3)
    assert (mnist.evaluate_at, fashion.evaluate_at) == ((0, 2, 4), (0, 3, 6))


def test_a_profile_cuts_trainings_down(write: Write) -> None:
    quick = resolve(write(), "quick")
    assert [each.row for each in quick.utility] == ["released/none", "released/cdp"]
    assert {each.schedule["rounds"] for each in quick.utility} == {2}
    settings = [
        "profiles.paper.utility.datasets=['fashion_mnist']",
        "profiles.paper.utility.learning_rates=[0.3, 0.4, 0.5]",
    ]
    plan = resolve(write(), "paper", settings=settings)
    assert {(each.dataset, each.learning_rates) for each in plan.utility} == {
        ("fashion_mnist", (0.3, 0.4, 0.5))
    }
    none = error_of(write(), settings=["profiles.paper.utility.networks=0"])
    assert "profile paper: nothing is left to run" in none


@pytest.mark.parametrize(
    ("iterations", "said"),
    [("{ mnits = 2 }", "did you mean 'mnist'?"), ("{ mnist = 2 }", "no entry for 'fashion_mnist'")],
)
def test_rounds_of_a_profile_are_named_by_their_own_key(
    write: Write, iterations: str, said: str
) -> None:
    setting = f"profiles.paper.utility.iterations={iterations}"
    text = error_of(write(), settings=[setting])
    assert "key profiles.paper.utility.iterations" in text and said in text


def test_a_plugin_in_place_of_the_rows_is_trained_in_every_variant(write: Write) -> None:
    plan = resolve(write(), "quick", defense="dp_baseline")
    assert [each.row for each in plan.utility] == ["released/dp_baseline"]
    assert cell(resolve(write(), "quick", defense="cdp"), "released/cdp")


def test_the_command_line_reaches_variants(write: Write) -> None:
    settings = ["utility.variants.released.training.clients=25", "training.learning_rate=0.7"]
    plan = resolve(write(), "paper", settings=settings)
    assert cell(plan, "released/none").schedule["clients"] == 25
    assert cell(plan, "released/none").schedule["learning_rate"] == 0.05
    assert cell(plan, "written/none").schedule["clients"] == 20
    assert cell(plan, "written/none").schedule["learning_rate"] == 0.7


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("clients_a_round = 5", "clients_a_rund = 5",
         ["key utility.variants.1.training.clients_a_rund", "did you mean 'clients_a_round'?"]),
        ("clients_a_round = 5", "clients_a_round = 0",
         ["key utility.variants.1.training.clients_a_round", "greater than 0, got 0"]),
        ("clients_a_round = 5", "clients_a_round = 50",
         ["utility variant 'released', key training", "50 clients a round of 20"]),
        ("iterations = { mnist = 4, \"*\" = 6 }", "iterations = { mnist = 4 }",
         ["utility variant 'written', key training.iterations: no entry for 'fashion_mnist'"]),
        ("iterations = { mnist = 4, \"*\" = 6 }", "iterations = 0",
         ["key training.iterations: input should be greater than 0, got 0"]),
        ("local_steps = { mnist = 2,", "local_steps = { mnits = 2,",
         ["key training.local_steps", "did you mean 'mnist'?"]),
        ("stop_accuracy = { mnist = 0.9 }", "stop_accuracy = { lfw = 0.9 }",
         ["key utility.stop_accuracy", "'lfw'"]),
        ("stop_accuracy = { mnist = 0.9 }", "stop_accuracy = 1.5",
         ["key utility.variants.1.stop_accuracy", "less than 1, got 1.5"]),
        ("stop_epsilon = 500", "stop_epsilon = -1",
         ["key utility.variants.1.stop_epsilon", "greater than 0"]),
        ("learning_rates = [0.1, 0.2]", "learning_rates = [0.1]",
         ["key utility.learning_rates", "two or more different rates"]),
        ("learning_rates = [0.1, 0.2]", "learning_rates = [0.1, 0.1]", ["two or more different"]),
        ("learning_rates = [0.1, 0.2]", "held_out = 1.0", ["key utility.held_out", "less than 1"]),
        ('defenses = ["cdp", "none"]', 'defenses = ["cpd"]',
         ["key utility.variants.defenses", "did you mean 'cdp'?"]),
        ('datasets = ["mnist"]', 'datasets = ["lfw"]', ["key utility.variants.datasets", "'lfw'"]),
        ('variants = ["released"]', 'variants = ["relesed"]',
         ["key profiles.utility.variants", "did you mean 'released'?"]),
        ('id = "written"', 'id = "released"', ["key utility.variants.id", "twice"]),
        ('label = "as written"', 'label = "released code"', ["utility.variants.label", "twice"]),
        ('"mlp", weights = "uniform"', '"mpl", weights = "uniform"',
         ["variant 'released', key model.name", "did you mean 'mlp'?"]),
        ("momentum = 0.5", "momentum = 1.0", ["key training.momentum", "less than 1"]),
        ("momentum = 0.5", 'augment = ["flop"]', ["key training.augment.0", "'flip' or 'crop'"]),
        ("momentum = 0.5", 'learning_rate_policy = "step"\nlearning_rate_factor = 1e200',
         ["key training.learning_rate_factor", "no finite number"]),
        ("momentum = 0.5", 'learning_rate_policy = "stair"', ["key training.learning_rate_policy"]),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(write: Write, old: str, new: str, words: list[str]) -> None:
    text = error_of(write((old, new)))
    assert "only.toml" in text
    for word in words:
        assert word in text


# ------------------------------------------------------------------------------ by data set

names = st.sampled_from(["mnist", "lfw", "*"])
whole = st.integers(1, 10**6)
rate = st.floats(1e-6, 10)
kind = st.sampled_from(["iid", "shards", "dirichlet"])
by_data_set = st.fixed_dictionaries(
    {
        "batch_size": st.dictionaries(names, whole),
        "iterations": whole | st.dictionaries(names, whole),
        "local_steps": whole | st.dictionaries(names, whole),
        "learning_rate": rate | st.dictionaries(names, rate),
        "partition": kind | st.dictionaries(names, kind),
        "classes_a_client": whole | st.dictionaries(names, whole),
    }
)


@given(by_data_set, st.sampled_from(["mnist", "lfw"]))
def test_a_table_by_data_set_means_what_it_says(written: dict[str, Any], dataset: str) -> None:
    table = TrainingTable.model_validate({"mode": "federated", **written})
    expected: dict[str, Any] = {}
    for key, value in written.items():
        value = value if isinstance(value, dict) else {"*": value}
        if dataset in value or "*" in value:
            expected[key] = value[dataset] if dataset in value else value["*"]
    if missing := written.keys() - expected.keys():
        with pytest.raises(LeakbenchError, match=f"no entry for '{dataset}'") as caught:
            check_training("x", table, [dataset])
        assert str(caught.value).split("training.")[1].split(":")[0] in missing
        return
    check_training("x", table, [dataset])
    found = table.schedule(dataset)
    assert {key: found["rounds" if key == "iterations" else key] for key in expected} == expected


def test_a_suite_has_every_key_of_a_schedule_with_its_default() -> None:
    """But for the rounds, which a suite calls iterations, and a rate, which it need not give."""
    found = TrainingTable(batch_size={"*": 1}, learning_rate={"*": 0.1}).schedule("mnist")
    fields = {field.name: field.default for field in dataclasses.fields(Schedule)}
    assert set(found) == set(fields)
    for name, default in fields.items():
        if default is not dataclasses.MISSING:
            assert found[name] == default, name
    Schedule(**found)


# ------------------------------------------------------------------------------ beside print

PRINTED = """
[[printed_utility]]
dataset = "mnist"
variant = "released"
columns = ["defense", "accuracy", "rounds"]
rows = [["none", "0.95", "3"], ["cdp", "0.90", "10"]]

[[printed_utility]]
dataset = "mnist"
variant = "released"
defense = "cdp"
seconds_per_iteration = "0.02"
"""


def test_what_is_printed_of_a_row_may_stand_in_several_tables(write: Write) -> None:
    found = resolve(write(also=PRINTED), "quick").printed_utility
    assert set(found) == {("mnist", "released/none"), ("mnist", "released/cdp")}
    both = found["mnist", "released/cdp"]
    assert (both.accuracy, both.rounds, both.seconds_per_iteration) == ("0.90", "10", "0.02")
    assert both.of_rounds == 4  # of the file, not of the profile
    assert found["mnist", "released/none"].seconds_per_iteration is None


POINTS = """
[[printed_utility]]
dataset = "mnist"
variant = "released"
columns = ["defense", "after", "accuracy"]
rows = [["cdp", "3", "0.85"], ["cdp", "1", "0.80"], ["none", "4", "0.9"]]
"""


def test_what_is_printed_of_the_way_is_measured_there(write: Write) -> None:
    path = write(also=PRINTED + POINTS)
    plan = resolve(path, "paper")
    printed = plan.printed_utility
    assert printed["mnist", "released/cdp"].points == {"1": "0.80", "3": "0.85"}
    assert printed["mnist", "released/cdp"].accuracy == "0.90"
    assert cell(plan, "released/cdp").evaluate_at == (0, 1, 2, 3, 4)
    assert cell(plan, "released/none").evaluate_at == (0, 2, 4)
    assert cell(plan, "written/cdp").evaluate_at == (0, 2, 4)
    short = resolve(path, "quick")
    assert cell(short, "released/cdp").evaluate_at == (0, 1, 2)
    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('["cdp", "1", "0.80"]', '["cdp", "3", "0.80"]', ["accuracy after 3", "twice"]),
        ('"cdp", "3"', '"cdp", "5"', ["printed_utility.after", "for 4 rounds only"]),
        ('"cdp", "3"', '"cdp", "0"', ["after", "pattern"]),
        ('"cdp", "3"', f'"cdp", "{"1" * 5000}"', ["after", "pattern"]),
        ('"after", "accuracy"', '"after", "rounds"', ["printed_utility.after", "than accuracy"]),
    ],
)
def test_wrong_points_are_one_sentence(write: Write, old: str, new: str, words: list[str]) -> None:
    text = error_of(write((old, new), also=POINTS))
    for word in words:
        assert word in text


def test_what_is_printed_goes_with_the_training_it_is_of(write: Write) -> None:
    def printed(*settings: str) -> set[str]:
        plan = resolve(write(also=PRINTED), "paper", settings=settings)
        return {row for _, row in plan.printed_utility}

    assert printed() == {"released/none", "released/cdp"}
    assert printed("utility.variants.released.training.clients=25") == set()
    assert printed("utility.variants.written.training.clients=25") == printed()
    assert printed("defenses.cdp.parameters.clip=2.0") == {"released/none"}
    assert printed("utility.variants.released.stop_accuracy=0.8") == set()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('seconds_per_iteration = "0.02"', 'accuracy = "0.9"',
         ["mnist/released/cdp, accuracy", "twice"]),
        ('seconds_per_iteration = "0.02"', "", ["mnist/released/cdp", "has none of"]),
        ('seconds_per_iteration = "0.02"', 'seconds_per_iteration = "fast"',
         ["printed_utility.seconds_per_iteration", "'fast' is not a number"]),
        ('"0.95"', '"1.95"', ["printed_utility.accuracy", "0 to 1"]),
        ("stop_accuracy = { mnist = 0.9 }", "", ["printed_utility.rounds", "stop_accuracy"]),
        ('variant = "released"\ndefense', 'variant = "relesed"\ndefense',
         ["printed_utility.variant", "did you mean 'released'?"]),
        ('defenses = ["cdp", "none"]', 'defenses = ["cdp"]',
         ["mnist/released/none is trained by no variant"]),
        ('datasets = ["mnist"]', 'datasets = ["fashion_mnist"]',
         ["mnist/released/none is trained by no variant"]),
    ],
)  # fmt: skip
def test_wrong_print_is_one_sentence(write: Write, old: str, new: str, words: list[str]) -> None:
    text = error_of(write((old, new), also=PRINTED))
    for word in words:
        assert word in text


def test_a_plan_reads_back_and_older_ones_too(write: Write) -> None:
    plan = resolve(write(also=PRINTED), "paper")
    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan
    older = plan_to_json(resolve(write(also=PRINTED), "quick"))
    for trained in older["utility"]:
        for name in ("variant", "learning_rates", "held_out", "stop_accuracy", "stop_epsilon"):
            del trained[name]
    older["printed_utility"] = [{"dataset": "mnist", "defense": "none", "accuracy": "0.95"}]
    older["printed_rounds"] = 100
    read = plan_from_json(json.loads(json.dumps(older)))
    assert [each.row for each in read.utility] == ["none", "cdp"]
    assert read.printed_utility["mnist", "none"].accuracy == "0.95"


# ------------------------------------------------------------------------------ only trainings


def test_a_suite_that_attacks_nothing_says_so_everywhere(
    write: Write, tmp_path: Path, leakbench: Callable[..., Any]
) -> None:
    path, folder = write(("stop_epsilon = 500\n", ""), also=PRINTED), tmp_path / "run"
    said = leakbench("validate", path, cwd=tmp_path)
    assert "2 trainings of 2 rounds each" in said.out and "0 cells, 0 trials" in said.out
    made = leakbench("run", path, "--out", folder, "--workers", "1", cwd=tmp_path)
    assert made.code == 0 and "nothing is attacked; 2 of 2 planned trainings" in made.out
    assert "worst attack" not in made.out and "Rates judge" not in made.out
    again = leakbench("run", path, "--out", folder, "--workers", "1", cwd=tmp_path)
    assert "2 were there, 0 run now" in again.errors
    report = json.loads(leakbench("report", folder, "--format", "json", cwd=tmp_path).out)
    assert [entry["row"] for entry in report["costs"]] == ["released/none", "released/cdp"]
    assert report["cells"] == [] and report["datasets"]["mnist"]["title"].startswith("MNIST")
    lines = leakbench("report", folder, "--format", "csv", cwd=tmp_path).out.splitlines()
    assert len(lines) == 3 and lines[1].startswith("mnist,released/none,released,none,")
    page = leakbench("report", folder, "--format", "html", cwd=tmp_path).out
    assert "released code, Fed-CDP" in page
    for command, word in (
        (("gallery", folder), "attacks nothing, so it has no gallery"),
        (("cloak", path), "attacks nothing"),
        (("run", path, "--attack", "cpl"), "no [knowledge]: it only trains"),
    ):
        refused = leakbench(*command, cwd=tmp_path)
        assert refused.code == 2 and word in refused.errors and refused.errors.count("\n") == 1
    assert "0 trials judged again" in leakbench("rescore", folder, cwd=tmp_path).errors


@pytest.mark.parametrize(
    ("also", "word"),
    [
        ('[attack]\nname = "cpl"\n', "key knowledge: missing"),
        ("[knowledge.naive]\n", "key rules: missing"),
        ('[[rules]]\nset = "recovered"\n', "key knowledge: missing"),
        ('[knowledge.naive]\n[[rules]]\nset = "recovered"\n', "profiles.quick.networks: missing"),
    ],
)
def test_a_suite_that_attacks_has_all_that_it_takes(write: Write, also: str, word: str) -> None:
    assert word in error_of(write(also=also))


def test_a_suite_does_something(write: Write) -> None:
    text = Path(write()).read_text(encoding="utf-8")
    path = Path(write())
    path.write_text(text[: text.index("[utility]")] + "[profiles.quick]\n", encoding="utf-8")
    assert "key utility: missing" in error_of(str(path), "quick")


def test_a_budget_needs_a_defense_that_has_an_epsilon(write: Write, tmp_path: Path) -> None:
    plan = resolve(write(), "quick")
    with pytest.raises(LeakbenchError) as caught:
        runner.run(plan, tmp_path / "run", root=None)
    text = str(caught.value)
    assert "utility of 'released/none'" in text and "'none' has no epsilon" in text
    assert not (tmp_path / "run").exists()


def test_rows_that_train_the_same_share_a_training(write: Write, tmp_path: Path) -> None:
    text = Path(write()).read_text(encoding="utf-8")
    own = text[text.index('model = { name = "mlp", weights = "uniform"') : text.index("[profiles")]
    path = write(
        (own, ""),
        ("learning_rates = [0.1, 0.2]\n", ""),
        ('variants = ["released"]', 'datasets = ["mnist"]'),
    )
    plan = resolve(path, "quick")
    planned = planning.plan_trainings(plan, None, "cpu")
    assert len(planned) == 4 and len({each.identities for each in planned}) == 2
    outcome = runner.run(plan, tmp_path / "run", root=None)
    assert (outcome.planned, outcome.ran) == (2, 2)
    assert {record["row"] for record in Run(tmp_path / "run").records().values()} == {
        "written/none", "written/cdp",
    }  # fmt: skip
