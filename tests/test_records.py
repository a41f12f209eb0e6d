"""The store under real faults: kills, torn files, full disks, second writers, damaged arrays."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakbench import record_lines
from leakbench.errors import LeakbenchError
from leakbench.record_types import SCHEMA, upgraded
from leakbench.records import Record, Run, encode, key

KILLS = 12


def record(victim: int, **more: Any) -> Record:
    """A training's record, which is small."""
    return {
        "schema": SCHEMA, "kind": "utility", "identity": "cell", "dataset": "mnist", "row": "none",
        "network": 0, "status": "ok", "reason": "", "data": "sample", "examples": 9,
        "rounds": 1, "iterations": 1, "accuracy": 0.5, "curve": [], "privacy": None,
        "victim": victim, **more,
    }  # fmt: skip


def child(script: str, *args: str | Path, **options: Any) -> subprocess.Popen[str]:
    """A Python process that runs `script`."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script).replace("__RECORD__", repr(record(0))),
         *map(str, args)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options,
    )  # fmt: skip


def finished(script: str, *args: str | Path, **options: Any) -> str:
    """Run `script` to its successful end; what it printed."""
    process = child(script, *args, **options)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    return out


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run with three records in two appends."""
    run = Run(tmp_path / "run")
    with run.writing() as writer:
        writer.append([record(0), record(1)])
        writer.append([record(2, reason="ä\n\u2028")])
    return run


# ------------------------------------------------------------------------------ what is right


def test_what_was_written_is_read(run: Run) -> None:
    found = run.records()
    assert list(found) == [("cell", 0), ("cell", 1), ("cell", 2)]
    assert found["cell", 2] == record(2, reason="ä\n\u2028")
    assert run.path.read_bytes().count(b"\n") == 3


@pytest.mark.parametrize("name", ["records.jsonl", "records.jsonl.gz"])
def test_records_without_a_manifest_are_said_to_be_there(name: str, tmp_path: Path) -> None:
    (tmp_path / "report.md").touch()
    with pytest.raises(LeakbenchError, match="a report only, its records are not there"):
        Run.existing(tmp_path)
    (tmp_path / name).touch()
    with pytest.raises(LeakbenchError, match="records but no manifest"):
        Run.existing(tmp_path)


def test_a_frame_has_one_row_a_trial(run: Run) -> None:
    """Trainings, of which the run holds three, are none."""
    old = (Path(__file__).parent / "old_run" / "records.jsonl").read_bytes().splitlines()[0]
    trial = upgraded(json.loads(old))
    with run.writing() as writer:
        writer.append([trial | {"victim": victim, "rank": None} for victim in (1, 2)])
        writer.append([trial | {"victim": 1, "status": "nan", "rank": 3}])
    table = run.frame().sort_values("victim")
    assert table["victim"].tolist() == [1, 2]
    assert table["status"].tolist() == ["nan", "ok"]
    assert table["baselines.mean_image"].tolist() == [trial["baselines"]["mean_image"]] * 2
    assert table["rank"].dropna().tolist() == [3] and str(table["rank"].dtype) == "Int64"
    assert "curve" not in table.columns


def test_a_later_record_replaces_an_earlier_one(run: Run) -> None:
    with run.writing() as writer:
        writer.append([record(1, status="error")])
    assert run.records()["cell", 1]["status"] == "error"
    assert len(run.records()) == 3


def test_an_empty_append_touches_nothing(run: Run) -> None:
    before = run.path.read_bytes()
    with run.writing() as writer:
        writer.append([])
    assert run.path.read_bytes() == before


def test_equal_records_are_equal_bytes() -> None:
    assert encode({"b": 1, "a": [1.5, None]}) == encode({"a": [1.5, None], "b": 1})
    assert encode({"a": "ä"}).isascii()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_json_is_never_written(run: Run, value: float) -> None:
    before = run.path.read_bytes()
    with run.writing() as writer:
        with pytest.raises(ValueError, match="JSON"):
            writer.append([record(3), record(4, loss=value)])
        with pytest.raises(ValueError, match="JSON"):
            writer.manifest({"started": value})
    assert run.path.read_bytes() == before


