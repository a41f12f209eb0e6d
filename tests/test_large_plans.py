"""Plans of many rows: what rows share is asked for once, and each row is planned as if alone."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from leakbench import architectures, forecast, isolation, planning, registry
from leakbench.errors import LeakbenchError, PluginBroken
from leakbench.spec import Plan, canonical
from leakbench.suite import resolve
from leakbench.suite.expanding import defense_rows

# Rows that differ in what a plugin may see in one respect each: data, network, its parameters,
# leak, looks, batch, local steps, grants, a training before the leak, a broken plugin.
SUITE = """
schema = 1
name = "many"
title = "Many rows"
datasets = ["mnist", "fashion_mnist"]
model = { name = "cnn2" }
training = { batch_size = { mnist = 4, fashion_mnist = 4 } }
attack = { name = "cpl", parameters = { steps = 3 } }
knowledge = { naive = {}, adaptive = { parameters = { line_search = true } } }
profiles = { quick = { networks = 2, victims = 8 } }
rules = [{ set = "recovered" }]
variants = [
  { id = "plain", label = "plain" },
  { id = "steps", label = "steps", attack = { name = "cpl", parameters = { steps = 5 } } },
  { id = "labels", label = "labels", attack = { name = "cpl", grants = ["labels"] } },
  { id = "analytic", label = "analytic", attack = { name = "analytic" } },
  { id = "mlp", label = "mlp", model = { name = "mlp", parameters = { widths = [8] } } },
  { id = "wide", label = "wide", model = { name = "mlp", parameters = { widths = [16] } } },
  { id = "scheme", label = "scheme", model = { name = "cnn2", weights = "default" } },
  { id = "batch", label = "batch", leak = { type = 2, view = "batch" } },
  { id = "twice", label = "twice", leak = { observations = 2 } },
  { id = "update", label = "update", leak = { type = 0 }, training = UPDATE },
  { id = "late", label = "late", leak = { type = 1, at = 1 }, training = LATE },
]
defenses = [
  { id = "none", name = "none", label = "none" },
  { id = "c{clip}", name = "dp_baseline", label = "C={clip}", parameters = CLIPS },
  { id = "mean", name = "dp_baseline", label = "mean", parameters = MEAN },
  { id = "fragile", name = "fragile", label = "fragile" },
]
"""
for name, table in {
    "UPDATE": 'mode = "federated", clients = 2, batch_size = { "*" = 2 }, local_steps = 2',
    "LATE": 'mode = "federated", clients = 2, batch_size = { "*" = 4 }, iterations = 2',
    "CLIPS": "clip = [1.0, 4.0], noise_multiplier = 1.0",
    "MEAN": 'noise_multiplier = 1.0, convention = "mean"',
}.items():
    SUITE = SUITE.replace(name, f"{{ {table} }}")

FRAGILE = '''
from dataclasses import dataclass

from leakbench.contracts import Defense


@dataclass(frozen=True)
class Fragile(Defense):
    """Knows nothing to promise a tap of a batch, and breaks there."""

    name = "fragile"

    def guarantee(self, observer, weights, setting):
        if observer != "type2":
            raise RuntimeError(f"not for {observer} after {setting.round} rounds")
        return super().guarantee(observer, weights, setting)
'''


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    (tmp_path / "defenses").mkdir()
    (tmp_path / "defenses" / "fragile.py").write_text(FRAGILE)
    monkeypatch.setenv(registry.FOLDERS, str(tmp_path))
    (tmp_path / "many.toml").write_text(SUITE)
    return resolve(str(tmp_path / "many.toml"))


def test_rows_planned_together_are_those_planned_alone(plan: Plan) -> None:
    assert len(plan.cells) == 2 * 11 * 5 * 2
    together, broken = planning.cells_and_broken(plan, None, "cpu")
    some = range(0, len(plan.cells), 3)  # no multiple of attackers, rows or variants
    alone = [
        planning.cells_and_broken(
            dataclasses.replace(plan, cells=(plan.cells[place],)), None, "cpu"
        )
        for place in some
    ]
    for place, (own, why) in zip(some, alone, strict=True):
        assert (own, why) == ([together[place]], [broken[place]]), str(plan.cells[place])
    assert len({key for each in together for key in each.identities}) == 2 * len(plan.cells)
    # It is broken where it says so, and nowhere else.
    assert {each.cell.variant for each, why in zip(together, broken, strict=True) if why} == {
        "batch", "update", "late",
    }  # fmt: skip
    assert {each.cell.defense for each, why in zip(together, broken, strict=True) if why} == {
        "fragile"
    }


def test_each_plugin_is_asked_once(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Counter[str] = Counter()

    def counted(name: str) -> Callable[..., Any]:
        asked = getattr(planning, name)

        def call(*given: Any) -> Any:
            calls[name] += 1
            return asked(*given)

        return call

    for name in ("check_cell", "promises", "suits"):
        monkeypatch.setattr(planning, name, counted(name))
    some = [cell for cell in plan.cells if cell.variant in ("plain", "steps", "labels")]
    planning.cells_and_broken(dataclasses.replace(plan, cells=tuple(some)), None, "cpu")
    # 2 data sets x 5 defenses, whoever attacks; and 3 attacks, naive and adaptive.
    assert len(some) == 2 * 3 * 5 * 2
    assert calls == {"check_cell": 2 * 5, "promises": 2 * 5, "suits": 2 * 3 * 2}


def test_identities_of_networks_are_those_of_each() -> None:
    spec = {"a": 1.5, "network_": (1,), "rounds": (0, 1), "weights": "uniform", "z": {"b": None}}
    digests = ["0f", "f0", "aa"]
    expected = [planning.identity_with(spec, *pair) for pair in enumerate(digests)]
    assert [*planning._identities(spec, digests)] == expected
    lone = [*planning._identities({}, ["0f"]), *planning._identities({"z": 1}, ["0f"])]
    assert lone == [planning.identity_with({}, 0, "0f"), planning.identity_with({"z": 1}, 0, "0f")]


def test_a_specification_is_what_a_copy_of_the_cell_holds(plan: Plan) -> None:
    for cell in plan.cells[::7]:
        names = ("variant", "defense_id", "label", "own", *(() if cell.bound else ("bound",)))
        whole = dataclasses.asdict(cell)
        assert cell.spec() == {name: value for name, value in whole.items() if name not in names}
        assert canonical(cell.spec()) == canonical({k: whole[k] for k in cell.spec()})


def test_profiles_share_no_parameters(plan: Plan) -> None:
    """What one plan's reader writes into a list is not in the next plan."""
    again = resolve(plan.asked["suite"])
    mine, other = (
        next(cell for cell in each.cells if cell.variant == "mlp") for each in (plan, again)
    )
    assert mine.model_parameters == other.model_parameters
    assert mine.model_parameters is not other.model_parameters


