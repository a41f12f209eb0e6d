"""Hostile plugins beside good rows: their trials fail with the reason, the others' bits stay."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from leakbench import identity, registry, runner
from leakbench.errors import LeakbenchError
from leakbench.foreign import noting_interrupts
from leakbench.isolation import SETTINGS, contained, settled, untouched
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
import signal
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


ATTACK = """
import signal
import sys
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from leakbench.attacks.start_image import StartImage
from leakbench.contracts import Attack


@dataclass(frozen=True, kw_only=True)
class Mine(StartImage):
    name: ClassVar[str] = "mine"
{body}
"""

SPOILS = {
    "start": ("leak.observations[0].weights['dense.bias'].zero_()", "changes the weights"),
    "reconstruct": (
        "found = super().reconstruct(leak, streams, watch); "
        "leak.observed.tensors.clear(); return found",
        "changes the observed gradients",
    ),
    "loss": ("leak.observations[0].weights['dense.bias'].data.zero_()", "changes the weights"),
    "raises": (
        "leak.observations[0].weights['dense.bias'].zero_(); raise ValueError('no')",
        "ValueError: no",
    ),
    "resizes": (
        "leak.observed.tensors['dense.bias'].resize_(0)",
        "changes the observed gradients",
    ),
}


@pytest.mark.parametrize("where", SPOILS)
def test_an_attack_that_writes_into_what_it_is_given_spoils_no_other(
    alone: dict[str, list[Record]], tmp_path: Path, where: str
) -> None:
    """Weights are kept for the next attack of the process; so its numbers are looked at."""
    deed, words = SPOILS[where]
    method = where if where in ("start", "reconstruct", "loss") else "loss"
    taken = {
        "start": "leak, streams, restart=0",
        "reconstruct": "leak, streams, watch",
        "loss": "leak, inputs, labels, rows",
    }[method]
    given = ", ".join(name.partition("=")[0] for name in taken.split(", "))
    inherited = f"return super().{method}({given})" if method != "loss" else "return rows * 0.0"
    body = f"    def {method}(self, {taken}):\n        {deed}\n        {inherited}\n"
    written(tmp_path / "own", "attacks", ATTACK.format(body=body))
    for records in ran(tmp_path / "it", attack="mine").values():
        assert {record["status"] for record in records} == {"error"}
        assert all(words in record["reason"] for record in records), records[0]["reason"]
    assert ran(tmp_path / "after") == alone


ODD = {
    "def guarantee(self, *_): return None": "guarantee() must give a Guarantee, got None",
    "def guarantee(self, *_): return 'strong'": "guarantee() must give a Guarantee, got 'strong'",
    "def guarantee(self, *_): raise KeyboardInterrupt": "raises KeyboardInterrupt",
    "def init(self, weights): raise GeneratorExit": "raises GeneratorExit",
    "def init(self, weights): raise BaseException('all')": "raises BaseException: all",
    "def init(self, weights): raise KeyboardInterrupt": "raises KeyboardInterrupt",
    "def init(self, weights): raise Silent": "its text cannot be read",
    "def init(self, weights): sys.exit(0)": "raises SystemExit: 0",
    "row = property(lambda self: 1 / 0)": "ZeroDivisionError",
    "hooks = property(lambda self: 1 / 0)": "ZeroDivisionError",
    "hooks = 5": "TypeError",
    "def __post_init__(self): raise RuntimeError('no')": "RuntimeError: no",
}


@pytest.mark.parametrize("body", ODD)
def test_a_defense_that_is_none_fails_alone(
    alone: dict[str, list[Record]], tmp_path: Path, body: str
) -> None:
    silent = "class Silent(Exception):\n    def __str__(self):\n        raise ValueError\n\n"
    text = DEFENSE.format(at_import=silent, body=f"    {body}")
    written(tmp_path / "own", "defenses", text)
    check(ran(tmp_path / "three", THIRD), alone, ODD[body])


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("requires = 5", "requires must be a tuple of names, got 5"),
        ("uses = ('no_such',)", "uses: unknown attack 'no_such'"),
        ("uses = 'cpl'", "uses must be a tuple of names, got 'cpl'"),
        ("def skip(self, facts): return 5", "skip() must give a text, got 5"),
        ("def budget(self, facts): raise GeneratorExit", "raises GeneratorExit"),
        ("def __post_init__(self): sys.exit(3)", "raises SystemExit: 3"),
    ],
)
def test_an_attack_that_is_none_is_one_sentence_where_it_is_all_that_is_asked_for(
    tmp_path: Path, body: str, words: str
) -> None:
    written(tmp_path / "own", "attacks", ATTACK.format(body=f"    {body}"))
    with pytest.raises(LeakbenchError) as caught:
        ran(tmp_path / "it", attack="mine")
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_what_the_caller_has_set_changes_no_number(
    alone: dict[str, list[Record]], tmp_path: Path
) -> None:
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    try:
        assert ran(tmp_path / "it") == alone
        assert torch.get_default_dtype() == torch.float64 and not torch.is_grad_enabled()
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_grad_enabled(True)


def test_an_interrupt_by_a_signal_comes_through() -> None:
    with pytest.raises(KeyboardInterrupt), contained("it"):
        signal.raise_signal(signal.SIGINT)
    with pytest.raises(LeakbenchError, match="it: raises KeyboardInterrupt"), contained("it"):
        raise KeyboardInterrupt
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_interrupts_of_many_calls_are_told_apart() -> None:
    with noting_interrupts() as ever:
        note = signal.getsignal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt), contained("it"):
            signal.raise_signal(signal.SIGINT)
        # The one before is none of this call's.
        with pytest.raises(LeakbenchError, match="it: raises KeyboardInterrupt"), contained("it"):
            raise KeyboardInterrupt
        with contained("it"):
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGINT) is note
        assert ever()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_everything_is_put_back_also_behind_an_error() -> None:
    weights = {"a": torch.ones(2), "b": torch.tensor([1.0, float("nan")])}
    before = {name: (value, value.clone()) for name, value in weights.items()}
    said = r"^it: changes the weights it is given, and then fails: ValueError: no$"
    with pytest.raises(LeakbenchError, match=said), untouched("it", {"the weights": [weights]}):
        weights["a"].requires_grad_()
        weights["b"].resize_(5)
        weights["c"] = weights.pop("b")
        raise ValueError("no")
    assert list(weights) == ["a", "b"]
    for name, (value, was) in before.items():
        assert weights[name] is value and not value.requires_grad
        assert torch.equal(value.nan_to_num(7.0), was.nan_to_num(7.0))
    with untouched("it", {"the weights": [weights]}):
        weights["a"] + 1


def test_settled_is_float32_with_gradients_whatever_was_there() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        with settled():
            assert torch.zeros(1).dtype == torch.float32
        assert torch.zeros(1).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
