"""Trainings with a defense inside: one record a network with accuracy, epsilon and curve."""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leakbench.contracts import Defense, Guarantee, Model, Setting, Weights
from leakbench.data import load
from leakbench.data.catalog import data_root, look_up
from leakbench.data.datasets import as_unit, load_full
from leakbench.data.entries import Source
from leakbench.errors import DataMissing
from leakbench.federated import check, train
from leakbench.networks import build_defense, first_network, model_of
from leakbench.pretraining import accuracy, pretrain
from leakbench.privacy import account
from leakbench.privacy.events import Relation
from leakbench.record_types import SCHEMA
from leakbench.records import Record
from leakbench.sampling import partition
from leakbench.spec import Schedule, UtilityCell
from leakbench.streams import NoiseStreams, generator
from leakbench.training import public_gradients


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
    device, dtype = torch.device(task.device), getattr(torch, cell.dtype)
    model, weights = _network(cell, data, task.network, device)
    defense = build_defense(cell)
    test = as_unit(data.test).to(device=device, dtype=dtype)
    test_labels = data.test_labels.to(device)
    done = train(
        model, weights, data.train.to(device), data.train_labels.to(device), defense,
        Schedule(**cell.schedule), seed=cell.seed, axes=(cell.dataset, task.network),
        noise=NoiseStreams(cell.seed, ("training", cell.dataset, task.network)),
        public=public_gradients(
            model, data.public.to(device=device, dtype=dtype), data.public_labels.to(device)
        ),
        evaluate=lambda reached: accuracy(model, reached, test, test_labels),
        evaluate_at=cell.evaluate_at,
    )  # fmt: skip
    finite = all(bool(torch.isfinite(value).all()) for value in done.weights.values())
    return _base(task) | {
        "status": "ok" if finite else "nan",
        "reason": "" if finite else "the weights left the finite numbers",
        "data": data.source,
        "examples": len(data.train),
        "rounds": cell.schedule["rounds"],
        "iterations": done.iterations,
        "accuracy": round(done.curve[-1][1], 6),
        "curve": [[rounds, round(share, 6)] for rounds, share in done.curve],
        "privacy": privacy_of(defense, weights, done.setting, cell.delta),
        "seconds_per_iteration": done.seconds_per_iteration,
    }


def failed_training(task: Training, status: str, reason: str) -> Record:
    """The record of a training that came to nothing."""
    measured: dict[str, Any] = dict.fromkeys(
        ("data", "examples", "rounds", "iterations", "accuracy", "privacy", "seconds_per_iteration")
    )
    return _base(task) | {"status": status, "reason": reason, "curve": []} | measured


def check_training(cell: UtilityCell, root: Path | None, networks: int) -> Material:
    """What must hold before any training of a cell starts, of each of its networks; its data.

    Raises:
        LeakbenchError: see `federated.check`; DataMissing: no data.
    """
    data = material(cell.source, root)
    schedule = Schedule(**cell.schedule)
    model, defense = model_of(cell, look_up(cell.source)), build_defense(cell)
    for number in range(networks):
        shares = partition(data.train_labels, schedule, cell.seed, (cell.dataset, number))
        check(model, defense, schedule, shares, public=data.public)
    return data


def _network(
    cell: UtilityCell, data: Material, number: int, device: torch.device
) -> tuple[Model, Weights]:
    model, weights = first_network(cell, look_up(cell.source), number)
    if cell.pretraining is not None:  # on what is public: it must cost no privacy
        weights = pretrain(
            model, weights, data.public.to(getattr(torch, cell.dtype)), data.public_labels,
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


def privacy_of(
    defense: Defense, weights: Weights, setting: Setting, delta: float
) -> dict[str, Any]:
    """Epsilon of a whole training for who holds the final model, and what it rests on.

    A fixed-size sample, and a promise for replacing one, is accounted for replacing one; anything
    else for adding or removing one. Releases that cost nothing are not among the events.
    """
    promise = defense.guarantee("model", weights, setting)
    events = defense.events(weights, setting)
    replaced = setting.sampling == "fixed_size" or promise.relation == "replace_one"
    relation: Relation = "replace_one" if replaced else "add_remove"
    spent = account.epsilon(
        events, delta, relation=relation, level=promise.level, assumptions=promise.assumptions
    )
    if not events:
        reason = promise.reason or "the defense states no releases"
        spent = dataclasses.replace(spent, epsilon=None, level="none", reason=reason)
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
    """Where the training is not what accountants like to assume: a fresh draw in every step."""
    amplified = promise.level != "instance" or setting.draws_anew
    return [] if amplified else ["not_amplified"]
