"""What is run, judged and compared, in plain words: free of torch, of plugins and of any parser.

A suite is read into a `Plan` of `Cell`s; trials, runner and report take it from there and never
look at the file again. Everything here is a frozen dataclass of plain values: `plan_to_json` writes
a plan into a run's manifest, `plan_from_json` reads it back, equal to what was written.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from leakbench.data.entries import OwnData, Source
from leakbench.errors import LeakbenchError
from leakbench.plain import from_json

# ---------------------------------------------------------------------------- vocabularies

Knowledge = Literal["naive", "adaptive"]
"""naive: ignores the defense; adaptive: knows its public description."""

Grant = Literal["labels", "candidates", "public"]
"""What a threat model may hand to the attacker beside model, weights and gradients: the victims'
labels; a list of labelled candidates that holds the victims; public inputs of the same kind."""

Status = Literal["ok", "nan", "diverged", "oom", "timeout", "skipped", "error"]
"""How a trial ended. ok: the attack returned; nan: it left the finite numbers; diverged: its
returned loss is above its start's; oom, timeout, error: no reconstruction; skipped: no data."""

JUDGED: tuple[Status, ...] = ("ok", "nan", "diverged")
"""Statuses with a reconstruction to judge."""

ACCOUNTANTS: dict[str, str] = {
    "base": "sum of the steps' epsilons",
    "advanced": "advanced composition, the classic theorem",
    "advanced_eq3": "advanced composition as TIFS eq. 3 has it",
    "optimal": "composition of Kairouz, Oh and Viswanath; TIFS eq. 4 in the papers' presets",
    "zcdp": "zero-concentrated DP",
    "moments": "Renyi DP of the Poisson-subsampled Gaussian",
    "gdp": "Gaussian DP: exact without sampling, else the central limit",
    "pld": "privacy loss distributions: an upper bound, and tight",
}
"""Privacy accountants by name (`privacy.account` runs them)."""

View = Literal["example", "batch", "raw"]
Observer = Literal["model", "server", "type0", "type0_raw", "type1", "type2", "type2_batch"]
"""Who is promised something: the final model's holder, the server, or who taps a leak point; type2
sees one example's gradient, type2_batch the mean of a batch, type0_raw what arrives at the server
before it does anything to it: all that the server itself sees."""


Scalar = bool | int | float | str
"""What a suite file may give a hyper-parameter."""

Parameters = Mapping[str, Any]
"""Hyper-parameters of a plugin after its defaults: plain values that JSON can hold."""


# ---------------------------------------------------------------------------- training and leak


@dataclass(frozen=True, slots=True, kw_only=True)
class LeakPoint:
    """Where on the training path the attacker reads.

    type: 0 what the server holds after `on_receipt`, 1 what a client sends, 2 inside a local
        iteration. view: for type 2, one example's gradient or the batch mean; for type 0, "raw"
        is what the server received, before `on_receipt`; other types have one view only.
    round, iteration: 0-based; central training is one client whose round is one iteration.
    """

    type: Literal[0, 1, 2] = 2
    view: View = "example"
    round: int = 0
    iteration: int = 0

    @property
    def observer(self) -> Observer:
        """Who reads there."""
        return observer_of(self.type, self.view)

    def __str__(self) -> str:
        return f"type2/{self.view}" if self.type == 2 else self.observer


def observer_of(type: Literal[0, 1, 2], view: View) -> Observer:
    """Who reads a gradient of this type and view."""
    if type == 2:
        return "type2_batch" if view == "batch" else "type2"
    if type == 0:
        return "type0_raw" if view == "raw" else "type0"
    return "type1"


# ---------------------------------------------------------------------------- cells


