"""Which printed numbers of the five papers stand where: writes docs/coverage.md (`make coverage`).

tests/published.csv holds every number of the papers' tables, and those that their texts state of
figures. Each must be in a suite of its table, in an epsilon table (leakbench/privacy/printed.csv),
or under a reason in docs/coverage.toml. A suite belongs to the tables and figures that its name
says: "tpds_table4", "bcalc_figure16_17". Verdicts are those of the reports in results/.
"""

from __future__ import annotations

import csv
import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from leakbench import suite
from leakbench.suite.tables import ANY_DATA_SET

ROOT = Path(__file__).parents[1]
PUBLISHED = ROOT / "tests" / "published.csv"
EPSILONS = ROOT / "leakbench" / "privacy" / "printed.csv"
SPOKEN_OF = ROOT / "docs" / "coverage.toml"
RESULTS = ROOT / "results"
PAGE = ROOT / "docs" / "coverage.md"

PAPERS = {
    "tifs": "TIFS",
    "icdcs": "ICDCS",
    "tpds": "TPDS",
    "cloak": "ModelCloak",
    "bcalc": "BC+ALC",
}
ACCOUNTANTS = {
    "basec": "base",
    "advc": "advanced",
    "optc": "optimal",
    "zcdp": "zcdp",
    "ma": "moments",
}
"""As the papers' columns are called -> as ours are."""

Value = tuple[str, str, str | Decimal]
"""Data set, what is printed by its name in a suite, and the number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A printed number; place: "table4", "figure9a", "text"."""

    paper: str
    place: str
    dataset: str
    method: str
    setting: str
    metric: str
    value: str

    @property
    def wanted(self) -> Value:
        """As a suite would have it: fractions, seconds, and whether the attack succeeds."""
        kind = _KINDS.get(self.metric, self.metric)
        dataset = _DATA_SETS.get(self.dataset, self.dataset)
        if self.metric == "resilient":  # the opposite of a success
            return dataset, kind, {"Y": "N", "N": "Y"}[self.value]
        value = number_of(self.value)
        if isinstance(value, Decimal):
            value /= _UNITS.get(self.metric, 1)
        return dataset, kind, value

    def __str__(self) -> str:
        what = ", ".join(part for part in (self.dataset, self.method, self.setting) if part)
        return f"{self.paper} {self.place}: {self.metric} {self.value} ({what})"


_KINDS = {
    "resilient": "succeeds",
    "succeed": "succeeds",
    "accuracy_percent": "accuracy",
    "ms_per_iteration": "seconds_per_iteration",
    "iterations": "rounds",
    "target_accuracy": "stop_accuracy",
}
_DATA_SETS = {"cancer": "breast_cancer"}
"""As the papers call them -> as suites do."""
_UNITS = {"accuracy_percent": 100, "ms_per_iteration": 1000}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why the numbers it speaks of stand in no suite; a field that is empty is any.

    places: as "tifs table2". setting: a part of it.
    """

    reason: str
    places: Sequence[str] = ()
    datasets: Sequence[str] = ()
    methods: Sequence[str] = ()
    metrics: Sequence[str] = ()
    setting: str = ""

    def holds(self, number: Number) -> bool:
        """Whether it speaks of this number."""
        return self.setting in number.setting and all(
            not some or value in some
            for some, value in (
                (self.places, f"{number.paper} {number.place}"),
                (self.datasets, number.dataset),
                (self.methods, number.method),
                (self.metrics, number.metric),
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A table or figure of a paper: what it shows, and suites that their names do not give it."""

    paper: str
    place: str
    shows: str
    suites: Sequence[str] = ()
    without: str = ""
    """Why there is no suite, where it prints no number that a reason could speak of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Covered:
    """Where a number stands: "suite", "epsilon", "reason", or "" for nowhere."""

    number: Number
    where: str
    reason: Reason | None = None


# ---------------------------------------------------------------------------- what there is


def published(path: Path = PUBLISHED) -> list[Number]:
    """Every printed number."""
    with path.open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    return [
        Number(**{name: row[name] for name in row if name != "table"}, place=_place(row["table"]))
        for row in rows
    ]


def _place(table: str) -> str:
    if table.isdigit():
        return f"table{table}"
    return table.replace("fig", "figure")


def number_of(text: str) -> str | Decimal:
    """A number as its value, so that 0.98 is 0.980; other texts as they are."""
    try:
        return Decimal(text)
    except ArithmeticError:
        return text


def spoken_of(path: Path = SPOKEN_OF) -> tuple[list[Place], list[Reason]]:
    """Tables and figures, and reasons."""
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    return (
        [Place(**table) for table in document["places"]],
        [Reason(**table) for table in document["reasons"]],
    )


def places_of(name: str) -> tuple[str, list[str]]:
    """Paper, tables and figures that the name of a suite says; "" and none where it says none."""
    found = re.match(rf"({'|'.join(PAPERS)})_(table|figure)(\d+[a-z]?(?:_\d+[a-z]?)*)(_|$)", name)
    if found is None:
        return "", []
    return found[1], [f"{found[2]}{number}" for number in found[3].split("_")]


def in_suite(name: str) -> Counter[Value]:
    """A suite's printed numbers and what its trainings stop at, each as often as it stands."""
    tables = suite.read(name)[0]
    found: Counter[Value] = Counter()
    for row in tables.printed:
        for kind in ("asr", "succeeds", "mse", "rmse", "attack_iterations"):
            if (text := getattr(row, kind)) is not None:
                found[row.dataset, kind, number_of(text)] += 1
    for line in tables.printed_utility:
        for kind, text in line.numbers().items():
            found[line.dataset, kind, number_of(text)] += 1
    utility = tables.utility
    for each in [utility, *utility.variants] if utility else []:
        stops = each.stop_accuracy or {}
        for dataset in each.datasets or tables.datasets:
            if (value := stops.get(dataset, stops.get(ANY_DATA_SET))) is not None:
                found[dataset, "stop_accuracy", number_of(str(value))] += 1
    return found


