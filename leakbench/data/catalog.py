"""What is known about each data set without opening it; imports neither torch nor numpy."""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
from pathlib import Path

from leakbench.data import entries, families
from leakbench.data.entries import LARGEST_SIDE, Entry, OwnData, Source
from leakbench.errors import LeakbenchError, require_at_least, unknown_name

ENVIRONMENT_VARIABLE = "LEAKBENCH_DATA"


def _built_in() -> dict[str, Entry]:
    """The entries of all files in `families`, by name."""
    modules = (
        importlib.import_module(f"{families.__name__}.{found.name}")
        for found in pkgutil.iter_modules(families.__path__)
    )
    every: list[Entry] = [entry for module in modules for entry in module.ENTRIES]
    return {entry.name: entry for entry in sorted(every, key=lambda entry: entry.name)}


CATALOG = _built_in()
NAMES = tuple(CATALOG)


def look_up(source: Source) -> Entry:
    """The facts of a data set; of the user's own, all of it is read to find them.

    LeakbenchError with the closest match for an unknown name; what is wrong with one's own data;
    DataMissing where these are not there.
    """
    if isinstance(source, OwnData):
        from leakbench.data.own import entry  # brings numpy

        return entry(source)
    if is_path(source):
        return look_up(locate(source))
    try:
        return CATALOG[source]
    except KeyError:
        raise unknown_name("data set", source, NAMES) from None


def is_path(text: str) -> bool:
    """Whether a data set is named by a path: with a slash, or ending in .npz."""
    return "/" in text or os.sep in text or text.endswith(".npz")


def locate(
    text: str, base: Path | None = None, *, size: int | None = None, seed: int = 0
) -> OwnData:
    """The data at a path, relative to `base` (default: the working directory).

    Args:
        size: pixels; images are resized to (size, size). seed: of the split, from 0 on.

    Raises:
        LeakbenchError: it is neither a folder nor an .npz file, or is called as a data set of
            leakbench's own; `size` or `seed` is not allowed.
    """
    path = os.path.abspath(Path(base or Path.cwd(), os.path.expanduser(text)))
    folder, file = os.path.isdir(path), os.path.isfile(path) and path.endswith(".npz")
    if not folder and not file:
        state = "is neither of them" if os.path.lexists(path) else "is not there"
        raise LeakbenchError(
            f"data set '{text}': a path must lead to a folder of images by class or to an .npz "
            f"file, and '{path}' {state}"
        )
    name = Path(path).name if folder else Path(path).stem
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("._") or "own"
    if name in CATALOG:
        raise LeakbenchError(
            f"data set '{text}': it would be called '{name}' in tables, as the one that comes with "
            "leakbench; rename the folder or file"
        )
    if size is not None:
        require_at_least(f"data set '{text}'", 1, size=size)
        if size > LARGEST_SIDE:
            raise LeakbenchError(
                f"data set '{text}': size must be at most {LARGEST_SIDE} pixels, got {size}"
            )
    require_at_least(f"data set '{text}'", 0, seed=seed)
    return OwnData(path=path, name=name, size=size, seed=seed)


def data_root() -> Path | None:
    """The folder named by LEAKBENCH_DATA, absolute; None when the variable is unset or empty.

    LeakbenchError when it names something that is not a folder.
    """
    text = os.environ.get(ENVIRONMENT_VARIABLE, "")
    if not text:
        return None
    root = Path(text).absolute()
    if not root.is_dir():
        raise LeakbenchError(
            f"{ENVIRONMENT_VARIABLE}: '{root}' is not a folder; it must name a data root made by "
            "'leakbench data prepare DEST'"
        )
    return root


def how_to_get(entry: Entry) -> str:
    """The command that puts the full data set into a data root, in words."""
    if not entry.root_files:
        return "part of leakbench"
    prepared = f"leakbench data prepare DEST {entry.name}"
    if any(not archive.digest for archive in entry.archives):
        archive = entry.archives[0]
        prepared = f"fetch {archive.urls[0]}, {prepared} --source FOLDER"
    return f"{prepared}, then {ENVIRONMENT_VARIABLE}=DEST"


def describe(root: Path | None = None) -> list[dict[str, str]]:
    """One row a data set: name, title, status, where, how_to_get, licence; all plain text.

    `status` is "in data root" when every file of the full data set is in `root` (default: the
    folder of LEAKBENCH_DATA), else "embedded sample", else "missing". No file is opened.
    LeakbenchError when LEAKBENCH_DATA is not a folder.
    """
    root = root if root is not None else data_root()
    return [_row(entry, root) for entry in CATALOG.values()]


def _row(entry: Entry, root: Path | None) -> dict[str, str]:
    files = [root / file for file in entry.root_files] if root is not None else []
    if files and all(file.is_file() for file in files):
        status, where = "in data root", str(files[0].parent)
    elif entry.sample is not None:
        status, where = "embedded sample", str(entries.SAMPLES / entry.sample)
    else:
        status, where = "missing", str(root) if root is not None else ""
    return {
        "name": entry.name,
        "title": entry.title,
        "status": status,
        "where": where,
        "how_to_get": how_to_get(entry),
        "licence": entry.licence,
    }
