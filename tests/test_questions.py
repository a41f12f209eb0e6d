"""Every suite asks a question and says how to read its answer, and neither changes a result."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from leakbench import runner
from leakbench.loading import load
from leakbench.report import renderings
from leakbench.suite import files, reading, resolve

TINY = Path(__file__).parent / "tiny.toml"


@pytest.mark.parametrize("name", files.names())
def test_every_suite_has_a_question_and_a_reading_guide(name: str) -> None:
    suite, _, _ = reading.read(name)
    assert suite.question.endswith("?") and suite.question.count("?") == 1
    assert 30 <= len(suite.question) <= 130
    sentences = re.findall(r"[.](?: |$)", suite.reading_guide)
    assert 1 <= len(sentences) <= 5 and suite.reading_guide.endswith(".")
    assert 100 <= len(suite.reading_guide) <= 420
    assert "\n" not in suite.question + suite.reading_guide


def test_a_new_question_attacks_nothing_and_stands_above_every_answer(tmp_path: Path) -> None:
    path = tmp_path / "tiny.toml"
    text = TINY.read_text(encoding="utf-8")
    path.write_text(text, encoding="utf-8")
    run = tmp_path / "run"
    assert runner.run(resolve(str(path)), run, root=None).ran == 4
    records = (run / "records.jsonl").read_bytes()
    question, guide = "Which row leaks?", "Read 'recovered' first. Then the rest."
    title = 'title = "A tiny suite"\n'
    path.write_text(
        text.replace(title, f'{title}question = "{question}"\nreading_guide = "{guide}"\n'),
        encoding="utf-8",
    )
    outcome = runner.run(resolve(str(path)), run, root=None)
    assert (outcome.planned, outcome.ran) == (4, 0)
    assert (run / "records.jsonl").read_bytes() == records
    report = load(run).content()
    for text in (
        renderings.to_terminal(report, width=80, colour=False),
        renderings.to_markdown(report),
        renderings.to_html(report).replace("&#39;", "'"),
    ):
        assert 0 < text.index(question) < text.index(guide)
    answer = json.loads(renderings.to_json(report))["answer"]
    assert (answer["question"], answer["reading_guide"]) == (question, guide)
