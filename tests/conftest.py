"""Shared by all tests; leakbench comes first, so that it settles the arithmetic of torch."""

import os

import leakbench.arithmetic  # noqa: F401

# isort: split
import pytest
import torch

from leakbench import probe

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
