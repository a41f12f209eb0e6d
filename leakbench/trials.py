"""One chunk of trials from data to records: capture, attack, judge.

A chunk holds victims of all cells that share data, model, weights and attack, whatever their
defense: one batched attack solves them together. A victim is what one gradient was made of: an
image, or a client's batch, whose images are reconstructed together and get a record each. What a
trial yields does not depend on the chunk it is in, nor on how many victims were planned: its
batch, start and noise follow from the victim.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from leakbench import registry
from leakbench.answers import check_answer, loss_of, with_honest_status
from leakbench.chunks import Chunk, ChunkResult, batch_from
from leakbench.contracts import (
    Attack,
    Defense,
    Gradients,
    Leak,
    LeakFacts,
    LeakPoint,
    Model,
    Replay,
    Weights,
    concatenate,
)
from leakbench.data import Dataset, load
from leakbench.errors import LeakbenchError
from leakbench.federated import Point, check, train
from leakbench.information import Bound, Held, bound_under, fingerprint, held_by
from leakbench.isolation import Given, contained, tensors_in, untouched
from leakbench.judging import Onlooker
from leakbench.leaking import Granted, Look, Tap
from leakbench.modules import fixed_of
from leakbench.networks import build_defense, first_network, model_of
from leakbench.optim import PAD
from leakbench.pretraining import accuracy, pretrain
from leakbench.priors import GaussianPrior
from leakbench.sampling import partition
from leakbench.simulation import Simulator
from leakbench.soundness import promises, suits
from leakbench.spec import Cell, canonical
from leakbench.streams import NoiseStreams, VictimStreams, generator, opaque
from leakbench.training import Batch, public_gradients
from leakbench.training_schedule import Schedule
from leakbench.trial_records import AttackedChunk, arrays_of, records_of
from leakbench.victims import Victims


@dataclass(frozen=True, slots=True, kw_only=True)
class Attacked:
    """A network as it is attacked, and the share of the public images that it classifies right."""

    model: Model
    weights: Mapping[str, Tensor]
    accuracy: float


_ATTACKED: dict[tuple[str, str], Attacked] = {}
"""Networks of this process by checksum of the data and recipe, in which the name of the data set
counts too, as it names the streams: pretraining takes seconds to minutes."""


def attacked_network(cell: Cell, dataset: Dataset, number: int) -> Attacked:
    """Network `number` of a cell, pretrained where the cell says so."""
    recipe = (
        cell.dataset, cell.model, cell.model_parameters, cell.weights, cell.pretraining, cell.seed,
        cell.dtype, number,
    )  # fmt: skip
    key = (dataset.checksum, canonical(recipe))
    if key not in _ATTACKED:
        with contained(f"model '{cell.model}'"):
            model, weights = first_network(cell, dataset, number)
            if cell.pretraining is not None:
                weights = pretrain(
                    model, weights,
                    dataset.train.to(getattr(torch, cell.dtype)), dataset.train_labels,
                    generator=generator(cell.seed, "pretraining", cell.dataset, number),
                    **cell.pretraining,
                )  # fmt: skip
            public = dataset.public.to(getattr(torch, cell.dtype))
            share = accuracy(model, weights, public, dataset.public_labels)
        _ATTACKED[key] = Attacked(model=model, weights=weights, accuracy=share)
    return _ATTACKED[key]


def check_cell(cell: Cell, dataset: Dataset, networks: int) -> None:
    """What must hold before any trial of a cell starts, for each of its networks.

    Raises:
        LeakbenchError: a network that cannot be built, or mixes the examples that a leak or a
            defense takes apart; a training before the leak that cannot start (see
            `federated.check`); subsets that do not divide the batch.
    """
    model = model_of(cell, dataset)
    if model.mixes_examples and cell.example_view:
        raise LeakbenchError(
            f"model '{cell.model}': mixes the examples of a batch, so none has a gradient of its "
            'own; allowed for leak.view: "batch"'
        )
    try:
        defense = build_defense(cell)
    except Exception:  # noqa: BLE001  a plugin may fail in any way: its trials will say so
        return
    try:
        size = defense.row_size(cell.batch_size)
    except LeakbenchError:
        raise
    except Exception:  # noqa: BLE001  the same
        return
    if not cell.example_view and size == 1 and model.mixes_examples:
        raise LeakbenchError(
            f"defense '{cell.defense}': works on single examples, which model '{cell.model}' "
            "mixes; use GroupNorm, or a defense of whole batches"
        )
    if cell.federation:
        schedule = Schedule(**cell.federation)
        for number in range(networks):
            axes = (cell.dataset, number)
            shares = partition(dataset.train_labels, schedule, cell.seed, axes)
            check(model, defense, schedule, shares, public=dataset.public)


def looks(
    cell: Cell, dataset: Dataset, attacked: Attacked, defense: Defense, number: int
) -> list[Look]:
    """The cell's looks at its victims: in the first round, or after training with the defense.

    The network is trained on the training examples of the embedded sample or index list, which
    are the same with and without a data root; the victims are among them.
    """
    weights, dtype = dict(attacked.weights), getattr(torch, cell.dtype)
    device = next(iter(weights.values())).device
    public = public_gradients(
        attacked.model,
        dataset.public.to(device=device, dtype=dtype),
        dataset.public_labels.to(device),
    )
    tap = tap_of(cell, dataset, attacked.model)
    points = {0: Point(rounds=0, weights=weights, state=tap.begin(defense, weights))}
    if any(cell.rounds):
        recipe = (
            cell.dataset, cell.model, cell.model_parameters, cell.weights, cell.pretraining,
            cell.federation, cell.iterations, cell.rounds, cell.defense,
            dict(cell.defense_parameters), cell.seed, cell.dtype, number,
            str(next(iter(weights.values())).device),
        )  # fmt: skip
        key = (dataset.checksum, canonical(recipe))
        if key not in _POINTS:
            schedule = Schedule(**{**cell.federation, "rounds": cell.rounds[-1]})
            with contained(f"defense '{cell.defense}'"):
                trained = train(
                    attacked.model, weights, dataset.train.to(device),
                    dataset.train_labels.to(device), defense, schedule, total=cell.iterations,
                    seed=cell.seed, axes=(cell.dataset, number), public=public,
                    noise=NoiseStreams(cell.seed, ("training", cell.dataset, number)),
                    keep=set(cell.rounds),
                )  # fmt: skip
            _POINTS[key] = trained.points
        points = dict(_POINTS[key])
    found = []
    for round in cell.rounds:
        point = points[round]
        found.append(tap.look(defense, point.weights, point.state, round, public))
    return found


_POINTS: dict[tuple[str, str], Mapping[int, Point]] = {}
"""Trained weights of this process by cell and network, as `_ATTACKED`."""


def build_attack(cell: Cell) -> Attack:
    """The cell's attack with all its parameters."""
    return cast(Attack, registry.load("attacks", cell.attack)(**cell.attack_parameters))


