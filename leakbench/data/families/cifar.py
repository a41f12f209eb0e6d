"""CIFAR-10 and CIFAR-100, made from their binary archives: the other versions are pickle."""

from __future__ import annotations

import functools
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leakbench.data.entries import Archive, Entry, read_embedded
from leakbench.errors import LeakbenchError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from leakbench.data.examples import Examples, Whole

PIXELS = 3 * 32 * 32


def read_full(entry: Entry, files: Sequence[Path]) -> Whole:
    """`files` is one npz with `x_train` (n, 32, 32, 3) uint8, `y_train`, `x_test`, `y_test`."""
    from leakbench.data import readers
    from leakbench.data.examples import Whole, check_labels

    channels, height, width = entry.input_shape
    wanted = {}
    for part, n in zip(("train", "test"), entry.full_counts, strict=True):
        wanted[f"x_{part}"] = readers.Wanted((n, height, width, channels), "uint8")
        wanted[f"y_{part}"] = readers.Wanted((n,), "uint8")
    arrays = readers.read_npz(files[0], wanted)
    for part in ("train", "test"):
        check_labels(entry, files[0], arrays[f"y_{part}"])
    return Whole(
        train=arrays["x_train"].transpose(0, 3, 1, 2),
        train_labels=arrays["y_train"],
        test=arrays["x_test"].transpose(0, 3, 1, 2),
        test_labels=arrays["y_test"],
        class_names=entry.class_names,
        source=str(files[0].parent),
    )


def read(entry: Entry, files: Sequence[Path]) -> Examples:
    """Examples of a set without a sample: candidates from its training part, public from its test.

    The seed of the split is 0, so the same files give the same examples everywhere.
    """
    import numpy as np

    from leakbench.data.examples import split

    whole = read_full(entry, files)
    examples, _ = split(
        np.concatenate([whole.train, whole.test]),
        np.concatenate([whole.train_labels, whole.test_labels]),
        np.repeat([False, True], [len(whole.train), len(whole.test)]),
        seed=0,
        class_names=entry.class_names,
        source=str(files[0]),
    )
    return examples


def build(
    archives: Sequence[Path],
    outputs: Sequence[Path],
    *,
    folder: str,
    train: Sequence[str],
    test: str,
    label_bytes: int,
    class_names: tuple[str, ...],
) -> None:
    """x (n, 32, 32, 3) and y (n,) of both parts, in the order of the archive's batches.

    A record is `label_bytes` labels, of which the last counts, then the pixels.
    """
    import numpy as np

    from leakbench.data import writing

    batch = functools.partial(_records, folder=folder, length=label_bytes + PIXELS)
    with tarfile.open(archives[0], "r:gz") as tar:
        parts = {
            "train": np.concatenate([batch(tar, file) for file in train]),
            "test": batch(tar, test),
        }
    arrays: dict[str, NDArray[Any]] = {}
    for part, records in parts.items():
        planes = records[:, label_bytes:].reshape(-1, 3, 32, 32)
        arrays[f"x_{part}"] = np.ascontiguousarray(planes.transpose(0, 2, 3, 1))
        arrays[f"y_{part}"] = records[:, label_bytes - 1]
    arrays["class_names"] = np.array(class_names)
    writing.write_npz(outputs[0], arrays)


def _records(tar: tarfile.TarFile, file: str, *, folder: str, length: int) -> NDArray[np.uint8]:
    """(n, length): labels, then 1,024 red, 1,024 green and 1,024 blue pixels, row by row."""
    import numpy as np

    from leakbench.data import writing

    content = writing.member(tar, f"{folder}/{file}")
    if not content or len(content) % length:
        raise LeakbenchError(
            f"{writing.name(tar)}: '{file}' is {len(content):,} bytes long, it must be a multiple "
            f"of {length:,}"
        )
    return np.frombuffer(content, np.uint8).reshape(-1, length)


_TEN = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

_HUNDRED = tuple(
    """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
    camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile
    cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp
    lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom
    oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
    possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake
    spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor
    train trout tulip turtle wardrobe whale willow_tree wolf woman worm
    """.split()  # noqa: SIM905  a hundred lines would not read better
)
"""Names of the fine labels, which stand in alphabetical order in the archive."""

ENTRIES = (
    Entry(
        name="cifar10",
        title="CIFAR-10",
        classes=10,
        class_names=_TEN,
        input_shape=(3, 32, 32),
        sample="cifar10.npz",
        sample_counts=(1000, 0, 1000),
        root_files=("cifar10.npz",),
        full_counts=(50_000, 10_000),
        licence="none stated by the authors",
        read=read_embedded,
        read_full=read_full,
        archives=(
            Archive(
                file="cifar-10-binary.tar.gz",
                urls=("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
                algorithm="md5",
                digest="c32a1d4ab5d03f1284b67883e8d87530",
            ),
        ),
        build=functools.partial(
            build,
            folder="cifar-10-batches-bin",
            train=tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
            test="test_batch.bin",
            label_bytes=1,
            class_names=_TEN,
        ),
    ),
    Entry(
        name="cifar100",
        title="CIFAR-100, its 100 fine labels",
        classes=100,
        class_names=_HUNDRED,
        input_shape=(3, 32, 32),
        sample=None,
        sample_counts=(1000, 3000, 1000),
        root_files=("cifar100.npz",),
        full_counts=(50_000, 10_000),
        licence="none stated by the authors",
        read=read,
        read_full=read_full,
        archives=(
            Archive(
                file="cifar-100-binary.tar.gz",
                urls=("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",),
                algorithm="md5",
                digest="03b5dce01913d631647c71ecec9e9cb8",
            ),
        ),
        build=functools.partial(
            build,
            folder="cifar-100-binary",
            train=("train.bin",),
            test="test.bin",
            label_bytes=2,  # the coarse label, then the fine one
            class_names=_HUNDRED,
        ),
    ),
)
