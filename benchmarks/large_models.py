"""What a large network costs: an evaluation of an attack's objective, and clipping by examples.

    python benchmarks/large_models.py [--model resnet18] [--batch 8] [--examples 600] [--json]

Compared with plain autograd on the same module are the objective behind one update of a batch,
without a defense (loss and its gradient by the inputs), and gradients clipped example by example.
Every line runs in a process of its own, on one thread, and reports the peak of its memory. Seconds
are processor time, the least of the repeats.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import leakbench.arithmetic  # noqa: F401  before torch, whose arithmetic it settles

# isort: split
import torch
import torch.nn.functional as functional
from torch import Tensor

from leakbench.architectures import build
from leakbench.capturing import capture_leak
from leakbench.contracts import Context, LeakPoint
from leakbench.data import load
from leakbench.defenses.fed_cdp import FedCDP
from leakbench.matching import squared_loss
from leakbench.modules import ModuleModel
from leakbench.optim import Objective, one_by_one, padded
from leakbench.streams import generator
from leakbench.training import Batch, run_round

CLIP = 0.1


@dataclass(frozen=True, kw_only=True)
class Task:
    """A network and real images; `start` is where the attack is."""

    model: ModuleModel
    weights: dict[str, Tensor]
    images: Tensor
    labels: Tensor
    start: Tensor

    @classmethod
    def of(cls, name: str, size: int) -> Task:
        """The first `size` candidates of CIFAR-10, repeated where there are fewer."""
        data = load("cifar10")
        model = cast(ModuleModel, build(name, data.input_shape, data.classes, "default"))
        rows = torch.arange(size) % len(data.candidates)
        return cls(
            model=model,
            weights=model.init(generator(0, "weights"), torch.float32),
            images=data.candidates[rows],
            labels=data.candidate_labels[rows],
            start=torch.rand(size, *data.input_shape, generator=generator(0, "start")),
        )

    def plain(self) -> tuple[torch.nn.Module, list[torch.nn.Parameter]]:
        """The module itself, holding the weights."""
        module = self.model.module
        module.load_state_dict(self.weights, strict=False)
        return module, list(module.parameters())


Run = Callable[[], tuple[float, Tensor]]
"""() -> (loss, numbers to compare with the other way's)"""


def objective_plain(task: Task) -> Run:
    """Squared distance of two gradients, differentiated as reference notebooks do."""
    module, parameters = task.plain()
    loss = functional.cross_entropy(module(task.images), task.labels)
    observed = torch.autograd.grad(loss, parameters)

    def evaluate() -> tuple[float, Tensor]:
        dummy = task.start.clone().requires_grad_()
        loss = functional.cross_entropy(module(dummy), task.labels)
        found = torch.autograd.grad(loss, parameters, create_graph=True)
        pairs = zip(found, observed, strict=True)
        distance = torch.stack([(a - b).square().sum() for a, b in pairs]).sum()
        return distance.item(), torch.autograd.grad(distance, dummy)[0]

    return evaluate


def objective_leakbench(task: Task) -> Run:
    """The same by the simulation of a naive attacker, as the matching attacks evaluate it."""
    leak = capture_leak(
        task.model, task.images, task.labels, weights=task.weights, point=LeakPoint(type=1)
    )

    def objective(points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        points = points.detach().requires_grad_()
        loss = squared_loss(leak, points.reshape(-1, *task.images.shape), task.labels[None], rows)
        return loss, torch.autograd.grad(loss.sum(), points)[0]

    whole: Objective = one_by_one(objective)

    def evaluate() -> tuple[float, Tensor]:
        loss, slope = padded(whole, task.start.reshape(1, -1), torch.zeros(1, dtype=torch.int64))
        return loss.item(), slope.reshape_as(task.start)

    return evaluate


def clipped_plain(task: Task) -> Run:
    """A loop over the examples."""
    module, parameters = task.plain()

    def mean() -> tuple[float, Tensor]:
        total = [torch.zeros_like(value) for value in parameters]
        for image, label in zip(task.images, task.labels, strict=True):
            loss = functional.cross_entropy(module(image[None]), label[None])
            for sum_, value in zip(total, torch.autograd.grad(loss, parameters), strict=True):
                sum_ += value * (CLIP / value.norm()).clamp(max=1)
        return 0.0, torch.cat([value.flatten() for value in total]) / len(task.images)

    return mean


def clipped_leakbench(task: Task) -> Run:
    """The training path with Fed-CDP's clipping, without noise."""
    defense = FedCDP(clip=CLIP, noise_multiplier=0.0, convention="mean")
    batch = [Batch(inputs=task.images[None], labels=task.labels[None])]
    context = Context(batch_size=len(task.images), clients=(0,), noise=None)
    point = LeakPoint(view="batch")

    def mean() -> tuple[float, Tensor]:
        tapped = run_round(
            task.model, task.weights, batch, defense, defense.init(task.weights), context,
            point=point, stop_at_tap=True,
        ).tapped  # fmt: skip
        assert tapped is not None
        return 0.0, tapped.flatten()[0]

    return mean


PAIRS = {
    "objective": (objective_plain, objective_leakbench),
    "clipping": (clipped_plain, clipped_leakbench),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--examples", type=int, default=600)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=list(PAIRS), choices=PAIRS)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = [row for what in given.only for row in compared(what, given)]
    if given.json:
        print(json.dumps(rows, indent=1))
        return
    print(f"{given.model}, batch of {given.batch}, {given.examples} examples clipped to {CLIP}")
    print(f"{'':<22} {'seconds':>9} {'peak GiB':>9}  beside plain autograd")
    for row in rows:
        beside = ""
        if "seconds_ratio" in row:
            beside = (
                f"{row['seconds_ratio']:.2f} x time, {row['memory_ratio']:.2f} x memory, "
                f"difference {row['difference']:.1e}"
            )
        print(f"{row['name']:<22} {row['seconds']:>9.2f} {row['peak_gib']:>9.2f}  {beside}")


def compared(what: str, given: argparse.Namespace) -> list[dict[str, Any]]:
    """Both ways; the second row holds ratios, and the largest difference relative to the largest
    number."""
    plain, own = (measured(what, way, given) for way in (0, 1))
    wanted, found = plain.pop("result"), own.pop("result")
    own |= {
        "seconds_ratio": own["seconds"] / plain["seconds"],
        "memory_ratio": own["peak_gib"] / plain["peak_gib"],
        "difference": float(abs(found - wanted).max() / abs(wanted).max()),
    }
    return [plain, own]


def measured(what: str, way: int, given: argparse.Namespace) -> dict[str, Any]:
    """One way, run in a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(run, (what, way, given))


def run(what: str, way: int, given: argparse.Namespace) -> dict[str, Any]:
    """Seconds, peak memory and result of one way."""
    torch.set_num_threads(1)
    evaluate = PAIRS[what][way](
        Task.of(given.model, given.batch if what == "objective" else given.examples)
    )
    seconds = []
    for _ in range(given.repeats if what == "objective" else 1):
        begun = time.process_time()
        _, result = evaluate()
        seconds.append(time.process_time() - begun)
    return {
        "name": f"{what}, {('plain', 'leakbench')[way]}",
        "seconds": min(seconds),
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,  # KiB on Linux
        "result": result.numpy(),
    }


if __name__ == "__main__":
    main()
