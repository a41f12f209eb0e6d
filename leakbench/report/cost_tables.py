"""What defenses cost, as text: one table a data set, and a folded one of the rates of a sweep."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from leakbench.metrics.rules import kinds
from leakbench.report.content import CostEntry, Report, ReportCell
from leakbench.report.costs import NAMED_AMONG
from leakbench.report.words import (
    DASH,
    MARKS,
    Table,
    ceiling_words,
    compact,
    epsilon_words,
    interval_words,
    note_numbers,
    share_words,
    training_words,
)

Column = tuple[str, Callable[[CostEntry], str]]
"""Head, and what stands under it."""


def cost_guide(costs: Sequence[CostEntry], *, attacked: bool) -> list[str]:
    """How to read the tables of costs; attacked: whether the suite also attacks."""
    if not costs:
        return []
    worst = (
        "'worst attack' is the highest rate of all attacks and attackers on the defense. "
        if attacked
        else ""
    )
    other = "; the network that is attacked may be another" if attacked else ""
    lines = [
        f"{_caption(attacked)}: {worst}Accuracy is that of a network trained with it "
        "(column 'trained': network, rounds, clients, L local steps on B examples, data), on "
        f"held-out examples{other}. 's an iteration' is the wall time of a local step of all "
        "clients of a round, on a machine that may do other things.",
        "Epsilon holds for who has the final model. 'not amplified': accountants amplify by "
        "sampling where every step draws its examples anew; here clients are drawn, once a "
        "round, and an example counts as if it took part in every round. "
        f"Printed accuracies: {MARKS['reproduced']} within 0.03, "
        f"{MARKS['not reproduced']} not; fewer rounds or less data than the paper's say "
        "nothing.",
    ]
    if any(entry.ceiling is not None for entry in costs):
        lines.append(
            f"'named, at most': no attacker who has the final model names the right one of "
            f"{NAMED_AMONG:,} candidates (of a client-level epsilon: the client by its data) more "
            "often, by the same releases and relation as epsilon (Hayes et al. 2023); by guessing "
            f"it is {compact(1 / NAMED_AMONG)}."
        )
    if any(entry.privacy and "shared_examples" in entry.privacy.flags for entry in costs):
        lines.append(
            "'shared examples': clients draw theirs from the same set, and an example is counted "
            "for every client of a round that may hold it."
        )
    if any(entry.sweep for entry in costs):
        lines.append(
            "Where several learning rates were tried, every method had the same ones: each network "
            "was trained by each of them, and the one with the best accuracy on held-out training "
            "examples is reported, on the test examples. No epsilon charges the choice."
        )
    if any(entry.stop_accuracy is not None for entry in costs):
        lines.append(
            "'rounds to target' is the mean over the networks that reached the accuracy, with its "
            "95 % interval; printed ones are reproduced within a factor of 2."
        )
    if any(entry.printed_times_undefended is not None for entry in costs):
        lines.append(
            "Printed seconds are another machine's: compared are multiples of the undefended "
            "row's, within a factor of 2."
        )
    return lines


def cost_tables(
    report: Report, cells: Sequence[ReportCell], costs: Sequence[CostEntry]
) -> list[Table]:
    """The costs of a data set, and of its sweeps all that was tried; columns that say something."""
    columns = [
        *_leakage(report, cells),
        *_accuracy(costs),
        *_spent(costs),
        *_training(report, costs),
    ]
    tables = [
        Table(
            caption=_caption(bool(cells)),
            header=tuple(head for head, _ in columns),
            rows=tuple(tuple(cell(entry) for _, cell in columns) for entry in costs),
        )
    ]
    if any(entry.sweep for entry in costs):
        tables.append(_sweep_table(costs))
    return tables


def _caption(attacked: bool) -> str:
    return "Leakage, accuracy, privacy and cost" if attacked else "Accuracy, privacy and cost"


# ------------------------------------------------------------------------------ columns


def _leakage(report: Report, cells: Sequence[ReportCell]) -> list[Column]:
    """The row, and what the worst attack of the panel gets."""
    ours = [rule for rule in report.rules if not kinds()[rule.kind].bare] if cells else []

    def worst(rule: str) -> Callable[[CostEntry], str]:
        return lambda entry: interval_words(entry.worst[rule]) if rule in entry.worst else DASH

    return [
        ("method", lambda entry: entry.label),
        *((f"worst attack, {rule.label}", worst(rule.name)) for rule in ours),
    ]


def _accuracy(costs: Sequence[CostEntry]) -> list[Column]:
    columns: list[Column] = []
    if any(entry.convention for entry in costs):
        columns.append(("noise on", _noise))
    columns += [
        ("accuracy", lambda e: share_words(e.accuracy) + (" (weights nan)" if e.nan else "")),
        ("printed", lambda e: _marked(e.printed_accuracy or DASH, e.verdict)),
    ]
    if any(entry.stop_accuracy is not None for entry in costs):
        columns.append(("rounds to target", _to_target))
    if any(entry.printed_rounds for entry in costs):
        columns.append(
            ("printed rounds", lambda e: _marked(e.printed_rounds or DASH, e.rounds_verdict))
        )
    if any(entry.points for entry in costs):
        columns.append(("printed on the way (rounds: accuracy, ours)", _points))
    columns.append(("curve (rounds: accuracy)", _curve))
    return columns


def _noise(entry: CostEntry) -> str:
    words = {None: DASH, "per_example": "example"}
    return words.get(entry.convention, str(entry.convention))


def _points(entry: CostEntry) -> str:
    """What is printed of points before the end, and ours there."""
    texts = [
        f"{point.rounds}: {_marked(point.printed, point.verdict)}, {share_words(point.accuracy)}"
        for point in entry.points
    ]
    return "; ".join(texts) or DASH


MOST_POINTS = 12
"""Of a curve in a table; the last is always shown."""


def _curve(entry: CostEntry) -> str:
    step = -(-len(entry.curve) // MOST_POINTS) or 1
    shown = [*entry.curve[:-1:step], *entry.curve[-1:]]
    return " ".join(f"{rounds}: {share:.3f}" for rounds, share in shown) or DASH


def _to_target(entry: CostEntry) -> str:
    """Of the networks that reached it, and how many did not."""
    if entry.stop_accuracy is None or not entry.networks:
        return DASH
    target = compact(entry.stop_accuracy)
    missed = entry.networks - entry.reached
    never = f"{target}: not reached in {entry.rounds} rounds"
    if not entry.reached:
        return never
    interval = entry.rounds_to_target
    ends = ""
    if interval.low is not None and interval.high is not None:
        ends = f" [{compact(interval.low)}, {compact(interval.high)}]"
    text = f"{target}: {compact(interval.value)}{ends}"
    return f"{text}; {missed} of {entry.networks} not in {entry.rounds}" if missed else text


def _spent(costs: Sequence[CostEntry]) -> list[Column]:
    columns: list[Column] = [
        ("epsilon of the final model", lambda e: epsilon_words(e.privacy)),
    ]
    if any(entry.ceiling is not None for entry in costs):
        columns.append(("named, at most", lambda e: ceiling_words(e.ceiling)))
    columns += [
        ("s an iteration", lambda e: compact(e.seconds_per_iteration)),
    ]
    if any(entry.seconds_per_client is not None for entry in costs):
        columns.append(("s a client", lambda e: compact(e.seconds_per_client)))
    columns.append(("x undefended", lambda e: compact(e.times_undefended)))
    if any(entry.printed_times_undefended is not None for entry in costs):
        columns.append(
            (
                "printed x",
                lambda e: _marked(compact(e.printed_times_undefended), e.seconds_verdict),
            )
        )
    return columns


def _training(report: Report, costs: Sequence[CostEntry]) -> list[Column]:
    columns: list[Column] = []
    if any(entry.sweep for entry in costs):
        columns.append(("learning rate", _rates))
    if any(note_numbers(report.notes, entry) != DASH for entry in costs):
        columns.append(("notes", lambda e: note_numbers(report.notes, e)))
    columns.append(("trained", _trained))
    return columns


def _rates(entry: CostEntry) -> str:
    """Those that were chosen, each once; of how many."""
    chosen = ", ".join(compact(rate) for rate in dict.fromkeys(sorted(entry.learning_rates)))
    tried = len({point.learning_rate for point in entry.sweep})
    return f"{chosen} (of {tried})" if tried else chosen or DASH


def _trained(entry: CostEntry) -> str:
    failed = f"{entry.failed} failed: {entry.reason}; " if entry.failed else ""
    return failed + (training_words(entry) if entry.networks else entry.reason or "no result yet")


def _marked(text: str, verdict: str) -> str:
    mark = MARKS.get(verdict, f"({verdict})" if verdict else "")
    return f"{text} {mark}".rstrip()


# ------------------------------------------------------------------------------ sweeps


def _sweep_table(costs: Sequence[CostEntry]) -> Table:
    rows = [
        (
            entry.label,
            str(point.network),
            compact(point.learning_rate) + (" (chosen)" if point.chosen else ""),
            f"{point.held_out:.3f}",
            f"{point.accuracy:.3f}",
        )
        for entry in costs
        for point in entry.sweep
    ]
    return Table(
        caption="Learning rates: all that were tried",
        header=("method", "network", "learning rate", "accuracy, held out", "accuracy, test"),
        rows=tuple(rows),
        folded=True,
    )
