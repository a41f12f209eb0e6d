"""Records of trials checked many at a time, with the same verdicts as one by one.

`record_types.wrong` judges each field of a trial by itself: by the kind of its value, and of some
by a range or a list of words. So what it has let pass in one record need not be asked again in a
hundred thousand: it is enough that every field of theirs holds what that field held before. Where
one does not, it is asked. A column takes a third of the time of as many questions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from math import isfinite
from typing import Any

from leakbench.record_types import MOST_COUNT, wrong

Table = Mapping[str, Any]

AT_ONCE = 256
"""Records whose columns are looked at together: they fit into the processor's memory."""

WORDS = {("status",), ("schema",)}
"""Fields of which only some values are right, and not all of a kind."""


class Known:
    """What `wrong` has let pass: which fields stand together, and which kinds of values in each."""

    def __init__(self) -> None:
        self._names: set[tuple[Any, ...]] = set()
        self._kinds: set[tuple[Any, ...]] = set()
        self._words: set[tuple[Any, ...]] = set()

    def problems(self, records: Sequence[Table]) -> list[str]:
        """`wrong` of each of these."""
        trials = [record for record in records if record.get("kind") != "utility"]
        if self._covers((), trials):
            sound = [""] * len(trials)
        else:
            sound = [wrong(record) for record in trials]
            for record, problem in zip(trials, sound, strict=True):
                if not problem:
                    self._learn((), record)
        if len(trials) == len(records):
            return sound
        found = iter(sound)
        return [wrong(r) if r.get("kind") == "utility" else next(found) for r in records]

    def _learn(self, place: tuple[str, ...], table: Table) -> None:
        self._names.add((place, *table))
        for name, value in table.items():
            own = (*place, name)
            self._kinds.add((own, type(value)))
            if own in WORDS:
                self._words.add((own, value))
            if isinstance(value, dict):
                self._learn(own, value)
            elif isinstance(value, list):
                self._kinds.update((own, list, type(item)) for item in value)

    def _covers(self, place: tuple[str, ...], tables: Sequence[Table]) -> bool:
        """Whether all values are of kinds that are known in their fields, and in every range."""
        together: Mapping[tuple[str, ...], Sequence[Table]]
        kinds = {*map(tuple, tables)}
        if len(kinds) == 1:
            together = {kinds.pop(): tables}
        else:
            together = {names: [t for t in tables if tuple(t) == names] for names in kinds}
        return all(
            (place, *names) in self._names
            and all(
                self._covers_column((*place, name), column)
                for name, column in zip(names, _columns(some), strict=True)
            )
            for names, some in together.items()
        )

    def _covers_column(self, place: tuple[str, ...], column: tuple[Any, ...]) -> bool:
        kinds = {*map(type, column)}
        if not all((place, kind) in self._kinds for kind in kinds):
            return False
        if place in WORDS and not all((place, word) in self._words for word in {*column}):
            return False
        if int in kinds and not _in_range(_only(int, column, kinds)):
            return False
        # A sum is finite only if all of them are.
        if float in kinds and not isfinite(sum(_only(float, column, kinds))):
            return False
        if dict in kinds and not self._covers(place, _only(dict, column, kinds)):
            return False
        items = chain.from_iterable(_only(list, column, kinds)) if list in kinds else ()
        return all((place, list, kind) in self._kinds for kind in {*map(type, items)})


def _columns(tables: Sequence[Table]) -> Iterable[tuple[Any, ...]]:
    """Of tables with the same fields, the values of each field."""
    return zip(*(table.values() for table in tables), strict=True)


def _only(kind: type, column: Iterable[Any], kinds: set[type]) -> Any:
    return column if len(kinds) == 1 else [value for value in column if type(value) is kind]


def _in_range(counts: Sequence[int]) -> bool:
    return min(counts) >= 0 and max(counts) <= MOST_COUNT
