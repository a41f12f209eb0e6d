"""Location-30 and Purchase-100: rows of zeros and ones, published for membership inference.

Shokri et al. 2017, "Membership Inference Attacks Against Machine Learning Models". Their publishers
state no checksums, so the archives are never downloaded.
"""

from __future__ import annotations

import functools
import io
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leakbench.data.entries import Archive, Entry
from leakbench.data.features import Feature
from leakbench.errors import LeakbenchError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from leakbench.data.examples import Examples, Whole

REFERENCES = {"location30": "9c43890f54605a31ffaf2e6c0d27e9f7715f67b1a893604806b817a17a1070fc"}
"""SHA-256 (`readers.arrays_digest`) of x and y in the copy that the tests were run with."""


def read(entry: Entry, files: Sequence[Path]) -> Examples:
    """Examples of a split by seed 0: the same files give the same examples everywhere."""
    return _split(entry, files[0])[0]


def read_full(entry: Entry, files: Sequence[Path]) -> Whole:
    """All distinct rows, a quarter of each class for testing: there is no official split."""
    return _split(entry, files[0])[1]


def _split(entry: Entry, path: Path) -> tuple[Examples, Whole]:
    """`path` is an npz with x (n, columns) and y (n,), both uint8."""
    import numpy as np

    from leakbench.data import examples, readers
    from leakbench.data.readers import Wanted

    n = sum(entry.full_counts)
    wanted = {"x": Wanted((n, *entry.input_shape), "uint8"), "y": Wanted((n,), "uint8")}
    arrays = readers.read_npz(path, wanted)
    examples.check_labels(entry, path, arrays["y"])
    if int(arrays["x"].max()) > 1:
        raise LeakbenchError(f"{path}: array 'x' must hold zeros and ones only")
    reference = REFERENCES.get(entry.name, "")
    same = readers.arrays_digest(arrays) == reference
    remark = "differs from the reference copy" if reference else "not verified, no checksum known"
    return examples.split(
        arrays["x"].astype(np.float32),
        arrays["y"],
        None,
        seed=0,
        class_names=[str(label) for label in range(entry.classes)],
        source=str(path) if same else f"{path} ({remark})",
    )


def build(
    archives: Sequence[Path],
    outputs: Sequence[Path],
    *,
    file: str,
    shape: tuple[int, int],
    classes: int,
) -> None:
    """x (n, columns) and y (n,) in 0..classes-1 from lines "label, value, value, ...".

    Labels count from 1 in the archive.
    """
    import numpy as np

    from leakbench.data import writing

    with tarfile.open(archives[0], "r:gz") as tar:
        content = writing.member(tar, file)
    try:
        table: NDArray[Any] = np.loadtxt(
            io.BytesIO(content), dtype=np.uint8, delimiter=",", quotechar='"', ndmin=2
        )
    except ValueError as problem:
        reason = str(problem).splitlines()[0]
        raise LeakbenchError(f"{archives[0]}: '{file}' is no table of bytes ({reason})") from None
    rows, columns = shape
    if table.shape != (rows, columns + 1):
        raise LeakbenchError(
            f"{archives[0]}: '{file}' is a table {table.shape}, it must be {(rows, columns + 1)}, "
            "the label first"
        )
    x, y = table[:, 1:], table[:, 0]
    if int(x.max()) > 1 or int(y.min()) < 1 or int(y.max()) > classes:
        raise LeakbenchError(
            f"{archives[0]}: '{file}' must hold labels 1 to {classes}, then zeros and ones"
        )
    writing.write_npz(outputs[0], {"x": np.ascontiguousarray(x), "y": y - np.uint8(1)})


def _entry(
    name: str, title: str, file: str, archive: str, shape: tuple[int, int], classes: int
) -> Entry:
    rows, columns = shape
    return Entry(
        name=name,
        title=title,
        classes=classes,
        class_names=tuple(str(label) for label in range(classes)),
        input_shape=(columns,),
        sample=None,
        sample_counts=(1000, 3000, 1000) if rows > 10_000 else (1000, 2758, 1000),
        root_files=(f"{name}.npz",),
        full_counts=(rows, 0),
        licence="none stated; made from records of real people",
        read=read,
        read_full=read_full,
        archives=(
            Archive(
                file=archive,
                urls=(f"https://github.com/privacytrustlab/datasets/raw/master/{archive}",),
            ),
        ),
        features=tuple(
            Feature(name=f"column {place}", kind="category", columns=(place,), optional=True)
            for place in range(columns)
        ),
        build=functools.partial(build, file=file, shape=shape, classes=classes),
    )


ENTRIES = (
    _entry(
        "location30",
        "Location-30: Foursquare check-ins in Bangkok, tabular",
        "bangkok",
        "dataset_location.tgz",
        (5010, 446),
        30,
    ),
    _entry(
        "purchase100",
        "Purchase-100: shopping histories, tabular",
        "dataset_purchase",
        "dataset_purchase.tgz",
        (197_324, 600),
        100,
    ),
)
