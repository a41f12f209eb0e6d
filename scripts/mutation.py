#!/usr/bin/env python3
"""Mutation testing: change the code in one place, and see whether a test notices.

usage: mutation.py [-n PLACES] [--seed N] [--all] [--out FILE] [MODULE ...]

MODULE is a key of TESTS below, such as "privacy/gdp"; all of them by default. Cosmic Ray makes the
mutants; from each module `-n` places are drawn, and at each place one of its mutants, so that a `*`
that can become nine other operators counts no more than a number that can become two. Annotations
and the options of dataclasses are left out: no number comes from there. Every mutant is tried by
the tests that ran its line, shortest first, in a fork of a process that has loaded the libraries,
on a copy of the working tree, where nothing is written. At the end it prints the survivors as diffs
and a table.

Needs the extra `mutation`. A few seconds a mutant; one that survives takes as long as all tests of
its module, one that never ends three times as long as those of its line.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import importlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import coverage
import pytest
from cosmic_ray.commands import init
from cosmic_ray.mutating import use_mutation
from cosmic_ray.plugins import get_operator
from cosmic_ray.work_db import use_db
from cosmic_ray.work_item import MutationSpec

ROOT = Path(__file__).resolve().parents[1]

_ACCOUNTS = ("observers", "orders", "privacy_account", "privacy_accountants", "accounting_edges")
TESTS: dict[str, tuple[str, ...]] = {
    "privacy/account": (*_ACCOUNTS, "promises_spent"),
    "privacy/bisection": ("bisection", *_ACCOUNTS),
    "privacy/ceiling": ("ceiling",),
    "privacy/composition": (*_ACCOUNTS, "privacy_tables"),
    "privacy/events": (*_ACCOUNTS, "promises_spent"),
    "privacy/gdp": ("gdp", *_ACCOUNTS, "privacy_tables"),
    "privacy/inverse": ("budgets", *_ACCOUNTS),
    "privacy/observers": _ACCOUNTS,
    "privacy/presets": (*_ACCOUNTS, "privacy_tables"),
    "privacy/rdp": (*_ACCOUNTS, "privacy_tables"),
    "privacy/tables": ("privacy_tables", "privacy_account"),
    "privacy/zcdp": _ACCOUNTS,
    "contracts/promises": ("promises_spent", "promises"),
    "judging": ("judging",),
    "gaussian": ("gaussian", "defenses", "defenses_dynamic"),
    "clipping": ("defenses", "gaussian", "defenses_dynamic"),
    "statistics": ("statistics",),
}
"""Module of leakbench -> the test files that are about it."""

# Loaded once, before the forks, each of which loads leakbench's modules; leakbench itself comes
# first, as it settles the arithmetic of torch.
LIBRARIES = (
    "leakbench",
    "torch",
    "torchvision",
    "scipy.stats",
    "hypothesis",
    "dp_accounting.pld",
    "mpmath",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=", ".join(TESTS))
    parser.add_argument("-n", type=int, default=25, help="places drawn in each module (25)")
    parser.add_argument("--all", action="store_true", help="every mutant of every place")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="one JSON line a mutant, as they are tried")
    options = parser.parse_args()
    if unknown := set(options.modules) - set(TESTS):
        parser.error(f"unknown module {', '.join(sorted(unknown))}; one of {', '.join(TESTS)}")
    # Python trusts a compiled file of the same size and second, and the next mutant has both.
    sys.dont_write_bytecode = True
    os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        copy = copied(Path(folder))
        os.chdir(copy)
        os.environ["PYTHONPATH"] = str(copy)  # before the editable install
        sys.path.insert(0, str(copy))
        for library in LIBRARIES:
            importlib.import_module(library)
        modules = options.modules or list(TESTS)
        files = sorted({name for module in modules for name in files_of(module)})
        known = Path(folder) / "known.json"
        code = forked(lambda: measured(modules, files, known), 3600)
        if code != 0:
            sys.exit(f"the tests fail without any mutant (exit code {code})")
        lines, seconds = json.loads(known.read_text())
        rows = [tried(module, lines[module], seconds, options) for module in modules]
    print("\n| module | mutants | tried | killed | survived |\n|---|---|---|---|---|")
    for row in [*rows, ("all", *map(sum, zip(*(row[1:] for row in rows), strict=True)))]:
        print("|", " | ".join(map(str, row)), "|")


def copied(folder: Path) -> Path:
    """The working tree under `folder`, with attacks, defenses and suites inside the package."""
    copy = folder / "copy"
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("leakbench", "tests", "docs", "results", "attacks", "defenses", "suites"):
        shutil.copytree(ROOT / name, copy / name, ignore=ignore)
    for name in ("attacks", "defenses", "suites"):
        shutil.copytree(copy / name, copy / "leakbench" / name)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, copy)
    return copy


def path_of(module: str) -> Path:
    """A module's file in the copy, which is the working directory."""
    return Path("leakbench", f"{module}.py").resolve()


def files_of(module: str) -> list[str]:
    return [f"tests/test_{name}.py" for name in TESTS[module]]


Lines = dict[str, list[str]]
"""Line number -> the tests that ran it; "" is the import."""


