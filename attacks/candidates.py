"""Candidates: whose gradient, among those of known inputs, is the observed one?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from leakbench.contracts import Attack, Leak, LeakFacts, LocalSteps, Reconstruction, Streams, Watch
from leakbench.matching import squared_loss
from leakbench.optim import with_copies
from leakbench.spec import Grant

TOGETHER = 256
"""Pairs of victim and candidate whose gradients are computed in one call; a multiple of 8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates(Attack):
    """Maximum likelihood over a list of candidates that holds the victims.

    c* = argmin over the N candidates c of sum over k observations and tensors t of
    ||grad_t L(w_k; x_c, y_c) - g_kt||^2 / (2 std_t^2), the negative log-likelihood of Gaussian
    noise. The loss is the same up to a positive factor of each victim's own, which moves no
    argmin: tensor weights have the mean 1, and all are 1 where the noise is unknown, equal or
    absent. Of equal candidates the first is taken. No optimiser, so no failed one: with the
    defense's replay and its noise known, no attacker identifies a victim more often.

    Knowledge used: weights, gradient, the list and its labels, which the threat model must grant
    ("candidates"); for an adaptive attacker the defense's replay (`Observation.simulate`) and its
    noise. Starts at the list's mean, and returns a candidate (n, 1, *input shape), status
    "converged" after 0 steps and N k evaluations; a gradient that is not finite gives the mean and
    "nan". Batch of 1. Known failure: he always names somebody, also where the victim is not on the
    list or the gradient is zero.

    Args:
        local_steps: how several local steps behind an update are modelled.
    """

    name: ClassVar[str] = "candidates"
    requires: ClassVar[tuple[Grant, ...]] = ("candidates",)
    local_steps: LocalSteps = "unroll"

    def skip(self, facts: LeakFacts) -> str:
        if facts.batch_size != 1:
            return (
                f"batch_size must be 1, one candidate behind each gradient, got {facts.batch_size}"
            )
        return "" if facts.candidates else "the threat model must grant 'candidates'"

    def budget(self, facts: LeakFacts) -> int:
        return facts.candidates

    def start(self, leak: Leak, streams: Streams, restart: int = 0) -> Tensor:
        inputs, _ = self._granted(leak)
        return inputs.mean(dim=0).expand(leak.n, 1, *leak.input_shape).clone()

    def reconstruct(self, leak: Leak, streams: Streams, watch: Watch) -> Reconstruction:
        inputs, labels = self._granted(leak)
        start, count = self.start(leak, streams), len(inputs)
        losses = self._losses(leak, inputs, labels)
        finite = torch.isfinite(losses)
        loss, chosen = torch.where(finite, losses, torch.inf).min(dim=1)
        found = finite.any(dim=1)
        picked = torch.where(
            found.reshape(-1, *[1] * (start.ndim - 1)), inputs[chosen, None], start
        )
        zeros = torch.zeros(leak.n, dtype=torch.int64, device=leak.device)
        return Reconstruction(
            inputs=picked,
            labels=labels[chosen, None],
            loss=torch.where(found, loss, torch.nan),
            start_inputs=start,
            start_loss=torch.full_like(loss, torch.nan),
            steps=zeros,
            evaluations=zeros + count * len(leak.observations),
            status=tuple("converged" if ok else "nan" for ok in found.tolist()),
        )

    def _losses(self, leak: Leak, inputs: Tensor, labels: Tensor) -> Tensor:
        """(n, N) loss of every candidate for every victim."""
        count = len(inputs)
        parts = []
        for pairs in torch.arange(leak.n * count, device=leak.device).split(TOGETHER):
            full = with_copies(pairs)
            victims, which = full // count, full % count
            with torch.no_grad():
                loss = self.loss(leak, inputs[which, None], labels[which, None], victims)
            parts.append(loss[: len(pairs)])
        return torch.cat(parts).reshape(leak.n, count)

    def loss(self, leak: Leak, inputs: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
        """(k,) the negative log-likelihood, up to a factor of each victim's own."""
        return squared_loss(leak, inputs, labels, rows, local_steps=self.local_steps)

    def _granted(self, leak: Leak) -> tuple[Tensor, Tensor]:
        self.require_suitable(leak)
        assert leak.candidates is not None and leak.candidate_labels is not None
        inputs = leak.candidates.to(dtype=leak.dtype, device=leak.device)
        return inputs, leak.candidate_labels.to(leak.device)
