"""Does a victim's result depend on who is computed beside it? Tried out on this machine.

Problems are padded to multiples of 8 so that it does not; whether that is enough is decided by the
kernels of the library at hand. Where they round a row by its neighbours, a chunk as a whole is what
is reproducible: `runner` then fixes its composition and makes it part of every identity.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from leakbench import architectures, registry
from leakbench.arithmetic import mode, processor
from leakbench.capturing import capture_leak
from leakbench.contracts import (
    Leak,
    LeakFacts,
    LeakPoint,
    Model,
    Streams,
)
from leakbench.errors import unknown_name
from leakbench.identity import source_digest
from leakbench.inversion import MatchingAttack
from leakbench.modules import ModuleModel
from leakbench.optim import LBFGS
from leakbench.spec import Grant
from leakbench.streams import VictimStreams, generator
from leakbench.weights import computed_alone

FORCED = "LEAKBENCH_ROWS"
"""Environment variable that may say "dependent": believe no probe, take chunks as units."""

GROUPS: tuple[tuple[int, ...], ...] = (tuple(range(19)), (8,), (17, 8, 3))
"""Victims solved together: many, one alone, some in another order."""

_ITERATIONS = 12  # past the 9 pairs from which triangular systems were seen to go wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What decides which kernels are used.

    parameters: of the model, as canonical JSON; those not given keep their defaults. batch_size:
    examples behind a gradient, over all `local_steps`. dtype: "float32" or "float64".
    """

    model: str
    input_shape: tuple[int, ...]
    classes: int
    parameters: str = "{}"
    batch_size: int = 1
    local_steps: int = 1
    dtype: str = "float32"
    device: str = "cpu"

    def __str__(self) -> str:
        size = "x".join(map(str, self.input_shape))
        behind = f", {self.batch_size} examples" if self.batch_size > 1 else ""
        steps = f", {self.local_steps} steps" if self.local_steps > 1 else ""
        return f"{self.model} on {size}{behind}{steps}, {self.dtype}, {self.device}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """independent: a victim's bits do not depend on neighbours, order or chunk. difference: the
    largest one found in a reconstruction, relative to the larger of the value and 1; inf where
    nothing was tried."""

    independent: bool
    difference: float


def rows(shape: Shape) -> Finding:
    """Attack a few random inputs together, alone and in another order, and compare the bits.

    Takes some tenths of a second; what was found is kept for this processor, torch, arithmetic and
    code in the user's cache folder.

    Raises:
        LeakbenchError: `LEAKBENCH_ROWS` is set to anything but "dependent".
    """
    if forced := os.environ.get(FORCED):
        if forced != "dependent":
            raise unknown_name("value", forced, ("dependent",), FORCED)
        return Finding(independent=False, difference=float("inf"))
    return _kept(shape, arithmetic())


@cache
def _kept(shape: Shape, kernels: str) -> Finding:
    """What the cache folder holds, else what is found now; a folder that fails is no cache."""
    path = _folder() / f"{_key(shape, kernels)}.json"
    with suppress(OSError, ValueError, TypeError):
        return Finding(**json.loads(path.read_bytes()))
    found = _tried(shape)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{os.getpid()}")
        part.write_text(json.dumps(asdict(found)), encoding="utf-8")
        os.replace(part, path)
    return found


def _folder() -> Path:
    # An account without a home keeps nothing, in a folder that is not there.
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "leakbench" / "probes"


def arithmetic() -> str:
    """`arithmetic.mode`; only MKL does what it is asked, so another BLAS is named as well."""
    return mode() if torch.backends.mkl.is_available() else f"{mode()}, {blas()}"


def blas() -> str:
    """Library behind torch's products of matrices on a CPU, as torch names it."""
    lines = [line.strip(" -") for line in torch.__config__.show().splitlines()]
    named = (line for line in lines if "Math Kernel Library" in line)
    settings = (part for line in lines for part in line.split(", ") if "BLAS_INFO=" in part)
    return next(named, "") or next(settings, "").rpartition("BLAS_INFO=")[2] or "unknown"


def _key(shape: Shape, kernels: str) -> str:
    on_gpu = shape.device.startswith("cuda")
    device = torch.cuda.get_device_name(shape.device) if on_gpu else processor()
    network = registry.find("models", shape.model).path
    code = source_digest((network,) if network else (), ("leakbench.probe",))
    parts = (device, torch.__config__.show(), torch.__version__, kernels, code, repr(shape))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


