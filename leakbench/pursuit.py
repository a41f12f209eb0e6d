"""Which B of N gradients have the observed mean: compressive matching.

The shares of the candidates in a mean are sparse and not negative. Without that they are all alike
the problem is convex, and pursuit adds to a pool those candidates whose gradients lie most along
what is not yet explained, and solves for the shares of all in the pool again (orthogonal matching
pursuit, Pati, Rezaiifar and Krishnaprasad 1993; for shares that are not negative Bruckstein, Elad
and Zibulevsky 2008). Then all shares are 1 / B: members are exchanged within the pool as long as
one exchange brings the mean nearer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from scipy.optimize import nnls
from torch import Tensor

from leakbench.candidate_lists import CandidateList

A_PASS = 8
"""Candidates that a pass over the list adds to a victim's pool."""

PASSES = 16
"""Over the list, at most."""

SETTLED = 6
"""Passes in a row that bring no better set, after which they end."""

EXPLAINED = 1e-9
"""Squared length left, as a share of that of the observed gradient, at which passes end."""

JITTER = 1e-10
"""Share of their mean squared length that is added to the squared lengths of a pool, so that equal
candidates have a solution."""

POOL_ELEMENTS = 2**27
"""Numbers of the gradients of a pool, about, at most (1 GB): large networks have smaller pools."""

Floats = NDArray[np.float64]


@dataclass(slots=True, kw_only=True)
class _Search:
    """One victim's; gradients are scaled as `CandidateList.scaled` has them.

    gram (K, K), cross (K,): inner products of the pool's K gradients, and with the observed one.
    shares (K,): of the pool in the mean, not negative. rest: what they leave of `observed`.
    members: places in the pool of the best set with equal shares, for `settled` passes.
    """

    victim: Tensor
    observed: Tensor
    rest: Tensor
    pool: list[int] = field(default_factory=list)
    gram: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    cross: Floats = field(default_factory=lambda: np.zeros(0))
    shares: Floats = field(default_factory=lambda: np.zeros(0))
    members: list[int] = field(default_factory=list)
    settled: int = 0
    evaluations: int = 0
    ended: bool = False

    def add(self, candidates: CandidateList, new: list[int], size: int) -> None:
        """Take candidates into the pool, and find all shares and the best set of `size` again."""
        self.pool += new
        chosen = torch.tensor(self.pool, device=self.observed.device)
        gradients = candidates.scaled(self.victim, chosen)
        self.evaluations += len(self.pool) * len(candidates.leak.observations)
        self.gram = (gradients @ gradients.T).cpu().numpy()
        self.cross = (gradients @ self.observed).cpu().numpy()
        self.shares = _shares(self.gram, self.cross)
        self.rest = self.observed - torch.from_numpy(self.shares).to(gradients) @ gradients
        members = exchanged(self.gram, self.cross, self.largest(size))
        self.settled = self.settled + 1 if sorted(members) == sorted(self.members) else 0
        self.members = members

    def largest(self, size: int) -> list[int]:
        """The members of the pool with the largest shares."""
        found: list[int] = np.argsort(-self.shares, kind="stable")[:size].tolist()
        return found

    @property
    def settled_or_explained(self) -> bool:
        explained = self.rest.square().sum() <= EXPLAINED * self.observed.square().sum()
        return bool(explained) or self.settled >= SETTLED


def pursue(candidates: CandidateList, size: int) -> tuple[Tensor, Tensor]:
    """Two sets of `size` candidates for every victim, and the evaluations (n,) it took.

    The first set has the largest shares in a mean with shares of any size, the second is that with
    members exchanged so that the mean with equal shares comes nearer: (n, 2, size), candidates in
    order. A victim whose gradient is not finite has the first candidates, and so are filled up sets
    for which too few candidates have a finite gradient that is not zero.

    Args:
        size: B, at least 2, at most the number of candidates.
    """
    count, device = len(candidates), candidates.leak.device
    found = torch.arange(size, device=device).repeat(candidates.leak.n, 2, 1)
    evaluations = torch.zeros(candidates.leak.n, dtype=torch.int64, device=device)
    left: list[_Search] = []
    for victim in torch.arange(candidates.leak.n, device=device):
        observed = candidates.scaled_observed(victim)
        if bool(torch.isfinite(observed).all()):
            left.append(_Search(victim=victim, observed=observed, rest=observed))
    everyone = list(left)
    most = min(count, max(2 * size, POOL_ELEMENTS // everyone[0].observed.numel())) if left else 0
    for _ in range(PASSES):
        if not left:
            break
        victims = torch.stack([search.victim for search in left])
        rests = torch.stack([search.rest for search in left])
        products, squares = candidates.products(candidates.as_query(rests, victims), victims)
        along = products / squares.sqrt()
        along = torch.where(torch.isfinite(along), along, -torch.inf)
        for search, scores in zip(left, along, strict=True):
            search.evaluations += count * len(candidates.leak.observations)
            scores[search.pool] = -torch.inf
            best = scores.argsort(descending=True, stable=True)[: most - len(search.pool)]
            new = best[torch.isfinite(scores[best])][:A_PASS].tolist()
            if new:
                search.add(candidates, new, size)
            search.ended = not new or search.settled_or_explained or len(search.pool) == most
        left = [search for search in left if not search.ended]
    for search in everyone:
        for number, members in enumerate((search.largest(size), search.members)):
            picked = [search.pool[member] for member in members]
            others = (number for number in range(count) if number not in picked)
            picked = sorted([*picked, *islice(others, size - len(picked))])
            found[search.victim, number] = torch.tensor(picked, device=device)
        evaluations[search.victim] = search.evaluations
    return found, evaluations


def _shares(gram: Floats, cross: Floats) -> Floats:
    """Shares x >= 0 that minimise x^T gram x - 2 x^T cross."""
    mean = float(gram.diagonal().mean()) or 1.0
    lower = np.linalg.cholesky(gram + JITTER * mean * np.eye(len(gram)))
    solved: Floats = nnls(lower.T, solve_triangular(lower, cross, lower=True))[0]
    return solved


def exchanged(gram: Floats, cross: Floats, members: list[int]) -> list[int]:
    """Members of a pool, exchanged one at a time while their mean comes nearer to the target.

    gram (K, K), cross (K,): inner products of the pool's vectors, and with the target. The best
    exchange of all is made each time; at the end none brings the mean nearer.
    """
    size, chosen = len(members), list(members)

    def cost(some: list[int]) -> float:
        mean = gram[np.ix_(some, some)].sum() / size**2
        return float(mean - 2 * cross[some].sum() / size)

    now = cost(chosen)
    while True:
        best, kept = now, chosen
        for place in range(size):
            others = chosen[:place] + chosen[place + 1 :]
            with_others = gram[:, others].sum(axis=1)
            change = (gram.diagonal() + 2 * with_others) / size**2 - 2 * cross / size
            change[others] = np.inf
            new = [*others, int(change.argmin())]
            if (reached := cost(new)) < best:
                best, kept = reached, new
        # Below rounding an exchange of equals could go on for ever.
        if now - best <= 1e-12 * abs(now):
            return chosen
        now, chosen = best, kept
