"""The pairs that L-BFGS remembers of n problems, and the directions that follow from them.

Two programs, one recursion: Nocedal and Wright, algorithm 7.4. `Pairs` is torch's, for every device
and type; `CompiledPairs` is that of `leakbench.native`, one problem after another, which reads the
memory of each once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from leakbench import native

ALIGNED = 16
"""Numbers that fill a cache line, in single precision."""

LEAST = 1e-10
"""A pair is taken when y.s is above it."""


@dataclass(slots=True, eq=False)
class Rows:
    """What the engine has of each active problem: gradients g, those before them, steps t and
    directions d, (n, d) and t (n,)."""

    g: Tensor
    previous: Tensor
    t: Tensor
    d: Tensor


class History(Protocol):
    """Pairs s = t d, y = g - previous of n problems, the last `size` of each."""

    def directions(self, rows: Rows, index: Tensor, begun: Tensor) -> Tensor:
        """Take the newest pairs of problems `index` (k,), those that have `begun` (k,), set their
        d to -H g and their `previous` to g -> (k, 2): g . d, and the largest size in d.

        A pair is taken when y.s > 1e-10.
        """
        ...

    def keep(self, index: Tensor) -> None:
        """Forget the problems that are not in `index`."""
        ...


def history(like: Tensor, size: int) -> History:
    """An empty one for the problems (n, d) of `like`."""
    if like.is_cpu and like.dtype == torch.float32 and native.lanes():
        return CompiledPairs(like, size)
    return Pairs(like, size)


class Pairs:
    """A ring of `size` pairs (s, y), layout (n, size, d), and what is small in the order of age,
    oldest first: rho_i = 1 / (s_i . y_i) and the products s_i . y_j of pairs i <= j."""

    def __init__(self, like: Tensor, size: int) -> None:
        n, d = like.shape
        self.size = size
        self.s = like.new_zeros(n, size, d)
        self.y = like.new_zeros(n, size, d)
        self.products = like.new_zeros(n, size, size)
        self.rho = like.new_zeros(n, size)
        self.scale = like.new_ones(n)  # H0 = scale * identity
        self.pairs = torch.zeros(n, dtype=torch.int64, device=like.device)  # taken so far

    def directions(self, rows: Rows, index: Tensor, begun: Tensor) -> Tensor:
        g = rows.g[index]
        y = g - rows.previous[index]
        s = rows.d[index] * rows.t[index][:, None]
        ys = (y * s).sum(dim=1)
        accepted = begun & (ys > LEAST)
        at, size = index[accepted], self.size
        slot = self.pairs[at] % size
        self.s[at, slot], self.y[at, slot] = s[accepted], y[accepted]
        full = at[self.pairs[at] >= size]  # the oldest pair goes
        self.rho[full, :-1] = self.rho[full, 1:]
        self.products[full, :-1, :-1] = self.products[full, 1:, 1:]
        self.rho[at, self.pairs[at].clamp(max=size - 1)] = 1.0 / ys[accepted]
        self.scale[at] = ys[accepted] / y[accepted].square().sum(dim=1)
        self.pairs[at] += 1
        rows.previous[index] = g
        kept = self.pairs[index].clamp(max=size)
        for length in kept.unique().tolist():  # a longer neighbour would change bits
            own = index[kept == length]
            rows.d[own] = self._two_loops(rows.g, own, length)
        d = rows.d[index]
        return torch.stack([(g * d).sum(dim=1), d.abs().amax(dim=1)], dim=1)

    def keep(self, index: Tensor) -> None:
        for name in ("s", "y", "products", "rho", "scale", "pairs"):
            setattr(self, name, getattr(self, name)[index])

    def _two_loops(self, g: Tensor, own: Tensor, kept: int) -> Tensor:
        """-H g for problems with `kept` pairs.

        Its loops solve triangular systems: with P_ij = s_i . y_j, oldest pair first,
        alpha_i = rho_i (s_i . q - sum over j > i of P_ij alpha_j), and then for w = alpha - beta
        w_i = alpha_i - rho_i (y_i . r + sum over j < i of P_ji w_j).
        """
        # Views of all rows, with unused results, cost less than copies of half of them.
        everybody = 2 * len(own) > len(self.pairs)
        rows, mine = (slice(None), own) if everybody else (own, slice(None))
        q, scale = -g[rows][:, None], self.scale[rows][:, None, None]
        if not kept:
            return (q * scale)[mine, 0]
        s, y = self.s[rows][:, :kept], self.y[rows][:, :kept]
        rho = self.rho[rows][:, :kept, None]
        if kept == 1:  # no product of matrices, whose bits here depend on how many rows there are
            alpha = rho * (s * q).sum(dim=2, keepdim=True)
            r = torch.addcmul(q, alpha, y, value=-1) * scale
            beta = rho * (y * r).sum(dim=2, keepdim=True)
            return torch.addcmul(r, alpha - beta, s)[mine, 0]
        pairs, slots = self.pairs[rows, None], torch.arange(kept, device=own.device)
        oldest = torch.where(pairs > self.size, pairs, 0)
        by_age, by_slot = ((slots + oldest) % kept)[..., None], ((slots - oldest) % kept)[:, None]
        newest = y.take_along_dim((pairs[..., None] - 1) % kept, dim=1)
        by_s = torch.cat([q, newest], dim=1) @ s.mT  # q and the newest y in one pass over s
        by_s = by_s.mT.take_along_dim(by_age, dim=1)
        self.products[own, :kept, kept - 1] = by_s[mine, :, 1]
        products = self.products[rows][:, :kept, :kept]
        alpha = _solved(rho * products, rho * by_s[..., :1], upper=True)
        r = (q - alpha.mT.take_along_dim(by_slot, dim=2) @ y) * scale
        by_y = (r @ y.mT).mT.take_along_dim(by_age, dim=1)
        w = _solved(rho * products.mT, alpha - rho * by_y, upper=False)
        direction: Tensor = r + w.mT.take_along_dim(by_slot, dim=2) @ s
        return direction[mine, 0]


def _solved(triangles: Tensor, values: Tensor, *, upper: bool) -> Tensor:
    """Solutions (n, k, 1) of unit triangular systems (n, k, k) with right sides (n, k, 1).

    Padded by zeros to a multiple of 16, so that every system of the stack is aligned alike: on some
    processors MKL's kernels round by the alignment of what they are given.
    """
    k = values.shape[1]
    extra = -k % ALIGNED
    found: Tensor = torch.linalg.solve_triangular(
        pad(triangles, (0, extra, 0, extra)), pad(values, (0, 0, 0, extra)),
        upper=upper, unitriangular=True,
    )  # fmt: skip
    return found[:, :k]


class CompiledPairs:
    """The same ring with everything by slot: products (n, size, size) hold s_i . y_j at [j, i]."""

    def __init__(self, like: Tensor, size: int) -> None:
        n, d = like.shape
        line = size + -size % ALIGNED
        self.sizes = (d, size)
        self.s = like.new_zeros(n, size, d)
        self.y = like.new_zeros(n, size, d)
        self.products = like.new_zeros(n, size, line)
        self.rho = like.new_zeros(n, size)
        self.scale = like.new_ones(n)
        self.pairs = torch.zeros(n, dtype=torch.int64)
        self.room = like.new_empty(2 * d + 3 * line)

    def directions(self, rows: Rows, index: Tensor, begun: Tensor) -> Tensor:
        columns = self.s.new_empty(len(index), 2)
        arrays = (self.s, self.y, self.products, self.rho, self.scale)
        native.directions(
            self.sizes,
            [array.data_ptr() for array in arrays],
            self.pairs.data_ptr(),
            len(index),
            index.contiguous().data_ptr(),
            begun.contiguous().data_ptr(),
            rows.g.contiguous().data_ptr(),
            rows.previous.data_ptr(),
            rows.t.data_ptr(),
            rows.d.data_ptr(),
            columns.data_ptr(),
            self.room.data_ptr(),
            native.lanes(),
        )
        return columns

    def keep(self, index: Tensor) -> None:
        for name in ("s", "y", "products", "rho", "scale", "pairs"):
            setattr(self, name, getattr(self, name)[index])
