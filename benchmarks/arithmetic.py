"""What reproducible arithmetic costs: the same attacks under each mode, in turns.

    python benchmarks/arithmetic.py [--victims 64] [--steps 3] [--turns 3]

Every turn is a process of its own, since torch reads its settings once: one thread, processor time,
the least of all turns. A ratio of 1.10 means 10 % slower than where the libraries choose.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping

MODES: Mapping[str, Mapping[str, str]] = {
    "fast": {"LEAKBENCH_ARITHMETIC": "fast"},
    "portable": {},
    "AVX2,STRICT": {"MKL_CBWR": "AVX2,STRICT"},
}
CASES = ("cnn2/mnist", "lenet_cpl/mnist", "cnn2/cifar10", "lenet_cpl/cifar10")


def measured(victims: int, steps: int) -> dict[str, float]:
    """Milliseconds of processor time an image and evaluation, by case, in this process."""
    import torch

    from leakbench.data import load
    from leakbench.probe import Matching, Shape, leak_of

    torch.set_num_threads(1)
    found = {}
    for case in CASES:
        model, name = case.split("/")
        data = load(name)
        shape = Shape(model=model, input_shape=data.input_shape, classes=data.classes)
        leak, streams = leak_of(shape, range(victims))
        begun = time.process_time()
        attack = Matching(steps=steps, max_iter=20)
        result = attack.reconstruct(leak, streams, lambda *_: None)
        spent = time.process_time() - begun
        found[case] = 1e3 * spent / int(result.evaluations.sum())
    return found


def in_process(mode: str, victims: int, steps: int) -> dict[str, float]:
    """`measured` under a mode."""
    own = ("MKL_CBWR", "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "LEAKBENCH_ARITHMETIC")
    clean = {name: value for name, value in os.environ.items() if name not in own}
    words = ["--inside", "--victims", str(victims), "--steps", str(steps)]
    done = subprocess.run(
        [sys.executable, __file__, *words],
        env=clean | {"OMP_NUM_THREADS": "1"} | MODES[mode],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--victims", type=int, default=64)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        print(json.dumps(measured(given.victims, given.steps)))
        return
    turns = [
        {mode: in_process(mode, given.victims, given.steps) for mode in MODES}
        for _ in range(given.turns)
    ]
    print(f"{'ms an image and evaluation':<28}" + "".join(f"{mode:>24}" for mode in MODES))
    for case in CASES:
        least = {mode: min(turn[mode][case] for turn in turns) for mode in MODES}
        cells = (f"{ms:.2f} ({ms / least['fast']:.2f})" for ms in least.values())
        print(f"{case:<28}" + "".join(f"{cell:>24}" for cell in cells))


if __name__ == "__main__":
    main()
