"""What the arrays of a file of trials must look like, whoever wrote them; see `docs/records.md`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]

_NUMBERS, _WHOLE, _TEXT = "fiu", "iu", "U"
_KIND_WORDS = {_NUMBERS: "numbers", _WHOLE: "whole numbers", _TEXT: "text"}

# Name -> kinds of its numbers, and the number of its axes; None: as many as the trials' images.
_KINDS: dict[str, tuple[str, int | None]] = {
    "victims": (_WHOLE, 1),
    "class_names": (_TEXT, 1),
    "inputs": (_NUMBERS, None),
    "start": (_NUMBERS, None),
    "truth": (_NUMBERS, None),
    "trace": (_NUMBERS, 2),
    "snapshot_steps": (_WHOLE, 1),
    **{f"{kind}_lengths": (_WHOLE, 1) for kind in ("raw", "clamped")},
    **{
        f"{kind}_{name}": (_NUMBERS if name == "errors" else _WHOLE, 1)
        for kind in ("raw", "clamped")
        for name in ("steps", "evaluations", "errors")
    },
}
_OF_TRIALS = (
    "victims", "class_names", "inputs", "start", "truth", "trace", "raw_lengths", "clamped_lengths",
)  # fmt: skip
"""With one entry a trial."""

_MEMBER = "member_"
MOST_STEPS = 10**7
"""Of an attack; curves have an entry for each."""


def problem(arrays: Arrays) -> str:
    """What is wrong with the arrays of a file, naming the first that is; "" if nothing is.

    Only those that leakbench writes are looked at, and each of them may be missing.
    """
    known = {name: arrays[name] for name in arrays if name in _KINDS or name.startswith(_MEMBER)}
    for name, found in known.items():
        kinds, axes = _KINDS.get(name, (_NUMBERS, None))
        if found.dtype.kind not in kinds:
            return f"array '{name}' is of type {found.dtype}, must be {_KIND_WORDS[kinds]}"
        if found.ndim != axes if axes is not None else found.ndim < 2:
            return f"array '{name}' has shape {found.shape}"
    return _other_trials(known) or _bad_images(arrays, known) or _bad_descents(known)


def _other_trials(known: Arrays) -> str:
    """Arrays of one file speak of the same trials."""
    counts = {
        name: len(known[name]) for name in known if name in _OF_TRIALS or name.startswith(_MEMBER)
    }
    if len(set(counts.values())) > 1:
        return f"arrays of different numbers of trials: {counts}"
    return ""


def _bad_images(arrays: Arrays, known: Arrays) -> str:
    images = [
        name for name in known if name in ("inputs", "start", "truth") or name.startswith(_MEMBER)
    ]
    if not images:
        return ""
    shape = known[images[0]].shape[1:]
    if 0 in shape:
        return f"array '{images[0]}' has empty images, shape {known[images[0]].shape}"
    for name in images:
        if known[name].shape[1:] != shape:
            return f"array '{name}' has images of shape {known[name].shape[1:]}, others of {shape}"
    if (mean := arrays.get("mean_image")) is not None and not _is(mean, shape):
        return f"array 'mean_image' has shape {mean.shape}, images have {shape}"
    if (stack := arrays.get("snapshots")) is not None:
        steps = arrays.get("snapshot_steps")
        expected = (0 if steps is None else len(steps), len(known[images[0]]), *shape)
        if not _is(stack, expected):
            return f"array 'snapshots' has shape {stack.shape}, must be numbers of {expected}"
    return ""


def _is(found: NDArray[Any], shape: tuple[int, ...]) -> bool:
    return found.dtype.kind in _NUMBERS and found.shape == shape


def _bad_descents(known: Arrays) -> str:
    """Lengths that add up, and steps that count up to what an attack may do."""
    for kind in ("raw", "clamped"):
        columns = [f"{kind}_{name}" for name in ("steps", "evaluations", "errors")]
        if f"{kind}_lengths" not in known:
            continue
        lengths = known[f"{kind}_lengths"]
        whole = int(lengths.sum()) if lengths.size and int(lengths.min()) >= 0 else -lengths.size
        for name in columns:
            if name not in known or len(known[name]) != whole:
                return f"array '{name}' has not as many entries as '{kind}_lengths' say"
        steps = known[f"{kind}_steps"]
        if steps.size and not 0 <= int(steps.min()) <= int(steps.max()) <= MOST_STEPS:
            return f"array '{kind}_steps' must be from 0 to {MOST_STEPS}"
    return ""
