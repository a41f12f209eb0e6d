"""Decays against values worked out by hand, the papers' formulas in plain loops, and properties."""

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakbench.errors import LeakbenchError
from leakbench.schedules import Decay, decayed, ending

KINDS: tuple[Decay, ...] = (
    "constant", "linear", "staircase", "exponential", "cosine", "triangular",
)  # fmt: skip
MONOTONE: tuple[Decay, ...] = ("constant", "linear", "staircase", "exponential")

VALUES = st.floats(0.01, 100)
TOTALS = st.integers(2, 300)


@pytest.mark.parametrize(
    ("kind", "middle", "end"),
    [
        ("constant", 16.0, 16.0),
        ("linear", 10.0, 4.0),
        ("staircase", 10.0, 4.0),
        ("exponential", 8.0, 4.0),
        ("cosine", 16.0, 4.0),  # two of the four cycles are over: it starts again
        ("triangular", 10.0, 4.0),  # the third peak of four, half of the way down
    ],
)
def test_start_middle_and_end_by_hand(kind: Decay, middle: float, end: float) -> None:
    found = [decayed(kind, 16.0, 4.0, round=t, total=40) for t in (0, 20, 40)]
    assert found == pytest.approx([16.0, middle, end], rel=1e-12)
    assert found[0] == 16.0 and found[2] == end  # exactly


@pytest.mark.parametrize(
    ("kind", "round_", "expected"),
    [
        ("linear", 10, 13.0),
        ("staircase", 3, 16.0),  # steps of four rounds
        ("staircase", 4, 14.8),
        ("staircase", 7, 14.8),
        ("staircase", 39, 5.2),
        ("exponential", 10, 16 / math.sqrt(2)),
        ("cosine", 5, 10.0),  # half a cycle of ten rounds
        ("cosine", 9, 4 + 6 * (1 - math.cos(math.pi / 10))),
        ("cosine", 10, 16.0),
        ("triangular", 5, 4.0),  # the valley
        ("triangular", 8, 4 + 12 * 0.6),
        ("triangular", 10, 4 + 12 * 0.75),  # the second peak
        ("triangular", 32, 4 + 12 * 0.25 * 0.6),
    ],
)
def test_places_between_by_hand(kind: Decay, round_: int, expected: float) -> None:
    found = decayed(kind, 16.0, 4.0, round=round_, total=40)
    assert found == pytest.approx(expected, rel=1e-12)


