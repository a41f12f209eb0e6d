"""Promises of rounds with several local steps, against what simulated rounds give away."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import beta, norm
from torch import Tensor

from leakbench import registry
from leakbench.audits.canary import audit, canary_at, check
from leakbench.contracts import (
    Context,
    Defense,
    Guarantee,
    LeakPoint,
    NoiseConvention,
    Observer,
    Setting,
    Weights,
)
from leakbench.defenses.adaclip import AdaClip
from leakbench.defenses.batch_clipping import BatchClip, BatchClipLayerwise
from leakbench.defenses.dp_baseline import DPBaseline
from leakbench.defenses.dp_dyn import DPDynSSigma
from leakbench.defenses.dssgd import DSSGD
from leakbench.defenses.fed_sdp import FedSDPClient, FedSDPServer
from leakbench.defenses.none import NoDefense
from leakbench.defenses.prune import Prune
from leakbench.defenses.quantile_clip import QuantileClip
from leakbench.errors import LeakbenchError
from leakbench.federated import setting_of
from leakbench.privacy.account import epsilon
from leakbench.sampling import sample
from leakbench.streams import NoiseStreams
from leakbench.training import Batch, run_round
from leakbench.training_schedule import Schedule

UPDATES: list[Observer] = ["server", "type0", "type0_raw", "type1"]
ONE = {"w": torch.zeros(3)}
THREE = {"a": torch.zeros(2, 3), "b": torch.zeros(4), "c": torch.zeros(2)}


@dataclass(frozen=True)
class Constant:
    """Cross-entropy of class 0 with gradient -x / 2 at all weights."""

    head: ClassVar[str] = "w"

    def init(self, generator: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
        return {"w": torch.zeros(3, dtype=dtype)}

    loss = "cross_entropy"
    mixes_examples = False

    def logits(self, weights: Weights, inputs: Tensor) -> Tensor:
        first = inputs @ weights["w"]
        return torch.stack([first - first.detach(), torch.zeros_like(first)], dim=-1)


def lower_bound(inside: NDArray[np.float64], outside: NDArray[np.float64]) -> float:
    """mu of a threshold test with Clopper-Pearson bounds, 97.5 % each; thresholds of one half."""
    half = len(inside) // 2

    def rates(a: NDArray[np.float64], b: NDArray[np.float64], threshold: float) -> tuple[int, int]:
        return int((b > threshold).sum()), int((a <= threshold).sum())

    def mu(errors: tuple[int, int], count: int) -> float:
        highest = [beta.ppf(0.975, k + 1, count - k) for k in errors]
        return float(norm.isf(highest[0]) - norm.ppf(highest[1]))

    some, rest = (inside[:half], outside[:half]), (inside[half:], outside[half:])
    best = max(np.concatenate(some), key=lambda t: mu(rates(*some, float(t)), half))
    return mu(rates(*rest, float(best)), half)


# ------------------------------------------------------------------------------ merged bounds


def merged_bounds(defense: QuantileClip, steps: int, present: bool) -> NDArray[np.float64]:
    """log C after a round of 1,500 clients: `steps` batches of a client's five examples.

    Two norms are under the bound and two above; the fifth is far above it, or absent.
    """
    trials, first = 1500, 0 if present else 1500
    inputs = torch.zeros(5, 3)
    inputs[0, 0] = inputs[3, 1] = inputs[4, 2] = 1e6
    there = torch.tensor([present, True, True, True, True])
    batch = Batch(
        inputs=inputs.expand(trials, 5, 3), labels=torch.zeros(trials, 5, dtype=torch.long),
        mask=there.expand(trials, 5), expected=5,
    )  # fmt: skip
    context = Context(
        batch_size=5, clients=tuple(range(first, first + trials)), noise=NoiseStreams(3, ("bound",))
    )
    with torch.no_grad():
        done = run_round(
            Constant(), ONE, [batch] * steps, defense, defense.init(ONE), context,
            point=LeakPoint(type=1),
        )  # fmt: skip
    bounds: NDArray[np.float64] = done.state.clip["w"].double().log().numpy()
    return bounds


@pytest.mark.parametrize("count_noise", [0.05, 0.2])
def test_the_merged_bound_tells_all_its_counts(count_noise: float) -> None:
    """B = n = 5, L = 16, one tensor: the sum of 16 counts is known, 16 / 2 against 4 sigma_b.

    sigma_b = 0.25 gives mu = 8, sigma_b = 1 gives 2. An example charged for one count would have
    0.5 / sigma_b: the gradients' part, 16 uses at z = 6 on the sum, adds 4 / 6 at most.
    """
    defense = QuantileClip(count_noise=count_noise, convention="sum", update="step")
    setting = Setting(batch_size=5, local_steps=16, examples=5)
    inside, outside = (merged_bounds(defense, 16, present=there) for there in (True, False))
    apart = inside.mean() - outside.mean()
    estimate = apart / min(inside.std(), outside.std())
    exact = 16 * 0.5 / (math.sqrt(16) * count_noise * 5)
    assert estimate == pytest.approx(exact, rel=0.06)
    shown = lower_bound(inside, outside)
    for observer in UPDATES:
        claimed = defense.guarantee(observer, ONE, setting).mu
        assert claimed == pytest.approx(math.hypot(exact, math.sqrt(16) / 6), rel=1e-12)
        assert shown < claimed
    one_count = math.hypot(0.5 / (count_noise * 5), math.sqrt(16) / 6)
    assert shown > 1.4 * one_count
    assert shown > 0.8 * min(exact, 5.0)  # what 750 trials can show at all


def test_counts_are_charged_where_the_observer_learns_of_them() -> None:
    """M = 3 tensors, sigma_b = 0.4, z = 2 on the sum: mu^2 = 3/4 uses + 3 counts (0.5 / 0.4)^2."""
    defense = QuantileClip(count_noise=0.1, noise_multiplier=2.0, convention="sum", update="step")

    def promised(observer: Observer, **changes: Any) -> float | None:
        setting = Setting(**{"batch_size": 4, "local_steps": 6, "examples": 8} | changes)
        return defense.guarantee(observer, THREE, setting).mu

    def expected(uses: int, counts: int) -> Any:
        return pytest.approx(math.sqrt(3 * uses / 4 + 3 * counts * (0.5 / 0.4) ** 2), rel=1e-12)

    for observer in UPDATES:
        assert promised(observer) == expected(3, 3)
        assert promised(observer, sampling="poisson") == expected(6, 6)
        assert promised(observer, examples=None) == expected(6, 6)
    assert promised("model") == expected(1, 1)
    assert promised("type2_batch") == expected(1, 0)
    assert promised("type2_batch", iteration=5) == expected(3, 2)
    once = replace(defense, update="round")  # no count is told before the end of the round
    setting = Setting(batch_size=4, local_steps=6, examples=8, iteration=5)
    assert once.guarantee("type2_batch", THREE, setting).mu == expected(3, 0)
    assert once.guarantee("type1", THREE, setting).mu == expected(3, 3)
    silent = replace(defense, count_noise=0.0)
    setting = Setting(batch_size=4, local_steps=6, examples=8)
    assert silent.guarantee("type2_batch", THREE, setting).mu is not None
    assert silent.guarantee("type2_batch", THREE, replace(setting, iteration=5)).level == "none"


# ------------------------------------------------------------------------------ audits of L steps


SHARED: tuple[NoiseConvention, ...] = ("per_example", "sum")
TAPS: tuple[Observer, ...] = ("type1", "type2_batch")
BUILT_IN: list[tuple[Defense, Observer]] = [
    *((DPBaseline(convention=c, noise_multiplier=1.0), tap) for c in SHARED for tap in TAPS),
    # The counts are next to nothing: an update does not show them.
    *(
        (QuantileClip(convention=c, noise_multiplier=1.0, count_noise=5.0), tap)
        for c in SHARED
        for tap in TAPS
    ),
    *((AdaClip(convention=c, noise_multiplier=0.25), tap) for c in SHARED for tap in TAPS),
    (DPBaseline(noise_multiplier=0.5, convention="mean"), "server"),
    (BatchClip(noise_multiplier=0.5), "type1"),
    (BatchClipLayerwise(noise_multiplier=0.5, subset=2), "type0"),
    (FedSDPClient(noise_multiplier=1.0), "type1"),
    (FedSDPServer(noise_multiplier=1.0), "type0"),
]


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize(("defense", "observer"), BUILT_IN, ids=lambda v: getattr(v, "name", v))
def test_promises_of_several_steps_are_kept(
    defense: Defense, observer: Observer, steps: int
) -> None:
    """Four steps of 4 of 6 examples have one of them three times, and need not be alike."""
    setting = Setting(batch_size=4, local_steps=steps, examples=6)
    found = audit(defense, canary_at(100.0, THREE), observer=observer, setting=setting, trials=600)
    assert found.claimed_mu is not None
    assert 0.5 * found.claimed_mu < found.mu <= found.claimed_mu
    assert found.mu_estimate == pytest.approx(found.claimed_mu, rel=0.15)
    check(found)


@pytest.mark.parametrize("kind", [DPBaseline, QuantileClip])
def test_promises_under_poisson_sampling_are_kept(kind: Any) -> None:
    """One in every step, or in none: the batch is then one smaller, and divided by the same B."""
    setting = Setting(batch_size=4, local_steps=3, examples=50, sampling="poisson")
    defense = kind(noise_multiplier=2.0, convention="sum")
    found = audit(defense, canary_at(100.0, THREE), observer="type1", setting=setting, trials=600)
    gradients = math.sqrt(3 * 3) / 2
    assert found.mu_estimate == pytest.approx(gradients, rel=0.15)
    assert found.claimed_mu is not None and found.mu <= found.claimed_mu
    check(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Once(DPBaseline):
    """Charges an example for one step of a round, in however many it is."""

    name: ClassVar[str] = "once"

    def guarantee(self, observer: Observer, weights: Weights, setting: Setting) -> Guarantee:
        once = replace(setting, local_steps=1, iteration=0)
        return DPBaseline.guarantee(self, observer, weights, once)


@pytest.mark.parametrize("convention", ["per_example", "mean", "sum"])
@pytest.mark.parametrize("observer", UPDATES)
def test_a_defense_that_forgets_uses_is_caught(
    observer: Observer, convention: NoiseConvention
) -> None:
    defense = Once(noise_multiplier=1.0, convention=convention)
    setting = Setting(batch_size=2, local_steps=9, examples=2)
    found = audit(defense, canary_at(4.0, THREE), observer=observer, setting=setting, trials=400)
    assert found.verdict == "above"
    right = DPBaseline.guarantee(defense, observer, THREE, setting).mu
    assert right == pytest.approx(3 * (found.claimed_mu or math.nan), rel=1e-12)
    assert found.mu <= right
    with pytest.raises(LeakbenchError, match="guarantee allows"):
        check(found)


def test_an_example_used_once_in_a_round_is_charged_once() -> None:
    setting = Setting(batch_size=2, local_steps=9, examples=18)
    found = audit(
        Once(noise_multiplier=0.3, convention="sum"), canary_at(4.0, THREE),
        observer="type1", setting=setting, trials=400,
    )  # fmt: skip
    # The noise of nine steps covers what is in one of them.
    assert found.mu_estimate == pytest.approx((found.claimed_mu or 0) / 3, rel=0.2)
    assert found.verdict == "within"


# ------------------------------------------------------------------------------ taps behind a step


@dataclass(frozen=True)
class Turning:
    """Gradients -x / 2 of the first example; the second's follows the sign of what w[0] became.

    An input is (x, flag): with the flag the gradient is +-1e6 / 2 along the second coordinate.
    """

    head: ClassVar[str] = "w"

    def init(self, generator: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
        return {"w": torch.zeros(3, dtype=dtype)}

    loss = "cross_entropy"
    mixes_examples = False

    def logits(self, weights: Weights, inputs: Tensor) -> Tensor:
        turned = torch.sign(weights["w"][0] - 0.25).detach() * 1e6 * weights["w"][1]
        first = inputs[:, :3] @ weights["w"] + inputs[:, 3] * turned
        return torch.stack([first - first.detach(), torch.zeros_like(first)], dim=-1)


def second_steps(defense: DPBaseline, present: bool) -> NDArray[np.float64]:
    """What a type-2 tap of the second batch reads in 4,000 clients: the first two coordinates."""
    trials, first = 4000, 0 if present else 4000
    inputs = torch.tensor([[-1e6 if present else 0.0, 0, 0, 0], [0.0, 0, 0, 1]])
    batch = Batch(
        inputs=inputs.expand(trials, 2, 4), labels=torch.zeros(trials, 2, dtype=torch.long)
    )
    context = Context(
        batch_size=2, clients=tuple(range(first, first + trials)), noise=NoiseStreams(4, ("turn",))
    )
    with torch.no_grad():
        tapped = run_round(
            Turning(), ONE, [batch] * 2, defense, None, context,
            learning_rate=-1.0, point=LeakPoint(view="batch", iteration=1), stop_at_tap=True,
        ).tapped  # fmt: skip
    assert tapped is not None
    shown: NDArray[np.float64] = tapped.tensors["w"][:, :2].double().numpy()
    return shown


def test_a_later_step_tells_of_the_one_before() -> None:
    """n = B = 2, sigma = 2/3: one step has mu = 1.5, but where w went decides the second's bulk.

    The log-likelihood ratio is that of two mixtures: the gradient's own 1.5 along the first
    coordinate, and the other example's sign along the second, with chances Phi(+-0.75).
    """
    defense = DPBaseline(clip=1.0, noise_multiplier=2 / 3, convention="sum")
    inside, outside = (second_steps(defense, present=there) for there in (True, False))
    std, right = 1 / 3, norm.cdf(0.75)

    def ratio(seen: NDArray[np.float64]) -> NDArray[np.float64]:
        own = (seen[:, 0] - 0.25) * 0.5 / std**2
        down, up = norm.pdf(seen[:, 1], -0.5, std), norm.pdf(seen[:, 1], 0.5, std)
        turned = np.log(right * down + (1 - right) * up) - np.log((1 - right) * down + right * up)
        total: NDArray[np.float64] = own + turned
        return total

    shown = lower_bound(ratio(inside), ratio(outside))
    single, both = (
        defense.guarantee(
            "type2_batch", ONE, Setting(batch_size=2, local_steps=2, examples=2, iteration=step)
        ).mu
        for step in (0, 1)
    )
    assert single == pytest.approx(1.5) and both == pytest.approx(1.5 * math.sqrt(2))
    assert single < shown < both


def test_the_tap_of_an_example_learns_of_the_steps_before() -> None:
    """M = 3, sigma = 2, B = 4: its own 3/4, and 3/4 / 4 of each earlier mean of four noises."""
    setting = Setting(batch_size=4, local_steps=6, examples=4, iteration=2)
    mu = DPBaseline(noise_multiplier=2.0).guarantee("type2", THREE, setting).mu
    assert mu == pytest.approx(math.sqrt(3 / 4 + 2 * 3 / 4 / 4))
    drawn = replace(setting, sampling="poisson")
    assert DPBaseline().guarantee("type2", THREE, drawn).level == "none"
    assert DPBaseline().guarantee("type2", THREE, replace(drawn, iteration=0)).mu is not None


# ------------------------------------------------------------------------------ clients that weigh


def test_clients_that_weigh_unequally() -> None:
    """Of two clients with 9 and 1 of 10 parts: the first stands out by .9 / sqrt(.82) / sigma."""
    defense = FedSDPClient(noise_multiplier=2.0)
    fair, unfair = (
        defense.guarantee(
            "model", ONE, Setting(batch_size=4, clients=2, all_clients=2, weighted=weighted)
        ).mu
        for weighted in (False, True)
    )
    shown = 0.9 / math.sqrt(0.9**2 + 0.1**2) / 2.0
    assert fair == pytest.approx(math.sqrt(2) / 2 / 2.0)
    assert unfair is not None and fair is not None and fair < shown <= unfair == 0.5
    common: dict[str, Any] = {"rounds": 1, "batch_size": 1, "learning_rate": 0.1, "clients": 2}
    kinds: Any = (
        ("fed_averaging", "dirichlet", True),
        ("fed_averaging", "iid", False),
        ("fed_sgd", "dirichlet", False),
    )
    for aggregation, partition, weighted in kinds:
        schedule = Schedule(**common, aggregation=aggregation, partition=partition)
        assert setting_of(schedule, [torch.arange(4)]).weighted is weighted


# ------------------------------------------------------------------------------ refilled batches


@pytest.mark.parametrize("clients", [1, 2])
@pytest.mark.parametrize("sampling", ["fixed_size", "poisson"])
def test_a_batch_of_fixed_size_moves_twice_as_far(clients: int, sampling: Any) -> None:
    """Gradients of norm C, the victim's against all others': what his leaving does to a sum.

    The schedule's own batches with him and without, of one order: whose place is refilled moves
    the sum by 2 C, who is drawn by a coin of his own by C.
    """
    schedule = Schedule(
        rounds=1, batch_size=4, learning_rate=0.1, clients=clients, clients_a_round=clients,
        local_steps=1, sampling=sampling,
    )  # fmt: skip
    value = torch.full((40,), -1.0)
    value[7] = 1.0  # the victim is the eighth of the first client
    shares = list(torch.arange(40).split(40 // clients))
    moves = set()
    for number in range(60):
        _, (step,) = sample(shares, schedule, 3, (), number)
        row, mask = step.positions[0], None if step.mask is None else step.mask[0]
        there = row if mask is None else row[mask]
        if 7 not in there.tolist():
            continue
        whole = float(value[there].sum())
        # Without him: the others' coins are their own; a fixed batch takes the next in his order.
        rest = there[there != 7]
        if step.mask is None:
            left = [i for i in shares[0].tolist() if i not in there.tolist()]
            rest = torch.cat([rest, torch.tensor(left[:1])])
        moves.add(abs(whole - float(value[rest].sum())))
    refilled = setting_of(schedule, shares).refills
    assert moves == {2.0 if refilled else 1.0}
    assert refilled == (sampling == "fixed_size" or clients > 1)


# ------------------------------------------------------------------------------ settings


def _settings() -> list[tuple[type, str, str]]:
    """(plugin, field, its annotation) of every plugin."""
    found = []
    for kind in ("attacks", "defenses"):
        for plugin in registry.discover(kind):  # type: ignore[arg-type]
            made = registry.load(kind, plugin.name)  # type: ignore[arg-type]
            found += [(made, field.name, str(field.type)) for field in dataclasses.fields(made)]
    return found


SETTINGS = _settings()
NUMBERS = [one for one in SETTINGS if one[2].split(" ")[0] in ("int", "float")]


def test_all_numbers_are_tried() -> None:
    assert len(NUMBERS) >= 80 and {kind for *_, kind in NUMBERS} == {"int", "float", "float | None"}


@pytest.mark.parametrize(
    ("plugin", "field", "kind"), NUMBERS, ids=[f"{made.name}-{name}" for made, name, _ in NUMBERS]
)
def test_no_plugin_takes_a_number_that_means_nothing(plugin: Any, field: str, kind: str) -> None:
    for bad in (math.nan, math.inf, -math.inf, -1, True, "1", [1.0]):
        with pytest.raises(LeakbenchError) as caught:
            plugin(**{field: bad})
        said = str(caught.value)
        assert said.startswith(f"{plugin.name}: ") and field in said and "must be" in said
        assert "\n" not in said and str(bad) in said


@pytest.mark.parametrize(
    ("plugin", "field"),
    [(made, name) for made, name, kind in NUMBERS if kind == "int"],
    ids=lambda value: getattr(value, "name", value),
)
def test_no_plugin_takes_half_a_step(plugin: Any, field: str) -> None:
    with pytest.raises(LeakbenchError, match=f"{field} must be a whole number, got 1.5"):
        plugin(**{field: 1.5})


@pytest.mark.parametrize(
    ("plugin", "field"),
    [one[:2] for one in SETTINGS if one not in NUMBERS],
    ids=lambda value: getattr(value, "name", value),
)
def test_no_plugin_takes_a_choice_that_is_none(plugin: Any, field: str) -> None:
    """Before, an unknown noise convention was noise on the mean without a word."""
    with pytest.raises(LeakbenchError, match=rf"^{plugin.name}: .*{field}"):
        plugin(**{field: "nonsense"})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"quantile": 1.5}, r"quantile_clip: quantile must be in \[0, 1\], got 1.5"),
        ({"count_noise": -0.1}, "quantile_clip: count_noise must be >= 0 and finite, got -0.1"),
    ],
)
def test_ranges_of_quantile_clip(changes: Any, said: str) -> None:
    with pytest.raises(LeakbenchError, match=said):
        QuantileClip(**changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mean_decay": 1.5}, r"adaclip: mean_decay must be in \[0, 1\], got 1.5"),
        ({"variance_min": 0.0}, "adaclip: variance_min must be positive and finite, got 0.0"),
        ({"variance_min": 0.5}, "variance_min must not be above variance_max, got 0.5 and 0.001"),
    ],
)
def test_ranges_of_adaclip(changes: Any, said: str) -> None:
    with pytest.raises(LeakbenchError, match=said):
        AdaClip(**changes)


def test_numbers_of_numpy_are_numbers() -> None:
    defense = DPBaseline(clip=np.float64(2.0), noise_multiplier=np.int64(3))  # type: ignore[arg-type]
    assert defense.guarantee("type2", THREE, Setting(batch_size=1)).mu == pytest.approx(
        math.sqrt(3) / 3
    )


@pytest.mark.parametrize(
    ("changes", "twice"),
    [
        ({"sampling": "poisson"}, False),
        ({"sampling": "fixed_size"}, True),
        ({"sampling": "fixed_size", "local_steps": 5}, True),
        ({"sampling": "fixed_size", "clients": 2, "all_clients": 10}, True),
        ({"sampling": "poisson", "clients": 2, "all_clients": 10}, True),
    ],
)
def test_who_leaves_a_refilled_batch_costs_what_replacing_him_does(
    changes: Mapping[str, Any], twice: bool
) -> None:
    setting = Setting(**{"batch_size": 4, "examples": 20, "rounds": 1} | dict(changes))
    events = DPBaseline(noise_multiplier=5.0, convention="sum").events(ONE, setting)
    added, replaced = (
        epsilon(events, 1e-5, relation=relation).epsilon
        for relation in ("add_remove", "replace_one")
    )
    assert added is not None and replaced is not None
    assert (added == pytest.approx(replaced)) if twice else (added < replaced)


@pytest.mark.parametrize(
    ("defense", "reason"),
    [
        (NoDefense(), "promises nothing"),
        (DPDynSSigma(), "private gradients"),
        (Prune(), "no noise is added"),
        (DSSGD(), "no noise is added"),
    ],
)
@pytest.mark.parametrize("observer", ["model", "server", "type2"])
def test_a_defense_without_a_promise_gives_its_reason(
    defense: Defense, reason: str, observer: Observer
) -> None:
    promise = defense.guarantee(observer, ONE, Setting(batch_size=50))
    assert promise.level == "none" and reason in promise.reason


def test_a_tap_in_a_later_step_is_charged_as_the_batch_mean_it_also_sees() -> None:
    """With one example a batch, the tap on it and the tap on the mean see the same."""
    weights = {f"w{i}": torch.zeros(3) for i in range(6)}
    setting = Setting(batch_size=1, examples=1, local_steps=5, iteration=4)
    defense = DPBaseline(clip=4.0, noise_multiplier=6.0)
    own, mean = (defense.guarantee(o, weights, setting).mu for o in ("type2", "type2_batch"))
    assert own is not None and own == pytest.approx(mean)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"batch_size": math.nan}, "batch_size must be a whole number, got nan"),
        ({"local_steps": 1.5}, "local_steps must be a whole number"),
        ({"examples": 0}, "examples must be at least 1"),
        ({"rounds": -1}, "rounds must be at least 0"),
        ({"iteration": -1}, "iteration must be at least 0"),
    ],
)
def test_settings_of_a_training(changes: Any, said: str) -> None:
    with pytest.raises(LeakbenchError, match=f"^setting: {said}"):
        Setting(**({"batch_size": 4} | changes))
