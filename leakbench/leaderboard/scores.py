"""What a score says, and reading one back: free of torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leakbench.errors import LeakbenchError
from leakbench.leaderboard.files import read_json
from leakbench.leaderboard.markdown import inert, inert_table
from leakbench.leaderboard.packs import SCHEMA, Counts
from leakbench.leaderboard.submissions import Submission
from leakbench.plain import from_json
from leakbench.printable import aligned, printable
from leakbench.report.renderings import markdown_table
from leakbench.report.words import DASH, Table, compact, interval_words
from leakbench.statistics import Interval

FILE = "score.json"

MOST_DECIBELS = 200.0
"""In medians the PSNR of an input without any error, above what float32 can tell; written inf."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """One input that was reconstructed.

    Attributes:
        leak, place: where it stands in the pack; of batches, after pairing with the originals.
        mse, psnr: of clamped inputs; psnr is None where the error is 0.
        rank: of the original among the candidates of the data by nearness; None if not measured.
        passed: names of the rules that it meets.
    """

    leak: str
    place: int
    mse: float | None
    psnr: float | None
    ssim: float | None
    rank: float | None
    passed: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of the pack, all its networks together.

    Attributes:
        networks: of the row; answered: those with reconstructions, the others count as failed.
        inputs: to be reconstructed.
        rates: rule -> share of inputs that meet it, with a 95 % interval over networks and victims.
        mse, psnr: medians over what was answered, with 95 % intervals.
        labels: share that is right; None where none were given.
        mean_image: mean error of the mean public image, which needs no gradient.
    """

    row: str
    label: str
    dataset: str
    defense: str
    guarantee: str
    networks: int
    answered: int
    inputs: int
    rates: Mapping[str, Interval]
    mse: Interval
    psnr: Interval
    labels: float | None
    mean_image: float
    victims: tuple[Victim, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A submission, judged. pack: the checksum; judge: digest of rules and metrics."""

    schema: int
    kind: str
    pack: str
    pack_name: str
    pack_title: str
    counts: tuple[Counts, ...]
    submission: Submission
    judge: str
    rows: tuple[Row, ...]


def to_json(score: Score) -> dict[str, Any]:
    """A score as plain values; `read` reads it back from JSON."""
    return dataclasses.asdict(score)


def read(path: Path) -> Score:
    """A score from its file.

    Raises:
        LeakbenchError: what is no score.
    """
    table = read_json(path)
    if table.get("kind") != "score" or table.get("schema") != SCHEMA:
        text = f"no score of schema {SCHEMA}; `leakbench score` writes them"
        raise LeakbenchError(f"{path}: {text}")
    found: Score = from_json(Score, table, str(path))
    return found


def to_table(score: Score) -> Table:
    """A line a row of the pack."""
    rules = [each for each in score.counts if any(each.name in row.rates for row in score.rows)]
    header = ("row", *(each.label for each in rules), "median MSE", "median PSNR, dB", "inputs")
    return Table(
        caption=f"{score.submission.name} on {score.pack_name}",
        header=header,
        rows=tuple(
            (
                f"{row.label} ({row.dataset})",
                *(interval_words(row.rates[each.name]) for each in rules),
                error_words(row.mse),
                decibels(row.psnr),
                str(row.inputs),
            )
            for row in score.rows
        ),
    )


def to_markdown(score: Score) -> str:
    """The table, what counts, what was spent, and every input; words of strangers stay words."""
    table = markdown_table(inert_table(to_table(score)))
    return _written(score, table, inert)


def to_terminal(score: Score) -> str:
    """The same, as words are: nothing escaped but what moves a cursor."""
    table = to_table(score)
    return _written(score, aligned(table.header, table.rows), printable)


def _written(score: Score, table: str, safe: Callable[[str], str]) -> str:
    """safe: what makes words of strangers harmless there."""
    said = score.submission
    parts = [
        f"# {safe(said.name)}",
        f"Scored on the pack {safe(score.pack_title)} ({safe(score.pack_name)}), checksum "
        f"{score.pack}.",
        safe(said.method),
        f"{said.knowledge}; {safe(budget_words(said))}. {safe(said.link)}".strip(),
        table,
        "\n".join(f"- {safe(each.label)}: {safe(each.condition)}" for each in score.counts),
        "Rates and medians are with 95 % intervals, over networks, then victims.",
    ]
    for row in score.rows:
        lines = "\n".join(f"- {safe(line)}" for line in victim_words(row))
        parts += [f"## {safe(row.label)} ({safe(row.dataset)})", lines]
    return "\n\n".join(part for part in parts if part) + "\n"


def error_words(error: Interval) -> str:
    """A median error with its ends."""
    if error.low is None:
        return compact(error.value)
    return f"{compact(error.value)} [{compact(error.low)}, {compact(error.high)}]"


def decibels(psnr: Interval) -> str:
    """A PSNR with its ends, one decimal."""
    value, low, high = map(_decibel_words, (psnr.value, psnr.low, psnr.high))
    return value if psnr.low is None and psnr.high is None else f"{value} [{low}, {high}]"


def _decibel_words(psnr: float | None) -> str:
    if psnr is None:
        return DASH
    return "inf" if psnr >= MOST_DECIBELS else f"{psnr:.1f}"


def budget_words(said: Submission) -> str:
    """What was spent."""
    spent = said.budget
    parts = [
        "" if spent.evaluations is None else f"{spent.evaluations:,.0f} evaluations a gradient",
        "" if spent.seconds is None else f"{spent.seconds:,.0f} s",
        printable(spent.hardware),
    ]
    return ", ".join(part for part in parts if part) or "not said"


def victim_words(row: Row) -> list[str]:
    """A line an input."""
    return [
        f"{each.leak} {each.place}: MSE {compact(each.mse)}, PSNR "
        f"{_decibel_words(MOST_DECIBELS if each.psnr is None else each.psnr)} dB"
        f"{', ' + ', '.join(each.passed) if each.passed else ''}"
        for each in row.victims
    ]
