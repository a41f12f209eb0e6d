"""What a network's outputs are compared with: one loss for client and attacker alike.

Outputs are (b, k) before any softmax or sigmoid. Labels are class indices (b,) or probabilities
(b, classes). A network with one output tells two classes apart: output 0 is for class 1.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as functional
from torch import Tensor

from leakbench.errors import LeakbenchError

Loss = Literal["cross_entropy", "binary_cross_entropy", "mean_squared_error"]
"""cross_entropy: of the softmax, in nats. binary_cross_entropy: of the sigmoid of every output, in
nats; mean_squared_error: of the outputs as they are. Both against rows of 0 and 1, one column a
class, or, with one output, against the label itself; and averaged over the outputs, as torch does.
"""


def example_losses(loss: Loss, outputs: Tensor, labels: Tensor) -> Tensor:
    """(b,) loss of every example.

    Raises:
        LeakbenchError: cross-entropy of a single output, which is always 0.
    """
    _require_outputs(loss, outputs)
    if loss == "cross_entropy":
        return functional.cross_entropy(outputs, labels, reduction="none")
    return _apart(loss, outputs, targets(outputs, labels)).mean(dim=-1)


def mean_loss(loss: Loss, outputs: Tensor, labels: Tensor) -> Tensor:
    """() mean over the examples of `example_losses`."""
    if loss == "cross_entropy":
        _require_outputs(loss, outputs)
        return functional.cross_entropy(outputs, labels)
    return example_losses(loss, outputs, labels).mean()


def derivative(loss: Loss, outputs: Tensor, labels: Tensor) -> Tensor:
    """(..., k) of each example's loss by its outputs (..., k); labels (...) or (..., classes), of
    any sum.

    Raises:
        LeakbenchError: cross-entropy of a single output, which is always 0.
    """
    _require_outputs(loss, outputs)
    wanted = targets(outputs, labels)
    if loss == "cross_entropy":
        return outputs.softmax(dim=-1) * wanted.sum(dim=-1, keepdim=True) - wanted
    if loss == "binary_cross_entropy":
        return (outputs.sigmoid() - wanted) / outputs.shape[-1]
    return 2 * (outputs - wanted) / outputs.shape[-1]


def _apart(loss: Loss, outputs: Tensor, wanted: Tensor) -> Tensor:
    """(b, k) loss of every output."""
    if loss == "binary_cross_entropy":
        return functional.binary_cross_entropy_with_logits(outputs, wanted, reduction="none")
    return (outputs - wanted).square()


def targets(outputs: Tensor, labels: Tensor) -> Tensor:
    """(b, k) what the outputs should be: 1 for the label's, or the probability of its class."""
    if outputs.shape[-1] > 1:
        return class_probabilities(labels, outputs.shape[-1], outputs)
    wanted = labels[..., 1] if labels.is_floating_point() else labels
    return wanted[..., None].to(outputs.dtype)


def class_probabilities(labels: Tensor, classes: int, like: Tensor) -> Tensor:
    """Class indices (...) as rows of 0 and 1 in the type of `like`; probabilities as they are."""
    if labels.is_floating_point():
        return labels
    every = torch.arange(classes, device=labels.device)
    return (labels[..., None] == every).to(like.dtype)  # `one_hot` knows no vmap


def predictions(loss: Loss, outputs: Tensor) -> Tensor:
    """(b,) class indices that the outputs stand for."""
    if outputs.shape[-1] > 1:
        return outputs.argmax(dim=-1)
    threshold = 0.5 if loss == "mean_squared_error" else 0.0
    return (outputs[..., 0] > threshold).to(torch.int64)


def require_classes(loss: Loss, outputs: int, classes: int) -> None:
    """Refuse a number of outputs that does not go with the classes.

    Raises:
        LeakbenchError: naming both, and what is allowed.
    """
    alone = outputs == 1 and classes == 2 and loss != "cross_entropy"
    if not alone and outputs != classes:
        one = ", or 1 where there are two classes and the loss is not cross_entropy"
        raise LeakbenchError(
            f"model: {outputs} outputs for {classes} classes under {loss}; "
            f"allowed: one for each class{one}"
        )


def _require_outputs(loss: Loss, outputs: Tensor) -> None:
    if loss == "cross_entropy" and outputs.shape[-1] == 1:
        raise LeakbenchError(
            "model: cross_entropy of a single output is always 0, so its gradient would seem to "
            "leak nothing; allowed for one output: binary_cross_entropy, mean_squared_error"
        )
