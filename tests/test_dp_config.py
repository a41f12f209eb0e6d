"""What libraries have been told, read off their own objects: Opacus, Flower, NVFlare."""

import copy
import dataclasses
import json
import math
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import opacus.optimizers as optimisers
import pytest
import torch
from opacus import PrivacyEngine, schedulers
from opacus.optimizers.ddp_perlayeroptimizer import DistributedPerLayerOptimizer
from opacus.optimizers.optimizer_fast_gradient_clipping import DPOptimizerFastGradientClipping
from opacus.utils.adaptive_clipping.adaptive_clipping_utils import PrivacyEngineAdaptiveClipping
from opacus.utils.batch_memory_manager import wrap_data_loader
from torch import nn
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from leakbench.contracts import Defense, Setting
from leakbench.defenses.compression import Percentile
from leakbench.defenses.dp_sgd import DPSGD
from leakbench.defenses.dssgd import DSSGD
from leakbench.defenses.local_dp import CentralDP, LocalDP
from leakbench.dp_config import DPConfig
from leakbench.dp_libraries import OPACUS
from leakbench.errors import LeakbenchError
from leakbench.plain import from_json
from leakbench.privacy.account import epsilon
from leakbench.privacy.events import PrivacyEvent

EXAMPLES, SIZE = 1000, 64
IN_TURN = "goes through the data in turn"


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def dataset(examples: int = EXAMPLES) -> TensorDataset:
    return TensorDataset(torch.zeros(examples, 5), torch.zeros(examples, dtype=torch.long))


def private(
    engine: PrivacyEngine | None = None, loader: DataLoader[Any] | None = None, **given: Any
) -> tuple[PrivacyEngine, Any, Any]:
    """(engine, optimizer, loader) as `make_private` gives them for a small dense network."""
    engine = engine or PrivacyEngine()
    network = nn.Linear(5, 3)
    made = engine.make_private(
        module=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=0.1),
        data_loader=loader or DataLoader(dataset(), batch_size=SIZE, shuffle=True),
        **{"noise_multiplier": 1.1, "max_grad_norm": 1.5, **given},
    )
    return engine, made[1], made[-1]


def exact(config: DPConfig) -> float:
    found = epsilon(config.events(), config.delta, relation="add_remove").epsilon
    assert found is not None
    return found


def assert_same(ours: tuple[PrivacyEvent, ...], theirs: tuple[PrivacyEvent, ...]) -> None:
    """The same releases, but for rounding; without sampling a rate has no meaning."""
    for one, other in zip(ours, theirs, strict=True):
        assert (one.sampling, one.steps) == (other.sampling, other.steps)
        assert one.noise_multiplier == pytest.approx(other.noise_multiplier, rel=1e-12)
        assert one.sensitivity == pytest.approx(other.sensitivity, rel=1e-12)
        assert one.sampling == "none" or one.sampling_rate == pytest.approx(other.sampling_rate)


# ------------------------------------------------------------------------------ Opacus


def test_the_default_of_opacus() -> None:
    engine, optimizer, loader = private()
    config = DPConfig.from_opacus(engine, optimizer, loader, epochs=3)
    assert config == DPConfig(
        clip=1.5, noise_multiplier=1.1, batch_size=62, examples=EXAMPLES, steps=48,
        rate=1 / 16, learning_rate=0.1, source="Opacus DPOptimizer",
    )  # fmt: skip
    assert config.defense() == DPSGD(clip=1.5, noise_multiplier=1.1)
    assert (config.sensitivity, config.noise_std) == (1.5 / 62, 1.1 * 1.5 / 62)
    assert config.setting() == Setting(
        batch_size=62, examples=EXAMPLES, rounds=48, sampling="poisson"
    )
    assert "clipped to L2 norm 1.5; noise of std 1.65 is added to the sum" in config.describe()


@pytest.mark.parametrize(("sigma", "epochs"), [(0.8, 1), (1.1, 3), (3.0, 20)])
def test_epsilon_is_the_engines_own(sigma: float, epochs: int) -> None:
    """After a training, from what its accountant has counted; and planned, before it."""
    engine, optimizer, loader = private(
        engine=PrivacyEngine(accountant="prv"), noise_multiplier=sigma
    )
    planned = DPConfig.from_opacus(engine, optimizer, loader, epochs=epochs)
    for _ in range(epochs * len(loader)):
        engine.accountant.step(noise_multiplier=sigma, sample_rate=1 / len(loader))
    done = DPConfig.from_opacus(engine, optimizer, loader)
    assert done == planned and not done.warnings
    assert exact(done) == pytest.approx(engine.get_epsilon(1e-5), abs=0.02)


