"""A row of a table is right, feature by feature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from leakbench.errors import LeakbenchError
from leakbench.metrics.rules.contract import Numbers, SuccessRule

if TYPE_CHECKING:
    from leakbench.metrics.rules.contract import Bools, Columns


@dataclass(frozen=True, slots=True, kw_only=True)
class FeaturesRule(SuccessRule):
    """At least this share of the row's features is right, by default all (exact match).

    Numbers are right within a tolerance, so that a success does not show the row to the last digit.

    Attributes:
        share: In (0, 1].
        clamp: Always true.
        threshold: Always None: `share` is it.
    """

    kind: ClassVar[str] = "features"

    share: float = 1.0
    clamp: bool = True
    threshold: None = None

    def __post_init__(self) -> None:
        if self.threshold is not None:
            raise LeakbenchError(f"{self._where}: features has no threshold, set share")
        self._require_clamp(self.clamp)
        if not 0 < self.share <= 1:
            raise LeakbenchError(f"{self._where}: share must be in (0, 1], got {self.share}")

    @property
    def condition(self) -> str:
        if self.share == 1:
            return "all features of the row are right"
        return f"at least {self.share:.0%} of the row's features are right"

    @property
    def reads(self) -> tuple[str, ...]:
        return ("features_right",)

    def judge(self, measured: Numbers) -> bool:
        found = measured.get("features_right")
        return found is not None and found >= self.share

    def judge_all(self, measured: Columns) -> Bools:
        return measured["features_right"] >= self.share
