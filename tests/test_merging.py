"""Merging what was damaged, and merging again after a kill."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leakbench import array_files, merging, runner
from leakbench.pieces import Shard
from leakbench.records import Key, Record, Run, Writer
from leakbench.suite import resolve
from leakbench.verifying import verify

VICTIMS = 3
Command = Callable[..., Any]


class Killed(BaseException):
    """Stands for the end of a process."""


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A suite in three parts, and the whole of it, made once."""
    folder = tmp_path_factory.mktemp("shards")
    text = Path(__file__).with_name("tiny.toml").read_text(encoding="utf-8")
    (folder / "tiny.toml").write_text(text.replace("victims = 2", f"victims = {VICTIMS}"))
    plan = resolve(str(folder / "tiny.toml"))
    runner.run(plan, folder / "whole", root=None)
    for number in (1, 2, 3):
        part = folder / f"part{number}"
        outcome = runner.run(plan, part, root=None, shard=Shard(number, 3))
        assert outcome.planned == 2
    return folder


@pytest.fixture
def parts(shards: Path, tmp_path: Path) -> list[Path]:
    """Copies of the parts, to be spoilt."""
    names = [f"part{number}" for number in (1, 2, 3)]
    return [Path(shutil.copytree(shards / name, tmp_path / name)) for name in names]


def results(folder: Path) -> dict[Key, Record]:
    """What is recorded, host fields apart."""
    return {
        key: {name: value for name, value in record.items() if name != "host"}
        for key, record in Run(folder).records().items()
    }


@pytest.mark.independent_rows
def test_a_damaged_line_of_a_part_is_said_and_missing(
    shards: Path, parts: list[Path], tmp_path: Path, leakbench: Command
) -> None:
    records = parts[1] / "records.jsonl"
    content = bytearray(records.read_bytes())
    content[100] ^= 1
    records.write_bytes(content)
    out = tmp_path / "merged"
    done = leakbench("merge", *parts, "--out", out)
    assert done.code == 1, done.errors
    assert "5 of 6 trials are there" in done.errors
    assert f"{parts[1]}: a damaged line (line 1, of mnist/" in done.errors
    assert results(out).items() < results(shards / "whole").items()
    again = runner.run(resolve(str(shards / "tiny.toml")), out, root=None)
    assert (again.present, again.ran) == (5, 1)
    assert results(out) == results(shards / "whole")
    assert verify(Run(out), arrays=True) == []


@pytest.mark.independent_rows
def test_a_merge_that_is_killed_goes_on(
    shards: Path, parts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every file that it writes, half of which is there then, and before the records."""
    whole, replace, append = results(shards / "whole"), Writer._replace, Writer.append
    moments = 0
    while True:
        moments += 1
        written = 0

        def half(self: Writer, path: Path, data: bytes, last: int = moments) -> None:
            nonlocal written
            written += 1
            if written == last:
                path.with_name(f".{path.name}.part").write_bytes(data[: len(data) // 2])
                raise Killed
            replace(self, path, data)

        def torn(self: Writer, records: Any, last: int = moments) -> None:
            nonlocal written
            written += 1
            if written == last:
                append(self, records[:2])
                with self.run.path.open("ab") as file:
                    file.write(b'{"accuracy":')
                raise Killed
            append(self, records)

        out = tmp_path / f"out{moments}"
        with monkeypatch.context() as patch:
            patch.setattr(Writer, "_replace", half)
            patch.setattr(Writer, "append", torn)
            try:
                merging.merge(parts, out)
                break
            except Killed:
                pass
        assert results(out).items() <= whole.items()
        assert Run(out).damaged_manifests() == []
        merged = merging.merge(parts, out)
        assert (merged.planned, merged.present, merged.damages) == (2 * VICTIMS, 2 * VICTIMS, ())
        assert results(out) == whole
        assert verify(Run(out), arrays=True) == []
    # Three manifests, six files of arrays, a manifest of its own, the records.
    assert moments - 1 == 3 + 6 + 1 + 1


def test_a_damaged_manifest_is_not_merged(parts: list[Path], tmp_path: Path) -> None:
    name = "0123456789abcdef.json"
    (parts[0] / "manifests" / name).write_bytes(b"{")
    merged = merging.merge(parts, tmp_path / "out")
    assert len(merged.damages) == 1 and name in merged.damages[0]
    assert not (tmp_path / "out" / "manifests" / name).exists()
    assert verify(Run(tmp_path / "out"), arrays=True) == []


def test_arrays_are_merged_byte_by_byte(parts: list[Path], tmp_path: Path) -> None:
    """Packed by another zlib they would have another digest than their records say."""
    part = Run(parts[0])
    with part.writing() as writer:
        records = list(writer.records.values())
        for record in records:
            place = record["host"]["arrays"]
            path = part.folder / "reconstructions" / place["file"]
            arrays = part.arrays(place["file"], place["digest"])
            with path.open("wb") as file:
                np.savez(file, **arrays)  # type: ignore[arg-type]
            place["digest"] = array_files.digest_of(path.read_bytes())
        writer.append(records)
    merging.merge(parts, tmp_path / "out")
    assert verify(Run(tmp_path / "out"), arrays=True) == []
