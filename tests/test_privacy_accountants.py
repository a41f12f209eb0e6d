"""Accountants against numerical integration, Opacus, dp-accounting and sums written out."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from dp_accounting import NeighboringRelation, get_epsilon_gaussian
from dp_accounting.dp_event import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)
from dp_accounting.pld import PLDAccountant, privacy_loss_distribution
from opacus.accountants import RDPAccountant
from opacus.accountants.analysis import gdp as opacus_gdp
from opacus.accountants.analysis import rdp as opacus_rdp
from scipy.integrate import quad
from scipy.stats import norm

from leakbench.errors import LeakbenchError
from leakbench.privacy import composition, gdp, pld, rdp, zcdp
from leakbench.privacy.events import PrivacyEvent, Relation, Sampling

DELTA = 1e-5


def steps(
    sigma: float, rate: float = 1.0, count: int = 1, sampling: Sampling = "poisson"
) -> tuple[PrivacyEvent, ...]:
    event = PrivacyEvent(
        noise_multiplier=sigma, sensitivity=1.0, sampling_rate=rate, sampling=sampling, steps=count
    )
    return (event,)


# ---------------------------------------------------------------------------- moments


def integrated_divergence(rate: float, sigma: float, alpha: float) -> float:
    """From the definition; A - 1 - alpha q E(L - 1), as E(L) = 1, keeps the digits of small A."""

    def integrand(z: float) -> float:
        moved = rate * math.expm1((2 * z - 1) / (2 * sigma**2))
        power, density = alpha * math.log1p(moved), -(z**2) / (2 * sigma**2)
        if power > 30:
            change = math.exp(power + density) - (1 + alpha * moved) * math.exp(density)
        else:
            change = (math.expm1(power) - alpha * moved) * math.exp(density)
        return change / sigma / math.sqrt(2 * math.pi)

    # Between the bulk of the noise and that of the tilted integrand, in steps of a std.
    ends = np.arange(-12 * sigma, alpha + 12 * sigma, 2 * sigma)
    parts = [
        quad(integrand, low, high, epsabs=0, epsrel=1e-10, limit=200)[0]
        for low, high in itertools.pairwise(ends)
    ]
    return math.log1p(math.fsum(parts)) / (alpha - 1)


@pytest.mark.parametrize("seed", range(6))
def test_divergence_is_the_integral_it_stands_for(seed: int) -> None:
    generator = np.random.default_rng(seed)
    for kind in range(20):
        rate = float(10 ** generator.uniform(-4, -0.001))
        sigma = float(10 ** generator.uniform(-0.1, 1.5))
        alpha = [generator.uniform(1.01, 3), generator.uniform(3, 40), generator.integers(2, 40)]
        order = float(alpha[kind % 3])
        if order**2 / (2 * sigma**2) > 600:  # the integrand would overflow
            continue
        found = float(rdp.divergence(rate, sigma, (order,))[0])
        assert found == pytest.approx(integrated_divergence(rate, sigma, order), rel=1e-6)


@pytest.mark.parametrize("rate", [0.49, 0.5, 0.51, 0.9, 0.999])
@pytest.mark.parametrize("order", [1.05, 1.5, 2.5, 7.3, 9.0])
def test_divergence_at_large_rates(rate: float, order: float) -> None:
    found = float(rdp.divergence(rate, 1.3, (order,))[0])
    assert found == pytest.approx(integrated_divergence(rate, 1.3, order), rel=1e-9)


def test_divergence_of_a_step_everyone_takes_part_in() -> None:
    orders = (1.1, 2.0, 30.5, 512.0)
    np.testing.assert_allclose(rdp.divergence(1.0, 3.0, orders), np.array(orders) / 18)
    # And it is where the sampled one ends.
    np.testing.assert_allclose(
        rdp.divergence(1 - 1e-12, 3.0, orders), rdp.divergence(1.0, 3.0, orders), rtol=1e-9
    )


@pytest.mark.parametrize(
    ("rate", "sigma", "count"),
    [(0.01, 6.0, 10_000), (0.1, 2.0, 60), (0.5, 1.0, 3), (0.002, 0.7, 9)],
)
def test_epsilon_against_opacus(rate: float, sigma: float, count: int) -> None:
    accountant = RDPAccountant()
    accountant.history = [(sigma, rate, count)]
    expected = accountant.get_epsilon(DELTA, alphas=list(rdp.OPACUS_ORDERS))
    found = rdp.epsilon(steps(sigma, rate, count), DELTA, orders=rdp.OPACUS_ORDERS)
    assert found == pytest.approx(expected, rel=1e-9)


def test_orders_of_opacus_are_its_own() -> None:
    np.testing.assert_allclose(rdp.OPACUS_ORDERS, RDPAccountant.DEFAULT_ALPHAS)


def test_heterogeneous_divergences_add_up() -> None:
    events = (*steps(2.0, 0.1, 3), *steps(1.0, 0.05, 2), *steps(2.0, 0.1, 4), *steps(5.0))
    orders = (1.5, 4.0, 20.0)
    expected = (
        opacus_rdp.compute_rdp(q=0.1, noise_multiplier=2.0, steps=7, orders=orders)
        + opacus_rdp.compute_rdp(q=0.05, noise_multiplier=1.0, steps=2, orders=orders)
        + np.array(orders) / 50
    )
    np.testing.assert_allclose(rdp.composed(events, orders), expected, rtol=1e-9)


def test_both_conversions_by_hand() -> None:
    divergences, orders = np.array([0.2, 0.5, 1.5]), (1.5, 5.0, 40.0)
    classic = min(
        r + math.log(1 / DELTA) / (a - 1) for r, a in zip(divergences, orders, strict=True)
    )
    improved = min(
        r + math.log((a - 1) / a) - (math.log(DELTA) + math.log(a)) / (a - 1)
        for r, a in zip(divergences, orders, strict=True)
    )
    assert rdp.to_epsilon(divergences, orders, DELTA, "classic") == pytest.approx(classic)
    assert rdp.to_epsilon(divergences, orders, DELTA, "improved") == pytest.approx(improved)
    assert improved < classic


@pytest.mark.parametrize(
    ("rate", "sigma", "count", "loss"),
    [
        (0.01, 6.0, 10_000, 0.003),
        (0.1, 1.0, 100, 0.003),
        (0.5, 2.0, 500, 0.003),
        (0.001, 1.0, 1000, 0.03),  # the divergence grows a hundredfold between two orders
    ],
)
def test_dense_orders_lose_little(rate: float, sigma: float, count: int, loss: float) -> None:
    everything = (*np.arange(1.01, 30, 0.01).round(2).tolist(), *map(float, range(31, 512)))
    best = rdp.epsilon(steps(sigma, rate, count), DELTA, orders=everything)
    dense = rdp.epsilon(steps(sigma, rate, count), DELTA)
    assert best * (1 - 1e-5) < dense < best * (1 + loss)


@pytest.mark.parametrize("orders", [(), (1.0, 2.0), (0.5,), (math.inf,), (math.nan,)])
def test_orders_must_be_above_one(orders: tuple[float, ...]) -> None:
    with pytest.raises(LeakbenchError, match="orders"):
        rdp.epsilon(steps(1.0), DELTA, orders=orders)


def test_moments_refuse_a_fixed_size() -> None:
    with pytest.raises(LeakbenchError, match="Poisson"):
        rdp.epsilon(steps(1.0, 0.1, sampling="fixed_size"), DELTA)


# ---------------------------------------------------------------------------- Gaussian DP


def hockey_stick(
    upper: Callable[[float], float], lower: Callable[[float], float], epsilon: float
) -> float:
    """Integral of the positive part of p - e^epsilon q, on a grid fine enough for smooth p, q."""
    z = np.linspace(-60, 60, 1_200_001)
    difference = np.array(upper(z)) - math.exp(epsilon) * np.array(lower(z))  # type: ignore[arg-type]
    return float(np.trapezoid(np.maximum(difference, 0), z))


@pytest.mark.parametrize("mu", [0.05, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 2.0])
def test_delta_of_mu_is_the_hockey_stick_divergence(mu: float, epsilon: float) -> None:
    expected = hockey_stick(lambda z: norm.pdf(z, mu), norm.pdf, epsilon)
    assert gdp.delta_of_mu(mu, epsilon) == pytest.approx(expected, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("sigma", [0.05, 0.5, 2.0, 6.0, 100.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.3])
def test_epsilon_of_mu_against_dp_accounting(sigma: float, delta: float) -> None:
    expected = get_epsilon_gaussian(sigma, delta)
    assert gdp.epsilon_of_mu(1 / sigma, delta) == pytest.approx(expected, rel=1e-8, abs=1e-9)


def test_extreme_mu() -> None:
    assert gdp.epsilon_of_mu(0.0, DELTA) == 0
    assert gdp.epsilon_of_mu(1e-8, DELTA) == 0
    assert gdp.epsilon_of_mu(math.inf, DELTA) == math.inf
    assert gdp.epsilon_of_mu(1e200, DELTA) == math.inf
    # Far out the loss is mu^2 / 2 and a few stds more.
    assert gdp.epsilon_of_mu(1e6, DELTA) == pytest.approx(5e11 + 1e6 * norm.isf(DELTA), rel=1e-9)
    for bad in (-1.0, math.nan):
        with pytest.raises(LeakbenchError, match="mu"):
            gdp.epsilon_of_mu(bad, DELTA)


@pytest.mark.parametrize("sigma", [0.3, 1.0, 6.0, 1e4])
def test_central_limits_against_opacus(sigma: float) -> None:
    poisson = gdp.limit_mu(steps(sigma, 0.01, 500))
    subsets = gdp.limit_mu(steps(2 * sigma, 0.01, 500, "fixed_size"), "replace_one")
    expected = opacus_gdp.compute_mu_poisson(steps=500, noise_multiplier=sigma, sample_rate=0.01)
    assert poisson == pytest.approx(expected, rel=1e-6)
    expected = opacus_gdp.compute_mu_uniform(steps=500, noise_multiplier=sigma, sample_rate=0.01)
    assert subsets == pytest.approx(expected, rel=1e-4)


def test_central_limit_can_be_too_small() -> None:
    """BC+ALC paper's runs, taken as Poisson-sampled: below the true epsilon by up to a sixth."""
    for sigma, limit, truth in ((2.5, 1.522, 1.565), (1.5, 6.603, 7.926)):
        run = steps(sigma / math.sqrt(8), 64 / 54_000, 42_188)
        assert gdp.epsilon_of_mu(gdp.limit_mu(run), DELTA) == pytest.approx(limit, abs=6e-4)
        assert pld.epsilon(run, DELTA) == pytest.approx(truth, abs=2e-3)


