"""Batched attacks against the same attacks one image at a time, as reference notebooks run them.

    python benchmarks/attack.py [--victims 100] [--steps 15] [--only lenet_cpl/mnist ...] [--json]

One process, one thread on a CPU. Both sides attack the same undefended gradients from the same
starts with the same step limit, and leave a victim alone once a step no longer moves it. The
one-by-one side takes some of the victims, evenly spread, in two halves around the batched run, so
that a machine that gets slower meanwhile hurts both; its seconds are scaled to all victims. Seconds
are processor time on a CPU, where other programs may interrupt, and wall-clock time on a GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import re
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import leakbench.arithmetic  # noqa: F401  before torch, whose arithmetic it settles

# isort: split
import torch
import torch.nn.functional as functional
from torch import Tensor

from leakbench import architectures, optim
from leakbench.capturing import capture_leak
from leakbench.contracts import Attack, Leak
from leakbench.data import load
from leakbench.matching import sign_rule_labels
from leakbench.registry import load as load_plugin
from leakbench.streams import VictimStreams, generator

SEED = 0
CASES = ["cnn2/mnist", "cnn2/cifar10", "lenet_cpl/mnist", "lenet_cpl/cifar10"]
SIZES = [10, 30, 100, 300]
"""Numbers of victims in the second table."""

Loss = Callable[[Tensor], Tensor]
"""Distance of the dummy image's gradient to the observed one; differentiable."""


# ------------------------------------------------------------------- the two ways of attacking


def torch_lbfgs(loss: Loss, start: Tensor, steps: int) -> tuple[Tensor, int]:
    """`torch.optim.LBFGS` with its defaults -> (image, evaluations)."""
    dummy, evaluations = start.clone().requires_grad_(), 0
    optimiser = torch.optim.LBFGS([dummy])

    def closure() -> float:
        nonlocal evaluations
        evaluations += 1
        distance = loss(dummy)
        dummy.grad = torch.autograd.grad(distance, dummy)[0]
        return float(distance.detach())

    for _ in range(steps):
        before = dummy.detach().clone()
        optimiser.step(closure)
        if torch.equal(before, dummy.detach()):
            break
    return dummy.detach(), evaluations


