"""A plan -> a leak pack: victims that nobody knows, protected as the suite says.

Networks, defenses and what the attacker is granted are the suite's. Victims and noise are not:
they are drawn from a secret seed that is kept nowhere, since who knows the suite's could look up
the one and subtract the other. For the same reason no two leaks share a victim or a draw of noise:
an undefended row would give away the victims of a defended one.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from leakbench.capturing import capture_leak
from leakbench.contracts import Leak, LeakPoint, Setting, Weights
from leakbench.data import Dataset, load
from leakbench.data.readers import file_digest
from leakbench.errors import DataMissing, LeakbenchError
from leakbench.leaderboard import answers, packs, reference
from leakbench.leaderboard.files import save, write_json
from leakbench.leaderboard.layers import layers_of
from leakbench.metrics.rules import make_rule
from leakbench.modules import fixed_of
from leakbench.networks import build_defense
from leakbench.spec import Cell, Grant, Plan, canonical
from leakbench.streams import generator
from leakbench.trials import Attacked, attacked_network, looks
from leakbench.weights import digest

THREAT_MODEL = (
    "Given are networks, weights, gradients, the defense's public description, and what `labels` "
    "and `public` of a leak say. Not given are victims, noise, and lists of candidates that hold "
    "the victims. Looking the victims up in a data set is another game: say so in the submission."
)


def make(
    plan: Plan, folder: Path, kept: Path, root: Path | None = None
) -> tuple[packs.Pack, list[str]]:
    """Write a pack into a new `folder` and its answers to `kept`, a new file outside of it.

    root: the folder of the full data. Returns the pack, and the names of data sets that are not
    there.

    Raises:
        LeakbenchError: nothing to pack; too few candidates for so many victims, who are all
            different ones; a cell that depends on more than can be passed on.
    """
    if kept.resolve().is_relative_to(folder.resolve()):
        raise LeakbenchError(f"{kept}: lies in the pack, which is passed on; allowed: elsewhere")
    if kept.exists():
        raise LeakbenchError(f"{kept}: is there already; allowed: a new file for the answers")
    packing = _Packing(plan=plan, root=root, seed=secrets.randbits(62))
    for cell, grants in _leaks_of(plan):
        packing.add(cell, grants)
    if not packing.leaks:
        missing = "; ".join(packing.missing)
        raise LeakbenchError(f"{plan.file}: nothing to pack{': ' if missing else ''}{missing}")
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(parents=True)
    except OSError as error:
        raise LeakbenchError(f"{folder}: cannot be written: {error.strerror}") from None
    save(folder / packs.NUMBERS, packing.arrays)
    rules = tuple(rule for rule in plan.rules if not rule.paper)
    pack = packs.Pack(
        schema=packs.SCHEMA,
        name=f"{plan.name}, {plan.profile}",
        title=plan.title,
        threat_model=THREAT_MODEL,
        counts=tuple(_counts(plan)),
        networks=tuple(packing.networks.values()),
        leaks=tuple(packing.leaks),
        numbers=file_digest(folder / packs.NUMBERS, "sha256"),
    )
    pack = answers.write(kept, pack, packing.data, rules, packing.truth)
    shutil.copyfile(reference.__file__, folder / packs.NETWORK)
    write_json(folder / packs.DESCRIPTION, packs.to_json(pack))
    return pack, packing.missing


def _leaks_of(plan: Plan) -> list[tuple[Cell, tuple[Grant, ...]]]:
    """Cells that leak something different, with what attackers are granted of it.

    Those who are given a list that holds the victims play another game.
    """
    found: dict[str, tuple[Cell, tuple[Grant, ...]]] = {}
    for cell in plan.cells:
        if "candidates" not in cell.grants:
            found.setdefault(canonical([cell.leak_spec(), cell.grants]), (cell, cell.grants))
    return list(found.values())


def _counts(plan: Plan) -> list[packs.Counts]:
    """The suite's rules; readings of a paper's rule are compared with its numbers only."""
    made = [(rule.label, make_rule(**rule.judged())) for rule in plan.rules if not rule.paper]
    return [
        packs.Counts(
            name=rule.name, label=label, condition=rule.condition, recovers=rule.needs_recovery,
            names=rule.identifies_first,
        )
        for label, rule in made
    ]  # fmt: skip


@dataclass(slots=True, kw_only=True)
class _Packing:
    """A pack while it is made; seed: the secret one."""

    plan: Plan
    root: Path | None
    seed: int
    networks: dict[str, packs.Network] = field(default_factory=dict)
    leaks: list[packs.PackedLeak] = field(default_factory=list)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    truth: dict[str, np.ndarray] = field(default_factory=dict)
    data: dict[str, answers.DataOf] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    used: dict[str, int] = field(default_factory=dict)

    def add(self, cell: Cell, grants: Collection[Grant]) -> None:
        """The leaks of a cell, one a network."""
        try:
            dataset = load(cell.source, self.root)
        except DataMissing as error:
            if str(error) not in self.missing:
                self.missing.append(str(error))
            return
        for number in range(self.plan.networks):
            self._add(cell, dataset, number, grants)

    def _add(self, cell: Cell, dataset: Dataset, number: int, grants: Collection[Grant]) -> None:
        attacked = attacked_network(cell, dataset, number)
        defense = build_defense(cell)
        when = looks(cell, dataset, attacked, defense, number)
        if any(cell.rounds) and any(look.state is not None for look in when):
            raise LeakbenchError(
                f"{cell}: the defense has learned something in the rounds before the leak, which "
                "a pack does not hold; allowed: leaks of the first round, or another defense"
            )
        chosen = self._victims(cell, dataset)
        where = None
        if cell.example_view:  # the victims are the first ones of their batches
            where = torch.tensor([[row, 0] for row in range(len(chosen))])
        name = f"leak{len(self.leaks)}"
        leak = capture_leak(
            attacked.model, dataset.candidates[chosen].to(getattr(torch, cell.dtype)),
            dataset.candidate_labels[chosen],
            weights=[look.weights for look in when], defense=defense, knowledge="adaptive",
            point=LeakPoint(type=cell.leak_type, view=cell.leak_view, round=cell.rounds[0]),
            local_steps=cell.steps_seen, learning_rate=cell.learning_rate, rounds=cell.iterations,
            victims=where, public=dataset.public.to(getattr(torch, cell.dtype)),
            public_labels=dataset.public_labels, input_range=dataset.input_range,
            classes=dataset.classes, seed=self.seed, axes=(name,), features=dataset.features,
        )  # fmt: skip
        truth = chosen[:, :1] if cell.example_view else chosen
        ids = [self._network(cell, dataset, attacked, look.weights) for look in when]
        self._write(name, leak, dataset, truth, grants)
        self.leaks.append(
            packs.PackedLeak(
                id=name, row=f"{cell.dataset}/{cell.row}{'/' if grants else ''}{'+'.join(grants)}",
                label=cell.label, network=number, dataset=cell.dataset,
                input_shape=dataset.input_shape, input_range=dataset.input_range,
                classes=dataset.classes, victims=len(truth), batch_size=truth.shape[1],
                local_steps=cell.steps_seen, learning_rate=leak.learning_rate, type=cell.leak_type,
                view=cell.leak_view, rounds=cell.iterations, labels="labels" in grants,
                public=cell.dataset if "public" in grants else "",
                looks=tuple(
                    packs.LookAt(network=own, gradients=_look(name, place), round=round)
                    for place, (own, round) in enumerate(zip(ids, cell.rounds, strict=True))
                ),
                defense=self._protection(cell, leak),
                features=dataset.features,
            )
        )  # fmt: skip
        own = cell.own
        self.data[name] = answers.DataOf(dataset=cell.dataset, own=own, checksum=dataset.checksum)

    def _victims(self, cell: Cell, dataset: Dataset) -> Tensor:
        """(rows, examples) candidates nobody has met: one row a victim, with who trains with him.

        The victim of the gradient of a single example is the first of his batch.
        """
        each = cell.images_a_gradient
        count = max(self.plan.victims // each, 1)
        size = min(cell.batch_size, len(dataset.candidates)) if cell.example_view else each
        order = torch.randperm(
            len(dataset.candidates), generator=generator(self.seed, "victims", dataset.checksum)
        )
        first = self.used.get(dataset.checksum, 0)
        last = first + count * each
        if last > len(order):
            raise LeakbenchError(
                f"{cell}: no candidate of {cell.dataset} is left, {first} of {len(order)} are "
                "victims already, each in one leak only; allowed: fewer victims, networks or rows"
            )
        self.used[dataset.checksum] = last
        victims = order[first:last].reshape(count, each)
        if not cell.example_view:
            return victims
        others = order.roll(-last)[: size - 1]  # they leak nothing of themselves here
        return torch.cat([victims, others.expand(count, -1)], dim=1)

    def _network(self, cell: Cell, dataset: Dataset, attacked: Attacked, weights: Weights) -> str:
        """Id of a network with these weights, which is packed once."""
        model, fixed = attacked.model, fixed_of(attacked.model)
        key = digest({**weights, **fixed})
        if key in self.networks:
            return self.networks[key].id
        name = f"net{len(self.networks)}"
        for kind, tensors in (("weights", weights), ("buffers", fixed)):
            for each, value in tensors.items():
                self.arrays[f"{kind}/{name}/{each}"] = _array(value)
        self.networks[key] = packs.Network(
            id=name, name=cell.model, parameters=cell.model_parameters, scheme=cell.weights,
            layers=layers_of(model, weights, dataset.input_shape), loss=model.loss,
            head=model.head, dtype=cell.dtype, weights=_parameters(weights),
            buffers=_parameters(fixed), accuracy=round(attacked.accuracy, 6),
        )  # fmt: skip
        return name

    def _write(
        self, name: str, leak: Leak, dataset: Dataset, truth: Tensor, grants: Collection[Grant]
    ) -> None:
        for place, seen in enumerate(leak.observations):
            for each, value in seen.gradients.tensors.items():
                self.arrays[f"gradients/{_look(name, place)}/{each}"] = _array(value)
        labels = dataset.candidate_labels[truth]
        if "labels" in grants:
            self.arrays[f"labels/{name}"] = _array(labels)
        if "public" in grants:
            self.arrays[f"public/{dataset.name}"] = _array(dataset.public)
        self.truth[f"inputs/{name}"] = _array(dataset.candidates[truth])
        self.truth[f"labels/{name}"] = _array(labels)
        self.truth[f"numbers/{name}"] = _array(truth)

    def _protection(self, cell: Cell, leak: Leak) -> packs.Protection:
        """The defense with the noise on what is observed."""
        std: dict[str, float] | None = None
        if leak.noise_std is not None:
            known: Mapping[str, float] = {k: float(v[0]) for k, v in leak.noise_std.items()}
            std = dict(known) if all(np.isfinite(list(known.values()))) else None
        weights = leak.observations[0].weights
        setting = Setting(batch_size=cell.batch_size, local_steps=cell.local_steps)
        promise = build_defense(cell).guarantee(leak.point.observer, weights, setting)
        words = f"none: {promise.reason}"
        if promise.mu is not None:
            words = f"{promise.level}, {promise.relation}, mu {promise.mu:.3g} a look"
        return packs.Protection(
            name=cell.defense, parameters=cell.defense_parameters, noise_std=std, guarantee=words
        )


def _look(name: str, place: int) -> str:
    """Id of the gradients of a look."""
    return f"{name}-look{place}" if place else name


def _array(value: Tensor) -> np.ndarray:
    return np.ascontiguousarray(value.detach().cpu().numpy())


def _parameters(tensors: Mapping[str, Tensor]) -> tuple[packs.Parameter, ...]:
    return tuple(
        packs.Parameter(name=name, shape=tuple(value.shape)) for name, value in tensors.items()
    )
