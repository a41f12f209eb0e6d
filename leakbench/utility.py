"""Trainings with a defense inside: one record a network with accuracy, epsilon and curve."""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leakbench.contracts import Defense, Guarantee, Model, Setting, Weights
from leakbench.data import load
from leakbench.data.catalog import data_root, look_up
from leakbench.data.datasets import as_unit, load_full
from leakbench.data.entries import Source
from leakbench.errors import DataMissing, LeakbenchError
from leakbench.federated import Trained, check, setting_of, train
from leakbench.modules import settled
from leakbench.networks import build_defense, first_network, model_of
from leakbench.preparation import Normaliser, normaliser_of
from leakbench.pretraining import accuracy, pretrain
from leakbench.privacy import account
from leakbench.privacy.events import PrivacyEvent, Relation
from leakbench.privacy.inverse import first_steps, steps_within
from leakbench.record_types import SCHEMA
from leakbench.records import Record
from leakbench.sampling import partition
from leakbench.spec import UtilityCell
from leakbench.streams import NoiseStreams, generator
from leakbench.training import public_gradients
from leakbench.training_schedule import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A training to run: the work unit of a utility cell."""

    cell: UtilityCell
    identity: str
    network: int
    root: Path | None
    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """What a network is trained and judged on; inputs are uint8 images or floats.

    public: what defenses and pretraining may look at, none of it in `train` or `test`.
    """

    source: str
    checksum: str
    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor
    public: Tensor
    public_labels: Tensor


def material(dataset: Source, root: Path | None) -> Material:
    """The whole data set where `root` has it, else the embedded sample.

    Half of the sample's public part is public here; the other half tests where there is only the
    sample.

    Raises:
        DataMissing: a data set without a sample, and no root that has it.
    """
    return _material(dataset, root if root is not None else data_root())


# Every defense of a suite asks for it, and finding the public examples reads all the others.
@functools.lru_cache(maxsize=4)
def _material(dataset: Source, root: Path | None) -> Material:
    sample = load(dataset, root)
    half = len(sample.public) // 2
    public, public_labels = sample.public[:half], sample.public_labels[:half]
    try:
        full = load_full(dataset, root)
    except DataMissing:
        return Material(
            source="sample", checksum=sample.checksum,
            train=sample.train, train_labels=sample.train_labels,
            test=sample.public[half:], test_labels=sample.public_labels[half:],
            public=public, public_labels=public_labels,
        )  # fmt: skip
    kept, tested = (torch.from_numpy(~_found_in(part, public)) for part in (full.train, full.test))
    return Material(
        source="full", checksum=f"{full.checksum}{sample.checksum}",
        train=full.train[kept], train_labels=full.train_labels[kept],
        test=full.test[tested], test_labels=full.test_labels[tested],
        public=public, public_labels=public_labels,
    )  # fmt: skip


def _found_in(examples: Tensor, public: Tensor) -> NDArray[np.bool_]:
    """Which are among the public ones: those were taken from the training or the test part."""
    if examples.dtype == torch.uint8:
        public = (public * 255).round().to(torch.uint8)
    known = {row.tobytes() for row in public.numpy()}
    return np.array([row.tobytes() in known for row in examples.numpy()])


def run_training(task: Training) -> Record:
    """Train one network and say how well it does and what it cost.

    Raises:
        LeakbenchError: what `federated.train` refuses. A plugin's own errors come through.
    """
    cell = task.cell
    data = material(cell.source, task.root)
    kept, held = _held_out(cell, len(data.train), task.network)
    rates = cell.learning_rates or (cell.schedule["learning_rate"],)
    planned = Schedule(**cell.schedule)
    # The rate is no part of it, and with clients who share examples it takes time to make.
    setting = setting_of(planned, partition(data.train_labels[kept], planned, *_streams(task)))
    attempts = [_attempt(task, data, kept, held, setting, rate) for rate in rates]
    # The first of equals: nothing but the held-out examples decides among networks that are whole.
    chosen = max(attempts, key=lambda each: (each.finite, each.held_out_accuracy))
    done, finite = chosen.done, chosen.finite
    each = done.seconds_per_iteration
    return _base(task) | {
        "status": "ok" if finite else "nan",
        "reason": "" if finite else "the weights left the finite numbers",
        "data": data.source,
        "examples": len(kept),
        "rounds": done.rounds,
        "iterations": done.iterations,
        "accuracy": _rounded(done.curve[-1][1]),
        "curve": [[rounds, _rounded(share)] for rounds, share in done.curve],
        "privacy": chosen.privacy,
        "learning_rate": chosen.learning_rate,
        "sweep": [
            [tried.learning_rate, tried.held_out_accuracy, _rounded(tried.done.curve[-1][1])]
            for tried in (attempts if cell.learning_rates else ())
        ],
        "stopped": chosen.stopped,
        "log": [one.as_dict() for one in done.log],
        "seconds_per_iteration": each,
        "seconds_per_client": None if each is None else each / cell.schedule["clients_a_round"],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A network trained at one learning rate."""

    learning_rate: float
    done: Trained
    held_out_accuracy: float
    stopped: Literal["", "accuracy", "epsilon"]
    privacy: dict[str, Any]

    @property
    def finite(self) -> bool:
        """Whether its weights are numbers."""
        return all(bool(torch.isfinite(value).all()) for value in self.done.weights.values())


