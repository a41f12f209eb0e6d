"""The library: what one update of your own model gives away.

    import leakbench as lb

    leak = lb.leak(model, x, y, defense={"name": "dp_baseline", "parameters": {"clip": 1.0}})
    result = lb.attack(leak, ["cpl", "analytic"])
    result.score(candidates=public)
    result.show()

Nothing is written, the model and torch's random numbers stay as they are, and no attack sees the
truth, which the leak keeps for `score`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast, get_args, runtime_checkable

import torch
from torch import Tensor, nn

from leakbench import attacking, registry
from leakbench.captured import CapturedLeak, Examples
from leakbench.capturing import capture_views
from leakbench.contracts import Attack, Defense, LeakPoint, Model, Weights
from leakbench.data.columns import of_names, require_fitting
from leakbench.data.features import Feature
from leakbench.errors import LeakbenchError, unknown_name
from leakbench.plugin_files import one_line
from leakbench.scoring import AttackResult
from leakbench.spec import Knowledge
from leakbench.suite.parameters import complete
from leakbench.user_models import UserModel, as_model, read_module

__all__ = [
    "OBSERVERS",
    "AttackResult",
    "CapturedLeak",
    "as_model",
    "attack",
    "check_attack",
    "check_defense",
    "leak",
]

OBSERVERS: dict[str, LeakPoint] = {
    "type2": LeakPoint(),
    "type2_batch": LeakPoint(view="batch"),
    "type1": LeakPoint(type=1),
    "type0": LeakPoint(type=0),
    "type0_raw": LeakPoint(type=0, view="raw"),
}
"""Who reads: the gradient of each example, the mean of a batch, what a client sends, what the
server holds after it did its part, what it holds before."""

SLACK = 1e-6
"""Share of the input range by which an input may lie outside it: rounding."""


@runtime_checkable
class HasDefense(Protocol):
    """A description of a mechanism, as `DPConfig`."""

    def defense(self) -> Defense:
        """The mechanism as a defense."""
        ...


Protected = str | Defense | type[Defense] | Mapping[str, Any] | HasDefense


def leak(
    model: nn.Module | Model,
    x: Tensor,
    y: Tensor,
    *,
    loss: str | nn.Module = "cross_entropy",
    weights: Weights | Sequence[Weights] | None = None,
    defense: Protected | None = None,
    observer: str = "type2",
    local_steps: int = 1,
    learning_rate: float = 0.1,
    round: int = 0,
    rounds: int = 1,
    candidates: tuple[Tensor, Tensor] | None = None,
    public: Tensor | tuple[Tensor, Tensor] | None = None,
    labels_known: bool = False,
    input_range: tuple[float, float] | None = None,
    features: Sequence[str | Feature] = (),
    classes: int | None = None,
    mode: str | None = None,
    head: str | None = None,
    device: torch.device | str | None = None,
    sent: Mapping[str, Tensor] | None = None,
    seed: int = 0,
) -> CapturedLeak:
    """Train on (x, y) as you do, with the defense in place, and read what an observer sees.

    Args:
        model: your module, which stays as it is (`user_models.read_module` says what it may be), or
            a `contracts.Model`, whose `weights` must be given.
        x, y: (examples, *input shape) as the model sees them, and whole numbers (examples,) from 0;
            or (clients, examples, ...) of both. Of one output (n, 1) or 0.0 and 1.0 will do.
        loss: "cross_entropy", "bce", "mse", a longer name of these, or the loss of torch.nn; of
            outputs before any softmax or sigmoid. A `Model` brings its own.
        weights: None: those that the module holds. Several are as many looks at the same victims.
        defense: a plugin by name, {"name": ..., "parameters": {...}}, class or object, or what has
            a method `defense()`, as DPConfig; None: nothing.
        observer: a key of `OBSERVERS`. At "type2" every example is a victim, elsewhere the batch of
            every client is one.
        local_steps, learning_rate: L and eta behind an update (types 0 and 1).
        round, rounds: when it is read and how many are planned, for defenses with a schedule.
        candidates: (N, *input shape) and (N,), a list that holds the victims: attackers get it.
        public: (m, *input shape), with (m,) labels or without, of the same kind as x: attackers
            get the inputs.
        labels_known: whether attackers get the labels.
        input_range: least and greatest value of an input. None: [0, 1] if everything lies within,
            else what is found, which `notes` say.
        features: of rows of a table: a name for each column, "age" of a number and "job=cook" of a
            category's value (0 or 1, whatever the range of numbers), or a `Feature` for each.
        classes: None: as many as the model has outputs, two if it has one.
        mode: "train" or "eval" for all layers of the module; None: as they are.
        head: name of the weight of its last dense layer; None: found.
        device: to compute on; None: that of the model's parameters.
        sent: parameter name -> (victims, *its shape), in the units of a gradient: what a training
            really gave away (see `tap`). The defense is not run then, only replayed.
        seed: of the noise and of the attackers' random numbers.

    Raises:
        LeakbenchError: what cannot be attacked, in one sentence; see `read_module`.
    """
    if observer not in OBSERVERS:
        raise unknown_name("observer", observer, OBSERVERS, "leak")
    x, y = torch.as_tensor(x).detach(), torch.as_tensor(y).detach()
    if not x.is_floating_point():
        raise LeakbenchError(
            f"leak: x is {x.dtype}; allowed: floating point, scaled as the model sees it"
        )
    y = _labels(y, x)
    own = _Givens(
        x=x, y=y,
        candidates=_examples("candidates", candidates), public=_examples("public", public),
    )  # fmt: skip
    span, notes = _range(own, input_range)
    meaning = _features(features, own)
    user, several = _network(model, x, y, loss, weights, mode, head, device)
    first = several[0]
    own = own.to(next(iter(first.values())))
    if classes is None:
        classes = _classes(user, first)
    _require_labels(own, classes)
    point = dataclasses.replace(OBSERVERS[observer], round=round)
    try:
        views = capture_views(
            user.model, own.x, own.y,
            weights=several, defense=resolved(defense), point=point, local_steps=local_steps,
            learning_rate=learning_rate, rounds=rounds,
            public=None if own.public is None else own.public.inputs,
            public_labels=None if own.public is None else own.public.labels,
            input_range=span, classes=classes, seed=seed, features=meaning,
            sent=None if sent is None else {k: v.detach().to(own.x) for k, v in sent.items()},
        )  # fmt: skip
    except (RuntimeError, NotImplementedError) as error:
        raise LeakbenchError(f"model: its gradients fail: {one_line(error)}") from error
    batch = views["naive"].batch_size
    shape = x.shape[1:] if y.ndim == 1 else x.shape[2:]
    return CapturedLeak(
        views=views,
        truth=own.x.reshape(-1, batch, *shape).clone(),
        truth_labels=own.y.reshape(-1, batch).clone(),
        candidates=own.candidates,
        public=own.public,
        labels_known=labels_known,
        seed=seed,
        notes=(*user.notes, *notes),
    )


def attack(
    leak: CapturedLeak,
    attacks: attacking.Named | Sequence[attacking.Named] | Mapping[str, Mapping[str, Any]],
    *,
    knowledge: Knowledge = "adaptive",
    seconds: float | None = None,
    progress: bool = False,
    **parameters: Any,
) -> AttackResult:
    """Run attacks on a leak.

    Args:
        leak: of `leak`.
        attacks: a plugin by name, class or object; several; or names with their parameters,
            {"cpl": {"restarts": 4}, "analytic": {}}.
        knowledge: "adaptive" replays the defense and knows its noise, "naive" ignores it.
        seconds: for each attack, which then does fewer restarts or steps, and says so. None: no
            limit, but `attacking.LARGE_SECONDS` on networks of more than a million parameters.
        progress: show a bar for each attack.
        parameters: of the one attack that is named.

    Returns:
        The answers of those that suit the leak; why the others do not is in the result's notes.

    Raises:
        LeakbenchError: an unknown attack or parameter; an attack that breaks its contract.
    """
    if knowledge not in get_args(Knowledge):
        raise unknown_name("knowledge", knowledge, get_args(Knowledge), "attack")
    if seconds is not None and not seconds > 0:
        raise LeakbenchError(f"attack: seconds must be positive, got {seconds}")
    answers = [
        attacking.answer(leak, each, knowledge, seed=leak.seed, seconds=seconds, progress=progress)
        for each in attacking.made(attacks, parameters)
    ]
    return AttackResult(leak=leak, answers=tuple(answers))


def check_attack(plugin: Attack | type[Attack]) -> None:
    """Contract tests of an attack, see `testing.check_attack`; a class with its defaults.

    Raises:
        ContractBreach: one sentence that says which promise is broken.
    """
    from leakbench import testing  # brings all that plugins are tried on

    testing.check_attack(plugin() if isinstance(plugin, type) else plugin)


def check_defense(plugin: Defense | type[Defense]) -> None:
    """Contract tests of a defense, see `testing.check_defense`; a class with its defaults.

    Raises:
        ContractBreach: one sentence that says which promise is broken.
    """
    from leakbench import testing  # brings all that plugins are tried on

    testing.check_defense(plugin() if isinstance(plugin, type) else plugin)


# ------------------------------------------------------------------------------ what is given


def resolved(defense: Protected | None) -> Defense:
    """The defense that is meant.

    Raises:
        LeakbenchError: an unknown name or parameter, or what is no defense.
    """
    if defense is None:
        return Defense()
    if isinstance(defense, Defense):
        return defense
    parameters: Mapping[str, Any] = {}
    if isinstance(defense, Mapping):
        if odd := sorted(set(defense) - {"name", "parameters"}):
            raise unknown_name("key", str(odd[0]), ("name", "parameters"), "defense")
        if "name" not in defense:
            raise LeakbenchError("defense: a mapping must have a key 'name'")
        parameters = defense.get("parameters", {})
        defense = cast(str, defense["name"])
    if isinstance(defense, str):
        defense = cast("type[Defense]", registry.load("defenses", defense))
    if isinstance(defense, type) and issubclass(defense, Defense):
        return defense(**complete(defense, parameters, f"defense '{defense.name}'"))
    if isinstance(defense, HasDefense):
        return defense.defense()
    raise LeakbenchError(
        f"defense: {defense!r:.60} is none; allowed: a name, a mapping with name and parameters, a "
        "Defense, or what has a method defense(), as DPConfig"
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Givens:
    """Examples of all kinds."""

    x: Tensor
    y: Tensor
    candidates: Examples | None
    public: Examples | None

    def to(self, like: Tensor) -> _Givens:
        """In the type and on the device of the model's weights."""
        return _Givens(
            x=self.x.to(like),
            y=self.y.to(like.device),
            candidates=_to(self.candidates, like),
            public=_to(self.public, like),
        )


