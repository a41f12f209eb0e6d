"""Cells -> records: what is still to do, in chunks, by worker processes, written by one driver."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Any, TypeVar

import torch

from leakbench import manifest as manifests
from leakbench import planning, probe
from leakbench.arithmetic import processor
from leakbench.attempting import attempt
from leakbench.chunks import Chunk, ChunkResult
from leakbench.data.catalog import look_up
from leakbench.described import PlannedCell, PlannedTraining
from leakbench.errors import WorkerLost
from leakbench.judging import judge_by
from leakbench.manifest import Manifest
from leakbench.planning import Platform
from leakbench.records import Key, Record, Run, Writer, key
from leakbench.rescoring import outdated, rejudged
from leakbench.spec import JUDGED, Plan, Rule, canonical
from leakbench.utility import Training

CHUNK = 128
"""Images solved together; bounds memory (L-BFGS history). It changes no result where a victim's
bits do not depend on its neighbours (`leakbench.probe`)."""

GRADIENTS = 2**29
"""Bytes of the gradients that are attacked together; a chunk holds a few copies of them."""

OnProgress = Callable[["Progress"], None]
Item = TypeVar("Item")


Work = Chunk | Training


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A piece of work is done: `done` of `total` trials and trainings, after `seconds`; its
    statuses, and why one of its trials failed, if one did."""

    done: int
    total: int
    seconds: float
    work: Work
    statuses: Mapping[str, int]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run went: trials and trainings planned, already there, run now, skipped, in error.

    rejudged: trials that were there and are judged again, by other rules or metrics.
    changed: whether the folder now holds, or is asked for, something else than before.
    repairs: what of the folder had to be mended first, a sentence each.
    """

    planned: int
    present: int
    ran: int
    skipped: int
    errors: int
    rejudged: int
    repairs: tuple[str, ...]
    interrupted: bool
    changed: bool


def todo(
    planned: Sequence[PlannedCell | PlannedTraining], records: Mapping[Key, Record]
) -> set[Key]:
    """Trials and trainings without a judged record: new ones, and those that failed before."""
    return {
        key
        for cell in planned
        if not cell.skip
        for key in cell.trials()
        if key not in records or records[key]["status"] not in JUDGED
    }


def chunks(
    planned: Sequence[PlannedCell],
    left: set[Key],
    rules: tuple[Rule, ...],
    root: Path | None,
    device: str,
    most: int,
    *,
    whole: bool = False,
) -> list[Chunk]:
    """Trials left, grouped so that cells that share data, weights and attack share chunks.

    most: images in a chunk; fewer where their gradients would take more than `GRADIENTS`, more
    where a single batch has more. whole: chunks are cut from all planned trials of one cell,
    whatever is left of them, and done again as a whole; a row that fails, or is not asked for, then
    changes no other. Costly chunks come first, so that workers end together.
    """
    groups: dict[str, list[PlannedCell]] = {}
    for cell in planned:
        spec = cell.cell.spec()
        if not (whole or cell.cell.federation):  # else the defense has made the weights
            del spec["defense"], spec["defense_parameters"]
        groups.setdefault(canonical(spec), []).append(cell)
    made = []
    for cells in groups.values():
        each = cells[0].cell.images_a_gradient
        bytes_each = max(max(cell.gradient_bytes for cell in cells), 1)
        size = max(min(most // each, GRADIENTS // bytes_each), 1)
        for number in range(len(cells[0].identities)):
            # Victims in the order of the plan: (number of the cell, first image, is it left).
            trials = [
                (of, some[0], any((cell.identities[number], image) in left for image in some))
                for of, cell in enumerate(cells)
                for images in [cell.victims[number]]
                for some in _cut(images, each)
            ]
            candidates = trials if whole else [trial for trial in trials if trial[2]]
            made += [
                Chunk(
                    cells=tuple(cell.cell for cell in cells),
                    identities=tuple(cell.identities[number] for cell in cells),
                    network=number,
                    trials=tuple((of, victim) for of, victim, _ in some),
                    rules=rules,
                    root=root,
                    device=device,
                )
                for some in _cut(candidates, size)
                if any(is_left for _, _, is_left in some)
            ]
    return sorted(made, key=_cost, reverse=True)


def _cut(items: Sequence[Item], size: int) -> list[Sequence[Item]]:
    """Consecutive pieces of `size`, the last one perhaps smaller."""
    return [items[begin : begin + size] for begin in range(0, len(items), size)]


def trainings(
    planned: Sequence[PlannedTraining], left: set[Key], root: Path | None, device: str
) -> list[Training]:
    """Trainings left; rows that train the same, of a profile that cuts rounds say, share one."""
    made: dict[str, Training] = {}
    for each in planned:
        for number, identity in enumerate(() if each.skip else each.identities):
            if (identity, 0) in left:
                task = Training(
                    cell=each.cell, identity=identity, network=number, root=root, device=device
                )
                made.setdefault(identity, task)
    return list(made.values())


def _cost(chunk: Chunk) -> tuple[int, int]:
    cell = chunk.cells[0]
    shape = look_up(cell.source).input_shape
    colour = 2 if len(shape) == 3 and shape[0] > 1 else 1
    return len(chunk.images) * colour * (2 if cell.knowledge == "adaptive" else 1), -chunk.network


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A plan with its resume keys for a platform; dependent: see `planning.dependent_rows`."""

    platform: Platform
    cells: Sequence[PlannedCell]
    trainings: Sequence[PlannedTraining]
    dependent: Mapping[str, float]