def _attempt(
    task: Training, data: Material, kept: Tensor, held: Tensor, setting: Setting, rate: float
) -> Attempt:
    """Train one network at one learning rate; the end of its policy keeps its ratio to it."""
    cell = task.cell
    base = Schedule(**cell.schedule)
    planned = replace(
        base,
        learning_rate=rate,
        learning_rate_end=base.learning_rate_end * rate / base.learning_rate,
    )
    device, dtype = torch.device(task.device), getattr(torch, cell.dtype)
    normaliser = normaliser_of(as_unit(data.public).to(dtype)) if planned.normalise else None
    model, weights = _network(cell, data, task.network, device, normaliser)
    defense = build_defense(cell)

    def ready(inputs: Tensor) -> Tensor:
        unit = as_unit(inputs).to(device=device, dtype=dtype)
        return unit if normaliser is None else normaliser(unit)

    public = ready(data.public)

    def right(reached: Weights, inputs: Tensor, labels: Tensor) -> float:
        used = settled(model, reached, public, planned.batch_size)
        return accuracy(used, reached, inputs, labels)

    test, test_labels = ready(data.test), data.test_labels.to(device)
    train_labels = data.train_labels[kept]
    rounds = planned.rounds
    if cell.stop_epsilon is not None:
        rounds = rounds_within(cell.stop_epsilon, defense, weights, setting, cell.delta)
    done = train(
        model, weights, data.train[kept].to(device), train_labels.to(device), defense,
        replace(planned, rounds=rounds), total=planned.rounds, setting=setting,
        seed=cell.seed, axes=_streams(task)[1],
        noise=NoiseStreams(cell.seed, ("training", cell.dataset, task.network)),
        public=public_gradients(model, public, data.public_labels.to(device)),
        evaluate=lambda reached: right(reached, test, test_labels),
        evaluate_at=(
            {*cell.evaluate_at, rounds}
            if cell.stop_accuracy is None
            else looks(planned.rounds)
        ),
        target=cell.stop_accuracy, log_at=_spread(planned.rounds), normaliser=normaliser,
    )  # fmt: skip
    found = right(done.weights, ready(data.train[held]), data.train_labels[held].to(device))
    return Attempt(
        learning_rate=rate,
        done=done,
        held_out_accuracy=_rounded(found),
        stopped="accuracy" if done.reached else "epsilon" if rounds < planned.rounds else "",
        privacy=privacy_of(defense, weights, setting, cell.delta, done.rounds),
    )


LOOKS = 500
"""Rounds after which a training looks for its target accuracy, at most."""


def looks(rounds: int) -> list[int]:
    """Numbers of rounds done to look after: all of them, or `LOOKS` + 1 spread evenly."""
    count = min(rounds, LOOKS)
    return [round(i * rounds / count) for i in range(count + 1)]


LOGGED = 100
"""Rounds of a training that are logged, at most."""


def _spread(rounds: int) -> set[int]:
    """Numbers of rounds to log, evenly, the first and the last among them."""
    return {1 + round((rounds - 1) * i / max(LOGGED - 1, 1)) for i in range(LOGGED)}


def _streams(task: Training) -> tuple[int, tuple[str | int, ...]]:
    """Seed and axes of partition and sampling."""
    return task.cell.seed, (task.cell.dataset, task.network)


def _held_out(cell: UtilityCell, examples: int, network: int) -> tuple[Tensor, Tensor]:
    """Positions of the training examples to train on, and of those that choose a learning rate."""
    if not cell.learning_rates:
        return torch.arange(examples), torch.arange(0)
    order = torch.randperm(
        examples, generator=generator(cell.seed, "held out", cell.dataset, network)
    )
    held = max(round(cell.held_out * examples), 1)
    return order[held:].sort().values, order[:held]


def _rounded(share: float) -> float:
    return round(share, 6)


def failed_training(task: Training, status: str, reason: str) -> Record:
    """The record of a training that came to nothing."""
    measured: dict[str, Any] = dict.fromkeys(
        (
            "data", "examples", "rounds", "iterations", "accuracy", "privacy", "learning_rate",
            "seconds_per_iteration", "seconds_per_client",
        )
    )  # fmt: skip
    empty: dict[str, Any] = {"curve": [], "sweep": [], "log": [], "stopped": ""}
    return _base(task) | {"status": status, "reason": reason} | empty | measured


