"""What a training spends: epsilon after every round, by accountant, from its recorded releases.

Nothing is trained again. Lines are for who holds the model after so many rounds; where examples
are sampled, one more is for who sees in which steps an example takes part. Defenses that release
the same are one panel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from leakbench.described import PlannedTraining
from leakbench.errors import LeakbenchError
from leakbench.privacy.account import epsilon
from leakbench.privacy.events import PrivacyEvent, Relation, grouped
from leakbench.privacy.gdp import epsilon_of_mu
from leakbench.privacy.inverse import first_steps
from leakbench.records import Key, Record
from leakbench.report.figures import Name, Panel, Row, look_of
from leakbench.report.words import compact
from leakbench.spec import ACCOUNTANTS, JUDGED, Plan

Points = tuple[tuple[int, float], ...]
"""(rounds done, epsilon), in order."""

SEEN = "seen"
"""Line of an observer from whom sampling hides nobody."""

_NAMES = {
    **ACCOUNTANTS,
    SEEN: "by who sees who takes part, of as many steps as an example is expected in",
}
_ROUNDS = 8
"""Points of a line, about."""
_WORST = 1000
"""Multiples of the smallest epsilon that are shown."""
_SLOW = 16
"""Kinds of releases from which on composing loss distributions takes seconds a point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """What equal trainings spend.

    labels: of the defenses. level: whose presence is hidden. lines: names of `ACCOUNTANTS`, and
    `SEEN`, -> their points, of those that have an epsilon here.
    """

    labels: tuple[str, ...]
    level: str
    relation: Relation
    delta: float
    lines: Mapping[str, Points]


def spending_of(
    plan: Plan, planned: Sequence[PlannedTraining], records: Mapping[Key, Record]
) -> dict[str, list[Spending]]:
    """Title of a data set and variant -> what its defenses spend, equal ones together.

    Raises:
        LeakbenchError: no training with a promise has a result.
    """
    labels = {defense.id: defense.label for defense in plan.defenses}
    found: dict[str, list[Spending]] = {}
    for (dataset, variant), group in groupby(
        planned, key=lambda each: (each.cell.dataset, each.cell.variant)
    ):
        alike: dict[tuple[Any, ...], list[str]] = {}
        title = dataset
        for each in group:
            title = (each.title or dataset).split(",")[0]
            first = next((r for r in _judged(each, records)), None)
            if first is not None and (spent := _key(first)) is not None:
                label = labels.get(each.cell.defense_id, each.cell.label)
                alike.setdefault(spent, []).append(label)
        if alike:
            found[f"{title}, {variant}" if variant else title] = [
                _spending(tuple(names), *spent) for spent, names in alike.items()
            ]
    if not found:
        raise LeakbenchError("no training whose defense promises an epsilon has a result")
    return found


def _judged(planned: PlannedTraining, records: Mapping[Key, Record]) -> list[Record]:
    found = [records[key] for key in planned.trials() if key in records]
    return [record for record in found if record["status"] in JUDGED]


def _key(record: Record) -> tuple[Any, ...] | None:
    """All that the lines depend on; None where nothing is promised."""
    promised = record.get("privacy") or {}
    if promised.get("epsilon") is None or not promised.get("events"):
        return None
    # A multiplier is one of the sensitivity already; its last digits are of how it was computed.
    events = tuple(
        replace(each, sensitivity=1.0, noise_multiplier=float(f"{each.noise_multiplier:.9g}"))
        for each in (PrivacyEvent(**event) for event in promised["events"])
    )
    return (
        events, int(record["rounds"]), promised["level"], promised["relation"], promised["delta"],
        promised["epsilon"],
    )  # fmt: skip


