"""A plan as work: every cell with its resume keys, as code and data are now.

A resume key holds all that decides what an attack returns: parameters, data, weights, seeds, code
and the machine's arithmetic. How results are judged is not in it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch

from leakbench import probe, registry
from leakbench.collecting import uncollected
from leakbench.contracts import Guarantee, Model, Weights, changes_nothing
from leakbench.data import Dataset, load
from leakbench.data.catalog import look_up
from leakbench.data.entries import Source
from leakbench.described import PlannedCell, PlannedTraining, priors_of
from leakbench.errors import DataMissing, LeakbenchError, PluginBroken
from leakbench.foreign import noting_interrupts
from leakbench.identity import TRAININGS, source_digest
from leakbench.isolation import HARMFUL, Found, contained, found_now, settled
from leakbench.modules import fixed_of
from leakbench.networks import build_defense, first_network, identity_of
from leakbench.plugin_files import one_line
from leakbench.soundness import promises, suits
from leakbench.spec import Cell, Plan, UtilityCell, canonical
from leakbench.trials import build_attack, check_cell, facts_of
from leakbench.utility import check_training, material
from leakbench.weights import digest

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """What of a machine decides bits, and so belongs to every identity.

    device: its type, "cpu" or "cuda". arithmetic: as `probe.arithmetic`. torch: its release. unit:
    images a chunk may hold where a chunk as a whole is what is reproducible; None where a victim
    is.
    """

    device: str
    arithmetic: str
    torch: str
    unit: int | None = None

    def facts(self) -> dict[str, Any]:
        """For an identity and for a manifest."""
        return asdict(self)


def platform_of(device: str, unit: int | None = None) -> Platform:
    """This process on `device`."""
    return Platform(
        device=torch.device(device).type,
        arithmetic=probe.arithmetic(),
        torch=torch.__version__.partition("+")[0],
        unit=unit,
    )


def dependent_rows(plan: Plan, root: Path | None, device: str) -> dict[str, float]:
    """Shapes of the plan in which a victim's bits depend on its neighbours; see `probe.summary`."""
    shapes: dict[probe.Shape, None] = {}
    for cell in plan.cells:
        try:
            dataset = load(cell.source, root)
        except DataMissing:
            continue
        shape = probe.Shape(
            model=cell.model,
            parameters=canonical(cell.model_parameters),
            input_shape=dataset.input_shape,
            classes=dataset.classes,
            batch_size=cell.images_a_gradient,
            local_steps=cell.steps_seen,
            dtype=cell.dtype,
            device=torch.device(device).type,
        )
        shapes[shape] = None
    return probe.summary({shape: probe.rows(shape) for shape in shapes})


def plan_cells(plan: Plan, root: Path | None, platform: Platform | str) -> list[PlannedCell]:
    """Every cell of the plan with its identities, as code and data are now.

    platform: where records were or will be made; a device stands for this process on it. Trials of
    a plugin that is broken will say so.

    Raises:
        LeakbenchError: a cell that cannot start; plugins that are broken in every cell.
    """
    cells, broken = cells_and_broken(plan, root, platform)
    if broken and all(broken):
        raise LeakbenchError(broken[0])
    return cells


def cells_and_broken(
    plan: Plan, root: Path | None, platform: Platform | str
) -> tuple[list[PlannedCell], list[str]]:
    """The same, and of each cell why its plugins are broken, "" where they are not."""
    where = platform_of(platform) if isinstance(platform, str) else platform
    with settled(), uncollected(), noting_interrupts():
        memory = _Memory(plan, root)
        both = [_planned(plan, cell, where, memory) for cell in plan.cells]
    return [cell for cell, _ in both], [broken for _, broken in both]


@dataclass(frozen=True, kw_only=True)
class _Networks:
    """The networks of a cell: digests of their first weights; all weights of the last one.

    recipe: all that decides them.
    """

    recipe: str
    digests: tuple[str, ...]
    weights: Weights

    @cached_property
    def gradient_bytes(self) -> int:
        """Of one gradient."""
        return sum(value.numel() * value.element_size() for value in self.weights.values())


