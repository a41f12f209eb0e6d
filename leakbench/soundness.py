"""What a plugin says of itself when a run is planned, held to its contract."""

from __future__ import annotations

from leakbench import registry
from leakbench.contracts import Attack, Defense, Guarantee, LeakFacts, Setting, Weights
from leakbench.errors import LeakbenchError, PluginBroken
from leakbench.spec import Cell, observer_of


def suits(attack: Attack, name: str, facts: LeakFacts) -> tuple[str, int]:
    """Why an attack skips such leaks, "" if it does not, and its budget.

    Raises:
        PluginBroken: an answer of another kind, or names that are none. Its own errors come out.
    """
    for attribute in ("requires", "uses"):
        names = getattr(attack, attribute)
        if type(names) is not tuple or not all(isinstance(one, str) for one in names):
            text = f"{attribute} must be a tuple of names, got {names!r:.60}"
            raise PluginBroken(f"attack '{name}': {text}")
    try:
        for other in attack.uses:
            registry.find("attacks", other)
    except LeakbenchError as error:
        raise PluginBroken(f"attack '{name}': uses: {error}") from None
    reason, budget = attack.skip(facts), attack.budget(facts)
    for method, found, kind in (("skip", reason, str), ("budget", budget, int)):
        if type(found) is not kind:
            words = {str: "a text", int: "a whole number"}[kind]
            text = f"attack '{name}': {method}() must give {words}, got {found!r:.60}"
            raise PluginBroken(text)
    return reason, budget


def promises(defense: Defense, cell: Cell, weights: Weights) -> list[Guarantee]:
    """What a cell's defense guarantees in each look.

    Raises:
        PluginBroken: an answer that is no guarantee. Its own errors come through.
    """
    observer = observer_of(cell.leak_type, cell.leak_view)
    found = []
    for round in cell.rounds:
        setting = Setting(
            batch_size=cell.batch_size,
            local_steps=cell.steps_seen,
            examples=cell.batch_size * cell.steps_seen,  # all that one gradient is made of
            rounds=cell.iterations,
            round=round,
        )
        copies = {name: value.clone() for name, value in weights.items()}
        promise: object = defense.guarantee(observer, copies, setting)
        if not isinstance(promise, Guarantee):
            text = f"guarantee() must give a Guarantee, got {promise!r:.60}"
            raise PluginBroken(f"defense '{cell.defense}': {text}")
        found.append(promise)
    return found
