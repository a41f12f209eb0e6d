"""What is left of a plan, in pieces that a process does at once, and what to do with a lost one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from leakbench import forecast
from leakbench.chunks import Chunk
from leakbench.data.catalog import look_up
from leakbench.described import PlannedCell, PlannedTraining
from leakbench.records import Key, Record
from leakbench.spec import JUDGED, Limits, Rule, canonical
from leakbench.utility import Training
from leakbench.working import Done, Task, Work, by_cell, by_victim

GRADIENTS = 2**29
"""Bytes of the gradients that are attacked together; a chunk holds a few copies of them."""

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Shard:
    """Part `number`, from 1, of `of` parts of a plan that have nothing in common.

    A part is decided by the plan alone, whatever is left of it, and has a share of every cell: as
    many networks as can be are whole in one part, since each may have to be trained first.
    """

    number: int
    of: int

    def has(self, place: int, count: int) -> bool:
        """Whether the block `place` of `count` is in this part."""
        return place * self.of // count == self.number - 1

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


WHOLE = Shard(1, 1)


def trials_of(cell: PlannedCell, shard: Shard, most: int) -> Iterator[Key]:
    """Resume keys of a cell's trials in a part of the plan.

    most: images whose bits may depend on each other, which stay together; 0 where none do.
    """
    each = cell.cell.images_a_gradient
    size = max(most // each, 1) * each
    blocks = [
        (identity, block)
        for identity, victims in zip(cell.identities, cell.victims, strict=True)
        for block in _cut(victims, size)
    ]
    for place, (identity, block) in enumerate(blocks):
        if shard.has(place, len(blocks)):
            yield from ((identity, victim) for victim in block)


def trainings_of(planned: Sequence[PlannedTraining], shard: Shard) -> list[Key]:
    """Resume keys of the trainings in a part of the plan, dealt out in turn."""
    every = dict.fromkeys(key for each in planned if not each.skip for key in each.trials())
    return [key for place, key in enumerate(every) if place % shard.of == shard.number - 1]


class TimeLimits:
    """How long a piece of work may take, in seconds: what the suite or an option says, else far
    more than it should (`SLACK`), so that what hangs does not hang for ever."""

    SLACK = (3600.0, 30.0)
    """Seconds, beside a multiple of the forecast; both cover what else is trained on the way."""

    def __init__(self, limits: Limits, cells: Sequence[PlannedCell]) -> None:
        self._limits = limits
        self._cells = {identity: cell for cell in cells for identity in cell.identities}

    def of(self, work: Work) -> float:
        """The limit of a chunk, or of a training, which counts as a chunk."""
        base, factor = self.SLACK
        if isinstance(work, Training):
            expected = forecast.training_seconds(work.cell)
            return self._limits.chunk or base + factor * expected
        some = []
        if self._limits.trial:
            some.append(self._limits.trial * len(work.trials))
        if self._limits.chunk:
            some.append(self._limits.chunk)
        if some:
            return min(some)
        images = work.cells[0].images_a_gradient
        expected = sum(
            forecast.trial_seconds(self._cells[work.identities[of]]) * images * count
            for of, count in Counter(of for of, _ in work.trials).items()
        )
        return base + factor * expected


MACHINES = 5
"""How often a task is handed out again whose machine went away."""


def instead(done: Done, limits: TimeLimits) -> list[Task]:
    """What to do in place of a lost task: its cells by themselves, then its victims, each of them
    once; what is a single victim, or cannot be divided, once more. [] where all that is done: it
    has failed."""
    task = done.task
    if done.innocent:
        return [replace(task, tries=task.tries + 1)] if task.tries < MACHINES else []
    if isinstance(task.work, Chunk) and task.divisible and len(task.work.trials) > 1:
        parts = by_cell(task.work)
        tries = 0
        if len(parts) == 1:
            parts, tries = by_victim(task.work), 1
        return [replace(task, work=part, seconds=limits.of(part), tries=tries) for part in parts]
    again = task.tries == 0 and not done.timeout  # who hangs once hangs twice
    return [replace(task, tries=1)] if again else []


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
