"""The contract tests catch a plugin that breaks a promise, and say which."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

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
    Setting,
    State,
    Streams,
    Watch,
    Weights,
)
from leakbench.privacy.events import PrivacyEvent
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
            leak.observations[0].simulate(good.inputs, good.labels, rows)
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

    def guarantee(self, observer: Observer, weights: Weights, setting: Setting) -> Guarantee:
        if self.deed == "several clients" and setting.clients > 1:
            return cast(Guarantee, None)
        silent = self.deed == "guarantee" or (self.deed == "raw" and observer == "type0_raw")
        return Guarantee(level="none", reason="" if silent else "it only halves")

    def events(self, weights: Weights, setting: Setting) -> tuple[PrivacyEvent, ...]:
        event = PrivacyEvent(noise_multiplier=1.0, sensitivity=1.0)
        wrong: dict[str, Any] = {"events": [event], "epsilons": (1.0,)}
        return cast(tuple[PrivacyEvent, ...], wrong.get(self.deed, (event,)))


DEFENSE_DEEDS = {
    "global randomness": "global generator",
    "mutation": "changes the gradients",
    "axes": "names, axes or shapes",
    "clients": "other clients",
    "detached": "not differentiable",
    "infinite": "not finite",
    "guarantee": "without a reason",
    "raw": r"guarantee\('type0_raw'\) is 'none' without a reason",
    "several clients": "is no Guarantee",
    "events": "no tuple of PrivacyEvent",
    "epsilons": "no tuple of PrivacyEvent",
    "weights": "changes the weights",
}


@pytest.mark.parametrize("deed", DEFENSE_DEEDS)
def test_a_spoilt_defense_is_caught(deed: str) -> None:
    with pytest.raises(ContractBreach, match=DEFENSE_DEEDS[deed]):
        check_defense(SpoiltDefense(deed=deed))


def test_a_good_defense_passes() -> None:
    check_defense(SpoiltDefense())


@dataclass(frozen=True, kw_only=True)
class Scaled(Defense):
    """Every client scales to the norm of his last batch, at first to that of public examples."""

    name: ClassVar[str] = "scaled"
    needs_public: ClassVar[bool] = True
    deed: str = ""

    def init(self, weights: Weights) -> State:
        return None

    def on_round(self, weights: Weights, state: State, context: Context) -> State:
        assert context.public is not None
        if self.deed == "round":
            torch.rand(1)
        elif self.deed == "weights":
            for value in weights.values():
                value.add_(1e-3)
        elif self.deed == "late" and context.round > 0:
            return None
        pieces = list(context.public(weights, 1))
        assert all(public.axes == ("client", "example") for public in pieces)
        norms = torch.cat([public.flat_norm().flatten() for public in pieces])
        return norms.mean() if state is None else state

    def merge(self, state: Tensor) -> State:
        assert state.ndim == 1
        if self.deed == "first clients":
            return dict(enumerate(state))
        return state if self.deed == "merge" else state.mean()

    def on_examples(
        self, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        if isinstance(state, dict):
            state = torch.stack([state[client] for client in context.clients])
        scale = state.unsqueeze(-1) if state.ndim else state
        norms = gradients.flat_norm()
        return gradients.scale(scale / norms), norms.mean(dim=1)


SCALED_DEEDS = {
    "merge": r"from the state that merge gives.*size of tensor",
    "first clients": r"from the state that merge gives.*KeyError: 2",
    "late": r"from the state that merge gives.*NoneType",
    "round": "on_round draws from torch's global generator",
    "weights": "changes the weights",
}


@pytest.mark.parametrize("deed", SCALED_DEEDS)
def test_rounds_and_their_states_are_tried(deed: str) -> None:
    with pytest.raises(ContractBreach, match=SCALED_DEEDS[deed]):
        check_defense(Scaled(deed=deed))


def test_a_defense_with_state_and_public_examples_passes() -> None:
    """`on_round` was called wherever a hook ran, or the hooks would have no scale."""
    check_defense(Scaled())


@dataclass(frozen=True, kw_only=True)
class Subsets(Defense):
    name: ClassVar[str] = "subsets"
    size: int = 4

    @property
    def row(self) -> int:
        return self.size

    def on_examples(
        self, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        # In a replay the batch is what one victim's gradient was made of.
        assert context.noise is None or gradients.leading[1] in (2, context.batch_size // self.size)
        return gradients, state


@pytest.mark.parametrize("size", [0, 3, 16])
def test_subsets_must_divide_the_batch(size: int) -> None:
    with pytest.raises(
        ContractBreach, match=f"row is {size}, which is neither .* nor divides a batch of 8"
    ):
        check_defense(Subsets(size=size))


@pytest.mark.parametrize("size", [1, 4, 8])
def test_subsets_that_divide_the_batch_pass(size: int) -> None:
    check_defense(Subsets(size=size))


@dataclass(frozen=True, kw_only=True)
class Rowwise(Subsets):
    """Says that rows do not matter to each other; `how` they do."""

    name: ClassVar[str] = "says_rowwise"
    size: int = 1
    how: str = ""

    @property
    def rowwise(self) -> bool:
        return True

    def on_examples(
        self, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        if self.how == "others":
            return gradients.map(lambda _, v: v - v.mean(dim=1, keepdim=True)), state
        if self.how == "noise":
            return context.add_gaussian(gradients, 1.0, "examples"), state
        if self.how == "state":
            return gradients, torch.zeros(())
        return gradients.map(lambda _, v: 2 * v), state


@pytest.mark.parametrize(
    ("how", "said"), [("others", "other rows"), ("noise", "other rows"), ("state", "another state")]
)
def test_who_says_rowwise_must_be(how: str, said: str) -> None:
    check_defense(Rowwise())
    with pytest.raises(ContractBreach, match=f"rowwise: .*{said}"):
        check_defense(Rowwise(how=how))


def test_a_plugin_must_be_a_frozen_dataclass_of_its_family() -> None:
    class Loose(Defense):
        name = "loose"

    with pytest.raises(ContractBreach, match="frozen"):
        check_defense(Loose())
    with pytest.raises(ContractBreach, match="does not derive"):
        check_attack(Loose())  # type: ignore[arg-type]
