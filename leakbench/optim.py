"""Optimisers that run n independent problems in one program.

The control flow of one problem (`line_search.control`) reads like the sequential algorithm; it
asks for evaluations and search directions, and the engine answers all problems' requests together
with batched tensor operations. A problem leaves the batch for good only when further steps cannot
move it, when it is no longer finite, or when its steps are used up.

Every call of the objective is padded to a multiple of 8 problems by copies: results then do not
depend, bit for bit, on chunk, order or neighbours (tests/test_optim.py probes it).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from leakbench.contracts import Ended
from leakbench.histories import Rows, history
from leakbench.line_search import (
    SLOTS,
    Counts,
    Directed,
    Direction,
    Evaluate,
    Evaluated,
    Move,
    Request,
    StepDone,
    control,
)
from leakbench.numeric import square_root

Objective = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(points (k, d), problem numbers (k,)) -> (losses (k,), gradients (k, d)), row by row."""

StepWatch = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], None]
"""(problem numbers (k,), steps and evaluations done (k,), points (k, d), losses at the start of the
step (k,))."""

Returned = Literal["best", "last"]
"""Which iterate an optimiser gives back."""

PAD = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """Per problem: the best finite point by its own loss, or the last, and what it took.

    points (n, d); loss (n,) at `points`; start_loss (n,); steps, evaluations (n,) int64;
    status n of "converged", "steps" (used up), "stalled", "nan".
    """

    points: Tensor
    loss: Tensor
    start_loss: Tensor
    steps: Tensor
    evaluations: Tensor
    status: tuple[Ended, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LBFGS:
    """Limited-memory BFGS with the semantics and defaults of `torch.optim.LBFGS`.

    A step is up to `max_iter` iterations of d = -H g, x += t d. Without line search t is `lr`
    (min(1, 1/|g|_1) lr in the very first iteration) and a full step is exactly `max_iter`
    evaluations; with it t satisfies the strong Wolfe conditions (Nocedal and Wright, algorithms
    3.5 and 3.6). A tolerance_change exit ends a step and the next one moves again from there; only
    max|g| <= tolerance_grad at a step's start, or a directional derivative above
    -tolerance_change, is final. A pair enters the history when y.s > 1e-10.

    patience: steps in a row without a loss, at their ends, below .999 of the lowest before, after
    which a problem is given up as "stalled"; 0: never.

    steps: limit on steps. max_eval: evaluations that end a step; None means max_iter * 5 // 4.
    """

    steps: int = 300
    lr: float = 1.0
    max_iter: int = 20
    max_eval: int | None = None
    tolerance_grad: float = 1e-7
    tolerance_change: float = 1e-9
    history: int = 100
    line_search: bool = False
    patience: int = 0

    @property
    def budget(self) -> int:
        """Evaluations of a problem that uses up its steps; a line search may end a step later."""
        return self.steps * self.max_iter

    def minimise(
        self, objective: Objective, start: Tensor, watch: StepWatch | None = None
    ) -> Solution:
        """Minimise n problems from `start` (n, d)."""
        return _Engine(self, objective, start, watch).run()


# ------------------------------------------------------------------- all problems together


class _Engine:
    """Answers the requests of all control generators with batched tensor operations.

    Tensors have one row an active problem: base points x, gradient slots g, directions d, and what
    `histories` keeps.
    """

    def __init__(
        self, options: LBFGS, objective: Objective, start: Tensor, watch: StepWatch | None
    ) -> None:
        self.o, self.objective, self.watch = options, objective, watch
        n, d = start.shape
        self.rows = torch.arange(n, device=start.device)  # problem numbers of the active rows
        self.x = start.clone()
        self.g = start.new_zeros(SLOTS, n, d)
        self.d = start.new_zeros(n, d)
        self.t = start.new_zeros(n)
        self.previous_g = start.new_zeros(n, d)
        self.history = history(start, options.history)
        self.begun = [False] * n
        self.counts = [Counts() for _ in range(n)]
        self.controls = [control(options, counts) for counts in self.counts]
        self.numbers = list(range(n))
        self.best_x, self.best_loss = start.clone(), start.new_full((n,), math.inf)
        self.status: list[Ended] = ["steps"] * n

    def run(self) -> Solution:
        pending: list[Request | None] = [next(each) for each in self.controls]
        while any(pending):
            pending = self._compact(self._answer(pending))
        device = self.best_x.device
        return Solution(
            points=self.best_x,
            loss=torch.where(torch.isfinite(self.best_loss), self.best_loss, math.nan),
            start_loss=self.best_loss.new_tensor([c.start_loss for c in self.counts]),
            steps=torch.tensor([c.steps for c in self.counts], dtype=torch.int64, device=device),
            evaluations=torch.tensor(
                [c.evaluations for c in self.counts], dtype=torch.int64, device=device
            ),
            status=tuple(self.status),
        )

    def _answer(self, pending: list[Request | None]) -> list[Request | None]:
        """Answer one round: moves and step ends first (they need no arithmetic), then directions,
        then one evaluation of everybody who waits for one."""
        while self._some(pending, (Move, StepDone)):
            self._report_steps(pending)
            self._move(pending)
        if chosen := self._some(pending, (Direction,)):
            for row, directed in zip(chosen, self._directions(chosen), strict=True):
                pending[row] = self._resume(row, directed)
        elif chosen := self._some(pending, (Evaluate,)):
            for row, evaluated in zip(chosen, self._evaluations(chosen, pending), strict=True):
                pending[row] = None if evaluated is None else self._resume(row, evaluated)
        return pending

    def _resume(self, row: int, answer: Evaluated | Directed | None) -> Request | None:
        try:
            return self.controls[row].send(answer)
        except StopIteration as stop:
            self.status[self.numbers[row]] = stop.value
            return None

    @staticmethod
    def _some(pending: list[Request | None], kinds: tuple[type, ...]) -> list[int]:
        return [row for row, request in enumerate(pending) if isinstance(request, kinds)]

    def _report_steps(self, pending: list[Request | None]) -> None:
        done = self._some(pending, (StepDone,))
        if not done:
            return
        requests = [pending[row] for row in done]
        index = self._index(done)
        t = self.x.new_tensor([r.t for r in requests])  # type: ignore[union-attr]
        losses = self.x.new_tensor([r.loss for r in requests])  # type: ignore[union-attr]
        if self.watch is not None:
            counts = [self.counts[self.numbers[row]] for row in done]
            steps = torch.tensor([count.steps for count in counts])
            evaluations = torch.tensor([count.evaluations for count in counts])
            points = torch.where((t == 0)[:, None], self.x[index], self._at(index, t))
            self.watch(self.rows[index], steps, evaluations, points, losses)
        for row in done:
            pending[row] = self._resume(row, None)

    def _move(self, pending: list[Request | None]) -> None:
        moving = self._some(pending, (Move,))
        if not moving:
            return
        requests = [pending[row] for row in moving]
        index = self._index(moving)
        slots = torch.tensor([r.slot for r in requests], device=self.x.device)  # type: ignore[union-attr]
        t = self.x.new_tensor([r.t for r in requests])  # type: ignore[union-attr]
        self.x[index] = self._at(index, t)
        self.t[index] = t
        self.g[0, index] = self.g[slots, index]
        for row in moving:
            pending[row] = self._resume(row, None)

    def _at(self, index: Tensor, t: Tensor) -> Tensor:
        return self.x[index] + t[:, None] * self.d[index]

    def _index(self, rows: list[int]) -> Tensor:
        return torch.tensor(rows, dtype=torch.int64, device=self.x.device)

    def _evaluations(
        self, chosen: list[int], pending: list[Request | None]
    ) -> list[Evaluated | None]:
        """Evaluate; None for a problem that is no longer finite, which ends it."""
        index = self._index(chosen)
        requests = [pending[row] for row in chosen]
        slots = torch.tensor([r.slot for r in requests], device=self.x.device)  # type: ignore[union-attr]
        t = self.x.new_tensor([r.t for r in requests])  # type: ignore[union-attr]
        points = self._at(index, t)
        loss, gradient = padded(self.objective, points, self.rows[index])
        self.g[slots, index] = gradient
        slope = (gradient * self.d[index]).sum(dim=1)
        size = gradient.abs()
        finite = torch.isfinite(loss) & torch.isfinite(size.sum(dim=1))
        numbers = self.rows[index]
        better = finite & (loss < self.best_loss[numbers])
        self.best_x[numbers[better]] = points[better]
        self.best_loss[numbers[better]] = loss[better]
        columns = torch.stack([loss, slope, size.amax(dim=1), size.sum(dim=1)], dim=1).tolist()
        answers: list[Evaluated | None] = []
        for row, values, is_finite in zip(chosen, columns, finite.tolist(), strict=True):
            self.counts[self.numbers[row]].evaluations += 1
            if not is_finite:
                self.status[self.numbers[row]] = "nan"
            answers.append(Evaluated(*values) if is_finite else None)
        return answers

    def _directions(self, chosen: list[int]) -> list[Directed]:
        """Update the history of these rows, then compute their directions."""
        begun = torch.tensor([self.begun[row] for row in chosen], device=self.x.device)
        for row in chosen:
            self.begun[row] = True
        rows = Rows(self.g[0], self.previous_g, self.t, self.d)
        columns = self.history.directions(rows, self._index(chosen), begun).tolist()
        return [Directed(*values) for values in columns]

    def _compact(self, pending: list[Request | None]) -> list[Request | None]:
        """Drop finished rows, once they are a quarter of all: it copies the history of the rest."""
        alive = [row for row, request in enumerate(pending) if request is not None]
        if 4 * len(alive) > 3 * len(pending):
            return pending
        index = self._index(alive)
        self.g = self.g[:, index]
        for name in ("rows", "x", "d", "t", "previous_g"):
            setattr(self, name, getattr(self, name)[index])
        self.history.keep(index)
        self.controls = [self.controls[row] for row in alive]
        self.numbers = [self.numbers[row] for row in alive]
        self.begun = [self.begun[row] for row in alive]
        return [pending[row] for row in alive]


def with_copies(values: Tensor) -> Tensor:
    """`values` and copies of its last row, up to a multiple of 8 rows.

    The last: rows that go through one replay lie side by side, and stay so.
    """
    extra = -len(values) % PAD
    return torch.cat([values, values[-1:].expand(extra, *values.shape[1:])]) if extra else values


def padded(objective: Objective, points: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Call `objective` with copies of the last row up to a multiple of 8, and drop them again."""
    k = len(points)
    loss, gradient = objective(with_copies(points), with_copies(numbers))
    return loss[:k].detach(), gradient[:k].detach()


def one_by_one(objective: Objective) -> Objective:
    """The same objective for problems so large that one alone fills a core, and the memory.

    Each is evaluated by itself, so that nothing depends on who else there is, and rows of one
    problem, which are copies, once.
    """

    def alone(points: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
        found: dict[int, tuple[Tensor, Tensor]] = {}
        order = numbers.tolist()
        for row, number in enumerate(order):
            if number not in found:
                found[number] = objective(points[row : row + 1], numbers[row : row + 1])
        losses, gradients = zip(*(found[number] for number in order), strict=True)
        return torch.cat([loss.detach() for loss in losses]), torch.cat(gradients)

    return alone


# ------------------------------------------------------------------- first order


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedAdam:
    """Adam as gradient inversion uses it: on the gradient's sign, and inside a box.

    Betas and eps are the defaults of `torch.optim.Adam`. The point after the last step is evaluated
    too: `steps` + 1 evaluations.

    lr: first learning rate. decays: it falls to a tenth at 3/8, 5/8 and 7/8 of `steps`, each
    rounded down, where `torch.optim.lr_scheduler.MultiStepLR` would lower it. signed: give Adam the
    sign of the gradient. box: every coordinate is clamped to it after every step; the start is not.
    scale: (d,) each coordinate's step is so many times as long; None: once. returns: "best" is the
    point with the smallest loss, "last" the one after the last step, or before the first loss or
    gradient that is not finite.
    """

    steps: int = 24000
    lr: float = 0.1
    decays: bool = True
    signed: bool = True
    box: tuple[float, float] | None = None
    scale: Tensor | None = None
    returns: Returned = "best"

    @property
    def budget(self) -> int:
        """Evaluations of a problem that uses up its steps."""
        return self.steps + 1

    def minimise(
        self, objective: Objective, start: Tensor, watch: StepWatch | None = None
    ) -> Solution:
        """Minimise n problems from `start` (n, d)."""
        n, device = len(start), start.device
        points, loss = start.clone(), start.new_full((n,), math.inf)
        start_loss = start.new_full((n,), math.nan)
        steps = torch.full((n,), self.steps, dtype=torch.int64, device=device)
        status: list[Ended] = ["steps"] * n
        rows = torch.arange(n, device=device)  # problem numbers of the active ones
        x, moments, rate = start.clone(), (torch.zeros_like(start),) * 2, self.lr
        milestones = [self.steps * eighths // 8 for eighths in (3, 5, 7)] if self.decays else []
        for step in range(self.steps + 1):
            if not len(rows):
                break
            losses, gradient = padded(objective, x, rows)
            finite = torch.isfinite(losses) & torch.isfinite(gradient).all(dim=1)
            if step == 0:
                start_loss = torch.where(finite, losses, math.nan)
            kept = finite if self.returns == "last" else finite & (losses < loss[rows])
            points[rows] = torch.where(kept[:, None], x, points[rows])
            loss[rows] = torch.where(kept, losses, loss[rows])
            if not bool(finite.all()):
                steps[rows[~finite]] = step
                for number in rows[~finite].tolist():
                    status[number] = "nan"
                rows, x, losses, gradient = (v[finite] for v in (rows, x, losses, gradient))
                moments = (moments[0][finite], moments[1][finite])
            if step == self.steps or not len(rows):
                break
            rate *= 0.1 ** milestones.count(step)
            x, moments = self._step(x, gradient, moments, step + 1, rate)
            if watch is not None:
                done = torch.full((len(rows),), step + 1)
                watch(rows, done, done, x, losses)
        return Solution(
            points=points,
            loss=torch.where(torch.isfinite(loss), loss, math.nan),
            start_loss=start_loss,
            steps=steps,
            evaluations=steps + 1,
            status=tuple(status),
        )

    def _step(
        self, x: Tensor, gradient: Tensor, moments: tuple[Tensor, Tensor], count: int, rate: float
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Step number `count`, from 1: the new points and running moments.

        Single products and sums only: a fused kernel rounds the last elements of a tensor another
        way, and which elements these are depends on the batch.
        """
        beta1, beta2, eps = 0.9, 0.999, 1e-8
        if self.signed:
            gradient = gradient.sign()
        mean = beta1 * moments[0] + (1 - beta1) * gradient
        square = beta2 * moments[1] + (1 - beta2) * (gradient * gradient)
        step = mean / (square_root(square) / math.sqrt(1 - beta2**count) + eps)
        if self.scale is not None:
            step = step * self.scale
        x = x - rate / (1 - beta1**count) * step
        return (x if self.box is None else x.clamp(*self.box)), (mean, square)
