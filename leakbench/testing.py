"""Contract tests for plugins: run them on yours, `leakbench list --check` runs them on all.

    from leakbench.testing import check_attack, check_defense, check_model

    def test_contract():
        check_attack(MyAttack())
        check_defense(MyDefense())
        check_model(MyNetwork())

They use real digits and a small network, take seconds on one core, and raise `ContractBreach` with
one sentence that says which promise of `leakbench.contracts` is broken.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast, get_args

import torch
from torch import Tensor

from leakbench import architectures, probe, registry
from leakbench.breach import ContractBreach, check_class, require
from leakbench.capturing import capture_leak
from leakbench.contracts import (
    ENDED,
    Attack,
    Context,
    Defense,
    Gradients,
    Guarantee,
    Leak,
    LeakPoint,
    LocalSteps,
    Model,
    Observation,
    Observer,
    Reconstruction,
    Setting,
    Simulate,
    State,
    Weights,
)
from leakbench.data import load
from leakbench.errors import LeakbenchError
from leakbench.gradients import of_subsets
from leakbench.leaking import Look, Tap
from leakbench.model_checks import check_model
from leakbench.plugin_files import one_line
from leakbench.privacy.events import PrivacyEvent
from leakbench.straight_through import blind_hooks
from leakbench.streams import NoiseStreams, VictimStreams, generator
from leakbench.training import Batch, public_gradients, run_round

__all__ = ["ContractBreach", "check_attack", "check_defense", "check_model", "check_plugin"]

SEED = 7
BATCH = 8
"""Examples of a local step."""
POINT = LeakPoint()


def check_plugin(kind: registry.Kind, name: str) -> str:
    """Import a plugin and run its contract tests with default parameters; "" or what is wrong."""
    try:
        checks: dict[registry.Kind, Callable[[Any], None]] = {
            "attacks": check_attack, "defenses": check_defense, "models": check_model,
        }  # fmt: skip
        checks[kind](registry.load(kind, name)())
    except LeakbenchError as error:
        return str(error)
    except (Exception, SystemExit) as error:  # noqa: BLE001  foreign code may fail in any way: that is the answer
        return one_line(error)
    return ""


def remark(kind: registry.Kind, name: str) -> str:
    """What a reader should know of a plugin that keeps its promises; "" if nothing.

    Defenses: hooks without a derivative, which adaptive attackers replay straight through.
    """
    if kind != "defenses":
        return ""
    defense = cast(Defense, registry.load(kind, name)())
    path = _Path(defense, *_setting()[:2])
    context = Context(batch_size=path.size, clients=(0,), noise=None, learning_rate=0.1)
    found = blind_hooks(defense, path.weights, path.begun(context), context, LeakPoint(type=0))
    hooks = list(dict.fromkeys(hook for hook, _ in found))
    return f"replay has no derivative at {', '.join(hooks)}: straight-through" if hooks else ""


# ------------------------------------------------------------------------------ attacks


@dataclass(slots=True)
class _Counting:
    """A simulation that counts the evaluations it gives."""

    inner: Simulate
    rows: int = 0

    def __call__(
        self,
        seen: Observation,
        inputs: Tensor,
        labels: Tensor,
        rows: Tensor,
        local_steps: LocalSteps,
    ) -> Gradients:
        self.rows += len(rows.unique())
        return self.inner(seen, inputs, labels, rows, local_steps)

    def push(
        self,
        seen: Observation,
        inputs: Tensor,
        labels: Tensor,
        rows: Tensor,
        tangents: Tensor,
        local_steps: LocalSteps,
    ) -> tuple[Gradients, Gradients]:
        """A column counts like a gradient."""
        self.rows += (1 + tangents.shape[1]) * len(rows.unique())
        return self.inner.push(seen, inputs, labels, rows, tangents, local_steps)


@dataclass(slots=True)
class _Watching:
    """A watch that notes what it is told."""

    steps: dict[int, list[int]] = field(default_factory=dict)

    def __call__(
        self, rows: Tensor, steps: Tensor, evaluations: Tensor, inputs: Tensor, losses: Tensor
    ) -> None:
        for row, step in zip(rows.tolist(), steps.tolist(), strict=True):
            self.steps.setdefault(row, []).append(step)


def check_attack(attack: Attack) -> None:
    """Shapes, determinism, independence of the chunk, no mutation, threat model, counters.

    It takes two steps from two starts at most (`Attack.shortened`): slow attacks are checked
    in seconds.

    Raises:
        ContractBreach: a promise is broken.
    """
    check_class(attack, Attack)
    attack = attack.shortened(2)
    offer, alone = _accepted(attack)
    leak, counter = _leak(range(3), offer)
    before = _copies(leak)
    random_state = torch.random.get_rng_state()
    watch = _Watching()
    result = attack.reconstruct(leak, _streams(range(3)), watch)
    require(
        torch.equal(random_state, torch.random.get_rng_state()),
        "the attack draws from torch's global generator; draw from `streams`",
    )
    require(_unchanged(leak, before), "the attack changes the leak it is given")
    _check_reconstruction(result, leak)
    require(
        int(result.evaluations.sum()) >= counter.rows,
        f"{counter.rows} gradients were simulated, only {int(result.evaluations.sum())} counted",
    )
    for row, steps in watch.steps.items():
        require(steps == sorted(steps), f"watch got steps {steps} of victim {row} out of order")
    again = attack.reconstruct(_leak(range(3), offer)[0], _streams(range(3)), _Watching())
    require(_same(result, again), "two runs on the same leak and streams differ")
    _check_neighbours(attack, offer, alone, result)
    start = attack.start(leak, _streams(range(3)))
    if start is not None:
        require(torch.equal(start, result.start_inputs), "start() is not where the attack began")


def _check_neighbours(
    attack: Attack, offer: _Offer, alone: Reconstruction, together: Reconstruction
) -> None:
    """Victim 1 alone and among others: bit for bit, or as near as the machine lets anybody be.

    Where the probe finds that bits depend on neighbours whoever computes, the attack runs in
    float64, and a difference counts that is beyond a thousand times the probe's own there.
    """
    exact = _rows_of(offer, "float32").independent
    if not exact:
        offer = replace(offer, dtype="float64")
        together = attack.reconstruct(_leak(range(3), offer)[0], _streams(range(3)), _Watching())
        alone = attack.reconstruct(_leak([1], offer)[0], _streams([1]), _Watching())
    one, other = alone.inputs[0].double(), together.inputs[1].double()
    if exact:
        holds = torch.equal(one, other)
    else:
        known = _rows_of(offer, "float64").difference
        tolerance = max(LEAST_TOLERANCE, 1e3 * known) if math.isfinite(known) else LEAST_TOLERANCE
        holds = bool(((one - other).abs() <= tolerance * other.abs().clamp(min=1.0)).all())
    require(
        holds,
        "a victim's result depends on its neighbours in the batch (pad calls to a multiple of 8)",
    )


LEAST_TOLERANCE = 1e-6
"""Of a relative difference in float64 that rounding may explain after some forty evaluations."""


def _rows_of(offer: _Offer, dtype: str) -> probe.Finding:
    """What the machine does to problems like those of the checks."""
    digits = load("mnist")
    return probe.rows(
        probe.Shape(
            model=offer.model, input_shape=digits.input_shape, classes=digits.classes, dtype=dtype
        )
    )


@dataclass(frozen=True, slots=True)
class _Offer:
    """What leaks, and what the threat model grants."""

    model: str = "cnn2"
    granted: bool = False
    dtype: str = "float32"


OFFERS = (_Offer(), _Offer(granted=True), _Offer(model="mlp"))


def _accepted(attack: Attack) -> tuple[_Offer, Reconstruction]:
    """The first offer that the attack does not refuse, and what it makes of victim 1 alone.

    Some attacks need grants, some a dense first layer.

    Raises:
        LeakbenchError: the attack's own, if it refuses all.
    """
    refusals = []
    for offer in OFFERS:
        try:
            alone = attack.reconstruct(_leak([1], offer)[0], _streams([1]), _Watching())
        except LeakbenchError as error:
            refusals.append(error)
        else:
            return offer, alone
    raise refusals[0]


def _check_reconstruction(result: Reconstruction, leak: Leak) -> None:
    n, batch = leak.n, leak.batch_size
    shapes = {
        "inputs": (result.inputs, (n, batch, *leak.input_shape)),
        "start_inputs": (result.start_inputs, (n, batch, *leak.input_shape)),
        "labels": (result.labels, (n, batch)),
        "loss": (result.loss, (n,)),
        "start_loss": (result.start_loss, (n,)),
        "steps": (result.steps, (n,)),
        "evaluations": (result.evaluations, (n,)),
    }
    for name, (value, wanted) in shapes.items():
        require(
            tuple(value.shape) == wanted, f"{name} has shape {tuple(value.shape)}, not {wanted}"
        )
    require(len(result.status) == n, f"{len(result.status)} statuses for {n} victims")
    require(set(result.status) <= set(ENDED), f"status {result.status} is not among {ENDED}")
    require(
        bool(torch.isfinite(result.inputs).all()),
        "inputs are not finite: return the best finite iterate and say status 'nan'",
    )
    for name, value in (("steps", result.steps), ("evaluations", result.evaluations)):
        require(bool((value >= 0).all()), f"{name} must not be negative")
    labels = result.labels
    require(
        not labels.is_floating_point() and bool(((labels >= 0) & (labels < leak.classes)).all()),
        f"labels must be class indices below {leak.classes}",
    )


def _setting(
    name: str = "cnn2", dtype: torch.dtype = torch.float32
) -> tuple[Model, dict[str, Tensor], Tensor, Tensor]:
    """A network with U(-0.5, 0.5) weights and the first eight candidate digits."""
    digits = load("mnist")
    model = architectures.build(name, digits.input_shape, digits.classes)
    weights = model.init(generator(SEED, "weights"), dtype)
    return model, weights, digits.candidates[:8].to(dtype), digits.candidate_labels[:8]


def _leak(victims: range | list[int], offer: _Offer) -> tuple[Leak, _Counting]:
    """An undefended type-2 leak of these digits."""
    dtype = getattr(torch, offer.dtype)
    model, weights, images, labels = _setting(offer.model, dtype)
    where = torch.tensor([(0, victim) for victim in victims])
    leak = capture_leak(
        model, images, labels, weights=weights, victims=where,
        grants=("labels", "candidates", "public") if offer.granted else (),
        candidates=(images, labels), public=load("mnist").public[:8].to(dtype),
    )  # fmt: skip
    counting = _Counting(leak.observations[0].run)
    seen = dataclasses.replace(leak.observations[0], run=counting)
    return dataclasses.replace(leak, observations=(seen,)), counting


def _streams(victims: range | list[int]) -> VictimStreams:
    return VictimStreams(SEED, tuple(("check", victim) for victim in victims))


def _copies(leak: Leak) -> list[Tensor]:
    seen = leak.observations[0]
    return [value.clone() for value in (*seen.weights.values(), *seen.gradients.tensors.values())]


def _unchanged(leak: Leak, before: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(_copies(leak), before, strict=True))


def _same(one: Reconstruction, two: Reconstruction) -> bool:
    return (
        torch.equal(one.inputs, two.inputs)
        and torch.equal(one.steps, two.steps)
        and torch.equal(one.evaluations, two.evaluations)
        and one.status == two.status
    )


# ------------------------------------------------------------------------------ defenses


def check_defense(defense: Defense) -> None:
    """Hooks on the whole path: shapes, determinism, no mutation, replay, independence of clients,
    a second round with other clients, promises and their events.

    Raises:
        ContractBreach: a promise is broken.
    """
    check_class(defense, Defense)
    row, size = defense.row, BATCH
    require(
        row in ("batch", None) or (type(row) is int and row > 0 and size % row == 0),
        f"row is {row!r}, which is neither 'batch' nor None nor divides a batch of {size}",
    )
    path = _Path(defense, *_setting()[:2])
    before = {name: value.clone() for name, value in path.weights.items()}
    random_state = torch.random.get_rng_state()
    quiet = Context(batch_size=path.size, clients=(0,), noise=None, learning_rate=0.1)
    state = path.begun(quiet)
    require(
        torch.equal(random_state, torch.random.get_rng_state()),
        "init or on_round draws from torch's global generator; draw from `context`",
    )
    for observer in get_args(Observer):
        _check_noise_std(defense.noise_std(observer, path.weights, state, quiet), path.weights)
    for setting in SETTINGS:
        _check_promises(defense, path.weights, setting)
    require(
        all(torch.equal(value, before[name]) for name, value in path.weights.items()),
        "the defense changes the weights it is given",
    )
    inputs = _hook_inputs(path)
    for hook, given in inputs:
        _check_hook(path, hook, given)
    if defense.rowwise and defense.row is not None:
        _check_rowwise(path, inputs[0][1])
    _check_rounds(path)
    _check_replay(path)


def _check_noise_std(said: Mapping[str, float] | None, weights: Weights) -> None:
    require(
        said is None or (said.keys() == weights.keys() and min(said.values()) >= 0),
        "noise_std() is neither None nor a number >= 0 for every parameter",
    )


SETTINGS = (
    Setting(batch_size=8, examples=100, rounds=3, sampling="poisson"),
    Setting(batch_size=8, examples=100, rounds=3, local_steps=2, clients=2, all_clients=10),
)
"""Central training, and training with several clients."""


@dataclass(frozen=True, slots=True)
class _Path:
    """A defense, and the network that it is tried on."""

    defense: Defense
    model: Model
    weights: dict[str, Tensor]
    size: int = BATCH

    def batch(self, clients: int) -> Batch:
        """Other digits for every client."""
        digits, rows = load("mnist"), clients * self.size
        return Batch(
            inputs=digits.candidates[:rows].unflatten(0, (clients, self.size)),
            labels=digits.candidate_labels[:rows].unflatten(0, (clients, self.size)),
        )

    def begun(self, context: Context) -> State:
        """The state at the start of the first round."""
        return self.started(self.weights, self.defense.init(self.weights), context)

    def started(self, weights: Weights, state: State, context: Context) -> State:
        """`state` after `on_round`, which alone is given public examples, if it needs them."""
        public = None
        if self.defense.needs_public:
            digits = load("mnist")
            public = public_gradients(self.model, digits.public[:8], digits.public_labels[:8])
        return self.defense.on_round(weights, state, dataclasses.replace(context, public=public))


def _hook_inputs(path: _Path) -> list[tuple[str, Gradients]]:
    """Real gradients of two clients for every hook."""
    batch, row = path.batch(2), path.defense.row_size(path.size) or 1
    rows = of_subsets(path.model, path.weights, batch.inputs, batch.labels, row)
    mean = rows.mean("example")
    return [
        ("on_examples", rows),
        *((hook, mean) for hook in ("on_batch", "on_update", "on_receipt")),
    ]


def _check_hook(path: _Path, hook: str, given: Gradients) -> None:
    defense = path.defense
    noise = NoiseStreams(SEED, ("check",))
    context = Context(batch_size=path.size, clients=(0, 1), noise=noise, learning_rate=0.1)
    before = {k: v.clone() for k, v in given.tensors.items()}
    random_state = torch.random.get_rng_state()

    def call(gradients: Gradients, context: Context) -> Gradients:
        state = path.begun(context)
        if hook == "on_batch":  # a defense may count on its example hook having run before
            examples = gradients.map(lambda _, value: value[:, None].repeat_interleave(2, dim=1))
            _, state = defense.on_examples(
                Gradients(examples.tensors, ("client", "example")), state, context
            )
        shown, _ = getattr(defense, hook)(gradients, state, context)
        return cast(Gradients, shown)

    shown = call(given, context)
    require(
        hook in defense.hooks or _equal(shown, given),
        f"{hook} changes gradients, and `hooks` does not name it",
    )
    require(
        torch.equal(random_state, torch.random.get_rng_state()),
        f"{hook} draws from torch's global generator; draw from `context`",
    )
    require(
        all(torch.equal(v, given.tensors[k]) for k, v in before.items()),
        f"{hook} changes the gradients it is given",
    )
    require(
        shown.axes == given.axes
        and {k: v.shape for k, v in shown.tensors.items()}
        == {k: v.shape for k, v in given.tensors.items()},
        f"{hook} changes names, axes or shapes of the gradients",
    )
    require(_equal(shown, call(given, context)), f"{hook} gives two answers to one question")
    alone = call(given.select(torch.tensor([1])), dataclasses.replace(context, clients=(1,)))
    require(
        _agree(alone, shown.select(torch.tensor([1]))),
        f"{hook}: what a client shows depends on which other clients there are",
    )
    quiet = dataclasses.replace(context, noise=None, observation=given)
    require(
        _equal(call(given, quiet), call(given, quiet)),
        f"{hook} is random in a replay without noise",
    )
    blind = dataclasses.replace(quiet, observation=None)
    require(
        defense.reads_observation or _equal(call(given, blind), call(given, quiet)),
        f"{hook} reads context.observation, and reads_observation is False",
    )


def _check_rowwise(path: _Path, rows: Gradients) -> None:
    """What a defense says of its example hook holds for a batch in pieces."""
    context = Context(
        batch_size=path.size, clients=(0, 1), noise=NoiseStreams(SEED, ("check",))
    )  # fmt: skip
    state = path.begun(context)
    whole, after = path.defense.on_examples(rows, state, context)
    require(after is state, "rowwise: on_examples returns another state than it was given")
    for piece in range(rows.leading[1]):
        shown, _ = path.defense.on_examples(_one_row(rows, piece), state, context)
        require(
            _agree(shown, _one_row(whole, piece)),
            "rowwise: what on_examples makes of a row depends on other rows",
        )


def _one_row(rows: Gradients, number: int) -> Gradients:
    return rows.map(lambda _, value: value[:, number : number + 1])


def _check_promises(defense: Defense, weights: Weights, setting: Setting) -> None:
    for observer in get_args(Observer):
        promise = defense.guarantee(observer, weights, setting)
        require(isinstance(promise, Guarantee), f"guarantee('{observer}') is no Guarantee")
        require(
            promise.level != "none" or bool(promise.reason),
            f"guarantee('{observer}') is 'none' without a reason",
        )
    events: object = defense.events(weights, setting)
    require(
        isinstance(events, tuple) and all(isinstance(event, PrivacyEvent) for event in events),
        "events() is no tuple of PrivacyEvent",
    )


def _check_rounds(path: _Path) -> None:
    """A round of two clients and one of three others, two local steps each."""
    weights: Weights = path.weights
    state = path.defense.init(weights)
    for number, clients in enumerate(((0, 1), (2, 3, 4))):
        context = Context(
            round=number, total=2, batch_size=path.size, clients=clients,
            noise=NoiseStreams(SEED, ("check",)), local_steps=2, learning_rate=0.1,
        )  # fmt: skip
        try:
            done = run_round(
                path.model, weights, [path.batch(len(clients))] * 2, path.defense,
                path.started(weights, state, context), context,
            )  # fmt: skip
        except Exception as error:
            if number == 0:
                raise
            text = (
                "a round of other clients fails from the state that merge gives (override it where "
                "the state has a client axis)"
            )
            raise ContractBreach(f"{text}: {one_line(error)}") from error
        require(
            done.weights is not None
            and all(done.weights[k].shape == v.shape for k, v in weights.items()),
            "a round of two local steps with this defense does not give back weights",
        )
        weights, state = cast(Weights, done.weights), path.defense.merge(done.state)


def _check_replay(path: _Path) -> None:
    """An adaptive attacker differentiates the replay."""
    batch = path.batch(1)
    inputs, labels = batch.inputs[0, :2, None].clone().requires_grad_(), batch.labels[0, :2, None]
    tap = Tap(model=path.model, point=POINT, batch_size=path.size)
    look = Look(weights=path.weights, state=path.begun(tap.context(0, (0,), None)))
    noise, where = NoiseStreams(SEED, ("check",)), torch.tensor([(0, 0), (0, 1)])
    seen = tap.capture(path.defense, look, [batch], clients=(0,), noise=noise, victims=where)
    # As the hooks are: a graph is asked of all of them, also where its derivative is zero.
    own = dataclasses.replace(tap.replay(path.defense, look), defense=path.defense)
    observation = tap.observation(path.weights, seen, [own])
    shown = observation.simulate(inputs, labels, torch.arange(2)).flatten()
    require(shown.requires_grad, "the replay is not differentiable in the inputs")
    slope = torch.autograd.grad(shown.square().sum(), inputs)[0]
    require(bool(torch.isfinite(slope).all()), "the replay has a derivative that is not finite")


# ------------------------------------------------------------------------------ all


def _equal(one: Gradients, two: Gradients) -> bool:
    return all(torch.equal(v, two.tensors[k]) for k, v in one.tensors.items())


def _agree(one: Gradients, two: Gradients) -> bool:
    """Equal, or but for rounding where the machine rounds a row by its neighbours."""
    if _rows_of(_Offer(), "float32").independent:
        return _equal(one, two)
    return all(
        torch.allclose(v, two.tensors[k], rtol=1e-4, atol=1e-5 * float(v.abs().amax()))
        for k, v in one.tensors.items()
    )
