"""Entry point of the command line: how it ends, whatever happens. What it can do:
`leakbench.commands`."""

from __future__ import annotations

import atexit
import io
import os
import signal
import sys
import threading
from typing import Any, TextIO

from leakbench.errors import LeakbenchError
from leakbench.printable import printable
from leakbench.stopping import SIGNALS, Stop, Stopped


def main() -> None:
    """Run a command: bad input ends with one sentence and code 2, a signal with code 3."""
    # Workers do the parallel work; a second thread a process made a busy machine 20 times slower.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    _open_streams()
    before = threading.enumerate()
    # First of all: the imports below take tenths of a second, those of a command seconds.
    with Stop().listening():
        code = _code_of_command()
    atexit.register(_let_go)
    if any(not each.daemon for each in threading.enumerate() if each not in before):
        # Python would wait for a thread that a plugin has left running, perhaps for ever.
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)
    sys.exit(code)


def _open_streams() -> None:
    """Closed ones lead nowhere: else the next file that is opened gets what is printed."""
    lost = {"stdout": BrokenPipeError, "stderr": OSError}
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
        elif name in lost:
            setattr(sys, name, _unread(stream, lost[name]))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal may know no check mark


class _Unread(io.FileIO):
    """A stream that nobody may be reading any more: what cannot be written is dropped."""

    lost: type[OSError] = OSError

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except self.lost:
            return memoryview(data).nbytes


def _unread(stream: TextIO, lost: type[OSError]) -> TextIO:
    """The stream, on which this error is none: `run ... | head -1` does its work all the same, and
    a full disk under a log does not end a run."""
    buffer = getattr(stream, "buffer", None)
    raw = getattr(buffer, "raw", buffer)
    if not isinstance(stream, io.TextIOWrapper) or type(raw) is not io.FileIO:
        return stream  # a notebook's or a test's
    stream.flush()
    deaf = _Unread(raw.fileno(), "wb", closefd=False)
    deaf.lost = lost
    return io.TextIOWrapper(
        io.BufferedWriter(deaf), encoding=stream.encoding, errors=stream.errors,
        line_buffering=stream.line_buffering,
    )  # fmt: skip


def _let_go() -> None:
    """Nothing is left to be interrupted: an impatient Ctrl-C would show as a traceback."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _code_of_command() -> int:
    """Run the command; returns the exit code."""
    try:
        from leakbench.commands.application import app

        try:
            app()
        except SystemExit as ended:  # how typer ends
            return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        finally:
            sys.stdout.flush()
    except LeakbenchError as error:
        _say(f"leakbench: {error}")
        return 2
    except (KeyboardInterrupt, Stopped):
        _say("leakbench: stopped")
        return 3
    except OSError as error:
        # What is left in the buffer would fail once more, and louder, at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _say(f"leakbench: {error}")
        return 2
    return 0


def _say(text: str) -> None:
    print(printable(text), file=sys.stderr)  # noqa: T201  this is the command line


if __name__ == "__main__":
    main()