def facts_of(cell: Cell, dataset: Dataset, weights: Weights) -> LeakFacts:
    """What is known of a cell's leaks when it is planned."""
    return LeakFacts(
        point=LeakPoint(type=cell.leak_type, view=cell.leak_view, round=cell.rounds[0]),
        batch_size=cell.images_a_gradient,
        local_steps=cell.steps_seen,
        observations=cell.observations,
        input_shape=dataset.input_shape,
        input_range=dataset.input_range,
        classes=dataset.classes,
        parameters={name: tuple(value.shape) for name, value in weights.items()},
        candidates=len(dataset.candidates) if "candidates" in cell.grants else 0,
        public=len(dataset.public) if "public" in cell.grants else 0,
        features=dataset.features,
    )


def tap_of(cell: Cell, dataset: Dataset, model: Model) -> Tap:
    """Where a cell reads gradients."""
    return Tap(
        model=model,
        point=LeakPoint(type=cell.leak_type, view=cell.leak_view),
        batch_size=min(cell.batch_size, len(dataset.candidates)),
        local_steps=cell.steps_seen,
        learning_rate=cell.learning_rate,
        rounds=cell.iterations,
    )


def batch_of(victim: int, batch_size: int, candidates: int) -> tuple[int, int]:
    """(number of the training batch, place in it) of a victim.

    Batches cut the candidate list into consecutive pieces; the last one is moved back to be full.
    """
    batch = victim // batch_size
    return batch, victim - _first(batch, batch_size, candidates)


