"""`report` and `gallery`: what a finished run says."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leakbench.collecting import uncollected
from leakbench.commands.options import RunArgument
from leakbench.commands.output import end_of_reading, say, write
from leakbench.errors import LeakbenchError
from leakbench.report.kinds import Pick

if TYPE_CHECKING:
    from leakbench.report.content import Report


class Format(StrEnum):
    """Formats of a report."""

    md = "md"
    csv = "csv"
    html = "html"
    json = "json"


def report(
    run: RunArgument,
    format: Annotated[
        Format | None, typer.Option(help="All of it as md, csv, html or json.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="All of it, as md.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Write all of it to this file, .md, .csv, .html or .json."),
    ] = None,
) -> None:
    """Print what a run found: what leaked to whom, what held; --full: every table and note."""
    if out is not None:
        format = _format_of(out, format, full)
    from leakbench.loading import opened

    with uncollected():
        found = opened(run)
        if format is None and not full:
            print_answer(found.content())
            say("all of it: --full, or --format md|csv|html|json")
        else:
            text = found.report((format or Format.md).value)
            if out is None:
                sys.stdout.write(text)
            else:
                write(out, text)
    end_of_reading(found.damage)


def _format_of(out: Path, format: Format | None, full: bool) -> Format:
    """By the ending of a file.

    Raises:
        LeakbenchError: it has none of the four, or another one than what is asked for.
    """
    ending = out.suffix[1:].lower()
    if ending not in set(Format):
        allowed = ", ".join(f".{each}" for each in Format)
        raise LeakbenchError(
            f"--out {out}: a report is written as {allowed}, not as '{out.suffix}'"
        )
    asked = "--full" if full and format is None else f"--format {format}"
    if ending != (format or (Format.md if full else ending)):
        raise LeakbenchError(f"--out {out}: its ending and {asked} contradict each other")
    return Format(ending)


def gallery(
    run: RunArgument,
    out: Annotated[Path | None, typer.Option(help="PNG to write; else RUN/gallery.png.")] = None,
    pick: Annotated[
        Pick | None,
        typer.Option(
            help="Victims: at the suite's quantiles of the raw MSE in its reference row (the "
            "default), the best or the worst reconstructed there, or those of --ids."
        ),
    ] = None,
    ids: Annotated[
        str | None, typer.Option(metavar="N,N...", help="Numbers of victims, as in 3,7.")
    ] = None,
    columns: Annotated[
        int | None,
        typer.Option(min=1, help="Methods side by side; else as many as fit on a page."),
    ] = None,
    beside: Annotated[
        bool,
        typer.Option(
            "--beside",
            help="Beside each: the difference, the wrong candidate that it names, the best step.",
        ),
    ] = False,
    single: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write every picture into this folder as well."),
    ] = None,
) -> None:
    """Draw what the attacker got, picture by picture, victims picked by the suite's rule."""
    numbers = _numbers(ids, pick)
    from leakbench.loading import opened
    from leakbench.report import gallery as drawing

    asked = opened(run)
    store, known = asked.store, asked.described
    chosen = pick or (Pick.quantiles if ids is None else Pick.ids)
    look = drawing.Look(pick=chosen, ids=numbers, columns=columns, beside=beside)
    path = out if out is not None else store.folder / "gallery.png"
    warnings: list[str] = []
    found = drawing.sections(store, known.plan, known.cells, look, warnings)
    drawing.write(drawing.figure_of(found, known.plan, look), path)
    for warning in warnings:
        say(warning)
    say(f"gallery: {path}")
    if single is not None:
        from leakbench.report.singles import write_all

        say(f"{write_all(found, single)} pictures: {single}")
    html = store.folder / "report.html"
    if out is None and html.exists():  # the picture goes into the page as well
        write(html, asked.report("html"))
    end_of_reading(asked.damage)


def _numbers(ids: str | None, pick: Pick | None) -> tuple[int, ...]:
    """Of victims, from the command line."""
    if ids is None:
        if pick is Pick.ids:
            raise LeakbenchError("--pick ids needs --ids, the numbers of victims, as in --ids 3,7")
        return ()
    if pick not in (None, Pick.ids):
        raise LeakbenchError(f"--ids goes with --pick ids, not with --pick {pick}")
    words = ids.split(",")
    # int() takes "1_0" and other scripts' digits as well, and refuses thousands of them.
    if not all(re.fullmatch("[0-9]{1,9}", word.strip()) for word in words):
        raise LeakbenchError(f"--ids {ids!r:.60}: must be numbers with commas, as in 3,7")
    return tuple(int(word) for word in words)


def export(
    run: RunArgument,
    folder: Annotated[Path, typer.Argument(help="New folder, to pass on or to commit.")],
) -> None:
    """Copy a run without its images: small, and all that a report needs."""
    from leakbench.loading import existing

    store = existing(run)
    store.export(folder)
    write_reports(folder, (Format.md, Format.csv))
    picture = store.folder / "gallery.png"
    if picture.is_file():
        shutil.copyfile(picture, folder / picture.name)
    say(f"exported: {folder}")
    end_of_reading(store.damage(store.contents()))


def rescore(run: RunArgument) -> None:
    """Judge a run again by its own rules and today's metrics; nothing is attacked."""
    from leakbench import runner
    from leakbench.data.catalog import data_root
    from leakbench.loading import existing

    store = existing(run)
    count, repairs = runner.rescore(store, data_root())
    for repair in repairs:
        say(repair)
    content = write_reports(store.folder)
    print_answer(content)
    say(f"{count} trials judged again; {store.folder}/report.md, .html, .json, .csv")


def write_reports(folder: Path, formats: Sequence[Format] = tuple(Format)) -> Report:
    """Write the report in these formats; returns what they say."""
    from leakbench.loading import opened

    with uncollected():
        run = opened(folder)
        for format in formats:
            write(folder / f"report.{format.value}", run.report(format.value))
        return run.content()


def above_ceiling(content: Report) -> list[str]:
    """Cells in which more victims were named than is possible."""
    return [
        f"{cell.dataset}, {cell.label}, {cell.attack} {cell.knowledge}"
        for cell in content.above_ceiling()
    ]


def print_answer(content: Report) -> None:
    """What leaked to whom, at the terminal's width; all of it where nothing was attacked."""
    from leakbench.report import renderings

    if not content.cells:
        sys.stdout.write(renderings.to_markdown(content))
        return
    width = shutil.get_terminal_size((100, 24)).columns
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    sys.stdout.write(renderings.to_terminal(content, width=width, colour=colour))
