"""The papers' printed epsilons: which we compute to the last digit, and which cannot be."""

import csv
import math
from functools import cache
from pathlib import Path

import pytest

from leakbench.errors import LeakbenchError
from leakbench.privacy.account import epsilon
from leakbench.privacy.events import PrivacyEvent
from leakbench.privacy.tables import TABLES, EpsilonTable, PrintedNumber, table

PRINTED = Path(__file__).with_name("published_epsilons.csv")

# How many cells of each table agree with the paper, of how many; the others are named below.
AGREE = {
    "tifs5": (30, 30),
    "tifs6": (120, 120),
    "tifs7": (25, 100),
    "tifs8": (10, 15),
    "tifs9": (20, 35),
    "icdcs6": (13, 15),
    "tpds6": (12, 15),
    "tpds7": (9, 10),
    "tpds8": (6, 20),
    "tpds11": (12, 16),
    "cloak3": (18, 18),
    "cloak4": (1, 6),
    "cloak5": (2, 6),
    "bcalc": (4, 5),
}

# (table, start of the row, columns or None for all): cannot be reproduced, and why.
IRREPRODUCIBLE = [
    ("tifs7", "mnist C=4 0.9596 dp_dyns", None, "measured"),
    ("tifs7", "mnist C=8 0.945 dp_dyns", None, "measured"),
    ("tifs7", "cifar10 C=4 0.608 dp_dyns", None, "measured"),
    ("tifs7", "cifar10 C=8 0.588 dp_dyns", None, "measured"),
    ("tifs7", "mnist C=4 0.9773 dp_baseline", None, "no single sigma"),
    ("tifs7", "mnist C=4 0.9773 dp_dyns_cdecay", None, "measured"),
    # Not dp_dyns_l2max of this block, which prints the numbers of fixed noise.
    ("tifs7", "mnist C=4 0.9773 dp_dyns", None, "measured"),
    ("tifs8", "cyclic", None, "cyclic"),
    ("tifs9", "mnist dp_dyn_s_sigma linear", None, "schedule of Table VIII"),
    ("tifs9", "mnist dp_dyn_s_sigma exponential", None, "schedule of Table VIII"),
    ("tifs9", "mnist dp_dyn_s_sigma cyclic", None, "cyclic"),
    ("icdcs6", "fed_cdp L=1", ["mnist", "cifar10"], "rounded once more"),
    ("tpds6", "", ["cancer"], "ICDCS paper"),
    ("tpds7", "fed_sdp", ["cancer"], "ICDCS paper"),
    ("tpds8", "cyclic", None, "cyclic"),
    ("tpds8", "", ["lfw", "adult", "cancer"], "10,000 steps"),
    ("tpds11", "cyclic", None, "cyclic"),
    ("cloak4", "fixed", ["cifar10", "lfw"], "is printed"),
    ("cloak4", "dynamic", None, "measured"),
    ("cloak5", "", ["cifar10", "lfw"], "is printed"),
    ("bcalc", "sigma=2.5", ["h"], "last digit"),
]


@cache
def computed(name: str) -> EpsilonTable:
    return table(name)


@pytest.mark.parametrize("name", TABLES)
def test_a_table_holds_every_printed_number(name: str) -> None:
    with PRINTED.open() as lines:
        printed = {
            (row["row"], row["column"]): row["printed"]
            for row in csv.DictReader(lines)
            if row["table"] == name
        }
    cells = {(cell.row, cell.column): cell.printed for cell in computed(name).cells}
    assert cells == printed


@pytest.mark.parametrize("name", TABLES)
def test_cells_agree_or_are_known_not_to(name: str) -> None:
    wrong = [cell for cell in computed(name).cells if cell.matches != cell.expected]
    assert not wrong
    cells = computed(name).cells
    assert (sum(cell.matches for cell in cells), len(cells)) == AGREE[name]


@pytest.mark.parametrize("name", TABLES)
def test_every_cell_that_disagrees_is_named_with_its_reason(name: str) -> None:
    for cell in computed(name).cells:
        reasons = [
            reason
            for listed, row, columns, reason in IRREPRODUCIBLE
            if listed == name
            and cell.row.startswith(row)
            and (columns is None or cell.column in columns)
        ]
        if not cell.expected:
            assert any(reason in cell.note for reason in reasons), cell


def test_every_named_reason_is_needed() -> None:
    for name, row, columns, reason in IRREPRODUCIBLE:
        assert any(
            not cell.expected
            and cell.row.startswith(row)
            and (columns is None or cell.column in columns)
            and reason in cell.note
            for cell in computed(name).cells
        ), (name, row, columns, reason)


# Some numbers once more, written out from the papers and computed without the tables' machinery.


def epsilon_of(
    preset: str, accountant: str, sigma: float, rate: float, steps: int, decimals: int
) -> str:
    event = PrivacyEvent(noise_multiplier=sigma, sensitivity=1.0, sampling_rate=rate, steps=steps)
    value = epsilon((event,), 1e-5, accountant=accountant, preset=preset).epsilon
    assert value is not None
    return f"{value:.{decimals}f}"


@pytest.mark.parametrize(
    ("rounds", "printed"),
    [
        (100, [0.678, 0.835, 1.082, 1.528, 2.581, 7.899]),
        (60, [0.519, 0.64, 0.832, 1.18, 2.01, 6.331]),
    ],
)
def test_model_cloak_table_3(rounds: int, printed: list[float]) -> None:
    for sigma, number in zip((6, 5, 4, 3, 2, 1), printed, strict=True):
        assert epsilon_of("paper:cloak", "moments", sigma, 0.1, rounds, 3) == f"{number:.3f}"


def test_tifs_after_5000_iterations() -> None:
    printed = {
        "base": "61.689",
        "advanced": "4.952",
        "optimal": "4.546",
        "zcdp": "0.814",
        "moments": "0.580",
    }
    for accountant, number in printed.items():
        assert epsilon_of("paper:tifs", accountant, 6.0, 0.01, 5000, 3) == number
    # The paper's own eq. 3 does not give the column AdvC.
    assert epsilon_of("paper:tifs", "advanced_eq3", 6.0, 0.01, 5000, 3) == "4.571"


def test_fed_cdp_table_6() -> None:
    for rounds, number in ((60, "0.6677"), (10, "0.3025"), (3, "0.2065")):
        assert epsilon_of("paper:icdcs", "moments", 6.0, 0.1, rounds, 4) == number
    for rounds, number in ((60, "0.0689"), (10, "0.0494"), (3, "0.0467")):
        assert epsilon_of("paper:icdcs", "moments", 6.0, 0.01, rounds, 4) == number


def test_matching_is_rounding() -> None:
    def cell(printed: str, value: float | None) -> PrintedNumber:
        return PrintedNumber(row="", column="", printed=printed, computed=value)

    assert cell("0.64", 0.6449).matches and cell("0.64", 0.635).matches
    assert not cell("0.640", 0.6449).matches and not cell("0.64", 0.6451).matches
    assert cell("9646", 9646).matches and not cell("9646", 9645).matches
    assert not cell("0", None).matches and not cell("0.64", math.inf).matches
    assert cell("0.64", 0.641).as_dict() == {
        "row": "",
        "column": "",
        "printed": "0.64",
        "computed": 0.641,
        "match": True,
        "expected": True,
        "note": "",
    }


def test_unknown_table() -> None:
    with pytest.raises(LeakbenchError, match="tifs5"):
        table("tifs55")
