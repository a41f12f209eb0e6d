"""General batch clipping: a mini-set is scanned by an optimiser with moments, then clipped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from leakbench.clipping import UPDATES, check_parameters, clip_flat
from leakbench.contracts import (
    Context,
    Defense,
    Gradients,
    Guarantee,
    Observer,
    Setting,
    Weights,
)
from leakbench.errors import LeakbenchError, require_at_least
from leakbench.parameters import check_kinds, require_in
from leakbench.privacy.events import PrivacyEvent
from leakbench.schedules import stepped

LEAST_SQUARE = 1e-30
"""Smallest second moment that counts: its root is nothing beside `epsilon`, and can be derived."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Of the local steps of a round, each tensor with the client axis; None before the first."""

    first: Mapping[str, Tensor] | None = None
    second: Mapping[str, Tensor] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchClipGeneral(Defense):
    """General batch clipping with moments: a mini-set is scanned by an optimiser (section 3.1).

    A round's L local steps scan the mini-set S of s = L B examples in batches of B, from the
    round's weights on, and g(w; S) is the sum of the L directions: -dW / learning rate. It is
    clipped as a whole to C, and the noise is N(0, (2 C sigma)^2) on it (equation 6 with k = 1).

    on_batch: the batch's gradient becomes the optimiser's direction; its moments start at 0 with
    every mini-set, so that nothing of an earlier one is in g. "adam": Kingma and Ba's Algorithm 1
    without its step size; "momentum": v = beta1 v + gradient, as torch.optim.SGD. on_update: clip
    and noise, in units of dW. Zero gradients give zero directions; nan and inf make theirs nan, and
    then all of dW.

    Guarantee: Gaussian mechanism for replacing one example, mu = 1 / sigma a round, whatever the
    optimiser does and however many steps the example is in. Who taps a local step sees no noise.
    Central training draws the mini-set anew every round, which amplifies at the rate s / N; under
    Poisson sampling of examples nothing is promised, since one more moves others into other steps.

    Args:
        clip: C of the sum of L directions; the paper experiments with L = 1 only and prints none.
        noise_multiplier, clip_factor, clip_every: see `batch_clip`.
        optimiser: "adam" or "momentum". beta1, beta2, epsilon: of it; "momentum" has beta1 only,
            and with beta1 = 0 the steps are plain SGD.
    """

    name: ClassVar[str] = "batch_clip_general"
    paper: ClassVar[str] = "Nguyen et al., batch clipping"
    clip: float = 1.0
    noise_multiplier: float = 0.01875
    optimiser: Literal["adam", "momentum"] = "adam"
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    clip_factor: float = 1.0
    clip_every: int = 1

    def __post_init__(self) -> None:
        check_parameters(self.name, self.clip, self.noise_multiplier)
        require_in(self.name, "[0, 1)", beta1=self.beta1, beta2=self.beta2)
        require_in(self.name, "(0, inf)", epsilon=self.epsilon)
        require_in(self.name, "(0, 1]", clip_factor=self.clip_factor)
        require_at_least(self.name, 1, clip_every=self.clip_every)
        check_kinds(self)

    def init(self, weights: Weights) -> Moments:
        return Moments()

    def on_round(self, weights: Weights, state: Moments, context: Context) -> Moments:
        return Moments()

    def merge(self, state: Moments) -> Moments:
        return Moments()

    def on_batch(
        self, gradients: Gradients, state: Moments, context: Context
    ) -> tuple[Gradients, Moments]:
        found = gradients.tensors
        if self.optimiser == "momentum":
            first = _mixed(state.first, found, self.beta1, 1.0)
            return gradients.map(lambda name, _: first[name]), Moments(first=first)
        first = _mixed(state.first, found, self.beta1, 1 - self.beta1)
        squares = {name: value.square() for name, value in found.items()}
        second = _mixed(state.second, squares, self.beta2, 1 - self.beta2)
        # Both start at 0, which the weights of the steps so far make up for.
        one, two = (1 - beta ** (context.iteration + 1) for beta in (self.beta1, self.beta2))

        def direction(name: str, _: Tensor) -> Tensor:
            root = (second[name] / two).clamp(min=LEAST_SQUARE).sqrt()
            return first[name] / one / (root + self.epsilon)

        return gradients.map(direction), Moments(first=first, second=second)

    def on_update(
        self, gradients: Gradients, state: Moments, context: Context
    ) -> tuple[Gradients, Moments]:
        clip = self._clip(context.round) * self._rate(context)
        clipped = clip_flat(gradients, clip)
        return context.add_gaussian(clipped, 2 * clip * self.noise_multiplier, "update"), state

    def scales(self, state: Moments, context: Context) -> dict[str, float]:
        """In units of g."""
        clip = self._clip(context.round)
        return {
            "clip": clip,
            "noise_multiplier": self.noise_multiplier,
            "sensitivity": 2 * clip,
        }

    def guarantee(self, observer: Observer, weights: Weights, setting: Setting) -> Guarantee:
        if observer in ("type2", "type2_batch"):
            return Guarantee(level="none", reason="noise enters when the mini-set is scanned")
        if self.noise_multiplier == 0:
            return Guarantee(level="none", reason="no noise is added")
        if setting.sampling == "poisson" and setting.all_clients == 1:
            reason = "Poisson sampling moves examples between the steps of a mini-set"
            return Guarantee(level="none", reason=reason)
        sensitivity = 2 * self._clip(setting.round)
        return Guarantee(
            level="instance",
            relation="replace_one",
            sensitivity=sensitivity,
            noise_std=self.noise_multiplier * sensitivity,
            assumptions=(
                "neighbouring data sets differ in one example of one mini-set",
                "sensitivity and noise std are stated in units of gradients, not of dW",
            ),
        )

    def events(self, weights: Weights, setting: Setting) -> tuple[PrivacyEvent, ...]:
        """One release a round, of a mini-set drawn anew where there is one client."""
        if self.guarantee("model", weights, setting).level == "none":
            return ()
        rate = 1.0
        if setting.all_clients == 1 and setting.examples is not None:
            rate = min(setting.local_steps * setting.batch_size / setting.examples, 1.0)
        # Stated for adding or removing one, which is half of replacing one.
        return (
            PrivacyEvent(
                noise_multiplier=2 * self.noise_multiplier,
                sensitivity=self._clip(0),
                sampling_rate=rate,
                sampling="fixed_size",
                steps=setting.rounds,
            ),
        )

    def noise_std(
        self, observer: Observer, weights: Weights, state: Moments, context: Context
    ) -> dict[str, float] | None:
        if observer == "model":
            return None
        if observer in UPDATES:
            std = 2 * self._clip(context.round) * self.noise_multiplier
            return dict.fromkeys(weights, context.of_update(std * self._rate(context)))
        return dict.fromkeys(weights, 0.0)

    def _clip(self, round: int) -> float:
        return self.clip * stepped(self.clip_factor, self.clip_every, round)

    def _rate(self, context: Context) -> float:
        if context.learning_rate is None:
            raise LeakbenchError(f"{self.name}: dW cannot be clipped without its learning_rate")
        return context.learning_rate


def _mixed(
    before: Mapping[str, Tensor] | None, found: Mapping[str, Tensor], kept: float, share: float
) -> dict[str, Tensor]:
    """kept * before + share * found, `before` None being 0."""
    if before is None:
        return {name: share * value for name, value in found.items()}
    return {name: kept * before[name] + share * value for name, value in found.items()}
