"""Files that strangers wrote: npz and JSON, checked before anything is loaded."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from leakbench.array_files import DAMAGE, PACKINGS, Header, header_of
from leakbench.data.readers import reason
from leakbench.errors import LeakbenchError

MOST_JSON = 2**24
"""Bytes of a JSON file."""

MOST_BYTES = 2**32
"""Of all arrays of a file, unpacked."""

MOST_ARRAYS = 100_000

_DAMAGE = (*DAMAGE, TypeError)


class Arrays:
    """An npz file whose headers were read and found sound; arrays are loaded one by one.

    Args:
        path: of the file.
        most: bytes that all its arrays may have together.

    Raises:
        LeakbenchError: no npz file, too large, with members that are no plain numbers (so nothing
            is ever unpickled), of one name twice, or whose size is not what the header says.
    """

    def __init__(self, path: Path, most: int = MOST_BYTES) -> None:
        self.path = path
        self.headers: dict[str, Header] = {}
        try:
            with zipfile.ZipFile(path) as archive:
                infos = archive.infolist()
                if len(infos) > MOST_ARRAYS:
                    raise self._error(f"{len(infos)} arrays; allowed: up to {MOST_ARRAYS}")
                # What the archive promises bounds what it can unpack to: reading ends there.
                total = sum(info.file_size for info in infos)
                if total > most:
                    raise self._error(f"unpacks to {total} bytes; allowed: up to {most}")
                for info in infos:
                    self._add(archive, info)
        except _DAMAGE as error:
            raise self._error(f"cannot be read: {reason(error)}") from None

    def _error(self, text: str) -> LeakbenchError:
        return LeakbenchError(f"{self.path}: {text}")

    def _add(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
        name = info.filename.removesuffix(".npy")
        where = f"array {name!r:.80}"
        if name == info.filename:
            raise self._error(f"{where}: no .npy member; allowed: what numpy.savez writes")
        if name in self.headers:
            raise self._error(f"{where}: is there twice")
        if info.compress_type not in PACKINGS:
            raise self._error(f"{where}: is packed in another way than numpy packs arrays")
        with archive.open(info) as member:
            header = header_of(member, where)
        if header.dtype.kind not in "fiu":
            text = f"{where}: is of type {header.dtype}; allowed: floating and whole numbers"
            raise self._error(text)
        if header.size != info.file_size:
            raise self._error(f"{where}: has another size than its header says")
        self.headers[name] = header

    def __contains__(self, name: str) -> bool:
        return name in self.headers

    def header(self, name: str) -> Header:
        """Of an array that must be there.

        Raises:
            LeakbenchError: it is not.
        """
        if name not in self.headers:
            raise self._error(f"has no array {name!r:.80}")
        return self.headers[name]

    def load(self, name: str) -> np.ndarray:
        """An array, whole.

        Raises:
            LeakbenchError: it is not there, or damaged.
        """
        self.header(name)
        try:
            with zipfile.ZipFile(self.path) as archive, archive.open(f"{name}.npy") as member:
                # No pickle: the header says that there is none to be had.
                found: np.ndarray = np.lib.format.read_array(member, allow_pickle=False)
                member.read(1)  # to the end, where the checksum is compared
                return found
        except _DAMAGE as error:
            raise self._error(f"array {name!r:.80}: cannot be read: {reason(error)}") from None


def save(path: Path, arrays: Mapping[str, np.ndarray], *, secret: bool = False) -> None:
    """Write an npz file; the same arrays give the same bytes.

    secret: nobody else on this machine may read it, from the moment it is there.

    Raises:
        LeakbenchError: it is there already, or cannot be written.
    """
    try:
        mode = 0o600 if secret else 0o666
        with open(path, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    except OSError as error:
        raise LeakbenchError(f"{path}: cannot be written: {error.strerror}") from None


def require_plain(path: Path) -> None:
    """Refuse what a stranger's folder may hold in place of a file: a link, which leads elsewhere; a
    pipe or a device, which keep a reader waiting. What is not there is for the reader to miss.

    Raises:
        LeakbenchError: the path is neither a file nor nothing.
    """
    if os.path.lexists(path) and (os.path.islink(path) or not os.path.isfile(path)):
        raise LeakbenchError(f"{path}: is no plain file; allowed: no link, folder, pipe or device")


def read_json(path: Path, most: int = MOST_JSON) -> dict[str, Any]:
    """A table from strict JSON: no nan, no key twice, no half of a surrogate pair.

    Raises:
        LeakbenchError: it cannot be read, is too large, or holds something else.
    """
    try:
        size = os.path.getsize(path)
        if size > most:
            raise LeakbenchError(f"{path}: has {size} bytes; allowed: up to {most}")
        text = path.read_bytes().decode("utf-8")
        found = json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)
        json.dumps(found, ensure_ascii=False).encode()  # halves of letters could not be written
    except OSError as error:
        raise LeakbenchError(f"{path}: cannot be read: {error.strerror}") from None
    except (RecursionError, ValueError) as error:
        raise LeakbenchError(f"{path}: no JSON of numbers, text and tables: {error}") from None
    if not isinstance(found, dict):
        raise LeakbenchError(f"{path}: must hold a table, got {found!r:.60}")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write strict JSON.

    Raises:
        LeakbenchError: it cannot be written.
    """
    try:
        text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise LeakbenchError(f"{path}: cannot be written: {error.strerror}") from None


def require_known(where: str, names: Iterable[str], allowed: Iterable[str]) -> None:
    """Refuse a name that nobody asked for.

    Raises:
        LeakbenchError: naming the first one, and some that are allowed.
    """
    wanted = list(allowed)
    for name in names:
        if name not in wanted:
            shown = ", ".join(wanted[:6]) + (", ..." if len(wanted) > 6 else "")
            raise LeakbenchError(f"{where}: unknown array {name!r:.80}; allowed: {shown}")
