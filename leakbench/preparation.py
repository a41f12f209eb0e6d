"""What is done to examples before a step of training: to [0, 1], augmented, normalised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as functional
from torch import Tensor

from leakbench.data.datasets import as_unit
from leakbench.errors import LeakbenchError
from leakbench.sampling import Step
from leakbench.streams import generator
from leakbench.training import Batch
from leakbench.training_schedule import Augmentation

MARGIN = 4
"""Zeros around an image, of which a window as large as the image is cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Normaliser:
    """(x - mean) / std, both of shape (channels, 1, 1) for images and (features,) for tables."""

    mean: Tensor
    std: Tensor

    def __call__(self, inputs: Tensor) -> Tensor:
        """Inputs (..., *input shape) in [0, 1], normalised."""
        return (inputs - self.mean.to(inputs)) / self.std.to(inputs)


def normaliser_of(public: Tensor) -> Normaliser:
    """Mean and standard deviation of public examples (m, *input shape) in [0, 1].

    Of each channel over all pixels, or of each column; what never varies is left at its scale.
    """
    images = public.dim() == 4
    axes = (0, 2, 3) if images else (0,)
    std = public.std(dim=axes, keepdim=images, correction=0)
    mean = public.mean(dim=axes, keepdim=images)
    if images:
        mean, std = mean[0], std[0]
    return Normaliser(mean=mean, std=torch.where(std > 0, std, torch.ones_like(std)))


def augmented(images: Tensor, kinds: Sequence[Augmentation], stream: torch.Generator) -> Tensor:
    """Images (b, channels, height, width), each changed by its own draws, in the order of `kinds`.

    Raises:
        LeakbenchError: inputs that are no images.
    """
    if kinds and images.dim() != 4:
        raise LeakbenchError("training: augment changes images only; allowed for tables: none")
    for kind in kinds:
        images = _flipped(images, stream) if kind == "flip" else _cropped(images, stream)
    return images


def _flipped(images: Tensor, stream: torch.Generator) -> Tensor:
    coins = (torch.rand(len(images), generator=stream) < 0.5).to(images.device)
    return torch.where(coins[:, None, None, None], images.flip(-1), images)


def _cropped(images: Tensor, stream: torch.Generator) -> Tensor:
    height, width = images.shape[2:]
    padded = functional.pad(images, [MARGIN] * 4)
    corners = torch.randint(2 * MARGIN + 1, (len(images), 2), generator=stream).tolist()
    windows = [
        image[:, top : top + height, left : left + width]
        for image, (top, left) in zip(padded, corners, strict=True)
    ]
    return torch.stack(windows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """Makes the batches of one round out of positions in the training set.

    inputs (n, *input shape) uint8 images or floats, labels (n,); like: a tensor of the type and
    device that batches have; seed, axes: name the streams of the round.
    """

    inputs: Tensor
    labels: Tensor
    like: Tensor
    normaliser: Normaliser | None
    augment: tuple[Augmentation, ...]
    seed: int
    axes: tuple[str | int, ...]

    def batch(self, step: Step, clients: Sequence[int], iteration: int) -> Batch:
        """The examples of local step `iteration` of these clients, who are those of `step`."""
        inputs = as_unit(self.inputs[step.positions.to(self.inputs.device)]).to(self.like)
        if self.augment:
            rows = [
                augmented(
                    own, self.augment,
                    generator(self.seed, "augment", *self.axes, client, iteration),
                )
                for own, client in zip(inputs, clients, strict=True)
            ]  # fmt: skip
            inputs = torch.stack(rows)
        if self.normaliser is not None:
            inputs = self.normaliser(inputs)
        return Batch(
            inputs=inputs,
            labels=self.labels[step.positions.to(self.labels.device)].to(self.like.device),
            mask=None if step.mask is None else step.mask.to(self.like.device),
            expected=step.expected,
        )
