"""How long a plan takes, roughly: gradients under attack, and examples to train on."""

from __future__ import annotations

import json
from collections.abc import Container, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from leakbench import architectures
from leakbench.data.catalog import look_up
from leakbench.described import PlannedCell, PlannedTraining
from leakbench.history import (
    NO_HISTORY,
    Estimate,
    History,
    Spent,
    budget_of,
    examples_a_round,
    examples_of,
)
from leakbench.records import Key
from leakbench.spec import Cell, UtilityCell, canonical

GRADIENT_SECONDS = 8e-4
"""One evaluation of a dummy image's gradient and its derivative: 0.3 to 0.6 ms were measured on the
sigmoid networks, one core, in C (docs/decisions/0019-sweeps-in-c.md), two to four times that in
torch."""

EXAMPLE_SECONDS = 5e-4
"""One example of a local step of a training, on one core: 0.2 to 0.85 ms were measured with single
examples clipped and noise (docs/decisions/0007-training-by-hand.md)."""


SMALL = 1e7
"""Operations of one example's forward pass up to which a network costs what is said above: those of
the networks with programs in C. What is beyond adds `SPEED`'s time."""

SPEED = 2e10
"""Operations a second on one core, in the convolutions of a ResNet-18."""

_TRAINED, _MATCHED = 3, 9
"""Passes that a gradient costs, in forward ones, and a gradient's derivative beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What is planned, and its seconds on one core.

    measured: of all trials and trainings, how many are like some that were measured, `rests_on`. Of
    the others every attack uses up its steps, and no training stops early.
    """

    trials: int
    trainings: int
    seconds: float
    measured: int
    rests_on: tuple[Spent, ...]

    def on(self, cores: int) -> float:
        """Seconds where so many cores share it evenly."""
        return self.seconds / max(cores, 1)


def forecast(
    cells: Sequence[PlannedCell],
    trainings: Sequence[PlannedTraining],
    left: Container[Key] | None = None,
    history: History = NO_HISTORY,
) -> Forecast:
    """Of all that is planned and not skipped, or of what is `left` of it: resume keys."""
    trials = networks = measured = 0
    seconds = 0.0
    trained: dict[str, float] = {}  # networks that several cells attack are trained once
    rests_on: dict[int, Spent] = {}

    def known(count: int, estimate: Estimate) -> None:
        nonlocal measured, seconds
        measured += count
        seconds += count * estimate.seconds
        if count:
            rests_on[id(estimate.rests_on)] = estimate.rests_on

    for planned in cells:
        if planned.skip:
            continue
        asked = [
            sum(left is None or (identity, victim) in left for victim in victims)
            for identity, victims in zip(planned.identities, planned.victims, strict=True)
        ]
        count = sum(asked)
        trials += count
        estimate = history.trial(planned)
        if estimate is not None:
            known(count, estimate)
            continue
        seconds += count * trial_seconds(planned)
        if planned.cell.federation:
            each = _example_seconds(planned.cell)
            cost = each * examples_a_round(planned.cell.federation) * planned.cell.rounds[-1]
            for number in (number for number, some in enumerate(asked) if some):
                trained[f"{number} {_trained_for(planned.cell)}"] = cost
    counted: set[Key] = set()  # rows that train the same share their trainings
    for training in trainings:
        if training.skip:
            continue
        own = {key for key in training.trials() if left is None or key in left} - counted
        counted |= own
        count = len(own)
        networks += count
        estimate = history.training(training.cell)
        if estimate is not None:
            known(count, estimate)
        else:
            seconds += count * training_seconds(training.cell)
    return Forecast(
        trials=trials,
        trainings=networks,
        seconds=seconds + sum(trained.values()),
        measured=measured,
        rests_on=tuple(rests_on.values()),
    )


def together(found: Sequence[Forecast]) -> Forecast:
    """Of several plans."""
    return Forecast(
        trials=sum(each.trials for each in found),
        trainings=sum(each.trainings for each in found),
        seconds=sum(each.seconds for each in found),
        measured=sum(each.measured for each in found),
        rests_on=tuple(spent for each in found for spent in each.rests_on),
    )


def trial_seconds(planned: PlannedCell) -> float:
    """Of one image, on one core, if the attack uses up its steps."""
    beyond = _MATCHED * _beyond_small(planned.cell) / SPEED
    return (GRADIENT_SECONDS + beyond) * budget_of(planned)


def training_seconds(cell: UtilityCell) -> float:
    """Of one network at all its learning rates, on one core, if it does not stop early."""
    return _example_seconds(cell) * examples_of(cell)


def _example_seconds(cell: Cell | UtilityCell) -> float:
    return EXAMPLE_SECONDS + _TRAINED * _beyond_small(cell) / SPEED


def _beyond_small(cell: Cell | UtilityCell) -> float:
    """Operations of a forward pass of one example above `SMALL`."""
    inputs = look_up(cell.source)
    parameters = canonical(dict(cell.model_parameters))
    return max(_operations(cell.model, parameters, inputs.input_shape, inputs.classes) - SMALL, 0.0)


@lru_cache(maxsize=256)
def _operations(model: str, parameters: str, shape: tuple[int, ...], classes: int) -> float:
    """Additions and multiplications of a forward pass of one example."""
    network = architectures.build(model, shape, classes, "default", json.loads(parameters))
    weights = network.init(torch.Generator().manual_seed(0), torch.float32)
    counter = _Operations()  # type: ignore[no-untyped-call]
    with torch.no_grad(), counter:
        network.logits(weights, torch.zeros(2, *shape))  # two: one has no batch statistics
    return float(counter.count) / 2


class _Operations(TorchDispatchMode):
    """Counts as torch's `FlopCounterMode`, which imports its compiler first: a second and more."""

    count = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if (count := flop_registry.get(func.overloadpacket)) is not None:
            self.count += count(*args, **kwargs, out_val=out)
        return out


def _trained_for(cell: Cell) -> str:
    """What decides the weights at the last look."""
    return canonical(
        [cell.dataset, cell.model, cell.model_parameters, cell.weights, cell.federation,
         cell.rounds, cell.defense, cell.defense_parameters]
    )  # fmt: skip


def in_words(seconds: float) -> str:
    """Minutes, from two hours on hours."""
    minutes = max(1, round(seconds / 60))
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.0f} h"


def basis(found: Forecast, processor: str) -> str:
    """What the forecast for a processor rests on, in words that go on after it."""
    uses_up = "every attack uses up its steps and no training stops early"
    if not found.measured:
        return f"if {uses_up}; no history: by constants"
    parts = []
    for name in dict.fromkeys(each.processor for each in found.rests_on):
        count = sum(each.count for each in found.rests_on if each.processor == name)
        where = "this processor" if name == processor else f"another processor, {name or 'unnamed'}"
        parts.append(f"{count} trials measured on {where}")
    text = f"from {' and '.join(parts)}"
    whole = found.trials + found.trainings
    if found.measured == whole:
        return text
    return f"{found.measured} of {whole} {text}, the others by constants as if {uses_up}"