def row_name(variant: str, defense: str) -> str:
    """Name of the table row of a variant and a defense; a suite without variants has only these."""
    return f"{variant}/{defense}" if variant else defense


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One cell of the table with every parameter spelled out.

    All `parameters` are complete (after defaults), so that `spec()` says all that
    decides a result but the data, the weights and the code. `rounds` are those of the looks;
    `federation`, arguments of `federated.Schedule`, is empty where nothing is trained before them.
    `own` says where the data are if they are the user's own; `dataset` is their name all the same.
    `bound`: whether records say what each leak holds (`information`).
    """

    dataset: str
    own: OwnData | None = None
    model: str
    model_parameters: Parameters
    weights: str
    pretraining: Mapping[str, Any] | None
    batch_size: int
    iterations: int
    local_steps: int
    learning_rate: float
    federation: Mapping[str, Any]
    leak_type: Literal[0, 1, 2]
    leak_view: Literal["example", "batch", "raw"]
    rounds: tuple[int, ...]
    variant: str
    defense_id: str
    label: str
    defense: str
    defense_parameters: Parameters
    attack: str
    attack_parameters: Parameters
    knowledge: Knowledge
    grants: tuple[Grant, ...]
    snapshots: tuple[int, ...]
    seed: int
    dtype: str
    bound: bool = False

    @property
    def row(self) -> str:
        """Row of the table it stands in."""
        return row_name(self.variant, self.defense_id)

    @property
    def source(self) -> Source:
        """What to load the data from."""
        return self.own or self.dataset

    @property
    def example_view(self) -> bool:
        """Whether the attacker sees single examples' gradients."""
        return self.leak_type == 2 and self.leak_view == "example"

    @property
    def observations(self) -> int:
        """Looks at the same victims."""
        return len(self.rounds)

    @property
    def steps_seen(self) -> int:
        """Local steps behind one observed gradient; type 2 is read in the first."""
        return 1 if self.leak_type == 2 else self.local_steps

    @property
    def images_a_gradient(self) -> int:
        """Images behind one observed gradient, which are reconstructed and judged together."""
        return 1 if self.example_view else self.batch_size * self.steps_seen

    @property
    def leak(self) -> str:
        """Where it is read, in words."""
        place = f"type2/{self.leak_view}" if self.leak_type == 2 else f"type{self.leak_type}"
        raw = " raw" if self.leak_view == "raw" else ""
        first, last = self.rounds[0], self.rounds[-1]
        when = "first" if first == 0 else f"round {first} of {self.iterations}"
        over = ", a round each" if last > first else ""
        looks = f" x{self.observations}{over}" if self.observations > 1 else ""
        return f"{place}{raw}@{when}{looks}"

    @property
    def convention(self) -> str | None:
        """Noise convention, where the defense has one."""
        return _convention(self.defense_parameters)

    def spec(self) -> dict[str, Any]:
        """JSON-able description of what is attacked: names of rows and paths change nothing.

        A table of its own, whose values are the cell's: not to be written to.
        """
        spec = {name: getattr(self, name) for name in _SPECIFIED[Cell]}
        if not self.bound:
            del spec["bound"]
        return spec

    def leak_spec(self) -> dict[str, Any]:
        """JSON-able description of what leaks, whoever attacks it."""
        spec = self.spec()
        for name in ("attack", "attack_parameters", "knowledge", "grants", "snapshots"):
            del spec[name]
        return spec

    def __str__(self) -> str:
        return f"{self.dataset}/{self.row}/{self.attack}/{self.knowledge}"


@dataclass(frozen=True, slots=True, kw_only=True)
class UtilityCell:
    """A training with one defense, every parameter spelled out; `schedule` is complete.

    Attributes:
        evaluate_at: rounds after which the accuracy is measured. own: as in `Cell`.
        variant: of the suite's [[utility.variants]], "" in a suite without.
        learning_rates: a sweep: a network is trained by each of them, and the one with the best
            accuracy on held-out training examples is reported; (): the schedule's own alone.
        held_out: share of the training examples held out in a sweep, in (0, 1).
        stop_accuracy: training ends after the round that reaches this accuracy on the test part;
            of more than 500 rounds, after one of 500 spread evenly.
        stop_epsilon: training ends before the round that would exceed this epsilon at `delta`.
    """

    dataset: str
    own: OwnData | None = None
    model: str
    model_parameters: Parameters
    weights: str
    pretraining: Mapping[str, Any] | None
    schedule: Mapping[str, Any]
    evaluate_at: tuple[int, ...]
    delta: float
    variant: str = ""
    defense_id: str
    label: str
    defense: str
    defense_parameters: Parameters
    learning_rates: tuple[float, ...] = ()
    held_out: float = 0.1
    stop_accuracy: float | None = None
    stop_epsilon: float | None = None
    seed: int
    dtype: str

    @property
    def row(self) -> str:
        """Row of the table of costs it stands in."""
        return row_name(self.variant, self.defense_id)

    @property
    def source(self) -> Source:
        """What to load the data from."""
        return self.own or self.dataset

    @property
    def convention(self) -> str | None:
        """Noise convention, where the defense has one."""
        return _convention(self.defense_parameters)

    def spec(self) -> dict[str, Any]:
        """JSON-able description for identity, as `Cell.spec`: names and paths change no result."""
        spec = {name: getattr(self, name) for name in _SPECIFIED[UtilityCell]}
        return {"kind": "utility", **spec}

    def __str__(self) -> str:
        return f"{self.dataset}/{self.row}/utility"


