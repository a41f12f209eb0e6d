"""Panel: a fixed set of attackers, of whose answers the best by one loss counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor

from leakbench import registry
from leakbench.contracts import (
    Attack,
    HasLoss,
    Leak,
    LeakFacts,
    Reconstruction,
    Streams,
    Watch,
)

MEMBERS: Mapping[str, Mapping[str, Any]] = {
    "candidates": {},
    "gauss_newton": {"restarts": 4},
    "cpl": {"line_search": True, "restarts": 4},
    "gradinv": {"steps": 2000},
}
"""The attackers of version 1 and what is not their default. GradInv's 2,000 steps recovered every
digit of a weight draw on which 500 recovered one of eight; his paper's 24,000 take 12 times as
long."""
COMMON = "gauss_newton"
"""Whose loss answers are compared by."""


@dataclass(frozen=True, kw_only=True)
class Panel(Attack):
    """Each victim's best answer of `candidates`, `gauss_newton`, `cpl` and `gradinv`.

    Like AutoAttack (Croce and Hein, ICML 2020): no parameters, so that nobody tunes it until a
    defense looks good. `candidates` takes part where the list is granted; then what is named is
    also returned, exactly. All are what `leakbench` runs by these names, with
    `gauss_newton.restarts` 4, `cpl.restarts` 4 and `cpl.line_search`, `gradinv.steps` 2000; knowing
    the defense or not, as the threat model says.

    Answers are compared under the objective of `gauss_newton`: the squared distance of gradients,
    where the attacker knows the noise in units of it and, with public inputs, with their prior. The
    smallest counts, a loss that is no number never, the earlier of equal ones. So an image that
    fits the noise better than the truth does not win.

    Knowledge used: that of the members. Begins where `gauss_newton` does. Steps and evaluations are
    those of all members, and one evaluation for each answer and look; losses that are watched are
    the members' own. Known failures: what all its members share.

    Args:
        version: of the set; results of two versions do not compare.
    """

    name: ClassVar[str] = "panel"
    uses: ClassVar[tuple[str, ...]] = tuple(MEMBERS)
    version: Literal[1] = 1

    def members(self, facts: LeakFacts) -> dict[str, Attack]:
        """Those that suit such a leak, by name, in their order."""
        found = {
            name: cast(Attack, registry.load("attacks", name)(**parameters))
            for name, parameters in MEMBERS.items()
        }
        return {name: attack for name, attack in found.items() if not attack.skip(facts)}

    def shortened(self, most: int) -> Attack:
        return _Shortened()

    def skip(self, facts: LeakFacts) -> str:
        if reason := _common().skip(facts):  # whose loss all answers need
            return reason
        return "" if self.members(facts) else "no member of the panel suits this leak"

    def budget(self, facts: LeakFacts) -> int:
        members = self.members(facts).values()
        compared = (len(members) + 1) * facts.observations
        return sum(attack.budget(facts) for attack in members) + compared

    def start(self, leak: Leak, streams: Streams, restart: int = 0) -> Tensor | None:
        return _common().start(leak, streams, restart)

    def loss(self, leak: Leak, inputs: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
        """(k,) the common loss; see `contracts.HasLoss`."""
        common = _common()
        assert isinstance(common, HasLoss)
        return common.loss(leak, inputs, labels, rows)

    def reconstruct(self, leak: Leak, streams: Streams, watch: Watch) -> Reconstruction:
        """One member after another on all victims."""
        self.require_suitable(leak)
        every = torch.arange(leak.n, device=leak.device)
        spent = torch.zeros(2, leak.n, dtype=torch.int64)  # by earlier members

        def counting(
            rows: Tensor, steps: Tensor, evaluations: Tensor, inputs: Tensor, losses: Tensor
        ) -> None:
            before, evaluated = spent[:, rows.cpu()]
            watch(rows, steps.cpu() + before, evaluations.cpu() + evaluated, inputs, losses)

        answers: dict[str, Reconstruction] = {}
        for name, attack in self.members(leak.facts).items():
            answer = attack.reconstruct(leak, streams, counting)
            loss = self.loss(leak, answer.inputs, answer.labels, every)
            answers[name] = replace(answer, loss=loss)
            own = torch.stack([answer.steps.cpu(), answer.evaluations.cpu()])
            spent += own + torch.tensor([[0], [len(leak.observations)]])
        names, found = list(answers), list(answers.values())
        losses = torch.stack([answer.loss for answer in found])
        best = torch.where(losses.isnan(), torch.inf, losses).argmin(dim=0)
        start = self.start(leak, streams)
        assert start is not None
        labels = _picked([answer.labels for answer in found], best)
        spent += torch.tensor([[0], [len(leak.observations)]])
        steps, evaluations = spent.to(leak.device)
        return Reconstruction(
            inputs=_picked([answer.inputs for answer in found], best),
            labels=labels,
            loss=losses[best, every],
            start_inputs=start,
            start_loss=self.loss(leak, start, labels, every),
            steps=steps,
            evaluations=evaluations,
            status=tuple(found[k].status[row] for row, k in enumerate(best.tolist())),
            members=answers,
            chosen=tuple(names[k] for k in best.tolist()),
        )


@dataclass(frozen=True, kw_only=True)
class _Shortened(Panel):
    """The panel with one step of each member, for contract tests."""

    def members(self, facts: LeakFacts) -> dict[str, Attack]:
        return {name: attack.shortened(1) for name, attack in super().members(facts).items()}


def _common() -> Attack:
    return cast(Attack, registry.load("attacks", COMMON)())


def _picked(values: list[Tensor], which: Tensor) -> Tensor:
    """Row i of the tensor `which[i]`."""
    return torch.stack(values)[which, torch.arange(len(which), device=which.device)]
