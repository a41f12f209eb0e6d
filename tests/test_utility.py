"""Trainings of a suite, and gradients read after training: records, resume, promises, reports."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from leakbench import manifest, networks, planning, runner, trials, utility
from leakbench.chunks import Chunk
from leakbench.commands.application import app
from leakbench.contracts import Defense, Setting
from leakbench.data import catalog, load
from leakbench.data.catalog import look_up
from leakbench.data.datasets import as_unit
from leakbench.defenses.fed_cdp import FedCDP
from leakbench.defenses.fed_sdp import FedSDPClient
from leakbench.errors import LeakbenchError
from leakbench.executors import Processes
from leakbench.federated import train
from leakbench.models.convolutional import BNLeNet5
from leakbench.networks import first_network
from leakbench.pretraining import accuracy
from leakbench.privacy import pld
from leakbench.privacy.account import epsilon
from leakbench.privacy.events import PrivacyEvent
from leakbench.records import Run
from leakbench.report import cells, costs, renderings
from leakbench.report.content import Report
from leakbench.spec import Plan
from leakbench.streams import NoiseStreams, generator
from leakbench.suite import resolve
from leakbench.training_schedule import Schedule
from leakbench.utility import Training, run_training

SUITE = """
schema = 1
name = "small"
title = "Small"
paper = "none"
source = "none"
version = 1
seed = 3
datasets = ["mnist"]
model = { name = "mlp", weights = "default" }
attack = { name = "dlg", parameters = { steps = 1 } }
knowledge = { naive = {}, adaptive = {} }
printed_utility = [{ dataset = "mnist", defense = "none", accuracy = "0.954" }]

[training]
mode = "federated"
iterations = 4
clients = 20
clients_a_round = 3
local_steps = 2
batch_size = { mnist = 4 }

[leak]
type = 2

[utility]
evaluations = 2

[[defenses]]
id = "none"
name = "none"
label = "undefended"

[[defenses]]
id = "cdp"
name = "fed_cdp"
label = "Fed-CDP"
parameters = { clip = 1.0, noise_multiplier = 0.5, convention = "sum" }

[[defenses]]
id = "sdp"
name = "fed_sdp_client"
label = "Fed-SDP"
parameters = { clip = 0.5, noise_multiplier = 0.01 }

[[rules]]
name = "strict"
label = "strict"
kind = "strict"
threshold = 0.01

