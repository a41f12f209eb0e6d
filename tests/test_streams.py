"""Random numbers belong to names: order, neighbours and defenses change none of them."""

import itertools

import pytest
import torch

from leakbench.contracts import Context, Gradients
from leakbench.streams import NoiseStreams, VictimStreams, generator

VICTIMS = (("mnist", 0, 3), ("mnist", 0, 7), ("mnist", 1, 3), ("cifar10", 0, 3))


def test_generator_follows_its_name_only() -> None:
    names = [(1, "start", 0), (1, "start", 1), (1, "label", 0), (2, "start", 0), (1, 0, "start")]
    first = {name: torch.rand(4, generator=generator(*name)) for name in names}
    again = {name: torch.rand(4, generator=generator(*name)) for name in reversed(names)}
    assert all(torch.equal(first[name], again[name]) for name in names)
    for one, other in itertools.combinations(names, 2):
        assert not torch.equal(first[one], first[other])


def test_generator_leaves_the_global_one_alone() -> None:
    state = torch.random.get_rng_state()
    torch.rand(4, generator=generator(1, "start"))
    VictimStreams(1, VICTIMS).normal("start", (2,))
    NoiseStreams(1, ("mnist",)).normal("batch", 0, 0, 0, (2,))
    assert torch.equal(state, torch.random.get_rng_state())


def test_axes_do_not_run_together() -> None:
    one = torch.rand(4, generator=generator(1, "ab", "c"))
    other = torch.rand(4, generator=generator(1, "a", "bc"))
    assert not torch.equal(one, other)


@pytest.mark.parametrize("draw", ["uniform", "normal"])
def test_victims_keep_their_numbers_in_any_company(draw: str) -> None:
    whole = getattr(VictimStreams(5, VICTIMS), draw)("start", (2, 3))
    assert whole.shape == (4, 2, 3)
    assert whole.dtype == torch.float64
    order = (2, 0, 3)
    some = getattr(VictimStreams(5, tuple(VICTIMS[i] for i in order)), draw)("start", (2, 3))
    assert torch.equal(some, whole[list(order)])


def test_victims_purposes_repeats_and_seeds_differ() -> None:
    streams = VictimStreams(5, VICTIMS)
    draws = [
        streams.uniform("start", (8,)),
        streams.uniform("label", (8,)),
        streams.uniform("start", (8,), repeat=1),
        VictimStreams(6, VICTIMS).uniform("start", (8,)),
    ]
    rows = torch.cat(draws)
    assert len(torch.unique(rows, dim=0)) == len(rows)


def test_uniform_and_normal_have_their_moments() -> None:
    streams = VictimStreams(5, VICTIMS)
    uniform, normal = streams.uniform("start", (20_000,)), streams.normal("start", (20_000,))
    assert float(uniform.min()) >= 0 and float(uniform.max()) < 1
    # Five standard errors of the mean and of the standard deviation of 80,000 draws.
    assert abs(float(uniform.mean()) - 0.5) < 5 * 12**-0.5 / 80_000**0.5
    assert abs(float(normal.mean())) < 5 / 80_000**0.5
    assert abs(float(normal.std()) - 1) < 5 / 160_000**0.5


def test_noise_is_named_by_client_round_iteration_and_purpose() -> None:
    source = NoiseStreams(5, ("mnist", 0))
    names = list(itertools.product(("examples", "batch"), (0, 1), (0, 1), (0, 1)))
    draws = [source.normal(*name, (6,)) for name in names]
    assert len(torch.unique(torch.stack(draws), dim=0)) == len(names)
    assert torch.equal(source.normal(*names[3], (6,)), draws[3])
    assert not torch.equal(NoiseStreams(5, ("mnist", 1)).normal(*names[0], (6,)), draws[0])


def ones(clients: int) -> Gradients:
    return Gradients({"a": torch.ones(clients, 3), "b": torch.ones(clients, 2, 2)}, ("client",))


def test_context_draws_noise_of_its_place_on_the_path() -> None:
    source = NoiseStreams(5, ("mnist",))
    shown = {}
    for round_, iteration in itertools.product((0, 1), (0, 1)):
        context = Context(
            batch_size=1, clients=(0,), round=round_, iteration=iteration, noise=source
        )
        shown[round_, iteration] = context.add_gaussian(ones(1), 2.0, "batch").tensors["a"]
    assert len(torch.unique(torch.cat(list(shown.values())), dim=0)) == 4
    expected = 1 + 2.0 * source.normal("batch/a", 0, 1, 0, (3,))
    assert torch.equal(shown[1, 0][0], expected)


def test_clients_keep_their_noise_in_any_company() -> None:
    source = NoiseStreams(5, ("mnist",))
    both = Context(batch_size=1, clients=(4, 9), noise=source).add_gaussian(ones(2), 1.0, "batch")
    alone = Context(batch_size=1, clients=(9,), noise=source).add_gaussian(ones(1), 1.0, "batch")
    assert all(torch.equal(both.tensors[k][1:], alone.tensors[k]) for k in alone.tensors)


def test_every_client_needs_a_name() -> None:
    with pytest.raises(AssertionError, match="every client"):
        Context(batch_size=1, clients=(0,), noise=NoiseStreams(5, ())).add_gaussian(
            ones(2), 1.0, "batch"
        )


def test_std_of_every_form_scales_one_draw() -> None:
    context = Context(batch_size=1, clients=(0, 1), noise=NoiseStreams(5, ()))
    unit = context.add_gaussian(ones(2), 1.0, "batch")
    by_client = context.add_gaussian(ones(2), torch.tensor([2.0, 3.0]), "batch")
    by_tensor = context.add_gaussian(
        ones(2), {"a": torch.tensor(2.0), "b": torch.tensor(3.0)}, "batch"
    )
    noise = {k: v - 1 for k, v in unit.tensors.items()}
    for name, value in noise.items():
        factor = torch.tensor([2.0, 3.0]).reshape(2, *[1] * (value.ndim - 1))
        torch.testing.assert_close(by_client.tensors[name] - 1, factor * value)
    torch.testing.assert_close(by_tensor.tensors["a"] - 1, 2 * noise["a"])
    torch.testing.assert_close(by_tensor.tensors["b"] - 1, 3 * noise["b"])


def test_a_replay_is_silent() -> None:
    gradients = ones(2)
    assert (
        Context(batch_size=1, noise=None, clients=(0, 1)).add_gaussian(gradients, 6.0, "examples")
        is gradients
    )
    assert torch.equal(
        Context(batch_size=1, clients=(0,), noise=None).gaussian(torch.ones(2), 6.0, "count"),
        torch.zeros(2),
    )
