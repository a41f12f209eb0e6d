"""What a data set says of itself; imports neither torch nor numpy.

A file in `leakbench/data/families/` holds the entries of one family, with the functions that read
and prepare them. It is imported to list data sets, so it imports numpy inside these functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from leakbench.data.features import Feature

if TYPE_CHECKING:
    from leakbench.data.examples import Examples, Whole

SAMPLES = Path(__file__).parent / "samples"
"""The embedded files."""

LARGEST_SIDE = 4096
"""Pixels; of a user's own images."""


Build = Callable[[Sequence[Path], Sequence[Path]], None]
"""Writes the files of a data root (second argument) from archives (first argument)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """A file to fetch: its mirrors, tried in order, and its published checksum.

    `digest` is "" where its publishers state none. Such a file is never downloaded: the user puts
    it into a folder himself, and `urls` say where it is from.
    """

    file: str
    urls: tuple[str, ...]
    algorithm: str = ""
    digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The static facts of one data set, and how it is read and prepared.

    Attributes:
        name: in suites and records. title, licence: shown to people.
        classes: their number; labels are 0 to classes - 1. class_names: empty where the names come
            with the data.
        input_shape: (channels, height, width) of images, (columns,) of a table.
        sample: a file in `samples/` with examples, None where none may be shipped.
        sample_counts: candidates, further training examples and public examples of `Dataset`.
        root_files: relative to a data root; none where the sample is the whole set, or where the
            data are the user's own.
        full_counts: training and test examples of its files. (n, 0) where there is no official
            split, and `read_full` holds out a part for testing.
        read: the examples of `Dataset`. It is given this entry and its files: those in the data
            root, or none where there is a sample.
        read_full: the whole set, from the files in the data root; from none where there are none.
        archives: what `leakbench data prepare` fetches.
        features: of a table, what its columns mean; () elsewhere.
        build: writes those of the root files (second argument, in the order of `root_files`) that
            do not exist, from the archives (first argument); None where there is nothing to do.
    """

    name: str
    title: str
    classes: int
    class_names: tuple[str, ...]
    input_shape: tuple[int, ...]
    sample: str | None
    sample_counts: tuple[int, int, int]
    root_files: tuple[str, ...]
    full_counts: tuple[int, int]
    licence: str
    read: Callable[[Entry, Sequence[Path]], Examples]
    read_full: Callable[[Entry, Sequence[Path]], Whole]
    archives: tuple[Archive, ...] = ()
    features: tuple[Feature, ...] = ()
    build: Build | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnData:
    """A user's own data: a folder of images by class, or an .npz file; see `docs/data.md`.

    Attributes:
        path: absolute. name: in records and tables; it names random streams too, so a folder may
            be moved, but not renamed, without a change of results.
        size: pixels that images are resized to, (size, size); None: they must be of one size.
        seed: of the split into candidates, further training and public examples.
    """

    path: str
    name: str
    size: int | None = None
    seed: int = 0


Source = str | OwnData
"""A data set to load: a name of the catalog, a path (with a slash, or ending in .npz), or this."""


def read_embedded(entry: Entry, files: Sequence[Path]) -> Examples:
    """The embedded sample of an entry, whatever is in a data root."""
    from leakbench.data import examples

    return examples.read_sample(entry)
