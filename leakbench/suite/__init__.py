"""A suite file (TOML) -> a plan: what to run, judge and compare, checked before anything starts.

A suite is one table of one paper: data sets x variants x defenses x knowledge, with the printed
numbers beside them as strings, exactly as printed; `docs/suites.md` explains the keys. `files`
finds it, `reading` makes checked `tables` of it, `settings` changes them from the command line, and
`resolving` makes the `spec.Plan` of them, which is all that anything else sees.
"""

from leakbench.suite.files import listed, names
from leakbench.suite.parameters import complete
from leakbench.suite.reading import read
from leakbench.suite.resolving import resolve

__all__ = ["complete", "listed", "names", "read", "resolve"]
