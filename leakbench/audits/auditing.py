"""The audit of one training: what it gives away, to whom, and whether a claim about it holds.

    import leakbench as lb

    config = lb.DPConfig.from_opacus(engine, optimizer, loader, epochs=3)
    report = lb.audit(model, loader, config, claim=lb.Claim(epsilon=8, delta=1e-5))
    report.save("audit.html")

Nothing is written before `save`, and model, optimiser and torch's random numbers stay as they are.
"""

from __future__ import annotations

import dataclasses
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from leakbench.audits import attacked, observing
from leakbench.audits.advice import Target, advise, changed
from leakbench.audits.attacked import Attacks
from leakbench.audits.blackbox import Mechanism, audit_mechanism
from leakbench.audits.claims import judge
from leakbench.audits.findings import (
    Advice,
    AuditReport,
    Claim,
    ClaimFinding,
    MeasuredFinding,
    ObserverFinding,
    PanelFinding,
)
from leakbench.audits.opacus_boxes import OptimizerBox, is_optimizer
from leakbench.audits.trying import Tried, train_briefly
from leakbench.audits.wording import in_short
from leakbench.contracts import Model, Weights
from leakbench.dp_config import DPConfig
from leakbench.errors import LeakbenchError, require_at_least
from leakbench.givens import require_classes
from leakbench.parameters import require_in
from leakbench.spec import Observer
from leakbench.user_models import UserModel, read_module

_BY_GUESSING = 10.0  # times what guessing names: 1 of 100 among 1,000

Data = tuple[Tensor, Tensor] | Iterable[Any] | Dataset[Any]
"""(inputs, labels); or a loader, or a data set of torch, that gives them."""


def audit(
    model: nn.Module | Model,
    data: Data,
    config: DPConfig | Mechanism | object,
    *,
    claim: Claim | None = None,
    mechanism: Mechanism | object | None = None,
    loss: str | nn.Module = "cross_entropy",
    weights: Weights | None = None,
    trained: Weights | None = None,
    target: Target | None = None,
    candidates: int = 1000,
    victims: int = 8,
    attacks: Attacks = "by size",
    attack_seconds: float = 30.0,
    trials: int = 10_000,
    train_seconds: float = 0.0,
    input_range: tuple[float, float] | None = None,
    progress: Callable[[str], None] = lambda _: None,
    seed: int = 0,
) -> AuditReport:
    """What a training gives away, to whom, whether a claim about it holds, and what to change.

    Args:
        model: the network at the start of training, or wherever it is: the first checkpoint.
        data: what it is trained on, or examples of the kind: the first `candidates` are the list
            among which victims are to be named, and the first `victims` of them are attacked.
        config: what the mechanism is. Or a black box alone: a callable (see `audits.blackbox`), of
            which `claim` must say clip, sensitivity and noise_std; or an optimiser of Opacus.
        claim: to be judged.
        mechanism: the code that runs, beside its configuration, as a black box: a callable or an
            optimiser of Opacus. Without one leakbench's own code of the configuration is measured.
        loss: as for `api.leak`. weights: of a `Model`.
        trained: weights at the end of training: the last checkpoint. None: those of `train_seconds`
            of training with the mechanism, if that is above 0; else there is no last checkpoint.
        target: of the advice; None: epsilon <= 8, and 1 of 100 named, from the final model (of
            fewer than 1,000 candidates: 10 times what guessing names).
        attacks: by name, with parameters or without; "by size" of the network: second-order and
            line-search attackers up to 200,000 parameters, above it candidates, analytic and
            GradInv. () for none.
        attack_seconds: for each attack, observer and checkpoint, four times that to compare the
            list, and as much for a black box; longer ones are cut, and say so.
        trials: of each canary, at most.
        train_seconds: what a training may take, with the noise that is and with the noise that is
            advised; 0: none is trained.
        progress: is told what is done next.

    Raises:
        LeakbenchError: data, model or mechanism that cannot be audited, in one sentence.
    """
    begun = time.perf_counter()
    require_at_least("audit", 1, victims=victims)
    require_at_least("audit", 2, candidates=candidates)
    require_in("audit", "(0, inf)", attack_seconds=attack_seconds)
    require_in("audit", "[0, inf)", train_seconds=train_seconds)
    if claim is not None and not isinstance(claim, Claim):
        raise LeakbenchError(f"audit: claim is {type(claim).__name__}; allowed: a Claim")
    if target is not None and not isinstance(target, Target):
        raise LeakbenchError(f"audit: target is {type(target).__name__}; allowed: a Target")
    settings, code = _mechanism(config, mechanism)
    trained_on = 0 if settings is None or not train_seconds else settings.examples
    inputs, labels = _examples(data, max(candidates, victims, trained_on))
    user = _user(model, loss, weights, inputs)
    if trained is not None:
        _require_alike("trained", trained, user.weights)
    _require_labels(labels, user.outputs)
    named = attacked.chosen(attacks, user.weights)
    box = _box(code, user.weights)
    count = min(candidates, len(inputs))
    if target is None:
        target = Target(identified=min(1.0, max(0.01, _BY_GUESSING / count)))
    target.require_above_guessing(count)
    not_tried = list(_limits(settings, count, candidates))
    warnings = list(user.notes)
    if settings is None:
        assert box is not None
        progress("black box")
        measured = _black_box(box, user.weights, claim, None, trials, attack_seconds, seed)
        claims = () if claim is None else judge(claim, None, measured, foreign=True)
        unknown = (_unknown_observer(measured, claim, count),)
        return _report(claim, None, unknown, claims, (), target, count, not_tried, warnings, begun)

    warnings += settings.warnings
    promised = observing.promises(settings, user.weights)
    measured_at = _measurements(
        settings, box, promised, user.weights, trials, attack_seconds, seed, progress
    )
    claims = ()
    if claim is not None:
        claims = judge(claim, settings, _decisive(measured_at), foreign=box is not None)
    progress("advice")
    advice = advise(settings, target, count) if count > 1 else ()
    first: Tried | None = None
    if train_seconds > 0:
        advice, first, notes = _costs(
            settings, advice, user, inputs, labels, train_seconds, seed, progress
        )
        not_tried += notes
    ended = trained if trained is not None else None if first is None else first.weights
    panels, missing = _panels(
        model, user, settings, promised, ended, (inputs, labels), count, victims, named,
        loss=loss, seconds=attack_seconds, input_range=input_range, seed=seed, progress=progress,
    )  # fmt: skip
    not_tried += missing
    if ended is None:
        not_tried.append(
            "The last checkpoint: the network was attacked as it was handed over only."
        )
    observers = tuple(
        _observer(promise, settings, count, measured_at, panels) for promise in promised
    )
    return _report(
        claim, settings, observers, claims, advice, target, count, not_tried, warnings, begun
    )


