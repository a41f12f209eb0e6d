"""Calls into code of plugins: however one ends, it is an error of theirs, not the process's end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
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
    with noting_interrupts() as interrupted:
        try:
            yield
        except (Exception, Stopped):
            raise
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and interrupted():
                raise
            said = one_line(error)
            raise PluginBroken(f"{who}: raises {said}" if who else said) from error


class _Note:
    """A handler of SIGINT that counts them and hands them on: `handler` is the one before it."""

    def __init__(self, handler: Callable[[int, FrameType | None], Any]) -> None:
        self.handler = handler
        self.count = 0

    def __call__(self, number: int, frame: FrameType | None) -> Any:
        self.count += 1
        return self.handler(number, frame)


@contextmanager
def noting_interrupts() -> Iterator[Callable[[], bool]]:
    """Says whether a SIGINT has arrived since: a `KeyboardInterrupt` may be a plugin's own.

    Whoever makes thousands of calls sets the handler once, around them: setting it takes longer
    than many a call.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield lambda: False  # then no signal raises anything here
        return
    if isinstance(handler, _Note):
        before = handler.count
        try:
            yield lambda: handler.count > before
        finally:
            if signal.getsignal(signal.SIGINT) is not handler:
                signal.signal(signal.SIGINT, handler)
        return
    note = _Note(handler)
    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: note.count > 0
    finally:
        signal.signal(signal.SIGINT, handler)
