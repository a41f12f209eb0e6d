"""Batched CPL against the same attack one image at a time with torch.optim.LBFGS.

    python benchmarks/attack.py [--victims 100] [--steps 30] [--dataset mnist] [--json]

One process, one thread on a CPU. Both sides attack the same undefended gradients from the same
starts with the same step limit, and leave a victim alone once a step no longer moves it. The
baseline is what the reference notebooks do: a Python loop over victims, autograd for the dummy
gradient. Its victims run in two halves around the batched run, so that a machine that gets slower
meanwhile hurts both.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor

from leakbench import models
from leakbench.contracts import Context, Defense, Leak, LeakPoint, Observation, Replay
from leakbench.data import load
from leakbench.registry import load as load_plugin
from leakbench.streams import VictimStreams, generator
from leakbench.training import Batch, capture, simulator

SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One way of attacking: seconds, gradient evaluations, victims with MSE < 0.001."""

    way: str
    seconds: float
    evaluations: int
    recovered: int
    victims: int


def make_leak(dataset: str, victims: int, device: str) -> tuple[Leak, Tensor]:
    """Undefended type-2 leak of the first candidates, and their images."""
    data = load(dataset)
    model = models.build("lenet_cpl", data.input_shape, data.classes)
    weights = model.init(generator(SEED, "weights"), torch.float32)
    weights = {k: v.to(device) for k, v in weights.items()}
    images = data.candidates[:victims].to(device)
    labels = data.candidate_labels[:victims].to(device)
    where = torch.stack([torch.zeros(victims, dtype=torch.int64), torch.arange(victims)], dim=1)
    batch = Batch(inputs=images[None], labels=labels[None])
    point = LeakPoint()
    gradients = capture(
        model, weights, [batch], Defense(), Context(batch_size=victims), point, where.to(device)
    )
    seen = (Observation(weights=weights, gradients=gradients),)
    nobody = torch.zeros(victims, dtype=torch.int64, device=device)
    leak = Leak(
        model=model,
        observations=seen,
        simulate=simulator(model, seen, [Replay(defense=Defense())], nobody, point),
        point=point,
        batch_size=1,
        input_shape=data.input_shape,
        input_range=data.input_range,
        classes=data.classes,
    )
    return leak, images


def batched(leak: Leak, images: Tensor, streams: VictimStreams, steps: int) -> Row:
    """All victims in one batch."""
    attack = load_plugin("attacks", "cpl")(steps=steps)
    _wait(images)
    begun = time.perf_counter()
    result = attack.reconstruct(leak, streams, lambda rows, steps, inputs, losses: None)
    _wait(images)
    seconds = time.perf_counter() - begun
    errors = (result.inputs[:, 0] - images).square().flatten(1).mean(dim=1)
    return Row(
        way="batched",
        seconds=seconds,
        evaluations=int(result.evaluations.sum()),
        recovered=int((errors < 1e-3).sum()),
        victims=leak.n,
    )


def one_by_one(leak: Leak, images: Tensor, start: Tensor, steps: int, part: range) -> Row:
    """A Python loop with torch.optim.LBFGS, defaults, autograd of autograd."""
    weights = {k: v.clone().requires_grad_() for k, v in leak.observations[0].weights.items()}
    evaluations = recovered = 0
    _wait(images)
    begun = time.perf_counter()
    for victim in part:
        target = [value[victim] for value in leak.observed.tensors.values()]
        label = leak.observed.tensors[leak.model.head][victim].sum(dim=-1).argmin()[None]
        dummy = start[victim].clone().requires_grad_()
        optimiser = torch.optim.LBFGS([dummy])

        def closure(
            dummy: Tensor = dummy,
            label: Tensor = label,
            target: list[Tensor] = target,
            optimiser: Any = optimiser,
        ) -> Tensor:
            nonlocal evaluations
            evaluations += 1
            optimiser.zero_grad()
            loss = functional.cross_entropy(leak.model.logits(weights, dummy), label)
            made = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
            distance = sum(((one - two) ** 2).sum() for one, two in zip(made, target, strict=True))
            assert isinstance(distance, Tensor)
            dummy.grad = torch.autograd.grad(distance, dummy)[0]
            return distance.detach()

        for _ in range(steps):
            before = dummy.detach().clone()
            optimiser.step(closure)
            if torch.equal(before, dummy.detach()):
                break
        recovered += float((dummy.detach()[0] - images[victim]).square().mean()) < 1e-3
    _wait(images)
    return Row(
        way="one by one",
        seconds=time.perf_counter() - begun,
        evaluations=evaluations,
        recovered=recovered,
        victims=len(part),
    )


def _wait(images: Tensor) -> None:
    if images.is_cuda:
        torch.cuda.synchronize()


def measure(dataset: str, victims: int, steps: int, device: str) -> tuple[Row, Row, float]:
    """(batched, one by one, seconds-per-evaluation ratio)."""
    torch.set_num_threads(1)
    leak, images = make_leak(dataset, victims, device)
    streams = VictimStreams(SEED, tuple((dataset, victim) for victim in range(victims)))
    start = load_plugin("attacks", "cpl")().start(leak, streams)
    half = victims // 2
    first = one_by_one(leak, images, start, steps, range(half))
    fast = batched(leak, images, streams, steps)
    second = one_by_one(leak, images, start, steps, range(half, victims))
    slow = Row(
        way="one by one",
        seconds=first.seconds + second.seconds,
        evaluations=first.evaluations + second.evaluations,
        recovered=first.recovered + second.recovered,
        victims=victims,
    )
    return fast, slow, slow.seconds / fast.seconds


def main() -> None:
    """Print the table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--victims", type=int, default=100)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--dataset", default="mnist")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    fast, slow, ratio = measure(given.dataset, given.victims, given.steps, given.device)
    rows = [
        {
            "way": row.way,
            "seconds": round(row.seconds, 2),
            "evaluations": row.evaluations,
            "ms_per_evaluation": round(1e3 * row.seconds / row.evaluations, 3),
            "recovered": row.recovered,
            "victims": row.victims,
        }
        for row in (slow, fast)
    ]
    if given.json:
        print(json.dumps({"ratio": round(ratio, 2), "rows": rows}))
        return
    print(f"CPL, {given.dataset}, lenet_cpl, {given.victims} victims, {given.steps} steps at most")
    print(f"{'':<12} {'seconds':>9} {'evaluations':>12} {'ms/evaluation':>14} {'MSE < 1e-3':>11}")
    for row in rows:
        print(
            f"{row['way']:<12} {row['seconds']:>9} {row['evaluations']:>12} "
            f"{row['ms_per_evaluation']:>14} {row['recovered']:>7}/{row['victims']}"
        )
    print(f"batched is {ratio:.1f} times faster")


if __name__ == "__main__":
    main()