def _to(examples: Examples | None, like: Tensor) -> Examples | None:
    if examples is None:
        return None
    labels = None if examples.labels is None else examples.labels.to(like.device, torch.int64)
    return Examples(inputs=examples.inputs.to(like), labels=labels)


def _labels(y: Tensor, x: Tensor) -> Tensor:
    """Whole numbers, without the axis that a single output has."""
    if y.is_floating_point():
        if y.ndim > 1 and y.shape[-1] == 1 and y.shape[0] == x.shape[0]:
            y = y[..., 0]
        if not bool((y == y.round()).all()):
            raise LeakbenchError("leak: y holds fractions; allowed: numbers of classes, from 0 on")
    return y.to(torch.int64)


def _network(
    model: nn.Module | Model,
    x: Tensor,
    y: Tensor,
    loss: str | nn.Module,
    weights: Weights | Sequence[Weights] | None,
    mode: str | None,
    head: str | None,
    device: torch.device | str | None,
) -> tuple[UserModel, list[Weights]]:
    """The model, and weights of one look or several."""
    if isinstance(model, nn.Module):
        inputs = x if y.ndim == 1 else x.flatten(0, 1)
        user = read_module(
            model, loss=loss, inputs=inputs, mode=cast(Any, mode), head=head, device=device
        )
    elif weights is None:
        raise LeakbenchError("leak: a Model holds no weights; give `weights`, or an nn.Module")
    else:
        user = UserModel(model=model, weights={})
    if weights is None:
        return user, [user.weights]
    several = [weights] if isinstance(weights, Mapping) else list(weights)
    if not several:
        raise LeakbenchError("leak: weights are of no look; give those of one at least")
    if user.weights:
        several = [_like(one, user.weights) for one in several]
    elif device is not None:
        several = [{k: v.to(device) for k, v in one.items()} for one in several]
    return user, several


