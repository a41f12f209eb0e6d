"""A mean squared error below a threshold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from leakbench.metrics.rules.contract import Numbers, SuccessRule, below


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanSquaredErrorRule(SuccessRule):
    """The mean squared error is less than the threshold.

    A published "MSE < 0.70" that does not say what it averages, nor whether images were clipped,
    has four readings: this kind and `distance`, each with and without `clamp`.

    Attributes:
        threshold: Positive, in squared pixel units.
        clamp: Whether the number is taken on clamped pixels.
    """

    kind: ClassVar[str] = "mse"
    bare: ClassVar[bool] = True

    threshold: float
    clamp: bool = True

    def __post_init__(self) -> None:
        self._require_threshold(self.threshold)

    @property
    def error(self) -> str:
        return "mse_clamped" if self.clamp else "mse_raw"

    @property
    def condition(self) -> str:
        return f"{'clamped' if self.clamp else 'raw'} MSE < {self.threshold:g}"

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.error,)

    def judge(self, measured: Numbers) -> bool:
        return below(measured.get(self.error), self.threshold)
