"""Additive noise of a fixed size, without clipping."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from leakbench.clipping import UPDATES, visible_noise
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
from leakbench.errors import LeakbenchError
from leakbench.parameters import check_kinds, require_in


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomNoise(Defense):
    """Random noise addition (TPDS section 4.2; a defense since Zhu et al. 2019).

    Independent noise of mean 0 and the same std on every coordinate. `std` is a standard deviation
    for both distributions: a variance v is std sqrt(v), a Laplace scale b is std sqrt(2) b.

    on_examples (at="example"): on every example's gradient, the only place that a type-2 tap of one
    example sees; the mean over B examples has std / sqrt(B). on_batch (at="batch"): on the mean
    over the batch, in every local step. Both are in units of a gradient: -dW / (L * learning rate)
    after L local steps, in which types 0 and 1 are read, has std / sqrt(L). on_update
    (at="update"): on dW, in units of weights; read as a gradient it is std / (L * learning rate).

    Guarantee: none. Nothing is clipped, so the sensitivity has no bound. Zero gradients get the
    same noise; inf and nan stay where they are. A replay adds nothing.

    Args:
        std: of the noise, >= 0 (TPDS: 0.01, which it calls a variance; the notebooks of that attack
            use such numbers as the std of Gaussian and as the scale of Laplace noise).
        distribution: "gaussian" or "laplace".
        at: where it is added: "example", "batch" or "update".
    """

    name: ClassVar[str] = "random_noise"
    paper: ClassVar[str] = "TPDS section 4.2"
    std: float = 0.01
    distribution: Literal["gaussian", "laplace"] = "gaussian"
    at: Literal["example", "batch", "update"] = "batch"

    def __post_init__(self) -> None:
        require_in(self.name, "[0, inf)", std=self.std)
        if self.distribution not in ("gaussian", "laplace"):
            raise LeakbenchError(
                f"random_noise: distribution must be gaussian or laplace, got {self.distribution!r}"
            )
        if self.at not in ("example", "batch", "update"):
            raise LeakbenchError(
                f"random_noise: at must be example, batch or update, got {self.at!r}"
            )
        check_kinds(self)

    @property
    def hooks(self) -> frozenset[str]:
        places = {"example": "on_examples", "batch": "on_batch", "update": "on_update"}
        return frozenset([places[self.at]])

    def on_examples(
        self, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        return self._noisy(gradients, context, "examples", self.at == "example"), state

    def on_batch(
        self, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        return self._noisy(gradients, context, "batch", self.at == "batch"), state

    def on_update(
        self, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        return self._noisy(gradients, context, "update", self.at == "update"), state

    def _noisy(self, gradients: Gradients, context: Context, purpose: str, here: bool) -> Gradients:
        if not here:
            return gradients
        if self.distribution == "gaussian":
            return context.add_gaussian(gradients, self.std, purpose)
        return gradients.map(
            lambda name, value: value + context.laplace(value, self.std, f"{purpose}/{name}")
        )

    def guarantee(self, observer: Observer, weights: Weights, setting: Setting) -> Guarantee:
        reason = "gradients are not clipped, so their sensitivity has no bound"
        return Guarantee(level="none", reason=reason)

    def noise_std(
        self, observer: Observer, weights: Weights, state: State, context: Context
    ) -> dict[str, float] | None:
        if observer == "model":
            return None
        if observer == "type2":
            return dict.fromkeys(weights, self.std if self.at == "example" else 0.0)
        if self.at == "update":
            seen = context.of_update(self.std) if observer in UPDATES else 0.0
        else:
            of_batch: NoiseConvention = "per_example" if self.at == "example" else "mean"
            seen = self.std * (visible_noise(observer, of_batch, context) or 0.0)
        return dict.fromkeys(weights, seen)
