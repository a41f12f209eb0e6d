"""What the names in a suite file demand of each other, and its printed numbers of themselves."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from leakbench.data.catalog import look_up
from leakbench.errors import LeakbenchError, unknown_name
from leakbench.suite.tables import ANY_DATA_SET, Suite, UtilityTable

_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")


def check(suite: Suite, file: str, left_out: Sequence[str]) -> None:
    """Names that refer to each other, and to data sets."""
    ids = [defense.id for defense in suite.defenses]
    once: tuple[tuple[str, list[str]], ...] = (
        ("datasets", suite.datasets),
        ("defenses.id", ids),
        ("variants.id", [variant.id for variant in suite.variants]),
        ("variants.label", [variant.label for variant in suite.variants]),
        ("rules.name", [rule.name for rule in suite.rules]),
        ("printed", [f"{printed.dataset}/{printed.row}" for printed in suite.printed]),
        ("printed_utility", [f"{p.dataset}/{p.defense}" for p in suite.printed_utility]),
    )
    for what, found in once:
        if twice := {name for name in found if found.count(name) > 1}:
            raise LeakbenchError(f"{file}, key {what}: '{min(twice)}' stands there twice")
    datasets = list(dict.fromkeys([*suite.datasets, *left_out]))
    by_data_set = [*datasets, ANY_DATA_SET]
    variants = [variant.id for variant in suite.variants] or [""]
    utility, priced = suite.utility or UtilityTable(), suite.printed_utility
    trainings = [
        suite.training,
        *(v.training for v in suite.variants if v.training),
        *([utility.training] if utility.training else []),
    ]
    # Without a [gallery] of its own a suite shows the first row that has a result.
    gallery = [suite.gallery] if "gallery" in suite.model_fields_set else []
    places: list[tuple[str, Sequence[str] | None, Sequence[str], str]] = [
        *(("training.batch_size", list(t.batch_size), by_data_set, "data set") for t in trainings),
        *(
            ("training.examples_a_client", list(t.examples_a_client), by_data_set, "data set")
            for t in trainings
        ),
        ("utility.datasets", utility.datasets, datasets, "data set"),
        ("utility.defenses", utility.defenses, ids, "row"),
        (
            "printed_utility.dataset",
            [p.dataset for p in suite.printed_utility],
            datasets,
            "data set",
        ),
        ("printed_utility.defense", [p.defense for p in priced], ids, "row"),
        ("gallery.variant", [g.variant for g in gallery], variants, "variant"),
        ("gallery.defense", [g.defense for g in gallery], ids, "row"),
        ("gallery.knowledge", [g.knowledge for g in gallery], list(suite.knowledge), "knowledge"),
        ("printed.dataset", [p.dataset for p in suite.printed], datasets, "data set"),
        ("printed.defense", [p.defense for p in suite.printed], ids, "row"),
        ("printed.variant", [p.variant for p in suite.printed], variants, "variant"),
        *(
            ("profiles.variants", list(p.variants), variants, "variant")
            for p in suite.profiles.values()
        ),
        *(("profiles.datasets", p.datasets, datasets, "data set") for p in suite.profiles.values()),
        *(("variants.datasets", v.datasets, datasets, "data set") for v in suite.variants),
        *(("defenses.datasets", d.datasets, datasets, "data set") for d in suite.defenses),
        *(("notes.datasets", n.datasets, datasets, "data set") for n in suite.notes),
        *(("notes.defenses", n.defenses, ids, "row") for n in suite.notes),
        *(("notes.variants", n.variants, variants, "variant") for n in suite.notes),
    ]
    for name in suite.datasets:
        try:
            look_up(suite.data(name))
        except LeakbenchError as error:
            raise LeakbenchError(f"{file}, key datasets: {error}") from None
    for key, used, allowed, kind in places:
        for name in used or ():
            if name not in allowed:
                raise unknown_name(kind, name, allowed, f"{file}, key {key}")
    for printed in suite.printed:
        if printed.mse is not None and printed.rmse is not None:
            raise LeakbenchError(f"{file}, key printed: give mse or rmse, not both")
        if (printed.asr is None) == (printed.succeeds is None):
            text = "give asr or succeeds, not both or none"
            raise LeakbenchError(f"{file}, key printed: {text}")
        for key in ("asr", "mse", "rmse", "attack_iterations"):
            _check_number(getattr(printed, key), f"{file}, key printed.{key}", share=key == "asr")
    for accuracy in (printed.accuracy for printed in suite.printed_utility):
        _check_number(accuracy, f"{file}, key printed_utility.accuracy", share=True)


def _check_number(text: str | None, where: str, *, share: bool) -> None:
    """A printed number, if there is one."""
    if text is None:
        return
    if not _NUMBER.fullmatch(text) or not math.isfinite(float(text)):
        raise LeakbenchError(f"{where}: {text!r} is not a number")
    if share and float(text) > 1:
        raise LeakbenchError(f"{where}: a rate must be 0 to 1, got '{text}'")
