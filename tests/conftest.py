"""Shared by all tests; leakbench comes first, so that it settles the arithmetic of torch."""

import io
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import leakbench.arithmetic

# isort: split
import numpy as np
import pytest
import torch

from leakbench import cli, probe
from leakbench.data import load
from leakbench.records import Record, Run

# One thread a process, and in the processes that tests start: pytest's workers do the parallel
# work, and a second thread makes small tensors up to 20 times slower on a busy machine.
os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _independent_rows(request: pytest.FixtureRequest) -> None:
    """Skip what the machine cannot keep: see the marker of this name."""
    if request.node.get_closest_marker("independent_rows") is None:
        return
    digits = probe.Shape(model="cnn2", input_shape=(1, 28, 28), classes=10)
    if not probe.rows(digits).independent:
        pytest.skip("on this machine a row's bits depend on its neighbours")


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    errors: str


@pytest.fixture(scope="session")
def leakbench() -> Callable[..., Done]:
    """The command line in this process, from `main` to the exit code.

    Without a data root, in the folder `cwd` if there is one; other keywords are its environment.
    """

    def call(*args: str | Path, cwd: Path | None = None, **env: str) -> Done:
        out, errors = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("LEAKBENCH_DATA", raising=False)
            for name, value in env.items():
                patch.setenv(name, value)
            if cwd is not None:
                patch.chdir(cwd)
            patch.setattr(sys, "argv", ["leakbench", *map(str, args)])
            with redirect_stdout(out), redirect_stderr(errors), pytest.raises(SystemExit) as ended:
                cli.main()
        for stream in (out, errors):
            stream.seek(0)
        return Done(int(ended.value.code or 0), out.read(), errors.read())

    return call


@pytest.fixture(scope="session")
def process() -> Callable[..., Done]:
    """The command line as a process of its own, as `leakbench`; a traceback is never right."""

    def call(*args: str | Path, cwd: Path, **env: str) -> Done:
        clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "LEAKBENCH_DATA")}
        done = subprocess.run(
            [sys.executable, "-m", "leakbench.cli", *map(str, args)],
            cwd=cwd, env=clean | env, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert "Traceback" not in done.stderr + done.stdout, done.stderr
        return Done(done.returncode, done.stdout, done.stderr)

    return call


@pytest.fixture(scope="session")
def crowded() -> Callable[..., list[str]]:
    """Texts of a figure, of its rows and so many inches wide, that are cut or lie on others."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    from leakbench.report.figures import Row, page_of

    def find(rows: Sequence[Row], width: float) -> list[str]:
        figure = page_of(rows, width)
        renderer = FigureCanvasAgg(figure).get_renderer()
        across, down = figure.bbox.size
        found = []
        boxes = [(axes.get_window_extent(renderer), "axes") for axes in figure.axes]
        for text in figure.texts:
            box, words = text.get_window_extent(renderer), text.get_text()
            if box.x0 < 0 or box.y0 < 0 or box.x1 > across or box.y1 > down:
                found.append(f"cut: {words}")
            found += [f"{words} on {other}" for taken, other in boxes if box.overlaps(taken)]
            boxes.append((box, words))
        return found

    return find


@pytest.fixture
def fifty_digits() -> Iterator[None]:
    """mpmath computes in 50 digits."""
    from mpmath import mp

    with mp.workdps(50):
        yield


@pytest.fixture(scope="session")
def gaussian_epsilon() -> Callable[[float], float]:
    """Epsilon at delta = 1e-5 of a Gaussian release, of its mu (Balle and Wang 2018, Theorem 8)."""

    from scipy.optimize import brentq
    from scipy.stats import norm

    def exact(mu: float) -> float:
        def excess(loss: float) -> float:
            low, high = norm.cdf(mu / 2 - loss / mu), norm.cdf(-mu / 2 - loss / mu)
            return float(low - math.exp(loss) * high) - 1e-5

        return float(brentq(excess, 0, 200, xtol=1e-12))

    return exact


@pytest.fixture(scope="session")
def pictured_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The records of `tifs_table3-quick` with made-up images of MNIST beside them.

    Whoever recovered a victim nears the original as 1 - 1/(1 + step) does, and is there at the end;
    the others stay at a start of stripes, turn it over at step 10, and end there.
    """
    source = Path(__file__).parent.parent / "results" / "tifs_table3-quick"
    folder = tmp_path_factory.mktemp("pictured") / "run"
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("report.*", "gallery.png"))
    data = load("mnist")
    stripes = np.broadcast_to(np.arange(28) % 2, (1, 28, 28)).astype(np.float32)
    files: dict[str, dict[int, Record]] = {}
    for record in Run.existing(folder).records().values():
        if record["dataset"] == "mnist":
            place = record["host"]["arrays"]
            files.setdefault(place["file"], {})[place["row"]] = record
    steps = np.array([1, 5, 10, 20, 30])
    (folder / "reconstructions").mkdir()
    for name, rows in files.items():
        records = [rows[row] for row in range(len(rows))]
        truth = data.candidates.numpy()[[record["victim"] for record in records]]
        found = np.array([record["mse_clamped"] < 0.01 for record in records])[:, None, None, None]
        ends = np.where(found, truth, 1 - stripes)
        nearer = [np.where(found, truth * (1 - 1 / (1 + s)), stripes) for s in steps]
        nearer[2:] = [np.where(found, each, 1 - stripes) for each in nearer[2:]]
        nearer[3:] = [np.where(found, each, np.nan) for each in nearer[3:]]
        np.savez_compressed(
            folder / "reconstructions" / name,
            truth=truth, inputs=ends.astype(np.float32),
            start=np.broadcast_to(stripes, truth.shape),
            class_names=np.array([str(record["label"]) for record in records]),
            mean_image=data.public.mean(dim=0).numpy(),
            snapshot_steps=steps, snapshots=np.stack(nearer).astype(np.float32),
            trace=np.where(
                np.arange(30) < np.array([[record["steps"]] for record in records]),
                np.geomspace(10, 1e-6, 30), np.nan,
            ),
            clamped_lengths=np.full(len(records), 2),
            clamped_steps=np.array([[0, min(5, record["steps"])] for record in records]).ravel(),
            clamped_evaluations=np.tile([0, 90], len(records)),
            clamped_errors=np.tile([0.25, 1e-4], len(records)),
        )  # fmt: skip
    return folder


SMALL_SUITE = """
schema = 1
name = "small"
title = "Two rows"
datasets = ["mnist"]

[model]
name = "cnn2"

[training]
batch_size = {{ mnist = 4 }}

[attack]
name = "cpl"
parameters = {{ steps = {steps} }}

[knowledge.naive]

[[defenses]]
id = "none"
name = "none"
label = "none"

[[defenses]]
id = "other"
label = "other"
{other}

[[rules]]
name = "strict"
label = "strict"
kind = "strict"
threshold = 0.01

[gallery]
defense = "none"

[profiles.quick]
networks = 1
victims = {victims}
snapshots = [1]
"""


@pytest.fixture
def small_suite(tmp_path: Path) -> Callable[..., Path]:
    """Writes a suite: digits on `cnn2`, CPL, an undefended row and another one -> its file."""

    def write(
        other: str = 'name = "dp_baseline"\nparameters = {clip = 4.0, noise_multiplier = 0.01}',
        *,
        steps: int,
        victims: int,
    ) -> Path:
        path = tmp_path / "small.toml"
        text = SMALL_SUITE.format(other=other, steps=steps, victims=victims)
        path.write_text(text, encoding="utf-8")
        return path

    return write
