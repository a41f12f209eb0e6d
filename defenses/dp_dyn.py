"""DP-dyn: the dynamic clipping bound, sensitivity and noise scale of TIFS section IV.

Seven of the eight algorithms of its Table VIII; the eighth, with all three fixed, is the baseline.
All of them run this path (Algorithms 1 and 2), in round t of T planned ones:

on_examples: every tensor of every example's gradient to L2 norm <= C_t; by convention `per_example`
noise N(0, (sigma_t S)^2) on each example. on_batch: the noise of the other two conventions; the
paper's text says "mean".

Where the paper gives a start only (C = 4, sigma = 6), ends are C / 2, as in its experiment with a
linear decay, and sigma = 4.85, that of TPDS. One `decay` is shared by C and sigma, with its
constants `decay_cycles` and `decay_rate` (see `leakbench.gaussian.Decaying`); the paper's are not
published. Algorithm 2 divides by B twice, before
clipping and in the mean; the first is left out here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from leakbench.gaussian import DecayingClip, DecayingNoise, ExampleGaussian, LargestNorm
from leakbench.schedules import TIFSDecay


@dataclass(frozen=True, slots=True, kw_only=True)
class DPDynSCDecay(DecayingClip, ExampleGaussian):
    """Dynamic sensitivity by a decaying bound: S = C_t, sigma fixed (TIFS IV-A).

    Guarantee: the baseline's; C_t falls in sensitivity and noise alike. Zero, infinite and nan
    gradients as in the baseline: they stay with their example.

    Args:
        clip, clip_end: C_0 and C_T. noise_multiplier: sigma. decay: of C.
        convention: where the noise enters.
    """

    name: ClassVar[str] = "dp_dyns_cdecay"
    paper: ClassVar[str] = "TIFS section IV-A, DP-dynS[C_decay]"
    decay: TIFSDecay = "linear"


@dataclass(frozen=True, slots=True, kw_only=True)
class DPDynSL2Max(LargestNorm):
    """Dynamic sensitivity by the largest norm: C and sigma fixed, S = l2-max (TIFS IV-A).

    Guarantee: none as published, S is computed from the private batch. A zero batch gets no noise;
    inf or nan makes S nan and with it every noisy coordinate of the client.

    Args:
        clip: C. noise_multiplier: sigma. convention: where the noise enters.
    """

    name: ClassVar[str] = "dp_dyns_l2max"
    paper: ClassVar[str] = "TIFS section IV-A, DP-dynS[l2-max]"


@dataclass(frozen=True, slots=True, kw_only=True)
class DPDynS(LargestNorm, DecayingClip):
    """Dynamic sensitivity by both: C decays, S = l2-max, sigma fixed (TIFS IV-A).

    Guarantee: none as published, S is computed from the private batch. A zero batch gets no noise;
    inf or nan makes S nan and with it every noisy coordinate of the client.

    Args:
        clip, clip_end: C_0 and C_T. noise_multiplier: sigma. decay: of C.
        convention: where the noise enters.
    """

    name: ClassVar[str] = "dp_dyns"
    paper: ClassVar[str] = "TIFS section IV-A, DP-dynS"
    decay: TIFSDecay = "linear"


@dataclass(frozen=True, slots=True, kw_only=True)
class DPDynSigma(DecayingNoise, ExampleGaussian):
    """Dynamic noise scale: sigma decays, C fixed, S = C (TIFS IV-B).

    Guarantee: the baseline's with sigma_t, a different one in every round. Zero, infinite and nan
    gradients as in the baseline: they stay with their example.

    Args:
        clip: C. noise_multiplier, noise_multiplier_end: sigma_0 and sigma_T. decay: of sigma.
        convention: where the noise enters.
    """

    name: ClassVar[str] = "dp_dyn_sigma"
    paper: ClassVar[str] = "TIFS section IV-B, DP-dyn sigma"
    decay: TIFSDecay = "linear"


@dataclass(frozen=True, slots=True, kw_only=True)
class DPDynSCDecaySigma(DecayingClip, DecayingNoise, ExampleGaussian):
    """Decaying bound and noise scale: S = C_t and sigma_t (TIFS Table VIII).

    Guarantee: the baseline's with sigma_t, a different one in every round. Zero, infinite and nan
    gradients as in the baseline: they stay with their example.

    Args:
        clip, clip_end: C_0 and C_T.
        noise_multiplier, noise_multiplier_end: sigma_0 and sigma_T.
        decay: of both. convention: where the noise enters.
    """

    name: ClassVar[str] = "dp_dyn_s_cdecay_sigma"
    paper: ClassVar[str] = "TIFS Table VIII, DP-dyn[S[C_decay], sigma]"
    decay: TIFSDecay = "linear"


@dataclass(frozen=True, slots=True, kw_only=True)
class DPDynSL2MaxSigma(LargestNorm, DecayingNoise):
    """Largest-norm sensitivity and decaying noise scale, C fixed (TIFS Table VIII).

    Guarantee: none as published, S is computed from the private batch. A zero batch gets no noise;
    inf or nan makes S nan and with it every noisy coordinate of the client.

    Args:
        clip: C. noise_multiplier, noise_multiplier_end: sigma_0 and sigma_T. decay: of sigma.
        convention: where the noise enters.
    """

    name: ClassVar[str] = "dp_dyn_s_l2max_sigma"
    paper: ClassVar[str] = "TIFS Table VIII, DP-dyn[S[l2-max], sigma]"
    decay: TIFSDecay = "linear"


@dataclass(frozen=True, slots=True, kw_only=True)
class DPDynSSigma(LargestNorm, DecayingClip, DecayingNoise):
    """Dynamic sensitivity and noise scale: C and sigma decay, S = l2-max (TIFS Algorithm 2).

    At t = 0 its noise is at most the baseline's for the same sigma: S <= C.

    Guarantee: none as published, S is computed from the private batch. A zero batch gets no noise;
    inf or nan makes S nan and with it every noisy coordinate of the client.

    Args:
        clip, clip_end: C_0 and C_T.
        noise_multiplier, noise_multiplier_end: sigma_0 (6 in Table III's text, 15 in Figure 4) and
            sigma_T.
        decay: of both. convention: where the noise enters.
    """

    name: ClassVar[str] = "dp_dyn_s_sigma"
    paper: ClassVar[str] = "TIFS Algorithm 2"
    decay: TIFSDecay = "linear"
