"""Remarks about a report: the suite's own, and what the numbers themselves give reason to say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from leakbench.report.content import CostEntry, Note, ReportCell
from leakbench.report.measured import LabelledRule
from leakbench.report.words import rate_words
from leakbench.spec import SuiteNote

SAME_AS = "same_as: "
"""Flag of a row that has the same numbers as an earlier one, before that one's name."""


def notes_of(
    remarks: Sequence[SuiteNote],
    cells: Sequence[ReportCell],
    costs: Sequence[CostEntry],
    rules: Sequence[LabelledRule],
    label_priors: Mapping[str, float],
    unmeasured: Mapping[tuple[str, str], Sequence[str]],
    part: str = "",
) -> tuple[Note, ...]:
    """All notes of a report, in reading order; tables refer to them by number.

    Args:
        remarks: The suite's notes.
        cells, costs: Of the report.
        rules: Of the plan.
        label_priors: See `ceilings.label_priors`.
        unmeasured: See `measured.unmeasured`.
        part: i/n where the run is a part of its plan, see `pieces.Shard`.
    """
    return (
        *_suite_notes(remarks, [*cells, *costs]),
        *_same_notes(cells),
        *_start_notes(cells, rules),
        *_ceiling_notes(cells),
        *_adaptive_notes(cells),
        *_straight_through_notes(cells),
        *_masking_notes(cells),
        *_member_notes(cells),
        *_network_notes(cells),
        *_absence_notes(cells, part),
        *_failure_notes(cells),
        *_prior_notes(label_priors),
        *_unmeasured_notes(unmeasured),
    )


def _note(text: str, datasets: Sequence[str], rows: Sequence[str] | None = None) -> Note:
    """A note of the report's own."""
    about = None if rows is None else tuple(rows)
    return Note(text=text, source="report", datasets=tuple(datasets), rows=about)


def _suite_notes(
    remarks: Sequence[SuiteNote], rows: Sequence[ReportCell | CostEntry]
) -> list[Note]:
    """Notes of the suite file about something that is in this report."""
    notes = []
    for remark in remarks:
        about = [
            row
            for row in rows
            if (remark.datasets is None or row.dataset in remark.datasets)
            and (remark.defenses is None or row.defense in remark.defenses)
            and (remark.variants is None or row.variant in remark.variants)
        ]
        if about:
            everywhere = remark.defenses is None and remark.variants is None
            notes.append(
                Note(
                    text=remark.text,
                    source="suite",
                    datasets=None if remark.datasets is None else tuple(remark.datasets),
                    rows=None if everywhere else tuple(dict.fromkeys(row.row for row in about)),
                )
            )
    return notes


def _same_notes(cells: Sequence[ReportCell]) -> list[Note]:
    """One note a pair of rows, with the data sets and attackers where they agree."""
    labels = {cell.row: cell.label for cell in cells}
    pairs: dict[tuple[str, str], dict[str, list[str]]] = {}
    for cell in cells:
        for name in cell.flag_names:
            if name.startswith(SAME_AS):
                attackers = pairs.setdefault((cell.row, name.removeprefix(SAME_AS)), {})
                attackers.setdefault(cell.dataset, []).append(cell.knowledge)
    notes = []
    for (row, other), places in pairs.items():
        where = ", ".join(f"{d} ({', '.join(known)})" for d, known in places.items())
        text = f"{labels[row]} gives the same numbers as {labels[other]} in every trial: {where}."
        notes.append(_note(text, list(places), [row, other]))
    return notes


def _start_notes(cells: Sequence[ReportCell], rules: Sequence[LabelledRule]) -> list[Note]:
    """Rules that the start image meets for every victim of a data set."""
    notes = []
    measured = [cell for cell in cells if cell.networks]
    for rule in rules:
        datasets = [
            dataset
            for dataset in dict.fromkeys(cell.dataset for cell in measured)
            if all(rule.name in c.start_passes for c in measured if c.dataset == dataset)
        ]
        if datasets:
            text = (
                f"Under '{rule.label}' the start image already passes for every victim "
                f"({', '.join(datasets)}): a success there needs no attack."
            )
            notes.append(_note(text, datasets))
    return notes


def _ceiling_notes(cells: Sequence[ReportCell]) -> list[Note]:
    return [
        _note(
            f"{cell.dataset}, {cell.label}, {cell.knowledge}: more victims identified than the "
            f"guarantee allows (ceiling {cell.ceiling:.2g}): the mechanism or its accounting is "
            "wrong.",
            [cell.dataset],
            [cell.row],
        )
        for cell in cells
        if cell.flagged("above_ceiling")
    ]


def _adaptive_notes(cells: Sequence[ReportCell]) -> list[Note]:
    rows: dict[str, list[str]] = {}
    labels = {}
    for cell in cells:
        if cell.flagged("non_adaptive_only"):
            rows.setdefault(cell.row, []).append(cell.dataset)
            labels[cell.row] = cell.label
    return [
        _note(
            f"{labels[row]} ({', '.join(datasets)}) was attacked only by an attacker who ignores "
            "the defense; low rates there are no evidence of protection.",
            datasets,
            [row],
        )
        for row, datasets in rows.items()
    ]


