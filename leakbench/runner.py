"""Cells -> records: what is still to do, in chunks, by an executor, written by one driver."""

from __future__ import annotations

import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Any

import torch

from leakbench import manifest as manifests
from leakbench import planning, probe
from leakbench.arithmetic import processor
from leakbench.chunks import ChunkResult
from leakbench.described import PlannedCell, PlannedTraining
from leakbench.executors import Executor, Serial
from leakbench.judging import judge_by
from leakbench.manifest import Manifest
from leakbench.pieces import (
    WHOLE,
    Shard,
    TimeLimits,
    chunks,
    instead,
    todo,
    trainings,
    trainings_of,
    trials_of,
)
from leakbench.planning import Platform
from leakbench.records import Key, Record, Run, Writer, key
from leakbench.rescoring import outdated, rejudged
from leakbench.spec import JUDGED, Plan
from leakbench.stopping import NEVER, Stop, Stopped
from leakbench.working import Done, Task, Work, came_to_nothing

CHUNK = 128
"""Images solved together; bounds memory (L-BFGS history). It changes no result where a victim's
bits do not depend on its neighbours (`leakbench.probe`)."""

OnProgress = Callable[["Progress"], None]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A plan with its resume keys for a platform; dependent: see `planning.dependent_rows`."""

    platform: Platform
    cells: Sequence[PlannedCell]
    trainings: Sequence[PlannedTraining]
    dependent: Mapping[str, float]

    @property
    def unit(self) -> int:
        """Images whose bits depend on each other; 0 where none do."""
        return self.platform.unit or 0


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
    executor: Executor | None = None,
    chunk_size: int = CHUNK,
    shard: Shard = WHOLE,
    stop: Stop = NEVER,
    report: OnProgress = lambda progress: None,
) -> Outcome:
    """Run what is left of a plan into `folder`; a finished plan is a no-op.

    executor: who does the work, by default this process; nothing of it is under way afterwards.
    chunk_size: images solved together. Where the probe finds that a victim's bits depend on its
    neighbours, chunks of this size, as the plan cuts them, are done whole, and identities say so.
    shard: the part of the plan to run. stop: who may ask to end before the end.

    Raises:
        LeakbenchError: bad input, a folder that cannot be written, or another writer in it.
    """
    stop.check()
    prepared = prepare(plan, root, device, chunk_size)  # mistakes show before anything is tried
    stop.check()
    planned, trained, dependent = prepared.cells, prepared.trainings, prepared.dependent
    store = Run(folder)
    both: list[PlannedCell | PlannedTraining] = [*planned, *trained]
    # Rows that train the same share their trainings.
    everything = dict.fromkeys(
        [key for cell in planned if not cell.skip for key in trials_of(cell, shard, prepared.unit)]
        + trainings_of(trained, shard)
    )
    skipped = sum(len(list(cell.trials())) for cell in both if cell.skip)
    limits = TimeLimits(plan.limits, planned)
    with store.writing() as writer:
        records = writer.records
        left = todo(both, records) & everything.keys()
        # A training keeps one worker busy for minutes: all of them come first.
        work: list[Work] = [
            *trainings(trained, left, root, device),
            *chunks(planned, left, plan.rules, root, device, chunk_size, whole=bool(dependent)),
        ]
        tasks = [
            Task(work=piece, divisible=not dependent, seconds=limits.of(piece)) for piece in work
        ]
        interrupted, errors = False, 0
        done = len(everything) - len(left)
        content = Manifest(
            plan=plan, cells=tuple(planned), trainings=tuple(trained),
            facts=_facts(plan, both, device, prepared.platform, dependent, shard),
        )  # fmt: skip
        judge = judge_by(plan.rules, root)
        stale = any(outdated(cell, judge, records) for cell in planned)
        manifest = _write_manifest(writer, content, bool(work) or stale)
        again = _judge_again(writer, content, records, root, manifest)
        begun = time.monotonic()

        def tell(piece: Work, statuses: Mapping[str, int], reason: str) -> None:
            report(
                Progress(
                    done=done, total=len(everything), seconds=time.monotonic() - begun,
                    work=piece, statuses=statuses, reason=reason,
                )
            )  # fmt: skip

        try:
            for over, result in _worked_off(tasks, executor or Serial(), limits, stop):
                with stop.shielded():
                    if result is None:
                        tell(over.task.work, {}, f"{over.lost}; done again in smaller pieces")
                        continue
                    _store(writer, result, manifest, over.seconds)
                    statuses: dict[str, int] = {}
                    for record in result.records:
                        statuses[record["status"]] = statuses.get(record["status"], 0) + 1
                    errors += sum(n for status, n in statuses.items() if status not in JUDGED)
                    done += sum(key(record) in left for record in result.records)
                    reasons = (each["reason"] for each in result.records if each["reason"])
                    tell(over.task.work, statuses, next(reasons, ""))
        except (KeyboardInterrupt, Stopped):
            stop.heard()
            interrupted = True
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


def _worked_off(
    tasks: Sequence[Task], executor: Executor, limits: TimeLimits, stop: Stop
) -> Iterator[tuple[Done, ChunkResult | None]]:
    """Tasks as they are over, in whatever order, with their results; without one where smaller
    tasks, which follow, take the place of a lost one."""
    waiting = deque(tasks)
    under_way = 0
    try:
        while waiting or under_way:
            stop.check()
            while waiting and under_way < executor.capacity:
                executor.submit(waiting.popleft())
                under_way += 1
            over = executor.next(1.0)
            if over is None:
                continue
            under_way -= 1
            if over.result is not None:
                yield over, over.result
            elif smaller := instead(over, limits):
                waiting.extendleft(reversed(smaller))
                yield over, None
            else:
                status = "timeout" if over.timeout else "error"
                yield over, came_to_nothing(over.task, status, over.lost)
    finally:
        executor.cancel()


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
        host: dict[str, Any] = {"manifest": manifest, "seconds": each}
        host |= {name: record[name] for name in _OF_HOST if name in record}
        if host.get("arrays") is not None:
            host["arrays"] = {**host["arrays"], "digest": digests[host["arrays"]["file"]]}
        lines.append({k: v for k, v in record.items() if k not in _OF_HOST} | {"host": host})
    writer.append(lines)


_OF_HOST = ("arrays", "chunk", "seconds_per_iteration", "seconds_per_client")
"""Fields that another machine, or another order of work, would fill otherwise."""


def _facts(
    plan: Plan,
    planned: Sequence[PlannedCell | PlannedTraining],
    device: str,
    platform: Platform,
    dependent: Mapping[str, float],
    shard: Shard,
) -> dict[str, Any]:
    skipped = {cell.cell.dataset: cell.skip for cell in planned if cell.skip}
    return {
        **plan.asked,
        "settings": list(plan.asked["settings"]),
        "suite_digest": plan.file_digest,
        **platform.facts(),
        "dependent_rows": dict(dependent),
        "device_name": device_name(device),
        "processor": processor(),
        "blas": probe.blas(),
        "started": datetime.now(UTC).isoformat(),
        "python": python_version(),
        "versions": {name: version(name) for name in ("leakbench", "torch", "numpy")},
        "git": _git(),
        "trials": sum(len(list(cell.trials())) for cell in planned),
        "skipped": skipped,
        **({} if shard == WHOLE else {"shard": str(shard)}),
    }


def device_name(device: str) -> str:
    """Of the processor, or the GPU, that computes."""
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
