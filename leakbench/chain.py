"""Several defenses one after another, as one defense: "prune + fed_cdp" (Fed-CDP paper, Figure 5).

At every hook of the path the parts act in the order of the name.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

from leakbench.contracts import (
    Context,
    Defense,
    Gradients,
    Guarantee,
    Observer,
    Row,
    Setting,
    State,
    Weights,
)
from leakbench.errors import LeakbenchError
from leakbench.privacy.events import PrivacyEvent
from leakbench.registry import JOINT

HOOKS = ("on_examples", "on_batch", "on_update", "on_receipt")
"""In the order of the path."""


# No slots here: the parts are made once, and kept.
@dataclass(frozen=True, kw_only=True)
class Chain(Defense):
    """Base of what `chain_of` makes; a field is PART_FIELD, with the part's own default.

    Replay: the mask that an observation shows is that of the last part to act before the tap, so
    only a part that no other one acts behind is told the observation; the others replay by their
    own values.

    Guarantee: that of the one part that gives one, where what the others do cannot spoil it: before
    it they treat every example by itself, which its clipping then bounds; after it they act on
    whole updates, which is post-processing. In every other case none.
    """

    kinds: ClassVar[tuple[type[Defense], ...]] = ()

    def __post_init__(self) -> None:
        sizes = {part.row for part in self.parts if part.row is not None}
        if len(sizes) > 1:
            said = " and ".join(sorted(map(repr, sizes)))
            raise LeakbenchError(
                f"{self.name}: the parts look at gradients of different numbers of examples, "
                f"{said}; allowed: one number"
            )

    @cached_property
    def parts(self) -> tuple[Defense, ...]:
        """The defenses, in order."""
        return tuple(
            kind(**{f.name: getattr(self, f"{kind.name}_{f.name}") for f in _fields(kind)})
            for kind in self.kinds
        )

    @property
    def row(self) -> Row:
        return next((part.row for part in self.parts if part.row is not None), None)

    @property
    def rowwise(self) -> bool:
        return all(part.rowwise for part in self.parts if part.row is not None)

    @property
    def reads_observation(self) -> bool:
        return any(part.reads_observation for part in self.parts)

    @property
    def hooks(self) -> frozenset[str]:
        return frozenset().union(*(part.hooks for part in self.parts))

    def init(self, weights: Weights) -> tuple[State, ...]:
        return tuple(part.init(weights) for part in self.parts)

    def on_round(
        self, weights: Weights, state: tuple[State, ...], context: Context
    ) -> tuple[State, ...]:
        pairs = zip(self.parts, state, strict=True)
        return tuple(part.on_round(weights, own, context) for part, own in pairs)

    def merge(self, state: tuple[State, ...]) -> tuple[State, ...]:
        return tuple(part.merge(own) for part, own in zip(self.parts, state, strict=True))

    def on_examples(
        self, gradients: Gradients, state: tuple[State, ...], context: Context
    ) -> tuple[Gradients, tuple[State, ...]]:
        return self._all("on_examples", gradients, state, context)

    def on_batch(
        self, gradients: Gradients, state: tuple[State, ...], context: Context
    ) -> tuple[Gradients, tuple[State, ...]]:
        return self._all("on_batch", gradients, state, context)

    def on_update(
        self, gradients: Gradients, state: tuple[State, ...], context: Context
    ) -> tuple[Gradients, tuple[State, ...]]:
        return self._all("on_update", gradients, state, context)

    def on_receipt(
        self, gradients: Gradients, state: tuple[State, ...], context: Context
    ) -> tuple[Gradients, tuple[State, ...]]:
        return self._all("on_receipt", gradients, state, context)

    def _all(
        self, hook: str, gradients: Gradients, state: tuple[State, ...], context: Context
    ) -> tuple[Gradients, tuple[State, ...]]:
        left = []
        for number, (part, own) in enumerate(zip(self.parts, state, strict=True)):
            if hook == "on_examples" and part.row is None:
                left.append(own)
                continue
            known = context
            if self._acts_behind(number, hook):
                known = replace(context, observation=None)
            gradients, after = getattr(part, hook)(gradients, own, known)
            left.append(after)
        # The very same state where nothing changed: `rowwise` promises it.
        same = all(one is other for one, other in zip(left, state, strict=True))
        return gradients, state if same else tuple(left)

    def _acts_behind(self, number: int, hook: str) -> bool:
        """Whether another part does something after part `number` at `hook`."""
        later = HOOKS[HOOKS.index(hook) + 1 :]
        return any(
            (other > number and hook in part.hooks) or not part.hooks.isdisjoint(later)
            for other, part in enumerate(self.parts)
            if other != number
        )

    def guarantee(self, observer: Observer, weights: Weights, setting: Setting) -> Guarantee:
        promises = [part.guarantee(observer, weights, setting) for part in self.parts]
        given = [k for k, promise in enumerate(promises) if promise.level != "none"]
        if not given:
            reasons = dict.fromkeys(promise.reason for promise in promises)
            return Guarantee(level="none", reason="; ".join(reasons))
        if len(given) > 1:
            return Guarantee(level="none", reason="several parts add noise: not accounted together")
        (number,) = given
        if reason := self._spoilt(number):
            return Guarantee(level="none", reason=reason)
        return promises[number]

    def _spoilt(self, number: int) -> str:
        """Why the promise of part `number` may not hold in the chain; "" if it does."""
        example_level = self.parts[number].hooks <= {"on_examples", "on_batch"}
        for other, part in enumerate(self.parts):
            before = other < number and part.hooks <= {"on_examples"} and part.rowwise
            behind = example_level and part.hooks <= {"on_update", "on_receipt"}
            if other != number and not (before or behind):
                return f"what '{part.name}' does may undo what bounds '{self.parts[number].name}'"
        return ""

    def noise_std(
        self,
        observer: Observer,
        weights: Weights,
        state: tuple[State, ...],
        context: Context,
    ) -> Mapping[str, float] | None:
        """That of the last part where no other adds any: noise that others change is not known."""
        found = [
            part.noise_std(observer, weights, own, context)
            for part, own in zip(self.parts, state, strict=True)
        ]
        last = found[-1]
        quiet = all(known is not None and not any(known.values()) for known in found[:-1])
        return last if quiet else None

    def events(self, weights: Weights, setting: Setting) -> tuple[PrivacyEvent, ...]:
        if self.guarantee("model", weights, setting).level == "none":
            return ()
        return next(
            part.events(weights, setting)
            for part in self.parts
            if part.guarantee("model", weights, setting).level != "none"
        )


def chain_of(kinds: Sequence[type[Defense]]) -> type[Chain]:
    """The defense that applies these in order; its fields are theirs, PART_FIELD.

    Raises:
        LeakbenchError: a defense twice, whose parameters could not be told apart.
    """
    names = [kind.name for kind in kinds]
    name = JOINT.join(names)
    if len(set(names)) < len(names):
        raise LeakbenchError(f"defense '{name}': every part may stand once")
    fields: list[tuple[str, Any, Any]] = []
    for kind in kinds:
        hints = typing.get_type_hints(kind)
        for item in _fields(kind):
            fields.append((f"{kind.name}_{item.name}", hints[item.name], _default(item)))
    made = dataclasses.make_dataclass(
        "Chain", fields, bases=(Chain,), frozen=True, kw_only=True,
        namespace={"name": name, "kinds": tuple(kinds),
                   "needs_public": any(kind.needs_public for kind in kinds), "__module__": __name__,
                   "__doc__": f"{name}, one after another; see `Chain`."},
    )  # fmt: skip
    return typing.cast("type[Chain]", made)


def _fields(kind: type[Defense]) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(typing.cast(Any, kind))


def _default(item: dataclasses.Field[Any]) -> Any:
    if item.default_factory is not dataclasses.MISSING:
        return dataclasses.field(default_factory=item.default_factory)
    return dataclasses.field(default=item.default)
