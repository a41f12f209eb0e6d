"""What figures of runs share: looks that a gray print keeps apart, and bytes that repeat."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import matplotlib
import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend

from leakbench.errors import LeakbenchError

SUFFIXES = (".png", ".svg")
"""Formats of a picture."""

DPI = 110

# Okabe and Ito's colours, dark and light in turn, and a mark for each.
LOOKS = (
    ("#000000", "o"), ("#E69F00", "s"), ("#0072B2", "^"), ("#56B4E9", "D"),
    ("#D55E00", "v"), ("#009E73", "X"), ("#CC79A7", "P"), ("#7A7A7A", "*"),
)  # fmt: skip


_REPEATABLE: Any = {"svg.hashsalt": "leakbench", "svg.fonttype": "none"}  # text stays text


def check_suffix(suffix: str) -> None:
    """Refuse what is none of `SUFFIXES`."""
    if suffix not in SUFFIXES:
        allowed = " and ".join(f"'{each}'" for each in SUFFIXES)
        raise LeakbenchError(f"a figure is written as {allowed}, not as '{suffix}'")


def written(draw: Callable[[], Figure], suffix: str) -> bytes:
    """The picture as a file of one of `SUFFIXES`; the same picture gives the same bytes."""
    # A user's matplotlibrc must not change the bytes; fonts are looked up while drawing.
    with matplotlib.style.context("default"), matplotlib.rc_context(_REPEATABLE):
        figure = draw()
        buffer = io.BytesIO()
        metadata = {"Software": None} if suffix == ".png" else {"Date": None, "Creator": None}
        figure.savefig(buffer, format=suffix[1:], dpi=DPI, metadata=metadata)
    return buffer.getvalue()


def plain_axes(axes: Axes) -> None:
    """Small ticks, a pale grid, no box."""
    axes.tick_params(labelsize=7, length=2, pad=1.5)
    axes.grid(True, color="#e3e6ea", linewidth=0.6)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def raw_names(legend: Legend) -> None:
    """Names as they are: a dollar sign begins no formula."""
    for text in legend.get_texts():
        text.set_parse_math(False)


def text_at(
    figure: Figure, x: float, y: float, text: str, *, size: float, weight: str = "normal"
) -> None:
    """Text from its top left; never read as a formula."""
    figure.text(x, y, text, fontsize=size, fontweight=weight, va="top", parse_math=False)
