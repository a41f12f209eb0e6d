"""Single pictures of a gallery: what an attacker returned, and what stands beside it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leakbench.errors import LeakbenchError
from leakbench.metrics.pixels import squared_error, structural_similarity
from leakbench.records import Record
from leakbench.report.drawing import Image, Picture
from leakbench.report.measured import LabelledRule
from leakbench.report.victims import Shelf, Victim
from leakbench.report.words import compact
from leakbench.spec import JUDGED, Cell

NOTHING = Picture(image=None, caption="")


def shown(image: Image | None) -> Image | None:
    """An image as it is; a row of a table as gray fields, line by line, the rest of them white."""
    if image is None or image.ndim == 3:
        return image
    side = math.ceil(math.sqrt(image.size))
    fields = np.ones(side * math.ceil(image.size / side), dtype=np.float32)
    fields[: image.size] = image.ravel()
    return fields.reshape(1, -1, side)


def under(mse: float, ssim: float | None) -> str:
    """What stands under a picture: raw MSE / SSIM."""
    known = "-" if ssim is None or math.isnan(ssim) else f"{round(ssim, 2) + 0.0:.2f}"
    return f"{compact(mse)} / {known}"


def measured(image: Image | None, truth: Image, *, above: str = "") -> Picture:
    """A picture that no attacker returned, measured like the others; `above` starts its caption."""
    if image is None or image.shape != truth.shape:
        return NOTHING
    similarity = structural_similarity(image, truth) if image.ndim == 3 else None
    caption = above + under(squared_error(image, truth), similarity)
    return Picture(image=shown(image), caption=caption, apart=True)


def returned(record: Record | None, rule: LabelledRule | None, shelf: Shelf) -> Picture:
    """What an attacker returned, framed where `rule` calls it a success."""
    if record is None:
        return NOTHING
    if record["status"] not in JUDGED:
        return Picture(image=None, caption=str(record["status"]))
    mse = math.inf if record["mse_raw"] is None else record["mse_raw"]
    return Picture(
        image=shown(shelf.picture(record, "inputs")),
        caption=under(mse, record["ssim"]),
        success=rule is not None and rule.met(record),
    )


def difference(record: Record | None, truth: Image, shelf: Shelf) -> Picture:
    """Absolute difference of the original and what was returned, clamped: black is none."""
    image = None if record is None else shelf.picture(record, "inputs")
    if image is None or image.shape != truth.shape:
        return NOTHING
    apart = np.abs(np.clip(image, 0.0, 1.0) - truth)
    known = apart[np.isfinite(apart)]
    caption = f"largest {compact(float(known.max()))}" if known.size else "not finite"
    return Picture(image=shown(apart), caption=caption, apart=True)


def best_step(record: Record | None, truth: Image, shelf: Shelf) -> Picture:
    """Of the steps that the run kept, the one nearest to the original: an attacker cannot choose
    it. No picture where none is nearer than what he returned."""
    kept = {} if record is None else shelf.arrays(record)
    if record is None or not {"snapshots", "snapshot_steps", "inputs"} <= kept.keys():
        return NOTHING
    row = record["host"]["arrays"]["row"]
    if kept["inputs"].shape[1:] != truth.shape:
        return NOTHING
    stack = kept["snapshots"][:, row : row + 1].reshape(-1, *truth.shape)  # none of no such row
    errors = [squared_error(image, truth) for image in stack]
    sound = [index for index, error in enumerate(errors) if math.isfinite(error)]
    if not sound:
        return NOTHING
    best = min(sound, key=errors.__getitem__)
    end = record["mse_raw"]
    if end is not None and end <= errors[best]:
        return Picture(image=None, caption="none better than what was returned")
    image = np.asarray(stack[best], dtype=np.float32)
    return measured(image, truth, above=f"step {int(kept['snapshot_steps'][best])}\n")


def dataset_of(cell: Cell, checksum: str) -> Any:
    """The data that a cell attacked, `data.datasets.Dataset`: needs them, and so torch.

    checksum: of the data that were attacked, "" where a run does not say.

    Raises:
        LeakbenchError: they are not here, or others are.
    """
    from leakbench.data import load

    found = load(cell.source)
    if checksum and found.checksum != checksum:
        raise LeakbenchError("the data here are not those of the run")
    return found


class Candidates:
    """Among whom a victim is named."""

    def __init__(self, cell: Cell, checksum: str, shelf: Shelf) -> None:
        """checksum: as in `dataset_of`."""
        self._shelf = shelf
        self._dataset: Any = None
        try:
            self._dataset = dataset_of(cell, checksum)
        except LeakbenchError as error:
            shelf.warn(f"gallery: candidates of {cell.dataset} cannot be shown: {error}")

    def nearest(self, record: Record | None, victim: Victim) -> Picture:
        """The candidate that is nearest to what was returned, clamped, where it is a wrong one."""
        image = None if record is None else self._shelf.picture(record, "inputs")
        rank = None if record is None else record["rank"]
        if image is None or rank is None:
            return NOTHING
        if rank == 1:
            return Picture(image=None, caption="the victim: named rightly")
        if not np.isfinite(image).all():
            return Picture(image=None, caption="none: not finite")
        if self._dataset is None:
            return Picture(image=None, caption="data are not here")
        candidates = self._dataset.candidates.numpy()
        if image.shape != candidates.shape[1:] or victim.record["victim"] >= len(candidates):
            return Picture(image=None, caption="other data than the run's")
        number = nearest_other(image, candidates, victim.record["victim"])
        name = self._dataset.class_name(int(self._dataset.candidate_labels[number]))
        return Picture(
            image=shown(candidates[number]),
            caption=f"wrong: no. {number}\nclass {name}\nvictim is place {rank}",
            apart=True,
        )


def nearest_other(image: Image, candidates: NDArray[Any], victim: int) -> int:
    """Number of the candidate with the smallest distance to the clamped image, the victim apart.

    Args:
        image: (*shape), finite. candidates: (N, *shape). victim: its number among them.
    """
    clamped = np.clip(image, 0.0, 1.0).astype(np.float64)
    distances = np.array([np.square(each - clamped).sum() for each in candidates])
    distances[victim] = np.inf
    return int(distances.argmin())
