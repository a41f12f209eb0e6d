"""Who is where: attacks on the same leaks, and defenses at the same price.

A place is one more than the number of those who are certainly better: whose interval lies on the
better side of one's own without a common point. So places are shared where trials do not tell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from leakbench.errors import LeakbenchError
from leakbench.leaderboard.packs import Counts
from leakbench.leaderboard.scores import Row, Score
from leakbench.report.content import CostEntry, Entry, FinalEpsilon, Report, ReportCell
from leakbench.statistics import Interval

ACCURACY_STEP = 0.05
"""Accuracies within one such step from 0 on count as equal; epsilons within one power of 2."""

NOTHING = Interval(None, None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackEntry(Entry):
    """One submission on one row of a pack.

    Attributes:
        place: by the rate of victims recovered; None for who recovered none, or where the pack has
            no such rule.
        rates: by the pack's rules. mse, psnr: medians.
        evaluations, seconds, hardware: as its maker says.
    """

    place: int | None
    name: str
    link: str
    knowledge: str
    rates: dict[str, Interval]
    mse: Interval
    psnr: Interval
    evaluations: float | None
    seconds: float | None
    hardware: str
    answered: int
    networks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackTable(Entry):
    """All submissions on one row of a pack. ranked_by: name of a rule, "" without one. mean_image:
    the error of who does not look at the gradient."""

    pack: str
    pack_title: str
    row: str
    label: str
    dataset: str
    guarantee: str
    inputs: int
    mean_image: float
    counts: dict[str, str]
    ranked_by: str
    entries: tuple[AttackEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DefenseEntry(Entry):
    """One defense against the worst of its adaptive attackers.

    Attributes:
        recovered, named: rates of the worst attacker of each; attacker: who recovers the most.
        ceiling: of naming a victim, by what is promised to who reads there; None without a promise.
        accuracy: of the network `trained`, after so many rounds; it may be another than the one
            that was attacked.
        privacy: of the final model; None where nothing is promised.
        at_epsilon, at_accuracy: what counts as equal, in words.
        place_at_epsilon, place_at_accuracy: among those; None where there is none.
    """

    label: str
    recovered: Interval
    named: Interval
    attacker: str
    trials: int
    ceiling: float | None
    accuracy: Interval
    trained: str
    rounds: int
    privacy: FinalEpsilon | None
    at_epsilon: str = ""
    at_accuracy: str = ""
    place_at_epsilon: int | None = None
    place_at_accuracy: int | None = None

    @property
    def epsilon(self) -> float | None:
        """Of the final model."""
        return None if self.privacy is None else self.privacy.epsilon


@dataclass(frozen=True, slots=True, kw_only=True)
class DefenseTable(Entry):
    """Defenses that were attacked alike: same data, network, tap and attackers.

    kind: "dp" where the final model has an epsilon, else "heuristic"; neither is ranked among the
    other. unranked: names of those without accuracy, which have no place, and no rate here.
    """

    kind: str
    title: str
    dataset: str
    model: str
    leak: str
    panel: tuple[str, ...]
    entries: tuple[DefenseEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unranked(Entry):
    """Defenses of a run that are in no table, and why."""

    title: str
    labels: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Board(Entry):
    """All tables of a page."""

    attacks: tuple[AttackTable, ...]
    defenses: tuple[DefenseTable, ...]
    unranked: tuple[Unranked, ...]


def board(scores: Sequence[Score], reports: Sequence[Report]) -> Board:
    """What scores and runs say together.

    Raises:
        LeakbenchError: scores of one pack by different rules or metrics.
    """
    tables, unranked = [], []
    for report in reports:
        found, left = _defenses(report)
        tables += found
        unranked += left
    return Board(
        attacks=tuple(_attacks(scores)), defenses=tuple(_merged(tables)), unranked=tuple(unranked)
    )


def places(rates: Sequence[Interval], better: Callable[[Interval, Interval], bool]) -> list[int]:
    """Of each rate one more than the number of those that are certainly better."""
    return [1 + sum(better(other, own) for other in rates) for own in rates]


def above(one: Interval, other: Interval) -> bool:
    """Whether all of `one` lies above `other`."""
    return one.low is not None and other.high is not None and one.low > other.high


def below(one: Interval, other: Interval) -> bool:
    """Whether all of `one` lies below `other`."""
    return above(other, one)


# ------------------------------------------------------------------------------ attacks


def _attacks(scores: Sequence[Score]) -> list[AttackTable]:
    packs: dict[str, list[Score]] = {}
    for score in scores:
        packs.setdefault(score.pack, []).append(score)
    tables = []
    for pack, several in packs.items():
        if len({score.judge for score in several}) > 1:
            raise LeakbenchError(
                f"pack {pack:.16}...: its scores are of different rules or metrics; allowed: "
                "scores of one leakbench; score the submissions again"
            )
        for row in dict.fromkeys(row.row for score in several for row in score.rows):
            own = [(score, each) for score in several for each in score.rows if each.row == row]
            tables.append(_attack_table(own))
    return tables


def _attack_table(own: Sequence[tuple[Score, Row]]) -> AttackTable:
    score, first = own[0]
    entries = [_attack_entry(each, row) for each, row in own]
    rules = set(entries[0].rates)
    if any(set(entry.rates) != rules for entry in entries):
        raise LeakbenchError(
            f"pack {score.pack:.16}..., row {first.row!r:.80}: its scores have rates of different "
            "rules; allowed: scores of one leakbench; score the submissions again"
        )
    rule = next((each for each in score.counts if each.recovers and each.name in rules), None)
    if rule is not None:
        rates = [entry.rates[rule.name] for entry in entries]
        entries = [
            replace(entry, place=place if entry.rates[rule.name].value else None)
            for entry, place in zip(entries, places(rates, above), strict=True)
        ]
        entries.sort(key=lambda entry: _order(entry, rule))
    return AttackTable(
        pack=score.pack,
        pack_title=f"{score.pack_title} ({score.pack_name})",
        row=first.row,
        label=first.label,
        dataset=first.dataset,
        guarantee=first.guarantee,
        inputs=first.inputs,
        mean_image=first.mean_image,
        counts={each.name: each.label for each in score.counts},
        ranked_by="" if rule is None else rule.name,
        entries=tuple(entries),
    )


def _order(entry: AttackEntry, rule: Counts) -> tuple[float, float, float]:
    """By place, then rate, then error: of those that share a place the first looks best. Who has
    none comes last."""
    error = math.inf if entry.mse.value is None else entry.mse.value
    return entry.place or math.inf, -(entry.rates[rule.name].value or 0.0), error


def _attack_entry(score: Score, row: Row) -> AttackEntry:
    said = score.submission
    return AttackEntry(
        place=None,
        name=said.name,
        link=said.link,
        knowledge=said.knowledge,
        rates=dict(row.rates),
        mse=row.mse,
        psnr=row.psnr,
        evaluations=said.budget.evaluations,
        seconds=said.budget.seconds,
        hardware=said.budget.hardware,
        answered=row.answered,
        networks=row.networks,
    )


# ------------------------------------------------------------------------------ defenses


def _defenses(report: Report) -> tuple[list[DefenseTable], list[Unranked]]:
    """Tables of one run, not ranked yet."""
    exact = next((r.name for r in report.rules if r.recovers and not r.paper), None)
    names = next((r.name for r in report.rules if r.names and not r.paper), None)
    leaks: dict[str, list[ReportCell]] = {}
    for cell in report.cells:
        leaks.setdefault(cell.leak_id, []).append(cell)
    tables: dict[tuple[str, ...], DefenseTable] = {}
    unranked: dict[str, list[str]] = {}
    for attacked in leaks.values():
        first = attacked[0]
        cells = [cell for cell in attacked if cell.knowledge == "adaptive" and cell.networks]
        if not cells:
            reason = "no attacker who knows it has a result"
            unranked.setdefault(reason, []).append(first.label)
            continue
        cost = _cost(report, first)
        reason = "no rule asks for the victim himself" if exact is None else ""
        if cost is None or cost.accuracy.value is None:
            reason = "no accuracy beside it: nothing was trained"
        if reason or exact is None or cost is None:
            unranked.setdefault(reason, []).append(first.label)
            continue
        entry = _defense_entry(cells, cost, exact, names)
        kind = "heuristic" if entry.epsilon is None else "dp"
        panel = tuple(sorted({cell.attack for cell in cells}))
        key = (kind, first.dataset, first.model, first.leak, *panel)
        table = tables.get(key) or DefenseTable(
            kind=kind, title=report.title, dataset=first.dataset, model=first.model,
            leak=first.leak, panel=panel, entries=(),
        )  # fmt: skip
        tables[key] = replace(table, entries=(*table.entries, entry))
    left = [
        Unranked(title=report.title, labels=tuple(dict.fromkeys(labels)), reason=reason)
        for reason, labels in unranked.items()
    ]
    return list(tables.values()), left


def _cost(report: Report, cell: ReportCell) -> CostEntry | None:
    """The training with the same defense; of several that of the same network, then row."""
    found = [
        cost
        for cost in report.costs
        if (cost.dataset, cost.defense) == (cell.dataset, cell.defense)
    ]
    return max(
        found, key=lambda cost: (cost.model == cell.model, cost.row == cell.row), default=None
    )


def _defense_entry(
    cells: Sequence[ReportCell], cost: CostEntry, exact: str, names: str | None
) -> DefenseEntry:
    makers = [cell for cell in cells if "candidates" not in cell.grants] or list(cells)
    worst = max(makers, key=lambda cell: cell.asr[exact].value or 0.0)
    named = NOTHING
    if names is not None:
        named = max((cell.asr[names] for cell in cells), key=lambda rate: rate.value or 0.0)
    ceilings = [cell.ceiling for cell in cells if cell.ceiling is not None]
    return DefenseEntry(
        label=worst.label,
        recovered=worst.asr[exact],
        named=named,
        attacker=worst.attack,
        trials=worst.planned - worst.absent,
        ceiling=max(ceilings, default=None),
        accuracy=cost.accuracy,
        trained=cost.model,
        rounds=cost.rounds,
        privacy=cost.privacy,
    )


def _merged(tables: Sequence[DefenseTable]) -> list[DefenseTable]:
    """Tables of all runs, those that were attacked alike as one, and ranked."""
    found: dict[tuple[object, ...], DefenseTable] = {}
    for table in tables:
        key = (table.kind, table.dataset, table.model, table.leak, table.panel)
        if key in found:
            before = found[key]
            titles = dict.fromkeys([*before.title.split("; "), table.title])
            table = replace(
                before, title="; ".join(titles), entries=(*before.entries, *table.entries)
            )
        found[key] = table
    ordered = sorted(found.values(), key=lambda table: (table.dataset, table.kind))
    return [replace(table, entries=_ranked(table)) for table in ordered]


def _ranked(table: DefenseTable) -> tuple[DefenseEntry, ...]:
    """With places among those of equal epsilon and of equal accuracy."""
    entries = [
        replace(
            entry,
            at_epsilon="" if entry.epsilon is None else epsilon_band(entry.epsilon),
            at_accuracy=accuracy_band(entry.accuracy.value or 0.0),
        )
        for entry in table.entries
    ]
    by_epsilon = _places_among(entries, [_promised(entry) for entry in entries])
    by_accuracy = _places_among(entries, [(entry.at_accuracy,) for entry in entries])
    entries = [
        replace(entry, place_at_epsilon=of_epsilon, place_at_accuracy=of_accuracy)
        for entry, of_epsilon, of_accuracy in zip(entries, by_epsilon, by_accuracy, strict=True)
    ]
    return tuple(sorted(entries, key=_price))


def _promised(entry: DefenseEntry) -> tuple[object, ...]:
    """What must be equal for an epsilon to be: epsilons of two relations are two things."""
    privacy = entry.privacy
    if privacy is None or privacy.epsilon is None:
        return ()
    return (entry.at_epsilon, privacy.level, privacy.relation, privacy.delta, privacy.observer)


def _places_among(
    entries: Sequence[DefenseEntry], prices: Sequence[tuple[object, ...]]
) -> list[int | None]:
    """Place of each among those of the same price; None for one that has none."""
    found: list[int | None] = [None] * len(entries)
    for price in dict.fromkeys(prices):
        where = [i for i, own in enumerate(prices) if own == price and own]
        rates = [entries[i].recovered for i in where]
        for i, number in zip(where, places(rates, below), strict=True):
            found[i] = number
    return found


def _price(entry: DefenseEntry) -> tuple[float, float, float]:
    """Equal epsilons together, then equal accuracies, then by place."""
    epsilon = 0.0 if entry.epsilon is None else _power(entry.epsilon)
    step = math.floor((entry.accuracy.value or 0.0) / ACCURACY_STEP + 1e-9)
    return epsilon, -step, entry.recovered.value or 0.0


def _power(epsilon: float) -> float:
    """The power of 2 from 1 on that an epsilon is at most."""
    if epsilon <= 1:
        return 1.0
    return math.inf if math.isinf(epsilon) else 2.0 ** math.ceil(math.log2(epsilon) - 1e-9)


def epsilon_band(epsilon: float) -> str:
    """Epsilons that count as equal: up to 1, and from one power of 2 to the next."""
    most = _power(epsilon)
    return "up to 1" if most == 1 else f"{most / 2:g} to {most:g}"


def accuracy_band(accuracy: float) -> str:
    """Accuracies that count as equal."""
    step = math.floor(min(accuracy, 1.0 - 1e-9) / ACCURACY_STEP + 1e-9)
    return f"{step * ACCURACY_STEP:.2f} to {(step + 1) * ACCURACY_STEP:.2f}"
