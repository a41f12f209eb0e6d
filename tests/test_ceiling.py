"""The ceiling on naming a victim: simulated tests that reach it, a guess that does not, limits."""

import math
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.integrate import quad
from scipy.stats import norm

from leakbench.described import PlannedCell, priors_of
from leakbench.errors import LeakbenchError
from leakbench.privacy.ceiling import reconstruction_ceiling
from leakbench.report.cells import build
from leakbench.spec import Plan
from leakbench.suite import resolve

DRAWS = 100_000
PRIORS = st.floats(1e-9, 1.0)
MUS = st.floats(0.0, 30.0)


def close(rate: float, expected: float) -> bool:
    """Within four standard errors of a rate over all draws."""
    return abs(rate - expected) <= 4 * math.sqrt(expected * (1 - expected) / DRAWS)


def test_numbers_by_hand() -> None:
    assert reconstruction_ceiling(1 / 1000, math.sqrt(6)) == pytest.approx(0.26, abs=0.005)
    assert reconstruction_ceiling(1 / 1000, math.sqrt(6) / 6) == pytest.approx(0.004, abs=0.0005)
    assert reconstruction_ceiling(0.5, 1.0) == pytest.approx(0.8413447460685429, rel=1e-12)


@pytest.mark.parametrize("looks", [1, 4])
@pytest.mark.parametrize("mu", [0.25, 1.0, math.sqrt(6)])
@pytest.mark.parametrize("prior", [1 / 1000, 0.05, 0.5])
def test_the_most_powerful_test_reaches_it(prior: float, mu: float, looks: int) -> None:
    """Victim or not, told by the likelihood ratio at a false positive rate of `prior`.

    This is the game the bound is exact for: the attacker says "it is him" for the outcomes that
    speak for the victim most and have chance `prior` together if the release is not about him.
    """
    generator = np.random.default_rng(3)
    without = generator.standard_normal((DRAWS, looks))
    about_him = generator.standard_normal((DRAWS, looks)) + mu

    def log_likelihood_ratio(seen: NDArray[np.float64]) -> NDArray[np.float64]:
        ratio: NDArray[np.float64] = (norm.logpdf(seen, loc=mu) - norm.logpdf(seen)).sum(axis=1)
        return ratio

    # Without the victim the ratio is N(-looks mu^2 / 2, looks mu^2).
    separation = math.sqrt(looks) * mu
    threshold = norm.isf(prior) * separation - separation**2 / 2
    assert close(float((log_likelihood_ratio(without) > threshold).mean()), prior)
    found = float((log_likelihood_ratio(about_him) > threshold).mean())
    assert close(found, reconstruction_ceiling(prior, mu, looks))


@pytest.mark.parametrize("mu", [0.3, 1.0, 2.0])
def test_the_likelier_of_two_opposite_candidates_reaches_it(mu: float) -> None:
    """Two candidates a distance of mu on either side of what a release without both looks like."""
    generator = np.random.default_rng(4)
    victim = generator.choice([-1.0, 1.0], size=DRAWS)
    guess = np.sign(victim * mu + generator.standard_normal(DRAWS))
    assert close(float((guess == victim).mean()), reconstruction_ceiling(0.5, mu))


@pytest.mark.parametrize("mu", [math.sqrt(6) / 6, math.sqrt(6)])
def test_the_likeliest_of_a_thousand_candidates_stays_just_below(mu: float) -> None:
    """Candidates in the corners of a regular simplex, as far from each other as mu allows.

    No partition into 1,000 answers can be the most powerful test for each of them, so the optimal
    guess falls short of the ceiling, and not by much. Only differences of the scores count: they
    are those of independent N(0, 1) with the victim's moved by mu sqrt(N / (N - 1)).
    """
    count = 1000
    moved = mu * math.sqrt(count / (count - 1))
    generator, right = np.random.default_rng(5), 0
    for _ in range(DRAWS // 1000):
        scores = generator.standard_normal((1000, count), dtype=np.float32)
        scores[:, 0] += moved
        right += int((scores.argmax(axis=1) == 0).sum())
    exact, _ = quad(lambda z: norm.pdf(z - moved) * norm.cdf(z) ** (count - 1), -10, 15)
    ceiling = reconstruction_ceiling(1 / count, mu)
    assert close(right / DRAWS, exact)
    assert 0.8 * ceiling < exact < ceiling


@given(PRIORS, MUS, st.integers(1, 50))
@settings(max_examples=200, deadline=None)
def test_it_is_that_of_scipy_and_rises_with_everything(prior: float, mu: float, looks: int) -> None:
    ceiling = reconstruction_ceiling(prior, mu, looks)
    expected = norm.sf(norm.isf(prior) - math.sqrt(looks) * mu)
    assert ceiling == pytest.approx(expected, rel=1e-9)
    assert prior <= ceiling <= 1
    assert reconstruction_ceiling(prior, mu, looks + 1) >= ceiling
    assert reconstruction_ceiling(prior, mu + 0.1, looks) >= ceiling
    assert reconstruction_ceiling(min(1.0, 2 * prior), mu, looks) >= ceiling
    assert reconstruction_ceiling(prior, math.sqrt(looks) * mu) == pytest.approx(ceiling, rel=1e-9)


@pytest.mark.parametrize("prior", [1e-9, 0.001, 0.5, 1.0])
def test_limits(prior: float) -> None:
    assert reconstruction_ceiling(prior, 0.0) == pytest.approx(prior, rel=1e-12)
    assert reconstruction_ceiling(prior, 0.0, 7) >= prior
    assert reconstruction_ceiling(prior, math.inf) == 1.0
    assert reconstruction_ceiling(1.0, prior) == 1.0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((0.0, 1.0), "prior must be above 0 and at most 1, got 0.0"),
        ((1.1, 1.0), "prior must be"),
        ((math.nan, 1.0), "prior must be"),
        ((0.5, -0.1), "mu must be >= 0, got -0.1"),
        ((0.5, math.nan), "mu must be"),
        ((0.5, 1.0, 0), "looks must be a whole number >= 1, got 0"),
        ((0.5, 1.0, 1.5), "looks must be"),
        ((0.5, 1.0, math.inf), "looks must be"),
    ],
)
def test_what_is_refused(arguments: tuple[float, float, int], said: str) -> None:
    with pytest.raises(LeakbenchError, match=said):
        reconstruction_ceiling(*arguments)


