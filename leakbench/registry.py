"""Names -> plugins. A plugin is a class with a literal `name = "..."` in a file of a plugin folder.

Built-in folders are `leakbench.attacks`, `leakbench.defenses` and `leakbench.models`; other
distributions bring theirs by an entry point of the same group that points at such a module. Listing
reads files and imports none of them; `load` imports the one plugin asked for. A user's own folder,
named by `--plugins` or `LEAKBENCH_PLUGINS`, has such folders below it: DIR/models/mine.py.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Literal, NamedTuple, cast

from leakbench.errors import LeakbenchError, PluginBroken, unknown_name
from leakbench.plugin_files import Plugin, broken, locate, one_line, scan

Kind = Literal["attacks", "defenses", "models"]
KINDS: tuple[Kind, ...] = ("attacks", "defenses", "models")

FOLDERS = "LEAKBENCH_PLUGINS"
"""Environment variable with a user's folders, as PATH names them: worker processes inherit it."""


def discover(kind: Kind) -> list[Plugin]:
    """All plugins of a kind by name; of two with one name the built-in stays, the other breaks."""
    first: dict[str, Plugin] = {}
    listed: list[Plugin] = []
    # Of two files of a folder the one named after the plugin owns the name.
    built_in = sorted(_built_in(kind), key=lambda p: p.path is None or p.path.stem != p.name)
    for plugin in [*built_in, *_installed(kind), *_own(kind)]:
        owner = first.setdefault(plugin.name, plugin)
        if owner is not plugin and plugin.status == "ok":
            reason = f"the name '{plugin.name}' is taken by {owner.origin}"
            plugin = replace(plugin, status="broken", reason=reason)
        listed.append(plugin)
    return sorted(listed, key=lambda plugin: plugin.name)


JOINT = " + "
"""Between the names of defenses that are applied one after another (`leakbench.chain`)."""


def find_all(kind: Kind, name: str, where: str = "") -> list[Plugin]:
    """What `name` is made of: the plugin, or all parts of a chain of defenses and what chains them.

    Raises:
        LeakbenchError: as `find`.
    """
    if kind != "defenses" or JOINT not in name:
        return [find(kind, name, where)]
    chain = Path(__file__).with_name("chain.py")
    parts = [find(kind, part, where) for part in name.split(JOINT)]
    made = Plugin(name=name, origin="leakbench (chain.py)", module="leakbench.chain", path=chain)
    return [made, *parts]


def find(kind: Kind, name: str, where: str = "") -> Plugin:
    """The usable plugin `name`; LeakbenchError names the choices, or says why it is broken."""
    if kind == "defenses" and JOINT in name:
        return find_all(kind, name, where)[0]
    same = [plugin for plugin in discover(kind) if plugin.name == name]
    for plugin in same:
        if plugin.status == "ok":
            return plugin
    if same:
        place = f"{where}: " if where else ""
        raise LeakbenchError(f"{place}{kind[:-1]} '{name}' ({same[0].origin}): {same[0].reason}")
    raise unknown_name(kind[:-1], name, [p.name for p in discover(kind) if p.status == "ok"], where)


def load(kind: Kind, name: str) -> type:
    """Import the class of plugin `name`.

    Raises:
        LeakbenchError: there is none; `PluginBroken` if its import fails, or changes the process.
    """
    if kind == "defenses" and JOINT in name:
        from leakbench.chain import chain_of  # needs torch, and this module

        return chain_of([load(kind, part) for part in name.split(JOINT)])
    known, folders = _LOADED.get((kind, name)), _folders(kind)
    if known is not None and known.folders == folders and known.is_imported():
        return known.found
    plugin = find(kind, name)
    try:
        found = cast(type, getattr(_imported(plugin.module), plugin.attribute))
        _LOADED[kind, name] = _Loaded(found, sys.modules[plugin.module], folders)
        return found
    except Exception as error:  # foreign code may fail in any way; the text names it
        text = f"{kind[:-1]} '{name}' ({plugin.origin}): import failed: {one_line(error)}"
        raise PluginBroken(text) from error


