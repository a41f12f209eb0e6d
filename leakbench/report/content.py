"""What a report says: every field of it, named once.

`cells.build` fills these in, tables and pages arrange them, and `Report.as_dict` is the stable JSON
interface: keys are the fields, in their order. All numbers are finite or None, so the result is
strict JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from leakbench.spec import Knowledge
from leakbench.statistics import Interval, Verdict


class Entry:
    """A part of a report; its fields, in their order, are the keys of its JSON."""

    __slots__ = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain values: entries become dictionaries, tuples become lists."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}  # type: ignore[arg-type]


def _plain(value: Any) -> Any:
    if isinstance(value, Entry | Interval):
        return value.as_dict()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value


class SparseEntry(Entry):
    """An entry whose JSON leaves out what is None."""

    __slots__ = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain values of the fields that have one."""
        return {key: value for key, value in Entry.as_dict(self).items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleEntry(Entry):
    """A success rule as it is shown.

    Attributes:
        condition: what must hold, with its numbers. parameters: these, by their names in suites.
        paper: it is a reading of the paper's own rule.
        recovers: a success shows the victim itself. names: it names him with one guess.
    """

    name: str
    label: str
    kind: str
    condition: str
    parameters: Mapping[str, Any]
    paper: bool
    recovers: bool
    names: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetEntry(Entry):
    """What a data set is called."""

    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Attacker(Entry):
    """An attack, what it knows and is granted, and its hyper-parameters."""

    variant: str
    attack: str
    knowledge: Knowledge
    grants: tuple[str, ...]
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort(Entry):
    """Steps or evaluations to the first success: Kaplan-Meier median, and mean of successes."""

    median: float | None
    mean_of_successes: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Baselines(Entry):
    """Mean clamped MSE of what needs no gradient; None where it was not measured."""

    start_image: float | None
    mean_image: float | None
    class_mean: float | None
    nearest_public: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedEntry(SparseEntry):
    """A paper's numbers as printed; `asr` is "Y" or "N" where it only says whether it succeeds, ""
    where it says neither."""

    asr: str
    mse: str | None = None
    rmse: str | None = None
    attack_iterations: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading(Entry):
    """Our number under one reading of a printed one: mean, 90 % interval, verdict.

    over: "successes" under the rule, or "all" trials.
    """

    value: float | None
    low: float | None
    high: float | None
    over: str
    verdict: Verdict


Readings = Mapping[str, Reading]
"""By name of the rule; "own_stop": the steps spent by all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictEntry(SparseEntry):
    """Each printed number of a cell against its readings, and what comes of it, in a sentence."""

    asr: Mapping[str, Verdict]
    mse: Readings | None = None
    rmse: Readings | None = None
    attack_iterations: Readings | None = None
    summary: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag(Entry):
    """A warning; count: trials that have it, None where it is about the cell as a whole."""

    name: str
    count: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundEntry(Entry):
    """What the leaks of a cell hold, medians over trials; see `information.Bound`.

    ratio: the attack's median raw error over `attainable`. verdict: of the leak, by the best of the
    attackers without a list of candidates: "bracketed" (at most a factor 2 above `attainable`),
    "attack too weak" (beyond: the defense earns no credit), "no information left" (`attainable` is
    near the mean image's error); "" where nothing is attainable or known.
    """

    unbiased: float | None
    attainable: float | None
    ratio: float | None
    rank: float | None
    condition: float | None
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FeaturesEntry(Entry):
    """Of rows of a table: the share of their features that is right, means over judged trials.

    right, categories, numbers: of all, and of each kind; None where a table has none of it.
    usual, nearest: of all, without a gradient: the commonest values and mean numbers of the public
    rows, and the nearest public row. confidence: what the attack says of itself, if it does.
    """

    right: float | None
    categories: float | None
    numbers: float | None
    usual: float | None
    nearest: float | None
    confidence: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberEntry(Entry):
    """One of the attacks that an attack is made of: how often his answer was taken, success rate by
    rule had he been alone, median evaluations."""

    taken: int
    asr: Mapping[str, Interval]
    evaluations: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportCell(Entry):
    """One cell of the table: a row of a data set, attacked by one attacker.

    Attributes:
        row, variant, defense, label: where it stands, and what the row is called.
        grants: what the attacker is given.
        leak, leak_id: where the gradient is read; what cells that attack the same gradients share.
        accuracy: median over trials of the attacked network's, on public images.
        convention: what the noise is added to, where the defense says so. example_view: whether
            single examples' gradients are seen.
        planned: trials; how they ended: ok to missing (no record, and no reason why not).
        reason: why it was skipped, or the commonest reason of a trial that is not ok.
        networks: with at least one trial.
        asr: success rate by rule, with its 95 % interval.
        mse, mse_clamped, ssim, lpips, steps, evaluations: medians over judged trials.
        steps_to_success, evaluations_to_success: by rule that is followed step by step.
        start_passes: rules that the start image meets for every victim.
        label_accuracy: share of labels that were right.
        chance: rate of naming the victims without a look at the leak, among all candidates.
        ceiling: largest rate of naming them that the guarantee allows; None without one.
        printed, verdict: None where nothing is printed, or may be held against it.
        bound: None, and not in the JSON, where the suite does not ask for it.
        features: None, and not in the JSON, where there are no rows with declared features.
        members: of an attack that is made of others, by name.
    """

    dataset: str
    model: str
    pretrained: bool
    accuracy: float | None
    row: str
    variant: str
    defense: str
    label: str
    attack: str
    knowledge: Knowledge
    grants: tuple[str, ...]
    leak: str
    leak_id: str
    convention: str | None
    example_view: bool
    planned: int
    ok: int
    nan: int
    diverged: int
    oom: int
    timeout: int
    skipped: int
    error: int
    missing: int
    reason: str
    networks: int
    asr: Mapping[str, Interval]
    mse: float | None
    mse_clamped: float | None
    ssim: float | None
    lpips: float | None
    steps: float | None
    evaluations: float | None
    steps_to_success: Mapping[str, Effort]
    evaluations_to_success: Mapping[str, Effort]
    start_passes: tuple[str, ...]
    label_accuracy: float | None
    baselines: Baselines
    chance: float | None
    ceiling: float | None
    guarantee: str
    printed: PrintedEntry | None
    verdict: VerdictEntry | None
    flags: tuple[Flag, ...]
    bound: BoundEntry | None = None
    features: FeaturesEntry | None = None
    members: Mapping[str, MemberEntry] = field(default_factory=dict)

    @property
    def judged(self) -> int:
        """Trials with a reconstruction to judge."""
        return self.ok + self.nan + self.diverged

    @property
    def crashed(self) -> int:
        """Trials that came to nothing."""
        return self.oom + self.timeout + self.error

    @property
    def absent(self) -> int:
        """Trials that are in no rate."""
        return self.skipped + self.missing

    @property
    def ends(self) -> dict[str, int]:
        """How the trials ended -> how many of them did."""
        return {name: getattr(self, name) for name in COUNTS}

    @property
    def flag_names(self) -> tuple[str, ...]:
        """Names of all flags."""
        return tuple(flag.name for flag in self.flags)

    def flagged(self, name: str) -> bool:
        """Whether it has this flag."""
        return name in self.flag_names

    def as_dict(self) -> dict[str, Any]:
        """As every entry; what is not printed, or not held against print, is an empty table, and
        members are left out where there are none."""
        found = Entry.as_dict(self)
        if self.bound is None:
            del found["bound"]
        if self.features is None:
            del found["features"]
        if not self.members:
            del found["members"]
        return found | {name: found[name] or {} for name in ("printed", "verdict")}


COUNTS = ("ok", "nan", "diverged", "oom", "timeout", "skipped", "error", "missing")
"""How planned trials ended, as fields of a cell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalEpsilon(Entry):
    """Epsilon of a training for who holds the final model, as its record has it.

    epsilon: None where there is none; `reason` says why. For the others see
    `privacy.account.Result`.
    """

    accountant: str = ""
    assumptions: tuple[str, ...] = ()
    delta: float | None = None
    epsilon: float | None = None
    flags: tuple[str, ...] = ()
    level: str = ""
    observations: int | None = None
    observer: str = ""
    preset: str = ""
    reason: str = ""
    relation: str = ""
    sampling: str = ""

    @staticmethod
    def of(recorded: Mapping[str, Any] | None) -> FinalEpsilon | None:
        """The table `privacy` of a record, without the events it was computed from."""
        if not recorded:
            return None
        known = {field.name for field in fields(FinalEpsilon)}
        values = {name: value for name, value in recorded.items() if name in known}
        for name in ("assumptions", "flags"):
            values[name] = tuple(values.get(name, ()))
        return FinalEpsilon(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint(Entry):
    """A learning rate that a network was trained by: accuracy on held-out training data and on
    test data; `chosen` by the first of them."""

    network: int
    learning_rate: float
    held_out: float
    accuracy: float
    chosen: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedPoint(Entry):
    """An accuracy that is printed of a point before the end, after `rounds` of a training, and
    ours there; the verdict is as for that of the end."""

    rounds: int
    accuracy: Interval
    printed: str
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CostEntry(Entry):
    """What a defense costs on a data set: accuracy, epsilon, rounds, time.

    Attributes:
        row, variant, defense, label: where it stands, and what the row is called.
        convention: what the noise is added to, where the defense says so.
        networks: trained, of `planned`; `failed` came to nothing, `nan` of the trained ones have
            weights that are not finite.
        reason: why it was skipped, or why one failed.
        data, examples: "full" or "sample", and how many; None without a result.
        rounds to overlap: as in `Schedule`, as planned; partition is None with one client.
        learning_rates, rounds_done, stopped: of each trained network, in order; `stopped` by
            "accuracy" or "epsilon", "" where all rounds were done.
        sweep: the rates that were tried, network by network.
        stop_accuracy, stop_epsilon: what ends a training, None where nothing does.
        reached: networks that reached `stop_accuracy`. rounds_to_target: mean over these.
        accuracy: mean over networks, on held-out examples. curve: (rounds done, mean accuracy).
        worst: by rule, the highest success rate of any attack on the defense.
        privacy: None without a result. ceiling: largest chance that an attacker who has the final
            model names the victim among 1,000; None without an epsilon.
        seconds_per_iteration: of a local step of all clients of a round, median;
            seconds_per_client: of one client's; times_undefended: in units of the undefended
            training's.
        printed_*, *verdict: the paper's, and how ours compares; None and "" where nothing is
            printed. Times are compared as multiples of the undefended row's.
        points: accuracies that are printed of the way there.
    """

    dataset: str
    row: str
    variant: str
    defense: str
    label: str
    convention: str | None
    model: str
    networks: int
    planned: int
    failed: int
    nan: int
    reason: str
    data: str | None
    examples: int | None
    rounds: int
    clients: int
    clients_a_round: int
    local_steps: int
    batch_size: int
    partition: str | None
    overlap: bool
    learning_rates: tuple[float, ...]
    sweep: tuple[SweepPoint, ...]
    rounds_done: tuple[int, ...]
    stopped: tuple[str, ...]
    stop_accuracy: float | None
    stop_epsilon: float | None
    reached: int
    rounds_to_target: Interval
    accuracy: Interval
    curve: tuple[tuple[int, float], ...]
    privacy: FinalEpsilon | None
    ceiling: float | None
    seconds_per_iteration: float | None
    seconds_per_client: float | None
    printed_accuracy: str | None
    verdict: str
    times_undefended: float | None
    printed_times_undefended: float | None
    printed_seconds: str | None
    seconds_verdict: str
    printed_rounds: str | None
    rounds_verdict: str
    points: tuple[PrintedPoint, ...] = ()
    worst: Mapping[str, Interval] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether every network was trained, to weights that are finite."""
        return self.networks - self.nan == self.planned

    def as_dict(self) -> dict[str, Any]:
        """As every entry; without a result `privacy` is an empty table."""
        found = Entry.as_dict(self)
        return found | {"privacy": found["privacy"] or {}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Note(Entry):
    """A remark; source: "suite" or "report". datasets, rows: what it is about, None: everything."""

    text: str
    source: str
    datasets: tuple[str, ...] | None = None
    rows: tuple[str, ...] | None = None

    def about(self, cell: ReportCell | CostEntry) -> bool:
        """Whether it is about this row of a table; one about everything is about no row."""
        if self.rows is None or cell.row not in self.rows:
            return False
        return self.datasets is None or cell.dataset in self.datasets


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(Entry):
    """A whole report.

    Attributes:
        question, reading_guide: the suite's own words above the answer, "" where it has none.
        planned: trials of all cells. networks, victims: of each cell.
        cells: in the order of the suite, none of a suite that only trains. costs: one a data set,
            variant and defense that was trained.
        baselines: by data set, over all its victims.
        manifest: of the run, as it was written.
        damage: what of the run is damaged and so in no number, in a sentence; "" if nothing is.
    """

    suite: str
    profile: str
    title: str
    source: str
    question: str
    reading_guide: str
    planned: int
    networks: int
    victims: int
    rules: tuple[RuleEntry, ...]
    datasets: Mapping[str, DatasetEntry]
    attackers: tuple[Attacker, ...]
    cells: tuple[ReportCell, ...]
    costs: tuple[CostEntry, ...]
    notes: tuple[Note, ...]
    baselines: Mapping[str, Baselines]
    manifest: Mapping[str, Any]
    damage: str = ""

    def above_ceiling(self) -> tuple[ReportCell, ...]:
        """Cells in which more victims are identified than the guarantee allows."""
        return tuple(cell for cell in self.cells if cell.flagged("above_ceiling"))
