"""Intervals, survival and verdicts against closed forms, hand-worked examples and simulation."""

import math
import subprocess
import sys
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import CensoredData, bootstrap, ecdf, norm

from leakbench import statistics
from leakbench.statistics import (
    Interval,
    kaplan_meier,
    kaplan_meier_median,
    mean_interval,
    outcome_verdict,
    rate_interval,
    rate_verdict,
    ratio_verdict,
    wilson,
)

RATES = st.lists(st.lists(st.booleans(), min_size=1, max_size=12), min_size=1, max_size=6)
VALUES = st.lists(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=12), min_size=1, max_size=6
).filter(lambda networks: sum(map(len, networks)) > 1)
SEEDS = st.integers(0, 1000)
IntervalOf = Callable[..., Interval]


def ends(interval: Interval) -> tuple[float, float, float]:
    assert interval.low is not None
    assert interval.value is not None
    assert interval.high is not None
    return interval.low, interval.value, interval.high


def width(interval: Interval) -> float:
    low, _, high = ends(interval)
    return high - low


# ---------------------------------------------------------------------------------------------
# Interval and Wilson
# ---------------------------------------------------------------------------------------------


def test_interval_as_dict() -> None:
    assert Interval(0.5, 0.25, 0.75).as_dict() == {"value": 0.5, "low": 0.25, "high": 0.75}
    assert Interval(None, None, None).as_dict() == {"value": None, "low": None, "high": None}


@pytest.mark.parametrize(
    "numbers",
    [(0.5, 0.6, 0.7), (0.8, 0.6, 0.7), (0.5, 0.4, None), (0.5, None, 0.6), (math.nan, 0.4, 0.6)],
)
def test_an_interval_in_disorder_is_refused(numbers: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match=r"interval|low <= value <= high"):
        Interval(*numbers)


def test_wilson_when_all_trials_agree() -> None:
    assert wilson(0, 100) == pytest.approx((0.0, 0.0370), abs=5e-5)
    assert wilson(0, 8) == pytest.approx((0.0, 0.324), abs=5e-4)
    assert wilson(8, 8) == pytest.approx((0.676, 1.0), abs=5e-4)
    assert wilson(0, 0) == (0.0, 1.0)


@given(trials=st.integers(1, 500), share=st.floats(0, 1), level=st.floats(0.5, 0.999))
def test_wilson_is_the_score_test_inverted(trials: int, share: float, level: float) -> None:
    successes = round(share * trials)
    z = norm.ppf((1 + level) / 2)
    rate = successes / trials
    centre = (rate + z**2 / (2 * trials)) / (1 + z**2 / trials)
    half = z * math.sqrt(rate * (1 - rate) / trials + z**2 / (4 * trials**2)) / (1 + z**2 / trials)
    expected = (centre - half, centre + half)
    assert wilson(successes, trials, level) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("arguments", [(-1, 8), (9, 8), (0, -1), (1, 2, 0.0), (1, 2, 1.0)])
def test_wilson_refuses_impossible_counts(arguments: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="must be in"):
        wilson(*arguments)


# ---------------------------------------------------------------------------------------------
# Two-stage intervals
# ---------------------------------------------------------------------------------------------


def test_none_of_eight_means_at_most_a_third() -> None:
    assert ends(rate_interval([[False] * 8])) == pytest.approx((0.0, 0.0, 0.324), abs=5e-4)
    assert ends(rate_interval([[False] * 4] * 2)) == pytest.approx((0.0, 0.0, 0.324), abs=5e-4)
    assert ends(rate_interval([[True] * 8])) == pytest.approx((0.676, 1.0, 1.0), abs=5e-4)


@pytest.mark.parametrize("function", [rate_interval, mean_interval])
@pytest.mark.parametrize("nothing", [[], [[]], [[], []]])
def test_no_data_no_value(function: IntervalOf, nothing: list[list[float]]) -> None:
    assert function(nothing) == Interval(None, None, None)


@pytest.mark.parametrize("function", [rate_interval, mean_interval])
def test_networks_without_trials_change_nothing(function: IntervalOf) -> None:
    assert function([[1, 0], [], [1, 1, 0]]) == function([[1, 0], [1, 1, 0]])