def test_epsilon_after_a_real_training() -> None:
    engine, network = PrivacyEngine(accountant="prv"), nn.Linear(5, 3)
    module, optimizer, loader = engine.make_private(
        module=network, optimizer=torch.optim.SGD(network.parameters(), lr=0.1),
        data_loader=DataLoader(dataset(200), batch_size=20), noise_multiplier=0.9,
        max_grad_norm=1.0,
    )  # fmt: skip
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x), y).backward()
            optimizer.step()
    config = DPConfig.from_opacus(engine, optimizer, loader)
    assert (config.steps, config.batch_size, config.sampling_rate) == (20, 20, 0.1)
    assert exact(config) == pytest.approx(engine.get_epsilon(1e-5), abs=0.02)


def test_every_optimiser_class_of_opacus_is_known() -> None:
    exported = {name for name in dir(optimisers) if "Optimizer" in name and name[0].isupper()}
    assert exported | {"DistributedPerLayerOptimizer"} == set(OPACUS)


@pytest.fixture
def one_process() -> Iterator[None]:
    """A process group of one, which distributed optimisers ask for rank and size."""
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


ADAPTIVE = {
    "target_unclipped_quantile": 0.5, "clipbound_learning_rate": 0.2, "max_clipbound": 10.0,
    "min_clipbound": 0.1, "unclipped_num_std": 3.2,
}  # fmt: skip


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("kind", sorted(OPACUS))
def test_every_optimiser_class_is_read(kind: str) -> None:
    made: Any = getattr(optimisers, kind, DistributedPerLayerOptimizer)
    assert made.__name__ == kind
    parts, network = OPACUS[kind] == "tensor", nn.Linear(5, 3)
    optimizer = made(
        torch.optim.SGD(network.parameters(), lr=0.1), noise_multiplier=1.1,
        max_grad_norm=[1.0, 2.0] if parts else 1.5, expected_batch_size=50, **ADAPTIVE,
    )  # fmt: skip
    loader = private()[2]
    loader.sample_rate = 0.05
    config = DPConfig.from_opacus(None, optimizer, loader, steps=7)
    assert config.source == f"Opacus {kind}"
    assert (config.steps, config.batch_size, config.sampling_rate) == (7, 50, 0.05)
    assert config.bound == pytest.approx(math.sqrt(5) if parts else 1.5)
    sigma = 1.1
    if kind == "AdaClipDPOptimizer":  # Andrew et al., Theorem 1; what the optimiser really adds
        sigma = (1.1**-2 - 6.4**-2) ** -0.5
        assert "quantile" in config.warnings[0]
    assert config.gradient_noise_multiplier == pytest.approx(sigma)
    assert config.noise_std == pytest.approx(sigma * config.bound / 50)
    (event,) = config.events()
    assert (event.noise_multiplier, event.sampling_rate, event.steps) == (1.1, 0.05, 7)
    shares = (1.0, 2.0) if parts else ()
    assert config.defense() == DPSGD(
        clip=config.bound, noise_multiplier=config.gradient_noise_multiplier,
        clipping=OPACUS[kind], shares=shares,
    )  # fmt: skip


@pytest.mark.usefixtures("one_process")
def test_workers_share_a_batch() -> None:
    network = nn.Linear(5, 3)
    optimizer = optimisers.DistributedDPOptimizer(
        torch.optim.SGD(network.parameters(), lr=0.1), noise_multiplier=1.0, max_grad_norm=1.0,
        expected_batch_size=25,
    )  # fmt: skip
    optimizer.world_size = 2
    config = DPConfig.from_opacus(None, optimizer, private()[2], epochs=1)
    assert config.batch_size == 50


@pytest.mark.parametrize("mode", ["ghost", "hooks"])
def test_ghost_clipping_is_flat_clipping(mode: str) -> None:
    found = DPConfig.from_opacus(*private(grad_sample_mode=mode), epochs=3)
    assert replace(found, source="") == replace(
        DPConfig.from_opacus(*private(), epochs=3), source=""
    )


def test_adaptive_ghost_clipping_pays_for_its_count() -> None:
    engine, optimizer, loader = private(
        engine=PrivacyEngineAdaptiveClipping(), grad_sample_mode="ghost"
    )
    assert isinstance(optimizer, DPOptimizerFastGradientClipping)
    config = DPConfig.from_opacus(engine, optimizer, loader, epochs=1)
    assert config.count_std == 62 / 20
    assert config.gradient_noise_multiplier == pytest.approx((1.1**-2 - 6.2**-2) ** -0.5)
    assert config.events()[0].noise_multiplier == 1.1
    assert "size of the batch drawn" in config.warnings[0]


