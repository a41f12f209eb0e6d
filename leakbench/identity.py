"""What decides a result, as hashes: code, data, weights and every parameter.

A cell's identity is the resume key: an edited attack or another data file makes a new cell, never
a stale "finished". Code counts by what it does: comments, docstrings, layout and the words of
errors do not, and neither do modules that cannot change a number (`COVERED`).
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import re
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import TypeGuard

ATTACKS = ("leakbench.trials",)
"""Modules of the machinery on every attack's path; what they import is followed."""

TRAININGS = ("leakbench.utility",)
"""The same for every training of a utility cell."""

COVERED = (
    # What they make is in the identity: the arrays' checksum, every parameter, the plugin's file.
    "leakbench.data", "leakbench.suite", "leakbench.spec", "leakbench.registry",
    "leakbench.plugin_files", "leakbench.parameters", "leakbench.plain",
    # They look at results: how they do is in the identity of the judge.
    "leakbench.judging", "leakbench.metrics", "leakbench.records", "leakbench.report",
    "leakbench.record_types", "leakbench.trial_records",
    # They cannot change a number of who keeps to the contract.
    "leakbench.errors", "leakbench.foreign", "leakbench.isolation", "leakbench.soundness",
)  # fmt: skip
"""Modules, with all below them, whose code is no part of an identity."""

COMPUTING = ("leakbench.data.partitions",)
"""Modules below one of `COVERED` that are part of it nevertheless."""

ROOT = ("leakbench", "b0b9f55b31f69fd37d8d6ddf5f238c47735e6514a75d52b93b42be3c1c07899f")
"""The package itself, and the digest that stands for its file: that only names what there is, and a
new name changes no number. What it imports is followed."""


@cache
def source_digest(plugins: tuple[Path, ...], modules: tuple[str, ...] = ATTACKS) -> str:
    """SHA-256 over what the plugin files and what they or `modules` import do, file by file.

    Followed are modules of leakbench and of the package a file is in, so that a plugin spread over
    several modules counts whole; other packages are not.
    """
    files = _reached([path.resolve() for path in plugins], _machinery(modules))
    sha = hashlib.sha256()
    # Plugins by content only: moving the checkout must not change an identity.
    root = _file(ROOT[0])
    for content in sorted(
        ROOT[1] if path == root else _meaning_of(path.suffix, path.read_bytes()) for path in files
    ):
        sha.update(content.encode())
    return sha.hexdigest()


def _meaning_of(suffix: str, text: bytes) -> str:
    if suffix == ".py":
        return _meaning(text)
    code = re.sub(rb"/\*.*?\*/", b" ", text, flags=re.DOTALL)
    return hashlib.sha256(b" ".join(code.split())).hexdigest()


@lru_cache(maxsize=512)
def _meaning(text: bytes) -> str:
    """SHA-256 of a file's syntax tree, without what cannot change a number."""
    tokens: list[str] = []
    _write(_parsed(text), tokens, said=False)
    return hashlib.sha256("".join(tokens).encode()).hexdigest()


@lru_cache(maxsize=512)
def _parsed(text: bytes) -> ast.Module:
    """A file is asked for its imports, and then for its meaning."""
    return ast.parse(text)


def _write(node: object, tokens: list[str], *, said: bool) -> None:
    """A tree as text that is equal for equal code, whichever Python parsed it.

    said: whether the node is part of what is raised, where text is words for a person.
    """
    if isinstance(node, ast.AST):
        said = said or isinstance(node, ast.Raise)
        if said and (isinstance(node, ast.JoinedStr) or _is_text(node)):
            return
        if _is_for_checkers(node):
            _write(node.orelse, tokens, said=said)
            return
        tokens.append(f"({type(node).__name__}")
        body = _without_docstring(node)
        for name, value in ast.iter_fields(node):
            # Later Pythons have more fields, which are empty in code that this one can run.
            if value is None or value == [] or name in ("ctx", "kind", "type_comment"):
                continue
            tokens.append(f" {name}=")
            _write(body if name == "body" and body is not None else value, tokens, said=said)
        tokens.append(")")
    elif isinstance(node, list):
        for item in node:
            _write(item, tokens, said=said)
    else:
        tokens.append(repr(node))


def _without_docstring(node: ast.AST) -> list[ast.stmt] | None:
    """The statements of a block without bare strings, which document; None for other nodes."""
    body = getattr(node, "body", None)
    if not isinstance(body, list):
        return None
    return [each for each in body if not (isinstance(each, ast.Expr) and _is_text(each.value))]


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_for_checkers(node: ast.AST) -> TypeGuard[ast.If]:
    """Whether a block is for type checkers only, and never run."""
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


@cache
def _machinery(modules: tuple[str, ...]) -> frozenset[Path]:
    """Files of these modules and of what they import; parsing them takes tenths of a second."""
    return _reached([file for name in modules if (file := _file(name))], frozenset())


def _reached(todo: list[Path], known: frozenset[Path]) -> frozenset[Path]:
    """`known` files, those of `todo`, and what these import."""
    seen = set(known)
    while todo:
        path = todo.pop()
        if path not in seen and not _is_covered(path):
            seen.add(path)
            todo.extend(_imports(path))
    return frozenset(seen)


def _imports(path: Path) -> Iterable[Path]:
    if path.suffix != ".py":
        return
    if path.name == "__init__.py":  # what is compiled into a package is in C beside it
        for pattern in ("*.c", "*.inc"):
            yield from path.parent.glob(pattern)
    package = _package(path)
    for node in _run(_parsed(path.read_bytes())):
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


def _run(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes of a tree without blocks for type checkers only."""
    todo = [tree]
    while todo:
        node = todo.pop()
        if _is_for_checkers(node):
            todo.extend(node.orelse)
            continue
        yield node
        todo.extend(ast.iter_child_nodes(node))


def _is_covered(path: Path) -> bool:
    """Whether a file is one of `COVERED`, or below one."""
    return path in _files_below(COVERED) - _files_below(COMPUTING)


@cache
def _files_below(modules: tuple[str, ...]) -> frozenset[Path]:
    found = set()
    for module in modules:
        if (file := _file(module)) is not None:
            found.add(file)
            if file.name == "__init__.py":
                found.update(path.resolve() for path in file.parent.rglob("*.py"))
    return frozenset(found)


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
