"""`leakbench account`: the numbers it prints, what it says beside them, what it refuses."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from dp_accounting import get_epsilon_gaussian
from scipy.stats import norm

from leakbench.privacy import tables
from leakbench.privacy.observers import account
from leakbench.privacy.presets import PRESETS
from leakbench.privacy.tables import TABLES, EpsilonTable, PrintedNumber
from leakbench.spec import ACCOUNTANTS

RUN = ("--q", "0.01", "--steps", "10000", "--delta", "1e-5")  # of the TIFS paper
BUDGET = ("--q", "0.01", "--delta", "1e-5")


Command = Callable[..., Any]
Results = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def results(leakbench: Command) -> Results:
    """Rows of `account --json`, which is strict JSON."""

    def call(*args: str) -> list[dict[str, Any]]:
        done = leakbench("account", *args, "--json")
        assert (done.code, done.errors) == (0, ""), done
        content = json.loads(done.out, parse_constant=pytest.fail)
        assert list(content) == ["results"]
        rows: list[dict[str, Any]] = content["results"]
        return rows

    return call


def of(rows: list[dict[str, Any]], **wanted: Any) -> list[Any]:
    """Epsilons of the rows with these values, in their order."""
    return [row["epsilon"] for row in rows if all(row[key] == wanted[key] for key in wanted)]


def lines_of(done: Any) -> Iterator[list[str]]:
    """Words of the lines of the table."""
    assert (done.code, done.errors) == (0, ""), done
    table = done.out.split("\n\n")[1]
    return (line.split() for line in table.splitlines())


# ------------------------------------------------------------------------------ epsilon


def test_json_has_every_result_with_its_assumptions(
    results: Results,
) -> None:
    rows = results("--sigma", "6", *RUN)
    expected = account(noise_multiplier=6.0, sampling_rate=0.01, steps=10_000, delta=1e-5)
    assert rows == [result.as_dict() for result in expected]
    assert {row["accountant"] for row in rows} == set(ACCOUNTANTS)
    assert all(row["assumptions"] for row in rows)


def test_options_reach_the_accountants(results: Results) -> None:
    options = ("--layers", "3", "--convention", "per_example", "--batch-size", "600")
    rows = results("--sigma", "6", *RUN, *options, "--accountant", "pld")
    assert round(of(rows, observer="model", relation="add_remove")[0], 3) == 0.033
    # At the tap the noise of one example counts, however many there are in the batch.
    tapped = of(rows, observer="type2", relation="add_remove")
    assert [round(epsilon, 2) for epsilon in tapped] == [1.08, 15.87]
    tapped = of(rows, observer="type2", relation="replace_one")
    assert [round(epsilon, 1) for epsilon in tapped] == [2.3, 40.5]
    summed = results("--sigma", "6", *RUN, "--layers", "3", "--accountant", "pld")
    assert round(of(summed, observer="model", relation="add_remove")[0], 3) == 1.116
    assert of(summed, observer="type2") == [None, None]


def test_sampling_observations_and_groups(results: Results) -> None:
    run = ("--sigma", "4", "--steps", "9", "--delta", "1e-6", "--accountant", "gdp")
    rows = results(*run, "--sampling", "none", "--observations", "5", "--group-size", "2")
    alone = {"relation": "add_remove", "observer": "model", "level": "instance"}
    assert of(rows, **alone) == [pytest.approx(get_epsilon_gaussian(4 / 3, 1e-6))]
    looks = of(rows, relation="add_remove", observer="server")
    assert looks == [pytest.approx(get_epsilon_gaussian(4 / count**0.5, 1e-6)) for count in (1, 5)]
    (client,) = of(rows, relation="add_remove", level="client")
    assert client == pytest.approx(get_epsilon_gaussian(4 / 3 / 2, 1e-6))
    drawn = results(*run, "--q", "0.5", "--sampling", "fixed_size")
    assert of(drawn, observer="server", observations=1, relation="add_remove") == [
        pytest.approx(get_epsilon_gaussian(2, 1e-6))  # another example takes the place
    ]


def test_the_table_shows_what_json_says(leakbench: Command) -> None:
    lines = list(lines_of(leakbench("account", "--sigma", "6", *RUN, "--layers", "3")))
    header, *rows = lines
    assert " ".join(header) == "observer looks level relation accountant epsilon notes"
    shown = {tuple(row[:5]): row[5:] for row in rows}
    assert len(shown) == len(rows) == 2 * len(ACCOUNTANTS) + 6
    assert shown["model", "run", "instance", "add_remove", "pld"][0] == "1.116"
    assert shown["model", "run", "instance", "add_remove", "moments"][0] == "1.219"
    assert shown["server", "100", "instance", "add_remove", "gdp"][0] == "15.867"
    missing = shown["model", "run", "instance", "replace_one", "moments"]
    assert missing[0] == "none" and "its series is for add/remove" in " ".join(missing)
    tapped = shown["type2", "-", "none", "add_remove", "gdp"]
    assert tapped[0] == "none" and "noise enters after the tap" in " ".join(tapped)


def test_assumptions_stand_below_the_table(leakbench: Command) -> None:
    run = ("--sigma", "6", *RUN, "--layers", "3")
    done = leakbench("account", *run)
    _, table, shared, notes = done.out.split("\n\n")
    assert "what the mechanism guarantees" in done.out.splitlines()[0]
    assert "- delta 1e-05\n- sensitivity sqrt(3) C: 3 layers clipped to C apart" in shared
    numbered = dict(line.split(". ", 1) for line in notes.splitlines()[1:])
    poisson, seen = "Poisson sampling, and the observer", "the observer sees who takes part"
    for line in table.splitlines()[1:]:
        texts = [text for number, text in numbered.items() if f"[{number}]" in line]
        assert any(t.startswith(poisson) for t in texts) == line.startswith("model"), line
        assert any(t.startswith(seen) for t in texts) == line.startswith("server"), line
    # Nothing of what JSON says is left out.
    for row in json.loads(leakbench("account", *run, "--json").out)["results"]:
        assert all(text in done.out for text in [row["reason"], *row["assumptions"]])


def test_accountants_can_be_chosen(results: Results) -> None:
    run = ("--sigma", "6", *RUN, "--preset", "paper:tifs-budget")

    def named(*choices: str) -> list[str]:
        options = [word for choice in choices for word in ("--accountant", choice)]
        return [row["accountant"] for row in results(*run, *options)]

    assert named("zcdp", "base", "zcdp") == ["zcdp", "base"]
    assert named("all") == named("base", "all") == named() == list(ACCOUNTANTS)


def test_presets_of_papers_are_watermarked(leakbench: Command) -> None:
    run = (*BUDGET, "--sigma", "6", "--steps", "5000", "--preset", "paper:tifs")
    for accountant, printed in (("advanced", "4.952"), ("zcdp", "0.814"), ("moments", "0.580")):
        done = leakbench("account", *run, "--accountant", accountant)
        _, row = lines_of(done)
        assert row[4:6] == [accountant, printed]
        assert done.out.startswith("preset paper:tifs: REPRODUCTION ONLY")
        assert "- reproduction of printed numbers only, not a guarantee" in done.out


def test_edge_cases_are_said(leakbench: Command, results: Results) -> None:
    for row in results("--sigma", "0", *RUN, "--accountant", "moments")[:2]:
        assert row["epsilon"] is None and row["reason"] == "a step adds no noise"
    _, first, *_ = lines_of(leakbench("account", "--sigma", "0", *RUN, "--accountant", "base"))
    assert first[5] == "inf"
    run = ("--q", "0.5", "--steps", "0", "--delta", "0.1", "--accountant", "base")
    _, first, *_ = lines_of(leakbench("account", "--sigma", "1", *run))
    assert first[5] == "0"
    run = ("--q", "1", "--steps", "1", "--delta", "1e-5", "--accountant", "base")
    _, first, *_ = lines_of(leakbench("account", "--sigma", "1e4", *run))
    assert float(first[5]) == pytest.approx(get_epsilon_gaussian(1e4, 1e-5), rel=5e-3)


# ------------------------------------------------------------------------------ the inverse


def test_sigma_for_the_printed_epsilons(results: Results) -> None:
    """ModelCloak Table III, backwards: three digits of epsilon give two to three of sigma."""
    run = ("--q", "0.1", "--steps", "100", "--delta", "1e-5", "--accountant", "moments")
    for sigma, printed in ((6, "0.678"), (4, "1.082"), (1, "7.899")):
        (row,) = results("--epsilon", printed, *run, "--preset", "paper:cloak")
        assert row["sigma"] == pytest.approx(sigma, rel=2e-3)
        assert (row["target_epsilon"], row["steps"]) == (float(printed), 100)


@pytest.mark.parametrize(
    "options",
    [
        ("--layers", "3"),
        ("--layers", "3", "--convention", "mean", "--batch-size", "7"),
        ("--convention", "per_example", "--batch-size", "7"),
        ("--sampling", "fixed_size"),
        ("--preset", "paper:bcalc", "--layers", "8"),
        ("--preset", "paper:tifs", "--layers", "8"),
    ],
    ids=" ".join,
)
def test_the_sigma_found_is_the_least_that_is_enough(
    results: Results, options: tuple[str, ...]
) -> None:
    run = ("--q", "0.02", "--steps", "300", "--delta", "1e-5", "--accountant", "optimal", *options)
    for row in results("--epsilon", "1.5", *run):
        wanted = {"observer": "model", "relation": row["relation"]}
        assert of(results("--sigma", str(row["sigma"]), *run), **wanted) == [row["epsilon"]]
        assert 1.5 * (1 - 1e-3) < row["epsilon"] <= 1.5
        # What is shown as text has four decimals and must be enough as well.
        (less,) = of(results("--sigma", str(row["sigma"] * 0.9999), *run), **wanted)
        assert less > 1.5


def test_steps_within_a_budget_have_a_closed_form_without_sampling(
    results: Results,
) -> None:
    run = ("--epsilon", "3", "--delta", "1e-5", "--sampling", "none", "--accountant", "gdp")
    for row in results("--sigma", "20", *run):
        apart = {"add_remove": 1, "replace_one": 2}[row["relation"]]

        def spent(steps: int, apart: int = apart) -> float:
            return float(get_epsilon_gaussian(20 / apart / steps**0.5, 1e-5))

        assert spent(row["steps"]) <= 3 < spent(row["steps"] + 1)
        assert row["epsilon"] == pytest.approx(spent(row["steps"]))
        assert row["sigma"] == 20


def test_the_tables_of_the_inverse(leakbench: Command) -> None:
    options = ("--accountant", "moments", "--accountant", "pld")
    header, *rows = lines_of(leakbench("account", "--epsilon", "1", *RUN, *options))
    assert header[4:7] == ["accountant", "sigma", "epsilon"]
    assert [row[3] for row in rows] == ["add_remove"] * 2 + ["replace_one"] * 2
    assert rows[2][4:7] == ["moments", "none", "none"]
    for row in (rows[0], rows[1], rows[3]):
        assert 3.8 < float(row[5]) < 7.5 and row[6] == "1.000"
    run = ("--epsilon", "1", "--sigma", "6", *BUDGET, "--accountant", "base")
    header, *rows = lines_of(leakbench("account", *run))
    assert header[4:7] == ["accountant", "steps", "epsilon"]
    assert int(rows[0][5]) > int(rows[1][5]) > 0


def test_a_shown_sigma_is_rounded_up(leakbench: Command) -> None:
    run = ("--sampling", "none", "--steps", "1", "--delta", "1e-5", "--accountant", "gdp")
    for target in (6, 8, 9, 15):  # the nearest number of four decimals is not enough for these
        _, row, _ = lines_of(leakbench("account", "--epsilon", str(target), *run))
        assert target * (1 - 1e-3) < get_epsilon_gaussian(float(row[5]), 1e-5) <= target


def test_what_cannot_be_found_has_a_reason(
    results: Results,
) -> None:
    # The orders of the moments accountant end, and with them how small its epsilon can be.
    row = results("--epsilon", "1e-5", *RUN, "--accountant", "moments")[0]
    assert row["sigma"] is None and row["reason"] == "no noise is enough"
    row = results("--epsilon", "1", "--sigma", "1e7", *BUDGET, "--accountant", "optimal")[0]
    assert row["steps"] is None and row["reason"] == "lasts 1,000,000 steps or more"
    row = results("--epsilon", "1", "--sigma", "0", *BUDGET, "--accountant", "base")[0]
    assert (row["steps"], row["epsilon"]) == (0, 0)
    run = ("--q", "0.1", "--steps", "0", "--delta", "1e-5", "--accountant", "base")
    row = results("--epsilon", "1", *run)[0]
    assert (row["sigma"], row["epsilon"]) == (0, 0)
    options = ("--accountant", "moments", "--preset", "paper:bcalc")
    (row,) = results("--epsilon", "1", *RUN, *options)
    assert row["sigma"] is None and row["epsilon"] is None and "Poisson" in row["reason"]
    assert row["assumptions"] == list(PRESETS["paper:bcalc"].assumptions)


# ------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("", "got none"),
        ("--q 0.1 --delta 1e-5", "exactly two of --sigma, --steps and --epsilon"),
        ("--sigma 6 --q 0.1 --delta 1e-5", "got --sigma"),
        ("--epsilon 1 --q 0.1 --delta 1e-5", "got --epsilon"),
        ("--sigma 6 --steps 9 --epsilon 1 --q 0.1 --delta 1e-5", "and --epsilon"),
        ("--sigma 6 --steps 9 --delta 1e-5", "account: --q missing"),
        ("--sigma 6 --steps 9 --q 0.1", "account: --delta missing"),
        ("--sigma 6 --steps 9", "account: --q and --delta missing"),
        ("--sigma 6 --steps 9 --q 0.1 --delta 0", "delta must be above 0"),
        ("--sigma 6 --steps 9 --q 0.1 --delta nan", "delta must be above 0"),
        ("--sigma 6 --steps 9 --q 1.1 --delta 1e-5", "--q must be a number or a fraction"),
        ("--epsilon 1e250 --steps 9 --q 0.1 --delta 1e-5", "at most 1e+06"),
        ("--sigma 6 --steps 9 --q 1/0 --delta 1e-5", "--q must be a number or a fraction"),
        ("--sigma 6 --steps 9 --q nan --delta 1e-5", "--q must be a number or a fraction"),
        ("--sigma -1 --layers 3 --steps 9 --q 0.1 --delta 1e-5", "--sigma must be at least 0"),
        ("--sigma nan --steps 9 --q 0.1 --delta 1e-5", "--sigma must be at least 0"),
        ("--sigma inf --steps 9 --q 0.1 --delta 1e-5", "finite, got inf"),
        ("--epsilon 0 --steps 9 --q 0.1 --delta 1e-5", "--epsilon must be above 0"),
        ("--epsilon nan --sigma 9 --q 0.1 --delta 1e-5", "--epsilon must be above 0"),
        ("--epsilon 1 --sigma 9 --q 2 --delta 1e-5", "--q must be a number or a fraction"),
        ("--epsilon 1 --steps 9 --q 0.1 --delta 1", "delta must be above 0"),
        ("--sigma 6 --steps 9 --q 0.1 --delta 1e-5 --accountant momens", "mean 'moments'?"),
        ("--sigma 6 --steps 9 --q 0.1 --delta 1e-5 --preset paper:tif", "mean 'paper:tifs'?"),
        ("--sigma 6 --steps 9 --q 0.1 --delta 1e-5 --convention mean", "needs --batch-size"),
        ("--sigma 6 --steps 9 --q 0.1 --delta 1e-5 --batch-size 8", "--batch-size must be left"),
        ("--sigma 6 --steps 9 --q 0.1 --delta 1e-5 --sampling none", "--q must be left out"),
        (
            "--sigma 6 --steps 9 --q 0.1 --delta 1e-5 --preset paper:tifs --observations 3",
            "--preset paper:tifs fixes how the paper counts: --observations must be left out",
        ),
        (
            "--epsilon 6 --steps 9 --q 0.1 --delta 1e-5 --observations 3 --group-size 2",
            "--observations and --group-size must be left out",
        ),
        ("--table tifs5 --sigma 6 --layers 2", "--sigma and --layers must be left out"),
        ("--table tifs", "did you mean 'tifs"),
        ("--table list", ", ".join(sorted(TABLES))),
    ],
)
def test_bad_input_ends_with_one_sentence(leakbench: Command, args: str, words: str) -> None:
    for form in ((), ("--json",)):
        done = leakbench("account", *args.split(), *form)
        assert (done.code, done.out) == (2, "")
        (line,) = done.errors.splitlines()
        assert line.startswith("leakbench: ") and words in line


@pytest.mark.parametrize(
    "args", ["--steps -1", "--steps 1.5", "--layers 0", "--sigma six", "--convention median",
             "--sampling shuffle", "--group-size 0"],
)  # fmt: skip
def test_misused_options_end_with_code_2(leakbench: Command, args: str) -> None:
    done = leakbench("account", *args.split())
    assert done.code == 2
    assert done.out == "" and done.errors


# ------------------------------------------------------------------------------ tables


def test_a_table_is_printed_cell_by_cell(leakbench: Command) -> None:
    done = leakbench("account", "--table", "tifs5")
    assert (done.code, done.errors) == (0, "")
    first, second, *_, last = done.out.splitlines()
    assert first == "TIFS Table V: epsilon after full training"
    assert "REPRODUCTION ONLY" in second
    assert last == "30 of 30 cells match; 0 are known not to."
    lines = [line.split() for line in done.out.splitlines() if line.startswith("lfw, all")]
    shown = {words[3]: words[4:] for words in lines}
    printed = {"base": "74.024", "advanced": "5.503", "optimal": "5.037", "zcdp": "0.893",
               "moments": "0.636"}  # fmt: skip
    assert {column: words[0] for column, words in shown.items()} == printed
    for words in shown.values():
        assert abs(float(words[1]) - float(words[0])) <= 0.00051
        assert words[2] == "yes"
        assert words[-1] == "steps"


def test_a_table_as_json(leakbench: Command) -> None:
    done = leakbench("account", "--table", "icdcs6", "--json")
    assert (done.code, done.errors) == (0, "")
    content = json.loads(done.out, parse_constant=pytest.fail)
    assert list(content) == ["table", "title", "preset", "cells"]
    assert (content["table"], content["preset"]) == ("icdcs6", "paper:icdcs")
    assert [cell["printed"] for cell in content["cells"]][-2:] == ["0.3025", "0.2065"]
    assert [cell["match"] for cell in content["cells"]] == [False] * 2 + [True] * 13
    assert content["cells"][0]["note"] == "0.08445 rounded once more"
    last = leakbench("account", "--table", "icdcs6").out.splitlines()[-1]
    assert last == "13 of 15 cells match; 2 are known not to."


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(
    ("computed", "expected", "code", "words"),
    [
        (0.6444, True, 0, "yes"),
        (0.6544, False, 0, "no, as expected"),
        (0.6544, True, 1, "NO, UNEXPECTED"),
        (0.6444, False, 1, "YES, UNEXPECTED"),
        (None, False, 0, "no, as expected"),
        (None, True, 1, "NO, UNEXPECTED"),
    ],
)
def test_a_cell_against_expectation_ends_with_code_1(
    leakbench: Command, monkeypatch: pytest.MonkeyPatch,
    computed: float | None, expected: bool, code: int, words: str, as_json: bool,
) -> None:  # fmt: skip
    cells = (
        PrintedNumber(row="r", column="c", printed="0.64", computed=computed, expected=expected),
        PrintedNumber(row="r", column="d", printed="97", computed=97),
    )
    made = EpsilonTable(name="made", title="Made", preset="paper:tifs", cells=cells)
    monkeypatch.setattr(tables, "table", lambda name: made)
    done = leakbench("account", "--table", "made", *(["--json"] if as_json else []))
    assert done.code == code
    assert done.errors == ("made: 1 of 2 cells not as expected\n" if code else "")
    if as_json:
        assert len(json.loads(done.out)["cells"]) == 2
    else:
        shown = "-" if computed is None else f"{computed:.3f}"
        assert f"0.64     {shown:<8}  {words}" in done.out
        assert "97       97        yes" in done.out


# ------------------------------------------------------------------------------ ceilings

CEILINGS = ("--sigma", "0.6", "--q", "0.1", "--steps", "100", "--delta", "1e-5", "--accountant",
            "pld", "--observations", "3")  # fmt: skip


@pytest.mark.parametrize("prior", ["1/1000", "0.001"])
def test_how_often_the_right_one_is_named(leakbench: Command, prior: str) -> None:
    """The model's as dp-accounting has it (test_power); who sees updates, in closed form."""
    done = leakbench("account", *CEILINGS, "--prior", prior, "--json")
    found = json.loads(done.out)["ceilings"]
    seen = [(each["observer"], each["observations"], each["success"]) for each in found]
    once, thrice = (float(norm.sf(norm.isf(0.001) - math.sqrt(k) / 0.6)) for k in (1, 3))
    assert seen == [
        ("model", None, pytest.approx(0.3226, abs=2e-4)),
        ("server", 1, pytest.approx(once, rel=1e-9)),
        ("server", 3, pytest.approx(thrice, rel=1e-9)),
        ("type2", None, None),
    ]
    assert all(each["prior"] == 0.001 for each in found)
    text = leakbench("account", *CEILINGS, "--prior", prior).out
    assert "with chance 0.001 (1 in 1,000) without a look" in text
    rows = [line.split() for line in text.partition("Naming the right one")[2].splitlines()]
    shown = [float(row[3]) for row in rows if row[:2] == ["server", "3"]]
    assert any(thrice <= number <= thrice * 1.001 for number in shown)
    assert "ceilings" not in json.loads(leakbench("account", *CEILINGS, "--json").out)


