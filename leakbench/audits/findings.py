"""What an audit found: plain numbers and sentences, kept as JSON; pictures stay beside it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from leakbench.errors import LeakbenchError
from leakbench.privacy.events import Relation
from leakbench.spec import Observer

Verdict = Literal[
    "holds", "not contradicted", "contradicted by measurement", "contradicted by a proof"
]
"""Of a claim. "holds": a proof says so. "not contradicted": nothing was proved either way."""

SCHEMA = 1
"""Of the JSON."""

Images = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What is said of a mechanism, and is to be judged; what is not said is None.

    Attributes:
        epsilon: the promise, at `delta`. observer, relation: to whom, about which neighbours.
        delta: in (0, 1).
        steps: releases that epsilon is about; None: the whole training.
        sensitivity: how far one example (or client) moves the release, L2.
        noise_std: of the Gaussian noise on the release, in the same units.
        clip: L2 bound of what is clipped.

    Raises:
        LeakbenchError: nothing is claimed, epsilon without delta, or a number outside its range.
    """

    epsilon: float | None = None
    delta: float | None = None
    sensitivity: float | None = None
    noise_std: float | None = None
    clip: float | None = None
    observer: Observer = "model"
    relation: Relation = "add_remove"
    steps: int | None = None

    def __post_init__(self) -> None:
        if self.epsilon is None and self.sensitivity is None and self.noise_std is None:
            raise LeakbenchError(
                "claim: nothing is claimed; give epsilon and delta, or sensitivity and noise_std"
            )
        if self.epsilon is not None and self.delta is None:
            raise LeakbenchError("claim: epsilon means nothing without delta; give both")
        for name in ("epsilon", "sensitivity", "noise_std", "clip"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, int | float):
                kind = type(value).__name__
                raise LeakbenchError(f"claim: {name} is {kind}; allowed: a number")
            if value is not None and not 0 <= value < math.inf:
                raise LeakbenchError(f"claim: {name} must be at least 0 and finite, got {value}")
        if self.delta is not None and not 0 < self.delta < 1:
            raise LeakbenchError(f"claim: delta must be above 0 and below 1, got {self.delta}")
        if self.steps is not None and (self.steps < 1 or self.steps % 1):
            raise LeakbenchError(f"claim: steps must be a whole number >= 1, got {self.steps}")
        for name, allowed in (("observer", get_args(Observer)), ("relation", get_args(Relation))):
            if getattr(self, name) not in allowed:
                names = ", ".join(allowed)
                raise LeakbenchError(f"claim: {name} must be one of {names}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimFinding:
    """A claim, the verdict on it, and the arithmetic that leads there, a line each.

    statement: the claim in words. trials: of the measurement that contradicts it, else None.
    """

    claim: Claim
    statement: str
    verdict: Verdict
    arithmetic: tuple[str, ...] = ()
    trials: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """`count` of `trials`, with a 95 % interval [low, high] of the rate."""

    count: int
    trials: int
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures:
    """A few victims and what the attacker made of them: (k, *input shape) each, in [0, 1]."""

    originals: Images
    reconstructions: Images


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelFinding:
    """What one attacker got from one release.

    Attributes:
        attack: its name. knowledge: "naive" or "adaptive" (knows the defense).
        checkpoint: "first" (untrained, or as it was handed over) or "last" (trained).
        exact: recovered, a quarter of the best guess's error and an MSE below .01.
        identified: the victim is the nearest of N candidates to what was reconstructed.
        matched: his gradient is the nearest of theirs, replayed through the defense.
        seconds: that it took for all victims.
        pictures: outside the JSON.
    """

    attack: str
    knowledge: str
    checkpoint: Literal["first", "last"]
    exact: Rate | None
    identified: Rate | None
    matched: Rate | None = None
    seconds: float = 0.0
    note: str = ""
    pictures: Pictures | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredFinding:
    """Lower bound that a canary showed (`audits.blackbox` and `audits.canary`).

    Attributes:
        mu, epsilon: lower bounds, right with chance `confidence`; epsilon at the report's delta.
        trials: with the canary, and as many without.
        canary: the one that showed most, in words.
        claimed_mu: what the mechanism's configuration says of one release; None: nothing.
        verdict: "above": the bound exceeds what is said, so mechanism or configuration is wrong.
    """

    mu: float
    epsilon: float
    trials: int
    confidence: float
    canary: str
    claimed_mu: float | None
    verdict: Literal["within", "above", "no promise"]
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserverFinding:
    """What one observer of the training is promised, can at best do, and was seen to do.

    Attributes:
        observer: as `spec.Observer`. who: in plain words. threat: letter of Carletti et al., or "".
        level: whose presence is hidden: "instance", "client", or "none", for which see `reason`.
        looks: releases about the same victim; None: the whole training.
        epsilon_add_remove, epsilon_replace_one: at `delta`, in [0, inf]; None where not promised.
        mu: of one look, noise apart; None without a promise.
        ceiling: largest chance of any attack to name the victim among `candidates`; 1 without a
            promise.
        one_look_ceiling: the same for a single look, the ceiling of `panel`'s rates.
        measured: of one look. panel: attacks on one look. verdict: one sentence.
    """

    observer: Observer
    who: str
    threat: str = ""
    level: Literal["instance", "client", "none"]
    reason: str = ""
    looks: int | None
    epsilon_add_remove: float | None
    epsilon_replace_one: float | None
    delta: float
    mu: float | None
    candidates: int
    ceiling: float
    one_look_ceiling: float
    measured: MeasuredFinding | None = None
    panel: tuple[PanelFinding, ...] = ()
    verdict: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A change that meets the target, and what it costs.

    Attributes:
        change: what is turned. now, needed: its value; `needed` None where no value is enough.
        sentence: to be read as it is. epsilon, ceiling: after the change, for the final model.
        accuracy_now, accuracy_needed: measured, in [0, 1]; None where nothing was trained.
    """

    change: Literal["noise_multiplier", "batch_size", "steps"]
    now: float
    needed: float | None
    sentence: str
    epsilon: float | None = None
    ceiling: float | None = None
    accuracy_now: float | None = None
    accuracy_needed: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """All that an audit found.

    Attributes:
        question: that was asked. setting: of the training, in a sentence.
        config: the DP configuration, by its fields; {} for a black box without one.
        target: what `advice` is to meet, by name: "epsilon", "identified", "candidates".
        not_tried: sentences. warnings: sentences, of the configuration and of the measurement.
        versions: of leakbench, torch, python. seconds: that the audit took.
    """

    question: str
    setting: str
    config: Mapping[str, Any]
    observers: tuple[ObserverFinding, ...]
    claims: tuple[ClaimFinding, ...] = ()
    advice: tuple[Advice, ...] = ()
    target: Mapping[str, float] = field(default_factory=dict)
    not_tried: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def contradicted(self) -> bool:
        """Whether a claim, or what the configuration says, is wrong."""
        above = any(
            found.measured and found.measured.verdict == "above" for found in self.observers
        )
        return above or any(one.verdict.startswith("contradicted") for one in self.claims)

    def to_json(self) -> str:
        """Strict JSON; infinities are the string "inf". Pictures are left out."""
        return json.dumps({"schema": SCHEMA} | _plain(self), indent=1, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> AuditReport:
        """The report that `to_json` wrote, without its pictures.

        Raises:
            LeakbenchError: it is no such text, or of another schema.
        """
        try:
            found = json.loads(text)
        except (ValueError, TypeError, RecursionError) as error:
            raise LeakbenchError(f"audit report: no JSON ({error})") from None
        if not isinstance(found, dict) or found.pop("schema", None) != SCHEMA:
            raise LeakbenchError(f"audit report: no report of schema {SCHEMA}")
        try:
            return _report(found)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise LeakbenchError(f"audit report: a field is missing or unknown ({error})") from None

    def save(self, path: str | Path) -> Path:
        """Write it as a page (.html), as Markdown (.md) or as JSON (.json).

        Raises:
            LeakbenchError: another suffix, or it cannot be written.
        """
        from leakbench.audits import page  # which reads findings

        path = Path(path)
        forms = {".html": page.page, ".md": page.markdown, ".json": AuditReport.to_json}
        if path.suffix not in forms:
            raise LeakbenchError(f"{path}: unknown suffix; allowed: {', '.join(forms)}")
        content = forms[path.suffix](self)
        try:
            path.write_text(content, encoding="utf-8")
        except OSError as error:
            raise LeakbenchError(f"{path}: cannot write: {error.strerror}") from None
        except ValueError as error:  # a NUL in the path
            raise LeakbenchError(f"{str(path)!r}: cannot write: {error}") from None
        return path


def without_pictures(report: AuditReport) -> AuditReport:
    """The report as its JSON holds it."""
    observers = tuple(
        replace(one, panel=tuple(replace(attack, pictures=None) for attack in one.panel))
        for one in report.observers
    )
    return replace(report, observers=observers)


# ---------------------------------------------------------------------------- JSON


def _plain(value: Any) -> Any:
    """For JSON: tables of fields, lists, and "inf" for what it has no number for."""
    if is_dataclass(value) and not isinstance(value, type):
        named = {one.name: getattr(value, one.name) for one in fields(value)}
        return {k: _plain(v) for k, v in named.items() if not isinstance(v, Pictures)}
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _number(value: Any) -> Any:
    return float(value) if value in ("inf", "-inf", "nan") else value


def _read(kind: Any, table: Mapping[str, Any], **inner: Any) -> Any:
    """A dataclass from its table; `inner` are the fields made already."""
    numbers = {k: _number(v) if isinstance(v, str) else v for k, v in table.items()}
    named = {k: tuple(v) if isinstance(v, list) else v for k, v in numbers.items()}
    return kind(**{k: v for k, v in named.items() if k != "pictures"} | inner)


def _optional(kind: Any, table: Mapping[str, Any] | None) -> Any:
    return None if table is None else _read(kind, table)


def _report(table: dict[str, Any]) -> AuditReport:
    observers = tuple(_observer(one) for one in table["observers"])
    claims = tuple(
        _read(ClaimFinding, one, claim=_read(Claim, one["claim"])) for one in table["claims"]
    )
    advice = tuple(_read(Advice, one) for one in table["advice"])
    found: AuditReport = _read(
        AuditReport, table, observers=observers, claims=claims, advice=advice
    )
    return found


def _observer(table: Mapping[str, Any]) -> ObserverFinding:
    attacked = {k: tuple(map(_attacked, v)) for k, v in table.items() if isinstance(v, list)}
    found: ObserverFinding = _read(
        ObserverFinding, table, measured=_optional(MeasuredFinding, table["measured"]), **attacked
    )
    return found


def _attacked(table: Mapping[str, Any]) -> PanelFinding:
    rates = {name: _optional(Rate, table[name]) for name in ("exact", "identified", "matched")}
    found: PanelFinding = _read(PanelFinding, table, **rates)
    return found
