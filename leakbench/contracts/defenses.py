"""What a defense is, and what its hooks are told."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor

from leakbench.contracts.gradients import Gradients, Weights
from leakbench.contracts.promises import Guarantee, Setting
from leakbench.errors import LeakbenchError, unknown_name
from leakbench.parameters import check_kinds
from leakbench.privacy.events import PrivacyEvent
from leakbench.spec import Observer

State = Any
"""What a defense remembers between hooks: a pytree of tensors, never changed in place."""

NoiseConvention = Literal["per_example", "mean", "sum"]
Row = int | Literal["batch"] | None
"""What a row of `on_examples` is the mean of: 1 example, s examples that follow one another in the
batch, all of the "batch"; None: the hook is not called."""


PublicGradients = Callable[[Weights, int], Iterable[Gradients]]
"""(weights, s) -> gradients of the public examples at these weights, of the mean loss of every s
that follow one another (s = 1: of single ones), axes ("client", "example") with one client. They
come in pieces, as much as fits into memory; a rest of less than s is left out, unless it is all
there is. A network that mixes examples takes a subset as it takes a batch in training."""


class NoiseSource(Protocol):
    """Draws of one (client, round, iteration), drawn whole, on the CPU; a new tensor each time."""

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
        observation: in a replay, what was observed (masks of pruning come from it); None where
            the defense does not say that it reads it (`Defense.reads_observation`).
        public: see `PublicGradients`; None where there are none. Only `on_round` may call it.
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
    public: PublicGradients | None = None

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
            drawn = self._draw(f"{purpose}/{name}", value)
            if isinstance(scale, Tensor):  # perhaps of a wider type
                return value + scale * drawn
            return drawn.mul_(scale).add_(value)

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
        state it was given: the path may then call it with a few rows of a few clients at a time and
        keep only their sum, which is faster and bounds the memory."""
        return False

    @property
    def reads_observation(self) -> bool:
        """Whether its replay reads `context.observation`, so that what it makes of an input differs
        from victim to victim. Who does not say so is not shown it."""
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

    def scales(self, state: State, context: Context) -> Mapping[str, float]:
        """What the mechanism used in the round just ended, public or not: for logs, nothing else.

        "clip" (C_t), "noise_multiplier" (sigma_t), "sensitivity" (S_t), those it has; of quantities
        that every client has his own of, the mean. state: after the hooks, before `merge`.
        """
        return {}

    def events(self, weights: Weights, setting: Setting) -> tuple[PrivacyEvent, ...]:
        """Releases of a whole training run, as the final model's holder is promised them.

        A client-level promise is spent once a round, under the sampling of clients. An
        instance-level one is spent in every local step, under the sampling of examples where each
        step draws anew (`Setting.draws_anew`). Else nothing is amplified: who is drawn once takes
        part in all of a round, and hiding a client's presence does not hide which of two data sets
        a present one holds. There batches are refilled in turn, which counts as "fixed_size" of
        rate 1: adding or removing costs what replacing does. An example that several clients of a
        round hold is released on by each of them. () without a guarantee. Default:
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
            rate = 1.0
            steps = setting.rounds * setting.uses("type1") * setting.holders_a_round
            sampling = "fixed_size" if setting.refills else "none"
        # Events are stated for adding or removing one; replacing one moves a sum twice as far.
        share = 0.5 if promise.relation == "replace_one" else 1.0
        distance = share * promise.sensitivity
        return (
            PrivacyEvent(
                noise_multiplier=promise.noise_std / distance if distance > 0 else math.inf,
                sensitivity=distance,
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
    """A defense in the public state of one look: all an adaptive attacker knows of it.

    straight_through: whether `defense` has another derivative than its own, which is zero.
    """

    defense: Defense
    state: State
    context: Context
    straight_through: bool = False
