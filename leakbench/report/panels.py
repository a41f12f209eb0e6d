"""What a panel of attackers got out of one defense: a ladder, its members, and a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from leakbench.report.content import Report, ReportCell
from leakbench.report.renderings import markdown_table
from leakbench.report.words import Table, compact, interval_words, rate_words
from leakbench.spec import Plan
from leakbench.statistics import Interval

EXACT, NAMED = "strict", "identified"
"""Rules of the suite `standard_panel`: the image itself, and its number among the candidates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """All that attacked one kind of network.

    panel, matching: the cells of attacks made of others, and of the candidates attack; who ignores
    the defense first.
    """

    name: str
    panel: tuple[ReportCell, ...]
    matching: tuple[ReportCell, ...]

    def worst(self, rule: str) -> Interval:
        """The highest rate of any attacker who returns an image of his own making."""
        return _highest([cell.asr[rule] for cell in self.panel])

    @property
    def matched(self) -> Interval:
        """The highest rate of those who choose among candidates."""
        return _highest([cell.asr[NAMED] for cell in self.matching])

    @property
    def ceiling(self) -> float | None:
        """What no attacker can beat; None without a guarantee."""
        known = [c.ceiling for c in (*self.panel, *self.matching) if c.ceiling is not None]
        return max(known, default=None)


def networks_of(report: Report) -> tuple[Network, ...]:
    """Of a run of the suite `standard_panel`: a network is a variant's id but for its last word."""
    found: dict[str, list[ReportCell]] = {}
    for cell in report.cells:
        found.setdefault(cell.variant.rpartition("_")[0], []).append(cell)
    return tuple(
        Network(
            name=name,
            panel=tuple(cell for cell in cells if not cell.variant.endswith("_candidates")),
            matching=tuple(cell for cell in cells if cell.variant.endswith("_candidates")),
        )
        for name, cells in found.items()
    )


def to_markdown(plan: Plan, report: Report) -> str:
    """The page that `leakbench panel` prints."""
    networks = networks_of(report)
    (row,) = plan.defenses
    parameters = plan.cells[0].defense_parameters
    said = ", ".join(f"{name} {value}" for name, value in parameters.items())
    tables = [_ladder(networks), _members(networks)]
    flags = [f"- {flag}" for flag in warnings(plan, networks)] or ["- none"]
    return (
        "\n\n".join(
            [
                f"# Panel against {row.name}",
                f"{plan.networks * plan.victims} victims of {', '.join(report.datasets)}, "
                f"{plan.cells[0].model}, {plan.cells[0].leak}; {said or 'no parameters'}.",
                *(markdown_table(table) for table in tables if table.rows),
                "Flags:\n\n" + "\n".join(flags),
                f"Verdict: {verdict(networks)}",
            ]
        )
        + "\n"
    )


def _ladder(networks: Sequence[Network]) -> Table:
    rows = []
    for network in networks:
        rows.append(
            (
                network.name,
                interval_words(network.worst(EXACT)),
                interval_words(network.worst(NAMED)),
                interval_words(network.matched),
                compact(network.ceiling),
            )
        )
    return Table(
        caption="The highest rate of any attacker, naive or adaptive",
        header=("network", "exact", "identified", "matched", "ceiling"),
        rows=tuple(rows),
    )


def _members(networks: Sequence[Network]) -> Table:
    rows = []
    for network in networks:
        for cell in network.panel:
            rows.append(
                (
                    network.name,
                    cell.knowledge,
                    cell.attack,
                    rate_words(cell.asr[EXACT].value),
                    rate_words(cell.asr[NAMED].value),
                    "",
                    compact(cell.evaluations),
                )
            )
            for name, entry in cell.members.items():
                rows.append(
                    (
                        network.name,
                        cell.knowledge,
                        name,
                        rate_words(entry.asr[EXACT].value),
                        rate_words(entry.asr[NAMED].value),
                        str(entry.taken),
                        compact(entry.evaluations),
                    )
                )
        for cell in network.matching:
            rate = rate_words(cell.asr[NAMED].value)
            rows.append(
                (network.name, cell.knowledge, cell.attack, "", rate, "", compact(cell.evaluations))
            )
    return Table(
        caption="Attackers, the panel's members as if each were alone",
        header=(
            "network", "knowledge", "attacker", "exact", "identified", "taken", "evaluations",
        ),
        rows=tuple(rows),
    )  # fmt: skip


def warnings(plan: Plan, networks: Sequence[Network]) -> list[str]:
    """What may make a low rate look like protection, a sentence each."""
    found = []
    for network in networks:
        cells = (*network.panel, *network.matching)
        if any(cell.flagged("straight_through") for cell in cells):
            found.append(
                f"{network.name}: the replay has no derivative; the adaptive attacker goes "
                "straight through"
            )
        for cell, rule, low, high in _masked(cells):
            found.append(
                f"{network.name}, {cell.attack}: gradient masking? adaptive {low:.2f}, naive "
                f"{high:.2f} {rule}"
            )
        for cell in network.panel:
            rates = {name: entry.asr[EXACT].value or 0.0 for name, entry in cell.members.items()}
            if rates and min(rates.values()) == 0 and max(rates.values()) > 0:
                stopped = ", ".join(name for name, rate in rates.items() if rate == 0)
                others = ", ".join(name for name, rate in rates.items() if rate > 0)
                found.append(f"{network.name}, {cell.knowledge}: stops {stopped}, and not {others}")
        if network.ceiling is not None and max(cell.observations for cell in plan.cells) == 1:
            found.append(
                f"{network.name}: noise is fresh in each look, and one was attacked; k looks of "
                "the same victim raise mu by sqrt(k)"
            )
        if any(cell.flagged("above_ceiling") for cell in cells):
            found.append(f"{network.name}: above its ceiling: mechanism or accounting is wrong")
        if lost := sum(cell.crashed + cell.absent for cell in cells):
            found.append(f"{network.name}: {lost} trials have no result, and show no protection")
    return found


def _masked(cells: Sequence[ReportCell]) -> list[tuple[ReportCell, str, float, float]]:
    """Attacks that do worse for knowing the defense: (cell, rule, adaptive, naive rate)."""
    naive = {cell.variant: cell for cell in cells if cell.knowledge == "naive"}
    found = []
    for cell in cells:
        if cell.knowledge == "naive" or cell.variant not in naive:
            continue
        for rule in (EXACT, NAMED):
            low, high = cell.asr[rule].value, naive[cell.variant].asr[rule].value
            if low is not None and high is not None and low < high:
                found.append((cell, rule, low, high))
                break
    return found


def verdict(networks: Sequence[Network]) -> str:
    """The worst that was shown, in a sentence; nothing shown is not yet safe."""
    rungs = (
        ("recovers images exactly", [n.worst(EXACT) for n in networks]),
        ("recovers images that name their owner", [n.worst(NAMED) for n in networks]),
        ("names owners among candidates", [n.matched for n in networks]),
    )
    for words, rates in rungs:
        worst = _highest(rates)
        if worst.value:
            return f"leaks: the panel {words}, {interval_words(worst)} of them."
    ends = [rate.high for _, rates in rungs for rate in rates if rate.high is not None]
    if not ends:
        return "nothing was measured."
    return (
        "inconclusive: no attacker of the panel succeeded, which so few victims show up to a rate "
        f"of {max(ends):.2f}."
    )


def _highest(rates: Sequence[Interval]) -> Interval:
    """The interval with the highest value; nothing measured is lowest."""
    most = Interval(None, None, None)
    for rate in rates:
        if rate.value is not None and (most.value is None or rate.value > most.value):
            most = rate
    return most
