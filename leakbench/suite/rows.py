"""Rows of a suite's table: its variants and its defenses, complete and checked."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from leakbench import registry
from leakbench.data.catalog import look_up
from leakbench.data.entries import Source
from leakbench.errors import LeakbenchError, unknown_name
from leakbench.registry import Kind
from leakbench.spec import Knowledge, canonical
from leakbench.suite.parameters import Layer, Merged, load, merge
from leakbench.suite.settings import Setting
from leakbench.suite.tables import (
    ANY_DATA_SET,
    BY_DATA_SET,
    AttackTable,
    DefenseTable,
    LeakTable,
    ModelTable,
    ProfileTable,
    Suite,
    TrainingTable,
    VariantTable,
)
from leakbench.training_schedule import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A suite to resolve for one profile, with the arguments of `resolve`."""

    suite: Suite
    profile: str
    file: str
    attack: str | None = None
    defense: str | None = None
    settings: tuple[Setting, ...] = ()
    _found: set[tuple[Kind, str]] = field(
        default_factory=set, init=False, repr=False, compare=False
    )

    def require(self, kind: Kind, name: str, where: str) -> None:
        """As `registry.find`, which reads all plugins of a kind: once for each name."""
        if (kind, name) not in self._found:
            registry.find(kind, name, where)
            self._found.add((kind, name))

    @property
    def chosen(self) -> ProfileTable:
        """The profile's table."""
        return self.suite.profiles[self.profile]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A variant with all its tables: its own, or the suite's."""

    id: str
    label: str
    datasets: Sequence[str]
    model: ModelTable
    model_parameters: Merged
    training: TrainingTable
    leak: LeakTable
    attack: AttackTable
    parameters: Mapping[Knowledge, Merged]

    def rounds(self, dataset: str) -> list[int]:
        """Rounds of the looks."""
        return self.leak.rounds(self.training.of("iterations", dataset))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A defense of the table with all its parameters."""

    table: DefenseTable
    parameters: Merged

    @property
    def id(self) -> str:
        """Name of the row."""
        return self.table.id

    def has(self, dataset: str) -> bool:
        """Whether it is for a data set."""
        return self.table.datasets is None or dataset in self.table.datasets


def variants_of(asked: Request) -> list[Variant]:
    """The suite's variants, or the suite itself as the only one, each complete and checked.

    None of a suite that attacks nothing.
    """
    suite, attack = asked.suite, asked.attack
    if not suite.knowledge:
        if attack is not None:
            raise LeakbenchError(
                f"--attack {attack}: {asked.file} has no [knowledge]: it only trains"
            )
        return []
    tables = suite.variants or [VariantTable.model_construct(id="", label="")]
    replaced = None
    if attack is not None:
        found = [
            table for table in suite.variants if attack in (table.id, attack_name(suite, table))
        ]
        if found:
            tables = found
        else:
            registry.find("attacks", attack, "--attack")
            tables = _in_place_of(suite, tables, attack)
            replaced = attack
    variants = [_variant(asked, table, replaced) for table in tables]
    _require_one([merged for each in variants for merged in each.parameters.values()])
    if attack is None and suite.variants:
        shared = {name for known in suite.knowledge.values() for name in known.parameters}
        shared |= asked.chosen.parameters.keys()
        taken = {name for v in variants for given in v.parameters.values() for name in given.values}
        if unknown := sorted(shared - taken):
            where = f"{asked.file}, attacks of all variants"
            raise unknown_name("parameter", unknown[0], taken, where)
    if attack is None and suite.attack is not None and all(table.attack for table in tables):
        for setting in asked.settings:
            if setting.parameters("attack.parameters"):
                text = "every variant has an attack of its own; set variants.ID.attack.parameters"
                raise LeakbenchError(f"--set {setting.path}: {text}")
    return variants


def attack_name(suite: Suite, table: VariantTable) -> str:
    """Name of a variant's attack, "" where neither it nor the suite has one."""
    chosen = table.attack or suite.attack
    return "" if chosen is None else chosen.name


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


