"""What the attacker got, picture by picture: one PNG with a row a victim, a column a defense.

Victims are not chosen by hand: a row shows the one at a quantile of the raw MSE in the suite's
reference cell, and the same victim of the same network in every column. Positions are whole pixels
and pictures are enlarged by whole factors, so every pixel shown is a pixel of the data.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib.style
import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from leakbench.data import Dataset, load
from leakbench.data.catalog import look_up
from leakbench.errors import DataMissing, LeakbenchError
from leakbench.metrics.mse import mse
from leakbench.metrics.ssim import ssim
from leakbench.records import Key, Record, Run
from leakbench.report.measured import Rule, rules_of
from leakbench.report.words import compact
from leakbench.spec import JUDGED, Plan

if TYPE_CHECKING:
    from leakbench.described import PlannedCell

Image = NDArray[np.float32]
"""(channels, height, width), raw values."""

DPI = 110

# Everything below is in pixels.
SIDE = 128  # a picture's box; MNIST is shown 4 times enlarged (112), CIFAR-10 and LFW too (128)
GAP = 12  # between boxes
GROUP_GAP = 26  # between the columns of two methods
CAPTION = 24  # under a picture
ROW_LABEL = 172  # left of the first picture
LABEL_LETTERS = 17  # that fit there in bold
HEADER = 96  # column heads
TEXT_ROW = 56  # a row that says why there is no picture
MARGIN = 16
LEGEND_LINE = 18
LETTER = 7.2  # average width of a letter in column heads

SUCCESS = "#0072B2"  # blue of the Okabe-Ito palette, safe for the colour-blind
NEUTRAL = "#c8ccd2"
INK = "#1c2330"
FAINT = "#6b7687"

FIXED_COLUMNS = ("original", "start image", "mean image")


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle of the PNG: left and top edge, width, height."""

    left: int
    top: int
    width: int
    height: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """Method over attacker; `row` is None, and `detail` says it, where no attack is shown."""

    head: str
    detail: str
    row: str | None = None
    knowledge: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One image with the line under it; `image` None leaves a dash or a short text."""

    image: Image | None
    caption: str
    success: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`pictures` fit the columns; a row without any shows `text` instead."""

    label: tuple[str, ...]
    pictures: tuple[Picture, ...] = ()
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where everything stands, in whole pixels."""

    width: int
    height: int
    lefts: tuple[int, ...]
    tops: tuple[int, ...]

    def box(self, row: int, column: int) -> Box:
        """The box of a picture."""
        return Box(self.lefts[column], self.tops[row], SIDE, SIDE)


def draw(run: Run, plan: Plan, planned: Sequence[PlannedCell], path: Path) -> list[str]:
    """Write the gallery of a run as PNG; the same records give the same bytes.

    Args:
        run: Where records and reconstructions lie.
        plan: The suite as resolved now; its gallery table chooses the victims.
        planned: Its cells with their identities.
        path: PNG to write; its folder must exist.

    Returns:
        Warnings, one sentence each: what could not be shown as the suite asks.

    Raises:
        LeakbenchError: `path` cannot be written.
    """
    warnings: list[str] = []
    columns = columns_of(plan)
    rows = _rows(run, plan, planned, columns, warnings)
    content = _render(plan, columns, rows)
    try:
        path.write_bytes(content)
    except OSError as error:
        raise LeakbenchError(f"{path}: cannot write: {error.strerror or error}") from None
    return warnings


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


def layout(rows: Sequence[Row], columns: Sequence[Column], legend_lines: int) -> Layout:
    """Positions for these rows and columns."""
    lefts, left = [], MARGIN + ROW_LABEL
    for number, column in enumerate(columns):
        if number and (column.row is None or column.row == columns[number - 1].row):
            left += GAP
        elif number:
            left += GROUP_GAP
        lefts.append(left)
        left += SIDE
    tops, top = [], MARGIN + HEADER
    for row in rows:
        tops.append(top)
        top += SIDE + CAPTION + GAP if row.pictures else TEXT_ROW
    return Layout(
        width=_whole(left + MARGIN),
        height=_whole(top + MARGIN + LEGEND_LINE * legend_lines + MARGIN),
        lefts=tuple(lefts),
        tops=tuple(tops),
    )


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
        label = look_up(cells[0].cell.source).title.split(",")[0]
        try:
            dataset = load(cells[0].cell.source)
        except DataMissing as error:
            skipped = next((each.skip for each in cells if each.skip), "")
            rows.append(Row(label=(label,), text=f"not run: {skipped or error}"))
            continue
        reference = _reference(plan, cells, records, warnings)
        if reference is None:
            reason = next((each.skip for each in cells if each.skip), "")
            text = f"not run: {reason}" if reason else "no trial to show yet"
            rows.append(Row(label=(label,), text=text))
            continue
        shelf = _Shelf(run, warnings)
        for quantile in plan.gallery.quantiles:
            chosen = pick(_of(reference, records), quantile)
            if chosen is None:
                continue
            rows.append(
                Row(
                    label=(label, _quantile_words(quantile), *_victim_words(chosen, dataset)),
                    pictures=_pictures(chosen, dataset, cells, records, columns, rule, shelf),
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


def _frame_rule(plan: Plan) -> Rule | None:
    """The rule whose successes are framed: the suite's first strict one."""
    return next((rule for rule in rules_of(plan) if rule.judged.needs_recovery), None)


