"""Who holds which examples: nobody the same, and as many of each class as the papers say."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from leakbench import data
from leakbench.data import partitions
from leakbench.errors import LeakbenchError
from leakbench.streams import generator

LABELS = data.load("mnist").train_labels  # 4000 digits, round robin over the classes


def iid(labels: Tensor, clients: int, stream: torch.Generator) -> list[Tensor]:
    return partitions.iid(len(labels), clients, stream)


def dirichlet(labels: Tensor, clients: int, stream: torch.Generator) -> list[Tensor]:
    return partitions.dirichlet(labels, clients, stream, concentration=0.5)


PARTITIONS: list[Any] = [iid, partitions.shards, dirichlet]


def counts(shares: Sequence[Tensor], labels: Tensor, classes: int) -> Tensor:
    """Examples of every class, (clients, classes)."""
    return torch.stack([torch.bincount(labels[share], minlength=classes) for share in shares])


# ---------------------------------------------------------------------------- all kinds


@pytest.mark.parametrize("kind", PARTITIONS)
@settings(max_examples=60, deadline=None)
@given(examples=st.integers(1, 200), clients=st.integers(1, 12), seed=st.integers(0, 2**32))
def test_no_example_belongs_to_two_clients(
    kind: Any, examples: int, clients: int, seed: int
) -> None:
    if examples < 2 * clients:
        clients = max(examples // 2, 1)
    labels = torch.arange(max(examples, 2)) % 10
    shares = kind(labels, clients, torch.Generator().manual_seed(seed))
    held = torch.cat(shares).tolist()
    assert len(shares) == clients
    assert len(set(held)) == len(held)
    assert set(held) <= set(range(len(labels)))
    if kind is dirichlet:
        assert len(held) == len(labels)
    else:
        parts = clients if kind is iid else 2 * clients  # what does not divide is left out
        each = len(labels) // parts * parts // clients
        assert [len(share) for share in shares] == [each] * clients
    assert all(share.dtype == torch.int64 for share in shares)


@pytest.mark.parametrize("kind", PARTITIONS)
def test_the_generator_alone_decides(kind: Any) -> None:
    torch.manual_seed(1)
    one = kind(LABELS, 7, generator(5, "partition"))
    torch.manual_seed(2)
    again = kind(LABELS, 7, generator(5, "partition"))
    other = kind(LABELS, 7, generator(6, "partition"))
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(one, other, strict=True))


# ---------------------------------------------------------------------------- iid


def test_iid_clients_have_all_classes_alike() -> None:
    found = counts(iid(LABELS, 10, generator(0, "iid")), LABELS, 10).double()
    # 400 of 4000, 40 a class: a chi-square test of 10 x 10 counts against equal ones.
    statistic = float(((found - 40).square() / 40).sum())
    assert 0.001 < stats.chi2.sf(statistic, 81) < 0.999


def test_iid_leaves_out_at_random() -> None:
    """7 of 4000 do not divide by 11; over many draws every part of the set loses some."""
    left = torch.zeros(4000)
    for seed in range(300):
        kept = torch.cat(iid(LABELS, 11, generator(seed, "iid")))
        left += 1
        left[kept] -= 1
    assert int(left.sum()) == 300 * 7
    quarters = left.reshape(4, 1000).sum(dim=1).numpy()
    assert stats.chisquare(quarters).pvalue > 1e-3


# ---------------------------------------------------------------------------- shards


@pytest.mark.parametrize("classes", [1, 2, 5])
def test_a_client_has_as_many_classes_as_shards(classes: int) -> None:
    """Of 20 clients; 20, 40 or 100 shards never cross the border of a class."""
    shares = partitions.shards(LABELS, 20, generator(1, "shards"), classes_a_client=classes)
    found = (counts(shares, LABELS, 10) > 0).sum(dim=1)
    assert [len(share) for share in shares] == [200] * 20
    assert int(found.max()) == classes
    # Several shards of a client may be of one class: how many classes are in a hand of cards.
    missing = stats.hypergeom(20 * classes, 2 * classes, classes).pmf(0)
    assert abs(float(found.double().mean()) - 10 * (1 - missing)) < 0.25


def test_shards_are_consecutive_by_class_and_dealt_at_random() -> None:
    """Two clients of one shard halve the classes, whoever gets the lower half."""
    lower = 0
    for seed in range(40):
        stream = generator(seed, "shards")
        first, second = partitions.shards(LABELS, 2, stream, classes_a_client=1)
        classes = {int(LABELS[first].max()), int(LABELS[second].max())}
        assert classes == {4, 9}
        lower += int(LABELS[first].max()) == 4
    assert stats.binomtest(lower, 40).pvalue > 1e-3


def test_within_a_class_shards_are_mixed() -> None:
    shares = partitions.shards(LABELS, 20, generator(2, "shards"))
    assert all(bool((share.diff() < 0).any()) for share in shares)
    places = torch.cat([share[LABELS[share] == 0] for share in shares]).float()
    assert len(places) == 400
    rank = stats.spearmanr(places.numpy(), range(400)).statistic
    assert abs(rank) < 4 / 400**0.5


def test_shards_leave_out_of_any_class() -> None:
    """19 of 4000 do not divide into 199 shards; they are not all nines."""
    left = torch.zeros(10)
    for seed in range(50):
        kept = torch.cat(
            partitions.shards(LABELS, 199, generator(seed, "rest"), classes_a_client=1)
        )
        left += 400 - torch.bincount(LABELS[kept], minlength=10)
    assert int(left.sum()) == 50 * (4000 % 199)
    assert stats.chisquare(left.numpy()).pvalue > 1e-3


# ---------------------------------------------------------------------------- Dirichlet


@pytest.mark.parametrize("concentration", [0.1, 0.5, 1.0, 10.0])
def test_dirichlet_shares_have_the_distribution_of_their_concentration(
    concentration: float,
) -> None:
    """A client's share of one class is Beta(a, (N - 1) a): its variance, and how often it is
    above some values, over 600 classes that are split independently."""
    classes, each, clients = 600, 200, 5
    labels = torch.arange(classes).repeat(each)
    shares = partitions.dirichlet(
        labels, clients, generator(3, "dirichlet"), concentration=concentration
    )
    held = counts(shares, labels, classes)
    assert held.sum(dim=0).tolist() == [each] * classes
    found = held.double() / each
    beta = stats.beta(concentration, (clients - 1) * concentration)
    for client in range(clients):
        own = found[client]
        assert abs(float(own.mean()) - 1 / clients) < 4 * beta.std() / classes**0.5
        for limit in (0.1, 0.25, 0.5):
            expected = float(beta.sf(limit + 0.5 / each))  # between two multiples of 1/200
            above = float((own > limit + 0.25 / each).double().mean())
            tolerance = 4 * (expected * (1 - expected) / classes) ** 0.5 + 1 / classes
            assert abs(above - expected) < tolerance
    variance = float((found - 1 / clients).square().mean())
    assert abs(variance / beta.var() - 1) < 0.12


@pytest.mark.parametrize(("concentration", "low", "high"), [(0.01, 8, 10), (1e4, 0.99, 1.01)])
def test_small_and_large_concentrations(concentration: float, low: float, high: float) -> None:
    """Where one client has a whole class, sum of squared shares is 1; where all have the same, it
    is 1/N. N = 10 times that, on average over ten classes."""
    shares = partitions.dirichlet(LABELS, 10, generator(4, "ends"), concentration=concentration)
    found = counts(shares, LABELS, 10).double() / 400
    assert low < float(found.square().sum(dim=0).mean() * 10) <= high


def test_dirichlet_splits_a_class_in_random_order() -> None:
    shares = partitions.dirichlet(LABELS, 2, generator(6, "order"), concentration=100.0)
    zeros = shares[0][LABELS[shares[0]] == 0].double() / 4000
    assert 100 < len(zeros) < 300
    assert stats.kstest(zeros.numpy(), "uniform").pvalue > 1e-3


@settings(max_examples=60, deadline=None)
@given(
    concentration=st.floats(0.01, 10.0),
    clients=st.integers(1, 8),
    least=st.integers(0, 40),
    seed=st.integers(0, 2**32),
)
def test_every_client_has_the_least_or_a_sentence_says_why(
    concentration: float, clients: int, least: int, seed: int
) -> None:
    """A draw that serves is kept as it is; none is ever left with a client who cannot train."""
    labels = torch.arange(240) % 10

    def drawn(least: int) -> list[Tensor]:
        stream = torch.Generator().manual_seed(seed)
        return partitions.dirichlet(
            labels, clients, stream, concentration=concentration, least=least
        )

    first = drawn(0)
    try:
        shares = drawn(least)
    except LeakbenchError as error:
        assert "\n" not in str(error)
        assert least * clients > 240 or f"gives each of {clients} clients {least}" in str(error)
        assert min(map(len, first)) < least
        return
    assert min(map(len, shares)) >= least
    assert sorted(torch.cat(shares).tolist()) == list(range(240))
    if min(map(len, first)) >= least:
        assert all(torch.equal(a, b) for a, b in zip(first, shares, strict=True))


def test_draws_are_those_of_the_distribution_given_that_they_serve() -> None:
    """Two clients, one class of 100: the first has 20 to 80 of them, uniform at concentration 1."""
    labels = torch.zeros(100, dtype=torch.int64)
    held = [
        len(
            partitions.dirichlet(
                labels, 2, torch.Generator().manual_seed(seed), concentration=1.0, least=20
            )[0]
        )
        for seed in range(600)
    ]
    assert min(held) >= 20 and max(held) <= 80
    assert stats.kstest([(h - 19.5) / 61 for h in held], "uniform").pvalue > 1e-3


# ---------------------------------------------------------------------------- errors

STREAM = torch.Generator()
ERRORS: list[tuple[Callable[[], object], str]] = [
    (lambda: partitions.iid(3, 4, STREAM), "'iid': 3 examples .* 4 parts; allowed: 1 to 3"),
    (lambda: partitions.iid(3, 0, STREAM), "'iid': 3 examples .* 0 parts"),
    (lambda: partitions.shards(LABELS[:9], 5, STREAM), "'shards': 9 examples .* 10 parts"),
    (
        lambda: partitions.shards(LABELS, 5, STREAM, classes_a_client=0),
        "'shards': 4000 examples .* 0 parts",
    ),
    (lambda: dirichlet(LABELS[:3], 4, STREAM), "'dirichlet': 3 examples .* 4 parts"),
    (lambda: dirichlet(LABELS, -1, STREAM), "'dirichlet': 4000 examples .* -1 parts"),
    (
        lambda: partitions.dirichlet(LABELS, 400, STREAM, concentration=1.0, least=11),
        "4000 examples do not give 400 clients 11 each; allowed: up to 10",
    ),
    (
        lambda: partitions.dirichlet(LABELS, 20, STREAM, concentration=0.001, least=30),
        "of 1000 draws with concentration 0.001 none gives each of 20 clients 30 examples",
    ),
    *[
        (
            lambda value=value: partitions.dirichlet(LABELS, 5, STREAM, concentration=value),
            f"concentration must be positive and finite, got {value}".replace("+", r"\+"),
        )
        for value in (0.0, -1.0, float("inf"), float("nan"), 1e308)
    ],
]


@pytest.mark.parametrize(("call", "said"), ERRORS)
def test_what_cannot_be_shared_is_one_sentence(call: Callable[[], object], said: str) -> None:
    with pytest.raises(LeakbenchError, match=said) as caught:
        call()
    assert "\n" not in str(caught.value)
