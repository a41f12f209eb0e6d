"""The attack `candidates` against the same answers pair by pair, and its cost by the list's length.

    python benchmarks/candidates.py [--victims 50] [--listed 1000] [--json]
    python benchmarks/candidates.py --listed 60000                      (needs LEAKBENCH_DATA)

One process, one thread on a CPU. Both sides are asked about the same victims of cnn2. Pair by pair,
every candidate is simulated anew for every victim; above 1,000 candidates that side is left out.
Seconds are processor time, the median of three; memory is the peak of the process with the data.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from typing import Any

import leakbench.arithmetic  # noqa: F401  before torch, whose arithmetic it settles

# isort: split
import torch
from torch import Tensor

from leakbench import architectures
from leakbench.capturing import capture_leak
from leakbench.contracts import Attack, Defense, HasLoss, Leak
from leakbench.data import load
from leakbench.optim import with_copies
from leakbench.registry import load as load_plugin
from leakbench.streams import VictimStreams, generator
from leakbench.weights import draw

SEED = 0
REPEATS = 3
PAIRS = 256
"""Pairs simulated in one call."""

DEFENSES: dict[str, dict[str, Any]] = {
    "none": {}, "dp_baseline": {"clip": 4.0, "noise_multiplier": 0.1},
}  # fmt: skip


def make_leak(name: str, victims: int, listed: int) -> tuple[Leak, Tensor]:
    """Type-2 leak of single examples with a list of candidates, and the victims' images."""
    data = load("mnist" if listed <= 1000 else "mnist_60000")
    model = architectures.build("cnn2", data.input_shape, data.classes)
    shapes = {k: tuple(v.shape) for k, v in model.init(generator(SEED), torch.float32).items()}
    weights = draw(shapes, "uniform", generator(SEED, "weights"), torch.float32)
    defense: Defense = load_plugin("defenses", name)(**DEFENSES[name])
    images = data.candidates[:victims]
    leak = capture_leak(
        model, images, data.candidate_labels[:victims], weights=weights, defense=defense,
        knowledge="adaptive", grants=("candidates",),
        candidates=(data.candidates[:listed], data.candidate_labels[:listed]),
    )  # fmt: skip
    return leak, images


def pair_by_pair(attack: HasLoss, leak: Leak) -> Tensor:
    """(n, N) loss of every candidate for every victim, each pair simulated by itself."""
    assert leak.candidates is not None and leak.candidate_labels is not None
    count, parts = len(leak.candidates), []
    for pairs in torch.arange(leak.n * count).split(PAIRS):
        full = with_copies(pairs)
        victims, which = full // count, full % count
        with torch.no_grad():
            loss = attack.loss(
                leak, leak.candidates[which, None], leak.candidate_labels[which, None], victims
            )
        parts.append(loss[: len(pairs)])
    return torch.cat(parts).reshape(leak.n, count)


def measure(name: str, victims: int, listed: int) -> dict[str, Any]:
    """One row."""
    leak, images = make_leak(name, victims, listed)
    attack: Attack = load_plugin("attacks", "candidates")()
    streams = VictimStreams(SEED, tuple(("mnist", victim) for victim in range(victims)))
    runs = []
    for _ in range(REPEATS if listed <= 1000 else 1):
        begun = time.process_time()
        found = attack.reconstruct(leak, streams, lambda *seen: None).inputs[:, 0]
        runs.append(time.process_time() - begun)
    seconds = statistics.median(runs)
    row: dict[str, Any] = {
        "defense": name,
        "victims": victims,
        "listed": listed,
        "seconds": round(seconds, 2),
        "identified": round(float((found == images).flatten(1).all(dim=1).float().mean()), 3),
        "peak_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
    }
    if listed <= 1000:
        assert leak.candidates is not None and isinstance(attack, HasLoss)
        begun = time.process_time()
        losses = pair_by_pair(attack, leak)
        row["pairs_seconds"] = round(time.process_time() - begun, 2)
        row["ratio"] = round(row["pairs_seconds"] / seconds, 1)
        same = (found[:, None] == leak.candidates).flatten(2).all(dim=2)
        least, chosen = losses.min(dim=1)
        row["picked_differently"] = int((~same[torch.arange(victims), chosen]).sum())
        # In float32 two candidates may be as near as rounding can tell.
        row["same_losses"] = bool((losses[same] <= least * (1 + 1e-6)).all())
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--victims", type=int, default=50)
    parser.add_argument("--listed", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measure(name, given.victims, given.listed) for name in DEFENSES]
    if given.json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        print("  ".join(f"{key} {value}" for key, value in row.items()))


if __name__ == "__main__":
    main()
