"""What the attacker got, picture by picture: one PNG with a row a victim, a column a defense.

Victims are not chosen by hand: a row shows the one at a quantile of the raw MSE in the suite's
reference cell, and the same victim of the same network in every column. All pictures come from the
run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from leakbench.described import PlannedCell
from leakbench.errors import LeakbenchError
from leakbench.metrics.pixels import squared_error, structural_similarity
from leakbench.records import Record, Run
from leakbench.report.drawing import (
    Block,
    Column,
    Image,
    Picture,
    Row,
    Sheet,
    blocks_of,
    sheet_of,
)
from leakbench.report.measured import LabelledRule, rules_of
from leakbench.report.victims import Chosen, Shelf, Victim, check_ids, choose
from leakbench.report.words import Pick, compact
from leakbench.spec import JUDGED, Plan

ORIGINAL = "original"
NO_GRADIENT = "needs no gradient"
BASELINES = ("start image", "mean image")


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a gallery shows, and how.

    Attributes:
        pick: which victims. ids: their numbers, where `pick` is ids.
        columns: methods side by side, 1 or more; None: as many as fit on a page.
    """

    pick: Pick = Pick.quantiles
    ids: tuple[int, ...] = ()
    columns: int | None = None


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
    try:
        path.write_bytes(figure.png())
    except OSError as error:
        raise LeakbenchError(f"{path}: cannot write: {error.strerror or error}") from None
    return warnings


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
    return sheet_of(blocks(found, look), legend(plan, look)), warnings


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
        shelf = Shelf(run, warnings)  # of one data set: files are large
        chosen = choose(plan, cells, records, look.pick, look.ids, shelf)
        columns = columns_of(plan)
        rows = [_pictures(victim, columns, rule, shelf) for victim in chosen.victims]
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


def columns_of(plan: Plan) -> list[Column]:
    """Original, start and mean image, then a column for every row and attacker of the suite."""
    pairs = dict.fromkeys((c.row, c.label, c.knowledge) for c in plan.cells)
    order = {row: number for number, row in enumerate(dict.fromkeys(pair[0] for pair in pairs))}
    return [
        Column(head="", detail=ORIGINAL),
        *(Column(head=NO_GRADIENT, detail=name) for name in BASELINES),
        *(
            Column(head=label, detail=knowledge, row=row, knowledge=knowledge)
            for row, label, knowledge in sorted(pairs, key=lambda pair: order[pair[0]])
        ),
    ]


def frame_rule(plan: Plan) -> LabelledRule | None:
    """The rule whose successes are framed: the suite's first strict one."""
    return next((rule for rule in rules_of(plan) if rule.judged.needs_recovery), None)


# ------------------------------------------------------------------------------ pictures


def shown(image: Image | None) -> Image | None:
    """An image as it is; a row of a table as gray fields, line by line, the rest of them white."""
    if image is None or image.ndim == 3:
        return image
    side = math.ceil(math.sqrt(image.size))
    fields = np.ones(side * math.ceil(image.size / side), dtype=np.float32)
    fields[: image.size] = image.ravel()
    return fields.reshape(1, -1, side)


def under(mse: float, ssim: float | None) -> str:
    """What stands under a picture: raw MSE / SSIM."""
    known = "-" if ssim is None or math.isnan(ssim) else f"{round(ssim, 2) + 0.0:.2f}"
    return f"{compact(mse)} / {known}"


def _pictures(
    victim: Victim, columns: Sequence[Column], rule: LabelledRule | None, shelf: Shelf
) -> tuple[Picture, ...]:
    original = victim.original
    fixed = {
        ORIGINAL: Picture(image=shown(original.image), caption="MSE / SSIM"),
        "start image": _compared(shelf.picture(victim.record, "start"), original.image),
        "mean image": _compared(original.mean, original.image),
    }
    return tuple(
        fixed[column.detail]
        if column.row is None or column.knowledge is None
        else _reconstruction(victim.alike.get((column.row, column.knowledge)), rule, shelf)
        for column in columns
    )


def _compared(image: Image | None, truth: Image) -> Picture:
    """A picture that no attack made, measured like the others."""
    if image is None or image.shape != truth.shape:
        return Picture(image=None, caption="")
    similarity = structural_similarity(image, truth) if image.ndim == 3 else None
    caption = under(squared_error(image, truth), similarity)
    return Picture(image=shown(image), caption=caption, apart=True)


def _reconstruction(record: Record | None, rule: LabelledRule | None, shelf: Shelf) -> Picture:
    if record is None:
        return Picture(image=None, caption="")
    if record["status"] not in JUDGED:
        return Picture(image=None, caption=str(record["status"]))
    mse = math.inf if record["mse_raw"] is None else record["mse_raw"]
    return Picture(
        image=shown(shelf.picture(record, "inputs")),
        caption=under(mse, record["ssim"]),
        success=rule is not None and rule.met(record),
    )


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
        "'-': no result. Methods without any result on a data set are left out there.",
        _picked(plan, look),
    ]


def _picked(plan: Plan, look: Look) -> str:
    if look.pick is Pick.ids:
        return "Victims: those of these numbers, of every network that was attacked with them."
    labels = {cell.row: cell.label for cell in plan.cells}
    gallery = plan.gallery
    reference = f"{labels.get(gallery.row, gallery.row)}, {gallery.knowledge}"
    which = {Pick.best: "the best", Pick.worst: "the worst"}.get(
        look.pick, "at the stated quantile"
    )
    return (
        f"Victims: {which} of raw MSE of '{reference}' over all networks, or of the first row with "
        "a result; the same victim and network in every column."
    )
