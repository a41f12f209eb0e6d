"""The site shows the repository as it is: its README, the executed notebook, files that docs link.

Links between Markdown files are those of the repository, so that they work there too. What lies
outside of `docs/` comes into the site below `repository/`, Markdown as a page and text as code.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md"}
"""Files outside of `docs/` that have a place of their own in the site."""

LINK = re.compile(r"(?<=\]\()([^)#\s:]+)(?=[)#])|(?<=src=\")([^\":]+)(?=\")")
"""Where a link or a picture of Markdown points to, without its anchor; not to other hosts."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the README, the notebook, the reference, and all that is linked from any page."""
    files.append(File.generated(config, "reference.md", content=_reference()))
    notebook = (ROOT / "docs" / "leakbench.ipynb").read_text(encoding="utf-8")
    files.append(File.generated(config, "leakbench.md", content=_notebook(json.loads(notebook))))
    waiting = [*PAGES, *(path for path in _of_docs(files))]
    seen = set(waiting)
    for path in waiting:  # grows while it is read
        source = ROOT / path
        if not path.startswith("docs/"):
            files.append(_file(config, path))
        if source.suffix == ".md":
            for linked in _linked(path, source.read_text(encoding="utf-8")):
                if linked not in seen:
                    seen.add(linked)
                    waiting.append(linked)
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Links of the repository become links of the site."""
    path = _in_repository(page.file.src_uri)
    here = posixpath.dirname(page.file.src_uri)

    def moved(match: re.Match[str]) -> str:
        target = _resolved(path, match[0])
        return posixpath.relpath(_in_site(target), here or ".")

    # GitHub reads Markdown between these tags by itself.
    return LINK.sub(moved, markdown).replace("<details>", '<details markdown="1">')


def on_post_page(output: str, page: Page, **_: Any) -> str:
    """See `_mended`."""
    return _mended(output, posixpath.dirname(page.file.dest_uri) or ".")


def on_post_template(output_content: str, **_: Any) -> str:
    """As for pages."""
    return _mended(output_content, ".")


def _mended(html: str, here: str) -> str:
    """What the theme takes from elsewhere is in the site, and its search has a name."""
    shim = posixpath.relpath("site/iframe-worker.min.js", here)
    search = 'data-md-component="search" role="dialog"'
    return html.replace("https://unpkg.com/iframe-worker/shim", shim).replace(
        search, f'{search} aria-label="Search"'
    )


def _of_docs(files: Files) -> Iterator[str]:
    for file in files.documentation_pages():
        if file.abs_src_path is not None:  # as those that are made here have none
            yield f"docs/{file.src_uri}"


def _linked(path: str, text: str) -> Iterator[str]:
    for match in LINK.finditer(text):
        target = _resolved(path, match[0])
        if not target.startswith("docs/"):
            yield target


def _resolved(path: str, link: str) -> str:
    """What a link in the file `path` of the repository leads to; of a folder its README.

    Raises:
        FileNotFoundError: nothing is there.
    """
    target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
    if (ROOT / target).is_dir():
        target = f"{target}/README.md"
    if not (ROOT / target).is_file():
        raise FileNotFoundError(f"{path}: a link leads to {target}, which is not there")
    return target


def _in_site(path: str) -> str:
    """Where a file of the repository is in the site."""
    if path in PAGES:
        return PAGES[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/").replace(".ipynb", ".md")
    shown = path if path.endswith((".md", ".png", ".csv")) else f"{path}.md"
    return f"repository/{shown}"


def _in_repository(uri: str) -> str:
    """The file of the repository that a page of the site shows."""
    of_pages = {site: path for path, site in PAGES.items()}
    if uri.startswith("repository/"):
        return uri.removeprefix("repository/")
    return of_pages.get(uri, f"docs/{uri}")


def _file(config: MkDocsConfig, path: str) -> File:
    """A file from outside of `docs/`."""
    source, uri = ROOT / path, _in_site(path)
    if uri == f"repository/{path}.md":  # text that is no Markdown
        text = source.read_text(encoding="utf-8")
        fence = "`" * 4
        return File.generated(
            config, uri, content=f"# {path}\n\n{fence}{source.suffix[1:]}\n{text}\n{fence}\n"
        )
    return File.generated(config, uri, abs_src_path=str(source))


# ------------------------------------------------------------------------------ the notebook


def _notebook(content: dict[str, Any]) -> str:
    """An executed notebook as Markdown; nothing is run."""
    parts = ["[The notebook itself](leakbench.ipynb), to open and run."]
    for cell in content["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text)
            continue
        parts.append(f"```python\n{text}\n```")
        parts += [_output(output) for output in cell["outputs"]]
    title = next(part for part in parts if part.startswith("# "))
    return "\n\n".join([title, *(part for part in parts if part != title and part)]) + "\n"


def _output(output: dict[str, Any]) -> str:
    """What a cell printed or drew, in the richest form that a page can hold."""
    data = output.get("data", {})
    if "image/png" in data:
        picture = "".join(data["image/png"]).replace("\n", "")
        return f'<img alt="what the cell draws" src="data:image/png;base64,{picture}">'
    if "text/html" in data:
        return f'<div class="output">{"".join(data["text/html"])}</div>'
    text = "".join(output.get("text", data.get("text/plain", []))).rstrip()
    return f"```{{ .text .output }}\n{text}\n```" if text else ""


# ------------------------------------------------------------------------------ the reference


def _reference() -> str:
    """All that `import leakbench as lb` gives, from its docstrings."""
    import leakbench

    lines = ["# Reference", "What `import leakbench as lb` gives, in alphabetical order."]
    for name in leakbench.__all__:
        if name in leakbench._PLACES:
            lines.append(f"::: {leakbench._PLACES[name]}.{name}")
    return "\n\n".join(lines) + "\n"
