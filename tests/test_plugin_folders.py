"""Plugins in a user's own folders: found, imported beside their helpers, and run by workers."""

import json
import os
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from leakbench import registry
from leakbench.commands import application
from leakbench.errors import LeakbenchError
from leakbench.identity import source_digest
from leakbench.model_checks import check_model
from leakbench.planning import plan_cells
from leakbench.suite import resolve

PAGE = Path(__file__).parents[1] / "docs" / "plugins.md"

SUITE = """
schema = 1
name = "tiny"
title = "A tiny suite"
paper = "none"
source = "written for a test"
version = 1
seed = 7
datasets = ["mnist"]
model = { name = "small_net", weights = "default", parameters = { widths = [4, 8] } }
training = { batch_size = { mnist = 4 } }
attack = { name = "cpl", parameters = { steps = 1 } }
knowledge = { naive = {} }
defenses = [{ id = "none", name = "none", label = "none" }]
rules = [{ name = "strict", label = "strict", kind = "strict", threshold = 0.01 }]
profiles = { quick = { networks = 2, victims = 2 } }
"""

DEFENSE = """
from dataclasses import dataclass
from typing import ClassVar

from leakbench.contracts import Defense
from ._level import LEVEL


@dataclass(frozen=True, kw_only=True)
class Mine(Defense):
    name: ClassVar[str] = "{name}"
    level: float = LEVEL
"""


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(registry.FOLDERS, "")


def example() -> str:
    """The network of docs/plugins.md."""
    (text,) = [t for t in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S) if "nn." in t]
    return text


def folder(path: Path, kind: str, **files: str) -> Path:
    (path / kind).mkdir(parents=True)
    for name, text in files.items():
        (path / kind / f"{name}.py").write_text(text)
    return path


def test_the_documented_network_runs_in_worker_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = folder(tmp_path / "own", "models", small=example())
    suite = tmp_path / "tiny.toml"
    suite.write_text(SUITE)
    run = [
        "run",
        str(suite),
        "--plugins",
        str(own),
        "--out",
        str(tmp_path / "run"),
        "--workers",
        "2",
    ]
    result = CliRunner().invoke(application.app, run)
    assert result.exit_code == 0, result.output
    records = [json.loads(line) for line in (tmp_path / "run/records.jsonl").read_text().split("\n")
               if line]  # fmt: skip
    assert len(records) == 4 and {record["status"] for record in records} == {"ok"}
    check_model(registry.load("models", "small_net")(), (3, 32, 32))
    # An edited file is another network: all is run again.
    again = CliRunner().invoke(application.app, run)
    assert "4 were there, 0 run now" in again.output
    (own / "models" / "small.py").write_text(example().replace("nn.Tanh()", "nn.Sigmoid()"))
    source_digest.cache_clear()  # a process believes that its code stays
    planned = plan_cells(resolve(str(suite)), None, "cpu")
    identities = {name for cell in planned for name in cell.identities}
    assert len(identities) == 2
    assert identities.isdisjoint(record["identity"] for record in records)


def test_two_folders_may_have_files_of_the_same_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, name in enumerate(("one", "two")):
        text = {"mine": DEFENSE.format(name=f"mine_{name}"), "_level": f"LEVEL = {number + 0.5}"}
        folder(tmp_path / name, "defenses", **text)
    monkeypatch.setenv(registry.FOLDERS, os.pathsep.join(str(tmp_path / n) for n in ("one", "two")))
    found = {p.name: p for p in registry.discover("defenses") if p.name.startswith("mine_")}
    assert {p.origin for p in found.values()} == {"one/defenses/mine.py", "two/defenses/mine.py"}
    levels = [registry.load("defenses", name)().level for name in ("mine_one", "mine_two")]
    assert levels == [0.5, 1.5]


def test_a_built_in_keeps_its_name(tmp_path: Path) -> None:
    registry.add_folders([folder(tmp_path, "defenses", mine=DEFENSE.format(name="prune"))])
    own = [p for p in registry.discover("defenses") if p.origin.endswith("/mine.py")]
    assert [p.status for p in own] == ["broken"] and "taken by leakbench" in own[0].reason
    assert registry.find("defenses", "prune").origin.startswith("leakbench")


def test_an_absolute_import_of_a_file_beside_says_how(tmp_path: Path) -> None:
    text = DEFENSE.format(name="mine").replace("from ._level", "from _level")
    registry.add_folders([folder(tmp_path, "defenses", mine=text, _level="LEVEL = 1.0")])
    with pytest.raises(LeakbenchError, match=r"no module named '_level'.*'from . import _level'"):
        registry.find("defenses", "mine")


def test_relative_folders_stay_what_they_are_wherever_processes_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a cluster start in folders of their own."""
    for name in ("one", "two"):
        folder(tmp_path / name, "defenses", mine=DEFENSE.format(name=f"mine_{name}"))
    monkeypatch.chdir(tmp_path / "one")
    monkeypatch.setenv(registry.FOLDERS, "../two")
    registry.add_folders([Path()])
    assert os.environ[registry.FOLDERS] == os.pathsep.join([f"{tmp_path}/one", f"{tmp_path}/two"])
    monkeypatch.chdir("/")
    names = {each.name for each in registry.discover("defenses")}
    assert {"mine_one", "mine_two"} <= names


def test_folders_that_hold_no_plugins_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LeakbenchError, match=f"^--plugins: no folder '{tmp_path}/nowhere'$"):
        registry.add_folders([tmp_path / "nowhere"])
    with pytest.raises(LeakbenchError, match="has none of attacks, defenses, models in it"):
        registry.add_folders([tmp_path])
    assert os.environ[registry.FOLDERS] == ""
    result = CliRunner().invoke(
        application.app, ["list", "models", "--plugins", str(tmp_path / "nowhere")]
    )
    assert isinstance(result.exception, LeakbenchError)
