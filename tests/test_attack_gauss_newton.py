"""Gauss-Newton on real digits, most of them halved in size to keep the suite fast."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from leakbench.architectures import build
from leakbench.attacks import gauss_newton
from leakbench.attacks.gauss_newton import GaussNewton, TangentSpace
from leakbench.capturing import capture_leak
from leakbench.contracts import Leak, LeakPoint, Reconstruction
from leakbench.data import load
from leakbench.defenses.dp_baseline import DPBaseline
from leakbench.errors import LeakbenchError
from leakbench.metrics.mse import mse
from leakbench.numeric import add_gram
from leakbench.streams import VictimStreams, generator
from leakbench.testing import check_attack

STRICT = 0.01  # the first half of the rule `strict`
CLIPPING = DPBaseline(clip=4.0, noise_multiplier=0.0)


def digits(which: slice = slice(0, 2), size: int = 14) -> tuple[Tensor, Tensor]:
    """Real digits (n, 1, size, size) of the candidates, and their labels."""
    loaded = load("mnist")
    return avg_pool2d(loaded.candidates[which], 28 // size), loaded.candidate_labels[which]


def public(size: int = 14) -> Tensor:
    return avg_pool2d(load("mnist").public, 28 // size)


def make_leak(
    x: Tensor, y: Tensor, *, model: str = "cnn2", dtype: torch.dtype = torch.float32, **how: Any
) -> Leak:
    network = build(model, tuple(x.shape[-3:]), 10)
    weights = network.init(generator(5, "weights"), dtype)
    looks = how.pop("looks", 1)
    return capture_leak(network, x.to(dtype), y, weights=[weights] * looks, **how)


def attacked(attack: GaussNewton, leak: Leak, first: int = 0) -> Reconstruction:
    streams = VictimStreams(0, tuple(("mnist", first + k) for k in range(leak.n)))
    return attack.reconstruct(leak, streams, lambda *seen: None)


def errors(result: Reconstruction, x: Tensor) -> Tensor:
    return mse(result.inputs.flatten(0, 1), x.reshape(-1, *x.shape[-3:]))


@pytest.mark.parametrize("model", ["cnn2", "mlp"])
def test_digits_come_back_to_rounding_from_their_gradient_alone(model: str) -> None:
    x, y = digits()
    leak = make_leak(x, y, model=model)
    result = attacked(GaussNewton(steps=20), leak)
    assert float(errors(result, x).max()) < 1e-8
    assert torch.equal(result.labels[:, 0], y)
    assert result.status == ("converged", "converged")
    assert float(result.loss.max()) < 1e-9
    flat = torch.full_like(x[:, None], 0.5)
    assert torch.equal(result.start_inputs, flat)
    start_loss = GaussNewton().loss(leak, flat, y[:, None], torch.arange(2))
    assert torch.allclose(start_loss, result.start_loss)


@pytest.mark.slow
def test_whole_digits_come_back_from_an_untrained_network() -> None:
    x, y = digits(slice(0, 4), size=28)
    result = attacked(GaussNewton(steps=20), make_leak(x, y))
    assert float(errors(result, x).max()) < 1e-8


def test_the_loss_is_the_squared_residual_over_the_squared_length() -> None:
    x, y = digits()
    leak = make_leak(x, y, dtype=torch.float64)
    wrong = x[:, None].double().flip(-1)
    rows = torch.arange(2)
    found = GaussNewton().loss(leak, wrong, y[:, None], rows)
    seen = leak.observations[0]
    apart = seen.simulate(wrong, y[:, None], rows).flatten() - seen.gradients.flatten()
    expected = apart.square().sum(dim=1) / seen.gradients.flatten().square().sum(dim=1)
    assert torch.allclose(found, expected, rtol=1e-12)
    truth = GaussNewton().loss(leak, x[:, None].double(), y[:, None], rows)
    assert float(truth.max()) < 1e-28


def test_known_noise_weighs_the_residual_and_brings_the_prior() -> None:
    x, y = digits()
    noisy = DPBaseline(clip=4.0, noise_multiplier=0.1, convention="per_example")
    leak = make_leak(x, y, defense=noisy, knowledge="adaptive", public=public(), grants=["public"])
    wrong, rows = x[:, None].flip(-1), torch.arange(2)
    found = GaussNewton().loss(leak, wrong, y[:, None], rows)
    seen = leak.observations[0]
    apart = seen.simulate(wrong.double(), y[:, None], rows).flatten() - seen.gradients.flatten()
    known = public().flatten(1).double()
    covariance = torch.cov(known.T) + 1e-3 * torch.eye(196)
    away = wrong.double().flatten(1) - known.mean(dim=0)
    unlikely = (away * torch.linalg.solve(covariance, away.T).T).sum(dim=1)
    expected = apart.square().sum(dim=1) / 0.4**2 + unlikely
    assert torch.allclose(found.double(), expected, rtol=1e-5)
    naive = GaussNewton(prior="none").loss(leak, wrong, y[:, None], rows)
    assert torch.allclose(naive.double(), expected - unlikely, rtol=1e-5)


def test_clipping_that_is_replayed_does_not_hide_digits() -> None:
    x, y = digits()
    leak = make_leak(x, y, defense=CLIPPING, knowledge="adaptive")
    assert float(errors(attacked(GaussNewton(steps=25), leak), x).max()) < 1e-6


def test_a_neighbour_with_noise_changes_nothing() -> None:
    """Those attacked together may have different defenses; only who has noise tries labels."""
    x, y = digits()
    leak = make_leak(x, y, defense=CLIPPING, knowledge="adaptive")
    noisy = {name: torch.tensor([0.4, 0.0]) for name in leak.observed.tensors}
    attack = GaussNewton(steps=1, restarts=1)
    alone, beside = attacked(attack, leak), attacked(attack, replace(leak, noise_std=noisy))
    assert torch.equal(alone.inputs[1], beside.inputs[1])
    assert torch.equal(alone.labels[1], beside.labels[1])
    assert int(alone.evaluations[1]) == int(beside.evaluations[1])
    assert int(alone.evaluations[0]) < int(beside.evaluations[0])


def test_several_looks_at_noise_help_and_the_prior_holds() -> None:
    """Four looks leave about a quarter of the error in the directions that the gradient shows."""
    x, y = digits(slice(0, 2))
    noisy = DPBaseline(clip=4.0, noise_multiplier=0.03, convention="per_example")
    found = {}
    for looks in (1, 4):
        leak = make_leak(
            x, y, defense=noisy, knowledge="adaptive", public=public(),
            grants=["public"], looks=looks,
        )  # fmt: skip
        result = attacked(GaussNewton(steps=6), leak)
        assert torch.equal(result.labels[:, 0], y)
        found[looks] = float(errors(result, x).median())
        rows = torch.arange(2)
        truth = GaussNewton().loss(leak, x[:, None], y[:, None], rows)
        assert bool((result.loss < truth).all())
    mean = float(mse(public().mean(dim=0).expand_as(x), x).median())
    assert found[4] < found[1] < mean


@pytest.mark.parametrize(
    ("steps", "left"), [(4, 0.05), pytest.param(40, 1e-12, marks=pytest.mark.slow)]
)
def test_two_local_steps_of_a_client(steps: int, left: float) -> None:
    """The loss falls to that share of the start's; with more steps both inputs are there."""
    x, y = digits(slice(0, 2))
    leak = make_leak(
        x[None], y[None], point=LeakPoint(type=1), local_steps=2, learning_rate=0.1,
        grants=["labels"],
    )  # fmt: skip
    result = attacked(GaussNewton(steps=steps, restarts=1), leak)
    assert float(result.loss) < left * float(result.start_loss)
    assert steps == 4 or float(errors(result, x).max()) < 1e-6


