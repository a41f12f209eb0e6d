"""Cells -> records: what is still to do, in chunks, by worker processes, written by one driver."""

from __future__ import annotations

import hashlib
import math
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
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Any, TypeVar

import torch

from leakbench import architectures, probe, registry
from leakbench.arithmetic import processor
from leakbench.contracts import Guarantee, LeakFacts, Setting, Weights, changes_nothing
from leakbench.data import load
from leakbench.data.catalog import look_up
from leakbench.described import PlannedCell, PlannedTraining, priors_of
from leakbench.errors import DataMissing, LeakbenchError, WorkerLost
from leakbench.identity import TRAININGS, source_digest
from leakbench.plugin_files import one_line
from leakbench.records import Key, Record, Run, Writer, key
from leakbench.spec import JUDGED, Cell, Plan, UtilityCell, canonical, observer_of
from leakbench.trials import (
    Chunk,
    ChunkResult,
    build_attack,
    build_defense,
    check_cell,
    facts_of,
    failed,
    network,
    run_chunk,
)
from leakbench.utility import (
    Training,
    check_training,
    failed_training,
    first_weights,
    run_training,
)

CHUNK = 128
"""Images solved together; bounds memory (L-BFGS history). It changes no result where a victim's
bits do not depend on its neighbours (`leakbench.probe`)."""

_ASKED = (
    "suite", "profile", "attack", "defense", "settings", "skipped",
    "device", "arithmetic", "torch", "unit",
)  # fmt: skip
"""Fields of a manifest that a report is made from."""

OnProgress = Callable[["Progress"], None]
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """What of a machine decides bits, and so belongs to every identity.

    device: its type, "cpu" or "cuda". arithmetic: as `probe.arithmetic`. torch: its release. unit:
    images a chunk may hold where a chunk as a whole is what is reproducible; None where a victim
    is.
    """

    device: str
    arithmetic: str
    torch: str
    unit: int | None = None

    def facts(self) -> dict[str, Any]:
        """For an identity and for a manifest."""
        return asdict(self)


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

    changed: whether the folder now holds, or is asked for, something else than before.
    platform: what identities were made with.
    """

    planned: int
    present: int
    ran: int
    skipped: int
    errors: int
    torn_bytes: int
    interrupted: bool
    changed: bool
    platform: Platform


def platform_of(device: str, unit: int | None = None) -> Platform:
    """This process on `device`."""
    return Platform(
        device=torch.device(device).type,
        arithmetic=probe.arithmetic(),
        torch=torch.__version__.partition("+")[0],
        unit=unit,
    )


def dependent_rows(plan: Plan, root: Path | None, device: str) -> dict[str, float]:
    """Shapes of the plan in which a victim's bits depend on its neighbours; see `probe.summary`."""
    shapes: dict[probe.Shape, None] = {}
    for cell in plan.cells:
        try:
            dataset = load(cell.source, root)
        except DataMissing:
            continue
        shape = probe.Shape(
            model=cell.model,
            input_shape=dataset.input_shape,
            classes=dataset.classes,
            batch_size=cell.images_a_gradient,
            local_steps=cell.steps_seen,
            dtype=cell.dtype,
            device=torch.device(device).type,
        )
        shapes[shape] = None
    return probe.summary({shape: probe.rows(shape) for shape in shapes})


def plan_cells(plan: Plan, root: Path | None, platform: Platform | str) -> list[PlannedCell]:
    """Every cell of the plan with its identities, as code and data are now.

    platform: where records were or will be made; a device stands for this process on it.
    """
    where = platform_of(platform) if isinstance(platform, str) else platform
    return [_planned(plan, cell, root, where) for cell in plan.cells]


