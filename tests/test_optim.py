"""Batched L-BFGS against `torch.optim.LBFGS`, and bits that do not depend on the neighbours."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from leakbench import architectures
from leakbench.attacks.cpl import CPL
from leakbench.attacks.dlg import DLG
from leakbench.capturing import capture_leak
from leakbench.contracts import (
    Leak,
    LeakPoint,
    Reconstruction,
    concatenate,
)
from leakbench.data import load
from leakbench.matching import sign_rule_labels
from leakbench.models.sigmoid import SigmoidNet
from leakbench.optim import LBFGS, Objective, SignedAdam, Solution
from leakbench.streams import VictimStreams, generator

Function = Callable[[Tensor], Tensor]
"""(d,) -> scalar: one problem."""

POINT = LeakPoint(type=2, view="example")


# ------------------------------------------------------------------- problems, one by one


def quadratic(dimension: int, condition: float, seed: int) -> Function:
    """Convex, with eigenvalues from 1 to `condition` and its minimum, 0, at a random point."""
    stream = torch.Generator().manual_seed(seed)
    square = torch.randn(dimension, dimension, generator=stream, dtype=torch.float64)
    axes = torch.linalg.qr(square).Q
    scales = condition ** torch.linspace(0, 0.5, dimension, dtype=torch.float64)
    minimum = torch.randn(dimension, generator=stream, dtype=torch.float64)
    return lambda point: 0.5 * (scales * (axes @ (point - minimum))).square().sum()


def rosenbrock(point: Tensor) -> Tensor:
    """The curved valley; its minimum, 0, is at (1, ..., 1)."""
    valley = (point[1:] - point[:-1].square()).square()
    return (100 * valley + (1 - point[:-1]).square()).sum()


def bent(dimension: int, condition: float, seed: int) -> Function:
    """A quadratic and a quartic: still convex, but no step length fits twice."""
    flat = quadratic(dimension, condition, seed)
    return lambda point: flat(point) + 0.3 * point.square().square().sum()


def rippled(frequency: float, slope: float, quartic: float) -> Function:
    """Line searches bracket the wrong wave, stall and zoom for long."""
    return lambda point: (
        0.1 * (frequency * point).sin() + slope * point + quartic * point**4
    ).sum()


def faint(point: Tensor) -> Tensor:
    """So flat that y.s never comes near 1e-10."""
    return 1e-7 * point.square().sum()


def two_wells(point: Tensor) -> Tensor:
    """Curved downwards around 0: y.s is negative at first."""
    return (point**4 / 4 - point.square() / 2).sum()


def starts(n: int, dimension: int, seed: int) -> Tensor:
    """(n, dimension) from N(0, 1), float64."""
    stream = torch.Generator().manual_seed(seed)
    return torch.randn(n, dimension, generator=stream, dtype=torch.float64)


def value_and_gradient(function: Function, point: Tensor) -> tuple[Tensor, Tensor]:
    """Loss and gradient at one point (d,)."""
    point = point.detach().requires_grad_()
    with torch.enable_grad():
        loss = function(point)
    return loss.detach(), torch.autograd.grad(loss, point)[0]


def row_by_row(functions: Sequence[Function]) -> Objective:
    """Problems as a batched objective whose every row is computed alone, as torch computes it."""

    def objective(points: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
        pairs = [
            value_and_gradient(functions[number], point)
            for number, point in zip(numbers.tolist(), points, strict=True)
        ]
        return torch.stack([loss for loss, _ in pairs]), torch.stack([grad for _, grad in pairs])

    return objective


# ------------------------------------------------------------------- what an optimiser did


@dataclass(slots=True, kw_only=True)
class Walk:
    """One problem's way: points evaluated (those evaluated again left out) and steps."""

    points: list[Tensor] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    after_step: list[Tensor] = field(default_factory=list)
    step_losses: list[float] = field(default_factory=list)
    evaluations: int = 0
    status: str = "steps"


class NotFinite(Exception):
    """Torch's closure met a loss or gradient that is not finite."""


