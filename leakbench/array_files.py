"""Files of arrays (npz) of a run, read without trust: no pickle, and nothing larger than it says.

What a member of the archive unpacks to is known from two headers, the archive's and the array's,
before anything is unpacked; both must agree.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import math
import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from leakbench.errors import LeakbenchError

# What zipfile, its decompressors and numpy's header parser raise on damaged bytes.
DAMAGE = (
    EOFError, LookupError, OSError, OverflowError, RuntimeError, SyntaxError, ValueError,
    lzma.LZMAError, struct.error, zipfile.BadZipFile, zlib.error,
)  # fmt: skip

MOST_BYTES = 2**31
"""Of a file, and of what all its arrays unpack to; the largest files of the suites have a tenth."""

PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""What numpy writes. Others unpack a piece of the file as a whole, however large that gets."""

_HEADER = 2**16  # bytes that are read to find the header of an array; numpy writes 128


@dataclass(frozen=True, slots=True)
class Header:
    """What the header of an array says: its shape, its type, and how many bytes it takes itself."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    start: int

    @property
    def size(self) -> int:
        """Bytes of the whole member."""
        return self.start + math.prod(self.shape) * self.dtype.itemsize


def header_of(member: IO[bytes], name: str) -> Header:
    """The header that a member of an archive begins with.

    Raises:
        ValueError: it is none, or of a format that numpy's arrays of numbers do not need; `name` is
            how an error calls the array. Whatever else of `DAMAGE`.
    """
    version = np.lib.format.read_magic(member)
    if version == (1, 0):
        shape, _, dtype = np.lib.format.read_array_header_1_0(member)
    elif version == (2, 0):
        shape, _, dtype = np.lib.format.read_array_header_2_0(member)
    else:
        raise ValueError(f"{name} has the npy version {version}; allowed: (1, 0), (2, 0)")
    return Header(tuple(map(int, shape)), dtype, member.tell())


def packed(arrays: Mapping[str, np.ndarray]) -> bytes:
    """The bytes of a file that holds these arrays."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def digest_of(data: bytes) -> str:
    """Digest of a file's bytes, as records carry it."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def unpacked(path: Path, digest: str = "") -> dict[str, np.ndarray]:
    """The arrays of a file by name.

    Args:
        path: the file.
        digest: of its bytes, as a record has it; "" where it says none.

    Raises:
        LeakbenchError: no such file; one that is damaged, too large, or another than the record's.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise LeakbenchError(f"{path}: larger than {MOST_BYTES} bytes, which are allowed")
        data = path.read_bytes()
        if digest and digest_of(data) != digest:
            raise LeakbenchError(f"{path}: damaged: its digest is not the one in the records")
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
            _check_sizes(archive, members)
            return {each.filename.removesuffix(".npy"): _array(archive, each) for each in members}
    except _TooLarge as error:
        raise LeakbenchError(f"{path}: {error}") from None
    except MemoryError:
        raise LeakbenchError(f"{path}: cannot be read: it does not fit into the memory") from None
    except DAMAGE as error:
        reason = getattr(error, "strerror", None) or error
        raise LeakbenchError(f"{path}: cannot be read: {reason}") from None


class _TooLarge(Exception):
    """Arrays that nobody should unpack."""


def _check_sizes(archive: zipfile.ZipFile, members: list[zipfile.ZipInfo]) -> None:
    """Refuse what would fill the memory, by the headers alone."""
    whole = sum(each.file_size for each in members)
    if whole > MOST_BYTES:
        raise _TooLarge(f"unpacks to {whole} bytes; at most {MOST_BYTES} are allowed")
    for each in members:
        if each.compress_type not in PACKINGS:
            raise ValueError(f"'{each.filename}' is packed in another way than numpy packs arrays")
        with archive.open(each) as member:
            beginning = io.BytesIO(member.read(min(_HEADER, each.file_size)))
        header = header_of(beginning, f"'{each.filename}'")
        if header.size != each.file_size:
            text = f"has another size than its shape {header.shape} says"
            raise ValueError(f"'{each.filename}' {text}")


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(member) as file:
        # No more than it says, and all of it, which checks its CRC.
        content = file.read(member.file_size)
    found: np.ndarray = np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
    return found
