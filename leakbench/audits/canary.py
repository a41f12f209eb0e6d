"""Audit of a defense: what an attacker demonstrably learns, against what the defense promises.

The real path runs thousands of times with a canary and as often without, and a likelihood-ratio
test tells one from the other by the gradient at a tap (Nasr et al. 2023, arXiv 2302.07956). Its
error rates are bounded from above (Clopper and Pearson 1934), and so bound mu from below: no test
of a mu-GDP mechanism does better. A bound above the promise shows that mechanism or accounting is
wrong; one below it proves nothing.

No network is needed: the path is given a linear model whose gradients are any that one wants, the
same at all weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from leakbench.audits.two_samples import (
    Floats,
    Trials,
    epsilon_of_errors,
    lower_bound,
    mu_of_errors,
)
from leakbench.contracts import (
    Context,
    Defense,
    Gradients,
    Guarantee,
    LeakPoint,
    Observer,
    Setting,
    State,
    Weights,
)
from leakbench.errors import LeakbenchError, require_at_least, unknown_name
from leakbench.losses import Loss
from leakbench.privacy.events import check_delta
from leakbench.privacy.gdp import epsilon_of_mu
from leakbench.streams import NoiseStreams
from leakbench.training import Batch, run_round

AuditVerdict = Literal["within", "above", "no promise"]

POINTS: dict[Observer, LeakPoint] = {
    "type2": LeakPoint(),
    "type2_batch": LeakPoint(view="batch"),
    "type1": LeakPoint(type=1),
    "type0": LeakPoint(type=0),
    "type0_raw": LeakPoint(type=0, view="raw"),
    "server": LeakPoint(type=0, view="raw"),
}
"""Observer -> the tap that shows all they see of one round."""

_CHOOSING = 0.1
"""Share of the trials that noise and thresholds are chosen by. At mu = 0.5 a tenth costs little of
the bound; with a half, one audit in seven is more than 20 % below the truth."""
_LEAST_VARIANCE = 1e-12
"""Of a tensor's noise, in squared sizes of the canary there: a tensor without noise decides."""
_VALUES = 2**22
"""Gradient values computed at a time: 16 MB of float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What an audit found, and what was promised.

    defense: its name. guarantee: the promise to `observer`.
    trials: with the canary, and as many without. confidence: of each lower bound by itself.
    mu: lower bound, >= 0. No test without errors shows more than the number of trials allows, 6.7
        for 10,000: infinite ones end there.
    mu_estimate: distance of the two kinds of trials in standard deviations, the smaller of theirs;
        for Gaussian noise an estimate of the true mu of this canary, a few per cent off.
    delta: what every epsilon here is at.
    epsilon: lower bound if the mechanism is Gaussian, as a finite promise says; that of `mu`.
    epsilon_direct: lower bound whatever the mechanism is, from the error rates alone.
    """

    defense: str
    observer: Observer
    guarantee: Guarantee
    trials: int
    confidence: float
    mu: float
    mu_estimate: float
    delta: float
    epsilon: float
    epsilon_direct: float

    @property
    def claimed_mu(self) -> float | None:
        """mu of the promise; None without one."""
        return self.guarantee.mu

    @property
    def proved_epsilon(self) -> float | None:
        """Epsilon of the promise, exact for one look at it; None without one."""
        return None if self.claimed_mu is None else epsilon_of_mu(self.claimed_mu, self.delta)

    @property
    def verdict(self) -> AuditVerdict:
        """Whether the lower bound on mu is above the promise."""
        if self.claimed_mu is None:
            return "no promise"
        return "above" if self.mu > self.claimed_mu else "within"


