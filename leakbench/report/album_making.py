"""The album of a run: pictures of its victims, candidates near to them, traces, records.

Each picture is kept once, and never more of them than a page can bear: first fewer steps are shown,
then fewer victims, and the page says so.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import PIL.Image
from numpy.typing import NDArray

from leakbench import frames
from leakbench.described import PlannedCell
from leakbench.errors import LeakbenchError
from leakbench.printable import printable
from leakbench.records import Key, Record, Run
from leakbench.report.album import HEIGHT, WIDTH, Album, Attempt, Neighbour, Section, Shown
from leakbench.report.drawing import SIDE, Image
from leakbench.report.gallery import frame_rule
from leakbench.report.kinds import Pick
from leakbench.report.measured import LabelledRule
from leakbench.report.shots import dataset_of, shown, under
from leakbench.report.traces_figure import descent
from leakbench.report.victims import Shelf, choose, drawable, trials_of
from leakbench.report.words import compact
from leakbench.spec import JUDGED, Plan

MOST_VICTIMS = 24
"""Of a data set: to look through more files would take minutes."""

NEAREST = 2
"""Wrong candidates that are shown beside a reconstruction."""

LOWEST, HIGHEST = -12, 8
"""Powers of ten at its bottom and top: the same in all, so that they can be compared."""

MOST_POINTS = 40
"""Of a line."""

Place = tuple[int, int]
"""(network, victim)."""

Floats = NDArray[np.float64]


def album_of(
    run: Run,
    plan: Plan,
    planned: Sequence[PlannedCell],
    records: Mapping[Key, Record],
    budget: int,
) -> Album:
    """The victims of a run; an album with `text` alone where its images were not kept.

    Args:
        run, plan, planned, records: As in `gallery.draw`.
        budget: Bytes that pictures and words may take, but for one victim of each data set.
    """
    if not any((record.get("host") or {}).get("arrays") for record in records.values()):
        return Album(text=_NOT_KEPT)
    # Before anything else: what is below loads the data, which takes seconds.
    if not any((run.folder / "reconstructions").glob("*.npz")):
        return Album(text=_NOT_HERE)
    pictures = Pictures()
    drafts: list[_Draft] = []
    for name in dict.fromkeys(each.cell.dataset for each in planned):
        cells = [each for each in planned if each.cell.dataset == name]
        draft = _Draft(run, plan, cells, records, pictures, len(drafts) + 1)
        if draft.victims:
            drafts.append(draft)
    left = budget
    sections = []
    for number, draft in enumerate(drafts):
        section, spent = draft.within(left // (len(drafts) - number), pictures)
        left -= spent
        sections.append(section)
    if not sections:
        return Album(text=_NOT_HERE)
    used = sorted({number for section in sections for number in _numbers(section)})
    places = {number: place for place, number in enumerate(used)}
    rule = frame_rule(plan)
    return Album(
        sections=tuple(_renumbered(section, places) for section in sections),
        pictures=tuple(pictures.encoded(number) for number in used),
        frame="" if rule is None else f"success under '{rule.label}': {rule.judged.condition}",
    )


_NOT_KEPT = "No trial kept its images, so there are none to show."
_NOT_HERE = (
    "The images of this run are not here: it was copied without them. They lie beside its records "
    "where it was made, and a report made there shows them."
)


# ------------------------------------------------------------------------------ pictures


class Pictures:
    """Pictures by number, the same pixels once."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[tuple[int, ...], bytes], int] = {}
        self._pixels: list[NDArray[np.uint8]] = []
        self._encoded: dict[int, str] = {}

    def add(self, image: Image) -> int:
        """Its number. image: (1 or 3, height, width) or a row of a table; clamped to [0, 1], what
        is not a number becomes middle gray; of a large one every second (third, ...) pixel."""
        stack = shown(np.asarray(image, dtype=np.float32))
        assert stack is not None
        stride = -(-max(stack.shape[1:]) // SIDE)
        stack = stack[:, ::stride, ::stride]
        unit = np.clip(np.nan_to_num(stack, nan=0.5, posinf=1.0, neginf=0.0), 0.0, 1.0)
        pixels = np.round(unit * 255).astype(np.uint8)
        key = pixels.shape, pixels.tobytes()
        if key not in self._numbers:
            self._numbers[key] = len(self._pixels)
            self._pixels.append(pixels)
        return self._numbers[key]

    def encoded(self, number: int) -> str:
        """WebP without loss, in base64."""
        if number not in self._encoded:
            pixels = self._pixels[number]
            plane = pixels[0] if len(pixels) == 1 else pixels[:3].transpose(1, 2, 0)
            buffer = io.BytesIO()
            PIL.Image.fromarray(plane).save(
                buffer, format="WEBP", lossless=True, quality=20, method=2
            )
            self._encoded[number] = base64.b64encode(buffer.getvalue()).decode("ascii")
        return self._encoded[number]


def _numbers(section: Section) -> Iterator[int]:
    for victim in section.victims:
        yield from _numbers_of(victim)


def _numbers_of(victim: Shown) -> Iterator[int]:
    yield victim.original
    yield victim.mean
    for attempt in victim.attempts:
        yield from attempt.frames
        for other in attempt.nearest:
            yield other.picture


def _renumbered(section: Section, places: Mapping[int, int]) -> Section:
    def attempt(one: Attempt) -> Attempt:
        return replace(
            one,
            frames=tuple(places[number] for number in one.frames),
            nearest=tuple(replace(each, picture=places[each.picture]) for each in one.nearest),
        )

    def victim(one: Shown) -> Shown:
        return replace(
            one,
            original=places[one.original],
            mean=places[one.mean],
            attempts=tuple(map(attempt, one.attempts)),
        )

    return replace(
        section,
        picked=tuple(map(victim, section.picked)),
        others=tuple(map(victim, section.others)),
    )


# ------------------------------------------------------------------------------ a data set


class _Draft:
    """All that could be shown of a data set, before it is known how much fits."""

    def __init__(
        self,
        run: Run,
        plan: Plan,
        cells: Sequence[PlannedCell],
        records: Mapping[Key, Record],
        pictures: Pictures,
        number: int,
    ) -> None:
        self._pictures = pictures
        self._rule: LabelledRule | None = frame_rule(plan)
        self._number = number
        self.title = cells[0].title.split(",")[0]
        self.steps = sorted({step for each in cells for step in each.cell.snapshots})
        self.attackers = list(
            dict.fromkeys((e.cell.row, e.cell.label, e.cell.knowledge) for e in cells)
        )
        self.trials: dict[Place, dict[tuple[str, str, str], Record]] = {}
        for each in cells:
            for record in trials_of(each, records):
                place = int(record["network"]), int(record["victim"])
                who = each.cell.row, each.cell.label, each.cell.knowledge
                self.trials.setdefault(place, {})[who] = record
        self.text: list[str] = []
        self.picked_by = ""
        self._defended = {each.cell.row for each in cells if each.cell.defense != "none"}
        self.why = self._picked(run, plan, cells, records)
        every = sorted(self.trials, key=lambda place: (place[1], place[0]))
        wanted = [*self.why, *(place for place in every if place not in self.why)]
        self._neighbours = _Neighbours(cells[0], pictures, self.text)
        self.victims = list(self._read(run, wanted[:MOST_VICTIMS]))

    def _picked(
        self,
        run: Run,
        plan: Plan,
        cells: Sequence[PlannedCell],
        records: Mapping[Key, Record],
    ) -> dict[Place, str]:
        """Victims that the suite's rule picks -> why, as in a gallery."""
        chosen = choose(plan, cells, records, Pick.quantiles, (), Shelf(run, []))
        found: dict[Place, str] = {}
        for each in chosen.victims:
            place = int(each.record["network"]), int(each.record["victim"])
            found[place] = f"{found[place]}, {each.why}" if place in found else each.why
            by = printable(f"{each.cell.label}, {each.cell.knowledge}")
            self.picked_by = f"Median, worst and the like are of the raw MSE in {by}."
        return found

    def _read(self, run: Run, wanted: Sequence[Place]) -> Iterator[Shown]:
        """These victims, in this order, those without an original left out; file by file."""
        files: dict[tuple[str, str], list[tuple[Place, tuple[str, str, str], Record]]] = {}
        for place in wanted:
            for who, record in self.trials[place].items():
                arrays = (record.get("host") or {}).get("arrays")
                if arrays is not None:
                    file = arrays["file"], arrays.get("digest", "")
                    files.setdefault(file, []).append((place, who, record))
        attempts: dict[Place, dict[tuple[str, str, str], Attempt]] = {}
        originals: dict[Place, tuple[int, int, str]] = {}
        missing = 0
        for file, members in files.items():
            try:
                arrays = run.arrays(*file)
            except LeakbenchError:
                missing += 1
                continue
            if not {"truth", "inputs", "start", "mean_image", "class_names"} <= arrays.keys():
                continue  # of an older leakbench
            if not drawable(arrays["mean_image"]):
                continue
            rough = self._neighbours.rough(arrays["inputs"])
            for place, who, record in members:
                row = int(record["host"]["arrays"]["row"])
                if row >= len(arrays["inputs"]):
                    continue
                if place not in originals:
                    originals[place] = (
                        self._pictures.add(arrays["truth"][row]),
                        self._pictures.add(arrays["mean_image"]),
                        str(arrays["class_names"][row]),
                    )
                attempts.setdefault(place, {})[who] = self._attempt(who, record, arrays, row, rough)
        if missing:
            self.text.append(f"{missing} files of images cannot be read.")
        for place in wanted:
            if place in originals:
                yield self._victim(place, originals[place], attempts[place])

    def _attempt(
        self,
        who: tuple[str, str, str],
        record: Record,
        arrays: Mapping[str, NDArray[Any]],
        row: int,
        rough: NDArray[np.float32] | None,
    ) -> Attempt:
        row_name, label, knowledge = who
        judged = record["status"] in JUDGED
        mse = math.inf if record["mse_raw"] is None else record["mse_raw"]
        loss = np.asarray(arrays["trace"][row], dtype=np.float64) if "trace" in arrays else _NONE
        error = descent(record, arrays, row) if "clamped_lengths" in arrays else _NONE
        steps = len(error) - 1 if len(error) else int(record.get("steps") or 0)
        apart = record.get("distance_clamped")
        nearest: tuple[Neighbour, ...] = ()
        if rough is not None and np.isfinite(arrays["inputs"][row]).all():
            nearest = self._neighbours.of(record["victim"], arrays["inputs"][row], rough[row])
        words = under(mse, record["ssim"]) if judged else str(record["status"])
        if row_name in self._defended and "defense_noop" in (record.get("flags") or ()):
            words += "; the defense changed nothing here"
        return Attempt(
            label=label,
            knowledge=knowledge,
            frames=tuple(self._frames(arrays, row)) if judged else (),
            words=words,
            success=self._rule is not None and self._rule.met(record),
            rank=_rank_words(record),
            right="" if apart is None else compact(apart),
            nearest=nearest,
            loss=line(loss, _loss_steps(loss, steps), steps),
            error=line(error, np.arange(len(error)), steps),
            steps=steps,
            trace=_trace_words(loss, error),
            facts=(),
        )

    def _frames(self, arrays: Mapping[str, NDArray[Any]], row: int) -> Iterator[int]:
        """At each place of the slider; who ended before a step shows what he returned."""
        returned = arrays["inputs"][row]
        kept = dict(
            zip(
                arrays.get("snapshot_steps", np.zeros(0)).tolist(),
                arrays.get("snapshots", np.zeros((0, row + 1)))[:, row],
                strict=True,
            )
        )
        latest = arrays["start"][row]
        yield self._pictures.add(latest)
        for step in self.steps:
            latest = kept.get(step, latest)
            yield self._pictures.add(returned if np.isnan(latest).all() else latest)
        yield self._pictures.add(returned)

    def _victim(
        self,
        place: Place,
        original: tuple[int, int, str],
        attempts: Mapping[tuple[str, str, str], Attempt],
    ) -> Shown:
        picture, mean, class_name = original
        trials = [self.trials[place].get(who) for who in self.attackers]
        facts = [() if record is None else _facts(record) for record in trials]
        known = [set(some) for some in facts if some]
        shared = set.intersection(*known) if known else set()
        first = next((some for some in facts if some), ())
        found = []
        for who, record, own in zip(self.attackers, trials, facts, strict=True):
            attempt = attempts.get(who)
            if attempt is None:
                words = "-" if record is None else str(record["status"])
                attempt = _no_picture(who, words)
            found.append(replace(attempt, facts=tuple(line for line in own if line not in shared)))
        why = self.why.get(place, "")
        return Shown(
            anchor=f"victim-{self._number}-{place[0]}-{place[1]}",
            words=f"{f'{why}: ' if why else ''}network {place[0]}, no. {place[1]}, class "
            f"{class_name}",
            original=picture,
            mean=mean,
            attempts=tuple(found),
            facts=tuple(line for line in first if line in shared),
        )

    # -------------------------------------------------------------------------- how much fits

    def within(self, budget: int, pictures: Pictures) -> tuple[Section, int]:
        """As much as fits in so many bytes, and how many that takes: first fewer steps, then fewer
        victims, at least one."""
        for count in sorted({len(self.steps), *_FEWER}, reverse=True):
            if count > len(self.steps):
                continue
            kept = _evenly(len(self.steps), count)
            chosen = [_at_steps(victim, kept) for victim in self.victims]
            fitting, spent = _fitting(chosen, budget, pictures)
            if fitting == len(chosen):
                break
        chosen = chosen[:fitting]
        steps = [self.steps[place] for place in kept]
        said = list(self.text)
        if len(steps) < len(self.steps):
            said.append(f"{len(steps)} of {len(self.steps)} kept steps are shown.")
        if len(chosen) < len(self.trials):
            said.append(f"{len(chosen)} of {len(self.trials)} victims are shown.")
        picked = [v for v in chosen if v.anchor in self._picked_anchors()]
        section = Section(
            title=self.title,
            steps=("start", *(f"step {step}" for step in steps), "returned"),
            attackers=tuple((label, knowledge) for _, label, knowledge in self.attackers),
            picked=tuple(picked),
            others=tuple(victim for victim in chosen if victim not in picked),
            text=" ".join(said),
            picked_by=self.picked_by if picked else "",
        )
        return section, spent

    def _picked_anchors(self) -> set[str]:
        return {f"victim-{self._number}-{network}-{victim}" for network, victim in self.why}


_FEWER = (3, 2, 1)
"""Kept steps that are shown where all are too many."""


def _evenly(count: int, some: int) -> list[int]:
    """So many of `count` places, the last among them."""
    return [(place + 1) * count // some - 1 for place in range(some)]


def _at_steps(victim: Shown, kept: Sequence[int]) -> Shown:
    """With these of the steps; start and returned always."""
    places = [0, *(step + 1 for step in kept), -1]
    attempts = (
        replace(one, frames=tuple(one.frames[place] for place in places) if one.frames else ())
        for one in victim.attempts
    )
    return replace(victim, attempts=tuple(attempts))


_MARKUP = 900
"""Bytes that a page spends around the words of an attempt."""


def _fitting(victims: Sequence[Shown], budget: int, pictures: Pictures) -> tuple[int, int]:
    """How many of the victims, in order, fit into so many bytes, at least one; and their bytes."""
    seen: set[int] = set()
    total = 0
    for count, victim in enumerate(victims):
        new = set(_numbers_of(victim)) - seen
        size = sum(len(pictures.encoded(number)) for number in new) + sum(
            _MARKUP + len(one.loss) + len(one.error) + sum(map(len, one.facts))
            for one in victim.attempts
        )
        if count and total + size > budget:
            return count, total
        seen |= new
        total += size
    return len(victims), total


# ------------------------------------------------------------------------------ an attempt


_NONE: Floats = np.zeros(0)


def _no_picture(who: tuple[str, str, str], words: str) -> Attempt:
    return Attempt(
        label=who[1], knowledge=who[2], frames=(), words=words, success=False, rank="", right="",
        nearest=(), loss="", error="", steps=0, trace="", facts=(),
    )  # fmt: skip


def _rank_words(record: Record) -> str:
    rank = record.get("rank")
    if rank is None:
        return ""
    return "names the victim" if rank == 1 else f"the victim is place {rank}"


def line(values: Floats, steps: NDArray[Any], last: int) -> str:
    """Points of a trace, "x,y x,y ...": steps from the left, powers of ten from below, in whole
    units of `WIDTH` and `HEIGHT`; "" for fewer than two. Zero and less stand at the bottom, what is
    not finite is left out.

    Args:
        values, steps: (n,) each, the step after which each value was seen.
        last: step at the right end, the same for all lines of a picture; the left end is 0.
    """
    if len(values) < 2 or last < 1:
        return ""
    places = np.unique(np.linspace(0, len(values) - 1, MOST_POINTS).round().astype(int))
    points = []
    for place in places:
        value = float(values[place])
        if math.isfinite(value):
            power = math.log10(value) if value > 0 else LOWEST
            share = (min(max(power, LOWEST), HIGHEST) - LOWEST) / (HIGHEST - LOWEST)
            across = WIDTH * float(steps[place]) / last
            points.append(f"{across:.0f},{HEIGHT * (1 - share):.0f}")
    return " ".join(points) if len(points) > 1 else ""


def _loss_steps(loss: Floats, last: int) -> Floats:
    """Steps after which the losses of a trial were seen, evenly up to its last step: 1, 2, ...
    unless its attack reports less often. The nan at the end, where another trial of the same file
    took longer, stand behind it."""
    seen = np.flatnonzero(~np.isnan(loss))
    own = int(seen[-1]) + 1 if len(seen) else 1
    return np.arange(1, len(loss) + 1, dtype=np.float64) * last / own


def _trace_words(loss: Floats, error: Floats) -> str:
    parts = []
    for name, values in (("loss", loss), ("error of the best step so far", error)):
        known = values[np.isfinite(values)]
        if len(known) > 1:
            parts.append(f"{name} {compact(float(known[0]))} to {compact(float(known[-1]))}")
    return ", ".join(parts)


_NOT_FACTS = ("schema", "host.arrays.file", "host.arrays.row", "host.manifest")


def _facts(record: Record) -> tuple[str, ...]:
    """Fields of a record that say something."""
    return tuple(
        f"{name} {f'{value:.6g}' if isinstance(value, float) else printable(str(value))}"
        for name, value in frames.flat(record)
        if value not in (None, "") and name not in _NOT_FACTS
    )


class _Neighbours:
    """Candidates near to reconstructions, where the data are here; else the reason is said."""

    def __init__(self, planned: PlannedCell, pictures: Pictures, said: list[str]) -> None:
        self._pictures = pictures
        self._candidates: NDArray[np.float32] | None = None
        try:
            self._dataset = dataset_of(planned.cell, planned.data)
        except LeakbenchError as error:
            said.append(f"Candidates cannot be shown: {error}.")
            return
        self._candidates = self._dataset.candidates.numpy()
        self._flat = self._candidates.reshape(len(self._candidates), -1)
        self._squares = np.square(self._flat).sum(axis=1)

    def rough(self, images: NDArray[Any]) -> NDArray[np.float32] | None:
        """(n, N) squared distances of n images, clamped, from all candidates, each row but for a
        constant and for rounding: to single out a few. None without such candidates."""
        if self._candidates is None or images.shape[1:] != self._candidates.shape[1:]:
            return None
        flat = np.nan_to_num(images, nan=0.0).clip(0.0, 1.0).reshape(len(images), -1)
        found: NDArray[np.float32] = self._squares - 2 * (flat.astype(np.float32) @ self._flat.T)
        return found

    def of(self, victim: int, image: Image, rough: NDArray[np.float32]) -> tuple[Neighbour, ...]:
        """The candidates nearest to what was returned, clamped, the victim apart."""
        assert self._candidates is not None
        clamped = np.clip(image, 0.0, 1.0).ravel().astype(np.float64)
        few = np.argsort(rough)[: NEAREST + 5]
        exact = {
            int(number): float(np.linalg.norm(self._flat[number] - clamped))
            for number in few
            if number != victim
        }
        found = []
        for number in sorted(exact, key=exact.__getitem__)[:NEAREST]:
            name = self._dataset.class_name(int(self._dataset.candidate_labels[number]))
            words = f"no. {number}, class {name}, at {compact(exact[number])}"
            picture = self._pictures.add(self._candidates[number])
            found.append(Neighbour(picture=picture, words=words))
        return tuple(found)