def test_the_newest_manifest_counts(run: Run) -> None:
    with run.writing() as writer:
        first = writer.manifest({"started": "2026-01-01", "n": 1})
        second = writer.manifest({"started": "2026-01-02", "n": 2})
        again = writer.manifest({"started": "2026-01-01", "n": 1})
    assert first == again != second
    assert run.manifest()["n"] == 2


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path, tmp_path / "none", tmp_path / "file", tmp_path / ("x" * 300)):
        with pytest.raises(LeakbenchError, match="no run there"):
            Run.existing(folder)
    (tmp_path / "empty" / "manifests").mkdir(parents=True)
    with pytest.raises(LeakbenchError, match="no manifest"):
        Run.existing(tmp_path / "empty").manifest()
    assert Run.existing(tmp_path / "empty").records() == {}


# ------------------------------------------------------------------------------ kills

WRITER = """
    import sys
    from pathlib import Path
    from leakbench.records import Run

    RECORD = __RECORD__

    begin = int(sys.argv[2])
    with Run(Path(sys.argv[1])).writing() as writer:
        print("torn", writer.torn, flush=True)
        for number in range(begin, begin + 1_000_000, 5):
            writer.append([
                {**RECORD, "victim": victim, "reason": "x" * 20_000}
                for victim in range(number, number + 5)
            ])
            print(number + 4, flush=True)  # only after append came back
"""


def killed_writer(folder: Path, begin: int, delay: float) -> tuple[int, int]:
    """Kill a writer `delay` seconds after it began: (torn bytes it found, last victim it told)."""
    process = child(WRITER, folder, begin)
    assert process.stdout is not None and process.stderr is not None
    first = process.stdout.readline()
    assert first.startswith("torn "), process.stderr.read()
    time.sleep(delay)
    os.kill(process.pid, signal.SIGKILL)
    told = process.stdout.read().split("\n")[:-1]  # a torn last line is no promise
    process.wait(timeout=60)
    process.stderr.close()
    assert process.returncode == -signal.SIGKILL
    return int(first.split()[1]), int(told[-1]) if told else begin - 1


def test_kills_lose_nothing_that_was_written(tmp_path: Path) -> None:
    """Whatever append acknowledged is there after every kill; at most one line is torn."""
    chance = random.Random(20220101)
    run = Run(tmp_path / "run")
    promised, torn_before = -1, 0
    for _ in range(KILLS):
        begin = promised + 1
        torn_found, told = killed_writer(run.folder, begin, chance.uniform(0, 0.05))
        assert torn_found == torn_before  # what the kill before left was cut and reported
        promised = max(promised, told)
        content = run.path.read_bytes()
        torn_before = len(content) - (content.rfind(b"\n") + 1)
        assert torn_before < 30_000  # less than two lines
        victims = {victim for _, victim in run.records()}
        assert set(range(promised + 1)) <= victims
        assert victims <= set(range(promised + 6))  # one append was under way at most
    assert promised > 0
    with run.writing() as writer:
        assert writer.torn == torn_before
    assert run.path.read_bytes().endswith(b"\n")


