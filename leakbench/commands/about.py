"""`list` and `doctor`: what there is, and whether it works here."""

from __future__ import annotations

import math
import os
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from leakbench import arithmetic
from leakbench.commands.options import PluginsOption
from leakbench.commands.output import print_json, show
from leakbench.errors import LeakbenchError
from leakbench.registry import add_folders

if TYPE_CHECKING:
    from leakbench import probe


class Listed(StrEnum):
    """What `list` can list."""

    attacks = "attacks"
    defenses = "defenses"
    datasets = "datasets"
    models = "models"
    suites = "suites"
    accountants = "accountants"


def list_command(
    kind: Annotated[Listed | None, typer.Argument(help="Only this kind.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Import the plugins and run their contract tests.")
    ] = False,
    plugins: PluginsOption = None,
) -> None:
    """List attacks, defenses, data sets, models, suites, accountants; what is broken, and why."""
    add_folders(plugins or ())
    listed = {k.value: _listing(k, check) for k in ([kind] if kind else Listed)}
    if as_json:
        print_json(listed)
    else:
        for name, rows in listed.items():
            print(f"{name}:")
            for row in rows:
                notes = row.get("reason") or row.get("summary", "")
                show(
                    f"  {row['name']:<18} {row['status']:<16} {row['origin']:<28} {notes}".rstrip()
                )
    if check and any(row["status"] == "broken" for rows in listed.values() for row in rows):
        raise typer.Exit(1)


def _listing(kind: Listed, check: bool) -> list[dict[str, str]]:
    if kind in (Listed.attacks, Listed.defenses, Listed.models):
        from leakbench import registry

        rows = []
        for plugin in registry.discover(kind.value):  # type: ignore[arg-type]
            status, reason, summary = plugin.status, plugin.reason, plugin.summary
            if check and status == "ok":
                from leakbench.testing import check_plugin, remark

                reason = check_plugin(kind.value, plugin.name)  # type: ignore[arg-type]
                status = "broken" if reason else "ok"
                if not reason and (known := remark(kind.value, plugin.name)):  # type: ignore[arg-type]
                    summary = f"{summary} ({known})"
            rows.append(
                {"name": plugin.name, "origin": plugin.origin, "status": status,
                 "reason": reason, "summary": summary}
            )  # fmt: skip
        return rows
    if kind is Listed.datasets:
        from leakbench.data.catalog import describe

        return [
            {"name": row["name"], "origin": row["where"], "status": row["status"],
             "reason": row["how_to_get"] if row["status"] == "missing" else "",
             "summary": row["title"]}
            for row in describe()
        ]  # fmt: skip
    if kind is Listed.accountants:
        return _accountants()
    return _suites()


def _suites() -> list[dict[str, str]]:
    from leakbench import suite

    rows = []
    for each in suite.listed():
        summary, reason = "", each.reason
        if not reason:
            try:
                summary = suite.read(each.name)[0].title
            except LeakbenchError as error:
                reason = str(error)
        rows.append(
            {"name": each.name, "origin": each.origin, "status": "broken" if reason else "ok",
             "reason": reason, "summary": summary}
        )  # fmt: skip
    return rows


def _accountants() -> list[dict[str, str]]:
    from leakbench.spec import ACCOUNTANTS

    return [
        {"name": name, "origin": "leakbench", "status": "ok", "reason": "", "summary": summary}
        for name, summary in ACCOUNTANTS.items()
    ]


def doctor() -> None:
    """Check the environment: versions, devices, data, plugins."""
    import platform
    from importlib.metadata import version

    import torch

    from leakbench import probe, registry
    from leakbench.data.catalog import data_root, describe
    from leakbench.metrics import lpips

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
    print(f"lpips       {lpips.availability(data_root())}")
    show(f"data root   {data_root() or 'none (LEAKBENCH_DATA is not set)'}")
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
        show(f"broken {kind[:-1]} '{plugin.name}' ({plugin.origin}): {plugin.reason}")
    raise typer.Exit(1 if broken else 0)


def _arithmetic_means() -> str:
    """What the arithmetic of this process promises."""
    from leakbench import probe

    name = probe.arithmetic()
    if name.removesuffix(f" {arithmetic.UNCOMPILED}") == "portable":
        promise = "the same bits on every x86-64 with AVX2 (and the same torch)"
    else:
        promise = "the same bits on processors of one family"
    if name.endswith(arithmetic.UNCOMPILED):
        promise += (
            "; attacks take several times as long: install a C compiler, then leakbench again"
        )
    return promise


def _rows_mean(shape: probe.Shape, found: probe.Finding) -> str:
    """What a probe found, in a sentence."""
    if found.independent:
        return f"independent of each other ({shape}): a trial can be done again by itself"
    apart = f", up to {found.difference:.1g} apart" if math.isfinite(found.difference) else ""
    return (
        f"dependent on each other ({shape}){apart}: chunks are done again as a whole, and --chunk "
        "is part of what a run is"
    )
