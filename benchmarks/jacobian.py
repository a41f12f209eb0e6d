"""Jacobians of gradients by hand against `torch.func`: the columns that Gauss-Newton asks for.

    python benchmarks/jacobian.py [--columns 784] [--repeats 3] [--json]

One victim, one process, one thread on a CPU, in processor seconds: the derivative of one image's
gradient by each of its pixels, by a network's own program and as `vmap(jvp(grad))`, 64 columns at
a time. Both run once to warm up, then in turns; the fastest counts. The last column is the largest
relative difference between the two, over all parameters.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import leakbench.arithmetic  # noqa: F401  before torch, whose arithmetic it settles

# isort: split
import torch
from torch import Tensor

from leakbench import architectures, tangents
from leakbench.contracts import Model
from leakbench.data import load
from leakbench.streams import generator

CASES = [
    ("cnn2", "float64"), ("cnn2", "float32"), ("lenet_cpl", "float64"), ("lenet_cpl", "float32"),
]  # fmt: skip


def seconds_of(work: Callable[[], object]) -> float:
    """Processor time of one call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def compare(name: str, dtype: torch.dtype, columns: int, repeats: int) -> dict[str, Any]:
    """One row of the table."""
    digits = load("mnist")
    model = architectures.build(name, digits.input_shape, digits.classes)
    weights = model.init(generator(0, "weights"), dtype)
    image, label = digits.candidates[:1].to(dtype), digits.candidate_labels[:1]
    units = torch.eye(image.numel(), dtype=dtype)[:columns].reshape(-1, *image.shape)

    def derivatives(of: Model) -> dict[str, Tensor]:
        return tangents.per_example(of, weights, image, label, units)[1]

    general = tangents.Plain(model)
    ours, theirs = derivatives(model), derivatives(general)
    apart = max(float((ours[k] - v).norm() / v.norm()) for k, v in theirs.items())
    del ours, theirs
    times: dict[str, list[float]] = {"by hand": [], "torch.func": []}
    for _ in range(repeats):
        times["by hand"].append(seconds_of(lambda: derivatives(model)))
        times["torch.func"].append(seconds_of(lambda: derivatives(general)))
    hand, func = (min(values) for values in times.values())
    kind = str(dtype).removeprefix("torch.")
    return {
        "model": name, "dtype": kind, "columns": len(units), "by_hand": hand, "torch_func": func,
        "times_faster": func / hand, "apart": apart,
    }  # fmt: skip


def main() -> None:
    """Print a table, or a line of JSON a row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--columns", type=int, default=784)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if not asked.json:
        print("| model | type | columns | by hand, s | torch.func, s | times faster | apart |")
        print("|---|---|---|---|---|---|---|")
    for name, kind in CASES:
        row = compare(name, getattr(torch, kind), asked.columns, asked.repeats)
        if asked.json:
            print(json.dumps(row), flush=True)
            continue
        print(
            f"| {name} | {kind} | {row['columns']} | {row['by_hand']:.2f} "
            f"| {row['torch_func']:.2f} | {row['times_faster']:.1f} | {row['apart']:.0e} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
