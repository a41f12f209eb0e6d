"""`verify`: whether a run folder is whole."""

from __future__ import annotations

from typing import Annotated

import typer

from leakbench.commands.options import RunArgument
from leakbench.commands.output import print_columns, say


def verify(
    run: RunArgument,
    arrays: Annotated[
        bool, typer.Option("--arrays", help="Read all images as well; takes longer.")
    ] = False,
    forget: Annotated[
        bool,
        typer.Option(
            "--forget",
            help="Set the records of trials aside whose images are lost, so that `leakbench run` "
            "attacks them again.",
        ),
    ] = False,
) -> None:
    """Check every line, manifest and file of a run; exit code 1 if anything is wrong."""
    from leakbench.loading import existing
    from leakbench.verifying import verify as wrong_with

    store = existing(run)
    found = wrong_with(store, arrays=arrays)
    if not found:
        read = "all images" if arrays else "no image: --arrays reads them as well"
        print(f"{store.folder}: whole; read were all lines and manifests, and {read}")
        return
    rows = [(each.place, each.about, each.what) for each in found]
    print_columns(("where", "trials", "what is wrong"), rows)
    lost = {trial for each in found for trial in each.trials}
    if forget and lost:
        with store.writing() as writer:
            writer.forget(lost)
            for repair in writer.repairs:
                say(repair)
        say(f"{len(lost)} trials set aside: `leakbench run` attacks them again")
    elif lost:
        say(f"{len(lost)} trials lost their images: with --forget `leakbench run` makes new ones")
    raise typer.Exit(1)
