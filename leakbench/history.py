"""What runs that are there took, so that a forecast of what is like them rests on it."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leakbench import manifest as manifests
from leakbench.described import PlannedCell
from leakbench.errors import LeakbenchError
from leakbench.manifest import Manifest
from leakbench.records import Record, Run
from leakbench.spec import JUDGED, Cell, UtilityCell, canonical


@dataclass(slots=True, kw_only=True)
class Spent:
    """What trials, or trainings, that are alike took together.

    `early` of the `count` ended by themselves, after `early_evaluations` together: a larger budget
    changes nothing for them. The others used up shares of their budgets, `shares` together. An
    evaluation of a training is an example of a local step, and none ends early.
    """

    processor: str
    count: int = 0
    seconds: float = 0.0
    evaluations: float = 0.0
    early: int = 0
    early_evaluations: float = 0.0
    shares: float = 0.0

    def add(self, seconds: float, evaluations: float, budget: float, early: bool) -> None:
        """One more."""
        self.count += 1
        self.seconds += seconds
        self.evaluations += evaluations
        if early and evaluations < budget:
            self.early += 1
            self.early_evaluations += evaluations
        elif budget:
            self.shares += evaluations / budget

    def evaluations_of(self, budget: float) -> float:
        """That one such trial is likely to spend."""
        early = min(self.early_evaluations, self.early * budget)
        return (early + self.shares * budget) / self.count


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds of a trial or a training on one core, and what that rests on."""

    seconds: float
    rests_on: Spent


class Measured:
    """What the trials and trainings of one run took, by what they are alike in.

    A chunk's time is shared evenly among its trials, whatever each of them spent. So seconds an
    evaluation are those of all rows whose trials share chunks, and only the evaluations are a
    row's own.
    """

    def __init__(self, run: Manifest, records: Iterable[Record]) -> None:
        """records: of the run; those of cells that its manifest does not plan, of older code say,
        are left out."""
        self.processor = str(run.facts.get("device_name", ""))
        self.device = run.facts.get("device")
        self._alike: dict[str, Spent] = {}
        self._rows: dict[tuple[str, str], Spent] = {}
        cells = {identity: cell for cell in run.cells for identity in cell.identities}
        trained = {identity: each for each in run.trainings for identity in each.identities}
        keys: dict[str, Sequence[str]] = {}
        for record in records:
            identity, seconds = record["identity"], record["host"].get("seconds")
            if record["status"] not in JUDGED or seconds is None:
                continue
            if identity in cells:
                planned = cells[identity]
                keys.setdefault(identity, trial_keys(planned.cell))
                spent, budget = record["evaluations"] or 0, budget_of(planned)
                row, early = planned.cell.row, record["ended"] != "steps"
            elif identity in trained:
                training = trained[identity].cell
                keys.setdefault(identity, training_keys(training))
                spent = budget = examples_of(training)
                row, early = training.row, False
            else:
                continue
            for key in keys[identity]:
                for group in self._groups(key, row):
                    group.add(seconds, spent, budget, early)

    def _groups(self, key: str, row: str) -> tuple[Spent, Spent]:
        return (
            self._alike.setdefault(key, Spent(processor=self.processor)),
            self._rows.setdefault((key, row), Spent(processor=self.processor)),
        )

    def estimate(self, key: str, row: str, budget: float) -> Estimate | None:
        """Of one trial or training; None where nothing like it was run."""
        alike = self._alike.get(key)
        if alike is None:
            return None
        if not alike.evaluations or not budget:
            return Estimate(alike.seconds / alike.count, alike)
        expected = self._rows.get((key, row), alike).evaluations_of(budget)
        return Estimate(alike.seconds / alike.evaluations * expected, alike)


