"""First iterates of inversion attacks, keyed by victim and restart: (n, B, *input shape).

Uniform draws and constants fill the range of the inputs, [0, 1] for pictures; normal ones do not
look at it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from leakbench.contracts import Leak, LeakFacts, Streams
from leakbench.errors import LeakbenchError
from leakbench.preparation import normaliser_of

Distribution = Literal["uniform", "normal"]


def patterned(
    leak: Leak,
    streams: Streams,
    grid: int,
    restart: int = 0,
    distribution: Distribution = "uniform",
) -> Tensor:
    """One random tile, drawn for each channel, repeated `grid` x `grid` times (CPL, section 4).

    Returns (n, B, channels, height, width). A side that `grid` does not divide is cut off.
    """
    if grid < 1 or len(leak.input_shape) != 3:
        raise LeakbenchError(
            f"patterned start: grid must be >= 1 and inputs images (channels, height, width), "
            f"got grid {grid} and shape {leak.input_shape}"
        )
    channels, height, width = leak.input_shape
    tile = (channels, math.ceil(height / grid), math.ceil(width / grid))
    drawn = _draw(leak, streams, tile, restart, distribution)
    return drawn.repeat(1, 1, 1, grid, grid)[..., :height, :width]


def uniform(leak: Leak, streams: Streams, restart: int = 0) -> Tensor:
    """Uniform over the input range in every pixel."""
    return _draw(leak, streams, leak.input_shape, restart, "uniform")


def gaussian(leak: Leak, streams: Streams, restart: int = 0) -> Tensor:
    """N(0, 1) in every pixel (DLG)."""
    return _draw(leak, streams, leak.input_shape, restart, "normal")


def dark(leak: Leak, streams: Streams, restart: int = 0) -> Tensor:
    """The lower end of the input range everywhere; the same for every restart."""
    shape = (leak.n, leak.batch_size, *leak.input_shape)
    return torch.full(shape, leak.input_range[0], dtype=leak.dtype, device=leak.device)


def light(leak: Leak, streams: Streams, restart: int = 0) -> Tensor:
    """The upper end of the input range everywhere; the same for every restart."""
    return torch.full_like(dark(leak, streams), leak.input_range[1])


def coloured(leak: Leak, streams: Streams, restart: int = 0, *, channel: int) -> Tensor:
    """Light in one of three channels, dark in the others; the same for every restart."""
    if len(leak.input_shape) != 3 or leak.input_shape[0] != 3:
        raise LeakbenchError(
            f"coloured start: inputs must be images (3, height, width), got shape "
            f"{leak.input_shape}"
        )
    image = dark(leak, streams)
    image[:, :, channel] = leak.input_range[1]
    return image


def surrogate(leak: Leak, streams: Streams, restart: int = 0) -> Tensor:
    """Public inputs of the same kind, drawn for each place of the batch."""
    if leak.public is None:
        raise LeakbenchError("surrogate start: the threat model must grant 'public' inputs")
    drawn = streams.uniform("surrogate", (leak.batch_size,), restart)
    chosen = (drawn * len(leak.public)).long().to(leak.public.device)
    return leak.public[chosen].to(dtype=leak.dtype, device=leak.device)


def centre_patch(leak: Leak, streams: Streams, restart: int = 0) -> Tensor:
    """A public image whose middle, half as high and half as wide, is uniform noise.

    Commented out beside the starts of CPL's notebooks, on another private image of 32 x 32 with a
    patch of 16 x 16.
    """
    image = surrogate(leak, streams, restart)
    height, width = leak.input_shape[-2:]
    rows = slice(height // 4, height // 4 + height // 2)
    columns = slice(width // 4, width // 4 + width // 2)
    image[..., rows, columns] = uniform(leak, streams, restart)[..., rows, columns]
    return image


def channel_moments(leak: Leak) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the public inputs, those of a channel taken together.

    Both (channels, 1, 1), or (columns,) for rows of tables; 1 in place of a deviation of 0. They
    stand for the constants by which a data set is commonly normalised, which are public.
    """
    if leak.public is None:
        raise LeakbenchError("channel moments: the threat model must grant 'public' inputs")
    found = normaliser_of(leak.public.to(dtype=torch.float64, device=leak.device))
    return found.mean.to(leak.dtype), found.std.to(leak.dtype)


STARTS: dict[str, Callable[[Leak, Streams, int], Tensor]] = {
    "uniform": uniform,
    "normal": gaussian,
    "dark": dark,
    "light": light,
    "red": partial(coloured, channel=0),
    "green": partial(coloured, channel=1),
    "blue": partial(coloured, channel=2),
    "surrogate": surrogate,
    "centre_patch": centre_patch,
}
"""Starts without parameters of their own."""

CONSTANT = ("dark", "light", "red", "green", "blue")
"""Those that no restart changes."""


def unsuited(init: str, facts: LeakFacts) -> str:
    """Why the start `init` (one of `STARTS`, or "patterned") cannot be had; "" where it can."""
    shape = facts.input_shape
    if init == "patterned" and len(shape) != 3:
        return (
            f"the start 'patterned' takes images (channels, height, width), not inputs of shape "
            f"{shape}"
        )
    if init in ("red", "green", "blue") and (len(shape) != 3 or shape[0] != 3):
        return f"the start '{init}' takes images (3, height, width), not inputs of shape {shape}"
    if init == "centre_patch" and len(shape) != 3:
        return (
            f"the start 'centre_patch' takes images (channels, height, width), not inputs of shape "
            f"{shape}"
        )
    if init in ("surrogate", "centre_patch") and not facts.public:
        return f"the start '{init}' needs 'public' inputs, which the threat model must grant"
    return ""


def _draw(
    leak: Leak,
    streams: Streams,
    shape: tuple[int, ...],
    restart: int,
    distribution: Distribution,
) -> Tensor:
    """(n, B, *shape) drawn in float64 and rounded."""
    shape = (leak.batch_size, *shape)
    if distribution == "normal":
        drawn = streams.normal("start", shape, restart)
    else:
        low, high = leak.input_range
        drawn = low + (high - low) * streams.uniform("start", shape, restart)
    return drawn.to(dtype=leak.dtype, device=leak.device)
