"""Shared by all tests; leakbench comes first, so that it settles the arithmetic of torch."""

import leakbench.arithmetic  # noqa: F401