def _first(batch: int, batch_size: int, candidates: int) -> int:
    return min(batch * batch_size, max(candidates - batch_size, 0))


def run_chunk(chunk: Chunk) -> ChunkResult:
    """Run all trials of a chunk.

    Raises:
        LeakbenchError: the plugin breaks its contract, or data cannot be read. Anything a plugin
        raises comes through as it is.
    """
    first = chunk.cells[0]
    dataset = load(first.source, chunk.root)
    device, dtype = torch.device(chunk.device), getattr(torch, first.dtype)
    attacked = attacked_network(first, dataset, chunk.network)
    attacked = replace(attacked, weights={k: v.to(device) for k, v in attacked.weights.items()})
    numbers = torch.tensor([number for _, number in chunk.images])
    victims = Victims(
        dataset=dataset,
        numbers=numbers,
        images=dataset.candidates[numbers],
        labels=dataset.candidate_labels[numbers],
        each=first.images_a_gradient,
    )
    leak, undefended, straight_through = _leak(chunk, victims, attacked, device, dtype)
    name = f"attack '{first.attack}'"
    with contained(name):
        attack = build_attack(first)
        suits(attack, first.attack, leak.facts)
    streams = VictimStreams(
        0,
        tuple(opaque(first.seed, first.dataset, chunk.network, v) for _, v in chunk.trials),
    )
    batches = (leak.n, leak.batch_size)
    with untouched(name, _given(leak, victims)):
        with contained(name):
            start = attack.start(leak, streams)
        if start is not None:
            start = start.detach().cpu()
        onlooker = Onlooker(victims=victims, snapshot_steps=first.snapshots)
        if start is not None:
            nothing = torch.zeros(leak.n, dtype=torch.int64)
            start = onlooker.look(torch.arange(leak.n), nothing, nothing, start)

        def watch(
            rows: Tensor, steps: Tensor, evaluations: Tensor, inputs: Tensor, losses: Tensor
        ) -> None:
            # The attack gets no handle on the onlooker.
            onlooker.watch(rows, steps, evaluations, inputs, losses)

        with contained(name):
            result = attack.reconstruct(leak, streams, watch)
        for look in leak.observations:
            look.forget()
        check_answer(result, leak, first.attack)
        for member, answer in result.members.items():
            check_answer(answer, leak, f"{first.attack}, {member}")
        result = with_honest_status(result)
        truth = victims.images.to(device=device, dtype=dtype).unflatten(0, batches)
        labels = victims.labels.to(device).unflatten(0, batches)
        with contained(name):
            loss_true = loss_of(attack, leak, truth.clone(), labels.clone())
    images, places = victims.in_place(result.inputs.detach().cpu())
    attacked_chunk = AttackedChunk(
        images=images, places=places, start=start, chunk=chunk, victims=victims, leak=leak,
        undefended=undefended, straight_through=straight_through, result=result,
        loss_true=loss_true, onlooker=onlooker, accuracy=_accuracy(first, attacked, leak, dataset),
        bounds=_bounds(chunk, attacked, leak, truth, victims),
    )  # fmt: skip
    records = records_of(attacked_chunk)
    return ChunkResult(records=records, arrays=arrays_of(attacked_chunk, records))


# ------------------------------------------------------------------------------ the leak