def test_values_are_over_all_trials_not_over_networks() -> None:
    uneven = [[1.0], [4.0, 5.0, 6.0, 9.0]]
    assert mean_interval(uneven).value == 5.0
    assert rate_interval([[True], [False] * 3]).value == 0.25


def test_networks_by_their_counts_stand_as_by_their_outcomes() -> None:
    counts = [(size, met) for size in range(1, 7) for met in range(size + 1)]
    outcomes = [[0.0] * (size - met) + [1.0] * met for size, met in counts]
    expected = [(len(some), int(sum(some))) for some in sorted(outcomes)]
    assert sorted(counts, key=statistics._place) == expected


def test_a_rate_is_resampled_as_its_outcomes_say() -> None:
    """The same draws as of outcomes, written out; 90 % of 400 resamples."""
    networks = [[True] * 3 + [False] * 7, [False] * 5, [True] * 4, [True, False] * 6]
    ordered = sorted(sorted(map(float, network)) for network in networks)
    sizes = np.array([len(network) for network in ordered])
    rates = np.array([np.mean(network) for network in ordered])
    generator = np.random.default_rng(3)
    chosen = generator.integers(4, size=(400, 4))
    counts = generator.binomial(sizes[chosen], rates[chosen])
    ends_at = [(1 - 0.9) / 2, (1 + 0.9) / 2]
    drawn = np.quantile(counts.sum(axis=1) / sizes[chosen].sum(axis=1), ends_at)
    whole = wilson(13, 31, 0.9)
    found = rate_interval(networks, level=0.9, seed=3, resamples=400)
    assert found == Interval(13 / 31, min(*whole, *drawn), max(*whole, *drawn))


def test_networks_of_one_size_are_resampled_as_others() -> None:
    """One bound for all draws, or one for each: the same numbers."""
    values = np.random.default_rng(1).normal(size=(3, 7))
    ordered = np.array(sorted(np.sort(values, axis=1).tolist()))
    generator = np.random.default_rng(0)
    chosen = generator.integers(3, size=(2000, 3))
    each = generator.integers(np.full((2000, 3, 1), 7), size=(2000, 3, 7))
    means = ordered[chosen[:, :, None], each].mean(axis=(1, 2))
    found = mean_interval(values.tolist(), level=0.9)
    assert ends(found)[::2] == pytest.approx(np.quantile(means, [0.05, 0.95]), rel=1e-12)


def test_one_value_has_no_interval() -> None:
    assert mean_interval([[3.0]]) == Interval(3.0, None, None)
    assert mean_interval([[], [3.0]]) == Interval(3.0, None, None)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        mean_interval([[1.0], [2.0, value]])


@pytest.mark.parametrize("outcome", [0.5, 2, -1, math.nan, None])
def test_outcomes_are_true_or_false(outcome: float) -> None:
    with pytest.raises(ValueError, match="true or false"):
        rate_interval([[True, outcome]])  # type: ignore[list-item]


@pytest.mark.parametrize("function", [rate_interval, mean_interval])
def test_arguments_outside_their_range_are_refused(function: IntervalOf) -> None:
    with pytest.raises(ValueError, match="level"):
        function([[1, 0]], level=1.0)
    with pytest.raises(ValueError, match="resamples"):
        function([[1, 0]], resamples=0)
    with pytest.raises(ValueError, match="flat"):
        function([[[1, 0]]])


@settings(max_examples=40, deadline=None)
@given(outcomes=RATES, seed=SEEDS, level=st.floats(0.01, 0.99))
def test_rate_is_inside_its_interval(outcomes: list[list[bool]], seed: int, level: float) -> None:
    low, value, high = ends(rate_interval(outcomes, level, seed, resamples=200))
    assert 0 <= low <= value <= high <= 1
    pooled = [outcome for network in outcomes for outcome in network]
    assert value == pytest.approx(np.mean(pooled))
    wilson_low, wilson_high = wilson(sum(pooled), len(pooled), level)
    assert low <= wilson_low
    assert high >= wilson_high