def epsilon_lines(path: Path = EPSILONS) -> list[dict[str, str]]:
    """Numbers of the papers' tables of epsilons and stopping times."""
    with path.open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def in_epsilons(number: Number, lines: Iterable[Mapping[str, str]]) -> bool:
    """Whether an epsilon table has the number: methods with the same epsilons share a row there."""
    digits = number.place.removeprefix("table")
    name = "bcalc" if number.paper == "bcalc" else f"{number.paper}{digits}"
    settings = dict(part.split("=", 1) for part in number.setting.split(";") if "=" in part)
    accountant = ACCOUNTANTS.get(settings.get("accountant", ""), "")
    decay = settings.get("decay", "")
    value = number_of(number.value)
    kinds = _QUANTITIES.get(number.metric, ())
    for line in lines:
        heads = f"{line['row']} {line['column']}"
        if (
            line["table"] == name
            and number_of(line["printed"]) == value
            # What cannot be computed has no quantity, and is an epsilon or a number of steps.
            and (line["quantity"] in kinds or (kinds and not line["quantity"]))
            and (not line["accountant"] or line["accountant"].startswith(accountant))
            and (number.metric not in ("iterations", "rounds") or line["row"] == decay)
            and (number.dataset in heads or not any(each in heads for each in _DATASETS))
        ):
            return True
    return False


_QUANTITIES: dict[str, tuple[str, ...]] = {
    "epsilon": ("epsilon",),
    "iterations": ("steps",),
    "rounds": ("rounds",),
    "h_value": ("h",),
    "gdp_mu": ("mu",),
}
_DATASETS = ("mnist", "cifar10", "lfw", "adult", "cancer", "purchase")


# ---------------------------------------------------------------------------- who has what


def suites_of(places: Sequence[Place]) -> dict[tuple[str, str], list[str]]:
    """Suites of every table and figure, by (paper, place)."""
    found: dict[tuple[str, str], list[str]] = {}
    for name in suite.names():
        paper, numbers = places_of(name)
        for place in numbers:
            found.setdefault((paper, place), []).append(name)
    for each in places:
        found.setdefault((each.paper, each.place), []).extend(each.suites)
    return found