class _Memory:
    """What many cells of a plan share, so that it is computed once: ten thousand of them have a
    hundred attacks and as many defenses."""

    def __init__(self, plan: Plan, root: Path | None) -> None:
        self.plan = plan
        self.root = root
        self._made: dict[tuple[Any, ...], Any] = {}
        self._texts: dict[int, tuple[object, str]] = {}
        self._loaded: dict[Source, Dataset] = {}
        self._networks: _Networks | None = None  # the last: weights may be large
        self._found: Found | None = None

    def once(self, key: tuple[Any, ...], make: Callable[[], Value]) -> Value:
        """What `make` gives, made once for every `key`, which holds all that it depends on."""
        if key not in self._made:
            self._made[key] = make()
        found: Value = self._made[key]
        return found

    def text(self, table: Any) -> str:
        """`canonical` of a table of a cell's, made once for all cells that share it."""
        known = self._texts.get(id(table))
        if known is None or known[0] is not table:
            known = self._texts[id(table)] = (table, canonical(table))
        return known[1]

    @contextmanager
    def contained(self, who: str) -> Iterator[None]:
        """Run code of a plugin as `isolation.contained`, whose settings are read again only where
        they may have changed."""
        if self._found is None:
            self._found = found_now(HARMFUL)
        try:
            with contained(who, HARMFUL, self._found):
                yield
        except PluginBroken:
            self._found = None
            raise

    def dataset(self, source: Source) -> Dataset:
        """The data of a cell; `DataMissing` where they are not on the machine."""
        if source not in self._loaded:
            self._loaded[source] = load(source, self.root)
            self._found = None
        return self._loaded[source]

    def source(self, cell: Cell) -> str:
        """Digest of the code behind a cell."""
        key = ("source", cell.model, cell.attack, cell.defense)
        return self.once(key, lambda: _source_of(cell))

    def networks(self, cell: Cell, dataset: Dataset) -> _Networks:
        """First weights of a cell."""
        count = self.plan.networks
        recipe = canonical(
            [dataset.checksum, cell.dataset, cell.model, self.text(cell.model_parameters),
             cell.weights, cell.seed, cell.dtype, count]
        )  # fmt: skip
        if self._networks is None or self._networks.recipe != recipe:
            digests = []
            for number in range(count):
                model, weights = first_network(cell, dataset, number)
                digests.append(weights_digest(model, weights))
            self._networks = _Networks(recipe=recipe, digests=tuple(digests), weights=weights)
            self._found = None  # the network's plugin is not contained
        return self._networks


def _source_of(cell: Cell) -> str:
    plugins = (
        registry.find("models", cell.model),
        registry.find("attacks", cell.attack),
        *(registry.find("attacks", name) for name in _used(cell.attack)),
        *registry.find_all("defenses", cell.defense),
    )
    return source_digest(tuple(plugin.path for plugin in plugins if plugin.path))


def weights_digest(model: Model, weights: Weights) -> str:
    """Of all that decides a network's gradients."""
    return digest({**weights, **fixed_of(model)})


def identity_with(spec: Mapping[str, Any], number: int, digest: str) -> str:
    """As `networks.identity_of`, of weights with this digest."""
    whole = {**spec, "network": number, "weights_digest": digest}
    return hashlib.sha256(canonical(whole).encode()).hexdigest()


def _identities(spec: Mapping[str, Any], digests: Sequence[str]) -> tuple[str, ...]:
    """`identity_with` of each network: what `spec` says is written down once for all of them."""
    first, second = "network", "weights_digest"
    parts: list[dict[str, Any]] = [{}, {}, {}]  # what stands before, between and after these two
    for name, value in spec.items():
        parts[(name > first) + (name > second)][name] = value
    before, between, after = (canonical(part)[1:-1] for part in parts)
    found = []
    for number, weights in enumerate(digests):
        own = f'"{first}":{number}', f'"{second}":"{weights}"'
        text = ",".join(filter(None, (before, own[0], between, own[1], after)))
        found.append(hashlib.sha256(f"{{{text}}}".encode()).hexdigest())
    return tuple(found)


