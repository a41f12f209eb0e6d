"""What an accountant accounts for: noisy releases, and the relation epsilon is stated for."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from leakbench.errors import LeakbenchError

Relation = Literal["add_remove", "replace_one"]
Sampling = Literal["poisson", "fixed_size", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyEvent:
    """`steps` equal releases for the accountants.

    noise_multiplier: std of the noise at the release / `sensitivity` there. sampling_rate: chance
    that one example takes part in a step, under `sampling`.

    The sensitivity is that of adding or removing one example (or client); accountants double it
    for replace-one, so a mechanism whose sensitivity is stated for replacing enters half of it.
    Sampling "none": the observer sees who takes part, or everyone does, and the rate is not used.
    A noise multiplier of 0 promises nothing (epsilon infinite); inf, rate 0 or steps 0 cost nothing.

    Raises:
        LeakbenchError: If a value is nan or outside its range: noise_multiplier and sensitivity
            in [0, inf], sampling_rate in [0, 1], steps a whole number >= 0.
    """

    noise_multiplier: float
    sensitivity: float
    sampling_rate: float = 1.0
    sampling: Sampling = "poisson"
    steps: int = 1

    def __post_init__(self) -> None:
        for name in ("noise_multiplier", "sensitivity"):
            value = getattr(self, name)
            if not value >= 0:
                raise LeakbenchError(f"privacy event: {name} must be >= 0, got {value}")
        if not 0 <= self.sampling_rate <= 1:
            raise LeakbenchError(
                f"privacy event: sampling_rate must be in [0, 1], got {self.sampling_rate}"
            )
        if self.sampling not in ("poisson", "fixed_size", "none"):
            raise LeakbenchError(
                "privacy event: sampling must be poisson, fixed_size or none, "
                f"got {self.sampling!r}"
            )
        if self.steps != int(self.steps) or self.steps < 0:
            raise LeakbenchError(
                f"privacy event: steps must be a whole number >= 0, got {self.steps}"
            )


@dataclass(frozen=True, slots=True, order=True)
class Group:
    """All releases with the same noise and sampling; `rate` is 1 where nothing is amplified."""

    noise_multiplier: float
    rate: float
    sampling: Sampling
    steps: int


def grouped(events: Iterable[PrivacyEvent]) -> tuple[Group, ...]:
    """Events with equal noise and sampling merged, those that cost nothing left out, sorted.

    So accountants work once per distinct step and do not depend on the order of composition. At
    rate 1 every kind of sampling is "none".
    """
    steps: dict[tuple[float, float, Sampling], int] = {}
    for event in events:
        rate = 1.0 if event.sampling == "none" else event.sampling_rate
        if event.steps == 0 or rate == 0 or event.noise_multiplier == math.inf:
            continue
        key = (event.noise_multiplier, rate, "none" if rate == 1 else event.sampling)
        steps[key] = steps.get(key, 0) + int(event.steps)
    return tuple(sorted(Group(*key, count) for key, count in steps.items()))


def check_delta(delta: float) -> None:
    """Refuse a delta outside (0, 1): at 0 the Gaussian mechanism has no epsilon, at 1 no meaning."""
    if not 0 < delta < 1:
        raise LeakbenchError(f"delta must be above 0 and below 1, got {delta}")
