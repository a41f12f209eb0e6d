"""Accounting backwards: the noise a budget needs, and the steps it lasts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from leakbench.errors import LeakbenchError
from leakbench.privacy.account import epsilon
from leakbench.privacy.bisection import least_positive
from leakbench.privacy.events import PrivacyEvent, Relation, Sampling

_LARGEST = 1e6  # a larger epsilon promises nothing, and its noise drowns in rounding


def noise_multiplier(
    target: float,
    delta: float,
    *,
    sampling_rate: float,
    steps: int,
    sampling: Sampling = "poisson",
    accountant: str = "pld",
    preset: str = "strict",
    relation: Relation | None = None,
    tolerance: float = 1e-5,
) -> float:
    """Smallest noise multiplier whose epsilon at `delta` is at most `target`.

    Args:
        target: Epsilon, above 0 and at most 1e6.
        sampling_rate, steps, sampling: Of the run, all steps alike.
        accountant, preset, relation: As `account.epsilon`.
        tolerance: Relative; the answer is off to the side of more noise.

    Returns:
        At the release, relative to the sensitivity there; inf where no noise is enough, 0.0 where
        none is needed.

    Raises:
        LeakbenchError: If an argument is outside its range or the accountant has no epsilon here.
    """
    if not 0 < target <= _LARGEST:
        raise LeakbenchError(
            f"target epsilon must be above 0 and at most {_LARGEST:.0e}, got {target}"
        )
    if not 0 < tolerance < 1:
        raise LeakbenchError(f"tolerance must be above 0 and below 1, got {tolerance}")
    run = PrivacyEvent(
        noise_multiplier=1.0,
        sensitivity=1.0,
        sampling_rate=sampling_rate,
        sampling=sampling,
        steps=steps,
    )

    def enough(noise: float) -> bool:
        events = (replace(run, noise_multiplier=noise),)
        return _epsilon(events, delta, accountant, preset, relation) <= target

    return least_positive(enough, tolerance)


def steps_within(
    budget: float,
    events: Sequence[PrivacyEvent],
    delta: float,
    *,
    accountant: str = "pld",
    preset: str = "strict",
    relation: Relation | None = None,
) -> int:
    """How many of the steps, in their order, a budget lasts for.

    Args:
        budget: Epsilon not to be exceeded, at least 0.
        events: The steps in the order they are made, for instance with decaying noise; an event
            of many steps counts as that many.
        delta, accountant, preset, relation: As `account.epsilon`.

    Returns:
        Largest n for which the first n steps cost at most `budget`; the next one, if there is one,
        exceeds it.

    Raises:
        LeakbenchError: If an argument is outside its range or the accountant has no epsilon here.
    """
    if not budget >= 0:
        raise LeakbenchError(f"budget must be >= 0, got {budget}")
    total = sum(event.steps for event in events)

    def spent(count: int) -> bool:
        first = first_steps(events, count)
        return _epsilon(first, delta, accountant, preset, relation) > budget

    if total == 0 or not spent(total):
        return total
    low, high = 0, total
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if spent(middle) else (middle, high)
    return low


def first_steps(events: Sequence[PrivacyEvent], count: int) -> tuple[PrivacyEvent, ...]:
    """The first `count` steps of a list of events; all of them if there are fewer."""
    taken, left = [], count
    for event in events:
        if left <= 0:
            break
        taken.append(event if event.steps <= left else replace(event, steps=left))
        left -= event.steps
    return tuple(taken)


def _epsilon(
    events: Sequence[PrivacyEvent],
    delta: float,
    accountant: str,
    preset: str,
    relation: Relation | None,
) -> float:
    result = epsilon(events, delta, accountant=accountant, preset=preset, relation=relation)
    if result.epsilon is None:
        raise LeakbenchError(f"accountant '{accountant}' has no epsilon here: {result.reason}")
    return result.epsilon
