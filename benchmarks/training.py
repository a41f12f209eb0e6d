"""What privacy costs in training, and what computing clients together saves.

    python benchmarks/training.py [--models cnn2_relu cnn2] [--repeats 9] [--only central] [--json]

One process, one thread on a CPU, MNIST shapes. Central: one step of DP-SGD on a batch (gradients of
single examples, every tensor clipped, noise on the sum, mean, update) against the same step without
a defense, which is held against bare torch autograd; beside it Opacus (hooks, flat clipping)
against bare torch on its own module. Federated: a round of all clients in one call, with and
without that defense, against a call for each client and against a bare torch loop.

The contestants of a table take turns, so that a machine that gets slower meanwhile hurts all;
a row shows medians, and its ratio is the median over the turns. Seconds are processor time on a
CPU, where other programs may interrupt, and wall-clock time on a GPU.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import re
import resource
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import leakbench.arithmetic  # noqa: F401  before torch, whose arithmetic it settles

# isort: split
import torch
import torch.nn.functional as functional
from torch import nn

from leakbench import architectures
from leakbench.contracts import Context, Defense
from leakbench.data import load
from leakbench.defenses.dp_baseline import DPBaseline
from leakbench.defenses.none import NoDefense
from leakbench.models.relu import ReluNet
from leakbench.models.sigmoid import SigmoidNet
from leakbench.streams import NoiseStreams, generator
from leakbench.training import Batch, run_round

SEED = 0
RATE = 0.1
PRIVATE = DPBaseline(clip=1.0, noise_multiplier=1.0, convention="sum")
MODELS = ["cnn2_relu", "cnn2", "lenet_cpl", "lenet_dlg"]
CHUNKS = [16, 64, 256, None]
"""Values of chunk_size in the last table; None: all examples of the batch."""

Step = Callable[[], object]


def clock(device: str) -> float:
    """Seconds, of work that is finished."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


# ------------------------------------------------------------------- the contestants


class Setup:
    """A network, its first weights, and `clients` times `steps` batches of MNIST images."""

    def __init__(self, name: str, clients: int, steps: int, size: int, device: str) -> None:
        data = load("mnist")
        self.model = architectures.build(name, data.input_shape, data.classes, "default")
        weights = self.model.init(generator(SEED, "weights"), torch.float32)
        self.weights = {k: v.to(device) for k, v in weights.items()}
        shape = (steps, clients, size)
        drawn = torch.randint(len(data.candidates), shape, generator=generator(SEED, "examples"))
        self.batches = [
            Batch(
                inputs=data.candidates[rows].to(device),
                labels=data.candidate_labels[rows].to(device),
            )
            for rows in drawn
        ]

    def round(self, defense: Defense, clients: list[int], chunk_size: int | None = None) -> None:
        """One call of `run_round`."""
        batches = [
            Batch(inputs=batch.inputs[clients], labels=batch.labels[clients])
            for batch in self.batches
        ]
        context = Context(
            batch_size=batches[0].inputs.shape[1],
            clients=tuple(clients),
            noise=NoiseStreams(SEED, ("benchmark",)),
        )
        state = defense.init(self.weights)
        with torch.no_grad():
            run_round(
                self.model, self.weights, batches, defense, state, context,
                learning_rate=RATE, chunk_size=chunk_size,
            )  # fmt: skip

    def torch_alone(self) -> None:
        """The same steps without a defense, one client after the other, in bare torch."""
        for client in range(len(self.batches[0].inputs)):
            local = self.weights
            for batch in self.batches:
                leaves = {k: v.detach().requires_grad_() for k, v in local.items()}
                logits = self.model.logits(leaves, batch.inputs[client])
                loss = functional.cross_entropy(logits, batch.labels[client])
                found = torch.autograd.grad(loss, list(leaves.values()))
                with torch.no_grad():
                    local = {k: local[k] - RATE * g for k, g in zip(local, found, strict=True)}


def module_of(model: SigmoidNet | ReluNet) -> nn.Sequential:
    """The same network of torch.nn layers."""
    if sigmoid := isinstance(model, SigmoidNet):
        strides = [layer.stride for layer in model.convolutions]
    else:
        strides = [1] * len(model.channels)
    shapes = [shape for name, shape in model.shapes().items() if name.endswith("weight")]
    layers: list[nn.Module] = []
    for stride, (out, channels, *_) in zip(strides, shapes[:-1], strict=True):
        layers.append(nn.Conv2d(channels, out, 5, stride, padding=2, bias=sigmoid))
        layers += [nn.Sigmoid()] if sigmoid else [nn.ReLU(), nn.MaxPool2d(2)]
    classes, features = shapes[-1]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, classes, bias=sigmoid))


def steps_of_modules(setup: Setup) -> tuple[Step, Step]:
    """One step on the first client's first batch: of bare torch, and of Opacus."""
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer

    inputs, labels = setup.batches[0].inputs[0], setup.batches[0].labels[0]
    found = []
    for private in (False, True):
        module = module_of(setup.model).to(inputs.device)  # type: ignore[arg-type]
        network: nn.Module = GradSampleModule(module) if private else module
        optimiser: Any = torch.optim.SGD(network.parameters(), lr=RATE)
        if private:
            optimiser = DPOptimizer(
                optimiser,
                noise_multiplier=PRIVATE.noise_multiplier,
                max_grad_norm=PRIVATE.clip,
                expected_batch_size=len(inputs),
            )

        def step(network: nn.Module = network, optimiser: Any = optimiser) -> None:
            optimiser.zero_grad()
            functional.cross_entropy(network(inputs), labels).backward()
            optimiser.step()

        found.append(step)
    return found[0], found[1]


