"""TabLeak: rows of numbers and categories, relaxed, restarted, matched and pooled."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from leakbench.contracts import Leak, LeakFacts, Reconstruction, Streams, Watch
from leakbench.errors import require_at_least
from leakbench.inversion import MatchingAttack
from leakbench.labels import labels_of
from leakbench.matching import cosine_loss, total_variation
from leakbench.mixed_rows import Relaxation, declared, decoded, encoded, from_units, in_units
from leakbench.optim import PAD, SignedAdam, Solution, one_by_one, with_copies
from leakbench.parameters import require_in
from leakbench.weights import computed_alone

AT_ONCE = 2048
"""Dummy rows whose gradients are computed together."""
Distance = Callable[[Leak, Tensor, Tensor, Tensor], Tensor]
"""(leak, inputs (k, B, *input shape), labels (k, B), victims (k,)) -> (k,)."""
WATCHED = 25
"""Steps from one look of the harness to the next: pairing hundreds of rows takes its time."""


@dataclass(frozen=True, kw_only=True)
class TabLeak(MatchingAttack):
    """TabLeak (Vero, Balunovic, Dimitrov and Vechev, ICML 2023).

    Every category is a softmax, every number a sigmoid over the input range, of coordinates that
    begin at N(0, 1) (`mixed_rows.Relaxation`). Adam moves them to make the angle between gradients
    small, 1 - cosine over all parameters. Rows of all restarts are paired with those of the best by
    their squared distance (an assignment, within a label), and pooled: the median of a number, the
    value with the largest mean share of a category. Of the pooled and the best restart's rows,
    categories as zeros and ones, those with the smaller loss are returned. `confidence` is how far
    the pooled restarts agree: 1 less the mean over features of the entropy of the mean shares, in
    units of its largest value, and of the standard deviation of a number, in units of a uniform
    one's.

    Knowledge used: weights, gradient, which columns belong together (`Leak.features`; where that is
    not declared every element is a number) and their range; labels where the threat model grants
    them, as the paper does, else read off the gradient. Inputs of any shape.
    Not as in the paper: columns are scaled to [0, 1], not to a variance of 1; an unknown category
    is a value of its own; the best restart's rows may be returned (above).

    Args:
        steps: of Adam, with one evaluation each.
        lr: learning rate, the same in all steps.
        restarts: runs from new coordinates, side by side.
        pooled: how many restarts, those with the smallest loss, are pooled (paper: all).
        span: weight of the mean squared distance of the rows from the row space of the first
            layer's gradient; 0 in the paper. Of a dense layer that gradient is a sum of outer
            products with the batch's rows (1 behind them for the bias), so they are in its row
            space, and it says nothing unless they are fewer than units and columns: else, and
            where the first layer is not dense, the angle is all there is. It is the default as it
            finds .98 of the features of 8 Adult rows where the angle alone finds .57 (MLP with 64
            and 32 units, 30 restarts). Noise moves that space; clipping of whole examples does not.
        total_variation: a prior of images, weighted.
        local_steps: how several local steps behind an update are modelled.
    """

    name: ClassVar[str] = "tableak"
    paper: ClassVar[str] = "Vero et al., ICML 2023"
    steps: int = 1500
    lr: float = 0.06
    restarts: int = 30
    pooled: int = 30
    span: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self.name, 1, pooled=self.pooled)
        require_in(self.name, "(0, inf)", lr=self.lr)
        require_in(self.name, "[0, inf)", span=self.span)

    def optimiser(self, facts: LeakFacts) -> SignedAdam:
        return SignedAdam(steps=self.steps, lr=self.lr, signed=False, decays=False)

    def budget(self, facts: LeakFacts) -> int:
        return super().budget(facts) + 2 * facts.observations

    def start(self, leak: Leak, streams: Streams, restart: int = 0) -> Tensor:
        return _inputs(leak, _points(leak, streams, restart))

    def distance(self, leak: Leak, inputs: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
        return self._distance(leak)(leak, inputs, labels, rows)

    def _distance(self, leak: Leak) -> Distance:
        """The angle, and how far rows are from the row space where that says something."""
        basis = _spanned(leak) if self.span and confines(leak.facts) else None

        def distance(leak: Leak, inputs: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
            angle = cosine_loss(leak, inputs, labels, rows, local_steps=self.local_steps)
            if basis is None:
                return angle
            flat, own = inputs.flatten(2), basis[rows]
            if own.shape[-1] > flat.shape[-1]:
                flat = torch.cat([flat, torch.ones_like(flat[..., :1])], dim=-1)
            outside = flat - flat @ own.mT @ own
            return angle + self.span * outside.square().sum(dim=-1).mean(dim=-1)

        return distance

    def reconstruct(self, leak: Leak, streams: Streams, watch: Watch) -> Reconstruction:
        """All restarts side by side; steps and evaluations are those of all together."""
        self.require_suitable(leak)
        labels, every = labels_of(leak, streams), torch.arange(leak.n, device=leak.device)
        near = self._distance(leak)

        def loss(inputs: Tensor, rows: Tensor) -> Tensor:
            total = near(leak, inputs, labels[rows], rows)
            if self.total_variation:
                total = total + self.total_variation * total_variation(inputs)
            return total

        solution = self._minimised(leak, streams, watch, loss)
        apart = (leak.n, self.restarts)
        inputs = _inputs(leak, solution.points).unflatten(0, apart)
        found = [
            pool(leak, *own, self.pooled)
            for own in zip(inputs, solution.loss.unflatten(0, apart), labels, strict=True)
        ]
        answers = torch.stack(
            [torch.stack([one.pooled for one in found]), torch.stack([one.best for one in found])]
        )
        with torch.no_grad():
            losses = torch.stack(
                [loss(with_copies(answer), with_copies(every))[: leak.n] for answer in answers]
            )
        best = torch.where(losses.isnan(), torch.inf, losses).argmin(dim=0)
        steps = solution.steps.unflatten(0, apart).sum(dim=1)
        evaluations = solution.evaluations.unflatten(0, apart).sum(dim=1)
        evaluations = evaluations + 2 * len(leak.observations)
        endings = [
            solution.status[row : row + self.restarts]
            for row in range(0, len(solution.status), self.restarts)
        ]
        watch(every, steps, evaluations, answers[best, every], losses[best, every])
        return Reconstruction(
            inputs=answers[best, every],
            labels=labels,
            loss=losses[best, every],
            start_inputs=self.start(leak, streams),
            start_loss=solution.start_loss.unflatten(0, apart)[:, 0],
            steps=steps,
            evaluations=evaluations,
            status=tuple("nan" if set(own) == {"nan"} else "steps" for own in endings),
            confidence=torch.stack([one.confidence for one in found]),
        )

    def _minimised(
        self, leak: Leak, streams: Streams, watch: Watch, loss: Callable[[Tensor, Tensor], Tensor]
    ) -> Solution:
        """Problem number v * restarts + r is restart r of victim v."""
        drawn = [_points(leak, streams, restart) for restart in range(self.restarts)]
        starts = torch.stack(drawn, dim=1).flatten(0, 1)

        def objective(points: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
            points = points.detach().requires_grad_()
            losses = loss(_inputs(leak, points), numbers // self.restarts)
            return losses.detach(), torch.autograd.grad(losses.sum(), points)[0]

        def in_pieces(points: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
            size = max(AT_ONCE // leak.batch_size // PAD, 1) * PAD
            pieces = zip(points.split(size), numbers.split(size), strict=True)
            losses, gradients = zip(*(objective(*piece) for piece in pieces), strict=True)
            return torch.cat(losses), torch.cat(gradients)

        def on_step(
            numbers: Tensor, steps: Tensor, evaluations: Tensor, points: Tensor, losses: Tensor
        ) -> None:
            done = int(steps[0])
            if done % WATCHED and done < self.steps:
                return
            rows = numbers // self.restarts
            leading = [
                int(torch.where(rows == row, losses, torch.inf).argmin()) for row in rows.unique()
            ]
            spent = steps[leading] * self.restarts
            watch(rows[leading], spent, spent, _inputs(leak, points[leading]), losses[leading])

        large = computed_alone(leak.observations[0].weights)
        return self.optimiser(leak.facts).minimise(
            one_by_one(objective) if large else in_pieces, starts, on_step
        )


def _relaxation(leak: Leak) -> Relaxation:
    low, high = leak.input_range
    return Relaxation(features=declared(leak.features, leak.input_shape), low=low, high=high)


def _points(leak: Leak, streams: Streams, restart: int) -> Tensor:
    """(n, B * coordinates of a row) where a restart begins."""
    shape = (leak.batch_size, _relaxation(leak).size)
    drawn = streams.normal("start", shape, restart).flatten(1)
    return drawn.to(dtype=leak.dtype, device=leak.device)


def _inputs(leak: Leak, points: Tensor) -> Tensor:
    """(k, B * coordinates) -> (k, B, *input shape)."""
    rows = _relaxation(leak).rows(points.unflatten(1, (leak.batch_size, -1)))
    return rows.reshape(len(points), leak.batch_size, *leak.input_shape)


# ---- pooling -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooled:
    """One victim's rows of several restarts together, and those of the best alone, both
    (B, *input shape) with categories as zeros and ones; confidence (B,)."""

    pooled: Tensor
    best: Tensor
    confidence: Tensor


def pool(leak: Leak, inputs: Tensor, losses: Tensor, labels: Tensor, most: int) -> Pooled:
    """Of inputs (restarts, B, *input shape), the `most` with the smallest losses (restarts,)."""
    features = declared(leak.features, leak.input_shape)
    order = torch.where(losses.isnan(), torch.inf, losses).argsort(stable=True)[:most].tolist()
    rows = inputs.flatten(2).double()
    best = rows[order[0]]
    alike = torch.stack([rows[one][paired(rows[one], best, labels)] for one in order])
    unit = in_units(alike, features, leak.input_range)
    mean, middle = unit.mean(dim=0), unit.quantile(0.5, dim=0)
    doubts = []
    for feature in features:
        columns = list(feature.columns)
        if feature.kind == "number":
            # A uniform number has a standard deviation of 1 / sqrt(12).
            doubt = unit[..., columns[0]].std(dim=0, unbiased=False) * math.sqrt(12)
            mean[:, columns] = middle[:, columns]
        else:
            shares = mean[:, columns]
            if feature.optional:
                rest = (1 - shares.sum(dim=-1, keepdim=True)).clamp(min=0)
                shares = torch.cat([shares, rest], dim=-1)
            doubt = -torch.special.xlogy(shares, shares).sum(dim=-1) / math.log(feature.values)
        doubts.append(doubt.clamp(0, 1))

    def whole(rows: Tensor) -> Tensor:
        chosen = encoded(decoded(rows, features), features)
        chosen = from_units(chosen, features, leak.input_range)
        return chosen.to(inputs.dtype).reshape(inputs.shape[1:])

    return Pooled(
        pooled=whole(mean),
        best=whole(in_units(best, features, leak.input_range)),
        confidence=(1 - torch.stack(doubts).mean(dim=0)).to(inputs.dtype),
    )


def paired(rows: Tensor, reference: Tensor, labels: Tensor) -> Tensor:
    """(B,) which of `rows` (B, columns) is most like each row of `reference`: the assignment with
    the least sum of squared distances among those that pair equal labels (B,)."""
    cost = torch.cdist(reference, rows).square()
    never = 1 + cost.sum()
    cost = torch.where(labels[:, None] == labels[None], cost, never)
    return torch.from_numpy(linear_sum_assignment(cost.cpu().numpy())[1]).to(rows.device)


# ---- the row space -------------------------------------------------------------------------------


def confines(facts: LeakFacts) -> bool:
    """Whether the first layer's gradient confines the rows: it is dense, weight (units, columns),
    and has more units, over all looks, and columns than there are rows."""
    columns = math.prod(facts.input_shape)
    first = next(iter(facts.parameters.values()))
    if len(first) != 2 or first[1] != columns:
        return False
    return facts.batch_size < min(first[0] * facts.observations, columns)


def _spanned(leak: Leak) -> Tensor:
    """(n, B, columns, and 1 for a bias) orthonormal rows that span the row space of the first
    layer's gradient, zeros behind them where that has fewer dimensions than B."""
    looks = []
    for seen in leak.observations:
        weight, *others = seen.gradients.tensors.values()
        biased = bool(others) and others[0].shape == weight.shape[:2]
        looks.append(torch.cat([weight, others[0][..., None]], dim=-1) if biased else weight)
    gradients = torch.cat(looks, dim=1).double()
    found = gradients.new_zeros(leak.n, leak.batch_size, gradients.shape[-1])
    least = 10 * torch.finfo(leak.dtype).eps
    for victim, gradient in enumerate(gradients):  # one by one: the same bits in any chunk
        if bool(torch.isfinite(gradient).all()):
            _, sizes, directions = torch.linalg.svd(gradient, full_matrices=False)
            kept = int((sizes[: leak.batch_size] > least * sizes[0]).sum())
            found[victim, :kept] = directions[:kept]
    return found.to(leak.dtype)
