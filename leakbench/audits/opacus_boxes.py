"""An optimiser of Opacus as a black box: per-example gradients in, what it steps with out.

Nothing is imported from Opacus: attributes and methods are enough, and a subclass with a method
replaced is measured with that method.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from leakbench.audits.findings import Claim
from leakbench.errors import LeakbenchError

_NEEDED = ("clip_and_accumulate", "add_noise", "scale_grad", "noise_multiplier")


def is_optimizer(thing: object) -> bool:
    """Whether it clips and adds noise as Opacus' optimisers do."""
    return all(hasattr(thing, name) for name in _NEEDED)


class OptimizerBox:
    """The optimiser's own clipping, noise and scaling; gradients and counters are put back.

    Names are those that its parameters are given under, in their order. Neither weights nor the
    accountant change: `step` is not called.
    """

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        groups = optimizer.param_groups
        self.parameters = [p for group in groups for p in group["params"] if p.requires_grad]

    def __call__(self, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
        if len(gradients) != len(self.parameters):
            raise LeakbenchError(
                f"audit: the optimiser has {len(self.parameters)} parameters, the model "
                f"{len(gradients)}"
            )
        kept = [
            {key: getattr(p, key) for key in ("grad", "grad_sample", "summed_grad")
             if hasattr(p, key)}
            for p in self.parameters
        ]  # fmt: skip
        try:
            for parameter, value in zip(self.parameters, gradients.values(), strict=True):
                parameter.grad, parameter.summed_grad = None, None
                parameter.grad_sample = value.to(parameter)
            self.optimizer.clip_and_accumulate()
            self.optimizer.add_noise()
            self.optimizer.scale_grad()
            return {
                name: torch.zeros_like(p) if p.grad is None else p.grad.detach().clone()
                for name, p in zip(gradients, self.parameters, strict=True)
            }
        finally:
            for parameter, own in zip(self.parameters, kept, strict=True):
                for key in ("grad", "grad_sample", "summed_grad"):
                    if key in own:
                        setattr(parameter, key, own[key])
                    elif hasattr(parameter, key):
                        delattr(parameter, key)

    def claim(self) -> Claim:
        """What it says of itself, on the sum over a batch."""
        given = getattr(self.optimizer, "max_grad_norms", self.optimizer.max_grad_norm)
        bound = math.hypot(*given) if isinstance(given, list | tuple) else float(given)
        std = float(self.optimizer.noise_multiplier) * bound
        return Claim(clip=bound, sensitivity=bound, noise_std=std)
