"""The picture of `leakbench demo`: a row a defense, a column an attacker, numbers under each.

Tall and narrow, so that its letters can be read on a phone.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import matplotlib.style
import numpy as np

from leakbench.manifest import Manifest
from leakbench.metrics.rules import succeeded
from leakbench.records import Record, Run
from leakbench.report.drawing import (
    FAINT,
    GAP,
    INK,
    MARGIN,
    SIDE,
    Box,
    Drawing,
    Image,
    Picture,
    draw_picture,
    whole,
)
from leakbench.report.measured import rules_of
from leakbench.report.words import compact

HEAD, TITLE, CAPTION = 40, 46, 64
"""Pixels above all rows, above the pictures of a row, and under them."""
LINE = 17
LETTERS = 84
"""Of the smallest letters that fit on a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shot:
    """What one attacker made of one gradient.

    mse: raw; None where he returned nothing. exact: by the suite's strict rule. rank: of the victim
    among all candidates, by their distance to the picture; 1: named.
    """

    attacker: str
    image: Image | None
    mse: float | None
    exact: bool
    rank: int | None

    @property
    def named(self) -> bool:
        """Whether the victim is the nearest of all candidates."""
        return self.rank == 1

    @property
    def words(self) -> tuple[str, str, str]:
        """Error, whether exact, and whether named, or the victim's place."""
        place = "yes" if self.named else "no" if self.rank is None else f"no, place {self.rank}"
        return compact(self.mse), "yes" if self.exact else "no", place


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRow:
    """A defense and who attacks it; `detail` says in a sentence what it shows."""

    title: str
    detail: str
    shots: tuple[Shot, ...]


def read(
    run: Run, known: Manifest, rows: Mapping[tuple[str, str], tuple[str, str]]
) -> tuple[Image, list[DemoRow]]:
    """The victim's image (channels, height, width), and what was made of its gradients.

    rows: (id of a defense, knowledge) -> title and sentence of a row. Every variant of the suite is
    an attacker; the first trial of each cell is shown.
    """
    records = run.records()
    exact = next(rule.judged for rule in rules_of(known.plan) if rule.judged.needs_recovery)
    found: list[DemoRow] = []
    victim: Image | None = None
    for (defense, knowledge), (title, detail) in rows.items():
        shots = []
        for planned in known.cells:
            cell = planned.cell
            if (cell.defense_id, cell.knowledge) != (defense, knowledge):
                continue
            record = records[next(planned.trials())]
            image, truth = _images(run, record)
            victim = truth if victim is None else victim
            shots.append(
                Shot(
                    attacker=cell.label.split(",")[0],
                    image=image,
                    mse=record["mse_raw"],
                    exact=succeeded(exact, record),
                    rank=record["rank"],
                )
            )
        found.append(DemoRow(title=title, detail=detail, shots=tuple(shots)))
    assert victim is not None, "every trial keeps its victim"
    return victim, found


def _images(run: Run, record: Record) -> tuple[Image | None, Image | None]:
    """Reconstruction and victim of a trial; None for a trial that ended in an error."""
    place = record["host"]["arrays"]
    if place is None:
        return None, None
    arrays, row = run.arrays(place["file"], place["digest"]), int(place["row"])
    inputs, truth = arrays["inputs"][row], arrays["truth"][row]
    return np.asarray(inputs, dtype=np.float32), np.asarray(truth, dtype=np.float32)


def render(victim: Image, rows: Sequence[DemoRow], legend: Sequence[str]) -> bytes:
    """The PNG; the same rows give the same bytes."""
    with matplotlib.style.context("default"):
        place = _layout(rows, len(legend))
        sheet = Drawing(place.width, place.height)
        for left, name in zip(
            place.lefts,
            ("the image", *(shot.attacker for shot in rows[0].shots)),
            strict=True,
        ):
            middle = left + SIDE / 2
            sheet.text(middle, MARGIN, name, size=9, weight="bold", across="center")
        for number, row in enumerate(rows):
            top = place.tops[number]
            sheet.rule(MARGIN, place.width - MARGIN, top - TITLE - 7)
            sheet.text(MARGIN, top - TITLE, row.title, size=10, weight="bold")
            sheet.text(MARGIN, top - TITLE + 20, row.detail, size=8, colour=FAINT)
            draw_picture(sheet, place.box(number, 0), Picture(image=victim, caption=""))
            for column, shot in enumerate(row.shots, start=1):
                _shot(sheet, place.box(number, column), shot)
        bottom = place.height - MARGIN - LINE * len(legend)
        for number, line in enumerate(legend):
            sheet.text(MARGIN, bottom + LINE * number, line, size=8, colour=FAINT)
        return sheet.figure.png()


def _shot(sheet: Drawing, box: Box, shot: Shot) -> None:
    draw_picture(sheet, box, Picture(image=shot.image, caption="", success=shot.exact))
    error, exact, named = shot.words
    lines = (f"MSE {error}", f"exact: {exact}", f"named: {named.replace('place ', '#')}")
    for number, line in enumerate(lines):
        strong = (shot.exact, shot.named)[number - 1] if number else False
        sheet.text(
            box.left + 8, box.top + SIDE + 2 + LINE * number, line,
            size=8.5, weight="bold" if strong else "normal", colour=INK,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """Where everything stands, in whole pixels."""

    width: int
    height: int
    lefts: tuple[int, ...]
    tops: tuple[int, ...]

    def box(self, row: int, column: int) -> Box:
        return Box(self.lefts[column], self.tops[row], SIDE, SIDE)


def _layout(rows: Sequence[DemoRow], legend_lines: int) -> _Layout:
    lefts = tuple(MARGIN + number * (SIDE + GAP) for number in range(len(rows[0].shots) + 1))
    step = TITLE + SIDE + CAPTION + GAP
    tops = tuple(MARGIN + HEAD + TITLE + number * step for number in range(len(rows)))
    return _Layout(
        width=whole(lefts[-1] + SIDE + MARGIN),
        height=whole(MARGIN + HEAD + step * len(rows) + LINE * legend_lines + 2 * MARGIN),
        lefts=lefts,
        tops=tops,
    )


def wrapped(text: str) -> list[str]:
    """Lines that fit under the rows."""
    return textwrap.wrap(text, LETTERS)
