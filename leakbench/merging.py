"""Runs of one suite, shards of it say, as one run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from leakbench import manifest as manifests
from leakbench.described import PlannedCell, PlannedTraining
from leakbench.errors import LeakbenchError
from leakbench.manifest import Manifest
from leakbench.records import Key, Record, Run
from leakbench.spec import JUDGED, Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """What came of it: trials and trainings of the plan, and how many of them are there.

    damages: what of the runs is damaged and was left out, a sentence each. repairs: what of the
    folder they were merged into had to be mended first, likewise.
    """

    planned: int
    present: int
    damages: tuple[str, ...]
    repairs: tuple[str, ...]


def merge(folders: Sequence[Path], out: Path) -> Merged:
    """Write the records, arrays and manifests of runs into `out`, which then is the run of all.

    What `out` holds already stays, so that a merge that was killed goes on, and shards that end
    later join. Of two records of a trial the one with a result counts; two results have to be
    equal, host fields apart. What no run has done yet, `leakbench run ... --out OUT` does.

    Raises:
        LeakbenchError: no run; one that was exported; one of another suite, other cells or another
            kind of machine; results that differ; arrays that are not there or damaged; a folder
            that is or lies in one of the runs, or cannot be written.
    """
    runs = [Run.existing(folder) for folder in dict.fromkeys(folders)]
    _require_apart(runs, out)
    known = [manifests.read(run) for run in runs]
    for run, other in zip(runs[1:], known[1:], strict=True):
        _require_same(known[0], other, runs[0], run)
    into = Run(out)
    if into.manifests():
        _require_same(known[0], manifests.read(into), runs[0], into)
    with into.writing() as writer:
        had = dict(writer.records)
        found: dict[Key, tuple[Record, Run | None]] = {key: (had[key], None) for key in had}
        damages = []
        for run in runs:
            contents = run.contents()
            damages.append(run.damage(contents))
            for key, record in contents.records.items():
                if key not in found or _better(record, found[key][0], run):
                    found[key] = (record, run)
        taken = [(record, run) for record, run in found.values() if run is not None]
        for run in runs:
            writer.take_manifests(run)
        for run, name, digest in dict.fromkeys(
            (run, place["file"], place.get("digest") or "")
            for record, run in taken
            if (place := record["host"].get("arrays")) is not None
        ):
            writer.take_arrays(run, name, digest)
        facts = {k: v for k, v in known[0].facts.items() if k not in ("shard", "number")}
        content = replace(known[0], facts={**facts, "number": into.next_number()})
        writer.manifest(manifests.to_json(content))
        writer.append([record for record, _ in taken])
    both: list[PlannedCell | PlannedTraining] = [*known[0].cells, *known[0].trainings]
    every = dict.fromkeys(key for cell in both if not cell.skip for key in cell.trials())
    return Merged(
        planned=len(every),
        present=sum(key in found for key in every),
        damages=tuple(filter(None, damages)),
        repairs=writer.repairs,
    )


def _require_apart(runs: Sequence[Run], out: Path) -> None:
    """Refuse a folder that is one of the runs, or lies in one, and runs that left their arrays."""
    there = out.resolve()
    for run in runs:
        if run.folder.resolve() in (there, *there.parents):
            text = f"is, or lies in, the run {run.folder}; allowed: a folder apart"
            raise LeakbenchError(f"{out}: {text}")
        if run.packed.exists() and not run.path.exists():
            text = "was exported without its arrays; allowed: the run it was exported from"
            raise LeakbenchError(f"{run.folder}: {text}")


def _require_same(first: Manifest, other: Manifest, run: Run, another: Run) -> None:
    """Refuse what belongs to another plan, other limits of time apart."""
    plans = [replace(each.plan, limits=Limits()) for each in (first, other)]
    if plans[0] != plans[1]:
        names = (
            field.name
            for field in dataclasses.fields(plans[0])
            if getattr(plans[0], field.name) != getattr(plans[1], field.name)
        )
        what = f"other {', '.join(names)}"
    elif (first.cells, first.trainings) != (other.cells, other.trainings):
        what = "other cells: code, data, or weights differ"
    else:
        return
    raise LeakbenchError(f"{another.folder}: {what} than {run.folder}; only one plan can be merged")


def _better(record: Record, than: Record, run: Run) -> bool:
    """Whether a record has a result and the other has none.

    Raises:
        LeakbenchError: both have one, and not the same.
    """
    if record["status"] not in JUDGED or than["status"] not in JUDGED:
        return record["status"] in JUDGED and than["status"] not in JUDGED
    name = next((k for k in {**record, **than} if k != "host" and record.get(k) != than.get(k)), "")
    if name:
        trial = f"{record['dataset']}, {record['row']}, victim {record['victim']}"
        raise LeakbenchError(
            f"{run.folder}: field '{name}' of {trial} is {record.get(name)!r:.40}, and "
            f"{than.get(name)!r:.40} in another run; the same trial has the same result"
        )
    return False
