"""Large networks are computed alone and in pieces: the same numbers as the others, and less memory.

Small networks stand in for large ones here: what counts as large is a constant.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from leakbench import training, weights
from leakbench.architectures import build
from leakbench.contracts import Context, Defense, Gradients, LeakPoint, Model, State
from leakbench.data import load
from leakbench.defenses.fed_cdp import FedCDP
from leakbench.gradients import of_batch, per_example
from leakbench.optim import one_by_one, padded
from leakbench.streams import generator
from leakbench.training import Batch, capture, run_round

CLIENTS, SIZE = 2, 12


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every network is a large one."""
    monkeypatch.setattr(weights, "LARGE", 0)


def network(name: str = "cnn3x3") -> tuple[Model, dict[str, Tensor], Tensor, Tensor]:
    data = load("mnist")
    model = build(name, data.input_shape, data.classes, "default")
    own = model.init(generator(0, "weights"), torch.float64)
    rows = torch.arange(CLIENTS * SIZE).unflatten(0, (CLIENTS, SIZE))
    return model, own, data.candidates[rows].double(), data.candidate_labels[rows]


def stacked(own: dict[str, Tensor]) -> dict[str, Tensor]:
    """Other weights for every client."""
    return {k: torch.stack([v * (1 + 0.1 * i) for i in range(CLIENTS)]) for k, v in own.items()}


def same(one: Gradients, two: Gradients) -> None:
    for name, value in one.tensors.items():
        torch.testing.assert_close(value, two.tensors[name], rtol=1e-9, atol=1e-12, msg=name)


