"""Analytic: the input of a dense first layer, in closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from leakbench.contracts import Attack, Leak, LeakFacts, Reconstruction, Streams, Watch
from leakbench.labels import labels_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Analytic(Attack):
    """Closed form for a dense first layer with bias (Phong et al., TIFS 2018).

    Of h = W x + b the gradient is dW_u = delta_u x and db_u = delta_u for each unit u, hence
    x = dW_u / db_u; taken from the unit with the largest |db_u| of all observations.

    Knowledge used: gradient and input shape; labels where the threat model grants them, else the
    sign rule. Inputs of any shape (n, 1, *input shape), returned raw, exact to rounding; the
    leak's first two parameters must be weight (units, input size) and bias (units,). Clipping
    cancels where it scales both by one factor, and is not undone where each tensor has its own.
    No unit with a finite x (all db zero, or a gradient that is not finite): zeros, status "nan".
    Known failure: noise is divided by db. It computes no loss and begins nowhere: nan and zeros.
    """

    name: ClassVar[str] = "analytic"
    paper: ClassVar[str] = "Phong et al., TIFS 2018"

    def skip(self, facts: LeakFacts) -> str:
        if facts.batch_size != 1:
            return (
                f"batch_size must be 1, a sum of inputs is not taken apart, got {facts.batch_size}"
            )
        shapes, size = list(facts.parameters.values())[:2], math.prod(facts.input_shape)
        if len(shapes) < 2 or shapes[0] != (*shapes[1], size) or len(shapes[1]) != 1:
            return (
                f"the model's first layer must be dense with a bias, weight (units, {size}) and "
                f"bias (units,), got parameters of shapes {shapes}"
            )
        return ""

    def reconstruct(self, leak: Leak, streams: Streams, watch: Watch) -> Reconstruction:
        self.require_suitable(leak)
        gradients = [list(seen.gradients.tensors.values())[:2] for seen in leak.observations]
        weight = torch.cat([weight for weight, _ in gradients], dim=1)
        bias = torch.cat([bias for _, bias in gradients], dim=1)
        victims = torch.arange(leak.n, device=leak.device)
        unit = bias.abs().argmax(dim=1)
        inputs = weight[victims, unit] / bias[victims, unit][:, None]
        finite = torch.isfinite(inputs).all(dim=1) & torch.isfinite(bias).all(dim=1)
        inputs = torch.where(finite[:, None], inputs, 0.0)
        inputs = inputs.reshape(leak.n, 1, *leak.input_shape)
        nothing = torch.full((leak.n,), torch.nan, dtype=leak.dtype, device=leak.device)
        zeros = torch.zeros(leak.n, dtype=torch.int64, device=leak.device)
        return Reconstruction(
            inputs=inputs,
            labels=labels_of(leak, streams),
            loss=nothing,
            start_inputs=torch.zeros_like(inputs),
            start_loss=nothing,
            steps=zeros,
            evaluations=zeros,
            status=tuple("converged" if ok else "nan" for ok in finite.tolist()),
        )
