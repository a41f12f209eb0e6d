"""`audit`: what a training gives away, and whether a claim about it holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from leakbench.commands.options import PluginsOption
from leakbench.commands.output import say
from leakbench.errors import LeakbenchError
from leakbench.registry import add_folders


def audit(
    scenario: Annotated[Path, typer.Argument(help="Path of a .toml file: see docs/audit.md.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for page.html, report.md and report.json; else none is written."),
    ] = None,
    plugins: PluginsOption = None,
) -> None:
    """Audit a training with differential privacy; exit code 1 where a claim is contradicted."""
    add_folders(plugins or ())
    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LeakbenchError(f"--out {out}: {error.strerror}") from None
    from leakbench.audits import page
    from leakbench.audits import scenario as scenarios

    report = scenarios.run(scenario, progress=lambda text: say(f"{text} ..."))
    print(page.markdown(report), end="")
    if out is not None:
        for name in ("report.json", "report.md", "page.html"):
            say(f"written: {report.save(out / name)}")
    raise typer.Exit(1 if report.contradicted else 0)
