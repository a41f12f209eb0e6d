"""The command line as a user meets it: exit codes, one line of reason, strict JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

READING = """[[rules]]
name = "reading"
label = "mean, raw"
kind = "mse"
threshold = 0.7
clamp = false
paper = true

"""
TINY = Path(__file__).with_name("tiny.toml").read_text(encoding="utf-8")
TINY = TINY.replace("[[rules]]", READING + "[[rules]]")


Command = Callable[..., Any]


@pytest.fixture
def refused(leakbench: Command) -> Callable[..., str]:
    """The one sentence of a command that ends with code 2."""

    def call(*args: str | Path, cwd: Path, by: Command = leakbench, **env: str) -> str:
        done = by(*args, cwd=cwd, **env)
        assert done.code == 2, (done.code, done.errors)
        assert done.out == ""
        (line,) = done.errors.splitlines()
        assert line.startswith("leakbench: ")
        return str(line)

    return call


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """The tiny suite."""
    path = tmp_path / "tiny.toml"
    path.write_text(TINY, encoding="utf-8")
    return path


@dataclass(frozen=True)
class Made:
    """A finished run, and where commands about it are given."""

    cwd: Path
    folder: Path
    done: Any


@pytest.fixture(scope="module")
def made(process: Command, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A run of the tiny suite by the command line."""
    cwd = tmp_path_factory.mktemp("made")
    (cwd / "tiny.toml").write_text(TINY, encoding="utf-8")
    done = process("run", "tiny.toml", "--device", "cpu", "--workers", "1", cwd=cwd)
    assert done.code == 0, done.errors
    return Made(cwd, cwd / "results" / "runs" / "tiny-quick", done)


# ------------------------------------------------------------------------------ what is there

COMMANDS = ["", "list", "run", "queue", "cloak", "validate", "report", "gallery", "account",
            "doctor", "data", "data list", "data prepare"]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(leakbench: Command, command: str, tmp_path: Path) -> None:
    done = leakbench(*command.split(), "--help", cwd=tmp_path)
    assert done.code == 0 and done.errors == ""
    assert "Usage:" in done.out
    assert not list(tmp_path.iterdir())


def test_a_process_of_its_own_says_the_same(
    process: Command, leakbench: Command, suite: Path
) -> None:
    """The other tests of this file run most commands inside their own process."""
    for args in (("list", "models"), ("validate", "tiny.toml", "--profile", "quik")):
        assert process(*args, cwd=suite.parent) == leakbench(*args, cwd=suite.parent)


def test_list_json_has_one_shape(leakbench: Command, tmp_path: Path) -> None:
    listed = json.loads(leakbench("list", "--json", cwd=tmp_path).out)
    assert list(listed) == ["attacks", "defenses", "datasets", "models", "suites", "accountants"]
    for rows in listed.values():
        assert rows
        for row in rows:
            assert set(row) == {"name", "origin", "status", "reason", "summary"}
            assert all(isinstance(value, str) for value in row.values())
    status = {row["name"]: row["status"] for row in listed["datasets"]}
    assert status == {
        "mnist": "embedded sample",
        "fashion_mnist": "embedded sample",
        "cifar10": "embedded sample",
        "lfw": "missing",
        "breast_cancer": "embedded sample",
        "adult": "missing",
        "cifar100": "missing",
        "mnist_60000": "missing",
        "location30": "missing",
        "purchase100": "missing",
    }
    assert {"cpl", "dlg"} <= {row["name"] for row in listed["attacks"]}
    assert {"none", "dp_baseline"} <= {row["name"] for row in listed["defenses"]}
    assert "tifs_table3" in {row["name"] for row in listed["suites"]}
    assert {row["status"] for row in listed["suites"]} == {"ok"}


@pytest.mark.parametrize(
    "kind", ["attacks", "defenses", "datasets", "models", "suites", "accountants"]
)
def test_list_of_one_kind_lists_that_kind(leakbench: Command, kind: str, tmp_path: Path) -> None:
    assert list(json.loads(leakbench("list", kind, "--json", cwd=tmp_path).out)) == [kind]
    text = leakbench("list", kind, cwd=tmp_path).out
    assert text.startswith(f"{kind}:\n")


