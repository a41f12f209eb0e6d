"""MNIST and Fashion-MNIST: four IDX files each, as torchvision lays them out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leakbench.data.entries import Archive, Entry, read_embedded
from leakbench.errors import LeakbenchError

if TYPE_CHECKING:
    from leakbench.data.examples import Examples, Whole

PARTS = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")


def read_full(entry: Entry, files: Sequence[Path]) -> Whole:
    """`files` are the images and labels of the training part, then those of the test part."""
    from leakbench.data import readers
    from leakbench.data.examples import Whole, check_labels

    parts: dict[str, Any] = {}
    for part, n, offset in zip(("train", "test"), entry.full_counts, (0, 2), strict=True):
        images = readers.read_idx(files[offset], (n, *entry.input_shape[1:]))
        labels = readers.read_idx(files[offset + 1], (n,))
        check_labels(entry, files[offset + 1], labels)
        parts |= {part: images.reshape(n, *entry.input_shape), f"{part}_labels": labels}
    return Whole(**parts, class_names=entry.class_names, source=str(files[0].parent))


def read_every_digit(entry: Entry, files: Sequence[Path]) -> Examples:
    """All training digits as candidates: first those of the sample, in its order, then the rest.

    Public are digits of the test part, so that no candidate is among them.
    """
    import numpy as np

    from leakbench.data.catalog import look_up
    from leakbench.data.examples import Examples, digest, read_sample, round_robin

    whole, sample = read_full(entry, files), read_sample(look_up("mnist"))
    position = {digest(image): number for number, image in enumerate(whole.train)}
    known = [position.get(digest(image)) for image in sample.images[: sample.counts[0]]]
    if None in known:
        raise LeakbenchError(
            f"{files[0]}: digit {known.index(None)} of the embedded sample is not in it; "
            "allowed: the training digits of MNIST"
        )
    first = np.array(known, dtype=np.int64)
    order = round_robin(whole.train_labels, "mnist_60000:train")
    candidates = np.concatenate([first, order[~np.isin(order, first)]])
    public = round_robin(whole.test_labels, "mnist_60000:test")[: entry.sample_counts[2]]
    return Examples(
        images=np.concatenate([whole.train[candidates], whole.test[public]]),
        labels=np.concatenate([whole.train_labels[candidates], whole.test_labels[public]]),
        indices=np.concatenate([candidates, public]),
        split=np.repeat(np.array([0, 2], dtype=np.uint8), [len(candidates), len(public)]),
        class_names=entry.class_names,
        source=str(files[0].parent),
    )


def build(archives: Sequence[Path], outputs: Sequence[Path]) -> None:
    """Unpack the archives, one an output."""
    from leakbench.data import writing

    for archive, output in zip(archives, outputs, strict=True):
        if not output.exists():
            writing.gunzip(archive, output)


def _files(folder: str) -> tuple[str, ...]:
    return tuple(f"{folder}/raw/{part}-ubyte" for part in PARTS)


def _archives(mirrors: Sequence[str], digests: Mapping[str, str]) -> tuple[Archive, ...]:
    return tuple(
        Archive(
            file=file, urls=tuple(m + file for m in mirrors), algorithm="md5", digest=digests[file]
        )
        for file in digests
    )


MNIST = Entry(
    name="mnist",
    title="MNIST handwritten digits",
    classes=10,
    class_names=tuple("0123456789"),
    input_shape=(1, 28, 28),
    sample="mnist.npz",
    sample_counts=(1000, 3000, 1000),
    root_files=_files("MNIST"),
    full_counts=(60_000, 10_000),
    licence="CC BY-SA 3.0 (as usually given)",
    read=read_embedded,
    read_full=read_full,
    archives=_archives(
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "http://yann.lecun.com/exdb/mnist/",
        ),
        {
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
    ),
    build=build,
)

ENTRIES = (
    MNIST,
    replace(
        MNIST,
        name="mnist_60000",
        title="MNIST, all training digits as candidates",
        sample=None,
        sample_counts=(60_000, 0, 1000),
        read=read_every_digit,
    ),
    Entry(
        name="fashion_mnist",
        title="Fashion-MNIST",
        classes=10,
        class_names=(
            "T-shirt/top",
            "Trouser",
            "Pullover",
            "Dress",
            "Coat",
            "Sandal",
            "Shirt",
            "Sneaker",
            "Bag",
            "Ankle boot",
        ),
        input_shape=(1, 28, 28),
        sample="fashion_mnist.npz",
        sample_counts=(1000, 3000, 1000),
        root_files=_files("FashionMNIST"),
        full_counts=(60_000, 10_000),
        licence="MIT",
        read=read_embedded,
        read_full=read_full,
        archives=_archives(
            (
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
                "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
            ),
            {
                "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
                "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
                "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
            },
        ),
        build=build,
    ),
)
