"""A sheet of pictures as PNG: blocks of rows of pictures under column heads, in whole pixels.

Pictures are enlarged by whole factors, so every pixel shown is a pixel of the data. Text is
measured before it is placed: what does not fit on a line goes on in the next.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

import matplotlib.style
import numpy as np
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from leakbench.errors import LeakbenchError
from leakbench.printable import printable

Image = NDArray[np.float32]
"""(channels, height, width), raw values."""

DPI = 110

# Everything below is in pixels.
PAGE = 1400  # as wide as a sheet gets by itself
NARROWEST = 460  # for the words below the pictures
LARGEST = 2**16 - 1  # what the drawing library allows
SIDE = 128  # a picture's box; MNIST is shown 4 times enlarged (112), CIFAR-10 and LFW too (128)
GAP = 12  # between boxes
GROUP_GAP = 26  # between the columns of two methods
LINE = 17  # of small text
TITLE_LINE = 22
BLOCK_GAP = 10  # above a block
MARGIN = 16

SUCCESS = "#0072B2"  # blue of the Okabe-Ito palette, safe for the colour-blind
NEUTRAL = "#c8ccd2"
INK = "#1c2330"
FAINT = "#6b7687"
DASH = 5  # length of a dash of a broken frame, and of the gap after it


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
    """One image with the lines under it; `image` None leaves a dash or a short text.

    success: framed in blue. apart: framed by a dashed line: not what an attacker returned.
    """

    image: Image | None
    caption: str
    success: bool = False
    apart: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`pictures` fit the columns; a row without any shows `text` instead. label: above them."""

    label: tuple[str, ...]
    pictures: tuple[Picture, ...] = ()
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Rows under heads of their own; `title` above all."""

    columns: tuple[Column, ...] = ()
    rows: tuple[Row, ...]
    title: str = ""


def blocks_of(
    columns: Sequence[Column], rows: Sequence[Row], *, title: str = "", most: int | None = None
) -> list[Block]:
    """One block, or several below each other, each with the first column and some of the methods.

    Methods are columns of one `row` and `head`, which stay together.

    Args:
        columns, rows: of all of them. title: of the first block.
        most: methods in a block; None: as many as fit on a page, about as many in each.
    """
    methods = [
        [index for index, _ in members]
        for _, members in groupby(enumerate(columns[1:], start=1), lambda pair: _method(pair[1]))
    ]
    if not methods:
        return [Block(columns=tuple(columns), rows=tuple(rows), title=title)]
    if most is None:
        fitting = next((n for n in range(len(methods), 1, -1) if _widest(methods, n) <= PAGE), 1)
        count = -(-len(methods) // fitting)
        most = -(-len(methods) // count)
    blocks = []
    for first in range(0, len(methods), most):
        kept = [0, *(index for members in methods[first : first + most] for index in members)]
        shown = tuple(
            Row(
                label=row.label,
                pictures=tuple(row.pictures[index] for index in kept) if row.pictures else (),
                text=row.text,
            )
            for row in rows
        )
        names = tuple(columns[index] for index in kept)
        blocks.append(Block(columns=names, rows=shown, title="" if first else title))
    return blocks


def _method(column: Column) -> tuple[str | None, str]:
    return column.row, column.head


def _widest(methods: Sequence[Sequence[int]], most: int) -> int:
    """Width of the widest block with so many methods in each."""
    widths = [len(members) * (SIDE + GAP) - GAP + GROUP_GAP for members in methods]
    return max(
        2 * MARGIN + SIDE + sum(widths[first : first + most])
        for first in range(0, len(widths), most)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A line that is drawn at a point."""

    x: float
    y: float
    text: str
    size: float = 8.5
    colour: str = INK
    across: str = "left"
    down: str = "top"
    weight: str = "normal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where everything stands, in whole pixels.

    boxes: of each block, row by row, the boxes of its pictures. rules: (left, right, y) of lines.
    """

    width: int
    height: int
    boxes: tuple[tuple[tuple[Box, ...], ...], ...]
    texts: tuple[Text, ...]
    rules: tuple[tuple[int, int, int], ...]


def layout(blocks: Sequence[Block], legend: Sequence[str]) -> Layout:
    """Positions for these blocks, one below the other, and the legend under them.

    Raises:
        LeakbenchError: more than can be drawn.
    """
    lefts = [_lefts(block.columns) for block in blocks]
    edges = [places[-1] + SIDE + MARGIN for places in lefts if places]
    width = whole(max([NARROWEST, *edges]))
    page = _Page(width)
    boxes = []
    for block, places in zip(blocks, lefts, strict=True):
        page.top += BLOCK_GAP
        page.lines(block.title, TITLE_LINE, size=10.5, weight="bold")
        if any(row.pictures for row in block.rows):
            page.heads(block.columns, places)
        boxes.append(tuple(page.row(row, places) for row in block.rows))
    page.top += MARGIN
    for line in legend:
        page.lines(line, LINE + 1, colour=FAINT)
    height = whole(page.top + MARGIN)
    if max(width, height) > LARGEST:
        raise LeakbenchError(
            f"the gallery would have {width} x {height} pixels, and at most {LARGEST} either way "
            "can be drawn: ask for fewer victims, or other --columns"
        )
    return Layout(
        width=width,
        height=height,
        boxes=tuple(boxes),
        texts=tuple(page.texts),
        rules=tuple(page.rules),
    )


def _lefts(columns: Sequence[Column]) -> list[int]:
    found, left = [], MARGIN
    for number, column in enumerate(columns):
        if number:
            left += (
                GAP
                if number > 1 and _method(column) == _method(columns[number - 1])
                else (GROUP_GAP)
            )
        found.append(left)
        left += SIDE
    return found


class _Page:
    """Fills a page from its top."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.top = MARGIN - BLOCK_GAP
        self.texts: list[Text] = []
        self.rules: list[tuple[int, int, int]] = []

    def lines(
        self, text: str, step: int, *, size: float = 8.5, colour: str = INK, weight: str = "normal"
    ) -> None:
        """Text over the page's width, in as many lines as it takes."""
        for line in fitted(text, self.width - 2 * MARGIN, size=size, weight=weight):
            self.texts.append(
                Text(x=MARGIN, y=self.top, text=line, size=size, colour=colour, weight=weight)
            )
            self.top += step

    def heads(self, columns: Sequence[Column], lefts: Sequence[int]) -> None:
        """Method over all its columns, attacker over each."""
        numbers = range(1, len(columns))
        methods = [list(each) for _, each in groupby(numbers, lambda i: _method(columns[i]))]
        names = []
        for members in methods:
            left, right = lefts[members[0]], lefts[members[-1]] + SIDE
            lines = fitted(columns[members[0]].head, right - left + GAP, size=9, most=6)
            names.append((left, right, lines))
        details = [fitted(column.detail, SIDE + GAP - 2, most=2) for column in columns]
        tall = max((len(lines) for _, _, lines in names), default=0)
        line = self.top + 4 + LINE * tall
        for left, right, lines in names:
            for number, text in enumerate(lines):
                y = line - 7 - LINE * (len(lines) - 1 - number)
                self._middle((left + right) / 2, y, text, size=9)
            if lines:
                self.rules.append((left, right, line))
        base = line + LINE * max(map(len, details)) - 1
        for column, left, lines in zip(columns, lefts, details, strict=True):
            colour = FAINT if column.row else INK
            for number, text in enumerate(lines):
                y = base - LINE * (len(lines) - 1 - number)
                self._middle(left + SIDE / 2, y, text, colour=colour)
        self.top = base + 16

    def row(self, row: Row, lefts: Sequence[int]) -> tuple[Box, ...]:
        """Its label, and room for its pictures with what stands under them."""
        self.lines(", ".join(filter(None, row.label)), LINE, size=9)
        if not row.pictures:
            self.lines(row.text, LINE, size=9, colour=FAINT)
            self.top += GAP
            return ()
        self.top += 6
        boxes = tuple(Box(left, self.top, SIDE, SIDE) for left in lefts)
        lines = max(picture.caption.count("\n") + 1 for picture in row.pictures)
        self.top += SIDE + 8 + LINE * lines + GAP
        return boxes

    def _middle(
        self, x: float, y: float, text: str, *, size: float = 8.5, colour: str = INK
    ) -> None:
        self.texts.append(
            Text(x=x, y=y, text=text, size=size, colour=colour, across="center", down="baseline")
        )


