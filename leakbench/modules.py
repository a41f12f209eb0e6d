"""A `torch.nn.Module` as a stateless model: its parameters become arguments."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm

from leakbench.contracts import Model, Weights
from leakbench.errors import LeakbenchError, unknown_name
from leakbench.losses import Loss
from leakbench.weights import Scheme, draw

Mode = Literal["train", "eval"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModuleModel:
    """Your own `torch.nn.Module` as a model; a copy is kept, so the module itself never changes.

    Parameters with `requires_grad=False`, and buffers, stay as they are in the module: they are not
    drawn, not trained, and not in any gradient.

    Attributes:
        module: maps (b, *input shape) to (b, classes), or to (b, 1) for two classes under a loss
            other than cross-entropy.
        head: name of the weight (outputs, features) of its last dense layer; None where it has
            none, and then no attack can read labels off it.
        loss: what client and attacker differentiate.
        mode: "eval" switches dropout off and normalises by running statistics; "train" normalises
            by the batch at hand and keeps no running statistics; None leaves every layer as it is.
        scheme: how `init` draws: "default" by the layers' own `reset_parameters`, "uniform" from
            U(-0.5, 0.5); None: the module's own values, and nothing is drawn.
        mixed: says that examples of a batch mix in another way than by BatchNorm.

    Raises:
        LeakbenchError: no such head; nothing to train; a layer that would make a gradient random
            (dropout) or change with every use (running statistics in training mode).
    """

    module: nn.Module
    head: str | None
    loss: Loss = "cross_entropy"
    mode: Mode | None = None
    scheme: Scheme | None = None
    mixed: bool = False
    _fixed: dict[str, Tensor] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        module = copy.deepcopy(self.module)
        if self.mode is not None:
            module.train(self.mode == "train")
        if self.mode == "train":
            _forget_statistics(module)
        object.__setattr__(self, "module", module)
        named = dict(module.named_parameters())
        free = {name: value for name, value in named.items() if value.requires_grad}
        if not free:
            raise LeakbenchError("model: no parameter has requires_grad, so no gradient leaks")
        dense = [name for name, value in free.items() if value.ndim == 2]
        if self.head is not None and self.head not in dense:
            raise unknown_name("head", self.head, dense, "model, weights of dense layers")
        for name, layer in module.named_modules():
            if reason := _unsteady(layer):
                raise LeakbenchError(f"model, layer '{name}': {reason}")
        fixed = dict(module.named_buffers())
        fixed |= {name: value.detach() for name, value in named.items() if name not in free}
        object.__setattr__(self, "_fixed", fixed)

    @property
    def mixes_examples(self) -> bool:
        """Whether logits of one example depend on the others of its batch: no gradient is its own.

        True with a BatchNorm that normalises by the batch, which one without running statistics
        does in training and evaluation alike.
        """
        return self.mixed or bool(_by_batch(self.module))

    @property
    def fixed(self) -> dict[str, Tensor]:
        """Name -> what decides a gradient and is not in it: frozen parameters and buffers."""
        return dict(self._fixed)

    def init(self, generator: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
        """Its trainable parameters, by `scheme`.

        Raises:
            LeakbenchError: under "default", a parameter that no layer's `reset_parameters` draws.
        """
        if self.scheme == "uniform":
            shapes = {name: tuple(value.shape) for name, value in _free(self.module)}
            return draw(shapes, "uniform", generator, dtype)
        module = self.module if self.scheme is None else _redrawn(self.module, generator)
        return {name: value.detach().clone().to(dtype) for name, value in _free(module)}

    def logits(self, weights: Weights, inputs: Tensor) -> Tensor:
        """(b, *input shape) -> (b, outputs)."""
        given = dict(weights)
        for name, value in self._fixed.items():
            kind = inputs.dtype if value.is_floating_point() else value.dtype
            given[name] = value.to(device=inputs.device, dtype=kind)
        found: Tensor = torch.func.functional_call(self.module, given, (inputs,))
        return found


def fixed_of(model: Model) -> dict[str, Tensor]:
    """What decides a model's gradients beside its weights: `ModuleModel.fixed`, else nothing."""
    return model.fixed if isinstance(model, ModuleModel) else {}


