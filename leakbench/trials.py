"""One chunk of trials from data to records: capture, attack, judge.

A chunk holds victims of all cells that share data, model, weights and attack, whatever their
defense: one batched attack solves them together. What a trial yields does not depend on the chunk
it is in, nor on how many victims were planned: its batch, start and noise follow from the victim.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from leakbench import models, registry
from leakbench.contracts import (
    Attack,
    Context,
    Defense,
    Gradients,
    Leak,
    LeakPoint,
    Observation,
    Reconstruction,
    Replay,
    Weights,
    concatenate,
)
from leakbench.data import Dataset, load
from leakbench.errors import LeakbenchError
from leakbench.judging import Observer, Victims, best_trivial, flags, measure, plain
from leakbench.metrics import SuccessRule, judge
from leakbench.models import SigmoidNet
from leakbench.optim import PAD, with_copies
from leakbench.records import SCHEMA, Record
from leakbench.streams import NoiseStreams, VictimStreams, generator, opaque
from leakbench.suite import Cell
from leakbench.training import Batch, capture, simulator

POINT = LeakPoint(type=2, view="example", round=0, iteration=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Trials to run together: `trials` are (number of the cell in `cells`, candidate number)."""

    cells: tuple[Cell, ...]
    identities: tuple[str, ...]
    network: int
    trials: tuple[tuple[int, int], ...]
    root: Path | None
    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkResult:
    """One record a trial, in the chunk's order, and the arrays they mention."""

    records: tuple[Record, ...]
    arrays: Mapping[str, Mapping[str, np.ndarray]]


def network(cell: Cell, dataset: Dataset, number: int) -> tuple[SigmoidNet, dict[str, Tensor]]:
    """Model and weights number `number` of a cell; the same for every defense and attack."""
    scheme = cast(models.Scheme, cell.weights)
    model = models.build(cell.model, dataset.input_shape, dataset.classes, scheme)
    stream = generator(cell.seed, "weights", cell.model, cell.weights, cell.dataset, number)
    return model, model.init(stream, getattr(torch, cell.dtype))


def build_defense(cell: Cell) -> Defense:
    """The cell's defense with all its parameters."""
    kind = registry.load("defenses", cell.defense)
    return cast(Defense, kind(**cell.defense_parameters))


def build_attack(cell: Cell) -> Attack:
    """The cell's attack with all its parameters."""
    return cast(Attack, registry.load("attacks", cell.attack)(**cell.attack_parameters))


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
    dataset = load(first.dataset, chunk.root)
    model, weights = network(first, dataset, chunk.network)
    device, dtype = torch.device(chunk.device), getattr(torch, first.dtype)
    weights = {k: v.to(device) for k, v in weights.items()}
    numbers = torch.tensor([victim for _, victim in chunk.trials])
    victims = Victims(
        dataset=dataset,
        numbers=numbers,
        images=dataset.candidates[numbers],
        labels=dataset.candidate_labels[numbers],
    )
    leak, undefended = _leak(chunk, dataset, model, weights, device, dtype)
    attack = build_attack(first)
    streams = VictimStreams(
        0,
        tuple(opaque(first.seed, first.dataset, chunk.network, v) for _, v in chunk.trials),
    )
    seen = _Seen(leak, dataset)
    start = attack.start(leak, streams)
    baselines = victims.baselines(None if start is None else start[:, 0].cpu())
    rules = [SuccessRule(**rule) for rule in first.rules]
    observer = Observer(
        victims=victims,
        rules=rules,
        best_baseline=best_trivial(baselines),
        snapshot_steps=first.snapshots,
    )
    if start is not None:
        zeros = torch.zeros(len(numbers), dtype=torch.int64)
        observer.look(torch.arange(len(numbers)), zeros, start[:, 0].cpu())

    def watch(rows: Tensor, steps: Tensor, inputs: Tensor, losses: Tensor) -> None:
        observer.watch(rows, steps, inputs, losses)  # the attack gets no handle on the observer

    result = attack.reconstruct(leak, streams, watch)
    seen.require_untouched(attack.name)
    _check(result, leak, attack.name)
    result = _with_honest_status(result)
    truth = victims.images.to(device=device, dtype=dtype)[:, None]
    loss_true = _loss(attack, leak, truth, victims.labels.to(device)[:, None])
    records = _records(
        chunk, victims, leak, undefended, result, loss_true, baselines, rules, observer
    )
    return ChunkResult(records=records, arrays=_arrays(chunk, records, result, observer))


