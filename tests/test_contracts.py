"""What leaks and defenses refuse: a gradient that is not one of the model's, an unknown hook."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from leakbench.architectures import build
from leakbench.contracts import (
    Context,
    Defense,
    Gradients,
    Leak,
    LeakPoint,
    Observation,
    State,
)
from leakbench.errors import LeakbenchError

SHAPE = (1, 28, 28)
MODEL = build("cnn2", SHAPE, 10)
WEIGHTS = MODEL.init(torch.Generator().manual_seed(0), torch.float32)

Spoil = Callable[[dict[str, Tensor]], object]


def leak(tensors: dict[str, Tensor]) -> Leak:
    def run(*_: object) -> Gradients:
        raise AssertionError("nothing is simulated here")

    return Leak(
        model=MODEL,
        observations=(
            Observation(weights=WEIGHTS, gradients=Gradients(tensors, ("client",)), run=run),
        ),
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


def hook(
    self: Defense, gradients: Gradients, state: State, context: Context
) -> tuple[Gradients, State]:
    return gradients, state


@pytest.mark.parametrize(
    ("name", "meant"),
    [("on_example", "on_examples"), ("on_updates", "on_update"), ("on_client", "on_receipt")],
)
@pytest.mark.parametrize("base", [Defense, type("Between", (Defense,), {"on_batch": hook})])
def test_a_hook_that_nobody_calls_is_refused(name: str, meant: str, base: type) -> None:
    """Misspelt, it would leave gradients as they are without a word."""
    with pytest.raises(LeakbenchError, match=rf"Typo: unknown hook '{name}'.*{meant}") as caught:
        type("Typo", (base,), {name: hook})
    hooks = "on_batch, on_examples, on_receipt, on_round, on_update"
    assert str(caught.value).endswith(f"allowed: {hooks}")


def test_hooks_of_the_path_and_other_names_are_taken() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Fine(Defense):
        on_request: bool = False

        def on_examples(
            self, gradients: Gradients, state: State, context: Context
        ) -> tuple[Gradients, State]:
            return gradients, state

        def once(self) -> None:
            """No hook."""

    assert Fine(on_request=True).on_request
