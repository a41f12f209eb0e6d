"""The victim is found among the candidates by the reconstruction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from leakbench.errors import LeakbenchError
from leakbench.metrics.rules.contract import Numbers, SuccessRule

if TYPE_CHECKING:
    from leakbench.metrics.rules.contract import Bools, Columns


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentifiedRule(SuccessRule):
    """The victim is among the `top` candidates nearest to the reconstruction.

    Attributes:
        top: Largest successful rank, at least 1.
        clamp: Always true.
        threshold: Always None: ranks have none.
    """

    kind: ClassVar[str] = "identified"

    top: int = 1
    clamp: bool = True
    threshold: None = None

    def __post_init__(self) -> None:
        if self.threshold is not None:
            raise LeakbenchError(f"{self._where}: identified has no threshold, set top")
        self._require_clamp(self.clamp)
        if self.top < 1:
            raise LeakbenchError(f"{self._where}: top must be at least 1, got {self.top}")

    @property
    def condition(self) -> str:
        return f"the victim is among the {self.top} nearest candidates"

    @property
    def reads(self) -> tuple[str, ...]:
        return ("rank",)

    @property
    def identifies_first(self) -> bool:
        return self.top == 1

    def judge(self, measured: Numbers) -> bool:
        rank = measured.get("rank")
        return rank is not None and rank <= self.top

    def judge_all(self, measured: Columns) -> Bools:
        return measured["rank"] <= self.top
