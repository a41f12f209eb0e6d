"""Compression that is taken for protection: largest coordinates, percentile, signs, few bits.

Calibration rows: none of them promises anything, and a table shows what they are worth beside the
mechanisms that do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import torch
from torch import Tensor

from leakbench.compressing import Compression, masked, observed_mask
from leakbench.contracts import Context, Gradients
from leakbench.errors import LeakbenchError
from leakbench.parameters import check_kinds, require_in


@dataclass(frozen=True, slots=True, kw_only=True)
class TopK(Compression):
    """Top-k sparsification (Aji and Heafield 2017; Lin et al. 2018), without error feedback.

    Of all d coordinates the k = max(1, floor(share * d)) of largest absolute value are shown, of
    equal ones those that come last; the others become 0. inf and nan count as largest. Replay: the
    mask is that of the observation; where one observation has several masks behind it, of its own.

    Args:
        share: shown, in (0, 1]; its decimal digits are meant: 0.29 of 100 is 29.
        at: what is sparsified, "update" or "example".
    """

    name: ClassVar[str] = "top_k"
    paper: ClassVar[str] = "Aji and Heafield, EMNLP 2017"
    share: float = 0.1

    def __post_init__(self) -> None:
        require_in(self.name, "(0, 1]", share=self.share)
        check_kinds(self)

    @property
    def reads_observation(self) -> bool:
        return True

    def compressed(self, gradients: Gradients, context: Context) -> Gradients:
        values = gradients.flatten()
        count = max(math.floor(Fraction(str(self.share)) * values.shape[-1]), 1)
        shown = observed_mask(gradients, context, count)
        if shown is None:
            order = values.detach().abs().argsort(dim=-1, stable=True)
            shown = torch.zeros_like(values, dtype=torch.bool)
            shown = shown.scatter(-1, order[..., -count:], True)
        return masked(gradients, shown)


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentile(Compression):
    """Share the largest, bounded: NVFlare's PercentilePrivacy (after Shokri and Shmatikov 2015).

    Of the step-averaged change |dW| / L, coordinates below its `percentile` (linear between order
    statistics, as numpy has it) become 0; the others are bounded to [-gamma, gamma]. The filter's
    text says that it shares what is above the percentile: its default of 10 shows 90 % of the
    coordinates. A single number (a parameter of shape ()) passes as it is, as it does there. nan
    anywhere makes the percentile nan, and then all pass, bounded; nan stays nan.

    Replay: coordinates that the observation hides stay hidden, the others are bounded, and
    "bounded" has no derivative beyond gamma, where an attacker goes straight through.

    Args:
        percentile: of |dW| / L, in [0, 100].
        gamma: bound, > 0, in units of weights (at "example": of a gradient).
        at: what is filtered, "update" or "example".
    """

    name: ClassVar[str] = "percentile"
    paper: ClassVar[str] = "NVFlare, PercentilePrivacy"
    percentile: float = 10.0
    gamma: float = 0.01

    def __post_init__(self) -> None:
        require_in(self.name, "[0, 100]", percentile=self.percentile)
        require_in(self.name, "(0, inf)", gamma=self.gamma)
        check_kinds(self)

    @property
    def reads_observation(self) -> bool:
        return True

    def compressed(self, gradients: Gradients, context: Context) -> Gradients:
        steps = context.local_steps if self.at == "update" else 1
        values = gradients.flatten()
        place = self.percentile / 100 * (values.shape[-1] - 1)
        shown = observed_mask(gradients, context, values.shape[-1] - math.ceil(place))
        if shown is None:
            sizes = values.detach().abs()
            shown = ~(sizes < _between(sizes, place))
        hidden = masked(gradients, shown)
        bound = self.gamma * steps

        def bounded(name: str, value: Tensor) -> Tensor:
            single = value.ndim == len(gradients.axes)
            return gradients.tensors[name] if single else value.clamp(-bound, bound)

        return hidden.map(bounded)


def _between(sizes: Tensor, place: float) -> Tensor:
    """(*leading, 1) the value at `place` of the sorted (*leading, d), between two neighbours."""
    below = math.floor(place)
    ordered = sizes.sort(dim=-1).values
    low, high = (
        ordered[..., min(index, sizes.shape[-1] - 1), None] for index in (below, below + 1)
    )
    return torch.where(low == high, low, low + (place - below) * (high - low))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign(Compression):
    """signSGD (Bernstein et al. 2018): of every coordinate its sign alone, of one public size.

    A gradient's coordinate becomes `scale` times its sign, a dW's L * learning rate times that, so
    that it reads the same in the units of a gradient. 0 stays 0; nan stays nan. The sign has no
    derivative: an adaptive attacker replays it straight through.

    Args:
        scale: > 0, in the units of a gradient.
        at: whose signs are shown, "update" or "example".
    """

    name: ClassVar[str] = "sign"
    paper: ClassVar[str] = "Bernstein et al., ICML 2018"
    scale: float = 1.0

    def __post_init__(self) -> None:
        require_in(self.name, "(0, inf)", scale=self.scale)
        check_kinds(self)

    def compressed(self, gradients: Gradients, context: Context) -> Gradients:
        size = self.scale * self.unit(context)
        return gradients.map(
            lambda _, value: torch.where(value.isnan(), value, value.sign() * size)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantise(Compression):
    """Few bits a coordinate: uniform levels between the largest values, each tensor by itself.

    With b > 1 bits every coordinate is rounded to the nearest of 2^b - 1 levels k m / (2^(b-1) - 1)
    for m the tensor's largest absolute value. With 1 bit it is the sign times the tensor's mean
    absolute value (Seide et al. 2014), 0 counting as positive. Rounding is to the nearest, nothing
    is random. A tensor of zeros stays zero; inf or nan make the whole tensor nan (1 bit: inf makes
    it infinite). Rounding has no derivative: an adaptive attacker replays it straight through.

    Args:
        bits: a coordinate, 8, 4 or 1.
        at: what is rounded, "update" or "example".
    """

    name: ClassVar[str] = "quantise"
    paper: ClassVar[str] = "Seide et al., Interspeech 2014 (1 bit); uniform quantisation"
    bits: int = 8

    def __post_init__(self) -> None:
        check_kinds(self)
        if self.bits not in (8, 4, 1):
            raise LeakbenchError(f"quantise: bits must be 8, 4 or 1, got {self.bits}")

    def compressed(self, gradients: Gradients, context: Context) -> Gradients:
        leading = len(gradients.axes)

        def rounded(_: str, value: Tensor) -> Tensor:
            flat = value.reshape(*value.shape[:leading], -1)
            if self.bits == 1:
                size = flat.abs().mean(dim=-1, keepdim=True)
                shown = torch.where(flat < 0, -size, size)
            else:
                levels = 2 ** (self.bits - 1) - 1
                step = flat.abs().amax(dim=-1, keepdim=True) / levels
                shown = (flat / torch.where(step == 0, 1.0, step)).round() * step
            return shown.reshape(value.shape)

        return gradients.map(rounded)
