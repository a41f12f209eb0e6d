"""The command line. Everything heavy is imported inside the command that needs it."""

from __future__ import annotations

import io
import json
import math
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from fractions import Fraction
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from leakbench import arithmetic
from leakbench.errors import LeakbenchError, WorkerLost, unknown_name

if TYPE_CHECKING:
    from leakbench import probe
    from leakbench.privacy.account import Result
    from leakbench.privacy.tables import Cell
    from leakbench.records import Run
    from leakbench.runner import Outcome, PlannedCell, PlannedTraining, Progress
    from leakbench.suite import Plan

RUNS = Path("results/runs")
MOST = 10**12
"""Largest count that accounting is asked for; floating point holds it."""

app = typer.Typer(
    help="How much private training data does a gradient leak, under which defense?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(
    help="Data sets: what is here, and how to get the rest.", no_args_is_help=True
)
app.add_typer(data_app, name="data")


class Kind(StrEnum):
    """What `list` can list."""

    attacks = "attacks"
    defenses = "defenses"
    datasets = "datasets"
    models = "models"
    suites = "suites"
    accountants = "accountants"


class Format(StrEnum):
    """Formats of a report."""

    md = "md"
    csv = "csv"
    html = "html"
    json = "json"


class ChoiceFormat(StrEnum):
    """Formats of a choice."""

    md = "md"
    json = "json"


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


