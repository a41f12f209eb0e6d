"""Victim by victim on a page: pictures at every step, candidates, traces, how much of it fits."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import math
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import leakbench as lb
from leakbench.data import load
from leakbench.loading import LoadedRun
from leakbench.report import album_making, renderings
from leakbench.report.album import Album, Attempt, Shown
from leakbench.report.album_making import Pictures, line

PLENTY = 10_000_000
STRIPES = np.broadcast_to(np.arange(28) % 2, (28, 28)).astype(np.float64)
RESULTS = Path(__file__).parent.parent / "results"


@pytest.fixture(scope="module")
def run(pictured_run: Path) -> LoadedRun:
    return lb.load(pictured_run)


@pytest.fixture(scope="module")
def album(run: LoadedRun) -> Album:
    return run.album(PLENTY)


def pixels(album: Album, number: int) -> np.ndarray:
    """(height, width[, 3]) values from 0 to 1 of a picture of the album."""
    file = io.BytesIO(base64.b64decode(album.pictures[number]))
    shown = np.asarray(Image.open(file).convert("RGB")) / 255
    return shown[..., 0] if np.ptp(shown, axis=2).max() == 0 else shown


def attempts(album: Album) -> list[tuple[Shown, Attempt]]:
    return [(v, a) for s in album.sections for v in s.victims for a in v.attempts]


def victim_number(victim: Shown) -> int:
    return int(victim.anchor.split("-")[-1])


def test_a_slider_shows_what_was_kept_at_each_step(album: Album) -> None:
    (section,) = album.sections
    assert section.steps == ("start", *(f"step {s}" for s in (1, 5, 10, 20, 30)), "returned")
    assert len(section.attackers) == 20 and len(section.victims) == 16 and section.text == ""
    everyone = load("mnist").candidates.numpy()[:, 0]
    recovered = 0
    for victim, attempt in attempts(album):
        truth = everyone[victim_number(victim)]
        assert np.abs(pixels(album, victim.original) - truth).max() <= 0.5 / 255 + 1e-6
        shown = [pixels(album, number) for number in attempt.frames]
        if attempt.success:
            recovered += 1
            wanted = [STRIPES, *(truth * (1 - 1 / (1 + s)) for s in (1, 5, 10, 20, 30)), truth]
        else:  # ended after step 10: what it returned stands there from then on
            wanted = [STRIPES] * 3 + [1 - STRIPES] * 4
        assert len(shown) == len(wanted)
        for one, other in zip(shown, wanted, strict=True):
            assert np.abs(one - other).max() <= 0.5 / 255 + 1e-6
    assert 16 <= recovered < 320


def test_victims_that_the_suite_picks_come_first(album: Album, run: LoadedRun) -> None:
    (section,) = album.sections
    assert [each.words.split(":")[0] for each in section.picked] == ["median", "worst"]
    worst = max(
        (r for r in run.records.values()
         if (r["dataset"], r["row"], r["knowledge"]) == ("mnist", "none", "naive")),
        key=lambda record: record["mse_raw"],
    )  # fmt: skip
    assert section.picked[1].anchor == f"victim-1-{worst['network']}-{worst['victim']}"


def test_what_a_victim_is_the_worst_of_is_said(album: Album, run: LoadedRun) -> None:
    (section,) = album.sections
    assert (
        section.picked_by == "Median, worst and the like are of the raw MSE in non-private, naive."
    )
    assert section.picked_by in renderings.to_html(run.content(), album=album)


def test_where_a_defense_changed_nothing_the_picture_says_so(album: Album, run: LoadedRun) -> None:
    """Three rows with noise that comes later let one small gradient through, twice each."""
    said = {
        (attempt.label, attempt.knowledge, victim_number(victim))
        for victim, attempt in attempts(album)
        if attempt.words.endswith("; the defense changed nothing here")
    }
    labels = {each.cell.row: each.cell.label for each in run.described.cells}
    wanted = {
        (labels[r["row"]], r["knowledge"], r["victim"])
        for r in run.records.values()
        if r["dataset"] == "mnist" and r["row"] != "none" and "defense_noop" in r["flags"]
    }
    assert said == wanted and len(wanted) == 6


def test_the_nearest_wrong_candidates_stand_beside(album: Album) -> None:
    everyone = load("mnist").candidates.numpy().reshape(1000, -1).astype(np.float64)
    for victim, attempt in attempts(album)[:40]:
        number = victim_number(victim)
        end = everyone[number] if attempt.success else 1 - STRIPES.ravel()
        distances = np.linalg.norm(everyone - end, axis=1)
        distances[number] = np.inf
        nearest = np.argsort(distances)[:2]
        for other, place in zip(attempt.nearest, nearest, strict=True):
            assert other.words.startswith(f"no. {place}, class ")
            assert float(other.words.split(" at ")[1]) == pytest.approx(distances[place], rel=0.01)
            assert np.allclose(
                pixels(album, other.picture).ravel(), everyone[place], atol=0.6 / 255
            )


def test_facts_that_all_share_stand_once(album: Album, run: LoadedRun) -> None:
    victim = album.sections[0].victims[0]
    assert f"victim {victim_number(victim)}" in victim.facts
    for attempt in victim.attempts:
        assert not set(attempt.facts) & set(victim.facts)
        assert any(fact.startswith("identity ") for fact in attempt.facts)


def test_the_same_pixels_are_kept_once(album: Album) -> None:
    assert len(set(album.pictures)) == len(album.pictures)
    pictures = Pictures()
    image = load("mnist").candidates[3].numpy()
    assert pictures.add(image) == pictures.add(image + 1e-4) == 0
    assert pictures.add(image * np.nan) == pictures.add(np.full_like(image, 0.5)) == 1


def points(text: str) -> list[tuple[int, int]]:
    return [(int(x), int(y)) for x, y in (point.split(",") for point in text.split())]


def test_a_line_stands_where_its_logarithm_is() -> None:
    values = np.geomspace(1e8, 1e-12, 21)  # the whole height, a power of ten a step
    found = points(line(values, np.arange(21), 20))
    assert found[0] == (0, 0) and found[-1] == (120, 56) and len(found) == 21
    for (across, down), value in zip(found, values, strict=True):
        power = math.log10(value)
        assert abs(down - 56 * (8 - power) / 20) <= 0.5 and abs(across - 6 * (8 - power)) <= 0.5
    two = np.arange(2)
    assert line(np.array([0.0, 1e99]), two, 1) == "0,56 120,0"
    assert line(np.array([1.0]), two[:1], 1) == line(np.array([math.nan, 1.0]), two, 1) == ""
    many = np.arange(100_000)
    assert len(line(np.ones(100_000), many, many[-1]).split()) == album_making.MOST_POINTS


def test_loss_and_error_stand_over_the_same_steps(run: LoadedRun, album: Album) -> None:
    """Of a trial its own, however long the longest trace of the file is."""
    lengths = set()
    for victim, attempt in attempts(album):
        (fact,) = (f for f in (*victim.facts, *attempt.facts) if re.fullmatch(r"steps \d+", f))
        assert attempt.steps == int(fact.split()[1])
        lengths.add(attempt.steps)
        for drawn, first in ((attempt.loss, 1), (attempt.error, 0)):
            if attempt.steps > 1:
                across = [x for x, _ in points(drawn)]
                assert across[0] == round(120 * first / attempt.steps)
                assert across[-1] == 120
    assert len(lengths) > 1  # some end early, and their arrays are as long as those of the others
    page = renderings.to_html(run.content(), album=album)
    for length in lengths:
        assert f"<span>step 0</span><span>step {length}</span>" in page


def test_losses_reported_less_often_reach_the_last_step() -> None:
    loss = np.array([5.0, 4.0, 3.0, math.nan])  # three reports in 30 steps, and padding
    steps = album_making._loss_steps(loss, 30)
    assert steps[:3].tolist() == [10, 20, 30]
    assert [x for x, _ in points(line(loss, steps, 30))] == [40, 80, 120]
    each = album_making._loss_steps(loss, 3)
    assert each[:3].tolist() == [1, 2, 3]


def test_fewer_steps_then_fewer_victims_fit(run: LoadedRun, album: Album) -> None:
    def size(shown: Album) -> int:
        return sum(map(len, shown.pictures))

    full = size(album)
    seen = []
    for budget in (full * 3, full * 2, full, 1):
        shown = run.album(budget)
        (section,) = shown.sections
        seen.append((len(section.steps) - 2, len(section.victims)))
        assert len(section.victims) in (1, 16) or len(section.steps) == 3
        if len(section.victims) < 16:
            assert f"{len(section.victims)} of 16 victims are shown." in section.text
        if len(section.steps) < 7:
            assert f"{len(section.steps) - 2} of 5 kept steps are shown." in section.text
        assert len(section.victims) == 1 or size(shown) <= budget
        numbers = {n for v in section.victims for a in v.attempts for n in a.frames}
        assert max(numbers) < len(shown.pictures)
    assert seen == sorted(seen, reverse=True) and seen[-1] == (1, 1) and len(set(seen)) > 2


def test_runs_without_images_say_so() -> None:
    run = lb.load(RESULTS / "tifs_table3-quick")
    album = run.album(PLENTY)
    assert not album.sections and "it was copied without them" in album.text
    page = renderings.to_html(run.content(), album=album)
    assert album.text in page and 'id="pictures"' not in page


def test_without_the_data_candidates_are_left_out(run: LoadedRun) -> None:
    cells = tuple(dataclasses.replace(each, data="0" * 64) for each in run.described.cells)
    elsewhere = dataclasses.replace(run, described=dataclasses.replace(run.described, cells=cells))
    (section,) = elsewhere.album(PLENTY).sections
    assert section.text == "Candidates cannot be shown: the data here are not those of the run."
    assert not any(attempt.nearest for victim in section.victims for attempt in victim.attempts)


def test_a_damaged_file_is_left_out(pictured_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(pictured_run, folder)
    sorted((folder / "reconstructions").iterdir())[0].write_bytes(b"PK")
    (section,) = lb.load(folder).album(PLENTY).sections
    assert "1 files of images cannot be read." in section.text


class Tags(HTMLParser):
    """Names of all tags with those of their attributes, in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, ...]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, *(name for name, _ in attrs)))


