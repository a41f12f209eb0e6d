"""What the columns of one's own rows mean: read off their names, and held against the rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from leakbench.data.features import Feature, named_columns, require_whole
from leakbench.data.readers import Array
from leakbench.errors import LeakbenchError


def of_names(where: str, names: Sequence[str], rows: Array) -> tuple[Feature, ...]:
    """Features from one name a column: "age" of a number, "job=cook" of a value of a category.

    A category may be unknown if some row (n, columns) has none of its values; one of a single
    column always tells two values apart.

    Raises:
        LeakbenchError: not one name a column, one name of several columns, or a category whose
            columns are not one-hot.
    """
    if len(names) != rows.shape[1]:
        raise LeakbenchError(
            f"{where}: {len(names)} names of {rows.shape[1]} columns; allowed: one for each"
        )
    found = []
    for name, places in named_columns(names).items():
        category = [column for column in places if "=" in names[column]]
        if not category and len(places) == 1:
            found.append(Feature(name=name, kind="number", columns=tuple(places)))
            continue
        if len(category) < len(places):
            raise LeakbenchError(
                f"{where}: '{name}' names several columns; allowed: a name for one number, or "
                "NAME=VALUE for each value of a category"
            )
        unknown = len(places) == 1 or bool((rows[:, places] == 0).all(axis=1).any())
        found.append(Feature(name=name, kind="category", columns=tuple(places), optional=unknown))
    require_fitting(where, found, rows)
    return tuple(found)


def require_fitting(where: str, features: Sequence[Feature], rows: Array) -> None:
    """Every column of rows (n, columns) belongs to one feature, and categories are one-hot.

    Raises:
        LeakbenchError: naming the first column or category for which this is not so.
    """
    require_whole(where, features, rows.shape[1])
    for feature in features:
        if feature.kind == "number":
            continue
        own = rows[:, list(feature.columns)]
        taken = own.sum(axis=1)
        if not np.isin(own, (0, 1)).all() or bool((taken > 1).any()):
            raise LeakbenchError(
                f"{where}: the columns of category '{feature.name}' are not one-hot; allowed: 0 "
                "and 1, and at most one 1 in a row"
            )
        if not feature.optional and bool((taken == 0).any()):
            raise LeakbenchError(
                f"{where}: row {int((taken == 0).argmax())} has no value of category "
                f"'{feature.name}'; allowed: one, or the feature is optional"
            )
