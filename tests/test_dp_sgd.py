"""DP-SGD against Opacus step by step and accountant by accountant; local and central DP."""

import copy
import math
import warnings
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
from opacus import GradSampleModule
from opacus.accountants import PRVAccountant
from opacus.optimizers import DPOptimizer, DPPerLayerOptimizer
from torch import Tensor, nn

from leakbench import data, registry
from leakbench.contracts import Context, Gradients, LeakPoint, Setting
from leakbench.defenses.dp_baseline import DPBaseline
from leakbench.defenses.dp_sgd import DPSGD
from leakbench.defenses.local_dp import CentralDP, LocalDP
from leakbench.errors import LeakbenchError
from leakbench.modules import ModuleModel
from leakbench.privacy.account import epsilon
from leakbench.streams import NoiseStreams
from leakbench.testing import check_defense
from leakbench.training import Batch, run_round

SIZE, EXPECTED, RATE = 8, 10, 0.5
PARTS = (0.5, 0.1, 1.0, 0.2)
POINT = LeakPoint(view="batch")


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(1, 4, 5, stride=3), nn.Sigmoid(), nn.Flatten(), nn.Linear(4 * 64, 10)
    )


NETWORK = network()
MODEL = ModuleModel(module=NETWORK, head="3.weight")
WEIGHTS = {name: value.detach().clone() for name, value in NETWORK.named_parameters()}
DIGITS = data.load("mnist")
INPUTS, LABELS = DIGITS.candidates[:SIZE], DIGITS.candidate_labels[:SIZE]


def opacus_step(sigma: float, seed: int, bounds: float | list[float]) -> dict[str, Tensor]:
    """What Opacus' optimiser makes of the digits, as a gradient: weights before less after."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = GradSampleModule(copy.deepcopy(NETWORK))
        kind: Any = DPPerLayerOptimizer if isinstance(bounds, list) else DPOptimizer
        optimizer = kind(
            torch.optim.SGD(module.parameters(), lr=1.0), noise_multiplier=sigma,
            max_grad_norm=bounds, expected_batch_size=EXPECTED,
            generator=torch.Generator().manual_seed(seed),
        )  # fmt: skip
        nn.functional.cross_entropy(module(INPUTS), LABELS).backward()
    optimizer.step()
    found = dict(cast(nn.Module, module._module).named_parameters())
    return {name: WEIGHTS[name] - value.detach() for name, value in found.items()}


class SameDraws:
    """A noise source that draws as Opacus does: one tensor after another from one generator."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def normal(
        self, purpose: str, client: int, round: int, iteration: int, shape: tuple[int, ...]
    ) -> Tensor:
        return torch.randn(shape, generator=self.generator)

    def uniform(self, *_: Any) -> Tensor:
        raise AssertionError("nothing uniform is drawn")


def stepped(defense: DPSGD, seed: int, context_size: int = EXPECTED) -> dict[str, Tensor]:
    """The same from leakbench's path: the mean that is released."""
    context = Context(batch_size=context_size, clients=(0,), noise=SameDraws(seed))
    batch = Batch(inputs=INPUTS[None], labels=LABELS[None], expected=context_size)
    found = run_round(
        MODEL, WEIGHTS, [batch], defense, defense.init(WEIGHTS), context, point=POINT
    ).tapped
    assert found is not None
    return {name: value[0] for name, value in found.tensors.items()}


@pytest.mark.parametrize("sigma", [0.0, 1.3])
def test_a_step_is_that_of_opacus(sigma: float) -> None:
    """Poisson batches: 8 examples where 10 are expected, some of them clipped."""
    norms = example_norms()
    clip = float(norms.median())
    assert norms.min() < clip < norms.max()
    ours = stepped(DPSGD(clip=clip, noise_multiplier=sigma), seed=5)
    theirs = opacus_step(sigma, 5, clip)
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=0, atol=1e-6)


@pytest.mark.parametrize("sigma", [0.0, 0.7])
def test_a_step_with_bounds_by_tensor_is_that_of_opacus(sigma: float) -> None:
    whole = math.hypot(*PARTS)
    defense = DPSGD(clip=whole, noise_multiplier=sigma, clipping="tensor", shares=PARTS)
    ours, theirs = stepped(defense, seed=6), opacus_step(sigma, 6, list(PARTS))
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=0, atol=1e-6)


