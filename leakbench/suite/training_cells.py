"""The trainings of a suite -> utility cells, and the printed numbers beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from leakbench.errors import LeakbenchError
from leakbench.spec import PrintedUtility, UtilityCell, canonical
from leakbench.suite.rows import Request, Row, check_training, model_of, sources_of
from leakbench.suite.tables import Suite, TrainingTable, of_data_set
from leakbench.suite.utility import TrainingVariant, variants_of


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chosen:
    """A variant as the profile trains it."""

    variant: TrainingVariant
    datasets: Sequence[str]
    training: TrainingTable
    learning_rates: Sequence[float]


def utility_cells(asked: Request, rows: Sequence[Row]) -> tuple[UtilityCell, ...]:
    """The trainings of a profile, one for each of its data sets, variants and defenses.

    Raises:
        LeakbenchError: a network that does not take the data, a schedule that cannot be.
    """
    cells = [
        cell
        for chosen in _chosen(asked)
        for cell in _cells_of(
            asked, chosen, [row for row in rows if _trains(asked.suite, chosen, row)]
        )
    ]
    # A data set at a time, as everywhere; the order is otherwise that of the file.
    return tuple(sorted(cells, key=lambda cell: asked.suite.datasets.index(cell.dataset)))


def _chosen(asked: Request) -> list[_Chosen]:
    """Variants with what the profile sets; those it leaves out, or with no data set left, apart."""
    profile = asked.chosen.utility
    if not profile.networks:
        return []
    found = []
    for variant in variants_of(asked.suite):
        training, rates = variant.training, variant.learning_rates
        if profile.iterations is not None:
            training = training.model_copy(update={"iterations": profile.iterations})
        if profile.learning_rates is not None:
            rates = profile.learning_rates
        datasets = [
            name
            for name in variant.datasets
            if all(
                some is None or name in some for some in (asked.chosen.datasets, profile.datasets)
            )
        ]
        if datasets and (profile.variants is None or variant.id in profile.variants):
            _check_rounds(asked, datasets)
            found.append(
                _Chosen(variant=variant, datasets=datasets, training=training, learning_rates=rates)
            )
    return found


def _check_rounds(asked: Request, datasets: Sequence[str]) -> None:
    """Rounds that the profile sets must be there for every data set."""
    rounds = asked.chosen.utility.iterations
    for name in datasets:
        if rounds is not None and of_data_set(rounds, name) is None:
            place = f"profiles.{asked.profile}.utility.iterations"
            raise LeakbenchError(f"{asked.file}, key {place}: no entry for '{name}'")


def _trains(suite: Suite, chosen: _Chosen, row: Row) -> bool:
    """Whether a variant is for a row; one in place of the suite's rows is in every variant."""
    return chosen.variant.trains(row.id) or row.id not in {table.id for table in suite.defenses}


def _cells_of(asked: Request, chosen: _Chosen, rows: Sequence[Row]) -> list[UtilityCell]:
    suite, table = asked.suite, asked.suite.utility
    assert table is not None
    variant, training = chosen.variant, chosen.training
    where = f"{asked.file}, utility" + (f" variant '{variant.id}'" if variant.id else "")
    check_training(where, training, chosen.datasets)
    sources = sources_of(suite, chosen.datasets)
    parameters = model_of(asked, where, variant.place, variant.model, sources).values
    pretraining = variant.model.pretraining
    cells = []
    for dataset in chosen.datasets:
        rounds = training.of("iterations", dataset)
        points = {round(rounds * i / table.evaluations) for i in range(table.evaluations)}
        printed = _printed_points(suite, dataset, variant.id)
        cells += [
            UtilityCell(
                dataset=dataset,
                own=suite.own_data(dataset),
                model=variant.model.name,
                model_parameters=parameters,
                weights=variant.model.weights,
                pretraining=pretraining.model_dump() if pretraining else None,
                schedule=training.schedule(dataset),
                evaluate_at=tuple(
                    sorted({*points, rounds, *_below(rounds, printed.get(row.id, ()))})
                ),
                delta=table.delta,
                variant=variant.id,
                defense_id=row.id,
                label=f"{variant.label}, {row.table.label}" if variant.id else row.table.label,
                defense=row.table.name,
                defense_parameters=row.parameters.values,
                learning_rates=tuple(chosen.learning_rates),
                held_out=variant.held_out,
                stop_accuracy=of_data_set(variant.stop_accuracy, dataset),
                stop_epsilon=of_data_set(variant.stop_epsilon, dataset),
                seed=suite.seed,
                dtype=suite.dtype,
            )
            for row in rows
            if row.has(dataset)
        ]
    return cells


def _printed_points(suite: Suite, dataset: str, variant: str) -> dict[str, list[int]]:
    """Row -> rounds before the end after which a number is printed of it."""
    found: dict[str, list[int]] = {}
    for table in suite.printed_utility:
        if table.after and (table.dataset, table.variant) == (dataset, variant):
            found.setdefault(table.defense, []).append(int(table.after))
    return found


def _below(rounds: int, points: Sequence[int]) -> list[int]:
    return [point for point in points if point < rounds]


# ------------------------------------------------------------------------------ beside print


def printed_numbers(
    published: Request | None, rows: Sequence[Row], cells: Sequence[UtilityCell]
) -> dict[tuple[str, str], PrintedUtility]:
    """Printed numbers of the trainings that run as the suite file has them, rounds apart.

    published: the suite as its file has it; None where that has no such profile. rows: of it.
    """
    if published is None:
        return {}
    known = {(c.dataset, c.row): _compared(c) for c in utility_cells(published, rows)}
    running = {(c.dataset, c.row): _compared(c) for c in cells}
    trainings = {variant.id: variant.training for variant in variants_of(published.suite)}
    numbers: dict[tuple[str, str], dict[str, str]] = {}
    points: dict[tuple[str, str], dict[str, str]] = {}
    found: dict[tuple[str, str], PrintedUtility] = {}
    for table in published.suite.printed_utility:
        place = (table.dataset, table.row)
        if place not in running or running[place] != known.get(place):
            continue
        printed = numbers.setdefault(place, {})
        if table.after:
            assert table.accuracy is not None
            points.setdefault(place, {})[table.after] = table.accuracy
        else:
            printed |= table.numbers()
        found[place] = PrintedUtility(
            dataset=table.dataset,
            defense=table.defense,
            variant=table.variant,
            accuracy=printed.get("accuracy"),
            seconds_per_iteration=printed.get("seconds_per_iteration"),
            rounds=printed.get("rounds"),
            points=dict(sorted(points.get(place, {}).items(), key=lambda item: int(item[0]))),
            of_rounds=trainings[table.variant].of("iterations", table.dataset),
        )
    return found


def _compared(cell: UtilityCell) -> str:
    """All of a cell that a printed number is about."""
    spec = cell.spec()
    del spec["seed"], spec["dtype"], spec["evaluate_at"], spec["delta"]
    spec["schedule"] = {k: v for k, v in cell.schedule.items() if k != "rounds"}
    return canonical(spec)
