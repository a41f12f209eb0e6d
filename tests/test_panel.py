"""The panel: whose answer counts, what is kept of the others, and the page about it."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from leakbench import data, planning, registry, rescoring, runner, suite
from leakbench.architectures import build
from leakbench.attacks import panel as module
from leakbench.attacks.panel import Panel
from leakbench.capturing import capture_leak
from leakbench.commands.application import app
from leakbench.commands.panel import settings
from leakbench.contracts import Attack, Leak, Reconstruction, Streams, Watch
from leakbench.defenses.dp_baseline import DPBaseline
from leakbench.errors import LeakbenchError
from leakbench.matching import squared_loss
from leakbench.records import Run
from leakbench.report import cells, panels
from leakbench.report.content import MemberEntry, ReportCell
from leakbench.spec import Plan
from leakbench.statistics import Interval
from leakbench.streams import VictimStreams, generator
from leakbench.testing import check_attack


@dataclass(frozen=True, kw_only=True)
class Says(Attack):
    """Answers what it was told, one image a victim, with so much spent."""

    name: ClassVar[str] = "test_says"
    images: Any = None
    spent: int = 0

    def reconstruct(self, leak: Leak, streams: Streams, watch: Watch) -> Reconstruction:
        every = torch.arange(leak.n)
        counts = torch.full((leak.n,), self.spent, dtype=torch.int64)
        watch(every, counts, counts, self.images, torch.zeros(leak.n))
        return Reconstruction(
            inputs=self.images,
            labels=leak.labels,
            loss=torch.full((leak.n,), -1.0),  # in units of its own
            start_inputs=torch.zeros_like(self.images),
            start_loss=torch.zeros(leak.n),
            steps=counts,
            evaluations=counts,
            status=("converged",) * leak.n,
        )


def leak_of(count: int, defense: DPBaseline | None = None, **changes: Any) -> Leak:
    digits = data.load("mnist")
    model = build("cnn2", digits.input_shape, digits.classes)
    return capture_leak(
        model, digits.candidates[:count], digits.candidate_labels[:count],
        weights=model.init(generator(3, "weights"), torch.float32), defense=defense,
        knowledge="adaptive", grants=("labels", "public"), public=digits.public, **changes,
    )  # fmt: skip


def says(monkeypatch: pytest.MonkeyPatch, members: dict[str, Attack]) -> Panel:
    monkeypatch.setattr(Panel, "members", lambda self, facts: members)
    return Panel()


def streams(count: int) -> VictimStreams:
    return VictimStreams(0, tuple(("panel", number) for number in range(count)))


def test_each_victims_best_answer_counts_by_the_common_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leak = leak_of(3)
    truth = data.load("mnist").candidates[:3, None]
    one, two = truth.clone(), truth.clone()
    one[0], two[1], two[2] = 0.5, 0.5, math.nan
    one[2] += 0.01
    panel = says(monkeypatch, {"one": Says(images=one, spent=5), "two": Says(images=two, spent=7)})
    watched = []
    found = panel.reconstruct(
        leak, streams(3), lambda rows, steps, spent, *_: watched.append((steps[0], spent[0]))
    )
    assert found.chosen == ("two", "one", "one")
    assert torch.equal(found.inputs, torch.stack([truth[0], truth[1], one[2]]))
    # In units of the squared length of what was observed, since no noise is known.
    length = leak.observed.flat_norm().square()
    with torch.no_grad():
        expected = squared_loss(leak, one, leak.labels, torch.arange(3)) / length  # type: ignore[arg-type]
    torch.testing.assert_close(
        found.members["one"].loss[[0, 2]], expected[[0, 2]], rtol=1e-4, atol=0
    )
    assert math.isnan(found.members["two"].loss[2])
    assert torch.equal(found.loss[2], found.members["one"].loss[2])
    # What was spent adds up, with one comparison for each answer and the start.
    assert found.steps.tolist() == [12] * 3
    assert found.evaluations.tolist() == [15] * 3
    assert [tuple(map(int, pair)) for pair in watched] == [(5, 5), (12, 13)]


def test_an_image_that_fits_the_noise_does_not_win(monkeypatch: pytest.MonkeyPatch) -> None:
    """Moved against the gradient of the distance the truth fits better, and looks like noise."""
    leak = leak_of(2, DPBaseline(clip=4.0, noise_multiplier=0.1, convention="per_example"))
    truth, rows = data.load("mnist").candidates[:2, None], torch.arange(2)
    fits = truth.clone()
    for _ in range(30):
        fits.requires_grad_()
        loss = squared_loss(leak, fits, leak.labels, rows)  # type: ignore[arg-type]
        slope = torch.autograd.grad(loss.sum(), fits)[0]
        fits = (
            fits - 0.02 * slope / slope.flatten(1).norm(dim=1)[:, None, None, None, None]
        ).detach()
    with torch.no_grad():
        before, after = (squared_loss(leak, x, leak.labels, rows) for x in (truth, fits))  # type: ignore[arg-type]
    assert bool((after < before).all())
    panel = says(monkeypatch, {"fits": Says(images=fits), "truth": Says(images=truth)})
    assert panel.reconstruct(leak, streams(2), lambda *_: None).chosen == ("truth", "truth")


def test_the_set_is_fixed_and_candidates_need_their_list() -> None:
    assert [(field.name, field.default) for field in fields(Panel)] == [("version", 1)]
    facts = leak_of(1).facts
    members = Panel().members(facts)
    assert list(members) == ["gauss_newton", "cpl", "gradinv"]
    assert list(Panel().members(replace(facts, candidates=9))) == list(Panel.uses)
    assert (members["cpl"].restarts, members["cpl"].line_search) == (4, True)  # type: ignore[attr-defined]
    assert Panel().budget(facts) == sum(each.budget(facts) for each in members.values()) + 4
    with pytest.raises(LeakbenchError, match="version"):
        Panel(version=2)  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_panel_keeps_the_contract() -> None:
    check_attack(Panel())


TINY = """
schema = 1
name = "tiny"
title = "A panel"
paper = "none"
source = "-"
version = 1
seed = 5
datasets = ["mnist"]
attack = { name = "panel", grants = ["public"] }
model = { name = "cnn2", weights = "uniform" }
training = { mode = "central", batch_size = { mnist = 4 } }
leak = { type = 2, view = "example" }
[knowledge.adaptive]
[[defenses]]
id = "none"
name = "none"
label = "nothing"
[[rules]]
name = "strict"
label = "exact"
kind = "strict"
threshold = 0.01
[profiles.quick]
networks = 1
victims = 2
"""


def test_members_are_recorded_reported_and_judged_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two members that never move and one that does, all are judged, and one counts."""
    monkeypatch.setattr(
        module, "MEMBERS", {"start_image": {}, "cpl": {"steps": 4, "line_search": True}}
    )
    file = tmp_path / "tiny.toml"
    file.write_text(TINY)
    plan = suite.resolve(str(file), "quick")
    runner.run(plan, tmp_path / "run", root=None)
    run = Run.existing(tmp_path / "run")
    records = run.records()
    for record in records.values():
        assert record["status"] == "ok" and record["attack"] == "panel"
        assert record["member"] == "cpl" and set(record["members"]) == {"start_image", "cpl"}
        best = record["members"]["cpl"]
        assert best["mse_clamped"] == record["mse_clamped"] and best["loss"] == record["loss"]
        assert record["members"]["start_image"]["loss"] > best["loss"]
        arrays = run.arrays(record["host"]["arrays"]["file"])
        row = record["host"]["arrays"]["row"]
        assert (arrays["member_cpl"][row] == arrays["inputs"][row]).all()

    planned = planning.plan_cells(plan, None, "cpu")
    (cell,) = cells.build(plan, planned, records, run.manifest()).cells
    assert {name: entry.taken for name, entry in cell.members.items()} == {
        "start_image": 0, "cpl": 2,
    }  # fmt: skip
    assert cell.members["cpl"].asr["strict"] == cell.asr["strict"]
    assert cell.members["start_image"].asr["strict"].value == 0

    other = [replace(rule, threshold=0.02) for rule in plan.rules]
    (again,) = rescoring.rejudged(run, planned, other, records, None)
    assert [r["members"] for r in again] == [r["members"] for r in records.values()]


