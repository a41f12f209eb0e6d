"""A tap on a training that runs as it is: what was really sent is what is attacked and judged.

    tap = lb.tap(optimizer, model=model, criterion=criterion)
    ...                                            # the training, unchanged
    leak = tap.releases[0].leak(model, loss="cross_entropy", defense=config)
    lb.attack(leak, "cpl").score()

Weights, gradients and random numbers of the training stay what they are without it, bit for bit.
"""

from __future__ import annotations

from collections.abc import Collection
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
        names = self._names(model)
        unit = 1.0 if self.divisor is None else self.divisor / len(x)
        return api.leak(
            model, x, y,
            weights=dict(zip(names, self.weights, strict=True)),
            sent={name: unit * value[None] for name, value in zip(names, self.sent, strict=True)},
            **{"observer": "type2_batch"} | options,
        )  # fmt: skip

    def _names(self, model: nn.Module) -> list[str]:
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
        self._inputs: list[Tensor] = []
        self._labels: list[Tensor] = []
        stepping = _stepping(optimizer)
        self._handles = [stepping.register_step_pre_hook(self._before_step)]
        if model is not None:
            self._handles.append(model.register_forward_pre_hook(self._before_forward))
        if criterion is not None:
            self._handles.append(criterion.register_forward_pre_hook(self._before_loss))

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
        """A batch, unless it is only evaluated."""
        if given and model.training and torch.is_grad_enabled() and self._is_wanted():
            self._inputs.append(given[0])

    def _before_loss(self, criterion: nn.Module, given: tuple[Any, ...]) -> None:
        if len(given) > 1 and torch.is_grad_enabled() and self._is_wanted():
            self._labels.append(given[1])

    def _before_step(self, stepping: Any, *_: object) -> None:
        if self._is_wanted():
            groups = stepping.param_groups
            trained = tuple(p for group in groups for p in group["params"] if p.requires_grad)
            self.releases.append(
                Release(
                    step=self.steps,
                    parameters=trained,
                    weights=tuple(map(_copy, trained)),
                    sent=tuple(
                        _copy(torch.zeros_like(p) if p.grad is None else p.grad) for p in trained
                    ),
                    inputs=_joined(self._inputs),
                    labels=_joined(self._labels),
                    divisor=_divisor(self._optimizer),
                )
            )
        self._inputs, self._labels = [], []
        self.steps += 1


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
        model: that it trains: its inputs are recorded too, when it runs in training mode.
        criterion: the loss as a module, called with outputs and labels: labels are recorded.
        steps: which to record, from 0 on; None: 0, 1, 2, 4, 8 and so on, eleven in 1,000.

    Raises:
        LeakbenchError: what has no steps to attach to.
    """
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


def _copy(value: Tensor) -> Tensor:
    return value.detach().to("cpu", copy=True)


def _joined(parts: list[Tensor]) -> Tensor | None:
    return torch.cat([_copy(part) for part in parts]) if parts else None