def test_a_loader_that_shuffles_amplifies_nothing() -> None:
    engine, optimizer, loader = private(poisson_sampling=False)
    for _ in range(3 * len(loader)):
        engine.accountant.step(noise_multiplier=1.1, sample_rate=1 / len(loader))
    config = DPConfig.from_opacus(engine, optimizer, loader)
    assert IN_TURN in config.warnings[0] and "charges a rate of 0.0625" in config.warnings[0]
    assert (config.sampling, config.steps, config.uses) == ("shuffle", 48, 3)
    (event,) = config.events()
    assert (event.sampling, event.sampling_rate, event.steps) == ("fixed_size", 1.0, 3)
    assert_same(config.events(), config.defense().events({}, config.setting()))
    assert exact(config) > 5 * engine.get_epsilon(1e-5)


def test_a_shuffle_that_drops_the_rest_counts_its_epochs() -> None:
    loader = DataLoader(dataset(), batch_size=SIZE, shuffle=True, drop_last=True)
    engine, optimizer, loader = private(loader=loader, poisson_sampling=False)
    assert len(loader) == 15
    assert DPConfig.from_opacus(engine, optimizer, loader, epochs=4).uses == 4
    by_steps = DPConfig.from_opacus(engine, optimizer, loader, steps=31)
    assert (by_steps.uses, by_steps.steps) == (3, 31)


def test_all_data_in_every_step_is_no_sampling() -> None:
    loader = DataLoader(dataset(50), batch_size=50)
    config = DPConfig.from_opacus(*private(loader=loader, poisson_sampling=False), epochs=4)
    (event,) = config.events()
    assert (event.sampling, event.steps, event.noise_multiplier) == ("none", 4, 1.1)


def test_a_sampler_of_few_makes_batches_of_many() -> None:
    """opacus#813: the loader's length gives the rate, and B is what it gives, not what was
    asked for."""
    sampler = WeightedRandomSampler(torch.ones(EXAMPLES), num_samples=128)
    loader = DataLoader(dataset(), batch_size=16, sampler=sampler)
    config = DPConfig.from_opacus(*private(loader=loader), epochs=1)
    assert (config.sampling_rate, config.batch_size) == (1 / 8, 125)


def test_rates_that_differ_are_named() -> None:
    engine, optimizer, loader = private()
    optimizer.expected_batch_size = 16
    engine.accountant.step(noise_multiplier=1.1, sample_rate=0.016)
    config = DPConfig.from_opacus(engine, optimizer, loader)
    first, second = config.warnings
    assert "draws 62.5 of 1000" in first and "B / N = 0.016" in first
    assert "charges a rate of 0.016" in second
    assert config.events()[0].sampling_rate == 1 / 16


def test_a_memory_manager_draws_as_the_loader_it_wraps() -> None:
    engine, optimizer, loader = private()
    wrapped = wrap_data_loader(data_loader=loader, max_batch_size=8, optimizer=optimizer)
    assert DPConfig.from_opacus(engine, optimizer, wrapped, epochs=3) == DPConfig.from_opacus(
        engine, optimizer, loader, epochs=3
    )


def test_without_a_plan_one_epoch_is_counted_and_said() -> None:
    config = DPConfig.from_opacus(*private())
    assert config.steps == 16 and "one epoch is counted" in config.warnings[0]


def test_schedulers_are_asked_and_left_alone() -> None:
    engine, optimizer, loader = private(noise_multiplier=1.0)
    noise = schedulers.ExponentialNoise(optimizer, gamma=0.5)
    clip = schedulers.StepGradClip(optimizer, step_size=2, gamma=0.1)
    config = DPConfig.from_opacus(
        engine, optimizer, loader, epochs=3, noise_scheduler=noise, clip_scheduler=clip
    )
    assert config.noise_schedule == (1.0,) * 16 + (0.5,) * 16 + (0.25,) * 16
    assert config.clip_schedule == pytest.approx((1.5,) * 32 + (0.15,) * 16)
    assert (optimizer.noise_multiplier, optimizer.max_grad_norm) == (1.0, 1.5)
    assert noise.last_epoch == 0 and noise.optimizer is optimizer
    assert [(e.noise_multiplier, e.steps) for e in config.events()] == [
        (1.0, 16), (0.5, 16), (0.25, 16),
    ]  # fmt: skip
    assert "following a schedule" in config.describe()
    # The same as the scheduler does it, and as the accountant then has it.
    for _ in range(3):
        for _ in range(16):
            engine.accountant.step(
                noise_multiplier=optimizer.noise_multiplier, sample_rate=1 / len(loader)
            )
        noise.step()
    done = DPConfig.from_opacus(engine, optimizer, loader)
    assert done.noise_schedule == config.noise_schedule and done.events() == config.events()


