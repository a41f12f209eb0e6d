"""The store: one JSON line a trial, one manifest an invocation, arrays in npz files.

A run folder holds::

    records.jsonl             one line a trial; a later line of a trial replaces an earlier one
    manifests/HASH.json       what was asked, of which code, on which machine
    reconstructions/*.npz     raw reconstructions, originals, snapshots, loss traces
    .lock                     held by the one writer

A run passed on without its arrays holds `records.jsonl.gz` in place of `records.jsonl`.

A batch of lines is appended by a single write and synced to disk, so a kill leaves at most one
torn last line; it is cut off under the lock before the next append, and said so. Arrays are written
to a temporary name and renamed before the lines that mention them. Files are read without pickle.
"""

from __future__ import annotations

import gc
import gzip
import hashlib
import io
import json
import lzma
import os
import shutil
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from filelock import FileLock, Timeout
from pydantic_core import from_json

from leakbench import frames
from leakbench.errors import LeakbenchError
from leakbench.record_types import SCHEMA, from_schema_1, wrong

if TYPE_CHECKING:
    import pandas

# What zipfile, its decompressors and numpy's header parser raise on damaged bytes.
_DAMAGE = (
    EOFError, LookupError, OSError, OverflowError, RuntimeError, SyntaxError, ValueError,
    lzma.LZMAError, struct.error, zipfile.BadZipFile, zlib.error,
)  # fmt: skip

Record = dict[str, Any]
MOST_BYTES = 2**30
"""Of unpacked records; a run of a million trials has less."""

Key = tuple[str, int]
"""(identity of cell and network, victim)."""


def key(record: Mapping[str, Any]) -> Key:
    """What a record is about."""
    return str(record["identity"]), int(record["victim"])