@dataclass(frozen=True, slots=True)
class History:
    """Runs to go by, the nearest first; `processor` is the one to forecast for.

    Runs of this processor come before all others, whose seconds are taken as they are. Of each,
    what is closer alike comes first: see `trial_keys`, `training_keys`.
    unread: runs that cannot be read, a sentence each.
    """

    runs: tuple[Measured, ...] = ()
    processor: str = ""
    unread: tuple[str, ...] = ()

    def trial(self, planned: PlannedCell) -> Estimate | None:
        """Of one image, what is trained on the way included; None where nothing is like it."""
        cell = planned.cell
        if not self.runs:
            return None
        return self._estimate(trial_keys(cell), cell.row, budget_of(planned))

    def training(self, cell: UtilityCell) -> Estimate | None:
        """Of one network at all its learning rates; None where nothing is like it."""
        if not self.runs:
            return None
        return self._estimate(training_keys(cell), cell.row, examples_of(cell))

    def _estimate(self, keys: Sequence[str], row: str, budget: float) -> Estimate | None:
        for here in (True, False):
            for key in keys:
                for run in self.runs:
                    if (run.processor == self.processor) is here:
                        found = run.estimate(key, row, budget)
                        if found is not None:
                            return found
        return None


NO_HISTORY = History()


def budget_of(planned: PlannedCell) -> int:
    """Evaluations that the attack may spend on an image."""
    return planned.budget * planned.cell.observations


def examples_of(cell: UtilityCell) -> int:
    """Of all local steps of a training, at all its learning rates, if it does not stop early."""
    rounds: int = cell.schedule["rounds"]
    return max(len(cell.learning_rates), 1) * rounds * examples_a_round(cell.schedule)


def examples_a_round(schedule: Mapping[str, Any]) -> int:
    """Of the local steps of all clients of a round."""
    count: int = schedule["batch_size"] * schedule["clients_a_round"] * schedule["local_steps"]
    return count


def trial_keys(cell: Cell) -> tuple[str, str]:
    """What trials are alike in: all but defense and seed, as those of one chunk are; then data set,
    network, attack, attacker, batch, and what is trained on the way."""
    closely = _without(cell.spec(), "defense", "defense_parameters", "snapshots", "seed")
    nearly = [
        cell.dataset, cell.model, cell.model_parameters, cell.attack, cell.knowledge,
        cell.images_a_gradient, cell.weights, cell.pretraining, cell.federation,
        cell.rounds if cell.federation else (),
    ]  # fmt: skip
    return canonical(closely), canonical(["trial", *nearly])


def training_keys(cell: UtilityCell) -> tuple[str, str]:
    """What trainings are alike in: all but the seed; then what decides the time of an example:
    data set, network, defense, and the schedule but for rounds and learning rate."""
    closely = _without(cell.spec(), "seed")
    schedule = _without(dict(cell.schedule), "rounds", "learning_rate")
    nearly = [cell.dataset, cell.model, cell.model_parameters, cell.defense, schedule]
    return canonical(closely), canonical(["training", *nearly])


def _without(spec: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in spec.items() if name not in names}


def runs_of(suite: str, profile: str, base: Path, committed: Path) -> list[Path]:
    """Folders of a suite's runs, the nearest first: of the profile and its shards in `base`, of
    other profiles beside it, and those `committed`."""
    own = base / f"{suite}-{profile}"
    name = glob.escape(suite)
    found = [
        own, *sorted(own.glob("shard-*-of-*")),
        *sorted(base.glob(f"{name}-*")), *sorted(base.glob(f"{name}-*/shard-*-of-*")),
        *sorted(committed.glob(f"{name}-*")),
    ]  # fmt: skip
    return [folder for folder in dict.fromkeys(found) if (folder / "manifests").is_dir()]


def read(folders: Iterable[Path], device: str, processor: str) -> History:
    """The history that runs on this kind of device, "cpu" or "cuda", make."""
    runs, unread = [], []
    for folder in folders:
        try:
            run = Run.existing(folder)
            found = Measured(manifests.read(run), run.records().values())
        except LeakbenchError as error:
            unread.append(str(error))
            continue
        if found.device == device:
            runs.append(found)
    return History(tuple(runs), processor, tuple(unread))
