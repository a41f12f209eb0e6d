"""What the attacker got, picture by picture: one PNG with a row a victim, a column a defense.

Victims are not chosen by hand: a row shows the one at a quantile of the raw MSE in the suite's
reference cell, and the same victim of the same network in every column. All pictures come from the
run.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leakbench.described import PlannedCell
from leakbench.errors import DataMissing, LeakbenchError
from leakbench.metrics.pixels import squared_error, structural_similarity
from leakbench.records import Key, Record, Run
from leakbench.report.drawing import Column, Image, Picture, Row, Sheet, sheet_of
from leakbench.report.measured import LabelledRule, rules_of
from leakbench.report.words import compact
from leakbench.spec import JUDGED, Cell, Plan

FIXED_COLUMNS = ("original", "start image", "mean image")


def draw(run: Run, plan: Plan, planned: Sequence[PlannedCell], path: Path) -> list[str]:
    """Write the gallery of a run as PNG; the same records give the same bytes.

    Args:
        run: Where records and reconstructions lie.
        plan: The suite as resolved; its gallery table chooses the victims.
        planned: Its cells with their identities.
        path: PNG to write; its folder must exist.

    Returns:
        Warnings, one sentence each: what could not be shown as the suite asks.

    Raises:
        LeakbenchError: the suite attacks nothing; `path` cannot be written.
    """
    figure, warnings = sheet(run, plan, planned)
    try:
        path.write_bytes(figure.png())
    except OSError as error:
        raise LeakbenchError(f"{path}: cannot write: {error.strerror or error}") from None
    return warnings


def sheet(run: Run, plan: Plan, planned: Sequence[PlannedCell]) -> tuple[Sheet, list[str]]:
    """The gallery as a figure, and warnings; see `draw`.

    Raises:
        LeakbenchError: the suite attacks nothing.
    """
    if not planned:
        raise LeakbenchError(
            f"{run.folder}: suite '{plan.name}' attacks nothing, so it has no gallery"
        )
    warnings: list[str] = []
    columns = columns_of(plan)
    rows = _rows(run, plan, planned, columns, warnings)
    return sheet_of(columns, rows, _legend(plan)), warnings


def columns_of(plan: Plan) -> list[Column]:
    """Original, start and mean image, then a column for every row and attacker of the suite."""
    pairs = dict.fromkeys((c.row, c.label, c.knowledge) for c in plan.cells)
    order = {row: number for number, row in enumerate(dict.fromkeys(pair[0] for pair in pairs))}
    fixed = [Column(head="", detail=name) for name in FIXED_COLUMNS]
    return fixed + [
        Column(head=label, detail=knowledge, row=row, knowledge=knowledge)
        for row, label, knowledge in sorted(pairs, key=lambda pair: order[pair[0]])
    ]


def pick(records: Iterable[Record], quantile: float) -> Record | None:
    """The judged trial at `quantile` of the raw MSE: 0 best, 1 worst, not finite is worst of all.

    Between two trials it is the one nearer to the quantile; ties go to the worse trial.
    """
    judged = sorted((r for r in records if r["status"] in JUDGED), key=_badness)
    return judged[math.floor(quantile * (len(judged) - 1) + 0.5)] if judged else None


# ------------------------------------------------------------------------------ what to show


def _badness(record: Record) -> tuple[float, int, int]:
    value = record["mse_raw"]
    return (math.inf if value is None else value, record["network"], record["victim"])


def _rows(
    run: Run,
    plan: Plan,
    planned: Sequence[PlannedCell],
    columns: Sequence[Column],
    warnings: list[str],
) -> list[Row]:
    records = run.records()
    rule = _frame_rule(plan)
    rows: list[Row] = []
    for name in dict.fromkeys(each.cell.dataset for each in planned):
        cells = [each for each in planned if each.cell.dataset == name]
        label = cells[0].title.split(",")[0]
        reference = _reference(plan, cells, records, warnings)
        if reference is None:
            reason = next((each.skip for each in cells if each.skip), "")
            text = f"not run: {reason}" if reason else "no trial to show yet"
            rows.append(Row(label=(label,), text=text))
            continue
        shelf = Shelf(run, warnings)
        for quantile in plan.gallery.quantiles:
            chosen = pick(_of(reference, records), quantile)
            if chosen is None:
                continue
            alike = _alike(chosen, cells, records)
            try:
                original = shelf.original(reference.cell, chosen, alike.values())
            except DataMissing as error:
                rows.append(Row(label=(label,), text=f"no originals: {error}"))
                break
            rows.append(
                Row(
                    label=(label, _quantile_words(quantile), *_victim_words(chosen, original)),
                    pictures=_pictures(chosen, original, alike, columns, rule, shelf),
                )
            )
    return rows


def _reference(
    plan: Plan,
    cells: Sequence[PlannedCell],
    records: Mapping[Key, Record],
    warnings: list[str],
) -> PlannedCell | None:
    """The suite's reference cell of one data set, or the first with something to show."""
    gallery = plan.gallery
    wanted = (gallery.row, gallery.knowledge)
    ordered = sorted(cells, key=lambda each: (each.cell.row, each.cell.knowledge) != wanted)
    for each in ordered:
        if pick(_of(each, records), 0.0) is None:
            continue
        if (each.cell.row, each.cell.knowledge) != wanted:
            warnings.append(
                f"gallery: {each.cell.dataset}/{'/'.join(wanted)} has no trial to choose victims "
                f"by; chosen by {each.cell.row}/{each.cell.knowledge}"
            )
        return each
    return None


