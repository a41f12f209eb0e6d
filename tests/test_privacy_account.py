"""Presets, observers and inverses: what is promised to whom, edge cases, monotonicity."""

import itertools
import json
import math
import subprocess
import sys
from typing import Any

import pytest
from dp_accounting import get_epsilon_gaussian
from hypothesis import given, settings
from hypothesis import strategies as st

from leakbench.errors import LeakbenchError
from leakbench.privacy import composition, gdp, rdp
from leakbench.privacy.account import Result, epsilon
from leakbench.privacy.bisection import least, least_positive
from leakbench.privacy.events import PrivacyEvent, Relation, Sampling, grouped
from leakbench.privacy.inverse import first_steps, noise_multiplier, steps_within
from leakbench.privacy.observers import account
from leakbench.privacy.presets import PRESETS
from leakbench.spec import ACCOUNTANTS

DELTA = 1e-5
FAST = [name for name in ACCOUNTANTS if name != "pld"]
RELATIONS: list[Relation] = ["add_remove", "replace_one"]


def event(sigma: float, rate: float = 1.0, steps: int = 1, **changes: Any) -> PrivacyEvent:
    return PrivacyEvent(
        noise_multiplier=sigma, sensitivity=1.0, sampling_rate=rate, steps=steps, **changes
    )


def value(*events: PrivacyEvent, delta: float = DELTA, **choices: Any) -> float | None:
    return epsilon(events, delta, **choices).epsilon


# ---------------------------------------------------------------------------- events


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
        ({"noise_multiplier": math.nan}, "noise_multiplier"),
        ({"noise_multiplier": -math.inf}, "noise_multiplier"),
        ({"sensitivity": -1.0}, "sensitivity"),
        ({"sensitivity": math.nan}, "sensitivity"),
        ({"sampling_rate": math.inf}, "sampling_rate"),
        ({"sampling_rate": 1.1}, "sampling_rate"),
        ({"sampling_rate": -0.1}, "sampling_rate"),
        ({"sampling_rate": math.nan}, "sampling_rate"),
        ({"sampling": "shuffle"}, "sampling"),
        ({"steps": -1}, "steps"),
        ({"steps": 1.5}, "steps"),
        ({"steps": math.inf}, "steps"),
        ({"steps": math.nan}, "steps"),
    ],
)
def test_events_refuse_what_has_no_meaning(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(LeakbenchError, match=named):
        PrivacyEvent(**{"noise_multiplier": 1.0, "sensitivity": 1.0, **changes})


def test_groups_merge_equal_steps_and_drop_free_ones() -> None:
    events = [
        event(2.0, 0.1, 3),
        event(1.0),
        event(2.0, 0.1, 4),
        event(2.0, 0.1, 4, sampling="none"),
        event(math.inf, 0.1),
        event(2.0, 0.0, 9),
        event(2.0, 0.2, 0),
    ]
    groups = grouped(events)
    assert [(g.noise_multiplier, g.rate, g.sampling, g.steps) for g in groups] == [
        (1.0, 1.0, "none", 1),
        (2.0, 0.1, "poisson", 7),
        (2.0, 1.0, "none", 4),
    ]
    assert groups == grouped(reversed(events))
    assert groups[1].separation("add_remove") == 0.5
    assert groups[1].separation("replace_one") == 1.0
    (drawn,) = grouped([event(2.0, 0.1, sampling="fixed_size")])
    assert drawn.separation("add_remove") == drawn.separation("replace_one") == 1.0


# ---------------------------------------------------------------------------- edge cases


@pytest.mark.parametrize(
    ("preset", "accountant"),
    [
        (preset, accountant)
        for preset, accountant in itertools.product(PRESETS, ACCOUNTANTS)
        # The tight one has no conventions: but for the steps, it is the same in all of them.
        if accountant != "pld" or preset in ("strict", "paper:bcalc")
    ],
)
def test_edge_cases_have_an_answer(preset: str, accountant: str) -> None:
    def found(*events: PrivacyEvent) -> float | None:
        result = value(*events, accountant=accountant, preset=preset)
        assert result is None or result >= 0  # no nan
        return result

    assert found() == 0
    assert found(event(2.0, 0.3, steps=0)) == 0
    assert found(event(2.0, rate=0.0, steps=100)) == 0
    assert found(event(math.inf, 0.3, steps=100)) == 0
    assert found(event(0.0, 0.3)) == math.inf
    assert found(event(0.0, 0.3), event(5.0, 0.3)) == math.inf
    assert found(event(1e-200, 0.3)) in (math.inf, None)
    assert found(event(0.0, rate=0.0)) == 0
    everyone = found(event(2.0))
    assert everyone is not None and 0 < everyone < math.inf
    tiny = found(event(1e-3, 0.3, steps=5))
    assert tiny is None or tiny > 1e4
    many = found(event(6.0, 0.001, steps=1_000_000))
    assert many is None or 0 < many < math.inf


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, 2.0, math.nan])
def test_delta_must_be_between_0_and_1(delta: float) -> None:
    for accountant in ACCOUNTANTS:
        with pytest.raises(LeakbenchError, match="delta"):
            value(event(1.0), delta=delta, accountant=accountant)
    with pytest.raises(LeakbenchError, match="delta"):
        account(noise_multiplier=1.0, sampling_rate=0.1, steps=1, delta=delta)


