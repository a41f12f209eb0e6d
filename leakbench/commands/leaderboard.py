"""`pack`, `score`, `board`: leaks to attack, answers judged, and who is where."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leakbench.commands.options import (
    DefenseOption,
    PluginsOption,
    ProfileOption,
    SetOption,
)
from leakbench.commands.output import make_folder, say, write
from leakbench.commands.running import plan_of
from leakbench.errors import LeakbenchError
from leakbench.registry import add_folders

if TYPE_CHECKING:
    from leakbench.leaderboard.scores import Score
    from leakbench.report.content import Report
    from leakbench.spec import Plan

SCORE_PAGE = "score.md"


def pack(
    what: Annotated[
        str,
        typer.Argument(metavar="SUITE|RUN", help="A suite, or the folder of a run, for its plan."),
    ],
    out: Annotated[Path, typer.Option(help="New folder for the pack, to pass on.")],
    answers: Annotated[
        Path | None,
        typer.Option(help="File for the originals, to keep; else OUT.answers.npz."),
    ] = None,
    profile: ProfileOption = "quick",
    defense: DefenseOption = None,
    settings: SetOption = None,
    plugins: PluginsOption = None,
) -> None:
    """Make a leak pack: gradients of victims that nobody knows, for any tool to attack."""
    add_folders(plugins or ())
    if not out.name:
        raise LeakbenchError(f"--out: '{out}' has no name; give a new folder for the pack")
    kept = answers if answers is not None else out.with_name(f"{out.name}.answers.npz")
    plan = _plan(what, profile, defense, settings)
    from leakbench.data.catalog import data_root
    from leakbench.leaderboard import making

    made, missing = making.make(plan, out, kept, data_root())
    for reason in missing:
        say(f"left out: {reason}")
    inputs = sum(leak.victims * leak.batch_size for leak in made.leaks)
    say(f"{out}: {len(made.leaks)} leaks of {inputs} inputs, checksum {made.checksum}")
    say(f"{kept}: the originals; keep it, and keep it to yourself")


def _plan(what: str, profile: str, defense: str | None, settings: list[str] | None) -> Plan:
    """Of a suite; or the one that a run has kept."""
    if not os.path.isdir(what):
        return plan_of(what, profile, None, defense, settings)
    if defense is not None or settings:
        raise LeakbenchError(
            f"{what}: a run's plan is what was run; allowed with --defense and --set: a suite"
        )
    from leakbench import loading, manifest

    return manifest.read(loading.existing(Path(what))).plan


def score(
    submission: Annotated[Path, typer.Argument(help="Folder with submission.json.")],
    answers: Annotated[Path, typer.Option(help="The answers file of the pack.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder for score.json and score.md; else SUBMISSION.")
    ] = None,
) -> None:
    """Judge a submission by the rules of its pack; it is read as data and never executed."""
    from leakbench.data.catalog import data_root
    from leakbench.leaderboard import scores, scoring
    from leakbench.leaderboard.files import require_plain, write_json

    found = scoring.score(submission, answers, data_root())
    folder = out if out is not None else submission
    make_folder(folder)
    for name in (scores.FILE, SCORE_PAGE):
        require_plain(folder / name)  # a link in the submission may lead to a file of ours
    write_json(folder / scores.FILE, scores.to_json(found))
    write(folder / SCORE_PAGE, scores.to_markdown(found))
    print(scores.to_terminal(found), end="")
    say(f"{folder}/score.json, score.md")


def board(
    sources: Annotated[
        list[Path],
        typer.Argument(metavar="RUN|SCORE...", help="Folders of runs; scores or their folders."),
    ],
    out: Annotated[Path, typer.Option(help="Folder for index.html, board.md and board.json.")],
) -> None:
    """Make a static page: attacks on the same leaks, and what defenses hold at which price."""
    from leakbench import loading
    from leakbench.leaderboard import boards, pages, scores
    from leakbench.leaderboard.files import write_json

    scored: list[Score] = []
    reports: list[Report] = []
    files = [(each, _score_file(each)) for each in sources]
    once = {(file or source).resolve(): (source, file) for source, file in files}
    for source, file in once.values():
        if file is None:
            reports.append(loading.load(source).content())
        else:
            scored.append(scores.read(file))
    found = boards.board(scored, reports)
    make_folder(out)
    write(out / "index.html", pages.to_html(found))
    write(out / "board.md", pages.to_markdown(found))
    write_json(out / "board.json", found.as_dict())
    say(f"{out}/index.html, board.md, board.json")


def _score_file(source: Path) -> Path | None:
    """The score that is meant, None where it is a run."""
    if os.path.isfile(source):
        return source
    inside = source / "score.json"
    return inside if os.path.isfile(inside) else None
