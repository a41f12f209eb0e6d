"""States of every shape a defense may keep, tensor by tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from leakbench.pytrees import in_float64, joined


@dataclass(frozen=True)
class Kept:
    bound: Tensor
    name: str = "kept"


class Pair(NamedTuple):
    mean: Tensor
    count: int


def _state(start: int) -> dict[str, object]:
    values = torch.arange(start, start + 2, dtype=torch.float32)
    return {
        "record": Kept(values),
        "pair": Pair(values + 1, 3),
        "list": [values + 2, None],
        "mask": values > start,
    }


def test_groups_of_clients_are_joined_in_every_tensor() -> None:
    found = joined([_state(0), _state(10)])
    assert found["record"].bound.tolist() == [0, 1, 10, 11] and found["record"].name == "kept"
    assert isinstance(found["pair"], Pair)
    assert found["pair"].mean.tolist() == [1, 2, 11, 12] and found["pair"].count == 3
    assert found["list"][0].tolist() == [2, 3, 12, 13] and found["list"][1] is None
    assert found["mask"].tolist() == [False, True, False, True]


def test_float32_becomes_float64_and_nothing_else_changes() -> None:
    state = _state(0)
    found = in_float64(state)
    assert found["record"].bound.dtype == found["pair"].mean.dtype == torch.float64
    assert found["list"][0].dtype == torch.float64 and found["mask"].dtype == torch.bool
    assert state["record"].bound.dtype == torch.float32  # type: ignore[attr-defined]
