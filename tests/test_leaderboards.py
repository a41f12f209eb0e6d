"""Boards: who shares a place, what is never ranked together, hostile words, the commands."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leakbench import loading, runner
from leakbench.errors import LeakbenchError
from leakbench.leaderboard import boards, packs, pages, scores, submissions
from leakbench.leaderboard.boards import above, below, places
from leakbench.report.content import FinalEpsilon, Report
from leakbench.statistics import Interval, median_interval
from leakbench.suite import resolve

SUITE = Path(__file__).with_name("leak_pack.toml")


def rate(value: float, low: float, high: float) -> Interval:
    return Interval(value, low, high)


# ------------------------------------------------------------------------------ places


def test_places_are_shared_where_intervals_meet() -> None:
    rates = [rate(0.9, 0.8, 1.0), rate(0.75, 0.6, 0.85), rate(0.6, 0.5, 0.7), rate(0.1, 0.0, 0.3)]
    assert places(rates, above) == [1, 1, 2, 4]
    assert places(rates, below) == [3, 2, 2, 1]
    assert places([rate(0.5, 0.4, 0.6)] * 3, above) == [1, 1, 1]
    assert places([rate(0.5, 0.5, 0.5), rate(0.5, 0.5, 0.5)], above) == [1, 1]  # meet in a point
    assert places([Interval(0.9, None, None), rate(0.1, 0.0, 0.2)], above) == [1, 1]


def test_a_median_has_an_interval_that_covers() -> None:
    generator = np.random.default_rng(3)
    covered = 0
    for _ in range(100):
        networks = generator.exponential(size=(4, 20)).tolist()
        found = median_interval(networks, resamples=200)
        assert found.value == pytest.approx(np.median(networks))
        assert found.low is not None and found.high is not None
        covered += found.low <= np.log(2) <= found.high  # median of an exponential
    assert 88 <= covered <= 100
    assert median_interval([[2.0]]) == Interval(2.0, None, None)
    assert median_interval([[]]) == Interval(None, None, None)


@pytest.mark.parametrize(
    ("epsilon", "words"),
    [(0.1, "up to 1"), (1.0, "up to 1"), (1.01, "1 to 2"), (2.0, "1 to 2"), (5.0, "4 to 8")],
)
def test_epsilons_are_equal_between_powers_of_two(epsilon: float, words: str) -> None:
    assert boards.epsilon_band(epsilon) == words


@pytest.mark.parametrize(
    ("accuracy", "words"),
    [(0.0, "0.00 to 0.05"), (0.1, "0.10 to 0.15"), (0.95, "0.95 to 1.00"), (1.0, "0.95 to 1.00")],
)
def test_accuracies_are_equal_within_five_points(accuracy: float, words: str) -> None:
    assert boards.accuracy_band(accuracy) == words


# ------------------------------------------------------------------------------ attacks


def scored(name: str, strict: Interval, **changes: Any) -> scores.Score:
    row = scores.Row(
        row="mnist/none", label="no defense", dataset="mnist", defense="none",
        guarantee="none: nothing is promised", networks=1, answered=1, inputs=8,
        rates={"strict": strict}, mse=rate(0.1, 0.05, 0.2), psnr=rate(10, 7, 13), labels=None,
        mean_image=0.06, victims=(),
    )  # fmt: skip
    said = submissions.Submission(
        schema=1, name=name, method="m", pack="a" * 64, link=changes.pop("link", ""),
        budget=submissions.Budget(hardware=changes.pop("hardware", "")),
    )  # fmt: skip
    counts = packs.Counts(
        name="strict", label="recovered", condition="MSE < 0.01", recovers=True, names=False
    )
    return dataclasses.replace(
        scores.Score(
            schema=1, kind="score", pack="a" * 64, pack_name="p", pack_title="A pack",
            counts=(counts,), submission=said, judge="j", rows=(row,),
        ),
        **changes,
    )  # fmt: skip


def test_attacks_are_ranked_on_the_same_leaks_only() -> None:
    several = [
        scored("weak", rate(0.1, 0.0, 0.3)),
        scored("strong", rate(0.9, 0.7, 1.0)),
        scored("as strong", rate(0.8, 0.6, 0.95)),
        scored("nobody", rate(0.0, 0.0, 0.8)),  # no worse than chance has it, and no success
        scored("elsewhere", rate(0.1, 0.0, 0.3), pack="b" * 64),
        scored("nowhere", rate(0.0, 0.0, 0.1), pack="c" * 64),
    ]
    found = boards.board(several, ())
    first, second, third = found.attacks
    assert [(each.name, each.place) for each in first.entries] == [
        ("strong", 1), ("as strong", 1), ("weak", 3), ("nobody", None),
    ]  # fmt: skip
    assert [(each.name, each.place) for each in second.entries] == [("elsewhere", 1)]
    assert [(each.name, each.place) for each in third.entries] == [("nowhere", None)]
    (line,) = (line for line in pages.to_markdown(found).splitlines() if "nowhere" in line)
    assert [cell.strip() for cell in line.split("|")][1:3] == ["nowhere", "-"]


def test_scores_of_other_judges_do_not_mix() -> None:
    several = [scored("a", rate(1, 1, 1)), scored("b", rate(1, 1, 1), judge="other")]
    with pytest.raises(LeakbenchError, match="different rules or metrics"):
        boards.board(several, ())


def test_scores_that_are_not_what_score_writes_are_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "score.json"
    sound = scores.to_json(scored("a", rate(0.5, 0.2, 0.8)))
    for rates, words in (
        ({"strict": {"value": 2.0, "low": 0.2, "high": 0.8}}, "not low <= value <= high"),
        ({"strict": {"value": 0.5, "low": 0.2, "high": None}}, "two ends or none"),
        ({"strict": {"value": 10**400, "low": None, "high": None}}, "must be a number or null"),
        ({}, "rates of different rules"),
    ):
        row = {**sound["rows"][0], "rates": rates}
        path.write_text(json.dumps({**sound, "rows": [row]}), encoding="utf-8")
        with pytest.raises(LeakbenchError, match=words):
            boards.board([scored("b", rate(1, 1, 1)), scores.read(path)], ())


# ------------------------------------------------------------------------------ defenses


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """A finished run of two defenses without trainings, and one entry of a training for each."""
    folder = tmp_path_factory.mktemp("run")
    runner.run(resolve(str(SUITE), "quick"), folder / "run", root=None)
    found = loading.load(folder / "run").content()
    assert not found.costs
    return found


def with_costs(report: Report, prices: dict[str, tuple[float | None, float]]) -> Report:
    """prices: defense -> (epsilon, accuracy)."""
    from leakbench.report.content import CostEntry

    nothing = Interval(None, None, None)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(CostEntry):
        kind = str(field.type)
        values[field.name] = (
            nothing if kind == "Interval" else () if kind.startswith("tuple") else
            "" if kind == "str" else 0 if kind in ("int", "bool") else None
        )  # fmt: skip
    costs = [
        CostEntry(
            **{
                **values, "dataset": "mnist", "row": defense, "defense": defense, "label": defense,
                "model": "mlp", "accuracy": rate(accuracy, accuracy, accuracy), "rounds": 3,
                "privacy": FinalEpsilon(
                    epsilon=epsilon, delta=1e-5, level="instance", relation="add_remove",
                    accountant="pld", observer="model", sampling="poisson", reason="none",
                ),
            }
        )
        for defense, (epsilon, accuracy) in prices.items()
    ]  # fmt: skip
    return dataclasses.replace(report, costs=tuple(costs))


def test_no_leakage_without_its_price(report: Report) -> None:
    found = boards.board((), [report])
    assert not found.defenses
    (left,) = found.unranked
    assert set(left.labels) == {"no defense", "clipping and noise"}
    assert "no accuracy" in left.reason


def test_heuristics_and_guarantees_share_no_table(report: Report) -> None:
    priced = with_costs(report, {"open": (None, 0.9), "noisy": (3.0, 0.8)})
    dp, heuristic = boards.board((), [priced]).defenses
    assert (dp.kind, heuristic.kind) == ("dp", "heuristic")
    (noisy,), (plain,) = dp.entries, heuristic.entries
    assert (noisy.label, noisy.epsilon, noisy.at_epsilon) == ("clipping and noise", 3.0, "2 to 4")
    assert (plain.label, plain.recovered.value) == ("no defense", 1.0)
    assert (noisy.place_at_epsilon, noisy.place_at_accuracy) == (1, 1)
    assert (plain.place_at_epsilon, plain.place_at_accuracy) == (None, 1)
    page = pages.to_html(boards.board((), [priced]))
    assert "epsilon" in page and "0.800" in page and "0.900" in page


def test_only_attackers_who_know_the_defense_count(report: Report) -> None:
    priced = with_costs(report, {"open": (None, 0.9), "noisy": (3.0, 0.8)})
    worse = [
        dataclasses.replace(cell, asr={name: rate(1, 1, 1) for name in cell.asr})
        if cell.knowledge == "naive" else cell
        for cell in priced.cells
    ]  # fmt: skip
    changed = dataclasses.replace(priced, cells=tuple(worse))
    assert boards.board((), [changed]) == boards.board((), [priced])
    alone = tuple(cell for cell in priced.cells if cell.knowledge == "naive")
    found = boards.board((), [dataclasses.replace(priced, cells=alone)])
    assert not found.defenses
    (left,) = found.unranked
    assert set(left.labels) == {"no defense", "clipping and noise"}
    assert left.reason == "no attacker who knows it has a result"


def test_defenses_of_equal_price_are_ranked_and_others_are_not(report: Report) -> None:
    """By hand: recovered 1.00 [.61, 1], 0.00 [0, .39]; at other prices everybody is first."""
    for second, wanted in (((3.5, 0.82), {1, 2}), ((9.0, 0.6), {1})):
        priced = with_costs(report, {"open": (3.0, 0.8), "noisy": second})
        (table,) = boards.board((), [priced]).defenses
        assert {entry.place_at_epsilon for entry in table.entries} == wanted
        assert {entry.place_at_accuracy for entry in table.entries} == wanted
        worst = next(entry for entry in table.entries if entry.label == "no defense")
        assert worst.place_at_epsilon == max(wanted)


# ------------------------------------------------------------------------------ words


class Tags(HTMLParser):
    """Tags of a page, and where its links lead."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, tuple[str, ...]]] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, tuple(name for name, _ in attrs)))
        self.links += [value or "" for name, value in attrs if name == "href"]


