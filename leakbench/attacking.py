"""Attacks on a captured leak: by name, within a time, held to their contract."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from leakbench import registry
from leakbench.answers import check_answer, loss_of, with_honest_status
from leakbench.captured import CapturedLeak
from leakbench.contracts import Attack, Leak, Reconstruction, Watch
from leakbench.errors import LeakbenchError
from leakbench.plugin_files import one_line
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
        cut: whether it got fewer steps or restarts than were asked for, to end in time.
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
    cut: bool = False
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
    elif isinstance(attacks, Iterable) and not isinstance(attacks, str | Attack | type):
        several = list(attacks)
        named = [(each, parameters if len(several) == 1 else {}) for each in several]
    else:
        named = [(attacks, parameters)]
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
    kind: Any = registry.load("attacks", attack) if isinstance(attack, str) else attack
    if not isinstance(kind, type) or not issubclass(kind, Attack) or inspect.isabstract(kind):
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
        LeakbenchError: it fails, or breaks its contract.
    """
    begun, asked = time.perf_counter(), attack
    large = computed_alone(captured.views[knowledge].observations[0].weights)
    limit = LARGE_SECONDS if seconds is None and large else seconds
    if limit == math.inf:
        limit = None
    streams = VictimStreams(0, tuple(opaque(seed, "api", row) for row in range(captured.n)))
    try:
        gpus = [captured.truth.device] if captured.truth.is_cuda else []
        with torch.random.fork_rng(devices=gpus):
            leak, attack, notes = _within(captured, attack, knowledge, streams, limit)
            start = attack.start(leak, streams)
            with _bar(attack, leak, shown=progress) as watch:
                result = attack.reconstruct(leak, streams, watch)
    except LeakbenchError as error:  # it refuses this leak; others may not
        reason = str(error).removeprefix(f"{attack.name}: ")
        return Answer(name=attack.name, knowledge=knowledge, attack=attack, reason=reason)
    except Exception as error:  # foreign code may fail in any way
        raise LeakbenchError(f"attack '{attack.name}': fails: {one_line(error)}") from error
    for look in leak.observations:
        look.forget()
    check_answer(result, leak, attack.name)
    result = with_honest_status(result)
    loss_true = loss_of(attack, leak, captured.truth, captured.truth_labels)
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
        cut=attack != asked,
        notes=tuple(notes),
    )


def _within(
    captured: CapturedLeak,
    attack: Attack,
    knowledge: Knowledge,
    streams: VictimStreams,
    limit: float | None,
) -> tuple[Leak, Attack, list[str]]:
    """What the attack is given, and the attack, so that it ends within the limit; and notes.

    Raises:
        LeakbenchError: it does not suit the leak, or cannot be made to end in time.
    """
    listing = "candidates" in attack.requires
    own = listing and captured.candidates is None
    leak = captured.seen_by(knowledge, attack.requires)
    for grant, given in (("labels", leak.labels), ("public", leak.public)):
        if grant in attack.requires and given is None:
            raise LeakbenchError(f"it must be granted '{grant}'")
    if reason := attack.skip(leak.facts):
        raise LeakbenchError(reason)
    notes: list[str] = []
    if limit is not None and "steps" in {field.name for field in _fields(attack)}:
        attack, notes = _fewer_steps(attack, leak, streams, limit)
    elif limit is not None and listing and leak.candidates is not None:
        whole, few = len(leak.candidates), captured.truth_labels.numel()

        def listed(count: int) -> Leak:
            """With so many candidates, from the victims' number on."""
            if own:
                return captured.seen_by(knowledge, attack.requires, most=count - few)
            assert leak.candidates is not None and leak.candidate_labels is not None
            return replace(
                leak,
                candidates=leak.candidates[:count],
                candidate_labels=leak.candidate_labels[:count],
            )

        longer = min(4 * few, whole)
        taken = []
        for count in (few, longer):
            begun = time.perf_counter()
            attack.reconstruct(listed(count), streams, _unwatched)
            taken.append(time.perf_counter() - begun)
        first, second = taken
        slope = (second - first) / max(longer - few, 1)
        each = slope if slope > 0 else second / longer  # the first one pays for what is kept
        possible = few + int((limit - sum(taken) - first) / each)
        if own and possible < whole:
            leak = listed(max(possible, few))
        elif possible < whole:
            raise LeakbenchError(
                f"{whole} candidates would take {first + (whole - few) * each:.0f} seconds, the "
                f"limit is {limit:g}; allowed: more `seconds`, or a shorter list"
            )
    if own and leak.candidates is not None:
        others = len(leak.candidates) - captured.truth_labels.numel()
        notes.append(
            f"{attack.name}: no candidates were given: the list is the "
            f"{captured.truth_labels.numel()} victims' own examples and {others} public ones"
        )
    return leak, attack, notes


def _fields(attack: Attack) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(_any(attack))


def _fewer_steps(
    attack: Attack, leak: Leak, streams: VictimStreams, limit: float
) -> tuple[Attack, list[str]]:
    """The attack with fewer restarts, then fewer steps, if it would take longer; and a note."""
    plugin = _any(attack)
    several = "restarts" in {field.name for field in _fields(attack)}
    restarts = plugin.restarts if several else 1
    taken = []
    for steps in (1, 3):
        short = _any(attack.shortened(steps))
        begun = time.perf_counter()
        (dataclasses.replace(short, restarts=1) if several else short).reconstruct(
            leak, streams, _unwatched
        )
        taken.append(time.perf_counter() - begun)
        if taken[0] > limit / 4:
            break
    if len(taken) == 1:  # the step with all that comes before it: rather too much
        a_step = taken[0]
    else:
        a_step = max(taken[1] - taken[0], 1e-6) / max(min(plugin.steps, 3) - 1, 1)
    possible = max(int((limit - sum(taken)) / a_step), 1)
    if possible >= plugin.steps * restarts:
        return attack, []
    fewer = {"steps": min(plugin.steps, possible)}
    if several:
        fewer["restarts"] = max(possible // plugin.steps, 1)
    said = ", ".join(
        f"{k} {getattr(plugin, k)} -> {v}" for k, v in fewer.items() if v != getattr(plugin, k)
    )
    note = f"{attack.name} was cut to fit into {limit:g} seconds: {said}"
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
