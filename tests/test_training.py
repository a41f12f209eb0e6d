"""The training path: hooks and taps in order, plain autograd as the reference, exact replays."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from leakbench import data
from leakbench.architectures import build
from leakbench.contracts import (
    Context,
    Defense,
    Gradients,
    LeakPoint,
    LocalSteps,
    Model,
    Observation,
    Replay,
    State,
    Weights,
)
from leakbench.defenses.adaclip import AdaClip
from leakbench.defenses.dp_baseline import DPBaseline
from leakbench.defenses.dp_dyn import DPDynSSigma
from leakbench.defenses.none import NoDefense
from leakbench.defenses.quantile_clip import QuantileClip
from leakbench.gradients import of_batch, per_example
from leakbench.matching import squared_distance
from leakbench.models.sigmoid import Convolution, SigmoidNet
from leakbench.simulation import Simulator
from leakbench.streams import NoiseStreams, generator
from leakbench.training import Batch, Round, capture, run_round

RATE = 0.1
EXAMPLE, BATCH = LeakPoint(), LeakPoint(view="batch")
UPDATE, RECEIPT = LeakPoint(type=1), LeakPoint(type=0)
MODEL = build("lenet_dlg", (1, 28, 28), 10)


def draw(model: SigmoidNet, dtype: torch.dtype = torch.float32, seed: int = 3) -> dict[str, Tensor]:
    return model.init(generator(seed, "weights"), dtype)


def digits(
    clients: int,
    size: int,
    steps: int = 1,
    dtype: torch.dtype = torch.float32,
    *,
    full: bool = True,
) -> list[Batch]:
    """Batches of different real digits for every client and step; without `full` client c has
    `size - c` examples and nan pictures as padding."""
    dataset = data.load("mnist")
    images = dataset.candidates[: steps * clients * size].to(dtype)
    images = images.reshape(steps, clients, size, 1, 28, 28).clone()
    labels = dataset.candidate_labels[: steps * clients * size].reshape(steps, clients, size)
    mask = torch.arange(size) < size - torch.arange(clients)[:, None]
    if full:
        return [Batch(inputs=x, labels=y) for x, y in zip(images, labels, strict=True)]
    images[:, ~mask] = torch.nan
    return [Batch(inputs=x, labels=y, mask=mask) for x, y in zip(images, labels, strict=True)]


def equal(one: Gradients, other: Gradients) -> bool:
    return one.axes == other.axes and all(
        torch.equal(value, other.tensors[name]) for name, value in one.tensors.items()
    )


def close(one: Weights, other: Weights, tolerance: float) -> None:
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], rtol=tolerance, atol=tolerance)


# ---------------------------------------------------------------------------- hooks and taps


@dataclass(frozen=True)
class Recorder(Defense):
    """Adds a number of its own at every hook and counts in its state, so that gradients tell
    which hooks they went through."""

    name: ClassVar[str] = "recorder"
    calls: list[tuple[str, int, tuple[str, ...], int]] = field(default_factory=list)
    shown: list[Gradients] = field(default_factory=list)

    def init(self, weights: Weights) -> int:
        return 0

    def _hook(
        self, name: str, gradients: Gradients, state: int, context: Context
    ) -> tuple[Gradients, int]:
        shown = gradients.map(lambda _, value: value + 1.0)
        self.calls.append((name, context.iteration, gradients.axes, state))
        self.shown.append(shown)
        return shown, state + 1

    def on_examples(
        self, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        return self._hook("on_examples", gradients, state, context)

    def on_batch(
        self, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        return self._hook("on_batch", gradients, state, context)

    def on_update(
        self, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        return self._hook("on_update", gradients, state, context)

    def on_receipt(
        self, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        return self._hook("on_receipt", gradients, state, context)


class Rows(Defense):
    """Asks for the gradients of single examples and leaves them as they are."""

    name: ClassVar[str] = "rows"

    def on_examples(
        self, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        return gradients, state


class BatchRecorder(Recorder):
    """The same for a defense that never asks for per-example gradients."""

    @property
    def row(self) -> None:
        """Its example hook is not called."""


def path(defense: Defense, batches: Sequence[Batch], point: LeakPoint | None, stop: bool) -> Round:
    weights = draw(MODEL)
    context = Context(batch_size=1, noise=None, clients=tuple(range(len(batches[0].inputs))))
    return run_round(
        MODEL, weights, batches, defense, defense.init(weights), context,
        learning_rate=RATE, point=point, stop_at_tap=stop,
    )  # fmt: skip


def local_hooks(steps: int) -> list[tuple[str, int, tuple[str, ...]]]:
    return [
        call
        for step in range(steps)
        for call in (
            ("on_examples", step, ("client", "example")),
            ("on_batch", step, ("client",)),
        )
    ]


ENDING = [("on_update", 0, ("client",)), ("on_receipt", 0, ("client",))]

# Leak point -> hooks that ran before it, of three local steps.
TAPS = [
    (EXAMPLE, local_hooks(1)[:1]),
    (BATCH, local_hooks(1)),
    (replace(EXAMPLE, iteration=2), local_hooks(3)[:-1]),
    (replace(BATCH, iteration=1), local_hooks(2)),
    (UPDATE, local_hooks(3) + ENDING[:1]),
    (RECEIPT, local_hooks(3) + ENDING),
]


def test_hooks_run_in_order_and_pass_the_state_on() -> None:
    recorder = Recorder()
    done = path(recorder, digits(2, 3, steps=3), None, False)
    assert [call[:3] for call in recorder.calls] == local_hooks(3) + ENDING
    assert [call[3] for call in recorder.calls] == list(range(8))
    assert done.state == 8
    assert done.tapped is None


@pytest.mark.parametrize(("point", "before"), TAPS, ids=lambda value: str(value)[:60])
def test_tap_reads_after_its_hook(
    point: LeakPoint, before: list[tuple[str, int, tuple[str, ...]]]
) -> None:
    batches = digits(2, 3, steps=3)
    whole, stopped = Recorder(), Recorder()
    full = path(whole, batches, point, False)
    short = path(stopped, batches, point, True)
    assert [call[:3] for call in whole.calls] == local_hooks(3) + ENDING
    assert [call[:3] for call in stopped.calls] == before
    assert full.tapped is not None and short.tapped is not None
    assert equal(short.tapped, full.tapped)
    assert equal(full.tapped, whole.shown[len(before) - 1])
    assert short.weights is None


def test_a_defense_without_rows_has_its_example_hook_skipped() -> None:
    """The tap of an example then sees what it would without a defense."""
    batches = digits(2, 3)
    skipped, tapped = BatchRecorder(), BatchRecorder()
    path(skipped, batches, BATCH, False)
    seen = path(tapped, batches, EXAMPLE, False).tapped
    assert [call[0] for call in skipped.calls] == ["on_batch", "on_update", "on_receipt"]
    assert tapped.calls[0][0] == "on_batch"
    plain = path(NoDefense(), batches, EXAMPLE, False).tapped
    assert seen is not None and plain is not None and equal(seen, plain)


def test_hooks_see_their_place_on_the_path() -> None:
    """A leak in a later round starts counting iterations where the context says."""
    recorder, weights = Recorder(), draw(MODEL)
    run_round(
        MODEL, weights, digits(1, 2, steps=2), recorder, 0,
        Context(batch_size=1, clients=(0,), noise=None, round=4, iteration=7),
        point=LeakPoint(round=4, iteration=8), stop_at_tap=True,
    )  # fmt: skip
    assert [call[:2] for call in recorder.calls] == [
        ("on_examples", 7),
        ("on_batch", 7),
        ("on_examples", 8),
    ]


def test_noise_of_local_steps_is_independent() -> None:
    """The second step must not add the noise of the first again."""
    batches = digits(1, 2, steps=2)
    weights = draw(MODEL)
    defense = DPBaseline(noise_multiplier=6.0)
    silent = replace(defense, noise_multiplier=0.0)
    noise = []
    for iteration in (0, 1):
        point = LeakPoint(iteration=iteration)
        # With no learning the weights of both steps, and so the clipped gradients, are the same.
        seen = [
            run_round(
                MODEL, weights, [batches[0], batches[0]], which, None,
                Context(clients=(0,), batch_size=2, noise=NoiseStreams(0, ("mnist",))),
                learning_rate=0.0, point=point, stop_at_tap=True,
            ).tapped
            for which in (defense, silent)
        ]  # fmt: skip
        assert seen[0] is not None and seen[1] is not None
        noise.append((seen[0].flatten() - seen[1].flatten()).flatten())
    correlation = torch.corrcoef(torch.stack(noise))[0, 1]
    assert abs(float(correlation)) < 5 / len(noise[0]) ** 0.5


# ---------------------------------------------------------------------------- the reference


def reference_gradients(
    model: Model, weights: Weights, batch: Batch, client: int
) -> list[dict[str, Tensor]]:
    """Gradient of every example of a client, one torch.autograd call each."""
    rows = range(batch.inputs.shape[1])
    if batch.mask is not None:
        rows = [row for row in rows if batch.mask[client, row]]
    found = []
    for row in rows:
        leaves = {k: v.detach().clone().requires_grad_() for k, v in weights.items()}
        logits = model.logits(leaves, batch.inputs[client, row][None])
        loss = F.cross_entropy(logits, batch.labels[client, row][None])
        grads = torch.autograd.grad(loss, list(leaves.values()))
        found.append(dict(zip(leaves, grads, strict=True)))
    return found


def average(items: Sequence[Weights]) -> dict[str, Tensor]:
    return {k: sum((item[k] for item in items[1:]), items[0][k]) / len(items) for k in items[0]}


def reference_updates(
    model: Model, weights: Weights, batches: Sequence[Batch]
) -> list[dict[str, Tensor]]:
    """dW of every client after one local SGD step a batch."""
    updates = []
    for client in range(len(batches[0].inputs)):
        local = dict(weights)
        for batch in batches:
            mean = average(reference_gradients(model, local, batch, client))
            local = {k: local[k] - RATE * mean[k] for k in local}
        updates.append({k: local[k] - weights[k] for k in local})
    return updates


@pytest.mark.parametrize("full", [True, False], ids=["full", "masked"])
@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("defense", [Rows(), NoDefense()], ids=["example", "batch"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_round_equals_plain_loops(
    defense: Defense, steps: int, clients: int, full: bool, dtype: torch.dtype, tolerance: float
) -> None:
    weights = draw(MODEL, dtype)
    batches = digits(clients, 4, steps, dtype, full=full)
    done = run_round(
        MODEL, weights, batches, defense, None,
        Context(batch_size=1, noise=None, clients=tuple(range(clients))),
        learning_rate=RATE, point=RECEIPT,
    )  # fmt: skip
    updates = reference_updates(MODEL, weights, batches)
    assert done.tapped is not None and done.weights is not None
    for client, update in enumerate(updates):
        close({k: v[client] for k, v in done.tapped.tensors.items()}, update, tolerance)
    mean = average(updates)
    close(done.weights, {k: weights[k] + mean[k] for k in weights}, tolerance)


def test_one_undefended_step_is_the_mean_gradient() -> None:
    weights = draw(MODEL, torch.float64)
    batches = digits(3, 4, dtype=torch.float64)
    context = Context(batch_size=1, noise=None, clients=(0, 1, 2))
    leaks = [
        capture(MODEL, weights, batches, NoDefense(), context, point, learning_rate=RATE)
        for point in (RECEIPT, UPDATE, BATCH)
    ]
    assert equal(leaks[0], leaks[1])
    for client in range(3):
        mean = average(reference_gradients(MODEL, weights, batches[0], client))
        seen = {k: v[client] for k, v in leaks[2].tensors.items()}
        close(seen, mean, 1e-12)
        close({k: v[client] for k, v in leaks[0].tensors.items()}, mean, 1e-12)


def test_capture_returns_the_victims_asked_for() -> None:
    weights = draw(MODEL)
    batch = digits(3, 5)[0]
    where = torch.tensor([(2, 4), (0, 1), (2, 0)])
    context = Context(batch_size=1, noise=None, clients=(0, 1, 2))
    seen = capture(MODEL, weights, [batch], NoDefense(), context, EXAMPLE, where)
    assert seen.axes == ("client",)
    for row, (client, place) in enumerate(where.tolist()):
        expected = reference_gradients(MODEL, weights, batch, client)[place]
        close({k: v[row] for k, v in seen.tensors.items()}, expected, 1e-6)


# ---------------------------------------------------------------------------- per example


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("full", [True, False], ids=["full", "masked"])
@pytest.mark.parametrize("soft", [False, True], ids=["indices", "probabilities"])
def test_batch_gradient_is_the_mean_of_the_examples(stacked: bool, full: bool, soft: bool) -> None:
    batch = digits(3, 5, dtype=torch.float64, full=full)[0]
    weights = draw(MODEL, torch.float64)
    if stacked:
        sets = [draw(MODEL, torch.float64, seed) for seed in (3, 4, 5)]
        weights = {k: torch.stack([one[k] for one in sets]) for k in weights}
    labels = F.one_hot(batch.labels, 10).double() * 0.9 + 0.01 if soft else batch.labels
    examples = per_example(
        MODEL, weights, batch.inputs, labels, stacked=stacked, mask=batch.mask
    ).mean("example")
    whole = of_batch(MODEL, weights, batch.inputs, labels, stacked=stacked, mask=batch.mask)
    assert examples.axes == whole.axes
    close(examples.tensors, whole.tensors, 1e-12)


@pytest.mark.independent_rows
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["lenet_cpl", "cnn2"])
@pytest.mark.parametrize("data_set", ["mnist", "cifar10"])
def test_chunks_company_and_place_change_no_bit(
    name: str, data_set: str, dtype: torch.dtype
) -> None:
    images = data.load(data_set).candidates[:70].to(dtype)
    labels = data.load(data_set).candidate_labels[:70]
    model = build(name, tuple(images.shape[1:]), 10)
    weights = draw(model, dtype)

    def gradients(rows: Tensor, chunk_size: int | None = None) -> Gradients:
        whole = per_example(
            model, weights, images[rows][None], labels[rows][None], chunk_size=chunk_size
        )
        return Gradients({k: v[0] for k, v in whole.tensors.items()}, ("example",))

    everyone = torch.arange(70)
    whole = gradients(everyone)
    for chunk_size in (1, 7, 16, 23, 32, 64, 70, 256):
        assert equal(gradients(everyone, chunk_size), whole), f"chunk_size {chunk_size}"
    for size in (1, 2, 3, 8, 15, 16, 17, 40):
        some = torch.randperm(70, generator=torch.Generator().manual_seed(size))[:size]
        assert equal(gradients(some), whole.select(some)), f"{size} examples"


@pytest.mark.parametrize("chunk_size", [1, 4, 9, 100])
def test_chunks_of_stacked_clients_change_little(chunk_size: int) -> None:
    batch = digits(3, 4, dtype=torch.float64)[0]
    sets = [draw(MODEL, torch.float64, seed) for seed in (3, 4, 5)]
    weights = {k: torch.stack([one[k] for one in sets]) for k in sets[0]}
    whole = per_example(MODEL, weights, batch.inputs, batch.labels, stacked=True)
    parts = per_example(
        MODEL, weights, batch.inputs, batch.labels, stacked=True, chunk_size=chunk_size
    )
    close(parts.tensors, whole.tensors, 1e-12)


# ---------------------------------------------------------------------------- the attacker's copy


CLIPPING = DPBaseline(clip=1.0, noise_multiplier=0.0)
SEVERAL: list[Defense] = [
    NoDefense(),
    CLIPPING,
    QuantileClip(clip=0.5, noise_multiplier=0.0),
    AdaClip(clip=1.0, noise_multiplier=0.0),
    DPDynSSigma(clip=2.0, noise_multiplier=0.0),
]


def observe(
    defense: Defense, weights: Weights, point: LeakPoint, batch: Batch
) -> tuple[Gradients, Replay]:
    """What leaks of every client's batch (example view: of one example each), and its replay."""
    clients, size = batch.inputs.shape[:2]
    context = Context(noise=None, clients=tuple(range(clients)), batch_size=size)
    where = torch.stack([torch.arange(clients), torch.zeros(clients, dtype=torch.int64)], dim=1)
    state = defense.init(weights)
    seen = capture(
        MODEL, weights, [batch], defense, context, point, where, state=state, learning_rate=RATE
    )
    return seen, Replay(defense=defense, state=state, context=context)


