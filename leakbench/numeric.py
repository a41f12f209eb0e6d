"""Arithmetic that libraries do another way."""

from __future__ import annotations

from torch import Tensor


def square_root(values: Tensor) -> Tensor:
    """The root of every element, within two units in the last place; nan below 0.

    `Tensor.sqrt` is MKL's, which begins with the processor's own estimate of 1/sqrt: the last bit
    then depends on the processor, whatever `leakbench.arithmetic` asks for. This one is a root and
    two divisions, which IEEE 754 rounds.
    """
    return values.rsqrt().reciprocal()


BLOCK = 256
"""Rows that are multiplied with each other at once."""


def add_gram(matrix: Tensor, rows: Tensor) -> None:
    """matrix (d, d) += rows rows^T of rows (d, q), one half of it computed and mirrored."""
    for i in range(0, len(rows), BLOCK):
        own = rows[i : i + BLOCK]
        for k in range(i, len(rows), BLOCK):
            product = own @ rows[k : k + BLOCK].mT
            matrix[i : i + BLOCK, k : k + BLOCK] += product
            if k > i:
                matrix[k : k + BLOCK, i : i + BLOCK] += product.mT