class _Shelf:
    """Pictures from the files of a run; each file is read once."""

    def __init__(self, run: Run, warnings: list[str]) -> None:
        self._run = run
        self._warnings = warnings
        self._files: dict[str, dict[str, NDArray[Any]]] = {}

    def picture(self, record: Record, field: str) -> Image | None:
        """Field "inputs" or "start" of a trial; None, and a warning, if the file is no good."""
        place = (record.get("host") or {}).get("arrays")
        if place is None:
            return None
        name, row = str(place["file"]), int(place["row"])
        if name not in self._files:
            self._files[name] = self._read(name)
        stack = self._files[name].get(field)
        if stack is None or row >= len(stack):
            return None
        image: Image = np.asarray(stack[row], dtype=np.float32)
        return image

    def _read(self, name: str) -> dict[str, NDArray[Any]]:
        try:
            arrays = self._run.arrays(name)
        except LeakbenchError as error:
            self._warnings.append(f"gallery: {error}")
            return {}
        # Snapshots and traces are large and not shown.
        return {field: arrays[field] for field in ("inputs", "start") if field in arrays}


def _pictures(
    chosen: Record,
    dataset: Dataset,
    cells: Sequence[PlannedCell],
    records: Mapping[Key, Record],
    columns: Sequence[Column],
    rule: Rule | None,
    shelf: _Shelf,
) -> tuple[Picture, ...]:
    truth: Image = dataset.candidates[chosen["victim"]].numpy()
    start = shelf.picture(chosen, "start")
    mean: Image = dataset.public.mean(dim=0).numpy()
    fixed = {
        "original": Picture(image=_shown(truth), caption="MSE / SSIM"),
        "start image": _compared(start, truth),
        "mean image": _compared(mean, truth),
    }
    found: dict[tuple[str | None, str | None], Record] = {
        (each.cell.row, each.cell.knowledge): record
        for each in cells
        for record in _of(each, records)
        if (record["network"], record["victim"]) == (chosen["network"], chosen["victim"])
    }
    return tuple(
        fixed[column.detail]
        if column.row is None
        else _reconstruction(found.get((column.row, column.knowledge)), rule, shelf)
        for column in columns
    )


def _compared(image: Image | None, truth: Image) -> Picture:
    """A picture that no attack made, measured like the others."""
    if image is None or image.shape != truth.shape:
        return Picture(image=None, caption="")
    pair = torch.from_numpy(image[None].copy()), torch.from_numpy(truth[None].copy())
    similarity = float(ssim(*pair)) if image.ndim == 3 else None
    return Picture(image=_shown(image), caption=_numbers(float(mse(*pair)), similarity))


def _shown(image: Image | None) -> Image | None:
    """An image as it is; a row of a table as gray fields, line by line, the rest of them white."""
    if image is None or image.ndim == 3:
        return image
    side = math.ceil(math.sqrt(image.size))
    fields = np.ones(side * math.ceil(image.size / side), dtype=np.float32)
    fields[: image.size] = image.ravel()
    return fields.reshape(1, -1, side)