def cell_of(variant: str, knowledge: str, exact: float, named: float, **more: Any) -> ReportCell:
    """A cell of a report, of which the page reads these."""
    found, rates = object.__new__(ReportCell), (exact, named)
    strict, identified = (Interval(rate, rate, rate) for rate in rates)
    values: dict[str, Any] = {
        "variant": variant, "knowledge": knowledge, "attack": variant.rpartition("_")[2],
        "asr": {"strict": strict, "identified": identified},
        "evaluations": 100.0, "flags": (), "members": {}, "ceiling": None,
        "ok": 8, "nan": 0, "diverged": 0, "oom": 0, "timeout": 0, "skipped": 0, "error": 0,
        "missing": 0,
    }  # fmt: skip
    for name, value in (values | more).items():
        object.__setattr__(found, name, value)
    return found


def member(exact: float) -> MemberEntry:
    rate = Interval(exact, exact, exact)
    return MemberEntry(taken=1, asr={"strict": rate, "identified": rate}, evaluations=5.0)


def network(*panel: ReportCell, matching: tuple[ReportCell, ...] = ()) -> panels.Network:
    return panels.Network(name="untrained", panel=panel, matching=matching)


def test_the_verdict_is_the_worst_that_was_shown() -> None:
    nothing = cell_of("untrained_panel", "adaptive", 0.0, 0.0)
    matched = cell_of("untrained_candidates", "adaptive", 0.5, 0.5)
    named = cell_of("untrained_panel", "naive", 0.0, 0.25)
    exact = cell_of("untrained_panel", "naive", 0.125, 0.25)
    assert "recovers images exactly, 0.12" in panels.verdict([network(nothing, exact)])
    assert "name their owner, 0.25" in panels.verdict([network(nothing, named)])
    assert "among candidates, 0.50" in panels.verdict([network(nothing, matching=(matched,))])
    assert panels.verdict([network(nothing)]).startswith("inconclusive")
    unknown = replace(Interval(None, None, None))
    empty = cell_of("a_panel", "naive", 0, 0, asr={"strict": unknown, "identified": unknown})
    assert panels.verdict([network(empty)]) == "nothing was measured."