def test_names_are_checked() -> None:
    with pytest.raises(LeakbenchError, match="moments"):
        value(event(1.0), accountant="moment")
    with pytest.raises(LeakbenchError, match="strict"):
        value(event(1.0), preset="exact")
    with pytest.raises(LeakbenchError, match="replace_one"):
        value(event(1.0), preset="paper:bcalc", relation="add_remove")


# ---------------------------------------------------------------------------- properties

SIGMAS = st.floats(1, 20)
RATES = st.floats(1e-3, 1)
COUNTS = st.integers(1, 2000)
KINDS: st.SearchStrategy[Sampling] = st.sampled_from(["poisson", "fixed_size", "none"])
SETTINGS = settings(max_examples=25, deadline=None)


@given(st.data())
@settings(max_examples=8, deadline=None)
@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_epsilon_falls_with_noise_and_rises_with_rate_and_steps(
    accountant: str, data: st.DataObject
) -> None:
    relation, kind = data.draw(st.sampled_from(RELATIONS)), data.draw(KINDS)
    sigma, more = sorted((data.draw(SIGMAS), data.draw(SIGMAS)))
    rarely, rate = sorted((data.draw(RATES), data.draw(RATES)))
    few, steps = sorted((data.draw(COUNTS), data.draw(COUNTS)))

    def found(sigma: float, rate: float, steps: int) -> float:
        one = event(sigma, rate, steps, sampling=kind)
        result = value(one, accountant=accountant, relation=relation)
        return math.nan if result is None else result

    worst = found(sigma, rate, steps)
    for better in (found(more, rate, steps), found(sigma, rarely, steps), found(sigma, rate, few)):
        if not math.isnan(worst + better):
            assert better <= worst * (1 + 1e-4) + 1e-5


@given(st.lists(st.tuples(SIGMAS, RATES, st.integers(1, 5)), min_size=2, max_size=4), st.data())
@SETTINGS
def test_order_of_composition_does_not_matter(
    steps: list[tuple[float, float, int]], data: st.DataObject
) -> None:
    events = [event(*step) for step in steps]
    mixed = data.draw(st.permutations(events))
    split = [
        part for one in mixed for part in itertools.repeat(first_steps([one], 1)[0], one.steps)
    ]
    for accountant in FAST:
        expected = value(*events, accountant=accountant)
        assert value(*mixed, accountant=accountant) == expected
        assert value(*split, accountant=accountant) == expected


def test_order_of_composition_does_not_matter_to_pld() -> None:
    events = [event(2.0, 0.1, 3), event(5.0), event(3.0, 0.2, 10)]
    expected = value(*events)
    for mixed in itertools.permutations(events):
        assert value(*mixed) == expected


