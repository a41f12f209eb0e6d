"""What every kind of success rule is made of. A rule judges numbers; it never sees an image."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from leakbench.errors import LeakbenchError

Numbers = Mapping[str, float | None]
"""Name of a metric, or `BEST_BASELINE` -> its value for one image; None: not measured."""

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Columns = Mapping[str, NDArray[np.float64]]
    Bools = NDArray[np.bool_]

BEST_BASELINE: str = "best_baseline_mse"
"""The smallest clamped mean squared error among the victim's `TRIVIAL` baselines."""

TRIVIAL: tuple[str, ...] = ("start_image", "mean_image", "class_mean")
"""Baselines that need no search through other people's images."""

_FOLLOWED: dict[Literal["raw", "clamped"], frozenset[str]] = {
    "raw": frozenset({"mse_raw", "distance_raw", BEST_BASELINE}),
    "clamped": frozenset({"mse_clamped", "distance_clamped", BEST_BASELINE}),
}
"""What is known of every iterate: its error. To rank each of them would cost too much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessRule(ABC):
    """What a suite calls a success. It is applied by the harness, never by an attack.

    A kind of rule is one subclass in a file of its own in `leakbench/metrics/rules/`. Its fields
    are the keys of a `[[rules]]` table in a suite.

    Attributes:
        kind: The kind's name in suites.
        version: Raised whenever the kind judges the same numbers differently.
        needs_recovery: Whether a success shows the image itself, not only whose it is.
        bare: Whether it is no more than an error below a threshold, as papers print it: which error
            and which threshold is enough there depends on the images.
        name: The rule's name in suites, records and tables.
    """

    kind: ClassVar[str]
    version: ClassVar[int] = 1
    needs_recovery: ClassVar[bool] = False
    bare: ClassVar[bool] = False

    name: str

    @property
    @abstractmethod
    def reads(self) -> tuple[str, ...]:
        """The numbers that `judge` looks at: names of metrics, or `BEST_BASELINE`."""

    @abstractmethod
    def judge(self, measured: Numbers) -> bool:
        """Whether an image with these numbers is a success.

        A number the rule needs that is absent, None or NaN makes it False: what could not be
        measured has not been shown to leak.
        """

    def judge_all(self, measured: Columns) -> Bools:
        """`judge` of many images at once, (n,): a report has a hundred thousand of them.

        measured: (n,) of each number that the rule reads; NaN where it was not measured. A rule
        may have a faster program than one question an image.
        """
        import numpy as np

        rows = zip(*(column.tolist() for column in measured.values()), strict=True)
        images = (
            {k: None if math.isnan(v) else v for k, v in zip(measured, row, strict=True)}
            for row in rows
        )
        return np.array([self.judge(image) for image in images], dtype=np.bool_)

    @property
    @abstractmethod
    def condition(self) -> str:
        """What must hold, in words and with the rule's numbers, without a full stop."""

    @property
    def error(self) -> str:
        """The metric that says how far off a success is: printed errors are compared with it."""
        return "mse_clamped"

    @property
    def identifies_first(self) -> bool:
        """Whether a success names the victim with one guess among the candidates.

        The chance of that has a ceiling that follows from a defense's guarantee.
        """
        return False

    @property
    def follows(self) -> Literal["raw", "clamped"] | None:
        """The errors by which the rule can be followed step by step; None: it cannot be.

        It can where it reads nothing but one kind of error and the baseline. Its first success is
        then looked for among the iterates nearer than all before, so that a rule that is met by an
        error must be met by every smaller one.
        """
        reads = set(self.reads)
        return next((which for which, known in _FOLLOWED.items() if reads <= known), None)

    @property
    def stepwise(self) -> bool:
        """Whether the rule can be followed step by step."""
        return self.follows is not None

    def success_at(self, *, error: float, pixels: int, baseline: float | None) -> bool:
        """Whether an iterate is a success.

        Args:
            error: Its mean squared error, of the kind that the rule `follows`.
            pixels: Numbers in one image, to make a distance of the error.
            baseline: The victim's `BEST_BASELINE`.

        Raises:
            ValueError: If the rule cannot be followed.
        """
        which = self.follows
        if which is None:
            raise ValueError(f"{self._where}: {self.kind} cannot be followed step by step")
        return self.judge(
            {
                f"mse_{which}": error,
                f"distance_{which}": math.sqrt(error * pixels),
                BEST_BASELINE: baseline,
            }
        )

    @property
    def _where(self) -> str:
        return f"rule '{self.name}'"

    def _require_threshold(self, threshold: float | None) -> None:
        if threshold is None or not 0 < threshold < math.inf:
            text = f"threshold must be positive and finite, got {threshold}"
            raise LeakbenchError(f"{self._where}: {text}")

    def _require_clamp(self, clamp: bool) -> None:
        if not clamp:
            raise LeakbenchError(f"{self._where}: {self.kind} always clamps, clamp must be true")


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRule(SuccessRule):
    """One error is less than a threshold, as papers print it; the kind is the error's name.

    Attributes:
        shown: The error's name for people.
        threshold: Positive, in the units of the error.
        clamp: Whether the number is taken on clamped pixels.
    """

    bare: ClassVar[bool] = True
    shown: ClassVar[str]

    threshold: float
    clamp: bool = True

    def __post_init__(self) -> None:
        self._require_threshold(self.threshold)

    @property
    def error(self) -> str:
        return f"{self.kind}_clamped" if self.clamp else f"{self.kind}_raw"

    @property
    def condition(self) -> str:
        return f"{'clamped' if self.clamp else 'raw'} {self.shown} < {self.threshold:g}"

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.error,)

    def judge(self, measured: Numbers) -> bool:
        return below(measured.get(self.error), self.threshold)

    def judge_all(self, measured: Columns) -> Bools:
        return measured[self.error] < self.threshold


def below(value: float | None, limit: float) -> bool:
    """Whether a measured number is less than `limit`; None and NaN are not."""
    return value is not None and value < limit
