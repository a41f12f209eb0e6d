"""Contract tests for plugins: run them on yours, `leakbench list --check` runs them on all.

    from leakbench.testing import check_attack, check_defense

    def test_contract():
        check_attack(MyAttack())
        check_defense(MyDefense())

They use real digits and a small network, take seconds on one core, and raise `ContractBreach` with
one sentence that says which promise of `leakbench.contracts` is broken.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, cast, get_args

import torch
from torch import Tensor

from leakbench import models, registry
from leakbench.contracts import (
    Attack,
    Context,
    Defense,
    Gradients,
    Granularity,
    Guarantee,
    Leak,
    LeakPoint,
    LocalSteps,
    Model,
    Observation,
    Observer,
    Reconstruction,
    Replay,
    Setting,
    Simulate,
    Weights,
)
from leakbench.data import load
from leakbench.errors import LeakbenchError
from leakbench.plugin_files import one_line
from leakbench.simulation import simulator
from leakbench.streams import NoiseStreams, VictimStreams, generator
from leakbench.training import Batch, capture, run_round

SEED = 7
POINT = LeakPoint()


class ContractBreach(AssertionError):
    """A plugin breaks a promise of `leakbench.contracts`."""


def check_plugin(kind: registry.Kind, name: str) -> str:
    """Import a plugin and run its contract tests with default parameters; "" or what is wrong."""
    try:
        plugin = registry.load(kind, name)()
        if kind == "attacks":
            check_attack(plugin)
        else:
            check_defense(plugin)
    except LeakbenchError as error:
        return str(error)
    except (Exception, SystemExit) as error:  # noqa: BLE001  foreign code may fail in any way: that is the answer
        return one_line(error)
    return ""


# ------------------------------------------------------------------------------ attacks


@dataclass(slots=True)
class _Counting:
    """A simulate that counts the evaluations it gives."""

    inner: Simulate
    rows: int = 0

    def __call__(
        self,
        inputs: Tensor,
        labels: Tensor,
        rows: Tensor,
        observation: int = 0,
        *,
        local_steps: LocalSteps = "unroll",
    ) -> Gradients:
        self.rows += len(rows.unique())
        return self.inner(inputs, labels, rows, observation, local_steps=local_steps)


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

    A field named `steps` is set to 2, so that slow attacks are checked in seconds.

    Raises:
        ContractBreach: a promise is broken.
    """
    _check_class(attack, Attack)
    if "steps" in {item.name for item in dataclasses.fields(cast(Any, attack))}:
        attack = cast(Attack, dataclasses.replace(cast(Any, attack), steps=2))
    offer = _accepted(attack)
    leak, counter = _leak(range(3), offer)
    before = _copies(leak)
    random_state = torch.random.get_rng_state()
    watch = _Watching()
    result = attack.reconstruct(leak, _streams(range(3)), watch)
    _require(
        torch.equal(random_state, torch.random.get_rng_state()),
        "the attack draws from torch's global generator; draw from `streams`",
    )
    _require(_unchanged(leak, before), "the attack changes the leak it is given")
    _check_reconstruction(result, leak)
    _require(
        int(result.evaluations.sum()) >= counter.rows,
        f"{counter.rows} gradients were simulated, only {int(result.evaluations.sum())} counted",
    )
    for row, steps in watch.steps.items():
        _require(steps == sorted(steps), f"watch got steps {steps} of victim {row} out of order")
    again = attack.reconstruct(_leak(range(3), offer)[0], _streams(range(3)), _Watching())
    _require(_same(result, again), "two runs on the same leak and streams differ")
    alone = attack.reconstruct(_leak([1], offer)[0], _streams([1]), _Watching())
    _require(
        torch.equal(alone.inputs[0], result.inputs[1]),
        "a victim's result depends on its neighbours in the batch (pad calls to a multiple of 8)",
    )
    start = attack.start(leak, _streams(range(3)))
    if start is not None:
        _require(torch.equal(start, result.start_inputs), "start() is not where the attack began")


@dataclass(frozen=True, slots=True)
class _Offer:
    """What leaks, and what the threat model grants."""

    model: str = "cnn2"
    granted: bool = False


OFFERS = (_Offer(), _Offer(granted=True), _Offer(model="mlp"))


