"""How long a report of many records takes, and how large its page is.

    python benchmarks/reports.py [--records 100000] [--json]

The run is made from `results/tifs_table3-quick`: its cells with more networks and victims, their
numbers a little moved; it has no images. Seconds are processor time.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import leakbench as lb
from leakbench import manifest
from leakbench.loading import LoadedRun
from leakbench.records import Record, Run, encode
from leakbench.report import renderings

SOURCE = Path(__file__).parent.parent / "results" / "tifs_table3-quick"
DATASETS = ("mnist", "fashion_mnist", "cifar10", "lfw")
MOVED = ("mse_raw", "mse_clamped", "distance_raw", "distance_clamped", "loss")

Made = TypeVar("Made")


def write_run(
    folder: Path, records: int, networks: int = 20, datasets: Sequence[str] = DATASETS
) -> None:
    """A run of at least so many records of these data sets in `folder`, which is made."""
    source = lb.load(SOURCE)
    asked = [each for each in source.described.cells if each.cell.dataset in datasets]
    live = [each for each in asked if not each.skip]
    victims = -(-records // (len(live) * networks))
    cells, lines = [], []
    for each in asked:
        name = f"{each.cell.dataset}/{each.cell.row}/{each.cell.knowledge}"
        larger = dataclasses.replace(
            each,
            identities=tuple(
                hashlib.sha256(f"{name}/{network}".encode()).hexdigest()
                for network in range(networks)
            ),
            victims=(tuple(range(victims)),) * networks,
            priors=((each.priors[0][0],) * victims,) * networks if each.priors else (),
        )
        cells.append(larger)
        if not each.skip:
            own = [source.records[key] for key in each.trials()]
            keys = enumerate(larger.trials())
            lines += [encode(_moved(own[i % len(own)], *key, i // victims)) for i, key in keys]
    with Run(folder).writing() as writer:
        larger_plan = dataclasses.replace(
            source.described.plan, cells=tuple(each.cell for each in cells), networks=networks,
            victims=victims,
        )  # fmt: skip
        known = dataclasses.replace(source.described, plan=larger_plan, cells=tuple(cells))
        writer.manifest(manifest.to_json(known))
        writer.run.path.write_bytes(b"".join(lines))


def _moved(record: Record, identity: str, victim: int, network: int) -> Record:
    factor = random.Random(f"{network}/{victim}").uniform(0.9, 1.1)
    moved = {name: record[name] * factor for name in MOVED if record[name] is not None}
    place = {"victim": victim, "batch": victim, "source_index": victim, "network": network}
    return record | moved | place | {"identity": identity}


def measure(folder: Path) -> Iterator[dict[str, Any]]:
    """One row a step."""

    def step(name: str, make: Callable[[], Made]) -> tuple[Made, dict[str, Any]]:
        start = time.process_time()
        made = make()
        row: dict[str, Any] = {"step": name, "seconds": time.process_time() - start}
        if isinstance(made, str):
            row["bytes"] = len(made.encode())
        return made, row

    run, row = step("load", lambda: lb.load(folder))
    assert isinstance(run, LoadedRun)
    yield row | {"records": len(run.records)}
    content, row = step("numbers", run.content)
    yield row
    for name, make in (
        ("Markdown", renderings.to_markdown), ("CSV", renderings.to_csv),
        ("JSON", renderings.to_json),
    ):  # fmt: skip
        yield step(name, lambda make=make: make(content))[1]  # type: ignore[misc]
    yield step("page, with figures", lambda: run.report("html"))[1]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_run(Path(folder) / "run", asked.records)
        rows = list(measure(Path(folder) / "run"))
    if asked.json:
        print(json.dumps(rows, indent=1))
        return
    for row in rows:
        size = f"{row['bytes'] / 1e6:8.2f} MB" if "bytes" in row else " " * 11
        print(f"{row['step']:20} {row['seconds']:8.2f} s {size}")
    print(f"{'in all':20} {sum(row['seconds'] for row in rows):8.2f} s")


if __name__ == "__main__":
    main()
