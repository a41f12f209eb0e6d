"""CPL: patterned start, label by the sign rule, L2 gradient matching with L-BFGS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from leakbench.contracts import Attack, Leak, Reconstruction, Streams, Watch
from leakbench.errors import require_at_least
from leakbench.inversion import match
from leakbench.matching import sign_rule_labels
from leakbench.optim import LBFGS
from leakbench.starts import patterned


@dataclass(frozen=True, slots=True, kw_only=True)
class CPL(Attack):
    """Client privacy leakage attack (Wei et al., ESORICS 2020), as its LFW notebook runs it.

    x_0 is one U[0, 1) tile repeated 2 x 2; y is the head row with the smallest gradient sum; then
    `steps` L-BFGS steps on D(x) = sum over tensors of ||grad L(w; x, y) - g||^2.

    Knowledge used: weights, gradient, input shape; labels where the threat model grants them; the
    defense's replay through `leak.simulate` for an adaptive attacker. Inputs are images in [0, 1],
    returned raw. Batch of 1 unless labels are known. Known failures: without line search the
    iteration can diverge (clipped or noisy gradients nearly always); networks with ReLU give
    piecewise constant gradients.

    Args:
        steps: L-BFGS steps of up to 20 evaluations each (paper: 300).
        grid: tiles a side; 2 repeats a 14 x 14 tile on MNIST.
        line_search: strong Wolfe instead of a fixed step length (paper: fixed).
    """

    name: ClassVar[str] = "cpl"
    paper: ClassVar[str] = "Wei et al., ESORICS 2020"
    steps: int = 300
    grid: int = 2
    line_search: bool = False

    def __post_init__(self) -> None:
        require_at_least(self.name, 1, steps=self.steps, grid=self.grid)

    def start(self, leak: Leak, streams: Streams) -> Tensor:
        return patterned(leak, streams, self.grid)

    def reconstruct(self, leak: Leak, streams: Streams, watch: Watch) -> Reconstruction:
        labels = leak.labels if leak.labels is not None else sign_rule_labels(leak)
        optimiser = LBFGS(steps=self.steps, line_search=self.line_search)
        return match(self, leak, self.start(leak, streams), labels, optimiser, watch)
