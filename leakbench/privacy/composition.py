"""Composition theorems over the (epsilon, delta) of single steps: what papers call BaseC to OptC.

`step_losses` turns events into steps' epsilons, the theorems below add those up. Only the deltas
are left to the caller: a theorem's own `delta` comes on top of those spent by the steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from leakbench.privacy.events import Group, PrivacyEvent, Relation, check_delta, grouped
from leakbench.privacy.gdp import epsilon_of_mu

_LARGEST_EXPONENT = 700.0


@dataclass(frozen=True, slots=True)
class StepLoss:
    """`steps` releases, each (epsilon, .)-DP."""

    epsilon: float
    steps: int


def classic_epsilon(noise_multiplier: float, delta: float) -> float:
    """sqrt(2 ln(1.25 / delta)) / sigma (Dwork and Roth 2014, Theorem A.1; TIFS Theorem 1).

    A theorem below 1 only; papers use it above, where the Gaussian mechanism does not keep it.
    """
    check_delta(delta)
    if noise_multiplier == 0:
        return math.inf
    return math.sqrt(2 * math.log(1.25 / delta)) / noise_multiplier


def amplified(epsilon: float, rate: float) -> float:
    """ln(1 + q (e^epsilon - 1)): epsilon of a step that works on a sample of rate q."""
    if epsilon > _LARGEST_EXPONENT:
        return max(0.0, epsilon + math.log(rate))
    return math.log1p(rate * math.expm1(epsilon))


def step_losses(
    events: Iterable[PrivacyEvent],
    delta: float,
    *,
    relation: Relation = "add_remove",
    exact: bool = True,
    decimals: int | None = None,
    amplified_decimals: int | None = None,
) -> tuple[StepLoss, ...]:
    """Epsilon of every kind of step, if each may spend `delta` before sampling.

    Args:
        events: Steps; their sampled epsilon costs q delta each.
        delta: Of one step on its sample, in (0, 1).
        relation: Replacing doubles the sensitivity.
        exact: The Gaussian mechanism's own epsilon; otherwise the classic formula.
        decimals, amplified_decimals: Digits that some papers round to before and after sampling.
    """

    def loss(group: Group) -> float:
        apart = group.separation(relation)
        epsilon = epsilon_of_mu(apart, delta) if exact else classic_epsilon(1 / apart, delta)
        if decimals is not None:
            epsilon = round(epsilon, decimals)
        if group.rate < 1:
            epsilon = amplified(epsilon, group.rate)
        return epsilon if amplified_decimals is None else round(epsilon, amplified_decimals)

    return tuple(StepLoss(loss(group), group.steps) for group in grouped(events))


def spent_delta(events: Iterable[PrivacyEvent], delta: float) -> float:
    """Sum of q delta over all steps: what steps of `delta` each spend together."""
    return delta * sum(group.steps * group.rate for group in grouped(events))


def base(losses: Sequence[StepLoss]) -> float:
    """Sum of the epsilons (TIFS Theorem 2)."""
    return sum(loss.steps * loss.epsilon for loss in losses)


def advanced(losses: Sequence[StepLoss], delta: float) -> float:
    """sqrt(2 ln(1/delta) sum e^2) + sum e (e^e - 1) (Dwork, Rothblum and Vadhan 2010)."""
    check_delta(delta)
    growth = sum(
        loss.steps * loss.epsilon * math.expm1(loss.epsilon)
        if loss.epsilon < _LARGEST_EXPONENT
        else math.inf
        for loss in losses
    )
    return growth + math.sqrt(-2 * math.log(delta) * _squares(losses))


def advanced_eq3(losses: Sequence[StepLoss], delta: float) -> float:
    """sum e tanh(e/2) + sqrt(2 ln(1/delta) sum e^2) (TIFS eq. 3; one of the three bounds of
    Kairouz, Oh and Viswanath 2015, Theorem 3.5)."""
    check_delta(delta)
    return _drift(losses) + math.sqrt(-2 * math.log(delta) * _squares(losses))


def optimal_eq4(losses: Sequence[StepLoss], delta: float) -> float:
    """sum e tanh(e/2) + sqrt(2 sum e^2 ln(e + sqrt(sum e^2) / delta)) (TIFS eq. 4)."""
    check_delta(delta)
    squares = _squares(losses)
    if squares == math.inf:
        return math.inf
    return _drift(losses) + math.sqrt(2 * squares * math.log(math.e + math.sqrt(squares) / delta))


def optimal(losses: Sequence[StepLoss], delta: float) -> float:
    """The least of `base`, `advanced_eq3` and `optimal_eq4` (Kairouz, Oh and Viswanath 2015)."""
    return min(base(losses), advanced_eq3(losses, delta), optimal_eq4(losses, delta))


def _squares(losses: Sequence[StepLoss]) -> float:
    return sum(loss.steps * loss.epsilon * loss.epsilon for loss in losses)


def _drift(losses: Sequence[StepLoss]) -> float:
    return sum(loss.steps * loss.epsilon * math.tanh(loss.epsilon / 2) for loss in losses)
