"""What was attacked apart from how it is judged: runs that describe themselves, judged again."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from leakbench import identity, manifest, planning, record_lines, runner
from leakbench.commands import application
from leakbench.errors import LeakbenchError
from leakbench.metrics import registry
from leakbench.records import Key, Record, Run, encode
from leakbench.runner import Outcome
from leakbench.suite import names, resolve

SUITE = (
    Path(__file__)
    .with_name("tiny.toml")
    .read_text(encoding="utf-8")
    .replace("steps = 2", "steps = 12")
    .replace('convention = "mean"', "noise_multiplier = 0.01")
    .replace("victims = 2", "victims = 4")
)

NEAR = """
[[rules]]
name = "near"
label = "near"
kind = "distance"
threshold = 6.0
clamp = true
"""
TRIALS = 2 * 4


def write(folder: Path, text: str = SUITE, name: str = "small.toml") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def run(suite: str, folder: Path) -> Outcome:
    return runner.run(resolve(suite), folder, root=None)


def said(folder: Path) -> dict[Key, Record]:
    """All records without what a host decides."""
    return {
        key: {name: value for name, value in record.items() if name != "host"}
        for key, record in Run(folder).records().items()
    }


def command(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(application.app, list(words))
    if isinstance(done.exception, LeakbenchError):
        return 2, str(done.exception)
    return done.exit_code, done.stdout


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the suite; not to be changed."""
    folder = tmp_path_factory.mktemp("before")
    outcome = run(write(folder), folder / "run")
    assert (outcome.ran, outcome.errors) == (TRIALS, 0)
    return folder / "run"


@pytest.fixture
def finished(before: Path, tmp_path: Path) -> Path:
    """A copy of that run."""
    shutil.copytree(before, tmp_path / "run")
    return tmp_path / "run"


# ------------------------------------------------------------------------------ judged again


def test_a_new_rule_attacks_nothing_and_judges_as_a_fresh_run_would(
    finished: Path, tmp_path: Path
) -> None:
    suite = write(tmp_path, SUITE + NEAR)
    outcome = run(suite, finished)
    assert (outcome.ran, outcome.rejudged, outcome.present) == (0, TRIALS, TRIALS)
    run(suite, tmp_path / "fresh")
    assert said(finished) == said(tmp_path / "fresh")
    steps = [record["first_step"]["near"] for record in said(finished).values()]
    assert any(step is not None for step in steps) and any(step is None for step in steps)
    again = run(suite, finished)
    assert (again.ran, again.rejudged) == (0, 0)


def test_a_changed_threshold_attacks_nothing(finished: Path, tmp_path: Path) -> None:
    suite = write(tmp_path, SUITE.replace("threshold = 0.01", "threshold = 0.2\nfraction = 1.0"))
    lenient = run(suite, finished)
    assert (lenient.ran, lenient.rejudged) == (0, TRIALS)
    run(suite, tmp_path / "fresh")
    assert said(finished) == said(tmp_path / "fresh")


def test_a_label_and_a_title_change_the_report_alone(finished: Path, tmp_path: Path) -> None:
    records = (finished / "records.jsonl").read_bytes()
    text = SUITE.replace('label = "DP"', 'label = "another label"').replace("A tiny", "Another")
    outcome = run(write(tmp_path, text), finished)
    assert (outcome.ran, outcome.rejudged, outcome.changed) == (0, 0, True)
    assert (finished / "records.jsonl").read_bytes() == records
    code, report = command("report", "--full", str(finished))
    assert code == 0 and "another label" in report and "# Another suite" in report


