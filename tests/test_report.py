"""Reports from made-up records: counts, intervals, verdicts, tables, page and gallery."""

import base64
import csv
import dataclasses
import hashlib
import io
import json
import math
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy.stats import norm

from leakbench import manifest, spec
from leakbench.data import load
from leakbench.described import PlannedCell, priors_of
from leakbench.errors import DataMissing, LeakbenchError
from leakbench.manifest import Manifest
from leakbench.records import Key, Record, Run, key
from leakbench.report import answer, cells, drawing, gallery, kinds, renderings, words
from leakbench.report.content import (
    Effort,
    Note,
    PrintedEntry,
    Readings,
    Report,
    ReportCell,
    VerdictEntry,
)
from leakbench.report.victims import pick
from leakbench.spec import Plan
from leakbench.statistics import (
    Interval,
    kaplan_meier_median,
    mean_interval,
    rate_interval,
    rate_verdict,
    ratio_verdict,
)
from leakbench.suite import resolve

PAPER = ("paper_mean_raw", "paper_mean_clamped", "paper_norm_raw", "paper_norm_clamped")
STEPWISE = (*PAPER, "strict")
MANIFEST: dict[str, Any] = {
    "suite": "tifs_table3",
    "profile": "quick",
    "device": "cpu",
    "started": "2025-01-01T00:00:00+00:00",
    "versions": {"leakbench": "0.1.0"},
    "git": {},
    "skipped": {},
}
NO_LFW = "no data: data set 'lfw' is not on this machine"


@pytest.fixture(scope="module")
def plan() -> Plan:
    return resolve("tifs_table3", "quick")


def plan_cell(
    plan: Plan,
    dataset: str = "mnist",
    defense: str = "none",
    knowledge: str = "naive",
    *,
    networks: int = 2,
    victims: int = 8,
    skip: str = "",
    mu: float | None = None,
) -> PlannedCell:
    """One cell of the plan, with as many networks and victims as a test wants."""
    (cell,) = (c for c in plan.cells if str(c) == f"{dataset}/{defense}/cpl/{knowledge}")
    numbers = tuple(tuple(range(n * victims, (n + 1) * victims)) for n in range(networks))
    return PlannedCell(
        cell=cell,
        identities=tuple(f"{cell}#{number}" for number in range(networks)),
        victims=numbers,
        priors=priors_of(numbers, cell.images_a_gradient, 1000),
        skip=skip,
        title="MNIST handwritten digits" if dataset == "mnist" else dataset,
        ceiling_mu=mu,
        guarantee="",
    )


def record(planned: PlannedCell, network: int, victim: int, **changes: Any) -> Record:
    """A perfect recovery after 5 of 30 steps; `changes` make it something else."""
    made = {
        "schema": 1,
        "identity": planned.identities[network],
        "dataset": planned.cell.dataset,
        "row": planned.cell.row,
        "attack": "cpl",
        "knowledge": planned.cell.knowledge,
        "network": network,
        "victim": victim,
        "batch": victim,
        "source_index": victim,
        "status": "ok",
        "reason": "",
        "ended": "steps",
        "steps": 30,
        "evaluations": 600,
        "loss": 1e-9,
        "loss_start": 1.0,
        "loss_true": 0.0,
        "label": 3,
        "label_guess": 3,
        "labels_found": 1.0,
        "accuracy": 0.125,
        "mse_raw": 1e-5,
        "mse_clamped": 1e-5,
        "distance_raw": 0.09,
        "distance_clamped": 0.09,
        "psnr": 50.0,
        "ssim": 0.99,
        "rank": 1,
        "baselines": {
            "start_image": 0.3, "mean_image": 0.06, "class_mean": 0.05, "nearest_public": 0.03,
        },
        "first_step": dict.fromkeys(STEPWISE, 5),
        "first_evaluations": dict.fromkeys(STEPWISE, 100),
        "flags": ["label_inferred"],
        "host": {"arrays": None},
    }  # fmt: skip
    return made | changes


NOISE: dict[str, Any] = {
    "mse_raw": 4.2e5,
    "mse_clamped": 0.48,
    "distance_raw": 1.8e4,
    "distance_clamped": 19.4,
    "ssim": 0.01,
    "rank": 700,
    "label_guess": 4,
    "labels_found": 0.0,
    "first_step": {"paper_mean_raw": 0, "paper_mean_clamped": 0} | dict.fromkeys(STEPWISE[2:]),
    "first_evaluations": {"paper_mean_raw": 1, "paper_mean_clamped": 1}
    | dict.fromkeys(STEPWISE[2:]),
}
CRASH: dict[str, Any] = {
    "status": "error",
    "reason": "RuntimeError: boom",
    "baselines": {},
    "first_step": {},
    "first_evaluations": {},
    "flags": [],
    **dict.fromkeys(
        ("steps", "evaluations", "loss", "loss_start", "loss_true", "label_guess", "labels_found",
         "accuracy", "mse_raw", "mse_clamped", "distance_raw", "distance_clamped", "psnr", "ssim",
         "rank")
    ),
}  # fmt: skip

Changes = Callable[[int, int], Mapping[str, Any] | None]


def fill(planned: PlannedCell, changes: Changes = lambda network, victim: {}) -> dict[Key, Record]:
    """A record a planned trial; None from `changes(network, victim)` leaves one out."""
    found = {}
    for network, victims in enumerate(planned.victims):
        for victim in victims:
            change = changes(network, victim)
            if change is not None:
                made = record(planned, network, victim, **change)
                found[key(made)] = made
    return found


def build(plan: Plan, *pairs: tuple[PlannedCell, Mapping[Key, Record]]) -> Report:
    records = {k: v for _, some in pairs for k, v in some.items()}
    return cells.build(plan, [planned for planned, _ in pairs], records, MANIFEST)


def only(plan: Plan, planned: PlannedCell, records: Mapping[Key, Record]) -> ReportCell:
    (cell,) = build(plan, (planned, records)).cells
    return cell


def verdict(cell: ReportCell) -> VerdictEntry:
    assert cell.verdict is not None
    return cell.verdict


def readings_of(cell: ReportCell, number: str) -> Readings:
    readings: Readings = getattr(verdict(cell), number)
    return readings


def flags(cell: ReportCell) -> dict[str, int | None]:
    return {flag.name: flag.count for flag in cell.flags}


# ------------------------------------------------------------------------------ numbers


