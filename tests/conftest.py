"""Shared by all tests; leakbench comes first, so that it settles the arithmetic of torch."""

import os

import leakbench.arithmetic  # noqa: F401

# One thread a process, and in the processes that tests start: pytest's workers do the parallel
# work, and a second thread makes small tensors up to 20 times slower on a busy machine.
os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")

import torch

torch.set_num_threads(1)
