"""The short forms of a suite file, written out: grids of defenses, sets of rules, printed rows.

All of it works on checked documents (`tables.SuiteFile`) and gives documents of `tables.Suite`.
"""

from __future__ import annotations

import copy
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from leakbench.errors import LeakbenchError, unknown_name

Document = dict[str, Any]


def expanded(
    document: Document, rule_sets: Mapping[str, Sequence[Document]], file: str
) -> Document:
    """A suite without short forms.

    Raises:
        LeakbenchError: a template with an unknown parameter, an unknown set of rules, a row of
            printed numbers that does not fit its columns.
    """
    out = dict(document)
    out["defenses"] = [row for entry in document["defenses"] for row in defense_rows(entry, file)]
    if "rules" in document:
        found = [rules(entry, rule_sets, file) for entry in document["rules"]]
        out["rules"] = [rule for some in found for rule in some]
    for key in ("printed", "printed_utility"):
        if key in document:
            out[key] = [row for entry in document[key] for row in printed_rows(entry, key, file)]
    return out


MOST_ROWS = 10_000
"""Of one grid of defenses."""


def defense_rows(entry: Document, file: str) -> list[Document]:
    """A row of every combination of the parameters that are lists, the last changing fastest.

    Raises:
        LeakbenchError: an unknown parameter in a template; more rows than `MOST_ROWS`.
    """
    parameters = entry.get("parameters", {})
    lists = {k: v if isinstance(v, list) else [v] for k, v in parameters.items()}
    if (count := math.prod(map(len, lists.values()))) > MOST_ROWS:
        text = f"its lists make {count:,} rows; allowed: at most {MOST_ROWS:,}"
        raise LeakbenchError(f"{file}, defense '{entry['id']}', key parameters: {text}")
    found = []
    for values in itertools.product(*lists.values()):
        chosen = dict(zip(lists, values, strict=True))
        where = f"{file}, defense '{entry['id']}', key"
        row = _without_parameters(entry) | {
            "id": _filled(entry["id"], chosen, _in_an_id, f"{where} id"),
            "label": _filled(entry["label"], chosen, _as_text, f"{where} label"),
        }
        found.append(row | {"parameters": chosen} if "parameters" in entry else row)
    return found


def _without_parameters(entry: Document) -> Document:
    """A copy that shares nothing that can be changed; of most entries it is texts only."""
    return {
        key: value if isinstance(value, str) else copy.deepcopy(value)
        for key, value in entry.items()
        if key != "parameters"
    }


def _filled(template: str, values: Mapping[str, Any], text: Any, where: str) -> str:
    """A template with `{name}` replaced by the text of that parameter."""

    def value_of(match: re.Match[str]) -> str:
        if match[1] not in values:
            raise unknown_name("parameter", match[1], values, where)
        return str(text(values[match[1]]))

    return re.sub(r"\{([A-Za-z0-9_]+)\}", value_of, template)


def _as_text(value: Any) -> str:
    """As a reader writes it: 4.0 is "4", 0.5 is "0.5", true is "true"."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text.removesuffix(".0") if isinstance(value, float) else text


def _in_an_id(value: Any) -> str:
    """The same in the characters that an id may have: 0.5 is "0_5", -1 is "m1", "Sum" is "sum"."""
    text = _as_text(value).lower()
    if not isinstance(value, str):
        text = text.replace("-", "m")
    return re.sub("[^a-z0-9_]", "_", text)


def rules(
    entry: Document, rule_sets: Mapping[str, Sequence[Document]], file: str
) -> list[Document]:
    """The rules of a set, with the entry's other keys in place of theirs; or the rule itself."""
    if "set" not in entry:
        return [entry]
    if entry["set"] not in rule_sets:
        raise unknown_name("set", entry["set"], rule_sets, f"{file}, key rules.set")
    own = {key: value for key, value in entry.items() if key != "set"}
    return [dict(rule) | own for rule in rule_sets[entry["set"]]]


def printed_rows(entry: Document, key: str, file: str) -> list[Document]:
    """An entry for each of its rows; or the entry itself."""
    if "rows" not in entry:
        return [entry]
    common = {name: value for name, value in entry.items() if name not in ("columns", "rows")}
    columns = entry["columns"]
    for number, row in enumerate(entry["rows"]):
        if len(row) != len(columns):
            text = f"{len(row)} values under {len(columns)} columns; allowed: one a column"
            raise LeakbenchError(f"{file}, key {key}, row {number}: {text}")
    return [common | dict(zip(columns, row, strict=True)) for row in entry["rows"]]
