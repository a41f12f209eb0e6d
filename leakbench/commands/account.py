"""`account`: epsilon of Gaussian noise, or the noise or the steps that a budget allows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from enum import StrEnum
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from leakbench.commands.output import print_columns, print_json, say
from leakbench.errors import LeakbenchError, unknown_name

if TYPE_CHECKING:
    from leakbench.privacy.account import Result
    from leakbench.privacy.observers import Ceiling
    from leakbench.privacy.tables import PrintedNumber

MOST = 10**12
"""Largest count that accounting is asked for; floating point holds it."""

MOST_STEPS = 10**6
"""Where the search for the steps of a budget ends."""

Answer = tuple["Result", dict[str, Any]]
"""An epsilon, and what was found for it by `_solved`."""


class Convention(StrEnum):
    """Where noise is added."""

    sum = "sum"
    mean = "mean"
    per_example = "per_example"


class Sampling(StrEnum):
    """How batches are drawn."""

    poisson = "poisson"
    fixed_size = "fixed_size"
    none = "none"


def account(
    sigma: Annotated[
        float | None, typer.Option(help="Noise: its std is sigma C where it is added.")
    ] = None,
    q: Annotated[
        str | None,
        typer.Option(
            "--q", help="Chance of one example to take part in a step: 0.01, or 256/60000."
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=0, max=MOST, help="Steps of the whole run.")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="Above 0 and below 1.")] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(help="Instead of --sigma: find the noise; instead of --steps: find these."),
    ] = None,
    accountant: Annotated[
        list[str] | None,
        typer.Option(help="One of `leakbench list accountants`, or all; may be repeated."),
    ] = None,
    preset: Annotated[
        str, typer.Option(help="strict guarantees; paper:... reproduces printed numbers only.")
    ] = "strict",
    layers: Annotated[int, typer.Option(min=1, max=MOST, help="Parts clipped to C apart.")] = 1,
    convention: Annotated[
        Convention | None, typer.Option(help="Where the noise is added; else sum.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="For noise on the mean or on each example.")
    ] = None,
    sampling: Annotated[
        Sampling | None, typer.Option(help="How batches are drawn; else poisson.")
    ] = None,
    observations: Annotated[
        int | None,
        typer.Option(
            min=1, max=MOST, help="Steps of one example the server or the tap sees; else q T."
        ),
    ] = None,
    group_size: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="Examples of a client, to hide all of them.")
    ] = None,
    prior: Annotated[
        str | None,
        typer.Option(
            help="Also how often the right one is named at best, for who is right with this chance "
            "without a look: 1/1000, or 0.001."
        ),
    ] = None,
    table: Annotated[
        str | None, typer.Option(help="Compute a paper's table of epsilons instead, e.g. tifs5.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Epsilon of Gaussian noise by accountant, observer and relation, with what it assumes."""
    chosen = {
        "--sigma": sigma, "--q": q, "--steps": steps, "--delta": delta, "--epsilon": epsilon,
        "--accountant": accountant or None, "--preset": None if preset == "strict" else preset,
        "--layers": None if layers == 1 else layers, "--convention": convention,
        "--batch-size": batch_size, "--sampling": sampling, "--observations": observations,
        "--group-size": group_size, "--prior": prior,
    }  # fmt: skip
    given = [option for option, value in chosen.items() if value is not None]
    if table is not None:
        _leave_out("--table computes what the paper did", given, given)
        _account_table(table, as_json)
        return
    from leakbench.privacy.presets import preset_of

    guarantee = preset_of(preset).guarantee
    own = (
        "--convention",
        "--batch-size",
        "--sampling",
        "--observations",
        "--group-size",
        "--prior",
    )
    if not guarantee:
        _leave_out(f"--preset {preset} fixes how the paper counts", own, given)
    if epsilon is not None:
        _leave_out("--epsilon is about the final model and one example", own[-3:], given)
    averaged = convention in (Convention.mean, Convention.per_example)
    if averaged and batch_size is None:
        raise LeakbenchError(f"--convention {convention} needs --batch-size")
    if not averaged:
        _leave_out("noise on the sum does not depend on the batch", ("--batch-size",), given)
    if sampling is Sampling.none:
        _leave_out("--sampling none: everyone takes part in every step", ("--q",), given)
        q = "1"
    known = [option for option in ("--sigma", "--steps", "--epsilon") if option in given]
    if len(known) != 2:
        raise LeakbenchError(
            "account: exactly two of --sigma, --steps and --epsilon are needed, as the third is "
            f"computed (or --table alone), got {' and '.join(known) or 'none'}"
        )
    if q is None or delta is None:
        lacking = [name for name, value in (("--q", q), ("--delta", delta)) if value is None]
        raise LeakbenchError(f"account: {' and '.join(lacking)} missing")
    if sigma is not None and not 0 <= sigma < math.inf:
        raise LeakbenchError(f"--sigma must be at least 0 and finite, got {sigma}")
    setting: dict[str, Any] = {
        "sampling_rate": _chance("--q", q), "delta": delta, "preset": preset, "tensors": layers,
        "convention": (convention or Convention.sum).value, "batch_size": batch_size,
        "sampling": (sampling or Sampling.poisson).value, "observations": observations,
        "group_size": group_size or 1,
    }  # fmt: skip
    names = _accountant_names(accountant or ["all"])
    rows: list[Answer] = []
    named: Sequence[Ceiling] = ()
    if sigma is not None and steps is not None:
        from leakbench.privacy import observers

        if prior is not None:
            shared = {
                name: value for name, value in setting.items() if name not in ("delta", "preset")
            }
            named = observers.ceilings(
                prior=_chance("--prior", prior), noise_multiplier=sigma, steps=steps, **shared
            )
        results = observers.account(
            noise_multiplier=sigma, steps=steps, accountants=names, **setting
        )
        rows = [(result, {}) for result in results]
    elif epsilon is not None:
        solved = [_solved(epsilon, sigma, steps, name, setting) for name in names]
        rows = [row for of_relation in zip(*solved, strict=True) for row in of_relation]
    if as_json:
        found = {"results": [result.as_dict() | found for result, found in rows]}
        print_json(found | ({"ceilings": [asdict(each) for each in named]} if named else {}))
    else:
        print(_caution(preset, guarantee), end="\n\n")
        _print_results(rows, "sigma" if sigma is None else "steps" if steps is None else None)
        if named:
            _print_ceilings(named)


