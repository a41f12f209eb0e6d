"""What comes back of a pack: a folder with a description and reconstructions, data and no code.

submission.json         `Submission`
reconstructions.npz     "inputs/LEAK" (n, B, *input shape), and "labels/LEAK" (n, B) if wanted
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from leakbench.errors import LeakbenchError
from leakbench.leaderboard.files import (
    Arrays,
    read_json,
    require_known,
    require_plain,
    save,
    write_json,
)
from leakbench.leaderboard.packs import SCHEMA, Pack, PackedLeak
from leakbench.plain import from_json
from leakbench.spec import Knowledge

DESCRIPTION = "submission.json"
NUMBERS = "reconstructions.npz"

MOST_WORDS = {"name": 80, "method": 2000, "link": 300, "pack": 64, "hardware": 200}
"""Letters of each text."""

MOST_DESCRIPTION = 2**16
"""Bytes of the description."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What was spent: gradient evaluations, mean of a gradient of the pack; seconds in all; on what
    hardware. None and "": not known."""

    evaluations: float | None = None
    seconds: float | None = None
    hardware: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """Who attacked a pack, and how.

    Attributes:
        name: of the method, as the board shows it. method: what it does, in a few sentences.
        link: of a paper or of code, https; "" for none.
        pack: the checksum that its `pack.json` says.
        knowledge: "adaptive" where the attacker made use of the defense's description.
    """

    schema: int
    name: str
    method: str
    pack: str
    link: str = ""
    knowledge: Knowledge = "adaptive"
    budget: Budget = Budget()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpenSubmission:
    """A submission with its arrays, whose headers fit the pack; `leaks` are those it answers."""

    said: Submission
    arrays: Arrays
    leaks: tuple[PackedLeak, ...]

    def inputs(self, leak: PackedLeak) -> np.ndarray:
        """(n, B, *input shape) float64.

        Raises:
            LeakbenchError: a number that is not finite.
        """
        found = self.arrays.load(f"inputs/{leak.id}").astype(np.float64)
        if not np.isfinite(found).all():
            text = f"array 'inputs/{leak.id}': holds nan or infinity; allowed: finite numbers"
            raise LeakbenchError(f"{self.arrays.path}: {text}")
        return found

    def labels(self, leak: PackedLeak) -> np.ndarray | None:
        """(n, B) int64, None where none are given.

        Raises:
            LeakbenchError: a class that there is not.
        """
        name = f"labels/{leak.id}"
        if name not in self.arrays:
            return None
        found = self.arrays.load(name)
        if not ((found >= 0) & (found < leak.classes)).all():
            text = f"array '{name}': a label outside 0 to {leak.classes - 1}"
            raise LeakbenchError(f"{self.arrays.path}: {text}")
        return found.astype(np.int64)


def read(folder: Path, pack: Pack) -> OpenSubmission:
    """A submission for a pack, checked before any array is loaded.

    Raises:
        LeakbenchError: a file that is missing, no plain one, too large, or damaged; a key that is
            missing, unknown or of another kind; another pack's; an array that nobody asked for, or
            of another shape or type; no answer at all.
    """
    where = folder / DESCRIPTION
    for path in (where, folder / NUMBERS):
        require_plain(path)
    table = read_json(where, MOST_DESCRIPTION)
    if table.get("schema") != SCHEMA:
        text = f"schema {table.get('schema')!r:.40}, this leakbench reads {SCHEMA}"
        raise LeakbenchError(f"{where}: {text}")
    said: Submission = from_json(Submission, table, str(where))
    _check_words(said, where)
    if said.pack != pack.checksum:
        text = f"key pack: {said.pack!r:.80} is not the checksum of this pack, {pack.checksum}"
        raise LeakbenchError(f"{where}: {text}")
    arrays = _checked(folder / NUMBERS, pack)
    leaks = tuple(leak for leak in pack.leaks if f"inputs/{leak.id}" in arrays)
    if not leaks:
        first = pack.leaks[0]
        raise LeakbenchError(
            f"{arrays.path}: answers no leak; allowed: 'inputs/{first.id}' of shape "
            f"{first.shape}, ..."
        )
    return OpenSubmission(said=said, arrays=arrays, leaks=leaks)


def _check_words(said: Submission, where: Path) -> None:
    texts = {name: getattr(said, name) for name in ("name", "method", "link", "pack")}
    texts["hardware"] = said.budget.hardware
    for name, text in texts.items():
        if len(text) > MOST_WORDS[name]:
            allowed = f"allowed: up to {MOST_WORDS[name]}"
            raise LeakbenchError(f"{where}, key {name}: has {len(text)} letters; {allowed}")
    if not said.name.strip():
        raise LeakbenchError(f"{where}, key name: empty; a board needs something to show")
    if said.link and not said.link.startswith("https://"):
        raise LeakbenchError(f"{where}, key link: {said.link!r:.80}; allowed: https://..., or none")
    for name in ("evaluations", "seconds"):
        value = getattr(said.budget, name)
        if value is not None and not (0 <= value < math.inf):
            raise LeakbenchError(f"{where}, key budget.{name}: {value}; allowed: from 0 on")


def _checked(path: Path, pack: Pack) -> Arrays:
    """Arrays of a submission, by their headers."""
    wanted = {f"inputs/{leak.id}": leak.shape for leak in pack.leaks}
    wanted |= {f"labels/{leak.id}": leak.shape[:2] for leak in pack.leaks}
    # float64 is the largest type that is of any use; a header takes up to 10,000 bytes.
    arrays = Arrays(path, most=sum(8 * math.prod(shape) + 10_000 for shape in wanted.values()))
    require_known(str(path), arrays.headers, wanted)
    for name, header in arrays.headers.items():
        if header.shape != wanted[name]:
            text = f"array '{name}': shape {header.shape}; allowed: {wanted[name]}"
            raise LeakbenchError(f"{path}: {text}")
        kinds = "iu" if name.startswith("labels/") else "fiu"
        if header.dtype.kind not in kinds or header.dtype.itemsize > 8:
            words = "whole numbers" if kinds == "iu" else "numbers of up to 8 bytes"
            raise LeakbenchError(f"{path}: array '{name}': {header.dtype}; allowed: {words}")
    return arrays


def write(
    folder: Path,
    said: Submission,
    inputs: Mapping[str, np.ndarray],
    labels: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Write a submission into a new folder; inputs, labels: by id of the leak.

    Raises:
        LeakbenchError: it is there already, or cannot be written.
    """
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise LeakbenchError(f"{folder}: cannot be written: {error.strerror}") from None
    arrays = {f"inputs/{name}": value for name, value in inputs.items()}
    arrays |= {f"labels/{name}": value for name, value in (labels or {}).items()}
    save(folder / NUMBERS, arrays)
    write_json(folder / DESCRIPTION, dataclasses.asdict(said))