def cover(
    numbers: Sequence[Number],
    suites: Mapping[tuple[str, str], Sequence[str]],
    reasons: Sequence[Reason],
) -> list[Covered]:
    """Where every number stands.

    What a table prints n times, its suites must have n times, those with a reason not counted.
    """
    held = {name: in_suite(name) for some in suites.values() for name in some}
    lines = epsilon_lines()
    reason_of = [next((each for each in reasons if each.holds(n)), None) for n in numbers]
    bare, printed = (
        Counter(
            (number.paper, number.place, number.wanted)
            for number, reason in zip(numbers, reason_of, strict=True)
            if reason is None or counted
        )
        for counted in (False, True)
    )
    found = []
    for number, reason in zip(numbers, reason_of, strict=True):
        names = suites.get((number.paper, number.place)) or suites.get(
            (number.paper, number.place.rstrip("abcdef")), ()
        )
        times = _times([held[name] for name in names], number.wanted)
        needed = (printed if reason else bare)[number.paper, number.place, number.wanted]
        if times >= needed:
            found.append(Covered(number=number, where="suite"))
        elif in_epsilons(number, lines):
            found.append(Covered(number=number, where="epsilon"))
        elif reason is not None:
            found.append(Covered(number=number, where="reason", reason=reason))
        else:
            found.append(Covered(number=number, where=""))
    return found


def _times(held: Sequence[Counter[Value]], wanted: Value) -> int:
    """How often suites have a number; one printed for all data sets together, of one of them."""
    dataset, kind, value = wanted
    together = sum(held, Counter[Value]())
    if dataset:
        return together[wanted]
    return max((n for (_, k, v), n in together.items() if (k, v) == (kind, value)), default=0)


def strangers(
    numbers: Sequence[Number], suites: Mapping[tuple[str, str], Sequence[str]]
) -> list[str]:
    """Numbers in suites that their paper prints nowhere."""
    known: dict[str, set[Value]] = {}  # the data set is "" where a number is printed for all
    for number in numbers:
        known.setdefault(number.paper, set()).add(number.wanted)
    named = {name for some in suites.values() for name in some if places_of(name)[0]}
    return [
        f"{name}: {kind} {value} ({dataset})"
        for name in sorted(named)
        for dataset, kind, value in in_suite(name)
        if kind != "stop_accuracy"
        and not {(dataset, kind, value), ("", kind, value)} & known[places_of(name)[0]]
    ]


# ---------------------------------------------------------------------------- verdicts

VERDICTS = ("reproduced", "inconclusive", "not reproduced")
READING = re.compile(r"verdict\.(asr|mse|rmse|attack_iterations)\.\w+(\.verdict)?$")


