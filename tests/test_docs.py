"""Links of the documentation lead somewhere, in the repository and in the site made of it."""

from __future__ import annotations

import itertools
import posixpath
import re
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import typer

from leakbench.commands.application import app
from leakbench.loading import load
from leakbench.report.renderings import to_terminal

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in (ROOT, DOCS, DOCS / "decisions", ROOT / "results")
    for path in folder.glob("*.md")
)
LINK = re.compile(r"\]\(([^)\s]+)\)|src=\"([^\"]+)\"")


def without_code(text: str) -> str:
    """Markdown without fenced and indented blocks."""
    return re.sub(r"^    .*$", "", re.sub(r"```.*?```", "", text, flags=re.DOTALL), flags=re.M)


@cache
def anchors(path: str) -> frozenset[str]:
    """Names of headings as GitHub makes them."""
    found: list[str] = []
    for line in without_code((ROOT / path).read_text(encoding="utf-8")).splitlines():
        if match := re.match(r"#+ (.*)", line):
            name = re.sub(r"[^\w\- ]", "", match[1].strip().lower()).replace(" ", "-")
            found.append(f"{name}-{found.count(name)}" if name in found else name)
    return frozenset(found)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    text = without_code((ROOT / page).read_text(encoding="utf-8"))
    for link in (a or b for a, b in LINK.findall(text)):
        if link.startswith(("http://", "https://")):
            continue
        place, _, anchor = link.partition("#")
        target = (
            posixpath.normpath(posixpath.join(posixpath.dirname(page), place)) if place else page
        )
        assert (ROOT / target).exists(), f"{page}: {link}"
        assert not anchor or anchor in anchors(target), f"{page}: {link}"


def test_every_decision_is_listed() -> None:
    index = (DOCS / "decisions" / "README.md").read_text(encoding="utf-8")
    for path in sorted((DOCS / "decisions").glob("0*.md")):
        title = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        assert f"- [{title}]({path.name})\n" in index


def test_the_commands_are_listed() -> None:
    listed = re.findall(r"^    leakbench (\w+)", (DOCS / "commands.md").read_text("utf-8"), re.M)
    group: Any = typer.main.get_command(app)
    assert set(listed) == set(group.commands)


def test_tables_of_the_first_page_and_of_reports_are_those_of_the_run() -> None:
    """What stands there as printed is printed today, from the run that is in the repository."""
    content = load(ROOT / "results" / "tifs_table3-quick").content()
    printed = {line.strip() for line in to_terminal(content, width=120, colour=False).splitlines()}
    for page, least in ((ROOT / "README.md", 11), (DOCS / "reports.md", 25)):
        lines = page.read_text(encoding="utf-8").splitlines()
        first = next(i for i, line in enumerate(lines) if "paper's rule, 4" in line)
        while lines[first - 1].startswith("    "):
            first -= 1
        block = list(itertools.takewhile(lambda line: line.startswith("    "), lines[first:]))
        assert len(block) >= least
        assert {line.strip() for line in block} <= printed


class Built(HTMLParser):
    """What a page of the site leads to, what it loads, and the anchors it has."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        of = dict(attrs)
        self.ids |= {of[key] for key in ("id", "name") if of.get(key)}
        if tag == "a" and of.get("href"):
            self.links.append(of["href"])
        if tag in ("script", "img", "iframe") and of.get("src"):
            self.loaded.append(of["src"])
        if tag == "link" and of.get("rel") in ("stylesheet", "icon", "preload"):
            self.loaded.append(of["href"])


def _built(path: Path) -> Built:
    page = Built()
    page.feed(path.read_text(encoding="utf-8"))
    return page


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_opens_offline(tmp_path: Path) -> None:
    """Every page is in a menu, every link leads to a file and an anchor, nothing is fetched."""
    pytest.importorskip("mkdocs")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict",
         "-f", str(DOCS / "site" / "mkdocs.yml"), "-d", str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # The page for what is not there is a server's, with links from its root.
    pages = {p: _built(p) for p in tmp_path.rglob("*.html") if p.name != "404.html"}
    assert len(pages) > 40
    assert "exact, named" in (tmp_path / "index.html").read_text(encoding="utf-8")
    assert 'class="output' in (tmp_path / "leakbench.html").read_text(encoding="utf-8")
    for path, page in pages.items():
        for link in page.loaded:
            assert not link.startswith(("http:", "https:", "//")), (path, link)
            if not link.startswith("data:"):
                assert (path.parent / link.partition("?")[0]).resolve().is_file(), (path, link)
        for link in page.links:
            if link.startswith(("http:", "https:")):
                continue
            place, _, anchor = link.partition("#")
            target = (path.parent / place).resolve() if place else path
            if target.is_dir():
                target /= "index.html"
            assert target.is_file(), (path, link)
            assert not anchor or target not in pages or anchor in pages[target].ids, (path, link)
