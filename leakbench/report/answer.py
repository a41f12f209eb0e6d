"""The answer first: what leaked to whom, what held, what was not reproduced and why.

A strip shows of each leak its worst attackers only, one rate after another: recovered, named by the
reconstruction, matched by who has the list, passed by the paper's rule, and the most that the
guarantee allows. Sentences above it are computed from the same rates and say of which rows they
speak.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from leakbench.report.content import Entry, Report, ReportCell, RuleEntry
from leakbench.report.verdicts import decisive
from leakbench.report.words import (
    baseline_words,
    ceiling_words,
    compact,
    model_words,
    rate_words,
    share_words,
)
from leakbench.statistics import Interval

Kind = Literal["leaked", "named", "held", "unclear", "not measured", "not reproduced", "trained"]
"""What a sentence says. leaked: victims were recovered; named: they were not, and yet more of them
were named than by guessing; held: neither; unclear: too few trials to say; trained: what the
networks of the rows are worth."""

_SHOWN = 6  # rows that a sentence lists
_NO_BOUND = 0.99  # a ceiling from here on excludes nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(Entry):
    """One rate of a strip.

    Attributes:
        name: "exact", "named", "matched", "paper" or "ceiling".
        rate: of the worst attacker, with its 95 % interval; a ceiling has no ends. Of the paper's
            rule in several readings it is the lowest, and `highest` the highest.
        attacker: who gets that far: attack and knowledge; "" for a ceiling.
        row, knowledge: the cell of that attacker; "" for a ceiling.
        naive: of attackers who ignore the defense, where others were tried beside them.
    """

    name: str
    rate: Interval
    attacker: str
    highest: float | None = None
    naive: float | None = None
    row: str = ""
    knowledge: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StripRow(Entry):
    """A leak with its worst attackers: a row of a suite, or several that attack the same gradients.

    Attributes:
        dataset, row: where the first of them stands. label: what their names have in common.
        trials: of the worst attacker. steps: in the order of `Step.name`, without what is not
            measured.
        kind: of the sentence that speaks of it.
        chance: of naming a victim without a look.
    """

    dataset: str
    row: str
    label: str
    trials: int
    steps: tuple[Step, ...]
    kind: Kind
    chance: float | None

    def step(self, name: str) -> Step | None:
        """The rate of this name."""
        return next((step for step in self.steps if step.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part(Entry):
    """A piece of a sentence; row: the row it names, "" where it names none."""

    text: str
    row: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence(Entry):
    """Something that the rates of a data set say."""

    kind: Kind
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(part.text for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip(Entry):
    """The answer for one data set.

    Attributes:
        headers: name of a step -> its words above the column.
        setting: what is attacked, in words. legend: what the columns mean.
        beside: what needs no attack: chance level and errors of trivial guesses, in words.
    """

    dataset: str
    title: str
    sentences: tuple[Sentence, ...]
    headers: dict[str, str]
    rows: tuple[StripRow, ...]
    setting: str
    legend: str
    beside: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(Entry):
    """question, reading_guide: the suite's own words, or "". strips: one a data set."""

    question: str
    reading_guide: str
    strips: tuple[Strip, ...]


def answer(report: Report) -> Answer:
    """What a report says, in a strip and a few sentences a data set; no strip where nothing is
    attacked."""
    strips = []
    for dataset, entry in report.datasets.items():
        cells = [cell for cell in report.cells if cell.dataset == dataset]
        if cells:
            strips.append(_strip(report, dataset, entry.title, cells))
    return Answer(
        question=report.question, reading_guide=report.reading_guide, strips=tuple(strips)
    )


# ------------------------------------------------------------------------------ the strip


def _strip(report: Report, dataset: str, title: str, cells: Sequence[ReportCell]) -> Strip:
    measures = _measures(report.rules)
    grouped: dict[str, list[ReportCell]] = {}
    for cell in cells:
        grouped.setdefault(cell.leak_id, []).append(cell)
    rows = tuple(_row(group, measures) for group in grouped.values())
    of_rows = {group[0].row: group for group in grouped.values()}
    headers = {
        name: words
        for name, words in _headers(measures).items()
        if any(row.step(name) is not None for row in rows)
    }
    return Strip(
        dataset=dataset,
        title=title,
        sentences=(*_sentences(rows, of_rows), *_trained(report, dataset)),
        headers=headers,
        rows=rows,
        setting=_setting(report, cells),
        legend=_legend(report, measures, headers, rows),
        beside=_beside(report, cells, dataset, rows),
    )


