"""iDLG: Gaussian start, label read off the gradient first, L2 matching with L-BFGS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from leakbench.contracts import Leak, LeakFacts, Streams
from leakbench.errors import require_at_least
from leakbench.inversion import MatchingAttack
from leakbench.optim import LBFGS
from leakbench.starts import gaussian


@dataclass(frozen=True, kw_only=True)
class IDLG(MatchingAttack):
    """Improved deep leakage from gradients (Zhao, Mopuri and Bilen, 2020).

    y is the class whose head row has the smallest gradient sum; x_0 ~ N(0, 1); then `steps` L-BFGS
    steps on D(x) = sum over tensors of ||grad L(w; x, y) - g||^2 in x alone.

    Knowledge used: weights, gradient, input shape; labels where the threat model grants them; the
    defense's replay (`Observation.simulate`) for an adaptive attacker. Inputs of any shape are
    returned raw. The paper has a batch of 1; the labels of a larger one are counted from the head
    bias (`leakbench.labels`). Known failures: noise on the gradient turns the sign that gives the
    label away, and the search keeps a wrong label; without line search it can diverge (clipped or
    noisy gradients nearly always).

    Args:
        steps: L-BFGS steps of up to 20 evaluations each (paper: 300).
        line_search: strong Wolfe instead of a fixed step length (paper: fixed).
        patience: steps without a smaller loss after which a victim is given up; 0: never (paper).
        restarts: runs from new inputs; the smallest loss counts (paper: 1).
        total_variation: weight of this prior in the loss; images only (paper: 0).
        local_steps: how several local steps behind an update are modelled.
    """

    name: ClassVar[str] = "idlg"
    paper: ClassVar[str] = "Zhao et al., 2020"
    steps: int = 300
    line_search: bool = False
    patience: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self.name, 0, patience=self.patience)

    def start(self, leak: Leak, streams: Streams, restart: int = 0) -> Tensor:
        return gaussian(leak, streams, restart)

    def optimiser(self, facts: LeakFacts) -> LBFGS:
        return LBFGS(steps=self.steps, line_search=self.line_search, patience=self.patience)
