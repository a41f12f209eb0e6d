"""Replays without a derivative: found for what they are, and followed straight through."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from leakbench import data, registry
from leakbench.architectures import build
from leakbench.attacks.gradinv import GradInv
from leakbench.capturing import capture_leak
from leakbench.contracts import Context, Defense, Gradients, LeakPoint, Model, State
from leakbench.defenses.batch_clipping_general import BatchClipGeneral
from leakbench.defenses.prune import Prune
from leakbench.leaking import Tap
from leakbench.straight_through import StraightThrough, blind_hooks
from leakbench.streams import VictimStreams, generator
from leakbench.testing import remark
from leakbench.training import public_gradients

UPDATE = LeakPoint(type=1)


@dataclass(frozen=True, kw_only=True)
class Sign(Defense):
    """signSGD: only signs leave."""

    name: ClassVar[str] = "test_sign"
    scaled: bool = False

    def on_examples(
        self, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        def sign(_: str, value: Tensor) -> Tensor:
            size = value.abs().flatten(2).mean(dim=2) if self.scaled else value.new_ones(1)
            return value.sign() * size.reshape(*size.shape, *[1] * (value.ndim - size.ndim))

        return gradients.map(sign), state


@dataclass(frozen=True, kw_only=True)
class Quantise(Defense):
    """Four bits a coordinate, on a scale of each tensor's own."""

    name: ClassVar[str] = "test_quantise"

    def on_batch(
        self, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        def rounded(_: str, value: Tensor) -> Tensor:
            unit = value.abs().flatten(1).amax(dim=1) / 7
            unit = unit.reshape(-1, *[1] * (value.ndim - 1))
            return (value / unit).round() * unit

        return gradients.map(rounded), state


@dataclass(frozen=True, kw_only=True)
class Grid(Defense):
    """A grid of fixed width, without a graph behind it."""

    name: ClassVar[str] = "test_grid"

    def on_update(
        self, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        return gradients.map(lambda _, value: (value.detach() * 100).round() / 100), state


@dataclass(frozen=True, kw_only=True)
class SomeSigns(Defense):
    """The biases pass, the weights lose their sizes."""

    name: ClassVar[str] = "test_some_signs"

    def on_examples(
        self, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        return gradients.map(lambda name, v: v if name.endswith("bias") else v.sign()), state


def network(dtype: torch.dtype = torch.float32) -> tuple[Model, dict[str, Tensor]]:
    digits = data.load("mnist")
    model = build("cnn2", digits.input_shape, digits.classes)
    return model, model.init(generator(3, "weights"), dtype)


def blind(defense: Defense, point: LeakPoint, local_steps: int = 1) -> dict[str, set[str]]:
    """Hook -> blind tensors, in the first local step."""
    model, weights = network()
    digits = data.load("mnist")
    tap = Tap(model=model, point=point, batch_size=8, local_steps=local_steps)
    public = public_gradients(model, digits.public[:16], digits.public_labels[:16])
    look = tap.look(defense, weights, tap.begin(defense, weights), 0, public)
    found = blind_hooks(defense, weights, look.state, tap.context(0, (0,), None), point)
    assert {hook for hook, later in found if later} <= {"on_examples", "on_batch"}
    return {hook: set(names) for (hook, later), names in found.items() if not later}


@pytest.mark.parametrize(
    ("defense", "hook", "point"),
    [
        (Sign(), "on_examples", LeakPoint()),
        (Sign(scaled=True), "on_examples", LeakPoint()),
        (Quantise(), "on_batch", LeakPoint(view="batch")),
        (Grid(), "on_update", UPDATE),
        (BatchClipGeneral(), "on_batch", UPDATE),  # Adam's first step is a sign
    ],
)
def test_steps_are_found(defense: Defense, hook: str, point: LeakPoint) -> None:
    _, weights = network()
    assert blind(defense, point) == {hook: set(weights)}


def test_only_tensors_that_are_stepped_and_hooks_before_the_tap_count() -> None:
    _, weights = network()
    stepped = {name for name in weights if not name.endswith("bias")}
    assert blind(SomeSigns(), LeakPoint()) == {"on_examples": stepped}
    assert blind(Quantise(), LeakPoint()) == {}
    assert blind(Grid(), LeakPoint(view="batch")) == {}
    assert blind(Grid(), UPDATE, local_steps=2) == {"on_update": set(weights)}


def test_adam_is_no_sign_behind_his_first_step() -> None:
    model, weights = network()
    defense = BatchClipGeneral()
    tap = Tap(model=model, point=UPDATE, batch_size=8, local_steps=3)
    context = tap.context(0, (0,), None)
    state = tap.begin(defense, weights)
    assert set(blind_hooks(defense, weights, state, context, UPDATE)) == {("on_batch", False)}
    signs = blind_hooks(Quantise(), weights, None, context, UPDATE)
    assert set(signs) == {("on_batch", False), ("on_batch", True)}


STEPS = {"percentile", "quantise", "sign"}
"""Shipped defenses of updates whose values are steps; the percentile cuts all of these gradients'
coordinates off at its bound."""

DIFFERENTIABLE = [
    each.name for each in registry.discover("defenses")
    if each.origin.startswith("leakbench") and each.name not in {"batch_clip_general", *STEPS}
]  # fmt: skip


@pytest.mark.parametrize("name", sorted(STEPS))
def test_the_shipped_compressions_are_steps(name: str) -> None:
    _, weights = network()
    defense = registry.load("defenses", name)()
    assert blind(defense, LeakPoint()) == {}
    assert blind(defense, LeakPoint(type=0)) == {"on_update": set(weights)}


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_the_shipped_defenses_keep_their_derivatives(name: str) -> None:
    defense = registry.load("defenses", name)()
    for point in (LeakPoint(), LeakPoint(type=0)):
        assert blind(defense, point) == {}


@pytest.mark.parametrize("scope", ["global", "tensor"])
@pytest.mark.parametrize("at", ["example", "update"])
def test_masks_of_the_largest_keep_theirs(scope: str, at: str) -> None:
    """On the coordinates that stay the derivative is one."""
    defense = Prune(fraction=0.99, scope=scope, at=at)  # type: ignore[arg-type]
    assert blind(defense, LeakPoint(type=0)) == {}


@pytest.mark.parametrize("defense", [Sign(), Quantise(), Grid()])
@pytest.mark.parametrize("point", [LeakPoint(), LeakPoint(view="batch"), UPDATE])
def test_values_are_the_hooks_own_and_the_derivative_is_the_plain_gradients(
    defense: Defense, point: LeakPoint
) -> None:
    digits, (model, weights) = data.load("mnist"), network(torch.float64)
    images = digits.candidates[:3, None].double()
    labels = digits.candidate_labels[:3, None]
    if point == LeakPoint():
        images, labels = images.transpose(0, 1), labels.T
    leaks = [
        capture_leak(
            model, images, labels, weights=weights, defense=each, point=point,
            knowledge="adaptive", learning_rate=1.0,
        )
        for each in (defense, None)
    ]  # fmt: skip
    guess = digits.candidates[10:13, None].double()
    known = digits.candidate_labels[:3, None]
    direction = None
    slopes = []
    for leak in leaks:
        free = guess.clone().requires_grad_()
        shown = leak.observations[0].simulate(free, known, torch.arange(3)).flatten()
        if direction is None:
            direction = torch.randn(shown.shape, generator=generator(1), dtype=shown.dtype)
        slopes.append(torch.autograd.grad((shown * direction).sum(), free)[0])
    assert float(slopes[1].abs().max()) > 0
    torch.testing.assert_close(slopes[0], slopes[1], rtol=1e-9, atol=0)
    # The very values that leak from the victims themselves.
    truth = digits.candidates[:3, None].double()
    with torch.no_grad():
        shown = leaks[0].observations[0].simulate(truth, known, torch.arange(3)).flatten()
    torch.testing.assert_close(shown, leaks[0].observed.flatten(), rtol=1e-12, atol=1e-12)


def test_forward_mode_goes_straight_through_as_well() -> None:
    wrapped = StraightThrough(inner=Sign(), blind={("on_examples", False): frozenset(["a"])})
    context = Context(batch_size=1, clients=(0,), noise=None)

    def shown(value: Tensor) -> Tensor:
        found, _ = wrapped.on_examples(
            Gradients({"a": value}, ("client", "example")), None, context
        )
        return found.tensors["a"]

    at, along = torch.tensor([[[-2.0, 3.0]]]), torch.tensor([[[[5.0, 7.0]]], [[[1.0, 0.0]]]])
    value, slope = torch.func.jvp(shown, (at,), (along[0],))
    assert value.tolist() == [[[-1.0, 1.0]]]
    assert slope.tolist() == along[0].tolist()
    columns = torch.func.vmap(lambda v: torch.func.jvp(shown, (at,), (v,))[1])(along)
    assert torch.equal(columns, along)


def test_an_attacker_who_follows_straight_through_finds_what_signs_hide() -> None:
    """Without a derivative the loss never fell: identified naive .50, adaptive .00."""
    digits, (model, weights) = data.load("mnist"), network()
    leak = capture_leak(
        model, digits.candidates[:2], digits.candidate_labels[:2],
        weights=weights, defense=Sign(), knowledge="adaptive", grants=("labels",),
    )  # fmt: skip
    streams = VictimStreams(0, (("sign", 0), ("sign", 1)))
    found = GradInv(steps=30).reconstruct(leak, streams, lambda *_: None)
    assert bool((found.loss < 0.9 * found.start_loss).all())
    error = (found.inputs[:, 0] - digits.candidates[:2]).square().flatten(1).mean(dim=1)
    start = (found.start_inputs[:, 0] - digits.candidates[:2]).square().flatten(1).mean(dim=1)
    assert bool((error < start / 2).all())


def test_list_check_says_it() -> None:
    assert "straight-through" in remark("defenses", "batch_clip_general")
    assert remark("defenses", "dp_baseline") == ""
    assert remark("attacks", "cpl") == ""