def _planned(
    plan: Plan, cell: Cell, platform: Platform, memory: _Memory
) -> tuple[PlannedCell, str]:
    """A cell, and why its plugins are broken."""
    entry = memory.once(("entry", cell.source), lambda: look_up(cell.source))
    each = cell.images_a_gradient
    victims = memory.once(
        ("victims", cell.source, each), lambda: _victims(plan, cell, entry.sample_counts[0])
    )
    try:
        dataset = memory.dataset(cell.source)
    except DataMissing as error:
        skipped = PlannedCell(
            cell=cell,
            identities=tuple(f"no-data-{j}" for j in range(plan.networks)),
            victims=victims,
            skip=f"no data: {error}",
            ceiling_mu=None,
            guarantee="",
            title=entry.title,
            classes=entry.classes,
        )
        return skipped, ""
    _check(cell, dataset, memory)
    spec = cell.spec() | {
        "data": dataset.checksum,
        "source": memory.source(cell),
        **memory.once(("platform",), platform.facts),
    }
    if platform.unit is not None:  # then who else is in the chunk decides bits
        spec["victims"] = plan.victims
    networks = memory.networks(cell, dataset)
    guarantees, broken = _guarantees(cell, networks, memory)
    all_mu = [guarantee.mu for guarantee in guarantees]
    known = [mu for mu in all_mu if mu is not None]
    if len(guarantees) > 1 and any(guarantee.single_look for guarantee in guarantees):
        known = []
    skip, budget, broken_too = _suits(cell, dataset, networks, memory)
    known_labels = "labels" in cell.grants
    found = PlannedCell(
        cell=cell,
        identities=_identities(spec, networks.digests),
        victims=victims,
        skip=skip,
        data=dataset.checksum,
        title=entry.title,
        classes=entry.classes,
        budget=budget,
        gradient_bytes=networks.gradient_bytes,
        # The victims are among those that later weights were trained on: more than the looks tells.
        ceiling_mu=None if cell.federation or len(known) < len(all_mu) else math.hypot(*known),
        guarantee=_describe(guarantees[0]),
        priors=memory.once(
            ("priors", dataset.checksum, each, known_labels),
            lambda: priors_of(
                victims,
                each,
                len(dataset.candidates),
                dataset.candidate_labels.tolist() if known_labels else (),
            ),
        ),
    )
    return found, broken or broken_too


def _victims(plan: Plan, cell: Cell, available: int) -> tuple[tuple[int, ...], ...]:
    """Candidates that a cell attacks, network by network, in whole batches.

    Raises:
        LeakbenchError: there are not so many, or less than a batch.
    """
    if plan.victims * plan.networks > available:
        raise LeakbenchError(
            f"{plan.file}, profile {plan.profile}: {plan.networks} networks x {plan.victims} "
            f"victims are more than the {available} candidates of {cell.dataset}"
        )
    each = cell.images_a_gradient
    images = plan.victims // each * each
    if not images:
        raise LeakbenchError(
            f"{plan.file}, profile {plan.profile}: {plan.victims} victims are less than one batch "
            f"of {each} images ({cell.row}, {cell.dataset})"
        )
    return tuple(
        tuple(range(number * plan.victims, number * plan.victims + images))
        for number in range(plan.networks)
    )


def _check(cell: Cell, dataset: Dataset, memory: _Memory) -> None:
    """Whether a cell can start, whoever attacks it; see `trials.check_cell`.

    Raises:
        LeakbenchError: it cannot.
    """

    def check() -> None:
        try:
            with memory.contained(f"defense '{cell.defense}'"):
                check_cell(cell, dataset, memory.plan.networks)
        except PluginBroken:
            pass  # its trials will say so
        except LeakbenchError as error:
            raise LeakbenchError(f"{memory.plan.file}, row '{cell.row}': {error}") from None

    memory.once(("check", *_defended(cell, dataset, memory)), check)


def _defended(cell: Cell, dataset: Dataset, memory: _Memory) -> tuple[Any, ...]:
    """All of a cell that a defense, and the training with it, may depend on."""
    tables = (cell.model_parameters, cell.defense_parameters, cell.federation, cell.pretraining)
    return (
        dataset.checksum, cell.dataset, cell.model, cell.weights, cell.defense,
        *map(memory.text, tables), cell.batch_size, cell.iterations, cell.local_steps,
        cell.leak_type, cell.leak_view, cell.rounds, cell.seed, cell.dtype,
    )  # fmt: skip


def _used(attack: str) -> tuple[str, ...]:
    """Other attacks that it runs, as far as it says so in earnest: its trials will say the rest."""
    known = {plugin.name for plugin in registry.discover("attacks") if plugin.status == "ok"}
    try:
        named: object = registry.load("attacks", attack).uses  # type: ignore[attr-defined]
    except LeakbenchError:
        return ()
    return tuple(name for name in named if name in known) if isinstance(named, tuple) else ()


