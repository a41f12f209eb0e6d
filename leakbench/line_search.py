"""L-BFGS on one problem: a generator that reads like the sequential algorithm.

It asks for evaluations and search directions, knows their numbers only, and leaves all tensors to
who drives it: `optim`, for many problems at once.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leakbench.contracts import Ended

if TYPE_CHECKING:
    from leakbench.optim import LBFGS

FALLS = 1e-3
"""A loss has fallen that is smaller by this share."""


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Evaluate at base + t * direction; keep the gradient in `slot`."""

    t: float
    slot: int


@dataclass(frozen=True, slots=True)
class Evaluated:
    """What `Evaluate` found at the point."""

    loss: float
    slope: float  # gradient . direction
    gradient_max: float  # max |g|
    gradient_sum: float  # sum |g|


@dataclass(frozen=True, slots=True)
class Direction:
    """Compute a new direction at the base point."""


@dataclass(frozen=True, slots=True)
class Directed:
    """What `Direction` made."""

    slope: float
    direction_max: float  # max |d|


@dataclass(frozen=True, slots=True)
class Move:
    """Make base + t * direction the base; its gradient is in `slot`."""

    t: float
    slot: int


@dataclass(frozen=True, slots=True)
class StepDone:
    """A step ended at base + t * direction (t = 0: at the base), having started at `loss`."""

    t: float
    loss: float


Request = Evaluate | Direction | Move | StepDone
Control = Generator[Request, "Evaluated | Directed | None", Ended]

SLOTS = 4
"""Gradients to keep: at the base, and at the three points a line search needs at most."""


def control(o: LBFGS, counts: Counts) -> Control:
    """One problem from its start to its final status, step for step as `torch.optim.LBFGS`."""
    at = yield from _evaluate(0.0, 0)
    counts.start_loss = at.loss
    max_eval = o.max_eval if o.max_eval is not None else o.max_iter * 5 // 4
    first, lowest, waited = True, at.loss, 0
    while counts.steps < o.steps:
        step_loss, step_evaluations, iteration = at.loss, 1, 0
        unevaluated = 0.0  # length of a last move that the next step evaluates
        if at.gradient_max <= o.tolerance_grad:
            return "converged"
        while True:
            iteration += 1
            directed = yield Direction()
            assert isinstance(directed, Directed)
            t = o.lr * (min(1.0, 1.0 / at.gradient_sum) if first else 1.0)
            first = False
            if directed.slope > -o.tolerance_change:
                if iteration == 1:  # no step from here can move
                    return "converged"
                break
            previous = at
            if o.line_search:
                t, slot, at, used = yield from _strong_wolfe(
                    t, at, directed, o.tolerance_change, max_eval - step_evaluations
                )
                step_evaluations += used
                yield Move(t, slot)
            elif iteration == o.max_iter:
                unevaluated = t
                break
            else:
                at = yield from _evaluate(t, 1)
                step_evaluations += 1
                yield Move(t, 1)
            if (
                iteration == o.max_iter
                or step_evaluations >= max_eval
                or at.gradient_max <= o.tolerance_grad
                or abs(t) * directed.direction_max <= o.tolerance_change
                or abs(at.loss - previous.loss) < o.tolerance_change
            ):
                break
        counts.steps += 1
        yield StepDone(unevaluated, step_loss)
        if counts.steps == o.steps:
            break
        waited = 0 if at.loss < (1 - FALLS) * lowest else waited + 1
        lowest = min(lowest, at.loss)
        if waited == o.patience != 0:
            return "stalled"
        if unevaluated:
            at = yield from _evaluate(unevaluated, 1)
            yield Move(unevaluated, 1)
        else:  # torch evaluates the same point again: counted, not done
            counts.evaluations += 1
    return "steps"


def _evaluate(t: float, slot: int) -> Generator[Request, Evaluated | Directed | None, Evaluated]:
    answer = yield Evaluate(t, slot)
    assert isinstance(answer, Evaluated)
    return answer


