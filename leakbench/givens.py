"""What a user hands to the library beside a model: examples, labels, ranges, gradients.

What cannot be meant is refused in one sentence; nothing that is kept shares memory with the
user's tensors, whatever becomes of these.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from leakbench.captured import Examples
from leakbench.contracts import Weights
from leakbench.data.columns import of_names, require_fitting
from leakbench.data.features import Feature
from leakbench.errors import LeakbenchError
from leakbench.plugin_files import one_line

SLACK = 1e-6
"""Share of the input range by which an input may lie outside it: rounding."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Givens:
    """Examples of all kinds: x (examples, *input shape) and y (examples,), or with clients before;
    notes on how they were understood."""

    x: Tensor
    y: Tensor
    candidates: Examples | None
    public: Examples | None
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, x: Any, y: Any, candidates: Any, public: Any) -> Givens:
        """What was given, looked at.

        Raises:
            LeakbenchError: no tensors, no floating point, nan, labels that are no whole numbers, or
                shapes that do not belong together.
        """
        x, y = floating("leak: x", x), tensor("leak: y", y)
        y, notes = _labels(y, x)
        shape = x.shape[y.ndim :]
        return cls(
            x=x, y=y, notes=notes,
            candidates=examples("leak", "candidates", candidates, shape, labelled=True),
            public=examples("leak", "public", public, shape),
        )  # fmt: skip

    def to(self, like: Tensor) -> Givens:
        """A copy in the type and on the device of the model's weights."""
        return dataclasses.replace(
            self,
            x=self.x.to(like, copy=True),
            y=self.y.to(like.device, copy=True),
            candidates=_to(self.candidates, like),
            public=_to(self.public, like),
        )

    def inputs(self) -> dict[str, Tensor]:
        """All that lies in the input range, by its name."""
        own = {"candidates": self.candidates, "public": self.public}
        others = {name: given.inputs for name, given in own.items() if given is not None}
        return {"x": self.x, **others}

    def require_labels(self, classes: int) -> None:
        """Refuse labels of no class."""
        labels = {"y": self.y}
        for name, examples in (("candidates", self.candidates), ("public", self.public)):
            if examples is not None and examples.labels is not None:
                labels[f"labels of {name}"] = examples.labels
        for name, values in labels.items():
            require_classes(f"leak: {name}", values, classes)


def require_classes(place: str, labels: Tensor, classes: int) -> None:
    """Refuse labels of no class; `place` begins what is said."""
    least, most = int(labels.min()), int(labels.max())
    if least < 0 or most >= classes:
        raise LeakbenchError(
            f"{place} are from {least} to {most}; allowed with {classes} classes: 0 to "
            f"{classes - 1}"
        )


def input_range(given: Givens, declared: Any) -> tuple[tuple[float, float], list[str]]:
    """The input range, and a note where it was found from the data.

    Raises:
        LeakbenchError: a declared one that is none, or that something lies outside of.
    """
    ends = {name: (float(part.min()), float(part.max())) for name, part in given.inputs().items()}
    if declared is not None:
        low, high = _ends(declared)
        slack = SLACK * (high - low)
        for name, (least, most) in ends.items():
            if least < low - slack or most > high + slack:
                raise LeakbenchError(
                    f"leak: {name} lies in [{least:.4g}, {most:.4g}], outside the declared "
                    f"input_range [{low:g}, {high:g}]"
                )
        return (low, high), []
    low, high = min(least for least, _ in ends.values()), max(most for _, most in ends.values())
    if low >= 0 and high <= 1:
        return (0.0, 1.0), []
    if low == high:
        high = low + 1
    return (low, high), [
        f"input_range was not declared: [{low:.4g}, {high:.4g}] is what x and all else that was "
        "given lies in"
    ]


def features(given: Givens, declared: Any) -> tuple[Feature, ...]:
    """What the columns of a table mean, held against all rows; () where nothing is declared.

    Raises:
        LeakbenchError: inputs that are no rows, or features that do not fit them.
    """
    if not isinstance(declared, list | tuple):
        raise LeakbenchError(
            f"leak: features are {type(declared).__name__}; allowed: one name a column, or a "
            "Feature each"
        )
    if not declared:
        return ()
    shape = tuple(given.x.shape[given.y.ndim :])
    if len(shape) != 1:
        raise LeakbenchError(
            f"leak: features are of rows of a table (columns,), x holds inputs {shape}"
        )
    parts = [part.reshape(-1, *shape).cpu() for part in given.inputs().values()]
    rows = torch.cat(parts).double().numpy()  # numpy has no bfloat16
    names = [each for each in declared if isinstance(each, str)]
    if len(names) == len(declared):
        return of_names("leak: features", names, rows)
    found = tuple(each for each in declared if isinstance(each, Feature))
    if len(found) < len(declared):
        raise LeakbenchError(
            "leak: features are neither all names nor all Feature; allowed: one name a column, or "
            "a Feature each"
        )
    require_fitting("leak: features", found, rows)
    return found


