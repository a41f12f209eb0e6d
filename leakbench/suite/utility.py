"""The trainings of [utility]: each variant with all its tables, its own or those it stands on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from leakbench.suite.tables import (
    ModelTable,
    Suite,
    TrainingTable,
    UtilityTable,
    UtilityVariantTable,
)

HELD_OUT = 0.1
"""Share of the training examples that a sweep holds out where the suite does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingVariant:
    """A variant of [utility], or [utility] itself as the only one.

    Attributes:
        id, label: "" in a suite without variants.
        datasets, defenses: to train; of the latter None is all.
        model, place: the network's table, and its key in the file.
        learning_rates, held_out: the sweep, see `spec.UtilityCell`.
        stop_accuracy, stop_epsilon: by data set, "*" for others; a data set without has no stop.
    """

    id: str
    label: str
    datasets: Sequence[str]
    defenses: Sequence[str] | None
    model: ModelTable
    place: str
    training: TrainingTable
    learning_rates: Sequence[float]
    held_out: float
    stop_accuracy: Mapping[str, float]
    stop_epsilon: Mapping[str, float]

    def trains(self, defense: str) -> bool:
        """Whether it is for the row of this id."""
        return self.defenses is None or defense in self.defenses


def variants_of(suite: Suite) -> list[TrainingVariant]:
    """All trainings of a suite that was checked; none without [utility]."""
    if suite.utility is None:
        return []
    tables = suite.utility.variants or [UtilityVariantTable.model_construct(id="", label="")]
    return [_complete(suite, suite.utility, table) for table in tables]


def training_of(suite: Suite, table: UtilityVariantTable) -> TrainingTable:
    """The training of a variant: its keys laid over that of [utility].

    Raises:
        pydantic.ValidationError: a key or a value that [training] does not have.
    """
    base = (suite.utility.training if suite.utility else None) or suite.training
    return TrainingTable.model_validate(base.model_dump(exclude_unset=True) | table.training)


def _complete(suite: Suite, base: UtilityTable, table: UtilityVariantTable) -> TrainingVariant:
    place = "model"
    if table.model or base.model:
        place = f"utility.variants.{table.id}.model" if table.model else "utility.model"
    datasets = table.datasets or base.datasets or suite.datasets
    rates = base.learning_rates if table.learning_rates is None else table.learning_rates
    stops = [
        getattr(base, name) if getattr(table, name) is None else getattr(table, name)
        for name in ("stop_accuracy", "stop_epsilon")
    ]
    return TrainingVariant(
        id=table.id,
        label=table.label,
        datasets=[name for name in suite.datasets if name in datasets],
        defenses=table.defenses or base.defenses,
        model=table.model or base.model or suite.model,
        place=place,
        training=training_of(suite, table),
        learning_rates=rates or (),
        held_out=table.held_out or base.held_out or HELD_OUT,
        stop_accuracy=stops[0] or {},
        stop_epsilon=stops[1] or {},
    )