def _leak(
    chunk: Chunk, victims: Victims, attacked: Attacked, device: torch.device, dtype: torch.dtype
) -> tuple[Leak, Gradients, list[bool]]:
    """The leak of all trials in the chunk's order, their gradients without a defense, and of each
    whether a replay has a derivative that is not its own."""
    # Cells differ in their defense only; where training has changed the weights, not even in that.
    first, dataset, model = chunk.cells[0], victims.dataset, attacked.model
    adaptive = first.knowledge == "adaptive"
    tap = tap_of(first, dataset, model)
    scene = _Scene(
        cell=first, dataset=dataset, tap=tap, device=device, dtype=dtype, network=chunk.network
    )
    seen: list[list[Gradients]] = [[] for _ in range(first.observations)]
    replays: list[list[Replay]] = [[] for _ in range(first.observations)]
    order: list[int] = []
    straight_through = [False] * len(chunk.trials)
    replay_of = torch.zeros(len(chunk.trials), dtype=torch.int64, device=device)
    unknown = torch.full((len(chunk.trials),), math.nan, dtype=dtype, device=device)
    noise_std = {name: unknown.clone() for name in attacked.weights}
    rows_of = [
        (cell, [row for row, (of, _) in enumerate(chunk.trials) if of == number])
        for number, cell in enumerate(chunk.cells)
    ]
    for cell, rows in rows_of:
        if not rows:
            continue
        name = f"defense '{cell.defense}'"
        with contained(name):
            defense = build_defense(cell)
            promises(defense, cell, attacked.weights)
            when = looks(cell, dataset, attacked, defense, chunk.network)
        own = [chunk.trials[row][1] for row in rows]
        for number, look in enumerate(when):
            shared: Given = {
                "the weights": [look.weights],
                "its own state": tensors_in(look.state),
                "the data": [dataset.candidates, dataset.public],
            }
            with untouched(name, shared), contained(name):
                seen[number].append(scene.capture(defense, own, look, number))
                if adaptive:
                    replays[number].append(tap.replay(defense, look))
                elif not replays[number]:  # a naive attacker's only one, for all victims
                    replays[number].append(tap.naive_replay(look))
        order.extend(rows)
        if adaptive:
            replay_of[rows] = len(replays[0]) - 1
            for row in rows:
                straight_through[row] = any(each[-1].straight_through for each in replays)
            with contained(name):
                public = tap.noise_std(defense, when[0]) or {}
            for name, values in noise_std.items():
                values[rows] = public.get(name, math.nan)
    back = torch.tensor(order).argsort().to(device)
    observations = [
        tap.observation(look.weights, concatenate(parts).select(back), known, replay_of)
        for look, parts, known in zip(when, seen, replays, strict=True)
    ]
    granted = Granted()
    if "labels" in first.grants:
        labels = victims.labels.to(device, copy=True)
        granted["labels"] = labels.unflatten(0, (len(chunk.trials), -1))
    if "candidates" in first.grants:
        granted["candidates"] = dataset.candidates.to(device=device, dtype=dtype, copy=True)
        granted["candidate_labels"] = dataset.candidate_labels.to(device, copy=True)
    if "public" in first.grants:
        granted["public"] = dataset.public.to(device=device, dtype=dtype, copy=True)
    leak = tap.leak(
        observations,
        round=first.rounds[0],
        input_shape=dataset.input_shape,
        input_range=dataset.input_range,
        classes=dataset.classes,
        noise_std=noise_std if adaptive else None,
        granted=granted,
        features=dataset.features,
    )
    own = [victim for _, victim in chunk.trials]
    undefended = scene.capture(Defense(), own, replace(when[0], state=None), 0)
    return leak, undefended, straight_through


def _given(leak: Leak, victims: Victims) -> Given:
    """What an attack gets, its own copies of what is granted apart, and the data it can load."""
    dataset, looks = victims.dataset, leak.observations
    return {
        "the weights": [look.weights for look in looks],
        "the observed gradients": [look.gradients.tensors for look in looks],
        "the network": [fixed_of(leak.model)],
        "the state of a defense": [
            tensor
            for look in looks
            if isinstance(look.run, Simulator)
            for replay in look.run.replays
            for tensor in tensors_in(replay.state)
        ],
        "the data": [
            dataset.candidates, dataset.candidate_labels, dataset.public, dataset.public_labels,
            victims.images, victims.labels,
        ],
    }  # fmt: skip


def _accuracy(cell: Cell, attacked: Attacked, leak: Leak, dataset: Dataset) -> float:
    """Of the network in the first look."""
    if not cell.rounds[0]:
        return attacked.accuracy
    weights = {name: value.cpu() for name, value in leak.observations[0].weights.items()}
    public = dataset.public.to(getattr(torch, cell.dtype))
    return accuracy(attacked.model, weights, public, dataset.public_labels)


