"""Shared by all tests; leakbench comes first, so that it settles the arithmetic of torch."""

import io
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import leakbench.arithmetic

# isort: split
import pytest
import torch

from leakbench import cli, probe

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
