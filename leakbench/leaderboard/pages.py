"""A board as one page, HTML or Markdown, in the style of a report's."""

from __future__ import annotations

from dataclasses import dataclass

from leakbench.leaderboard.boards import AttackTable, Board, DefenseEntry, DefenseTable
from leakbench.leaderboard.markdown import inert, inert_table
from leakbench.leaderboard.scores import decibels, error_words
from leakbench.printable import printable
from leakbench.report import strips
from leakbench.report.pages import environment
from leakbench.report.renderings import markdown_table, page_scripts
from leakbench.report.words import (
    DASH,
    Table,
    ceiling_words,
    compact,
    epsilon_words,
    interval_words,
    share_words,
)
from leakbench.statistics import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A cell of a table: what it says, what it sorts by ("" for its text), where it links to."""

    text: str
    sort: str = ""
    link: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A table with its words. cells: of its rows."""

    anchor: str
    title: str
    words: tuple[str, ...]
    header: tuple[str, ...]
    cells: tuple[tuple[Cell, ...], ...]


HOW_ATTACKS = (
    "Every attack met the same gradients, of victims that nobody knew but the scorer. Places are "
    "by the share of victims recovered; attacks whose 95 % intervals meet share a place, and who "
    "recovered nobody has none. Evaluations, time and hardware are as submitted."
)

HOW_DEFENSES = (
    "Every defense stands against the worst of its attackers who know it; attackers who ignore it "
    "do not count. Places are among defenses of equal price: an epsilon between the same powers of "
    "2, an accuracy within the same 5 points. Less is better; defenses whose 95 % intervals meet "
    "share a place. Defenses without an epsilon are in tables of their own."
)

TITLE = "Leaderboards: attacks and defenses"


def sections(board: Board) -> tuple[list[Section], list[Section]]:
    """Of attacks, and of defenses."""
    attacks = [_attacks(number, table) for number, table in enumerate(board.attacks, start=1)]
    defenses = [_defenses(number, table) for number, table in enumerate(board.defenses, start=1)]
    return attacks, defenses


def _rate(rate: Interval) -> Cell:
    return Cell(text=interval_words(rate), sort=strips.sort_key(rate.value))


def _number(value: float | None, text: str) -> Cell:
    return Cell(text=text, sort=strips.sort_key(value))


def _attacks(number: int, table: AttackTable) -> Section:
    shown = [name for name in table.counts if any(name in e.rates for e in table.entries)]
    header = (
        "attack", "place", *(printable(table.counts[name]) for name in shown), "median MSE",
        "median PSNR, dB", "evaluations", "seconds", "knows the defense", "hardware",
    )  # fmt: skip
    rows = []
    for entry in table.entries:
        part = entry.answered < entry.networks
        name = entry.name + (f" ({entry.answered} of {entry.networks} networks)" if part else "")
        rows.append(
            (
                Cell(text=printable(name), link=entry.link),
                _number(entry.place, DASH if entry.place is None else str(entry.place)),
                *(_rate(entry.rates[each]) for each in shown),
                _number(entry.mse.value, error_words(entry.mse)),
                _number(entry.psnr.value, decibels(entry.psnr)),
                _number(entry.evaluations, _counted(entry.evaluations)),
                _number(entry.seconds, _counted(entry.seconds)),
                Cell(text="yes" if entry.knowledge == "adaptive" else "no"),
                Cell(text=printable(entry.hardware) or DASH),
            )
        )
    return Section(
        anchor=f"attacks-{number}",
        title=printable(f"{table.label}, {table.dataset}"),
        words=(
            printable(f"{table.pack_title}, checksum {table.pack[:16]}..."),
            f"{table.inputs} input{'s' * (table.inputs != 1)}; guarantee to who reads there: "
            f"{printable(table.guarantee)}; the mean image, without a gradient, has an MSE of "
            f"{compact(table.mean_image)}.",
        ),
        header=header,
        cells=tuple(rows),
    )