def test_noise_scales_of_the_authors_training_code() -> None:
    """15 to 4.85 in 100 rounds: 10.15 lost, or ten times 1.015; e^1.58 at the end."""
    for t in range(100):
        found = {k: decayed(k, 15.0, 4.85, round=t, total=100) for k in MONOTONE}
        assert found["linear"] == pytest.approx(15 - 10.15 * t / 100, rel=1e-12)
        assert found["staircase"] == pytest.approx(15 - 1.015 * (t // 10), rel=1e-12)
        # Its two constants are rounded: 15.03 to 4.855.
        assert found["exponential"] == pytest.approx(
            math.exp(1.13 * (100 - t) / 100 + 1.58), rel=3e-3
        )


@pytest.mark.parametrize(("total", "cycles"), [(100, 4), (100, 3), (7, 2), (10, 1)])
def test_cosine_down_to_nothing_is_the_formula_of_tpds(total: int, cycles: int) -> None:
    """sigma_0 / 2 (cos(pi mod(t - 1, ceil(T / gamma)) / ceil(T / gamma)) + 1), t from 1 to T."""
    period = math.ceil(total / cycles)
    for t in range(1, total + 1):
        expected = 15 / 2 * (math.cos(math.pi * ((t - 1) % period) / period) + 1)
        found = decayed("cosine", 15.0, 0.0, round=t - 1, total=total, cycles=cycles)
        assert found == pytest.approx(expected, rel=1e-12)


def test_triangles_fall_and_rise_in_turns_from_falling_peaks() -> None:
    """TIFS: slopes of both signs and one size within a triangle; 4 rounds down, 4 up."""
    values = [decayed("triangular", 4.0, 2.0, round=t, total=24, cycles=3) for t in range(24)]
    for triangle, peak in enumerate((4.0, 2 + 2 * 2 / 3, 2 + 2 / 3)):
        part = values[8 * triangle : 8 * triangle + 8]
        slope = (peak - 2) / 4
        for place, value in enumerate(part):
            away = slope * (place if place <= 4 else 8 - place)
            assert value == pytest.approx(peak - away, rel=1e-12)


@given(st.sampled_from(KINDS), VALUES, VALUES, st.integers(0, 400), TOTALS)
def test_values_stay_between_the_ends(
    kind: Decay, first: float, last: float, round_: int, total: int
) -> None:
    found = decayed(kind, first, last, round=round_, total=total)
    slack = 1e-12 * max(first, last)
    assert min(first, last) - slack <= found <= max(first, last) + slack
    assert decayed(kind, first, last, round=0, total=total) == first
    if kind != "constant":
        assert decayed(kind, first, last, round=total, total=total) == last


@given(st.sampled_from(MONOTONE), VALUES, VALUES, TOTALS)
def test_what_is_not_cyclic_never_turns_back(
    kind: Decay, one: float, other: float, total: int
) -> None:
    first, last = max(one, other), min(one, other)
    values = [decayed(kind, first, last, round=t, total=total) for t in range(total + 1)]
    assert all(b <= a * (1 + 1e-12) for a, b in itertools.pairwise(values))


@given(st.sampled_from(KINDS), VALUES, VALUES, st.integers(0, 50), st.integers(-1, 1))
def test_without_a_plan_the_first_value_stays(
    kind: Decay, first: float, last: float, round_: int, total: int
) -> None:
    assert decayed(kind, first, last, round=round_, total=total) == first


@given(st.sampled_from(KINDS), st.floats(0, 100), st.integers(0, 50), TOTALS)
def test_equal_ends_are_constant(kind: Decay, value: float, round_: int, total: int) -> None:
    assert decayed(kind, value, value, round=round_, total=total) == value


@pytest.mark.parametrize(
    ("kind", "last", "more", "text"),
    [
        ("cubic", 1.0, {}, "unknown decay 'cubic'"),
        ("exponential", 0.0, {}, "both ends above 0, got 2.0 and 0.0"),
        ("exponential", math.nan, {}, "both ends above 0"),
        ("staircase", 1.0, {"steps": 0}, "steps must be at least 1"),
        ("cosine", 1.0, {"cycles": 0}, "cycles must be at least 1"),
    ],
)
def test_what_is_no_decay_is_refused(
    kind: Decay, last: float, more: dict[str, int], text: str
) -> None:
    with pytest.raises(LeakbenchError, match=text):
        decayed(kind, 2.0, last, round=1, total=4, **more)


# ---------------------------------------------------------------------------- rates


@pytest.mark.parametrize(
    ("kind", "formula"),
    [
        ("linear", lambda t: 6 * (1 - 0.004 * t)),
        ("staircase", lambda t: 6 * (1 - 0.004 * (t // 20))),  # Gamma = T / n = 100 / 5
        ("exponential", lambda t: 6 * math.exp(-0.004 * t)),
    ],
)
def test_the_end_that_a_rate_leads_to_gives_the_papers_formula(kind: Decay, formula: Any) -> None:
    end = ending(kind, 6.0, 0.004, total=100, steps=5)
    found = [decayed(kind, 6.0, end, round=t, total=100, steps=5) for t in range(101)]
    assert found == pytest.approx([formula(t) for t in range(101)], rel=1e-12)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("linear", "decay 'linear' over 100 rounds: a rate of 0.02 leads below 0 before the end; "
         "allowed: up to 0.01"),
        ("triangular", "has no rate; allowed with a rate: linear, staircase, exponential"),
        ("cosine", "has no rate"),
        ("constant", "has no rate"),
    ],
)  # fmt: skip
def test_a_rate_that_cannot_be_is_refused(kind: Decay, text: str) -> None:
    with pytest.raises(LeakbenchError, match=text):
        ending(kind, 6.0, 0.02, total=100)
