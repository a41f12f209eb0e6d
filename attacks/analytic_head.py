"""Analytic head: labels and features off the last layer, and the public image that has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from leakbench.contracts import Attack, Leak, LeakFacts, Reconstruction, Streams, Watch
from leakbench.head_inversion import features_of, invert_head


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyticHead(Attack):
    """Inverts the last layer of a batch's gradient in closed form: for networks of any size.

    Labels by counts (`labels.infer`, after Yin et al., CVPR 2021, and Geng et al., 2021), the
    feature of each by `head_inversion.invert_head`. Of the inputs that the threat model grants
    (candidates of the label, else public ones) he returns the one whose feature points the same way
    most nearly; where none are granted the middle of the input range, so that only labels and
    features leak. It costs one forward pass of the list.

    Knowledge used: gradient and weights of the first look; labels where they are granted; the list.
    Cross-entropy and a dense head. Returns inputs (n, B, *input shape) in the order of the labels,
    status "converged" after 0 steps; it has no loss. A gradient that is not finite gives the middle
    of the range and "nan". Known failures: clipping of the whole gradient spoils counts, noise is
    divided by the share of a class; the examples of one class are seen by their mean only.
    """

    name: ClassVar[str] = "analytic_head"
    paper: ClassVar[str] = "Geng et al., 2021"

    def skip(self, facts: LeakFacts) -> str:
        if facts.local_steps != 1:
            return f"local_steps must be 1, one gradient of the head, got {facts.local_steps}"
        return ""

    def start(self, leak: Leak, streams: Streams, restart: int = 0) -> Tensor:
        low, high = leak.input_range
        shape = (leak.n, leak.batch_size, *leak.input_shape)
        return torch.full(shape, (low + high) / 2, dtype=leak.dtype, device=leak.device)

    def reconstruct(self, leak: Leak, streams: Streams, watch: Watch) -> Reconstruction:
        self.require_suitable(leak)
        start = self.start(leak, streams)
        found = invert_head(leak, streams)
        finite = torch.isfinite(found.features).flatten(1).all(dim=1)
        inputs = self._nearest(leak, found.labels, found.features, start)
        inputs = torch.where(finite.reshape(-1, *[1] * (start.ndim - 1)), inputs, start)
        nothing = torch.full((leak.n,), torch.nan, dtype=leak.dtype, device=leak.device)
        zeros = torch.zeros(leak.n, dtype=torch.int64, device=leak.device)
        return Reconstruction(
            inputs=inputs,
            labels=found.labels,
            loss=nothing,
            start_inputs=start,
            start_loss=nothing,
            steps=zeros,
            evaluations=zeros,
            status=tuple("converged" if ok else "nan" for ok in finite.tolist()),
        )

    def _nearest(self, leak: Leak, labels: Tensor, features: Tensor, start: Tensor) -> Tensor:
        """(n, B, *input shape) of the granted list, each once a batch where it is long enough."""
        listed = leak.candidates if leak.candidates is not None else leak.public
        if listed is None:
            return start
        listed = listed.to(dtype=leak.dtype, device=leak.device)
        theirs = features_of(leak.model, leak.observations[0].weights, listed).double()
        theirs = theirs / theirs.norm(dim=1, keepdim=True).clamp(min=1e-30)
        found = start.clone()
        for row in range(leak.n):
            free = torch.ones(len(listed), dtype=torch.bool, device=leak.device)
            for place in range(leak.batch_size):
                # One product a feature: the bits of a victim are his own.
                likeness = (theirs * features[row, place].double()).sum(dim=1)
                allowed = free
                if leak.candidates is not None and leak.candidate_labels is not None:
                    same = leak.candidate_labels.to(leak.device) == labels[row, place]
                    allowed = free & same
                allowed = allowed if bool(allowed.any()) else free
                if not bool(allowed.any()):
                    continue
                best = torch.where(allowed, likeness, -torch.inf).argmax()
                found[row, place] = listed[best]
                free[best] = False
        return found
