"""What a user gets: the wheel, the editable install, and a command line that starts at once."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MAPPED = ("attacks", "defenses", "suites")
PIP = ("-m", "pip", "--disable-pip-version-check", "--quiet")
# Nothing may be fetched: what a build needs is in the running environment.
OFFLINE = ("--no-index", "--no-deps", "--no-build-isolation")
# Folders with modules, as they are imported; attacks/ and the like stand beside leakbench/.
MODULES = (
    *(".".join(p.parent.relative_to(ROOT).parts) for p in ROOT.glob("leakbench/**/__init__.py")),
    *(f"leakbench.{name}" for name in MAPPED),
)
WHERE = (
    "import importlib, json; "
    f"print(json.dumps({{m: importlib.import_module(m).__file__ for m in {MODULES!r}}}))"
)


def run(*args: str | Path, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; a failure shows what it printed."""
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [str(a) for a in args], cwd=cwd, env=clean | env, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{args}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def make_copy(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """Copies of the tree, so that building leaves nothing behind in it."""
    # Top-level names only: leakbench/data/prepare.py, say, must come along.
    left_out = {"build", "dist", "results", "shared"}

    def ignore(folder: str, names: list[str]) -> set[str]:
        skip = {n for n in names if n == "__pycache__" or n.endswith(".egg-info")}
        if Path(folder) == ROOT:
            skip |= {n for n in names if n in left_out or n.startswith(".")}
        return skip

    def copy() -> Path:
        target = tmp_path_factory.mktemp("copy") / "tree"
        shutil.copytree(ROOT, target, ignore=ignore)
        return target

    return copy


@pytest.fixture(scope="module")
def wheel(make_copy: Callable[[], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, *PIP, "wheel", *OFFLINE, "--wheel-dir", out, ".", cwd=make_copy())
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def wheel_names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_wheel_holds_one_top_level_package(wheel_names: set[str]) -> None:
    top = {name.split("/")[0] for name in wheel_names}
    assert {t for t in top if not t.endswith(".dist-info")} == {"leakbench"}
    assert len(top) == 2


@pytest.mark.parametrize(
    ("folder", "inside"),
    [("leakbench", "leakbench"), *((name, f"leakbench/{name}") for name in MAPPED)],
)
def test_wheel_holds_every_module(wheel_names: set[str], folder: str, inside: str) -> None:
    sources = {p.relative_to(ROOT / folder).as_posix() for p in (ROOT / folder).rglob("*.py")}
    assert sources
    assert {f"{inside}/{s}" for s in sources} <= wheel_names


@pytest.mark.parametrize(
    ("folder", "inside", "pattern"),
    [
        ("leakbench", "leakbench", "py.typed"),
        ("leakbench/data/samples", "leakbench/data/samples", "*"),
        ("leakbench/privacy", "leakbench/privacy", "*.csv"),
        ("leakbench/report/templates", "leakbench/report/templates", "*"),
        ("suites", "leakbench/suites", "*.toml"),
    ],
)
def test_wheel_holds_the_data_files(
    wheel_names: set[str], folder: str, inside: str, pattern: str
) -> None:
    files = {p.name for p in (ROOT / folder).glob(pattern) if p.is_file()}
    assert files, f"nothing like {pattern} in {folder}"
    assert {f"{inside}/{f}" for f in files} <= wheel_names


def test_wheel_leaves_nothing_behind(wheel_names: set[str]) -> None:
    """Whatever stands in a package is read by it: a file that is not code is data."""
    folders = {"leakbench": "leakbench"} | {name: f"leakbench/{name}" for name in MAPPED}
    for folder, inside in folders.items():
        files = {
            f"{inside}/{path.relative_to(ROOT / folder).as_posix()}"
            for path in (ROOT / folder).rglob("*")
            if path.is_file() and path.suffix != ".pyc"
        }
        assert files <= wheel_names, sorted(files - wheel_names)


def test_wheel_states_licence_and_version(wheel: Path, wheel_names: set[str]) -> None:
    assert wheel.name.startswith("leakbench-0.1.0-")
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel_names)


def test_wheel_works_where_it_is_installed(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    cwd = tmp_path / "elsewhere"
    cwd.mkdir()
    run(sys.executable, *PIP, "install", *OFFLINE, "--target", site, wheel, cwd=cwd)
    # First on sys.path; the dependencies come from the running environment.
    found = json.loads(run(sys.executable, "-c", WHERE, cwd=cwd, PYTHONPATH=str(site)).stdout)
    for module, file in found.items():
        assert Path(file) == site.joinpath(*module.split(".")) / "__init__.py"
    version = run(
        sys.executable,
        "-c",
        "import leakbench; print(leakbench.__version__)",
        cwd=cwd,
        PYTHONPATH=str(site),
    )
    assert version.stdout.strip() == "0.1.0"


def test_editable_install_sees_new_files(make_copy: Callable[[], Path], tmp_path: Path) -> None:
    tree = make_copy()
    cwd = tmp_path / "elsewhere"
    cwd.mkdir()
    # The new environment borrows pip, setuptools and the dependencies through a .pth file.
    # Python does not process .pth files found that way, so an editable leakbench of the running
    # environment stays out.
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv", cwd=cwd)
    python = tmp_path / "venv" / "bin" / "python"
    purelib = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(run(python, "-c", purelib, cwd=cwd).stdout.strip())
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    # --ignore-installed: never touch an installation outside the new environment.
    run(python, *PIP, "install", *OFFLINE, "--ignore-installed", "--editable", tree, cwd=cwd)

    found = json.loads(run(python, "-c", WHERE, cwd=cwd).stdout)
    assert Path(found["leakbench"]) == tree / "leakbench" / "__init__.py"
    for name in MAPPED:
        assert Path(found[f"leakbench.{name}"]) == tree / name / "__init__.py"

    (tree / "attacks" / "just_written.py").write_text("ANSWER = 42\n")
    line = "from leakbench.attacks import just_written; print(just_written.ANSWER)"
    assert run(python, "-c", line, cwd=cwd).stdout.strip() == "42"


def command() -> Path:
    return Path(sysconfig.get_path("scripts")) / "leakbench"


@pytest.mark.parametrize("args", [("--help",), ("list",)], ids=" ".join)
def test_command_line_starts_without_torch(args: tuple[str, ...], tmp_path: Path) -> None:
    done = run(sys.executable, "-X", "importtime", command(), *args, cwd=tmp_path)
    lines = [x for x in done.stderr.splitlines() if x.startswith("import time:")]
    imported = {x.rsplit("|", 1)[1].strip().partition(".")[0] for x in lines}
    assert "leakbench" in imported
    assert not imported & {"torch", "torchvision", "scipy", "pandas", "matplotlib"}


def test_help_starts_in_a_fraction_of_the_time_torch_takes(tmp_path: Path) -> None:
    """The promise is half a second; on a busy machine only the ratio is worth a test."""

    def seconds(*words: str) -> float:
        start = time.perf_counter()
        run(*words, cwd=tmp_path)
        return time.perf_counter() - start

    own = min(seconds(command(), "--help") for _ in range(3))
    assert own < seconds(sys.executable, "-c", "import torch") / 4


def test_no_plugin_is_loaded_twice() -> None:
    """From the repository root `import attacks` would work too, and make a second copy."""
    script = """
import sys
from leakbench import registry
for kind in ("attacks", "defenses"):
    found = registry.discover(kind)
    assert found, kind
    for info in found:
        registry.load(kind, info.name)
print(sorted({"attacks", "defenses", "suites"} & set(sys.modules)))
"""
    assert run(sys.executable, "-c", script, cwd=ROOT).stdout.strip() == "[]"