[profiles.quick]
networks = 1
victims = 4
[profiles.quick.utility]
networks = 2
"""

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """The suite with pieces of text replaced, as a file."""

    def put(*changes: tuple[str, str]) -> str:
        text = SUITE
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / "small.toml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return put


def run(plan: Plan, folder: Path, **options: Any) -> runner.Outcome:
    return runner.run(plan, folder, root=None, **options)


def trained(folder: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """Records of trainings by row and network, without what a host decides."""
    return {
        (record["row"], record["network"]): {k: v for k, v in record.items() if k != "host"}
        for record in Run(folder).records().values()
        if record.get("kind") == "utility"
    }


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Path]:
    """The suite run once."""
    folder = tmp_path_factory.mktemp("done")
    path = folder / "small.toml"
    path.write_text(SUITE, encoding="utf-8")
    plan = resolve(str(path))
    outcome = run(plan, folder / "run")
    assert (outcome.planned, outcome.ran, outcome.errors) == (6 * 4 + 6, 6 * 4 + 6, 0)
    return plan, folder / "run"


def report_of(plan: Plan, folder: Path) -> Report:
    store = Run(folder)
    known = manifest.read(store)
    return cells.build(plan, known.cells, store.records(), known.facts, known.trainings)


# ------------------------------------------------------------------------------ trainings

SWEPT = (
    ("[utility]\n", "[utility]\nlearning_rates = [0.2, 0.000001]\ndefenses = ['none', 'sdp']\n"),
    ("iterations = 4", "iterations = 6"),
    ("networks = 2", "networks = 1"),
)


def test_a_sweep_reports_the_rate_that_held_out_examples_choose(
    write: Write, tmp_path: Path
) -> None:
    """And what it reports is the training at that rate on the rest of the examples."""
    plan = resolve(write(*SWEPT))
    run(plan, tmp_path / "swept")
    found = trained(tmp_path / "swept")
    assert len(found) == 2
    for (row, _), record in found.items():
        (first, held, test), (second, *_) = record["sweep"]
        assert (first, second) == (0.2, 0.000001)
        best = max(record["sweep"], key=lambda tried: tried[1])
        assert record["learning_rate"] == best[0] and record["accuracy"] == best[2]
        assert record["examples"] == 3600  # a tenth of the embedded sample is held out
        if row == "none":
            assert record["learning_rate"] == 0.2 and held > 0.2 and test > 0.2
    cell = next(cell for cell in plan.utility if cell.row == "none")
    data = utility.material("mnist", None)
    order = torch.randperm(4000, generator=generator(3, "held out", "mnist", 0))
    kept = order[400:].sort().values
    schedule = Schedule(**{**cell.schedule, "learning_rate": 0.2})
    model, weights = first_network(cell, look_up("mnist"), 0)
    again = train(
        model, weights, data.train[kept], data.train_labels[kept], Defense(), schedule,
        seed=3, axes=("mnist", 0), noise=NoiseStreams(3, ()),
    )  # fmt: skip
    reached = accuracy(model, again.weights, data.test, data.test_labels)
    assert found["none", 0]["accuracy"] == pytest.approx(reached, abs=1e-6)
    held_out = as_unit(data.train[order[:400]])
    shown = accuracy(model, again.weights, held_out, data.train_labels[order[:400]])
    assert found["none", 0]["sweep"][0][1] == pytest.approx(shown, abs=1e-6)


def test_a_training_stops_at_its_budget_to_the_round(write: Write, tmp_path: Path) -> None:
    """After as many rounds as `account` allows, with the epsilon of those rounds."""
    private = ("parameters = { clip = 0.5, noise_multiplier = 0.01 }",
               "parameters = { clip = 0.5, noise_multiplier = 4.0 }")  # fmt: skip
    one = ("networks = 2", "networks = 1")
    run(resolve(write(private, one), defense="sdp"), tmp_path / "all")
    whole = trained(tmp_path / "all")["sdp", 0]
    assert whole["rounds"] == 4 and whole["stopped"] == ""
    event = PrivacyEvent(
        noise_multiplier=whole["privacy"]["events"][0]["noise_multiplier"], sensitivity=1.0,
        sampling_rate=3 / 20, sampling="fixed_size", steps=4,
    )  # fmt: skip
    budget = (
        sum(
            epsilon((replace(event, steps=n),), 1e-5, relation="replace_one").epsilon or 0
            for n in (2, 3)
        )
        / 2
    )
    stopping = ("[utility]\n", f"[utility]\nstop_epsilon = {budget}\n")
    run(resolve(write(private, stopping, one), defense="sdp"), tmp_path / "some")
    stopped = trained(tmp_path / "some")["sdp", 0]
    assert stopped["rounds"] == 2 and stopped["stopped"] == "epsilon"
    assert stopped["privacy"]["epsilon"] <= budget < whole["privacy"]["epsilon"]
    assert stopped["curve"][-1][0] == 2 and stopped["iterations"] == 4


def test_a_training_stops_at_its_target(write: Write, tmp_path: Path) -> None:
    changes = ("[utility]\n", "[utility]\nstop_accuracy = 0.2\ndefenses = ['none', 'sdp']\n")
    run(resolve(write(changes, ("iterations = 4", "iterations = 12"))), tmp_path / "run")
    for record in trained(tmp_path / "run").values():
        shares = [share for _, share in record["curve"]]
        assert [done for done, _ in record["curve"]] == list(range(record["rounds"] + 1))
        assert all(share < 0.2 for share in shares[:-1])
        assert (record["stopped"] == "accuracy") == (shares[-1] >= 0.2)
    reached = [r for r in trained(tmp_path / "run").values() if r["stopped"]]
    assert reached and all(r["rounds"] < 12 for r in reached)


def test_a_record_logs_its_rounds(done: tuple[Plan, Path]) -> None:
    for (row, _), record in trained(done[1]).items():
        assert [each["round"] for each in record["log"]] == [1, 2, 3, 4]
        for each in record["log"]:
            assert each["norms"] == sorted(each["norms"]) and each["loss"] > 0
            noisy = row == "sdp"
            assert (each["update_distance"] > 0) == noisy


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ([("local_steps = 2", "local_steps = 2\nmomentum = 0.9"), ("type = 2", "type = 1")],
         "key training.momentum"),
        ([("local_steps = 2", "local_steps = 2\nnormalise = true")], "key training.normalise"),
        ([("local_steps = 2", "local_steps = 2\naugment = ['flip']")], "key training.augment"),
        ([("local_steps = 2", "local_steps = 2\nlearning_rate_policy = 'cosine'"),
          ("type = 2", "type = 1\nat = 1")], "key training.learning_rate_policy"),
    ],
)  # fmt: skip
def test_an_update_that_no_attacker_can_replay_is_refused(
    write: Write, changes: list[tuple[str, str]], said: str
) -> None:
    with pytest.raises(LeakbenchError, match=said):
        resolve(write(*changes))


def test_a_record_says_what_the_training_did(done: tuple[Plan, Path]) -> None:
    plan, folder = done
    data = load("mnist")
    for (row, network), record in trained(folder).items():
        (cell,) = (each for each in plan.utility if each.row == row)
        _, weights = networks.first_network(cell, load("mnist"), network)
        model = networks.first_network(plan.cells[0], data, network)[0]
        again = train(
            model, weights, data.train, data.train_labels, networks.build_defense(cell),
            Schedule(**cell.schedule), seed=3, axes=("mnist", network),
            noise=NoiseStreams(3, ("training", "mnist", network)),
        )  # fmt: skip
        # Half of the public digits test, the other half is what defenses may look at.
        share = accuracy(model, again.weights, data.public[500:], data.public_labels[500:])
        assert record["accuracy"] == pytest.approx(share, abs=1e-6)
        assert [rounds for rounds, _ in record["curve"]] == [0, 2, 4]
        assert record["curve"][-1][1] == record["accuracy"]
        assert (record["status"], record["data"], record["examples"]) == ("ok", "sample", 4000)
        assert (record["rounds"], record["iterations"]) == (4, 8)
    assert len(trained(folder)) == 6


def test_methods_start_alike_and_networks_do_not(done: tuple[Plan, Path]) -> None:
    starts = {key: record["curve"][0][1] for key, record in trained(done[1]).items()}
    for network in (0, 1):
        assert len({share for (_, number), share in starts.items() if number == network}) == 1
    assert starts["none", 0] != starts["none", 1]


@pytest.mark.independent_rows
def test_the_same_whatever_workers_and_kills(write: Write, done: tuple[Plan, Path]) -> None:
    plan = resolve(write(), attack="start_image")  # no training depends on the attack
    folder = Path(write()).parent / "again"
    run(plan, folder, executor=Processes(2), chunk_size=3)
    assert trained(folder) == trained(done[1])
    assert run(plan, folder).ran == 0
    # A kill may take any line with it: what is lost is done again, and nothing else.
    path = folder / "records.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lost = next(line for line in lines if json.loads(line).get("kind") == "utility")
    path.write_bytes(b"".join(line for line in lines if line != lost))
    assert run(plan, folder).ran == 1
    assert trained(folder) == trained(done[1])


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ('label = "Fed-CDP"', 'label = "another"', True),
        ("steps = 1", "steps = 2", True),  # the attack's
        ("clip = 1.0", "clip = 2.0", False),
        ("clients_a_round = 3", "clients_a_round = 4", False),
        ("iterations = 4", "iterations = 5", False),
        ("evaluations = 2", "evaluations = 1", False),
        ("seed = 3", "seed = 4", False),
    ],
)
def test_what_decides_a_training_is_in_its_identity(
    write: Write, old: str, new: str, same: bool
) -> None:
    def identities(path: str) -> set[str]:
        planned = planning.plan_trainings(resolve(path), None, "cpu")
        return {name for each in planned if each.cell.row == "cdp" for name in each.identities}

    before = identities(write())
    assert len(before) == 2
    assert (identities(write((old, new))) == before) == same


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ([("clients = 20", "clients = 2000")], ["2 examples", "batch of 4", "up to 2"]),
        ([("clients_a_round = 3", "clients_a_round = 30")], ["30 clients a round of 20"]),
        ([("clip = 1.0", "clip = 0.0")], ["defense 'cdp'", "clip", "positive"]),
        ([("noise_multiplier = 0.5", "noise_multiplier = -1.0")], ["noise_multiplier", ">= 0"]),
        (
            [("clients_a_round = 3", 'clients_a_round = 3\nsampling = "poisson"\n'
              'aggregation = "fed_averaging"')],
            ["fed_averaging", "fed_sgd"],
        ),
        ([("[utility]", '[utility]\ndefenses = ["cdq"]')], ["utility.defenses", "'cdp'"]),
        ([("[utility]", '[utility]\nmodel = { name = "cnn9" }')], ["model.name", "'cnn2'"]),
        ([('accuracy = "0.954"', 'accuracy = "1.954"')], ["printed_utility.accuracy", "0 to 1"]),
        ([('name = "fed_cdp"', 'name = "batch_clip"'),
          ('parameters = { clip = 1.0, noise_multiplier = 0.5, convention = "sum" }',
           "parameters = { subset = 3 }")],
         ["no subsets of 3", "divisors"]),
    ],
)  # fmt: skip
def test_a_training_that_cannot_start_is_refused_before_anything_runs(
    write: Write, changes: list[tuple[str, str]], words: list[str]
) -> None:
    path = write(*changes)
    folder = Path(path).parent / "refused"
    with pytest.raises(LeakbenchError) as caught:
        run(resolve(path), folder)
    assert "small.toml" in str(caught.value) and "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)
    assert not folder.exists()


def test_weights_that_leave_the_finite_numbers_are_said_to(write: Write, tmp_path: Path) -> None:
    plan = resolve(write(("noise_multiplier = 0.01", "noise_multiplier = 1e38")), defense="sdp")
    outcome = run(plan, tmp_path / "run")
    assert outcome.errors == 0
    for record in trained(tmp_path / "run").values():
        assert record["status"] == "nan" and "finite" in record["reason"]


def test_a_defense_that_fails_fails_alone(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no luck")

    monkeypatch.setattr(FedCDP, "on_examples", fail)
    outcome = run(resolve(write()), tmp_path / "run")
    found = trained(tmp_path / "run")
    assert {row for (row, _), record in found.items() if record["status"] == "error"} == {"cdp"}
    assert "no luck" in found["cdp", 0]["reason"]
    assert outcome.errors == 2 + 2 * 4  # its trainings, and its trials of two attackers


def test_no_data_is_no_error(write: Write, tmp_path: Path) -> None:
    path = write(('datasets = ["mnist"]', 'datasets = ["lfw"]'), ("mnist = 4", "lfw = 4"),
                 ('printed_utility = [{ dataset = "mnist", defense = "none", accuracy = "0.954" }]',
                  ""))  # fmt: skip
    outcome = run(resolve(path), tmp_path / "run")
    assert (outcome.ran, outcome.errors, outcome.skipped) == (0, 0, 30)
    report = report_of(resolve(path), tmp_path / "run")
    assert all("no data" in entry.reason for entry in report.costs)


@pytest.mark.data
def test_the_whole_set_is_used_where_it_is() -> None:
    root = catalog.data_root()
    if root is None:
        pytest.skip("LEAKBENCH_DATA is not set")
    found = utility.material("mnist", root)
    assert (found.source, len(found.train), len(found.test)) == ("full", 59_500, 10_000)
    public = {row.tobytes() for row in (found.public * 255).round().to(torch.uint8).numpy()}
    assert len(public) == 500
    for part in (found.train, found.test):
        assert not any(row.tobytes() in public for row in part.numpy())


@pytest.mark.data
@pytest.mark.parametrize("name", ["cifar10", "lfw", "adult"])
def test_what_is_public_tests_nothing(name: str) -> None:
    root = catalog.data_root()
    if root is None:
        pytest.skip("LEAKBENCH_DATA is not set")
    found = utility.material(name, root)
    public = {row.numpy().tobytes() for row in found.public}
    assert not any(row.numpy().tobytes() in public for row in as_unit(found.test))


def test_pretraining_does_not_see_what_tests_it(write: Write, tmp_path: Path) -> None:
    pretrained = ("[utility]", "[utility]\nmodel = { name = 'mlp', pretraining = { epochs = 60 } }")
    slow = ("local_steps = 2", "local_steps = 2\nlearning_rate = 1e-9")
    plan = resolve(write(pretrained, slow), defense="none", attack="start_image")
    run(plan, tmp_path / "run")
    shares = [record["curve"][0][1] for record in trained(tmp_path / "run").values()]
    assert all(0.5 < share < 0.95 for share in shares)
    found = utility.material("mnist", None)
    assert not {row.numpy().tobytes() for row in found.public} & {
        row.numpy().tobytes() for row in found.test
    }


# ------------------------------------------------------------------------------ privacy


def test_epsilon_is_that_of_the_releases(done: tuple[Plan, Path]) -> None:
    found = trained(done[1])
    setting = Setting(
        batch_size=4, local_steps=2, clients=3, all_clients=20, examples=200, rounds=4
    )
    _, weights = networks.first_network(done[0].utility[0], load("mnist"), 0)
    for row, defense in (
        ("cdp", FedCDP(clip=1.0, noise_multiplier=0.5, convention="sum")),
        ("sdp", FedSDPClient(clip=0.5, noise_multiplier=0.01)),
    ):
        events = defense.events(weights, setting)
        privacy = found[row, 0]["privacy"]
        # An example takes part once a round at most; a client is drawn with chance 3 / 20.
        assert [event["steps"] for event in privacy["events"]] == [4]
        rate = 1.0 if row == "cdp" else 3 / 20
        assert privacy["events"][0]["sampling_rate"] == pytest.approx(rate)
        assert privacy["events"][0]["sampling"] == "fixed_size"
        expected = pld.epsilon(events, 1e-5, relation="replace_one")
        assert privacy["epsilon"] == pytest.approx(expected)
        assert privacy["level"] == ("instance" if row == "cdp" else "client")
        assert privacy["flags"] == (["not_amplified"] if row == "cdp" else [])
    assert found["none", 0]["privacy"]["epsilon"] is None
    assert found["none", 0]["privacy"]["reason"]


# ------------------------------------------------------------------------------ report


def test_costs_stand_beside_the_worst_attack(done: tuple[Plan, Path]) -> None:
    plan, folder = done
    report = report_of(plan, folder)
    json.dumps(report.as_dict(), allow_nan=False)
    entries = {entry.row: entry for entry in report.costs}
    records = trained(folder)
    for row, entry in entries.items():
        mean = (records[row, 0]["accuracy"] + records[row, 1]["accuracy"]) / 2
        assert entry.accuracy.value == pytest.approx(mean)
        assert entry.networks == 2 and entry.failed == 0
    assert entries["none"].times_undefended == 1.0
    own, other = (entries[row].seconds_per_iteration for row in ("cdp", "none"))
    assert own is not None and other is not None
    assert entries["cdp"].times_undefended == pytest.approx(own / other)
    assert entries["none"].printed_accuracy == "0.954"
    assert entries["none"].verdict == "sample data"  # .3 after 4 rounds, on 4,000 digits
    text = renderings.to_markdown(report)
    assert "Leakage, accuracy, privacy and cost" in text
    whole = text.split("## All of it")[1].splitlines()
    line = next(line for line in whole if line.startswith("| Fed-CDP"))
    assert "replace-one" in line and "not amplified" in line and "3 of 20" in line


def test_fewer_rounds_neither_confirm_nor_refute(write: Write, tmp_path: Path) -> None:
    path = write(("[profiles.quick.utility]", "[profiles.quick.utility]\niterations = 1"))
    plan = resolve(path, defense="none")
    run(plan, tmp_path / "run")
    (entry,) = report_of(plan, tmp_path / "run").costs
    assert (entry.verdict, entry.rounds) == ("fewer rounds", 1)


@pytest.mark.parametrize(
    ("rounds", "data", "status", "accuracy", "verdict"),
    [
        (4, "full", "ok", 0.95, "reproduced"),
        (4, "full", "ok", 0.90, "not reproduced"),
        (4, "full", "nan", 0.95, "weights nan"),
        (4, "sample", "ok", 0.95, "sample data"),
        (3, "full", "ok", 0.95, "fewer rounds"),
    ],
)
def test_what_a_training_may_say_of_print(
    write: Write, rounds: int, data: str, status: str, accuracy: float, verdict: str
) -> None:
    """Also where the rounds are set for the whole suite: print speaks of those in the file."""
    plan = resolve(write(), defense="none", settings=[f"training.iterations={rounds}"])
    planned = planning.plan_trainings(plan, None, "cpu")
    records = {
        key: {"status": status, "reason": "", "accuracy": accuracy, "curve": [[0, 0.1]],
              "data": data, "examples": 1, "privacy": {}}
        for each in planned for key in each.trials()
    }  # fmt: skip
    (entry,) = costs.build(plan, planned, records)
    assert entry.verdict == verdict
    assert entry.nan == (2 if status == "nan" else 0)


def test_printed_accuracies_go_with_the_settings_they_are_of(write: Write) -> None:
    def printed(*settings: str) -> set[tuple[str, str]]:
        return set(resolve(write(), settings=settings).printed_utility)

    assert printed() == {("mnist", "none")}
    assert printed("training.learning_rate=0.2") == set()
    assert printed("profiles.quick.utility.iterations=1") == {("mnist", "none")}


def test_the_command_line_shows_trainings(write: Write, tmp_path: Path) -> None:
    path = write(("networks = 2", "networks = 1"))
    cli = CliRunner()
    said = cli.invoke(app, ["validate", path])
    assert "3 trainings of 4 rounds each" in said.output
    made = cli.invoke(app, ["run", path, "--out", str(tmp_path / "run"), "--workers", "1"])
    assert made.exit_code == 0
    assert "Accuracy after training: undefended (0." in made.output
    assert "x undefended" in cli.invoke(app, ["report", "--full", str(tmp_path / "run")]).output
    again = cli.invoke(app, ["report", str(tmp_path / "run"), "--format", "json"])
    assert [entry["row"] for entry in json.loads(again.output)["costs"]] == ["none", "cdp", "sdp"]


# ------------------------------------------------------------------------------ later leaks


LATE = ("[leak]\ntype = 2", '[leak]\ntype = 2\nat = "middle"')


def leaks(plan: Plan, row: str, knowledge: str = "naive") -> Any:
    """The leak of a row's victims, as an attack is given it, and the cell."""
    (cell,) = (c for c in plan.cells if c.row == row and c.knowledge == knowledge)
    found: list[Any] = []

    class Keep:
        name = "keep"
        requires = uses = ()

        def skip(self, facts: Any) -> str:
            return ""

        def budget(self, facts: Any) -> int:
            return 0

        def start(self, leak: Any, streams: Any) -> None:
            found.append(leak)
            raise InterruptedError

    chunk = Chunk(
        cells=(cell,), identities=("x",), network=0, trials=((0, 0), (0, 1)),
        rules=plan.rules, root=None, device="cpu",
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch, pytest.raises(InterruptedError):
        patch.setattr(trials, "build_attack", lambda cell: Keep())
        trials.run_chunk(chunk)
    return found[0], cell


def test_a_later_leak_is_read_from_weights_trained_with_the_defense(write: Write) -> None:
    plan = resolve(write(LATE))
    data = load("mnist")
    for row in ("none", "cdp", "sdp"):
        leak, cell = leaks(plan, row)
        model, weights = networks.first_network(cell, data, 0)
        assert cell.rounds == (2,) and leak.point.round == 2
        schedule = Schedule(**{**cell.federation, "rounds": 2})
        reached = train(
            model, weights, data.train, data.train_labels, networks.build_defense(cell), schedule,
            total=4, seed=3, axes=("mnist", 0), noise=NoiseStreams(3, ("training", "mnist", 0)),
        ).weights  # fmt: skip
        seen = leak.observations[0].weights
        assert all(torch.equal(seen[name], value) for name, value in reached.items())
        assert not torch.equal(seen[model.head], weights[model.head])


def test_looks_over_rounds_follow_the_training(write: Write) -> None:
    over = ("[leak]\ntype = 2", '[leak]\ntype = 2\nobservations = 3\nover = "rounds"')
    plan = resolve(write(over, ('convention = "sum"', 'convention = "per_example"')))
    leak, cell = leaks(plan, "cdp", "adaptive")
    assert cell.rounds == (0, 1, 2) and cell.leak == "type2/example@first x3, a round each"
    heads = [look.weights["dense3.weight"] for look in leak.observations]
    assert not torch.equal(heads[0], heads[1]) and not torch.equal(heads[1], heads[2])
    noise = [
        look.gradients.tensors["dense3.weight"]
        - look.simulate(victim_inputs(), leak_labels(), torch.arange(2)).tensors["dense3.weight"]
        for look in leak.observations
    ]
    # The replay at the truth leaves the noise alone: std 0.5 * C, fresh in every round.
    for one in noise:
        assert float(one.std()) == pytest.approx(0.5, rel=0.15)
    assert abs(float((noise[0] * noise[1]).mean())) < 0.05
    # Later weights were trained on the victims too, which no ceiling counts.
    planned = next(each for each in planning.plan_cells(plan, None, "cpu") if each.cell == cell)
    assert planned.ceiling_mu is None


def victim_inputs() -> torch.Tensor:
    return load("mnist").candidates[:2][:, None]


def leak_labels() -> torch.Tensor:
    return load("mnist").candidate_labels[:2][:, None]


def test_first_leaks_do_not_depend_on_the_training_to_come(write: Write) -> None:
    first = {str(cell): cell.spec() for cell in resolve(write()).cells}
    other = resolve(write(("clients = 20", "clients = 25")))
    assert {str(cell): cell.spec() for cell in other.cells} == first
    later = {cell.row: cell.spec() for cell in resolve(write(LATE)).cells}
    moved = resolve(write(LATE, ("clients = 20", "clients = 25")))
    assert all(cell.spec() != later[cell.row] for cell in moved.cells)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ([("[leak]\ntype = 2", "[leak]\ntype = 2\nat = 1"),
          ("clients = 20", "clients = 20\nexamples_a_client = { mnist = 2 }"),
          ("[utility]\n", "[utility]\ndatasets = ['mnist']\n[utility.training]\n"
           "batch_size = { mnist = 4 }\n[ignored]\n")],
         ["row 'none'", "2 examples", "batch of 4"]),
        ([("[leak]\ntype = 2", "[leak]\ntype = 1"), ("victims = 4", "victims = 8"),
          ('name = "fed_cdp"', 'name = "batch_clip"'),
          ('parameters = { clip = 1.0, noise_multiplier = 0.5, convention = "sum" }',
           "parameters = { subset = 3 }")],
         ["row 'cdp'", "no subsets of 3"]),
    ],
)  # fmt: skip
def test_a_leak_that_cannot_be_made_is_refused_before_anything_runs(
    write: Write, changes: list[tuple[str, str]], words: list[str]
) -> None:
    path = Path(write(*changes))
    path.write_text(path.read_text().replace("[ignored]\nevaluations = 2\n", ""))
    with pytest.raises(LeakbenchError) as caught:
        run(resolve(str(path)), path.parent / "refused")
    assert "small.toml" in str(caught.value)
    for word in words:
        assert word in str(caught.value)
    assert not (path.parent / "refused").exists()


