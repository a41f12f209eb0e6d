"""The same code on a GPU: it recovers images there too, and twice the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from leakbench.architectures import build
from leakbench.capturing import capture_leak
from leakbench.contracts import Leak, LeakPoint
from leakbench.data import load
from leakbench.federated import train
from leakbench.records import Run
from leakbench.registry import load as load_plugin
from leakbench.runner import run
from leakbench.streams import NoiseStreams, VictimStreams, generator
from leakbench.suite import resolve
from leakbench.training_schedule import Schedule

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

POINT = LeakPoint()


def digits(n: int, device: str) -> tuple[Leak, torch.Tensor]:
    """Undefended gradients of the first `n` MNIST candidates, and the images."""
    data = load("mnist")
    model = build("lenet_cpl", data.input_shape, data.classes)
    weights = model.init(generator(0, "weights"), torch.float32)
    weights = {name: value.to(device) for name, value in weights.items()}
    images = data.candidates[:n].to(device)
    leak = capture_leak(model, images, data.candidate_labels[:n].to(device), weights=weights)
    return leak, images


def test_gradients_are_those_of_the_cpu() -> None:
    here, there = digits(4, "cpu")[0].observed, digits(4, "cuda")[0].observed
    for name, value in here.tensors.items():
        torch.testing.assert_close(there.tensors[name].cpu(), value, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("line_search", [False, True])
def test_cpl_recovers_digits(line_search: bool) -> None:
    leak, images = digits(16, "cuda")
    streams = VictimStreams(0, tuple(("mnist", victim) for victim in range(16)))
    attack = load_plugin("attacks", "cpl")(steps=60, line_search=line_search)
    found = attack.reconstruct(leak, streams, lambda *seen: None)
    errors = (found.inputs[:, 0] - images).square().flatten(1).mean(dim=1)
    assert found.inputs.is_cuda
    assert int((errors < 1e-3).sum()) >= 14


@pytest.mark.parametrize("name", ["none", "fed_cdp", "fed_sdp_client"])
def test_training_goes_the_way_it_goes_on_the_cpu(name: str) -> None:
    data = load("mnist")
    model = build("cnn2_relu", data.input_shape, data.classes, "default")
    weights = model.init(generator(0, "weights"), torch.float32)
    kind = load_plugin("defenses", name)
    defense = kind() if name == "none" else kind(noise_multiplier=0.01)
    schedule = Schedule(
        rounds=2, batch_size=8, learning_rate=0.1, clients=5, clients_a_round=3, local_steps=4
    )
    reached = []
    for device in ("cpu", "cuda"):
        found = train(
            model, {k: v.to(device) for k, v in weights.items()}, data.train.to(device),
            data.train_labels.to(device), defense, schedule, seed=1,
            noise=NoiseStreams(1, ("training",)),
        )  # fmt: skip
        reached.append({k: v.cpu() for k, v in found.weights.items()})
    for key, value in reached[0].items():
        torch.testing.assert_close(reached[1][key], value, rtol=1e-3, atol=1e-4)


def test_a_suite_gives_the_same_records_twice(tmp_path: Path) -> None:
    settings = ['datasets=["mnist"]', "profiles.quick.victims=4", "profiles.quick.networks=1"]
    plan = resolve("tifs_table3", settings=settings)
    seen = []
    for name in ("one", "two"):
        outcome = run(plan, tmp_path / name, root=None, device="cuda")
        assert outcome.errors == 0
        records = Run(tmp_path / name).records()
        seen.append([{k: v for k, v in r.items() if k != "host"} for r in records.values()])
    assert seen[0] == seen[1]