def test_a_ceiling_for_all_examples_of_a_client(leakbench: Command) -> None:
    args = (*CEILINGS, "--convention", "per_example", "--batch-size", "4", "--group-size", "3")
    found = json.loads(leakbench("account", *args, "--prior", "0.01", "--json").out)["ceilings"]
    levels = [(each["observer"], each["level"]) for each in found]
    assert levels[:3] == [("model", "instance"), ("model", "client"), ("server", "instance")]
    assert found[0]["success"] < found[1]["success"]
    own, averaged = found[-1], found[3]
    assert own["observer"] == "type2" and averaged["observer"] == "server"
    assert own["success"] == pytest.approx(
        float(norm.sf(norm.isf(0.01) - math.sqrt(3) / 0.6)), rel=1e-9
    )
    assert averaged["success"] == pytest.approx(
        float(norm.sf(norm.isf(0.01) - math.sqrt(3) / 1.2)), rel=1e-9
    )


@pytest.mark.parametrize("prior", ["0", "2", "1/0", "few", "nan"])
def test_a_prior_is_a_chance(leakbench: Command, prior: str) -> None:
    done = leakbench("account", *CEILINGS, "--prior", prior)
    assert done.code == 2
    said = f"--prior must be a number or a fraction (1/1000) above 0 and at most 1, got '{prior}'"
    assert said in done.errors


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--epsilon", "1", "--sigma", "1", *BUDGET), "--prior must be left out"),
        (("--sigma", "1", *RUN, "--preset", "paper:tifs"), "--prior must be left out"),
    ],
)
def test_a_prior_needs_a_given_run(leakbench: Command, args: tuple[str, ...], said: str) -> None:
    assert said in leakbench("account", *args, "--prior", "0.1").errors


