"""What a server and an eavesdropper are promised, look by look, against the closed form."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from leakbench.contracts import Guarantee
from leakbench.privacy.account import epsilon
from leakbench.privacy.events import PrivacyEvent, Sampling
from leakbench.privacy.observers import NoiseConvention, account, gain
from leakbench.spec import ACCOUNTANTS

DELTA = 1e-5
SIGMA, BATCH, RATE, STEPS = 3.0, 16, 0.01, 250  # q T is 2.5: an example takes part twice


@pytest.mark.parametrize("sampling", ["poisson", "fixed_size"])
@pytest.mark.parametrize(
    ("convention", "gain"), [("sum", 1.0), ("mean", 16.0), ("per_example", 4.0)]
)
@pytest.mark.parametrize(("tensors", "observations"), [(1, None), (2, 1), (4, 9)])
def test_every_look_is_a_gaussian_release(
    gaussian_epsilon: Callable[[float], float],
    tensors: int,
    observations: int | None,
    convention: NoiseConvention,
    gain: float,
    sampling: Sampling,
) -> None:
    results = account(
        noise_multiplier=SIGMA, sampling_rate=RATE, steps=STEPS, delta=DELTA, accountants=("gdp",),
        tensors=tensors, unit="layer", convention=convention, batch_size=BATCH, sampling=sampling,
        observations=observations,
    )  # fmt: skip
    found = {(r.observer, r.relation, r.observations): r.epsilon for r in results}
    looks = 2 if observations is None else observations
    release = math.sqrt(tensors) / SIGMA
    expected: dict[tuple[str, str, int | None], float | None] = {
        ("model", relation, None): None for relation in ("add_remove", "replace_one")
    }
    for k in {1, looks}:
        root = math.sqrt(k)
        # A batch of fixed size takes another example in for the one that leaves it.
        once = 2 if sampling == "fixed_size" else 1
        expected["server", "add_remove", k] = gaussian_epsilon(once * root * release / gain)
        expected["server", "replace_one", k] = gaussian_epsilon(2 * root * release / gain)
        if convention == "per_example":
            expected["type2", "add_remove", k] = gaussian_epsilon(root * release)
            expected["type2", "replace_one", k] = gaussian_epsilon(2 * root * release)
    if convention != "per_example":
        for relation in ("add_remove", "replace_one"):
            expected["type2", relation, None] = None
    assert found.keys() == expected.keys()
    for key, number in expected.items():
        assert found[key] == (number if number is None else pytest.approx(number, rel=1e-9)), key
    for result in results:
        clipped = result.assumptions[0]
        if tensors == 1:
            assert clipped == "sensitivity C: the gradient is clipped as a whole"
        else:
            told = f"{tensors} layers clipped to C apart"
            assert clipped == f"sensitivity sqrt({tensors}) C: {told}"
        if result.observer != "type2":
            at_release = f"{gain * SIGMA / math.sqrt(tensors):.6g}"
            assert f"noise multiplier {at_release} at the release" in result.assumptions[1]


@pytest.mark.parametrize(("steps", "looks"), [(1, 1), (49, 1), (149, 1), (151, 2), (1000, 10)])
def test_looks_are_as_many_as_an_example_takes_part_in(steps: int, looks: int) -> None:
    """q T, to the next whole number, and not less than one."""
    results = account(
        noise_multiplier=SIGMA, sampling_rate=RATE, steps=steps, delta=DELTA, accountants=("gdp",)
    )
    assert {r.observations for r in results if r.observer == "server"} == {1, looks}


# ---------------------------------------------------------------------------- what is said


def said(rate: float, sampling: Sampling, group_size: int = 1) -> dict[tuple[str, str], str]:
    """All sentences about the final model by (level, relation)."""
    results = account(
        noise_multiplier=20.0, sampling_rate=rate, steps=10, delta=DELTA, accountants=("pld",),
        sampling=sampling, group_size=group_size,
    )  # fmt: skip
    return {
        (r.level, r.relation): "; ".join(r.assumptions) for r in results if r.observer == "model"
    }


@pytest.mark.parametrize(
    ("rate", "sampling", "sentence"),
    [
        (0.1, "poisson", "Poisson sampling, and the observer does not see who takes part"),
        (0.1, "fixed_size", "a fixed number is drawn without replacement"),
        (0.1, "none", "no sampling"),
        (1.0, "poisson", "no sampling"),
        (1.0, "fixed_size", "no sampling"),
    ],
)
def test_the_sampling_is_said(rate: float, sampling: Sampling, sentence: str) -> None:
    replaced = "bound for replacing one example in batches drawn without replacement"
    for told in said(rate, sampling).values():
        assert sentence in told
        assert ("no sampling" in told) == (sentence == "no sampling")
        assert (replaced in told) == (sampling == "fixed_size" and rate < 1)
        assert "examples of a client" not in told and "in every batch" not in told


def test_a_group_is_said_where_it_counts() -> None:
    told = said(0.1, "poisson", group_size=3)
    group, always = (
        "for all 3 examples of a client together",
        "as if all of them were in every batch",
    )
    assert {key: (group in text, always in text) for key, text in told.items()} == {
        ("instance", "add_remove"): (False, False),
        ("instance", "replace_one"): (False, False),
        ("client", "add_remove"): (True, False),
        ("client", "replace_one"): (True, True),
    }
    assert {key for key, text in told.items() if "billboard lemma" in text} == {
        ("client", "add_remove"), ("client", "replace_one"),
    }  # fmt: skip


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_groups_are_for_one_accountant(
    gaussian_epsilon: Callable[[float], float], accountant: str
) -> None:
    """9 steps of sigma 60, everyone takes part: 4 examples together move 4 C, mu is 1 / 5."""
    event = PrivacyEvent(noise_multiplier=60.0, sensitivity=1.0, sampling="none", steps=9)
    found = epsilon((event,), DELTA, accountant=accountant, group_size=4)
    if accountant == "pld":
        assert found.epsilon == pytest.approx(gaussian_epsilon(0.2), rel=1e-9)
    else:
        assert found.epsilon is None
        assert found.reason == "groups of examples are accounted by 'pld' only"


@pytest.mark.parametrize(
    "changes", [{"level": "none"}, {"sensitivity": None}, {"noise_std": None}], ids=str
)
def test_half_a_promise_releases_nothing(changes: dict[str, Any]) -> None:
    promise = Guarantee(level="instance", sensitivity=2.0, noise_std=3.0)
    assert promise.mu is not None
    assert replace(promise, **changes).mu is None


@pytest.mark.parametrize("convention", ["sum", "mean", "per_example"])
def test_noise_on_a_batch_of_one_is_noise_on_its_sum(convention: NoiseConvention) -> None:
    assert gain(convention, 1) == 1.0
