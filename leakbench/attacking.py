"""Attacks on a captured leak: by name, within a time, held to their contract."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from leakbench import registry, trials
from leakbench.captured import CapturedLeak
from leakbench.contracts import Attack, Leak, Reconstruction, Watch
from leakbench.errors import LeakbenchError
from leakbench.spec import Knowledge
from leakbench.streams import VictimStreams, opaque
from leakbench.suite.parameters import complete
from leakbench.weights import computed_alone

LARGE_SECONDS = 240.0
"""What an attack on a large network may take where nothing is said: it would take days."""

Named = str | Attack | type[Attack]
"""An attack by its name, its class, or with its parameters."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answer:
    """What one attack made of a leak.

    Attributes:
        name, knowledge: of the attack.
        attack: with the parameters it ran with.
        reason: why it did not run, as the end of a sentence; "" where it did.
        result: what it returned; None where it did not run.
        start: (n, B, *input shape) its first iterate; None where it has none.
        loss_true: (n,) its loss at the truth; nan where it has none.
        seconds: wall time.
        notes: what a reader should know.
    """

    name: str
    knowledge: Knowledge
    attack: Attack
    reason: str = ""
    result: Reconstruction | None = None
    start: Tensor | None = None
    loss_true: Tensor | None = None
    seconds: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def inputs(self) -> Tensor | None:
        """(n, B, *input shape) reconstructions, in the attack's own order within a batch."""
        return None if self.result is None else self.result.inputs


def made(
    attacks: Named | Sequence[Named] | Mapping[str, Mapping[str, Any]],
    parameters: Mapping[str, Any],
) -> list[Attack]:
    """The attacks that were asked for, with these parameters where there is one of them.

    Raises:
        LeakbenchError: an unknown attack or parameter, a value that it refuses, none at all.
    """
    if isinstance(attacks, Mapping):
        named: list[tuple[Named, Mapping[str, Any]]] = list(attacks.items())
    elif isinstance(attacks, str | Attack | type):
        named = [(attacks, parameters)]
    else:
        named = [(each, {}) for each in attacks]
    if not named:
        raise LeakbenchError("attack: none is named")
    if parameters and (len(named) != 1 or isinstance(attacks, Mapping)):
        raise LeakbenchError(
            "attack: parameters of several attacks; allowed: a mapping of names to parameters, "
            'as {"cpl": {"restarts": 4}}'
        )
    return [_made(attack, own) for attack, own in named]


def _made(attack: Named, parameters: Mapping[str, Any]) -> Attack:
    if isinstance(attack, Attack):
        if not parameters:
            return attack
        given = {
            field.name: getattr(attack, field.name) for field in dataclasses.fields(_any(attack))
        }
        return _made(type(attack), {**given, **parameters})
    kind = (
        cast("type[Attack]", registry.load("attacks", attack))
        if isinstance(attack, str)
        else attack
    )
    if not issubclass(kind, Attack):
        raise LeakbenchError(
            f"attack: {attack!r:.60} is none; allowed: a name, a class or an object derived from "
            "contracts.Attack"
        )
    return kind(**complete(kind, parameters, f"attack '{kind.name}'"))


def _any(value: object) -> Any:
    return value


def answer(
    captured: CapturedLeak,
    attack: Attack,
    knowledge: Knowledge,
    *,
    seed: int,
    seconds: float | None,
    progress: bool,
) -> Answer:
    """Run one attack on all victims.

    Raises:
        LeakbenchError: it breaks its contract.
    """
    leak = captured.seen_by(knowledge, attack.requires)
    notes = []
    if "candidates" in attack.requires and captured.candidates is None:
        notes.append(captured.own_list_note())
    missing = [
        grant
        for grant, given in (("labels", leak.labels), ("public", leak.public))
        if grant in attack.requires and given is None
    ]
    reason = f"it must be granted '{missing[0]}'" if missing else attack.skip(leak.facts)
    if reason:
        return Answer(
            name=attack.name, knowledge=knowledge, attack=attack, reason=reason, notes=tuple(notes)
        )
    streams = VictimStreams(0, tuple(opaque(seed, "api", row) for row in range(captured.n)))
    begun = time.perf_counter()
    with torch.random.fork_rng(devices=[leak.device] if leak.device.type == "cuda" else []):
        if seconds is None and computed_alone(leak.observations[0].weights):
            seconds = LARGE_SECONDS
        if seconds is not None:
            attack, note = _within(attack, leak, streams, seconds)
            notes += note
        start = attack.start(leak, streams)
        with _bar(attack, leak, shown=progress) as watch:
            result = attack.reconstruct(leak, streams, watch)
        for look in leak.observations:
            look.forget()
        # The contract is checked where trials check it; that module is part of identities.
        trials._check(result, leak, attack.name)
        result = trials._with_honest_status(result)
        loss_true = trials._loss(attack, leak, captured.truth, captured.truth_labels)
    for look in leak.observations:
        look.forget()
    return Answer(
        name=attack.name,
        knowledge=knowledge,
        attack=attack,
        result=result,
        start=None if start is None else start.detach(),
        loss_true=loss_true,
        seconds=time.perf_counter() - begun,
        notes=tuple(notes),
    )


def _within(
    attack: Attack, leak: Leak, streams: VictimStreams, seconds: float
) -> tuple[Attack, list[str]]:
    """The attack with fewer restarts, then fewer steps, if it would take longer; and a note."""
    plugin = _any(attack)
    fields = {field.name for field in dataclasses.fields(plugin)}
    if "steps" not in fields:
        return attack, []
    taken = []
    for steps in (1, 3):
        begun = time.perf_counter()
        attack.shortened(steps).reconstruct(leak, streams, _unwatched)
        taken.append(time.perf_counter() - begun)
    restarts = plugin.restarts if "restarts" in fields else 1
    tried_restarts = min(restarts, 3) * 3 - 1  # of the second, beyond the first
    a_step = max(taken[1] - taken[0], 1e-6) / tried_restarts
    possible = max(int((seconds - sum(taken)) / a_step), 1)
    if possible >= plugin.steps * restarts:
        return attack, []
    fewer = {"steps": min(plugin.steps, possible)}
    if "restarts" in fields:
        fewer["restarts"] = max(possible // plugin.steps, 1)
    said = ", ".join(f"{k} {getattr(plugin, k)} -> {v}" for k, v in fewer.items())
    note = f"{attack.name} was cut to fit into {seconds:g} seconds: {said}"
    return dataclasses.replace(plugin, **fewer), [note]


def _unwatched(
    rows: Tensor, steps: Tensor, evaluations: Tensor, inputs: Tensor, losses: Tensor
) -> None:
    """Nobody looks on."""


@contextlib.contextmanager
def _bar(attack: Attack, leak: Leak, *, shown: bool) -> Iterator[Watch]:
    """Who looks on at an attack: a bar of its gradient evaluations, or nobody."""
    if not shown:
        yield _unwatched
        return
    from rich.progress import Progress

    spent = torch.zeros(leak.n, dtype=torch.int64)
    with Progress() as progress:
        task = progress.add_task(attack.name, total=max(attack.budget(leak.facts), 1) * leak.n)

        def watch(
            rows: Tensor, steps: Tensor, evaluations: Tensor, inputs: Tensor, losses: Tensor
        ) -> None:
            spent[rows.cpu()] = evaluations.cpu().to(spent.dtype)
            progress.update(task, completed=int(spent.sum()))

        yield watch
        progress.update(task, total=1, completed=1)