def audit_claim(claim: Claim, config: DPConfig | None = None) -> AuditReport:
    """Whether a claim holds, by arithmetic alone: no network, nothing measured, nobody attacks.

    Args:
        config: what the mechanism is; None: what the claim says of it.

    Raises:
        LeakbenchError: a claim of which nothing can be checked.
    """
    begun = time.perf_counter()
    claims = judge(claim, config)
    not_tried = ("Measurements and attacks: no network was given.",)
    warnings = () if config is None else config.warnings
    return _report(claim, config, (), claims, (), None, 0, not_tried, warnings, begun)


# ---------------------------------------------------------------------------- what is given


def _mechanism(config: object, mechanism: object | None) -> tuple[DPConfig | None, object | None]:
    """The configuration, and the code that runs, one of them at least."""
    settings = config if isinstance(config, DPConfig) else None
    code = mechanism if settings is not None else config
    if settings is None and mechanism is not None:
        raise LeakbenchError("audit: beside a mechanism, config must be a DPConfig")
    if code is not None and not is_optimizer(code) and not callable(code):
        raise LeakbenchError(
            f"audit: {type(code).__name__} is no mechanism; allowed: a DPConfig, a callable from "
            "gradients to a release, or an optimiser of Opacus"
        )
    if settings is None and code is None:
        raise LeakbenchError("audit: config is None; allowed: a DPConfig, or a mechanism")
    return settings, code


def _box(code: object | None, weights: Weights) -> Mechanism | None:
    if code is None:
        return None
    return OptimizerBox(code, weights) if is_optimizer(code) else cast(Mechanism, code)