def test_central_limit_has_no_replacing_under_poisson() -> None:
    with pytest.raises(LeakbenchError, match="replace-one"):
        gdp.limit_mu(steps(1.0, 0.1), "replace_one")
    assert gdp.limit_mu(steps(1.0, count=4), "replace_one") == 4


# ---------------------------------------------------------------------------- PLD


def dp_accounting_epsilon(events: Sequence[DpEvent], relation: NeighboringRelation) -> float:
    # Its own bound is a few 1e-4 above the truth at its default interval of 1e-4.
    accountant = PLDAccountant(relation, value_discretization_interval=3e-5)
    accountant.compose(ComposedDpEvent(list(events)))
    return float(accountant.get_epsilon(DELTA))


RELATIONS: dict[Relation, NeighboringRelation] = {
    "add_remove": NeighboringRelation.ADD_OR_REMOVE_ONE,
    "replace_one": NeighboringRelation.REPLACE_ONE,
}


@pytest.mark.parametrize("relation", list(RELATIONS))
@pytest.mark.parametrize(
    ("rate", "sigma", "count"),
    [(0.01, 6.0, 10_000), (0.1, 2.0, 100), (0.5, 5.0, 20), (1e-3, 2.0, 50), (0.9, 6.0, 1)],
)
def test_pld_against_dp_accounting(
    rate: float, sigma: float, count: int, relation: Relation
) -> None:
    event = SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(sigma)), count)
    expected = dp_accounting_epsilon([event], RELATIONS[relation])
    found = pld.epsilon(steps(sigma, rate, count), DELTA, relation=relation)
    assert found == pytest.approx(expected, rel=3e-4)


