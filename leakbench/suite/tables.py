"""The tables of a suite file and the values that each key may have.

Names that refer to each other are checked in `checks`, what a table means in `resolving`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PrivateAttr,
    Tag,
    field_validator,
)

from leakbench.data.entries import OwnData, Source
from leakbench.metrics.rules import kinds
from leakbench.spec import (
    GalleryRule,
    Grant,
    Knowledge,
    Limits,
    Printed,
    Rule,
    Scalar,
    SuiteNote,
    row_name,
)

MOST = 10**6
"""Of what a suite counts: a loop over more would not end."""

MOST_NETWORKS = 1000
"""Each is made, and its examples are shared out, when a run is planned."""

Positive = Annotated[int, Field(gt=0, le=MOST)]
Identifier = Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]
Fraction = Annotated[float, Field(ge=0, le=1)]

PositiveNumber = Annotated[float, Field(gt=0)]
Value = TypeVar("Value")

ANY_DATA_SET = "*"
"""Key of a table by data set for those that it does not name."""

_OrTable = BeforeValidator(
    lambda value: value if value is None or isinstance(value, dict) else {ANY_DATA_SET: value}
)
Whole = Annotated[dict[str, Positive], _OrTable]
"""A whole number for all data sets, or a table by data set."""
Real = Annotated[dict[str, PositiveNumber], _OrTable]
Partitions = Annotated[dict[str, Literal["iid", "shards", "dirichlet"]], _OrTable]
Share = Annotated[dict[str, Annotated[float, Field(gt=0, lt=1)]], _OrTable]


def _is_sweep(rates: list[float]) -> list[float]:
    if len(rates) == 1 or len(set(rates)) < len(rates):
        raise ValueError("a sweep needs two or more different rates; [] is none")
    return rates


def of_data_set(table: Mapping[str, Value], dataset: str) -> Value | None:
    """The value of a table by data set; None where it has none."""
    return table.get(dataset, table.get(ANY_DATA_SET))


class TomlTable(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class PretrainingTable(TomlTable):
    """[model.pretraining] Adam on the training images before the attack, without any defense."""

    epochs: Positive
    batch_size: Positive = 50
    learning_rate: Annotated[float, Field(gt=0)] = 0.001


class ModelTable(TomlTable):
    """[model] network, how its weights are drawn, and whether it is trained before the attack.

    parameters: of the plugin, e.g. { widths = [64, 32] }; those not named keep its defaults.
    """

    name: str
    parameters: dict[str, Scalar | list[Scalar]] = {}
    weights: Literal["uniform", "default"] = "uniform"
    pretraining: PretrainingTable | None = None


class TrainingTable(TomlTable):
    """[training] who trains on what, and how long; `batch_size` by data set, "*" for others.

    central: one client, one local step. federated: a client takes `local_steps` steps, each on
    `batch_size` examples of its own. `iterations` are rounds. These two, `learning_rate`,
    `partition` and `classes_a_client` are a value, or a table by data set. The other keys are those
    of `training_schedule.Schedule`; they count where the network is trained: in [utility], and
    before a leak later than the first.
    """

    mode: Literal["central", "federated"] = "central"
    batch_size: dict[str, Positive]
    iterations: Whole = {ANY_DATA_SET: 1}
    local_steps: Whole = {ANY_DATA_SET: 1}
    learning_rate: Real = {ANY_DATA_SET: 0.1}
    learning_rate_policy: Literal["constant", "step", "linear", "cosine"] = "constant"
    learning_rate_end: Annotated[float, Field(ge=0)] = 0.0
    learning_rate_factor: PositiveNumber = 1.0
    learning_rate_every: Positive = 1
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    normalise: bool = False
    augment: list[Literal["flip", "crop"]] = []
    clients: Positive = 1
    clients_a_round: Positive = 1
    examples_a_client: dict[str, Positive] = {}
    overlap: bool = False
    sampling: Literal["fixed_size", "poisson"] = "fixed_size"
    aggregation: Literal["fed_sgd", "fed_averaging"] = "fed_sgd"
    divisor: Literal["clients", "clients_minus_one"] = "clients"
    partition: Partitions = {ANY_DATA_SET: "iid"}
    classes_a_client: Whole = {ANY_DATA_SET: 2}
    concentration: PositiveNumber = 0.5

    def of(self, key: Literal["batch_size", "iterations", "local_steps"], dataset: str) -> int:
        """A number for a data set, for which there must be one (see `rows.check_training`)."""
        table: dict[str, int] = getattr(self, key)
        return table[dataset if dataset in table else ANY_DATA_SET]

    def schedule(self, dataset: str) -> dict[str, Any]:
        """Arguments of `Schedule` for a data set, for which there must be all numbers."""
        found = {
            key: of_data_set(value, dataset) if key in BY_DATA_SET else value
            for key, value in self.model_dump(exclude={"mode"}).items()
        }
        found["rounds"] = found.pop("iterations")
        return found | {"augment": tuple(self.augment)}


BY_DATA_SET = (
    "batch_size", "iterations", "local_steps", "learning_rate", "examples_a_client", "partition",
    "classes_a_client",
)  # fmt: skip
"""Keys of a training that are tables by data set."""


class LeakTable(TomlTable):
    """[leak] where and when the gradient is read.

    type, view: see `contracts.LeakPoint`. at: the round (in central training: iteration) of the
    first look; later than the first, the network is trained with the defense until then.
    observations: looks at the same victims; over "noise": in the same round, the noise drawn anew
    each time; over "rounds": one in each of so many rounds, in which training goes on.
    """

    type: Literal[0, 1, 2] = 2
    view: Literal["example", "batch", "raw"] | None = None
    at: Literal["first", "middle", "last"] | Annotated[int, Field(ge=0, lt=MOST)] = "first"
    observations: Annotated[int, Field(gt=0, le=1000)] = 1
    over: Literal["noise", "rounds"] = "noise"

    def rounds(self, iterations: int) -> list[int]:
        """Rounds of the looks, 0-based, in a training of so many."""
        named = {"first": 0, "middle": iterations // 2, "last": iterations - 1}
        first = named[self.at] if isinstance(self.at, str) else self.at
        step = 1 if self.over == "rounds" else 0
        return [first + step * look for look in range(self.observations)]


class AttackTable(TomlTable):
    """[attack] hyper-parameters (those not named keep the plugin's defaults) and threat model.

    grants: what the attacker is handed beside model, weights and gradients. knowledge: which of
    the suite's attackers run it; all by default.
    """

    name: str
    parameters: dict[str, Scalar] = {}
    grants: list[Grant] = []
    knowledge: Annotated[list[Knowledge], Field(min_length=1)] | None = None


class VariantTable(TomlTable):
    """[[variants]] a row for every defense, with tables of its own instead of the suite's."""

    id: Identifier
    label: str
    datasets: Annotated[list[str], Field(min_length=1)] | None = None
    model: ModelTable | None = None
    training: TrainingTable | None = None
    leak: LeakTable | None = None
    attack: AttackTable | None = None


class KnowledgeTable(TomlTable):
    """[knowledge.naive], [knowledge.adaptive]: what this attacker sets differently."""

    parameters: dict[str, Scalar] = {}


class DefenseKeys(TomlTable):
    """Keys of [[defenses]], one row of the table; `datasets` restricts an extra row to some."""

    name: str
    label: str
    datasets: Annotated[list[str], Field(min_length=1)] | None = None


class DefenseTable(DefenseKeys):
    """[[defenses]] one row."""

    id: Identifier
    parameters: dict[str, Scalar] = {}


class DefenseGridTable(DefenseKeys):
    """[[defenses]] as they stand in a file: a row of every combination of parameters in lists.

    `{parameter}` in id and label is replaced by its value (see `expanding`).
    """

    id: Annotated[str, Field(pattern=r"^([a-z0-9_]|\{[A-Za-z0-9_]+\})+$")]
    parameters: dict[str, Scalar | Annotated[list[Scalar], Field(min_length=1)]] = {}


class RuleTable(TomlTable):
    """[[rules]] what counts as a success (see `metrics.rules`).

    parameters: fields of the kind that are no keys of their own here.
    """

    name: Identifier
    kind: str
    label: str
    threshold: Annotated[float, Field(gt=0)] | None = None
    clamp: bool = True
    top: Positive = 1
    fraction: Annotated[float, Field(gt=0, le=1)] = 0.25
    parameters: dict[str, Scalar] = {}
    paper: bool = False  # a reading of the paper's own rule: compared with its printed rate

    @field_validator("kind")
    @classmethod
    def _is_known(cls, kind: str) -> str:
        if kind not in kinds():
            allowed = ", ".join(f"'{name}'" for name in kinds())
            raise ValueError(f"unknown kind; allowed: {allowed}")
        return kind

    def plain(self) -> Rule:
        """As a plan holds it."""
        return Rule(**self.model_dump())


class RuleSetTable(TomlTable):
    """[[rules]] the rules of a named set in place of one; the other keys, of all of them."""

    set: str
    threshold: Annotated[float, Field(gt=0)] | None = None
    fraction: Annotated[float, Field(gt=0, le=1)] | None = None
    paper: bool | None = None


class PrintedTable(TomlTable):
    """[[printed]] one printed cell, strings as printed; its distance is an MSE or its root.

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

    def plain(self) -> Printed:
        """As a plan holds it."""
        return Printed(**self.model_dump())


Rates = Annotated[list[PositiveNumber], Field(max_length=100), AfterValidator(_is_sweep)]
"""Learning rates to train with, all different; none: the training's own."""


class UtilityKeys(TomlTable):
    """Keys that [utility] and its variants share; a variant's stand for the suite's.

    model, datasets, defenses: those of the suite where not given. The others are those of
    `spec.UtilityCell`; the stops are a number, or a table by data set.
    """

    model: ModelTable | None = None
    datasets: Annotated[list[str], Field(min_length=1)] | None = None
    defenses: Annotated[list[str], Field(min_length=1)] | None = None
    learning_rates: Rates | None = None
    held_out: Annotated[float, Field(gt=0, lt=1)] | None = None
    stop_accuracy: Share | None = None
    stop_epsilon: Real | None = None


class UtilityVariantTable(UtilityKeys):
    """[[utility.variants]] a training of every defense, set differently from [utility].

    training: keys laid over the training of [utility], one by one.
    """

    id: Identifier
    label: str
    training: dict[str, Any] = {}


class UtilityTable(UtilityKeys):
    """[utility] what training with each defense costs: accuracy, epsilon, time.

    training: of these trainings; that of the suite where not given. They use the whole data set
    where there is a data root, else the embedded sample. evaluations: points of the accuracy curve
    after the start. delta: at which epsilon is stated.
    """

    training: TrainingTable | None = None
    evaluations: Annotated[int, Field(gt=0, le=1000)] = 4
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    variants: list[UtilityVariantTable] = []


class PrintedUtilityTable(TomlTable):
    """[[printed_utility]] what a paper prints of a training, strings as printed.

    See `spec.PrintedUtility`; what is printed of one row may stand in several tables. after: a
    number of rounds, where the accuracy is not that of the end.
    """

    dataset: str
    defense: str
    variant: str = ""
    accuracy: str | None = None
    seconds_per_iteration: str | None = None
    rounds: str | None = None
    after: Annotated[str, Field(pattern=r"^[1-9][0-9]{0,17}$")] | None = None

    @property
    def row(self) -> str:
        """Row of the table of costs it stands in."""
        return row_name(self.variant, self.defense)

    def numbers(self) -> dict[str, str]:
        """What is printed, by the name of its key."""
        found = self.model_dump(include=set(PRINTED_OF_TRAININGS))
        return {name: text for name, text in found.items() if text is not None}


PRINTED_OF_TRAININGS = ("accuracy", "seconds_per_iteration", "rounds")
"""Numbers that a paper may print of a training."""


class RowsTable(TomlTable):
    """[[printed]] or [[printed_utility]] many at once: `rows` of strings under `columns`.

    The columns are keys of the table; those that are the same in all rows may stand beside them.
    """

    columns: Annotated[list[str], Field(min_length=1)]
    rows: list[list[str]]
    dataset: str | None = None
    defense: str | None = None
    variant: str | None = None


class NoteTable(TomlTable):
    """[[notes]] why a number cannot be reproduced, or what was chosen where the paper is silent."""

    text: str
    datasets: list[str] | None = None
    variants: list[str] | None = None
    defenses: list[str] | None = None

    def plain(self) -> SuiteNote:
        """As a plan holds it."""
        about = self.model_dump(exclude={"text"})
        return SuiteNote(
            text=self.text, **{k: None if v is None else tuple(v) for k, v in about.items()}
        )


class GalleryTable(TomlTable):
    """[gallery] victims are those at these MSE quantiles of a reference cell, best first."""

    quantiles: Annotated[list[Fraction], Field(min_length=1, max_length=100)] = [0.5]
    defense: str = "none"
    variant: str = ""
    knowledge: Knowledge = "naive"

    def plain(self) -> GalleryRule:
        """As a plan holds it."""
        return GalleryRule(**self.model_dump() | {"quantiles": tuple(self.quantiles)})


class UtilityProfileTable(TomlTable):
    """[profiles.*.utility] networks to train, 0 for none, and what else to cut down.

    variants, datasets: those of the suite's to train; all by default. iterations, learning_rates:
    in place of the suite's and of every variant's.
    """

    networks: Annotated[int, Field(ge=0, le=MOST_NETWORKS)] = 1
    variants: Annotated[list[str], Field(min_length=1)] | None = None
    datasets: Annotated[list[str], Field(min_length=1)] | None = None
    iterations: Whole | None = None
    learning_rates: Rates | None = None


class ProfileTable(TomlTable):
    """[profiles.*] how much to run; `variants` holds parameters of single variants' attacks.

    networks, victims: of every cell; images a network, cut down to whole batches where a victim is
    a batch. Only suites that attack nothing leave them out. datasets: those of the suite to run;
    all by default.
    """

    networks: Annotated[int, Field(gt=0, le=MOST_NETWORKS)] = 1
    victims: Positive = 1
    datasets: Annotated[list[str], Field(min_length=1)] | None = None
    parameters: dict[str, Scalar] = {}
    variants: dict[Identifier, dict[str, Scalar]] = {}
    snapshots: list[Positive] = []
    utility: UtilityProfileTable = UtilityProfileTable()


Seconds = Annotated[float, Field(gt=0, le=10**7, allow_inf_nan=False)]


class LimitsTable(TomlTable):
    """[limits] seconds that a trial, and a chunk of them or a training, may take."""

    trial: Seconds | None = None
    chunk: Seconds | None = None

    def plain(self) -> Limits:
        """As a plan holds them."""
        return Limits(**self.model_dump())


class SuiteKeys(TomlTable):
    """All of a suite file but the tables that have a short form.

    question, reading_guide: stand above the report's answer, in the suite's own words.
    A suite that attacks nothing has [utility] and none of `ATTACKED`. bound: whether to compute
    what each leak holds, whoever attacks it: seconds a victim.
    """

    schema_version: Annotated[Literal[1], Field(alias="schema")]
    name: Identifier
    title: str
    paper: str = ""
    source: str = ""
    question: str = ""
    reading_guide: str = ""
    version: Positive = 1
    seed: Annotated[int, Field(ge=0)] = 0
    datasets: Annotated[list[str], Field(min_length=1)]
    model: ModelTable
    training: TrainingTable
    leak: LeakTable = LeakTable()
    attack: AttackTable | None = None
    variants: list[VariantTable] = []
    knowledge: Annotated[dict[Knowledge, KnowledgeTable], Field(min_length=1)] = {}
    utility: UtilityTable | None = None
    notes: list[NoteTable] = []
    gallery: GalleryTable = GalleryTable()
    limits: LimitsTable = LimitsTable()
    profiles: Annotated[dict[Identifier, ProfileTable], Field(min_length=1)]
    dtype: Literal["float32", "float64"] = "float32"
    bound: bool = False


ATTACKED = ("knowledge", "rules", "attack", "variants", "leak", "printed", "gallery")
"""Tables of a suite that attacks; the first two it must have."""


def _form(short: str, key: str) -> Discriminator:
    """Tells the short form of a table, which has `key`, from the long one."""

    def tag(value: Any) -> str:
        return short if isinstance(value, dict) and key in value else "[one]"

    return Discriminator(tag)


RuleEntry = Annotated[
    Annotated[RuleTable, Tag("[one]")] | Annotated[RuleSetTable, Tag("[set]")],
    _form("[set]", "set"),
]
PrintedEntry = Annotated[
    Annotated[PrintedTable, Tag("[one]")] | Annotated[RowsTable, Tag("[rows]")],
    _form("[rows]", "rows"),
]
PrintedUtilityEntry = Annotated[
    Annotated[PrintedUtilityTable, Tag("[one]")] | Annotated[RowsTable, Tag("[rows]")],
    _form("[rows]", "rows"),
]


class SuiteFile(SuiteKeys):
    """A suite as its file has it."""

    defenses: Annotated[list[DefenseGridTable], Field(min_length=1)]
    rules: Annotated[list[RuleEntry], Field(min_length=1)] = []
    printed: list[PrintedEntry] = []
    printed_utility: list[PrintedUtilityEntry] = []


class Suite(SuiteKeys):
    """A whole suite, every row, rule and printed number by itself.

    Data sets given by path have their short names in it.
    """

    defenses: Annotated[list[DefenseTable], Field(min_length=1)]
    rules: Annotated[list[RuleTable], Field(min_length=1)] = []
    printed: list[PrintedTable] = []
    printed_utility: list[PrintedUtilityTable] = []

    _own: dict[str, OwnData] = PrivateAttr(default_factory=dict)

    @classmethod
    def of(cls, document: dict[str, Any], own: dict[str, OwnData]) -> Suite:
        """The suite in a document; own: the data sets given by path, by the names it uses."""
        suite = cls.model_validate(document)
        suite._own = own
        return suite

    def data(self, name: str) -> Source:
        """What to load a data set of the suite from."""
        return self._own.get(name, name)

    def own_data(self, name: str) -> OwnData | None:
        """Where a data set given by path is; None for one of leakbench's."""
        return self._own.get(name)