# ------------------------------------------------------------------------------ what it loads


def test_accountants_are_listed(leakbench: Command) -> None:
    rows = json.loads(leakbench("list", "accountants", "--json").out)["accountants"]
    assert {row["name"]: row["summary"] for row in rows} == ACCOUNTANTS
    assert {row["status"] for row in rows} == {"ok"}
    assert "pld" in leakbench("list", "accountants").out


@pytest.mark.parametrize(
    "args",
    [
        ("account", "--sigma", "6", *RUN, "--layers", "3"),
        ("account", "--epsilon", "1", *RUN, "--accountant", "base"),
        ("account", "--table", "cloak3"),
        ("list", "accountants"),
    ],
    ids=lambda args: " ".join(args[:2]),
)
def test_torch_is_not_loaded(args: tuple[str, ...]) -> None:
    text = (
        "import sys\n"
        "from leakbench.cli import main\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        "    print('loaded' if 'torch' in sys.modules else 'not loaded', file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", text, *args],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "not loaded\n")
    assert done.stdout


def test_a_rate_may_be_a_fraction(leakbench: Command) -> None:
    args = ("--sigma", "2", "--steps", "10", "--delta", "1e-5", "--accountant", "moments", "--json")
    one = leakbench("account", "--q", "256/6400", *args)
    other = leakbench("account", "--q", "0.04", *args)
    assert one.out == other.out and json.loads(one.out)["results"][0]["epsilon"] > 0


@pytest.mark.parametrize(
    "chance",
    [
        "1e400",
        "1e999999999",
        "nan",
        "inf",
        "-1",
        "1e-400",
        "1/0",
        "1e5/1e9",
        "9" * 5000,
        "1/" + "9" * 400,
    ],
)
def test_chances_beyond_floats_are_one_sentence_at_once(
    leakbench: Callable[..., Any], chance: str
) -> None:
    """Python makes fractions of numbers with exponents digit by digit: 10^999999999 takes hours."""
    done = leakbench("account", "--sigma", "1", f"--q={chance}", "--steps", "9", "--delta", "1e-5")
    assert done.code == 2 and done.out == ""
    assert done.errors.startswith(
        "leakbench: --q must be a number or a fraction (256/60000) from 0"
    )
    assert done.errors.count("\n") == 1 and len(done.errors) < 200
