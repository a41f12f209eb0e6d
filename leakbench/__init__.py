"""leakbench: how much private training data does a gradient leak?

Importing this package is cheap: nothing here imports torch. It settles the arithmetic that torch
will use, so import it before torch where bits matter (see `leakbench.arithmetic`).
"""

from typing import Any

import leakbench.arithmetic  # noqa: F401  settles it

__all__ = ["__version__"]


def __getattr__(name: str) -> Any:
    """Look the version up when it is asked for; it is written in pyproject.toml only."""
    if name == "__version__":
        from importlib.metadata import version

        return version("leakbench")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
