"""A suite file (TOML) -> a plan: what to run, judge and compare, checked before anything starts.

A suite is one table of one paper: data sets x variants x defenses x knowledge, with the printed
numbers beside them as strings, exactly as printed. `docs/suites.md` explains the keys. `reading`
makes the `tables` of a file, `resolving` the `spec.Plan`, which is all that anything else sees.
"""

from leakbench.suite.parameters import complete
from leakbench.suite.reading import names, read
from leakbench.suite.resolving import resolve

__all__ = ["complete", "names", "read", "resolve"]
