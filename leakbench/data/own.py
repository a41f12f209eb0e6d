"""A user's own data: a folder of images by class, or an .npz file; described in docs/data.md.

Everything that can be wrong with them is one sentence that names the file and what is allowed.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from leakbench.data import columns, examples, features, readers
from leakbench.data.entries import LARGEST_SIDE, Entry, OwnData
from leakbench.data.examples import Examples, Whole
from leakbench.data.features import Feature
from leakbench.data.readers import Array
from leakbench.errors import DataMissing, LeakbenchError

LIMIT_BYTES = 2 << 30
"""All examples together, before anything is decompressed or decoded."""

SUFFIXES = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
"""Of images, in small letters; other files in a folder are passed over."""

GREY = ("1", "L", "LA")
COLOUR = ("P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")
"""Pillow's modes that are 8 bits a channel or fewer; grey ones stay grey if all images are."""

# What Pillow's decoders raise on damaged bytes.
_DAMAGE = (
    EOFError,
    IndexError,
    OSError,
    OverflowError,
    SyntaxError,
    ValueError,
    Image.DecompressionBombError,
    Image.DecompressionBombWarning,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """images (n, *input_shape) uint8 or float32, labels (n,) int64, 0 to K - 1.

    test (n,): which are for testing, None where nothing says so. class_names: K. features: of a
    table's columns.
    """

    images: Array
    labels: NDArray[np.int64]
    test: NDArray[np.bool_] | None
    class_names: tuple[str, ...]
    features: tuple[Feature, ...] = ()


@functools.lru_cache(maxsize=8)
def entry(source: OwnData) -> Entry:
    """The entry of a user's own data, all of which is read and checked. Kept for the process.

    Raises:
        DataMissing: nothing is at the path. LeakbenchError: anything wrong with what is there.
    """
    path = Path(source.path)
    if not path.exists():
        raise DataMissing(f"data set '{source.name}' is not on this machine (looked for {path})")
    found = _read_folder(path, source.size) if path.is_dir() else _read_npz(path, source.size)
    sample, whole = examples.split(
        found.images,
        found.labels,
        found.test,
        seed=source.seed,
        class_names=found.class_names,
        source=str(path),
    )

    def read(entry: Entry, files: Sequence[Path]) -> Examples:
        return sample

    def read_full(entry: Entry, files: Sequence[Path]) -> Whole:
        return whole

    return Entry(
        name=source.name,
        title=f"{source.name}, {'images' if found.images.ndim > 2 else 'rows'} of one's own",
        classes=len(found.class_names),
        class_names=found.class_names,
        input_shape=found.images.shape[1:],
        sample=None,
        sample_counts=sample.counts,
        root_files=(),
        full_counts=(len(whole.train), len(whole.test)),
        licence="one's own",
        read=read,
        read_full=read_full,
        features=found.features,
    )


# ---- an .npz file --------------------------------------------------------------------------------


def _read_npz(path: Path, size: int | None) -> _Found:
    if size is not None:
        raise LeakbenchError(f"{path}: size resizes a folder of images, not the arrays of a file")
    found = readers.read_arrays(
        path,
        ("x", "y", "x_train", "y_train", "x_test", "y_test", "class_names", "columns"),
        LIMIT_BYTES,
    )
    train = [key for key in ("x", "x_train") if key in found]
    if len(train) != 1:
        which = "both 'x' and 'x_train'" if train else "neither 'x' nor 'x_train'"
        raise LeakbenchError(f"{path}: has {which}; allowed: x, y or x_train, y_train")
    keys = [train[0]] + (["x_test"] if "x_test" in found else [])
    for key in keys + (["x_test"] if "y_test" in found else []):
        for needed in (key, key.replace("x", "y", 1)):
            if needed not in found:
                raise LeakbenchError(f"{path}: array '{needed}' is missing")
    images = [_unit(path, key, found[key]) for key in keys]
    labels = [
        _labels(path, key.replace("x", "y", 1), found[key.replace("x", "y", 1)], len(each))
        for key, each in zip(keys, images, strict=True)
    ]
    if len(keys) == 2 and (
        images[0].shape[1:] != images[1].shape[1:] or images[0].dtype != images[1].dtype
    ):
        raise LeakbenchError(
            f"{path}: examples of '{keys[0]}' are {images[0].dtype} {images[0].shape[1:]}, those "
            f"of 'x_test' are {images[1].dtype} {images[1].shape[1:]}; they must be alike"
        )
    names = _class_names(path, found.get("class_names"), labels[0])
    if len(labels) == 2 and int(labels[1].max()) >= len(names):
        raise LeakbenchError(
            f"{path}: 'y_test' holds the label {int(labels[1].max())}; allowed are 0 to "
            f"{len(names) - 1}, those of the training part"
        )
    test = np.repeat([False, True], [len(each) for each in images]) if len(images) == 2 else None
    together = np.concatenate(images)
    return _Found(
        images=together,
        labels=np.concatenate(labels),
        test=test,
        class_names=names,
        features=_features(path, found.get("columns"), together),
    )


def _features(path: Path, names: Array | None, rows: Array) -> tuple[Feature, ...]:
    """What the columns of a table mean: by their names, each a number where they have none."""
    if rows.ndim != 2:
        return ()
    if names is None:
        return features.numbers(rows.shape[1])
    where = f"{path}: array 'columns'"
    if names.dtype.kind != "U" or names.ndim != 1:
        raise LeakbenchError(
            f"{where} is {names.dtype.name} {names.shape}; allowed: text, one name for each of the "
            f"{rows.shape[1]} columns"
        )
    return columns.of_names(where, names.tolist(), rows)


def _unit(path: Path, key: str, x: Array) -> Array:
    """Images (n, c, h, w) uint8 or float32; rows (n, columns) float32; all within [0, 1] or bytes.

    Rows of bytes are taken as they are where they hold 0 and 1 only, else divided by 255.
    """
    allowed = "allowed: uint8, or floats in [0, 1]"
    if x.dtype != np.uint8 and x.dtype.kind != "f":
        raise LeakbenchError(f"{path}: array '{key}' is {x.dtype.name}; {allowed}")
    if x.ndim not in (2, 3, 4) or 0 in x.shape:
        raise LeakbenchError(
            f"{path}: array '{key}' has the shape {x.shape}; allowed, with n and all others from 1 "
            "on: (n, height, width), (n, height, width, channels), (n, channels, height, width) or "
            "(n, columns)"
        )
    if x.dtype.kind == "f":
        if not np.isfinite(x).all():
            raise LeakbenchError(f"{path}: array '{key}' holds nan or infinity; {allowed}")
        if float(x.min()) < 0 or float(x.max()) > 1:
            raise LeakbenchError(
                f"{path}: array '{key}' holds {float(x.min()):g} to {float(x.max()):g}; {allowed}"
            )
        x = x.astype(np.float32)
    if x.ndim == 2:
        if x.dtype == np.uint8:
            x = x.astype(np.float32) / np.float32(1 if int(x.max()) <= 1 else 255)
        return x
    return _channels_first(path, key, x)


def _channels_first(path: Path, key: str, x: Array) -> Array:
    """(n, h, w), (n, h, w, c) or (n, c, h, w) as (n, c, h, w), c = 1 or 3."""
    if x.ndim == 3:
        return x[:, None]
    first, last = x.shape[1] in (1, 3), x.shape[3] in (1, 3)
    if first == last:
        why = "either of two axes may be the channels" if first else "no axis is the channels"
        raise LeakbenchError(
            f"{path}: array '{key}' has the shape {x.shape}, in which {why}; allowed are 1 or 3 "
            "channels, before or after height and width"
        )
    return x if first else x.transpose(0, 3, 1, 2)


def _labels(path: Path, key: str, y: Array, n: int) -> NDArray[np.int64]:
    """(n,) whole numbers from 0 on."""
    if y.dtype.kind not in "iu" or y.shape != (n,):
        raise LeakbenchError(
            f"{path}: array '{key}' is {y.dtype.name} {y.shape}; allowed: whole numbers, ({n},) as "
            "there are examples"
        )
    if int(y.min()) < 0 or int(y.max()) > np.iinfo(np.int64).max:
        raise LeakbenchError(f"{path}: array '{key}' holds a label below 0 or above 2^63 - 1")
    return y.astype(np.int64)


def _class_names(path: Path, names: Array | None, labels: NDArray[np.int64]) -> tuple[str, ...]:
    """Names of the classes 0 to K - 1, all of which must occur in the training part."""
    present = np.unique(labels)
    largest = int(present[-1])
    if names is not None and (names.dtype.kind != "U" or names.ndim != 1):
        raise LeakbenchError(
            f"{path}: array 'class_names' is {names.dtype.name} {names.shape}; allowed: text, "
            "one for each class"
        )
    count = len(present) if names is None else len(names)
    if names is not None and largest >= count:
        raise LeakbenchError(
            f"{path}: holds the label {largest}; allowed are 0 to {count - 1}, as there are "
            "class_names"
        )
    absent = np.setdiff1d(np.arange(count), present)
    if len(absent):
        raise LeakbenchError(
            f"{path}: no training example has the label {absent[0]}, the largest is {largest}; "
            "labels must be 0 to K - 1 and each must occur"
        )
    _at_least_two(path, count)
    return tuple(str(c) for c in range(count)) if names is None else tuple(map(str, names))


def _at_least_two(path: Path, classes: int) -> None:
    if classes < 2:
        raise LeakbenchError(f"{path}: holds one class only; a classifier needs at least two")


# ---- a folder of images by class -----------------------------------------------------------------


def _read_folder(path: Path, size: int | None) -> _Found:
    """DIR/class/image, or DIR/train/class/image and DIR/test/class/image."""
    folders = _folders(path)
    parts = [path]
    if {folder.name for folder in folders} == {"train", "test"}:
        parts = [path / "train", path / "test"]
        folders = _folders(parts[0])
    names = tuple(folder.name for folder in folders)
    if not names:
        raise LeakbenchError(
            f"{parts[0]}: holds no folder; it must hold one for each class, with its images in it"
        )
    _at_least_two(path, len(names))
    files: list[Path] = []
    labels: list[int] = []
    test: list[bool] = []
    for number, part in enumerate(parts):
        for folder in _folders(part):
            if folder.name not in names:
                raise LeakbenchError(f"{folder}: the training part has no such class")
            images = _images(folder)
            files += images
            labels += [names.index(folder.name)] * len(images)
            test += [number == 1] * len(images)
    return _Found(
        images=_decode(files, size),
        labels=np.array(labels, dtype=np.int64),
        test=np.array(test) if len(parts) == 2 else None,
        class_names=names,
    )


def _listing(folder: Path) -> list[Path]:
    """What a folder holds, by name, without what is hidden."""
    try:
        return sorted(each for each in folder.iterdir() if not each.name.startswith("."))
    except OSError as problem:
        raise LeakbenchError(f"{folder}: cannot be read ({readers.reason(problem)})") from None


def _folders(path: Path) -> list[Path]:
    return [each for each in _listing(path) if os.path.isdir(each)]


def _images(folder: Path) -> list[Path]:
    """The images of a class, in the order of their names."""
    found = []
    for each in _listing(folder):
        if os.path.isdir(each):
            raise LeakbenchError(
                f"{each}: a folder inside a class; images must lie in the folder of their class, "
                "or in train/CLASS and test/CLASS"
            )
        if each.suffix.lower() not in SUFFIXES:
            continue
        if not os.path.isfile(each):  # a pipe, a device, a link to nowhere or to itself
            raise LeakbenchError(f"{each}: is not a regular file")
        found.append(each)
    if not found:
        raise LeakbenchError(
            f"{folder}: holds no image; a class needs at least one, allowed are "
            f"{', '.join(SUFFIXES)}"
        )
    return found


def _decode(files: Sequence[Path], size: int | None) -> NDArray[np.uint8]:
    """Images (n, c, height, width): one channel if all are grey, else three.

    They must be of one size, or are resized to (size, size), bicubic. Transparency is dropped.
    """
    headers = [_header(file) for file in files]
    grey = all(mode in GREY for mode, _ in headers)
    width, height = (size, size) if size is not None else headers[0][1]
    for file, (_, found) in zip(files, headers, strict=True):
        if max(found) > LARGEST_SIDE:
            raise LeakbenchError(
                f"{file}: is {found[0]} x {found[1]} pixels; allowed are {LARGEST_SIDE} a side"
            )
        if size is None and found != (width, height):
            raise LeakbenchError(
                f"{file}: is {found[0]} x {found[1]} pixels, '{files[0]}' is {width} x {height}; "
                'all must be of one size, or be resized: {path = "...", size = 32}'
            )
    channels = 1 if grey else 3
    total = len(files) * channels * height * width
    if total > LIMIT_BYTES:
        raise LeakbenchError(
            f"{files[0].parent.parent}: its images take {total:,} bytes; allowed are "
            f"{LIMIT_BYTES:,}"
        )
    pixels = np.empty((len(files), height, width, channels), np.uint8)
    for place, file in enumerate(files):
        pixels[place] = _pixels(file, "L" if grey else "RGB", (width, height)).reshape(
            height, width, channels
        )
    return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))


def _header(file: Path) -> tuple[str, tuple[int, int]]:
    """Mode and (width, height) of an image, which is not decoded."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            with Image.open(file) as image:
                mode, size = image.mode, image.size
        except _DAMAGE as problem:
            raise _unreadable(file, problem) from None
    if mode not in (*GREY, *COLOUR):
        raise LeakbenchError(
            f"{file}: has pixels of the kind '{mode}'; allowed are grey and colour images of 8 "
            "bits a channel"
        )
    return mode, size


def _pixels(file: Path, mode: str, size: tuple[int, int]) -> NDArray[Any]:
    try:
        with Image.open(file) as image:
            converted = image.convert(mode)
            if converted.size != size:
                converted = converted.resize(size, Image.Resampling.BICUBIC)
            return np.asarray(converted, dtype=np.uint8)
    except _DAMAGE as problem:
        raise _unreadable(file, problem) from None


def _unreadable(file: Path, problem: BaseException) -> LeakbenchError:
    text = readers.reason(problem)
    known = "not an image that Pillow knows" if "cannot identify" in text else text
    return LeakbenchError(f"{file}: cannot be read as an image ({known})")