def test_it_loads_no_torch() -> None:
    code = "import sys, leakbench.privacy.ceiling; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# ------------------------------------------------------------------------------ in a report


def planned(defense: str, labels: tuple[int, ...], victims: int, mu: float) -> tuple[Plan, Any]:
    """A cell of the batches' suite with two networks, planned by hand."""
    plan = resolve("batches", settings=["defenses.0.name='dp_baseline'"])
    (cell,) = (c for c in plan.cells if str(c) == f"mnist/{defense}/cpl/naive")
    cell = replace(cell, grants=("labels",) if labels else ())
    numbers = tuple(tuple(range(n * victims, (n + 1) * victims)) for n in range(2))
    return plan, PlannedCell(
        cell=cell, identities=("a", "b"), victims=numbers, skip="", ceiling_mu=mu, guarantee="",
        priors=priors_of(numbers, cell.images_a_gradient, 1000, labels),
    )  # fmt: skip


def shown(plan: Plan, cell: Any) -> tuple[float, list[str]]:
    report = build(plan, [cell], {}, {})
    ceiling = report.cells[0].ceiling
    assert ceiling is not None
    return ceiling, [note.text for note in report.notes]


EVEN = tuple(number % 10 for number in range(1000))


def test_granted_labels_leave_a_guess_within_the_class() -> None:
    """1,000 candidates of 10 classes: the likeliest of the 100 of his class, as in a simplex.

    Under the ceiling of 1 in 100, and far above that of 1 in 1,000.
    """
    mu, count = 0.3, 100
    moved = mu * math.sqrt(count / (count - 1))
    rate, _ = quad(lambda z: norm.pdf(z - moved) * norm.cdf(z) ** (count - 1), -10, 15)
    plan, cell = planned("batch_1/none", EVEN, 8, mu)
    ceiling, notes = shown(plan, cell)
    assert ceiling == pytest.approx(float(norm.cdf(norm.ppf(1 / 100) + mu)), rel=1e-9)
    blind, others = shown(*planned("batch_1/none", (), 8, mu))
    assert blind == pytest.approx(float(norm.cdf(norm.ppf(1 / 1000) + mu)), rel=1e-9)
    assert 4 * blind < rate < ceiling
    assert any("labels are granted" in note and "mnist 0.01" in note for note in notes)
    assert not any("labels are granted" in note for note in others)


def test_the_ceiling_of_a_rate_is_the_mean_over_the_victims() -> None:
    """Victims 0 to 7 and 8 to 15; one class of 4, one of 996: priors 1/4 and 1/996."""
    labels = (1, 0, 0, 0, 0, *([1] * 995))
    ceiling, _ = shown(*planned("batch_1/none", labels, 8, 0.7))
    few, many = (float(norm.cdf(norm.ppf(prior) + 0.7)) for prior in (1 / 4, 1 / 996))
    assert ceiling == pytest.approx((4 * few + 12 * many) / 16, rel=1e-9)


def test_a_batch_with_labels_guesses_in_its_commonest_class() -> None:
    """Batches of 8: of class 0 the first has three, 3 of 100; the second one of each, 1 of 100."""
    labels = [number % 10 for number in range(1000)]
    labels[1], labels[2], labels[20], labels[30] = 0, 0, 1, 2
    ceiling, _ = shown(*planned("batch_8/none", tuple(labels), 8, 0.0))
    assert ceiling == pytest.approx((3 / 100 + 1 / 100) / 2)
    assert shown(*planned("batch_8/none", (), 8, 0.0))[0] == pytest.approx(8 / 1000)
