"""A suite file (TOML) -> cells: what to run, judge and compare, checked before anything starts.

A suite is one table of one paper: data sets x variants x defenses x knowledge, with the printed
numbers beside them as strings, exactly as printed. Nothing in a suite is executed. `docs/suites.md`
explains the keys; every mistake is reported with the file, the key and what is allowed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from leakbench import registry
from leakbench.data.catalog import look_up
from leakbench.errors import LeakbenchError, unknown_name
from leakbench.names import IMAGE_MODELS, MODELS
from leakbench.plugin_files import one_line
from leakbench.spec import (
    Cell,
    DefenseRow,
    GalleryRule,
    Grant,
    Knowledge,
    Plan,
    Printed,
    PrintedUtility,
    Rule,
    Scalar,
    Schedule,
    SuiteNote,
    UtilityCell,
    canonical,
    row_name,
)

_SCALARS = ("bool", "int", "float", "str")
Positive = Annotated[int, Field(gt=0)]
Identifier = Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]
Fraction = Annotated[float, Field(ge=0, le=1)]

_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class PretrainingTable(_Table):
    """[model.pretraining] Adam on the training images before the attack, without any defense."""

    epochs: Positive
    batch_size: Positive = 50
    learning_rate: Annotated[float, Field(gt=0)] = 0.001


class ModelTable(_Table):
    """[model] network, how its weights are drawn, and whether it is trained before the attack."""

    name: str
    weights: Literal["uniform", "default"] = "uniform"
    pretraining: PretrainingTable | None = None


class TrainingTable(_Table):
    """[training] batch_size a data set; iterations planned, of federated training rounds.

    central: one client, one local step. federated: a client takes `local_steps` steps, each on
    `batch_size` examples of its own. The other keys are those of `federated.Schedule`; they count
    where the network is trained: in [utility], and before a leak later than the first.
    """

    mode: Literal["central", "federated"] = "central"
    batch_size: dict[str, Positive]
    iterations: Positive = 1
    local_steps: Positive = 1
    learning_rate: Annotated[float, Field(gt=0)] = 0.1
    clients: Positive = 1
    clients_a_round: Positive = 1
    examples_a_client: dict[str, Positive] = {}
    sampling: Literal["fixed_size", "poisson"] = "fixed_size"
    aggregation: Literal["fed_sgd", "fed_averaging"] = "fed_sgd"
    partition: Literal["iid", "shards", "dirichlet"] = "iid"
    classes_a_client: Positive = 2
    concentration: Annotated[float, Field(gt=0)] = 0.5

    def schedule(self, dataset: str) -> dict[str, Any]:
        """Arguments of `federated.Schedule` for a data set."""
        own = ("mode", "iterations", "batch_size", "examples_a_client")
        return self.model_dump(exclude=set(own)) | {
            "rounds": self.iterations,
            "batch_size": self.batch_size[dataset],
            "examples_a_client": self.examples_a_client.get(dataset),
        }


class LeakTable(_Table):
    """[leak] where and when the gradient is read.

    type, view: see `contracts.LeakPoint`. at: the round (in central training: iteration) of the
    first look; later than the first, the network is trained with the defense until then.
    observations: looks at the same victims; over "noise": in the same round, the noise drawn anew
    each time; over "rounds": one in each of so many rounds, in which training goes on.
    """

    type: Literal[0, 1, 2] = 2
    view: Literal["example", "batch", "raw"] | None = None
    at: Literal["first", "middle", "last"] | Annotated[int, Field(ge=0)] = "first"
    observations: Annotated[int, Field(gt=0, le=1000)] = 1
    over: Literal["noise", "rounds"] = "noise"

    def rounds(self, iterations: int) -> list[int]:
        """Rounds of the looks, 0-based, in a training of so many."""
        named = {"first": 0, "middle": iterations // 2, "last": iterations - 1}
        first = named[self.at] if isinstance(self.at, str) else self.at
        step = 1 if self.over == "rounds" else 0
        return [first + step * look for look in range(self.observations)]


class AttackTable(_Table):
    """[attack] hyper-parameters (those not named keep the plugin's defaults) and threat model.

    grants: what the attacker is handed beside model, weights and gradients. knowledge: which of
    the suite's attackers run it; all by default.
    """

    name: str
    parameters: dict[str, Scalar] = {}
    grants: list[Grant] = []
    knowledge: Annotated[list[Knowledge], Field(min_length=1)] | None = None


class VariantTable(_Table):
    """[[variants]] a row for every defense, with tables of its own instead of the suite's."""

    id: Identifier
    label: str
    datasets: Annotated[list[str], Field(min_length=1)] | None = None
    model: ModelTable | None = None
    training: TrainingTable | None = None
    leak: LeakTable | None = None
    attack: AttackTable | None = None


class KnowledgeTable(_Table):
    """[knowledge.naive], [knowledge.adaptive]: what this attacker sets differently."""

    parameters: dict[str, Scalar] = {}


class DefenseTable(_Table):
    """[[defenses]] one row of the table; `datasets` restricts an extra row to some of them."""

    id: Identifier
    name: str
    label: str
    parameters: dict[str, Scalar] = {}
    datasets: Annotated[list[str], Field(min_length=1)] | None = None


class RuleTable(_Table):
    """[[rules]] what counts as a success (see `metrics.SuccessRule`)."""

    name: Identifier
    kind: Literal["mse", "distance", "strict", "identified"]
    label: str
    threshold: Annotated[float, Field(gt=0)] | None = None
    clamp: bool = True
    top: Positive = 1
    fraction: Annotated[float, Field(gt=0, le=1)] = 0.25
    paper: bool = False  # a reading of the paper's own rule: compared with its printed rate

    def plain(self) -> Rule:
        """As a plan holds it."""
        return Rule(**self.model_dump())


class PrintedTable(_Table):
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


class UtilityTable(_Table):
    """[utility] what training with each defense costs: accuracy, epsilon, time.

    model, training: of these trainings; those of the suite where not given. They use the whole
    data set where there is a data root, else the embedded sample. evaluations: points of the
    accuracy curve after the start. delta: at which epsilon is stated. datasets, defenses: those
    of the suite to train; all by default.
    """

    model: ModelTable | None = None
    training: TrainingTable | None = None
    evaluations: Annotated[int, Field(gt=0, le=1000)] = 4
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    datasets: Annotated[list[str], Field(min_length=1)] | None = None
    defenses: Annotated[list[str], Field(min_length=1)] | None = None


class PrintedUtilityTable(_Table):
    """[[printed_utility]] the accuracy a paper prints for a defense, as printed."""

    dataset: str
    defense: str
    accuracy: str

    def plain(self) -> PrintedUtility:
        """As a plan holds it."""
        return PrintedUtility(**self.model_dump())


class NoteTable(_Table):
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


class GalleryTable(_Table):
    """[gallery] victims are those at these MSE quantiles of a reference cell, best first."""

    quantiles: Annotated[list[Fraction], Field(min_length=1)] = [0.5]
    defense: str = "none"
    variant: str = ""
    knowledge: Knowledge = "naive"

    def plain(self) -> GalleryRule:
        """As a plan holds it."""
        return GalleryRule(**self.model_dump() | {"quantiles": tuple(self.quantiles)})


class UtilityProfileTable(_Table):
    """[profiles.*.utility] networks to train, 0 for none, and rounds in place of the suite's."""

    networks: Annotated[int, Field(ge=0)] = 1
    iterations: Positive | None = None


class ProfileTable(_Table):
    """[profiles.*] how much to run; `variants` holds parameters of single variants' attacks.

    victims: images a network, cut down to whole batches where a victim is a batch. datasets: those
    of the suite to run; all by default.
    """

    networks: Positive
    victims: Positive
    datasets: Annotated[list[str], Field(min_length=1)] | None = None
    parameters: dict[str, Scalar] = {}
    variants: dict[Identifier, dict[str, Scalar]] = {}
    snapshots: list[Annotated[int, Field(ge=1)]] = []
    utility: UtilityProfileTable = UtilityProfileTable()


class Suite(_Table):
    """A whole suite file."""

    schema_version: Annotated[Literal[1], Field(alias="schema")]
    name: Identifier
    title: str
    paper: str
    source: str
    version: Positive
    seed: Annotated[int, Field(ge=0)]
    datasets: Annotated[list[str], Field(min_length=1)]
    model: ModelTable
    training: TrainingTable
    leak: LeakTable = LeakTable()
    attack: AttackTable | None = None
    variants: list[VariantTable] = []
    knowledge: Annotated[dict[Knowledge, KnowledgeTable], Field(min_length=1)]
    defenses: Annotated[list[DefenseTable], Field(min_length=1)]
    rules: Annotated[list[RuleTable], Field(min_length=1)]
    printed: list[PrintedTable] = []
    utility: UtilityTable | None = None
    printed_utility: list[PrintedUtilityTable] = []
    notes: list[NoteTable] = []
    gallery: GalleryTable = GalleryTable()
    profiles: Annotated[dict[Identifier, ProfileTable], Field(min_length=1)]
    dtype: Literal["float32", "float64"] = "float32"


def names() -> list[str]:
    """Suites that come with leakbench."""
    folder = resources.files("leakbench.suites")
    return sorted(f.name[:-5] for f in folder.iterdir() if f.name.endswith(".toml"))


def read(suite: str) -> tuple[Suite, str, str]:
    """Suite by name or path of a .toml file -> (suite, file, SHA-256 of its text)."""
    raw, file = _text(suite)
    return _parse(_toml(raw, file), file), file, hashlib.sha256(raw).hexdigest()


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
    raw, file = _text(suite)
    document = _toml(raw, file)
    published = parsed = _parse(document, file)
    if settings:
        _check_settings(parsed, attack, settings)
        for_attack = any(setting.startswith("attack.") for setting in settings)
        if for_attack and attack is not None and parsed.variants and parsed.attack is None:
            document["attack"] = {"name": attack}
        for setting in settings:
            _set(document, setting, file)
            _yield_to(document, setting, file)
        # The file may speak of data sets that this run leaves out.
        parsed = _parse(document, file, parsed.datasets)
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
            "suite": suite if suite in names() else str(Path(suite).absolute()),
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


# ------------------------------------------------------------------------------ reading


def _text(suite: str) -> tuple[bytes, str]:
    if suite.endswith(".toml") or "/" in suite:
        path = Path(suite)
        try:
            return path.read_bytes(), str(path)
        except OSError as error:
            raise LeakbenchError(f"suite file {path}: {error.strerror}") from None
        except ValueError as error:  # a NUL in the path
            raise LeakbenchError(f"suite file {suite!r}: {error}") from None
    if suite not in names():
        text = f"{unknown_name('suite', suite, names())}, or the path of a .toml file"
        raise LeakbenchError(text)
    return (resources.files("leakbench.suites") / f"{suite}.toml").read_bytes(), f"{suite}.toml"


def _toml(raw: bytes, file: str) -> dict[str, Any]:
    if not raw.strip():
        raise LeakbenchError(f"{file}: the file is empty; a suite needs at least schema = 1")
    try:
        return tomllib.loads(raw.decode("utf-8"))
    except UnicodeDecodeError:
        raise LeakbenchError(f"{file}: not a text file in UTF-8") from None
    except (ValueError, RecursionError) as error:  # numbers too long, lists too deep
        raise LeakbenchError(f"{file}: not valid TOML: {error}") from None


def _parse(document: dict[str, Any], file: str, left_out: Sequence[str] = ()) -> Suite:
    """Check a document; `left_out` are data sets it may speak of beside its own."""
    try:
        if not _within_64_bits(document):
            raise LeakbenchError(f"{file}: a whole number needs more than 64 bits")
    except RecursionError:
        raise LeakbenchError(f"{file}: tables are nested too deep") from None
    try:
        suite = Suite.model_validate(document)
    except ValidationError as error:
        raise LeakbenchError(f"{file}: {_explain(error)}") from None
    _check(suite, file, left_out)
    return suite


def _within_64_bits(value: Any) -> bool:
    """Whether all whole numbers are what TOML promises; Python cannot even print the largest."""
    if isinstance(value, dict):
        return all(_within_64_bits(item) for item in value.values())
    if isinstance(value, list):
        return all(_within_64_bits(item) for item in value)
    return not isinstance(value, int) or -(2**63) <= value < 2**63


def _explain(error: ValidationError) -> str:
    """All mistakes pydantic found, a clause each: key, what is wrong, what is allowed."""
    clauses = []
    for item in error.errors():
        location = [str(part) for part in item["loc"] if part != "[key]"]
        of_scalar = len(location) > 1 and location[-1] in _SCALARS
        key = ".".join(location[:-1] if of_scalar else location) or "file"
        if of_scalar:  # pydantic says what each of the four types misses
            text = "input should be a bool, a finite number or a string"
            clauses.append(f"key {key}: {text}, got {_shortened(item['input'])}")
        elif item["type"] == "extra_forbidden":
            allowed = _allowed_keys(item["loc"])
            clauses.append(str(unknown_name("key", str(item["loc"][-1]), allowed, f"key {key}")))
        elif item["type"] == "missing":
            clauses.append(f"key {key}: missing")
        else:
            text = item["msg"][0].lower() + item["msg"][1:]
            clauses.append(f"key {key}: {text}, got {_shortened(item['input'])}")
    return "; ".join(dict.fromkeys(clauses))


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _allowed_keys(location: tuple[int | str, ...]) -> list[str]:
    """Keys of the table a misspelt key stands in."""
    table: type[BaseModel] = Suite
    for part in location[:-1]:
        field = table.model_fields.get(str(part))
        if field is None:
            continue
        inner = [t for t in _inner_types(field.annotation) if issubclass(t, BaseModel)]
        table = inner[0] if inner else table
    return [field.alias or name for name, field in table.model_fields.items()]


def _inner_types(annotation: Any) -> list[type]:
    if isinstance(annotation, type) and not getattr(annotation, "__args__", None):
        return [annotation]
    return [t for part in getattr(annotation, "__args__", ()) for t in _inner_types(part)]


def _check(suite: Suite, file: str, left_out: Sequence[str]) -> None:
    """Names that refer to each other, and to data sets."""
    ids = [defense.id for defense in suite.defenses]
    once: tuple[tuple[str, list[str]], ...] = (
        ("datasets", suite.datasets),
        ("defenses.id", ids),
        ("variants.id", [variant.id for variant in suite.variants]),
        ("variants.label", [variant.label for variant in suite.variants]),
        ("rules.name", [rule.name for rule in suite.rules]),
        ("printed", [f"{printed.dataset}/{printed.row}" for printed in suite.printed]),
        ("printed_utility", [f"{p.dataset}/{p.defense}" for p in suite.printed_utility]),
    )
    for what, found in once:
        if twice := {name for name in found if found.count(name) > 1}:
            raise LeakbenchError(f"{file}, key {what}: '{min(twice)}' stands there twice")
    datasets = list(dict.fromkeys([*suite.datasets, *left_out]))
    variants = [variant.id for variant in suite.variants] or [""]
    utility, priced = suite.utility or UtilityTable(), suite.printed_utility
    trainings = [
        suite.training,
        *(v.training for v in suite.variants if v.training),
        *([utility.training] if utility.training else []),
    ]
    # Without a [gallery] of its own a suite shows the first row that has a result.
    gallery = [suite.gallery] if "gallery" in suite.model_fields_set else []
    places: list[tuple[str, Sequence[str] | None, Sequence[str], str]] = [
        *(("training.batch_size", list(t.batch_size), datasets, "data set") for t in trainings),
        *(
            ("training.examples_a_client", list(t.examples_a_client), datasets, "data set")
            for t in trainings
        ),
        ("utility.datasets", utility.datasets, datasets, "data set"),
        ("utility.defenses", utility.defenses, ids, "row"),
        (
            "printed_utility.dataset",
            [p.dataset for p in suite.printed_utility],
            datasets,
            "data set",
        ),
        ("printed_utility.defense", [p.defense for p in priced], ids, "row"),
        ("gallery.variant", [g.variant for g in gallery], variants, "variant"),
        ("gallery.defense", [g.defense for g in gallery], ids, "row"),
        ("gallery.knowledge", [g.knowledge for g in gallery], list(suite.knowledge), "knowledge"),
        ("printed.dataset", [p.dataset for p in suite.printed], datasets, "data set"),
        ("printed.defense", [p.defense for p in suite.printed], ids, "row"),
        ("printed.variant", [p.variant for p in suite.printed], variants, "variant"),
        *(
            ("profiles.variants", list(p.variants), variants, "variant")
            for p in suite.profiles.values()
        ),
        *(("profiles.datasets", p.datasets, datasets, "data set") for p in suite.profiles.values()),
        *(("variants.datasets", v.datasets, datasets, "data set") for v in suite.variants),
        *(("defenses.datasets", d.datasets, datasets, "data set") for d in suite.defenses),
        *(("notes.datasets", n.datasets, datasets, "data set") for n in suite.notes),
        *(("notes.defenses", n.defenses, ids, "row") for n in suite.notes),
        *(("notes.variants", n.variants, variants, "variant") for n in suite.notes),
    ]
    for name in suite.datasets:
        try:
            look_up(name)
        except LeakbenchError as error:
            raise LeakbenchError(f"{file}, key datasets: {error}") from None
    for key, used, allowed, kind in places:
        for name in used or ():
            if name not in allowed:
                raise unknown_name(kind, name, allowed, f"{file}, key {key}")
    for printed in suite.printed:
        if printed.mse is not None and printed.rmse is not None:
            raise LeakbenchError(f"{file}, key printed: give mse or rmse, not both")
        if (printed.asr is None) == (printed.succeeds is None):
            text = "give asr or succeeds, not both or none"
            raise LeakbenchError(f"{file}, key printed: {text}")
        for key in ("asr", "mse", "rmse", "attack_iterations"):
            _check_number(getattr(printed, key), f"{file}, key printed.{key}", share=key == "asr")
    for accuracy in (printed.accuracy for printed in suite.printed_utility):
        _check_number(accuracy, f"{file}, key printed_utility.accuracy", share=True)


def _check_number(text: str | None, where: str, *, share: bool) -> None:
    """A printed number, if there is one."""
    if text is None:
        return
    if not _NUMBER.fullmatch(text) or not math.isfinite(float(text)):
        raise LeakbenchError(f"{where}: {text!r} is not a number")
    if share and float(text) > 1:
        raise LeakbenchError(f"{where}: a rate must be 0 to 1, got '{text}'")


def _yield_to(document: dict[str, Any], setting: str, file: str) -> None:
    """What the command line sets for an attack, no profile sets otherwise."""
    path, _, value = setting.partition("=")
    *table, name = path.strip().split(".")
    profiles = document.get("profiles")
    if table[-2:] != ["attack", "parameters"] or not isinstance(profiles, dict):
        return
    place = "parameters"
    if table[0] == "variants":
        number = _place(document["variants"], table[1])
        if number is None:
            return  # no such variant: the check of the whole file says so
        place = f"variants.{document['variants'][number].get('id')}"
    for profile in list(profiles):
        _set(document, f"profiles.{profile}.{place}.{name}={value}", file)


def _set(document: dict[str, Any], setting: str, file: str) -> None:
    """Apply one `key.path=value`; list items by number, e.g. defenses.1.parameters.clip=2."""
    path, equals, value = setting.partition("=")
    if not equals or not path.strip():
        raise LeakbenchError(f"--set {setting!a}: write key.path=value")
    if not setting.isascii() and setting != setting.encode(errors="replace").decode():
        raise LeakbenchError(f"--set {path!a}: its value is not text in UTF-8")
    shown = " ".join(path.split())
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value  # a bare word is a string
    except (ValueError, RecursionError) as error:  # numbers too long, lists too deep
        raise LeakbenchError(f"--set {shown}: not valid TOML: {error}") from None
    *parents, last = path.strip().split(".")
    node: Any = document
    for part in parents:
        if isinstance(node, dict):
            node = node.setdefault(part, {})
        elif (place := _place(node, part)) is not None:
            node = node[place]
        else:
            raise LeakbenchError(f"--set {shown}: {file} has no table '{part}' there")
    if isinstance(node, dict):
        node[last] = parsed
    elif (place := _place(node, last)) is not None:
        node[place] = parsed
    else:
        raise LeakbenchError(f"--set {shown}: {file} has no table to set '{last}' in")


def _place(node: Any, part: str) -> int | None:
    """Which item of a list `part` names; None if node is no list or has no such item."""
    numbered = isinstance(node, list) and re.fullmatch("[0-9]{1,9}", part)
    return int(part) if numbered and int(part) < len(node) else None


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
    for name in ("rules", "snapshots", "seed", "dtype"):
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
                            model=variant.model.name,
                            weights=variant.model.weights,
                            pretraining=(
                                variant.model.pretraining.model_dump()
                                if variant.model.pretraining
                                else None
                            ),
                            batch_size=variant.training.batch_size[dataset],
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
    from leakbench.metrics import SuccessRule  # brings torch, which no reading of a file needs

    for rule in rules:
        try:
            SuccessRule(**rule)
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
    _check_variant(where, model, training, leak, table.datasets or suite.datasets)
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
    datasets: Sequence[str],
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
    _check_model(where, model, training, datasets)


def _check_model(
    where: str, model: ModelTable, training: TrainingTable, datasets: Sequence[str]
) -> None:
    """A known network that takes the data, and a batch size for each data set."""
    if model.name not in MODELS:
        raise unknown_name("model", model.name, MODELS, f"{where}, key model.name")
    for name in datasets:
        if model.name in IMAGE_MODELS and len(look_up(name).input_shape) != 3:
            text = f"'{model.name}' takes images, '{name}' has none; allowed for it: "
            others = ", ".join(sorted(MODELS.keys() - IMAGE_MODELS))
            raise LeakbenchError(f"{where}, key model.name: {text}{others}")
        if name not in training.batch_size:
            raise LeakbenchError(f"{where}, key training.batch_size: no entry for '{name}'")


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
    _check_model(where, model, training, datasets)
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


def complete(kind: type, parameters: Mapping[str, Scalar], where: str) -> dict[str, Scalar]:
    """All hyper-parameters of a plugin after its defaults; types and names checked.

    Raises:
        LeakbenchError: an unknown name, a wrong type, or a value the plugin refuses.
    """
    if not dataclasses.is_dataclass(kind):
        raise LeakbenchError(f"{where}: class {kind.__name__} is not a dataclass")
    fields = [field.name for field in dataclasses.fields(kind)]
    for name in parameters:
        if name not in fields:
            raise unknown_name("parameter", name, fields, where)
    try:
        plugin = TypeAdapter(kind).validate_json(json.dumps(dict(parameters)), strict=True)
    except ValidationError as error:
        raise LeakbenchError(f"{where}: {_explain(error)}") from None
    except LeakbenchError as error:
        raise LeakbenchError(f"{where}: {error}") from None
    except (Exception, SystemExit) as error:  # foreign code may fail in any way
        raise LeakbenchError(f"{where}: {one_line(error)}") from error
    values = {name: getattr(plugin, name) for name in fields}
    try:
        canonical(values)
    except (TypeError, ValueError) as error:  # a default that records cannot hold, inf say
        raise LeakbenchError(f"{where}: parameters cannot be written down: {error}") from None
    return values
