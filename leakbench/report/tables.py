"""A report arranged as text: what stands above the tables, the tables, the notes below them.

Nothing is computed here but rounding: every number comes from `cells.build`. `renderings` makes
Markdown and HTML of the same `Document`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leakbench.metrics.rules import kinds
from leakbench.report.content import CostEntry, Report, ReportCell, RuleEntry
from leakbench.report.cost_tables import cost_guide, cost_tables
from leakbench.report.verdicts import OWN_STOP, decisive
from leakbench.report.words import (
    DASH,
    MARKS,
    Table,
    attacker_words,
    baseline_words,
    compact,
    interval_words,
    model_words,
    noise_words,
    note_numbers,
    rate_words,
    trials_words,
)
from leakbench.statistics import Verdict

_WARNINGS = {
    "optimiser_failed": "optimiser failed",
    "fits_noise": "truth is not the minimum",
    "loss_never_fell": "loss never fell",
    "label_wrong": "label wrong",
    "defense_noop": "defense no-op",
    "gradient_nonfinite": "gradient not finite",
    "gradient_zero": "gradient zero",
    "straight_through": "replay straight-through",
    "stalled": "given up, loss not falling",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One data set: what stands above the tables, the tables, what stands below."""

    title: str
    above: tuple[str, ...]
    tables: tuple[Table, ...]
    below: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A whole report as text."""

    title: str
    lead: tuple[str, ...]
    guide: tuple[str, ...]
    sections: tuple[Section, ...]
    notes: tuple[str, ...]


# ------------------------------------------------------------------------------ arrangement


def arrange(report: Report) -> Document:
    """All the text of a report, in reading order."""
    return Document(
        title=report.title,
        lead=_lead(report),
        guide=_guide(report),
        sections=tuple(_section(report, dataset) for dataset in report.datasets),
        notes=tuple(_one_line(note.text) for note in report.notes),
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _lead(report: Report) -> tuple[str, ...]:
    attackers = "; ".join(map(attacker_words, report.attackers))
    asked = report.manifest
    overrides = [f"--{k} {asked[k]}" for k in ("attack", "defense") if asked.get(k)]
    overrides += [f"--set {setting}" for setting in asked.get("settings") or ()]
    parts = (
        report.source,
        _attacked(report) if report.cells else _trained(report),
        f"Attackers: {attackers}." if attackers else "",
        f"Not the suite as published: {' '.join(overrides)}." if overrides else "",
        where_words(asked),
    )
    return tuple(part for part in parts if part)


def _attacked(report: Report) -> str:
    cells = report.cells
    judged = sum(cell.judged for cell in cells)
    attacks = ", ".join(dict.fromkeys(cell.attack for cell in cells))
    models = ", ".join(dict.fromkeys(map(model_words, cells)))
    taps = ", ".join(dict.fromkeys(cell.leak for cell in cells))
    return (
        f"Suite {report.suite}, profile {report.profile}: attack {attacks} on model {models}, leak "
        f"{taps}; {report.networks} networks x {report.victims} victims a cell; {judged} of "
        f"{report.planned} planned trials have a result."
    )


def _trained(report: Report) -> str:
    """Of a suite that attacks nothing."""
    models = ", ".join(dict.fromkeys(entry.model for entry in report.costs))
    done = sum(entry.networks for entry in report.costs)
    planned = sum(entry.planned for entry in report.costs)
    return (
        f"Suite {report.suite}, profile {report.profile}: trainings of model {models}, nothing is "
        f"attacked; {done} of {planned} planned trainings have a result."
    )


def where_words(manifest: Mapping[str, Any]) -> str:
    """When, on what and with which versions it was run, as far as the manifest says."""
    parts = []
    if manifest.get("started"):
        device = manifest.get("device")
        parts.append(f"Started {manifest['started']}" + (f" on {device}" if device else ""))
    versions = manifest.get("versions")
    versions = versions if isinstance(versions, dict) else {}
    parts += [f"{name} {version}" for name, version in versions.items()]
    git = manifest.get("git")
    commit = git.get("commit") if isinstance(git, dict) else None
    if commit:
        parts.append(f"commit {str(commit)[:12]}")
    if manifest.get("arithmetic"):
        parts.append(f"arithmetic {manifest['arithmetic']}")
    if manifest.get("unit"):
        parts.append(
            f"on this machine a result may depend on its neighbours, so chunks of "
            f"{manifest['unit']} images were done whole"
        )
    return f"{'; '.join(parts)}." if parts else ""


def _guide(report: Report) -> tuple[str, ...]:
    return (*_attack_guide(report), *cost_guide(report.costs, attacked=bool(report.cells)))


def _attack_guide(report: Report) -> tuple[str, ...]:
    if not report.cells:
        return ()
    paper = [rule.label for rule in _readings(report)]
    lines = [
        "Rates judge what the attack returned, with 95 % intervals over networks, then victims; "
        "trials that ended in an error count as failures.",
    ]
    if paper:
        lines.append(f"The paper's rule, in {len(paper)} readings: {' / '.join(paper)}.")
    lines += [
        "MSE, SSIM, steps and evaluations are medians; 'to success' is an oracle: Kaplan-Meier "
        "median of the effort to the first iterate that would have passed. Accuracy is that of the "
        "attacked network on the public images.",
        "Ceiling: no attack can identify more victims (top 1) than this under the guarantee; "
        "'-' where there is none at this tap.",
    ]
    if any(cell.bound is not None for cell in report.cells):
        lines.append(
            "What the leak holds, by its Fisher information at the truth: 'attainable' estimates "
            "the MSE of an efficient attacker who knows mean and covariance of the public images "
            "(who knows more may beat it), 'unbiased' bounds attackers without a prior; both are "
            "about raw images. 'Bracketed': the best attack without a list of candidates is at "
            "most a factor 2 above the attainable MSE; 'attack too weak': it is further above, and "
            "the defense earns no credit; 'no information "
            "left': the mean image is about as good. J is the gradient's derivative by the image."
        )
    if _has_lpips(report.cells):
        lines.append(
            "LPIPS is the median perceptual distance by AlexNet's features, of images enlarged to "
            "64 pixels; lower is nearer."
        )
    if any(cell.printed is not None for cell in report.cells):
        lines.append(
            f"Beside the printed numbers: {MARKS['reproduced']} reproduced, "
            f"{MARKS['not reproduced']} not reproduced, {MARKS['inconclusive']} inconclusive "
            "(90 % interval against printed rate ± 0.10, or MSE and iterations within a factor "
            "of 2); means over successes, or over all trials where none succeeds."
        )
    return tuple(lines)


def _section(report: Report, dataset: str) -> Section:
    cells = [cell for cell in report.cells if cell.dataset == dataset]
    title = f"{report.datasets[dataset].title} ({dataset})"
    costs = [entry for entry in report.costs if entry.dataset == dataset]
    of_costs = cost_tables(report, cells, costs) if costs else []
    measured = [cell for cell in cells if cell.networks]
    if not measured:
        waiting: Sequence[ReportCell | CostEntry] = cells or costs
        reasons = ", ".join(dict.fromkeys(entry.reason for entry in waiting if entry.reason))
        above = f"Not run: {reasons}" if reasons else "No trial has a result yet."
        if any(entry.networks for entry in costs):
            above = "" if not cells else f"Attacks: {above[0].lower()}{above[1:]}"
            return Section(
                title=title, above=(above,) if above else (), tables=tuple(of_costs), below=()
            )
        return Section(title=title, above=(above,), tables=(), below=())
    tables = [*of_costs, _leakage_table(report, cells), _effort_table(report, cells)]
    if any(cell.features is not None for cell in cells):
        tables.insert(-1, _features_table(cells))
    if any(cell.bound is not None for cell in cells):
        tables.append(_bound_table(cells))
    if any(cell.printed is not None for cell in cells):
        tables.append(_printed_table(report, cells))
    errors = baseline_words(report.baselines[dataset])
    below = (f"Without any gradient: {errors}.",) if errors else ()
    return Section(title=title, above=(), tables=tuple(tables), below=below)


def _leakage_table(report: Report, cells: Sequence[ReportCell]) -> Table:
    paper = _readings(report)
    ours = [rule for rule in report.rules if rule not in paper]
    header = ["method", "attacker", "noise on", *(rule.label for rule in ours), "ceiling"]
    if paper:
        header.append("paper's rule")
    header += ["MSE raw; clamped", "notes"]
    rows = []
    for cell in cells:
        row = [
            cell.label,
            cell.knowledge,
            noise_words(cell),
            *(interval_words(cell.asr[rule.name]) for rule in ours),
            compact(cell.ceiling),
        ]
        if paper:
            row.append(" / ".join(rate_words(cell.asr[rule.name].value) for rule in paper))
        errors = f"{compact(cell.mse)}; {compact(cell.mse_clamped)}"
        row += [errors, note_numbers(report.notes, cell)]
        rows.append(tuple(row))
    return Table(caption="Leakage: success rates", header=tuple(header), rows=tuple(rows))


def _readings(report: Report) -> list[RuleEntry]:
    """Rules that are a paper's own; one that is ours too has a column to itself."""
    return [rule for rule in report.rules if rule.paper and kinds()[rule.kind].bare]