# ------------------------------------------------------------------------------ the trial


@dataclass(frozen=True, kw_only=True)
class Matching(MatchingAttack):
    """L-BFGS from a random start, long enough to fill some history."""

    name: ClassVar[str] = "probe"
    steps: int = 1
    max_iter: int = _ITERATIONS

    def start(self, leak: Leak, streams: Streams, restart: int = 0) -> Tensor:
        drawn = streams.uniform("start", (leak.batch_size, *leak.input_shape))
        return drawn.to(dtype=leak.dtype, device=leak.device)

    def optimiser(self, facts: LeakFacts) -> LBFGS:
        return LBFGS(steps=self.steps, max_iter=self.max_iter)


def _tried(shape: Shape) -> Finding:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the workers compute
    try:
        results = [attacked(shape, group) for group in GROUPS]
    finally:
        torch.set_num_threads(threads)
    return compared(GROUPS, results)


def compared(groups: Sequence[Sequence[int]], results: Sequence[Tensor]) -> Finding:
    """How far the results (len(group), ...) of the same victims in several groups are apart."""
    reference = dict(zip(groups[0], results[0].double(), strict=True))
    same, difference = True, 0.0
    for group, found in zip(groups, results, strict=True):
        for victim, one in zip(group, found.double(), strict=True):
            other = reference[victim]
            same = same and bool(((one == other) | (one.isnan() & other.isnan())).all())
            apart = ((one - other) / other.abs().clamp(min=1.0)).abs().nan_to_num(nan=0.0)
            difference = max(difference, float(apart.max()))
    return Finding(independent=same, difference=difference)


def attacked(shape: Shape, victims: Sequence[int]) -> Tensor:
    """Reconstructions of these victims, attacked together."""
    leak, streams = leak_of(shape, victims)
    return Matching().reconstruct(leak, streams, _unwatched).inputs.cpu()


def leak_of(shape: Shape, victims: Sequence[int]) -> tuple[Leak, VictimStreams]:
    """What leaks of random inputs, the same for a victim whoever is with it, and their streams."""
    device, dtype = torch.device(shape.device), getattr(torch, shape.dtype)
    model = _network(shape)
    drawn = model.init(generator(0, "probe"), dtype)
    weights = {name: value.to(device) for name, value in drawn.items()}
    streams = VictimStreams(0, tuple(("probe", victim) for victim in victims))
    batch = shape.batch_size
    inputs = streams.uniform("victim", (batch, *shape.input_shape)).to(device=device, dtype=dtype)
    of_victims = torch.tensor(victims)[:, None] * batch + torch.arange(batch)
    labels = (of_victims % shape.classes).to(device)
    granted: tuple[Grant, ...] = ("labels",)
    leak = capture_leak(
        model, inputs, labels, weights=weights, point=LeakPoint(type=1),
        local_steps=shape.local_steps, classes=shape.classes, grants=granted,
    )  # fmt: skip
    return leak, streams


def _network(shape: Shape) -> Model:
    """The network, or one dense layer in place of a large one: gradients of that are computed one
    after another, so that only the optimiser could round a row by its neighbours."""
    parameters = json.loads(shape.parameters)
    model = architectures.build(
        shape.model, shape.input_shape, shape.classes, parameters=parameters
    )
    if not computed_alone(model.init(generator(0, "probe"), torch.float32)):
        return model
    dense = torch.nn.Linear(math.prod(shape.input_shape), shape.classes)
    stand_in = torch.nn.Sequential(torch.nn.Flatten(), dense)
    return ModuleModel(module=stand_in, head="1.weight", scheme="uniform")


def _unwatched(
    rows: Tensor, steps: Tensor, evaluations: Tensor, inputs: Tensor, losses: Tensor
) -> None:
    """Nobody looks on."""


def summary(findings: Mapping[Shape, Finding]) -> dict[str, float]:
    """For a manifest: the shapes whose rows depend on each other, and by how much; {} if none.

    A difference that is not known is -1.
    """
    return {
        str(shape): found.difference if found.difference < float("inf") else -1.0
        for shape, found in findings.items()
        if not found.independent
    }