@given(SIGMAS, RATES, st.integers(1, 300))
@settings(max_examples=6, deadline=None)
def test_the_tight_accountant_is_below_every_other_guarantee(
    sigma: float, rate: float, steps: int
) -> None:
    for relation in RELATIONS:
        run = event(sigma, rate, steps)
        tight = value(run, relation=relation)
        assert tight is not None
        for accountant in FAST:
            other = value(run, accountant=accountant, relation=relation)
            assert other is None or tight <= other * (1 + 1e-3) + 1e-4, accountant


@given(st.floats(3, 20), st.floats(1e-3, 0.5), st.integers(1, 300), st.integers(1, 9))
@settings(max_examples=8, deadline=None)
def test_strict_is_at_least_the_mechanism_of_one_layer(
    sigma: float, rate: float, steps: int, tensors: int
) -> None:
    layered = account(
        noise_multiplier=sigma,
        sampling_rate=rate,
        steps=steps,
        delta=DELTA,
        tensors=tensors,
        accountants=["pld"],
    )[0]
    single = value(event(sigma, rate, steps))
    assert layered.epsilon is not None and single is not None
    assert layered.epsilon >= single * (1 - 1e-6)


# ---------------------------------------------------------------------------- presets


def test_strict_composes_delta() -> None:
    """Every step may spend only so much that all together spend delta."""
    run = event(6.0, 0.01, 10_000)
    each = DELTA / (0.01 * 10_000)
    step = math.log1p(0.01 * math.expm1(get_epsilon_gaussian(6.0, each)))
    assert value(run, accountant="base") == pytest.approx(10_000 * step, rel=1e-6)
    half = composition.step_losses([run], each / 2)
    expected = composition.advanced(half, DELTA / 2)
    assert value(run, accountant="advanced") == pytest.approx(expected)
    # The papers leave the steps' deltas out.
    assert value(run, accountant="base", preset="paper:cloak") == pytest.approx(123.46, abs=0.01)


def test_strict_has_no_central_limit_and_no_amplified_zcdp() -> None:
    run = event(6.0, 0.01, 10_000)
    result = epsilon((run,), DELTA, accountant="gdp")
    assert result.epsilon is None and "central limit" in result.reason
    everyone = event(6.0, steps=10_000)
    assert value(run, accountant="zcdp") == value(everyone, accountant="zcdp")


def test_reasons_where_an_accountant_has_no_bound() -> None:
    for run, relation, preset, accountant, reason in (
        (event(1.0, 0.1), "replace_one", "strict", "moments", "add/remove"),
        (event(1.0, 0.1, sampling="fixed_size"), "add_remove", "strict", "moments", "Poisson"),
        (event(1.0, 0.1), "replace_one", "paper:bcalc", "gdp", "Poisson"),
    ):
        result = epsilon((run,), DELTA, accountant=accountant, preset=preset, relation=relation)  # type: ignore[arg-type]
        assert result.epsilon is None and reason in result.reason
    result = epsilon((event(1.0, 0.1),), DELTA, accountant="moments", group_size=3)
    assert result.epsilon is None and "pld" in result.reason


def test_moments_of_unsampled_steps_double_for_replacing() -> None:
    run = event(4.0, steps=3)
    assert value(run, accountant="moments", relation="replace_one") == pytest.approx(
        rdp.epsilon([event(2.0, steps=3)], DELTA)
    )


def test_every_result_says_what_it_is() -> None:
    for preset in PRESETS:
        for result in account(
            noise_multiplier=6.0, sampling_rate=0.01, steps=100, delta=DELTA, preset=preset
        ):
            assert result.accountant in ACCOUNTANTS and result.preset == preset
            assert result.relation in PRESETS[preset].relations and result.delta == DELTA
            assert result.assumptions
            assert result.epsilon is not None or result.reason
            if not PRESETS[preset].guarantee:
                assert any("not a guarantee" in text for text in result.assumptions)


