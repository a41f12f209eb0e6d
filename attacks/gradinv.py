"""GradInv: cosine distance, total variation, signed Adam inside the input range."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from torch import Tensor

from leakbench.contracts import Leak, LeakFacts, Streams
from leakbench.inversion import MatchingAttack
from leakbench.matching import cosine_loss
from leakbench.optim import Returned, SignedAdam
from leakbench.parameters import require_in
from leakbench.starts import channel_moments, gaussian


@dataclass(frozen=True, kw_only=True)
class GradInv(MatchingAttack):
    """Inverting gradients (Geiping, Bauermeister, Droege and Moeller, NeurIPS 2020).

    x_0 ~ N(0, 1); then `steps` steps of Adam on the sign of the gradient of
    D(x) = 1 - <grad L(w; x, y), g> / (||grad L(w; x, y)|| ||g||) + total_variation TV(x), one angle
    over all parameters, TV the mean |difference| of neighbours. After every step x is clamped to
    the input range; the learning rate falls to a tenth at 3/8, 5/8 and 7/8 of the steps.

    Knowledge used: weights, gradient, input shape and range; labels where the threat model grants
    them (the paper takes them as known), else read off the head's gradient; in normalised space
    public inputs; the defense's replay (`Observation.simulate`) for an adaptive attacker. Images;
    other inputs with total_variation 0.
    Known failures: a wrong label is kept; few steps are too few for some weights (on one of four
    untrained draws 500 steps recovered one MNIST digit of 8, 2000 all); the angle does not see the
    gradient's length, which flat clipping changes, but sees that of each tensor.

    Args:
        steps: Adam steps of one evaluation each (paper: 24000 for one image, 4800 for batches).
        lr: learning rate of the first steps, in units of `space` (paper: 0.1).
        space: where the start is drawn, steps and TV are measured: "input", or "normalised" (the
            released code), z = (x - mean) / std of each channel. Both are taken from the public
            inputs, which the threat model must grant. x stays in the input range either way.
        returns: the iterate with the smallest loss ("best"), or the last (the released code).
        restarts: runs from new inputs; the smallest loss counts.
        total_variation: weight of this prior in the loss (paper: 1e-4).
        local_steps: how several local steps behind an update are modelled.
    """

    name: ClassVar[str] = "gradinv"
    paper: ClassVar[str] = "Geiping et al., NeurIPS 2020"
    steps: int = 24000
    lr: float = 0.1
    total_variation: float = 1e-4
    space: Literal["input", "normalised"] = "input"
    returns: Returned = "best"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_in(self.name, "(0, inf)", lr=self.lr)

    def skip(self, facts: LeakFacts) -> str:
        if self.space == "normalised" and not facts.public:
            return "space 'normalised' needs 'public' inputs, which the threat model must grant"
        return super().skip(facts)

    def start(self, leak: Leak, streams: Streams, restart: int = 0) -> Tensor:
        drawn = gaussian(leak, streams, restart)
        if self.space == "input":
            return drawn
        mean, std = channel_moments(leak)
        return mean + std * drawn

    def distance(self, leak: Leak, inputs: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
        return cosine_loss(leak, inputs, labels, rows, local_steps=self.local_steps)

    def as_priors_see(self, leak: Leak, inputs: Tensor) -> Tensor:
        return inputs if self.space == "input" else inputs / channel_moments(leak)[1]

    def optimiser(self, facts: LeakFacts) -> SignedAdam:
        return SignedAdam(steps=self.steps, lr=self.lr, box=facts.input_range, returns=self.returns)

    def optimiser_of(self, leak: Leak) -> SignedAdam:
        if self.space == "input":
            return self.optimiser(leak.facts)
        # The gradients by x and by z have the same signs, so that a step in z is one in x, std
        # times as long.
        _, std = channel_moments(leak)
        scale = std.expand(leak.batch_size, *leak.input_shape).flatten()
        return replace(self.optimiser(leak.facts), scale=scale)
