"""Words of strangers in Markdown: shown as they are, and never as markup."""

from __future__ import annotations

import re

from leakbench.printable import printable
from leakbench.report.words import Table


def inert(text: str) -> str:
    """One line in which nothing is a tag, a link, a heading or a new column.

    Bars are left to tables, which escape them.
    """
    plain = printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # A bracket that closes is half of a link or its target only before one of these.
    return re.sub(r"([\\`*_#~]|\](?=[(\[:]))", r"\\\1", plain)


def inert_table(table: Table) -> Table:
    """The same table with all its words inert."""
    return Table(
        caption=inert(table.caption),
        header=tuple(map(inert, table.header)),
        rows=tuple(tuple(map(inert, row)) for row in table.rows),
        folded=table.folded,
    )
