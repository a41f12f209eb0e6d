"""`compare`: two runs, victim by victim."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from leakbench.commands.options import RunArgument
from leakbench.commands.output import end_of_reading, print_columns, print_json, say, write
from leakbench.errors import LeakbenchError


def compare(
    before: RunArgument,
    after: RunArgument,
    json: Annotated[bool, typer.Option("--json", help="Print JSON in place of tables.")] = False,
    out: Annotated[Path | None, typer.Option(help="HTML page to write: all of it.")] = None,
    gallery: Annotated[
        Path | None, typer.Option(help="PNG to write: victims that flip, before and after.")
    ] = None,
) -> None:
    """Say what changes between two runs: paired differences with 95 % intervals, and who flips."""
    import dataclasses

    from leakbench import comparing
    from leakbench.loading import opened

    found = comparing.compare(opened(before), opened(after))
    if json:
        print_json(
            {
                "before": str(found.runs[0].store.folder),
                "after": str(found.runs[1].store.folder),
                "differences": [dataclasses.asdict(each) for each in found.differences],
                "flips": [dataclasses.asdict(each) for each in found.flips],
                "only": list(found.only),
            }
        )
    else:
        header = ("cell", "what", "trials", "before", "after", "difference [95 %]")
        print_columns(
            header,
            [
                (
                    each.cell,
                    each.what,
                    str(each.trials),
                    comparing.number(each.before),
                    comparing.number(each.after),
                    comparing.said(each.difference),
                )
                for each in found.differences
            ],
        )
        print()
        print(f"{len(found.flips)} flips")
        if found.flips:
            print_columns(
                ("cell", "what", "network", "victim", "before", "after"),
                [
                    (
                        each.cell, each.what, str(each.network), str(each.victim),
                        _word(each.before), _word(each.after),
                    )
                    for each in found.flips
                ],
            )  # fmt: skip
        for line in found.only:
            say(line)
    if out is not None:
        write(out, found.page())
        say(f"page: {out}")
    if gallery is not None and not found.flips:
        say(f"no victim flips, so there is nothing to show: {gallery} is not written")
    elif gallery is not None:
        try:
            gallery.write_bytes(found.gallery().png())
        except OSError as error:
            raise LeakbenchError(f"{gallery}: cannot write: {error.strerror}") from None
        say(f"gallery: {gallery}")
    end_of_reading(*(run.damage for run in found.runs))


def _word(success: bool) -> str:
    return "success" if success else "-"
