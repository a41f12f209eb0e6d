"""The answer of a report and its figures, against its records."""

from __future__ import annotations

import csv
import dataclasses
import functools
import io
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import leakbench as lb
from leakbench.errors import LeakbenchError
from leakbench.report import outcome_figures, pictures, renderings, strips
from leakbench.report.answer import Answer, Step, answer
from leakbench.report.content import DatasetEntry, Note, Report
from leakbench.report.figures import look_of, page_of
from leakbench.report.kinds import FigureKind
from leakbench.statistics import Interval

RESULTS = Path(__file__).parent.parent / "results"


@functools.cache
def shipped() -> Report:
    return lb.load(RESULTS / "tifs_table3-quick").content()


@pytest.fixture(scope="module")
def table3() -> Report:
    return shipped()


@pytest.fixture(scope="module")
def said(table3: Report) -> Answer:
    return answer(table3)


@pytest.fixture(scope="module")
def records() -> pandas.DataFrame:
    return lb.load(RESULTS / "tifs_table3-quick").frame()


def test_a_strip_shows_the_worst_attacker_of_each_row(
    said: Answer, records: pandas.DataFrame
) -> None:
    """Rates counted again from the records: clamped MSE and rank are all that the rules read."""
    records = records[records.status.isin(["ok", "nan", "diverged"])]
    trivial = records[[f"baselines.{n}" for n in ("start_image", "mean_image", "class_mean")]]
    counted = records.assign(
        exact=(records.mse_clamped < 0.01) & (records.mse_clamped < 0.25 * trivial.min(axis=1)),
        named=records["rank"] == 1,
    )
    rates = counted.groupby(["dataset", "row", "knowledge"])[["exact", "named"]].mean()
    worst = rates.groupby(["dataset", "row"]).max()
    shown = {
        (strip.dataset, row.row): [
            None if (step := row.step(name)) is None else step.rate.value
            for name in ("exact", "named")
        ]
        for strip in said.strips
        for row in strip.rows
        if row.steps
    }
    assert len(shown) == len(worst) == 24
    for place, values in worst.iterrows():
        assert shown[place] == pytest.approx(values.tolist())


def test_every_row_is_in_one_sentence(said: Answer) -> None:
    for strip in said.strips:
        for kind in ("leaked", "named", "held", "unclear", "not measured"):
            rows = [row.row for row in strip.rows if row.kind == kind]
            (sentence,) = [s for s in strip.sentences if s.kind == kind] or [None]
            assert (sentence is None) == (not rows)
            if sentence is not None:
                named = dict.fromkeys(part.row for part in sentence.parts if part.row)
                assert list(named)[:6] == rows[:6]


def test_the_sentences_of_the_shipped_table(said: Answer) -> None:
    digits = said.strips[0]
    leaked, held, missed = digits.sentences
    first = "Recovered: non-private (16 of 16, 95 % interval 0.81 to 1.00); DP-baseline, noise on "
    assert leaked.text.startswith(f"{first}the mean (16 of 16, 0.81 to 1.00, by an attacker ")
    for strip in said.strips:
        assert sum(s.text.count("95 % interval") for s in strip.sentences) == bool(strip.headers)
    assert "by an attacker who knows the defense; 0.06 by one who ignores it" in leaked.text
    assert (
        "after the place where this attacker reads: DP-baseline, noise on the mean" in leaked.text
    )
    assert "excludes rates above 0.19" in held.text and "more than 0.00519" in held.text
    assert "No guarantee stands behind DP-dyn[S,sigma], sigma0=6" in held.text
    assert "AdaClip (printed 0.72, here 0.00 in 3 readings and 1.00 in 1 reading; 2 " in missed.text
    assert "The start image itself passes: mean, raw, mean, clamped." in digits.beside
    faces = said.strips[-1]
    assert not faces.headers and "LEAKBENCH_DATA" in faces.sentences[0].text


def test_a_guarantee_is_missing_behind_it_or_behind_any_of_them(table3: Report) -> None:
    dyn = [cell for cell in table3.cells if cell.row.startswith("dp_dyn")]
    for count, words in ((2, "behind any of them."), (1, "behind it.")):
        rows = list(dict.fromkeys(cell.row for cell in dyn))[:count]
        cells = tuple(cell for cell in dyn if cell.row in rows)
        (held, *_) = answer(dataclasses.replace(table3, cells=cells)).strips[0].sentences
        assert held.kind == "held" and words in held.text


def test_who_picks_from_a_list_recovers_nothing(table3: Report) -> None:
    cells = [
        dataclasses.replace(cell, grants=("candidates",), attack="candidates")
        if cell.knowledge == "adaptive" else cell
        for cell in table3.cells
    ]  # fmt: skip
    (row,) = [
        row for row in answer(dataclasses.replace(table3, cells=tuple(cells))).strips[0].rows
        if row.row == "dp_sgd"
    ]  # fmt: skip
    exact, matched = row.step("exact"), row.step("matched")
    assert exact is not None and exact.rate.value == 1 / 16 and exact.attacker == "cpl naive"
    assert matched is not None and matched.rate.value == 1 and row.kind == "named"


