"""Whose pictures a gallery shows: victims chosen by a rule, with what was made of each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leakbench.described import PlannedCell
from leakbench.errors import LeakbenchError
from leakbench.records import Key, Record, Run
from leakbench.report.drawing import Image
from leakbench.report.kinds import Pick
from leakbench.spec import JUDGED, Cell, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """A victim's image, the name of its class, and the mean of the public images."""

    image: Image
    class_name: str
    mean: Image


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """One victim of one network.

    Attributes:
        cell, record: the trial by which it was chosen. why: "median", "worst", ...; "" where its
            number was asked for.
        original: what was to be got. alike: (row, knowledge) -> the trial there on the same victim
            of the same network.
    """

    cell: Cell
    record: Record
    why: str
    original: Original
    alike: Mapping[tuple[str, str], Record]

    @property
    def words(self) -> str:
        """Which one it is."""
        why = f"{self.why}: " if self.why else ""
        name = f"network {self.record['network']}, no. {self.record['victim']}"
        return f"{why}{name}, class {self.original.class_name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Victims of a data set; `text` says why there are no more of them."""

    dataset: str
    title: str
    cells: tuple[Cell, ...]
    victims: tuple[Victim, ...] = ()
    text: str = ""


def check_ids(run: Run, ids: Sequence[int]) -> None:
    """Refuse numbers of victims that no trial of the run is about."""
    tried = {each["victim"] for each in run.records().values() if each["status"] in JUDGED}
    if unknown := set(ids) - tried:
        raise LeakbenchError(
            f"{run.folder}: no trial of victim {spans(unknown)}; there are trials of {spans(tried)}"
        )


def choose(
    plan: Plan,
    cells: Sequence[PlannedCell],
    records: Mapping[Key, Record],
    how: Pick,
    ids: Sequence[int],
    shelf: Shelf,
) -> Chosen:
    """The victims to show of one data set, which all `cells` attack; see `Pick`."""
    text = ""
    victims: list[Victim] = []
    if how is Pick.ids:
        wanted = _by_number(cells, records, ids)
        if not wanted:
            text = _nothing(cells) if not _any(cells, records) else f"no trial of {spans(ids)}"
    else:
        reference = _reference(plan, cells, records, shelf)
        wanted = [] if reference is None else _by_quantile(plan, reference, records, how)
        if not wanted:
            text = _nothing(cells)
    for cell, chosen, why in wanted:
        alike = _alike(chosen, cells, records)
        try:
            original = shelf.original(cell, chosen, alike.values())
        except LeakbenchError as error:
            text = f"no originals: {error}"
            break
        victims.append(Victim(cell=cell, record=chosen, why=why, original=original, alike=alike))
    return Chosen(
        dataset=cells[0].cell.dataset,
        title=cells[0].title.split(",")[0],
        cells=tuple(each.cell for each in cells),
        victims=tuple(victims),
        text=text,
    )


def pick(records: Iterable[Record], quantile: float) -> Record | None:
    """The judged trial at `quantile` of the raw MSE: 0 best, 1 worst, not finite is worst of all.

    Between two trials it is the one nearer to the quantile; ties go to the worse trial.
    """
    judged = sorted((r for r in records if r["status"] in JUDGED), key=_badness)
    return judged[math.floor(quantile * (len(judged) - 1) + 0.5)] if judged else None


def quantile_words(quantile: float) -> str:
    """What the trial at a quantile is called."""
    words = {0.0: "best", 0.5: "median", 1.0: "worst"}
    return words.get(quantile, f"quantile {quantile:g}")


def spans(numbers: Iterable[int]) -> str:
    """0 to 3, 7: numbers in as few words as they take; "none"."""
    found: list[list[int]] = []
    for number in sorted(set(numbers)):
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    words = [f"{low} to {high}" if high > low else str(low) for low, high in found]
    return ", ".join(words) or "none"


MOST_SIDE = 2**14
"""Pixels; a file of arrays may promise more than can be drawn."""


def drawable(image: NDArray[Any]) -> bool:
    """Whether it is a picture of 1 or 3 channels, or a row of a table, that is not too large."""
    if image.ndim not in (1, 3) or (image.ndim == 3 and image.shape[0] not in (1, 3)):
        return False
    return bool(max(image.shape) <= MOST_SIDE)


