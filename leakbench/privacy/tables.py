"""The papers' tables of epsilons and stopping times: what is printed, what we compute, which agree.

`printed.csv` holds every printed number, and what it is computed from: a quantity (the column, see
`_QUANTITIES`) of steps as the printed digits show them to be counted, to which the preset adds its
own. Nothing is computed where what the paper computed from is not public. A number that does not
agree with its paper is not `expected` to, with the reason; the tests fail if one of those ever
agrees. Computing a table takes under a second, except for the decaying noise of "tifs8", "tpds8"
and "tpds11": ten to twenty, for 10,000 different steps each.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from importlib.resources import files
from typing import Any

from leakbench.errors import unknown_name
from leakbench.privacy import gdp
from leakbench.privacy.account import epsilon
from leakbench.privacy.events import PrivacyEvent
from leakbench.privacy.inverse import steps_within

DELTA = 1e-5  # in all of these papers

TABLES = {
    "tifs5": ("TIFS Table V: epsilon after full training", "paper:tifs"),
    "tifs6": ("TIFS Table VI: epsilon at the target accuracy", "paper:tifs"),
    "tifs7": ("TIFS Table VII: epsilon at fixed sigma S", "paper:tifs"),
    "tifs8": ("TIFS Table VIII: last iteration in budget", "paper:tifs-budget"),
    "tifs9": ("TIFS Table IX: epsilon with decaying sigma", "paper:tifs"),
    "icdcs6": ("Fed-CDP Table VI: instance and client level", "paper:icdcs"),
    "tpds6": ("TPDS Table 6: epsilon after all rounds", "paper:tpds"),
    "tpds7": ("TPDS Table 7: epsilon at the target accuracy", "paper:tpds"),
    "tpds8": ("TPDS Table 8: rounds in budget", "paper:tifs-budget"),
    "tpds11": ("TPDS Table 11: rounds by accountant", "paper:tifs-budget"),
    "cloak3": ("ModelCloak Table III: epsilon by sigma", "paper:cloak"),
    "cloak4": ("ModelCloak Table IV: epsilon at fixed sigma C", "paper:cloak"),
    "cloak5": ("ModelCloak Table V: epsilon at fixed sigma", "paper:cloak"),
    "bcalc": ("BC+ALC section B.1: Gaussian DP", "paper:bcalc"),
}
"""Name -> title, preset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedNumber:
    """One number of a paper's table.

    computed: by the paper's preset; None where what it was computed from is not public.
    expected: whether the two should agree; `note` says why not, or what was counted.
    """

    row: str
    column: str
    printed: str
    computed: float | None
    expected: bool = True
    note: str = ""

    @property
    def matches(self) -> bool:
        """Whether `computed` rounds to `printed`, either way when it is half-way."""
        if self.computed is None:
            return False
        decimals = len(self.printed.partition(".")[2])
        half = 0.5 * 10.0**-decimals
        return abs(self.computed - float(self.printed)) <= half * (1 + 1e-6)

    def as_dict(self) -> dict[str, Any]:
        return {
            "row": self.row,
            "column": self.column,
            "printed": self.printed,
            "computed": self.computed,
            "match": self.matches,
            "expected": self.expected,
            "note": self.note,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class EpsilonTable:
    """One table of a paper; preset: what its numbers are computed by."""

    name: str
    title: str
    preset: str
    cells: tuple[PrintedNumber, ...]


def table(name: str) -> EpsilonTable:
    """Compute a paper's table.

    Raises:
        LeakbenchError: If there is none of that name.
    """
    if name not in TABLES:
        raise unknown_name("table", name, TABLES)
    title, preset = TABLES[name]
    cells = tuple(
        PrintedNumber(
            row=line["row"],
            column=line["column"],
            printed=line["printed"],
            computed=_QUANTITIES[line["quantity"]](line, preset) if line["quantity"] else None,
            expected=line["expected"] == "yes",
            note=line["note"],
        )
        for line in _lines()
        if line["table"] == name
    )
    return EpsilonTable(name=name, title=title, preset=preset, cells=cells)


@lru_cache(maxsize=1)
def _lines() -> list[dict[str, str]]:
    text = files("leakbench.privacy").joinpath("printed.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


# ---------------------------------------------------------------------------- quantities


def _epsilon(line: dict[str, str], preset: str) -> float | None:
    """Of `steps` steps of a schedule, or of equal noise sigma."""
    steps = int(line["steps"])
    if line["schedule"]:
        # These are accounted for like the budgets that the same schedules end at.
        events, preset = _schedule(line["schedule"])[:steps], "paper:tifs-budget"
        return epsilon(events, DELTA, accountant=line["accountant"], preset=preset).epsilon
    rate = float(Fraction(line["sampling_rate"]))
    return _of_equal_steps(preset, line["accountant"], float(line["sigma"]), rate, steps)


@lru_cache(maxsize=1024)
def _of_equal_steps(
    preset: str, accountant: str, sigma: float, rate: float, steps: int
) -> float | None:
    event = PrivacyEvent(noise_multiplier=sigma, sensitivity=1.0, sampling_rate=rate, steps=steps)
    return epsilon((event,), DELTA, accountant=accountant, preset=preset).epsilon


def _stop(line: dict[str, str], preset: str) -> int:
    """Number of the step at which a schedule is at its budget."""
    return _last_step(preset, line["schedule"], line["accountant"], float(line["budget"]))


@lru_cache(maxsize=64)
def _last_step(preset: str, schedule: str, accountant: str, budget: float) -> int:
    """The step that exceeds the budget; the moments accountant counts it from 0."""
    within = steps_within(budget, _schedule(schedule), DELTA, accountant=accountant, preset=preset)
    return within if accountant == "moments" else within + 1


def _rounds(line: dict[str, str], preset: str) -> int:
    """The same in rounds of 100 local steps."""
    return math.ceil(_stop(line, preset) / 100)


@lru_cache(maxsize=4)
def _schedule(decay: str) -> tuple[PrivacyEvent, ...]:
    """10,000 steps of the policies as the papers' accounting has them, t = 0, 1, ...

    They set the step's epsilon, not sigma: sigma_t = sqrt(2 ln(1.25/delta)) / epsilon_t falls from
    15.8 to 3.7 (linear), 13.6 to 3.9 (staircase), 15.8 to 3.0 (exponential).
    """
    losses: dict[str, Callable[[int], float]] = {
        "linear": lambda t: t / 1e4 + 0.30746754,
        "staircase": lambda t: 0.1 * (t // 1000) + 0.35746754,
        "exponential": lambda t: math.exp(1.664 * t / 1e4 - 1.1809),
    }
    scale = math.sqrt(2 * math.log(1.25 / DELTA))
    return tuple(
        PrivacyEvent(noise_multiplier=scale / losses[decay](t), sensitivity=1.0, sampling_rate=0.01)
        for t in range(10_000)
    )


_LAYERS = 8  # of BC+ALC's network, clipped apart


def _h(line: dict[str, str], preset: str) -> float:
    """BC+ALC's factor of subsampling."""
    return gdp.subset_factor(float(line["sigma"]) / math.sqrt(_LAYERS))


def _mu(line: dict[str, str], preset: str) -> float:
    """Of Gaussian DP, after BC+ALC's 50 epochs of batches of 64."""
    event = PrivacyEvent(
        noise_multiplier=2 * float(line["sigma"]) / math.sqrt(_LAYERS),
        sensitivity=math.sqrt(_LAYERS),
        sampling_rate=float(Fraction(line["sampling_rate"])),
        sampling="fixed_size",
        steps=int(line["steps"]),
    )
    return gdp.limit_mu((event,), "replace_one")


_QUANTITIES: dict[str, Callable[[dict[str, str], str], float | None]] = {
    "epsilon": _epsilon,
    "steps": _stop,
    "rounds": _rounds,
    "h": _h,
    "mu": _mu,
}