def walk_of_torch(function: Function, start: Tensor, options: LBFGS) -> Walk:
    """Run `torch.optim.LBFGS` until its steps are used up or one of them does nothing."""
    parameter = start.clone().requires_grad_()
    optimiser = torch.optim.LBFGS(
        [parameter],
        lr=options.lr,
        max_iter=options.max_iter,
        max_eval=options.max_eval,
        tolerance_grad=options.tolerance_grad,
        tolerance_change=options.tolerance_change,
        history_size=options.history,
        line_search_fn="strong_wolfe" if options.line_search else None,
    )
    walk = Walk()
    last_step: list[Tensor] = []
    this_step: list[Tensor] = []

    def closure() -> float:
        point = parameter.detach().clone()
        loss, parameter.grad = value_and_gradient(function, point)
        walk.evaluations += 1
        # A step may begin where the last one already was: evaluated twice, written down once.
        if this_step or not any(point.equal(seen) for seen in last_step):
            walk.points.append(point)
            walk.losses.append(float(loss))
        this_step.append(point)
        if not (loss.isfinite() and parameter.grad.isfinite().all()):
            raise NotFinite
        return float(loss)

    for _ in range(options.steps):
        last_step[:] = this_step
        this_step.clear()
        before = parameter.detach().clone()
        try:
            loss = optimiser.step(closure)
        except NotFinite:
            walk.status = "nan"
            break
        if len(this_step) == 1 and parameter.equal(before):
            walk.status = "converged"
            break
        walk.after_step.append(parameter.detach().clone())
        walk.step_losses.append(loss)
    return walk