def tags(page: str) -> Tags:
    found = Tags()
    found.feed(page)
    return found


HOSTILE = "<script>alert(1)</script>|\"' onload=x ![a](https://b) `c` [d](javascript:e)\n\x1b[31m"


def test_words_of_strangers_stay_words() -> None:
    plain = boards.board([scored("name", rate(1, 1, 1), hardware="words")], ())
    hostile = scored(HOSTILE, rate(1, 1, 1), hardware=HOSTILE, pack_title=HOSTILE)
    row = dataclasses.replace(hostile.rows[0], label=HOSTILE, dataset=HOSTILE, guarantee=HOSTILE)
    board = boards.board([dataclasses.replace(hostile, rows=(row,))], ())
    page, text = pages.to_html(board), pages.to_markdown(board)
    assert tags(page).seen == tags(pages.to_html(plain)).seen
    assert "\x1b" not in page + text
    for wrong in ("<", "](", "\n[31m"):
        assert wrong not in text.replace("\\]", "")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == 3
    assert len({line.replace("\\|", "").count("|") for line in lines}) == 1
    said = scores.to_markdown(dataclasses.replace(hostile, rows=(row,)))
    assert "<" not in said and "](" not in said.replace("\\]", "")
    said = scores.to_terminal(dataclasses.replace(hostile, rows=(row,)))
    assert "\x1b" not in said and "<script>alert(1)</script>|\"' onload=x" in said
    assert not set(re.findall(r"&\w+;|\\[_*`#<|\]]", said))  # nothing is escaped for a page


