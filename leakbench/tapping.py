"""A tap on a training that runs as it is: what was really sent is what is attacked and judged.

    tap = lb.tap(optimizer, model=model, criterion=criterion)
    ...                                            # the training, unchanged
    leak = tap.releases[0].leak(model, loss="cross_entropy", defense=config)
    lb.attack(leak, "cpl").score()

Weights, gradients and random numbers of the training stay what they are without it, bit for bit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from leakbench.errors import LeakbenchError
from leakbench.user_models import unwrapped

if TYPE_CHECKING:
    from leakbench.captured import CapturedLeak


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Release:
    """What one step of an optimiser was given, copied to the CPU before it was taken.

    Attributes:
        step: from 0 on.
        parameters: that the optimiser trains; the other tuples follow their order.
        weights: before the step.
        sent: their gradients as the step used them: clipped, noised and divided.
        inputs, labels: of the batch, (b, *input shape) and (b,); None where the tap saw none.
        divisor: that the sum over the batch was divided by, if it is not the examples that were
            there: Opacus divides by those expected.
    """

    step: int
    parameters: tuple[Tensor, ...]
    weights: tuple[Tensor, ...]
    sent: tuple[Tensor, ...]
    inputs: Tensor | None = None
    labels: Tensor | None = None
    divisor: float | None = None

    def leak(
        self, model: nn.Module, x: Tensor | None = None, y: Tensor | None = None, **options: Any
    ) -> CapturedLeak:
        """What was sent, as `lb.attack` takes it.

        What is not recorded is as the module has it now: frozen parameters, and buffers such as
        BatchNorm's running statistics.

        Args:
            model: the module that was trained; it may be wrapped.
            x, y: the batch; None: as recorded.
            options: of `api.leak`: loss, defense, candidates ...

        Raises:
            LeakbenchError: a batch that was not recorded or is empty, another module, and as
                `api.leak`.
        """
        from leakbench import api

        x, y = self.inputs if x is None else x, self.labels if y is None else y
        if x is None or y is None:
            raise LeakbenchError(
                f"tap: the batch of step {self.step} was not recorded; give x and y, or tap with "
                "model and criterion"
            )
        if not len(x):
            raise LeakbenchError(f"tap: no example was drawn in step {self.step}")
        if taken := sorted({"weights", "sent"} & options.keys()):
            raise LeakbenchError(f"tap: {taken[0]} are recorded; leave them out")
        names = self._names(model)
        unit = 1.0 if self.divisor is None else self.divisor / len(x)
        return api.leak(
            model, x, y,
            weights=dict(zip(names, self.weights, strict=True)),
            sent={name: unit * value[None] for name, value in zip(names, self.sent, strict=True)},
            **{"observer": "type2_batch"} | options,
        )  # fmt: skip

    def _names(self, model: nn.Module) -> list[str]:
        if not isinstance(model, nn.Module):
            raise LeakbenchError(f"tap: model is {type(model).__name__}; allowed: the nn.Module")
        known = {id(own): name for name, own in unwrapped(model).named_parameters()}
        names = [known.get(id(own)) for own in self.parameters]
        if None in names:
            raise LeakbenchError("tap: the optimiser trained another module; give that one")
        return [name for name in names if name is not None]


class Tap:
    """Records steps of an optimiser as they happen; see `tap`.

    Attributes:
        releases: that were recorded, in order. steps: that were taken since it was attached.
    """

    def __init__(
        self,
        optimizer: Any,
        model: nn.Module | None,
        criterion: nn.Module | None,
        steps: Collection[int] | None,
    ) -> None:
        self.releases: list[Release] = []
        self.steps = 0
        self._wanted = steps
        self._optimizer = optimizer
        self._inputs: list[_Part] = []
        self._labels: list[_Part] = []
        stepping = _stepping(optimizer)
        self._handles = [
            stepping.register_step_pre_hook(self._before_step),
            stepping.register_step_post_hook(self._after_step),
        ]
        if model is not None:
            self._handles.append(model.register_forward_pre_hook(self._before_forward))
            self._handles.append(model.register_forward_hook(self._after_forward))
        if criterion is not None:
            self._handles.append(criterion.register_forward_pre_hook(self._before_loss))
            self._handles.append(criterion.register_forward_hook(self._after_loss))

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and files of a tapped model or optimiser have hooks that do nothing."""
        return Tap._of_a_copy, ()

    @staticmethod
    def _of_a_copy() -> Tap:
        found = object.__new__(Tap)
        found.releases, found.steps, found._wanted = [], 0, ()
        found._optimizer, found._inputs, found._labels, found._handles = None, [], [], []
        return found

    def detach(self) -> None:
        """Record no more."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.detach()

    def _is_wanted(self) -> bool:
        if self._wanted is None:
            return self.steps & (self.steps - 1) == 0  # 0, 1, 2, 4, 8 ...
        return self.steps in self._wanted

    def _before_forward(self, model: nn.Module, given: tuple[Any, ...]) -> None:
        if torch.is_grad_enabled() and self._is_wanted():
            if any(part.reached for part in self._inputs) and not self._holds_gradients():
                self._forget()  # a backward pass whose gradients were thrown away
            self._inputs.append(_Part(given[0] if given else None))

    def _after_forward(self, model: nn.Module, given: tuple[Any, ...], output: object) -> None:
        if torch.is_grad_enabled() and self._is_wanted() and self._inputs:
            self._inputs[-1].follow(output)

    def _before_loss(self, criterion: nn.Module, given: tuple[Any, ...]) -> None:
        if torch.is_grad_enabled() and self._is_wanted():
            self._labels.append(_Part(given[1] if len(given) > 1 else None))

    def _after_loss(self, criterion: nn.Module, given: tuple[Any, ...], output: object) -> None:
        if torch.is_grad_enabled() and self._is_wanted() and self._labels:
            self._labels[-1].follow(output)

    def _before_step(
        self, stepping: Any, args: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Record, where gradients are there; a closure has yet to compute them."""
        closure = named.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self._record(stepping)
            return None
        first = True

        def evaluated() -> Any:
            nonlocal first
            loss = closure()
            if first:
                self._record(stepping)
            first = False
            return loss

        if "closure" in named:
            return args, named | {"closure": evaluated}
        return (args[0], evaluated, *args[2:]), named

    def _after_step(self, *_: object) -> None:
        self._forget()

    def _record(self, stepping: Any) -> None:
        if self._is_wanted():
            trained = _trained(stepping)
            self.releases.append(
                Release(
                    step=self.steps,
                    parameters=trained,
                    weights=tuple(map(_copy, trained)),
                    sent=tuple(_sent(p, getattr(stepping, "grad_scale", None)) for p in trained),
                    inputs=_joined(self._inputs),
                    labels=_joined(self._labels),
                    divisor=_divisor(self._optimizer),
                )
            )
        self._forget()
        self.steps += 1

    def _forget(self) -> None:
        self._inputs, self._labels = [], []

    def _holds_gradients(self) -> bool:
        """Whether a batch in parts is under way; Opacus keeps the sum in an attribute."""
        return any(
            getattr(p, "summed_grad", None) is not None or (p.grad is not None and _any(p.grad))
            for p in _trained(_stepping(self._optimizer))
        )


