"""Audits of right and broken mechanisms, and one of them again in plain loops."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import binomtest, norm

from leakbench import data
from leakbench.architectures import build
from leakbench.audits import canary as module
from leakbench.audits.canary import POINTS, Audit, audit, bracket, canary_at, check
from leakbench.clipping import clip_tensors
from leakbench.contracts import (
    Context,
    Defense,
    Gradients,
    Guarantee,
    Observer,
    Setting,
    State,
    Weights,
)
from leakbench.defenses.adaclip import AdaClip
from leakbench.defenses.batch_clipping import BatchClip, BatchClipLayerwise, BatchClipZhang
from leakbench.defenses.dp_baseline import DPBaseline
from leakbench.defenses.dp_dyn import DPDynSigma, DPDynSL2Max
from leakbench.defenses.fed_sdp import FedSDPClient, FedSDPServer
from leakbench.defenses.none import NoDefense
from leakbench.defenses.prune import Prune
from leakbench.defenses.quantile_clip import QuantileClip
from leakbench.errors import LeakbenchError
from leakbench.gaussian import ExampleGaussian
from leakbench.gradients import per_example
from leakbench.privacy.gdp import epsilon_of_mu
from leakbench.streams import NoiseStreams, generator

WEIGHTS = {"conv.weight": torch.zeros(2, 1, 3, 3), "conv.bias": torch.zeros(2), "b": torch.zeros(5)}
M, C = len(WEIGHTS), 4.0
CANARY = canary_at(C, WEIGHTS)
BATCH = Setting(batch_size=4)
DELTA = 1e-5


def baseline(mu: float, **changes: Any) -> DPBaseline:
    """mu-GDP at the type-2 tap, as the noise multiplier is sqrt(M) / mu there."""
    return DPBaseline(clip=C, noise_multiplier=math.sqrt(M) / mu, **changes)


# ---------------------------------------------------------------------------- right mechanisms


@pytest.mark.parametrize("mu", [0.5, 1.0, 2.5, 5.0])
def test_a_right_mechanism_is_bounded_from_below_and_closely(mu: float) -> None:
    """With 10,000 trials: under the true mu, within 20 % of it, and so in epsilon."""
    found = audit(baseline(mu), CANARY)
    assert found.claimed_mu == pytest.approx(mu)
    assert 0.8 * mu <= found.mu <= mu
    assert found.mu_estimate == pytest.approx(mu, rel=0.05)
    assert found.verdict == "within"
    check(found)
    audited, true, proved = bracket(found)
    assert proved == pytest.approx(epsilon_of_mu(mu, DELTA))
    assert audited == pytest.approx(epsilon_of_mu(found.mu, DELTA))
    assert audited <= true <= proved
    assert 0 < found.epsilon_direct <= proved


TAPS: list[tuple[Defense, Observer, Setting]] = [
    (baseline(2.0), "type2", BATCH),
    (baseline(4.0), "type2_batch", BATCH),
    (baseline(2.0, convention="sum"), "type2_batch", BATCH),
    (baseline(2.0, convention="sum"), "type1", BATCH),
    (baseline(2.0, convention="sum"), "server", BATCH),
    (FedSDPClient(noise_multiplier=1.0), "type1", BATCH),
    (FedSDPClient(noise_multiplier=1.0), "type0_raw", BATCH),
    (FedSDPServer(noise_multiplier=1.0), "type0", BATCH),
    (AdaClip(noise_multiplier=0.5), "type2", BATCH),
    (QuantileClip(noise_multiplier=1.0, convention="sum"), "type2_batch", BATCH),
    (BatchClip(noise_multiplier=0.5), "type2_batch", BATCH),
    (BatchClipLayerwise(noise_multiplier=0.5, subset=2), "type0", BATCH),
    (BatchClipZhang(noise_multiplier=1.0), "type2_batch", BATCH),
]


@pytest.mark.parametrize(
    ("defense", "observer", "setting"), TAPS, ids=lambda v: getattr(v, "name", None)
)
def test_every_promise_is_kept_and_used_up(
    defense: Defense, observer: Observer, setting: Setting
) -> None:
    """At every tap, under both relations, of examples and clients; a canary far above the bound."""
    found = audit(
        defense, canary_at(100.0, WEIGHTS), observer=observer, setting=setting, trials=2000
    )
    assert found.claimed_mu is not None
    assert 0.75 * found.claimed_mu < found.mu <= found.claimed_mu
    assert found.mu_estimate == pytest.approx(found.claimed_mu, rel=0.1)
    check(found)


def test_a_smaller_canary_uses_part_of_the_promise() -> None:
    whole, part = (
        audit(baseline(3.0), canary_at(size, WEIGHTS), trials=4000) for size in (C, C / 3)
    )
    assert part.claimed_mu == whole.claimed_mu == pytest.approx(3.0)
    assert part.mu_estimate == pytest.approx(1.0, rel=0.05)
    audited, true, proved = bracket(part)
    assert audited < epsilon_of_mu(1.0, DELTA) < proved and audited < true < proved


def test_a_real_gradient_as_canary() -> None:
    """Of a digit on a network with six tensors: the promise is sqrt(6) / sigma."""
    model = build("cnn2", (1, 28, 28), 10)
    weights = model.init(generator(3, "weights"), torch.float32)
    digits = data.load("mnist")
    image, label = digits.candidates[:1][None], digits.candidate_labels[:1][None]
    real = per_example(model, weights, image, label)
    direction = {name: value[0, 0] for name, value in real.tensors.items()}
    canary = canary_at(C, weights, direction)
    assert all(float(size) == pytest.approx(C, rel=1e-5) for size in canary.norms().values())
    for name, value in direction.items():
        cosine = torch.nn.functional.cosine_similarity(
            value.flatten(), canary.tensors[name].flatten(), dim=0
        )
        assert float(cosine) == pytest.approx(1.0, abs=1e-5)
    sigma = math.sqrt(len(weights)) / 2
    found = audit(DPBaseline(clip=C, noise_multiplier=sigma), canary, trials=1000)
    assert found.claimed_mu == pytest.approx(2.0)
    assert 1.5 < found.mu <= 2.0
    check(found)


def test_an_audit_of_one_tensor_in_plain_loops() -> None:
    """Same trials, told apart anew: thresholds from the first tenth, errors of the rest."""
    trials, mu, error = 600, 1.5, 0.1
    weights = {"w": torch.zeros(3)}
    defense = DPBaseline(clip=C, noise_multiplier=1 / mu)
    found = audit(defense, canary_at(C, weights), trials=trials, confidence=1 - error, seed=5)
    noise = NoiseStreams(5, ("audit",))
    drawn = [
        float(noise.normal("examples/w", trial, 0, 0, (1, 3))[0, 0]) / mu
        for trial in range(2 * trials)
    ]
    inside, outside = np.array(drawn[:trials]) + 1, np.array(drawn[trials:])

    def largest(count: int, total: int, error: float) -> float:
        interval = binomtest(count, total).proportion_ci(1 - 2 * error, method="exact")
        return float(interval.high)

    def rates(part: slice, threshold: float, error: float) -> tuple[float, float]:
        called, missed = outside[part] > threshold, inside[part] <= threshold
        return (
            largest(int(called.sum()), len(called), error / 2),
            largest(int(missed.sum()), len(missed), error / 2),
        )

    def mu_of(fpr: float, fnr: float) -> float:
        return float(norm.isf(fpr) - norm.ppf(fnr))

    def epsilon_of(fpr: float, fnr: float) -> float:
        parts = [(1 - DELTA - fnr) / fpr, (1 - DELTA - fpr) / fnr]
        return max(math.log(part) if part > 0 else -math.inf for part in parts)

    first, rest = slice(0, trials // 10), slice(trials // 10, None)
    for of, result in ((mu_of, found.mu), (epsilon_of, found.epsilon_direct)):
        thresholds = sorted([*inside[first], *outside[first]])
        best = max(thresholds, key=lambda threshold: of(*rates(first, threshold, 1e-5)))
        assert result == pytest.approx(of(*rates(rest, best, error)), rel=1e-9)
    pooled = [np.std(part[rest], ddof=1) for part in (inside, outside)]
    apart = np.mean(inside[rest]) - np.mean(outside[rest])
    assert found.mu_estimate == pytest.approx(apart / min(pooled), rel=1e-5)


def test_lower_bounds_hold_as_often_as_they_say() -> None:
    """Of 60 audits of a right mechanism at 80 % confidence, 12 may find too much."""
    defense = DPBaseline(clip=C, noise_multiplier=1.0)
    canary = canary_at(C, {"w": torch.zeros(1)})
    found = [audit(defense, canary, trials=200, confidence=0.8, seed=seed) for seed in range(60)]
    assert len({result.mu for result in found}) > 30
    above = sum(result.verdict == "above" for result in found)
    too_much = sum(result.epsilon_direct > epsilon_of_mu(1.0, DELTA) for result in found)
    assert above <= 12 and too_much <= 12
    assert np.median([result.mu for result in found]) > 0.3


# ---------------------------------------------------------------------------- broken ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgetful(ExampleGaussian):
    """Forgets the noise of one tensor."""

    name: ClassVar[str] = "forgetful"
    clip: float = C
    noise_multiplier: float = 10.0

    def on_examples(
        self, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        std = dict.fromkeys(gradients.tensors, torch.tensor(self.noise_multiplier * self.clip))
        std["conv.bias"] = torch.tensor(0.0)
        return context.add_gaussian(clip_tensors(gradients, self.clip), std, "examples"), state


@dataclass(frozen=True, slots=True, kw_only=True)
class ChargedFlat(ExampleGaussian):
    """Clips every tensor to C, and charges C for all together."""

    name: ClassVar[str] = "charged_flat"
    clip: float = C
    noise_multiplier: float = 1.0

    def guarantee(self, observer: Observer, weights: Weights, setting: Setting) -> Guarantee:
        promise = ExampleGaussian.guarantee(self, observer, weights, setting)
        return replace(promise, sensitivity=self.clip, unit="flat", tensors=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unclipped(ExampleGaussian):
    """Adds noise for C, and forgets to clip."""

    name: ClassVar[str] = "unclipped"
    clip: float = C
    noise_multiplier: float = 6.0

    def on_examples(
        self, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        return context.add_gaussian(gradients, self.noise_multiplier * self.clip, "examples"), state


@dataclass(frozen=True, slots=True, kw_only=True)
class SameDraw(ExampleGaussian):
    """Draws noise once, for everybody."""

    name: ClassVar[str] = "same_draw"
    clip: float = C
    noise_multiplier: float = 6.0

    def on_examples(
        self, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        everybody = replace(context, clients=(0,) * len(context.clients))
        std = self.noise_multiplier * self.clip
        return everybody.add_gaussian(clip_tensors(gradients, self.clip), std, "examples"), state


@pytest.mark.parametrize(
    ("defense", "norm"),
    [(Forgetful(), C), (ChargedFlat(), C), (Unclipped(), 10 * C), (SameDraw(), C)],
    ids=lambda value: getattr(value, "name", None),
)
def test_broken_mechanisms_exceed_their_claim(defense: Defense, norm: float) -> None:
    found = audit(defense, canary_at(norm, WEIGHTS))
    assert found.claimed_mu is not None
    assert found.mu > 1.2 * found.claimed_mu
    assert found.verdict == "above"
    audited, true, proved = bracket(found)
    assert true > audited > proved
    said = f"{defense.name}: mu at type2 is at least .*95% confidence.*guarantee allows"
    with pytest.raises(LeakbenchError, match=said):
        check(found)


def test_the_tensor_without_noise_is_found_among_many() -> None:
    """Of 30 tensors: weighted as claimed it would add 2 % to mu."""
    weights = {f"layer{i}": torch.zeros(2) for i in range(29)} | {"conv.bias": torch.zeros(2)}
    found = audit(Forgetful(), canary_at(C, weights), trials=500)
    assert found.claimed_mu == pytest.approx(math.sqrt(30) / 10)
    assert found.mu > 4


# ---------------------------------------------------------------------------- no promise


@pytest.mark.parametrize("defense", [NoDefense(), Prune()], ids=lambda value: value.name)
@pytest.mark.parametrize("observer", list(POINTS))
def test_without_noise_the_number_of_trials_is_the_bound(
    defense: Defense, observer: Observer
) -> None:
    """No error in n trials: both rates are below 1 - 0.025^(1/n)."""
    found = audit(defense, CANARY, observer=observer, setting=BATCH, trials=1000)
    least = 1 - 0.025 ** (1 / 900)
    assert found.mu == pytest.approx(2 * norm.isf(least), rel=1e-9)
    assert found.epsilon_direct == pytest.approx(math.log((1 - DELTA - least) / least), rel=1e-9)
    assert found.mu_estimate == math.inf
    assert found.verdict == "no promise"
    assert found.claimed_mu is None and found.proved_epsilon is None
    assert found.guarantee.reason
    check(found)
    assert bracket(found) == (found.epsilon_direct, math.inf, math.inf)


def test_noise_behind_the_tap_is_no_promise_there() -> None:
    defense = baseline(0.1, convention="sum")
    found = audit(defense, CANARY, trials=500, setting=BATCH)
    assert found.verdict == "no promise" and "after the tap" in found.guarantee.reason
    assert found.mu > 4
    behind = audit(defense, CANARY, trials=500, setting=BATCH, observer="type2_batch")
    assert behind.verdict == "within" and behind.mu < 0.5


def test_noise_scaled_to_the_gradient_tells_whether_there_is_one() -> None:
    """At sigma = 6 a fixed scale would promise 0.29; the zero gradient gets no noise at all."""
    found = audit(DPDynSL2Max(clip=C, noise_multiplier=6.0), CANARY)
    assert found.verdict == "no promise"
    assert found.mu > 3
    audited, true, proved = bracket(found)
    assert audited > epsilon_of_mu(math.sqrt(M) / 6, DELTA)
    assert true == proved == math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Silent(Defense):
    """Shows nothing."""

    name: ClassVar[str] = "silent"

    def on_batch(
        self, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        return gradients.map(lambda _, value: 0 * value), state


def test_a_gradient_that_is_not_shown_leaks_nothing() -> None:
    found = audit(Silent(), CANARY, observer="type2_batch", trials=200)
    assert found.mu == found.mu_estimate == found.epsilon == found.epsilon_direct == 0


# ---------------------------------------------------------------------------- trials, arguments


@pytest.mark.independent_rows
def test_results_do_not_depend_on_how_many_trials_run_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = audit(baseline(1.0), CANARY, trials=300, setting=BATCH)
    monkeypatch.setattr(module, "_VALUES", 7 * BATCH.batch_size * 25)
    assert audit(baseline(1.0), CANARY, trials=300, setting=BATCH) == whole


def test_seeds_are_reproducible_and_differ() -> None:
    one, again, other = (audit(baseline(1.0), CANARY, trials=300, seed=s) for s in (1, 1, 2))
    assert one == again
    assert one.mu_estimate != other.mu_estimate


def test_more_confidence_is_a_lower_bound() -> None:
    bounds = [audit(baseline(2.0), CANARY, trials=500, confidence=c).mu for c in (0.5, 0.95, 0.999)]
    assert bounds == sorted(bounds, reverse=True) and len(set(bounds)) == 3


def test_the_round_is_that_of_the_setting() -> None:
    """A decaying noise scale is audited, and promised, as in the round observed."""
    defense = DPDynSigma(clip=C, noise_multiplier=4.0, noise_multiplier_end=0.5)
    found: list[Audit] = [
        audit(
            defense, CANARY, trials=1000, setting=Setting(batch_size=1, rounds=10, round=number)
        )
        for number in (0, 9)
    ]  # fmt: skip
    for result in found:
        assert result.claimed_mu is not None
        assert result.mu_estimate == pytest.approx(result.claimed_mu, rel=0.1, abs=0.1)
        check(result)
    assert found[1].mu > 2 * (found[0].claimed_mu or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Infinite(Defense):
    """Shows what is no number."""

    name: ClassVar[str] = "infinite"

    def on_examples(
        self, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        return gradients.map(lambda _, value: value / 0), state


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"observer": "model"}, "audit: unknown observer 'model'"),
        ({"trials": 99}, "audit: trials must be at least 100"),
        ({"confidence": 1.0}, r"confidence must be in \(0, 1\), got 1.0"),
        ({"delta": 0.0}, "delta must be"),
        (
            {"setting": Setting(batch_size=2, local_steps=2, iteration=2)},
            "audit: iteration must be below local_steps 2, got 2",
        ),
        (
            {"setting": Setting(batch_size=2, examples=1)},
            "audit: examples must be at least batch_size 2, got 1",
        ),
    ],
)
def test_what_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(LeakbenchError, match=said):
        audit(baseline(1.0), CANARY, **changes)


def test_what_is_not_finite_is_refused() -> None:
    with pytest.raises(LeakbenchError, match="infinite shows type2 a gradient that is not finite"):
        audit(Infinite(), CANARY, trials=100)


@pytest.mark.parametrize("size", [0.0, -1.0, math.inf, math.nan])
def test_canaries_that_are_none(size: float) -> None:
    with pytest.raises(LeakbenchError, match="canary: norm must be positive and finite"):
        canary_at(size, WEIGHTS)
    direction = {name: torch.full_like(value, size) for name, value in WEIGHTS.items()}
    if size != -1.0:
        with pytest.raises(LeakbenchError, match=r"direction of 'conv\.weight' must have a norm"):
            canary_at(1.0, WEIGHTS, direction)


def test_a_dirac_canary() -> None:
    values: dict[str, NDArray[np.float32]] = {
        name: value.flatten().numpy() for name, value in canary_at(2.5, WEIGHTS).tensors.items()
    }
    for name, value in values.items():
        assert value.tolist() == [2.5] + [0.0] * (WEIGHTS[name].numel() - 1)
