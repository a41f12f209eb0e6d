"""The page that figures are laid out on: nothing is cut or covered, files repeat."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable

import numpy as np
import pytest
from matplotlib.axes import Axes
from PIL import Image

from leakbench.errors import LeakbenchError
from leakbench.report.figures import (
    DASHES,
    LOOKS,
    SUFFIXES,
    Name,
    Panel,
    Row,
    look_of,
    page_of,
    power,
    written,
)


def row(draw: Callable[[Axes], None], names: int = 1, panels: int = 1) -> Row:
    panel = Panel(head="a head", across="right", up="up", draw=draw)
    return Row(
        title="A title", panels=[panel] * panels,
        names=[Name(label=f"line ${n}$", look=look_of(n)) for n in range(names)],
    )  # fmt: skip


def line(low: float, high: float, scale: str = "linear") -> Row:
    def draw(axes: Axes) -> None:
        axes.plot([low, high], [low, high])
        axes.set_xscale(scale)
        axes.set_xlim(low, high)

    return row(draw)


def numbers(made: Row) -> list[str]:
    """Words at the axis across: all below the axes, but for the last, its name."""
    figure = page_of([made])
    low = figure.axes[0].get_position().y0
    texts = [text for text in figure.texts if text.get_position()[1] < low]
    return [text.get_text() for text in texts if text.get_text() != "right"]


@pytest.mark.parametrize(
    ("low", "high", "scale", "words"),
    [
        (0, 1, "linear", ["0", "0.2", "0.4", "0.6", "0.8", "1"]),
        (1e-7, 1e9, "log", ["10⁻⁶", "10⁻⁴", "0.01", "1", "100", "10⁴", "10⁶", "10⁸"]),
        (0.5, 200, "log", ["1", "10", "100"]),
        (2, 7, "log", ["2", "3", "4", "5", "6", "7"]),
        (2.1, 9.5, "log", ["3", "4", "5", "6", "7", "8", "9"]),
        (0.04, 1.1, "log", ["0.05", "0.1", "0.2", "0.5", "1"]),
        (0, 8, "symlog", [str(n) for n in range(9)]),
        (0, 30, "symlog", ["0", "10", "20"]),
        (0, 2000, "symlog", ["0", "10", "100", "1000"]),
        (
            1e-4,
            4e-4,
            "linear",
            ["1.0e-4", "1.5e-4", "2.0e-4", "2.5e-4", "3.0e-4", "3.5e-4", "4.0e-4"],
        ),
    ],
)
def test_ticks_are_round_numbers(low: float, high: float, scale: str, words: list[str]) -> None:
    assert numbers(line(low, high, scale)) == words


def test_a_tick_stands_where_its_number_is_drawn() -> None:
    figure = page_of([line(1, 1e4, "log")])
    (axes,) = figure.axes
    left, _, width, _ = axes.get_position().bounds
    places = {
        text.get_text(): text.get_position()[0]
        for text in figure.texts
        if text.get_ha() == "center"
    }
    for value in (10.0, 100.0, 1000.0):
        pixel, _ = axes.transData.transform((value, 1.0))
        shown = places[f"{value:g}"]
        assert shown == pytest.approx(pixel / figure.bbox.width)
        assert shown == pytest.approx(left + width * math.log10(value) / 4)


@pytest.mark.parametrize("width", [3.5, 7.16])
@pytest.mark.parametrize("panels", [1, 2, 4, 5])
def test_nothing_is_cut_or_covered(
    width: float, panels: int, crowded: Callable[..., list[str]]
) -> None:
    def draw(axes: Axes) -> None:
        axes.plot([0, 1], [1e-9, 1e9])
        axes.set_yscale("log")

    assert crowded([row(draw, 31, panels), row(draw, 1, panels)], width) == []


def test_looks_differ_without_colour() -> None:
    looks = [look_of(number) for number in range(len(LOOKS) * len(DASHES))]
    assert len({(look["marker"], look["linestyle"]) for look in looks}) == 32


def test_powers_in_few_letters() -> None:
    assert [power(p) for p in (-12, -3, -2, 0, 3, 4)] == [
        "10⁻¹²",
        "10⁻³",
        "0.01",
        "1",
        "1000",
        "10⁴",
    ]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_files_repeat(suffix: str) -> None:
    made = [line(1, 100, "log")]
    assert written(made, suffix) == written(made, suffix)


def test_files_have_the_width_and_fonts_of_print() -> None:
    made = [line(1, 1e5, "log")]
    png = Image.open(io.BytesIO(written(made, ".png", width=3.5, dpi=300)))
    assert png.width == 1050 and np.asarray(png.convert("L")).min() < 50
    svg = written(made, ".svg", width=3.5).decode()
    assert 'width="252pt"' in svg  # 3.5 inches
    assert {"line $0$", "10⁵", "A title"} <= set(re.findall(r"<text[^>]*>([^<]*)</text>", svg))
    pdf = written(made, ".pdf", width=3.5)
    assert b"/FontFile2" in pdf and b"/Type3" not in pdf  # TrueType, inside the file
    with pytest.raises(LeakbenchError, match=r"'.png' or '.svg' or '.pdf', not as '.jpg'"):
        written(made, ".jpg")
    for width in (3.4, 31.0, float("nan"), float("inf")):
        with pytest.raises(LeakbenchError, match=r"is 3.5 to 30 inches wide, not "):
            written(made, ".png", width=width)