# ------------------------------------------------------------------- what is measured


def compare(
    contestants: dict[str, Step], against: dict[str, str], repeats: int, device: str
) -> list[dict[str, Any]]:
    """A row each; against: contestant -> the one its time is divided by."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for step in contestants.values():
        step()  # first calls build kernels and ask for memory
    for _ in range(repeats):
        for name, step in contestants.items():
            begun = clock(device)
            step()
            seconds[name].append(clock(device) - begun)
    rows: list[dict[str, Any]] = []
    for name, taken in seconds.items():
        row = {"what": name, "ms": round(1e3 * statistics.median(taken), 1)}
        if name in against:
            base = seconds[against[name]]
            ratios = [one / other for one, other in zip(taken, base, strict=True)]
            row |= {"ratio": round(statistics.median(ratios), 2), "against": against[name]}
        rows.append(row)
    return rows


def central(name: str, given: argparse.Namespace) -> list[dict[str, Any]]:
    """One step on one large batch."""
    setup = Setup(name, 1, 1, given.batch, given.device)
    module, opacus = steps_of_modules(setup)
    contestants: dict[str, Step] = {
        "bare torch": setup.torch_alone,
        "no defense": lambda: setup.round(NoDefense(), [0]),
        "DP": lambda: setup.round(PRIVATE, [0], given.chunk_size),
        "bare torch, its module": module,
        "Opacus": opacus,
    }
    against = {
        "no defense": "bare torch", "DP": "no defense", "Opacus": "bare torch, its module",
    }  # fmt: skip
    return compare(contestants, against, given.repeats, given.device)


def federated(name: str, given: argparse.Namespace) -> list[dict[str, Any]]:
    """One round of several clients; ratios above 1 in the first rows are what is saved."""
    setup = Setup(name, given.clients, given.local_steps, given.local_batch, given.device)
    everyone = list(range(given.clients))
    together = "no defense, together"

    def one_by_one() -> None:
        for client in everyone:
            setup.round(NoDefense(), [client])

    contestants: dict[str, Step] = {
        "bare torch, one by one": setup.torch_alone,
        "no defense, one by one": one_by_one,
        together: lambda: setup.round(NoDefense(), everyone),
        "DP, together": lambda: setup.round(PRIVATE, everyone, given.chunk_size),
    }
    against = {one: together for one in contestants if one != together}
    return compare(contestants, against, given.repeats, given.device)


def peak(device: str) -> float:
    """Most memory held so far, MB."""
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated() / 2**20
    if (status := Path("/proc/self/status")).exists():  # below, Linux counts the parent's peak
        return int(re.findall(r"VmHWM:\s*(\d+)", status.read_text())[0]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def of_chunk(
    name: str, size: int, chunk_size: int | None, repeats: int, device: str
) -> tuple[float, float]:
    """Median seconds of a central DP step and the MB that it needs, in a process of its own."""
    torch.set_num_threads(1)
    setup, seconds = Setup(name, 1, 1, size, device), []
    before = peak(device)
    for _ in range(repeats + 1):
        begun = clock(device)
        setup.round(PRIVATE, [0], chunk_size)
        seconds.append(clock(device) - begun)
    return statistics.median(seconds[1:]), peak(device) - before


def chunks(name: str, given: argparse.Namespace) -> list[dict[str, Any]]:
    """A central DP step by the examples whose gradients are computed together at most."""
    rows = []
    for size in CHUNKS:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            seconds, memory = pool.apply(
                of_chunk, (name, given.batch, size, given.repeats, given.device)
            )
        row = {"chunk_size": size or "all", "ms": round(1e3 * seconds, 1), "mb": round(memory)}
        rows.append(row)
    return rows


def processor() -> str:
    """Its name, where the system tells."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*:\s*(.+)", info.read_text()) if info.exists() else []
    return names[0] if names else platform.processor() or platform.machine()


# ------------------------------------------------------------------- what is printed


def table(rows: list[dict[str, Any]], columns: dict[str, str]) -> None:
    """Columns heading -> key of the rows, aligned."""
    cells = [list(columns)] + [[str(row.get(key, "")) for key in columns.values()] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
    print()


TABLES: dict[str, Callable[[str, argparse.Namespace], list[dict[str, Any]]]] = {
    "central": central, "federated": federated, "chunks": chunks,
}  # fmt: skip


def main() -> None:
    """Print the tables, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--models", nargs="+", default=MODELS[:2], choices=MODELS)
    parser.add_argument("--batch", type=int, default=600, help="of the central step")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--local-steps", type=int, default=10)
    parser.add_argument("--local-batch", type=int, default=5)
    parser.add_argument("--chunk-size", type=int, help="of DP; default: no bound")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", nargs="+", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="Full backward hook")  # images want no gradient
    results = {
        which: {name: TABLES[which](name, given) for name in given.models} for which in given.only
    }
    host = {"processor": processor(), "threads": 1, "torch": torch.__version__}
    if given.json:
        print(json.dumps({"host": host, "settings": vars(given), **results}))
        return
    print(f"{host['processor']}, 1 thread, torch {host['torch']}, device {given.device}\n")
    said = {
        "central": f"one step, B = {given.batch}",
        "federated": f"{given.clients} clients, {given.local_steps} local steps of "
        f"{given.local_batch} examples",
        "chunks": f"one DP step, B = {given.batch}, each in a process of its own",
    }
    for which, by_model in results.items():
        for name, rows in by_model.items():
            print(f"{name}: {said[which]}\n")
            table(rows, {key.replace("_", " "): key for key in {k: 0 for row in rows for k in row}})


if __name__ == "__main__":
    main()
