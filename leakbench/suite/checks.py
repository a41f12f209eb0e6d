"""What the names in a suite file demand of each other, and its printed numbers of themselves."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

from leakbench.data.catalog import look_up
from leakbench.errors import LeakbenchError, unknown_name
from leakbench.suite.tables import (
    ANY_DATA_SET,
    ATTACKED,
    BY_DATA_SET,
    PRINTED_OF_TRAININGS,
    Suite,
    UtilityTable,
    of_data_set,
)
from leakbench.suite.utility import variants_of

_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")


def check(suite: Suite, file: str, left_out: Sequence[str]) -> None:
    """Names that refer to each other, and to data sets."""
    _check_tables(suite, file)
    ids = [defense.id for defense in suite.defenses]
    utility, priced = suite.utility or UtilityTable(), suite.printed_utility
    once: tuple[tuple[str, list[str]], ...] = (
        ("datasets", suite.datasets),
        ("defenses.id", ids),
        ("variants.id", [variant.id for variant in suite.variants]),
        ("variants.label", [variant.label for variant in suite.variants]),
        ("rules.name", [rule.name for rule in suite.rules]),
        ("printed", [f"{printed.dataset}/{printed.row}" for printed in suite.printed]),
        (
            "printed_utility",
            [
                f"{p.dataset}/{p.row}, {key}{f' after {p.after}' if p.after else ''}"
                for p in suite.printed_utility
                for key in p.numbers()
            ],
        ),
        ("utility.variants.id", [variant.id for variant in utility.variants]),
        ("utility.variants.label", [variant.label for variant in utility.variants]),
    )
    for what, found in once:
        if twice := {name for name, count in Counter(found).items() if count > 1}:
            raise LeakbenchError(f"{file}, key {what}: '{min(twice)}' stands there twice")
    datasets = list(dict.fromkeys([*suite.datasets, *left_out]))
    by_data_set = [*datasets, ANY_DATA_SET]
    variants = [variant.id for variant in suite.variants] or [""]
    trained = [variant.id for variant in utility.variants] or [""]
    completed = variants_of(suite)
    # Without a [gallery] of its own a suite shows the first row that has a result.
    gallery = [suite.gallery] if "gallery" in suite.model_fields_set else []
    trainings = [
        ("training", suite.training),
        *(("training", v.training) for v in suite.variants if v.training),
        *(("utility.training", v.training) for v in completed),
    ]
    places: list[tuple[str, Sequence[str] | None, Sequence[str], str]] = [
        *(
            (f"{place}.{key}", list(getattr(table, key)), by_data_set, "data set")
            for place, table in trainings
            for key in BY_DATA_SET
        ),
        *(
            (f"utility.{key}", list(getattr(variant, key)), by_data_set, "data set")
            for variant in completed
            for key in ("stop_accuracy", "stop_epsilon")
        ),
        *(
            (
                f"profiles.{name}.utility.iterations",
                list(p.utility.iterations),
                by_data_set,
                "data set",
            )
            for name, p in suite.profiles.items()
            if p.utility.iterations is not None
        ),
        ("utility.datasets", utility.datasets, datasets, "data set"),
        ("utility.defenses", utility.defenses, ids, "row"),
        *(
            ("utility.variants.datasets", v.datasets, datasets, "data set")
            for v in utility.variants
        ),
        *(("utility.variants.defenses", v.defenses, ids, "row") for v in utility.variants),
        *(
            (f"profiles.utility.{key}", getattr(p.utility, key), allowed, kind)
            for p in suite.profiles.values()
            for key, allowed, kind in (
                ("variants", trained, "variant"),
                ("datasets", datasets, "data set"),
            )
        ),
        (
            "printed_utility.dataset",
            [p.dataset for p in suite.printed_utility],
            datasets,
            "data set",
        ),
        ("printed_utility.defense", [p.defense for p in priced], ids, "row"),
        ("printed_utility.variant", [p.variant for p in priced], trained, "variant"),
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
        *(("notes.variants", n.variants, [*variants, *trained], "variant") for n in suite.notes),
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
        if printed.asr is not None and printed.succeeds is not None:
            raise LeakbenchError(f"{file}, key printed: give asr or succeeds, not both")
        if all(getattr(printed, key) is None for key in ("asr", "succeeds", "mse", "rmse")):
            raise LeakbenchError(f"{file}, key printed: give asr, succeeds, mse or rmse")
        for key in ("asr", "mse", "rmse", "attack_iterations"):
            _check_number(getattr(printed, key), f"{file}, key printed.{key}", share=key == "asr")
    _check_printed_utility(suite, file)


def _check_tables(suite: Suite, file: str) -> None:
    """A suite attacks, or trains, or both; of a suite that does either some tables are asked."""
    given = [name for name in ATTACKED if name in suite.model_fields_set]
    if not given:
        if suite.utility is None:
            text = "missing; a suite that attacks nothing, without [knowledge], needs it"
            raise LeakbenchError(f"{file}, key utility: {text}")
        return
    for name in ATTACKED[:2]:
        if name not in given:
            raise LeakbenchError(f"{file}: key {name}: missing; the file has {given[0]}")
    for name, profile in suite.profiles.items():
        for key in ("networks", "victims"):
            if key not in profile.model_fields_set:
                raise LeakbenchError(f"{file}: key profiles.{name}.{key}: missing")


def _check_printed_utility(suite: Suite, file: str) -> None:
    """Printed numbers of trainings; rounds to a target need a target."""
    variants = {variant.id: variant for variant in variants_of(suite)}
    if suite.printed_utility and not variants:
        raise LeakbenchError(f"{file}, key printed_utility: needs [utility], which is missing")
    for printed in suite.printed_utility:
        where = f"{file}, key printed_utility"
        if not printed.numbers():
            keys = ", ".join(PRINTED_OF_TRAININGS)
            raise LeakbenchError(f"{where}: {printed.dataset}/{printed.row} has none of {keys}")
        variant = variants[printed.variant]
        own = {row.id: row.datasets for row in suite.defenses}[printed.defense]
        has = printed.dataset in variant.datasets and (own is None or printed.dataset in own)
        if not (has and variant.trains(printed.defense)):
            text = f"{printed.dataset}/{printed.row} is trained by no variant"
            raise LeakbenchError(f"{where}: {text}")
        for key, text in printed.numbers().items():
            _check_number(text, f"{where}.{key}", share=key == "accuracy")
        if printed.after is not None and list(printed.numbers()) != ["accuracy"]:
            text = f"{printed.dataset}/{printed.row} has one beside other numbers than accuracy"
            raise LeakbenchError(f"{where}.after: {text}")
        rounds = of_data_set(variant.training.iterations, printed.dataset)
        if printed.after is not None and rounds is not None and int(printed.after) > rounds:
            text = f"{printed.dataset}/{printed.row} is trained for {rounds} rounds only"
            raise LeakbenchError(f"{where}.after: {text}")
        target = of_data_set(variant.stop_accuracy, printed.dataset)
        if printed.rounds is not None and target is None:
            text = f"{printed.dataset}/{printed.row} needs a stop_accuracy, to which they lead"
            raise LeakbenchError(f"{where}.rounds: {text}")


def _check_number(text: str | None, where: str, *, share: bool) -> None:
    """A printed number, if there is one."""
    if text is None:
        return
    if not _NUMBER.fullmatch(text) or not math.isfinite(float(text)):
        raise LeakbenchError(f"{where}: {text!r} is not a number")
    if share and float(text) > 1:
        raise LeakbenchError(f"{where}: a rate must be 0 to 1, got '{text}'")
