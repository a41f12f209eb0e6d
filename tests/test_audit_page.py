"""The page of an audit: nothing but what was found, safe, self-contained, in plain words."""

from __future__ import annotations

import base64
import html
import io
import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from leakbench.audits import wording
from leakbench.audits.findings import (
    Advice,
    AuditReport,
    Claim,
    ClaimFinding,
    MeasuredFinding,
    ObserverFinding,
    PanelFinding,
    Pictures,
    Rate,
)
from leakbench.audits.page import FOLDED_FROM, markdown, page
from leakbench.data import load
from leakbench.errors import LeakbenchError

SERVER = ObserverFinding(
    observer="server", who="the server", level="instance", looks=13, epsilon_add_remove=2.0,
    epsilon_replace_one=4.5, delta=1e-5, mu=0.5, candidates=1000, ceiling=0.0091,
    one_look_ceiling=0.0012,
)  # fmt: skip
CLAIM = ClaimFinding(
    claim=Claim(epsilon=1, delta=1e-5), statement="(1, 1e-05)-DP",
    verdict="contradicted by a proof", arithmetic=("at least 1.9 > 1",),
)  # fmt: skip
ADVICE = Advice(change="steps", now=10, needed=5, sentence="With 5 steps it is enough.")
HOSTILE = '<script>alert("x")</script>\n# head\n| a | b |\n<img src=x onerror=y> [l](javascript:z)'


def report(**changes: Any) -> AuditReport:
    plain = AuditReport(
        question="What leaks?", setting="a training", config={}, observers=(SERVER,),
        target={"epsilon": 8.0, "identified": 0.01, "candidates": 1000.0},
    )  # fmt: skip
    return replace(plain, **changes)


def attack(exact: int, named: int, trials: int = 10, **changes: Any) -> PanelFinding:
    rates = [
        Rate(count=k, trials=trials, low=k / trials * 0.63, high=k / trials) for k in (exact, named)
    ]
    return replace(
        PanelFinding(
            attack="cpl", knowledge="adaptive", checkpoint="first", exact=rates[0],
            identified=rates[1],
        ),
        **changes,
    )  # fmt: skip


class Seen(HTMLParser):
    """Elements, their attributes and text; wrong nesting fails."""

    VOID = ("meta", "img", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data


def test_the_answer_comes_first_worst_observer_first() -> None:
    inside = replace(
        SERVER, observer="type2", who="who reads inside", level="none", reason="only clipped",
        ceiling=1.0, panel=(attack(0, 9), attack(8, 8)),
    )  # fmt: skip
    found = report(observers=(SERVER, inside), claims=(CLAIM,), advice=(ADVICE,))
    answer = wording.document(found).answer
    assert answer.headline == "The claim is wrong. (1, 1e-05)-DP: contradicted by a proof."
    # 8 of 10, and the interval rounded outwards: .504 and .8.
    assert answer.leaks == (
        "8 of 10 examples were recovered exactly from a single release (of 100, 50 to 80). By who "
        "reads inside."
    )
    assert [row[0] for row in answer.audience] == ["leaks", "within"]
    assert answer.changes[0] == ADVICE.sentence
    assert "Keep out who reads inside" in answer.changes[1]
    seen = Seen(page(found)).text
    assert seen.index("claim is wrong") < seen.index("8 of 10") < seen.index("The setting")


def test_who_names_from_a_list_is_worse_than_who_recovers_nothing() -> None:
    nothing, named = attack(0, 0), attack(0, 5)
    listed = replace(named, attack="candidates", exact=None, identified=None,
                     matched=named.identified)  # fmt: skip
    found = report(observers=(replace(SERVER, panel=(nothing, listed)),))
    assert "5 of 10 examples were named" in wording.document(found).views[0].sentences[0]


def test_a_claim_that_holds_does_not_hide_a_leak() -> None:
    holds = replace(CLAIM, verdict="holds")
    inside = replace(SERVER, observer="type2", who="who reads inside", panel=(attack(8, 8),))
    answer = wording.document(report(observers=(SERVER, inside), claims=(holds,))).answer
    assert answer.tone == "bad" and answer.headline.startswith("It leaks to who reads inside")
    assert "The claim itself holds" in answer.headline
    quiet = wording.document(report(observers=(SERVER,), claims=(holds,))).answer
    assert quiet.tone == "good" and quiet.headline == "The claim holds: there is a proof."


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, "within"),
        ({"ceiling": 0.02}, "above"),
        ({"epsilon_add_remove": 8.1}, "above"),
        ({"ceiling": 0.6}, "open"),
        ({"level": "none", "reason": "no noise"}, "open"),
        ({"panel": (attack(1, 0),)}, "leaks"),
        ({"panel": (attack(0, 1),)}, "leaks"),
        ({"panel": (attack(0, 0),)}, "within"),
    ],
)
def test_status_of_an_observer(changes: dict[str, Any], status: str) -> None:
    found = report(observers=(replace(SERVER, **changes),))
    assert wording.document(found).views[0].status == status


def test_code_that_does_less_than_it_says_leaks() -> None:
    measured = MeasuredFinding(
        mu=3.0, epsilon=12.0, trials=1000, confidence=0.999, canary="one tensor",
        claimed_mu=0.5, verdict="above",
    )  # fmt: skip
    found = wording.document(report(observers=(replace(SERVER, measured=measured),)))
    assert found.views[0].status == "leaks" and found.answer.tone == "bad"
    assert "protects less than its configuration says" in found.answer.headline
    assert "mu is at least 3; configured is 0.5" in found.views[0].sentences[-1]