def _variant(asked: Request, table: VariantTable, replaced: str | None) -> Variant:
    """Complete a variant; `replaced` is an attack to run instead of its own."""
    suite, file = asked.suite, asked.file
    where = f"{file}, variant '{table.id}'" if table.id else file
    model, training = table.model or suite.model, table.training or suite.training
    leak, chosen = table.leak or suite.leak, table.attack or suite.attack
    if chosen is None:
        raise LeakbenchError(f"{where}, key attack: missing")
    _check_variant(where, training, leak, table.datasets or suite.datasets)
    place = f"variants.{table.id}.model" if table.model else "model"
    sources = sources_of(suite, table.datasets)
    model_parameters = model_of(asked, where, place, model, sources)
    name = replaced or chosen.name
    if replaced is None:
        asked.require("attacks", name, f"{where}, key attack.name")
    kind = load("attacks", name)
    parameters = {
        knowledge: merge(
            kind,
            _attack_layers(asked, table, chosen, knowledge, foreign=name != chosen.name),
            f"{where}, attack '{name}'",
        )
        for knowledge in suite.knowledge
        if knowledge in (chosen.knowledge or suite.knowledge)
    }
    required = getattr(kind, "requires", ())
    for grant in required if isinstance(required, tuple) else ():  # else its trials say so
        if grant not in chosen.grants:
            text = f"'{name}' needs '{grant}', granted are {chosen.grants}"
            raise LeakbenchError(f"{where}, key attack.grants: {text}")
    if not parameters:
        text = f"none of {chosen.knowledge} is an attacker of the suite"
        raise LeakbenchError(f"{where}, key attack.knowledge: {text}")
    return Variant(
        id=table.id,
        label=table.label,
        datasets=table.datasets or suite.datasets,
        model=model,
        model_parameters=model_parameters,
        training=training,
        leak=leak,
        attack=chosen.model_copy(update={"name": name}),
        parameters=parameters,
    )


def _attack_layers(
    asked: Request,
    table: VariantTable,
    chosen: AttackTable,
    knowledge: Knowledge,
    *,
    foreign: bool,
) -> list[Layer]:
    """Where an attack's parameters come from, the later over the earlier, the command line last.

    foreign: they are written for another attack, in whose place this one runs.
    """
    profile, own = f"profiles.{asked.profile}", asked.suite.knowledge[knowledge]
    several = foreign or bool(asked.suite.variants)
    place = f"variants.{table.id}.attack.parameters" if table.attack else "attack.parameters"
    layers = [
        Layer(place, chosen.parameters, foreign),
        Layer(f"{profile}.parameters", asked.chosen.parameters, several),
        Layer(f"{profile}.variants.{table.id}", asked.chosen.variants.get(table.id, {}), foreign),
        Layer(f"knowledge.{knowledge}.parameters", own.parameters, several),
    ]
    if asked.attack is not None and table.attack is not None:
        # `--set attack.parameters` is for the attack asked for, whatever table it is from.
        layers.append(Layer("attack.parameters", {}))
    return _with_command_line(asked, layers)


def _with_command_line(asked: Request, layers: Sequence[Layer]) -> list[Layer]:
    """Layers of the file and then what `--set` put into them, in its order."""
    own, given = [], []
    for layer in layers:
        named = {k for setting in asked.settings for k in setting.parameters(layer.place)}
        rest = {k: v for k, v in layer.values.items() if k not in named}
        own.append(Layer(layer.place, rest, layer.shared))
    for setting in asked.settings:
        for layer in layers:
            for name, value in setting.parameters(layer.place).items():
                given.append(Layer(f"--set {layer.place}.{name}", {name: value}, layer.shared))
    return [*own, *given]


def _check_variant(
    where: str, training: TrainingTable, leak: LeakTable, datasets: Sequence[str]
) -> None:
    """What the tables of a variant demand of each other."""
    check_training(where, training, datasets)
    if training.mode == "central" and leak.type != 2:
        text = "central training leaks type 2 in its one local step; set training.mode = "
        raise LeakbenchError(f'{where}, key leak.type: {text}"federated"')
    if leak.view is not None and (leak.type, leak.view) not in _VIEWS:
        text = f"type {leak.type} has no view '{leak.view}'"
        allowed = 'type 2 has "example" and "batch", type 0 has "raw"'
        raise LeakbenchError(f"{where}, key leak.view: {text}; {allowed}")
    _check_attackable(where, training, leak)
    for rounds in (training.of("iterations", dataset) for dataset in datasets):
        if (last := leak.rounds(rounds)[-1]) >= rounds:
            text = f"a look in round {last}, rounds are 0 to {rounds - 1}"
            raise LeakbenchError(f"{where}, key leak.at: {text}; raise training.iterations")