@pytest.mark.parametrize("delta", [1e-7, 1e-3])
def test_group_against_dp_accounting(delta: float) -> None:
    rate, sigma, count, size = 0.02, 8.0, 200, 3
    chances = [math.comb(size, k) * rate**k * (1 - rate) ** (size - k) for k in range(size + 1)]
    step = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        sigma, list(map(float, range(size + 1))), chances, value_discretization_interval=3e-5
    )
    expected = step.self_compose(count).get_epsilon_for_delta(delta)
    found = pld.epsilon(steps(sigma, rate, count), delta, group_size=size)
    assert found == pytest.approx(expected, rel=3e-4)


@pytest.mark.parametrize("relation", list(RELATIONS))
def test_heterogeneous_pld_against_dp_accounting(relation: Relation) -> None:
    events = [
        PoissonSampledDpEvent(0.02, GaussianDpEvent(5.0 - step / 10)) for step in range(15)
    ] + [GaussianDpEvent(20.0), GaussianDpEvent(10.0)]
    ours = [steps(5.0 - step / 10, 0.02)[0] for step in range(15)] + [
        *steps(20.0),
        *steps(10.0, 0.7, sampling="none"),
    ]
    expected = dp_accounting_epsilon(events, RELATIONS[relation])
    assert pld.epsilon(ours, DELTA, relation=relation) == pytest.approx(expected, rel=3e-4)


