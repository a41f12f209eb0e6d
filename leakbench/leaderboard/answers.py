"""The file that a pack's maintainer keeps: the originals, and what they are judged with."""

from __future__ import annotations

import dataclasses
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from leakbench.data.entries import OwnData, Source
from leakbench.data.readers import file_digest
from leakbench.errors import LeakbenchError
from leakbench.leaderboard import packs
from leakbench.leaderboard.files import Arrays, save
from leakbench.plain import from_json
from leakbench.spec import Rule

NONCE = 32
"""Random bytes that make a commitment to few possible originals one to none that can be tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataOf:
    """Where the victims of a leak are from; checksum: of that data, see `data.Dataset`."""

    dataset: str
    own: OwnData | None
    checksum: str

    @property
    def source(self) -> Source:
        """What to load it from."""
        return self.own or self.dataset


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answers:
    """The originals of a pack, apart from it.

    Attributes:
        pack: with the file's checksum. data: by id of a leak. rules: what counts.
        arrays: "inputs/ID" (n, B, *input shape), "labels/ID" (n, B), and "numbers/ID" (n, B), the
            places of the victims among the candidates of the data.
    """

    pack: packs.Pack
    data: Mapping[str, DataOf]
    rules: tuple[Rule, ...]
    arrays: Arrays


def write(
    path: Path,
    pack: packs.Pack,
    data: Mapping[str, DataOf],
    rules: tuple[Rule, ...],
    arrays: Mapping[str, np.ndarray],
) -> packs.Pack:
    """Write the answers file, with a nonce, for its owner to read and nobody else; returns the pack
    with its checksum.

    Raises:
        LeakbenchError: it is there already, or cannot be written.
    """
    about = {
        "pack": packs.to_json(pack),
        "data": {name: dataclasses.asdict(each) for name, each in data.items()},
        "rules": [dataclasses.asdict(rule) for rule in rules],
    }
    save(
        path,
        {
            **arrays,
            "about": np.frombuffer(json.dumps(about, allow_nan=False).encode(), dtype=np.uint8),
            "nonce": np.frombuffer(secrets.token_bytes(NONCE), dtype=np.uint8),
        },
        secret=True,
    )
    return dataclasses.replace(pack, checksum=file_digest(path, "sha256"))


def read(path: Path) -> Answers:
    """The answers file of a pack.

    Raises:
        LeakbenchError: no such file, a damaged one, or none of a pack's answers.
    """
    arrays = Arrays(path)
    about = _table(path, arrays)
    pack = packs.from_table(about.get("pack", {}), f"{path}, pack")
    pack = dataclasses.replace(pack, checksum=file_digest(path, "sha256"))
    data: Mapping[str, DataOf] = from_json(Mapping[str, DataOf], about.get("data"), f"{path}, data")
    rules: tuple[Rule, ...] = from_json(tuple[Rule, ...], about.get("rules"), f"{path}, rules")
    for leak in pack.leaks:
        if leak.id not in data:
            raise LeakbenchError(f"{path}: says of leak '{leak.id}' not where it is from")
        for name, shape in (
            (f"inputs/{leak.id}", leak.shape),
            (f"labels/{leak.id}", leak.shape[:2]),
            (f"numbers/{leak.id}", leak.shape[:2]),
        ):
            if arrays.header(name).shape != shape:
                raise LeakbenchError(f"{path}: array '{name}' is not of shape {shape}")
    return Answers(pack=pack, data=data, rules=rules, arrays=arrays)


def _table(path: Path, arrays: Arrays) -> dict[str, Any]:
    """What the file says of itself."""
    if "about" not in arrays or arrays.header("about").dtype != np.uint8:
        raise LeakbenchError(f"{path}: no answers of a leak pack; `leakbench pack` writes them")
    try:
        found = json.loads(arrays.load("about").tobytes())
    except (RecursionError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise LeakbenchError(f"{path}: array 'about' holds no table")
    return found