class Device(StrEnum):
    """Where to compute."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


SuiteArgument = Annotated[str, typer.Argument(help="Name of a suite, or path of a .toml file.")]
ProfileOption = Annotated[str, typer.Option(help="Profile of the suite: how much to run.")]
DeviceOption = Annotated[Device, typer.Option(help="auto takes CUDA where there is one.")]
AttackOption = Annotated[
    str | None, typer.Option("--attack", help="Run this attack instead of the suite's.")
]
DefenseOption = Annotated[
    str | None,
    typer.Option(
        "--defense", help="Run only the row of this id, else this plugin with its defaults."
    ),
]
FastOption = Annotated[
    bool,
    typer.Option(
        "--fast",
        help="Let the libraries choose their kernels: a little faster, other bits elsewhere.",
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a key, e.g. attack.parameters.steps=50."
    ),
]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, or its name.")]


@app.command("list")
def list_command(
    kind: Annotated[Kind | None, typer.Argument(help="Only this kind.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Import the plugins and run their contract tests.")
    ] = False,
) -> None:
    """List attacks, defenses, data sets, models, suites, accountants; what is broken, and why."""
    listed = {k.value: _listing(k, check) for k in ([kind] if kind else Kind)}
    if as_json:
        print(json.dumps(listed, indent=1))
    else:
        for name, rows in listed.items():
            print(f"{name}:")
            for row in rows:
                notes = row.get("reason") or row.get("summary", "")
                print(
                    f"  {row['name']:<18} {row['status']:<16} {row['origin']:<28} {notes}".rstrip()
                )
    if check and any(row["status"] == "broken" for rows in listed.values() for row in rows):
        raise typer.Exit(1)


def _listing(kind: Kind, check: bool) -> list[dict[str, str]]:
    if kind in (Kind.attacks, Kind.defenses):
        from leakbench import registry

        rows = []
        for plugin in registry.discover(kind.value):  # type: ignore[arg-type]
            status, reason = plugin.status, plugin.reason
            if check and status == "ok":
                from leakbench.testing import check_plugin

                reason = check_plugin(kind.value, plugin.name)  # type: ignore[arg-type]
                status = "broken" if reason else "ok"
            rows.append(
                {"name": plugin.name, "origin": plugin.origin, "status": status,
                 "reason": reason, "summary": plugin.summary}
            )  # fmt: skip
        return rows
    if kind is Kind.datasets:
        from leakbench.data.catalog import describe

        return [
            {"name": row["name"], "origin": row["where"], "status": row["status"],
             "reason": row["how_to_get"] if row["status"] == "missing" else "",
             "summary": row["title"]}
            for row in describe()
        ]  # fmt: skip
    if kind is Kind.models:
        from leakbench.names import MODELS

        return [
            {"name": name, "origin": "leakbench", "status": "ok", "reason": "", "summary": summary}
            for name, summary in MODELS.items()
        ]
    if kind is Kind.accountants:
        return _accountants()
    return _suites()


def _suites() -> list[dict[str, str]]:
    from leakbench import suite

    rows = []
    for name in suite.names():
        try:
            summary, status, reason = suite.read(name)[0].title, "ok", ""
        except LeakbenchError as error:
            summary, status, reason = "", "broken", str(error)
        rows.append(
            {"name": name, "origin": f"leakbench ({name}.toml)", "status": status,
             "reason": reason, "summary": summary}
        )  # fmt: skip
    return rows


def _accountants() -> list[dict[str, str]]:
    from leakbench.names import ACCOUNTANTS

    return [
        {"name": name, "origin": "leakbench", "status": "ok", "reason": "", "summary": summary}
        for name, summary in ACCOUNTANTS.items()
    ]


@app.command()
def run(
    suite: SuiteArgument,
    profile: ProfileOption = "quick",
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; else results/runs/SUITE-PROFILE.")
    ] = None,
    device: DeviceOption = Device.auto,
    workers: Annotated[int, typer.Option(min=0, help="Worker processes; 0 takes one a core.")] = 0,
    chunk: Annotated[
        int,
        typer.Option(
            min=1, help="Victims solved together; changes no result, unless `doctor` says so."
        ),
    ] = 128,
    attack: AttackOption = None,
    defense: DefenseOption = None,
    settings: SetOption = None,
    fast: FastOption = False,
) -> None:
    """Run a suite, or what is left of it, and print its table."""
    _arithmetic(fast)
    plan = _plan(suite, profile, attack, defense, settings)  # first: torch takes its time to load
    from leakbench import runner
    from leakbench.data.catalog import data_root

    folder, where, count = _place(plan, out, device, workers)
    with _interruptible(folder):
        with _progress() as report:
            outcome = runner.run(
                plan, folder, root=data_root(), device=where, workers=count, chunk_size=chunk,
                report=report,
            )  # fmt: skip
        text, broken = _written(folder, outcome)
        print(text)
    _end(folder, outcome, broken)


@app.command()
def cloak(
    suite: SuiteArgument = "cloak_table2",
    profile: ProfileOption = "quick",
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; else results/runs/SUITE-PROFILE.")
    ] = None,
    device: DeviceOption = Device.auto,
    workers: Annotated[int, typer.Option(min=0, help="Worker processes; 0 takes one a core.")] = 0,
    rule: Annotated[
        str | None,
        typer.Option("--rule", help="Success rule of the suite to choose by; else strict."),
    ] = None,
    format: Annotated[ChoiceFormat, typer.Option(help="md or json.")] = ChoiceFormat.md,
    settings: SetOption = None,
    fast: FastOption = False,
) -> None:
    """Run a suite and choose, of its defenses that leak nothing, the most accurate one."""
    _arithmetic(fast)
    plan = _plan(suite, profile, None, None, settings)  # first: torch takes its time to load
    from leakbench import cloak as choosing
    from leakbench.data.catalog import data_root

    folder, where, count = _place(plan, out, device, workers)
    with _interruptible(folder):
        with _progress() as report:
            found = choosing.search(
                plan, folder, root=data_root(), device=where, workers=count, rule=rule,
                report=report,
            )  # fmt: skip
        outcome = found.outcome
        _, broken = _written(folder, outcome)
        write = choosing.to_json if format is ChoiceFormat.json else choosing.to_markdown
        print(write(plan, found.choices), end="")
        (folder / "cloak.md").write_text(
            choosing.to_markdown(plan, found.choices), encoding="utf-8"
        )
    for choice in found.choices:
        if choice.optimistic:
            _say(f"{choice.dataset}: {choice.cautions()[0]}")
    _end(folder, outcome, broken)


def _place(plan: Plan, out: Path | None, device: Device, workers: int) -> tuple[Path, str, int]:
    """Folder, device and number of worker processes of a run."""
    if out is not None and out == Path():
        raise LeakbenchError("--out: empty; give a folder of its own for the run")
    folder = out if out is not None else RUNS / f"{plan.suite.name}-{plan.profile}"
    where = _device(device)
    return folder, where, workers or (1 if where == "cuda" else os.cpu_count() or 1)


def _written(folder: Path, outcome: Outcome) -> tuple[str, list[str]]:
    """Write the reports of a run that was not interrupted; its table, and rows above a ceiling."""
    if outcome.torn_bytes:
        _say(f"{folder}: a torn last line of {outcome.torn_bytes} bytes was cut off")
    if outcome.interrupted:
        _say(f"{outcome.present + outcome.ran} of {outcome.planned} trials are done")
        raise KeyboardInterrupt
    if outcome.changed:  # a gallery of what was there before would be taken for this one's
        (folder / "gallery.png").unlink(missing_ok=True)
    return _write_reports(folder)


def _end(folder: Path, outcome: Outcome, broken: list[str]) -> None:
    """Say how a run went, and exit with its code."""
    for row in broken:
        _say(f"above its ceiling, so mechanism or accounting is wrong: {row}")
    _say(
        f"{outcome.planned} trials planned: {outcome.present} were there, {outcome.ran} run now, "
        f"{outcome.skipped} skipped, {outcome.errors} in error; "
        f"{folder}/report.md, .html, .json, .csv"
    )
    raise typer.Exit(1 if outcome.errors or broken else 0)


@app.command()
def validate(
    suite: SuiteArgument,
    profile: ProfileOption = "quick",
    device: DeviceOption = Device.auto,
    attack: AttackOption = None,
    defense: DefenseOption = None,
    settings: SetOption = None,
) -> None:
    """Say what would run, what is missing and roughly how long it takes; run nothing."""
    plan = _plan(suite, profile, attack, defense, settings)
    for other in plan.suite.profiles:
        _plan(suite, other, attack, defense, settings)  # its mistakes show before it is run
    from leakbench import runner
    from leakbench.data.catalog import data_root

    where = _device(device)
    planned = runner.plan_cells(plan, data_root(), where)
    trained = runner.plan_trainings(plan, data_root(), where)
    for dataset in dict.fromkeys(cell.cell.dataset for cell in planned):
        cells = [cell for cell in planned if cell.cell.dataset == dataset]
        rows = dict.fromkeys(cell.cell.row for cell in cells)
        attackers = dict.fromkeys(cell.cell.knowledge for cell in cells)
        state = cells[0].skip and f"skipped, {cells[0].skip}"
        size = f"{len(rows)} rows x {len(attackers)} attackers x {plan.networks} networks"
        print(f"{dataset}: {size} x {plan.victims} victims {state}".rstrip())
    trials = sum(cell.count for cell in planned if not cell.skip)
    if networks := sum(len(each.identities) for each in trained if not each.skip):
        rounds = trained[0].cell.schedule["rounds"]
        print(f"{networks} trainings of {rounds} rounds each, to report accuracy, epsilon, cost")
    print(f"{len(planned)} cells, {trials} trials; {_rough_time(planned, trained)}")


def _rough_time(planned: list[PlannedCell], trained: list[PlannedTraining]) -> str:
    """From all steps, on one core: two milliseconds for each gradient of an image under attack, one
    for each example of a local step."""
    from leakbench import registry

    seconds = 0.0
    for training in trained:
        schedule = training.cell.schedule
        examples = schedule["batch_size"] * schedule["clients_a_round"] * schedule["local_steps"]
        networks = 0 if training.skip else len(training.identities)
        seconds += 1e-3 * networks * schedule["rounds"] * examples
    for planned_cell in planned:
        cell = planned_cell.cell
        steps, restarts = (cell.attack_parameters.get(name, 1) for name in ("steps", "restarts"))
        if not planned_cell.skip and isinstance(steps, int) and isinstance(restarts, int):
            each = getattr(registry.load("attacks", cell.attack), "evaluations_a_step", 1)
            images = planned_cell.count
            seconds += 2e-3 * images * restarts * steps * each * cell.observations
    cores = os.cpu_count() or 1
    minutes = max(1, round(seconds / cores / 60))
    time = f"{minutes} min" if minutes < 120 else f"{minutes / 60:.0f} h"
    return f"roughly {time} on {cores} cores if every attack uses up its steps"


@app.command()
def report(
    run: RunArgument,
    format: Annotated[Format, typer.Option(help="md, csv, html or json.")] = Format.md,
    out: Annotated[Path | None, typer.Option(help="Write to this file.")] = None,
) -> None:
    """Print the table of a run: rates with intervals, printed numbers, verdicts, notes."""
    store = _existing(run)
    text = _render(store, _content(store), format)
    if out is None:
        sys.stdout.write(text)
        return
    _write(out, text)


@app.command()
def gallery(
    run: RunArgument,
    out: Annotated[Path | None, typer.Option(help="PNG to write; else RUN/gallery.png.")] = None,
) -> None:
    """Draw what the attacker got, picture by picture, victims picked by the suite's rule."""
    store = _existing(run)
    plan, planned, _ = _resolved(store)
    from leakbench.report import gallery as drawing

    path = out if out is not None else store.folder / "gallery.png"
    try:
        warnings = drawing.draw(store, plan, planned, path)
    except OSError as error:
        raise LeakbenchError(f"{path}: cannot write: {error.strerror}") from None
    for warning in warnings:
        _say(warning)
    _say(f"gallery: {path}")
    html = store.folder / "report.html"
    if out is None and html.exists():  # the picture goes into the page as well
        _write(html, _render(store, _content(store), Format.html))


