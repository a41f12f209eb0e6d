"""Distributed selective SGD: few coordinates are shared, bounded, with or without noise."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar, Literal

import torch
from torch import Tensor

from leakbench.contracts import (
    Context,
    Defense,
    Gradients,
    Guarantee,
    Observer,
    Setting,
    State,
    Weights,
)
from leakbench.errors import LeakbenchError
from leakbench.parameters import check_kinds, require_in

_SELECTION = 8 / 9
"""Share of epsilon for the noisy comparison; the rest is for the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DSSGD(Defense):
    """Selective sharing (Shokri and Shmatikov 2015; TPDS section 4.1).

    Of all d coordinates at most n = floor(share * d) are shared, the others become 0: of those with
    absolute value above `threshold` the n largest, of equal ones those that come first, or n drawn
    at random; fewer where fewer are above it. Shared values are bounded to [-bound, bound].
    on_update: a client's dW, as the paper has it. on_examples: every example's gradient apart.

    epsilon > 0: sparse vector technique with a budget of epsilon for a coordinate, each compared
    and answered once, sensitivity D = 2 bound. With E = 8/9 epsilon, coordinates in random order
    pass if |bounded value| + Laplace(4 D / E) >= threshold + Laplace(2 D / E), up to n of them, and
    those that pass get Laplace(9 D / epsilon) before they are bounded (split of Dwork and Roth's
    NumericSparse; numbers are Laplace scales, std is sqrt(2) of it). The comparison's noise is
    drawn anew for every coordinate, where the paper keeps the threshold's until a value is shared.

    Guarantee: none. Even then epsilon holds for one coordinate; n of them spend n epsilon.
    A zero gradient stays zero, but for noisy answers; inf becomes the bound; nan is not shared.

    Replay: the mask is that of the observation, values are bounded, nothing is drawn. Fewer than n
    shared values without noise and threshold say that all others were 0, and then nothing is
    masked. Where several examples are behind one observation, a replay shares the largest values by
    its own, but of randomly drawn ones all that any example shared. Without an observation a random
    choice is not known, and all coordinates pass.

    Args:
        share: theta, in (0, 1]; its decimal digits are meant: 0.29 of 100 is 29.
        selection: "random" or "largest".
        threshold: tau, >= 0, in units of what is shared (weights at "update").
        bound: gamma, > 0, in the same units; None where values are not bounded.
        epsilon: of a coordinate; 0 for no noise. It needs a bound and the selection "random".
        at: what is shared, "update" or "example".
    """

    name: ClassVar[str] = "dssgd"
    paper: ClassVar[str] = "Shokri and Shmatikov, CCS 2015"
    share: float = 0.1
    selection: Literal["largest", "random"] = "random"
    threshold: float = 0.0
    bound: float | None = None
    epsilon: float = 0.0
    at: Literal["update", "example"] = "update"

    def __post_init__(self) -> None:
        require_in(self.name, "(0, 1]", share=self.share)
        require_in(self.name, "[0, inf)", threshold=self.threshold, epsilon=self.epsilon)
        if self.bound is not None:
            require_in(self.name, "(0, inf)", bound=self.bound)
        if self.selection not in ("largest", "random"):
            raise LeakbenchError(
                f"dssgd: selection must be largest or random, got {self.selection!r}"
            )
        if self.epsilon > 0 and (self.bound is None or self.selection != "random"):
            raise LeakbenchError("dssgd: epsilon > 0 needs a bound and the selection random")
        if self.at not in ("update", "example"):
            raise LeakbenchError(f"dssgd: at must be update or example, got {self.at!r}")
        check_kinds(self)

    @property
    def hooks(self) -> frozenset[str]:
        return frozenset(["on_examples" if self.at == "example" else "on_update"])

    @property
    def reads_observation(self) -> bool:
        return True

    def on_examples(
        self, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        return self._shared(gradients, context) if self.at == "example" else gradients, state

    def on_update(
        self, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        return self._shared(gradients, context) if self.at == "update" else gradients, state

    def _shared(self, gradients: Gradients, context: Context) -> Gradients:
        values = gradients.flatten()
        chosen = self._chosen(gradients, values, context)
        answers = self._bounded(values)
        if self.epsilon > 0:
            scale = self._sensitivity / ((1 - _SELECTION) * self.epsilon)
            noise = context.laplace(values, math.sqrt(2) * scale, "dssgd/answer")
            answers = self._bounded(answers + noise)
        shown = torch.where(chosen, answers, 0.0)
        sizes = [math.prod(v.shape[len(gradients.axes) :]) for v in gradients.tensors.values()]
        parts = zip(gradients.tensors.items(), shown.split(sizes, dim=-1), strict=True)
        return replace(gradients, tensors={k: part.reshape(v.shape) for (k, v), part in parts})

    def _chosen(self, gradients: Gradients, values: Tensor, context: Context) -> Tensor:
        """True at the coordinates of `values` (*leading, d) that are shared."""
        count = math.floor(Fraction(str(self.share)) * values.shape[-1])
        observed = self._observed(gradients, context)
        if observed is not None:
            seen = observed != 0
            if self.threshold > 0 or self.epsilon > 0:
                return seen
            return seen | (seen.sum(dim=-1, keepdim=True) < count)
        values = values.detach()
        size = values.abs()
        if self.selection == "largest":
            return _first(size, size > self.threshold, count)
        if context.noise is None:
            return torch.ones_like(values, dtype=torch.bool)
        allowed = size > self.threshold
        if self.epsilon > 0:
            size = self._bounded(values).abs()
            scale = 2 * self._sensitivity / (_SELECTION * self.epsilon)
            query = context.laplace(size, math.sqrt(2) * 2 * scale, "dssgd/query")
            noise = context.laplace(size, math.sqrt(2) * scale, "dssgd/threshold")
            allowed = size + query >= self.threshold + noise
        return _first(context.uniform(values, "dssgd/order"), allowed, count)

    def _observed(self, gradients: Gradients, context: Context) -> Tensor | None:
        """In a replay the observed values (*leading, d) that tell the mask, if there are any."""
        seen = context.observation
        if context.noise is not None or seen is None:
            return None
        several = seen.axes != gradients.axes and (
            gradients.leading[1] > 1 or context.local_steps > 1
        )
        if several and self.selection == "largest":
            return None
        found = Gradients({k: seen.tensors[k] for k in gradients.tensors}, seen.axes).flatten()
        return found if seen.axes == gradients.axes else found.unsqueeze(1)

    @property
    def _sensitivity(self) -> float:
        assert self.bound is not None, "checked together with epsilon"
        return 2 * self.bound

    def _bounded(self, values: Tensor) -> Tensor:
        return values if self.bound is None else values.clamp(-self.bound, self.bound)

    def guarantee(self, observer: Observer, weights: Weights, setting: Setting) -> Guarantee:
        if self.epsilon == 0:
            reason = "no noise is added, and which coordinates are shared depends on the data"
        else:
            reason = "epsilon holds for one coordinate, not for an example or a client"
        return Guarantee(level="none", reason=reason)


def _first(priority: Tensor, allowed: Tensor, count: int) -> Tensor:
    """True at the `count` allowed places of highest priority (>= 0) in every row (*leading, d)."""
    ranked = torch.where(allowed, priority, -1.0)
    order = ranked.argsort(dim=-1, descending=True, stable=True)
    found = torch.zeros_like(allowed)
    return found.scatter(-1, order[..., :count], True) & allowed