def test_rates_are_those_of_the_statistics_module(plan: Plan) -> None:
    planned = plan_cell(plan, defense="dp_baseline")
    failing = {0, 3, 9, 10, 11}
    cell = only(plan, planned, fill(planned, lambda n, v: NOISE if v in failing else {}))
    outcomes = [[v not in failing for v in victims] for victims in planned.victims]
    expected = rate_interval(outcomes)
    for rule in ("strict", "identified", "identified_top10", "paper_norm_raw", "paper_mean_raw"):
        assert cell.asr[rule] == expected, rule
    assert cell.asr["paper_mean_clamped"].value == 1.0
    assert set(cell.asr) == {rule.name for rule in plan.rules}


def test_medians_and_means(plan: Plan) -> None:
    planned = plan_cell(plan)

    def changes(network: int, victim: int) -> dict[str, Any]:
        number = {"mse_raw": None if victim == 0 else 1e-6 * victim, "steps": victim}
        learnt = {"accuracy": 0.1 if network == 0 else 0.7}
        return number | learnt | {"labels_found": 1.0 if victim < 12 else 0.0}

    cell = only(plan, planned, fill(planned, changes))
    # The trial without a number counts as the worst: half a cell that diverged looks no better.
    assert cell.mse == pytest.approx(8.5e-6)
    assert cell.steps == 7.5
    assert cell.mse_clamped == 1e-5
    assert cell.label_accuracy == 0.75
    assert cell.accuracy == pytest.approx(0.4)
    assert cell.pretrained is False
    assert cell.baselines.mean_image == pytest.approx(0.06)


def test_lpips_has_a_column_where_it_was_measured(plan: Plan) -> None:
    """Colour images have it, grey ones say once why not; a run of older records says nothing."""
    reason = "it is made for colour images"
    grey, colour = plan_cell(plan), plan_cell(plan, "cifar10")
    greys = fill(grey, lambda n, v: {"lpips": None, "unmeasured": {"lpips": reason}})
    colours = fill(colour, lambda n, v: {"lpips": 0.02 * v, "unmeasured": {}})
    report = build(plan, (grey, greys), (colour, colours))
    assert [cell.lpips for cell in report.cells] == [None, pytest.approx(0.15)]
    texts = [note.text for note in report.notes if "LPIPS" in note.text]
    assert texts == [f"LPIPS is not measured (mnist): {reason}."]
    text = renderings.to_markdown(report)
    headers = [line for line in text.splitlines() if line.startswith("|") and "SSIM" in line]
    assert ["LPIPS" in line for line in headers] == [False, True]
    (line,) = (line for line in text.splitlines() if " 0.99 " in line and " 0.15 " in line)
    values = [value.strip() for value in line.strip("|").split("|")]
    names = [name.strip() for name in headers[1].strip("|").split("|")]
    assert float(values[names.index("LPIPS")]) == pytest.approx(0.15)
    assert "enlarged to 64 pixels" in text

    older = build(plan, (grey, fill(grey)), (colour, fill(colour)))
    assert "LPIPS" not in renderings.to_markdown(older)
    assert [cell.lpips for cell in older.cells] == [None, None]


def test_every_end_of_a_trial_is_counted(plan: Plan) -> None:
    planned = plan_cell(plan)
    ends: dict[int, dict[str, Any] | None] = {
        0: CRASH,
        1: CRASH | {"status": "oom"},
        2: CRASH | {"status": "timeout"},
        3: NOISE | {"status": "nan"},
        4: {"status": "diverged"},
        5: CRASH | {"status": "skipped", "reason": "no data"},
        6: None,
    }
    cell = only(plan, planned, fill(planned, lambda n, v: ends.get(v, {})))
    counts = cell.ends
    assert counts == {
        "ok": 9, "nan": 1, "diverged": 1, "oom": 1, "timeout": 1, "skipped": 1, "error": 1,
        "missing": 1,
    }  # fmt: skip
    assert sum(counts.values()) == cell.planned == 16
    # 14 trials enter: not the skipped nor the missing one; a diverged one may well succeed.
    first = [False] * 4 + [True] * 2
    assert cell.asr["strict"] == rate_interval([first, [True] * 8])
    report = build(plan, (planned, fill(planned, lambda n, v: ends.get(v, {}))))
    listed = "16: 9 ok, 1 nan, 1 diverged, 1 oom, 1 timeout, 1 skipped, 1 error, 1 missing"
    assert listed in renderings.to_markdown(report)


def test_a_skipped_cell_has_no_rate(plan: Plan) -> None:
    planned = plan_cell(plan, "lfw", skip=NO_LFW)
    report = build(plan, (planned, {}))
    (cell,) = report.cells
    assert (cell.skipped, cell.missing, cell.reason) == (16, 0, NO_LFW)
    assert cell.asr["strict"] == Interval(None, None, None)
    assert flags(cell) == {}
    assert verdict(cell).summary == "Nothing was measured."
    text = renderings.to_markdown(report)
    assert f"Not run: {NO_LFW}" in text
    assert f"lfw: 16 trials skipped, {NO_LFW}" in text


def test_steps_to_success_counts_those_that_never_succeed(plan: Plan) -> None:
    planned = plan_cell(plan)

    def changes(network: int, victim: int) -> dict[str, Any]:
        if victim < 6:
            spent = {"strict": 20 * (4 + victim) + 1}
            return {"first_step": {"strict": 4 + victim}, "first_evaluations": spent}
        # Ended by itself after 2 steps: it must not be taken for one that might still succeed.
        return NOISE | {"steps": 2, "ended": "nan"}

    cell = only(plan, planned, fill(planned, changes))
    assert cell.steps_to_success["strict"] == Effort(median=None, mean_of_successes=6.5)
    evaluations = cell.evaluations_to_success["strict"]
    assert evaluations == Effort(median=None, mean_of_successes=131.0)
    times = [*range(4, 10), *([30] * 10)]
    assert kaplan_meier_median(times, [True] * 6 + [False] * 10) is None
    assert "identified" not in cell.steps_to_success
    assert "identified" not in cell.evaluations_to_success

    half = only(plan, planned, fill(planned, lambda n, v: NOISE if v < 8 else {}))
    assert half.steps_to_success["strict"].median == 5
    assert half.evaluations_to_success["strict"].median == 100


def test_a_batchs_ceiling_starts_from_as_many_guesses_as_images() -> None:
    batches = resolve("batches", settings=["defenses.0.name='dp_baseline'"])
    planned = plan_cell(batches, defense="batch_8/none", mu=0.0)
    assert only(batches, planned, fill(planned)).ceiling == pytest.approx(8 / 1000)


def test_who_stops_before_the_paper_refutes_nothing() -> None:
    short = resolve("tpds_table1", settings=["profiles.quick.parameters.steps=5"])
    planned = plan_cell(short, defense="cpl/none", networks=3)
    cell = only(short, planned, fill(planned, lambda n, v: NOISE | {"steps": 5}))
    said: list[str] = [*verdict(cell).asr.values()]
    for number in ("rmse", "attack_iterations"):
        said += [reading.verdict for reading in readings_of(cell, number).values()]
    assert "inconclusive" in said and "not reproduced" not in said


