"""The tables of a suite -> a plan: all cells with all parameters spelled out and checked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from leakbench.errors import LeakbenchError, unknown_name
from leakbench.metrics.rules import make_rule
from leakbench.spec import (
    Cell,
    DefenseRow,
    Plan,
    Printed,
    PrintedUtility,
    Provenance,
    UtilityCell,
    canonical,
)
from leakbench.suite import own_data
from leakbench.suite.files import names
from leakbench.suite.reading import open_file, parse
from leakbench.suite.rows import (
    Request,
    Row,
    Variant,
    attack_name,
    check_training,
    model_of,
    rows_of,
    sources_of,
    variants_of,
)
from leakbench.suite.settings import override, path_of
from leakbench.suite.tables import RuleTable, Suite, TrainingTable


def resolve(
    suite: str,
    profile: str = "quick",
    *,
    attack: str | None = None,
    defense: str | None = None,
    settings: Sequence[str] = (),
) -> Plan:
    """Suite by name or path -> all its cells, everything checked.

    attack: of a suite with variants only those with this id or attack; else run this plugin
    instead, without those of the suite's parameters that it does not have.
    defense: run only this row, or this plugin with its defaults. settings: `key.path=value`
    overrides of the file, values in TOML.

    Raises:
        LeakbenchError: anything wrong, in one sentence naming file, key and allowed values.
    """
    opened = open_file(suite)
    published, document = parse(opened.document, opened, opened.own)
    _check_settings(published, attack, settings)
    parsed, given = published, []
    if settings:
        for_attack = any(path_of(setting).startswith("attack.") for setting in settings)
        if for_attack and attack is not None and published.variants and published.attack is None:
            document["attack"] = {"name": attack}
        given = [override(document, setting, opened.file) for setting in settings]
        # The file may speak of data sets that this run leaves out.
        own = own_data.take(document, opened.file, Path(), opened.own)
        parsed, _ = parse(document, opened, own, published.datasets)
    if profile not in parsed.profiles:
        raise unknown_name("profile", profile, parsed.profiles, f"{opened.file}, key profiles")
    asked = Request(
        suite=parsed,
        profile=profile,
        file=opened.file,
        attack=attack,
        defense=defense,
        settings=tuple(given),
    )
    as_published = None
    if profile in published.profiles:
        as_published = Request(suite=published, profile=profile, file=opened.file)
    variants, rows = variants_of(asked), rows_of(asked)
    cells = _cells(asked, variants, rows)
    utility = _utility(asked, rows)
    return Plan(
        name=parsed.name,
        title=parsed.title,
        paper=parsed.paper,
        source=parsed.source,
        version=parsed.version,
        seed=parsed.seed,
        file=opened.file,
        file_digest=opened.digest,
        profile=profile,
        profiles=tuple(parsed.profiles),
        networks=asked.chosen.networks,
        victims=asked.chosen.victims,
        cells=cells,
        defenses=tuple(
            DefenseRow(id=row.id, name=row.table.name, label=row.table.label) for row in rows
        ),
        rules=tuple(rule.plain() for rule in parsed.rules),
        notes=tuple(note.plain() for note in parsed.notes),
        gallery=parsed.gallery.plain(),
        priced=parsed.utility is not None,
        printed=_printed(as_published, asked, cells),
        utility=utility,
        utility_networks=asked.chosen.utility.networks,
        printed_utility=_printed_utility(as_published, utility),
        printed_rounds=_training_of(published).iterations,
        provenance=(
            *(
                Provenance(plugin="attack", row=variant.id, knowledge=knowledge, places=each.places)
                for variant in variants
                for knowledge, each in variant.parameters.items()
            ),
            *(
                Provenance(plugin="model", row=each.id, places=each.model_parameters.places)
                for each in variants
            ),
            *(
                Provenance(plugin="defense", row=row.id, places=row.parameters.places)
                for row in rows
            ),
        ),
        asked={
            "suite": suite if suite in names() else str(Path(suite).absolute()),
            "profile": profile,
            "attack": attack,
            "defense": defense,
            "settings": tuple(settings),
        },
    )


def _check_settings(suite: Suite, attack: str | None, settings: Sequence[str]) -> None:
    """What is set for a variant's attack must not be lost to another attack in its place."""
    own = {name for v in suite.variants for name in (v.id, attack_name(suite, v))}
    for setting in settings if attack is not None and attack not in own else ():
        path = path_of(setting)
        if path.startswith("variants.") and ".attack." in path:
            text = f"the variant's attack is replaced by '{attack}'; set attack.parameters.NAME"
            raise LeakbenchError(f"--set {path}: {text}")