class _Loaded(NamedTuple):
    """A class that was imported from a module, when the folders of plugins were these."""

    found: type
    module: ModuleType
    folders: tuple[object, ...]

    def is_imported(self) -> bool:
        """Whether an import would find the same module."""
        return sys.modules.get(self.module.__name__) is self.module


_LOADED: dict[tuple[Kind, str], _Loaded] = {}
"""By kind and name: a suite of many rows asks for the same ones over and over."""


def _folders(kind: Kind) -> tuple[object, ...]:
    """Where plugins are looked for, each with the time at which a file came or went."""
    built_in = importlib.import_module(f"leakbench.{kind}").__path__
    own = [str(Path(name) / kind) for name in os.environ.get(FOLDERS, "").split(os.pathsep) if name]
    places = [*built_in, *own]
    return *places, *(os.stat(place).st_mtime_ns for place in places if os.path.isdir(place))


_SPOILING: dict[str, tuple[ModuleType | None, str]] = {}
"""Modules that have changed the process when they were imported, and what an error says of it: a
second import would find them there, and change nothing."""


def _imported(name: str) -> ModuleType:
    """A module, imported if it is not there, with what its import changes of the process undone.

    Raises:
        LeakbenchError: it has changed what decides numbers. Its own errors come through.
    """
    if (known := sys.modules.get(name)) is not None:
        module, said = _SPOILING.get(name, (None, ""))
        if module is known:
            raise LeakbenchError(said)
        return known
    importlib.invalidate_caches()  # a file may have been written since
    from leakbench.isolation import contained  # brings torch, as plugins do

    try:
        with contained(""):
            return importlib.import_module(name)
    except LeakbenchError as error:
        _SPOILING[name] = (sys.modules.get(name), str(error))
        raise


def add_folders(folders: Iterable[Path]) -> None:
    """Look for plugins in these folders too, in this process and those it starts, wherever they
    start.

    Raises:
        LeakbenchError: a folder that is not there, or has no folder of plugins.
    """
    known = [Path(name) for name in os.environ.get(FOLDERS, "").split(os.pathsep) if name]
    every = [_checked(folder, "--plugins") for folder in folders]
    every += [_checked(folder, FOLDERS) for folder in known]
    os.environ[FOLDERS] = os.pathsep.join(dict.fromkeys(map(str, every)))


def _checked(folder: Path, where: str) -> Path:
    if not folder.is_dir():
        raise LeakbenchError(f"{where}: no folder '{folder}'")
    if not any((folder / kind).is_dir() for kind in KINDS):
        raise LeakbenchError(f"{where}: folder '{folder}' has none of {', '.join(KINDS)} in it")
    return folder.resolve()


def _own(kind: Kind) -> Iterator[Plugin]:
    for name in os.environ.get(FOLDERS, "").split(os.pathsep):
        if name:
            folder = _checked(Path(name), FOLDERS)
            for path in sorted((folder / kind).glob("[!_]*.py")):
                module = f"{_package(folder)}.{kind}.{path.stem}"
                yield from scan(module, path, f"{folder.name}/{kind}/{path.name}")


def _package(folder: Path) -> str:
    """A package of its own for a user's folder: files of two folders may have the same names, and
    import those beside them relatively."""
    name = f"leakbench_plugins_{hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]}"
    if name not in sys.modules:
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(folder)]
        sys.modules[name] = importlib.util.module_from_spec(spec)
    return name


def _built_in(kind: Kind) -> Iterator[Plugin]:
    for folder in importlib.import_module(f"leakbench.{kind}").__path__:
        for path in sorted(Path(folder).glob("[!_]*.py")):
            yield from scan(f"leakbench.{kind}.{path.stem}", path, f"leakbench ({path.name})")


@cache
def _entry_points(group: str, path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """What the distributions on `path`, which is `sys.path`, bring: each has a file to read."""
    return tuple(entry_points(group=group))


def _installed(kind: Kind) -> Iterator[Plugin]:
    for point in _entry_points(f"leakbench.{kind}", tuple(sys.path)):
        origin = f"{point.dist.name} {point.dist.version}" if point.dist else point.value
        module = re.split("[:[]", point.value)[0].strip()
        path = locate(module)
        if path is None:
            yield broken(point.name, origin, module, f"no module named '{module}'")
        else:
            yield from scan(module, path, origin)