@pytest.mark.parametrize(
    ("verdicts", "tone"),
    [(("holds",), "good"), (("holds", "not contradicted"), "open"),
     (("holds", "contradicted by measurement"), "bad")],
)  # fmt: skip
def test_the_tone_is_that_of_the_worst_verdict(verdicts: tuple[Any, ...], tone: str) -> None:
    claims = tuple(replace(CLAIM, verdict=one) for one in verdicts)
    assert wording.document(report(claims=claims)).answer.tone == tone


def test_bounds_are_rounded_outwards_and_odds_are_bayes() -> None:
    assert wording.of_list(0.0176277, 1000) == "18 of 1,000"
    assert wording.of_list(0.00302, 1000) == "3.1 of 1,000"
    assert wording.of_list(0.7001, 10) == "71 of 100"
    assert wording.of_list(0.0, 1000) == "0.1 of 1,000"
    assert wording.of_list(1.0, 60_000) == "60,000 of 60,000"
    sentences = wording.document(report()).views[0].sentences
    # A coin toss (odds 1) times e^2: 88.08 %.
    odds = math.exp(2.0)
    assert 88.0 < 100 * odds / (1 + odds) < 88.1
    assert any("at most 88.1 % sure" in line for line in sentences)
    assert any("more than 9.1 of 1,000 from 13 releases" in line for line in sentences)


def test_hostile_text_stays_text() -> None:
    hostile = replace(
        SERVER, who=HOSTILE, reason=HOSTILE, threat=HOSTILE, level="none",
        panel=(attack(1, 1, attack=HOSTILE, note=HOSTILE),),
        measured=MeasuredFinding(mu=math.inf, epsilon=math.inf, trials=1, confidence=0.9,
                                 canary=HOSTILE, claimed_mu=math.inf, verdict="no promise"),
    )  # fmt: skip
    found = report(
        question=HOSTILE, setting=HOSTILE, observers=(hostile,), warnings=(HOSTILE,),
        claims=(replace(CLAIM, statement=HOSTILE, arithmetic=(HOSTILE,)),), not_tried=(HOSTILE,),
        advice=(replace(ADVICE, sentence=HOSTILE),), versions={"x": HOSTILE},
    )  # fmt: skip
    seen = Seen(page(found))
    assert not {"script", "img", "a"} & {tag for tag, _ in seen.tags}
    assert seen.text.count("<script>") >= 10
    text = markdown(found)
    assert "<" not in text and "](" not in text.replace("\\]", "")
    assert not re.search(r"^# head", text, re.MULTILINE)


@pytest.mark.parametrize("empty", [{"observers": ()}, {"setting": "", "question": ""}])
def test_what_is_missing_leaves_no_hole(empty: dict[str, Any]) -> None:
    seen = Seen(page(report(**empty)))
    assert "Nothing was found that must change." in seen.text
    assert "No attack was run" in seen.text and "recovered;" not in seen.text
    assert "None" not in seen.text and "nan" not in seen.text.split()
    text = markdown(report(**empty))
    assert text.endswith(".\n") and not re.search(r"whom:\*\*\n\n\*\*", text)


def test_long_lists_are_folded_not_lost() -> None:
    advice = tuple(replace(ADVICE, needed=None, sentence=f"change {k}") for k in range(1000))
    seen = Seen(page(report(advice=advice)))
    assert all(f"Change {k}." in seen.text for k in range(1000))
    assert f"{1000 - FOLDED_FROM:,} more" in html.unescape(seen.text)


def test_pictures_are_embedded_pixel_by_pixel() -> None:
    digits = load("mnist", None).candidates[:2].numpy()
    shown = attack(2, 2, pictures=Pictures(originals=digits, reconstructions=digits[::-1].copy()))
    found = report(
        observers=(replace(SERVER, panel=(shown, attack(0, 0, pictures=shown.pictures))),)
    )
    seen = Seen(page(found))
    addresses = [own["src"] or "" for tag, own in seen.tags if tag == "img"]
    # In the answer, and with the server's attacks: original, reconstruction, and so on.
    assert len(addresses) == 8
    assert all(address.startswith("data:image/png;base64,") for address in addresses)
    for address, digit in zip(
        addresses, (digits[0], digits[1], digits[1], digits[0]), strict=False
    ):
        png = Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2])))
        pixels = np.asarray(png.convert("L"))
        large = np.round(digit[0] * 255).repeat(4, 0).repeat(4, 1)
        assert np.abs(pixels - large).max() <= 1
    assert "images were recovered" in seen.text


def test_nothing_comes_from_outside_and_pages_repeat() -> None:
    text = page(report())
    assert text == page(report())
    assert "http:" not in text and "https:" not in text and "@import" not in text
    assert "default-src 'none'" in text


def test_save_goes_by_the_suffix(tmp_path: Path) -> None:
    found = report(claims=(CLAIM,))
    assert found.save(tmp_path / "a.html").read_text(encoding="utf-8") == page(found)
    assert found.save(tmp_path / "a.md").read_text(encoding="utf-8") == markdown(found)
    assert json.loads(found.save(tmp_path / "a.json").read_text())["question"] == "What leaks?"
    with pytest.raises(LeakbenchError, match=r"allowed: \.html, \.md, \.json"):
        found.save(tmp_path / "a.pdf")
    with pytest.raises(LeakbenchError, match="cannot write"):
        found.save(tmp_path / "missing" / "a.html")