def _measures(rules: Sequence[RuleEntry]) -> dict[str, list[RuleEntry]]:
    """Name of a step -> the rules that it shows."""
    exact = [rule for rule in rules if rule.recovers] or [
        rule for rule in rules if not (rule.paper or rule.names)
    ]
    return {
        "exact": exact[:1],
        "named": [rule for rule in rules if rule.names][:1],
        "paper": [rule for rule in rules if rule.paper],
    }


def _headers(measures: Mapping[str, Sequence[RuleEntry]]) -> dict[str, str]:
    readings = len(measures.get("paper", ()))
    return {
        "exact": "recovered",
        "named": "named",
        "matched": "matched",
        "paper": "paper's rule" + (f", {readings} readings" if readings > 1 else ""),
        "ceiling": "ceiling",
    }


def _row(cells: Sequence[ReportCell], measures: Mapping[str, Sequence[RuleEntry]]) -> StripRow:
    """The worst attacker of each rate; the first of equals."""
    first = cells[0]
    measured = [cell for cell in cells if cell.networks]
    # Who picks from a list returns the image itself: he names, and recovers nothing.
    listed = [cell for cell in measured if "candidates" in cell.grants]
    makers = [cell for cell in measured if "candidates" not in cell.grants]
    several = len({cell.attack for cell in cells}) > 1
    steps = []
    for name, rules, who in (
        ("exact", measures["exact"], makers),
        ("named", measures["named"], makers),
        ("matched", measures["named"], listed),
        ("paper", measures["paper"], makers),
    ):
        step = _worst(name, rules, who, several) if rules else None
        if step is not None:
            steps.append(step)
    ceilings = [cell.ceiling for cell in cells if cell.ceiling is not None]
    if ceilings:
        steps.append(Step(name="ceiling", rate=Interval(max(ceilings), None, None), attacker=""))
    chance = max((cell.chance for cell in cells if cell.chance is not None), default=None)
    return StripRow(
        dataset=first.dataset,
        row=first.row,
        label=_common([cell.label for cell in cells]),
        trials=max((cell.planned - cell.absent for cell in measured), default=0),
        steps=tuple(steps),
        kind=_kind(steps, chance),
        chance=chance,
    )


def _worst(
    name: str, rules: Sequence[RuleEntry], cells: Sequence[ReportCell], several: bool
) -> Step | None:
    """The attacker of these with the highest rate, of equals the one with the smallest error; None
    without a rate."""
    rates = [
        (cell, [cell.asr[rule.name] for rule in rules])
        for cell in cells
        if all(cell.asr[rule.name].value is not None for rule in rules)
    ]
    if not rates:
        return None

    def most(values: Sequence[Interval]) -> float:
        return max(each.value or 0.0 for each in values)

    def error(cell: ReportCell) -> float:
        return math.inf if cell.mse_clamped is None else cell.mse_clamped

    worst, found = max(rates, key=lambda pair: (most(pair[1]), -error(pair[0])))
    lowest = min(found, key=lambda each: each.value or 0.0)
    naive = [most(values[:1]) for cell, values in rates if cell.knowledge == "naive"]
    return Step(
        name=name,
        rate=lowest,
        attacker=f"{worst.attack} {worst.knowledge}" if several else worst.knowledge,
        highest=None if most(found) == lowest.value else most(found),
        naive=max(naive) if 0 < len(naive) < len(rates) else None,
        row=worst.row,
        knowledge=worst.knowledge,
    )


def _common(labels: Sequence[str]) -> str:
    """What all names say, between commas, in the order of the first; the first where that is
    nothing."""
    parts = [label.split(", ") for label in labels]
    shared = [part for part in parts[0] if all(part in other for other in parts)]
    return ", ".join(shared) or labels[0]


def _kind(steps: Sequence[Step], chance: float | None) -> Kind:
    """By the ends of intervals: one success among few trials shows no more than none does."""
    rates = {step.name: step.rate for step in steps}
    exact, named = rates.get("exact"), _larger(rates.get("named"), rates.get("matched"))
    if exact is None and named is None:
        return "not measured"
    if exact is not None and (exact.low or 0.0) > 0.0:
        return "leaked"
    if named is not None and (named.low or 0.0) > (chance or 0.0):
        return "named"
    guessed = named is None or (named.value or 0.0) <= (chance or 0.0)
    if (exact is None or not exact.value) and guessed:
        return "held"
    return "unclear"


