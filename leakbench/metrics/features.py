"""How much of a row of a table is right, feature by feature.

As TabLeak counts (Vero, Balunovic, Dimitrov and Vechev, ICML 2023): a category is right or wrong, a
number is right within `TOLERANCE` standard deviations. Of a normal variable, its mean would be
right for a quarter of all rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from leakbench.data.features import Feature, Kind
from leakbench.metrics.contract import Comparison, Metric, check_shapes, float64
from leakbench.mixed_rows import decoded

TOLERANCE = 0.319
"""Standard deviations of a number among the candidates."""


def right(
    rows: Tensor, reference: Tensor, features: Sequence[Feature], deviations: Tensor
) -> Tensor:
    """(n, features) which features of each row are right.

    Args:
        rows: (n, columns), any values; see `mixed_rows.decoded`. What is nan is wrong.
        reference: (n, columns), the true rows.
        features: of all columns.
        deviations: (columns,) standard deviation of each.

    Raises:
        ValueError: If the shapes differ or there is no column.
    """
    check_shapes(rows, reference)
    error = (decoded(float64(rows), features) - decoded(float64(reference), features)).abs()
    allowed = [
        TOLERANCE * float(deviations[feature.columns[0]]) if feature.kind == "number" else 0.0
        for feature in features
    ]
    return error <= error.new_tensor(allowed)


def deviations(rows: Tensor) -> Tensor:
    """(columns,) float64 standard deviation of every column of rows (n, columns)."""
    return float64(rows).std(dim=0, unbiased=False)


def share_right(
    rows: Tensor, reference: Tensor, features: Sequence[Feature], spread: Tensor
) -> Tensor:
    """(n,) share of the features that are right; arguments as for `right`."""
    return right(rows, reference, features, spread).double().mean(dim=1)


def _share(compared: Comparison, kinds: tuple[Kind, ...]) -> Tensor:
    some = [feature for feature in compared.features if feature.kind in kinds]
    if not some:  # images, or a table without features of this kind: there is nothing to say
        return torch.full((len(compared.images),), math.nan, dtype=torch.float64)
    spread = deviations(compared.candidates)
    return share_right(compared.images, compared.reference, some, spread)


def _all(compared: Comparison) -> Tensor:
    return _share(compared, ("number", "category"))


def _categories(compared: Comparison) -> Tensor:
    return _share(compared, ("category",))


def _numbers(compared: Comparison) -> Tensor:
    return _share(compared, ("number",))


METRICS: tuple[Metric, ...] = (
    Metric(name="features_right", function=_all, clamps=True, better="higher"),
    Metric(name="categories_right", function=_categories, clamps=True, better="higher"),
    Metric(name="numbers_right", function=_numbers, clamps=True, better="higher"),
)
