"""The tables of a suite -> a plan: all cells with all parameters spelled out and checked."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leakbench import registry
from leakbench.data.catalog import look_up
from leakbench.data.entries import Source
from leakbench.errors import LeakbenchError, unknown_name
from leakbench.metrics.rules import make_rule
from leakbench.spec import (
    Cell,
    DefenseRow,
    Knowledge,
    Plan,
    Printed,
    PrintedUtility,
    Scalar,
    Schedule,
    UtilityCell,
    canonical,
)
from leakbench.suite import own_data, reading
from leakbench.suite.parameters import complete
from leakbench.suite.tables import (
    ANY_DATA_SET,
    AttackTable,
    DefenseTable,
    LeakTable,
    ModelTable,
    ProfileTable,
    Suite,
    TrainingTable,
    VariantTable,
)


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
    raw, file = reading.text_of(suite)
    document = reading.document_of(raw, file)
    own = own_data.take(document, file, reading.folder_of(suite), {})
    published = parsed = reading.parse(document, file, own)
    if settings:
        _check_settings(parsed, attack, settings)
        for_attack = any(setting.startswith("attack.") for setting in settings)
        if for_attack and attack is not None and parsed.variants and parsed.attack is None:
            document["attack"] = {"name": attack}
        for setting in settings:
            reading.override(document, setting, file)
            reading.yield_to(document, setting, file)
        # The file may speak of data sets that this run leaves out.
        own = own_data.take(document, file, Path(), own)
        parsed = reading.parse(document, file, own, parsed.datasets)
    if profile not in parsed.profiles:
        raise unknown_name("profile", profile, parsed.profiles, f"{file}, key profiles")
    chosen = parsed.profiles[profile]
    cells = _cells(parsed, chosen, file, attack, defense)
    return Plan(
        name=parsed.name,
        title=parsed.title,
        paper=parsed.paper,
        source=parsed.source,
        version=parsed.version,
        seed=parsed.seed,
        file=file,
        file_digest=hashlib.sha256(raw).hexdigest(),
        profile=profile,
        profiles=tuple(parsed.profiles),
        networks=chosen.networks,
        victims=chosen.victims,
        cells=cells,
        defenses=tuple(
            DefenseRow(id=row.id, name=row.name, label=row.label)
            for row in _chosen_rows(parsed, defense)
        ),
        rules=tuple(rule.plain() for rule in parsed.rules),
        notes=tuple(note.plain() for note in parsed.notes),
        gallery=parsed.gallery.plain(),
        priced=parsed.utility is not None,
        printed=_printed(published, parsed, profile, file, cells),
        utility=_utility(parsed, chosen, file, defense),
        utility_networks=chosen.utility.networks,
        printed_utility=_printed_utility(published, parsed, profile, file, defense),
        printed_rounds=_training_of(published).iterations,
        asked={
            "suite": suite if suite in reading.names() else str(Path(suite).absolute()),
            "profile": profile,
            "attack": attack,
            "defense": defense,
            "settings": tuple(settings),
        },
    )


def _check_settings(suite: Suite, attack: str | None, settings: Sequence[str]) -> None:
    """What is set for a variant's attack must not be lost to another attack in its place."""
    own = {name for v in suite.variants for name in (v.id, (v.attack or _NO_ATTACK).name)}
    for setting in settings if attack is not None and attack not in own else ():
        path = setting.partition("=")[0]
        if path.startswith("variants.") and ".attack." in path:
            text = f"the variant's attack is replaced by '{attack}'; set attack.parameters.NAME"
            raise LeakbenchError(f"--set {' '.join(path.split())}: {text}")


# ------------------------------------------------------------------------------ cells


def _printed(
    published: Suite, parsed: Suite, profile: str, file: str, cells: Sequence[Cell]
) -> dict[tuple[str, str], Printed]:
    """Printed numbers of the rows that run as the suite file has them, steps apart."""
    ours, theirs = ([rule for rule in s.rules if rule.paper] for s in (parsed, published))
    if profile not in published.profiles or ours != theirs:
        return {}
    known = _cells(published, published.profiles[profile], file, None, None)
    as_printed = {_compared(cell) for cell in known}
    running = {(cell.dataset, cell.row) for cell in cells}
    altered = {(cell.dataset, cell.row) for cell in cells if _compared(cell) not in as_printed}
    printed = {(p.dataset, p.row): p.plain() for p in published.printed}
    return {row: table for row, table in printed.items() if row in running - altered}


