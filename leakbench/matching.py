"""Distances between gradients, and the label that one gradient gives away."""

from __future__ import annotations

from torch import Tensor

from leakbench.contracts import Gradients, Leak


def squared_distance(simulated: Gradients, observed: Gradients) -> Tensor:
    """Sum over all coordinates of (simulated - observed)^2 -> (n,); axes ("client",).

    The L2 matching loss of DLG, iDLG and CPL: a sum over tensors, no factor, no mean.
    """
    total: Tensor | None = None
    for name, value in simulated.tensors.items():
        part = (value - observed.tensors[name]).square().flatten(1).sum(dim=1)
        total = part if total is None else total + part
    assert total is not None
    return total


def sign_rule_labels(leak: Leak) -> Tensor:
    """(n, 1) label of one example: the head row with the smallest gradient sum (iDLG, CPL).

    Cross-entropy gives the true class the only negative logit gradient, and features after a
    sigmoid or ReLU are not negative, so the row sum of the true class is the only negative one.
    Clipping keeps the sign; noise may turn it. Valid for batch_size 1.
    """
    head = leak.observed.tensors[leak.model.head]
    return head.sum(dim=-1).argmin(dim=-1, keepdim=True)