@pytest.mark.parametrize(
    ("name", "shape"),
    [("cnn2", (1, 28, 28)), ("bn_lenet5", (3, 32, 32)), ("mlp", (105,))],
)
def test_operations_are_those_that_torch_counts(name: str, shape: tuple[int, ...]) -> None:
    network = architectures.build(name, shape, 10, "default", {})
    weights = network.init(torch.Generator().manual_seed(0), torch.float32)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network.logits(weights, torch.zeros(2, *shape))
    assert forecast._operations(name, "{}", shape, 10) == counter.get_total_flops() / 2


# ------------------------------------------------------------------------------ isolation


@pytest.fixture
def denormals() -> Iterator[None]:
    yield
    torch.set_flush_denormal(False)


@pytest.mark.usefixtures("denormals")
@pytest.mark.parametrize("on", [True, False])
def test_flushing_is_seen_without_torch(on: bool) -> None:
    if not torch.set_flush_denormal(on):
        pytest.skip("this processor cannot flush")
    flushed = float(torch.tensor(1e-310, dtype=torch.float64) * 1.0) == 0.0
    assert isolation._flushes() is flushed is on


def test_settings_are_put_back_to_what_was_read_before_many_calls() -> None:
    before = isolation.found_now(isolation.HARMFUL)
    for _ in range(2):
        with (
            pytest.raises(PluginBroken, match="it: changes torch's default dtype"),
            isolation.contained("it", isolation.HARMFUL, before),
        ):
            torch.set_default_dtype(torch.float64)
        assert torch.get_default_dtype() == torch.float32
    with isolation.contained("it", isolation.HARMFUL, before):
        torch.ones(1)


def test_a_grid_and_its_rows_share_nothing() -> None:
    entry = {
        "id": "c{clip}", "name": "x", "label": "C", "datasets": ["mnist"],
        "parameters": {"clip": [1.0, 2.0]},
    }  # fmt: skip
    first, second = defense_rows(entry, "file")
    assert first["parameters"] == {"clip": 1.0} and second["parameters"] == {"clip": 2.0}
    first["datasets"].append("lfw")
    assert second["datasets"] == entry["datasets"] == ["mnist"]
    assert defense_rows({"id": "a", "name": "x", "label": "A", "parameters": {}}, "file") == [
        {"id": "a", "name": "x", "label": "A", "parameters": {}}
    ]


def test_a_name_given_twice_is_still_refused(tmp_path: Path) -> None:
    text = SUITE.replace('id = "mean"', 'id = "none"').replace('name = "fragile"', 'name = "none"')
    (tmp_path / "twice.toml").write_text(text)
    with pytest.raises(LeakbenchError, match=r"key defenses.id: 'none' stands there twice"):
        resolve(str(tmp_path / "twice.toml"))