def walks_of_batch(
    objective: Objective, start: Tensor, options: LBFGS
) -> tuple[list[Walk], Solution]:
    """Run the batched optimiser, writing down what the objective and the watcher are given."""
    walks = [Walk() for _ in start]

    def recorded(points: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
        losses, gradients = objective(points, numbers)
        written: set[int] = set()  # rows of the padding repeat a number
        for number, point, loss in zip(numbers.tolist(), points, losses.tolist(), strict=True):
            if number not in written:
                walks[number].points.append(point.clone())
                walks[number].losses.append(loss)
            written.add(number)
        return losses, gradients

    def watch(
        numbers: Tensor, steps: Tensor, evaluations: Tensor, points: Tensor, losses: Tensor
    ) -> None:
        rows = zip(numbers.tolist(), steps.tolist(), points, losses.tolist(), strict=True)
        for number, step, point, loss in rows:
            walks[number].after_step.append(point.clone())
            walks[number].step_losses.append(loss)
            assert step == len(walks[number].after_step)

    solution = options.minimise(recorded, start, watch)
    for walk, evaluations, status in zip(
        walks, solution.evaluations.tolist(), solution.status, strict=True
    ):
        walk.evaluations, walk.status = evaluations, status
    assert [len(walk.after_step) for walk in walks] == solution.steps.tolist()
    return walks, solution


def relative(value: Tensor, expected: Tensor) -> float:
    """Distance of two points relative to the size of the expected one."""
    return float((value - expected).norm() / expected.norm().clamp(min=1e-300))


def assert_same_walk(ours: Walk, expected: Walk, first: int, rtol: float = 1e-6) -> None:
    """The first evaluations agree, and over the whole run counts, steps and the stop reason."""
    for k, (value, point) in enumerate(zip(ours.points[:first], expected.points, strict=False)):
        assert relative(value, point) <= rtol, f"evaluation {k}"
    floor = 1e-12 * abs(expected.losses[0])
    losses = expected.losses[: min(first, len(ours.losses))]
    assert ours.losses[: len(losses)] == pytest.approx(losses, rel=rtol, abs=floor)
    assert ours.status == expected.status
    assert ours.evaluations == expected.evaluations
    assert len(ours.points) == len(expected.points)
    assert len(ours.after_step) == len(expected.after_step)


def assert_follows_torch(
    functions: Sequence[Function], start: Tensor, options: LBFGS, first: int = 40
) -> list[Walk]:
    """Every problem of a batch goes the way torch goes alone; returns our walks."""
    walks, solution = walks_of_batch(row_by_row(functions), start, options)
    for number, (function, ours) in enumerate(zip(functions, walks, strict=True)):
        expected = walk_of_torch(function, start[number], options)
        assert_same_walk(ours, expected, first)
        if expected.after_step:
            assert relative(ours.after_step[-1], expected.after_step[-1]) <= 1e-6
        assert_is_best(solution, number, ours)
    return walks


def assert_is_best(solution: Solution, number: int, walk: Walk) -> None:
    """The solution is the first of the evaluated points with the least finite loss, bit for bit."""
    finite = [loss if math.isfinite(loss) else math.inf for loss in walk.losses]
    best = finite.index(min(finite))
    assert solution.points[number].equal(walk.points[best])
    assert float(solution.loss[number]) == walk.losses[best]
    assert float(solution.start_loss[number]) == walk.losses[0]


# ------------------------------------------------------------------- the same way as torch


@pytest.mark.parametrize("line_search", [False, True])
@pytest.mark.parametrize("dimension", [1, 2, 5, 12, 30])
def test_follows_torch_on_quadratics(dimension: int, line_search: bool) -> None:
    conditions = [1.0, 3.0, 10.0, 100.0, 1e3, 1e4]
    functions = [quadratic(dimension, value, seed) for seed, value in enumerate(conditions)]
    start = starts(len(functions), dimension, seed=1)
    options = LBFGS(steps=15, line_search=line_search)
    walks = assert_follows_torch(functions, start, options)
    if dimension > 1:
        assert len({walk.evaluations for walk in walks}) > 2  # the batch shrinks on the way


@pytest.mark.parametrize("line_search", [False, True])
@pytest.mark.parametrize("dimension", [2, 3, 5, 10])
def test_follows_torch_on_rosenbrock(dimension: int, line_search: bool) -> None:
    # Without line search the valley is chaotic: after 50 evaluations rounding takes over.
    options = LBFGS(steps=15 if line_search or dimension == 2 else 2, line_search=line_search)
    walks = assert_follows_torch([rosenbrock] * 4, starts(4, dimension, seed=2), options)
    if line_search or dimension == 2:
        assert len({walk.evaluations for walk in walks}) > 1


@pytest.mark.parametrize("line_search", [False, True])
def test_follows_torch_when_ill_conditioned(line_search: bool) -> None:
    """The first 40 evaluations only: after 200 rounding decides when it stops."""
    functions = [quadratic(30, 1e6, seed) for seed in range(3)]
    start, options = starts(3, 30, seed=2), LBFGS(steps=3, line_search=line_search)
    walks, _ = walks_of_batch(row_by_row(functions), start, options)
    for function, ours, point in zip(functions, walks, start, strict=True):
        expected = walk_of_torch(function, point, options)
        pairs = zip(ours.points[:40], expected.points[:40], strict=True)
        assert max(relative(*pair) for pair in pairs) <= 1e-6


@pytest.mark.parametrize(
    "options",
    [
        LBFGS(history=1),
        LBFGS(history=1, line_search=True),
        LBFGS(history=3),
        LBFGS(max_iter=1),
        LBFGS(max_iter=1, line_search=True),
        LBFGS(max_iter=4, max_eval=3),
        LBFGS(max_eval=1, line_search=True),
        LBFGS(max_eval=4, line_search=True),  # what is left of it bounds a line search
        LBFGS(max_eval=60, line_search=True),
        LBFGS(lr=0.3),
        LBFGS(lr=0.3, line_search=True),
        LBFGS(lr=30, line_search=True),  # the first trial is far too long: zoom
        LBFGS(lr=0.03, line_search=True),  # far too short: bracket
        LBFGS(tolerance_grad=1e-2, tolerance_change=1e-4),
    ],
    ids=repr,
)
def test_follows_torch_with_other_options(options: LBFGS) -> None:
    functions = [quadratic(6, 30.0, 3), bent(6, 10.0, 4), quadratic(6, 2.0, 5), bent(6, 100.0, 6)]
    assert_follows_torch(functions, starts(4, 6, seed=3), replace(options, steps=3))


@pytest.mark.parametrize(
    ("function", "lr", "max_iter"),
    [
        (rippled(8.0, 0.0, 1.0), 0.5, 8),  # a bracket ends because the loss rises again
        (rippled(20.0, 2.0, 0.01), 20.0, 2),  # a zoom stalls, and stalls again
    ],
    ids=["bracket", "zoom"],
)
def test_follows_torch_through_long_line_searches(
    function: Function, lr: float, max_iter: int
) -> None:
    options = LBFGS(steps=1, lr=lr, max_iter=max_iter, max_eval=25, line_search=True)
    assert_follows_torch([function] * 120, 2 * starts(120, 2, seed=5), options)


@pytest.mark.parametrize("line_search", [False, True])
def test_follows_torch_where_pairs_are_rejected(line_search: bool) -> None:
    """Neighbours then differ in the length of their history."""
    start = torch.tensor([[0.01, 0.02], [3e-3, 0.01], [1.0, -2.0], [0.03, -0.01]]).double()
    functions = [two_wells, faint, quadratic(2, 30.0, 8), two_wells]
    options = LBFGS(
        steps=3, tolerance_grad=1e-12, tolerance_change=1e-20, max_iter=6, line_search=line_search
    )
    walks = assert_follows_torch(functions, start, options)
    assert len(walks[1].points) > 10 or line_search


def test_leaves_the_finite_numbers_where_torch_does() -> None:
    """Steps three times too long: every other eigenvalue's error doubles until it overflows."""
    functions = [
        quadratic(4, 10.0, 5),
        lambda point: (3 * point).exp().sum() + point.square().sum(),
    ]
    start = torch.tensor([[1.0, -2.0, 0.5, 3.0], [-60.0, -50.0, -40.0, -30.0]], dtype=torch.float64)
    walks = assert_follows_torch(functions, start, LBFGS(steps=6, lr=8.0))
    assert "nan" in [walk.status for walk in walks]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    n=st.integers(1, 5),
    dimension=st.integers(1, 8),
    condition=st.floats(1.0, 50.0),
    seed=st.integers(0, 10**6),
    history=st.integers(1, 8),
    max_iter=st.integers(1, 10),
    max_eval=st.none() | st.integers(1, 12),
    line_search=st.booleans(),
)
def test_follows_torch_on_any_quadratic(
    n: int,
    dimension: int,
    condition: float,
    seed: int,
    history: int,
    max_iter: int,
    max_eval: int | None,
    line_search: bool,
) -> None:
    functions = [quadratic(dimension, condition, seed + number) for number in range(n)]
    options = LBFGS(
        steps=4, history=history, max_iter=max_iter, max_eval=max_eval, line_search=line_search
    )
    assert_follows_torch(functions, starts(n, dimension, seed), options)


