"""What answers to a captured leak are worth: a table with the columns of a report, and pictures.

Inputs are compared in units of their range: as if it were [0, 1], which it is for most images.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from leakbench import frames, givens
from leakbench.attacking import Answer
from leakbench.captured import CapturedLeak, Examples
from leakbench.data import Dataset
from leakbench.data.features import Feature
from leakbench.errors import LeakbenchError, require_at_least, unknown_name
from leakbench.judging import blame, features_without_gradient, flags, measure, plain
from leakbench.metrics.mse import mse
from leakbench.metrics.rules import make_rule, succeeded
from leakbench.mixed_rows import in_units
from leakbench.victims import Victims, label_overlap

if TYPE_CHECKING:
    import pandas

    from leakbench.report.drawing import Picture, Sheet

STRICT = make_rule(kind="strict", name="strict", parameters={"threshold": 0.01})
"""The rule of the suites: clamped MSE below 0.01, and below a quarter of the best trivial guess."""

IDENTIFIED = make_rule(kind="identified", name="identified")
"""The victim is the nearest of all candidates to what was reconstructed."""

SHOWN = 8
"""Rows of a gallery where nothing is said."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttackResult:
    """What attacks made of a leak; `score` and `show` say what it is worth."""

    leak: CapturedLeak
    answers: tuple[Answer, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader should know, one sentence each: of the leak, then of the attacks."""
        skipped = tuple(
            f"{each.name} did not run: {each.reason}" for each in self.answers if each.reason
        )
        return tuple(
            dict.fromkeys(
                (
                    *self.leak.notes,
                    *(note for each in self.answers for note in each.notes),
                    *skipped,
                )
            )
        )

    def __getitem__(self, name: str) -> Answer:
        """The answer of an attack by its name."""
        for each in self.answers:
            if each.name == name:
                return each
        raise unknown_name("attack", name, [each.name for each in self.answers], "result")

    def score(
        self,
        x: Tensor | None = None,
        candidates: Tensor | tuple[Tensor, Tensor] | None = None,
    ) -> pandas.DataFrame:
        """One row an example and attack, with the columns of a report's records.

        Metrics are in units of the input range. `rank` and `identified` are among the victims' own
        examples and `candidates`; missing where there are none. `strict` needs a baseline: the
        attack's start, or an image made of `candidates` or public inputs.

        Args:
            x: what is compared with; None: the examples behind the leak.
            candidates: (N, *input shape) other inputs of the kind, with (N,) labels if they are
                known; None: those that the leak was given, else its public inputs.

        Raises:
            LeakbenchError: shapes that are not those of the leak.
        """
        scale = _Scale.of(self.leak)
        truth = self.leak.truth if x is None else _shaped_as(x, self.leak.truth)
        others = self._others(candidates)
        records: list[dict[str, Any]] = []
        for each in self.answers:
            records += _records(self.leak, each, scale.unit(truth), scale, others)
        return frames.frame(records)

    def show(self, x: Tensor | None = None, *, most: int = SHOWN) -> Sheet:
        """A figure: a row a victim, a column an attack; a blue frame: recovered (`strict`).

        Args:
            x: as in `score`.
            most: rows that are shown, from the first victim on.
        """
        from leakbench.report.drawing import Column, Picture, Row, blocks_of, sheet_of
        from leakbench.report.shots import shown

        require_at_least("show", 1, most=most)
        scale = _Scale.of(self.leak)
        truth = scale.unit(self.leak.truth if x is None else _shaped_as(x, self.leak.truth))
        others = self._others(None)
        columns = [Column(head="", detail="original")]
        pictures: list[list[Picture]] = [
            [Picture(image=shown(image), caption="MSE / SSIM")]
            for image in _arrays(truth.flatten(0, 1)[:most])
        ]
        for each in self.answers:
            columns.append(
                Column(
                    head=each.name, detail=each.knowledge, row=each.name, knowledge=each.knowledge
                )
            )
            records = _records(self.leak, each, truth, scale, others)
            images = _in_place(each, truth, scale)
            for number, row in enumerate(pictures):
                row.append(_picture(records[number], None if images is None else images[number]))
        rows = [
            Row(label=(f"no. {number}", f"label {label}"), pictures=tuple(row))
            for number, (row, label) in enumerate(
                zip(pictures, self.leak.truth_labels.flatten().tolist(), strict=False)
            )
        ]
        legend = [
            f"Blue frame: recovered, {STRICT.condition}.",
            "Under each picture: raw MSE / SSIM. Pictures are clamped to the input range.",
        ]
        return sheet_of(blocks_of(columns, rows), legend)

    def _others(self, candidates: Tensor | tuple[Tensor, Tensor] | None) -> Examples | None:
        """Inputs that are not the victims', to rank among and to make baselines of."""
        if candidates is None:
            given = [each for each in (self.leak.public, self.leak.candidates) if each is not None]
            return given[0] if given else None
        return givens.examples("score", "candidates", candidates, tuple(self.leak.truth.shape[2:]))

    def __repr__(self) -> str:
        """What a notebook shows: how each attack did, not tensors."""
        lines = []
        for each in self.answers:
            if each.result is None:
                lines.append(f"{each.name}, {each.knowledge}: did not run: {each.reason}")
            else:
                ended = ", ".join(
                    f"{each.result.status.count(status)} {status}"
                    for status in dict.fromkeys(each.result.status)
                )
                lines.append(f"{each.name}, {each.knowledge}: {ended} in {each.seconds:.1f} s")
        return "\n".join(["AttackResult", *lines, *(f"- {note}" for note in self.notes)])


@dataclass(frozen=True, slots=True)
class _Scale:
    """Inputs of a range as numbers of [0, 1], on the CPU; declared categories stay as they are."""

    input_range: tuple[float, float]
    features: tuple[Feature, ...]

    @classmethod
    def of(cls, leak: CapturedLeak) -> _Scale:
        return cls(leak.input_range, leak.features)

    def unit(self, inputs: Tensor) -> Tensor:
        found = inputs.detach().cpu()
        if self.input_range == (0.0, 1.0):
            return found
        if self.features:
            return in_units(found.double(), self.features, self.input_range)
        low, high = self.input_range
        return (found.double() - low) / (high - low)


def _shaped_as(x: Tensor, truth: Tensor) -> Tensor:
    x = givens.floating("score: x", x)
    if x.numel() != truth.numel() or x.shape[x.ndim - truth.ndim + 2 :] != truth.shape[2:]:
        raise LeakbenchError(
            f"score: x {tuple(x.shape)} is not of the shape of what leaked; allowed: "
            f"{tuple(truth.shape)}, or its examples one after another"
        )
    return x.reshape(truth.shape)


def _in_place(each: Answer, truth: Tensor, scale: _Scale) -> Tensor | None:
    """(m, *shape) reconstructions in the places of the truth (n, B, *shape); None without."""
    if each.result is None:
        return None
    return _victims(truth, None, ()).in_place(scale.unit(each.result.inputs))[0]


def _victims(truth: Tensor, candidates: Tensor | None, features: tuple[Feature, ...]) -> Victims:
    """The truth as trials hold it; the victims stand first among the candidates."""
    images = truth.flatten(0, 1)
    listed = images if candidates is None else torch.cat([images, candidates.to(images)])
    nothing = images[:0]
    none = torch.zeros(0, dtype=torch.int64)
    dataset = Dataset(
        name="", classes=1, class_names=(), input_shape=tuple(images.shape[1:]),
        input_range=(0.0, 1.0), candidates=listed,
        candidate_labels=torch.zeros(len(listed), dtype=torch.int64),
        candidate_indices=torch.arange(len(listed)), train=nothing, train_labels=none,
        public=nothing, public_labels=none, source="", checksum="", features=features,
    )  # fmt: skip
    numbers = torch.arange(len(images))
    return Victims(
        dataset=dataset, numbers=numbers, images=images, labels=numbers, each=truth.shape[1]
    )


def _records(
    leak: CapturedLeak, each: Answer, truth: Tensor, scale: _Scale, others: Examples | None
) -> list[dict[str, Any]]:
    """A record an example, in their order."""
    labels = leak.truth_labels.cpu()
    base = [
        {"attack": each.name, "knowledge": each.knowledge, "batch": row, "victim": image}
        for image, row in enumerate(
            torch.arange(leak.n).repeat_interleave(leak.batch_size).tolist()
        )
    ]
    if each.result is None:
        return [
            record | {"status": "skipped", "reason": each.reason, "label": label}
            for record, label in zip(base, labels.flatten().tolist(), strict=True)
        ]
    others = _others_than(truth.flatten(0, 1), others, scale)
    victims = _victims(truth, None if others is None else others.inputs, scale.features)
    images, places = victims.in_place(scale.unit(each.result.inputs))
    measured = measure(images, victims)
    start = None
    if each.start is not None:
        start = victims.in_place(scale.unit(each.start))[0]
    baselines = _baselines(truth.flatten(0, 1), labels.flatten(), start, others)
    if others is not None:
        baselines |= features_without_gradient(victims, others.inputs)
    confidence = each.result.confidence
    if confidence is not None:
        confidence = confidence.detach().cpu().gather(1, places).flatten()
    guesses = each.result.labels.detach().cpu().gather(1, places).flatten().tolist()
    found = []
    for image, record in enumerate(base):
        own = {name: plain(values[image]) for name, values in measured.numbers.items()}
        if others is None:
            own["rank"] = None
        record |= _effort(leak, each, record["batch"])
        record |= {"label": int(labels.flatten()[image]), "label_guess": guesses[image]}
        record |= own
        if confidence is not None:
            record["confidence"] = plain(float(confidence[image]))
        record["baselines"] = {name: plain(float(v[image])) for name, v in baselines.items()}
        record["identified"] = None if own["rank"] is None else succeeded(IDENTIFIED, record)
        record["strict"] = succeeded(STRICT, record)
        found.append(record)
    return found


def _effort(leak: CapturedLeak, each: Answer, row: int) -> dict[str, Any]:
    """How the attack on gradient `row` went."""
    result = each.result
    assert result is not None and each.loss_true is not None
    loss, start_loss = float(result.loss[row]), float(result.start_loss[row])
    true, ended = float(each.loss_true[row]), result.status[row]
    overlap = float(label_overlap(result.labels[[row]].cpu(), leak.truth_labels[[row]].cpu())[0])
    view = leak.views[each.knowledge]
    observed = torch.cat([value[row].flatten() for value in leak.gradients.tensors.values()])
    replays = getattr(view.observations[0].run, "replays", ())
    said = flags(
        loss=loss, loss_start=start_loss, labels_right=overlap == 1, label_known=leak.labels_known,
        no_op=False, gradient_finite=bool(torch.isfinite(observed).all()),
        gradient_zero=bool((observed == 0).all()),
        straight_through=any(replay.straight_through for replay in replays),
        stalled=ended == "stalled",
    )  # fmt: skip
    blamed = blame(loss, true)
    return {
        "status": "nan" if ended == "nan" else "diverged" if loss > start_loss else "ok",
        "reason": "",
        "ended": ended,
        "steps": int(result.steps[row]),
        "evaluations": int(result.evaluations[row]),
        "loss": plain(loss),
        "loss_start": plain(start_loss),
        "loss_true": plain(true),
        "blame": blamed,
        "labels_found": round(overlap, 6),
        "flags": [*said, "cut"] if each.cut else said,
        "seconds": round(each.seconds, 3),
    }


def _others_than(truth: Tensor, others: Examples | None, scale: _Scale) -> Examples | None:
    """Those of `others` that are none of the victims' own, to which they would be ties; None
    without any."""
    if others is None:
        return None
    inputs = scale.unit(others.inputs).to(truth.dtype)
    same = torch.zeros(len(inputs), dtype=torch.bool)
    for image in truth:
        same |= (inputs == image).flatten(1).all(dim=1)
    if bool(same.all()):
        return None
    labels = None if others.labels is None else others.labels.cpu()[~same]
    return Examples(inputs=inputs[~same], labels=labels)


def _baselines(
    truth: Tensor, labels: Tensor, start: Tensor | None, others: Examples | None
) -> dict[str, Tensor]:
    """(m,) clamped MSE of what needs no gradient, by the names of `judging.baselines_of`."""
    found: dict[str, Tensor] = {}
    if start is not None:
        found["start_image"] = mse(start, truth, clamp=True)
    if others is None:
        return found
    found["mean_image"] = mse(others.inputs.mean(dim=0).expand_as(truth), truth)
    if others.labels is not None:
        alike = [others.inputs[others.labels == label] for label in labels.tolist()]
        means = [own.mean(dim=0) if len(own) else truth[0] * math.nan for own in alike]
        found["class_mean"] = mse(torch.stack(means), truth)
    nearest = [mse(image.expand_as(others.inputs), others.inputs).amin() for image in truth]
    found["nearest_public"] = torch.stack(nearest)
    return found


def _arrays(images: Tensor) -> Sequence[Any]:
    """Images (m, *shape) for a drawing."""
    return [np.asarray(image, dtype=np.float32) for image in images.numpy()]


def _picture(record: Mapping[str, Any], image: Tensor | None) -> Picture:
    from leakbench.report.drawing import Picture
    from leakbench.report.shots import shown, under

    if image is None:
        return Picture(image=None, caption=str(record["status"]))
    error = math.inf if record["mse_raw"] is None else record["mse_raw"]
    return Picture(
        image=shown(_arrays(image[None])[0]),
        caption=under(error, record["ssim"]),
        success=bool(record["strict"]),
    )
