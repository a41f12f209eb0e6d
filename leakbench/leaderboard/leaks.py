"""A pack's leaks as attacks of leakbench are given them: its own attacks play by the same rules."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

import torch
from torch import Tensor

from leakbench import architectures, registry
from leakbench.answers import check_answer
from leakbench.contracts import Attack, Defense, Gradients, Leak, LeakPoint, Model
from leakbench.errors import LeakbenchError, unknown_name
from leakbench.leaderboard import submissions
from leakbench.leaderboard.packs import SCHEMA, Network, OpenPack, PackedLeak
from leakbench.leaking import Granted, Tap
from leakbench.spec import Knowledge, View
from leakbench.streams import VictimStreams, opaque
from leakbench.weights import Scheme


def leak_of(opened: OpenPack, packed: PackedLeak, knowledge: Knowledge = "adaptive") -> Leak:
    """What an attack is given of one leak.

    Raises:
        LeakbenchError: a network or a defense that this leakbench builds in another way, or lacks.
    """
    if knowledge not in get_args(Knowledge):
        raise unknown_name("knowledge", knowledge, get_args(Knowledge), "leak")
    networks = [opened.pack.network(look.network) for look in packed.looks]
    model = _model(networks[0], packed)
    kind = cast("type[Defense]", registry.load("defenses", packed.defense.name))
    defense = kind(**packed.defense.parameters)
    if defense.needs_public and knowledge == "adaptive":
        raise LeakbenchError(
            f"leak '{packed.id}': defense '{packed.defense.name}' looks at public examples, which "
            'are not in a pack; allowed: knowledge "naive"'
        )
    tap = Tap(
        model=model,
        point=_point(packed),
        batch_size=_batch_size(packed),
        local_steps=packed.local_steps,
        learning_rate=packed.learning_rate or 1.0,
        rounds=packed.rounds,
    )
    observations = []
    for look, network in zip(packed.looks, networks, strict=True):
        names = [each.name for each in network.weights]
        weights = {name: _tensor(opened, f"weights/{network.id}/{name}") for name in names}
        gradients = Gradients(
            {name: _tensor(opened, f"gradients/{look.gradients}/{name}") for name in names},
            ("client",),
        )
        at = tap.look(defense, weights, tap.begin(defense, weights), look.round)
        replay = tap.naive_replay(at) if knowledge == "naive" else tap.replay(defense, at)
        observations.append(tap.observation(weights, gradients, [replay]))
    return tap.leak(
        observations,
        round=packed.looks[0].round,
        input_shape=packed.input_shape,
        input_range=(packed.input_range[0], packed.input_range[1]),
        classes=packed.classes,
        noise_std=_noise(packed, observations[0].gradients) if knowledge == "adaptive" else None,
        granted=_granted(opened, packed, observations[0].dtype),
        features=packed.features,
    )


def _point(packed: PackedLeak) -> LeakPoint:
    if packed.type not in (0, 1, 2):
        raise LeakbenchError(f"leak '{packed.id}': type {packed.type}; allowed: 0, 1, 2")
    if packed.view not in get_args(View):
        raise unknown_name("view", packed.view, get_args(View), f"leak '{packed.id}'")
    return LeakPoint(
        type=cast(Literal[0, 1, 2], packed.type),
        view=cast(View, packed.view),
        round=packed.looks[0].round,
    )


def _batch_size(packed: PackedLeak) -> int:
    """Examples of a local step; behind the gradient of a single one, itself."""
    if packed.batch_size % packed.local_steps:
        text = f"{packed.batch_size} examples make no {packed.local_steps} local steps of one size"
        raise LeakbenchError(f"leak '{packed.id}': {text}")
    return packed.batch_size // packed.local_steps


def _model(network: Network, packed: PackedLeak) -> Model:
    """The network, with parameters as the pack has them."""
    if network.scheme not in get_args(Scheme):
        raise unknown_name("scheme", network.scheme, get_args(Scheme), f"network '{network.id}'")
    model = architectures.build(
        network.name, packed.input_shape, packed.classes, cast(Scheme, network.scheme),
        network.parameters,
    )  # fmt: skip
    drawn = model.init(torch.Generator().manual_seed(0), torch.float32)
    found = {name: tuple(value.shape) for name, value in drawn.items()}
    if list(found.items()) != [(each.name, each.shape) for each in network.weights]:
        raise LeakbenchError(
            f"network '{network.id}': this leakbench builds '{network.name}' with other parameters"
        )
    return model


def _tensor(opened: OpenPack, name: str) -> Tensor:
    return torch.from_numpy(opened.arrays.load(name).copy())


def _noise(packed: PackedLeak, gradients: Gradients) -> dict[str, Tensor]:
    """(n,) std of the noise on each tensor, nan where it is not published."""
    known = packed.defense.noise_std or {}
    return {
        name: value.new_full((packed.victims,), known.get(name, math.nan))
        for name, value in gradients.tensors.items()
    }


def _granted(opened: OpenPack, packed: PackedLeak, dtype: torch.dtype) -> Granted:
    granted = Granted()
    if packed.labels:
        granted["labels"] = _tensor(opened, f"labels/{packed.id}").long()
    if packed.public:
        granted["public"] = _tensor(opened, f"public/{packed.public}").to(dtype)
    return granted


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What an attack made of the leaks it suits. inputs: by id of the leak (n, B, *input shape);
    labels: (n, B). skipped: id -> why not. evaluations: mean a gradient."""

    inputs: dict[str, Tensor]
    labels: dict[str, Tensor]
    skipped: dict[str, str]
    evaluations: float
    seconds: float