def test_ceiling_and_the_flag_above_it(plan: Plan) -> None:
    planned = plan_cell(plan, defense="dp_baseline", mu=0.5)
    cell = only(plan, planned, fill(planned))
    assert cell.ceiling == pytest.approx(norm.cdf(norm.ppf(1 / 1000) + 0.5))
    assert "above_ceiling" in flags(cell)
    below = only(plan, planned, fill(planned, lambda n, v: NOISE))
    assert "above_ceiling" not in flags(below)
    infinite = plan_cell(plan, defense="dp_baseline_mean", mu=math.inf)
    assert only(plan, infinite, fill(infinite)).ceiling == 1.0
    assert only(plan, plan_cell(plan), {}).ceiling is None


@pytest.mark.parametrize(("networks", "few"), [(1, True), (2, True), (3, False)])
def test_few_networks(plan: Plan, networks: int, few: bool) -> None:
    planned = plan_cell(plan, networks=networks)
    report = build(plan, (planned, fill(planned)))
    assert ("few_networks" in flags(report.cells[0])) == few
    assert any("Few networks" in note.text for note in report.notes) == few


def test_flags_are_counted_and_naive_only_rows_are_named(plan: Plan) -> None:
    naive = plan_cell(plan, defense="adaclip", networks=3)
    adaptive = plan_cell(plan, defense="adaclip", knowledge="adaptive", networks=3)
    given = ["label_inferred", "fits_noise"]
    alone = only(plan, naive, fill(naive, lambda n, v: NOISE | {"flags": given}))
    assert flags(alone) == {"fits_noise": 24, "label_inferred": 24, "non_adaptive_only": None}
    both = build(plan, (naive, fill(naive)), (adaptive, fill(adaptive)))
    assert not any("non_adaptive_only" in flags(cell) for cell in both.cells)


def test_same_rows_are_found_and_said(plan: Plan) -> None:
    rows = [plan_cell(plan, defense=row) for row in ("dp_baseline", "quantile_clip", "adaclip")]
    report = build(
        plan,
        (rows[0], fill(rows[0], lambda n, v: NOISE)),
        (rows[1], fill(rows[1], lambda n, v: NOISE)),
        (rows[2], fill(rows[2], lambda n, v: NOISE | {"loss": 0.5} if v == 7 else NOISE)),
    )
    found = [[name for name in flags(c) if name.startswith("same_as")] for c in report.cells]
    assert found == [[], ["same_as: dp_baseline"], []]
    text = "Quantile clip gives the same numbers as DP-baseline in every trial: mnist (naive)."
    assert text in renderings.to_markdown(report)