# ------------------------------------------------------------------------------ the leak


def _leak(
    chunk: Chunk,
    dataset: Dataset,
    model: SigmoidNet,
    weights: Weights,
    device: torch.device,
    dtype: torch.dtype,
) -> tuple[Leak, Gradients]:
    """The leak of all trials in the chunk's order, and their gradients without a defense."""
    first = chunk.cells[0]  # a chunk's cells differ in their defense only
    adaptive = first.knowledge == "adaptive"
    size = min(first.batch_size, len(dataset.candidates))
    context = Context(total=first.iterations, batch_size=size)
    source = NoiseStreams(first.seed, (first.dataset, chunk.network))

    def captured(defense: Defense, victims: list[int]) -> Gradients:
        return _captured(
            first, dataset, model, weights, defense, context, source, victims, device, dtype
        )

    seen: list[Gradients] = []
    order: list[int] = []
    # A naive attacker's only replay does nothing, for all victims.
    replays = [] if adaptive else [Replay(defense=Defense(), context=context)]
    replay_of = torch.zeros(len(chunk.trials), dtype=torch.int64, device=device)
    unknown = torch.full((len(chunk.trials),), math.nan, dtype=dtype, device=device)
    noise_std = {name: unknown.clone() for name in weights}
    for number, cell in enumerate(chunk.cells):
        rows = [row for row, (of, _) in enumerate(chunk.trials) if of == number]
        if not rows:
            continue
        defense = build_defense(cell)
        seen.append(captured(defense, [chunk.trials[row][1] for row in rows]))
        order.extend(rows)
        if adaptive:
            replay_of[rows] = len(replays)
            state = defense.init(_copies(weights))
            replays.append(Replay(defense=defense, state=state, context=context))
            public = defense.noise_std(_copies(weights)) or {}
            for name, values in noise_std.items():
                values[rows] = public.get(name, math.nan)
    back = torch.tensor(order).argsort().to(device)
    observation = Observation(weights=weights, gradients=concatenate(seen).select(back))
    leak = Leak(
        model=model,
        observations=(observation,),
        simulate=simulator(model, (observation,), replays, replay_of, POINT),
        point=POINT,
        batch_size=1,
        input_shape=dataset.input_shape,
        input_range=dataset.input_range,
        classes=dataset.classes,
        noise_std=noise_std if adaptive else None,
    )
    return leak, captured(Defense(), [victim for _, victim in chunk.trials])


def _copies(weights: Weights) -> dict[str, Tensor]:
    """Weights for a plugin to look at: what it does to them reaches nobody else."""
    return {name: value.clone() for name, value in weights.items()}


def _captured(
    cell: Cell,
    dataset: Dataset,
    model: SigmoidNet,
    weights: Weights,
    defense: Defense,
    context: Context,
    source: NoiseStreams,
    victims: list[int],
    device: torch.device,
    dtype: torch.dtype,
) -> Gradients:
    """Run the first iteration of the batches that hold `victims` and tap their gradients."""
    total = len(dataset.candidates)
    size = context.batch_size
    homes = [batch_of(victim, size, total) for victim in victims]
    batches = sorted({batch for batch, _ in homes})
    members = torch.stack([torch.arange(size) + _first(b, size, total) for b in batches])
    batch = Batch(
        inputs=dataset.candidates[members].to(device=device, dtype=dtype),
        labels=dataset.candidate_labels[members].to(device),
    )
    where = torch.tensor([(batches.index(b), place) for b, place in homes], device=device)
    context = replace(context, clients=tuple(batches), noise=source)
    return capture(
        model, weights, [batch], defense, context, POINT, where,
        state=defense.init(_copies(weights)), learning_rate=cell.learning_rate, chunk_size=PAD * 32,
    )  # fmt: skip


# ------------------------------------------------------------------------------ judging


