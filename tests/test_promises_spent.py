"""What promises cost: from a defense's word to releases, epsilon of a training, and ceilings."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from dp_accounting import get_epsilon_gaussian
from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant

from leakbench import planning
from leakbench.contracts import Defense, Guarantee, Observer, Setting, Weights
from leakbench.defenses.dp_baseline import DPBaseline
from leakbench.defenses.none import NoDefense
from leakbench.described import PlannedCell
from leakbench.privacy.account import epsilon
from leakbench.privacy.events import PrivacyEvent, Relation
from leakbench.suite import resolve
from leakbench.utility import privacy_of

DELTA = 1e-5
ONE = {"w": torch.zeros(3)}
THREE = {name: torch.zeros(2) for name in ("conv", "dense", "bias")}
RELATIONS: tuple[Relation, ...] = ("add_remove", "replace_one")


@dataclass(frozen=True, slots=True, kw_only=True)
class Promising(Defense):
    """A defense that gives its word, and the same to everyone."""

    promise: Guarantee

    def guarantee(self, observer: Observer, weights: Weights, setting: Setting) -> Guarantee:
        return self.promise


# ------------------------------------------------------------------------------ releases


@pytest.mark.parametrize(
    ("promise", "multiplier", "sensitivity"),
    [
        (Guarantee(level="instance", sensitivity=2.0, noise_std=3.0), 1.5, 2.0),
        (Guarantee(level="client", sensitivity=2.0, noise_std=3.0), 1.5, 2.0),
        (
            Guarantee(level="instance", relation="replace_one", sensitivity=2.0, noise_std=3.0),
            3.0,
            1.0,
        ),
        (
            Guarantee(level="client", relation="replace_one", sensitivity=2.0, noise_std=3.0),
            3.0,
            1.0,
        ),
        (Guarantee(level="instance", sensitivity=0.0, noise_std=1.0), math.inf, 0.0),
        (Guarantee(level="instance", sensitivity=0.0, noise_std=0.0), math.inf, 0.0),
        (Guarantee(level="instance", sensitivity=2.0, noise_std=0.0), 0.0, 2.0),
    ],
)
def test_a_promise_is_released_in_every_step(
    promise: Guarantee, multiplier: float, sensitivity: float
) -> None:
    """Of 20 examples 4 a step, 6 steps; a client is there in every round."""
    setting = Setting(batch_size=4, examples=20, rounds=6, sampling="poisson")
    assert Promising(promise=promise).events(ONE, setting) == (
        PrivacyEvent(
            noise_multiplier=multiplier,
            sensitivity=sensitivity,
            sampling_rate=0.2 if promise.level == "instance" else 1.0,
            sampling="poisson",
            steps=6,
        ),
    )


@pytest.mark.parametrize("level", ["instance", "client"])
@pytest.mark.parametrize("noise_std", [0.0, 1.0])
def test_what_depends_on_nobody_costs_nothing(noise_std: float, level: Any) -> None:
    promise = Guarantee(level=level, sensitivity=0.0, noise_std=noise_std)
    assert promise.mu == 0
    said = privacy_of(Promising(promise=promise), ONE, Setting(batch_size=4), DELTA)
    assert (said["epsilon"], said["level"], said["events"]) == (0.0, level, [])
    json.dumps(said, allow_nan=False)


# ------------------------------------------------------------------------------ a training


def test_a_training_is_accounted_by_its_defenses_word() -> None:
    """DP-SGD: M = 3 tensors at sigma = 6 are one release at 6 / sqrt(3), at a rate of 1/100."""
    setting = Setting(batch_size=50, examples=5000, rounds=200, sampling="poisson")
    said = privacy_of(DPBaseline(convention="sum"), THREE, setting, DELTA)
    assert (said["relation"], said["level"], said["flags"]) == ("add_remove", "instance", [])
    accountant = PLDAccountant()
    step = PoissonSampledDpEvent(0.01, GaussianDpEvent(6 / math.sqrt(3)))
    accountant.compose(SelfComposedDpEvent(step, 200))
    assert said["epsilon"] == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-3)


def test_a_training_without_a_promise_says_why() -> None:
    said = privacy_of(NoDefense(), THREE, Setting(batch_size=50), DELTA)
    assert (said["epsilon"], said["level"], said["events"]) == (None, "none", [])
    assert said["reason"] == "the defense promises nothing"


@pytest.mark.parametrize("sampling", ["poisson", "fixed_size"])
@pytest.mark.parametrize("relation", RELATIONS)
def test_a_promise_for_replacing_says_nothing_of_removing(sampling: Any, relation: Any) -> None:
    """Everyone is in each of nine steps, of mu = 1/6 each: together 1/2, or 1 for who replaces.

    To be told from absent is no part of a promise for replacing; one for adding or removing holds
    for replacing too, twice as far away.
    """
    distance = 2.0 if relation == "replace_one" else 1.0
    promise = Guarantee(level="instance", relation=relation, sensitivity=distance, noise_std=6.0)
    setting = Setting(batch_size=5, examples=5, rounds=9, sampling=sampling)
    said = privacy_of(Promising(promise=promise), ONE, setting, DELTA)
    replaced = "replace_one" in (relation, "replace_one" if sampling == "fixed_size" else "")
    assert said["relation"] == ("replace_one" if replaced else "add_remove")
    mu = 1.0 if replaced else 0.5
    assert said["epsilon"] == pytest.approx(get_epsilon_gaussian(1 / mu, DELTA), rel=1e-9)


# ------------------------------------------------------------------------------ refilled batches


@pytest.mark.parametrize(
    ("changes", "uses", "amplified"),
    [
        ({"sampling": "poisson"}, 1, True),
        ({"sampling": "poisson", "local_steps": 5}, 5, True),
        ({"sampling": "fixed_size"}, 1, True),
        ({"sampling": "fixed_size", "local_steps": 5}, 1, False),
        ({"sampling": "fixed_size", "local_steps": 12}, 3, False),
        ({"sampling": "fixed_size", "clients": 2, "all_clients": 10}, 1, False),
        ({"sampling": "poisson", "clients": 2, "all_clients": 10, "local_steps": 6}, 2, False),
    ],
)
def test_a_server_learns_of_all_uses_and_a_refilled_batch_moves_twice_as_far(
    changes: Mapping[str, Any], uses: int, amplified: bool
) -> None:
    """B = 4 of n = 20, sigma = 5 on the sum; T = 3 rounds that nothing amplifies are one Gaussian.

    The server's promise is for who comes or goes, so mu = sqrt(uses) / 5 whatever the batches. Who
    leaves a refilled one is replaced: for the model, adding or removing costs twice that as well.
    """
    setting = Setting(**{"batch_size": 4, "examples": 20, "rounds": 3} | dict(changes))
    defense = DPBaseline(noise_multiplier=5.0, convention="sum")
    served = defense.guarantee("server", ONE, setting)
    assert served.relation == "add_remove"
    assert served.mu == pytest.approx(math.sqrt(uses) / 5, rel=1e-12)

    (event,) = defense.events(ONE, setting)
    found = {r: epsilon([event], DELTA, relation=r).epsilon for r in RELATIONS}
    if amplified:
        assert (event.sampling_rate, event.sampling) == (0.2, setting.sampling)
        assert event.steps == 3 * setting.local_steps
    else:
        mu = 2 * math.sqrt(3) * served.mu
        for relation in RELATIONS:
            expected = get_epsilon_gaussian(1 / mu, DELTA)
            assert found[relation] == pytest.approx(expected, rel=1e-9)
    added, replaced = found.values()
    assert added is not None and replaced is not None
    if setting.refills:
        assert added == pytest.approx(replaced, rel=1e-12)
    else:
        assert added < 0.6 * replaced


# ------------------------------------------------------------------------------ several looks


SUITE = """
schema = 1
name = "looks"
title = "Looks"
paper = "none"
source = "written for a test"
version = 1
seed = 7
datasets = ["mnist"]
model = { name = "mlp" }
training = { batch_size = { mnist = 8 } }
attack = { name = "analytic" }
knowledge = { adaptive = {} }
rules = [{ name = "identified", label = "identified", kind = "identified" }]

