"""What the columns of a table mean: numbers, and categories spread over columns of 0 and 1.

Imports neither torch nor numpy. Who decodes rows is `leakbench.mixed_rows`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from leakbench.errors import LeakbenchError

Kind = Literal["number", "category"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """One feature of a row, and where it stands.

    Attributes:
        name: for people.
        kind: a "number" has one column. A "category" has one for each of its values, 1 where the
            row has this value, else 0 (one-hot).
        columns: positions in a row, from 0.
        optional: of a category, whether all its columns may be 0: the value is then unknown or, of
            a category with a single column, the other one of two.

    Raises:
        LeakbenchError: no column, a number with several, or a category of one column that must
            always be 1.
    """

    name: str
    kind: Kind
    columns: tuple[int, ...]
    optional: bool = False

    def __post_init__(self) -> None:
        wrong = ""
        if not self.columns:
            wrong = "has no column"
        elif self.kind == "number" and len(self.columns) > 1:
            wrong = f"is a number with {len(self.columns)} columns; allowed: 1"
        elif self.kind == "number" and self.optional:
            wrong = "is a number and optional; allowed: categories"
        elif self.kind == "category" and len(self.columns) == 1 and not self.optional:
            wrong = "has one value only, which all rows have; allowed: at least 2, or optional"
        if wrong:
            raise LeakbenchError(f"feature '{self.name}': {wrong}")

    @property
    def values(self) -> int:
        """How many values a category tells apart, the unknown one among them."""
        return len(self.columns) + self.optional


def numbers(columns: int) -> tuple[Feature, ...]:
    """So many columns without a declaration: each is a number."""
    return tuple(
        Feature(name=f"column {place}", kind="number", columns=(place,)) for place in range(columns)
    )


def require_whole(where: str, features: Sequence[Feature], columns: int) -> None:
    """Every one of the columns must belong to one feature.

    Raises:
        LeakbenchError: naming the first column for which this is not so.
    """
    owners: dict[int, str] = {}
    for feature in features:
        for column in feature.columns:
            if not 0 <= column < columns:
                raise LeakbenchError(
                    f"{where}: feature '{feature.name}' has column {column}; allowed are 0 to "
                    f"{columns - 1}"
                )
            if column in owners:
                raise LeakbenchError(
                    f"{where}: column {column} belongs to '{owners[column]}' and to "
                    f"'{feature.name}'; allowed: one feature a column"
                )
            owners[column] = feature.name
    for column in range(columns):
        if column not in owners:
            raise LeakbenchError(f"{where}: column {column} belongs to no feature")


def named_columns(names: Sequence[str]) -> dict[str, list[int]]:
    """Name of a feature -> its columns, from names such as "age" and "workclass=Private"."""
    found: dict[str, list[int]] = {}
    for column, name in enumerate(names):
        found.setdefault(name.split("=", 1)[0], []).append(column)
    return found