def example_norms() -> Tensor:
    """(8,) norms of the examples' whole gradients, one by one by autograd."""
    norms = []
    for x, y in zip(INPUTS, LABELS, strict=True):
        loss = nn.functional.cross_entropy(NETWORK(x[None]), y[None])
        parts = torch.autograd.grad(loss, list(NETWORK.parameters()))
        norms.append(torch.cat([part.flatten() for part in parts]).norm())
    return torch.stack(norms)


def gradients() -> Gradients:
    rows = [
        torch.autograd.grad(
            nn.functional.cross_entropy(NETWORK(x[None]), y[None]), list(NETWORK.parameters())
        )
        for x, y in zip(INPUTS, LABELS, strict=True)
    ]
    stacked = (torch.stack(part)[None] for part in zip(*rows, strict=True))
    return Gradients(dict(zip(WEIGHTS, stacked, strict=True)), ("client", "example"))


@pytest.mark.parametrize(
    ("clipping", "expected"),
    [
        ("flat", [("0.weight", "0.bias", "3.weight", "3.bias")]),
        ("tensor", [("0.weight",), ("0.bias",), ("3.weight",), ("3.bias",)]),
        ("layer", [("0.weight", "0.bias"), ("3.weight", "3.bias")]),
        ("group", [("0.weight", "3.bias"), ("3.weight", "0.bias")]),
    ],
)
def test_every_part_is_within_its_bound_and_the_whole_within_c(
    clipping: Any, expected: list[tuple[str, ...]]
) -> None:
    groups = tuple(expected) if clipping == "group" else ()
    shares = tuple(range(1, len(expected) + 1)) if len(expected) > 1 else ()
    defense = DPSGD(clip=0.05, clipping=clipping, groups=groups, shares=tuple(map(float, shares)))
    bounds = defense.bounds(WEIGHTS, 0.05)
    assert list(bounds) == expected
    assert math.hypot(*bounds.values()) == pytest.approx(0.05, rel=1e-12)
    context = Context(batch_size=SIZE, clients=(0,), noise=None)
    clipped, _ = defense.on_examples(gradients(), None, context)
    for names, bound in bounds.items():
        part = torch.cat([clipped.tensors[name][0].flatten(1) for name in names], dim=1)
        torch.testing.assert_close(part.norm(dim=1), torch.full((SIZE,), bound))
    assert clipped.flat_norm().max() <= 0.05 * (1 + 1e-6)


def test_noise_on_the_mean_has_the_std_of_the_sum_over_b() -> None:
    context = Context(batch_size=SIZE, clients=tuple(range(64)), noise=NoiseStreams(1, ()))
    defense = DPSGD(clip=0.5, noise_multiplier=3.0)
    zeros = Gradients({k: torch.zeros(64, *v.shape) for k, v in WEIGHTS.items()}, ("client",))
    noise, _ = defense.on_batch(zeros, None, context)
    drawn = noise.flatten().double()
    std = 3.0 * 0.5 / SIZE
    assert drawn.std().item() == pytest.approx(std, rel=4 / math.sqrt(2 * drawn.numel()))
    said = defense.noise_std("type2_batch", WEIGHTS, None, context)
    assert said is not None and set(said.values()) == {std}
    single = defense.noise_std("type2", WEIGHTS, None, context)
    assert single is not None and set(single.values()) == {0.0}


def test_mu_is_one_over_sigma_whatever_is_clipped_together() -> None:
    setting = Setting(batch_size=8, examples=100, rounds=3, sampling="poisson")
    for defense in (
        DPSGD(clip=0.3, noise_multiplier=2.5),
        DPSGD(clip=0.3, noise_multiplier=2.5, clipping="tensor", shares=PARTS),
    ):
        promise = defense.guarantee("type2_batch", WEIGHTS, setting)
        assert promise.mu == pytest.approx(0.4, rel=1e-12)
        assert (promise.level, promise.relation, promise.unit) == ("instance", "add_remove", "flat")
        assert promise.sensitivity == pytest.approx(0.3 / 8)
        assert defense.guarantee("type2", WEIGHTS, setting).level == "none"
    # Clipped by tensor to C each, at noise sigma C, the papers' row has sqrt(M) of that.
    each = DPBaseline(clip=0.3, noise_multiplier=2.5, convention="sum")
    assert each.guarantee("type2_batch", WEIGHTS, setting).mu == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("sigma", "size", "examples", "steps"),
    [(1.0, 64, 1000, 48), (1.1, 256, 60000, 2000), (0.7, 32, 2000, 300), (4.0, 500, 1000, 100)],
)
def test_epsilon_is_that_of_the_prv_accountant(
    sigma: float, size: int, examples: int, steps: int
) -> None:
    setting = Setting(batch_size=size, examples=examples, rounds=steps, sampling="poisson")
    events = DPSGD(noise_multiplier=sigma).events(WEIGHTS, setting)
    ours = epsilon(events, 1e-5, relation="add_remove").epsilon
    theirs = PRVAccountant()
    theirs.history = [(sigma, size / examples, steps)]
    assert ours == pytest.approx(theirs.get_epsilon(1e-5, eps_error=0.01), abs=0.02)


