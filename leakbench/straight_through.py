"""Replays without a derivative: the attacker's own way past sign, rounding and quantisation.

An attacker who differentiates such a replay is told that nothing he changes matters: his gradient
is zero, and the defense looks safe (gradient masking; Athalye, Carlini and Wagner, ICML 2018). He
does what they did: forward the hook's own value, backward the identity in its place, the
straight-through estimator of Bengio, Leonard and Courville (2013, arXiv 1308.3432).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from leakbench.contracts import Axis, Context, Defense, Gradients, LeakPoint, Row, State, Weights
from leakbench.streams import generator
from leakbench.weights import computed_alone

HOOKS = ("on_examples", "on_batch", "on_update", "on_receipt")
"""In the order of the path."""

SCALES = (1e-4, 1e-2, 1.0)
"""Sizes of the coordinates at which a hook is tried: from those of a trained network's gradients to
those of a network with U(-0.5, 0.5) weights. A grid of fixed width is flat at one of them."""
ROWS = 4
"""Gradients of each size that a hook is tried on."""
LEAST_SHARE = 1e-2
"""Of the response: a derivative below is none. Quantisation on a scale of the gradient's own has
the derivative of that scale, one direction among thousands."""
LARGEST_SHARE = 0.5
"""The same for a tensor of a gradient that has none as a whole: of ten numbers, the scale's one
direction is a tenth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StraightThrough(Defense):
    """A defense in a replay, with the identity for a derivative where its hooks have none.

    Args:
        inner: the defense; values are its own.
        blind: (hook, whether behind the first local step) -> names of the tensors in which it has
            no derivative. Adam's first step is a sign, his later ones are not.
    """

    name: ClassVar[str] = "straight_through"
    inner: Defense
    blind: Mapping[tuple[str, bool], frozenset[str]]

    @property
    def hooks(self) -> frozenset[str]:
        return self.inner.hooks

    @property
    def row(self) -> Row:
        return self.inner.row

    @property
    def rowwise(self) -> bool:
        return self.inner.rowwise

    @property
    def reads_observation(self) -> bool:
        return self.inner.reads_observation

    def row_size(self, batch_size: int) -> int:
        return self.inner.row_size(batch_size)

    def on_examples(
        self, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        return self._through("on_examples", gradients, state, context)

    def on_batch(
        self, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        return self._through("on_batch", gradients, state, context)

    def on_update(
        self, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        return self._through("on_update", gradients, state, context)

    def on_receipt(
        self, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        return self._through("on_receipt", gradients, state, context)

    def _through(
        self, hook: str, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        shown, state = getattr(self.inner, hook)(gradients, state, context)
        blind = self.blind.get((hook, context.iteration > 0), frozenset())

        def surrogate(name: str, value: Tensor) -> Tensor:
            if name not in blind:
                return value
            given = gradients.tensors[name]
            return value.detach() + (given - given.detach())  # plus 0, whose derivative is 1

        return shown.map(surrogate), state


def followed(
    defense: Defense, weights: Weights, state: State, context: Context, point: LeakPoint
) -> Defense:
    """The defense as an attacker replays it who differentiates: itself where it has derivatives.

    Tried on random gradients, the same whoever the victims are, in the state of the round and at
    the hooks that act before `point`.
    """
    blind = blind_hooks(defense, weights, state, context, point)
    return StraightThrough(inner=defense, blind=blind) if blind else defense


def blind_hooks(
    defense: Defense, weights: Weights, state: State, context: Context, point: LeakPoint
) -> dict[tuple[str, bool], frozenset[str]]:
    """Hooks as in `StraightThrough.blind` -> tensors that they move in steps: an attacker's
    derivative is zero there.

    A hook h is blind in a tensor where sum of h'_jj g_j^2 (estimated as v J v for v_j = +-g_j:
    Hutchinson 1990) is below `LEAST_SHARE` of its response, sum of g_j (h_j(g) - h_j(-g)) / 2;
    where that holds of all tensors together, in those below `LARGEST_SHARE`. For what scales or
    masks coordinates the two are equal; a sign responds, and has no derivative.
    """
    acting = [hook for hook in _before(point) if hook in defense.hooks]
    if point.type == 2 and point.view == "example":
        context = replace(context, batch_size=1)
    rows = 1 if computed_alone(weights) else ROWS
    count = rows * len(SCALES)
    known = replace(context, clients=tuple(range(count)), noise=None)
    sizes = torch.tensor(SCALES).repeat_interleave(rows)
    draw = generator(0, "straight_through")
    found: dict[tuple[str, bool], frozenset[str]] = {}
    for iteration, hook in _calls(acting, context.local_steps):
        single: tuple[Axis, ...] = ("example",) if hook == "on_examples" else ()
        leading = (count, 1) if single else (count,)
        probe = Gradients(
            {k: _drawn(v, sizes, draw).unflatten(0, leading) for k, v in weights.items()},
            ("client", *single),
        )
        seen = probe.mean("example") if single else probe
        here = replace(
            known,
            iteration=context.iteration + iteration,
            observation=seen if defense.reads_observation else None,
        )
        blind, state = _blind(getattr(defense, hook), probe, state, here, draw)
        if blind:
            found[hook, here.iteration > 0] = blind
    return found


def _calls(hooks: Sequence[str], local_steps: int) -> list[tuple[int, str]]:
    """(local step, hook) as the path calls them, of the first two steps if there are more."""
    inside = [hook for hook in hooks if hook in HOOKS[:2]]
    steps = [(number, hook) for number in range(min(local_steps, 2)) for hook in inside]
    return steps + [(0, hook) for hook in hooks if hook not in inside]


def _drawn(like: Tensor, sizes: Tensor, draw: torch.Generator) -> Tensor:
    """(m, *shape of `like`) normal numbers with these (m,) standard deviations."""
    normal = torch.randn(len(sizes), *like.shape, generator=draw)
    return (normal * sizes.reshape(-1, *[1] * like.ndim)).to(like)


def _before(point: LeakPoint) -> tuple[str, ...]:
    """Hooks that act on what is read at `point`."""
    if point.type == 2:
        return HOOKS[:1] if point.view == "example" else HOOKS[:2]
    return HOOKS[:3] if point.type == 1 or point.view == "raw" else HOOKS


Hook = Callable[[Gradients, State, Context], tuple[Gradients, State]]


def _blind(
    hook: Hook, probe: Gradients, state: State, context: Context, draw: torch.Generator
) -> tuple[frozenset[str], State]:
    """Tensors in which the hook has no derivative at `probe`, and the state behind it."""
    given = probe.tensors
    turned = {
        k: torch.rand(v.shape, generator=draw).round().mul(2).sub(1) for k, v in given.items()
    }
    along = {name: value * turned[name].to(value) for name, value in given.items()}
    with torch.enable_grad():
        free = {name: value.clone().requires_grad_() for name, value in given.items()}
        shown, _ = hook(replace(probe, tensors=free), state, context)
        products = [
            (value * along[name]).sum()
            for name, value in shown.tensors.items()
            if value.requires_grad
        ]
        slopes: tuple[Tensor | None, ...] = (None,) * len(free)
        if products:
            total = torch.stack(products).sum()
            slopes = torch.autograd.grad(total, list(free.values()), allow_unused=True)
    with torch.no_grad():
        other, after = hook(probe.map(lambda _, value: -value), state, context)
    derivative, response = {}, {}
    for (name, value), slope in zip(given.items(), slopes, strict=True):
        odd = (shown.tensors[name].detach().double() - other.tensors[name].double()) / 2
        response[name] = _by_size(odd * value.double())
        derivative[name] = torch.zeros_like(response[name])
        if slope is not None:
            derivative[name] = _by_size(slope.double() * along[name].double())
    of_all, response_of_all = (
        torch.stack(list(each.values())).sum(dim=0) for each in (derivative, response)
    )
    stepped = _steps(of_all, response_of_all, LEAST_SHARE)
    share = torch.where(stepped, LARGEST_SHARE, LEAST_SHARE)
    names = frozenset(k for k in given if bool(_steps(derivative[k], response[k], share).any()))
    return names, after


def _by_size(products: Tensor) -> Tensor:
    """(sizes x rows, ...) -> (sizes,) sums."""
    return products.reshape(len(SCALES), -1).sum(dim=1)


def _steps(derivative: Tensor, response: Tensor, share: Tensor | float) -> Tensor:
    """(sizes,) whether values respond, but not by their derivative."""
    return derivative.abs() < share * response