@pytest.mark.parametrize(
    "evil",
    ["<script>x</script>", '" onload="x', "'><img src=x onerror=x>", "a\nb|c", "</dialog></script>",
     "{{ 7 * 7 }}", "</pre><script>x"],
)  # fmt: skip
def test_hostile_words_stay_words(evil: str, run: LoadedRun, album: Album) -> None:
    def spoiled(word: str) -> Album:
        (section,) = album.sections
        victim = section.picked[0]
        attempt = dataclasses.replace(
            victim.attempts[0], label=word, knowledge=word, words=word, rank=word, right=word,
            trace=word, facts=(word, word), loss=word, error=word,
            nearest=tuple(dataclasses.replace(n, words=word) for n in victim.attempts[0].nearest),
        )  # fmt: skip
        shown = dataclasses.replace(victim, words=word, attempts=(attempt,), facts=(word,))
        changed = dataclasses.replace(
            section, title=word, text=word, steps=(word, word), attackers=((word, word),),
            picked=(shown,), others=(shown,),
        )  # fmt: skip
        return dataclasses.replace(album, sections=(changed,), frame=word, text="")

    harmless = renderings.to_html(run.content(), album=spoiled("word"))
    page = renderings.to_html(run.content(), album=spoiled(evil))
    assert Tags(page).found == Tags(harmless).found
    assert "49" not in re.findall(r"<h3>(.*?)</h3>", page)


def test_the_page_holds_pictures_as_data(run: LoadedRun, album: Album) -> None:
    page = renderings.to_html(run.content(), album=album)
    (content,) = re.findall(r'<script type="application/json" id="pictures">(.*?)</script>', page)
    assert json.loads(content) == list(album.pictures)
    assert len(page.encode()) < 5_000_000
    anchors = re.findall(r'<dialog id="([^"]*)"', page)
    assert sorted(anchors) == sorted(v.anchor for s in album.sections for v in s.victims)
    assert set(re.findall(r'data-opens="([^"]*)"', page)) == set(anchors)