def test_data_list_names_what_is_missing(leakbench: Command, tmp_path: Path) -> None:
    rows = json.loads(leakbench("data", "list", "--json", cwd=tmp_path).out)
    assert {row["name"] for row in rows} == {
        "mnist", "fashion_mnist", "cifar10", "lfw", "breast_cancer", "adult",
        "cifar100", "location30", "mnist_60000", "purchase100",
    }  # fmt: skip
    assert "get it: leakbench data prepare" in leakbench("data", "list", cwd=tmp_path).out


def test_validate_tells_and_runs_nothing(leakbench: Command, tmp_path: Path) -> None:
    done = leakbench("validate", "tifs_table3", "--device", "cpu", cwd=tmp_path)
    assert done.code == 0, done.errors
    assert "lfw: 7 rows x 2 attackers x 2 networks x 8 victims skipped" in done.out
    assert "62 cells" in done.out
    assert not list(tmp_path.iterdir())


def test_doctor_reports(leakbench: Command, tmp_path: Path) -> None:
    done = leakbench("doctor", cwd=tmp_path)
    assert done.code == 0, done.errors
    for word in ("python", "torch", "cuda", "lpips", "data root", "lfw"):
        assert word in done.out


# ------------------------------------------------------------------------------ bad input

BAD: dict[str, tuple[Callable[[str], str], tuple[str, ...]]] = {
    "unknown attack": (lambda t: t.replace('"cpl"', '"clp"'), ("attack.name", "'cpl'")),
    "unknown defense": (lambda t: t.replace("dp_baseline", "dp_bas"), ("defenses.name", "allowed")),
    "unknown data set": (lambda t: t.replace('["mnist"]', '["mnits"]'), ("datasets", "'mnist'")),
    "unknown model": (lambda t: t.replace("cnn2", "cnn4"), ("model.name", "cnn2")),
    "unknown rule": (lambda t: t.replace('"mse"', '"msee"'), ("rules.0.kind", "'distance'")),
    "misspelt key": (lambda t: t.replace("title", "titel"), ("'titel'", "'title'")),
    "misspelt deep key": (lambda t: t.replace("victims", "victim"), ("'victim'", "'victims'")),
    "text for a number": (lambda t: t.replace("= 2\n", '= "2"\n'), ("victims", "integer")),
    "float for an int": (lambda t: t.replace("= 2\n", "= 2.0\n"), ("victims", "integer")),
    "bool for an int": (lambda t: t.replace("= 2\n", "= true\n"), ("victims", "integer")),
    "no victims": (lambda t: t.replace("= 2\n", "= 0\n"), ("victims", "greater than 0")),
    "negative steps": (lambda t: t.replace("steps = 2", "steps = -1"), ("steps", "at least 1")),
    "no data sets": (lambda t: t.replace('["mnist"]', "[]"), ("datasets", "at least 1")),
    "no profiles": (lambda t: t[: t.index("[profiles")], ("profiles", "missing")),
    "twice one id": (lambda t: t.replace('id = "dp"', 'id = "none"'), ("defenses.id", "twice")),
    "no TOML": (lambda t: t + "[", ("not valid TOML",)),
    "empty": (lambda t: "", ("empty",)),
    "unknown parameter": (lambda t: t.replace("clip", "klip"), ("'klip'", "'clip'")),
    "wrong parameter": (lambda t: t.replace("4.0", '"4"'), ("clip", "number")),
    "no such choice": (lambda t: t.replace('"mean"', '"median"'), ("convention", "'mean'")),
    "no number": (lambda t: t.replace('asr = "1"', 'asr = "all"'), ("printed.asr", "number")),
}


