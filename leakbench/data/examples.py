"""Examples as arrays, between the files and `Dataset`: samples, index lists, splits by seed."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leakbench.data import entries, readers
from leakbench.data.entries import Entry
from leakbench.data.readers import Array, Wanted
from leakbench.errors import LeakbenchError

CANDIDATE, TRAIN, PUBLIC = 0, 1, 2  # the values of `split` in a sample

CANDIDATES, FURTHER, PUBLICS = 1000, 3000, 1000
"""Examples that a split by seed takes of each kind, where there are so many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examples:
    """What a `Dataset` is made of, in its order: candidates, further training examples, public.

    images (n, *input_shape): uint8, or float32 in [0, 1] (rows of a table are scaled already).
    labels (n,), indices (n,) and split (n,) are integers of any type, which the checksum counts.
    `source` says where they are from.
    """

    images: Array
    labels: Array
    indices: Array
    split: Array
    class_names: tuple[str, ...]
    source: str

    @property
    def counts(self) -> tuple[int, int, int]:
        """Candidates, further training examples, public examples."""
        kinds = (CANDIDATE, TRAIN, PUBLIC)
        first, further, public = (int((self.split == kind).sum()) for kind in kinds)
        return first, further, public


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """What a `FullDataset` is made of; images and labels as in `Examples`."""

    train: Array
    train_labels: Array
    test: Array
    test_labels: Array
    class_names: tuple[str, ...]
    source: str


# ---- the embedded files --------------------------------------------------------------------------


def read_sample(entry: Entry) -> Examples:
    """The examples of an embedded file, which is checked against its checksum."""
    if entry.sample is None:
        raise LeakbenchError(f"data set '{entry.name}' has no embedded sample")
    n = sum(entry.sample_counts)
    tabular = len(entry.input_shape) == 1
    wanted = {
        "images": Wanted((n, *entry.input_shape), "float32" if tabular else "uint8"),
        "labels": Wanted((n,), "uint8"),
        "indices": Wanted((n,), "int32"),
        "split": Wanted((n,), "uint8"),
    }
    arrays = readers.read_npz(_checked_file(entry.sample), wanted)
    if tabular:
        arrays["images"] = unit_columns(arrays["images"], arrays["split"] != PUBLIC)
    return Examples(**arrays, class_names=entry.class_names, source="sample")


def index_list(file: str) -> dict[str, Any]:
    """An embedded list of the rows of a file in the data root; its keys: make_samples.py."""
    listed: dict[str, Any] = json.loads(_checked_file(file).read_text(encoding="ascii"))
    return listed


def _checked_file(file: str) -> Path:
    """The path of an embedded file whose bytes are those listed in SHA256SUMS."""
    path, sums = entries.SAMPLES / file, entries.SAMPLES / "SHA256SUMS"
    try:
        lines = sums.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as problem:
        raise LeakbenchError(
            f"{sums}: cannot be read, the installation is damaged; reinstall leakbench"
        ) from problem
    if f"{readers.file_digest(path, 'sha256')}  {file}" not in lines:
        raise LeakbenchError(
            f"{path}: its SHA-256 is not the one in {sums.name}, the installation is damaged; "
            "reinstall leakbench"
        )
    return path


# ---- for readers of data sets --------------------------------------------------------------------


def listed(
    index: Mapping[str, Any],
    images: Array,
    labels: Array,
    *,
    class_names: tuple[str, ...],
    source: str,
) -> Examples:
    """The rows that an index list names, in its order."""
    parts = [index["candidates"], index["train"], index["public"]]
    order = np.array([row for part in parts for row in part], dtype=np.int32)
    return Examples(
        images=images[order],
        labels=labels[order],
        indices=order,
        split=np.repeat(np.arange(3, dtype=np.uint8), [len(part) for part in parts]),
        class_names=class_names,
        source=source,
    )


def quarter(
    public: Sequence[int], kept: Sequence[int], *, examples: int, salt: str
) -> NDArray[np.bool_]:
    """Which of `examples` rows are for testing: a quarter, rounded up.

    The public rows first, then those that are neither public nor kept for training, in the order
    of the SHA-256 of "salt:position".
    """
    taken = {*public, *kept}
    free = sorted(set(range(examples)) - taken, key=lambda position: _key(salt, position))
    test = np.zeros(examples, dtype=np.bool_)
    test[[*public, *free][: math.ceil(examples / 4)]] = True
    return test


def public_as_test(examples: Examples) -> Whole:
    """The whole set, where all of it is in `examples`: its public part is the test part."""
    return two_parts(
        examples.images,
        examples.labels,
        examples.split == PUBLIC,
        class_names=examples.class_names,
        source=examples.source,
    )


def two_parts(
    images: Array,
    labels: Array,
    test: NDArray[np.bool_],
    *,
    class_names: tuple[str, ...],
    source: str,
) -> Whole:
    """The rows that are not `test`, and those that are."""
    return Whole(
        train=images[~test],
        train_labels=labels[~test],
        test=images[test],
        test_labels=labels[test],
        class_names=class_names,
        source=source,
    )


