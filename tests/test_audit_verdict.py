"""Where an audit's bound counts as above the promise: any excess does, however small."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from leakbench.audits.canary import Audit, audit, canary_at, check
from leakbench.contracts import Guarantee, Observer, Setting, Weights
from leakbench.defenses.dp_baseline import DPBaseline
from leakbench.errors import LeakbenchError

WEIGHTS = {"a": torch.zeros(3), "b": torch.zeros(2)}


def found(mu: float, promise: Guarantee) -> Audit:
    return Audit(
        defense="mine", observer="type2", guarantee=promise, trials=100, confidence=0.95, mu=mu,
        mu_estimate=mu, delta=1e-5, epsilon=1.0, epsilon_direct=1.0,
    )  # fmt: skip


def test_the_verdict_turns_at_the_promise() -> None:
    """Sensitivity 3 and std 2: mu is 1.5."""
    promise = Guarantee(level="instance", sensitivity=3.0, noise_std=2.0)
    assert found(1.5, promise).verdict == "within"
    assert found(math.nextafter(1.5, 2), promise).verdict == "above"
    assert found(0.0, promise).verdict == "within"
    with pytest.raises(LeakbenchError, match=r"mu at type2 is at least 1\.501 .* allows 1\.5;"):
        check(found(1.501, promise))
    assert found(100.0, Guarantee(level="none", reason="no noise")).verdict == "no promise"


@dataclass(frozen=True, kw_only=True)
class Short(DPBaseline):
    """Promises 15 % more noise than it adds."""

    name: ClassVar[str] = "short"

    def guarantee(self, observer: Observer, weights: Weights, setting: Setting) -> Guarantee:
        said = DPBaseline(clip=self.clip, noise_multiplier=1.15 * self.noise_multiplier)
        return said.guarantee(observer, weights, setting)


def test_a_little_too_little_noise_is_found() -> None:
    """True mu is 2.3, the promise 2; the bound is under the one and over the other."""
    sigma = math.sqrt(2) / 2.3  # two tensors
    result = audit(Short(clip=4.0, noise_multiplier=sigma), canary_at(4.0, WEIGHTS), trials=20_000)
    assert result.claimed_mu == pytest.approx(2.0)
    assert 2.0 < result.mu <= 2.3
    assert result.verdict == "above"
    with pytest.raises(LeakbenchError, match="its guarantee allows 2;"):
        check(result)