def _effort_table(report: Report, cells: Sequence[ReportCell]) -> Table:
    strict = [rule for rule in report.rules if kinds()[rule.kind].needs_recovery]
    perceptual = _has_lpips(cells)
    header = (
        *("method", "attacker", "accuracy", "SSIM", *["LPIPS"] * perceptual),
        *("label right", "steps", "evaluations"),
        *(f"{what} to success, {r.label}" for r in strict for what in ("steps", "evaluations")),
        *("trials", "warnings"),
    )
    rows = tuple(
        (
            cell.label,
            cell.knowledge,
            rate_words(cell.accuracy),
            rate_words(cell.ssim),
            *[rate_words(cell.lpips)] * perceptual,
            rate_words(cell.label_accuracy),
            compact(cell.steps),
            compact(cell.evaluations),
            *(
                compact(effort[rule.name].median)
                for rule in strict
                for effort in (cell.steps_to_success, cell.evaluations_to_success)
            ),
            trials_words(cell),
            _warnings(cell),
        )
        for cell in cells
    )
    return Table(caption="Effort, and why attacks failed", header=header, rows=rows)


def _bound_table(cells: Sequence[ReportCell]) -> Table:
    rows = [
        (
            cell.label,
            cell.knowledge,
            compact(cell.mse),
            compact(held.attainable),
            compact(held.ratio),
            compact(held.unbiased),
            compact(held.rank),
            compact(held.condition),
            held.verdict or DASH,
        )
        for cell in cells
        if (held := cell.bound) is not None
    ]
    header = (
        *("method", "attacker", "MSE raw", "attainable", "MSE / attainable", "unbiased"),
        *("rank of J", "condition of J", "verdict"),
    )
    return Table(caption="What the leak holds", header=header, rows=tuple(rows))


