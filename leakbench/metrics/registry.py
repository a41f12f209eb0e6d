"""All metrics by name, found by reading this folder: adding one is one file."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache

from leakbench import metrics
from leakbench.metrics import rules
from leakbench.metrics.contract import Metric

_MACHINERY = ("contract", "pixels", "registry", "rules")


@cache
def all_metrics() -> Mapping[str, Metric]:
    """Every metric by its name, in alphabetical order.

    Raises:
        ValueError: If two files define a metric of one name.
    """
    found: dict[str, Metric] = {}
    for info in pkgutil.iter_modules(metrics.__path__):
        if info.name in _MACHINERY:
            continue
        module = importlib.import_module(f"{metrics.__name__}.{info.name}")
        for metric in module.METRICS:
            if metric.name in found:
                raise ValueError(f"metric '{metric.name}' is defined twice")
            found[metric.name] = metric
    return dict(sorted(found.items()))


def judge_versions() -> dict[str, int]:
    """What decides how a result is judged, beside the rules' own numbers: every version.

    Returns:
        "metric NAME" and "rule KIND" -> version; at least 1.
    """
    return {
        **{f"metric {name}": metric.version for name, metric in all_metrics().items()},
        **{f"rule {name}": kind.version for name, kind in rules.kinds().items()},
    }
