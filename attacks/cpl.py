"""CPL: patterned start, label by the sign rule, L2 gradient matching with L-BFGS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from leakbench.contracts import Leak, LeakFacts, Streams
from leakbench.errors import LeakbenchError, require_at_least, unknown_name
from leakbench.inversion import MatchingAttack
from leakbench.matching import DISTANCES, Matching
from leakbench.optim import LBFGS, SignedAdam
from leakbench.parameters import require_in
from leakbench.starts import CONSTANT, STARTS, Distribution, patterned, unsuited

Init = Literal[
    "patterned",
    "uniform",
    "normal",
    "dark",
    "light",
    "red",
    "green",
    "blue",
    "surrogate",
    "centre_patch",
]


@dataclass(frozen=True, kw_only=True)
class CPL(MatchingAttack):
    """Client privacy leakage attack (Wei et al., ESORICS 2020), as its LFW notebook runs it.

    x_0 is one U[0, 1) tile repeated 2 x 2; y is the head row with the smallest gradient sum; then
    `steps` L-BFGS steps on D(x) = sum over tensors of ||grad L(w; x, y) - g||^2.

    Knowledge used: weights, gradient, input shape; labels where the threat model grants them; the
    defense's replay (`Observation.simulate`) for an adaptive attacker. Inputs are images in [0, 1],
    returned raw; the starts "uniform", "normal", "dark", "light" and "surrogate" take any shape.
    The labels of a batch are counted from the head bias (`leakbench.labels`). Known failures:
    without line search the iteration can diverge (clipped or noisy gradients nearly always);
    networks with ReLU give piecewise constant gradients.

    Args:
        steps: L-BFGS steps of up to 20 evaluations each (paper: 300).
        init: the paper's family of starts: "patterned"; "uniform" and "normal" draw every pixel;
            "dark", "light", "red", "green", "blue" are one colour; "surrogate" is an image from
            the public ones the threat model must grant, "centre_patch" one with noise in its
            middle.
        grid: tiles a side of "patterned"; 2 repeats a 14 x 14 tile on MNIST.
        distribution: of the tile of "patterned".
        line_search: strong Wolfe instead of a fixed step length (paper: fixed); L-BFGS only.
        matching: distance of gradients, "squared" (paper) or "cosine" as GradInv's.
        solver: "lbfgs" (paper), or "adam": plain Adam of one evaluation a step and no decay, which
            the authors' notebooks of larger faces take for 1000 steps.
        lr: learning rate of Adam (those notebooks: 0.01).
        patience: steps without a smaller loss after which a victim is given up; 0: never (paper).
        restarts: runs from new starts; the smallest loss counts (paper: 1).
        total_variation: weight of this prior in the loss; images only (paper: 0).
        local_steps: how several local steps behind an update are modelled.
    """

    name: ClassVar[str] = "cpl"
    paper: ClassVar[str] = "Wei et al., ESORICS 2020"
    steps: int = 300
    init: Init = "patterned"
    grid: int = 2
    distribution: Distribution = "uniform"
    line_search: bool = False
    matching: Matching = "squared"
    solver: Literal["lbfgs", "adam"] = "lbfgs"
    lr: float = 0.01
    patience: int = 0

    def __post_init__(self) -> None:
        if self.init != "patterned" and self.init not in STARTS:
            raise unknown_name("init", self.init, ["patterned", *STARTS], self.name)
        super().__post_init__()
        require_at_least(self.name, 1, grid=self.grid)
        require_at_least(self.name, 0, patience=self.patience)
        require_in(self.name, "(0, inf)", lr=self.lr)
        if self.solver == "adam" and self.line_search:
            raise LeakbenchError(
                f"{self.name}: line_search must be false with the solver 'adam', got true"
            )
        if self.solver == "adam" and self.patience:
            raise LeakbenchError(
                f"{self.name}: patience must be 0 with the solver 'adam', got {self.patience}"
            )
        if self.restarts > 1 and self.init in CONSTANT:
            raise LeakbenchError(
                f"{self.name}: restarts must be 1 from the start '{self.init}', which is always "
                f"the same, got {self.restarts}"
            )

    def skip(self, facts: LeakFacts) -> str:
        return super().skip(facts) or unsuited(self.init, facts)

    def start(self, leak: Leak, streams: Streams, restart: int = 0) -> Tensor:
        if self.init == "patterned":
            return patterned(leak, streams, self.grid, restart, self.distribution)
        return STARTS[self.init](leak, streams, restart)

    def distance(self, leak: Leak, inputs: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
        return DISTANCES[self.matching](leak, inputs, labels, rows, local_steps=self.local_steps)

    def optimiser(self, facts: LeakFacts) -> LBFGS | SignedAdam:
        if self.solver == "adam":
            return SignedAdam(steps=self.steps, lr=self.lr, decays=False, signed=False)
        return LBFGS(steps=self.steps, line_search=self.line_search, patience=self.patience)