def test_promises_of_later_looks_know_the_decay(write: Write) -> None:
    decaying = ('name = "fed_cdp"', 'name = "dp_dyn_sigma"')
    noise = ('noise_multiplier = 0.5, convention = "sum"',
             'noise_multiplier = 6.0, noise_multiplier_end = 2.0')  # fmt: skip
    found = []
    for at in (0, 3):
        plan = resolve(write(decaying, noise, ("[leak]\ntype = 2", f"[leak]\ntype = 2\nat = {at}")))
        planned = [p for p in planning.plan_cells(plan, None, "cpu") if p.cell.row == "cdp"]
        assert planned[0].ceiling_mu == (None if at else pytest.approx(math.sqrt(6) / 6))
        found.append(planned[0].guarantee)
    # C = 1 on six tensors: sensitivity sqrt(6); sigma falls from 6 to 2 and is 3 in round 3 of 4.
    assert "sensitivity 2.45" in found[0] and found[0].endswith("std 6")
    assert "sensitivity 2.45" in found[1] and found[1].endswith("std 3")


@pytest.mark.independent_rows
def test_late_trials_run_whatever_their_company(write: Write, tmp_path: Path) -> None:
    plan = resolve(write(LATE, ("[profiles.quick.utility]\nnetworks = 2", "")))
    run(plan, tmp_path / "one", chunk_size=1)
    run(plan, tmp_path / "all")

    def kept(folder: Path, kind: str) -> dict[Any, Any]:
        return {
            key: {k: v for k, v in record.items() if k != "host"}
            for key, record in Run(folder).records().items()
            if record.get("knowledge") == kind
        }

    for kind in ("naive", "adaptive"):
        assert kept(tmp_path / "one", kind) == kept(tmp_path / "all", kind) != {}


