"""Examples of the documentation are complete: each is one file that is listed, checked, run."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import leakbench.attacks
import leakbench.defenses
from leakbench import registry, runner
from leakbench.data import load
from leakbench.suite import resolve
from leakbench.testing import check_attack, check_defense

DOCS = Path(__file__).parent.parent / "docs"
PLUGINS = (DOCS / "plugins.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n# (\w+)/(\w+)\.py\n(.*?)```", PLUGINS, re.DOTALL)


@pytest.fixture
def dropped_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Their files in folders that are searched beside attacks/ and defenses/."""
    for kind, name, text in EXAMPLES:
        folder = tmp_path / kind
        folder.mkdir()
        (folder / f"{name}.py").write_text(text)
        package = {"attacks": leakbench.attacks, "defenses": leakbench.defenses}[kind]
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    yield
    for kind, name, _ in EXAMPLES:
        sys.modules.pop(f"leakbench.{kind}.{name}", None)


def test_the_list_of_defenses_is_complete() -> None:
    text = (DOCS / "defenses.md").read_text(encoding="utf-8")
    built_in = {plugin.name for plugin in registry.discover("defenses")}
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    assert built_in <= {name for row in rows for name in re.findall("`(.+?)`", row)}


def test_the_stateful_example_keeps_the_contract() -> None:
    (block,) = (b for b in re.findall(r"```python\n(.*?)```", PLUGINS, re.DOTALL) if "merge" in b)
    names: dict[str, object] = {}
    source = (
        "from dataclasses import dataclass\nfrom typing import ClassVar\nimport torch\n"
        "from torch import Tensor\nfrom leakbench.clipping import clip_flat\n"
        "from leakbench.contracts import (Context, Defense, Gradients, Guarantee, Observer,\n"
        "    Setting, Weights)\n" + block
    )
    exec(source, names)
    check_defense(names["MovingClip"]())  # type: ignore[operator]


def test_the_example_of_data_is_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = (b for b in re.findall(r"```python\n(.*?)```", PLUGINS, re.DOTALL) if "savez" in b)
    monkeypatch.chdir(tmp_path)
    exec(block, {})
    data = load("./mine.npz")
    assert (data.classes, data.input_shape) == (10, (1, 28, 28))
    assert float(data.candidates.max()) == 1.0


def test_there_is_one_example_of_each_kind() -> None:
    assert [(kind, name) for kind, name, _ in EXAMPLES] == [
        ("attacks", "gray_start"),
        ("defenses", "relative_noise"),
    ]


@pytest.mark.usefixtures("dropped_in")
def test_examples_keep_the_contract() -> None:
    check_attack(registry.load("attacks", "gray_start")())
    check_defense(registry.load("defenses", "relative_noise")())


@pytest.mark.usefixtures("dropped_in")
def test_examples_run_in_a_suite(tmp_path: Path) -> None:
    plan = resolve(
        "tifs_table3",
        attack="gray_start",
        defense="relative_noise",
        settings=[
            'datasets=["mnist"]',
            "profiles.quick.networks=1",
            "profiles.quick.victims=2",
            "profiles.quick.parameters.steps=3",
            "profiles.quick.snapshots=[1]",
        ],
    )
    outcome = runner.run(plan, tmp_path / "run", root=None)
    assert (outcome.planned, outcome.ran, outcome.errors) == (4, 4, 0)
