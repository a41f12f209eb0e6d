"""Arithmetic settled before torch is loaded, and what it promises: the same bits elsewhere."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import Tensor

from leakbench import arithmetic, native
from leakbench.data import load
from leakbench.errors import LeakbenchError
from leakbench.numeric import square_root
from leakbench.probe import Shape, attacked

needs_avx2 = pytest.mark.skipif(not arithmetic.has_avx2(), reason="nothing to hold here")

BEHIND = "" if native.lanes() or not arithmetic.has_avx2() else f" {arithmetic.UNCOMPILED}"
"""What `mode` adds here to every name."""

ASK = """
import os
{before}
import leakbench.arithmetic as arithmetic
{after}
import torch
print(arithmetic.mode(), torch.backends.cpu.get_cpu_capability(), sep="|")
print(*(os.environ.get(name, "") for name in arithmetic.PORTABLE), sep="|")
"""


def ask(settings: Mapping[str, str], before: str = "", after: str = "") -> tuple[str, str, str]:
    """Mode, ATen's kernels, and the three variables, in a process with these variables only."""
    own = {*arithmetic.PORTABLE, arithmetic.CHOICE}
    clean = {name: value for name, value in os.environ.items() if name not in own}
    done = subprocess.run(
        [sys.executable, "-c", ASK.format(before=before, after=after)],
        env=clean | settings, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    first, variables = done.stdout.strip().split("\n")
    mode, _, kernels = first.rpartition("|")
    assert mode.endswith(BEHIND)
    return mode.removesuffix(BEHIND), kernels, variables


@needs_avx2
def test_portable_without_being_asked() -> None:
    assert ask({}) == ("portable", "AVX2", "COMPATIBLE|avx2|AVX2")


@needs_avx2
def test_what_the_user_has_set_stays() -> None:
    mode, kernels, variables = ask({"MKL_CBWR": "AVX2,STRICT"})
    assert variables == "AVX2,STRICT|avx2|AVX2"
    assert kernels == "AVX2"
    assert mode == "MKL_CBWR=AVX2,STRICT ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2"


@needs_avx2
def test_fast_leaves_the_choice_to_the_libraries() -> None:
    mode, kernels, variables = ask({"LEAKBENCH_ARITHMETIC": "fast"})
    assert (mode, variables) == ("fast", "||")
    assert ask({}, after="arithmetic.choose_fast()") == (mode, kernels, variables)


@needs_avx2
def test_fast_keeps_what_the_user_has_set() -> None:
    _, _, variables = ask({"MKL_CBWR": "AUTO"}, after="arithmetic.choose_fast()")
    assert variables == "AUTO||"


@needs_avx2
def test_worker_processes_compute_as_the_driver_does() -> None:
    workers = """
import subprocess, sys
def child():
    asked = "import leakbench.arithmetic as a; print(a.mode(), end='')"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True)
    return done.stdout.removesuffix(" uncompiled")
assert child() == "portable", child()
arithmetic.choose_fast()
assert child() == "fast", child()
"""
    assert ask({}, after=workers)[0] == "fast"


@needs_avx2
def test_a_torch_that_is_loaded_is_left_as_it_is() -> None:
    assert ask({}, before="import torch")[::2] == ("fast", "||")
    with pytest.raises(LeakbenchError, match="torch is loaded already; set LEAKBENCH_ARITHMETIC"):
        arithmetic.choose_fast()


def test_an_unknown_choice_is_one_sentence() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "leakbench.cli", "doctor"],
        env=os.environ | {"LEAKBENCH_ARITHMETIC": "quick"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "leakbench: LEAKBENCH_ARITHMETIC: unknown value 'quick'; allowed: fast, portable"
    ]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_root_is_two_divisions_and_an_exact_root(dtype: type) -> None:
    """numpy's root and division are rounded as IEEE 754 says, on every processor."""
    drawn = np.random.default_rng(0).standard_normal(100_000)
    values = (np.exp(8 * drawn)).astype(dtype)
    values = np.concatenate([values, np.array([0.0, 1.0, np.inf], dtype=dtype)])
    with np.errstate(divide="ignore"):
        expected = dtype(1) / (dtype(1) / np.sqrt(values))
    found = square_root(torch.from_numpy(values)).numpy()
    assert found.tobytes() == expected.tobytes()
    inside = slice(0, 100_000)
    error = np.abs(found[inside] - np.sqrt(values[inside])) / np.spacing(np.sqrt(values[inside]))
    assert error.max() <= 2
    assert bool(square_root(torch.tensor([-1.0, float("nan")])).isnan().all())


def digest(*values: Tensor) -> str:
    """Of the bits."""
    sha = hashlib.sha256()
    for value in values:
        sha.update(value.detach().contiguous().numpy().tobytes())
    return sha.hexdigest()[:16]


ELSEWHERE = {
    "cnn2": "cca659c5046c1b39",
    "lenet_cpl": "c9dbbd5822baed4a",
    "mlp": "87dc0eb4d9c952e5",
}
"""Of eight victims attacked for twelve iterations: found on an Intel Xeon with AVX-512, and under
emulation of an AMD EPYC of the Rome generation and of an Intel Haswell (scripts/elsewhere.sh)."""


@pytest.mark.skipif(
    arithmetic.mode() != "portable" or not torch.__version__.startswith("2.14.1"),
    reason="these bits are those of portable arithmetic and torch 2.14.1",
)
@pytest.mark.parametrize("model", list(ELSEWHERE))
def test_bits_are_those_found_elsewhere(model: str) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        digits = load("mnist")
        shape = Shape(model=model, input_shape=digits.input_shape, classes=digits.classes)
        assert digest(attacked(shape, range(8))) == ELSEWHERE[model]
    finally:
        torch.set_num_threads(threads)
