"""The notebook of the documentation is what its script writes, and runs."""

from __future__ import annotations

import ast
import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = ROOT / "docs" / "leakbench.ipynb"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    for needed in ("nbformat", "nbclient"):
        pytest.importorskip(needed)
    spec = importlib.util.spec_from_file_location(
        "make_notebook", ROOT / "scripts" / "make_notebook.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cells() -> list[tuple[str, str]]:
    found = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return [(each["cell_type"], "".join(each["source"])) for each in found]


def run(text: str, names: dict[str, Any]) -> Any:
    """A cell's statements, and the value of its last expression."""
    tree = ast.parse(text)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    if isinstance(last, ast.Expr):
        return eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    return None


def test_the_notebook_is_what_the_script_writes(script: ModuleType) -> None:
    assert cells() == [tuple(each) for each in script.CELLS]
    content = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    code = [each for each in content["cells"] if each["cell_type"] == "code"]
    assert [each["execution_count"] for each in code] == list(range(1, len(code) + 1))
    assert not any(o["output_type"] == "error" for each in code for o in each["outputs"])
    assert NOTEBOOK.stat().st_size < 200_000


def test_its_cells_about_tables_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Without a data root; DP-SGD protects the mean of a batch, and nothing before it."""
    pytest.importorskip("opacus")
    monkeypatch.delenv("LEAKBENCH_DATA", raising=False)
    code = [text for kind, text in cells() if kind == "code"]
    (imports,) = (text for text in code if "import leakbench as lb" in text)
    tables = [text for text in code if "mlp" in text]
    assert len(tables) == 3
    names: dict[str, Any] = {}
    with torch.random.fork_rng(devices=[]):
        run(imports.split("sample, folder")[0], names)
        run(tables[0], names)
        said = dict(line.split(" ", 1) for line in capsys.readouterr().out.splitlines())
        assert ast.literal_eval(said["type2"])["analytic"] == {"strict": 4, "identified": 4}
        assert ast.literal_eval(said["type2_batch"])["candidates"]["strict"] == 0
        table = run(tables[1].replace("steps=200", "steps=20"), names)
        names["folder"] = tmp_path / "images"
        quick = tables[2].replace("trials=1000, train_seconds=15", "trials=100, victims=2")
        run(quick.replace(', "gradinv"', ""), names)
    assert "Inside the training" in (tmp_path / "rows.html").read_text(encoding="utf-8")
    assert "Nothing is promised" in capsys.readouterr().out
    assert (table.status == "ok").all() and len(table) == 4


@pytest.mark.slow
def test_the_whole_notebook_runs(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a kernel, as whoever opens it: what clipping with noise leaves of 8 of 8 is not 8."""
    pytest.importorskip("opacus")
    monkeypatch.delenv("LEAKBENCH_DATA", raising=False)
    done = script.executed()
    text = next(
        output["data"]["text/plain"]
        for each in done.cells
        for output in each.get("outputs", [])
        if "no defense" in output.get("data", {}).get("text/plain", "")
    )
    named = ast.literal_eval(text)
    assert named["no defense"] == 8 and named["Opacus"] <= 2
