"""What the harness says about reconstructions; attacks never see any of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from leakbench.data import Dataset
from leakbench.metrics.contract import Comparison, NotMeasured
from leakbench.metrics.mse import mse
from leakbench.metrics.registry import all_metrics
from leakbench.metrics.rules import TRIVIAL, SuccessRule


@dataclass(frozen=True, slots=True, kw_only=True)
class Victims:
    """The truth about m images: candidate numbers (m,), images (m, *shape), labels (m,).

    `each` images that follow one another were behind one gradient.
    """

    dataset: Dataset
    numbers: Tensor
    images: Tensor
    labels: Tensor
    each: int = 1

    def rows(self, gradients: Tensor) -> Tensor:
        """(k,) gradient numbers -> (k * each,) numbers of the images behind them."""
        places = torch.arange(self.each, device=gradients.device)
        return (gradients[:, None] * self.each + places).flatten()

    def in_place(self, inputs: Tensor, gradients: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Pair reconstructions of `gradients` (k,), all of them by default, with their images.

        inputs (k, B, *shape) on the CPU -> (k * B, *shape), each in the place of the image it is
        compared with, and which of its batch each one was, (k, B).
        """
        truth = self.images if gradients is None else self.images[self.rows(gradients)]
        places = paired(inputs, truth.unflatten(0, (len(inputs), -1)))
        return inputs[torch.arange(len(inputs))[:, None], places].flatten(0, 1), places

    def baselines(self, start: Tensor | None) -> dict[str, Tensor]:
        """Clamped MSE (m,) of what needs no gradient; start (m, *shape).

        start_image: the attack's own start; mean_image: mean of the public images; class_mean:
        mean of the public images of the true class; nearest_public: the closest public image.
        """
        public = self.dataset.public.to(self.images)
        means = torch.stack(
            [
                public[self.dataset.public_labels == c].mean(dim=0)
                for c in range(self.dataset.classes)
            ]
        )
        whole = public.mean(dim=0).expand_as(self.images)
        # One by one: a product of matrices rounds by how many victims are in the chunk.
        nearest = [mse(image.expand_as(public), public).amin() for image in self.images]
        found = {
            "mean_image": mse(whole, self.images),
            "class_mean": mse(means[self.labels], self.images),
            "nearest_public": torch.stack(nearest),
        }
        if start is not None:
            found["start_image"] = mse(start, self.images, clamp=True)
        return found


def best_trivial(baselines: Mapping[str, Tensor]) -> Tensor:
    """(n,) smallest clamped MSE of the trivial baselines."""
    return torch.stack([baselines[name] for name in TRIVIAL if name in baselines]).amin(dim=0)


def paired(inputs: Tensor, truth: Tensor) -> Tensor:
    """(k, B) which reconstruction is whose: the pairing with the least clamped MSE in all.

    inputs, truth: (k, B, *shape). Row i of the result holds, for each true image of batch i, the
    place of its reconstruction. A batch's gradient does not know the order of its examples. An
    image with a nan is the worst match for everybody.
    """
    k, batch = inputs.shape[:2]
    if batch == 1:
        return torch.zeros(k, 1, dtype=torch.int64)
    guesses = inputs.double().clamp(0.0, 1.0).flatten(2)
    wanted = truth.double().flatten(2)
    cost = (wanted[:, :, None] - guesses[:, None]).square().mean(dim=3)
    cost = cost.nan_to_num(nan=2.0, posinf=2.0)  # above any clamped error
    places = [linear_sum_assignment(one.cpu().numpy())[1] for one in cost]
    return torch.from_numpy(np.stack(places))


def label_overlap(found: Tensor, truth: Tensor) -> Tensor:
    """(k,) share of the labels of each batch that were found, each counted as often as it occurs.

    found, truth: (k, B) class indices, in any order.
    """
    shares = []
    for guesses, labels in zip(found.tolist(), truth.tolist(), strict=True):
        right = Counter(guesses) & Counter(labels)
        shares.append(right.total() / len(labels))
    return torch.tensor(shares)


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


@dataclass(slots=True)
class Observer:
    """Looks over the attack's shoulder: first success under each rule, snapshots, loss traces.

    An oracle: what it finds is reported as such and never reaches the attack.
    """

    victims: Victims
    rules: Sequence[SuccessRule]
    best_baseline: Tensor
    snapshot_steps: Sequence[int]
    first_step: dict[str, list[int | None]] = field(init=False)
    first_evaluations: dict[str, list[int | None]] = field(init=False)
    snapshots: dict[int, Tensor] = field(init=False)
    traces: list[list[float]] = field(init=False)

    def __post_init__(self) -> None:
        m = len(self.victims.numbers)
        self.rules = [rule for rule in self.rules if rule.stepwise]
        self.first_step = {rule.name: [None] * m for rule in self.rules}
        self.first_evaluations = {rule.name: [None] * m for rule in self.rules}
        empty = torch.full_like(self.victims.images, math.nan)
        self.snapshots = {step: empty.clone() for step in self.snapshot_steps}
        self.traces = [[] for _ in range(m // self.victims.each)]

    def look(self, rows: Tensor, steps: Tensor, evaluations: Tensor, inputs: Tensor) -> Tensor:
        """Judge iterates `inputs` (k, B, *shape) of the gradients `rows`; all on the CPU.

        Returns them as (k * B, *shape), each in the place of the image it is compared with.
        """
        numbers = self.victims.rows(rows)
        truth = self.victims.images[numbers]
        images, _ = self.victims.in_place(inputs, rows)
        raw, clamped = mse(images, truth), mse(images, truth, clamp=True)
        pixels = images[0].numel()
        each = self.victims.each
        effort = zip(steps.tolist(), evaluations.tolist(), strict=True)
        spent = [pair for pair in effort for _ in range(each)]
        columns = zip(numbers.tolist(), spent, raw.tolist(), clamped.tolist(), strict=True)
        for row, (step, evaluated), mse_raw, mse_clamped in columns:
            for rule in self.rules:
                found = self.first_step[rule.name]
                if found[row] is None and rule.success_at(
                    mse_raw=mse_raw,
                    mse_clamped=mse_clamped,
                    pixels=pixels,
                    baseline=float(self.best_baseline[row]),
                ):
                    found[row] = step
                    self.first_evaluations[rule.name][row] = evaluated
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


def flags(
    *,
    loss: float,
    loss_start: float,
    loss_true: float,
    recovered: bool,
    labels_right: bool,
    label_known: bool,
    no_op: bool,
    gradient_finite: bool,
    gradient_zero: bool,
) -> list[str]:
    """Warnings about one trial, for the report to count."""
    found = ["label_known" if label_known else "label_inferred"]
    conditions: dict[str, Any] = {
        "label_wrong": not labels_right,
        "loss_never_fell": math.isfinite(loss_start) and not loss < loss_start,
        # The attacker's loss at the truth says who is to blame for a bad image.
        "optimiser_failed": not recovered and loss > loss_true * 1.001 + 1e-6,
        "fits_noise": not recovered and loss < loss_true,
        "defense_noop": no_op,
        "gradient_nonfinite": not gradient_finite,
        "gradient_zero": gradient_zero,
    }
    return found + [name for name, holds in conditions.items() if holds]


def plain(value: float) -> float | None:
    """A float for a record: None when it is not finite."""
    return value if math.isfinite(value) else None
