"""What decides a result, as hashes: code, data, weights and every parameter.

A cell's identity is the resume key: an edited attack, another data file or a changed rule make a
new cell, never a stale "finished".
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
from collections.abc import Iterable
from functools import cache
from pathlib import Path

TRIALS = ("leakbench.judging", "leakbench.training", "leakbench.trials")
"""Modules of the machinery on every trial's path; what they import is followed."""

TRAININGS = ("leakbench.utility",)
"""The same for every training of a utility cell."""


@cache
def source_digest(plugins: tuple[Path, ...], modules: tuple[str, ...] = TRIALS) -> str:
    """SHA-256 over the plugin files and what they or `modules` import, file by file.

    Followed are modules of leakbench and of the package a file is in, so that a plugin spread over
    several modules counts whole; other packages are not.
    """
    files = _reached([path.resolve() for path in plugins], _machinery(modules))
    sha = hashlib.sha256()
    # Plugins by content only: moving the checkout must not change an identity.
    for content in sorted(hashlib.sha256(path.read_bytes()).hexdigest() for path in files):
        sha.update(content.encode())
    return sha.hexdigest()


@cache
def _machinery(modules: tuple[str, ...]) -> frozenset[Path]:
    """Files of these modules and of what they import; parsing them takes tenths of a second."""
    return _reached([file for name in modules if (file := _file(name))], frozenset())


def _reached(todo: list[Path], known: frozenset[Path]) -> frozenset[Path]:
    """`known` files, those of `todo`, and what these import."""
    seen = set(known)
    while todo:
        path = todo.pop()
        if path not in seen:
            seen.add(path)
            todo.extend(_imports(path))
    return frozenset(seen)


def _imports(path: Path) -> Iterable[Path]:
    package = _package(path)
    for node in ast.walk(ast.parse(path.read_bytes())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names = [module, *(f"{module}.{alias.name}".lstrip(".") for alias in node.names)]
        for name in names:
            top, *rest = name.split(".")
            if isinstance(node, ast.ImportFrom) and node.level:
                yield from _below(path.parents[node.level - 1], name.split("."))
            elif top == "leakbench":
                if file := _file(name):
                    yield file
            elif package is not None and top == package.name:
                yield from _below(package, rest)


def _package(path: Path) -> Path | None:
    """Folder of the outermost package a file is in."""
    folder = path.parent
    while (folder.parent / "__init__.py").is_file():
        folder = folder.parent
    return folder if (folder / "__init__.py").is_file() else None


def _below(folder: Path, parts: list[str]) -> Iterable[Path]:
    """File of the module named by `parts` below a package's folder, if it is one."""
    place = folder.joinpath(*parts)
    for file in (place.with_suffix(".py"), place / "__init__.py"):
        if file.is_file():
            yield file.resolve()


@cache
def _file(module: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:  # a name inside a module, not a module
        return None
    return None if spec is None or spec.origin is None else Path(spec.origin).resolve()