def _check_attackable(where: str, training: TrainingTable, leak: LeakTable) -> None:
    """What the attacker's own run of the training path does not know."""
    for key in ("normalise", "augment"):
        if getattr(training, key):
            text = "attacked networks take images in [0, 1] as they are; set it in utility.training"
            raise LeakbenchError(f"{where}, key training.{key}: {text}")
    if leak.type == 2:
        return
    if training.momentum and any(steps > 1 for steps in training.local_steps.values()):
        text = "an update of several steps with momentum is not replayed; set local_steps = 1"
        raise LeakbenchError(f"{where}, key training.momentum: {text}, or leak.type = 2")
    if training.learning_rate_policy != "constant" and any(leak.rounds(2)):
        text = "updates of later rounds are read in units of one learning rate"
        raise LeakbenchError(
            f'{where}, key training.learning_rate_policy: {text}; set "constant", or leak.type = 2'
        )


def model_of(
    asked: Request,
    where: str,
    place: str,
    model: ModelTable,
    sources: Sequence[Source],
) -> Merged:
    """Parameters of a known network that takes the data.

    place: key of the table in the file.
    """
    from leakbench.architectures import require_taken  # brings torch, as plugins do

    asked.require("models", model.name, f"{where}, key model.name")
    kind = registry.load("models", model.name)
    for source in sources:
        name, shape = look_up(source).name, look_up(source).input_shape
        require_taken(kind, shape, f"{where}, key model.name, '{name}'")
    layers = _with_command_line(asked, [Layer(f"{place}.parameters", model.parameters)])
    return merge(kind, layers, f"{where}, model '{model.name}'")


def sources_of(suite: Suite, datasets: Sequence[str] | None) -> list[Source]:
    """What to load these data sets of a suite from, or all of them."""
    return [suite.data(name) for name in datasets or suite.datasets]


def rows_of(asked: Request) -> list[Row]:
    """The table's defenses, each complete and checked."""
    found = []
    kinds: dict[str, type | str] = {}
    for table in _chosen_rows(asked.suite, asked.defense):
        if table.name not in kinds:
            registry.find("defenses", table.name, f"{asked.file}, key defenses.name")
            kinds[table.name] = load("defenses", table.name)
        place = f"defenses.{table.id}.parameters"
        layers = _with_command_line(asked, [Layer(place, table.parameters)])
        where = f"{asked.file}, defense '{table.id}'"
        found.append(Row(table=table, parameters=merge(kinds[table.name], layers, where)))
    _require_one([row.parameters for row in found])
    return found


def _require_one(plugins: Sequence[Merged]) -> None:
    """Of plugins that are asked for, one must work."""
    if plugins and all(each.broken for each in plugins):
        raise LeakbenchError(plugins[0].broken)


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


_VIEWS = {(2, "example"), (2, "batch"), (0, "raw")}


def check_training(where: str, training: TrainingTable, datasets: Sequence[str]) -> None:
    """What the keys of a training demand of each other, and that each data set has its numbers."""
    for dataset in datasets:
        for key in BY_DATA_SET:
            if (
                key != "examples_a_client"
                and not {dataset, ANY_DATA_SET} & getattr(training, key).keys()
            ):
                raise LeakbenchError(f"{where}, key training.{key}: no entry for '{dataset}'")
        for key, most in (
            ("local_steps", training.of("local_steps", dataset)),
            ("clients", training.clients),
        ):
            if training.mode == "central" and most > 1:
                text = "central training is one client with one local step; set training.mode = "
                raise LeakbenchError(f'{where}, key training.{key}: {text}"federated"')
        try:
            schedule = Schedule(**training.schedule(dataset))
        except LeakbenchError as error:
            raise LeakbenchError(f"{where}, key training: {error}") from None
        _check_last_rate(where, schedule)


def _check_last_rate(where: str, schedule: Schedule) -> None:
    """A factor above 1 must not lead out of the finite numbers, which Python refuses to go."""
    try:
        last = schedule.learning_rate_at(schedule.rounds - 1, schedule.rounds)
    except OverflowError:
        last = math.inf
    if last == math.inf:
        text = f"after {schedule.rounds} rounds the learning rate is no finite number"
        raise LeakbenchError(f"{where}, key training.learning_rate_factor: {text}; lower it")
