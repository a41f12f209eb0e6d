"""What crosses to the attacker: models, observations, leaks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from leakbench.contracts.gradients import Gradients, Weights
from leakbench.data.features import Feature, require_whole
from leakbench.errors import LeakbenchError
from leakbench.losses import Loss
from leakbench.spec import LeakPoint

LocalSteps = Literal["average", "unroll"]
"""How an attacker models L > 1 local steps: one step on all their examples, or step by step."""


class Model(Protocol):
    """A stateless network: weights come in as an argument, so that `vmap` and `grad` apply."""

    @property
    def head(self) -> str | None:
        """Name of the weight (outputs, features) of the last dense layer, whose gradient gives
        labels away; None where there is none."""
        ...

    @property
    def loss(self) -> Loss:
        """What client and attacker differentiate: the mean of `losses.example_losses`."""
        ...

    @property
    def mixes_examples(self) -> bool:
        """Whether logits of one example depend on the others of its batch: then no example has a
        gradient of its own."""
        ...

    def init(self, generator: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]: ...

    def logits(self, weights: Weights, inputs: Tensor) -> Tensor:
        """(b, *input shape) -> (b, outputs): one for each class, or a single one for two classes
        (see `losses`)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One look at n victims: the weights in use and the gradients seen, axes ("client",).

    run: the attacker's own run of the path in this look, behind `simulate`.
    alike: (n,) numbers; victims with the same one would have leaked the same from the same inputs:
        one replay, which does not look at what was observed. None: nobody knows of such.
    """

    weights: Weights
    gradients: Gradients
    run: Simulate
    alike: Tensor | None = None
    _last: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def of(self, rows: Tensor) -> Gradients:
        """Gradients of the victims `rows` (k,); not to be changed, the last answer is kept.

        An optimiser asks for the same rows over and over, and picking them costs as much as a
        convolution.
        """
        if not ("rows" in self._last and torch.equal(self._last["rows"], rows)):
            self._last.update(rows=rows.clone(), gradients=self.gradients.select(rows))
        found: Gradients = self._last["gradients"]
        return found

    def simulate(
        self, inputs: Tensor, labels: Tensor, rows: Tensor, *, local_steps: LocalSteps = "unroll"
    ) -> Gradients:
        """Gradients that victims `rows` would have leaked in this look, differentiable in `inputs`.

        A naive attacker runs the plain path, an adaptive one the same path with the defense's hooks
        without noise ("replay"), in the public state the gradients were made in.

        inputs (k, B, *input shape), labels (k, B) class indices or (k, B, classes) probabilities,
        rows (k,) victim numbers -> Gradients with axes ("client",), k of them, in the units of the
        observed ones. Behind L local steps, the first B / L inputs are those of the first step, and
        so on. Inputs in float64 mean arithmetic in float64, whatever the weights are kept in.
        """
        return self.run(self, inputs, labels, rows, local_steps)

    def simulate_each(
        self, inputs: Tensor, labels: Tensor, rows: Tensor, *, local_steps: LocalSteps = "unroll"
    ) -> Iterator[Gradients]:
        """For each victim of `rows` (m,) in turn, what he would have leaked from every input.

        inputs (k, B, *input shape), labels (k, B) -> m times Gradients with axes ("client",), k of
        them: those of `simulate` with that victim in all rows. The examples' own gradients, the
        same for all victims, are computed once.
        """
        if isinstance(self.run, SimulateEach):
            yield from self.run.each(self, inputs, labels, rows, local_steps)
        else:
            for row in rows:
                yield self.run(self, inputs, labels, row.expand(len(inputs)), local_steps)

    def groups(self) -> list[Tensor]:
        """Numbers of the victims, each with those who are simulated `alike`; in order."""
        count = self.gradients.leading[0]
        device = next(iter(self.gradients.tensors.values())).device
        alike = torch.arange(count, device=device) if self.alike is None else self.alike
        return [torch.nonzero(alike == number).flatten() for number in alike.unique()]

    def push(
        self,
        inputs: Tensor,
        labels: Tensor,
        rows: Tensor,
        tangents: Tensor,
        *,
        local_steps: LocalSteps = "unroll",
    ) -> tuple[Gradients, Gradients]:
        """`simulate`'s gradients (k of them) and their derivatives in c directions of the inputs.

        inputs, labels, rows as in `simulate`; tangents (k, c, B, *input shape), c directions for
        each victim -> gradients with axes ("client",) and derivatives with axes ("client",
        "column"). With the unit vectors as directions, the columns are those of the Jacobian. Both
        are without autograd's graph. The arithmetic is that of `inputs`, as in `simulate`: what
        was observed is the caller's to cast. A victim's bits do not depend on the others.
        """
        return self.run.push(self, inputs, labels, rows, tangents, local_steps)

    def cast(self, dtype: torch.dtype) -> Observation:
        """The same look with weights and gradients in `dtype`; kept until `forget`."""
        if self.dtype == dtype:
            return self
        if "cast" not in self._last or self._last["cast"].dtype != dtype:
            weights = {name: value.to(dtype) for name, value in self.weights.items()}
            gradients = self.gradients.map(lambda _, value: value.to(dtype))
            self._last["cast"] = replace(self, weights=weights, gradients=gradients)
        found: Observation = self._last["cast"]
        return found

    @property
    def dtype(self) -> torch.dtype:
        """Floating type of the weights."""
        return next(iter(self.weights.values())).dtype

    def forget(self) -> None:
        """Drop the kept answers: who was given them may have changed them."""
        self._last.clear()


class Simulate(Protocol):
    """The attacker's own run of the path, as far as he knows it; see `Observation.simulate`."""

    def __call__(
        self,
        seen: Observation,
        inputs: Tensor,
        labels: Tensor,
        rows: Tensor,
        local_steps: LocalSteps,
    ) -> Gradients: ...

    def push(
        self,
        seen: Observation,
        inputs: Tensor,
        labels: Tensor,
        rows: Tensor,
        tangents: Tensor,
        local_steps: LocalSteps,
    ) -> tuple[Gradients, Gradients]:
        """See `Observation.push`."""
        ...