def test_a_metric_of_another_version_is_measured_again(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = dict(registry.all_metrics())
    psnr = known["psnr"]
    halved = dict(known)
    halved["psnr"] = dataclasses.replace(
        psnr, version=psnr.version + 1, function=lambda given: psnr.function(given) / 2
    )
    earlier = said(finished)
    for module in (registry, runner.rejudged.__globals__["judged_record"].__globals__):
        target = module if isinstance(module, dict) else vars(module)
        monkeypatch.setitem(target, "all_metrics", lambda: halved)
    code, _ = command("rescore", str(finished))
    assert code == 0
    for key, record in said(finished).items():
        assert record["psnr"] == pytest.approx(earlier[key]["psnr"] / 2)
        assert record["judge"] != earlier[key]["judge"]
        changed = {"psnr", "judge"}
        same = {k: v for k, v in record.items() if k not in changed}
        assert same == {k: v for k, v in earlier[key].items() if k not in changed}


def test_without_its_reconstructions_a_run_cannot_be_judged_again(
    finished: Path, tmp_path: Path
) -> None:
    shutil.rmtree(finished / "reconstructions")
    with pytest.raises(LeakbenchError, match="cannot be read"):
        run(write(tmp_path, SUITE + NEAR), finished)
    assert command("report", str(finished))[0] == 0


def forget_digests(folder: Path) -> None:
    """As in an older run, whose files of arrays can be exchanged."""
    records = Run(folder).records()
    for record in records.values():
        record["host"]["arrays"]["digest"] = ""
    (folder / "records.jsonl").write_bytes(b"".join(map(encode, records.values())))


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("inputs", lambda array: array[:1], "arrays of different numbers of trials"),
        ("inputs", lambda array: array[..., 1:], "images of shape .*, others of"),
        ("start", None, "has no array 'start'"),
        ("raw_lengths", lambda array: array[:2], "arrays of different numbers of trials"),
        ("clamped_errors", lambda array: array[1:], "'clamped_errors' has not as many entries"),
    ],
)
def test_arrays_that_are_not_those_of_the_records_are_one_sentence(
    finished: Path, tmp_path: Path, name: str, change: Any, words: str
) -> None:
    forget_digests(finished)
    for path in (finished / "reconstructions").glob("*.npz"):
        arrays = Run(finished).arrays(path.name)
        changed = arrays.pop(name)
        if change is not None:
            arrays[name] = change(changed)
        np.savez(path, **arrays)
    earlier = said(finished)
    with pytest.raises(LeakbenchError, match=words):
        run(write(tmp_path, SUITE + NEAR), finished)
    assert said(finished) == earlier


def test_a_record_that_names_no_arrays_is_not_judged_again(finished: Path, tmp_path: Path) -> None:
    records = Run(finished).records()
    for record in records.values():
        del record["host"]["arrays"]
    (finished / "records.jsonl").write_bytes(b"".join(map(encode, records.values())))
    with pytest.raises(LeakbenchError, match=r"victim \d of \w+: no arrays to judge again"):
        run(write(tmp_path, SUITE + NEAR), finished)


# ------------------------------------------------------------------------------ the code


@pytest.fixture
def digest(tmp_path: Path) -> Iterator[Any]:
    """Digest of a plugin with this text."""

    def of(text: str) -> str:
        path = tmp_path / "plugin.py"
        path.write_text(text, encoding="utf-8")
        identity.source_digest.cache_clear()
        return identity.source_digest((path,))

    yield of
    identity.source_digest.cache_clear()


CODE = '''
"""Module."""
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from leakbench import cloak

class A:
    """Class."""
    size = 3

    def f(self, x):
        """Function."""
        if x < 0:
            raise ValueError(f"{x} is negative")
        return x + self.size  # comment
'''


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Module.", "Another."),
        ("Class.", "Another."),
        ("Function.", "Another."),
        ("  # comment", ""),
        ("x + self.size", "(x + self.size)"),
        ("is negative", "must not be negative"),
        ('    """Class."""\n', ""),
        ("import cloak", "import audit"),
        ("\nclass A", "\n\n\nclass A"),
    ],
)
def test_what_code_says_is_no_part_of_an_identity(digest: Any, old: str, new: str) -> None:
    assert old in CODE
    assert digest(CODE) == digest(CODE.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("size = 3", "size = 4"),
        ("size = 3", 'size = "3"'),
        ("x + self.size", "x - self.size"),
        ("x < 0", "x <= 0"),
        ("return x", "yield x"),
        ("ValueError", "TypeError"),
        ("class A:", "class A(Exception):"),
        ("from typing import TYPE_CHECKING\n", "from typing import TYPE_CHECKING\nimport math\n"),
    ],
)
def test_what_code_does_is(digest: Any, old: str, new: str) -> None:
    assert old in CODE
    assert digest(CODE) != digest(CODE.replace(old, new))