def _accepted(attack: Attack) -> _Offer:
    """The first offer that the attack does not refuse: some need grants, some a dense first layer.

    Raises:
        LeakbenchError: the attack's own, if it refuses all.
    """
    refusals = []
    for offer in OFFERS:
        try:
            attack.reconstruct(_leak([0], offer)[0], _streams([0]), _Watching())
        except LeakbenchError as error:
            refusals.append(error)
        else:
            return offer
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
        _require(
            tuple(value.shape) == wanted, f"{name} has shape {tuple(value.shape)}, not {wanted}"
        )
    _require(len(result.status) == n, f"{len(result.status)} statuses for {n} victims")
    allowed = {"converged", "steps", "nan"}
    _require(set(result.status) <= allowed, f"status {result.status} is not among {allowed}")
    _require(
        bool(torch.isfinite(result.inputs).all()),
        "inputs are not finite: return the best finite iterate and say status 'nan'",
    )
    for name, value in (("steps", result.steps), ("evaluations", result.evaluations)):
        _require(bool((value >= 0).all()), f"{name} must not be negative")
    labels = result.labels
    _require(
        not labels.is_floating_point() and bool(((labels >= 0) & (labels < leak.classes)).all()),
        f"labels must be class indices below {leak.classes}",
    )


def _setting(name: str = "cnn2") -> tuple[Model, dict[str, Tensor], Tensor, Tensor]:
    """A network with U(-0.5, 0.5) weights and the first eight candidate digits."""
    digits = load("mnist")
    model = models.build(name, digits.input_shape, digits.classes)
    weights = model.init(generator(SEED, "weights"), torch.float32)
    return model, weights, digits.candidates[:8], digits.candidate_labels[:8]


def _leak(victims: range | list[int], offer: _Offer) -> tuple[Leak, _Counting]:
    """An undefended type-2 leak of these digits."""
    model, weights, images, labels = _setting(offer.model)
    where = torch.tensor([(0, victim) for victim in victims])
    batch = Batch(inputs=images[None], labels=labels[None])
    gradients = capture(
        model, weights, [batch], Defense(), Context(batch_size=len(images)), POINT, where
    )
    observations = (Observation(weights=weights, gradients=gradients),)
    nobody = torch.zeros(len(victims), dtype=torch.int64)
    simulate = _Counting(simulator(model, observations, [Replay(defense=Defense())], nobody, POINT))
    leak = Leak(
        model=model,
        observations=observations,
        simulate=simulate,
        point=POINT,
        batch_size=1,
        input_shape=tuple(images.shape[1:]),
        input_range=(0.0, 1.0),
        classes=10,
    )
    if offer.granted:
        leak = dataclasses.replace(
            leak,
            labels=labels[list(victims), None],
            candidates=images,
            candidate_labels=labels,
            public=load("mnist").public[:8],
        )
    return leak, simulate


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
    """Hooks on the whole path: shapes, determinism, no mutation, replay, independence of clients.

    Raises:
        ContractBreach: a promise is broken.
    """
    _check_class(defense, Defense)
    _require(
        defense.granularity in get_args(Granularity),
        f"granularity '{defense.granularity}' is not one of {get_args(Granularity)}",
    )
    model, weights, images, labels = _setting()
    before = {name: value.clone() for name, value in weights.items()}
    defense.noise_std(weights, defense.init(weights), Context(batch_size=len(images)))
    for hook, axes, tensors in _hook_inputs(model, weights, images, labels):
        _check_hook(defense, hook, Gradients(tensors, axes), weights, len(images))
    for observer in get_args(Observer):
        promise = defense.guarantee(observer, weights, Setting(batch_size=len(images)))
        _require(isinstance(promise, Guarantee), f"guarantee('{observer}') is no Guarantee")
        _require(
            promise.level != "none" or bool(promise.reason),
            f"guarantee('{observer}') is 'none' without a reason",
        )
    batch = Batch(inputs=images[None], labels=labels[None])
    done = run_round(
        model, weights, [batch, batch], defense, defense.init(weights),
        Context(batch_size=len(images), noise=NoiseStreams(SEED, ("check",))),
    )  # fmt: skip
    _require(
        done.weights is not None
        and all(done.weights[k].shape == v.shape for k, v in weights.items()),
        "a round of two local steps with this defense does not give back weights",
    )
    _check_replay(defense, model, weights, images, labels)
    _require(
        all(torch.equal(value, before[name]) for name, value in weights.items()),
        "the defense changes the weights it is given",
    )


HookInput = tuple[str, tuple[Any, ...], dict[str, Tensor]]


