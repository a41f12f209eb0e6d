"""An audit as a page: one self-contained HTML file, or Markdown. JSON is `AuditReport.to_json`."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterable, Iterator

import matplotlib.image

from leakbench.audits.findings import AuditReport, Images
from leakbench.audits.wording import ATTACK_HEADER, WORDS, Document, View, document, plain, sentence
from leakbench.report.drawing import enlarged
from leakbench.report.pages import embedded, environment

FOLDED_FROM = 6
"""Of a list, further lines are folded, so that a long one does not hide what follows."""


def page(report: AuditReport) -> str:
    """HTML that needs nothing from outside: pictures are embedded, no script, light and dark."""
    templates = environment()
    templates.filters |= {"pictures": pictures, "sentence": sentence, "plain": plain}
    return templates.get_template("audit.html.j2").render(
        document=document(report), words=WORDS, header=ATTACK_HEADER, folded_from=FOLDED_FROM
    )


def pictures(images: Images) -> list[str]:
    """Each of (k, channels, height, width) as an address that holds a PNG of at most 112 pixels."""
    found = []
    for image in images:
        buffer = io.BytesIO()
        # Without the version of matplotlib, the same pixels give the same page.
        matplotlib.image.imsave(
            buffer, enlarged(image), format="png", metadata={"Software": "leakbench"}
        )
        found.append(embedded(buffer.getvalue()))
    return found


# ---------------------------------------------------------------------------- Markdown


def markdown(report: AuditReport) -> str:
    """The same sentences for GitHub, and readable in a terminal; pictures are in the HTML only."""
    return "\n\n".join(filter(None, _parts(document(report)))) + "\n"


def _parts(found: Document) -> Iterator[str]:
    answer = found.answer
    yield f"# {escaped(found.question)}"
    yield f"**{escaped(answer.headline)}**"
    yield _bullets([f"**What leaks:** {escaped(answer.leaks)}"])
    yield "**To whom:**"
    audience = [f"{escaped(who)}: **{label}**" for _, label, who in answer.audience]
    yield _bullets(audience or ["Nobody was considered."])
    yield f"**What to change:** {escaped(answer.target)}".rstrip()
    yield _bullets(map(escaped, answer.changes))
    yield "## The setting"
    yield escaped(found.setting)
    yield _section("Warnings", found.warnings)
    if found.views:
        yield "## Observer by observer"
    for view in found.views:
        yield from _view(view)
    if found.claims:
        yield "## Claim against finding"
    for claim in found.claims:
        yield f"**{escaped(claim.statement)}: {claim.verdict}**"
        yield _bullets(map(escaped, claim.arithmetic))
    yield _section("What to change", [one.sentence for one in found.advice])
    yield _section("What was not tried", found.not_tried)
    yield "## What the words mean"
    yield _bullets(f"**{word}:** {escaped(text)}" for word, text in WORDS)
    yield escaped(found.footer)


def _view(view: View) -> Iterator[str]:
    yield f"### {escaped(view.name)}: {view.label}"
    threat = f" Threat models {escaped(view.threat)}." if view.threat else ""
    yield f"Who: {escaped(sentence(view.who, capital=False))}{threat}"
    yield _bullets(map(escaped, view.sentences))
    if view.attacks:
        rows = [ATTACK_HEADER, tuple("---" for _ in ATTACK_HEADER), *view.attacks]
        yield "\n".join(f"| {' | '.join(map(escaped, row))} |" for row in rows)
    yield _bullets(map(escaped, view.notes))


def _section(title: str, lines: Iterable[str]) -> str:
    listed = _bullets(map(escaped, lines))
    return f"## {title}\n\n{listed}" if listed else ""


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def escaped(text: str) -> str:
    """One line that Markdown and HTML inside it leave as it is."""
    return re.sub(r"([\\`*_\[\]|#])", r"\\\1", html.escape(plain(text), quote=False))
