"""Lay out a data root; the only code of leakbench that uses the network.

Every archive that is downloaded is checked against a published checksum before it is opened; of one
without such a checksum, which the user brings himself, the contents are. Members are read by name
and nothing is unpacked to disk, so that no member can choose where it is written.
"""

from __future__ import annotations

import functools
import http.client
import tarfile
import urllib.request
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from leakbench.data import catalog, readers, writing
from leakbench.data.entries import Archive, Build, Entry
from leakbench.errors import DataMissing, LeakbenchError, unknown_name

TIMEOUT_SECONDS = 60


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
    chosen = [_known(name) for name in names or catalog.NAMES]
    if source is not None and not source.is_dir():
        raise LeakbenchError(f"source: '{source}' is not a folder; it must hold the archives")
    for entry in chosen:
        outputs = [dest / file for file in entry.root_files]
        if not outputs or entry.build is None:
            report(f"{entry.name}: {catalog.how_to_get(entry)}")
            continue
        if all(output.is_file() for output in outputs):
            report(f"{entry.name}: already there")
            continue
        if source is None and not names and not all(a.digest for a in entry.archives):
            report(f"{entry.name}: left out; {catalog.how_to_get(entry)}")
            continue
        fetch = functools.partial(_obtain, name=entry.name, dest=dest, source=source, report=report)
        archives = [fetch(archive) for archive in entry.archives]
        report(f"{entry.name}: writing {outputs[0].parent}")
        _build(entry, entry.build, archives, outputs)
        report(f"{entry.name}: ready")


def _known(name: str) -> Entry:
    """An entry of the catalog; one's own data need no preparing."""
    if name not in catalog.CATALOG:
        raise unknown_name("data set", name, catalog.NAMES)
    return catalog.CATALOG[name]


def _build(entry: Entry, build: Build, archives: list[Path], outputs: list[Path]) -> None:
    """Write the outputs of a data set that do not exist yet."""
    try:
        build(archives, outputs)
    except (OSError, EOFError, zlib.error, tarfile.TarError) as problem:
        raise LeakbenchError(
            f"{entry.name}: could not write below '{outputs[0].parent}' from '{archives[0]}' "
            f"({problem})"
        ) from problem


# ---- getting the archives ------------------------------------------------------------------------


def _obtain(
    archive: Archive, *, name: str, dest: Path, source: Path | None, report: Callable[[str], None]
) -> Path:
    """The path of an archive whose checksum is right, or not known."""
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
    if not archive.digest:
        raise DataMissing(
            f"{name}: its publishers state no checksum, so it is not downloaded; "
            f"{catalog.how_to_get(catalog.CATALOG[name])}"
        )
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
    return not archive.digest or readers.file_digest(path, archive.algorithm) == archive.digest


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
    left = writing.LIMIT_BYTES
    while block := answer.read(1 << 20):
        left -= len(block)
        if left < 0:
            raise LeakbenchError(f"{url}: more than the {writing.LIMIT_BYTES:,} bytes allowed")
        stream.write(block)