@pytest.mark.parametrize(("change", "words"), BAD.values(), ids=BAD)
def test_bad_suites_end_with_one_sentence(
    refused: Callable[..., str], suite: Path, change: Callable[[str], str], words: tuple[str, ...]
) -> None:
    text = change(TINY)
    assert text != TINY
    suite.write_text(text, encoding="utf-8")
    line = refused("validate", "tiny.toml", cwd=suite.parent)
    assert "tiny.toml" in line
    for word in words:
        assert word in line


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("validate", "tifs_tabel3"), "did you mean 'tifs_table3'?"),
        (("validate", "missing.toml"), "No such file"),
        (("validate", "folder.toml"), "Is a directory"),
        (("validate", "binary.toml"), "UTF-8"),
        (("validate", "tiny.toml", "--profile", "quik"), "did you mean 'quick'?"),
        (("validate", "tiny.toml", "--attack", "clp"), "did you mean 'cpl'?"),
        (("validate", "tiny.toml", "--defense", "dp_base"), "did you mean 'dp_baseline'?"),
        (("validate", "tiny.toml", "--set", "nonsense"), "key.path=value"),
        (("validate", "tiny.toml", "--set", "a.b=1"), "unknown key 'a'"),
        (("validate", "tiny.toml", "--set", "defenses.9.label=x"), "no table '9'"),
        (("run", "tiny.toml", "--set", "profiles.quick.victims=2000"), "1000 candidates of mnist"),
        (("report", "nowhere"), "no run there"),
        (("report", "tiny.toml"), "no run there"),
        (("gallery", "nowhere"), "no run there"),
        (("report", "x" * 300), "no run there"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, tuple) else "",
)
def test_bad_arguments_end_with_one_sentence(
    refused: Callable[..., str], suite: Path, args: tuple[str, ...], words: str
) -> None:
    (suite.parent / "folder.toml").mkdir()
    (suite.parent / "binary.toml").write_bytes(bytes(range(256)))
    assert words in refused(*args, cwd=suite.parent)


@pytest.mark.parametrize(
    "args",
    [
        ("nonsense",),
        ("run",),
        ("run", "tiny.toml", "--device", "tpu"),
        ("run", "tiny.toml", "--workers", "-1"),
        ("run", "tiny.toml", "--chunk", "0"),
        ("run", "tiny.toml", "--chunk", "many"),
        ("run", "tiny.toml", "--no-such-option"),
        ("list", "nonsense"),
        ("report", "nowhere", "--format", "pdf"),
    ],
    ids=" ".join,
)
def test_misused_options_end_with_code_2(
    leakbench: Command, suite: Path, args: tuple[str, ...]
) -> None:
    done = leakbench(*args, cwd=suite.parent)
    assert done.code == 2
    assert done.out == "" and done.errors


@pytest.mark.parametrize("out", ["file", "file/run", "/proc/no/run"])
def test_folders_that_cannot_be_written_end_with_one_sentence(
    refused: Callable[..., str], suite: Path, out: str
) -> None:
    (suite.parent / "file").write_text("")
    line = refused("run", "tiny.toml", "--device", "cpu", "--out", out, cwd=suite.parent)
    assert f"{out}: not writable: " in line


def test_cuda_without_a_device_is_refused(
    process: Command, refused: Callable[..., str], suite: Path
) -> None:
    line = refused(
        "validate", "tiny.toml", "--device", "cuda", cwd=suite.parent, by=process,
        CUDA_VISIBLE_DEVICES="",
    )  # fmt: skip
    assert "allowed here: cpu, auto" in line


def test_a_data_root_that_is_none_is_refused(refused: Callable[..., str], suite: Path) -> None:
    for command in (("list",), ("data", "list"), ("validate", "tiny.toml")):
        line = refused(*command, cwd=suite.parent, LEAKBENCH_DATA="no/such/folder")
        assert "LEAKBENCH_DATA" in line and "no/such/folder" in line


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04garbage", b"\x80\x04pickle"], ids=repr)
def test_a_damaged_data_file_is_named(
    refused: Callable[..., str], suite: Path, content: bytes
) -> None:
    (suite.parent / "lfw.npz").write_bytes(content)
    line = refused(
        "validate", "tiny.toml", "--set", 'datasets=["lfw"]', "--set", "training.batch_size.lfw=4",
        cwd=suite.parent, LEAKBENCH_DATA=str(suite.parent),
    )  # fmt: skip
    assert "lfw.npz" in line


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_output_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    for args in (["list"], ["list", "models"], ["--help"]):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [sys.executable, "-m", "leakbench.cli", *args],
                stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path, check=False,
            )  # fmt: skip
        assert done.returncode == 2
        assert done.stderr == "leakbench: [Errno 28] No space left on device\n"


