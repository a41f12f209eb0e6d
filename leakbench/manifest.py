"""What a run says of itself: the plan as it was resolved, its cells, and where they were run.

A run folder holds one manifest an invocation; reports, galleries and judges of the run read the
newest and nothing else, so that a run outlives the suite and the code that made it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from leakbench.described import PlannedCell, PlannedTraining
from leakbench.errors import LeakbenchError
from leakbench.plain import from_json
from leakbench.records import Run
from leakbench.spec import Plan, plan_from_json, plan_to_json

SCHEMA = 2
"""Of a manifest. Before 2 it held the arguments of the run, and no plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A run as it was asked for, and what of the machine matters.

    Attributes:
        plan: the suite, resolved. cells, trainings: its cells with their resume keys.
        facts: arguments, machine, versions and time, for people to read.
    """

    plan: Plan
    cells: tuple[PlannedCell, ...]
    trainings: tuple[PlannedTraining, ...]
    facts: Mapping[str, Any]

    def says_the_same(self, other: Manifest) -> bool:
        """Whether a report of the one is a report of the other, time and machine apart."""
        return (
            self.plan == other.plan
            and self.cells == other.cells
            and self.trainings == other.trainings
            and all(self.facts.get(name) == other.facts.get(name) for name in PLATFORM)
        )


PLATFORM = ("device", "arithmetic", "torch", "unit")
"""Facts that decide bits, and so belong to what was run."""


def read(run: Run) -> Manifest:
    """The newest manifest of a run.

    Raises:
        LeakbenchError: none, or one that cannot be read.
    """
    content = run.manifest()
    if "plan" not in content:
        from leakbench import older_runs  # brings torch

        return older_runs.described(run, content)
    return from_manifest(content, f"{run.folder}, newest manifest")


def to_json(manifest: Manifest) -> dict[str, Any]:
    """A manifest as plain values; `from_manifest` reads it back."""
    return {
        **_sorted(manifest.facts),
        "schema": SCHEMA,
        "plan": plan_to_json(manifest.plan),
        "cells": [_cell_to_json(cell) for cell in manifest.cells],
        "trainings": [_without_cell(training) for training in manifest.trainings],
    }


def from_manifest(content: Mapping[str, Any], where: str) -> Manifest:
    """The manifest that `to_json` wrote; `where` is named in errors.

    Raises:
        LeakbenchError: a value that is missing, unknown, or of another kind; another schema.
    """
    if content.get("schema") != SCHEMA:
        text = f"schema {content.get('schema')!r}, this leakbench reads {SCHEMA}"
        raise LeakbenchError(f"{where}: {text}")
    plan = plan_from_json(content.get("plan"), f"{where}, key plan")
    cells, trainings = (
        _tables(content, key, of_plan, where)
        for key, of_plan in (("cells", "cells"), ("trainings", "utility"))
    )
    return Manifest(
        plan=plan,
        cells=tuple(_cell_from_json(*pair) for pair in cells),
        trainings=tuple(from_json(PlannedTraining, *pair) for pair in trainings),
        facts={k: v for k, v in content.items() if k not in _OWN},
    )


def _sorted(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts in alphabetical order, as reports list them; the plan keeps the order of its suite."""
    return {
        name: _sorted(value) if isinstance(value, Mapping) else value
        for name, value in sorted(facts.items())
    }


_OWN = ("schema", "plan", "cells", "trainings")


def _tables(
    content: Mapping[str, Any], key: str, of_plan: str, where: str
) -> list[tuple[dict[str, Any], str]]:
    """Tables with the cells of the plan that they describe, and the words for an error there."""
    cells, found = content["plan"][of_plan], content.get(key)
    if not isinstance(found, list) or len(found) != len(cells):
        text = f"must be {len(cells)} tables, one for each cell of the plan"
        raise LeakbenchError(f"{where}, key {key}: {text}")
    pairs = []
    for number, (table, cell) in enumerate(zip(found, cells, strict=True)):
        place = f"{where}, key {key}.{number}"
        if not isinstance(table, Mapping):
            raise LeakbenchError(f"{place}: must be a table, got {table!r:.60}")
        pairs.append(({**table, "cell": cell}, place))
    return pairs


def _without_cell(described: PlannedCell | PlannedTraining) -> dict[str, Any]:
    """Fields of a cell that the plan does not hold."""
    return {
        field.name: getattr(described, field.name)
        for field in dataclasses.fields(described)
        if field.name != "cell"
    }


def _cell_to_json(cell: PlannedCell) -> dict[str, Any]:
    found = _without_cell(cell)
    # Victims count up, and priors repeat: thousands of numbers that a few say as well.
    found["victims"] = [_runs(v - i for i, v in enumerate(some)) for some in cell.victims]
    found["priors"] = [_runs(some) for some in cell.priors]
    return found


def _cell_from_json(table: dict[str, Any], where: str) -> PlannedCell:
    numbers = {
        key: [
            _unrolled(some, kind, f"{where}, key {key}")
            for some in from_json(tuple[Any, ...], table.get(key, []), f"{where}, key {key}")
        ]
        for key, kind in (("victims", int), ("priors", float))
    }
    numbers["victims"] = [[v + i for i, v in enumerate(some)] for some in numbers["victims"]]
    cell: PlannedCell = from_json(PlannedCell, {**table, **numbers}, where)
    if len(cell.victims) != len(cell.identities):
        raise LeakbenchError(f"{where}, key victims: must be a list for each of the identities")
    return cell


def _runs(values: Iterable[float]) -> list[list[float]]:
    """Equal neighbours as [value, how many]."""
    return [[value, len(list(same))] for value, same in groupby(values)]


def _unrolled(runs: Any, kind: type, where: str) -> list[Any]:
    """What `_runs` was given."""
    found: list[Any] = []
    for run in runs if isinstance(runs, tuple) else [runs]:
        sound = isinstance(run, tuple) and len(run) == 2
        if not sound or type(run[1]) is not int or not 0 < run[1] <= MOST:
            raise LeakbenchError(
                f"{where}: must be pairs of a number and its count, got {run!r:.60}"
            )
        found += [from_json(kind, run[0], where)] * run[1]
    return found


MOST = 10**6
"""Largest count of equal numbers; a damaged one must not fill the memory."""