class Run:
    """A run folder opened for reading; `writing()` takes the lock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "records.jsonl"
        self.packed = folder / "records.jsonl.gz"

    @staticmethod
    def existing(folder: Path) -> Run:
        """A folder that holds a run; LeakbenchError otherwise."""
        run = Run(folder)
        if not os.path.isdir(folder / "manifests"):  # unlike Path.is_dir it never raises
            if os.path.isfile(folder / "report.md"):
                raise LeakbenchError(f"{folder}: a report only, its records are not there")
            raise LeakbenchError(f"{folder}: no run there; `leakbench run SUITE` makes one")
        return run

    def records(self) -> dict[Key, Record]:
        """Last record of every trial. A torn last line is ignored; `writing` cuts it off."""
        with _uncollected():
            return self._records()

    def _records(self) -> dict[Key, Record]:
        found: dict[Key, Record] = {}
        lines = self._content().split(b"\n")
        # What follows the last newline is empty, or a torn line.
        for number, line in enumerate(lines[:-1], start=1):
            try:
                record = dict(_decoded(line))
                schema = record["schema"]
            except (LookupError, OverflowError, RecursionError, TypeError, ValueError):
                text = f"{self.path}, line {number}: not a record of leakbench; remove the line"
                raise LeakbenchError(text) from None
            if schema == 1:
                record = from_schema_1(record)
            elif schema != SCHEMA:
                text = f"schema {schema!r}, this leakbench reads 1 and {SCHEMA}"
                raise LeakbenchError(f"{self.path}, line {number}: {text}")
            if problem := wrong(record):
                raise LeakbenchError(f"{self.path}, line {number}: {problem}; remove the line")
            found[key(record)] = record
        return found

    def _content(self) -> bytes:
        """All lines; those of a run passed on without its arrays are compressed."""
        try:
            if self.packed.exists() and not self.path.exists():
                with gzip.open(self.packed) as file:
                    content = file.read(MOST_BYTES + 1)
                if len(content) > MOST_BYTES:
                    text = f"unpacks to more than {MOST_BYTES} bytes"
                    raise LeakbenchError(f"{self.packed}: {text}")
                return content
            return self.path.read_bytes()
        except FileNotFoundError:
            return b""
        except _DAMAGE as error:
            reason = getattr(error, "strerror", None) or error
            raise LeakbenchError(f"{self.path}: cannot be read: {reason}") from None

    def export(self, folder: Path) -> None:
        """Copy what a report needs into a new `folder`: records, compressed, and manifests.

        Raises:
            LeakbenchError: a folder that is there already, or cannot be written.
        """
        records = self.records()  # the last of every trial, and whole
        self.manifest()  # there is one, and it can be read
        try:
            (folder / "manifests").mkdir(parents=True)
            for path in self.manifests():
                shutil.copyfile(path, folder / "manifests" / path.name)
            data = b"".join(encode(record) for record in records.values())
            # No time and no name inside: the same run gives the same bytes.
            (folder / self.packed.name).write_bytes(gzip.compress(data, mtime=0))
        except OSError as error:
            raise LeakbenchError(f"{folder}: cannot be written: {error.strerror}") from None

    def frame(self) -> pandas.DataFrame:
        """One row a trial, a column a field: see `frames.frame`. Trainings are left out."""
        trials = (each for each in self.records().values() if each.get("kind") != "utility")
        return frames.frame(trials)

    def manifests(self) -> list[Path]:
        """Files of all manifests."""
        return list((self.folder / "manifests").glob("*.json"))

    def manifest(self) -> dict[str, Any]:
        """The newest manifest."""
        manifests = [self._manifest(path) for path in self.manifests()]
        if not manifests:
            raise LeakbenchError(f"{self.folder}: the run has no manifest")
        return max(manifests, key=_order)

    @staticmethod
    def _manifest(path: Path) -> dict[str, Any]:
        try:
            content = dict(json.loads(path.read_bytes()))
        except OSError as error:
            raise LeakbenchError(f"{path}: cannot be read: {error.strerror}") from None
        except (RecursionError, TypeError, ValueError):
            content = {}
        if "started" not in content:
            raise LeakbenchError(f"{path}: not a manifest of leakbench; remove the file")
        return content

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        """Arrays written under `name`; LeakbenchError when missing or damaged."""
        path = self.folder / "reconstructions" / f"{Path(name).name}"
        try:
            with zipfile.ZipFile(path) as archive:
                # Read whole, so that a member's CRC is checked before its header is believed.
                contents = {info.filename: archive.read(info) for info in archive.infolist()}
            return {
                name.removesuffix(".npy"): np.lib.format.read_array(
                    io.BytesIO(content), allow_pickle=False
                )
                for name, content in contents.items()
            }
        except _DAMAGE as error:
            raise LeakbenchError(f"{path}: cannot be read: {error}") from None

    def writing(self) -> Writer:
        """Take the lock; LeakbenchError if another process writes here or the folder cannot be."""
        return Writer(self)


class Writer:
    """The one writer of a run; a context manager that holds the lock."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.torn = 0
        if run.packed.exists():
            raise LeakbenchError(
                f"{run.folder}: holds packed records, to be read only; run into another folder"
            )
        try:
            (run.folder / "manifests").mkdir(parents=True, exist_ok=True)
            (run.folder / "reconstructions").mkdir(exist_ok=True)
            self._lock = FileLock(run.folder / ".lock")
            self._lock.acquire(timeout=0)
        except Timeout:
            raise LeakbenchError(f"{run.folder}: another leakbench is writing there") from None
        except OSError as error:
            raise LeakbenchError(f"{run.folder}: not writable: {error.strerror}") from None

    def __enter__(self) -> Writer:
        try:
            self._file = os.open(self.run.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            self._cut_torn_line()
        except OSError as error:
            self._lock.release()
            raise LeakbenchError(f"{self.run.path}: not writable: {error.strerror}") from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._file)
        self._lock.release()

    def append(self, records: Sequence[Record]) -> None:
        """Add whole lines and sync; on a full disk the file is as it was before."""
        if not records:
            return
        data = b"".join(encode(record) for record in records)
        size = os.fstat(self._file).st_size
        try:
            written = os.write(self._file, data)
            if written != len(data):
                raise OSError(28, "No space left on device")
            os.fsync(self._file)
        except OSError as error:
            with suppress(OSError):  # a tail that stays is torn, and cut off by the next writer
                os.ftruncate(self._file, size)
            raise LeakbenchError(f"{self.run.path}: cannot write: {error.strerror}") from None

    def manifest(self, content: Mapping[str, Any]) -> str:
        """Write a manifest; returns the hash that records carry."""
        data = json.dumps(content, indent=1, allow_nan=False).encode() + b"\n"
        digest = hashlib.sha256(data).hexdigest()[:16]
        self._replace(self.run.folder / "manifests" / f"{digest}.json", data)
        return digest

    def arrays(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Write arrays under `name` (a file name ending in .npz)."""
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
        self._replace(self.run.folder / "reconstructions" / name, buffer.getbuffer())

    def _replace(self, path: Path, data: bytes | memoryview) -> None:
        temporary = path.with_name(f".{path.name}.part")
        try:
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise LeakbenchError(f"{path}: cannot write: {error.strerror}") from None

    def _cut_torn_line(self) -> None:
        size = os.fstat(self._file).st_size
        if size == 0:
            return
        content = self.run.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        self.torn = size - whole
        if self.torn:
            os.ftruncate(self._file, whole)
            os.fsync(self._file)


def _order(manifest: Mapping[str, Any]) -> tuple[int, str]:
    """Manifests count up; those of older runs do not, and go by time."""
    number = manifest.get("number")
    return (number if isinstance(number, int) else 0), str(manifest["started"])


def encode(record: Record) -> bytes:
    """One line of canonical JSON; non-finite numbers must be None already."""
    line = json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return line.encode() + b"\n"


def _decoded(line: bytes) -> Any:
    """One line of JSON.

    Raises:
        ValueError: It is none, or not a strict one.
    """
    try:
        return from_json(line, allow_inf_nan=False)
    except ValueError:  # half a surrogate pair, which a message may hold, is none to a fast parser
        return json.loads(line, parse_constant=_no_constant)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without looking for cycles of objects, of which records have none: with many records that
    takes as long as reading them."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
