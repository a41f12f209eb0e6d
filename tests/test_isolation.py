"""Hostile plugins beside good rows: their trials fail with the reason, the others' bits stay."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from leakbench import identity, registry, runner
from leakbench.isolation import SETTINGS
from leakbench.records import Record, Run
from leakbench.suite import resolve

SUITE = """
schema = 1
name = "guarded"
title = "Two good rows and perhaps a third one"
datasets = ["mnist"]
model = { name = "cnn2" }
training = { batch_size = { mnist = 4 } }
attack = { name = "ATTACK" }
knowledge = { adaptive = {} }
rules = [{ name = "strict", label = "strict", kind = "strict", threshold = 0.01 }]
profiles = { quick = { networks = 1, victims = 2 } }
seed = 7

[[defenses]]
id = "none"
name = "none"
label = "none"

[[defenses]]
id = "noise"
name = "fed_cdp"
label = "noise"
parameters = { clip = 4.0, noise_multiplier = 0.5 }
"""

THIRD = """
[[defenses]]
id = "mine"
name = "mine"
label = "mine"
"""

DEFENSE = """
import os
import random
import sys
import warnings
from dataclasses import dataclass
from typing import ClassVar

import numpy
import torch

from leakbench.contracts import Defense, Gradients, Guarantee

KEPT = sys.__dict__.setdefault("kept_by_a_test", [])
{at_import}


@dataclass(frozen=True, kw_only=True)
class Mine(Defense):
    name: ClassVar[str] = "mine"
{body}
"""

HOOKS = {
    "in init": """
    def init(self, weights):
        {deed}
""",
    "in a hook": """
    def on_examples(self, gradients, state, context):
        {deed}
        return gradients, state
""",
}

Folder = Callable[..., Path]


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No folder of plugins, and none of its modules left over."""
    monkeypatch.setenv(registry.FOLDERS, "")
    yield
    identity.source_digest.cache_clear()
    for name in [name for name in sys.modules if name.startswith("leakbench_plugins_")]:
        del sys.modules[name]


def written(folder: Path, kind: str, text: str) -> None:
    """A plugin `mine` in a folder that is asked for."""
    (folder / kind).mkdir(parents=True, exist_ok=True)
    (folder / kind / "mine.py").write_text(text)
    registry.add_folders([folder])


def ran(folder: Path, *more: str, attack: str = "start_image") -> dict[str, list[Record]]:
    """Records by row, without what the host decides, of the suite with these rows."""
    folder.mkdir(parents=True)
    (folder / "suite.toml").write_text(SUITE.replace("ATTACK", attack) + "".join(more))
    runner.run(resolve(str(folder / "suite.toml")), folder / "run", root=None)
    rows: dict[str, list[Record]] = {}
    for record in Run(folder / "run").records().values():
        rows.setdefault(record["row"], []).append(
            {key: value for key, value in record.items() if key not in ("host", "arrays")}
        )
    return rows


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Record]]:
    """The two good rows by themselves."""
    return ran(tmp_path_factory.mktemp("alone") / "it")


def check(rows: dict[str, list[Record]], alone: dict[str, list[Record]], words: str | None) -> None:
    """The good rows are those of a run without the third one, which says why it failed."""
    assert {name: rows[name] for name in alone} == alone
    assert len(rows["mine"]) == 2
    for record in rows["mine"]:
        assert record["status"] == ("ok" if words is None else "error")
        assert (words or "") in record["reason"] and "\n" not in record["reason"]


HARMFUL = {
    "torch.set_default_dtype(torch.float64)": "changes torch's default dtype",
    "torch.set_default_device('meta')": "changes torch's default device",
    "torch.set_grad_enabled(False)": "changes whether torch records gradients",
    "mode = torch.inference_mode(); mode.__enter__(); KEPT.append(mode)": "torch's inference mode",
    "torch.set_float32_matmul_precision('medium')": "changes torch's precision of float32",
    "torch.backends.mkldnn.fp32_precision = 'bf16'": "changes torch's precision of float32",
    "torch.set_flush_denormal(True)": "changes torch's treatment of denormal numbers",
    "torch.set_autocast_enabled('cpu', True)": "changes torch's autocast",
}

HARMLESS = "; ".join((
    "torch.manual_seed(1); random.seed(1); numpy.random.seed(1); torch.set_num_threads(2)",
    "torch.autograd.set_detect_anomaly(True); numpy.seterr(all='raise')",
    "warnings.simplefilter('error'); os.environ['LEAKBENCH_DATA'] = '/nowhere'; os.chdir('/')",
))  # fmt: skip


@pytest.mark.parametrize(
    ("deed", "when"),
    [(deed, when) for deed in HARMFUL for when in ("at import", "in init")]
    + [(HARMLESS, when) for when in ("at import", "in a hook")]
    + [(next(iter(HARMFUL)), "in a hook")],
)
def test_what_a_defense_does_to_the_process_reaches_no_other_row(
    alone: dict[str, list[Record]], tmp_path: Path, deed: str, when: str
) -> None:
    at_import, body = (deed, "") if when == "at import" else ("", HOOKS[when].format(deed=deed))
    text = DEFENSE.format(at_import=at_import, body=body)
    written(tmp_path / "own", "defenses", text)
    before = [(setting.name, setting.read()) for setting in SETTINGS]
    check(ran(tmp_path / "three", THIRD), alone, HARMFUL.get(deed))
    assert [(setting.name, setting.read()) for setting in SETTINGS] == before
