"""How a run is asked to end: by a signal or a deadline, and never in the middle of a write.

Nothing here imports torch: the command line installs it before anything else.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
"""What ends a run: Ctrl-C, a batch system, a terminal that is closed."""


_CAN_WAIT = hasattr(signal, "setitimer")


class Stopped(BaseException):
    """Raised where a process is when it is asked to end; the text says by whom. Like
    KeyboardInterrupt no Exception, and unlike it never a plugin's."""


class Stop:
    """Whether this process is asked to end, and why.

    What is `shielded` is finished first, and so is an import, unless another signal comes: many
    libraries catch everything while they are imported. A signal raises `Stopped` until somebody has
    `heard` it: where Python swallows it, in a destructor say, the next one does; after that signals
    are ignored, so that an impatient one does not break off an orderly end.

    Attributes:
        reason: why, "" if nobody has asked.
    """

    def __init__(self) -> None:
        self.reason = ""
        self._heard = False
        self._shields = 0

    def ask(self, reason: str) -> None:
        """Ask to end.

        Raises:
            Stopped: at once, unless shielded or heard before.
        """
        self.reason = self.reason or reason
        if not self._heard and not self._shields:
            raise Stopped(self.reason)

    def heard(self) -> None:
        """The end has begun."""
        self._heard = True

    def check(self) -> None:
        """Raise what was asked for and got lost on the way.

        Raises:
            Stopped: somebody has asked.
        """
        if self.reason:
            raise Stopped(self.reason)

    @contextmanager
    def shielded(self) -> Iterator[None]:
        """What is inside is finished before `Stopped` is raised.

        Raises:
            Stopped: at the end of the block, where it was asked meanwhile.
        """
        self._shields += 1
        try:
            yield
        finally:
            self._shields -= 1
        if self.reason:
            self.ask(self.reason)

    @contextmanager
    def listening(self, seconds: float | None = None) -> Iterator[Stop]:
        """Within, signals of `SIGNALS` ask, and after so many seconds the deadline does; those
        that were there before are put back. In the main thread only.

        Raises:
            Stopped: another one who listened was asked, and what that raised got lost on the way.
        """
        before = {number: signal.getsignal(number) for number in SIGNALS}
        for handler in before.values():
            outer = getattr(handler, "__self__", None)
            if isinstance(outer, Stop) and outer.reason:
                raise Stopped(outer.reason)
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:  # as nohup leaves SIGHUP
                signal.signal(number, self._signalled)
        if _CAN_WAIT:
            again = signal.signal(signal.SIGVTALRM, lambda _, frame: self._once_imported(frame))
        if seconds is not None:
            alarm = signal.signal(signal.SIGALRM, lambda number, frame: self.ask("the deadline"))
            signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            yield self
        finally:
            if seconds is not None:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, alarm)
            if _CAN_WAIT:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
                signal.signal(signal.SIGVTALRM, again)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        patient, self.reason = not self.reason, self.reason or signal.Signals(number).name
        if patient:
            self._once_imported(frame)
        else:
            self.ask(self.reason)

    def _once_imported(self, frame: FrameType | None) -> None:
        """Ask, or look again after some of the processor's time if an import is under way."""
        if _CAN_WAIT and _imports(frame):
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.01)
        else:
            self.ask(self.reason)


def _imports(frame: FrameType | None) -> bool:
    """Whether a module is being imported, in this frame or one that called it."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


NEVER = Stop()
"""For who is not asked: a notebook's Ctrl-C is its own."""
