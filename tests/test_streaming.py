"""Examples that go through a hook a few at a time: the bits of all at once, claims that fail."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from leakbench import native, relu_gradients, training
from leakbench.architectures import build
from leakbench.chain import chain_of
from leakbench.contracts import Context, Defense, Gradients, State
from leakbench.data import load
from leakbench.defenses.adaclip import AdaClip
from leakbench.defenses.dp_baseline import DPBaseline
from leakbench.defenses.dp_sgd import DPSGD
from leakbench.defenses.fed_cdp import FedCDP
from leakbench.defenses.prune import Prune
from leakbench.errors import LeakbenchError
from leakbench.gradients import per_example
from leakbench.running_means import RunningMean
from leakbench.streams import NoiseStreams, generator
from leakbench.training import Batch, Round, run_round

SHAPES: dict[str, tuple[int, ...]] = {
    "one": (1,), "few": (3,), "ten": (10,), "kernel": (4, 1, 5, 5), "two": (64,), "more": (129,),
    "dense": (10, 49),
}  # fmt: skip
DIGITS = load("mnist")


# ------------------------------------------------------------------------------ running means


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("size", [2, 15, 17, 33, 256, 600, 4113])
def test_a_running_mean_has_the_bits_of_the_mean(
    size: int, padded: bool, dtype: torch.dtype
) -> None:
    """Whatever the pieces are: torch's own sum over all examples is what it is held against."""
    drawn = torch.Generator().manual_seed(size)
    shapes = dict(list(SHAPES.items())[-2:]) if size > 1000 else SHAPES
    values = {
        name: torch.randn(2, size, *shape, generator=drawn, dtype=dtype).exp()
        for name, shape in shapes.items()
    }
    mask = torch.rand(2, size, generator=drawn) < 0.7 if padded else None
    whole = Gradients(values, ("client", "example"), mask)
    for lengths in ([32], [5, 40, 3], [size], *([] if size > 1000 else [[1], [16]])):
        running, begun, turn = RunningMean(), 0, 0
        while begun < size:
            some = slice(begun, begun + lengths[turn % len(lengths)])
            rows = {k: v[:, some].clone() for k, v in values.items()}
            running.add(Gradients(rows, whole.axes, None if mask is None else mask[:, some]))
            for value in rows.values():  # nothing of a piece may be needed once it is added
                value.fill_(torch.nan)
            begun, turn = some.stop, turn + 1
        assert_same(running.mean(), whole.mean("example"))


def assert_same(found: Gradients, expected: Gradients) -> None:
    assert found.axes == expected.axes and found.tensors.keys() == expected.tensors.keys()
    for name, value in expected.tensors.items():
        assert torch.equal(found.tensors[name], value), name
    assert (found.mask is None) == (expected.mask is None)
    if found.mask is not None and expected.mask is not None:
        assert torch.equal(found.mask, expected.mask)


# ------------------------------------------------------------------------------ rounds


@dataclass(frozen=True, kw_only=True)
class Counting(DPBaseline):
    """Remembers clients and examples of every call."""

    name: ClassVar[str] = "counting"
    given: Any = None

    def on_examples(
        self, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        assert len(context.clients) == gradients.leading[0]
        self.given.append(gradients.leading)
        return super().on_examples(gradients, state, context)


CHAIN: Any = chain_of([Prune, FedCDP])
DEFENSES: dict[str, Callable[[], Defense]] = {
    "dp": lambda: DPBaseline(clip=0.5, noise_multiplier=0.1, convention="sum"),
    "flat": lambda: DPSGD(clip=0.5, noise_multiplier=0.1),
    "mean": lambda: FedCDP(clip=0.5, noise_multiplier=0.1, convention="mean"),
    "per_example": lambda: FedCDP(clip=0.5, noise_multiplier=0.1),
    "adaclip": lambda: AdaClip(noise_multiplier=0.1, convention="mean"),
    "chain": lambda: CHAIN(prune_at="example", fed_cdp_convention="sum"),
}


def one_round(
    name: str,
    defense: Defense,
    clients: int,
    size: int,
    *,
    masked: bool = False,
    chunk_size: int | None = None,
    watch: Any = None,
    dtype: torch.dtype = torch.float32,
) -> Round:
    """Two local steps of clients who begin together."""
    model = build(name, DIGITS.input_shape, DIGITS.classes, "default")
    weights = model.init(generator(0, "weights"), dtype)
    rows = torch.randint(len(DIGITS.candidates), (2, clients, size), generator=generator(0, "rows"))
    mask = torch.ones(clients, size, dtype=torch.bool) if masked else None
    if mask is not None:
        mask[0, 3:] = False
        mask[-1, ::2] = False
    batches = [
        Batch(
            inputs=DIGITS.candidates[some].to(dtype), labels=DIGITS.candidate_labels[some],
            mask=mask, expected=size if masked else None,
        )
        for some in rows
    ]  # fmt: skip
    context = Context(
        batch_size=size, clients=tuple(range(4, 4 + clients)), noise=NoiseStreams(0, ("test",))
    )  # fmt: skip
    with torch.no_grad():
        return run_round(
            model, weights, batches, defense, defense.init(weights), context,
            chunk_size=chunk_size, watch=watch,
        )  # fmt: skip


def all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "in_pieces", lambda *given, **options: None)