def _chance(option: str, text: str) -> float:
    """A chance as typed."""
    above, _, below = text.replace(" ", "").partition("/")
    try:
        # A fraction of numbers with exponents would be made digit by digit: 1e999999999.
        chance = float(Fraction(int(above), int(below))) if below else float(above)
    except (ValueError, ZeroDivisionError, OverflowError):
        chance = math.nan
    if chance == 0 and any(digit in above.lower().partition("e")[0] for digit in "123456789"):
        chance = math.nan  # too small for a float, and no 0
    positive = option == "--prior"  # without a chance nobody is ever right
    if not 0 <= chance <= 1 or (positive and chance == 0):
        example = "1/1000) above 0 and at most 1" if positive else "256/60000) from 0 to 1"
        raise LeakbenchError(
            f"{option} must be a number or a fraction ({example}, got {text!r:.60}"
        )
    return chance


def _leave_out(why: str, options: Iterable[str], given: Sequence[str]) -> None:
    """Refuse options that would change nothing."""
    idle = [option for option in options if option in given]
    if idle:
        raise LeakbenchError(f"{why}: {' and '.join(idle)} must be left out")


def _accountant_names(asked: Sequence[str]) -> list[str]:
    from leakbench.spec import ACCOUNTANTS

    for name in asked:
        if name not in (*ACCOUNTANTS, "all"):
            raise unknown_name("accountant", name, (*ACCOUNTANTS, "all"), "--accountant")
    return list(ACCOUNTANTS) if "all" in asked else list(dict.fromkeys(asked))


