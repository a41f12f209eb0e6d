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
from typing import Any, Literal, get_args

from leakbench.data.entries import OwnData, Source
from leakbench.errors import LeakbenchError, require_at_least, unknown_name
from leakbench.parameters import require_in
from leakbench.plain import from_json
from leakbench.privacy.events import Sampling
from leakbench.schedules import Decay, decayed

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

Aggregation = Literal["fed_sgd", "fed_averaging"]
Partition = Literal["iid", "shards", "dirichlet"]
Divisor = Literal["clients", "clients_minus_one"]
LearningRatePolicy = Literal["constant", "step", "linear", "cosine"]
Augmentation = Literal["flip", "crop"]

Scalar = bool | int | float | str
"""What a suite file may give a hyper-parameter."""

Parameters = Mapping[str, Any]
"""Hyper-parameters of a plugin after its defaults: plain values that JSON can hold."""


# ---------------------------------------------------------------------------- training and leak


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How long and on whose data a network is trained.

    Attributes:
        rounds: T. learning_rate: of the local SGD steps.
        batch_size: B examples a local step; their expected number under Poisson sampling.
        clients: N, 1 for central training. clients_a_round: Kt. local_steps: L.
        examples_a_client: of each client, the first so many of his share; None: all.
        sampling: of the clients, or of the examples of a single one. "fixed_size": Kt clients (B
            examples) without replacement; "poisson": each by an own coin, Kt (B) of them
            expected, and sums are divided by that. Otherwise a client goes through his examples in
            a random order of his own, anew in every round, and again when they are used up; no
            batch has an example twice.
        aggregation: "fed_sgd" averages the updates dW of a round with equal weights,
            "fed_averaging" the clients' weights by their numbers of examples (McMahan et al.
            2017); with equal numbers they are the same. Poisson sampling needs "fed_sgd".
        partition: "iid", "shards" (`classes_a_client` classes each) or "dirichlet"
            (`concentration`; drawn again until every client has a batch); see `data.partitions`.
        overlap: every client draws `examples_a_client` examples from all there are, by a stream of
            his own ("shards": from `classes_a_client` classes drawn at random), so that clients
            share examples and any number of them exists, as in the papers (N = 10,000 clients of
            500 out of 60,000 examples). Not with "dirichlet".
        divisor: of the sum of the updates: Kt, or Kt - 1 as in the released code of Fed-CDP and
            Fed-alphaCDP.
        momentum: of the local SGD steps, torch's definition; every client starts a round at rest,
            central training keeps its velocity.
        learning_rate_policy: over the rounds, from `learning_rate` on: "constant"; "step", times
            `learning_rate_factor` after every `learning_rate_every` rounds; "linear" and "cosine"
            to `learning_rate_end` at the end of the planned rounds.
        normalise: inputs minus mean, over standard deviation, of the public examples: of each
            channel of images, of each column of a table.
        augment: of images, "flip": left to right with probability 1/2; "crop": a random window of
            the image with 4 zeros around it.

    Raises:
        LeakbenchError: a number or a name that is not allowed, or two that exclude each other.
    """

    rounds: int
    batch_size: int
    learning_rate: float
    clients: int = 1
    clients_a_round: int = 1
    local_steps: int = 1
    examples_a_client: int | None = None
    sampling: Sampling = "fixed_size"
    aggregation: Aggregation = "fed_sgd"
    partition: Partition = "iid"
    classes_a_client: int = 2
    concentration: float = 0.5
    overlap: bool = False
    divisor: Divisor = "clients"
    momentum: float = 0.0
    learning_rate_policy: LearningRatePolicy = "constant"
    learning_rate_end: float = 0.0
    learning_rate_factor: float = 1.0
    learning_rate_every: int = 1
    normalise: bool = False
    augment: tuple[Augmentation, ...] = ()

    def __post_init__(self) -> None:
        for name in (
            "rounds", "batch_size", "clients", "clients_a_round", "local_steps",
            "examples_a_client", "learning_rate_every",
        ):  # fmt: skip
            if (value := getattr(self, name)) is not None:
                require_at_least("training", 1, **{name: value})
        require_in("training", "(0, inf)", learning_rate=self.learning_rate)
        require_in("training", "(0, inf)", learning_rate_factor=self.learning_rate_factor)
        require_in("training", "[0, inf)", learning_rate_end=self.learning_rate_end)
        require_in("training", "[0, 1)", momentum=self.momentum)
        # As JSON has it: a plan that is read again must be the plan that was written.
        object.__setattr__(self, "augment", tuple(self.augment))
        for name, allowed in (
            ("sampling", ("poisson", "fixed_size")),
            ("aggregation", get_args(Aggregation)),
            ("partition", get_args(Partition)),
            ("divisor", get_args(Divisor)),
            ("learning_rate_policy", get_args(LearningRatePolicy)),
        ):
            if (value := getattr(self, name)) not in allowed:
                raise unknown_name(name, value, allowed, "training")
        for value in self.augment:
            if value not in get_args(Augmentation):
                raise unknown_name("augment", value, get_args(Augmentation), "training")
        if self.clients_a_round > self.clients:
            raise LeakbenchError(
                f"training: {self.clients_a_round} clients a round of {self.clients}; allowed: "
                f"1 to {self.clients}"
            )
        if self.sampling == "poisson" and self.aggregation == "fed_averaging":
            text = "poisson sampling divides by the expected number of clients, which is 'fed_sgd'"
            raise LeakbenchError(f"training: {text}; aggregation must not be 'fed_averaging'")
        if self.overlap:
            self._check_overlap()
        if self.divisor == "clients_minus_one":
            if self.clients_a_round < 2:
                text = "'clients_minus_one' needs two clients a round or more"
                raise LeakbenchError(f"training: divisor {text}; allowed: 'clients'")
            if self.aggregation == "fed_averaging":
                text = "'clients_minus_one' is for equal weights"
                raise LeakbenchError(f"training: divisor {text}; allowed aggregation: 'fed_sgd'")

    def _check_overlap(self) -> None:
        if self.clients < 2 or self.examples_a_client is None:
            text = "needs several clients and examples_a_client, the number that each draws"
            raise LeakbenchError(f"training: overlap {text}")
        if self.partition == "dirichlet":
            text = "partition 'dirichlet' gives every example to one client"
            raise LeakbenchError(f"training: {text}; allowed with overlap: 'iid', 'shards'")

    def learning_rate_at(self, round: int, total: int) -> float:
        """Of the local steps of 0-based round `round` of `total` planned ones."""
        if self.learning_rate_policy == "step":
            return self.learning_rate * self.learning_rate_factor ** (
                round // self.learning_rate_every
            )
        kind: Decay = self.learning_rate_policy
        return decayed(
            kind, self.learning_rate, self.learning_rate_end, round=round, total=total, cycles=1
        )


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
        """JSON-able description of what is attacked: names of rows and paths change nothing."""
        spec = dataclasses.asdict(self)
        for name in ("variant", "defense_id", "label", "own"):
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
        stop_accuracy: training ends after the round that reaches this accuracy on the test part.
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
        """JSON-able description for identity; neither names of rows nor paths change a result."""
        spec = dataclasses.asdict(self)
        for name in ("variant", "defense_id", "label", "own"):
            del spec[name]
        return {"kind": "utility", **spec}

    def __str__(self) -> str:
        return f"{self.dataset}/{self.row}/utility"


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
    """What a paper prints of a training, strings as printed; at least one of the three numbers.

    accuracy: on test data, 0 to 1. seconds_per_iteration: of a local step; on another machine, so
    that only its ratio to the undefended row's can be compared. rounds: to the `stop_accuracy`.
    of_rounds: rounds of the training that the file speaks of, whatever is set otherwise; 0 in runs
    made before they were kept, where `Plan.printed_rounds` has them.
    """

    dataset: str
    defense: str
    variant: str = ""
    accuracy: str | None = None
    seconds_per_iteration: str | None = None
    rounds: str | None = None
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
class Plan:
    """A suite resolved for one profile.

    Attributes:
        name, title, paper, source, version, seed: as the suite file has them.
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
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
