"""Where suites are found: built in, brought by other distributions, or anywhere as a .toml file.

A distribution brings suites by an entry point of the group `leakbench.suites` that names a package
with .toml files in it. They are only read, and the package is not imported. Files whose name begins
with "_" are no suites; `_rules.toml` holds sets of rules for the suites beside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from importlib.metadata import entry_points
from pathlib import Path

from leakbench.errors import LeakbenchError, unknown_name
from leakbench.plugin_files import locate

GROUP = "leakbench.suites"
RULE_SETS = "_rules.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A suite by name; `reason` says why it cannot be used, where it cannot."""

    name: str
    origin: str
    path: Path | None = None
    reason: str = ""


def listed() -> list[Listed]:
    """All suites by name; of two with one name the built-in stays, the other cannot be used."""
    first: dict[str, Listed] = {}
    found = []
    for suite in [*_built_in(), *_installed()]:
        owner = first.setdefault(suite.name, suite)
        if owner is not suite and not suite.reason:
            reason = f"the name '{suite.name}' is taken by {owner.origin}"
            suite = Listed(name=suite.name, origin=suite.origin, path=suite.path, reason=reason)
        found.append(suite)
    return sorted(found, key=lambda suite: suite.name)


def names() -> list[str]:
    """Names of the suites that can be used."""
    return [suite.name for suite in listed() if not suite.reason]


def find(suite: str) -> tuple[Path, str]:
    """File of a suite by name or by the path of a .toml file, and what to call it in errors.

    Raises:
        LeakbenchError: no suite of that name, one that cannot be used, or a path that is no text.
    """
    if suite.endswith(".toml") or "/" in suite:
        if not suite.isascii() and suite != suite.encode(errors="replace").decode():
            text = "its name is not text in UTF-8, which a run could not write down"
            raise LeakbenchError(f"suite file {suite}: {text}")
        return Path(suite), suite
    same = [each for each in listed() if each.name == suite]
    for each in same:
        if each.path is not None and not each.reason:
            return each.path, each.path.name
    if same:
        raise LeakbenchError(f"suite '{suite}' ({same[0].origin}): {same[0].reason}")
    text = f"{unknown_name('suite', suite, names())}, or the path of a .toml file"
    raise LeakbenchError(text)


def read_bytes(path: Path, kind: str = "suite file") -> bytes:
    """The bytes of a file; LeakbenchError where it cannot be read, which calls it `kind`."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise LeakbenchError(f"{kind} {path}: {error.strerror}") from None
    except ValueError as error:  # a NUL in the path
        raise LeakbenchError(f"{kind} {str(path)!r}: {error}") from None


def built_in_folder() -> Path:
    """Folder of the suites that come with leakbench."""
    return Path(str(resources.files("leakbench.suites")))


def _built_in() -> Iterator[Listed]:
    yield from _in_folder(built_in_folder(), "leakbench")


def _installed() -> Iterator[Listed]:
    for point in entry_points(group=GROUP):
        origin = f"{point.dist.name} {point.dist.version}" if point.dist else point.value
        module = re.split("[:[]", point.value)[0].strip()
        file = locate(module)
        suites = [] if file is None else list(_in_folder(file.parent, origin))
        if file is None or file.name != "__init__.py":
            yield Listed(name=point.name, origin=origin, reason=f"no package named '{module}'")
        elif not suites:
            yield Listed(name=point.name, origin=origin, reason=f"no .toml file in '{module}'")
        else:
            yield from suites


def _in_folder(folder: Path, origin: str) -> Iterator[Listed]:
    for path in sorted(folder.glob("[!_]*.toml")):
        yield Listed(name=path.stem, origin=f"{origin} ({path.name})", path=path)
