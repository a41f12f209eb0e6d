"""What the harness says about reconstructions; attacks never see any of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from leakbench import metrics
from leakbench.data import Dataset
from leakbench.metrics import SuccessRule

STEP_RULES = ("mse", "distance", "strict")
"""Kinds of rules that are also followed step by step (ranking every step would cost too much)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Victims:
    """The truth about n victims: candidate numbers (n,), images (n, *shape), labels (n,)."""

    dataset: Dataset
    numbers: Tensor
    images: Tensor
    labels: Tensor

    def baselines(self, start: Tensor | None) -> dict[str, Tensor]:
        """Clamped MSE (n,) of what needs no gradient.

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
        nearest = [metrics.mse(image.expand_as(public), public).amin() for image in self.images]
        found = {
            "mean_image": metrics.mse(whole, self.images),
            "class_mean": metrics.mse(means[self.labels], self.images),
            "nearest_public": torch.stack(nearest),
        }
        if start is not None:
            found["start_image"] = metrics.mse(start, self.images, clamp=True)
        return found


TRIVIAL = ("start_image", "mean_image", "class_mean")
"""Baselines that `strict` must beat: they need no search through other people's images."""


def best_trivial(baselines: Mapping[str, Tensor]) -> Tensor:
    """(n,) smallest clamped MSE of the trivial baselines."""
    return torch.stack([baselines[name] for name in TRIVIAL if name in baselines]).amin(dim=0)


def measure(images: Tensor, victims: Victims) -> dict[str, Tensor]:
    """All per-image numbers of a record, each (n,)."""
    reference = victims.images
    return {
        "mse_raw": metrics.mse(images, reference),
        "mse_clamped": metrics.mse(images, reference, clamp=True),
        "distance_raw": metrics.distance(images, reference),
        "distance_clamped": metrics.distance(images, reference, clamp=True),
        "psnr": metrics.psnr(images, reference),
        "ssim": metrics.ssim(images, reference),
        "rank": metrics.candidate_ranks(images, victims.dataset.candidates, victims.numbers),
    }


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
    snapshots: dict[int, Tensor] = field(init=False)
    traces: list[list[float]] = field(init=False)

    def __post_init__(self) -> None:
        n = len(self.victims.numbers)
        self.rules = [rule for rule in self.rules if rule.kind in STEP_RULES]
        self.first_step = {rule.name: [None] * n for rule in self.rules}
        empty = torch.full_like(self.victims.images, math.nan)
        self.snapshots = {step: empty.clone() for step in self.snapshot_steps}
        self.traces = [[] for _ in range(n)]

    def look(self, rows: Tensor, steps: Tensor, images: Tensor) -> None:
        """Judge iterates `images` (k, *shape) of victims `rows` after `steps`."""
        truth = self.victims.images[rows]
        raw, clamped = metrics.mse(images, truth), metrics.mse(images, truth, clamp=True)
        pixels = images[0].numel()
        columns = zip(rows.tolist(), steps.tolist(), raw.tolist(), clamped.tolist(), strict=True)
        for row, step, mse_raw, mse_clamped in columns:
            for rule in self.rules:
                found = self.first_step[rule.name]
                if found[row] is None and metrics.judge(
                    rule,
                    mse_raw=mse_raw,
                    mse_clamped=mse_clamped,
                    distance_raw=math.sqrt(mse_raw * pixels),
                    distance_clamped=math.sqrt(mse_clamped * pixels),
                    best_baseline_mse=float(self.best_baseline[row]),
                    rank=None,
                ):
                    found[row] = step

    def watch(self, rows: Tensor, steps: Tensor, inputs: Tensor, losses: Tensor) -> None:
        """See `contracts.Watch`."""
        images = inputs[:, 0].detach()
        rows, steps = rows.cpu(), steps.cpu()
        self.look(rows, steps, images.cpu())
        for row, step, image, loss in zip(
            rows.tolist(), steps.tolist(), images.cpu(), losses.tolist(), strict=True
        ):
            self.traces[row].append(loss)
            if step in self.snapshots:
                self.snapshots[step][row] = image


def flags(
    *,
    loss: float,
    loss_start: float,
    loss_true: float,
    recovered: bool,
    label: int,
    label_guess: int,
    label_known: bool,
    no_op: bool,
    gradient_finite: bool,
    gradient_zero: bool,
) -> list[str]:
    """Warnings about one trial, for the report to count."""
    found = ["label_known" if label_known else "label_inferred"]
    conditions: dict[str, Any] = {
        "label_wrong": label != label_guess,
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