def _examples(data: Data, most: int) -> tuple[Tensor, Tensor]:
    """The first `most` inputs, and labels (n,) as whole numbers."""
    if isinstance(data, tuple | list) and len(data) == 2 and hasattr(data[0], "dtype"):
        xs, ys = [_tensor(data[0], "inputs")], [_tensor(data[1], "labels")]
    else:
        indexed = hasattr(data, "__getitem__")
        if isinstance(data, str | Mapping) or not (indexed or isinstance(data, Iterable)):
            raise LeakbenchError(
                f"audit: data are {type(data).__name__}; allowed: (inputs, labels), a loader, or a "
                "data set"
            )
        xs, ys = [], []
        for x, y in _batches(data):
            xs.append(x)
            ys.append(y)
            if sum(map(len, ys)) >= most:
                break
    if not sum(map(len, xs)):
        raise LeakbenchError("audit: the data are empty")
    if len(kinds := {tuple(x.shape[1:]) for x in xs}) > 1:
        shapes = " and ".join(map(str, sorted(kinds)))
        raise LeakbenchError(f"audit: inputs of one shape are needed, got {shapes}")
    inputs, labels = torch.cat(xs)[:most].detach(), torch.cat(ys)[:most].detach()
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.shape != (len(inputs),):
        raise LeakbenchError(
            f"audit: labels must have shape ({len(inputs)},), one for each input, got "
            f"{tuple(labels.shape)}"
        )
    if not inputs.is_floating_point():
        raise LeakbenchError(
            f"audit: inputs are {inputs.dtype}; allowed: floating point, scaled as the model sees "
            "them"
        )
    if not bool(inputs.isfinite().all()):
        raise LeakbenchError("audit: inputs hold nan or infinity")
    if labels.is_floating_point() and not bool((labels == labels.round()).all()):
        raise LeakbenchError("audit: labels hold fractions; allowed: numbers of classes, from 0 on")
    return inputs, labels.to(torch.int64)


