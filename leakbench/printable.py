"""Text from suites, plugins and paths, made safe to show: names and reasons are not always ours."""

from __future__ import annotations


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
