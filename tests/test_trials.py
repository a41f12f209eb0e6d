"""A plugin that misbehaves spoils its own trials and nobody else's."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import leakbench.attacks
import leakbench.defenses
from leakbench import runner
from leakbench.data import load
from leakbench.records import Record, Run
from leakbench.suite import resolve

ATTACK = """
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from leakbench.attacks.start_image import StartImage
from leakbench.contracts import Attack
from leakbench.data import load


@dataclass(frozen=True, kw_only=True)
class Mine(Attack):
    name: ClassVar[str] = "mine"

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
        "profiles.quick.victims=2", "attack.parameters.steps=10", "profiles.quick.snapshots=[]",
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
    together = {
        r["victim"]: r for r in run(tmp_path / "two", more=rows) if r["defense_id"] == "none"
    }
    alone = {record["victim"]: record for record in run(tmp_path / "one")}
    for victim, record in alone.items():
        assert record["mse_raw"] == together[victim]["mse_raw"]
