"""Arithmetic that rounds alike on every processor."""

from __future__ import annotations

from torch import Tensor


def square_root(values: Tensor) -> Tensor:
    """The root of every element, within two units in the last place; nan below 0.

    `Tensor.sqrt` is MKL's, which begins with the processor's own estimate of 1/sqrt: the last bit
    then depends on the processor, whatever `leakbench.arithmetic` asks for. This one is a root and
    two divisions, which IEEE 754 rounds.
    """
    return values.rsqrt().reciprocal()
