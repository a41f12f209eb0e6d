"""Black boxes: right mechanisms raise no alarm, wrong ones are caught, each by a canary."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import Tensor

from leakbench.audits.blackbox import Mechanism, audit_mechanism
from leakbench.audits.findings import MeasuredFinding
from leakbench.audits.two_samples import Trials, gaussian_mu, light_tails
from leakbench.errors import LeakbenchError
from leakbench.privacy.gdp import epsilon_of_mu

Tensors = dict[str, Tensor]
SHAPES = {
    "conv.weight": (4, 3), "conv.bias": (4,), "dense.weight": (5, 6), "dense.bias": (5,),
    "head.weight": (3, 5), "head.bias": (3,),
}  # fmt: skip
B = 4


def norms(gradients: Tensors, order: float = 2.0) -> Tensor:
    """(B,) of the whole gradient."""
    flat = torch.cat([value.flatten(1) for value in gradients.values()], dim=1)
    return torch.linalg.vector_norm(flat, order, dim=1)


def scaled(gradients: Tensors, factors: Tensor) -> Tensors:
    return {k: v * factors.reshape(-1, *[1] * (v.ndim - 1)) for k, v in gradients.items()}


def clip_flat(gradients: Tensors, clip: float = 1.0, order: float = 2.0) -> Tensors:
    return scaled(gradients, (clip / norms(gradients, order).clamp(min=1e-12)).clamp(max=1.0))


def clip_parts(gradients: Tensors, parts: list[list[str]], clip: float) -> Tensors:
    found = {}
    for names in parts:
        found |= clip_flat({name: gradients[name] for name in names}, clip)
    return found


def layers(gradients: Tensors) -> list[list[str]]:
    kinds = dict.fromkeys(name.partition(".")[0] for name in gradients)
    return [[name for name in gradients if name.startswith(f"{kind}.")] for kind in kinds]


def summed(gradients: Tensors) -> Tensors:
    return {name: value.sum(dim=0) for name, value in gradients.items()}


def noisy(release: Tensors, std: float) -> Tensors:
    return {name: value + std * torch.randn(value.shape) for name, value in release.items()}


# ---------------------------------------------------------------------------- right ones


@dataclass(frozen=True)
class Right:
    """Clipping to C = `clip` in all, with noise as `on` says."""

    clip: float
    sigma: float
    clipping: str = "flat"
    on: str = "sum"

    def __call__(self, gradients: Tensors) -> Tensors:
        parts = {"tensor": [[name] for name in gradients], "layer": layers(gradients)}
        if self.clipping == "flat":
            clipped = clip_flat(gradients, self.clip)
        else:
            chosen = parts[self.clipping]
            clipped = clip_parts(gradients, chosen, self.clip / math.sqrt(len(chosen)))
        std = self.sigma * self.clip
        if self.on == "example":
            return noisy(clipped, std)
        if self.on == "mean":
            return noisy({k: v / B for k, v in summed(clipped).items()}, std)
        if self.on == "steps":  # noise of one mechanism in two halves
            return noisy(noisy(summed(clipped), std * 0.6), std * 0.8)
        return noisy(summed(clipped), std)

    @property
    def mu(self) -> float:
        return 1 / (self.sigma * (B if self.on == "mean" else 1))


def judged(
    mechanism: Mechanism, trials: int, *, clip: float = 1.0, mu: float = 1.0, rows: int = B,
    removes: bool = True, replace_mu: float | None = None, seed: int = 0,
) -> MeasuredFinding:  # fmt: skip
    return audit_mechanism(
        mechanism, SHAPES, clip=clip, claimed_mu=mu, batch_size=rows, removes=removes,
        replace_mu=replace_mu, trials=trials, seed=seed,
    )  # fmt: skip


def random_setting(seed: int) -> tuple[Right, int, bool]:
    """A right mechanism, rows of a call, and whether an absent example leaves."""
    drawn = np.random.default_rng(seed)
    mechanism = Right(
        clip=float(10 ** drawn.uniform(-2, 2)),
        sigma=float(10 ** drawn.uniform(-1.5, 1)),
        clipping=str(drawn.choice(["flat", "tensor", "layer"])),
        on=str(drawn.choice(["sum", "mean", "example", "update", "steps"])),
    )
    rows = 1 if mechanism.on == "update" else B
    return mechanism, rows, mechanism.on in ("sum", "steps")


def alarm(seed: int, trials: int) -> MeasuredFinding:
    mechanism, rows, removes = random_setting(seed)
    return judged(
        mechanism, trials, clip=mechanism.clip, mu=mechanism.mu, rows=rows, removes=removes,
        seed=seed,
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(10))
def test_right_mechanisms_raise_no_alarm(seed: int) -> None:
    found = alarm(1000 + seed, 100)
    assert found.verdict == "within", found


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100))
def test_a_hundred_right_mechanisms_raise_no_alarm(seed: int) -> None:
    found = alarm(seed, 300)
    assert found.verdict == "within", found


@pytest.mark.parametrize(
    ("dtype", "trials"),
    [(torch.bfloat16, 200), pytest.param(torch.float32, 4000, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("shapes", [{"weight": (1, 1)}, {"weight": (1, 3), "bias": (1,)}])
def test_rounding_raises_no_alarm(
    shapes: dict[str, tuple[int, ...]], dtype: torch.dtype, trials: int
) -> None:
    """Few values of few bits come twice, whatever the noise; rounding after it costs nothing."""

    def rounded(g: Tensors) -> Tensors:
        return {k: v.to(dtype).float() for k, v in noisy(summed(clip_flat(g)), 1.0).items()}

    found = audit_mechanism(
        rounded, shapes, clip=1.0, claimed_mu=1.0, batch_size=1, trials=trials, seed=1
    )
    assert found.verdict == "within", found


# ---------------------------------------------------------------------------- wrong ones


def forgotten_layer(g: Tensors) -> Tensors:
    total = summed(clip_flat(g))
    return noisy(total, 1.0) | {"dense.bias": total["dense.bias"]}


def half_std(g: Tensors) -> Tensors:
    return noisy(summed(clip_flat(g)), 0.5)


def tensors_as_flat(g: Tensors) -> Tensors:
    return noisy(summed(clip_parts(g, [[name] for name in g], 1.0)), 1.0)


def before_noise(g: Tensors) -> Tensors:
    total = summed(clip_flat(g))
    noisy(total, 1.0)
    return total


class ReusedNoise:
    """One training draws noise once and adds it in every round."""

    noise: Tensors | None = None

    def start(self) -> None:
        self.noise = None

    def __call__(self, g: Tensors) -> Tensors:
        total = summed(clip_flat(g))
        if self.noise is None:
            self.noise = {name: torch.randn(value.shape) for name, value in total.items()}
        return {name: value + self.noise[name] for name, value in total.items()}


class FixedSeed:
    """Every training begins with the same seed."""

    def start(self) -> None:
        self.generator = torch.Generator().manual_seed(0)

    def __call__(self, g: Tensors) -> Tensors:
        return {
            k: v + torch.randn(v.shape, generator=self.generator)
            for k, v in summed(clip_flat(g)).items()
        }


def noise_over_b(g: Tensors) -> Tensors:
    return noisy(summed(clip_flat(g)), 1.0 / B)


def microbatch_of_two(g: Tensors) -> Tensors:
    pairs = {
        name: torch.stack([half.mean(dim=0) for half in value.split(2)])
        for name, value in g.items()
    }
    return noisy(summed(clip_flat(pairs)), 1.0)


def clip_after_noise(g: Tensors) -> Tensors:
    return summed(clip_flat(noisy(g, 1.0)))


def unclipped_bias(g: Tensors) -> Tensors:
    biases = {name: value for name, value in g.items() if name.endswith("bias")}
    weights = {name: value for name, value in g.items() if name not in biases}
    return noisy(summed(clip_flat(weights) | biases), 1.0)


def sum_noise_on_the_mean(g: Tensors) -> Tensors:
    """Claimed: std sigma C on the mean. Done: std sigma C / B."""
    return noisy({k: v / B for k, v in summed(clip_flat(g)).items()}, 1.0 / B)


def largest_value_norm(g: Tensors) -> Tensors:
    return noisy(summed(clip_flat(g, order=math.inf)), 1.0)


def layers_charged_once(g: Tensors) -> Tensors:
    return noisy(summed(clip_parts(g, layers(g), 1.0)), 1.0)


def noise_if_clipped(g: Tensors) -> Tensors:
    return noisy(summed(clip_flat(g)), 1.0 if bool((norms(g) > 1).any()) else 0.0)


def one_number_a_tensor(g: Tensors) -> Tensors:
    return {name: value + torch.randn(()) for name, value in summed(clip_flat(g)).items()}


def one_number_a_row(g: Tensors) -> Tensors:
    """Noise of shape (rows, 1), which is broadcast."""
    return {
        k: v + torch.randn(v.shape[0], *[1] * (v.ndim - 1)) for k, v in summed(clip_flat(g)).items()
    }


def uniform_noise(g: Tensors) -> Tensors:
    return {
        name: value + (2 * torch.rand(value.shape) - 1) * math.sqrt(3)
        for name, value in summed(clip_flat(g)).items()
    }


def truncated_noise(g: Tensors) -> Tensors:
    return {
        name: value + torch.nn.init.trunc_normal_(torch.empty(value.shape), a=-3, b=3)
        for name, value in summed(clip_flat(g)).items()
    }


def norm_of_the_batch(g: Tensors) -> Tensors:
    whole = norms(g).square().sum().sqrt()
    factor = (1 / whole.clamp(min=1e-12)).clamp(max=1.0)
    return noisy(summed(scaled(g, factor.expand(len(norms(g))))), 1.0)


def replace_sold_as_remove(g: Tensors) -> Tensors:
    """Right for adding or removing one; claimed: the same mu for replacing."""
    return noisy(summed(clip_flat(g)), 1.0)


def over_the_real_size(g: Tensors) -> Tensors:
    size = len(norms(g))
    return {name: value / size for name, value in noisy(summed(clip_flat(g)), 1.0).items()}


def added_twice(g: Tensors) -> Tensors:
    return noisy({k: 2 * v for k, v in summed(clip_flat(g)).items()}, 1.0)


class EverySecondRound:
    """Noise is drawn in one round and used in the next one too."""

    noise: Tensors | None = None

    def __call__(self, g: Tensors) -> Tensors:
        total = summed(clip_flat(g))
        if (used := self.noise) is None:
            self.noise = used = {name: torch.randn(v.shape) for name, v in total.items()}
        else:
            self.noise = None
        return {name: value + used[name] for name, value in total.items()}


def sometimes_none(g: Tensors) -> Tensors:
    return noisy(summed(clip_flat(g)), 1.0 if torch.rand(()) < 0.9 else 0.0)


def noise_of_the_first_alone(g: Tensors) -> Tensors:
    """Values of the same noise for all tensors."""
    noise = torch.randn(100)
    return {
        name: value + noise[: value.numel()].reshape(value.shape)
        for name, value in summed(clip_flat(g)).items()
    }


def variance_for_std(g: Tensors) -> Tensors:
    """sigma = 1 / 2."""
    return noisy(summed(clip_flat(g)), 0.25)


WRONG: dict[str, tuple[Callable[[], Mechanism], dict[str, float]]] = {
    "noise forgotten on a layer": (lambda: forgotten_layer, {}),
    "standard deviation halved": (lambda: half_std, {}),
    "each tensor clipped to C, sold as flat": (lambda: tensors_as_flat, {}),
    "update sent before the noise": (lambda: before_noise, {}),
    "same noise in every round": (ReusedNoise, {}),
    "seed fixed": (FixedSeed, {}),
    "noise divided by the batch size": (lambda: noise_over_b, {}),
    "microbatches of 2": (lambda: microbatch_of_two, {}),
    "clipped after the noise": (lambda: clip_after_noise, {}),
    "biases not clipped": (lambda: unclipped_bias, {}),
    "noise of the sum on the mean": (lambda: sum_noise_on_the_mean, {"mu": 1 / B}),
    "clipped by the largest value": (lambda: largest_value_norm, {}),
    "each layer clipped to C, charged once": (lambda: layers_charged_once, {}),
    "noise only where something was clipped": (lambda: noise_if_clipped, {}),
    "one number of noise a tensor": (lambda: one_number_a_tensor, {}),
    "one number of noise a row": (lambda: one_number_a_row, {}),
    "uniform noise": (lambda: uniform_noise, {}),
    "noise cut off at 3 std": (lambda: truncated_noise, {}),
    "norm of the whole batch": (lambda: norm_of_the_batch, {}),
    "replacing sold as removing": (lambda: replace_sold_as_remove, {"replace_mu": 1.0}),
    "divided by the real batch size": (lambda: over_the_real_size, {}),
    "gradients accumulated twice": (lambda: added_twice, {}),
    "noise used for two rounds": (EverySecondRound, {}),
    "one step of ten without noise": (lambda: sometimes_none, {}),
    "same noise for all tensors": (lambda: noise_of_the_first_alone, {}),
    "variance in place of the std": (lambda: variance_for_std, {"mu": 2.0}),
}


@pytest.mark.parametrize("fault", WRONG)
def test_wrong_mechanisms_are_caught(fault: str) -> None:
    made, claimed = WRONG[fault]
    found = judged(made(), 400, **claimed)  # type: ignore[arg-type]
    assert found.verdict == "above", found


# ---------------------------------------------------------------------------- the numbers


def test_the_bound_is_close_below_the_truth() -> None:
    """mu = 1: what 1,000 trials show of one canary is at least three quarters of it."""
    found = audit_mechanism(
        Right(1.0, 1.0), {"weight": (4, 5)}, clip=1.0, claimed_mu=1.0, batch_size=1, trials=1000
    )
    assert found.verdict == "within" and found.trials == 1000
    assert 0.75 < found.mu <= 1.0
    assert found.epsilon == pytest.approx(epsilon_of_mu(found.mu, 1e-5))


def test_bounds_of_gaussian_trials_hold_as_often_as_they_say() -> None:
    drawn = np.random.default_rng(0)
    mu, error, above = 1.3, 0.05, 0
    for _ in range(400):
        inside, outside = drawn.normal(mu, 1, 60), drawn.normal(0, 1, 60)
        above += gaussian_mu(Trials(inside, outside), error) > mu
    assert above <= norm.isf(1e-3) * math.sqrt(400 * error * (1 - error)) + 400 * error


def test_tails_of_gaussian_noise_are_not_thin_and_those_of_others_are() -> None:
    drawn = np.random.default_rng(1)
    shape = (100, 2000)
    stds = 10 ** drawn.uniform(-3, 3, shape[1])  # every coordinate its own
    assert not any(light_tails(drawn.normal(0, 1, shape) * stds, 0.01) for _ in range(20))
    assert not light_tails(drawn.laplace(0, 1, shape), 0.01)
    assert light_tails(drawn.uniform(-1, 1, shape) * stds, 1e-6)
    assert not light_tails(np.zeros(shape), 0.5)


def test_stages_end_with_the_time() -> None:
    found = audit_mechanism(
        Right(1.0, 1.0), SHAPES, clip=1.0, claimed_mu=1.0, batch_size=1, seconds=0.01
    )
    assert found.verdict == "within" and found.trials == 100


def test_torch_draws_on_as_if_nothing_had_been() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first = judged(before_noise, 100)
    assert torch.equal(before, torch.get_rng_state())
    assert first == judged(before_noise, 100)


def test_what_is_no_mechanism_is_refused_in_a_sentence() -> None:
    with pytest.raises(LeakbenchError, match=r"a tensor for each of conv\.weight"):
        judged(lambda g: {"weight": torch.zeros(3)}, 100)
    with pytest.raises(LeakbenchError, match=r"the release of 'conv\.weight' is"):
        judged(lambda g: {k: v.sum() for k, v in g.items()}, 100)
    with pytest.raises(LeakbenchError, match="is complex; allowed: a tensor of real"):
        judged(lambda g: {k: v.sum(dim=0).cfloat() for k, v in g.items()}, 100)
    with pytest.raises(LeakbenchError, match="not finite"):
        judged(lambda g: {k: v.sum(dim=0) * math.nan for k, v in g.items()}, 100)
    for wrong in ({"clip": 0.0}, {"mu": -1.0}):
        with pytest.raises(LeakbenchError, match="must be"):
            judged(Right(1.0, 1.0), 100, **wrong)  # type: ignore[arg-type]
    with pytest.raises(LeakbenchError, match="at least 100"):
        judged(Right(1.0, 1.0), 99)
