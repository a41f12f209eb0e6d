"""A network as a list of plain calls, read off what it does, whatever it is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from leakbench.contracts import Model
from leakbench.leaderboard.reference import logits
from leakbench.modules import fixed_of

Layer = dict[str, Any]
"""call: a key of `reference.CALLS`; weights: argument -> name of a parameter or buffer; settings:
argument -> plain value."""

ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "adaptive_avg_pool2d": ("input", "output_size"),
    "avg_pool2d": (
        "input", "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad",
        "divisor_override",
    ),
    "batch_norm": (
        "input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps",
    ),
    "conv2d": ("input", "weight", "bias", "stride", "padding", "dilation", "groups"),
    "flatten": ("input", "start_dim", "end_dim"),
    "group_norm": ("input", "num_groups", "weight", "bias", "eps"),
    "linear": ("input", "weight", "bias"),
    "max_pool2d": (
        "input", "kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices",
    ),
    "pad": ("input", "pad", "mode", "value"),
    "relu": ("input",),
    "sigmoid": ("input",),
    "tanh": ("input",),
}  # fmt: skip
"""Names of the arguments of every function that is told apart, in order."""


def layers_of(
    model: Model, weights: Mapping[str, Tensor], input_shape: tuple[int, ...]
) -> tuple[Layer, ...] | None:
    """The network as calls one after another; None for one that is no such chain.

    What is returned gives the network's own outputs on random inputs; else it is None.
    """
    fixed = fixed_of(model)
    named = {**fixed, **weights}
    inputs = torch.rand(2, *input_shape, generator=torch.Generator().manual_seed(0))
    inputs = inputs.to(next(iter(weights.values())))
    watched = _Calls(named, inputs)
    with torch.no_grad():
        with watched:
            outputs = model.logits(weights, inputs)
        if watched.broken or watched.last is not outputs:
            return None
        found = tuple(watched.layers)
        same = torch.allclose(logits(found, named, inputs), outputs, rtol=1e-5, atol=1e-6)
    return found if same else None


class _Calls(TorchFunctionMode):
    """Notes the calls that lead from the inputs to the last result, each made of the one before."""

    def __init__(self, named: Mapping[str, Tensor], inputs: Tensor) -> None:
        super().__init__()
        self.names = {id(value): name for name, value in named.items()}
        self.layers: list[Layer] = []
        self.last = inputs
        self.broken = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        found = func(*args, **given)
        if isinstance(found, Tensor) and any(each is self.last for each in args):
            self._note(getattr(func, "__name__", ""), args, given)
            self.last = found
        return found

    def _note(self, call: str, args: tuple[Any, ...], given: Mapping[str, Any]) -> None:
        arguments = dict(zip(ARGUMENTS.get(call, ()), args, strict=False)) | dict(given)
        if call not in ARGUMENTS or len(args) > len(ARGUMENTS[call]) or args[0] is not self.last:
            self.broken = True
            return
        layer: Layer = {"call": call, "weights": {}, "settings": {}}
        for name, value in arguments.items():
            if name == "input":
                continue
            if not isinstance(value, Tensor):
                layer["settings"][name] = list(value) if isinstance(value, tuple) else value
            elif id(value) in self.names:
                layer["weights"][name] = self.names[id(value)]
            else:  # made of something else on the way
                self.broken = True
        self.layers.append(layer)
