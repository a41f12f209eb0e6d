"""Plugins from a folder and from other distributions: found, run, and listed when broken."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import leakbench.attacks
from leakbench import identity, plugin_files, registry
from leakbench.commands import application
from leakbench.errors import LeakbenchError

ROOT = Path(__file__).resolve().parents[1]

TINY = """
schema = 1
name = "tiny"
title = "A tiny suite"
paper = "none"
source = "written for a test"
version = 1
seed = 7
datasets = ["mnist"]
model = { name = "cnn2" }
training = { batch_size = { mnist = 4 } }
attack = { name = "cpl", parameters = { steps = 1 } }
knowledge = { naive = {} }
defenses = [{ id = "none", name = "none", label = "none" }]
rules = [{ name = "strict", label = "strict", kind = "strict", threshold = 0.01 }]
profiles = { quick = { networks = 1, victims = 1 } }
"""

ATTACK = '''
"""An attack of a test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from leakbench.contracts import Attack, Leak, Reconstruction, Streams, Watch


@dataclass(frozen=True, slots=True, kw_only=True)
class Gray(Attack):
    """Says gray."""

    name: ClassVar[str] = "{name}"
    level: float = 0.5

    def reconstruct(self, leak: Leak, streams: Streams, watch: Watch) -> Reconstruction:
        gray = torch.full((leak.n, leak.batch_size, *leak.input_shape), self.level)
        nothing = torch.full((leak.n,), torch.nan)
        zeros = torch.zeros(leak.n, dtype=torch.int64)
        return Reconstruction(
            inputs=gray, labels=zeros[:, None], loss=nothing, start_inputs=gray,
            start_loss=nothing, steps=zeros, evaluations=zeros, status=("converged",) * leak.n,
        )
'''

DEFENSE = '''
"""A defense of a test."""

from dataclasses import dataclass
from typing import ClassVar

from leakbench.contracts import Defense
{imports}


@dataclass(frozen=True, slots=True, kw_only=True)
class Half(Defense):
    """Halves gradients."""

    name: ClassVar[str] = "{name}"

    def on_examples(self, gradients, state, context):
        return gradients.map(lambda name, value: value / 2), state