def _reconstruction(record: Record | None, rule: Rule | None, shelf: _Shelf) -> Picture:
    if record is None:
        return Picture(image=None, caption="")
    if record["status"] not in JUDGED:
        return Picture(image=None, caption=str(record["status"]))
    mse = math.inf if record["mse_raw"] is None else record["mse_raw"]
    return Picture(
        image=_shown(shelf.picture(record, "inputs")),
        caption=_numbers(mse, record["ssim"]),
        success=rule is not None and rule.met(record),
    )


def _numbers(mse: float, ssim: float | None) -> str:
    known = "-" if ssim is None or math.isnan(ssim) else f"{round(ssim, 2) + 0.0:.2f}"
    return f"{compact(mse)} / {known}"


def _quantile_words(quantile: float) -> str:
    words = {0.0: "best", 0.5: "median", 1.0: "worst"}
    return words.get(quantile, f"quantile {quantile:g}")


def _victim_words(record: Record, dataset: Dataset) -> tuple[str, str]:
    label = int(record["label"])
    names = dataset.class_names
    text = names[label] if label < len(names) else str(label)
    return (
        f"network {record['network']}, no. {record['victim']}",
        f"class {textwrap.shorten(text, 18, placeholder='…')}",
    )


# ------------------------------------------------------------------------------ drawing


class _Sheet:
    """A figure that is drawn on in whole pixels from the top left."""

    def __init__(self, place: Layout) -> None:
        self.place = place
        self.figure = Figure(figsize=(place.width / DPI, place.height / DPI), dpi=DPI)
        self.figure.patch.set_facecolor("white")

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = 8.5,
        colour: str = INK,
        across: str = "left",
        down: str = "top",
        weight: str = "normal",
    ) -> None:
        """Text at a point; never read as a formula."""
        self.figure.text(
            x / self.place.width,
            1 - y / self.place.height,
            text,
            fontsize=size,
            color=colour,
            horizontalalignment=across,
            verticalalignment=down,
            fontweight=weight,
            parse_math=False,
        )

    def image(self, box: Box, pixels: NDArray[np.uint8]) -> None:
        """As many data pixels as screen pixels: nothing is interpolated."""
        axes = self.figure.add_axes(self._share(box.left, box.top, box.width, box.height))
        axes.imshow(pixels, interpolation="nearest", aspect="auto")
        axes.set_axis_off()

    def frame(self, box: Box, thickness: int, colour: str) -> None:
        """A border around a box: a filled rectangle under the image that covers its middle."""
        self._fill(
            Box(
                box.left - thickness,
                box.top - thickness,
                box.width + 2 * thickness,
                box.height + 2 * thickness,
            ),
            colour,
        )

    def rule(self, left: int, right: int, y: int) -> None:
        """A thin horizontal line."""
        self._fill(Box(left, y, right - left, 1), NEUTRAL)

    def _fill(self, box: Box, colour: str) -> None:
        left, bottom, width, height = self._share(box.left, box.top, box.width, box.height)
        self.figure.add_artist(
            Rectangle((left, bottom), width, height, facecolor=colour, linewidth=0, zorder=-1)
        )

    def png(self) -> bytes:
        """The file, without the version of matplotlib that it would carry by default."""
        buffer = io.BytesIO()
        self.figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
        return buffer.getvalue()

    def _share(
        self, left: float, top: float, width: float, height: float
    ) -> tuple[float, float, float, float]:
        """Pixels as shares of the figure, from the bottom left."""
        across, down = self.place.width, self.place.height
        return left / across, 1 - (top + height) / down, width / across, height / down


def _render(plan: Plan, columns: Sequence[Column], rows: Sequence[Row]) -> bytes:
    legend = _legend(plan)
    # A user's matplotlibrc must not change the bytes; fonts are looked up while drawing.
    with matplotlib.style.context("default"):
        sheet = _Sheet(layout(rows, columns, len(legend)))
        _heads(sheet, columns)
        for number, row in enumerate(rows):
            _row(sheet, number, row)
        bottom = sheet.place.height - MARGIN - LEGEND_LINE * len(legend)
        for number, line in enumerate(legend):
            sheet.text(MARGIN, bottom + LEGEND_LINE * number, line, colour=FAINT)
        return sheet.png()


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