def torch_signed_adam(loss: Loss, start: Tensor, steps: int) -> tuple[Tensor, int]:
    """`torch.optim.Adam` on signs, clamped, with GradInv's decay -> (image, evaluations)."""
    dummy = start.clone().requires_grad_()
    optimiser = torch.optim.Adam([dummy], lr=0.1)
    milestones = [steps * eighths // 8 for eighths in (3, 5, 7)]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, milestones, gamma=0.1)
    for _ in range(steps):
        dummy.grad = torch.autograd.grad(loss(dummy), dummy)[0].sign()
        optimiser.step()
        schedule.step()
        with torch.no_grad():
            dummy.clamp_(0, 1)
    return dummy.detach(), steps


def squared(made: Sequence[Tensor], target: Sequence[Tensor], dummy: Tensor) -> Tensor:
    """L2 matching."""
    parts = [((one - two) ** 2).sum() for one, two in zip(made, target, strict=True)]
    return torch.stack(parts).sum()


def cosine(made: Sequence[Tensor], target: Sequence[Tensor], dummy: Tensor) -> Tensor:
    """One angle over all parameters, and total variation with GradInv's weight."""
    product = torch.stack([(one * two).sum() for one, two in zip(made, target, strict=True)]).sum()
    lengths = [torch.stack([t.square().sum() for t in some]).sum() for some in (made, target)]
    angle = 1 - product / lengths[0].sqrt() / lengths[1].sqrt()
    return angle + 1e-4 * (dummy.diff(dim=-1).abs().mean() + dummy.diff(dim=-2).abs().mean())


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """An attack and what a notebook runs for one image in its place; both are given `a_step` of
    their own steps for each of L-BFGS."""

    name: str
    distance: Callable[[Sequence[Tensor], Sequence[Tensor], Tensor], Tensor]
    alone: Callable[[Loss, Tensor, int], tuple[Tensor, int]]
    a_step: int

    def plugin(self, steps: int) -> Attack:
        """The attack, limited to `steps` steps of L-BFGS or as many evaluations."""
        attack: Attack = load_plugin("attacks", self.name)(steps=steps * self.a_step)
        return attack


CONTESTS = {
    "cpl": Contest(name="cpl", distance=squared, alone=torch_lbfgs, a_step=1),
    "gradinv": Contest(name="gradinv", distance=cosine, alone=torch_signed_adam, a_step=20),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One way of attacking `victims`: seconds, gradient evaluations, victims with MSE < 0.001."""

    seconds: float
    evaluations: int
    recovered: int
    victims: int

    @property
    def ms(self) -> float:
        """Milliseconds per image and evaluation."""
        return 1e3 * self.seconds / self.evaluations


def clock(device: str) -> float:
    """Seconds, of work that is finished."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def make_leak(case: str, victims: int, device: str) -> tuple[Leak, Tensor, VictimStreams]:
    """Undefended type-2 leak of the first candidates, their images, and the attack's streams."""
    name, dataset = case.split("/")
    data = load(dataset)
    model = architectures.build(name, data.input_shape, data.classes)
    weights = model.init(generator(SEED, "weights"), torch.float32)
    weights = {k: v.to(device) for k, v in weights.items()}
    images = data.candidates[:victims].to(device)
    labels = data.candidate_labels[:victims].to(device)
    leak = capture_leak(model, images, labels, weights=weights)
    streams = VictimStreams(SEED, tuple((dataset, victim) for victim in range(victims)))
    return leak, images, streams


def batched(leak: Leak, images: Tensor, streams: VictimStreams, attack: Attack) -> Run:
    """All victims in one batch."""
    begun = clock(str(images.device))
    result = attack.reconstruct(leak, streams, lambda *seen: None)
    seconds = clock(str(images.device)) - begun
    errors = (result.inputs[:, 0] - images).square().flatten(1).mean(dim=1)
    return Run(
        seconds=seconds,
        evaluations=int(result.evaluations.sum()),
        recovered=int((errors < 1e-3).sum()),
        victims=leak.n,
    )


def one_by_one(
    leak: Leak, images: Tensor, starts: Tensor, contest: Contest, steps: int, part: list[int]
) -> Run:
    """A Python loop over the victims in `part`, autograd of autograd."""
    weights = {k: v.clone().requires_grad_() for k, v in leak.observations[0].weights.items()}
    labels = sign_rule_labels(leak)
    evaluations = recovered = 0
    begun = clock(str(images.device))
    for victim in part:
        target = [value[victim] for value in leak.observed.tensors.values()]
        label = labels[victim]

        def loss(dummy: Tensor, label: Tensor = label, target: list[Tensor] = target) -> Tensor:
            value = functional.cross_entropy(leak.model.logits(weights, dummy), label)
            made = torch.autograd.grad(value, list(weights.values()), create_graph=True)
            return contest.distance(made, target, dummy)

        image, spent = contest.alone(loss, starts[victim], steps * contest.a_step)
        evaluations += spent
        recovered += float((image[0] - images[victim]).square().mean()) < 1e-3
    return Run(
        seconds=clock(str(images.device)) - begun,
        evaluations=evaluations,
        recovered=recovered,
        victims=len(part),
    )


# ------------------------------------------------------------------- what is measured


@contextmanager
def stopwatch(owner: Any, name: str, device: str) -> Iterator[list[float]]:
    """Collects the seconds of every call of `owner.name`."""
    plain, seconds = getattr(owner, name), []

    def timed(*given: Any) -> Any:
        begun = clock(device)
        result = plain(*given)
        seconds.append(clock(device) - begun)
        return result

    setattr(owner, name, timed)
    try:
        yield seconds
    finally:
        setattr(owner, name, plain)


def multiply_adds(leak: Leak) -> int:
    """Of one image and evaluation, in 7 products a layer: the forward pass, gradients back and
    out, and four in their derivative; the first layer needs no way back and has 5."""
    total, weights = 0, leak.observations[0].weights
    image = torch.zeros(1, *leak.input_shape)
    for number, layer in enumerate(leak.model.convolutions):  # type: ignore[attr-defined]
        weight = weights[f"conv{number + 1}.weight"]
        sides = [math.ceil(side / layer.stride) for side in image.shape[-2:]]
        image = torch.zeros(1, len(weight), *sides)
        total += (7 if number else 5) * weight.numel() * math.prod(sides)
    return total + 7 * weights[leak.model.head].numel()


def peak(device: str) -> float:
    """GFLOP/s of a large matrix product in float32."""
    one = torch.rand(1536, 1536, device=device)
    best = math.inf
    for _ in range(5):
        begun = clock(device)
        one @ one
        best = min(best, clock(device) - begun)
    return 2 * len(one) ** 3 / best / 1e9


def measure(attack: str, case: str, given: argparse.Namespace) -> dict[str, Any]:
    """One row: medians over the repeats."""
    contest, device = CONTESTS[attack], given.device
    leak, images, streams = make_leak(case, given.victims, device)
    plugin = contest.plugin(given.steps)
    starts = plugin.start(leak, streams)
    assert starts is not None
    few = min(given.alone, given.victims)
    part = [place * given.victims // few for place in range(few)]
    fast, slow, halves, shares = [], [], (part[::2], part[1::2]), []
    one_by_one(leak, images, starts, contest, 1, part[:1])  # first calls build kernels
    for _ in range(given.repeats):
        first = one_by_one(leak, images, starts, contest, given.steps, halves[0])
        with (
            stopwatch(optim, "padded", device) as objective,
            stopwatch(optim._Engine, "_directions", device) as directions,
        ):
            fast.append(batched(leak, images, streams, plugin))
        second = one_by_one(leak, images, starts, contest, given.steps, halves[1])
        slow.append(
            Run(
                seconds=(first.seconds + second.seconds) * given.victims / few,
                evaluations=round((first.evaluations + second.evaluations) * given.victims / few),
                recovered=first.recovered + second.recovered,
                victims=few,
            )
        )
        shares.append((sum(objective), sum(directions)))
    ratios = [one.seconds / two.seconds for one, two in zip(slow, fast, strict=True)]
    seconds = statistics.median(run.seconds for run in fast)
    in_objective, in_directions = (statistics.median(some) for some in zip(*shares, strict=True))
    work, speed = multiply_adds(leak), peak(device)
    # Evaluations that the optimiser counts as torch does, but has no need to repeat, are a few.
    flops = 2 * work * fast[0].evaluations / in_objective / 1e9
    return {
        "attack": attack,
        "case": case,
        "ratio": round(statistics.median(ratios), 2),
        "batched_seconds": round(seconds, 2),
        "one_by_one_seconds": round(statistics.median(run.seconds for run in slow), 2),
        "batched_evaluations": fast[0].evaluations,
        "one_by_one_evaluations": slow[0].evaluations,
        "batched_ms": round(statistics.median(run.ms for run in fast), 3),
        "one_by_one_ms": round(statistics.median(run.ms for run in slow), 3),
        "recovered": fast[0].recovered,
        "victims": given.victims,
        "one_by_one_recovered": slow[0].recovered,
        "one_by_one_victims": few,
        "multiply_adds": work,
        "gflops": round(flops, 1),
        "peak_gflops": round(speed, 1),
        "share_of_peak": round(flops / speed, 3),
        "share_objective": round(in_objective / seconds, 3),
        "share_directions": round(in_directions / seconds, 3),
        "share_rest": round(1 - (in_objective + in_directions) / seconds, 3),
    }


def of_size(case: str, victims: int, steps: int, device: str) -> tuple[float, float]:
    """Seconds a victim, and the peak memory in MB, of a process that does nothing else."""
    torch.set_num_threads(1)
    leak, images, streams = make_leak(case, victims, device)
    run = batched(leak, images, streams, CONTESTS["cpl"].plugin(steps))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if (status := Path("/proc/self/status")).exists():  # above, Linux counts the parent's peak
        memory = int(re.findall(r"VmHWM:\s*(\d+)", status.read_text())[0]) / 1024
    if device.startswith("cuda"):
        memory = torch.cuda.max_memory_allocated() / 2**20
    return run.seconds / victims, memory


def growth(case: str, given: argparse.Namespace) -> list[dict[str, Any]]:
    """Time and memory by the number of victims, each in a fresh process; 100 evaluations fill the
    history, so 6 steps use all the memory there is."""
    rows: list[dict[str, Any]] = []
    for size in SIZES:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            seconds, memory = pool.apply(of_size, (case, size, 6, given.device))
        row = {"victims": size, "seconds_per_victim": round(seconds, 4), "peak_mb": round(memory)}
        if rows:
            more = (memory - rows[-1]["peak_mb"]) / (size - rows[-1]["victims"])
            row["mb_per_further_victim"] = round(more, 2)
        rows.append(row)
    return rows


# ------------------------------------------------------------------- what is printed


def table(rows: list[dict[str, Any]], columns: dict[str, str]) -> None:
    """Columns heading -> key of the rows, aligned."""
    cells = [list(columns)] + [[str(row.get(key, "")) for key in columns.values()] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
    print()


def main() -> None:
    """Print the tables, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--victims", type=int, default=100)
    parser.add_argument("--alone", type=int, default=20, help="victims of the one-by-one side")
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", nargs="+", default=CASES, metavar="MODEL/DATASET")
    parser.add_argument("--attacks", nargs="+", default=list(CONTESTS), choices=list(CONTESTS))
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measure(attack, case, given) for attack in given.attacks for case in given.only]
    by_size = growth(given.only[-1], given)
    ratio = min(row["ratio"] for row in rows)
    if given.json:
        print(json.dumps({"ratio": ratio, "rows": rows, "sizes": by_size}))
        return
    print(f"{given.victims} victims, at most {given.steps} steps; one by one:")
    print(f"{rows[0]['one_by_one_victims']} of them, evenly spread, scaled to all\n")
    table(
        rows,
        {
            "attack": "attack",
            "model/data": "case",
            "one by one s": "one_by_one_seconds",
            "batched s": "batched_seconds",
            "ratio": "ratio",
            "evaluations": "one_by_one_evaluations",
            "batched": "batched_evaluations",
            "ms each": "one_by_one_ms",
            "batched ms": "batched_ms",
            "MSE < 1e-3": "recovered",
            "of": "victims",
        },
    )
    print(f"batched, by the number of victims ({given.only[-1]}, 6 steps)\n")
    table(
        by_size,
        {
            "victims": "victims",
            "s a victim": "seconds_per_victim",
            "peak MB": "peak_mb",
            "MB a further victim": "mb_per_further_victim",
        },
    )
    print("batched, arithmetic of the objective, and shares of the time\n")
    table(
        rows,
        {
            "attack": "attack",
            "model/data": "case",
            "multiply-adds": "multiply_adds",
            "GFLOP/s": "gflops",
            "of a large product": "peak_gflops",
            "share": "share_of_peak",
            "objective": "share_objective",
            "directions": "share_directions",
            "rest": "share_rest",
        },
    )
    print(f"batched is at least {ratio:.1f} times faster")


if __name__ == "__main__":
    main()