def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "leakbench.cli", "list", "models"],
        stdout=write, stderr=subprocess.PIPE, text=True, cwd=tmp_path, check=False,
    )  # fmt: skip
    os.close(write)
    assert done.stderr == ""
    assert done.returncode in (0, 1)


def test_closed_outputs_are_no_traceback(tmp_path: Path) -> None:
    words = f"{sys.executable} -m leakbench.cli"
    for command, code in (("list models", 0), ("run nowhere.toml", 2)):
        for closed in (">&-", "2>&-", ">&- 2>&- <&-"):
            done = subprocess.run(
                f"{words} {command} {closed}",
                shell=True, cwd=tmp_path, capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert done.returncode == code, (command, closed)
            assert "Traceback" not in done.stderr
            assert bool(done.stdout) == (closed == "2>&-" and code == 0)


# ------------------------------------------------------------------------------ runs and reports


def test_a_run_prints_its_table_and_says_what_it_did(made: Made) -> None:
    assert "- Recovered: none (" in made.done.out and "none  " in made.done.out
    assert "4 trials planned: 0 were there, 4 run now, 0 skipped, 0 in error" in made.done.errors
    for name in ("report.md", "report.csv", "report.html", "report.json", "records.jsonl"):
        assert (made.folder / name).stat().st_size > 0
    assert all(len(line) <= 100 for line in made.done.out.splitlines())
    assert "| none" in (made.folder / "report.md").read_text()


def test_a_second_run_runs_nothing(leakbench: Command, made: Made) -> None:
    before = (made.folder / "records.jsonl").read_bytes()
    done = leakbench("run", "tiny.toml", "--device", "cpu", "--workers", "1", cwd=made.cwd)
    assert done.code == 0
    assert "4 were there, 0 run now" in done.errors
    assert (made.folder / "records.jsonl").read_bytes() == before


CELL_KEYS = {
    "dataset", "model", "defense", "attack", "knowledge", "leak", "convention", "planned", "ok",
    "nan", "diverged", "oom", "timeout", "skipped", "error", "asr", "mse", "steps", "evaluations",
    "printed", "verdict", "flags",
}  # fmt: skip


def check_report(text: str) -> None:
    """Strict JSON with what other programs rely on."""
    report = json.loads(text, parse_constant=pytest.fail)
    assert {"suite", "profile", "cells"} <= set(report)
    assert (report["suite"], report["profile"]) == ("tiny", "quick")
    assert len(report["cells"]) == 2
    for cell in report["cells"]:
        assert set(cell) >= CELL_KEYS
        statuses = ("ok", "nan", "diverged", "oom", "timeout", "skipped", "error")
        assert cell["planned"] == 2 == sum(cell[status] for status in statuses)
        assert {"reading", "strict"} <= set(cell["asr"])
        assert isinstance(cell["flags"], list)
    none, dp = report["cells"]
    assert (none["defense"], none["convention"]) == ("none", None)
    assert (dp["defense"], dp["convention"]) == ("dp", "mean")
    assert none["printed"] == {"asr": "1", "mse": "1.5e-05", "attack_iterations": "11.5"}
    assert none["verdict"]["asr"]["reading"] in ("reproduced", "not reproduced", "inconclusive")
    assert dp["printed"] == {} and dp["verdict"] == {}


def test_report_json_is_strict_and_has_the_promised_keys(leakbench: Command, made: Made) -> None:
    done = leakbench("report", "tiny-quick", "--format", "json", cwd=made.cwd)
    assert done.code == 0 and done.errors == ""
    check_report(done.out)
    check_report((made.folder / "report.json").read_text())


def test_a_report_goes_to_a_file(leakbench: Command, made: Made) -> None:
    for name, *more in (
        ("copy.csv",), ("copy.md", "--full"), ("copy.html",), ("copy.JSON", "--format", "json"),
    ):  # fmt: skip
        done = leakbench("report", made.folder, *more, "--out", name, cwd=made.cwd)
        assert (done.code, done.out, done.errors) == (0, "", "")
        of_run = made.folder / f"report{Path(name).suffix.lower()}"
        assert (made.cwd / name).read_text() == of_run.read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("page.html", "--format", "md"), "its ending and --format md contradict each other"),
        (("page.html", "--full"), "its ending and --full contradict each other"),
        (("page.pdf",), "a report is written as .md, .csv, .html, .json, not as '.pdf'"),
        (("page", "--format", "md"), "not as ''"),
    ],
)
def test_the_ending_of_a_file_says_the_format(
    refused: Callable[..., str], tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    name, *more = arguments
    run = Path(__file__).parent.parent / "results" / "tifs_table3-quick"
    assert words in refused("report", run, "--out", name, *more, cwd=tmp_path)
    assert not (tmp_path / name).exists()


@pytest.mark.slow
def test_every_format_is_what_the_run_wrote(leakbench: Command, made: Made) -> None:
    for form in ("md", "html", "csv", "json"):
        done = leakbench("report", made.folder, "--format", form, cwd=made.cwd)
        assert done.code == 0
        assert done.out == (made.folder / f"report.{form}").read_text()


@pytest.mark.slow
def test_files_that_cannot_be_written_end_with_one_sentence(
    refused: Callable[..., str], made: Made
) -> None:
    line = refused("report", made.folder, "--out", "tiny.toml/report.md", cwd=made.cwd)
    assert "tiny.toml/report.md: cannot write: Not a directory" in line
    line = refused("gallery", "tiny-quick", "--out", "tiny.toml/x.png", cwd=made.cwd)
    assert "cannot write" in line


def test_gallery_draws_a_picture_and_puts_it_into_the_page(leakbench: Command, made: Made) -> None:
    page = made.folder / "report.html"
    assert "What the attacker got" not in page.read_text()
    done = leakbench("gallery", "tiny-quick", cwd=made.cwd)
    assert done.code == 0, done.errors
    assert (made.folder / "gallery.png").read_bytes().startswith(b"\x89PNG")
    assert "What the attacker got" in page.read_text()


def test_a_gallery_is_asked_for_by_options(
    leakbench: Command, refused: Callable[..., str], made: Made, tmp_path: Path
) -> None:
    out = tmp_path / "narrow.png"
    done = leakbench("gallery", made.folder, "--ids", "0", "--columns", "1", "--out", out)
    assert done.code == 0, done.errors
    with Image.open(out) as picture:
        assert picture.width <= 500
    for arguments, words in (
        (("--pick", "ids"), "--pick ids needs --ids"),
        (("--pick", "best", "--ids", "0"), "--ids goes with --pick ids, not with --pick best"),
        (("--ids", "0,x"), "--ids '0,x': must be numbers"),
        (("--ids", "99"), "no trial of victim 99; there are trials of 0"),
    ):
        assert words in refused("gallery", made.folder, *arguments, cwd=made.cwd), arguments


def test_a_damaged_run_is_one_sentence(
    refused: Callable[..., str], made: Made, tmp_path: Path
) -> None:
    import shutil

    for file, content, words in (
        ("manifests/x.json", b'{"number": 9999, "started": "9999"}', "manifest"),
        (
            "manifests/x.json",
            b'{"number": 9999, "started": "9999", "suite": 5, "profile": [], "attack": null,'
            b' "defense": null, "settings": 3, "device": "cpu",'
            b' "arithmetic": 1, "torch": "2", "unit": null}',
            "manifest is damaged",
        ),
    ):
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        shutil.copytree(made.folder, tmp_path / "run")
        (tmp_path / "run" / file).write_bytes(content)
        assert words in refused("report", tmp_path / "run", cwd=made.cwd)


def test_what_is_damaged_is_said_on_top_of_what_is_left(
    leakbench: Callable[..., Any], made: Made, tmp_path: Path
) -> None:
    """By every command that reads, exit code 1; the numbers are those of the other trials."""
    import shutil

    shutil.copytree(made.folder, tmp_path / "run")
    path = tmp_path / "run" / "records.jsonl"
    first, *rest = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([first.replace(b'"network":0', b'"network":1'), *rest]))
    (tmp_path / "run" / "manifests" / "0123456789abcdef.json").write_bytes(b"{")
    words = "a damaged line (line 1, of mnist/", "0123456789abcdef.json"
    for arguments in (
        (), ("--full",), ("--format", "json"), ("--format", "html"), ("--format", "csv")
    ):  # fmt: skip
        done = leakbench("report", tmp_path / "run", *arguments, cwd=made.cwd)
        assert done.code == 1 and done.out
        assert all(word in done.errors for word in words)
        if arguments and arguments[-1] != "csv":
            assert all(word in done.out[:9000] or word in done.out[-9000:] for word in words)
    for arguments in (
        ("gallery", tmp_path / "run", "--out", tmp_path / "gallery.png"),
        ("figure", tmp_path / "run", "effort"),
        ("compare", made.folder, tmp_path / "run"),
        ("export", tmp_path / "run", tmp_path / "exported"),
    ):
        done = leakbench(*arguments, cwd=made.cwd)
        assert done.code == 1, arguments
        assert all(word in done.errors for word in words)
    report = json.loads(leakbench("report", tmp_path / "run", "--format", "json", cwd=made.cwd).out)
    assert sum(cell["missing"] for cell in report["cells"]) == 1