@settings(max_examples=40, deadline=None)
@given(values=VALUES, seed=SEEDS, level=st.floats(0.01, 0.99))
def test_the_mean_is_inside_its_interval(
    values: list[list[float]], seed: int, level: float
) -> None:
    pooled = [value for network in values for value in network]
    low, value, high = ends(mean_interval(values, level, seed, resamples=200))
    assert min(pooled) - 1e-6 <= low <= value <= high <= max(pooled) + 1e-6
    assert value == pytest.approx(np.mean(pooled), abs=1e-6)


@settings(max_examples=30, deadline=None)
@given(values=VALUES, seed=SEEDS, data=st.data())
def test_the_order_of_networks_and_victims_does_not_matter(
    values: list[list[float]], seed: int, data: st.DataObject
) -> None:
    shuffled = [data.draw(st.permutations(network)) for network in values]
    shuffled = data.draw(st.permutations(shuffled))
    assert mean_interval(values, seed=seed, resamples=50) == mean_interval(
        shuffled, seed=seed, resamples=50
    )
    outcomes = [[value > 0 for value in network] for network in values]
    mixed = [[value > 0 for value in network] for network in shuffled]
    assert rate_interval(outcomes, seed=seed) == rate_interval(mixed, seed=seed)


@settings(max_examples=40, deadline=None)
@given(outcomes=RATES)
def test_four_times_the_networks_narrow_the_interval(outcomes: list[list[bool]]) -> None:
    assert width(rate_interval(outcomes * 4)) <= width(rate_interval(outcomes)) + 1e-12


@settings(max_examples=40, deadline=None)
@given(values=VALUES)
def test_four_times_the_networks_narrow_the_interval_of_the_mean(
    values: list[list[float]],
) -> None:
    once, repeated = width(mean_interval(values)), width(mean_interval(values * 4))
    assert repeated <= once * 1.02 + 1e-6


def test_a_level_is_wider_than_a_lower_one() -> None:
    values = [[1.0, 2.0, 5.0], [2.0, 8.0]]
    wide, narrow = mean_interval(values, level=0.95), mean_interval(values, level=0.90)
    assert ends(wide)[0] <= ends(narrow)[0]
    assert ends(wide)[2] >= ends(narrow)[2]


@pytest.mark.parametrize("function", [rate_interval, mean_interval])
def test_the_same_seed_gives_the_same_interval(function: IntervalOf) -> None:
    outcomes = [[1, 0, 1, 1], [0, 0, 1], [1, 1, 1, 1, 0]]
    assert function(outcomes, seed=3) == function(outcomes, seed=3)


@settings(max_examples=40, deadline=None)
@given(outcomes=RATES, seed=SEEDS)
def test_groups_of_one_are_no_groups(outcomes: list[list[bool]], seed: int) -> None:
    names = [[7 * place for place in range(len(network))] for network in outcomes]
    grouped = rate_interval(outcomes, seed=seed, resamples=50, groups=names)
    assert grouped == rate_interval(outcomes, seed=seed, resamples=50)