def _straight_through_notes(cells: Sequence[ReportCell]) -> list[Note]:
    rows: dict[str, list[str]] = {}
    labels = {}
    for cell in cells:
        if cell.flagged("straight_through"):
            rows.setdefault(cell.row, []).append(cell.dataset)
            labels[cell.row] = cell.label
    return [
        _note(
            f"{labels[row]} ({', '.join(dict.fromkeys(datasets))}): the replay has no derivative: "
            "straight-through, the adaptive attacker takes the identity's; low rates there may be "
            "gradient masking.",
            list(dict.fromkeys(datasets)),
            [row],
        )
        for row, datasets in rows.items()
    ]


def _masking_notes(cells: Sequence[ReportCell]) -> list[Note]:
    """Rows in which to know the defense does harm to the attacker, beyond what chance explains."""
    naive = {
        (cell.dataset, cell.row, cell.attack): cell for cell in cells if cell.knowledge == "naive"
    }
    notes = []
    for cell in cells:
        other = naive.get((cell.dataset, cell.row, cell.attack))
        if cell.knowledge == "naive" or other is None:
            continue
        for rule, rate in cell.asr.items():
            ignorant = other.asr.get(rule)
            if ignorant is None or rate.high is None or ignorant.low is None:
                continue
            if rate.high < ignorant.low:
                text = (
                    f"{cell.label} ({cell.dataset}): the adaptive attacker does worse than the "
                    f"naive one ({rate.value:.2f} against {ignorant.value:.2f} by '{rule}'): the "
                    "defense hides the way to the image, not the image (gradient masking)."
                )
                notes.append(_note(text, [cell.dataset], [cell.row]))
                break
    return notes


def _member_notes(cells: Sequence[ReportCell]) -> list[Note]:
    """What each member of an attack that is made of others would have done alone, by the first
    rule; a defense that stops only some of them protects against those."""
    notes = []
    for cell in cells:
        rates = {
            name: (entry, next(iter(entry.asr.values()))) for name, entry in cell.members.items()
        }
        if not rates:
            continue
        said = ", ".join(
            f"{name} {rate_words(rate.value)} (taken {entry.taken})"
            for name, (entry, rate) in rates.items()
        )
        text = f"{cell.label} ({cell.dataset}, {cell.knowledge}), members alone: {said}."
        ends = [rate for _, rate in rates.values() if rate.low is not None]
        if any(
            one.high is not None and two.low is not None and one.high < two.low
            for one in ends
            for two in ends
        ):
            text += " Some are stopped and others are not: no protection."
        notes.append(_note(text, [cell.dataset], [cell.row]))
    return notes


def _network_notes(cells: Sequence[ReportCell]) -> list[Note]:
    few = [cell for cell in cells if cell.flagged("few_networks")]
    if not few:
        return []
    least, most = min(c.networks for c in few), max(c.networks for c in few)
    count = str(least) if least == most else f"{least} to {most}"
    word = "network" if most == 1 else "networks"
    text = (
        f"Few networks: intervals rest on {count} {word} and are too narrow; they speak for these "
        "weights only, and so does a 'not reproduced'."
    )
    return [_note(text, list(dict.fromkeys(cell.dataset for cell in few)))]


def _absence_notes(cells: Sequence[ReportCell], part: str) -> list[Note]:
    """Planned trials that are in no rate."""
    skipped: dict[tuple[str, str], int] = {}
    missing: dict[str, int] = {}
    for cell in cells:
        if cell.skipped:
            place = (cell.dataset, cell.reason)
            skipped[place] = skipped.get(place, 0) + cell.skipped
        if cell.missing:
            missing[cell.dataset] = missing.get(cell.dataset, 0) + cell.missing
    notes = [
        _note(f"{dataset}: {count} trials skipped, {reason}", [dataset])
        for (dataset, reason), count in skipped.items()
    ]
    if missing:
        places = ", ".join(f"{dataset} {count}" for dataset, count in missing.items())
        text = f"Planned trials without a result yet: {places}. Run the suite again to continue."
        if part:
            text = (
                f"This is part {part} of the plan: trials of other parts, and those that are left "
                f"of this one, are not here: {places}. `leakbench merge` joins the parts."
            )
        notes.append(_note(text, list(missing)))
    return notes


def _failure_notes(cells: Sequence[ReportCell]) -> list[Note]:
    """Trials that came to nothing, and the commonest reason."""
    return [
        _note(
            f"{cell.label} ({cell.dataset}, {cell.knowledge}): {cell.crashed} trials came to "
            f"nothing: {cell.reason}",
            [cell.dataset],
            [cell.row],
        )
        for cell in cells
        if cell.crashed
    ]


def _prior_notes(label_priors: Mapping[str, float]) -> list[Note]:
    """Where ceilings are higher than one chance in N would make them."""
    if not label_priors:
        return []
    places = ", ".join(f"{dataset} {prior:.2g}" for dataset, prior in label_priors.items())
    text = (
        "Where labels are granted, ceilings start from a guess among the candidates of the "
        f"victim's class, right with chance (mean over the victims): {places}."
    )
    return [_note(text, list(label_priors))]


def _unmeasured_notes(unmeasured: Mapping[tuple[str, str], Sequence[str]]) -> list[Note]:
    """Metrics without a number, each reason once."""
    return [
        _note(f"{metric.upper()} is not measured ({', '.join(datasets)}): {reason}.", datasets)
        for (metric, reason), datasets in unmeasured.items()
    ]