def _planned(plan: Plan, cell: Cell, root: Path | None, platform: Platform) -> PlannedCell:
    available = look_up(cell.source).sample_counts[0]
    if plan.victims * plan.networks > available:
        raise LeakbenchError(
            f"{plan.file}, profile {plan.profile}: {plan.networks} networks x {plan.victims} "
            f"victims are more than the {available} candidates of {cell.dataset}"
        )
    each = cell.images_a_gradient
    images = plan.victims // each * each
    if not images:
        raise LeakbenchError(
            f"{plan.file}, profile {plan.profile}: {plan.victims} victims are less than one batch "
            f"of {each} images ({cell.row}, {cell.dataset})"
        )
    victims = tuple(
        tuple(range(number * plan.victims, number * plan.victims + images))
        for number in range(plan.networks)
    )
    try:
        dataset = load(cell.source, root)
    except DataMissing as error:
        return PlannedCell(
            cell=cell,
            identities=tuple(f"no-data-{j}" for j in range(plan.networks)),
            victims=victims,
            skip=f"no data: {error}",
            ceiling_mu=None,
            guarantee="",
        )
    try:
        check_cell(cell, dataset, plan.networks)
    except LeakbenchError as error:
        raise LeakbenchError(f"{plan.file}, row '{cell.row}': {error}") from None
    plugins = (
        registry.find("models", cell.model),
        registry.find("attacks", cell.attack),
        registry.find("defenses", cell.defense),
    )
    spec = cell.spec() | {
        "data": dataset.checksum,
        "source": source_digest(tuple(plugin.path for plugin in plugins if plugin.path)),
        **platform.facts(),
    }
    if platform.unit is not None:  # then who else is in the chunk decides bits
        spec["victims"] = plan.victims
    identities = []
    for number in range(plan.networks):
        _, weights = network(cell, dataset, number)
        whole = spec | {"network": number, "weights_digest": architectures.digest(weights)}
        identities.append(hashlib.sha256(canonical(whole).encode()).hexdigest())
    # Promises depend on shapes only: they are the same for every network.
    guarantees = [_guarantee(cell, weights, round) for round in cell.rounds]
    all_mu = [guarantee.mu for guarantee in guarantees]
    known = [mu for mu in all_mu if mu is not None]
    if len(guarantees) > 1 and any(guarantee.single_look for guarantee in guarantees):
        known = []
    skip, budget = _suits(cell, facts_of(cell, dataset, weights))
    return PlannedCell(
        cell=cell,
        identities=tuple(identities),
        victims=victims,
        skip=skip,
        budget=budget,
        # The victims are among those that later weights were trained on: more than the looks tells.
        ceiling_mu=None if cell.federation or len(known) < len(all_mu) else math.hypot(*known),
        guarantee=_describe(guarantees[0]),
        priors=priors_of(
            victims,
            each,
            len(dataset.candidates),
            dataset.candidate_labels.tolist() if "labels" in cell.grants else (),
        ),
    )


def _suits(cell: Cell, facts: LeakFacts) -> tuple[str, int]:
    """Why the attack skips such leaks, "" if it does not, and its budget."""
    try:
        attack = build_attack(cell)
        reason = attack.skip(facts)
        return (f"{cell.attack}: {reason}", 0) if reason else ("", attack.budget(facts))
    except Exception:  # noqa: BLE001  a plugin may fail in any way: its trials will say so
        return "", 0


def _guarantee(cell: Cell, weights: Weights, round: int) -> Guarantee:
    try:
        setting = Setting(
            batch_size=cell.batch_size,
            local_steps=cell.steps_seen,
            examples=cell.batch_size * cell.steps_seen,  # all that one gradient is made of
            rounds=cell.iterations,
            round=round,
        )
        observer = observer_of(cell.leak_type, cell.leak_view)
        return build_defense(cell).guarantee(observer, weights, setting)
    except Exception as error:  # noqa: BLE001  a plugin may fail in any way: then it promises nothing
        return Guarantee(level="none", reason=f"the plugin failed: {one_line(error)}")


def _describe(guarantee: Guarantee) -> str:
    if guarantee.mu is None:
        return f"none: {guarantee.reason}"
    return (
        f"{guarantee.level}, {guarantee.relation}, sensitivity {guarantee.sensitivity:.3g} "
        f"({guarantee.unit}, M={guarantee.tensors}), std {guarantee.noise_std:.3g}"
    )


def plan_trainings(
    plan: Plan, root: Path | None, platform: Platform | str
) -> list[PlannedTraining]:
    """Every utility cell of the plan with its identities, checked before anything starts.

    platform: as for `plan_cells`.

    Raises:
        LeakbenchError: a training that cannot start, see `federated.check`.
    """
    where = platform_of(platform) if isinstance(platform, str) else platform
    return [_planned_training(plan, cell, root, where) for cell in plan.utility]


