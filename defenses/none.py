"""No defense: the gradient as it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from leakbench.contracts import Defense


@dataclass(frozen=True, slots=True, kw_only=True)
class NoDefense(Defense):
    """Non-private training; every hook passes gradients through. No guarantee for anyone."""

    name: ClassVar[str] = "none"