class Shelf:
    """Pictures from the files of a run; each file is read once.

    fields: arrays that are wanted beside the usual ones; snapshots and traces are large.
    """

    def __init__(self, run: Run, warnings: list[str], fields: Sequence[str] = ()) -> None:
        self._run = run
        self._warnings = warnings
        self._fields = ("inputs", "start", "truth", "class_names", "mean_image", *fields)
        self._files: dict[str, dict[str, NDArray[Any]]] = {}

    def picture(self, record: Record, field: str) -> Image | None:
        """Field "inputs", "start" or "truth" of a trial; None where the run does not hold it, and
        with a warning where it is nothing that can be drawn."""
        found = self.entry(record, field)
        if found is None:
            return None
        if not drawable(found):
            file = record["host"]["arrays"]["file"]
            self.warn(
                f"gallery: {file}: '{field}' of shape {found.shape} cannot be drawn; pictures have "
                f"1 or 3 channels, and sides up to {MOST_SIDE}"
            )
            return None
        return np.asarray(found, dtype=np.float32)

    def original(self, cell: Cell, chosen: Record, alike: Iterable[Record]) -> Original:
        """What a trial of the cell tried to get; any on the same victim that kept it will do.

        Raises:
            LeakbenchError: None kept it, as in runs of an older leakbench, and the data are not
                here, or have no such victim.
        """
        for record in (chosen, *alike):
            image = self.picture(record, "truth")
            class_name = self.entry(record, "class_names")
            mean = self.arrays(record).get("mean_image")
            if image is not None and class_name is not None and mean is not None:
                return Original(image=image, class_name=str(class_name), mean=mean)
        from leakbench import older_runs  # brings torch

        image, class_name, mean = older_runs.original(cell, chosen["victim"])
        return Original(image=image, class_name=class_name, mean=mean)

    def entry(self, record: Record, field: str) -> Any:
        """What a field of the file holds about this trial."""
        stack = self.arrays(record).get(field)
        if stack is None:
            return None
        row = int(record["host"]["arrays"]["row"])
        return stack[row] if row < len(stack) else None

    def arrays(self, record: Record) -> dict[str, NDArray[Any]]:
        """The file of a trial, {} without one; a warning if it is no good."""
        place = (record.get("host") or {}).get("arrays")
        if place is None:
            return {}
        name = place["file"]
        if name not in self._files:
            self._files[name] = self._read(name, place.get("digest", ""))
        return self._files[name]

    def _read(self, name: str, digest: str) -> dict[str, NDArray[Any]]:
        try:
            arrays = self._run.arrays(name, digest)
        except LeakbenchError as error:
            self._warnings.append(f"gallery: {error}")
            return {}
        return {field: arrays[field] for field in self._fields if field in arrays}

    def warn(self, text: str) -> None:
        """Something could not be shown as asked."""
        if text not in self._warnings:
            self._warnings.append(text)


# ------------------------------------------------------------------------------ one data set


def _by_quantile(
    plan: Plan, reference: PlannedCell, records: Mapping[Key, Record], how: Pick
) -> list[tuple[Cell, Record, str]]:
    quantiles = {Pick.best: (0.0,), Pick.worst: (1.0,)}.get(how, plan.gallery.quantiles)
    found = []
    for quantile in quantiles:
        chosen = pick(trials_of(reference, records), quantile)
        if chosen is not None:
            found.append((reference.cell, chosen, quantile_words(quantile)))
    return found


def _by_number(
    cells: Sequence[PlannedCell], records: Mapping[Key, Record], ids: Sequence[int]
) -> list[tuple[Cell, Record, str]]:
    """In the order of the numbers, then of the networks; a trial of the first cell that has one."""
    first: dict[tuple[int, int], tuple[Cell, Record, str]] = {}
    for each in cells:
        for record in trials_of(each, records):
            if record["status"] in JUDGED:
                first.setdefault((record["victim"], record["network"]), (each.cell, record, ""))
    return [
        first[place]
        for number in dict.fromkeys(ids)
        for place in sorted(place for place in first if place[0] == number)
    ]


def _reference(
    plan: Plan, cells: Sequence[PlannedCell], records: Mapping[Key, Record], shelf: Shelf
) -> PlannedCell | None:
    """The suite's reference cell of one data set, or the first with something to show."""
    gallery = plan.gallery
    wanted = (gallery.row, gallery.knowledge)
    ordered = sorted(cells, key=lambda each: (each.cell.row, each.cell.knowledge) != wanted)
    for each in ordered:
        if pick(trials_of(each, records), 0.0) is None:
            continue
        if (each.cell.row, each.cell.knowledge) != wanted:
            shelf.warn(
                f"gallery: {each.cell.dataset}/{'/'.join(wanted)} has no trial to choose victims "
                f"by; chosen by {each.cell.row}/{each.cell.knowledge}"
            )
        return each
    return None


def _nothing(cells: Sequence[PlannedCell]) -> str:
    reason = next((each.skip for each in cells if each.skip), "")
    return f"not run: {reason}" if reason else "no trial to show yet"


def _any(cells: Sequence[PlannedCell], records: Mapping[Key, Record]) -> bool:
    return any(pick(trials_of(each, records), 0.0) is not None for each in cells)


def trials_of(planned: PlannedCell, records: Mapping[Key, Record]) -> list[Record]:
    """The trials of a cell that have a record."""
    return [records[key] for key in planned.trials() if key in records]


def _alike(
    chosen: Record, cells: Sequence[PlannedCell], records: Mapping[Key, Record]
) -> dict[tuple[str, str], Record]:
    return {
        (each.cell.row, each.cell.knowledge): record
        for each in cells
        for record in trials_of(each, records)
        if (record["network"], record["victim"]) == (chosen["network"], chosen["victim"])
    }


def _badness(record: Record) -> tuple[float, int, int]:
    value = record["mse_raw"]
    return (math.inf if value is None else value, record["network"], record["victim"])
