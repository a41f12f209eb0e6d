"""The demonstration: what it shows is what was judged, and the picture can be read."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from leakbench import suite
from leakbench.commands import demo
from leakbench.data import load
from leakbench.errors import LeakbenchError
from leakbench.report import demo_figure
from leakbench.report.demo_figure import DemoRow, Shot

QUICK = ("variants.0.attack.parameters.steps=2",)


def test_it_runs_and_says_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = suite.resolve("demo", "quick", settings=QUICK)
    plan = replace(plan, cells=tuple(c for c in plan.cells if c.variant != "second_order"))
    demo.attack(plan, tmp_path / "demo.png", workers=1)
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if line[:1].isdigit()]) == 8
    matching = [line.split("matching")[1].split()[:3] for line in lines if "matching" in line]
    # The matching attack needs no steps: it finds the digit in rows 1, 3 and 4 and not in row 2.
    assert [words[1:] == ["yes", "yes"] for words in matching] == [True, False, True, True]
    width, height = Image.open(tmp_path / "demo.png").size
    assert width <= 600 < height
    assert lines[-1] == f"picture: {tmp_path / 'demo.png'}"


def test_the_victim_is_the_first_digit_of_the_ladder() -> None:
    plan, ladder = suite.resolve("demo", "quick"), suite.resolve("ladder", "quick")
    cells = demo.shown(plan).cells
    assert len(cells) == 12
    assert {(c.seed, c.model, c.weights, c.dataset) for c in cells} == {
        (c.seed, c.model, c.weights, c.dataset) for c in ladder.cells if not c.pretraining
    }


def test_pixels_and_words_are_those_of_the_shots() -> None:
    digit = load("mnist", None).candidates[3].numpy()
    shots = (
        Shot(attacker="one", image=digit, mse=1e-9, exact=True, rank=1),
        Shot(attacker="two", image=None, mse=None, exact=False, rank=None),
    )
    assert shots[0].words == ("1.0e-9", "yes", "yes")
    assert shots[1].words == ("-", "no", "no")
    rows = [DemoRow(title="Row", detail="A sentence.", shots=shots)]
    content = demo_figure.render(digit, rows, ["a line"])
    assert content == demo_figure.render(digit, rows, ["a line"])
    pixels = np.asarray(Image.open(io.BytesIO(content)).convert("L"))
    large = np.round(digit[0].clip(0, 1) * 255).repeat(4, 0).repeat(4, 1)
    found = [
        left
        for left in range(pixels.shape[1] - 112)
        if (pixels[110:222, left : left + 112] == large).all()
    ]
    assert len(found) == 2, "the victim and the first attacker's picture, pixel by pixel"


@pytest.mark.slow
def test_the_whole_of_it_tells_the_story(process: Any, tmp_path: Path) -> None:
    done = process("demo", "--out", tmp_path / "demo.png", cwd=tmp_path)
    table = [line for line in done.out.splitlines() if line[:1].isdigit()]
    exact = [line.split()[-2:] == ["yes", "yes"] for line in table]
    assert exact == [True] * 3 + [False] * 3 + [True] * 3 + [False, False, True]
    assert "no" in table[9].split() and table[10].split()[-2:] == ["no", "yes"]


def test_a_folder_that_is_not_there_is_refused_at_once(leakbench: Any, tmp_path: Path) -> None:
    done = leakbench("demo", "--out", tmp_path / "missing" / "demo.png", cwd=tmp_path)
    assert done.code == 2 and "is no folder" in done.errors


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("missing/demo.png", "is no folder"),
        ("file/demo.png", "is no folder"),
        ("folder.png", "is a folder"),
        ("demo.txt", "does not end in .png"),
        ("", "does not end in .png"),
    ],
)
def test_what_cannot_be_written_is_refused_before_the_attacks(
    tmp_path: Path, name: str, said: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(LeakbenchError, match=said):
        demo.demo(out=tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder.png"]