@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
def test_pld_without_sampling_is_exact(relation: Relation) -> None:
    events = (*steps(3.0, count=4), *steps(2.0, 0.3, 3, sampling="none"))
    mu = math.sqrt(4 / 9 + 3 / 4) * (2 if relation == "replace_one" else 1)
    found = pld.epsilon(events, DELTA, relation=relation)
    assert found == pytest.approx(get_epsilon_gaussian(1 / mu, DELTA), rel=1e-9)


@pytest.mark.parametrize(("sigma", "rate"), [(3.0, 0.3), (1.5, 0.05), (4.0, 0.9)])
def test_one_step_without_replacement_is_the_hockey_stick_divergence(
    sigma: float, rate: float
) -> None:
    def sampled(z: float) -> float:
        return (1 - rate) * norm.pdf(z, 0, sigma) + rate * norm.pdf(z, 2, sigma)  # type: ignore[no-any-return]

    found = pld.epsilon(steps(sigma, rate, sampling="fixed_size"), DELTA, relation="replace_one")
    delta = hockey_stick(sampled, lambda z: norm.pdf(z, 0, sigma), found)
    assert delta == pytest.approx(DELTA, rel=1e-3)


def test_many_steps_without_replacement_reach_their_central_limit() -> None:
    """The profile we compose is that of the theorem, whose limit Dong, Roth and Su give."""
    run = steps(12.0, 0.01, 20_000, "fixed_size")
    limit = gdp.epsilon_of_mu(gdp.limit_mu(run, "replace_one"), DELTA)
    assert pld.epsilon(run, DELTA, relation="replace_one") == pytest.approx(limit, rel=5e-3)
    assert pld.epsilon(run, DELTA) == pld.epsilon(run, DELTA, relation="replace_one")