class _Part:
    """Inputs or labels of a forward pass, copied before it; they count once gradients came by.

    So a pass that failed, was an evaluation, or whose loss was left out, is no part of the batch.
    """

    def __init__(self, value: object) -> None:
        self.value = _copy(value) if isinstance(value, Tensor) else None
        self.reached = False

    def follow(self, output: object) -> None:
        """Learn from what was computed whether gradients come."""
        tensors = _tensors(output)
        if not tensors:  # of a kind that cannot be followed
            self.reached = True
        for tensor in tensors:
            if tensor.requires_grad:
                tensor.register_hook(self._reach)

    def _reach(self, gradient: Tensor) -> None:
        self.reached = True


def tap(
    optimizer: Any,
    *,
    model: nn.Module | None = None,
    criterion: nn.Module | None = None,
    steps: Collection[int] | None = None,
) -> Tap:
    """Record what an optimiser really steps with, in a training that runs unchanged.

    Args:
        optimizer: of torch, or Opacus' around one: then the gradient is that after clipping, noise
            and scaling, and a virtual step of a batch in parts is no step.
        model: that it trains: its inputs are recorded too, of passes that gradients came by.
        criterion: the loss as a module, called with outputs and labels: labels are recorded.
        steps: which to record, from 0 on; None: 0, 1, 2, 4, 8 and so on, eleven in 1,000.

    Raises:
        LeakbenchError: what has no steps to attach to, a model or criterion that is no module, or
            steps that are no whole numbers.
    """
    for name, module in (("model", model), ("criterion", criterion)):
        if module is not None and not isinstance(module, nn.Module):
            raise LeakbenchError(
                f"tap: {name} is {type(module).__name__}; allowed: an nn.Module, as it is called"
            )
    if steps is not None:
        given: object = steps
        numbers = isinstance(given, range) or (
            isinstance(given, Collection)
            and all(isinstance(step, int) and step >= 0 for step in given)
        )
        if not numbers:
            raise LeakbenchError(
                f"tap: steps are {steps!r:.60}; allowed: a collection of whole numbers from 0 on"
            )
    return Tap(optimizer, model, criterion, steps)


