"""Words of strangers in Markdown: shown as they are, and never as markup."""

from __future__ import annotations

import re

from leakbench.report.words import printable


def inert(text: str) -> str:
    """One line in which nothing is a tag, a link, a heading or a new column.

    Bars are left to tables, which escape them.
    """
    plain = printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]#!~])", r"\\\1", plain)