def test_too_few_trials_are_no_leak_and_no_protection(table3: Report) -> None:
    naive = tuple(cell for cell in table3.cells if cell.knowledge == "naive")
    rows = answer(dataclasses.replace(table3, cells=naive)).strips[0].rows
    kinds = {row.row: row.kind for row in rows}
    assert kinds["none"] == "leaked" and kinds["dp_baseline"] == "held"
    assert kinds["dp_sgd"] == "unclear"  # 1 of 16


HOSTILE = '<script>alert(1)</script> | a\nb \x1b[31mred =1+1 "><img src=x onerror=alert(2)>'


def test_hostile_names_break_no_form(table3: Report) -> None:
    cells = tuple(dataclasses.replace(cell, label=HOSTILE) for cell in table3.cells)
    changed = dataclasses.replace(table3, cells=cells, title=HOSTILE, question=HOSTILE)
    page = renderings.to_html(changed)
    assert page.count("<script") == 1 and "<script>alert" not in page
    assert "<img" not in page and "onerror=alert(2)&gt;" in page
    text = renderings.to_markdown(changed)
    assert "<script" not in text and "<img" not in text and "\x1b" not in text
    counts = {line.count("|") - line.count("\\|") for line in text.splitlines() if line[:2] == "| "}
    table = strips.strip_table(answer(changed).strips[0])
    assert len(table.header) + 1 in counts and 1 not in counts
    assert "'=1+1" in renderings.to_csv(dataclasses.replace(table3, cells=(
        dataclasses.replace(table3.cells[0], label="=1+1"),
    )))  # fmt: skip
    shown = renderings.to_terminal(changed, width=80, colour=False)
    assert "\x1b" not in shown and all(len(line) <= 80 for line in shown.splitlines())


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 200])
def test_a_terminal_is_never_too_narrow(table3: Report, width: int) -> None:
    shown = renderings.to_terminal(table3, width=width, colour=False)
    assert all(len(line) <= max(width, 40) for line in shown.splitlines())
    assert ("[0.81, 1.00]" in shown) == (width >= 120) or width == 100


def test_shades_show_every_rate_above_nothing() -> None:
    rates = [
        Step(name="exact", rate=Interval(r, None, None), attacker="") for r in (0, 1e-3, 0.5, 1)
    ]
    assert [strips.shade(step) for step in rates] == [0, 1, 5, 10]
    assert strips.shade(Step(name="ceiling", rate=Interval(1, None, None), attacker="")) == 0


# ------------------------------------------------------------------------------ figures


def test_shares_below_a_threshold_are_counts() -> None:
    errors = [0.5, None, 0.1, math.inf, 0.1]
    found, shares = outcome_figures.shares_below(errors)
    assert found == [0.1, 0.1, 0.5] and shares == [0.2, 0.4, 0.6]


def test_of_many_points_some_are_drawn() -> None:
    assert outcome_figures.thinned(3) == [0, 1, 2] and outcome_figures.thinned(0) == []
    some = outcome_figures.thinned(12_345)
    assert some[-1] == 12_344 and len(some) == 400
    steps = [after - before for before, after in zip([-1, *some], some, strict=False)]
    assert set(steps) == {30, 31}  # no share is off by more than 1 / 400


def test_the_nearest_reading_stands_beside_print(table3: Report) -> None:
    pairs = outcome_figures.printed_rates(table3)
    with_print = [c for c in table3.cells if c.networks and c.verdict and c.verdict.asr]
    assert len(pairs) == len(with_print) == 15
    for pair, cell in zip(pairs, with_print, strict=True):
        assert cell.printed is not None
        values = [cell.asr[rule.name].value or 0.0 for rule in table3.rules if rule.paper]
        nearest = min(abs(value - float(cell.printed.asr)) for value in values)
        assert abs(pair.ours - pair.printed) == pytest.approx(nearest)
        assert pair.low <= pair.ours <= pair.high


@pytest.fixture(scope="module")
def drawn() -> pictures.Drawn:
    return lb.load(RESULTS / "tifs_table3-quick").drawn()


@pytest.mark.parametrize("kind", ["threshold", "effort", "printed"])
def test_figures_hold_text(kind: str, drawn: pictures.Drawn) -> None:
    svg = drawn.picture(FigureKind(kind), ".svg")
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", svg.decode())
    wanted = {
        "threshold": "DP-baseline, noise on the mean (adaptive)", "effort": "gradient evaluations",
        "printed": "not reproduced (5)",
    }  # fmt: skip
    assert wanted[kind] in texts


def test_every_point_beside_print_says_what_it_is(drawn: pictures.Drawn) -> None:
    (row,) = outcome_figures.printed_rows(drawn.content)
    pairs = outcome_figures.printed_rates(drawn.content)
    names = [name.label for name in row.names]
    assert "MNIST handwritten digits, non-private" in " ".join(names)
    (axes,) = page_of([row]).axes
    for text in axes.texts:
        for number in map(int, text.get_text().split(",")):
            pair = pairs[number - 1]
            assert text.xy == (pair.printed, pair.ours)
            assert any(name.startswith(f"{number}  {pair.label}: ") for name in names)
    shown = sorted(int(n) for text in axes.texts for n in text.get_text().split(","))
    assert shown == list(range(1, len(pairs) + 1))


