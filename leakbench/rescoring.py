"""Judging again what was attacked before: other rules or metrics, the same reconstructions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from leakbench.data import Dataset, load
from leakbench.described import PlannedCell
from leakbench.errors import LeakbenchError
from leakbench.judging import Descent, Judge, judge_by, judged_record, unpacked
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
        by_file: dict[str, list[Record]] = {}
        for record in outdated(cell, judge, records):
            by_file.setdefault(record["host"]["arrays"]["file"], []).append(record)
        if not by_file:
            continue
        dataset = load(cell.cell.source, root)
        if cell.data not in ("", dataset.checksum):
            text = f"{cell.cell.dataset}: other data than the run's, which cannot be judged by it"
            raise LeakbenchError(f"{run.folder}: {text}")
        for file, some in by_file.items():
            yield _rejudged(run, file, some, dataset, judge)


def outdated(cell: PlannedCell, judge: Judge, records: Mapping[Key, Record]) -> list[Record]:
    """Its records that other rules or metrics judged."""
    found = [records[key] for key in ([] if cell.skip else cell.trials()) if key in records]
    return [r for r in found if r["status"] in JUDGED and r["judge"] != judge.digest]


def _rejudged(
    run: Run, file: str, records: Sequence[Record], dataset: Dataset, judge: Judge
) -> list[Record]:
    arrays = run.arrays(file)
    rows = [record["host"]["arrays"]["row"] for record in records]
    numbers = torch.tensor([record["victim"] for record in records])
    victims = Victims(
        dataset=dataset,
        numbers=numbers,
        images=dataset.candidates[numbers],
        labels=dataset.candidate_labels[numbers],
    )
    begins = all("start_image" in record["baselines"] for record in records)
    followed = "raw_lengths" in arrays
    raw, clamped = (
        [descents[row] for row in rows] if followed else [Descent() for _ in rows]
        for descents in (unpacked(kind, arrays) if followed else [] for kind in ("raw", "clamped"))
    )
    judged = judge.judge(
        torch.from_numpy(arrays["inputs"][rows]),
        victims,
        torch.from_numpy(arrays["start"][rows]) if begins else None,
        raw,
        clamped,
        [record["blame"] for record in records],
    )
    found = []
    for record, said in zip(records, judged, strict=True):
        if not followed:  # an older run: what it says of its iterates is all there is
            said |= {name: record[name] for name in ("first_step", "first_evaluations")}
        found.append(judged_record(record, said))
    return found
