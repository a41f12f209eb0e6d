"""What the harness says about reconstructions; attacks never see any of it.

Attacking and judging are apart. While an attack runs, an `Onlooker` notes how near its iterates
come; a `Judge` says afterwards what that is worth, under rules and metrics that may change without
attacking again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leakbench.metrics.contract import Comparison, NotMeasured
from leakbench.metrics.features import deviations, share_right
from leakbench.metrics.mse import mse
from leakbench.metrics.registry import all_metrics, judge_versions
from leakbench.metrics.rules import BEST_BASELINE, TRIVIAL, SuccessRule, make_rule
from leakbench.mixed_rows import decoded, encoded
from leakbench.spec import Rule, canonical
from leakbench.victims import Victims


def baselines_of(victims: Victims, start: Tensor | None) -> dict[str, Tensor]:
    """Clamped MSE (m,) of what needs no gradient; start (m, *shape); of rows also the share of
    their features that it has right.

    start_image: the attack's own start; mean_image: mean of the public images; class_mean:
    mean of the public images of the true class; nearest_public: the closest public image.
    """
    public = victims.dataset.public.to(victims.images)
    means = torch.stack(
        [
            public[victims.dataset.public_labels == c].mean(dim=0)
            for c in range(victims.dataset.classes)
        ]
    )
    whole = public.mean(dim=0).expand_as(victims.images)
    # One by one: a product of matrices rounds by how many victims are in the chunk.
    nearest = [mse(image.expand_as(public), public).amin() for image in victims.images]
    found = {
        "mean_image": mse(whole, victims.images),
        "class_mean": mse(means[victims.labels], victims.images),
        "nearest_public": torch.stack(nearest),
    }
    if start is not None:
        found["start_image"] = mse(start, victims.images, clamp=True)
    return found | features_without_gradient(victims, public)


def features_without_gradient(victims: Victims, public: Tensor) -> dict[str, Tensor]:
    """Share of features right (m,) of what needs no gradient; {} for images.

    mode_features: the commonest value of each category and the mean of each number among the
    public rows; nearest_features: the closest public row by mean squared error.
    """
    features = victims.dataset.features
    if not features:
        return {}
    spread = deviations(victims.dataset.candidates)
    values = decoded(public, features)
    usual = values.mean(dim=0)
    for place, feature in enumerate(features):
        if feature.kind == "category":
            usual[place] = values[:, place].mode().values
    guess = encoded(usual, features).expand_as(victims.images)
    nearest = [public[mse(row.expand_as(public), public).argmin()] for row in victims.images]
    return {
        "mode_features": share_right(guess, victims.images, features, spread),
        "nearest_features": share_right(torch.stack(nearest), victims.images, features, spread),
    }


def best_trivial(baselines: Mapping[str, Tensor]) -> Tensor:
    """(n,) smallest clamped MSE of the trivial baselines."""
    return torch.stack([baselines[name] for name in TRIVIAL if name in baselines]).amin(dim=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What all metrics say about m images.

    Attributes:
        numbers: Name of a metric -> m numbers; all NaN where it was not measured.
        unmeasured: Name of a metric -> why it was not, in words that end a sentence.
    """

    numbers: Mapping[str, list[float]]
    unmeasured: Mapping[str, str]


def measure(images: Tensor, victims: Victims, root: Path | None = None) -> Measured:
    """Every metric of every image (m, *shape).

    root: the folder of the full data, where a metric may find weights.
    """
    compared = Comparison(
        images=images,
        reference=victims.images,
        candidates=victims.dataset.candidates,
        numbers=victims.numbers,
        data_root=root,
        features=victims.dataset.features,
    )
    numbers: dict[str, list[float]] = {}
    unmeasured: dict[str, str] = {}
    for name, metric in all_metrics().items():
        found = metric.function(compared)
        if isinstance(found, NotMeasured):
            unmeasured[name] = found.reason
            numbers[name] = [math.nan] * len(images)
        else:
            numbers[name] = found.tolist()
    return Measured(numbers=numbers, unmeasured=unmeasured)


def member_array(name: str) -> str:
    """What the array with the answers of a member of the attack is called."""
    return f"member_{name}"


def numbers_of(
    members: Mapping[str, Tensor], victims: Victims, root: Path | None
) -> list[dict[str, dict[str, float | None]]]:
    """What all metrics say of each member's answers (m, *shape): for every image, by member."""
    measured = {name: measure(images, victims, root).numbers for name, images in members.items()}
    return [
        {
            name: {metric: plain(values[image]) for metric, values in numbers.items()}
            for name, numbers in measured.items()
        }
        for image in range(len(victims.numbers))
    ]


