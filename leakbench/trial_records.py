"""A chunk after its attack as records and arrays: what was attacked, and how it is judged."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leakbench.chunks import Chunk, ChunkResult
from leakbench.contracts import Gradients, Leak, Reconstruction
from leakbench.data import Dataset, load
from leakbench.information import Bound
from leakbench.judging import (
    Onlooker,
    blame,
    flags,
    judge_by,
    judged_record,
    member_array,
    numbers_of,
    packed,
    plain,
)
from leakbench.metrics.registry import all_metrics
from leakbench.record_types import SCHEMA
from leakbench.records import Record
from leakbench.victims import Victims, label_overlap


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackedChunk:
    """A chunk after its attack: what records and arrays are made of.

    images, places: the reconstructions after `Victims.in_place`; start: likewise, None for an
    attack that begins nowhere. straight_through: of each victim, whether the attacker's replay
    has another derivative than its own. bounds: one a trial, None where the suite does not ask.
    """

    images: Tensor
    places: Tensor
    start: Tensor | None
    chunk: Chunk
    victims: Victims
    leak: Leak
    undefended: Gradients
    straight_through: list[bool]
    result: Reconstruction
    loss_true: Tensor
    onlooker: Onlooker
    accuracy: float
    bounds: Sequence[Bound | None]

    def member_images(self) -> dict[str, Tensor]:
        """Of an attack that is made of others, their answers (m, *shape), by name."""
        return {
            name: self.victims.in_place(answer.inputs.detach().cpu())[0]
            for name, answer in self.result.members.items()
        }


def records_of(attacked: AttackedChunk) -> tuple[Record, ...]:
    """One an image, in the order of the chunk's trials."""
    chunk, victims, result = attacked.chunk, attacked.victims, attacked.result
    guesses = result.labels.detach().cpu().gather(1, attacked.places).flatten().tolist()
    labels = victims.labels.unflatten(0, (len(chunk.trials), -1))
    overlap = label_overlap(result.labels.cpu(), labels).tolist()
    observed = attacked.leak.observed.flatten().cpu()
    finite = torch.isfinite(observed).all(dim=1).tolist()
    zero = (observed == 0).all(dim=1).tolist()
    no_op = (observed == attacked.undefended.flatten().cpu()).all(dim=1).tolist()
    records = []
    for image, (of, candidate) in enumerate(chunk.images):
        row = image // victims.each  # the gradient it was behind
        loss, start_loss = float(result.loss[row]), float(result.start_loss[row])
        true = float(attacked.loss_true[row])
        ended = result.status[row]
        status = "nan" if ended == "nan" else "diverged" if loss > start_loss else "ok"
        records.append(
            _base(chunk, of, candidate, chunk.trials[row][1], victims.dataset)
            | {
                "status": status,
                "reason": "",
                "ended": ended,
                "steps": int(result.steps[row]),
                "evaluations": int(result.evaluations[row]),
                "loss": plain(loss),
                "loss_start": plain(start_loss),
                "loss_true": plain(true),
                "blame": blame(loss, true),
                "label": int(victims.labels[image]),
                "label_guess": guesses[image],
                "labels_found": round(overlap[row], 6),
                "accuracy": round(attacked.accuracy, 6),
                "flags": flags(
                    loss=loss,
                    loss_start=start_loss,
                    labels_right=overlap[row] == 1,
                    label_known=attacked.leak.labels is not None,
                    no_op=no_op[row],
                    gradient_finite=finite[row],
                    gradient_zero=zero[row],
                    straight_through=attacked.straight_through[row],
                    stalled=ended == "stalled",
                ),
            }
            | _held(attacked.bounds[row])
            | _said(attacked, image)
        )
    for record, said in zip(records, _of_members(attacked), strict=True):
        record.update(said)
    judged = judge_by(chunk.rules, chunk.root).judge(
        attacked.images, victims, attacked.start, attacked.onlooker.raw,
        attacked.onlooker.clamped, [record["blame"] for record in records],
    )  # fmt: skip
    return tuple(map(judged_record, records, judged))


def _of_members(attacked: AttackedChunk) -> list[Record]:
    """Of each image: whose answer it is, and the loss, effort and metrics of every member's."""
    victims, result = attacked.victims, attacked.result
    if not result.members:
        return [{} for _ in victims.numbers]
    found = []
    numbers = numbers_of(attacked.member_images(), victims, attacked.chunk.root)
    for image, own in enumerate(numbers):
        row = image // victims.each
        for name, answer in result.members.items():
            own[name] |= {
                "loss": plain(float(answer.loss[row])),
                "evaluations": float(answer.evaluations[row]),
            }
        found.append({"member": result.chosen[row], "members": own})
    return found