def _solved(
    target: float, sigma: float | None, steps: int | None, accountant: str, setting: dict[str, Any]
) -> list[Answer]:
    """Epsilon of the final model with the least sigma or the most steps that `target` allows.

    Of sigma and steps the one to find is None; it stands beside the epsilon, which is at most
    `target`, and stays None where there is no such number.
    """
    from leakbench.privacy import inverse, observers
    from leakbench.privacy.presets import preset_of

    if not 0 < target < math.inf:
        raise LeakbenchError(f"--epsilon must be above 0 and finite, got {target}")
    preset = preset_of(setting["preset"])
    unit = _noise_at_release(setting)

    def of_model(noise: float, count: int) -> list[Result]:
        results = observers.account(
            noise_multiplier=noise, steps=count, accountants=[accountant], **setting
        )
        return [result for result in results if result.observer == "model"]

    run: dict[str, Any] = {
        "sampling_rate": setting["sampling_rate"],
        "sampling": setting["sampling"] if preset.guarantee else preset.sampling,
    }
    rows: list[Answer] = []
    # Whether there is an epsilon at all depends on neither noise nor steps.
    for i, result in enumerate(of_model(1.0 if sigma is None else sigma, steps or 1)):
        how: dict[str, Any] = {
            "accountant": accountant, "preset": preset.name, "relation": result.relation,
        }  # fmt: skip
        least, most = sigma, steps
        if result.epsilon is None:
            result = replace(result, assumptions=preset.assumptions)
        elif steps is not None:
            noise = inverse.noise_multiplier(target, result.delta, steps=steps, **run, **how)
            least = noise / unit
            result = of_model(least, steps)[i]
            if least == math.inf:
                least, result = None, replace(result, reason="no noise is enough")
        elif sigma is not None:
            most = _most_steps(target, sigma * unit, result.delta, run, how)
            result = of_model(sigma, most)[i]
            if most == MOST_STEPS:
                most, result = None, replace(result, reason=f"lasts {MOST_STEPS:,} steps or more")
        rows.append((result, {"target_epsilon": target, "sigma": least, "steps": most}))
    return rows


def _most_steps(
    target: float, noise: float, delta: float, run: dict[str, Any], how: dict[str, Any]
) -> int:
    from leakbench.privacy.events import PrivacyEvent
    from leakbench.privacy.inverse import steps_within

    tried = found = 1
    while found == tried and tried < MOST_STEPS:
        tried = min(10 * tried, MOST_STEPS)  # in stages, as long runs take long to account for
        steps = PrivacyEvent(noise_multiplier=noise, sensitivity=1.0, steps=tried, **run)
        found = steps_within(target, [steps], delta, **how)
    return found


def _noise_at_release(setting: dict[str, Any]) -> float:
    """Noise multiplier at the release, std over sensitivity there, where sigma is 1."""
    from leakbench.privacy.observers import gain
    from leakbench.privacy.presets import preset_of

    preset = preset_of(setting["preset"])
    parts = math.sqrt(setting["tensors"])
    if not preset.guarantee:
        return preset.noise_factor / (parts if preset.charges_parts else 1.0)
    return gain(setting["convention"], setting["batch_size"]) / parts


def _print_results(rows: Sequence[Answer], found: Literal["sigma", "steps"] | None) -> None:
    """An aligned table, then what holds in all rows, then the notes of several rows.

    found: What to show beside each epsilon.
    """
    results = [result for result, _ in rows]
    counts = Counter(text for result in results for text in result.assumptions)
    computed = [result for result in results if result.epsilon is not None] or results
    shared = [
        text for text in computed[0].assumptions if all(text in r.assumptions for r in computed)
    ]
    repeated = [text for text, count in counts.items() if count > 1 and text not in shared]
    lines = []
    for result, extra in rows:
        own = [text for text in result.assumptions if text not in shared]
        notes = [result.reason] if result.reason else []
        notes += [f"[{repeated.index(t) + 1}]" if t in repeated else t for t in own]
        line = [result.observer, _looks(result), result.level, result.relation, result.accountant]
        if found is not None:
            line.append(_found(extra[found]))
        lines.append([*line, _rounded(result.epsilon), "; ".join(notes)])
    header = ["observer", "looks", "level", "relation", "accountant", *([found] if found else [])]
    print_columns([*header, "epsilon", "notes"], lines)
    print("\nIn all rows with an epsilon:")
    for text in (f"delta {results[0].delta:g}", *shared):
        print(f"- {text}")
    if repeated:
        print("\nNotes:")
    for number, text in enumerate(repeated, start=1):
        print(f"{number}. {text}")


