"""The store: one JSON line a trial, one manifest an invocation, arrays in npz files.

A run folder holds::

    records.jsonl             one line a trial; a later line of a trial replaces an earlier one
    manifests/HASH.json       what was asked, of which code, on which machine
    reconstructions/*.npz     raw reconstructions, originals, snapshots, loss traces
    records.damaged           lines that a writer found damaged and set aside
    .lock                     held by the one writer

A run passed on without its arrays holds `records.jsonl.gz` in place of `records.jsonl`.

A batch of lines is appended by a single write and synced to disk, so a kill leaves at most one
torn last line. Arrays are written to a temporary name and renamed before the lines that mention
them. Lines carry a checksum, manifests are named by theirs, and the lines that mention a file of
arrays carry its digest: what is damaged is left out by readers, and set aside by the next writer.
Files are read without pickle.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from filelock import FileLock, Timeout
from pydantic_core import from_json

from leakbench import array_files, frames, record_lines, trial_arrays
from leakbench.errors import LeakbenchError
from leakbench.record_lines import Contents, Damage, Key, Record, damage_words, encode, key

if TYPE_CHECKING:
    import pandas

__all__ = ["Contents", "Damage", "Key", "Record", "Run", "Writer", "encode", "key"]

MOST_BYTES = 2**30
"""Of unpacked records; a run of a million trials has less."""

_ARRAYS = re.compile(r"[0-9a-f]{20}-[0-9a-f]{12}\.npz")
"""Names of files of arrays: of the cell, and of the victims; see `trial_records.arrays_of`."""

MOST_INVOCATIONS = 2**53
"""Of a run: numbers beyond it are no counts."""

_MANIFEST = re.compile(r"[0-9a-f]{16}")
"""Names of manifests: the beginning of the SHA-256 of their bytes."""


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
            if os.path.isfile(run.path) or os.path.isfile(run.packed):
                raise LeakbenchError(
                    f"{folder}: records but no manifest, which says what was run; copy the whole "
                    "folder of the run, manifests/ too"
                )
            if os.path.isfile(folder / "report.md"):
                raise LeakbenchError(f"{folder}: a report only, its records are not there")
            raise LeakbenchError(f"{folder}: no run there; `leakbench run SUITE` makes one")
        return run

    def contents(self) -> Contents:
        """What the records say, and which lines are damaged and left out.

        Raises:
            LeakbenchError: they cannot be read, or are of a newer schema.
        """
        return record_lines.read(self._content(), self.path)

    def records(self) -> dict[Key, Record]:
        """Last sound record of every trial; see `contents`."""
        return self.contents().records

    def damaged_manifests(self) -> list[Path]:
        """Files of manifests that cannot be believed."""
        return [path for path in self.manifests() if _manifest(path) is None]

    def damage(self, contents: Contents) -> str:
        """A sentence on what is damaged in the records and manifests, "" if nothing is."""
        parts = []
        if contents.damaged:
            parts.append(f"{damage_words(contents.damaged)}, left out as if not run")
        names = [path.name for path in self.damaged_manifests()]
        if names:
            parts.append(f"damaged in manifests/ and not read: {', '.join(names)}")
        if not parts:
            return ""
        return (
            f"{self.folder}: {'; '.join(parts)}: `leakbench verify` lists everything, "
            "`leakbench run` does it again"
        )

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
        except array_files.DAMAGE as error:
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
                if _manifest(path) is not None:
                    shutil.copyfile(path, folder / "manifests" / path.name)
            data = b"".join(encode(record) for record in records.values())
            # No time and no name inside: the same run gives the same bytes.
            (folder / self.packed.name).write_bytes(gzip.compress(data, mtime=0))
        except OSError as error:
            raise LeakbenchError(f"{folder}: cannot be written: {error.strerror}") from None

    def frame(self) -> pandas.DataFrame:
        """One row a trial, a column a field: see `frames.frame`. Trainings are left out, and
        damaged lines, with a warning."""
        contents = self.contents()
        if damage := self.damage(contents):
            warnings.warn(damage, stacklevel=2)
        return frame_of(contents.records)

    def manifests(self) -> list[Path]:
        """Files of all manifests."""
        return sorted((self.folder / "manifests").glob("*.json"))

    def manifest(self) -> dict[str, Any]:
        """The newest manifest, of those that are sound.

        They count up; those of older runs do not, come before all others, and go by time.

        Raises:
            LeakbenchError: there is none.
        """
        paths = self.manifests()
        found = [content for path in paths if (content := _manifest(path)) is not None]
        if found:
            return max(found, key=lambda content: (_number(content), content["started"]))
        if paths:
            raise LeakbenchError(f"{paths[0]}: not a manifest of leakbench, or damaged")
        raise LeakbenchError(f"{self.folder}: the run has no manifest")

    def next_number(self) -> int:
        """Of the manifest that is written next."""
        found = (_manifest(path) for path in self.manifests())
        return 1 + max((_number(content) for content in found if content is not None), default=0)

    def arrays(self, name: str, digest: str = "") -> dict[str, np.ndarray]:
        """Arrays written under `name`.

        digest: of the file, as the record that mentions it says; "" where it says none.

        Raises:
            LeakbenchError: missing, damaged, not the file of that digest, or not what trials keep.
        """
        path = self.folder / "reconstructions" / Path(name).name
        found = array_files.unpacked(path, digest)
        if problem := trial_arrays.problem(found):
            raise LeakbenchError(f"{path}: {problem}")
        return found

    def left_behind(self) -> list[Path]:
        """Files that a killed writer left: half-written ones, and arrays that no line mentions.

        Only files with names that leakbench gives.
        """
        mentioned = {
            name.decode()
            for path in self.folder.glob("records*.jsonl")
            for name in re.findall(_ARRAYS.pattern.encode(), path.read_bytes())
        }
        left = [
            path
            for path in (self.folder / "reconstructions").glob("*")
            if _ARRAYS.fullmatch(path.name.removeprefix(".").removesuffix(".part"))
            and path.name not in mentioned
        ]
        left += [
            path
            for path in (self.folder / "manifests").glob(".*.json.part")
            if _MANIFEST.fullmatch(path.name[1:].removesuffix(".json.part"))
        ]
        left += self.folder.glob(f".{self.path.name}.part")
        return sorted(path for path in left if path.is_file())

    def writing(self) -> Writer:
        """Take the lock; LeakbenchError if another process writes here or the folder cannot be."""
        return Writer(self)


def frame_of(records: Mapping[Key, Record]) -> pandas.DataFrame:
    """One row a trial, a column a field: see `frames.frame`. Trainings are left out."""
    return frames.frame(each for each in records.values() if each.get("kind") != "utility")


class Writer:
    """The one writer of a run; a context manager that holds the lock.

    Entering it mends what kills and faulty disks left; `repairs` says what, a sentence each.

    Attributes:
        records: last record of every trial, as they were on entering.
        torn: bytes of a torn last line that was cut off.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.torn = 0
        self.records: dict[Key, Record] = {}
        self.repairs: tuple[str, ...] = ()
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
            repairs = [*self._mend_records(), *self._mend_manifests(), *self._sweep()]
            self._file = os.open(self.run.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            self._lock.release()
            raise LeakbenchError(f"{self.run.path}: not writable: {error.strerror}") from None
        except LeakbenchError:
            self._lock.release()
            raise
        self.repairs = tuple(f"{self.run.folder}: {repair}" for repair in repairs)
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

    def arrays(self, name: str, arrays: Mapping[str, np.ndarray]) -> str:
        """Write arrays under `name` (a file name ending in .npz); returns the file's digest, which
        the records that mention it carry."""
        data = array_files.packed(arrays)
        self._replace(self.run.folder / "reconstructions" / name, data)
        return array_files.digest_of(data)

    def take_manifests(self, run: Run) -> None:
        """Copy another run's manifests, damaged ones apart."""
        for path in run.manifests():
            if _manifest(path) is not None:
                self._replace(self.run.folder / "manifests" / path.name, path.read_bytes())

    def take_arrays(self, run: Run, name: str, digest: str) -> None:
        """Copy a file of another run's arrays byte by byte, so that the digest in the records that
        mention it stays right.

        Raises:
            LeakbenchError: see `Run.arrays`.
        """
        run.arrays(name, digest)
        folder = "reconstructions"
        self._replace(self.run.folder / folder / name, (run.folder / folder / name).read_bytes())

    def _replace(self, path: Path, data: bytes) -> None:
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

    def _mend_records(self) -> list[str]:
        """Cut off a torn last line and set damaged lines aside: their trials are missing then."""
        try:
            content = self.run.path.read_bytes()
        except FileNotFoundError:
            return []
        found = record_lines.read(content, self.run.path)
        self.records = found.records
        *lines, tail = content.split(b"\n")
        self.torn = len(tail)
        repairs = [f"a torn last line of {self.torn} bytes was cut off"] if tail else []
        damaged = tuple(each for each in found.damaged if each.line <= len(lines))
        if damaged:
            self._set_aside(lines, {each.line for each in damaged})
            repairs.append(
                f"{damage_words(damaged)} set aside in records.damaged; `leakbench run` does these "
                "trials again"
            )
        elif tail:
            with open(self.run.path, "rb+") as file:
                file.truncate(len(content) - len(tail))
                os.fsync(file.fileno())
        return repairs

    def _set_aside(self, lines: Sequence[bytes], numbers: Collection[int]) -> None:
        """Move these of the records' lines, numbered from 1, into a file of their own."""
        with open(self.run.folder / "records.damaged", "ab") as aside:
            aside.write(b"".join(lines[number - 1] + b"\n" for number in sorted(numbers)))
            aside.flush()
            os.fsync(aside.fileno())
        left = (line for number, line in enumerate(lines, start=1) if number not in numbers)
        self._replace(self.run.path, b"".join(line + b"\n" for line in left))

    def forget(self, trials: Collection[Key]) -> None:
        """Set all lines of these trials aside, as if they were damaged; to be called before any
        `append`."""
        *lines, _ = self.run.path.read_bytes().split(b"\n")
        numbers = {
            number
            for number, line in enumerate(lines, start=1)
            if key(record_lines.decode(line)) in trials
        }
        self._set_aside(lines, numbers)
        os.close(self._file)  # the one that was replaced
        self._file = os.open(self.run.path, os.O_RDWR | os.O_APPEND)

    def _mend_manifests(self) -> list[str]:
        """Set damaged manifests aside, so that nobody stumbles over them again."""
        repairs = []
        for path in self.run.damaged_manifests():
            path.rename(path.with_name(f"{path.name}.damaged"))
            repairs.append(f"manifests/{path.name} is damaged and was set aside")
        return repairs

    def _sweep(self) -> list[str]:
        """Remove what a killed writer left; nobody else writes here now."""
        left = self.run.left_behind()
        for path in left:
            path.unlink()
        if not left:
            return []
        files = "a file" if len(left) == 1 else f"{len(left)} files"
        return [f"{files} of a killed run, which no record mentions, removed"]


def _number(manifest: Mapping[str, Any]) -> int:
    """Of a manifest in its run; 0 in runs that did not count them."""
    return int(manifest.get("number", 0))


def _manifest(path: Path) -> dict[str, Any] | None:
    """A manifest; None if it is none, or damaged.

    Raises:
        LeakbenchError: it cannot be read.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise LeakbenchError(f"{path}: cannot be read: {error.strerror}") from None
    if _MANIFEST.fullmatch(path.stem) and path.stem != hashlib.sha256(data).hexdigest()[:16]:
        return None
    try:
        content = from_json(data, allow_inf_nan=False)
    except ValueError:
        return None
    sound = isinstance(content, dict) and isinstance(content.get("started"), str)
    number = content.get("number", 0) if sound else None
    return content if type(number) is int and 0 <= number <= MOST_INVOCATIONS else None
