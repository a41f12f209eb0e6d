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

PATH_MODULES = ("leakbench.judging", "leakbench.models", "leakbench.training", "leakbench.trials")
"""Modules of the machinery on every trial's path; what they import is followed."""


@cache
def source_digest(plugins: tuple[Path, ...]) -> str:
    """SHA-256 over the plugin files and every leakbench module that they or a trial import."""
    files = {path.resolve() for path in plugins}
    todo = [*files, *(file for name in PATH_MODULES if (file := _file(name)))]
    seen: set[Path] = set()
    while todo:
        path = todo.pop()
        if path not in seen:
            seen.add(path)
            todo.extend(_imports(path))
    sha = hashlib.sha256()
    # Plugins by content only: moving the checkout must not change an identity.
    for content in sorted(hashlib.sha256(path.read_bytes()).hexdigest() for path in seen):
        sha.update(content.encode())
    return sha.hexdigest()


def _imports(path: Path) -> Iterable[Path]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            if name.split(".")[0] == "leakbench" and (file := _file(name)):
                yield file


@cache
def _file(module: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:  # a name inside a module, not a module
        return None
    return None if spec is None or spec.origin is None else Path(spec.origin).resolve()
