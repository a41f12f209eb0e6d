"""Ceilings of whole trainings: closed forms, dp-accounting, drawn trainings, and an audit."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import binom, norm

from leakbench.audits.canary import audit, canary_at
from leakbench.contracts import Setting
from leakbench.defenses.dp_baseline import DPBaseline
from leakbench.errors import LeakbenchError
from leakbench.privacy.ceiling import reconstruction_ceiling, training_ceiling
from leakbench.privacy.events import PrivacyEvent, Sampling
from leakbench.privacy.power import power

Floats = NDArray[np.float64]


def run(sigma: float, rate: float, steps: int, sampling: Sampling = "poisson") -> PrivacyEvent:
    return PrivacyEvent(
        noise_multiplier=sigma, sensitivity=1.0, sampling_rate=rate, sampling=sampling, steps=steps
    )


# ------------------------------------------------------------------------------ closed forms


@pytest.mark.parametrize("sampling", ["poisson", "fixed_size"])
@pytest.mark.parametrize("sigma", [0.5, 5.0])
@pytest.mark.parametrize(("rate", "kappa"), [(0.01, 1e-6), (0.5, 0.001), (0.1, 0.1), (0.5, 0.7)])
def test_one_sampled_step(sigma: float, rate: float, kappa: float, sampling: Sampling) -> None:
    """The ratio rises with the release, so the best test is a threshold on it.

    Some are above even odds and some below. One of a fixed number takes another one's place.
    """
    apart = (2 if sampling == "fixed_size" else 1) / sigma
    exact = (1 - rate) * kappa + rate * float(norm.sf(norm.isf(kappa) - apart))
    found = power([run(sigma, rate, 1, sampling)], kappa)
    assert exact * (1 - 1e-12) <= found <= exact + 1e-4 * (exact - kappa) + 2e-6 * kappa


@pytest.mark.parametrize("kappa", [0.001, 0.2, 0.6])
def test_one_step_with_another_one_in_his_place(kappa: float) -> None:
    rate, apart = 0.3, 1.5
    threshold = brentq(
        lambda u: (1 - rate) * norm.sf(u) + rate * norm.sf(u + apart) - kappa, -20, 20, xtol=1e-13
    )
    exact = (1 - rate) * float(norm.sf(threshold)) + rate * float(norm.sf(threshold - apart))
    found = power([run(1 / apart, rate, 1)], kappa, relation="replace_one")
    assert exact * (1 - 1e-9) <= found <= exact * 1.0005


@given(
    st.floats(0.3, 10.0), st.floats(0.001, 0.9), st.integers(1, 100),
    st.floats(1e-6, 0.1), st.sampled_from(["poisson", "fixed_size"]),
)  # fmt: skip
@settings(max_examples=6, deadline=None)
def test_between_guessing_and_no_sampling(
    sigma: float, rate: float, steps: int, kappa: float, sampling: Sampling
) -> None:
    found = power([run(sigma, rate, steps, sampling)], kappa)
    apart = 2 if sampling == "fixed_size" else 1
    assert kappa <= found <= norm.sf(norm.isf(kappa) - apart * math.sqrt(steps) / sigma) + 1e-12
    rising = [
        power([run(sigma, rate, steps + 50, sampling)], kappa),
        power([run(sigma / 1.2, rate, steps, sampling)], kappa),
        power([run(sigma, min(1.0, 1.3 * rate), steps, sampling)], kappa),
        power([run(sigma, rate, steps, sampling)], (kappa + 1) / 2),
    ]
    assert min(rising) >= found * (1 - 1e-4)


def test_without_sampling_it_is_the_closed_form() -> None:
    events = [run(2.0, 1.0, 10), run(5.0, 1.0, 7), run(4.0, 0.1, 9, "none")]
    mu = math.sqrt(10 / 4 + 7 / 25 + 9 / 16)
    assert training_ceiling(0.01, events) == reconstruction_ceiling(0.01, mu)
    assert training_ceiling(0.01, [run(1.0, 0.0, 10)]) == 0.01
    assert training_ceiling(0.01, []) == 0.01
    assert training_ceiling(0.01, [run(0.0, 0.5, 1)]) == 1.0
    assert training_ceiling(1.0, [run(1.0, 0.5, 9)]) == 1.0
    # Steps by more than a thousand stds are not worth a grid.
    assert training_ceiling(0.01, [run(1e-4, 0.5, 9)]) == 1.0


def test_a_group_is_a_mixture() -> None:
    """Two examples drawn apart: 0, 1 or 2 stds, in one step."""
    rate, kappa = 0.3, 0.05
    at = norm.isf(kappa)
    chances = binom.pmf([0, 1, 2], 2, rate)
    exact = float(sum(c * norm.sf(at - k) for k, c in enumerate(chances)))
    found = training_ceiling(kappa, [run(1.0, rate, 1)], group_size=2)
    assert exact <= found <= exact * 1.0005


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: power([run(1.0, 0.1, 1)], 0.0), "kappa must be above 0 and at most 1, got 0.0"),
        (lambda: power([run(1.0, 0.1, 1)], math.nan), "kappa must be"),
        (lambda: training_ceiling(0.0, []), "prior must be above 0 and at most 1, got 0.0"),
        (lambda: training_ceiling(1.5, []), "prior must be"),
        (lambda: training_ceiling(0.5, [], group_size=0), "group_size must be a whole number"),
    ],
)
def test_what_is_refused(call: Callable[[], float], said: str) -> None:
    with pytest.raises(LeakbenchError, match=said):
        call()


# ------------------------------------------------------------------------------ other accounts


@pytest.mark.parametrize(
    ("sigma", "rate", "steps"), [(1.0, 0.01, 1000), (0.6, 0.1, 100), (1.0, 0.5, 100)]
)
def test_against_dp_accounting(sigma: float, rate: float, steps: int) -> None:
    """The least delta(epsilon) + e^epsilon kappa of its distribution, which is pessimistic too."""
    one = from_gaussian_mechanism(sigma, sampling_prob=rate, value_discretization_interval=1e-3)
    # Its side with the example; the public call takes the worse one.
    other = one.self_compose(steps)._pmf_remove
    epsilons = np.linspace(-40, 40, 4001)
    deltas = np.array(other.get_delta_for_epsilon(epsilons))
    for kappa in (1e-4, 0.001, 0.1, 0.5):
        expected = float((deltas + np.exp(epsilons) * kappa).min())
        assert power([run(sigma, rate, steps)], kappa) == pytest.approx(expected, rel=1e-3)


# ------------------------------------------------------------------------------ drawn trainings

DRAWS = 10_000


def releases(
    generator: np.random.Generator, phases: Sequence[PrivacyEvent], value: float
) -> Floats:
    """(DRAWS, steps) noisy sums of trainings with a victim whose clipped gradient is `value`.

    In stds of the noise; all others' gradients are known, and so 0.
    """
    parts = []
    for phase in phases:
        shape = (DRAWS, phase.steps)
        there = generator.random(shape) < phase.sampling_rate
        parts.append(there * value / phase.noise_multiplier + generator.standard_normal(shape))
    return np.concatenate(parts, axis=1)


def log_ratio(shown: Floats, phases: Sequence[PrivacyEvent], value: float) -> Floats:
    """(DRAWS,) of all releases: with a victim of this value over without."""
    sizes = np.concatenate([np.full(p.steps, value / p.noise_multiplier) for p in phases])
    rates = np.concatenate([np.full(p.steps, p.sampling_rate) for p in phases])
    found: Floats = np.log1p(rates * np.expm1(sizes * shown - sizes**2 / 2)).sum(axis=1)
    return found


def error(rate: float) -> float:
    """Four standard errors of a rate over all draws."""
    return 4 * math.sqrt(max(rate * (1 - rate), 1 / DRAWS) / DRAWS)


TRAININGS = [
    [run(0.6, 0.1, 100)],
    [run(1.0, 0.5, 20)],
    [run(0.3, 0.02, 50)],
    [run(2.0, 0.5, 100), run(1.0, 0.1, 50)],
]


@pytest.mark.parametrize("phases", TRAININGS)
def test_the_best_test_of_drawn_trainings_reaches_it(phases: list[PrivacyEvent]) -> None:
    """Hayes et al. draw the bound: the quantile of the losses without him, and how many with him.

    Both rates are of 10,000 trainings; the threshold is that of 10,000 others.
    """
    generator = np.random.default_rng(11)
    for prior in (0.01, 0.1, 0.5):
        without = log_ratio(releases(generator, phases, 0.0), phases, 1.0)
        threshold = float(np.quantile(without, 1 - prior))
        again = log_ratio(releases(generator, phases, 0.0), phases, 1.0)
        wrong = float((again > threshold).mean())
        right = float((log_ratio(releases(generator, phases, 1.0), phases, 1.0) > threshold).mean())
        # It is exact at the rate of mistakes that this threshold has.
        low, high = max(wrong - error(wrong), 1e-6), min(wrong + error(wrong), 1.0)
        assert right <= training_ceiling(high, phases) + error(right)
        assert right >= training_ceiling(low, phases) - error(right)


@pytest.mark.parametrize("phases", TRAININGS)
@pytest.mark.parametrize("candidates", [2, 5])
def test_no_attacker_on_drawn_trainings_is_above_it(
    phases: list[PrivacyEvent], candidates: int
) -> None:
    """The victim is one of N numbers from -1 to 1; the likeliest is named, by all updates or by
    the final model, which is their sum."""
    generator = np.random.default_rng(12)
    values = np.linspace(-1, 1, candidates)
    ceiling = training_ceiling(1 / candidates, phases)
    right = by_model = 0.0
    for number, value in enumerate(values):
        shown = releases(generator, phases, float(value))
        scores = np.stack([log_ratio(shown, phases, float(other)) for other in values])
        right += float((scores.argmax(axis=0) == number).mean()) / candidates
        # The sum's mean, in stds of each phase, is rate times steps times the number.
        sums = shown.sum(axis=1)
        means = sum(p.sampling_rate * p.steps / p.noise_multiplier for p in phases) * values
        nearest = np.abs(sums[:, None] - means).argmin(axis=1)
        by_model += float((nearest == number).mean()) / candidates
    assert by_model - error(by_model) <= right <= ceiling + error(right)
    assert right > 1 / candidates + error(right)  # he does learn something
    if candidates == 2:  # opposite ones: nearly what a test against neither allows
        assert right >= 0.9 * ceiling


def test_an_audit_of_every_update_agrees() -> None:
    """k updates of a client are k looks: what an audit finds of one predicts what is allowed."""
    weights = {"w": torch.zeros(1)}
    defense = DPBaseline(clip=1.0, noise_multiplier=1.25, convention="sum")
    found = audit(
        defense,
        canary_at(1.0, weights),
        observer="server",
        setting=Setting(batch_size=1),
        trials=1000,
    )
    for looks in (1, 5):
        event = PrivacyEvent(noise_multiplier=1.25, sensitivity=1.0, steps=looks)
        ceiling = training_ceiling(0.05, [event])
        lower = reconstruction_ceiling(0.05, found.mu, looks)
        estimate = reconstruction_ceiling(0.05, found.mu_estimate, looks)
        assert lower <= ceiling
        assert estimate == pytest.approx(ceiling, rel=0.2)
        # Sampled, and so seen by the final model only: less than that, more than guessing.
        hidden = training_ceiling(0.05, [run(1.25, 0.1, 10 * looks)])
        assert 0.05 < hidden < ceiling
