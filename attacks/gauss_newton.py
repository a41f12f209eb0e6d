"""Gauss-Newton: all columns of the gradient's derivative, all known noise, and a prior."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor

from leakbench.contracts import (
    Attack,
    Gradients,
    Leak,
    LeakFacts,
    LocalSteps,
    Observation,
    Reconstruction,
    Streams,
    Watch,
)
from leakbench.errors import require_at_least
from leakbench.labels import labels_of
from leakbench.learned_priors import LEAST_IMAGES, PRIORS, ImagePrior
from leakbench.levenberg_marquardt import REFUSALS, LevenbergMarquardt, Linearised
from leakbench.matching import LEAST_STD
from leakbench.numeric import add_gram
from leakbench.optim import Solution

DENSE_UNKNOWNS, DENSE_NUMBERS = 4096, 2**27
"""Up to so many unknowns, and numbers in J, the normal equations are written down."""
PRODUCTS = 100
"""Products with A in a step beyond that."""
NUMBERS_AT_ONCE = 2**21
"""Numbers in the columns of J that are pushed in one call: more fall out of a core's cache."""
NEAR = 1e-6
"""A loss relative to what was observed below which the Jacobian is in double precision."""
ROUNDING = 1e-7
"""A loss relative to what was observed that single precision can have left, and nothing else."""
ASIDE = 0.1
"""Std of what tells the inputs of a batch apart at the start, as a share of the input range."""


