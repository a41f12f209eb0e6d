"""The tables of a suite -> a plan: all cells with all parameters spelled out and checked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from leakbench.collecting import uncollected
from leakbench.errors import LeakbenchError, unknown_name
from leakbench.foreign import noting_interrupts
from leakbench.metrics.rules import make_rule
from leakbench.spec import (
    Cell,
    DefenseRow,
    Plan,
    Printed,
    Provenance,
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
    rows_of,
    variants_of,
)
from leakbench.suite.settings import override, path_of
from leakbench.suite.tables import RuleTable, Suite
from leakbench.suite.training_cells import printed_numbers, utility_cells


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
    with uncollected(), noting_interrupts():
        return _resolved(suite, profile, attack, defense, settings)


def _resolved(
    suite: str, profile: str, attack: str | None, defense: str | None, settings: Sequence[str]
) -> Plan:
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
    utility = utility_cells(asked, rows)
    if not cells and not utility:
        text = "nothing is left to run; rows and data sets do not meet, or no network is trained"
        raise LeakbenchError(f"{opened.file}, profile {profile}: {text}")
    return Plan(
        name=parsed.name,
        title=parsed.title,
        paper=parsed.paper,
        source=parsed.source,
        question=parsed.question,
        reading_guide=parsed.reading_guide,
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
        limits=parsed.limits.plain(),
        priced=parsed.utility is not None,
        printed=_printed(as_published, asked, cells),
        utility=utility,
        utility_networks=asked.chosen.utility.networks,
        printed_utility=(
            printed_numbers(as_published, rows_of(as_published), utility)
            if as_published and published.printed_utility
            else {}
        ),
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
    if published is None or not published.suite.printed:
        return {}
    if _paper_rules(published.suite) != _paper_rules(asked.suite):
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
            if dataset not in variant.datasets:
                continue
            schedule, rounds = variant.training.schedule(dataset), variant.rounds(dataset)
            table = variant.model.pretraining
            pretraining = table.model_dump() if table else None
            grants = tuple(sorted(set(variant.attack.grants)))
            snapshots = tuple(sorted(set(asked.chosen.snapshots)))
            for row in rows:
                if not row.has(dataset):
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
                            pretraining=pretraining,
                            batch_size=schedule["batch_size"],
                            iterations=schedule["rounds"],
                            local_steps=schedule["local_steps"],
                            learning_rate=schedule["learning_rate"],
                            federation=schedule if any(rounds) else {},
                            leak_type=variant.leak.type,
                            leak_view=variant.leak.view or "example",
                            rounds=tuple(rounds),
                            variant=variant.id,
                            defense_id=row.id,
                            label=label or row.table.label,
                            defense=row.table.name,
                            defense_parameters=row.parameters.values,
                            attack=variant.attack.name,
                            attack_parameters=parameters.values,
                            knowledge=knowledge,
                            grants=grants,
                            snapshots=snapshots,
                            seed=suite.seed,
                            dtype=suite.dtype,
                            bound=suite.bound,
                        )
                    )
    if variants and not cells:
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


def _check_distinct(cells: Sequence[Cell], file: str) -> None:
    """Cells that differ only in their row's id would share their records."""
    first: dict[str, Cell] = {}
    for cell in cells:
        other = first.setdefault(canonical(cell.spec()), cell)
        if other is not cell:
            text = f"rows '{other.row}' and '{cell.row}' are the same"
            raise LeakbenchError(f"{file}, key defenses: {text}; change or remove one")
