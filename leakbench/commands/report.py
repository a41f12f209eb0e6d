"""`report` and `gallery`: what a finished run says."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leakbench.commands.options import RUNS, RunArgument
from leakbench.commands.output import say, write
from leakbench.errors import LeakbenchError

if TYPE_CHECKING:
    from leakbench.described import PlannedCell, PlannedTraining
    from leakbench.records import Run
    from leakbench.report.content import Report
    from leakbench.spec import Plan


class Format(StrEnum):
    """Formats of a report."""

    md = "md"
    csv = "csv"
    html = "html"
    json = "json"


def report(
    run: RunArgument,
    format: Annotated[Format, typer.Option(help="md, csv, html or json.")] = Format.md,
    out: Annotated[Path | None, typer.Option(help="Write to this file.")] = None,
) -> None:
    """Print the table of a run: rates with intervals, printed numbers, verdicts, notes."""
    store = _existing(run)
    text = _render(store, _content(store), format)
    if out is None:
        sys.stdout.write(text)
        return
    write(out, text)


def gallery(
    run: RunArgument,
    out: Annotated[Path | None, typer.Option(help="PNG to write; else RUN/gallery.png.")] = None,
) -> None:
    """Draw what the attacker got, picture by picture, victims picked by the suite's rule."""
    store = _existing(run)
    plan, planned, _ = _resolved(store)
    from leakbench.report import gallery as drawing

    path = out if out is not None else store.folder / "gallery.png"
    try:
        warnings = drawing.draw(store, plan, planned, path)
    except OSError as error:
        raise LeakbenchError(f"{path}: cannot write: {error.strerror}") from None
    for warning in warnings:
        say(warning)
    say(f"gallery: {path}")
    html = store.folder / "report.html"
    if out is None and html.exists():  # the picture goes into the page as well
        write(html, _render(store, _content(store), Format.html))


def write_reports(folder: Path) -> tuple[str, list[str]]:
    """Write the report in all formats; returns the Markdown, and cells above their ceiling."""
    from leakbench.records import Run

    store = Run.existing(folder)
    content = _content(store)
    texts = {format: _render(store, content, format) for format in Format}
    for format, text in texts.items():
        write(folder / f"report.{format.value}", text)
    broken = [
        f"{cell.dataset}, {cell.label}, {cell.attack} {cell.knowledge}"
        for cell in content.above_ceiling()
    ]
    return texts[Format.md], broken


def _existing(run: Path) -> Run:
    from leakbench.records import Run

    # os.path: unlike Path.exists it never raises, whatever was typed.
    named = RUNS / run
    return Run.existing(named if os.path.exists(named) and not os.path.exists(run) else run)


def _resolved(store: Run) -> tuple[Plan, list[PlannedCell], list[PlannedTraining]]:
    """The suite of a run as code and data are now."""
    manifest = store.manifest()
    try:
        asked = [manifest[k] for k in ("suite", "profile", "attack", "defense", "settings")]
        device = manifest["device"]
        kernels, unit, release = (manifest[k] for k in ("arithmetic", "unit", "torch"))
    except KeyError as error:
        raise LeakbenchError(
            f"{store.folder}: its newest manifest has no {error}, so another leakbench made it; "
            "`leakbench run` does it again, report.md there is of then"
        ) from None
    suite, profile, attack, defense, settings = asked
    texts = [suite, profile, *(x for x in (attack, defense) if x is not None)]
    texts += [kernels, release]
    sound = isinstance(settings, list) and all(isinstance(x, str) for x in [*texts, *settings])
    sound = sound and (unit is None or isinstance(unit, int))
    if not sound or device not in ("cpu", "cuda"):
        raise LeakbenchError(f"{store.folder}: its newest manifest is damaged; remove the file")
    from leakbench.suite import resolve

    plan = resolve(suite, profile, attack=attack, defense=defense, settings=settings)
    from leakbench import runner  # last, as torch takes its time to load
    from leakbench.data.catalog import data_root

    # As where the records were made, which may have been elsewhere.
    made = runner.Platform(device=device, arithmetic=kernels, torch=release, unit=unit)
    planned = runner.plan_cells(plan, data_root(), made)
    trained = runner.plan_trainings(plan, data_root(), made)
    records = store.records()
    known = {key for cell in planned for key in cell.trials()}
    known |= {key for training in trained for key in training.trials()}
    if records and not known & records.keys():
        commit = (manifest.get("git") or {}).get("commit") or "unknown"
        raise LeakbenchError(
            f"{store.folder}: its {len(records)} records were made by other code, data or "
            f"settings (commit {str(commit)[:12]}); `leakbench run` does them again, report.md "
            "there is of then"
        )
    return plan, planned, trained


def _content(store: Run) -> Report:
    """The report of a run."""
    plan, planned, trained = _resolved(store)
    from leakbench.report import cells

    return cells.build(plan, planned, store.records(), store.manifest(), trained)


def _render(store: Run, content: Report, format: Format) -> str:
    from leakbench.report import renderings

    if format is Format.html:
        picture = store.folder / "gallery.png"
        return renderings.to_html(content, picture.read_bytes() if picture.exists() else None)
    make = {
        Format.md: renderings.to_markdown,
        Format.csv: renderings.to_csv,
        Format.json: renderings.to_json,
    }
    return make[format](content)
