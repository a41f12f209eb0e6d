"""Fed-alphaCDP: Fed-CDP with the largest norm as sensitivity, and a decaying noise scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from leakbench.gaussian import DecayingNoiseTPDS, LargestNorm
from leakbench.schedules import TPDSDecay


@dataclass(frozen=True, slots=True, kw_only=True)
class FedAlphaCDP(LargestNorm):
    """Adaptive sensitivity with a fixed noise scale (TPDS section 5.2, Algorithm 1).

    on_examples: every tensor of every example's gradient to L2 norm <= C; S = the largest norm of a
    clipped tensor over the examples and tensors of a client's batch (line 17); N(0, (sigma S)^2)
    on each example under `per_example`. on_batch: the noise of the other conventions.

    The paper says both: line 18 noises the mean ("mean"), section 5.2 each example before it
    ("per_example"). The default is the latter: under the former a type-2 tap sees clipping only.

    Guarantee: none as published, S is computed from the private batch. A zero batch gets no noise;
    inf or nan makes S nan and with it every noisy coordinate of the client.

    Args:
        clip: C (paper: 4). noise_multiplier: sigma (paper: 6).
        convention: where the noise enters.
    """

    name: ClassVar[str] = "fed_alpha_cdp"
    paper: ClassVar[str] = "TPDS section 5.2, Algorithm 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class FedAlphaCDPSigma(LargestNorm, DecayingNoiseTPDS):
    """Adaptive sensitivity with a noise scale that decays over the rounds (TPDS section 5.3).

    Hooks, guarantee (none) and edge cases are those of `fed_alpha_cdp` with sigma_t for sigma.

    Args:
        clip: C (paper: 4).
        noise_multiplier, noise_multiplier_end: sigma_0 and sigma_T (paper: 15 and 4.85).
        decay: of sigma; "cyclic" is the cosine of the paper, with sigma_T as its lowest value. Its
            constants are decay_steps, decay_cycles and decay_rate, see `gaussian.Decaying`.
        convention: where the noise enters, as for `fed_alpha_cdp`.
    """

    name: ClassVar[str] = "fed_alpha_cdp_sigma"
    paper: ClassVar[str] = "TPDS section 5.3, Algorithm 1"
    noise_multiplier: float = 15.0
    decay: TPDSDecay = "linear"