def tried(
    module: str, lines: Lines, seconds: dict[str, float], options: argparse.Namespace
) -> tuple[str, int, int, int, int]:
    """Try a module's mutants: its name, how many there are, were tried, killed and survived."""
    path = path_of(module)
    seconds = {k: v for k, v in seconds.items() if k.partition("::")[0] in files_of(module)}
    mutants = mutants_of(path)
    places = sorted(mutants)
    generator = random.Random(f"{options.seed} {module}")
    if options.all:
        chosen = [one for place in places for one in mutants[place]]
    else:
        drawn = sorted(generator.sample(places, min(options.n, len(places))))
        chosen = [generator.choice(mutants[place]) for place in drawn]
    survived = 0
    for mutant in chosen:
        names = sorted(covering(path, mutant, lines, seconds), key=lambda name: seconds[name])
        begun = time.monotonic()
        with use_mutation(path, get_operator(mutant.operator_name)(), mutant.occurrence) as codes:
            diff = "".join(
                difflib.unified_diff(
                    *(str(code).splitlines(keepends=True) for code in codes),
                    f"leakbench/{module}.py", mutant.operator_name, n=1,
                )
            )  # fmt: skip
            code = tests(names, seconds)
            if code == 0:  # a cache may have kept a test from that line
                code = tests(sorted(set(seconds) - set(names)), seconds)
        survived += code == 0
        if code == 0:
            print(diff, flush=True)
        if options.out:
            record = {
                "module": module, "line": mutant.start_pos[0], "operator": mutant.operator_name,
                "occurrence": mutant.occurrence, "tests": len(names), "code": code,
                "seconds": round(time.monotonic() - begun, 1), "diff": diff,
            }  # fmt: skip
            with options.out.open("a") as file:
                file.write(json.dumps(record) + "\n")
    return module, sum(map(len, mutants.values())), len(chosen), len(chosen) - survived, survived


def mutants_of(path: Path) -> dict[tuple[int, int, str], list[MutationSpec]]:
    """Line, column and kind of operator -> the mutants there."""
    spans = list(left_out(ast.parse(path.read_text())))
    found = defaultdict(list)
    with use_db(":memory:") as work:
        init([path], work, {})
        for item in work.work_items:
            (mutant,) = item.mutations
            if not any(first <= tuple(mutant.start_pos) < last for first, last in spans):
                kind = mutant.operator_name.rpartition("/")[2].partition("_")[0]
                found[*mutant.start_pos, kind].append(mutant)
    return found


def left_out(tree: ast.Module) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Where annotations and the options of dataclasses begin and end."""
    for node in ast.walk(tree):
        parts = [getattr(node, name, None) for name in ("annotation", "returns")]
        if isinstance(node, ast.ClassDef):
            parts += [one for one in node.decorator_list if "dataclass" in ast.unparse(one)]
        for part in parts:
            if part is not None:
                yield (part.lineno, part.col_offset), (part.end_lineno, part.end_col_offset)


def covering(path: Path, mutant: MutationSpec, lines: Lines, names: Iterable[str]) -> set[str]:
    """Those of the tests that ran the statement of a mutant; all where it runs at import."""
    first, last = mutant.start_pos[0], mutant.end_pos[0]
    at_import = True
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef):
            at_import &= not node.body[0].lineno <= first <= (node.end_lineno or 0)
            continue
        simple = isinstance(node, ast.stmt) and not hasattr(node, "body")
        if simple and node.lineno <= first and last <= (node.end_lineno or 0):
            first, last = node.lineno, node.end_lineno or last
    found = {name for line in range(first, last + 1) for name in lines.get(str(line), [])}
    return set(names) if at_import else found & set(names)


def measured(modules: Iterable[str], files: list[str], known: Path) -> int:
    """Run the tests; write which of them ran which lines, and how long each took."""

    class Watch:
        def __init__(self) -> None:
            self.seconds: dict[str, float] = {}

        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
            cover.switch_context(item.nodeid)
            begun = time.monotonic()
            result = yield
            self.seconds[item.nodeid] = time.monotonic() - begun
            cover.switch_context("")
            return result

    paths = {module: str(path_of(module)) for module in modules}
    cover = coverage.Coverage(data_file=None, include=list(paths.values()), config_file=False)
    watch = Watch()
    sys.dont_write_bytecode = False  # the tests stay as they are
    cover.start()
    code = int(pytest.main(["-q", "-p", "no:cacheprovider", *files], plugins=[watch]))
    cover.stop()
    data = cover.get_data()
    contexts = {module: data.contexts_by_lineno(path) for module, path in paths.items()}
    known.write_text(json.dumps([contexts, watch.seconds]))
    return code


def tests(names: list[str], seconds: dict[str, float]) -> int:
    """Exit code of pytest: 0 if all of them pass; -9 if they take three times as long."""
    arguments = ["-x", "-q", "-p", "no:cacheprovider", *names]
    limit = 30 + 3 * sum(seconds[name] for name in names)
    return forked(lambda: pytest.main(arguments), round(limit)) if names else 0


def forked(run: Callable[[], Any], timeout: int) -> int:
    """What `run` returns in a silent child of this process; -9 if it takes longer."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 70
        with contextlib.suppress(BaseException):  # whatever happens, the child ends here
            nowhere = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(nowhere, descriptor)
            os.setsid()
            code = int(run())
        os._exit(code)
    for _ in range(timeout * 20):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -signal.SIGKILL


if __name__ == "__main__":
    main()
