"""iDLG: Gaussian start, label read off the gradient first, L2 matching with L-BFGS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from leakbench.contracts import Attack, Leak, LocalSteps, Reconstruction, Streams, Watch
from leakbench.errors import require_at_least
from leakbench.inversion import match
from leakbench.labels import labels_of
from leakbench.matching import check_prior
from leakbench.optim import LBFGS
from leakbench.parameters import check_kinds
from leakbench.starts import gaussian


@dataclass(frozen=True, slots=True, kw_only=True)
class IDLG(Attack):
    """Improved deep leakage from gradients (Zhao, Mopuri and Bilen, 2020).

    y is the class whose head row has the smallest gradient sum; x_0 ~ N(0, 1); then `steps` L-BFGS
    steps on D(x) = sum over tensors of ||grad L(w; x, y) - g||^2 in x alone.

    Knowledge used: weights, gradient, input shape; labels where the threat model grants them; the
    defense's replay through `leak.simulate` for an adaptive attacker. Inputs of any shape are
    returned raw. The paper has a batch of 1; the labels of a larger one are counted from the head
    bias (`leakbench.labels`). Known failures: noise on the gradient turns the sign that gives the
    label away, and the search keeps a wrong label; without line search it can diverge (clipped or
    noisy gradients nearly always).

    Args:
        steps: L-BFGS steps of up to 20 evaluations each (paper: 300).
        line_search: strong Wolfe instead of a fixed step length (paper: fixed).
        restarts: runs from new inputs; the smallest loss counts (paper: 1).
        total_variation: weight of this prior in the loss; images only (paper: 0).
        local_steps: how several local steps behind an update are modelled.
    """

    name: ClassVar[str] = "idlg"
    paper: ClassVar[str] = "Zhao et al., 2020"
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
        labels = labels_of(leak, streams)
        optimiser = LBFGS(steps=self.steps, line_search=self.line_search)
        return match(self, leak, streams, labels, optimiser, watch, restarts=self.restarts)
