"""A Euclidean distance below a threshold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from leakbench.metrics.rules.contract import Numbers, SuccessRule, below


@dataclass(frozen=True, slots=True, kw_only=True)
class DistanceRule(SuccessRule):
    """The Euclidean distance over all pixels is less than the threshold.

    Attributes:
        threshold: Positive, in pixel units.
        clamp: Whether the number is taken on clamped pixels.
    """

    kind: ClassVar[str] = "distance"
    bare: ClassVar[bool] = True

    threshold: float
    clamp: bool = True

    def __post_init__(self) -> None:
        self._require_threshold(self.threshold)

    @property
    def error(self) -> str:
        return "distance_clamped" if self.clamp else "distance_raw"

    @property
    def condition(self) -> str:
        return f"{'clamped' if self.clamp else 'raw'} distance < {self.threshold:g}"

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.error,)

    def judge(self, measured: Numbers) -> bool:
        return below(measured.get(self.error), self.threshold)
