"""A network and pictures of one's own, through the command line: nothing of leakbench is edited."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from leakbench import identity
from leakbench.data import load
from leakbench.records import Run

MODEL = '''
"""Networks of a test."""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from leakbench.architectures import Architecture
from ._layers import normalised


@dataclass(frozen=True, slots=True, kw_only=True)
class Mine(Architecture):
    """Two convolutions with GroupNorm."""

    name: ClassVar[str] = "mine"
    takes: ClassVar[str] = "images"
    head: ClassVar[str] = "4.weight"
    channels: int = 4

    def build(self, input_shape, classes, scheme):
        channels, height, width = input_shape
        return nn.Sequential(
            normalised(channels, self.channels),
            nn.Sigmoid(),
            normalised(self.channels, self.channels),
            nn.Flatten(),
            nn.Linear(self.channels * height * width // 16, classes),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgetful(Mine):
    """Forgets at random."""

    name: ClassVar[str] = "forgetful"
    head: ClassVar[str] = "1.4.weight"

    def build(self, input_shape, classes, scheme):
        return nn.Sequential(nn.Dropout(0.5), Mine.build(self, input_shape, classes, scheme))
'''

UNBUILT = '''

@dataclass(frozen=True, slots=True, kw_only=True)
class Unbuilt(Mine):
    """Fails."""

    name: ClassVar[str] = "unbuilt"

    def build(self, input_shape, classes, scheme):
        return nn.Linear(1 // 0, classes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Number(Mine):
    """Is none."""

    name: ClassVar[str] = "number"

    def build(self, input_shape, classes, scheme):
        return 7
'''

LAYERS = '''
"""Not a plugin: what those beside it share."""

from torch import nn


def normalised(inputs, units):
    return nn.Sequential(nn.Conv2d(inputs, units, 3, stride=2, padding=1), nn.GroupNorm(2, units))
'''

SUITE = """
schema = 1
name = "ours"
title = "Our network, our pictures"
datasets = ["./pictures"]
model = { name = "mine", weights = "default", parameters = { channels = 6 } }
training = { batch_size = { "*" = 4 } }
attack = { name = "cpl", parameters = { steps = 4, line_search = true } }
knowledge = { naive = {} }
defenses = [{ id = "none", name = "none", label = "none" }]
rules = [{ set = "recovered" }]
profiles = { quick = { networks = 1, victims = 3 } }
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with 40 PNG files by class, a plugin folder, and a suite of ten lines."""
    dataset = load("cifar10")
    for label in range(4):
        folder = tmp_path / "pictures" / dataset.class_names[label]
        folder.mkdir(parents=True)
        rows = (dataset.candidate_labels == label).nonzero().flatten()[:10]
        for number, image in enumerate(dataset.candidates[rows]):
            pixels = (image.permute(1, 2, 0).numpy() * 255).round().astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.png")
    models = tmp_path / "plugins" / "models"
    models.mkdir(parents=True)
    (models / "mine.py").write_text(MODEL + UNBUILT, encoding="utf-8")
    (models / "_layers.py").write_text(LAYERS, encoding="utf-8")
    (tmp_path / "ours.toml").write_text(SUITE, encoding="utf-8")
    return tmp_path


@pytest.fixture
def process(place: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The command, in that folder and a process of its own."""

    def command(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("LEAKBENCH_")}
        return subprocess.run(
            [sys.executable, "-m", "leakbench.cli", *words], cwd=place, text=True,
            capture_output=True, check=False, env=clean | {"OMP_NUM_THREADS": "1"} | environment,
        )  # fmt: skip

    return command


def test_a_network_and_pictures_of_ones_own_give_a_table_and_a_gallery(
    place: Path, process: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """Found in worker processes as well, by the option and by the environment alike."""
    done = process("run", "ours.toml", "--plugins", "plugins", "--workers", "2", "--out", "run")
    assert done.returncode == 0, done.stderr
    assert "Our network, our pictures" in done.stdout and "cpl on mine (untrained)" in done.stdout
    records = list(Run(place / "run").records().values())
    assert [record["status"] for record in records] == ["ok"] * 3
    assert all(record["loss"] < record["loss_start"] / 2 for record in records)
    again = process("run", "ours.toml", "--out", "run", LEAKBENCH_PLUGINS="plugins")
    assert "3 were there, 0 run now" in again.stderr
    # The run needs neither the network nor the pictures to be reported.
    (place / "plugins").rename(place / "gone")
    (place / "pictures").rename(place / "gone_too")
    assert process("report", "run").returncode == 0
    drawn = process("gallery", "run")
    assert drawn.returncode == 0, drawn.stderr
    with Image.open(place / "run" / "gallery.png") as picture:
        assert picture.width > 400


def test_a_network_edited_is_a_new_cell(place: Path, leakbench: Callable[..., Any]) -> None:
    words = ("run", "ours.toml", "--plugins", "plugins", "--out", "run", "--attack", "start_image")
    words = (*words, "--workers", "1", "--device", "cpu")

    def again() -> str:
        identity.source_digest.cache_clear()
        done = leakbench(*words, cwd=place)
        assert done.code == 0, done.errors
        return done.errors

    assert "0 were there, 3 run now" in again()
    file = place / "plugins" / "models" / "_layers.py"
    file.write_text(file.read_text() + "\n# a comment\n", encoding="utf-8")
    assert "3 were there, 0 run now" in again()
    file.write_text(file.read_text().replace("GroupNorm(2", "GroupNorm(1"), encoding="utf-8")
    assert "0 were there, 3 run now" in again()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("forgetful", ("Dropout draws at random", 'mode "eval"')),
        ("number", ("model 'number': build gave int, which has no 'init'",)),
        ("unbuilt", ("model 'unbuilt': build failed: ZeroDivisionError: ",)),
    ],
)
def test_a_network_that_cannot_be_attacked_is_one_sentence(
    place: Path, leakbench: Callable[..., Any], name: str, words: tuple[str, ...]
) -> None:
    setting = f"model={{name='{name}', weights='default'}}"
    done = leakbench("run", "ours.toml", "--plugins", "plugins", "--set", setting, cwd=place)
    assert done.code == 2 and done.out == ""
    (line,) = done.errors.splitlines()
    assert all(word in line for word in words)