@dataclass(slots=True)
class Descent:
    """When the iterates of one image came nearer to it than ever before.

    steps, evaluations: done by then, 0 at the start. errors: mean squared error, falling. That is
    all one needs to say when it first was below any threshold.
    """

    steps: list[int] = field(default_factory=list)
    evaluations: list[int] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)

    def add(self, step: int, evaluations: int, error: float) -> None:
        """Note an iterate, if it is nearer; nan never is."""
        if error < (self.errors[-1] if self.errors else math.inf):
            self.steps.append(step)
            self.evaluations.append(evaluations)
            self.errors.append(error)


def packed(kind: str, descents: Sequence[Descent]) -> dict[str, np.ndarray]:
    """Descents end to end; `KIND_lengths` says how many entries each has."""
    return {
        f"{kind}_lengths": np.array([len(each.steps) for each in descents], dtype=np.int64),
        f"{kind}_steps": np.array([x for each in descents for x in each.steps], dtype=np.int64),
        f"{kind}_evaluations": np.array(
            [x for each in descents for x in each.evaluations], dtype=np.int64
        ),
        f"{kind}_errors": np.array([x for each in descents for x in each.errors], dtype=np.float64),
    }


def unpacked(kind: str, arrays: Mapping[str, np.ndarray]) -> list[Descent]:
    """What `packed` was given."""
    cuts = arrays[f"{kind}_lengths"].cumsum()[:-1]
    columns = (
        np.split(arrays[f"{kind}_{name}"], cuts) for name in ("steps", "evaluations", "errors")
    )
    return [
        Descent(steps=steps.tolist(), evaluations=spent.tolist(), errors=errors.tolist())
        for steps, spent, errors in zip(*columns, strict=True)
    ]


