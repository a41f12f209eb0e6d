"""Everything that crosses a wall: gradients, leaks, defenses, attacks, guarantees, accountants.

The machinery passes these frozen dataclasses around and knows no plugin by name. An attack or a
defense is a frozen dataclass of keyword-only hyper-parameters that derives from `Attack` or
`Defense` below and carries a `name`; see `docs/plugins.md` and its examples.

The path of a gradient, and the hooks and taps on it (training.py runs it)::

    per-example gradients -> on_examples -> [type 2, view "example"] -> mean over the batch
      -> on_batch -> [type 2, view "batch"] -> local SGD step, L times
      -> update -> on_update (client) -> [type 1] -> sent -> [type 0, view "raw"]
      -> on_receipt (server) -> [type 0] -> aggregate

Before a round `on_round` may look at the weights; after it `merge` makes one state of the clients'.

What an attacker sees follows from that order alone; no defense is ever special-cased.
"""

from __future__ import annotations

from leakbench.contracts.attacks import (
    ENDED,
    Attack,
    Ended,
    HasLoss,
    Reconstruction,
    Streams,
    Watch,
)
from leakbench.contracts.defenses import (
    Context,
    Defense,
    NoiseConvention,
    NoiseSource,
    PublicGradients,
    Replay,
    Row,
    State,
    changes_nothing,
)
from leakbench.contracts.gradients import (
    Axis,
    Gradients,
    Weights,
    concatenate,
)
from leakbench.contracts.leaks import (
    Leak,
    LeakFacts,
    LocalSteps,
    Model,
    Observation,
    Simulate,
)
from leakbench.contracts.promises import (
    Guarantee,
    Setting,
)
from leakbench.spec import LeakPoint, Observer, View

__all__ = [
    "ENDED",
    "Attack",
    "Axis",
    "Context",
    "Defense",
    "Ended",
    "Gradients",
    "Guarantee",
    "HasLoss",
    "Leak",
    "LeakFacts",
    "LeakPoint",
    "LocalSteps",
    "Model",
    "NoiseConvention",
    "NoiseSource",
    "Observation",
    "Observer",
    "PublicGradients",
    "Reconstruction",
    "Replay",
    "Row",
    "Setting",
    "Simulate",
    "State",
    "Streams",
    "View",
    "Watch",
    "Weights",
    "changes_nothing",
    "concatenate",
]
