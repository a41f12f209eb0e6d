"""Levenberg-Marquardt against scipy, closed forms, and what can go wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import least_squares
from torch import Tensor

from leakbench.levenberg_marquardt import LevenbergMarquardt, Linearised


@dataclass
class Curve:
    """A residual, differentiated by torch; as a matrix, or as products with one."""

    residual: Callable[[Tensor], Tensor]
    as_product: bool = False
    costs: int = 0

    def cost(self, point: Tensor) -> Tensor:
        self.costs += 1
        return self.residual(point).square().sum()

    def linearised(self, point: Tensor, cost: float) -> Linearised:
        jacobian = torch.func.jacfwd(self.residual)(point)
        matrix = jacobian.T @ jacobian
        return Linearised(
            slope=jacobian.T @ self.residual(point),
            matrix=(lambda v: matrix @ v) if self.as_product else matrix,
            evaluations=len(point),
        )


def fit(seed: int, unknowns: int, equations: int) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """A smooth residual that does not vanish at its minimum, and a start."""
    drawn = torch.Generator().manual_seed(seed)
    first = torch.randn(equations, unknowns, generator=drawn, dtype=torch.float64)
    offset = torch.randn(equations, generator=drawn, dtype=torch.float64)
    start = torch.randn(unknowns, generator=drawn, dtype=torch.float64)
    return lambda x: torch.tanh(first @ x / 2) + 0.3 * (first @ x) - 0.1 * offset, start


def solved(curve: Curve, start: Tensor, **options: float) -> tuple[Tensor, float, str]:
    method = LevenbergMarquardt(**{"steps": 200, **options})  # type: ignore[arg-type]
    found = method.minimise(lambda _: curve, start[None])
    return found.points[0], float(found.loss[0]), found.status[0]


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    unknowns=st.integers(1, 5),
    more=st.integers(0, 6),
    as_product=st.booleans(),
)
def test_the_minimum_is_scipys(seed: int, unknowns: int, more: int, as_product: bool) -> None:
    residual, start = fit(seed, unknowns, unknowns + more)
    expected = least_squares(
        lambda x: residual(torch.as_tensor(x)).numpy(), start.numpy(),
        jac=lambda x: torch.func.jacfwd(residual)(torch.as_tensor(x)).numpy(),
        method="lm", xtol=1e-15, ftol=1e-15, gtol=1e-15,
    )  # fmt: skip
    accuracy = {"accuracy": 1e-10} if as_product else {}
    point, loss, status = solved(Curve(residual, as_product), start, **accuracy)
    assert status == "converged"
    assert loss == pytest.approx(2 * expected.cost, rel=1e-8, abs=1e-16)
    assert torch.allclose(residual(point), torch.as_tensor(expected.fun), atol=2e-4)


def test_rosenbrock_ends_at_its_minimum() -> None:
    curve = Curve(lambda x: torch.stack([10 * (x[1] - x[0] ** 2), 1 - x[0]]))
    point, loss, status = solved(
        curve, torch.tensor([-1.2, 1.0], dtype=torch.float64), enough=1e-22
    )
    assert status == "converged"
    assert loss <= 1e-22
    assert torch.allclose(point, torch.ones(2, dtype=torch.float64), atol=1e-8)


def linear(singular: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    drawn = torch.Generator().manual_seed(3)
    matrix = torch.randn(7, 4, generator=drawn, dtype=torch.float64)
    if singular:
        matrix[:, 3] = matrix[:, 0] - 2 * matrix[:, 1]
    right = torch.randn(7, generator=drawn, dtype=torch.float64)
    return matrix, right, torch.randn(4, generator=drawn, dtype=torch.float64)


@pytest.mark.parametrize("as_product", [False, True])
def test_a_linear_problem_takes_one_step(as_product: bool) -> None:
    matrix, right, start = linear()
    curve = Curve(lambda x: matrix @ x - right, as_product)
    point, _, status = solved(curve, start, steps=1, damping=1e-14, accuracy=1e-14)
    assert status == "steps"
    expected = torch.linalg.lstsq(matrix, right[:, None]).solution[:, 0]
    assert torch.allclose(point, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("as_product", [False, True])
def test_a_rank_deficient_problem_keeps_what_the_equations_leave_open(as_product: bool) -> None:
    """The minimum nearest to the start: steps lie in the row space."""
    matrix, right, start = linear(singular=True)
    curve = Curve(lambda x: matrix @ x - right, as_product)
    point, _, status = solved(curve, start, accuracy=1e-12)
    assert status == "converged"
    expected = start + torch.linalg.pinv(matrix) @ (right - matrix @ start)
    assert torch.allclose(point, expected, atol=1e-6)


def test_evaluations_steps_and_watch_agree() -> None:
    residual, start = fit(1, 3, 6)
    curve = Curve(residual)
    seen: list[tuple[int, int, float]] = []

    def watch(
        rows: Tensor, steps: Tensor, evaluations: Tensor, points: Tensor, losses: Tensor
    ) -> None:
        assert rows.tolist() == [0]
        assert points.shape == (1, 3)
        seen.append((int(steps), int(evaluations), float(losses)))

    found = LevenbergMarquardt(steps=4).minimise(lambda _: curve, start[None], watch)
    steps = int(found.steps[0])
    assert [step for step, _, _ in seen] == list(range(1, steps + 1))
    assert int(found.evaluations[0]) == curve.costs + 3 * steps
    assert seen[-1][1] == int(found.evaluations[0])
    losses = [loss for _, _, loss in seen]
    assert losses[0] == float(found.start_loss[0])
    assert sorted(losses, reverse=True) == losses
    assert float(found.loss[0]) < losses[-1]


def test_problems_are_independent_and_in_order() -> None:
    several = [fit(seed, 3, 6) for seed in range(3)]
    curves, starts = [Curve(f) for f, _ in several], torch.stack([x for _, x in several])
    together = LevenbergMarquardt().minimise(lambda number: curves[number], starts)
    for number, curve in enumerate(curves):
        alone = LevenbergMarquardt().minimise(lambda _, one=curve: one, starts[number : number + 1])  # type: ignore[misc]
        assert torch.equal(alone.points[0], together.points[number])
        assert alone.loss[0] == together.loss[number]


def test_a_start_that_is_not_finite_ends_at_once() -> None:
    curve = Curve(lambda x: x / 0)
    start = torch.ones(2, dtype=torch.float64)
    found = LevenbergMarquardt().minimise(lambda _: curve, start[None])
    assert found.status == ("nan",)
    assert math.isnan(found.loss[0])
    assert torch.equal(found.points[0], start)
    assert int(found.steps[0]) == 0


def test_a_trial_that_is_not_finite_is_refused() -> None:
    """log(x) is no number left of 0, where the undamped step from 5 leads."""
    curve = Curve(lambda x: torch.log(x))
    point, loss, status = solved(curve, torch.tensor([5.0], dtype=torch.float64), enough=1e-24)
    assert status == "converged"
    assert loss <= 1e-24
    assert float(point) == pytest.approx(1.0, abs=1e-10)


def test_a_flat_problem_ends() -> None:
    curve = Curve(lambda x: 0 * x + 1)
    _, loss, status = solved(curve, torch.ones(2, dtype=torch.float64))
    assert (loss, status) == (2.0, "converged")
    assert curve.costs == 1


def test_products_of_a_slope_whose_square_rounds_to_zero_end() -> None:
    start = torch.full((3,), 1e-165, dtype=torch.float64)

    class Faint(Curve):
        def cost(self, point: Tensor) -> Tensor:
            return point.new_tensor(1.0)

    point, _, status = solved(Faint(lambda x: x, as_product=True), start)
    assert status == "converged" and torch.equal(point, start)