def test_results_as_json() -> None:
    infinite = epsilon((event(0.0),), DELTA)
    assert infinite.epsilon == math.inf
    for result in (infinite, epsilon((event(1.0),), DELTA), epsilon((event(1e-160),), DELTA)):
        row = json.loads(json.dumps(result.as_dict(), allow_nan=False))
        assert row["accountant"] == "pld" and row["delta"] == DELTA
        assert (row["epsilon"] is None) == (result.epsilon == math.inf) == bool(row["reason"])


# ---------------------------------------------------------------------------- observers


def of(
    results: tuple[Result, ...], observer: str, relation: Relation, looks: int | None
) -> float | None:
    (found,) = (
        result.epsilon
        for result in results
        if (result.observer, result.relation, result.observations) == (observer, relation, looks)
    )
    return found


def test_epsilon_at_the_tap() -> None:
    """sigma = 6, three layers at C each: one observation, and the hundred of a whole training."""
    results = account(
        noise_multiplier=6.0,
        sampling_rate=0.01,
        steps=10_000,
        delta=DELTA,
        accountants=["pld"],
        tensors=3,
        convention="per_example",
        batch_size=600,
    )
    expected: list[tuple[Relation, int, str]] = [
        ("add_remove", 1, "1.08"),
        ("add_remove", 100, "15.87"),
        ("replace_one", 1, "2.34"),
        ("replace_one", 100, "40.54"),
    ]
    for relation, looks, printed in expected:
        found = of(results, "type2", relation, looks)
        assert f"{found:.2f}" == printed
        mu = math.sqrt(3 * looks) / 6 * (2 if relation == "replace_one" else 1)
        assert found == pytest.approx(get_epsilon_gaussian(1 / mu, DELTA), rel=1e-9)
    # The mean of 600 noisy gradients is what the server and the model's holder see.
    assert f"{of(results, 'model', 'add_remove', None):.3f}" == "0.033"
    assert of(results, "server", "add_remove", 1) == pytest.approx(
        get_epsilon_gaussian(6 * math.sqrt(600 / 3), DELTA), rel=1e-9
    )


@pytest.mark.parametrize(
    ("convention", "batch_size", "multiplier"),
    [("sum", None, 6.0), ("mean", 50, 300.0), ("per_example", 25, 30.0)],
)
def test_the_noise_convention_counts(
    convention: Any, batch_size: int | None, multiplier: float
) -> None:
    results = account(
        noise_multiplier=6.0,
        sampling_rate=0.01,
        steps=500,
        delta=DELTA,
        accountants=["moments"],
        convention=convention,
        batch_size=batch_size,
    )
    found = of(results, "model", "add_remove", None)
    assert found == pytest.approx(rdp.epsilon([event(multiplier, 0.01, 500)], DELTA))
    tap = [result for result in results if result.observer == "type2"]
    if convention == "per_example":
        assert {result.epsilon is None for result in tap} == {False}
    else:
        assert {(r.epsilon, r.level) for r in tap} == {(None, "none")}
        assert all("clipping only" in result.reason for result in tap)


def test_a_batch_of_fixed_size_replaces_whatever_the_relation() -> None:
    results = account(
        noise_multiplier=6.0,
        sampling_rate=0.01,
        steps=500,
        delta=DELTA,
        accountants=["pld"],
        sampling="fixed_size",
    )
    for observer, looks in (("model", None), ("server", 1), ("server", 5)):
        one, other = (of(results, observer, relation, looks) for relation in RELATIONS)
        assert one == other
    assert of(results, "server", "add_remove", 1) == pytest.approx(
        get_epsilon_gaussian(3.0, DELTA), rel=1e-9
    )


