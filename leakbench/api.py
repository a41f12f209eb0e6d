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
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast, get_args, runtime_checkable

import torch
from torch import Tensor, nn

from leakbench import attacking, givens, registry
from leakbench.breach import ContractBreach
from leakbench.captured import CapturedLeak
from leakbench.capturing import capture_views
from leakbench.contracts import Attack, Defense, LeakPoint, Model, Weights
from leakbench.data.features import Feature
from leakbench.errors import LeakbenchError, require_at_least, unknown_name
from leakbench.givens import Givens
from leakbench.parameters import require_in
from leakbench.plugin_files import one_line
from leakbench.scoring import AttackResult
from leakbench.spec import Knowledge
from leakbench.suite.parameters import complete
from leakbench.user_models import UserModel, as_model, read_module, require_finite

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
    if observer not in tuple(OBSERVERS):  # of a tuple, so that what has no hash is refused too
        raise unknown_name("observer", observer, OBSERVERS, "leak")
    require_at_least("leak", 0, round=round, seed=seed)
    require_in("leak", "(0, inf)", learning_rate=learning_rate)
    own = Givens.of(x, y, candidates, public)
    span, notes = givens.input_range(own, input_range)
    meaning = givens.features(own, features)
    wanted = resolved(defense)
    user, several = _network(model, own.x, own.y, loss, weights, mode, head, device)
    first = several[0]
    own = own.to(next(iter(first.values())))
    classes = _classes(user, first, classes)
    own.require_labels(classes)
    point = dataclasses.replace(OBSERVERS[observer], round=int(round))
    victims = own.y.numel() if observer == "type2" else len(own.y) if own.y.ndim == 2 else 1
    try:
        with torch.random.fork_rng(devices=[own.x.device] if own.x.is_cuda else []):
            views = capture_views(
                user.model, own.x, own.y,
                weights=several, defense=wanted, point=point, local_steps=local_steps,
                learning_rate=float(learning_rate), rounds=rounds,
                public=None if own.public is None else own.public.inputs,
                public_labels=None if own.public is None else own.public.labels,
                input_range=span, classes=classes, seed=int(seed), features=meaning,
                sent=None if sent is None else givens.gradients(sent, first, victims),
            )  # fmt: skip
    except LeakbenchError:
        raise
    except Exception as error:  # foreign code may fail in any way
        whose = "model" if defense is None else f"model under defense '{_name(wanted)}'"
        raise LeakbenchError(f"{whose}: its gradients fail: {one_line(error)}") from error
    batch = views["naive"].batch_size
    shape = own.x.shape[own.y.ndim :]
    return CapturedLeak(
        views=views,
        truth=own.x.reshape(-1, batch, *shape).clone(),
        truth_labels=own.y.reshape(-1, batch).clone(),
        candidates=own.candidates,
        public=own.public,
        labels_known=labels_known,
        seed=seed,
        notes=(*user.notes, *own.notes, *notes),
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
    if not isinstance(leak, CapturedLeak):
        raise LeakbenchError(
            f"attack: {type(leak).__name__} is no captured leak; allowed: what `leak` returns"
        )
    if knowledge not in get_args(Knowledge):
        raise unknown_name("knowledge", knowledge, get_args(Knowledge), "attack")
    if seconds is not None:
        require_in("attack", "(0, inf]", seconds=seconds)
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

    _checked(testing.check_attack, plugin)


def check_defense(plugin: Defense | type[Defense]) -> None:
    """Contract tests of a defense, see `testing.check_defense`; a class with its defaults.

    Raises:
        ContractBreach: one sentence that says which promise is broken.
    """
    from leakbench import testing  # brings all that plugins are tried on

    _checked(testing.check_defense, plugin)


def _checked(check: Callable[[Any], None], plugin: object) -> None:
    """Contract tests; a plugin that fails in another way breaks its contract, too."""
    name = plugin.__name__ if isinstance(plugin, type) else type(plugin).__name__
    try:
        check(plugin() if isinstance(plugin, type) else plugin)
    except (ContractBreach, LeakbenchError):
        raise
    except Exception as error:  # foreign code may fail in any way
        raise ContractBreach(f"{name} fails: {one_line(error)}") from error


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
        return defense(**complete(defense, parameters, f"defense '{_name(defense)}'"))
    given: object = defense
    if isinstance(given, HasDefense) and not isinstance(given, type):
        made: object = given.defense()
        if isinstance(made, Defense):
            return made
    raise LeakbenchError(
        f"defense: {defense!r:.60} is none; allowed: a name, a mapping with name and parameters, a "
        "Defense, or what has a method defense(), as DPConfig"
    )


def _name(defense: Defense | type[Defense]) -> str:
    """What a plugin calls itself; the base class has no name."""
    kind = defense if isinstance(defense, type) else type(defense)
    return str(getattr(defense, "name", kind.__name__))


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
    several: Any = [weights] if isinstance(weights, Mapping) else weights
    if not isinstance(several, list | tuple) or not all(
        isinstance(one, Mapping) and all(isinstance(v, Tensor) for v in one.values())
        for one in several
    ):
        raise LeakbenchError(
            "leak: weights are no tensors by name; allowed: those of one look, as a state_dict, or "
            "a list of such"
        )
    if not several:
        raise LeakbenchError("leak: weights are of no look; give those of one at least")
    if user.weights:
        return user, [_like(one, user.weights) for one in several]
    where = None if device is None else torch.device(device)
    return user, [{k: v.detach().to(where, copy=True) for k, v in w.items()} for w in several]


def _like(given: Weights, wanted: Weights) -> Weights:
    """A copy of weights under the names of the module's own, in their type."""
    if odd := sorted(map(str, given.keys() ^ wanted.keys())):
        has = "are missing" if odd[0] in wanted else "have an unknown"
        raise LeakbenchError(f"leak: weights {has} '{odd[0]}'; the module trains {list(wanted)}")
    for name, like in wanted.items():
        if given[name].shape != like.shape:
            raise LeakbenchError(
                f"leak: weights have '{name}' of shape {tuple(given[name].shape)}; allowed: "
                f"{tuple(like.shape)}, as the module has it"
            )
    found = {name: given[name].detach().to(like, copy=True) for name, like in wanted.items()}
    require_finite(found)
    return found


def _classes(user: UserModel, weights: Weights, given: int | None) -> int:
    """How many classes there are: as given, or as many as outputs, two if there is one."""
    outputs = user.outputs
    if given is not None:
        require_at_least("leak", 2, classes=given)
        if outputs is not None and given > max(outputs, 2):
            raise LeakbenchError(
                f"leak: {given} classes, and the model has {outputs} outputs; allowed: up to "
                f"{max(outputs, 2)}"
            )
        return int(given)
    if outputs is not None:
        return max(outputs, 2)
    if user.model.head is None:
        raise LeakbenchError("leak: the model names no head to count classes by; give `classes`")
    return max(len(weights[user.model.head]), 2)