def audit(
    defense: Defense,
    canary: Gradients,
    *,
    observer: Observer = "type2",
    setting: Setting | None = None,
    delta: float = 1e-5,
    trials: int = 10_000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Audit:
    """Audit one look at a defense, in round `setting.round`.

    With: the canary is the first example's gradient; behind a client-level promise, that of all B.
    Without: zero in its place, or the canary turned round where the promise is about replacing one.
    All other gradients are zero. No training comes before: the state is that of `init` and
    `on_round`, where the canary / B is the gradient of a public example. With learning rate 1 an
    update is the sum of the L steps' gradients with its sign changed.

    The L local steps go through the client's n examples in turn, `Setting.examples`, the canary
    first: no order has it in more steps. Under Poisson sampling, and where n is not known, it is in
    every one. Where the sizes of batches are drawn, to be absent is to leave them one smaller;
    where they are fixed, the place stays, with a zero gradient.

    Args:
        canary: No leading axes; see `canary_at`. Norms at the clipping bound or above it are the
            worst case that a promise is about; smaller ones leave part of it unused.
        observer: One of `POINTS`.
        setting: As for `Defense.guarantee`; None: one example. A type-2 tap reads the local step
            `Setting.iteration`.
        trials: With the canary, and as many without; at least 100. A tenth of them chooses.
        confidence: In (0, 1): the chance that a lower bound holds is at least this.
        seed: Of the noise; every trial has its own.

    Raises:
        LeakbenchError: An argument is outside its range, the defense cannot run (its own error),
            or what it shows is not finite.
    """
    setting = Setting(batch_size=1) if setting is None else setting
    if observer not in POINTS:
        raise unknown_name("observer", observer, POINTS, "audit")
    if setting.iteration >= setting.local_steps:
        text = f"must be below local_steps {setting.local_steps}, got {setting.iteration}"
        raise LeakbenchError(f"audit: iteration {text}")
    if setting.examples is not None and setting.examples < setting.batch_size:
        text = f"batch_size {setting.batch_size}, got {setting.examples}"
        raise LeakbenchError(f"audit: examples must be at least {text}")
    require_at_least("audit", 100, trials=trials)
    if not 0 < confidence < 1:
        raise LeakbenchError(f"audit: confidence must be in (0, 1), got {confidence}")
    check_delta(delta)
    weights = {name: torch.zeros_like(value) for name, value in canary.tensors.items()}
    guarantee = defense.guarantee(observer, weights, setting)
    present, absent = _neighbours(canary, guarantee, setting)
    tap = _Tap(defense, canary, observer, setting, NoiseStreams(seed, ("audit",)))
    shown, hidden = (tap.replayed(examples) for examples in (present, absent))
    direction = {k: (v - hidden.tensors[k])[0].double() for k, v in shown.tensors.items()}
    inside = tap.measured(present, direction, trials)
    outside = tap.measured(absent, direction, trials, first=trials)
    if not (np.isfinite(inside).all() and np.isfinite(outside).all()):
        text = f"{defense.name} shows {observer} a gradient that is not finite"
        raise LeakbenchError(f"audit: {text}")
    some = round(_CHOOSING * trials)
    weighting = _weighting(inside[:some], outside[:some])
    inside, outside = inside @ weighting, outside @ weighting
    choosing = Trials(inside[:some], outside[:some])
    testing = Trials(inside[some:], outside[some:])
    error = 1 - confidence
    mu = lower_bound(mu_of_errors, choosing, testing, error)
    direct = lower_bound(partial(epsilon_of_errors, delta=delta), choosing, testing, error)
    return Audit(
        defense=defense.name,
        observer=observer,
        guarantee=guarantee,
        trials=trials,
        confidence=confidence,
        mu=mu,
        mu_estimate=testing.distance(),
        delta=delta,
        epsilon=epsilon_of_mu(mu, delta),
        epsilon_direct=direct,
    )


def check(result: Audit) -> None:
    """Refuse a defense whose promise is broken.

    Raises:
        LeakbenchError: The lower bound on mu is above the promise.
    """
    if result.verdict == "above":
        raise LeakbenchError(
            f"{result.defense}: mu at {result.observer} is at least {result.mu:.4g} "
            f"({result.confidence:.0%} confidence), its guarantee allows {result.claimed_mu:.4g}; "
            "the mechanism or its accounting is wrong"
        )


def bracket(result: Audit) -> tuple[float, float, float]:
    """Epsilons audited <= true <= proved: lower bound, estimate, promise (inf without one).

    The estimate is that of Gaussian noise, moved between the other two unless they contradict each
    other. Without a promise nothing says that noise is Gaussian: the lower bound is the direct one.
    """
    proved = math.inf if result.proved_epsilon is None else result.proved_epsilon
    lower = result.epsilon_direct if result.proved_epsilon is None else result.epsilon
    estimate = epsilon_of_mu(result.mu_estimate, result.delta)
    if lower <= proved:
        estimate = min(max(estimate, lower), proved)
    return lower, estimate, proved


def canary_at(norm: float, weights: Weights, direction: Weights | None = None) -> Gradients:
    """A gradient with every tensor at L2 norm `norm`, shaped like `weights`.

    direction: Tensors to be scaled to it, for instance a real example's gradient; None: only the
    first coordinate of each tensor is not zero (Dirac).

    Raises:
        LeakbenchError: norm is not positive and finite, or a direction is zero or not finite.
    """
    if not 0 < norm < math.inf:
        raise LeakbenchError(f"canary: norm must be positive and finite, got {norm}")
    tensors = {}
    for name, value in weights.items():
        if direction is None:
            scaled = torch.zeros_like(value).flatten()
            scaled[0] = norm
        else:
            size = float(torch.linalg.vector_norm(direction[name].double()))
            if not 0 < size < math.inf:
                text = f"must have a norm above 0 and finite, got {size}"
                raise LeakbenchError(f"canary: the direction of '{name}' {text}")
            scaled = direction[name] * (norm / size)
        tensors[name] = scaled.reshape(value.shape).to(value.dtype)
    return Gradients(tensors)


# ---------------------------------------------------------------------------- the path


@dataclass(frozen=True, slots=True)
class _Probe:
    """Two classes with logits (<w, x>, 0) as at w = 0: the gradient of class 0 is -x / 2, exactly,
    whatever the local steps before have made of w."""

    shapes: Mapping[str, torch.Size]
    loss: ClassVar[Loss] = "cross_entropy"
    mixes_examples: ClassVar[bool] = False

    @property
    def head(self) -> str:
        return next(iter(self.shapes))

    def init(self, generator: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
        return {name: torch.zeros(shape, dtype=dtype) for name, shape in self.shapes.items()}

    def logits(self, weights: Weights, inputs: Tensor) -> Tensor:
        """(b, d) -> (b, 2); an input is as long as all weights together."""
        first = inputs @ torch.cat([value.flatten() for value in weights.values()])
        first = first - first.detach()
        return torch.stack([first, torch.zeros_like(first)], dim=-1)


@dataclass(frozen=True, slots=True)
class _Tap:
    """The training path of many clients at once, one a trial, read at the observer's tap."""

    defense: Defense
    canary: Gradients
    observer: Observer
    setting: Setting
    noise: NoiseStreams

    def replayed(self, steps: Sequence[_Step]) -> Gradients:
        """Without noise, axes ("client",): one."""
        return self._run(steps, self._context())

    def measured(
        self,
        steps: Sequence[_Step],
        direction: Mapping[str, Tensor],
        trials: int,
        first: int = 0,
    ) -> Floats:
        """(trials, tensors that the canary moves): how much of the canary's own move they show.

        Trials are numbered from `first`; each is a client of its own, and has his noise.
        """
        moved = {k: v / v.square().sum() for k, v in direction.items() if bool(v.any())}
        if not moved:
            return np.zeros((trials, 1))
        at_once = max(1, _VALUES // steps[0].gradients.numel())
        parts = []
        for start in range(first, first + trials, at_once):
            clients = tuple(range(start, min(start + at_once, first + trials)))
            shown = self._run(steps, self._context(clients, self.noise))
            rows = [
                shown.tensors[k].double().reshape(len(clients), -1) @ v.flatten()
                for k, v in moved.items()
            ]
            parts.append(torch.stack(rows, dim=1).numpy())
        return np.concatenate(parts)

    def _context(
        self, clients: tuple[int, ...] = (0,), noise: NoiseStreams | None = None
    ) -> Context:
        size = self.setting.batch_size
        return Context(
            round=self.setting.round,
            total=self.setting.rounds,
            batch_size=size,
            clients=clients,
            noise=noise,
            learning_rate=1.0,
            public=lambda *_: [
                Gradients(
                    {k: v[None, None] / size for k, v in self.canary.tensors.items()},
                    ("client", "example"),
                )
            ],
        )

    def _run(self, steps: Sequence[_Step], context: Context) -> Gradients:
        """One round, the same examples for every client."""
        probe = _Probe({name: value.shape for name, value in self.canary.tensors.items()})
        weights = probe.init(torch.Generator(), steps[0].gradients.dtype)
        state: State = self.defense.on_round(weights, self.defense.init(weights), context)
        point = replace(POINTS[self.observer], iteration=self.setting.iteration)
        with torch.no_grad():
            tapped = run_round(
                probe, weights, [step.batch(len(context.clients)) for step in steps],
                self.defense, state, context,
                learning_rate=1.0, point=point, stop_at_tap=True, by_examples=True,
            ).tapped  # fmt: skip
        assert tapped is not None
        if "example" not in tapped.axes:
            return tapped
        return Gradients({k: v[:, 0] for k, v in tapped.tensors.items()}, ("client",))


@dataclass(frozen=True, slots=True)
class _Step:
    """gradients (B, d) of a local step, mask (B,) of those there; None where B is fixed."""

    gradients: Tensor
    mask: Tensor | None = None

    def batch(self, clients: int) -> Batch:
        """The examples that have them, the same for every client."""
        size = len(self.gradients)
        return Batch(
            inputs=(-2 * self.gradients).expand(clients, *self.gradients.shape),
            labels=torch.zeros(clients, size, dtype=torch.long),
            mask=None if self.mask is None else self.mask.expand(clients, size),
            expected=None if self.mask is None else size,
        )


def _neighbours(
    canary: Gradients, guarantee: Guarantee, setting: Setting
) -> tuple[list[_Step], list[_Step]]:
    """The local steps of a client who has the canary, and of his neighbour."""
    size, whole = setting.batch_size, canary.flatten()
    drawn = setting.sampling == "poisson" and setting.all_clients == 1
    held = setting.examples
    if held is None or drawn:  # in every step
        held = size
    replaced, client = guarantee.relation == "replace_one", guarantee.level == "client"
    present, absent = [], []
    for step in range(setting.local_steps):
        places = torch.arange(step * size, (step + 1) * size) % held
        his = torch.full((size,), True) if client else places == 0
        gradients = torch.where(his[:, None], whole, 0.0)
        present.append(_Step(gradients, torch.full((size,), True) if drawn else None))
        other = -gradients if replaced else torch.zeros_like(gradients)
        absent.append(_Step(other, (his.logical_not() | replaced) if drawn else None))
    return present, absent


# ---------------------------------------------------------------------------- the test


def _weighting(inside: Floats, outside: Floats) -> Floats:
    """(tensors,) weights of the log-likelihood ratio, adding to 1, from (trials, tensors).

    All tensors are moved by 1, so each counts by the inverse of its noise. The noise is measured
    and not believed: a tensor whose noise was forgotten then decides alone.
    """
    variance = (inside.var(axis=0, ddof=1) + outside.var(axis=0, ddof=1)) / 2
    precision = 1 / np.maximum(variance, _LEAST_VARIANCE)
    weighting: Floats = precision / precision.sum()
    return weighting