def unit_columns(rows: Array, train: NDArray[np.bool_]) -> Array:
    """Each column on [0, 1] by its minimum and maximum in the `train` rows, clipped.

    Checksums of the sources rule out a column that is constant in the training part.
    """
    low, high = rows[train].min(axis=0), rows[train].max(axis=0)
    unit: Array = ((rows - low) / (high - low)).clip(0, 1)
    return unit


def check_labels(entry: Entry, path: Path, labels: Array) -> None:
    """Refuse a label that is no class of the entry."""
    if int(labels.max()) >= entry.classes:
        raise LeakbenchError(
            f"{path}: holds the label {int(labels.max())}; allowed are 0 to {entry.classes - 1}"
        )


def digest(array: Array) -> str:
    """SHA-256 of the bytes of an array."""
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


# ---- order and split -----------------------------------------------------------------------------


def round_robin(labels: Array, salt: str) -> NDArray[np.int64]:
    """All positions, one of each class in turn; a class that runs out is passed over.

    Inside a class they are in the order of the SHA-256 of "salt:position".
    """
    order = sorted(range(len(labels)), key=lambda position: _key(salt, position))
    return take_in_turn(np.array(order, dtype=np.int64), labels)


def _key(salt: str, position: int) -> str:
    return hashlib.sha256(f"{salt}:{position}".encode("ascii")).hexdigest()


def take_in_turn(positions: NDArray[np.int64], labels: Array) -> NDArray[np.int64]:
    """The same positions, one of each class in turn, in their given order inside a class."""
    of = labels[positions]
    waiting = [positions[of == c].tolist() for c in range(int(labels.max()) + 1)]
    rounds = max(len(members) for members in waiting)
    turns = [m[turn] for turn in range(rounds) for m in waiting if turn < len(m)]
    return np.array(turns, dtype=np.int64)


def split(
    images: Array,
    labels: Array,
    test: NDArray[np.bool_] | None,
    *,
    seed: int,
    class_names: Sequence[str],
    source: str,
) -> tuple[Examples, Whole]:
    """A data set without an index list, divided and ordered by a seed.

    Of examples that are equal the first counts, a training example before a test example; the
    others are left out, so that no public example is a victim and no candidate stands there
    twice. Without a test part a quarter of every class is held out as one, to the nearest whole
    number and at least one. Candidates (1,000 where there are so many) and further training
    examples (3,000) are taken from the training part, public ones (1,000, or one of each class)
    from the test part, each in round robin over the classes.

    Args:
        images: (n, *input_shape). labels: (n,), 0 to K - 1. test: (n,) which are for testing.
        class_names: K, to name a class in an error.

    Raises:
        LeakbenchError: a class with no example in one of the two parts.
    """
    first = _first_of_equals(images, test)
    if test is None:
        held = _held_out(labels, first, seed, class_names, source)
    else:
        held = first[test[first]]
    kept = np.setdiff1d(first, held)
    for part, rows in (("training", kept), ("test", held)):
        missing = np.setdiff1d(np.arange(len(class_names)), labels[rows])
        if len(missing):
            raise LeakbenchError(
                f"{source}: class '{class_names[missing[0]]}' has no {part} example that is not "
                "the same as another example; each class needs at least one"
            )
    train = kept[round_robin(labels[kept], f"{seed}:train")][: CANDIDATES + FURTHER]
    public = held[round_robin(labels[held], f"{seed}:test")][: max(PUBLICS, len(class_names))]
    order = np.concatenate([train, public])
    counts = [min(CANDIDATES, len(train)), max(len(train) - CANDIDATES, 0), len(public)]
    names = tuple(class_names)
    examples = Examples(
        images=images[order],
        labels=labels[order],
        indices=order,
        split=np.repeat(np.arange(3, dtype=np.uint8), counts),
        class_names=names,
        source=source,
    )
    distinct = np.sort(first)
    whole = two_parts(
        images[distinct],
        labels[distinct],
        np.isin(distinct, held),
        class_names=names,
        source=source,
    )
    return examples, whole


def _first_of_equals(images: Array, test: NDArray[np.bool_] | None) -> NDArray[np.int64]:
    """Positions of distinct examples, those for training first."""
    order = np.arange(len(images)) if test is None else np.argsort(test, kind="stable")
    found: dict[bytes, int] = {}
    for position in order.tolist():
        row = np.ascontiguousarray(images[position])
        found.setdefault(hashlib.blake2b(row.data, digest_size=16).digest(), position)
    return np.array(list(found.values()), dtype=np.int64)


def _held_out(
    labels: Array, rows: NDArray[np.int64], seed: int, class_names: Sequence[str], source: str
) -> NDArray[np.int64]:
    """A quarter of each class among `rows`, at least one, chosen by the seed."""
    mixed = rows[round_robin(labels[rows], f"{seed}:held out")]
    parts = []
    for label, name in enumerate(class_names):
        members = mixed[labels[mixed] == label]
        if len(members) < 2:
            raise LeakbenchError(
                f"{source}: class '{name}' has {len(members)} example"
                f"{'' if len(members) == 1 else 's'} (equal ones count once); each class needs at "
                "least 2, one to train on and one that is public"
            )
        parts.append(members[: max(1, round(len(members) / 4))])
    return np.concatenate(parts)