def _larger(one: Interval | None, other: Interval | None) -> Interval | None:
    return max((each for each in (one, other) if each is not None),
               key=lambda each: each.value or 0.0, default=None)  # fmt: skip


# ------------------------------------------------------------------------------ sentences


def _sentences(
    rows: Sequence[StripRow], cells: Mapping[str, Sequence[ReportCell]]
) -> list[Sentence]:
    found = []
    for kind, write in (
        ("leaked", _leaked), ("named", _named), ("held", _held), ("unclear", _unclear),
    ):  # fmt: skip
        about = [row for row in rows if row.kind == kind]
        if about:
            found.append(write(about, cells))
    found = _saying_what_ends_are(found)
    missed = [(row, cell) for row, group in cells.items() for cell in group if _missed(cell)]
    if missed:
        found.append(_not_reproduced(missed))
    absent = [row for row in rows if row.kind == "not measured"]
    if absent:
        reasons = dict.fromkeys(
            cell.reason for row in absent for cell in cells[row.row] if cell.reason
        )
        why = f": {'; '.join(reasons)}" if reasons else ""
        text = [Part(text="Not measured: "), *_listed(absent), Part(text=f"{why}.")]
        found.append(Sentence(kind="not measured", parts=tuple(text)))
    return found


def _saying_what_ends_are(sentences: Sequence[Sentence]) -> list[Sentence]:
    """The same, the first interval of them introduced as one; names of rows are left alone."""
    found = list(sentences)
    for number, sentence in enumerate(found):
        for place, part in enumerate(sentence.parts):
            text = re.sub(r"^ \((\d+ of \d+), (?=\d)", r" (\1, 95 % interval ", part.text)
            if not part.row and text != part.text:
                parts = (*sentence.parts[:place], Part(text=text), *sentence.parts[place + 1 :])
                found[number] = Sentence(kind=sentence.kind, parts=parts)
                return found
    return found


def _listed(rows: Sequence[StripRow], words: dict[str, str] | None = None) -> list[Part]:
    """Names of rows, each with its words, the first ones of many."""
    parts: list[Part] = []
    for number, row in enumerate(rows[:_SHOWN]):
        joint = "; " if number else ""  # a name may hold commas
        said = (words or {}).get(row.row, "")
        parts += [Part(text=joint), Part(text=row.label, row=row.row)]
        parts += [Part(text=f" ({said})")] if said else []
    if len(rows) > _SHOWN:
        parts.append(Part(text=f" and {len(rows) - _SHOWN} more rows"))
    return [part for part in parts if part.text]


def _of(step: Step, trials: int) -> str:
    """A rate as a count: 12 of 16, 0.48 to 0.93."""
    rate = step.rate
    count = round((rate.value or 0.0) * trials)
    ends = f", {rate_words(rate.low)} to {rate_words(rate.high)}" if rate.low is not None else ""
    return f"{count} of {trials}{ends}"


def _leaked(rows: Sequence[StripRow], cells: Mapping[str, Sequence[ReportCell]]) -> Sentence:
    words = {}
    for row in rows:
        step = row.step("exact")
        assert step is not None
        words[row.row] = f"{_of(step, row.trials)}{_to_whom(step)}"
    parts = [Part(text="Recovered: "), *_listed(rows, words), Part(text=".")]
    late = [row for row in rows if any(_noise_comes_late(cell) for cell in cells[row.row])]
    if late:
        parts += [
            Part(text=" The noise is added only after the place where this attacker reads: "),
            *_listed(late), Part(text="."),
        ]  # fmt: skip
    return Sentence(kind="leaked", parts=tuple(parts))


def _noise_comes_late(cell: ReportCell) -> bool:
    """Whether single examples are seen, and the noise is on what is made of many."""
    return cell.example_view and cell.convention in ("sum", "mean")


def _to_whom(step: Step) -> str:
    """Which attacker, where it matters; how little those get who ignore the defense."""
    who = f", {step.attacker}" if " " in step.attacker else ""
    if step.naive is not None and step.naive < (step.rate.value or 0.0):
        ignorant = rate_words(step.naive)
        return f"{who}, by an attacker who knows the defense; {ignorant} by one who ignores it"
    return who