def _like(given: Weights, wanted: Weights) -> Weights:
    """Weights under the names of the module's own, in their type."""
    if odd := sorted(given.keys() ^ wanted.keys()):
        has = "are missing" if odd[0] in wanted else "have an unknown"
        raise LeakbenchError(f"leak: weights {has} '{odd[0]}'; the module trains {list(wanted)}")
    return {name: given[name].detach().to(like) for name, like in wanted.items()}


def _examples(name: str, given: Tensor | tuple[Tensor, Tensor] | None) -> Examples | None:
    if given is None:
        return None
    inputs, labels = given if isinstance(given, tuple) else (given, None)
    if labels is None and name == "candidates":
        raise LeakbenchError("leak: candidates need their labels; allowed: (inputs, labels)")
    if labels is not None and labels.shape != inputs.shape[:1]:
        raise LeakbenchError(
            f"leak: {name} {tuple(inputs.shape)} and labels {tuple(labels.shape)} do not belong "
            "together; allowed: (N, *input shape) and (N,)"
        )
    return Examples(
        inputs=inputs.detach(), labels=None if labels is None else labels.detach().cpu()
    )


def _range(
    given: _Givens, declared: tuple[float, float] | None
) -> tuple[tuple[float, float], list[str]]:
    """The input range, and a note where it was found from the data."""
    parts = {"x": given.x}
    parts |= {
        name: examples.inputs
        for name, examples in (("candidates", given.candidates), ("public", given.public))
        if examples is not None
    }
    ends = {name: (float(part.min()), float(part.max())) for name, part in parts.items()}
    for name, (least, most) in ends.items():
        if not (abs(least) < float("inf") and abs(most) < float("inf")):
            raise LeakbenchError(f"leak: {name} holds nan or infinities; allowed: finite numbers")
    if declared is not None:
        low, high = map(float, declared)
        if not low < high:
            raise LeakbenchError(f"leak: input_range ({low:g}, {high:g}) is empty")
        slack = SLACK * (high - low)
        for name, (least, most) in ends.items():
            if least < low - slack or most > high + slack:
                raise LeakbenchError(
                    f"leak: {name} lies in [{least:.4g}, {most:.4g}], outside the declared "
                    f"input_range [{low:g}, {high:g}]"
                )
        return (low, high), []
    low, high = min(least for least, _ in ends.values()), max(most for _, most in ends.values())
    if low >= 0 and high <= 1:
        return (0.0, 1.0), []
    if low == high:
        high = low + 1
    return (low, high), [
        f"input_range was not declared: [{low:.4g}, {high:.4g}] is what x and all else that was "
        "given lies in"
    ]