def test_a_schedule_is_followed_and_accounted_round_by_round() -> None:
    defense = DPSGD(noise_schedule=(1.0, 1.0, 2.0), clip_schedule=(0.5, 0.25))
    assert [defense.noise_multiplier_at(t, 5) for t in range(5)] == [1, 1, 2, 2, 2]
    assert [defense.clip_at(t, 5) for t in range(3)] == [0.5, 0.25, 0.25]
    setting = Setting(batch_size=64, examples=1000, rounds=40, sampling="poisson")
    events = defense.events(WEIGHTS, setting)
    assert [(event.noise_multiplier, event.steps) for event in events] == [(1.0, 2), (2.0, 38)]
    theirs = PRVAccountant()
    theirs.history = [(1.0, 0.064, 2), (2.0, 0.064, 38)]
    assert epsilon(events, 1e-5, relation="add_remove").epsilon == pytest.approx(
        theirs.get_epsilon(1e-5, eps_error=0.01), abs=0.02
    )
    assert DPSGD(noise_schedule=(1.0, 0.0)).events(WEIGHTS, setting) == ()
    context = Context(batch_size=SIZE, clients=(0,), noise=None, round=1, total=5)
    clipped, _ = defense.on_examples(gradients(), None, context)
    assert clipped.flat_norm().max() <= 0.25 * (1 + 1e-6)
    assert defense.scales(None, context)["clip"] == 0.25


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"clipping": "group"}, "groups are given if and only if"),
        ({"groups": (("a",),)}, "groups are given if and only if"),
        ({"shares": (1.0,)}, "clipping is 'flat'"),
        ({"shares": (1.0, 0.0), "clipping": "layer"}, r"shares\[1\] must be positive"),
        ({"noise_schedule": (math.nan,)}, r"noise_schedule\[0\] must be"),
        ({"clip_schedule": 2.0}, "clip_schedule must be a tuple"),
        ({"clipping": "whole"}, "clipping must be one of"),
        ({"convention": "batch"}, "convention must be one of"),
        ({"clip": 0.0}, "clip must be positive"),
    ],
)
def test_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(LeakbenchError, match=said):
        DPSGD(**given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"clipping": "layer", "shares": (1.0,) * 3}, "3 shares for 2 parts"),
        ({"clipping": "group", "groups": (("0.weight",),)}, "'0.bias' is in 0 groups"),
        (
            {"clipping": "group", "groups": (tuple(WEIGHTS), ("other",))},
            "'other' is in 1 groups, and the model has no such",
        ),
        ({"clipping": "group", "groups": (tuple(WEIGHTS), ("0.bias",))}, "'0.bias' is in 2 groups"),
    ],
)
def test_parts_must_be_the_models(given: dict[str, Any], said: str) -> None:
    with pytest.raises(LeakbenchError, match=said):
        DPSGD(**given).bounds(WEIGHTS, 1.0)


# ------------------------------------------------------------------------ local and central DP

CLIENTS = 5


def updates(clients: int = CLIENTS) -> Gradients:
    """One step of every client on digits of his own, as dW; the last one's is tiny."""
    shape = (clients, SIZE)
    images = DIGITS.candidates[: clients * SIZE].reshape(*shape, 1, 28, 28)
    labels = DIGITS.candidate_labels[: clients * SIZE].reshape(shape)
    rows = []
    for x, y in zip(images, labels, strict=True):
        loss = nn.functional.cross_entropy(NETWORK(x), y)
        rows.append(torch.autograd.grad(loss, list(NETWORK.parameters())))
    stacked = (-RATE * torch.stack(part) for part in zip(*rows, strict=True))
    found = Gradients(dict(zip(WEIGHTS, stacked, strict=True)), ("client",))
    return found.scale(torch.tensor([1.0] * (clients - 1) + [1e-3]))


def context(clients: int = CLIENTS, **changes: Any) -> Context:
    base = Context(
        batch_size=SIZE, clients=tuple(range(clients)), noise=NoiseStreams(2, ()),
        learning_rate=RATE,
    )  # fmt: skip
    return replace(base, **changes)


