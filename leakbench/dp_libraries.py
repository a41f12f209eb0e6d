"""What Opacus, Flower and NVFlare have been told, read off their objects as fields of `DPConfig`.

Objects are known by the names of their classes and by their attributes; no library is imported.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sized
from types import SimpleNamespace
from typing import Any

from leakbench.errors import LeakbenchError, require_at_least
from leakbench.plugin_files import one_line

Fields = dict[str, Any]

OPACUS = {
    "DPOptimizer": "flat",
    "DPOptimizerFastGradientClipping": "flat",
    "DistributedDPOptimizer": "flat",
    "DistributedDPOptimizerFastGradientClipping": "flat",
    "FSDPOptimizerFastGradientClipping": "flat",
    "AdaClipDPOptimizer": "flat",
    "DPPerLayerOptimizer": "tensor",
    "SimpleDistributedPerLayerOptimizer": "tensor",
    "DistributedPerLayerOptimizer": "tensor",
}
"""Optimisers of Opacus 1.6 -> what they clip together; its "layer" is a parameter tensor."""

IN_TURN = ("RandomSampler", "SequentialSampler", "DistributedSampler")
"""Samplers of torch that go through the data once an epoch."""


def _names(thing: object) -> list[str]:
    """Names of the classes it is an instance of, its own first."""
    return [kind.__name__ for kind in type(thing).__mro__]


def _shown(thing: object) -> str:
    return f"a {type(thing).__module__}.{type(thing).__qualname__}"


def _get(thing: object, name: str, where: str) -> Any:
    if not hasattr(thing, name):
        raise LeakbenchError(f"{where}: {_shown(thing)} has no '{name}', and is not understood")
    return getattr(thing, name)


def _number(value: Any, said: str) -> float:
    """A float of a number of any library; `said` begins the refusal of what is none."""
    try:
        if not isinstance(value, bool | str | bytes):
            return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        pass
    raise LeakbenchError(f"{said} is {value!r:.60}; allowed: a number")


def _whole(value: Any, said: str) -> int:
    found = _number(value, said)
    if not found.is_integer():
        raise LeakbenchError(f"{said} is {value!r:.60}; allowed: a whole number")
    return int(found)


def _of(thing: object, name: str, where: str) -> float:
    """A number that an object must have."""
    return _number(_get(thing, name, where), f"{where}: '{name}' of {_shown(thing)}")


# ------------------------------------------------------------------------------ Opacus


def opacus_settings(
    engine: object | None,
    optimizer: object,
    loader: object,
    *,
    epochs: int | None,
    steps: int | None,
    noise_scheduler: object | None,
    clip_scheduler: object | None,
) -> Fields:
    """See `DPConfig.from_opacus`."""
    where = "DPConfig.from_opacus"
    kind = next((name for name in _names(optimizer) if name in OPACUS), None)
    if kind is None:
        raise LeakbenchError(
            f"{where}: {_shown(optimizer)} is no optimiser of Opacus; allowed: what "
            "PrivacyEngine.make_private returns"
        )
    if epochs is not None and steps is not None:
        raise LeakbenchError(f"{where}: epochs and steps are both given; allowed: one of them")
    planned = {k: v for k, v in {"epochs": epochs, "steps": steps}.items() if v is not None}
    require_at_least(where, 0, **planned)
    warnings = _remarks(optimizer, kind)
    sigma = _of(optimizer, "noise_multiplier", where)
    world = _whole(getattr(optimizer, "world_size", 1), f"{where}: world_size of the optimiser")
    drawn = _drawn(loader, where)
    found: Fields = {
        "noise_multiplier": sigma,
        "examples": drawn.examples,
        "batch_size": _batch_size(optimizer, drawn, world, warnings),
        "sampling": drawn.sampling,
        "rate": drawn.rate,
        "source": f"Opacus {type(optimizer).__name__}",
    }
    if OPACUS[kind] == "tensor":
        found["clipping"] = "tensor"
        bounds = _get(optimizer, "max_grad_norms", where)
        if not isinstance(bounds, Iterable):
            raise LeakbenchError(f"{where}: max_grad_norms is {bounds!r:.60}; allowed: a list")
        found["clip"] = tuple(_number(each, f"{where}: one of max_grad_norms") for each in bounds)
    else:
        found["clip"] = _of(optimizer, "max_grad_norm", where)
    found["count_std"] = _count_std(engine, optimizer, kind, found["batch_size"], warnings)
    history = _history(engine, where)
    _check_rate(found, drawn, history, warnings)
    found |= _steps(drawn, history, epochs, steps, warnings)
    found |= _schedules(found, drawn.steps, optimizer, noise_scheduler, clip_scheduler)
    rates = _learning_rates(optimizer, where)
    if len(rates) == 1:
        found["learning_rate"] = rates.pop() or None
    found["warnings"] = tuple(warnings)
    return found


def _history(engine: object | None, where: str) -> list[tuple[float, float, int]]:
    """(sigma, rate, steps) of what an engine's accountant has been told."""
    said = f"{where}: the accountant's history"
    told = getattr(getattr(engine, "accountant", None), "history", None) or []
    try:
        rows = [tuple(row) for row in told]
        if any(len(row) != 3 for row in rows):
            raise ValueError
    except (TypeError, ValueError):
        raise LeakbenchError(
            f"{said} is {told!r:.60}; allowed: a list of (noise multiplier, rate, steps)"
        ) from None
    return [(_number(a, said), _number(b, said), _whole(c, said)) for a, b, c in rows]