def _named(rows: Sequence[StripRow], cells: Mapping[str, Sequence[ReportCell]]) -> Sentence:
    words = {}
    for row in rows:
        step = max(
            (each for name in ("named", "matched") if (each := row.step(name)) is not None),
            key=lambda each: each.rate.value or 0.0,
        )
        words[row.row] = _of(step, row.trials)
    chance = rows[0].chance
    guess = "" if chance is None else f", where guessing names {compact(chance)}"
    parts = [
        Part(text="Not recovered, and still named among the candidates: "),
        *_listed(rows, words), Part(text=f"{guess}."),
    ]  # fmt: skip
    return Sentence(kind="named", parts=tuple(parts))


def _held(rows: Sequence[StripRow], cells: Mapping[str, Sequence[ReportCell]]) -> Sentence:
    ends = [step.rate.high for row in rows if (step := row.step("exact") or row.step("named"))]
    high = max((end for end in ends if end is not None), default=None)
    most = "" if high is None else f"; what was run excludes rates above {rate_words(high)} only"
    without = [row for row in rows if row.step("ceiling") is None]
    weak = [row for row in rows if _too_weak(cells[row.row])]
    parts = [Part(text="Nobody was recovered or named: "), *_listed(rows), Part(text=f"{most}.")]
    if weak:
        parts += [
            Part(text=" No credit, the attacks were too weak: "), *_listed(weak), Part(text="."),
        ]  # fmt: skip
    if without and len(without) < len(rows):
        parts += [Part(text=" No guarantee stands behind "), *_listed(without), Part(text=".")]
    elif without:
        behind = "any of them" if len(rows) > 1 else "it"
        parts.append(Part(text=f" No guarantee stands behind {behind}."))
    proven = [step.rate.value or 0.0 for row in rows if (step := row.step("ceiling"))]
    if proven and max(proven) < _NO_BOUND:
        parts.append(
            Part(
                text=f" Where there is a guarantee, no attack can name more than "
                f"{ceiling_words(max(proven))}."
            )
        )
    return Sentence(kind="held", parts=tuple(parts))


def _too_weak(cells: Sequence[ReportCell]) -> bool:
    """Whether the leak held more than any attack got, or no attack ever left its start."""
    if any(cell.bound is not None and cell.bound.verdict == "attack too weak" for cell in cells):
        return True
    stuck = [
        flag.count == cell.judged
        for cell in cells
        if cell.networks
        for flag in cell.flags
        if flag.name in ("loss_never_fell", "optimiser_failed")
    ]
    return bool(stuck) and all(stuck) and len(stuck) >= len([c for c in cells if c.networks])


def _unclear(rows: Sequence[StripRow], cells: Mapping[str, Sequence[ReportCell]]) -> Sentence:
    words = {
        row.row: _of(step, row.trials)
        for row in rows
        if (step := max((s for s in row.steps if s.name in ("exact", "named", "matched")),
                        key=lambda s: s.rate.value or 0.0, default=None)) is not None
    }  # fmt: skip
    parts = [
        Part(text="Too few trials to say: "), *_listed(rows, words), Part(text="."),
    ]  # fmt: skip
    return Sentence(kind="unclear", parts=tuple(parts))


def _missed(cell: ReportCell) -> bool:
    """Whether a printed success rate came out under no reading."""
    if cell.verdict is None:
        return False
    words = decisive(
        {name: (cell.asr[name].value, word) for name, word in cell.verdict.asr.items()}
    )
    return bool(words) and set(words.values()) == {"not reproduced"}


def _not_reproduced(cells: Sequence[tuple[str, ReportCell]]) -> Sentence:
    """cells: with the row of the strip that each stands in."""
    parts = [Part(text="Printed success rates that did not come out: ")]
    for number, (row, cell) in enumerate(cells[:_SHOWN]):
        assert cell.verdict is not None and cell.printed is not None
        ours = _by_reading([cell.asr[name].value or 0.0 for name in cell.verdict.asr])
        parts += [
            Part(text="; " if number else ""),
            Part(text=cell.label, row=row),
            Part(text=f" (printed {cell.printed.asr}, here {ours}{_why(cell)})"),
        ]
    if len(cells) > _SHOWN:
        parts.append(Part(text=f" and {len(cells) - _SHOWN} more"))
    parts.append(Part(text="."))
    return Sentence(kind="not reproduced", parts=tuple(part for part in parts if part.text))