def _planned_training(
    plan: Plan, cell: UtilityCell, root: Path | None, platform: Platform
) -> PlannedTraining:
    try:
        data = check_training(cell, root, plan.utility_networks)
    except DataMissing as error:
        return PlannedTraining(
            cell=cell,
            identities=tuple(f"no-data-{j}" for j in range(plan.utility_networks)),
            skip=f"no data: {error}",
        )
    except LeakbenchError as error:
        raise LeakbenchError(f"{plan.file}, utility of '{cell.row}': {error}") from None
    plugins = (registry.find("models", cell.model), registry.find("defenses", cell.defense))
    spec = cell.spec() | {
        "data": data.checksum,
        "source": source_digest(tuple(plugin.path for plugin in plugins if plugin.path), TRAININGS),
        **replace(platform, unit=None).facts(),
    }
    identities = []
    for number in range(plan.utility_networks):
        digest = architectures.digest(first_weights(cell, number))
        whole = spec | {"network": number, "weights_digest": digest}
        identities.append(hashlib.sha256(canonical(whole).encode()).hexdigest())
    return PlannedTraining(
        cell=cell,
        identities=tuple(identities),
        skip="",
        undefended=changes_nothing(build_defense(cell)),
    )


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
    root: Path | None,
    device: str,
    most: int,
    *,
    whole: bool = False,
) -> list[Chunk]:
    """Trials left, grouped so that cells that share data, weights and attack share chunks.

    most: images in a chunk, but for a larger batch. whole: chunks are cut from all planned trials
    of one cell, whatever is left of them, and done again as a whole; a row that fails, or is not
    asked for, then changes no other. Costly chunks come first, so that workers end together.
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
        size = max(most // each, 1)
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
    """Trainings left."""
    return [
        Training(cell=each.cell, identity=identity, network=number, root=root, device=device)
        for each in planned
        for number, identity in enumerate(each.identities)
        if not each.skip and (identity, 0) in left
    ]


def _cost(chunk: Chunk) -> tuple[int, int]:
    cell = chunk.cells[0]
    shape = look_up(cell.source).input_shape
    colour = 2 if len(shape) == 3 and shape[0] > 1 else 1
    return len(chunk.images) * colour * (2 if cell.knowledge == "adaptive" else 1), -chunk.network


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
    plan_cells(plan, root, device)  # its mistakes show before anything is tried out
    dependent = dependent_rows(plan, root, device)
    platform = platform_of(device, chunk_size if dependent else None)
    planned = plan_cells(plan, root, platform)
    trained = plan_trainings(plan, root, platform)
    store = Run(folder)
    both: list[PlannedCell | PlannedTraining] = [*planned, *trained]
    everything = [key for cell in both if not cell.skip for key in cell.trials()]
    skipped = sum(len(list(cell.trials())) for cell in both if cell.skip)
    with store.writing() as writer:
        records = store.records()
        left = todo(both, records)
        # A training keeps one worker busy for minutes: all of them come first.
        work: list[Work] = [
            *trainings(trained, left, root, device),
            *chunks(planned, left, root, device, chunk_size, whole=bool(dependent)),
        ]
        interrupted, errors = False, 0
        done = len(everything) - len(left)
        content = _manifest(plan, both, device, platform, dependent)
        manifest = _write_manifest(writer, content, bool(work))
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
        changed=bool(manifest),
        platform=platform,
        torn_bytes=writer.torn,
        interrupted=interrupted,
    )


def _write_manifest(writer: Writer, content: Mapping[str, Any], needed: bool) -> str:
    """Hash of this invocation's manifest; a no-op that asks what the last one asked writes none."""
    newest = writer.run.manifest() if any(writer.run.manifests()) else {}
    asked = {k: v for k, v in content.items() if k in _ASKED}
    if not needed and asked == {k: v for k, v in newest.items() if k in _ASKED}:
        return ""
    return writer.manifest(content)


def _store(writer: Writer, result: ChunkResult, manifest: str, seconds: float) -> None:
    for name, arrays in result.arrays.items():
        writer.arrays(name, arrays)
    each = round(seconds / max(len(result.records), 1), 3)
    lines = []
    for record in result.records:
        # Where its arrays lie depends on the chunk, so it stands with what a host decides.
        host = {"manifest": manifest, "seconds": each}
        host |= {name: record[name] for name in _OF_HOST if name in record}
        lines.append({k: v for k, v in record.items() if k not in _OF_HOST} | {"host": host})
    writer.append(lines)


_OF_HOST = ("arrays", "seconds_per_iteration")
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
    result = _attempt(piece) if isinstance(piece, Chunk) else _attempt_training(piece)
    return piece, result, time.monotonic() - begun


def _attempt_training(task: Training) -> ChunkResult:
    try:
        record = run_training(task)
    except torch.OutOfMemoryError as error:
        record = failed_training(task, "oom", one_line(error))
    except (Exception, SystemExit) as error:  # noqa: BLE001  a plugin may fail in any way
        record = failed_training(task, "error", one_line(error))
    return ChunkResult(records=(record,), arrays={})


def _attempt(chunk: Chunk) -> ChunkResult:
    """Run a chunk; if it fails, cell by cell: one row's defense must not take the others down."""
    try:
        return run_chunk(chunk)
    except torch.OutOfMemoryError as error:
        return failed(chunk, "oom", one_line(error))
    except (Exception, SystemExit) as error:  # noqa: BLE001  a plugin may fail in any way
        of_cells = sorted({of for of, _ in chunk.trials})
        if len(of_cells) == 1:
            return failed(chunk, "error", one_line(error))
    parts = [
        _attempt(replace(chunk, trials=tuple(trial for trial in chunk.trials if trial[0] == of)))
        for of in of_cells
    ]
    return ChunkResult(
        records=tuple(record for part in parts for record in part.records),
        arrays={name: arrays for part in parts for name, arrays in part.arrays.items()},
    )


def _manifest(
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
        "cells": len(planned),
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
