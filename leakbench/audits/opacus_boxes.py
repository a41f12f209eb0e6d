"""An optimiser of Opacus as a black box: per-example gradients in, what it steps with out.

Nothing is imported from Opacus: attributes and methods are enough, and a subclass with a method
replaced is measured with that method.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from leakbench.audits.findings import Claim
from leakbench.contracts import Weights
from leakbench.errors import LeakbenchError

_NEEDED = ("clip_and_accumulate", "add_noise", "scale_grad", "noise_multiplier", "param_groups")
_LARGE = 200_000  # parameters
_SHORT = 16  # values that are left of each tensor of a large network


def is_optimizer(thing: object) -> bool:
    """Whether it clips and adds noise as Opacus' optimisers do."""
    return all(hasattr(thing, name) for name in _NEEDED)


class OptimizerBox:
    """The optimiser's own clipping, noise and scaling, on parameters of the same names and order.

    A twin with all its attributes does it, whose parameters are not the network's, so that
    optimiser, gradients and accountant stay as they are. `step` is not called.

    Attributes:
        shapes: of the gradients it is given: those of the network, or, of more than 200,000
            parameters, 16 values of each tensor, which the code treats as it treats more of them.
    """

    def __init__(self, optimizer: Any, weights: Weights) -> None:
        groups = optimizer.param_groups
        trained = [[p for p in group["params"] if p.requires_grad] for group in groups]
        if (count := sum(map(len, trained))) != len(weights):
            raise LeakbenchError(
                f"audit: the optimiser has {count} parameters, the model {len(weights)}"
            )
        short = sum(value.numel() for value in weights.values()) > _LARGE
        self.shapes: dict[str, tuple[int, ...]] = {
            name: (min(_SHORT, value.numel()),) if short else tuple(value.shape)
            for name, value in weights.items()
        }
        left = iter(self.shapes.values())
        twins = [[nn.Parameter(torch.zeros(next(left)).to(p)) for p in own] for own in trained]
        inner = _twin(optimizer.original_optimizer)
        inner.param_groups = [
            group | {"params": own} for group, own in zip(groups, twins, strict=True)
        ]
        self.optimizer = _twin(optimizer)
        self.optimizer.original_optimizer = inner
        generator = getattr(optimizer, "generator", None)
        if generator is not None:
            self.optimizer.generator = generator.clone_state()
        self.parameters = [p for own in twins for p in own]

    def __call__(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        for parameter, value in zip(self.parameters, gradients.values(), strict=True):
            own: Any = parameter
            own.grad, own.summed_grad, own.grad_sample = None, None, value.to(parameter)
        self.optimizer.clip_and_accumulate()
        self.optimizer.add_noise()
        self.optimizer.scale_grad()
        return {
            name: torch.zeros_like(p) if p.grad is None else p.grad.detach()
            for name, p in zip(gradients, self.parameters, strict=True)
        }

    def claim(self) -> Claim:
        """What it says of itself, on the sum over a batch."""
        given = getattr(self.optimizer, "max_grad_norms", self.optimizer.max_grad_norm)
        bound = math.hypot(*given) if isinstance(given, list | tuple) else float(given)
        std = float(self.optimizer.noise_multiplier) * bound
        return Claim(clip=bound, sensitivity=bound, noise_std=std)


def _twin(thing: Any) -> Any:
    """Another object of its class with the same attributes; `copy.copy` would leave some out."""
    twin = object.__new__(type(thing))
    twin.__dict__.update(thing.__dict__)
    return twin
