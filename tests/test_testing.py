"""The contract tests catch a plugin that breaks a promise, and say which."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from leakbench.attacks.start_image import StartImage
from leakbench.contracts import (
    Attack,
    Context,
    Defense,
    Gradients,
    Guarantee,
    Leak,
    Observer,
    Reconstruction,
    State,
    Streams,
    Watch,
    Weights,
)
from leakbench.testing import ContractBreach, check_attack, check_defense


@dataclass(frozen=True, kw_only=True)
class Spoilt(Attack):
    """An attack that keeps the contract, but for one spoilt field or deed."""

    name: ClassVar[str] = "spoilt"
    deed: str = ""

    def start(self, leak: Leak, streams: Streams) -> Tensor:
        return StartImage().start(leak, streams)

    def reconstruct(self, leak: Leak, streams: Streams, watch: Watch) -> Reconstruction:
        good = StartImage().reconstruct(leak, streams, watch)
        changes: dict[str, Any] = {}
        if self.deed == "global randomness":
            changes = {"inputs": good.inputs + torch.rand(1)}
        elif self.deed == "mutation":
            next(iter(leak.observed.tensors.values())).add_(1)
        elif self.deed == "shape":
            changes = {"inputs": good.inputs[:, 0]}
        elif self.deed == "labels":
            changes = {"labels": good.labels + 10}
        elif self.deed == "status":
            changes = {"status": ("fine",) * leak.n}
        elif self.deed == "negative":
            changes = {"steps": good.steps - 1}
        elif self.deed == "nan":
            changes = {"inputs": good.inputs * torch.nan}
        elif self.deed == "uncounted":
            rows = torch.arange(leak.n)
            leak.simulate(good.inputs, good.labels, rows)
        elif self.deed == "neighbours":
            changes = {"inputs": good.inputs + good.inputs.mean()}
        elif self.deed == "start":
            changes = {"start_inputs": good.start_inputs + 1}
        elif self.deed == "watch":
            for step in (2, 1):
                watch(
                    torch.tensor([0]),
                    torch.tensor([step]),
                    torch.tensor([step]),
                    good.inputs[:1],
                    torch.zeros(1),
                )
        return replace(good, **changes)


ATTACK_DEEDS = {
    "global randomness": "global generator",
    "mutation": "changes the leak",
    "shape": "inputs has shape",
    "labels": "class indices",
    "status": "status",
    "negative": "steps must not be negative",
    "nan": "not finite",
    "uncounted": "only 0 counted",
    "neighbours": "neighbours",
    "start": r"start\(\) is not",
    "watch": "out of order",
}


@pytest.mark.parametrize("deed", ATTACK_DEEDS)
def test_a_spoilt_attack_is_caught(deed: str) -> None:
    with pytest.raises(ContractBreach, match=ATTACK_DEEDS[deed]):
        check_attack(Spoilt(deed=deed))


def test_a_good_attack_passes() -> None:
    check_attack(Spoilt())


@dataclass(frozen=True, kw_only=True)
class SpoiltDefense(Defense):
    """A defense that halves gradients, and does one thing it must not."""

    name: ClassVar[str] = "spoilt"
    deed: str = ""

    def init(self, weights: Weights) -> State:
        if self.deed == "weights":
            for value in weights.values():
                value.add_(1e-3)

    def on_examples(
        self, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        shown = gradients.map(lambda _, value: value / 2)
        if self.deed == "global randomness":
            shown = gradients.map(lambda _, value: value + torch.rand(1))
        elif self.deed == "mutation":
            for value in gradients.tensors.values():
                value.mul_(2)
        elif self.deed == "axes":
            shown = shown.mean("example")
        elif self.deed == "clients":
            shown = shown.map(lambda _, value: value - value.mean())
        elif self.deed == "detached":
            shown = shown.map(lambda _, value: value.detach())
        elif self.deed == "infinite":
            shown = shown.map(lambda _, value: (value - value).abs().sqrt())
        return shown, state

    def guarantee(self, observer: Observer, weights: Weights, batch_size: int) -> Guarantee:
        reason = "" if self.deed == "guarantee" else "it only halves"
        return Guarantee(level="none", reason=reason)


DEFENSE_DEEDS = {
    "global randomness": "global generator",
    "mutation": "changes the gradients",
    "axes": "names, axes or shapes",
    "clients": "other clients",
    "detached": "not differentiable",
    "infinite": "not finite",
    "guarantee": "without a reason",
    "weights": "changes the weights",
}


@pytest.mark.parametrize("deed", DEFENSE_DEEDS)
def test_a_spoilt_defense_is_caught(deed: str) -> None:
    with pytest.raises(ContractBreach, match=DEFENSE_DEEDS[deed]):
        check_defense(SpoiltDefense(deed=deed))


def test_a_good_defense_passes() -> None:
    check_defense(SpoiltDefense())


def test_a_plugin_must_be_a_frozen_dataclass_of_its_family() -> None:
    class Loose(Defense):
        name = "loose"

    with pytest.raises(ContractBreach, match="frozen"):
        check_defense(Loose())
    with pytest.raises(ContractBreach, match="does not derive"):
        check_attack(Loose())  # type: ignore[arg-type]
