"""Two runs of the same victims: differences and flips against pandas on their tables."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import leakbench as lb
from leakbench.errors import LeakbenchError
from leakbench.loading import LoadedRun
from leakbench.records import Run, encode
from leakbench.report import strips
from leakbench.report.answer import answer
from leakbench.report.drawing import Sheet
from leakbench.statistics import mean_interval

TINY = Path(__file__).with_name("tiny.toml")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, leakbench: Callable[..., Any]) -> Path:
    """Folder with a run, "long", and one whose attack came less far, "short"."""
    folder = tmp_path_factory.mktemp("runs")
    done = leakbench(
        "run", TINY, "--out", folder / "long", "--set", "attack.parameters.steps=5",
        "--set", "profiles.quick.networks=2", "--workers", "1",
        "--set", "attack.parameters.line_search=true",
    )  # fmt: skip
    assert done.code == 0, done.errors
    shutil.copytree(folder / "long", folder / "short")
    lines = []
    for number, record in enumerate(Run.existing(folder / "long").records().values()):
        record = record | {"mse_clamped": record["mse_clamped"] + 0.006 * number, "ssim": 0.1}
        lines.append(encode(record))
    (folder / "short" / "records.jsonl").write_bytes(b"".join(lines))
    return folder


def test_a_run_is_loaded_whole(runs: Path, leakbench: Callable[..., Any]) -> None:
    run = lb.load(runs / "long")
    assert isinstance(run, LoadedRun) and run.name == "long"
    frame = run.frame()
    assert len(frame) == 8 and set(frame["row"]) == {"none", "dp"}
    assert run.report() == (runs / "long" / "report.md").read_text()
    assert json.loads(run.report("json"))["suite"] == "tiny"
    assert run.report("html") == (runs / "long" / "report.html").read_text()
    assert run.report("csv").startswith("dataset,")
    drawn = leakbench("gallery", runs / "long", "--out", runs / "drawn.png")
    assert drawn.code == 0 and run.gallery().png() == (runs / "drawn.png").read_bytes()
    drawn = leakbench("gallery", runs / "long", "--pick", "worst", "--beside", "--columns", "1",
                      "--out", runs / "drawn.png", "--single", runs / "single")  # fmt: skip
    assert drawn.code == 0, drawn.errors
    worst = run.gallery(pick="worst", beside=True, columns=1)
    assert worst.png() == (runs / "drawn.png").read_bytes()
    assert f"{len(list((runs / 'single').iterdir()))} pictures: " in drawn.errors
    for wrong, words in (
        ({"pick": "nicest"}, "nicest"),
        ({"pick": "ids"}, "got 0 ids"),
        ({"ids": (0,)}, "got 1 ids"),
        ({"columns": 0}, "must be 1 or more"),
    ):
        with pytest.raises(LeakbenchError, match=words):
            run.gallery(**wrong)
    assert "8 records" in repr(run)
    with pytest.raises(LeakbenchError, match="unknown format 'pdf'"):
        run.report("pdf")  # type: ignore[arg-type]


def test_a_run_is_found_by_its_name(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (runs / "results").mkdir(exist_ok=True)
    if not (runs / "results" / "runs").exists():
        (runs / "results" / "runs").symlink_to(runs)
    monkeypatch.chdir(runs / "results" / "..")
    assert lb.load("long").frame().equals(lb.load(runs / "long").frame())
    with pytest.raises(LeakbenchError, match="no run there"):
        lb.load(runs / "nowhere")


def test_differences_are_paired(runs: Path) -> None:
    """The same means, counts and intervals as pandas finds on the merged tables."""
    compared = lb.compare(runs / "short", lb.load(runs / "long"))
    table = compared.frame()
    assert compared.flips
    assert list(table["cell"].unique()) == ["mnist/none/naive/cpl", "mnist/dp/naive/cpl"]
    keys = ["row", "network", "victim"]
    both = lb.load(runs / "short").frame().merge(
        lb.load(runs / "long").frame(), on=keys, suffixes=("_a", "_b")
    )  # fmt: skip
    for row in ("none", "dp"):
        own = both[both["row"] == row]
        (found,) = table[
            table["cell"].str.contains(f"/{row}/") & (table["what"] == "mse_clamped")
        ].itertuples()
        change = own["mse_clamped_b"] - own["mse_clamped_a"]
        assert found.trials == 4 and found.left_out == 0
        assert found.before == pytest.approx(own["mse_clamped_a"].mean())
        assert found.after == pytest.approx(own["mse_clamped_b"].mean())
        assert found.difference == pytest.approx(change.mean())
        wanted = mean_interval([change[own["network"] == n].tolist() for n in (0, 1)])
        assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high))
        assert found.differs == (not found.low <= 0 <= found.high)
        (rate,) = table[
            table["cell"].str.contains(f"/{row}/") & (table["what"] == "strict")
        ].itertuples()
        meets = [
            (own[f"mse_clamped_{end}"] < 0.01)
            & (
                own[f"mse_clamped_{end}"]
                < 0.25
                * own[[f"baselines.{b}_{end}" for b in ("mean_image", "class_mean", "start_image")]]
                .min(axis=1)
            )
            for end in "ab"
        ]  # fmt: skip
        met = meets[0] != meets[1]
        assert rate.after == pytest.approx(meets[1].mean())
        assert rate.before == pytest.approx(meets[0].mean())
        flips = compared.flipped()
        flips = flips[flips["cell"].str.contains(f"/{row}/")]
        named = set(zip(flips["network"], flips["victim"], strict=True))
        assert named == set(zip(own[met]["network"], own[met]["victim"], strict=True))
        assert flips["after"].all() and not flips["before"].any()


def test_a_run_beside_itself_differs_in_nothing(runs: Path, leakbench: Any) -> None:
    compared = lb.compare(runs / "long", runs / "long")
    assert compared.flips == () and (compared.frame()["difference"] == 0).all()
    with pytest.raises(LeakbenchError, match="no victim flips"):
        compared.gallery()
    # For the command that is what was found, and no mistake.
    picture = runs / "nobody.png"
    done = leakbench("compare", runs / "long", runs / "long", "--gallery", picture)
    assert done.code == 0 and done.errors.startswith("no victim flips")
    assert not picture.exists()


def test_flips_are_shown(runs: Path) -> None:
    sheet = lb.compare(runs / "short", runs / "long").gallery(most=2)
    assert isinstance(sheet, Sheet) and sheet.png()[:4] == b"\x89PNG"


def test_the_command(runs: Path, leakbench: Callable[..., Any]) -> None:
    picture = runs / "flips.png"
    done = leakbench("compare", runs / "short", runs / "long", "--gallery", picture)
    assert done.code == 0 and "mnist/none/naive/cpl" in done.out and "flips" in done.out
    assert picture.read_bytes()[:4] == b"\x89PNG"
    done = leakbench("compare", runs / "short", runs / "long", "--json")
    found = json.loads(done.out)
    compared = lb.compare(runs / "short", runs / "long")
    assert len(found["flips"]) == len(compared.flips)
    assert [each["after"] for each in found["differences"]] == [
        each.after for each in compared.differences
    ]


def other(runs: Path, tmp_path: Path, change: Callable[[dict[str, Any]], None]) -> LoadedRun:
    """The long run with other records."""
    run = lb.load(runs / "long")
    for record in run.records.values():
        change(record)
    return run


def test_victims_of_other_data_are_refused(runs: Path, tmp_path: Path) -> None:
    moved = other(runs, tmp_path, lambda record: record.update(source_index=0, label=9))
    with pytest.raises(LeakbenchError, match="another example in the two runs"):
        lb.compare(runs / "short", moved)


def test_runs_without_a_victim_in_common_are_refused(runs: Path, tmp_path: Path) -> None:
    moved = other(runs, tmp_path, lambda record: record.update(network=record["network"] + 5))
    with pytest.raises(LeakbenchError, match="no victim of a network in common"):
        lb.compare(runs / "short", moved)


def test_cells_without_data_are_named_and_the_others_compared() -> None:
    """The shipped table has no faces; with itself it differs in nothing."""
    shipped = Path(__file__).parent.parent / "results" / "tifs_table3-quick"
    found = lb.compare(shipped, shipped)
    assert "no victim of a network in common: lfw/none/naive/cpl" in found.only
    assert found.differences and not found.flips
    assert not any(row.differs for row in found.frame().itertuples())


def test_what_is_not_finite_is_left_out_and_counted(runs: Path, tmp_path: Path) -> None:
    def spoil(record: dict[str, Any]) -> None:
        if record["victim"] == 0:
            record.update(mse_clamped=None, status="nan")

    table = lb.compare(runs / "short", other(runs, tmp_path, spoil)).frame()
    found = table[table["what"] == "mse_clamped"]
    assert (found["left_out"] > 0).any() and (found["trials"] + found["left_out"] == 4).all()


def test_runs_that_differ_in_their_attack_are_paired(runs: Path) -> None:
    """And of cells that cannot be, both are named."""
    run = lb.load(runs / "long")

    def changed(**fields: str) -> LoadedRun:
        cells = tuple(
            dataclasses.replace(each, cell=dataclasses.replace(each.cell, **fields))
            for each in run.described.cells[:1]
        )
        return dataclasses.replace(run, described=dataclasses.replace(run.described, cells=cells))

    compared = lb.compare(runs / "short", changed(attack="dlg"))
    assert {each.cell for each in compared.differences} == {"mnist/none/naive"}
    assert compared.only == ("only in short: mnist/dp/naive/cpl",)
    with pytest.raises(LeakbenchError, match=r"no cell of one run .* long has cifar10/none/naive"):
        lb.compare(runs / "short", changed(dataset="cifar10"))


def test_two_runs_on_one_page(runs: Path, leakbench: Callable[..., Any]) -> None:
    """Every rate of both strips, every difference and flip is there, and pictures as data."""
    compared = lb.compare(runs / "short", runs / "long")
    done = leakbench("compare", runs / "short", runs / "long", "--out", runs / "two.html")
    page = (runs / "two.html").read_text()
    assert done.code == 0 and page == compared.page()
    cells = re.findall(r'<td class="rate[^>]*>([^<]*)<small>([^<]*)</small></td>', page)
    wanted = []
    before, after = (answer(run.content()) for run in compared.runs)
    for one, other in zip(before.strips[0].rows, after.strips[0].rows, strict=True):
        for name in before.strips[0].headers:
            for step in (one.step(name), other.step(name)):
                if step is not None:
                    wanted.append((strips.step_words(step), strips.interval_of(step)))
    assert cells == wanted and wanted
    differences, flips = (
        re.findall("<tr", page[page.index(f'id="{first}"') : page.index(f'id="{then}"')])
        for first, then in (("differences", "flips"), ("flips", "runs"))
    )
    assert len(differences) == 1 + len(compared.differences)
    assert len(flips) == 1 + len(compared.flips)
    assert page.count('src="data:image/webp;base64,') == 3 * len(compared.telling())


def test_a_page_of_runs_without_pictures_says_so(runs: Path, tmp_path: Path) -> None:
    for name in ("short", "long"):
        shutil.copytree(runs / name, tmp_path / name)
    shutil.rmtree(tmp_path / "long" / "reconstructions")
    page = lb.compare(tmp_path / "short", tmp_path / "long").page()
    assert "Pictures are not here" in page and 'src="data:' not in page


def test_hostile_names_of_runs_stay_words(runs: Path, tmp_path: Path) -> None:
    evil = os.fsdecode(b'<script>x<script>" onload="x\xff')
    shutil.copytree(runs / "short", tmp_path / evil)
    page = lb.compare(tmp_path / evil, runs / "long").page()
    assert page.encode()  # names of folders need not be text
    tame = lb.compare(runs / "short", runs / "long").page()
    tags = [re.findall(r"<([a-z0-9]+)[ >]", text) for text in (page, tame)]
    assert tags[0] == tags[1] and "&lt;script&gt;" in page