def _compared(cell: Cell) -> str:
    """All of a cell that a printed number is about."""
    spec = cell.spec()
    for name in ("snapshots", "seed", "dtype"):
        del spec[name]
    spec["attack_parameters"] = {k: v for k, v in cell.attack_parameters.items() if k != "steps"}
    return canonical([cell.row, spec])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Variant:
    """A variant with all its tables: its own, or the suite's."""

    id: str
    label: str
    datasets: Sequence[str]
    model: ModelTable
    training: TrainingTable
    leak: LeakTable
    attack: AttackTable
    parameters: Mapping[Knowledge, Mapping[str, Scalar]]

    @property
    def rounds(self) -> list[int]:
        """Rounds of the looks."""
        return self.leak.rounds(self.training.iterations)


def _cells(
    suite: Suite, profile: ProfileTable, file: str, attack: str | None, defense: str | None
) -> tuple[Cell, ...]:
    variants = _variants(suite, profile, file, attack)
    rows = _rows(suite, file, defense)
    rules = tuple(rule.plain().judged() for rule in suite.rules)
    _check_rules(rules, file)
    cells = []
    for dataset in _datasets(suite, profile):
        for variant in variants:
            for row, full in rows:
                allowed = suite.datasets if row.datasets is None else row.datasets
                if dataset not in allowed or dataset not in variant.datasets:
                    continue
                label = ", ".join(
                    text
                    for text, given in ((variant.label, variant.id), (row.label, len(rows) > 1))
                    if given
                )
                for knowledge, parameters in variant.parameters.items():
                    cells.append(
                        Cell(
                            dataset=dataset,
                            own=suite.own_data(dataset),
                            model=variant.model.name,
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
                            label=label or row.label,
                            defense=row.name,
                            defense_parameters=full,
                            attack=variant.attack.name,
                            attack_parameters=parameters,
                            knowledge=knowledge,
                            grants=tuple(sorted(set(variant.attack.grants))),
                            rules=rules,
                            snapshots=tuple(sorted(set(profile.snapshots))),
                            seed=suite.seed,
                            dtype=suite.dtype,
                        )
                    )
    if not cells:
        raise LeakbenchError(f"{file}: no cell is left to run; rows and data sets do not meet")
    _check_distinct(cells, file)
    return tuple(cells)


def _check_rules(rules: Sequence[Mapping[str, Any]], file: str) -> None:
    """What the kind of a rule demands of its other keys."""
    for rule in rules:
        try:
            make_rule(**rule)
        except LeakbenchError as error:
            raise LeakbenchError(f"{file}, key rules: {error}") from None


def _variants(suite: Suite, profile: ProfileTable, file: str, attack: str | None) -> list[_Variant]:
    """The suite's variants, or the suite itself as the only one, each complete and checked."""
    tables = suite.variants or [VariantTable.model_construct(id="", label="")]
    replaced = None
    if attack is not None:
        found = [
            table
            for table in suite.variants
            if attack in (table.id, (table.attack or suite.attack or _NO_ATTACK).name)
        ]
        if found:
            tables = found
        else:
            registry.find("attacks", attack, "--attack")
            tables = _in_place_of(suite, tables, attack)
            replaced = attack
    shared: set[str] = set()
    if suite.variants:
        shared |= profile.parameters.keys()
        shared |= {name for known in suite.knowledge.values() for name in known.parameters}
    variants = [_variant(suite, table, profile, file, replaced, shared) for table in tables]
    taken = {name for v in variants for given in v.parameters.values() for name in given}
    if attack is None and (unknown := sorted(shared - taken)):
        raise unknown_name("parameter", unknown[0], taken, f"{file}, attacks of all variants")
    return variants


_NO_ATTACK = AttackTable(name="")


def _in_place_of(suite: Suite, tables: list[VariantTable], attack: str) -> list[VariantTable]:
    """A variant for every setting of the suite's, run by another attack."""
    if not suite.variants:
        return [tables[0].model_copy(update={"label": attack})]
    settings: dict[str, list[VariantTable]] = {}
    for table in tables:  # those that differ in their attack only are one
        setting = [table.model, table.training, table.leak]
        dumped = [each.model_dump() if each is not None else None for each in setting]
        settings.setdefault(canonical(dumped), []).append(table)
    own_id = _as_identifier(attack)
    return [
        same[0].model_copy(
            update={
                "id": f"{own_id}_{same[0].id}",
                "label": f"{attack} in place of {same[0].label}",
                "datasets": [
                    name
                    for name in suite.datasets
                    if any(table.datasets is None or name in table.datasets for table in same)
                ],
            }
        )
        for same in settings.values()
    ]