@app.command()
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
        "--group-size": group_size,
    }  # fmt: skip
    given = [option for option, value in chosen.items() if value is not None]
    if table is not None:
        _leave_out("--table computes what the paper did", given, given)
        _account_table(table, as_json)
        return
    from leakbench.privacy.presets import preset_of

    guarantee = preset_of(preset).guarantee
    own = ("--convention", "--batch-size", "--sampling", "--observations", "--group-size")
    if not guarantee:
        _leave_out(f"--preset {preset} fixes how the paper counts", own, given)
    if epsilon is not None:
        _leave_out("--epsilon is about the final model and one example", own[-2:], given)
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
        "sampling_rate": _rate(q), "delta": delta, "preset": preset, "tensors": layers,
        "convention": (convention or Convention.sum).value, "batch_size": batch_size,
        "sampling": (sampling or Sampling.poisson).value, "observations": observations,
        "group_size": group_size or 1,
    }  # fmt: skip
    names = _accountant_names(accountant or ["all"])
    rows: list[Row] = []
    if sigma is not None and steps is not None:
        from leakbench.privacy import observers

        results = observers.account(
            noise_multiplier=sigma, steps=steps, accountants=names, **setting
        )
        rows = [(result, {}) for result in results]
    elif epsilon is not None:
        solved = [_solved(epsilon, sigma, steps, name, setting) for name in names]
        rows = [row for of_relation in zip(*solved, strict=True) for row in of_relation]
    if as_json:
        _print_json({"results": [result.as_dict() | found for result, found in rows]})
    else:
        print(_caution(preset, guarantee), end="\n\n")
        _print_results(rows, "sigma" if sigma is None else "steps" if steps is None else None)