def check_training(cell: UtilityCell, root: Path | None, networks: int) -> Material:
    """What must hold before any training of a cell starts, of each of its networks; its data.

    Raises:
        LeakbenchError: see `federated.check`; a budget for a defense that has no epsilon;
            DataMissing: no data.
    """
    data = material(cell.source, root)
    schedule = Schedule(**cell.schedule)
    if schedule.augment and data.train.dim() != 4:
        text = f"augment changes images only, and '{cell.dataset}' has none"
        raise LeakbenchError(f"training: {text}; allowed: []")
    model, defense = model_of(cell, look_up(cell.source)), build_defense(cell)
    for number in range(networks):
        kept, _ = _held_out(cell, len(data.train), number)
        labels = data.train_labels[kept]
        shares = partition(labels, schedule, cell.seed, (cell.dataset, number))
        check(model, defense, schedule, shares, public=data.public)
        if cell.stop_epsilon is not None:
            _, weights = first_network(cell, look_up(cell.source), number)
            _releases(defense, weights, setting_of(schedule, shares))
    return data


def _network(
    cell: UtilityCell,
    data: Material,
    number: int,
    device: torch.device,
    normaliser: Normaliser | None,
) -> tuple[Model, Weights]:
    model, weights = first_network(cell, look_up(cell.source), number)
    if cell.pretraining is not None:  # on what is public: it must cost no privacy
        public = data.public.to(getattr(torch, cell.dtype))
        weights = pretrain(
            model, weights, public if normaliser is None else normaliser(public),
            data.public_labels,
            generator=generator(cell.seed, "pretraining", cell.dataset, number),
            **cell.pretraining,
        )  # fmt: skip
    return model, {name: value.to(device) for name, value in weights.items()}


def _base(task: Training) -> Record:
    cell = task.cell
    return {
        "schema": SCHEMA,
        "kind": "utility",
        "identity": task.identity,
        "dataset": cell.dataset,
        "row": cell.row,
        "network": task.network,
        "victim": 0,
    }


# ------------------------------------------------------------------------------ privacy


def _relation(promise: Guarantee, setting: Setting) -> Relation:
    """A fixed-size sample, and a promise for replacing one, is accounted for replacing one;
    anything else for adding or removing one."""
    replaced = setting.sampling == "fixed_size" or promise.relation == "replace_one"
    return "replace_one" if replaced else "add_remove"


def _releases(defense: Defense, weights: Weights, setting: Setting) -> tuple[PrivacyEvent, ...]:
    """What a budget is spent on; LeakbenchError where a defense states nothing."""
    events = defense.events(weights, setting)
    if not events:
        promise = defense.guarantee("model", weights, setting)
        reason = promise.reason or "the defense states no releases"
        raise LeakbenchError(f"stop_epsilon: defense '{defense.name}' has no epsilon: {reason}")
    return events


def rounds_within(
    budget: float, defense: Defense, weights: Weights, setting: Setting, delta: float
) -> int:
    """Rounds of the planned training that cost its model's holder at most epsilon `budget`.

    Raises:
        LeakbenchError: the defense promises nothing, or not even one round is within the budget.
    """
    promise = defense.guarantee("model", weights, setting)
    events = _releases(defense, weights, setting)
    within = steps_within(budget, events, delta, relation=_relation(promise, setting))
    rounds = within // (sum(event.steps for event in events) // setting.rounds)
    if not rounds:
        raise LeakbenchError(
            f"stop_epsilon: one round of defense '{defense.name}' costs more than {budget:g}; "
            "raise the budget or the noise"
        )
    return rounds


def privacy_of(
    defense: Defense,
    weights: Weights,
    setting: Setting,
    delta: float,
    rounds: int | None = None,
) -> dict[str, Any]:
    """Epsilon of a training for who holds the model after so many rounds, and what it rests on.

    rounds: of the planned ones of the setting; None: all. Releases that cost nothing are not among
    the events.
    """
    promise = defense.guarantee("model", weights, setting)
    events = defense.events(weights, setting)
    if rounds is not None and rounds < setting.rounds:
        steps = sum(event.steps for event in events) // setting.rounds
        events = first_steps(events, rounds * steps)
    relation = _relation(promise, setting)
    spent = account.epsilon(
        events, delta, relation=relation, level=promise.level, assumptions=promise.assumptions
    )
    if not events:
        reason = promise.reason or "the defense states no releases"
        spent = replace(spent, epsilon=None, level="none", reason=reason)
    found = spent.as_dict()
    if found["epsilon"] is not None:
        # numpy's last digits are the processor's; they must not make two records of one result.
        found["epsilon"] = float(f"{found['epsilon']:.12g}")
    return {
        **found,
        "sampling": setting.sampling,
        "flags": _flags(promise, setting) if events else [],
        "events": [
            dataclasses.asdict(event) for event in events if event.noise_multiplier < math.inf
        ],
    }


def _flags(promise: Guarantee, setting: Setting) -> list[str]:
    """Where the training is not what accountants like to assume: a fresh draw in every step, of
    examples that one client has."""
    if promise.level != "instance":
        return []
    flags = [] if setting.draws_anew else ["not_amplified"]
    return [*flags, *(["shared_examples"] if setting.holders_a_round > 1 else [])]
