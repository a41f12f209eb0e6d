"""AdaCliP: gradients are clipped and noised after a coordinate-wise transform."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from leakbench.clipping import (
    UPDATES,
    add_noise,
    check_parameters,
    clip_flat,
    gaussian_guarantee,
    noise_share,
    visible_noise,
)
from leakbench.contracts import (
    Context,
    Defense,
    Gradients,
    Guarantee,
    NoiseConvention,
    Observer,
    Setting,
    Weights,
)
from leakbench.errors import LeakbenchError
from leakbench.numeric import square_root
from leakbench.parameters import check_kinds, require_in


@dataclass(frozen=True, slots=True)
class Moments:
    """Estimates of the batch gradient: mean m and standard deviation s of every coordinate.

    Shape (clients, *parameter shape); one client before the first iteration, which all share.
    used: the scale b of the last local step, its root mean square over all coordinates.
    """

    mean: Mapping[str, Tensor]
    std: Mapping[str, Tensor]
    used: Tensor | None = None

    def scale(self) -> dict[str, Tensor]:
        """b = sqrt(s) sqrt(sum of all s), the transform that minimises the added noise."""
        total = torch.stack([s.flatten(1).sum(dim=1) for s in self.std.values()]).sum(dim=0)
        return {
            k: square_root(s * total.reshape(-1, *[1] * (s.ndim - 1))) for k, s in self.std.items()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaClip(Defense):
    """AdaCliP (Pichapati, Suresh, Yu, Reddi, Kumar 2019; arXiv 1908.07643).

    on_examples: w = (g - m) / b, the whole w clipped to L2 norm 1, back-transformed to b w + m;
    noise N(0, (sigma b)^2) on each coordinate by convention: the tap is after the inverse
    transform. on_batch: with the noisy mean g~, m <- beta1 m + (1 - beta1) g~ and s^2 <- beta2 s^2
    + (1 - beta2) v, v = (g~ - m)^2 minus the noise variance, kept inside [h1, h2].

    Guarantee: instance-level Gaussian mechanism of sensitivity 1 and std sigma in the transformed
    space, around m, which stands for an absent example (two examples are 2 apart); m and b come
    from released gradients only. None under Poisson sampling of examples, where m has no bound. A
    zero gradient passes as m's share; nan makes the example nan, inf leaves nan in its place and m
    elsewhere.

    The start is not given by TIFS and TPDS. m = 0, and s is equal in all coordinates. start "clip":
    such that b = C; the first iteration clips the whole gradient to `clip` and adds noise sigma C,
    as "C = 4, sigma = 6" asks of all methods there. start "reference": s = sqrt(h1 h2), as in the
    implementation that TPDS names; b = s sqrt(d) of d coordinates then is .013 on `lenet_cpl`, and
    neither C nor, in effect, sigma = 6 says how much noise there is.

    Args:
        start: s before the first iteration. clip: b there, under start "clip".
        noise_multiplier: sigma (TIFS: 6).
        mean_decay, variance_decay: beta1, beta2. variance_min, variance_max: h1, h2.
        convention: where the noise enters.
    """

    name: ClassVar[str] = "adaclip"
    paper: ClassVar[str] = "Pichapati et al., arXiv 1908.07643"
    start: Literal["clip", "reference"] = "clip"
    clip: float = 4.0
    noise_multiplier: float = 6.0
    mean_decay: float = 0.99
    variance_decay: float = 0.9
    variance_min: float = 1e-5
    variance_max: float = 1e-3
    convention: NoiseConvention = "per_example"

    def __post_init__(self) -> None:
        check_parameters(self.name, self.clip, self.noise_multiplier)
        require_in(
            self.name, "[0, 1]", mean_decay=self.mean_decay, variance_decay=self.variance_decay
        )
        require_in(
            self.name, "(0, inf)", variance_min=self.variance_min, variance_max=self.variance_max
        )
        if self.variance_min > self.variance_max:
            raise LeakbenchError(
                f"{self.name}: variance_min must not be above variance_max, "
                f"got {self.variance_min} and {self.variance_max}"
            )
        check_kinds(self)

    @property
    def rowwise(self) -> bool:
        return self.convention != "per_example"

    def init(self, weights: Weights) -> Moments:
        size = sum(v.numel() for v in weights.values())
        start = self.clip / math.sqrt(size)  # b = sqrt(s * size * s) = clip
        if self.start == "reference":
            start = math.sqrt(self.variance_min * self.variance_max)
        return Moments(
            mean={k: torch.zeros_like(v)[None] for k, v in weights.items()},
            std={k: torch.full_like(v, start)[None] for k, v in weights.items()},
        )

    def merge(self, state: Moments) -> Moments:
        """The mean of the clients' estimates: of m, and of s^2."""
        return Moments(
            mean={k: m.mean(dim=0, keepdim=True) for k, m in state.mean.items()},
            std={
                k: square_root(s.square().mean(dim=0, keepdim=True)) for k, s in state.std.items()
            },
        )

    def on_examples(
        self, gradients: Gradients, state: Moments, context: Context
    ) -> tuple[Gradients, Moments]:
        b = {k: v[:, None] for k, v in state.scale().items()}  # the same for all examples
        m = {k: v[:, None] for k, v in state.mean.items()}
        clipped = clip_flat(gradients.map(lambda k, g: (g - m[k]) / b[k]), 1.0)
        shown = clipped.map(lambda k, w: b[k] * w + m[k])
        std = {k: self.noise_multiplier * v for k, v in b.items()}
        return add_noise(shown, context, self.convention, "examples", std), state

    def on_batch(
        self, gradients: Gradients, state: Moments, context: Context
    ) -> tuple[Gradients, Moments]:
        b = state.scale()
        std = {k: self.noise_multiplier * v for k, v in b.items()}
        shown = add_noise(gradients, context, self.convention, "batch", std)
        share = noise_share(self.convention, context.batch_size)
        mean, deviation = {}, {}
        for k, g in shown.tensors.items():
            surplus = (g - state.mean[k]).square() - (share * std[k]).square()
            variance = surplus.clamp(self.variance_min, self.variance_max)
            mean[k] = self.mean_decay * state.mean[k] + (1 - self.mean_decay) * g
            kept = self.variance_decay * state.std[k].square()
            deviation[k] = square_root(kept + (1 - self.variance_decay) * variance)
        return shown, Moments(mean, deviation, used=_root_mean_square(b))

    def guarantee(self, observer: Observer, weights: Weights, setting: Setting) -> Guarantee:
        if setting.sampling == "poisson" and setting.all_clients == 1:
            reason = "under Poisson sampling one more example brings its share of m, without bound"
            return Guarantee(level="none", reason=reason)
        promise = gaussian_guarantee(
            observer,
            self.convention,
            clip=1.0,
            noise_multiplier=self.noise_multiplier,
            tensors=1,
            setting=setting,
            unit="flat",
        )
        said = "an absent example counts as one whose gradient is the estimated mean m"
        if promise.level == "none":
            return promise
        return replace(promise, assumptions=(*promise.assumptions, said))

    def noise_std(
        self, observer: Observer, weights: Weights, state: Moments, context: Context
    ) -> dict[str, float] | None:
        """Root mean square over a tensor's coordinates, which differ after the first iteration.

        None behind several local steps: b moves with each.
        """
        share = visible_noise(observer, self.convention, context)
        if share is None or (observer in UPDATES and context.local_steps > 1):
            return None
        return {
            name: share * self.noise_multiplier * math.sqrt(float(b.square().mean()))
            for name, b in state.scale().items()
        }

    def scales(self, state: Moments, context: Context) -> Mapping[str, float]:
        """C_t and S_t are b, its root mean square over coordinates and mean over clients, of the
        last local step."""
        used = _root_mean_square(state.scale()) if state.used is None else state.used
        scale = float(used.mean())
        return {"clip": scale, "noise_multiplier": self.noise_multiplier, "sensitivity": scale}


def _root_mean_square(scale: Mapping[str, Tensor]) -> Tensor:
    """Of b over all coordinates, (clients,)."""
    flat = torch.cat([value.flatten(1) for value in scale.values()], dim=1)
    return flat.square().mean(dim=1).sqrt()