MOST_LETTERS = 2000
"""Of a text that is shown; longer ones are somebody's joke."""


def fitted(
    text: str, width: int, *, size: float = 8.5, weight: str = "normal", most: int | None = None
) -> list[str]:
    """Lines no wider than `width` pixels; words that are wider are broken.

    most: lines at most; the last one then ends with an ellipsis. Without visible letters: none.
    """
    words = list(_words(printable(text)[:MOST_LETTERS], width, size, weight))
    lines: list[str] = []
    for word in words:
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and text_width(longer, size, weight) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    if most is not None and len(lines) > most:
        last = lines[most - 1]
        while last and text_width(last + "…", size, weight) > width:
            last = last[:-1]
        lines = [*lines[: most - 1], last + "…"]
    return lines


def _words(text: str, width: int, size: float, weight: str) -> Iterator[str]:
    for word in text.split():
        while text_width(word, size, weight) > width and len(word) > 1:
            keep = len(word) - 1
            while keep > 1 and text_width(word[:keep], size, weight) > width:
                keep = min(keep - 1, int(keep * width / text_width(word[:keep], size, weight)) + 1)
            yield word[: max(keep, 1)]
            word = word[max(keep, 1) :]
        yield word


@lru_cache(maxsize=4096)
def text_width(text: str, size: float, weight: str = "normal") -> float:
    """Pixels that a line takes."""
    font = FontProperties(size=size, weight=weight)
    return float(_renderer().get_text_width_height_descent(text, font, ismath=False)[0])


