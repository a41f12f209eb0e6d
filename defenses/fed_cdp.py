"""Fed-CDP: clients clip and noise every example's gradient, in every local step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from leakbench.gaussian import DecayingClip, ExampleGaussian
from leakbench.schedules import TIFSDecay


@dataclass(frozen=True, slots=True, kw_only=True)
class FedCDP(ExampleGaussian):
    """Per-example client differential privacy (Wei, Liu, Wu, Su, Iyengar 2021, Algorithm 2).

    on_examples: every tensor of every example's gradient to L2 norm <= C, then N(0, (sigma C)^2) on
    each example (line 14). on_batch: the noise of the conventions "mean" and "sum"; the authors'
    code adds that of "sum". Guarantee: instance-level Gaussian mechanism with sensitivity sqrt(M) C
    (M tensors clipped apart), not the C the paper charges; the paper's client-level claim does not
    follow from it, since a client has many examples. Zero gradients stay zero before noise, nan
    makes the example's tensor nan, and inf makes it nan and zeros.

    Args:
        clip: C (paper: 4). noise_multiplier: sigma (paper: 6).
        convention: where the noise enters.
    """

    name: ClassVar[str] = "fed_cdp"
    paper: ClassVar[str] = "Fed-CDP, Algorithm 2"


@dataclass(frozen=True, slots=True, kw_only=True)
class FedCDPDecay(DecayingClip, ExampleGaussian):
    """Fed-CDP with a bound that decays over the rounds, S = C_t (Fed-CDP(decay)).

    Hooks, guarantee and edge cases are those of Fed-CDP with C_t for C; the noise multiplier stays
    the same, and with it the privacy of every round.

    Args:
        clip, clip_end: C_0 and C_T (paper: 6 to 2 in 100 rounds). noise_multiplier: sigma.
        decay: of C (paper: linear; the others are those of TIFS), with its constants decay_cycles
            and decay_rate, see `leakbench.gaussian.Decaying`.
        convention: where the noise enters.
    """

    name: ClassVar[str] = "fed_cdp_decay"
    paper: ClassVar[str] = "Fed-CDP(decay), sections VI and VII"
    clip: float = 6.0
    decay: TIFSDecay = "linear"