class _Seen:
    """Copies of what an attack must not change, since others are judged by it."""

    def __init__(self, leak: Leak, dataset: Dataset) -> None:
        observation = leak.observations[0]
        self.shared = {
            "the weights": list(observation.weights.values()),
            "the observed gradients": list(observation.gradients.tensors.values()),
            "the data": [dataset.candidates, dataset.public],
        }
        self.before = {what: [t.clone() for t in found] for what, found in self.shared.items()}

    def require_untouched(self, name: str) -> None:
        """Put back what was changed, and blame the attack."""
        for what, found in self.shared.items():
            pairs = list(zip(found, self.before[what], strict=True))
            if not all(_same_bits(now, before) for now, before in pairs):
                for now, before in pairs:
                    now.copy_(before)
                raise LeakbenchError(f"attack '{name}': changes {what} it is given")


def _same_bits(one: Tensor, two: Tensor) -> bool:
    return bool(((one == two) | (one.isnan() & two.isnan())).all())


def _check(result: Reconstruction, leak: Leak, name: str) -> None:
    """The attack's side of the contract, in shapes, types and ranges."""
    if not isinstance(result, Reconstruction):
        raise LeakbenchError(
            f"attack '{name}': returned {type(result).__name__}, no Reconstruction"
        )
    n, images = leak.n, (leak.n, leak.batch_size, *leak.input_shape)
    shapes = {
        "inputs": images, "start_inputs": images, "labels": images[:2],
        "loss": (n,), "start_loss": (n,), "steps": (n,), "evaluations": (n,),
    }  # fmt: skip
    for field, wanted in shapes.items():
        value = getattr(result, field)
        if not isinstance(value, Tensor) or tuple(value.shape) != wanted:
            found = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            text = f"returned {field} of shape {found}, the contract asks for {wanted}"
            raise LeakbenchError(f"attack '{name}': {text}")
        whole = field in ("labels", "steps", "evaluations")
        if whole == value.is_floating_point():
            kind = "whole numbers" if whole else "floating point"
            raise LeakbenchError(f"attack '{name}': {field} are {value.dtype}, not {kind}")
        top = leak.classes - 1 if field == "labels" else math.inf
        if whole and not bool(((value >= 0) & (value <= top)).all()):
            raise LeakbenchError(f"attack '{name}': {field} must be from 0 to {top}")
    if len(result.status) != n:
        raise LeakbenchError(f"attack '{name}': {len(result.status)} statuses for {n} victims")
    for status in result.status:
        if status not in ("converged", "steps", "nan"):
            text = f"status {status!r}; allowed: converged, steps, nan"
            raise LeakbenchError(f"attack '{name}': {text}")


def _with_honest_status(result: Reconstruction) -> Reconstruction:
    """A reconstruction that is not finite ended in nan, whatever the attack says."""
    finite = torch.isfinite(result.inputs).flatten(1).all(dim=1).tolist()
    status = tuple(s if ok else "nan" for s, ok in zip(result.status, finite, strict=True))
    return replace(result, status=status)


def _loss(attack: Attack, leak: Leak, inputs: Tensor, labels: Tensor) -> Tensor:
    """The attack's loss of all victims, padded like every batched call."""
    rows = with_copies(torch.arange(leak.n, device=leak.device))
    with torch.no_grad():
        return attack.loss(leak, inputs[rows], labels[rows], rows)[: leak.n]


