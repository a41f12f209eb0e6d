"""A sheet of pictures as PNG: rows of pictures under column heads, in whole pixels.

Pictures are enlarged by whole factors, so every pixel shown is a pixel of the data.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib.style
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

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
        width=whole(left + MARGIN),
        height=whole(top + MARGIN + LEGEND_LINE * legend_lines + MARGIN),
        lefts=tuple(lefts),
        tops=tuple(tops),
    )


# ------------------------------------------------------------------------------ drawing


class Sheet(Figure):
    """A figure that a notebook shows, whatever its backend."""

    def png(self) -> bytes:
        """The file, without the version of matplotlib that it would carry by default."""
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
        return buffer.getvalue()

    def _repr_png_(self) -> bytes:
        """What IPython asks for."""
        return self.png()


class Drawing:
    """A figure that is drawn on in whole pixels from the top left."""

    def __init__(self, place: Layout) -> None:
        self.place = place
        self.figure = Sheet(figsize=(place.width / DPI, place.height / DPI), dpi=DPI)
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

    def _share(
        self, left: float, top: float, width: float, height: float
    ) -> tuple[float, float, float, float]:
        """Pixels as shares of the figure, from the bottom left."""
        across, down = self.place.width, self.place.height
        return left / across, 1 - (top + height) / down, width / across, height / down


def render(columns: Sequence[Column], rows: Sequence[Row], legend: Sequence[str]) -> bytes:
    """The PNG of these rows, with the lines of the legend below; the same ones give the same."""
    # A user's matplotlibrc must not change the bytes; fonts are looked up while drawing.
    with matplotlib.style.context("default"):
        return sheet_of(columns, rows, legend).png()


def sheet_of(columns: Sequence[Column], rows: Sequence[Row], legend: Sequence[str]) -> Sheet:
    """The figure of these rows, with the lines of the legend below."""
    with matplotlib.style.context("default"):
        sheet = Drawing(layout(rows, columns, len(legend)))
        _heads(sheet, columns)
        for number, row in enumerate(rows):
            _row(sheet, number, row)
        bottom = sheet.place.height - MARGIN - LEGEND_LINE * len(legend)
        for number, line in enumerate(legend):
            sheet.text(MARGIN, bottom + LEGEND_LINE * number, line, colour=FAINT)
        return sheet.figure


def _heads(sheet: Drawing, columns: Sequence[Column]) -> None:
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


def _row(sheet: Drawing, number: int, row: Row) -> None:
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
        draw_picture(sheet, sheet.place.box(number, column), picture)


def draw_picture(sheet: Drawing, box: Box, picture: Picture) -> None:
    """A picture in the middle of its box, framed, and its caption below."""
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


def whole(pixels: int) -> int:
    """The next size that matplotlib, which counts in inches, does not cut by a pixel."""
    while int(pixels / DPI * DPI) != pixels:
        pixels += 1
    return pixels
