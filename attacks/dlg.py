"""DLG: Gaussian start, input and soft label optimised together, L2 matching with L-BFGS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from leakbench.contracts import Attack, Leak, Reconstruction, Streams, Watch
from leakbench.errors import require_at_least
from leakbench.inversion import match
from leakbench.optim import LBFGS
from leakbench.starts import gaussian


@dataclass(frozen=True, slots=True, kw_only=True)
class DLG(Attack):
    """Deep leakage from gradients (Zhu, Liu and Han, NeurIPS 2019).

    x_0 ~ N(0, 1), label logits y_0 ~ N(0, 1); then `steps` L-BFGS steps on
    D(x, y) = sum over tensors of ||grad L(w; x, softmax(y)) - g||^2 in x and y together.

    Knowledge used: weights, gradient, input shape, number of classes; the defense's replay through
    `leak.simulate` for an adaptive attacker. Labels are never read, known or not. Inputs are
    returned raw; `labels` is the argmax of the optimised logits. Known failure: a wrong label
    early on is seldom corrected, so a part of the victims ends in a poor local minimum.

    Args:
        steps: L-BFGS steps of up to 20 evaluations each (paper: 300).
        line_search: strong Wolfe instead of a fixed step length (paper: fixed).
    """

    name: ClassVar[str] = "dlg"
    paper: ClassVar[str] = "Zhu et al., NeurIPS 2019"
    steps: int = 300
    line_search: bool = False

    def __post_init__(self) -> None:
        require_at_least(self.name, 1, steps=self.steps)

    def start(self, leak: Leak, streams: Streams) -> Tensor:
        return gaussian(leak, streams)

    def reconstruct(self, leak: Leak, streams: Streams, watch: Watch) -> Reconstruction:
        logits = streams.normal("label", (leak.batch_size, leak.classes))
        logits = logits.to(dtype=leak.dtype, device=leak.device)
        optimiser = LBFGS(steps=self.steps, line_search=self.line_search)
        start = self.start(leak, streams)
        return match(self, leak, start, logits, optimiser, watch, optimise_labels=True)