def test_noise_below_rounding_is_none() -> None:
    x, y = digits(slice(0, 1))
    hardly = DPBaseline(clip=4.0, noise_multiplier=1e-30, convention="per_example")
    leak = make_leak(x, y, defense=hardly, knowledge="adaptive", public=public(), grants=["public"])
    result = attacked(GaussNewton(steps=12, restarts=1), leak)
    assert float(errors(result, x).max()) < 1e-6


def test_a_batch_of_two_is_one_problem() -> None:
    x, y = digits(slice(0, 2))
    leak = make_leak(x[None], y[None], point=LeakPoint(view="batch"))
    result = attacked(GaussNewton(steps=40), leak)
    order = y.argsort()
    assert torch.equal(result.labels[0], y[order])
    assert float(errors(result, x[order]).max()) < 1e-6


def test_conjugate_gradients_reach_what_cholesky_does(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = digits(slice(0, 1))
    leak = make_leak(x, y)
    monkeypatch.setattr(gauss_newton, "DENSE_UNKNOWNS", 0)
    result = attacked(GaussNewton(steps=30), leak)
    assert float(errors(result, x).max()) < STRICT / 100
    assert int(result.evaluations) <= GaussNewton(steps=30).budget(leak.facts)


def test_both_forms_of_the_normal_equations_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = digits(slice(0, 1))
    noisy = DPBaseline(clip=4.0, noise_multiplier=0.1, convention="per_example")
    leak = make_leak(x, y, defense=noisy, knowledge="adaptive", public=public(), grants=["public"])
    attack = GaussNewton()
    problem = gauss_newton._Problem(attack, leak, torch.tensor([0]), y[None], attack._prior(leak))
    point = public().double().mean(dim=0).flatten()
    cost = float(problem.cost(point))
    dense = problem.linearised(point, cost)
    monkeypatch.setattr(gauss_newton, "DENSE_UNKNOWNS", 0)
    product = problem.linearised(point, cost)
    direction = torch.cos(torch.arange(196.0, dtype=torch.float64))
    assert isinstance(dense.matrix, Tensor) and not isinstance(product.matrix, Tensor)
    assert torch.allclose(dense.slope, product.slope, rtol=1e-9, atol=1e-9)
    along = dense.matrix @ direction  # of columns in single precision
    assert float((along - product.matrix(direction)).norm()) < 1e-5 * float(along.norm())
    moving = point.requires_grad_()
    slope = torch.autograd.functional.jacobian(
        lambda at: _objective(problem, at), moving
    )  # fmt: skip
    assert torch.allclose(2 * dense.slope, slope, rtol=1e-9, atol=1e-9)


def _objective(problem: Any, point: Tensor) -> Tensor:
    """`cost` written again, with autograd's graph."""
    total = torch.zeros((), dtype=torch.float64)
    for look in problem.looks:
        shown = look.simulate(problem.inputs(point), problem.labels, problem.row).tensors
        for name, value in shown.items():
            apart = (value - look.gradients.tensors[name]) / problem.std[name]
            total = total + apart.square().sum()
    return total + problem.prior.penalty(point)


@pytest.mark.parametrize("batch", [1, 2])
def test_coordinates_keep_the_inner_products_of_a_dense_layer(batch: int) -> None:
    """All derivatives of sums of outer products, against products of the matrices themselves."""
    drawn = torch.Generator().manual_seed(batch)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=drawn, dtype=torch.float64)

    up, down = normal(8, batch), normal(batch, 30)
    moved = torch.stack([normal(8, batch) @ down + up @ normal(batch, 30) for _ in range(5)])
    space = TangentSpace.at(up @ down, moved[0], batch)
    found = space.of(moved)
    assert found.shape == (5, batch * (8 + 30))
    flat = moved.flatten(1)
    assert torch.allclose(found @ found.T, flat @ flat.T, rtol=1e-12)
    anything = normal(1, 8, 30)
    assert torch.allclose(found @ space.of(anything)[0], flat @ anything.flatten(), rtol=1e-12)
    outside = TangentSpace.at(up @ down, normal(8, 30), batch)
    assert outside.left is None
    assert TangentSpace.at(normal(8, 30), moved[0], batch).left is None


