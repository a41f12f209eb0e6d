"""Every field of a record, said once; records are read against it.

A record is one line of `records.jsonl`, a table of JSON. What is None was not measured: the trial
came to nothing, or the number is not finite.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from leakbench.spec import JUDGED, Status

SCHEMA: Literal[3] = 3
"""Of a record. Before 2 it did not say who judged it; before 3 it had no checksum."""

MOST_COUNT = 2**53
Count = Annotated[int, Field(ge=0, le=MOST_COUNT)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class ArraysPlace(_Table):
    """Where a trial's images are: the file below `reconstructions/`, and the row in its arrays.

    digest: of the file's bytes, see `array_files.digest_of`; "" in records before schema 3.
    """

    file: str
    row: Count
    digest: str = ""


class HostFields(_Table):
    """What another machine, or another order of work, would fill otherwise.

    manifest: of the run that wrote the record, "" before there was one. seconds: of its share of
    the chunk; chunk: trials that were solved together. Of a training, wall time of a local step: of
    all clients of a round together (`seconds_per_iteration`), and one client's share of it
    (`seconds_per_client`).
    """

    manifest: str = ""
    seconds: float | None = None
    chunk: Count | None = None
    arrays: ArraysPlace | None = None
    seconds_per_iteration: float | None = None
    seconds_per_client: float | None = None


class TrialRecord(_Table):
    """A trial: one image, attacked and judged. Beside these fields it has one for each metric.

    What was attacked: `identity` is the resume key of its cell and network, `victim` the number of
    the candidate, `batch` that of the first image behind the same gradient, `source_index` its
    place in the data set. How it went: `status` and why (`reason`); how the attack `ended`; effort;
    the attacker's loss of what he returned, of his start, and of the truth; who is to `blame` where
    the image was not recovered; the true label, his guess, and the share of the batch's labels that
    he found; the attacked network's `accuracy`.

    Of an attack that is made of others: whose answer it is (`member`), and of each of its `members`
    the loss by which they were compared, his evaluations, and the metrics of his answer.

    How it is judged: by which `judge`; metrics that were not measured, and why (`unmeasured`);
    mean squared errors of what needs no gradient (`baselines`); steps and evaluations when an
    iterate first met each rule; `flags` for a reader to heed.

    Of an attack that says how sure it is of each input: its `confidence`, from 0 to 1.

    What the leak held, where the suite asks for it: see `information.Bound`.

    Each field is right or wrong by itself, which `record_columns` rests on. It must know every
    field of which only some words are right.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, float | None]

    schema_version: Annotated[Literal[3], Field(alias="schema")]
    identity: str
    dataset: str
    row: str
    attack: str
    knowledge: str
    network: Count
    victim: Count
    batch: Count
    source_index: Count
    status: Status
    reason: str
    ended: str
    steps: Count | None
    evaluations: Count | None
    loss: float | None
    loss_start: float | None
    loss_true: float | None
    blame: str
    label: Count
    label_guess: Count | None
    labels_found: float | None
    accuracy: float | None
    member: str = ""
    members: dict[str, dict[str, float | None]] = {}
    confidence: float | None = None
    judge: str
    unmeasured: dict[str, str]
    baselines: dict[str, float | None]
    first_step: dict[str, Count | None]
    first_evaluations: dict[str, Count | None]
    flags: list[str]
    bound_unbiased: float | None = None
    bound_attainable: float | None = None
    jacobian_rank: float | None = None
    jacobian_condition: float | None = None
    host: HostFields = HostFields()


class RoundTable(_Table):
    """What one round of a training looked like; see `training_log.RoundLog`."""

    round: Count
    loss: float | None
    norms: Annotated[list[float | None], Field(min_length=5, max_length=5)]
    update_raw: float | None
    update_released: float | None
    update_distance: float | None
    clip: float | None = None
    noise_multiplier: float | None = None
    sensitivity: float | None = None


Tried = Annotated[list[float], Field(min_length=3, max_length=3)]


class EventTable(_Table):
    """Releases that are alike; see `privacy.events.PrivacyEvent`."""

    noise_multiplier: Annotated[float, Field(ge=0)]
    sensitivity: Annotated[float, Field(ge=0)]
    sampling_rate: Annotated[float, Field(ge=0, le=1)] = 1.0
    sampling: Literal["poisson", "fixed_size", "none"] = "poisson"
    steps: Count = 1


class PrivacyTable(_Table):
    """Epsilon of a training, see `privacy.account.Result`, and the releases it was computed from.

    sampling: how examples or clients were drawn. flags: where the training is not what accountants
    like to assume.
    """

    accountant: str = ""
    preset: str = ""
    observer: str = ""
    relation: Literal["add_remove", "replace_one"] = "add_remove"
    level: str = ""
    observations: Count | None = None
    epsilon: Annotated[float, Field(ge=0)] | None = None
    delta: Annotated[float, Field(gt=0, lt=1)] | None = None
    reason: str = ""
    assumptions: list[str] = []
    sampling: str = ""
    flags: list[str] = []
    events: list[EventTable] = []

    @model_validator(mode="after")
    def _epsilon_of_something(self) -> PrivacyTable:
        missing = {"relation", "level", "delta", "events"} - self.model_fields_set
        if self.epsilon is not None and missing:
            raise ValueError(f"an epsilon without {', '.join(sorted(missing))}")
        return self


class TrainingRecord(_Table):
    """A training with a defense: one network.

    data: "full" or "sample"; examples: that were trained on. rounds: that were run; `stopped` says
    what ended them before the planned ones. iterations: local steps of all rounds. curve: (rounds
    done, accuracy on the test part). privacy: epsilon for who holds the final model and what it
    rests on; see `privacy.account.Result`. learning_rate: the one reported; sweep: all that were
    tried, with the accuracies on held-out training examples and on the test part. log: of rounds
    all over the training.
    """

    schema_version: Annotated[Literal[3], Field(alias="schema")]
    kind: Literal["utility"]
    identity: str
    dataset: str
    row: str
    network: Count
    victim: Count
    status: Status
    reason: str
    data: str | None
    examples: Count | None
    rounds: Count | None
    iterations: Count | None
    accuracy: float | None
    curve: list[Annotated[list[float], Field(min_length=2, max_length=2)]]
    privacy: PrivacyTable | None
    learning_rate: float | None = None
    sweep: list[Tried] = []
    stopped: Literal["", "accuracy", "epsilon"] = ""
    log: list[RoundTable] = []
    host: HostFields = HostFields()

    @model_validator(mode="after")
    def _result_of_a_training(self) -> TrainingRecord:
        if self.status in JUDGED and None in (self.data, self.rounds, self.accuracy):
            raise ValueError(f"status {self.status} without data, rounds or accuracy")
        return self


METRICS = ("mse_raw", "mse_clamped", "ssim", "psnr", "rank")
"""That every trial has a field for, whichever leakbench judged it."""


def wrong(record: Mapping[str, Any]) -> str:
    """What is wrong with a record of this schema, in words for a sentence; "" if nothing is."""
    kind = TrainingRecord if record.get("kind") == "utility" else TrialRecord
    try:
        kind.model_validate(record)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        text = first["msg"][0].lower() + first["msg"][1:]
        return f"field '{place}': {text}"
    if kind is TrialRecord:
        for name in METRICS:
            if name not in record:
                return f"field '{name}': field required"
    return ""


def upgraded(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record of this schema or one before, with what it lacks."""
    found = {**record, "schema": SCHEMA}
    if record["schema"] == 1 and record.get("kind") != "utility":
        found |= {"judge": "", "blame": "", "unmeasured": {}}
    return found