def _records(
    chunk: Chunk,
    victims: Victims,
    leak: Leak,
    undefended: Gradients,
    result: Reconstruction,
    loss_true: Tensor,
    baselines: Mapping[str, Tensor],
    rules: list[SuccessRule],
    observer: Observer,
) -> tuple[Record, ...]:
    images = result.inputs[:, 0].detach().cpu()
    numbers = {name: value.tolist() for name, value in measure(images, victims).items()}
    observed, clean = leak.observed.flatten().cpu(), undefended.flatten().cpu()
    finite = torch.isfinite(observed).all(dim=1).tolist()
    zero = (observed == 0).all(dim=1).tolist()
    no_op = (observed == clean).all(dim=1).tolist()
    strict = next((rule for rule in rules if rule.kind == "strict"), None)
    best = observer.best_baseline.tolist()
    records = []
    for row, (of, victim) in enumerate(chunk.trials):
        cell = chunk.cells[of]
        judged = {name: values[row] for name, values in numbers.items()}
        loss, start_loss = float(result.loss[row]), float(result.start_loss[row])
        true = float(loss_true[row])
        recovered = strict is not None and judge(
            strict,
            best_baseline_mse=best[row],
            **{k: judged[k] for k in
               ("mse_raw", "mse_clamped", "distance_raw", "distance_clamped", "rank")},
        )  # fmt: skip
        ended = result.status[row]
        status = "nan" if ended == "nan" else "diverged" if loss > start_loss else "ok"
        records.append(
            _base(chunk, cell, of, victim, victims.dataset)
            | {k: plain(v) if k != "rank" else v for k, v in judged.items()}
            | {
                "status": status,
                "reason": "",
                "ended": ended,
                "steps": int(result.steps[row]),
                "evaluations": int(result.evaluations[row]),
                "loss": plain(loss),
                "loss_start": plain(start_loss),
                "loss_true": plain(true),
                "label": int(victims.labels[row]),
                "label_guess": int(result.labels[row, 0]),
                "baselines": {k: plain(float(v[row])) for k, v in sorted(baselines.items())},
                "first_step": {k: v[row] for k, v in observer.first_step.items()},
                "flags": flags(
                    loss=loss,
                    loss_start=start_loss,
                    loss_true=true,
                    recovered=recovered,
                    label=int(victims.labels[row]),
                    label_guess=int(result.labels[row, 0]),
                    label_known=leak.labels is not None,
                    no_op=no_op[row],
                    gradient_finite=finite[row],
                    gradient_zero=zero[row],
                ),
            }
        )
    return tuple(records)


def _base(chunk: Chunk, cell: Cell, of: int, victim: int, dataset: Dataset) -> Record:
    """Who a record is about."""
    return {
        "schema": SCHEMA,
        "identity": chunk.identities[of],
        "dataset": cell.dataset,
        "defense_id": cell.defense_id,
        "attack": cell.attack,
        "knowledge": cell.knowledge,
        "network": chunk.network,
        "victim": victim,
        "source_index": int(dataset.candidate_indices[victim]),
    }


def failed(chunk: Chunk, status: str, reason: str) -> ChunkResult:
    """Records for a chunk that came to nothing: status "oom", "timeout" or "error"."""
    dataset = load(chunk.cells[0].dataset, chunk.root)
    measured: dict[str, Any] = dict.fromkeys(
        ("steps", "evaluations", "loss", "loss_start", "loss_true", "label_guess", "mse_raw",
         "mse_clamped", "distance_raw", "distance_clamped", "psnr", "ssim", "rank", "arrays")
    )  # fmt: skip
    records = tuple(
        _base(chunk, chunk.cells[of], of, victim, dataset)
        | measured
        | {
            "status": status,
            "reason": reason,
            "ended": "",
            "label": int(dataset.candidate_labels[victim]),
            "baselines": {},
            "first_step": {},
            "flags": [],
        }
        for of, victim in chunk.trials
    )
    return ChunkResult(records=records, arrays={})


def _arrays(
    chunk: Chunk, records: tuple[Record, ...], result: Reconstruction, observer: Observer
) -> dict[str, dict[str, np.ndarray]]:
    """One file a cell and set of victims; every record is told its file and row."""
    files: dict[str, dict[str, np.ndarray]] = {}
    for number, identity in enumerate(chunk.identities):
        rows = [row for row, (of, _) in enumerate(chunk.trials) if of == number]
        if not rows:
            continue
        victims = [chunk.trials[row][1] for row in rows]
        which = hashlib.sha256(repr(victims).encode()).hexdigest()[:12]
        name = f"{identity[:20]}-{which}.npz"
        length = max((len(observer.traces[row]) for row in rows), default=0)
        trace = np.full((len(rows), length), np.nan, dtype=np.float64)
        for place, row in enumerate(rows):
            trace[place, : len(observer.traces[row])] = observer.traces[row]
            records[row]["arrays"] = {"file": name, "row": place}
        snapshots = [observer.snapshots[step][rows].numpy() for step in observer.snapshot_steps]
        shape = observer.victims.images[rows].shape
        files[name] = {
            "victims": np.array(victims),
            "inputs": result.inputs[rows].detach().cpu().numpy(),
            "start": result.start_inputs[rows].detach().cpu().numpy(),
            "snapshot_steps": np.array(observer.snapshot_steps, dtype=np.int64),
            "snapshots": np.array(snapshots, dtype=np.float32).reshape(
                len(snapshots), shape[0], 1, *shape[1:]
            ),
            "trace": trace,
        }
    return files