def test_attacks_are_made_by_what_computes_and_judged_by_what_does_not() -> None:
    files = {path.stem for path in identity._machinery(identity.ATTACKS)}
    assert {"trials", "training", "gradients", "victims", "optim", "partitions"} <= files
    assert not files & {"judging", "records", "runner", "planning", "cells", "errors", "catalog"}


# ------------------------------------------------------------------------------ self-description


@pytest.mark.parametrize("suite", names())
def test_a_manifest_is_read_back_as_it_was_written(suite: str) -> None:
    plan = resolve(suite)
    cells = planning.plan_cells(plan, None, "cpu")
    known = manifest.Manifest(
        plan=plan,
        cells=tuple(cells),
        trainings=tuple(planning.plan_trainings(plan, None, "cpu")),
        facts={"started": "today", "device": "cpu"},
    )
    text = json.dumps(manifest.to_json(known), allow_nan=False)
    assert manifest.from_manifest(json.loads(text), "here") == known


def test_a_report_needs_no_suite_and_no_code_of_then(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, report = command("report", str(finished))
    assert code == 0 and "A tiny suite" in report
    moved = tmp_path / "elsewhere" / "run"
    shutil.copytree(finished, moved)
    (tmp_path / "small.toml").unlink(missing_ok=True)
    monkeypatch.setattr(identity, "source_digest", lambda *_: "the code is another one now")
    monkeypatch.setattr("leakbench.suite.resolve", None)
    monkeypatch.setattr("leakbench.planning.plan_cells", None)
    assert command("report", str(moved)) == (0, report)
    assert command("gallery", str(moved))[0] == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m.update(schema=99), "schema 99"),
        (lambda m: m.pop("cells"), "key cells"),
        (lambda m: m["cells"].pop(), "key cells"),
        (lambda m: m["plan"].pop("title"), "key title: missing"),
        (lambda m: m["plan"].update(victims="many"), "key victims: must be a whole number"),
        (lambda m: m["plan"]["cells"][0].update(knowledge="none"), "one of naive, adaptive"),
        (lambda m: m["cells"][0].update(victims=[[[0, 10**15]]]), "pairs of a number"),
        (lambda m: m["cells"][0].update(victims=[]), "a list for each of the identities"),
        (lambda m: m["cells"][0].update(oops=1), "unknown key"),
    ],
)
def test_a_damaged_manifest_is_one_sentence(finished: Path, change: Any, words: str) -> None:
    (path,) = (finished / "manifests").iterdir()
    content = json.loads(path.read_bytes())
    change(content)
    rewrite(path, content)
    code, text = command("report", str(finished))
    assert code == 2 and words in text and "\n" not in text


def rewrite(path: Path, content: dict[str, Any]) -> Path:
    """A manifest with other content, under the name that such a one has."""
    data = json.dumps(content).encode()
    path.unlink()
    changed = path.with_name(f"{hashlib.sha256(data).hexdigest()[:16]}.json")
    changed.write_bytes(data)
    return changed


def test_the_newest_manifest_is_the_last_whatever_the_clock_says(
    finished: Path, tmp_path: Path
) -> None:
    (path,) = (finished / "manifests").iterdir()
    content = json.loads(path.read_bytes())
    path = rewrite(path, content | {"started": "2999-01-01T00:00:00+00:00", "number": 7})
    run(write(tmp_path, SUITE.replace("A tiny", "A later")), finished)
    assert "A later suite" in command("report", str(finished))[1]
    later = Run(finished).manifest()
    assert later["number"] == 8 and later["started"] < "2999"
    # Those of older runs have no number, and are older than all that have one.
    rewrite(path, {k: v for k, v in content.items() if k != "number"} | {"started": "2999"})
    assert "A later suite" in command("report", str(finished))[1]


