"""Data sets as tensors: victims and candidates from the samples, full sets from a data root."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from leakbench.data import catalog, readers
from leakbench.data.entries import Entry, Source
from leakbench.data.examples import Examples, Whole
from leakbench.data.features import Feature
from leakbench.data.readers import Array
from leakbench.errors import DataMissing


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
    and parts that were used. `features` say what the columns of a table mean; () for images.

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
    features: tuple[Feature, ...] = ()

    def class_name(self, label: int) -> str:
        """What people call a class; its number where the data do not say."""
        return self.class_names[label] if label < len(self.class_names) else str(label)


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


def as_unit(images: Tensor) -> Tensor:
    """uint8 images as float32 in [0, 1], same shape; float32 images or rows as they are."""
    return images.to(torch.float32) / 255 if images.dtype == torch.uint8 else images


def load(source: Source, root: Path | None = None) -> Dataset:
    """The victims, training and public examples of a data set.

    Args:
        source: a name of the catalog, or one's own data: a path (relative to the working
            directory) of a folder of images by class or an .npz file, or what `catalog.locate`
            makes of one.
        root: the data root, by default the folder of LEAKBENCH_DATA. A set with an embedded sample
            always comes from that, also when `root` holds the full data.

    Kept for the life of the process, at most eight.

    Raises:
        DataMissing: the set has no sample and is not in `root`.
        LeakbenchError: an unknown name, a bad LEAKBENCH_DATA, a damaged file, bad data.
    """
    source = _located(source)
    entry = catalog.look_up(source)
    return _load(source, _root(root) if entry.sample is None and entry.root_files else None)


def load_full(source: Source, root: Path | None = None) -> FullDataset:
    """The whole training and test part from a data root, for training; arguments as for `load`.

    The candidates of `load` are among the training images, but for some of Breast Cancer's; for
    MNIST so are its public images, which are training digits held out of the sample only. LFW has
    no official split: the test part is the public part of `load`. Breast Cancer and Adult are split
    3 to 1, see `examples.quarter`. Breast Cancer needs no root, its sample is the whole set;
    neither do one's own data.

    Raises:
        DataMissing: the files are not in `root`; LeakbenchError as for `load`.
    """
    source = _located(source)
    entry = catalog.look_up(source)
    return _load_full(source, _root(root) if entry.root_files else None)


def _located(source: Source) -> Source:
    """A path made absolute, so that a change of the working directory changes nothing."""
    is_path = isinstance(source, str) and catalog.is_path(source)
    return catalog.locate(source) if isinstance(source, str) and is_path else source


def _root(root: Path | None) -> Path | None:
    return root.absolute() if root is not None else catalog.data_root()


@functools.lru_cache(maxsize=8)
def _load(source: Source, root: Path | None) -> Dataset:
    entry = catalog.look_up(source)
    files = _require_files(entry, root) if entry.sample is None else []
    return _dataset(entry, entry.read(entry, files))


@functools.lru_cache(maxsize=4)
def _load_full(source: Source, root: Path | None) -> FullDataset:
    entry = catalog.look_up(source)
    return _full_dataset(entry, entry.read_full(entry, _require_files(entry, root)))


def _require_files(entry: Entry, root: Path | None) -> Sequence[Path]:
    """The files of an entry in the data root, all of which exist."""
    if not entry.root_files:
        return []
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


def _dataset(entry: Entry, found: Examples) -> Dataset:
    first, further, _ = found.counts
    images = as_unit(_tensor(found.images))
    labels = _tensor(found.labels).to(torch.int64)
    return Dataset(
        name=entry.name,
        classes=entry.classes,
        class_names=found.class_names,
        input_shape=entry.input_shape,
        input_range=(0.0, 1.0),
        candidates=images[:first],
        candidate_labels=labels[:first],
        candidate_indices=_tensor(found.indices[:first]).to(torch.int64),
        train=images[: first + further],
        train_labels=labels[: first + further],
        public=images[first + further :],
        public_labels=labels[first + further :],
        source=found.source,
        checksum=readers.arrays_digest(
            {key: getattr(found, key) for key in ("images", "labels", "indices", "split")}
        ),
        features=entry.features,
    )


def _full_dataset(entry: Entry, found: Whole) -> FullDataset:
    return FullDataset(
        name=entry.name,
        classes=entry.classes,
        class_names=found.class_names,
        input_shape=entry.input_shape,
        train=_tensor(found.train),
        train_labels=_tensor(found.train_labels).to(torch.int64),
        test=_tensor(found.test),
        test_labels=_tensor(found.test_labels).to(torch.int64),
        source=found.source,
        checksum=readers.arrays_digest(
            {key: getattr(found, key) for key in ("train", "train_labels", "test", "test_labels")}
        ),
    )


def _tensor(array: Array) -> Tensor:
    """A tensor of its own: torch warns about memory that numpy marks as read-only."""
    return torch.from_numpy(np.array(array, order="C"))
