"""Names and reasons from outside never reach a terminal, a table or a spreadsheet as commands."""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from leakbench.errors import LeakbenchError
from leakbench.frames import to_csv
from leakbench.loading import load
from leakbench.plugin_files import one_line
from leakbench.printable import printable

EVIL = "red\x1b[31m back\x08\x9b2J\u202eflip\n| bar\ttab\r\x00"
"""Escape sequences, a backspace, a change of direction, line ends, a bar."""


def is_safe(text: str) -> bool:
    """Whether a terminal shows all of it as it is."""
    return all(letter.isprintable() or letter == "\n" for letter in text)


def test_controls_are_shown_escaped() -> None:
    assert printable(EVIL) == "red\\x1b[31m back\\x08\\x9b2J\\u202eflip | bar tab \\x00"
    assert printable("é ∞ ✓ 你好") == "é ∞ ✓ 你好"


def test_an_error_is_one_safe_line_whatever_it_says() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise ValueError("no words")

    assert one_line(ValueError(EVIL)) == f"ValueError: {' '.join(printable(EVIL).split())}"
    assert one_line(Silent()) == "Silent: its text cannot be read (ValueError)"
    assert one_line(LeakbenchError("all said")) == "all said"


def test_a_cell_of_csv_is_one_safe_line_and_no_formula() -> None:
    (row,) = csv.reader(io.StringIO(to_csv([{"label": f"={EVIL}"}]).partition("\n")[2]))
    assert row == [f"'={printable(EVIL)}"]


def toml(text: str) -> str:
    """A TOML string."""
    return json.dumps(text).replace("\\ud", "?")


SUITE = f"""
schema = 1
name = "evil"
title = {toml(EVIL)}
question = {toml(EVIL)}
datasets = ["mnist"]
model = {{ name = "cnn2" }}
training = {{ batch_size = {{ mnist = 4 }} }}
attack = {{ name = "start_image" }}
knowledge = {{ naive = {{}} }}
rules = [{{ name = "strict", label = {toml(EVIL)}, kind = "strict", threshold = 0.01 }}]
profiles = {{ quick = {{ networks = 1, victims = 2 }} }}
notes = [{{ text = {toml(EVIL)} }}]

[[defenses]]
id = "none"
name = "none"
label = {toml(EVIL)}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, leakbench: Callable[..., object]) -> Path:
    """A finished run of a suite whose every text is `EVIL`."""
    place = tmp_path_factory.mktemp("evil")
    (place / "evil.toml").write_text(SUITE)
    done = leakbench("run", place / "evil.toml", "--out", place / "run", "--workers", "1")
    assert done.code == 0 and is_safe(done.out) and is_safe(done.errors)  # type: ignore[attr-defined]
    return place


@pytest.mark.parametrize("format", ["md", "csv", "json"])
def test_reports_hold_no_controls(folder: Path, format: str) -> None:
    text = load(folder / "run").report(format)  # type: ignore[arg-type]
    assert is_safe(text)
    assert (folder / "run" / f"report.{format}").read_text() == text
    if format == "json":
        assert json.loads(text)["title"] == EVIL
    if format == "md":
        lines = text.replace("\\|", "").split("\n")
        for line, following in itertools.pairwise(lines):
            if line.startswith("|") and following.startswith("|"):
                assert line.count("|") == following.count("|")


@pytest.mark.parametrize(
    "words",
    [
        ("validate", "SUITE"),
        ("report", "RUN"),
        ("compare", "RUN", "RUN"),
        ("run", "no\x1b[31msuch"),
        ("run", "SUITE", "--profile", "\x9b2J"),
        ("run", "SUITE", "--attack", "\x1b]0;title\x07"),
        ("run", "SUITE", "--set", "title=\x1b"),
        ("report", "no\x1b[31msuch"),
        ("validate", "SUITE", "--plugins", "no\x1bsuch"),
        ("list",),
    ],
)
def test_commands_print_no_controls(
    folder: Path, leakbench: Callable[..., object], words: tuple[str, ...]
) -> None:
    named = {"SUITE": folder / "evil.toml", "RUN": folder / "run"}
    done = leakbench(*(named.get(word, word) for word in words), cwd=folder)
    assert done.code in (0, 1, 2)  # type: ignore[attr-defined]
    assert is_safe(done.out), repr(done.out)  # type: ignore[attr-defined]
    assert is_safe(done.errors), repr(done.errors)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("networks = 1", "networks = 1001", "networks: input should be less than or equal to 1000"),
        ("victims = 2", "victims = 1000001", "victims: input should be less than or equal to 1000"),
        ("mnist = 4 }", "mnist = 4 }, iterations = 9999999", "less than or equal to 1000000"),
        (
            "victims = 2 }",
            "victims = 2, utility = { networks = 1001 } }",
            "utility.networks: input should be less than or equal to 1000",
        ),
        (
            'name = "none"\nlabel',
            f'parameters = {{ a = {[*range(101)]}, b = {[*range(100)]} }}\nname = "none"\nlabel',
            "its lists make 10,100 rows; allowed: at most 10,000",
        ),
    ],
)
def test_counts_without_an_end_are_refused(
    tmp_path: Path, leakbench: Callable[..., object], old: str, new: str, words: str
) -> None:
    assert old in SUITE
    (tmp_path / "evil.toml").write_text(SUITE.replace(old, new))
    done = leakbench("validate", tmp_path / "evil.toml")
    assert done.code == 2 and words in done.errors, done.errors  # type: ignore[attr-defined]
