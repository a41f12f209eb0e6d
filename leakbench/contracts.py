"""Everything that crosses a wall: gradients, leaks, defenses, attacks, guarantees, accountants.

The machinery passes these frozen dataclasses around and knows no plugin by name. An attack or a
defense is a frozen dataclass of keyword-only hyper-parameters that derives from `Attack` or
`Defense` below and carries a `name`; see `docs/plugins.md` and the examples in the README.

The path of a gradient, and the hooks and taps on it (training.py runs it)::

    per-example gradients -> on_examples -> [type 2, view "example"] -> mean over the batch
      -> on_batch -> [type 2, view "batch"] -> local SGD step, L times
      -> update -> on_update (client) -> [type 1] -> sent -> [type 0, view "raw"]
      -> on_receipt (server) -> [type 0] -> aggregate

Before a round `on_round` may look at the weights; after it `merge` makes one state of the clients'.

What an attacker sees follows from that order alone; no defense is ever special-cased.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from leakbench.errors import LeakbenchError, require_at_least, unknown_name
from leakbench.losses import Loss
from leakbench.numeric import square_root
from leakbench.parameters import check_kinds
from leakbench.privacy.events import PrivacyEvent, Sampling
from leakbench.spec import Grant
from leakbench.spec import LeakPoint as LeakPoint
from leakbench.spec import Observer as Observer
from leakbench.spec import View as View

Weights = Mapping[str, Tensor]
"""Parameter name -> tensor; shared by all clients, or with a leading client axis ("stacked")."""

State = Any
"""What a defense remembers between hooks: a pytree of tensors, never changed in place."""

Axis = Literal["client", "example"]

NoiseConvention = Literal["per_example", "mean", "sum"]
Row = int | Literal["batch"] | None
"""What a row of `on_examples` is the mean of: 1 example, s examples that follow one another in the
batch, all of the "batch"; None: the hook is not called."""
Ended = Literal["converged", "steps", "nan"]
LocalSteps = Literal["average", "unroll"]
"""How an attacker models L > 1 local steps: one step on all their examples, or step by step."""


# ---------------------------------------------------------------------------- gradients


@dataclass(frozen=True, slots=True)
class Gradients:
    """One gradient, or a stack of them with named leading axes.

    Attributes:
        tensors: parameter name -> tensor of shape (*leading, *parameter shape).
        axes: names of the leading axes, outermost first, e.g. ("client", "example").
        mask: bool of shape (*leading); False marks padding in batches of unequal size.
    """

    tensors: Mapping[str, Tensor]
    axes: tuple[Axis, ...] = ()
    mask: Tensor | None = None

    @property
    def leading(self) -> tuple[int, ...]:
        """Sizes of the leading axes."""
        return tuple(next(iter(self.tensors.values())).shape[: len(self.axes)])

    def map(self, function: Callable[[str, Tensor], Tensor]) -> Gradients:
        """Apply `function(name, tensor)` to every tensor; axes and mask stay."""
        return replace(self, tensors={k: function(k, v) for k, v in self.tensors.items()})

    def norms(self) -> dict[str, Tensor]:
        """L2 norm of every tensor, each of shape (*leading)."""
        return {k: torch.linalg.vector_norm(self._flat(v), dim=-1) for k, v in self.tensors.items()}

    def flat_norm(self) -> Tensor:
        """L2 norm over all tensors together, shape (*leading)."""
        # Added up one by one: a reduction over tensors would round by how many rows there are.
        squares = [norm.square() for norm in self.norms().values()]
        total = squares[0]
        for square in squares[1:]:
            total = total + square
        nonzero = total != 0  # the root has no finite derivative at 0
        return torch.where(nonzero, square_root(torch.where(nonzero, total, 1.0)), 0.0)

    def scale(self, factors: Tensor | Mapping[str, Tensor]) -> Gradients:
        """Multiply by factors of shape (*leading), one for all tensors or one a tensor."""

        def apply(name: str, value: Tensor) -> Tensor:
            factor = factors[name] if isinstance(factors, Mapping) else factors
            scaled: Tensor = value * self.expand(factor, value)
            return scaled

        return self.map(apply)

    def mean(self, axis: Axis) -> Gradients:
        """Average over a leading axis, counting only entries whose mask is True."""
        position = self.axes.index(axis)
        axes = self.axes[:position] + self.axes[position + 1 :]
        if self.mask is None and self.leading[position] == 1:
            return Gradients({k: v.squeeze(position) for k, v in self.tensors.items()}, axes)
        if self.mask is None:
            return Gradients({k: v.mean(dim=position) for k, v in self.tensors.items()}, axes)
        present, count = self.mask, self.mask.sum(dim=position).clamp(min=1)

        def averaged(value: Tensor) -> Tensor:
            total = torch.where(self.expand(present, value), value, 0.0).sum(dim=position)
            return total / count.reshape(count.shape + (1,) * (total.ndim - count.ndim))

        kept = present.any(dim=position) if axes else None
        return Gradients({k: averaged(v) for k, v in self.tensors.items()}, axes, kept)

    def select(self, rows: Tensor | slice) -> Gradients:
        """Rows of the first leading axis."""
        mask = None if self.mask is None else self.mask[rows]
        return Gradients({k: v[rows] for k, v in self.tensors.items()}, self.axes, mask)

    def flatten(self) -> Tensor:
        """All tensors side by side, shape (*leading, d)."""
        return torch.cat([self._flat(v) for v in self.tensors.values()], dim=-1)

    def expand(self, factor: Tensor, value: Tensor) -> Tensor:
        """Give a (*leading) factor the trailing singleton axes it needs to multiply `value`."""
        return factor.reshape(factor.shape + (1,) * (value.ndim - factor.ndim))

    def _flat(self, value: Tensor) -> Tensor:
        return value.reshape(*value.shape[: len(self.axes)], -1)


def concatenate(parts: Sequence[Gradients]) -> Gradients:
    """Join stacks along their first leading axis; all must have the same axes."""
    first = parts[0]
    joined = {k: torch.cat([part.tensors[k] for part in parts]) for k in first.tensors}
    masks = [part.mask for part in parts]
    known = [mask for mask in masks if mask is not None]
    return Gradients(joined, first.axes, torch.cat(known) if len(known) == len(parts) else None)


# ---------------------------------------------------------------------------- models


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


# ---------------------------------------------------------------------------- leaks


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One look at n victims: the weights in use and the gradients seen, axes ("client",).

    run: the attacker's own run of the path in this look, behind `simulate`.
    """

    weights: Weights
    gradients: Gradients
    run: Simulate
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
        so on.
        """
        return self.run(self, inputs, labels, rows, local_steps)

    def forget(self) -> None:
        """Drop the kept answer: who was given it may have changed it."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LeakFacts:
    """What is known of a leak before it is made: enough to tell whether an attack suits it.

    Attributes:
        point: where the gradients are read.
        batch_size: examples behind each gradient, over all local steps.
        local_steps: of the update behind types 0 and 1.
        observations: looks at the same victims.
        input_shape, input_range, classes: public facts of the data.
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

    def __post_init__(self) -> None:
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


# ---------------------------------------------------------------------------- attacks


class Streams(Protocol):
    """Random numbers keyed by victim, so that chunking and order never change a start."""

    def uniform(self, purpose: str, shape: tuple[int, ...], repeat: int = 0) -> Tensor:
        """U[0, 1) of shape (n, *shape), float64 on the CPU; `repeat` numbers restarts."""
        ...

    def normal(self, purpose: str, shape: tuple[int, ...], repeat: int = 0) -> Tensor:
        """N(0, 1) of shape (n, *shape), float64 on the CPU."""
        ...


class Watch(Protocol):
    """The harness looks on: snapshots, loss traces, oracle columns. It returns nothing."""

    def __call__(
        self, rows: Tensor, steps: Tensor, evaluations: Tensor, inputs: Tensor, losses: Tensor
    ) -> None:
        """Victims `rows` (k,) have done `steps` (k,) steps with `evaluations` (k,) gradient
        evaluations and hold `inputs` (k, B, *shape); `losses` (k,) are theirs at the start of the
        step just done. Restarts count on."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconstruction:
    """What the attacker returns for n victims, chosen by his own loss at his own stop.

    Attributes:
        inputs: (n, B, *input shape), raw: not clamped to the input range.
        labels: (n, B) class indices used or found.
        loss: (n,) the attacker's loss at `inputs`; nan where an attack has none.
        start_inputs: (n, B, *input shape) where the attack began.
        start_loss: (n,) his loss there.
        steps, evaluations: (n,) optimiser steps and gradient evaluations spent.
        status: n of "converged" (further steps would not move), "steps" (used up),
            "nan" (left the finite numbers; `inputs` is the best iterate before that).
    """

    inputs: Tensor
    labels: Tensor
    loss: Tensor
    start_inputs: Tensor
    start_loss: Tensor
    steps: Tensor
    evaluations: Tensor
    status: tuple[Ended, ...]


