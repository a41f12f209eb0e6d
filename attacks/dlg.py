"""DLG: Gaussian start, input and soft label optimised together, L2 matching with L-BFGS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from leakbench.contracts import Attack, Leak, LocalSteps, Reconstruction, Streams, Watch
from leakbench.errors import require_at_least
from leakbench.inversion import match
from leakbench.matching import check_prior
from leakbench.optim import LBFGS
from leakbench.parameters import check_kinds
from leakbench.starts import gaussian


@dataclass(frozen=True, slots=True, kw_only=True)
class DLG(Attack):
    """Deep leakage from gradients (Zhu, Liu and Han, NeurIPS 2019).

    x_0 ~ N(0, 1), label logits y_0 ~ N(0, 1), for each of the B inputs; then `steps` L-BFGS steps
    on D(x, y) = sum over tensors of ||grad L(w; x, softmax(y)) - g||^2 in x and y together.

    Knowledge used: weights, gradient, input shape, number of classes; the defense's replay through
    `leak.simulate` for an adaptive attacker. Labels are never read, known or not. Inputs of any
    shape are returned raw; `labels` is the argmax of the optimised logits. Known failure: a wrong
    label early on is seldom corrected, so a part of the victims ends in a poor local minimum.

    Args:
        steps: L-BFGS steps of up to 20 evaluations each (paper: 300).
        line_search: strong Wolfe instead of a fixed step length (paper: fixed).
        restarts: runs from new inputs and logits; the smallest loss counts (paper: 1).
        total_variation: weight of this prior in the loss; images only (paper: 0).
        local_steps: how several local steps behind an update are modelled.
    """

    name: ClassVar[str] = "dlg"
    paper: ClassVar[str] = "Zhu et al., NeurIPS 2019"
    evaluations_a_step: ClassVar[int] = LBFGS.evaluations_a_step
    steps: int = 300
    line_search: bool = False
    restarts: int = 1
    total_variation: float = 0.0
    local_steps: LocalSteps = "unroll"

    def __post_init__(self) -> None:
        check_kinds(self)
        require_at_least(self.name, 1, steps=self.steps, restarts=self.restarts)
        check_prior(self.name, self.total_variation)

    def start(self, leak: Leak, streams: Streams, restart: int = 0) -> Tensor:
        return gaussian(leak, streams, restart)

    def reconstruct(self, leak: Leak, streams: Streams, watch: Watch) -> Reconstruction:
        optimiser = LBFGS(steps=self.steps, line_search=self.line_search)
        return match(self, leak, streams, None, optimiser, watch, restarts=self.restarts)
