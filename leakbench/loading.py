"""A finished run in a notebook: its records as a table, its report, its gallery."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from leakbench import manifest
from leakbench.collecting import uncollected
from leakbench.commands.options import RUNS
from leakbench.errors import unknown_name
from leakbench.manifest import Manifest
from leakbench.records import Key, Record, Run, frame_of

if TYPE_CHECKING:
    import pandas

    from leakbench.report.album import Album
    from leakbench.report.content import Report
    from leakbench.report.drawing import Sheet
    from leakbench.report.pictures import Drawn

Format = Literal["md", "csv", "html", "json"]


@dataclass(frozen=True, kw_only=True, eq=False)
class LoadedRun:
    """A run as it was when it was loaded.

    Attributes:
        store: where its records and pictures lie.
        described: what was asked of it.
        records: its trials and trainings.
        damage: what of it is damaged and in none of these, in a sentence; "" if nothing is.
    """

    store: Run
    described: Manifest
    records: Mapping[Key, Record]
    damage: str = ""

    @property
    def name(self) -> str:
        """Of its folder."""
        return self.store.folder.name

    def frame(self) -> pandas.DataFrame:
        """One row a trial, a column a field of its record: see `frames.frame`."""
        return frame_of(self.records)

    def content(self) -> Report:
        """Everything that its report says, cell by cell."""
        return self._content

    @cached_property
    def _content(self) -> Report:
        from leakbench.report import cells

        known = self.described
        with uncollected():
            return cells.build(
                known.plan, known.cells, self.records, known.facts, known.trainings,
                damage=self.damage,
            )  # fmt: skip

    def report(self, format: Format = "md") -> str:
        """Its report as Markdown, CSV, HTML or JSON, as `leakbench report` prints it.

        Raises:
            LeakbenchError: another format.
        """
        from leakbench.report import renderings

        make = {
            "md": renderings.to_markdown, "csv": renderings.to_csv, "json": renderings.to_json,
            "html": self._page,
        }  # fmt: skip
        if format not in make:
            raise unknown_name("format", format, make, "report")
        with uncollected():
            return make[format](self.content())

    def _page(self, content: Report) -> str:
        """With its victims, the gallery that was drawn last, and every figure that has something to
        show."""
        from leakbench.report import renderings

        picture = self.store.folder / "gallery.png"
        gallery = picture.read_bytes() if picture.is_file() else None
        figures = self.drawn().all_pictures()
        spent = sum(map(len, (gallery or b"", *figures.values()))) * 4 // 3  # as base64
        album = self.album(max(renderings.PAGE_BYTES - spent, renderings.PAGE_BYTES // 4))
        return renderings.to_html(content, gallery, figures, album)

    def album(self, budget: int) -> Album:
        """Its victims, one by one, as the page shows them, in about so many bytes."""
        from leakbench.report.album_making import album_of

        known = self.described
        return album_of(self.store, known.plan, known.cells, self.records, budget)

    def drawn(self) -> Drawn:
        """What its figures are drawn from."""
        from leakbench.report.pictures import Drawn

        return Drawn(
            store=self.store, known=self.described, records=self.records, content=self.content()
        )

    def gallery(
        self,
        *,
        pick: str = "quantiles",
        ids: Sequence[int] = (),
        columns: int | None = None,
        beside: bool = False,
    ) -> Sheet:
        """What the attackers got, picture by picture, as `leakbench gallery` draws it.

        Args:
            pick: "quantiles" (the suite's), "best", "worst" or "ids". ids: numbers of victims.
            columns: methods side by side; None: as many as fit on a page.
            beside: also differences, wrong candidates and best steps.

        Raises:
            LeakbenchError: the run attacks nothing, or not these victims; another `pick`.
        """
        from leakbench.report import gallery
        from leakbench.report.kinds import Pick

        if pick not in list(Pick):
            raise unknown_name("pick", pick, tuple(Pick), "gallery")
        look = gallery.Look(pick=Pick(pick), ids=tuple(ids), columns=columns, beside=beside)
        return gallery.sheet(self.store, self.described.plan, self.described.cells, look)[0]

    def __repr__(self) -> str:
        """What a notebook shows."""
        plan = self.described.plan
        damaged = f"; damaged: {self.damage}" if self.damage else ""
        return f"Run '{self.name}' of suite {plan.name}, {len(self.records)} records{damaged}"


def load(run: str | os.PathLike[str]) -> LoadedRun:
    """A run by its folder, or by its name below `results/runs`.

    Damaged lines are left out, with a warning.

    Raises:
        LeakbenchError: there is none, or none of its manifests can be read.
    """
    found = opened(run)
    if found.damage:
        warnings.warn(found.damage, stacklevel=2)
    return found


def opened(run: str | os.PathLike[str]) -> LoadedRun:
    """As `load`, without the warning: for who says himself what is damaged."""
    store = existing(run)
    described, contents = manifest.read(store), store.contents()
    return LoadedRun(
        store=store,
        described=described,
        records=contents.records,
        damage=store.damage(contents),
    )


def existing(run: str | os.PathLike[str]) -> Run:
    """The folder of a run, found as by `load`.

    Raises:
        LeakbenchError: there is none.
    """
    folder = Path(run)
    named = RUNS / folder
    # os.path: unlike Path.exists it never raises, whatever was typed.
    return Run.existing(named if os.path.exists(named) and not os.path.exists(folder) else folder)


def loaded(run: str | os.PathLike[str] | LoadedRun) -> LoadedRun:
    """A run that may be loaded already."""
    return run if isinstance(run, LoadedRun) else load(run)
