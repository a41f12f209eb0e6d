"""The command line as a whole: all commands of this package.

Everything heavy is imported inside the command that needs it.
"""

from __future__ import annotations

from typing import Annotated

import typer

from leakbench.commands import (
    about,
    account,
    audit,
    compare,
    data,
    demo,
    figure,
    leaderboard,
    merge,
    panel,
    queue,
    report,
    run,
    verify,
)

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"leakbench {version('leakbench')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print it and end."),
    ] = False,
) -> None:
    """How much private training data does a gradient leak, under which defense?"""


data_app = typer.Typer(
    help="Data sets: what is here, and how to get the rest.", no_args_is_help=True
)
app.add_typer(data_app, name="data")

app.command("list")(about.list_command)
for command in (
    demo.demo, audit.audit, run.run, queue.queue, run.cloak, panel.panel, run.validate,
    report.report, report.gallery, report.rescore, report.export, verify.verify, figure.figure,
    compare.compare, merge.merge,
    leaderboard.pack, leaderboard.score, leaderboard.board, account.account, about.doctor,
):  # fmt: skip
    app.command()(command)
data_app.command("list")(data.list_command)
data_app.command("prepare")(data.prepare_command)