def test_half_of_a_gram_matrix_is_computed() -> None:
    rows = torch.randn(600, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    matrix = torch.ones(600, 600, dtype=torch.float64)
    add_gram(matrix, rows)
    assert torch.allclose(matrix, 1 + rows @ rows.T, rtol=1e-12, atol=1e-12)
    assert torch.equal(matrix, matrix.T)


def test_restarts_end_when_one_has_found_the_input() -> None:
    x, y = digits(slice(0, 1))
    leak = make_leak(x, y, dtype=torch.float64)
    once = attacked(GaussNewton(steps=20, restarts=1), leak)
    assert math.isclose(float(errors(once, x)), 0, abs_tol=1e-18)
    again = attacked(GaussNewton(steps=20, restarts=3), leak)
    assert torch.equal(once.evaluations, again.evaluations)


def test_a_restart_that_ends_lower_counts_and_all_are_paid() -> None:
    x, y = digits(slice(0, 1))
    leak = make_leak(x, y, model="mlp")
    seen: list[tuple[int, int]] = []

    def watch(rows: Tensor, steps: Tensor, evaluations: Tensor, *rest: Tensor) -> None:
        seen.append((int(steps), int(evaluations)))

    streams = VictimStreams(0, (("mnist", 0),))
    result = GaussNewton(steps=2, restarts=3).reconstruct(leak, streams, watch)
    assert [step for step, _ in seen] == [1, 2, 3, 4, 5, 6]
    assert sorted(seen) == seen
    assert int(result.steps) == 6
    assert int(result.evaluations) == seen[-1][1]
    first = attacked(GaussNewton(steps=2, restarts=1), leak)
    assert float(result.loss) <= float(first.loss)
    starts = [GaussNewton().start(leak, streams, restart) for restart in range(3)]
    assert torch.equal(result.start_inputs, starts[0])
    assert not torch.equal(starts[1], starts[2])


def test_starts_are_the_mean_public_input_and_mixtures_of_them() -> None:
    x, y = digits()
    leak = make_leak(x, y, public=public(), grants=["public"])
    streams = VictimStreams(0, (("a",), ("b",)))
    attack = GaussNewton()
    mean = public().double().mean(dim=0).float()
    assert torch.allclose(attack.start(leak, streams), mean.expand(2, 1, 1, 14, 14))
    drawn = attack.start(leak, streams, 1)
    assert float(drawn.min()) >= 0
    assert float(drawn.max()) <= 1
    assert not torch.equal(drawn[0], drawn[1])


def test_labels_that_noise_hides_are_tried_by_likelihood() -> None:
    """With so much noise that one head row may be anything, more labels find a lower loss."""
    x, y = digits(slice(0, 1))
    noisy = DPBaseline(clip=4.0, noise_multiplier=1.0, convention="per_example")
    leak = make_leak(
        x, y, defense=noisy, knowledge="adaptive", public=public(), grants=["public"]
    )  # fmt: skip
    few, more = (attacked(GaussNewton(steps=2, labels_tried=k), leak) for k in (1, 3))
    assert bool((more.loss <= few.loss).all())
    assert int(more.evaluations.sum()) > int(few.evaluations.sum())


@pytest.mark.independent_rows
def test_a_victim_has_the_same_bits_alone_and_in_any_order() -> None:
    x, y = digits(slice(0, 3))
    together = attacked(GaussNewton(steps=2, restarts=1), make_leak(x, y))
    alone = attacked(GaussNewton(steps=2, restarts=1), make_leak(x[1:2], y[1:2]), first=1)
    back = attacked(GaussNewton(steps=2, restarts=1), make_leak(x.flip(0), y.flip(0)))
    assert torch.equal(alone.inputs[0], together.inputs[1])
    assert torch.equal(back.inputs[2], together.inputs[0])
    assert torch.equal(back.loss.flip(0), together.loss)


@pytest.mark.parametrize("value", [0.0, math.nan, math.inf])
def test_a_dead_gradient_is_survived(value: float) -> None:
    x, y = digits(slice(0, 1))
    leak = make_leak(x, y, grants=["labels"])
    seen = leak.observations[0]
    for tensor in seen.gradients.tensors.values():
        tensor.fill_(value)
    seen.forget()
    result = attacked(GaussNewton(steps=2), leak)
    assert bool(torch.isfinite(result.inputs).all())
    assert result.status[0] == ("nan" if value else result.status[0])
    assert bool(result.loss.isnan()) == bool(value)


@pytest.mark.parametrize("prior", ["mixture", "autoencoder"])
def test_other_priors_go_with_noise_too(prior: Any) -> None:
    """Nearer than the mean image, and never built where there is no noise."""
    x, y = digits(slice(0, 1))
    noisy = DPBaseline(clip=4.0, noise_multiplier=0.03, convention="per_example")
    known = public()[:100]
    leak = make_leak(x, y, defense=noisy, knowledge="adaptive", public=known, grants=["public"])
    result = attacked(GaussNewton(steps=8, prior=prior), leak)
    assert float(errors(result, x)) < float(mse(known.mean(dim=0).expand_as(x), x)) / 2
    assert GaussNewton(prior=prior)._prior(make_leak(x, y, public=known, grants=["public"])) is None


def test_too_few_public_inputs_for_a_prior_are_a_reason_to_skip() -> None:
    x, y = digits(slice(0, 1))
    leak = make_leak(x, y, public=public()[:19], grants=["public"])
    assert GaussNewton().skip(leak.facts) == ""
    assert GaussNewton(prior="none").skip(leak.facts) == ""
    assert "at least 20 public inputs, got 19" in GaussNewton(prior="mixture").skip(leak.facts)


@pytest.mark.slow
def test_it_keeps_the_contract() -> None:
    check_attack(GaussNewton())


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"steps": 0}, "steps must be at least 1"),
        ({"restarts": 0}, "restarts must be at least 1"),
        ({"labels_tried": 0}, "labels_tried must be at least 1"),
        ({"prior": "flat"}, "prior must be one of"),
    ],
)
def test_parameters_that_mean_nothing_are_refused(parameters: dict[str, Any], text: str) -> None:
    with pytest.raises(LeakbenchError, match=text):
        GaussNewton(**parameters)