def prepare(plan: Plan, root: Path | None, device: str, chunk_size: int = CHUNK) -> Prepared:
    """What a run of the plan is made of, checked as far as it can be without running.

    Raises:
        LeakbenchError: a cell or a training that cannot start.
    """
    platform = planning.platform_of(device)
    cells = planning.plan_cells(plan, root, platform)
    dependent = planning.dependent_rows(plan, root, device)
    if dependent:
        platform = replace(platform, unit=chunk_size)
        cells = planning.plan_cells(plan, root, platform)
    return Prepared(
        platform=platform,
        cells=cells,
        trainings=planning.plan_trainings(plan, root, platform),
        dependent=dependent,
    )


def run(
    plan: Plan,
    folder: Path,
    *,
    root: Path | None,
    device: str = "cpu",
    workers: int = 1,
    chunk_size: int = CHUNK,
    report: OnProgress = lambda progress: None,
) -> Outcome:
    """Run what is left of a plan into `folder`; a finished plan is a no-op.

    chunk_size: images solved together. Where the probe finds that a victim's bits depend on its
    neighbours, chunks of this size, as the plan cuts them, are done whole, and identities say so.

    Raises:
        LeakbenchError: bad input, a folder that cannot be written, or another writer in it.
    """
    prepared = prepare(plan, root, device, chunk_size)  # mistakes show before anything is tried
    planned, trained, dependent = prepared.cells, prepared.trainings, prepared.dependent
    store = Run(folder)
    both: list[PlannedCell | PlannedTraining] = [*planned, *trained]
    # Rows that train the same share their trainings.
    everything = dict.fromkeys(key for cell in both if not cell.skip for key in cell.trials())
    skipped = sum(len(list(cell.trials())) for cell in both if cell.skip)
    with store.writing() as writer:
        records = writer.records
        left = todo(both, records)
        # A training keeps one worker busy for minutes: all of them come first.
        work: list[Work] = [
            *trainings(trained, left, root, device),
            *chunks(planned, left, plan.rules, root, device, chunk_size, whole=bool(dependent)),
        ]
        interrupted, errors = False, 0
        done = len(everything) - len(left)
        content = Manifest(
            plan=plan, cells=tuple(planned), trainings=tuple(trained),
            facts=_facts(plan, both, device, prepared.platform, dependent),
        )  # fmt: skip
        judge = judge_by(plan.rules, root)
        stale = any(outdated(cell, judge, records) for cell in planned)
        manifest = _write_manifest(writer, content, bool(work) or stale)
        again = _judge_again(writer, content, records, root, manifest)
        begun = time.monotonic()
        with closing(_results(work, workers)) as timed:
            for piece, result, seconds in timed:
                if result is None:
                    interrupted = True
                    break
                _store(writer, result, manifest, seconds)
                statuses: dict[str, int] = {}
                for record in result.records:
                    statuses[record["status"]] = statuses.get(record["status"], 0) + 1
                errors += sum(n for status, n in statuses.items() if status not in JUDGED)
                done += sum(key(record) in left for record in result.records)
                report(
                    Progress(
                        done=done,
                        total=len(everything),
                        seconds=time.monotonic() - begun,
                        work=piece,
                        statuses=statuses,
                        reason=next((r["reason"] for r in result.records if r["reason"]), ""),
                    )
                )
    return Outcome(
        planned=len(everything) + skipped,
        present=len(everything) - len(left),
        ran=done - (len(everything) - len(left)),
        skipped=skipped,
        errors=errors,
        rejudged=again,
        changed=bool(manifest),
        repairs=writer.repairs,
        interrupted=interrupted,
    )


def _write_manifest(writer: Writer, content: Manifest, needed: bool) -> str:
    """Hash of this invocation's manifest; a no-op that asks what the last one asked writes none."""
    if not needed and writer.run.manifests() and content.says_the_same(manifests.read(writer.run)):
        return ""
    return _numbered(writer, content)


def _numbered(writer: Writer, content: Manifest) -> str:
    """Write a manifest as the newest one; returns its hash."""
    facts = {**content.facts, "number": writer.run.next_number()}
    return writer.manifest(manifests.to_json(replace(content, facts=facts)))