def _features_table(cells: Sequence[ReportCell]) -> Table:
    rows = [
        (
            cell.label,
            cell.knowledge,
            *map(rate_words, (found.right, found.categories, found.numbers)),
            *map(rate_words, (found.confidence, found.usual, found.nearest)),
        )
        for cell in cells
        if (found := cell.features) is not None
    ]
    header = (
        *("method", "attacker", "all", "categories", "numbers", "attack's confidence"),
        *("without a gradient: usual values", "nearest public row"),
    )
    return Table(caption="Share of features that are right", header=header, rows=tuple(rows))


def _has_lpips(cells: Sequence[ReportCell]) -> bool:
    """Whether it was measured anywhere: grey images and rows have none."""
    return any(cell.lpips is not None for cell in cells)


# ------------------------------------------------------------------------------ beside print


@dataclass(frozen=True, slots=True)
class _Held:
    """Our number under one reading, and what is said of the printed one; None: nothing."""

    value: float | None
    verdict: Verdict | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """One printed number of a cell, and ours by reading; show: how ours are written."""

    what: str
    printed: str
    held: Mapping[str, _Held]
    show: Callable[[float | None], str]


def _printed_table(report: Report, cells: Sequence[ReportCell]) -> Table:
    """Three lines a row of the paper's table: rate, MSE, iterations, each in all its readings."""
    paper = [rule for rule in report.rules if rule.paper]
    strict = [rule for rule in report.rules if kinds()[rule.kind].needs_recovery]
    columns = list(dict.fromkeys((rule.name, rule.label) for rule in (*paper, *strict)))
    columns.append((OWN_STOP, "own stop"))
    header = ("method", "attacker", "number", "printed", *(label for _, label in columns))
    labels = dict(columns)
    rows: list[tuple[str, ...]] = []
    for cell in cells:
        head: tuple[str, str] = (cell.label, cell.knowledge)
        for line in _lines(cell):
            values = [_marked(line.held.get(name), line.show) for name in labels]
            rows.append((*head, line.what, line.printed, *values, _conclusion(cell, line, labels)))
            head = ("", "")
    return Table(
        caption="Beside the printed numbers", header=(*header, "verdict"), rows=tuple(rows)
    )