def test_links_are_links() -> None:
    found = tags(pages.to_html(boards.board([scored("a", rate(1, 1, 1), link="https://x/y")], ())))
    assert [link for link in found.links if not link.startswith("#")] == ["https://x/y"]


# ------------------------------------------------------------------------------ commands


def test_from_a_suite_to_a_board(leakbench: Callable[..., Any], tmp_path: Path) -> None:
    done = leakbench("pack", SUITE, "--out", "pack", "--defense", "open", cwd=tmp_path)
    assert done.code == 0 and "2 leaks of 6 inputs" in done.errors
    pack = json.loads((tmp_path / "pack" / "pack.json").read_text())
    folder = tmp_path / "submission"
    folder.mkdir()
    guess = {f"inputs/{each['id']}": np.zeros((3, 1, 1, 28, 28)) for each in pack["leaks"]}
    np.savez(folder / "reconstructions.npz", **guess)
    said = {"schema": 1, "name": "zeros", "method": "returns zeros", "pack": pack["checksum"]}
    (folder / "submission.json").write_text(json.dumps(said))
    done = leakbench("score", folder, "--answers", "pack.answers.npz", cwd=tmp_path)
    assert done.code == 0 and done.out.startswith("# zeros\n")
    assert "clamped MSE < " in done.out and "&lt;" not in done.out
    assert "clamped MSE &lt; " in (folder / "score.md").read_text()
    assert "0.00 [0.00, 0.39]" in done.out  # Wilson's, 0 of 6
    done = leakbench("board", folder, folder / "score.json", folder, "--out", "board", cwd=tmp_path)
    assert done.code == 0
    found = json.loads((tmp_path / "board" / "board.json").read_text())
    assert len(found["attacks"][0]["entries"]) == 1  # who is named twice is there once
    assert found["attacks"][0]["entries"][0]["name"] == "zeros"
    assert "zeros" in (tmp_path / "board" / "index.html").read_text()
    assert "zeros" in (tmp_path / "board" / "board.md").read_text()
    for words in (
        ("pack", SUITE, "--out", "pack"), ("score", tmp_path, "--answers", "pack.answers.npz"),
        ("board", tmp_path / "nothing", "--out", "board"), ("pack", "no_suite", "--out", "x"),
    ):  # fmt: skip
        done = leakbench(*words, cwd=tmp_path)
        assert done.code == 2 and done.errors.count("\n") == 1


def test_a_run_is_packed_by_its_own_plan(leakbench: Callable[..., Any], tmp_path: Path) -> None:
    runner.run(resolve(str(SUITE), "quick"), tmp_path / "run", root=None)
    done = leakbench("pack", tmp_path / "run", "--out", "pack", cwd=tmp_path)
    assert done.code == 0 and "4 leaks of 12 inputs" in done.errors
    done = leakbench("pack", "run", "--out", "other", "--defense", "open", cwd=tmp_path)
    assert done.code == 2 and "a run's plan is what was run" in done.errors
