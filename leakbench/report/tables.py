"""The report in the forms people read: Markdown, CSV, JSON and one self-contained HTML page.

Nothing is computed here but rounding: every number comes from `cells.build`. Markdown and HTML are
two renderings of the same `Document`.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2

from leakbench import frames
from leakbench.report.cells import COUNTS, Report, flag_names, with_value
from leakbench.spec import JUDGED

DASH = "-"
MARKS = {"reproduced": "✓", "not reproduced": "✗", "inconclusive": "?"}
"""Marks of the three verdicts in tables; the words stand in the verdict column."""

_CONVENTIONS = {
    None: "",
    "per_example": "example",
    "mean": "mean, after tap",
    "sum": "sum, after tap",
}
ATTACKERS = {
    "naive": " (ignores the defense)",
    "adaptive": " (runs the defense without noise on his dummy input)",
}
_EFFORT = ("steps", "evaluations")
_WARNINGS = {
    "optimiser_failed": "optimiser failed",
    "fits_noise": "truth is not the minimum",
    "loss_never_fell": "loss never fell",
    "label_wrong": "label wrong",
    "defense_noop": "defense no-op",
    "gradient_nonfinite": "gradient not finite",
    "gradient_zero": "gradient zero",
}
_BASELINE_LABELS = {
    "start_image": "start image",
    "mean_image": "mean image",
    "class_mean": "mean of the class",
    "nearest_public": "nearest public image",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Cells of text; a row has as many as the header."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


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


# ------------------------------------------------------------------------------ renderings


def to_json(report: Report) -> str:
    """Strict JSON (no NaN), keys in the order of `cells.build`."""
    return json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def to_csv(report: Report) -> str:
    """One row a cell; nested keys joined by dots, lists by semicolons, None is empty."""
    return frames.to_csv(report["cells"])


def to_markdown(report: Report) -> str:
    """For GitHub, and readable in a terminal: columns of a table are padded to equal width."""
    document = arrange(report)
    parts = [f"# {document.title}", *document.lead, _bullets(document.guide)]
    for section in document.sections:
        parts += [f"## {section.title}", *section.above]
        for table in section.tables:
            parts += [f"**{table.caption}**", markdown_table(table)]
        parts += section.below
    if document.notes:
        numbered = enumerate(document.notes, start=1)
        parts += ["## Notes", "\n".join(f"{number}. {note}" for number, note in numbered)]
    return "\n\n".join(part for part in parts if part) + "\n"


def to_html(report: Report, gallery_png: bytes | None = None) -> str:
    """One page that needs nothing from outside; `gallery_png` is embedded."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("leakbench.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    gallery = None
    if gallery_png is not None:
        gallery = "data:image/png;base64," + base64.b64encode(gallery_png).decode("ascii")
    return environment.get_template("report.html.j2").render(
        document=arrange(report), gallery=gallery
    )


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def markdown_table(table: Table) -> str:
    """Padded columns; a bar inside a cell would start a new column, so it is escaped."""
    rows = [[cell.replace("|", "\\|") for cell in row] for row in (table.header, *table.rows)]
    widths = [max(3, *(len(row[i]) for row in rows)) for i in range(len(table.header))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


# ------------------------------------------------------------------------------ arrangement


def arrange(report: Report) -> Document:
    """All the text of a report, in reading order."""
    return Document(
        title=report["title"],
        lead=_lead(report),
        guide=_guide(report),
        sections=tuple(_section(report, dataset) for dataset in report["datasets"]),
        notes=tuple(_one_line(note["text"]) for note in report["notes"]),
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _lead(report: Report) -> tuple[str, ...]:
    cells = report["cells"]
    absent = sum(cell["planned"] - sum(cell[status] for status in JUDGED) for cell in cells)
    attacks = ", ".join(dict.fromkeys(cell["attack"] for cell in cells))
    models = ", ".join(dict.fromkeys(map(_model, cells)))
    taps = ", ".join(dict.fromkeys(cell["leak"] for cell in cells))
    run = (
        f"Suite {report['suite']}, profile {report['profile']}: attack {attacks} on model "
        f"{models}, leak {taps}; {report['networks']} networks x {report['victims']} victims a "
        f"cell; {report['planned'] - absent} of {report['planned']} planned trials have a result."
    )
    attackers = "; ".join(map(_attacker, report["attackers"]))
    asked = report["manifest"]
    overrides = [f"--{k} {asked[k]}" for k in ("attack", "defense") if asked.get(k)]
    overrides += [f"--set {setting}" for setting in asked.get("settings") or ()]
    parts = (
        report["source"],
        run,
        f"Attackers: {attackers}.",
        f"Not the suite as published: {' '.join(overrides)}." if overrides else "",
        _where(asked),
    )
    return tuple(part for part in parts if part)


def _noise_on(cell: Mapping[str, Any]) -> str:
    """What the noise is added to; at a single example's tap later noise is not seen."""
    text = _CONVENTIONS.get(cell["convention"], str(cell["convention"])) or DASH
    return text if cell["example_view"] else text.removesuffix(", after tap")


def _model(cell: Mapping[str, Any]) -> str:
    """Name of the network, and whether it had learnt anything before the attack."""
    return f"{cell['model']} ({'pretrained' if cell['pretrained'] else 'untrained'})"


def _attacker(attacker: Mapping[str, Any]) -> str:
    """One attacker in words: what he ignores or runs, is given, and sets."""
    knowledge = attacker["knowledge"]
    given = f", given the {' and '.join(attacker['grants'])}" if attacker["grants"] else ""
    values = ", ".join(f"{name}={value}" for name, value in attacker["parameters"].items())
    variant = f"{attacker['variant']}: " if attacker["variant"] else ""
    who = f"{variant}{attacker['attack']} {knowledge}{ATTACKERS.get(knowledge, '')}{given}"
    return f"{who} ({values})" if values else who


def _where(manifest: Mapping[str, Any]) -> str:
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
    paper = [rule["label"] for rule in _readings(report)]
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
    if report["costs"]:
        lines += [
            "Leakage, accuracy, privacy and cost: 'worst attack' is the highest rate of all "
            "attacks and attackers on the defense. Accuracy is that of a network trained with it "
            "(last column: network, rounds, clients, L local steps on B examples, data), on "
            "held-out examples; the network that is attacked may be another. 's an iteration' is "
            "the wall time of a local step of all clients of a round, on a machine that may do "
            "other things.",
            "Epsilon holds for who has the final model. 'not amplified': accountants amplify by "
            "sampling where every step draws its examples anew; here clients are drawn, once a "
            "round, and an example counts as if it took part in every round. "
            f"Printed accuracies: {MARKS['reproduced']} within 0.03, "
            f"{MARKS['not reproduced']} not; fewer rounds or less data than the paper's say "
            "nothing.",
        ]
    if any(cell["printed"] for cell in report["cells"]):
        lines.append(
            f"Beside the printed numbers: {MARKS['reproduced']} reproduced, "
            f"{MARKS['not reproduced']} not reproduced, {MARKS['inconclusive']} inconclusive "
            "(90 % interval against printed rate ± 0.10, or MSE and iterations within a factor "
            "of 2); means over successes, or over all trials where none succeeds."
        )
    return tuple(lines)


def _section(report: Report, dataset: str) -> Section:
    cells = [cell for cell in report["cells"] if cell["dataset"] == dataset]
    title = f"{report['datasets'][dataset]['title']} ({dataset})"
    measured = [cell for cell in cells if cell["networks"]]
    if not measured:
        reasons = ", ".join(dict.fromkeys(cell["reason"] for cell in cells if cell["reason"]))
        above = f"Not run: {reasons}" if reasons else "No trial has a result yet."
        return Section(title=title, above=(above,), tables=(), below=())
    tables = [_leakage_table(report, cells), _effort_table(report, cells)]
    if costs := [entry for entry in report["costs"] if entry["dataset"] == dataset]:
        tables.insert(0, _cost_table(report, cells, costs))
    if any(cell["printed"] for cell in cells):
        tables.append(_printed_table(report, cells))
    baselines = report["baselines"][dataset]
    known = [
        f"{_BASELINE_LABELS.get(name, name)} {compact(value)}"
        for name, value in baselines.items()
        if value is not None
    ]
    below = (f"Without any gradient, clamped MSE: {', '.join(known)}.",) if known else ()
    return Section(title=title, above=(), tables=tuple(tables), below=below)


def _leakage_table(report: Report, cells: Sequence[dict[str, Any]]) -> Table:
    paper = _readings(report)
    ours = [rule for rule in report["rules"] if rule not in paper]
    header = ["method", "attacker", "noise on", *(rule["label"] for rule in ours), "ceiling"]
    if paper:
        header.append("paper's rule")
    header += ["MSE raw; clamped", "notes"]
    rows = []
    for cell in cells:
        row = [
            cell["label"],
            cell["knowledge"],
            _noise_on(cell),
            *(interval_words(cell["asr"][rule["name"]]) for rule in ours),
            compact(cell["ceiling"]),
        ]
        if paper:
            row.append(" / ".join(_rate(cell["asr"][rule["name"]]["value"]) for rule in paper))
        errors = f"{compact(cell['mse'])}; {compact(cell['mse_clamped'])}"
        row += [errors, _note_numbers(report, cell)]
        rows.append(tuple(row))
    return Table(caption="Leakage: success rates", header=tuple(header), rows=tuple(rows))


def _readings(report: Report) -> list[dict[str, Any]]:
    """Rules that are a paper's own; one that is ours too has a column to itself."""
    ours = ("strict", "identified")
    return [rule for rule in report["rules"] if rule["paper"] and rule["kind"] not in ours]


def _cost_table(
    report: Report, cells: Sequence[dict[str, Any]], costs: Sequence[dict[str, Any]]
) -> Table:
    """A row a defense: what the worst attack of the panel gets, and what the defense costs."""
    ours = [rule for rule in report["rules"] if rule["kind"] in ("strict", "identified")]
    header = (
        *("method", *(f"worst attack, {rule['label']}" for rule in ours)),
        *("accuracy", "printed", "curve (rounds: accuracy)", "epsilon of the final model"),
        *("s an iteration", "x undefended", "trained"),
    )
    rows = []
    for entry in costs:
        attacked = [cell for cell in cells if cell["defense"] == entry["row"]]
        failed = f"{entry['failed']} failed: {entry['reason']}; " if entry["failed"] else ""
        rows.append(
            (
                entry["label"],
                *(_worst(attacked, rule["name"]) for rule in ours),
                share_words(entry["accuracy"]) + (" (weights nan)" if entry["nan"] else ""),
                f"{entry['printed_accuracy'] or DASH} {_verdict_mark(entry['verdict'])}".rstrip(),
                " ".join(f"{rounds}: {share:.3f}" for rounds, share in entry["curve"]) or DASH,
                epsilon_words(entry["privacy"]),
                compact(entry["seconds_per_iteration"]),
                compact(entry["times_undefended"]),
                failed + (training_words(entry) if entry["networks"] else entry["reason"]),
            )
        )
    return Table(caption="Leakage, accuracy, privacy and cost", header=header, rows=tuple(rows))


def _worst(cells: Sequence[Mapping[str, Any]], rule: str) -> str:
    """The highest rate of any attack on a defense; a defense is as good as that."""
    rated = [cell for cell in cells if cell["asr"][rule]["value"] is not None]
    if not rated:
        return DASH
    worst = max(rated, key=lambda cell: (cell["asr"][rule]["value"], cell["asr"][rule]["high"]))
    return interval_words(worst["asr"][rule])


def share_words(interval: Mapping[str, float | None]) -> str:
    value, low, high = (interval[name] for name in ("value", "low", "high"))
    if value is None:
        return DASH
    return f"{value:.3f}" if low is None or high is None else f"{value:.3f} [{low:.3f}, {high:.3f}]"


def _verdict_mark(verdict: str) -> str:
    return MARKS.get(verdict, f"({verdict})" if verdict else "")


def epsilon_words(privacy: Mapping[str, Any]) -> str:
    """Epsilon with all that it is an epsilon of, or why there is none."""
    if not privacy:
        return DASH
    if privacy["epsilon"] is None:
        return f"none: {privacy['reason']}"
    relation = {"add_remove": "add/remove", "replace_one": "replace-one"}[privacy["relation"]]
    flagged = "".join(f"; {flag.replace('_', ' ')}" for flag in privacy["flags"])
    return (
        f"{compact(privacy['epsilon'])} ({privacy['level']}, {relation}, delta "
        f"{compact(privacy['delta'])}, {privacy['accountant']}, {privacy['sampling']}{flagged})"
    )


def training_words(entry: Mapping[str, Any]) -> str:
    """Network, data and schedule in a few words."""
    if not entry["networks"]:
        return "no result yet"
    clients = ""
    if entry["clients"] > 1:
        clients = (
            f", {entry['clients_a_round']} of {entry['clients']} clients ({entry['partition']}), "
            f"L={entry['local_steps']}"
        )
    return (
        f"{entry['model']}, {entry['rounds']} rounds{clients}, B={entry['batch_size']}, "
        f"{entry['data']} data ({entry['examples']})"
    )


def _effort_table(report: Report, cells: Sequence[dict[str, Any]]) -> Table:
    strict = [rule for rule in report["rules"] if rule["kind"] == "strict"]
    header = (
        *("method", "attacker", "accuracy", "SSIM", "label right", "steps", "evaluations"),
        *(f"{what} to success, {rule['label']}" for rule in strict for what in _EFFORT),
        *("trials", "warnings"),
    )
    rows = tuple(
        (
            cell["label"],
            cell["knowledge"],
            _rate(cell["accuracy"]),
            _rate(cell["ssim"]),
            _rate(cell["label_accuracy"]),
            compact(cell["steps"]),
            compact(cell["evaluations"]),
            *(
                compact(cell[f"{what}_to_success"][rule["name"]]["median"])
                for rule in strict
                for what in _EFFORT
            ),
            _trials(cell),
            _warnings(cell),
        )
        for cell in cells
    )
    return Table(caption="Effort, and why attacks failed", header=header, rows=rows)


def _printed_table(report: Report, cells: Sequence[dict[str, Any]]) -> Table:
    """Three lines a row of the paper's table: rate, MSE, iterations, each in all its readings."""
    paper = [rule for rule in report["rules"] if rule["paper"]]
    strict = [rule for rule in report["rules"] if rule["kind"] == "strict"]
    columns = list(dict.fromkeys((rule["name"], rule["label"]) for rule in (*paper, *strict)))
    columns.append(("own_stop", "own stop"))
    header = ("method", "attacker", "number", "printed", *(label for _, label in columns))
    rows: list[tuple[str, ...]] = []
    labels = dict(columns)
    for cell in cells:
        if not cell["printed"]:
            continue
        head = (cell["label"], cell["knowledge"])
        rates = _rate_readings(cell)
        lines = [("ASR", "asr", rates)]
        numbers = (("MSE", "mse"), ("RMSE", "rmse"), ("iterations", "attack_iterations"))
        for what, key in numbers if cell["verdict"] else ():
            if key in cell["printed"]:
                lines.append((what, key, cell["verdict"][key]))
        for what, key, readings in lines:
            show = _rate if key == "asr" else compact
            values = [_marked(readings.get(name), show) for name, _ in columns]
            verdict = _short_verdict(cell, readings, labels)
            rows.append((*head, what, cell["printed"][key], *values, verdict))
            head = ("", "")
    return Table(
        caption="Beside the printed numbers", header=(*header, "verdict"), rows=tuple(rows)
    )


def _rate_readings(cell: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Rates under the paper's readings with their verdicts; without where none is given."""
    words = cell["verdict"].get("asr", {})
    return {
        name: {**interval, "verdict": words.get(name, "")}
        for name, interval in cell["asr"].items()
        if not words or name in words
    }


def _marked(reading: Mapping[str, Any] | None, show: Callable[[float | None], str]) -> str:
    if reading is None or reading["value"] is None:
        return DASH
    return f"{show(reading['value'])} {MARKS.get(reading['verdict'], '')}".rstrip()


def _short_verdict(
    cell: Mapping[str, Any], readings: Mapping[str, Mapping[str, Any]], labels: Mapping[str, str]
) -> str:
    words = {name: reading["verdict"] for name, reading in with_value(readings).items()}
    if not cell["networks"]:
        return "not measured"
    if not any(words.values()):
        failed = sum(cell[status] for status in ("oom", "timeout", "error"))
        return f"none: {failed} trials failed" if failed else "context only"
    matching = [name for name, word in words.items() if word == "reproduced"]
    if matching:
        return "reproduced: " + "; ".join(
            labels[name] + (" (start passes)" if name in cell["start_passes"] else "")
            for name in matching
        )
    if "inconclusive" in words.values():
        return "inconclusive"
    few = " (few networks)" if "few_networks" in flag_names(cell) else ""
    return f"not reproduced{few}"


# ------------------------------------------------------------------------------ words


def _rate(value: float | None) -> str:
    # Adding 0.0 turns a rounded -0.0 into 0.0.
    return DASH if value is None else f"{round(value, 2) + 0.0:.2f}"


def interval_words(interval: Mapping[str, float | None]) -> str:
    if interval["value"] is None:
        return DASH
    text = _rate(interval["value"])
    return (
        text
        if interval["low"] is None
        else (f"{text} [{_rate(interval['low'])}, {_rate(interval['high'])}]")
    )


def _trials(cell: Mapping[str, Any]) -> str:
    """The number alone where all is well, else how the others ended."""
    if cell["ok"] == cell["planned"]:
        return str(cell["planned"])
    ends = ", ".join(f"{cell[name]} {name}" for name in COUNTS if cell[name])
    return f"{cell['planned']}: {ends}"


def _warnings(cell: Mapping[str, Any]) -> str:
    """Flags of trials that ask for care, with how many have them."""
    counts = {flag["name"]: flag["count"] for flag in cell["flags"]}
    found = [f"{text} {counts[name]}" for name, text in _WARNINGS.items() if counts.get(name)]
    return ", ".join(found) or DASH


def _note_numbers(report: Report, cell: Mapping[str, Any]) -> str:
    """Numbers of the notes about this row; those about everything are not repeated in each."""
    numbers = [
        str(number)
        for number, note in enumerate(report["notes"], start=1)
        if note["rows"] is not None
        and cell["row"] in note["rows"]
        and (note["datasets"] is None or cell["dataset"] in note["datasets"])
    ]
    return ", ".join(numbers) or DASH