def _lines(cell: ReportCell) -> list[_Line]:
    """The printed numbers of a cell; beside those without a verdict only rates are shown."""
    printed, verdict = cell.printed, cell.verdict
    if printed is None:
        return []
    words: Mapping[str, Verdict] = {} if verdict is None else verdict.asr
    rates = {
        name: _Held(interval.value, words.get(name))
        for name, interval in cell.asr.items()
        if not words or name in words
    }
    lines = []
    if printed.asr:
        lines.append(_Line(what="ASR", printed=printed.asr, held=rates, show=rate_words))
    if verdict is None:
        return lines
    for what, text, readings in (
        ("MSE", printed.mse, verdict.mse),
        ("RMSE", printed.rmse, verdict.rmse),
        ("iterations", printed.attack_iterations, verdict.attack_iterations),
    ):
        if text is not None and readings is not None:
            held = {name: _Held(each.value, each.verdict) for name, each in readings.items()}
            lines.append(_Line(what=what, printed=text, held=held, show=compact))
    return lines


def _marked(held: _Held | None, show: Callable[[float | None], str]) -> str:
    if held is None or held.value is None:
        return DASH
    return f"{show(held.value)} {MARKS.get(held.verdict or '', '')}".rstrip()


def _conclusion(cell: ReportCell, line: _Line, labels: Mapping[str, str]) -> str:
    """What comes of all readings of a printed number."""
    words = decisive({name: (held.value, held.verdict) for name, held in line.held.items()})
    if not cell.networks:
        return "not measured"
    if not any(words.values()):
        return f"none: {cell.crashed} trials failed" if cell.crashed else "context only"
    matching = [name for name, word in words.items() if word == "reproduced"]
    if matching:
        return "reproduced: " + "; ".join(
            labels[name] + (" (start passes)" if name in cell.start_passes else "")
            for name in matching
        )
    if "inconclusive" in words.values():
        return "inconclusive"
    few = " (few networks)" if cell.flagged("few_networks") else ""
    return f"not reproduced{few}"


# ------------------------------------------------------------------------------ a row's warnings


def _warnings(cell: ReportCell) -> str:
    """Flags of trials that ask for care, with how many have them."""
    counts = {flag.name: flag.count for flag in cell.flags}
    found = [f"{text} {counts[name]}" for name, text in _WARNINGS.items() if counts.get(name)]
    return ", ".join(found) or DASH
