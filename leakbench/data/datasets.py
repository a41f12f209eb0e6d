"""Data sets as tensors: victims and candidates from the samples, full sets from a data root."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leakbench.data import catalog, readers
from leakbench.data.catalog import Entry
from leakbench.data.readers import Array, Wanted
from leakbench.errors import DataMissing, LeakbenchError

LFW_INDICES = "lfw_indices.json"
ADULT_INDICES = "adult_indices.json"
CANDIDATE, TRAIN, PUBLIC = 0, 1, 2  # the values of `split` in a sample


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dataset:
    """The examples of a benchmark: victims' candidates, training data, the attacker's public data.

    Examples are images or, where `input_shape` is (columns,), rows of a table. They are float32
    (n, *input_shape) within `input_range`, labels int64 (n,). Each column of a table is scaled to
    [0, 1] by its minimum and maximum in the training part of the whole set; what lies outside
    them in other rows is clipped. The order is fixed and round robin over the classes: a prefix of
    `candidates` of any length is balanced to within one example a class. `train` starts with the
    candidates; `public` shares no example with it. `candidate_indices` (n,) int64 are positions in
    the file that the examples were taken from. `source` is "sample", or the file in the data
    root, with a remark where its pixels are not those that the index list was made for.
    `checksum` is the SHA-256 of the uint8 images (of a table: the scaled rows), labels, indices
    and parts that were used.

    Instances are shared within a process and the tensors share memory: do not write to them.
    """

    name: str
    classes: int
    class_names: tuple[str, ...]
    input_shape: tuple[int, ...]
    input_range: tuple[float, float]
    candidates: Tensor
    candidate_labels: Tensor
    candidate_indices: Tensor
    train: Tensor
    train_labels: Tensor
    public: Tensor
    public_labels: Tensor
    source: str
    checksum: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FullDataset:
    """A whole data set for training: images uint8 (n, *input_shape), labels int64 (n,).

    Bytes, because CIFAR-10 as float32 takes 740 MB in every process: `as_unit` makes a batch
    float32 in [0, 1]. Rows of a table are float32 (n, columns), scaled as those of `Dataset`.
    Instances are shared within a process: do not write to the tensors.
    """

    name: str
    classes: int
    class_names: tuple[str, ...]
    input_shape: tuple[int, ...]
    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor
    source: str
    checksum: str


@dataclass(frozen=True, slots=True)
class _Sample:
    """images (n, *input_shape), labels (n,), indices (n,), split (n,): candidates, train, public.

    The images are uint8, or scaled float32 rows of a table.
    """

    images: Array
    labels: NDArray[np.uint8]
    indices: Array
    split: NDArray[np.uint8]


def as_unit(images: Tensor) -> Tensor:
    """uint8 images as float32 in [0, 1], same shape; rows of a table, float32, as they are."""
    return images.to(torch.float32) / 255 if images.dtype == torch.uint8 else images


def load(name: str, root: Path | None = None) -> Dataset:
    """The victims, training and public examples of a data set.

    MNIST, Fashion-MNIST, CIFAR-10 and Breast Cancer always come from the embedded samples, also
    when `root` holds the full data; LFW and Adult come from `root`/lfw.npz and `root`/adult.npz by
    embedded index lists. `root` defaults to the folder of LEAKBENCH_DATA. Kept for the life of the
    process.

    DataMissing when LFW or Adult is not in `root`; LeakbenchError for an unknown name, a bad
    LEAKBENCH_DATA or a damaged file.
    """
    entry = catalog.look_up(name)
    return _load(name, _root(root) if entry.sample is None else None)


def load_full(name: str, root: Path | None = None) -> FullDataset:
    """The whole training and test part from a data root, for training.

    The candidates of `load` are among the training images; for MNIST so are its public images,
    which are training digits held out of the sample only. LFW and Breast Cancer have no official
    split: the test part is the public part of `load`. Breast Cancer needs no root, its sample is
    the whole set.

    DataMissing when the files are not in `root` (default: the folder of LEAKBENCH_DATA);
    LeakbenchError as for `load`.
    """
    entry = catalog.look_up(name)
    return _load_full(name, _root(root) if entry.root_files else None)


def _root(root: Path | None) -> Path | None:
    return root.absolute() if root is not None else catalog.data_root()


@functools.lru_cache(maxsize=8)
def _load(name: str, root: Path | None) -> Dataset:
    entry = catalog.look_up(name)
    if entry.sample is not None:
        return _dataset(entry, _read_sample(entry, entry.sample), entry.class_names, "sample")
    path = _require_files(entry, root)[0]
    if name == "adult":
        rows = _read_adult(entry, path)
        sample = _listed(_index_list(ADULT_INDICES), rows["x"], rows["y"])
        return _dataset(entry, sample, entry.class_names, str(path))
    lfw = _read_lfw(entry, path)
    return _dataset(entry, lfw.sample, lfw.class_names, lfw.source)


@functools.lru_cache(maxsize=4)
def _load_full(name: str, root: Path | None) -> FullDataset:
    entry = catalog.look_up(name)
    if entry.sample is not None and not entry.root_files:
        sample = _read_sample(entry, entry.sample)
        parts = _two_parts(sample.images, sample.labels, sample.split == PUBLIC)
        return _full_dataset(entry, parts, entry.class_names, "sample")
    files = _require_files(entry, root)
    if name == "lfw":
        lfw = _read_lfw(entry, files[0])
        parts = _two_parts(lfw.sample.images, lfw.sample.labels, lfw.sample.split == PUBLIC)
        return _full_dataset(entry, parts, lfw.class_names, lfw.source)
    if name == "adult":
        rows = _read_adult(entry, files[0])
        parts = _two_parts(rows["x"], rows["y"], rows["is_test"] == 1)
        return _full_dataset(entry, parts, entry.class_names, str(files[0]))
    parts = _read_cifar10(entry, files[0]) if name == "cifar10" else _read_idx_files(entry, files)
    return _full_dataset(entry, parts, entry.class_names, str(files[0].parent))


def _two_parts(images: Array, labels: Array, test: NDArray[np.bool_]) -> dict[str, Array]:
    parts = {"train": images[~test], "train_labels": labels[~test]}
    return parts | {"test": images[test], "test_labels": labels[test]}


def _require_files(entry: Entry, root: Path | None) -> list[Path]:
    """The files of an entry in the data root, all of which exist."""
    if root is None:
        place = f"{catalog.ENVIRONMENT_VARIABLE} is not set"
    else:
        files = [root / file for file in entry.root_files]
        missing = [file for file in files if not file.is_file()]
        if not missing:
            return files
        place = f"looked for {missing[0]}"
    raise DataMissing(
        f"data set '{entry.name}' is not on this machine ({place}); get it with "
        f"'leakbench data prepare DEST {entry.name}', then set "
        f"{catalog.ENVIRONMENT_VARIABLE}=DEST"
    )


# ---- the embedded samples ------------------------------------------------------------------------


def _read_sample(entry: Entry, file: str) -> _Sample:
    path = _checked_sample_file(file)
    n = sum(entry.sample_counts)
    tabular = len(entry.input_shape) == 1
    wanted = {
        "images": Wanted((n, *entry.input_shape), "float32" if tabular else "uint8"),
        "labels": Wanted((n,), "uint8"),
        "indices": Wanted((n,), "int32"),
        "split": Wanted((n,), "uint8"),
    }
    arrays = readers.read_npz(path, wanted)
    if tabular:
        arrays["images"] = _unit_columns(arrays["images"], arrays["split"] != PUBLIC)
    return _Sample(**arrays)


def _index_list(file: str) -> dict[str, Any]:
    """An embedded list of the rows of a file in the data root; its keys: make_samples.py."""
    listed: dict[str, Any] = json.loads(_checked_sample_file(file).read_text(encoding="ascii"))
    return listed


def _listed(index: Mapping[str, Any], images: Array, labels: Array) -> _Sample:
    """The rows that an index list names, in its order."""
    parts = [index["candidates"], index["train"], index["public"]]
    order = np.array([row for part in parts for row in part], dtype=np.int32)
    return _Sample(
        images=images[order],
        labels=labels[order],
        indices=order,
        split=np.repeat(np.arange(3, dtype=np.uint8), [len(part) for part in parts]),
    )


def _unit_columns(rows: Array, train: NDArray[np.bool_]) -> Array:
    """Each column on [0, 1] by its minimum and maximum in the `train` rows, clipped.

    Checksums of the sources rule out a column that is constant in the training part.
    """
    low, high = rows[train].min(axis=0), rows[train].max(axis=0)
    unit: Array = ((rows - low) / (high - low)).clip(0, 1)
    return unit


def _checked_sample_file(file: str) -> Path:
    """The path of an embedded file whose bytes are those listed in SHA256SUMS."""
    path, sums = catalog.SAMPLES / file, catalog.SAMPLES / "SHA256SUMS"
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


# ---- the files of a data root --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Lfw:
    sample: _Sample
    class_names: tuple[str, ...]
    source: str


def _read_lfw(entry: Entry, path: Path) -> _Lfw:
    """The rows of lfw.npz in the order of the index list.

    The labels must be those of the list, else its indices mean other people. Pixels may differ
    in a copy made with another JPEG decoder: such a copy is used, and its source says so.
    """
    index = _index_list(LFW_INDICES)
    channels, height, width = entry.input_shape
    n = sum(entry.sample_counts)
    wanted = {
        "x": Wanted((n, height, width, channels), "uint8"),
        "y": Wanted((n,), "uint8"),
        "class_names": Wanted((entry.classes,), "str"),
    }
    arrays = readers.read_npz(path, wanted)
    if _sha256(arrays["y"]) != index["y_sha256"]:
        raise LeakbenchError(
            f"{path}: the labels 'y' are not those of {LFW_INDICES}; the rows must be the 62 "
            "people in alphabetical order, each one's images in file order"
        )
    reference = _sha256(arrays["x"]) == index["x_sha256"]
    sample = _listed(index, arrays["x"].transpose(0, 3, 1, 2), arrays["y"])
    source = str(path) if reference else f"{path} (pixels differ from the reference copy)"
    return _Lfw(sample, tuple(str(text) for text in arrays["class_names"]), source)


def _sha256(array: Array) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


def _read_adult(entry: Entry, path: Path) -> dict[str, Array]:
    """x (n, 105) float32 scaled to [0, 1], y (n,) and is_test (n,) of adult.npz.

    Its numbers are exact in every right copy, so that they must be those of the index list.
    """
    n = sum(entry.full_counts)
    wanted = {
        "x": Wanted((n, *entry.input_shape), "float32"),
        "y": Wanted((n,), "uint8"),
        "is_test": Wanted((n,), "uint8"),
    }
    arrays = readers.read_npz(path, wanted)
    if readers.arrays_digest(arrays) != _index_list(ADULT_INDICES)["sha256"]:
        raise LeakbenchError(
            f"{path}: the arrays 'x', 'y' and 'is_test' are not those of {ADULT_INDICES}; "
            f"{catalog.how_to_get(entry)} brings the right file"
        )
    return arrays | {"x": _unit_columns(arrays["x"], arrays["is_test"] == 0)}


def _read_cifar10(entry: Entry, path: Path) -> dict[str, Array]:
    channels, height, width = entry.input_shape
    wanted = {}
    for part, n in zip(("train", "test"), entry.full_counts, strict=True):
        wanted[f"x_{part}"] = Wanted((n, height, width, channels), "uint8")
        wanted[f"y_{part}"] = Wanted((n,), "uint8")
    arrays = readers.read_npz(path, wanted)
    parts = {}
    for part in ("train", "test"):
        _check_labels(entry, path, arrays[f"y_{part}"])
        parts[part] = arrays[f"x_{part}"].transpose(0, 3, 1, 2)
        parts[f"{part}_labels"] = arrays[f"y_{part}"]
    return parts


def _read_idx_files(entry: Entry, files: list[Path]) -> dict[str, Array]:
    """`files` are the images and labels of the training part, then those of the test part."""
    parts: dict[str, Array] = {}
    for part, n, offset in zip(("train", "test"), entry.full_counts, (0, 2), strict=True):
        images = readers.read_idx(files[offset], (n, *entry.input_shape[1:]))
        labels = readers.read_idx(files[offset + 1], (n,))
        _check_labels(entry, files[offset + 1], labels)
        parts |= {part: images.reshape(n, *entry.input_shape), f"{part}_labels": labels}
    return parts


def _check_labels(entry: Entry, path: Path, labels: Array) -> None:
    if int(labels.max()) >= entry.classes:
        raise LeakbenchError(
            f"{path}: holds the label {int(labels.max())}; allowed are 0 to {entry.classes - 1}"
        )


# ---- tensors -------------------------------------------------------------------------------------


def _dataset(entry: Entry, sample: _Sample, names: tuple[str, ...], source: str) -> Dataset:
    first, further, _ = entry.sample_counts
    images = as_unit(_tensor(sample.images))
    labels = _tensor(sample.labels).to(torch.int64)
    return Dataset(
        name=entry.name,
        classes=entry.classes,
        class_names=names,
        input_shape=entry.input_shape,
        input_range=(0.0, 1.0),
        candidates=images[:first],
        candidate_labels=labels[:first],
        candidate_indices=_tensor(sample.indices[:first]).to(torch.int64),
        train=images[: first + further],
        train_labels=labels[: first + further],
        public=images[first + further :],
        public_labels=labels[first + further :],
        source=source,
        checksum=readers.arrays_digest(
            {key: getattr(sample, key) for key in ("images", "labels", "indices", "split")}
        ),
    )


def _full_dataset(
    entry: Entry, parts: dict[str, Array], names: tuple[str, ...], source: str
) -> FullDataset:
    return FullDataset(
        name=entry.name,
        classes=entry.classes,
        class_names=names,
        input_shape=entry.input_shape,
        train=_tensor(parts["train"]),
        train_labels=_tensor(parts["train_labels"]).to(torch.int64),
        test=_tensor(parts["test"]),
        test_labels=_tensor(parts["test_labels"]).to(torch.int64),
        source=source,
        checksum=readers.arrays_digest(parts),
    )


def _tensor(array: Array) -> Tensor:
    """A tensor of its own: torch warns about memory that numpy marks as read-only."""
    return torch.from_numpy(np.array(array, order="C"))
