"""What a page shows of victims: what each attacker had at each kept step, and how it was judged.

`album_making` fills these in from the files of a run; nothing heavy is imported here.
"""

from __future__ import annotations

from dataclasses import dataclass

WIDTH, HEIGHT = 120, 56
"""Of a trace, in units of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """A candidate near to a reconstruction: its picture, and words with its distance."""

    picture: int
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What one attacker made of a victim.

    Attributes:
        label, knowledge: who he is, and against which row.
        frames: pictures at the start, at each step of the section, and what was returned; none
            where the trial has no result.
        words: its raw MSE / SSIM, or how the trial ended. success: by the suite's strict rule.
        rank: what it named, in words, "" where that is not known.
        right: distance of the victim, in words. nearest: the nearest of the others.
        loss, error: points of a line each, from step 0 to `steps`, see `line`. trace: both in
            words.
        facts: fields of the record, "name value", without those that all attempts share.
    """

    label: str
    knowledge: str
    frames: tuple[int, ...]
    words: str
    success: bool
    rank: str
    right: str
    nearest: tuple[Neighbour, ...]
    loss: str
    error: str
    steps: int
    trace: str
    facts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A victim: its anchor on the page, who it is, pictures of it and of what needs no gradient,
    every attempt in the order of the section's attackers, and the facts that all share."""

    anchor: str
    words: str
    original: int
    mean: int
    attempts: tuple[Attempt, ...]
    facts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """The victims of a data set.

    Attributes:
        steps: words for the places of the slider: start, each step, returned.
        attackers: (label, knowledge) of each column.
        picked, others: victims that the suite's rule picks, and the rest of those shown.
        picked_by: what the picked ones are the median and the worst of, "" without any.
        text: what is not shown, and why; "" if all is.
    """

    title: str
    steps: tuple[str, ...]
    attackers: tuple[tuple[str, str], ...]
    picked: tuple[Shown, ...]
    others: tuple[Shown, ...]
    text: str
    picked_by: str = ""

    @property
    def victims(self) -> tuple[Shown, ...]:
        """All."""
        return self.picked + self.others


@dataclass(frozen=True, slots=True, kw_only=True)
class Album:
    """What a page shows of victims. pictures: WebP in base64, by number. frame: what a blue frame
    says. text: why there is nothing to see; "" where there is."""

    sections: tuple[Section, ...] = ()
    pictures: tuple[str, ...] = ()
    frame: str = ""
    text: str = ""