def test_a_clip_scheduler_that_leaves_the_bounds_is_refused() -> None:
    engine, optimizer, loader = private(clipping="per_layer", max_grad_norm=[1.0, 1.0])
    clip = schedulers.ExponentialGradClip(optimizer, gamma=0.5)
    with pytest.raises(LeakbenchError, match=r"changes the noise of .* and not its bounds"):
        DPConfig.from_opacus(engine, optimizer, loader, epochs=2, clip_scheduler=clip)
    with pytest.raises(LeakbenchError, match="is no scheduler of noise_multiplier"):
        DPConfig.from_opacus(*private(), epochs=2, noise_scheduler=clip)


def test_remarks_of_an_optimiser() -> None:
    class Mine(optimisers.DPOptimizer):
        """Somebody's own."""

    network = nn.Linear(5, 3)
    optimizer = Mine(
        torch.optim.SGD(network.parameters(), lr=0.1), noise_multiplier=1.0, max_grad_norm=1.0,
        expected_batch_size=62, loss_reduction="sum", generator=torch.Generator(),
    )  # fmt: skip
    found = DPConfig.from_opacus(None, optimizer, private()[2], epochs=1).warnings
    for said, wanted in zip(found, ("black box", "is 'sum'", "knows its seed"), strict=True):
        assert wanted in said


class _Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([(torch.zeros(5), 0)])


def test_what_is_not_understood_is_refused_in_one_sentence() -> None:
    engine, optimizer, loader = private()
    plain = torch.optim.SGD(nn.Linear(5, 3).parameters(), lr=0.1)
    replaced = DataLoader(
        dataset(), batch_size=4, sampler=WeightedRandomSampler(torch.ones(EXAMPLES), 100)
    )
    for given, said in [
        ((engine, plain, loader), "torch.optim.sgd.SGD is no optimiser of Opacus"),
        ((engine, optimizer, [1, 2]), "has no 'dataset'"),
        ((engine, optimizer, DataLoader(_Stream())), "has no length"),
        ((engine, optimizer, replaced), "several times into one batch"),
    ]:
        with pytest.raises(LeakbenchError, match=said):
            DPConfig.from_opacus(*given, epochs=1)
    with pytest.raises(LeakbenchError, match="epochs and steps are both given"):
        DPConfig.from_opacus(engine, optimizer, loader, epochs=1, steps=2)


# ------------------------------------------------------------------------------ Flower

LOCAL: dict[str, Any] = {"batch_size": 8, "examples": 100, "rounds": 5}


class LocalDpMod:
    """Attributes of Flower's."""

    def __init__(
        self, clipping_norm: float, sensitivity: float, epsilon: float, delta: float
    ) -> None:
        self.clipping_norm, self.sensitivity = clipping_norm, sensitivity
        self.epsilon, self.delta = epsilon, delta


def strategy(name: str, **attributes: Any) -> Any:
    """Attributes of Flower's strategy of that name, around FedAvg."""
    base = {
        "noise_multiplier": 1.2, "clipping_norm": 0.5, "num_sampled_clients": 10,
        "strategy": SimpleNamespace(weighted_by_key="num-examples"), "accountant": None,
    }  # fmt: skip
    made = type(name, (), {})()
    vars(made).update(base | attributes)
    return made


def test_the_public_case_of_a_local_mod() -> None:
    """Clip 1, sensitivity 1e-4, epsilon 10, delta 1e-5: mu = 20,640 a round, not 10."""
    config = DPConfig.from_flower(LocalDpMod(1.0, 1e-4, 10.0, 1e-5), **LOCAL, learning_rate=0.1)
    assert config.noise_std == pytest.approx(4.845e-5, rel=1e-3)
    assert config.sensitivity == 1.0
    assert config.sensitivity / config.noise_std == pytest.approx(20640, rel=1e-3)
    assert isinstance(config.defense(), LocalDP)
    wrong, formula = config.warnings
    assert "1e+04 times too small" in wrong and "below 1 only" in formula
    (event,) = config.events()
    assert (event.sampling, event.steps) == ("none", 5)


def test_a_local_mod_that_is_right() -> None:
    mod = LocalDpMod(0.5, 0.5, 0.9, 1e-6)
    config = DPConfig.from_flower(mod, **LOCAL, clients=50, clients_a_round=10)
    assert (config.warnings, config.delta, config.sampling) == ((), 1e-6, "fixed_size")
    assert_same(config.events(), config.defense().events({}, config.setting()))
    # The classical formula is a bound: what it is asked for is kept.
    one = replace(config, clients=1, clients_a_round=1, steps=1, sampling="none")
    assert exact(one) < 0.9


