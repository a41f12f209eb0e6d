"""Numbers and entries of a report in words, as tables show them; nothing but rounding is done."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from leakbench.report.content import Attacker, Baselines, CostEntry, FinalEpsilon, Note, ReportCell
from leakbench.statistics import Interval

DASH = "-"
MARKS = {"reproduced": "✓", "not reproduced": "✗", "inconclusive": "?"}
"""Marks of the three verdicts in tables; the words stand in the verdict column."""

ATTACKERS = {
    "naive": " (ignores the defense)",
    "adaptive": " (runs the defense without noise on his dummy input)",
}

_CONVENTIONS = {
    None: "",
    "per_example": "example",
    "mean": "mean, after tap",
    "sum": "sum, after tap",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Cells of text; a row has as many as the header. folded: shown when it is asked for."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    folded: bool = False


def note_numbers(notes: Sequence[Note], row: ReportCell | CostEntry) -> str:
    """Numbers of the notes about a row; those about everything are not repeated in each."""
    numbers = [str(i) for i, note in enumerate(notes, start=1) if note.about(row)]
    return ", ".join(numbers) or DASH


def compact(value: float | None) -> str:
    """Two or three significant digits in few characters: 0.94, 12.5, 1.5e-5, 4.2e5."""
    if value is None or math.isnan(value):
        return DASH
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value == 0 or 0.001 <= abs(value) < 10_000:
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
    digits, exponent = f"{value:.1e}".split("e")
    return f"{digits}e{int(exponent)}"


def rate_words(value: float | None) -> str:
    """Two decimals."""
    # Adding 0.0 turns a rounded -0.0 into 0.0.
    return DASH if value is None else f"{round(value, 2) + 0.0:.2f}"


def interval_words(interval: Interval) -> str:
    """A rate with its ends, two decimals."""
    if interval.value is None or interval.low is None:
        return rate_words(interval.value)
    return f"{rate_words(interval.value)} {ends_words(interval)}"


def ends_words(interval: Interval) -> str:
    """The ends alone, two decimals."""
    return f"[{rate_words(interval.low)}, {rate_words(interval.high)}]"


def share_words(interval: Interval) -> str:
    """An accuracy with its ends, three decimals."""
    if interval.value is None:
        return DASH
    text = f"{interval.value:.3f}"
    if interval.low is None or interval.high is None:
        return text
    return f"{text} [{interval.low:.3f}, {interval.high:.3f}]"


def epsilon_words(privacy: FinalEpsilon | None) -> str:
    """Epsilon with all that it is an epsilon of, or why there is none."""
    if privacy is None:
        return DASH
    if privacy.epsilon is None:
        return f"none: {privacy.reason}"
    relation = {"add_remove": "add/remove", "replace_one": "replace-one"}[privacy.relation]
    flagged = "".join(f"; {flag.replace('_', ' ')}" for flag in privacy.flags)
    return (
        f"{compact(privacy.epsilon)} ({privacy.level}, {relation}, delta "
        f"{compact(privacy.delta)}, {privacy.accountant}, {privacy.sampling}{flagged})"
    )


def ceiling_words(chance: float | None) -> str:
    """An upper bound on a chance, rounded up to three digits."""
    if chance is None:
        return DASH
    unit = 10.0 ** (math.floor(math.log10(chance)) - 2)
    return f"{min(1.0, math.ceil(chance / unit * (1 - 1e-9)) * unit):.3g}"


def training_words(entry: CostEntry) -> str:
    """Network, data and schedule in a few words."""
    if not entry.networks:
        return "no result yet"
    clients = ""
    if entry.clients > 1:
        shared = f"{entry.partition}{', overlapping' if entry.overlap else ''}"
        clients = (
            f", {entry.clients_a_round} of {entry.clients} clients ({shared}), "
            f"L={entry.local_steps}"
        )
    return (
        f"{entry.model}, {_rounds_words(entry)}{clients}, B={entry.batch_size}, "
        f"{entry.data} data ({entry.examples})"
    )


def _rounds_words(entry: CostEntry) -> str:
    """Rounds that were planned, and what ended networks earlier."""
    early = [
        f"{rounds} ({why})"
        for rounds, why in zip(entry.rounds_done, entry.stopped, strict=True)
        if why
    ]
    return f"{entry.rounds} rounds{', stopped after ' if early else ''}{', '.join(early)}"


def baseline_words(baselines: Baselines) -> str:
    """Errors of what needs no gradient, "" where none was measured."""
    known = [
        f"{name} {compact(value)}"
        for name, value in (
            ("start image", baselines.start_image),
            ("mean image", baselines.mean_image),
            ("mean of the class", baselines.class_mean),
            ("nearest public image", baselines.nearest_public),
        )
        if value is not None
    ]
    return f"clamped MSE of {', '.join(known)}" if known else ""


def noise_words(cell: ReportCell) -> str:
    """What the noise is added to; at a single example's tap later noise is not seen."""
    text = _CONVENTIONS.get(cell.convention, str(cell.convention)) or DASH
    return text if cell.example_view else text.removesuffix(", after tap")


def model_words(cell: ReportCell) -> str:
    """Name of the network, and whether it had learnt anything before the attack."""
    return f"{cell.model} ({'pretrained' if cell.pretrained else 'untrained'})"


def attacker_words(attacker: Attacker) -> str:
    """What an attacker ignores or runs, is given, and sets."""
    knowledge = attacker.knowledge
    given = f", given the {' and '.join(attacker.grants)}" if attacker.grants else ""
    values = ", ".join(f"{name}={value}" for name, value in attacker.parameters.items())
    variant = f"{attacker.variant}: " if attacker.variant else ""
    who = f"{variant}{attacker.attack} {knowledge}{ATTACKERS.get(knowledge, '')}{given}"
    return f"{who} ({values})" if values else who


def trials_words(cell: ReportCell) -> str:
    """The number alone where all is well, else how the others ended."""
    if cell.ok == cell.planned:
        return str(cell.planned)
    ends = ", ".join(f"{count} {name}" for name, count in cell.ends.items() if count)
    return f"{cell.planned}: {ends}"