def _learning_rates(optimizer: object, where: str) -> set[float]:
    """Those of all groups of parameters that say one."""
    groups = getattr(optimizer, "param_groups", ())
    if not isinstance(groups, list | tuple) or not all(isinstance(one, Mapping) for one in groups):
        raise LeakbenchError(
            f"{where}: param_groups of {_shown(optimizer)} is {groups!r:.60}; allowed: a list of "
            "mappings"
        )
    said = f"{where}: the learning rate of the optimiser"
    return {_number(group["lr"], said) for group in groups if "lr" in group}


class _Draws(SimpleNamespace):
    """How a loader draws: examples, steps an epoch, sampling, rate (None: batches of one size),
    batch_size (None under Poisson sampling)."""

    examples: int
    steps: int
    sampling: str
    rate: float | None
    batch_size: int | None


def _drawn(loader: object, where: str) -> _Draws:
    dataset = _get(loader, "dataset", where)
    if not isinstance(dataset, Sized):
        raise LeakbenchError(
            f"{where}: the data set of the loader ({_shown(dataset)}) has no length, so no chance "
            "of an example to be drawn; allowed: a map-style data set"
        )
    examples = len(dataset)
    if not examples:
        raise LeakbenchError(f"{where}: the data set of the loader is empty")
    # The loader's own, or what a BatchMemoryManager has wrapped.
    batches = getattr(loader, "batch_sampler", None)
    for drawer in (loader, batches, getattr(batches, "sampler", None)):
        if (told := getattr(drawer, "sample_rate", None)) is not None:
            rate = _number(told, f"{where}: sample_rate of the loader")
            if not 0 < rate <= 1:
                raise LeakbenchError(
                    f"{where}: sample_rate of the loader is {rate:g}; allowed: above 0, up to 1"
                )
            steps = len(drawer) if isinstance(drawer, Sized) else round(1 / rate)
            return _Draws(
                examples=examples, steps=steps, sampling="poisson", rate=rate,
                batch_size=None,
            )  # fmt: skip
    sampler = getattr(batches, "sampler", None) or getattr(loader, "sampler", None)
    in_turn = any(name in IN_TURN for name in _names(sampler))
    if not in_turn or getattr(sampler, "replacement", False):
        raise LeakbenchError(
            f"{where}: {_shown(sampler)} may draw an example several times into one batch, which "
            "no accountant bounds; allowed: Poisson sampling (DPDataLoader), or a loader that goes "
            "through the data in turn"
        )
    drawn = getattr(sampler, "num_samples", None)
    if drawn is not None and _whole(drawn, f"{where}: num_samples of the sampler") > examples:
        raise LeakbenchError(
            f"{where}: the sampler draws {drawn} of {examples} examples an epoch, some several "
            f"times; allowed: up to {examples}"
        )
    told = getattr(batches, "batch_size", 0) or getattr(loader, "batch_size", 0) or 1
    size = _whole(told, f"{where}: batch_size of the loader")
    if size < 1:
        raise LeakbenchError(f"{where}: batch_size of the loader is {size}; allowed: from 1 on")
    steps = len(loader) if isinstance(loader, Sized) else math.ceil(examples / size)
    full = size >= examples
    return _Draws(
        examples=examples, steps=steps, sampling="none" if full else "shuffle", rate=None,
        batch_size=size,
    )  # fmt: skip


