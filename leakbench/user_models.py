"""A `torch.nn.Module` as its owner trains it: wrapped, half frozen, half precision, on a GPU.

What cannot be attacked as it is trained is refused in one sentence; what is computed in another way
than the owner does is said (`UserModel.notes`). The module itself is never changed.
"""

from __future__ import annotations

import copy
import functools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.instancenorm import _InstanceNorm

from leakbench.contracts import Model, Weights
from leakbench.errors import LeakbenchError, unknown_name
from leakbench.losses import Loss
from leakbench.modules import Mode, ModuleModel
from leakbench.plugin_files import one_line

LOSSES: dict[str, Loss] = {
    "cross_entropy": "cross_entropy",
    "ce": "cross_entropy",
    "binary_cross_entropy": "binary_cross_entropy",
    "bce": "binary_cross_entropy",
    "mean_squared_error": "mean_squared_error",
    "mse": "mean_squared_error",
}
"""What a loss may be called."""

_MODULES: dict[type[nn.Module], Loss] = {
    nn.CrossEntropyLoss: "cross_entropy",
    nn.BCEWithLogitsLoss: "binary_cross_entropy",
    nn.MSELoss: "mean_squared_error",
}

_NORMS: dict[type[nn.Module], type[nn.Module]] = {
    nn.InstanceNorm1d: nn.BatchNorm1d,
    nn.InstanceNorm2d: nn.BatchNorm2d,
    nn.InstanceNorm3d: nn.BatchNorm3d,
}
"""By running statistics both do the same, and only the second can be batched over (`vmap`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserModel:
    """A user's network as a model, with what it holds.

    Attributes:
        model: its parameters that are trained are its weights; the rest is fixed.
        weights: of that moment, on the device they are attacked on.
        notes: what is computed otherwise than the owner does, one sentence each.
        outputs: how many it has of an input; None where it was not tried.
    """

    model: Model
    weights: dict[str, Tensor]
    notes: tuple[str, ...] = ()
    outputs: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OneColumn(ModuleModel):
    """A module whose outputs are (b,), for two classes: as (b, 1)."""

    def logits(self, weights: Weights, inputs: Tensor) -> Tensor:
        """(b, *input shape) -> (b, 1)."""
        return ModuleModel.logits(self, weights, inputs)[:, None]


def as_model(
    module: nn.Module,
    *,
    loss: str | nn.Module = "cross_entropy",
    inputs: Tensor | None = None,
    mode: Mode | None = None,
    head: str | None = None,
    device: torch.device | str | None = None,
) -> tuple[Model, Weights]:
    """A module as a model and the weights it holds; see `read_module`."""
    found = read_module(module, loss=loss, inputs=inputs, mode=mode, head=head, device=device)
    return found.model, found.weights


def read_module(
    module: nn.Module,
    *,
    loss: str | nn.Module = "cross_entropy",
    inputs: Tensor | None = None,
    mode: Mode | None = None,
    head: str | None = None,
    device: torch.device | str | None = None,
) -> UserModel:
    """A module as a model, with the weights it holds and what is done otherwise than by its owner.

    Wrappers come off (DataParallel, DistributedDataParallel, torch.compile, Opacus'
    GradSampleModule and hooks). Parameters with `requires_grad=False` are no weights. Weights of 16
    bits are computed with in float32. The module, its mode, its buffers and torch's random numbers
    stay as they are.

    Args:
        module: maps (b, *input shape) to (b, outputs) before any softmax or sigmoid, or to (b,)
            for two classes.
        loss: a name of `LOSSES`, or the loss of torch.nn that it is trained with, as a mean.
        inputs: (n, *input shape) it can be tried on; they show which layer is the head, and what
            layers do not tell: randomness, examples that mix.
        mode: "train" or "eval" for all layers; None: as they are.
        head: name of the weight of its last dense layer; None: found.
        device: to compute on; None: that of its parameters.

    Raises:
        LeakbenchError: what has no gradient to leak, or none that could be told twice: dropout and
            running statistics in training mode, no trained parameter, parameters on several
            devices; outputs or a loss that are none of the above.
    """
    wanted = loss_of(loss)
    notes: list[str] = []
    if mode not in (None, "train", "eval"):
        raise unknown_name("mode", str(mode), ("train", "eval"), "model")
    own, note = _own_copy(unwrapped(module))
    notes += note
    dtype, note = _dtype(own)
    notes += note
    own = _placed(own, device, dtype)
    if mode is not None:
        own.train(mode == "train")
    _settle_instance_norms(own)
    model = ModuleModel(module=own, head=None, loss=wanted, mode=mode)
    weights = {
        name: value.detach().clone()
        for name, value in model.module.named_parameters()
        if value.requires_grad
    }
    require_finite(weights)
    frozen = sum(not value.requires_grad for value in own.parameters())
    if frozen:
        notes.append(
            f"{frozen} parameters are frozen: they are in no gradient, and the leak holds the "
            f"other {len(weights)}"
        )
    if inputs is None:
        return UserModel(
            model=replace(model, head=head or next(reversed(_dense_layers(own)), None)),
            weights=weights,
            notes=tuple(notes),
        )
    some = inputs[:2].detach().to(next(iter(weights.values())), copy=True)
    tried = _tried(model, weights, some, wanted)
    if tried.mixes and not model.mixes_examples:
        notes.append("examples of a batch mix in it, so that none has a gradient of its own")
        model = replace(model, mixed=True)
    if tried.flat:
        model = OneColumn(
            module=model.module, head=None, loss=model.loss, mode=model.mode, mixed=model.mixed
        )
    model = replace(model, head=head or tried.head)
    if head is not None and len(weights[head]) != tried.outputs:
        raise LeakbenchError(
            f"model: head '{head}' has {len(weights[head])} outputs, and the model has "
            f"{tried.outputs}; allowed: the last dense layer"
        )
    return UserModel(
        model=model,
        weights=weights,
        notes=tuple(notes),
        outputs=tried.outputs,
    )


def loss_of(loss: str | nn.Module) -> Loss:
    """The loss that a name or a module of torch.nn stands for.

    Raises:
        LeakbenchError: another loss, or one with weights, label smoothing or another reduction.
    """
    if isinstance(loss, str):
        if loss not in LOSSES:
            raise unknown_name("loss", loss, LOSSES, "model")
        return LOSSES[loss]
    kind = type(loss)
    if kind not in _MODULES:
        allowed = ", ".join(each.__name__ for each in _MODULES)
        raise LeakbenchError(f"model: loss {kind.__name__} is not known; allowed: {allowed}")
    plain = {
        "reduction": "mean", "weight": None, "pos_weight": None, "label_smoothing": 0.0,
        "ignore_index": -100,
    }  # fmt: skip
    for name, value in plain.items():
        if getattr(loss, name, value) != value:
            raise LeakbenchError(
                f"model: {kind.__name__} with {name}={getattr(loss, name)} is another loss; "
                f"allowed: {name}={value}"
            )
    return _MODULES[kind]


def unwrapped(module: nn.Module) -> nn.Module:
    """The module inside all wrappers."""
    while True:
        if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = module.module
        elif _is_of_opacus(module) and isinstance(getattr(module, "_module", None), nn.Module):
            inner = module._module
        else:
            inner = getattr(module, "_orig_mod", None)  # torch.compile
        if not isinstance(inner, nn.Module):
            return module
        module = inner


# ------------------------------------------------------------------------------ the copy


def _is_of_opacus(thing: object) -> bool:
    """Without importing it: who does not use Opacus need not have it."""
    return any(kind.__module__.split(".")[0] == "opacus" for kind in type(thing).__mro__)


def _hooks(module: nn.Module) -> Iterator[tuple[dict[int, Any], int, object]]:
    """(table, key, whose method it is) of all hooks that are bound methods."""
    for layer in module.modules():
        for name, table in vars(layer).items():
            if name.endswith("_hooks") and isinstance(table, dict):
                for key, hook in list(table.items()):
                    method = hook
                    while isinstance(method, functools.partial):
                        method = method.func
                    owner = getattr(method, "__self__", None)
                    if owner is not None:
                        yield table, key, owner


def _own_copy(module: nn.Module) -> tuple[nn.Module, list[str]]:
    """A copy without what Opacus has hung on the layers, which must not run when attacked, and
    without hooks on gradients, which cannot run example by example; a note of these."""
    if any(isinstance(value, nn.UninitializedParameter) for value in module.parameters()):
        raise LeakbenchError(
            "model: a lazy layer has no parameters yet; call the module once on a batch"
        )
    owners = {id(owner): owner for _, _, owner in _hooks(module) if _is_of_opacus(owner)}
    try:
        own = copy.deepcopy(module, dict(owners))
    except Exception as error:  # foreign code may fail in any way
        raise LeakbenchError(f"model: cannot be copied: {one_line(error)}") from error
    for table, key, owner in _hooks(own):
        if _is_of_opacus(owner):
            del table[key]
    hooked = any(_grad_hooks(layer) for layer in own.modules())
    for layer in own.modules():
        for table in _grad_hooks(layer):
            table.clear()
    # torch copies a parameter without its hooks.
    if hooked or any(_grad_hooks(value) for value in module.parameters()):
        return own, [
            "hooks on gradients are not run: what leaks is the gradient before they change it"
        ]
    return own, []


def _grad_hooks(thing: nn.Module | Tensor) -> list[dict[int, Any]]:
    """Tables of hooks on gradients that are not empty."""
    names = ("_backward_hooks", "_backward_pre_hooks", "_post_accumulate_grad_hooks")
    return [table for name in names if (table := getattr(thing, name, None))]


def _placed(module: nn.Module, device: torch.device | str | None, dtype: torch.dtype) -> nn.Module:
    """The module in this type, on the device of its parameters or another."""
    where: torch.device | str = _device(module) if device is None else device
    try:
        module = module.to(device=torch.device(where), dtype=dtype)
    except (RuntimeError, TypeError, ValueError, AssertionError) as error:
        raise LeakbenchError(f"model: device {where} cannot be used: {one_line(error)}") from None
    if any(value.is_meta for value in module.parameters()):
        raise LeakbenchError(
            "model: parameters on device meta hold no values; allowed: the cpu or a GPU"
        )
    return module


def require_finite(weights: Weights) -> None:
    """Refuse weights of a training that has diverged.

    Raises:
        LeakbenchError: nan or an infinity, naming the parameter.
    """
    for name, value in weights.items():
        if not bool(torch.isfinite(value).all()):
            raise LeakbenchError(
                f"model: parameter '{name}' holds nan or infinities; allowed: finite weights"
            )


def _device(module: nn.Module) -> torch.device:
    devices = {value.device for value in module.parameters()}
    if len(devices) > 1:
        said = ", ".join(sorted(map(str, devices)))
        raise LeakbenchError(f"model: parameters lie on {said}; allowed: one device, see `device`")
    return devices.pop() if devices else torch.device("cpu")


def _dtype(module: nn.Module) -> tuple[torch.dtype, list[str]]:
    """What to compute in, and a note where that is not what the module holds."""
    held = {value.dtype for value in module.parameters() if value.requires_grad}
    if odd := [each for each in held if not each.is_floating_point]:
        raise LeakbenchError(f"model: parameters are {odd[0]}; allowed: real floating point")
    if held <= {torch.float32, torch.float64}:
        return (torch.float64 if torch.float64 in held else torch.float32), []
    said = ", ".join(sorted(str(each).removeprefix("torch.") for each in held))
    return torch.float32, [
        f"weights are {said} and computed with in float32: the gradient is not rounded as it would "
        "be on its way, which can only help the attacker"
    ]


def _settle_instance_norms(module: nn.Module) -> None:
    """InstanceNorm that normalises by running statistics becomes the BatchNorm that does."""
    for parent in list(module.modules()):
        for name, layer in list(parent.named_children()):
            fixed = isinstance(layer, _InstanceNorm) and layer.running_mean is not None
            if not fixed or layer.training or type(layer) not in _NORMS:
                continue
            norm = cast(Any, layer)
            twin = _NORMS[type(layer)](
                norm.num_features, eps=norm.eps, momentum=norm.momentum, affine=norm.affine
            )
            for own in ("weight", "bias"):
                setattr(twin, own, getattr(norm, own))
            for own in ("running_mean", "running_var", "num_batches_tracked"):
                setattr(twin, own, getattr(norm, own))
            setattr(parent, name, twin.eval())


# ------------------------------------------------------------------------------ a trial of it


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tried:
    """What a forward pass shows: head, outputs, whether they are (b,), whether examples mix."""

    head: str | None
    outputs: int
    flat: bool
    mixes: bool


def _tried(model: ModuleModel, weights: Weights, inputs: Tensor, loss: Loss) -> _Tried:
    """Run it on two inputs, twice."""
    if len(inputs) == 1:
        inputs = torch.cat([inputs, inputs])
    before = {name: value.clone() for name, value in model.fixed.items()}
    heads: list[tuple[str, Tensor]] = []
    gpus = [inputs.device] if inputs.is_cuda else []
    with torch.random.fork_rng(devices=gpus):
        given = inputs.clone()
        with torch.enable_grad(), _watching(model.module, heads):
            outputs = _called(model, weights, given)
        if not torch.equal(given, inputs):
            raise LeakbenchError(
                "model: changes its inputs in place; allowed: a forward that leaves them as they "
                "are"
            )
        with torch.no_grad():
            again = _called(model, weights, inputs)
            swapped = _called(model, weights, inputs[[0, 0]])
    flat = outputs.ndim == 1 and loss != "cross_entropy"
    if len(outputs) != 2 or not (flat or outputs.ndim == 2):
        raise LeakbenchError(
            f"model: two inputs give outputs of shape {tuple(outputs.shape)}; allowed: "
            "(2, outputs), or (2,) for two classes under binary_cross_entropy"
        )
    if not outputs.requires_grad:
        raise LeakbenchError(
            "model: its outputs have no gradient (no_grad, or detach); allowed: outputs that "
            "depend on a trained parameter"
        )
    if bool(outputs.isnan().any()):
        raise LeakbenchError("model: its outputs hold nan; allowed: numbers")
    _require_logits(outputs, loss)
    changed = [k for k, value in model.fixed.items() if not torch.equal(value, before[k])]
    if changed or not torch.equal(outputs.detach(), again):
        what = f"changes its buffer '{changed[0]}'" if changed else "gives two answers to one input"
        raise LeakbenchError(
            f'model: {what} with every use; allowed: mode "eval", or a forward that draws nothing '
            "and keeps nothing"
        )
    size = outputs[0].numel()
    head = next(
        (
            name
            for name, found in reversed(heads)
            if found.numel() == outputs.numel() and found.shape[-1] == size
            and torch.equal(found.reshape(2, size), outputs.detach().reshape(2, size))
        ),
        None,
    )  # fmt: skip
    mixes = not torch.allclose(outputs[0].detach(), swapped[0], rtol=1e-3, atol=1e-5)
    return _Tried(head=head, outputs=size, flat=flat, mixes=mixes)


@contextmanager
def _watching(module: nn.Module, heads: list[tuple[str, Tensor]]) -> Iterator[None]:
    """Meanwhile note the outputs of dense layers that are trained."""

    def noting(name: str) -> Callable[..., None]:
        def note(layer: nn.Module, given: object, output: Tensor) -> None:
            heads.append((name, output.detach()))

        return note

    handles = [
        layer.register_forward_hook(noting(name)) for name, layer in _dense_layers(module).items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _called(model: ModuleModel, weights: Weights, inputs: Tensor) -> Tensor:
    leaves = {name: value.detach().requires_grad_() for name, value in weights.items()}
    try:
        found: object = model.logits(leaves, inputs)
    except Exception as error:  # foreign code may fail in any way
        raise LeakbenchError(
            f"model: inputs of shape {tuple(inputs.shape[1:])} fail: {one_line(error)}"
        ) from error
    if not isinstance(found, Tensor):
        raise LeakbenchError(
            f"model: returns {type(found).__name__}; allowed: a tensor (b, outputs)"
        )
    return found


def _require_logits(outputs: Tensor, loss: Loss) -> None:
    """Losses here are of outputs before a sigmoid; one behind it would be another loss.

    Cross-entropy of a log-softmax is that of what is before it, so that one may stay.
    """
    step = outputs.grad_fn
    passing = ("Squeeze", "View", "Reshape", "Select", "Unsqueeze", "Alias")
    while step is not None and step.name().startswith(passing):
        step = step.next_functions[0][0]
    if step is not None and loss == "binary_cross_entropy" and step.name().startswith("Sigmoid"):
        raise LeakbenchError(
            "model: ends in a sigmoid, which binary_cross_entropy has inside; allowed: the module "
            "without it, as BCEWithLogitsLoss wants it"
        )


def _dense_layers(module: nn.Module) -> dict[str, nn.Linear]:
    """Weight -> layer of the dense layers that are trained, in the order of the module.

    A weight that several layers share is left out: its gradient is the sum of theirs.
    """
    shared = Counter(id(value) for _, value in module.named_parameters(remove_duplicate=False))
    return {
        f"{name}.weight" if name else "weight": layer
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Linear)
        and layer.weight.requires_grad
        and shared[id(layer.weight)] == 1
    }
