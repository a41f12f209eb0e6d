"""How long, on whose data and by which steps a network is trained; free of torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from leakbench.errors import LeakbenchError, require_at_least, unknown_name
from leakbench.parameters import require_in
from leakbench.privacy.events import Sampling
from leakbench.schedules import Decay, decayed, stepped

Aggregation = Literal["fed_sgd", "fed_averaging"]
Partition = Literal["iid", "shards", "dirichlet"]
Divisor = Literal["clients", "clients_minus_one"]
LearningRatePolicy = Literal["constant", "step", "linear", "cosine"]
Augmentation = Literal["flip", "crop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How long and on whose data a network is trained.

    Attributes:
        rounds: T. learning_rate: of the local SGD steps.
        batch_size: B examples a local step; their expected number under Poisson sampling.
        clients: N, 1 for central training. clients_a_round: Kt. local_steps: L.
        examples_a_client: of each client, the first so many of his share; None: all.
        sampling: of the clients, or of the examples of a single one. "fixed_size": Kt clients (B
            examples) without replacement; "poisson": each by an own coin, Kt (B) of them
            expected, and sums are divided by that. Otherwise a client goes through his examples in
            a random order of his own, anew in every round, and again when they are used up; no
            batch has an example twice.
        aggregation: "fed_sgd" averages the updates dW of a round with equal weights,
            "fed_averaging" the clients' weights by their numbers of examples (McMahan et al.
            2017); with equal numbers they are the same. Poisson sampling needs "fed_sgd".
        partition: "iid", "shards" (`classes_a_client` classes each) or "dirichlet"
            (`concentration`; drawn again until every client has a batch); see `data.partitions`.
        overlap: every client draws `examples_a_client` examples from all there are, by a stream of
            his own ("shards": from `classes_a_client` classes drawn at random), so that clients
            share examples and any number of them exists, as in the papers (N = 10,000 clients of
            500 out of 60,000 examples). Not with "dirichlet".
        divisor: of the sum of the updates: Kt, or Kt - 1 as in the released code of Fed-CDP and
            Fed-alphaCDP.
        momentum: of the local SGD steps, torch's definition; every client starts a round at rest,
            central training keeps its velocity.
        learning_rate_policy: over the rounds, from `learning_rate` on: "constant"; "step", times
            `learning_rate_factor` after every `learning_rate_every` rounds; "linear" and "cosine"
            to `learning_rate_end` at the end of the planned rounds.
        normalise: inputs minus mean, over standard deviation, of the public examples: of each
            channel of images, of each column of a table.
        augment: of images, "flip": left to right with probability 1/2; "crop": a random window of
            the image with 4 zeros around it.

    Raises:
        LeakbenchError: a number or a name that is not allowed, or two that exclude each other.
    """

    rounds: int
    batch_size: int
    learning_rate: float
    clients: int = 1
    clients_a_round: int = 1
    local_steps: int = 1
    examples_a_client: int | None = None
    sampling: Sampling = "fixed_size"
    aggregation: Aggregation = "fed_sgd"
    partition: Partition = "iid"
    classes_a_client: int = 2
    concentration: float = 0.5
    overlap: bool = False
    divisor: Divisor = "clients"
    momentum: float = 0.0
    learning_rate_policy: LearningRatePolicy = "constant"
    learning_rate_end: float = 0.0
    learning_rate_factor: float = 1.0
    learning_rate_every: int = 1
    normalise: bool = False
    augment: tuple[Augmentation, ...] = ()

    def __post_init__(self) -> None:
        for name in (
            "rounds", "batch_size", "clients", "clients_a_round", "local_steps",
            "examples_a_client", "learning_rate_every",
        ):  # fmt: skip
            if (value := getattr(self, name)) is not None:
                require_at_least("training", 1, **{name: value})
        require_in("training", "(0, inf)", learning_rate=self.learning_rate)
        require_in("training", "(0, inf)", learning_rate_factor=self.learning_rate_factor)
        require_in("training", "[0, inf)", learning_rate_end=self.learning_rate_end)
        require_in("training", "[0, 1)", momentum=self.momentum)
        # As JSON has it: a plan that is read again must be the plan that was written.
        object.__setattr__(self, "augment", tuple(self.augment))
        for name, allowed in (
            ("sampling", ("poisson", "fixed_size")),
            ("aggregation", get_args(Aggregation)),
            ("partition", get_args(Partition)),
            ("divisor", get_args(Divisor)),
            ("learning_rate_policy", get_args(LearningRatePolicy)),
        ):
            if (value := getattr(self, name)) not in allowed:
                raise unknown_name(name, value, allowed, "training")
        for value in self.augment:
            if value not in get_args(Augmentation):
                raise unknown_name("augment", value, get_args(Augmentation), "training")
        if self.clients_a_round > self.clients:
            raise LeakbenchError(
                f"training: {self.clients_a_round} clients a round of {self.clients}; allowed: "
                f"1 to {self.clients}"
            )
        if self.sampling == "poisson" and self.aggregation == "fed_averaging":
            text = "poisson sampling divides by the expected number of clients, which is 'fed_sgd'"
            raise LeakbenchError(f"training: {text}; aggregation must not be 'fed_averaging'")
        if self.overlap:
            self._check_overlap()
        if self.divisor == "clients_minus_one":
            if self.clients_a_round < 2:
                text = "'clients_minus_one' needs two clients a round or more"
                raise LeakbenchError(f"training: divisor {text}; allowed: 'clients'")
            if self.aggregation == "fed_averaging":
                text = "'clients_minus_one' is for equal weights"
                raise LeakbenchError(f"training: divisor {text}; allowed aggregation: 'fed_sgd'")

    def _check_overlap(self) -> None:
        if self.clients < 2 or self.examples_a_client is None:
            text = "needs several clients and examples_a_client, the number that each draws"
            raise LeakbenchError(f"training: overlap {text}")
        if self.partition == "dirichlet":
            text = "partition 'dirichlet' gives every example to one client"
            raise LeakbenchError(f"training: {text}; allowed with overlap: 'iid', 'shards'")

    def learning_rate_at(self, round: int, total: int) -> float:
        """Of the local steps of 0-based round `round` of `total` planned ones."""
        if self.learning_rate_policy == "step":
            return self.learning_rate * stepped(
                self.learning_rate_factor, self.learning_rate_every, round
            )
        kind: Decay = self.learning_rate_policy
        return decayed(
            kind, self.learning_rate, self.learning_rate_end, round=round, total=total, cycles=1
        )
