"""Errors that reach the user as one sentence: what is wrong, where, and what is allowed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from numbers import Integral


class LeakbenchError(Exception):
    """Bad input; the command line prints the text and exits with code 2."""


class PluginBroken(LeakbenchError):
    """Code of a plugin fails where only asked what it is; others can run without it."""


class DataMissing(LeakbenchError):
    """A data set is not on this machine; the text names the command that gets it."""


def unknown_name(
    kind: str, name: object, allowed: Iterable[str], where: str = ""
) -> LeakbenchError:
    """One sentence for a name nobody knows: where it stands, the closest match, all allowed."""
    names = sorted(allowed)
    close = difflib.get_close_matches(str(name), names, n=1)
    hint = f" (did you mean '{close[0]}'?)" if close else ""
    place = f"{where}: " if where else ""
    return LeakbenchError(
        f"{place}unknown {kind} '{name}'{hint}; allowed: {', '.join(names) or 'none'}"
    )


def require_at_least(plugin: str, least: int, **values: object) -> None:
    """Refuse what is no whole number from `least` on, naming plugin and parameter."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise LeakbenchError(f"{plugin}: {name} must be a whole number, got {value!r}")
        if not int(value) >= least:
            raise LeakbenchError(f"{plugin}: {name} must be at least {least:g}, got {value}")