@pytest.mark.parametrize("side", ["Client", "Server"])
def test_central_strategies(side: str) -> None:
    wrapped = strategy(f"DifferentialPrivacy{side}SideFixedClipping")
    config = DPConfig.from_flower(wrapped, **LOCAL, clients=40)
    assert config.defense() == CentralDP(clip=0.5, noise_multiplier=1.2, clients=10)
    assert (config.sensitivity, config.noise_std) == (0.05, pytest.approx(0.06))
    (event,) = config.events()
    assert (event.noise_multiplier, event.sampling_rate) == (1.2, 0.25)
    (event,) = config.defense().events({}, config.setting())
    assert event.noise_multiplier == pytest.approx(1.2)
    assert "weighs clients by 'num-examples'" in config.warnings[0]
    worst = DPConfig.from_flower(wrapped, **LOCAL, weighted=True)
    assert worst.warnings == () and worst.events()[0].noise_multiplier == pytest.approx(0.12)


def test_an_adaptive_strategy_keeps_the_gradients_part_of_sigma() -> None:
    effective = (1.0**-2 - (2 * 2.0) ** -2) ** -0.5
    made = strategy(
        "DifferentialPrivacyServerSideAdaptiveClipping", noise_multiplier=effective,
        clipped_count_stddev=2.0,
    )  # fmt: skip
    config = DPConfig.from_flower(made, **LOCAL)
    assert config.noise_multiplier == pytest.approx(1.0)
    assert config.gradient_noise_multiplier == pytest.approx(effective)
    assert config.noise_std == pytest.approx(effective * 0.5 / 10)


def fixedclipping_mod() -> None:
    """Flower's has this name."""


def test_what_flower_does_not_say_is_asked_for() -> None:
    for given, said in [
        (fixedclipping_mod, "only clips, to a norm that the server sends"),
        (object(), "builtins.object is not understood"),
        (LocalDpMod(1.0, 1.0, 0.0, 1e-5), "from epsilon 0 and delta 1e-05"),
        (LocalDpMod(1.0, 1.0, 1.0, 0.0), "from epsilon 1 and delta 0"),
    ]:
        with pytest.raises(LeakbenchError, match=said):
            DPConfig.from_flower(given, **LOCAL)
    with pytest.raises(LeakbenchError, match="samples 10 clients a round"):
        DPConfig.from_flower(
            strategy("DifferentialPrivacyServerSideFixedClipping"), **LOCAL, clients_a_round=3
        )


def test_flowers_own_classes_are_read() -> None:
    mods = pytest.importorskip("flwr.clientapp.mod")
    strategies = pytest.importorskip("flwr.serverapp.strategy")
    config = DPConfig.from_flower(mods.LocalDpMod(1.0, 1.0, 0.5, 1e-5), **LOCAL)
    assert config == replace(
        DPConfig.from_flower(LocalDpMod(1.0, 1.0, 0.5, 1e-5), **LOCAL), source=config.source
    )
    with pytest.raises(LeakbenchError, match="only clips"):
        DPConfig.from_flower(mods.fixedclipping_mod, **LOCAL)
    for side in ("Client", "Server"):
        fixed = getattr(strategies, f"DifferentialPrivacy{side}SideFixedClipping")
        config = DPConfig.from_flower(fixed(strategies.FedAvg(), 1.2, 0.5, 10), **LOCAL, clients=40)
        assert (config.noise_multiplier, config.clip, config.clients_a_round) == (1.2, 0.5, 10)
        assert config.sampling_rate == 0.25 and "num-examples" in config.warnings[0]
        adaptive = getattr(strategies, f"DifferentialPrivacy{side}SideAdaptiveClipping")
        config = DPConfig.from_flower(
            adaptive(strategies.FedAvg(), 0.8, 10, clipped_count_stddev=2.0), **LOCAL
        )
        assert config.noise_multiplier == pytest.approx(0.8)
        assert config.count_std == 2.0 and config.gradient_noise_multiplier > 0.8


def test_a_local_mod_of_flower_has_the_std_that_is_read() -> None:
    """Its own noise and clipping, on a real update."""
    privacy = pytest.importorskip("flwr.supercore.differential_privacy")
    import numpy as np

    config = DPConfig.from_flower(LocalDpMod(0.3, 0.3, 0.5, 1e-5), **LOCAL)
    start = [np.zeros((200, 100)), np.zeros(100)]
    sent = [np.full((200, 100), 2.0), np.full(100, -1.0)]
    privacy.compute_clip_model_update(sent, start, 0.3)
    assert privacy.get_norm(sent) == pytest.approx(config.bound)
    clipped = copy.deepcopy(sent)
    np.random.seed(3)
    privacy.add_gaussian_noise_inplace(sent, 0.3 * math.sqrt(2 * math.log(1.25e5)) / 0.5)
    noise = np.concatenate([(a - b).ravel() for a, b in zip(sent, clipped, strict=True)])
    assert noise.std() == pytest.approx(config.noise_std, rel=4 / math.sqrt(2 * noise.size))