def _counted(value: float | None) -> str:
    return DASH if value is None else f"{value:,.0f}"


def _defenses(number: int, table: DefenseTable) -> Section:
    dp = table.kind == "dp"
    header = ["defense", "recovered", "named", "accuracy"]
    header += ["epsilon", "place at equal epsilon"] if dp else []
    header += ["place at equal accuracy", "ceiling of naming", "worst attacker", "trials"]
    kind = "with an epsilon" if dp else "heuristic, without an epsilon"
    return Section(
        anchor=f"defenses-{number}",
        title=printable(f"{table.dataset}, {table.model}, {kind}"),
        words=(
            printable(f"{table.title}. Gradients read at {table.leak}."),
            f"Attackers: {printable(', '.join(table.panel))}, all of whom know the defense."
            + (f" Epsilon is that of who holds the final model: {_promises(table)}." if dp else ""),
            printable(f"Accuracy is that of {_trainings(table)}."),
        ),
        header=tuple(header),
        cells=tuple(_defense(entry, dp) for entry in table.entries),
    )


def _promises(table: DefenseTable) -> str:
    """Whose, under which relation and delta: what `epsilon_words` says behind the number."""
    words = (epsilon_words(entry.privacy).partition(" ")[2].strip("()") for entry in table.entries)
    return printable(" or ".join(dict.fromkeys(words)))


def _trainings(table: DefenseTable) -> str:
    """Which networks were trained for how long."""
    found = dict.fromkeys((entry.trained, entry.rounds) for entry in table.entries)
    return " and ".join(f"{name}, {rounds} round{'s' * (rounds != 1)}" for name, rounds in found)


def _defense(entry: DefenseEntry, dp: bool) -> tuple[Cell, ...]:
    cells = [
        Cell(text=printable(entry.label)),
        _rate(entry.recovered),
        _rate(entry.named),
        _number(entry.accuracy.value, share_words(entry.accuracy)),
    ]
    if dp:
        cells += [
            _number(entry.epsilon, compact(entry.epsilon)),
            _place(entry.place_at_epsilon, entry.at_epsilon),
        ]
    return (
        *cells,
        _place(entry.place_at_accuracy, entry.at_accuracy),
        _number(
            entry.ceiling, "no guarantee" if entry.ceiling is None else ceiling_words(entry.ceiling)
        ),
        Cell(text=printable(entry.attacker)),
        _number(entry.trials, str(entry.trials)),
    )


def _place(place: int | None, equal: str) -> Cell:
    """A place, and among whom."""
    return _number(place, DASH if place is None else f"{place}, at {equal}")


def to_html(board: Board) -> str:
    """One page that needs nothing from outside."""
    attacks, defenses = sections(board)
    return (
        environment()
        .get_template("board.html.j2")
        .render(
            title=TITLE, attacks=attacks, defenses=defenses, unranked=board.unranked,
            how_attacks=HOW_ATTACKS, how_defenses=HOW_DEFENSES, words=strips,
            scripts=page_scripts(),
        )
    )  # fmt: skip


def to_markdown(board: Board) -> str:
    """The same tables for GitHub."""
    attacks, defenses = sections(board)
    parts = [f"# {TITLE}"]
    for title, how, several in (
        ("Attacks", HOW_ATTACKS, attacks), ("Defenses", HOW_DEFENSES, defenses),
    ):  # fmt: skip
        if not several:
            continue
        parts += [f"## {title}", how]
        for section in several:
            parts += [f"### {inert(section.title)}", *map(inert, section.words)]
            rows = tuple(tuple(cell.text for cell in row) for row in section.cells)
            table = Table(caption="", header=section.header, rows=rows)
            parts.append(markdown_table(inert_table(table)))
    if board.unranked:
        lines = (
            f"- {inert(each.title)}: {inert(each.reason)}: {inert('; '.join(each.labels))}"
            for each in board.unranked
        )
        parts += ["## Not ranked", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"