def _hook_inputs(model: Model, weights: Weights, images: Tensor, labels: Tensor) -> list[HookInput]:
    """Real gradients of two clients for every hook."""
    from leakbench.gradients import per_example

    both = per_example(
        model, weights, torch.stack([images, images.flip(0)]), torch.stack([labels, labels.flip(0)])
    )
    mean = both.mean("example")
    one = ("client",)
    return [
        ("on_examples", both.axes, dict(both.tensors)),
        ("on_batch", one, dict(mean.tensors)),
        ("on_update", one, dict(mean.tensors)),
        ("on_receipt", one, dict(mean.tensors)),
    ]


def _check_hook(
    defense: Defense, hook: str, given: Gradients, weights: Weights, batch_size: int
) -> None:
    noise = NoiseStreams(SEED, ("check",))
    context = Context(batch_size=batch_size, clients=(0, 1), noise=noise)
    before = {k: v.clone() for k, v in given.tensors.items()}
    random_state = torch.random.get_rng_state()

    def call(gradients: Gradients, context: Context) -> Gradients:
        state = defense.init(weights)
        if hook == "on_batch":  # a defense may count on its example hook having run before
            examples = gradients.map(lambda _, value: value[:, None].repeat_interleave(2, dim=1))
            _, state = defense.on_examples(
                Gradients(examples.tensors, ("client", "example")), state, context
            )
        shown, _ = getattr(defense, hook)(gradients, state, context)
        return cast(Gradients, shown)

    shown = call(given, context)
    _require(
        torch.equal(random_state, torch.random.get_rng_state()),
        f"{hook} draws from torch's global generator; draw from `context`",
    )
    _require(
        all(torch.equal(v, given.tensors[k]) for k, v in before.items()),
        f"{hook} changes the gradients it is given",
    )
    _require(
        shown.axes == given.axes
        and {k: v.shape for k, v in shown.tensors.items()}
        == {k: v.shape for k, v in given.tensors.items()},
        f"{hook} changes names, axes or shapes of the gradients",
    )
    _require(_equal(shown, call(given, context)), f"{hook} gives two answers to one question")
    alone = call(given.select(torch.tensor([1])), dataclasses.replace(context, clients=(1,)))
    _require(
        _equal(alone, shown.select(torch.tensor([1]))),
        f"{hook}: what a client shows depends on which other clients there are",
    )
    quiet = dataclasses.replace(context, noise=None, observation=given)
    _require(
        _equal(call(given, quiet), call(given, quiet)),
        f"{hook} is random in a replay without noise",
    )


def _check_replay(
    defense: Defense, model: Model, weights: Weights, images: Tensor, labels: Tensor
) -> None:
    """An adaptive attacker differentiates the replay."""
    inputs = images[:2, None].clone().requires_grad_()
    batch = Batch(inputs=images[None], labels=labels[None])
    context = Context(batch_size=len(images))
    noisy = dataclasses.replace(context, noise=NoiseStreams(SEED, ("check",)))
    where = torch.tensor([(0, 0), (0, 1)])
    state = defense.init(weights)
    seen = capture(model, weights, [batch], defense, noisy, POINT, where, state=state)
    replay = Replay(defense=defense, state=state, context=context)
    simulate = simulator(
        model, (Observation(weights=weights, gradients=seen),), [replay],
        torch.zeros(2, dtype=torch.int64), POINT,
    )  # fmt: skip
    shown = simulate(inputs, labels[:2, None], torch.arange(2)).flatten()
    _require(shown.requires_grad, "the replay is not differentiable in the inputs")
    slope = torch.autograd.grad(shown.square().sum(), inputs)[0]
    _require(bool(torch.isfinite(slope).all()), "the replay has a derivative that is not finite")


# ------------------------------------------------------------------------------ both


def _check_class(plugin: Any, family: type) -> None:
    kind = type(plugin)
    _require(isinstance(plugin, family), f"{kind.__name__} does not derive from {family.__name__}")
    _require(
        dataclasses.is_dataclass(kind) and cast(Any, kind).__dataclass_params__.frozen,
        f"{kind.__name__} must be a dataclass(frozen=True, kw_only=True)",
    )
    _require(isinstance(kind.name, str) and bool(kind.name), f"{kind.__name__} has no name")
    try:
        kind(there_is_no_such_parameter=1)
    except TypeError:
        return
    raise ContractBreach(f"{kind.__name__} accepts a hyper-parameter that it does not have")


def _equal(one: Gradients, two: Gradients) -> bool:
    return all(torch.equal(v, two.tensors[k]) for k, v in one.tensors.items())


def _require(holds: bool, promise: str) -> None:
    if not holds:
        raise ContractBreach(promise)