# ------------------------------------------------------------------------------ NVFlare


class PercentilePrivacy:
    """Attributes of NVFlare's."""

    percentile, gamma = 10, 0.01


class SVTPrivacy:
    """Attributes of NVFlare's."""

    frac, eps_1, eps_2, eps_3, gamma, tau = 0.1, 0.1, None, 0.1, 1e-5, 1e-6


def test_filters_of_nvflare_promise_nothing() -> None:
    config = DPConfig.from_nvflare(PercentilePrivacy(), **LOCAL)
    assert config.defense() == Percentile(percentile=10.0, gamma=0.01)
    assert (config.events(), config.noise_std, config.sensitivity) == ((), 0.0, math.inf)
    assert "90 % of the coordinates are sent" in config.warnings[0]
    config = DPConfig.from_nvflare(SVTPrivacy(), **LOCAL, local_steps=4)
    assert config.defense() == DSSGD(share=0.1, threshold=4e-6, bound=4e-5, epsilon=0.9)
    assert config.events() == () and "no epsilon of an update" in config.warnings[0]
    assert "no noise that promises anything" in config.describe()


def test_a_filter_that_does_nothing_is_said_to() -> None:
    idle = PercentilePrivacy()
    idle.gamma = 0
    config = DPConfig.from_nvflare(idle, **LOCAL)
    assert config.defense().name == "none" and "does nothing" in config.warnings[0]
    with pytest.raises(LeakbenchError, match="allowed: PercentilePrivacy, SVTPrivacy"):
        DPConfig.from_nvflare(object(), **LOCAL)


# ------------------------------------------------------------------------------ the config itself

GIVEN: dict[str, Any] = {
    "clip": 1.0, "noise_multiplier": 1.0, "batch_size": 50, "examples": 1000, "steps": 100
}  # fmt: skip


@pytest.mark.parametrize("sampling", ["poisson", "fixed_size", "none", "shuffle"])
@pytest.mark.parametrize("noise_on", ["sum", "mean", "example"])
def test_events_are_those_of_the_defense(sampling: Any, noise_on: Any) -> None:
    config = DPConfig(**GIVEN, sampling=sampling, noise_on=noise_on)
    events = config.defense().events({"w": torch.zeros(2)}, config.setting())
    assert len(events) == len(config.events()) == (noise_on != "example" or sampling != "poisson")
    assert_same(config.events(), events)


@pytest.mark.parametrize("noise_on", ["sum", "mean", "example"])
def test_sensitivity_and_std_are_those_of_the_tap(noise_on: Any) -> None:
    config = DPConfig(**GIVEN, sampling="none", noise_on=noise_on)
    tap: Any = "type2" if noise_on == "example" else "type2_batch"
    promise = config.defense().guarantee(tap, {"w": torch.zeros(2)}, config.setting())
    assert promise.sensitivity == pytest.approx(config.sensitivity)
    assert promise.noise_std == pytest.approx(config.noise_std)


@pytest.mark.parametrize("noise_at", ["client", "server"])
@pytest.mark.parametrize("weighted", [False, True])
def test_events_of_clients(noise_at: Any, weighted: bool) -> None:
    config = DPConfig(
        **GIVEN, unit="client", noise_on="update", noise_at=noise_at, clients=40,
        clients_a_round=10, sampling="fixed_size", weighted=weighted,
    )  # fmt: skip
    (event,) = config.events()
    wanted = {
        ("client", False): math.sqrt(10), ("client", True): 1.0,
        ("server", False): 1.0, ("server", True): 0.1,
    }[noise_at, weighted]  # fmt: skip
    assert event.noise_multiplier == pytest.approx(wanted)
    assert (event.sampling_rate, event.steps, event.sampling) == (0.25, 100, "fixed_size")
    if not weighted:
        (theirs,) = config.defense().events({}, config.setting())
        assert theirs.noise_multiplier == pytest.approx(event.noise_multiplier)


def test_local_steps_are_rounds_of_several() -> None:
    config = DPConfig(**GIVEN, local_steps=5)
    assert (config.setting().rounds, config.setting().local_steps) == (20, 5)
    assert_same(config.events(), config.defense().events({}, config.setting()))


