"""What a tap costs: the time that its own code takes in private trainings of Opacus.

    python benchmarks/tapping.py [--steps 200] [--batch 64] [--repeats 3] [--json]

One process, one thread on a CPU, in processor seconds, on the embedded digits: the tap's hooks
against the rest of the same training, which load from elsewhere slows alike; the median of the
repeats. "default" records steps 0, 1, 2, 4, 8 and so on, "all" every step; both record weights,
gradients, inputs and labels.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Collection
from typing import Any

import leakbench.arithmetic  # noqa: F401  before torch, whose arithmetic it settles

# isort: split
import opacus
import torch
from torch import nn

from leakbench.data import load
from leakbench.tapping import Tap

KINDS: dict[str, Collection[int] | None] = {"default": None, "all": range(10**9)}


def networks() -> dict[str, nn.Module]:
    """A network of dense layers and one of convolutions."""
    return {
        "mlp": nn.Sequential(
            nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10)
        ),
        "cnn": nn.Sequential(
            nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(1568, 10),
        ),
    }  # fmt: skip


class Timed(Tap):
    """A tap that counts its own time."""

    seconds = 0.0

    def _before_forward(self, *given: Any) -> None:
        begun = time.process_time()
        super()._before_forward(*given)
        self.seconds += time.process_time() - begun

    def _before_loss(self, *given: Any) -> None:
        begun = time.process_time()
        super()._before_loss(*given)
        self.seconds += time.process_time() - begun

    def _before_step(self, *given: Any) -> None:
        begun = time.process_time()
        super()._before_step(*given)
        self.seconds += time.process_time() - begun


def seconds_of(name: str, kind: str, steps: int, batch: int) -> tuple[float, float]:
    """Processor time of a training: of the tap, and of the rest."""
    torch.manual_seed(0)
    model, criterion = networks()[name], nn.CrossEntropyLoss()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    digits = load("mnist", None)
    loader: Any = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(digits.candidates, digits.candidate_labels), batch_size=batch
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, optimizer, loader = opacus.PrivacyEngine().make_private(
            module=model, optimizer=optimizer, data_loader=loader,
            noise_multiplier=1.0, max_grad_norm=1.0,
        )  # fmt: skip
        tap = Timed(optimizer, model, criterion, KINDS[kind])
        begun = time.process_time()
        while tap.steps < steps:
            for x, y in loader:
                optimizer.zero_grad()
                criterion(model(x), y).backward()
                optimizer.step()
                if tap.steps == steps:
                    break
        return tap.seconds, time.process_time() - begun - tap.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, dict[str, float]] = {name: {} for name in networks()}
    for name, shares in found.items():
        for kind in KINDS:
            taken = [seconds_of(name, kind, given.steps, given.batch) for _ in range(given.repeats)]
            shares[kind] = statistics.median(own / rest for own, rest in taken)
        if not given.json:
            print(f"{name}: {', '.join(f'{kind} +{one:.2%}' for kind, one in shares.items())}")
    if given.json:
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
