"""What an attack is, is given, and returns."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, get_args, runtime_checkable

from torch import Tensor

from leakbench.contracts.leaks import Leak, LeakFacts
from leakbench.errors import LeakbenchError
from leakbench.parameters import check_kinds
from leakbench.spec import Grant

Ended = Literal["converged", "steps", "stalled", "nan"]
"""How a victim ended: nothing moves any more, the steps are used up, the loss has not fallen for as
long as the attack waits, or it has left the finite numbers."""

ENDED: tuple[Ended, ...] = get_args(Ended)


class Streams(Protocol):
    """Random numbers keyed by victim, so that chunking and order never change a start."""

    def uniform(self, purpose: str, shape: tuple[int, ...], repeat: int = 0) -> Tensor:
        """U[0, 1) of shape (n, *shape), float64 on the CPU; `repeat` numbers restarts."""
        ...

    def normal(self, purpose: str, shape: tuple[int, ...], repeat: int = 0) -> Tensor:
        """N(0, 1) of shape (n, *shape), float64 on the CPU."""
        ...


class Watch(Protocol):
    """The harness looks on: snapshots, loss traces, oracle columns. It returns nothing."""

    def __call__(
        self, rows: Tensor, steps: Tensor, evaluations: Tensor, inputs: Tensor, losses: Tensor
    ) -> None:
        """Victims `rows` (k,) have done `steps` (k,) steps with `evaluations` (k,) gradient
        evaluations and hold `inputs` (k, B, *shape); `losses` (k,) are theirs at the start of the
        step just done. Restarts count on."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconstruction:
    """What the attacker returns for n victims, chosen by his own loss at his own stop.

    Attributes:
        inputs: (n, B, *input shape), raw: not clamped to the input range.
        labels: (n, B) class indices that were used or found.
        loss: (n,) the attacker's loss at `inputs`; nan where an attack has none.
        start_inputs: (n, B, *input shape) where the attack began.
        start_loss: (n,) his loss there.
        steps: (n,) optimiser steps spent.
        evaluations: (n,) gradient evaluations spent.
        status: how each of the n victims' attacks ended: "converged" (further steps would not
            move), "steps" (all were used up), or "nan" (it left the finite numbers; `inputs` is the
            best iterate before that).
        members: of an attack that is made of others, the answer of each, by its name; their losses
            are this attack's own. chosen: whose answer each victim's is, () without members.
        confidence: (n, B) in [0, 1], how sure the attack says it is of each input; None where it
            says nothing.
    """

    inputs: Tensor
    labels: Tensor
    loss: Tensor
    start_inputs: Tensor
    start_loss: Tensor
    steps: Tensor
    evaluations: Tensor
    status: tuple[Ended, ...]
    members: Mapping[str, Reconstruction] = field(default_factory=dict)
    chosen: tuple[str, ...] = ()
    confidence: Tensor | None = None


class Attack(ABC):
    """Family base: `name` identifies the plugin, fields are its hyper-parameters.

    An attack that matches gradients derives from `inversion.MatchingAttack`, which has most of it.
    """

    name: ClassVar[str]
    paper: ClassVar[str] = ""
    requires: ClassVar[tuple[Grant, ...]] = ()
    """What the threat model must grant."""
    uses: ClassVar[tuple[str, ...]] = ()
    """Names of other attacks that it runs: their code is part of what it is."""

    def __post_init__(self) -> None:
        check_kinds(self)

    @abstractmethod
    def reconstruct(self, leak: Leak, streams: Streams, watch: Watch) -> Reconstruction:
        """Reconstruct all victims of `leak` at once."""

    def start(self, leak: Leak, streams: Streams, restart: int = 0) -> Tensor | None:
        """(n, B, *shape) the attack's first iterate, a baseline of every table; None if none."""
        return None

    def shortened(self, most: int) -> Attack:
        """The same attack with at most so many steps and starts, for contract tests."""
        own: Any = self  # a dataclass, as all plugins are
        names = {field.name for field in dataclasses.fields(own)} & {"steps", "restarts"}
        fewer = {name: min(getattr(self, name), most) for name in names}
        shorter: Attack = dataclasses.replace(own, **fewer)
        return shorter

    def skip(self, facts: LeakFacts) -> str:
        """Why the attack cannot work on such leaks, as the end of a sentence; "" where it can.

        Asked when a run is planned: its trials then count as skipped, with this reason.
        """
        return ""

    def require_suitable(self, leak: Leak) -> None:
        """Refuse a leak that should have been skipped: for the begin of `reconstruct`.

        Raises:
            LeakbenchError: the attack's name and what `skip` says.
        """
        if reason := self.skip(leak.facts):
            raise LeakbenchError(f"{self.name}: {reason}")

    def budget(self, facts: LeakFacts) -> int:
        """Gradient evaluations it may spend on a victim, to estimate how long a run takes."""
        return 0


@runtime_checkable
class HasLoss(Protocol):
    """An attack that has a loss of its own, which its reconstructions make small."""

    def loss(self, leak: Leak, inputs: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
        """(k,) the loss of `inputs` (k, B, *shape) with `labels` (k, B) for victims `rows` (k,).

        The harness evaluates it at the truth, to tell an optimiser that failed from a gradient that
        no longer points there.
        """
        ...