@pytest.mark.parametrize("own_weights", [False, True])
@pytest.mark.parametrize("function", [of_batch, per_example])
def test_alone_or_together_the_gradients_are_the_same(
    function: Callable[..., Gradients], own_weights: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, own, inputs, labels = network()
    given = stacked(own) if own_weights else own
    together = function(model, given, inputs, labels, stacked=own_weights)
    monkeypatch.setattr(weights, "LARGE", 0)
    same(function(model, given, inputs, labels, stacked=own_weights), together)


def test_the_second_derivative_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model, own, inputs, labels = network("lenet_dlg")

    def slope() -> Tensor:
        dummy = (inputs + 0.1).requires_grad_()
        return torch.autograd.grad(
            of_batch(model, own, dummy, labels).flatten().square().sum(), dummy
        )[0]

    together = slope()
    monkeypatch.setattr(weights, "LARGE", 0)
    torch.testing.assert_close(slope(), together, rtol=1e-9, atol=1e-12)


@pytest.mark.usefixtures("large")
def test_alone_a_client_does_not_depend_on_others_bit_for_bit() -> None:
    model, own, inputs, labels = network()
    whole = of_batch(model, own, inputs, labels)
    for client in range(CLIENTS):
        alone = of_batch(model, own, inputs[client, None], labels[client, None])
        for name, value in alone.tensors.items():
            assert torch.equal(value[0], whole.tensors[name][client])


def test_an_objective_is_asked_once_for_each_problem() -> None:
    asked: list[list[int]] = []

    def objective(points: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
        asked.append(numbers.tolist())
        return points.square().sum(dim=1), 2 * points

    points = torch.arange(6.0).reshape(3, 2)
    loss, gradient = padded(one_by_one(objective), points, torch.tensor([4, 0, 7]))
    assert asked == [[4], [0], [7]]
    assert loss.tolist() == [1.0, 13.0, 41.0] and torch.equal(gradient, 2 * points)


# ------------------------------------------------------------------------------ in pieces


@dataclass(frozen=True, kw_only=True)
class Counting(FedCDP):
    """Remembers how many examples it was given at once."""

    name: ClassVar[str] = "counting"
    given: Any = None

    def on_examples(
        self, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        self.given.append(gradients.leading[1])
        return super().on_examples(gradients, state, context)


@pytest.mark.parametrize("own_mask", [False, True])
@pytest.mark.parametrize("expected", [None, 10])
def test_a_batch_clipped_in_pieces_is_the_loop(
    own_mask: bool, expected: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, own, inputs, labels = network()
    mask = torch.ones(CLIENTS, SIZE, dtype=torch.bool)
    if own_mask:
        mask[0, 3], mask[1, 7:] = False, False
    batch = Batch(inputs=inputs, labels=labels, mask=mask if own_mask else None, expected=expected)
    bytes_each = sum(value.numel() * 8 for value in own.values())
    monkeypatch.setattr(training, "AT_ONCE", 5 * CLIENTS * bytes_each)
    defense = Counting(clip=0.05, noise_multiplier=0.0, convention="mean", given=[])
    tapped = run_round(
        model, own, [batch], defense, None,
        Context(batch_size=SIZE, clients=tuple(range(CLIENTS)), noise=None),
        point=LeakPoint(view="batch"), stop_at_tap=True,
    ).tapped  # fmt: skip
    assert tapped is not None and defense.given == [10, 2, 10, 2]  # a client after the other
    for client in range(CLIENTS):
        total = {name: torch.zeros_like(value) for name, value in own.items()}
        for place in range(SIZE):
            if mask[client, place]:
                leaves = {name: value.clone().requires_grad_() for name, value in own.items()}
                logits = model.logits(leaves, inputs[client, place, None])
                torch.nn.functional.cross_entropy(logits, labels[client, place, None]).backward()
                for name, leaf in leaves.items():
                    assert leaf.grad is not None
                    total[name] += leaf.grad * min(1.0, 0.05 / float(leaf.grad.norm()))
        for name, value in total.items():
            wanted = value / (expected or int(mask[client].sum()))
            torch.testing.assert_close(
                tapped.tensors[name][client], wanted, rtol=1e-9, atol=1e-12, msg=name
            )


@pytest.mark.parametrize(
    "defense", [Defense(), FedCDP(clip=0.05, noise_multiplier=1.0, convention="mean")],
    ids=["none", "fed_cdp"],
)  # fmt: skip
def test_victims_are_tapped_without_the_others_of_their_batches(
    defense: Defense, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, own, inputs, labels = network()
    victims = torch.tensor([[1, 3], [0, 11], [1, 0]])
    context = Context(batch_size=SIZE, clients=(4, 9), noise=None)
    batch = [Batch(inputs=inputs, labels=labels)]
    whole = capture(model, own, batch, defense, context, LeakPoint(), victims)
    monkeypatch.setattr(training, "AT_ONCE", 1)
    computed: list[int] = []

    def counted(*given: Any, **options: Any) -> Gradients:
        found = per_example(*given, **options)
        computed.append(found.leading[1])
        return found

    monkeypatch.setattr(training, "per_example", counted)
    same(capture(model, own, batch, defense, context, LeakPoint(), victims), whole)
    assert computed == [1, 1, 1]


@pytest.mark.usefixtures("large")
def test_a_batch_without_a_defense_is_one_plain_backward_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody asks for single examples of a large network."""
    model, own, inputs, labels = network()

    def refused(*given: Any, **options: Any) -> Gradients:
        raise AssertionError("gradients of single examples were computed")

    monkeypatch.setattr(training, "per_example", refused)
    context = Context(batch_size=SIZE, clients=(0, 1), noise=None)
    batch = [Batch(inputs=inputs, labels=labels)]
    found = capture(model, own, batch, Defense(), context, LeakPoint(type=1))
    for client in range(CLIENTS):
        leaves = {name: value.clone().requires_grad_() for name, value in own.items()}
        logits = model.logits(leaves, inputs[client])
        torch.nn.functional.cross_entropy(logits, labels[client]).backward()
        for name, leaf in leaves.items():
            assert leaf.grad is not None
            torch.testing.assert_close(found.tensors[name][client], leaf.grad)
