"""GradInv of the breaching library, unmodified, and ours on one leak pack; both scored by us.

    pip install breaching        (the extra `breaching`)
    python benchmarks/breaching_pack.py DIR [--steps N] [--lr R] [--total-variation W] ...

breaching's users and servers are left out: its attacker is handed what the pack holds, and, where
there is one restart, where ours begins; else it draws its own N(0, 1). Prints every victim and the
medians.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from leakbench import registry
from leakbench.leaderboard import leaks, making, packs, scores, scoring, submissions
from leakbench.leaderboard.reference import PackedNetwork
from leakbench.suite import resolve

SUITE = Path(__file__).with_suffix(".toml")


def reconstructed(
    opened: packs.OpenPack,
    starts: dict[str, torch.Tensor],
    *,
    steps: int,
    lr: float,
    total_variation: float,
    restarts: int,
) -> dict[str, np.ndarray]:
    """What breaching's "inverting gradients" returns for every leak, (n, 1, *input shape).

    starts: id of a leak -> (n, 1, *input shape).
    """
    import breaching

    config = breaching.get_attack_config(
        "invertinggradients",
        [
            f"optim.max_iterations={steps}",
            f"optim.step_size={lr}",
            f"regularization.total_variation.scale={total_variation}",
            f"restarts.num_trials={restarts}",
        ],
    )
    found = {}
    for leak in opened.pack.leaks:
        network = opened.pack.network(leak.looks[0].network)
        assert network.layers is not None, "a chain of calls, so that torch alone can build it"
        weights = _tensors(opened, "weights", network.id, network.weights)
        buffers = _tensors(opened, "buffers", network.id, network.buffers)
        module = PackedNetwork(network.layers, weights, buffers)
        attacker = breaching.attacks.prepare_attack(module, torch.nn.CrossEntropyLoss(), config)
        gradients = _tensors(opened, "gradients", leak.looks[0].gradients, network.weights)
        labels = torch.from_numpy(opened.arrays.load(f"labels/{leak.id}").copy())
        payload = {
            "parameters": list(weights.values()),
            "buffers": None,
            "metadata": SimpleNamespace(
                shape=leak.input_shape, classes=leak.classes, modality="vision"
            ),
        }
        answers = []
        for victim in range(leak.victims):
            torch.manual_seed(victim)
            seen = {
                "gradients": [value[victim] for value in gradients.values()],
                "buffers": None,
                "metadata": {
                    "num_data_points": leak.batch_size,
                    "labels": labels[victim],
                    "local_hyperparams": None,
                },
            }
            begin = starts[leak.id][victim] if restarts == 1 else None
            answer, _ = attacker.reconstruct([payload], [seen], {}, initial_data=begin)
            answers.append(answer["data"].numpy())
        found[leak.id] = np.stack(answers)
    return found


def _tensors(
    opened: packs.OpenPack, kind: str, name: str, parameters: tuple[packs.Parameter, ...]
) -> dict[str, torch.Tensor]:
    return {
        each.name: torch.from_numpy(opened.arrays.load(f"{kind}/{name}/{each.name}").copy())
        for each in parameters
    }


def main() -> None:
    """Make the pack, attack it twice, print both scores."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--total-variation", type=float, default=1e-4)
    parser.add_argument("--restarts", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    both = compare(
        asked.folder, resolve(str(SUITE), "quick", settings=[]),
        steps=asked.steps, lr=asked.lr, total_variation=asked.total_variation,
        restarts=asked.restarts,
    )  # fmt: skip
    for name, score in both.items():
        for row in score.rows:
            print(f"{name}: median PSNR {scores.decibels(row.psnr)} dB")
            print("\n".join(f"  {line}" for line in scores.victim_words(row)))


def compare(
    folder: Path, plan: Any, *, steps: int, lr: float, total_variation: float, restarts: int
) -> dict[str, scores.Score]:
    """Scores by name: "breaching" and "leakbench"."""
    kept = folder / "answers.npz"
    if not (folder / "pack").exists():
        making.make(plan, folder / "pack", kept)
    opened = packs.read(folder / "pack")
    settings = f"steps {steps}, lr {lr:g}, total variation {total_variation:g}, {restarts} starts"
    place = folder / settings.replace(", ", "-").replace(" ", "_")
    ours = registry.load("attacks", "gradinv")(
        steps=steps, lr=lr, total_variation=total_variation, restarts=restarts
    )
    leaks.submit(
        opened, ours, place / "leakbench", name="leakbench", method=f"gradinv: {settings}",
        knowledge="naive",
    )  # fmt: skip
    begun = time.perf_counter()
    inputs = reconstructed(
        opened, leaks.starts(opened, ours, "naive"),
        steps=steps, lr=lr, total_variation=total_variation, restarts=restarts,
    )  # fmt: skip
    submissions.write(
        place / "breaching",
        submissions.Submission(
            schema=packs.SCHEMA, name="breaching",
            method=f"inverting gradients: {settings}", link="https://pypi.org/project/breaching/",
            pack=opened.pack.checksum, knowledge="naive",
            budget=submissions.Budget(
                evaluations=steps * restarts, seconds=time.perf_counter() - begun
            ),
        ),
        inputs,
    )  # fmt: skip
    return {name: scoring.score(place / name, kept) for name in ("breaching", "leakbench")}


if __name__ == "__main__":
    main()
