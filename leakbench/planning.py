"""A plan as work: every cell with its resume keys, as code and data are now.

A resume key holds all that decides what an attack returns: parameters, data, weights, seeds, code
and the machine's arithmetic. How results are judged is not in it.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch

from leakbench import probe, registry
from leakbench.contracts import Attack, Guarantee, LeakFacts, Setting, Weights, changes_nothing
from leakbench.data import load
from leakbench.data.catalog import look_up
from leakbench.described import PlannedCell, PlannedTraining, priors_of
from leakbench.errors import DataMissing, LeakbenchError
from leakbench.identity import TRAININGS, source_digest
from leakbench.networks import build_defense, first_network, identity_of
from leakbench.plugin_files import one_line
from leakbench.spec import Cell, Plan, UtilityCell, canonical, observer_of
from leakbench.trials import build_attack, check_cell, facts_of
from leakbench.utility import check_training


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

    platform: where records were or will be made; a device stands for this process on it.
    """
    where = platform_of(platform) if isinstance(platform, str) else platform
    return [_planned(plan, cell, root, where) for cell in plan.cells]


def _planned(plan: Plan, cell: Cell, root: Path | None, platform: Platform) -> PlannedCell:
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
        return PlannedCell(
            cell=cell,
            identities=tuple(f"no-data-{j}" for j in range(plan.networks)),
            victims=victims,
            skip=f"no data: {error}",
            ceiling_mu=None,
            guarantee="",
            title=entry.title,
            classes=entry.classes,
        )
    try:
        check_cell(cell, dataset, plan.networks)
    except LeakbenchError as error:
        raise LeakbenchError(f"{plan.file}, row '{cell.row}': {error}") from None
    plugins = (
        registry.find("models", cell.model),
        registry.find("attacks", cell.attack),
        *(registry.find("attacks", name) for name in _used(cell.attack)),
        *registry.find_all("defenses", cell.defense),
    )
    spec = cell.spec() | {
        "data": dataset.checksum,
        "source": source_digest(tuple(plugin.path for plugin in plugins if plugin.path)),
        **platform.facts(),
    }
    if platform.unit is not None:  # then who else is in the chunk decides bits
        spec["victims"] = plan.victims
    identities = []
    for number in range(plan.networks):
        model, weights = first_network(cell, dataset, number)
        identities.append(identity_of(spec, number, model, weights))
    # Promises depend on shapes only: they are the same for every network.
    guarantees = [_guarantee(cell, weights, round) for round in cell.rounds]
    all_mu = [guarantee.mu for guarantee in guarantees]
    known = [mu for mu in all_mu if mu is not None]
    if len(guarantees) > 1 and any(guarantee.single_look for guarantee in guarantees):
        known = []
    skip, budget = _suits(cell, facts_of(cell, dataset, weights))
    return PlannedCell(
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


def _used(attack: str) -> tuple[str, ...]:
    """Other attacks that it runs; () where it cannot be loaded, as its trials will say."""
    try:
        return cast(type[Attack], registry.load("attacks", attack)).uses
    except LeakbenchError:
        return ()


def _suits(cell: Cell, facts: LeakFacts) -> tuple[str, int]:
    """Why the attack skips such leaks, "" if it does not, and its budget."""
    try:
        attack = build_attack(cell)
        reason, budget = attack.skip(facts), attack.budget(facts)
    except Exception:  # noqa: BLE001  a plugin may fail in any way: its trials will say so
        return "", 0
    for method, found, kind in (("skip", reason, str), ("budget", budget, int)):
        if type(found) is not kind:
            words = {str: "a text", int: "a whole number"}[kind]
            text = f"attack '{cell.attack}': {method}() must give {words}, got {found!r:.60}"
            raise LeakbenchError(text)
    return (f"{cell.attack}: {reason}", 0) if reason else ("", budget)


def _guarantee(cell: Cell, weights: Weights, round: int) -> Guarantee:
    try:
        setting = Setting(
            batch_size=cell.batch_size,
            local_steps=cell.steps_seen,
            examples=cell.batch_size * cell.steps_seen,  # all that one gradient is made of
            rounds=cell.iterations,
            round=round,
        )
        observer = observer_of(cell.leak_type, cell.leak_view)
        return build_defense(cell).guarantee(observer, weights, setting)
    except Exception as error:  # noqa: BLE001  a plugin may fail in any way: then it promises nothing
        return Guarantee(level="none", reason=f"the plugin failed: {one_line(error)}")


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
    try:
        data = check_training(cell, root, plan.utility_networks)
    except DataMissing as error:
        return PlannedTraining(
            cell=cell,
            identities=tuple(f"no-data-{j}" for j in range(plan.utility_networks)),
            skip=f"no data: {error}",
            undefended=changes_nothing(build_defense(cell)),
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
        undefended=changes_nothing(build_defense(cell)),
        title=inputs.title,
    )