def _suits(
    cell: Cell, dataset: Dataset, networks: _Networks, memory: _Memory
) -> tuple[str, int, str]:
    """Why the attack skips such leaks, "" if it does not; its budget; why it is broken."""
    name = f"attack '{cell.attack}'"

    def asked() -> tuple[str, int, str]:
        facts = facts_of(cell, dataset, networks.weights)
        try:
            with memory.contained(name):
                reason, budget = suits(build_attack(cell), cell.attack, facts)
        except Exception as error:  # noqa: BLE001  a plugin may fail in any way: its trials will say so
            return "", 0, _blamed(name, error)
        return (f"{cell.attack}: {reason}", 0, "") if reason else ("", budget, "")

    key = (
        cell.attack, memory.text(cell.attack_parameters), cell.grants, networks.recipe,
        cell.leak_type, cell.leak_view, cell.rounds, cell.images_a_gradient, cell.steps_seen,
    )  # fmt: skip
    return memory.once(("suits", *key), asked)


def _guarantees(cell: Cell, networks: _Networks, memory: _Memory) -> tuple[list[Guarantee], str]:
    """What the defense promises in each look; why it is broken."""
    name = f"defense '{cell.defense}'"

    def promised() -> tuple[list[Guarantee], str]:
        try:
            with memory.contained(name):
                # They depend on shapes only: they are the same for every network.
                return promises(build_defense(cell), cell, networks.weights), ""
        except Exception as error:  # noqa: BLE001  a plugin may fail in any way: then it promises nothing
            broken = _blamed(name, error)
            reason = f"the plugin failed: {broken}"
            return [Guarantee(level="none", reason=reason) for _ in cell.rounds], broken

    # The recipe has all of a network that is not the cell's own.
    key = (
        networks.recipe, cell.defense, memory.text(cell.defense_parameters), cell.batch_size,
        cell.iterations, cell.local_steps, cell.leak_type, cell.leak_view, cell.rounds,
    )  # fmt: skip
    return memory.once(("promises", *key), promised)


def _blamed(name: str, error: Exception) -> str:
    """An error that names its plugin."""
    text = one_line(error)
    return text if text.startswith(name) else f"{name}: {text}"


def _describe(guarantee: Guarantee) -> str:
    if guarantee.mu is None:
        return f"none: {guarantee.reason}"
    return (
        f"{guarantee.level}, {guarantee.relation}, sensitivity {guarantee.sensitivity:.3g} "
        f"({guarantee.unit}, M={guarantee.tensors}), std {guarantee.noise_std:.3g}"
    )


def plan_trainings(
    plan: Plan, root: Path | None, platform: Platform | str
) -> list[PlannedTraining]:
    """Every utility cell of the plan with its identities, checked before anything starts.

    platform: as for `plan_cells`.

    Raises:
        LeakbenchError: a training that cannot start, see `federated.check`.
    """
    where = platform_of(platform) if isinstance(platform, str) else platform
    return [_planned_training(plan, cell, root, where) for cell in plan.utility]


def _planned_training(
    plan: Plan, cell: UtilityCell, root: Path | None, platform: Platform
) -> PlannedTraining:
    broken = False
    try:
        undefended = _undefended(cell)
    except Exception:  # noqa: BLE001  a plugin may fail in any way: its trainings will say so
        broken, undefended = True, False
    try:
        data = (
            material(cell.source, root)
            if broken
            else check_training(cell, root, plan.utility_networks)
        )
    except DataMissing as error:
        return PlannedTraining(
            cell=cell,
            identities=tuple(f"no-data-{j}" for j in range(plan.utility_networks)),
            skip=f"no data: {error}",
            undefended=undefended,
            title=look_up(cell.source).title,
        )
    except LeakbenchError as error:
        raise LeakbenchError(f"{plan.file}, utility of '{cell.row}': {error}") from None
    plugins = (registry.find("models", cell.model), *registry.find_all("defenses", cell.defense))
    spec = cell.spec() | {
        "data": data.checksum,
        "source": source_digest(tuple(plugin.path for plugin in plugins if plugin.path), TRAININGS),
        **replace(platform, unit=None).facts(),
    }
    inputs = look_up(cell.source)
    identities = [
        identity_of(spec, number, *first_network(cell, inputs, number))
        for number in range(plan.utility_networks)
    ]
    return PlannedTraining(
        cell=cell,
        identities=tuple(identities),
        skip="",
        undefended=undefended,
        title=inputs.title,
    )


def _undefended(cell: UtilityCell) -> bool:
    with contained(f"defense '{cell.defense}'"):
        return changes_nothing(build_defense(cell))