def _batches(data: Iterable[Any] | Dataset[Any]) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of a loader; examples of a data set, one by one."""
    loaded = hasattr(data, "batch_size") or hasattr(data, "batch_sampler")
    with torch.random.fork_rng(devices=[]):  # a loader shuffles by torch's own generator
        by_place = hasattr(data, "__getitem__") and hasattr(data, "__len__") and not loaded
        items = _rows(data) if by_place else cast(Iterable[Any], data)
        for item in items:
            if not isinstance(item, tuple | list) or len(item) != 2:
                raise LeakbenchError("audit: the data must give pairs (inputs, labels)")
            x, y = _tensor(item[0], "inputs"), _tensor(item[1], "labels")
            yield (x, y) if loaded or y.ndim else (x[None], y[None])


def _tensor(part: object, what: str) -> Tensor:
    try:
        return torch.as_tensor(part)
    except (TypeError, ValueError, RuntimeError):
        raise LeakbenchError(
            f"audit: {what} are {type(part).__name__}; allowed: tensors, or arrays of numbers"
        ) from None


def _rows(data: Any) -> Iterator[Any]:
    return (data[place] for place in range(len(data)))


def _user(
    model: nn.Module | Model, loss: str | nn.Module, weights: Weights | None, inputs: Tensor
) -> UserModel:
    if isinstance(model, nn.Module):
        found = read_module(model, loss=loss, inputs=inputs)
        if weights is None:
            return found
        _require_alike("weights", weights, found.weights)
        return dataclasses.replace(found, weights=dict(weights))
    if weights is None:
        raise LeakbenchError("audit: a Model holds no weights; give `weights`, or an nn.Module")
    return UserModel(model=model, weights=dict(weights))


def _require_labels(labels: Tensor, outputs: int | None) -> None:
    classes = int(labels.max()) + 1 if outputs is None else max(outputs, 2)
    require_classes("audit: labels", labels, classes)


def _require_alike(what: str, given: Weights, own: Weights) -> None:
    table: object = given
    if not isinstance(table, Mapping):
        kind = type(table).__name__
        raise LeakbenchError(f"audit: {what} are {kind}; allowed: tensors by name")
    for name in dict.fromkeys((*own, *given)):
        values = [held.get(name) for held in (own, given)]
        shapes = [tuple(value.shape) if isinstance(value, Tensor) else None for value in values]
        if shapes[0] != shapes[1]:
            raise LeakbenchError(
                f"audit: {what}['{name}'] must have shape {shapes[0]}, got {shapes[1]}"
            )


# ---------------------------------------------------------------------------- measured


def _black_box(
    box: Mechanism, weights: Weights, claim: Claim | None, config: DPConfig | None, trials: int,
    seconds: float, seed: int,
) -> MeasuredFinding:  # fmt: skip
    """Of the code that runs, against its configuration, else against what is claimed."""
    shapes = {name: tuple(value.shape) for name, value in weights.items()}
    if isinstance(box, OptimizerBox):
        shapes = box.shapes
    if config is not None:
        if not config.bound < float("inf"):
            raise LeakbenchError("audit: a mechanism that does not clip cannot be measured")
        std = config.noise_std
        mu = config.sensitivity / std if std > 0 else float("inf")
        whole = config.unit == "client" or config.noise_on == "example"
        fixed = whole or config.sampling != "poisson"
        return audit_mechanism(
            box, shapes, clip=config.bound, claimed_mu=mu, delta=config.delta,
            batch_size=1 if config.unit == "client" else config.batch_size,
            removes=not fixed, trials=trials, seconds=seconds, seed=seed,
        )  # fmt: skip
    own = box.claim() if isinstance(box, OptimizerBox) else claim
    if own is None or own.clip is None or own.noise_std is None:
        raise LeakbenchError(
            "audit: of a black box alone the claim must say clip and noise_std (and sensitivity), "
            "or give its DPConfig"
        )
    moved = own.clip if own.sensitivity is None else own.sensitivity
    mu = moved / own.noise_std if own.noise_std > 0 else float("inf")
    replaces = own.relation == "replace_one"
    return audit_mechanism(
        box, shapes, clip=own.clip, claimed_mu=mu, delta=own.delta or 1e-5,
        replace_mu=mu if replaces else None, trials=trials, seconds=seconds, seed=seed,
    )  # fmt: skip


def _measurements(
    config: DPConfig, box: Mechanism | None, promised: Sequence[observing.Promise],
    weights: Weights, trials: int, seconds: float, seed: int, progress: Callable[[str], None],
) -> dict[Observer, MeasuredFinding]:  # fmt: skip
    """One look of each observer who is promised something; of a black box, the one it shows."""
    found: dict[Observer, MeasuredFinding] = {}
    if box is not None:
        progress("black box")
        where: Observer = "type2" if config.noise_on == "example" else "server"
        if config.noise_on == "update" and config.noise_at == "client":
            where = "type1"
        return {where: _black_box(box, weights, None, config, trials, seconds, seed)}
    for promise in promised:
        if promise.observer == "model":  # a training a trial would take too long
            continue
        progress(f"canary at {promise.observer}")
        measured = observing.measured_by_canary(config, promise, weights, trials=trials, seed=seed)
        if measured is not None:
            found[promise.observer] = measured
    return found


def _decisive(found: Mapping[Observer, MeasuredFinding]) -> MeasuredFinding | None:
    """The measurement that contradicts what is configured, if one does; else any."""
    ordered = sorted(found.values(), key=lambda one: one.verdict != "above")
    return ordered[0] if ordered else None


# ---------------------------------------------------------------------------- attacked, trained


def _panels(
    model: nn.Module | Model, user: UserModel, config: DPConfig,
    promised: Sequence[observing.Promise], ended: Weights | None, data: tuple[Tensor, Tensor],
    count: int, victims: int, named: Mapping[str, Mapping[str, Any]], *,
    loss: str | nn.Module, seconds: float,
    input_range: tuple[float, float] | None, seed: int, progress: Callable[[str], None],
) -> tuple[dict[str, tuple[PanelFinding, ...]], list[str]]:  # fmt: skip
    """Observer -> what attackers got, and what did not run."""
    if not named:
        return {}, ["Attacks: none was asked for."]
    inputs, labels = data
    some = (inputs[: min(victims, count)], labels[: min(victims, count)])
    found: dict[str, tuple[PanelFinding, ...]] = {}
    missing: list[str] = []
    for observer, (tap, alone) in attacked.views(config, promised).items():
        for checkpoint, used in (("first", user.weights), ("last", ended)):
            if used is None:
                continue
            got, reasons = attacked.attack_view(
                model, tap, alone, some, (inputs[:count], labels[:count]), named,
                checkpoint=checkpoint, loss=loss, weights=used,  # type: ignore[arg-type]
                input_range=input_range, seconds=seconds, seed=seed, progress=progress,
            )  # fmt: skip
            found[observer] = (*found.get(observer, ()), *got)
            missing += reasons
    return found, list(dict.fromkeys(missing))


def _costs(
    config: DPConfig, advice: Sequence[Advice], user: UserModel, inputs: Tensor, labels: Tensor,
    seconds: float, seed: int, progress: Callable[[str], None],
) -> tuple[tuple[Advice, ...], Tried | None, list[str]]:  # fmt: skip
    """Accuracy with the noise that is, and with each advice that has a value."""
    progress("training as it is")
    try:
        now = train_briefly(user, inputs, labels, config, seconds=seconds, seed=seed)
    except LeakbenchError as error:
        return tuple(advice), None, [f"What it costs in accuracy: {error}."]
    found = []
    for one in advice:
        if one.needed is None or one.change != "noise_multiplier":
            found.append(one)
            continue
        progress(f"training with {one.change} {one.needed:g}")
        other = train_briefly(
            user, inputs, labels, changed(config, one), seconds=seconds, seed=seed,
            rounds=now.rounds,
        )  # fmt: skip
        text = (
            f"{one.sentence} After {now.rounds:,} steps on {now.examples:,} examples its accuracy "
            f"on {now.tested:,} others is {other.accuracy:.1%}, against {now.accuracy:.1%} as it "
            "is."
        )
        found.append(
            dataclasses.replace(
                one, sentence=text, accuracy_now=now.accuracy, accuracy_needed=other.accuracy
            )
        )
    note = f"Accuracy after the whole training: {now.rounds:,} of {config.steps:,} steps were run."
    return tuple(found), now, [note] if now.rounds < config.steps else []


# ---------------------------------------------------------------------------- the report


def _observer(
    promise: observing.Promise, config: DPConfig, count: int,
    measured: Mapping[Observer, MeasuredFinding], panels: Mapping[str, tuple[PanelFinding, ...]],
) -> ObserverFinding:  # fmt: skip
    found = observing.finding(promise, delta=config.delta, candidates=count)
    found = dataclasses.replace(
        found,
        measured=measured.get(promise.observer),
        panel=panels.get(promise.observer, ()),
    )
    return dataclasses.replace(found, verdict=in_short(found))


def _unknown_observer(
    measured: MeasuredFinding, claim: Claim | None, count: int
) -> ObserverFinding:
    """Who sees a release of code of which nothing else is known."""
    above = measured.verdict == "above"
    text = f"One release shows mu of at least {measured.mu:.3g}"
    text += ", more than is claimed." if above else ", which does not contradict the claim."
    return ObserverFinding(
        observer="server", who="whoever sees one release", level="none",
        reason="the mechanism is a black box: only a lower bound can be measured", looks=1,
        epsilon_add_remove=None, epsilon_replace_one=None, delta=(claim and claim.delta) or 1e-5,
        mu=None, candidates=count, ceiling=1.0, one_look_ceiling=1.0, measured=measured,
        verdict=text,
    )  # fmt: skip


def _limits(config: DPConfig | None, count: int, asked: int) -> Iterator[str]:
    yield "Attackers who change what they send (a malicious server), and side channels."
    if config is not None and config.unit == "example" and config.batch_size > 1:
        yield (
            f"Attacks on whole batches of {config.batch_size:,}: the attacker was given everybody "
            "else in the batch, which is the worst case and needs less computing."
        )
    if config is not None and config.unit == "client":
        yield "Attacks on clients with many examples: each had one, which is the worst case."
    if count < asked:
        yield f"A list of {asked:,} candidates: the data hold {count:,}."


def _report(
    claim: Claim | None, config: DPConfig | None, observers: tuple[ObserverFinding, ...],
    claims: tuple[ClaimFinding, ...], advice: tuple[Advice, ...], target: Target | None, count: int,
    not_tried: Sequence[str], warnings: Sequence[str], begun: float,
) -> AuditReport:  # fmt: skip
    whose = "client" if config is not None and config.unit == "client" else "example"
    question = f"What does this training give away of one {whose}, to whom"
    question += "?" if claim is None else ", and does the claim hold?"
    if not observers:
        question = "Does the claim hold?"
    setting = "A black box: code of which nothing is known."
    if config is not None:
        setting = config.describe()
    elif not observers:
        setting = "A mechanism as the claim describes it."
    wanted: dict[str, float] = {} if target is None else {"candidates": float(count)}
    for name in ("epsilon", "identified"):
        if (value := getattr(target, name, None)) is not None:
            wanted[name] = value
    return AuditReport(
        question=question,
        setting=setting,
        config={} if config is None else _fields(config),
        observers=observers,
        claims=claims,
        advice=advice,
        target=wanted,
        not_tried=tuple(dict.fromkeys(not_tried)),
        warnings=tuple(dict.fromkeys(warnings)),
        versions={
            "leakbench": version("leakbench"), "torch": torch.__version__,
            "python": platform.python_version(),
        },
        seconds=round(time.perf_counter() - begun, 1),
    )  # fmt: skip


def _fields(config: DPConfig) -> dict[str, Any]:
    """Its fields as JSON has them: a report that is read again is the one that was written."""

    def plain(value: Any) -> Any:
        return [plain(one) for one in value] if isinstance(value, tuple) else value

    return {
        one.name: plain(getattr(config, one.name))
        for one in dataclasses.fields(config)
        if one.name != "warnings"
    }
