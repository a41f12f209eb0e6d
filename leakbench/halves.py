"""Victims in two halves: one to choose a defense by, one to report what the chosen one leaks."""

from __future__ import annotations

from collections.abc import Sequence

from leakbench.described import PlannedCell
from leakbench.errors import LeakbenchError
from leakbench.spec import Plan

VictimLists = tuple[tuple[int, ...], ...]
"""Candidate numbers, a tuple a network."""


def split(
    lists: Sequence[tuple[Sequence[int], int]],
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The victims of one network, as each cell of a data set has them, in two halves.

    Args:
        lists: For every cell its victims, increasing and in whole batches, and the batch size.

    Returns:
        For every cell (first half, second half) in whole batches. All cells are cut at the same
        candidate, in the middle of the one with the largest batches (an odd batch goes to the
        second half), so no victim is in the first half of one cell and the second of another; a
        smaller batch across the cut is in neither. A half is empty where it holds no batch.
    """
    longest, size = max(lists, key=lambda item: item[1])
    middle = len(longest) // size // 2 * size
    halves = []
    for victims, each in lists:
        batches = [victims[i : i + each] for i in range(0, len(victims), each)]
        first = [batch for batch in batches if middle and batch[-1] < longest[middle]]
        second = [batch for batch in batches if middle and batch[0] >= longest[middle]]
        halves.append((_flat(first), _flat(second)))
    return halves


def _flat(batches: Sequence[Sequence[int]]) -> tuple[int, ...]:
    return tuple(victim for batch in batches for victim in batch)


def _refuse_empty(
    plan: Plan,
    dataset: str,
    sizes: Sequence[int],
    halves: Sequence[tuple[tuple[int, ...], tuple[int, ...]]],
) -> None:
    """Raise where a cell cannot choose and report on different victims."""
    for size, (first, second) in zip(sizes, halves, strict=True):
        if not (first and second):
            raise LeakbenchError(
                f"{plan.file}, key profiles.{plan.profile}.victims: {plan.victims} are too few on "
                f"{dataset} to choose by half of them and report on the other; a half needs at "
                f"least one batch, here of {size} image{'s' if size > 1 else ''}"
            )


def check_halves(plan: Plan) -> None:
    """Refuse a plan whose victims are too few for two halves.

    Raises:
        LeakbenchError: a half without a batch.
    """
    for dataset in dict.fromkeys(cell.dataset for cell in plan.cells):
        sizes = [cell.images_a_gradient for cell in plan.cells if cell.dataset == dataset]
        halves = split([(range(plan.victims // size * size), size) for size in sizes])
        _refuse_empty(plan, dataset, sizes, halves)


def in_halves(
    plan: Plan, planned: Sequence[PlannedCell]
) -> tuple[list[PlannedCell], list[PlannedCell]]:
    """The cells of one data set with the first, and with the second half of their victims."""
    sizes = [each.cell.images_a_gradient for each in planned]
    networks = []
    for lists in zip(*(each.victims for each in planned), strict=True):
        halves = split(list(zip(lists, sizes, strict=True)))
        _refuse_empty(plan, planned[0].cell.dataset, sizes, halves)
        networks.append(halves)
    first, second = (
        [each.only(tuple(halves[i][half] for halves in networks)) for i, each in enumerate(planned)]
        for half in (0, 1)
    )
    return first, second


def victims_of(planned: Sequence[PlannedCell]) -> VictimLists:
    """All victims of some cells of a data set, network by network."""
    networks = zip(*(each.victims for each in planned), strict=True)
    return tuple(tuple(sorted({i for victims in lists for i in victims})) for lists in networks)
