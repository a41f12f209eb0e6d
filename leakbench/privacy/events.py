"""What an accountant accounts for: noisy releases, and the relation epsilon is stated for."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from leakbench.errors import LeakbenchError

Relation = Literal["add_remove", "replace_one"]
Sampling = Literal["poisson", "fixed_size", "none"]

_LEAST_NOISE = 1e-150  # its inverse can still be squared


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyEvent:
    """`steps` equal releases for the accountants.

    noise_multiplier: std of the noise at the release / `sensitivity` there. sampling_rate: chance
    that one example takes part in a step, under `sampling`.

    The sensitivity is that of adding or removing one example (or client); accountants double it
    for replace-one, so a mechanism whose sensitivity is stated for replacing enters half of it.
    Sampling "none": the observer sees who takes part, or everyone does, and the rate is not used.
    A noise multiplier of 0 promises nothing (epsilon infinite); one of inf, a rate of 0 and 0 steps
    cost nothing.

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
        if not self.steps >= 0 or self.steps % 1:
            raise LeakbenchError(
                f"privacy event: steps must be a whole number >= 0, got {self.steps}"
            )


@dataclass(frozen=True, slots=True, order=True)
class Group:
    """All releases with the same noise and sampling, which cost something.

    rate: in (0, 1]; 1 where nothing is amplified.
    """

    noise_multiplier: float
    rate: float
    sampling: Sampling
    steps: int

    def separation(self, relation: Relation) -> float:
        """mu of one step if the example takes part: how many stds apart neighbours are.

        Drawing a fixed number replaces an example in the sample whichever relation holds between
        the data, so it counts twice there too. inf without noise, or with so little it overflows.
        """
        twice = relation == "replace_one" or self.sampling == "fixed_size"
        if self.noise_multiplier < _LEAST_NOISE:
            return math.inf
        return (2.0 if twice else 1.0) / self.noise_multiplier


def grouped(events: Iterable[PrivacyEvent]) -> tuple[Group, ...]:
    """Events with equal noise and sampling merged, those that cost nothing left out, sorted.

    So accountants work once per distinct step and do not depend on the order of composition. A
    Poisson rate of 1 is no sampling.
    """
    steps: dict[tuple[float, float, Sampling], int] = {}
    sampling: Sampling
    for event in events:
        rate = 1.0 if event.sampling == "none" else event.sampling_rate
        if event.steps == 0 or rate == 0 or event.noise_multiplier == math.inf:
            continue
        sampling = "none" if rate == 1 and event.sampling == "poisson" else event.sampling
        key = (float(event.noise_multiplier), float(rate), sampling)
        steps[key] = steps.get(key, 0) + int(event.steps)
    return tuple(Group(*key, count) for key, count in sorted(steps.items()))


def check_count(name: str, value: float) -> None:
    """Refuse what is no whole number of at least 1."""
    if not 1 <= value < math.inf or value % 1:
        raise LeakbenchError(f"{name} must be a whole number >= 1, got {value}")


def check_delta(delta: float) -> None:
    """Refuse a delta outside (0, 1): Gaussian noise has no epsilon at 0, at 1 all is allowed."""
    if not 0 < delta < 1:
        raise LeakbenchError(f"delta must be above 0 and below 1, got {delta}")