[[defenses]]
id = "fixed"
name = "dp_baseline"
label = "fixed"
parameters = { clip = 1.0, noise_multiplier = 6.0, convention = "per_example" }

[[defenses]]
id = "moving"
name = "quantile_clip"
label = "moving"
parameters = { clip = 1.0, noise_multiplier = 6.0, convention = "per_example", count_noise = 0.0 }

[leak]
observations = 1

[profiles.quick]
networks = 1
victims = 2
"""


@pytest.fixture(scope="module", params=[1, 4])
def looked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(number of looks, cells by row)."""
    path = tmp_path_factory.mktemp("looks") / "looks.toml"
    path.write_text(SUITE.replace("observations = 1", f"observations = {request.param}"))
    cells = planning.plan_cells(resolve(str(path)), None, "cpu")
    return request.param, {each.cell.row: each for each in cells}


def test_looks_at_one_victim_add_up_in_squares(looked: tuple[int, dict[str, PlannedCell]]) -> None:
    """Six tensors clipped apart to C, sigma = 6, and noise of its own in every look."""
    looks, cells = looked
    assert cells["fixed"].ceiling_mu == pytest.approx(math.sqrt(looks * 6) / 6, rel=1e-12)


def test_several_looks_at_quantile_clipping_have_no_ceiling(
    looked: tuple[int, dict[str, PlannedCell]],
) -> None:
    """The bounds of a later round tell the counts of an earlier one, which no look has in it."""
    looks, cells = looked
    moving = cells["moving"]
    assert moving.guarantee == cells["fixed"].guarantee  # of one look
    assert moving.ceiling_mu == (None if looks > 1 else pytest.approx(math.sqrt(6) / 6, rel=1e-12))