def verdicts(folder: Path) -> Counter[str]:
    """Of the printed numbers in a run's report.csv: the best of the readings of each."""
    found: Counter[str] = Counter()
    with (folder / "report.csv").open(encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            numbers: dict[str, set[str]] = {}
            for column, text in row.items():
                if (reading := READING.match(column)) and text in VERDICTS:
                    numbers.setdefault(reading[1], set()).add(text)
                elif column in _OF_TRAININGS and text:
                    numbers[column] = {text}
            for said in numbers.values():
                found[next((word for word in VERDICTS if word in said), "not judged")] += 1
    return found


_OF_TRAININGS = ("training.verdict", "training.seconds_verdict", "training.rounds_verdict")


def runs() -> dict[str, list[Path]]:
    """Committed runs by suite."""
    found: dict[str, list[Path]] = {}
    for report in sorted(RESULTS.glob("*/report.csv")):
        folder = report.parent
        manifests = [folder / "manifest.json", *sorted((folder / "manifests").glob("*.json"))]
        facts = json.loads(next(path for path in manifests if path.exists()).read_text("utf-8"))
        found.setdefault(_suite_of(facts), []).append(folder)
    return found


def _suite_of(facts: Mapping[str, Any]) -> str:
    name = facts["suite"] if isinstance(facts.get("suite"), str) else facts["plan"]["name"]
    return str(name)


# ---------------------------------------------------------------------------- the page

LEAD = """# Coverage of the five papers

Every printed number of the papers' tables, and those that their texts state of figures, is in a
suite of its table, in an epsilon table (`leakbench account --table NAME`), or has a reason below.
`make coverage` writes this page from `tests/published.csv`, the suites,
`leakbench/privacy/printed.csv`, `docs/coverage.toml` and the reports under `results/`; the tests
hold it to them.

Epsilons: how many of those in the table agree with what the paper's accounting gives. Verdicts: of
the numbers in each committed run, reproduced / inconclusive / not reproduced / not judged (fewer
rounds or less data than the paper's), by the reading of the paper's rule that comes closest;
what each run is: [results](../results/README.md).
"""


def page() -> str:
    """docs/coverage.md."""
    places, reasons = spoken_of()
    numbers, suites, known = published(), suites_of(places), runs()
    covered = cover(numbers, suites, reasons)
    lines = [
        LEAD,
        _totals(covered),
        "",
        "| paper | table or figure | what | numbers | in suites | epsilon tables | by reason "
        "| missing | suites | verdicts |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for place in places:
        of = [each for each in covered if _is_of(each.number, place)]
        names = suites.get((place.paper, place.place), [])
        said = "; ".join(
            counted
            for name in names
            if not places_of(name)[0] or place.place in places_of(name)[1]
            for folder in known.get(name, [])
            if (counted := _counted(folder))
        )
        counts = [_some(of, where) for where in ("suite", "epsilon", "reason", "")]
        agree = _agreeing(place)
        if agree:
            counts[1] += f" ({agree})"
        shown = ", ".join(f"`{name}`" for name in names) or (place.without and "none") or "-"
        cells = [
            PAPERS[place.paper], _title(place.place), place.shows, str(len(of) or "-"), *counts,
            shown, said or "-",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "## Reasons", "", "| numbers | of | reason |", "|---|---|---|"]
    for reason in reasons:
        resting = [each.number for each in covered if each.reason is reason]
        of_places = ", ".join(
            f"{PAPERS[paper]} {_title(place)}"
            for paper, place in dict.fromkeys((n.paper, n.place) for n in resting)
        )
        lines.append(f"| {len(resting)} | {of_places} | {reason.reason} |")
    for place in places:
        if place.without:
            lines.append(f"| - | {PAPERS[place.paper]} {_title(place.place)} | {place.without} |")
    if absent := [*_by_place(covered), *without_suite(places, numbers, suites)]:
        lines += ["", "## Missing", "", *(f"- {each}" for each in absent)]
    return "\n".join(lines) + "\n"


def without_suite(
    places: Sequence[Place],
    numbers: Sequence[Number],
    suites: Mapping[tuple[str, str], Sequence[str]],
) -> list[str]:
    """Tables and figures without numbers that have neither a suite nor a reason."""
    return [
        f"{PAPERS[place.paper]} {_title(place.place)}: a suite"
        for place in places
        if not (suites.get((place.paper, place.place)) or place.without)
        and not any(_is_of(number, place) for number in numbers)
    ]


def _by_place(covered: Sequence[Covered]) -> list[str]:
    """What is missing, in words: how many of which metric in which table."""
    count = Counter(
        (each.number.paper, each.number.place, each.number.metric)
        for each in covered
        if not each.where
    )
    return [
        f"{PAPERS[paper]} {_title(place)}: {times} {metric}"
        for (paper, place, metric), times in count.items()
    ]


def _is_of(number: Number, place: Place) -> bool:
    own = number.place in (place.place, f"{place.place}a", f"{place.place}b")
    return number.paper == place.paper and own


def _totals(covered: Sequence[Covered]) -> str:
    count = Counter(each.where for each in covered)
    return (
        f"{len(covered)} numbers: {count['suite']} in suites, {count['epsilon']} in epsilon "
        f"tables, {count['reason']} with a reason, {count['']} missing."
    )


def _some(covered: Sequence[Covered], where: str) -> str:
    return str(sum(each.where == where for each in covered) or "-")


def _title(place: str) -> str:
    """ "table4" -> "Table 4"."""
    return re.sub(r"^([a-z]+)(\d)", r"\1 \2", place).capitalize()


def _agreeing(place: Place) -> str:
    """Numbers of an epsilon table that agree, of how many."""
    name = "bcalc" if place.paper == "bcalc" else place.paper + place.place.removeprefix("table")
    if place.paper == "bcalc" and place.place != "text":
        return ""
    lines = [line for line in epsilon_lines() if line["table"] == name]
    if not lines:
        return ""
    return f"{sum(line['expected'] == 'yes' for line in lines)} of {len(lines)} agree"


def _counted(folder: Path) -> str:
    """A run's verdicts, "" where nothing in it is printed."""
    found = verdicts(folder)
    if not found:
        return ""
    counts = [str(found[word]) for word in (*VERDICTS, "not judged")]
    return f"{folder.name}: {' / '.join(counts)}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE}: {_totals(cover(published(), suites_of(spoken_of()[0]), spoken_of()[1]))}")