def test_accounting_refuses_what_it_cannot_place() -> None:
    run: dict[str, Any] = {
        "noise_multiplier": 6.0, "sampling_rate": 0.01, "steps": 5, "delta": DELTA,
    }  # fmt: skip
    for wrong, named in (
        ({"convention": "mean"}, "batch size"),
        ({"convention": "per_example", "batch_size": 0}, "batch size"),
        ({"convention": "average"}, "convention"),
        ({"tensors": 0}, "tensors"),
        ({"observations": 0}, "observations"),
        ({"accountants": ["ma"]}, "accountant"),
        ({"preset": "paper"}, "preset"),
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
        ({"sampling_rate": 2.0}, "sampling_rate"),
        ({"steps": -1}, "steps"),
        ({"group_size": 0}, "group_size"),
        ({"noise_multiplier": math.nan}, "noise_multiplier"),
        ({"sampling_rate": math.nan}, "sampling_rate"),
        ({"steps": math.inf}, "steps"),
        ({"delta": math.nan}, "delta"),
    ):
        with pytest.raises(LeakbenchError, match=named) as refused:
            account(**{**run, **wrong})
        assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1, 0, 1.5])
def test_counts_must_be_whole_and_positive(bad: Any) -> None:
    run: dict[str, Any] = {
        "noise_multiplier": 6.0, "sampling_rate": 0.01, "steps": 5, "delta": DELTA,
    }  # fmt: skip
    for name in ("tensors", "observations", "group_size"):
        for preset in ("strict", "paper:tifs"):
            with pytest.raises(LeakbenchError, match=f"{name} must be a whole number >= 1"):
                account(**run, preset=preset, **{name: bad})
    for accountant in ACCOUNTANTS:
        with pytest.raises(LeakbenchError, match="group_size"):
            epsilon((event(1.0, 0.1),), DELTA, accountant=accountant, group_size=bad)
    if bad != 1.5:
        with pytest.raises(LeakbenchError, match="batch size"):
            account(**run, convention="mean", batch_size=bad)


def test_a_clients_examples_together() -> None:
    results = account(
        noise_multiplier=6.0,
        sampling_rate=0.01,
        steps=100,
        delta=DELTA,
        accountants=["pld"],
        group_size=3,
    )
    (client,) = (r for r in results if r.level == "client" and r.relation == "add_remove")
    alone = of(tuple(r for r in results if r.level == "instance"), "model", "add_remove", None)
    assert client.epsilon is not None and alone is not None and client.epsilon > 3 * alone
    assert any("joint DP" in text for text in client.assumptions)


def test_a_papers_preset_counts_as_the_paper() -> None:
    """TIFS charges C for any number of layers; the batch-clipping paper does not."""
    run: dict[str, Any] = {
        "noise_multiplier": 6.0, "sampling_rate": 0.01, "steps": 4999, "delta": DELTA,
    }  # fmt: skip
    for tensors in (1, 3):
        (result,) = account(**run, preset="paper:tifs", accountants=["zcdp"], tensors=tensors)
        assert f"{result.epsilon:.3f}" == "0.814"
    (result,) = account(
        noise_multiplier=1.5,
        sampling_rate=64 / 54_000,
        steps=42_188,
        delta=DELTA,
        preset="paper:bcalc",
        accountants=["gdp"],
        tensors=8,
    )
    assert result.epsilon == pytest.approx(gdp.epsilon_of_mu(1.9909, DELTA), abs=1e-3)


# ---------------------------------------------------------------------------- inverse


@pytest.mark.parametrize("accountant", ["base", "zcdp", "moments"])
@pytest.mark.parametrize("target", [0.5, 3.0, 40.0])
def test_noise_for_a_budget(accountant: str, target: float) -> None:
    noise = noise_multiplier(target, DELTA, sampling_rate=0.02, steps=300, accountant=accountant)
    spent = value(event(noise, 0.02, 300), accountant=accountant)
    over = value(event(noise * 0.999, 0.02, 300), accountant=accountant)
    assert spent is not None and over is not None and spent <= target < over