def _heads(sheet: _Sheet, columns: Sequence[Column]) -> None:
    """Method over all its columns, attacker over each."""
    lefts, base = sheet.place.lefts, MARGIN + HEADER - 12
    for left, column in zip(lefts, columns, strict=True):
        colour = FAINT if column.row else INK
        sheet.text(
            left + SIDE / 2, base, column.detail, colour=colour, across="center", down="baseline"
        )
    for defense in dict.fromkeys(column.row for column in columns if column.row):
        members = [i for i, column in enumerate(columns) if column.row == defense]
        left, right = lefts[members[0]], lefts[members[-1]] + SIDE
        letters = int((right - left) / LETTER)
        lines = textwrap.wrap(columns[members[0]].head, letters)[:4]
        for above, line in enumerate(reversed(lines)):
            y = base - 24 - 17 * above
            sheet.text((left + right) / 2, y, line, size=9, across="center", down="baseline")
        sheet.rule(left, right, base - 17)


def _row(sheet: _Sheet, number: int, row: Row) -> None:
    name, *details = row.label
    y = top = sheet.place.tops[number]
    for line in textwrap.wrap(name, LABEL_LETTERS):
        sheet.text(MARGIN, y, line, size=10, weight="bold")
        y += 20
    for line in details:
        sheet.text(MARGIN, y + 4, line)
        y += 18
    if not row.pictures:
        letters = int((sheet.place.width - sheet.place.lefts[0] - MARGIN) / LETTER)
        for count, line in enumerate(textwrap.wrap(row.text, letters)[:2]):
            sheet.text(sheet.place.lefts[0], top + 18 * count, line, size=9, colour=FAINT)
    for column, picture in enumerate(row.pictures):
        _picture(sheet, sheet.place.box(number, column), picture)


def _picture(sheet: _Sheet, box: Box, picture: Picture) -> None:
    middle = box.left + box.width / 2
    if picture.image is None:
        text, y = picture.caption or "-", box.top + box.height / 2
        sheet.text(middle, y, text, size=9, colour=FAINT, across="center", down="center")
        return
    pixels = enlarged(picture.image)
    inner = centred(box, pixels.shape[1], pixels.shape[0])
    sheet.image(inner, pixels)
    sheet.frame(inner, 3 if picture.success else 1, SUCCESS if picture.success else NEUTRAL)
    colour = SUCCESS if picture.success else INK
    y = inner.top + inner.height + 7
    sheet.text(middle, y, picture.caption, size=8, colour=colour, across="center")


def centred(box: Box, width: int, height: int) -> Box:
    """A smaller box in the middle of a box."""
    left, top = (box.width - width) // 2, (box.height - height) // 2
    return Box(box.left + left, box.top + top, width, height)


def enlarged(image: Image) -> NDArray[np.uint8]:
    """(height, width, 3) bytes, clamped to [0, 1], each pixel repeated to fill a box.

    Pixels that are not a number are shown as middle gray. Of an image larger than a box only
    every second (third, ...) pixel is shown.
    """
    unit = np.clip(np.nan_to_num(image, nan=0.5, posinf=1.0, neginf=0.0), 0.0, 1.0)
    colours = np.broadcast_to(unit, (3, *unit.shape[1:])) if len(unit) == 1 else unit[:3]
    pixels = np.round(colours.transpose(1, 2, 0) * 255).astype(np.uint8)
    longest = max(pixels.shape[:2])
    if longest > SIDE:
        stride = -(-longest // SIDE)
        return np.ascontiguousarray(pixels[::stride, ::stride])
    factor = SIDE // longest
    result: NDArray[np.uint8] = pixels.repeat(factor, axis=0).repeat(factor, axis=1)
    return result


def _whole(pixels: int) -> int:
    """The next size that matplotlib, which counts in inches, does not cut by a pixel."""
    while int(pixels / DPI * DPI) != pixels:
        pixels += 1
    return pixels
