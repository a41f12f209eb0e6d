"""Candidates: whose gradient, among those of known inputs, is the observed one?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from leakbench.candidate_lists import TOGETHER, CandidateList
from leakbench.contracts import Attack, Leak, LeakFacts, LocalSteps, Reconstruction, Streams, Watch
from leakbench.matching import squared_loss
from leakbench.optim import with_copies
from leakbench.pursuit import PASSES, pursue
from leakbench.spec import Grant


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates(Attack):
    """Maximum likelihood over a list of candidates that holds the victims.

    c* = argmin over the N candidates c of sum over k observations and tensors t of
    ||grad_t L(w_k; x_c, y_c) - g_kt||^2 / (2 std_t^2), the negative log-likelihood of Gaussian
    noise. The loss is the same up to a positive factor of each victim's own, which moves no
    argmin: tensor weights have the mean 1, and all are 1 where the noise is unknown, equal or
    absent. Of equal candidates the first is taken. No optimiser, so no failed one: with the
    defense's replay and its noise known, no attacker identifies a victim more often.

    Gradients of the list are computed once for all victims whose replays treat them alike, and
    distances are matrix products (`candidate_lists`); the few candidates that rounding could
    confuse are compared by the loss itself.

    Of a batch of B > 1 the B candidates are sought whose mean is nearest (`pursuit`): one of the
    two sets found, by the loss of the whole batch under the replay. That is exact where nothing is
    added and what the replay does to a batch is the mean of what it does to each example; else a
    search that may miss the likeliest set.

    Knowledge used: weights, gradient, the list and its labels, which the threat model must grant
    ("candidates"); for an adaptive attacker the defense's replay (`Observation.simulate`) and its
    noise. Starts at the list's mean, and returns candidates (n, B, *input shape) in the list's
    order, status "converged" after 0 steps. Evaluations are those of a victim attacked alone: N k
    for B = 1, else those of every pass over the list and of the pool; a gradient that is not finite
    gives the mean and "nan". Known failure: he always names somebody, also where the victim is not
    on the list or the gradient is zero.

    Args:
        local_steps: how several local steps behind an update are modelled.
    """

    name: ClassVar[str] = "candidates"
    requires: ClassVar[tuple[Grant, ...]] = ("candidates",)
    local_steps: LocalSteps = "unroll"

    def skip(self, facts: LeakFacts) -> str:
        if facts.local_steps != 1:
            return (
                "local_steps must be 1, a mean of the candidates' gradients behind each, got "
                f"{facts.local_steps}"
            )
        if not facts.candidates:
            return "the threat model must grant 'candidates'"
        if facts.candidates < facts.batch_size:
            return (
                f"batches of {facts.batch_size} cannot be picked from {facts.candidates} candidates"
            )
        return ""

    def budget(self, facts: LeakFacts) -> int:
        return facts.candidates * (1 if facts.batch_size == 1 else PASSES)

    def start(self, leak: Leak, streams: Streams, restart: int = 0) -> Tensor:
        inputs, _ = self._granted(leak)
        shape = (leak.n, leak.batch_size, *leak.input_shape)
        return inputs.mean(dim=0).expand(shape).clone()

    def reconstruct(self, leak: Leak, streams: Streams, watch: Watch) -> Reconstruction:
        inputs, labels = self._granted(leak)
        start = self.start(leak, streams)
        candidates = CandidateList(
            leak=leak, inputs=inputs, labels=labels, local_steps=self.local_steps
        )
        find = self._nearest if leak.batch_size == 1 else self._mean
        chosen, loss, evaluations = find(candidates)
        found = torch.isfinite(loss)
        picked = torch.where(found.reshape(-1, *[1] * (start.ndim - 1)), inputs[chosen], start)
        return Reconstruction(
            inputs=picked,
            labels=labels[chosen],
            loss=torch.where(found, loss, torch.nan),
            start_inputs=start,
            start_loss=torch.full_like(loss, torch.nan),
            steps=torch.zeros_like(evaluations),
            evaluations=evaluations,
            status=tuple("converged" if ok else "nan" for ok in found.tolist()),
        )

    def _nearest(self, candidates: CandidateList) -> tuple[Tensor, Tensor, Tensor]:
        """(n, 1) the candidate with the least loss, (n,) that loss, (n,) evaluations."""
        leak, count = candidates.leak, len(candidates)
        distances, slack = candidates.distances()
        distances = torch.where(torch.isfinite(distances), distances, torch.inf)
        limit = distances.amin(dim=1).clamp(max=torch.finfo(torch.float64).max) + slack
        rows, which = torch.nonzero(distances <= limit[:, None], as_tuple=True)
        losses = self._losses(candidates, rows, which[:, None])
        loss = losses.new_full((leak.n,), torch.inf).scatter_reduce(0, rows, losses, "amin")
        least = losses == loss[rows]
        chosen = torch.full_like(loss, count - 1, dtype=torch.int64)
        chosen = chosen.scatter_reduce(0, rows[least], which[least], "amin")
        return chosen[:, None], loss, torch.full_like(chosen, count * len(leak.observations))

    def _mean(self, candidates: CandidateList) -> tuple[Tensor, Tensor, Tensor]:
        """(n, B) the candidates with the nearest mean, (n,) their loss, (n,) evaluations."""
        leak = candidates.leak
        sets, evaluations = pursue(candidates, leak.batch_size)
        every, both = torch.arange(leak.n, device=leak.device), sets.shape[1]
        losses = self._losses(candidates, every.repeat_interleave(both), sets.flatten(0, 1))
        loss, best = losses.reshape(leak.n, both).min(dim=1)
        return sets[every, best], loss, evaluations + both * len(leak.observations)

    def _losses(self, candidates: CandidateList, rows: Tensor, which: Tensor) -> Tensor:
        """(m,) loss of the candidates `which` (m, B) for victims `rows` (m,); infinite for nan."""
        parts = [torch.empty(0, dtype=candidates.leak.dtype, device=candidates.leak.device)]
        pieces = torch.arange(len(rows), device=rows.device).split(TOGETHER)
        for piece in pieces if len(rows) else ():  # nobody whose gradient is finite
            full = with_copies(piece)
            with torch.no_grad():
                loss = self.loss(
                    candidates.leak,
                    candidates.inputs[which[full]],
                    candidates.labels[which[full]],
                    rows[full],
                )
            parts.append(loss[: len(piece)])
        losses = torch.cat(parts)
        return torch.where(torch.isfinite(losses), losses, torch.inf)

    def loss(self, leak: Leak, inputs: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
        """(k,) the negative log-likelihood, up to a factor of each victim's own."""
        return squared_loss(leak, inputs, labels, rows, local_steps=self.local_steps)

    def _granted(self, leak: Leak) -> tuple[Tensor, Tensor]:
        self.require_suitable(leak)
        assert leak.candidates is not None and leak.candidate_labels is not None
        inputs = leak.candidates.to(dtype=leak.dtype, device=leak.device)
        return inputs, leak.candidate_labels.to(leak.device)