@pytest.mark.parametrize("spoil", ["delete", "retype"])
def test_a_record_without_a_field_or_with_another_type_is_one_sentence(
    finished: Path, spoil: str
) -> None:
    path = finished / "records.jsonl"
    whole = path.read_bytes().splitlines(keepends=True)
    record = record_lines.decode(whole[0][:-1])
    for name in record.keys() - {"host", "schema", *registry.all_metrics()}:
        changed = dict(record)
        if spoil == "delete":
            del changed[name]
        else:
            changed[name] = [["what", "is", "this"]]
        path.write_bytes(b"".join([encode(changed), *whole[1:]]))
        found = Run(finished).contents()
        (damage,) = found.damaged
        assert damage.line == 1 and f"field '{name}" in damage.reason
        assert len(found.records) == len(whole) - 1


# ------------------------------------------------------------------------------ passed on


def test_an_exported_run_is_small_and_gives_the_same_report(finished: Path, tmp_path: Path) -> None:
    code, _ = command("export", str(finished), str(tmp_path / "exported"))
    assert code == 0
    assert command("report", str(tmp_path / "exported")) == command("report", str(finished))
    names = {path.name for path in (tmp_path / "exported").iterdir()}
    assert names == {"manifests", "records.jsonl.gz", "report.csv", "report.md"}
    packed, whole = (tmp_path / "exported" / "records.jsonl.gz"), (finished / "records.jsonl")
    assert packed.stat().st_size < whole.stat().st_size / 2
    code, text = command("export", str(finished), str(tmp_path / "exported"))
    assert code == 2 and "cannot be written: File exists" in text
    with pytest.raises(LeakbenchError, match="to be read only"):
        run(write(tmp_path), tmp_path / "exported")
    code, text = command("rescore", str(tmp_path / "exported"))
    assert code == 2 and "to be read only" in text


def test_the_committed_reference_run_gives_the_report_beside_it() -> None:
    folder = Path(__file__).parent.parent / "results" / "tifs_table3-quick"
    code, report = command("report", "--full", str(folder))
    assert code == 0
    assert report == (folder / "report.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("damage", ["torn", "garbage", "bomb"])
def test_damaged_exported_records_are_one_sentence(
    finished: Path, tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    command("export", str(finished), str(tmp_path / "exported"))
    path = tmp_path / "exported" / "records.jsonl.gz"
    if damage == "bomb":
        monkeypatch.setattr("leakbench.records.MOST_BYTES", 1000)
    else:
        path.write_bytes(path.read_bytes()[:-20] if damage == "torn" else b"garbage")
    code, text = command("report", str(tmp_path / "exported"))
    assert code == 2 and "records.jsonl" in text and "\n" not in text


# ------------------------------------------------------------------------------ older runs

OLD = Path(__file__).parent / "old_run"
"""A run of `tifs_table3`, two steps an attack, made when manifests held no plan."""


def test_a_run_made_before_manifests_held_the_plan_is_reported(tmp_path: Path) -> None:
    shutil.copytree(OLD, tmp_path / "run")
    code, report = command("report", "--full", str(tmp_path / "run"))
    assert code == 0

    def lines(text: str) -> list[str]:
        """Attackers' parameters are listed as their classes have them now."""
        return [line for line in text.splitlines() if not line.startswith("Attackers:")]

    answer, everything = report.split("## All of it\n\n")
    title, _, *below = lines((OLD / "report.md").read_text(encoding="utf-8"))
    assert answer.startswith(title)
    assert lines(everything.replace("### ", "## ")) == below


def test_arrays_of_other_victims_are_refused(finished: Path, tmp_path: Path) -> None:
    forget_digests(finished)
    for path in (finished / "reconstructions").iterdir():
        with np.load(path) as archive:
            arrays = dict(archive)
        np.savez(path, **(arrays | {"victims": arrays["victims"][::-1]}))
    with pytest.raises(LeakbenchError, match="array 'victims' has other victims"):
        run(write(tmp_path, SUITE + NEAR), finished)
