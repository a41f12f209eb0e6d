"""What figures of runs share: the page that they are laid out on, and files that repeat.

A figure is rows of panels with names of what is drawn in them. All text and all ticks are placed
here, in inches: that looks the same for every kind, and takes a tenth of the time of the drawing
library's own ticks. Looks differ in mark and dash as well as in colour, for gray prints.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import matplotlib
import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from leakbench.errors import LeakbenchError
from leakbench.printable import printable
from leakbench.report import drawing
from leakbench.report.words import compact

SUFFIXES = (".png", ".svg", ".pdf")
"""Formats of a figure."""

PAGE, COLUMN, WIDEST = 7.16, 3.5, 30.0
"""Inches: both columns of a journal, one, and more than anybody prints."""

PRINT, SCREEN = 300, 160
"""Dots an inch of a PNG, in a file and in a page."""

# Okabe and Ito's colours, dark and light in turn, and a mark for each.
LOOKS = (
    ("#000000", "o"), ("#E69F00", "s"), ("#0072B2", "^"), ("#56B4E9", "D"),
    ("#D55E00", "v"), ("#009E73", "X"), ("#CC79A7", "P"), ("#7A7A7A", "*"),
)  # fmt: skip
DASHES = ("-", "--", "-.", ":")
GRAY = "#7A7A7A"

# Text as text in an SVG, as TrueType in a PDF: journals refuse Type 3.
_REPEATABLE: Any = {"svg.hashsalt": "leakbench", "svg.fonttype": "none", "pdf.fonttype": 42}
_METADATA: Mapping[str, dict[str, None]] = {
    ".png": {"Software": None},
    ".svg": {"Date": None, "Creator": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Name:
    """What is drawn in a look; look: of a `Line2D`."""

    label: str
    look: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One pair of axes.

    Attributes:
        head: above it. across, up: beside the axes.
        draw: draws lines, and sets scales and limits; ticks follow from them.
        ticks: places on the axis across with their words, instead of those that follow.
        whole: across there are whole numbers only.
    """

    head: str
    across: str
    up: str
    draw: Callable[[Axes], None]
    ticks: Mapping[float, str] = field(default_factory=dict)
    whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Panels side by side with one list of names."""

    title: str
    panels: Sequence[Panel]
    names: Sequence[Name]


def look_of(number: int) -> dict[str, Any]:
    """Colour, mark and dash of the line of a number: 32 that differ."""
    colour, mark = LOOKS[number % len(LOOKS)]
    return {
        "color": colour, "marker": mark, "markersize": 3, "linewidth": 1.1,
        "linestyle": DASHES[number // len(LOOKS) % len(DASHES)],
    }  # fmt: skip


def written(rows: Sequence[Row], suffix: str, *, width: float = PAGE, dpi: int = PRINT) -> bytes:
    """Rows as a file of one of `SUFFIXES`; the same rows give the same bytes.

    Args:
        rows: at least one. width: in inches, from `COLUMN` to `WIDEST`. dpi: of a PNG.

    Raises:
        LeakbenchError: another suffix or width.
    """
    if not COLUMN <= width <= WIDEST:
        raise LeakbenchError(f"a figure is {COLUMN:g} to {WIDEST:g} inches wide, not {width:g}")
    if suffix not in SUFFIXES:
        allowed = " or ".join(f"'{each}'" for each in SUFFIXES)
        raise LeakbenchError(f"a figure is written as {allowed}, not as '{suffix}'")
    # A user's matplotlibrc must not change the bytes; fonts are looked up while drawing.
    with matplotlib.style.context("default"), matplotlib.rc_context(_REPEATABLE):
        buffer = io.BytesIO()
        page_of(rows, width).savefig(buffer, format=suffix[1:], dpi=dpi, metadata=_METADATA[suffix])
    return buffer.getvalue()


# ------------------------------------------------------------------------------ the page

# In inches.
_LEFT, _RIGHT = 0.46, 0.1  # of a panel: numbers and words left of the axes, and room right of them
_HEAD, _FOOT = 0.14, 0.36  # a line above the axes; numbers and words below
_NARROW, _WIDE = 1.75, 3.4  # a panel
_TALL = (1.15, 1.9)  # axes
_TITLE, _GAP = 0.26, 0.1  # of a row, and below it
_LINE, _HANDLE = 0.135, 0.42  # of a name: its height, and the length of its line
_INDENT, _BESIDE = 0.12, 1.9  # of names below panels; what they need beside them
_SMALL, _NORMAL = 6.5, 7.5  # points


@dataclass(frozen=True, slots=True)
class _Placed:
    """A row with its measures.

    columns: panels a line. panel: width of one. axes: height of its axes. heads: of each panel, in
    lines. names: with their lines; beside the panels or below them, so many across.
    """

    row: Row
    columns: int
    panel: float
    axes: float
    heads: tuple[tuple[str, ...], ...]
    names: tuple[tuple[Name, tuple[str, ...]], ...]
    beside: bool
    across: int

    @property
    def lines(self) -> int:
        return -(-len(self.row.panels) // self.columns)

    @property
    def line(self) -> float:
        """Height of a line of panels."""
        return self.above + self.axes + _FOOT

    @property
    def above(self) -> float:
        """Height of the heads."""
        return _HEAD * max(map(len, self.heads)) + 0.06

    @property
    def legend(self) -> float:
        """Height of the names."""
        counts = [len(words) for _, words in self.names]
        each = -(-len(counts) // self.across) if counts else 0
        return _LINE * max(
            (sum(counts[c * each : (c + 1) * each]) for c in range(self.across)), default=0
        )

    @property
    def height(self) -> float:
        panels = self.lines * self.line
        if self.beside:
            return _TITLE + max(panels, _HEAD + self.legend) + _GAP
        return _TITLE + panels + self.legend + _GAP


def page_of(rows: Sequence[Row], width: float = PAGE) -> Figure:
    """Rows below each other on a page so wide, each with its names right of it or below."""
    placed = [_placed(row, width) for row in rows]
    height = sum(each.height for each in placed)
    page = _Page(Figure(figsize=(width, height), facecolor="white"), width, height)
    top = 0.0
    for each in placed:
        page.row(each, top)
        top += each.height
    return page.figure


def _placed(row: Row, width: float) -> _Placed:
    count = len(row.panels)
    lines = -(-count // max(1, int(width // _NARROW)))
    columns = -(-count // lines)
    panel = min(width / columns, _WIDE)
    beside = width - columns * panel >= _BESIDE
    room = width - (columns * panel if beside else _INDENT) - 0.1
    widest = room - _HANDLE - _GAP
    names = tuple((name, _lines(name.label, widest, _SMALL)) for name in row.names)
    longest = max((_long(line) for _, words in names for line in words), default=0.0)
    across = max(1, int(room // (longest + _HANDLE + _GAP)))
    return _Placed(
        row, columns, panel, min(max(0.6 * panel, _TALL[0]), _TALL[1]),
        tuple(_lines(each.head, panel - _LEFT, _NORMAL) for each in row.panels), names, beside,
        across,
    )  # fmt: skip


def _lines(text: str, inches: float, size: float) -> tuple[str, ...]:
    return tuple(drawing.fitted(text, int(inches * drawing.DPI), size=size)) or ("",)


def _long(text: str) -> float:
    return drawing.text_width(text, _SMALL) / drawing.DPI


@dataclass(frozen=True, slots=True)
class _Page:
    """A figure on which places are inches from the top left."""

    figure: Figure
    width: float
    height: float

    def text(self, x: float, y: float, text: str, *, size: float = _SMALL, **how: Any) -> None:
        """Text at a point, by its top left unless `how` says otherwise; never a formula."""
        self.figure.text(
            x / self.width, 1 - y / self.height, text, fontsize=size, parse_math=False,
            **{"va": "top", **how},
        )  # fmt: skip

    def row(self, placed: _Placed, top: float) -> None:
        row = placed.row
        self.text(0.08, top + 0.05, printable(row.title), size=9, weight="bold")
        top += _TITLE
        for number, panel in enumerate(row.panels):
            line, column = divmod(number, placed.columns)
            said = column > 0 and panel.up == row.panels[number - 1].up
            self._panel(placed, number, column * placed.panel, top + line * placed.line, said)
        if placed.beside:
            self._names(placed, placed.columns * placed.panel, top + _HEAD)
        else:
            self._names(placed, _INDENT, top + placed.lines * placed.line)

    def _panel(self, placed: _Placed, number: int, left: float, top: float, said: bool) -> None:
        """said: what is up stands beside the panel left of it."""
        panel, heads = placed.row.panels[number], placed.heads[number]
        left += _LEFT
        high = top + placed.above
        wide, tall = placed.panel - _LEFT - _RIGHT, placed.axes
        low = high + tall
        axes = self.figure.add_axes(
            (left / self.width, 1 - low / self.height, wide / self.width, tall / self.height)
        )
        panel.draw(axes)
        _plain(axes)
        for line, words in enumerate(reversed(heads)):
            self.text(left, high - 0.06 - _HEAD * line, words, size=_NORMAL, va="baseline")
        self.text(left + wide / 2, low + 0.17, panel.across, size=7, ha="center")
        if not said:
            self.text(
                left - 0.34, high + tall / 2, panel.up, size=7, rotation=90, ha="center",
                va="center",
            )  # fmt: skip
        across = panel.ticks or _ticks(axes, "x", wide, whole=panel.whole)
        up = _ticks(axes, "y", tall)
        _grid(axes, list(across), list(up))
        end = 0.0
        for at, words in across.items():
            middle, half = left + wide * _share(axes, "x", at), _long(words) / 2
            if middle - half > end:  # where they are crowded, some numbers are left out
                self.text(middle, low + 0.05, words, ha="center")
                end = middle + half + 0.04
        for at, words in up.items():
            place = _share(axes, "y", at)
            self.text(left - 0.05, low - tall * place, words, ha="right", va="center_baseline")

    def _names(self, placed: _Placed, left: float, top: float) -> None:
        names = placed.names
        each = -(-len(names) // placed.across) if names else 1
        room = self.width - left - 0.1
        for start in range(0, len(names), each):
            x, y = left + room / placed.across * (start // each), top
            for name, words in names[start : start + each]:
                middle = 1 - (y + _LINE / 2) / self.height
                ends = [(x + share * 0.32) / self.width for share in (0.0, 0.5, 1.0)]
                self.figure.add_artist(
                    Line2D(ends, [middle] * 3, **{**name.look, "markevery": [1]})
                )
                for line in words:
                    self.text(x + _HANDLE, y + _LINE / 2, line, va="center_baseline")
                    y += _LINE


# ------------------------------------------------------------------------------ axes


def _plain(axes: Axes) -> None:
    """No ticks of the library, no box."""
    axes.xaxis.set_visible(False)
    axes.yaxis.set_visible(False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _grid(axes: Axes, across: Sequence[float], up: Sequence[float]) -> None:
    """A pale line at every tick."""
    for places, transform, turned in (
        (across, axes.get_xaxis_transform(), False), (up, axes.get_yaxis_transform(), True),
    ):  # fmt: skip
        lines = [[(0, at), (1, at)] if turned else [(at, 0), (at, 1)] for at in places]
        axes.add_collection(
            LineCollection(lines, colors="#e3e6ea", linewidths=0.6, zorder=0, transform=transform),
            autolim=False,
        )


def _limits(axes: Axes, axis: str) -> tuple[float, float]:
    low, high = axes.get_xlim() if axis == "x" else axes.get_ylim()
    return float(low), float(high)


def _share(axes: Axes, axis: str, value: float) -> float:
    """Where on an axis a number is: 0 at its beginning, 1 at its end."""
    scale = (axes.xaxis if axis == "x" else axes.yaxis).get_transform()
    low, high, at = (float(scale.transform(v)) for v in (*_limits(axes, axis), value))
    return (at - low) / (high - low)


def _ticks(axes: Axes, axis: str, inches: float, *, whole: bool = False) -> dict[float, str]:
    """Round numbers on an axis so long with their words, some three an inch."""
    low, high = _limits(axes, axis)
    scale = axes.get_xscale() if axis == "x" else axes.get_yscale()
    most = max(3, int(3.2 * inches))
    if scale != "linear":
        start, zero = (10.0, {0.0: "0"}) if scale == "symlog" else (low, {})
        found = {**zero, **_decades(start, high, most)}
        fives = {**zero, **_fives(start, high, 2 * most)}
        if len(found) < 3 <= len(fives):
            found = fives
        if len(found) > 1:
            return found
    places = MaxNLocator(nbins=most, steps=[1, 2, 5, 10], integer=whole).tick_values(low, high)
    slack = 1e-9 * (high - low)
    inside = [float(v) for v in places if low - slack <= v <= high + slack]
    return {v: compact(0.0 if abs(v) < slack else v) for v in inside if scale != "log" or v > 0}


def _decades(low: float, high: float, most: int) -> dict[float, str]:
    """Powers of ten between, every second (third, ...) where they are many; none below 0."""
    if not 0 < low <= high:
        return {}
    first, last = math.ceil(math.log10(low)), math.floor(math.log10(high))
    step = max(1, -(-(last - first + 1) // most))
    return {10.0**p: power(p) for p in range(first, last + 1) if p % step == 0}


def _fives(low: float, high: float, most: int) -> dict[float, str]:
    """1, 2 and 5 of each power of ten between; none where they are more than `most`."""
    if not 0 < low <= high:
        return {}
    powers = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)
    places = [float(f"{digit}e{p}") for p in powers for digit in (1, 2, 5)]
    inside = [value for value in places if low <= value <= high]
    return {value: compact(value) for value in inside} if len(inside) <= most else {}


_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def power(exponent: int) -> str:
    """A power of ten in few letters."""
    if -2 <= exponent <= 3:
        return f"{10.0**exponent:g}"
    return f"10{str(exponent).translate(_RAISED)}"
