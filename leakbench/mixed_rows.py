"""Rows of numbers and categories: decoded into one value a feature, and relaxed to be optimised.

What the columns mean is declared by the data (`leakbench.data.features`); without a declaration
every element of an input is a number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leakbench.data.features import Feature, numbers


def declared(features: Sequence[Feature], input_shape: tuple[int, ...]) -> tuple[Feature, ...]:
    """The features, one number for each element of an input where none are declared."""
    return tuple(features) or numbers(math.prod(input_shape))


def decoded(rows: Tensor, features: Sequence[Feature]) -> Tensor:
    """(..., columns), any values -> (..., features), clipped to [0, 1]; nan stays nan.

    A number is itself. A category is the place of its largest column, the earlier of equal ones; an
    optional one is as likely unknown as its columns lack to 1, and unknown has the last place.
    """
    rows = rows.clamp(0.0, 1.0)
    found = rows.new_empty(*rows.shape[:-1], len(features))
    places, columns = _numbers(features)
    found[..., places] = rows[..., columns]
    for place, feature in enumerate(features):
        if feature.kind == "category":
            shares = _shares(rows, feature)
            chosen = shares.argmax(dim=-1).to(rows.dtype)
            found[..., place] = torch.where(shares.isnan().any(dim=-1), math.nan, chosen)
    return found


def encoded(values: Tensor, features: Sequence[Feature]) -> Tensor:
    """(..., features), what `decoded` gives -> (..., columns), categories as zeros and ones."""
    width = sum(len(feature.columns) for feature in features)
    found = values.new_empty(*values.shape[:-1], width)
    places, columns = _numbers(features)
    found[..., columns] = values[..., places]
    for place, feature in enumerate(features):
        if feature.kind == "category":
            every = torch.arange(len(feature.columns), device=values.device)
            one_hot = (values[..., place, None] == every).to(values.dtype)
            found[..., list(feature.columns)] = one_hot
    return found


def _numbers(features: Sequence[Feature]) -> tuple[list[int], list[int]]:
    """Places among the features, and columns, of all numbers."""
    found = [
        (place, feature.columns[0])
        for place, feature in enumerate(features)
        if feature.kind == "number"
    ]
    return [place for place, _ in found], [column for _, column in found]


def _shares(rows: Tensor, feature: Feature) -> Tensor:
    """(..., values) of a category, what its columns lack to 1 behind them if it is optional."""
    shares = rows[..., list(feature.columns)]
    if not feature.optional:
        return shares
    return torch.cat([shares, 1 - shares.sum(dim=-1, keepdim=True)], dim=-1)


def in_units(rows: Tensor, features: Sequence[Feature], input_range: tuple[float, float]) -> Tensor:
    """(..., columns) with numbers as shares of the input range, as if it were [0, 1]; categories
    are 0 and 1 in any range."""
    low, high = input_range
    return _on_numbers(rows, features, lambda numbers: (numbers - low) / (high - low))


def from_units(
    rows: Tensor, features: Sequence[Feature], input_range: tuple[float, float]
) -> Tensor:
    """The inverse of `in_units`."""
    low, high = input_range
    return _on_numbers(rows, features, lambda numbers: low + (high - low) * numbers)


def _on_numbers(
    rows: Tensor, features: Sequence[Feature], change: Callable[[Tensor], Tensor]
) -> Tensor:
    _, columns = _numbers(features)
    found = rows.clone()
    found[..., columns] = change(rows[..., columns])
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxation:
    """Free coordinates, in which every point is a row that might be.

    A number is low + (high - low) sigmoid(z), z one coordinate; a category the softmax of one
    coordinate for each of its values. The value of an optional one that has no column is left out.

    features: of all columns. low, high: the range of numbers.
    """

    features: tuple[Feature, ...]
    low: float
    high: float

    @property
    def size(self) -> int:
        """Coordinates of one row."""
        return sum(1 if f.kind == "number" else f.values for f in self.features)

    def rows(self, points: Tensor) -> Tensor:
        """(..., size) -> (..., columns)."""
        _, columns = _numbers(self.features)
        unit = torch.sigmoid(points[..., : len(columns)])
        parts, begun = [self.low + (self.high - self.low) * unit], len(columns)
        # Categories of one size together: a table may have hundreds of them.
        for (values, optional), some in self._categories().items():
            block = points[..., begun : begun + values * len(some)]
            begun += values * len(some)
            shares = block.unflatten(-1, (len(some), values)).softmax(dim=-1)
            kept = values - optional
            parts.append(shares[..., :kept].flatten(-2))
            columns += [column for feature in some for column in feature.columns]
        order = torch.tensor(columns, device=points.device).argsort()
        return torch.cat(parts, dim=-1).index_select(-1, order)

    def _categories(self) -> dict[tuple[int, bool], list[Feature]]:
        """By how many values they have, and whether they are optional."""
        found: dict[tuple[int, bool], list[Feature]] = {}
        for feature in self.features:
            if feature.kind == "category":
                found.setdefault((feature.values, feature.optional), []).append(feature)
        return found