def _batch_size(optimizer: object, drawn: _Draws, world: int, warnings: list[str]) -> int:
    expected = getattr(optimizer, "expected_batch_size", None)
    if expected is None:
        sizes = drawn.batch_size or round(drawn.examples * (drawn.rate or 0.0))
        return max(int(sizes), 1)
    try:
        accumulated = int(getattr(optimizer, "accumulated_iterations", 1))
    except (ValueError, IndexError):  # no gradients yet
        accumulated = 1
    told = _number(expected, "DPConfig.from_opacus: expected_batch_size of the optimiser")
    size = round(told * world * accumulated)
    if accumulated > 1:
        warnings.append(f"{accumulated} batches are accumulated into one step.")
    return max(size, 1)


def _remarks(optimizer: object, kind: str) -> list[str]:
    found = []
    own = type(optimizer).__name__
    if own != kind:
        found.append(
            f"{own} derives from {kind} and may do something else; audit it as a black box."
        )
    if getattr(optimizer, "loss_reduction", "mean") == "sum":
        found.append(
            "loss_reduction is 'sum': what is released is B times what is stated here for means, "
            "noise and all."
        )
    if getattr(optimizer, "generator", None) is not None and not getattr(
        optimizer, "secure_mode", False
    ):
        found.append(
            "The noise is drawn from a generator that was given: who knows its seed knows the "
            "noise."
        )
    return found


def _count_std(
    engine: object | None, optimizer: object, kind: str, batch_size: int, warnings: list[str]
) -> float:
    """Std of the noise on the count of unclipped gradients; 0 where the bound does not adapt."""
    moves = "The bound follows a noisy quantile of the norms: clip is the one of now."
    if kind == "AdaClipDPOptimizer":
        warnings.append(moves)
        return _of(optimizer, "unclipped_num_std", "DPConfig.from_opacus")
    ghost = any("AdaptiveClipping" in name for name in _names(engine))
    if ghost or hasattr(optimizer, "_adjusted_noise_multiplier"):
        warnings.append(
            f"{moves} Opacus scales the count's noise by the size of the batch drawn, which "
            "Poisson sampling keeps private: that part is not accounted."
        )
        return batch_size / 20
    return 0.0


def _check_rate(
    found: Fields, drawn: _Draws, history: list[Any], warnings: list[str]
) -> None:  # fmt: skip
    examples, size = drawn.examples, found["batch_size"]
    charged = sorted({float(rate) for _, rate, _ in history})
    if drawn.rate is None:
        said = f"; the accountant charges a rate of {charged[0]:.4g}" if charged else ""
        warnings.append(
            "The loader goes through the data in turn: sampling amplifies nothing, and an example "
            f"is in one step of every epoch{said}."
        )
        return
    # make_private rounds the expected size down.
    if abs(drawn.rate * examples - size) >= 1:
        warnings.append(
            f"The loader draws {drawn.rate * examples:.4g} of {examples} examples on average "
            f"(sample_rate {drawn.rate:.4g}), while the optimiser divides by a batch of {size}, "
            f"B / N = {size / examples:.4g}: accounted is what is drawn."
        )
    for rate in charged:
        if not math.isclose(rate, drawn.rate, rel_tol=1e-6):
            warnings.append(
                f"The accountant charges a rate of {rate:.4g}, and the loader draws with "
                f"{drawn.rate:.4g}: accounted is what is drawn."
            )


def _steps(
    drawn: _Draws,
    history: list[Any],
    epochs: int | None,
    steps: int | None,
    warnings: list[str],
) -> Fields:
    in_turn = drawn.sampling == "shuffle"
    if steps is not None:
        return {
            "steps": steps, "epochs": math.ceil(steps / drawn.steps) if in_turn else None
        }  # fmt: skip
    if epochs is not None:
        return {"steps": epochs * drawn.steps, "epochs": epochs if in_turn else None}
    done = sum(int(count) for _, _, count in history)
    if not done:
        warnings.append(
            "Neither epochs nor steps are given, and none was done yet: one epoch is counted."
        )
        return {"steps": drawn.steps, "epochs": 1 if in_turn else None}
    found: Fields = {"steps": done}
    if in_turn:
        found["epochs"] = math.ceil(done / drawn.steps)
    used = [float(sigma) for sigma, _, count in history for _ in range(int(count))]
    if len(set(used)) > 1:
        found["noise_schedule"] = tuple(used)
    return found