def _print_ceilings(named: Sequence[Ceiling]) -> None:
    """How often the right one is named at best, observer by observer."""
    against = {"add_remove": "without him", "replace_one": "with another one", None: ""}
    lines = [
        [
            each.observer,
            "-" if each.level == "none" else str(each.observations or "run"),
            each.level,
            "none" if each.success is None else _rounded_up(each.success),
            each.reason or f"held against a training {against[each.relation]}",
        ]
        for each in named
    ]
    prior = named[0].prior
    guess = f"{prior:g} (1 in {_whole(1 / prior)})"
    print(f"\nNaming the right one, with chance {guess} without a look:")
    print_columns(["observer", "looks", "level", "at most", "notes"], lines)


def _whole(count: float) -> str:
    """A count in all its digits, or with four where it is no whole number."""
    near = round(count)
    return f"{near:,}" if math.isclose(count, near, rel_tol=1e-9) else f"{count:,.4g}"


def _rounded_up(chance: float) -> str:
    """Four digits, at least what they stand for."""
    unit = 10.0 ** (math.floor(math.log10(chance)) - 3)
    return f"{min(1.0, math.ceil(chance / unit * (1 - 1e-12)) * unit):.4g}"


def _looks(result: Result) -> str:
    if result.observations is not None:
        return str(result.observations)
    return "-" if result.level == "none" else "run"


def _found(value: float | None) -> str:
    """Steps, or a sigma, which is rounded up so that what is shown is enough."""
    if value is None:
        return "none"
    return str(value) if isinstance(value, int) else f"{math.ceil(value * 1e4) / 1e4:.4f}"


def _rounded(epsilon: float | None) -> str:
    """To three decimals, and three digits where it is small."""
    if epsilon is None:
        return "none"
    if epsilon == 0 or epsilon >= 1e6:
        return f"{epsilon:g}"
    return f"{epsilon:.{max(3, 2 - math.floor(math.log10(epsilon)))}f}"


def _account_table(name: str, as_json: bool) -> None:
    """Print a paper's table; exit code 1 if a cell agrees or not against what is expected."""
    from leakbench.privacy import tables

    table = tables.table(name)
    cells = table.cells
    if as_json:
        head = {"table": table.name, "title": table.title, "preset": table.preset}
        print_json(head | {"cells": [cell.as_dict() for cell in cells]})
    else:
        print(f"{table.title}\n{_caution(table.preset, guarantee=False)}\n")
        lines = [
            [cell.row, cell.column, cell.printed, _computed(cell), _match(cell), cell.note]
            for cell in cells
        ]
        print_columns(["row", "column", "printed", "computed", "match", "note"], lines)
        matching = sum(cell.matches for cell in cells)
        expected = sum(not cell.matches and not cell.expected for cell in cells)
        print(f"\n{matching} of {len(cells)} cells match; {expected} are known not to.")
    if wrong := sum(cell.matches != cell.expected for cell in cells):
        say(f"{name}: {wrong} of {len(cells)} cells not as expected")
        raise typer.Exit(1)


def _computed(cell: PrintedNumber) -> str:
    """With one digit more than is printed."""
    if cell.computed is None:
        return "-"
    decimals = len(cell.printed.partition(".")[2])
    return f"{cell.computed:.{decimals + 1 if decimals else 0}f}"


def _match(cell: PrintedNumber) -> str:
    if cell.matches == cell.expected:
        return "yes" if cell.matches else "no, as expected"
    return "YES, UNEXPECTED" if cell.matches else "NO, UNEXPECTED"


def _caution(preset: str, guarantee: bool) -> str:
    if guarantee:
        return f"preset {preset}: what the mechanism guarantees"
    return f"preset {preset}: REPRODUCTION ONLY of printed numbers, not a guarantee"
