"""Damaged runs: what is damaged is found, named, in no number, and done again.

Real runs, made once: an attack on digits, and a federated training.
"""

from __future__ import annotations

import io
import json
import math
import random
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leakbench import comparing, record_lines
from leakbench.commands.report import Format
from leakbench.errors import LeakbenchError
from leakbench.loading import opened
from leakbench.record_columns import Known
from leakbench.record_types import wrong
from leakbench.records import Key, Record, Run, encode
from leakbench.report import gallery
from leakbench.suite import resolve
from leakbench.verifying import verify

TINY = Path(__file__).parent / "tiny.toml"
TRAINING = """
schema = 1
name = "drawn"
title = "Drawn"
datasets = ["mnist"]
model = { name = "mlp" }
training = { mode = "federated", iterations = 2, clients = 8, batch_size = { "*" = 4 } }
defenses = [{ id = "cdp", name = "fed_cdp", label = "DP" }]
[utility]
[profiles.quick.utility]
networks = 1
"""

Command = Callable[..., Any]


@pytest.fixture(scope="module")
def attacked(leakbench: Command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("attacked") / "run"
    done = leakbench("run", TINY, "--workers", "1", "--device", "cpu", "--out", folder)
    assert done.code == 0, done.errors
    return folder


@pytest.fixture(scope="module")
def trained(leakbench: Command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    (folder / "suite.toml").write_text(TRAINING)
    done = leakbench(
        "run", folder / "suite.toml", "--workers", "1", "--device", "cpu", "--out", folder / "run"
    )
    assert done.code == 0, done.errors
    return folder / "run"


@pytest.fixture
def run(attacked: Path, tmp_path: Path) -> Run:
    shutil.copytree(attacked, tmp_path / "run")
    return Run(tmp_path / "run")


def undisturbed(records: dict[Key, Record]) -> dict[Key, Record]:
    """What every machine would write."""
    return {k: {n: v for n, v in r.items() if n != "host"} for k, r in records.items()}


# ------------------------------------------------------------------------------ bits and bytes


def test_flips_are_found_or_change_nothing(run: Run) -> None:
    """450 random bits and bytes: the records read are those that were written, or fewer."""
    chance = random.Random(20220101)
    whole = run.path.read_bytes()
    sound = Run(run.folder).records()
    for flip in range(450):
        content = bytearray(whole)
        place = chance.randrange(len(content))
        content[place] ^= chance.randrange(1, 256) if flip % 2 else 1 << chance.randrange(8)
        found = record_lines.read(bytes(content), run.path)
        assert found.damaged
        assert all(sound[each] == record for each, record in found.records.items())
        # A lost newline damages what it parts; any other byte its own line.
        lost = len(sound) - len(found.records)
        assert lost == 1 if whole[place] != 10 else lost <= 2


def test_a_cut_of_the_last_4_kb_costs_what_is_cut(run: Run) -> None:
    whole = run.path.read_bytes()
    lines = whole.splitlines(keepends=True)
    ends = [len(b"".join(lines[:n])) for n in range(len(lines) + 1)]
    sound = list(Run(run.folder).records().items())
    for size in range(max(0, len(whole) - 4096), len(whole)):
        found = record_lines.read(whole[:size], run.path)
        kept = max(n for n, end in enumerate(ends) if end <= size)
        assert list(found.records.items()) == sound[:kept]
        assert [each.reason for each in found.damaged] == [record_lines.TORN] * (size != ends[kept])


def test_a_report_of_a_flipped_run_says_so(run: Run, attacked: Path) -> None:
    """Whatever is flipped, the numbers are those of the other trials."""
    chance = random.Random(7)
    whole = run.path.read_bytes()
    before = opened(attacked).report("csv")
    for _ in range(8):
        content = bytearray(whole)
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        run.path.write_bytes(content)
        found = opened(run.folder)
        assert "damaged line" in found.damage and found.damage in found.report("json")
        lost = 4 - len(found.records)
        assert sum(cell.missing for cell in found.content().cells) == lost >= 1
        assert found.report("csv") != before


def test_a_flipped_bit_in_every_field_is_done_again(
    run: Run, leakbench: Command, attacked: Path
) -> None:
    """Every field of a record at once in other runs of the test; here each of a few by itself."""
    whole = run.path.read_bytes()
    sound = undisturbed(Run(attacked).records())
    first, *rest = whole.splitlines(keepends=True)
    names = [name for name in json.loads(first) if name != "checksum"]
    # A bit in every field, in as many lines as there are: all of them are found.
    for name in names:
        place = first.index(f'"{name}":'.encode()) + len(name) + 3
        flipped = bytearray(first)
        flipped[place] ^= 1
        found = record_lines.read(bytes(flipped), run.path)
        assert not found.records and found.damaged[0].reason == "its checksum is another", name
    # The last of them is run again, and said to be.
    run.path.write_bytes(b"".join([bytes(flipped), *rest]))
    done = leakbench("run", TINY, "--workers", "1", "--device", "cpu", "--out", run.folder)
    assert done.code == 0
    assert "a damaged line (line 1" in done.errors and "3 were there, 1 run now" in done.errors
    assert undisturbed(run.records()) == sound
    assert not verify(run, arrays=True)
    assert (run.folder / "records.damaged").read_bytes() == bytes(flipped)


# ------------------------------------------------------------------------------ fields


WRONG: list[Any] = [
    None, True, -1, 0.5, 2**53, 10**30, 1e308, "", "text", "\ud800", [], [["x"]], {},
    {"a": {"b": 1}},
]  # fmt: skip
"""One value of every type that JSON has, and some that no field means."""


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every field of a record, tables and lists followed down to their first entry."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield (*path, name)
            yield from places(item, (*path, name))
    elif isinstance(value, list) and value:
        yield (*path, 0)
        yield from places(value[0], (*path, 0))


def changed(record: Record, path: tuple[Any, ...], *values: Any) -> Record:
    """A record with another value in a place, or with nothing there."""
    copy = json.loads(json.dumps(record))
    inner = copy
    for name in path[:-1]:
        inner = inner[name]
    if values:
        inner[path[-1]] = values[0]
    else:
        del inner[path[-1]]
    return copy


def everything_of(folder: Path, *, drawn: bool = True) -> None:
    """All that reads a run, as far as it can go; nothing but a sentence may stop it.

    drawn: pictures too, which take a second.
    """
    try:
        found = opened(folder)
        for format in Format:
            if drawn or format is not Format.html:
                found.report(format.value)
        found.frame()
        attempt(lambda: comparing.compare(found, found))
        known, look = found.described, gallery.Look(beside=True)
        draw = gallery.sheet if drawn else gallery.sections
        more: tuple[Any, ...] = () if drawn else ([],)
        attempt(lambda: draw(found.store, known.plan, known.cells, look, *more))
    except LeakbenchError as error:
        assert "\n" not in str(error)


def attempt(action: Callable[[], Any]) -> None:
    try:
        action()
    except LeakbenchError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize("which", ["attacked", "trained"])
def test_wrong_fields_with_a_right_checksum_are_damage(
    which: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Each field deleted, and each of every wrong type: refused, or readable by everything."""
    folder = request.getfixturevalue(which)
    shutil.copytree(folder, tmp_path / "run")
    lines = (folder / "records.jsonl").read_bytes().splitlines(keepends=True)
    record = record_lines.decode(lines[-1][:-1])
    accepted = []
    for path in places(record):
        for values in ((), *((value,) for value in WRONG)):
            line = encode(changed(record, path, *values))
            try:
                record_lines.decode(line[:-1])
            except ValueError as error:
                assert str(error).startswith(("field '", "not a record", "has no checksum"))
            except LeakbenchError as error:
                assert path == ("schema",) and "this leakbench reads" in str(error)
            else:
                accepted.append((path, values, line))
    # What passes is a value that the field may have; one of each kind of field and value is read.
    assert len(accepted) < 12 * len(list(places(record)))
    chance = random.Random(3)
    for _, _, line in chance.sample(accepted, 3):
        (tmp_path / "run" / "records.jsonl").write_bytes(b"".join([*lines[:-1], line]))
        everything_of(tmp_path / "run")


@pytest.mark.parametrize("which", ["attacked", "trained"])
def test_many_records_are_judged_as_one_by_one(which: str, request: pytest.FixtureRequest) -> None:
    """Whatever was sound before: each field of every type, by itself and two at once."""
    lines = (request.getfixturevalue(which) / "records.jsonl").read_bytes().splitlines()
    sound = [record_lines.decode(line) for line in lines]
    values = [*WRONG, math.inf, -math.inf, math.nan, 2**53 + 1, -(2**70)]
    record = sound[-1]
    ways = [
        (path, some)
        for path in places(record)
        if path != ("kind",)
        for some in ((), *((value,) for value in values))
    ]
    chance = random.Random(5)
    every = [changed_value(record, path, *some) for path, some in chance.sample(ways, 300)]
    for _ in range(60):
        one, other = chance.choices([*places(record)], k=2)
        both = changed_value(record, one, chance.choice(values))
        with suppress(KeyError, IndexError, TypeError):  # the first was a table around the second
            every.append(changed_value(both, other, chance.choice(values)))
    expected = [wrong(each) for each in every]
    assert 20 < expected.count("") < len(every) - 20
    known = Known()
    assert known.problems(sound) == [""] * len(sound)
    for _ in range(2):  # what passes is known the second time
        assert [known.problems([each])[0] for each in every] == expected
    # Among others, in columns: those that pass are known, and then all.
    passing = [each for each, problem in zip(every, expected, strict=True) if not problem]
    assert known.problems([*passing, *sound]) == [""] * (len(passing) + len(sound))
    assert known.problems([*passing, *every]) == [""] * len(passing) + expected


def changed_value(record: Record, path: tuple[Any, ...], *values: Any) -> Record:
    """As `changed`, with values that JSON does not have."""
    found = changed(record, path, *("here" for _ in values))
    inner = found
    for name in path[:-1]:
        inner = inner[name]
    if values:
        inner[path[-1]] = values[0]
    return found


def test_damage_among_many_lines_is_found_in_its_place(attacked: Path) -> None:
    """Of 1,000 lines three are wrong in one way each; all others are read."""
    first = json.loads((attacked / "records.jsonl").read_bytes().splitlines()[0])
    del first["checksum"]
    lines = [encode({**first, "victim": victim}) for victim in range(1000)]
    lines[300] = encode({**first, "victim": 300, "steps": -1})
    lines[301] = lines[301].replace(b'"victim":301', b'"victim":302')
    lines[900] = encode({**first, "victim": 900, "status": "fine"})
    found = record_lines.read(b"".join(lines), "it")
    assert [each.line for each in found.damaged] == [301, 302, 901]
    assert found.damaged[0].reason.startswith("field 'steps': ")
    assert found.damaged[1].reason == "its checksum is another"
    assert found.damaged[2].reason.startswith("field 'status': ")
    assert [victim for _, victim in found.records] == [
        victim for victim in range(1000) if victim not in (300, 301, 900)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("which", ["attacked", "trained"])
def test_no_accepted_field_stops_anything(
    which: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """As above, all of them; some with pictures."""
    folder = request.getfixturevalue(which)
    shutil.copytree(folder, tmp_path / "run")
    lines = (folder / "records.jsonl").read_bytes().splitlines(keepends=True)
    record = record_lines.decode(lines[-1][:-1])
    accepted = 0
    for path in places(record):
        for values in ((), *((value,) for value in WRONG)):
            line = encode(changed(record, path, *values))
            if path != ("schema",) and record_lines.read(line, "it").records:
                accepted += 1
                (tmp_path / "run" / "records.jsonl").write_bytes(b"".join([*lines[:-1], line]))
                everything_of(tmp_path / "run", drawn=accepted % 25 == 0)


# ------------------------------------------------------------------------------ arrays


def array_of(run: Run) -> Path:
    """A file of arrays of the run."""
    return sorted((run.folder / "reconstructions").iterdir())[0]


def without_digests(run: Run) -> None:
    """As older runs have them, so that files can be exchanged."""
    records = run.records()
    for record in records.values():
        record["host"]["arrays"]["digest"] = ""
    run.path.write_bytes(b"".join(map(encode, records.values())))


def test_a_flipped_bit_of_a_file_of_arrays_is_found_and_attacked_again(
    run: Run, leakbench: Command, attacked: Path
) -> None:
    path = array_of(run)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)
    assert not verify(run)
    (finding,) = verify(run, arrays=True)
    assert finding.place == f"reconstructions/{path.name}" and "digest" in finding.what
    shown = leakbench("gallery", run.folder, "--out", run.folder / "g.png")
    assert shown.code == 0 and "its digest is not the one in the records" in shown.errors
    assert leakbench("verify", run.folder).code == 0
    said = leakbench("verify", run.folder, "--arrays", "--forget")
    assert said.code == 1 and path.name in said.out and "trials set aside" in said.errors
    done = leakbench("run", TINY, "--workers", "1", "--device", "cpu", "--out", run.folder)
    assert done.code == 0 and f"{len(finding.trials)} run now" in done.errors
    assert not verify(run, arrays=True)
    assert undisturbed(run.records()) == undisturbed(Run(attacked).records())


IMAGES = np.zeros((2, 1, 28, 28), dtype=np.float32)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("inputs", np.array(["text", "text"]), "must be numbers"),
        ("inputs", np.float32(3), "has shape ()"),
        ("inputs", IMAGES[:, :, :0], "images of shape (1, 0, 28)"),
        ("inputs", IMAGES[:0], "different numbers of trials"),
        ("inputs", np.zeros((2, 2, 28, 28), dtype=np.float32), "images of shape"),
        ("truth", IMAGES.astype("datetime64[s]"), "must be numbers"),
        ("class_names", np.array([[b"a"]]), "must be text"),
        ("snapshots", IMAGES, "array 'snapshots' has shape"),
        ("mean_image", IMAGES, "array 'mean_image' has shape"),
        ("raw_lengths", np.array([10**6, 3]), "not as many entries"),
        ("clamped_lengths", np.array([-1, 1]), "not as many entries"),
        ("clamped_steps", np.array([2**60]), "not as many entries"),
        ("trace", np.zeros(2), "has shape (2,)"),
    ],
)
def test_arrays_of_another_kind_are_a_sentence(
    run: Run, leakbench: Command, name: str, value: Any, words: str
) -> None:
    without_digests(run)
    path = array_of(run)
    arrays = run.arrays(path.name)
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays | {name: value})
    with pytest.raises(LeakbenchError, match=r"array") as caught:
        run.arrays(path.name)
    assert words in str(caught.value) and str(path) in str(caught.value)
    everything_of(run.folder)
    assert verify(run, arrays=True)


def test_pictures_of_two_channels_are_left_out_with_a_sentence(run: Run) -> None:
    without_digests(run)
    for path in (run.folder / "reconstructions").iterdir():
        arrays = run.arrays(path.name)
        two = {
            name: np.concatenate([value, value], axis=-3)
            for name, value in arrays.items()
            if name in ("inputs", "start", "truth", "mean_image", "snapshots")
        }
        with path.open("wb") as file:
            np.savez_compressed(file, **arrays | two)
    found = opened(run.folder)
    warnings: list[str] = []
    plan, cells = found.described.plan, found.described.cells
    gallery.sections(found.store, plan, cells, gallery.Look(), warnings)
    assert any("cannot be drawn; pictures have 1 or 3 channels" in each for each in warnings)
    everything_of(run.folder)


@pytest.mark.parametrize("name", ["inputs", "start", "mean_image", "class_names", "victims"])
def test_arrays_that_are_not_there_are_a_sentence(run: Run, name: str) -> None:
    without_digests(run)
    path = array_of(run)
    arrays = run.arrays(path.name)
    del arrays[name]
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays)
    everything_of(run.folder)


@pytest.mark.parametrize(
    "place",
    [5, [], {"file": 5, "row": 0}, {"file": "a.npz"}, {"file": "a.npz", "row": -1},
     {"file": "a.npz", "row": "0"}],
)  # fmt: skip
def test_a_place_of_another_kind_is_damage(run: Run, place: Any) -> None:
    record = next(iter(run.records().values()))
    line = encode(changed(record, ("host", "arrays"), place))
    (damage,) = record_lines.read(line, run.path).damaged
    assert "field 'host.arrays" in damage.reason


@pytest.mark.parametrize("file", ["", ".", "..", "/", "a\0b", "x" * 5000, "../../../etc/passwd"])
def test_a_place_that_is_no_file_is_a_sentence(run: Run, file: str) -> None:
    records = run.records()
    for record in records.values():
        record["host"]["arrays"] = {"file": file, "row": 2**53, "digest": ""}
    run.path.write_bytes(b"".join(map(encode, records.values())))
    everything_of(run.folder)
    assert {each.what for each in verify(run, arrays=True) if each.trials}


def bomb(path: Path, *, said: int, kind: int = zipfile.ZIP_DEFLATED, size: int = 0) -> None:
    """An npz whose member unpacks to `said` bytes of an array of that size, 0 where not given."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "|u1", "fortran_order": False, "shape": (said - 128,)}
    )
    with zipfile.ZipFile(path, "w", kind) as archive, archive.open("inputs.npy", "w") as member:
        member.write(header.getvalue().ljust(128, b" "))
        for _ in range(size // 2**20):
            member.write(bytes(2**20))


def test_what_would_fill_the_memory_is_not_unpacked(run: Run, monkeypatch: Any) -> None:
    """By what the archive says, by what the array says, and by a packing that cannot be bounded."""
    path = run.folder / "reconstructions" / "bomb.npz"
    packer = zlib.compressobj()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("inputs.npy", packer.compress(b"") + packer.flush())
    content = path.read_bytes()
    at = content.rindex(b"PK\x01\x02") + 24  # unpacked size, in the directory
    path.write_bytes(content[:at] + struct.pack("<I", 2**32 - 2) + content[at + 4 :])
    with pytest.raises(LeakbenchError, match=r"unpacks to 4294967294 bytes; at most"):
        run.arrays("bomb.npz")
    bomb(path, said=6 * 2**30)
    with pytest.raises(LeakbenchError, match="another size than its shape"):
        run.arrays("bomb.npz")
    bomb(path, said=2**21, kind=zipfile.ZIP_BZIP2, size=2**21)
    with pytest.raises(LeakbenchError, match="packed in another way"):
        run.arrays("bomb.npz")


# ------------------------------------------------------------------------------ the folder


def test_orphans_are_swept_and_nothing_else_is(run: Run, leakbench: Command) -> None:
    folder = run.folder / "reconstructions"
    orphans = [
        folder / f"{'a' * 20}-{'0' * 12}.npz", folder / f".{'b' * 20}-{'1' * 12}.npz.part",
        run.folder / "manifests" / f".{'c' * 16}.json.part",
    ]  # fmt: skip
    others = [folder / "mine.npz", folder / "notes.part", run.folder / "records.txt"]
    kept = list(folder.iterdir())
    for path in (*orphans, *others):
        path.write_bytes(b"x")
    assert sorted(each.place.split("/")[-1] for each in verify(run)) == sorted(
        path.name for path in orphans
    )
    done = leakbench("run", TINY, "--workers", "1", "--device", "cpu", "--out", run.folder)
    assert done.code == 0
    assert "3 files of a killed run, which no record mentions, removed" in done.errors
    assert not any(path.exists() for path in orphans)
    assert all(path.exists() for path in (*others, *kept))


def test_a_damaged_manifest_is_set_aside_where_another_is_there(
    run: Run, leakbench: Command
) -> None:
    leakbench("run", TINY, "--set", "title='Later'", "--workers", "1", "--out", run.folder)
    assert run.manifest()["number"] == 2 and "Later" in opened(run.folder).report()
    newest = next(path for path in run.manifests() if json.loads(path.read_bytes())["number"] == 2)
    content = bytearray(newest.read_bytes())
    content[content.index(b"Later")] ^= 1
    newest.write_bytes(content)
    found = opened(run.folder)
    assert newest.name in found.damage and "Later" not in found.report("csv")
    assert [each.place for each in verify(run)] == [f"manifests/{newest.name}"]
    done = leakbench("run", TINY, "--workers", "1", "--device", "cpu", "--out", run.folder)
    assert f"manifests/{newest.name} is damaged and was set aside" in done.errors
    assert not verify(run)
    for path in run.manifests():
        path.write_bytes(b"{")
    with pytest.raises(LeakbenchError, match="not a manifest of leakbench, or damaged"):
        opened(run.folder)


def test_a_whole_run_is_said_to_be(run: Run, leakbench: Command) -> None:
    done = leakbench("verify", run.folder, "--arrays")
    assert done.code == 0 and "whole" in done.out
    assert resolve(str(TINY)).name in opened(run.folder).report()


def test_reports_of_reference_results_stay_what_they_are(tmp_path: Path) -> None:
    """Runs of schema 2, packed: read without a checksum, and written again with one."""
    for name in ("tabular_batches-quick",):
        source = Path(__file__).parents[1] / "results" / name
        before = opened(source)
        assert not before.damage
        before.store.export(tmp_path / name)
        after = opened(tmp_path / name)
        assert after.records == before.records
        assert after.report("csv") == before.report("csv")
        assert not verify(after.store, arrays=True)
