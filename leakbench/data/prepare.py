"""Lay out a data root; the only code of leakbench that uses the network.

Every archive is checked against a published checksum before it is opened, members are read from
it by name and nothing is unpacked to disk, so that no member can choose where it is written.
"""

from __future__ import annotations

import functools
import gzip
import http.client
import io
import os
import re
import shutil
import tarfile
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from leakbench.data import catalog, readers
from leakbench.data.readers import Array
from leakbench.errors import DataMissing, LeakbenchError

TIMEOUT_SECONDS = 60
LIMIT_BYTES = 400_000_000  # no archive is larger; a broken mirror must not fill the disk

CIFAR_FOLDER = "cifar-10-batches-bin"
CIFAR_RECORD_BYTES = 1 + 3 * 32 * 32

LFW_MIN_IMAGES = 20
LFW_CROP = (78, 70, 172, 195)  # left, upper, right, lower of 250 x 250: the face, little background
LFW_SIZE = (32, 32)
LFW_MEMBER = re.compile(r"lfw_funneled/(?P<person>[^/]+)/(?P=person)_\d{4}\.jpg")

# Field of a line of adult.data -> name of its column; the last field is the income.
ADULT_NUMBERS = {
    0: "age",
    2: "fnlwgt",
    4: "education_num",
    10: "capital_gain",
    11: "capital_loss",
    12: "hours_per_week",
}
ADULT_CATEGORIES = {
    1: "workclass",
    3: "education",
    5: "marital_status",
    6: "occupation",
    7: "relationship",
    8: "race",
    9: "sex",
    13: "native_country",
}
ADULT_FIELDS = len(ADULT_NUMBERS) + len(ADULT_CATEGORIES) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """A file to fetch: its mirrors, tried in order, and its published checksum."""

    file: str
    urls: tuple[str, ...]
    algorithm: str
    digest: str


def _idx_archives(mirrors: tuple[str, ...], digests: dict[str, str]) -> tuple[Archive, ...]:
    return tuple(
        Archive(
            file=file, urls=tuple(m + file for m in mirrors), algorithm="md5", digest=digests[file]
        )
        for file in digests
    )