def _bounds(
    chunk: Chunk, attacked: Attacked, leak: Leak, truth: Tensor, victims: Victims
) -> list[Bound | None]:
    """What the leak of each trial holds, where its cell asks; the same for all attackers."""
    dataset = victims.dataset
    labels = victims.labels.to(leak.device).unflatten(0, (leak.n, -1))
    found: list[Bound | None] = [None] * leak.n
    # Victim by victim: defenses that differ in their noise alone leave the same information.
    last: tuple[Tensor, Held | None] | None = None
    for row in sorted(range(leak.n), key=lambda row: chunk.trials[row][1]):
        of, victim = chunk.trials[row]
        cell = chunk.cells[of]
        if not cell.bound:
            continue
        place = (dataset.checksum, chunk.network, victim, str(leak.device))
        key = (*place, canonical(cell.leak_spec()))
        if key not in _BOUNDS:
            defense = build_defense(cell)
            when = looks(cell, dataset, attacked, defense, chunk.network)
            tap = tap_of(cell, dataset, attacked.model)
            replays = [tap.replay(defense, look) for look in when]
            seen = [
                tap.observation(look.weights, given.gradients.select(slice(row, row + 1)), [replay])
                for look, given, replay in zip(when, leak.observations, replays, strict=True)
            ]
            if len(_BOUNDS) >= KEPT:
                _BOUNDS.pop(next(iter(_BOUNDS)))
            if any(replay.straight_through for replay in replays):  # it has no derivative
                _BOUNDS[key] = Bound()
            else:
                mark = fingerprint(seen, truth[row], labels[row])
                if last is None or not torch.equal(last[0], mark):
                    last = (mark, held_by(seen, truth[row], labels[row]))
                stds = [tap.noise_std(defense, look) for look in when]
                held = last[1]
                _BOUNDS[key] = Bound() if held is None else bound_under(held, stds, _prior(dataset))
        found[row] = _BOUNDS[key]
    return found


KEPT = 10_000
"""Bounds that a process remembers."""

_BOUNDS: dict[tuple[str, int, int, str, str], Bound] = {}
"""By data, network, victim, device and what leaks: other attackers meet the same leak."""


def _prior(dataset: Dataset) -> GaussianPrior:
    """Of the public images."""
    if dataset.checksum not in _PRIORS:
        _PRIORS.clear()
        _PRIORS[dataset.checksum] = GaussianPrior.of(dataset.public)
    return _PRIORS[dataset.checksum]


_PRIORS: dict[str, GaussianPrior] = {}
"""The last one of this process, by checksum of the data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scene:
    """Where gradients are captured: everything but the defense, the victims and the look."""

    cell: Cell
    dataset: Dataset
    tap: Tap
    device: torch.device
    dtype: torch.dtype
    network: int

    def _noise(self, look: int) -> NoiseStreams:
        """Later looks have other noise, also where weights and round stay."""
        of_look = ("look", look) if look else ()
        return NoiseStreams(self.cell.seed, (self.cell.dataset, self.network, *of_look))

    def capture(self, defense: Defense, victims: list[int], look: Look, number: int) -> Gradients:
        """Run the real steps behind the victims' gradients and tap them; one row a victim.

        number: of the look among those at the same victims.
        """
        if self.cell.example_view:
            return self._capture_examples(defense, victims, look, number)
        # Every victim is a client with examples of his own.
        members = torch.tensor([batch_from(self.cell, victim) for victim in victims])
        batches = [self._batch(step) for step in members.split(self.tap.batch_size, dim=1)]
        return self._run(defense, batches, victims, look, number)

    def _capture_examples(
        self, defense: Defense, victims: list[int], look: Look, number: int
    ) -> Gradients:
        total, size = len(self.dataset.candidates), self.tap.batch_size
        homes = [batch_of(victim, size, total) for victim in victims]
        batches = sorted({batch for batch, _ in homes})
        members = torch.stack([torch.arange(size) + _first(b, size, total) for b in batches])
        places = [(batches.index(b), place) for b, place in homes]
        where = torch.tensor(places, device=self.device)
        return self._run(defense, [self._batch(members)], batches, look, number, where)

    def _batch(self, members: Tensor) -> Batch:
        return Batch(
            inputs=self.dataset.candidates[members].to(device=self.device, dtype=self.dtype),
            labels=self.dataset.candidate_labels[members].to(self.device),
        )

    def _run(
        self,
        defense: Defense,
        batches: list[Batch],
        clients: list[int],
        look: Look,
        number: int,
        where: Tensor | None = None,
    ) -> Gradients:
        return self.tap.capture(
            defense, look, batches,
            clients=clients, noise=self._noise(number), victims=where, chunk_size=PAD * 32,
        )  # fmt: skip
