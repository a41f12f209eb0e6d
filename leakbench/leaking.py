"""One way to make a leak: contexts, gradients, replays and leaks that agree with each other.

What a hook is told of the training, what the attacker is told of it and what he runs himself come
from one `Tap`. Trials, contract tests and `leakbench.capturing` all make their leaks here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

import torch
from torch import Tensor

from leakbench.contracts import (
    Context,
    Defense,
    Gradients,
    Leak,
    LeakPoint,
    Model,
    NoiseSource,
    Observation,
    PublicGradients,
    Replay,
    State,
    Weights,
)
from leakbench.data.features import Feature
from leakbench.optim import with_copies
from leakbench.simulation import Simulator
from leakbench.straight_through import followed
from leakbench.training import Batch, capture
from leakbench.weights import computed_alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """When a gradient is read: the round, its weights, and the defense's state in it."""

    weights: Weights
    state: State
    round: int = 0


class Granted(TypedDict, total=False):
    """What a threat model may grant, see `contracts.Leak`."""

    labels: Tensor
    candidates: Tensor
    candidate_labels: Tensor
    public: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Tap:
    """Where on which training gradients are read.

    Attributes:
        model: the network that is trained.
        point: where it is tapped; its round is that of each look.
        batch_size: B, examples of a local step.
        local_steps: L behind an update; 1 at a type-2 tap.
        learning_rate: of the local steps.
        rounds: planned ones, over which schedules run.
    """

    model: Model
    point: LeakPoint
    batch_size: int
    local_steps: int = 1
    learning_rate: float = 0.1
    rounds: int = 1

    def context(
        self,
        round: int,
        clients: tuple[int, ...],
        noise: NoiseSource | None,
        public: PublicGradients | None = None,
    ) -> Context:
        """What hooks are told in a round; see `contracts.Context`."""
        return Context(
            round=round,
            total=self.rounds,
            batch_size=self.batch_size,
            local_steps=self.local_steps,
            learning_rate=self.learning_rate,
            clients=clients,
            noise=noise,
            public=public,
        )

    def begin(self, defense: Defense, weights: Weights) -> State:
        """The defense's state before the first round."""
        return defense.init(_copies(weights))

    def look(
        self,
        defense: Defense,
        weights: Weights,
        state: State,
        round: int = 0,
        public: PublicGradients | None = None,
    ) -> Look:
        """The look at `weights` in a round that the defense enters with `state`.

        public: see `contracts.Context`.
        """
        context = self.context(round, (0,), None, public)
        with torch.no_grad():
            state = defense.on_round(_copies(weights), state, context)
        return Look(weights=weights, state=state, round=round)

    def capture(
        self,
        defense: Defense,
        look: Look,
        batches: Sequence[Batch],
        *,
        clients: Sequence[int],
        noise: NoiseSource,
        victims: Tensor | None = None,
        chunk_size: int | None = None,
    ) -> Gradients:
        """What leaks of the real steps `batches`, axes ("client",): one row a victim.

        clients: ids of the client axis, which noise belongs to. victims: at the tap of single
        examples (v, 2) pairs of row on the client axis and place in the batch; elsewhere every
        client is a victim. chunk_size: bounds the memory of per-example gradients.
        """
        count = len(clients)
        # Copies keep a client's bits independent of how many there are.
        if victims is None and not computed_alone(look.weights):
            rows = with_copies(torch.arange(count)).tolist()
            clients = [clients[row] for row in rows]
            batches = [
                replace(
                    batch,
                    inputs=batch.inputs[rows],
                    labels=batch.labels[rows],
                    mask=None if batch.mask is None else batch.mask[rows],
                )
                for batch in batches
            ]
        found = capture(
            self.model, look.weights, batches, defense,
            self.context(look.round, tuple(clients), noise), replace(self.point, round=look.round),
            victims,
            state=look.state, learning_rate=self.learning_rate, chunk_size=chunk_size,
        )  # fmt: skip
        return found if victims is not None else found.select(slice(count))

    def replay(self, defense: Defense, look: Look) -> Replay:
        """The defense as an adaptive attacker knows it in this look: all but its noise, and with a
        derivative where it has none (`straight_through`)."""
        context = self.context(look.round, (0,), None)
        known = followed(defense, look.weights, look.state, context, self.point)
        return Replay(
            defense=known,
            state=look.state,
            context=context,
            straight_through=known is not defense,
        )

    def naive_replay(self, look: Look) -> Replay:
        """What an attacker runs who ignores the defense."""
        return self.replay(Defense(), replace(look, state=None))

    def noise_std(self, defense: Defense, look: Look) -> Mapping[str, float] | None:
        """Parameter name -> std of the noise at this tap, in the units of what the attacker sees;
        None where the defense does not publish it."""
        context = self.context(look.round, (0,), None)
        return defense.noise_std(self.point.observer, _copies(look.weights), look.state, context)

    def observation(
        self,
        weights: Weights,
        gradients: Gradients,
        replays: Sequence[Replay],
        replay_of: Tensor | None = None,
    ) -> Observation:
        """One look, with the attacker's own run of the path.

        replay_of: (n,) which of `replays` each victim's gradient went through; None: all the first.
        """
        if replay_of is None:
            device = next(iter(gradients.tensors.values())).device
            replay_of = torch.zeros(gradients.leading[0], dtype=torch.int64, device=device)
        run = Simulator(
            model=self.model,
            replays=replays,
            replay_of=replay_of,
            point=self.point,
            local_steps=self.local_steps,
            learning_rate=self.learning_rate,
        )
        return Observation(weights=weights, gradients=gradients, run=run, alike=run.alike())

    def leak(
        self,
        observations: Sequence[Observation],
        *,
        round: int,
        input_shape: tuple[int, ...],
        input_range: tuple[float, float],
        classes: int,
        noise_std: Mapping[str, Tensor] | None,
        granted: Granted,
        features: tuple[Feature, ...] = (),
    ) -> Leak:
        """All that an attack is given; round: of the first look."""
        single = self.point.type == 2 and self.point.view == "example"
        return Leak(
            model=self.model,
            observations=tuple(observations),
            point=replace(self.point, round=round),
            batch_size=1 if single else self.batch_size * self.local_steps,
            input_shape=input_shape,
            input_range=input_range,
            classes=classes,
            local_steps=self.local_steps,
            learning_rate=None if self.point.type == 2 else self.learning_rate,
            noise_std=noise_std,
            features=features,
            **granted,
        )


def _copies(weights: Weights) -> dict[str, Tensor]:
    """Weights for a plugin to look at: what it does to them reaches nobody else."""
    return {name: value.clone() for name, value in weights.items()}
