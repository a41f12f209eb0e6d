"""leakbench: how much private training data does a gradient leak?

    import leakbench as lb

    leak = lb.leak(model, x, y, loss="bce", observer="type1", local_steps=2)
    lb.attack(leak, "cpl", restarts=4).score()

Importing this package is cheap: nothing here imports torch before it is used. It settles the
arithmetic that torch will use, so import it before torch where bits matter (see
`leakbench.arithmetic`).
"""

from typing import TYPE_CHECKING, Any

import leakbench.arithmetic  # noqa: F401  settles it

if TYPE_CHECKING:
    from leakbench.api import attack, check_attack, check_defense, leak
    from leakbench.audits.advice import Target
    from leakbench.audits.auditing import audit
    from leakbench.audits.findings import Claim
    from leakbench.comparing import compare
    from leakbench.dp_config import DPConfig
    from leakbench.loading import load
    from leakbench.tapping import tap

_PLACES = {
    "Claim": "leakbench.audits.findings",
    "DPConfig": "leakbench.dp_config",
    "Target": "leakbench.audits.advice",
    "attack": "leakbench.api",
    "audit": "leakbench.audits.auditing",
    "check_attack": "leakbench.api",
    "check_defense": "leakbench.api",
    "compare": "leakbench.comparing",
    "leak": "leakbench.api",
    "load": "leakbench.loading",
    "tap": "leakbench.tapping",
}
"""Where each name of the library is defined: it is imported when it is asked for."""

__all__ = [
    "Claim",
    "DPConfig",
    "Target",
    "__version__",
    "attack",
    "audit",
    "check_attack",
    "check_defense",
    "compare",
    "leak",
    "load",
    "tap",
]


def __getattr__(name: str) -> Any:
    """Import a name when it is asked for; the version is written in pyproject.toml only."""
    if name == "__version__":
        from importlib.metadata import version

        return version("leakbench")
    if name in _PLACES:
        from importlib import import_module

        return getattr(import_module(_PLACES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