def test_a_lock_dies_with_its_holder(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    killed_writer(run.folder, 0, 0.01)
    with run.writing() as writer:
        writer.append([record(0)])


def test_a_second_writer_is_refused(run: Run) -> None:
    script = """
        import sys
        from pathlib import Path
        from leakbench.errors import LeakbenchError
        from leakbench.records import Run
        try:
            with Run(Path(sys.argv[1])).writing():
                print("got in")
        except LeakbenchError as error:
            print(error)
    """
    with run.writing():
        assert "another leakbench is writing there" in finished(script, run.folder)
        with pytest.raises(LeakbenchError, match="another leakbench is writing there"):
            run.writing()
        assert len(run.records()) == 3  # reading needs no lock
    assert "got in" in finished(script, run.folder)


def test_everything_is_on_the_disk_before_a_call_returns(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut is played by what `fsync` saw: the file, and how much of it was written."""
    synced: list[tuple[int, int]] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        state = os.fstat(descriptor)
        synced.append((state.st_ino, state.st_size))
        real(descriptor)

    def of(path: Path) -> tuple[int, int]:
        return path.stat().st_ino, path.stat().st_size

    monkeypatch.setattr(os, "fsync", fsync)
    with run.writing() as writer:
        for victim in (7, 8):
            writer.append([record(victim), record(victim, reason="x" * 5000)])
            assert synced.pop() == of(run.path)
        digest = writer.manifest({"started": "2026-01-01"})
        assert synced.pop() == of(run.folder / "manifests" / f"{digest}.json")
        writer.arrays("a.npz", {"a": np.arange(4)})
        assert synced.pop() == of(run.folder / "reconstructions" / "a.npz")
    assert not synced
    whole = run.path.read_bytes()
    run.path.write_bytes(whole + b"torn")
    with run.writing():
        assert synced == [of(run.path)] == [(run.path.stat().st_ino, len(whole))]


# ------------------------------------------------------------------------------ torn and garbage


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_cut_anywhere_costs_at_most_the_torn_line(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    lines = [encode(record(victim, reason="ä" * victim)) for victim in range(5)]
    whole = b"".join(lines)
    check_cut(
        Run(tmp_path_factory.mktemp("cut")), lines, data.draw(st.integers(0, len(whole)), "at")
    )


def test_a_cut_at_every_byte_costs_at_most_the_torn_line(tmp_path: Path) -> None:
    lines = [encode(record(victim)) for victim in range(3)]
    for at in range(len(b"".join(lines)) + 1):
        check_cut(Run(tmp_path), lines, at)


def check_cut(run: Run, lines: list[bytes], at: int) -> None:
    """Truncate the records to `at` bytes: whole lines are read, the rest is cut and reported."""
    content = b"".join(lines)[:at]
    run.path.write_bytes(content)
    whole = content[: content.rfind(b"\n") + 1]
    assert len(run.records()) == whole.count(b"\n")
    with run.writing() as writer:
        assert writer.torn == at - len(whole)
        assert run.path.read_bytes() == whole
        writer.append([record(99)])
    assert run.path.read_bytes() == whole + encode(record(99))
    assert len(run.records()) == whole.count(b"\n") + 1


GARBAGE = [
    b"", b"garbage", b"{", b"\x00\x00", b"\xff\xfe", b"null", b"3", b"[]", b'"text"', b"{}",
    b'{"schema":1,"identity":"cell"}',
    b'{"schema":1,"identity":"cell","victim":0}',
    b'{"schema":1,"identity":"cell","victim":"x","status":"ok"}',
    b'{"schema":1,"identity":"cell","victim":null,"status":"ok"}',
    b'{"schema":1,"identity":"cell","victim":1e999,"status":"ok"}',
    b'{"schema":1,"identity":"cell","victim":0,"status":"ok","loss":NaN}',
    b'{"schema":1,"identity":"cell","victim":0,"status":"ok"}{}',
    b'{"identity":"cell","victim":0,"status":"ok"}',
    b"[" * 100_000,
]  # fmt: skip


@pytest.mark.parametrize("garbage", GARBAGE, ids=lambda value: repr(value[:60]))
def test_garbage_in_the_middle_names_file_and_line(run: Run, garbage: bytes) -> None:
    first, second, *rest = run.path.read_bytes().splitlines(keepends=True)
    run.path.write_bytes(b"".join([first, second, garbage + b"\n", *rest]))
    before = Run(run.folder).contents()
    assert [each.line for each in before.damaged] == [3]
    assert list(before.records) == [("cell", 0), ("cell", 1), ("cell", 2)]
    said = run.damage(before)
    assert f"{run.folder}: a damaged line (line 3" in said and "\n" not in said
    with run.writing() as writer:
        assert list(writer.records) == list(before.records)
        (repair,) = writer.repairs
        assert "line 3" in repair and "records.damaged" in repair
    assert run.path.read_bytes() == b"".join([first, second, *rest])
    assert (run.folder / "records.damaged").read_bytes() == garbage + b"\n"
    assert run.damage(run.contents()) == ""


@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_bit_of_a_line_is_found_wherever_it_is(bit: int) -> None:
    """Every bit of the line, its checksum and newline included."""
    line = encode(record(7, reason="because", accuracy=0.25))
    for place in range(len(line)):
        flipped = bytearray(line)
        flipped[place] ^= 1 << bit
        found = record_lines.read(encode(record(6)) + flipped + encode(record(8)), "it")
        assert found.damaged
        # A newline that is lost takes the line after it along.
        lost = flipped[-1:] != b"\n"
        assert list(found.records) == [("cell", 6)] + [("cell", 8)] * (not lost)


def test_a_damaged_line_says_which_trial_it_is_about() -> None:
    line = encode(record(7, reason="because")).replace(b"because", b"becauze")
    (damage,) = record_lines.read(line, "it").damaged
    assert str(damage) == "line 1, of mnist/none, network 0, victim 7: its checksum is another"
    many = record_lines.read(line * 5, "it").damaged
    said = record_lines.damage_words(many)
    assert said.startswith("5 damaged lines (line 1, of mnist/none") and "and 2 more" in said


def test_a_sound_line_with_another_field_is_damage() -> None:
    """As a faulty writer would make it, the checksum being that of what it wrote."""
    for changed, words in (
        ({"victim": "7"}, "field 'victim'"),
        ({"row": None}, "field 'row'"),
        ({"unknown": 1}, "field 'unknown'"),
        ({"host": {"arrays": 5}}, "field 'host.arrays'"),
    ):
        (damage,) = record_lines.read(encode(record(7) | changed), "it").damaged
        assert words in damage.reason
    (damage,) = record_lines.read(encode(record(7)).replace(b"checksum", b"checksun"), "it").damaged
    assert damage.reason == "has no checksum"


def test_lines_of_older_schemas_are_read_without_a_checksum() -> None:
    old = (Path(__file__).parent / "old_run" / "records.jsonl").read_bytes()
    first = record_lines.read(old, "it")
    assert not first.damaged
    second = b"".join(
        json.dumps(each | {"schema": 2}).encode() + b"\n" for each in first.records.values()
    )
    again = record_lines.read(second, "it")
    assert again == first
    assert {each["schema"] for each in again.records.values()} == {SCHEMA}


def test_records_of_another_schema_are_refused(run: Run) -> None:
    with run.path.open("ab") as file:
        file.write(encode(record(9) | {"schema": SCHEMA + 1}))
    with pytest.raises(LeakbenchError, match=rf"line 4: schema {SCHEMA + 1}.* reads 1 to {SCHEMA}"):
        run.records()


@settings(max_examples=100, deadline=None)
@given(line=st.binary(max_size=80))
def test_no_line_raises_anything_but_a_sentence(
    line: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = Run(tmp_path_factory.getbasetemp())
    run.path.write_bytes(encode(record(0)) + line + b"\n")
    found = run.contents()
    assert list(found.records) == [("cell", 0)]
    assert [each.line for each in found.damaged] == list(range(2, 3 + line.count(b"\n")))


def test_records_that_are_a_folder(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.path.mkdir()
    with pytest.raises(LeakbenchError, match="cannot be read: Is a directory"):
        run.records()
    with pytest.raises(LeakbenchError, match="not writable"), run.writing():
        pass


@pytest.mark.parametrize("content", [b"", b"{", b"3", b"[1]", b"{}", b"\xff", b"[" * 100_000])
def test_a_damaged_manifest_is_named(run: Run, content: bytes) -> None:
    path = run.folder / "manifests" / "0123.json"
    path.write_bytes(content)
    with pytest.raises(LeakbenchError) as caught:
        run.manifest()
    assert f"{path}: not a manifest of leakbench" in str(caught.value)


# ------------------------------------------------------------------------------ disks

FULL = """
    import resource, sys
    from pathlib import Path
    import numpy as np
    from leakbench.errors import LeakbenchError
    from leakbench.records import Run

    RECORD = __RECORD__

    run = Run(Path(sys.argv[1]))
    lines = [
        {**RECORD, "victim": v, "reason": "x" * 1000}
        for v in range(3, 103)
    ]
    with run.writing() as writer:
        size = run.path.stat().st_size
        # Room for some of the lines only: the write itself comes back short.
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 2500, resource.RLIM_INFINITY))
        noise = np.random.default_rng(0).random(10_000)
        for attempt in (
            lambda: writer.append(lines),
            lambda: writer.arrays("big.npz", {"x": noise}),
            lambda: writer.manifest({"started": "x" * 10_000}),
        ):
            try:
                attempt()
                print("wrote")
            except LeakbenchError as error:
                print(error)
        writer.append(lines[:1])  # what fits is still written