@app.command()
def doctor() -> None:
    """Check the environment: versions, devices, data, plugins."""
    import platform
    from importlib.metadata import version

    import torch

    from leakbench import probe, registry
    from leakbench.data.catalog import data_root, describe

    print(f"python      {platform.python_version()}")
    for name in ("leakbench", "torch", "torchvision", "numpy", "scipy", "scikit-image"):
        print(f"{name:<11} {version(name)}")
    threads = os.environ.get("OMP_NUM_THREADS", "not set")
    print(f"cores       {os.cpu_count()} (one torch thread a worker; OMP_NUM_THREADS {threads})")
    print(f"processor   {arithmetic.processor()}")
    print(f"blas        {probe.blas()}")
    print(f"arithmetic  {probe.arithmetic()}: {_arithmetic_means()}")
    cuda = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    print(f"cuda        {cuda}")
    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        digits = probe.Shape(model="cnn2", input_shape=(1, 28, 28), classes=10, device=device)
        print(f"rows        {_rows_mean(digits, probe.rows(digits))}")
    print(f"data root   {data_root() or 'none (LEAKBENCH_DATA is not set)'}")
    for row in describe():
        missing = f"; get it: {row['how_to_get']}" if row["status"] == "missing" else ""
        print(f"  {row['name']:<14} {row['status']}{missing}")
    broken = [
        (kind, plugin)
        for kind in ("attacks", "defenses")
        for plugin in registry.discover(kind)
        if plugin.status == "broken"
    ]
    for kind in ("attacks", "defenses"):
        print(f"{kind:<11} {len(registry.discover(kind))}; contracts: leakbench list --check")
    for kind, plugin in broken:
        print(f"broken {kind[:-1]} '{plugin.name}' ({plugin.origin}): {plugin.reason}")
    raise typer.Exit(1 if broken else 0)


