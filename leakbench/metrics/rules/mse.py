"""A mean squared error below a threshold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from leakbench.metrics.rules.contract import ErrorRule


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanSquaredErrorRule(ErrorRule):
    """The mean squared error, in squared pixel units, is less than the threshold.

    A published "MSE < 0.70" that does not say what it averages, nor whether images were clipped,
    has four readings: this kind and `distance`, each with and without `clamp`.
    """

    kind: ClassVar[str] = "mse"
    shown: ClassVar[str] = "MSE"
