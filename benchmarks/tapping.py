"""What a tap costs: private trainings of Opacus with it and without it, in turns.

    python benchmarks/tapping.py [--steps 200] [--batch 64] [--repeats 5] [--json]

One process, one thread on a CPU, in processor seconds of whole trainings on the embedded digits;
the fastest of each kind counts. "default" records steps 0, 1, 2, 4, 8 and so on, "all" every step;
both record weights, gradients, inputs and labels.
"""

from __future__ import annotations

import argparse
import json
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
from leakbench.tapping import tap

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


def seconds_of(name: str, kind: str | None, steps: int, batch: int) -> float:
    """Processor time of a training; kind: None without a tap."""
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
        begun = time.process_time()
        if kind is not None:
            tap(optimizer, model=model, criterion=criterion, steps=KINDS[kind])
        done = 0
        while done < steps:
            for x, y in loader:
                optimizer.zero_grad()
                criterion(model(x), y).backward()
                optimizer.step()
                done += 1
                if done == steps:
                    break
    return time.process_time() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    for name in networks():
        kinds = (None, *KINDS)
        taken = [
            [seconds_of(name, kind, given.steps, given.batch) for kind in kinds]
            for _ in range(given.repeats)
        ]
        bare, *tapped = (min(column) for column in zip(*taken, strict=True))
        found[name] = {"bare": bare} | dict(zip(KINDS, tapped, strict=True))
        if not given.json:
            shares = ", ".join(
                f"{kind} {value:.2f} s ({value / bare - 1:+.1%})"
                for kind, value in zip(KINDS, tapped, strict=True)
            )
            print(f"{name}: bare {bare:.2f} s, {shares}")
    if given.json:
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
