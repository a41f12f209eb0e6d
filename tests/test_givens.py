"""What is handed to `lb.leak` beside a model: each odd thing is one sentence, and nothing is kept
that the user may change."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leakbench as lb
from leakbench import registry
from leakbench.contracts import Context, Defense, Gradients, State
from leakbench.data import load
from leakbench.errors import LeakbenchError

DIGITS = load("mnist")
X, Y = DIGITS.candidates[:2], DIGITS.candidate_labels[:2]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 4), nn.Sigmoid(), nn.Linear(4, 10))


def sent_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: torch.ones(2, *value.shape) for name, value in model.named_parameters()}


MODEL = network()
SENT = sent_of(MODEL)
WEIGHTS = {name: value.detach() for name, value in MODEL.named_parameters()}

ODD: list[tuple[str, dict[str, Any], str]] = [
    ("x text", {"x": "digits"}, "x is str and no tensor"),
    ("x none", {"x": None}, "x is NoneType and no tensor"),
    ("x empty", {"x": X[:0], "y": Y[:0]}, "holds nothing"),
    ("x scalar", {"x": torch.tensor(1.0)}, "do not belong together"),
    ("x one-dimensional", {"x": torch.rand(2)}, "do not belong together"),
    ("x infinite", {"x": X / 0}, "nan or infinities"),
    ("y text", {"y": ["three", "five"]}, "y is list and no tensor"),
    ("y nan", {"y": torch.tensor([math.nan, 1.0])}, "y holds fractions"),
    ("y infinite", {"y": torch.tensor([math.inf, 1.0])}, "y holds fractions"),
    ("y complex", {"y": torch.tensor([1j, 1.0])}, "y holds fractions"),
    ("y scalar", {"y": torch.tensor(1)}, "do not belong together"),
    ("range of one", {"input_range": (0,)}, "two finite numbers"),
    ("range of texts", {"input_range": "ab"}, "two finite numbers"),
    ("range infinite", {"input_range": (0, math.inf)}, "two finite numbers"),
    ("range backwards", {"input_range": (1, 0)}, "two finite numbers"),
    ("rate zero", {"learning_rate": 0}, "learning_rate must be positive and finite, got 0"),
    ("rate none", {"learning_rate": None}, "learning_rate must be positive and finite"),
    ("rate nan", {"learning_rate": math.nan, "observer": "type1"}, "learning_rate must be pos"),
    ("round", {"round": -1}, "round must be at least 0, got -1"),
    ("seed", {"seed": "a"}, "seed must be a whole number, got 'a'"),
    ("observer none", {"observer": None}, "unknown observer 'None'"),
    ("observer list", {"observer": ["type2"]}, "did you mean 'type2'?"),
    ("classes one", {"classes": 1}, "classes must be at least 2, got 1"),
    ("classes many", {"classes": 11}, "11 classes, and the model has 10 outputs"),
    ("candidates triple", {"candidates": (X, Y, Y)}, "allowed: (inputs, labels)"),
    ("candidates shape", {"candidates": (X[..., :9], Y)}, "not of the kind of x; allowed: (N, 1,"),
    ("public number", {"public": 5}, "public is torch.int64"),
    ("public bytes", {"public": (X * 255).byte()}, "public is torch.uint8"),
    ("public fractions", {"public": (X, Y + 0.5)}, "labels of public holds fractions"),
    ("sent text", {"sent": "gradients"}, "sent is str"),
    ("sent nothing", {"sent": {}}, "sent has no parameter"),
    ("sent for one", {"sent": {k: v[:1] for k, v in SENT.items()}}, "allowed: (2, 4, 784)"),
    ("weights number", {"weights": 3}, "no tensors by name"),
    ("weights values", {"weights": list(WEIGHTS.values())}, "no tensors by name"),
    ("weights shape", {"weights": {**WEIGHTS, "1.bias": torch.ones(1)}}, "allowed: (4,)"),
    ("weights nan", {"weights": {**WEIGHTS, "1.bias": torch.ones(4) / 0}}, "'1.bias' holds nan"),
    ("parameters", {"defense": {"name": "dp_sgd", "parameters": 3}}, "parameters are int"),
    ("config class", {"defense": lb.DPConfig}, "DPConfig'> is none; allowed: a name"),
    ("base class", {"defense": Defense}, "not a dataclass"),
]


@pytest.mark.parametrize(("changes", "said"), [row[1:] for row in ODD], ids=[r[0] for r in ODD])
def test_what_cannot_be_meant_is_one_sentence(changes: dict[str, Any], said: str) -> None:
    given = {"x": X, "y": Y, **changes}
    with pytest.raises(LeakbenchError, match=re.escape(said)) as caught:
        lb.leak(MODEL, given.pop("x"), given.pop("y"), **given)
    assert "\n" not in str(caught.value)


def test_arrays_and_lists_will_do() -> None:
    arrays = lb.leak(MODEL, X.numpy(), Y.tolist(), public=[X.numpy(), Y.numpy()])  # type: ignore[arg-type]
    tensors = lb.leak(MODEL, X, Y)
    for name, value in tensors.gradients.tensors.items():
        assert torch.equal(arrays.gradients.tensors[name], value)


def test_a_column_of_labels_is_labels_where_it_can_be_nothing_else() -> None:
    rows = X.flatten(1)
    column, plain = lb.leak(MODEL, rows, Y[:, None]), lb.leak(MODEL, rows, Y)
    assert column.truth.shape == plain.truth.shape == (2, 1, 784)
    clients = lb.leak(MODEL, X, Y[:, None])
    assert any("2 clients with one example each" in note for note in clients.notes)
    assert clients.truth.shape == (2, 1, 28, 28)


def test_nothing_is_shared_with_the_user() -> None:
    model = network()
    x, public, sent = X.clone(), X.clone(), sent_of(model)
    weights = {name: value.detach() for name, value in model.named_parameters()}
    leak = lb.leak(model, x, Y, public=public, sent=sent, weights=weights)
    kept = {name: value.clone() for name, value in weights.items()}
    for value in (x, public, *sent.values(), *weights.values()):
        value.zero_()
    assert torch.equal(leak.truth[:, 0], X)
    assert leak.public is not None and torch.equal(leak.public.inputs, X)
    for name, value in leak.gradients.tensors.items():
        assert bool((value == 1).all())
        assert torch.equal(leak.views["naive"].observations[0].weights[name], kept[name])


class Failing(registry.load("defenses", "none")):  # type: ignore[misc]
    """A defense that draws where it must not, then fails."""

    name = "failing"

    def on_examples(
        self, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        raise ZeroDivisionError(f"{torch.rand(1).numel()}\nand more")


def test_a_defense_that_fails_is_named_and_draws_nothing_of_the_users() -> None:
    before = torch.get_rng_state()
    with pytest.raises(LeakbenchError, match=r"defense 'failing': .*ZeroDivisionError: 1 and more"):
        lb.leak(MODEL, X, Y, defense=Failing())
    assert torch.equal(torch.get_rng_state(), before)
