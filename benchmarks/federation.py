"""What a round costs, in time and memory, by the number of clients there are and that take part.

    python benchmarks/federation.py [--steps 100] [--rounds 2] [--defense fed_cdp]

MNIST, `cnn3x3`, batches of 5, clients who share examples; the whole set where there is a data root,
else the embedded sample. Every row is a process of its own, so that its peak of memory is its own:
resident memory, torch and the data included. Seconds are processor time on one thread; `held by`
is the largest number of clients who hold the same example, over the mean.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time

import leakbench.arithmetic  # noqa: F401  before torch, whose arithmetic it settles

# isort: split
import torch

from leakbench import architectures, registry
from leakbench.federated import train
from leakbench.streams import NoiseStreams, generator
from leakbench.training_schedule import Schedule
from leakbench.utility import material

# N, Kt, examples a client
ROWS = [
    (100, 10, 500),
    (1_000, 10, 500),
    (10_000, 10, 500),
    (10_000, 100, 300),
    (10_000, 100, 500),
    (10_000, 1_000, 500),
]


def measure(row: tuple[int, int, int], steps: int, rounds: int, defense: str) -> list[str]:
    """One row of the table."""
    torch.set_num_threads(1)
    clients, a_round, examples = row
    data = material("mnist", None)
    examples = min(examples, len(data.train))
    schedule = Schedule(
        rounds=rounds, batch_size=5, learning_rate=0.05, clients=clients, clients_a_round=a_round,
        local_steps=steps, overlap=True, examples_a_client=examples,
    )  # fmt: skip
    model = architectures.build("cnn3x3", (1, 28, 28), 10, "default")
    weights = model.init(generator(0, "weights"), torch.float32)
    plugin = registry.load("defenses", defense)()
    before = time.process_time()
    done = train(
        model, weights, data.train, data.train_labels, plugin, schedule, seed=0,
        noise=NoiseStreams(0, ()),
    )  # fmt: skip
    seconds = (time.process_time() - before) / rounds
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    mean = clients * examples / len(data.train)
    return [
        f"{clients:,}", f"{a_round:,}", str(examples), f"{seconds:.1f}",
        f"{1000 * seconds / (a_round * steps):.2f}", f"{peak:.2f}",
        f"{done.setting.holders} / {mean:.1f}",
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100, help="local steps of a client in a round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--defense", default="fed_cdp")
    asked = parser.parse_args()
    print(f"MNIST, cnn3x3, {asked.defense}, B=5, L={asked.steps}, one thread\n")
    print("| N | Kt | examples | s a round | ms a client and step | peak GiB | held by |")
    print("|---|---|---|---|---|---|---|")
    context = multiprocessing.get_context("spawn")
    for row in ROWS:
        with context.Pool(1) as pool:
            cells = pool.apply(measure, (row, asked.steps, asked.rounds, asked.defense))
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