_SPECIFIED: dict[type, tuple[str, ...]] = {
    kind: tuple(
        each.name
        for each in dataclasses.fields(kind)
        if each.name not in ("variant", "defense_id", "label", "own")
    )
    for kind in (Cell, UtilityCell)
}
"""Fields that `spec` says. Of ten thousand cells of a plan each is asked for it several times, and
a copy of all that they hold takes ten times as long."""


def _convention(parameters: Parameters) -> str | None:
    """Noise convention among the parameters of a defense."""
    value = parameters.get("convention")
    return None if value is None else str(value)


# ---------------------------------------------------------------------------- the plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What a suite calls a success: the fields of `metrics.rules.make_rule`, and how it is shown.

    parameters: fields of the kind beside those named here. paper: a reading of the paper's own
    rule, which is compared with the printed rate.
    """

    name: str
    kind: str
    label: str
    threshold: float | None = None
    clamp: bool = True
    top: int = 1
    fraction: float = 0.25
    parameters: Mapping[str, Scalar] = field(default_factory=dict)
    paper: bool = False

    def judged(self) -> dict[str, Any]:
        """Arguments of `metrics.rules.make_rule`: all that decides a judgement."""
        values = dataclasses.asdict(self)
        del values["label"], values["paper"]
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """One printed cell of the paper's table, strings as printed; at most one of `mse` and `rmse`.

    succeeds: where the paper says of one example whether the attack succeeded, and no rate.
    """

    dataset: str
    defense: str
    variant: str = ""
    asr: str | None = None
    succeeds: Literal["Y", "N"] | None = None
    mse: str | None = None
    rmse: str | None = None
    attack_iterations: str | None = None

    @property
    def row(self) -> str:
        """Row of the table it stands in."""
        return row_name(self.variant, self.defense)

    @property
    def distance(self) -> tuple[str, str] | None:
        """Which distance is printed, "mse" or "rmse", and the number; None where none is."""
        for kind, text in (("mse", self.mse), ("rmse", self.rmse)):
            if text is not None:
                return kind, text
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedUtility:
    """What a paper prints of a training, strings as printed; at least one of the four.

    accuracy: on test data, 0 to 1. seconds_per_iteration: of a local step; on another machine, so
    that only its ratio to the undefended row's can be compared. rounds: to the `stop_accuracy`.
    points: rounds -> accuracy after so many of the planned ones.
    of_rounds: rounds of the training that the file speaks of, whatever is set otherwise; 0 in runs
    made before they were kept, where `Plan.printed_rounds` has them.
    """

    dataset: str
    defense: str
    variant: str = ""
    accuracy: str | None = None
    seconds_per_iteration: str | None = None
    rounds: str | None = None
    points: Mapping[str, str] = field(default_factory=dict)
    of_rounds: int = 0

    @property
    def row(self) -> str:
        """Row of the table of costs it stands in."""
        return row_name(self.variant, self.defense)


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteNote:
    """A remark of the suite's; None: about all data sets, variants or defenses."""

    text: str
    datasets: tuple[str, ...] | None = None
    variants: tuple[str, ...] | None = None
    defenses: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GalleryRule:
    """A gallery shows victims at these MSE quantiles of a reference cell, best first."""

    quantiles: tuple[float, ...] = (0.5,)
    defense: str = "none"
    variant: str = ""
    knowledge: Knowledge = "naive"

    @property
    def row(self) -> str:
        """Row of the reference cell."""
        return row_name(self.variant, self.defense)