def _schedules(
    found: Fields,
    steps_an_epoch: int,
    optimizer: object,
    noise_scheduler: object | None,
    clip_scheduler: object | None,
) -> Fields:
    """Values of every step, of schedulers that move once an epoch."""
    epochs = max(math.ceil(found.get("steps", steps_an_epoch) / steps_an_epoch), 1)
    schedules: Fields = {}
    if noise_scheduler is not None:
        schedules["noise_schedule"] = _values(
            noise_scheduler, "noise_multiplier", optimizer, epochs, steps_an_epoch
        )
    if clip_scheduler is not None:
        if found.get("clipping") == "tensor":
            raise LeakbenchError(
                "DPConfig.from_opacus: a clip scheduler changes the noise of "
                f"{_shown(optimizer)} and not its bounds, so that the noise multiplier is no "
                "longer sigma; allowed: flat clipping"
            )
        schedules["clip_schedule"] = _values(
            clip_scheduler, "max_grad_norm", optimizer, epochs, steps_an_epoch
        )
    return schedules


def _values(
    scheduler: object, attribute: str, optimizer: object, epochs: int, steps_an_epoch: int
) -> tuple[float, ...]:
    if not callable(getattr(scheduler, f"get_{attribute}", None)):
        raise LeakbenchError(
            f"DPConfig.from_opacus: {_shown(scheduler)} is no scheduler of {attribute}; allowed: "
            "those of opacus.schedulers"
        )
    trial: Any = copy.copy(scheduler)  # steps a stand-in, and leaves the optimiser alone
    trial.optimizer = SimpleNamespace(**{attribute: float(getattr(optimizer, attribute))})
    values = []
    for epoch in range(epochs):
        said = f"DPConfig.from_opacus: {attribute} of {_shown(scheduler)} in epoch {epoch}"
        values += [_number(getattr(trial.optimizer, attribute), said)] * steps_an_epoch
        try:
            trial.step()
        except Exception as error:  # foreign code may fail in any way
            raise LeakbenchError(f"{said} fails: {one_line(error)}") from error
    return tuple(values)


# ------------------------------------------------------------------------------ Flower


def flower_settings(
    mechanism: object, *, clients: int | None, clients_a_round: int | None, weighted: bool
) -> Fields:
    """See `DPConfig.from_flower`."""
    where = "DPConfig.from_flower"
    names = _names(mechanism)
    if "LocalDpMod" in names:
        found = _local_dp(mechanism, where)
        together = clients_a_round or 1
    elif any(name.startswith("DifferentialPrivacy") for name in names):
        found = _strategy(mechanism, where, weighted)
        together = _whole(
            _get(mechanism, "num_sampled_clients", where),
            f"{where}: 'num_sampled_clients' of {_shown(mechanism)}",
        )
        if clients_a_round not in (None, together):
            raise LeakbenchError(
                f"{where}: the strategy samples {together} clients a round, got clients_a_round "
                f"{clients_a_round}"
            )
        if clients is None:
            accountant = getattr(getattr(mechanism, "accountant", None), "config", None)
            clients = getattr(accountant, "population_size", None)
    elif getattr(mechanism, "__name__", "") in ("fixedclipping_mod", "adaptiveclipping_mod"):
        raise LeakbenchError(
            f"{where}: {getattr(mechanism, '__name__', '')} only clips, to a norm that the server "
            "sends; give the strategy (DifferentialPrivacyClientSide...) instead"
        )
    else:
        raise LeakbenchError(
            f"{where}: {_shown(mechanism)} is not understood; allowed: LocalDpMod, and strategies "
            "DifferentialPrivacy{Client,Server}Side{Fixed,Adaptive}Clipping"
        )
    everyone = together if clients is None else clients
    return {
        "noise_on": "update", "unit": "client", "clients": everyone, "clients_a_round": together,
        "sampling": "none" if everyone == together else "fixed_size", "weighted": weighted,
        "source": f"Flower {type(mechanism).__name__}", **found,
    }  # fmt: skip