def _by_reading(rates: Sequence[float]) -> str:
    """Each rate with the number of readings that give it."""
    counts = Counter(map(rate_words, rates))
    if len(counts) == 1:
        return next(iter(counts))
    of = [f"{rate} in {n} reading{'s' * (n > 1)}" for rate, n in sorted(counts.items())]
    return f"{', '.join(of[:-1])} and {of[-1]}"


def _trained(report: Report, dataset: str) -> list[Sentence]:
    """Accuracy and epsilon of the trainings."""
    done = [entry for entry in report.costs if entry.dataset == dataset and entry.networks]
    if not done:
        return []
    parts = [Part(text="Accuracy after training: ")]
    for number, entry in enumerate(done[:_SHOWN]):
        privacy = entry.privacy
        known = privacy is not None and privacy.epsilon is not None
        epsilon = f", epsilon {compact(privacy.epsilon)}" if privacy and known else ""
        joint = "; " if number else ""
        parts.append(Part(text=f"{joint}{entry.label} ({share_words(entry.accuracy)}{epsilon})"))
    more = f" and {len(done) - _SHOWN} more rows" if len(done) > _SHOWN else ""
    return [Sentence(kind="trained", parts=(*parts, Part(text=f"{more}.")))]


def _why(cell: ReportCell) -> str:
    """What besides the paper may be the reason."""
    reasons = []
    if cell.flagged("few_networks"):
        reasons.append(f"{cell.networks} network{'s' * (cell.networks > 1)} only")
    if any(flag.name == "loss_never_fell" and flag.count == cell.judged for flag in cell.flags):
        reasons.append("the attack never left its start")
    return f"; {', '.join(reasons)}" if reasons else ""


def _setting(report: Report, cells: Sequence[ReportCell]) -> str:
    """What is attacked, and how often."""
    networks = ", ".join(dict.fromkeys(map(model_words, cells)))
    places = ", ".join(dict.fromkeys(cell.leak for cell in cells))
    attacks = ", ".join(dict.fromkeys(cell.attack for cell in cells))
    return (
        f"{attacks} on {networks}, gradients read at {places}; {report.networks} "
        f"network{'s' * (report.networks > 1)} x {report.victims} victims, of each row the worst "
        "attacker."
    )


def _legend(
    report: Report, measures: Mapping[str, Sequence[RuleEntry]], headers: Mapping[str, str],
    rows: Sequence[StripRow],
) -> str:  # fmt: skip
    """What each column counts."""
    chances = {row.chance for row in rows if row.chance}
    among = f"{round(1 / chances.pop()):,} " if len(chances) == 1 else ""
    words = {
        "exact": ", ".join(rule.condition for rule in measures["exact"]),
        "named": f"of {among}candidates the nearest to the reconstruction is the victim",
        "matched": "who is given the candidates picks the victim by comparing gradients",
        "paper": ", ".join(rule.label for rule in measures["paper"]),
        "ceiling": "what no attack can exceed in naming, by the guarantee at this place",
    }
    shown = [f"{headers[name].split(',')[0]}: {words[name]}" for name in headers]
    return f"{'; '.join(shown)}. Intervals are 95 %, over networks, then victims." if shown else ""


def _beside(
    report: Report, cells: Sequence[ReportCell], dataset: str, rows: Sequence[StripRow]
) -> str:
    """Chance, errors of what needs no gradient, and the rules that a start image passes."""
    chances = sorted({row.chance for row in rows if row.chance is not None})
    ends = " to ".join(dict.fromkeys(map(compact, [*chances[:1], *chances[-1:]])))
    parts = [f"guessing names {ends} of the victims"] if chances else []
    errors = baseline_words(report.baselines[dataset])
    parts += [errors] if errors else []
    text = f"Without any gradient: {'; '.join(parts)}." if parts else ""
    measured = [cell for cell in cells if cell.networks]
    passed = [
        rule.label for rule in report.rules
        if measured and all(rule.name in cell.start_passes for cell in measured)
    ]  # fmt: skip
    if passed:
        text += f" The start image itself passes: {', '.join(passed)}."
    return text.strip()
