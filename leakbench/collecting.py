"""Python's search for cycles of objects, which takes as long as making many of them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


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
            gc.enable()