def _local_dp(mod: object, where: str) -> Fields:
    clip, sensitivity, epsilon, delta = (
        _of(mod, name, where) for name in ("clipping_norm", "sensitivity", "epsilon", "delta")
    )
    if not 0 < clip < math.inf or not 0 <= sensitivity < math.inf:
        raise LeakbenchError(
            f"{where}: LocalDpMod clips to {clip:g} for a sensitivity of {sensitivity:g}; allowed: "
            "a finite clipping_norm above 0, and a finite sensitivity from 0 on"
        )
    if not epsilon > 0 or not 0 < delta < 1:
        raise LeakbenchError(
            f"{where}: LocalDpMod computes its noise from epsilon {epsilon:g} and delta {delta:g}; "
            "allowed: epsilon above 0, delta above 0 and below 1"
        )
    std = sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon
    warnings = []
    if sensitivity < clip:
        warnings.append(
            f"The sensitivity is given as {sensitivity:g}, and updates are clipped to {clip:g}: a "
            f"client's update moves by up to {clip:g}, so the noise is {clip / sensitivity:.4g} "
            "times too small for the epsilon that was asked for."
            if sensitivity
            else f"The sensitivity is given as 0: no noise is added to updates of norm {clip:g}."
        )
    if epsilon > 1:
        warnings.append(
            "The std follows sqrt(2 ln(1.25 / delta)) / epsilon, which is proven for epsilon below "
            f"1 only; asked for was {epsilon:g}."
        )
    return {
        "clip": clip, "noise_multiplier": std / clip, "noise_at": "client", "delta": delta,
        "warnings": tuple(warnings),
    }  # fmt: skip


def _strategy(strategy: object, where: str, weighted: bool) -> Fields:
    effective = _of(strategy, "noise_multiplier", where)
    clip = _of(strategy, "clipping_norm", where)
    found: Fields = {"clip": clip, "noise_multiplier": effective, "noise_at": "server"}
    warnings = []
    count_std = _number(
        getattr(strategy, "clipped_count_stddev", None) or 0.0,
        f"{where}: clipped_count_stddev of the strategy",
    )
    if any("Adaptive" in name for name in _names(strategy)):
        warnings.append("The bound follows a noisy quantile of the norms: clip is the one of now.")
    if count_std and effective:  # the strategy keeps the gradients' part of sigma
        found["count_std"] = count_std
        found["noise_multiplier"] = (effective**-2 + (2 * count_std) ** -2) ** -0.5
    averaging = getattr(getattr(strategy, "strategy", None), "weighted_by_key", None)
    if not weighted and averaging and getattr(strategy, "accountant", None) is None:
        warnings.append(
            f"FedAvg weighs clients by '{averaging}': taken as equal here. Where they differ, one "
            "client's share of the mean is above 1 / Kt, and the noise is too small for it "
            "(weighted=True counts the worst case)."
        )
    found["warnings"] = tuple(warnings)
    return found


# ------------------------------------------------------------------------------ NVFlare


def nvflare_settings(filter: object, local_steps: int) -> Fields:
    """See `DPConfig.from_nvflare`."""
    where = "DPConfig.from_nvflare"
    require_at_least(where, 1, local_steps=local_steps)
    names = _names(filter)
    common: Fields = {
        "clip": math.inf, "noise_multiplier": 0.0, "noise_on": "update", "unit": "client",
        "sampling": "none", "source": f"NVFlare {type(filter).__name__}",
    }  # fmt: skip
    if "PercentilePrivacy" in names:
        percentile, gamma = (_of(filter, name, where) for name in ("percentile", "gamma"))
        if not 0 <= percentile <= 100 or not gamma > 0:
            said = f"percentile {percentile:g} and gamma {gamma:g}: with these the filter does "
            return common | {"mechanism": "none", "warnings": (f"{said}nothing.",)}
        return common | {
            "mechanism": "percentile",
            "parameters": (("percentile", percentile), ("gamma", gamma)),
            "warnings": (
                "No noise is added: there is no epsilon. "
                f"{100 - percentile:g} % of the coordinates are sent.",
            ),
        }
    if "SVTPrivacy" in names:
        share, answer, gamma, tau = (
            _of(filter, name, where) for name in ("frac", "eps_3", "gamma", "tau")
        )
        return common | {
            "mechanism": "dssgd",
            # The filter works on dW / L. Its answers have Laplace noise of scale 2 gamma / eps_3.
            "parameters": (
                ("share", share), ("selection", "random"), ("threshold", tau * local_steps),
                ("bound", gamma * local_steps), ("epsilon", 9 * answer),
            ),
            "warnings": (
                "The filter's epsilon is that of one coordinate, and of those it selects some are "
                "sent without noise: there is no epsilon of an update. The defense is the nearest "
                "there is, with the same noise on answers.",
            ),
        }  # fmt: skip
    raise LeakbenchError(
        f"{where}: {_shown(filter)} is not understood; allowed: PercentilePrivacy, SVTPrivacy"
    )
