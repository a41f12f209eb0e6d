"""DLG: Gaussian start, input and soft label optimised together, L2 matching with L-BFGS."""

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
class DLG(MatchingAttack):
    """Deep leakage from gradients (Zhu, Liu and Han, NeurIPS 2019).

    x_0 ~ N(0, 1), label logits y_0 ~ N(0, 1), for each of the B inputs; then `steps` L-BFGS steps
    on D(x, y) = sum over tensors of ||grad L(w; x, softmax(y)) - g||^2 in x and y together.

    Knowledge used: weights, gradient, input shape, number of classes; the defense's replay
    (`Observation.simulate`) for an adaptive attacker. Labels are never read, known or not. Inputs
    of any shape are returned raw; `labels` is the argmax of the optimised logits. Known failure: a
    wrong label early on is seldom corrected, so a part of the victims ends in a poor local minimum.

    Args:
        steps: L-BFGS steps of up to 20 evaluations each (paper: 300).
        line_search: strong Wolfe instead of a fixed step length (paper: fixed).
        patience: steps without a smaller loss after which a victim is given up; 0: never (paper).
        restarts: runs from new inputs and logits; the smallest loss counts (paper: 1).
        total_variation: weight of this prior in the loss; images only (paper: 0).
        local_steps: how several local steps behind an update are modelled.
    """

    name: ClassVar[str] = "dlg"
    paper: ClassVar[str] = "Zhu et al., NeurIPS 2019"
    steps: int = 300
    line_search: bool = False
    patience: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self.name, 0, patience=self.patience)

    def start(self, leak: Leak, streams: Streams, restart: int = 0) -> Tensor:
        return gaussian(leak, streams, restart)

    def labels(self, leak: Leak, streams: Streams) -> None:
        """Soft ones."""

    def optimiser(self, facts: LeakFacts) -> LBFGS:
        return LBFGS(steps=self.steps, line_search=self.line_search, patience=self.patience)