def test_what_may_look_like_protection_is_flagged() -> None:
    plan = suite.resolve("standard_panel", "quick")
    naive = cell_of("untrained_panel", "naive", 0.5, 0.5)
    adaptive = cell_of(
        "untrained_panel", "adaptive", 0.25, 0.5, ceiling=0.9,
        members={"gauss_newton": member(0.25), "cpl": member(0.0)},
    )  # fmt: skip
    said = "\n".join(panels.warnings(plan, [network(naive, adaptive)]))
    assert "gradient masking? adaptive 0.25, naive 0.50 strict" in said
    assert "stops cpl, and not gauss_newton" in said
    assert "noise is fresh in each look" in said
    assert panels.warnings(plan, [network(naive)]) == []


def resolved(defense: str, parameters: list[str]) -> Plan:
    given = settings(defense, parameters, "quick", None)
    return suite.resolve("standard_panel", "quick", settings=given)


def test_options_become_settings_of_the_suite() -> None:
    given = settings("dp_baseline", ["clip=2.0", "noise_multiplier=0.5"], "quick", 3)
    plan = suite.resolve("standard_panel", "quick", settings=given)
    assert (plan.victims, plan.networks) == (3, 1)
    (row,) = plan.defenses
    assert (row.name, row.label) == ("dp_baseline", "dp_baseline")
    assert all(
        (cell.defense_parameters["clip"], cell.defense_parameters["noise_multiplier"]) == (2.0, 0.5)
        for cell in plan.cells
    )
    assert {cell.attack for cell in plan.cells} == {"panel", "candidates"}
    undefended = suite.resolve(
        "standard_panel", "quick", settings=settings("none", [], "quick", None)
    )
    assert {cell.defense for cell in undefended.cells} == {"none"} and undefended.victims == 8


@pytest.mark.parametrize(
    ("defense", "parameters", "said"),
    [
        ("dp_baseline", ["clip"], "KEY=VALUE"),
        ("dp_baseline", ["clop=1"], "clop"),
        ("dp_baseline", ["clip=1", "clip = 2"], "clip is given twice"),
        ("nobody", [], "nobody"),
        ('a"b', [], "list"),
    ],
)
def test_wrong_options_are_one_sentence(defense: str, parameters: list[str], said: str) -> None:
    with pytest.raises(LeakbenchError, match=said) as error:
        suite.resolve(
            "standard_panel", "quick", settings=settings(defense, parameters, "quick", None)
        )
    assert "\n" not in str(error.value)


def test_members_are_part_of_what_is_attacked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert registry.load("attacks", "panel").uses == Panel.uses  # type: ignore[attr-defined]
    assert planning._used("panel") == Panel.uses and planning._used("cpl") == ()
    assert isinstance(Panel().skip(leak_of(1).facts), str)


@pytest.mark.slow
def test_the_command_prints_a_ladder_members_flags_and_a_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        module, "MEMBERS", {"start_image": {}, "cpl": {"steps": 6, "line_search": True}}
    )
    out = tmp_path / "run"
    arguments = ["panel", "none", "--victims", "2", "--workers", "1", "--device", "cpu"]
    with pytest.raises(SystemExit) as ended:
        app([*arguments, "--out", str(out)])
    assert ended.value.code == 0
    page = capsys.readouterr().out
    assert page == (out / "panel.md").read_text(encoding="utf-8")
    assert page.startswith("# Panel against none\n\n2 victims of mnist, cnn2, type2/example@first")
    lines = [[part.strip() for part in line.split("|")[1:-1]] for line in page.splitlines()]
    rows = {tuple(line[:3]): line for line in lines if len(line) == 7}
    for network, knowledge in itertools.product(("untrained", "trained"), ("naive", "adaptive")):
        assert {who for net, knows, who in rows if (net, knows) == (network, knowledge)} == {
            "panel", "start_image", "cpl", "candidates",
        }  # fmt: skip
        assert rows[network, knowledge, "candidates"][4] == "1.00"
    # Undefended, both know the same.
    assert rows["untrained", "naive", "panel"][3:] == rows["untrained", "adaptive", "panel"][3:]
    assert "stops start_image, and not cpl" in page
    assert "\nVerdict: leaks: the panel recovers images exactly, 1.00" in page
