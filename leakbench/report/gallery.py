"""What the attacker got, picture by picture: one PNG with a row a victim, a column a defense.

Victims are not chosen by hand: a row shows the one at a quantile of the raw MSE in the suite's
reference cell, and the same victim of the same network in every column. All pictures come from the
run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from leakbench.described import PlannedCell
from leakbench.errors import LeakbenchError
from leakbench.records import Run
from leakbench.report.drawing import (
    Block,
    Column,
    Picture,
    Row,
    Sheet,
    blocks_of,
    sheet_of,
)
from leakbench.report.kinds import Pick
from leakbench.report.measured import LabelledRule, rules_of
from leakbench.report.shots import (
    Candidates,
    best_step,
    difference,
    measured,
    returned,
    shown,
)
from leakbench.report.victims import Chosen, Shelf, Victim, check_ids, choose
from leakbench.spec import Plan

NO_GRADIENT = "needs no gradient"
ORIGINAL, START, MEAN = "original", "start image", "mean image"
RETURNED, DIFFERENCE, NEAREST, BEST_STEP = (
    "returned", "difference", "nearest candidate", "best step: oracle",
)  # fmt: skip


SNAPSHOTS = ("snapshots", "snapshot_steps")


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a gallery shows, and how.

    Attributes:
        pick: which victims. ids: their numbers, where `pick` is ids.
        columns: methods side by side, 1 or more; None: as many as fit on a page.
        beside: beside what each attacker returned its difference from the original, the wrong
            candidate that is nearest to it, and the best step that the run kept.
    """

    pick: Pick = Pick.quantiles
    ids: tuple[int, ...] = ()
    columns: int | None = None
    beside: bool = False

    def __post_init__(self) -> None:
        if (self.pick is Pick.ids) != bool(self.ids):
            raise LeakbenchError(
                f"a gallery that picks '{self.pick}' got {len(self.ids)} ids: numbers of victims "
                "go with 'ids', and only with it"
            )
        if self.columns is not None and self.columns < 1:
            raise LeakbenchError(f"a gallery with {self.columns} columns: must be 1 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Pictures of a data set: `pictures` of each of the victims fit the columns."""

    chosen: Chosen
    columns: tuple[Column, ...]
    pictures: tuple[tuple[Picture, ...], ...]


def draw(
    run: Run, plan: Plan, planned: Sequence[PlannedCell], path: Path, look: Look | None = None
) -> list[str]:
    """Write the gallery of a run as PNG; the same records give the same bytes.

    Args:
        run: Where records and reconstructions lie.
        plan: The suite as resolved; its gallery table chooses the victims.
        planned: Its cells with their identities.
        path: PNG to write; its folder must exist.
        look: What it shows; None: as the suite says.

    Returns:
        Warnings, one sentence each: what could not be shown as the suite asks.

    Raises:
        LeakbenchError: the suite attacks nothing; victims that the run has not; more than can be
            drawn; `path` cannot be written.
    """
    figure, warnings = sheet(run, plan, planned, look)
    write(figure, path)
    return warnings


def write(figure: Sheet, path: Path) -> None:
    """Write a gallery as PNG.

    Raises:
        LeakbenchError: `path` cannot be written.
    """
    try:
        path.write_bytes(figure.png())
    except OSError as error:
        raise LeakbenchError(f"{path}: cannot write: {error.strerror or error}") from None


def sheet(
    run: Run, plan: Plan, planned: Sequence[PlannedCell], look: Look | None = None
) -> tuple[Sheet, list[str]]:
    """The gallery as a figure, and warnings; see `draw`.

    Raises:
        LeakbenchError: the suite attacks nothing; victims that the run has not; more than can be
            drawn.
    """
    look = look or Look()
    warnings: list[str] = []
    found = sections(run, plan, planned, look, warnings)
    return figure_of(found, plan, look), warnings


def figure_of(found: Sequence[Section], plan: Plan, look: Look) -> Sheet:
    """The pictures of these sections, with a legend.

    Raises:
        LeakbenchError: more than can be drawn.
    """
    return sheet_of(blocks(found, look), legend(plan, look))


def sections(
    run: Run, plan: Plan, planned: Sequence[PlannedCell], look: Look, warnings: list[str]
) -> list[Section]:
    """The pictures of every data set, without columns that have nothing there.

    Raises:
        LeakbenchError: the suite attacks nothing; victims that the run has not.
    """
    if not planned:
        raise LeakbenchError(
            f"{run.folder}: suite '{plan.name}' attacks nothing, so it has no gallery"
        )
    if look.pick is Pick.ids:
        check_ids(run, look.ids)
    rule, records = frame_rule(plan), run.records()
    found = []
    for name in dict.fromkeys(each.cell.dataset for each in planned):
        cells = [each for each in planned if each.cell.dataset == name]
        # Of one data set: files are large.
        shelf = Shelf(run, warnings, SNAPSHOTS if look.beside else ())
        chosen = choose(plan, cells, records, look.pick, look.ids, shelf)
        candidates = None
        if look.beside and chosen.victims:
            candidates = Candidates(cells[0].cell, cells[0].data, shelf)
        columns = columns_of(plan, beside=look.beside)
        rows = [_row(victim, columns, rule, shelf, candidates) for victim in chosen.victims]
        kept = [
            index
            for index in range(len(columns))
            if any(row[index].image is not None or row[index].caption for row in rows)
        ]
        found.append(
            Section(
                chosen=chosen,
                columns=tuple(columns[index] for index in kept),
                pictures=tuple(tuple(row[index] for index in kept) for row in rows),
            )
        )
    return found


def columns_of(plan: Plan, *, beside: bool = False) -> list[Column]:
    """Original, start and mean image, then a column for every row and attacker of the suite.

    beside: several for each, see `Look`.
    """
    pairs = dict.fromkeys((c.row, c.label, c.knowledge) for c in plan.cells)
    order = {row: number for number, row in enumerate(dict.fromkeys(pair[0] for pair in pairs))}
    columns = [
        Column(head="", detail=ORIGINAL),
        *(Column(head=NO_GRADIENT, detail=name) for name in (START, MEAN)),
    ]
    for row, label, knowledge in sorted(pairs, key=lambda pair: order[pair[0]]):
        if beside:
            columns += [
                Column(head=f"{label}, {knowledge}", detail=name, row=row, knowledge=knowledge)
                for name in (RETURNED, DIFFERENCE, NEAREST, BEST_STEP)
            ]
        else:
            columns.append(Column(head=label, detail=knowledge, row=row, knowledge=knowledge))
    return columns


def frame_rule(plan: Plan) -> LabelledRule | None:
    """The rule whose successes are framed: the suite's first strict one."""
    return next((rule for rule in rules_of(plan) if rule.judged.needs_recovery), None)


# ------------------------------------------------------------------------------ pictures


def _row(
    victim: Victim,
    columns: Sequence[Column],
    rule: LabelledRule | None,
    shelf: Shelf,
    candidates: Candidates | None,
) -> tuple[Picture, ...]:
    truth = victim.original.image
    made = []
    for column in columns:
        if column.row is not None and column.knowledge is not None:
            record = victim.alike.get((column.row, column.knowledge))
            if column.detail == DIFFERENCE:
                made.append(difference(record, truth, shelf))
            elif column.detail == BEST_STEP:
                made.append(best_step(record, truth, shelf))
            elif column.detail == NEAREST and candidates is not None:
                made.append(candidates.nearest(record, victim))
            else:
                made.append(returned(record, rule, shelf))
        elif column.detail == ORIGINAL:
            made.append(Picture(image=shown(truth), caption="MSE / SSIM"))
        elif column.detail == START:
            made.append(measured(shelf.picture(victim.record, "start"), truth))
        else:
            made.append(measured(victim.original.mean, truth))
    return tuple(made)


# ------------------------------------------------------------------------------ the sheet


def blocks(found: Sequence[Section], look: Look) -> list[Block]:
    """All sections below each other, each as wide as `look` says."""
    made: list[Block] = []
    for section in found:
        chosen, rows = section.chosen, _rows(section)
        title = chosen.title
        if rows:
            made += blocks_of(section.columns, rows, title=title, most=look.columns)
            title = ""
        if chosen.text:
            made.append(Block(title=title, rows=(Row(label=(), text=chosen.text),)))
    return made


def _rows(section: Section) -> list[Row]:
    return [
        Row(label=(victim.words,), pictures=pictures)
        for victim, pictures in zip(section.chosen.victims, section.pictures, strict=True)
    ]


def legend(plan: Plan, look: Look) -> list[str]:
    """What stands below the pictures."""
    rule = frame_rule(plan)
    frame = "No strict rule in this suite, no frames."
    if rule is not None:
        frame = f"Blue frame: success under '{rule.label}': {rule.judged.condition}."
    return [
        frame,
        "Broken frame: not what an attacker returned.",
        "Under each picture: raw MSE / SSIM. Pictures are clamped to [0, 1].",
        *(BESIDE if look.beside else ()),
        "'-': no result. Methods without any result on a data set are left out there.",
        _picked(plan, look),
    ]


BESIDE = (
    "Difference: absolute, of the original and what was returned, clamped; black is none, white 1.",
    "Nearest candidate: who is named by what was returned, shown where it is the wrong one.",
    "Best step: of those that the run kept, the one nearest to the original, which only who has "
    "the original can choose.",
)


def _picked(plan: Plan, look: Look) -> str:
    if look.pick is Pick.ids:
        return "Victims: those of these numbers, of every network that was attacked with them."
    labels = {cell.row: cell.label for cell in plan.cells}
    gallery = plan.gallery
    reference = f"{labels.get(gallery.row, gallery.row)}, {gallery.knowledge}"
    which = {Pick.best: "the best", Pick.worst: "the worst"}.get(
        look.pick, "at the stated quantile,"
    )
    return (
        f"Victims: {which} by raw MSE of '{reference}' over all networks, or of the first row with "
        "a result; the same victim and network in every column."
    )