# ------------------------------------------------------------------- stopping


def bowl(point: Tensor) -> Tensor:
    """Half the squared norm: gradient and point are the same."""
    return 0.5 * point.square().sum()


def test_a_start_at_the_minimum_is_final() -> None:
    start = torch.tensor([[0.0, 0.0], [1e-7, -1e-7], [3.0, 4.0]], dtype=torch.float64)
    walks = assert_follows_torch([bowl] * 3, start, LBFGS())
    assert [walk.status for walk in walks] == ["converged"] * 3
    assert [walk.evaluations for walk in walks[:2]] == [1, 1]
    assert [len(walk.after_step) for walk in walks] == [0, 0, 1]


def test_a_directional_derivative_near_zero_is_final() -> None:
    start = torch.tensor([[1e-5]], dtype=torch.float64)  # g.d = -1e-10, but |g| > tolerance_grad
    (walk,) = assert_follows_torch([bowl], start, LBFGS())
    assert (walk.status, walk.evaluations, len(walk.after_step)) == ("converged", 1, 0)


def test_a_step_that_ends_on_its_directional_derivative_counts() -> None:
    """Every iteration leaves a tenth: 1, 0.1 ... 1e-5, where g.d is above -1e-9."""
    start = torch.tensor([[1.0]], dtype=torch.float64)
    (walk,) = assert_follows_torch([bowl], start, LBFGS(lr=0.9))
    assert [float(point) for point in walk.after_step] == pytest.approx([1e-5])
    assert (walk.status, walk.evaluations, len(walk.points)) == ("converged", 7, 6)


def test_a_small_change_ends_the_step_but_not_the_run() -> None:
    """Twice too long, every move only turns the sign round, and the loss stays what it is."""
    start = torch.tensor([[1.0]], dtype=torch.float64)
    (walk,) = assert_follows_torch([bowl], start, LBFGS(lr=2.0, steps=5))
    assert [float(point) for point in walk.after_step] == [-1, 1, -1, 1, -1]
    assert (walk.status, walk.evaluations, len(walk.points)) == ("steps", 10, 6)


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_steps_are_a_limit(steps: int) -> None:
    functions, start = [quadratic(30, 1e4, 0), rosenbrock], starts(2, 30, seed=4)
    walks, solution = walks_of_batch(row_by_row(functions), start, LBFGS(steps=steps))
    assert solution.status == ("steps", "steps")
    assert solution.steps.tolist() == [steps, steps]
    assert solution.evaluations.tolist() == [max(20 * steps, 1)] * 2
    assert [len(walk.points) for walk in walks] == [max(20 * steps, 1)] * 2


def test_no_problems() -> None:
    solution = LBFGS().minimise(row_by_row([]), torch.empty(0, 3))
    assert solution.points.shape == (0, 3)
    assert solution.status == ()
    assert solution.steps.dtype == solution.evaluations.dtype == torch.int64