@dataclass(frozen=True, kw_only=True)
class GaussNewton(Attack):
    """Levenberg-Marquardt on the gradient residual, with a Gaussian prior under known noise.

    min over x of sum over observations k and tensors t of ||g_kt(x) - g_kt||^2 / s_t^2
    + (x - m)^T P (x - m), g_k(x) the replayed gradient. Where the attacker knows the noise, s_t is
    its std (at least a thousandth of the noisiest tensor's), and m and P are mean and inverse
    covariance of the public inputs: the most probable input, if inputs were Gaussian. Where there
    is no noise, or he knows of none, s is the length of all that was observed, and there is no
    prior. Dense normal equations of all B inputs together, up to 4,096 unknowns and a Jacobian of
    2^27 numbers; conjugate gradients beyond. The arithmetic is in float64, except for Jacobians far
    from the minimum or under noise.

    Knowledge used: weights, gradient, input shape and range; the defense's replay and noise for an
    adaptive attacker; labels and public inputs where granted. Otherwise labels are read off the
    head's gradient, or, where known noise may hide it, are those whose gradient at the start is
    most likely. Begins at the mean public input, or the middle of the range; further restarts at
    draws from the prior, or uniform ones; they end once the residual is as small as rounding, or
    as the noise that is in it. Types 0, 1 and 2.
    Known failures: a step into a region where a trained network is certain and its gradient
    vanishes (about one start of six; the loss then ends at 1, and a restart helps); networks whose
    gradient is piecewise constant in the input; a replay without a derivative.

    Evaluations are counted as arithmetic, not as time: a residual is 1, and so is its gradient; a
    call of `Observation.push` for c columns is 1 + c, which for a Jacobian of d columns adds up to
    d and a few more, and makes a product of conjugate gradients 3.

    Args:
        steps: linearisations of a run.
        restarts: runs from new starts; the smallest loss counts.
        labels_tried: runs for so many of the likeliest labels where noise may hide it; batch of 1.
        prior: what the public inputs say of an input, where noise leaves something to say.
            "gaussian": their mean and covariance, the attacker that `attainable` bounds stand for;
            "mixture": ten kinds with a covariance in common; "autoencoder": nearness to what a
            small network can draw, which takes seconds to train (see `leakbench.learned_priors`);
            "none".
        local_steps: how several local steps behind an update are modelled.
    """

    name: ClassVar[str] = "gauss_newton"
    steps: int = 80
    restarts: int = 3
    labels_tried: int = 1
    prior: Literal["gaussian", "mixture", "autoencoder", "none"] = "gaussian"
    local_steps: LocalSteps = "unroll"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(
            self.name, 1, steps=self.steps, restarts=self.restarts, labels_tried=self.labels_tried
        )

    def skip(self, facts: LeakFacts) -> str:
        least = 2 if self.prior == "gaussian" else LEAST_IMAGES
        if self.prior != "none" and 0 < facts.public < least:
            return (
                f"the prior '{self.prior}' is learnt from at least {least} public inputs, got "
                f"{facts.public}"
            )
        return ""

    def budget(self, facts: LeakFacts) -> int:
        unknowns = facts.batch_size * math.prod(facts.input_shape)
        parameters = sum(math.prod(shape) for shape in facts.parameters.values())
        dense = _is_dense(unknowns, parameters)
        # Every damping that is refused has its own products.
        step = _cost_of_matrix(unknowns, parameters) if dense else 4 + 3 * PRODUCTS * REFUSALS
        runs = self.restarts * self.labels_tried * (1 + self.steps * (step + REFUSALS))
        return facts.classes + runs

    def start(self, leak: Leak, streams: Streams, restart: int = 0) -> Tensor:
        """(n, B, *shape) mean and middle; the inputs of a batch a little aside from it, since equal
        ones would stay equal; then draws."""
        low, high = leak.input_range
        shape = (leak.batch_size, *leak.input_shape)
        if leak.public is None:
            if restart:
                drawn = low + (high - low) * streams.uniform("start", shape, restart)
            else:
                drawn = torch.full((leak.n, *shape), (low + high) / 2, dtype=torch.float64)
        else:
            public = leak.public.cpu().double().flatten(1)
            drawn = public.mean(dim=0).reshape(leak.input_shape).expand(leak.n, *shape)
            if restart:  # mixtures of the public inputs have their covariance
                shares = (leak.batch_size, len(public))
                mixed = streams.normal("start", shares, restart) / math.sqrt(len(public))
                # One victim at a time: a product of all would round by how many there are.
                moved = [one @ (public - public.mean(dim=0)) for one in mixed]
                drawn = (drawn + torch.stack(moved).reshape(drawn.shape)).clamp(low, high)
        if not restart and leak.batch_size > 1:
            drawn = drawn + ASIDE * (high - low) * streams.normal("start", shape)
        return drawn.to(dtype=leak.dtype, device=leak.device)

    def loss(self, leak: Leak, inputs: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
        """(k,) the objective; see `contracts.HasLoss`."""
        prior = self._prior(leak)
        found = [
            _Problem(self, leak, row, labels[k : k + 1], prior).cost(inputs[k].double().flatten())
            for k, row in enumerate(rows.split(1))
        ]
        return torch.stack(found).to(leak.dtype)

    def reconstruct(self, leak: Leak, streams: Streams, watch: Watch) -> Reconstruction:
        """Victims one after another, each from its starts and with its labels in turn. Steps and
        evaluations are those of all runs; start and its loss those of the first."""
        self.require_suitable(leak)
        prior = self._prior(leak)
        starts = [self.start(leak, streams, restart) for restart in range(self.restarts)]
        ranked = self._ranks_labels(leak)
        known = None if bool(ranked.all()) else labels_of(leak, streams)
        found = []
        for row in torch.arange(leak.n, device=leak.device).split(1):
            points = [start[row].double().flatten() for start in starts]
            if known is None or bool(ranked[row]):
                labels, spent = self._likeliest(leak, row, points[0], prior), leak.classes
            else:
                labels, spent = [known[row]], 0
            problems = [_Problem(self, leak, row, label, prior) for label in labels]
            found.append(_Victim(self, leak, problems, watch, spent).run(points))
        inputs = torch.stack([victim.best.points[0] for victim in found])
        device = leak.device
        return Reconstruction(
            inputs=inputs.reshape(starts[0].shape).to(leak.dtype),
            labels=torch.cat([victim.labels for victim in found]),
            loss=torch.cat([victim.best.loss for victim in found]).to(leak.dtype),
            start_inputs=starts[0],
            start_loss=torch.cat([victim.start_loss for victim in found]).to(leak.dtype),
            steps=torch.tensor([victim.steps for victim in found], device=device),
            evaluations=torch.tensor([victim.evaluations for victim in found], device=device),
            status=tuple(victim.best.status[0] for victim in found),
        )

    def _prior(self, leak: Leak) -> ImagePrior | None:
        if self.prior == "none" or leak.public is None or not bool(_knows_noise(leak).any()):
            return None
        return PRIORS[self.prior].of(leak.public)

    def _ranks_labels(self, leak: Leak) -> Tensor:
        """(n,) whether the label is tried, not read off: known noise on one example's gradient."""
        return _knows_noise(leak) & (leak.labels is None and leak.batch_size == 1)

    def _likeliest(
        self, leak: Leak, row: Tensor, point: Tensor, prior: ImagePrior | None
    ) -> list[Tensor]:
        """The labels (1, 1) to try, the one with the smallest objective at the start first."""
        every = torch.arange(leak.classes, device=leak.device)[:, None, None]
        costs = [float(_Problem(self, leak, row, label, prior).cost(point)) for label in every]
        order = sorted(
            range(len(costs)), key=lambda label: (math.isnan(costs[label]), costs[label])
        )
        return [every[label] for label in order[: self.labels_tried]]


def _knows_noise(leak: Leak) -> Tensor:
    """(n,) victim by victim: those attacked together may have different defenses."""
    if leak.noise_std is None:
        return torch.zeros(leak.n, dtype=torch.bool, device=leak.device)
    least = _rounding(leak, torch.arange(leak.n, device=leak.device))
    return torch.stack([value > least for value in leak.noise_std.values()]).any(dim=0)


def _is_dense(unknowns: int, parameters: int) -> bool:
    return unknowns <= DENSE_UNKNOWNS and unknowns * parameters <= DENSE_NUMBERS


def _together(unknowns: int, parameters: int) -> int:
    """Columns that are pushed in one call."""
    return max(8, min(unknowns, NUMBERS_AT_ONCE // parameters))


def _cost_of_matrix(unknowns: int, parameters: int) -> int:
    """Evaluations of a slope and a Jacobian, the probe of one column before it included."""
    calls = 1 + math.ceil(unknowns / _together(unknowns, parameters))
    return 1 + calls + 1 + unknowns


# ------------------------------------------------------------------- one victim


class _Victim:
    """All runs of one victim, and the best of them."""

    def __init__(
        self,
        attack: GaussNewton,
        leak: Leak,
        problems: list[_Problem],
        watch: Watch,
        spent: int,
    ) -> None:
        self.attack, self.leak, self.problems, self.watch = attack, leak, problems, watch
        self.steps, self.evaluations = 0, spent
        self.best: Solution
        self.labels: Tensor
        self.start_loss: Tensor

    def run(self, starts: list[Tensor]) -> _Victim:
        """From each start with each label, until one fits."""
        for number, start in enumerate(starts):
            for problem in self.problems:
                solution = self._solve(problem, start)
                self.steps += int(solution.steps)
                self.evaluations += int(solution.evaluations)
                if number == 0 and problem is self.problems[0]:
                    self.start_loss, self.best, self.labels = (
                        solution.start_loss, solution, problem.labels,
                    )  # fmt: skip
                elif _is_less(solution.loss, self.best.loss):
                    self.best, self.labels = solution, problem.labels
            if self.problems[0].fits(self.best):
                break
        return self

    def _solve(self, problem: _Problem, start: Tensor) -> Solution:
        def counting(
            _: Tensor, steps: Tensor, evaluations: Tensor, points: Tensor, losses: Tensor
        ) -> None:
            self.watch(
                problem.row,
                steps + self.steps,
                evaluations + self.evaluations,
                problem.inputs(points[0]).to(self.leak.dtype),
                losses,
            )

        method = LevenbergMarquardt(
            steps=self.attack.steps,
            enough=problem.enough,
            products=PRODUCTS,
            product_evaluations=3,
        )
        return method.minimise(lambda _: problem, start[None], counting)


def _is_less(loss: Tensor, than: Tensor) -> bool:
    """A loss that is no number is never less, and any other is less than it."""
    return bool((loss < than) | (than.isnan() & ~loss.isnan()))


class _Problem:
    """The objective of one victim under one label, as `levenberg_marquardt.LeastSquares`."""

    def __init__(
        self,
        attack: GaussNewton,
        leak: Leak,
        row: Tensor,
        labels: Tensor,
        prior: ImagePrior | None,
    ) -> None:
        self.leak, self.row, self.labels = leak, row, labels
        self.local_steps: LocalSteps = attack.local_steps
        self.looks = [seen.cast(torch.float64) for seen in leak.observations]
        self.shape = (1, leak.batch_size, *leak.input_shape)
        std = _known_std(leak, row)
        self.prior = None if std is None else prior
        self.std = _lengths(self.looks, row) if std is None else std
        self.is_noisy = std is not None

    @cached_property
    def parameters(self) -> int:
        return sum(value[0].numel() for value in self.leak.observed.tensors.values())

    @property
    def enough(self) -> float:
        """A loss relative to the length of what was observed that its rounding leaves."""
        return 0.0 if self.is_noisy else max((4 * torch.finfo(self.leak.dtype).eps) ** 2, 1e-22)

    def fits(self, found: Solution) -> bool:
        """Whether another start could not do much better.

        Without noise: nothing is left but rounding, or little and no way down from there (the
        gradient of a victim that a network is sure of has few digits left). With it: as much is
        left as noise on all coordinates has, up to four standard deviations of chi-squared, and
        the prior of a typical input.
        """
        loss = float(found.loss)
        if not self.is_noisy:
            return loss <= (ROUNDING if found.status == ("converged",) else self.enough)
        count = self.parameters * len(self.looks)
        unknowns = 0 if self.prior is None else math.prod(self.shape)
        return loss <= count + unknowns + 4 * math.sqrt(2 * (count + unknowns))

    def inputs(self, point: Tensor) -> Tensor:
        return point.reshape(self.shape)

    def cost(self, point: Tensor) -> Tensor:
        total = point.new_zeros(())
        for look in self.looks:
            with torch.no_grad():
                total = total + self._residual(look, self._simulated(look, point)).square().sum()
        if self.prior is not None:
            for image in point.reshape(self.shape[1], -1):
                total = total + self.prior.penalty(image)
        return total

    def linearised(self, point: Tensor, cost: float) -> Linearised:
        unknowns = len(point)
        slope, believed = self._pulled(point, None), list(self._believed(point))
        for own, (inner, _) in believed:
            slope[own] += inner
        if _is_dense(unknowns, self.parameters):
            matrix = point.new_zeros(unknowns, unknowns)
            dtype = self._columns_dtype(cost)
            for look in self.looks:
                add_gram(matrix, self._jacobian(look, point, dtype))
            for own, (_, block) in believed:
                matrix[own, own] += block
            spent = _cost_of_matrix(unknowns, self.parameters)
            return Linearised(slope=slope, matrix=matrix, evaluations=spent)

        def product(direction: Tensor) -> Tensor:
            found = self._pulled(point, direction)
            for own, (_, block) in believed:
                found[own] += block @ direction[own]
            return found

        return Linearised(slope=slope, matrix=product, evaluations=1)

    def _believed(self, point: Tensor) -> Iterator[tuple[slice, tuple[Tensor, Tensor]]]:
        """Where each input of the batch stands among the unknowns, and the prior's model of it."""
        if self.prior is not None:
            size = math.prod(self.leak.input_shape)
            for k, image in enumerate(point.reshape(self.shape[1], -1)):
                yield slice(k * size, (k + 1) * size), self.prior.model(image)

    def _simulated(self, look: Observation, point: Tensor) -> Gradients:
        return look.simulate(
            self.inputs(point), self.labels, self.row, local_steps=self.local_steps
        )

    def _residual(self, look: Observation, simulated: Gradients) -> Tensor:
        """(p,) in units of the noise, or of what was observed."""
        observed = look.of(self.row).tensors
        return torch.cat(
            [
                ((value - observed[name]) / self.std[name]).flatten()
                for name, value in simulated.tensors.items()
            ]
        )

    def _columns_dtype(self, cost: float) -> torch.dtype:
        """Single precision far from the minimum, and where noise is larger than rounding: the model
        is no better than the step it is for, and costs half."""
        far = self.is_noisy or cost > NEAR
        return torch.float32 if far else torch.float64

    def _jacobian(self, look: Observation, point: Tensor, dtype: torch.dtype) -> Tensor:
        """J^T (d, q) in `dtype`, in coordinates that hold all of it: see `TangentSpace`."""
        unknowns = len(point)
        together = _together(unknowns, self.parameters)
        # Any direction that is zero nowhere: what its derivative lacks, no column has.
        probe = torch.sin(1.0 + torch.arange(unknowns, dtype=point.dtype, device=point.device))
        value, along = self._pushed(look, point, probe[None])
        spaces = {
            name: TangentSpace.at(gradient, along[name][0], self.shape[1])
            for name, gradient in value.items()
        }
        parts: list[Tensor] = []
        for first in range(0, unknowns, together):
            count = min(together, unknowns - first)
            unit = point.new_zeros(count, unknowns)
            unit[torch.arange(count), torch.arange(first, first + count)] = 1
            _, columns = self._pushed(look.cast(dtype), point.to(dtype), unit.to(dtype))
            coordinates = [spaces[name].of(v) / self.std[name] for name, v in columns.items()]
            parts.append(torch.cat(coordinates, dim=1))
        return torch.cat(parts)

    def _pushed(
        self, look: Observation, point: Tensor, directions: Tensor
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Simulated gradients and their derivatives in c directions (c, d), (c, *shape) each."""
        tangents = directions.reshape(1, len(directions), *self.shape[1:])
        value, columns = look.push(
            self.inputs(point), self.labels, self.row, tangents, local_steps=self.local_steps
        )
        return (
            {name: tensor[0] for name, tensor in value.tensors.items()},
            {name: tensor[0] for name, tensor in columns.tensors.items()},
        )

    def _pulled(self, point: Tensor, direction: Tensor | None) -> Tensor:
        """J^T J times a direction; without one J^T r."""
        total = torch.zeros_like(point)
        for look in self.looks:
            moving = point.detach().requires_grad_()
            residual = self._residual(look, self._simulated(look, moving))
            if direction is None:
                along = residual.detach()
            else:
                _, columns = self._pushed(look, point, direction[None])
                parts = [(v / self.std[name]).flatten() for name, v in columns.items()]
                along = torch.cat(parts)
            total += torch.autograd.grad(residual, moving, along)[0]
        return total


# ------------------------------------------------------------------- numbers


@dataclass(frozen=True, slots=True)
class TangentSpace:
    """Coordinates for the derivatives of a parameter's gradient that leave out what is always 0.

    The gradient of a dense layer on B examples has rank B at most, wherever the input moves: with
    U, V orthonormal bases of its columns and rows, its derivatives T are
    U U^T T + (I - U U^T) T V V^T, so U^T T and (I - U U^T) T V hold them, with all inner products.
    Other tensors are kept as they are.

    That is true of clipped gradients too, and is checked for what other defenses make of them.

    left, right: U (rows, B) and V (columns, B), or None.
    """

    left: Tensor | None
    right: Tensor | None

    @classmethod
    def at(cls, gradient: Tensor, derivative: Tensor, batch: int) -> TangentSpace:
        """For a gradient (*parameter shape) of `batch` examples, and its derivative in a direction
        that says something of all columns."""
        everything = cls(None, None)
        if gradient.ndim != 2 or 2 * batch >= min(gradient.shape):
            return everything
        if not bool(torch.isfinite(gradient).all()):
            return everything
        left, sizes, right = torch.linalg.svd(gradient, full_matrices=False)
        first, last, beyond = sizes[[0, batch - 1, batch]].tolist()
        if beyond > 1e-10 * first or not last > 1e-6 * first:
            return everything
        found = cls(left[:, :batch], right[:batch].mT)
        whole = torch.linalg.vector_norm(derivative)
        held = torch.linalg.vector_norm(found.of(derivative[None]))
        return found if bool((whole - held).abs() <= 1e-12 * whole) else everything

    def of(self, values: Tensor) -> Tensor:
        """(c, *parameter shape) -> (c, q) orthonormal coordinates."""
        if self.left is None or self.right is None:
            return values.flatten(1)
        left, right = self.left.to(values.dtype), self.right.to(values.dtype)
        inside = left.mT @ values
        outside = values @ right
        outside = outside - left @ (left.mT @ outside)
        return torch.cat([inside.flatten(1), outside.flatten(1)], dim=1)


def _known_std(leak: Leak, row: Tensor) -> Mapping[str, float] | None:
    """The noise's std on each tensor of this victim; None where there is none, or not known."""
    if leak.noise_std is None:
        return None
    std = {name: float(value[row]) for name, value in leak.noise_std.items()}
    largest = max(std.values(), key=lambda value: math.inf if math.isnan(value) else value)
    if not (math.isfinite(largest) and largest > float(_rounding(leak, row))):
        return None
    return {name: max(value, LEAST_STD * largest) for name, value in std.items()}


def _rounding(leak: Leak, rows: Tensor) -> Tensor:
    """(k,) what rounding does to the largest number of a victim's gradient: less noise is none."""
    sizes = [value[rows].abs().flatten(1).amax(dim=1) for value in leak.observed.tensors.values()]
    largest = torch.stack(sizes).amax(dim=0)
    return torch.where(torch.isfinite(largest), torch.finfo(leak.dtype).eps * largest, 0.0)


def _lengths(looks: list[Observation], row: Tensor) -> Mapping[str, float]:
    """The length of all that was observed of this victim, for each tensor; 1 in place of 0."""
    squares = [float(look.of(row).flat_norm()) ** 2 for look in looks]
    length = math.sqrt(sum(squares))
    return dict.fromkeys(looks[0].gradients.tensors, 1.0 if length == 0 else length)