def _arithmetic_means() -> str:
    """What the arithmetic of this process promises."""
    promises = {
        "portable": "the same bits on every x86-64 with AVX2 (and the same torch)",
        "fast": "the same bits on processors of one family only",
    }
    from leakbench import probe

    return promises.get(probe.arithmetic(), "the same bits on processors of one family")


def _rows_mean(shape: probe.Shape, found: probe.Finding) -> str:
    """What a probe found, in a sentence."""
    if found.independent:
        return f"independent of each other ({shape}): a trial can be done again by itself"
    apart = f", up to {found.difference:.1g} apart" if math.isfinite(found.difference) else ""
    return (
        f"dependent on each other ({shape}){apart}: chunks are done again as a whole, and --chunk "
        "is part of what a run is"
    )


@data_app.command("list")
def data_list(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """What is known, what is here, what is missing."""
    from leakbench.data.catalog import describe

    if as_json:
        print(json.dumps(describe(), indent=1))
        return
    for row in describe():
        print(f"{row['name']:<14} {row['status']:<16} {row['where']}")
        print(f"{'':<14} {row['title']}; licence: {row['licence']}")
        if row["status"] == "missing":
            print(f"{'':<14} get it: {row['how_to_get']}")


@data_app.command("prepare")
def data_prepare(
    dest: Annotated[Path, typer.Argument(help="Data root to lay out.")],
    names: Annotated[list[str] | None, typer.Argument(help="Data sets; all without.")] = None,
    source: Annotated[
        Path | None, typer.Option(help="Folder that already holds the archives: no download.")
    ] = None,
) -> None:
    """Download, check and lay out data sets; then set LEAKBENCH_DATA=DEST."""
    from leakbench.data.prepare import prepare

    prepare(dest, names or (), source=source, report=print)
    _say(f"done; now set LEAKBENCH_DATA={dest}")


# ------------------------------------------------------------------------------ helpers


def _arithmetic(fast: bool) -> None:
    """Before anything loads torch."""
    if fast:
        arithmetic.choose_fast()


def _plan(
    suite: str, profile: str, attack: str | None, defense: str | None, settings: list[str] | None
) -> Plan:
    from leakbench.suite import resolve

    return resolve(suite, profile, attack=attack, defense=defense, settings=settings or ())


def _device(device: Device) -> str:
    if device is Device.cpu:
        return "cpu"
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if device is Device.cuda:
        raise LeakbenchError("--device cuda: torch sees no CUDA device; allowed here: cpu, auto")
    return "cpu"


def _existing(run: Path) -> Run:
    from leakbench.records import Run

    # os.path: unlike Path.exists it never raises, whatever was typed.
    named = RUNS / run
    return Run.existing(named if os.path.exists(named) and not os.path.exists(run) else run)


def _resolved(store: Run) -> tuple[Plan, list[PlannedCell], list[PlannedTraining]]:
    """The suite of a run as code and data are now."""
    manifest = store.manifest()
    try:
        asked = [manifest[k] for k in ("suite", "profile", "attack", "defense", "settings")]
        device = manifest["device"]
        kernels, unit, release = (manifest[k] for k in ("arithmetic", "unit", "torch"))
    except KeyError as error:
        raise LeakbenchError(
            f"{store.folder}: its newest manifest has no {error}, so another leakbench made it; "
            "`leakbench run` does it again, report.md there is of then"
        ) from None
    suite, profile, attack, defense, settings = asked
    texts = [suite, profile, *(x for x in (attack, defense) if x is not None)]
    texts += [kernels, release]
    sound = isinstance(settings, list) and all(isinstance(x, str) for x in [*texts, *settings])
    sound = sound and (unit is None or isinstance(unit, int))
    if not sound or device not in ("cpu", "cuda"):
        raise LeakbenchError(f"{store.folder}: its newest manifest is damaged; remove the file")
    plan = _plan(suite, profile, attack, defense, settings)
    from leakbench import runner
    from leakbench.data.catalog import data_root

    # As where the records were made, which may have been elsewhere.
    made = runner.Platform(device=device, arithmetic=kernels, torch=release, unit=unit)
    planned = runner.plan_cells(plan, data_root(), made)
    trained = runner.plan_trainings(plan, data_root(), made)
    records = store.records()
    known = {key for cell in planned for key in cell.trials()}
    known |= {key for training in trained for key in training.trials()}
    if records and not known & records.keys():
        commit = (manifest.get("git") or {}).get("commit") or "unknown"
        raise LeakbenchError(
            f"{store.folder}: its {len(records)} records were made by other code, data or "
            f"settings (commit {str(commit)[:12]}); `leakbench run` does them again, report.md "
            "there is of then"
        )
    return plan, planned, trained


def _content(store: Run) -> dict[str, Any]:
    """The report of a run as data: what `report --format json` prints."""
    plan, planned, trained = _resolved(store)
    from leakbench.report import cells

    return cells.build(plan, planned, store.records(), store.manifest(), trained)


def _render(store: Run, content: dict[str, Any], format: Format) -> str:
    from leakbench.report import tables

    if format is Format.html:
        picture = store.folder / "gallery.png"
        return tables.to_html(content, picture.read_bytes() if picture.exists() else None)
    make = {Format.md: tables.to_markdown, Format.csv: tables.to_csv, Format.json: tables.to_json}
    return make[format](content)


def _write_reports(folder: Path) -> tuple[str, list[str]]:
    """Write the report in all formats; returns the Markdown, and cells above their ceiling."""
    from leakbench.records import Run

    store = Run.existing(folder)
    content = _content(store)
    texts = {format: _render(store, content, format) for format in Format}
    for format, text in texts.items():
        _write(folder / f"report.{format.value}", text)
    broken = [
        f"{cell['dataset']}, {cell['label']}, {cell['attack']} {cell['knowledge']}"
        for cell in content["cells"]
        if any(flag["name"] == "above_ceiling" for flag in cell["flags"])
    ]
    return texts[Format.md], broken


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise LeakbenchError(f"{path}: cannot write: {error.strerror}") from None


def _say(text: str) -> None:
    print(text, file=sys.stderr)


# ------------------------------------------------------------------------------ accounting

MOST_STEPS = 10**6
"""Where the search for the steps of a budget ends."""

Row = tuple["Result", dict[str, Any]]
"""An epsilon, and what was found for it by `_solved`."""


def _rate(text: str) -> float:
    """A sampling rate as typed."""
    try:
        rate = float(Fraction(text.replace(" ", "")))
    except (ValueError, ZeroDivisionError):
        rate = math.nan
    if not 0 <= rate <= 1:
        text = f"must be a number or a fraction (256/60000) from 0 to 1, got {text!r}"
        raise LeakbenchError(f"--q {text}")
    return rate


def _leave_out(why: str, options: Iterable[str], given: Sequence[str]) -> None:
    """Refuse options that would change nothing."""
    idle = [option for option in options if option in given]
    if idle:
        raise LeakbenchError(f"{why}: {' and '.join(idle)} must be left out")


def _accountant_names(asked: Sequence[str]) -> list[str]:
    from leakbench.names import ACCOUNTANTS

    for name in asked:
        if name not in (*ACCOUNTANTS, "all"):
            raise unknown_name("accountant", name, (*ACCOUNTANTS, "all"), "--accountant")
    return list(ACCOUNTANTS) if "all" in asked else list(dict.fromkeys(asked))


def _solved(
    target: float, sigma: float | None, steps: int | None, accountant: str, setting: dict[str, Any]
) -> list[Row]:
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
    rows: list[Row] = []
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


def _print_results(rows: Sequence[Row], found: Literal["sigma", "steps"] | None) -> None:
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
    _print_columns([*header, "epsilon", "notes"], lines)
    print("\nIn all rows with an epsilon:")
    for text in (f"delta {results[0].delta:g}", *shared):
        print(f"- {text}")
    if repeated:
        print("\nNotes:")
    for number, text in enumerate(repeated, start=1):
        print(f"{number}. {text}")


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


def _print_columns(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    lines = [header, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    for line in lines:
        print("  ".join(map(str.ljust, line, widths)).rstrip())


def _account_table(name: str, as_json: bool) -> None:
    """Print a paper's table; exit code 1 if a cell agrees or not against what is expected."""
    from leakbench.privacy import tables

    table = tables.table(name)
    cells = table.cells
    if as_json:
        head = {"table": table.name, "title": table.title, "preset": table.preset}
        _print_json(head | {"cells": [cell.as_dict() for cell in cells]})
    else:
        print(f"{table.title}\n{_caution(table.preset, guarantee=False)}\n")
        lines = [
            [cell.row, cell.column, cell.printed, _computed(cell), _match(cell), cell.note]
            for cell in cells
        ]
        _print_columns(["row", "column", "printed", "computed", "match", "note"], lines)
        matching = sum(cell.matches for cell in cells)
        expected = sum(not cell.matches and not cell.expected for cell in cells)
        print(f"\n{matching} of {len(cells)} cells match; {expected} are known not to.")
    if wrong := sum(cell.matches != cell.expected for cell in cells):
        _say(f"{name}: {wrong} of {len(cells)} cells not as expected")
        raise typer.Exit(1)


def _computed(cell: Cell) -> str:
    """With one digit more than is printed."""
    if cell.computed is None:
        return "-"
    decimals = len(cell.printed.partition(".")[2])
    return f"{cell.computed:.{decimals + 1 if decimals else 0}f}"


def _match(cell: Cell) -> str:
    if cell.matches == cell.expected:
        return "yes" if cell.matches else "no, as expected"
    return "YES, UNEXPECTED" if cell.matches else "NO, UNEXPECTED"


def _caution(preset: str, guarantee: bool) -> str:
    if guarantee:
        return f"preset {preset}: what the mechanism guarantees"
    return f"preset {preset}: REPRODUCTION ONLY of printed numbers, not a guarantee"


def _print_json(content: dict[str, Any]) -> None:
    print(json.dumps(content, indent=1, allow_nan=False))


@contextmanager
def _interruptible(folder: Path) -> Iterator[None]:
    """SIGTERM ends a run like Ctrl-C does: state kept, exit code 3."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        _say(f"stopped; what is done is kept in {folder}: run the same command again to go on")
        raise typer.Exit(3) from None
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _progress() -> Iterator[Any]:
    """A bar on a terminal, a line a chunk elsewhere; both on stderr."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        columns = (
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
            TimeElapsedColumn(),
        )  # fmt: skip
        with Bar(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task("trials", total=None)

            def show(progress: Progress) -> None:
                bar.update(
                    task, total=progress.total, completed=progress.done,
                    description=_chunk_name(progress),
                )  # fmt: skip

            yield show
        return

    def line(progress: Progress) -> None:
        counts = ", ".join(f"{n} {status}" for status, n in sorted(progress.statuses.items()))
        why = progress.reason and f" ({progress.reason})"
        _say(f"{progress.done}/{progress.total} trials, {progress.seconds:.0f} s: "
             f"{_chunk_name(progress)}: {counts}{why}")  # fmt: skip

    yield line


def _chunk_name(progress: Progress) -> str:
    from leakbench.trials import Chunk

    if not isinstance(progress.work, Chunk):
        return f"{progress.work.cell}, network {progress.work.network}"
    cell = progress.work.cells[0]
    variant = f"{cell.variant}: " if cell.variant else ""
    attack = f"{variant}{cell.attack} {cell.knowledge}"
    return f"{cell.dataset}, {attack}, network {progress.work.network}"


def main() -> None:
    """Entry point: bad input ends with one sentence and code 2, an interrupt with code 3."""
    # Workers do the parallel work; a second thread a process made a busy machine 20 times slower.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal may know no check mark
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except LeakbenchError as error:
        _say(f"leakbench: {error}")
        sys.exit(1 if isinstance(error, WorkerLost) else 2)
    except KeyboardInterrupt:
        _say("leakbench: stopped")
        sys.exit(3)
    except OSError as error:
        # What is left in the buffer would fail once more, and louder, at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            sys.exit(0)
        _say(f"leakbench: {error}")
        sys.exit(2)


if __name__ == "__main__":
    main()