@pytest.mark.parametrize("success", [True, False])
def test_groups_that_all_agree_count_once_each(success: bool) -> None:
    """Four batches of eight images are four trials, not 32."""
    outcomes = [[success] * 16] * 2
    names = [[place // 8 * 8 for place in range(16)]] * 2
    low, value, high = ends(rate_interval(outcomes, groups=names))
    assert (low, high) == wilson(4 * success, 4)
    assert value == float(success)
    assert (low, high) != wilson(32 * success, 32)


def test_images_of_one_group_together_widen_the_interval() -> None:
    outcomes = [[True] * 8 + [False] * 8, [False] * 8 + [True] * 8]
    names = [[place // 8 for place in range(16)]] * 2
    grouped, alone = rate_interval(outcomes, groups=names), rate_interval(outcomes)
    assert grouped.value == alone.value == 0.5
    assert width(grouped) > 1.5 * width(alone)
    low, _, high = ends(grouped)
    assert low <= wilson(2, 4)[0] and high >= wilson(2, 4)[1]


def test_groups_are_resampled_whole_as_a_loop_would() -> None:
    generator = np.random.default_rng(3)
    shares, outcomes, names = [], [], []
    for size in (30, 18, 24):
        hits = [int(generator.integers(0, 5)) for _ in range(size)]
        shares.append([hit / 4 for hit in hits])
        outcomes.append([place < hit for hit in hits for place in range(4)])
        names.append([group for group in range(size) for _ in range(4)])
    low, value, high = ends(rate_interval(outcomes, resamples=8000, groups=names))
    assert value == pytest.approx(np.mean([share for network in shares for share in network]))
    expected = naive_two_stage(shares, lambda drawn: float(np.mean(drawn)), 1, 8000)
    count, total = sum(map(len, shares)), sum(map(sum, shares))
    assert low == pytest.approx(min(expected[0], wilson(math.floor(total), count)[0]), abs=0.01)
    assert high == pytest.approx(max(expected[1], wilson(math.ceil(total), count)[1]), abs=0.01)


def test_few_groups_of_unlike_networks_are_resampled_whole() -> None:
    """Here it is the bootstrap that is wider than Wilson's interval."""
    shares = [[1.0] * 2 + [0.0] * 4, [1.0] * 4 + [0.0] * 2]
    outcomes = [[bool(share) for share in network for _ in range(8)] for network in shares]
    names = [[place // 8 for place in range(48)]] * 2
    low, value, high = ends(rate_interval(outcomes, resamples=8000, groups=names))
    assert value == 0.5
    assert (low, high) == pytest.approx(
        naive_two_stage(shares, lambda drawn: float(np.mean(drawn)), 1, 8000), abs=0.03
    )
    assert low < wilson(6, 12)[0] and high > wilson(6, 12)[1]
    assert low < ends(rate_interval(outcomes, resamples=8000))[0] - 0.05


@settings(max_examples=40, deadline=None)
@given(outcomes=RATES, seed=SEEDS, level=st.floats(0.01, 0.99), data=st.data())
def test_the_order_of_groups_and_their_members_does_not_matter(
    outcomes: list[list[bool]], seed: int, level: float, data: st.DataObject
) -> None:
    names = [data.draw(st.lists(st.integers(0, 3), min_size=len(n), max_size=len(n)))
             for n in outcomes]  # fmt: skip
    orders = [data.draw(st.permutations(range(len(network)))) for network in outcomes]
    networks = data.draw(st.permutations(range(len(outcomes))))
    one = rate_interval(outcomes, level, seed, 50, groups=names)
    two = rate_interval(
        [[outcomes[n][place] for place in orders[n]] for n in networks],
        level,
        seed,
        50,
        groups=[[names[n][place] + 10 for place in orders[n]] for n in networks],
    )
    assert one == two
    low, value, high = ends(one)
    assert 0 <= low <= value <= high <= 1
    assert value == pytest.approx(np.mean([hit for network in outcomes for hit in network]))


def test_groups_of_networks_without_trials_change_nothing() -> None:
    some = rate_interval([[True, True, False]], groups=[[0, 0, 1]])
    assert some == rate_interval([[], [True, True, False]], groups=[[], [0, 0, 1]])
    assert rate_interval([[], []], groups=[[], []]) == Interval(None, None, None)


def test_groups_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        rate_interval([[True, False, True]], groups=[[0, 0]])
    # A network without names, after one whose groups are of one, and of two.
    for names in ([0, 1], [0, 0]):
        with pytest.raises(ValueError, match="zip"):
            rate_interval([[True, False], [True]], groups=[names])


def test_one_network_is_the_ordinary_bootstrap() -> None:
    values = np.random.default_rng(0).lognormal(size=40)
    ours = mean_interval([values.tolist()], resamples=20_000)
    reference = bootstrap(
        (values,), np.mean, method="percentile", n_resamples=20_000, rng=np.random.default_rng(1)
    ).confidence_interval
    assert ends(ours)[0] == pytest.approx(reference.low, rel=0.02)
    assert ends(ours)[2] == pytest.approx(reference.high, rel=0.02)


def naive_two_stage(
    networks: Sequence[Sequence[float]],
    statistic: Callable[[list[float]], float],
    seed: int,
    resamples: int,
) -> tuple[float, float]:
    """The bootstrap as one would tell it, one draw at a time."""
    generator = np.random.default_rng(seed)
    results = []
    for _ in range(resamples):
        drawn: list[float] = []
        for index in generator.integers(len(networks), size=len(networks)):
            network = networks[index]
            drawn += [network[i] for i in generator.integers(len(network), size=len(network))]
        results.append(statistic(drawn))
    low, high = np.quantile(results, [0.025, 0.975])
    return float(low), float(high)


def test_uneven_networks_are_resampled_as_a_loop_would() -> None:
    generator = np.random.default_rng(5)
    values = [generator.normal(k, 1, size).tolist() for k, size in enumerate((9, 14, 30, 5, 21))]
    low, _, high = ends(mean_interval(values, resamples=8000))
    expected = naive_two_stage(values, lambda drawn: float(np.mean(drawn)), 1, 8000)
    assert (low, high) == pytest.approx(expected, abs=0.1)

    outcomes = [[value > 2 for value in network] for network in values]
    low, _, high = ends(rate_interval(outcomes, resamples=8000))
    expected = naive_two_stage(outcomes, lambda drawn: float(np.mean(drawn)), 1, 8000)
    assert (low, high) == pytest.approx(expected, abs=0.03)


def test_the_bootstrap_works_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [np.random.default_rng(k).normal(size=30).tolist() for k in range(4)]
    whole = ends(mean_interval(values, resamples=8000))
    monkeypatch.setattr("leakbench.statistics._DRAWS", 1000)
    assert ends(mean_interval(values, resamples=8000)) == pytest.approx(whole, abs=0.05)


def coverage(networks: int, victims: int, experiments: int) -> float:
    """How often the 95 % interval holds the true rate when networks differ as Beta(8, 2) rates."""
    generator = np.random.default_rng(20)
    hits = 0
    for experiment in range(experiments):
        rates = generator.beta(8, 2, size=networks)
        outcomes = [(generator.random(victims) < rate).tolist() for rate in rates]
        low, _, high = ends(rate_interval(outcomes, seed=experiment, resamples=500))
        hits += low <= 0.8 <= high
    return hits / experiments


def test_coverage_with_five_networks() -> None:
    assert coverage(networks=5, victims=20, experiments=400) >= 0.85


def test_coverage_with_two_networks_is_below_its_level() -> None:
    """The documented limit: two networks do not show how much networks differ."""
    assert 0.70 <= coverage(networks=2, victims=20, experiments=400) < 0.95


# ---------------------------------------------------------------------------------------------
# Kaplan-Meier
# ---------------------------------------------------------------------------------------------


def test_kaplan_meier_by_hand() -> None:
    # 6 attacks: successes at 1, 3, 3 and 7; stopped without success at 3 and 5.
    # At 1: 6 at risk, 5/6. At 3: 5 at risk (the one stopped at 3 among them), 5/6 * 3/5 = 1/2.
    # At 7: 1 at risk, 0.
    times, observed = [3, 1, 5, 3, 7, 3], [True, True, False, False, True, True]
    event_times, survival = kaplan_meier(times, observed)
    assert event_times.tolist() == [1, 3, 7]
    assert survival.tolist() == pytest.approx([5 / 6, 1 / 2, 0])
    assert kaplan_meier_median(times, observed) == 3


def test_median_at_exactly_one_half_in_spite_of_rounding() -> None:
    # Two successes of four trials: by the second, half have succeeded.
    assert kaplan_meier_median([10, 20, 300, 300], [True, True, False, False]) == 20
    # 8/9 * 7/8 * 6/7 * 3/4 = 1/2, in floats a little more or less.
    times = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    observed = [True, True, True, False, False, True, False, False, False]
    assert kaplan_meier(times, observed)[1][-1] == pytest.approx(1 / 2)
    assert kaplan_meier_median(times, observed) == 6


def test_no_median_when_fewer_than_half_succeed() -> None:
    assert kaplan_meier_median([10, 20, 300], [True, False, False]) is None
    assert kaplan_meier_median([300, 300], [False, False]) is None
    assert kaplan_meier_median([], []) is None
    assert kaplan_meier([300], [False])[0].size == 0


def test_a_success_at_step_zero_counts() -> None:
    assert kaplan_meier_median([0, 0, 300], [True, True, False]) == 0


@given(
    times=st.lists(st.integers(0, 300), min_size=1, max_size=31).filter(lambda t: len(t) % 2 == 1)
)
def test_without_censoring_the_median_is_the_plain_one(times: list[int]) -> None:
    assert kaplan_meier_median(times, [True] * len(times)) == np.median(times)


@given(trials=st.lists(st.tuples(st.integers(0, 30), st.booleans()), min_size=1, max_size=40))
def test_the_curve_is_that_of_scipy(trials: list[tuple[int, bool]]) -> None:
    times = [time for time, _ in trials]
    observed = [success for _, success in trials]
    event_times, survival = kaplan_meier(times, observed)
    sample = CensoredData(
        uncensored=[time for time, success in trials if success],
        right=[time for time, success in trials if not success],
    )
    assert survival == pytest.approx(ecdf(sample).sf.evaluate(event_times))
    assert (np.diff(event_times) > 0).all()


@given(trials=st.lists(st.tuples(st.integers(1, 30), st.booleans()), min_size=1, max_size=40))
def test_censoring_never_shortens_the_median(trials: list[tuple[int, bool]]) -> None:
    times = [time for time, _ in trials]
    censored = kaplan_meier_median(times, [success for _, success in trials])
    complete = kaplan_meier_median(times, [True] * len(times))
    assert complete is not None
    assert censored is None or censored >= complete


@pytest.mark.parametrize(
    ("times", "observed"), [([1.0], [True, False]), ([-1.0], [True]), ([math.nan], [True])]
)
def test_kaplan_meier_refuses_what_does_not_fit(times: list[float], observed: list[bool]) -> None:
    with pytest.raises(ValueError, match="times"):
        kaplan_meier(times, observed)


# ---------------------------------------------------------------------------------------------
# Verdicts
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.75, 0.85, "reproduced"),
        (0.70, 0.90, "reproduced"),  # 0.8 - 0.1 is more than 0.7 in floats
        (0.69, 0.90, "inconclusive"),
        (0.70, 0.91, "inconclusive"),
        (0.00, 1.00, "inconclusive"),
        (0.90, 1.00, "inconclusive"),  # one point in common
        (0.91, 1.00, "not reproduced"),
        (0.60, 0.70, "inconclusive"),
        (0.00, 0.69, "not reproduced"),
    ],
)
def test_verdicts_on_a_printed_rate_of_eight_tenths(low: float, high: float, verdict: str) -> None:
    assert rate_verdict(0.8, Interval(low, low, high)) == verdict


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.0, 4.0, "reproduced"),
        (0.99, 4.0, "inconclusive"),
        (1.0, 4.01, "inconclusive"),
        (0.1, 40.0, "inconclusive"),
        (4.0, 5.0, "inconclusive"),
        (4.01, 5.0, "not reproduced"),
        (0.1, 0.99, "not reproduced"),
        (0.0, 0.0, "not reproduced"),
    ],
)
def test_verdicts_on_a_printed_error_of_two(low: float, high: float, verdict: str) -> None:
    assert ratio_verdict(2.0, Interval(low, low, high)) == verdict
    # The unit does not matter, nor does rounding in its conversion.
    assert ratio_verdict(2.0e-7, Interval(low * 1e-7, low * 1e-7, high * 1e-7)) == verdict


