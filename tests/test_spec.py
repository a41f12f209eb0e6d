"""A plan survives JSON, the vocabulary needs no torch, and what is no plan is one sentence."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from leakbench import suite
from leakbench.errors import LeakbenchError
from leakbench.spec import Plan, plan_from_json, plan_to_json
from leakbench.suite import resolve

EVERY = [(name, profile) for name in suite.names() for profile in suite.read(name)[0].profiles]


@pytest.mark.parametrize(("name", "profile"), EVERY)
def test_every_plan_comes_back_from_json(name: str, profile: str) -> None:
    plan = resolve(name, profile)
    text = json.dumps(plan_to_json(plan), allow_nan=False)
    again = plan_from_json(json.loads(text))
    assert again == plan
    # Equality does not see the difference between 1, 1.0 and True, which an identity does.
    assert json.dumps(plan_to_json(again), allow_nan=False) == text
    assert [cell.spec() for cell in again.cells] == [cell.spec() for cell in plan.cells]


def changed(plan: Plan, *path: str | int, to: Any = None, drop: bool = False) -> Any:
    """The plan's JSON with one value replaced or left out."""
    value = json.loads(json.dumps(plan_to_json(plan)))
    node = value
    for part in path[:-1]:
        node = node[part]
    if drop:
        del node[path[-1]]
    else:
        node[path[-1]] = to
    return value


@pytest.mark.parametrize(
    ("path", "to", "words"),
    [
        (("networks",), "two", "plan, key networks: must be a whole number, got 'two'"),
        (("networks",), True, "plan, key networks: must be a whole number, got True"),
        (("cells",), {}, "plan, key cells: must be a list"),
        (("cells", 0, "knowledge"), "clever", "must be one of naive, adaptive, got 'clever'"),
        (("cells", 1, "learning_rate"), None, "key cells.1, key learning_rate: must be a number"),
        (("cells", 1, "extra"), 1, "plan, key cells.1: unknown key 'extra'"),
        (("printed", 0, "asr"), 1, "key printed.0, key asr: must be a text or null, got 1"),
        (("notes", 0), "text", "plan, key notes.0: must be a table, got 'text'"),
        (("asked",), [], "plan, key asked: must be a table"),
    ],
)
def test_what_is_no_plan_is_one_sentence(path: tuple[str | int, ...], to: Any, words: str) -> None:
    with pytest.raises(LeakbenchError) as caught:
        plan_from_json(changed(resolve("tifs_table3"), *path, to=to))
    assert words in str(caught.value)


def test_what_a_plan_lacks_is_named() -> None:
    plan = resolve("tifs_table3")
    with pytest.raises(LeakbenchError, match=r"plan, key cells\.2, key seed: missing"):
        plan_from_json(changed(plan, "cells", 2, "seed", drop=True))
    with pytest.raises(LeakbenchError, match="plan: must be a table, got 3"):
        plan_from_json(3)


def test_the_vocabulary_loads_no_torch_and_no_parser() -> None:
    heavy = "{'torch', 'numpy', 'pydantic', 'tomllib'}"
    code = f"import sys, leakbench.spec; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