# ------------------------------------------------------------------------------ cells


def _printed(
    published: Request | None, asked: Request, cells: Sequence[Cell]
) -> dict[tuple[str, str], Printed]:
    """Printed numbers of the rows that run as the suite file has them, steps apart."""
    if published is None or _paper_rules(published.suite) != _paper_rules(asked.suite):
        return {}
    known = _cells(published, variants_of(published), rows_of(published))
    as_printed = {_compared(cell) for cell in known}
    running = {(cell.dataset, cell.row) for cell in cells}
    altered = {(cell.dataset, cell.row) for cell in cells if _compared(cell) not in as_printed}
    printed = {(p.dataset, p.row): p.plain() for p in published.suite.printed}
    return {row: table for row, table in printed.items() if row in running - altered}


def _paper_rules(suite: Suite) -> list[RuleTable]:
    return [rule for rule in suite.rules if rule.paper]


def _compared(cell: Cell) -> str:
    """All of a cell that a printed number is about."""
    spec = cell.spec()
    for name in ("snapshots", "seed", "dtype"):
        del spec[name]
    spec["attack_parameters"] = {k: v for k, v in cell.attack_parameters.items() if k != "steps"}
    return canonical([cell.row, spec])


def _cells(asked: Request, variants: Sequence[Variant], rows: Sequence[Row]) -> tuple[Cell, ...]:
    suite, file = asked.suite, asked.file
    _check_rules(suite, file)
    cells = []
    for dataset in _datasets(asked):
        for variant in variants:
            for row in rows:
                if not row.has(dataset) or dataset not in variant.datasets:
                    continue
                label = ", ".join(
                    text
                    for text, given in (
                        (variant.label, variant.id),
                        (row.table.label, len(rows) > 1),
                    )
                    if given
                )
                for knowledge, parameters in variant.parameters.items():
                    cells.append(
                        Cell(
                            dataset=dataset,
                            own=suite.own_data(dataset),
                            model=variant.model.name,
                            model_parameters=variant.model_parameters.values,
                            weights=variant.model.weights,
                            pretraining=(
                                variant.model.pretraining.model_dump()
                                if variant.model.pretraining
                                else None
                            ),
                            batch_size=variant.training.batch_of(dataset),
                            iterations=variant.training.iterations,
                            local_steps=variant.training.local_steps,
                            learning_rate=variant.training.learning_rate,
                            federation=(
                                variant.training.schedule(dataset) if any(variant.rounds) else {}
                            ),
                            leak_type=variant.leak.type,
                            leak_view=variant.leak.view or "example",
                            rounds=tuple(variant.rounds),
                            variant=variant.id,
                            defense_id=row.id,
                            label=label or row.table.label,
                            defense=row.table.name,
                            defense_parameters=row.parameters.values,
                            attack=variant.attack.name,
                            attack_parameters=parameters.values,
                            knowledge=knowledge,
                            grants=tuple(sorted(set(variant.attack.grants))),
                            snapshots=tuple(sorted(set(asked.chosen.snapshots))),
                            seed=suite.seed,
                            dtype=suite.dtype,
                        )
                    )
    if not cells:
        raise LeakbenchError(f"{file}: no cell is left to run; rows and data sets do not meet")
    _check_distinct(cells, file)
    return tuple(cells)