"""


def test_a_full_disk_leaves_everything_as_it_was(run: Run) -> None:
    before = run.path.read_bytes()
    told = finished(FULL, run.folder).splitlines()
    assert len(told) == 3
    assert told[0].startswith(f"{run.path}: cannot write: ")
    assert "big.npz: cannot write: " in told[1]
    assert "manifests" in told[2] and "cannot write: " in told[2]
    assert run.path.read_bytes().startswith(before)
    assert set(run.records()) == {("cell", victim) for victim in range(4)}
    assert list((run.folder / "reconstructions").iterdir()) == []
    assert list((run.folder / "manifests").iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_device_without_room_is_one_sentence(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    with run.writing() as writer:
        device = os.open("/dev/full", os.O_WRONLY)
        try:
            os.dup2(device, writer._file)
        finally:
            os.close(device)
        with pytest.raises(LeakbenchError, match="cannot write: No space left on device"):
            writer.append([record(0)])


def test_folders_that_cannot_be_written(tmp_path: Path) -> None:
    """Permissions do not bind root, but nobody makes a folder below a regular file."""
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "run", Path("/proc/no/run")):
        with pytest.raises(LeakbenchError) as caught:
            Run(folder).writing()
        assert str(caught.value).startswith(f"{folder}: not writable: ")


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not bind root")
def test_a_read_only_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(LeakbenchError, match="not writable: Permission denied"):
            Run(tmp_path / "run").writing()
    finally:
        tmp_path.chmod(0o700)


# ------------------------------------------------------------------------------ arrays


def test_arrays_come_back_as_they_were(run: Run) -> None:
    arrays = {
        "inputs": np.linspace(-1, 2, 24, dtype=np.float32).reshape(2, 3, 4),
        "trace": np.array([[1.5, np.nan, np.inf], [1, 2, 3]]),
        "victims": np.array([3, 1]),
        "empty": np.zeros((0, 1, 28, 28), dtype=np.float32),
    }
    with run.writing() as writer:
        writer.arrays("a.npz", arrays)
    found = run.arrays("a.npz")
    assert set(found) == set(arrays)
    for name, value in arrays.items():
        assert found[name].dtype == value.dtype
        np.testing.assert_array_equal(found[name], value)
    assert [path.name for path in (run.folder / "reconstructions").iterdir()] == ["a.npz"]


class Explosive:
    """Says so when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("a pickle was loaded",))


