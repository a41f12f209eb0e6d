"""Datasets, partitions and the embedded samples.

Importing this package loads neither torch nor numpy; `load` and its kin do, at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leakbench.data.catalog import NAMES, data_root, describe

if TYPE_CHECKING:
    from leakbench.data.datasets import Dataset, FullDataset, as_unit, load, load_full

__all__ = [
    "NAMES",
    "Dataset",
    "FullDataset",
    "as_unit",
    "data_root",
    "describe",
    "load",
    "load_full",
]


def __getattr__(name: str) -> Any:
    """Fetch what needs torch from `datasets` when it is asked for."""
    if name in __all__:
        from leakbench.data import datasets

        return getattr(datasets, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