@dataclass(frozen=True, slots=True, kw_only=True)
class DefenseRow:
    """A defense of the table: the row's id, the plugin's name, and what the row is called."""

    id: str
    name: str
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where the parameters of a plugin were set; those not named are its defaults.

    row: of an attack or a model, the id of its variant ("" in a suite without); of a defense, of
    its row.
    places: parameter -> e.g. "profiles.quick.parameters" or "--set attack.parameters.steps".
    """

    plugin: Literal["attack", "defense", "model"]
    row: str
    knowledge: Knowledge | None = None
    places: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds that a trial may take, of a chunk so many times its trials, and a chunk or a training
    as a whole; None: see `pieces.TimeLimits`. They change no result, only whether there is one."""

    trial: float | None = None
    chunk: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A suite resolved for one profile.

    Attributes:
        name, title, paper, source, version, seed, question, reading_guide: as the suite file has
            them.
        file, file_digest: where it was read, and the SHA-256 of its text.
        profile: the one resolved, of `profiles`.
        networks, victims: trials a cell: so many networks with so many images each.
        cells: what is attacked; none in a suite that only trains. defenses: their rows, in the
            order of the file.
        rules: what counts as a success.
        printed: by (data set, row): printed numbers of the rows that run as the paper has them.
        notes, gallery: for the report.
        priced: whether the suite says what its defenses cost. utility: the trainings that measure
            it, `utility_networks` of each.
        printed_utility: by (data set, row). printed_rounds: of older runs, see `PrintedUtility`.
        limits: of time.
        provenance: who set which parameter; it explains the plan and decides nothing.
        asked: the arguments that made the plan.
    """

    name: str
    title: str
    paper: str
    source: str
    version: int
    seed: int
    file: str
    file_digest: str
    profile: str
    profiles: tuple[str, ...]
    networks: int
    victims: int
    cells: tuple[Cell, ...]
    defenses: tuple[DefenseRow, ...]
    rules: tuple[Rule, ...]
    printed: Mapping[tuple[str, str], Printed]
    notes: tuple[SuiteNote, ...]
    gallery: GalleryRule
    priced: bool
    utility: tuple[UtilityCell, ...]
    utility_networks: int
    printed_utility: Mapping[tuple[str, str], PrintedUtility]
    printed_rounds: int = 0
    question: str = ""
    reading_guide: str = ""
    limits: Limits = Limits()
    provenance: tuple[Provenance, ...] = ()
    asked: Mapping[str, Any]


# ---------------------------------------------------------------------------- as JSON


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """A plan as plain values that `json.dumps` takes; `plan_from_json` reads it back."""
    values = dataclasses.asdict(plan)
    for name in ("printed", "printed_utility"):  # JSON has no pairs as keys
        values[name] = list(values[name].values())
    return values


def plan_from_json(value: Any, where: str = "plan") -> Plan:
    """The plan that `plan_to_json` wrote, equal to it; `where` is named in errors.

    Raises:
        LeakbenchError: a value that is missing, unknown, or of another kind.
    """
    if not isinstance(value, Mapping):
        raise LeakbenchError(f"{where}: must be a table, got {value!r:.60}")
    printed = from_json(tuple[Printed, ...], value.get("printed", []), f"{where}, key printed")
    accuracies = from_json(
        tuple[PrintedUtility, ...],
        value.get("printed_utility", []),
        f"{where}, key printed_utility",
    )
    plan: Plan = from_json(Plan, {**value, "printed": {}, "printed_utility": {}}, where)
    return dataclasses.replace(
        plan,
        printed={(each.dataset, each.row): each for each in printed},
        printed_utility={(each.dataset, each.row): each for each in accuracies},
    )


def canonical(value: Any) -> str:
    """JSON text that is equal for equal values: sorted keys, no spaces, no nan."""
    return _CANONICAL.encode(value)


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)
"""`json.dumps` would make one a call."""
