"""A submission against a pack's answers: the same metrics and rules as in runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from leakbench.data import Dataset, load
from leakbench.errors import LeakbenchError
from leakbench.judging import Descent, Judge, judge_by
from leakbench.leaderboard import answers, submissions
from leakbench.leaderboard.packs import SCHEMA, PackedLeak
from leakbench.leaderboard.scores import MOST_DECIBELS, Row, Score, Victim
from leakbench.metrics.rules import succeeded
from leakbench.mixed_rows import in_units
from leakbench.statistics import median_interval, rate_interval
from leakbench.victims import Victims, label_overlap


def score(folder: Path, kept: Path, root: Path | None = None) -> Score:
    """Judge the submission in `folder` by the answers file `kept`.

    root: the folder of the full data, which baselines and candidates are taken from.

    Raises:
        LeakbenchError: see `submissions.read` and `answers.read`; data that are not those that the
            pack was made of.
    """
    known = answers.read(kept)
    opened = submissions.read(folder, known.pack)
    judge = judge_by(known.rules, root)
    judged = {leak.id: _judged(leak, known, opened, judge, root) for leak in opened.leaks}
    rows = []
    for row, leaks in known.pack.rows.items():
        own = [(leak, judged[leak.id]) for leak in leaks if leak.id in judged]
        if own:
            rows.append(_row(row, leaks, own, judge))
    return Score(
        schema=SCHEMA,
        kind="score",
        pack=known.pack.checksum,
        pack_name=known.pack.name,
        pack_title=known.pack.title,
        counts=known.pack.counts,
        submission=opened.said,
        judge=judge.digest,
        rows=tuple(rows),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """records: one an input, with the numbers of all metrics; labels: share of them found."""

    records: Sequence[Mapping[str, Any]]
    labels: float | None


def _judged(
    leak: PackedLeak,
    known: answers.Answers,
    opened: submissions.OpenSubmission,
    judge: Judge,
    root: Path | None,
) -> _Judged:
    dataset = _dataset(leak, known, root)
    victims = _victims(leak, known, dataset)
    guesses = torch.from_numpy(opened.inputs(leak))
    images, _ = victims.in_place(_unit(guesses, dataset))
    images = images.to(victims.images.dtype)
    nothing = [Descent() for _ in victims.numbers]
    found = judge.judge(images, victims, None, nothing, nothing, [""] * len(nothing))
    labels = opened.labels(leak)
    right = None
    if labels is not None:
        truth = victims.labels.unflatten(0, leak.shape[:2])
        right = float(label_overlap(torch.from_numpy(labels), truth).mean())
    return _Judged(records=[{**each, "status": "ok"} for each in found], labels=right)


def _dataset(leak: PackedLeak, known: answers.Answers, root: Path | None) -> Dataset:
    data = known.data[leak.id]
    dataset = load(data.source, root)
    if dataset.checksum != data.checksum:
        raise LeakbenchError(
            f"{known.arrays.path}, leak '{leak.id}': made of other data than '{data.dataset}' is "
            f"here; allowed: those of checksum {data.checksum[:16]}..."
        )
    return dataset


def _victims(leak: PackedLeak, known: answers.Answers, dataset: Dataset) -> Victims:
    """The truth, which must be where the answers say that it is from."""
    numbers = torch.from_numpy(known.arrays.load(f"numbers/{leak.id}").copy()).flatten()
    truth = torch.from_numpy(known.arrays.load(f"inputs/{leak.id}").copy()).flatten(0, 1)
    inside = bool(((numbers >= 0) & (numbers < len(dataset.candidates))).all())
    if not inside or not torch.equal(dataset.candidates[numbers], truth):
        text = f"leak '{leak.id}': the originals are not those of '{dataset.name}'"
        raise LeakbenchError(f"{known.arrays.path}, {text}")
    return Victims(
        dataset=dataset,
        numbers=numbers,
        images=truth,
        labels=dataset.candidate_labels[numbers],
        each=leak.batch_size,
    )


def _unit(inputs: Tensor, dataset: Dataset) -> Tensor:
    """Inputs in units of their range, as metrics take them; float64."""
    low, high = dataset.input_range
    if (low, high) == (0.0, 1.0):
        return inputs
    if dataset.features:
        return in_units(inputs, dataset.features, dataset.input_range)
    return (inputs - low) / (high - low)


def _row(
    row: str,
    leaks: Sequence[PackedLeak],
    own: Sequence[tuple[PackedLeak, _Judged]],
    judge: Judge,
) -> Row:
    """All networks of a row together; a network that was not answered counts as failed."""
    by_leak = {leak.id: judged for leak, judged in own}
    rates = {}
    for rule in judge.rules:
        outcomes = [
            [succeeded(rule, record) for record in by_leak[leak.id].records]
            if leak.id in by_leak
            else [False] * (leak.victims * leak.batch_size)
            for leak in leaks
        ]
        groups = [
            [place // leak.batch_size for place in range(leak.victims * leak.batch_size)]
            for leak in leaks
        ]
        rates[rule.name] = rate_interval(outcomes, groups=groups)
    records = [judged.records for _, judged in own]
    found = [judged.labels for _, judged in own if judged.labels is not None]
    first = leaks[0]
    return Row(
        row=row,
        label=first.label,
        dataset=first.dataset,
        defense=first.defense.name,
        guarantee=first.defense.guarantee,
        networks=len(leaks),
        answered=len(own),
        inputs=sum(leak.victims * leak.batch_size for leak in leaks),
        rates=rates,
        mse=median_interval([_errors(each) for each in records]),
        psnr=median_interval([_decibels(each) for each in records]),
        labels=fmean(found) if found else None,
        mean_image=fmean(r["baselines"]["mean_image"] for each in records for r in each),
        victims=tuple(
            Victim(
                leak=leak.id,
                place=place,
                mse=record["mse_clamped"],
                psnr=record["psnr"],
                ssim=record["ssim"],
                rank=record["rank"],
                passed=tuple(rule.name for rule in judge.rules if succeeded(rule, record)),
            )
            for leak, judged in own
            for place, record in enumerate(judged.records)
        ),
    )


def _errors(records: Sequence[Mapping[str, Any]]) -> list[float]:
    """Clamped MSE of all inputs, which are finite."""
    return [float(record["mse_clamped"]) for record in records]


def _decibels(records: Sequence[Mapping[str, Any]]) -> list[float]:
    """PSNR of all inputs; of one without any error, which has none, `MOST_DECIBELS`."""
    values = (MOST_DECIBELS if r["psnr"] is None else float(r["psnr"]) for r in records)
    return [min(value, MOST_DECIBELS) for value in values]
