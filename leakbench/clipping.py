"""Clipping and the Gaussian mechanism as the differentially private defenses use them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from leakbench.contracts import (
    Context,
    Gradients,
    Guarantee,
    NoiseConvention,
    Observer,
    Setting,
)
from leakbench.parameters import require_in

UPDATES: tuple[Observer, ...] = ("server", "type0", "type0_raw", "type1")
"""Who reads a client's update."""

Bound = Tensor | float | Mapping[str, Tensor]


def check_parameters(name: str, clip: float, noise_multiplier: float) -> None:
    """Refuse what is no bound or no noise scale: a negative bound would turn gradients round."""
    require_in(name, "(0, inf)", clip=clip)
    require_in(name, "[0, inf)", noise_multiplier=noise_multiplier)


def clip_tensors(gradients: Gradients, bound: Bound) -> Gradients:
    """Scale every tensor of every stacked gradient to L2 norm <= bound (TIFS Algorithm 1).

    bound: C > 0; one number, a tensor over the leading axes, or such a tensor a parameter. A
    gradient under C passes untouched, bit for bit; a zero gradient stays zero; a tensor with nan
    comes out nan, one with inf as nan and zeros. The whole gradient's sensitivity is sqrt(M) C for
    M tensors, not C.
    """
    factors = {
        name: bound_factor(norm, bound[name] if isinstance(bound, Mapping) else bound)
        for name, norm in gradients.norms().items()
    }
    return gradients.scale(factors)


def clip_flat(gradients: Gradients, bound: Tensor | float) -> Gradients:
    """Scale all tensors together to L2 norm <= bound (Abadi et al. 2016); sensitivity is C.

    Same edge cases as `clip_tensors`.
    """
    return gradients.scale(bound_factor(gradients.flat_norm(), bound))


def bound_factor(norm: Tensor, bound: Tensor | float) -> Tensor:
    """bound / norm, which scales a gradient of this norm down to it; exactly 1 under the bound."""
    # An attack differentiates this: the quotient must stay finite, and so must its derivative in
    # the branch not taken (limit / norm^2 overflows long before the norm reaches 0).
    limit = torch.as_tensor(bound, dtype=norm.dtype, device=norm.device)
    return limit / torch.where(norm <= limit, limit, norm)


def add_noise(
    gradients: Gradients,
    context: Context,
    convention: NoiseConvention,
    where: Literal["examples", "batch"],
    std: Tensor | float | Mapping[str, Tensor],
) -> Gradients:
    """Gaussian noise, std = sigma S, if the convention puts it at hook `where`.

    `per_example` adds sigma S to every example (Fed-CDP Algorithm 2), `mean` adds sigma S to the
    batch mean (TIFS Algorithm 2), `sum` adds sigma S / B to it (DP-SGD).
    """
    if (convention == "per_example") != (where == "examples"):
        return gradients
    share = 1 / context.batch_size if convention == "sum" else 1.0
    if isinstance(std, Mapping):
        return context.add_gaussian(gradients, {k: share * v for k, v in std.items()}, where)
    return context.add_gaussian(gradients, share * std, where)


def noise_share(convention: NoiseConvention, batch_size: int) -> float:
    """Std of the noise on the batch mean, as a multiple of sigma S."""
    shares: dict[str, float] = {
        "per_example": 1 / math.sqrt(batch_size), "mean": 1.0, "sum": 1 / batch_size,
    }  # fmt: skip
    return shares[convention]


def visible_noise(
    observer: Observer, convention: NoiseConvention, context: Context
) -> float | None:
    """Std of the noise that `observer` sees, as a multiple of sigma S; None for who taps nothing.

    Where every one of L local steps has the same sigma S: an update is read as the mean of theirs.
    """
    if observer == "type2":
        return 1.0 if convention == "per_example" else 0.0
    share = noise_share(convention, context.batch_size)
    if observer == "type2_batch":
        return share
    return context.of_steps(share) if observer in UPDATES else None


def gaussian_guarantee(
    observer: Observer,
    convention: NoiseConvention,
    *,
    clip: float,
    noise_multiplier: float,
    tensors: int,
    setting: Setting,
    unit: Literal["tensor", "flat"] = "tensor",
) -> Guarantee:
    """Who is promised what by per-example clipping of M tensors to C each and noise sigma C.

    At the type-2 example tap noise is there only under `per_example`, and the observer sees one
    example's own gradient: sensitivity sqrt(M) C (presence against absence), std sigma C. Everyone
    else sees the batch mean, whose sensitivity is sqrt(M) C / B, and in an update as many of them
    as one example takes part in, each with noise of its own and made from the ones before: their
    mu add up in squares (Dong, Roth and Su 2019, Corollary 2). A tap behind the first local step
    learns of the means before it in the same way. Noise of single examples promises nothing where
    their number is drawn at random: it is as large as they are many.
    """
    whole, batch_size, uses = math.sqrt(tensors) * clip, setting.batch_size, setting.uses(observer)
    if noise_multiplier == 0:
        return Guarantee(level="none", reason="no noise is added")
    if observer == "type2" and convention != "per_example":
        reason = f"noise enters after the tap (convention '{convention}'): clipping only"
        return Guarantee(level="none", reason=reason)
    means = uses - 1 if observer == "type2" else uses
    drawn = setting.sampling == "poisson" and setting.all_clients == 1
    if convention == "per_example" and drawn and means:
        reason = "under Poisson sampling of examples the noise depends on how many are drawn"
        return Guarantee(level="none", reason=reason)
    share = noise_share(convention, batch_size)
    if observer == "type2":
        std = noise_multiplier * clip
        sensitivity = whole * math.hypot(1.0, math.sqrt(means) / (batch_size * share))
    else:
        std = noise_multiplier * clip * share
        sensitivity = math.sqrt(means) * whole / batch_size
    return Guarantee(
        level="instance",
        sensitivity=sensitivity,
        noise_std=std,
        unit=unit,
        tensors=tensors,
    )
