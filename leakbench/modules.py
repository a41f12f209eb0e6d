"""A `torch.nn.Module` as a stateless model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from leakbench.contracts import Weights
from leakbench.errors import LeakbenchError, unknown_name


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModuleModel:
    """Your own `torch.nn.Module` as a model: its parameters become arguments, buffers stay.

    head: name of the weight (classes, features) of its last dense layer. BatchNorm without running
    statistics is taken: it normalises by the batch at hand, in training and evaluation alike, and
    `mixes_examples` says so.

    Raises:
        LeakbenchError: no such head, or a BatchNorm in training mode that keeps running statistics:
            nothing would update them, and evaluation would use them.
    """

    module: torch.nn.Module
    head: str

    def __post_init__(self) -> None:
        named = dict(self.module.named_parameters())
        if self.head not in named or named[self.head].ndim != 2:
            dense = [name for name, value in named.items() if value.ndim == 2]
            raise unknown_name("head", self.head, dense, "model, weights of dense layers")
        for name, layer in self.module.named_modules():
            if isinstance(layer, _BatchNorm) and layer.training and layer.running_mean is not None:
                raise LeakbenchError(
                    f"model, layer '{name}': running statistics of {type(layer).__name__} in "
                    "training mode would not be updated; build it with track_running_stats=False, "
                    "call eval() first, or use GroupNorm"
                )

    @property
    def mixes_examples(self) -> bool:
        """Whether logits of one example depend on the others of its batch: no gradient is its own.

        True with a BatchNorm that has no running statistics.
        """
        return any(
            isinstance(layer, _BatchNorm) and layer.running_mean is None
            for layer in self.module.modules()
        )

    def init(self, generator: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
        """The module's own parameters, as they are; nothing is drawn."""
        return {k: v.detach().clone().to(dtype) for k, v in self.module.named_parameters()}

    def logits(self, weights: Weights, inputs: Tensor) -> Tensor:
        """(b, *input shape) -> (b, classes)."""
        found: Tensor = torch.func.functional_call(self.module, dict(weights), (inputs,))
        return found