@lru_cache(maxsize=1)
def _renderer() -> RendererAgg:
    return RendererAgg(1, 1, DPI)


# ------------------------------------------------------------------------------ drawing


class Sheet(Figure):
    """A figure that a notebook shows, whatever its backend."""

    def png(self) -> bytes:
        """The file, without the version of matplotlib that it would carry by default."""
        buffer = io.BytesIO()
        # A user's matplotlibrc must not change the bytes; fonts are looked up while drawing.
        with matplotlib.style.context("default"):
            self.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
        return buffer.getvalue()

    def _repr_png_(self) -> bytes:
        """What IPython asks for."""
        return self.png()


class Drawing:
    """A figure that is drawn on in whole pixels from the top left."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.figure = Sheet(figsize=(width / DPI, height / DPI), dpi=DPI)
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
            x / self.width,
            1 - y / self.height,
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

    def dashes(self, inner: Box, gap: int, thickness: int, colour: str) -> None:
        """A broken line around a box, at a distance: beside noise it would not be seen."""
        box = Box(inner.left - gap, inner.top - gap, inner.width + 2 * gap, inner.height + 2 * gap)
        for left, top, width, height, along in (
            (box.left - thickness, box.top - thickness, box.width + 2 * thickness, thickness, 0),
            (box.left - thickness, box.top + box.height, box.width + 2 * thickness, thickness, 0),
            (box.left - thickness, box.top, thickness, box.height, 1),
            (box.left + box.width, box.top, thickness, box.height, 1),
        ):
            for start in range(0, height if along else width, 2 * DASH):
                length = min(DASH, (height if along else width) - start)
                self._fill(
                    Box(left, top + start, width, length)
                    if along
                    else Box(left + start, top, length, height),
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
        across, down = self.width, self.height
        return left / across, 1 - (top + height) / down, width / across, height / down


def sheet_of(blocks: Sequence[Block], legend: Sequence[str]) -> Sheet:
    """The figure of these blocks, with the lines of the legend below; the same give the same.

    Raises:
        LeakbenchError: more than can be drawn.
    """
    with matplotlib.style.context("default"):
        place = layout(blocks, legend)
        sheet = Drawing(place.width, place.height)
        for line in place.texts:
            sheet.text(
                line.x, line.y, line.text, size=line.size, colour=line.colour,
                across=line.across, down=line.down, weight=line.weight,
            )  # fmt: skip
        for rule in place.rules:
            sheet.rule(*rule)
        for block, boxes_of_rows in zip(blocks, place.boxes, strict=True):
            for row, boxes in zip(block.rows, boxes_of_rows, strict=True):
                for box, picture in zip(boxes, row.pictures, strict=True):
                    draw_picture(sheet, box, picture)
        return sheet.figure


def draw_picture(sheet: Drawing, box: Box, picture: Picture) -> None:
    """A picture in the middle of its box, framed, and its caption below."""
    middle = box.left + box.width / 2
    if picture.image is None:
        lines = fitted(picture.caption or "-", box.width, size=9, most=5)
        for number, line in enumerate(lines):
            y = box.top + box.height / 2 + LINE * (number - (len(lines) - 1) / 2)
            sheet.text(middle, y, line, size=9, colour=FAINT, across="center", down="center")
        return
    pixels = enlarged(picture.image)
    inner = centred(box, pixels.shape[1], pixels.shape[0])
    sheet.image(inner, pixels)
    if picture.apart:
        sheet.dashes(inner, 2, 2, FAINT)
    else:
        sheet.frame(inner, 3 if picture.success else 1, SUCCESS if picture.success else NEUTRAL)
    colour = SUCCESS if picture.success else INK
    y = inner.top + inner.height + 7
    for number, line in enumerate(picture.caption.split("\n")):
        short = fitted(line, SIDE + GAP - 2, size=8, most=1)
        sheet.text(
            middle, y + LINE * number, "".join(short), size=8, colour=colour, across="center"
        )


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
