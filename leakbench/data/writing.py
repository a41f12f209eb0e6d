"""Write the files of a data root from archives; nothing of an archive is unpacked to disk."""

from __future__ import annotations

import gzip
import os
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

import numpy as np

from leakbench.data.readers import Array
from leakbench.errors import LeakbenchError

LIMIT_BYTES = 400_000_000
"""No archive and no member of one is larger; a broken one must not fill disk or memory."""


def write(path: Path, fill: Callable[[IO[bytes]], object]) -> None:
    """Write to a .part file and rename it, so that a half-written output never has its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as stream:
            fill(stream)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def write_npz(path: Path, arrays: Mapping[str, Array]) -> None:
    """An uncompressed npz; unlike numpy.savez it cannot hold a pickle."""

    def fill(stream: IO[bytes]) -> None:
        with zipfile.ZipFile(stream, "w") as archive:
            for key, array in arrays.items():
                info = zipfile.ZipInfo(f"{key}.npy")
                with archive.open(info, "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)

    write(path, fill)


def gunzip(archive: Path, output: Path) -> None:
    """Unpack a single gzip file."""
    with gzip.open(archive, "rb") as unpacked:
        write(output, lambda stream: shutil.copyfileobj(unpacked, stream))


def name(tar: tarfile.TarFile) -> str:
    """What to call an archive in an error."""
    return os.fsdecode(tar.name or "archive")


def member(tar: tarfile.TarFile, file: str) -> bytes:
    """The bytes of the member `file`; LeakbenchError as for `content`, or when it is missing."""
    try:
        info = tar.getmember(file)
    except KeyError:
        raise LeakbenchError(f"{name(tar)}: '{file}' is missing") from None
    return content(tar, info)


def content(tar: tarfile.TarFile, info: tarfile.TarInfo) -> bytes:
    """The bytes of a regular file of the archive; links, devices and huge files are refused."""
    stream = tar.extractfile(info) if info.isfile() else None
    if stream is None:
        raise LeakbenchError(f"{name(tar)}: '{info.name}' is not a regular file")
    if info.size > LIMIT_BYTES:
        raise LeakbenchError(
            f"{name(tar)}: '{info.name}' is {info.size:,} bytes long, allowed are {LIMIT_BYTES:,}"
        )
    return stream.read()