def _variant(
    suite: Suite,
    table: VariantTable,
    profile: ProfileTable,
    file: str,
    replaced: str | None,
    shared: Set[str],
) -> _Variant:
    """Complete a variant; `replaced` is an attack to run instead of its own."""
    where = f"{file}, variant '{table.id}'" if table.id else file
    model, training = table.model or suite.model, table.training or suite.training
    leak, chosen = table.leak or suite.leak, table.attack or suite.attack
    if chosen is None:
        raise LeakbenchError(f"{where}, key attack: missing")
    _check_variant(where, model, training, leak, _sources(suite, table.datasets))
    name = replaced or chosen.name
    if replaced is None:
        registry.find("attacks", name, f"{where}, key attack.name")
    kind = registry.load("attacks", name)
    # `complete` refuses other classes.
    fields = {f.name for f in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
    parameters: dict[Knowledge, dict[str, Scalar]] = {}
    for knowledge, own in suite.knowledge.items():
        if knowledge not in (chosen.knowledge or suite.knowledge):
            continue
        asked = chosen.parameters | profile.parameters | profile.variants.get(table.id, {})
        asked |= own.parameters
        if replaced and suite.attack is not None and suite.attack.name == replaced:
            asked |= suite.attack.parameters  # set on the command line
            if unknown := sorted(suite.attack.parameters.keys() - fields):
                raise unknown_name("parameter", unknown[0], fields, f"--set, attack '{name}'")
        # Meant for another attack, or for all variants: an attack takes those that it has.
        foreign = shared if name == chosen.name else asked.keys()
        asked = {k: v for k, v in asked.items() if k in fields or k not in foreign}
        parameters[knowledge] = complete(kind, asked, f"{where}, attack '{name}'")
    for grant in getattr(kind, "requires", ()):
        if grant not in chosen.grants:
            text = f"'{name}' needs '{grant}', granted are {chosen.grants}"
            raise LeakbenchError(f"{where}, key attack.grants: {text}")
    if not parameters:
        text = f"none of {chosen.knowledge} is an attacker of the suite"
        raise LeakbenchError(f"{where}, key attack.knowledge: {text}")
    return _Variant(
        id=table.id,
        label=table.label,
        datasets=table.datasets or suite.datasets,
        model=model,
        training=training,
        leak=leak,
        attack=chosen.model_copy(update={"name": name}),
        parameters=parameters,
    )


def _check_variant(
    where: str,
    model: ModelTable,
    training: TrainingTable,
    leak: LeakTable,
    sources: Sequence[Source],
) -> None:
    """What the tables of a variant demand of each other."""
    _check_training(where, training)
    if training.mode == "central" and leak.type != 2:
        text = "central training leaks type 2 in its one local step; set training.mode = "
        raise LeakbenchError(f'{where}, key leak.type: {text}"federated"')
    if leak.view is not None and (leak.type, leak.view) not in _VIEWS:
        text = f"type {leak.type} has no view '{leak.view}'"
        allowed = 'type 2 has "example" and "batch", type 0 has "raw"'
        raise LeakbenchError(f"{where}, key leak.view: {text}; {allowed}")
    if (last := leak.rounds(training.iterations)[-1]) >= training.iterations:
        text = f"a look in round {last}, rounds are 0 to {training.iterations - 1}"
        raise LeakbenchError(f"{where}, key leak.at: {text}; raise training.iterations")
    _check_model(where, model, training, sources)


def _check_model(
    where: str, model: ModelTable, training: TrainingTable, sources: Sequence[Source]
) -> None:
    """A known network that takes the data, and a batch size for each data set."""
    from leakbench.architectures import require_taken  # brings torch, as plugins do

    registry.find("models", model.name, f"{where}, key model.name")
    kind = registry.load("models", model.name)
    for source in sources:
        name, shape = look_up(source).name, look_up(source).input_shape
        require_taken(kind, shape, f"{where}, key model.name, '{name}'")
        if not {name, ANY_DATA_SET} & training.batch_size.keys():
            raise LeakbenchError(f"{where}, key training.batch_size: no entry for '{name}'")


def _sources(suite: Suite, datasets: Sequence[str] | None) -> list[Source]:
    """What to load these data sets of a suite from, or all of them."""
    return [suite.data(name) for name in datasets or suite.datasets]


def _datasets(suite: Suite, profile: ProfileTable) -> list[str]:
    """Data sets of a profile, in the suite's order."""
    chosen = suite.datasets if profile.datasets is None else profile.datasets
    return [name for name in suite.datasets if name in chosen]


_VIEWS = {(2, "example"), (2, "batch"), (0, "raw")}


def _check_training(where: str, training: TrainingTable) -> None:
    """What the keys of a training demand of each other."""
    for key in ("local_steps", "clients"):
        if training.mode == "central" and getattr(training, key) > 1:
            text = "central training is one client with one local step; set training.mode = "
            raise LeakbenchError(f'{where}, key training.{key}: {text}"federated"')
    for dataset in training.batch_size:
        try:
            Schedule(**training.schedule(dataset))
        except LeakbenchError as error:
            raise LeakbenchError(f"{where}, key training: {error}") from None


def _utility(
    suite: Suite, profile: ProfileTable, file: str, defense: str | None
) -> tuple[UtilityCell, ...]:
    """The trainings of a suite, one for each of its defenses and data sets."""
    table = suite.utility
    if table is None or not profile.utility.networks:
        return ()
    model, training = table.model or suite.model, _training_of(suite)
    if profile.utility.iterations is not None:
        training = training.model_copy(update={"iterations": profile.utility.iterations})
    where = f"{file}, utility"
    datasets = _datasets(suite, profile)
    if table.datasets is not None:
        datasets = [name for name in datasets if name in table.datasets]
    _check_training(where, training)
    _check_model(where, model, training, _sources(suite, datasets))
    points = {round(training.iterations * i / table.evaluations) for i in range(table.evaluations)}
    cells = []
    for dataset in datasets:
        for row, full in _rows(suite, file, defense):
            if table.defenses is not None and row.id not in table.defenses:
                continue
            if row.datasets is not None and dataset not in row.datasets:
                continue
            cells.append(
                UtilityCell(
                    dataset=dataset,
                    model=model.name,
                    weights=model.weights,
                    pretraining=model.pretraining.model_dump() if model.pretraining else None,
                    own=suite.own_data(dataset),
                    schedule=training.schedule(dataset),
                    evaluate_at=tuple(sorted(points | {training.iterations})),
                    delta=table.delta,
                    defense_id=row.id,
                    label=row.label,
                    defense=row.name,
                    defense_parameters=full,
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
    published: Suite, parsed: Suite, profile: str, file: str, defense: str | None
) -> dict[tuple[str, str], PrintedUtility]:
    """Printed accuracies of the trainings that run as the suite file has them, rounds apart."""
    if profile not in published.profiles:
        return {}

    def compared(suite: Suite, row: str | None) -> dict[tuple[str, str], str]:
        found = {}
        for cell in _utility(suite, suite.profiles[profile], file, row):
            spec = cell.spec()
            del spec["seed"], spec["dtype"], spec["evaluate_at"], spec["delta"]
            spec["schedule"] = {k: v for k, v in cell.schedule.items() if k != "rounds"}
            found[cell.dataset, cell.row] = canonical(spec)
        return found

    known = compared(published, None)
    running = compared(parsed, defense)
    printed = {(p.dataset, p.defense): p.plain() for p in published.printed_utility}
    return {k: p for k, p in printed.items() if k in running and running[k] == known.get(k)}


def _check_distinct(cells: Sequence[Cell], file: str) -> None:
    """Cells that differ only in their row's id would share their records."""
    first: dict[str, Cell] = {}
    for cell in cells:
        other = first.setdefault(canonical(cell.spec()), cell)
        if other is not cell:
            text = f"rows '{other.row}' and '{cell.row}' are the same"
            raise LeakbenchError(f"{file}, key defenses: {text}; change or remove one")


def _rows(
    suite: Suite, file: str, defense: str | None
) -> list[tuple[DefenseTable, dict[str, Scalar]]]:
    rows = _chosen_rows(suite, defense)
    kinds: dict[str, type] = {}
    for row in rows:
        if row.name not in kinds:
            registry.find("defenses", row.name, f"{file}, key defenses.name")
            kinds[row.name] = registry.load("defenses", row.name)
    return [
        (row, complete(kinds[row.name], row.parameters, f"{file}, defense '{row.id}'"))
        for row in rows
    ]


def _chosen_rows(suite: Suite, defense: str | None) -> list[DefenseTable]:
    """The suite's rows; the one asked for; or a plugin with its defaults as the only one."""
    if defense is None:
        return suite.defenses
    rows = [row for row in suite.defenses if row.id == defense]
    if not rows:
        registry.find("defenses", defense, "--defense")
        rows = [DefenseTable(id=_as_identifier(defense), name=defense, label=defense)]
    return rows


def _as_identifier(name: str) -> str:
    """A row's id from a plugin's name, which may hold other characters."""
    return re.sub("[^a-z0-9_]", "_", name.lower())