@runtime_checkable
class SimulateEach(Protocol):
    """A run of the path that can share work among victims; see `Observation.simulate_each`."""

    def each(
        self,
        seen: Observation,
        inputs: Tensor,
        labels: Tensor,
        rows: Tensor,
        local_steps: LocalSteps,
    ) -> Iterator[Gradients]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LeakFacts:
    """What is known of a leak before it is made: enough to tell whether an attack suits it.

    Attributes:
        point: where the gradients are read.
        batch_size: examples behind each gradient, over all local steps.
        local_steps: of the update behind types 0 and 1.
        observations: looks at the same victims.
        input_shape, input_range, classes: public facts of the data.
        features: of a row of a table, where they are declared; () elsewhere.
        parameters: name -> shape of every parameter that has a gradient, in the model's order.
        candidates, public: how many inputs the threat model grants; 0 where it grants none.
    """

    point: LeakPoint
    batch_size: int
    local_steps: int
    observations: int
    input_shape: tuple[int, ...]
    input_range: tuple[float, float]
    classes: int
    parameters: Mapping[str, tuple[int, ...]]
    candidates: int
    public: int
    features: tuple[Feature, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """All that an attack is given about n victims; the victims themselves are not in it.

    A victim is what one gradient was made of: one example, or a client's batch. Gradients of types
    0 and 1 are updates dW in the units of a gradient, -dW / (L * learning rate): with one local
    step that is the gradient itself.

    Attributes:
        model: network and loss are public.
        observations: one, or k looks at the same victims; each can be simulated.
        point: where the gradients were read.
        batch_size: examples behind each observed gradient, over all local steps: B of the inputs
            to reconstruct.
        local_steps, learning_rate: of the update behind type 0 and 1.
        input_shape, input_range, classes: public facts of the data.
        features: what the columns of a row mean, where that is declared; () elsewhere.
        labels: (n, B) where the threat model grants them, else None.
        candidates, candidate_labels: (N, *input shape) and (N,) where granted, else None.
        public: (m, *input shape) inputs of the same kind where granted, else None.
        noise_std: parameter name -> (n,) std of the noise on its coordinates, nan where a defense
            does not publish it; None for a naive attacker.

    Raises:
        LeakbenchError: a gradient that lacks a parameter of the model, has one too many, or has
            another shape.
    """

    model: Model
    observations: tuple[Observation, ...]
    point: LeakPoint
    batch_size: int
    input_shape: tuple[int, ...]
    input_range: tuple[float, float]
    classes: int
    local_steps: int = 1
    learning_rate: float | None = None
    labels: Tensor | None = None
    candidates: Tensor | None = None
    candidate_labels: Tensor | None = None
    public: Tensor | None = None
    noise_std: Mapping[str, Tensor] | None = None
    features: tuple[Feature, ...] = ()

    def __post_init__(self) -> None:
        if self.features:
            require_whole("leak", self.features, math.prod(self.input_shape))
        for number, seen in enumerate(self.observations):
            tensors, weights = seen.gradients.tensors, seen.weights
            if odd := sorted(tensors.keys() ^ weights.keys()):
                has = "has no" if odd[0] in weights else "has an unknown"
                text = f"the gradient {has} parameter '{odd[0]}'; the model has {list(weights)}"
                raise LeakbenchError(f"leak, observation {number}: {text}")
            for name, value in tensors.items():
                if (found := tuple(value.shape[1:])) != (wanted := tuple(weights[name].shape)):
                    text = f"the gradient of '{name}' is {found} a victim, its weight {wanted}"
                    raise LeakbenchError(f"leak, observation {number}: {text}")

    @property
    def facts(self) -> LeakFacts:
        """What is known of the leak before it is made."""
        return LeakFacts(
            point=self.point,
            batch_size=self.batch_size,
            local_steps=self.local_steps,
            observations=len(self.observations),
            input_shape=self.input_shape,
            input_range=self.input_range,
            classes=self.classes,
            parameters={name: tuple(v.shape[1:]) for name, v in self.observed.tensors.items()},
            candidates=0 if self.candidates is None else len(self.candidates),
            public=0 if self.public is None else len(self.public),
            features=self.features,
        )

    @property
    def n(self) -> int:
        """Number of victims."""
        return self.observations[0].gradients.leading[0]

    @property
    def observed(self) -> Gradients:
        """Gradients of the first observation."""
        return self.observations[0].gradients

    @property
    def dtype(self) -> torch.dtype:
        """Floating type of the attack's arithmetic: that of the gradients."""
        return next(iter(self.observed.tensors.values())).dtype

    @property
    def device(self) -> torch.device:
        """Device the gradients lie on."""
        return next(iter(self.observed.tensors.values())).device
