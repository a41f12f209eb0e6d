"""Two runs on one page: rates side by side, paired differences, and the victims that flip."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from leakbench.comparing import Compared, number, said
from leakbench.loading import LoadedRun
from leakbench.printable import printable
from leakbench.report import strips
from leakbench.report.album_making import Pictures
from leakbench.report.answer import StripRow, answer
from leakbench.report.content import Report
from leakbench.report.pages import environment
from leakbench.report.renderings import page_scripts
from leakbench.report.tables import where_words
from leakbench.report.words import DASH, Table

MOST_PICTURED = 24
"""Flips that are shown as pictures."""

MOST_LISTED = 1000
"""Flips that are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedRow:
    """A row of either run; None where a run has it not."""

    label: str
    before: StripRow | None
    after: StripRow | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedStrip:
    """The rows of a data set in both runs. headers: words of each rate that either has."""

    dataset: str
    title: str
    headers: Mapping[str, str]
    rows: tuple[PairedRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What is said of a run."""

    name: str
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PagePicture:
    """A picture as an address that holds it, "" without one, and the words below it."""

    source: str
    words: str
    success: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictured:
    """A flip: who it is; original, before, after."""

    words: str
    pictures: tuple[PagePicture, ...]


def to_html(compared: Compared) -> str:
    """The page of two runs."""
    contents = [run.content() for run in compared.runs]
    flips = compared.telling()
    pictured = tuple(_pictured(compared)) if _has_pictures(compared.runs) else ()
    return (
        environment()
        .get_template("compare.html.j2")
        .render(
            before=_side(compared.runs[0]),
            after=_side(compared.runs[1]),
            damage=[printable(run.damage) for run in compared.runs if run.damage],
            lead=_lead(compared),
            strips=paired_strips(*contents),
            differences=_differences(compared),
            flips_lead=_flips_lead(compared, len(flips), len(pictured)),
            flips=_flips(compared),
            pictures=pictured,
            only=compared.only,
            words=strips,
            scripts=page_scripts(),
        )
    )


def paired_strips(before: Report, after: Report) -> list[PairedStrip]:
    """Strips of both, rows in the order of the first run, then those that only the second has."""
    both = [{strip.dataset: strip for strip in answer(report).strips} for report in (before, after)]
    found = []
    for name in dict.fromkeys((*both[0], *both[1])):
        pair = [some.get(name) for some in both]
        known = [strip for strip in pair if strip is not None]
        if not any(strip.headers for strip in known):
            continue  # nothing was measured in either
        rows = [{} if strip is None else {row.row: row for row in strip.rows} for strip in pair]
        found.append(
            PairedStrip(
                dataset=name,
                title=known[0].title,
                headers={key: text for strip in known for key, text in strip.headers.items()},
                rows=tuple(
                    PairedRow(
                        label=_label(rows[0].get(key), rows[1].get(key)),
                        before=rows[0].get(key),
                        after=rows[1].get(key),
                    )
                    for key in dict.fromkeys((*rows[0], *rows[1]))
                ),
            )
        )
    return found


def _label(before: StripRow | None, after: StripRow | None) -> str:
    return " / ".join(dict.fromkeys(row.label for row in (before, after) if row is not None))


def _side(run: LoadedRun) -> Side:
    plan = run.described.plan
    words = (
        f"suite {plan.name}, profile {plan.profile}, {plan.networks} networks x {plan.victims} "
        f"victims. {where_words(run.described.facts)}"
    )
    return Side(name=printable(run.name), words=printable(words))


def _lead(compared: Compared) -> str:
    """How many of the differences are clear of zero."""
    ends = [each.difference for each in compared.differences]
    known = [end for end in ends if end.low is not None and end.high is not None]
    apart = sum(not end.low <= 0 <= end.high for end in known)  # type: ignore[operator]
    return (
        f"{len(compared.pairs)} cells in both; {apart} of {len(ends)} differences have an interval "
        f"without 0; {len(compared.flips)} flips. Successes are judged by the rules of the first."
    )


def _differences(compared: Compared) -> Table:
    rows = []
    for each in compared.differences:
        ends = each.difference
        clear = DASH
        if ends.low is not None and ends.high is not None:
            clear = "" if ends.low <= 0 <= ends.high else "more" if ends.low > 0 else "less"
        rows.append(
            (
                each.cell, each.what, str(each.trials), number(each.before), number(each.after),
                said(ends), clear,
            )
        )  # fmt: skip
    return Table(
        caption="Differences",
        header=("cell", "what", "trials", "before", "after", "difference [95 %]", "clear of 0"),
        rows=tuple(rows),
    )


def _flips(compared: Compared) -> Table:
    return Table(
        caption="Victims that flip",
        header=("cell", "what", "network", "victim", "before", "after"),
        rows=tuple(
            (
                each.cell, each.what, str(each.network), str(each.victim),
                "success" if each.before else DASH, "success" if each.after else DASH,
            )
            for each in compared.flips[:MOST_LISTED]
        ),
    )  # fmt: skip


def _flips_lead(compared: Compared, telling: int, pictured: int) -> str:
    count = len(compared.flips)
    parts = [f"{count} in all: a success in one run only."]
    if count > MOST_LISTED:
        parts.append(f"The first {MOST_LISTED} are named.")
    if count and not pictured:
        parts.append("Pictures are not here: a run was copied without them.")
    elif pictured:
        parts.append(
            f"Below the table {pictured} of {telling} as pictures: original, before, after; raw "
            "MSE / SSIM. Blue frame: success."
        )
    return " ".join(parts)


def _has_pictures(runs: tuple[LoadedRun, LoadedRun]) -> bool:
    return all((run.store.folder / "reconstructions").is_dir() for run in runs)


def _pictured(compared: Compared) -> Iterator[Pictured]:
    pictures = Pictures()
    for row in compared.pictured(compared.telling()[:MOST_PICTURED]):
        shown = []
        for name, picture in zip(("original", "before", "after"), row.pictures, strict=True):
            source = ""
            if picture.image is not None:
                code = pictures.encoded(pictures.add(picture.image))
                source = f"data:image/webp;base64,{code}"
            words = name if name == "original" else f"{name}: {picture.caption}"
            shown.append(PagePicture(source=source, words=words, success=picture.success))
        yield Pictured(words=", ".join(row.label), pictures=tuple(shown))
