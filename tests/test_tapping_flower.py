"""Flower's own messages and simulation, with real client code and a mod that only records."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import leakbench as lb
from leakbench.data import load
from leakbench.errors import LeakbenchError
from leakbench.tapping_flower import recording_mod, updates

DIGITS = load("mnist", None)
X, Y = DIGITS.candidates, DIGITS.candidate_labels
RATE = 0.1


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 24), nn.Sigmoid(), nn.Linear(24, 10))


def train(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    """One step of SGD."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()


def message(
    state: dict[str, torch.Tensor], kind: str = "train", number: int | None = 3, group: str = ""
) -> Any:
    """As Flower's, by its attributes."""
    record = {name: SimpleNamespace(numpy=value.clone().numpy) for name, value in state.items()}
    return SimpleNamespace(
        content=SimpleNamespace(
            array_records={"arrays": record},
            config_records={"config": {} if number is None else {"server-round": number}},
        ),
        metadata=SimpleNamespace(message_type=kind, group_id=group),
        has_content=lambda: True,
    )


CONTEXT = SimpleNamespace(node_config={"partition-id": 1}, node_id=12345)


def client(given: Any, context: Any) -> Any:
    model = network()
    arrays = given.content.array_records["arrays"]
    model.load_state_dict({name: torch.as_tensor(own.numpy()) for name, own in arrays.items()})
    train(model, X[7:8], Y[7:8])
    return message(model.state_dict())


def test_an_update_is_recorded_and_its_digit_recovered(tmp_path: Path) -> None:
    sent = message(network().state_dict())
    reply = recording_mod(tmp_path / "sent")(sent, CONTEXT, client)
    (update,) = updates(tmp_path / "sent")
    assert (update.round, update.client) == (3, 1)
    after = reply.content.array_records["arrays"]
    for name, own in after.items():
        np.testing.assert_array_equal(update.after[name], own.numpy())
    leak = update.leak(network(), X[7:8], Y[7:8], learning_rate=RATE)
    module = network()
    nn.functional.cross_entropy(module(X[7:8]), Y[7:8]).backward()
    for name, own in module.named_parameters():
        assert own.grad is not None
        torch.testing.assert_close(leak.gradients.tensors[name][0], own.grad, rtol=1e-3, atol=1e-6)
    assert lb.attack(leak, "analytic").score()["mse_raw"].iloc[0] < 1e-6


def test_numbered_arrays_follow_the_state_of_the_module(tmp_path: Path) -> None:
    state = dict(enumerate(network().state_dict().values()))

    def numbered(given: Any, context: Any) -> Any:
        model = network()
        train(model, X[:1], Y[:1])
        return message({str(k): v for k, v in enumerate(model.state_dict().values())})

    recording_mod(tmp_path)(message({str(k): v for k, v in state.items()}), CONTEXT, numbered)
    leak = updates(tmp_path)[0].leak(network(), X[:1], Y[:1], learning_rate=RATE)
    assert lb.attack(leak, "analytic").score()["mse_raw"].iloc[0] < 1e-6
    with pytest.raises(LeakbenchError, match="are not those of the module"):
        updates(tmp_path)[0].leak(nn.Linear(784, 10), X[:1], Y[:1], learning_rate=RATE)


def test_other_messages_and_rounds_pass_unrecorded(tmp_path: Path) -> None:
    state = network().state_dict()
    mod = recording_mod(tmp_path, rounds=(2,))
    for given in (message(state, "evaluate", 2), message(state, "query", 2), message(state)):
        assert mod(given, CONTEXT, lambda given, _: given) is given
    assert updates(tmp_path) == []
    mod(message(state, number=None, group="2"), CONTEXT, client)
    assert [one.round for one in updates(tmp_path)] == [2]
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".npz"]


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "round-1-client-0.npz").write_bytes(b"no archive")
    with pytest.raises(LeakbenchError, match=r"round-1-client-0\.npz: no recorded update"):
        updates(tmp_path)


SIMULATION = """
import sys
import torch
from torch import nn
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from leakbench.data import load
from leakbench.tapping_flower import recording_mod

folder, tapped = sys.argv[1], sys.argv[2] == "tapped"


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 24), nn.Sigmoid(), nn.Linear(24, 10))


client = ClientApp(mods=[recording_mod(folder)] if tapped else [])


@client.train()
def train(message: Message, context: Context):
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    digits, own = load("mnist", None), context.node_config["partition-id"]
    x, y = digits.candidates[own : own + 1], digits.candidate_labels[own : own + 1]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    content = RecordDict(
        {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": 1, "partition": own}),
        }
    )
    return Message(content=content, reply_to=message)


server = ServerApp()


@server.main()
def main(grid: Grid, context: Context):
    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=2)
    result = strategy.start(grid, ArrayRecord(network().state_dict()), num_rounds=2)
    torch.save(result.arrays.to_torch_state_dict(), folder + "/final.pt")


resources = {"client_resources": {"num_cpus": 1}}
run_simulation(server, client, num_supernodes=2, backend_config=resources)
"""


@pytest.mark.slow
def test_a_simulation_of_two_clients_and_two_rounds_runs_unchanged(tmp_path: Path) -> None:
    pytest.importorskip("flwr.simulation")
    pytest.importorskip("ray")
    finals = []
    for kind in ("bare", "tapped"):
        (tmp_path / kind).mkdir()
        script = tmp_path / "simulation.py"
        script.write_text(textwrap.dedent(SIMULATION))
        done = subprocess.run(
            [sys.executable, str(script), str(tmp_path / kind), kind],
            capture_output=True, text=True, timeout=600, check=False,
            env=os.environ | {"RAY_worker_niceness": "0"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        finals.append(torch.load(tmp_path / kind / "final.pt"))
    for name, value in finals[0].items():
        torch.testing.assert_close(value, finals[1][name], rtol=0, atol=1e-7)
    found = updates(tmp_path / "tapped")
    assert [(one.round, one.client) for one in found] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    for one in found:
        own = slice(one.client, one.client + 1)
        leak = one.leak(network(), X[own], Y[own], learning_rate=RATE)
        assert lb.attack(leak, "analytic").score()["mse_raw"].iloc[0] < 1e-6
    # FedAvg of what was sent is what the server holds.
    for name, value in finals[1].items():
        mean = (found[2].after[name] + found[3].after[name]) / 2
        np.testing.assert_allclose(value.numpy(), mean, atol=1e-6)
