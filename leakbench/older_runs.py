"""Runs made before a manifest held the plan: described by the suite and the code as they are now.

Their records say which cell each is about, so that no identity has to be made again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from leakbench.errors import LeakbenchError
from leakbench.manifest import Manifest
from leakbench.records import Run
from leakbench.spec import Cell


def described(run: Run, content: Mapping[str, Any]) -> Manifest:
    """The newest manifest `content` of an older run, with the plan it lacks.

    Raises:
        LeakbenchError: a manifest that does not say what was asked for; a suite that is gone.
    """
    asked = _asked(run, content)
    from leakbench.suite import resolve  # and what follows: brings torch, for these runs only

    plan = resolve(
        asked["suite"], asked["profile"], attack=asked["attack"], defense=asked["defense"],
        settings=asked["settings"],
    )  # fmt: skip
    from leakbench import planning
    from leakbench.data.catalog import data_root

    made = planning.Platform(
        device=asked["device"], arithmetic=str(content.get("arithmetic", "unknown")),
        torch=str(content.get("torch", "unknown")), unit=None,
    )  # fmt: skip
    identities: dict[tuple[Any, ...], str] = {}
    for record in run.records().values():
        place = (record["dataset"], record["row"], record.get("attack"), record.get("knowledge"))
        identities[*place, record["network"]] = record["identity"]

    def as_recorded(place: tuple[Any, ...], known: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(identities.get((*place, j), own) for j, own in enumerate(known))

    cells = []
    for each in planning.plan_cells(plan, data_root(), made):
        place = (each.cell.dataset, each.cell.row, each.cell.attack, each.cell.knowledge)
        cells.append(replace(each, identities=as_recorded(place, each.identities)))
    trainings = []
    for training in planning.plan_trainings(plan, data_root(), made):
        place = (training.cell.dataset, training.cell.row, None, None)
        trainings.append(replace(training, identities=as_recorded(place, training.identities)))
    return Manifest(plan=plan, cells=tuple(cells), trainings=tuple(trainings), facts=dict(content))


def original(cell: Cell, victim: int) -> tuple[NDArray[Any], str, NDArray[Any]]:
    """What newer runs keep beside a reconstruction: image, name of the class, mean public image.

    Raises:
        LeakbenchError: The data set is not on this machine, or has no such victim.
    """
    from leakbench.data import load

    dataset = load(cell.source)
    if victim >= len(dataset.candidates):
        raise LeakbenchError(f"{cell.dataset} has no candidate {victim}")
    return (
        dataset.candidates[victim].numpy(),
        dataset.class_name(int(dataset.candidate_labels[victim])),
        dataset.public.mean(dim=0).numpy(),
    )


def _asked(run: Run, content: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a run, checked: they come from a file."""
    names = ("suite", "profile", "attack", "defense", "settings", "device")
    if missing := [name for name in names if name not in content]:
        raise LeakbenchError(
            f"{run.folder}: its newest manifest has no '{missing[0]}', so it cannot be described; "
            "`leakbench run` makes it anew, and the report.md there stays readable"
        )
    asked = {name: content[name] for name in names}
    texts = [asked["suite"], asked["profile"]]
    texts += [asked[name] for name in ("attack", "defense") if asked[name] is not None]
    settings = asked["settings"]
    sound = isinstance(settings, list) and all(isinstance(x, str) for x in [*texts, *settings])
    if not sound or asked["device"] not in ("cpu", "cuda"):
        raise LeakbenchError(f"{run.folder}: its newest manifest is damaged; remove the file")
    return asked
