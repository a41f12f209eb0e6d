"""Defenses one after another: hooks, parameters, replay, and what may still be promised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from leakbench import data, registry, runner
from leakbench.architectures import build
from leakbench.capturing import EXAMPLE, capture_leak
from leakbench.chain import Chain
from leakbench.contracts import Defense, Leak, LeakPoint, Setting
from leakbench.errors import LeakbenchError
from leakbench.records import Run
from leakbench.streams import generator
from leakbench.suite import complete, resolve
from leakbench.testing import check_defense

FIGURE_5 = "prune + fed_cdp"
SETTING = Setting(batch_size=8, examples=100, rounds=3)
MODEL = build("lenet_cpl", (1, 28, 28), 10)
WEIGHTS = MODEL.init(generator(1, "weights"), torch.float64)


def chained(name: str, **parameters: Any) -> Chain:
    made = registry.load("defenses", name)(**parameters)
    assert isinstance(made, Chain)
    return made


def pruned_then_clipped(**changes: Any) -> Chain:
    given = {"prune_at": "example", "prune_fraction": 0.3, "fed_cdp_noise_multiplier": 0.0}
    return chained(FIGURE_5, **given | changes)


def leak_of(defense: Defense, knowledge: Any, point: LeakPoint = EXAMPLE) -> Leak:
    """Of four digits, a client each."""
    images, labels = truth()
    return capture_leak(
        MODEL, images, labels, weights=WEIGHTS, defense=defense, knowledge=knowledge, point=point
    )


def truth() -> tuple[Tensor, Tensor]:
    digits = data.load("mnist")
    return digits.candidates[:4, None].double(), digits.candidate_labels[:4, None]


def test_parts_act_in_the_order_of_the_name() -> None:
    """By hand: the 30 % smallest coordinates of each gradient to 0, then each tensor to norm C."""
    clip = 0.05
    shown = leak_of(pruned_then_clipped(fed_cdp_clip=clip), "naive").observed
    plain = leak_of(Defense(), "naive").observed
    for row, flat in enumerate(plain.flatten()):
        least = flat.abs().sort().values[int(0.3 * len(flat)) - 1]
        for name, value in plain.tensors.items():
            kept = torch.where(value[row].abs() <= least, 0.0, value[row])
            expected = kept * min(1.0, clip / float(kept.norm()))
            torch.testing.assert_close(shown.tensors[name][row], expected)
    other = chained(
        "fed_cdp + prune", prune_at="example", prune_fraction=0.3,
        fed_cdp_noise_multiplier=0.0, fed_cdp_clip=clip,
    )  # fmt: skip
    swapped = leak_of(other, "naive").observed.flatten()
    assert not torch.allclose(swapped, shown.flatten())


@pytest.mark.parametrize("name", [FIGURE_5, "fed_cdp + prune", "fed_cdp + fed_sdp_client"])
@pytest.mark.parametrize("point", [LeakPoint(), LeakPoint(type=1)], ids=str)
def test_the_replay_at_the_truth_is_the_leak(name: str, point: LeakPoint) -> None:
    """Without noise; a naive attacker misses by what the chain does."""
    silent = {f"{part}_noise_multiplier": 0.0 for part in name.split(" + ") if part != "prune"}
    clip = {"fed_cdp_clip": 0.05}
    places = {"prune_at": "example"} if "prune" in name else {}
    defense = chained(name, **silent, **clip, **places)
    images, labels = truth()
    for knowledge, found in (("adaptive", True), ("naive", False)):
        seen = leak_of(defense, knowledge, point).observations[0]
        simulated = seen.simulate(images, labels, torch.arange(4)).flatten()
        assert torch.allclose(simulated, seen.gradients.flatten(), atol=1e-12) == found


def test_noise_behind_a_mask_hides_it() -> None:
    """What is observed has no zeros then; the replay prunes by its own values, not by none."""
    loud = pruned_then_clipped(fed_cdp_noise_multiplier=0.1)
    images, labels = truth()
    seen = leak_of(loud, "adaptive").observations[0]
    assert bool((seen.gradients.flatten() != 0).all())
    simulated = seen.simulate(images, labels, torch.arange(4)).flatten()
    share = (simulated == 0).double().mean(dim=1)
    assert bool((share >= 0.3 - 1e-3).all())


@pytest.mark.parametrize(
    "defense",
    [
        pruned_then_clipped(),
        pruned_then_clipped(fed_cdp_noise_multiplier=1.0),
        chained("quantile_clip + random_noise + prune"),
        chained("batch_clip_alc + fed_sdp_client"),
    ],
    ids=lambda defense: defense.name,
)
def test_chains_keep_the_contract(defense: Defense) -> None:
    check_defense(defense)


def test_parameters_are_those_of_the_parts() -> None:
    found = complete(registry.load("defenses", FIGURE_5), {"fed_cdp_clip": 2}, "here")
    assert found == {
        "prune_fraction": 0.9, "prune_scope": "global", "prune_at": "update",
        "fed_cdp_clip": 2.0, "fed_cdp_noise_multiplier": 6.0,
        "fed_cdp_convention": "per_example",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "parameters", "said"),
    [
        (FIGURE_5, {"clip": 2.0}, "unknown parameter 'clip'.*fed_cdp_clip"),
        (FIGURE_5, {"fed_cdp_clip": -1.0}, "fed_cdp: clip must be positive"),
        ("prune + nobody", {}, "unknown defense 'nobody'"),
        ("prune + prune", {}, "every part may stand once"),
        ("fed_cdp + batch_clip", {}, "different numbers of examples, 'batch' and 1"),
    ],
)
def test_a_wrong_chain_is_one_sentence(name: str, parameters: dict[str, Any], said: str) -> None:
    with pytest.raises(LeakbenchError, match=said) as caught:
        complete(registry.load("defenses", name), parameters, "here")
    assert "\n" not in str(caught.value)


def test_a_promise_holds_where_the_other_parts_cannot_spoil_it() -> None:
    alone = registry.load("defenses", "fed_cdp")()
    before = pruned_then_clipped(fed_cdp_noise_multiplier=6.0)
    behind = chained("fed_cdp + prune")  # on updates: post-processing
    for observer in ("model", "type1", "type2", "type2_batch"):
        promise = alone.guarantee(observer, WEIGHTS, SETTING)
        assert promise.mu is not None
        for chain in (before, behind):
            assert chain.guarantee(observer, WEIGHTS, SETTING) == promise
    assert before.events(WEIGHTS, SETTING) == alone.events(WEIGHTS, SETTING)


@pytest.mark.parametrize(
    "defense",
    [
        chained("fed_cdp + prune", prune_at="example"),  # noise of examples no longer averages
        chained("random_noise + fed_cdp", random_noise_at="batch"),
        chained("fed_cdp + fed_sdp_client"),
        chained("prune + random_noise"),
        chained("dssgd + fed_cdp", dssgd_at="example"),
    ],
    ids=lambda defense: defense.name,
)
def test_nothing_is_promised_where_it_is_not_sure(defense: Defense) -> None:
    for observer in ("model", "type1"):
        promise = defense.guarantee(observer, WEIGHTS, SETTING)
        assert promise.level == "none" and promise.reason
        assert defense.events(WEIGHTS, SETTING) == ()


def test_known_noise_is_that_of_the_last_part_alone() -> None:
    tapped = leak_of(pruned_then_clipped(fed_cdp_noise_multiplier=0.5), "adaptive")
    assert tapped.noise_std is not None
    for std in tapped.noise_std.values():
        assert std.tolist() == [2.0] * 4
    mixed = leak_of(chained("random_noise + fed_cdp", random_noise_at="example"), "adaptive")
    assert mixed.noise_std is not None
    assert all(bool(std.isnan().all()) for std in mixed.noise_std.values())


SUITE = """
schema = 1
name = "chained"
title = "A chain"
paper = "none"
source = "written for a test"
version = 1
seed = 7
datasets = ["mnist"]
[model]
name = "cnn2"
[training]
batch_size = { mnist = 4 }
[attack]
name = "cpl"
parameters = { steps = 1 }
[knowledge.naive]
[[defenses]]
id = "pruned_c{fed_cdp_clip}"
name = "prune + fed_cdp"
label = "pruned, C={fed_cdp_clip}"
parameters = { prune_at = "example", fed_cdp_clip = [1, 2] }
[[rules]]
name = "strict"
label = "strict"
kind = "strict"
threshold = 0.01
[gallery]
defense = "pruned_c1"
[profiles.quick]
networks = 1
victims = 2
"""


def test_a_suite_runs_a_chain(tmp_path: Path) -> None:
    path = tmp_path / "chained.toml"
    path.write_text(SUITE, encoding="utf-8")
    plan = resolve(str(path))
    assert [cell.defense_parameters["fed_cdp_clip"] for cell in plan.cells] == [1.0, 2.0]
    outcome = runner.run(plan, tmp_path / "run", root=None)
    assert (outcome.ran, outcome.errors) == (4, 0)
    assert {record["status"] for record in Run(tmp_path / "run").records().values()} <= {
        "ok", "diverged", "nan",
    }  # fmt: skip
