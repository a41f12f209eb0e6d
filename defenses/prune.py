"""Gradient pruning: the smallest coordinates are not shown."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Prune(Defense):
    """Threshold pruning (TPDS section 4.1; a defense since Zhu et al. 2019).

    Of the d coordinates pruned together exactly floor(fraction * d) become 0, those of the smallest
    absolute value, of equal ones those that come first; the others pass bit for bit. on_update: a
    client's dW, as the paper has it. on_examples: every example's gradient apart, as attacks on a
    single gradient have been tried against it. A zero gradient stays zero; inf and nan count as
    largest and pass.

    Replay: zeros of the observation are the mask. More zeros than are pruned say that only zeros
    were, and then nothing is masked. Where several masks are behind one observation, of examples or
    of local steps, they cannot be read from it, and a replay prunes by its own values, as it does
    without an observation.

    Args:
        fraction: share of coordinates set to 0, in [0, 1); the share's decimal digits are meant:
            0.29 of 100 is 29.
        scope: whether the coordinates of all tensors are ranked together or each tensor's apart.
        at: which gradient is pruned, "update" or "example".
    """

    name: ClassVar[str] = "prune"
    paper: ClassVar[str] = "TPDS section 4.1"
    fraction: float = 0.9
    scope: Literal["global", "tensor"] = "global"
    at: Literal["update", "example"] = "update"

    def __post_init__(self) -> None:
        require_in(self.name, "[0, 1)", fraction=self.fraction)
        if self.scope not in ("global", "tensor"):
            raise LeakbenchError(f"prune: scope must be global or tensor, got {self.scope!r}")
        if self.at not in ("update", "example"):
            raise LeakbenchError(f"prune: at must be update or example, got {self.at!r}")
        check_kinds(self)

    @property
    def hooks(self) -> frozenset[str]:
        return frozenset(["on_examples" if self.at == "example" else "on_update"])

    @property
    def reads_observation(self) -> bool:
        return True

    @property
    def rowwise(self) -> bool:
        return self.at == "example"

    def on_examples(
        self, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        return self._pruned(gradients, context) if self.at == "example" else gradients, state

    def on_update(
        self, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        return self._pruned(gradients, context) if self.at == "update" else gradients, state

    def _pruned(self, gradients: Gradients, context: Context) -> Gradients:
        observed = _observed(gradients, context)
        names = list(gradients.tensors)
        shown: dict[str, Tensor] = {}
        for group in [names] if self.scope == "global" else [[name] for name in names]:
            part = _only(gradients, group)
            values = part.flatten()
            count = math.floor(Fraction(str(self.fraction)) * values.shape[-1])
            if observed is None:
                zeroed = _smallest(values, count)
            else:
                hidden = _only(observed, group).flatten() == 0
                zeroed = hidden & (hidden.sum(dim=-1, keepdim=True) <= count)
            sizes = [math.prod(value.shape[len(part.axes) :]) for value in part.tensors.values()]
            for name, mask in zip(group, zeroed.split(sizes, dim=-1), strict=True):
                value = part.tensors[name]
                shown[name] = torch.where(mask.reshape(value.shape), 0.0, value)
        return replace(gradients, tensors=shown)

    def noise_std(
        self, observer: Observer, weights: Weights, state: State, context: Context
    ) -> dict[str, float] | None:
        return None if observer == "model" else dict.fromkeys(weights, 0.0)

    def guarantee(self, observer: Observer, weights: Weights, setting: Setting) -> Guarantee:
        reason = "no noise is added, and which coordinates survive depends on the data"
        return Guarantee(level="none", reason=reason)


def _smallest(values: Tensor, count: int) -> Tensor:
    """True at the `count` smallest absolute values of every row (*leading, d); nan is largest."""
    order = values.detach().abs().argsort(dim=-1, stable=True)
    found = torch.zeros_like(values, dtype=torch.bool)
    return found.scatter(-1, order[..., :count], True)


def _observed(gradients: Gradients, context: Context) -> Gradients | None:
    """In a replay the observation, with the axes of `gradients`, if it shows their masks."""
    seen = context.observation
    if context.noise is not None or seen is None:
        return None
    if seen.axes == gradients.axes:
        return seen
    if context.batch_size > 1 or context.local_steps > 1:
        return None
    return Gradients({k: v.unsqueeze(1) for k, v in seen.tensors.items()}, gradients.axes)


def _only(gradients: Gradients, names: list[str]) -> Gradients:
    return Gradients({name: gradients.tensors[name] for name in names}, gradients.axes)