def _features(declared: Sequence[str | Feature], given: _Givens) -> tuple[Feature, ...]:
    """What the columns mean, held against all rows."""
    if not declared:
        return ()
    shape = tuple(given.x.shape[given.y.ndim :])
    if len(shape) != 1:
        raise LeakbenchError(
            f"leak: features are of rows of a table (columns,), x holds inputs {shape}"
        )
    others = [each.inputs for each in (given.candidates, given.public) if each is not None]
    rows = torch.cat([part.reshape(-1, *shape).cpu() for part in (given.x, *others)]).numpy()
    names = [each for each in declared if isinstance(each, str)]
    if len(names) == len(declared):
        return of_names("leak: features", names, rows)
    found = tuple(each for each in declared if isinstance(each, Feature))
    if len(found) < len(declared):
        raise LeakbenchError(
            "leak: features are neither all names nor all Feature; allowed: one name a column, or "
            "a Feature each"
        )
    require_fitting("leak: features", found, rows)
    return found


def _classes(user: UserModel, weights: Weights) -> int:
    if user.outputs is not None:
        return max(user.outputs, 2)
    if user.model.head is None:
        raise LeakbenchError("leak: the model names no head to count classes by; give `classes`")
    return max(len(weights[user.model.head]), 2)


def _require_labels(given: _Givens, classes: int) -> None:
    labels = {"y": given.y}
    for name, examples in (("candidates", given.candidates), ("public", given.public)):
        if examples is not None and examples.labels is not None:
            labels[f"labels of {name}"] = examples.labels
    for name, values in labels.items():
        if values.numel() and not (int(values.min()) >= 0 and int(values.max()) < classes):
            raise LeakbenchError(
                f"leak: {name} are from {int(values.min())} to {int(values.max())}; allowed with "
                f"{classes} classes: 0 to {classes - 1}"
            )
