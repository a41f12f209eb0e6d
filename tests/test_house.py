"""Walls of the source: what imports what, how long a file is, and who knows whom by name."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import pytest

from leakbench import registry

ROOT = Path(__file__).resolve().parents[1]
LONGEST = 600  # lines of a file that is read in one sitting

# What is still to be done; these lists may only shrink.
TOO_LONG: set[str] = set()
IN_A_CYCLE: set[frozenset[str]] = set()

# Names of plugins that mean other things as well: a knowledge, levels and samplings, a part of an
# audit, a baseline.
WORDS = {"candidates", "none", "panel", "start_image"}

# Modules that read the mechanism of another library as one of ours, by the registry.
BRIDGES = {"leakbench.audits.attacked", "leakbench.dp_config", "leakbench.dp_libraries"}


def modules(root: Path) -> dict[str, Path]:
    """Modules as they are imported; attacks/ and defenses/ stand beside leakbench/."""
    found = {}
    for top in ("leakbench", "attacks", "defenses"):
        for path in sorted((root / top).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            parts = parts if top == "leakbench" else ("leakbench", *parts)
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules(ROOT)


def at_import(body: Iterable[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """Imports that run when a module is loaded: not those in functions or for type checkers."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            yield from at_import(node.orelse)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for field in ("body", "orelse", "finalbody", "handlers", "cases"):
                for inner in getattr(node, field, ()):
                    yield from at_import([inner] if isinstance(inner, ast.stmt) else inner.body)


def imported(source: str, known: Iterable[str]) -> set[str]:
    """The modules among `known` that a source imports; of `from package import module` the module.

    A package is not imported by its own modules, though Python loads it first.
    """
    found = set()
    for node in at_import(ast.parse(source).body):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        else:
            assert node.level == 0, "leakbench imports by full names"
            found |= {
                whole if (whole := f"{node.module}.{alias.name}") in known else str(node.module)
                for alias in node.names
            }
    return found & set(known)


GRAPH = {
    name: imported(path.read_text(encoding="utf-8"), MODULES) for name, path in MODULES.items()
}


def cycles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """One cycle after the other, the arrow that closes each left out to find the next."""
    left = {name: set(others) for name, others in graph.items()}
    found = set()
    while True:
        try:
            TopologicalSorter(left).prepare()
        except CycleError as error:
            before, after, *_ = error.args[1]  # `before` is imported by `after`
            left[after].discard(before)
            found.add(frozenset(error.args[1]))
        else:
            return found


def test_imports_are_seen() -> None:
    source = """
import json
from typing import TYPE_CHECKING
from a import b
from a.b import thing
if TYPE_CHECKING:
    import c
try:
    import d
except ImportError:
    from a import e
class Late:
    from a import f
def later():
    import g
"""
    known = ("a", "a.b", "a.e", "a.f", "c", "d", "g")
    assert imported(source, known) == {"a.b", "d", "a.e", "a.f"}
    assert imported("from a import missing", known) == {"a"}
    assert GRAPH["leakbench.attacks.cpl"] >= {"leakbench.contracts", "leakbench.inversion"}
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a", "d"}}) == {
        frozenset("bc"), frozenset("d"),
    }  # fmt: skip


def test_nothing_imports_in_a_circle() -> None:
    assert cycles(GRAPH) == IN_A_CYCLE


def test_what_is_imported_is_required_and_what_is_required_imported() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = [*project["dependencies"], *project["optional-dependencies"]["lpips"]]
    names = {"scikit-image": "skimage", "pillow": "PIL"}
    found = {re.split(r"[>=<\[ ]", text)[0] for text in required}
    used = set()
    for path in MODULES.values():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                used |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                used.add(str(node.module).partition(".")[0])
    own = {"leakbench", "pydantic_core", "markupsafe"}  # these come with pydantic and jinja2
    assert used - sys.stdlib_module_names - own == {names.get(n, n) for n in found}


def test_every_file_can_be_read_in_one_sitting() -> None:
    lengths = {
        name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in MODULES.items()
    }
    assert {name for name, lines in lengths.items() if lines > LONGEST} == TOO_LONG


@pytest.mark.parametrize("kind", ["attacks", "defenses"])
def test_arrows_point_from_plugins_to_the_machinery(kind: str) -> None:
    plugins = {name for name in MODULES if name.startswith(f"leakbench.{kind}.")}
    assert plugins
    for name, others in GRAPH.items():
        assert not others & plugins, f"{name} imports a plugin"


def test_the_machinery_names_no_plugin() -> None:
    names = {plugin.name for kind in ("attacks", "defenses") for plugin in registry.discover(kind)}
    assert {"cpl", "fed_cdp"} | WORDS <= names
    found = {}
    for module, path in MODULES.items():
        if module.startswith(("leakbench.attacks", "leakbench.defenses")) or module in BRIDGES:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        if named := texts & (names - WORDS):
            found[module] = named
    assert not found


def test_mutation_testing_names_modules_and_tests_that_exist() -> None:
    """Read from the source: the script itself needs an extra."""
    tree = ast.parse((ROOT / "scripts" / "mutation.py").read_text(encoding="utf-8"))
    assigned = [node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)]
    table = [node for node in assigned if ast.unparse(node).startswith(("TESTS", "_ACCOUNTS"))]
    found: dict[str, Any] = {}
    exec(compile(ast.Module(table, []), "mutation.py", "exec"), found)
    assert {"privacy/account", "judging"} <= set(found["TESTS"])
    for module, tests in found["TESTS"].items():
        paths = [f"leakbench/{module}.py", *(f"tests/test_{name}.py" for name in tests)]
        assert tests and not [path for path in paths if not (ROOT / path).is_file()]
