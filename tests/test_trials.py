"""Trials on real digits: batches, grants, several looks, pretrained networks, unruly plugins."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import leakbench.attacks
import leakbench.defenses
from leakbench import federated, networks, planning, runner, trials
from leakbench.chunks import batch_from
from leakbench.data import load
from leakbench.errors import LeakbenchError
from leakbench.metrics.mse import mse
from leakbench.metrics.rank import candidate_ranks
from leakbench.records import Key, Record, Run, encode
from leakbench.spec import Cell, Plan
from leakbench.suite import resolve

ATTACK = """
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from leakbench.attacks.start_image import StartImage
from leakbench.contracts import Attack
from leakbench.chunks import batch_from
from leakbench.data import load
from leakbench.matching import squared_loss


@dataclass(frozen=True, kw_only=True)
class Mine(Attack):
    name: ClassVar[str] = "mine"

    def loss(self, leak, inputs, labels, rows):
        return squared_loss(leak, inputs, labels, rows)

    def reconstruct(self, leak, streams, watch):
        good = StartImage().reconstruct(leak, streams, watch)
        {deed}
"""

DEFENSE = """
from dataclasses import dataclass
from typing import ClassVar

from leakbench.contracts import Defense


@dataclass(frozen=True, kw_only=True)
class Mine(Defense):
    name: ClassVar[str] = "mine"

    def init(self, weights):
        for value in weights.values():
            value.zero_()
"""

Drop = Callable[[str, str], None]


@pytest.fixture
def drop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Drop]:
    """Put a plugin named "mine" beside the built-in ones."""
    packages = {"attacks": leakbench.attacks, "defenses": leakbench.defenses}

    def put(kind: str, text: str) -> None:
        folder = tmp_path / kind
        folder.mkdir()
        (folder / "mine.py").write_text(text)
        package = packages[kind]
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])

    yield put
    for kind in packages:
        sys.modules.pop(f"leakbench.{kind}.mine", None)


def run(folder: Path, attack: str | None = None, more: tuple[str, ...] = ()) -> list[Record]:
    """Two victims of one undefended row, and what the runner wrote about them."""
    settings = (
        'datasets=["mnist"]', 'knowledge={naive={}}', "profiles.quick.networks=1",
        "profiles.quick.victims=2", "attack.parameters.steps=1", "profiles.quick.snapshots=[]",
        'notes=[]', *more,
    )  # fmt: skip
    row = "none" if not more else None
    plan = resolve("tifs_table3", attack=attack, defense=row, settings=settings)
    runner.run(plan, folder, root=None)
    return list(Run(folder).records().values())


REFUSED = {
    "return replace(good, steps=good.steps - 5)": "steps must be from 0",
    "return replace(good, labels=good.labels + 1000)": "labels must be from 0 to 9",
    "return replace(good, labels=good.labels + 0.5)": "not whole numbers",
    "return replace(good, labels=good.labels[:, 0])": "labels of shape (2,)",
    "return replace(good, inputs=good.inputs.long())": "not floating point",
    "return None": "returned NoneType",
    'leak.observed.tensors["dense.bias"].zero_(); return good': "changes the observed gradients",
    'leak.observations[0].weights["dense.bias"].zero_(); return good': "changes the weights",
    'load("mnist").candidates.zero_(); return good': "changes the data",
}


@pytest.mark.parametrize("deed", REFUSED)
def test_what_an_attack_must_not_do_is_an_error_that_says_so(
    deed: str, drop: Drop, tmp_path: Path
) -> None:
    drop("attacks", ATTACK.format(deed=deed))
    before = load("mnist").candidates.clone()
    for record in run(tmp_path / "run", attack="mine"):
        assert record["status"] == "error"
        assert "attack 'mine'" in record["reason"] and REFUSED[deed] in record["reason"]
    assert torch.equal(load("mnist").candidates, before)


def test_images_that_are_not_finite_end_in_nan(drop: Drop, tmp_path: Path) -> None:
    drop("attacks", ATTACK.format(deed="return replace(good, inputs=good.inputs * torch.inf)"))
    assert {record["status"] for record in run(tmp_path / "run", attack="mine")} == {"nan"}


def test_an_attack_that_ends_above_its_start_has_diverged(drop: Drop, tmp_path: Path) -> None:
    """Losses 3 and 5 of victims 0 and 1, from the starts' 4 and 4, or from their own."""
    status = {}
    for name, start in {"four": "torch.full_like(loss, 4)", "own": "loss"}.items():
        deed = f"""loss = torch.tensor([3.0, 5.0])
        return replace(good, loss=loss, start_loss={start})"""
        if name == "four":
            drop("attacks", ATTACK.format(deed=deed))
        else:
            (tmp_path / "attacks" / "mine.py").write_text(ATTACK.format(deed=deed))
            sys.modules.pop("leakbench.attacks.mine")
        records = run(tmp_path / name, attack="mine")
        assert {r["victim"]: r["loss"] for r in records} == {0: 3.0, 1: 5.0}
        status[name] = {r["victim"]: r["status"] for r in records}
    assert status == {"four": {0: "ok", 1: "diverged"}, "own": {0: "ok", 1: "ok"}}