@pytest.mark.parametrize("line_search", [False, True])
def test_what_makes_no_progress_is_given_up_and_the_rest_goes_on(line_search: bool) -> None:
    """The first wanders about: its gradient belongs to no function. The second takes its steps."""

    def objective(points: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
        losses, gradients = row_by_row([quadratic(4, 1e5, 3)] * 2)(points, numbers)
        lost = numbers == 0
        away = torch.where(points == 0, 1.0, points.cos() + 2)
        return torch.where(lost, 1.0, losses), torch.where(lost[:, None], away, gradients)

    start = starts(2, 4, seed=7)
    options = LBFGS(steps=12, max_iter=3, line_search=line_search)
    patient = replace(options, patience=5).minimise(objective, start)
    assert patient.status[0] == "stalled"
    assert patient.steps[0] == 5
    never = options.minimise(objective, start)
    assert never.status[0] == "steps"
    assert patient.status[1] == never.status[1] != "stalled"
    assert torch.equal(patient.points[1], never.points[1])
    assert patient.evaluations[1] == never.evaluations[1]


# ------------------------------------------------------------------- the objective


@pytest.mark.parametrize("n", [1, 7, 8, 11])
def test_the_objective_is_called_with_multiples_of_eight(n: int) -> None:
    """Copies of the last row fill up every call, also while the batch shrinks."""
    functions = [quadratic(4, 1.0 + 3 * number, number) for number in range(n)]
    sizes: set[int] = set()

    def objective(points: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
        own = len(numbers.unique())
        assert numbers[own:].equal(numbers[own - 1].expand(len(numbers) - own))
        assert points[own:].equal(points[own - 1].expand(len(points) - own, -1))
        sizes.add(len(points))
        return row_by_row(functions)(points, numbers)

    solution = LBFGS().minimise(objective, starts(n, 4, seed=7))
    assert sizes == ({8, 16} if n > 8 else {8})
    assert solution.status == ("converged",) * n


# ------------------------------------------------------------------- the watcher


@pytest.mark.parametrize("line_search", [False, True])
def test_the_watcher_sees_what_torch_holds_after_every_step(line_search: bool) -> None:
    functions = [rosenbrock, quadratic(5, 1e3, 6), quadratic(5, 1.0, 7), rosenbrock]
    start, options = starts(4, 5, seed=5), LBFGS(steps=4, line_search=line_search)
    walks, _ = walks_of_batch(row_by_row(functions), start, options)  # asserts the step numbers
    for function, ours, point in zip(functions, walks, start, strict=True):
        expected = walk_of_torch(function, point, options)
        pairs = zip(ours.after_step, expected.after_step, strict=True)
        assert max(relative(*pair) for pair in pairs) <= 1e-6
        floor = 1e-12 * expected.losses[0]
        assert ours.step_losses == pytest.approx(expected.step_losses, rel=1e-6, abs=floor)


# ------------------------------------------------------------------- not finite


@dataclass(slots=True, kw_only=True)
class Injection:
    """Makes one evaluation of each chosen problem return a value that is not finite."""

    objective: Objective
    at: dict[int, int]  # problem -> number of the evaluation, from 0
    value: float
    into_gradient: bool
    seen: dict[int, int] = field(default_factory=dict)
    hit: set[int] = field(default_factory=set)

    def __call__(self, points: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
        losses, gradients = self.objective(points, numbers)
        for number in set(numbers.tolist()):
            if self.seen.get(number, 0) == self.at.get(number):
                rows = numbers == number
                (gradients[:, :1] if self.into_gradient else losses)[rows] = self.value
                self.hit.add(number)
            self.seen[number] = self.seen.get(number, 0) + 1
        return losses, gradients


@cache
def five_problems(line_search: bool) -> tuple[Objective, Tensor, LBFGS, Solution]:
    """Problems, starts and options, and where they end when nothing is injected."""
    functions = [rosenbrock, *(quadratic(4, 30.0, seed) for seed in range(3)), rosenbrock]
    start, options = starts(5, 4, seed=6), LBFGS(steps=2, line_search=line_search)
    objective = row_by_row(functions)
    return objective, start, options, options.minimise(objective, start)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    at=st.dictionaries(st.integers(0, 4), st.integers(0, 45), min_size=1),
    value=st.sampled_from([math.nan, math.inf, -math.inf]),
    into_gradient=st.booleans(),
    line_search=st.booleans(),
)
def test_only_the_problem_that_is_not_finite_ends(
    at: dict[int, int], value: float, into_gradient: bool, line_search: bool
) -> None:
    objective, start, options, undisturbed = five_problems(line_search)
    injected = Injection(objective=objective, at=at, value=value, into_gradient=into_gradient)
    walks, solution = walks_of_batch(injected, start, options)
    for number in range(5):
        if number not in injected.hit:
            assert row_of(solution, number) == row_of(undisturbed, number)
            continue
        walk, last = walks[number], at[number]
        assert solution.status[number] == "nan"
        assert len(walk.points) == last + 1
        if last == 0:
            assert solution.points[number].equal(start[number])
            assert math.isnan(solution.loss[number]) and math.isnan(solution.start_loss[number])
            continue
        best = min(range(last), key=walk.losses.__getitem__)
        assert solution.points[number].equal(walk.points[best])
        assert float(solution.loss[number]) == walk.losses[best]


def row_of(solution: Solution | Reconstruction, row: int) -> tuple[Any, ...]:
    """Everything about one problem, floats as bytes: equal only where the bits are."""
    points = solution.points if isinstance(solution, Solution) else solution.inputs
    tensors = (points, solution.loss, solution.start_loss, solution.steps, solution.evaluations)
    found = tuple(tensor[row].numpy().tobytes() for tensor in tensors)
    return (*found, solution.status[row])


# ------------------------------------------------------------------- gradient matching


def leak_of(model: SigmoidNet, victims: Sequence[int], dtype: torch.dtype) -> Leak:
    """What naive attackers see of real digits; every gradient is captured alone."""
    weights = model.init(generator(0, "weights"), dtype)
    dataset = load("mnist")
    images, labels = dataset.candidates.to(dtype), dataset.candidate_labels
    alone = [
        capture_leak(model, images[[victim]], labels[[victim]], weights=weights).observed
        for victim in victims
    ]
    rows = list(victims)
    whole = capture_leak(model, images[rows], labels[rows], weights=weights)
    seen = replace(whole.observations[0], gradients=concatenate(alone))
    return replace(whole, observations=(seen,))


def streams_of(victims: Sequence[int]) -> VictimStreams:
    """Starts keyed by victim alone."""
    return VictimStreams(0, tuple(("mnist", victim) for victim in victims))


def mnist_model(name: str) -> SigmoidNet:
    return architectures.build(name, (1, 28, 28), 10)


@pytest.mark.parametrize(
    ("model", "line_search", "victims"),
    [
        ("cnn2", False, range(1)),
        ("lenet_cpl", True, range(1, 2)),
        *(
            pytest.param(*case, range(6), marks=pytest.mark.slow)
            for case in itertools.product(("cnn2", "lenet_cpl"), (False, True))
        ),
    ],
)
def test_follows_torch_on_gradient_matching(
    model: str, line_search: bool, victims: Sequence[int]
) -> None:
    """40 evaluations on digits: no further from torch than 100 times what one ulp does to torch."""
    leak, attack = leak_of(mnist_model(model), victims, torch.float64), CPL()
    labels, start = sign_rule_labels(leak), attack.start(leak, streams_of(victims)).flatten(1)
    options = LBFGS(steps=2, line_search=line_search)

    def objective(points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        points = points.detach().requires_grad_()
        inputs = points.reshape(-1, 1, *leak.input_shape)
        losses = attack.loss(leak, inputs, labels[rows], rows)
        return losses.detach(), torch.autograd.grad(losses.sum(), points)[0]

    def alone(row: int) -> Function:
        rows = torch.tensor([row])
        return lambda point: attack.loss(
            leak, point.reshape(1, 1, *leak.input_shape), labels[rows], rows
        )[0]

    walks, _ = walks_of_batch(objective, start, options)
    for row, ours in enumerate(walks):
        expected = walk_of_torch(alone(row), start[row], options)
        assert expected.losses[-1] < 0.1 * expected.losses[0]  # it is on its way, not stuck
        neighbours = [
            walk_of_torch(alone(row), torch.nextafter(start[row], start[row] + side), options)
            for side in (-1, 1)
        ]
        spread = 0.0
        points = zip(*(walk.points[:40] for walk in (ours, expected, *neighbours)), strict=True)
        for k, (value, point, *moved) in enumerate(points):
            spread = max(spread, *(relative(other, point) for other in moved))
            assert relative(value, point) <= max(100 * spread, 1e-12), f"evaluation {k}"


# ------------------------------------------------------------------- the same bits in any batch

SIXTEEN = range(16)


def rows_of_attack(
    attack: CPL | DLG, model: SigmoidNet, dtype: torch.dtype, victims: Sequence[int]
) -> dict[int, list[Any]]:
    """Attack these victims as one chunk; victim -> bits of his result and of every step."""
    leak = leak_of(model, victims, dtype)
    steps: dict[int, list[Any]] = {victim: [] for victim in victims}

    def watch(
        rows: Tensor, numbers: Tensor, evaluations: Tensor, inputs: Tensor, losses: Tensor
    ) -> None:
        for row, image, loss in zip(rows.tolist(), inputs, losses, strict=True):
            steps[victims[row]].append((image.numpy().tobytes(), loss.numpy().tobytes()))

    result = attack.reconstruct(leak, streams_of(victims), watch)
    return {victim: [row_of(result, row), *steps[victim]] for row, victim in enumerate(victims)}


def in_chunks(size: int, victims: Sequence[int]) -> list[Sequence[int]]:
    """Consecutive pieces."""
    return [victims[first : first + size] for first in range(0, len(victims), size)]


ATTACKS = {
    "cpl": CPL(steps=2),
    "dlg": DLG(steps=2),
    "cpl_line_search": CPL(steps=2, line_search=True),
    "dlg_line_search": DLG(steps=2, line_search=True),
}
QUICK = {("cnn2", "cpl", "float32"), ("lenet_cpl", "dlg_line_search", "float32")}
# Every pair of model, attack and type; and every attack in both types.
PAIRS = [
    (model, attack, ("float32", "float64")[(row + column) % 2])
    for row, model in enumerate(("cnn2", "lenet_cpl"))
    for column, attack in enumerate(ATTACKS)
]


@pytest.mark.independent_rows
@pytest.mark.parametrize(
    ("model", "attack", "dtype"),
    [pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow) for case in PAIRS],
)
def test_bits_do_not_depend_on_the_batch(model: str, attack: str, dtype: str) -> None:
    """40 evaluations and more: a chunk of 1, 7, 8 or all 16, its order and who else is in it."""
    chunks: list[Sequence[int]] = [SIXTEEN[7:14], SIXTEEN[:7:-1], [100, 3, 101, 14, 102], [5]]
    if (model, attack, dtype) not in QUICK:
        chunks += [
            SIXTEEN[::-1],
            *(part for size in (7, 8) for part in in_chunks(size, SIXTEEN)),
            *([victim] for victim in (0, 3, 10, 15)),
        ]
    net, kind = mnist_model(model), getattr(torch, dtype)
    expected = rows_of_attack(ATTACKS[attack], net, kind, SIXTEEN)
    assert sum(len(found) > 2 for found in expected.values()) > 12  # bits of two steps
    for chunk in chunks:
        found = rows_of_attack(ATTACKS[attack], net, kind, chunk)
        changed = [victim for victim in found if found[victim] != expected.get(victim)]
        assert [victim for victim in changed if victim in SIXTEEN] == [], f"chunk {list(chunk)}"


# ------------------------------------------------------------------- signed Adam


def walk_of_adam(function: Function, start: Tensor, options: SignedAdam, evaluations: int) -> Walk:
    """`torch.optim.Adam` with torch's own schedule, for so many evaluations."""
    parameter = start.clone().requires_grad_()
    optimiser = torch.optim.Adam([parameter], lr=options.lr)
    shares = (3, 5, 7) if options.decays else ()
    milestones = [math.floor(options.steps * share / 8) for share in shares]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, milestones, gamma=0.1)
    walk = Walk()
    for evaluation in range(evaluations):
        loss, parameter.grad = value_and_gradient(function, parameter)
        walk.points.append(parameter.detach().clone())
        walk.losses.append(float(loss))
        if evaluation == options.steps:
            break
        if options.signed:
            parameter.grad.sign_()
        optimiser.step()
        schedule.step()
        if options.box is not None:
            with torch.no_grad():
                parameter.clamp_(*options.box)
        walk.after_step.append(parameter.detach().clone())
    return walk


def assert_follows_adam(solution: Solution, row: int, walk: Walk) -> None:
    """The best of the points that torch evaluated, with the loss of that very point."""
    best = min(range(len(walk.losses)), key=walk.losses.__getitem__)
    assert relative(solution.points[row], walk.points[best]) <= 1e-9
    assert float(solution.loss[row]) == pytest.approx(walk.losses[best], rel=1e-9, abs=1e-300)
    assert float(solution.start_loss[row]) == walk.losses[0]
    assert int(solution.evaluations[row]) == len(walk.points)


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("box", [None, (-0.6, 0.8)])
def test_adam_follows_torch(signed: bool, box: tuple[float, float] | None) -> None:
    """200 steps; the start is outside the box. The watcher sees every one of them."""
    functions = [quadratic(6, 20.0, 1), rosenbrock, bent(6, 5.0, 2), two_wells]
    start, options = starts(4, 6, seed=1), SignedAdam(steps=200, signed=signed, box=box)
    seen = [Walk() for _ in functions]

    def watch(
        numbers: Tensor, steps: Tensor, evaluations: Tensor, points: Tensor, losses: Tensor
    ) -> None:
        assert steps.equal(evaluations)
        for number, step, point, loss in zip(numbers, steps, points, losses, strict=True):
            seen[number].after_step.append(point.clone())
            seen[number].losses.append(float(loss))
            assert len(seen[number].after_step) == step

    solution = options.minimise(row_by_row(functions), start, watch)
    assert solution.status == ("steps",) * 4
    assert solution.steps.tolist() == [200] * 4
    for row, (function, ours) in enumerate(zip(functions, seen, strict=True)):
        walk = walk_of_adam(function, start[row], options, 201)
        assert_follows_adam(solution, row, walk)
        pairs = zip(ours.after_step, walk.after_step, strict=True)
        assert max(relative(*pair) for pair in pairs) <= 1e-9
        assert ours.losses == pytest.approx(walk.losses[:-1], rel=1e-9)


def test_adam_without_decay_follows_torch() -> None:
    functions = [rosenbrock, two_wells]
    start, options = starts(2, 6, seed=3), SignedAdam(steps=100, decays=False, signed=False)
    solution = options.minimise(row_by_row(functions), start)
    for row, function in enumerate(functions):
        assert_follows_adam(solution, row, walk_of_adam(function, start[row], options, 101))


def test_adam_returns_the_last_finite_point() -> None:
    """The last is not the best of 30 long steps; a problem that ends early has the one before."""
    functions = [quadratic(6, 20.0, 1), rosenbrock]
    start = starts(2, 6, seed=1)
    options = SignedAdam(steps=30, lr=0.5, decays=False, returns="last")
    injected = Injection(
        objective=row_by_row(functions), at={1: 12}, value=math.nan, into_gradient=True
    )
    solution = options.minimise(injected, start)
    for row, (function, count) in enumerate(zip(functions, (31, 12), strict=True)):
        walk = walk_of_adam(function, start[row], options, count)
        assert walk.losses[-1] > min(walk.losses)
        assert relative(solution.points[row], walk.points[-1]) <= 1e-9
        assert float(solution.loss[row]) == pytest.approx(walk.losses[-1], rel=1e-9)
    assert solution.status == ("steps", "nan")


def test_adam_scales_each_coordinate() -> None:
    """On signs, a step `scale` times as long is a step of Adam in units of `scale`."""
    scale = torch.tensor([1.0, 0.5, 3.0, 0.25, 2.0, 1.5], dtype=torch.float64)
    function, start = quadratic(6, 20.0, 1), starts(1, 6, seed=2)
    options = SignedAdam(steps=40, scale=scale)
    ours = options.minimise(row_by_row([function]), start)
    plain = SignedAdam(steps=40).minimise(
        row_by_row([lambda point: function(point * scale)]), start / scale
    )
    torch.testing.assert_close(ours.points, plain.points * scale, rtol=1e-9, atol=1e-12)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    n=st.integers(1, 10),
    dimension=st.integers(1, 9),
    steps=st.integers(0, 20),
    seed=st.integers(0, 10**6),
    signed=st.booleans(),
    box=st.none() | st.just((0.0, 1.0)),
    at=st.dictionaries(st.integers(0, 9), st.integers(0, 20)),
    value=st.sampled_from([math.nan, math.inf, -math.inf]),
    into_gradient=st.booleans(),
)
def test_adam_ends_only_what_is_not_finite(
    n: int,
    dimension: int,
    steps: int,
    seed: int,
    signed: bool,
    box: tuple[float, float] | None,
    at: dict[int, int],
    value: float,
    into_gradient: bool,
) -> None:
    functions = [bent(dimension, 10.0, seed + number) for number in range(n)]
    start = starts(n, dimension, seed)
    options = SignedAdam(steps=steps, signed=signed, box=box)
    objective = row_by_row(functions)
    injected = Injection(objective=objective, at=at, value=value, into_gradient=into_gradient)
    solution = options.minimise(injected, start)
    undisturbed = options.minimise(objective, start)
    for number in range(n):
        if number not in injected.hit:
            assert row_of(solution, number) == row_of(undisturbed, number)
            assert_follows_adam(
                solution, number, walk_of_adam(functions[number], start[number], options, steps + 1)
            )
            continue
        last = at[number]
        assert solution.status[number] == "nan"
        assert (int(solution.steps[number]), int(solution.evaluations[number])) == (last, last + 1)
        if last == 0:
            assert solution.points[number].equal(start[number])
            assert math.isnan(solution.loss[number]) and math.isnan(solution.start_loss[number])
            continue
        walk = walk_of_adam(functions[number], start[number], options, last)
        best = min(range(last), key=walk.losses.__getitem__)
        assert relative(solution.points[number], walk.points[best]) <= 1e-9


