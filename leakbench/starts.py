"""First iterates of inversion attacks, keyed by victim and restart, in input space [0, 1]."""

from __future__ import annotations

import math

from torch import Tensor

from leakbench.contracts import Leak, Streams
from leakbench.errors import LeakbenchError


def patterned(leak: Leak, streams: Streams, grid: int, restart: int = 0) -> Tensor:
    """One random tile, U[0, 1) for each channel, repeated `grid` x `grid` times (CPL, section 4).

    Returns (n, B, channels, height, width). A side that `grid` does not divide is cut off.
    """
    if grid < 1 or len(leak.input_shape) != 3:
        raise LeakbenchError(
            f"patterned start: grid must be >= 1 and inputs images (channels, height, width), "
            f"got grid {grid} and shape {leak.input_shape}"
        )
    channels, height, width = leak.input_shape
    tile = (math.ceil(height / grid), math.ceil(width / grid))
    drawn = streams.uniform("start", (leak.batch_size, channels, *tile), restart)
    image = drawn.repeat(1, 1, 1, grid, grid)[..., :height, :width]
    return image.to(dtype=leak.dtype, device=leak.device)


def gaussian(leak: Leak, streams: Streams, restart: int = 0) -> Tensor:
    """N(0, 1) in every pixel (DLG); (n, B, *input shape)."""
    drawn = streams.normal("start", (leak.batch_size, *leak.input_shape), restart)
    return drawn.to(dtype=leak.dtype, device=leak.device)