def test_images_of_one_batch_count_as_one_trial(plan: Plan) -> None:
    planned = plan_cell(plan, defense="dp_baseline", networks=4, victims=16)

    def changes(network: int, victim: int) -> dict[str, Any]:
        return {"batch": victim // 8 * 8} | (NOISE if victim % 16 < 8 else {})

    cell = only(plan, planned, fill(planned, changes))
    outcomes = [[v % 16 >= 8 for v in victims] for victims in planned.victims]
    groups = [[v // 8 for v in victims] for victims in planned.victims]
    assert cell.asr["strict"] == rate_interval(outcomes, groups=groups)
    alone = rate_interval(outcomes)
    assert cell.asr["strict"].value == alone.value == 0.5
    assert cell.asr["strict"].low < alone.low - 0.1
    # Eight batches leave open what 64 images would have settled.
    word = rate_verdict(0.23, rate_interval(outcomes, level=0.90, groups=groups))
    assert verdict(cell).asr["paper_norm_raw"] == word == "inconclusive"
    assert rate_verdict(0.23, rate_interval(outcomes, level=0.90)) == "not reproduced"


def test_a_rule_added_to_a_finished_run_is_judged_from_its_records(plan: Plan) -> None:
    """As is another name of one: records hold the numbers, the plan says what they mean."""
    near = spec.Rule(name="near", kind="mse", label="nearer than .25", threshold=0.25, paper=True)
    strict = dataclasses.replace(plan.rules[-1], label="exactly")
    more = dataclasses.replace(plan, rules=(*plan.rules[:-1], strict, near))
    planned = plan_cell(plan, defense="dp_baseline")
    records = fill(planned, lambda n, v: NOISE | {"mse_clamped": 0.03 * (v % 16)})
    before, after = only(plan, planned, records), only(more, planned, records)
    # 0, 0.03, ... 0.24 of the errors below 0.25; those of a network are its 8 victims.
    outcomes = [[0.03 * v < 0.25 for v in victims] for victims in planned.victims]
    assert after.asr["near"] == rate_interval(outcomes)
    assert {name: after.asr[name] for name in before.asr} == before.asr
    assert verdict(after).asr["near"] == rate_verdict(0.23, rate_interval(outcomes, level=0.9))
    text = renderings.to_markdown(build(more, (planned, records)))
    assert "nearer than .25" in text and "exactly" in text


# ------------------------------------------------------------------------------ variants


@pytest.fixture(scope="module")
def tpds() -> Plan:
    return resolve("tpds_table1", "quick")


def test_cells_say_which_variant_and_which_defense_they_are(tpds: Plan) -> None:
    pairs = [plan_cell(tpds, defense=row) for row in ("cpl/none", "cpl_restarts_4/none")]
    report = build(tpds, *((planned, fill(planned)) for planned in pairs))
    found = [(c.row, c.variant, c.defense, c.label) for c in report.cells]
    assert found == [
        ("cpl/none", "cpl", "none", "CPL"),
        ("cpl_restarts_4/none", "cpl_restarts_4", "none", "CPL, 4 restarts"),
    ]
    # Two attacks that both succeed are two rows, and no news.
    assert not any(name.startswith("same_as") for name in flags(report.cells[1]))
    text = renderings.to_markdown(report)
    assert "gives the same numbers" not in text
    assert "on model lenet_cpl (untrained), leak type2/example@first" in text


def test_every_attacker_is_listed_once_with_what_it_is_given() -> None:
    ladder = resolve("ladder", "quick")
    planned = plan_cell(ladder, defense="untrained_cpl/sigma_1", knowledge="adaptive")
    report = build(ladder, (planned, fill(planned)))
    found = [(a.variant, a.attack, a.grants) for a in report.attackers]
    assert found == [
        ("untrained_cpl", "cpl", ()),
        ("untrained_gauss_newton", "gauss_newton", ("public",)),
        ("untrained_candidates", "candidates", ("candidates",)),
        ("trained_cpl", "cpl", ()),
        ("trained_gauss_newton", "gauss_newton", ("public",)),
        ("trained_candidates", "candidates", ("candidates",)),
    ]
    assert report.attackers[0].parameters["steps"] == 30
    assert "candidates adaptive" in renderings.to_markdown(report)
    assert "given the candidates" in renderings.to_markdown(report)


def test_pretrained_cells_say_so_and_how_good_the_network_is() -> None:
    ladder = resolve("ladder", "quick")
    rows = [f"{variant}_cpl/sigma_1" for variant in ("untrained", "trained")]
    cells_of = [plan_cell(ladder, defense=row, knowledge="adaptive") for row in rows]
    report = build(
        ladder,
        (cells_of[0], fill(cells_of[0])),
        (cells_of[1], fill(cells_of[1], lambda n, v: {"accuracy": 0.94 if n else 0.96})),
    )
    assert [cell.pretrained for cell in report.cells] == [False, True]
    assert [cell.accuracy for cell in report.cells] == [0.125, pytest.approx(0.95)]
    text = renderings.to_markdown(report)
    assert "cnn2 (untrained), cnn2 (pretrained)" in text
    header = row_of(text, "method", "attacker", "accuracy")
    place = header.index("accuracy")
    effort = [line for line in text.splitlines() if "trained, CPL" in line and "0.95" in line]
    assert effort[0].strip("|").split("|")[place].strip() == "0.95"


def test_notes_of_a_variant_stand_beside_its_rows_only() -> None:
    ladder = resolve("ladder", "quick")
    planned = [
        runner_cell(ladder, f"{variant}/sigma_0")
        for variant in ("untrained_cpl", "untrained_candidates")
    ]
    report = build(ladder, *((each, fill(each)) for each in planned))
    (note,) = (n for n in report.notes if n.source == "suite")
    assert note.rows == ("untrained_candidates/sigma_0",)
    text = renderings.to_markdown(report)
    numbers = {label: row_of(text, label, "adaptive")[-1].split(", ")
               for label in ("untrained, CPL, clipping alone",
                             "untrained, candidates, clipping alone")}  # fmt: skip
    assert "1" not in numbers["untrained, CPL, clipping alone"]
    assert "1" in numbers["untrained, candidates, clipping alone"]
    # A report without that variant has no such note.
    alone = build(ladder, (planned[0], fill(planned[0])))
    assert not [n for n in alone.notes if n.source == "suite"]


def runner_cell(plan: Plan, row: str) -> PlannedCell:
    """The adaptive cell of a row, whatever its attack, over three networks."""
    (cell,) = (c for c in plan.cells if c.row == row)
    return PlannedCell(
        cell=cell,
        identities=tuple(f"{cell}#{number}" for number in range(3)),
        victims=tuple(tuple(range(n * 8, n * 8 + 8)) for n in range(3)),
        skip="",
        ceiling_mu=None,
        guarantee="",
    )


@pytest.mark.parametrize(
    ("mse", "word"),
    # Printed 0.120, so at least 0.1195 / 2 and at most 0.1205 x 2.
    [(0.0598**2, "reproduced"), (0.2409**2, "reproduced"),
     (0.0597**2, "not reproduced"), (0.2411**2, "not reproduced")],
)  # fmt: skip
def test_a_printed_root_is_compared_with_roots(tpds: Plan, mse: float, word: str) -> None:
    planned = plan_cell(tpds, defense="cpl/none", networks=3)
    cell = only(tpds, planned, fill(planned, lambda n, v: {"mse_raw": mse, "mse_clamped": mse}))
    assert cell.printed == PrintedEntry(asr="1", rmse="0.120", attack_iterations="11.5")
    readings = readings_of(cell, "rmse")
    assert verdict(cell).mse is None
    for name in ("paper_mean_raw", "paper_mean_clamped"):
        assert readings[name].value == pytest.approx(mse**0.5)
        assert readings[name].verdict == word
    # A distance is a root already.
    assert readings["paper_norm_raw"].value == pytest.approx(0.09)
    assert "RMSE 0.120: reproduced by" in verdict(cell).summary


def test_a_printed_root_stands_in_the_tables(tpds: Plan) -> None:
    planned = plan_cell(tpds, defense="cpl/none", networks=3)
    report = build(tpds, (planned, fill(planned)))
    text = renderings.to_markdown(report)
    assert "RMSE" in text
    (line,) = csv.DictReader(io.StringIO(renderings.to_csv(report)))
    assert (line["printed.rmse"], line["row"], line["variant"]) == ("0.120", "cpl/none", "cpl")


@pytest.fixture(scope="module")
def yes_or_no() -> Plan:
    """A table that says of one example whether the attack succeeds."""
    return resolve("tpds_table3", "quick")


@pytest.mark.parametrize(
    ("defense", "failing", "word"),
    [
        ("type2/non_private", 0, "reproduced"),  # printed: it succeeds
        ("type2/non_private", 24, "not reproduced"),
        ("type2/non_private", 12, "inconclusive"),
        ("type2/fed_alpha_cdp_sigma", 24, "reproduced"),  # printed: it does not, in 300 iterations
        ("type2/fed_alpha_cdp_sigma", 0, "inconclusive"),  # the profile stops earlier
    ],
)
def test_a_printed_yes_or_no_is_held_against_one_half(
    yes_or_no: Plan, defense: str, failing: int, word: str
) -> None:
    planned = plan_cell(yes_or_no, defense=defense, networks=3)
    cell = only(yes_or_no, planned, fill(planned, lambda n, v: NOISE if v < failing else {}))
    assert cell.printed is not None and cell.printed.asr == (
        "Y" if "non_private" in defense else "N"
    )
    assert verdict(cell).asr["strict"] == word
    said = "success" if "non_private" in defense else "failure"
    assert f"Printed {said}: " in verdict(cell).summary


def test_a_rule_that_is_strict_and_the_papers_has_one_column(yes_or_no: Plan) -> None:
    planned = plan_cell(yes_or_no, defense="type2/non_private", networks=3)
    text = renderings.to_markdown(build(yes_or_no, (planned, fill(planned))))
    header = next(line for line in text.splitlines() if "own stop" in line)
    assert [cell.strip() for cell in header.split("|")].count("strict") == 1


def test_a_claim_without_numbers_has_a_verdict_on_its_rate_alone() -> None:
    plan = resolve("tpds_section4", "quick")
    planned = plan_cell(plan, defense="cpl/prune_90", networks=3)
    cell = only(plan, planned, fill(planned, lambda n, v: NOISE))
    assert cell.printed == PrintedEntry(asr="N")
    assert set(verdict(cell).as_dict()) == {"asr", "summary"}
    assert verdict(cell).asr["strict"] == "reproduced"
    assert "failure" in verdict(cell).summary


def test_gallery_columns_are_rows(tpds: Plan) -> None:
    columns = gallery.columns_of(tpds)
    assert [(c.row, c.head, c.detail) for c in columns[3:]] == [
        ("dlg/none", "DLG", "naive"),
        ("gradinv/none", "GradInv", "naive"),
        ("cpl/none", "CPL", "naive"),
        ("cpl_restarts_4/none", "CPL, 4 restarts", "naive"),
    ]


# ------------------------------------------------------------------------------ verdicts


def share(successes: int) -> Changes:
    """The first `successes` victims of every 100 are recovered."""
    return lambda network, victim: {} if victim % 100 < successes else NOISE


@pytest.mark.parametrize("successes", [0, 5, 12, 20, 23, 27, 34, 50, 100])
def test_rate_verdicts_are_those_of_the_statistics_module(plan: Plan, successes: int) -> None:
    planned = plan_cell(plan, defense="dp_baseline", networks=3, victims=100)
    cell = only(plan, planned, fill(planned, share(successes)))
    outcomes = [[v < successes for v in range(100)]] * 3
    expected = rate_verdict(0.23, rate_interval(outcomes, level=0.90))
    assert verdict(cell).asr["paper_norm_raw"] == expected
    assert verdict(cell).asr["paper_mean_clamped"] == "not reproduced"
    if successes in (23, 50):
        assert expected == ("reproduced" if successes == 23 else "not reproduced")


@pytest.mark.parametrize(
    ("value", "word"),
    [(0.274, "reproduced"), (1.094, "reproduced"), (0.272, "not reproduced"),
     (1.096, "not reproduced")],
)  # fmt: skip
def test_mse_verdict_at_the_ends_of_its_band(plan: Plan, value: float, word: str) -> None:
    """Printed 0.547, so at least 0.5465 / 2 and at most 0.5475 x 2."""
    planned = plan_cell(plan, defense="dp_baseline", networks=3)
    measured = NOISE | {"mse_raw": value}
    if value < 0.7:
        measured |= {"first_step": NOISE["first_step"] | {"paper_mean_raw": 3}}
    cell = only(plan, planned, fill(planned, lambda n, v: measured))
    reading = readings_of(cell, "mse")["paper_mean_raw"]
    assert reading.verdict == word
    assert reading.over == ("successes" if value < 0.7 else "all")


def test_mse_is_that_of_successes_only(plan: Plan) -> None:
    planned = plan_cell(plan, defense="dp_baseline")
    cell = only(plan, planned, fill(planned, lambda n, v: NOISE if v % 2 else {}))
    reading = readings_of(cell, "mse")["paper_norm_clamped"]
    assert reading.over == "successes"
    assert reading.value == pytest.approx(0.09)  # the distance, as this reading has it
    everything = [[1e-5, 0.48] * 4] * 2
    expected = mean_interval(everything, level=0.90)
    clamped = readings_of(cell, "mse")["paper_mean_clamped"]
    assert clamped.value == pytest.approx(expected.value)
    assert clamped.verdict == ratio_verdict(0.547, expected, resolution=0.0005)


@pytest.mark.parametrize(("step", "word"), [(26, "reproduced"), (27, "not reproduced")])
def test_iterations_at_the_end_of_their_band(plan: Plan, step: int, word: str) -> None:
    planned = plan_cell(plan, defense="dp_baseline", networks=3)
    cell = only(
        plan, planned, fill(planned, lambda n, v: {"first_step": dict.fromkeys(STEPWISE, step)})
    )
    readings = readings_of(cell, "attack_iterations")
    assert set(readings) == {*STEPWISE, "own_stop"}
    assert readings["strict"].verdict == word
    assert readings["own_stop"].value == 30


def test_a_printed_limit_is_compared_with_the_steps_spent(plan: Plan) -> None:
    planned = plan_cell(plan, defense="dp_dyn_s_sigma", networks=3)
    quick = only(plan, planned, fill(planned, lambda n, v: NOISE))
    reading = readings_of(quick, "attack_iterations")["paper_norm_raw"]
    # 30 steps are the profile's own limit: they say nothing about a printed 300.
    assert (reading.value, reading.verdict) == (30, "inconclusive")

    paper = resolve("tifs_table3", "paper")
    planned = plan_cell(paper, defense="dp_dyn_s_sigma", networks=3)
    full = only(paper, planned, fill(planned, lambda n, v: NOISE | {"steps": 300}))
    readings = readings_of(full, "attack_iterations")
    assert readings["paper_norm_raw"].verdict == "reproduced"
    assert readings["paper_mean_clamped"].verdict == "not reproduced"  # passes at step 0


def test_without_a_success_there_is_nothing_to_compare_with_a_printed_mean(plan: Plan) -> None:
    planned = plan_cell(plan, defense="dp_baseline", networks=3)
    cell = only(plan, planned, fill(planned, lambda n, v: NOISE | {"steps": 13}))
    readings = readings_of(cell, "attack_iterations")
    assert readings["strict"].value is None
    # 13 steps spent in vain are no 13.4 steps of a success.
    assert readings["own_stop"].verdict == "inconclusive"


def test_a_reading_that_the_start_passes_is_called_out(plan: Plan) -> None:
    planned = plan_cell(plan, defense="dp_baseline")
    report = build(plan, (planned, fill(planned, lambda n, v: NOISE)))
    (cell,) = report.cells
    assert cell.start_passes == ("paper_mean_raw", "paper_mean_clamped")
    summary = verdict(cell).summary
    assert "the start image already passes under 'mean, raw', 'mean, clamped'" in summary
    assert "MSE 0.547: reproduced by 'mean, clamped'" in summary
    assert "start passes" in renderings.to_markdown(report)


def test_adaptive_cells_show_the_printed_numbers_without_a_verdict(plan: Plan) -> None:
    planned = plan_cell(plan, knowledge="adaptive")
    cell = only(plan, planned, fill(planned))
    assert cell.printed == PrintedEntry(asr="1", mse="1.50e-05", attack_iterations="11.5")
    assert cell.verdict is None


def test_another_attack_is_not_compared(plan: Plan) -> None:
    other = dataclasses.replace(plan, printed={})
    planned = plan_cell(plan)
    report = build(other, (planned, fill(planned)))
    assert (report.cells[0].printed, report.cells[0].verdict) == (None, None)
    assert "Beside the printed numbers" not in renderings.to_markdown(report)


def test_a_printed_rate_above_one_is_refused(plan: Plan) -> None:
    planned = plan_cell(plan)
    place = ("mnist", "none")
    wrong = dataclasses.replace(plan.printed[place], asr="97")
    with pytest.raises(LeakbenchError, match=r"mnist/none, key asr: .* 0 to 1, got '97'"):
        build(dataclasses.replace(plan, printed={place: wrong}), (planned, {}))


# ------------------------------------------------------------------------------ renderings


@pytest.fixture(scope="module")
def mixed(plan: Plan) -> Report:
    """Recovered without defense, noise with it, one crash, a skipped data set."""
    diverged = NOISE | {"mse_raw": None, "ssim": None}
    bare = plan_cell(plan)
    naive = plan_cell(plan, defense="dp_baseline", mu=0.53)
    adaptive = plan_cell(plan, defense="dp_baseline", knowledge="adaptive", mu=0.53)
    lfw = plan_cell(plan, "lfw", skip=NO_LFW)
    return build(
        plan,
        (bare, fill(bare)),
        (naive, fill(naive, lambda n, v: NOISE)),
        (adaptive, fill(adaptive, lambda n, v: CRASH if v == 2 else diverged)),
        (lfw, {}),
    )


def row_of(text: str, *starts: str) -> list[str]:
    """Cells of the first table row that begins with these."""
    for line in text.splitlines():
        found = [part.strip() for part in line.strip().strip("|").split("|")]
        if tuple(found[: len(starts)]) == starts:
            return found
    raise AssertionError(f"no row {starts}")


def test_noise_passes_the_papers_rule_and_not_the_strict_one(mixed: Report) -> None:
    text = renderings.to_markdown(mixed)
    row = row_of(text, "DP-baseline", "naive")
    assert row[3] == "0.00 [0.00, 0.19]"
    assert "0.00 / 1.00 / 0.00 / 0.00" in row
    assert "4.2e5; 0.48" in row
    assert "The paper's rule, in 4 readings: mean, raw / mean, clamped / norm, raw" in text


def test_markdown_says_what_matters(mixed: Report) -> None:
    text = renderings.to_markdown(mixed)
    assert text.startswith("# TIFS Table III")
    assert "47 of 64 planned trials have a result" in text  # one crashed, 16 skipped
    assert "16: 15 ok, 1 error" in text
    assert "start image 0.3, mean image 0.06, mean of the class 0.05" in text
    assert "not reproduced (few networks)" in text
    assert "Started 2025-01-01T00:00:00+00:00 on cpu; leakbench 0.1.0." in text
    numbers = [note.text for note in mixed.notes]
    notes = {int(n) for n in re.findall(r"^(\d+)\. ", text, flags=re.MULTILINE)}
    assert notes == set(range(1, len(numbers) + 1))
    assert row_of(text, "DP-baseline", "naive")[-1] == "3, 8"  # 8: why one failed
    # Every line of a table is as wide as its header.
    for block in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        assert len({len(line) for line in block.splitlines()}) == 1


def test_a_bar_in_a_label_stays_in_its_cell(mixed: Report) -> None:
    first = dataclasses.replace(mixed.cells[0], label="a|b")
    changed = dataclasses.replace(mixed, cells=(first, *mixed.cells[1:]))
    assert "a\\|b" in renderings.to_markdown(changed)


def test_json_is_strict_and_keeps_its_order(mixed: Report) -> None:
    def refuse(name: str) -> float:
        raise AssertionError(name)

    text = renderings.to_json(mixed)
    again = json.loads(text, parse_constant=refuse)
    said = again.pop("answer")
    assert again == mixed.as_dict()
    assert said == answer.answer(mixed).as_dict()
    assert list(again)[:2] == ["suite", "profile"]
    assert list(again["cells"][0])[:10] == [
        "dataset", "model", "pretrained", "accuracy", "row", "variant", "defense", "label",
        "attack", "knowledge",
    ]  # fmt: skip


def test_csv_has_a_row_a_cell(mixed: Report) -> None:
    rows = list(csv.DictReader(io.StringIO(renderings.to_csv(mixed))))
    assert len(rows) == len(mixed.cells)
    assert rows[1]["asr.paper_mean_clamped.value"] == "1.0"
    assert rows[1]["printed.mse"] == "0.547"
    assert rows[2]["verdict.asr.paper_mean_raw"] == ""
    assert rows[1]["flags"] == "label_inferred=16;few_networks"


def test_html_is_one_page_that_escapes_and_asks_for_nothing(mixed: Report) -> None:
    note = Note(text="<script>alert(1)</script>", source="suite")
    changed = dataclasses.replace(mixed, notes=(*mixed.notes, note))
    page = renderings.to_html(changed, b"\x89PNG")
    page, script = re.split("<script>|</script>", page)[::2], page.split("<script>")[1]
    digest = hashlib.sha256(script.split("</script>")[0].encode()).digest()
    page = "".join(page)
    assert f"script-src 'sha256-{base64.b64encode(digest).decode()}'" in page
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "://" not in page
    sources = re.findall(r'(?:src|href|url)\s*[=(]\s*"?([^"#\s>)]+)', page)
    assert sources == ["data:image/png;base64,iVBORw=="]
    assert "<img" not in renderings.to_html(mixed)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (math.nan, "-"), (math.inf, "inf"), (0.0, "0"), (0.94, "0.94"), (12.5, "12.5"),
     (300.0, "300"), (1.5e-5, "1.5e-5"), (4.2e5, "4.2e5"), (9999.7, "10000")],
)  # fmt: skip
def test_compact(value: float | None, text: str) -> None:
    assert words.compact(value) == text


# ------------------------------------------------------------------------------ gallery


def store(
    folder: Path,
    pairs: Sequence[tuple[PlannedCell, Mapping[Key, Record]]],
    spoil: str = "",
    older: bool = False,
) -> Run:
    """A run folder whose reconstructions are perfect where the records say so, else noise.

    spoil: the row whose files are not there. older: as runs were that kept no originals.
    """
    run = Run(folder)
    generator = np.random.default_rng(0)
    with run.writing() as writer:
        for number, (planned, records) in enumerate(pairs):
            dataset = load(planned.cell.dataset)
            made = [r | {"host": {"arrays": {"file": f"{number}.npz", "row": i}}}
                    for i, r in enumerate(records.values())]  # fmt: skip
            victims = np.array([r["victim"] for r in made])
            truth = dataset.candidates.numpy()[victims]
            labels = dataset.candidate_labels[victims].tolist()
            arrays = {} if older else {
                "truth": truth,
                "class_names": np.array([dataset.class_names[label] for label in labels]),
                "mean_image": dataset.public.mean(dim=0).numpy(),
            }  # fmt: skip
            noise = generator.normal(0.5, 40, truth.shape).astype(np.float32)
            good = np.array([(r["mse_raw"] or 1.0) < 0.01 for r in made])
            inputs = np.where(good[:, None, None, None], truth, noise)
            start = np.full_like(truth, 0.5)
            if spoil != planned.cell.row:
                writer.arrays(f"{number}.npz", arrays | {"inputs": inputs, "start": start})
            writer.append(made)
        writer.manifest(MANIFEST)
    return run


def box_of(
    run: Run,
    plan: Plan,
    planned: Sequence[PlannedCell],
    row: int,
    column: str,
    knowledge: str = "",
    look: gallery.Look | None = None,
) -> drawing.Box:
    """Where the gallery of a run has a picture of the victim in a row; KeyError: nowhere."""
    look = look or gallery.Look()
    blocks = gallery.blocks(gallery.sections(run, plan, planned, look, []), look)
    place = drawing.layout(blocks, gallery.legend(plan, look))
    found = {
        (number, shown.row or shown.detail, shown.knowledge or ""): box
        for block, rows in zip(blocks, place.boxes, strict=True)
        for number, boxes in enumerate(rows)
        for shown, box in zip(block.columns, boxes, strict=bool(boxes))
    }
    return found[row, column, knowledge]


def crop(picture: np.ndarray, box: drawing.Box, side: int) -> np.ndarray:
    inner = drawing.centred(box, side, side)
    return picture[inner.top : inner.top + side, inner.left : inner.left + side]


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def test_gallery_shows_the_chosen_victims(plan: Plan, tmp_path: Path) -> None:
    bare = plan_cell(plan)
    naive = plan_cell(plan, defense="dp_baseline")
    # Out of order on purpose; victim 11 is the worst, its MSE is not finite.
    order = [(v * 7) % 16 for v in range(16)]
    errors = {v: 1e-6 * (1 + place) for place, v in enumerate(v for v in order if v != 11)}
    recorded = fill(bare, lambda n, v: {"mse_raw": errors[v]} if v != 11 else {"mse_raw": None})
    pairs = [(bare, recorded), (naive, fill(naive, lambda n, v: NOISE))]
    lfw = plan_cell(plan, "lfw", skip=NO_LFW)
    run = store(tmp_path / "run", pairs)
    path = tmp_path / "gallery.png"
    assert gallery.draw(run, plan, [bare, naive, lfw], path) == []

    ranked = [*sorted(errors, key=lambda v: errors[v]), 11]
    median = ranked[8]  # of 16 the one after the middle
    drawn = pixels(path)
    truth = load("mnist").candidates.numpy()

    def box(row: int, column: str, knowledge: str = "") -> drawing.Box:
        return box_of(run, plan, [bare, naive, lfw], row, column, knowledge)

    for row, victim in enumerate((median, 11)):
        original = crop(drawn, box(row, "original"), 112)
        assert (original == drawing.enlarged(truth[victim])).all()
        defended = crop(drawn, box(row, "dp_baseline", "naive"), 112)
        assert not (defended == original).all()
    recovered = crop(drawn, box(0, "none", "naive"), 112)
    assert (recovered == drawing.enlarged(truth[median])).all()
    with pytest.raises(KeyError):
        box(0, "adaclip", "naive")  # never run, so it takes no room

    # The frame around a success is blue, around anything else gray, and broken around what no
    # attacker returned.
    for column, knowledge, away, colours in (
        ("none", "naive", 1, [(0, 0x72, 0xB2)]),
        ("dp_baseline", "naive", 1, [(0xC8, 0xCC, 0xD2)]),
        ("mean image", "", 4, [(0x6B, 0x76, 0x87), (255, 255, 255)]),
    ):
        inner = drawing.centred(box(0, column, knowledge), 112, 112)
        edge = drawn[inner.top : inner.top + 112, inner.left - away].astype(int)
        near = [np.abs(edge - colour).max(axis=1) <= 2 for colour in colours]
        assert np.any(near, axis=0).all() and all(each.any() for each in near), column

    gallery.draw(run, plan, [bare, naive, lfw], tmp_path / "again.png")
    assert path.read_bytes() == (tmp_path / "again.png").read_bytes()


def test_gallery_fits_a_page_and_is_as_high_as_its_rows(plan: Plan, tmp_path: Path) -> None:
    pairs = [(name, row) for name in ("mnist", "cifar10")
             for row in ("none", "dp_baseline", "adaclip", "quantile_clip")]  # fmt: skip
    planned = [plan_cell(plan, *pair, victims=2) for pair in pairs if pair != ("cifar10", "none")]
    empty = plan_cell(plan, "fashion_mnist")
    lfw = plan_cell(plan, "lfw", skip=NO_LFW)
    run = store(tmp_path / "run", [(cell, fill(cell)) for cell in planned])
    sizes = {}
    for most in (None, 1, 2, 9):
        path = tmp_path / "gallery.png"
        gallery.draw(run, plan, [*planned, empty, lfw], path, gallery.Look(columns=most))
        sizes[most] = pixels(path).shape[:2]
    assert sizes[None] == sizes[9] and sizes[None][1] <= drawing.PAGE
    # One method: original, start and mean image. Two: original, those two, and another.
    assert abs(sizes[1][1] - drawing.NARROWEST) <= 1
    assert abs(sizes[2][1] - (2 * drawing.MARGIN + 4 * 128 + 2 * 26 + 12)) <= 1
    # Two victims of two data sets, each in 5 and 4 blocks of one method.
    heights = [size[0] for size in (sizes[None], sizes[2], sizes[1])]
    assert heights[1] - heights[0] > 2 * 2 * 140 and heights[2] - heights[1] > 4 * 2 * 140
    columns = gallery.columns_of(plan)
    names = ["original", "start image", "mean image", "naive", "adaptive"]
    assert [c.detail for c in columns[:5]] == names
    assert len(columns) == 3 + 2 * len(plan.defenses)
    # Colour pictures fill their box.
    truth = drawing.enlarged(load("cifar10").candidates[0].numpy())
    assert truth.shape == (128, 128, 3)


def test_victims_of_a_gallery_are_best_worst_or_of_given_numbers(
    plan: Plan, tmp_path: Path
) -> None:
    """Against the records: 2 networks with victims 0 to 3 and 4 to 7; 6 is best and 1 worst."""
    errors = [0.3, None, 0.2, 0.25, 0.4, 0.5, 1e-9, 0.05]
    bare, naive = plan_cell(plan, victims=4), plan_cell(plan, defense="adaclip", victims=4)
    again = dataclasses.replace(naive, victims=((0, 1, 2, 3), (0, 1, 2, 3)), priors=())
    pairs = [
        (bare, fill(bare, lambda n, v: {"mse_raw": errors[v]})),
        (again, fill(again, lambda n, v: CRASH if (n, v) == (0, 2) else NOISE)),
    ]
    run = store(tmp_path / "run", pairs)

    def picked(look: gallery.Look) -> list[tuple[int, int]]:
        (found,) = gallery.sections(run, plan, [bare, again], look, [])
        return [(each.record["network"], each.record["victim"]) for each in found.chosen.victims]

    assert picked(gallery.Look()) == [(0, 0), (0, 1)]  # the suite: median and worst
    assert picked(gallery.Look(pick=kinds.Pick.best)) == [(1, 6)]
    assert picked(gallery.Look(pick=kinds.Pick.worst)) == [(0, 1)]
    asked = gallery.Look(pick=kinds.Pick.ids, ids=(7, 2, 0, 7))
    assert picked(asked) == [(1, 7), (0, 2), (1, 2), (0, 0), (1, 0)]
    with pytest.raises(LeakbenchError, match=r"no trial of victim 8, 12; .* of 0 to 7$"):
        gallery.sections(run, plan, [bare], gallery.Look(pick=kinds.Pick.ids, ids=(12, 1, 8)), [])


def test_gallery_survives_missing_files_and_a_missing_reference(plan: Plan, tmp_path: Path) -> None:
    naive = plan_cell(plan, defense="adaclip")
    run = store(tmp_path / "run", [(naive, fill(naive))], spoil="adaclip")
    warnings = gallery.draw(run, plan, [naive], tmp_path / "gallery.png")
    assert "mnist/none/naive has no trial to choose victims by" in warnings[0]
    assert "0.npz: cannot be read" in warnings[1]
    assert len(warnings) == 2
    with pytest.raises(LeakbenchError, match=r"nowhere.*cannot write"):
        gallery.draw(run, plan, [naive], tmp_path / "nowhere" / "gallery.png")


def test_a_gallery_needs_nothing_but_the_run(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No data set is asked for, unless an older leakbench kept no originals."""
    planned = plan_cell(plan, "cifar10")
    older = store(tmp_path / "older", [(planned, fill(planned))], older=True)
    assert gallery.draw(older, plan, [planned], tmp_path / "older.png") == []

    def missing(source: Any) -> Any:
        raise DataMissing("no such data here")

    monkeypatch.setattr("leakbench.data.load", missing)
    run = store(tmp_path / "run", [(planned, fill(planned))])
    assert gallery.draw(run, plan, [planned], tmp_path / "run.png") == []
    assert (tmp_path / "run.png").read_bytes() == (tmp_path / "older.png").read_bytes()
    gallery.draw(older, plan, [planned], tmp_path / "nothing.png")
    assert pixels(tmp_path / "nothing.png").shape[0] < pixels(tmp_path / "run.png").shape[0]


def test_reports_and_galleries_of_a_run_load_no_torch(plan: Plan, tmp_path: Path) -> None:
    """From its folder alone: torch stands for the code of attacks, defenses and suites."""
    planned = dataclasses.replace(plan_cell(plan), skip="")
    small = dataclasses.replace(plan, cells=(planned.cell,), utility=())
    run = store(tmp_path / "run", [(planned, fill(planned))])
    described = Manifest(plan=small, cells=(planned,), trainings=(), facts=MANIFEST)
    with run.writing() as writer:
        writer.manifest(manifest.to_json(described) | {"number": 1})
    code = (
        "import sys\n"
        "from leakbench.commands.application import app\n"
        f"app(['report', {str(run.folder)!r}, '--full'], standalone_mode=False)\n"
        f"app(['gallery', {str(run.folder)!r}], standalone_mode=False)\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    expected = cells.build(small, [planned], run.records(), MANIFEST | {"number": 1})
    assert done.stdout.strip() == renderings.to_markdown(expected).strip()
    assert (run.folder / "gallery.png").exists()


@pytest.mark.parametrize(("quantile", "victim"), [(0.0, 2), (0.5, 0), (0.75, 3), (1.0, 1)])
def test_pick(plan: Plan, quantile: float, victim: int) -> None:
    planned = plan_cell(plan, networks=1, victims=6)
    errors = {0: 0.2, 1: None, 2: 0.1, 3: 0.3, 4: 0.15}
    records = fill(planned, lambda n, v: {"mse_raw": errors[v]} if v in errors else CRASH)
    chosen = pick(records.values(), quantile)
    assert chosen is not None
    assert chosen["victim"] == victim
    assert pick([], quantile) is None


def test_enlarged_clamps_and_shows_what_is_no_number() -> None:
    image = np.array([[[-5.0, 2.0], [np.nan, 1 / 3]]], dtype=np.float32)
    shown = drawing.enlarged(image)
    assert shown.shape == (128, 128, 3)
    assert [tuple(shown[y, x]) for y, x in ((0, 0), (0, 127), (127, 0), (127, 127))] == [
        (0, 0, 0), (255, 255, 255), (128, 128, 128), (85, 85, 85),
    ]  # fmt: skip
    assert drawing.enlarged(np.zeros((3, 200, 300), dtype=np.float32)).shape == (67, 100, 3)


def test_a_changed_suite_says_so_and_is_not_judged_by_print() -> None:
    clip = "defenses.1.parameters.clip=0.5"
    changed = resolve("tifs_table3", defense="dp_baseline", settings=[clip])
    planned = plan_cell(changed, defense="dp_baseline")
    manifest = MANIFEST | {"defense": "dp_baseline", "settings": [clip]}
    report = cells.build(changed, [planned], fill(planned, lambda n, v: NOISE), manifest)
    (cell,) = report.cells
    assert (cell.printed, cell.verdict) == (None, None)
    text = renderings.to_markdown(report)
    assert f"Not the suite as published: --defense dp_baseline --set {clip}." in text
    assert "line_search=True" in text


def test_running_more_victims_is_still_judged_by_print() -> None:
    larger = resolve("tifs_table3", settings=["profiles.quick.victims=9"])
    planned = plan_cell(larger, defense="dp_baseline")
    cell = only(larger, planned, fill(planned, lambda n, v: NOISE))
    assert cell.verdict is not None


def test_a_defense_that_crashes_the_attack_reproduces_nothing(plan: Plan) -> None:
    """A printed rate of 0 must not be confirmed by trials that came to nothing."""
    planned = plan_cell(plan, defense="dp_dyn_s_sigma")
    cell = only(plan, planned, fill(planned, lambda n, v: CRASH))
    assert cell.verdict is None
    assert cell.asr["strict"] == Interval(None, None, None)
    report = build(plan, (planned, fill(planned, lambda n, v: CRASH)))
    text = renderings.to_markdown(report)
    assert "0 of 16 planned trials have a result" in text
    assert "reproduced:" not in text
    half = only(plan, planned, fill(planned, lambda n, v: CRASH if n else NOISE))
    assert half.asr["strict"].value == 0
    assert half.asr["strict"].high > 0.5  # the crashed half might have succeeded
    assert half.verdict is None