class Attack(ABC):
    """Family base: `name` identifies the plugin, fields are its hyper-parameters.

    An attack that matches gradients derives from `inversion.MatchingAttack`, which has most of it.
    """

    name: ClassVar[str]
    paper: ClassVar[str] = ""
    requires: ClassVar[tuple[Grant, ...]] = ()
    """What the threat model must grant."""

    def __post_init__(self) -> None:
        check_kinds(self)

    @abstractmethod
    def reconstruct(self, leak: Leak, streams: Streams, watch: Watch) -> Reconstruction:
        """Reconstruct all victims of `leak` at once."""

    def start(self, leak: Leak, streams: Streams, restart: int = 0) -> Tensor | None:
        """(n, B, *shape) the attack's first iterate, a baseline of every table; None if none."""
        return None

    def skip(self, facts: LeakFacts) -> str:
        """Why the attack cannot work on such leaks, as the end of a sentence; "" where it can.

        Asked when a run is planned: its trials then count as skipped, with this reason.
        """
        return ""

    def require_suitable(self, leak: Leak) -> None:
        """Refuse a leak that should have been skipped: for the begin of `reconstruct`.

        Raises:
            LeakbenchError: the attack's name and what `skip` says.
        """
        if reason := self.skip(leak.facts):
            raise LeakbenchError(f"{self.name}: {reason}")

    def budget(self, facts: LeakFacts) -> int:
        """Gradient evaluations it may spend on a victim, to estimate how long a run takes."""
        return 0