def settled(model: Model, weights: Weights, inputs: Tensor, batch_size: int) -> Model:
    """The network as it is used when it is trained: each BatchNorm normalises by fixed statistics.

    They are those of batches of `inputs` (n, *input shape), each normalised by itself as in
    training: the mean over batches of means and of variances with denominator b - 1, which are
    torch's running statistics with momentum None. So an example's answer depends on no other one of
    its batch, and where `inputs` are public the statistics cost no privacy. A rest of less than
    `batch_size` is left out, unless it is all there is. A model without a BatchNorm by the batch at
    hand comes back as it is.
    """
    if not isinstance(model, ModuleModel) or not _by_batch(model.module):
        return model
    module = copy.deepcopy(model.module)
    layers = _by_batch(module)
    for layer in layers:
        layer.track_running_stats, layer.momentum = True, None
        layer.running_mean = inputs.new_zeros(layer.num_features)
        layer.running_var = inputs.new_ones(layer.num_features)
        layer.num_batches_tracked = torch.tensor(0, device=inputs.device)
        layer.train()
    given = {**weights, **model.fixed}
    size = min(batch_size, len(inputs))
    with torch.no_grad():
        for batch in inputs[: len(inputs) // size * size].split(size):
            torch.func.functional_call(module, given, (batch,))
    for layer in layers:
        layer.eval()
    return ModuleModel(
        module=module, head=model.head, loss=model.loss, scheme=model.scheme, mixed=model.mixed
    )


def _by_batch(module: nn.Module) -> list[_BatchNorm]:
    """Layers that normalise by the batch at hand: without running statistics in either mode."""
    layers = (layer for layer in module.modules() if isinstance(layer, _BatchNorm))
    return [layer for layer in layers if layer.running_mean is None]


def _free(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return ((name, value) for name, value in module.named_parameters() if value.requires_grad)


def _forget_statistics(module: nn.Module) -> None:
    """In training mode running statistics decide nothing: they would only change with every use."""
    for layer in module.modules():
        if isinstance(layer, _BatchNorm | _InstanceNorm):
            layer.track_running_stats = False
            layer.running_mean = layer.running_var = layer.num_batches_tracked = None


def _unsteady(layer: nn.Module) -> str:
    """Why a layer would give another gradient the next time; "" if it would not."""
    kind, keeps = type(layer).__name__, isinstance(layer, _BatchNorm | _InstanceNorm)
    if keeps and layer.training and layer.running_mean is not None:
        return (
            f"running statistics of {kind} in training mode would not be updated; allowed: "
            'mode "eval", which normalises by them, mode "train", which keeps none, or GroupNorm'
        )
    dropped = layer.p if isinstance(layer, _DropoutNd) else getattr(layer, "dropout", 0.0)
    if not isinstance(dropped, float | int):  # a layer of that name, which is looked at by itself
        dropped = 0.0
    random = isinstance(layer, nn.FractionalMaxPool2d | nn.FractionalMaxPool3d)
    if random or (layer.training and (dropped > 0 or isinstance(layer, nn.RReLU))):
        allowed = "a layer without" if random else 'mode "eval", or the layer with p = 0'
        return f"{kind} draws at random, so no gradient could be told twice; allowed: {allowed}"
    return ""


def _redrawn(module: nn.Module, generator: torch.Generator) -> nn.Module:
    """A copy whose trainable parameters the layers' own `reset_parameters` have drawn anew.

    A layer is drawn after those inside it. torch draws from its global generator, which is seeded
    from `generator` meanwhile and put back.
    """
    drawn = copy.deepcopy(module)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        for _, value in _free(drawn):
            value.fill_(torch.nan)
        for layer in reversed(list(drawn.modules())):
            reset = getattr(layer, "reset_parameters", getattr(layer, "_reset_parameters", None))
            if callable(reset):
                reset()
    for name, value in _free(drawn):
        if bool(value.isnan().any()):
            raise LeakbenchError(
                f"model, parameter '{name}': no layer's reset_parameters draws it; allowed: a "
                "module with such a method around it"
            )
    return drawn


def require_steady(model: ModuleModel, input_shape: tuple[int, ...]) -> int:
    """Call the module twice on the same inputs: what its layers do not tell shows here.

    Returns its number of outputs.

    Raises:
        LeakbenchError: outputs that are not (b, outputs), differ between two calls, or buffers
            that a call changes.
    """
    weights = ModuleModel.init(model, torch.Generator().manual_seed(0), torch.float32)
    stream = torch.Generator().manual_seed(1)
    inputs = torch.rand(2, *input_shape, generator=stream)
    before = {name: value.clone() for name, value in model.fixed.items()}
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            first, second = (model.logits(weights, inputs) for _ in range(2))
        except (RuntimeError, ValueError, IndexError) as error:
            text = " ".join(str(error).split())
            raise LeakbenchError(f"model: inputs of shape {input_shape} fail: {text}") from error
    if first.ndim != 2 or len(first) != 2:
        raise LeakbenchError(
            f"model: two inputs give outputs of shape {tuple(first.shape)}; allowed: (2, classes)"
        )
    changed = [k for k, value in model.fixed.items() if not torch.equal(value, before[k])]
    if changed or not torch.equal(first, second):
        what = f"changes its buffer '{changed[0]}'" if changed else "gives two answers to one input"
        raise LeakbenchError(f'model: {what} with every use; allowed: mode "eval"')
    return int(first.shape[1])