def test_groups_become_the_parts_of_the_defense() -> None:
    groups = (("a.weight", "a.bias"), ("b.weight",))
    config = DPConfig(**{**GIVEN, "clip": (3.0, 4.0)}, clipping="group", groups=groups)
    assert config.bound == 5.0
    defense = config.defense()
    assert isinstance(defense, DPSGD)
    assert defense.bounds(["a.weight", "a.bias", "b.weight"], 5.0) == {
        groups[0]: pytest.approx(3.0), groups[1]: pytest.approx(4.0)
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"clip": -1.0}, "clip must be positive"),
        ({"clip": math.inf}, "clip must be positive and finite"),
        ({"clip": (1.0, 2.0)}, "clip must be one number|clip must be a tuple"),
        ({"clipping": "tensor"}, "clip must be"),
        ({"clipping": "group", "clip": (1.0,)}, "groups are given if and only if"),
        ({"noise_multiplier": math.nan}, "noise_multiplier must be"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"examples": 2.5}, "examples must be a whole number"),
        ({"delta": 0.0}, "delta must be above 0"),
        ({"rate": 1.5}, "rate must be in"),
        ({"noise_on": "update"}, "hides the presence of a client"),
        ({"unit": "client"}, "hides the presence of an example"),
        ({"clients": 3}, "is about the data of one client"),
        ({"sampling": "shuffled"}, "sampling must be one of"),
        ({"noise_schedule": (1.0, -1.0)}, "noise_schedule must be"),
        ({"noise_schedule": (1.0,), "local_steps": 2}, "schedules are for"),
        ({"count_std": 0.4}, "count_std must be above"),
        ({"learning_rate": 0.0}, "learning_rate must be positive"),
    ],
)
def test_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(LeakbenchError, match=said):
        DPConfig(**{**GIVEN, **changes})


def test_a_table_makes_one() -> None:
    table = {**GIVEN, "clip": [1.0, 2.0], "clipping": "tensor", "noise_schedule": [1.0, 2.0]}
    config: DPConfig = from_json(DPConfig, table, "scenario")
    assert (config.clip, config.noise_schedule) == ((1.0, 2.0), (1.0, 2.0))


def test_none_of_the_libraries_and_no_torch_is_imported() -> None:
    code = (
        "import sys, leakbench.dp_config, leakbench.dp_libraries\n"
        "loaded = {'torch', 'opacus', 'flwr', 'nvflare', 'numpy'} & set(sys.modules)\n"
        "assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_descriptions_are_one_sentence_each() -> None:
    bare: Defense = DPConfig(**{**GIVEN, "noise_multiplier": 0.0}).defense()
    assert isinstance(bare, DPSGD)
    assert DPConfig(**{**GIVEN, "noise_multiplier": 0.0}).events() == ()
    for config in (
        DPConfig(**{**GIVEN, "noise_multiplier": 0.0}),
        DPConfig(**GIVEN, sampling="shuffle"),
        DPConfig(**GIVEN, noise_on="example", sampling="none"),
        DPConfig.from_nvflare(SVTPrivacy(), **LOCAL),
    ):
        said = config.describe()
        assert said.endswith(".") and "\n" not in said


# ------------------------------------------------------------------------------ odd fields

PLAIN: dict[str, Any] = {
    "clip": 1.0, "noise_multiplier": 1.0, "batch_size": 10, "examples": 100, "steps": 5,
}  # fmt: skip


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        ({"clip": 10**400}, "clip must be at most 2^53"),
        ({"steps": 10**400}, "steps must be at most 2^53"),
        ({"clip": 1e200, "noise_multiplier": 1e200}, "no finite standard deviation"),
        ({"noise_schedule": 1.0}, "noise_schedule must be a tuple, got 1.0"),
        ({"clip_schedule": [1.0]}, "clip_schedule must be a tuple"),
        ({"clip_schedule": (True,)}, "clip_schedule must be positive and finite, got True"),
        ({"warnings": "careful"}, "warnings must be a tuple"),
        ({"warnings": (1,)}, "warnings must be texts"),
        ({"groups": 3}, "groups must be a tuple"),
        ({"clip": (1.0,), "clipping": "group", "groups": ("ab",)}, "tuples of names"),
        ({"clip": (1.0,) * 2, "clipping": "group", "groups": (("a",),) * 2}, "each name in one"),
        ({"clip": (1.0,) * 2, "clipping": "group", "groups": (("a",),)}, "2 bounds of 1 groups"),
        ({"parameters": ("gamma",)}, "pairs of a name and a value"),
        ({"sampling": "shuffle", "epochs": 0}, "5 steps in epochs 0"),
    ],
)
def test_a_field_that_means_nothing_is_one_sentence(odd: dict[str, Any], said: str) -> None:
    with pytest.raises(LeakbenchError, match=re.escape(said)):
        DPConfig(**{**PLAIN, **odd})


def test_a_mechanism_refuses_parameters_that_it_does_not_have() -> None:
    config = DPConfig(**PLAIN, mechanism="percentile", parameters=(("gama", 1.0),))
    with pytest.raises(LeakbenchError, match=r"unknown parameter 'gama' .did you mean 'gamma'"):
        config.defense()