@pytest.mark.independent_rows
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bits_of_adam_do_not_depend_on_the_batch(dtype: torch.dtype) -> None:
    """Rows of 13 numbers: none begins where a vector register does."""
    functions = [bent(13, 10.0, seed) for seed in range(17)]
    start = starts(17, 13, seed=2)

    def chunk(rows: list[int]) -> dict[int, tuple[Any, ...]]:
        exact = row_by_row([functions[row] for row in rows])

        def objective(points: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
            losses, gradients = exact(points.double(), numbers)
            return losses.to(dtype), gradients.to(dtype)

        options = SignedAdam(steps=40, signed=False, box=(-1.0, 1.0))
        solution = options.minimise(objective, start[rows].to(dtype))
        return {row: row_of(solution, place) for place, row in enumerate(rows)}

    whole = chunk(list(range(17)))
    for rows in ([3], [16, 2, 9], list(range(16, -1, -1)), [5, 5 + 8, 1, 0, 12, 7, 2]):
        assert chunk(rows) == {row: whole[row] for row in rows}


def test_adam_has_no_problems() -> None:
    solution = SignedAdam(steps=3).minimise(row_by_row([]), torch.empty(0, 3))
    assert solution.points.shape == (0, 3)
    assert solution.status == ()
    assert solution.steps.dtype == solution.evaluations.dtype == torch.int64
