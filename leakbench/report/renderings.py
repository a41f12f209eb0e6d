"""The report in the forms people read: Markdown, CSV, JSON and one self-contained HTML page.

Markdown and HTML are two renderings of the same `tables.Document`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable

import jinja2

from leakbench import frames
from leakbench.report.content import Report
from leakbench.report.tables import Table, arrange


def to_json(report: Report) -> str:
    """Strict JSON (no NaN), keys in the order of `content.Report`."""
    return json.dumps(report.as_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def to_csv(report: Report) -> str:
    """One row a cell; nested keys joined by dots, lists by semicolons, None is empty."""
    return frames.to_csv(cell.as_dict() for cell in report.cells)


def to_markdown(report: Report) -> str:
    """For GitHub, and readable in a terminal: columns of a table are padded to equal width."""
    document = arrange(report)
    parts = [f"# {document.title}", *document.lead, _bullets(document.guide)]
    for section in document.sections:
        parts += [f"## {section.title}", *section.above]
        for table in section.tables:
            parts += [f"**{table.caption}**", markdown_table(table)]
        parts += section.below
    if document.notes:
        numbered = enumerate(document.notes, start=1)
        parts += ["## Notes", "\n".join(f"{number}. {note}" for number, note in numbered)]
    return "\n\n".join(part for part in parts if part) + "\n"


def to_html(report: Report, gallery_png: bytes | None = None) -> str:
    """One page that needs nothing from outside; `gallery_png` is embedded."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("leakbench.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    gallery = None
    if gallery_png is not None:
        gallery = "data:image/png;base64," + base64.b64encode(gallery_png).decode("ascii")
    return environment.get_template("report.html.j2").render(
        document=arrange(report), gallery=gallery
    )


def markdown_table(table: Table) -> str:
    """Padded columns; a bar inside a cell would start a new column, so it is escaped."""
    rows = [[cell.replace("|", "\\|") for cell in row] for row in (table.header, *table.rows)]
    widths = [max(3, *(len(row[i]) for row in rows)) for i in range(len(table.header))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)