def _judge_again(
    writer: Writer,
    content: Manifest,
    records: Mapping[Key, Record],
    root: Path | None,
    manifest: str,
) -> int:
    """Judge what other rules or metrics judged; says how many trials."""
    count = 0
    for some in rejudged(writer.run, content.cells, content.plan.rules, records, root):
        writer.append([{**r, "host": {**r["host"], "manifest": manifest}} for r in some])
        count += len(some)
    return count


def rescore(run: Run, root: Path | None) -> tuple[int, tuple[str, ...]]:
    """Judge a run again by its own rules and today's metrics; says how many trials, and what of the
    folder had to be mended first.

    Raises:
        LeakbenchError: see `rescoring.rejudged`; another writer in the folder.
    """
    known = manifests.read(run)
    with run.writing() as writer:
        manifest = _numbered(writer, known)
        return _judge_again(writer, known, writer.records, root, manifest), writer.repairs


def _store(writer: Writer, result: ChunkResult, manifest: str, seconds: float) -> None:
    digests = {name: writer.arrays(name, arrays) for name, arrays in result.arrays.items()}
    each = round(seconds / max(len(result.records), 1), 3)
    lines = []
    for record in result.records:
        # Where its arrays lie depends on the chunk, so it stands with what a host decides.
        host = {"manifest": manifest, "seconds": each}
        host |= {name: record[name] for name in _OF_HOST if name in record}
        if host.get("arrays") is not None:
            host["arrays"] = {**host["arrays"], "digest": digests[host["arrays"]["file"]]}
        lines.append({k: v for k, v in record.items() if k not in _OF_HOST} | {"host": host})
    writer.append(lines)


_OF_HOST = ("arrays", "seconds_per_iteration", "seconds_per_client")
"""Fields that another machine, or another order of work, would fill otherwise."""

Timed = tuple[Work, "ChunkResult | None", float]


def _results(work: Sequence[Work], workers: int) -> Generator[Timed, None, None]:
    """Work as it gets done, in this process or by workers; None after an interrupt."""
    if workers <= 1 or len(work) <= 1:
        torch.set_num_threads(1)
        for piece in work:
            try:
                yield _timed(piece)
            except KeyboardInterrupt:
                yield piece, None, 0.0
                return
        return
    # spawn: a fork of a process that has used torch's threads can hang.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(
        min(workers, len(work)), mp_context=context, initializer=_start_worker
    )
    waiting: set[Future[Timed]] = {pool.submit(_timed, piece) for piece in work}
    try:
        while waiting:
            finished, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in finished:
                yield future.result()
    except KeyboardInterrupt:
        yield work[0], None, 0.0
    except BrokenProcessPool:
        raise WorkerLost(
            "a worker process was killed, out of memory perhaps; finished trials are kept: "
            "run the same command again, with fewer --workers or a smaller --chunk"
        ) from None
    finally:
        # Stopped early, on a full disk say: nobody will store what is still under way.
        pool.shutdown(wait=not waiting, cancel_futures=True)
        if waiting:
            for process in multiprocessing.active_children():
                process.terminate()


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver decides what an interrupt means
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_driver, daemon=True).start()


def _end_with_driver() -> None:
    """A killed driver cannot end its workers; without this they would wait for ever."""
    driver = multiprocessing.parent_process()
    if driver is not None:
        driver.join()
        os._exit(1)


def _timed(piece: Work) -> Timed:
    begun = time.monotonic()
    result = attempt(piece)
    return piece, result, time.monotonic() - begun


def _facts(
    plan: Plan,
    planned: Sequence[PlannedCell | PlannedTraining],
    device: str,
    platform: Platform,
    dependent: Mapping[str, float],
) -> dict[str, Any]:
    skipped = {cell.cell.dataset: cell.skip for cell in planned if cell.skip}
    return {
        **plan.asked,
        "settings": list(plan.asked["settings"]),
        "suite_digest": plan.file_digest,
        **platform.facts(),
        "dependent_rows": dict(dependent),
        "device_name": _device_name(device),
        "processor": processor(),
        "blas": probe.blas(),
        "started": datetime.now(UTC).isoformat(),
        "python": python_version(),
        "versions": {name: version(name) for name in ("leakbench", "torch", "numpy")},
        "git": _git(),
        "trials": sum(len(list(cell.trials())) for cell in planned),
        "skipped": skipped,
    }


def _device_name(device: str) -> str:
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    return processor()


def _git() -> dict[str, Any]:
    """Commit of the checkout the code is in, and whether it was changed; {} outside of one."""

    def ask(*words: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(Path(__file__).parent), *words],
                capture_output=True, text=True, timeout=10, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = ask("rev-parse", "HEAD")
    if commit is None:
        return {}
    return {"commit": commit, "dirty": bool(ask("status", "--porcelain"))}
