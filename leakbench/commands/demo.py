"""`demo`: one digit, four rows, three attackers, in less than a minute."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leakbench.commands.output import print_columns, say, show
from leakbench.commands.running import plan_of, processes, showing_progress
from leakbench.errors import LeakbenchError
from leakbench.stopping import Stop, Stopped

if TYPE_CHECKING:
    from leakbench.spec import Plan

SUITE = "demo"
ROWS = {
    ("open", "naive"): (
        "1  No defense",
        "Whoever holds the gradient of one example can solve for the image.",
    ),
    ("clipped", "naive"): (
        "2  Clipping, and an attacker who ignores it",
        "Each tensor is cut to length 4. It looks safe: nobody gets the image.",
    ),
    ("clipped", "adaptive"): (
        "3  The same clipping, and an attacker who knows of it",
        "He clips what he compares with, too. It never was safe.",
    ),
    ("noisy", "adaptive"): (
        "4  Clipping and a little noise (sigma 0.03)",
        "Destroyed to the eye of the first attacker; yet the image is known among 1,000.",
    ),
}
"""What is shown, by the suite's defense and knowledge."""
LEGEND = (
    "The first digit of the embedded sample and a network that was never trained: nothing was "
    "picked. Gradient descent and second order draw the image; matching picks one of 1,000 "
    "candidates.",
    "MSE: mean squared error of a pixel. Exact (blue frame): MSE below 0.01 and a quarter of the "
    "best guess's. Named: of 1,000 images, the one nearest to the picture is the right one.",
)


def demo(
    out: Annotated[
        Path | None, typer.Option(help="PNG to write; else leakbench-demo.png in a new folder.")
    ] = None,
    workers: Annotated[int, typer.Option(min=0, help="Worker processes; 0: one a core.")] = 0,
) -> None:
    """Attack one digit four times: no defense, clipping twice, a little noise. Under a minute."""
    if out is not None:
        require_writable(out)
    plan = plan_of(SUITE, "quick", None, None, None)
    path = out or Path(tempfile.mkdtemp(prefix="leakbench-")) / "leakbench-demo.png"
    say("one digit, four rows, three attackers: under a minute on two idle cores")
    attack(plan, path, workers)


def require_writable(path: Path) -> None:
    """Refuse before the attacks what the picture cannot be written to after them."""
    folder = path.absolute().parent
    reason = ""
    if not folder.is_dir():
        reason = f"{path.parent} is no folder"
    elif path.suffix.lower() != ".png":
        reason = f"'{path}' does not end in .png, and a PNG is written"
    elif path.is_dir():
        reason = f"{path} is a folder"
    elif not os.access(path if path.exists() else folder, os.W_OK):
        reason = f"{path} cannot be written"
    if reason:
        raise LeakbenchError(f"--out: {reason}")


def attack(plan: Plan, path: Path, workers: int) -> None:
    """Run what is shown of the plan, draw it at `path`, and print the numbers.

    Raises:
        LeakbenchError: `path` cannot be written.
    """
    from leakbench import manifest, runner
    from leakbench.records import Run
    from leakbench.report import demo_figure

    with Stop().listening() as stop, tempfile.TemporaryDirectory() as folder:
        with showing_progress() as report:
            outcome = runner.run(
                shown(plan),
                Path(folder),
                root=None,
                executor=processes("cpu", workers),
                stop=stop,
                report=report,
            )
        if outcome.interrupted:
            raise Stopped
        run = Run.existing(Path(folder))
        victim, rows = demo_figure.read(run, manifest.read(run), ROWS)
    legend = [line for text in LEGEND for line in demo_figure.wrapped(text)]
    try:
        path.write_bytes(demo_figure.render(victim, rows, legend))
    except OSError as error:
        raise LeakbenchError(f"{path}: cannot write: {error.strerror}") from None
    print_columns(
        ("row", "attacker", "MSE", "exact", "named among 1,000"),
        [(row.title, shot.attacker, *shot.words) for row in rows for shot in row.shots],
    )
    print()
    show(f"picture: {path}")


def shown(plan: Plan) -> Plan:
    """The plan with the cells that are shown."""
    cells = tuple(cell for cell in plan.cells if (cell.defense_id, cell.knowledge) in ROWS)
    return replace(plan, cells=cells)
