"""Read npz and IDX files that may be damaged, without pickle and without a traceback."""

from __future__ import annotations

import hashlib
import io
import math
import struct
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leakbench.array_files import DAMAGE, header_of
from leakbench.errors import LeakbenchError

Array = NDArray[Any]

_HEADER_BYTES = 4096  # more than numpy writes before the data of any array we read
_IDX_UINT8 = 8


@dataclass(frozen=True, slots=True)
class Wanted:
    """The shape and dtype name that one array of a file must have; dtype "str" is any text."""

    shape: tuple[int, ...]
    dtype: str

    def size_limit(self) -> int:
        """Bytes that a well-formed npy member of this kind does not exceed."""
        width = 4 * 200 if self.dtype == "str" else np.dtype(self.dtype).itemsize
        return math.prod(self.shape) * width + _HEADER_BYTES

    def fits(self, array: Array) -> bool:
        """Whether the array has this shape and dtype."""
        kind = "str" if array.dtype.kind == "U" else array.dtype.name
        return array.shape == self.shape and kind == self.dtype


def read_npz(path: Path, wanted: Mapping[str, Wanted]) -> dict[str, Array]:
    """The wanted arrays of an npz file; other members are ignored.

    LeakbenchError naming the file when it is damaged, lacks a key, or an array has another shape
    or dtype. Every member is checked against its CRC before its header is parsed.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return {key: _read_member(path, archive, key, want) for key, want in wanted.items()}
    except DAMAGE as problem:
        raise _damaged(path, problem) from problem


def _read_member(path: Path, archive: zipfile.ZipFile, key: str, want: Wanted) -> Array:
    if f"{key}.npy" not in archive.namelist():
        raise LeakbenchError(f"{path}: array '{key}' is missing")
    info = archive.getinfo(f"{key}.npy")
    if info.file_size > want.size_limit():
        raise LeakbenchError(
            f"{path}: array '{key}' holds {info.file_size:,} bytes, allowed are "
            f"{want.size_limit():,} for {want.dtype} {want.shape}"
        )
    content = io.BytesIO(archive.read(info))
    array: Array = np.lib.format.read_array(content, allow_pickle=False)
    if not want.fits(array):
        raise LeakbenchError(
            f"{path}: array '{key}' is {array.dtype.name} {array.shape}, "
            f"it must be {want.dtype} {want.shape}"
        )
    return array


def read_arrays(path: Path, keys: Sequence[str], limit: int) -> dict[str, Array]:
    """Those of the arrays `keys` that an npz file has, of any shape, at most `limit` bytes in all.

    LeakbenchError naming the file when it is damaged, or an array holds Python objects or is too
    large; both are found from its header, before the array is decompressed.
    """
    found: dict[str, Array] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            members = {
                key: archive.getinfo(f"{key}.npy")
                for key in keys
                if f"{key}.npy" in archive.namelist()
            }
            total = sum(info.file_size for info in members.values())
            if total > limit:
                raise LeakbenchError(
                    f"{path}: its arrays take {total:,} bytes; allowed are {limit:,}"
                )
            for key, info in members.items():
                _check_header(path, archive, key, info)
                content = io.BytesIO(archive.read(info))
                found[key] = np.lib.format.read_array(content, allow_pickle=False)
    except DAMAGE as problem:
        raise _damaged(path, problem) from problem
    return found


def _check_header(path: Path, archive: zipfile.ZipFile, key: str, info: zipfile.ZipInfo) -> None:
    """The header of an npy member must fit its size."""
    with archive.open(info) as stream:
        header = header_of(stream, f"array '{key}'")
        if header.dtype.hasobject:
            raise LeakbenchError(f"{path}: array '{key}' holds Python objects; they are not loaded")
        if header.dtype.names is not None:
            raise LeakbenchError(f"{path}: array '{key}' is a table of fields, {header.dtype}")
    if header.size != info.file_size:
        raise LeakbenchError(
            f"{path}: array '{key}' is {info.file_size:,} bytes long, its header says "
            f"{header.size:,}"
        )


def _damaged(path: Path, problem: BaseException) -> LeakbenchError:
    return LeakbenchError(
        f"{path}: cannot be read as an npz file, it is damaged or something else "
        f"({reason(problem)})"
    )


def read_idx(path: Path, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """An uncompressed IDX file of unsigned bytes with exactly this shape.

    LeakbenchError naming the file when its length or its header says something else.
    """
    header = struct.pack(f">4B{len(shape)}I", 0, 0, _IDX_UINT8, len(shape), *shape)
    expected = len(header) + math.prod(shape)
    try:
        found = path.stat().st_size
        if found != expected:
            raise LeakbenchError(f"{path}: {found:,} bytes long, it must be {expected:,}")
        content = path.read_bytes()
    except OSError as problem:
        raise LeakbenchError(f"{path}: cannot be read ({reason(problem)})") from problem
    if not content.startswith(header):
        raise LeakbenchError(f"{path}: its header is not that of an IDX file of uint8 {shape}")
    return np.frombuffer(content, np.uint8, offset=len(header)).reshape(shape)


def file_digest(path: Path, algorithm: str) -> str:
    """Hex digest of a file; LeakbenchError when it cannot be read."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(
                stream, lambda: hashlib.new(algorithm, usedforsecurity=False)
            ).hexdigest()
    except OSError as problem:
        raise LeakbenchError(f"{path}: cannot be read ({reason(problem)})") from problem


def arrays_digest(arrays: Mapping[str, Array]) -> str:
    """SHA-256 over the name, dtype, shape and bytes of each array, in the order given."""
    digest = hashlib.sha256()
    for key, array in arrays.items():
        digest.update(f"{key}:{array.dtype.str}:{array.shape};".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def reason(problem: BaseException) -> str:
    """The first line of an error's text, or its type where it has none."""
    if isinstance(problem, OSError) and problem.strerror:
        return problem.strerror
    lines = str(problem).splitlines()
    return lines[0] if lines else type(problem).__name__
