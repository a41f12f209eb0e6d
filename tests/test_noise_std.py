"""The noise that a defense publishes, against what every tap shows of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from leakbench import data
from leakbench.architectures import build
from leakbench.contracts import Defense, LeakPoint
from leakbench.defenses.adaclip import AdaClip
from leakbench.defenses.batch_clipping import BatchClip, BatchClipLayerwise
from leakbench.defenses.dp_baseline import DPBaseline
from leakbench.defenses.fed_sdp import FedSDPClient, FedSDPServer
from leakbench.defenses.prune import Prune
from leakbench.defenses.quantile_clip import QuantileClip
from leakbench.defenses.random_noise import RandomNoise
from leakbench.leaking import Tap
from leakbench.streams import NoiseStreams, generator
from leakbench.training import Batch

MODEL = build("mlp", (1, 28, 28), 10)
WEIGHTS = MODEL.init(generator(0, "weights"), torch.float64)
SIZE, RATE = 4, 1e-6  # a small rate: noise must not move the gradients of later steps

CONVENTIONS: list[Any] = ["per_example", "mean", "sum"]
PLACES: list[Any] = ["example", "batch", "update"]
DEFENSES: list[Defense] = [
    *[kind(convention=c) for kind in (DPBaseline, QuantileClip, AdaClip) for c in CONVENTIONS],
    BatchClip(noise_multiplier=2.0),
    BatchClip(noise_multiplier=2.0, subset=2),
    BatchClipLayerwise(noise_multiplier=2.0),
    FedSDPClient(),
    FedSDPServer(),
    *[RandomNoise(std=0.5, at=at) for at in PLACES],
    RandomNoise(std=0.5, distribution="laplace", at="batch"),
]
TAPS = [
    (LeakPoint(), 1),
    (LeakPoint(view="batch"), 1),
    (LeakPoint(type=1), 1),
    (LeakPoint(type=1), 3),
    (LeakPoint(type=0, view="raw"), 3),
    (LeakPoint(type=0), 3),
]


@pytest.mark.parametrize(("point", "steps"), TAPS, ids=str)
@pytest.mark.parametrize("defense", DEFENSES, ids=repr)
def test_public_noise_is_what_the_tap_shows(defense: Any, point: LeakPoint, steps: int) -> None:
    """With the noise and without it; in the first layer's 50,000 weights."""
    off = "std" if isinstance(defense, RandomNoise) else "noise_multiplier"
    silent = replace(defense, **{off: 0.0})
    tap = Tap(model=MODEL, point=point, batch_size=SIZE, local_steps=steps, learning_rate=RATE)
    digits = data.load("mnist")
    batches = [
        Batch(
            inputs=digits.candidates[rows][None].double(),
            labels=digits.candidate_labels[rows][None],
        )
        for rows in torch.arange(steps * SIZE).split(SIZE)
    ]
    example = point.type == 2 and point.view == "example"
    victims = torch.tensor([[0, 0]]) if example else None
    shown = []
    for which in (defense, silent):
        look = tap.look(which, WEIGHTS, tap.begin(which, WEIGHTS))
        shown.append(
            tap.capture(
                which, look, batches, clients=(0,), noise=NoiseStreams(1, ()), victims=victims
            )
        )
    stated = tap.noise_std(defense, tap.look(defense, WEIGHTS, tap.begin(defense, WEIGHTS)))
    if stated is None:  # the bound moves with every local step
        assert isinstance(defense, QuantileClip | AdaClip) and steps > 1
        return
    noise = shown[0].tensors["dense1.weight"] - shown[1].tensors["dense1.weight"]
    if stated["dense1.weight"] == 0:
        assert float(noise.abs().max()) < 1e-6
    else:
        assert float(noise.std()) == pytest.approx(stated["dense1.weight"], rel=0.02)


@pytest.mark.parametrize("defense", [*DEFENSES, Prune()], ids=repr)
def test_who_taps_nothing_is_told_of_no_noise(defense: Defense) -> None:
    tap = Tap(model=MODEL, point=LeakPoint(), batch_size=SIZE)
    context = tap.context(0, (0,), None)
    assert defense.noise_std("model", WEIGHTS, defense.init(WEIGHTS), context) is None
