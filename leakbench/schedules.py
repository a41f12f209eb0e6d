"""How clipping bounds and noise scales fall over the rounds of training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, get_args

from leakbench.errors import LeakbenchError, require_at_least, unknown_name

Decay = Literal["constant", "linear", "staircase", "exponential", "cosine", "triangular"]

TIFSDecay = Literal["linear", "exponential", "cyclic"]
TPDSDecay = Literal["linear", "staircase", "exponential", "cyclic"]

# The two papers mean different curves by "cyclic".
TIFS: Mapping[str, Decay] = {
    "linear": "linear",
    "exponential": "exponential",
    "cyclic": "triangular",
}
"""Policies for C and sigma of TIFS section IV-A, by the names used there."""
TPDS: Mapping[str, Decay] = {
    "linear": "linear",
    "staircase": "staircase",
    "exponential": "exponential",
    "cyclic": "cosine",
}
"""Policies for sigma of TPDS section 5.3, by the names used there."""


def decayed(
    kind: Decay,
    first: float,
    last: float,
    *,
    round: int,
    total: int,
    steps: int = 10,
    cycles: int = 4,
) -> float:
    """Value in 0-based round t of T, from v0 = `first` at t = 0 to vT = `last` at t >= T.

    The papers give a start and rates, which they do not print; the end takes the place of a rate
    here, so that one that would fall below zero cannot be set (`ending` finds it for a rate). total
    <= 1, or v0 = vT, gives v0 throughout. All values lie between v0 and vT. Since the last round is
    T - 1, only `triangular` reaches vT inside of training.

    - constant: v0, whatever `last` says.
    - linear: v0 + (vT - v0) t/T. TIFS IV-A, TPDS 5.3: v0 (1 - gamma t). Fed-CDP(decay): 6 to 2.
    - staircase: v0 + (vT - v0) floor(t n/T)/n with n = `steps`. TPDS 5.3: v0 (1 - gamma
      floor(t/Gamma)), Gamma = T/n; n = 10 is that of the authors' code, the paper gives none.
    - exponential: v0 (vT/v0)^(t/T). TIFS IV-A, TPDS 5.3: v0 e^(-gamma t).
    - cosine: vT + (v0 - vT) (1 + cos(pi (t mod P)/P))/2 with P = ceil(T/`cycles`) rounds. TPDS 5.3
      has no vT (that is vT = 0), which would end each cycle almost without noise; vT is the
      minimum of the annealing that the paper cites.
    - triangular: vT + (v0 - vT) (1 - k/n) |1 - 2 (t mod P)/P|, in triangle k of n = `cycles`. TIFS
      IV-A: v0* (1 -+ gamma t), falling and rising in turns, while v0* falls with every triangle.
      All valleys are at vT here, and the peaks fall evenly.

    The number of cycles and the depths were not published; 4 cycles are the default here.

    Raises:
        LeakbenchError: an unknown kind, steps or cycles below 1, or see `check_ends`.
    """
    if kind not in get_args(Decay):
        raise unknown_name("decay", kind, get_args(Decay))
    require_at_least("decay", 1, steps=steps, cycles=cycles)
    check_ends("decay", kind, first, last)
    if kind == "constant" or first == last or total <= 1 or round <= 0:
        return first
    if round >= total:
        return last
    if kind == "linear":
        return first + (last - first) * round / total
    if kind == "staircase":
        return first + (last - first) * (round * steps // total) / steps
    if kind == "exponential":
        return float(first * (last / first) ** (round / total))
    period = math.ceil(total / cycles)
    cycle, place = divmod(round, period)
    if kind == "cosine":
        height = (1 + math.cos(math.pi * place / period)) / 2
    else:
        height = (1 - cycle / cycles) * abs(1 - 2 * place / period)
    return last + (first - last) * height


def stepped(factor: float, every: int, round: int) -> float:
    """What is left in 0-based `round` of 1 that is multiplied by `factor` after every so many."""
    return float(factor ** (round // every))


def check_ends(where: str, kind: Decay, first: float, last: float) -> None:
    """Refuse an exponential decay to or from 0, which it never reaches."""
    if kind == "exponential" and first != last and not (first > 0 and last > 0):
        text = f"exponential decay needs both ends above 0, got {first} and {last}"
        raise LeakbenchError(f"{where}: {text}")


def ending(kind: Decay, first: float, rate: float, *, total: int, steps: int = 10) -> float:
    """The value vT that a paper's rate gamma leads to after T = `total` rounds.

    linear: v0 (1 - gamma T); staircase: v0 (1 - gamma n) after n = `steps`; exponential: v0
    e^(-gamma T). `decayed` with that end is the paper's formula.

    Raises:
        LeakbenchError: a curve without a rate, or one that falls below 0 before the end.
    """
    check_rated("decay", kind)
    if kind == "exponential":
        return first * math.exp(-rate * total)
    times = total if kind == "linear" else steps
    if rate * times > 1:
        text = f"a rate of {rate:g} leads below 0 before the end; allowed: up to {1 / times:g}"
        raise LeakbenchError(f"decay '{kind}' over {total} rounds: {text}")
    return first * (1 - rate * times)


def check_rated(where: str, kind: Decay) -> None:
    """Refuse a curve whose depth no rate gives: the papers' cyclic ones, and none at all."""
    if kind not in (rated := ("linear", "staircase", "exponential")):
        raise LeakbenchError(f"{where}: has no rate; allowed with a rate: {', '.join(rated)}")
