"""Text from suites, plugins and paths, made safe to show: names and reasons are not always ours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def printable(text: str) -> str:
    """One line that a terminal, a table and an editor show as it is.

    Line ends and tabs become spaces; other control characters, and what changes the direction of a
    line, would move a cursor or hide text, and are shown as Python escapes them.
    """
    return "".join(map(_shown, text))


def _shown(letter: str) -> str:
    if letter.isprintable():
        return letter
    return " " if letter.isspace() else letter.encode("unicode_escape").decode()


def aligned(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table for a terminal, its columns two spaces apart; of strangers' words too."""
    lines = [[*map(printable, line)] for line in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
