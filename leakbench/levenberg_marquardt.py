"""Levenberg-Marquardt: sums of squares made small by damped Gauss-Newton steps.

A problem is F(x) = ||r(x)||^2, prior terms included. With J = dr/dx, A = J^T J and b = J^T r, a
step h solves (A + damping I) h = -b; the model says that F falls by h . (damping h - b). The
damping follows the gain ratio, how much F fell over how much it should (Nielsen 1999; Madsen,
Nielsen and Tingleff, "Methods for non-linear least squares problems", 2004, algorithm 3.16).

Problems are solved one after another: one of some hundred unknowns fills a core, the memory is that
of one, and nothing can depend on neighbours. Everything is in the floating type of the start;
float64 is meant, since A has the square of J's condition number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from leakbench.contracts import Ended
from leakbench.optim import Solution, StepWatch

Product = Callable[[Tensor], Tensor]
"""(d,) -> (d,): A v, where A is too large to be written down."""

REFUSALS = 12
"""Steps refused in a row that end a problem: the damping has grown by 2^78 by then."""
FLAT, FLAT_STEPS = 1e-6, 3
"""So many steps in a row that each lower F by less than this share end a problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Linearised:
    """A problem near a point: b = J^T r (d,) and A = J^T J, (d, d) or its product with a vector.

    evaluations: what it took to get them, in the problem's own units.
    """

    slope: Tensor
    matrix: Tensor | Product
    evaluations: int