@pytest.mark.parametrize("defense", [LocalDP(clip=0.1), CentralDP(clip=0.1)])
def test_updates_are_clipped_as_numpy_clips_them(defense: LocalDP | CentralDP) -> None:
    given = updates()
    shown, _ = defense.on_update(given, None, context(noise=None))
    for row in range(CLIENTS):
        arrays = [value[row].double().numpy() for value in given.tensors.values()]
        norm = math.sqrt(sum(float((array**2).sum()) for array in arrays))
        scaled = [array * min(1.0, 0.1 / norm) for array in arrays]
        for array, value in zip(scaled, shown.tensors.values(), strict=True):
            np.testing.assert_allclose(value[row].numpy(), array, rtol=1e-5, atol=1e-9)


def test_a_given_std_is_the_std_and_decides_what_is_promised() -> None:
    """The public case: clip 1, "sensitivity" 1e-4, epsilon 10, delta 1e-5."""
    std = 1e-4 * math.sqrt(2 * math.log(1.25e5)) / 10
    assert std == pytest.approx(4.845e-5, rel=1e-3)
    defense = LocalDP(clip=1.0, std=std)
    still = updates(64).map(lambda _, value: torch.zeros_like(value))
    drawn = defense.on_update(still, None, context(64))[0].flatten().double()
    assert drawn.std().item() == pytest.approx(std, rel=4 / math.sqrt(2 * drawn.numel()))
    setting = Setting(batch_size=SIZE, clients=4, all_clients=4, examples=100)
    assert defense.guarantee("type1", WEIGHTS, setting).mu == pytest.approx(20640, rel=1e-3)
    seen = defense.noise_std("type1", WEIGHTS, None, context())
    assert seen is not None
    assert list(seen.values()) == pytest.approx([std / RATE] * len(WEIGHTS))
    assert defense.guarantee("type2_batch", WEIGHTS, setting).level == "none"


@pytest.mark.parametrize("clients", [1, 4])
def test_the_servers_noise_is_that_of_the_sum(clients: int) -> None:
    """McMahan et al. 2018: std sigma C / Kt on the mean, and mu = 1 / sigma."""
    defense = CentralDP(clip=0.2, noise_multiplier=1.5, clients=clients)
    setting = Setting(batch_size=SIZE, clients=clients, all_clients=20, examples=100)
    promise = defense.guarantee("model", WEIGHTS, setting)
    assert promise.noise_std == pytest.approx(1.5 * 0.2 / clients)
    assert promise.mu == pytest.approx(1 / 1.5)
    means = []
    still = updates(clients).map(lambda _, value: torch.zeros_like(value))
    for round in range(16):
        shown, _ = defense.on_receipt(still, None, context(clients, round=round))
        means.append(shown.mean("client").flatten().double())
    drawn = torch.cat(means)
    std = 1.5 * 0.2 / clients
    assert drawn.std().item() == pytest.approx(std, rel=4 / math.sqrt(2 * drawn.numel()))
    bare = defense.noise_std("type1", WEIGHTS, None, context())
    assert bare is not None and set(bare.values()) == {0.0}
    assert defense.guarantee("server", WEIGHTS, setting).level == "none"
    assert defense.guarantee("type0", WEIGHTS, setting).mu == pytest.approx(
        math.sqrt(clients) / 1.5
    )


def test_unequal_clients_are_promised_what_an_update_is() -> None:
    setting = Setting(batch_size=SIZE, clients=4, all_clients=20, examples=100, weighted=True)
    promise = CentralDP(noise_multiplier=2.0, clients=4).guarantee("model", WEIGHTS, setting)
    assert promise.mu == pytest.approx(2 / 2.0)


def test_local_and_central_refuse_numbers_that_mean_nothing() -> None:
    with pytest.raises(LeakbenchError, match="std must be"):
        LocalDP(std=-1.0)
    with pytest.raises(LeakbenchError, match="clients must be at least 1"):
        CentralDP(clients=0)


@pytest.mark.parametrize(
    "defense",
    [
        DPSGD(clipping="layer"),
        DPSGD(convention="per_example", noise_schedule=(1.0, 2.0)),
        LocalDP(std=0.1),
        CentralDP(clients=2),
    ],
)
def test_contract(defense: Any) -> None:
    check_defense(defense)


def test_names() -> None:
    for name, kind in (("dp_sgd", DPSGD), ("local_dp", LocalDP), ("central_dp", CentralDP)):
        assert registry.load("defenses", name) is kind