def _stepping(optimizer: Any) -> Any:
    """The optimiser that moves the weights, inside those that only prepare gradients."""
    inner = getattr(optimizer, "original_optimizer", None)
    while inner is not None:
        optimizer, inner = inner, getattr(inner, "original_optimizer", None)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise LeakbenchError(
            f"tap: {type(optimizer).__name__} is no optimiser; allowed: one of torch, or Opacus' "
            "around one"
        )
    return optimizer


def _divisor(optimizer: Any) -> float | None:
    """Of Opacus: examples expected in a step, which the sum is divided by, or 1 for a bare sum."""
    expected = getattr(optimizer, "expected_batch_size", None)
    if not expected:
        return None
    if optimizer.loss_reduction == "sum":
        return 1.0
    return float(expected * optimizer.accumulated_iterations)


def _trained(stepping: Any) -> tuple[Tensor, ...]:
    return tuple(p for group in stepping.param_groups for p in group["params"] if p.requires_grad)


def _sent(parameter: Tensor, scale: Tensor | None) -> Tensor:
    """Its gradient; 0 where there is none. scale: that fused optimisers undo themselves (AMP)."""
    if parameter.grad is None:
        return _copy(torch.zeros_like(parameter))
    found = _copy(parameter.grad.to_dense())
    return found if scale is None else found / scale.to(found)


def _any(gradient: Tensor) -> bool:
    return bool(gradient._nnz() if gradient.is_sparse else gradient.any())


def _copy(value: Tensor) -> Tensor:
    return value.detach().to("cpu", copy=True)


def _joined(parts: list[_Part]) -> Tensor | None:
    """Of a batch in parts; None without any, or of a kind or shapes that make no batch."""
    values = [part.value for part in parts if part.reached]
    known = [value for value in values if value is not None and value.ndim]
    if not known or len(known) < len(values):
        return None
    if len({(value.shape[1:], value.dtype) for value in known}) > 1:
        return None
    return torch.cat(known)


def _tensors(output: object) -> list[Tensor]:
    """In what a module returns: a tensor, or tuples, lists and tables of them."""
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, Mapping):
        return _tensors(list(output.values()))
    if isinstance(output, tuple | list):
        return [tensor for part in output for tensor in _tensors(part)]
    return []