@pytest.mark.parametrize("rounds", [1, 7, 500, 501, 6000, 10_000])
def test_a_target_is_looked_for_after_every_round_or_500_of_them(rounds: int) -> None:
    found = utility.looks(rounds)
    assert found[0] == 0 and found[-1] == rounds and len(found) == min(rounds, 500) + 1
    steps = {b - a for a, b in pairwise(found)}
    assert steps <= {rounds // 500, -(-rounds // 500)} or steps == {1}


def test_batch_norm_is_evaluated_by_statistics_of_public_batches() -> None:
    """The curve's start is that of torch's module in evaluation mode, after 7 public batches."""
    plan = resolve("bcalc_figure11", "quick")
    cell = replace(
        plan.utility[0],
        schedule={**plan.utility[0].schedule, "rounds": 1, "normalise": False, "augment": ()},
        evaluate_at=(0, 1),
    )
    record = run_training(Training(cell=cell, identity="", network=0, root=None, device="cpu"))
    sample = load("mnist")
    module = BNLeNet5().build((1, 28, 28), 10, "default")
    _, weights = first_network(cell, look_up("mnist"), 0)
    module.load_state_dict(weights, strict=False)
    for layer in module.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.momentum = None
    with torch.no_grad():
        for batch in sample.public[:448].split(64):
            module.train()(batch)
        found = module.eval()(sample.public[500:]).argmax(dim=1)
    wanted = float((found == sample.public_labels[500:]).float().mean())
    assert record["curve"][0][1] == pytest.approx(wanted, abs=0.0021)  # an example at a boundary
    assert record["curve"][-1][1] == record["accuracy"]
    assert record["log"][0]["clip"] == pytest.approx(0.05)