def test_the_papers_threshold_is_not_of_a_method(drawn: pictures.Drawn) -> None:
    (row, *_) = outcome_figures.threshold_rows(drawn.outcomes)
    paper = next(name.look for name in row.names if name.label.startswith("0.70"))
    methods = [look_of(number) for number in range(32)]
    assert paper["color"] not in {look["color"] for look in methods}
    assert paper["linestyle"] not in {look["linestyle"] for look in methods}
    for axes in page_of([row]).axes:
        (line,) = [one for one in axes.lines if list(one.get_xdata()) == [0.7, 0.7]]
        assert line.get_color() == paper["color"]


def test_rows_that_stay_at_zero_have_a_limit_to_their_end(drawn: pictures.Drawn) -> None:
    """Eight networks of two victims: of none in 16, Wilson's upper end is z^2 / (16 + z^2)."""
    rows = outcome_figures.effort_rows(drawn.known.plan, drawn.outcomes)
    for row, outcomes in zip(rows, drawn.outcomes.values(), strict=True):
        (axes,) = page_of([row]).axes
        limit = next(name for name in row.names if name.label.startswith("95 % limit"))
        (line,) = [
            one for one in axes.lines if one.get_linestyle() == "--" and one.get_marker() == "None"
        ]
        spent = [
            max(record["evaluations"] for record in one.trials.all_entering)
            for one, curve in zip(outcomes, axes.lines, strict=False)
            if max(curve.get_ydata()) == 0
        ]
        height = 1.959964**2 / (16 + 1.959964**2)
        assert line.get_color() == limit.look["color"] and len(spent) > 1
        assert line.get_xydata().tolist() == [
            [0, pytest.approx(height)], [max(spent), pytest.approx(height)],
        ]  # fmt: skip


def test_a_suite_that_attacks_nothing_has_no_such_figure(table3: Report) -> None:
    empty = dataclasses.replace(table3, cells=())
    assert answer(empty).strips == ()
    with pytest.raises(LeakbenchError, match="nothing is printed"):
        outcome_figures.printed_rows(empty)


EVIL = (
    "=1+1", "+x", "-x", "@x", "|", "\\|", "</details>", "<script>x</script>", "a\r\nb", "\x1b[2J",
    "\u202ex", "`", "[x](javascript:x)", '" onload="x', "</script><script>x", "{{ 7 * 7 }}",
)  # fmt: skip


class Tags(HTMLParser):
    """Tags of a page with the names of their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, ...]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs if not name.startswith("data-sort")]  # numbers sort
        self.found.append((tag, *names))


def named(whole: Report, text: str) -> Report:
    """A small report in which everything that a suite may say is this text."""
    return dataclasses.replace(
        whole,
        cells=tuple(dataclasses.replace(cell, label=text) for cell in whole.cells[:2]),
        title=text, source=text, question=text, reading_guide=text,
        datasets={"mnist": DatasetEntry(title=text)}, notes=(Note(text=text, source="suite"),),
    )  # fmt: skip


def bars(text: str) -> list[int]:
    """Columns of every line of a table."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [len(re.findall(r"(?<!\\)\|", line)) for line in lines]


@functools.cache
def plain() -> tuple[list[tuple[str, ...]], list[int]]:
    """What a harmless name gives."""
    harmless = named(shipped(), "x")
    return Tags(renderings.to_html(harmless)).found, bars(renderings.to_markdown(harmless))


NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30) | st.sampled_from(EVIL)


@settings(max_examples=20, deadline=None)
@given(text=NAMES)
def test_fuzzed_names_break_no_form(text: str) -> None:
    check_forms(text)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(text=NAMES)
def test_many_fuzzed_names_break_no_form(text: str) -> None:
    check_forms(text)


@pytest.mark.parametrize("text", EVIL)
def test_evil_names_break_no_form(text: str) -> None:
    check_forms(text)


def check_forms(text: str) -> None:
    """HTML has the tags, Markdown the columns that a harmless name gives; no other form runs."""
    whole = shipped()
    text = f"x{text}" if not text.strip() else text
    made, (tags, columns) = named(whole, text), plain()
    assert Tags(renderings.to_html(made)).found == tags
    markdown = renderings.to_markdown(made)
    assert bars(markdown) == columns
    assert not re.search("<(?!/?details>|/?summary>)[A-Za-z/!?]", markdown)
    shown = re.sub("\x1b\\[[0-9;]*m", "", renderings.to_terminal(made, width=80, colour=True))
    assert all(letter.isprintable() or letter == "\n" for letter in shown)
    for row in csv.reader(io.StringIO(renderings.to_csv(made))):
        assert not any(re.match(r"\s*[=+@]|\s*-(?![\d.]|$|inf)", cell) for cell in row)
