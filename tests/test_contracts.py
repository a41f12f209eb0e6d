"""What a leak refuses to hold: a gradient that is not one of the model's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from leakbench.contracts import Gradients, Leak, LeakPoint, Observation
from leakbench.errors import LeakbenchError
from leakbench.models import build

SHAPE = (1, 28, 28)
MODEL = build("cnn2", SHAPE, 10)
WEIGHTS = MODEL.init(torch.Generator().manual_seed(0), torch.float32)

Spoil = Callable[[dict[str, Tensor]], object]


def leak(tensors: dict[str, Tensor]) -> Leak:
    def simulate(*_: object, **__: object) -> Gradients:
        raise AssertionError("nothing is simulated here")

    return Leak(
        model=MODEL,
        observations=(
            Observation(weights=WEIGHTS, gradients=Gradients(tensors, ("client",))),
        ),
        simulate=simulate,
        point=LeakPoint(),
        batch_size=1,
        input_shape=SHAPE,
        input_range=(0.0, 1.0),
        classes=10,
    )  # fmt: skip


def whole() -> dict[str, Tensor]:
    return {name: torch.zeros(3, *value.shape) for name, value in WEIGHTS.items()}


def test_a_whole_gradient_is_taken() -> None:
    assert leak(whole()).n == 3


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda t: t.pop("conv2.weight"), "has no parameter 'conv2.weight'"),
        (lambda t: t.update(extra=torch.zeros(3, 2)), "has an unknown parameter 'extra'"),
        (
            lambda t: t.update({"dense.bias": torch.zeros(3, 9)}),
            r"gradient of 'dense.bias' is \(9,\) a victim, its weight \(10,\)",
        ),
    ],
)
def test_a_foreign_gradient_is_one_sentence(spoil: Spoil, said: str) -> None:
    tensors = whole()
    spoil(tensors)
    with pytest.raises(LeakbenchError, match=said) as caught:
        leak(tensors)
    assert "\n" not in str(caught.value)