def test_no_pickle_is_ever_loaded(run: Run) -> None:
    folder = run.folder / "reconstructions"
    np.savez(folder / "object.npz", x=np.array([Explosive()], dtype=object))
    np.save(folder / "bare.npz.npy", np.array([Explosive()], dtype=object))
    (folder / "bare.npz.npy").rename(folder / "bare.npz")
    for name in ("object.npz", "bare.npz"):
        with pytest.raises(LeakbenchError) as caught:
            run.arrays(name)
        assert f"{folder / name}: cannot be read" in str(caught.value)


def test_arrays_are_looked_for_in_the_run_only(run: Run, tmp_path: Path) -> None:
    np.savez(tmp_path / "outside.npz", x=np.zeros(1))
    with pytest.raises(LeakbenchError, match="cannot be read"):
        run.arrays("../../outside.npz")


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damaged_arrays_are_one_sentence(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = Run(tmp_path_factory.mktemp("damaged"))
    with run.writing() as writer:
        writer.arrays("a.npz", {"x": np.arange(30.0), "y": np.ones((2, 2))})
    path = run.folder / "reconstructions" / "a.npz"
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans(), "cut"):
        content = content[: data.draw(st.integers(0, len(content) - 1), "at")]
    for _ in range(data.draw(st.integers(0, 3), "flips")):
        if content:
            content[data.draw(st.integers(0, len(content) - 1), "where")] ^= 1 << data.draw(
                st.integers(0, 7), "bit"
            )
    path.write_bytes(content)
    try:
        found = run.arrays("a.npz")
    except LeakbenchError as error:
        assert str(path) in str(error)
    else:  # a flip in a time stamp, say, or in a name
        assert all(isinstance(value, np.ndarray) for value in found.values())


def test_keys_are_what_records_say() -> None:
    assert key(json.loads(encode(record(7)))) == ("cell", 7)
