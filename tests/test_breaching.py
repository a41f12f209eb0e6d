"""GradInv of the breaching library and ours on one pack; skipped without it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from leakbench.suite import resolve

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "breaching_pack.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """The benchmark, as a module."""
    pytest.importorskip("breaching", reason="needs the extra breaching")
    spec = importlib.util.spec_from_file_location("breaching_pack", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_both_libraries_get_as_far(script: ModuleType, tmp_path: Path) -> None:
    """Median PSNR within 1 dB on eight victims; each sees what the other sees."""
    both = script.compare(
        tmp_path, resolve(str(script.SUITE), "quick"),
        steps=1000, lr=0.1, total_variation=1e-4, restarts=1,
    )  # fmt: skip
    theirs, ours = (both[name].rows[0] for name in ("breaching", "leakbench"))
    assert len(theirs.victims) == len(ours.victims) == 8
    assert theirs.psnr.value is not None and ours.psnr.value is not None
    assert abs(theirs.psnr.value - ours.psnr.value) < 1.0
    assert ours.mse.value is not None and ours.mse.value < 0.2  # noise is at 0.3
