"""Calls into code of plugins: however one ends, it is an error of theirs, not the process's end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from leakbench.errors import PluginBroken
from leakbench.plugin_files import one_line
from leakbench.stopping import Stopped


@contextmanager
def without_exit(who: str) -> Iterator[None]:
    """What plugins raise to end more than themselves, `SystemExit` say, is an error of theirs.

    who: as an error names it, e.g. "attack 'mine'"; "" where whoever catches it does.

    Raises:
        PluginBroken: something was raised that is no `Exception`. What a signal raises comes
            through, and so does every `Exception`.
    """
    with _noting_interrupts() as interrupts:
        try:
            yield
        except (Exception, Stopped):
            raise
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and interrupts:
                raise
            said = one_line(error)
            raise PluginBroken(f"{who}: raises {said}" if who else said) from error


@contextmanager
def _noting_interrupts() -> Iterator[list[int]]:
    """Fills up with the SIGINTs that arrive: a `KeyboardInterrupt` may be a plugin's own."""
    noted: list[int] = []
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield noted  # then no signal raises anything here
        return

    def note(number: int, frame: FrameType | None) -> Any:
        noted.append(number)
        return handler(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, handler)