def assert_same_round(found: Round, expected: Round) -> None:
    assert found.weights is not None and expected.weights is not None
    for name, value in expected.weights.items():
        assert torch.equal(found.weights[name], value), name


@pytest.mark.independent_rows
@pytest.mark.parametrize("defense", list(DEFENSES))
@pytest.mark.parametrize("network", ["cnn2_relu", "cnn2"])
@pytest.mark.parametrize(
    ("clients", "size", "masked"), [(1, 70, False), (1, 41, True), (8, 5, True)]
)
def test_a_round_in_pieces_has_the_bits_of_one_at_once(
    network: str, defense: str, clients: int, size: int, masked: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    given = (network, DEFENSES[defense](), clients, size)
    found = one_round(*given, masked=masked)
    all_at_once(monkeypatch)
    assert_same_round(found, one_round(*given, masked=masked))


@pytest.mark.independent_rows
@pytest.mark.parametrize("network", ["mlp", "cnn2_relu", "cnn2"])
def test_so_it_has_of_other_networks_types_and_bounds(
    network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`mlp` takes all clients at once where it is not in pieces."""
    options: dict[str, Any] = {"chunk_size": 16, "dtype": torch.float64}
    found = one_round(network, DEFENSES["dp"](), 2, 40, **options)
    all_at_once(monkeypatch)
    assert_same_round(found, one_round(network, DEFENSES["dp"](), 2, 40, **options))


@pytest.mark.parametrize(
    ("clients", "size", "given"),
    [(1, 70, [(1, 32), (1, 32), (1, 6)]), (8, 5, [(6, 5), (2, 5)]), (2, 40, [(1, 32), (1, 8)] * 2),
     (4, 8, [(4, 8)])],
)  # fmt: skip
def test_a_hook_sees_what_fits_into_the_cache(
    clients: int, size: int, given: list[tuple[int, int]]
) -> None:
    defense = Counting(convention="sum", given=[])
    one_round("cnn2_relu", defense, clients, size)
    assert defense.given == given * 2


def test_clients_who_differ_in_the_state_stay_together() -> None:
    """The second local step begins with moments of every client."""
    seen: list[tuple[int, ...]] = []

    class Watched(AdaClip):
        def on_examples(
            self, gradients: Gradients, state: Any, context: Context
        ) -> tuple[Gradients, Any]:
            seen.append(gradients.leading)
            return super().on_examples(gradients, state, context)

    one_round("cnn2_relu", Watched(convention="mean"), 8, 5)
    assert seen == [(6, 5), (2, 5), (8, 5)]


class Seen:
    """A `training.Watch`."""

    def __init__(self) -> None:
        self.norms: list[Tensor] = []

    def gradients(self, found: Gradients) -> None:
        assert found.mask is not None
        self.norms.append(found.flat_norm()[found.mask])

    def updates(self, raw: Gradients, released: Gradients) -> None:
        pass


@pytest.mark.parametrize(("clients", "size"), [(1, 41), (8, 5)])
def test_who_looks_on_sees_every_example(
    clients: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces, whole = Seen(), Seen()
    one_round("cnn2_relu", DEFENSES["dp"](), clients, size, masked=True, watch=pieces)
    all_at_once(monkeypatch)
    one_round("cnn2_relu", DEFENSES["dp"](), clients, size, masked=True, watch=whole)
    assert len(pieces.norms) == 2 and len(whole.norms) == 1
    assert torch.equal(torch.cat(pieces.norms), whole.norms[0])


@dataclass(frozen=True, kw_only=True)
class Liar(DPBaseline):
    """Says that it is rowwise, and is not."""

    name: ClassVar[str] = "liar"
    how: str = ""

    @property
    def rowwise(self) -> bool:
        return True

    def on_examples(
        self, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        if self.how == "noise":
            return context.add_gaussian(gradients, 1.0, "examples"), state
        if self.how == "choice":
            drawn = context.uniform(next(iter(gradients.tensors.values())), "choice")
            return gradients.scale(drawn.flatten(2)[..., 0].to(torch.float32)), state
        return gradients, torch.zeros(())


@pytest.mark.parametrize(
    ("how", "said"),
    [("noise", "draws noise .'examples/conv1.weight'."), ("choice", "draws noise .'choice'."),
     ("state", "another state")],
)  # fmt: skip
def test_a_claim_that_does_not_hold_is_refused_in_training(how: str, said: str) -> None:
    with pytest.raises(LeakbenchError, match=f"defense 'liar': .* rowwise.* {said}"):
        one_round("cnn2_relu", Liar(how=how), 1, 40)


# ------------------------------------------------------------------------------ their gradients


def test_clients_of_a_sigmoid_network_are_computed_as_if_alone() -> None:
    """With weights of their own they have the gradients that each has by bare autograd."""
    model = build("cnn2", DIGITS.input_shape, DIGITS.classes, "default")
    drawn = [model.init(generator(client, "weights"), torch.float32) for client in range(3)]
    weights = {k: torch.stack([one[k] for one in drawn]) for k in drawn[0]}
    images = DIGITS.candidates[:15].unflatten(0, (3, 5))
    labels = DIGITS.candidate_labels[:15].unflatten(0, (3, 5))
    found = per_example(model, weights, images, labels, stacked=True)
    for client, own in enumerate(drawn):
        if native.lanes():
            some = slice(client, client + 1)
            alone = per_example(model, own, images[some], labels[some])
            assert_same(found.select(some), alone)
        for place in range(5):
            leaves = {k: v.clone().requires_grad_() for k, v in own.items()}
            logits = model.logits(leaves, images[client, place, None])
            torch.nn.functional.cross_entropy(logits, labels[client, place, None]).backward()
            for k, leaf in leaves.items():
                assert leaf.grad is not None
                torch.testing.assert_close(
                    found.tensors[k][client, place], leaf.grad, rtol=1e-4, atol=1e-6
                )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("channels", "out", "side", "padding"), [(1, 16, 5, 2), (5, 6, 3, 0)])
def test_kernels_of_examples_by_groups_and_by_rows_of_patches(
    channels: int, out: int, side: int, padding: int, dtype: torch.dtype
) -> None:
    """Both against autograd, and one example alone against the same among others."""
    drawn = torch.Generator().manual_seed(1)
    image = torch.randn(4, channels, 9, 8, generator=drawn, dtype=dtype)
    shrunk = side - 1 - 2 * padding
    delta = torch.randn(4, out, 9 - shrunk, 8 - shrunk, generator=drawn, dtype=dtype)
    kernel = torch.zeros(out, channels, side, side, dtype=dtype, requires_grad=True)
    expected = []
    for one, above in zip(image, delta, strict=True):
        z = torch.nn.functional.conv2d(one[None], kernel, padding=padding)
        expected.append(torch.autograd.grad(z, kernel, above[None])[0])
    groups = relu_gradients._grouped(image, delta, side=side, padding=padding)
    rows = relu_gradients._by_rows(image, delta, side=side, padding=padding)
    rtol, atol = (1e-4, 1e-5) if dtype == torch.float32 else (1e-10, 1e-12)
    torch.testing.assert_close(groups, torch.stack(expected), rtol=rtol, atol=atol)
    torch.testing.assert_close(rows, torch.stack(expected), rtol=rtol, atol=atol)
    alone = relu_gradients._grouped(image[2:3], delta[2:3], side=side, padding=padding)
    assert torch.equal(alone, groups[2:3])
