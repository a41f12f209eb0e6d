"""A plan as work: every cell with its resume keys, as code and data are now.

A resume key holds all that decides what an attack returns: parameters, data, weights, seeds, code
and the machine's arithmetic. How results are judged is not in it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from leakbench import probe, registry
from leakbench.contracts import Guarantee, LeakFacts, Model, Weights, changes_nothing
from leakbench.data import Dataset, load
from leakbench.data.catalog import look_up
from leakbench.described import PlannedCell, PlannedTraining, priors_of
from leakbench.errors import DataMissing, LeakbenchError, PluginBroken
from leakbench.identity import TRAININGS, source_digest
from leakbench.isolation import HARMFUL, contained, settled
from leakbench.modules import fixed_of
from leakbench.networks import build_defense, first_network, identity_of
from leakbench.plugin_files import one_line
from leakbench.soundness import promises, suits
from leakbench.spec import Cell, Plan, UtilityCell, canonical
from leakbench.trials import build_attack, check_cell, facts_of
from leakbench.utility import check_training, material
from leakbench.weights import digest


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
    memory = _Memory()
    with settled():
        both = [_planned(plan, cell, root, where, memory) for cell in plan.cells]
    return [cell for cell, _ in both], [broken for _, broken in both]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Networks:
    """The networks of a cell: digests of their first weights; all weights of the last one."""

    digests: tuple[str, ...]
    weights: Weights


class _Memory:
    """What many cells of a plan share, so that it is computed once."""

    def __init__(self) -> None:
        self._sources: dict[tuple[str, ...], str] = {}
        self._networks: tuple[str, _Networks] | None = None  # the last: weights may be large

    def source(self, cell: Cell) -> str:
        """Digest of the code behind a cell."""
        names = (cell.model, cell.attack, cell.defense)
        if names not in self._sources:
            plugins = (
                registry.find("models", cell.model),
                registry.find("attacks", cell.attack),
                *(registry.find("attacks", name) for name in _used(cell.attack)),
                *registry.find_all("defenses", cell.defense),
            )
            paths = tuple(plugin.path for plugin in plugins if plugin.path)
            self._sources[names] = source_digest(paths)
        return self._sources[names]

    def networks(self, cell: Cell, dataset: Dataset, count: int) -> _Networks:
        """First weights of a cell."""
        recipe = canonical(
            [dataset.checksum, cell.dataset, cell.model, cell.model_parameters, cell.weights,
             cell.seed, cell.dtype, count]
        )  # fmt: skip
        if self._networks is None or self._networks[0] != recipe:
            digests = []
            for number in range(count):
                model, weights = first_network(cell, dataset, number)
                digests.append(weights_digest(model, weights))
            found = _Networks(digests=tuple(digests), weights=weights)
            self._networks = (recipe, found)
        return self._networks[1]


def weights_digest(model: Model, weights: Weights) -> str:
    """Of all that decides a network's gradients."""
    return digest({**weights, **fixed_of(model)})


def identity_with(spec: Mapping[str, Any], number: int, digest: str) -> str:
    """As `networks.identity_of`, of weights with this digest."""
    whole = {**spec, "network": number, "weights_digest": digest}
    return hashlib.sha256(canonical(whole).encode()).hexdigest()


def _planned(
    plan: Plan, cell: Cell, root: Path | None, platform: Platform, memory: _Memory
) -> tuple[PlannedCell, str]:
    """A cell, and why its plugins are broken."""
    entry = look_up(cell.source)
    available = entry.sample_counts[0]
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
    victims = tuple(
        tuple(range(number * plan.victims, number * plan.victims + images))
        for number in range(plan.networks)
    )
    try:
        dataset = load(cell.source, root)
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
    try:
        with contained(f"defense '{cell.defense}'", HARMFUL):
            check_cell(cell, dataset, plan.networks)
    except PluginBroken:
        pass  # its trials will say so
    except LeakbenchError as error:
        raise LeakbenchError(f"{plan.file}, row '{cell.row}': {error}") from None
    spec = cell.spec() | {
        "data": dataset.checksum,
        "source": memory.source(cell),
        **platform.facts(),
    }
    if platform.unit is not None:  # then who else is in the chunk decides bits
        spec["victims"] = plan.victims
    networks = memory.networks(cell, dataset, plan.networks)
    weights = networks.weights
    identities = [
        identity_with(spec, number, digest) for number, digest in enumerate(networks.digests)
    ]
    # Promises depend on shapes only: they are the same for every network.
    guarantees, broken = _guarantees(cell, weights)
    all_mu = [guarantee.mu for guarantee in guarantees]
    known = [mu for mu in all_mu if mu is not None]
    if len(guarantees) > 1 and any(guarantee.single_look for guarantee in guarantees):
        known = []
    skip, budget, broken_too = _suits(cell, facts_of(cell, dataset, weights))
    found = PlannedCell(
        cell=cell,
        identities=tuple(identities),
        victims=victims,
        skip=skip,
        data=dataset.checksum,
        title=entry.title,
        classes=entry.classes,
        budget=budget,
        gradient_bytes=sum(value.numel() * value.element_size() for value in weights.values()),
        # The victims are among those that later weights were trained on: more than the looks tells.
        ceiling_mu=None if cell.federation or len(known) < len(all_mu) else math.hypot(*known),
        guarantee=_describe(guarantees[0]),
        priors=priors_of(
            victims,
            each,
            len(dataset.candidates),
            dataset.candidate_labels.tolist() if "labels" in cell.grants else (),
        ),
    )
    return found, broken or broken_too


def _used(attack: str) -> tuple[str, ...]:
    """Other attacks that it runs, as far as it says so in earnest: its trials will say the rest."""
    known = {plugin.name for plugin in registry.discover("attacks") if plugin.status == "ok"}
    try:
        named: object = registry.load("attacks", attack).uses  # type: ignore[attr-defined]
    except LeakbenchError:
        return ()
    return tuple(name for name in named if name in known) if isinstance(named, tuple) else ()


def _suits(cell: Cell, facts: LeakFacts) -> tuple[str, int, str]:
    """Why the attack skips such leaks, "" if it does not; its budget; why it is broken."""
    name = f"attack '{cell.attack}'"
    try:
        with contained(name, HARMFUL):
            reason, budget = suits(build_attack(cell), cell.attack, facts)
    except Exception as error:  # noqa: BLE001  a plugin may fail in any way: its trials will say so
        return "", 0, _blamed(name, error)
    return (f"{cell.attack}: {reason}", 0, "") if reason else ("", budget, "")


def _guarantees(cell: Cell, weights: Weights) -> tuple[list[Guarantee], str]:
    """What the defense promises in each look; why it is broken."""
    name = f"defense '{cell.defense}'"
    try:
        with contained(name, HARMFUL):
            return promises(build_defense(cell), cell, weights), ""
    except Exception as error:  # noqa: BLE001  a plugin may fail in any way: then it promises nothing
        broken = _blamed(name, error)
        reason = f"the plugin failed: {broken}"
        return [Guarantee(level="none", reason=reason) for _ in cell.rounds], broken


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