class LeastSquares(Protocol):
    """One sum of squares over d unknowns."""

    def cost(self, point: Tensor) -> Tensor:
        """F at (d,), a scalar; counts as one evaluation."""
        ...

    def linearised(self, point: Tensor, cost: float) -> Linearised:
        """Half the derivative of F at (d,), where it is `cost`, and the matrix of its model."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LevenbergMarquardt:
    """Damped Gauss-Newton steps on n problems.

    A step is a linearisation and the trials until one lowers F. Its problem ends "converged" when F
    is at most `enough`, when the slope is 0, when REFUSALS trials in a row do not lower F, or when
    FLAT_STEPS steps in a row hardly do; "nan" where F or its derivatives are not finite at a point
    it stands on (a trial that is not finite is refused).

    steps: limit on them. enough: F that is as good as 0. damping: the first one, as a share of the
    largest element of A's diagonal. Where A is given as a product, conjugate gradients solve for h
    until the rest is `accuracy` times b, with `products` products at most, each of which counts
    `product_evaluations`.
    """

    steps: int = 60
    enough: float = 0.0
    damping: float = 1e-3
    products: int = 100
    product_evaluations: int = 1
    accuracy: float = 1e-3

    def minimise(
        self,
        problem_of: Callable[[int], LeastSquares],
        start: Tensor,
        watch: StepWatch | None = None,
    ) -> Solution:
        """Minimise n problems from `start` (n, d); `problem_of` is called as each one's turn comes.

        Evaluations are one a cost, and what linearisations and products take.
        """
        runs = []
        for number, point in enumerate(start):
            run = _Run(self, problem_of(number), point, number, watch)
            run.go()
            runs.append(run)
        device = start.device
        return Solution(
            points=torch.stack([run.point for run in runs]) if runs else start.clone(),
            loss=start.new_tensor([run.cost for run in runs]),
            start_loss=start.new_tensor([run.start_cost for run in runs]),
            steps=torch.tensor([run.steps for run in runs], dtype=torch.int64, device=device),
            evaluations=torch.tensor(
                [run.evaluations for run in runs], dtype=torch.int64, device=device
            ),
            status=tuple(run.status for run in runs),
        )


class _Run:
    """One problem on its way."""

    def __init__(
        self,
        options: LevenbergMarquardt,
        problem: LeastSquares,
        point: Tensor,
        number: int,
        watch: StepWatch | None,
    ) -> None:
        self.o, self.problem, self.watch = options, problem, watch
        self.number = torch.tensor([number], device=point.device)
        self.point = point.clone()
        self.damping, self.growth = math.nan, 2.0
        self.steps, self.evaluations = 0, 0
        self.start_cost = self.cost = self._cost_at(self.point)
        self.status: Ended = "steps"

    def go(self) -> None:
        if not math.isfinite(self.cost):
            self.status, self.cost = "nan", math.nan
            return
        flat = 0
        while self.steps < self.o.steps:
            if self.cost <= self.o.enough:
                self.status = "converged"
                return
            near = self.problem.linearised(self.point, self.cost)
            self.evaluations += near.evaluations
            finite = bool(torch.isfinite(near.slope).all())
            if not finite or not _is_finite(near.matrix):
                self.status = "nan"
                return
            before = self.cost
            if not bool(near.slope.any()) or not self._step(near):
                self.status = "converged"
                return
            flat = flat + 1 if before - self.cost < FLAT * before else 0
            if flat == FLAT_STEPS:
                self.status = "converged"
                return
        if self.cost <= self.o.enough:
            self.status = "converged"

    def _step(self, near: Linearised) -> bool:
        """Move to a lower cost, or tell that no damping leads to one."""
        if math.isnan(self.damping):
            self.damping = self.o.damping * self._largest(near)
        for _ in range(REFUSALS):
            step = self._solved(near)
            if step is not None:
                trial = self.point + step
                cost = self._cost_at(trial)
                expected = float(step @ (self.damping * step - near.slope))
                gain = (self.cost - cost) / expected if expected > 0 else -1.0
                if gain > 0:  # never of a nan
                    self._accept(trial, cost, gain)
                    return True
            self.damping *= self.growth
            self.growth *= 2
        return False

    def _accept(self, trial: Tensor, cost: float, gain: float) -> None:
        before, self.point, self.cost = self.cost, trial, cost
        # From 1 on it is 1/3; the power of a gain over next to nothing would overflow.
        self.damping *= max(1 / 3, 1 - (2 * min(gain, 1.0) - 1) ** 3)
        self.growth = 2.0
        self.steps += 1
        if self.watch is not None:
            steps, evaluations = torch.tensor([[self.steps], [self.evaluations]])
            self.watch(self.number, steps, evaluations, trial[None], trial.new_tensor([before]))

    def _cost_at(self, point: Tensor) -> float:
        self.evaluations += 1
        return float(self.problem.cost(point))

    def _largest(self, near: Linearised) -> float:
        """The largest element of A's diagonal; of a product, A's curvature along the slope."""
        if isinstance(near.matrix, Tensor):
            largest = float(near.matrix.diagonal().amax())
        else:
            self.evaluations += self.o.product_evaluations
            slope = near.slope / torch.linalg.vector_norm(near.slope)
            largest = float(slope @ near.matrix(slope))
        return largest if largest > 0 else 1.0

    def _solved(self, near: Linearised) -> Tensor | None:
        """h of (A + damping I) h = -b; None where rounding left no positive definite matrix."""
        if not isinstance(near.matrix, Tensor):
            return self._by_conjugate_gradients(near.matrix, -near.slope)
        damped = near.matrix.clone()
        damped.diagonal().add_(self.damping)
        factor, failed = torch.linalg.cholesky_ex(damped)
        if int(failed):
            return None
        return torch.cholesky_solve(-near.slope[:, None], factor)[:, 0]

    def _by_conjugate_gradients(self, product: Product, right: Tensor) -> Tensor:
        found = torch.zeros_like(right)
        rest, direction = right, right
        size = first = float(right @ right)
        for _ in range(self.o.products):
            image = product(direction) + self.damping * direction
            self.evaluations += self.o.product_evaluations
            curvature = float(direction @ image)
            if not (size > 0 and curvature > 0):  # too small for squares, or not finite
                break
            along = size / curvature
            found = found + along * direction
            rest = rest - along * image
            before, size = size, float(rest @ rest)
            if not size > self.o.accuracy**2 * first:
                break
            direction = rest + size / before * direction
        return found


def _is_finite(matrix: Tensor | Product) -> bool:
    return not isinstance(matrix, Tensor) or bool(torch.isfinite(matrix).all())
