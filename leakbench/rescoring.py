"""Judging again what was attacked before: other rules or metrics, the same reconstructions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from leakbench.data import Dataset, load
from leakbench.described import PlannedCell
from leakbench.errors import LeakbenchError
from leakbench.judging import (
    Descent,
    Judge,
    judge_by,
    judged_record,
    member_array,
    numbers_of,
    unpacked,
)
from leakbench.records import Key, Record, Run
from leakbench.spec import JUDGED, Rule
from leakbench.victims import Victims


def rejudged(
    run: Run,
    cells: Sequence[PlannedCell],
    rules: Sequence[Rule],
    records: Mapping[Key, Record],
    root: Path | None,
) -> Iterator[list[Record]]:
    """Records of `cells` that another judge judged, judged by these `rules`; a file at a time.

    root: the folder of the full data. Nothing is attacked: reconstructions come from the run.

    Raises:
        LeakbenchError: arrays or data that are not there, or are not those of the run.
    """
    judge = judge_by(rules, root)
    for cell in cells:
        by_file: dict[tuple[str, str], list[Record]] = {}
        for record in outdated(cell, judge, records):
            place = record.get("host", {}).get("arrays")
            if place is None:
                text = f"victim {record['victim']} of {record['row']}: no arrays to judge again"
                raise LeakbenchError(f"{run.folder}: {text}")
            by_file.setdefault((place["file"], place.get("digest", "")), []).append(record)
        if not by_file:
            continue
        dataset = load(cell.cell.source, root)
        if cell.data not in ("", dataset.checksum):
            text = f"{cell.cell.dataset}: other data than the run's, which cannot be judged by it"
            raise LeakbenchError(f"{run.folder}: {text}")
        for (file, digest), some in by_file.items():
            yield _rejudged(run, file, digest, some, dataset, judge)


def outdated(cell: PlannedCell, judge: Judge, records: Mapping[Key, Record]) -> list[Record]:
    """Its records that other rules or metrics judged."""
    found = [records[key] for key in ([] if cell.skip else cell.trials()) if key in records]
    digest = judge.digest
    return [r for r in found if r["status"] in JUDGED and r["judge"] != digest]


def _rejudged(
    run: Run, file: str, digest: str, records: Sequence[Record], dataset: Dataset, judge: Judge
) -> list[Record]:
    try:
        arrays = run.arrays(file, digest)
    except LeakbenchError as error:
        raise LeakbenchError(
            f"{error}; `leakbench verify {run.folder} --arrays --forget` lets `leakbench run` "
            "attack these trials again"
        ) from None
    rows = [record["host"]["arrays"]["row"] for record in records]
    begins = all("start_image" in record["baselines"] for record in records)
    of = [record["victim"] for record in records]
    members = list(records[0].get("members", {}))
    if problem := _wrong(arrays, rows, of, dataset.input_shape, begins, members):
        path = run.folder / "reconstructions" / file
        raise LeakbenchError(f"{path}: {problem}; it is not the file that the records speak of")
    numbers = torch.tensor(of)
    victims = Victims(
        dataset=dataset,
        numbers=numbers,
        images=dataset.candidates[numbers],
        labels=dataset.candidate_labels[numbers],
    )
    followed = "raw_lengths" in arrays
    raw, clamped = (
        [descents[row] for row in rows] if followed else [Descent() for _ in rows]
        for descents in (unpacked(kind, arrays) if followed else [] for kind in ("raw", "clamped"))
    )
    judged = judge.judge(
        _images(arrays, "inputs", rows),
        victims,
        _images(arrays, "start", rows) if begins else None,
        raw,
        clamped,
        [record["blame"] for record in records],
    )
    found = []
    answers = {name: _images(arrays, member_array(name), rows) for name in members}
    measured = numbers_of(answers, victims, judge.data_root)
    for record, said, own in zip(records, judged, measured, strict=True):
        if own:
            said["members"] = {name: record["members"][name] | own[name] for name in own}
        if not followed:  # an older run: what it says of its iterates is all there is
            said |= {name: record[name] for name in ("first_step", "first_evaluations")}
        found.append(judged_record(record, said))
    return found


def _images(arrays: Mapping[str, np.ndarray], name: str, rows: Sequence[int]) -> torch.Tensor:
    return torch.from_numpy(np.asarray(arrays[name][list(rows)], dtype=np.float32))


def _wrong(
    arrays: Mapping[str, np.ndarray],
    rows: Sequence[int],
    victims: Sequence[int],
    shape: tuple[int, ...],
    begins: bool,
    members: Sequence[str],
) -> str:
    """Why the arrays of a file, which go together, are not those of these victims in these rows; ""
    if they may be."""
    last = max(rows)
    images = ["inputs", *(["start"] if begins else []), *map(member_array, members)]
    kinds = ("raw", "clamped") if "raw_lengths" in arrays else ()
    columns = [
        f"{k}_{name}" for k in kinds for name in ("lengths", "steps", "evaluations", "errors")
    ]
    for name in ("victims", *images, *columns):
        if name not in arrays:
            return f"has no array '{name}'"
    for name in images:
        found = arrays[name].shape
        if found[1:] != shape or found[0] <= last:
            return f"array '{name}' has shape {found}; asked for is row {last} of {shape} each"
    known = arrays["victims"]
    if len(known) <= last or known[list(rows)].tolist() != list(victims):
        return "array 'victims' has other victims"
    return ""
