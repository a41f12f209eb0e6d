"""Attacks against what the leaks hold (see `information`): how close the best one came."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from leakbench.report.content import BoundEntry
from leakbench.report.measured import Trials, mean_baselines, median_of, median_of_all
from leakbench.spec import canonical

FACTOR = 2.0
"""An attack whose error is within this factor of the attainable one brackets the truth."""

NEAR = 0.8
"""Share of the mean image's error from which an attainable error says nothing of the victim."""


def bounds_of(trials: Sequence[Trials]) -> list[BoundEntry | None]:
    """One a cell; None where its records hold no bound.

    The verdict is about a leak, and so the same for all who attack it: the best of them counts, of
    those who make an image. Who picks it from a list knows more than the bound is about: his error
    is 0 or that of another image, and would hide how weak the others are.
    """
    best: dict[str, float] = {}
    keys = [canonical(each.cell.leak_spec()) for each in trials]
    for key, each in zip(keys, trials, strict=True):
        if "candidates" not in each.cell.grants:
            error = _error(each)
            best[key] = min(best.get(key, inf), inf if error is None else error)
    return [_entry(each, best.get(key)) for key, each in zip(keys, trials, strict=True)]


def _error(trials: Trials) -> float | None:
    """Median raw error of what was returned."""
    return median_of_all(trials.judged_table, "mse_raw")


def _entry(trials: Trials, best: float | None) -> BoundEntry | None:
    judged = trials.judged_table
    if not trials.cell.bound or not trials.all_judged:
        return None
    attainable, error = median_of(judged, "bound_attainable"), _error(trials)
    ratio = None if attainable is None or error is None else error / attainable
    return BoundEntry(
        # One unbiased estimate that is impossible makes no typical one: nan is the worst.
        unbiased=median_of_all(judged, "bound_unbiased"),
        attainable=attainable,
        ratio=ratio,
        rank=median_of(judged, "jacobian_rank"),
        condition=median_of_all(judged, "jacobian_condition"),
        verdict=_verdict(attainable, best, mean_baselines(judged).mean_image),
    )


def _verdict(attainable: float | None, best: float | None, mean_image: float | None) -> str:
    """What the best attack's error says of the defense; "" where nobody made an image."""
    if attainable is None or best is None or mean_image is None:
        return ""
    if attainable >= NEAR * mean_image and attainable <= FACTOR * best:
        return "no information left"
    return "bracketed" if best <= FACTOR * attainable else "attack too weak"
