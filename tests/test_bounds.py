"""Suites that ask what a leak holds: records, identities, and what a report says of the attack."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leakbench.report.bounds import _verdict
from leakbench.suite import resolve

TINY = Path(__file__).parent / "tiny.toml"
SUITE = TINY.read_text().replace('"mean"', '"per_example", noise_multiplier = 0.1')
ASKING = SUITE.replace("victims = 2", "victims = 1").replace(
    "\n[model]", "bound = true\n\n[model]", 1
)
FIELDS = ("bound_unbiased", "bound_attainable", "jacobian_rank", "jacobian_condition")


@pytest.mark.parametrize(
    ("attainable", "best", "mean_image", "verdict"),
    [
        (0.005, 0.0099, 0.065, "bracketed"),
        (0.005, 0.0101, 0.065, "attack too weak"),
        (0.005, 0.001, 0.065, "bracketed"),
        (0.005, math.inf, 0.065, "attack too weak"),
        (0.053, 0.06, 0.065, "no information left"),
        (0.053, 500.0, 0.065, "no information left"),
        (0.053, 0.02, 0.065, "bracketed"),
        (0.005, None, 0.065, ""),
        (None, 0.06, 0.065, ""),
        (0.005, 0.06, None, ""),
    ],
)
def test_verdict_by_the_best_attack(
    attainable: float | None, best: float | None, mean_image: float | None, verdict: str
) -> None:
    assert _verdict(attainable, best, mean_image) == verdict


def _records(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]


def test_records_and_report_say_what_the_leaks_hold(
    leakbench: Callable[..., Any], tmp_path: Path
) -> None:
    suite = tmp_path / "tiny.toml"
    suite.write_text(ASKING)
    run = tmp_path / "run"
    done = leakbench("run", suite, "--profile", "quick", "--out", run)
    assert done.code == 0, done.errors
    plain, noisy = (next(r for r in _records(run) if r["row"] == row) for row in ("none", "dp"))
    assert [plain[name] for name in FIELDS[:2]] == [None, None]
    assert plain["jacobian_rank"] == 784
    # Clipped to 4 a tensor: noise of std 0.4 leaves a Gaussian attacker something, others nothing.
    assert noisy["bound_unbiased"] > 1 > noisy["baselines"]["mean_image"]
    assert noisy["bound_attainable"] < noisy["baselines"]["mean_image"]
    report = json.loads((run / "report.json").read_text())
    bound = {cell["row"]: cell["bound"] for cell in report["cells"]}
    assert bound["dp"]["attainable"] == noisy["bound_attainable"]
    assert bound["dp"]["ratio"] == pytest.approx(noisy["mse_raw"] / noisy["bound_attainable"])
    assert bound["dp"]["verdict"] == "attack too weak" and bound["none"]["verdict"] == ""
    text = (run / "report.md").read_text()
    assert "**What the leak holds**" in text and "the defense earns no credit" in text


def test_who_does_not_ask_has_the_identity_he_had(tmp_path: Path) -> None:
    """The key is in the description of a cell only where it is set."""
    specs = []
    for name, text in (("plain", SUITE), ("asking", ASKING)):
        (tmp_path / f"{name}.toml").write_text(text)
        specs.append(resolve(str(tmp_path / f"{name}.toml"), "quick").cells[0].spec())
    assert "bound" not in specs[0]
    assert specs[1] == {**specs[0], "bound": True}
