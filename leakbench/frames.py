"""Records and cells of a report as tables of pandas: one row each, every field a column."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from leakbench.printable import printable

if TYPE_CHECKING:
    import pandas


def frame(records: Iterable[Mapping[str, Any]]) -> pandas.DataFrame:
    """One row a record, in their order.

    Args:
        records: Mappings of plain values; they need not have the same fields.

    Returns:
        Columns in the order in which fields first appear. Nested fields are joined by dots
        ("baselines.mean_image"), lists by semicolons. What is None or absent is missing; whole
        numbers stay whole beside missing ones ("Int64"). Empty without records.
    """
    import pandas

    # As objects first: pandas would make floats of whole numbers with a gap.
    table = pandas.DataFrame([dict(flat(record)) for record in records], dtype=object)
    for name in table.columns:
        column = table[name]
        present = column.dropna()
        whole = 0 < len(present) < len(column) and all(
            type(value) is int and -(2**63) <= value < 2**63 for value in present
        )
        table[name] = column.astype("Int64") if whole else column.infer_objects()
    return table


def to_csv(rows: Iterable[Mapping[str, Any]]) -> str:
    """A table with one line a mapping, every value as Python writes it; None and absent are empty.

    Args:
        rows: As in `frame`.

    Returns:
        A header and the lines, each ending in a newline; columns as in `frame`. Text that a
        spreadsheet would take for a formula begins with an apostrophe.
    """
    import pandas

    table = pandas.DataFrame(
        [{name: _inert(value) for name, value in flat(row)} for row in rows], dtype=object
    )
    text: str = table.to_csv(index=False, na_rep="", lineterminator="\n")
    return text


def _inert(value: Any) -> Any:
    """Text that no spreadsheet computes, on one line and as it is shown."""
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if text.lstrip()[:1] in ("=", "+", "-", "@") else text


def flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Names and values of all fields, nested names joined by dots and lists by semicolons."""
    for name, item in value.items():
        if isinstance(item, Mapping):
            yield from flat(item, f"{prefix}{name}.")
        elif isinstance(item, list | tuple):
            yield f"{prefix}{name}", ";".join(map(_word, item))
        else:
            yield f"{prefix}{name}", item


def _word(item: Any) -> str:
    """An entry of a list; a named count, as a report's flags are, is "name" or "name=count"."""
    if isinstance(item, Mapping) and item.keys() == {"name", "count"}:
        return str(item["name"]) if item["count"] is None else f"{item['name']}={item['count']}"
    return str(item)
