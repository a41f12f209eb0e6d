"""Breast Cancer and Adult: numbers and categories, each column scaled to [0, 1]."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leakbench.data.entries import Archive, Entry, read_embedded
from leakbench.data.features import Feature, numbers
from leakbench.errors import LeakbenchError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from leakbench.data.examples import Examples, Whole

INDICES = "adult_indices.json"

# Field of a line of adult.data -> name of its column; the last field is the income.
NUMBERS = {
    0: "age",
    2: "fnlwgt",
    4: "education_num",
    10: "capital_gain",
    11: "capital_loss",
    12: "hours_per_week",
}
CATEGORIES = {
    1: "workclass",
    3: "education",
    5: "marital_status",
    6: "occupation",
    7: "relationship",
    8: "race",
    9: "sex",
    13: "native_country",
}
VALUES = (8, 16, 7, 14, 6, 5, 2, 41)
"""Columns of each of these."""
UNKNOWN = ("workclass", "occupation", "native_country")
"""Those that some answers leave open: all their columns are 0 then."""
FIELDS = len(NUMBERS) + len(CATEGORIES) + 1


def read_breast_cancer_full(entry: Entry, files: Sequence[Path]) -> Whole:
    """All rows, a quarter of them for testing; see `examples.quarter`.

    The first half of the public rows is that quarter's beginning: it is public in trainings too
    (`utility.material`), and must not be trained on. The other half is nearly all benign, so
    that the rest is drawn from all rows, candidates among them.
    """
    import numpy as np

    from leakbench.data import examples

    found = read_embedded(entry, files)
    public = np.flatnonzero(found.split == examples.PUBLIC).tolist()
    return examples.two_parts(
        found.images,
        found.labels,
        examples.quarter(
            public[: len(public) // 2], (), examples=len(found.labels), salt=entry.name
        ),
        class_names=found.class_names,
        source=found.source,
    )


def read_adult(entry: Entry, files: Sequence[Path]) -> Examples:
    """The rows of adult.npz that the index list names, in its order."""
    from leakbench.data import examples

    rows = _adult_rows(entry, files[0])
    return examples.listed(
        examples.index_list(INDICES),
        rows["x"],
        rows["y"],
        class_names=entry.class_names,
        source=str(files[0]),
    )


def read_adult_full(entry: Entry, files: Sequence[Path]) -> Whole:
    """All rows of adult.npz, a quarter of them for testing; see `examples.quarter`."""
    from leakbench.data import examples

    rows, index = _adult_rows(entry, files[0]), examples.index_list(INDICES)
    kept = [*index["candidates"], *index["train"]]
    return examples.two_parts(
        rows["x"],
        rows["y"],
        examples.quarter(index["public"], kept, examples=len(rows["y"]), salt=entry.name),
        class_names=entry.class_names,
        source=str(files[0]),
    )


def _adult_rows(entry: Entry, path: Path) -> dict[str, NDArray[Any]]:
    """x (n, 105) float32 scaled to [0, 1], y (n,) and is_test (n,) of adult.npz.

    Its numbers are exact in every right copy, so that they must be those of the index list.
    """
    from leakbench.data import catalog, examples, readers
    from leakbench.data.readers import Wanted

    n = sum(entry.full_counts)
    wanted = {
        "x": Wanted((n, *entry.input_shape), "float32"),
        "y": Wanted((n,), "uint8"),
        "is_test": Wanted((n,), "uint8"),
    }
    arrays = readers.read_npz(path, wanted)
    if readers.arrays_digest(arrays) != examples.index_list(INDICES)["sha256"]:
        raise LeakbenchError(
            f"{path}: the arrays 'x', 'y' and 'is_test' are not those of {INDICES}; "
            f"{catalog.how_to_get(entry)} brings the right file"
        )
    return arrays | {"x": examples.unit_columns(arrays["x"], arrays["is_test"] == 0)}


def build_adult(archives: Sequence[Path], outputs: Sequence[Path]) -> None:
    """x (n, d) float32, y (n,) 1 = income over 50K, is_test (n,) and columns (d,).

    The numbers as they are, then a 0/1 column for each value of each category, in alphabetical
    order; "?", an unknown value, has none. Rows of the training file, then of the test file.
    """
    import numpy as np

    from leakbench.data import writing

    parts = [_records(archive) for archive in archives]
    table = np.array([record for part in parts for record in part])
    blocks = [table[:, list(NUMBERS)].astype(np.float32)]
    columns = list(NUMBERS.values())
    for field, name in CATEGORIES.items():
        values = sorted(set(table[:, field].tolist()) - {"?"})
        blocks.append((table[:, field, None] == np.array(values)).astype(np.float32))
        columns += [f"{name}={value}" for value in values]
    arrays = {
        "x": np.concatenate(blocks, axis=1),
        "y": (table[:, -1] == ">50K").astype(np.uint8),
        "is_test": np.repeat(np.arange(2, dtype=np.uint8), [len(part) for part in parts]),
        "columns": np.array(columns),
    }
    writing.write_npz(outputs[0], arrays)


def _records(archive: Path) -> list[list[str]]:
    """The fields of each line; the test file has a remark on top and a full stop at each end."""
    lines = archive.read_text(encoding="ascii", errors="replace").splitlines()
    records = [line.removesuffix(".").split(", ") for line in lines if line and line[0] != "|"]
    if not records or any(
        len(record) != FIELDS or not all(record[field].isdigit() for field in NUMBERS)
        for record in records
    ):
        raise LeakbenchError(
            f"{archive}: each line must hold {FIELDS} fields separated by ', ', "
            f"numbers for {', '.join(NUMBERS.values())}"
        )
    return records


def _adult_features() -> tuple[Feature, ...]:
    """Of the columns that `build_adult` makes."""
    found = [
        Feature(name=name, kind="number", columns=(place,))
        for place, name in enumerate(NUMBERS.values())
    ]
    begun = len(found)
    for name, values in zip(CATEGORIES.values(), VALUES, strict=True):
        columns = tuple(range(begun, begun + values))
        begun += values
        found.append(Feature(name=name, kind="category", columns=columns, optional=name in UNKNOWN))
    return tuple(found)


ENTRIES = (
    Entry(
        name="breast_cancer",
        title="Breast Cancer Wisconsin (Diagnostic), tabular",
        classes=2,
        class_names=("malignant", "benign"),
        input_shape=(30,),
        sample="breast_cancer.npz",
        sample_counts=(200, 200, 169),
        root_files=(),
        full_counts=(426, 143),
        licence="CC BY 4.0",
        read=read_embedded,
        read_full=read_breast_cancer_full,
        features=numbers(30),
    ),
    Entry(
        name="adult",
        title="Adult census income, tabular",
        classes=2,
        class_names=("<=50K", ">50K"),
        input_shape=(105,),
        sample=None,
        sample_counts=(1000, 3000, 1000),
        root_files=("adult.npz",),
        full_counts=(36_631, 12_211),
        licence="CC BY 4.0; answers of real people",
        read=read_adult,
        read_full=read_adult_full,
        archives=tuple(
            Archive(
                file=file,
                urls=(f"https://archive.ics.uci.edu/ml/machine-learning-databases/adult/{file}",),
                algorithm="md5",
                digest=digest,
            )
            for file, digest in (
                ("adult.data", "5d7c39d7b8804f071cdd1f2a7c460872"),
                ("adult.test", "35238206dfdf7f1fe215bbb874adecdc"),
            )
        ),
        build=build_adult,
        features=_adult_features(),
    ),
)