def test_the_attack_cannot_reach_the_victim_through_what_it_is_given(
    drop: Drop, tmp_path: Path
) -> None:
    deed = 'assert not hasattr(watch, "__self__") and "mnist" not in repr(streams); return good'
    drop("attacks", ATTACK.format(deed=deed))
    assert {record["status"] for record in run(tmp_path / "run", attack="mine")} == {"ok"}


def test_a_defense_that_spoils_its_weights_spoils_no_other_row(drop: Drop, tmp_path: Path) -> None:
    drop("defenses", DEFENSE)
    rows = (
        'defenses=[{id="mine",name="mine",label="m"},{id="none",name="none",label="n"}]',
        "printed=[]",
    )
    together = {r["victim"]: r for r in run(tmp_path / "two", more=rows) if r["row"] == "none"}
    alone = {record["victim"]: record for record in run(tmp_path / "one")}
    for victim, record in alone.items():
        assert record["mse_raw"] == together[victim]["mse_raw"]


# ------------------------------------------------------------------------------ batches

BATCHES = """
schema = 1
name = "batches"
title = "Batches of two"
paper = "none"
source = "written for a test"
version = 1
seed = 11
datasets = ["mnist"]

[model]
name = "cnn2"

[training]
mode = "federated"
learning_rate = 0.5
batch_size = { mnist = 2 }

[leak]
type = 0

[attack]
name = "cpl"
parameters = { steps = 2 }

[knowledge.adaptive]

[[defenses]]
id = "none"
name = "none"
label = "none"

[[defenses]]
id = "dp"
name = "dp_baseline"
label = "DP"
parameters = { clip = 4.0, noise_multiplier = 0.01 }

[[rules]]
name = "strict"
label = "strict"
kind = "strict"
threshold = 0.01

[[rules]]
name = "loose"
label = "loose"
kind = "mse"
threshold = 0.5
clamp = false

[profiles.quick]
networks = 1
victims = 6
snapshots = [1]
"""


@pytest.fixture
def batches(tmp_path: Path) -> str:
    """The path of a suite whose gradients are made of two images."""
    path = tmp_path / "batches.toml"
    path.write_text(BATCHES, encoding="utf-8")
    return str(path)


