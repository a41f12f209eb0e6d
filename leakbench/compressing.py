"""Defenses that compress what is shown, and promise nothing: where they act, and masks they read.

What is compressed is a client's update or every example's gradient; `Compression` has the hooks and
a plugin says what becomes of the values. Sparsifying ones hide coordinates, and their replay reads
the mask off the observation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

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


# No slots here: plugins derive from it with slots of their own.
@dataclass(frozen=True, kw_only=True)
class Compression(Defense):
    """Base: `compressed` on a client's dW (on_update) or on every example's gradient (on_examples).

    Guarantee: none. Nothing random is added, so two neighbouring data sets are told apart with
    certainty wherever their compressed gradients differ.

    Args:
        at: what is compressed, "update" or "example".
    """

    at: Literal["update", "example"] = "update"

    @property
    def hooks(self) -> frozenset[str]:
        return frozenset(["on_examples" if self.at == "example" else "on_update"])

    @property
    def rowwise(self) -> bool:
        return self.at == "example"

    def on_examples(
        self, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        return self.compressed(gradients, context) if self.at == "example" else gradients, state

    def on_update(
        self, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        return self.compressed(gradients, context) if self.at == "update" else gradients, state

    def compressed(self, gradients: Gradients, context: Context) -> Gradients:
        """What is shown of gradients of any leading axes, each row by itself."""
        raise NotImplementedError

    def unit(self, context: Context) -> float:
        """What one in a gradient is where this acts: L * learning rate in a dW.

        Raises:
            LeakbenchError: the learning rate is not known, and updates are compressed.
        """
        return 1.0 if self.at == "example" else 1.0 / context.of_update(1.0)

    def guarantee(self, observer: Observer, weights: Weights, setting: Setting) -> Guarantee:
        return Guarantee(level="none", reason="gradients are compressed, and no noise is added")

    def noise_std(
        self, observer: Observer, weights: Weights, state: State, context: Context
    ) -> Mapping[str, float] | None:
        return None if observer == "model" else dict.fromkeys(weights, 0.0)


def observed_mask(gradients: Gradients, context: Context, least: int) -> Tensor | None:
    """(*leading, d) True where the observation shows a value, in a replay that can read it.

    least: coordinates that the defense shows where none of them is 0 by itself; a row of the
    observation with fewer says that the others were 0 anyway, and hides nothing. None outside a
    replay, without an observation, and where it has the mean of several hidden gradients.
    """
    seen = context.observation
    if context.noise is not None or seen is None:
        return None
    if seen.axes != gradients.axes:
        if context.batch_size > 1 or context.local_steps > 1:
            return None
        seen = Gradients({k: v.unsqueeze(1) for k, v in seen.tensors.items()}, gradients.axes)
    shown = replace(seen, mask=None).flatten() != 0
    return shown | (shown.sum(dim=-1, keepdim=True) < least)


def masked(gradients: Gradients, shown: Tensor) -> Gradients:
    """0 where `shown` (*leading, d) is False, the values bit for bit elsewhere."""
    leading = gradients.leading
    sizes = [value[(0,) * len(leading)].numel() for value in gradients.tensors.values()]
    tensors = {
        name: torch.where(part.reshape(value.shape), value, 0.0)
        for (name, value), part in zip(
            gradients.tensors.items(), shown.split(sizes, dim=-1), strict=True
        )
    }
    return replace(gradients, tensors=tensors)