def test_noise_for_a_budget_of_the_tight_accountant() -> None:
    noise = noise_multiplier(1.116, DELTA, sampling_rate=0.01, steps=10_000, tolerance=1e-3)
    assert noise == pytest.approx(6 / math.sqrt(3), rel=2e-3)
    exact = noise_multiplier(
        2.0, DELTA, sampling_rate=1.0, steps=9, relation="replace_one", sampling="none"
    )
    assert gdp.epsilon_of_mu(6 / exact, DELTA) == pytest.approx(2.0, rel=2e-5)


def test_noise_for_extreme_budgets() -> None:
    assert noise_multiplier(1.0, DELTA, sampling_rate=0.0, steps=10) == 0
    assert noise_multiplier(1.0, DELTA, sampling_rate=0.1, steps=0) == 0
    for bad in (0.0, -1.0, math.nan):
        with pytest.raises(LeakbenchError, match="target"):
            noise_multiplier(bad, DELTA, sampling_rate=0.1, steps=1)
    for bad in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(LeakbenchError, match="tolerance"):
            noise_multiplier(1.0, DELTA, sampling_rate=0.1, steps=1, tolerance=bad)
        if bad:
            for name in ("sampling_rate", "steps"):
                run: dict[str, Any] = {"sampling_rate": 0.1, "steps": 1, name: bad}
                with pytest.raises(LeakbenchError, match=name):
                    noise_multiplier(1.0, DELTA, **run)
    with pytest.raises(LeakbenchError, match="central limit"):
        noise_multiplier(1.0, DELTA, sampling_rate=0.1, steps=1, accountant="gdp")


@pytest.mark.parametrize("accountant", ["base", "advanced", "optimal", "zcdp", "moments"])
def test_steps_within_a_budget(accountant: str) -> None:
    decaying = [event(8.0 - step / 100, 0.02, 2) for step in range(200)]
    whole = value(*decaying, accountant=accountant)
    assert whole is not None
    count = steps_within(0.6 * whole, decaying, DELTA, accountant=accountant)
    assert 0 < count < 400
    kept, exceeded = (
        value(*first_steps(decaying, steps), accountant=accountant) for steps in (count, count + 1)
    )
    assert kept is not None and exceeded is not None and kept <= 0.6 * whole < exceeded
    assert steps_within(whole, decaying, DELTA, accountant=accountant) == 400
    assert steps_within(0.0, decaying, DELTA, accountant=accountant) == 0
    assert steps_within(1.0, [], DELTA, accountant=accountant) == 0


def test_first_steps() -> None:
    events = [event(1.0, steps=2), event(2.0, steps=3)]
    assert first_steps(events, 0) == ()
    assert first_steps(events, 3) == (events[0], event(2.0, steps=1))
    assert first_steps(events, 9) == tuple(events)
    with pytest.raises(LeakbenchError, match="budget"):
        steps_within(-1.0, events, DELTA)
    with pytest.raises(LeakbenchError, match="budget"):
        steps_within(math.nan, events, DELTA)


def test_bisection() -> None:
    assert least(lambda x: x * x >= 2, 0.0, 2.0, 1e-15) == pytest.approx(math.sqrt(2), rel=1e-15)
    assert least(lambda x: x >= 0, 0.0, 1.0, 1e-9) == 0
    assert least_positive(lambda x: x >= 1e-30, 1e-12) == pytest.approx(1e-30)
    assert least_positive(lambda x: x >= 1e30, 1e-12) == pytest.approx(1e30)
    assert least_positive(lambda x: False, 1e-12) == math.inf
    assert least_positive(lambda x: True, 1e-12) == 0


def test_accounting_loads_little() -> None:
    code = """
import sys
from leakbench.privacy import inverse, tables
from leakbench.privacy.observers import account
account(noise_multiplier=6, sampling_rate=0.01, steps=10, delta=1e-5, tensors=3)
assert not [m for m in ("torch", "dp_accounting", "scipy.stats", "scipy.optimize")
            if m in sys.modules]
"""
    subprocess.run([sys.executable, "-c", code], check=True)
