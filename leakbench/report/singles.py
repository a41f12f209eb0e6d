"""Every picture of a gallery as an image of its own."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from leakbench.errors import LeakbenchError
from leakbench.report.drawing import Column, enlarged
from leakbench.report.gallery import RETURNED, Section
from leakbench.report.victims import Victim

MOST_LETTERS = 60
"""Of a part of a file's name."""


def write_all(found: Sequence[Section], folder: Path) -> int:
    """Write DATASET-ROW-KNOWLEDGE-NETWORK-VICTIM-WHAT.png for every picture; returns how many.

    ROW and KNOWLEDGE are left out where no attack made the picture. Pictures are enlarged by whole
    factors, as in the gallery.

    Raises:
        LeakbenchError: the folder or a file cannot be written.
    """
    count = 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for section in found:
            for victim, pictures in zip(section.chosen.victims, section.pictures, strict=True):
                for column, picture in zip(section.columns, pictures, strict=True):
                    if picture.image is not None:
                        name = file_name(section.chosen.dataset, victim, column)
                        Image.fromarray(enlarged(picture.image)).save(folder / name, format="PNG")
                        count += 1
    except OSError as error:
        raise LeakbenchError(f"{folder}: cannot write: {error.strerror or error}") from None
    return count


def file_name(dataset: str, victim: Victim, column: Column) -> str:
    """Of one picture: letters, digits, "_", ".", "-", "+" and "=" only, whatever names say."""
    what = RETURNED if column.detail == column.knowledge else column.detail.split(":")[0]
    attack = (column.row, column.knowledge) if column.row and column.knowledge else ()
    place = (f"network{victim.record['network']}", f"victim{victim.record['victim']}")
    return "-".join((*map(part, (dataset, *attack)), *place, what.replace(" ", "_"))) + ".png"


def part(text: str) -> str:
    """A name as part of a file's name, another one for every name.

    "a/b", which rows are called, becomes "a+b"; a name with other letters ends with the start of
    its checksum.
    """
    if len(text) <= MOST_LETTERS and re.fullmatch(r"\w[\w.]*(/\w[\w.]*)?", text, re.ASCII):
        return text.replace("/", "+")
    start = re.sub(r"\W+", "_", text[:MOST_LETTERS], flags=re.ASCII)
    return f"{start}={hashlib.sha256(text.encode(errors='replace')).hexdigest()[:12]}"