def gradients(sent: Any, weights: Weights, victims: int) -> dict[str, Tensor]:
    """What a training gave away: parameter name -> (victims, *its shape), like the weights.

    Raises:
        LeakbenchError: another name or shape.
    """
    if not isinstance(sent, Mapping):
        raise LeakbenchError(
            f"leak: sent is {type(sent).__name__}; allowed: parameter name -> gradients"
        )
    if odd := sorted(map(str, sent.keys() ^ weights.keys())):
        has = "no" if odd[0] in weights else "an unknown"
        raise LeakbenchError(
            f"leak: sent has {has} parameter '{odd[0]}'; those that are trained are {list(weights)}"
        )
    found = {}
    for name, weight in weights.items():
        value = tensor(f"leak: sent['{name}']", sent[name])
        wanted = (victims, *weight.shape)
        if tuple(value.shape) != wanted:
            raise LeakbenchError(
                f"leak: sent['{name}'] is {tuple(value.shape)}; allowed: {wanted}, a row a victim"
            )
        found[name] = value.to(weight, copy=True)
    return found


def _to(examples: Examples | None, like: Tensor) -> Examples | None:
    if examples is None:
        return None
    labels = examples.labels
    return Examples(
        inputs=examples.inputs.to(like, copy=True),
        labels=None if labels is None else labels.to(like.device, copy=True),
    )


def tensor(place: str, given: Any) -> Tensor:
    """A tensor, an array or numbers as a tensor without a history; `place` begins what is said."""
    try:
        return torch.as_tensor(given).detach()
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise LeakbenchError(
            f"{place} is {type(given).__name__} and no tensor: {one_line(error)}"
        ) from None


def floating(place: str, given: Any) -> Tensor:
    """The same, where inputs are meant: some, finite, floating point."""
    found = tensor(place, given)
    if not found.is_floating_point():
        raise LeakbenchError(
            f"{place} is {found.dtype}; allowed: floating point, scaled as the model sees it"
        )
    if not found.numel():
        raise LeakbenchError(
            f"{place} {tuple(found.shape)} holds nothing; allowed: one example at least"
        )
    if not bool(torch.isfinite(found).all()):
        raise LeakbenchError(f"{place} holds nan or infinities; allowed: finite numbers")
    return found


def _whole(place: str, given: Tensor) -> Tensor:
    real = not given.is_complex() and bool(torch.isfinite(given).all())
    if not real or (given.is_floating_point() and not bool((given == given.round()).all())):
        raise LeakbenchError(
            f"{place} holds fractions, or what is no number; allowed: numbers of classes, from 0 on"
        )
    return given.to(torch.int64)


def _labels(y: Tensor, x: Tensor) -> tuple[Tensor, tuple[str, ...]]:
    """Whole numbers, without the axis that a single output has; and a note on a doubtful one."""
    notes: tuple[str, ...] = ()
    column = y.ndim > 1 and y.shape[-1] == 1 and y.shape[0] == x.shape[0]
    if column and (y.is_floating_point() or x.shape[: y.ndim] != y.shape):
        y = y[..., 0]
    elif column and y.ndim == 2 and len(y) > 1:
        notes = (
            f"y {tuple(y.shape)} is read as {len(y)} clients with one example each; y ({len(y)},) "
            f"would be {len(y)} examples of one",
        )
    y = _whole("leak: y", y)
    if y.ndim not in (1, 2) or x.shape[: y.ndim] != y.shape or x.ndim == y.ndim:
        raise LeakbenchError(
            f"leak: x {tuple(x.shape)} and y {tuple(y.shape)} do not belong together; allowed: "
            "(examples, *input shape) and (examples,), or (clients, examples, *input shape) and "
            "(clients, examples)"
        )
    return y, notes


def examples(
    where: str, name: str, given: Any, shape: tuple[int, ...], *, labelled: bool = False
) -> Examples | None:
    """Inputs (N, *shape), or a pair of these and labels (N,), which `labelled` asks for.

    Raises:
        LeakbenchError: anything else.
    """
    if given is None:
        return None
    pair = tuple(given) if isinstance(given, tuple | list) else (given, None)
    if len(pair) != 2 or (pair[1] is None and labelled):
        said = "(inputs, labels)" if labelled else "inputs, or (inputs, labels)"
        raise LeakbenchError(f"{where}: {name} are not inputs with labels; allowed: {said}")
    inputs = floating(f"{where}: {name}", pair[0])
    if inputs.shape[1:] != shape:
        raise LeakbenchError(
            f"{where}: {name} {tuple(inputs.shape)} are not of the kind of x; allowed: "
            f"(N, {', '.join(map(str, shape))})"
        )
    if pair[1] is None:
        return Examples(inputs=inputs)
    place = f"{where}: labels of {name}"
    labels = _whole(place, tensor(place, pair[1]))
    if labels.shape != inputs.shape[:1]:
        raise LeakbenchError(
            f"{where}: {name} {tuple(inputs.shape)} and labels {tuple(labels.shape)} do not belong "
            "together; allowed: (N, *input shape) and (N,)"
        )
    return Examples(inputs=inputs, labels=labels)


def _ends(declared: Any) -> tuple[float, float]:
    try:
        low, high = map(float, declared)
    except (TypeError, ValueError):
        low = high = math.nan
    if not (low < high and math.isfinite(high - low)):
        raise LeakbenchError(
            f"leak: input_range is {declared!r:.60}; allowed: two finite numbers, the least and "
            "the greatest value of an input"
        )
    return low, high