def test_numbers_of_numpy_become_pythons() -> None:
    plain = DPConfig(**PLAIN)
    other = DPConfig(**{**PLAIN, "noise_multiplier": np.float32(1), "steps": np.int64(5)})
    assert other == plain
    json.dumps(dataclasses.asdict(other))


def test_what_is_said_of_a_schedule_is_its_first_step() -> None:
    """0.5 * 3 / 10 by hand, whatever the fields that the schedule stands in place of hold."""
    for multiplier in (0.0, 1.0):
        config = DPConfig(
            **{**PLAIN, "noise_multiplier": multiplier},
            noise_schedule=(0.5, 2.0), clip_schedule=(3.0, 1.0),
        )  # fmt: skip
        assert config.sensitivity == config.events()[0].sensitivity == 3.0 / 10
        assert config.noise_std == pytest.approx(0.5 * 3.0 / 10)
        assert "norm 3; noise of std 1.5 is added" in config.describe()


def duck(name: str, **attributes: Any) -> Any:
    return type(name, (), attributes)()


def loader_of(**options: Any) -> Any:
    return DataLoader(TensorDataset(torch.rand(20, 2)), batch_size=5, **options)


BOUNDED = {"noise_multiplier": 1.0, "max_grad_norm": 1.0}


@pytest.mark.parametrize(
    ("optimizer", "loader", "options", "said"),
    [
        (duck("DPOptimizer", **{**BOUNDED, "noise_multiplier": "1"}), None, {}, "is '1'; allowed"),
        (duck("DPOptimizer", **{**BOUNDED, "max_grad_norm": None}), None, {}, "is None; allowed"),
        (duck("DPOptimizer", **BOUNDED, world_size=1.5), None, {}, "a whole number"),
        (duck("DPOptimizer", **BOUNDED, param_groups=3), None, {}, "param_groups of"),
        (duck("DPPerLayerOptimizer", noise_multiplier=1, max_grad_norms=3), None, {}, "a list"),
        (duck("DPOptimizer", **BOUNDED), None, {"epochs": "a"}, "epochs must be a whole number"),
        (duck("DPOptimizer", **BOUNDED), None, {"steps": -1}, "steps must be at least 0"),
        (duck("DPOptimizer", **BOUNDED), duck("L", dataset=[]), {}, "is empty"),
        (duck("DPOptimizer", **BOUNDED), duck("L", dataset=[1], sample_rate=0), {}, "above 0, up"),
        (
            duck("DPOptimizer", **BOUNDED),
            loader_of(sampler=RandomSampler(range(20), num_samples=50)),
            {},
            "draws 50 of 20 examples an epoch",
        ),
    ],
)
def test_what_lacks_a_number_is_one_sentence(
    optimizer: Any, loader: Any, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(LeakbenchError, match=said):
        DPConfig.from_opacus(None, optimizer, loader or loader_of(), **options)


@pytest.mark.parametrize("history", [3, [1], [("a", 0.1, 1)]])
def test_a_history_that_is_none(history: Any) -> None:
    engine = SimpleNamespace(accountant=SimpleNamespace(history=history))
    with pytest.raises(LeakbenchError, match="the accountant's history is"):
        DPConfig.from_opacus(engine, duck("DPOptimizer", **BOUNDED), loader_of())


@pytest.mark.parametrize("value", [None, "a", float("nan"), 0.0])
def test_bounds_of_federated_libraries_are_numbers(value: Any) -> None:
    of_flower = {"batch_size": 5, "examples": 10, "rounds": 2}
    own = {"clipping_norm": value, "sensitivity": 1.0, "epsilon": 1.0, "delta": 1e-5}
    with pytest.raises(LeakbenchError, match=r"clipping_norm|clips to"):
        DPConfig.from_flower(duck("LocalDpMod", **own), **of_flower)
    strategy = duck(
        "DifferentialPrivacyServerSideFixedClipping",
        clipping_norm=value, noise_multiplier=1.0, num_sampled_clients=2,
    )  # fmt: skip
    with pytest.raises(LeakbenchError, match="clip"):
        DPConfig.from_flower(strategy, **of_flower)
    if value != 0:
        with pytest.raises(LeakbenchError, match=r"'frac' of .* is|share|nan"):
            DPConfig.from_nvflare(
                duck("SVTPrivacy", frac=value, eps_3=1.0, gamma=1e-5, tau=1e-6), **of_flower
            ).defense()
    with pytest.raises(LeakbenchError, match="local_steps must be"):
        DPConfig.from_nvflare(duck("PercentilePrivacy"), **of_flower, local_steps=value)
