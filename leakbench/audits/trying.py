"""A short training with a mechanism, within a time: the last checkpoint, and what noise costs."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakbench.dp_config import DPConfig
from leakbench.errors import LeakbenchError
from leakbench.federated import train
from leakbench.pretraining import accuracy
from leakbench.streams import NoiseStreams, generator
from leakbench.training_schedule import Schedule
from leakbench.user_models import UserModel

_TESTED = 0.2  # of the examples
_PROBED = 3  # rounds that show how long one takes


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A network after so many rounds. accuracy: on `tested` examples that it was not trained on."""

    weights: Mapping[str, Tensor]
    accuracy: float
    rounds: int
    examples: int
    tested: int


def train_briefly(
    user: UserModel, inputs: Tensor, labels: Tensor, config: DPConfig, *,
    seconds: float, seed: int, rounds: int | None = None,
) -> Tried:  # fmt: skip
    """Train a user's network from its weights on with the mechanism, as long as there is time.

    The sampling rate is that of the configuration, on the examples there are; noise on a mean then
    has the size that it has on the real batch.

    Args:
        inputs, labels: (n, *input shape) and (n,); a fifth of them tests.
        rounds: exactly so many, whatever the time; None: as many as fit, up to all.

    Raises:
        LeakbenchError: too few examples; what the training refuses.
    """
    if len(inputs) < 20:
        raise LeakbenchError(f"training needs 20 examples, got {len(inputs)}")
    if config.unit == "client":
        raise LeakbenchError("trainings of clients are not tried here; `leakbench run` does them")
    order = torch.randperm(len(inputs), generator=generator(seed, "audit split"))
    tested = max(1, math.floor(_TESTED * len(inputs)))
    test, kept = order[:tested], order[tested:]
    size = min(config.batch_size, len(kept))
    schedule = Schedule(
        rounds=1, batch_size=size, learning_rate=config.learning_rate or 0.1,
        sampling="poisson" if config.sampling == "poisson" else "fixed_size",
    )  # fmt: skip
    like = next(iter(user.weights.values()))

    def run(count: int) -> Mapping[str, Tensor]:
        return train(
            user.model, user.weights, inputs[kept].to(like), labels[kept].to(like.device).long(),
            replace(config, batch_size=size).defense(), replace(schedule, rounds=count),
            seed=seed, noise=NoiseStreams(seed, ("audit training",)), total=config.steps,
        ).weights  # fmt: skip

    if rounds is None:
        begun = time.perf_counter()
        run(_PROBED)
        each = (time.perf_counter() - begun) / _PROBED
        rounds = max(1, min(config.steps, int(seconds / each)))
    weights = run(rounds)
    right = accuracy(
        user.model, weights, inputs[test].to(like), labels[test].to(like.device).long()
    )
    return Tried(weights=weights, accuracy=right, rounds=rounds, examples=len(kept), tested=tested)