def test_verdicts_on_printed_rates_of_none_and_all() -> None:
    assert rate_verdict(1.0, Interval(0.95, 0.9, 1.0)) == "reproduced"
    assert rate_verdict(1.0, Interval(0.95, 0.89, 1.0)) == "inconclusive"
    assert rate_verdict(0.0, Interval(0.05, 0.0, 0.1)) == "reproduced"
    assert rate_verdict(0.0, Interval(0.5, 0.11, 0.9)) == "not reproduced"


def test_a_quick_run_is_inconclusive_not_safe() -> None:
    assert rate_verdict(0.0, rate_interval([[False] * 8], level=0.9)) == "inconclusive"
    assert rate_verdict(0.0, rate_interval([[False] * 50], level=0.9)) == "reproduced"


def test_without_an_interval_nothing_is_concluded() -> None:
    nothing = Interval(None, None, None)
    assert rate_verdict(0.5, nothing) == "inconclusive"
    assert ratio_verdict(0.5, nothing) == "inconclusive"
    assert ratio_verdict(0.0, nothing) == "inconclusive"
    assert ratio_verdict(0.5, mean_interval([[0.5]])) == "inconclusive"


def test_a_printed_zero() -> None:
    zero, small, large = Interval(0, 0, 0), Interval(1e-5, 0, 2e-5), Interval(0.5, 0.4, 0.6)
    assert ratio_verdict(0, zero) == "reproduced"
    assert ratio_verdict(0, small) == "inconclusive"
    assert ratio_verdict(0, large) == "inconclusive"
    # "0.000" was at most 0.0005 before rounding.
    assert ratio_verdict(0, zero, resolution=0.0005) == "reproduced"
    assert ratio_verdict(0, small, resolution=0.0005) == "reproduced"
    assert ratio_verdict(0, large, resolution=0.0005) == "not reproduced"


