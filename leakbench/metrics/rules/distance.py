"""A Euclidean distance below a threshold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from leakbench.metrics.rules.contract import ErrorRule


@dataclass(frozen=True, slots=True, kw_only=True)
class DistanceRule(ErrorRule):
    """The Euclidean distance over all pixels, in pixel units, is less than the threshold."""

    kind: ClassVar[str] = "distance"
    shown: ClassVar[str] = "distance"