def test_the_partitions_that_are_checked_are_those_that_are_trained_on(
    batches: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = [
        "training.iterations=3", "training.clients=4", "leak.at=1",
        'training.partition="dirichlet"',
    ]  # fmt: skip
    cell = resolve(batches, settings=settings).cells[0]
    digits = load("mnist")
    seen: dict[str, list[list[list[int]]]] = {"checked": [], "trained": []}

    def recorder(place: str) -> Callable[..., None]:
        def record(model: Any, defense: Any, schedule: Any, shares: Any, public: Any) -> None:
            seen[place].append([share.tolist() for share in shares])

        return record

    monkeypatch.setattr(trials, "check", recorder("checked"))
    monkeypatch.setattr(federated, "check", recorder("trained"))
    trials.check_cell(cell, digits, 2)
    for number in (0, 1):
        attacked = trials.attacked_network(cell, digits, number)
        trials.looks(cell, digits, attacked, networks.build_defense(cell), number)
    assert seen["checked"] == seen["trained"]
    assert seen["checked"][0] != seen["checked"][1]


def run_plan(plan: Plan, folder: Path, **options: Any) -> dict[Key, Record]:
    """Records of a run without what a host decides; no trial may fail."""
    assert runner.run(plan, folder, root=None, **options).errors == 0
    return records_in(folder)


def records_in(folder: Path) -> dict[Key, Record]:
    return {
        key: {name: value for name, value in record.items() if name != "host"}
        for key, record in Run(folder).records().items()
    }


def arrays_in(folder: Path) -> dict[Key, dict[str, np.ndarray]]:
    """What the arrays hold about every image; the trace without its padding."""
    store, found = Run(folder), {}
    for key, record in store.records().items():
        place = record["host"]["arrays"]
        arrays, row = store.arrays(place["file"]), place["row"]
        assert arrays["victims"][row] == record["victim"]
        trace = arrays["trace"][row]
        found[key] = {
            "inputs": arrays["inputs"][row],
            "start": arrays["start"][row],
            "snapshots": arrays["snapshots"][:, row],
            "trace": trace[~np.isnan(trace)],
        }
    return found


def bytes_in(folder: Path) -> dict[Key, dict[str, bytes]]:
    return {
        key: {name: value.tobytes() for name, value in arrays.items()}
        for key, arrays in arrays_in(folder).items()
    }


def by_image(records: dict[Key, Record], row: str = "none") -> dict[int, Record]:
    return {r["victim"]: r for r in records.values() if r["row"] == row}


def test_every_image_of_a_batch_has_its_own_record(batches: str, tmp_path: Path) -> None:
    dataset = load("mnist")
    records = run_plan(resolve(batches), tmp_path / "run")
    assert len(records) == 2 * 6
    arrays = {
        (r["row"], r["victim"]): arrays_in(tmp_path / "run")[key] for key, r in records.items()
    }
    for row in ("none", "dp"):
        images = by_image(records, row)
        assert sorted(images) == list(range(6))
        assert [images[i]["batch"] for i in range(6)] == [0, 0, 2, 2, 4, 4]
        for number, record in images.items():
            assert record["label"] == int(dataset.candidate_labels[number])
            assert record["source_index"] == int(dataset.candidate_indices[number])
            found = torch.from_numpy(arrays[row, number]["inputs"])
            truth = dataset.candidates[number]
            assert found.shape == truth.shape == (1, 28, 28)
            assert record["mse_raw"] == pytest.approx(float((found - truth).square().mean()))
            clamped = float((found.clamp(0, 1) - truth).square().mean())
            assert record["mse_clamped"] == pytest.approx(clamped, rel=1e-5)
            rank = candidate_ranks(found[None], dataset.candidates, torch.tensor([number]))
            assert record["rank"] == int(rank)
            mate = images[number ^ 1]
            for name in ("loss", "loss_start", "loss_true", "steps", "evaluations", "ended"):
                assert record[name] == mate[name], name
            assert record["mse_raw"] != mate["mse_raw"]
            assert (record["steps"], record["evaluations"]) == (2, 40)
            assert len(arrays[row, number]["trace"]) == 2
    for number in range(0, 6, 2):
        # The pairing is the better of the two.
        pair = torch.stack([torch.from_numpy(arrays["none", number + i]["inputs"]) for i in (0, 1)])
        truth = dataset.candidates[number : number + 2]
        errors = [mse(guess, truth, clamp=True).sum() for guess in (pair, pair.flip(0))]
        assert errors[0] <= errors[1]


def test_labels_are_counted_over_the_batch(batches: str, tmp_path: Path) -> None:
    settings = ["training.batch_size.mnist=3", "defenses=[{id='none',name='none',label='n'}]"]
    plan = resolve(batches, attack="start_image", settings=settings)
    images = by_image(run_plan(plan, tmp_path / "run"))
    for first in (0, 3):
        mates = [images[first + place] for place in range(3)]
        left = [mate["label"] for mate in mates]
        for mate in mates:
            if mate["label_guess"] in left:
                left.remove(mate["label_guess"])
        share = round(1 - len(left) / 3, 6)
        assert [mate["labels_found"] for mate in mates] == [share] * 3
        assert ["label_wrong" in mate["flags"] for mate in mates] == [share < 1] * 3


def test_a_guessed_label_goes_with_its_reconstruction(
    batches: str, drop: Drop, tmp_path: Path
) -> None:
    """Wherever in the batch the attack puts an image: the record of that image has its label."""
    deed = """data = load("mnist")
        order = torch.tensor([[1, 2, 0], [2, 1, 0]])
        images = data.candidates[:6].reshape(2, 3, 1, 28, 28)
        images = torch.stack([batch[o] for batch, o in zip(images, order)])
        return replace(good, inputs=images, start_inputs=images, labels=order + 4)"""
    drop("attacks", ATTACK.format(deed=deed))
    settings = ["training.batch_size.mnist=3"]
    plan = resolve(batches, attack="mine", defense="none", settings=settings)
    records = run_plan(plan, tmp_path / "run")
    arrays = arrays_in(tmp_path / "run")
    for key, record in records.items():
        assert record["label_guess"] == record["victim"] % 3 + 4
        assert (record["mse_raw"], record["rank"]) == (0, 1)
        truth = load("mnist").candidates[record["victim"]].numpy()
        assert np.array_equal(arrays[key]["inputs"], truth)
        assert np.array_equal(arrays[key]["start"], truth)


POINTS = {
    "type 0": ["leak={type=0}"],
    "type 1": ["leak={type=1}"],
    "type 2, batch": ["leak={type=2, view='batch'}"],
    "type 0, two steps": ["training.local_steps=2", "training.batch_size.mnist=1"],
    "type 1, two looks": ["leak={type=1, observations=2}"],
}


def same_alone(plan: Plan, folder: Path, *sizes: int) -> dict[Key, Record]:
    """Records of a plan, after runs in chunks of `sizes` images gave the same bytes."""
    together = run_plan(plan, folder / "together")
    for size in sizes:
        assert run_plan(plan, folder / f"by {size}", chunk_size=size) == together
        assert bytes_in(folder / f"by {size}") == bytes_in(folder / "together")
    return together


@pytest.mark.independent_rows
@pytest.mark.parametrize("point", ["type 0", "type 1", "type 2, batch"])
def test_a_batch_alone_is_the_same_as_among_others(
    batches: str, tmp_path: Path, point: str
) -> None:
    settings = [*POINTS[point], "attack.parameters.steps=1", "profiles.quick.victims=4"]
    together = same_alone(resolve(batches, defense="dp", settings=settings), tmp_path, 1)
    assert len(together) == 4  # smaller chunks than a batch do not cut it


@pytest.mark.independent_rows
@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_a_batch_alone_is_the_same_as_among_others_for_longer(
    batches: str, tmp_path: Path, point: str
) -> None:
    settings = [*POINTS[point], "knowledge={naive={}, adaptive={}}"]
    together = same_alone(resolve(batches, settings=settings), tmp_path, 1, 4)
    assert len(together) == 2 * 2 * 6
    fewer = resolve(batches, settings=[*settings, "profiles.quick.victims=2"])
    first = run_plan(fewer, tmp_path / "first")
    assert first and all(together[key] == record for key, record in first.items())


def test_the_three_leak_points_of_one_undefended_step_leak_the_same(
    batches: str, tmp_path: Path
) -> None:
    """Updates come in the units of a gradient, so that the loss is the same up to rounding."""
    losses = []
    for number, point in enumerate(("type 0", "type 1", "type 2, batch")):
        settings = [*POINTS[point], "attack.parameters.steps=1"]
        plan = resolve(batches, defense="none", settings=settings)
        images = by_image(run_plan(plan, tmp_path / str(number)))
        losses.append([images[i]["loss_start"] for i in range(6)])
        assert all(images[i]["loss_true"] < 1e-10 for i in range(6))
    assert losses[1] == losses[0]
    assert losses[2] == pytest.approx(losses[0], rel=1e-4)


@pytest.mark.parametrize("steps", [1, 4])
def test_a_batch_stands_in_an_order_of_its_own(batches: str, steps: int) -> None:
    """The list of candidates goes through the classes in turn: places would give labels away."""
    settings = ["training.batch_size.mnist=5", f"training.local_steps={steps}",
                "profiles.quick.victims=40"]  # fmt: skip
    cells = resolve(batches, settings=settings).cells
    size = 5 * steps
    firsts = range(0, 40 * size, size)
    orders = [batch_from(cells[0], first) for first in firsts]
    assert orders == [batch_from(cells[1], first) for first in firsts]
    for first, order in zip(firsts, orders, strict=True):
        assert sorted(order) == list(range(first, first + size))
    # Every place holds every image of a batch now and then, and nothing moves as a block.
    shifts = torch.tensor(orders) - torch.tensor(firsts)[:, None]
    assert len(shifts.unique(dim=0)) > 30
    expected, spread = (size - 1) / 2, ((size**2 - 1) / 12 / 40) ** 0.5
    assert float((shifts.double().mean(dim=0) - expected).abs().max()) < 4 * spread


def test_granted_labels_stand_in_the_order_of_training(
    batches: str, drop: Drop, tmp_path: Path
) -> None:
    """Image and label of a place belong together: at the truth the simulation is the leak."""
    deed = f"""torch.save(leak.labels, {str(tmp_path / "labels.pt")!r})
        return good"""
    drop("attacks", ATTACK.format(deed=deed))
    settings = ["attack.grants=['labels']", "training.batch_size.mnist=3",
                "training.local_steps=2", "profiles.quick.victims=12"]  # fmt: skip
    plan = resolve(batches, attack="mine", defense="none", settings=settings)
    records = run_plan(plan, tmp_path / "run")
    labels = load("mnist").candidate_labels
    for first, granted in zip((0, 6), torch.load(tmp_path / "labels.pt"), strict=True):
        order = batch_from(plan.cells[0], first)
        assert torch.equal(granted, labels[torch.tensor(order)])
    assert {record["loss_true"] for record in records.values()} == {0}


def test_victims_are_cut_to_whole_batches(batches: str, tmp_path: Path) -> None:
    settings = ["profiles.quick.victims=7", "profiles.quick.networks=2",
                "training.batch_size.mnist=3"]  # fmt: skip
    plan = resolve(batches, attack="start_image", defense="none", settings=settings)
    (planned,) = planning.plan_cells(plan, None, "cpu")
    assert planned.victims == ((0, 1, 2, 3, 4, 5), (7, 8, 9, 10, 11, 12))
    outcome = runner.run(plan, tmp_path / "run", root=None)
    assert (outcome.planned, outcome.ran) == (12, 12)
    images = by_image(records_in(tmp_path / "run"))
    assert {i: (r["network"], r["batch"]) for i, r in images.items()} == {
        **{i: (0, i // 3 * 3) for i in range(6)},
        **{i: (1, 7 + (i - 7) // 3 * 3) for i in range(7, 13)},
    }


def test_fewer_victims_than_a_batch_are_refused(batches: str) -> None:
    plan = resolve(batches, settings=["training.local_steps=4"])
    with pytest.raises(LeakbenchError) as caught:
        planning.plan_cells(plan, None, "cpu")
    text = str(caught.value)
    assert "batches.toml, profile quick" in text
    assert "6 victims are less than one batch of 8 images" in text


def test_a_batch_that_fails_fails_with_all_its_images(
    batches: str, drop: Drop, tmp_path: Path
) -> None:
    drop("attacks", ATTACK.format(deed="raise RuntimeError('it broke')"))
    sound = run_plan(resolve(batches, attack="start_image"), tmp_path / "sound")
    runner.run(resolve(batches, attack="mine"), tmp_path / "run", root=None)
    records = records_in(tmp_path / "run")
    assert len(records) == len(sound) == 12
    for record in records.values():
        assert (record["status"], record["mse_raw"]) == ("error", None)
        assert record["batch"] == record["victim"] // 2 * 2
        assert record["label"] == int(load("mnist").candidate_labels[record["victim"]])
        assert set(record) == set(next(iter(sound.values())))


@pytest.mark.independent_rows
@pytest.mark.parametrize("lost", [2, 3])
def test_a_batch_that_was_cut_by_a_kill_is_run_again_whole(
    batches: str, tmp_path: Path, lost: int
) -> None:
    plan = resolve(batches, defense="dp")
    whole = run_plan(plan, tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    path = tmp_path / "cut" / "records.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    kept = [line for line in lines if line["victim"] != lost]
    assert len(kept) == 5
    path.write_bytes(b"".join(map(encode, kept)))
    outcome = runner.run(plan, tmp_path / "cut", root=None)
    assert (outcome.present, outcome.ran, outcome.errors) == (5, 1, 0)
    again = [json.loads(line)["victim"] for line in path.read_text().splitlines()[5:]]
    assert sorted(again) == [2, 3]
    assert records_in(tmp_path / "cut") == whole
    assert bytes_in(tmp_path / "cut") == bytes_in(tmp_path / "whole")
    assert runner.run(plan, tmp_path / "cut", root=None).ran == 0


# ------------------------------------------------------------------------------ what is granted


@pytest.mark.parametrize("granted", ["", "labels", "candidates", "public", "all"])
def test_an_attack_sees_what_is_granted_and_nothing_else(
    batches: str, drop: Drop, tmp_path: Path, granted: str
) -> None:
    grants = ["labels", "candidates", "public"] if granted == "all" else [granted] * bool(granted)
    deed = f"""data = load("mnist")
        given = {{name: getattr(leak, name) for name in
                 ("labels", "candidates", "candidate_labels", "public")}}
        assert (given["labels"] is not None) == ("labels" in {grants})
        assert (given["candidates"] is not None) == ("candidates" in {grants})
        assert (given["candidate_labels"] is not None) == ("candidates" in {grants})
        assert (given["public"] is not None) == ("public" in {grants})
        if leak.labels is not None:
            wanted = data.candidate_labels[:6].reshape(3, 2)
            assert torch.equal(leak.labels.sort(dim=1).values, wanted.sort(dim=1).values)
        if leak.candidates is not None:
            assert torch.equal(leak.candidates, data.candidates)
            assert torch.equal(leak.candidate_labels, data.candidate_labels)
        if leak.public is not None:
            assert torch.equal(leak.public, data.public)
        for value in given.values():
            if value is not None:
                value.zero_()  # his copy
        return good"""
    drop("attacks", ATTACK.format(deed=deed))
    before = load("mnist").candidates.clone()
    settings = [f"attack.grants={json.dumps(grants)}"]
    plan = resolve(batches, attack="mine", defense="none", settings=settings)
    assert {cell.grants for cell in plan.cells} == {tuple(sorted(grants))}
    for record in run_plan(plan, tmp_path / "run").values():
        known = "label_known" if "labels" in grants else "label_inferred"
        assert record["flags"][0] == known
    assert torch.equal(load("mnist").candidates, before)


def test_granted_labels_are_those_of_the_images(batches: str, tmp_path: Path) -> None:
    settings = ["attack.grants=['labels']"]
    plan = resolve(batches, defense="none", settings=settings)
    for record in run_plan(plan, tmp_path / "run").values():
        assert record["labels_found"] == 1
        assert "label_wrong" not in record["flags"]


def test_grants_make_a_new_cell(batches: str) -> None:
    def keys(*settings: str) -> set[str]:
        planned = planning.plan_cells(resolve(batches, settings=settings), None, "cpu")
        return {name for cell in planned for name in cell.identities}

    assert not keys() & keys("attack.grants=['public']")
    one, two = "attack.grants=['public','labels']", "attack.grants=['labels','public','labels']"
    assert keys(one) == keys(two)


# ------------------------------------------------------------------------------ several looks


@pytest.mark.parametrize("defense", ["none", "dp"])
@pytest.mark.parametrize("point", ["type=0", "type=1", "type=2, view='batch'", "type=2"])
def test_a_second_look_differs_in_its_noise_alone(
    batches: str, drop: Drop, tmp_path: Path, defense: str, point: str
) -> None:
    deed = f"""one, two = leak.observations
        assert one.weights.keys() == two.weights.keys()
        assert all(torch.equal(one.weights[k], two.weights[k]) for k in one.weights)
        gap = (two.gradients.flatten() - one.gradients.flatten()).double()
        if {defense!r} == "none":
            assert not gap.any()
        else:
            torch.save(gap, {str(tmp_path / "gap.pt")!r})
        return good"""
    drop("attacks", ATTACK.format(deed=deed))
    settings = [f"leak={{ {point}, observations=2 }}", "defenses.1.parameters.noise_multiplier=6"]
    plan = resolve(batches, attack="mine", defense=defense, settings=settings)
    assert {cell.leak.endswith("@first x2") for cell in plan.cells} == {True}
    assert {record["status"] for record in run_plan(plan, tmp_path / "run").values()} == {"ok"}
    if defense == "dp":
        gaps = torch.load(tmp_path / "gap.pt")
        # Two independent draws of N(0, (6 * 4)^2) a coordinate, averaged where a batch is seen.
        std = 24 * 2**0.5 / (2**0.5 if point != "type=2" else 1)
        assert len(gaps) == (6 if point == "type=2" else 3)
        assert float(gaps.std()) == pytest.approx(std, rel=0.05)
        correlation = torch.corrcoef(gaps)[~torch.eye(len(gaps), dtype=torch.bool)]
        assert float(correlation.abs().max()) < 5 / gaps.shape[1] ** 0.5


def test_the_first_look_is_the_only_one_of_a_suite_with_one(
    batches: str, drop: Drop, tmp_path: Path
) -> None:
    """Asking for more looks leaves the first as it was."""
    deed = f"""torch.save(leak.observed.flatten(),
            {str(tmp_path)!r} + f"/{{len(leak.observations)}}.pt")
        return good"""
    drop("attacks", ATTACK.format(deed=deed))
    for looks in (1, 3):
        settings = [f"leak.observations={looks}"]
        plan = resolve(batches, attack="mine", defense="dp", settings=settings)
        run_plan(plan, tmp_path / f"run {looks}")
    assert torch.equal(torch.load(tmp_path / "1.pt"), torch.load(tmp_path / "3.pt"))


# ------------------------------------------------------------------------------ pretraining

LEARN = "model.pretraining={ epochs=1, learning_rate=0.003 }"


def attacked_anew(cell: Cell, number: int = 0) -> trials.Attacked:
    """Trained again, not taken from the process' memory."""
    trials._ATTACKED.clear()
    return trials.attacked_network(cell, load("mnist"), number)


def test_a_pretrained_network_is_the_same_twice_and_not_the_first(batches: str) -> None:
    dataset = load("mnist")
    cell = resolve(batches, settings=[LEARN]).cells[0]
    _, untrained = networks.first_network(cell, dataset, 0)
    one, two, other = attacked_anew(cell), attacked_anew(cell), attacked_anew(cell, 1)
    for name, value in one.weights.items():
        assert torch.equal(value, two.weights[name])
        assert not torch.equal(value, untrained[name])
        assert not torch.equal(value, other.weights[name])
    assert one.accuracy == two.accuracy
    logits = one.model.logits(one.weights, dataset.public)
    right = (logits.argmax(dim=1) == dataset.public_labels).double().mean()
    assert one.accuracy == pytest.approx(float(right), abs=1e-6)
    assert trials.attacked_network(cell, dataset, 1) is other


def test_the_same_pretrained_network_is_behind_every_row(batches: str) -> None:
    cells = resolve(batches, settings=[LEARN]).cells
    assert {cell.defense_id for cell in cells} == {"none", "dp"}
    one, two = (attacked_anew(cell) for cell in cells)
    assert all(torch.equal(one.weights[name], two.weights[name]) for name in one.weights)


def test_trials_attack_the_pretrained_weights(batches: str, drop: Drop, tmp_path: Path) -> None:
    deed = f"""torch.save(dict(leak.observations[0].weights), {str(tmp_path / "seen.pt")!r})
        return good"""
    drop("attacks", ATTACK.format(deed=deed))
    plan = resolve(batches, attack="mine", defense="none", settings=[LEARN])
    trained = attacked_anew(plan.cells[0])
    records = run_plan(plan, tmp_path / "run")
    seen = torch.load(tmp_path / "seen.pt")
    assert seen.keys() == trained.weights.keys()
    assert all(torch.equal(seen[name], value) for name, value in trained.weights.items())
    assert {record["accuracy"] for record in records.values()} == {round(trained.accuracy, 6)}
    assert {record["loss_true"] for record in records.values()} == {0}


def test_accuracy_is_recorded_without_pretraining_too(batches: str, tmp_path: Path) -> None:
    plan = resolve(batches, attack="start_image", defense="none")
    dataset = load("mnist")
    model, weights = networks.first_network(plan.cells[0], dataset, 0)
    right = (model.logits(weights, dataset.public).argmax(dim=1) == dataset.public_labels).double()
    for record in run_plan(plan, tmp_path / "run").values():
        assert record["accuracy"] == pytest.approx(float(right.mean()), abs=1e-6)


def test_pretraining_and_its_recipe_make_new_cells(batches: str) -> None:
    keys = []
    for recipe in (
        None, "{ epochs=1 }", "{ epochs=2 }", "{ epochs=1, batch_size=10 }",
        "{ epochs=1, learning_rate=0.01 }",
    ):  # fmt: skip
        settings = [] if recipe is None else [f"model.pretraining={recipe}"]
        planned = planning.plan_cells(resolve(batches, settings=settings), None, "cpu")
        keys.append({name for cell in planned for name in cell.identities})
    assert all(len(some) == 2 for some in keys)
    assert len(set.union(*keys)) == 2 * len(keys)
