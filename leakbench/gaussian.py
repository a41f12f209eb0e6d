"""Defenses that clip and add Gaussian noise, in their variants.

Clipping bound and noise scale are fixed or decay (`Decaying`), and the sensitivity S that the noise
is scaled to is the bound or the largest norm found (`L2Max`). What is clipped is every example's
gradient here (`ExampleGaussian`), a client's update in `leakbench.client_gaussian`. Plugins combine
these classes, as Table I of TIFS does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from leakbench.clipping import (
    add_noise,
    check_parameters,
    clip_tensors,
    gaussian_guarantee,
    visible_noise,
)
from leakbench.contracts import (
    Context,
    Defense,
    Gradients,
    Guarantee,
    NoiseConvention,
    Observer,
    Setting,
    State,
    Weights,
)
from leakbench.errors import require_at_least, unknown_name
from leakbench.parameters import check_kinds, require_in
from leakbench.privacy.events import PrivacyEvent
from leakbench.schedules import TIFS, TPDS, Decay, check_ends, check_rated, decayed, ending


# No slots here: two classes of a combination could not both have them.
@dataclass(frozen=True, kw_only=True)
class Gaussian(Defense):
    """Bound C and noise scale sigma of every class below; fixed, and S = C.

    Args:
        clip: C. noise_multiplier: sigma; the papers' "noise variance" sigma C is a std.

    Raises:
        LeakbenchError: clip <= 0, noise_multiplier < 0, or one of them not finite.
    """

    clip: float = 4.0
    noise_multiplier: float = 6.0

    def __post_init__(self) -> None:
        check_parameters(self.name, self.clip, self.noise_multiplier)
        check_kinds(self)

    def clip_at(self, round: int, total: int) -> float:
        """C_t in 0-based round t of `total`."""
        return self.clip

    def noise_multiplier_at(self, round: int, total: int) -> float:
        """sigma_t in 0-based round t of `total`."""
        return self.noise_multiplier

    def std_at(self, context: Context) -> float:
        """sigma_t C_t."""
        t, total = context.round, context.total
        return self.noise_multiplier_at(t, total) * self.clip_at(t, total)

    def scales(self, state: State, context: Context) -> Mapping[str, float]:
        t, total = context.round, context.total
        clip = self.clip_at(t, total)
        return {
            "clip": clip,
            "noise_multiplier": self.noise_multiplier_at(t, total),
            "sensitivity": clip,
        }


@dataclass(frozen=True, kw_only=True)
class ExampleGaussian(Gaussian):
    """Clips and noises every example's gradient.

    on_examples: every tensor of every example's gradient to L2 norm <= C; then, by convention
    `per_example`, N(0, (sigma C)^2) on each example. on_batch: the noise of the other two
    conventions. Guarantee: instance-level Gaussian mechanism with sensitivity sqrt(M) C (M tensors
    clipped apart), not the C the papers charge. Before noise zero gradients stay zero, nan makes
    the example's tensor nan, and inf makes it nan and zeros.

    Args:
        convention: where the noise enters.
    """

    convention: NoiseConvention = "per_example"

    @property
    def hooks(self) -> frozenset[str]:
        behind = () if self.convention == "per_example" else ("on_batch",)
        return frozenset(("on_examples", *behind))

    @property
    def rowwise(self) -> bool:
        return self.convention != "per_example"

    def on_examples(
        self, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        clipped = clip_tensors(gradients, self.clip_at(context.round, context.total))
        return add_noise(clipped, context, self.convention, "examples", self.std_at(context)), state

    def on_batch(
        self, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        return add_noise(gradients, context, self.convention, "batch", self.std_at(context)), state

    def guarantee(self, observer: Observer, weights: Weights, setting: Setting) -> Guarantee:
        return gaussian_guarantee(
            observer,
            self.convention,
            clip=self.clip_at(setting.round, setting.rounds),
            noise_multiplier=self.noise_multiplier_at(setting.round, setting.rounds),
            tensors=len(weights),
            setting=setting,
        )

    def noise_std(
        self, observer: Observer, weights: Weights, state: State, context: Context
    ) -> Mapping[str, float] | None:
        share = visible_noise(observer, self.convention, context)
        return None if share is None else dict.fromkeys(weights, self.std_at(context) * share)


@dataclass(frozen=True, kw_only=True)
class L2Max(Gaussian):
    """S is the largest norm that a client finds (l2-max); the state keeps his last one.

    Guarantee: none for anyone. S is computed from the private data and sets the noise, so the noise
    itself tells of them: what is all zero gets none at all.
    """

    def init(self, weights: Weights) -> Tensor:
        """S; 0 before the first."""
        return torch.zeros_like(next(iter(weights.values())).flatten()[0])

    def merge(self, state: Tensor) -> Tensor:
        """Nothing outlives a round."""
        return state.new_zeros(())

    def std_of(self, largest: Tensor, context: Context) -> Tensor:
        """sigma_t S from S (clients,)."""
        return self.noise_multiplier_at(context.round, context.total) * largest

    def guarantee(self, observer: Observer, weights: Weights, setting: Setting) -> Guarantee:
        reason = "the noise scale is computed from the private gradients (l2-max)"
        return Guarantee(level="none", reason=reason)

    def noise_std(
        self, observer: Observer, weights: Weights, state: Tensor, context: Context
    ) -> Mapping[str, float] | None:
        return None

    def scales(self, state: Tensor, context: Context) -> Mapping[str, float]:
        return {**super().scales(state, context), "sensitivity": float(state.mean())}


@dataclass(frozen=True, kw_only=True)
class LargestNorm(L2Max, ExampleGaussian):
    """S is the largest norm of a clipped tensor over examples and tensors of the batch.

    Every client finds its own S, in every local step. inf or nan anywhere makes S nan and with it
    every noisy coordinate of that client; padding does not count.
    """

    @property
    def rowwise(self) -> bool:
        return False  # S is that of all rows

    def on_examples(
        self, gradients: Gradients, state: Tensor, context: Context
    ) -> tuple[Gradients, Tensor]:
        clipped = clip_tensors(gradients, self.clip_at(context.round, context.total))
        norms = torch.stack(list(clipped.norms().values()))
        if clipped.mask is not None:
            norms = torch.where(clipped.mask, norms, 0.0)
        largest = norms.amax(dim=(0, -1))  # one a client
        std = self.std_of(largest, context)[..., None]
        return add_noise(clipped, context, self.convention, "examples", std), largest

    def on_batch(
        self, gradients: Gradients, state: Tensor, context: Context
    ) -> tuple[Gradients, Tensor]:
        std = self.std_of(state, context)
        return add_noise(gradients, context, self.convention, "batch", std), state


@dataclass(frozen=True, kw_only=True)
class Decaying(Gaussian):
    """What follows a schedule over the planned rounds; base of the two below.

    The guarantee is that of the round observed, and says so. It stands before the class that says
    what is clipped: `class X(DecayingNoise, ExampleGaussian)`.

    Args:
        decay: one of `policies`, a name in the paper -> the curve in `leakbench.schedules`.
        decay_cycles: of "cyclic".
        decay_rate: the papers' gamma in place of the ends, one for all that decays; see
            `schedules.ending`.

    Raises:
        LeakbenchError: an unknown decay, no cycle, or a rate that the curve does not have.
    """

    policies: ClassVar[Mapping[str, Decay]] = TIFS
    decay: str = "linear"
    decay_cycles: int = 4
    decay_rate: float | None = None

    def __post_init__(self) -> None:
        if self.decay not in self.policies:
            raise unknown_name("decay", self.decay, self.policies, self.name)
        require_at_least(self.name, 1, decay_cycles=self.decay_cycles)
        if self.decay_rate is not None:
            require_in(self.name, "[0, inf)", decay_rate=self.decay_rate)
            check_rated(f"{self.name}: decay '{self.decay}'", self.policies[self.decay])
        super().__post_init__()

    @property
    def _steps(self) -> int:
        """Of a staircase, where `policies` has one."""
        return 1

    def _end(self, first: float, last: float, total: int) -> float:
        """Value after `total` rounds: as stated, or as the rate has it."""
        if self.decay_rate is None:
            return last
        kind = self.policies[self.decay]
        return ending(kind, first, self.decay_rate, total=total, steps=self._steps)

    def _decayed(self, first: float, last: float, round: int, total: int) -> float:
        return decayed(
            self.policies[self.decay], first, self._end(first, last, total),
            round=round, total=total, steps=self._steps, cycles=self.decay_cycles,
        )  # fmt: skip

    def guarantee(self, observer: Observer, weights: Weights, setting: Setting) -> Guarantee:
        promise = super().guarantee(observer, weights, setting)
        if promise.level == "none":
            return promise
        said = f"sensitivity and noise are those of round {setting.round}"
        return replace(promise, assumptions=(*promise.assumptions, said))


@dataclass(frozen=True, kw_only=True)
class DecayingClip(Decaying):
    """C falls from `clip` to `clip_end`; sensitivity and noise fall together, their ratio stays.

    Raises:
        LeakbenchError: an end that is not positive and finite, or an unknown decay.
    """

    clip_end: float = 2.0

    def __post_init__(self) -> None:
        require_in(self.name, "(0, inf)", clip_end=self.clip_end)
        super().__post_init__()

    def clip_at(self, round: int, total: int) -> float:
        return self._decayed(self.clip, self.clip_end, round, total)


@dataclass(frozen=True, kw_only=True)
class DecayingNoise(Decaying):
    """sigma falls from `noise_multiplier` to `noise_multiplier_end`: later rounds cost more.

    Raises:
        LeakbenchError: an end that is negative or not finite, an unknown decay, or an exponential
            one to 0.
    """

    noise_multiplier_end: float = 4.85

    def __post_init__(self) -> None:
        first, last = self.noise_multiplier, self.noise_multiplier_end
        require_in(self.name, "[0, inf)", noise_multiplier_end=last)
        super().__post_init__()
        check_ends(f"{self.name}: noise_multiplier", self.policies[self.decay], first, last)

    def noise_multiplier_at(self, round: int, total: int) -> float:
        return self._decayed(self.noise_multiplier, self.noise_multiplier_end, round, total)

    def guarantee(self, observer: Observer, weights: Weights, setting: Setting) -> Guarantee:
        promise = super().guarantee(observer, weights, setting)
        if promise.level == "none":
            return promise
        first = self.noise_multiplier
        last = self._end(first, self.noise_multiplier_end, setting.rounds)
        said = f"the noise multiplier goes from {first} to {last}: rounds differ in their promise"
        return replace(promise, assumptions=(*promise.assumptions, said))

    def events(self, weights: Weights, setting: Setting) -> tuple[PrivacyEvent, ...]:
        """One event a distinct sigma_t, in the order of training; sensitivity of the first round.

        () if the first round has no noise.
        """
        equal = super().events(weights, replace(setting, round=0))
        rounds = Counter(self.noise_multiplier_at(t, setting.rounds) for t in range(setting.rounds))
        return tuple(
            replace(
                event,
                noise_multiplier=event.noise_multiplier * (sigma / self.noise_multiplier),
                steps=count * (event.steps // setting.rounds),
            )
            for event in equal
            for sigma, count in rounds.items()
        )


@dataclass(frozen=True, kw_only=True)
class DecayingNoiseTPDS(DecayingNoise):
    """The policies of TPDS section 5.3, which has a staircase and other cycles.

    decay_steps: of "staircase" (the authors' code: 10).
    """

    policies: ClassVar[Mapping[str, Decay]] = TPDS
    decay_steps: int = 10

    def __post_init__(self) -> None:
        require_at_least(self.name, 1, decay_steps=self.decay_steps)
        super().__post_init__()

    @property
    def _steps(self) -> int:
        return self.decay_steps