def _spending(
    labels: tuple[str, ...],
    events: tuple[PrivacyEvent, ...],
    rounds: int,
    level: str,
    relation: Relation,
    delta: float,
    final: float,
) -> Spending:
    """final: what was recorded, by `pld`."""
    lines: dict[str, Points] = {}
    total = sum(event.steps for event in events)
    for name in _NAMES:
        points = []
        for done in _places(rounds):
            some = first_steps(events, total * done // rounds)
            if name == SEEN:
                value = seen_epsilon(some, delta, relation)
            elif name == "pld" and done == rounds:
                value = final
            elif name == "pld" and len(grouped(some)) > _SLOW:
                continue
            else:
                value = _epsilon(some, delta, name, relation)
            if value is not None and math.isfinite(value) and value > 0:
                points.append((done, value))
        if points:
            lines[name] = tuple(points)
    return Spending(labels=labels, level=level, relation=relation, delta=delta, lines=lines)


def _places(rounds: int) -> list[int]:
    """Rounds after which epsilon is computed: the first, the last, and some between."""
    return sorted({round(at) for at in np.linspace(1, rounds, min(rounds, _ROUNDS)).tolist()})


@lru_cache(maxsize=4096)  # a page is made more than once
def _epsilon(
    events: tuple[PrivacyEvent, ...], delta: float, accountant: str, relation: Relation
) -> float | None:
    return epsilon(events, delta, accountant=accountant, relation=relation).epsilon


def seen_epsilon(events: Sequence[PrivacyEvent], delta: float, relation: Relation) -> float | None:
    """Epsilon for who sees who takes part, of as many steps as an example is expected in; None
    where nothing is sampled, and it is what the model's holder has."""
    groups = grouped(events)
    if all(group.rate == 1 for group in groups):
        return None
    square = sum(g.rate * g.steps * g.separation(relation) ** 2 for g in groups)
    return epsilon_of_mu(math.sqrt(square), delta)


# ------------------------------------------------------------------------------ drawing


def epsilon_rows(
    plan: Plan, planned: Sequence[PlannedTraining], records: Mapping[Key, Record]
) -> list[Row]:
    """A row a data set and variant, a panel a mechanism.

    Raises:
        LeakbenchError: see `spending_of`.
    """

    def panel(one: Spending) -> Panel:
        of = {"add_remove": "add or remove", "replace_one": "replace"}[one.relation]
        who = {"client": "client"}.get(one.level, "example")
        return Panel(
            head=f"{_joined(one.labels)}: {of} one {who}", across="rounds",
            up=f"epsilon at delta {compact(one.delta)}", whole=True,
            draw=lambda axes: _draw(axes, one),
        )  # fmt: skip

    rows = []
    for title, some in spending_of(plan, planned, records).items():
        names = [name for name in _NAMES if any(name in one.lines for one in some)]
        rows.append(
            Row(
                title=title,
                panels=[panel(one) for one in some],
                names=[Name(label=f"{name}: {_NAMES[name]}", look=_look(name)) for name in names],
            )
        )
    return rows


def _joined(labels: Sequence[str]) -> str:
    """The first of equal ones."""
    return labels[0] + (f" and {len(labels) - 1} more" if len(labels) > 1 else "")


def _look(name: str) -> dict[str, Any]:
    look = look_of(list(_NAMES).index(name))
    if name == SEEN:  # a ring: told apart where there is one point, and shows what it surrounds
        look |= {"markersize": 6, "markerfacecolor": "none"}
    return look


def _draw(axes: Axes, one: Spending) -> None:
    for name, points in one.lines.items():
        axes.plot(*zip(*points, strict=True), **_look(name))
    rounds, values = zip(*(p for points in one.lines.values() for p in points), strict=True)
    axes.set_xlim(0, max(rounds) * 1.03 if max(rounds) > 1 else 2)
    axes.set_yscale("log")
    # What one theorem cannot bound must not press all others into one line.
    least = min(points[-1][1] for points in one.lines.values())
    axes.set_ylim(min(values) / 1.5, min(max(values), _WORST * least) * 1.5)
