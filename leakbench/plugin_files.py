"""What a plugin file declares, read from its text without running it."""

from __future__ import annotations

import ast
import importlib.util
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from leakbench.errors import LeakbenchError
from leakbench.printable import printable


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """One listed name; `module` and `attribute` say what to import, `reason` why it is broken."""

    name: str
    origin: str
    module: str
    attribute: str = ""
    path: Path | None = None
    summary: str = ""
    status: Literal["ok", "broken"] = "ok"
    reason: str = ""


def scan(module: str, path: Path, origin: str) -> list[Plugin]:
    """Plugins of one file: its classes with a literal `name = "..."`; at least one, maybe broken.

    A file that does not parse, imports a package that is not installed, or names no plugin is
    returned as broken under its own stem, so that listing never fails and hides nothing.
    """
    try:
        tree = _parsed(path.read_bytes())
    except (SyntaxError, ValueError, OSError, RecursionError, MemoryError) as error:
        return [broken(path.stem, origin, module, one_line(error), path)]
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    named = [(name, node) for node in classes if (name := _name(node))]
    if not named:
        reason = f'{path.name} has no class with a literal name = "..."'
        return [broken(path.stem, origin, module, reason, path)]
    if missing := _missing_import(tree, path):
        return [broken(name, origin, module, missing, path) for name, _ in named]
    return [
        Plugin(
            name=name,
            origin=origin,
            module=module,
            attribute=node.name,
            path=path,
            summary=(ast.get_docstring(node) or ast.get_docstring(tree) or "").split("\n")[0],
        )
        for name, node in named
    ]


@lru_cache(maxsize=256)
def _parsed(text: bytes) -> ast.Module:
    """A suite of thirty rows asks for the same files hundreds of times."""
    return ast.parse(text)


def broken(name: str, origin: str, module: str, reason: str, path: Path | None = None) -> Plugin:
    """A listed plugin that cannot be used, with the reason."""
    return Plugin(
        name=name, origin=origin, module=module, path=path, status="broken", reason=reason
    )


def one_line(error: BaseException) -> str:
    """Type and text of an error, of our own the text only, on one line as `printable` shows it."""
    try:
        said = str(error)
    except Exception as failed:  # noqa: BLE001  a plugin's own exception may fail at this, too
        said = f"its text cannot be read ({type(failed).__name__})"
    whole = said if isinstance(error, LeakbenchError) else f"{type(error).__name__}: {said}"
    return " ".join(printable(whole.encode("utf-8", "backslashreplace").decode()).split())


def locate(module: str) -> Path | None:
    """Source file of a module; unlike `importlib.util.find_spec` this imports no parent of it."""
    name, _, rest = module.partition(".")
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # no name at all, or a module that was not imported from anywhere
        return None
    for part in rest.split(".") if rest else ():
        if spec is None or spec.submodule_search_locations is None:
            return None
        name, folders = f"{name}.{part}", spec.submodule_search_locations
        found = (finder.find_spec(name, folders) for finder in sys.meta_path)
        spec = next((candidate for candidate in found if candidate is not None), None)
    path = None if spec is None or spec.origin is None else Path(spec.origin)
    return path if path is not None and path.is_file() else None


def _name(node: ast.ClassDef) -> str | None:
    for item in node.body:
        target = item.targets[0] if isinstance(item, ast.Assign) else getattr(item, "target", None)
        value = getattr(item, "value", None)
        literal = isinstance(value, ast.Constant) and isinstance(value.value, str)
        if literal and isinstance(target, ast.Name) and target.id == "name":
            return str(value.value)  # type: ignore[union-attr]
    return None


def _missing_import(tree: ast.Module, path: Path) -> str:
    for node in tree.body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        for top in (name.partition(".")[0] for name in names):
            if top not in sys.modules and importlib.util.find_spec(top) is None:
                beside = path.with_name(f"{top}.py").is_file() or path.with_name(top).is_dir()
                hint = f"; for the one beside it write 'from . import {top}'" if beside else ""
                return f"line {node.lineno}: no module named '{top}'{hint}"
    return ""
