"""Audit of a mechanism that is somebody else's code: gradients in, release out, nothing known.

Canaries are sent through it with and without (`audits.canary` does so for defenses of leakbench,
whose hooks are known), and what comes out is held against what its configuration says. Each canary
looks for other faults: one part forgotten, parts clipped apart, examples that are clipped together,
noise used twice. A right mechanism raises an alarm with a chance of `error` at most, over all
canaries, tests and stages together (a union bound).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leakbench.audits.findings import MeasuredFinding
from leakbench.audits.two_samples import (
    Floats,
    Trials,
    gaussian_mu,
    light_tails,
    lower_bound,
    mu_of_errors,
)
from leakbench.errors import LeakbenchError, require_at_least
from leakbench.privacy.gdp import epsilon_of_mu

Tensors = Mapping[str, Tensor]
Mechanism = Callable[[dict[str, Tensor]], Tensors]
"""Gradients of a batch, each (B, *shape), or of B clients' updates -> the release, each (*shape);
(B, *shape) where noise is on single examples. Called once a round, and it keeps its state between.
One with a method `start` is started anew before every trial, as for another training."""

STAGES = (100, 1_000, 10_000)
"""Trials of each canary, with and without; a gross fault shows after the first."""

_HUGE = 1000.0  # norm of a canary / C: whatever forgets to clip it shows
_OPPOSED = 10.0  # norm of the other examples / C
_BELOW = 0.5
_ROWS, _ROWS_LARGE = 4, 2  # of a call
_CHOOSING = 0.3  # share of the trials that weights and thresholds are chosen by
_APART = 6  # tensors that have a canary of their own
_LARGE = 200_000  # parameters, from which on only some canaries are sent
_MOST = 5 * 10**9  # gradient values that are sent
_LEAST = 30  # trials, where that is few
_WORTH = 2  # times the trials of the stage before, or another stage shows little more
_KEPT = 2000  # coordinates of a release, at which its noise is looked at
_VALUES = 2**22  # of releases that are kept at a time
_DISTINCT = 16  # values, from which on releases of rounded Gaussian noise do not come twice


@dataclass(frozen=True, slots=True)
class _Probe:
    """Rounds with the canary and without; `share`: how many times the claimed mu that may show.

    direction: what the release is projected on, tensor by tensor. two: whether a second release,
    without the canary, is subtracted.
    """

    name: str
    inside: dict[str, Tensor]
    outside: dict[str, Tensor]
    direction: dict[str, Tensor]
    share: float = 1.0
    two: bool = False

    @property
    def values(self) -> int:
        """Of the tensors that the canary moves."""
        return sum(value.numel() for value in self.direction.values() if bool(value.any()))


def audit_mechanism(
    mechanism: Mechanism,
    shapes: Mapping[str, Sequence[int]],
    *,
    clip: float,
    claimed_mu: float,
    delta: float = 1e-5,
    replace_mu: float | None = None,
    batch_size: int = _ROWS,
    removes: bool = True,
    trials: int = STAGES[-1],
    seconds: float = math.inf,
    error: float = 1e-4,
    seed: int = 0,
) -> MeasuredFinding:
    """Lower bound on mu of one release of a black box, and whether it exceeds what is claimed.

    The mechanism is held to be Gaussian, as its configuration says: a bound follows from means and
    variances, another one from error rates, whatever the noise is, and the tails of the noise are
    looked at. The torch generator it draws from is as before afterwards.

    Args:
        shapes: parameter name -> shape.
        clip: C, the L2 bound of a whole gradient.
        claimed_mu: sensitivity / noise std of one release, for adding or removing one.
        replace_mu: the same for replacing one; None: twice `claimed_mu`.
        batch_size: examples (or clients) of a call; at most four are used, or two of large ones.
        removes: whether a batch without the canary is one smaller; else a zero gradient is there.
        trials: at most, of each canary, with and as many without; at least 100. Large gradients
            are sent more rarely, 30 times at least, which the finding's note says.
        seconds: a stage for which there is no time left is shortened, or left out.
        error: chance that a right mechanism is called wrong, in (0, .5).

    Returns:
        The canary that exceeds the claim most, after the first stage where one does; else the one
        with the largest bound, after the last.

    Raises:
        LeakbenchError: an argument is outside its range, or what is released is not finite or has
            other names or shapes. Errors of the mechanism come through.
    """
    require_at_least("audit", STAGES[0], trials=trials)
    require_at_least("audit", 1, batch_size=batch_size)
    if not 0 < clip < math.inf:
        raise LeakbenchError(f"audit: clip must be positive and finite, got {clip}")
    if not claimed_mu >= 0:
        raise LeakbenchError(f"audit: claimed_mu must be at least 0, got {claimed_mu}")
    if not 0 < error < 0.5:
        raise LeakbenchError(f"audit: error must be in (0, .5), got {error}")
    rows = min(batch_size, _ROWS_LARGE if _is_large(shapes) else _ROWS)
    replaced = 2 * claimed_mu if replace_mu is None else replace_mu
    ratio = replaced / claimed_mu if claimed_mu > 0 else 2.0
    probes = list(_probes(shapes, clip, rows, removes and rows > 1, ratio, seed))
    size = sum(math.prod(shape) for shape in shapes.values()) * rows * 2
    stages = [stage for stage in STAGES if stage < trials] + [trials]
    note = ""
    if (affordable := max(_LEAST, _MOST // (size * len(probes)))) < trials:
        stages = [stage for stage in stages if stage < affordable] + [affordable]
        note = f"{affordable} trials of each canary, as many as a gradient of this size allows"
    share = error / (len(stages) * (2 * len(probes) + 1))
    found: MeasuredFinding | None = None
    each = 0.0  # seconds of one trial of all canaries
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for stage in stages:
            count = stage if found is None else int(min(stage, seconds / each))
            if found is not None and count < _WORTH * found.trials:
                break
            begun = time.perf_counter()
            found = _stage(mechanism, probes, count, share, claimed_mu, delta, 1 - error, note)
            if found.verdict == "above":
                break
            seconds -= (spent := time.perf_counter() - begun)
            each = spent / count
    assert found is not None
    return found


def _stage(
    mechanism: Mechanism, probes: Sequence[_Probe], trials: int, error: float,
    claimed_mu: float, delta: float, confidence: float, note: str,
) -> MeasuredFinding:  # fmt: skip
    """All canaries, so many trials each."""
    bounds, thin = [], False
    for number, probe in enumerate(probes):
        inside, _ = _projections(mechanism, probe, trials, probe.inside)
        outside, noise = _projections(mechanism, probe, trials, probe.outside, keep=number == 0)
        repeated = probe.values >= _DISTINCT and _repeats(inside, outside)
        bounds.append(math.inf if repeated else _bound(inside, outside, error))
        if number == 0:
            thin = light_tails(noise, error)
    excess = [bound / probe.share for bound, probe in zip(bounds, probes, strict=True)]
    worst = int(np.argmax(excess))
    above = excess[worst] > claimed_mu
    name, remark = probes[worst].name, note
    if thin and not above and claimed_mu < math.inf:
        name = "noise without a canary"
        remark = (
            "the noise has thinner tails than a Gaussian of its std; beyond the largest values no "
            "epsilon holds"
        )
        above = True
    return MeasuredFinding(
        mu=excess[worst],
        epsilon=epsilon_of_mu(excess[worst], delta),
        trials=trials,
        confidence=confidence,
        canary=name,
        claimed_mu=claimed_mu,
        verdict="above" if above else "within",
        note=remark,
    )


def _repeats(inside: Floats, outside: Floats) -> bool:
    """Whether the canary moves what is released, and one release came twice.

    Gaussian noise never does so: a share of the releases has none, or old one.
    """
    apart = inside.mean(axis=0) - outside.mean(axis=0)
    twice = any(len(np.unique(kind, axis=0)) < len(kind) for kind in (inside, outside))
    return twice and bool(apart.any())


def _bound(inside: Floats, outside: Floats, error: float) -> float:
    """The larger of two lower bounds on mu, each right but for `error`; from (trials, tensors)."""
    some = math.ceil(_CHOOSING * len(inside))
    weights = _discriminant(inside[:some], outside[:some])
    inside, outside = inside @ weights, outside @ weights
    choosing = Trials(inside[:some], outside[:some])
    testing = Trials(inside[some:], outside[some:])
    by_rates = lower_bound(mu_of_errors, choosing, testing, error)
    return max(by_rates, gaussian_mu(testing, error))


def _discriminant(inside: Floats, outside: Floats) -> Floats:
    """(tensors,) Fisher's linear discriminant; by variances alone where trials are few.

    Covariances are measured and not believed: parts without noise, or with the same, decide.
    """
    apart = inside.mean(axis=0) - outside.mean(axis=0)
    count = len(apart)
    together = np.concatenate([inside - inside.mean(axis=0), outside - outside.mean(axis=0)])
    covariance = together.T @ together / (len(together) - 2)
    if count > len(together) // 8:
        covariance = np.diag(np.diag(covariance))
    least = 1e-12 * max(float(np.square(apart).sum()), float(np.trace(covariance)), 1e-300)
    weights: Floats = np.linalg.solve(covariance + least * np.eye(count), apart)
    largest = np.abs(weights).max()
    return weights / largest if largest > 0 else weights


# ---------------------------------------------------------------------------- canaries


def _probes(
    shapes: Mapping[str, Sequence[int]], clip: float, rows: int, removes: bool, ratio: float,
    seed: int,
) -> Iterator[_Probe]:  # fmt: skip
    """What is sent; the first one is sent alone, and its noise is looked at."""
    generator = torch.Generator().manual_seed(seed)
    spread = _balanced(shapes, generator)
    large = _is_large(shapes)

    def probe(
        name: str, own: float, direction: dict[str, Tensor], others: Sequence[float] = (),
        absent: float | None = None, **kind: Any,
    ) -> _Probe:  # fmt: skip
        """The canary of norm `own` C, other examples along it of norms `others` C."""
        norms = [*others, *[0.0] * (rows - 1 - len(others))]
        gone = norms if removes and absent is None else [absent or 0.0, *norms]
        return _Probe(
            name, _batch([own, *norms], direction, clip), _batch(gone, direction, clip),
            direction, **kind,
        )  # fmt: skip

    yield probe("spread over all tensors", _HUGE, spread)
    yield probe("against all other examples", _HUGE, spread, [-_OPPOSED] * (rows - 1))
    yield probe("in one of two rounds", _HUGE, spread, two=True)
    if not large:
        yield probe("below the bound", _BELOW, spread)
        yield probe("in place of its opposite", _HUGE, spread, absent=-_HUGE, share=ratio)
        yield probe("the first value of each tensor", _HUGE, _first(shapes))
        if rows > 1:
            yield probe("beside its copy", _HUGE, spread, [_HUGE])
    for name in _apart(shapes, 2 if large else _APART) if len(shapes) > 1 else ():
        alone = {k: v if k == name else torch.zeros_like(v) for k, v in spread.items()}
        size = float(torch.linalg.vector_norm(alone[name]))
        yield probe(f"in '{name}' alone", _HUGE, {k: v / size for k, v in alone.items()})


def _is_large(shapes: Mapping[str, Sequence[int]]) -> bool:
    return sum(map(math.prod, shapes.values())) > _LARGE


def _balanced(shapes: Mapping[str, Sequence[int]], generator: torch.Generator) -> dict[str, Tensor]:
    """A direction of norm 1, as much in each tensor, whose values add up to 0 along each axis:
    noise that is the same in a whole tensor, or along an axis of it, cancels in it."""
    found = {}
    for name, shape in shapes.items():
        drawn = torch.randn(tuple(shape), generator=generator)
        for axis, size in enumerate(drawn.shape):
            if size > 1:
                drawn = drawn - drawn.mean(dim=axis, keepdim=True)
        found[name] = drawn / torch.linalg.vector_norm(drawn) / math.sqrt(len(shapes))
    return found


def _first(shapes: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    found = {}
    for number, (name, shape) in enumerate(shapes.items()):
        flat = torch.zeros(math.prod(shape))
        flat[0] = (-1) ** number / math.sqrt(len(shapes))
        found[name] = flat.reshape(tuple(shape))
    return found


def _apart(shapes: Mapping[str, Sequence[int]], most: int) -> list[str]:
    """Tensors from the smallest, where biases are, to the largest."""
    names = sorted(shapes, key=lambda name: math.prod(shapes[name]))
    if len(names) <= most:
        return names
    places = np.linspace(0, len(names) - 1, most).round().astype(int)
    return [names[place] for place in places]


def _batch(norms: Sequence[float], direction: Tensors, clip: float) -> dict[str, Tensor]:
    sizes = torch.tensor(norms) * clip
    return {name: sizes.reshape(-1, *[1] * value.ndim) * value for name, value in direction.items()}


# ---------------------------------------------------------------------------- the mechanism


def _projections(
    mechanism: Mechanism, probe: _Probe, trials: int, first: dict[str, Tensor], keep: bool = False
) -> tuple[Floats, Floats]:
    """(trials, tensors that the canary moves); with `keep`, coordinates of the releases too."""
    names = [name for name, value in probe.direction.items() if bool(value.any())]
    shapes = {name: value.shape for name, value in probe.direction.items()}
    ways = {name: probe.direction[name].double().flatten() for name in names}
    count = sum(map(torch.Size.numel, shapes.values()))
    start = getattr(mechanism, "start", None)
    rows, noise, at_once = [], [], max(1, _VALUES // count)
    for begin in range(0, trials, at_once):
        releases = []
        for _ in range(min(at_once, trials - begin)):
            if start is not None:
                start()
            release = _released(mechanism, first, shapes)
            if probe.two:
                release = release - _released(mechanism, probe.outside, shapes)
            releases.append(release)
        together = torch.stack(releases)
        parts = together.split([shape.numel() for shape in shapes.values()], dim=1)
        rows.append(
            torch.stack(
                [part @ ways[name] for name, part in zip(shapes, parts, strict=True)
                 if name in ways],
                dim=1,
            )
        )  # fmt: skip
        if keep:
            noise.append(together[:, :: max(1, count // _KEPT)].clone())
    found = torch.cat(rows).numpy()
    if not np.isfinite(found).all():
        text = f"a release that is not finite, for the canary '{probe.name}'"
        raise LeakbenchError(f"audit: the mechanism gives {text}")
    return found, torch.cat(noise).numpy() if keep else np.zeros((0, 0))


def _released(
    mechanism: Mechanism, gradients: dict[str, Tensor], shapes: Mapping[str, torch.Size]
) -> Tensor:
    """(values,) of the release in float64; of noise on single examples, the first one's.

    The mechanism may change what it is given: it has a copy.
    """
    found: object = mechanism({name: value.clone() for name, value in gradients.items()})
    if not isinstance(found, Mapping) or set(found) != set(shapes):
        names = ", ".join(shapes)
        raise LeakbenchError(f"audit: the mechanism must release a tensor for each of {names}")
    flat = []
    for name, shape in shapes.items():
        release = found[name]
        if not isinstance(release, Tensor) or release.is_complex():
            kind = "complex" if isinstance(release, Tensor) else type(release).__name__
            raise LeakbenchError(
                f"audit: the release of '{name}' is {kind}; allowed: a tensor of real numbers"
            )
        if release.ndim == len(shape) + 1 and len(release) == len(gradients[name]):
            release = release[0]
        if release.shape != shape:
            raise LeakbenchError(
                f"audit: the release of '{name}' is {tuple(release.shape)}, its parameter "
                f"{tuple(shape)}"
            )
        flat.append(release.detach().flatten())
    return torch.cat(flat).cpu().double()
