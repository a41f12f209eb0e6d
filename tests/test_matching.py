"""Losses of matching: weights by known noise, the angle, total variation."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from leakbench.contracts import Gradients, Leak, LeakPoint, LocalSteps, Observation
from leakbench.errors import LeakbenchError
from leakbench.matching import (
    LEAST_STD,
    cosine_loss,
    noise_weights,
    sign_rule_labels,
    squared_distance,
    squared_loss,
    total_variation,
)

SIZES = {"a": 3, "b": 4, "c": 5}
INPUT = 6


def nobody(*_: object) -> Gradients:
    """The run of an observation that is not simulated."""
    raise AssertionError("nothing is simulated here")


def maps(seed: int = 0) -> dict[str, Tensor]:
    """The linear gradient of each tensor: (size, INPUT)."""
    stream = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(size, INPUT, generator=stream, dtype=torch.float64)
        for name, size in SIZES.items()
    }


def linear_leak(
    observed: Tensor, noise_std: Mapping[str, Tensor] | None = None, looks: int = 1
) -> Leak:
    """Gradients that are linear in the input; observed (n, 12), all tensors side by side."""

    def run(
        seen: Observation, inputs: Tensor, labels: Tensor, rows: Tensor, local_steps: LocalSteps
    ) -> Gradients:
        flat = inputs.flatten(1)
        return Gradients({k: flat @ m.T.to(flat.dtype) for k, m in maps().items()}, ("client",))

    pieces = observed.split(list(SIZES.values()), dim=1)
    gradients = Gradients(dict(zip(SIZES, pieces, strict=True)), ("client",))
    weights = {name: torch.zeros(size) for name, size in SIZES.items()}
    return Leak(
        model=cast(Any, None),
        observations=(Observation(weights=weights, gradients=gradients, run=run),) * looks,
        point=LeakPoint(),
        batch_size=1,
        input_shape=(INPUT,),
        input_range=(0.0, 1.0),
        classes=2,
        noise_std=noise_std,
    )


def draw(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def loss_and_slope(
    function: Any, leak: Leak, inputs: Tensor, rows: Tensor
) -> tuple[Tensor, Tensor]:
    inputs = inputs.clone().requires_grad_()
    loss = function(leak, inputs, torch.zeros(len(rows), 1).long(), rows)
    return loss.detach(), torch.autograd.grad(loss.sum(), inputs)[0]


# ---------------------------------------------------------------------------- known noise


def stds(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_weights_are_one_over_variance() -> None:
    std = {"a": stds(1.0, 2.0), "b": stds(2.0, 1.0), "c": stds(4.0, 0.5)}
    weights = noise_weights(linear_leak(draw(2, 12), std), torch.arange(2))
    assert weights is not None
    for row in range(2):
        products = [float(weights[name][row] * std[name][row] ** 2) for name in SIZES]
        assert products == pytest.approx([products[0]] * 3)
        mean = sum(float(weights[name][row]) * size for name, size in SIZES.items()) / 12
        assert mean == pytest.approx(1.0)


def test_weights_belong_to_victims() -> None:
    std = {"a": stds(1.0, 2.0, 9.0), "b": stds(2.0, 1.0, 3.0), "c": stds(4.0, 0.5, 0.1)}
    leak = linear_leak(draw(3, 12), std)
    whole, some = (noise_weights(leak, torch.tensor(rows)) for rows in ([0, 1, 2], [2, 0]))
    assert whole is not None and some is not None
    assert all(torch.equal(some[name], whole[name][[2, 0]]) for name in SIZES)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.0, 1e-3, 0.7, 3e5, math.nan, math.inf])
def test_equal_or_unknown_noise_changes_no_bit(value: float, dtype: torch.dtype) -> None:
    observed, inputs, rows = draw(3, 12).to(dtype), draw(3, 1, INPUT).to(dtype), torch.arange(3)
    std = {name: torch.full((3,), value, dtype=dtype) for name in SIZES}
    plain = loss_and_slope(squared_loss, linear_leak(observed), inputs, rows)
    weighted = loss_and_slope(squared_loss, linear_leak(observed, std), inputs, rows)
    assert torch.equal(plain[0], weighted[0]) and torch.equal(plain[1], weighted[1])


def test_one_unpublished_std_leaves_its_victim_unweighted() -> None:
    observed, inputs, rows = draw(2, 12), draw(2, 1, INPUT), torch.arange(2)
    std = {"a": stds(1.0, 1.0), "b": stds(2.0, 2.0), "c": stds(math.nan, 3.0)}
    plain, _ = loss_and_slope(squared_loss, linear_leak(observed), inputs, rows)
    weighted, slope = loss_and_slope(squared_loss, linear_leak(observed, std), inputs, rows)
    assert plain[0] == weighted[0] and plain[1] != weighted[1]
    assert bool(torch.isfinite(slope).all())


def test_a_tensor_without_noise_gets_a_finite_weight() -> None:
    std = {"a": stds(0.0), "b": stds(2.0), "c": stds(1.0)}
    weights = noise_weights(linear_leak(draw(1, 12), std), torch.arange(1))
    assert weights is not None
    assert float(weights["a"] / weights["b"]) == pytest.approx(LEAST_STD**-2)
    assert float(weights["c"] / weights["b"]) == pytest.approx(4.0)


def test_weighted_matching_is_maximum_likelihood() -> None:
    """Its minimum is the generalised least squares solution, for both looks together."""
    std = {"a": stds(0.1), "b": stds(1.0), "c": stds(3.0)}
    observed = draw(1, 12)
    leak = linear_leak(observed, std, looks=2)
    design = torch.cat(list(maps().values()))
    scales = torch.cat([1 / std[name].expand(size) for name, size in SIZES.items()])[:, None]
    best = torch.linalg.lstsq(scales * design, scales * observed.T).solution.T
    loss, slope = loss_and_slope(squared_loss, leak, best[:, None], torch.arange(1))
    assert float(slope.abs().max()) < 1e-9
    once, _ = loss_and_slope(
        squared_loss, linear_leak(observed, std), best[:, None], torch.arange(1)
    )
    assert float(loss) == pytest.approx(2 * float(once))
    plain = loss_and_slope(squared_loss, linear_leak(observed), best[:, None], torch.arange(1))
    assert float(plain[1].abs().max()) > 1e-3


# ---------------------------------------------------------------------------- the angle


@settings(max_examples=30, deadline=None, derandomize=True)
@given(seed=st.integers(0, 1000), factor=st.floats(1e-12, 1e12))
def test_cosine_is_one_angle_over_all_parameters(seed: int, factor: float) -> None:
    observed, inputs = draw(3, 12, seed=seed), draw(3, 1, INPUT, seed=seed + 1)
    simulated = inputs.flatten(1) @ torch.cat(list(maps().values())).T
    expected = 1 - torch.nn.functional.cosine_similarity(simulated, observed)
    rows, labels = torch.arange(3), torch.zeros(3, 1).long()
    for looks in (1, 2):
        leak = linear_leak(factor * observed, looks=looks)
        torch.testing.assert_close(cosine_loss(leak, inputs, labels, rows), looks * expected)


@pytest.mark.parametrize("which", ["observed", "simulated", "both"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_zero_gradient_has_loss_one(which: str, dtype: torch.dtype) -> None:
    observed, inputs = draw(2, 12).to(dtype), draw(2, 1, INPUT).to(dtype)
    if which != "simulated":
        observed[0] = 0
    if which != "observed":
        inputs[0] = 0
    loss, slope = loss_and_slope(cosine_loss, linear_leak(observed), inputs, torch.arange(2))
    assert float(loss[0]) == 1.0 and float(loss[1]) != 1.0
    assert bool(torch.isfinite(slope).all())


def test_tiny_gradients_keep_their_angle() -> None:
    observed, inputs = 1e-20 * draw(2, 12).float(), 1e-15 * draw(2, 1, INPUT).float()
    loss, _ = loss_and_slope(cosine_loss, linear_leak(observed), inputs, torch.arange(2))
    large, _ = loss_and_slope(
        cosine_loss, linear_leak(1e20 * observed), 1e15 * inputs, torch.arange(2)
    )
    torch.testing.assert_close(loss, large)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("function", [cosine_loss, squared_loss])
def test_a_gradient_that_is_not_finite_has_no_finite_loss(function: Any, value: float) -> None:
    observed = draw(2, 12)
    observed[0, 5] = value
    loss, _ = loss_and_slope(function, linear_leak(observed), draw(2, 1, INPUT), torch.arange(2))
    assert torch.isfinite(loss).tolist() == [False, True]


# ---------------------------------------------------------------------------- total variation


def test_total_variation_by_hand() -> None:
    image = torch.tensor([[0.0, 1.0, 3.0], [2.0, 2.0, 2.0]])[None, None, None]
    right, down = (1 + 2 + 0 + 0) / 4, (2 + 1 + 1) / 3
    assert float(total_variation(image)) == pytest.approx(right + down)


def test_total_variation_is_a_mean_over_batch_and_channels() -> None:
    inputs = draw(4, 2, 3, 5, 7)
    expected = torch.stack(
        [
            torch.stack([total_variation(c[None, None, None])[0] for c in one.flatten(0, 1)]).mean()
            for one in inputs
        ]
    )
    torch.testing.assert_close(total_variation(inputs), expected)


def test_flat_pictures_have_a_finite_slope() -> None:
    flat = torch.full((2, 1, 1, 4, 4), 0.5, requires_grad=True)
    slope = torch.autograd.grad(total_variation(flat).sum(), flat)[0]
    assert torch.equal(slope, torch.zeros_like(flat))


@pytest.mark.parametrize("shape", [(2, 1, 30), (2, 1, 1, 1, 9), (2, 1, 4, 4)])
def test_total_variation_takes_pictures(shape: tuple[int, ...]) -> None:
    with pytest.raises(LeakbenchError, match=r"total variation: takes images .*total_variation 0"):
        total_variation(torch.zeros(shape))


def test_squared_distance_has_the_derivatives_it_should_once_and_twice() -> None:
    torch.manual_seed(0)
    value, target = (torch.randn(3, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))

    def distance(value: Tensor, target: Tensor) -> Tensor:
        one, two = (Gradients({"w": tensor}, ("client",)) for tensor in (value, target))
        return squared_distance(one, two)

    assert torch.autograd.gradcheck(distance, (value, target))
    assert torch.autograd.gradgradcheck(distance, (value, target))


def test_observed_rows_are_kept_and_forgotten() -> None:
    whole = Gradients({"w": torch.arange(6.0).reshape(3, 2)}, ("client",))
    seen = Observation(weights={"w": torch.zeros(2)}, gradients=whole, run=nobody)
    rows = torch.tensor([2, 0])
    first = seen.of(rows)
    assert torch.equal(first.tensors["w"], torch.tensor([[4.0, 5.0], [0.0, 1.0]]))
    assert seen.of(rows.clone()) is first
    assert torch.equal(seen.of(torch.tensor([1])).tensors["w"], torch.tensor([[2.0, 3.0]]))
    spoilt = seen.of(rows)
    spoilt.tensors["w"].zero_()
    seen.forget()
    assert torch.equal(seen.of(rows).tensors["w"], torch.tensor([[4.0, 5.0], [0.0, 1.0]]))


# ---------------------------------------------------------------------------- the sign rule


def test_the_sign_rule_sums_all_looks() -> None:
    """Row sums of three looks: the class of the least sum is not that of any single look."""
    looks = torch.tensor(
        [
            # looks x victims x classes
            [[-3.0, 4.0, -2.5, 1.0], [1.0, 2.0, 3.0, -1.0]],
            [[5.0, -3.0, -2.5, 0.0], [-2.0, 1.0, 0.0, -1.5]],
            [[1.0, 0.5, -2.5, -3.0], [0.5, -2.0, 0.0, -1.5]],
        ]
    )
    assert looks.argmin(dim=2).tolist() == [[0, 3], [1, 0], [3, 1]]
    assert looks.sum(dim=0).tolist() == [[3.0, 1.5, -7.5, -2.0], [-0.5, 1.0, 3.0, -4.0]]
    share = torch.tensor([0.5, 0.25, 0.25])  # of a row sum in each of the head's three columns
    observations = tuple(
        Observation(
            weights={"head": torch.zeros(4, 3)},
            gradients=Gradients({"head": look[..., None] * share}, ("client",)),
            run=nobody,
        )
        for look in looks
    )
    leak = replace(
        linear_leak(draw(2, 12)), model=cast(Any, Named("head")), observations=observations
    )
    assert sign_rule_labels(leak).tolist() == [[2], [3]]
    for number, labels in enumerate([[[0], [3]], [[1], [0]], [[3], [1]]]):
        one = replace(leak, observations=observations[number : number + 1])
        assert sign_rule_labels(one).tolist() == labels


class Named:
    """A model of which only the head's name and the loss are asked."""

    loss = "cross_entropy"

    def __init__(self, head: str) -> None:
        self.head = head