def test_resolution_widens_the_band_by_what_rounding_hides() -> None:
    # "0.003" stands for 0.0025 to 0.0035, so the band is 0.00125 to 0.007.
    measured = Interval(0.0065, 0.0062, 0.0069)
    assert ratio_verdict(0.003, measured) == "not reproduced"
    assert ratio_verdict(0.003, measured, resolution=0.0005) == "reproduced"


@given(
    printed=st.floats(0, 1),
    numbers=st.lists(st.floats(0, 1), min_size=3, max_size=3).map(sorted),
    wider=st.floats(0, 0.5),
)
def test_a_wider_interval_never_settles_what_a_narrow_one_left_open(
    printed: float, numbers: list[float], wider: float
) -> None:
    low, value, high = numbers
    narrow, wide = Interval(value, low, high), Interval(value, low - wider, high + wider)
    for verdict in (rate_verdict, ratio_verdict):
        assert verdict(printed, wide) in (verdict(printed, narrow), "inconclusive")


@pytest.mark.parametrize(
    ("succeeds", "low", "high", "verdict"),
    [
        (True, 0.51, 1.0, "reproduced"),
        (True, 0.5, 1.0, "inconclusive"),
        (True, 0.0, 0.49, "not reproduced"),
        (True, 0.0, 0.5, "inconclusive"),
        (False, 0.0, 0.49, "reproduced"),
        (False, 0.51, 0.9, "not reproduced"),
        (False, 0.4, 0.6, "inconclusive"),
        (True, None, None, "inconclusive"),
    ],
)
def test_verdicts_on_a_printed_success(
    succeeds: bool, low: float | None, high: float | None, verdict: str
) -> None:
    assert outcome_verdict(succeeds, Interval(low, low, high)) == verdict


def test_verdicts_refuse_impossible_arguments() -> None:
    interval = Interval(0.5, 0.4, 0.6)
    for printed in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="printed"):
            rate_verdict(printed, interval)
    for printed in (-1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="printed"):
            ratio_verdict(printed, interval)
    with pytest.raises(ValueError, match="tolerance"):
        rate_verdict(0.5, interval, tolerance=-0.1)
    with pytest.raises(ValueError, match="factor"):
        ratio_verdict(0.5, interval, factor=0.5)
    with pytest.raises(ValueError, match="resolution"):
        ratio_verdict(0.5, interval, resolution=-1.0)


def test_statistics_do_not_load_torch() -> None:
    code = "import sys, leakbench.statistics; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_more_than_is_drawn_at_once_is_drawn_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [[0.1, 0.4, 0.3], [0.2, 0.9]]
    whole = mean_interval(values)
    monkeypatch.setattr("leakbench.statistics._DRAWS", 1)
    found = mean_interval(values, resamples=400)
    assert None not in (found.low, found.high, whole.low, whole.high)
    assert found.value == whole.value
    assert found.low == pytest.approx(whole.low, abs=0.1)
    assert found.high == pytest.approx(whole.high, abs=0.1)
