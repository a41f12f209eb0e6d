"""A defense's states, tensor by tensor."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from leakbench.contracts import State


def by_tensor(how: Callable[[Sequence[Tensor]], Tensor], states: Sequence[State]) -> State:
    """One state of several of one kind: `how` of each tensor's values in them.

    Looks into dataclasses, mappings, lists and tuples (named ones too). Whatever else is in a
    state comes from the first.
    """
    first = states[0]
    if isinstance(first, Tensor):
        return how(states)
    if dataclasses.is_dataclass(first) and not isinstance(first, type):
        parts = {
            field.name: by_tensor(how, [getattr(state, field.name) for state in states])
            for field in dataclasses.fields(first)
            if field.init
        }
        return dataclasses.replace(first, **parts)
    if isinstance(first, Mapping):
        return {key: by_tensor(how, [state[key] for state in states]) for key in first}
    if isinstance(first, list | tuple):
        items = [by_tensor(how, values) for values in zip(*states, strict=True)]
        named = isinstance(first, tuple) and hasattr(first, "_fields")
        return type(first)(*items) if named else type(first)(items)
    return first


def joined(states: Sequence[State]) -> State:
    """States of groups of clients, every tensor of which has a leading client axis, as one."""
    return by_tensor(lambda values: torch.cat(list(values)), states)


def tensors(state: State) -> list[Tensor]:
    """All tensors that `by_tensor` finds."""
    found: list[Tensor] = []

    def noted(values: Sequence[Tensor]) -> Tensor:
        found.append(values[0])
        return values[0]

    by_tensor(noted, [state])
    return found


def in_float64(state: State) -> State:
    """The state with its float32 tensors in float64."""

    def wider(values: Sequence[Tensor]) -> Tensor:
        (value,) = values
        return value.double() if value.dtype == torch.float32 else value

    return by_tensor(wider, [state])