def _base(chunk: Chunk, of: int, candidate: int, batch: int, dataset: Dataset) -> Record:
    """Who a record is about; `batch`: the first image of those behind the same gradient."""
    cell = chunk.cells[of]
    return {
        "schema": SCHEMA,
        "identity": chunk.identities[of],
        "dataset": cell.dataset,
        "row": cell.row,
        "attack": cell.attack,
        "knowledge": cell.knowledge,
        "network": chunk.network,
        "victim": candidate,
        "batch": batch,
        "source_index": int(dataset.candidate_indices[candidate]),
    }


def _said(attacked: AttackedChunk, image: int) -> Record:
    """How sure the attack is of an image, if it says so."""
    confidence = attacked.result.confidence
    if confidence is None:
        return {}
    row, place = divmod(image, attacked.victims.each)
    own = confidence.detach().cpu()[row, attacked.places[row, place]]
    return {"confidence": plain(float(own))}


def _held(bound: Bound | None) -> Record:
    """What a leak held, for its record."""
    if bound is None:
        return {}
    return {
        "bound_unbiased": plain(bound.unbiased),
        "bound_attainable": plain(bound.attainable),
        "jacobian_rank": plain(bound.rank),
        "jacobian_condition": plain(bound.condition),
    }


def failed(chunk: Chunk, status: str, reason: str) -> ChunkResult:
    """Records for a chunk that came to nothing: status "oom", "timeout" or "error"."""
    dataset = load(chunk.cells[0].source, chunk.root)
    each = chunk.cells[0].images_a_gradient
    measured: dict[str, Any] = dict.fromkeys(
        ("steps", "evaluations", "loss", "loss_start", "loss_true", "label_guess", "labels_found",
         "accuracy", "arrays", *all_metrics())
    )  # fmt: skip
    records = tuple(
        _base(chunk, of, candidate, chunk.trials[image // each][1], dataset)
        | measured
        | {
            "status": status,
            "reason": reason,
            "ended": "",
            "label": int(dataset.candidate_labels[candidate]),
            "unmeasured": {},
            "judge": "",
            "blame": "",
            "baselines": {},
            "first_step": {},
            "first_evaluations": {},
            "flags": [],
        }
        for image, (of, candidate) in enumerate(chunk.images)
    )
    return ChunkResult(records=records, arrays={})


def arrays_of(
    attacked: AttackedChunk, records: tuple[Record, ...]
) -> dict[str, dict[str, np.ndarray]]:
    """One file a cell and set of victims; every record is told its file and row."""
    chunk, victims, onlooker = attacked.chunk, attacked.victims, attacked.onlooker
    start, _ = victims.in_place(attacked.result.start_inputs.detach().cpu())
    files: dict[str, dict[str, np.ndarray]] = {}
    images, members = chunk.images, attacked.member_images()
    for number, identity in enumerate(chunk.identities):
        rows = [row for row, (of, _) in enumerate(images) if of == number]
        if not rows:
            continue
        candidates = [images[row][1] for row in rows]
        which = hashlib.sha256(repr(candidates).encode()).hexdigest()[:12]
        name = f"{identity[:20]}-{which}.npz"
        traces = [onlooker.traces[row // victims.each] for row in rows]
        trace = np.full((len(rows), max(map(len, traces))), np.nan, dtype=np.float64)
        for place, (row, values) in enumerate(zip(rows, traces, strict=True)):
            trace[place, : len(values)] = values
            records[row]["arrays"] = {"file": name, "row": place}
        snapshots = [onlooker.snapshots[step][rows].numpy() for step in onlooker.snapshot_steps]
        shape = victims.images[rows].shape
        files[name] = {
            "victims": np.array(candidates),
            **_truth(victims, rows),
            "inputs": attacked.images[rows].numpy(),
            "start": start[rows].numpy(),
            "snapshot_steps": np.array(onlooker.snapshot_steps, dtype=np.int64),
            "snapshots": np.array(snapshots, dtype=np.float32).reshape(len(snapshots), *shape),
            "trace": trace,
            **{member_array(name): found[rows].numpy() for name, found in members.items()},
            **packed("raw", [onlooker.raw[row] for row in rows]),
            **packed("clamped", [onlooker.clamped[row] for row in rows]),
        }
    return files


def _truth(victims: Victims, rows: list[int]) -> dict[str, np.ndarray]:
    """What a gallery shows beside reconstructions, so that it needs no data: the images (m, *shape)
    with the names of their classes (m,), and the mean public image (*shape)."""
    labels = victims.labels[rows].tolist()
    return {
        "truth": victims.images[rows].numpy(),
        "class_names": np.array([victims.dataset.class_name(label) for label in labels]),
        "mean_image": victims.dataset.public.mean(dim=0).numpy(),
    }