@dataclass(slots=True)
class Onlooker:
    """Looks over the attack's shoulder: how near it came and when, snapshots, loss traces.

    An oracle: what it finds is reported as such and never reaches the attack. raw, clamped: one
    `Descent` an image, by mean squared errors without and with clamping.
    """

    victims: Victims
    snapshot_steps: Sequence[int]
    raw: list[Descent] = field(init=False)
    clamped: list[Descent] = field(init=False)
    snapshots: dict[int, Tensor] = field(init=False)
    traces: list[list[float]] = field(init=False)

    def __post_init__(self) -> None:
        m = len(self.victims.numbers)
        self.raw, self.clamped = ([Descent() for _ in range(m)] for _ in range(2))
        empty = torch.full_like(self.victims.images, math.nan)
        self.snapshots = {step: empty.clone() for step in self.snapshot_steps}
        self.traces = [[] for _ in range(m // self.victims.each)]

    def look(self, rows: Tensor, steps: Tensor, evaluations: Tensor, inputs: Tensor) -> Tensor:
        """Note iterates `inputs` (k, B, *shape) of the gradients `rows`; all on the CPU.

        Returns them as (k * B, *shape), each in the place of the image it is compared with.
        """
        numbers = self.victims.rows(rows)
        truth = self.victims.images[numbers]
        images, _ = self.victims.in_place(inputs, rows)
        raw, clamped = mse(images, truth), mse(images, truth, clamp=True)
        each = self.victims.each
        effort = zip(steps.tolist(), evaluations.tolist(), strict=True)
        spent = [pair for pair in effort for _ in range(each)]
        columns = zip(numbers.tolist(), spent, raw.tolist(), clamped.tolist(), strict=True)
        for row, effort_so_far, mse_raw, mse_clamped in columns:
            self.raw[row].add(*effort_so_far, mse_raw)
            self.clamped[row].add(*effort_so_far, mse_clamped)
        return images

    def watch(
        self, rows: Tensor, steps: Tensor, evaluations: Tensor, inputs: Tensor, losses: Tensor
    ) -> None:
        """See `contracts.Watch`."""
        rows, steps, evaluations = rows.cpu(), steps.cpu(), evaluations.cpu()
        images = self.look(rows, steps, evaluations, inputs.detach().cpu())
        by_gradient = images.unflatten(0, (len(rows), -1))
        for row, step, own, loss in zip(
            rows.tolist(), steps.tolist(), by_gradient, losses.tolist(), strict=True
        ):
            self.traces[row].append(loss)
            if step in self.snapshots:
                first = row * self.victims.each
                self.snapshots[step][first : first + self.victims.each] = own


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Rules and metrics, applied to what attacks returned."""

    rules: tuple[SuccessRule, ...]
    data_root: Path | None = None

    @property
    def digest(self) -> str:
        """Which judge it is: another rule, or another version of a metric, makes another."""
        rules = [{"kind": rule.kind, **dataclasses.asdict(rule)} for rule in self.rules]
        text = canonical({"rules": rules, "versions": judge_versions()})
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def judge(
        self,
        images: Tensor,
        victims: Victims,
        start: Tensor | None,
        raw: Sequence[Descent],
        clamped: Sequence[Descent],
        blames: Sequence[str],
    ) -> list[dict[str, Any]]:
        """What a record says of each image beside what was attacked.

        images, start (m, *shape), in the places of the victims' images; start: None for an attack
        that begins nowhere. raw, clamped: their descents. blames: who is to blame where an image
        was not recovered, see `blame`.
        """
        measured, digest = measure(images, victims, self.data_root), self.digest
        baselines = baselines_of(victims, start)
        best = best_trivial(baselines).tolist()
        pixels = images[0].numel()
        found = []
        for image in range(len(images)):
            own = {name: plain(values[image]) for name, values in measured.numbers.items()}
            first = {
                rule.name: _first(rule, raw[image], clamped[image], pixels, best[image])
                for rule in self.rules
                if rule.stepwise
            }
            found.append(
                own
                | {
                    "unmeasured": dict(measured.unmeasured),
                    "judge": digest,
                    "baselines": {k: plain(float(v[image])) for k, v in baselines.items()},
                    "first_step": {name: spent[0] for name, spent in first.items()},
                    "first_evaluations": {name: spent[1] for name, spent in first.items()},
                    "blamed": "" if self._recovered(own, best[image]) else blames[image],
                }
            )
        return found

    def _recovered(self, numbers: Mapping[str, float | None], best_baseline: float) -> bool:
        """By the first rule that asks for the image itself."""
        exact = next((rule for rule in self.rules if rule.needs_recovery), None)
        return exact is not None and exact.judge({**numbers, BEST_BASELINE: best_baseline})


def judge_by(rules: Sequence[Rule], root: Path | None) -> Judge:
    """Who judges by a suite's rules; root: the folder of the full data."""
    return Judge(rules=tuple(make_rule(**rule.judged()) for rule in rules), data_root=root)


def _first(
    rule: SuccessRule, raw: Descent, clamped: Descent, pixels: int, best_baseline: float
) -> tuple[int | None, int | None]:
    """Steps and evaluations done when an iterate first met the rule; None where none did.

    Every rule that can be followed asks for an error below something, so that its first success is
    an iterate nearer than all before.
    """
    descent = raw if rule.follows == "raw" else clamped
    for step, evaluations, error in zip(
        descent.steps, descent.evaluations, descent.errors, strict=True
    ):
        if rule.success_at(error=error, pixels=pixels, baseline=best_baseline):
            return step, evaluations
    return None, None


BLAMES = ("optimiser_failed", "fits_noise")


def blame(loss: float, loss_true: float) -> str:
    """Why an image was not recovered, if it was not: the attacker's loss at the truth tells.

    Clearly below the loss he returned: his optimiser failed. Above it: his image fits the noise
    better than the truth does. "": neither.
    """
    if loss > loss_true * 1.001 + 1e-6:
        return "optimiser_failed"
    return "fits_noise" if loss < loss_true else ""


FLAGS = (
    "label_known", "label_inferred", "label_wrong", "loss_never_fell", *BLAMES, "defense_noop",
    "gradient_nonfinite", "gradient_zero", "straight_through", "stalled",
)  # fmt: skip
"""Warnings about one trial, for the report to count, in the order of records."""


def flags(
    *,
    loss: float,
    loss_start: float,
    labels_right: bool,
    label_known: bool,
    no_op: bool,
    gradient_finite: bool,
    gradient_zero: bool,
    straight_through: bool,
    stalled: bool,
) -> list[str]:
    """Warnings that do not depend on the judge."""
    conditions = {
        "label_known": label_known,
        "label_inferred": not label_known,
        "label_wrong": not labels_right,
        "loss_never_fell": math.isfinite(loss_start) and not loss < loss_start,
        "defense_noop": no_op,
        "gradient_nonfinite": not gradient_finite,
        "gradient_zero": gradient_zero,
        "straight_through": straight_through,
        "stalled": stalled,
    }
    return [name for name, holds in conditions.items() if holds]


def judged_record(attacked: Mapping[str, Any], judged: Mapping[str, Any]) -> dict[str, Any]:
    """A record of what was attacked, said anew by a judge; other fields stay."""
    others = [name for name in attacked["flags"] if name not in BLAMES]
    blamed = [judged["blamed"]] if judged["blamed"] else []
    said = {name: value for name, value in judged.items() if name != "blamed"}
    return {**attacked, **said, "flags": sorted([*others, *blamed], key=_place_of_flag)}


def _place_of_flag(name: str) -> int:
    """In the order of records; those of another leakbench come last."""
    return FLAGS.index(name) if name in FLAGS else len(FLAGS)


def plain(value: float) -> float | None:
    """A float for a record: None when it is not finite."""
    return value if math.isfinite(value) else None