def play(
    opened: OpenPack, attack: Attack, knowledge: Knowledge = "adaptive", seed: int = 0
) -> Played:
    """Run an attack of leakbench on all leaks of a pack that it suits.

    Raises:
        LeakbenchError: it suits none, or breaks its contract; see also `leak_of`.
    """
    begun = time.perf_counter()
    inputs, labels, skipped = {}, {}, {}
    spent: list[int] = []
    for packed in opened.pack.leaks:
        leak = leak_of(opened, packed, knowledge)
        lacking = [each for each in attack.requires if getattr(leak, each) is None]
        reason = f"it must be granted '{lacking[0]}'" if lacking else attack.skip(leak.facts)
        if reason:
            skipped[packed.id] = reason
            continue
        result = attack.reconstruct(leak, _streams(packed, seed), _unwatched)
        check_answer(result, leak, attack.name)
        # A reconstruction that has left the finite numbers is none: its start stands for it.
        start = result.start_inputs.detach()
        inputs[packed.id] = torch.where(result.inputs.isfinite(), result.inputs.detach(), start)
        labels[packed.id] = result.labels.detach()
        spent += result.evaluations.tolist()
    if not inputs:
        raise LeakbenchError(f"{attack.name}: suits no leak: {'; '.join(set(skipped.values()))}")
    return Played(
        inputs=inputs,
        labels=labels,
        skipped=skipped,
        evaluations=sum(spent) / len(spent),
        seconds=time.perf_counter() - begun,
    )


def starts(
    opened: OpenPack, attack: Attack, knowledge: Knowledge = "adaptive", seed: int = 0
) -> dict[str, Tensor]:
    """Where `play` begins on every leak, by its id (n, B, *input shape): for another tool to begin
    there, too. Without those of which the attack has no start."""
    found = {}
    for packed in opened.pack.leaks:
        start = attack.start(leak_of(opened, packed, knowledge), _streams(packed, seed))
        if start is not None:
            found[packed.id] = start.detach()
    return found


def _streams(packed: PackedLeak, seed: int) -> VictimStreams:
    """An attack's random numbers for a leak."""
    return VictimStreams(0, tuple(opaque(seed, packed.id, row) for row in range(packed.victims)))


def submit(
    opened: OpenPack,
    attack: Attack,
    folder: Path,
    *,
    name: str,
    method: str,
    link: str = "",
    hardware: str = "",
    knowledge: Knowledge = "adaptive",
    seed: int = 0,
) -> Played:
    """`play`, and write what comes of it as a submission into a new folder.

    Raises:
        LeakbenchError: see `play`; the folder is there already.
    """
    played = play(opened, attack, knowledge, seed)
    submissions.write(
        folder,
        submissions.Submission(
            schema=SCHEMA, name=name, method=method, link=link,
            pack=opened.pack.checksum, knowledge=knowledge,
            budget=submissions.Budget(
                evaluations=played.evaluations, seconds=round(played.seconds, 1),
                hardware=hardware,
            ),
        ),
        {key: value.cpu().numpy() for key, value in played.inputs.items()},
        {key: value.cpu().numpy() for key, value in played.labels.items()},
    )  # fmt: skip
    return played


def _unwatched(
    rows: Tensor, steps: Tensor, evaluations: Tensor, inputs: Tensor, losses: Tensor
) -> None:
    """Nobody looks on."""