ARCHIVES: dict[str, tuple[Archive, ...]] = {
    "mnist": _idx_archives(
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
    "fashion_mnist": _idx_archives(
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
    "cifar10": (
        Archive(  # the binary version: the other one is pickle
            file="cifar-10-binary.tar.gz",
            urls=("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
            algorithm="md5",
            digest="c32a1d4ab5d03f1284b67883e8d87530",
        ),
    ),
    "lfw": (
        Archive(  # the mirror and the checksum that scikit-learn uses
            file="lfw-funneled.tgz",
            urls=("https://ndownloader.figshare.com/files/5976015",),
            algorithm="sha256",
            digest="b47c8422c8cded889dc5a13418c4bc2abbda121092b3533a83306f90d900100a",
        ),
    ),
    "adult": tuple(
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
}


def _silent(_: str) -> None:
    """Report to nobody."""


def prepare(
    dest: Path,
    names: Sequence[str] = (),
    source: Path | None = None,
    report: Callable[[str], None] = _silent,
) -> None:
    """Write the full data sets `names` (default: all) below `dest`, the layout of docs/data.md.

    An output that exists is left alone. Archives are taken from the folder `source` if given (as
    source/FILE or source/NAME/FILE) and the network is not used; else they are downloaded to
    dest/downloads/NAME/ and kept. `report` gets one line of text per step.

    LeakbenchError for an unknown name, a download that fails, a checksum that differs or a folder
    that cannot be written; DataMissing for an archive that is not in `source`.
    """
    chosen = [catalog.look_up(name).name for name in names or catalog.NAMES]
    if source is not None and not source.is_dir():
        raise LeakbenchError(f"source: '{source}' is not a folder; it must hold the archives")
    for name in chosen:
        outputs = [dest / file for file in catalog.look_up(name).root_files]
        if not outputs:
            report(f"{name}: {catalog.how_to_get(catalog.look_up(name))}")
            continue
        if all(output.is_file() for output in outputs):
            report(f"{name}: already there")
            continue
        fetch = functools.partial(_obtain, name=name, dest=dest, source=source, report=report)
        archives = [fetch(archive) for archive in ARCHIVES[name]]
        report(f"{name}: writing {outputs[0].parent}")
        _build(name, archives, outputs)
        report(f"{name}: ready")


# ---- getting the archives ------------------------------------------------------------------------


def _obtain(
    archive: Archive, *, name: str, dest: Path, source: Path | None, report: Callable[[str], None]
) -> Path:
    """The path of an archive whose checksum is right."""
    if source is not None:
        # MNIST and Fashion-MNIST use the same four file names: the checksum tells them apart.
        places = [source / name / archive.file, source / archive.file]
        found = [place for place in places if place.is_file()]
        if not found:
            raise DataMissing(f"{name}: '{archive.file}' is not in '{source}'; put it there")
        for place in found:
            if _is_right(place, archive):
                return place
        raise _not_the_archive(found[0], archive)
    path = dest / "downloads" / name / archive.file
    if path.is_file() and _is_right(path, archive):
        return path
    failures = []
    for url in archive.urls:
        report(f"{name}: fetching {url}")
        try:
            _download(url, path, archive)
        except (LeakbenchError, OSError, http.client.HTTPException) as problem:
            failures.append(f"{url}: {str(problem) or type(problem).__name__}")
        else:
            return path
    raise LeakbenchError(
        f"{name}: could not get '{archive.file}' ({'; '.join(failures)}); try again, or put the "
        "file in a folder and name that as the source"
    )


def _is_right(path: Path, archive: Archive) -> bool:
    return readers.file_digest(path, archive.algorithm) == archive.digest


def _not_the_archive(path: Path, archive: Archive) -> LeakbenchError:
    """What to say about a file whose checksum is wrong; such a file is never opened."""
    return LeakbenchError(
        f"{path}: its {archive.algorithm.upper()} is "
        f"{readers.file_digest(path, archive.algorithm)}, it must be {archive.digest}; "
        "the file is damaged or another version"
    )


def _download(url: str, path: Path, archive: Archive) -> None:
    """Fetch to a .part file, check it, rename it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    try:
        with (
            urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as answer,
            part.open("wb") as stream,
        ):
            _copy(answer, stream, url)
        if not _is_right(part, archive):
            raise _not_the_archive(part, archive)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _copy(answer: IO[bytes], stream: IO[bytes], url: str) -> None:
    left = LIMIT_BYTES
    while block := answer.read(1 << 20):
        left -= len(block)
        if left < 0:
            raise LeakbenchError(f"{url}: more than the {LIMIT_BYTES:,} bytes allowed")
        stream.write(block)


# ---- from archives to files ----------------------------------------------------------------------


def _build(name: str, archives: list[Path], outputs: list[Path]) -> None:
    """Write the outputs of a data set that do not exist yet."""
    try:
        if name == "cifar10":
            _write_npz(outputs[0], _cifar10(archives[0]))
        elif name == "lfw":
            _write_npz(outputs[0], _lfw(archives[0]))
        elif name == "adult":
            _write_npz(outputs[0], _adult(archives))
        else:
            for archive, output in zip(archives, outputs, strict=True):
                if not output.exists():
                    _gunzip(archive, output)
    except (OSError, EOFError, zlib.error, tarfile.TarError) as problem:
        raise LeakbenchError(
            f"{name}: could not write below '{outputs[0].parent}' from '{archives[0]}' ({problem})"
        ) from problem


def _write(path: Path, fill: Callable[[IO[bytes]], object]) -> None:
    """Write to a .part file and rename it, so that a half-written output never has its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as stream:
            fill(stream)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _write_npz(path: Path, arrays: dict[str, Array]) -> None:
    """An uncompressed npz; unlike numpy.savez it cannot hold a pickle."""

    def fill(stream: IO[bytes]) -> None:
        with zipfile.ZipFile(stream, "w") as archive:
            for key, array in arrays.items():
                info = zipfile.ZipInfo(f"{key}.npy")
                with archive.open(info, "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)

    _write(path, fill)


def _gunzip(archive: Path, output: Path) -> None:
    with gzip.open(archive, "rb") as unpacked:
        _write(output, lambda stream: shutil.copyfileobj(unpacked, stream))


def _cifar10(archive: Path) -> dict[str, Array]:
    """x (n, 32, 32, 3) and y (n,) of both parts, in the order of the archive's batches."""
    with tarfile.open(archive, "r:gz") as tar:
        train = np.concatenate([_cifar10_batch(tar, f"data_batch_{i}.bin") for i in range(1, 6)])
        test = _cifar10_batch(tar, "test_batch.bin")
    arrays: dict[str, Array] = {}
    for part, records in (("train", train), ("test", test)):
        planes = records[:, 1:].reshape(-1, 3, 32, 32)
        arrays[f"x_{part}"] = np.ascontiguousarray(planes.transpose(0, 2, 3, 1))
        arrays[f"y_{part}"] = records[:, 0]
    arrays["class_names"] = np.array(catalog.look_up("cifar10").class_names)
    return arrays


def _cifar10_batch(tar: tarfile.TarFile, file: str) -> NDArray[np.uint8]:
    """(n, 3073): a label, then 1,024 red, 1,024 green and 1,024 blue pixels, row by row."""
    try:
        content = _member(tar, tar.getmember(f"{CIFAR_FOLDER}/{file}"))
    except KeyError:
        raise LeakbenchError(f"{_name(tar)}: '{CIFAR_FOLDER}/{file}' is missing") from None
    if len(content) % CIFAR_RECORD_BYTES:
        raise LeakbenchError(
            f"{_name(tar)}: '{file}' is {len(content):,} bytes long, it must be a multiple of "
            f"{CIFAR_RECORD_BYTES:,}"
        )
    return np.frombuffer(content, np.uint8).reshape(-1, CIFAR_RECORD_BYTES)


def _lfw(archive: Path) -> dict[str, Array]:
    """x (n, 32, 32, 3), y (n,) and class_names of the people with enough images.

    Classes in alphabetical order of the people's names, images in the order of their file names.
    """
    with tarfile.open(archive, "r:gz") as tar:
        members = _lfw_members(tar)
        # Read in the archive's order: going back in a gzip stream means starting over.
        faces = {member.name: _lfw_face(_member(tar, member), member.name) for member in members}
    if not faces:
        raise LeakbenchError(f"{archive}: no person has {LFW_MIN_IMAGES} images or more")
    ordered = sorted(faces)
    people = [file.split("/")[1] for file in ordered]
    class_names = sorted(set(people))
    return {
        "x": np.stack([faces[file] for file in ordered]),
        "y": np.array([class_names.index(person) for person in people], dtype=np.uint8),
        "class_names": np.array(class_names),
    }


def _lfw_members(tar: tarfile.TarFile) -> list[tarfile.TarInfo]:
    """The images of all people who have at least LFW_MIN_IMAGES, in the archive's order."""
    matches = [(LFW_MEMBER.fullmatch(member.name), member) for member in tar if member.isfile()]
    images = [(match["person"], member) for match, member in matches if match]
    counts: dict[str, int] = {}
    for person, _ in images:
        counts[person] = counts.get(person, 0) + 1
    return [member for person, member in images if counts[person] >= LFW_MIN_IMAGES]


def _lfw_face(content: bytes, file: str) -> NDArray[np.uint8]:
    """The middle of a 250 x 250 picture, made (32, 32, 3) by bicubic interpolation."""
    try:
        from PIL import Image
    except ImportError:
        raise LeakbenchError("lfw: needs Pillow; 'pip install pillow' brings it") from None
    with Image.open(io.BytesIO(content)) as picture:
        face = picture.convert("RGB").crop(LFW_CROP)
    small = np.asarray(face.resize(LFW_SIZE, Image.Resampling.BICUBIC), dtype=np.uint8)
    if small.shape != (*LFW_SIZE, 3):
        raise LeakbenchError(f"lfw: '{file}' does not give a {LFW_SIZE} colour picture")
    return small


def _adult(archives: list[Path]) -> dict[str, Array]:
    """x (n, d) float32, y (n,) 1 = income over 50K, is_test (n,) and columns (d,).

    The numbers as they are, then a 0/1 column for each value of each category, in alphabetical
    order; "?", an unknown value, has none. Rows of the training file, then of the test file.
    """
    parts = [_adult_records(archive) for archive in archives]
    table = np.array([record for part in parts for record in part])
    blocks = [table[:, list(ADULT_NUMBERS)].astype(np.float32)]
    columns = list(ADULT_NUMBERS.values())
    for field, name in ADULT_CATEGORIES.items():
        values = sorted(set(table[:, field].tolist()) - {"?"})
        blocks.append((table[:, field, None] == np.array(values)).astype(np.float32))
        columns += [f"{name}={value}" for value in values]
    return {
        "x": np.concatenate(blocks, axis=1),
        "y": (table[:, -1] == ">50K").astype(np.uint8),
        "is_test": np.repeat(np.arange(2, dtype=np.uint8), [len(part) for part in parts]),
        "columns": np.array(columns),
    }


def _adult_records(archive: Path) -> list[list[str]]:
    """The fields of each line; the test file has a remark on top and a full stop at each end."""
    lines = archive.read_text(encoding="ascii", errors="replace").splitlines()
    records = [line.removesuffix(".").split(", ") for line in lines if line and line[0] != "|"]
    if not records or any(
        len(record) != ADULT_FIELDS or not all(record[field].isdigit() for field in ADULT_NUMBERS)
        for record in records
    ):
        raise LeakbenchError(
            f"{archive}: each line must hold {ADULT_FIELDS} fields separated by ', ', "
            f"numbers for {', '.join(ADULT_NUMBERS.values())}"
        )
    return records


def _name(tar: tarfile.TarFile) -> str:
    return os.fsdecode(tar.name or "archive")


def _member(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    """The bytes of a regular file of the archive; links and devices are refused."""
    stream = tar.extractfile(member) if member.isfile() else None
    if stream is None:
        raise LeakbenchError(f"{_name(tar)}: '{member.name}' is not a regular file")
    return stream.read()