@runtime_checkable
class HasLoss(Protocol):
    """An attack that has a loss of its own, which its reconstructions make small."""

    def loss(self, leak: Leak, inputs: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
        """(k,) the loss of `inputs` (k, B, *shape) with `labels` (k, B) for victims `rows` (k,).

        The harness evaluates it at the truth, to tell an optimiser that failed from a gradient that
        no longer points there.
        """
        ...


# ---------------------------------------------------------------------------- defenses


class NoiseSource(Protocol):
    """Draws of one (client, round, iteration), drawn whole, on the CPU."""

    def normal(
        self, purpose: str, client: int, round: int, iteration: int, shape: tuple[int, ...]
    ) -> Tensor:
        """N(0, 1)."""
        ...

    def uniform(
        self, purpose: str, client: int, round: int, iteration: int, shape: tuple[int, ...]
    ) -> Tensor:
        """U(0, 1), never exactly 0 or 1."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a hook may know besides gradients and state.

    Sizes, clients and noise have no defaults: a defense that is told the wrong ones protects less
    than it says, and nothing would show it.

    Attributes:
        batch_size: B of a local step, the expected size where batches vary.
        clients: ids of the client axis.
        noise: where noise is drawn from; None in a replay, and then nothing random is added.
        round, iteration: 0-based place on the path; central training is a round an iteration.
        total: planned rounds; decay schedules run over `round` / `total`.
        local_steps: L of a round.
        learning_rate: of the local steps, where it is known.
        observation: in a replay, what was observed (masks of pruning come from it).
        public: per-example gradients of the public examples at the given weights, axes ("client",
            "example") with one client; None where there are none. Only `on_round` may call it.
    """

    batch_size: int
    clients: tuple[int, ...]
    noise: NoiseSource | None
    round: int = 0
    iteration: int = 0
    total: int = 1
    local_steps: int = 1
    learning_rate: float | None = None
    observation: Gradients | None = None
    public: Callable[[Weights], Gradients] | None = None

    def of_steps(self, std: float) -> float:
        """Std of noise with this std on every local step's gradient, read off the update."""
        return std / math.sqrt(self.local_steps)

    def of_update(self, std: float) -> float:
        """Std of noise with this std on dW, in the units of a gradient.

        Raises:
            LeakbenchError: the learning rate is not known.
        """
        if self.learning_rate is None:
            raise LeakbenchError("context: noise on dW cannot be read without a learning_rate")
        return std / (self.local_steps * self.learning_rate)

    def add_gaussian(
        self, gradients: Gradients, std: Tensor | float | Mapping[str, Tensor], purpose: str
    ) -> Gradients:
        """Add N(0, std^2) to every coordinate; in a replay return `gradients` untouched.

        std: one number, a tensor that broadcasts over the leading axes, or a tensor a parameter
        that broadcasts over (*leading, *parameter shape). Noise of a client is drawn whole, in
        the order of the tensors, from its own stream, and is the same for every defense.
        """
        if self.noise is None:
            return gradients

        def noisy(name: str, value: Tensor) -> Tensor:
            scale: Tensor | float
            if isinstance(std, Mapping):
                scale = std[name]
            elif isinstance(std, Tensor):
                scale = gradients.expand(std, value) if std.ndim else std
            else:
                scale = std
            return value + scale * self._draw(f"{purpose}/{name}", value)

        return gradients.map(noisy)

    def gaussian(self, like: Tensor, std: float, purpose: str) -> Tensor:
        """N(0, std^2) noise shaped like `like` (client first); zeros in a replay."""
        return torch.zeros_like(like) if self.noise is None else std * self._draw(purpose, like)

    def laplace(self, like: Tensor, std: float, purpose: str) -> Tensor:
        """Laplace noise of this std, so of scale std / sqrt(2), shaped like `like` (client first);
        zeros in a replay."""
        if self.noise is None:
            return torch.zeros_like(like)
        centred = self.uniform(like, purpose) - 0.5
        scale = std / math.sqrt(2)
        return (-scale * centred.sign() * torch.log1p(-2 * centred.abs())).to(like.dtype)

    def uniform(self, like: Tensor, purpose: str) -> Tensor:
        """U(0, 1) shaped like `like` (client first) in float64, for random choices; not to be had
        in a replay, where the observation says what was chosen."""
        assert self.noise is not None, "a replay has no random choices"
        return self._drawn(self.noise.uniform, purpose, like)

    def _draw(self, purpose: str, like: Tensor) -> Tensor:
        assert self.noise is not None
        return self._drawn(self.noise.normal, purpose, like).to(like.dtype)

    def _drawn(
        self,
        source: Callable[[str, int, int, int, tuple[int, ...]], Tensor],
        purpose: str,
        like: Tensor,
    ) -> Tensor:
        # One draw would broadcast over all clients without a word.
        assert len(self.clients) == len(like), "context.clients must name every client"
        shape = tuple(like.shape[1:])
        drawn = [
            source(purpose, client, self.round, self.iteration, shape) for client in self.clients
        ]
        together = drawn[0][None] if len(drawn) == 1 else torch.stack(drawn)
        return together.to(like.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Public facts of the training that a promise depends on.

    batch_size: B, examples a local step (the expected number under Poisson sampling). local_steps:
    L. clients: Kt that take part in a round, whose updates are averaged, of all_clients: N.
    examples: n of one client; None where they are not known, and then each may be in every step.
    rounds: T; round: 0-based, of the observation; iteration: 0-based, of the local step that a
    type-2 tap reads. sampling: of what is sampled, the examples of the only client or the clients.
    weighted: clients count by their numbers of examples, which differ; else equally.

    Raises:
        LeakbenchError: a number that is not whole, or below 1 (rounds, round, iteration: below 0).
    """

    batch_size: int
    local_steps: int = 1
    clients: int = 1
    all_clients: int = 1
    examples: int | None = None
    rounds: int = 1
    round: int = 0
    iteration: int = 0
    sampling: Sampling = "fixed_size"
    weighted: bool = False

    def __post_init__(self) -> None:
        require_at_least(
            "setting", 1, batch_size=self.batch_size, local_steps=self.local_steps,
            clients=self.clients, all_clients=self.all_clients,
            examples=1 if self.examples is None else self.examples,
        )  # fmt: skip
        require_at_least(
            "setting", 0, rounds=self.rounds, round=self.round, iteration=self.iteration
        )

    def uses(self, observer: Observer) -> int:
        """Local steps of one round that one example takes part in, as far as `observer` learns.

        Who sees a client's update learns of all L together. A type-2 tap reads one step, at
        weights that the steps before have moved, and learns of those too. For the final model
        every step counts by itself.
        """
        if observer == "model":
            return 1
        tapped = observer in ("type2", "type2_batch")
        steps = self.iteration + 1 if tapped else self.local_steps
        if self.examples is None or (self.sampling == "poisson" and self.all_clients == 1):
            return steps
        return math.ceil(steps * self.batch_size / self.examples)

    @property
    def draws_anew(self) -> bool:
        """Whether every local step draws its examples afresh from all there are."""
        if self.all_clients > 1:
            return False
        return self.sampling == "poisson" or self.local_steps == 1

    @property
    def refills(self) -> bool:
        """Whether batches have a fixed size: another example takes the place of one that leaves,
        and for all who see sums of a batch to remove one is to replace one."""
        return self.all_clients > 1 or self.sampling == "fixed_size"

    @property
    def client_rate(self) -> float:
        """Chance of a client to take part in a round, Kt / N."""
        return self.clients / self.all_clients

    @property
    def example_rate(self) -> float:
        """Chance of an example to take part in a local step; 1 where its number is not given."""
        share = 1.0 if self.examples is None else min(self.batch_size / self.examples, 1.0)
        return self.client_rate * share


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantee:
    """What a mechanism really promises one observer about one observation.

    level: whose presence is hidden; "none" needs a `reason`.
    relation: neighbouring relation the sensitivity is stated for. "add_remove": what is absent
        adds nothing to any sum, and B and the noise stay. Where batches are refilled
        (`Setting.refills`) that is half of the way from one example to another.
    sensitivity, noise_std: at the release, in the same units; their ratio is mu.
    unit, tensors: norm clipped ("tensor": each of M tensors apart, sensitivity sqrt(M) C).
    single_look: whether it does not compose: a second observation tells more than its own share.
    assumptions: sentences an accountant must repeat.
    """

    level: Literal["instance", "client", "none"]
    reason: str = ""
    relation: Literal["add_remove", "replace_one"] = "add_remove"
    sensitivity: float | None = None
    noise_std: float | None = None
    unit: Literal["tensor", "layer", "flat"] = "flat"
    tensors: int = 1
    single_look: bool = False
    assumptions: tuple[str, ...] = ()

    @property
    def mu(self) -> float | None:
        """Gaussian-DP parameter of one observation: sensitivity / noise std; None without one."""
        if self.level == "none" or self.sensitivity is None or self.noise_std is None:
            return None
        return self.sensitivity / self.noise_std if self.noise_std > 0 else math.inf


class Defense:
    """Family base: a defense overrides the hooks it needs, the others pass gradients through.

    Hooks are pure: (gradients, state, context) -> (gradients, state), for all clients at once
    (first leading axis). The same hooks, run with a context without noise, are the replay of the
    adaptive attacker, so all randomness must come from `context`.
    """

    name: ClassVar[str]
    paper: ClassVar[str] = ""
    needs_public: ClassVar[bool] = False
    """Whether `on_round` needs `context.public`."""

    def __post_init__(self) -> None:
        check_kinds(self)

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Refuse hooks that the path does not call: misspelt, they would do nothing, silently.

        Raises:
            LeakbenchError: a method `on_...` that this class does not have.
        """
        super().__init_subclass__(**arguments)
        hooks = [name for name in vars(Defense) if name.startswith("on_")]
        for name, value in vars(cls).items():
            if name.startswith("on_") and callable(value) and name not in hooks:
                raise unknown_name("hook", name, hooks, f"defense {cls.__name__}")

    def init(self, weights: Weights) -> State:
        """State before the first iteration; public."""
        return None

    @property
    def hooks(self) -> frozenset[str]:
        """Hooks on gradients that do something, as it is set up. Default: those it overrides."""
        hooks = ("on_examples", "on_batch", "on_update", "on_receipt")
        return frozenset(h for h in hooks if getattr(type(self), h) is not getattr(Defense, h))

    @property
    def row(self) -> Row:
        """What a row of `on_examples` is the mean of. None spares the cost of gradients apart.

        Default: single examples where a defense has that hook, else None. A number must divide the
        batch.
        """
        return 1 if "on_examples" in self.hooks else None

    @property
    def rowwise(self) -> bool:
        """Whether `on_examples` treats every row by itself, draws nothing random, and returns the
        state it was given: the path may then call it with a few rows at a time and keep only their
        sum, which bounds the memory of large networks."""
        return False

    def row_size(self, batch_size: int) -> int:
        """Examples behind a row of `on_examples` in a batch of this size; 0 where it has none.

        Raises:
            LeakbenchError: rows that the batch cannot be cut into.
        """
        row = self.row
        if row is None:
            return 0
        size = batch_size if row == "batch" else row
        if size < 1 or batch_size % size:
            raise LeakbenchError(
                f"{self.name}: a batch of {batch_size} examples has no subsets of {size}; "
                "allowed: divisors of the batch size"
            )
        return size

    def on_round(self, weights: Weights, state: State, context: Context) -> State:
        """State at the start of a round, made from `weights`, all clients' and public."""
        return state

    def merge(self, state: State) -> State:
        """The clients' states after a round (leading client axis) as the one the next starts from.

        A defense that remembers nothing, or nothing past a round, need not say.
        """
        return state

    def on_examples(
        self, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        """Gradients of examples or subsets (see `row`), axes ("client", "example")."""
        return gradients, state

    def on_batch(
        self, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        """Mean over the batch, axes ("client",)."""
        return gradients, state

    def on_update(
        self, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        """A client's weight change dW after its local steps, axes ("client",)."""
        return gradients, state

    def on_receipt(
        self, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        """dW as the server holds it, axes ("client",)."""
        return gradients, state

    def guarantee(self, observer: Observer, weights: Weights, setting: Setting) -> Guarantee:
        """What `observer` is promised about one observation: one round, or one local step."""
        return Guarantee(level="none", reason="the defense promises nothing")

    def noise_std(
        self, observer: Observer, weights: Weights, state: State, context: Context
    ) -> Mapping[str, float] | None:
        """Public noise std on each tensor of what `observer` reads; None where it is not public.

        In the units of a gradient, which updates are read in as well: noise of a local step is
        averaged over the L steps behind one, noise on dW is divided by L * learning rate
        (`Context.of_steps` and `of_update`). state, context: those of the round that was tapped.
        """
        return None

    def events(self, weights: Weights, setting: Setting) -> tuple[PrivacyEvent, ...]:
        """Releases of a whole training run, as the final model's holder is promised them.

        A client-level promise is spent once a round, under the sampling of clients. An
        instance-level one is spent in every local step, under the sampling of examples where each
        step draws anew (`Setting.draws_anew`). Else nothing is amplified: who is drawn once takes
        part in all of a round, and hiding a client's presence does not hide which of two data sets
        a present one holds. There batches are refilled in turn, which counts as "fixed_size" of
        rate 1: adding or removing costs what replacing does. () without a guarantee. Default:
        equal releases.
        """
        promise = self.guarantee("model", weights, setting)
        if promise.mu is None or promise.sensitivity is None or promise.noise_std is None:
            return ()
        rate, sampling = setting.client_rate, setting.sampling
        steps = setting.rounds
        if promise.level == "instance" and setting.draws_anew:
            rate, steps = setting.example_rate, setting.rounds * setting.local_steps
        elif promise.level == "instance":
            rate, steps = 1.0, setting.rounds * setting.uses("type1")
            sampling = "fixed_size" if setting.refills else "none"
        # Events are stated for adding or removing one; replacing one moves a sum twice as far.
        share = 0.5 if promise.relation == "replace_one" else 1.0
        return (
            PrivacyEvent(
                noise_multiplier=promise.noise_std / (share * promise.sensitivity),
                sensitivity=share * promise.sensitivity,
                sampling_rate=rate,
                sampling=sampling,
                steps=steps,
            ),
        )


def changes_nothing(defense: Defense) -> bool:
    """Whether all its hooks are the family's own, which pass everything through."""
    hooks = [name for name in vars(Defense) if name.startswith("on_")]
    return all(getattr(type(defense), hook) is getattr(Defense, hook) for hook in hooks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A defense in the public state of one look: all an adaptive attacker knows of it."""

    defense: Defense
    state: State
    context: Context
