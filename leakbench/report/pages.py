"""What all HTML pages share: the template engine, and pictures inside the file."""

from __future__ import annotations

import base64

import jinja2


def environment() -> jinja2.Environment:
    """Templates of this package; text is escaped, a name that is not given is an error."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("leakbench.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def embedded(png: bytes) -> str:
    """A picture as an address that holds it."""
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")
