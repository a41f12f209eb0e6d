"""What to change so that a target is met, and what that costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from leakbench.audits.claims import seen_events
from leakbench.audits.findings import Advice
from leakbench.audits.observing import ceiling, expected_looks
from leakbench.dp_config import DPConfig
from leakbench.errors import LeakbenchError
from leakbench.privacy.account import epsilon
from leakbench.privacy.bisection import least_positive
from leakbench.privacy.events import PrivacyEvent
from leakbench.spec import Observer

Count = Literal["batch_size", "steps"]
_TOLERANCE = 0.01  # of the noise, off to the safe side


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is to be promised.

    Attributes:
        epsilon: at most, at the configuration's delta, for adding or removing one; None: any.
        identified: the share of victims that any attack can name among the candidates, at most;
            None: any.
        observer: to whom: who holds the final "model", or the "server" that sees every update.

    Raises:
        LeakbenchError: a number outside its range, no target at all, or another observer.
    """

    epsilon: float | None = 8.0
    identified: float | None = 0.01
    observer: Observer = "model"

    def __post_init__(self) -> None:
        if self.epsilon is None and self.identified is None:
            raise LeakbenchError("target: none is given; give epsilon or identified")
        if self.epsilon is not None and not self.epsilon > 0:
            raise LeakbenchError(f"target: epsilon must be above 0, got {self.epsilon}")
        if self.identified is not None and not 0 < self.identified <= 1:
            raise LeakbenchError(f"target: identified must be in (0, 1], got {self.identified}")
        if self.observer not in ("model", "server"):
            raise LeakbenchError(f"target: observer must be model or server, got {self.observer!r}")

    def require_above_guessing(self, candidates: int) -> None:
        """Refuse a share that who guesses among so many candidates has already.

        Raises:
            LeakbenchError: naming the least share.
        """
        prior = 1 / candidates
        if self.identified is not None and self.identified <= prior and candidates > 1:
            raise LeakbenchError(
                f"target: guessing alone names 1 of {candidates}; identified must be above "
                f"{prior:.4g}"
            )

    def words(self, candidates: int) -> str:
        """As a part of a sentence."""
        parts = []
        if self.epsilon is not None:
            parts.append(f"epsilon is at most {self.epsilon:g}")
        if self.identified is not None:
            share = f"{self.identified * max(candidates, 100):g} of {max(candidates, 100):,}"
            parts.append(f"nobody can name more than {share}")
        whom = {"model": "the final model", "server": "all updates"}[self.observer]
        return " and ".join(parts) + f" from {whom}"


def advise(config: DPConfig, target: Target, candidates: int) -> tuple[Advice, ...]:
    """The smallest noise, the largest batch and the most steps that meet a target, one each.

    Each is turned alone. The batch is advised on where it decides the sampling rate.
    """
    if config.mechanism or (config.noise_on == "example" and config.sampling == "poisson"):
        return ()
    target.require_above_guessing(candidates)
    prior = 1 / candidates

    def meets(changed: DPConfig) -> bool:
        events = _seen(changed, target)
        if not events:
            return False
        if target.epsilon is not None:
            found = epsilon(events, changed.delta, relation="add_remove").epsilon
            if found is None or found > target.epsilon:
                return False
        return target.identified is None or ceiling(events, prior) <= target.identified

    asked = target.words(candidates)
    already = meets(config)
    advice = [_of_noise(config, meets, asked, already)]
    if not already:
        if config.noise_multiplier and config.unit == "example" and config.sampling_rate < 1:
            advice.append(_of_count(config, "batch_size", config.batch_size, meets, asked))
        if config.noise_multiplier and config.steps > 1:
            advice.append(_of_count(config, "steps", config.steps, meets, asked))
    return tuple(_with_numbers(one, config, target, prior) for one in advice)


def _seen(config: DPConfig, target: Target) -> tuple[PrivacyEvent, ...]:
    events = config.events()
    return events if target.observer == "model" else seen_events(events, expected_looks(config))


def changed(config: DPConfig, advice: Advice) -> DPConfig:
    """The configuration with one advice followed, which has a value."""
    assert advice.needed is not None
    if advice.change == "noise_multiplier":
        return _with_noise(config, advice.needed)
    return _with_count(config, advice.change, int(advice.needed))


def _with_noise(config: DPConfig, noise: float) -> DPConfig:
    """Schedules keep their shape."""
    now = config.noise_multiplier
    factor = noise / now if now else 1.0
    scheduled = tuple(value * factor for value in config.noise_schedule)
    # Noise on the count of an adaptive bound must grow with the rest.
    return replace(
        config, noise_multiplier=noise, noise_schedule=scheduled,
        count_std=config.count_std * max(factor, 1.0),
    )  # fmt: skip


def _with_count(config: DPConfig, key: str, count: int) -> DPConfig:
    if key == "steps":
        return replace(config, steps=count)
    rate = None if config.rate is None else config.rate * count / config.batch_size
    return replace(config, batch_size=count, rate=rate)


def _of_noise(
    config: DPConfig, meets: Callable[[DPConfig], bool], asked: str, already: bool
) -> Advice:
    needed = least_positive(lambda noise: meets(_with_noise(config, noise)), _TOLERANCE)
    now = config.noise_multiplier
    if not needed < 1e6:
        return Advice(
            change="noise_multiplier", now=now, needed=None,
            sentence=f"No noise is enough so that {asked}.",
        )  # fmt: skip
    if already:
        text = (
            f"The noise is enough: {asked}, from a noise multiplier of {needed:.4g} on; it is "
            f"{now:.4g}."
        )
    else:
        text = f"More noise: with a noise multiplier of {needed:.4g} instead of {now:.4g}, {asked}."
    return Advice(change="noise_multiplier", now=now, needed=needed, sentence=text)


def _of_count(
    config: DPConfig, key: Count, now: int, meets: Callable[[DPConfig], bool], asked: str
) -> Advice:
    """The largest count below `now` that meets the target."""
    name = {"batch_size": "A smaller batch: with", "steps": "A shorter training: with"}[key]
    unit = {"batch_size": "examples", "steps": "steps"}[key]
    low, high = 0, now
    while high - low > max(1, low // 100):
        middle = (low + high) // 2
        low, high = (middle, high) if meets(_with_count(config, key, middle)) else (low, middle)
    if low == 0:
        return Advice(
            change=key, now=now, needed=None,
            sentence=f"{name.partition(':')[0]} alone is not enough, however small.",
        )  # fmt: skip
    text = f"{name} {low:,} {unit} instead of {now:,}, and the same noise, {asked}."
    return Advice(change=key, now=now, needed=low, sentence=text)


def _with_numbers(advice: Advice, config: DPConfig, target: Target, prior: float) -> Advice:
    if advice.needed is None:
        return advice
    followed = changed(config, advice)
    events = _seen(followed, target)
    return replace(
        advice,
        epsilon=epsilon(events, followed.delta, relation="add_remove").epsilon,
        ceiling=ceiling(events, prior),
    )