def test_a_failing_plugin_ends_a_run_with_code_1(
    process: Command, made: Made, tmp_path: Path
) -> None:
    """The records say why, and the other row is unharmed."""
    package = tmp_path / "site" / "failing.py"
    package.parent.mkdir()
    package.write_text(
        "from dataclasses import dataclass\n"
        "from leakbench.contracts import Defense\n"
        "@dataclass(frozen=True, slots=True, kw_only=True)\n"
        "class Failing(Defense):\n"
        '    """Fails."""\n'
        '    name = "failing"\n'
        "    def on_examples(self, gradients, state, context):\n"
        '        raise RuntimeError("it broke")\n'
    )
    info = package.parent / "failing-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: failing\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[leakbench.defenses]\nfailing = failing\n")
    done = process(
        "run", "tiny.toml", "--device", "cpu", "--workers", "1", "--out", tmp_path / "run",
        "--set", 'defenses.1={id="failing", name="failing", label="fails"}',
        cwd=made.cwd, PYTHONPATH=str(package.parent),
    )  # fmt: skip
    assert done.code == 1, done.errors
    assert "0 were there, 4 run now, 0 skipped, 2 in error" in done.errors
    lines = (tmp_path / "run" / "records.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert sorted(record["status"] == "error" for record in records) == [False, False, True, True]
    assert {r["reason"] for r in records if r["status"] == "error"} == {"RuntimeError: it broke"}


@pytest.mark.slow
def test_printed_numbers_of_the_shipped_suite_reach_the_report(
    leakbench: Command, tmp_path: Path
) -> None:
    """One tiny cell of the real suite, from the name to the verdict."""
    settings = (
        'datasets=["mnist"]', "profiles.quick.networks=1", "profiles.quick.victims=2",
        "profiles.quick.parameters.steps=2", "profiles.quick.snapshots=[1, 2]",
    )  # fmt: skip
    flags = [word for setting in settings for word in ("--set", setting)]
    done = leakbench(
        "run", "tifs_table3", "--defense", "none", "--device", "cpu", "--workers", "1", *flags,
        cwd=tmp_path,
    )  # fmt: skip
    assert done.code == 0, done.errors
    text = (tmp_path / "results" / "runs" / "tifs_table3-quick" / "report.json").read_text()
    report = json.loads(text, parse_constant=pytest.fail)
    assert [cell["knowledge"] for cell in report["cells"]] == ["naive", "adaptive"]
    assert report["cells"][0]["printed"]["mse"] == "1.50e-05"
    assert "1.50e-05" in leakbench("report", "--full", "tifs_table3-quick", cwd=tmp_path).out
