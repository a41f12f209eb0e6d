"""Python's search for cycles of objects, which takes as long as making many of them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

MANY = 200_000
"""Objects that were made meanwhile and are still there."""


@contextmanager
def uncollected() -> Iterator[None]:
    """Without looking for cycles: for who makes very many objects that are in none, records say or
    cells of a plan. Around it everything is as it was."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            if gc.get_count()[0] > MANY:
                gc.collect()  # else the next three searches go through them, one after another
            gc.enable()
