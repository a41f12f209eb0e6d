"""Makes a leak of given examples, by the same path as every trial: all that an attack is given.

`leakbench.leak` builds on it for modules and data of one's own, and remembers the truth.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import get_args

import torch
from torch import Tensor

from leakbench.contracts import (
    Defense,
    Gradients,
    Leak,
    LeakPoint,
    Model,
    Observation,
    Weights,
)
from leakbench.data.features import Feature
from leakbench.errors import LeakbenchError, require_at_least, unknown_name
from leakbench.leaking import Granted, Look, Tap
from leakbench.parameters import require_in
from leakbench.spec import Grant, Knowledge
from leakbench.streams import NoiseStreams
from leakbench.training import Batch, public_gradients

EXAMPLE = LeakPoint()
"""The gradient of a single example, inside a local step."""


def capture_leak(
    model: Model,
    x: Tensor,
    y: Tensor,
    *,
    weights: Weights | Sequence[Weights],
    defense: Defense | None = None,
    knowledge: Knowledge = "naive",
    point: LeakPoint = EXAMPLE,
    local_steps: int = 1,
    learning_rate: float = 0.1,
    rounds: int = 1,
    victims: Tensor | None = None,
    grants: Collection[Grant] = (),
    candidates: tuple[Tensor, Tensor] | None = None,
    public: Tensor | None = None,
    public_labels: Tensor | None = None,
    input_range: tuple[float, float] = (0.0, 1.0),
    classes: int | None = None,
    seed: int = 0,
    axes: tuple[str | int, ...] = (),
    features: tuple[Feature, ...] = (),
) -> Leak:
    """Train on (x, y) with a defense in place, read gradients, and give an attack what it may know.

    Args:
        model: a network that takes its weights as an argument; `modules.ModuleModel` makes one of a
            `torch.nn.Module`. Its loss is what is trained with.
        x, y: (clients, examples, *input shape) and labels (clients, examples), in the order of the
            local steps; or (examples, *input shape) and (examples,) of one client. At the tap of
            single examples every example is a victim, elsewhere every client is one.
        weights: of the model; several are as many looks at the same victims, in successive rounds
            from that of `point` on, each with noise of its own.
        defense: what protects the training; None: nothing.
        knowledge: "naive" ignores the defense; "adaptive" replays it, and knows its public noise.
        point: where gradients are read.
        local_steps: L behind an update (types 0 and 1).
        learning_rate: of the local steps.
        rounds: planned ones, for defenses that follow a schedule.
        victims: at the tap of single examples, (v, 2) pairs (client, place in his batch) of those
            to reconstruct; None: all, client after client.
        grants: what the threat model hands out of labels, candidates and public inputs.
        candidates: (N, *input shape) inputs and (N,) labels.
        public, public_labels: (m, *input shape) and (m,); some defenses look at their gradients,
            whoever else is granted the inputs.
        input_range, classes: public facts; classes None: as many as the model's head has outputs,
            two if it has one.
        seed, axes: name the streams of noise, which is the same for every defense.
        features: what the columns of a row of a table mean; a public fact.

    Raises:
        LeakbenchError: shapes that do not fit each other, local steps at a type-2 tap, an unknown
            knowledge or grant, a grant of what is not there, or what the defense refuses.
    """
    if knowledge not in ("naive", "adaptive"):
        raise unknown_name("knowledge", knowledge, ("naive", "adaptive"), "leak")
    views = capture_views(
        model, x, y,
        weights=weights, defense=defense, point=point, local_steps=local_steps,
        learning_rate=learning_rate, rounds=rounds, victims=victims, grants=grants,
        candidates=candidates, public=public, public_labels=public_labels,
        input_range=input_range, classes=classes, seed=seed, axes=axes, features=features,
        attackers=(knowledge,),
    )  # fmt: skip
    return views[knowledge]


def capture_views(
    model: Model,
    x: Tensor,
    y: Tensor,
    *,
    weights: Weights | Sequence[Weights],
    defense: Defense | None = None,
    point: LeakPoint = EXAMPLE,
    local_steps: int = 1,
    learning_rate: float = 0.1,
    rounds: int = 1,
    victims: Tensor | None = None,
    grants: Collection[Grant] = (),
    candidates: tuple[Tensor, Tensor] | None = None,
    public: Tensor | None = None,
    public_labels: Tensor | None = None,
    input_range: tuple[float, float] = (0.0, 1.0),
    classes: int | None = None,
    seed: int = 0,
    axes: tuple[str | int, ...] = (),
    features: tuple[Feature, ...] = (),
    sent: Mapping[str, Tensor] | None = None,
    attackers: Collection[Knowledge] = ("naive", "adaptive"),
) -> dict[Knowledge, Leak]:
    """The same gradients as a naive and as an adaptive attacker are given them.

    Args:
        sent: parameter name -> (victims, *its shape) in the units of a gradient, what a training
            really gave away in the first look; nothing is simulated then but the attacker's view.
        attackers: which of the two are wanted.

    The others, and Raises: as `capture_leak`.
    """
    require_at_least("leak", 1, local_steps=local_steps, rounds=rounds)
    require_in("leak", "(0, inf)", learning_rate=learning_rate)
    if y.ndim == 1:
        x, y = x[None], y[None]
    if y.ndim != 2 or x.shape[:2] != y.shape:
        raise LeakbenchError(
            f"leak: x {tuple(x.shape)} and y {tuple(y.shape)} do not belong together; allowed: "
            "(clients, examples, *input shape) and (clients, examples)"
        )
    if point.type == 2 and local_steps != 1:
        raise LeakbenchError(
            f"leak: {local_steps} local steps at a type-2 tap, which reads the gradient of one; "
            "allowed: 1"
        )
    if y.shape[1] % local_steps:
        raise LeakbenchError(
            f"leak: {y.shape[1]} examples of a client make no {local_steps} local steps of one "
            "size; allowed: a multiple"
        )
    example_view = point.type == 2 and point.view == "example"
    if victims is None and example_view:
        victims = torch.cartesian_prod(torch.arange(y.shape[0]), torch.arange(y.shape[1]))
    if victims is not None and not example_view:
        raise LeakbenchError(f"leak: victims are chosen at the tap of single examples, not {point}")
    defense = Defense() if defense is None else defense
    tap = Tap(
        model=model,
        point=point,
        batch_size=y.shape[1] // local_steps,
        local_steps=local_steps,
        learning_rate=learning_rate,
        rounds=rounds,
    )
    batches = [
        Batch(inputs=some, labels=theirs)
        for some, theirs in zip(
            x.chunk(local_steps, dim=1), y.chunk(local_steps, dim=1), strict=True
        )
    ]
    known_gradients = None
    if public is not None and public_labels is not None:
        known_gradients = public_gradients(model, public, public_labels)
    several = [weights] if isinstance(weights, Mapping) else list(weights)
    if not several:
        raise LeakbenchError("leak: weights are of no look; give those of one at least")
    seen: dict[Knowledge, list[Observation]] = {knowledge: [] for knowledge in attackers}
    looks = []
    for number, used in enumerate(several):
        begun = tap.begin(defense, used)
        look = tap.look(defense, used, begun, point.round + number, known_gradients)
        if sent is not None and not number:
            gradients = Gradients(dict(sent), ("client",))
        else:
            gradients = tap.capture(
                defense, look, batches,
                clients=range(len(y)),
                noise=NoiseStreams(seed, axes + (("look", number) if number else ())),
                victims=victims,
            )  # fmt: skip
        for knowledge, observations in seen.items():
            replay = tap.naive_replay(look) if knowledge == "naive" else tap.replay(defense, look)
            observations.append(tap.observation(used, gradients, [replay]))
        looks.append(look)
    labels = y if victims is None else y[victims[:, 0], victims[:, 1]][:, None]
    granted = _granted(grants, labels, candidates, public)
    return {
        knowledge: tap.leak(
            observations,
            round=point.round,
            input_shape=tuple(x.shape[2:]),
            input_range=input_range,
            classes=_classes(model, several[0]) if classes is None else classes,
            noise_std=(
                None
                if knowledge == "naive"
                else _known_noise(tap, defense, looks[0], observations[0])
            ),
            granted=granted,
            features=features,
        )
        for knowledge, observations in seen.items()
    }


def _classes(model: Model, weights: Weights) -> int:
    if model.head is None:
        raise LeakbenchError("leak: the model names no head to count classes by; give `classes`")
    return max(len(weights[model.head]), 2)


def _known_noise(tap: Tap, defense: Defense, look: Look, seen: Observation) -> dict[str, Tensor]:
    """(n,) std of the noise on each tensor, nan where it is not published."""
    public = tap.noise_std(defense, look) or {}
    return {
        name: value.new_full((len(value),), public.get(name, math.nan))
        for name, value in seen.gradients.tensors.items()
    }


def _granted(
    grants: Collection[Grant],
    labels: Tensor,
    candidates: tuple[Tensor, Tensor] | None,
    public: Tensor | None,
) -> Granted:
    found = Granted()
    for grant in grants:
        if grant not in get_args(Grant):
            raise unknown_name("grant", grant, get_args(Grant), "leak")
    if "labels" in grants:
        found["labels"] = labels
    if "candidates" in grants:
        if candidates is None:
            raise LeakbenchError("leak: 'candidates' are granted, and there are none")
        found["candidates"], found["candidate_labels"] = candidates
    if "public" in grants:
        if public is None:
            raise LeakbenchError("leak: 'public' inputs are granted, and there are none")
        found["public"] = public
    return found
