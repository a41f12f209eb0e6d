"""The attackers that an audit sends, one release of one example each, and what they got."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from torch import Tensor, nn

from leakbench import api, attacking
from leakbench.attacking import Answer
from leakbench.audits.findings import PanelFinding, Pictures, Rate
from leakbench.audits.observing import Promise
from leakbench.contracts import Model, Weights
from leakbench.dp_config import DPConfig
from leakbench.errors import LeakbenchError
from leakbench.scoring import AttackResult
from leakbench.statistics import wilson

SMALL: Mapping[str, Mapping[str, Any]] = {
    "candidates": {},
    "gauss_newton": {"restarts": 4},
    "cpl": {"line_search": True, "restarts": 4},
    "gradinv": {"steps": 2000},
}
"""Who attacks networks of up to `_LARGE` parameters: the members of the panel."""

LARGE: Mapping[str, Mapping[str, Any]] = {
    "candidates": {},
    "analytic": {},
    "gradinv": {"steps": 500},
}
"""Who attacks larger ones: second order and line searches would take hours."""

_LARGE = 200_000
_SHOWN = 8
_OF_LIST = 4.0  # times the seconds of others: it shows most, and cannot do with fewer steps

Attacks = Literal["by size"] | Sequence[str] | Mapping[str, Mapping[str, Any]]


def chosen(attacks: Attacks, weights: Weights) -> dict[str, dict[str, Any]]:
    """Attacks by name with their parameters; "by size" of the network: `SMALL` or `LARGE`.

    Raises:
        LeakbenchError: an unknown name or parameter.
    """
    if attacks == "by size":
        count = sum(value.numel() for value in weights.values())
        attacks = SMALL if count <= _LARGE else LARGE
    if isinstance(attacks, str):
        attacks = [attacks]
    if not isinstance(attacks, Collection):
        raise LeakbenchError(
            f"audit: attacks are {type(attacks).__name__}; allowed: names, or names with parameters"
        )
    if not isinstance(attacks, Mapping):
        attacks = {name: SMALL.get(name, {}) for name in attacks}
    named = {name: dict(own) for name, own in attacks.items()}
    if named:
        attacking.made(named, {})  # says which name or parameter is unknown
    return named


def views(config: DPConfig, promises: Sequence[Promise]) -> dict[str, tuple[str, DPConfig]]:
    """Observer -> the tap that is attacked, and the mechanism as one victim meets it.

    An attacker who knows everybody else in a batch can subtract them, and a promise holds against
    him: what is left is one example, clipped, with all of the noise. So one example is attacked,
    with the noise of the whole batch in its units. Before the noise it is clipped only.
    """
    found: dict[str, tuple[str, DPConfig]] = {}
    for promise in promises:
        if config.unit == "client":
            taps = {"type1": "type1", "server": "type0_raw"}
            if promise.observer in taps:
                found[promise.observer] = (
                    taps[promise.observer],
                    replace(config, batch_size=1, local_steps=1, examples=1),
                )
        elif promise.observer == "server":
            noise = 0.0 if promise.mu is None else 1 / promise.mu
            alone = replace(
                config, batch_size=1, noise_on="sum", noise_multiplier=noise, noise_schedule=(),
                clip_schedule=(), count_std=0.0, rate=None,
            )  # fmt: skip
            found["server"] = ("type2_batch", alone)
        elif promise.observer == "type2":
            found["type2"] = ("type2", replace(config, batch_size=1, rate=None))
    return found


def attack_view(
    model: nn.Module | Model,
    tap: str,
    config: DPConfig,
    victims: tuple[Tensor, Tensor],
    candidates: tuple[Tensor, Tensor],
    attacks: Mapping[str, Mapping[str, Any]],
    *,
    checkpoint: Literal["first", "last"],
    loss: str | nn.Module,
    weights: Weights | None,
    input_range: tuple[float, float] | None,
    seconds: float,
    seed: int,
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[tuple[PanelFinding, ...], tuple[str, ...]]:
    """What each attack got from one release of each victim, and why others did not run.

    Args:
        victims: (n, *input shape) and (n,), each a batch of its own.
        candidates: the list they are in.
        seconds: for each attack, four times that for "candidates"; who needs longer does fewer
            restarts or steps, and says so.
    """
    inputs, labels = victims
    leak = api.leak(
        model, inputs[:, None], labels[:, None],
        loss=loss, weights=weights, defense=config, observer=tap,
        learning_rate=config.learning_rate or 0.1,
        candidates=candidates, input_range=input_range, seed=seed,
    )  # fmt: skip
    found, missing = [], []
    for name, parameters in attacks.items():
        progress(f"{tap}, {checkpoint} checkpoint: {name}")
        begun = time.perf_counter()
        result = api.attack(
            leak, {name: parameters}, seconds=seconds * (_OF_LIST if name == "candidates" else 1.0)
        )
        answer = result[result.answers[0].name]
        if answer.result is None:
            missing.append(f"{name} at {tap} did not run: {answer.reason}.")
            continue
        found.append(_finding(result, answer, checkpoint, time.perf_counter() - begun))
    return tuple(found), tuple(missing)


def _finding(
    result: AttackResult, answer: Answer, checkpoint: Literal["first", "last"], seconds: float
) -> PanelFinding:
    frame = result.score()
    named = [bool(value) for value in frame["identified"]]
    # Who is handed the list returns one of it: exact whenever it is right.
    lists = "candidates" in answer.attack.requires
    notes = " ".join(note for note in answer.notes)
    return PanelFinding(
        attack=answer.name,
        knowledge=answer.knowledge,
        checkpoint=checkpoint,
        exact=None if lists else rate([bool(value) for value in frame["strict"]]),
        identified=None if lists else rate(named),
        matched=rate(named) if lists else None,
        seconds=round(seconds, 1),
        note=notes,
        pictures=_pictures(result, answer),
    )


def rate(outcomes: Sequence[bool]) -> Rate:
    """A count with Wilson's interval; victims of one network, so it speaks for that network."""
    low, high = wilson(sum(outcomes), len(outcomes))
    return Rate(count=sum(outcomes), trials=len(outcomes), low=low, high=high)


def _pictures(result: AttackResult, answer: Answer) -> Pictures | None:
    """The first victims beside their reconstructions; None for what is no image."""
    assert answer.result is not None
    low, high = result.leak.input_range
    truth = result.leak.truth[:_SHOWN, 0]
    if truth.ndim != 4:
        return None

    def shown(images: Tensor) -> np.ndarray[Any, np.dtype[np.float32]]:
        unit = (images.detach().cpu().double() - low) / (high - low)
        found: np.ndarray[Any, np.dtype[np.float32]] = (
            unit.nan_to_num(0.5, 1.0, 0.0).clamp(0, 1).float().numpy()
        )
        return found

    return Pictures(originals=shown(truth), reconstructions=shown(answer.result.inputs[:_SHOWN, 0]))