@dataclass(slots=True)
class Counts:
    """What one problem has done so far."""

    steps: int = 0
    evaluations: int = 0
    start_loss: float = math.nan


@dataclass(frozen=True, slots=True)
class _Point:
    t: float
    slot: int
    at: Evaluated


def _strong_wolfe(
    t: float,
    base: Evaluated,
    directed: Directed,
    tolerance_change: float,
    max_evaluations: int,
    c1: float = 1e-4,
    c2: float = 0.9,
) -> Generator[Request, Evaluated | Directed | None, tuple[float, int, Evaluated, int]]:
    """Bracket, then zoom; returns (t, slot of its gradient, values there, evaluations used)."""
    slope = directed.slope
    start = _Point(0.0, 0, Evaluated(base.loss, slope, base.gradient_max, base.gradient_sum))
    new = _Point(t, 1, (yield from _evaluate(t, 1)))
    used, tries, old = 1, 0, start

    def too_high(point: _Point) -> bool:
        return point.at.loss > base.loss + c1 * point.t * slope

    def flat(point: _Point) -> bool:
        return abs(point.at.slope) <= -c2 * slope

    while True:
        if tries == max_evaluations:
            bracket = [start, new]
            break
        if too_high(new) or (tries > 1 and new.at.loss >= old.at.loss):
            bracket = [old, new]
            break
        if flat(new):
            return new.t, new.slot, new.at, used
        if new.at.slope >= 0:
            bracket = [old, new]
            break
        low_t, high_t = new.t + 0.01 * (new.t - old.t), new.t * 10
        t = _cubic_minimum(old, new, low_t, high_t)
        old, slot = new, 3 - new.slot  # bracketing alternates between slots 1 and 2
        new = _Point(t, slot, (yield from _evaluate(t, slot)))
        used, tries = used + 1, tries + 1

    stalled = False
    low, high = (0, 1) if bracket[0].at.loss <= bracket[1].at.loss else (1, 0)
    while tries < max_evaluations:
        left, right = sorted(point.t for point in bracket)
        if (right - left) * directed.direction_max < tolerance_change:
            break
        t = _cubic_minimum(bracket[0], bracket[1], left, right)
        margin = 0.1 * (right - left)
        if min(right - t, t - left) < margin:
            # Too close to an end: once may be luck, twice (or outside) is a stall.
            if stalled or t >= right or t <= left:
                t = right - margin if abs(t - right) < abs(t - left) else left + margin
                stalled = False
            else:
                stalled = True
        else:
            stalled = False
        slot = min({1, 2, 3} - {point.slot for point in bracket})
        new = _Point(t, slot, (yield from _evaluate(t, slot)))
        used, tries = used + 1, tries + 1
        if too_high(new) or new.at.loss >= bracket[low].at.loss:
            bracket[high] = new
            low, high = (0, 1) if bracket[0].at.loss <= bracket[1].at.loss else (1, 0)
            continue
        if flat(new):
            return new.t, new.slot, new.at, used
        if new.at.slope * (bracket[high].t - bracket[low].t) >= 0:
            bracket[high] = bracket[low]
        bracket[low] = new
    best = bracket[low]
    return best.t, best.slot, best.at, used


def _cubic_minimum(one: _Point, two: _Point, low: float, high: float) -> float:
    """Minimiser of the cubic through two values and slopes, kept inside [low, high]."""
    first, second = (one, two) if one.t <= two.t else (two, one)
    f1, g1, f2, g2 = first.at.loss, first.at.slope, second.at.loss, second.at.slope
    if first.t == second.t:
        return (low + high) / 2
    d1 = g1 + g2 - 3 * (f1 - f2) / (first.t - second.t)
    square = d1 * d1 - g1 * g2
    if square < 0:
        return (low + high) / 2
    d2 = math.sqrt(square)
    denominator = g2 - g1 + 2 * d2
    if denominator == 0:
        return (low + high) / 2
    minimum = second.t - (second.t - first.t) * ((g2 + d2 - d1) / denominator)
    return min(max(minimum, low), high)
