"""Exact recovery: nearer to the image than any threshold alone, or any guess, would be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from leakbench.errors import LeakbenchError
from leakbench.metrics.rules.contract import BEST_BASELINE, Numbers, SuccessRule, below

if TYPE_CHECKING:
    from leakbench.metrics.rules.contract import Bools, Columns


@dataclass(frozen=True, slots=True, kw_only=True)
class StrictRule(SuccessRule):
    """The clamped mean squared error is small, also beside the best trivial guess.

    It is less than the threshold, and less than `fraction` times that of the victim's best trivial
    baseline (start image, mean image, mean of the class). Without the second part, "recovered" is
    free on dark images.

    Attributes:
        threshold: Positive, in squared pixel units; 0.01 is usual.
        fraction: In (0, 1].
        clamp: Always true.
    """

    kind: ClassVar[str] = "strict"
    needs_recovery: ClassVar[bool] = True

    threshold: float
    fraction: float = 0.25
    clamp: bool = True

    def __post_init__(self) -> None:
        self._require_threshold(self.threshold)
        self._require_clamp(self.clamp)
        if not 0 < self.fraction <= 1:
            raise LeakbenchError(f"{self._where}: fraction must be in (0, 1], got {self.fraction}")

    @property
    def condition(self) -> str:
        return (
            f"clamped MSE < {self.threshold:g} and < {self.fraction:g} x the victim's best trivial "
            "baseline"
        )

    @property
    def reads(self) -> tuple[str, ...]:
        return ("mse_clamped", BEST_BASELINE)

    def judge(self, measured: Numbers) -> bool:
        error, baseline = measured.get("mse_clamped"), measured.get(BEST_BASELINE)
        return (
            baseline is not None
            and below(error, self.threshold)
            and below(error, self.fraction * baseline)
        )

    def judge_all(self, measured: Columns) -> Bools:
        error = measured["mse_clamped"]
        beats = error < self.fraction * measured[BEST_BASELINE]
        return (error < self.threshold) & beats