def _check_rules(suite: Suite, file: str) -> None:
    """What the kind of a rule demands of its other keys."""
    for rule in suite.rules:
        try:
            make_rule(**rule.plain().judged())
        except LeakbenchError as error:
            raise LeakbenchError(f"{file}, key rules: {error}") from None


def _datasets(asked: Request) -> list[str]:
    """Data sets of a profile, in the suite's order."""
    chosen = asked.chosen.datasets
    return [name for name in asked.suite.datasets if chosen is None or name in chosen]


def _utility(asked: Request, rows: Sequence[Row]) -> tuple[UtilityCell, ...]:
    """The trainings of a suite, one for each of its defenses and data sets."""
    suite, profile, table = asked.suite, asked.chosen, asked.suite.utility
    if table is None or not profile.utility.networks:
        return ()
    model, training = table.model or suite.model, _training_of(suite)
    if profile.utility.iterations is not None:
        training = training.model_copy(update={"iterations": profile.utility.iterations})
    where = f"{asked.file}, utility"
    datasets = _datasets(asked)
    if table.datasets is not None:
        datasets = [name for name in datasets if name in table.datasets]
    check_training(where, training)
    place = "utility.model" if table.model else "model"
    sources = sources_of(suite, datasets)
    parameters = model_of(asked, where, place, model, training, sources).values
    points = {round(training.iterations * i / table.evaluations) for i in range(table.evaluations)}
    cells = []
    for dataset in datasets:
        for row in rows:
            if table.defenses is not None and row.id not in table.defenses:
                continue
            if not row.has(dataset):
                continue
            cells.append(
                UtilityCell(
                    dataset=dataset,
                    model=model.name,
                    model_parameters=parameters,
                    weights=model.weights,
                    pretraining=model.pretraining.model_dump() if model.pretraining else None,
                    own=suite.own_data(dataset),
                    schedule=training.schedule(dataset),
                    evaluate_at=tuple(sorted(points | {training.iterations})),
                    delta=table.delta,
                    defense_id=row.id,
                    label=row.table.label,
                    defense=row.table.name,
                    defense_parameters=row.parameters.values,
                    seed=suite.seed,
                    dtype=suite.dtype,
                )
            )
    return tuple(cells)


def _training_of(suite: Suite) -> TrainingTable:
    """The training that [utility] describes."""
    table = suite.utility
    return suite.training if table is None or table.training is None else table.training


def _printed_utility(
    published: Request | None, cells: Sequence[UtilityCell]
) -> dict[tuple[str, str], PrintedUtility]:
    """Printed accuracies of the trainings that run as the suite file has them, rounds apart."""
    if published is None:
        return {}

    def compared(cells: Sequence[UtilityCell]) -> dict[tuple[str, str], str]:
        found = {}
        for cell in cells:
            spec = cell.spec()
            del spec["seed"], spec["dtype"], spec["evaluate_at"], spec["delta"]
            spec["schedule"] = {k: v for k, v in cell.schedule.items() if k != "rounds"}
            found[cell.dataset, cell.row] = canonical(spec)
        return found

    known, running = compared(_utility(published, rows_of(published))), compared(cells)
    printed = {(p.dataset, p.defense): p.plain() for p in published.suite.printed_utility}
    return {k: p for k, p in printed.items() if k in running and running[k] == known.get(k)}


def _check_distinct(cells: Sequence[Cell], file: str) -> None:
    """Cells that differ only in their row's id would share their records."""
    first: dict[str, Cell] = {}
    for cell in cells:
        other = first.setdefault(canonical(cell.spec()), cell)
        if other is not cell:
            text = f"rows '{other.row}' and '{cell.row}' are the same"
            raise LeakbenchError(f"{file}, key defenses: {text}; change or remove one")
