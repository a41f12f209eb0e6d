"""Whether a run folder is whole: lines, manifests, arrays, and files that nobody mentions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from leakbench import manifest
from leakbench.errors import LeakbenchError
from leakbench.records import Key, Record, Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that is wrong with a run.

    Attributes:
        place: file, and line where there is one.
        about: which trials, in words; "" where nobody can say.
        what: what is wrong.
        trials: those whose arrays are lost, where that is what is wrong.
    """

    place: str
    about: str
    what: str
    trials: tuple[Key, ...] = ()


def verify(run: Run, *, arrays: bool = False) -> list[Finding]:
    """Everything that is wrong with a run, [] if nothing is.

    Args:
        run: its folder.
        arrays: also read all files of arrays, and not only look whether they are there.

    Raises:
        LeakbenchError: the records as a whole cannot be read, or are of a newer schema.
    """
    contents = run.contents()
    found = [
        Finding(place=f"{run.path.name}, line {each.line}", about=each.trial, what=each.reason)
        for each in contents.damaged
    ]
    found += [
        Finding(place=f"manifests/{path.name}", about="", what="damaged, or no manifest")
        for path in run.damaged_manifests()
    ]
    try:
        manifest.read(run)
    except LeakbenchError as error:
        found.append(Finding(place="manifests/", about="", what=str(error)))
    found += _lost_arrays(run, contents.records, whole=arrays)
    found += [
        Finding(place=str(path.relative_to(run.folder)), about="", what="no record mentions it")
        for path in run.left_behind()
    ]
    return found


def _lost_arrays(run: Run, records: Mapping[Key, Record], *, whole: bool) -> Iterator[Finding]:
    folder = run.folder / "reconstructions"
    if not folder.is_dir():
        return  # a run passed on without its images
    files: dict[tuple[str, str], list[Record]] = {}
    for record in records.values():
        place = (record.get("host") or {}).get("arrays")
        if place is not None:
            files.setdefault((place["file"], place.get("digest", "")), []).append(record)
    for (file, digest), some in files.items():
        if what := _lost(run, file, digest, some, whole=whole):
            yield Finding(
                place=f"reconstructions/{file}",
                about=_words(some),
                what=what,
                trials=tuple((record["identity"], record["victim"]) for record in some),
            )


def _lost(run: Run, file: str, digest: str, records: Sequence[Record], *, whole: bool) -> str:
    """Why the arrays of these records cannot be had from their file; "" if they can."""
    if not whole:
        there = (run.folder / "reconstructions" / file).is_file()
        return "" if there else "not there"
    try:
        victims = run.arrays(file, digest).get("victims")
    except LeakbenchError as error:
        return str(error).partition(f"{file}: ")[2] or str(error)
    for record in records:
        row = record["host"]["arrays"]["row"]
        if victims is None or row >= len(victims) or victims[row] != record["victim"]:
            return f"row {row} is not victim {record['victim']}"
    return ""


def _words(records: Sequence[Record]) -> str:
    first = records[0]
    rest = f" and {len(records) - 1} more" if len(records) > 1 else ""
    return (
        f"{first['dataset']}/{first['row']}/{first.get('knowledge', '')}, network "
        f"{first['network']}, victim {first['victim']}{rest}"
    )