def test_large_epsilons_do_not_overflow() -> None:
    """e^epsilon does from 710 on."""
    run = [steps(1.0, rate, 364, "fixed_size") for rate in (0.8, 0.8125, 0.85, 0.99, 1.0)]
    values = [pld.epsilon(events, DELTA) for events in run]
    assert values == sorted(values) and values[0] < 700 and 710 < values[1] < 715
    assert values[-1] == pytest.approx(get_epsilon_gaussian(1 / 2 / math.sqrt(364), DELTA))


def test_sampling_never_costs() -> None:
    sampling: Sampling
    for sampling in ("poisson", "fixed_size"):
        for relation in RELATIONS:
            values = [
                pld.epsilon(steps(5.0, rate, 5, sampling), DELTA, relation=relation)
                for rate in (0.01, 0.3, 1.0)
            ]
            assert values == sorted(values)


@pytest.mark.parametrize(
    ("sigma", "rate", "count", "tensors", "printed"),
    [
        (6.0, 0.01, 10_000, 1, "0.601"),
        (6.0, 0.01, 10_000, 3, "1.116"),
        (6.0, 0.01, 10_000, 6, "1.681"),
        (6.0, 0.01, 10_000, 10, "2.315"),
        (6.0, 0.94, 300, 1, "14.7"),
        (6.0, 0.1, 1000, 1, "2.15"),
        (6.0, 0.1, 1000, 3, "4.09"),
    ],
)
def test_what_the_papers_runs_really_cost(
    sigma: float, rate: float, count: int, tensors: int, printed: str
) -> None:
    found = pld.epsilon(steps(sigma / math.sqrt(tensors), rate, count), DELTA)
    digits = len(printed.partition(".")[2])
    assert f"{found:.{digits}f}" == printed


def test_group_of_one_is_one_and_a_group_that_always_takes_part_moves_as_one() -> None:
    run = steps(6.0, 0.01, 100)
    assert pld.epsilon(run, DELTA, group_size=1) == pld.epsilon(run, DELTA)
    whole = steps(6.0, 1.0, 10)
    assert pld.epsilon(whole, DELTA, group_size=5) == pytest.approx(
        get_epsilon_gaussian(6.0 / 5 / math.sqrt(10), DELTA)
    )


def test_group_of_two_in_one_step_is_the_hockey_stick_divergence() -> None:
    rate, sigma = 0.2, 2.0

    def sampled(z: float) -> float:
        chances = ((1 - rate) ** 2, 2 * rate * (1 - rate), rate**2)
        return sum(p * norm.pdf(z, k, sigma) for k, p in enumerate(chances))  # type: ignore[no-any-return]

    found = pld.epsilon(steps(sigma, rate), DELTA, group_size=2)
    delta = hockey_stick(sampled, lambda z: norm.pdf(z, 0, sigma), found)
    assert delta == pytest.approx(DELTA, rel=5e-3)


@pytest.mark.parametrize(("sigma", "size"), [(0.05, 2), (0.02, 10)])
def test_groups_at_tiny_rates_and_noise_have_an_answer(sigma: float, size: int) -> None:
    run = PrivacyEvent(noise_multiplier=sigma, sensitivity=1.0, sampling_rate=1e-9, steps=10)
    found = pld.epsilon([run], 1e-5, group_size=size)
    assert 0 <= found <= gdp.epsilon_of_mu(size * math.sqrt(10) / sigma, 1e-5)


def test_group_bounds() -> None:
    run = steps(6.0, 0.01, 100)
    one, five = (pld.epsilon(run, DELTA, group_size=size) for size in (1, 5))
    always = pld.epsilon(steps(6.0, count=100), DELTA, group_size=5)
    assert 5 * one < five < always
    # Without a bound of its own, a group is taken to be in every batch.
    fixed = steps(6.0, 0.01, 100, "fixed_size")
    assert pld.epsilon(fixed, DELTA, group_size=5) == pytest.approx(
        get_epsilon_gaussian(6.0 / 10 / 10, DELTA)
    )
    for bad in (0, -1, 1.5, math.nan, math.inf):
        with pytest.raises(LeakbenchError, match="group_size"):
            pld.epsilon(run, DELTA, group_size=bad)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------- zCDP, composition


