"""Bounds that a paper states on how far a reconstruction must be from its victim, checked.

W. Wei, K.-H. Chow, F. Ilhan, Y. Wu, L. Liu: Model Cloaking against Gradient Leakage, ICDM 2023,
Equations 6 to 9. With a gradient g, what is released of it g* = clip(g, C) + N(0, (sigma C)^2 I), d
coordinates, a victim x and its reconstruction x':

- Eq. 6: ||x - x'|| >= ||g - g*|| / ||g||;
- Eq. 7: ||x - x'|| >= sigma sqrt(d), by Eq. 6 and ||g|| <= C;
- Eq. 8: the same with sigma_dyn, where the noise is sigma_dyn S and S = ||g||;
- Eq. 9: sigma_dyn = sigma C / S >= sigma for noise of the same amount.

None of the right sides is about the attack, so one reconstruction that is nearer refutes a bound.
`docs/cloak.md` has counterexamples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leakbench.errors import LeakbenchError
from leakbench.parameters import require_in


@dataclass(frozen=True, slots=True, kw_only=True)
class Distances:
    """Both sides of the bounds for n victims, each (n,), in float64.

    Attributes:
        reconstruction: ||x - x'||, the left side of all.
        relative: ||g - g*|| / ||g||, the right side of Eq. 6; inf for a zero gradient.
        stated: sigma sqrt(d), that of Eq. 7, or with sigma_dyn of Eq. 8.
        bounded: whether ||g|| <= C, which the step from Eq. 6 to Eq. 7 takes for granted.
        farthest: largest ||x - x'|| of any x' with pixels in [0, 1].
    """

    reconstruction: Tensor
    relative: Tensor
    stated: Tensor
    bounded: Tensor
    farthest: Tensor

    @property
    def holds_relative(self) -> Tensor:
        """Where Eq. 6 holds, (n,)."""
        return self.reconstruction >= self.relative

    @property
    def holds_stated(self) -> Tensor:
        """Where Eq. 7 (or 8) holds, (n,)."""
        return self.reconstruction >= self.stated

    @property
    def impossible(self) -> Tensor:
        """Where every image with pixels in [0, 1] refutes Eq. 7 (or 8), (n,)."""
        return self.stated > self.farthest


def distances(
    gradients: Tensor,
    released: Tensor,
    inputs: Tensor,
    reconstructions: Tensor,
    *,
    clip: float,
    noise_multiplier: float | Tensor,
) -> Distances:
    """Measure both sides.

    Args:
        gradients, released: g and g*, (n, d), in units in which C is `clip`.
        inputs, reconstructions: x with pixels in [0, 1] and x', (n, *input shape).
        clip: C.
        noise_multiplier: sigma, or sigma_dyn of every victim (n,), see `dynamic_noise_multiplier`.

    Raises:
        LeakbenchError: shapes that do not belong together, C that is not positive, or victims with
            pixels outside [0, 1].
    """
    require_in("bounds", "(0, inf)", clip=clip)
    shapes = (gradients.shape == released.shape, inputs.shape == reconstructions.shape)
    if gradients.ndim != 2 or not all(shapes) or len(gradients) != len(inputs):
        raise LeakbenchError(
            f"bounds: gradients {tuple(gradients.shape)} and {tuple(released.shape)}, inputs "
            f"{tuple(inputs.shape)} and {tuple(reconstructions.shape)} do not belong together; "
            "allowed: (n, d) twice and (n, *input shape) twice"
        )
    if float(inputs.min()) < 0 or float(inputs.max()) > 1:
        raise LeakbenchError("bounds: victims must have pixels in [0, 1]")
    g, shown, x, guess = (
        value.double().flatten(1) for value in (gradients, released, inputs, reconstructions)
    )
    norm = g.norm(dim=1)
    sigma = torch.as_tensor(noise_multiplier, dtype=torch.float64).expand(len(g))
    return Distances(
        reconstruction=(x - guess).norm(dim=1),
        relative=(g - shown).norm(dim=1) / norm,
        stated=sigma * math.sqrt(g.shape[1]),
        bounded=norm <= clip,
        farthest=torch.maximum(x, 1 - x).norm(dim=1),
    )


def dynamic_noise_multiplier(gradients: Tensor, *, clip: float, noise_multiplier: float) -> Tensor:
    """sigma_dyn = sigma C / S of Eq. 9 with S = min(||g||, C), (n,); never below sigma.

    gradients: (n, d). A zero gradient has an infinite one.
    """
    norm = gradients.double().flatten(1).norm(dim=1)
    found: Tensor = noise_multiplier * clip / norm.clamp(max=clip)
    return found


def expected_distance(
    norm: float, *, clip: float, noise_multiplier: float, coordinates: int
) -> float:
    """Root mean square of ||g - g*|| for ||g|| = `norm`, over the noise: what clipping cuts off and
    sigma C sqrt(d) add up in squares (the left side of Eq. 5, exactly)."""
    return math.hypot(max(norm - clip, 0.0), noise_multiplier * clip * math.sqrt(coordinates))
