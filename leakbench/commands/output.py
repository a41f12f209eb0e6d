"""What a command prints and writes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import typer

from leakbench.errors import LeakbenchError
from leakbench.printable import aligned, printable


def say(text: str) -> None:
    """Tell the user, in one line; stdout stays for what was asked for."""
    print(printable(text), file=sys.stderr)


def show(text: str) -> None:
    """Print a line of what was asked for."""
    print(printable(text), flush=True)


def write(path: Path, text: str) -> None:
    """Write a text file.

    Raises:
        LeakbenchError: it cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise LeakbenchError(f"{path}: cannot write: {error.strerror}") from None


def end_of_reading(*damages: str) -> None:
    """Say what of runs was damaged and is in no number; exit code 1 if anything was.

    damages: a sentence for each of the runs that were read, "" where all is well.
    """
    for damage in filter(None, damages):
        say(damage)
    if any(damages):
        raise typer.Exit(1)


def make_folder(path: Path) -> None:
    """Make a folder that may be there already.

    Raises:
        LeakbenchError: it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LeakbenchError(f"{path}: cannot be written: {error.strerror}") from None


def print_json(content: Any) -> None:
    """Print strict JSON: nan and infinity are errors."""
    print(json.dumps(content, indent=1, allow_nan=False))


def print_columns(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print an aligned table."""
    print(aligned(header, rows))
