"""Tables of records: fields of nested mappings become columns, and numbers stay what they are."""

from __future__ import annotations

import csv
import io
from typing import Any

import pandas
import pytest

from leakbench import frames

RECORDS: list[dict[str, Any]] = [
    {
        "victim": 7,
        "mse_raw": 0.1 + 0.2,
        "rank": 3,
        "baselines": {"mean_image": 1e-05, "start_image": None},
        "first_step": {"strict": 12, "norm, raw": None},
        "flags": ["label_known", "fits_noise"],
        "reason": "",
    },
    {
        "victim": 2**53 + 1,
        "mse_raw": None,
        "rank": None,
        "baselines": {},
        "first_step": {},
        "flags": [],
        "reason": 'said "no", and left',
        "extra": True,
    },
]


def test_every_field_is_a_column_and_every_record_a_row() -> None:
    table = frames.frame(RECORDS)
    assert list(table.columns) == [
        "victim", "mse_raw", "rank", "baselines.mean_image", "baselines.start_image",
        "first_step.strict", "first_step.norm, raw", "flags", "reason", "extra",
    ]  # fmt: skip
    assert len(table) == 2
    assert table["flags"].tolist() == ["label_known;fits_noise", ""]
    assert table["mse_raw"][0] == 0.1 + 0.2 and pandas.isna(table["mse_raw"][1])
    assert table["baselines.start_image"].isna().all()
    assert pandas.isna(table["extra"][0]) and bool(table["extra"][1])


def test_whole_numbers_stay_whole_beside_missing_ones() -> None:
    table = frames.frame(RECORDS)
    types = {name: str(kind) for name, kind in table.dtypes.items()}
    assert types["victim"] == "int64"
    assert types["rank"] == types["first_step.strict"] == "Int64"
    assert types["mse_raw"] == types["baselines.mean_image"] == "float64"
    assert table["victim"].tolist() == [7, 2**53 + 1]
    assert table["rank"][0] == 3 and table["rank"].isna().tolist() == [False, True]


def test_a_frame_answers_as_counting_by_hand_does() -> None:
    records = [
        {"row": row, "status": "ok", "first_step": {"strict": step}}
        for row, step in (("a", 3), ("a", None), ("b", 5), ("a", 9), ("b", None))
    ]
    found = frames.frame(records).groupby("row")["first_step.strict"].agg(["count", "median"])
    assert found["count"].to_dict() == {"a": 2, "b": 1}
    assert found["median"].to_dict() == {"a": 6, "b": 5}


def test_no_records_make_an_empty_frame() -> None:
    assert frames.frame([]).shape == (0, 0)


def by_csv(rows: list[dict[str, Any]]) -> str:
    """The same table by the standard library."""
    columns = list(dict.fromkeys(name for row in rows for name, _ in frames.flat(row)))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(dict(frames.flat(row)) for row in rows)
    return text.getvalue()


@pytest.mark.parametrize("rows", [RECORDS, RECORDS[:1], []])
def test_text_is_what_python_writes(rows: list[dict[str, Any]]) -> None:
    assert frames.to_csv(rows) == by_csv(rows)


def test_numbers_survive_the_text() -> None:
    first, second = csv.DictReader(io.StringIO(frames.to_csv(RECORDS)))
    assert float(first["mse_raw"]) == 0.1 + 0.2
    assert first["rank"] == "3" and second["rank"] == ""
    assert second["victim"] == str(2**53 + 1)
    assert second["reason"] == RECORDS[1]["reason"]


def test_counted_flags_are_named_with_their_counts() -> None:
    flags = [{"name": "label_known", "count": 3}, {"name": "few_networks", "count": None}]
    assert frames.to_csv([{"flags": flags}]) == "flags\nlabel_known=3;few_networks\n"