'''

# Runs the command line, then says which modules it loaded under a plugin folder's bare name.
WATCHED = """
import atexit, sys
def tell():
    print("second copies:", sorted({"attacks", "defenses", "suites"} & set(sys.modules)),
          file=sys.stderr)
atexit.register(tell)
from leakbench.cli import main
sys.argv = ["leakbench", *sys.argv[1:]]
main()
"""


def command(*args: str | Path, cwd: Path, path: Path | None = None) -> tuple[int, str, str]:
    """Exit code, output and errors of the command line, with `path` first on sys.path."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "LEAKBENCH_DATA")}
    environment |= {"OMP_NUM_THREADS": "1"} | ({"PYTHONPATH": str(path)} if path else {})
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, *map(str, args)],
        cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    assert "second copies: []" in done.stderr
    return done.returncode, done.stdout, done.stderr


def listed(kind: str, cwd: Path, path: Path | None, *more: str) -> dict[str, list[dict[str, Any]]]:
    """Name -> rows of `leakbench list KIND --json`."""
    code, out, errors = command("list", kind, "--json", *more, cwd=cwd, path=path)
    assert code == (1 if more and '"broken"' in out else 0), errors
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in json.loads(out)[kind]:
        assert set(row) == {"name", "origin", "status", "reason", "summary"}
        rows.setdefault(row["name"], []).append(row)
    return rows


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the tree as it is installed: plugin folders inside of the package."""
    site = tmp_path / "site"
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "leakbench", site / "leakbench", ignore=ignore)
    for name in ("attacks", "defenses", "suites"):
        shutil.copytree(ROOT / name, site / "leakbench" / name, ignore=ignore)
    return site


@pytest.fixture
def distribution(tmp_path: Path) -> Path:
    """A folder with an installed distribution that brings an attack and a defense."""
    site = tmp_path / "other"
    package = site / "otherpkg"
    package.mkdir(parents=True)
    # Listing must not run this; loading a plugin does.
    (package / "__init__.py").write_text("import torch\n")
    (package / "gray.py").write_text(ATTACK.format(name="mine"))
    helper = "from otherpkg import helper  # noqa: F401"
    (package / "half.py").write_text(DEFENSE.format(name="mydefense", imports=helper))
    (package / "helper.py").write_text("FACTOR = 1\n")
    register(site, "otherpkg.gray", "otherpkg.half")
    return site


def register(site: Path, attacks: str, defenses: str) -> None:
    """Write what pip would write about a distribution."""
    info = site / "Other_Package-1.2.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: Other-Package\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(
        f"[leakbench.attacks]\ngiven = {attacks}\n[leakbench.defenses]\ngiven = {defenses}\n"
    )


def check_it_runs(tmp_path: Path, path: Path) -> None:
    """`mine` against `mydefense` in a suite that knows neither."""
    suite = tmp_path / "tiny.toml"
    suite.write_text(TINY)
    code, _, errors = command(
        "run", suite, "--attack", "mine", "--defense", "mydefense", "--out", tmp_path / "run",
        "--device", "cpu", "--workers", "1", cwd=tmp_path, path=path,
    )  # fmt: skip
    assert code == 0, errors
    (line,) = (tmp_path / "run" / "records.jsonl").read_text().splitlines()
    record = json.loads(line)
    assert (record["attack"], record["row"]) == ("mine", "mydefense")
    assert record["status"] == "ok" and record["reason"] == ""


# ------------------------------------------------------------------------------ what is right


def test_files_dropped_into_the_folders_are_there(tree: Path, tmp_path: Path) -> None:
    (tree / "leakbench" / "attacks" / "gray.py").write_text(ATTACK.format(name="mine"))
    text = DEFENSE.format(name="mydefense", imports="")
    (tree / "leakbench" / "defenses" / "half.py").write_text(text)
    (row,) = listed("attacks", tmp_path, tree)["mine"]
    assert row["status"] == "ok"
    assert row["origin"] == "leakbench (gray.py)"
    assert row["summary"] == "Says gray."
    (row,) = listed("defenses", tmp_path, tree)["mydefense"]
    assert row["status"] == "ok" and row["summary"] == "Halves gradients."
    check_it_runs(tmp_path, tree)


def test_an_installed_distribution_is_there(distribution: Path, tmp_path: Path) -> None:
    for kind, name in (("attacks", "mine"), ("defenses", "mydefense")):
        rows = listed(kind, tmp_path, distribution)
        (row,) = rows[name]
        assert row["status"] == "ok", row["reason"]
        assert row["origin"] == "Other-Package 1.2"
        assert set(rows) > {name}
    check_it_runs(tmp_path, distribution)


def test_listing_runs_no_code_of_a_plugin(distribution: Path, tmp_path: Path) -> None:
    package = distribution / "otherpkg"
    for file in package.iterdir():
        file.write_text(file.read_text() + f"\nopen({str(tmp_path / 'was-run')!r}, 'w').close()\n")
    assert listed("attacks", tmp_path, distribution)["mine"][0]["status"] == "ok"
    assert listed("defenses", tmp_path, distribution)["mydefense"][0]["status"] == "ok"
    assert not (tmp_path / "was-run").exists()


def test_from_the_repository_root_no_second_copy_is_loaded(tmp_path: Path) -> None:
    """There `import attacks` would work; every call of `command` here checks that none did."""
    assert (ROOT / "attacks").is_dir()
    suite = tmp_path / "tiny.toml"
    suite.write_text(TINY)
    code, _, errors = command("validate", suite, "--device", "cpu", cwd=ROOT)
    assert code == 0, errors
    assert "cpl" in listed("attacks", ROOT, None)


def test_every_module_of_a_plugins_package_counts(distribution: Path) -> None:
    path = distribution / "otherpkg" / "half.py"
    before = identity.source_digest((path,))
    (distribution / "otherpkg" / "helper.py").write_text("FACTOR = 2\n")
    identity.source_digest.cache_clear()
    assert identity.source_digest((path,)) != before


# ------------------------------------------------------------------------------ what is broken

BROKEN = {
    "syntax": ("def broken(:\n", "SyntaxError"),
    "not_text": ("\x00\x00", ""),
    "missing_import": ("import no_such_package\n" + ATTACK.format(name="lost"), "no_such_package"),
    "no_class": ("ANSWER = 42\n", "no class with a literal name"),
    "no_name": (ATTACK.replace('"{name}"', "str(3)"), "no class with a literal name"),
    "empty": ("", "no class with a literal name"),
    "deep": ("x = " + "-" * 100_000 + "1\n", ""),
}


def test_broken_files_are_listed_with_the_reason_and_hide_nothing(
    tree: Path, tmp_path: Path
) -> None:
    folder = tree / "leakbench" / "attacks"
    before = listed("attacks", tmp_path, tree)
    for stem, (text, _) in BROKEN.items():
        (folder / f"{stem}.py").write_text(text)
    (folder / "folder.py").mkdir()
    (folder / "dangling.py").symlink_to("nowhere.py")
    (folder / "_private.py").write_text("def broken(:\n")
    rows = listed("attacks", tmp_path, tree)
    assert {name: rows[name] for name in before} == before
    names = {"missing_import": "lost"}
    for stem, (_, words) in BROKEN.items():
        (row,) = rows[names.get(stem, stem)]
        assert row["status"] == "broken", stem
        assert row["reason"] and "\n" not in row["reason"]
        assert words in row["reason"], stem
    assert rows["folder"][0]["status"] == rows["dangling"][0]["status"] == "broken"
    assert "_private" not in rows
    code, _, errors = command("doctor", cwd=tmp_path, path=tree)
    assert code == 1, errors


def test_a_broken_plugin_that_is_asked_for_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process, with one folder more to find attacks in."""
    folder = tmp_path / "attacks"
    folder.mkdir()
    monkeypatch.setattr(leakbench.attacks, "__path__", [*leakbench.attacks.__path__, str(folder)])
    (folder / "syntax.py").write_text("def broken(:\n")
    (folder / "raises.py").write_text(ATTACK.format(name="raises") + "\n1 / 0\n")
    (folder / "plain.py").write_text('class Plain:\n    name = "plain"\n')
    (folder / "quits.py").write_text(ATTACK.format(name="quits") + "\nraise SystemExit(0)\n")
    suite = tmp_path / "tiny.toml"
    suite.write_text(TINY)
    loaded = set(sys.modules)
    for name, words in (
        ("syntax", "SyntaxError"),
        ("raises", "import failed: ZeroDivisionError"),
        ("plain", "class Plain is not a dataclass"),
        ("quits", "import failed: SystemExit"),
    ):
        with pytest.raises(LeakbenchError) as told:
            CliRunner().invoke(
                application.app, ["validate", str(suite), "--attack", name], catch_exceptions=False
            )
        assert name in str(told.value) and words in str(told.value)
        assert "\n" not in str(told.value)
    for name in {f"leakbench.attacks.{path.stem}" for path in folder.iterdir()} - loaded:
        sys.modules.pop(name, None)


def test_a_file_cannot_take_the_name_of_another_one(tree: Path, tmp_path: Path) -> None:
    (tree / "leakbench" / "attacks" / "aaa.py").write_text(ATTACK.format(name="cpl"))
    rows = {row["origin"]: row for row in listed("attacks", tmp_path, tree)["cpl"]}
    assert rows["leakbench (cpl.py)"]["status"] == "ok"
    assert rows["leakbench (aaa.py)"]["status"] == "broken"


@pytest.mark.slow
def test_check_finds_what_only_an_import_shows(tree: Path, tmp_path: Path) -> None:
    pytest.importorskip("leakbench.testing")
    folder = tree / "leakbench" / "defenses"
    for path in folder.glob("[!_]*.py"):
        if path.stem != "none":
            path.unlink()  # checking them takes seconds and is done elsewhere
    (folder / "raises.py").write_text(DEFENSE.format(name="raises", imports="1 / 0"))
    rows = listed("defenses", tmp_path, tree, "--check")
    assert rows["raises"][0]["status"] == "broken"
    assert "ZeroDivisionError" in rows["raises"][0]["reason"]
    assert rows["none"][0]["status"] == "ok", rows["none"][0]["reason"]


def test_a_built_in_keeps_its_name(distribution: Path, tmp_path: Path) -> None:
    (distribution / "otherpkg" / "gray.py").write_text(ATTACK.format(name="cpl"))
    first, second = sorted(
        listed("attacks", tmp_path, distribution)["cpl"], key=lambda row: str(row["status"])
    )
    assert (first["status"], first["origin"]) == ("broken", "Other-Package 1.2")
    assert first["reason"] == "the name 'cpl' is taken by leakbench (cpl.py)"
    assert (second["status"], second["origin"]) == ("ok", "leakbench (cpl.py)")


def test_of_two_files_with_one_name_one_is_broken(tree: Path, tmp_path: Path) -> None:
    folder = tree / "leakbench" / "attacks"
    (folder / "zzz.py").write_text(ATTACK.format(name="cpl"))
    rows = listed("attacks", tmp_path, tree)["cpl"]
    assert sorted(row["status"] for row in rows) == ["broken", "ok"]


@pytest.mark.parametrize(
    "value",
    [
        "otherpkg.nothing", "nopkg.gray", "otherpkg", "otherpkg.gray.deeper", "not a module!!",
        "otherpkg:gray", "otherpkg.gray:Gray.name", ".gray", "os", "torch", "__main__",
        "raising.gray", "otherpkg.gray [extra]",
    ],
)  # fmt: skip
def test_entry_points_that_point_nowhere_hide_nothing(
    distribution: Path, tmp_path: Path, value: str
) -> None:
    (distribution / "raising").mkdir()
    (distribution / "raising" / "__init__.py").write_text("1 / 0\n")
    register(distribution, value, "otherpkg.half")
    rows = listed("attacks", tmp_path, distribution)
    assert "cpl" in rows
    foreign = [row for found in rows.values() for row in found if "Other" in row["origin"]]
    assert len(foreign) == 1
    points_at_it = "otherpkg.gray" in value and "deeper" not in value
    assert foreign[0]["status"] == ("ok" if points_at_it else "broken")
    assert bool(foreign[0]["reason"]) is not points_at_it


# ------------------------------------------------------------------------------ in this process


def test_all_that_is_shipped_is_usable() -> None:
    for kind in ("attacks", "defenses"):
        for plugin in registry.discover(kind):  # type: ignore[arg-type]
            assert plugin.status == "ok", plugin.reason
            assert registry.load(kind, plugin.name).name == plugin.name  # type: ignore[arg-type, attr-defined]
            assert plugin.summary


@pytest.mark.parametrize("module", ["", ".", "no_such", "json.no_such", "json.decoder.deep", "sys"])
def test_modules_that_have_no_file(module: str) -> None:
    assert plugin_files.locate(module) is None


def test_modules_are_located_without_running_their_package() -> None:
    path = plugin_files.locate("json.tool")
    assert path is not None and path.name == "tool.py"
    assert plugin_files.locate("leakbench.attacks.cpl") is not None