def _of(planned: PlannedCell, records: Mapping[Key, Record]) -> list[Record]:
    keys = [
        (identity, victim)
        for identity, victims in zip(planned.identities, planned.victims, strict=True)
        for victim in victims
    ]
    return [records[key] for key in keys if key in records]


def _frame_rule(plan: Plan) -> LabelledRule | None:
    """The rule whose successes are framed: the suite's first strict one."""
    return next((rule for rule in rules_of(plan) if rule.judged.needs_recovery), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """A victim's image, the name of its class, and the mean of the public images."""

    image: Image
    class_name: str
    mean: Image


class Shelf:
    """Pictures from the files of a run; each file is read once."""

    def __init__(self, run: Run, warnings: list[str]) -> None:
        self._run = run
        self._warnings = warnings
        self._files: dict[str, dict[str, NDArray[Any]]] = {}

    def picture(self, record: Record, field: str) -> Image | None:
        """Field "inputs", "start" or "truth" of a trial; None where the run does not hold it."""
        found = self._entry(record, field)
        return None if found is None else np.asarray(found, dtype=np.float32)

    def original(self, cell: Cell, chosen: Record, alike: Iterable[Record]) -> Original:
        """What a trial of the cell tried to get; any on the same victim that kept it will do.

        Raises:
            DataMissing: None kept it, as in runs of an older leakbench, and the data are not here.
        """
        for record in (chosen, *alike):
            image = self.picture(record, "truth")
            class_name = self._entry(record, "class_names")
            mean = self._arrays(record).get("mean_image")
            if image is not None and class_name is not None and mean is not None:
                return Original(image=image, class_name=str(class_name), mean=mean)
        from leakbench import older_runs  # brings torch

        image, class_name, mean = older_runs.original(cell, chosen["victim"])
        return Original(image=image, class_name=class_name, mean=mean)

    def _entry(self, record: Record, field: str) -> Any:
        """What a field of the file holds about this trial."""
        stack = self._arrays(record).get(field)
        if stack is None:
            return None
        row = int(record["host"]["arrays"]["row"])
        return stack[row] if row < len(stack) else None

    def _arrays(self, record: Record) -> dict[str, NDArray[Any]]:
        """The file of a trial, {} without one; a warning if it is no good."""
        place = (record.get("host") or {}).get("arrays")
        if place is None:
            return {}
        name = str(place["file"])
        if name not in self._files:
            self._files[name] = self._read(name)
        return self._files[name]

    def _read(self, name: str) -> dict[str, NDArray[Any]]:
        try:
            arrays = self._run.arrays(name)
        except LeakbenchError as error:
            self._warnings.append(f"gallery: {error}")
            return {}
        # Snapshots and traces are large and not shown.
        shown = ("inputs", "start", "truth", "class_names", "mean_image")
        return {field: arrays[field] for field in shown if field in arrays}


def _alike(
    chosen: Record, cells: Sequence[PlannedCell], records: Mapping[Key, Record]
) -> dict[tuple[str, str], Record]:
    """(row, knowledge) -> its trial on the same victim of the same network."""
    return {
        (each.cell.row, each.cell.knowledge): record
        for each in cells
        for record in _of(each, records)
        if (record["network"], record["victim"]) == (chosen["network"], chosen["victim"])
    }


def _pictures(
    chosen: Record,
    original: Original,
    alike: Mapping[tuple[str, str], Record],
    columns: Sequence[Column],
    rule: LabelledRule | None,
    shelf: Shelf,
) -> tuple[Picture, ...]:
    fixed = {
        "original": Picture(image=shown(original.image), caption="MSE / SSIM"),
        "start image": _compared(shelf.picture(chosen, "start"), original.image),
        "mean image": _compared(original.mean, original.image),
    }
    return tuple(
        fixed[column.detail]
        if column.row is None or column.knowledge is None
        else _reconstruction(alike.get((column.row, column.knowledge)), rule, shelf)
        for column in columns
    )


def _compared(image: Image | None, truth: Image) -> Picture:
    """A picture that no attack made, measured like the others."""
    if image is None or image.shape != truth.shape:
        return Picture(image=None, caption="")
    similarity = structural_similarity(image, truth) if image.ndim == 3 else None
    caption = under(squared_error(image, truth), similarity)
    return Picture(image=shown(image), caption=caption)


def shown(image: Image | None) -> Image | None:
    """An image as it is; a row of a table as gray fields, line by line, the rest of them white."""
    if image is None or image.ndim == 3:
        return image
    side = math.ceil(math.sqrt(image.size))
    fields = np.ones(side * math.ceil(image.size / side), dtype=np.float32)
    fields[: image.size] = image.ravel()
    return fields.reshape(1, -1, side)


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


def under(mse: float, ssim: float | None) -> str:
    known = "-" if ssim is None or math.isnan(ssim) else f"{round(ssim, 2) + 0.0:.2f}"
    return f"{compact(mse)} / {known}"


def _quantile_words(quantile: float) -> str:
    words = {0.0: "best", 0.5: "median", 1.0: "worst"}
    return words.get(quantile, f"quantile {quantile:g}")


def _victim_words(record: Record, original: Original) -> tuple[str, str]:
    return (
        f"network {record['network']}, no. {record['victim']}",
        f"class {textwrap.shorten(original.class_name, 18, placeholder='…')}",
    )


def _legend(plan: Plan) -> list[str]:
    gallery = plan.gallery
    labels = {cell.row: cell.label for cell in plan.cells}
    reference = f"{labels.get(gallery.row, gallery.row)}, {gallery.knowledge}"
    rule = _frame_rule(plan)
    frame = ["No strict rule in this suite, no frames."]
    if rule is not None:
        text = f"Blue frame: success under '{rule.label}': {rule.judged.condition}."
        frame = text.replace(" and ", "\nand ").split("\n")
    return [
        *frame,
        "Under each picture: raw MSE / SSIM. Pictures are clamped to [0, 1].",
        "'-': not in the suite, or no result.",
        f"Victims: at the stated quantile of raw MSE of '{reference}' over all networks,",
        "or of the first row with a result; the same victim and network in every column.",
    ]