def own_run(
    weights: Weights,
    seen: Gradients,
    replays: Sequence[Replay],
    replay_of: Tensor,
    point: LeakPoint,
    local_steps: int = 1,
) -> Callable[..., Gradients]:
    """The attacker's own run of the path behind what was seen."""
    run = Simulator(
        model=MODEL,
        replays=replays,
        replay_of=replay_of,
        point=point,
        local_steps=local_steps,
        learning_rate=RATE,
    )
    return Observation(weights=weights, gradients=seen, run=run).simulate


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("point", [EXAMPLE, BATCH, UPDATE, RECEIPT], ids=str)
@pytest.mark.parametrize("defense", [NoDefense(), CLIPPING], ids=["naive", "replay"])
def test_simulation_at_the_truth_is_the_leak(
    defense: Defense, point: LeakPoint, dtype: torch.dtype
) -> None:
    weights = draw(MODEL, dtype)
    size = 1 if point == EXAMPLE else 2
    batch = digits(7, size, dtype=dtype)[0]
    seen, replay = observe(defense, weights, point, batch)
    simulate = own_run(weights, seen, [replay], torch.zeros(7, dtype=torch.int64), point)
    simulated = simulate(batch.inputs, batch.labels, torch.arange(7))
    assert equal(simulated, seen)
    assert torch.equal(squared_distance(simulated, seen), torch.zeros(7, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_truth_is_exact_for_victims_of_large_batches(dtype: torch.dtype) -> None:
    """Captured in chunks among 150 others, simulated by three: still not a bit apart."""
    dataset = data.load("mnist")
    images, labels = dataset.candidates[:300].to(dtype), dataset.candidate_labels[:300]
    weights = draw(MODEL, dtype)
    batch = Batch(inputs=images.reshape(2, 150, 1, 28, 28), labels=labels.reshape(2, 150))
    where = torch.tensor([(0, 3), (1, 149), (1, 0)])
    seen = capture(
        MODEL,
        weights,
        [batch],
        CLIPPING,
        Context(batch_size=1, noise=None, clients=(0, 1)),
        EXAMPLE,
        where,
        chunk_size=64,
    )
    simulate = Observation(
        weights=weights,
        gradients=seen,
        run=Simulator(
            model=MODEL,
            replays=[
                Replay(
                    defense=CLIPPING,
                    state=None,
                    context=Context(batch_size=1, clients=(0,), noise=None),
                )
            ],
            replay_of=torch.zeros(3, dtype=torch.int64),
            point=EXAMPLE,
        ),
    ).simulate
    rows = where[:, 0] * 150 + where[:, 1]
    simulated = simulate(images[rows][:, None], labels[rows][:, None], torch.arange(3))
    assert equal(simulated, seen)


@pytest.mark.parametrize("point", [EXAMPLE, BATCH], ids=str)
def test_replays_of_several_defenses_do_not_mix(point: LeakPoint) -> None:
    weights = draw(MODEL)
    batch = digits(10, 1)[0]
    runs = [observe(defense, weights, point, batch) for defense in SEVERAL]
    replay_of = torch.tensor([3, 0, 1, 4, 2, 0, 1, 3, 2, 4])
    seen = Gradients(
        {
            k: torch.stack([runs[of][0].tensors[k][row] for row, of in enumerate(replay_of)])
            for k in weights
        },
        ("client",),
    )
    guess = torch.rand(batch.inputs.shape, generator=torch.Generator().manual_seed(2))
    everyone = torch.arange(10)
    replays = [run[1] for run in runs]
    run = Simulator(model=MODEL, replays=replays, replay_of=replay_of, point=point)
    together = Observation(weights=weights, gradients=seen, run=run)
    mixed = together.simulate(guess, batch.labels, everyone)
    for number, (_, replay) in enumerate(runs):
        run = replace(run, replays=[replay], replay_of=torch.zeros_like(replay_of))
        alone = replace(together, run=run)
        rows = everyone[replay_of == number]
        assert equal(alone.simulate(guess[rows], batch.labels[rows], rows), mixed.select(rows))
    assert equal(together.simulate(batch.inputs, batch.labels, everyone), seen)


def test_simulation_uses_the_weights_of_its_observation() -> None:
    batch = digits(4, 1)[0]
    observations = []
    for seed in (3, 4):
        weights = draw(MODEL, seed=seed)
        seen, replay = observe(NoDefense(), weights, EXAMPLE, batch)
        nobody = torch.zeros(4, dtype=torch.int64)
        run = Simulator(model=MODEL, replays=[replay], replay_of=nobody, point=EXAMPLE)
        observations.append(Observation(weights=weights, gradients=seen, run=run))
    for seen in observations:
        found = seen.simulate(batch.inputs, batch.labels, torch.arange(4))
        assert equal(found, seen.gradients)


@pytest.mark.parametrize("defense", SEVERAL, ids=lambda defense: defense.name)
@pytest.mark.parametrize("point", [EXAMPLE, BATCH, UPDATE], ids=str)
def test_simulation_is_differentiable(defense: Defense, point: LeakPoint) -> None:
    """Against finite differences along random directions."""
    model = SigmoidNet(
        input_shape=(1, 6, 6), classes=3, convolutions=(Convolution(channels=2, stride=2),)
    )
    weights = draw(model, torch.float64)
    image = data.load("mnist").candidates[:1, :, 8:20:2, 8:20:2].double()[None]
    labels = torch.tensor([[1]])
    where = torch.zeros(1, 2, dtype=torch.int64)
    state, context = defense.init(weights), Context(batch_size=1, clients=(0,), noise=None)
    seen = capture(
        model, weights, [Batch(inputs=image, labels=labels)], defense, context, point, where,
        state=state,
    )  # fmt: skip
    simulate = Observation(
        weights=weights,
        gradients=seen,
        run=Simulator(
            model=model,
            replays=[Replay(defense=defense, state=state, context=context)],
            replay_of=torch.zeros(1, dtype=torch.int64),
            point=point,
        ),
    ).simulate

    def leaked(inputs: Tensor) -> Tensor:
        return simulate(inputs, labels, torch.arange(1)).flatten()

    assert torch.autograd.gradcheck(leaked, image.clone().requires_grad_(), fast_mode=True)


def test_gradients_without_examples_count_for_nothing() -> None:
    """A client whose whole batch is padding takes a step of zero."""
    batch = digits(2, 3)[0]
    mask = torch.tensor([[True, True, False], [False, False, False]])
    weights = draw(MODEL)
    done = run_round(
        MODEL, weights, [replace(batch, mask=mask)], NoDefense(), None,
        Context(batch_size=1, noise=None, clients=(0, 1)),
        point=UPDATE,
    )  # fmt: skip
    assert done.tapped is not None
    flat = done.tapped.flatten()
    assert bool(flat[0].any()) and not bool(flat[1].any())


@pytest.mark.independent_rows
def test_a_replay_does_not_depend_on_how_many_victims_it_has() -> None:
    """Hooks see copies up to a multiple of 8: a lone victim is rounded like one among others."""
    digits = data.load("mnist")
    model = build("lenet_cpl", digits.input_shape, digits.classes)
    weights = model.init(generator(3, "weights"), torch.float32)
    images, labels = digits.candidates[:16], digits.candidate_labels[:16]
    defense = AdaClip()
    where = torch.stack([torch.zeros(16, dtype=torch.int64), torch.arange(16)], dim=1)
    batch = Batch(inputs=images[None], labels=labels[None])
    context = Context(clients=(0,), noise=None, batch_size=16)
    point = LeakPoint()
    seen = capture(
        model, weights, [batch], defense, context, point, where, state=defense.init(weights)
    )
    replay = Replay(defense=defense, state=defense.init(weights), context=context)
    simulate = Observation(
        weights=weights,
        gradients=seen,
        run=Simulator(
            model=model,
            replays=[
                Replay(
                    defense=Defense(),
                    state=None,
                    context=Context(batch_size=1, clients=(0,), noise=None),
                ),
                replay,
            ],
            replay_of=torch.tensor([0] * 8 + [1] * 8),
            point=point,
        ),
    ).simulate
    rows = torch.arange(16)
    together = simulate(images[:, None], labels[:, None], rows).flatten()
    for victim in range(8, 16):
        chosen = torch.tensor([*range(7), victim])  # one victim of this defense in the batch
        alone = simulate(images[chosen, None], labels[chosen, None], chosen).flatten()[-1]
        assert torch.equal(alone, together[victim])


# ---------------------------------------------------------------------------- several local steps

STEPS = [(1, 1), (1, 3), (2, 1), (2, 2), (3, 2)]


def joined(batches: Sequence[Batch]) -> tuple[Tensor, Tensor]:
    """Inputs and labels of all local steps as the attacker has them: one step after the other."""
    return (
        torch.cat([batch.inputs for batch in batches], dim=1),
        torch.cat([batch.labels for batch in batches], dim=1),
    )


def updated(
    batches: Sequence[Batch], weights: Weights, point: LeakPoint, *defenses: Defense
) -> tuple[Gradients, list[Replay], Tensor]:
    """Updates of clients who take turns with the defenses; their replays, and who has which."""
    clients, size = batches[0].inputs.shape[:2]
    replay_of = torch.arange(clients) % len(defenses)
    leaks, replays = [], []
    for defense in defenses:
        state = defense.init(weights)
        context = Context(noise=None, clients=tuple(range(clients)), batch_size=size)
        leaks.append(
            capture(
                MODEL, weights, batches, defense, context, point, state=state, learning_rate=RATE,
                chunk_size=256,
            )
        )  # fmt: skip
        replays.append(Replay(defense=defense, state=state, context=context))
    tensors = {
        name: torch.stack([leaks[of].tensors[name][row] for row, of in enumerate(replay_of)])
        for name in weights
    }
    return Gradients(tensors, ("client",)), replays, replay_of


@pytest.mark.parametrize("point", [UPDATE, RECEIPT], ids=str)
@pytest.mark.parametrize(("steps", "size"), STEPS)
def test_unrolled_steps_are_a_plain_loop_of_sgd(point: LeakPoint, steps: int, size: int) -> None:
    weights = draw(MODEL, torch.float64)
    batches = digits(3, size, steps, torch.float64)
    seen, replays, which = updated(batches, weights, point, Defense())
    simulate = own_run(weights, seen, replays, which, point, steps)
    # A guess, not the truth, and victims in another order.
    inputs, labels = joined(batches)
    inputs = torch.rand(inputs.shape, generator=torch.Generator().manual_seed(0)).double()
    rows = torch.tensor([2, 0])
    found = simulate(inputs[rows], labels[rows], rows)
    guessed = [
        Batch(inputs=x, labels=y)
        for x, y in zip(inputs[rows].split(size, 1), labels[rows].split(size, 1), strict=True)
    ]
    for row, update in enumerate(reference_updates(MODEL, weights, guessed)):
        wanted = {name: -value / (steps * RATE) for name, value in update.items()}
        close({name: value[row] for name, value in found.tensors.items()}, wanted, 1e-12)
    assert found.axes == ("client",)


@pytest.mark.parametrize("point", [UPDATE, RECEIPT], ids=str)
@pytest.mark.parametrize(("steps", "size"), STEPS)
@pytest.mark.parametrize("soft", [False, True], ids=["indices", "probabilities"])
def test_averaged_steps_are_one_gradient_of_all_examples(
    point: LeakPoint, steps: int, size: int, soft: bool
) -> None:
    weights = draw(MODEL, torch.float64)
    batches = digits(2, size, steps, torch.float64)
    seen, replays, which = updated(batches, weights, point, Defense())
    simulate = own_run(weights, seen, replays, which, point, steps)
    inputs, labels = joined(batches)
    targets = F.one_hot(labels, 10).double() * 0.9 + 0.01 if soft else labels
    found = simulate(inputs, targets, torch.arange(2), local_steps="average")
    for client in range(2):
        leaves = {k: v.clone().requires_grad_() for k, v in weights.items()}
        loss = F.cross_entropy(MODEL.logits(leaves, inputs[client]), targets[client])
        wanted = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))
        close({name: value[client] for name, value in found.tensors.items()}, wanted, 1e-12)
    if steps == 1:
        unrolled = simulate(inputs, targets, torch.arange(2), local_steps="unroll")
        assert equal(unrolled, found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("point", [UPDATE, RECEIPT], ids=str)
@pytest.mark.parametrize(
    "defenses", [(Defense(),), (CLIPPING,), tuple(SEVERAL)], ids=["naive", "replay", "several"]
)
def test_the_truth_is_at_distance_0_of_unrolled_steps_alone(
    defenses: tuple[Defense, ...], point: LeakPoint, dtype: torch.dtype
) -> None:
    weights = draw(MODEL, dtype)
    batches = digits(8, 2, 3, dtype)
    seen, replays, which = updated(batches, weights, point, *defenses)
    simulate = own_run(weights, seen, replays, which, point, 3)
    inputs, labels = joined(batches)
    everyone = torch.arange(8)
    unrolled = simulate(inputs, labels, everyone, local_steps="unroll")
    assert torch.equal(squared_distance(unrolled, seen), torch.zeros(8, dtype=dtype))
    averaged = simulate(inputs, labels, everyone, local_steps="average")
    assert bool((squared_distance(averaged, seen) > 1e-6).all())


def test_unrolled_steps_have_an_order_and_averaged_ones_have_none() -> None:
    weights = draw(MODEL, torch.float64)
    batches = digits(2, 2, 2, torch.float64)
    seen, replays, which = updated(batches, weights, RECEIPT, Defense())
    simulate = own_run(weights, seen, replays, which, RECEIPT, 2)
    inputs, labels = joined(batches)
    rows = torch.arange(2)
    within, across = [1, 0, 3, 2], [2, 3, 0, 1]
    close(simulate(inputs[:, within], labels[:, within], rows).tensors, seen.tensors, 1e-12)
    swapped = simulate(inputs[:, across], labels[:, across], rows)
    assert bool((squared_distance(swapped, seen) > 1e-6).all())
    one = simulate(inputs, labels, rows, local_steps="average")
    two = simulate(inputs[:, across], labels[:, across], rows, local_steps="average")
    close(one.tensors, two.tensors, 1e-12)


class BoundedUpdates(Defense):
    """Bounds every coordinate of the update, so that its length matters and not its direction."""

    name: ClassVar[str] = "bounded"

    def on_update(
        self, gradients: Gradients, state: State, context: Context
    ) -> tuple[Gradients, State]:
        return gradients.map(lambda _, value: value.clamp(-1e-3, 1e-3)), state


@pytest.mark.parametrize("steps", [1, 3])
def test_an_averaged_step_is_as_long_as_all_steps_together(steps: int) -> None:
    weights = draw(MODEL, torch.float64)
    batches = digits(2, 2, steps, torch.float64)
    seen, replays, which = updated(batches, weights, UPDATE, BoundedUpdates())
    simulate = own_run(weights, seen, replays, which, UPDATE, steps)
    inputs, labels = joined(batches)
    found = simulate(inputs, labels, torch.arange(2), local_steps="average")
    for client in range(2):
        whole = Batch(inputs=inputs[[client]], labels=labels[[client]])
        mean = average(reference_gradients(MODEL, weights, whole, 0))
        wanted = {
            name: (steps * RATE * value).clamp(-1e-3, 1e-3) / (steps * RATE)
            for name, value in mean.items()
        }
        close({name: value[client] for name, value in found.tensors.items()}, wanted, 1e-12)
        assert any(bool((mean[name] - wanted[name]).any()) for name in mean)


@pytest.mark.parametrize("local_steps", ["unroll", "average"])
@pytest.mark.parametrize("defense", [Defense(), CLIPPING], ids=["naive", "replay"])
@pytest.mark.parametrize("point", [UPDATE, RECEIPT], ids=str)
def test_simulated_steps_are_differentiable(
    defense: Defense, point: LeakPoint, local_steps: LocalSteps
) -> None:
    """Against finite differences, with a learning rate at which the second step matters."""
    model = SigmoidNet(
        input_shape=(1, 6, 6), classes=3, convolutions=(Convolution(channels=2, stride=2),)
    )
    weights = draw(model, torch.float64)
    images = data.load("mnist").candidates[:2, :, 8:20:2, 8:20:2].double()[None]
    labels, rate = torch.tensor([[1, 2]]), 2.0
    batches = [Batch(inputs=images[:, [i]], labels=labels[:, [i]]) for i in range(2)]
    seen = capture(
        model, weights, batches, defense,
        Context(batch_size=1, clients=(0,), noise=None),
        point, learning_rate=rate,
        state=defense.init(weights),
    )  # fmt: skip
    simulate = Observation(
        weights=weights,
        gradients=seen,
        run=Simulator(
            model=model,
            replays=[
                Replay(
                    defense=defense,
                    state=defense.init(weights),
                    context=Context(batch_size=1, clients=(0,), noise=None),
                )
            ],
            replay_of=torch.zeros(1, dtype=torch.int64),
            point=point,
            local_steps=2,
            learning_rate=rate,
        ),
    ).simulate

    def leaked(inputs: Tensor) -> Tensor:
        return simulate(inputs, labels, torch.arange(1), local_steps=local_steps).flatten()

    assert torch.autograd.gradcheck(leaked, images.clone().requires_grad_())