def test_zcdp_by_hand() -> None:
    events = (*steps(6.0, 0.01, 100), *steps(3.0, 0.5, 4))
    rho = 100 / (2 * 36) + 4 / (2 * 9)
    assert zcdp.rho(events) == pytest.approx(rho)
    assert zcdp.rho(events, "replace_one") == pytest.approx(4 * rho)
    assert zcdp.claimed_rho(events) == pytest.approx(100 * 0.01**2 / 36 + 4 * 0.5**2 / 9)
    assert zcdp.to_epsilon(rho, DELTA) == pytest.approx(rho + 2 * math.sqrt(rho * math.log(1e5)))
    # It is a bound: above the exact one where nothing is sampled.
    assert zcdp.to_epsilon(4 / 18, DELTA) > gdp.epsilon_of_mu(2 / 3, DELTA)


def test_step_losses() -> None:
    events = (*steps(6.0, 0.01, 100), *steps(3.0))
    losses = composition.step_losses(events, DELTA, exact=False)
    alone = math.sqrt(2 * math.log(1.25e5))
    by_steps = {loss.steps: loss.epsilon for loss in losses}
    assert by_steps[1] == pytest.approx(alone / 3)
    assert by_steps[100] == pytest.approx(math.log(1 + 0.01 * (math.exp(alone / 6) - 1)))
    rounded = composition.step_losses(events, DELTA, exact=False, decimals=3, amplified_decimals=8)
    assert {loss.epsilon for loss in rounded} == {
        round(math.log(1 + 0.01 * (math.exp(0.807) - 1)), 8),
        round(alone / 3, 3),
    }
    exact = composition.step_losses(steps(3.0), DELTA, relation="replace_one")
    assert exact[0].epsilon == pytest.approx(get_epsilon_gaussian(1.5, DELTA))
    assert composition.spent_delta(events, DELTA) == pytest.approx(2 * DELTA)


def test_theorems_by_hand() -> None:
    losses = [composition.StepLoss(0.1, 50), composition.StepLoss(0.02, 7)]
    each = [0.1] * 50 + [0.02] * 7
    squares = sum(e * e for e in each)
    drift = sum(e * (math.exp(e) - 1) / (math.exp(e) + 1) for e in each)
    log = math.log(1 / DELTA)
    expected: dict[Callable[..., float], float] = {
        composition.advanced: math.sqrt(2 * log * squares)
        + sum(e * (math.exp(e) - 1) for e in each),
        composition.advanced_eq3: drift + math.sqrt(2 * log * squares),
        composition.optimal_eq4: drift
        + math.sqrt(2 * squares * math.log(math.e + math.sqrt(squares) / DELTA)),
    }
    for theorem, value in expected.items():
        assert theorem(losses, DELTA) == pytest.approx(value)
    assert composition.base(losses) == pytest.approx(sum(each))
    assert composition.optimal(losses, DELTA) == pytest.approx(
        min(sum(each), *(expected[t] for t in list(expected)[1:]))
    )
    few = [composition.StepLoss(0.1, 1)]
    assert composition.optimal(few, DELTA) == pytest.approx(0.1)


def test_theorems_end_in_infinity() -> None:
    losses: Any = [composition.StepLoss(1e200, 3)]
    for theorem in (composition.advanced, composition.advanced_eq3, composition.optimal_eq4):
        assert theorem(losses, DELTA) == math.inf
    assert composition.optimal(losses, DELTA) == pytest.approx(3e200)  # the plain sum
    assert composition.classic_epsilon(0.0, DELTA) == math.inf
    assert composition.amplified(1e6, 0.01) == pytest.approx(1e6 + math.log(0.01))
    assert composition.amplified(3.0, 0.01) == pytest.approx(math.log(1 + 0.01 * math.expm1(3.0)))
