"""What a mechanism promises, and the training that the promise is about."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from leakbench.errors import require_at_least
from leakbench.privacy.events import Sampling
from leakbench.spec import Observer


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Public facts of the training that a promise depends on.

    Attributes:
        batch_size: B, examples of a local step; their expected number under Poisson sampling.
        local_steps: L of a client in a round.
        clients: Kt that take part in a round, and whose updates are averaged.
        all_clients: N, of whom those are drawn.
        examples: n that one client holds; None where it is not known, and then each example may be
            in every step.
        rounds: T of the whole training.
        round: of the observation, counted from 0.
        iteration: the local step that a type-2 tap reads, counted from 0.
        sampling: of what is sampled: the examples of the only client, or the clients.
        weighted: whether clients count by their numbers of examples, which differ; else equally.
        holders: clients who hold the same example, at most; above 1 where clients share examples.

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
    holders: int = 1

    def __post_init__(self) -> None:
        require_at_least(
            "setting", 1, batch_size=self.batch_size, local_steps=self.local_steps,
            clients=self.clients, all_clients=self.all_clients, holders=self.holders,
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
    def holders_a_round(self) -> int:
        """Clients of one round who may hold the same example: a release of each tells of it."""
        return min(self.holders, self.clients)

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

    Attributes:
        level: whose presence is hidden, one example's ("instance") or a whole client's; "none"
            needs a reason.
        reason: why nothing is promised, as a part of a sentence.
        relation: the neighbouring relation that the sensitivity is stated for. "add_remove": what
            is absent adds nothing to any sum, and B and the noise stay. Where batches are refilled
            (`Setting.refills`) that is half of the way from one example to another.
        sensitivity: how far neighbours are apart at the release.
        noise_std: of the Gaussian noise there, in the same units; the ratio of both is mu.
        unit: what is clipped to a bound: each of M tensors apart (sensitivity sqrt(M) C), each
            layer, or the whole gradient.
        tensors: M.
        single_look: whether it does not compose: a second observation tells more than its share.
        assumptions: sentences that an accountant must repeat.
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
        if self.sensitivity == 0:
            return 0.0
        return self.sensitivity / self.noise_std if self.noise_std > 0 else math.inf
